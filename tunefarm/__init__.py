"""tunefarm: tune Triton kernels once, on a farm, and ship the answer as a pack.

Training code needs three names: `activate` loads a pack, `autotune` marks a kernel of one's own, `install` adopts
kernels of others. Importing this package loads the standard library only; Triton is imported when a kernel is touched.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tunefarm.config import Config
    from tunefarm.device import Device
    from tunefarm.problem import Problem
    from tunefarm.runtime.activation import activate, install
    from tunefarm.runtime.autotuner import autotune
    from tunefarm.runtime.reporting import digest, report
    from tunefarm.spec.workload import Workload

__version__ = "0.1.0"
__all__ = ["Config", "Device", "Problem", "Workload", "activate", "autotune", "digest", "install", "report"]

_LAZY = {
    "Config": "tunefarm.config",
    "Device": "tunefarm.device",
    "Problem": "tunefarm.problem",
    "activate": "tunefarm.runtime.activation",
    "autotune": "tunefarm.runtime.autotuner",
    "digest": "tunefarm.runtime.reporting",
    "install": "tunefarm.runtime.activation",
    "report": "tunefarm.runtime.reporting",
    "Workload": "tunefarm.spec.workload",
}


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module 'tunefarm' has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(_LAZY[name]), name)
