"""Inductor's matrix products (layer 2): a row decides between a template under its config and the library's call.

While a pack with such rows is active, nothing of a product is timed by torch.compile: one that no row answers is the
library's call, as it is without `max_autotune`. That holds for functions compiled with `mode="max-autotune"` too: a
pack's rows win, and what they do not answer may well stay the library's call. Convolutions and generated kernels are
autotuned as ever where that mode asks for it, and nowhere else. Rows match sizes, strides and element types exactly,
and hold for one release of torch and one text of the template.

Functions compiled before a pack was activated keep what they have: activate first, or call `torch._dynamo.reset()`.
A graph that Inductor takes from its cache was made under the same rows, asks for nothing and is not counted.
Nothing of torch is imported before a pack with such rows is active.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import replace

from tunefarm.choosing import Answer, Chooser, choose, obstacle, refresh, template_hash
from tunefarm.config import LIBRARY
from tunefarm.device import Device
from tunefarm.document import digest
from tunefarm.errors import MissError
from tunefarm.gemm import TEMPLATES, Gemm, in_flight_bytes
from tunefarm.generated import public
from tunefarm.limits import no_tile, too_many_threads, too_shallow
from tunefarm.pack import Pack, Row, Table
from tunefarm.runtime.active import ACTIVE, Tally
from tunefarm.runtime.kernels import CURRENT, device_at, triton_version
from tunefarm.runtime.lookup import Offer, Shortlist, explain, find, shortlist

LAYER = 2
_BLOCKS = {"BLOCK_M", "BLOCK_N", "BLOCK_K"}
_NAMES = {*_BLOCKS, "GROUP_M", "num_warps", "num_stages"}
"""What a row may decide. Accuracy, masks and types of indices are Inductor's to say."""

_end: Callable[[], None] | None = None
_lists: dict[tuple[int, str, int | None], Shortlist] = {}
_bad: dict[Row, str] = {}
"""Rows whose configs could not be compiled here, and why."""


def check_inductor(pack: Pack, *, strict: bool) -> None:
    """Looks whether Inductor can be told of a pack's rows, if it has any; what keeps it from that is logged.

    Raises:
        MissError: `strict`, and it cannot.
    """
    if _end is not None or not any(table.layer == LAYER for table in pack.tables) or not (reason := obstacle()):
        return
    message = f"rows for Inductor's templates are not used: {reason}"
    if strict:
        raise MissError(message, hint="use another release of torch, or a pack without them")
    ACTIVE.warn_once(message)


def follow() -> None:
    """Lets Inductor obey the active packs if they have rows for it, and leaves it alone otherwise."""
    global _end
    _lists.clear()
    _bad.clear()
    if not _tables():
        if _end is not None:
            _end()
            _end = None
        return
    if _end is not None:
        refresh()
    elif not obstacle():
        _end = choose(Chooser(answer=_answer, identity=_identity))
    if _is_device_open():
        import torch

        torch.cuda._lazy_call(refresh)  # type: ignore[no-untyped-call]


def _tables() -> list[Table]:
    return [table for a in ACTIVE.activations for table in a.pack.tables if table.layer == LAYER]


def _answer(gemm: Gemm, index: int | None, counts: bool) -> Answer | None:
    """What the row says that is for a product; None if there is none."""
    if not any(table.kernel == gemm.op for table in _tables()):
        return None
    listed = _listed(gemm.op, index)
    offer = None if gemm.refusal else find(listed.offers, gemm.problem, gemm.problem.dtypes)
    if offer is not None:
        if counts:
            ACTIVE.hits.setdefault((gemm.op, offer), Tally()).graphs += 1
        # Another Triton may make of a config what this device cannot hold, and Inductor has nothing else to try.
        doubtful = offer.table.key_parts.get("triton") != triton_version()
        return Answer(config=offer.row.config, failed=functools.partial(_failed, gemm, offer) if doubtful else None)
    if counts:
        _missed(gemm, gemm.refusal or explain(listed.offers, listed.refused, gemm.problem, gemm.problem.dtypes))
    return None


