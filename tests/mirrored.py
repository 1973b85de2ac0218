"""What tests of the Optuna mirror share: a study, its trials, and how it reads in a storage."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import optuna

from tunefarm.config import Config
from tunefarm.device import nominal
from tunefarm.frozen import FrozenMap
from tunefarm.problem import Problem
from tunefarm.search.mirror import Owner, StorageMirror
from tunefarm.study import Study
from tunefarm.trial import Failure, Measurement, Outcome, Trial, Winner

State = optuna.trial.TrialState
OWNER = Owner(experiment="softmax", sweep_id="abc", edition="1", seed=7)
STUDY = Study(
    workload="softmax",
    device=replace(nominal("sm_90"), name="NVIDIA H200"),
    problem=Problem(dims=FrozenMap(n_cols=4096), dtypes=FrozenMap(x="bf16")),
    variables=FrozenMap[Any]({"n_rows": 8192, "n_cols": 4096, "dtype": "bf16"}),
)
NAME = "softmax/softmax sm_90 8192x4096 bf16"
FAILURE = Failure(stage="launch", kind="OutOfResources", message="shared memory")
WINNER = Winner(
    config=Config(params=FrozenMap(BLOCK=64), options=FrozenMap(num_warps=4, maxnreg=None)),
    median_ms=0.75,
    interval_ms=(0.7, 0.8),
)


def config(block: int) -> Config:
    return Config(params=FrozenMap(BLOCK=block), options=FrozenMap(num_warps=4, maxnreg=None))


def timed(rung: int, ms: float) -> Measurement:
    return Measurement(samples_ms=(ms,) * 3, timer="cold", rung=rung, source="replayed")


def trials(num: int = 5) -> list[Trial]:
    """One of each kind: complete, pruned, failed, still in the race, not tried; cut to the first `num`."""
    made = [
        Trial(number=0, config=config(64), bucket=2, measurements=(timed(0, 1.5), timed(1, 1.0))),
        Trial(number=1, config=config(128), bucket=1, measurements=(timed(0, 4.0),), outcome=Outcome.PRUNED),
        Trial(number=2, config=config(256), bucket=1, outcome=Outcome.OUT_OF_RESOURCES, failure=FAILURE),
        Trial(number=3, config=config(512), bucket=0, measurements=(timed(0, 1.2),)),
        Trial(number=4, config=config(1024), bucket=0),
    ]
    return made[:num] + [Trial(number=t.number, config=t.config) for t in made[num:]]


def opened(storage: str) -> Any:
    if storage.startswith("journal:"):
        backend = optuna.storages.journal.JournalFileBackend(storage.removeprefix("journal:"))
        return optuna.storages.JournalStorage(backend)
    return optuna.storages.RDBStorage(storage)


def shown(storage: str, name: str = NAME) -> Any:
    """The study as Optuna reads it."""
    return optuna.load_study(study_name=name, storage=opened(storage))


def mirror(storage: str, *words: Any, owner: Owner = OWNER, winner: Winner | None = None) -> list[str]:
    """Shows one study after another; what people are told in the end."""
    it = StorageMirror(storage, owner)
    for word in words:
        it.show(STUDY, word, winner)
    return it.close()


def lives(study: Any) -> list[tuple[int, int, str, State]]:
    return [
        (t.user_attrs["candidate"], t.user_attrs["attempt"], t.user_attrs["outcome"], t.state) for t in study.trials
    ]
