"""Kernels that Inductor generates take their config from the active packs, through Inductor's own look-up table.

That table is part of the key of Inductor's caches, so it holds what is for this device only, in one order: a row of
another device changes nothing of what is cached. Its entries stand in the configuration's default, which every thread
sees that compiles, lazily compiled backwards included. Torch is imported only if an active pack has such tables.

Configs of mixed kernels do not fit the table: they are written into the kernel's text, and stand in the table under a
name that Inductor asks nothing of, so that they, too, are part of the key of its caches.
"""

from __future__ import annotations

import functools
import threading
from typing import Any

from tunefarm.config import Config
from tunefarm.device import Device
from tunefarm.frozen import FrozenMap
from tunefarm.generated import JIT, SPLIT, STAGES, key_of, least_blocks, parts_of, pinned, plain_name, public
from tunefarm.limits import no_tile, too_many_threads
from tunefarm.problem import Problem
from tunefarm.runtime.active import ACTIVE, Tally
from tunefarm.runtime.kernels import CURRENT, device_at, live_device, triton_version
from tunefarm.runtime.lookup import Offer, shortlist
from tunefarm.settings import default, set_default

LAYER = 3
NAME = "autotune_lookup_table"
_SETTLED = {"'dynamic_scale_rblock': True": "'dynamic_scale_rblock': False",
            "'coordinate_descent_tuning': True": "'coordinate_descent_tuning': False"}  # fmt: skip
"""What Inductor would do about a config that it has already: try it with smaller blocks, or search on from it."""

_BESIDE = "pinned "
"""Before the keys of kernels whose configs the table does not hold, only shows."""

_offers: dict[str, Offer] = {}
"""By Inductor's key the rows for its kernels."""
_ours: dict[str, dict[str, int]] = {}
"""What we have put into the table; entries of the user's are his."""
_lock = threading.RLock()
"""Kernels are compiled in several threads, and each may find that a row is not for one of them."""


def follow() -> None:
    """Makes Inductor's table agree with the active packs. Without tables for it, now or before, nothing is imported."""
    if not (_ours or _wanted()):
        return
    try:
        import torch
        from torch._inductor import config
        from torch._inductor.async_compile import AsyncCompile
    except ImportError as error:
        ACTIVE.warn_once(f"tables for Inductor's kernels are not used: {error}")
        return
    if not hasattr(config, NAME):
        ACTIVE.warn_once(f"tables for Inductor's kernels are not used: torch {torch.__version__} has no {NAME}")
        return
    _watch(AsyncCompile)
    if _ours or ACTIVE.names_device:
        _settle()
    else:
        # Once CUDA is in use: which device this is cannot be told before, and forked children must not find it in use.
        torch.cuda._lazy_call(_settle)  # type: ignore[no-untyped-call]


def _wanted() -> bool:
    return any(table.layer == LAYER for a in ACTIVE.activations for table in a.pack.tables)


def _settle() -> None:
    with _lock:
        device = _device() if ACTIVE.activations else None
        offers = _listed(device) if device is not None else {}
        entries = dict(_entry(key, offer.row.config) for key, offer in sorted(offers.items()))
        _offers.clear()
        _offers.update(offers)
        _put(entries)


def _withdraw(name: str) -> None:
    with _lock:
        _put({key: entry for key, entry in _ours.items() if key != name})


def _device() -> Device | None:
    import torch

    here = device_at(CURRENT)
    if here is None or ACTIVE.names_device or not torch.cuda.is_available():
        return here
    if len({live_device(index).key for index in range(torch.cuda.device_count())}) > 1:
        ACTIVE.warn_once(f"GPUs differ: Inductor's kernels take the configs of {here.name} on all of them")
    return here


def _listed(device: Device) -> dict[str, Offer]:
    """The offers for a device, by Inductor's key; what is wrong with tables is said once."""
    import torch

    here = public(torch.__version__)
    kinds = {(t.kernel, t.source_hash) for a in ACTIVE.activations for t in a.pack.tables if t.layer == LAYER}
    offers: dict[str, Offer] = {}
    refused: dict[str, tuple[str, ...]] = {}
    for kernel, key in sorted(kinds):
        found = shortlist(ACTIVE.activations, kernel, key, device, triton_version(), layer=LAYER, torch=here)
        reasons = [_misfit(offer.row.config, offer.activation.device or device) for offer in found.offers]
        usable = [offer for offer, reason in zip(found.offers, reasons, strict=True) if not reason]
        offers.update({key: usable[0]} if usable else {})
        odd = [f"{kernel}: {o.row.config} {why}" for o, why in zip(found.offers, reasons, strict=True) if why]
        for message in (*found.notes, *found.refused, *odd):
            ACTIVE.warn_once(message)
        refused[kernel] = (*refused.get(kernel, ()), *found.refused, *odd)
    ACTIVE.refused.update(refused)
    return offers


