"""Policy by backpropagation through the learned dynamics (Wang et al. 2022, appendix; the default optimizer)."""

from __future__ import annotations

import torch
from torch import Tensor

from denoised_mdp.models.mdp import LatentMDP, PolicyBatch
from denoised_mdp.policies.imagination import ImaginingPolicy, lambda_returns


class BackpropPolicy(ImaginingPolicy):
    """Maximizes imagined lambda-returns by gradients through the x prior and the actor's actions.

    The value of a latent includes its own reward.
    """

    value_has_own_reward = True

    def losses(
        self, batch: PolicyBatch, mdp: LatentMDP, noise: tuple[Tensor, ...]
    ) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
        """Actor loss, value loss and metrics; see `ImaginingPolicy.losses`.

        An imagined latent's weight is gamma per step (with `discount_weights`) times the probability that the episode
        reaches it: 0 where the start has terminated. Both losses share one pass through the value net.

        `entropy` weighs the mean entropy of the imagined actions, in nats, estimated from their own draws. Without it
        (the paper's 0) an actor that a bad early model drove to the limits of its actions stays there: the squashing
        blocks the gradient of the returns. The gradient of the entropy does not vanish.
        """
        log_probs = [] if self.entropy else None
        features, actions = self.imagine(batch, mdp, noise, log_probs)  # [H, N, F]
        reward, raw = mdp.reward(features), self.value(features)  # [H, N], [H, N, outputs]
        value = self.scalar.mean(raw)  # [H, N]
        continuation = mdp.continuation(features)  # [H, N]
        returns = lambda_returns(reward, value, continuation, self.gamma, self.lambda_)  # [H - 1, N]
        decay = self.gamma if self.discount_weights else 1.0
        weight = decay ** torch.arange(len(returns), device=returns.device, dtype=returns.dtype)[:, None]  # [H - 1, 1]
        start = batch.continues.flatten()[None]  # [1, N]
        weight = weight * torch.cat((start, continuation[:-2].detach())).cumprod(0)  # [H - 1, N]
        actor_loss, scale = -(weight * returns).mean(), {}  # scalar
        if self.scale is not None:
            scale["policy/return_scale"] = self.scale(returns)
            actor_loss = actor_loss / scale["policy/return_scale"]
        if log_probs:
            actor_loss = actor_loss + self.entropy * torch.stack(log_probs).mean()  # scalar
        value_loss = self.value_loss(raw[:-1], features[:-1], returns, weight)
        return actor_loss, value_loss, self.metrics(actor_loss, value_loss, reward, returns, value, actions) | scale
