"""What `tunefarm sweep` exposes of itself to Prometheus, where it is asked to."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tunefarm.errors import UserError

if TYPE_CHECKING:
    from tunefarm.gauges import Gauges

LOCAL = "127.0.0.1"

MetricsPort = Annotated[
    int | None, typer.Option(min=1, max=65535, help="Serve Prometheus metrics on it.", show_default=False)
]
MetricsAddress = Annotated[
    str | None, typer.Option(help=f"Where to listen for that, without a password; default: {LOCAL}.")
]
MetricsFile = Annotated[
    Path | None, typer.Option(help="Write them to this .prom file, for a textfile collector.", show_default=False)
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Exposure:
    """Where metrics are to be seen.

    Attributes:
        port: to serve them on, or None.
        address: to listen at for that; None for this machine alone.
        file: to write them to, or None.
    """

    port: int | None = None
    address: str | None = None
    file: Path | None = None


@contextlib.contextmanager
def exposed(exposure: Exposure) -> Iterator[Gauges]:
    """Gauges that are seen there; closed with what was last true.

    Raises:
        UserError: the port or the file is not to be had, or an address is given without a port.
    """
    from tunefarm.gauges import Gauges
    from tunefarm.record.metrics import showcases

    if exposure.address is not None and exposure.port is None:
        raise UserError("is where a port would be opened", key="--metrics-address", hint="add --metrics-port")
    with showcases(exposure.port, exposure.address or LOCAL, exposure.file) as opened:
        gauges = Gauges(opened)
        try:
            yield gauges
        finally:
            gauges.publish()
