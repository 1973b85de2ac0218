"""Workload: what the user supplies, the production call and the kernel it launches; and how workers get hold of it."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any, Final

from tunefarm.bundle import Bundle
from tunefarm.config import Config, Value
from tunefarm.device import RECORDED
from tunefarm.errors import SpecError
from tunefarm.frozen import FrozenMap
from tunefarm.source import source_hash
from tunefarm.spec.autotuned import Autotuned, Signature, layers, read_autotuned, signature_of
from tunefarm.spec.constraint import Expression
from tunefarm.spec.grammar import SCALAR, Key, Kind, Node, choice, many, named, nearest, number, section, text
from tunefarm.spec.importing import import_object
from tunefarm.spec.inputs import EXPRESSION, INPUTS, InputSpec

_NAMES = ("key", "ranges", "restore", "zero")

DEFAULTS_OUTPUTS: Final = "default"
"""The reference of a workload whose default config is right by definition."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """A production call, the kernel it launches, and what is needed to try and judge it.

    Attributes:
        call: the production function; called with the inputs by name.
        kernel: the jitted (perhaps autotuned) function that it launches.
        inputs: by argument name of `call` a spec (see `spec.inputs`); or a function (device, seed, **variables) that
            returns tensors and scalars by name.
        reference: called with the inputs by position, in their order; returns the right answer, in higher precision if
            it can. `"default"`: the outputs of the default config are the right ones.
        name: of the workload; the kernel's if left out.
        key: kernel arguments that identify a problem; None for every integer scalar argument.
        ranges: those of them that may range between tuned points; the others are exact.
        atol: absolute tolerance; None for that of the dtype.
        rtol: relative tolerance; None for that of the dtype.
        num_bytes: compulsory memory traffic of one call in bytes, from the problem's variables.
        flops: arithmetic of one call, from the problem's variables.
        restore: kernel arguments whose content is restored before every launch.
        zero: kernel arguments zeroed before every launch.
        tiles: groups of params whose product is the element count of a tensor in the kernel.
        dots: (M, N, K) params of a `tl.dot`.
        default: the config used without tuning; None for the one the production call passes.
        template: hash of the text of Inductor's template that the kernel was made from; empty for a kernel of its own.
            Rows of a pack are then Inductor's (layer 2), under the workload's name and this hash.
        library: for such a kernel the library's call in its place, called with the inputs by name. It is what a job
            does without tuning, and so the default in place of `default`; a row may name it.
        inductor_key: of a kernel that Inductor generated, the key under which it looks up configs: rows go to a table
            that Inductor consults (layer 3), not an autotuner.

    Raises:
        SpecError: the kernel is no importable Triton kernel, the call cannot be called, an input is malformed, or there
            is a library and no template.
    """

    call: Callable[..., Any]
    kernel: Any
    inputs: Mapping[str, Any] | Callable[..., Mapping[str, Any]]
    reference: Callable[..., Any] | str | None = None
    name: str = ""
    key: tuple[str, ...] | None = None
    ranges: tuple[str, ...] = ()
    atol: float | None = None
    rtol: float | None = None
    num_bytes: Callable[..., float] | None = None
    flops: Callable[..., float] | None = None
    restore: tuple[str, ...] = ()
    zero: tuple[str, ...] = ()
    tiles: tuple[tuple[str, ...], ...] = ()
    dots: tuple[tuple[str, str, str], ...] = ()
    default: Config | None = None
    template: str = ""
    library: Callable[..., Any] | None = None
    inductor_key: str = ""

    def __post_init__(self) -> None:
        signature = signature_of(self.kernel)
        if not callable(self.call):
            raise SpecError(f"workload {self.name}: call is not callable", hint="give the production function")
        if self.library is not None and not self.template:
            raise SpecError(
                f"workload {self.name}: a library's call can only win where Inductor chooses",
                key="workload.library", hint="leave library out, or give the template that the kernel was made from",
            )  # fmt: skip
        if isinstance(self.reference, str) and self.reference != DEFAULTS_OUTPUTS:
            raise SpecError(f"workload {self.name}: reference is {self.reference!r}", hint="a function, or 'default'")
        if not callable(self.inputs) and not all(hasattr(spec, "check") for spec in self.inputs.values()):
            object.__setattr__(self, "inputs", INPUTS.read(Node.of(self.inputs, "inputs")))
        object.__setattr__(self, "name", self.name or signature.kernel)
        # Lists are welcome in user code; the fields are frozen either way.
        for name in ("ranges", "restore", "zero"):
            object.__setattr__(self, name, _names(name, getattr(self, name)))
        if self.key is not None:
            object.__setattr__(self, "key", _names("key", self.key))
        object.__setattr__(self, "tiles", tuple(tuple(group) for group in self.tiles))
        object.__setattr__(self, "dots", tuple(tuple(group) for group in self.dots))

    @property
    def signature(self) -> Signature:
        """What the kernel takes."""
        return signature_of(self.kernel)

    @property
    def packed_as(self) -> tuple[str, str, int]:
        """Name, source hash and layer under which a pack keeps its rows."""
        if self.template:
            return self.name, self.template, 2
        if self.inductor_key:
            return self.signature.kernel, self.inductor_key, 3
        return self.signature.kernel, source_hash(self.kernel), 1

    @property
    def jitted(self) -> Any:
        """The jitted function inside the kernel, without autotune and heuristics around it."""
        return layers(self.kernel)[-1]

    @property
    def autotuned(self) -> Autotuned | None:
        """What the kernel's `@triton.autotune` declares, if it has one."""
        return read_autotuned(self.kernel)

    @property
    def compares_with_default(self) -> bool:
        """Whether the default config's outputs are the right ones."""
        return self.reference == DEFAULTS_OUTPUTS

    @property
    def specs(self) -> FrozenMap[InputSpec] | None:
        """The inputs as specs; None when a function makes them."""
        return self.inputs if isinstance(self.inputs, FrozenMap) else None


