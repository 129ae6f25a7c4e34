"""Critics on the signal latent: two Q nets, for continuous actions or with an output for every choice."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from denoised_mdp.models.networks import MLP


class Critics(nn.Module):
    """Two independent Q nets on (h^x, x, a)."""

    def __init__(self, features: int, action_size: int, hidden: int, layers: int, norm: str = "none"):
        super().__init__()
        self.nets = nn.ModuleList(MLP(features + action_size, hidden, 1, layers, norm) for _ in range(2))

    def forward(self, features: Tensor, action: Tensor) -> Tensor:
        """[..., F], [..., A] -> both values, [2, ...]."""
        inputs = torch.cat((features, action), -1)
        return torch.stack([net(inputs).squeeze(-1) for net in self.nets])


class DiscreteCritics(nn.Module):
    """Two independent Q nets on (h^x, x) with an output for each of A choices."""

    def __init__(self, features: int, action_size: int, hidden: int, layers: int, norm: str = "none"):
        super().__init__()
        self.nets = nn.ModuleList(MLP(features, hidden, action_size, layers, norm) for _ in range(2))

    def all(self, features: Tensor) -> Tensor:
        """[..., F] -> both values of every choice, [2, ..., A]."""
        return torch.stack([net(features) for net in self.nets])

    def forward(self, features: Tensor, action: Tensor) -> Tensor:
        """[..., F], one-hot [..., A] -> both values of that choice, [2, ...]."""
        return (self.all(features) * action).sum(-1)
