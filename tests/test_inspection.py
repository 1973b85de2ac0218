"""Figures of compiled kernels: ten of them, for two archs, agree with what the vendor's own tools say."""

from __future__ import annotations

import re
import subprocess
from collections import Counter
from pathlib import Path

import pytest
import triton
from inspected import KERNELS, looked

from tunefarm.bench import sass
from tunefarm.bench.listing import parse_sass
from tunefarm.inspecting import Look

TOOLS = Path(triton.__file__).parent / "backends" / "nvidia" / "bin"
BOTH = pytest.mark.parametrize("arch", ["sm_80", "sm_90"])
ALL = pytest.mark.parametrize("name", KERNELS)

pytestmark = pytest.mark.skipif(not (TOOLS / "cuobjdump").exists(), reason="this Triton brings no cuobjdump")


def said(tool: str, *arguments: str | Path) -> str:
    done = subprocess.run([TOOLS / tool, *arguments], capture_output=True, text=True, check=True)
    return done.stdout + done.stderr


@pytest.fixture
def cubin(look: Look, tmp_path: Path) -> Path:
    path = tmp_path / "kernel.cubin"
    path.write_bytes(look.cubin)
    return path


@pytest.fixture
def look(name: str, arch: str) -> Look:
    return looked(name, arch)


@ALL
@BOTH
def test_figures_agree_with_cuobjdump(look: Look, cubin: Path) -> None:
    text = said("cuobjdump", "-res-usage", cubin)
    found = re.search(r"REG:(\d+) STACK:(\d+) SHARED:(\d+) LOCAL:(\d+) CONSTANT\[0\]:(\d+)", text)
    assert found, text
    usage = look.inspection.usage
    told = usage.registers, usage.stack_bytes, usage.static_bytes, 0, usage.constant_bytes
    assert told == tuple(map(int, found.groups()))


@ALL
@BOTH
def test_figures_agree_with_ptxas(look: Look, arch: str, tmp_path: Path) -> None:
    source = tmp_path / "kernel.ptx"
    source.write_text(look.texts["ptx"])
    target = {"sm_90": "sm_90a"}.get(arch, arch)
    # As Triton calls it.
    text = said(
        "ptxas", "-v", "-lineinfo", "--regAllocOptLevel=2", f"--gpu-name={target}", source, "-o", tmp_path / "out"
    )
    spilled = re.search(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads", text)
    used = re.search(r"Used (\d+) registers, used (\d+) barriers", text)
    assert spilled, text
    assert used, text
    it = look.inspection
    assert (it.usage.stack_bytes, it.spill_store_bytes, it.spill_load_bytes) == tuple(map(int, spilled.groups()))
    assert (it.usage.registers, it.usage.barriers) == tuple(map(int, used.groups()))


@ALL
@BOTH
def test_every_instruction_is_read_and_known(look: Look, cubin: Path) -> None:
    """As many of each opcode as the other disassembler lists; none of a kind that has no name."""
    listed = re.findall(r"/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+ +)?([A-Z][\w.]*)", said("cuobjdump", "-sass", cubin))
    read = Counter(i.opcode for i in parse_sass(look.texts["sass"]).instructions)
    assert read == Counter(opcode for opcode in listed if opcode != "NOP")
    it = look.inspection
    assert it.num_instructions == read.total() == sum(it.kinds.values())
    assert sass.OTHER not in it.kinds


@BOTH
def test_unrolling_is_told_from_the_ptx(arch: str) -> None:
    """The assembler makes four turns of one in `vector_add`; of a `matmul` it leaves one a turn."""
    (loop,) = looked("vector_add", arch).inspection.loops
    assert loop.copies == 4
    assert loop.kinds[sass.GLOBAL_LOAD] == 4 * loop.kinds[sass.GLOBAL_STORE] / 2
    assert str(loop.lines[0]).startswith("vector_add.py:")
    (loop,) = looked("matmul", arch).inspection.loops
    assert loop.copies == 1
    assert loop.kinds[sass.TENSOR] > 0
    assert loop.kinds[sass.ASYNC_COPY] > 0


@BOTH
def test_loops_stand_inside_each_other(arch: str) -> None:
    loops = looked("rope", arch).inspection.loops
    assert [loop.depth for loop in loops] == [0, 1, 1]
    assert loops[0].num_instructions > loops[1].num_instructions + loops[2].num_instructions
    assert dict(looked("rope", arch).inspection.num_loops) == {"ttir": 3, "ttgir": 3, "ptx": 3, "sass": 3}


def test_tensor_instructions_and_copies_are_those_of_the_arch() -> None:
    older, newer = (looked("matmul_tma", arch).inspection for arch in ("sm_80", "sm_90"))
    assert set(older.tensor) == {"HMMA.16816.F32.BF16"}
    assert all(name.startswith("HGMMA.64x") for name in newer.tensor)
    assert not older.tma
    assert {name.partition(".")[0] for name in newer.tma} >= {"UTMALDG", "UTMASTG"}
    assert dict(older.loads) == {"2": 128}
    assert not newer.loads


def test_stages_are_kept_in_order_with_their_seconds() -> None:
    look = looked("softmax", "sm_90")
    assert list(look.texts) == ["ttir", "ttgir", "llir", "ptx", "sass"]
    assert "tt.func public @softmax_kernel" in look.texts["ttir"]
    assert ".target sm_90a" in look.texts["ptx"]
    assert list(look.inspection.stage_s) == ["ast", "ttir", "ttgir", "llir", "ptx", "cubin"]
    assert all(seconds >= 0 for seconds in look.inspection.stage_s.values())
    assert look.inspection.stage_bytes["ptx"] == len(look.texts["ptx"])
