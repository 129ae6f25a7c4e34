"""PI-SAC: features that predict the near future, compressed (Lee et al., NeurIPS 2020).

A code z of the present and the next actions must tell this future from those of the other samples (a bound on the
predictive information), and hold little else (a conditional entropy bottleneck, CEB).

Symbols: B batch, A action size, F features, C size of a code.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

HORIZON = 3
"""decisions between present and future"""
FURTHER = 0.6
"""weight, in beta, of the code's distance from the future one decision later"""


class FilterResponseNorm(nn.Module):
    """Divide each channel of a picture by its root mean square, scale, shift, and cut below a learned threshold tau."""

    def __init__(self, channels: int):
        super().__init__()
        self.gamma = nn.Parameter(torch.ones(channels, 1, 1))
        self.beta, self.tau = (nn.Parameter(torch.zeros(channels, 1, 1)) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        """[N, C, H, W] -> the same shape."""
        x = x * (x.square().mean((2, 3), keepdim=True) + 1e-6).rsqrt()  # [N, C, H, W]
        return torch.maximum(self.gamma * x + self.beta, self.tau)


class CodeNet(nn.Module):
    """Features and what comes with them -> the mean of a code's unit Gaussian [B, C], in the scale of the batch.

    The last layer begins small, so that codes begin alike before the norm; its epsilon keeps them small.
    """

    def __init__(self, inputs: int, hidden: int, code: int):
        super().__init__()
        layers = [nn.Linear(inputs, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU(), nn.Linear(hidden, code)]
        self.net = nn.Sequential(*layers)
        for layer in layers[::2]:
            nn.init.xavier_uniform_(layer.weight)
            nn.init.zeros_(layer.bias)
        std = math.sqrt(1e-4 / hidden)
        nn.init.trunc_normal_(layers[-1].weight, 0.0, std, -2 * std, 2 * std)
        self.norm = nn.BatchNorm1d(code, eps=1e-3, track_running_stats=False)  # codes serve the loss alone

    def forward(self, *inputs: Tensor) -> Tensor:
        """[B, ...] each, joined -> [B, C]."""
        return self.norm(self.net(torch.cat(inputs, -1)))


def log_density(code: Tensor, mean: Tensor) -> Tensor:
    """Of codes [..., C] under N(mean, 1), [...] nats, without the constant."""
    return -0.5 * (code - mean).square().sum(-1)


def bottleneck_loss(code: Tensor, forward: Tensor, backward: Tensor, later: Tensor, beta: float) -> tuple[Tensor, Tensor]:
    """The conditional entropy bottleneck, and its bound on the predictive information; scalars, nats.

    L = beta (log e - log b_i) - (log b_i - log mean_k b_k) + 0.6 beta (log e - log b'_i), mean over B, with
    e = e(z_i | x_i), b_k = b(z_i | y_k), b'_i = b(z_i | y'_i).

    Args:
        code: [B, C], z_i, sampled from e.
        forward: [B, C], mean of e.
        backward, later: [B, C], means of b for the futures y_i and y'_i, one decision later.
        beta: weight of the compression.

    Returns:
        The loss, and the bound: the mean of the second bracket, at most log B.
    """
    log_e = log_density(code, forward)  # [B]
    log_b = log_density(code[:, None], backward[None])  # [B, B], row i has z_i, column k has y_k
    own = log_b.diagonal()  # [B]
    bound = own - log_b.logsumexp(1) + math.log(len(code))  # [B]
    residual = beta * (log_e - own) + FURTHER * beta * (log_e - log_density(code, later))  # [B]
    return (residual - bound).mean(), bound.mean()