def _names(what: str, value: Any) -> tuple[str, ...]:
    if isinstance(value, str) or not all(isinstance(name, str) for name in value):
        raise SpecError(f"{what} is {value!r}, not names", key=f"workload.{what}", hint=f"write {what}=('argument',)")
    return tuple(value)


def check_names(workload: Workload) -> None:
    """Checks that every name a workload gives is one of its kernel's.

    Raises:
        SpecError: one is not; the nearest name is suggested.
    """
    signature = workload.signature
    for what in _NAMES:
        for name in getattr(workload, what) or ():
            _check(name, f"workload.{what}", "argument", signature.arguments, signature)
            if name in signature.constexprs and what in ("restore", "zero"):
                raise SpecError(f"{name!r} is a constexpr, not a tensor", key=f"workload.{what}", hint="name a tensor")
    for name in workload.ranges:
        if workload.key is not None and name not in workload.key:
            raise SpecError(
                f"{name!r} may range but does not identify a problem", key="workload.ranges", hint="add it to key"
            )
    for what in ("tiles", "dots"):
        for group in getattr(workload, what):
            for name in group:
                _check(name, f"workload.{what}", "tl.constexpr parameter", signature.constexprs, signature)


def call_parameters(workload: Workload) -> tuple[str, ...] | None:
    """Names under which the production call takes arguments; None if it takes any, or does not say."""
    try:
        parameters = inspect.signature(workload.call).parameters.values()
    except (TypeError, ValueError):
        return None
    if any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters):
        return None
    return tuple(p.name for p in parameters)


def _check(name: str, where: str, what: str, known: Collection[str], signature: Signature) -> None:
    if name not in known:
        raise SpecError(f"{name!r} is no {what} of kernel {signature.kernel}", key=where, hint=nearest(name, known))


@dataclass(frozen=True, slots=True)
class Formula:
    """An expression over a problem's variables, called as `num_bytes` and `flops` are."""

    expression: Expression

    def __call__(self, **variables: Value) -> float:
        """Its value for a problem."""
        return float(self.expression(variables))


_ARGUMENTS: Kind[tuple[str, ...]] = many(text(means="an argument's name"), unique=True)
_GROUP: Kind[tuple[str, ...]] = many(text(means="a parameter's name"), least=1)
_OBJECT = text(r"^[^:]+:[^:]+$", means="file.py:object or package.module:object")


