"""Network file systems, as the kernel lists them: this machine has none, so its list is written here."""

from __future__ import annotations

from pathlib import Path

import pytest
from farm import write_experiment

from tunefarm.cli import mounts
from tunefarm.cli.doctor import check_folder
from tunefarm.cli.folders import store_folder
from tunefarm.cli.mounts import doubt, mount_of

LINE = "{id} 1 0:{id} / {point} rw,relatime shared:1 master:2 - {kind} {source} rw,{options}\n"


def listed(folder: Path, *entries: tuple[str, str, str]) -> Path:
    """A table of mounts: the root on a disk, then (point, kind, options)."""
    table = folder / "mountinfo"
    lines = [("/", "ext4", "errors=remount-ro"), *entries]
    table.write_text(
        "".join(
            LINE.format(
                id=number, point=point.replace(" ", r"\040"), kind=kind, source="server:/export", options=options
            )
            for number, (point, kind, options) in enumerate(lines, 20)
        )
    )
    return table


@pytest.fixture
def network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that the kernel says is mounted from a server."""
    share = tmp_path / "a share"
    share.mkdir()
    monkeypatch.setattr(mounts, "TABLE", listed(tmp_path, (str(share), "nfs4", "vers=4.2,local_lock=none")))
    mounts._say.cache_clear()
    return share


@pytest.mark.parametrize(
    ("kind", "options", "says"),
    [
        ("nfs4", "vers=4.2,local_lock=none", "as good as its server's"),
        ("nfs", "vers=3,local_lock=none", "as good as its server's"),
        ("nfs", "vers=3,nolock,local_lock=all", "other machines do not see its locks"),
        ("nfs4", "local_lock=flock", "other machines do not see its locks"),
        ("cifs", "vers=3.1.1,nobrl", "other machines do not see its locks"),
        ("lustre", "flock", "as good as its server's"),
        ("lustre", "localflock", "other machines do not see its locks"),
        ("fuse.sshfs", "user_id=0", "other machines do not see its locks"),
        ("fuse.gcsfuse", "user_id=0", "object stores have no locks"),
        ("ext4", "errors=remount-ro", ""),
        ("tmpfs", "size=1g", ""),
        ("overlay", "lowerdir=/a,upperdir=/b", ""),
        ("fuse.fuse-overlayfs", "user_id=0", ""),
    ],
)
def test_what_may_not_be_trusted_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, options: str, says: str
) -> None:
    """TF-083."""
    monkeypatch.setattr(mounts, "TABLE", listed(tmp_path, ("/mnt/a b", kind, options)))
    said = doubt(Path("/mnt/a b/c/d"))
    assert says in said
    assert bool(said) == bool(says)
    if says:
        assert said.startswith(f"{kind.removeprefix('fuse.')} (server:/export): ")
    assert doubt(Path("/mnt/a")) == doubt(Path("/mnt/a bc")) == ""


def test_the_innermost_mount_counts_and_of_one_place_the_last(tmp_path: Path) -> None:
    table = listed(tmp_path, ("/m", "nfs4", "x"), ("/m/n", "xfs", "y"), ("/m/n", "9p", "z"), ("/m/n/o", "ext4", "w"))
    kinds = {name: found.kind for name in ("/m/p", "/m/n/p", "/m/n/o/p") if (found := mount_of(Path(name), table))}
    assert kinds == {"/m/p": "nfs4", "/m/n/p": "9p", "/m/n/o/p": "ext4"}
    assert mount_of(tmp_path, tmp_path / "there is none") is None


def test_this_machine_s_own_list_can_be_read(tmp_path: Path) -> None:
    if not mounts.TABLE.exists():
        pytest.skip("no Linux")
    assert (found := mount_of(tmp_path)) is not None
    assert found.kind


def test_a_store_on_a_network_is_said_once(
    network: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """TF-083."""
    monkeypatch.setenv("TUNEFARM_CACHE", str(network / "cache"))
    store_folder()
    store_folder()
    (said,) = [record.getMessage() for record in caplog.records if "server:/export" in record.getMessage()]
    assert said.startswith("builds are kept on nfs4 (server:/export): ")
    assert "TUNEFARM_CACHE" in said
    check = check_folder("cache", network / "cache")
    assert (check.state, "nfs4 (server:/export)" in check.found) == ("warn", True)


def test_a_ledger_on_a_network_is_said_before_machines_are_taken(
    network: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """TF-083."""
    from tunefarm.cli.opening import MeterKind
    from tunefarm.cli.order import check_free, take_orders

    experiment = write_experiment(tmp_path)
    (order,) = take_orders(
        [experiment], meter=MeterKind.REPLAY, sweeps=network / "sweeps", fresh=False, tracking="none",
        optuna_storage=None, out=None,
    )  # fmt: skip
    check_free(order)
    (said,) = [record.getMessage() for record in caplog.records if "the ledger is" in record.getMessage()]
    assert said.startswith("the ledger is on nfs4 (server:/export): ")