def _misfit(config: Config, device: Device) -> str:
    """Why a config cannot be used, for people: Inductor is given it alone, and would have nothing else to try."""
    from torch._inductor.runtime import hints

    # Inductor leaves masks out where its greatest block divides the size: one beyond would write out of bounds.
    greatest = {f"{axis}BLOCK": size for axis, size in getattr(hints, "TRITON_MAX_BLOCK", {}).items()}
    flat = config.flat
    numbers = all(type(value) is int and 0 < value <= greatest.get(name, value) for name, value in flat.items())
    if not numbers or not {"num_warps", "num_stages"} <= flat.keys():
        return "is no config that Inductor's table can hold"
    blocks = [name for name in config.params if name.endswith("BLOCK")]
    if failure := too_many_threads(config, device) or no_tile(config, blocks):
        return f"cannot be compiled: {failure.message}"
    if not _is_mixed(config):
        return ""
    # Inductor's grid asserts that blocks fill the split.
    sizes = _flat(config)
    whole = config.params.keys() == {"XBLOCK", SPLIT, STAGES} and sizes[SPLIT] % sizes["XBLOCK"] == 0
    return "" if whole else f"is no config of a kernel that is split: blocks fill {SPLIT}"


def _is_mixed(config: Config) -> bool:
    return SPLIT in config.params or STAGES in config.params


def _entry(key: str, config: Config) -> tuple[str, dict[str, int]]:
    return (_BESIDE + key if _is_mixed(config) else key), _flat(config)


def _flat(config: Config) -> dict[str, int]:
    return {name: value for name, value in sorted(config.flat.items()) if isinstance(value, int)}


def _put(entries: dict[str, dict[str, int]]) -> None:
    """Exchanges our entries in the default, which all threads see, and in the table that this thread's user made."""
    from torch._inductor import config

    set_default(NAME, _exchanged(default(NAME), entries))
    setattr(config, NAME, _exchanged(getattr(config, NAME), entries))
    _ours.clear()
    _ours.update(entries)


def _exchanged(table: dict[str, Any], entries: dict[str, dict[str, int]]) -> dict[str, Any]:
    kept = {key: value for key, value in table.items() if _ours.get(key) != value}
    return dict(sorted({**entries, **kept}.items()))


def _watch(compiler: Any) -> None:
    """Sees every kernel that this process makes ready, whether generated now or cached; made once, for good."""
    stock = compiler.triton
    if getattr(stock, "watched", False):
        return

    @functools.wraps(stock)
    def triton(self: Any, kernel_name: str, source_code: str, *args: Any, **kwargs: Any) -> Any:
        return stock(self, kernel_name, _asked(kernel_name, source_code), *args, **kwargs)

    triton.watched = True  # type: ignore[attr-defined]
    compiler.triton = triton


def _asked(name: str, source: str) -> str:
    """Counts a kernel; the text of one that a row answers says that its config is settled."""
    if not _wanted():
        return source
    kernel = plain_name(name)
    parts = parts_of(source)
    offer = _offers.get(key_of(*parts)) if parts else None
    head, jit, rest = source.partition(JIT)
    reason = _why_not(offer, head) if offer is not None else f"no active pack has a row for this kernel ({name})"
    if offer is not None and reason:
        ACTIVE.warn_once(f"{kernel}: {reason}")
        _withdraw(offer.table.source_hash)  # before Inductor looks
        offer = None
    ACTIVE.asked.update(
        (t.kernel, t.digest)
        for a in ACTIVE.activations
        for t in a.pack.tables
        if t.layer == LAYER and t.kernel == kernel and (offer is None or t.source_hash == offer.table.source_hash)
    )
    if offer is None:
        lines = "\n".join(f"  {line}" for line in (reason, *ACTIVE.refused.get(kernel, ())))
        ACTIVE.miss(kernel, Problem(dims=FrozenMap(size_hints=parts[0] if parts else "")), lines).graphs += 1
        return source
    ACTIVE.hits.setdefault((kernel, offer), Tally()).graphs += 1
    if _is_mixed(offer.row.config):
        head = pinned(head, _flat(offer.row.config)) or head
    for before, after in _SETTLED.items():
        head = head.replace(before, after)
    return head + jit + rest


def _why_not(offer: Offer, head: str) -> str:
    """Why a kernel cannot have the config of its row, as what precedes its text tells; empty if it can."""
    config = offer.row.config
    sizes = _flat(config)
    if _is_mixed(config) and pinned(head, sizes) is None:
        return f"{config} is for another {SPLIT}, which this kernel's host code has fixed"
    small = [f"{name} >= {least}" for name, least in least_blocks(head).items() if sizes.get(name, least) < least]
    if small:
        return f"{config} is too small: the kernel's text needs {', '.join(small)}"
    withdrawn = not _is_mixed(config) and offer.table.source_hash not in _ours
    return f"{config} is not used any more: another kernel of this text needs larger blocks" if withdrawn else ""
