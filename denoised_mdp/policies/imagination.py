"""Common parts of policies that learn in imagination: nets, rollouts of the x prior, lambda-returns, their scale."""

from __future__ import annotations

import copy
from abc import abstractmethod

import torch
from torch import Tensor, nn

from denoised_mdp.models.mdp import LatentMDP, PolicyBatch
from denoised_mdp.models.networks import MLP, SideBySide
from denoised_mdp.models.scalars import SCALARS, Lowest
from denoised_mdp.optim import make_optimizer, optimize, soft_update
from denoised_mdp.optim.parallel import average, gather, normal
from denoised_mdp.policies.actor import explored, make_actor
from denoised_mdp.policies.base import Policy

PERCENTILES = (0.05, 0.95)
PERCENTILE_RATE = 0.01


def lambda_returns(reward: Tensor, value: Tensor, continuation: Tensor, gamma: float, lambda_: float) -> Tensor:
    """V_t = r_t + gamma c_t ((1 - lambda) v_{t+1} + lambda V_{t+1}), V_H = v_H.

    value [H, N] of the latents 1..H; reward and continuation (c_t: probability that the episode goes on after latent
    t) [H, N], the last row unused, or [H - 1, N]. Returns V_t for t = 1..H-1, [H - 1, N].
    """
    reward, value, continuation = reward.unbind(), value.unbind(), continuation.unbind()
    returns, last = [], value[-1]
    for t in range(len(value) - 2, -1, -1):
        following = (1.0 - lambda_) * value[t + 1] + lambda_ * last  # [N]
        last = reward[t] + gamma * (continuation[t] * following)
        returns.append(last)
    return torch.stack(returns[::-1])


class ReturnScale(nn.Module):
    """The range by which returns are divided: max(1, high - low) of their 5th and 95th percentiles.

    The percentiles are moving averages over batches, started at 0 without bias correction. Small returns are not
    magnified, since they may be noise (Hafner et al. 2025, equation 7).
    """

    def __init__(self):
        super().__init__()
        self.register_buffer("range", torch.zeros(len(PERCENTILES)))

    @torch.no_grad()
    def forward(self, returns: Tensor) -> Tensor:
        """Update the percentiles with these returns [...] of all processes and return the scale, a scalar."""
        ordered = gather(returns.flatten()).sort().values  # [n]
        found = []
        for share in PERCENTILES:
            place = share * (len(ordered) - 1)
            below = int(place)
            found.append(torch.lerp(ordered[below], ordered[min(below + 1, len(ordered) - 1)], place - below))
        self.range.lerp_(torch.stack(found), PERCENTILE_RATE)  # in place, so that a graph replays it
        return (self.range[1] - self.range[0]).clamp(min=1.0)


