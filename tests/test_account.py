"""Accounts: what a ledger tells, counted again here from its lines."""

from __future__ import annotations

import json
import statistics
from pathlib import Path
from typing import Any

import pytest
from booked import GPU, book, built, decided, failed, finals, study, timed, won
from farm import LARGE, smooth, tunefarm, write_experiment, write_landscape

from tunefarm.config import LIBRARY, Config
from tunefarm.errors import LedgerError
from tunefarm.frozen import FrozenMap
from tunefarm.record.account import Account, Fate, StudyAccount, again, noise, ordered, values
from tunefarm.record.reading import read_account
from tunefarm.trial import Outcome, Winner, to_json, winner_from_json

A, B, C, D = (f"BLOCK={block} num_warps=4" for block in (64, 128, 256, 512))


def read(path: Path) -> StudyAccount:
    (only,) = read_account(path).studies
    return only


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


# ---- a real sweep ----


@pytest.fixture(scope="module")
def swept(tmp_path_factory: pytest.TempPathFactory, store: Path) -> Path:
    """The ledger of a replayed sweep with failures, over a space that is not measured through."""

    def time_ms(config: Config, variables: Any) -> float | Outcome:
        return Outcome.LAUNCH_ERROR if config.flat["BLOCK"] == 256 else smooth(config, variables)

    folder = tmp_path_factory.mktemp("swept")
    write_landscape(write_experiment(folder, space={**LARGE, "num_warps": [1, 2, 4, 8]}), time_ms)
    done = tunefarm(
        "sweep", "experiment.yaml", "--fleet", "inline", "--tracking", "none", "--quiet", folder=folder, store=store
    )
    assert done.returncode == 0, done.stderr
    return folder / "sweeps" / "fill" / "ledger.jsonl"


def test_counts_of_a_sweep_are_those_of_its_lines(swept: Path) -> None:
    told = read(swept)
    data = {
        kind: [e["data"] for e in lines(swept) if e["event"] == kind]
        for kind in ("study", "measured", "failed", "merged", "pruned", "bucketed", "bucket_closed", "winner", "finals")
    }
    (opening,), (grouped,), (winner,), (final,) = (data[k] for k in ("study", "bucketed", "winner", "finals"))
    failing = {e["config"] for e in data["failed"]}
    timed_ones = {e["config"] for e in data["measured"]} - failing
    pruned = {e["config"] for e in data["pruned"]}
    shut = {config for e in data["bucket_closed"] for config in grouped["buckets"][e["bucket"]]}
    assert told.num_candidates == opening["candidates"] == 48
    assert told.count(Fate.FAILED) == len(failing) > 0
    assert told.count(Fate.PRUNED) == len(timed_ones & pruned) > 0
    assert told.count(Fate.MEASURED) == len(timed_ones - pruned) > 0
    assert told.count(Fate.CLOSED) == len(shut - timed_ones - failing)
    assert sum(told.count(fate) for fate in Fate) == told.num_candidates
    # What the search itself says is left.
    assert told.count(Fate.CLOSED, Fate.LEFT) == winner["left"]["num"]
    assert sorted(config for group in told.groups for config in group.configs) == sorted(
        config for bucket in grouped["buckets"] for config in bucket
    )
    assert told.winner == winner_from_json(winner["winner"])
    assert told.winner is not None
    sat = dict(zip(final["configs"], final["measurements"], strict=True))
    samples = sat[told.winner.config.key]["measurement"]["samples_ms"]
    assert told.best_ms == statistics.median(samples)
    assert (told.source, told.timer, told.status) == ("replayed", "cold", "winner")
    assert told.busy_s == 0, "a replay holds no GPU"
    assert [m.median_ms for _, m in told.course] == [
        statistics.median(e["measurement"]["samples_ms"]) for e in data["measured"]
    ]


def test_a_sweep_that_goes_on_notes_nothing_twice(swept: Path, store: Path) -> None:
    before = read(swept)
    folder = swept.parents[2]
    again_ = ("sweep", "experiment.yaml", "--fleet", "inline", "--tracking", "none", "--quiet")
    done = tunefarm(*again_, folder=folder, store=store)
    assert done.returncode == 0, done.stderr
    kinds = [e["event"] for e in lines(swept)]
    assert (kinds.count("bucketed"), kinds.count("epoch")) == (1, 2)
    assert read(swept) == before
    assert read_account(swept).num_drivers == 2


