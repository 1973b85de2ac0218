import itertools
import pickle

import pytest

from tunefarm.device import nominal
from tunefarm.errors import SpecError
from tunefarm.spec.constraint import FACTS, Expression, cdiv, device_facts


@pytest.mark.parametrize(
    "text",
    [
        "(BM*BN) % (32*num_warps) == 0",
        "M % BM == 0 or BM <= 64",
        "not (BM > BN) and 0 < num_warps <= 4 or BM == BN",
        "BM - BN - M // BM",
        "-BM ** 2 + (BM if BM > BN else BN)",
        "cdiv(M, BM) * min(BM, BN, 7) != max(BN, M) / 3",
        "abs(BM - BN) and num_warps",
        "BM < BN == M > 3",
        "2 ** 3 ** 2 - BM",
    ],
)
def test_same_as_python(text):
    """TF-026: bracketed and boolean forms mean what they mean in Python."""
    expression = Expression(text)
    for bm, bn, warps, m in itertools.product([16, 64, 128], [32, 64], [1, 4, 8], [100, 128, 4096]):
        names = {"BM": bm, "BN": bn, "num_warps": warps, "M": m}
        expected = eval(text, {"cdiv": cdiv, "min": min, "max": max, "abs": abs}, names)
        assert expression(names) == expected
        assert type(expression(names)) is type(expected)


@pytest.mark.parametrize(
    ("text", "offence"),
    [
        ("__import__('os').system('true')", "__import__"),
        ("BM.bit_length() > 3", "BM.bit_length()"),
        ("BM.real > 3", "BM.real"),
        ("values[0] == 1", "values[0]"),
        ("(lambda: 1)()", "lambda"),
        ("[x for x in (1, 2)]", "[x for x in (1, 2)]"),
        ("open('f')", "open('f')"),
        ("max(*BM)", "*BM"),
        ("min(BM, key=BN)", "min(BM, key=BN)"),
        ("BM & 3", "BM & 3"),
        ("(BM := 3)", "BM := 3"),
        ("f'{BM}'", "f'"),
        ("min", "min"),
        ("1j", "1j"),
        ("1e999", "1e999"),
    ],
)
def test_nothing_else_can_be_written(text, offence):
    """TF-026: no attribute access, call or import is accepted; the offending text is shown."""
    with pytest.raises(SpecError) as caught:
        Expression(text)
    assert offence.replace("1e999", "1e309") in str(caught.value)
    assert "min, max, abs and cdiv" in str(caught.value)


@pytest.mark.parametrize("text", ["", "BM =< 3", "BM = 3", "a b", "(BM", "BM\0", "(" * 300 + "1" + ")" * 300])
def test_no_expression(text):
    with pytest.raises(SpecError, match="not an expression") as caught:
        Expression(text)
    assert len(str(caught.value)) < 200


@pytest.mark.parametrize("text", ["M // Z", "M % Z == 0", "M / Z > 1", "cdiv(M, Z) > 1"])
def test_division_by_zero_names_expression_and_values(text):
    with pytest.raises(SpecError) as caught:
        Expression(text)({"M": 4, "Z": 0})
    assert text in str(caught.value)
    assert "M=4, Z=0" in str(caught.value)


@pytest.mark.parametrize(
    "text", ["9 ** 9 ** 9", "2.0 ** 9 ** 9", "(-8) ** 0.5", "dtype * 1000000000 == 1", "dtype % 3", "dtype < 3"]
)
def test_no_value(text):
    with pytest.raises(SpecError, match="has no value"):
        Expression(text)({"dtype": "bf16"})


def test_names_leave_functions_out():
    assert Expression("min(BM, cdiv(M, 2)) < num_sms").names == {"BM", "M", "num_sms"}


def test_name_without_value():
    with pytest.raises(SpecError, match="needs 'K_MAX'"):
        Expression("BK <= K_MAX")({"BK": 1})


def test_text_compares():
    assert Expression("dtype == 'bf16' and ACT != 'no'")({"dtype": "bf16", "ACT": "relu"})


def test_survives_pickling():
    expression = pickle.loads(pickle.dumps(Expression("BM < 3")))
    assert expression == Expression("BM < 3")
    assert expression({"BM": 2}) is True


def test_device_facts():
    facts = device_facts(nominal("sm_90"))
    assert facts.keys() == FACTS.keys()
    assert facts["capability"] == 90
    assert facts["shared_bytes"] == 227 * 1024
