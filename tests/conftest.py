"""What tests share: for sweeps a build store and a fleet whose processes stay warm; what a kernel launches."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from farm import Warm

from tunefarm.fleet.inline import InlineFleet


@pytest.fixture(scope="session")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The cache folder of all sweeps in the tests."""
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="session")
def fleet() -> Iterator[InlineFleet]:
    """One measuring worker that replays, and two that build."""
    made = InlineFleet([None], num_builders=2)
    yield made
    made.close()


@pytest.fixture(scope="session")
def warm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Warm]:
    """The command, without its imports' seconds."""
    made = Warm(tmp_path_factory.mktemp("warm"))
    yield made
    made.close()


@pytest.fixture
def chosen(monkeypatch: pytest.MonkeyPatch) -> Callable[..., int]:
    """The BLOCK with which a kernel would be launched."""

    def of(kernel: Any, *args: Any, **kwargs: Any) -> int:
        def run(*_: Any, **passed: Any) -> None:
            launched.append(passed["BLOCK"])

        launched: list[int] = []
        monkeypatch.setattr(kernel.fn, "run", run)
        kernel[(1,)](*args, **kwargs)
        return launched[-1]

    return of