# ---- what events mean ----


def test_every_candidate_stands_in_one_place(tmp_path: Path) -> None:
    path = book(
        tmp_path / "ledger.jsonl", study(candidates=9), built(A), built(B), timed(A, 0.1, 0.2, 0.3),
        timed(A, 0.2, rung=1), timed(B, 0.4), decided("pruned", config=B, rung=0), failed(C, "no"),
        decided("merged", config=D, rung=-1, into=A),
        decided("bucketed", buckets=[[A], [B, "BLOCK=1 num_warps=4"], ["BLOCK=2 num_warps=4"]]),
        decided("bucket_closed", bucket=1),
    )  # fmt: skip
    told = read(path)
    fates = {entry.config: entry.fate for entry in told.entries}
    assert fates == {
        A: Fate.MEASURED, B: Fate.PRUNED, C: Fate.FAILED, D: Fate.MERGED, "BLOCK=1 num_warps=4": Fate.CLOSED,
        "BLOCK=2 num_warps=4": Fate.LEFT,
    }  # fmt: skip
    assert [told.count(fate) for fate in Fate] == [1, 1, 1, 1, 1, 4]
    assert told.status == "unfinished"
    assert told.best_ms == 0.2
    assert [group.closed for group in told.groups] == ["", "so it was", ""]
    assert told.build_s == 1.0
    assert told.busy_s == pytest.approx((0.6 + 0.2 + 0.4) / 1e3)


def test_the_first_word_on_a_measurement_counts(tmp_path: Path) -> None:
    told = read(book(tmp_path / "ledger.jsonl", study(), timed(A, 0.1), timed(A, 0.9), failed(A, "late", rung=0)))
    assert [(e.config, e.median_ms, e.fate) for e in told.entries] == [(A, 0.1, Fate.MEASURED)]


def test_what_failed_later_is_no_measured_candidate(tmp_path: Path) -> None:
    told = read(book(tmp_path / "ledger.jsonl", study(), timed(A, 0.1), failed(A, "wrong", rung=99), timed(B, 0.3)))
    assert (told.count(Fate.MEASURED), told.count(Fate.FAILED)) == (1, 1)
    assert [entry.config for entry in told.timed] == [B]


def test_other_conditions_are_history_and_fresh_voids(tmp_path: Path) -> None:
    path = book(tmp_path / "ledger.jsonl", study(), timed(A, 0.1), conditions="old")
    book(path, study(), timed(A, 0.2), timed(B, 0.2))
    assert read(path).best_ms == 0.2
    assert read_account(path).num_history == 3
    book(path, ("fresh", {}), study(), timed(A, 0.3))
    assert [entry.median_ms for entry in read(path).entries] == [0.3]
    assert read_account(path).num_drivers == 3


def test_a_library_call_is_no_candidate(tmp_path: Path) -> None:
    winner = Winner(config=LIBRARY, median_ms=0.1, interval_ms=(0.1, 0.1), default=LIBRARY, default_ms=0.1, gain=1.0)
    sat = finals({A: [0.2] * 8, LIBRARY.key: [0.1] * 8})
    told = read(book(tmp_path / "ledger.jsonl", study(candidates=1), timed(A, 0.2), sat, won(winner)))
    assert [told.count(fate) for fate in Fate] == [1, 0, 0, 0, 0, 0]
    assert told.best_ms == 0.1
    assert dict(told.toolchain) == {"torch": "9.9", "triton": "8.8"}


@pytest.mark.parametrize(
    ("events", "status"),
    [
        ((study(meter=""),), "not_measured"),
        ((study(), decided("skipped", status="skipped")), "skipped"),
        ((study(), decided("no_winner", status="no_winner")), "no_winner"),
        ((study(), finals({A: [0.1]}, event="probed")), "probed"),
        ((study(),), "unfinished"),
    ],
    ids=["not_measured", "skipped", "no_winner", "probed", "unfinished"],
)
def test_how_studies_end(tmp_path: Path, events: Any, status: str) -> None:
    told = read(book(tmp_path / "ledger.jsonl", *events))
    assert told.status == status
    assert sum(told.count(fate) for fate in Fate) == told.num_candidates == 4


