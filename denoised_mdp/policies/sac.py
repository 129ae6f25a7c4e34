"""Soft actor-critic on the latent MDP (Haarnoja et al. 2018; Wang et al. 2022, appendix)."""

from __future__ import annotations

import copy
import math

import torch
from torch import Tensor, nn

from denoised_mdp.models.mdp import LatentMDP, PolicyBatch
from denoised_mdp.optim import Adam, make_optimizer, optimize, soft_update, without_gradients
from denoised_mdp.optim.parallel import normal
from denoised_mdp.policies.actor import make_actor
from denoised_mdp.policies.base import Policy
from denoised_mdp.policies.critics import Critics, DiscreteCritics

MIN_STD = 1e-4
"""added to every std of the actor; not an option of this policy"""


class SACPolicy(Policy):
    """Learns from the batch's own transitions between posterior latents; nothing is imagined.

    A transition is (x_t, a_t, r_x(x_{t+1}), x_{t+1}) for consecutive rows of a segment, a_t the action stored
    with row t + 1. No transition leads from the end of one episode to the beginning of the next. Targets bootstrap
    except where the task terminated: time limits are not terminations.
    """

    def __init__(
        self,
        mdp: LatentMDP,
        *,
        hidden: int,
        actor_layers: int,
        norm: str,
        initial_std: float,
        critic_layers: int,
        gamma: float,
        tau: float,
        actor_lr: float,
        critic_lr: float,
        temperature_lr: float,
        initial_temperature: float,
        target_entropy: float | None,
        eps: float,
        actor_clip: float | None,
        optimizer: str,
        agc: float | None,
        warmup: int,
    ):
        super().__init__()
        self.gamma, self.tau, self.actor_clip = gamma, tau, actor_clip
        shape = {"hidden": hidden, "layers": actor_layers, "norm": norm}
        self.actor = make_actor(mdp, **shape, initial_std=initial_std, min_std=MIN_STD)
        self.target_entropy = self.actor.target_entropy if target_entropy is None else target_entropy
        critics = DiscreteCritics if mdp.discrete else Critics
        self.critics = critics(mdp.feature_size, mdp.action_size, hidden, critic_layers, norm)
        self.targets = copy.deepcopy(self.critics).requires_grad_(False)
        self.log_temperature = nn.Parameter(torch.tensor(math.log(initial_temperature)))
        for net, lr in (("actor", actor_lr), ("critics", critic_lr)):
            descent = {"lr": lr, "eps": eps, "name": optimizer, "agc": agc, "warmup": warmup}
            self.add_optimizer(net, make_optimizer(getattr(self, net).parameters(), **descent))
        self.add_optimizer("temperature", Adam([self.log_temperature], lr=temperature_lr, eps=eps))

    def draw_noise(
        self, batch: PolicyBatch, mdp: LatentMDP, generator: torch.Generator | None
    ) -> tuple[Tensor, Tensor]:
        """Noise of the next actions a' at x', then of the actions a at x; [T - 1, B, A] each."""
        like = batch.action[1:]
        return normal(*like.shape, like=like, generator=generator), normal(*like.shape, like=like, generator=generator)

    def critic_loss(self, batch: PolicyBatch, noise: Tensor) -> Tensor:
        """Squared error to r + gamma c (min Q_target(x', a') - temperature log pi(a' | x')), a' sampled at x'.

        r is r_x(x') as in the batch; c is 0 where the episode terminated in x', else 1. Mean over the transitions,
        summed over the two nets, with the factor 1/2.
        """
        features = batch.features  # [T, B, F]
        following = features[1:]
        with torch.no_grad():
            soft_value, _ = self.actor.soft_value(following, noise, self.targets, self.log_temperature.exp())
            target = batch.reward[1:] + self.gamma * (batch.continues[1:] * soft_value)  # [T - 1, B]
        return 0.5 * batch.mean((self.critics(features[:-1], batch.action[1:]) - target).square()).sum()

    def actor_loss(self, batch: PolicyBatch, noise: Tensor) -> tuple[Tensor, Tensor]:
        """Mean of temperature log pi(a | x) - min Q(x, a), and the log densities [T - 1, B]."""
        temperature = self.log_temperature.exp().detach()
        value, log_prob = self.actor.soft_value(batch.features[:-1], noise, self.critics, temperature)
        return -batch.mean(value), log_prob

    def temperature_loss(self, batch: PolicyBatch, log_prob: Tensor) -> Tensor:
        """Mean of -log(temperature) (log pi + target entropy): raises the temperature while entropy is below target.

        It is linear in the logarithm, so the gradient does not shrink with the temperature.
        """
        return -batch.mean(self.log_temperature * (log_prob.detach() + self.target_entropy))

    def update(
        self, batch: PolicyBatch, mdp: LatentMDP, generator: torch.Generator | None = None, noise=None
    ) -> dict[str, Tensor]:
        """Update the critics, the actor on the new critics, the temperature with the actor's log pi, then the targets.

        `noise` overrides what `draw_noise` would draw.
        """
        next_noise, noise = noise or self.draw_noise(batch, mdp, generator)
        critic_loss = self.critic_loss(batch, next_noise)
        critic_norm = optimize(critic_loss, self.optimizers["critics"], None)
        with without_gradients(self.critics):
            actor_loss, log_prob = self.actor_loss(batch, noise)
            actor_norm = optimize(actor_loss, self.optimizers["actor"], self.actor_clip)
        optimize(self.temperature_loss(batch, log_prob), self.optimizers["temperature"], None)
        soft_update(self.targets, self.critics, self.tau)
        return {
            "policy/critic_loss": critic_loss.detach(),
            "policy/actor_loss": actor_loss.detach(),
            "policy/entropy": -batch.mean(log_prob.detach()),
            "policy/temperature": self.log_temperature.exp().detach(),
            "policy/critic_gradient": critic_norm,
            "policy/actor_gradient": actor_norm,
        }
