"""Studies side by side: what one device has still to do keeps no other waiting."""

from __future__ import annotations

import time
from functools import partial
from pathlib import Path
from typing import Any

from farm import GPU, TOOLCHAIN, play, smooth, write_experiment
from rigged import Pretended

from tunefarm.bench.meter import Answer, Answers, Question
from tunefarm.device import nominal
from tunefarm.fleet.inline import InlineFleet
from tunefarm.plan import Target
from tunefarm.trial import FINAL, Measurement

A100 = nominal("sm_80")
PATIENCE_S = 60.0


def answer(held: Path, question: Question) -> Any:
    """A bowl; the A100 answers nothing before the other device has held its finals."""
    if question.device == A100 and question.rung != FINAL:
        give_up_s = time.monotonic() + PATIENCE_S
        while not held.exists():
            assert time.monotonic() < give_up_s, "the finals of another device wait for this one"
            time.sleep(0.05)
    if question.device != A100 and question.rung == FINAL:
        held.touch()
    answers = []
    for candidate in question.candidates:
        time_ms = smooth(candidate.config, question.variables)
        measurement = Measurement(
            samples_ms=tuple(time_ms * (1 + 1e-4 * n) for n in range(question.num_samples)), warmup_ms=(1.0,),
            timer=question.timer, rung=question.rung, source="measured",
        )  # fmt: skip
        answers.append(Answer(number=candidate.number, measurement=measurement))
    return Answers(answers=tuple(answers), toolchain=TOOLCHAIN, reference_ms=0.05, busy_s=0.5)


def test_finals_of_a_device_do_not_wait_for_another_device(tmp_path: Path, store: Path) -> None:
    experiment = write_experiment(tmp_path, devices=["sm_90", "sm_80"])
    fleet = InlineFleet([GPU, A100], num_builders=2)
    try:
        rigged = Pretended(fleet, partial(answer, tmp_path / "held"))
        played = play(experiment, rigged, store, targets=[Target(device=d, meter="gpu") for d in (GPU, A100)])
    finally:
        fleet.close()
    assert {r.study.device for r in played.results if r.winner} == {GPU, A100}
