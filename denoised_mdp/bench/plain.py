"""The baseline of the benchmark: the same update, written plainly, in float32 and eager mode.

A straightforward PyTorch implementation of Wang et al. 2022: plain layers, a loop over time with priors,
posteriors and KL inside, `torch.distributions`, default optimizers. It uses the layers of a given agent, so all numbers
can be compared. It is not optimized.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributions import Distribution, Independent, Normal, TanhTransform, TransformedDistribution, kl_divergence

from denoised_mdp.agents.world_model_agent import WorldModelAgent
from denoised_mdp.config.compose import flatten
from denoised_mdp.config.models import ModelConfig
from denoised_mdp.config.policies import BackpropConfig
from denoised_mdp.config.schema import Config
from denoised_mdp.models.distributions import MIN_STD
from denoised_mdp.models.structure import CONVOLUTIONS, Table
from denoised_mdp.optim import without_gradients
from denoised_mdp.policies.backprop import BackpropPolicy


def mlp(net: nn.Module, x: Tensor) -> Tensor:
    """[..., inputs] -> [..., outputs]."""
    for layer in net.hidden:
        x = F.elu(layer(x))
    return net.output(x)


def gaussian(raw: Tensor) -> Independent:
    """[..., 2 S] -> a diagonal Gaussian over [..., S]."""
    mean, std = raw.chunk(2, -1)
    return Independent(Normal(mean, F.softplus(std) + MIN_STD), 1)


def draw(distribution: Distribution, noise: Tensor | None) -> Tensor:
    """A reparametrized sample; standard normal `noise` reproduces that of another implementation."""
    if noise is None:
        return distribution.rsample()
    squashed = isinstance(distribution, TransformedDistribution)
    base = (distribution.base_dist if squashed else distribution).base_dist
    sample = base.loc + base.scale * noise
    return distribution.transforms[0](sample) if squashed else sample


def mixes(table: Table) -> bool:
    """Whether latents read one another or are not Gaussian, or the policy sees several."""
    return len(table.seen) > 1 or any(row.parents or row.distribution != "gaussian" for row in table.rows.values())


READS = {
    "model": "name latents embed convolutions depth init reward_hidden reward_layers reward_std continuation"
    " kl.alpha kl.beta kl.free_nats kl.free_nats_strategy optimizer.lr optimizer.eps optimizer.clip",
    "policy": "hidden actor_layers initial_std min_std value_layers horizon gamma lambda_ entropy"
    " actor_lr value_lr eps clip",
}
"""options that `PlainUpdate` supports; it assumes the defaults of all others"""


def can_be_plain(config: Config) -> bool:
    """Whether `PlainUpdate` reproduces this configuration: x and y separate, no option set that it lacks."""
    model, policy = config.model, config.policy
    if model.embed is None or model.continuation:
        return False
    for name, group, usual in (("model", model, ModelConfig()), ("policy", policy, BackpropConfig())):
        own, default = (dict(flatten(dataclasses.asdict(one))) for one in (group, usual))
        read = tuple(f"{key}." for key in READS[name].split())
        if any(own[key] != default.get(key) for key in own if not f"{key}.".startswith(read)):
            return False
    paper = model.convolutions in (None, "paper") and config.env.size in CONVOLUTIONS["paper"]
    return paper and not mixes(Table(list(model.latents.values())))


class PlainUpdate:
    """One update of world model, actor and value net on an agent's layers; only without z and with policy backprop."""

    def __init__(self, agent: WorldModelAgent):
        self.model, self.policy = agent.world_model, agent.policy
        if mixes(self.model.table) or self.model.continuation or not isinstance(self.policy, BackpropPolicy):
            raise ValueError("the plain update knows x and y and the policy by backpropagation alone")
        self.clip = self.model.clip
        self.optimizers = {}
        groups = {"model": self.model, "actor": self.policy.actor, "value": self.policy.value}
        for (name, module), like in zip(groups.items(), agent.optimizers.values(), strict=True):
            options = {key: like.defaults[key] for key in ("lr", "eps")}
            self.optimizers[name] = torch.optim.Adam(module.parameters(), **options)

    def update(
        self, batch: dict[str, np.ndarray], noise: Tensor | None = None, policy_noise: tuple | None = None
    ) -> dict[str, Tensor]:
        """Update on a batch, see `Agent.update`; noise [T, B, S], policy_noise ([H, N, S_x], [H, N, A]) fix draws."""
        dtype = self.model.encoder.like.dtype
        batch = {name: torch.as_tensor(value) for name, value in batch.items() if name != "is_terminal"}
        batch |= {name: value.to(dtype) for name, value in batch.items() if value.is_floating_point()}
        model_loss, beliefs, states = self.model_loss(**batch, noise=noise)
        self._step("model", model_loss)
        sizes = self.model.table.rows["x"]
        belief, state = beliefs[..., : sizes.belief].detach(), states[..., : sizes.state].detach()
        with without_gradients(self.model):
            with without_gradients(self.policy.value):
                actor_loss, value_loss = self.policy_losses(belief.flatten(0, 1), state.flatten(0, 1), policy_noise)
                self._step("actor", actor_loss)
            value_loss = value_loss()
            self._step("value", value_loss)
        losses = {"model/loss": model_loss, "policy/actor_loss": actor_loss, "policy/value_loss": value_loss}
        return {name: loss.detach() for name, loss in losses.items()}

    def _step(self, name: str, loss: Tensor) -> None:
        optimizer = self.optimizers[name]
        optimizer.zero_grad()
        loss.backward()
        clip = self.clip if name == "model" else self.policy.clip
        nn.utils.clip_grad_norm_(optimizer.param_groups[0]["params"], float("inf") if clip is None else clip)
        optimizer.step()

    def encode(self, images: Tensor) -> Tensor:
        """[N, 3, H, W] -> [N, E]."""
        for layer in self.model.encoder.convolutions:
            images = F.relu(layer(images))
        return self.model.encoder.output(images.flatten(1))

    def decode(self, features: Tensor) -> Tensor:
        """[N, D + S] -> [N, 3, H, W]."""
        *hidden, last = self.model.decoder.convolutions
        x = F.relu(self.model.decoder.input(features))[..., None, None]
        for layer in hidden:
            x = F.relu(layer(x))
        return last(x)

    def transition(self, name: str, inputs: list[Tensor], belief: Tensor) -> Tensor:
        """The next belief of one latent."""
        net, x = self.model.rssm.transitions[name], torch.cat(inputs, -1)
        for layer in net.inputs:
            x = F.elu(layer(x))
        return net.gru(x, belief)

    def model_loss(
        self, observation: Tensor, action: Tensor, reward: Tensor, is_first: Tensor, noise: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """The loss, and the posterior beliefs [T, B, D] and states [T, B, S]."""
        rssm, layout = self.model.rssm, self.model.rssm.layout
        images = observation[..., :3].permute(0, 1, 4, 2, 3).to(action.dtype) / 255.0 - 0.5  # [T, B, 3, H, W]
        embed = self.encode(images.flatten(0, 1)).unflatten(0, images.shape[:2])
        belief = embed.new_zeros(images.shape[1], layout.belief_size)
        state = embed.new_zeros(images.shape[1], layout.state_size)
        beliefs, states, kls = [], [], {name: [] for name in layout.names}
        for t in range(len(images)):
            keep = (~is_first[t]).to(action.dtype)[:, None]
            old_belief, old_state = layout.split_belief(belief * keep), layout.split_state(state * keep)
            new = {}
            for name in layout.names:
                inputs = [old_state[name], action[t] * keep] if rssm.table.rows[name].sees_action else [old_state[name]]
                new[name] = self.transition(name, inputs, old_belief[name])
            belief = torch.cat(list(new.values()), -1)
            raw = mlp(rssm.posteriors[0].net, torch.cat((belief, embed[t]), -1))
            posterior = gaussian(raw)
            state = draw(posterior, None if noise is None else noise[t])
            means = layout.split_state(posterior.base_dist.loc)
            stds = layout.split_state(posterior.base_dist.scale)
            for name in layout.names:
                prior = gaussian(mlp(rssm.transitions[name].prior, new[name]))
                kls[name].append(kl_divergence(Independent(Normal(means[name], stds[name]), 1), prior))
            beliefs.append(belief)
            states.append(state)
        beliefs, states = torch.stack(beliefs), torch.stack(states)
        features = torch.cat((beliefs, states), -1)
        prediction = self.decode(features.flatten(0, 1)).unflatten(0, images.shape[:2])
        image_loss = -Independent(Normal(prediction, 1.0), 3).log_prob(images).mean()
        split_belief, split_state = layout.split_belief(beliefs), layout.split_state(states)
        shares = [
            mlp(net, torch.cat((split_belief[name], split_state[name]), -1)).squeeze(-1)
            for name, net in self.model.rewards.items()
        ]
        reward_loss = -Normal(sum(shares), self.model.reward_std).log_prob(reward).mean()
        kl = {name: torch.stack(parts) for name, parts in kls.items()}
        loss = image_loss + reward_loss + self.model.kl.weighted(kl, self.model.table)
        return loss, beliefs, states

    def policy_losses(self, belief: Tensor, state: Tensor, noise: tuple | None):
        """The actor's loss, and a function that returns the value net's."""
        policy, rssm, actor = self.policy, self.model.rssm, self.policy.actor
        features, log_probs = [], []
        for t in range(policy.horizon):
            mean, std = actor(torch.cat((belief, state), -1).detach())
            squashed = TransformedDistribution(Independent(Normal(mean, std), 1), [TanhTransform(cache_size=1)])
            action = draw(squashed, None if noise is None else noise[1][t])
            if policy.entropy:
                log_probs.append(squashed.log_prob(action))
            belief = self.transition("x", [state, action], belief)
            prior = gaussian(mlp(rssm.transitions["x"].prior, belief))
            state = draw(prior, None if noise is None else noise[0][t])
            features.append(torch.cat((belief, state), -1))
        features = torch.stack(features)
        reward = mlp(self.model.rewards["x"], features).squeeze(-1)
        value = mlp(policy.value, features).squeeze(-1)
        returns, last = [], value[-1]
        for t in reversed(range(policy.horizon - 1)):
            last = reward[t] + policy.gamma * ((1 - policy.lambda_) * value[t + 1] + policy.lambda_ * last)
            returns.insert(0, last)
        returns = torch.stack(returns)
        discount = policy.gamma ** torch.arange(len(returns), dtype=returns.dtype)[:, None]

        def value_loss() -> Tensor:
            guess = Normal(mlp(policy.value, features[:-1].detach()).squeeze(-1), 1.0)
            return -(discount * guess.log_prob(returns.detach())).mean()

        actor_loss = -(discount * returns).mean()
        if policy.entropy:
            actor_loss = actor_loss + policy.entropy * torch.stack(log_probs).mean()
        return actor_loss, value_loss
