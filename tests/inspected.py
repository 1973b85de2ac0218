"""Looks inside ten kernels of the experiments, each taken once a process."""

from __future__ import annotations

import functools
from pathlib import Path

from tunefarm.cli.opening import open_experiment
from tunefarm.device import nominal
from tunefarm.inspecting import Look, choose, default_config, look
from tunefarm.plan import Target, plan

EXPERIMENTS = Path(__file__).parents[1] / "experiments"
KERNELS = (
    "vector_add", "cross_entropy", "flash_attention", "fused_moe", "layer_norm_backward", "matmul", "matmul_tma",
    "rms_norm", "rope", "softmax",
)  # fmt: skip


@functools.cache
def looked(name: str, arch: str) -> Look:
    """A look inside what the default of an experiment's first problem compiles to."""
    resolved = open_experiment(EXPERIMENTS / f"{name}.yaml")
    study = choose(plan(resolved, [Target(device=nominal(arch))]), "", name)
    return look(resolved, study, default_config(study))
