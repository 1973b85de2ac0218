"""Where winners give way to their neighbours: measured, on problems that a landscape holds besides the experiment's."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest
from farm import KERNEL, events, play, write_experiment, write_landscape

from tunefarm.config import Config, Value
from tunefarm.export import export
from tunefarm.pack import Pack
from tunefarm.seams import Fleet
from tunefarm.trial import Outcome

SPACE = {"BLOCK": [64, 128, 256], "MARK": [0], "num_warps": [4]}
ENDS = [{"n": [1024, 16384], "dtype": "fp32"}]
ALL = [{"n": [528, 1024, 2048, 4096, 8192, 16384, 32768], "dtype": "fp32"}]


def changes_at(n: int) -> object:
    """128 is best up to n, 256 above; 64, the default, is 10 % behind."""

    def time_ms(config: Config, variables: Mapping[str, Value]) -> float:
        best = 128 if int(variables["n"] or 0) <= n else 256
        return 0.02 * {best: 1.0, 64: 1.1}.get(int(config.params["BLOCK"] or 0), 1.2)

    return time_ms


def packed(folder: Path, fleet: Fleet, store: Path, time_ms: object, **sections: object) -> tuple[Pack, Path]:
    recorded = write_experiment(folder / "all", problems=ALL, space=SPACE)
    landscape = write_landscape(recorded, time_ms)  # type: ignore[arg-type]
    devices = [{"arch": "sm_90", "landscape": str(landscape)}]
    experiment = write_experiment(folder, **{"problems": ENDS, "space": SPACE, "devices": devices, **sections})
    played = play(experiment, fleet, store)
    pack = export(
        played.results, kernel="fill_kernel", source_hash="0" * 64, sweep="s", experiment="e", created="2026-01-01",
        tunefarm="0", ranges=("n",), cuts=played.cuts,
    )  # fmt: skip
    return pack, played.ledger


def bounds(pack: Pack) -> list[tuple[int, int]]:
    (table,) = pack.tables
    return [row.match.dims["n"] for row in table.rows]  # type: ignore[misc]


@pytest.mark.parametrize(
    ("change", "cut"),
    # Probed at 4096, then at 2048 or 8192: the change is between two of these.
    [(1500, 1448), (3000, 2896), (5000, 5792), (9000, 11585)],
)
def test_the_cut_closes_in_on_the_cross_over(tmp_path: Path, fleet: Fleet, store: Path, change: int, cut: int) -> None:
    pack, ledger = packed(tmp_path, fleet, store, changes_at(change))
    (table,) = pack.tables
    assert [row.config.params["BLOCK"] for row in table.rows] == [128, 256]
    assert bounds(pack) == [(512, cut), (cut, 32768)]
    assert len(events(ledger, "probed")) == 4  # two between them, and one beyond either end


def test_an_outermost_row_reaches_as_far_as_it_beats_the_default(tmp_path: Path, fleet: Fleet, store: Path) -> None:
    def default_is_best_outside(config: Config, variables: Mapping[str, Value]) -> float:
        n, block = int(variables["n"] or 0), int(config.params["BLOCK"] or 0)
        best = 64 if n in (528, 32768) else 128
        return 0.02 if block == best else 0.025

    pack, _ = packed(tmp_path, fleet, store, default_is_best_outside)
    # Probed once at each end; what lies between there and the points is not recorded.
    assert bounds(pack) == [(735, 4096), (4096, 23170)]


def test_what_is_wrong_at_a_probe_gives_way(tmp_path: Path, fleet: Fleet, store: Path) -> None:
    def wrong_above(config: Config, variables: Mapping[str, Value]) -> float | Outcome:
        n, block = int(variables["n"] or 0), int(config.params["BLOCK"] or 0)
        if block == 128 and 1024 < n < 16384:
            return Outcome.WRONG_RESULT
        return changes_at(9000)(config, variables)  # type: ignore[operator, no-any-return]

    pack, _ = packed(tmp_path, fleet, store, wrong_above)
    assert bounds(pack)[0] == (512, 1448)


def test_without_a_recording_of_probes_the_cut_stays_in_the_middle(tmp_path: Path, fleet: Fleet, store: Path) -> None:
    experiment = write_experiment(tmp_path, problems=ENDS, space=SPACE)
    write_landscape(experiment, changes_at(1500))  # type: ignore[arg-type]
    played = play(experiment, fleet, store)
    assert (played.cuts, events(played.ledger, "probed")) == ({}, [])


def test_a_dim_that_may_not_range_is_not_probed(tmp_path: Path, fleet: Fleet, store: Path) -> None:
    (tmp_path / "all").mkdir()
    exact = KERNEL.replace('    ranges=("n",),\n', "")
    recorded = write_experiment(tmp_path / "all", exact, problems=ALL, space=SPACE)
    landscape = write_landscape(recorded, changes_at(1500))  # type: ignore[arg-type]
    devices = [{"arch": "sm_90", "landscape": str(landscape)}]
    played = play(write_experiment(tmp_path, exact, problems=ENDS, space=SPACE, devices=devices), fleet, store)
    assert (played.cuts, events(played.ledger, "probed")) == ({}, [])


def test_a_driver_that_goes_on_probes_nothing_again(tmp_path: Path, fleet: Fleet, store: Path) -> None:
    """TF-057: the same ledger gives the same decisions."""
    first, ledger = packed(tmp_path, fleet, store, changes_at(3000))
    again, _ = packed(tmp_path, fleet, store, changes_at(3000))
    assert again == first
    assert len(events(ledger, "probed")) == 4
