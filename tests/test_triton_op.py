"""Kernels inside `torch.library.triton_op`: what torch.compile captures of them, traced without Dynamo, obeys the pack.

Nothing is launched: the compiler behind the tracing keeps the configs that were captured.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
import torch
import triton
from functorch.compile import make_boxed_func
from runtime_kernels import LADDER, SM_90, foreign, make_pack, own
from torch._dynamo.backends.common import aot_autograd
from torch._higher_order_ops.triton_kernel_wrap import kernel_side_table

from tunefarm.runtime.activation import activate, deactivate, install
from tunefarm.runtime.reporting import report

pytestmark = pytest.mark.filterwarnings("default")  # torch warns that it cannot analyse a kernel without a GPU


def operator(kernel: Any) -> Any:
    @torch.library.triton_op(f"tunefarm_tests::{kernel.base_fn.__name__}", mutates_args={})
    def twice(x: torch.Tensor) -> torch.Tensor:
        y = torch.empty_like(x)
        n = x.numel()
        torch.library.wrap_triton(kernel)[lambda meta: (triton.cdiv(n, meta["BLOCK"]),)](x, y, n)
        return y

    return twice


OPERATORS = {"own": operator(own), "foreign": operator(foreign)}


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    deactivate()
    torch._dynamo.reset()
    yield
    deactivate()


def capturing(captured: list[list[int]]) -> Callable[..., Any]:
    """A compiler that keeps the BLOCKs captured for each kernel, and answers with empty tensors."""

    def compiled(graph: Any, inputs: Sequence[Any]) -> Any:
        for node in graph.graph.nodes:
            if "triton_kernel_wrapper" in str(node.target):
                kernel: Any = kernel_side_table.get_kernel(node.kwargs["kernel_idx"])
                captured.append([config.kwargs["BLOCK"] for config in kernel.configs])
        (outputs,) = graph.graph.output_node().args
        is_tensor = [isinstance(node.meta["val"], torch.Tensor) for node in outputs]

        def run(*args: Any) -> list[Any]:
            x = next(arg for arg in args if isinstance(arg, torch.Tensor))
            return [torch.empty_like(x) if each else x.numel() for each in is_tensor]

        return make_boxed_func(run)

    return aot_autograd(fw_compiler=compiled)


@pytest.mark.parametrize("name", OPERATORS)
@pytest.mark.parametrize("dynamic", [False, True])
def test_the_row_of_each_size_is_captured(name: str, dynamic: bool) -> None:
    kernel = {"own": own, "foreign": foreign}[name]
    install(foreign)
    activate(make_pack(kernel, *LADDER), device=SM_90)
    captured: list[list[int]] = []
    function = torch.compile(lambda x: OPERATORS[name](x) + 0, backend=capturing(captured), dynamic=dynamic)
    for n in (256, 512, 1024):
        function(torch.zeros(n))
    assert captured == [[128], [256], [512]]
    assert report().num_misses == 0
    function(torch.zeros(320))  # in the range of the first
    assert captured == ([[128], [256], [512]] if dynamic else [[128], [256], [512], [128]])


def test_a_miss_is_the_default() -> None:
    activate(make_pack(own, *LADDER), device=SM_90)
    captured: list[list[int]] = []
    torch.compile(lambda x: OPERATORS["own"](x) + 0, backend=capturing(captured), dynamic=False)(torch.zeros(1 << 16))
    assert captured == [[64]]
    assert report().num_misses > 0
