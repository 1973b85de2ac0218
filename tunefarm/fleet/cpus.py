"""How many CPUs this process may use, which is not how many the machine has."""

from __future__ import annotations

import os
from pathlib import Path


def available_cpus(root: Path = Path("/")) -> int:
    """CPUs this process may keep busy: of its affinity mask, and no more than its control groups grant.

    Compiling with more workers than this makes good candidates time out (containers show every CPU of the host).

    Args:
        root: where `proc` and `sys` are found.

    Returns:
        At least 1; a quota of 2.5 CPUs counts as 2.

    Source: cgroups(7); Linux kernel documentation, cgroup-v2, `cpu.max`.
    """
    if hasattr(os, "sched_getaffinity"):
        num_cpus = len(os.sched_getaffinity(0))
    else:
        num_cpus = os.cpu_count() or 1
    return max(1, min([num_cpus, *(int(quota) for quota in _quotas(root))]))


def _quotas(root: Path) -> list[float]:
    """CPUs granted by each control group this process is in, version 1 or 2; groups without a limit are left out."""
    quotas: list[float] = []
    for line in _read(root / "proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers and "cpu" not in controllers.split(","):
            continue
        mount = root / "sys/fs/cgroup" / ("cpu" if controllers else "")
        inside = mount / path.lstrip("/")
        # In a container the path may name a group that only the host can see; the mount itself is then the group.
        for group in (inside, *(p for p in inside.parents if p.is_relative_to(mount))):
            quotas += _quota(group)
    return quotas


def _quota(group: Path) -> list[float]:
    words = _read(group / "cpu.max").split() or [
        _read(group / "cpu.cfs_quota_us").strip(),
        _read(group / "cpu.cfs_period_us").strip(),
    ]
    quota, period = words
    return [int(quota) / int(period)] if quota.isdigit() and period.isdigit() else []


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
