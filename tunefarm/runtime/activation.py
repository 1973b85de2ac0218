"""What training code calls: activate a pack, and install kernels of others.

Standard library only until a kernel is touched.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Collection
from pathlib import Path
from types import ModuleType
from typing import Any

from tunefarm.device import Device
from tunefarm.errors import MissError, PackError, UserError
from tunefarm.pack import LAYERS, Pack, bind
from tunefarm.runtime import generated, templates
from tunefarm.runtime.active import ACTIVE
from tunefarm.runtime.autotuner import adopt, autotuners
from tunefarm.runtime.environment import Wishes, wishes
from tunefarm.runtime.kernels import jitted
from tunefarm.runtime.lookup import POLICIES, Activation
from tunefarm.runtime.plain import adopt_plain, plain_kernels
from tunefarm.runtime.ranks import DISAGREEMENTS, settle
from tunefarm.runtime.reporting import write_at_exit
from tunefarm.runtime.sources import find_packs

DIGEST_DIGITS = 12


def activate(
    source: str | Path | Pack,
    *,
    on_miss: str = "stock",
    strict: bool = False,
    allow_replayed: bool = False,
    device: Device | None = None,
    digest: str = "",
    group: Any = None,
    on_disagreement: str = "error",
    layers: Collection[int] = LAYERS,
) -> Pack | None:
    """Puts a pack into use for kernels marked with `autotune` and for installed ones, now and later.

    Kernels that Inductor generates go their own way where no row answers, whatever `on_miss` and `strict` say; to its
    matrix products both apply, and a miss is the library's call. What it has compiled before stays.

    Of several active packs the later one answers first; its word on misses counts. What torch.compile has compiled
    before is compiled again, except with kernels of Inductor's, not yet installed, or that restore or zero arguments.

    Args:
        source: a pack; the path of one, or of a folder whose `*.json` are packs; `pkg:PACKAGE[/PATH]` for either among
            a package's data; `models:/NAME@ALIAS` or `models:/NAME/VERSION` for one in MLflow's registry.
        on_miss: for a call that no row answers: `stock` (an installed kernel tunes as ever, save on one of many ranks
            and under graph capture; there, and for kernels of our own, as `default`), `default` (the first declared
            config), `nearest` (a row whose ranges, stretched by two, hold the call; else the default) or `error`.
        strict: every call must be answered by a row measured on this device (or its twin), with this Triton and this
            source of the kernel; anything else raises and prints the difference.
        allow_replayed: use rows whose times were replayed from a landscape, not measured.
        device: match against this device in place of the one that holds the tensors.
        digest: the pack's, or its beginning (12 digits at least): another pack is refused.
        group: ranks that must use one pack, all of which call this: a torch.distributed group, or True for the default.
        on_disagreement: of these ranks: `error`, or `rank0` (all take its pack).
        layers: whose tables are used: 1 autotuners', 2 Inductor's templates', 3 its own kernels'.

    Returns:
        The pack in use, those of a folder as one; None if it is damaged, which is logged and otherwise as if there
        were no pack, or if the environment says `TUNEFARM=off`.

    Raises:
        PackError: there is no such file, or its digest is another; with `strict` also if it is damaged.
        MissError: `strict`, and the pack holds replayed rows that are not allowed, or rows that Inductor cannot obey.
        UserError: wrong terms, a package or registry without the source, ranks that disagree on pack or terms.
        InfrastructureError: a rank of `group` could not be reached.
    """
    _check_kinds(source, digest, strict=strict, allow_replayed=allow_replayed)
    _check_terms(on_miss, layers, device, on_disagreement)
    wish = wishes()
    pack, label, stops = _read(source, digest, wish, strict=strict, layers=layers)
    if group is not None:
        said = f"on_miss={on_miss!r}, strict={bool(strict)}, allow_replayed={bool(allow_replayed)}"
        pack, label = settle(pack, label, group, on_disagreement, stops=stops, terms=said)
    if isinstance(pack, UserError):
        if stops and group is None:
            raise pack
        ACTIVE.warn_once(f"no pack is used: {pack}")
        return None
    terms: Any = {"on_miss": on_miss, "strict": strict, "allow_replayed": allow_replayed, "device": device}
    _put_into_use(Activation(pack=pack, label=label, **terms), wish)
    return pack


def _put_into_use(activation: Activation, wish: Wishes) -> None:
    _check_pack(activation)
    ACTIVE.add(activation)
    templates.follow()
    generated.follow()
    if wish.report:
        write_at_exit(wish.report)


def _read(
    source: str | Path | Pack, digest: str, wish: Wishes, *, strict: bool, layers: Collection[int]
) -> tuple[Pack | UserError, str, bool]:
    """A pack, or why there is none; what people call it; and whether the job is not to go on without it.

    Errors are values, as other ranks may have to hear of them.
    """
    if wish.off:
        return PackError("TUNEFARM=off", file=str(source) if not isinstance(source, Pack) else ""), "", False
    try:
        found = find_packs(source, thoroughly=strict)
        if found.pack is not None:
            _check_digest(found.pack, found.label, digest)
    except UserError as error:
        return error, str(source), True
    if found.pack is None or (strict and found.damaged):
        return found.damaged[0], found.label, strict
    for damage in found.damaged:
        ACTIVE.warn_once(f"left out: {damage}")
    return _of_layers(_without(found.pack, found.label, wish.exclude), layers), found.label, False


def _check_kinds(source: Any, digest: Any, **switches: Any) -> None:
    if not isinstance(source, str | os.PathLike | Pack):
        raise UserError(f"source is {source!r}", hint="name a pack, or a folder of packs")
    if not isinstance(digest, str):
        raise UserError(f"digest is {digest!r}", hint="it is text, as `tunefarm pack show` has it; empty for any pack")
    for name, value in switches.items():
        if not isinstance(value, bool):  # "no" would be as good as yes
            raise UserError(f"{name} is {value!r}", hint="it is True or False")


def _check_terms(on_miss: str, layers: Any, device: Any, on_disagreement: str) -> None:
    for name, value, known in (("on_miss", on_miss, POLICIES), ("on_disagreement", on_disagreement, DISAGREEMENTS)):
        if value not in known:
            raise UserError(f"{name} is {value!r}", hint=f"it is one of {', '.join(known)}")
    if not isinstance(device, Device | None):
        raise UserError(f"device is {device!r}", hint="it is a tunefarm.Device, such as a pack's tables[0].device")
    if not isinstance(layers, Collection) or not all(type(layer) is int and layer in LAYERS for layer in layers):
        raise UserError(f"layers is {layers!r}", hint=f"some of {', '.join(map(str, LAYERS))}, such as layers=(1, 3)")


def _check_pack(terms: Activation) -> None:
    templates.check_inductor(terms.pack, strict=terms.strict)
    if "replayed" in terms.pack.sources and not terms.allow_replayed:
        message = f"{terms.label}: its times were replayed from a landscape, not measured"
        if terms.strict:
            raise MissError(message, hint="sweep on a GPU, or pass allow_replayed=True")
        ACTIVE.warn_once(f"{message}: its rows are not used (allow_replayed=True uses them)")


def _without(pack: Pack, label: str, exclude: frozenset[str]) -> Pack:
    """A pack without the tables of some kernels; sealed anew, as a rank that leaves them out chooses otherwise."""
    known = {table.kernel for table in pack.tables}
    excluded = sorted(known & exclude)
    if strange := sorted(exclude - known):
        ACTIVE.warn_once(f"{label}: has no table of {', '.join(strange)}, named in TUNEFARM_EXCLUDE")
    if not excluded:
        return pack
    ACTIVE.warn_once(f"{label}: tables of {', '.join(excluded)} are not used: TUNEFARM_EXCLUDE")
    return bind(table for table in pack.tables if table.kernel not in exclude)


def _of_layers(pack: Pack, layers: Collection[int]) -> Pack:
    """A pack without the tables of other layers; sealed anew, as a rank that leaves them out chooses otherwise."""
    kept = tuple(table for table in pack.tables if table.layer in layers)
    return pack if len(kept) == len(pack.tables) else bind(kept)


def _check_digest(pack: Pack, label: str, digest: str) -> None:
    if digest and len(digest) < DIGEST_DIGITS:
        raise UserError(f"digest {digest!r} is too short", hint=f"give {DIGEST_DIGITS} digits at least")
    if not pack.digest.startswith(digest.lower()):
        raise PackError(f"has digest {pack.digest}, and {digest} was asked for", file=label, hint="take the other pack")


def deactivate() -> None:
    """Takes all packs out of use and forgets what was counted; adopted kernels stay adopted. For tests."""
    ACTIVE.clear()
    templates.follow()
    generated.follow()


def install(target: Any, *, plain: bool = False) -> list[str]:
    """Makes kernels of others obey the active packs, present and to come. Doing it again does nothing.

    A kernel without `@triton.autotune`, whose host code picks block sizes and warps, gets launch options only, in eager
    launches only; a row answers where the host passes the constexprs that it was tuned with.

    Args:
        target: a kernel, or a module or its dotted name: all kernels with `@triton.autotune` on them that stand in it.
        plain: also the kernels without it that the module defines.

    Returns:
        Names of the kernels that obey now, those adopted before included.

    Raises:
        UserError: nothing in `target` is such a kernel.
    """
    if isinstance(target, str):
        if not target or target.startswith("."):
            raise UserError(f"{target!r} is no module", hint="give its whole dotted name")
        try:
            target = importlib.import_module(target)
        except ImportError as e:
            raise UserError(
                f"cannot import {target}: {e}", hint="give a module, its dotted name, or a kernel"
            ) from None
    tuned = {id(tuner): tuner for tuner in autotuners(target)}
    asked = plain or not isinstance(target, ModuleType)
    # One that an autotuner launches has its options from there.
    inner = {id(jitted(tuner)) for tuner in tuned.values()}
    bare = {id(k): k for k in plain_kernels(target) if id(k) not in inner} if asked else {}
    if not tuned and not bare:
        name = getattr(target, "__name__", target)
        if asked:
            raise UserError(f"{name!r} holds no kernel of Triton's", hint="give one, or the module that defines it")
        raise UserError(
            f"{name!r} holds no kernel with @triton.autotune", hint="plain=True installs kernels without it, too"
        )
    for tuner in tuned.values():
        adopt(tuner, owned=False)
    for kernel in bare.values():
        adopt_plain(kernel)
    names = [tuner.base_fn.__name__ for tuner in tuned.values()] + [kernel.fn.__name__ for kernel in bare.values()]
    return sorted(names)
