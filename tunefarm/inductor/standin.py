"""Stands in for a GPU that is not there: Inductor then generates what it would generate for one, and launches nothing.

Inductor asks for a device's properties only. But tracing a backward wants streams, and folding constants wants memory,
so a process without a GPU gets a device guard that does nothing, and the few elements are kept by the CPU. PyTorch
built without CUDA does not know the device at all: there it is told, which works before it is imported only.
"""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import importlib.metadata
import importlib.util
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

from tunefarm.device import Device
from tunefarm.errors import InfrastructureError, UserError
from tunefarm.occupancy import resident, sm_shared_bytes

_GUARD = r"""
#include <ATen/detail/CUDAHooksInterface.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

namespace {

const c10::Device kDevice(c10::DeviceType::CUDA, 0);

struct Guard final : c10::impl::NoOpDeviceGuardImpl<c10::DeviceType::CUDA> {
  c10::Device exchangeDevice(c10::Device) const override { return kDevice; }
  c10::Device getDevice() const override { return kDevice; }
  c10::Stream getStream(c10::Device) const noexcept override { return c10::Stream(c10::Stream::DEFAULT, kDevice); }
  c10::Stream exchangeStream(c10::Stream stream) const noexcept override { return stream; }
  void record(void**, const c10::Stream&, const c10::DeviceIndex, const c10::EventFlag) const override {}
  void block(void*, const c10::Stream&) const override {}
  bool queryEvent(void*) const override { return true; }
};

struct Hooks final : at::CUDAHooksInterface {
  explicit Hooks(at::CUDAHooksArgs) {}
  bool isBuilt() const override { return true; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return false; }
};

}  // namespace

extern "C" void stand_in(bool with_hooks) {
  static Guard guard;
  c10::impl::device_guard_impl_registry[static_cast<size_t>(c10::DeviceType::CUDA)].store(&guard);
  if (with_hooks) {
    at::CUDAHooksRegistry()->Register(
        "CUDAHooks", [](at::CUDAHooksArgs args) -> std::unique_ptr<at::CUDAHooksInterface> {
          return std::make_unique<Hooks>(args);
        });
  }
}
"""


