"""The Optuna storage in which people find a sweep's studies, by optuna-dashboard and Optuna's own tools. A door of it.

It is a mirror: the ledger is the truth, and the studies that decide are in memory. One thread writes it and nothing
waits for it. A storage that is locked, lost or full never stops a sweep: every word on a study says all of it so far,
so the next that gets through makes up for those that did not, and so does the next sweep of the same ledger.

A trial here is a candidate that was measured to the end of exploration (COMPLETE), or given up before (PRUNED), or that
failed (FAIL), on the GPU or when it was compiled. Candidates merged into an equal one are none. A finalist that fails
after all gets a second trial, FAIL, since Optuna changes no finished one: the study's `winner` is the word to trust.
"""

from __future__ import annotations

import itertools
import logging
import queue
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import optuna
from optuna.trial import FrozenTrial, TrialState

from tunefarm.address import public
from tunefarm.config import LIBRARY
from tunefarm.document import digest
from tunefarm.search.hints import Distributions, distributions
from tunefarm.search.rungs import LAST
from tunefarm.search.storage import connect
from tunefarm.study import Study
from tunefarm.trial import FAILURES, FINAL, PREPARE, Outcome, Trial, Winner, describe

IDENTITY = "identity"
"""User attribute of a study: equal for all drivers whose measurements belong together."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Owner:
    """Whose studies are mirrored.

    Attributes:
        experiment: name of the tunefarm experiment, with which the studies' names begin.
        sweep_id: as in the ledger.
        edition: differs where older measurements of the sweep are not to be used any more.
        seed: of the search.
    """

    experiment: str
    sweep_id: str
    edition: str = ""
    seed: int = 0


@dataclass(slots=True)
class _Page:
    """A study as the storage has it.

    Attributes:
        study: Optuna's.
        space: its distributions by name.
        ended: candidates that are there, and whether the last word on each is that it failed.
        lives: how many trials of each there are, finished or not.
        attrs: the study's own user attributes.
    """

    study: optuna.study.Study
    space: Distributions
    ended: dict[int, bool] = field(default_factory=dict)
    lives: dict[int, int] = field(default_factory=dict)
    attrs: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Word:
    study: Study
    trials: tuple[Trial, ...]
    winner: Winner | None


class StorageMirror:
    """Mirrors studies into an Optuna storage. A tenant of `seams.Mirror`.

    A study is named `<experiment>/<label>`. One of that name which holds another space, another sweep or measurements
    that count no more is left alone: this one is then called `<experiment>/<label> (2)`, and that is said.

    Args:
        storage: one that `check_storage` has passed.
        owner: the sweep.
    """

    def __init__(self, storage: str, owner: Owner) -> None:
        self._storage, self._owner = storage, owner
        self._lock = threading.Lock()
        self._words: dict[str, _Word] = {}
        self._left: dict[str, str] = {}
        self._wake: queue.SimpleQueue[bool] = queue.SimpleQueue()
        self._error = ""
        self._renamed: list[str] = []
        self._names: dict[str, str] = {}
        self._pages: dict[str, _Page] = {}
        self._open: Any = None
        # Optuna's logger is the process's: what befalls the storage is told at the end, once.
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        logging.getLogger("optuna.storages").setLevel(logging.CRITICAL)
        self._thread = threading.Thread(target=self._write, name="tunefarm-mirror", daemon=True)
        self._thread.start()

    def show(self, study: Study, trials: Sequence[Trial], winner: Winner | None = None) -> None:
        """Hands a study's trials to the writing thread; a later word on a study holds all that an earlier one did."""
        with self._lock:
            # A library's call is no point of the space.
            points = tuple(trial for trial in trials if trial.config != LIBRARY)
            self._words[study.key] = _Word(study, points, winner)
            self._left[study.key] = study.label
        self._wake.put(True)

    def close(self, timeout_s: float = 30.0) -> list[str]:
        """Writes what is left, with one more attempt where something failed.

        Args:
            timeout_s: longest wait in seconds.

        Returns:
            What people should know: that studies are not there, or have other names.
        """
        self._wake.put(False)
        self._thread.join(timeout_s)
        where, notices = f"Optuna storage {public(self._storage)}", []
        with self._lock:
            left = list(self._left.values())
        if left or self._thread.is_alive():
            why = self._error or f"no answer within {timeout_s:g} s"
            notices.append(
                f"{where} lacks {_some(left) or 'nothing so far'}: {why}; nothing is lost: once it can be written, or "
                "another is named, the same command fills it in from the ledger"
            )
        if self._renamed:
            notices.append(f"{where} holds studies of other spaces or sweeps: {_some(self._renamed)} is this sweep's")
        return notices

    # ---- the writing thread ----

    def _write(self) -> None:
        goes_on = True
        while goes_on:
            goes_on = self._wake.get()
            while goes_on and not self._wake.empty():  # what has piled up is written at once
                goes_on = self._wake.get()
            with self._lock:
                words, self._words = self._words, {}
            for key, word in words.items():
                done = self._put(word)
                with self._lock:
                    if not done:
                        self._words.setdefault(key, word)
                    elif key not in self._words:
                        self._left.pop(key, None)
        self._disconnect()

    def _put(self, word: _Word) -> bool:
        try:
            if self._open is None:
                self._open = connect(self._storage)
            self._bring_up_to_date(word)
        except Exception as e:  # whatever Optuna, a database driver or the network raises: the sweep goes on
            cause = e.__cause__ or e  # Optuna hides the database's own words behind its own
            self._error = public((str(cause).splitlines() or [repr(cause)])[0])
            self._disconnect()
            return False
        self._error = ""
        return True

    def _disconnect(self) -> None:
        """Forgets what is known of the storage: who comes back to it looks again."""
        if (engine := getattr(self._open, "engine", None)) is not None:
            self._open.remove_session()
            engine.dispose()
        self._open = None
        self._pages.clear()

    def _bring_up_to_date(self, word: _Word) -> None:
        page = self._pages.get(word.study.key)
        if page is None:
            page = self._pages[word.study.key] = self._page(word)
        for trial in word.trials:
            failed = trial.outcome in FAILURES
            # A finalist may yet fail. Who has failed stays so, though a driver that goes on hears again of a success.
            if _has_ended(trial) and (trial.number not in page.ended or (failed and not page.ended[trial.number])):
                life = page.lives.get(trial.number, 0)
                page.study.add_trial(_frozen(trial, life, {name: page.space[name] for name in trial.config.flat}))
                page.ended[trial.number], page.lives[trial.number] = failed, life + 1
        for name, value in self._attrs(word).items():
            if page.attrs.get(name) != value:
                page.study.set_user_attr(name, value)
                page.attrs[name] = value

    def _page(self, word: _Word) -> _Page:
        """The study of a word, found or made; trials that a dead driver left running are ended."""
        owner, space = self._owner, distributions([trial.config.flat for trial in word.trials])
        choices = {name: list(distribution.choices) for name, distribution in space.items()}
        identity = digest(
            [owner.sweep_id, owner.edition, owner.seed, word.study.key, choices, [t.config.key for t in word.trials]]
        )
        name = plain = f"{owner.experiment}/{word.study.label}"
        for number in itertools.count(2):
            try:
                study = optuna.create_study(storage=self._open, study_name=name)
            except optuna.exceptions.DuplicatedStudyError:
                study = optuna.load_study(storage=self._open, study_name=name)
            attrs = study.user_attrs
            if IDENTITY not in attrs and not study.get_trials(deepcopy=False):  # new, or its maker died at once
                study.set_user_attr(IDENTITY, identity)
                break
            if attrs.get(IDENTITY) == identity:
                break
            name = f"{plain} ({number})"
        # Two studies of this very sweep may have one label: what tells them apart is in their attributes.
        if name != plain and name not in self._renamed and plain not in self._names.values():
            self._renamed.append(name)
        self._names[word.study.key] = name
        page = _Page(study, space, attrs=dict(study.user_attrs))
        for trial in study.get_trials(deepcopy=False):
            if trial.state == TrialState.RUNNING:
                study.tell(trial.number, state=TrialState.FAIL)
            if (candidate := trial.user_attrs.get("candidate")) is not None:
                page.lives[candidate] = page.lives.get(candidate, 0) + 1
                if "outcome" in trial.user_attrs and trial.state.is_finished():
                    page.ended[candidate] = page.ended.get(candidate, False) or trial.state == TrialState.FAIL
        return page

    def _attrs(self, word: _Word) -> dict[str, Any]:
        study, winner = word.study, word.winner
        measurements = [m for trial in word.trials for m in trial.measurements]
        finals_ms = {str(t.number): t.median_ms for t in word.trials if t.rung == FINAL and t.outcome not in FAILURES}
        attrs = {
            "workload": study.workload, "problem": study.problem.to_json(), "variables": dict(study.variables),
            "device": f"{study.device.name} ({study.device.arch})", "sweep": self._owner.sweep_id,
            "seed": self._owner.seed, "source": measurements[-1].source if measurements else "",
        }  # fmt: skip
        if winner is not None:
            attrs |= {"winner": str(winner.config), "winner_ms": winner.median_ms, "finals_ms": finals_ms}
        return attrs


