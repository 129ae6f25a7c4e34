"""Settings of the process and the machine: allocator, threads, determinism, device, arithmetic."""

from __future__ import annotations

import ctypes
import functools
import os
import platform
import re
import warnings
import zlib
from typing import TYPE_CHECKING

import torch

from denoised_mdp.errors import UserError
from denoised_mdp.options import DEVICE

if TYPE_CHECKING:
    from denoised_mdp.config.schema import TrainConfig

M_TRIM_THRESHOLD, M_MMAP_MAX = -1, -4


def keep_freed_memory() -> bool:
    """Tell glibc to reuse freed memory instead of returning it to the kernel; True if that is possible.

    By default every large tensor is mapped anew and its pages are faulted in one by one, which costs more than
    the arithmetic on them. Must be called before the first large allocation. The price: memory once used stays
    with the process.
    """
    if platform.libc_ver()[0] != "glibc":
        return False
    libc = ctypes.CDLL(None)
    return bool(libc.mallopt(M_MMAP_MAX, 0) and libc.mallopt(M_TRIM_THRESHOLD, -1))


def has_fast_bf16(device: torch.device) -> bool:
    """Whether bf16 products are faster than float32 ones on this device."""
    if device.type == "cuda":
        return torch.cuda.get_device_capability(device) >= (8, 0)
    capabilities = torch.backends.cpu.get_cpu_capability()
    supported = getattr(torch.cpu, "_is_avx512_bf16_supported", None)
    return capabilities.startswith("AVX512") and supported is not None and supported()


def resolve_device(name: str | torch.device, option: str = "device", otherwise: str = "cpu or auto") -> torch.device:
    """Resolve 'auto', 'cpu', 'cuda' or 'cuda:N' to a device that exists, else raise UserError.

    option: where the name comes from. otherwise: what to choose instead. Both are for the message.
    """
    name = str(name) if isinstance(name, torch.device) else name
    if not isinstance(name, str) or not re.fullmatch(DEVICE, name):
        raise UserError(f"{option} {name}: must be auto, cpu, cuda or cuda:N.")
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    kind, _, index = name.partition(":")
    if kind == "cuda" and not (torch.cuda.is_available() and int(index or 0) < torch.cuda.device_count()):
        raise UserError(f"{option} {name}: PyTorch finds no such GPU here; use {otherwise}.")
    return torch.device(kind, int(index)) if index else torch.device(kind)


def resolve_precision(name: str, device: torch.device, *, deterministic: bool = False) -> torch.dtype | None:
    """Resolve 'auto', 'float32', 'tf32' or 'bf16' to a dtype for `networks.set_compute_dtype` (None: float32)."""
    if name == "auto":
        name = "bf16" if has_fast_bf16(device) and not deterministic else "float32"
    return torch.bfloat16 if name == "bf16" else None


@functools.cache
def _usual_threads() -> int:
    """PyTorch's own number of threads, before a run has set one; a later run in this process may leave it unset."""
    return torch.get_num_threads()


def configure(train: TrainConfig) -> tuple[torch.device, torch.dtype | None]:
    """Apply the configuration's machine settings to this process; return device and compute dtype.

    `train.deterministic` means float32 (unless a precision is set), a fixed number of threads, which decides the order
    of sums, and PyTorch's deterministic algorithms.
    """
    keep_freed_memory()
    device = resolve_device(train.device, "train.device")
    if device.type == "cuda" and device.index is not None:
        torch.cuda.set_device(device)  # events and graphs use the current device's streams
    usual = _usual_threads()  # first: the next line changes PyTorch's number
    torch.set_num_threads(train.threads or (1 if train.deterministic else usual))
    for backend in (torch.backends.cuda.matmul, torch.backends.cudnn):
        backend.allow_tf32 = train.precision == "tf32"  # PyTorch's default allows it in convolutions
    if train.deterministic:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    # torch.use_deterministic_algorithms does the same but imports PyTorch's compiler: as slow as importing PyTorch.
    torch.set_deterministic_debug_mode("error" if train.deterministic else "default")
    if train.precision == "bf16" and not has_fast_bf16(device):
        what = "processor" if device.type == "cpu" else "GPU"
        told = f"train.precision=bf16: this {what} multiplies bf16 slowly; auto takes float32 here."
        warnings.warn(told, stacklevel=2)
    return device, resolve_precision(train.precision, device, deterministic=train.deterministic)


def configure_acting(train: TrainConfig, learner: torch.device) -> tuple[torch.device, torch.dtype | None]:
    """Return device and compute dtype of the agent that collects (`train.act_device`).

    They are the learner's by default. Another device computes in float32 if its bf16 is slow.
    """
    device = learner
    if train.act_device != "learner":
        device = resolve_device(train.act_device, "train.act_device", "cpu or learner")
    if (device.type, device.index or 0) == (learner.type, learner.index or 0):
        device = learner  # cuda and cuda:0 are one device; callers compare them
    precision = train.precision if device == learner or has_fast_bf16(device) else "float32"
    return device, resolve_precision(precision, device, deterministic=train.deterministic)


def precision_name(device: torch.device, dtype: torch.dtype | None) -> str:
    """Return the arithmetic that `configure` has chosen, by its name in the configuration."""
    if dtype == torch.bfloat16:
        return "bf16"
    return "tf32" if device.type == "cuda" and torch.backends.cuda.matmul.allow_tf32 else "float32"


def warn_of_another_precision(before: str, now: str) -> None:
    """Warn if a run continues in another arithmetic than it began in."""
    if before != now:
        warnings.warn(
            f"the run began in {before} and goes on in {now} on this machine: results differ by"
            " rounding. train.precision keeps to one; compiled norms need a C compiler",
            stacklevel=2,
        )


def set_generator_state(generator: torch.Generator, state: torch.Tensor) -> None:
    """Make a generator continue from a checkpoint's state, uint8 [n].

    The states of CPU and GPU generators are incompatible: on the other kind of device, the old state seeds a new
    stream, with a warning.
    """
    if len(state) == len(generator.get_state()):
        generator.set_state(state.cpu())
        return
    generator.manual_seed(zlib.crc32(state.cpu().numpy().tobytes()))
    warnings.warn(
        f"the run continues on another kind of device ({generator.device.type}), with other random numbers",
        stacklevel=2,
    )