class ImaginingPolicy(Policy):
    """An actor and a value net that learn from imagined latents.

    `norm`: what follows their hidden layers.
    `return_scale`: "percentile" divides what the actor maximizes, the entropy aside, by `ReturnScale`.
    `slow_value`: rate at which a copy of the value net follows it (0: none); the value net is also drawn to the copy.
    `value`: the value net's kind of output, from `models.scalars`; twohot starts at 0 everywhere.
    `value_nets`: number of value nets that learn the same from different initial weights. The lowest value counts, in
    targets too: an actor that learns through a value net finds its errors, which two nets seldom share.
    `imagine_rows`: imagination starts from this many rows at the end of each segment (None: from all).
    `imagined_value`, `replay_value`: weights of the value net's losses on imagined returns and on those of the stored
    rows themselves (`replay_loss`). If the first is 0, the value net never learns from imagined returns.
    `imagined_noise`: amount of exploration in imagination, see `explored`. The actor then learns what is also worth
    doing under noise, so it relies less on actions that the model or the value net misjudges. Imagined actions are then
    spread like the stored ones, from which the value net learns as well.
    `late_lr`, `late_imagined_value`: factors of both learning rates and of `imagined_value` after `late_after` updates.
    """

    value_has_own_reward: bool
    """whether the value of a latent includes its own reward, or is that of what follows"""

    def __init__(
        self,
        mdp: LatentMDP,
        *,
        hidden: int,
        actor_layers: int,
        initial_std: float,
        min_std: float,
        norm: str,
        value: str,
        value_layers: int,
        value_nets: int,
        horizon: int,
        gamma: float,
        lambda_: float,
        discount_weights: bool,
        entropy: float,
        return_scale: str,
        slow_value: float,
        imagine_rows: int | None,
        imagined_value: float,
        replay_value: float,
        imagined_noise: float,
        actor_lr: float,
        value_lr: float,
        eps: float,
        clip: float | None,
        late_lr: float,
        late_imagined_value: float,
        late_after: int,
        optimizer: str,
        agc: float | None,
        warmup: int,
    ):
        super().__init__()
        self.horizon, self.gamma, self.lambda_, self.clip = horizon, gamma, lambda_, clip
        self.entropy, self.discount_weights = entropy, discount_weights
        self.slow_rate, self.imagine_rows = slow_value, imagine_rows
        self.imagined_value, self.replay_value, self.imagined_noise = imagined_value, replay_value, imagined_noise
        shape = {"hidden": hidden, "layers": actor_layers, "norm": norm, "initial_std": initial_std, "min_std": min_std}
        self.actor = make_actor(mdp, **shape)
        self.scalar = SCALARS[value]
        nets = [MLP(mdp.feature_size, hidden, self.scalar.outputs, value_layers, norm) for _ in range(value_nets)]
        for net in nets if value == "twohot" else ():  # else bins around 1e8 would count from the start
            nn.init.zeros_(net.output.weight), nn.init.zeros_(net.output.bias)
        self.value = nets[0]
        if value_nets > 1:
            self.value, self.scalar = SideBySide(nets), Lowest(self.scalar, value_nets)
        self.slow_value = copy.deepcopy(self.value).requires_grad_(False) if slow_value else None
        self.scale = ReturnScale() if return_scale == "percentile" else None
        self.rates, self.late_after = {"actor": actor_lr, "value": value_lr}, late_after
        self.late = {"lr": late_lr, "imagined_value": late_imagined_value}
        if self.late != dict.fromkeys(self.late, 1.0):
            self.register_buffer("updates", torch.zeros(()))
        for net, lr in self.rates.items():
            descent = {"lr": lr, "eps": eps, "name": optimizer, "agc": agc, "warmup": warmup}
            self.add_optimizer(net, make_optimizer(getattr(self, net).parameters(), **descent))

    def imagine(
        self, batch: PolicyBatch, mdp: LatentMDP, noise: tuple[Tensor, ...], log_probs: list[Tensor] | None = None
    ) -> tuple[Tensor, Tensor]:
        """Roll the x prior out from every posterior latent of the batch, N = T B starts.

        noise: as from `draw_noise`. log_probs: a list that receives the log density [N] of each action that the actor
        chose (for choices, minus the entropy). Returns features [H, N, D_x + S_x] of the imagined latents 1..H and
        the actions [H, N, A] that led to them. The actor reads the *detached* latent: gradients flow through the
        dynamics, not through the actor's input. They ignore the clamping of actions that `imagined_noise` moves past a
        limit: else half of those at a limit would teach nothing.
        """
        belief, state = batch.belief.flatten(0, 1), batch.state.flatten(0, 1)  # [N, D_x], [N, S_x]
        features, actions = [torch.cat((belief, state), -1)], []
        for state_noise, action_noise, *exploration in zip(*noise, strict=True):
            seen = features[-1].detach()  # [N, F]
            if log_probs is None:
                action = self.actor.sample(seen, action_noise)
            else:
                action, log_prob = self.actor.sample_with_log_prob(seen, action_noise)
                log_probs.append(log_prob)
            if exploration:
                tried = explored(action, self.imagined_noise, exploration[0], discrete=mdp.discrete)  # [N, A]
                action = tried if mdp.discrete else action + (tried - action).detach()
            belief, state = mdp.step(belief, state, action, state_noise)
            features.append(torch.cat((belief, state), -1))
            actions.append(action)
        return torch.stack(features[1:]), torch.stack(actions)

    def draw_noise(self, batch: PolicyBatch, mdp: LatentMDP, generator: torch.Generator | None) -> tuple[Tensor, ...]:
        """Standard normal noise of states [H, N, S_x], then of actions [H, N, A]: the documented order of draws.

        With `imagined_noise`, that of exploration [H, N, A] comes third.
        """
        shape, like = (self.horizon, *batch.belief.shape[:2]), batch.belief
        states = mdp.draw_noise(*shape, like=like, generator=generator)  # [H, T, B, S_x]
        noise = [states]
        for _ in range(2 if self.imagined_noise else 1):
            noise.append(normal(*shape, mdp.action_size, like=like, generator=generator))  # [H, T, B, A]
        return tuple(one.flatten(1, 2) for one in noise)

    @abstractmethod
    def losses(
        self, batch: PolicyBatch, mdp: LatentMDP, noise: tuple[Tensor, ...]
    ) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
        """Actor loss, value loss and detached metrics; `scale` is updated with this batch.

        Differentiate the first with respect to the actor's parameters alone, the second to the value net's.
        """

    def value_loss(self, raw: Tensor, features: Tensor, returns: Tensor, weight: Tensor) -> Tensor:
        """Mean of weight (NLL(returns) + NLL(value of the slow net)), a scalar; without a slow net, the first alone.

        raw [H, N, outputs]: output of the value net for features [H, N, F]; returns and weight [H, N].
        """
        loss = self.scalar.nll(raw, returns.detach())  # [H, N]
        if self.slow_value is not None:
            slow = self.scalar.mean(self.slow_value(features.detach()))  # [H, N]
            loss = loss + self.scalar.nll(raw, slow)
        return (weight * loss).mean()

    def replay_loss(self, batch: PolicyBatch) -> Tensor:
        """Loss of the value net on the lambda-returns of the batch's own rows, a scalar (Hafner et al. 2025).

        These returns were earned, not imagined: they correct the values of states that the model expects to leave soon.
        Rewards are the means of r_x, so nothing of the noise enters. Older policies earned them, with exploration.
        Rows teach nothing where the segment does not hold what follows.
        """
        features = batch.features  # [T, B, F]
        raw = self.value(features)  # [T, B, outputs]
        value = self.scalar.mean(raw).detach()  # [T, B]
        if self.value_has_own_reward:  # R = T rows; a terminal row returns its own reward alone
            reward, continuation = batch.reward, batch.continues  # [R, B]
            cut = torch.cat((batch.is_first[1:], torch.ones_like(batch.is_first[:1])))  # [R, B]
            cut = cut & (continuation > 0)  # [R, B]
            value = torch.cat((value, value[-1:]))  # [R + 1, B]; the added row never counts
        else:  # R = T - 1 rows
            reward, continuation, cut = batch.reward[1:], batch.continues[1:], batch.is_first[1:]  # [R, B]
        rows = len(cut)
        reward = torch.where(cut, value[:rows], reward)  # [R, B]; what follows is unknown: V_t = v_t
        returns = lambda_returns(reward, value, continuation * ~cut, self.gamma, self.lambda_)  # [R, B]
        known = (~cut).to(value.dtype)  # [R, B]
        count = known.sum()  # scalar
        average([count])
        return self.value_loss(raw[:rows], features[:rows], returns, known * (known.numel() / count.clamp(min=1.0)))

    @staticmethod
    def metrics(
        actor_loss: Tensor, value_loss: Tensor, reward: Tensor, returns: Tensor, value: Tensor, actions: Tensor
    ) -> dict[str, Tensor]:
        """Metrics that all policies log: both losses, scalars, and means of their parts [H, N, ...]; detached."""
        means = {
            "imagined_reward": reward,
            "imagined_return": returns,
            "value": value,
            "action_magnitude": actions.abs(),
        }
        metrics = {"actor_loss": actor_loss, "value_loss": value_loss} | {k: v.mean() for k, v in means.items()}
        return {f"policy/{name}": metric.detach() for name, metric in metrics.items()}

    @torch.no_grad()
    def late_factors(self) -> dict[str, Tensor | float]:
        """Count this update and return its factors, named as in `late`; as tensors, which a graph recomputes."""
        if not hasattr(self, "updates"):
            return self.late
        factors = {name: torch.where(self.updates < self.late_after, 1.0, late) for name, late in self.late.items()}
        self.updates += 1.0
        return factors

    def update(self, batch: PolicyBatch, mdp: LatentMDP, generator: torch.Generator | None = None, noise=None):
        """Take one step of the actor and one of the value net; `noise` overrides what `draw_noise` would draw."""
        factors = self.late_factors()
        for net, lr in self.rates.items() if self.late["lr"] != 1.0 else ():
            for group in self.optimizers[net].param_groups:
                group["lr"] = lr * factors["lr"]
        whole, batch = batch, batch.last(self.imagine_rows)
        noise = noise or self.draw_noise(batch, mdp, generator)
        actor_loss, value_loss, metrics = self.losses(batch, mdp, noise)
        imagined = self.imagined_value * factors["imagined_value"]
        parts = [imagined * value_loss] if self.imagined_value else []  # else skip its backward pass
        if self.replay_value:
            stored = self.replay_loss(whole)
            parts.append(self.replay_value * stored)
            metrics["policy/replay_value_loss"] = stored.detach()
        actor_norm = optimize(actor_loss, self.optimizers["actor"], self.clip, keep_graph=True)
        value_norm = optimize(sum(parts), self.optimizers["value"], self.clip)
        if self.slow_value is not None:
            soft_update(self.slow_value, self.value, self.slow_rate)
        return metrics | {"policy/actor_gradient": actor_norm, "policy/value_gradient": value_norm}
