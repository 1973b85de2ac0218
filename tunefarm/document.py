"""Reading and writing files of plain data: canonical JSON, size and depth limits, atomic replacement.

Every format of tunefarm goes through here, so that no reader can be made to run code or to exhaust memory by a file,
and no writer can leave half a file behind.
"""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import json
import os
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tunefarm.errors import DocumentError

_UMASK = os.umask(0)
os.umask(_UMASK)
"""Read once, at import: asking means setting it, for all threads."""

MAX_BYTES = 256 << 20
MAX_DEPTH = 32
MAX_STEM = 180
"""Of a file's or folder's name, which may have 255 bytes, some of them for what stands behind."""


def canonical(value: Any) -> str:
    """The one spelling of `value` as JSON: sorted keys, no spaces, no NaN. Digests are taken over it.

    Raises:
        ValueError: the value holds NaN or an infinity.
    """
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def digest(value: Any) -> str:
    """SHA-256 of the canonical JSON of `value`, in hexadecimal."""
    return hashlib.sha256(canonical(value).encode()).hexdigest()


def file_stem(name: str) -> str:
    """What a file or folder is called after a name: the name, or of a long one its beginning and a hash of it all."""
    if len(name) <= MAX_STEM:
        return name
    mark = hashlib.sha256(name.encode()).hexdigest()[:12]
    return f"{name[: MAX_STEM - len(mark) - 1]}-{mark}"


def write_atomic(path: Path, data: bytes) -> None:
    """Replaces `path` by `data` in one step: readers see the old file or the new one, never a part.

    The temporary file lies in the same folder (a rename across file systems is not atomic) and is flushed to disk
    before the rename, so that a crash cannot leave an empty file under the final name.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name[:40]}.", suffix=".tmp")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        # mkstemp makes private files; a pack is meant to be read by whoever may read its folder.
        Path(name).chmod(0o666 & ~_UMASK)
        Path(name).replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            Path(name).unlink()
        raise


def compress(data: bytes) -> bytes:
    """Gzip without a time stamp: equal data gives equal bytes."""
    return gzip.compress(data, compresslevel=9, mtime=0)


def read_bytes(path: Path, *, error: type[DocumentError] = DocumentError, max_bytes: int = MAX_BYTES) -> bytes:
    """The content of a file, unzipped if it ends in `.gz`.

    Raises:
        error: the file is missing, unreadable, a damaged archive, or larger than `max_bytes` (unzipped).
    """
    try:
        with gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb") as file:
            data = file.read(max_bytes + 1)
    except FileNotFoundError:
        raise error("no such file", file=str(path)) from None
    except IsADirectoryError:
        raise error("is a folder", file=str(path), hint="name a file") from None
    except (OSError, EOFError) as e:
        raise error(f"cannot be read: {e.__class__.__name__}: {e}", file=str(path)) from None
    except Exception as e:  # zlib.error is not an OSError
        raise error(f"is not a readable archive: {e}", file=str(path)) from None
    if len(data) > max_bytes:
        raise error(f"holds more than {max_bytes >> 20} MiB", file=str(path), hint="not a file of tunefarm's")
    return data


def read_text(path: Path, *, error: type[DocumentError] = DocumentError, max_bytes: int = MAX_BYTES) -> str:
    """The content of a UTF-8 text file.

    Raises:
        error: as `read_bytes`; also when the content is not UTF-8 or starts with a byte-order mark.
    """
    data = read_bytes(path, error=error, max_bytes=max_bytes)
    if data.startswith(b"\xef\xbb\xbf"):
        raise error("starts with a byte-order mark", file=str(path), hint="save it as UTF-8 without one")
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as e:
        raise error(f"is not UTF-8 text (byte {e.start})", file=str(path), hint="save it as UTF-8") from None


def parse_json(
    text: str,
    *,
    where: str,
    error: type[DocumentError] = DocumentError,
    infinities: bool = False,
    nan: bool = False,
) -> Any:
    """JSON with the traps closed: no duplicate keys, no NaN, no nesting beyond `MAX_DEPTH`.

    Args:
        text: the JSON text.
        where: file name (and line) for messages.
        error: the exception to raise.
        infinities: `Infinity` is a number, as Python's json writes it into files of other tools.
        nan: so is `NaN`.

    Raises:
        error: the text is not such JSON.
    """
    if _depth_exceeds(text, MAX_DEPTH):
        raise error(f"is nested deeper than {MAX_DEPTH} levels", file=where)

    def refuse(name: str) -> Any:
        if nan if name == "NaN" else infinities:
            return float(name)
        raise ValueError(f"{name} is not a JSON number")

    def pairs(items: list[tuple[str, Any]]) -> dict[str, Any]:
        result = dict(items)
        if len(result) != len(items):
            names = [name for name, _ in items]
            twice = next(name for name in names if names.count(name) > 1)
            raise ValueError(f"key {twice!r} appears twice")
        return result

    try:
        return json.loads(text, object_pairs_hook=pairs, parse_constant=refuse)
    except ValueError as e:
        why = "an integer has too many digits" if "int_max_str_digits" in str(e) else e
        raise error(f"is not valid JSON: {why}", file=where) from None


def _depth_exceeds(text: str, limit: int) -> bool:
    # Looked at before parsing: the parser would answer with RecursionError, deep inside the caller's stack.
    if text.count("[") + text.count("{") <= limit:
        return False  # nearly every line of a ledger, without the slow walk below
    depth = 0
    inside = escaped = False
    for char in text:
        if inside:
            if escaped:
                escaped = False
            elif char == "\\":
                escaped = True
            elif char == '"':
                inside = False
        elif char == '"':
            inside = True
        elif char in "[{":
            depth += 1
            if depth > limit:
                return True
        elif char in "]}":
            depth -= 1
    return False


def one_row_a_line(head: dict[str, Any], rows: Iterable[Any], name: str) -> str:
    """A JSON object whose last member is a list with one item a line: large tables that still diff well."""
    body = ",\n".join(canonical(row) for row in rows)
    opening = json.dumps(head, sort_keys=True, indent=1, ensure_ascii=False, allow_nan=False).rstrip().removesuffix("}")
    return f'{opening.rstrip()},\n "{name}": [\n{body}\n]}}\n'
