"""`python -m tunefarm.runtime train.py ARGS`: runs a job that knows nothing of tunefarm with packs in use.

    TUNEFARM_PACK=packs/softmax.json python -m tunefarm.runtime train.py --epochs 3
    TUNEFARM_PACK=pkg:mylib/packs python -m tunefarm.runtime -m torch.distributed.run --nproc-per-node 8 train.py

Its Python children, torchrun's and those that multiprocessing spawns, use them too. See `tunefarm.runtime.environment`
for the variables.
"""

from __future__ import annotations

import importlib.util
import os
import runpy
import sys
from pathlib import Path

from tunefarm.errors import TunefarmError, UserError
from tunefarm.runtime.activation import activate
from tunefarm.runtime.active import ACTIVE, log
from tunefarm.runtime.environment import Wishes, wishes
from tunefarm.runtime.sources import PACKAGE, REGISTRY
from tunefarm.runtime.unmodified import adopt_as_made

USAGE = "usage: TUNEFARM_PACK=SOURCE python -m tunefarm.runtime [-m MODULE | SCRIPT] [ARGS ...]"
SITE = str(Path(__file__).parent / "site")


def take_up(wish: Wishes) -> None:
    """Activates what the environment names, for kernels yet to be made.

    Raises:
        TunefarmError: a source is not there, or cannot be used on these terms.
    """
    for source in wish.packs:
        activate(source, on_miss=wish.on_miss, strict=wish.strict, allow_replayed=wish.allow_replayed)
    if ACTIVE.activations:
        adopt_as_made()


def follow() -> None:
    """The same in a child of a job, or as a plugin of vLLM: only if nothing is active yet, and it harms nobody."""
    try:
        wish = wishes()
        if wish.capture:
            from tunefarm.runtime.capturing import capture_into

            capture_into(Path(wish.capture))
        if wish.packs and not ACTIVE.activations:
            take_up(wish)
    except TunefarmError as error:
        log.error("no pack is used: %s", error)


def main(words: list[str]) -> None:
    """Runs a script or a module as Python would.

    Args:
        words: what follows `python -m tunefarm.runtime`.

    Raises:
        UserError: nothing is to be run, or no pack is named.
        TunefarmError: see `take_up`.
    """
    if not words or words[0] in ("-h", "--help"):
        print(f"{__doc__}\n{USAGE}")
        return
    wish = wishes()
    if not wish.packs and not wish.off:
        raise UserError("TUNEFARM_PACK names no pack", hint=USAGE)
    as_module = words[0] == "-m"
    if as_module and len(words) < 2:
        raise UserError("-m is followed by no module", hint=USAGE)
    _check_job(words[as_module], as_module=as_module)
    take_up(wish)
    os.environ |= _for_children(wish)
    sys.argv = words[as_module:]
    sys.path.insert(0, "" if as_module else str(Path(words[0]).resolve().parent))
    if as_module:
        _check_module(words[1])
        runpy.run_module(words[1], run_name="__main__", alter_sys=True)
    else:
        runpy.run_path(words[0], run_name="__main__")


def _check_job(name: str, *, as_module: bool) -> None:
    if as_module:
        # Only the outermost package: looking further imports it, and the kernels in it are yet to be made.
        package = name.partition(".")[0]
        if not package or importlib.util.find_spec(package) is None:
            raise UserError(f"-m {name}: no such module", hint=USAGE)
    elif not Path(name).exists():
        raise UserError("no such file", file=name, hint=USAGE)
    elif Path(name).is_dir() and not Path(name, "__main__.py").exists():
        raise UserError("is a folder without __main__.py", file=name, hint=USAGE)


def python_path() -> str:
    """PYTHONPATH of a process that is to follow its parent: our place comes first, once."""
    entries = [entry for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) if entry and entry != SITE]
    return os.pathsep.join([SITE, *entries])


def _for_children(wish: Wishes) -> dict[str, str]:
    """What children must find in their environment; they may be started in other folders."""
    packs = [p if p.startswith((PACKAGE, REGISTRY)) else str(Path(p).absolute()) for p in wish.packs]
    return {
        "PYTHONPATH": python_path(), "TUNEFARM_PACK": ",".join(packs),
        "TUNEFARM_REPORT": str(Path(wish.report).absolute()) if wish.report else "",
    }  # fmt: skip


def _check_module(name: str) -> None:
    """As far as that is known before it runs; what the packages around it cannot import is the job's own error."""
    try:
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.submodule_search_locations is not None:
            spec = importlib.util.find_spec(f"{name}.__main__")
    except ModuleNotFoundError as e:
        if e.name is not None and not f"{name}.".startswith(f"{e.name}."):
            raise
        spec = None
    if spec is None:
        ACTIVE.clear()  # nothing has run that might have used a pack
        raise UserError(f"-m {name}: no such module, or a package without __main__", hint=USAGE)


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except TunefarmError as error:
        print(f"tunefarm: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
