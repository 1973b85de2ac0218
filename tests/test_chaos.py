"""Sweeps on a real Ray cluster through every kind of fault; `make chaos` does more of them, and shows a table."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from chaos import table
from ordeal import COVERING, KINDS, Ordeal, faults, judge
from site_of_chaos import Site, open_site

pytest.importorskip("ray")
pytest.importorskip("mlflow")
pytestmark = pytest.mark.timeout(600)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    made = open_site(tmp_path_factory.mktemp("chaos"))
    yield made
    made.close()


def test_a_few_seeds_meet_every_kind_of_fault() -> None:
    assert {kind for seed in range(COVERING) for kind in faults(seed)} == set(KINDS)


@pytest.mark.parametrize("seed", range(COVERING))
def test_a_sweep_ends_as_if_nothing_had_happened(site: Site, seed: int) -> None:
    """TF-057, TF-120: nothing lost, nothing twice, the same decisions from the same ledger."""
    ordeal = Ordeal(site=site, seed=seed)
    ordeal.go_through()
    verdict = judge(ordeal)
    print(table([(ordeal, verdict)]))
    assert verdict.is_replayed
