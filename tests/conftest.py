"""What tests of whole sweeps share: a build store, and a fleet whose processes stay warm."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

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
