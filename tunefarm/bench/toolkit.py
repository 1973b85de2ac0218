"""The vendor's tools that Triton brings along: the disassembler of machine code."""

from __future__ import annotations

import subprocess
import tempfile
from pathlib import Path

from tunefarm.errors import InfrastructureError

_PATIENCE_S = 120.0


def disassemble(cubin: bytes) -> str:
    """The listing of a cubin's code (SASS), with file and line above each instruction of which they are known.

    Raises:
        InfrastructureError: the tool is missing, or cannot read the bytes.
    """
    from triton import knobs

    try:
        tool = str(knobs.nvidia.nvdisasm.path)
    except RuntimeError:  # Triton's word for a tool that it does not find
        raise InfrastructureError(
            "nvdisasm is not installed: no SASS can be read, nor what is counted in it",
            hint="NVIDIA's wheels of Triton bring it; else install the CUDA toolkit, or set TRITON_NVDISASM_PATH",
        ) from None
    with tempfile.TemporaryDirectory(prefix="tunefarm-sass-") as folder:
        file = Path(folder, "kernel.cubin")
        file.write_bytes(cubin)
        try:
            done = subprocess.run(
                [tool, "-c", "-g", str(file)], capture_output=True, text=True, check=False, timeout=_PATIENCE_S
            )
        except (OSError, subprocess.TimeoutExpired) as e:
            raise InfrastructureError(f"nvdisasm cannot be run: {e}") from None
    if done.returncode:
        words = " ".join(done.stderr.replace(str(file), "the cubin").split())
        raise InfrastructureError(f"nvdisasm cannot read the cubin: {words[-300:]}")
    return done.stdout
