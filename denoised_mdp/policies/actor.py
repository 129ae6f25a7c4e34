"""Actors for every policy optimizer: a tanh-squashed Gaussian (Wang et al. 2022, appendix) and a categorical.

Both have the same methods and take standard normal noise in the shape of an action, [..., A].
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from denoised_mdp.models.distributions import Categorical
from denoised_mdp.models.mdp import LatentMDP
from denoised_mdp.models.networks import MLP
from denoised_mdp.policies.critics import Critics, DiscreteCritics

MEAN_SCALE = 5.0
ENTROPY_SHARE = 0.5
"""target entropy of discrete actions, as a share of the uniform distribution's entropy"""


class Actor(nn.Module):
    """(h^x, x) -> mean and std before the squashing; `layers` hidden layers of width `hidden`.

    `initial_std`: std of an untrained actor before `min_std`, which is added to every std. With the paper's 5, actions
    jump between the limits: this explores much but learns slowly at first, since the squashing saturates.
    """

    def __init__(
        self,
        features: int,
        action_size: int,
        *,
        hidden: int,
        layers: int,
        norm: str,
        initial_std: float,
        min_std: float,
    ):
        super().__init__()
        self.min_std, self.target_entropy = min_std, -float(action_size)
        # softplus^-1, which is the identity where the exponential would be too large
        self.raw_initial_std = math.log(math.expm1(initial_std)) if initial_std < 100 else initial_std
        self.net = MLP(features, hidden, 2 * action_size, layers, norm)

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
        """An action [..., A] and its log density [...] with the squashing's change of variables."""
        mean, std = self(features)
        raw = mean + std * noise
        log_prob = self.log_prob(raw, noise, std)  # before the action: gradients add up in the order of operations
        return torch.tanh(raw), log_prob

    def score(self, features: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        """Log density of the action that `sample` draws, held fixed, and the entropy as estimated from it; [...] each.

        The gradient of the first is the score; that of the second runs through the action (reparametrized).
        """
        mean, std = self(features)
        raw = mean + std * noise
        fixed = raw.detach()
        return self.log_prob(fixed, (fixed - mean) / std, std), -self.log_prob(raw, noise, std)

    @staticmethod
    def log_prob(raw: Tensor, noise: Tensor, std: Tensor) -> Tensor:
        """Log density [...] of tanh(raw), raw = mean + std * noise [..., A].

        log(1 - tanh(u)^2) = 2 (log 2 - u - softplus(-2 u)), which stays exact where tanh saturates.
        """
        gaussian = -0.5 * noise.square() - std.log() - 0.5 * math.log(2.0 * math.pi)  # [..., A]
        squash = 2.0 * (math.log(2.0) - raw - F.softplus(-2.0 * raw))  # [..., A]
        return (gaussian - squash).sum(-1)

    def soft_value(
        self, features: Tensor, noise: Tensor, critics: Critics, temperature: Tensor
    ) -> tuple[Tensor, Tensor]:
        """min Q(x, a) - temperature log pi(a | x) of one sampled action a, and log pi(a | x); [...] each."""
        action, log_prob = self.sample_with_log_prob(features, noise)
        return critics(features, action).amin(0) - temperature * log_prob, log_prob


class CategoricalActor(nn.Module):
    """(h^x, x) -> one of A choices, 1 % uniform; actions are one-hot, with straight-through gradients.

    The gradient of a sample is that of the probabilities: unbiased if what follows is linear in the action, else
    biased.
    """

    def __init__(self, features: int, action_size: int, *, hidden: int, layers: int, norm: str):
        super().__init__()
        self.action_size, self.target_entropy = action_size, ENTROPY_SHARE * math.log(action_size)
        self.net = MLP(features, hidden, action_size, layers, norm)

    def forward(self, features: Tensor) -> Categorical:
        """[..., D_x + S_x] -> log probabilities [..., 1, A]."""
        return Categorical.from_raw(self.net(features), self.action_size)

    def mode(self, features: Tensor) -> Tensor:
        """The most likely choice, [..., A]."""
        return self(features).mode()

    def sample(self, features: Tensor, noise: Tensor) -> Tensor:
        """A sampled choice, [..., A]."""
        return self(features).sample(noise)

    def sample_with_log_prob(self, features: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        """A sampled choice [..., A], and the mean log probability of all choices [...]: minus the entropy, exact."""
        distribution = self(features)
        return distribution.sample(noise), -distribution.entropy().squeeze(-1)

    def score(self, features: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        """Log probability of the choice that `sample` draws, and the entropy, exact; [...] each."""
        distribution = self(features)
        chosen = distribution.sample(noise).detach()  # [..., A]
        return (distribution.log_probs.squeeze(-2) * chosen).sum(-1), distribution.entropy().squeeze(-1)

    def soft_value(
        self, features: Tensor, noise: Tensor, critics: DiscreteCritics, temperature: Tensor
    ) -> tuple[Tensor, Tensor]:
        """As in `Actor`, but as the exact mean over all choices, so `noise` is unused (Christodoulou 2019)."""
        distribution = self(features)
        log_probs = distribution.log_probs.squeeze(-2)  # [..., A]
        value = critics.all(features).amin(0) - temperature * log_probs  # [..., A]
        return (log_probs.exp() * value).sum(-1), -distribution.entropy().squeeze(-1)


def make_actor(
    mdp: LatentMDP, *, hidden: int, layers: int, norm: str, initial_std: float, min_std: float
) -> Actor | CategoricalActor:
    """Make the actor for the actions of an MDP; discrete actions ignore the stds."""
    sizes, shape = (mdp.feature_size, mdp.action_size), {"hidden": hidden, "layers": layers, "norm": norm}
    if mdp.discrete:
        return CategoricalActor(*sizes, **shape)
    return Actor(*sizes, **shape, initial_std=initial_std, min_std=min_std)


def explored(action: Tensor, amount: float, noise: Tensor, *, discrete: bool) -> Tensor:
    """Actions [..., A] with exploration, as tried while collecting; noise: standard normal, [..., A].

    Continuous: Gaussian noise of std `amount` is added. Discrete: with probability `amount`, a uniformly drawn choice
    replaces the action. The index of the largest of A normals is independent of its value m; Phi(m)^A is uniform.
    """
    if not discrete:
        return (action + amount * noise).clamp(-1.0, 1.0)
    choices = action.shape[-1]
    largest, drawn = noise.max(-1)  # [...] each
    replaced = torch.special.ndtr(largest) ** choices < amount  # [...]
    return torch.where(replaced[..., None], F.one_hot(drawn, choices).to(action.dtype), action)
