"""Norms and gates as compiled CPU functions (`kernels.c`): one pass instead of a dozen operations.

The machine's own C compiler builds them once, into the cache (`files.cache_folder`). Without a compiler, or with
``DENOISED_MDP_KERNELS=0``, callers use their PyTorch code, whose results are equal up to rounding.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
import shlex
import shutil
import subprocess
import uuid
from ctypes import c_int, c_long, c_void_p
from pathlib import Path

import torch
from torch import Tensor, nn

from denoised_mdp.files import cache_folder

SOURCE = Path(__file__).with_suffix(".c")
# Sums may be reordered, as in PyTorch. NaN and infinity are preserved.
MATHEMATICS = "-fno-math-errno -fno-trapping-math -fno-signed-zeros -fassociative-math -freciprocal-math"
# -O3 is no faster here and takes more than three times as long to compile.
FLAGS = f"-O2 -ftree-vectorize -march=native {MATHEMATICS} -fopenmp -shared -fPIC".split()
WHOLE_VECTORS = "-mprefer-vector-width=512"
"""for CPUs with AVX-512: compilers otherwise use half of its vector width"""
LACKING = ((), ("-fopenmp",), ("-fopenmp", "-march=native"))
"""flags that a compiler such as Apple's may lack: each try leaves out the next set; without -fopenmp, on one thread"""
PATIENCE = 120
"""time limit of one compiler run, seconds"""
MOST = 2048
"""longest row that the kernels take, as in `kernels.c`"""
WORTH_THREADS = 2**16
"""size of a tensor above which several threads pay off"""
ARGUMENTS = {
    "rms_norm": [c_void_p] * 3 + [c_long] + [c_int] * 4,
    "rms_norm_back": [c_void_p] * 5 + [c_long] + [c_int] * 4,
    "norm_gates": [c_void_p] * 4 + [c_long, c_int],
    "norm_gates_back": [c_void_p] * 7 + [c_long, c_int],
    "response_norm": [c_void_p] * 5 + [c_long] * 2 + [c_int] * 3,
    "response_norm_back": [c_void_p] * 7 + [c_long] * 2 + [c_int] * 3,
}


@functools.cache
def library() -> ctypes.CDLL | None:
    """The compiled functions; None if they are switched off or cannot be built here."""
    said = shlex.split(os.environ.get("CC") or "cc")  # may hold flags, or ccache and a compiler
    compiler = shutil.which(said[0]) if said else None
    if compiler is None or os.environ.get("DENOISED_MDP_KERNELS") == "0":
        return None
    processor = _processor()
    flags = [*FLAGS, *([WHOLE_VECTORS] if b" avx512f " in processor else [])]
    command = [compiler, *said[1:], *flags]
    made_from = (SOURCE.read_bytes(), processor, " ".join(command).encode())
    name = hashlib.sha256(b"\n".join(made_from)).hexdigest()[:16]
    path = cache_folder() / f"kernels-{name}.so"
    try:
        try:
            found = ctypes.CDLL(str(path))
        except OSError:  # it is missing, torn by a power failure, or built on a machine with other libraries
            _compile(command, path)
            found = ctypes.CDLL(str(path))
    except (OSError, subprocess.SubprocessError):
        return None
    for function, types in ARGUMENTS.items():
        getattr(found, function).argtypes, getattr(found, function).restype = types, None
    return found


def _processor() -> bytes:
    """The processor's instruction sets, which enter the library's name: machines may share a cache."""
    try:
        lines = Path("/proc/cpuinfo").read_bytes().splitlines()
    except OSError:
        return os.uname().machine.encode()
    return b"".join(line for line in lines if line.startswith((b"flags", b"Features")))


