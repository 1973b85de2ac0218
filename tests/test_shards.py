"""One sweep by several drivers: who takes what, what each keeps, and how their packs become one."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest
from farm import THREE, Warm, events, write_experiment, write_landscape

from tunefarm.cli.opening import open_experiment
from tunefarm.errors import UserError
from tunefarm.pack_reader import load_pack
from tunefarm.plan import choose_targets, plan
from tunefarm.record.ledger import open_ledger
from tunefarm.shards import Shard, allot, parse_shard, take

SWEEP = ("sweep", "fill/experiment.yaml", "--fleet", "inline", "--tracking", "none")


@pytest.fixture
def fill(tmp_path: Path) -> Path:
    """An experiment of three studies."""
    path = write_experiment(tmp_path / "fill", problems=THREE, export="packs/fill.json")
    write_landscape(path)
    return path


@pytest.mark.parametrize("num", [1, 2, 7, 64])
def test_studies_are_shared_out_whole_evenly_and_whatever_the_order_in_which_they_are_named(num: int) -> None:
    chance = random.Random(num)
    costs = {f"study {n}": float(chance.randrange(1, 300)) for n in range(200)}
    shares = allot(costs, num)
    assert shares.keys() == costs.keys()
    assert set(shares.values()) == set(range(1, num + 1))
    names = list(costs)
    chance.shuffle(names)
    assert allot({name: costs[name] for name in names}, num) == shares
    loads = [sum(costs[key] for key, number in shares.items() if number == n) for n in range(1, num + 1)]
    assert max(loads) - min(loads) <= max(costs.values())


def test_every_study_is_one_shards_and_experiments_fill_each_other_up(fill: Path) -> None:
    experiment = open_experiment(fill)
    planned = plan(experiment, choose_targets(experiment.experiment, []))
    for num in (2, 3, 5):
        parts = [take(Shard(number=n, num=num), [(experiment.experiment, planned)])[0] for n in range(1, num + 1)]
        taken = [study.study.key for part in parts for study in part.studies]
        assert sorted(taken) == sorted(study.study.key for study in planned)
        assert max(len(part.studies) for part in parts) == (2 if num == 2 else 1)
        assert sum(part.weight for part in parts) == pytest.approx(1.0)
        assert {part.num for part in parts} == {3}


def test_studies_that_are_to_share_a_config_stay_together(fill: Path) -> None:
    path = write_experiment(fill.parent, problems=THREE, accept={"one_config_over": ["n"]})
    experiment = open_experiment(path)
    planned = plan(experiment, choose_targets(experiment.experiment, []))
    parts = [take(Shard(number=n, num=2), [(experiment.experiment, planned)])[0] for n in (1, 2)]
    assert [len(part.studies) for part in parts] == [3, 0]


@pytest.mark.parametrize("text", ["0/8", "9/8", "1/0", "8", "a/b", "-1/8", "1/2/3", ""])
def test_a_shard_that_does_not_exist_is_refused(text: str) -> None:
    with pytest.raises(UserError, match=r"^--shard: .*such as 2/8"):
        parse_shard(text)


def test_the_command_refuses_it_too_and_touches_nothing(fill: Path, warm: Warm, store: Path) -> None:
    done = warm(*SWEEP, "--shard", "9/8", folder=fill.parents[1], store=store)
    assert done.returncode == 2
    assert "--shard: there is no shard 9 of 8" in done.stderr
    assert [path.name for path in fill.parents[1].iterdir()] == ["fill"]


def test_a_shard_without_studies_says_so_and_is_content(fill: Path, warm: Warm, store: Path) -> None:
    done = warm(*SWEEP, "--shard", "4/4", folder=fill.parents[1], store=store)
    assert (done.returncode, done.stdout) == (0, "shard 4/4 has no study: there are 3 in all\n"), done.stderr
    done = warm(*SWEEP, "--shard", "4/4", "--json", folder=fill.parents[1], store=store)
    assert json.loads(done.stdout) == {"studies": [], "shard": "4/4", "of": 3}
    assert not (fill.parents[1] / "sweeps").exists()


def test_two_drivers_on_one_shard_are_kept_apart_and_those_on_two_are_not(fill: Path, warm: Warm, store: Path) -> None:
    folder = fill.parents[1]
    held = open_ledger(folder / "sweeps/fill-1-of-2/ledger.jsonl", {"experiment": "fill"})
    done = warm(*SWEEP, "--shard", "1/2", folder=folder, store=store)
    assert done.returncode == 2
    assert "is being written by pid" in done.stderr
    held.close()
    other = open_ledger(folder / "sweeps/fill-2-of-2/ledger.jsonl", {"experiment": "fill"})
    assert other.epoch == 1
    other.close()


def test_the_packs_of_all_shards_are_the_pack_of_the_whole(fill: Path, store: Path, warm: Warm) -> None:
    folder = fill.parents[1]
    studies = []
    for number in (1, 2):
        done = warm(*SWEEP, "--json", "--shard", f"{number}/2", folder=folder, store=store)
        assert done.returncode == 0, done.stderr
        facts = json.loads(done.stdout)
        assert (facts["shard"], facts["of"]) == (f"{number}/2", 3)
        assert facts["pack"] == f"packs/fill-{number}-of-2.json"
        studies += [study["study"] for study in facts["studies"]]
        (opening,) = events(folder / f"sweeps/fill-{number}-of-2/ledger.jsonl", "epoch")
        assert opening["identity"]["shard"] == f"{number}/2"
    assert len(studies) == len(set(studies)) == 3
    parts = [f"packs/fill-{number}-of-2.json" for number in (1, 2)]
    merged = warm("pack", "merge", *parts, "-o", "packs/fill.json", folder=folder, store=store)
    assert merged.returncode == 0, merged.stderr
    whole = warm(*SWEEP, "-o", "packs/whole.json", folder=folder, store=store)
    assert whole.returncode == 0, whole.stderr
    told = [
        [(row.match, row.config, row.measured_at) for table in load_pack(folder / name).tables for row in table.rows]
        for name in ("packs/fill.json", "packs/whole.json")
    ]
    assert told[0] == told[1]
    assert len(told[0]) == 3
