"""Whom this machine trusts: a cluster that runs anybody's code, a store that others write, words that leave."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

from tunefarm.cli.check import Check
from tunefarm.cli.folders import cache_folder

_LOOPBACK = ("http://127.", "http://localhost")


def examine_trust() -> Iterator[Check]:
    """Looks at the boundary behind which code is run as it comes."""
    address = os.environ.get("RAY_ADDRESS", "")
    yield check_cluster(address, insecure=os.environ.get("TUNEFARM_INSECURE_CLUSTER", "") not in ("", "0"))
    token = os.environ.get("RAY_AUTH_TOKEN_PATH")
    yield check_token(Path(token) if token else Path(os.path.expanduser("~")) / ".ray" / "auth_token")
    yield check_store(cache_folder() / "builds")
    yield check_telemetry(address, os.environ.get("RAY_USAGE_STATS_REPORT_URL", ""))


def check_cluster(address: str, *, insecure: bool) -> Check:
    """Whether the Ray cluster that sweeps would join asks for a token."""
    name = "Ray cluster"
    if insecure:
        return Check(
            name=name, state="warn", found="TUNEFARM_INSECURE_CLUSTER: clusters that ask for no token are joined",
            remedy="unset it, and give the cluster a token: RAY_AUTH_MODE=token",
        )  # fmt: skip
    if address not in ("", "auto") and not address.rpartition(":")[2].isdigit():
        remedy = "write host:6379, ray://host:10001 or auto, or unset RAY_ADDRESS"
        return Check(name=name, state="warn", found=f"{address!r} is no address of one", remedy=remedy)
    if address in ("", "auto"):
        return Check(name=name, state="ok", found="a sweep's own, which asks for a token (RAY_ADDRESS names none)")
    try:
        from tunefarm.fleet.trust import Answer, ask_without_token

        answer = ask_without_token(address, timeout_s=3.0)
    except ModuleNotFoundError:
        return Check(name=name, state="warn", found="grpcio is not installed", remedy="pip install 'tunefarm[farm]'")
    if answer is Answer.SERVED:
        remedy = "start it with RAY_AUTH_MODE=token: a sweep refuses it as it is"
        return Check(name=name, state="warn", found=f"{address} does what strangers ask", remedy=remedy)
    if answer is Answer.SILENT:
        return Check(
            name=name, state="warn", found=f"{address} does not answer", remedy="is it up, and the port right?"
        )
    return Check(name=name, state="ok", found=f"{address} asks for a token")


def check_token(path: Path) -> Check:
    """Whether the token of Ray clusters is its owner's alone."""
    name = "Ray token"
    try:
        mode = path.stat().st_mode
    except OSError:
        return Check(name=name, state="ok", found=f"none lies around ({path})")
    if mode & (stat.S_IRWXG | stat.S_IRWXO):  # Ray writes it as the umask says
        return Check(name=name, state="warn", found=f"{path} can be read by others", remedy=f"chmod 600 {path}")
    return Check(name=name, state="ok", found=f"{path} is its owner's alone")


def check_store(folder: Path) -> Check:
    """Whether machine code that GPUs run can be put there by others."""
    name = "build store"
    for place in (folder, folder.parent):
        try:
            status = place.stat()
        except OSError:
            continue
        if status.st_uid not in (os.getuid(), 0):
            remedy = "name a folder of your own: TUNEFARM_CACHE"
            return Check(name=name, state="warn", found=f"{place} belongs to user {status.st_uid}", remedy=remedy)
        if others := [
            who for who, bit in (("its group", stat.S_IWGRP), ("anybody", stat.S_IWOTH)) if status.st_mode & bit
        ]:
            found = f"{place} can be written by {' and '.join(others)}: who writes there decides what GPUs run"
            return Check(name=name, state="warn", found=found, remedy=f"chmod go-w {place}, unless you trust them")
    return Check(name=name, state="ok", found=f"{folder} is written by its owner alone")


def check_telemetry(address: str, report_url: str) -> Check:
    """Whether anything tells others that it is used. A sweep switches off MLflow's words and Ray's."""
    name = "telemetry"
    if address and not report_url.startswith(_LOOPBACK):
        # Also where it is told not to: Ray then reports that reporting is switched off.
        return Check(
            name=name, state="warn", found=f"a head started by `ray start`, as {address} may be, reports to Ray",
            remedy="start it, and this, with RAY_USAGE_STATS_REPORT_URL=http://127.0.0.1:9",
        )  # fmt: skip
    return Check(name=name, state="ok", found="none: a sweep switches MLflow's and Ray's off")
