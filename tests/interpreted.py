"""A production call on the CPU, under Triton's interpreter: for processes that were started with TRITON_INTERPRET=1."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tunefarm.bench.launch import call
from tunefarm.bench.tensors import make_inputs
from tunefarm.bench.verify import Tolerance, mismatch, poisoned, reference_outputs, sum_length
from tunefarm.config import Config, Value
from tunefarm.runtime.autotuner import autotuners
from tunefarm.runtime.kernels import triton_config
from tunefarm.spec.workload import WorkloadRef, load_workload
from tunefarm.trial import Failure


def failures(ref: WorkloadRef, variables: Mapping[str, Value], configs: Sequence[Config]) -> list[Failure | None]:
    """For each config, how the outputs of the production call differ from the reference's, or None.

    The config is declared in place of the author's, as the only one: what a kernel without a pack obeys.
    """
    workload = load_workload(ref)
    (tuner,) = autotuners(workload.kernel)
    hook = tuner.configs[0].pre_hook
    inputs = make_inputs(workload, variables, "cpu")
    expected = reference_outputs(workload, inputs)
    flops = workload.flops(**variables) if workload.flops else 0.0
    tolerance = Tolerance(atol=workload.atol, rtol=workload.rtol, length=sum_length(inputs, expected, flops))
    found = []
    for config in configs:
        tuner.configs = [triton_config(config, pre_hook=hook)]
        inputs = make_inputs(workload, variables, "cpu")  # anew: some calls write into them
        with poisoned():
            outputs = call(workload, inputs, config)
        found.append(mismatch(outputs, expected, tolerance))
    return found