def _read_dot(node: Node) -> tuple[str, str, str]:
    names = _GROUP.read(node)
    if len(names) != 3:
        raise node.error("the parameters M, N, K of a tl.dot belong here", "write [BLOCK_M, BLOCK_N, BLOCK_K]")
    return names[0], names[1], names[2]


_DOT = Kind(read=_read_dot, schema={**_GROUP.schema, "minItems": 3, "maxItems": 3})


_PATH = text(means="a file, or a pattern of files such as recordings/*.json.gz,")


@dataclass(frozen=True, slots=True, kw_only=True)
class LandscapeSpec:
    """Recorded spaces to replay; its fields are described by their keys."""

    file: Annotated[str, Key(_PATH, "a recording, or a pattern of several, relative to this file")]
    kernel: Annotated[str, Key(text(), "the kernel recorded, where the recording does not name it")] = ""
    device: Annotated[
        str, Key(choice(*sorted(RECORDED)), "the device recorded, where the recording does not name it")
    ] = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadRef:
    """How to get hold of a workload in any process: names only, so that it can be sent to workers.

    Attributes:
        object: names a Workload object; or empty, and call and kernel are given.
        landscapes: what is known of a kernel that is not there; empty for one that is.
        folder: of the experiment file; relative paths start here.
        inputs: specs of the inputs, for a workload given by its parts.
        bundle: its files, under whose name workers are sent them; None where they see the driver's folders.
    """

    call: Annotated[str, Key(_OBJECT, "the production function")]
    kernel: Annotated[str, Key(_OBJECT, "the Triton kernel that it launches")]
    reference: Annotated[str, Key(_OBJECT, "the same in PyTorch, as the right answer")] = ""
    name: Annotated[str, Key(text(), "name of the workload; default: the kernel's")] = ""
    key: Annotated[tuple[str, ...] | None, Key(_ARGUMENTS, "kernel arguments that identify a problem")] = None
    ranges: Annotated[tuple[str, ...], Key(_ARGUMENTS, "those that may range between tuned points")] = ()
    restore: Annotated[tuple[str, ...], Key(_ARGUMENTS, "arguments restored before every launch")] = ()
    zero: Annotated[tuple[str, ...], Key(_ARGUMENTS, "arguments zeroed before every launch")] = ()
    atol: Annotated[float | None, Key(number(low=0), "absolute tolerance")] = None
    rtol: Annotated[float | None, Key(number(low=0), "relative tolerance")] = None
    num_bytes: Annotated[Expression | None, Key(EXPRESSION, "compulsory memory traffic of a call in bytes")] = None
    flops: Annotated[Expression | None, Key(EXPRESSION, "arithmetic of a call")] = None
    tiles: Annotated[tuple[tuple[str, ...], ...], Key(many(_GROUP), "params whose product is a tensor's size")] = ()
    dots: Annotated[tuple[tuple[str, str, str], ...], Key(many(_DOT), "M, N, K params of a tl.dot")] = ()
    default: Annotated[FrozenMap[Value] | None, Key(named(SCALAR, least=1), "the config used without tuning")] = None
    object: str = ""
    landscapes: tuple[LandscapeSpec, ...] = ()
    folder: str = "."
    inputs: FrozenMap[InputSpec] | None = None
    bundle: Bundle | None = None


LANDSCAPE = "landscape"
"""Word of a workload without a kernel: `landscape:FILE`, or the key in its place."""

_LANDSCAPE = section(LandscapeSpec)


def _read_landscape(node: Node) -> LandscapeSpec:
    return _LANDSCAPE.read(node) if isinstance(node.value, FrozenMap) else LandscapeSpec(file=_PATH.read(node))


_LANDSCAPE_OR_PATH = Kind(read=_read_landscape, schema={"anyOf": [_PATH.schema, _LANDSCAPE.schema]})
_LANDSCAPES = many(_LANDSCAPE_OR_PATH, least=1, unique=True)


