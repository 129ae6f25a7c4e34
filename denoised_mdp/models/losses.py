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

    A prediction in bf16 is compared with the exact image: of a picture that is nearly right, the error of a rounded one
    would be most of the gradient. What is kept for the gradient has the prediction's type. Its gradient overwrites
    that: it can be asked for once.
    """

    @staticmethod
    def forward(ctx, prediction: Tensor, image: Tensor) -> Tensor:
        difference = prediction - image
        ctx.difference = difference.to(prediction.dtype)
        return 0.5 * torch.linalg.vector_norm(difference, dim=(1, 2, 3)).square().sum() / len(image)

    @staticmethod
    def backward(ctx, gradient: Tensor) -> tuple[Tensor, None]:
        difference, ctx.difference = ctx.difference, None
        # A number is not rounded to the pictures' type, as a tensor would be: 1 / N rounded errs alike in every pixel.
        return difference.mul_(1.0 / len(difference)).mul_(gradient.to(difference.dtype)), None


def image_nll(prediction: Tensor, image: Tensor) -> Tensor:
    """Negative log likelihood of images under N(prediction, 1), summed over pixels, mean over N: scalar, nats.

    prediction and image [N, 3, H, W]; the image in float32 or float64, the prediction perhaps in a smaller type.
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

    Equal numbers. The gradient of the first moves the posteriors alone, that of the second the priors.
    """
    fixed, target = ({name: one.map(torch.detach) for name, one in side.items()} for side in (prior, posterior))
    return kl_per_latent(posterior, fixed), kl_per_latent(target, prior)


@dataclass(frozen=True, kw_only=True)
class KLWeights:
    """How the KL terms add up (Wang et al. 2022, equation 5 and appendix on free nats).

    alpha scales all of them (1 at 64 pixels, 2 at 96); each row's beta weighs its own. A small beta of the noise makes
    it cheaper to remember something there than in the signal. The signal's rows (`LatentSpec.free`) share free nats.

    Strategy A clamps each element of their KL from below at `free_nats`. Strategy B splits it into the bound's own
    share b and the regularizer's 1 - b, with b the noise's beta, and clamps the first alone:
    b max(KL, free_nats) + (1 - b) KL. Without noise latents (Dreamer) there is no regularizer, and B is A. Strategy
    "mean" clamps the mean of the batch instead of each element.

    dyn parts two gradients (KL balance, Hafner et al. 2021): alpha and beta then weigh what posteriors may know, and
    dyn how fast each prior learns to predict them, so that a small beta does not leave the noise's prior behind.
    None: alpha beta weighs both.
    """

    alpha: float
    free_nats: float
    free_nats_strategy: str
    dyn: float | None

    @classmethod
    def from_config(cls, config: Config) -> Self:
        """Those of a configuration."""
        kl = config.model.kl
        return cls(alpha=config.alpha, free_nats=kl.free_nats, free_nats_strategy=kl.free_nats_strategy, dyn=kl.dyn)

    def total(
        self, posterior: Distributions, prior: Distributions, table: Table, share: Scalar = 1.0, signal: Scalar = 1.0
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """The weighted scalar, mean over T and B, and KL of each latent, {name: [T, B]} nats.

        share: of alpha. signal: of the weight of the signal's rows; see `KLSchedule` for both. With dyn the first is
        share * weighted(KL(posterior || sg prior)) + dyn sum of clamped KL(sg posterior || prior).
        """
        if self.dyn is None:
            kl = kl_per_latent(posterior, prior)
            return share * self.weighted(kl, table, signal), kl
        kl, to_prior = one_sided_kls(posterior, prior)
        alike = Table([replace(row, beta=1.0) for row in table.rows.values()])
        return share * self.weighted(kl, table, signal) + replace(self, alpha=self.dyn).weighted(to_prior, alike), kl

    def weighted(self, kl: dict[str, Tensor], table: Table, relaxed: Scalar = 1.0) -> Tensor:
        """KL of each latent {name: [T, B]} nats -> the weighted scalar alpha * (...), mean over T and B.

        relaxed: factor of the signal's share.
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
                average([whole])  # of several processes, all of the batch decides whether it is free
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
    """How weights of the KL move with the updates.

    warmup: updates in which alpha grows from 0, so that latents may learn to see before it costs; not the separate
    weight of the priors (`KLWeights.dyn`), which teaches them. relax: factor of the signal's weight after `relax_after`
    updates. A strong background leaves the signal while that is dear; once the noise latents hold it, a cheaper signal
    can take in what is worth few nats, such as a thin body.
    """

    def __init__(self, *, warmup: int, relax: float, relax_after: int):
        super().__init__()
        self.warmup, self.relax, self.relax_after = warmup, relax, relax_after
        if warmup or relax != 1:
            self.register_buffer("updates", torch.zeros(()))

    def step(self) -> None:
        """One more update."""
        if self.warmup or self.relax != 1:
            self.updates.add_(1)  # in place: a graph replays it

    def weights(self) -> tuple[Scalar, Scalar]:
        """Factors of alpha, and of the signal's share of it, in the current update, which is the first after 1 step."""
        share = (self.updates / self.warmup).clamp(max=1.0) if self.warmup else 1.0
        signal = torch.where(self.updates > self.relax_after, self.relax, 1.0) if self.relax != 1 else 1.0
        return share, signal
