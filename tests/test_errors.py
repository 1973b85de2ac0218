"""The exceptions: what they say, what they make the command exit with, and that they travel between processes."""

from __future__ import annotations

import copy
import pickle
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import pytest

from tunefarm import errors
from tunefarm.errors import Fenced, LedgerError, SpecError, TunefarmError, UserError

CLASSES = [c for c in vars(errors).values() if isinstance(c, type) and issubclass(c, TunefarmError)]


def fail(kind: type[TunefarmError]) -> None:
    raise made(kind)


def made(kind: type[TunefarmError]) -> TunefarmError:
    if issubclass(kind, UserError):
        return kind("is wrong", file="a.yaml", key="space.num_warps[0]", hint="write 4")
    return kind("is away", hint="try later")


def test_the_tree_in_the_docstring_is_the_tree() -> None:
    drawn = [line.strip("│├└─ ").split()[0] for line in (errors.__doc__ or "").splitlines() if "  " in line[:4]]
    assert {c.__name__ for c in CLASSES} == set(drawn)


@pytest.mark.parametrize("kind", CLASSES)
@pytest.mark.parametrize("protocol", range(2, pickle.HIGHEST_PROTOCOL + 1))
def test_every_exception_survives_pickling(kind: type[TunefarmError], protocol: int) -> None:
    error = made(kind)
    for twin in (pickle.loads(pickle.dumps(error, protocol)), copy.copy(error), copy.deepcopy(error)):
        assert type(twin) is kind
        assert str(twin) == str(error)
        assert vars(twin) == vars(error)
        assert twin.args == error.args


def test_an_exception_arrives_whole_from_another_process() -> None:
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        for kind in (SpecError, Fenced):
            with pytest.raises(kind) as caught:
                pool.submit(fail, kind).result(timeout=60)
            assert str(caught.value) == str(made(kind))


def test_a_user_error_names_file_key_and_remedy() -> None:
    assert str(made(SpecError)) == "a.yaml: space.num_warps[0]: is wrong (write 4)"
    assert str(SpecError("is wrong", key="space")) == "space: is wrong"
    assert str(LedgerError("is wrong")) == "is wrong"
    assert str(UserError("is wrong", hint="write 4")) == "is wrong (write 4)"


@pytest.mark.parametrize("kind", CLASSES)
def test_the_kind_decides_the_exit_code(kind: type[TunefarmError]) -> None:
    wanted = 2 if issubclass(kind, UserError) else 3 if issubclass(kind, errors.InfrastructureError) else 1
    assert made(kind).exit_code == wanted