def _some(names: Sequence[str]) -> str:
    return f"{', '.join(names[:3])} and {len(names) - 3} more" if len(names) > 3 else ", ".join(names)


def _explored_ms(trial: Trial) -> dict[int, float]:
    """Medians in ms by rung, finals apart: those are held when the trial is long told, and Optuna changes no value."""
    return {m.rung: m.median_ms for m in trial.measurements if m.rung != FINAL}


def _has_ended(trial: Trial) -> bool:
    if trial.outcome is Outcome.OK:
        return max(_explored_ms(trial), default=-1) >= LAST
    # What befell the whole problem is no candidate's fault, and the next sweep tries again.
    befallen = trial.failure is not None and trial.failure.stage == PREPARE
    return not befallen and (trial.outcome is Outcome.PRUNED or trial.outcome in FAILURES)


def _frozen(trial: Trial, life: int, space: dict[str, Any]) -> FrozenTrial:
    """A trial in Optuna's form.

    Args:
        trial: one that has ended.
        life: how many trials of the candidate are there already.
        space: distributions of the names that its config has.
    """
    explored_ms = _explored_ms(trial)
    attrs = {
        "candidate": trial.number, "attempt": life, "outcome": trial.outcome.value, "bucket": trial.bucket,
        "config": str(trial.config),
    }  # fmt: skip
    if trial.failure is not None:
        attrs["failure"] = describe(trial.failure)
    states = {Outcome.OK: TrialState.COMPLETE, Outcome.PRUNED: TrialState.PRUNED}
    state = states.get(trial.outcome, TrialState.FAIL)
    return optuna.create_trial(
        state=state,
        value=explored_ms[max(explored_ms)] if state != TrialState.FAIL else None,
        params=dict(trial.config.flat),
        distributions=space,
        user_attrs=attrs,
        intermediate_values=explored_ms,
    )
