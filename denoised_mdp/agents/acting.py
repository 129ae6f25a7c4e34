"""Inputs and outputs of acting: the carry between steps, and checks of everything that a caller passes.

Symbols: B environments, A action size, D / S belief / state size summed over the latents.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from numbers import Real
from typing import Any

import numpy as np
import torch
from torch import Tensor

from denoised_mdp.errors import UserError
from denoised_mdp.models.latent import Latent

Generators = torch.Generator | Sequence[torch.Generator] | None
"""the source of noise: PyTorch's global one, one for all environments, or one for each"""


def draw_rows(draw: Callable[[int, torch.Generator | None], Tensor], batch: int, generator: Generators) -> Tensor:
    """Return noise [B, ...] of `draw(rows, generator)`, each row from its own generator if there are several."""
    if generator is None or isinstance(generator, torch.Generator):
        return draw(batch, generator)
    return torch.cat([draw(1, one) for one in generator])  # [B, ...]


class Carry(ABC):
    """What an agent remembers from one step to the next in B environments.

    It is immutable: every step returns a new one, and nothing else holds its tensors. To branch from one moment, use
    its carry twice.
    """

    @abstractmethod
    def tensors(self) -> dict[str, Tensor]:
        """Return its content, [B, ...] each, as keyword arguments of `Agent.carry`."""

    def after(self, action: Tensor) -> Carry:
        """Return the carry after these actions [B, A]; subclasses may remember them, this one does not."""
        return self


@dataclass(frozen=True)
class LatentCarry(Carry):
    """The filtered latent [B, ...] and the last action [B, A]."""

    latent: Latent
    action: Tensor

    def tensors(self) -> dict[str, Tensor]:
        """Belief [B, D], state [B, S], action [B, A]."""
        return {"belief": self.latent.belief, "state": self.latent.state, "action": self.action}

    def after(self, action: Tensor) -> LatentCarry:
        """Return the carry with these last actions."""
        return replace(self, action=action)


@dataclass(frozen=True)
class FrameCarry(Carry):
    """The last frames of B environments, uint8 [B, k, H, W, 3], oldest first."""

    frames: Tensor

    def tensors(self) -> dict[str, Tensor]:
        """Frames [B, k, H, W, 3]."""
        return {"frames": self.frames}


def as_images(observation: Any, size: int) -> tuple[Tensor, bool]:
    """Return one observation, or those of B environments, as uint8 [B, size, size, 3], and whether it was single.

    Anything but a tensor is copied, so later changes by its owner have no effect.

    Raises:
        ValueError: it has a wrong type or shape.
    """
    if not isinstance(observation, Tensor):
        try:
            observation = np.array(observation, order="C")
        except ValueError as error:  # a list of images of several shapes
            raise ValueError(_expected_images("a list of unequal parts", size)) from error
    right = str(observation.dtype).removeprefix("torch.") == "uint8" and observation.ndim in (3, 4)
    if not right or tuple(observation.shape[-3:]) != (size, size, 3) or not len(observation):
        raise ValueError(_expected_images(describe(observation), size))
    images = torch.as_tensor(observation)
    return (images[None], True) if images.ndim == 3 else (images, False)


def _expected_images(found: str, size: int) -> str:
    return (
        f"observation is {found}: give uint8 [{size}, {size}, 3], or [B, {size}, {size}, 3] of B environments, with"
        " values from 0 to 255"
    )


def describe(array: np.ndarray | Tensor) -> str:
    """Return dtype and shape of an array in words; for a 0-d array, its value."""
    if array.ndim == 0:
        return f"{array.item()!r}"
    return f"{str(array.dtype).removeprefix('torch.')} {list(array.shape)}"


def as_is_first(is_first: Any, batch: int) -> Tensor:
    """Return where episodes begin, bool [B], from a bool for all environments, one for each, or None (nowhere).

    Raises:
        ValueError: it has a wrong type or shape.
    """
    if isinstance(is_first, Tensor):
        is_first = is_first.cpu()
    flags = np.zeros(batch, bool) if is_first is None else np.array(is_first)
    if flags.dtype != bool or flags.shape not in ((), (batch,)):
        raise ValueError(f"is_first is {describe(flags)}: give a bool, or bool [{batch}]")
    return torch.from_numpy(np.broadcast_to(flags, batch).copy())


def check_explore(explore: Any) -> None:
    """Raise ValueError unless `explore` is None or a number of at least 0."""
    number = isinstance(explore, Real) and not isinstance(explore, bool | np.bool_)
    if explore is not None and not (number and 0 <= explore < math.inf):
        raise ValueError(
            f"explore is {explore!r}: give None to act without sampling, or how much to explore, at least 0"
        )


def check_generator(generator: Any, batch: int, device: torch.device) -> None:
    """Raise ValueError unless `generator` is None, one on `device`, or a sequence of one for each environment."""
    if generator is None:
        return
    several = generator if isinstance(generator, Sequence) else [generator]
    if not all(isinstance(one, torch.Generator) for one in several):
        raise ValueError(f"generator is {generator!r}: give a torch.Generator, or a list of one for each environment")
    if several is generator and len(several) != batch:
        raise ValueError(f"generator is a list of {len(several)}: give one for each of the {batch} environments")
    for one in several:
        if one.device.type != device.type:
            raise ValueError(f"generator is on {one.device}: give one on {device}, where the agent is")


def check_carry(carry: Any, fresh: LatentCarry) -> None:
    """Raise ValueError unless `carry` has the shapes and the device of `fresh`, the carry of a new episode."""
    if not isinstance(carry, LatentCarry):
        raise ValueError(f"carry is {carry!r}: give what the last call of act returned, or None to begin an episode")
    if len(carry.action) != len(fresh.action):
        raise ValueError(
            f"carry is of {len(carry.action)} environments, the observation of {len(fresh.action)}: give the carry that"
            " the last call returned for these, or None to begin an episode"
        )
    ours, theirs = ([c.action, c.latent.belief, c.latent.state] for c in (fresh, carry))
    if any(a.shape != b.shape or a.device != b.device for a, b in zip(ours, theirs, strict=True)):
        raise ValueError("carry is of another agent: give what the last call of this one returned, or None")


def check_frames(carry: Any, first: Tensor) -> None:
    """Raise ValueError unless `carry` has frames with the shape and device of `first`, those of a new episode."""
    frames = carry.frames if isinstance(carry, FrameCarry) else None
    if frames is None or frames.shape != first.shape or frames.device != first.device:
        raise ValueError(
            "carry is not of this agent and these environments: give what the last call of act returned, or None to"
            " begin an episode"
        )


def check_actions(action: Any, batch: int, size: int, who: str) -> None:
    """Raise UserError unless a policy chose actions [batch, size] from -1 to 1. who: the name of what chose them."""
    if isinstance(action, Tensor) and action.shape == (batch, size) and (action.abs() <= 1).all():  # false for nan
        return
    found = f"{list(action.shape)}, up to {action.abs().max():g}" if isinstance(action, Tensor) else f"{action!r}"
    raise UserError(f"{who} returns actions {found}: they must be [{batch}, {size}], from -1 to 1.")
