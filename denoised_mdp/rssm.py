"""The factorized recurrent state-space model (Wang et al. 2022, section 3 and Figure 2).

One table, `structure`, says what each latent may see; it drives the transition, both posteriors, the KL terms
and the tests. An empty latent (belief and state of size 0) is left out, so that with y and z empty the model is
Dreamer's RSSM.

Symbols: T segment length, B batch, A action size, D / S belief / state size summed over the latents present,
E embedding size. "Belief" is the deterministic GRU state h, "state" the stochastic sample. Latents are
concatenated in the order x, y, z in every tensor of size D or S.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .gru import gru_step
from .networks import MLP

MIN_STD = 0.1


@dataclass(frozen=True)
class LatentSpec:
    """One row of the factorization table."""

    name: str
    belief: int
    """size of the deterministic belief h"""
    state: int
    """size of the stochastic state"""
    sees_action: bool
    """the prior reads the previous action"""
    parents: tuple[str, ...] = ()
    """latents of the same step whose belief and state the prior reads"""
    rewarded: bool = True
    """has an additive share of the reward"""


def structure(
    x: tuple[int, int],
    y: tuple[int, int] = (0, 0),
    z: tuple[int, int] = (0, 0),
    z_prior_uses_y: bool = True,
    y_rewarded: bool = True,
) -> tuple[LatentSpec, ...]:
    """The table of latents present, in order; each argument is (belief, state) sizes.

    x: controllable and reward-relevant. y: evolves on its own. z: controllable, without reward
    (Wang et al. 2022, Figure 2: (x, y) is structure 2b, (x, y, z) is 2c, x alone is Dreamer). Without `y_rewarded`
    y has no share of the reward, as where no noise touches it.
    """
    z_parents = ("x", "y") if z_prior_uses_y else ("x",)
    rows = (
        LatentSpec("x", *x, sees_action=True),
        LatentSpec("y", *y, sees_action=False, rewarded=y_rewarded),
        LatentSpec("z", *z, sees_action=True, parents=z_parents, rewarded=False),
    )
    present = {row.name for row in rows if row.belief and row.state}
    if "x" not in present:
        raise ValueError("the signal latent x cannot be empty")
    return tuple(
        LatentSpec(r.name, r.belief, r.state, r.sees_action, tuple(p for p in r.parents if p in present), r.rewarded)
        for r in rows
        if r.name in present
    )


class Layout:
    """Where each latent lies in tensors of size D (beliefs) and S (states)."""

    def __init__(self, specs: tuple[LatentSpec, ...]):
        self.names = tuple(spec.name for spec in specs)
        self.beliefs = [spec.belief for spec in specs]
        self.states = [spec.state for spec in specs]
        self.belief_size, self.state_size = sum(self.beliefs), sum(self.states)

    def split_belief(self, belief: Tensor) -> dict[str, Tensor]:
        """[..., D] -> views {name: [..., D_name]}."""
        return dict(zip(self.names, belief.split(self.beliefs, -1), strict=True))

    def split_state(self, state: Tensor) -> dict[str, Tensor]:
        """[..., S] -> views {name: [..., S_name]}; also for means, stds and noise."""
        return dict(zip(self.names, state.split(self.states, -1), strict=True))


@dataclass(frozen=True)
class Latent:
    """Beliefs [..., D] and states [..., S] of all latents."""

    belief: Tensor
    state: Tensor
    layout: Layout

    def __getitem__(self, name: str) -> tuple[Tensor, Tensor]:
        """Views (belief, state) of one latent."""
        return self.layout.split_belief(self.belief)[name], self.layout.split_state(self.state)[name]

    def features(self, name: str | None = None) -> Tensor:
        """[..., D + S]: beliefs then states, of all latents or of one."""
        return torch.cat((self.belief, self.state) if name is None else self[name], -1)

    def replace(self, **parts: tuple[Tensor, Tensor]) -> Latent:
        """A copy in which the named latents are replaced by (belief, state), broadcast to this shape."""
        beliefs, states = self.layout.split_belief(self.belief), self.layout.split_state(self.state)
        for name in set(parts) & set(self.layout.names):
            beliefs[name], states[name] = (
                new.expand_as(old)
                for new, old in zip(parts[name], (beliefs[name], states[name]), strict=True)
            )
        return Latent(
            torch.cat(list(beliefs.values()), -1), torch.cat(list(states.values()), -1), self.layout
        )

    def map(self, function) -> Latent:
        """Apply `function` to both tensors (indexing, detaching, moving ...)."""
        return Latent(function(self.belief), function(self.state), self.layout)


@dataclass
class Gaussian:
    """A diagonal Gaussian over all states: mean and std [..., S]."""

    mean: Tensor
    std: Tensor


def gaussian_from_raw(raw: Tensor) -> tuple[Tensor, Tensor]:
    """[..., 2 S] -> mean, std = softplus(raw) + 0.1, each [..., S]."""
    mean, std = raw.chunk(2, -1)
    return mean, F.softplus(std) + MIN_STD


def kl_divergence(q: Gaussian, p: Gaussian) -> Tensor:
    """KL(q || p) per dimension in closed form, nats, [..., S]."""
    precision = p.std.reciprocal()
    ratio = q.std * precision  # [..., S]
    return 0.5 * (ratio.square() + ((q.mean - p.mean) * precision).square() - 1.0) - ratio.log()


class Transition(nn.Module):
    """Prior of one latent: inputs -> (ELU layers) -> GRU -> Gaussian.

    x and y have one input layer, a latent with parents has two; every width is the belief's.
    """

    def __init__(self, spec: LatentSpec, inputs: int):
        super().__init__()
        widths = [inputs] + [spec.belief] * (2 if spec.parents else 1)
        self.inputs = nn.ModuleList(nn.Linear(a, b) for a, b in zip(widths[:-1], widths[1:], strict=True))
        self.gru = nn.GRUCell(spec.belief, spec.belief)
        self.prior = MLP(spec.belief, spec.belief, 2 * spec.state)

    def forward(self, inputs: Tensor, belief: Tensor) -> Tensor:
        """Inputs [B, inputs], previous belief [B, D_name] -> next belief [B, D_name]."""
        for layer in self.inputs:
            inputs = F.elu(layer(inputs), inplace=True)
        return gru_step(inputs, belief, self.gru)


class RSSM(nn.Module):
    """Factorized transition model (prior) and filter (posterior).

    `specs` is the table from `structure`. All latents without parents share one posterior net, whose hidden
    width is the sum of their beliefs; a latent with parents has its own, which also reads the parents' samples.
    """

    def __init__(self, specs: tuple[LatentSpec, ...], action_size: int, embed: int):
        super().__init__()
        self.specs = {spec.name: spec for spec in specs}
        self.layout = Layout(specs)
        self.action_size = action_size
        self.roots = tuple(spec.name for spec in specs if not spec.parents)
        self.dependents = tuple(spec.name for spec in specs if spec.parents)
        self.transitions = nn.ModuleDict()
        for spec in specs:
            parents = sum(self.specs[p].belief + self.specs[p].state for p in spec.parents)
            inputs = parents + spec.state + action_size * spec.sees_action
            self.transitions[spec.name] = Transition(spec, inputs)

        root_beliefs = sum(self.specs[name].belief for name in self.roots)
        root_states = sum(self.specs[name].state for name in self.roots)
        child_sizes = sum(self.specs[name].belief + self.specs[name].state for name in self.dependents)
        self.posteriors = nn.ModuleDict(
            {"roots": MLP(root_beliefs + child_sizes + embed, root_beliefs, 2 * root_states)}
        )
        for name in self.dependents:
            spec = self.specs[name]
            inputs = root_beliefs + root_states + spec.belief + embed
            self.posteriors[name] = MLP(inputs, spec.belief, 2 * spec.state)

    def initial(self, batch: int) -> Latent:
        """The zero latent before an episode: belief [B, D], state [B, S]."""
        like = self.transitions["x"].gru.weight_ih
        return Latent(
            like.new_zeros(batch, self.layout.belief_size), like.new_zeros(batch, self.layout.state_size), self.layout
        )

    def draw_noise(self, *shape: int, generator: torch.Generator | None = None) -> Tensor:
        """Standard normal noise [*shape, S] for `observe`, on the module's device."""
        like = self.transitions["x"].gru.weight_ih
        return torch.randn(
            *shape, self.layout.state_size, device=like.device, dtype=like.dtype, generator=generator
        )

    def observe(
        self, embed: Tensor, action: Tensor, is_first: Tensor, noise: Tensor, initial: Latent | None = None
    ) -> tuple[Latent, Gaussian, Gaussian]:
        """Filter a sequence; one step is a sequence of length 1.

        embed [T, B, E], action [T, B, A] (row t holds the action that led to observation t), is_first [T, B],
        noise [T, B, S] standard normal, initial: latent before the first row, [B, ...] (default zeros).
        Where is_first is set, the previous belief, state and action are zero.

        Returns posterior samples as a `Latent` [T, B, ...], the posterior and the prior Gaussian [T, B, S].

        What does not depend on the recurrence is computed for all steps at once, outside the loop: the
        embeddings' share of the posterior nets' first layers before it, the prior heads after it.
        """
        previous = initial if initial is not None else self.initial(embed.shape[1])
        keep = (~is_first).to(action.dtype)[..., None]  # [T, B, 1]
        size = embed.shape[-1]
        weights, projections = {}, {}
        for name, net in self.posteriors.items():  # first layers, split into the latents' and the embedding's columns
            weights[name], columns = net.hidden[0].weight.split((net.hidden[0].in_features - size, size), 1)
            projections[name] = F.linear(embed, columns, net.hidden[0].bias).unbind()

        beliefs, states, means, stds = [], [], [], []
        belief, state = previous.belief, previous.state
        rows = zip(keep.unbind(), (action * keep).unbind(), noise.unbind(), strict=True)
        for t, (kept, last_action, noise_now) in enumerate(rows):
            projection = {name: value[t] for name, value in projections.items()}
            belief, state, mean, std = self._observe_step(
                weights, projection, belief * kept, state * kept, last_action, noise_now
            )
            beliefs.append(belief)
            states.append(state)
            means.append(mean)
            stds.append(std)
        latent = Latent(torch.stack(beliefs), torch.stack(states), self.layout)
        return latent, Gaussian(torch.stack(means), torch.stack(stds)), self.prior(latent.belief)

    def prior(self, belief: Tensor) -> Gaussian:
        """Beliefs [..., D] -> prior Gaussian over all states [..., S]."""
        parts = [
            gaussian_from_raw(self.transitions[name].prior(part))
            for name, part in self.layout.split_belief(belief).items()
        ]
        return Gaussian(torch.cat([mean for mean, _ in parts], -1), torch.cat([std for _, std in parts], -1))

    def imagine_step(self, belief: Tensor, state: Tensor, action: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        """One step of the x prior alone: it is a clean MDP.

        belief [N, D_x], state [N, S_x], action [N, A], noise [N, S_x] -> the next (belief, state).
        """
        transition = self.transitions["x"]
        belief = transition(torch.cat((state, action), -1), belief)
        mean, std = gaussian_from_raw(transition.prior(belief))
        return belief, torch.addcmul(mean, std, noise)

    @staticmethod
    def _posterior(net: MLP, weight: Tensor, latents: list[Tensor], projection: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and std of a posterior from latents [B, ...], their weight and the embedding's share [B, hidden]."""
        hidden = F.elu(torch.addmm(projection, torch.cat(latents, -1), weight.t()), inplace=True)
        return gaussian_from_raw(net.output(hidden))

    def _observe_step(
        self,
        weights: dict[str, Tensor],
        projection: dict[str, Tensor],
        belief: Tensor,
        state: Tensor,
        action: Tensor,
        noise: Tensor,
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """One filtering step on [B, ...] tensors; returns belief, posterior sample, posterior mean and std.

        weights, projection: of the posterior nets' first layers, what multiplies the latents [hidden, inputs] and
        what the embedding contributes [B, hidden].
        """
        old_belief, old_state = self.layout.split_belief(belief), self.layout.split_state(state)
        new_belief = {}
        for name in self.roots:
            inputs = [old_state[name], action] if self.specs[name].sees_action else [old_state[name]]
            new_belief[name] = self.transitions[name](torch.cat(inputs, -1), old_belief[name])
        context = list(new_belief.values())
        for name in self.dependents:
            context += [old_belief[name], old_state[name]]
        mean, std = self._posterior(self.posteriors["roots"], weights["roots"], context, projection["roots"])
        sample = torch.addcmul(mean, std, noise[..., : mean.shape[-1]])
        if not self.dependents:  # nothing to put together
            return torch.cat(list(new_belief.values()), -1), sample, mean, std

        sizes = [self.specs[name].state for name in self.roots]
        new_state = dict(zip(self.roots, sample.split(sizes, -1), strict=True))
        samples, means, stds, noises = [sample], [mean], [std], self.layout.split_state(noise)
        for name in self.dependents:
            first, *rest = self.specs[name].parents
            inputs = [new_belief[first], new_state[first], old_state[name], action]
            inputs += [part for parent in rest for part in (new_belief[parent], new_state[parent])]
            new_belief[name] = self.transitions[name](torch.cat(inputs, -1), old_belief[name])
            context = [part for root in self.roots for part in (new_belief[root], new_state[root])]
            context.append(new_belief[name])
            mean, std = self._posterior(self.posteriors[name], weights[name], context, projection[name])
            new_state[name] = torch.addcmul(mean, std, noises[name])
            for parts, part in ((samples, new_state[name]), (means, mean), (stds, std)):
                parts.append(part)
        return tuple(torch.cat(parts, -1) for parts in (list(new_belief.values()), samples, means, stds))
