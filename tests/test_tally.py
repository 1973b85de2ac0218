"""The tally of a study: what it says of its winner's time."""

from __future__ import annotations

import pytest

from tunefarm.config import Config
from tunefarm.tally import Tally
from tunefarm.trial import Winner


@pytest.mark.parametrize(
    ("timer", "median_ms", "holds_gpu", "is_told"),
    [
        ("cold", 0.0042, True, True), ("cold", 0.0101, True, False), ("graph", 0.0015, True, False),
        ("hot", 0.0042, True, False), ("cold", 0.0042, False, False),
    ],
    ids=["short", "long enough", "graph", "hot", "replayed"],
)  # fmt: skip
def test_tf_050_short_cold_times_offer_the_graph_timer(
    timer: str, median_ms: float, holds_gpu: bool, is_told: bool
) -> None:
    """Once a study, however often it is said: some microseconds of it are the launch's."""
    tally = Tally(holds_gpu=holds_gpu)
    winner = Winner(config=Config(), median_ms=median_ms, interval_ms=(median_ms, median_ms))
    for _ in range(2):
        tally.weigh("norm sm_90 1x1024 bf16", winner, timer)
    told = "norm sm_90 1x1024 bf16: 4.2 us cold, of which starting a kernel is a large part: `timer: graph` times many "
    assert list(tally.notices) == ([f"{told}launches at once"] if is_told else [])
