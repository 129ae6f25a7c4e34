"""The factorized recurrent state-space model (Wang et al. 2022, section 3 and Figure 2).

The table (`structure.Table`) says what each latent may see; the transition (prior) and the filter (posterior) follow
it row by row. With x alone the model is Dreamer's RSSM.

Symbols: T segment length, B batch, A action size, D / S belief / state size summed over latents, E embedding size.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from denoised_mdp.errors import UserError
from denoised_mdp.models.blocks import BlockTransition
from denoised_mdp.models.distributions import DISTRIBUTIONS, Gaussian, StateDistribution
from denoised_mdp.models.gru import gru_step, make_gru
from denoised_mdp.models.latent import Latent, Layout
from denoised_mdp.models.networks import MLP
from denoised_mdp.models.norms import activation
from denoised_mdp.models.structure import LatentSpec, Table

Distributions = dict[str, StateDistribution]
"""prior or posterior of each latent by name"""


class Transition(nn.Module):
    """Prior of one latent: inputs -> layers with ELU, or `norm`'s activation -> GRU -> distribution.

    A latent without parents has one input layer, one with parents has two. All widths equal the belief's.
    """

    def __init__(self, row: LatentSpec, inputs: int, norm: str):
        super().__init__()
        widths = [inputs] + [row.belief] * (2 if row.parents else 1)
        self.row = row
        self.inputs = nn.ModuleList(nn.Linear(a, b) for a, b in zip(widths[:-1], widths[1:], strict=True))
        self.activations = nn.ModuleList(activation(norm, row.belief) for _ in self.inputs)
        self.gru = make_gru(row.belief, row.belief, norm)
        self.kind = DISTRIBUTIONS[row.distribution]
        self.prior = MLP(row.belief, row.belief, self.kind.raw_width(row.state, row.classes), norm=norm)

    def forward(self, inputs: Tensor, belief: Tensor) -> Tensor:
        """Inputs [B, inputs], previous belief [B, D_name] -> next belief [B, D_name]."""
        for layer, activate in zip(self.inputs, self.activations, strict=True):
            inputs = activate(layer(inputs))
        return gru_step(inputs, belief, self.gru)

    def distribution(self, belief: Tensor) -> StateDistribution:
        """Belief [..., D_name] -> prior over states [..., S_name]."""
        return self.kind.from_raw(self.prior(belief), self.row.classes)


class PosteriorStage(nn.Module):
    """The joint posterior net of latents whose parents are known (Wang et al. 2022, appendix).

    It reads belief and state of the latents of earlier stages, the beliefs of its own latents, the previous belief and
    state of those of later stages, and the embedding. Its hidden width is `width`, or the sum of its own beliefs.
    """

    def __init__(self, rows: tuple[LatentSpec, ...], inputs: int, embed: int, norm: str, width: int | None):
        super().__init__()
        self.rows, self.embed = rows, embed
        self.kinds = [DISTRIBUTIONS[row.distribution] for row in rows]
        self.gaussian = all(kind is Gaussian for kind in self.kinds)  # then one distribution serves all rows
        self.raw_widths = [kind.raw_width(row.state, row.classes) for row, kind in zip(rows, self.kinds, strict=True)]
        self.net = MLP(inputs + embed, width or sum(row.belief for row in rows), sum(self.raw_widths), norm=norm)

    def split_first_layer(self, embed: Tensor) -> tuple[Tensor, Tensor]:
        """The first layer's columns for the latents [hidden, inputs], and the embeddings' share [..., hidden]."""
        first = self.net.hidden[0]
        weight, columns = first.weight.split((first.in_features - self.embed, self.embed), 1)
        return weight, F.linear(embed, columns, first.bias)

    def forward(
        self, context: Tensor, weight: Tensor, projection: Tensor, noise: Tensor
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Context [B, inputs] and the split first layer -> states [B, S_rows], and parameters to stack over time."""
        hidden = self.net.activations[0](torch.addmm(projection, context, weight.t()))  # [B, hidden]
        raw = self.net.output(hidden)  # [B, raw]
        if self.gaussian:
            posterior = Gaussian.from_raw(raw)
            return posterior.sample(noise), (posterior.mean, posterior.std)
        noises = noise.split([row.width for row in self.rows], -1)  # [B, S] each
        parts = self.distributions((raw,)).values()
        return torch.cat([part.sample(own) for part, own in zip(parts, noises, strict=True)], -1), (raw,)

    def distributions(self, parameters: tuple[Tensor, ...]) -> Distributions:
        """Parameters as returned by `forward`, possibly stacked -> the posterior of each row."""
        if self.gaussian:
            sizes = [row.state for row in self.rows]
            split = zip(*(tensor.split(sizes, -1) for tensor in parameters), strict=True)
            return {row.name: Gaussian(*pair) for row, pair in zip(self.rows, split, strict=True)}
        parts = zip(self.rows, self.kinds, parameters[0].split(self.raw_widths, -1), strict=True)
        return {row.name: kind.from_raw(raw, row.classes) for row, kind, raw in parts}


