"""Quasimetrics: distances that need not be symmetric, with d(a, a) = 0, d >= 0 and d(a, c) <= d(a, b) + d(b, c).

Every optimal cost-to-go between states is one. A head maps two batches of vectors [..., F], which broadcast, to
distances [...]; it is differentiable in both. `IQE` and `PQELH` read a vector as `components` groups of `size` numbers,
F = components * size. A distance has the unit of the data that its head is fitted to, e.g. decisions (`analysis.qrl`).
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

MAX_SHARE = -1.0
"""initial logit of the maximum's weight in `IQE` with "maxmean": a weight of 0.27"""


def relu_network(*widths: int) -> nn.Sequential:
    """Linear layers of these widths with ReLU in between; uniform weights (Glorot and Bengio 2010), zero biases."""
    layers: list[nn.Module] = []
    for inputs, outputs in zip(widths[:-1], widths[1:], strict=True):
        layer = nn.Linear(inputs, outputs)
        nn.init.xavier_uniform_(layer.weight)
        nn.init.zeros_(layer.bias)
        layers += [layer, nn.ReLU()]
    return nn.Sequential(*layers[:-1])


class IQE(nn.Module):
    """Interval quasimetric embeddings (Wang and Isola 2022, arXiv:2211.15120).

    A component's distance is the length of the union over j of the intervals [u_j, max(u_j, v_j)]. reduction: "sum" of
    the components, or "maxmean": a max + (1 - a) mean, with a learned a, which starts at 0.27. Scaling both vectors by
    t > 0 scales the distance by t. Use float32 or better: ties matter.
    """

    def __init__(self, components: int, size: int, reduction: str = "sum"):
        super().__init__()
        if reduction not in ("sum", "maxmean"):
            raise ValueError(f"reduction must be sum or maxmean, not {reduction!r}")
        self.components, self.size = components, size
        self.raw = nn.Parameter(torch.tensor(MAX_SHARE)) if reduction == "maxmean" else None

    def component_distances(self, u: Tensor, v: Tensor) -> Tensor:
        """Lengths of the unions: [..., F] and [..., F] -> [..., components]."""
        u, v = torch.broadcast_tensors(u, v)
        u, v = (x.unflatten(-1, (self.components, self.size)) for x in (u, v))  # [..., components, size]
        begin, order = u.sort(-1)
        end = torch.maximum(u, v).gather(-1, order).cummax(-1).values  # how far the union reaches so far
        begin = torch.cat(
            [begin[..., :1], torch.maximum(begin[..., 1:], end[..., :-1])], -1
        )  # start of what each interval adds
        return F.relu(end - begin).sum(-1)  # [..., components]

    def forward(self, u: Tensor, v: Tensor) -> Tensor:
        """[..., F] and [..., F] -> [...]."""
        each = self.component_distances(u, v)
        if self.raw is None:
            return each.sum(-1)
        share = torch.sigmoid(self.raw)
        return share * each.amax(-1) + (1 - share) * each.mean(-1)


class PQELH(nn.Module):
    """Poisson quasimetric embeddings with Lebesgue measures and half-lines (Wang and Isola, ICLR 2022).

    d(u, v) = sum_i alpha_i (1 - exp(-mean_j relu(u_ij - v_ij))). Each component is bounded by its alpha_i >= 0, the
    square of a deep linear network's i-th output. The paper prints a sum over j; its code takes the mean.
    """

    def __init__(self, components: int, size: int = 4):
        super().__init__()
        self.components, self.size = components, size
        width = max(64, 2 ** (1 + math.ceil(math.log2(components))))
        shapes = [(width, 1), (width, width), (width, width), (components, width)]
        self.factors = nn.ParameterList(torch.randn(shape) / shape[1] ** 0.5 for shape in shapes)  # Kaiming, gain 1
        self.bias = nn.Parameter(torch.zeros(components))

    def component_distances(self, u: Tensor, v: Tensor) -> Tensor:
        """Each component's distance divided by its alpha, in [0, 1): [..., F] and [..., F] -> [..., components]."""
        above = F.relu(u - v).unflatten(-1, (self.components, self.size))
        return -torch.expm1(-above.mean(-1))  # [..., components]

    @property
    def alpha(self) -> Tensor:
        """Nonnegative weights [components]."""
        first, *others = self.factors
        for factor in others:
            first = factor @ first  # [., 1]
        return (first[:, 0] + self.bias).square()

    def forward(self, u: Tensor, v: Tensor) -> Tensor:
        """[..., F] and [..., F] -> [...]."""
        return (self.component_distances(u, v) * self.alpha).sum(-1)


class MRN(nn.Module):
    """Metric residual networks (Liu et al., AAAI 2023): a symmetric and a directed part.

    d(u, v) = sqrt(mean_j (p(u) - p(v))_j^2) + max_j relu(q(u) - q(v))_j with networks p and q from `inputs` numbers to
    `outputs`. The published form squares the first term, which breaks the triangle inequality; this one does not.
    """

    def __init__(self, inputs: int, hidden: int = 176, outputs: int = 16):
        super().__init__()
        self.symmetric, self.directed = (relu_network(inputs, hidden, outputs) for _ in range(2))

    def forward(self, u: Tensor, v: Tensor) -> Tensor:
        """[..., F] and [..., F] -> [...]."""
        offset = self.symmetric(u) - self.symmetric(v)  # [..., outputs]
        above = F.relu(self.directed(u) - self.directed(v))  # [..., outputs]
        return torch.linalg.vector_norm(offset, dim=-1) / offset.shape[-1] ** 0.5 + above.amax(-1)


class Euclid(nn.Module):
    """The symmetric ablation: d(u, v) = ||u - v||."""

    def forward(self, u: Tensor, v: Tensor) -> Tensor:
        """[..., F] and [..., F] -> [...]."""
        return torch.linalg.vector_norm(u - v, dim=-1)
