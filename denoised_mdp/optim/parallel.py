"""Data parallelism: every process learns from its columns of one batch, and all take the same step.

Losses are means over rows, and every process has equally many: the mean of their gradients is the gradient of a single
process with the whole batch. What is not a plain mean (over some of the rows, or clamped) asks `average` for the whole
batch's number. Each process draws the noise of the whole batch and keeps its own columns.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import torch
import torch.distributed as dist
from torch import Tensor

_share: ContextVar[tuple[int, int]] = ContextVar("share", default=(0, 1))
"""index of this process, and the number of processes that share the current update"""


@contextmanager
def sharing() -> Iterator[None]:
    """Context in which `normal` draws for a part of the batch, and `average` and `gather` reach the other processes."""
    token = _share.set((dist.get_rank(), dist.get_world_size()))
    try:
        yield
    finally:
        _share.reset(token)


def normal(*shape: int, like: Tensor, generator: torch.Generator | None = None) -> Tensor:
    """Standard normal noise [..., B, S] on the device and in the type of `like`: this process's B columns of it all."""
    number, processes = _share.get()
    *outer, columns, size = shape
    whole = (*outer, columns * processes, size)
    noise = torch.randn(whole, device=like.device, dtype=like.dtype, generator=generator)  # [..., processes B, S]
    return noise if processes == 1 else noise[..., number * columns : (number + 1) * columns, :]


def average(tensors: Iterable[Tensor]) -> None:
    """Replace tensors of one type by their means over the processes, in a single exchange."""
    tensors = list(tensors)
    if _share.get()[1] == 1 or not tensors:
        return
    together = torch.cat([tensor.flatten() for tensor in tensors])  # [n]
    dist.all_reduce(together)
    together /= _share.get()[1]
    for tensor, part in zip(tensors, together.split([tensor.numel() for tensor in tensors]), strict=True):
        tensor.copy_(part.view_as(tensor))


def gather(tensor: Tensor) -> Tensor:
    """Concatenate a tensor [n] with those of the other processes, in the same order on all: [processes n]."""
    if _share.get()[1] == 1:
        return tensor
    parts = [torch.empty_like(tensor) for _ in range(_share.get()[1])]
    dist.all_gather(parts, tensor.contiguous())
    return torch.cat(parts)