def _read_landscapes(node: Node) -> tuple[LandscapeSpec, ...]:
    return _LANDSCAPES.read(node) if isinstance(node.value, tuple) else (_read_landscape(node),)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Replayed:
    landscape: Annotated[
        tuple[LandscapeSpec, ...],
        Key(
            Kind(read=_read_landscapes, schema={"anyOf": [_LANDSCAPE_OR_PATH.schema, _LANDSCAPES.schema]}),
            "recorded spaces of one kernel, one a device; in place of the kernel",
        ),
    ]
    default: Annotated[FrozenMap[Value] | None, Key(named(SCALAR, least=1), "the config used without tuning")] = None


_PARTS, _REPLAYED = section(WorkloadRef), section(_Replayed)


def _read_ref(node: Node) -> WorkloadRef:
    if isinstance(node.value, FrozenMap) and LANDSCAPE in node.value:
        replayed = _REPLAYED.read(node)
        return WorkloadRef(call="", kernel="", landscapes=replayed.landscape, default=replayed.default)
    if isinstance(node.value, FrozenMap):
        return _PARTS.read(node)
    if isinstance(node.value, str) and node.value.startswith(f"{LANDSCAPE}:"):
        file = node.value.removeprefix(f"{LANDSCAPE}:").strip()
        if not file:
            raise node.error("landscape: names no file", "write landscape:FILE, or a pattern of files")
        return WorkloadRef(call="", kernel="", landscapes=(LandscapeSpec(file=file),))
    return WorkloadRef(call="", kernel="", object=_OBJECT.read(node))


WORKLOAD: Kind[WorkloadRef] = Kind(read=_read_ref, schema={"anyOf": [_OBJECT.schema, _PARTS.schema, _REPLAYED.schema]})
"""The `workload` of an experiment."""

REPLAYED_SCHEMA = {
    "anyOf": [{"type": "string", "pattern": f"^{LANDSCAPE}:"}, {"type": "object", "required": [LANDSCAPE]}]
}
"""JSON Schema of workloads without a kernel."""


def load_workload(ref: WorkloadRef) -> Workload:
    """Imports a workload; what its kernel's `@triton.autotune` declares completes it.

    The first declared config of an autotuned kernel is its default: the one Triton uses when there is no choice.

    Raises:
        SpecError: something cannot be imported, is missing or is not what it should be.
        Lacking: its files have not been sent to this process.
    """
    workload = _named_workload(ref) if ref.object else _assemble(ref)
    autotuned = workload.autotuned
    if autotuned is None:
        return workload
    return replace(
        workload,
        key=autotuned.key if workload.key is None else workload.key,
        restore=workload.restore or autotuned.restore,
        zero=workload.zero or autotuned.zero,
        default=workload.default or autotuned.configs[0],
    )


def _named_workload(ref: WorkloadRef) -> Workload:
    found = import_object(ref.object, ref.folder, ref.bundle)
    if not isinstance(found, Workload):
        raise SpecError(
            f"{ref.object} is a {type(found).__name__}, not a tunefarm.Workload",
            key="workload",
            hint="name a Workload, or write {call: ..., kernel: ...}",
        )
    return found if ref.inputs is None else replace(found, inputs=ref.inputs)


def _assemble(ref: WorkloadRef) -> Workload:
    parts = {}
    for name in ("call", "kernel", "reference"):
        if reference := getattr(ref, name):
            try:
                parts[name] = import_object(reference, ref.folder, ref.bundle)
            except SpecError as e:
                e.key = e.key or f"workload.{name}"
                raise
    if ref.inputs is None:
        raise SpecError("is missing", key="inputs", hint="a workload given by call and kernel needs inputs")
    signature = signature_of(parts["kernel"])
    return Workload(
        **parts,
        inputs=ref.inputs,
        name=ref.name,
        key=ref.key,
        ranges=ref.ranges,
        restore=ref.restore,
        zero=ref.zero,
        atol=ref.atol,
        rtol=ref.rtol,
        num_bytes=ref.num_bytes and Formula(ref.num_bytes),
        flops=ref.flops and Formula(ref.flops),
        tiles=ref.tiles,
        dots=ref.dots,
        default=None if ref.default is None else signature.config(ref.default),
    )