def has_gpu() -> bool:
    """Whether the driver knows a GPU; nothing is initialised for good, and torch is not asked."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return False
    count = ctypes.c_int(0)
    return driver.cuInit(0) == 0 and driver.cuDeviceGetCount(ctypes.byref(count)) == 0 and count.value > 0


def prepare(cache: Path, compiler: str = "g++") -> None:
    """Makes this process one that can trace for a GPU; with a GPU it can already. Call it before torch is imported.

    Args:
        cache: folder in which what is compiled for this torch is kept.
        compiler: of C++.

    Raises:
        UserError: torch is not installed, or was imported before.
        InfrastructureError: there is no C++ compiler.
    """
    if has_gpu():
        return
    found = importlib.util.find_spec("torch")
    if found is None or found.origin is None:
        raise UserError("torch is not installed", hint="harvesting runs torch.compile: install torch")
    root = Path(found.origin).parent
    without_cuda = not (root / "lib" / "libtorch_cuda.so").exists()
    if without_cuda and "torch" in sys.modules:
        raise UserError("torch was imported already", hint="harvest in a process of its own: tunefarm harvest")
    library = _compiled(root, cache, compiler)
    for name in ("libc10.so", "libtorch_cpu.so"):
        ctypes.CDLL(str(root / "lib" / name), ctypes.RTLD_GLOBAL)
    ctypes.CDLL(str(library)).stand_in(ctypes.c_bool(without_cuda))


def _compiled(root: Path, cache: Path, compiler: str) -> Path:
    version = importlib.metadata.version("torch")
    tag = hashlib.sha256(f"{version} {root} {_GUARD}".encode()).hexdigest()[:16]
    library = cache / "standin" / f"{tag}.so"
    if library.exists():
        return library
    library.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    with tempfile.TemporaryDirectory(dir=library.parent) as folder:
        source, made = Path(folder, "standin.cpp"), Path(folder, "standin.so")
        source.write_text(_GUARD)
        options = ["-O0", "-std=c++20", "-shared", "-fPIC", "-w", f"-I{root / 'include'}", f"-L{root / 'lib'}"]
        command = [compiler, *options, str(source), "-o", str(made), "-ltorch_cpu", "-lc10"]
        try:
            done = subprocess.run(command, capture_output=True, text=True, check=False)
        except OSError as e:
            raise InfrastructureError(
                f"no C++ compiler {compiler} ({e.strerror})", hint="install g++, or harvest where there is a GPU"
            ) from None
        if done.returncode:
            raise InfrastructureError(f"{compiler} failed: {done.stderr[-500:]}", hint="its headers come with torch")
        made.rename(library)
    return library


def _properties(device: Device) -> Any:
    major, minor = device.capability
    max_warps, _ = resident(device)
    return SimpleNamespace(
        name=device.name, major=major, minor=minor, multi_processor_count=device.num_sms, warp_size=device.warp_size,
        total_memory=device.memory_bytes, L2_cache_size=device.l2_bytes, gcnArchName=device.arch,
        regs_per_multiprocessor=device.registers, max_threads_per_multi_processor=max_warps * device.warp_size,
        max_threads_per_block=device.max_threads, shared_memory_per_block=48 << 10,
        shared_memory_per_block_optin=device.shared_bytes, shared_memory_per_multiprocessor=sm_shared_bytes(device),
    )  # fmt: skip


def _on_the_cpu(make: Callable[..., Any]) -> Callable[..., Any]:
    def made(*sizes: Any, dtype: Any = None, **_: Any) -> Any:
        return make(*sizes, dtype=dtype)

    return made


@contextlib.contextmanager
def standing_in(device: Device) -> Iterator[None]:
    """While active, torch says that it has this device, and only this one. With a GPU of the arch nothing is changed.

    Raises:
        UserError: there is a GPU, and it is of another arch.
    """
    import torch

    if torch.cuda.is_available():
        capability = torch.cuda.get_device_capability()
        if capability != device.capability:
            raise UserError(
                f"this machine's GPU is sm_{capability[0]}{capability[1]}, not {device.arch}",
                hint="harvest for its own arch, or hide it: CUDA_VISIBLE_DEVICES=",
            )
        yield
        return
    import torch._inductor.config as inductor
    import torch.utils._triton as support
    from torch._inductor.runtime.hints import DeviceProperties
    from torch._subclasses.fake_tensor import FakeTensorMode

    library: Any = vars(torch.library)["Library"]("aten", "IMPL")
    library.impl("empty.memory_format", _on_the_cpu(torch.empty), "CUDA")
    library.impl("empty_strided", _on_the_cpu(torch.empty_strided), "CUDA")
    properties, state = _properties(device), torch.zeros(16, dtype=torch.uint8)
    said: dict[str, Any] = {
        "is_available": lambda: True, "device_count": lambda: 1, "_initialized": True, "set_device": lambda _: None,
        "_get_device_properties": lambda _: properties, "_exchange_device": lambda _: 0,
        "_maybe_exchange_device": lambda _: 0, "get_rng_state": lambda *_: state, "set_rng_state": lambda *_: None,
    }  # fmt: skip
    clear = getattr(DeviceProperties.create, "cache_clear", lambda: None)
    # Whether it pays to pad a product of odd sizes is found out by timing both.
    with contextlib.ExitStack() as stack, inductor.patch(shape_padding=False):
        for owner, answers in (
            (torch.cuda, said),
            (torch._C, {"_cuda_getDevice": lambda: 0, "_cuda_getCurrentRawStream": lambda _: 0}),
            (torch.accelerator, {"is_available": lambda: False}),
            (support, {"triton_hash_with_backend": lambda: ""}),
            # Tensors of a device that is not there are made on meta throughout.
            (FakeTensorMode, {"avoid_device_init": property(lambda _: True)}),
        ):
            for name, answer in answers.items():
                stack.enter_context(mock.patch.object(owner, name, answer, create=True))
        clear()
        try:
            yield
        finally:
            clear()
            library._destroy()
