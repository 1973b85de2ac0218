"""A Ray cluster: how it is joined, which nodes it has, and how a process is tied to one of them."""

from __future__ import annotations

import logging
import os
import re
import secrets
import signal
import socket
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tunefarm.errors import InfrastructureError, UserError
from tunefarm.fleet.cpus import available_cpus
from tunefarm.fleet.trust import Answer, ask, ask_without_token
from tunefarm.frozen import FrozenMap

LABEL = "tunefarm.dev/device"
"""A node's label that names the device whose measurements are replayed there; see `label_of`."""

_TOKEN = secrets.token_hex(32)
"""What a local cluster asks of its callers; one for all, because Ray reads it once per process."""

_ADDRESS = re.compile(r"(?:ray://)?(?P<host>\[[0-9A-Fa-f:.]+\]|[^\s:/\[\]]+):(?P<port>\d{1,5})")
_ANY = "auto"
"""The address of whichever cluster this machine takes part in."""
_REACH_S = 10.0
_SURVEY_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """A node that is alive.

    Attributes:
        id: Ray's; one that comes back has another.
        host: its name.
        num_cpus: CPUs that the cluster may give away there.
        num_gpus: GPUs.
        labels: the node's labels.
    """

    id: str
    host: str
    num_cpus: int
    num_gpus: int
    labels: FrozenMap[str]

    @property
    def place(self) -> dict[str, Any]:
        """Options that tie an actor or task to it, and let it fail where the node is gone."""
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        return {"scheduling_strategy": NodeAffinitySchedulingStrategy(self.id, soft=False)}


