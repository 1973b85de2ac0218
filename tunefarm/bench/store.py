"""The build store: builds by content, shared by sweeps. A file of plain JSON for each key, a cubin for each binary."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from tunefarm.bench.build import Artifact
from tunefarm.bench.cubin import code_hash
from tunefarm.document import canonical, parse_json, read_bytes, read_text, write_atomic
from tunefarm.errors import DocumentError, InfrastructureError
from tunefarm.trial import Build, build_from_json, to_json

MOST_BYTES = 10 << 30
"""What a store may grow to: nearly all of it belongs to candidates that lost."""

_IN_USE_S, _FRESH_S = 86400.0, 3600.0
"""How long after its last use a build stays in any case, and after which one more use is noted."""


class BuildStore:
    """Builds on disk, by `build.build_key`.

    Args:
        folder: where; created when the first build is kept.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def get(self, key: str) -> tuple[Build, Artifact] | None:
        """The build kept under a key, or None. A damaged entry counts as none: it is built again."""
        path = self._entry(key)
        try:
            if not path.exists():
                return None
            data = parse_json(read_text(path), where=str(path))
            build = build_from_json(data["build"])
            cubin = read_bytes(self._cubin(build.binary))
            if hashlib.sha256(cubin).hexdigest() != build.binary:
                return None
            if not build.code:  # kept by an earlier release
                with contextlib.suppress(InfrastructureError):
                    build = replace(build, code=code_hash(cubin))
            artifact = Artifact(
                binary=build.binary, cubin=cubin, metadata=json.dumps(data["metadata"]),
                specialization=data["specialization"],
            )  # fmt: skip
        except (DocumentError, KeyError, OSError, TypeError, ValueError):
            return None
        for used in (path, self._cubin(build.binary)):
            _note_use(used)
        return build, artifact

    def put(self, key: str, build: Build, artifact: Artifact) -> None:
        """Keeps a build; equal binaries are kept once, damaged ones replaced.

        Raises:
            OSError: it cannot be written; what was kept stays as it was.
        """
        cubin = self._cubin(artifact.binary)
        try:
            kept = read_bytes(cubin) == artifact.cubin
        except DocumentError:
            kept = False
        if not kept:
            write_atomic(cubin, artifact.cubin)
        data = {
            "build": to_json(build), "metadata": json.loads(artifact.metadata),
            "specialization": artifact.specialization,
        }  # fmt: skip
        write_atomic(self._entry(key), canonical(data).encode())

    def trim(self, most_bytes: int = MOST_BYTES) -> int:
        """Removes files that were not used for longest until the rest fit; what was used within a day stays.

        Of a build that lost one of its two files the other counts as none, until it is trimmed, too.

        Returns:
            Bytes removed.
        """
        found = sorted(self._files())
        total = excess = sum(size for _, size, _ in found)
        before_s = time.time() - _IN_USE_S
        for used_s, size, path in found:
            if excess <= most_bytes or used_s > before_s:
                break
            with contextlib.suppress(OSError):
                os.unlink(path)
                excess -= size
        return total - excess

    def _files(self) -> Iterator[tuple[float, int, str]]:
        """Last use in unix seconds, bytes and path of each."""
        for folder, _, names in os.walk(self.folder):
            for name in names:
                path = os.path.join(folder, name)
                with contextlib.suppress(OSError):
                    about = os.stat(path)
                    yield about.st_mtime, about.st_size, path

    def _entry(self, key: str) -> Path:
        return self.folder / key[:2] / f"{key}.json"

    def _cubin(self, binary: str) -> Path:
        return self.folder / "cubin" / binary[:2] / f"{binary}.cubin"


def _note_use(path: Path) -> None:
    with contextlib.suppress(OSError):
        if time.time() - path.stat().st_mtime > _FRESH_S:
            os.utime(path)