def test_failures_are_grouped_by_class_and_first_line(tmp_path: Path) -> None:
    told = read(
        book(
            tmp_path / "ledger.jsonl", study(), failed(A, "no such name 'i'\nat line 3"),
            failed(B, "too many registers"),
            failed(C, "no such name 'i'\nat line 7"), failed(D, "no such name 'i'", kind="OSError"),
        )
    )  # fmt: skip
    assert [(kind.name, kind.first_line, len(kind.entries)) for kind in told.kinds] == [
        ("PTXASError", "no such name 'i'", 2), ("PTXASError", "too many registers", 1),
        ("OSError", "no such name 'i'", 1),
    ]  # fmt: skip


def test_sizes_make_no_kinds_of_their_own_and_places_in_the_source_do(tmp_path: Path) -> None:
    told = read(
        book(
            tmp_path / "ledger.jsonl", study(), failed(A, "needs 245760 bytes"), failed(B, "needs 491520 bytes"),
            failed(C, "at line 12"), failed(D, "at line 34"),
        )
    )  # fmt: skip
    assert [kind.first_line for kind in told.kinds] == ["needs # bytes", "at line 12", "at line 34"]


def test_values_of_which_none_was_tried_are_told(tmp_path: Path) -> None:
    buckets = [[A, B], ["BLOCK=64 num_warps=8", "BLOCK=1024 num_warps=8"]]
    told = read(
        book(tmp_path / "ledger.jsonl", study(), decided("bucketed", buckets=buckets), timed(A, 0.1), timed(B, 0.2))
    )
    assert told.untried_values == [("BLOCK", ["1024"]), ("num_warps", ["8"])]


def test_more_are_known_than_were_told_where_an_experiment_was_edited(tmp_path: Path) -> None:
    told = read(book(tmp_path / "ledger.jsonl", study(candidates=1), timed(A, 0.1), timed(B, 0.2)))
    assert told.num_candidates == sum(told.count(fate) for fate in Fate) == 2


def test_ledgers_of_earlier_releases_lack_some_of_it(tmp_path: Path) -> None:
    _, opening = study()
    old = {name: value for name, value in opening.items() if name not in ("num_bytes", "flops", "kernel")}
    told = read(book(tmp_path / "ledger.jsonl", ("study", old), timed(A, 0.1)))
    assert (told.groups, told.share(0.1), told.rate(0.1)) == ((), None, (0.0, 0.0))


def test_rates_and_shares() -> None:
    told = read_account_of(num_bytes=4e6, flops=8e6)
    # 4 MB in 0.01 ms are 0.4 TB/s: a tenth of 4000 GB/s.
    assert told.rate(0.01) == pytest.approx((0.4, 0.8))
    assert told.share(0.01) == pytest.approx(0.1)


def read_account_of(**more: Any) -> StudyAccount:
    return StudyAccount(
        key="k", label="l", workload="w", kernel="", device=GPU, dims=FrozenMap(), dtypes=FrozenMap(), status="winner",
        **more,
    )  # fmt: skip


# ---- ledgers that are not whole ----


def test_damage_is_counted_and_the_rest_is_read(tmp_path: Path) -> None:
    path = book(tmp_path / "ledger.jsonl", study(), timed(A, 0.1))
    half = b'{"at_s":1.0,"data":{"study":"fill gpu n=1"},"epoch":1,"event":"measured"}\n'
    path.write_bytes(path.read_bytes() + b"\xff\xfe not json\n" + half + b'{"at_s":17')
    account = read_account(path)
    assert (account.num_damaged, account.is_torn) == (2, True)
    assert account.studies[0].best_ms == 0.1


