"""How many builds may go on at once."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tunefarm.fleet.cpus import available_cpus
from tunefarm.fleet.inline import InlineFleet


def cgroup(root: Path, line: str, files: dict[str, str]) -> Path:
    (root / "proc/self").mkdir(parents=True)
    (root / "proc/self/cgroup").write_text(line)
    for name, text in files.items():
        path = root / "sys/fs/cgroup" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


@pytest.mark.parametrize(
    ("line", "files", "quota"),
    [
        ("0::/\n", {"cpu.max": "150000 100000\n"}, 1),
        ("0::/\n", {"cpu.max": "1600000 100000\n"}, 16),
        ("0::/\n", {"cpu.max": "50000 100000\n"}, 1),
        ("0::/\n", {"cpu.max": "max 100000\n"}, None),
        ("0::/pod/box\n", {"pod/box/cpu.max": "max 100000\n", "pod/cpu.max": "200000 100000\n"}, 2),
        ("0::/host/only\n", {"cpu.max": "300000 100000\n"}, 3),
        (
            "5:memory:/x\n4:cpu,cpuacct:/x\n",
            {"cpu/x/cpu.cfs_quota_us": "200000\n", "cpu/x/cpu.cfs_period_us": "100000\n"},
            2,
        ),
        ("4:cpu:/x\n", {"cpu/x/cpu.cfs_quota_us": "-1\n", "cpu/x/cpu.cfs_period_us": "100000\n"}, None),
    ],
)
def test_available_cpus_respects_control_groups(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: str, files: dict[str, str], quota: int | None
) -> None:
    """TF-007: no more builds at once than CPUs that may be used."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(64)), raising=False)
    assert available_cpus(cgroup(tmp_path, line, files)) == (64 if quota is None else quota)


def test_available_cpus_respects_affinity(tmp_path: Path) -> None:
    """TF-007."""
    assert available_cpus(tmp_path) == len(os.sched_getaffinity(0))
    assert len(InlineFleet().workers) == available_cpus()
