"""Distributions of the stochastic state, used for each latent's prior and posterior.

Each is built from the raw output of a network and has the same methods: `sample(noise)`, `mode()`, `kl(other)`,
`entropy()` and `map(function)`. Noise is standard normal with the shape of a sample, whatever the distribution. One
generator thus serves a table of mixed latents, and a caller that draws noise need not know their distributions.

Symbols: S variables of a latent, K classes of each, W the width of a sample (S, or S K).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

MIN_STD = 0.1
UNIMIX = 0.01
"""share of the uniform distribution in every categorical (Hafner et al. 2023)"""


@dataclass
class Gaussian:
    """Diagonal Gaussian: mean and std [..., S] (Wang et al. 2022: std = softplus(raw) + 0.1)."""

    name: ClassVar[str] = "gaussian"
    mean: Tensor
    std: Tensor

    @staticmethod
    def raw_width(variables: int, classes: int) -> int:
        """Number of raw outputs that a network needs for S variables: means, then raw stds."""
        return 2 * variables

    @classmethod
    def from_raw(cls, raw: Tensor, classes: int = 0) -> Gaussian:
        """[..., 2 S] -> mean and std, each [..., S]."""
        mean, std = raw.chunk(2, -1)
        return cls(mean, F.softplus(std) + MIN_STD)

    def sample(self, noise: Tensor) -> Tensor:
        """Standard normal noise [..., S] -> a sample [..., S]; its gradient reaches mean and std."""
        return torch.addcmul(self.mean, self.std, noise)

    def mode(self) -> Tensor:
        """The mean, [..., S]."""
        return self.mean

    def kl(self, other: Gaussian) -> Tensor:
        """KL(self || other) of each variable in closed form, nats, [..., S]."""
        precision = other.std.reciprocal()
        ratio = self.std * precision  # [..., S]
        return 0.5 * (ratio.square() + ((self.mean - other.mean) * precision).square() - 1.0) - ratio.log()

    def entropy(self) -> Tensor:
        """Entropy of each variable, nats, [..., S]."""
        return self.std.log() + 0.5 * (1.0 + math.log(2.0 * math.pi))

    def map(self, function: Callable[..., Tensor], *others: Gaussian) -> Gaussian:
        """Apply `function` (detach, index, concatenate ...) to each parameter, together with those of `others`."""
        mean, std = ([getattr(one, name) for one in (self, *others)] for name in ("mean", "std"))
        return Gaussian(function(*mean), function(*std))


@dataclass
class Categorical:
    """S independent one-hot variables of K classes: log probabilities [..., S, K], 1 % uniform (Hafner et al. 2023)."""

    name: ClassVar[str] = "categorical"
    log_probs: Tensor

    @staticmethod
    def raw_width(variables: int, classes: int) -> int:
        """Number of raw outputs that a network needs for S variables: one logit per class."""
        return variables * classes

    @classmethod
    def from_raw(cls, raw: Tensor, classes: int) -> Categorical:
        """Logits [..., S K] -> log of 0.99 softmax + 0.01 / K, [..., S, K]."""
        probs = raw.unflatten(-1, (-1, classes)).softmax(-1)  # [..., S, K]
        return cls(((1.0 - UNIMIX) * probs + UNIMIX / classes).log())

    def sample(self, noise: Tensor) -> Tensor:
        """Standard normal noise [..., S K] -> S one-hot vectors [..., S K], by the Gumbel-max trick.

        Straight-through: the value is one-hot, the gradient is that of the probabilities.
        """
        uniform = torch.special.ndtr(noise.unflatten(-1, self.log_probs.shape[-2:]))  # [..., S, K]
        tiny = torch.finfo(uniform.dtype).tiny
        gumbel = -(-uniform.clamp(tiny, 1.0 - torch.finfo(uniform.dtype).eps).log()).log()
        return self._straight_through((self.log_probs.detach() + gumbel).argmax(-1))

    def mode(self) -> Tensor:
        """The most likely class of each variable, one-hot, [..., S K]."""
        return self._straight_through(self.log_probs.argmax(-1))

    def _straight_through(self, chosen: Tensor) -> Tensor:
        """Class indices [..., S] -> one-hot [..., S K] with the gradient of the probabilities."""
        probs = self.log_probs.exp()  # [..., S, K]
        one_hot = F.one_hot(chosen, probs.shape[-1]).to(probs.dtype)
        return (one_hot + (probs - probs.detach())).flatten(-2)

    def kl(self, other: Categorical) -> Tensor:
        """KL(self || other) of each variable in closed form, nats, [..., S]."""
        return (self.log_probs.exp() * (self.log_probs - other.log_probs)).sum(-1)

    def entropy(self) -> Tensor:
        """Entropy of each variable, nats, [..., S]."""
        return -(self.log_probs.exp() * self.log_probs).sum(-1)

    def map(self, function: Callable[..., Tensor], *others: Categorical) -> Categorical:
        """Apply `function` (detach, index, concatenate ...) to each parameter, together with those of `others`."""
        return Categorical(function(*(one.log_probs for one in (self, *others))))


StateDistribution = Gaussian | Categorical
DISTRIBUTIONS: dict[str, type[StateDistribution]] = {kind.name: kind for kind in (Gaussian, Categorical)}
"""name in the configuration -> class; a new one also needs its name and width in `structure.LatentSpec`"""
