"""Checks: further calls that finalists must get right, as they are written."""

from __future__ import annotations

import pytest
from test_experiment import FULL, HEAD, OPTIONS, write

from tunefarm.errors import SpecError
from tunefarm.spec.experiment import load_experiment, resolve
from tunefarm.spec.inputs import ScalarSpec, TensorSpec

__all__ = ["write"]

BADLY_WRITTEN = [
    (HEAD + "checks: [{}]\n", "checks[0]", 5, "is empty"),
    (HEAD + "checks: [{M: []}]\n", "checks[0].M", 5, "a single value"),
    (HEAD + "checks: [{M: M -}]\n", "checks[0].M", 5, "M -"),
    (HEAD + "checks: [{M: 1}, {M: 1}]\n", "checks[1]", 5, "listed twice"),
    (HEAD + "checks:\n  - inputs: {x: {ofset: 1}}\n", "checks[0].inputs.x.ofset", 6, "did you mean 'offset'"),
    (HEAD + "checks:\n  - inputs: {x: {offset: -1}}\n", "checks[0].inputs.x.offset", 6, "a size belongs here"),
    (HEAD + "accept: {one_config_over: M}\n", "accept.one_config_over", 5, r"write \[M\]"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "key", "line", "says"), BADLY_WRITTEN, ids=[row[1] for row in BADLY_WRITTEN])
def test_bad_checks_name_file_key_line_and_remedy(write, text, key, line, says):
    path = write(text)
    with pytest.raises(SpecError, match=says) as caught:
        load_experiment(path)
    assert (caught.value.key, caught.value.file) == (key, f"{path}:{line}")


def test_checks_differ_from_the_problem_where_they_say_so(write):
    experiment = load_experiment(write(FULL))
    tail, layout = experiment.checks
    problem = experiment.problems[0].variables
    assert dict(tail.values(problem)) == {**problem, "M": 128, "dtype": "fp16"}
    assert layout.values(problem) == problem
    changed = layout.changed({"x": TensorSpec(shape=(8, 4)), "n": ScalarSpec(value=1)})
    assert changed is not None
    spec = changed["x"]
    assert isinstance(spec, TensorSpec)
    assert (spec.shape, spec.special, spec.offset) == ((8, 4), True, 3)
    assert tail.label == "M=cdiv(M, 2), dtype=fp16"
    assert layout.label == "x strides=[M, 1], x offset=3, x special=True"


BAD_CHECKS = [
    ("checks: [{N: 3}]", "checks[0].N", "'N' is no variable of problem"),
    ("checks: [{M: N - 1}]", "checks[0].M", "'N' is no variable of problem"),
    ("checks: [{M: 1.5}]", "checks[0]", "whole number"),
    ("checks: [{inputs: {y: {offset: 1}}}]", "checks[0]", "'y' is no input"),
    ("checks: [{inputs: {x: {strides: [1, 1]}}}]", "checks[0]", "2 strides for 1 sizes"),
    ("accept: {one_config_over: [N]}", "accept.one_config_over", "'N' is no variable of problem"),
]


@pytest.mark.parametrize(("text", "key", "says"), BAD_CHECKS, ids=[row[0] for row in BAD_CHECKS])
def test_checks_are_held_against_workload_and_problems(write, text, key, says):
    path = write(HEAD + "space: {BLOCK: [64], ROWS: [1]}\n" + text + "\n")
    with pytest.raises(SpecError, match=says) as caught:
        resolve(load_experiment(path), OPTIONS, "3.7")
    assert caught.value.key == key
    assert path.name in caught.value.file
