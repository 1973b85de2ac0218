"""`tunefarm harvest`: what torch.compile generates, written down as experiments."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tunefarm.config import counted

if TYPE_CHECKING:
    from tunefarm.device import Device
    from tunefarm.inductor.kernel import Generated

LAYERS_BEFORE = (1, 2)
"""Those whose choices shape what is generated."""


def harvest(
    function: Annotated[str, typer.Argument(help="FILE.py:OBJECT or PACKAGE.MODULE:OBJECT.", show_default=False)],
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder to write experiments to.", show_default=False)],
    device: Annotated[str, typer.Option(help="Arch or name of the GPU to generate for.")] = "sm_90",
    pack: Annotated[Path | None, typer.Option(help="Pack in use while compiling: what it chooses is fused on.")] = None,
    export: Annotated[str, typer.Option(help="Pack that the experiments write to; default: packs/NAME.json.")] = "",
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Run torch.compile on what FUNCTION() returns, (callable, inputs), and write each kernel that Inductor generates,
    and each matrix product, forward and backward, as a module and an experiment. No GPU is needed, nothing is launched.

    Example: tunefarm harvest train.py:block --out harvested/block --device sm_90
    """
    from tunefarm.cli.folders import cache_folder, check_output
    from tunefarm.device import named, nominal
    from tunefarm.inductor import standin

    where = named(device)
    nominal(where.arch)
    check_output(out / "experiment.yaml")
    export = export or f"packs/{out.resolve().name}.json"
    check_output(Path(export))
    # Before anything imports torch.
    standin.prepare(cache_folder())
    if pack is not None:
        from tunefarm.pack_reader import load_pack
        from tunefarm.runtime.activation import activate

        # A job would go on without a damaged one; what is harvested without it would be other kernels.
        activate(load_pack(pack), device=where, layers=LAYERS_BEFORE)
    from tunefarm.inductor.gemms import write_gemms
    from tunefarm.inductor.harvest import harvest as gather

    gathered = gather(function, ".", where, products=pack is None)
    written = [_write(kernel, out, where, export) for kernel in gathered.kernels]
    products = write_gemms(gathered.products, out, archs=[where.arch], export=export)
    left = [*gathered.left, *((reason, counted(number, "call")) for reason, number in products.left_out.items())]
    if as_json:
        told = [{"kernel": name, "reason": reason} for name, reason in left]
        paths = [str(path) for path in products.experiments]
        typer.echo(
            json.dumps({"kernels": written, "products": paths, "left": told, "graph_breaks": list(gathered.breaks)})
        )
        return
    for kernel in written:
        configs = counted(len(kernel["configs"]), "config")
        typer.echo(f"{kernel['experiment']}: {kernel['heuristic']} {kernel['numels']}, {configs} of Inductor's")
    for path in products.experiments:
        typer.echo(f"{path}: matrix products, against the library's call")
    for name, reason in left:
        typer.echo(f"not tuned: {name}: {reason}")
    for reason in gathered.breaks:
        typer.echo(f"note: the graph breaks: {reason.splitlines()[0]}")
    number = len(written) + len(products.experiments)
    typer.echo(f"{counted(number, 'experiment')} in {out}, {counted(len(left), 'kernel')} left")


def _write(kernel: Generated, out: Path, where: Device, export: str) -> dict[str, Any]:
    import torch

    from tunefarm.inductor.writing import write

    out.mkdir(parents=True, exist_ok=True)
    path = write(kernel, out, arch=where.arch, torch=torch.__version__, export=export)
    return {
        "kernel": kernel.name, "key": kernel.key, "experiment": str(path), "heuristic": kernel.heuristic,
        "numels": " ".join(f"{prefix.rstrip('_')}={numel}" for prefix, numel in kernel.numels.items()),
        "configs": [dict(config) for config in kernel.configs],
    }  # fmt: skip