@pytest.mark.parametrize(
    "odd",
    [{"device": {}}, {"device": {**GPU.to_json(), "bandwidth_gbps": "fast"}}, {"candidates": "many"}, {"problem": 3},
     {"removed": [1]}],
    ids=["no device", "device", "candidates", "problem", "removed"],
)  # fmt: skip
def test_a_study_that_says_too_little_is_left_out(tmp_path: Path, odd: dict[str, Any]) -> None:
    path = book(tmp_path / "ledger.jsonl", study(**odd), study("other"), timed(A, 0.1), timed(A, 0.2, key="other"))
    account = read_account(path)
    assert [each.key for each in account.studies] == ["other"]
    assert account.num_damaged == 1


def test_numbers_that_are_none_are_damage(tmp_path: Path) -> None:
    odd = Winner(config=Config(), median_ms=-1.0, interval_ms=(0.1, 0.1))
    path = book(
        tmp_path / "ledger.jsonl", study(), timed(A, 0.1), timed(B), timed(C, 0.0), built(D, registers=-1), won(odd),
        finals({A: [True]}), timed(D, 0.1, rung=0),
    )  # fmt: skip
    account = read_account(path)
    assert account.num_damaged == 5
    assert {e.config for e in account.studies[0].timed} == {A, D}
    assert account.studies[0].status == "unfinished"


def test_what_a_driver_wrote_after_it_was_taken_over_is_left_out(tmp_path: Path) -> None:
    path = book(tmp_path / "ledger.jsonl", study())
    stale = path.read_text().splitlines()[0].replace('"event":"epoch"', '"event":"winner"')
    book(path)
    path.write_text(path.read_text() + stale + "\n")
    assert read_account(path).num_stale == 1


@pytest.mark.parametrize("content", [b"", b"hello\n", b'{"a": 1}\n', b"\x00" * 100])
def test_what_is_no_ledger_is_refused(tmp_path: Path, content: bytes) -> None:
    (path := tmp_path / "ledger.jsonl").write_bytes(content)
    with pytest.raises(LedgerError, match="is not a tunefarm ledger"):
        read_account(path)


def test_a_missing_ledger_and_one_of_another_version_are_refused(tmp_path: Path) -> None:
    with pytest.raises(LedgerError, match="no such file"):
        read_account(tmp_path / "none.jsonl")
    path = book(tmp_path / "ledger.jsonl")
    path.write_text(path.read_text().replace('"version":1', '"version":7'))
    with pytest.raises(LedgerError, match="has version 7"):
        read_account(path)


def test_an_empty_sweep_has_no_studies(tmp_path: Path) -> None:
    account = read_account(book(tmp_path / "ledger.jsonl"))
    assert isinstance(account, Account)
    assert (account.studies, account.sources, account.experiment) == ((), [], "fill")


# ---- words and numbers ----


def test_values_of_a_key() -> None:
    assert dict(values("KEEP= MODE=a b c BLOCK=64 num_warps=-1")) == {
        "KEEP": "", "MODE": "a b c", "BLOCK": "64", "num_warps": "-1",
    }  # fmt: skip
    assert ordered(["128", "64", "b", "-1", "0.5", "a"]) == ["-1", "0.5", "64", "128", "a", "b"]


def test_a_winner_is_read_as_it_was_written() -> None:
    config = Config(params={"BLOCK": 64}, options={"num_warps": 4})
    whole = Winner(
        config=config, median_ms=0.1, interval_ms=(0.09, 0.11), default=LIBRARY, default_ms=0.2, gain=2.0,
        gain_interval=(1.9, 2.1), runner_up=LIBRARY, margin=1.0, reason="faster",
    )  # fmt: skip
    for winner in (whole, Winner(config=config, median_ms=0.1, interval_ms=(0.09, 0.11))):
        assert winner_from_json(json.loads(json.dumps(to_json(winner)))) == winner


def test_noise_within_a_sitting_and_between_two(tmp_path: Path) -> None:
    samples = [0.10, 0.11, 0.12, 0.13, 0.14, 0.15, 0.16, 0.17, 0.18]
    told = read(book(tmp_path / "ledger.jsonl", study(), timed(A, *samples), timed(A, 0.28, rung=1), timed(B, 0.1)))
    # Order statistics 1 and 7 of nine around the middle one.
    assert noise(told.measurements) == [pytest.approx((0.17 - 0.11) / 2 / 0.14)]
    assert again(told.entries) == [pytest.approx(1.0)]
