"""Frame stacks as model-free agents see them: built from single rows, cropped and shifted at random.

Symbols: R rows of a batch, B batch, K chosen rows, k frames of a stack, S size of a cut.
"""

from __future__ import annotations

import torch
from torch import Tensor


def stack_frames(observation: Tensor, is_first: Tensor, rows: Tensor, frames: int) -> Tensor:
    """Stack the last `frames` observations of the episode at chosen rows along the channels, the oldest first.

    The first row of an episode, or of the batch, also stands for the frames before it.

    Args:
        observation: uint8 [R, B, H, W, 3]. is_first: bool [R, B]. rows: int [K, B], those of each column.

    Returns:
        uint8 [K, B, H, W, 3 frames].
    """
    number = torch.arange(len(is_first), device=is_first.device)[:, None]  # [R, 1]
    begin = torch.where(is_first, number, 0).cummax(0).values  # [R, B], the first row of each row's episode
    back = torch.arange(frames - 1, -1, -1, device=rows.device)[:, None, None]  # [k, 1, 1]
    picked = torch.maximum(rows - back, begin.gather(0, rows))  # [k, K, B]
    column = torch.arange(rows.shape[1], device=rows.device)  # [B]
    pictures = observation[picked, column]  # [k, K, B, H, W, 3]
    stacked = pictures.new_empty(*pictures.shape[1:-1], frames, pictures.shape[-1])  # [K, B, H, W, k, 3]
    for frame in range(frames):
        for channel in range(pictures.shape[-1]):  # faster than copying three bytes at a time
            stacked[..., frame, channel] = pictures[frame, ..., channel]
    return stacked.flatten(-2)  # [K, B, H, W, 3 k]


def cut(pictures: Tensor, top: Tensor, left: Tensor, size: int) -> Tensor:
    """Cut a square out of each picture at its own corner; beyond the border, the border's pixels are repeated.

    pictures [N, H, W, C], top and left int [N] (may be negative) -> [N, size, size, C].
    """
    number, along = torch.arange(len(pictures), device=pictures.device), torch.arange(size, device=pictures.device)
    rows = (top[:, None] + along).clamp(0, pictures.shape[1] - 1)  # [N, S]
    columns = (left[:, None] + along).clamp(0, pictures.shape[2] - 1)  # [N, S]
    return pictures[number[:, None, None], rows[:, :, None], columns[:, None, :]]  # [N, S, S, C]


def random_cut(pictures: Tensor, low: int, high: int, size: int, generator: torch.Generator) -> Tensor:
    """`cut` at corners uniform in [low, high], one for each picture [N, H, W, C], shared by all its frames.

    For a crop (Laskin et al. 2020), the range is 0 to H - size - 1. For a shift of pictures padded by p (Kostrikov et
    al. 2020), it is -p to p, at their own size.
    """
    corners = torch.randint(low, high + 1, (2, len(pictures)), generator=generator, device=pictures.device)
    if low < 0 or high > min(pictures.shape[1:3]) - size:
        return cut(pictures, *corners, size)
    within = pictures.unfold(1, size, 1).unfold(2, size, 1)  # [N, H - S + 1, W - S + 1, C, S, S], a view
    number = torch.arange(len(pictures), device=pictures.device)
    return within[(number, *corners)].permute(0, 2, 3, 1)  # copies whole lines


def center_cut(pictures: Tensor, size: int) -> Tensor:
    """The central square: [N, H, W, C] -> [N, size, size, C]."""
    begin = (pictures.shape[1] - size) // 2
    return pictures[:, begin : begin + size, begin : begin + size]


def pick(pictures: Tensor, rows: Tensor) -> Tensor:
    """Rows int [M] of [N, C, H, W] -> [M, C, H, W] in the same memory format, which plain indexing would change."""
    return pictures.permute(0, 2, 3, 1)[rows].permute(0, 3, 1, 2)


def to_unit(pictures: Tensor, dtype: torch.dtype) -> Tensor:
    """uint8 [N, H, W, C] -> floats from 0 to 1, [N, C, H, W]."""
    return pictures.permute(0, 3, 1, 2).to(dtype).div_(255.0)
