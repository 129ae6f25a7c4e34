"""Likelihoods of images and scalars, and the weighted KL (Wang et al. 2022, section 3)."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from typing_extensions import Self

from denoised_mdp.models.rssm import Distributions
from denoised_mdp.models.structure import Table
from denoised_mdp.optim.parallel import average

if TYPE_CHECKING:
    from denoised_mdp.config.schema import Config

HALF_LOG_2PI = 0.5 * math.log(2.0 * math.pi)
Scalar = float | Tensor


class _SquaredError(torch.autograd.Function):
    """0.5 * sum((prediction - image)^2) / N, without the image-sized temporaries of the composed form.

    A bf16 prediction is compared with the exact image: once it is nearly right, the error of a rounded image would be
    most of the gradient. The difference is saved in the prediction's type. The backward pass overwrites it and so
    can run only once.
    """

    @staticmethod
    def forward(ctx, prediction: Tensor, image: Tensor) -> Tensor:
        difference = prediction - image
        ctx.difference = difference.to(prediction.dtype)
        return 0.5 * torch.linalg.vector_norm(difference, dim=(1, 2, 3)).square().sum() / len(image)

    @staticmethod
    def backward(ctx, gradient: Tensor) -> tuple[Tensor, None]:
        difference, ctx.difference = ctx.difference, None
        # A Python number is not rounded to the pictures' type, as a tensor is: a rounded 1 / N biases all pixels alike.
        return difference.mul_(1.0 / len(difference)).mul_(gradient.to(difference.dtype)), None


def image_nll(prediction: Tensor, image: Tensor) -> Tensor:
    """Negative log likelihood of images under N(prediction, 1), summed over pixels, mean over N: scalar, nats.

    prediction and image [N, 3, H, W]. The image is float32 or float64; the prediction may have a smaller type.
    """
    pixels = image[0].numel()
    return _SquaredError.apply(prediction, image) + HALF_LOG_2PI * pixels


def scalar_nll(prediction: Tensor, target: Tensor, std: float = 1.0) -> Tensor:
    """Negative log likelihood of scalars under N(prediction, std^2), elementwise, nats."""
    return 0.5 / std**2 * (prediction - target).square() + (HALF_LOG_2PI + math.log(std))


def kl_per_latent(posterior: Distributions, prior: Distributions) -> dict[str, Tensor]:
    """KL(posterior || prior) of each latent, summed over its variables: {name: [...]} nats."""
    return {name: posterior[name].kl(prior[name]).sum(-1) for name in posterior}


def one_sided_kls(posterior: Distributions, prior: Distributions) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """KL(posterior || sg prior) and KL(sg posterior || prior) of each latent: {name: [...]} nats.

    Their values are equal. The gradient of the first moves only the posteriors, that of the second only the priors.
    """
    fixed, target = ({name: one.map(torch.detach) for name, one in side.items()} for side in (prior, posterior))
    return kl_per_latent(posterior, fixed), kl_per_latent(target, prior)


@dataclass(frozen=True, kw_only=True)
class KLWeights:
    """How the KL terms add up (Wang et al. 2022, equation 5 and appendix on free nats).

    alpha scales all terms (1 at 64 pixels, 2 at 96), each row's beta its own. With a small beta of the noise, it is
    cheaper to store information there than in the signal. The signal's rows (`LatentSpec.free`) share the free nats.

    Strategy A clamps each element of their KL from below at `free_nats`. Strategy B splits their beta (1 in the paper)
    into the bound's own share b, the beta of the first noise row, and the regularizer's beta - b. It clamps only the
    first: b max(KL, free_nats) + (beta - b) KL. Without noise latents (Dreamer) there is no regularizer, and B is A.
    Strategy "mean" clamps the mean of the batch instead of each element.

    dyn separates two gradients (KL balance, Hafner et al. 2021): alpha and beta then weigh what posteriors may know,
    dyn how fast each prior learns to predict them, so a small beta does not leave the noise's prior behind.
    None: alpha beta weighs both.
    """

    alpha: float
    free_nats: float
    free_nats_strategy: str
    dyn: float | None

    @classmethod
    def from_config(cls, config: Config) -> Self:
        """The weights of a configuration."""
        kl = config.model.kl
        return cls(alpha=config.alpha, free_nats=kl.free_nats, free_nats_strategy=kl.free_nats_strategy, dyn=kl.dyn)

    def total(
        self, posterior: Distributions, prior: Distributions, table: Table, share: Scalar = 1.0, signal: Scalar = 1.0
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """The weighted KL, a scalar (mean over T and B), and the KL of each latent, {name: [T, B]} nats.

        share, signal: factors of alpha and of the weight of the signal's rows, see `KLSchedule`. With dyn, the scalar
        is share * weighted(KL(posterior || sg prior)) + dyn * sum of KL(sg posterior || prior), the signal's clamped.
        """
        if self.dyn is None:
            kl = kl_per_latent(posterior, prior)
            return share * self.weighted(kl, table, signal), kl
        kl, to_prior = one_sided_kls(posterior, prior)
        alike = Table([replace(row, beta=1.0) for row in table.rows.values()])
        return share * self.weighted(kl, table, signal) + replace(self, alpha=self.dyn).weighted(to_prior, alike), kl

    def weighted(self, kl: dict[str, Tensor], table: Table, relaxed: Scalar = 1.0) -> Tensor:
        """KL of each latent {name: [T, B]} nats -> the weighted scalar alpha * (...), mean over T and B.

        relaxed: factor of the signal's weight.
        """
        signal, noise = table.free, [row for row in table.rows.values() if not row.free]
        total = torch.zeros((), device=next(iter(kl.values())).device, dtype=next(iter(kl.values())).dtype)  # scalar
        if signal:
            beta, together = signal[0].beta, kl[signal[0].name]  # [T, B]
            for row in signal[1:]:
                together = together + kl[row.name]  # [T, B]
            share = noise[0].beta if self.free_nats_strategy == "B" and noise else beta
            if self.free_nats_strategy == "mean":
                mean = together.mean()  # scalar
                whole = mean.detach().clone()
                average([whole])  # with several processes, the whole batch decides whether it is free
                total = share * torch.where(whole < self.free_nats, self.free_nats, mean)  # scalar
            else:
                total = share * together.clamp(min=self.free_nats).mean()  # scalar
            if share != beta:
                total = total + (beta - share) * together.mean()
            total = relaxed * total
        for row in noise:  # no free nats here: information must not hide in the noise
            total = total + row.beta * kl[row.name].mean()
        return self.alpha * total


class KLSchedule(nn.Module):
    """How the KL weights change over the updates.

    warmup: updates in which alpha grows from 0, so that latents learn to see before it costs. The priors' own weight
    (`KLWeights.dyn`), which teaches them, does not grow. relax: factor of the signal's weight after `relax_after`
    updates. While the signal is expensive, a strong background leaves it. Once the noise latents hold the background, a
    cheaper signal can take in what is worth few nats, such as a thin body.
    """

    def __init__(self, *, warmup: int, relax: float, relax_after: int):
        super().__init__()
        self.warmup, self.relax, self.relax_after = warmup, relax, relax_after
        if warmup or relax != 1:
            self.register_buffer("updates", torch.zeros(()))

    def step(self) -> None:
        """Count one more update."""
        if self.warmup or self.relax != 1:
            self.updates.add_(1)  # in place, so that a graph replays it

    def weights(self) -> tuple[Scalar, Scalar]:
        """Factors of alpha and of the signal's weight in the current update; the first update follows one `step`."""
        share = (self.updates / self.warmup).clamp(max=1.0) if self.warmup else 1.0
        signal = torch.where(self.updates > self.relax_after, self.relax, 1.0) if self.relax != 1 else 1.0
        return share, signal