def _compile(command: list[str], path: Path) -> None:
    """Compile the library and move it into place atomically: several processes may do it at once."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_suffix(f".{uuid.uuid4().hex}.tmp")
    try:
        command = [*command, str(SOURCE), "-o", str(temporary), "-lm"]
        for lacking in LACKING:
            words = [word for word in command if word not in lacking]
            done = subprocess.run(words, capture_output=True, timeout=PATIENCE)
            if done.returncode == 0:
                break
        done.check_returncode()
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def serves(x: Tensor, scale: Tensor) -> bool:
    """Whether there is a kernel for rows of `x` [..., size] and scales [size]."""
    return (
        x.device.type == "cpu"
        and x.dtype in (torch.float32, torch.bfloat16)
        and scale.dtype == torch.float32
        and x.shape[-1] == scale.numel() <= MOST  # PyTorch refuses sizes that do not match
        and library() is not None
    )


def used_by(agent: nn.Module) -> bool:
    """Whether the agent uses kernels here: it has norms (`compiled`), and this machine has the kernels."""
    compiled = [part for part in agent.modules() if getattr(part, "compiled", False)]
    return any(serves(scale.flatten(), scale) for part in compiled for scale in part.parameters())


def _shape(x: Tensor, silu: bool) -> tuple[int, ...]:
    """Rows, their size, whether a SiLU follows, whether x is bf16, and threads: the last arguments of `rms_norm`."""
    size = x.shape[-1]
    return x.numel() // size, size, silu, x.dtype == torch.bfloat16, _threads(x)


def _threads(x: Tensor) -> int:
    return torch.get_num_threads() if x.numel() > WORTH_THREADS else 1


class RMSNorm(torch.autograd.Function):
    """`norms.RMSNorm` of x [..., size], float32 or bf16, and scales [size], float32, that `serves` accepts."""

    @staticmethod
    def forward(ctx, x: Tensor, scale: Tensor, silu: bool) -> Tensor:
        x, scale = x.contiguous(), scale.contiguous()
        ctx.save_for_backward(x, scale)
        ctx.silu, y = silu, torch.empty_like(x)
        library().rms_norm(x.data_ptr(), scale.data_ptr(), y.data_ptr(), *_shape(x, silu))
        return y

    @staticmethod
    def backward(ctx, gradient: Tensor) -> tuple[Tensor, Tensor, None]:
        x, scale = ctx.saved_tensors
        gradient, shape, to_x = gradient.contiguous(), _shape(x, ctx.silu), torch.empty_like(x)
        to_scale = scale.new_empty(shape[-1], len(scale))  # [threads, size]
        pointers = (tensor.data_ptr() for tensor in (gradient, x, scale, to_x, to_scale))
        library().rms_norm_back(*pointers, *shape)
        return to_x, to_scale.sum(0), None


class NormGates(torch.autograd.Function):
    """`gru.candidate_gates` of normed gates: raw [B, 3 D], scale [3 D] and h [B, D], all float32 -> h' [B, D]."""

    @staticmethod
    def forward(ctx, raw: Tensor, scale: Tensor, h: Tensor) -> Tensor:
        raw, scale, h = raw.contiguous(), scale.contiguous(), h.contiguous()
        ctx.save_for_backward(raw, scale, h)
        y = torch.empty_like(h)
        library().norm_gates(*(tensor.data_ptr() for tensor in (raw, scale, h, y)), *h.shape)
        return y

    @staticmethod
    def backward(ctx, gradient: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        raw, scale, h = ctx.saved_tensors
        found = [torch.empty_like(tensor) for tensor in (raw, h, scale)]
        tensors = gradient.contiguous(), raw, scale, h, *found
        library().norm_gates_back(*(tensor.data_ptr() for tensor in tensors), *h.shape)
        to_raw, to_h, to_scale = found
        return to_raw, to_scale, to_h


class ResponseNorm(torch.autograd.Function):
    """`pisac.FilterResponseNorm` of x [N, H, W, C], float32 or bf16; gamma, beta and tau: C numbers each, float32."""

    @staticmethod
    def forward(ctx, x: Tensor, gamma: Tensor, beta: Tensor, tau: Tensor) -> Tensor:
        tensors = [tensor.contiguous() for tensor in (x, gamma, beta, tau)]
        ctx.save_for_backward(*tensors)
        y = torch.empty_like(tensors[0])
        library().response_norm(*(tensor.data_ptr() for tensor in (*tensors, y)), *_pictures(x))
        return y

    @staticmethod
    def backward(ctx, gradient: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        x, gamma, beta, tau = ctx.saved_tensors
        gradient, to_x = gradient.contiguous(), torch.empty_like(x)
        to_each = gamma.new_empty(len(x), 3, gamma.numel())  # [N, 3, C]
        tensors = gradient, x, gamma, beta, tau, to_x, to_each
        library().response_norm_back(*(tensor.data_ptr() for tensor in tensors), *_pictures(x))
        return to_x, *(part.view_as(gamma) for part in to_each.sum(0))


def _pictures(x: Tensor) -> tuple[int, ...]:
    """Pictures, their pixels and channels, whether x is bf16, and threads: the last arguments of `response_norm`."""
    number, height, width, channels = x.shape
    return number, height * width, channels, x.dtype == torch.bfloat16, _threads(x)
