"""What the policies share that learn in imagination: nets, rollouts of the x prior, lambda-returns, their scale."""

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

    value [H, N] of the latents 1..H; reward and continuation (c_t: probability that the episode goes on after it)
    [H, N] or [H - 1, N], of which the last of H does not count. Returns V_t for t = 1..H-1, [H - 1, N].
    """
    reward, value, continuation = reward.unbind(), value.unbind(), continuation.unbind()
    returns, last = [], value[-1]
    for t in range(len(value) - 2, -1, -1):
        following = (1.0 - lambda_) * value[t + 1] + lambda_ * last  # [N]
        last = reward[t] + gamma * (continuation[t] * following)
        returns.append(last)
    return torch.stack(returns[::-1])


class ReturnScale(nn.Module):
    """The range of returns, to divide them by: max(1, high - low) of their 5th and 95th percentile.

    The percentiles are moving averages over the batches, from 0 and not corrected for it. Small returns are not
    magnified, for they may be noise (Hafner et al. 2025, equation 7).
    """

    def __init__(self):
        super().__init__()
        self.register_buffer("range", torch.zeros(len(PERCENTILES)))

    @torch.no_grad()
    def forward(self, returns: Tensor) -> Tensor:
        """Count these returns [...], those of other processes as well, and return the scale, a scalar."""
        ordered = gather(returns.flatten()).sort().values  # [n]
        found = []
        for share in PERCENTILES:
            place = share * (len(ordered) - 1)
            below = int(place)
            found.append(torch.lerp(ordered[below], ordered[min(below + 1, len(ordered) - 1)], place - below))
        self.range.lerp_(torch.stack(found), PERCENTILE_RATE)  # in place: a graph replays it
        return (self.range[1] - self.range[0]).clamp(min=1.0)


class ImaginingPolicy(Policy):
    """An actor and a value net that learn from imagined latents.

    `norm`: what follows their hidden layers.
    `return_scale`: "percentile" divides what the actor maximizes, the entropy aside, by `ReturnScale`.
    `slow_value`: rate at which a copy of the value net follows it; the value net is also drawn to the copy's values.
    `value`: what the value net says, of `models.scalars`; twohot begins with 0 everywhere.
    `value_nets`: so many learn the same from other initial weights, and the lowest value counts, in targets too: an
    actor that learns through a value net finds its errors, and seldom the same ones in two.
    `imagine_rows`: imagination starts from the last so many rows of each segment (None: from all).
    `imagined_value`, `replay_value`: weights of the value net's losses on imagined returns and on those of the stored
    rows themselves (`replay_loss`). Where the first is 0, no value learns from what the actor believes of itself.
    `imagined_noise`: exploration in imagination: of that amount, see `explored`. What the actor learns is then worth
    doing under noise too, so it depends less on actions about which model or value net are wrong; and imagined actions
    are spread like the stored ones, from which the value net learns as well.
    `late_lr`, `late_imagined_value`: factors of both learning rates and of `imagined_value` after `late_after` updates.
    """

    value_has_own_reward: bool
    """whether the value of a latent contains its own reward, or is that of what follows"""

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
        for net in nets if value == "twohot" else ():  # else bins of 1e8 would count from the start
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

        noise: as of `draw_noise`. log_probs: a list to which the log density [N] of each action that the actor chose
        is added (of choices, minus the entropy). Returns features [H, N, D_x + S_x] of the imagined latents 1..H and
        the actions [H, N, A] that led to them. The actor reads the *detached* latent: gradients flow through the
        dynamics, not through the actor's input. They pass the limits of actions that `imagined_noise` led beyond, as
        if there were none: else half of those at a limit would teach nothing.
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

        With `imagined_noise`, then that of exploration [H, N, A].
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
        """Actor loss and value loss, and detached metrics; what `scale` knows counts this batch.

        Differentiate the first with respect to the actor's parameters alone, the second to the value net's.
        """

    def value_loss(self, raw: Tensor, features: Tensor, returns: Tensor, weight: Tensor) -> Tensor:
        """Mean of weight (NLL(returns) + NLL(what the slow value net says)), a scalar.

        raw [H, N, outputs]: what the value net says of features [H, N, F]; returns and weight [H, N]. Without a slow
        net, the first alone.
        """
        loss = self.scalar.nll(raw, returns.detach())  # [H, N]
        if self.slow_value is not None:
            slow = self.scalar.mean(self.slow_value(features.detach()))  # [H, N]
            loss = loss + self.scalar.nll(raw, slow)
        return (weight * loss).mean()

    def replay_loss(self, batch: PolicyBatch) -> Tensor:
        """Loss of the value net on the lambda-returns of the batch's own rows, a scalar (Hafner et al. 2025).

        What was earned there is no imagination: it corrects values of states that the model believes to leave soon.
        Rewards are r_x's means, so that nothing of the noise enters. Older policies earned them, with exploration.
        Rows behind which the segment does not say what follows teach nothing.
        """
        features = batch.features  # [T, B, F]
        raw = self.value(features)  # [T, B, outputs]
        value = self.scalar.mean(raw).detach()  # [T, B]
        if self.value_has_own_reward:  # R = T rows; one that terminated has its own reward alone
            reward, continuation = batch.reward, batch.continues  # [R, B]
            cut = torch.cat((batch.is_first[1:], torch.ones_like(batch.is_first[:1])))  # [R, B]
            cut = cut & (continuation > 0)  # [R, B]
            value = torch.cat((value, value[-1:]))  # [R + 1, B]; nothing reads the row that is added
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
        """What all log, from both losses, scalars, and what they are made of, [H, N, ...]; detached."""
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
        """The factors of this update by the names of `late`, and count it; as tensors, which a graph computes anew."""
        if not hasattr(self, "updates"):
            return self.late
        factors = {name: torch.where(self.updates < self.late_after, 1.0, late) for name, late in self.late.items()}
        self.updates += 1.0
        return factors

    def update(self, batch: PolicyBatch, mdp: LatentMDP, generator: torch.Generator | None = None, noise=None):
        """One step of the actor and one of the value net; `noise` overrides what `draw_noise` would draw."""
        factors = self.late_factors()
        for net, lr in self.rates.items() if self.late["lr"] != 1.0 else ():
            for group in self.optimizers[net].param_groups:
                group["lr"] = lr * factors["lr"]
        whole, batch = batch, batch.last(self.imagine_rows)
        noise = noise or self.draw_noise(batch, mdp, generator)
        actor_loss, value_loss, metrics = self.losses(batch, mdp, noise)
        imagined = self.imagined_value * factors["imagined_value"]
        parts = [imagined * value_loss] if self.imagined_value else []  # else it costs no pass
        if self.replay_value:
            stored = self.replay_loss(whole)
            parts.append(self.replay_value * stored)
            metrics["policy/replay_value_loss"] = stored.detach()
        actor_norm = optimize(actor_loss, self.optimizers["actor"], self.clip, keep_graph=True)
        value_norm = optimize(sum(parts), self.optimizers["value"], self.clip)
        if self.slow_value is not None:
            soft_update(self.slow_value, self.value, self.slow_rate)
        return metrics | {"policy/actor_gradient": actor_norm, "policy/value_gradient": value_norm}
