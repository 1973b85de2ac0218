"""Kernels inside `torch.export`, from which AOTInductor packages: one config is captured, and the range that it is for.

Nothing is launched: what is looked at is the exported program.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
import triton
from runtime_kernels import LADDER, SM_90, make_pack, own
from test_triton_op import OPERATORS, capturing
from torch._dynamo.exc import UserError
from torch._higher_order_ops.triton_kernel_wrap import kernel_side_table
from torch.export import Dim, ExportedProgram, export

from tunefarm.runtime.activation import activate, deactivate
from tunefarm.runtime.reporting import report

pytestmark = pytest.mark.filterwarnings("default")  # torch warns that it cannot analyse a kernel without a GPU


@pytest.fixture(autouse=True)
def active(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr("torch.utils._triton.has_triton", lambda *_: True)
    deactivate()
    torch._dynamo.reset()
    activate(make_pack(own, *LADDER), device=SM_90)
    yield
    deactivate()


class Double(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.empty_like(x)
        n = x.shape[0]
        own[lambda meta: (triton.cdiv(n, meta["BLOCK"]),)](x, y, n)
        return y


class ByOperator(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> Any:
        return OPERATORS["own"](x) + 0


def blocks(program: ExportedProgram) -> list[list[int]]:
    kernels: list[Any] = [
        kernel_side_table.get_kernel(node.kwargs["kernel_idx"])  # type: ignore[arg-type]
        for node in program.graph.nodes
        if "triton_kernel_wrapper" in str(node.target)
    ]
    return [[config.kwargs["BLOCK"] for config in kernel.configs] for kernel in kernels]


@pytest.mark.parametrize(("n", "block"), [(256, 128), (512, 256), (1024, 512), (4096, 64)])
def test_static_shapes_take_their_row(n: int, block: int) -> None:
    assert blocks(export(Double(), (torch.zeros(n),), strict=True)) == [[block]]
    assert report().num_hits == (n != 4096)


@pytest.mark.parametrize("n", [256, 512])
def test_an_operator_stays_whole_and_takes_its_row_when_the_program_is_compiled(n: int) -> None:
    program = export(ByOperator(), (torch.zeros(n),), strict=False)
    assert blocks(program) == []
    captured: list[list[int]] = []
    torch.compile(program.module(), backend=capturing(captured), dynamic=False)(torch.zeros(n))
    assert captured == [[n // 2]]


def test_a_dim_without_limits_gets_those_of_the_row() -> None:
    """The one config in the program must not be used where another is right."""
    program = export(Double(), (torch.zeros(256),), dynamic_shapes={"x": {0: Dim.DYNAMIC}}, strict=True)
    assert blocks(program) == [[128]]
    (limits,) = program.range_constraints.values()
    assert (limits.lower, limits.upper) == (129, 362)


def test_limits_wider_than_the_row_are_refused_with_those_that_would_do() -> None:
    with pytest.raises(UserError, match=r"(?s)129 <= .* <= 362.*max=22"):
        export(Double(), (torch.zeros(256),), dynamic_shapes={"x": {0: Dim("n", min=32, max=2000)}}, strict=True)
