"""What Triton and Inductor have kept on this machine, and what must be equal elsewhere for it to be found there.

A key is made of what is compiled and of what compiles it. The former is the program's affair; the latter is told here
part by part, so that two machines can be compared: a part that differs makes all that depends on it be made again.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tunefarm.device import NOMINAL
from tunefarm.errors import DocumentError
from tunefarm.frozen import FrozenMap

FORMAT, VERSION = "tunefarm-caches", 1

TRITON, INDUCTOR = "triton", "inductor"
"""Whose cache it is; the first word of a part that its keys hold."""

_GRAPHS = {"fxgraph": "graphs that Inductor compiled", "aotautograd": "graphs with their backwards"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """Entries of one kind.

    Attributes:
        cache: whose, `triton` or `inductor`.
        what: name of the kernel, or the kind of graph.
        made_for: arch and version of Triton; empty where the entry does not say.
        number: how many.
        num_bytes: on the disk.
    """

    cache: str
    what: str
    made_for: str
    number: int
    num_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Caches:
    """The caches of a machine.

    Attributes:
        folders: where they lie, by whose they are.
        kept: what is in them.
        parts: of keys, by name.
        num_damaged: entries that cannot be read.
    """

    folders: FrozenMap[str]
    kept: tuple[Kept, ...]
    parts: FrozenMap[str]
    num_damaged: int = 0


def look() -> Caches:
    """What lies in the caches that a job of this environment would use."""
    from torch._inductor.runtime.cache_dir_utils import cache_dir
    from triton import knobs

    folders = {TRITON: str(knobs.cache.dir), INDUCTOR: cache_dir()}
    # Inductor has Triton keep its kernels beside the graphs, a folder a GPU.
    places = [Path(folders[TRITON]), *sorted(Path(folders[INDUCTOR], "triton").glob("*"))]
    kernels: Counter[tuple[str, str]] = Counter()
    sizes: Counter[tuple[str, str]] = Counter()
    num_damaged = 0
    for entry in (entry for place in places for entry in _folders(place)):
        found = _kernel(entry)
        if found is None:
            num_damaged += 1
        else:
            kernels[found] += 1
            sizes[found] += _num_bytes(entry)
    kept = [
        Kept(cache=TRITON, what=name, made_for=target, number=number, num_bytes=sizes[name, target])
        for (name, target), number in kernels.items()
    ]
    for folder, what in _GRAPHS.items():
        entries = [entry for part in _folders(Path(folders[INDUCTOR], folder)) for entry in _folders(part)]
        if entries:
            size = sum(map(_num_bytes, entries))
            kept.append(Kept(cache=INDUCTOR, what=what, made_for="", number=len(entries), num_bytes=size))
    return Caches(
        folders=FrozenMap(folders), parts=FrozenMap({**_triton_parts(folders[TRITON]), **_inductor_parts()}),
        kept=tuple(sorted(kept, key=lambda each: (each.cache != TRITON, -each.num_bytes))), num_damaged=num_damaged,
    )  # fmt: skip


def _folders(place: Path) -> Iterator[Path]:
    try:
        yield from sorted(path for path in place.iterdir() if path.is_dir())
    except OSError:  # not there, or somebody else's
        return


def _num_bytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def _kernel(entry: Path) -> tuple[str, str] | None:
    """Name of a kernel that Triton keeps, and for what it was compiled; None if that cannot be read."""
    for file in sorted(entry.glob("*.json")):
        if file.name.startswith("__grp__"):
            continue
        try:
            data = json.loads(file.read_text())
            target = data["target"]
            arch = f"sm_{target['arch']}" if target["backend"] == "cuda" else str(target["arch"])
            return str(data.get("name", file.stem)), f"{arch}, Triton {data.get('triton_version', '?')}"
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return None
    # What Triton builds to launch kernels, and the stubs of drivers, has no description.
    libraries = sorted(entry.glob("*.so"))
    return (libraries[0].name.split(".")[0], "this machine's C compiler") if libraries else None


def _triton_parts(folder: str) -> dict[str, str]:
    import triton
    from triton._C.libtriton import get_cache_invalidating_env_vars
    from triton.backends.compiler import GPUTarget
    from triton.compiler.compiler import make_backend
    from triton.runtime.cache import triton_key

    parts = {
        "triton version": str(triton.__version__),
        "triton sources": hashlib.sha256(triton_key().encode()).hexdigest()[:16],
        "triton settings": " ".join(f"{k}={v}" for k, v in sorted(get_cache_invalidating_env_vars().items())),
        # Its files name each other by their whole path.
        "triton folder": folder,
    }
    for arch in sorted(NOMINAL):
        target = GPUTarget("cuda", int(arch.removeprefix("sm_")), 32)
        said = str(make_backend(target).hash())
        release = re.search(r"\bV[\d.]+", said)
        parts[f"triton assembler for {arch}"] = release[0] if release else said
    return parts


def _inductor_parts() -> dict[str, str]:
    import torch
    from torch._inductor import config
    from torch._inductor.codecache import torch_key

    parts = {
        "inductor torch version": str(torch.__version__),
        "inductor torch sources": torch_key().hex()[:16],
        "inductor GPU": torch.cuda.get_device_name() if torch.cuda.is_available() else "none",
        "inductor CUDA": str(torch.version.cuda),
    }
    settings: Mapping[str, Any] = config.save_config_portable(ignore_private_configs=False)
    return parts | {f"inductor setting {name}": repr(value) for name, value in sorted(settings.items())}


def to_json(caches: Caches) -> dict[str, Any]:
    """As a file holds it that another machine is compared with."""
    kept = [{name: getattr(each, name) for name in each.__dataclass_fields__} for each in caches.kept]
    return {
        "format": FORMAT, "version": VERSION, "folders": dict(caches.folders), "parts": dict(caches.parts),
        "kept": kept, "num_damaged": caches.num_damaged,
    }  # fmt: skip


def read_parts(data: Any, file: str) -> dict[str, str]:
    """The parts of keys that a file tells.

    Raises:
        DocumentError: it is no such file, or from another release.
    """
    if not isinstance(data, dict) or (data.get("format"), data.get("version")) != (FORMAT, VERSION):
        raise DocumentError("tells of no caches", file=file, hint="write it with `tunefarm caches --json`")
    parts = data.get("parts")
    if not isinstance(parts, dict) or not all(isinstance(value, str) for value in parts.values()):
        raise DocumentError("is damaged: parts", file=file, hint="write it anew with `tunefarm caches --json`")
    return parts


def differences(here: Mapping[str, str], there: Mapping[str, str]) -> list[tuple[str, str, str]]:
    """Parts of keys in which two machines differ: name, and what it is on each."""
    names = [name for name in {**here, **there} if here.get(name) != there.get(name)]
    return [(name, here.get(name, "not told"), there.get(name, "not told")) for name in names]
