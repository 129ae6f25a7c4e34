"""RePo: no reconstruction, and a bound on the KL (Zhu et al., NeurIPS 2023).

The model maximizes the likelihood of rewards subject to E[KL(posterior || prior)] <= limit, by a dual variable.
Information that is neither needed for rewards nor predictable is dropped. A decoder may learn alongside, for pictures.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from denoised_mdp.models.base import Learned
from denoised_mdp.models.denoised import DenoisedModel
from denoised_mdp.models.latent import Latent
from denoised_mdp.models.losses import HALF_LOG_2PI, kl_per_latent, one_sided_kls, scalar_nll
from denoised_mdp.models.rssm import Distributions
from denoised_mdp.models.structure import Table
from denoised_mdp.optim import Adam, optimize

if TYPE_CHECKING:
    from denoised_mdp.config.schema import Config


def balanced_kl(posterior: Distributions, prior: Distributions, balance: float) -> Tensor:
    """balance KL(sg posterior || prior) + (1 - balance) KL(posterior || sg prior), summed over latents: [T, B] nats.

    Its value is the KL. With balance > 1/2, its gradient moves the prior to the posterior more than the reverse.
    """
    to_posterior, to_prior = one_sided_kls(posterior, prior)  # {name: [T, B]}
    return sum(balance * to_prior[name] + (1.0 - balance) * to_posterior[name] for name in posterior)


class RePo(DenoisedModel):
    """The parts of `DenoisedModel` with other losses. In the paper the table has one latent, x.

    `kl_limit`: nats per step. `kl_balance`: see `balanced_kl`. `initial_beta`, `dual_lr`: start and rate of the KL's
    weight beta. `decoder`: learn one. `eps`, `options`: see `DenoisedModel`; `kl` and `kl_schedule` are unused.
    """

    def __init__(
        self,
        table: Table,
        action_size: int,
        *,
        kl_limit: float,
        kl_balance: float,
        initial_beta: float,
        dual_lr: float,
        decoder: bool,
        eps: float,
        **options: Any,
    ):
        super().__init__(table, action_size, eps=eps, **options)
        self.kl_limit, self.kl_balance = kl_limit, kl_balance
        self.decodes = decoder
        rest = [parameter for name, parameter in self.named_parameters() if not name.startswith("decoder.")]
        self.optimizers["model"] = self.make_optimizer(rest)
        self.log_beta = nn.Parameter(torch.tensor(math.log(initial_beta)))
        self.optimizers["dual"] = Adam([self.log_beta], lr=dual_lr, eps=eps)
        if decoder:
            self.optimizers["decoder"] = self.make_optimizer(self.decoder.parameters())
        else:
            self.decoder = None

    @classmethod
    def options(cls, config: Config) -> dict[str, Any]:
        """Constructor arguments from a configuration."""
        names = ("kl_limit", "kl_balance", "initial_beta", "dual_lr", "decoder")
        return super().options(config) | {name: getattr(config.model, name) for name in names}

    def update(self, batch: dict[str, Tensor], generator: torch.Generator) -> Learned:
        """One step of the model, then of beta, then of the decoder; see `WorldModel.update`."""
        noise = self.draw_noise(*batch["reward"].shape, generator=generator)
        loss, excess, latent, shares, metrics = self.loss(**batch, noise=noise)
        metrics["model/gradient"] = optimize(loss, self.optimizers["model"], self.clip)
        optimize(self.dual_loss(excess), self.optimizers["dual"], None)
        latent = latent.map(torch.detach)
        if self.decodes:
            metrics |= self.learn_to_decode(latent, batch["observation"])
        reward = sum(shares[row.name] for row in self.table.seen if row.rewarded)  # [T, B]
        return Learned(latent, reward.detach(), metrics)

    def loss(
        self,
        observation: Tensor,
        action: Tensor,
        reward: Tensor,
        is_first: Tensor,
        is_terminal: Tensor,
        noise: Tensor,
        start: Tensor | None = None,
    ) -> tuple[Tensor, Tensor, Latent, dict[str, Tensor], dict[str, Tensor]]:
        """NLL(reward) + sg(beta) (KL - limit), means over T and B. Arguments are those of `DenoisedModel.loss`.

        A continuation head adds its term. Returns the scalar loss, KL - limit (detached), the posterior latents
        [T, B, ...], their reward shares {name: [T, B]} and detached metrics.
        """
        before = self.latent_before(start)
        latent, posterior, prior = self.rssm.observe(self.embed(observation), action, is_first, noise, before)
        shares = self.reward_shares(latent)  # {name: [T, B]}
        reward_loss = scalar_nll(sum(shares.values()), reward, self.reward_std).mean()  # scalar
        excess = balanced_kl(posterior, prior, self.kl_balance).mean() - self.kl_limit  # scalar
        beta = self.log_beta.detach().exp()
        ends = self.continuation_terms(latent, is_terminal)
        loss = reward_loss + beta * excess + sum(ends.values())
        metrics = {
            "model/loss": loss,
            "model/reward_error": (reward_loss - HALF_LOG_2PI - math.log(self.reward_std)) * self.reward_std**2,
            "model/beta": beta,
        }
        metrics |= {f"model/kl_{name}": part.mean() for name, part in kl_per_latent(posterior, prior).items()}
        metrics |= {f"model/reward_{name}": share.mean() for name, share in shares.items()} | ends
        return loss, excess.detach(), latent, shares, {name: value.detach() for name, value in metrics.items()}

    def dual_loss(self, excess: Tensor) -> Tensor:
        """-log(beta) (KL - limit): descending it raises beta while the KL is above its limit."""
        return -self.log_beta * excess

    def learn_to_decode(self, latent: Latent, observation: Tensor) -> dict[str, Tensor]:
        """Take one step of the decoder alone on detached latents [T, B, ...]; return its error as a metric."""
        images = self.float_images(observation)  # [T B, 3, H, W]
        loss = self.image_nll(self.decode(latent), images)
        optimize(loss, self.optimizers["decoder"], self.clip)
        return {"model/image_error": loss.detach() - HALF_LOG_2PI * images[0].numel()}

    @property
    def free_nats(self) -> float:
        """RePo has no free nats."""
        return 0.0
