"""Policy by the likelihood-ratio gradient in imagination, as in DreamerV3 (Williams 1992; Hafner et al. 2025)."""

from __future__ import annotations

import torch
from torch import Tensor

from denoised_mdp.models.mdp import LatentMDP, PolicyBatch
from denoised_mdp.policies.imagination import ImaginingPolicy, lambda_returns


class ReinforcePolicy(ImaginingPolicy):
    """Makes imagined actions more likely if they beat the value net's expectation; no gradient enters the dynamics.

    The value of a latent does not include its own reward: it is that of what follows.
    """

    value_has_own_reward = False

    def losses(
        self, batch: PolicyBatch, mdp: LatentMDP, noise: tuple[Tensor, ...]
    ) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
        """Actor loss, value loss and metrics; see `ImaginingPolicy.losses`.

        The actor loss is -mean w_t (log pi(a_t | x_t) sg(V_t - v(x_t)) / scale + entropy H(x_t)) over t = 0..H-1, where
        latent 0 is the start. w_t is the product over latents 0..t of gamma (with `discount_weights`) times the
        probability that the episode goes on: 0 where the start has terminated.
        """
        with torch.no_grad():
            imagined, actions = self.imagine(batch, mdp, noise)  # [H, N, F], [H, N, A]
            features = torch.cat((batch.features.flatten(0, 1)[None], imagined))  # [H + 1, N, F]
            reward, continuation = mdp.reward(imagined), mdp.continuation(imagined)  # [H, N] of the latents 1..H
        raw = self.value(features)  # [H + 1, N, outputs]
        value = self.scalar.mean(raw)  # [H + 1, N]
        returns = lambda_returns(reward, value.detach(), continuation, self.gamma, self.lambda_)  # [H, N]
        start = batch.continues.flatten()[None]  # [1, N]
        decay = self.gamma if self.discount_weights else 1.0
        weight = (decay * torch.cat((start, continuation[:-1]))).cumprod(0)  # [H, N]
        advantage, scale = returns - value[:-1].detach(), {}  # [H, N]
        if self.scale is not None:
            scale["policy/return_scale"] = self.scale(returns)
            advantage = advantage / scale["policy/return_scale"]  # [H, N]
        log_prob, entropy = self.actor.score(features[:-1], noise[1])  # [H, N]
        actor_loss = -(weight * (log_prob * advantage + self.entropy * entropy)).mean()
        value_loss = self.value_loss(raw[:-1], features[:-1], returns, weight)
        metrics = self.metrics(actor_loss, value_loss, reward, returns, value, actions) | scale
        return actor_loss, value_loss, metrics | {"policy/entropy": entropy.mean().detach()}
