"""Graph breaks: where torch.compile leaves its graph, and what it says of why."""

from __future__ import annotations

import contextlib
import linecache
import os
import re
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any
from unittest import mock

from tunefarm.errors import InfrastructureError

_EXPLANATION = re.compile(r"^\s*Explanation:\s*(.*)", re.MULTILINE)
_HINT = re.compile(r"^\s*Hint:\s*(.*)", re.MULTILINE)
_LINKS = re.compile(r"\s*\(?(?:For more details.*|see https?://\S+)\)?$")


@dataclass(frozen=True, slots=True, kw_only=True)
class Break:
    """A place at which a function is no longer one graph.

    Attributes:
        file: of the user's code.
        line: number of the line in it.
        text: the line.
        reason: what kind of a break it is, in the compiler's words.
        explanation: what it makes of this one; may be empty.
        hints: what it advises.
        is_eager: the whole function is run without being compiled, because the graph cannot be broken there.
    """

    file: str
    line: int
    text: str
    reason: str
    explanation: str
    hints: tuple[str, ...]
    is_eager: bool


@contextlib.contextmanager
def watching_breaks() -> Iterator[list[Break]]:
    """While active, what torch.compile breaks a graph for is noted, each place and reason once.

    Raises:
        InfrastructureError: this torch does not tell.
    """
    from torch._dynamo import symbolic_convert

    translator = getattr(symbolic_convert, "InstructionTranslatorBase", None)
    real = getattr(translator, "log_graph_break", None)
    if translator is None or real is None:
        raise InfrastructureError("this torch does not say where it breaks graphs", hint="torch 2.11 and later do")
    found: dict[Break, None] = {}

    def note(self: Any, code_options: Any, reason: str, exc: Any) -> None:
        # A break inside a function that was inlined comes by once for each that calls it.
        if not exc.logged:
            found[_read(code_options, reason, exc)] = None
            seen[:] = found
        real(self, code_options, reason, exc)

    seen: list[Break] = []
    with mock.patch.object(translator, "log_graph_break", note):
        yield seen


def _read(code_options: Any, reason: str, error: Any) -> Break:
    import torch

    stack: Sequence[traceback.FrameSummary] = (
        getattr(error, "real_stack", None) or torch._guards.TracingContext.extract_stack()
    )
    library = os.path.dirname(torch.__file__) + os.sep
    users = [frame for frame in stack if not frame.filename.startswith(library)] or list(stack)
    file, line = str(code_options["co_filename"]), int(code_options["co_firstlineno"])
    if users:
        file, line = users[-1].filename, users[-1].lineno or 0
    said = str(getattr(error, "msg", None) or error)
    explanation = _EXPLANATION.search(said)
    return Break(
        file=file, line=line, text=linecache.getline(file, line).strip(),
        reason=next((text.strip() for text in said.splitlines() if text.strip()), type(error).__name__),
        explanation=explanation[1].strip() if explanation else "",
        hints=tuple(dict.fromkeys(_LINKS.sub("", hint).strip() for hint in _HINT.findall(said))),
        is_eager="falling back to eager" in reason,
    )  # fmt: skip
