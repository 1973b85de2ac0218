"""Where packs come from: files, folders, packages, and a real MLflow registry."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from runtime_kernels import LADDER, foreign, make_pack, own

import tunefarm
from tunefarm.errors import PackError, UserError
from tunefarm.pack import Pack, dumps, seal
from tunefarm.runtime.activation import activate, deactivate
from tunefarm.runtime.reporting import report
from tunefarm.runtime.sources import find_packs


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    deactivate()
    yield
    deactivate()


def write(path: Path, pack: Pack) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(dumps(pack))
    return path


OWN, FOREIGN = make_pack(own, *LADDER), make_pack(foreign, *LADDER)
BOTH = seal(Pack(tables=(*OWN.tables, *FOREIGN.tables)))


def test_a_folder_s_packs_are_one_with_one_digest(tmp_path: Path) -> None:
    write(tmp_path / "packs" / "own.json", OWN)
    write(tmp_path / "packs" / "foreign.json", FOREIGN)
    (tmp_path / "packs" / "notes.txt").write_text("no pack")
    pack = activate(tmp_path / "packs")
    assert pack == BOTH
    assert report().packs == (str(tmp_path / "packs"),)


def test_a_damaged_pack_of_a_folder_is_left_out_and_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    write(tmp_path / "own.json", OWN)
    (tmp_path / "torn.json").write_text(dumps(FOREIGN)[:100])
    assert activate(tmp_path) == OWN
    assert "left out: " in caplog.text
    assert "torn.json" in caplog.text
    with pytest.raises(PackError, match=r"torn\.json"):
        activate(tmp_path, strict=True)


def test_two_packs_of_a_folder_may_not_answer_for_one_kernel_and_device(tmp_path: Path) -> None:
    write(tmp_path / "a.json", OWN)
    write(tmp_path / "b.json", make_pack(own, LADDER[0]))
    with pytest.raises(PackError, match=r"a\.json and b\.json both hold a table of own on NVIDIA H100.*merge"):
        activate(tmp_path)


@pytest.mark.parametrize("name", ["missing.json", "pkg:no_such_package/x.json", "pkg:", "pkg:tunefarm/../x.json"])
def test_what_is_not_there_is_an_error_that_names_it(name: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=name.partition(":")[2].partition("/")[0] or name):
        activate(name)


def test_an_empty_name_is_not_the_working_folder() -> None:
    with pytest.raises(PackError, match="has no name"):
        activate("")


def test_an_empty_folder_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(PackError, match="folder without packs"):
        activate(tmp_path)


def test_what_cannot_be_looked_at_is_an_error_of_ours(tmp_path: Path) -> None:
    """Another one would end a rank before the others hear why."""
    for source in ("x" * 5000, "pkg:json/" + "x" * 5000):
        with pytest.raises(PackError, match="x: cannot be read: File name too long"):
            activate(source)
    if os.geteuid() != 0:
        folder = tmp_path / "locked"
        folder.mkdir(mode=0)
        for source in (folder, folder / "p.json"):
            with pytest.raises(PackError, match=r"locked.*: cannot be read: Permission denied"):
                activate(source)


@pytest.mark.parametrize("inside", ["", "/packs", "/packs/own.json"])
def test_data_of_a_package(inside: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    library = tmp_path / "tuned_library"
    write(library / "packs" / "own.json", OWN)
    write(library / "own.json", OWN)
    (library / "__init__.py").touch()
    monkeypatch.syspath_prepend(str(tmp_path))
    assert activate(f"pkg:tuned_library{inside}") == OWN
    assert report().packs == (f"pkg:tuned_library{inside}",)


def test_a_model_of_mlflow_s_registry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mlflow = pytest.importorskip("mlflow")
    monkeypatch.chdir(tmp_path)
    uri = f"sqlite:///{tmp_path}/mlflow.db"
    mlflow.set_tracking_uri(uri)
    mlflow.set_registry_uri(uri)
    try:
        path = write(tmp_path / "softmax.json", OWN)
        client = mlflow.MlflowClient()
        run = client.create_run(client.create_experiment("softmax", artifact_location=str(tmp_path / "artifacts")))
        client.log_artifact(run.info.run_id, str(path), "pack")
        client.create_registered_model("tunefarm.softmax")
        source = f"{run.info.artifact_uri}/pack"
        version = client.create_model_version("tunefarm.softmax", source, run.info.run_id)
        client.set_registered_model_alias("tunefarm.softmax", "champion", version.version)
        for name in ("models:/tunefarm.softmax@champion", "models:/tunefarm.softmax/1"):
            assert find_packs(name).pack == OWN
        for name in ("models:/tunefarm.softmax@nobody", "models:/tunefarm.softmax/7", "models:/absent@champion"):
            with pytest.raises(UserError, match=name):
                activate(name)
    finally:
        mlflow.set_tracking_uri(None)
        mlflow.set_registry_uri(None)


def test_without_mlflow_the_registry_is_an_error_that_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mlflow", None)
    with pytest.raises(UserError, match=r"models:/x@y: mlflow is not installed \(pip install"):
        activate("models:/x@y")


def test_a_pinned_digest_lets_no_other_pack_in() -> None:
    assert activate(OWN, digest=OWN.digest) == OWN
    assert activate(OWN, digest=OWN.digest[:12].upper()) == OWN
    with pytest.raises(PackError, match=f"has digest {FOREIGN.digest}, and {OWN.digest} was asked for"):
        activate(FOREIGN, digest=OWN.digest)
    with pytest.raises(UserError, match="too short"):
        activate(OWN, digest=OWN.digest[:4])
    assert len(report().packs) == 2


def test_one_digest_stands_for_all_packs_in_their_order() -> None:
    assert tunefarm.digest() == ""
    activate(OWN)
    first = tunefarm.digest()
    activate(FOREIGN)
    second = tunefarm.digest()
    deactivate()
    activate(FOREIGN)
    activate(OWN)
    assert len({first, second, tunefarm.digest(), ""}) == 4
