"""A production call on the CPU, under Triton's interpreter: for processes that were started with TRITON_INTERPRET=1."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tunefarm.bench.launch import call
from tunefarm.bench.tensors import make_inputs
from tunefarm.bench.verify import Tolerance, flatten, mismatch, poisoned, reference_outputs, sum_length
from tunefarm.config import Config, Value
from tunefarm.runtime.autotuner import autotuners
from tunefarm.runtime.kernels import triton_config
from tunefarm.spec.workload import WorkloadRef, load_workload
from tunefarm.trial import Failure


def failures(ref: WorkloadRef, variables: Mapping[str, Value], configs: Sequence[Config]) -> list[Failure | None]:
    """For each config, how the outputs of the production call differ from the reference's, or None.

    The config is declared in place of the author's, as the only one: what a kernel without a pack obeys.
    """
    workload = load_workload(ref)
    (tuner,) = autotuners(workload.kernel)
    hook = tuner.configs[0].pre_hook
    inputs = make_inputs(workload, variables, "cpu")
    expected = reference_outputs(workload, inputs)
    flops = workload.flops(**variables) if workload.flops else 0.0
    tolerance = Tolerance(atol=workload.atol, rtol=workload.rtol, length=sum_length(inputs, expected, flops))
    found = []
    for config in configs:
        tuner.configs = [triton_config(config, pre_hook=hook)]
        inputs = make_inputs(workload, variables, "cpu")  # anew: some calls write into them
        with poisoned():
            outputs = call(workload, inputs, config)
        found.append(mismatch(outputs, expected, tolerance))
    return found


def strided_targets(ref: WorkloadRef, config: Config) -> tuple[float, float]:
    """The largest errors of loss and gradient of a cross entropy whose targets are a column of a matrix."""
    import torch

    workload = load_workload(ref)
    (tuner,) = autotuners(workload.kernel)
    tuner.configs = [triton_config(config)]
    logits = torch.randn(5, 1000)
    target = torch.randint(1000, (5, 3))[:, 1]
    expected = workload.reference(logits.clone(), target)
    loss, gradient = (
        (got - right).abs().nan_to_num(float("inf")).max().item()
        for got, right in zip(workload.call(logits, target), expected, strict=True)
    )
    return loss, gradient


def narrow_routing(ref: WorkloadRef, config: Config) -> bool:
    """Whether experts in int32 give the products that the same ones in int64 do; both are right."""
    import torch

    workload = load_workload(ref)
    (tuner,) = autotuners(workload.kernel)
    tuner.configs = [triton_config(config)]
    x, w = torch.randn(12, 32, dtype=torch.float16), torch.randn(4, 48, 32, dtype=torch.float16)
    topk_ids = torch.randint(4, (12, 2))
    wide, narrow = (workload.call(x, w, ids) for ids in (topk_ids, topk_ids.to(torch.int32)))
    return torch.equal(wide, narrow) and torch.allclose(wide, workload.reference(x, w, topk_ids), atol=0.1)


def masked_rows(ref: WorkloadRef, config: Config, mask: str, n_cols: int) -> tuple[float, ...]:
    """The largest error in each output of a softmax or a cross entropy: of rows whose first half is masked and whose
    second lies far below zero, and of one that holds nothing but the least finite number.

    Args:
        ref: the workload.
        config: to run.
        mask: "-inf", or "least": the least finite number of the dtype.
        n_cols: length of the rows.
    """
    import torch

    workload = load_workload(ref)
    (tuner,) = autotuners(workload.kernel)
    tuner.configs = [triton_config(config)]
    least = torch.finfo(torch.float32).min
    x = torch.randn(4, n_cols) - 1000
    x[:, : n_cols // 2] = float("-inf") if mask == "-inf" else least
    x[3] = least
    targets = (torch.tensor([n_cols // 2, n_cols - 1, n_cols // 2, 0]),) if workload.name == "cross_entropy" else ()
    arguments = (x, *targets)
    expected = flatten(workload.reference(*(argument.clone() for argument in arguments)))
    with poisoned():
        found = flatten(workload.call(*arguments))
    return tuple(
        (got - right).abs().nan_to_num(float("inf")).max().item() for got, right in zip(found, expected, strict=True)
    )
