"""Policy by backpropagation through the learned dynamics (Wang et al. 2022, appendix; the default optimizer)."""

from __future__ import annotations

import torch
from torch import Tensor

from denoised_mdp.models.losses import scalar_nll
from denoised_mdp.models.mdp import LatentMDP, PolicyBatch
from denoised_mdp.models.networks import MLP
from denoised_mdp.optim import adam, optimize
from denoised_mdp.parallel import normal
from denoised_mdp.policies.actor import make_actor
from denoised_mdp.policies.base import Policy


def lambda_returns(reward: Tensor, value: Tensor, continuation: Tensor, gamma: float, lambda_: float) -> Tensor:
    """V_t = r_t + gamma c_t ((1 - lambda) v_{t+1} + lambda V_{t+1}), V_H = v_H.

    reward, value and continuation (c_t: probability that the episode goes on after latent t) [H, N] of the imagined
    latents 1..H; returns V_t for t = 1..H-1, [H - 1, N].
    """
    reward, value, continuation = reward.unbind(), value.unbind(), continuation.unbind()
    returns, last = [], value[-1]
    for t in range(len(reward) - 2, -1, -1):
        following = (1.0 - lambda_) * value[t + 1] + lambda_ * last  # [N]
        last = reward[t] + gamma * (continuation[t] * following)
        returns.append(last)
    return torch.stack(returns[::-1])


class BackpropPolicy(Policy):
    """Maximizes imagined lambda-returns by gradients through the x prior and the actor's actions."""

    def __init__(
        self,
        mdp: LatentMDP,
        *,
        hidden: int,
        actor_layers: int,
        initial_std: float,
        min_std: float,
        value_layers: int,
        horizon: int,
        gamma: float,
        lambda_: float,
        discount_weights: bool,
        entropy: float,
        actor_lr: float,
        value_lr: float,
        eps: float,
        clip: float | None,
    ):
        super().__init__()
        self.horizon, self.gamma, self.lambda_, self.clip = horizon, gamma, lambda_, clip
        self.entropy, self.discount_weights = entropy, discount_weights
        shape = {"hidden": hidden, "layers": actor_layers, "initial_std": initial_std, "min_std": min_std}
        self.actor = make_actor(mdp, **shape)
        self.value = MLP(mdp.feature_size, hidden, 1, value_layers)
        self.add_optimizer("actor", adam(self.actor.parameters(), lr=actor_lr, eps=eps))
        self.add_optimizer("value", adam(self.value.parameters(), lr=value_lr, eps=eps))

    def imagine(
        self, batch: PolicyBatch, mdp: LatentMDP, noise: tuple[Tensor, Tensor], log_probs: list[Tensor] | None = None
    ) -> tuple[Tensor, Tensor]:
        """Roll the x prior out from every posterior latent of the batch, N = T B starts.

        noise: standard normal for states [H, N, S_x] and for actions [H, N, A]. log_probs: a list to which the log
        density [N] of each action is added (of choices, minus the entropy). Returns features [H, N, D_x + S_x] of the
        imagined latents 1..H and the actions [H, N, A] that led to them. The actor reads the *detached* latent:
        gradients flow through the dynamics, not through the actor's input.
        """
        belief, state = batch.belief.flatten(0, 1), batch.state.flatten(0, 1)
        features, actions = [torch.cat((belief, state), -1)], []
        for state_noise, action_noise in zip(*noise, strict=True):
            seen = features[-1].detach()
            if log_probs is None:
                action = self.actor.sample(seen, action_noise)
            else:
                action, log_prob = self.actor.sample_with_log_prob(seen, action_noise)
                log_probs.append(log_prob)
            belief, state = mdp.step(belief, state, action, state_noise)
            features.append(torch.cat((belief, state), -1))
            actions.append(action)
        return torch.stack(features[1:]), torch.stack(actions)

    def draw_noise(self, batch: PolicyBatch, mdp: LatentMDP, generator: torch.Generator | None):
        """State noise [H, N, S_x], then action noise [H, N, A]: the documented order of draws."""
        shape, like = (self.horizon, *batch.belief.shape[:2]), batch.belief
        states = mdp.draw_noise(*shape, like=like, generator=generator)  # [H, T, B, S_x]
        actions = normal(*shape, mdp.action_size, like=like, generator=generator)  # [H, T, B, A]
        return states.flatten(1, 2), actions.flatten(1, 2)

    def losses(self, batch: PolicyBatch, mdp: LatentMDP, noise: tuple[Tensor, Tensor]):
        """Actor loss, value loss and metrics.

        Each imagined latent counts gamma per step and as much as it is probable that the episode reaches it: not at
        all where the start has terminated. Both losses share one pass through the value net: differentiate the first
        with respect to the actor's parameters alone and the second with respect to the value net's.

        `entropy` weighs the mean entropy of the imagined actions, in nats, estimated from their own draws. Without it
        (the paper's 0) an actor that a bad early model drove to the limits of its actions stays there: the squashing
        lets no gradient of the returns through. That of the entropy does not vanish.
        """
        log_probs = [] if self.entropy else None
        features, actions = self.imagine(batch, mdp, noise, log_probs)  # [H, N, F]
        reward, value = mdp.reward(features), self.value(features).squeeze(-1)  # [H, N]
        continuation = mdp.continuation(features)  # [H, N]
        returns = lambda_returns(reward, value, continuation, self.gamma, self.lambda_)  # [H - 1, N]
        decay = self.gamma if self.discount_weights else 1.0
        weight = decay ** torch.arange(len(returns), device=returns.device, dtype=returns.dtype)[:, None]
        start = batch.continues.flatten()[None]  # [1, N]
        weight = weight * torch.cat((start, continuation[:-2].detach())).cumprod(0)  # [H - 1, N]
        actor_loss = -(weight * returns).mean()
        if log_probs:
            actor_loss = actor_loss + self.entropy * torch.stack(log_probs).mean()
        value_loss = (weight * scalar_nll(value[:-1], returns.detach())).mean()
        metrics = {
            "policy/actor_loss": actor_loss,
            "policy/value_loss": value_loss,
            "policy/imagined_reward": reward.mean(),
            "policy/imagined_return": returns.mean(),
            "policy/value": value.mean(),
            "policy/action_magnitude": actions.abs().mean(),
        }
        return actor_loss, value_loss, {name: metric.detach() for name, metric in metrics.items()}

    def update(self, batch: PolicyBatch, mdp: LatentMDP, generator: torch.Generator | None = None, noise=None):
        """One step of the actor and one of the value net; `noise` overrides what `draw_noise` would draw."""
        noise = noise or self.draw_noise(batch, mdp, generator)
        actor_loss, value_loss, metrics = self.losses(batch, mdp, noise)
        actor_norm = optimize(actor_loss, self.optimizers["actor"], self.clip, keep_graph=True)
        value_norm = optimize(value_loss, self.optimizers["value"], self.clip)
        return metrics | {"policy/actor_gradient": actor_norm, "policy/value_gradient": value_norm}
