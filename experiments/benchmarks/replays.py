"""Searches replayed on a recorded space: ours as sweeps drive it, and others on the same list of candidates."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Any

from recordings import Space, binary

from tunefarm.search.rungs import RUNGS
from tunefarm.search.search import StudySearch
from tunefarm.search.transfer import Past
from tunefarm.trial import Failure, Measurement, Outcome


@dataclass(frozen=True, kw_only=True)
class Run:
    """What a search did.

    Attributes:
        tried: candidates measured, each once, in that order; those that failed on the GPU among them.
        num_built: candidates compiled.
        num_buckets, num_closed: of ours.
        lost: whether all candidates within 1 % of the best were in closed buckets, and none was measured.
        ask_s: seconds it took, drawing the samples included.
    """

    tried: tuple[int, ...]
    num_built: int
    num_buckets: int = 0
    num_closed: int = 0
    lost: bool = False
    ask_s: float = 0.0


FAILED = Failure(stage="launch", kind="recorded", message="failed when it was recorded")


def ours(space: Space, seed: int, budget: int, *, on_demand: bool = False, **terms: Any) -> Run:
    """The study search on redrawn samples, driven as by a sweep that may measure so many and knows no default.

    Args:
        space: to search.
        seed: of the search and of the samples.
        budget: candidates to measure at most; it may end before.
        on_demand: compile what the search asks for and no more, instead of everything first.
        terms: of the `StudySearch`, other than its defaults.
    """
    rng = random.Random(seed)
    search = StudySearch(
        configs=space.configs, problem=space.problem, device=space.device, seed=seed, max_trials=budget, **terms
    )
    number_of = {config: number for number, config in enumerate(space.configs)}
    there = [number_of[trial.config] for trial in search.trials]
    tried: list[int] = []
    built: set[int] = set()

    def build(numbers: list[int]) -> None:
        known = [replace(space.trials[there[number]], number=number) for number in numbers if number not in built]
        built.update(numbers)
        search.built(known)

    began = time.perf_counter()
    while not on_demand and (wanted := search.wants_builds(len(there))):
        build(wanted)
    while requests := search.ask():
        build([request.number for request in requests])
        for request in search.pending:
            number = there[request.number]
            if number not in tried:
                tried.append(number)
            samples = space.samples_ms[number]
            if not samples:
                search.tell(request.number, (Outcome.USER_ERROR, FAILED))
                continue
            num = min(len(samples), RUNGS[request.rung].num_samples)
            drawn = tuple(rng.choice(samples) for _ in range(num))
            search.tell(
                request.number, Measurement(samples_ms=drawn, timer="cold", rung=request.rung, source="replayed")
            )
    ask_s = time.perf_counter() - began
    near = {n for n, time_ms in enumerate(space.times_ms) if time_ms is not None and time_ms <= 1.01 * space.best_ms}
    buckets = {bucket.number: bucket for bucket in search.buckets}
    closed = {there[member] for number in search.closed for member in buckets[number].members}
    merged = {there[t.number]: there[t.merged_into] for t in search.trials if t.merged_into is not None}
    left = {merged.get(number, number) for number in near}
    return Run(
        tried=tuple(tried), num_built=len(built), num_buckets=len(search.buckets), num_closed=len(search.closed),
        lost=not left & set(tried) and bool(left) and left <= closed, ask_s=ask_s,
    )  # fmt: skip


def learning(space: Space, seed: int, budget: int, *, mates: Sequence[Space], is_misled: bool = False) -> Run:
    """The study search, one at a time, that knows what such searches of other problems measured.

    Args:
        space: to search.
        seed: of the search, of those before it and of the samples.
        budget: candidates to measure at most.
        mates: the other problems.
        is_misled: what was fast there is told as slow, and the other way round.
    """
    pasts = [_past(mate, seed, budget) for mate in mates]
    if is_misled:
        pasts = [replace(past, times_ms=tuple(1 / time_ms for time_ms in past.times_ms)) for past in pasts]
    return ours(space, seed, budget, batch=1, pasts=pasts)


_known: dict[tuple[str, int, int], Past] = {}


def _past(space: Space, seed: int, budget: int) -> Past:
    """What a search of a problem has measured."""
    if (space.label, seed, budget) not in _known:
        rng = random.Random(seed)
        timed = [number for number in ours(space, seed, budget, batch=1).tried if space.samples_ms[number]]
        _known[space.label, seed, budget] = Past(
            problem=space.problem, device=space.device, configs=tuple(space.configs[number] for number in timed),
            builds=tuple(space.trials[number].build for number in timed),
            times_ms=tuple(median(rng.choice(space.samples_ms[number]) for _ in range(10)) for number in timed),
        )  # fmt: skip
    return _known[space.label, seed, budget]


def at_random(space: Space, seed: int, budget: int) -> Run:
    """Distinct candidates, in any order."""
    order = live(space)
    random.Random(seed).shuffle(order)
    tried = tuple(order[:budget])
    return Run(tried=tried, num_built=len(tried))


def optuna_sampler(
    space: Space, seed: int, budget: int, *, make: Callable[[int], Any], is_ordinal: bool = False
) -> Run:
    """A sampler of Optuna's with its defaults.

    What it repeats, or what is illegal, becomes the nearest untried candidate.

    Args:
        space: to search.
        seed: of the sampler and of the samples.
        budget: candidates to measure at most.
        make: the sampler from the seed.
        is_ordinal: the sampler sees the places of values in their order instead of categories, and hears the time of
            the candidate that was measured as that of the point it asked for: it follows only what it asked for.
    """
    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    flats = [config.flat for config in space.configs]
    values = choices(space)
    places = [{name: values[name].index(flat[name]) for name in values} for flat in flats]
    last = {name: max(1, len(known) - 1) for name, known in values.items()}
    ranked = [{name: place / last[name] for name, place in each.items()} for each in places]
    domain = {
        name: optuna.distributions.IntDistribution(0, len(known) - 1)
        if is_ordinal
        else optuna.distributions.CategoricalDistribution(known)
        for name, known in values.items()
    }
    study, left = optuna.create_study(sampler=make(seed)), set(live(space))
    tried: list[int] = []
    rng, worst_ms = random.Random(seed), 0.0
    began = time.perf_counter()
    while left and len(tried) < budget:
        trial = study.ask(domain)
        asked = {n: value if is_ordinal else values[n].index(value) for n, value in trial.params.items()}
        ranks = {name: place / last[name] for name, place in asked.items()}
        number = min(left, key=lambda n: (sum(abs(ranks[name] - ranked[n][name]) for name in ranks), n))
        left.discard(number)
        tried.append(number)
        found_ms = redrawn_ms(space, number, rng)
        time_ms = 2 * (worst_ms or 1.0) if found_ms is None else found_ms
        worst_ms = max(worst_ms, found_ms or 0.0)
        if is_ordinal or flats[number] == trial.params:
            study.tell(trial, time_ms)
        else:
            study.tell(trial, state=optuna.trial.TrialState.FAIL)
            study.add_trial(optuna.create_trial(params=flats[number], distributions=domain, value=time_ms))
    return Run(tried=tuple(tried), num_built=len(tried), ask_s=time.perf_counter() - began)


def redrawn_ms(space: Space, number: int, rng: random.Random) -> float | None:
    """The time of a candidate as others see it: the median of ten of its samples drawn anew; None if it failed."""
    samples = space.samples_ms[number]
    drawn = sorted(rng.choice(samples) for _ in range(min(len(samples), 10)))
    return drawn[len(drawn) // 2] if drawn else None


def choices(space: Space) -> dict[str, list[Any]]:
    """Values of each param and option, ascending; the names as configs have them, by which samplers draw."""
    from tunefarm.search.hints import distributions

    flats = [config.flat for config in space.configs]
    known = distributions(flats)
    return {name: list(known[name].choices) for name in flats[0]}


def live(space: Space) -> list[int]:
    """Candidates that can be launched, equal binaries once."""
    found: Mapping[Any, int] = {
        binary(trial): trial.number for trial in reversed(space.trials) if trial.outcome is Outcome.OK
    }
    return sorted(found.values())
