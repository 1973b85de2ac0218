"""The body of the scripts that `repro` writes; they import nothing of tunefarm, save what the workload's file does."""

from __future__ import annotations

SCRIPT = '''\
import importlib
import importlib.util
import inspect
import math
import sys
from pathlib import Path

import torch
import triton

FACTS

def load(place):
    source, path = place
    folder = str(Path(source).parent) if source.endswith(".py") else FOLDER
    sys.path.insert(0, folder)
    if source.endswith(".py"):
        spec = importlib.util.spec_from_file_location(f"repro_{Path(source).stem}", source)
        found = importlib.util.module_from_spec(spec)
        sys.modules[spec.name] = found
        spec.loader.exec_module(found)
        PARTS.update({word: (found, p[1]) for word, p in PARTS.items() if p[0] == source})
    else:
        found = importlib.import_module(source)
    for name in path.split("."):
        found = getattr(found, name)
    return found


def part(word):
    place = PARTS.get(word)
    if place is None:
        return getattr(WORKLOAD, word, None)
    if isinstance(place[0], str):
        return load(place)
    found = place[0]
    for name in place[1].split("."):
        found = getattr(found, name)
    return found


def filled(shape, spec, device, seed):
    dtype = getattr(torch, spec["dtype"])
    if device == "meta":
        return torch.empty(shape, dtype=dtype, device=device)
    if spec["init"] in ("zeros", "ones"):
        return getattr(torch, spec["init"])(shape, dtype=dtype, device=device)
    if spec["init"] == "arange":
        return torch.arange(math.prod(shape), device=device).reshape(shape).to(dtype)
    generator = torch.Generator(device=device).manual_seed(seed)
    low = spec["low"] or 0.0
    if not dtype.is_floating_point:
        high = 1 if spec["high"] is None else int(spec["high"])
        return torch.randint(int(low), high, shape, generator=generator, device=device).to(dtype)
    wide = dtype if dtype is torch.float64 else torch.float32
    if spec["init"] == "uniform":
        span = (1.0 if spec["high"] is None else spec["high"]) - low
        return (torch.rand(shape, generator=generator, device=device, dtype=wide) * span + low).to(dtype)
    return torch.randn(shape, generator=generator, device=device, dtype=wide).to(dtype)


def make(spec, device, seed):
    if not isinstance(spec, dict):
        return spec
    shape = spec["shape"]
    if spec["layout"] is None:
        tensor = filled(shape, spec, device, seed)
    else:
        strides, offset = spec["layout"]
        count = offset + 1 + sum((size - 1) * stride for size, stride in zip(shape, strides))
        tensor = filled((count if math.prod(shape) else offset,), spec, device, seed)
        tensor = tensor.as_strided(shape, strides, offset)
    if spec["special"] and device != "meta" and tensor.numel():
        for share, value in ((1, math.inf), (2, -math.inf), (3, math.nan)):
            place = torch.unravel_index(torch.tensor(tensor.numel() * share // 4), tensor.shape)
            tensor[place] = torch.tensor(value, device=tensor.device).to(tensor.dtype)
    return tensor


def make_inputs(device):
    if INPUTS is None:
        return dict(WORKLOAD.inputs(device=device, seed=SEED, **VARIABLES))
    return {name: make(spec, device, SEED + position) for position, (name, spec) in enumerate(INPUTS.items())}


def layers(kernel):
    chain = [kernel]
    while hasattr(chain[-1], "fn") and not inspect.isfunction(chain[-1].fn):
        chain.append(chain[-1].fn)
    return chain


def call(inputs):
    wants_config = "config" in inspect.signature(CALL).parameters
    return CALL(**inputs, **({"config": dict(PARAMS)} if wants_config else {}))


def put_config(kernel, launch):
    """The production call launches with this config, as it does in the sweep."""
    *_, inner = chain = layers(kernel)
    entry = next((layer for layer in chain if hasattr(layer, "configs")), chain[0])
    hook = next((c.pre_hook for c in getattr(entry, "configs", ()) if c.pre_hook), None)
    saved = {}

    def enter(*args, grid, warmup=False, **kwargs):
        named = {**inner.signature.bind_partial(*args).arguments, **kwargs, **PARAMS, **OPTIONS}
        if hook is not None:
            hook(dict(named))
        for name in ZERO:
            named[name].zero_()
        for name in RESTORE:
            named[name].copy_(saved.setdefault(name, named[name].clone()))
        if entry is inner:
            return launch(inner, grid, named)
        if hasattr(entry, "configs"):
            return entry.fn.run(grid=grid, warmup=False, **named)
        return type(entry).run(entry, grid=grid, warmup=False, **named)

    if entry is not inner:
        inner.run = lambda *args, grid, warmup=False, **kwargs: launch(
            inner, grid, {**inner.signature.bind_partial(*args).arguments, **kwargs}
        )
    entry.run = enter


def launch_here(inner, grid, named):
    return type(inner).run(inner, grid=grid, warmup=False, **named)


def compile_only(inner, grid, named):
    """Cross-compiles what the launch would run."""
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource
    from triton.compiler.compiler import make_backend
    from triton.runtime.jit import create_function_from_signature

    target = GPUTarget("cuda", ARCH, 32)
    backend = make_backend(target)
    given = {**named, "debug": bool(named.get("debug", inner.debug) or triton.knobs.runtime.debug)}
    given["instrumentation_mode"] = triton.knobs.compilation.instrumentation_mode
    bound, specialization, extra = create_function_from_signature(inner.signature, inner.params, backend)(**given)
    options, signature, constants, attributes = inner._pack_args(backend, given, bound, specialization, extra)
    source = ASTSource(inner, signature, constants, attributes)
    sizes = tuple(grid(dict(bound)) if callable(grid) else grid)
    print(f"grid {sizes}, config {PARAMS | OPTIONS}")
    built = triton.compile(source, target=target, options=dict(options.__dict__))
    print(f"compiled for sm_{ARCH}: {len(built.asm['cubin'])} bytes, {built.metadata.shared} bytes of shared memory")


def flat(value):
    if isinstance(value, torch.Tensor):
        return [value]
    values = value.values() if isinstance(value, dict) else value if isinstance(value, (list, tuple)) else ()
    return [tensor for item in values for tensor in flat(item)]


def widen(value):
    floats = isinstance(value, torch.Tensor) and value.is_floating_point()
    return value.double() if floats else value


def compare(outputs):
    """Prints how far the outputs are from the reference's, computed in double precision; whether they are near."""
    reference = part("reference")
    if not callable(reference):
        told = "there is no reference" if reference is None else "the default's outputs are the reference"
        print(f"{told}: nothing to compare with here")
        return True
    right = True
    wanted = flat(reference(*map(widen, make_inputs("cuda").values())))
    for number, (mine, theirs) in enumerate(zip(flat(outputs), wanted)):
        slack = 10 * torch.finfo(mine.dtype).eps if mine.is_floating_point() else 0
        atol = slack if ATOL is None else ATOL
        rtol = slack if RTOL is None else RTOL
        error = (mine.double() - theirs.double()).abs()
        near = torch.allclose(mine.double(), theirs.double(), atol=atol, rtol=rtol, equal_nan=True)
        print(f"output {number}: greatest error {error.nan_to_num().max().item():.3g}, {'right' if near else 'WRONG'}")
        right = right and near
    return right


WORKLOAD = load(PARTS["workload"]) if "workload" in PARTS else None
CALL, KERNEL = part("call"), part("kernel")

if __name__ == "__main__":
    if not torch.cuda.is_available():
        print("no GPU here: compiled only")
        put_config(KERNEL, compile_only)
        call(make_inputs("meta"))
        sys.exit(0)
    put_config(KERNEL, launch_here)
    inputs = make_inputs("cuda")
    outputs = call(inputs)
    torch.cuda.synchronize()
    right = compare(outputs)
    print(f"{triton.testing.do_bench(lambda: call(inputs)):.5f} ms by triton.testing.do_bench")
    sys.exit(0 if right else 1)
'''
