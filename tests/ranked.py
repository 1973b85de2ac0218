"""Ranks for tests: real processes in a gloo group; each activates what it is told to and says what came of it."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
SIZES = (256, 512, 1024)
TIMEOUT_S = 60


class World:
    """So many ranks that stay for several questions.

    Args:
        folder: where they find each other.
        num_ranks: how many.
        brief_s: time-out of the group `brief`, if there is to be one.
    """

    def __init__(self, folder: Path, num_ranks: int, brief_s: float = 0.0) -> None:
        meeting = f"file://{folder / 'meeting'}"
        self.ranks = [
            subprocess.Popen(
                [sys.executable, __file__, meeting, str(rank), str(num_ranks), str(brief_s)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                env={**os.environ, "PYTHONPATH": str(ROOT)},
            )
            for rank in range(num_ranks)
        ]

    def tell(self, rank: int, **arguments: Any) -> None:
        """Has a rank call `activate`."""
        stdin = self.ranks[rank].stdin
        assert stdin is not None
        stdin.write(json.dumps(arguments) + "\n")
        stdin.flush()

    def hear(self, rank: int) -> dict[str, Any]:
        """What became of it."""
        stdout = self.ranks[rank].stdout
        assert stdout is not None
        answer: dict[str, Any] = json.loads(stdout.readline())
        return answer

    def activate(self, *asked: dict[str, Any]) -> list[dict[str, Any]]:
        """What became of `activate(**asked[rank])`, by rank."""
        for rank, arguments in enumerate(asked):
            self.tell(rank, **arguments)
        return [self.hear(rank) for rank in range(len(asked))]

    def close(self) -> None:
        """Ends them."""
        for rank in self.ranks:
            rank.communicate()


def main(meeting: str, rank: str, num_ranks: str, brief_s: str) -> None:
    """One rank: a line of arguments in, a line of answers out, until there are no more."""
    from datetime import timedelta

    import torch
    import torch.distributed as dist
    from runtime_kernels import SM_90, own

    import tunefarm
    from tunefarm import pack_reader as packs
    from tunefarm.runtime.activation import deactivate
    from tunefarm.runtime.active import log

    dist.init_process_group(
        "gloo", init_method=meeting, rank=int(rank), world_size=int(num_ranks),
        timeout=timedelta(seconds=TIMEOUT_S),
    )  # fmt: skip
    said: list[str] = []
    listener = logging.Handler()
    listener.emit = lambda record: said.append(record.getMessage())  # type: ignore[method-assign]
    log.addHandler(listener)
    halves = [dist.new_group([member]) for member in range(int(num_ranks))]
    dist.barrier()  # so that a brief group is not too brief to be made
    brief = dist.new_group(timeout=timedelta(seconds=float(brief_s))) if float(brief_s) else None
    groups = {
        "brief": brief,
        "true": True,
        "world": dist.group.WORLD,
        "mine": halves[int(rank)],
        "other": halves[int(rank) - 1],
    }
    for line in sys.stdin:
        arguments = json.loads(line)
        if arguments.pop("leave", False):
            break
        said.clear()
        deaf = arguments.pop("deaf", False)
        answer: dict[str, Any] = {"error": "", "digest": "", "configs": []}
        began = time.monotonic()
        try:
            group = groups[arguments.pop("group", "true")]
            source = packs.load_pack(arguments.pop("source")) if deaf else arguments.pop("source")
            packs.VERSIONS = (8, 9) if deaf else (1, 2)
            try:
                pack = tunefarm.activate(source, device=SM_90, group=group, **arguments)
            finally:
                answer["seconds"] = time.monotonic() - began
            answer["digest"] = pack.digest if pack is not None else "none"
            x = torch.zeros(16)
            answer["configs"] = [str(own.config_for(x, x, n)) for n in SIZES]
        except tunefarm.errors.TunefarmError as e:
            answer["error"] = f"{type(e).__name__}: {e}"
        answer |= {"said": list(said), "packs": list(tunefarm.report().packs)}
        deactivate()
        print(json.dumps(answer), flush=True)


def answers(found: Sequence[dict[str, Any]], name: str) -> set[Any]:
    """The different values that ranks gave under a name."""
    return {json.dumps(each[name]) for each in found}


if __name__ == "__main__":
    main(*sys.argv[1:])