def label_of(name: str) -> str:
    """A device's name as a label's value: `NVIDIA-A100-PCIE-40GB`, as Kubernetes' GPU discovery writes it."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip("-")


def connect(address: str | None, *, use_gpus: bool, insecure: bool) -> bool:
    """Joins a cluster or starts one here; True if it was started here.

    Args:
        address: of a cluster; None for one of this machine. If this process has joined one already, that is used.
        use_gpus: whether one of this machine counts its GPUs.
        insecure: join one though it does the bidding of whoever reaches it.

    Raises:
        UserError: it answers without a token.
        InfrastructureError: it cannot be reached or started.
    """
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    import ray

    if ray.is_initialized():
        return False
    address = address or None  # an empty RAY_ADDRESS names none
    options: dict[str, Any] = {"address": address}
    is_unsure = False
    if address is not None:
        is_unsure = _reach(address, insecure=insecure) is Answer.SILENT and not address.startswith("ray://")
    else:
        # Ray would write a token into the home directory, which may be read-only and outlives the cluster.
        os.environ["RAY_AUTH_TOKEN"] = _TOKEN
        options = {
            "address": "local",
            "num_cpus": available_cpus(),
            "num_gpus": None if use_gpus else 0,
            "include_dashboard": False,
        }
    # `log_to_driver` does not cover Ray's own words on dead workers, which would go to standard output.
    ray._private.worker._worker_logs_enabled = False
    asked_to_end = signal.getsignal(signal.SIGTERM)
    try:
        ray.init(logging_level=logging.ERROR, log_to_driver=False, **options)
    except (ConnectionError, ValueError, RuntimeError, ray.exceptions.RayError) as error:
        raise InfrastructureError(f"no Ray cluster at {address or 'this machine'}: {error}") from error
    if is_unsure and not insecure:  # `auto`: only now it is known where that is; or one that was slow to answer
        try:
            where = ray.get_runtime_context().gcs_address
            _refuse_open(where, ask_without_token(where, _REACH_S))
        except UserError:
            ray.shutdown()
            raise
    if threading.current_thread() is threading.main_thread():
        # What happens when this process is asked to end is its own matter: Ray's answer prints a stack, and aborts.
        signal.signal(signal.SIGTERM, asked_to_end)
    return address is None


def _reach(address: str, *, insecure: bool) -> Answer:
    """Sees that a cluster will have this caller, and what it tells strangers.

    Ray itself tries for up to minutes, and fills the terminal.
    """
    found = _ADDRESS.fullmatch(address)
    if address == _ANY:
        return Answer.SILENT
    if found is None or not 0 < int(found["port"]) < 1 << 16:
        hint = "write host:6379, ray://host:10001 or auto, or leave it out to use this machine alone"
        raise UserError(f"{address!r} is no address of a Ray cluster", key="--address", hint=hint)
    try:
        socket.create_connection((found["host"].strip("[]"), int(found["port"])), timeout=_REACH_S).close()
    except OSError as error:
        raise InfrastructureError(
            f"no Ray cluster at {address}: {error}", hint="is it up, and the port right?"
        ) from error
    answer = ask_without_token(address, _REACH_S)
    if not insecure:
        _refuse_open(address, answer)
    _present(address)
    return answer


def _present(address: str) -> None:
    """Shows what Ray would show: its own channel carries the token and speaks TLS where it is told to."""
    from ray._private.grpc_utils import init_grpc_channel
    from ray.exceptions import RayError

    wanted = "it asks for a token: set RAY_AUTH_MODE=token and RAY_AUTH_TOKEN as it has them"
    try:
        with init_grpc_channel(address.removeprefix("ray://")) as channel:
            answer = ask(channel, address, _REACH_S)
    except (RayError, RuntimeError, ValueError, OSError) as error:  # no token where one is to be, no certificates
        said = str(error).split(". ")[0]
        raise InfrastructureError(f"no Ray cluster at {address}: {said}", hint=wanted) from error
    if answer is Answer.REFUSED:
        raise InfrastructureError(f"no Ray cluster at {address} for whoever has no token, or another", hint=wanted)
    if answer is Answer.SILENT:
        raise InfrastructureError(
            f"no Ray cluster at {address}: what listens there does not answer as one does",
            hint="is it the port of `ray start --head`, and does TLS (RAY_USE_TLS) fit?",
        )


def _refuse_open(address: str, answer: Answer) -> None:
    if answer is Answer.SERVED:
        raise UserError(
            f"the Ray cluster at {address} answers without a token: whoever reaches it can run code there",
            hint="start it, and this, with RAY_AUTH_MODE=token and one RAY_AUTH_TOKEN; where nobody else can reach it, "
            "TUNEFARM_INSECURE_CLUSTER=1 joins it as it is",
        )


def nodes() -> list[Node]:
    """The nodes that are alive, in an order that lasts."""
    import ray

    found = []
    for node in ray.nodes():
        if node["Alive"]:
            has: Mapping[str, float] = node["Resources"]
            found.append(
                Node(
                    id=node["NodeID"], host=node["NodeManagerHostname"], num_cpus=int(has.get("CPU", 0)),
                    num_gpus=int(has.get("GPU", 0)), labels=FrozenMap(node.get("Labels") or {}),
                )
            )  # fmt: skip
    return sorted(found, key=lambda node: node.id)


def settled(patience_s: float, *, gpus: bool = False) -> list[Node]:
    """The nodes, once one of them has CPUs: a cluster may need a moment to say what it has.

    Args:
        patience_s: seconds.
        gpus: GPUs are waited for as well, as nodes may still be starting; without any, who wants one says so.

    Raises:
        InfrastructureError: no node has CPUs in time.
    """
    give_up_s = time.monotonic() + patience_s
    while True:
        there = nodes()
        has = total(there)
        if has["CPU"] and (has["GPU"] or not gpus):
            return there
        if time.monotonic() > give_up_s:
            if has["CPU"]:
                return there
            raise InfrastructureError(f"the Ray cluster has no CPUs: {describe(has)}")
        time.sleep(0.1)


def usable_cpus(wanted: Sequence[Node]) -> dict[str, int]:
    """By node id, how many CPUs may really be kept busy there: whoever started a node may have said another number.

    A node that does not answer is taken at its word.
    """
    import ray

    asked = {node.id: ray.remote(available_cpus).options(num_cpus=0, **node.place).remote() for node in wanted}
    if asked:
        ray.wait(list(asked.values()), num_returns=len(asked), timeout=_SURVEY_S)
    found = {}
    for node in wanted:
        try:
            found[node.id] = min(node.num_cpus, ray.get(asked[node.id], timeout=0))
        except ray.exceptions.RayError:
            found[node.id] = node.num_cpus
    return found


def total(there: Sequence[Node]) -> dict[str, float]:
    """What nodes have together."""
    return {"CPU": sum(node.num_cpus for node in there), "GPU": sum(node.num_gpus for node in there)}


def describe(resources: Mapping[str, float]) -> str:
    """CPUs and GPUs, for people."""
    return ", ".join(f"{name}={resources.get(name, 0):g}" for name in ("CPU", "GPU"))
