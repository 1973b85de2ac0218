"""`tunefarm pack check`: rows against their defaults and against what was recorded; replayed, and on a made-up GPU."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from farm import AS_DEFAULT, GPU, KERNEL, TOOLCHAIN, smooth, write_experiment, write_landscape
from rigged import Pretended
from softmax_recording import SOFTMAX, pack_of
from typer.testing import CliRunner

from tunefarm.bench.meter import Answer, Answers, Question
from tunefarm.bench.store import BuildStore
from tunefarm.checkup import Checked, Verdict, check, open_sites
from tunefarm.cli.app import app
from tunefarm.cli.opening import open_experiment
from tunefarm.cli.pack_check import TOLERANCE
from tunefarm.config import Config
from tunefarm.device import nominal
from tunefarm.dispatch import Dispatch
from tunefarm.errors import UserError
from tunefarm.fleet.inline import InlineFleet
from tunefarm.pack import Pack, dumps, seal
from tunefarm.spec.workload import load_workload
from tunefarm.testing import check_pack
from tunefarm.trial import FINAL, Failure, Measurement, Outcome

BEST = Config(params={"BLOCK": 128, "MARK": 0}, options={"num_warps": 2})
DEFAULT = Config(params={"BLOCK": 64, "MARK": 0}, options={"num_warps": 4})

# ---- what was recorded, replayed ----


def run(*arguments: str | Path, store: Path) -> tuple[int, str]:
    words = ["pack", "check", *map(str, arguments)]
    done = CliRunner().invoke(app, words, env={"TUNEFARM_CACHE": str(store), "COLUMNS": "120"})
    return done.exit_code, done.output + ("" if done.exception is None else str(done.exception))


@pytest.fixture(scope="module")
def softmax(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("packs") / "softmax.json"
    file.write_text(dumps(pack_of(SOFTMAX)))
    return file


def slowed(softmax: Path, to: Path, factor: float) -> Path:
    """The pack as if its second row had once been faster by this factor."""
    (table,) = pack_of(SOFTMAX).tables
    first, second, *others = table.rows
    low, high = second.interval_ms or (0.0, 0.0)
    faster = replace(second, median_ms=(second.median_ms or 0) / factor, interval_ms=(low / factor, high / factor))
    to.write_text(dumps(seal(Pack(tables=(replace(table, rows=(first, faster, *others)),)))))
    return to


def test_a_pack_of_a_recording_is_as_fast_as_recorded(softmax: Path, store: Path) -> None:
    code, output = run(softmax, SOFTMAX, "--meter", "replay", store=store)
    assert code == 0, output
    assert "softmax_kernel on NVIDIA H200 (sm_90) -- REPLAYED from a landscape, nothing was timed" in output
    assert output.splitlines()[-1].endswith("softmax.json: 6 rows: 6 ok")
    assert "5.55x" in output
    code, output = run(softmax, SOFTMAX, "--meter", "replay", "--json", store=store)
    rows = json.loads(output)["rows"]
    assert [row["verdict"] for row in rows] == ["ok"] * 6
    assert {row["source"] for row in rows} == {"replayed"}
    for row in rows:
        assert row["now"]["median_ms"] == pytest.approx(row["then"]["median_ms"], abs=1e-5)
        assert row["now"]["gain"] == pytest.approx(row["then"]["gain"], rel=1e-3)


def test_a_row_that_was_once_faster(softmax: Path, tmp_path: Path, store: Path) -> None:
    code, output = run(slowed(softmax, tmp_path / "a.json", 1.2), SOFTMAX, "--meter", "replay", store=store)
    assert code == 1
    (line,) = [line for line in output.splitlines() if line.startswith("REGRESSED ")]
    assert line.startswith("REGRESSED softmax_kernel on NVIDIA H200, n_cols in ")
    assert "20.0% slower than recorded; its default takes 1.00x of then" in line
    low, high = pack_of(SOFTMAX).tables[0].rows[1].interval_ms or (0.0, 0.0)
    slightly = slowed(softmax, tmp_path / "b.json", 1.02 * high / low)
    code, output = run(slightly, SOFTMAX, "--meter", "replay", store=store)
    assert code == 0, output
    assert "slower softmax_kernel on NVIDIA H200, n_cols in " in output
    assert output.splitlines()[-1].endswith("b.json: 6 rows: 5 ok, 1 slower")
    assert run(slightly, SOFTMAX, "--meter", "replay", "--tolerance", "0.01", store=store)[0] == 1


def test_for_test_suites(softmax: Path, tmp_path: Path) -> None:
    assert [each.verdict for each in check_pack(softmax, SOFTMAX, meter="replay")] == [Verdict.OK] * 6
    with pytest.raises(AssertionError, match=r"softmax_kernel on NVIDIA H200, .*: regressed: 20\.0% slower"):
        check_pack(slowed(softmax, tmp_path / "a.json", 1.2), SOFTMAX, meter="replay")
    with pytest.raises(UserError, match="this measures on a GPU, and this machine has none"):
        check_pack(softmax, SOFTMAX)


def test_bad_input(softmax: Path, tmp_path: Path, store: Path) -> None:
    replay = ("--meter", "replay")
    assert "this measures on a GPU, and this machine has none" in run(softmax, SOFTMAX, store=store)[1]
    other = SOFTMAX.with_name("rope.yaml")
    assert "holds softmax_kernel; the experiments launch rope_kernel" in run(softmax, other, *replay, store=store)[1]
    damaged = tmp_path / "damaged.json"
    damaged.write_text(softmax.read_text().replace("BLOCK_N", "BLOCK_M"))
    assert "does not match its digest" in run(damaged, SOFTMAX, *replay, store=store)[1]
    (table,) = pack_of(SOFTMAX).tables
    elsewhere = tmp_path / "elsewhere.json"
    elsewhere.write_text(dumps(seal(Pack(tables=(replace(table, device=nominal("sm_80")),)))))
    said = run(elsewhere, SOFTMAX, *replay, store=store)[1]
    assert "no row could be checked: its device is not here (its rows are for NVIDIA A100-SXM4-80GB (sm_80))" in said
    hot = tmp_path / "hot.json"
    hot.write_text(dumps(pack_of(SOFTMAX, timer="hot")))
    assert (
        "timer: is cold, and softmax_kernel on NVIDIA H200 was timed hot" in run(hot, SOFTMAX, *replay, store=store)[1]
    )


def test_rows_of_other_devices_and_problems_are_not_checked(tmp_path: Path, store: Path) -> None:
    path = write_experiment(tmp_path, problems=[{"n": [1000, 4096], "dtype": "fp32"}])
    write_landscape(path)
    (table,) = pack_of(path).tables
    other = replace(table, device=nominal("sm_80"))
    (tmp_path / "pack.json").write_text(dumps(seal(Pack(tables=(table, other)))))
    write_experiment(tmp_path)
    code, output = run(tmp_path / "pack.json", path, "--meter", "replay", store=store)
    assert code == 0, output
    assert output.splitlines()[-1].endswith("pack.json: 4 rows: 1 ok, 3 not checked")
    assert output.count("its device is not here") == 2
    assert f"no problem of {path} is the one it was measured at (n=4096)" in output


def test_a_kernel_that_was_edited_is_checked_all_the_same_and_that_is_said(tmp_path: Path, store: Path) -> None:
    path = write_experiment(tmp_path / "old")
    write_landscape(path)
    (tmp_path / "pack.json").write_text(dumps(pack_of(path)))
    edited = write_experiment(tmp_path / "new", kernel=KERNEL.replace("mask=i < n", "mask=i <= n - 1"))
    write_landscape(edited, lambda config, variables: 1.5 * smooth(config, variables))
    code, output = run(tmp_path / "pack.json", edited, "--meter", "replay", store=store)
    assert code == 1
    assert "50.0% slower than recorded; its default takes 1.50x of then" in output
    assert "note: the source of fill_kernel has changed since it was tuned" in output


# ---- a GPU that is made up ----


@pytest.fixture
def own() -> Iterator[InlineFleet]:
    made = InlineFleet([GPU], num_builders=1)
    yield made
    made.close()


def answer(medians_ms: Mapping[str, float], disturbed: str, question: Question) -> Any:
    """Samples with half a per cent of noise that all of a round share; a config without a time gives wrong outputs."""
    assert question.interleaved
    assert question.fresh
    assert question.rung == FINAL
    # Where the default's outputs are the right ones, a meter fails all without it.
    by_default = load_workload(question.ref).compares_with_default
    assert by_default is (question.baseline is not None and question.baseline.artifact is not None)
    noise = 1 + 0.005 * np.random.default_rng(3).standard_normal(question.num_samples)
    answers = []
    for candidate in question.candidates:
        median = medians_ms.get(candidate.config.key)
        if median is None:
            failure = Failure(stage="verify", kind="mismatch", message="all of it differs")
            answers.append(Answer(number=candidate.number, outcome=Outcome.WRONG_RESULT, failure=failure))
            continue
        assert candidate.artifact is not None
        taken = Measurement(
            samples_ms=tuple(median * noise), timer="cold", rung=FINAL, source="measured",
            telemetry=type(TOOLCHAIN)({"disturbed": disturbed} if disturbed else {}),
        )  # fmt: skip
        answers.append(Answer(number=candidate.number, measurement=taken))
    return Answers(answers=tuple(answers), toolchain=TOOLCHAIN)


@pytest.fixture
def checked(own: InlineFleet, tmp_path: Path, store: Path) -> Callable[..., Checked]:
    """The verdict on a row of 1 ms whose default took 2 ms, if they now take so long."""
    return checks_of(own, tmp_path, store)


def checks_of(own: InlineFleet, tmp_path: Path, store: Path, kernel: str = KERNEL) -> Callable[..., Checked]:
    path = write_experiment(tmp_path, kernel)
    write_landscape(path)
    (table,) = pack_of(path, source="measured").tables
    (row,) = table.rows
    row = replace(row, config=BEST, median_ms=1.0, interval_ms=(0.99, 1.01), default=DEFAULT, default_ms=2.0, gain=2.0)

    def ask(
        best_ms: float | None, default_ms: float | None, disturbed: str = "", layer: int = 1, **changes: Any
    ) -> Checked:
        times = {c.key: ms for c, ms in ((BEST, best_ms), (DEFAULT, default_ms)) if ms is not None}
        dispatch = Dispatch(Pretended(own, partial(answer, times, disturbed)))
        tables = [replace(table, rows=(replace(row, **changes),), layer=layer)]
        resolved = [open_experiment(path)]
        sites = open_sites(resolved, tables, dispatch, BuildStore(store / "builds"), [GPU], "gpu", lambda *_: None)
        (found,) = check(tables, sites, TOLERANCE)
        return found

    return ask


def test_verdicts(checked: Callable[..., Checked]) -> None:
    for best_ms, default_ms, verdict, reason in (
        (1.0, 2.0, Verdict.OK, ""),
        (0.9, 2.0, Verdict.FASTER, "its default takes 1.00x of then"),
        (1.04, 2.0, Verdict.SLOWER, "its default takes 1.00x of then"),
        (1.1, 2.0, Verdict.REGRESSED, "slower than recorded; its default takes 1.00x of then"),
        (1.1, 2.2, Verdict.REGRESSED, "slower than recorded; its default takes 1.10x of then"),
        (1.0, 0.95, Verdict.REGRESSED, "5.3% slower than its default"),
        (1.0, 0.995, Verdict.OK, ""),
        (None, 2.0, Verdict.FAILED, "verify: mismatch: all of it differs"),
        (1.0, None, Verdict.OK, ""),
    ):
        found = checked(best_ms, default_ms)
        assert found.verdict is verdict, (best_ms, default_ms, found)
        assert found.reason.endswith(reason)
        if found.now is not None:
            assert found.source == "measured"
            assert found.now.gain == (pytest.approx(default_ms / best_ms) if default_ms else None)


def test_what_was_disturbed_alarms_nobody(checked: Callable[..., Checked]) -> None:
    found = checked(1.5, 2.0, disturbed="contended: another process computed")
    assert found.verdict is Verdict.UNCHECKED
    assert found.reason == "disturbed: contended: another process computed"


def test_a_row_that_is_the_default_or_has_no_time(checked: Callable[..., Checked]) -> None:
    assert checked(None, 1.0, config=DEFAULT, default=DEFAULT).verdict is Verdict.OK
    assert checked(None, 1.2, config=DEFAULT, default=DEFAULT).verdict is Verdict.REGRESSED
    untimed = checked(1.2, 2.0, median_ms=None, interval_ms=None)
    assert (untimed.verdict, untimed.reason) == (Verdict.OK, "no comparable time was recorded")


def test_a_row_that_does_not_compile(checked: Callable[..., Checked]) -> None:
    broken = Config(params={"BLOCK": 100, "MARK": 0}, options={"num_warps": 2})
    found = checked(1.0, 2.0, config=broken)
    assert found.verdict is Verdict.FAILED
    assert "arange's range must be a power of 2" in found.reason


def test_rows_are_compared_with_the_default_where_that_is_the_reference(
    own: InlineFleet, tmp_path: Path, store: Path
) -> None:
    other = replace(DEFAULT, options=type(DEFAULT.options)(num_warps=1))
    for default in (DEFAULT, other, None):  # what it was compared with is another thing than what was used before
        checked = checks_of(own, tmp_path, store, AS_DEFAULT)
        assert checked(1.0, 2.0, default=default).verdict is Verdict.OK


def test_rows_of_another_layer_are_of_another_kernel(checked: Callable[..., Checked]) -> None:
    found = checked(1.0, 2.0, layer=3)
    assert (found.verdict, found.reason) == (Verdict.UNCHECKED, "no experiment given launches this kernel")
