"""From a sweep to the champion of a real registry: what registers packs, what promotes them, and what refuses."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from bare import bare
from farm import smooth, tunefarm, write_experiment, write_landscape
from mlflow_server import Server, serving

from tunefarm.config import Config, Value
from tunefarm.errors import InfrastructureError, UserError
from tunefarm.pack_reader import load_pack
from tunefarm.record.registry import Registry
from tunefarm.runtime.sources import find_packs

pytest.importorskip("mlflow")
pytestmark = pytest.mark.filterwarnings("ignore:The ``noload`` loader strategy")  # MLflow's use of SQLAlchemy 2.1


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("server")
    with serving(f"sqlite:///{folder}/mlflow.db", folder) as running:
        yield running


class Shop:
    """A kernel that is swept again and again, each time in a folder of its own, and one registry."""

    def __init__(self, server: Server, folder: Path, store: Path, name: str) -> None:
        self.server, self.folder, self.store, self.name = server, folder, store, name
        self._num = 0

    def sweep(self, factor: float, problems: tuple[int, ...] = (1000, 4096), **tracking: object) -> Path:
        """The pack of a sweep in which n=4096 takes `factor` as long as usual."""

        def time_ms(config: Config, variables: Mapping[str, Value]) -> float:
            return smooth(config, variables) * (factor if variables["n"] == 4096 else 1.0)

        self._num += 1
        folder = self.folder / str(self._num)
        sections = {
            "problems": [{"n": list(problems), "dtype": "fp32"}], "project": self.name, "export": "pack.json",
            "space": {"BLOCK": [128, 256], "MARK": [0], "num_warps": [2]},
            "tracking": {"uri": self.server.uri, "register": True, **tracking},
        }  # fmt: skip
        write_landscape(write_experiment(folder, **sections), time_ms)
        self.again(folder)
        return folder / "pack.json"

    def again(self, folder: Path) -> None:
        done = tunefarm("sweep", "experiment.yaml", "--fleet", "inline", "--quiet", folder=folder, store=self.store)
        assert done.returncode == 0, done.stderr
        assert "not in MLflow" not in done.stdout + done.stderr

    def promote(self, *words: str) -> tuple[int, str]:
        done = bare("promote", f"{self.name}.fill", *words, folder=self.folder, MLFLOW_TRACKING_URI=self.server.uri)
        assert not done.stderr
        return done.returncode, done.stdout

    @property
    def aliases(self) -> dict[str, str]:
        model = self.server.client.get_registered_model(f"tunefarm.{self.name}.fill")
        return {alias: str(version) for alias, version in model.aliases.items()}


@pytest.fixture
def shop(server: Server, tmp_path: Path, store: Path, request: pytest.FixtureRequest) -> Shop:
    return Shop(server, tmp_path, store, request.node.name.removeprefix("test_"))


def test_a_regressed_pack_is_refused_and_a_faster_one_takes_the_champion_s_place(shop: Shop) -> None:
    first = shop.sweep(1.0)
    assert shop.aliases == {"candidate": "1"}
    assert shop.promote() == (0, f"version 1 of tunefarm.{shop.name}.fill is its champion now; its first\n")
    slower = shop.sweep(1.1)
    code, out = shop.promote()
    assert code == 1
    assert "fill_kernel on Test GPU, n in (2048, 8192] div16, fp32: slower by 10.0%" in out
    assert out.endswith(f"not promoted, for 1 row: the champion of tunefarm.{shop.name}.fill stays version 1\n")
    assert shop.aliases == {"candidate": "2", "champion": "1"}
    faster = shop.sweep(0.9)
    code, out = shop.promote()
    assert code == 0
    assert "2 rows in both: 1 same, 1 faster; 0 with another config" in out
    assert out.endswith("is its champion now; it was 1\n")
    assert shop.aliases == {"candidate": "3", "champion": "3"}
    assert shop.promote()[1] == f"version 3 of tunefarm.{shop.name}.fill is its champion already\n"
    for version, path in {"1": first, "2": slower, "@champion": faster}.items():
        uri = f"models:/tunefarm.{shop.name}.fill{version if version[0] == '@' else '/' + version}"
        assert find_packs(uri, registry=shop.server.uri).pack == load_pack(path)


def test_a_pack_that_lost_a_row_needs_a_word(shop: Shop) -> None:
    shop.sweep(1.0)
    shop.promote()
    shop.sweep(1.0, (4096,))
    code, out = shop.promote("--json")
    told = json.loads(out)
    assert (code, told["promoted"], told["counts"]["gone"]) == (1, False, 1)
    (objection,) = told["objections"]
    assert objection.startswith("fill_kernel on Test GPU, n in (500, 2000]")
    assert objection.endswith("gone")
    assert shop.promote("--allow-gone")[0] == 0
    assert shop.aliases == {"candidate": "2", "champion": "2"}


def test_a_sweep_given_again_registers_nothing_twice(shop: Shop) -> None:
    pack = shop.sweep(1.0)
    shop.again(pack.parent)
    client = shop.server.client
    (version,) = client.search_model_versions(f"name = 'tunefarm.{shop.name}.fill'")
    assert version.tags["tunefarm.pack"] == load_pack(pack).digest
    assert version.tags["tunefarm.source"] == "replayed"
    run = client.get_run(version.run_id)
    assert run.data.tags["tunefarm.kind"] == "sweep"
    assert run.data.tags["tunefarm.pack"] == load_pack(pack).digest


def test_who_does_not_ask_for_it_registers_nothing(shop: Shop) -> None:
    pack = shop.sweep(1.0, register=False)
    with pytest.raises(UserError, match=rf"no model tunefarm\.{shop.name}\.fill \(.*register: on"):
        Registry(shop.server.uri, f"{shop.name}.fill").find("champion")
    client = shop.server.client
    experiment = client.get_experiment_by_name(f"{shop.name}.fill")
    (run,) = client.search_runs([experiment.experiment_id], "tags.`tunefarm.kind` = 'sweep'")
    assert run.data.tags["tunefarm.pack"] == load_pack(pack).digest


def test_who_asks_a_server_that_is_away_is_shown_no_password(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    uri = "http://me:secret@127.0.0.1:1"
    registry = Registry(uri, "fill")
    for ask in (lambda: registry.find("champion"), lambda: registry.crown("1")):
        with pytest.raises(InfrastructureError, match=r"registry: API request to http://me:\*\*\*@127\.0\.0\.1:1/"):
            ask()
    with pytest.raises(UserError, match=r"http://me:\*\*\*@127\.0\.0\.1:1/"):
        find_packs("models:/tunefarm.fill@champion", registry=uri)


def test_without_a_server_or_a_candidate_there_is_a_word_for_it(shop: Shop) -> None:
    def promote(name: str, uri: str) -> tuple[int, str]:
        done = bare("promote", name, "--tracking", uri, folder=shop.folder)
        return done.returncode, done.stderr

    code, told = promote("nothing", shop.server.uri)
    assert code == UserError.exit_code
    assert "MLflow's registry has no model tunefarm.nothing" in told
    code, told = promote("nothing", "http://127.0.0.1:1")
    assert code == InfrastructureError.exit_code
    assert "no MLflow server at http://127.0.0.1:1" in told
    code, told = promote("nothing", f"sqlite:///{shop.folder}/typo.db")
    assert code == UserError.exit_code
    assert not (shop.folder / "typo.db").exists()
    code, told = promote("two/names", shop.server.uri)
    assert code == UserError.exit_code
    assert told.startswith("error: 'tunefarm.two/names' cannot be a model's name in MLflow's registry (name a workload")


def test_a_registry_that_is_no_database_is_refused_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "pack.json").write_text("{}")
    for name, fault in (("pack.json", "is no SQLite database"), ("none.db", "there is no such database")):
        done = bare("compare", "models:/a/1", "models:/b/1", "--tracking", f"sqlite:///{name}", folder=tmp_path)
        assert done.returncode == UserError.exit_code
        assert done.stderr == f"error: {name}: {fault} (name another one with --tracking)\n"
    assert not (tmp_path / "none.db").exists()
