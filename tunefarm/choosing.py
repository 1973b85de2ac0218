"""How Inductor is told which implementation of a matrix product to use: all that touches its private parts.

Inductor asks its choices handler for candidates, and times them if there are several. Ours answers each product of a
GPU with one: its template under a given config, or the library's call. Nothing is timed. It works in every thread, so
in the one too in which a backward is compiled later.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from tunefarm.config import LIBRARY, Config
from tunefarm.errors import UserError
from tunefarm.gemm import TEMPLATES, Gemm, gemm_of
from tunefarm.settings import default, forget, set_default

BACKENDS = "ATEN,TRITON"
_KEY = "__torchinductor_choices_of_tunefarm"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Answer:
    """What is used for a product.

    Attributes:
        config: of its template, or `LIBRARY` for the library's call.
        failed: is told why the template cannot be compiled so, which is tried before it is used; None where it is not,
            as it is known that it can.
    """

    config: Config
    failed: Callable[[Exception], None] | None = None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Chooser:
    """Who says what is used.

    Attributes:
        answer: (product, index of its GPU, whether this is the one time that it counts) -> what is used, or None for
            the library's call.
        identity: part of the key under which Inductor caches graphs: equal ones mean equal answers.
    """

    answer: Callable[[Gemm, int | None, bool], Answer | None]
    identity: Callable[[], str]


_choosers: list[Chooser] = []
_undo: list[Callable[[], None]] = []
_lock = threading.Lock()


def choose(chooser: Chooser) -> Callable[[], None]:
    """Lets a chooser answer from now on, in all threads; the latest one does.

    Returns:
        What ends that, and gives Inductor its own settings back when nobody is left.

    Raises:
        UserError: this torch has not what it takes, or the program has set a choices handler of its own.
    """
    with _lock:
        if not _choosers:
            if reason := obstacle():
                raise UserError(f"Inductor cannot be told what to use: {reason}", hint="use another release of torch")
            _undo.extend(_put())
        _choosers.append(chooser)
        refresh()

    def end() -> None:
        with _lock:
            if chooser in _choosers:
                _choosers.remove(chooser)
            while not _choosers and _undo:
                _undo.pop()()

    return end


def refresh() -> None:
    """Takes note that a chooser's answers may have changed: graphs that were cached before are not taken any more."""
    from torch._inductor import config

    if not hasattr(config, "_cache_config_factory_keys") and _choosers:
        # An older Inductor asks no handler for a part of its key. This setting is one, and nobody reads it by our name.
        set_default("lookup_table.table", {"tunefarm": [{"digest": _choosers[-1].identity()}]})
    forget()


def template_hash(op: str) -> str:
    """Hash of the text of Inductor's template for an operation; empty if it has none."""
    return str(getattr(template_of(op), "src_hash", "") or "")


def template_of(op: str) -> Any:
    """Inductor's template for an operation."""
    from torch._inductor.kernel.bmm import bmm_template
    from torch._inductor.kernel.mm import mm_template

    return bmm_template if TEMPLATES[op] == "bmm" else mm_template


def obstacle() -> str:
    """Why Inductor cannot be told what to use; empty if it can, or already is."""
    import torch
    from torch._inductor import choices, config, select_algorithm, virtualized

    if _choosers:
        return ""
    settings = getattr(config, "_config", {})
    missing = [
        name
        for name, is_there in {
            "config.max_autotune_gemm": "max_autotune_gemm" in settings,
            "config.inductor_choices_class": "inductor_choices_class" in settings,
            "choices._finalize_template_configs": hasattr(choices.InductorChoices, "_finalize_template_configs"),
            "select_algorithm.add_preprocessing_fn": hasattr(select_algorithm, "add_preprocessing_fn"),
            "virtualized._choices": hasattr(getattr(virtualized, "_choices", None), "_key"),
            "the hash of a template": bool(template_hash("mm")),
        }.items()
        if not is_there
    ]
    if missing:
        return f"torch {torch.__version__} has no {', '.join(missing)}"
    own = getattr(virtualized.threadlocal, virtualized._choices._key, None)
    if config.inductor_choices_class is not None or type(own) not in (type(None), choices.InductorChoices):
        return "the program has set a choices handler of its own"
    return ""


def _put() -> Iterator[Callable[[], None]]:
    """Puts handler and settings in place for all threads; yields what undoes each step."""
    from torch._inductor import config, select_algorithm, virtualized

    settings = {
        "max_autotune_gemm": True, "max_autotune_gemm_backends": BACKENDS, "inductor_choices_class": _make_handler,
        **({} if hasattr(config, "_cache_config_factory_keys") else {"lookup_table.table": None}),
    }  # fmt: skip
    for name, value in settings.items():
        yield functools.partial(set_default, name, default(name))
        set_default(name, value)
    # Each thread keeps the handler that it first saw, under this name.
    held: Any = virtualized._choices
    yield functools.partial(setattr, held, "_key", held._key)
    held._key = _KEY
    cache: Any = select_algorithm.get_algorithm_selector_cache()
    if _only_one not in cache.preprocessing_fns:
        select_algorithm.add_preprocessing_fn(_only_one)


def _make_handler() -> Any:
    return _handler()()