def _missed(gemm: Gemm, reason: str) -> None:
    ACTIVE.miss(gemm.op, gemm.problem, reason).graphs += 1
    if ACTIVE.is_strict:
        raise MissError(f"no row of the active packs is for {gemm.op} {gemm.problem.key}\n{reason}",
                        hint="sweep this product, or activate with on_miss='stock'")  # fmt: skip


def _failed(gemm: Gemm, offer: Offer, error: Exception) -> None:
    """Uses a row no more, whose config could not be compiled; it was counted for a hit."""
    first = next((line.strip() for line in str(error).splitlines() if line.strip()), "")
    reason = _bad[offer.row] = f"cannot be compiled here: {type(error).__name__}: {first}"
    ACTIVE.warn_once(f"{gemm.op}: {offer.row.config} {reason}")
    ACTIVE.hits[gemm.op, offer].graphs -= 1
    _lists.clear()
    _missed(gemm, f"  its row's config {offer.row.config} {reason}")


def _listed(op: str, index: int | None) -> Shortlist:
    """The rows for an operation on a device; what is wrong with other tables is said once."""
    place = ACTIVE.generation, op, index
    found = _lists.get(place)
    if found is None:
        import torch

        device = device_at(CURRENT if index is None else index)
        if device is None:
            return Shortlist(refused=("there is no GPU here",))
        found = shortlist(
            ACTIVE.activations, op, template_hash(op), device, triton_version(), layer=LAYER,
            torch=public(str(torch.__version__)),
        )  # fmt: skip
        ACTIVE.asked.update((table.kernel, table.digest) for table in _tables() if table.kernel == op)
        reasons = {
            offer: _bad.get(offer.row) or _misfit(offer.row, offer.activation.device or device)
            for offer in found.offers
        }
        odd = tuple(f"{op}: {offer.row.config} {reason}" for offer, reason in reasons.items() if reason)
        found = replace(found, offers=tuple(o for o, r in reasons.items() if not r), refused=(*found.refused, *odd))
        for message in (*found.notes, *found.refused):
            ACTIVE.warn_once(message)
        ACTIVE.refused[op] = found.refused
        _lists[place] = found  # which another thread may clear at once
    return found


def _misfit(row: Row, device: Device) -> str:
    """Why a row's config cannot be used, for people: Inductor is given it alone, and would have nothing else to try."""
    config = row.config
    if config == LIBRARY:
        return ""
    flat = config.flat
    # Inductor writes names and values into the text of a module: anything but a number there would be code.
    numbers = all(type(value) is int and value > 0 for value in flat.values())
    if not (flat.keys() >= _BLOCKS and flat.keys() <= _NAMES and numbers):
        return "is no config of Inductor's template"
    operands = [row.match.dtypes.get(name, "") for name in ("arg_A", "arg_B")]
    failures = (
        too_many_threads(config, device), no_tile(config, ("BLOCK_M", "BLOCK_N")), no_tile(config, ("BLOCK_K",)),
        too_shallow(config, "BLOCK_K", operands),
    )  # fmt: skip
    if failure := next(filter(None, failures), None):
        return f"cannot be compiled: {failure.message}"
    # What a row says that it takes, the lookup has compared.
    taken = in_flight_bytes(config, operands, row.match.dims) if row.code is None else 0
    if taken <= device.shared_bytes:
        return ""
    return f"takes {taken} bytes of shared memory, a block on {device.name} has {device.shared_bytes}"


def _is_device_open() -> bool:
    """Whether it cannot be told yet which GPU this process uses: asking would put one to use, rank 0's for all ranks.

    Older releases of torch want the identity before anything is compiled.
    """
    import torch

    in_use: bool = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    return not ACTIVE.names_device and torch.cuda.is_available() and not in_use


def _identity() -> str:
    """Equal where the rows that can be used on this device are."""
    if _is_device_open():
        return digest(sorted(table.digest for table in _tables()))
    used = {
        op: list(dict.fromkeys(offer.table.digest for offer in _listed(op, None).offers))
        for op in TEMPLATES
        if any(table.kernel == op for table in _tables())
    }
    return digest(used)
