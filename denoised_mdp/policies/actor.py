"""The actor, a tanh-squashed Gaussian, shared by every policy optimizer (Wang et al. 2022, appendix)."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from denoised_mdp.models.networks import MLP

MEAN_SCALE = 5.0


class Actor(nn.Module):
    """(h^x, x) -> mean and std before the squashing; `layers` hidden layers of width `hidden`.

    `initial_std`: std of an untrained actor. The paper's 5 makes its actions jump between the limits, which
    explores much and learns slowly at first, since the squashing saturates. `min_std`: added to every std.
    """

    def __init__(
        self,
        features: int,
        action_size: int,
        *,
        hidden: int = 400,
        layers: int = 4,
        initial_std: float = 5.0,
        min_std: float = 1e-4,
    ):
        super().__init__()
        self.action_size, self.min_std = action_size, min_std
        self.raw_initial_std = math.log(math.expm1(initial_std))  # softplus^-1
        self.net = MLP(features, hidden, 2 * action_size, layers)

    def forward(self, features: Tensor) -> tuple[Tensor, Tensor]:
        """[..., D_x + S_x] -> mean = 5 tanh(m / 5), std = softplus(raw + softplus^-1(initial_std)) + min_std."""
        mean, raw = self.net(features).chunk(2, -1)
        return MEAN_SCALE * torch.tanh(mean / MEAN_SCALE), F.softplus(raw + self.raw_initial_std) + self.min_std

    def mode(self, features: Tensor) -> Tensor:
        """The deterministic action tanh(mean), [..., A]."""
        return torch.tanh(self(features)[0])

    def sample(self, features: Tensor, noise: Tensor) -> Tensor:
        """A reparametrized action tanh(mean + std * noise), noise [..., A] standard normal."""
        mean, std = self(features)
        return torch.addcmul(mean, std, noise).tanh()

    def sample_with_log_prob(self, features: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        """An action [..., A] and its log density [...] with the squashing's change of variables.

        log(1 - tanh(u)^2) = 2 (log 2 - u - softplus(-2 u)), which stays exact where tanh saturates.
        """
        mean, std = self(features)
        raw = mean + std * noise
        gaussian = -0.5 * noise.square() - std.log() - 0.5 * math.log(2.0 * math.pi)
        squash = 2.0 * (math.log(2.0) - raw - F.softplus(-2.0 * raw))
        return torch.tanh(raw), (gaussian - squash).sum(-1)