@functools.cache
def _handler() -> Any:
    from torch._inductor import config
    from torch._inductor.choices import InductorChoices

    class Choices(InductorChoices):
        """Asks the chooser."""

        def uuid(self) -> str:
            return f"tunefarm {_choosers[-1].identity()}" if _choosers else "none"

        def get_conv_configs(self, *args: Any, **kwargs: Any) -> Any:
            if _choosers and not config.max_autotune:
                return lambda *args, **kwargs: iter(())
            return super().get_conv_configs(*args, **kwargs)

        def get_depthwise_conv_configs(self, *args: Any, **kwargs: Any) -> Any:
            if _choosers and not config.max_autotune:
                return []
            return super().get_depthwise_conv_configs(*args, **kwargs)

        def _need_to_fix_layout(self, adjusted_choices: Any, op_name: str) -> bool:
            # A library's call alone keeps the freedom that it has without autotuning.
            if _choosers and not config.max_autotune and not any(isinstance(c, _chosen()) for c in adjusted_choices):
                return op_name not in ("mm", "addmm")
            return bool(super()._need_to_fix_layout(adjusted_choices, op_name))

        def _finalize_template_configs(
            self, template_choices: Any, kernel_inputs: Any, templates: Any, op_name: str, *args: Any, **kwargs: Any
        ) -> Any:
            with_library = "ATEN" in config.max_autotune_gemm_backends.upper()
            if _choosers and with_library and kernel_inputs.device_type == "cuda":
                overrides = args[0] if args else kwargs.get("kwarg_overrides")
                return _answered(template_choices, kernel_inputs, templates, op_name, overrides)
            return super()._finalize_template_configs(
                template_choices, kernel_inputs, templates, op_name, *args, **kwargs
            )

    return Choices


def _answered(made: Any, inputs: Any, templates: Sequence[Any], op: str, overrides: Any) -> list[Any]:
    """The library's call where Inductor offers it here, and before it the template if it was chosen.

    For addmm Inductor asks for one and then for the other; `_only_one` sees both.
    """
    from torch._inductor.select_algorithm import ExternKernelChoice

    library = [first for t in templates if isinstance(t, ExternKernelChoice) for first in _first(made[t.uid])][:1]
    template = next((t for t in templates if op in TEMPLATES and t is template_of(op)), None)
    if op not in TEMPLATES or not (library or template):
        return library
    gemm = gemm_of(inputs, op, overrides)
    answer = _choosers[-1].answer(gemm, inputs.device().index, bool(library))
    if answer is None or answer.config == LIBRARY or template is None:
        return library
    return [*(_with(base, answer, gemm) for base in _first(made[template.uid])), *library]


def _first(choices: Any) -> list[Any]:
    return [choice for choice in (next(iter(choices), None),) if choice is not None]


def _with(base: Any, answer: Answer, gemm: Gemm) -> Any:
    """A template's choice under a config; what the config does not say is as Inductor has it for this call."""
    depth = answer.config.params["BLOCK_K"]
    assert isinstance(depth, int)
    size = gemm.problem.dims["K"]
    assert isinstance(size, int)
    # Inherited from another config this would leave out the mask of the last block.
    params = {**base.params.to_kwargs(), **answer.config.flat, "EVEN_K": size % depth == 0}
    chosen = _chosen()(
        template=base.template, params=type(base.params)(params), extra_kwargs=base.extra_kwargs, layout=base.layout,
        inputs=base.inputs,
    )  # fmt: skip
    chosen.failed = answer.failed
    return chosen


@functools.cache
def _chosen() -> Any:
    from torch._inductor.kernel_template_choice import KernelTemplateChoice

    class Chosen(KernelTemplateChoice):
        """A choice that `_only_one` knows again."""

        failed: Callable[[Exception], None] | None = None

        @property
        def choice(self) -> Any:
            made: Any = super().choice
            if made is not None:
                made.is_chosen, made.failed = True, self.failed
            return made

    return Chosen


def _only_one(choices: list[Any]) -> list[Any]:
    """Of several choices the chosen one; else the library's, unless the program wants them timed: then all."""
    from torch._inductor import config
    from torch._inductor.select_algorithm import ExternKernelCaller, TritonTemplateCaller

    if not _choosers or len(choices) < 2:
        return choices
    chosen = [choice for choice in choices if getattr(choice, "is_chosen", False)]
    if chosen and _compiles(chosen[0]):
        return chosen[:1]
    choices = [choice for choice in choices if choice not in chosen]
    libraries = [choice for choice in choices if isinstance(choice, ExternKernelCaller)]
    plain = all(isinstance(choice, ExternKernelCaller | TritonTemplateCaller) for choice in choices)
    return libraries[:1] if libraries and plain and not config.max_autotune else choices


def _compiles(choice: Any) -> bool:
    """Whether a chosen template can be used; whoever chose it is told if not.

    What is tried is the template without what Inductor will fuse into it, in this process and for its GPU. Without a
    GPU nothing will be launched, and nothing is tried.
    """
    import torch

    if choice.failed is None or not torch.cuda.is_available():
        return True
    try:
        choice.precompile()
    except Exception as error:
        failure = error
    else:
        return True
    choice.failed(failure)
    return False
