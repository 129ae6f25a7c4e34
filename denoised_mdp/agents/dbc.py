"""DBC: features whose distances are those of a bisimulation metric (Zhang et al., ICLR 2021).

Two pictures' features lie as far apart as their rewards and the futures that a learned model predicts. What affects
neither is forgotten. Nothing is reconstructed.

Symbols: B batch, A action size, F features, M members of the ensemble.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from denoised_mdp.agents.pixel_sac import PixelSAC
from denoised_mdp.agents.transitions import Transitions
from denoised_mdp.config.agents import DBCConfig
from denoised_mdp.models.frames import pick
from denoised_mdp.optim import Adam, clipped_step, differentiate

WEIGHT_DECAY = 1e-7
"""weight decay of the models"""
MIN_STD, MAX_STD = 1e-4, 10.0
"""limits of the predicted features' std"""


class DBC(PixelSAC):
    """`PixelSAC` with the losses of `Bisimulation`, whose step follows that of the critics."""

    auxiliary_first = True

    def __init__(self, options: DBCConfig, size: int, action_size: int):
        super().__init__(options, size, action_size)
        self.models = Bisimulation(
            options.features,
            action_size,
            hidden=options.model_hidden,
            members=options.members,
            probabilistic=options.probabilistic,
        )

    def add_optimizers(self) -> None:
        """Add an optimizer of the encoder and one of the models, for their joint loss."""
        super().add_optimizers()
        self._optimizers["encoder"] = Adam(self.encoder.parameters(), lr=self.options.encoder_lr)
        self._optimizers["models"] = Adam(self.models.parameters(), lr=self.options.model_lr, weight_decay=WEIGHT_DECAY)

    def auxiliary(
        self, batch: dict[str, Tensor], step: Transitions, now: Tensor, following: Tensor
    ) -> dict[str, Tensor]:
        """Take one step of the encoder and the models (`Bisimulation`) on random pairs; none without two samples."""
        kept = step.exists.nonzero()[:, 0]  # [B'], all but where an episode ends
        if len(kept) < 2:
            return {}
        phi = self.encoder(pick(now, kept))  # [B', F]
        with torch.no_grad():
            after = self.encoder(pick(following, kept))  # [B', F]
        order = torch.randperm(len(kept), generator=self.random, device=phi.device)  # [B']
        member = int(torch.randint(self.options.members, (), generator=self.random, device=phi.device))
        noise = torch.randn(phi.shape, generator=self.random, device=phi.device, dtype=phi.dtype)  # [B', F]
        action, reward = step.action[kept], step.reward[kept]  # [B', A], [B']
        metric, apart = self.models.metric_loss(phi, action, reward, order, self.options.gamma)
        fitted = self.models.model_loss(phi, action, reward, after, member, noise)
        optimizers = self.optimizers["encoder"], self.optimizers["models"]
        differentiate(self.options.metric_weight * metric + fitted, *optimizers)
        norms = [clipped_step(optimizer, None) for optimizer in optimizers]
        return {
            "model/metric_loss": metric.detach(),
            "model/model_loss": fitted.detach(),
            "model/distance": apart,
            "model/encoder_gradient": norms[0],
        }


class Transition(nn.Module):
    """One model of the next features: (phi, a) -> mean and std; the std is 1 unless `probabilistic`."""

    def __init__(self, features: int, action_size: int, hidden: int, probabilistic: bool):
        super().__init__()
        self.hidden = nn.Sequential(nn.Linear(features + action_size, hidden), nn.LayerNorm(hidden), nn.ReLU())
        self.mean = nn.Linear(hidden, features)
        self.raw_std = nn.Linear(hidden, features) if probabilistic else None

    def forward(self, features: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
        """[B, F], [B, A] -> [B, F] each."""
        hidden = self.hidden(torch.cat((features, action), -1))  # [B, H]
        mean = self.mean(hidden)  # [B, F]
        if self.raw_std is None:
            return mean, torch.ones_like(mean)
        return mean, MIN_STD + (MAX_STD - MIN_STD) * self.raw_std(hidden).sigmoid()


class Bisimulation(nn.Module):
    """The losses of DBC, with P, `members` models of the next features, and R, a model of the reward."""

    def __init__(self, features: int, action_size: int, *, hidden: int, members: int, probabilistic: bool):
        super().__init__()
        self.transitions = nn.ModuleList(
            Transition(features, action_size, hidden, probabilistic) for _ in range(members)
        )
        self.reward = nn.Sequential(nn.Linear(features, hidden), nn.LayerNorm(hidden), nn.ReLU(), nn.Linear(hidden, 1))
        self.probabilistic = probabilistic

    def forward(self, features: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
        """[B, F], [B, A] -> mean and std of every member, [M, B, F] each."""
        means, stds = zip(*(transition(features, action) for transition in self.transitions), strict=True)
        return torch.stack(means), torch.stack(stds)

    def model_loss(
        self, features: Tensor, action: Tensor, reward: Tensor, following: Tensor, member: int, noise: Tensor
    ) -> Tensor:
        """Return P's negative log-likelihood of the next features, mean over [M, B, F], plus R's mean squared error.

        features, following [B, F], the latter detached; action [B, A]; reward [B]. member: the one whose prediction R
        reads. noise [B, F]: standard normal, for the sample that R reads (unused unless probabilistic).
        """
        mean, std = self(features, action)  # [M, B, F]
        likelihood = (0.5 * ((mean - following.detach()) / std).square() + std.log()).mean()  # scalar
        predicted = mean[member] + std[member] * noise if self.probabilistic else mean[member]  # [B, F]
        return likelihood + F.mse_loss(self.reward(predicted).squeeze(-1), reward)

    def metric_loss(
        self, features: Tensor, action: Tensor, reward: Tensor, order: Tensor, gamma: float
    ) -> tuple[Tensor, Tensor]:
        """Return the mean squared difference of |phi_i - phi_j| and |r_i - r_j| + gamma W(P_i, P_j).

        The mean is over members, pairs and features. The gradient reaches phi_i and phi_j, but nothing through P.

        Args:
            features, action, reward: [B, F], [B, A], [B].
            order: int [B], a permutation; the partner j of each i.

        Returns:
            The loss, and the detached mean of the exact |phi_i - phi_j|: 0 means that all features have collapsed.
        """
        with torch.no_grad():
            mean, std = self(features, action)  # [M, B, F]
            if self.probabilistic:  # the 2-Wasserstein distance of Gaussians, by feature
                future = ((mean - mean[:, order]).square() + (std - std[:, order]).square()).sqrt()  # [M, B, F]
            else:
                future = distance(mean, mean[:, order])  # [M, B, F]
            target = distance(reward, reward[order])[:, None] + gamma * future  # [M, B, F]
        between = distance(features, features[order])  # [B, F]
        apart = (features - features[order]).detach().abs().mean()  # scalar
        return (between - target).square().mean(), apart


def distance(a: Tensor, b: Tensor) -> Tensor:
    """Elementwise |a - b|, smooth around 0 (Huber): (a - b)^2 / 2 below 1, |a - b| - 1/2 above."""
    return F.smooth_l1_loss(a, b, reduction="none")
