"""Dissects functions in a process of its own, as the command does before anything imports torch; prints JSON."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from tunefarm.cli.inspect_model import plain
from tunefarm.device import nominal
from tunefarm.inductor import standin

if __name__ == "__main__":
    file, cache, *names = sys.argv[1:]
    standin.prepare(Path(cache))
    from tunefarm.inductor.dissection import dissect

    print(json.dumps({name: plain(dissect(f"{file}:{name}", ".", nominal("sm_90"))) for name in names}))
