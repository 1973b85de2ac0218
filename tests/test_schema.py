import jsonschema
import pytest
from test_experiment import BAD, FULL, HEAD

from tunefarm.errors import SpecError
from tunefarm.search.sampler import SAMPLERS
from tunefarm.spec.experiment import load_experiment, read_yaml
from tunefarm.spec.schema import experiment_schema

VALIDATOR = jsonschema.Draft202012Validator(experiment_schema())

GOOD = [
    FULL,
    HEAD,
    HEAD + "space: {A: [no, 1, 0.5, null], num_warps: [4.0], maxnreg: [null, 168], num_stages: {range: [0, 3, 1]}}\n",
    HEAD + "space: {A: {range: [1, 2, 1], pow2: on}, num_warps: {pow2: [1, 8]}}\nbudget: {trials: 1e6}\n",
    HEAD.replace("kernels.py:workload", "{call: a:b, kernel: a:c, dots: [[A, B, C]], tiles: [[A]], default: {A: 1}}"),
]
# Faults of meaning rather than shape, which a schema cannot express.
BEYOND = ("YAML", "tag", "given twice", "listed twice", "__import__", "bf16", "M -", "levels", "is empty$", "only")


def test_schema_is_a_schema():
    jsonschema.Draft202012Validator.check_schema(experiment_schema())
    described = experiment_schema()["properties"]
    assert all(entry["description"] for entry in described.values())
    assert described["search"]["properties"]["seed"]["description"] == "of everything that is random"


def test_the_samplers_named_are_those_there_are():
    assert experiment_schema()["properties"]["search"]["properties"]["sampler"]["enum"] == list(SAMPLERS)


@pytest.mark.parametrize("text", GOOD)
def test_accepts_what_the_parser_accepts(tmp_path, text):
    path = tmp_path / "e.yaml"
    path.write_text(text)
    load_experiment(path)
    VALIDATOR.validate(read_yaml(path).plain)


SHAPE = [row for row in BAD if row[2] and not any(word in row[3] for word in BEYOND)]


@pytest.mark.parametrize("text", [row[0] for row in SHAPE], ids=[f"{i}-{row[1]}" for i, row in enumerate(SHAPE)])
def test_rejects_what_the_parser_rejects(tmp_path, text):
    path = tmp_path / "e.yaml"
    path.write_text(text)
    with pytest.raises(SpecError):
        load_experiment(path)
    with pytest.raises(jsonschema.ValidationError):
        VALIDATOR.validate(read_yaml(path).plain)


def test_most_bad_input_is_of_shape():
    assert len(SHAPE) > 25
