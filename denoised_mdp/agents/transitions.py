"""n-step transitions from rows of the replay.

Symbols: R rows of a batch, B batch, A action size; row t holds the action that led to it and the reward on arriving.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from denoised_mdp.models.frames import stack_frames


@dataclass(frozen=True)
class Transitions:
    """From each of B observations to the one that its target bootstraps from."""

    now: Tensor
    """stacked frames before the action, uint8 [B, H, W, 3 frames]"""
    action: Tensor
    """the first of the n actions, [B, A]"""
    reward: Tensor
    """discounted sum of up to n rewards, [B]"""
    discount: Tensor
    """factor of the value of `following`, [B]: 0 where the task ended there"""
    following: Tensor
    """stacked frames after the last of these rewards, uint8 [B, H, W, 3 frames]"""
    exists: Tensor
    """1, or 0 where the episode ends at `now`, [B]"""

    def mean(self, values: Tensor) -> Tensor:
        """Return the mean [...] of values [..., B] over the transitions that exist."""
        return (values * self.exists).sum(-1) / self.exists.sum().clamp(min=1.0)


def make_transitions(batch: dict[str, Tensor], frames: int, n_step: int, gamma: float) -> Transitions:
    """Make transitions from row `frames` - 1 of each column over at most `n_step` rows of its episode.

    A transition is shorter if its episode ends sooner, by a time limit or because the task ended.
    batch: rows of the replay [R, B, ...] with R >= `frames` + `n_step`.
    """
    begin, is_first = frames - 1, batch["is_first"]
    ahead = slice(begin + 1, begin + 1 + n_step)
    same = (~is_first[ahead]).to(batch["reward"].dtype).cumprod(0)  # [n, B], 1 while the episode goes on
    powers = gamma ** torch.arange(n_step, device=is_first.device, dtype=same.dtype)[:, None]  # [n, 1]
    steps = same.sum(0).long()  # [B]
    last = begin + steps  # [B], the row that the target bootstraps from
    alive = (~batch["is_terminal"].gather(0, last[None])[0]).to(same.dtype)  # [B]
    rows = torch.stack((torch.full_like(last, begin), last))  # [2, B]
    now, following = stack_frames(batch["observation"], is_first, rows, frames)
    return Transitions(
        now=now,
        action=batch["action"][begin + 1],
        reward=(powers * same * batch["reward"][ahead]).sum(0),
        discount=gamma ** steps.to(same.dtype) * alive,
        following=following,
        exists=same[0],
    )
