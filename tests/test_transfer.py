"""What other studies teach a search: what they measured is tried first, and believed no longer than it is right."""

from __future__ import annotations

import itertools
import json
import math
import random
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from farm import LARGE, THREE, events, tunefarm, write_experiment, write_landscape

from tunefarm.cli.opening import open_experiment, read_known
from tunefarm.cli.order import find_pasts
from tunefarm.config import Config
from tunefarm.device import nominal
from tunefarm.errors import LandscapeError, LedgerError, UserError
from tunefarm.frozen import FrozenMap
from tunefarm.pasts import Story, choose_pasts, read_stories
from tunefarm.plan import choose_targets, plan
from tunefarm.problem import Problem
from tunefarm.record.ledger import open_ledger
from tunefarm.search.search import StudySearch
from tunefarm.search.transfer import NUM_EXPECTED, Past
from tunefarm.trial import Build, Measurement, Trial

DEVICE = nominal("sm_90")
SPACE = [
    Config(params={"ROWS": rows, "BLOCK": block}, options={"num_warps": warps})
    for rows, block, warps in itertools.product((1, 2, 4, 8), (128, 256, 512, 1024, 2048, 4096), (1, 2, 4, 8, 16))
]
Time = Callable[[Config], float]


def problem(n: int) -> Problem:
    return Problem(dims=FrozenMap(n=n), dtypes=FrozenMap(x="fp32"))


def bowl(n: int) -> Time:
    """The best block is as long as the row, with eight elements a thread."""

    def time_ms(config: Config) -> float:
        rows, block, warps = (math.log2(config.flat[name]) for name in ("ROWS", "BLOCK", "num_warps"))
        return 0.05 * (1 + 0.3 * abs(block - math.log2(n)) + 0.2 * abs(rows + block - warps - 8) + 0.1 * rows)

    return time_ms


def build(config: Config) -> Build:
    per_thread = config.params["ROWS"] * config.params["BLOCK"] / (32 * config.options["num_warps"])
    return Build(binary=config.key, registers=int(16 + 2 * per_thread), spills=0, shared_bytes=0, grid=(1000, 1, 1))


def past(n: int, time_ms: Time, *, num: int = 60, with_builds: bool = True) -> Past:
    configs = random.Random(n).sample(SPACE, num)
    return Past(
        problem=problem(n), device=DEVICE, configs=tuple(configs), times_ms=tuple(map(time_ms, configs)),
        builds=tuple(build(config) if with_builds else None for config in configs),
    )  # fmt: skip


def drive(n: int, pasts: Sequence[Past], *, built: bool = True, most: int = 60) -> list[Config]:
    """The configs that a search of the bowl measures, in that order."""
    search = StudySearch(configs=SPACE, problem=problem(n), device=DEVICE, batch=1, max_trials=most, pasts=pasts)
    tried: list[Config] = []

    def compiled(numbers: Sequence[int]) -> None:
        trials = (search.trials[number] for number in numbers)
        search.built([Trial(number=t.number, config=t.config, build=build(t.config)) for t in trials])

    while built and (wanted := search.wants_builds(len(SPACE))):
        compiled(wanted)
    while requests := search.ask():
        compiled([request.number for request in requests])
        for request in search.pending:
            config = search.trials[request.number].config
            if config not in tried:
                tried.append(config)
            samples = (bowl(n)(config),) * 3
            search.tell(
                request.number, Measurement(samples_ms=samples, timer="cold", rung=request.rung, source="replayed")
            )
    return tried


def first_best(n: int, tried: Sequence[Config]) -> int:
    best = min(map(bowl(n), SPACE))
    return next(count for count, config in enumerate(tried, 1) if bowl(n)(config) <= 1.01 * best)


