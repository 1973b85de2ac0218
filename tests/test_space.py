import itertools

import pytest

from tunefarm.config import Config
from tunefarm.device import nominal
from tunefarm.errors import SpecError
from tunefarm.spec.constraint import Expression
from tunefarm.spec.grammar import Node
from tunefarm.spec.space import SPACE, Param, SearchSpace, classify

H100 = nominal("sm_90")


def read(space):
    return SPACE.read(Node.of(space, "space", "e.yaml:1"))


def make(space, *constraints, **more):
    return SearchSpace(params=read(space), constraints=tuple(map(Expression, constraints)), **more)


def test_forms_of_values():
    assert read({"A": [1, "x", None, 0.5, True][:4], "B": {"pow2": [16, 128]}, "C": {"range": [32, 96, 32]}}) == (
        Param(name="A", values=(1, "x", None, 0.5)),
        Param(name="B", values=(16, 32, 64, 128)),
        Param(name="C", values=(32, 64, 96)),
    )


@pytest.mark.parametrize("value", [3, 0, -4, True, "4", 4.5, None, [4]])
def test_num_warps_must_be_a_power_of_two(value):
    """TF-015: 3, 0, -4, true and "4" are refused with path and value."""
    with pytest.raises(SpecError) as caught:
        read({"num_warps": [value]})
    assert caught.value.key == "space.num_warps[0]"
    assert "power of two" in str(caught.value)
    assert caught.value.file == "e.yaml:1"


def test_whole_float_is_normalised():
    """TF-015: 4.0 is 4, and an integer."""
    (param,) = read({"num_warps": [4.0]})
    assert param.values == (4,)
    assert type(param.values[0]) is int


def test_num_stages_is_kept():
    assert read({"num_stages": [0, 1, 5]})[0].values == (0, 1, 5)
    with pytest.raises(SpecError, match=r"space\.num_stages\[1\]"):
        read({"num_stages": [1, -1]})


def test_maxnreg_may_be_null():
    assert read({"maxnreg": [None, 168]})[0].values == (None, 168)


def test_range_without_powers_of_two():
    """TF-014: a range is taken as written; with `pow2: true` values that are no powers of two are refused by name."""
    assert len(read({"BLOCK": {"range": [32, 320, 32]}})[0].values) == 10
    with pytest.raises(SpecError) as caught:
        read({"BLOCK": {"range": [32, 320, 32], "pow2": True}})
    message = str(caught.value)
    assert "96, 160, 192, 224, 288, 320 are no powers of two" in message
    assert "write [32, 64, 128, 256]" in message
    assert caught.value.key == "space.BLOCK"


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ([], "is empty"),
        (128, r"write \[128\]"),
        (None, "a list belongs here"),
        ([1, 2, 1], "listed twice"),
        ([[1]], "a single value"),
        ([float("inf")], "finite"),
        ({"pow2": [16, 100]}, "powers of two"),
        ({"pow2": [64, 16]}, "powers of two"),
        ({"pow2": [16]}, "needs 2 entries"),
        ({"range": [1, 10]}, "needs 3 entries"),
        ({"range": [10, 1, 1]}, "no range"),
        ({"range": [1, 10, 0]}, "no range"),
        ({"range": [1, 10**12, 1]}, "more than 4096"),
        ({"rnage": [1, 10, 1]}, "unknown key"),
        ({"range": [1, 10, 1], "pow2": "yes"}, "true, false, on or off"),
    ],
)
def test_bad_values(values, says):
    with pytest.raises(SpecError, match=says) as caught:
        read({"BLOCK": values})
    assert caught.value.key.startswith("space.BLOCK")


@pytest.mark.parametrize("name", ["min", "num_sms", "for", "a b", "1x"])
def test_bad_names(name):
    with pytest.raises(SpecError, match="cannot be a name"):
        read({name: [1]})


def test_empty_space():
    with pytest.raises(SpecError, match="is empty"):
        read({})
    with pytest.raises(SpecError, match="is empty"):
        SearchSpace().points({}, H100)


def test_counts_add_up_and_unused_values_are_named():
    """TF-028: two sensible rules drop all 2-CTA candidates of one shape; both are counted and the value is named."""
    space = make({"GROUP_M": [1, 8], "NUM_CTAS": [1, 2]}, "GROUP_M % NUM_CTAS == 0", "M < 10*N or GROUP_M == 1")
    points = space.points({"M": 32768, "N": 1024}, H100)
    assert points.total == 4
    assert dict(points.removed) == {"GROUP_M % NUM_CTAS == 0": 1, "M < 10*N or GROUP_M == 1": 2}
    assert points.total == len(points.configs) + sum(points.removed.values())
    assert points.unused == (("GROUP_M", 8), ("NUM_CTAS", 2))
    wide = space.points({"M": 1024, "N": 1024}, H100)
    assert wide.unused == ()
    assert len(wide.configs) == 3


