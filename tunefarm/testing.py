"""For test suites: the regression test of a tuned kernel.

from tunefarm.testing import check_pack

@pytest.mark.skipif(not torch.cuda.is_available(), reason="times kernels on a GPU")
def test_softmax_is_as_fast_as_when_it_was_tuned():
    check_pack("packs/softmax.json", "experiments/softmax.yaml")
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from tunefarm.cli.opening import FleetKind, MeterKind
from tunefarm.cli.pack_check import TOLERANCE, perform

if TYPE_CHECKING:
    from tunefarm.checkup import Checked


def check_pack(
    pack: Path | str, *experiments: Path | str, meter: str = "gpu", tolerance: float = TOLERANCE
) -> list[Checked]:
    """Times each row of a pack beside its default and compares both with what was recorded, as `tunefarm pack check`.

    Args:
        pack: the file.
        experiments: files that launch its kernels, at the problems its rows were measured at.
        meter: `gpu`; or `replay`, which compares with the experiment's landscape and times nothing.
        tolerance: by how much a time may be above the recorded interval, as a fraction.

    Returns:
        What was found of each row. Rows for devices that are not here are `not checked`.

    Raises:
        AssertionError: a row is slower than its default, slower than recorded, or cannot run any more.
        UserError: there is no GPU, something given makes no sense, or no row could be checked.
        InfrastructureError: no worker could do what must be done.
    """
    told, _ = perform(
        Path(pack), [Path(path) for path in experiments], meter=MeterKind(meter), tolerance=tolerance,
        fleet=FleetKind.INLINE, address=None, quiet=True,
    )  # fmt: skip
    broken = [f"{each.label}: {each.verdict.value}: {each.reason}" for each in told if each.is_broken]
    if broken:
        raise AssertionError("\n".join([str(pack), *broken]))
    return told
