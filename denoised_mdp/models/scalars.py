"""How a network predicts a scalar: its mean, or a categorical over bins of exponential width (Hafner et al. 2025).

Each class takes the raw output of a network, [..., outputs], and has `mean(raw)` and `nll(raw, target)`, both [...].
"""

from __future__ import annotations

import torch
from torch import Tensor

from denoised_mdp.models.losses import scalar_nll

HALF_BINS = 127


class GaussianScalar:
    """N(raw, 1)."""

    outputs = 1

    @staticmethod
    def mean(raw: Tensor) -> Tensor:
        """[..., 1] -> [...]."""
        return raw.squeeze(-1)

    @classmethod
    def nll(cls, raw: Tensor, target: Tensor) -> Tensor:
        """Negative log likelihood of targets [...], nats."""
        return scalar_nll(cls.mean(raw), target)


class TwohotScalar:
    """A categorical over 255 values; a target between two of them is split over both by its distance.

    The values are symexp of equal steps from -20 to 20: b_127 = 0, the next are 0.17 away, the last 4.9e8. One net thus
    learns small and large returns alike, with a loss whose gradient does not grow with them.
    """

    outputs = 2 * HALF_BINS + 1

    @staticmethod
    def bins(like: Tensor) -> Tensor:
        """The values, ascending, [255]: the negative half, and its mirror."""
        steps = torch.linspace(-20.0, 0.0, HALF_BINS + 1, device=like.device, dtype=like.dtype)  # [128]
        half = -torch.expm1(-steps)  # symexp, [128]
        return torch.cat((half, -half[:-1].flip(0)))

    @classmethod
    def mean(cls, raw: Tensor) -> Tensor:
        """Logits [..., 255] -> sum of p_i b_i [...], with b_i and -b_i paired: equal logits give exactly 0."""
        probs = raw.softmax(-1)  # [..., 255]
        excess = probs[..., HALF_BINS + 1 :] - probs[..., :HALF_BINS].flip(-1)  # [..., 127]
        return (excess * cls.bins(raw)[HALF_BINS + 1 :]).sum(-1)

    @classmethod
    def nll(cls, raw: Tensor, target: Tensor) -> Tensor:
        """Cross entropy of logits [..., 255] with targets [...], each clipped and split over two bins, nats."""
        bins, log_probs = cls.bins(raw), raw.log_softmax(-1)
        above = torch.searchsorted(bins, target.contiguous(), right=True).clamp(1, cls.outputs - 1)  # [...]
        low, high = bins[above - 1], bins[above]
        share = ((target - low) / (high - low)).clamp(0.0, 1.0)  # [...], of the upper bin
        lower, upper = (log_probs.gather(-1, index[..., None]).squeeze(-1) for index in (above - 1, above))
        return -((1.0 - share) * lower + share * upper)


class Lowest:
    """One scalar as predicted by several networks: the lowest of their means counts, and each learns all targets.

    Raw outputs [..., K O] are those of K networks `SideBySide`, all of one kind of `SCALARS` with O outputs.
    """

    def __init__(self, kind: type[GaussianScalar | TwohotScalar], count: int):
        self.kind, self.count = kind, count

    def mean(self, raw: Tensor) -> Tensor:
        """[..., K O] -> [...]."""
        return self.kind.mean(raw.unflatten(-1, (self.count, -1))).amin(-1)

    def nll(self, raw: Tensor, target: Tensor) -> Tensor:
        """Negative log likelihood of targets [...], nats, mean over the networks."""
        targets = target[..., None].expand(*target.shape, self.count)  # [..., K]
        return self.kind.nll(raw.unflatten(-1, (self.count, -1)), targets).mean(-1)


SCALARS = {"gaussian": GaussianScalar, "twohot": TwohotScalar}
"""name in the configuration -> class"""
