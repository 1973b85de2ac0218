"""A job without a GPU: activates a pack, runs torch.compile, and prints which configs Inductor gives its kernels.

python job_on_shapes.py FUNCTION PACK CACHE
"""

from __future__ import annotations

import importlib
import json
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any

from tunefarm.device import nominal
from tunefarm.inductor import standin


def main(function: str, pack: str, cache: str) -> None:
    standin.prepare(Path(cache))
    import harvested
    import torch
    from torch._inductor.async_compile import AsyncCompile
    from torch._inductor.runtime import triton_heuristics
    from torch._subclasses.fake_tensor import FakeTensorMode

    from tunefarm.inductor import harvest
    from tunefarm.runtime.activation import activate
    from tunefarm.runtime.reporting import report

    seen: dict[str, Any] = {}
    folder = tempfile.mkdtemp()
    sys.path.insert(0, folder)

    def load(self: Any, name: str, source: str, *_: Any, **__: Any) -> Any:
        """Makes Inductor's autotuner as the processes that compile do; what needs a driver is left out."""
        file = Path(folder, f"{name}.py")
        file.write_text(source.replace("triton_helpers.set_driver_to_gpu()", ""))
        module = importlib.import_module(name)
        made = getattr(module, name)
        assert isinstance(made, triton_heuristics.CachingAutotuner)
        seen[name] = {
            "thread": threading.current_thread() is threading.main_thread(),
            "configs": [{**c.kwargs, "num_warps": c.num_warps, "num_stages": c.num_stages} for c in made.configs],
            "scales": made._could_rblock_scale if hasattr(made, "_could_rblock_scale") else None,
        }
        return lambda *_, **__: None

    # Before activation, which wraps what stands there.
    AsyncCompile.triton = load
    activate(pack, device=nominal("sm_90"))
    with standin.standing_in(nominal("sm_90")), FakeTensorMode(allow_non_fake_inputs=True):
        with torch.device("cuda"):
            call, inputs = getattr(harvested, function)()
        with torch._inductor.config.patch(fx_graph_cache=False):
            harvest._backward(torch.compile(call, backend=harvest._backend)(*inputs))
    told = report()
    print(json.dumps({"kernels": seen, "hits": told.num_hits, "misses": told.num_misses}))


if __name__ == "__main__":
    main(*sys.argv[1:])
