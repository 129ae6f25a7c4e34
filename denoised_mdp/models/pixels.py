"""Networks and initial weights of model-free agents that learn from pictures, as in SAC-AE, DBC and CURL.

Symbols: N batch, k frames of a stack, S height and width, F features, A action size, E size of flattened convolutions.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from denoised_mdp.models.frames import center_cut, to_unit
from denoised_mdp.models.networks import MLP, convolve

CONVOLUTIONS = 4
KERNEL = 3
LOG_STD = (-10.0, 2.0)
"""limits of the actor's log std"""
POOLED = 4
"""height and width of the grid of `PixelEncoder.pooled`"""


class Head(nn.Module):
    """Flattened convolutions [..., E] -> features [..., F]: a linear layer, then LayerNorm.

    It runs in the parameters' type: pictures often differ little beside a large common offset, and LayerNorm would
    magnify the rounding of fewer bits.
    """

    def __init__(self, inputs: int, features: int):
        super().__init__()
        self.linear, self.norm = nn.Linear(inputs, features), nn.LayerNorm(features)

    def forward(self, hidden: Tensor) -> Tensor:
        """[..., E] -> [..., F]."""
        return self.norm(self.linear(hidden))


class PixelEncoder(nn.Module):
    """Stacks of frames [N, 3 k, S, S] in [0, 1] -> phi [N, F]: four 3x3 convolutions with ReLU, the first of stride 2.

    The actor shares `convolve`; `head` is the rest. From 84 pixels, the convolutions' sides are 41, 39, 37, 35.
    """

    def __init__(self, frames: int, size: int, depth: int = 32, features: int = 50):
        super().__init__()
        channels = [3 * frames, *[depth] * CONVOLUTIONS]
        strides = [2, *[1] * (CONVOLUTIONS - 1)]
        self.convolutions = nn.ModuleList(
            nn.Conv2d(i, o, KERNEL, stride) for i, o, stride in zip(channels, channels[1:], strides, strict=False)
        )
        self.frames, self.size, self.depth, self.width = frames, size, depth, features
        self.side = (size - KERNEL) // 2 + 1 - (CONVOLUTIONS - 1) * (KERNEL - 1)  # of the last convolution's output
        self.head = Head(depth * self.side**2, features)
        self.compute_dtype: torch.dtype | None = None

    @property
    def like(self) -> Tensor:
        """A weight, for its device and type."""
        return self.convolutions[0].weight

    def read(self, pictures: Tensor) -> Tensor:
        """Stacks of frames, uint8 [N, k, H, W, 3] -> features of the center crop, as probes read them, [N, F]."""
        return self.probed(self.convolve_frames(pictures))

    def convolve_frames(self, pictures: Tensor) -> Tensor:
        """Stacks of frames, uint8 [N, k, H, W, 3] -> convolutions of the center crop, [N, E]."""
        stacked = pictures.permute(0, 2, 3, 1, 4).flatten(-2)  # [N, H, W, 3 k]
        return self.convolve(to_unit(center_cut(stacked, self.size), self.like.dtype))

    def probed(self, hidden: Tensor) -> Tensor:
        """The features that probes read, from the convolutions [N, E]: phi after LayerNorm, [N, F]."""
        return self.head(hidden)

    def convolve(self, pictures: Tensor) -> Tensor:
        """[N, 3 k, S, S] -> [N, E], in the parameters' type."""
        x = pictures.to(self.compute_dtype or pictures.dtype)
        for layer in self.convolutions:
            x = F.relu(convolve(x, layer), inplace=True)  # [N, depth, ...]
        return x.flatten(1).to(layer.weight.dtype)

    def forward(self, pictures: Tensor) -> Tensor:
        """[N, 3 k, S, S] -> phi [N, F]."""
        return self.head(self.convolve(pictures))

    def pooled(self, hidden: Tensor) -> Tensor:
        """Convolutions [N, E] averaged over the cells of a coarse grid, small enough for a probe, [N, 16 depth]."""
        return F.adaptive_avg_pool2d(hidden.view(-1, self.depth, self.side, self.side), POOLED).flatten(1)


class PixelActor(nn.Module):
    """Flattened convolutions -> a head of its own -> two hidden layers -> a tanh-squashed Gaussian."""

    def __init__(self, inputs: int, action_size: int, hidden: int, features: int):
        super().__init__()
        self.head = Head(inputs, features)
        self.net = MLP(features, hidden, 2 * action_size, layers=2, norm="relu")

    def forward(self, hidden: Tensor) -> tuple[Tensor, Tensor]:
        """[N, E] -> mean and std before the squashing, [N, A]; log std = -10 + 6 (tanh(raw) + 1)."""
        mean, raw = self.net(self.head(hidden)).chunk(2, -1)  # [N, A] each
        low, high = LOG_STD
        return mean, (low + 0.5 * (high - low) * (torch.tanh(raw) + 1.0)).exp()

    def mode(self, hidden: Tensor) -> Tensor:
        """The deterministic action tanh(mean), [N, A]."""
        return torch.tanh(self(hidden)[0])

    def sample(self, hidden: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        """An action [N, A] from standard normal noise [N, A], and its log density [N]."""
        mean, std = self(hidden)
        action = torch.tanh(mean + std * noise)  # [N, A]
        gaussian = -0.5 * noise.square() - std.log() - 0.5 * math.log(2.0 * math.pi)  # [N, A]
        return action, (gaussian - torch.log(1.0 - action.square() + 1e-6)).sum(-1)


def initialize(module: nn.Module) -> None:
    """Make linear layers orthogonal, and convolutions in their middle tap (gain sqrt 2); other taps and biases are 0.

    This is the delta-orthogonal initialization of Xiao et al. 2018. It draws from PyTorch's global generator.
    """
    for layer in module.modules():
        if isinstance(layer, nn.Linear):
            nn.init.orthogonal_(layer.weight)
        elif isinstance(layer, nn.Conv2d):
            middle = layer.kernel_size[0] // 2
            nn.init.zeros_(layer.weight)
            nn.init.orthogonal_(layer.weight.data[:, :, middle, middle], math.sqrt(2.0))
        else:
            continue
        nn.init.zeros_(layer.bias)
