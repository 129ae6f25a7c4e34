"""World model: encoder, factorized RSSM, decoder, rewards, and the variational loss (Wang et al. 2022, section 3).

Time-major tensors [T, B, ...]: T segment length, B batch.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from .networks import MLP, Decoder, Encoder, images_to_float
from .rssm import RSSM, Gaussian, Latent, LatentSpec, kl_divergence

HALF_LOG_2PI = 0.5 * math.log(2.0 * math.pi)


@dataclass(frozen=True)
class KLWeights:
    """Weights of the KL terms (Wang et al. 2022, equation 5 and appendix on free nats).

    alpha scales all of them (1 at 64 pixels, 2 at 96); beta_y, beta_z in (0, 1]: smaller means a smaller,
    cleaner x, 1 is no regularization. Strategy A clamps each element of KL_x from below at `free_nats`. Strategy B
    splits beta_x KL_x = beta_y KL_x + (beta_x - beta_y) KL_x into the bound's own term and the regularizer, and
    clamps KL_x in the first alone: beta_y max(KL_x, free_nats) + (beta_x - beta_y) KL_x. Without y (Dreamer) there is
    no regularizer, and B is A.
    """

    alpha: float = 1.0
    beta_x: float = 1.0
    beta_y: float = 1.0
    beta_z: float = 1.0
    free_nats: float = 3.0
    free_nats_strategy: str = "A"

    def weighted(self, kl: dict[str, Tensor]) -> Tensor:
        """KL per latent {name: [T, B]} nats -> the weighted scalar alpha * (...), mean over T and B."""
        clamped = kl["x"].clamp(min=self.free_nats).mean()
        if self.free_nats_strategy == "A" or "y" not in kl:
            total = self.beta_x * clamped
        else:
            total = self.beta_y * clamped + (self.beta_x - self.beta_y) * kl["x"].mean()
        for name, beta in (("y", self.beta_y), ("z", self.beta_z)):
            if name in kl:  # no free nats here: information must not hide in y or z
                total = total + beta * kl[name].mean()
        return self.alpha * total


class _SquaredError(torch.autograd.Function):
    """0.5 * sum((prediction - image)^2), without the image-sized temporaries of the composed form.

    A prediction in bf16 is compared with the exact image: of a picture that is nearly right, the error of a rounded one
    would be most of the gradient. What is kept for the gradient has the prediction's type. Its gradient overwrites
    that: it can be asked for once.
    """

    @staticmethod
    def forward(ctx, prediction: Tensor, image: Tensor) -> Tensor:
        difference = prediction - image
        ctx.difference = difference.to(prediction.dtype)
        return 0.5 * torch.linalg.vector_norm(difference, dim=(1, 2, 3)).square().sum()

    @staticmethod
    def backward(ctx, gradient: Tensor) -> tuple[Tensor, None]:
        difference, ctx.difference = ctx.difference, None
        return difference.mul_(gradient.to(difference.dtype)), None


def image_nll(prediction: Tensor, image: Tensor) -> Tensor:
    """Negative log likelihood of images under N(prediction, 1), summed over pixels, mean over N: scalar, nats.

    prediction and image [N, 3, H, W]; the image in float32 or float64, the prediction perhaps in a smaller type.
    """
    pixels = image[0].numel()
    return _SquaredError.apply(prediction, image) / len(image) + HALF_LOG_2PI * pixels


def scalar_nll(prediction: Tensor, target: Tensor, std: float = 1.0) -> Tensor:
    """Negative log likelihood of scalars under N(prediction, std^2), elementwise, nats."""
    return 0.5 / std**2 * (prediction - target).square() + (HALF_LOG_2PI + math.log(std))


@dataclass
class Filtered:
    """What the filter made of a batch: samples, posterior and prior, each [T, B, ...]."""

    latent: Latent
    posterior: Gaussian
    prior: Gaussian


class WorldModel(nn.Module):
    """Encoder, RSSM, decoder and additive rewards r = r_x + r_y (z never enters).

    `specs`: the factorization table (`rssm.structure`). `size`: image side, 64 or 96. `depth`: channels k.
    `hidden`: width of the reward nets. `reward_std`: std of the Gaussian on the reward; the paper's is 1.
    """

    def __init__(
        self,
        specs: tuple[LatentSpec, ...],
        action_size: int,
        *,
        size: int = 64,
        depth: int = 32,
        embed: int = 1024,
        hidden: int = 400,
        reward_std: float = 1.0,
        kl: KLWeights | None = None,
    ):
        super().__init__()
        self.size, self.reward_std, self.kl = size, reward_std, kl or KLWeights()
        self.encoder = Encoder(size, depth, embed)
        self.rssm = RSSM(specs, action_size, embed)
        self.decoder = Decoder(self.rssm.layout.belief_size + self.rssm.layout.state_size, size, depth, embed)
        self.rewards = nn.ModuleDict(
            {spec.name: MLP(spec.belief + spec.state, hidden, 1, layers=2) for spec in specs if spec.rewarded}
        )

    def float_images(self, observation: Tensor) -> Tensor:
        """uint8 [..., H, W, 3] -> floats [N, 3, H, W] in [-0.5, 0.5] in the parameters' type."""
        return images_to_float(observation, self.encoder.output.weight.dtype)

    def embed(self, observation: Tensor) -> Tensor:
        """uint8 images [..., H, W, 3] -> embeddings [..., E]."""
        return self.encoder(self.float_images(observation)).unflatten(0, observation.shape[:-3])

    def filter(
        self, observation: Tensor, action: Tensor, is_first: Tensor, noise: Tensor, initial: Latent | None = None
    ) -> Filtered:
        """Posterior over a sequence: observation uint8 [T, B, H, W, 3], the rest as in `RSSM.observe`."""
        return Filtered(*self.rssm.observe(self.embed(observation), action, is_first, noise, initial))

    def decode(self, latent: Latent) -> Tensor:
        """Latents [..., D], [..., S] -> mean images [N, 3, H, W], floats around [-0.5, 0.5], N = prod(...)."""
        return self.decoder(latent.features().flatten(0, -2))

    def reward_shares(self, latent: Latent) -> dict[str, Tensor]:
        """Mean reward share of each rewarded latent: {name: [...]}; their sum is the predicted reward."""
        return {name: net(latent.features(name)).squeeze(-1) for name, net in self.rewards.items()}

    def loss(
        self, observation: Tensor, action: Tensor, reward: Tensor, is_first: Tensor, noise: Tensor
    ) -> tuple[Tensor, Latent, dict[str, Tensor], dict[str, Tensor]]:
        """The variational bound of a batch: reconstruction + weighted KL (Wang et al. 2022, equation 5).

        observation uint8 [T, B, H, W, 3], action [T, B, A], reward [T, B], is_first bool [T, B],
        noise [T, B, S]. Every segment starts from the zero latent. Returns the scalar loss in nats, the posterior
        latents [T, B, ...] and their reward shares {name: [T, B]} (still attached) and detached metrics as tensors.
        """
        images = self.float_images(observation)  # [T B, 3, H, W]
        embed = self.encoder(images).unflatten(0, observation.shape[:2])  # [T, B, E]
        latent, posterior, prior = self.rssm.observe(embed, action, is_first, noise)

        split = self.rssm.layout.split_state
        kl = {name: part.sum(-1) for name, part in split(kl_divergence(posterior, prior)).items()}  # [T, B]
        shares = self.reward_shares(latent)
        image_loss = image_nll(self.decode(latent), images)
        reward_loss = scalar_nll(sum(shares.values()), reward, self.reward_std).mean()
        loss = image_loss + reward_loss + self.kl.weighted(kl)

        constant = HALF_LOG_2PI * images[0].numel()
        metrics = {
            "model/loss": loss - constant,
            "model/image_error": image_loss - constant,
            "model/reward_error": (reward_loss - HALF_LOG_2PI - math.log(self.reward_std)) * self.reward_std**2,
        }
        metrics |= {f"model/kl_{name}": part.mean() for name, part in kl.items()}
        metrics |= {f"model/reward_{name}": share.mean() for name, share in shares.items()}
        return loss, latent, shares, {name: value.detach() for name, value in metrics.items()}


class LatentMDP:
    """The denoised MDP that a policy sees: the signal latent x alone, its prior and its reward r_x.

    Nothing else of the world model is reachable from here, so that no policy can look at y or z.
    """

    def __init__(self, model: WorldModel):
        spec = model.rssm.specs["x"]
        self.belief_size, self.state_size = spec.belief, spec.state
        self.feature_size = spec.belief + spec.state
        self.action_size = model.rssm.action_size
        self._step, self._reward = model.rssm.imagine_step, model.rewards["x"]

    def step(self, belief: Tensor, state: Tensor, action: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        """Sample the x prior: belief [N, D_x], state [N, S_x], action [N, A], noise [N, S_x] -> the next pair."""
        return self._step(belief, state, action, noise)

    def reward(self, features: Tensor) -> Tensor:
        """Mean of r_x: features [..., D_x + S_x] -> [...]."""
        return self._reward(features).squeeze(-1)
