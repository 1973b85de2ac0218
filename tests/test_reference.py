"""`experiments/README.md` is what the declarations say, and every example in it is read."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import jsonschema
import pytest

from tunefarm.spec.experiment import load_experiment
from tunefarm.spec.grammar import keys_of
from tunefarm.spec.reference import SECTIONS, WHOLE, reference
from tunefarm.spec.schema import experiment_schema
from tunefarm.spec.tree import read_yaml

ROOT = Path(__file__).parents[1]
HEAD = {
    "name": "name: demo",
    "workload": "workload: kernels.py:workload",
    "problems": "problems: [{M: 64, N: 64, dtype: bf16}]",
    "devices": "devices: [sm_90]",
}
REPLAYED = "name: demo\nworkload: {landscape: {file: a.json.gz, %s}}\n"
AROUND = {
    "workload": "workload: {call: a.py:f, kernel: a.py:k, %s}",
    "inputs": "inputs: {x: {shape: [M], %s}}",
    "devices": "devices: [{arch: sm_90, %s}]",
    "search": "search: {%s}",
    "budget": "budget: {%s}",
    "accept": "accept: {%s}",
    "tracking": "tracking: {%s}",
}
"""Where the keys of a section stand in a file; `%s` is the example."""

EXAMPLES = [(section.title, key, line) for section in SECTIONS for key, line in section.examples.items()]


def whole(title: str, key: str, line: str) -> str:
    """An experiment that has the example in its place."""
    if title == "workload.landscape":
        return REPLAYED.replace("file: a.json.gz, ", "" if key == "file" else "file: a.json.gz, ") % line
    if title == "the file":
        return "\n".join({**HEAD, key: line}.values()) + "\n"
    around = AROUND[title]
    for needed in ("call: a.py:f, ", "kernel: a.py:k, ", "shape: [M], ", "arch: sm_90, "):
        if needed.startswith(f"{key}:"):  # the example itself gives it
            around = around.replace(needed, "")
    return "\n".join({**HEAD, title: around % line}.values()) + "\n"


def test_the_file_is_up_to_date() -> None:
    command = [sys.executable, "-m", "tunefarm.spec.reference"]
    made = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert made == reference()
    assert (ROOT / "experiments" / "README.md").read_text("utf-8") == made, f"run {' '.join(command[1:])} again"


def test_every_key_has_an_example_and_a_meaning() -> None:
    for section in SECTIONS:
        known = keys_of(section.cls)
        assert list(section.examples) == list(known), section.title
        assert all(line.startswith(f"{key}: ") for key, line in section.examples.items())
        assert all(mark.doc for mark, _ in known.values())


def test_no_section_is_left_out() -> None:
    """Every mapping of fixed keys in the schema has its table."""
    documented = {frozenset(keys_of(section.cls)) for section in SECTIONS}

    def forms(schema: object) -> set[frozenset[str]]:
        if isinstance(schema, list):
            return set().union(*map(forms, schema))
        if not isinstance(schema, dict):
            return set()
        own = {frozenset(schema["properties"])} if schema.get("additionalProperties") is False else set()
        return own.union(*map(forms, schema.values()))

    said = {
        frozenset({"range", "pow2"}),
        frozenset({"pow2"}),
        frozenset({"value"}),
        frozenset({"landscape", "default"}),
    }
    assert forms(experiment_schema()) - documented == said, "of these the text tells"


@pytest.mark.parametrize(("title", "key", "line"), EXAMPLES, ids=[f"{title}-{key}" for title, key, _ in EXAMPLES])
def test_examples_are_read(tmp_path: Path, title: str, key: str, line: str) -> None:
    path = tmp_path / "e.yaml"
    path.write_text(whole(title, key, line))
    load_experiment(path)
    jsonschema.Draft202012Validator(experiment_schema()).validate(read_yaml(path).plain)
    assert f"| `{line}` |" in reference()


def test_the_example_at_the_head_is_read(tmp_path: Path) -> None:
    (block,) = re.findall(r"```yaml\n(.*?)```", reference(), flags=re.DOTALL)
    assert block == WHOLE
    path = tmp_path / "e.yaml"
    path.write_text(block)
    assert len(load_experiment(path).problems) == 2


def test_the_schema_is_printed_for_editors() -> None:
    command = [sys.executable, "-m", "tunefarm.spec.schema"]
    printed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert json.loads(printed) == experiment_schema()
