"""The Denoised MDP: a factorized RSSM under the variational bound (Wang et al. 2022, section 3)."""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from denoised_mdp.models.base import Filtered, Learned, WorldModel
from denoised_mdp.models.latent import Latent
from denoised_mdp.models.losses import HALF_LOG_2PI, KLSchedule, KLWeights, image_nll, scalar_nll
from denoised_mdp.models.networks import MLP, images_to_float
from denoised_mdp.models.rssm import RSSM
from denoised_mdp.models.structure import LatentSpec, Table
from denoised_mdp.models.vision import Decoder, Encoder
from denoised_mdp.optim import make_optimizer, optimize

if TYPE_CHECKING:
    from denoised_mdp.config.schema import Config


class DenoisedModel(WorldModel):
    """Encoder, RSSM, decoder and an additive reward, one net for each rewarded row.

    `table`: the factorization. `size`: image side. `depth`: channels k. `hidden`, `reward_layers`: width and number of
    the reward nets' hidden layers. `embed`, `pixel_range`, `convolutions`: see `Encoder`.
    `block_width`: see `RSSM`; the decoder then begins with a `BlockInput`.
    `norm`: what follows every hidden layer.
    `target`: what `decode` learns to show, "observation" or "foreground": then observations in a batch have six
    channels, and the last three are the picture with a black background.
    `reward_std`: std of the Gaussian on the reward, 1 in the paper. `continuation`: add a head that predicts where
    episodes terminate, see `WorldModel.add_continuation`. `kl`, `kl_schedule`: see `KLWeights`, `KLSchedule`. `lr`,
    `eps`, `name`, `agc`, `warmup`: see `optim.make_optimizer`. `clip`: largest gradient norm.
    Options of a model and of its parts have no defaults here: `config.models` alone holds them.
    """

    decodes = True

    def __init__(
        self,
        table: Table,
        action_size: int,
        *,
        size: int,
        depth: int,
        embed: int | None,
        pixel_range: float,
        norm: str,
        convolutions: str | None,
        block_width: int | None,
        target: str,
        hidden: int,
        reward_layers: int,
        reward_std: float,
        continuation: bool,
        kl: KLWeights,
        kl_schedule: KLSchedule,
        lr: float,
        eps: float,
        clip: float | None,
        name: str,
        agc: float | None,
        warmup: int,
    ):
        super().__init__()
        self.table, self.action_size, self.size, self.target = table, action_size, size, target
        self.reward_std, self.kl, self.kl_schedule, self.clip = reward_std, kl, kl_schedule, clip
        pictures = {"size": size, "depth": depth, "norm": norm, "convolutions": convolutions}
        self.encoder = Encoder(embed=embed, pixel_range=pixel_range, **pictures)
        width = self.encoder.width
        self.rssm = RSSM(table, action_size, width, norm, block_width)
        sizes = self.rssm.layout.belief_size, self.rssm.layout.state_size
        blocks = None if block_width is None else (*sizes, block_width)
        self.decoder = Decoder(sum(sizes), embed=width, blocks=blocks, **pictures)
        self.rewards = nn.ModuleDict(
            {
                row.name: MLP(self._reward_inputs(row), hidden, 1, reward_layers, norm)
                for row in table.rows.values()
                if row.rewarded
            }
        )
        if continuation:
            self.add_continuation(hidden, norm)
        self.make_optimizer = partial(make_optimizer, lr=lr, eps=eps, name=name, agc=agc, warmup=warmup)
        self.optimizers["model"] = self.make_optimizer(self.parameters())

    @classmethod
    def options(cls, config: Config) -> dict[str, Any]:
        """Constructor arguments from a configuration; see `WorldModel.options`."""
        m = config.model
        return {
            **super().options(config),
            "block_width": m.width if m.core == "block" else None,
            "target": m.target,
            "kl_schedule": KLSchedule(warmup=m.kl.warmup, relax=m.kl.relax, relax_after=m.kl.relax_after),
        }

    def _reward_inputs(self, row: LatentSpec) -> int:
        """Input width of the net for a row's share of the reward."""
        return sum(other.belief + other.width for other in map(self.table.rows.get, (*row.reward_sees, row.name)))

    def update(self, batch: dict[str, Tensor], generator: torch.Generator) -> Learned:
        """One step on the variational bound; see `WorldModel.update`."""
        noise = self.draw_noise(*batch["reward"].shape, generator=generator)
        self.kl_schedule.step()
        loss, latent, shares, metrics = self.loss(**batch, noise=noise)
        metrics["model/gradient"] = optimize(loss, self.optimizers["model"], self.clip)
        reward = sum(shares[row.name] for row in self.table.seen if row.rewarded)  # [T, B]
        return Learned(latent.map(torch.detach), reward.detach(), metrics)

    def loss(
        self,
        observation: Tensor,
        action: Tensor,
        reward: Tensor,
        is_first: Tensor,
        is_terminal: Tensor,
        noise: Tensor,
        start: Tensor | None = None,
    ) -> tuple[Tensor, Latent, dict[str, Tensor], dict[str, Tensor]]:
        """The variational bound of a batch: reconstruction + weighted KL (Wang et al. 2022, equation 5).

        observation uint8 [T, B, H, W, 3 or 6], action [T, B, A], reward [T, B], is_first and is_terminal bool [T, B],
        noise [T, B, S]. A continuation head adds its negative log likelihood. Segments start from the zero latent or
        from start [1, B, D + S]. Returns the scalar loss in nats, the posterior latents [T, B, ...] and their reward
        shares {name: [T, B]} (both still attached), and detached metrics as tensors.
        """
        images = self.float_images(observation)  # [T B, 3, H, W]
        embed = self.encoder(images).unflatten(0, observation.shape[:2])  # [T, B, E]
        latent, posterior, prior = self.rssm.observe(embed, action, is_first, noise, self.latent_before(start))
        weights = self.kl_schedule.weights()
        weighted_kl, kl = self.kl.total(posterior, prior, self.table, *weights)  # scalar, {name: [T, B]}
        shares = self.reward_shares(latent)  # {name: [T, B]}
        shown = images if self.target == "observation" else self.float_images(observation[..., 3:])  # [T B, 3, H, W]
        image_loss = self.image_nll(self.decode(latent), shown)
        reward_loss = scalar_nll(sum(shares.values()), reward, self.reward_std).mean()
        ends = self.continuation_terms(latent, is_terminal)
        loss = image_loss + reward_loss + weighted_kl + sum(ends.values())

        constant = HALF_LOG_2PI * images[0].numel()
        metrics = {
            "model/loss": loss - constant,
            "model/image_error": image_loss - constant,
            "model/reward_error": (reward_loss - HALF_LOG_2PI - math.log(self.reward_std)) * self.reward_std**2,
        }
        metrics |= {f"model/kl_{name}": part.mean() for name, part in kl.items()}
        metrics |= {f"model/reward_{name}": share.mean() for name, share in shares.items()} | ends
        return loss, latent, shares, {name: value.detach() for name, value in metrics.items()}

    def image_nll(self, prediction: Tensor, image: Tensor) -> Tensor:
        """`losses.image_nll` of images [N, 3, H, W], a scalar. Override it for another reconstruction loss."""
        return image_nll(prediction, image)

    @property
    def free_nats(self) -> float:
        """Nats per step that cost nothing in the signal's KL."""
        return self.kl.free_nats

    def float_images(self, observation: Tensor) -> Tensor:
        """uint8 [..., H, W, 3 or more] -> floats [N, 3, H, W] of the first three channels, in the parameters' type."""
        return images_to_float(observation[..., :3], self.encoder.like.dtype)

    def embed(self, observation: Tensor) -> Tensor:
        """uint8 images [..., H, W, 3] -> embeddings [..., E]."""
        return self.encoder(self.float_images(observation)).unflatten(0, observation.shape[:-3])

    def filter(
        self, observation: Tensor, action: Tensor, is_first: Tensor, noise: Tensor, initial: Latent | None = None
    ) -> Filtered:
        """Posterior over a sequence; see `WorldModel.filter`."""
        embedding = self.embed(observation)  # [T, B, E]
        return Filtered(*self.rssm.observe(embedding, action, is_first, noise, initial), embedding)

    def initial(self, batch: int) -> Latent:
        """The zero latent, [B, ...]."""
        return self.rssm.initial(batch)

    def imagine_step(self, latent: Latent, action: Tensor, noise: Tensor) -> Latent:
        """Sample the priors of what the policy sees; see `WorldModel.imagine_step`."""
        return self.rssm.imagine_step(latent, action, noise)

    def decode(self, latent: Latent) -> Tensor:
        """Latents [..., D], [..., S] -> mean images [N, 3, H, W]; see `WorldModel.decode`."""
        return self.decoder(latent.features().flatten(0, -2))

    def reward_shares(self, latent: Latent) -> dict[str, Tensor]:
        """Mean reward share of each rewarded row in `latent`: {name: [...]}; their sum is the predicted reward."""
        beliefs, states = latent.layout.split_belief(latent.belief), latent.layout.split_state(latent.state)
        shares = {}
        for name in latent.layout.names:
            row = self.table.rows[name]
            if row.rewarded:
                parts = [part for other in (*row.reward_sees, name) for part in (beliefs[other], states[other])]
                shares[name] = self.rewards[name](torch.cat(parts, -1)).squeeze(-1)  # [...]
        return shares

    def seen_reward(self, latent: Latent) -> Tensor:
        """Mean reward [...] predicted from latents [...] of what the policy sees."""
        return sum(self.reward_shares(latent).values())
