"""What a worker can load before its first job, as jobs: loading is what a fresh process spends its first seconds on."""

from __future__ import annotations

import contextlib

from tunefarm.errors import UserError
from tunefarm.spec.workload import WorkloadRef, load_workload


def load_builder(*refs: WorkloadRef) -> None:
    """Loads what building workloads takes, which costs a process many seconds."""
    import torch  # noqa: F401
    import triton.compiler  # noqa: F401

    for ref in refs:
        with contextlib.suppress(UserError):  # whoever needs it will say what is wrong with it
            load_workload(ref)


def load_meter(*refs: WorkloadRef) -> None:
    """Loads what measuring workloads takes; leaves the GPU alone."""
    import torch._dynamo  # noqa: F401 (PyTorch loads it with the first context manager of its own that is entered)

    load_builder(*refs)