class RSSM(nn.Module):
    """Factorized transition model (prior) and filter (posterior) of a table of latents.

    `block_width`: width H of the `BlockTransition` priors and of the posterior nets; None: priors are `Transition`s.
    """

    def __init__(self, table: Table, action_size: int, embed: int, norm: str, block_width: int | None = None):
        super().__init__()
        self.table, self.layout, self.action_size = table, Layout(list(table.rows.values())), action_size
        self.transitions = nn.ModuleDict()
        if taken := [name for name in table.names if hasattr(self.transitions, name)]:
            raise UserError(f"A latent cannot be called {taken[0]!r}, which PyTorch uses itself: choose another name.")
        for row in table.rows.values():
            first, *others = [table.rows[name].belief + table.rows[name].width for name in row.parents] or [0]
            inputs = [first, row.width, action_size * row.sees_action, *others]  # the order of `_prior_inputs`
            if block_width is None:
                self.transitions[row.name] = Transition(row, sum(inputs), norm)
            else:
                self.transitions[row.name] = BlockTransition(row, [size for size in inputs if size], block_width)
        self.posteriors = nn.ModuleList()
        for rows in table.stages:
            others = (row for stage in table.stages if stage is not rows for row in stage)
            inputs = sum(row.belief for row in rows) + sum(row.belief + row.width for row in others)
            self.posteriors.append(PosteriorStage(rows, inputs, embed, norm, block_width))

    def initial(self, batch: int) -> Latent:
        """The zero latent before an episode: belief [B, D], state [B, S]."""
        like = self.posteriors[0].net.output.weight
        sizes = self.layout.belief_size, self.layout.state_size
        return Latent(*(like.new_zeros(batch, size) for size in sizes), self.layout)

    def observe(
        self, embed: Tensor, action: Tensor, is_first: Tensor, noise: Tensor, initial: Latent | None = None
    ) -> tuple[Latent, Distributions, Distributions]:
        """Filter a sequence; one step is a sequence of length 1.

        embed [T, B, E], action [T, B, A] (row t holds the action that led to observation t), is_first [T, B],
        noise [T, B, S] (see `WorldModel.draw_noise`), initial: latent before the first row, [B, ...] (default zeros).
        Where is_first is set, the previous belief, state and action are zero.

        Returns posterior samples as a `Latent` [T, B, ...], and posterior and prior of each latent, [T, B, ...].

        What does not depend on the recurrence is computed for all steps at once, outside the loop: the embeddings'
        share of the posterior nets' first layers before it, the prior heads after it.
        """
        previous = initial if initial is not None else self.initial(embed.shape[1])
        keep = (~is_first).to(action.dtype)[..., None]  # [T, B, 1]
        weights, projections = zip(*(stage.split_first_layer(embed) for stage in self.posteriors), strict=True)
        projections = list(zip(*(projection.unbind() for projection in projections), strict=True))  # [T][stages]
        belief, state = previous.belief, previous.state
        beliefs, states, parameters = [], [], []
        rows = zip(keep.unbind(), (action * keep).unbind(), noise.unbind(), projections, strict=True)
        for kept, last_action, noise_now, projection in rows:
            old = Latent(belief * kept, state * kept, self.layout)
            belief, state, stages = self._observe_step(old, last_action, noise_now, weights, projection)
            beliefs.append(belief)
            states.append(state)
            parameters.append(stages)
        latent = Latent(torch.stack(beliefs), torch.stack(states), self.layout)  # [T, B, ...]
        posterior: Distributions = {}
        for stage, steps in zip(self.posteriors, zip(*parameters, strict=True), strict=True):
            posterior |= stage.distributions(tuple(map(torch.stack, zip(*steps, strict=True))))
        return latent, posterior, self.prior(latent.belief)

    def _observe_step(
        self, old: Latent, action: Tensor, noise: Tensor, weights: tuple[Tensor, ...], projection: tuple[Tensor, ...]
    ) -> tuple[Tensor, Tensor, list[tuple[Tensor, ...]]]:
        """One filtering step on [B, ...] tensors; returns belief, posterior sample and each stage's parameters.

        weights, projection: of each stage's first layer, the columns for the latents [hidden, inputs] and the share of
        the embedding [B, hidden].
        """
        old_belief, old_state = self.layout.split_belief(old.belief), self.layout.split_state(old.state)
        noises = noise.split([sum(row.width for row in stage.rows) for stage in self.posteriors], -1)  # [B, S] each
        new_belief: dict[str, Tensor] = {}
        new_state: dict[str, Tensor] = {}
        samples, parameters = [], []
        for number, stage in enumerate(self.posteriors):
            earlier = [part for name in new_state for part in (new_belief[name], new_state[name])]
            for row in stage.rows:
                inputs = self._prior_inputs(row, new_belief, new_state, old_state[row.name], action)
                new_belief[row.name] = self.transitions[row.name](inputs, old_belief[row.name])
            own = [new_belief[row.name] for row in stage.rows]
            rest = [row.name for later in self.table.stages[number + 1 :] for row in later]
            later = [part for name in rest for part in (old_belief[name], old_state[name])]  # of the previous step
            context = [*earlier, *own, *later]  # [B, ...] each
            sample, tensors = stage(torch.cat(context, -1), weights[number], projection[number], noises[number])
            new_state |= zip(
                [row.name for row in stage.rows], sample.split([row.width for row in stage.rows], -1), strict=True
            )
            samples.append(sample)
            parameters.append(tensors)
        state = samples[0] if len(samples) == 1 else torch.cat(samples, -1)  # [B, S]
        return torch.cat(list(new_belief.values()), -1), state, parameters

    @staticmethod
    def _prior_inputs(
        row: LatentSpec, belief: dict[str, Tensor], state: dict[str, Tensor], own: Tensor, action: Tensor
    ) -> Tensor:
        """Inputs of a row's prior, [B, inputs]: first parent, own previous state, action, other parents.

        belief, state: of the latents that this step has reached so far. own: the row's previous state.
        """
        parents = [(belief[name], state[name]) for name in row.parents]
        inputs = [*(parents[0] if parents else ()), own]
        inputs += [action] if row.sees_action else []
        inputs += [part for pair in parents[1:] for part in pair]
        return torch.cat(inputs, -1) if len(inputs) > 1 else own

    def prior(self, belief: Tensor) -> Distributions:
        """Beliefs [..., D] -> prior of each latent."""
        return {
            name: self.transitions[name].distribution(part) for name, part in self.layout.split_belief(belief).items()
        }

    def imagine_step(self, latent: Latent, action: Tensor, noise: Tensor) -> Latent:
        """One step of the priors of what the policy sees: a clean MDP.

        latent [N, ...] of these rows alone (`Latent.select`), action [N, A], noise [N, S_seen] -> the next latent.
        """
        layout = latent.layout
        old_belief, old_state = layout.split_belief(latent.belief), layout.split_state(latent.state)
        noises = layout.split_state(noise)
        belief: dict[str, Tensor] = {}
        state: dict[str, Tensor] = {}
        for name in layout.names:
            transition = self.transitions[name]
            inputs = self._prior_inputs(transition.row, belief, state, old_state[name], action)
            belief[name] = transition(inputs, old_belief[name])
            state[name] = transition.distribution(belief[name]).sample(noises[name])
        if len(belief) == 1:
            return Latent(*belief.values(), *state.values(), layout)
        return Latent(torch.cat(list(belief.values()), -1), torch.cat(list(state.values()), -1), layout)