@pytest.mark.parametrize("built", [True, False])
@pytest.mark.parametrize("with_builds", [True, False])
def test_what_others_measured_is_tried_first(built: bool, with_builds: bool) -> None:
    """The best of 1024 is another config than that of 256 and of 4096, and lies between them."""
    pasts = [past(n, bowl(n), with_builds=with_builds) for n in (256, 512, 2048, 4096)]
    tried = drive(1024, pasts, built=built)
    assert first_best(1024, tried) <= NUM_EXPECTED < first_best(1024, drive(1024, (), built=built))


def test_what_is_wrong_is_not_believed_for_long() -> None:
    """What was slow elsewhere is said to have been fast."""
    for n in (256, 1024, 4096):
        wrong = [past(m, lambda config, m=m: 1 / bowl(m)(config)) for m in (256, 512, 1024, 2048, 4096)]  # type: ignore[misc]
        assert first_best(n, drive(n, wrong)) <= first_best(n, drive(n, ())) + 10


def test_the_same_pasts_give_the_same_search() -> None:
    pasts = [past(n, bowl(n)) for n in (256, 4096)]
    assert drive(1024, pasts, most=20) == drive(1024, [replace(each) for each in pasts], most=20)


def test_a_past_of_one_config_or_of_equal_times_says_nothing() -> None:
    pasts = [past(256, bowl(256), num=1), past(512, lambda config: 1.0)]
    assert first_best(1024, drive(1024, pasts)) <= 60


# ---- from files ----

ARGUMENTS = ("sweep", "experiment.yaml", "--fleet", "inline", "--tracking", "none")
SEARCHED: dict[str, Any] = {"space": LARGE, "budget": {"trials": 20}, "search": {"batch": 4}}


def test_a_sweep_learns_from_an_earlier_ones_ledger(tmp_path: Path, store: Path) -> None:
    """And one that goes on does not learn from itself."""
    write_landscape(write_experiment(tmp_path / "before", **SEARCHED, problems=THREE))
    first = tunefarm(*ARGUMENTS, folder=tmp_path / "before", store=store)
    assert first.returncode == 0, first.stderr
    assert "learning" not in first.stdout + first.stderr
    ledger = "../before/sweeps/fill/ledger.jsonl"
    search = {**SEARCHED["search"], "learn_from": [ledger]}
    write_landscape(
        write_experiment(tmp_path / "after", **{**SEARCHED, "search": search}, problems=[{"n": 3000, "dtype": "fp32"}])
    )
    for _ in range(2):
        second = tunefarm(*ARGUMENTS, folder=tmp_path / "after", store=store)
        assert second.returncode == 0, second.stderr
        assert "learning from 3 earlier studies of this kernel" in second.stdout + second.stderr
    (study,) = events(tmp_path / "after/sweeps/fill/ledger.jsonl", "study")
    assert study["kernel"] == "fill_kernel"
    asked = [e["config"] for e in events(tmp_path / "after/sweeps/fill/ledger.jsonl", "measured") if e["rung"] == 0]
    # The default comes first; among the next ones is the best of all.
    assert "BLOCK=256 MARK=0 num_warps=2" in "\n".join(asked[: NUM_EXPECTED + 1])


def test_a_sweep_under_other_conditions_learns_from_its_own_ledger(tmp_path: Path, store: Path) -> None:
    """Such as after an update of Triton: the old times are no answers, and better than nothing."""
    path = write_experiment(tmp_path, **SEARCHED)
    write_landscape(path)
    assert tunefarm(*ARGUMENTS, folder=tmp_path, store=store).returncode == 0
    again = tunefarm(*ARGUMENTS, folder=tmp_path, store=store)
    assert "learning" not in again.stdout + again.stderr
    path.write_text(json.dumps({**json.loads(path.read_text()), "search": {**SEARCHED["search"], "seed": 1}}))
    other = tunefarm(*ARGUMENTS, folder=tmp_path, store=store)
    assert other.returncode == 0, other.stderr
    assert "learning from 1 earlier study of this kernel" in other.stdout + other.stderr
    fresh = tunefarm(*ARGUMENTS, "--fresh", folder=tmp_path, store=store)
    assert "learning" not in fresh.stdout + fresh.stderr


