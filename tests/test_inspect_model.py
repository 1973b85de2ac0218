"""How torch.compile takes functions apart, without a GPU: ten that break their graph are told of rightly."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent
STORE = Path(os.environ.get("TUNEFARM_CACHE", Path.home() / ".cache" / "tunefarm"))
FILE = "broken_graphs.py"

# By function: the line that breaks, a word of why, graphs that are compiled, whether values had to be there for that,
# and whether the whole function is run without being compiled.
CORPUS: dict[str, tuple[str, str, int, bool, bool]] = {
    "data_dependent_branch": ("if y.sum() > 0:", "Data-dependent branching", 2, True, False),
    "printing": ('print("halfway", y.shape)', "builtin operator `print`", 2, False, False),
    "item": ("scale = x.abs().max().item()", "Tensor.item()", 2, True, False),
    "dynamic_shape": ("found = torch.nonzero(x)", "Dynamic shape operator", 1, True, False),
    "disabled": ("y = _slow(x + 1)", "torch.compiler.disable", 2, False, False),
    "logging_a_line": ('logger.warning("hello")', "logging", 1, False, False),
    "extension": ("size = len(pickle.dumps(3))", "_pickle.dumps", 1, False, False),
    "tolist": ("first = y[0].tolist()", "tolist()", 2, True, False),
    "explicit": ("torch._dynamo.graph_break()", "graph_break()", 2, False, False),
    "in_a_loop": ("os.getpid()", "posix.getpid", 0, False, True),
}


def run(*words: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "TUNEFARM_CACHE": str(STORE), "PYTHONPATH": f"{HERE.parent}:{HERE}"}
    command = [sys.executable, *words]
    return subprocess.run(command, capture_output=True, text=True, env=environment, check=False, cwd=HERE)


@cache
def dissected() -> dict[str, Any]:
    """All at once: a process needs seconds to begin."""
    done = run("dissected.py", FILE, str(STORE), *CORPUS, "whole")
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.mark.parametrize("name", CORPUS)
def test_a_break_is_told_with_its_line_and_reason(name: str) -> None:
    line, why, num_graphs, needs_values, is_eager = CORPUS[name]
    found = dissected()[name]
    (broken,) = found["breaks"]
    text = (HERE / FILE).read_text().splitlines()
    assert Path(broken["file"]).name == FILE
    assert text[broken["line"] - 1].strip() == broken["text"] == line
    assert why in f"{broken['reason']} {broken['explanation']}"
    assert broken["is_eager"] is is_eager
    assert broken["hints"]
    assert len(found["graphs"]) == num_graphs
    assert bool(found["unseen"]) is needs_values
    if not needs_values:
        assert len(found["lowered"]) == num_graphs == len({kernel["graph"] for kernel in found["kernels"]})


def test_what_is_one_graph_is_told_with_what_is_fused() -> None:
    found = dissected()["whole"]
    assert found["breaks"] == []
    assert found["unseen"] == ""
    (graph,) = found["graphs"]
    assert graph["ops"] == {"layer_norm": 1, "relu": 1, "matmul": 1}
    (lowered,) = found["lowered"]
    assert lowered["ops"]["mm.default"] == 1
    assert (lowered["backward"], lowered["uncacheable"]) == (False, "")
    (kernel,) = found["kernels"]
    assert kernel["ops"] == ["aten.native_layer_norm", "aten.relu"]
    assert found["library_calls"] == 1


def test_the_command_tells_of_forward_and_backward(tmp_path: Path) -> None:
    done = run("-m", "tunefarm.cli", "inspect", "--model", "harvested.py:gated_norm")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0].startswith("harvested.py:gated_norm for sm_90: 1 graph, 0 breaks, ")
    assert any(line.startswith("lowered 1, forward: ") for line in lines)
    assert any(line.startswith("lowered 2, backward: ") for line in lines)
    assert any(line.startswith("    triton_per_fused_") and "aten.silu" in line for line in lines)
    done = run("-m", "tunefarm.cli", "inspect", "--model", "harvested.py:gated_norm", "--out", str(tmp_path))
    names = ["graph.1.py", "lowered.1.py", "lowered.2.py"]
    assert done.stdout.split() == [str(tmp_path / name) for name in names]
    assert "torch.rsqrt" in (tmp_path / "graph.1.py").read_text()
    assert "torch.ops.aten.rsqrt" in (tmp_path / "lowered.1.py").read_text()


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ((), "nothing to inspect is named (name an experiment file, or --model FILE.py:FUNCTION)"),
        (("x.yaml", "--model", "a.py:b"), "both an experiment and a model are named"),
        (("--model", f"{FILE}:whole", "--study", "1"), "are about an experiment"),
        (("--model", f"{FILE}:nothing"), "broken_graphs.py has no 'nothing'"),
        (("--model", f"{FILE}:raising"), "broken_graphs.py:raising raised ValueError: no such model"),
        (("--model", f"{FILE}:of_one"), "returned function, not (callable, inputs)"),
        (("--model", f"{FILE}:CORPUS"), "is a tuple, not a function"),
        (("--model", f"{FILE}:whole", "--device", "sm_75"), "device 'sm_75' is not known"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_what_is_no_use(words: tuple[str, ...], says: str) -> None:
    done = run("-m", "tunefarm.cli", "inspect", *words)
    assert done.returncode == 2
    assert done.stderr.startswith("error: ")
    assert says in done.stderr