def test_a_point_is_charged_to_the_first_rule_as_written():
    """TF-028: the count of each rule does not depend on when it could be evaluated."""
    values = {"A": [1, 2, 3, 4], "B": [1, 2, 3], "C": [0, 1, 2]}
    rules = ("A != B", "C > 0", "A % C == 0", "A < 4", "B + C < 5 or A == 1")
    points = make(values, *rules).points({}, H100)
    removed, left = dict.fromkeys(rules, 0), []
    for a, b, c in itertools.product(*values.values()):
        broken = next((rule for rule in rules if not eval(rule, {}, {"A": a, "B": b, "C": c})), None)
        if broken is None:
            left.append((a, b, c))
        else:
            removed[broken] += 1
    assert dict(points.removed) == removed
    assert [tuple(config.flat.values()) for config in points.configs] == left


def test_large_products_are_enumerated():
    space = make(
        {"BM": {"pow2": [16, 256]}, "BN": {"pow2": [16, 256]}, "BK": {"pow2": [16, 256]}, "G": {"range": [1, 10, 1]},
         "num_warps": {"pow2": [1, 8]}, "num_stages": [1, 2, 3, 4]},
        "(BM * BN) % (32 * num_warps) == 0", "num_stages * (BM + BN) * BK * 2 <= shared_bytes", "K % BK == 0",
    )  # fmt: skip
    points = space.points({"K": 64}, H100)
    assert points.total == 20_000
    assert points.total == len(points.configs) + sum(points.removed.values())


def test_vars_and_device_facts():
    space = make({"BLOCK": [64, 128]}, "BLOCK <= LIMIT", "capability >= 90", vars={"LIMIT": 64})
    assert len(space.points({}, H100).configs) == 1
    assert len(space.points({}, nominal("sm_80")).configs) == 0


def test_division_by_zero_names_the_constraint():
    with pytest.raises(SpecError, match=r"constraints\[1\].*M % BK == 0.*BK=0"):
        make({"BK": [0, 1]}, "BK < 8", "M % BK == 0", file="e.yaml").points({"M": 4}, H100)
    assert len(make({"BK": [0, 1]}, "BK > 0", "M % BK == 0").points({"M": 4}, H100).configs) == 1


def test_listed_configs():
    listed = tuple(Config(params={"B": b}, options={"num_warps": w}) for b, w in ((64, 2), (128, 4), (256, 8)))
    points = SearchSpace(listed=listed, constraints=(Expression("B < 32 * num_warps * LIMIT"), Expression("B != 128")),
                         vars={"LIMIT": 2}).points({}, H100)  # fmt: skip
    assert points.total == 3
    assert [c.key for c in points.configs] == ["B=64 num_warps=2", "B=256 num_warps=8"]
    assert points.unused == (("B", 128), ("num_warps", 4))


def test_classify_splits_params_and_options():
    space = classify(make({"BLOCK": [64], "num_warps": [4]}), ["BLOCK", "N"], ["num_warps", "num_stages"])
    (config,) = space.points({}, H100).configs
    assert config == Config(params={"BLOCK": 64}, options={"num_warps": 4})


def test_classify_names_option_unknown_to_this_triton():
    """TF-022: an option of another release is named together with the installed version."""
    space = make({"num_warps": [4], "num_consumer_groups": [0, 2], "maxnreg": [None, 168]})
    with pytest.raises(SpecError) as caught:
        classify(space, ["BLOCK"], ["num_warps", "maxnreg"], kernel="softmax_kernel", toolchain="Triton 3.7.1")
    message = str(caught.value)
    assert "'num_consumer_groups'" in message
    assert "launch option of Triton 3.7.1" in message
    assert caught.value.key == "space.num_consumer_groups"
    assert "maxnreg'" not in message


def test_classify_suggests_the_nearest_name():
    """A kernel whose signature lacks a param."""
    with pytest.raises(SpecError, match="did you mean 'BLOCK_SIZE'"):
        classify(make({"BLOCKSIZE": [64]}), ["BLOCK_SIZE"], ["num_warps"])
