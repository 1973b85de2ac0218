"""Bundles: named by content, unpacked once per node whoever races for it, private, and never mixed in one process."""

from __future__ import annotations

import errno
import os
import pickle
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from tunefarm import bundle as bundles
from tunefarm.bundle import Bundle, digest_of, said, unpack
from tunefarm.errors import InfrastructureError, Lacking

FILES = (("data/tokens.bin", bytes(range(256))), ("kernels.py", b"VALUE = 1\n"))


@pytest.fixture(autouse=True)
def _clean(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a process that has gathered and unpacked nothing."""
    monkeypatch.setattr(bundles, "_gathered", {})
    monkeypatch.setattr(bundles, "_unpacked", {})
    monkeypatch.setattr(bundles, "_origins", {})


def test_the_name_is_of_names_and_contents_and_of_nothing_else(tmp_path: Path) -> None:
    here = Bundle.of(tmp_path / "here", dict(reversed(FILES)))
    there = Bundle.of(tmp_path / "there", dict(FILES))
    assert here.digest == there.digest == digest_of(FILES)
    assert here.digest == "2016c4c2a8687f69ee0d0583759acb5f5f73df204403e16deb2ce1a6e888b146"
    others = [
        (("kernels.py", b"VALUE = 2\n"),),
        (("data/tokens.bi", b"n" + FILES[0][1]), FILES[1]),  # the same bytes, divided otherwise
        (("data/tokens.bin", FILES[0][1]), ("kernel.py", b"VALUE = 1\n")),
    ]
    assert len({digest_of(files) for files in (FILES, *others)}) == 4


def test_contents_do_not_travel_with_jobs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = Bundle.of(tmp_path, {"big.bin": bytes(1 << 20)})
    travelled = pickle.loads(pickle.dumps(made))
    assert len(pickle.dumps(made)) < 500
    assert travelled == made
    assert travelled.files == ()
    assert travelled.folder() == tmp_path  # who gathered it imports it where it lies
    monkeypatch.setattr(bundles, "_gathered", {})
    with pytest.raises(Lacking, match=made.digest[:12]):
        travelled.folder()


def test_unpacked_files_are_private_and_known_by_their_old_names(tmp_path: Path) -> None:
    made = pickle.loads(pickle.dumps(Bundle.of(Path("/home/me/project"), dict(FILES))))
    bundles._gathered.clear()
    assert unpack(FILES, [tmp_path / "cache" / "bundles"]) == ""
    folder = made.folder()
    assert folder == tmp_path / "cache" / "bundles" / made.digest
    assert {str(f.relative_to(folder)): f.read_bytes() for f in folder.rglob("*") if f.is_file()} == dict(FILES)
    assert stat.S_IMODE(folder.stat().st_mode) == stat.S_IMODE(folder.parent.stat().st_mode) == 0o700
    assert made.locate("/home/me/project/data/../kernels.py") == folder / "kernels.py"
    assert said(f'File "{folder}/kernels.py", line 3') == 'File "/home/me/project/kernels.py", line 3'


def test_what_was_unpacked_before_is_used_and_what_was_cleaned_away_comes_back(tmp_path: Path) -> None:
    unpack(FILES, [tmp_path / "bundles"])
    folder = tmp_path / "bundles" / digest_of(FILES)
    inode = folder.stat().st_ino
    (folder / "__pycache__").mkdir()
    unpack(FILES, [tmp_path / "bundles"])
    assert folder.stat().st_ino == inode
    (folder / "kernels.py").unlink()
    (folder / "data/tokens.bin").write_bytes(b"other")
    unpack(FILES, [tmp_path / "bundles"])
    assert {str(f.relative_to(folder)): f.read_bytes() for f in folder.rglob("*") if f.is_file()} == dict(FILES)
    assert list((tmp_path / "bundles").iterdir()) == [folder]


RACE = """\
import sys
from pathlib import Path
from tunefarm.bundle import unpack

files = tuple((f"m{number}.py", bytes(50_000)) for number in range(40))
print("ready", flush=True)
sys.stdin.readline()
print(unpack(files, [Path(sys.argv[1])]))
"""


def test_unpackers_of_one_node_may_race(tmp_path: Path) -> None:
    """TF-083: all of them find the files whole, and nothing is left of those who came second."""
    racers = [
        subprocess.Popen(
            [sys.executable, "-c", RACE, str(tmp_path / "bundles")], cwd=Path(__file__).parents[1],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )
        for _ in range(6)
    ]  # fmt: skip
    for racer in racers:
        assert racer.stdout is not None
        assert racer.stdout.readline() == "ready\n"
    for racer in racers:
        assert racer.stdin is not None
        racer.stdin.write("\n")
        racer.stdin.flush()
    assert [racer.communicate(timeout=60)[0] for racer in racers] == ["\n"] * 6
    assert [racer.returncode for racer in racers] == [0] * 6
    (folder,) = (tmp_path / "bundles").iterdir()
    assert len(list(folder.iterdir())) == 40


def test_a_cache_that_cannot_be_written_is_said_and_done_without(tmp_path: Path) -> None:
    """TF-085: the temporary folder instead, with one notice; and where nothing can be written, what to set."""
    (tmp_path / "file").write_text("")
    notice = unpack(FILES, [tmp_path / "file/bundles", tmp_path / "tmp/bundles"])
    assert notice.startswith(f"cannot write to {tmp_path}/file/bundles (")
    assert notice.endswith(f": workloads are unpacked in {tmp_path}/tmp/bundles")
    with pytest.raises(InfrastructureError, match=r"file/bundles.*file/other.*set TUNEFARM_CACHE"):
        unpack(FILES, [tmp_path / "file/bundles", tmp_path / "file/other"])


def test_a_full_cache_is_said_and_done_without(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """TF-087: nothing half written is left, or imported."""
    write = Path.write_bytes

    def full(path: Path, content: bytes) -> int:
        if path.is_relative_to(tmp_path / "full") and path.name == "kernels.py":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return write(path, content)

    monkeypatch.setattr(Path, "write_bytes", full)
    notice = unpack(FILES, [tmp_path / "full/bundles", tmp_path / "tmp/bundles"])
    assert f"{tmp_path}/full/bundles (No space left on device)" in notice
    assert list((tmp_path / "full/bundles").iterdir()) == []
    assert bundles._unpacked[digest_of(FILES)].is_relative_to(tmp_path / "tmp")


def test_a_folder_that_others_may_write_to_is_not_imported_from(tmp_path: Path) -> None:
    open_to_all = tmp_path / "bundles"
    open_to_all.mkdir()
    open_to_all.chmod(0o777)
    assert "others may write to it" in unpack(FILES, [open_to_all, tmp_path / "own"])
    assert list(open_to_all.iterdir()) == []
