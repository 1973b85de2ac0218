"""The part of a report that is about one study."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence

from tunefarm.config import Config, counted
from tunefarm.record.account import UNFINISHED, Fate, Group, StudyAccount, again, kinds, noise, ordered, typical
from tunefarm.record.figures import Effect, course, distribution, effects, fates, running, short
from tunefarm.record.sheet import Cell, Figure, Given, Section, Table, cell, code, interval, named, percent, table, time
from tunefarm.trial import Measurement, describe, median_interval

WORDS = {
    "no_winner": "no winner",
    "not_measured": "not measured",
    "skipped": "skipped",
    "probed": "probed",
    UNFINISHED: "unfinished",
}
"""How studies without a winner ended."""


def study_section(study: StudyAccount, *, is_folded: bool) -> Section:
    """All that is told of a study."""
    return Section(
        title=study.label, gist=gist(study), sentences=tuple(_sentences(study)), figures=tuple(figures(study)),
        tables=tuple(each for each in _tables(study) if each.rows), is_folded=is_folded,
    )  # fmt: skip


def gist(study: StudyAccount) -> str:
    """A study in a few words."""
    winner = study.winner
    if winner is None:
        best = f", best so far {short(study.best_ms * 1e3)} us" if study.best_ms is not None else ""
        return WORDS.get(study.status, study.status) + best
    gain = f", {gain_text(winner.gain)} the default's speed" if winner.gain is not None else ""
    return f"{short(winner.median_ms * 1e3)} us{gain}"


def gain_text(gain: float | None) -> str:
    """A gain as factor of speed."""
    return "" if gain is None else f"{gain:.3g}x"


def verdict(study: StudyAccount) -> Cell:
    """Whether the gain is to be believed."""
    winner = study.winner
    if winner is None:
        return Cell(text=WORDS.get(study.status, study.status), look="bad" if study.status == "no_winner" else "muted")
    if disturbed(study):
        return Cell(text=f"disturbed: {disturbed(study)}", look="bad")
    if winner.default is not None and winner.config == winner.default:
        return Cell(
            text=f"{winner.reason} (default)" if "default" not in winner.reason else winner.reason, look="muted"
        )
    if winner.gain_interval is None:
        return Cell(text=f"{winner.reason}; no default to compare with", look="muted")
    if winner.gain_interval[0] > 1:
        told = {"faster": "beyond noise", "tie: simpler kept": "beyond noise; simplest of those tied"}
        return Cell(text=told.get(winner.reason, f"beyond noise; {winner.reason}"), look="good")
    return Cell(text=f"within noise; {winner.reason}", look="bad")


def disturbed(study: StudyAccount) -> str:
    """What disturbed the finals, as far as that was noted; empty for nothing."""
    told = (str(m.telemetry.get("disturbed", "")) for _, m in study.finals if isinstance(m, Measurement))
    return next((each for each in told if each), "")


def counts(study: StudyAccount) -> list[tuple[str, int]]:
    """What became of the candidates; adds up to all of them."""
    return [(fate.value, study.count(fate)) for fate in Fate]


def _sentences(study: StudyAccount) -> Iterator[str]:
    winner = study.winner
    if winner is not None:
        yield f"Winner: {winner.config}, {short(winner.median_ms * 1e3)} us ({interval(winner.interval_ms)}, 95 %)."
        if winner.gain is not None and winner.default_ms is not None:
            sure = f" ({interval(winner.gain_interval, 1)}, 95 %)" if winner.gain_interval else ""
            yield (
                f"Default: {winner.default}, {short(winner.default_ms * 1e3)} us: the winner is "
                f"{gain_text(winner.gain)} as fast{sure}."
            )
        elif winner.default is not None:
            failed = next((e.failure for e in study.entries if e.config == winner.default.key and e.failure), None)
            yield f"No gain is told: the default {winner.default} " + (
                f"fails ({describe(failed)})." if failed else "was not timed beside it."
            )
        if winner.margin is not None:
            yield f"The runner-up {winner.runner_up} takes {1 + winner.margin:.3f} times as long ({winner.reason})."
        if timed := [e for e in study.timed if e.config != winner.config.key]:
            slower = sum((e.median_ms or 0.0) >= winner.median_ms for e in timed)
            yield f"It is at least as fast as {slower / len(timed):.1%} of the {len(timed)} others that were timed."
    elif study.reason:
        yield f"{WORDS.get(study.status, study.status).capitalize()}: {study.reason}."
    elif not study.is_over:
        yield "Unfinished: the ledger ends before a winner was crowned; the same command goes on from here."
    if study.num_candidates:
        sums = " + ".join(f"{count} {name}" for name, count in counts(study) if count)
        yield f"{counted(study.num_candidates, 'candidate')} = {sums}."
    if study.num_closed and not study.groups:
        closed = counted(study.num_closed, "bucket was", "buckets were")
        yield f"{closed} closed; a ledger says which candidates they hold once the search is over: here these are left."
    if study.left is not None and study.left.num:
        yield _left(study)
    if study.source and (untried := study.untried_values):
        yield f"No candidate was tried with {', '.join(f'{name}={value}' for name, many in untried for value in many)}."


def _left(study: StudyAccount) -> str:
    left = study.left
    assert left is not None
    promise = ""
    if left.expected_gain is not None and left.plausible_gain is not None:
        promise = (
            f"; the best of them is expected to save {left.expected_gain:.2%}, and may plausibly save "
            f"{left.plausible_gain:.1%}"
        )
    why = f" (the budget of {left.limit} ended the search)" if left.limit else ""
    return f"{left.num} were never tried{why}{promise}."


def points(study: StudyAccount) -> tuple[list[tuple[float, float]], str]:
    """The search's measurements as (cost so far, time in ms), and the cost's unit."""
    made, cost = [], 0.0
    is_live = study.source == "measured"
    for number, (_, measurement) in enumerate(study.course, 1):
        cost += measurement.busy_s
        made.append((cost if is_live else float(number), measurement.median_ms))
    return made, "GPU-busy seconds" if is_live else "measurements"


def figures(study: StudyAccount) -> Iterator[Figure]:
    """Pictures of a study."""
    if study.num_candidates and study.source:
        words = ", ".join(f"{count} {name}" for name, count in counts(study) if count)
        yield Figure(title="Candidates", picture=fates(counts(study)), words=words, says_all=True)
    default_ms = study.winner.default_ms if study.winner is not None else None
    times_ms = [entry.median_ms for entry in study.timed if entry.median_ms]
    if times_ms:
        low, middle, high = min(times_ms), statistics.median(times_ms), max(times_ms)
        yield Figure(
            title="Distribution of the space",
            picture=distribution(times_ms, study.winner.median_ms if study.winner else None, default_ms),
            words=f"fastest {short(low * 1e3)} us, median {short(middle * 1e3)} us, slowest {short(high * 1e3)} us "
            f"of {len(times_ms)} timed",
        )
    way, unit = points(study)
    if way:
        best = running(way)
        yield Figure(
            title="Convergence", picture=course(way, unit, default_ms),
            words=f"best so far {short(best[-1][1] * 1e3)} us, first seen after {short(best[-1][0])} of "
            f"{short(way[-1][0])} {unit}",
        )  # fmt: skip
    found = param_effects(study)
    if any(effect.best is not None for _, many in found for effect in many):
        steep = sorted(((many, name) for name, many in found), key=lambda pair: -_worst(pair[0]))
        words = ", ".join(f"{name} up to {_worst(many):.2f}x" for many, name in steep[:4])
        yield Figure(title="Effect of each param", picture=effects(found), words=f"a wrong value costs: {words}")


def _worst(many: list[Effect]) -> float:
    return max((effect.best for effect in many if effect.best is not None), default=1.0)


def param_effects(study: StudyAccount) -> list[tuple[str, list[Effect]]]:
    """By param that has several values, what each is worth: times of the candidates that have it, over the best."""
    timed = study.timed
    if not timed or not timed[0].median_ms:
        return []
    best_ms = timed[0].median_ms
    num: dict[tuple[str, str], int] = {}
    times: dict[tuple[str, str], list[float]] = {}
    for entry in study.candidates:
        for pair in entry.values.items():
            num[pair] = num.get(pair, 0) + 1
            if entry.is_timed and entry.median_ms is not None:
                times.setdefault(pair, []).append(entry.median_ms / best_ms)
    made = []
    for name in study.names:
        many = [
            _effect(value, num[name, value], times.get((name, value), []))
            for value in ordered(v for n, v in num if n == name)
        ]
        if len(many) > 1:
            made.append((name, many))
    return made


def _effect(value: str, num: int, found: list[float]) -> Effect:
    if not found:
        return Effect(value=value, num=num)
    return Effect(value=value, num=num, num_timed=len(found), best=min(found), median=statistics.median(found))


# ---- tables ----


def _tables(study: StudyAccount) -> Iterator[Table]:
    yield _finals(study)
    yield failures([study])
    yield _buckets(study)
    yield _params(study)
    yield _space(study)
    yield _candidates(study)


def _finals(study: StudyAccount) -> Table:
    rows: list[list[Given]] = []
    winner = study.winner
    for config, told in study.finals:
        roles = [] if winner is None else [
            word for word, one in (("winner", winner.config), ("default", winner.default)) if _is(one, config)
        ]  # fmt: skip
        if isinstance(told, Measurement):
            against = told.median_ms / winner.median_ms if winner is not None and winner.median_ms > 0 else None
            sure = interval(median_interval(told.samples_ms))
            rows.append([code(config), time(told.median_ms), sure, against, len(told.samples_ms), ", ".join(roles)])
        else:
            rows.append([code(config), None, "", None, None, Cell(text=describe(told), look="bad")])
    columns = ["config", "#time, us", "95 % interval, us", "#over winner", "#samples", ""]
    return table("Finals, by turns in one sitting", columns, sorted(rows, key=lambda row: cell(row[1]).order or 1e9))


def _is(config: Config | None, key: str) -> bool:
    return config is not None and config.key == key


def failures(studies: Sequence[StudyAccount]) -> Table:
    """Failures of studies by (kind, first line), the most frequent first."""
    rows: list[list[Given]] = []
    place = {id(entry): number for number, study in enumerate(studies) for entry in study.entries if entry.failure}
    for kind in kinds(entry for study in studies for entry in study.entries):
        where = len({place[id(entry)] for entry in kind.entries})
        rest = kind.failure.message.strip().split("\n", 1)[1:]
        detail = "\n".join(part for part in (*rest, kind.failure.detail) if part).strip()
        rows.append(
            [len(kind.entries), *([where] if len(studies) > 1 else []), Cell(text=kind.name, look="bad"),
             Cell(text=kind.first_line, detail=detail), kind.failure.stage, kind.outcome.value,
             code(kind.entries[0].config)]
        )  # fmt: skip
    where_column = ["#studies"] if len(studies) > 1 else []
    columns = ["#failed", *where_column, "kind", "first line", "stage", "outcome", "such as"]
    return table("Failures by kind and first line", columns, rows)


def _buckets(study: StudyAccount) -> Table:
    by_config = {entry.config: entry for entry in study.entries}
    best_ms = study.best_ms

    def row(group: Group) -> list[Given]:
        members = [by_config[config] for config in group.configs]
        fastest = min((e.median_ms for e in members if e.is_timed and e.median_ms is not None), default=None)
        tried = sum(entry.fate not in (Fate.CLOSED, Fate.LEFT) for entry in members)
        against = fastest / best_ms if fastest is not None and best_ms else None
        state = (
            f"closed: {group.closed}" if group.closed else "all tried" if tried == len(members) else "open at the end"
        )
        return [group.number, len(members), tried, time(fastest), against, state, code(group.configs[0])]

    rows = [row(group) for group in study.groups if group.configs]
    columns = ["#bucket", "#members", "#tried", "#fastest, us", "#over best", "how it ended, how sure", "leader"]
    note = "Buckets hold similar candidates; those merged or failed before grouping are in none."
    return table("Buckets", columns, rows, note=note, is_folded=True)


def _params(study: StudyAccount) -> Table:
    rows: list[list[Given]] = [
        [code(name), code(effect.value), effect.num, effect.num_timed, effect.best, effect.median]
        for name, many in param_effects(study)
        for effect in many
    ]
    columns = ["param", "value", "#candidates", "#timed", "#fastest over best", "#median over best"]
    return table("Values of each param", columns, rows, is_folded=True)


def _space(study: StudyAccount) -> Table:
    if not study.num_points:
        return table("Space", [], [])
    removed = sum(study.removed.values())
    added = study.num_candidates - (study.num_points - removed)
    rows: list[list[Given]] = [["points of the space", study.num_points]]
    rows += [[Cell(text=f"removed by {rule}"), -count] for rule, count in study.removed.items()]
    rows += [["added: the default or others that are no points of it", added]] if added else []
    rows.append([Cell(text="candidates", look="good"), study.num_candidates])
    return table("Space", ["", "#points"], rows, is_folded=True)


def _candidates(study: StudyAccount) -> Table:
    rest = [e for e in study.entries if not e.is_timed and e.fate not in (Fate.CLOSED, Fate.LEFT)]
    rows: list[list[Given]] = []
    for entry in [*study.timed, *rest]:
        build = entry.build
        told = describe(entry.failure) if entry.failure else f"as {entry.into}" if entry.into else entry.reason
        look = {Fate.FAILED: "bad", Fate.MERGED: "muted", Fate.PRUNED: "muted"}.get(entry.fate, "")
        built = [None] * 3 if build is None else [build.registers, build.spills, build.shared_bytes]
        rows.append(
            [code(entry.config), Cell(text=entry.fate.value, look=look), time(entry.median_ms),
             interval(entry.interval_ms), *built, entry.bucket if entry.bucket >= 0 else None, told]
        )  # fmt: skip
    columns = [
        "config",
        "fate",
        "#time, us",
        "95 % interval, us",
        "#registers",
        "#spills",
        "#shared, bytes",
        "#bucket",
        "",
    ]
    note = "A time of few samples is a first look: only those of one sitting, such as the finals, compare well."
    return table("Candidates that were tried", columns, rows, note=note, is_folded=True)


def noise_row(study: StudyAccount) -> list[Given]:
    """How far times of a study can be trusted: label, within a sitting, between sittings, the margin won by."""
    final = [m for _, m in study.finals if isinstance(m, Measurement)]
    margin = study.winner.margin if study.winner is not None else None
    return [
        named(study.label), percent(typical(noise(final))), percent(typical(again(study.entries))), percent(margin),
        len(final),
    ]  # fmt: skip
