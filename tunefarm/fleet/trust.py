"""Whether a Ray cluster asks its callers who they are: one that does not runs whatever anybody sends it."""

from __future__ import annotations

import enum
from typing import Any

_GCS = "/ray.rpc.NodeInfoGcsService/CheckAlive"
_CLIENT = "/ray.rpc.RayletDriver/ClusterInfo"


class Answer(enum.StrEnum):
    """What a cluster says to a caller without a token.

    Attributes:
        REFUSED: it asks for one.
        SERVED: it does what it is asked.
        SILENT: nobody answers in plain gRPC: nothing is there, or it speaks TLS and asks for certificates.
    """

    REFUSED = "refused"
    SERVED = "served"
    SILENT = "silent"


def ask_without_token(address: str, timeout_s: float = 10.0) -> Answer:
    """Asks a cluster for its health as a stranger would.

    Args:
        address: `host:port` of its control service, or `ray://host:port` of its client server.
        timeout_s: how long to wait for a word.
    """
    import grpc

    with grpc.insecure_channel(address.removeprefix("ray://")) as channel:
        return ask(channel, address, timeout_s)


def ask(channel: Any, address: str, timeout_s: float = 10.0) -> Answer:
    """Asks a cluster for its health.

    Args:
        channel: of gRPC, to it: what the caller has to show goes with that.
        address: as for `ask_without_token`.
        timeout_s: how long to wait for a word.
    """
    import grpc

    method = _CLIENT if address.startswith("ray://") else _GCS
    # An empty message is a valid request of either kind, so Ray's own, generated code is not needed.
    call = channel.unary_unary(method, request_serializer=None, response_deserializer=None)
    try:
        call(b"", timeout=timeout_s, metadata=(("client_id", "tunefarm"),))
    except grpc.RpcError as error:
        code = error.code()
        if code in (grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED):
            return Answer.REFUSED
        if code in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED):
            return Answer.SILENT
    return Answer.SERVED  # whatever else it says, it was not asked for a token
