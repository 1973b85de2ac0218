"""Minutes: what a contest writes down once, and a later driver finds."""

from __future__ import annotations

from pathlib import Path

from farm import events

from tunefarm.bench.meter import Answer
from tunefarm.config import Config
from tunefarm.minutes import UNMEASURED, Minutes
from tunefarm.record.ledger import open_ledger
from tunefarm.search.buckets import Bucket
from tunefarm.search.decisions import Decision
from tunefarm.trial import Build, Failure, Measurement, Outcome, Trial

CONFIG = Config(params={"BLOCK": 128}, options={"num_warps": 2})
OTHER = Config(params={"BLOCK": 256}, options={"num_warps": 2})
TIMED = Answer(number=3, measurement=Measurement(samples_ms=(0.1, 0.2), timer="cold", rung=0, source="replayed"))
FAILED = Answer(
    number=3, outcome=Outcome.COMPILE_ERROR, failure=Failure(stage="build", kind="PTXASError", message="no")
)
BUILD = Build(binary="ab" * 32, registers=20, spills=0, shared_bytes=0)


def test_what_one_driver_writes_the_next_one_remembers_and_does_not_write_again(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    for epoch in (1, 2):
        ledger = open_ledger(path, {"experiment": "e"})
        minutes = Minutes(study="s", ledger=ledger, memo=ledger.memo())
        known = minutes.remember(3, CONFIG, 0)
        assert known == (None if epoch == 1 else TIMED)
        assert minutes.remember(3, CONFIG, 1) is None
        assert minutes.remember(3, OTHER, UNMEASURED) == (None if epoch == 1 else FAILED)
        assert Minutes(study="t", ledger=ledger, memo=ledger.memo()).remember(3, CONFIG, 0) is None
        minutes.built(CONFIG, BUILD)
        minutes.answered([(CONFIG, 0, TIMED), (OTHER, UNMEASURED, FAILED)])
        ledger.close()
    assert [len(events(path, name)) for name in ("built", "measured", "failed")] == [1, 1, 1]
    (failed,) = events(path, "failed")
    assert (failed["study"], failed["config"], failed["outcome"]) == ("s", OTHER.key, "compile_error")


def test_decisions_name_configs_and_reasons(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    ledger = open_ledger(path, {"experiment": "e"})
    minutes = Minutes(study="s", ledger=ledger, memo=ledger.memo())
    trials = (Trial(number=0, config=CONFIG), Trial(number=1, config=OTHER, outcome=Outcome.MERGED, merged_into=0))
    decisions = [
        Decision(kind="merged", number=1, reason="same binary"),
        Decision(kind="pruned", number=0, reason="slow"),
        Decision(kind="bucket_closed", number=7, reason="hopeless"),
    ]
    minutes.decided(decisions, trials)
    ledger.close()
    (merged,), (pruned,), (closed,) = (events(path, name) for name in ("merged", "pruned", "bucket_closed"))
    assert (merged["config"], merged["into"], merged["reason"]) == (OTHER.key, CONFIG.key, "same binary")
    assert (pruned["config"], pruned["rung"], pruned["reason"]) == (CONFIG.key, -1, "slow")
    assert (closed["bucket"], closed["reason"]) == (7, "hopeless")


def test_buckets_are_noted_once_and_again_where_they_are_others(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    trials = (Trial(number=0, config=CONFIG), Trial(number=1, config=OTHER))
    apart = [Bucket(number=n, members=(n,), representatives=(n,)) for n in (0, 1)]
    for buckets in (apart, apart, [Bucket(number=0, members=(1, 0), representatives=(1,))]):
        ledger = open_ledger(path, {"experiment": "e"})
        Minutes(study="s", ledger=ledger, memo=ledger.memo()).bucketed(buckets, trials)
        ledger.close()
    assert [e["buckets"] for e in events(path, "bucketed")] == [[[CONFIG.key], [OTHER.key]], [[OTHER.key, CONFIG.key]]]