def test_a_landscape_is_a_past_too(tmp_path: Path) -> None:
    landscape = write_landscape(write_experiment(tmp_path, problems=THREE))
    config = Config(params={"BLOCK": 128, "MARK": 0}, options={"num_warps": 2})
    stories = read_stories(landscape, "fill_kernel")
    pasts = choose_pasts(stories, [config, Config(params={"BLOCK": 1, "MARK": 0})])
    assert [dict(each.problem.dims) for each in pasts] == [{"n": 1000}, {"n": 4096}, {"n": 5000}]
    assert all(each.configs == (config,) for each in pasts)
    assert all(0 < each.times_ms[0] < 0.1 for each in pasts)
    assert choose_pasts(stories, [Config(params={"X": 1})]) == []


def test_a_file_is_read_once_before_any_work(tmp_path: Path, store: Path) -> None:
    """Under whatever names; what it held then is learned, though it is gone by now."""
    path = write_experiment(tmp_path, search={"learn_from": ["old.json.gz", "./elsewhere/../old.json.gz"]})
    write_landscape(path)
    (tmp_path / "elsewhere").mkdir()
    old = write_landscape(path, name="old.json.gz")
    resolved = open_experiment(path)
    known = read_known(resolved)
    assert list(known) == [old]
    old.unlink()
    planned = plan(resolved, choose_targets(resolved.experiment, []))
    with closing(open_ledger(tmp_path / "ledger.jsonl", {"experiment": "fill", "conditions": "a"})) as ledger:
        (past,) = find_pasts("fill_kernel", planned, ledger, known)
    assert set(past.configs) == set(planned[0].candidates)


def test_of_a_study_counts_the_last_that_was_under_other_conditions() -> None:
    config, study = Config(params={"BLOCK": 128}), past(256, bowl(256))
    stories = [
        Story(study="s", problem=study.problem, device=study.device, conditions=when, times_ms={config.key: time_ms})
        for when, time_ms in (("a", 1.0), ("b", 2.0), ("c", 3.0))
    ]
    for conditions, time_ms in (("", 3.0), ("a", 3.0), ("c", 2.0)):
        (chosen,) = choose_pasts(stories, [config], conditions)
        assert chosen.times_ms == (time_ms,)


def test_files_that_teach_nothing(tmp_path: Path) -> None:
    landscape = write_landscape(write_experiment(tmp_path))
    with pytest.raises(
        UserError, match=r"recording.json.gz.*holds studies of kernel fill_kernel, and this one is mine"
    ):
        read_stories(landscape, "mine")
    with pytest.raises(LandscapeError, match=r"gone\.json\.gz"):
        read_stories(tmp_path / "gone.json.gz", "mine")
    with pytest.raises(LedgerError, match=r"gone\.jsonl"):
        read_stories(tmp_path / "gone.jsonl", "mine")
    open_ledger(tmp_path / "empty.jsonl", {"experiment": "fill"}).close()
    assert read_stories(tmp_path / "empty.jsonl", "mine") == []
    (tmp_path / "notes.txt").write_text("BLOCK=64 was fast\n")
    with pytest.raises(UserError, match=r"notes\.txt: is no ledger and no landscape"):
        read_stories(tmp_path / "notes.txt", "mine")


def test_a_file_to_learn_from_that_is_not_there_is_said_before_any_work(tmp_path: Path, store: Path) -> None:
    path = write_experiment(tmp_path, search={"learn_from": ["old/ledger.jsonl"]})
    write_landscape(path)
    done = tunefarm(*ARGUMENTS, folder=tmp_path, store=store)
    assert done.returncode == 2
    assert "old/ledger.jsonl" in done.stderr
    assert not (tmp_path / "sweeps/fill/ledger.jsonl").exists()
