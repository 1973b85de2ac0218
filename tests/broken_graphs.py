"""Functions that torch.compile does not take for one graph, each for a reason of its own; and one that it does."""

from __future__ import annotations

import logging
import os
import pickle
from collections.abc import Callable
from typing import Any

import torch

logger = logging.getLogger(__name__)
Made = tuple[Callable[..., Any], tuple[Any, ...]]


def _of(function: Callable[..., Any]) -> Callable[[], Made]:
    return lambda: (function, (torch.ones(64, 64),))


def _data_dependent_branch(x: Any) -> Any:
    y = x * 2
    if y.sum() > 0:
        y = y + 1
    return y


def _print(x: Any) -> Any:
    y = x * 2
    print("halfway", y.shape)
    return y + 1


def _item(x: Any) -> Any:
    scale = x.abs().max().item()
    return x * scale


def _dynamic_shape(x: Any) -> Any:
    found = torch.nonzero(x)
    return found.sum()


@torch.compiler.disable
def _slow(x: Any) -> Any:
    return x * 3


def _disabled(x: Any) -> Any:
    y = _slow(x + 1)
    return y + 1


def _logging(x: Any) -> Any:
    logger.warning("hello")
    return x + 1


def _extension(x: Any) -> Any:
    size = len(pickle.dumps(3))
    return x * size


def _tolist(x: Any) -> Any:
    y = x + 1
    first = y[0].tolist()
    return y * first[0]


def _explicit(x: Any) -> Any:
    y = x * 2
    torch._dynamo.graph_break()
    return y + 1


def _in_a_loop(x: Any) -> Any:
    for _ in range(2):
        x = x * 2
        os.getpid()
    return x


def _whole(x: Any) -> Any:
    return torch.nn.functional.layer_norm(x, (64,)).relu() @ x


data_dependent_branch, printing, item, dynamic_shape = map(_of, (_data_dependent_branch, _print, _item, _dynamic_shape))
disabled, logging_a_line, extension, tolist = map(_of, (_disabled, _logging, _extension, _tolist))
explicit, in_a_loop, whole = map(_of, (_explicit, _in_a_loop, _whole))


def raising() -> Made:
    raise ValueError("no such model")


def of_one() -> Any:
    return _whole


CORPUS = ("data_dependent_branch", "printing", "item", "dynamic_shape", "disabled", "logging_a_line", "extension",
          "tolist", "explicit", "in_a_loop")  # fmt: skip
