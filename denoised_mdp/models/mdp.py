"""The denoised MDP: all that a policy sees of a world model (Wang et al. 2022, section 3)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from functools import cached_property

import torch
from torch import Tensor

from denoised_mdp.models.latent import Latent, Layout
from denoised_mdp.models.structure import LatentSpec
from denoised_mdp.optim.parallel import average, normal


@dataclass
class PolicyBatch:
    """Posterior latents of one training batch, detached from the world model, and the actions taken in them."""

    belief: Tensor
    """beliefs of what the policy sees, [T, B, D]"""
    state: Tensor
    """posterior samples, [T, B, S]"""
    action: Tensor
    """[T, B, A]: row t holds the action that *led to* latent t, row t + 1 the action taken in latent t"""
    reward: Tensor
    """mean reward of these latents, [T, B], from the pass that inferred them; `LatentMDP.reward` has newer weights"""
    is_terminal: Tensor
    """bool [T, B]: the episode terminated there; nothing follows"""
    is_first: Tensor
    """bool [T, B]: an episode begins there; it does not follow from the row before"""

    @property
    def features(self) -> Tensor:
        """Beliefs, then states, [T, B, F]."""
        return torch.cat((self.belief, self.state), -1)

    @property
    def continues(self) -> Tensor:
        """0 where the episode terminated, else 1, in the type of the rewards, [T, B]."""
        return (~self.is_terminal).to(self.reward.dtype)

    def last(self, rows: int | None) -> PolicyBatch:
        """The last `rows` rows of each segment, or all of them if there are fewer; None: all.

        Each row is a posterior latent, whichever episode it belongs to, so the first one needs no row before it.
        """
        if rows is None:
            return self
        return PolicyBatch(**{field.name: getattr(self, field.name)[-rows:] for field in fields(self)})

    @cached_property
    def within(self) -> tuple[Tensor, Tensor]:
        """`steps`, computed once for all means."""
        return self.steps()

    def steps(self) -> tuple[Tensor, Tensor]:
        """1 for each step from row t to row t + 1 within an episode, else 0, [T - 1, B]; and their number, at least 1.

        The number is averaged over several processes: the results of `mean` then average to the whole batch's mean.
        """
        within = (~self.is_first[1:]).to(self.reward.dtype)  # [T - 1, B]
        count = within.sum()
        average([count])
        return within, count.clamp(min=1.0)

    def mean(self, values: Tensor) -> Tensor:
        """Mean of values [..., T - 1, B], one for each step from row t to row t + 1, over those within an episode."""
        within, count = self.within
        return (values * within).sum((-2, -1)) / count


class LatentMDP:
    """The rows of the table that the policy sees: their priors, rewards and ends. For 2b and 2c, x alone.

    Nothing else of the world model is reachable from here, so no policy can look at the noise.

    Symbols: D / S belief / state size summed over these rows, F = D + S, A action size.
    """

    def __init__(
        self,
        rows: Sequence[LatentSpec],
        action_size: int,
        step: Callable[[Latent, Tensor, Tensor], Latent],
        reward: Callable[[Latent], Tensor],
        continuation: Callable[[Latent], Tensor] | None = None,
        *,
        discrete: bool = False,
    ):
        self.layout = Layout(rows)
        self.belief_size, self.state_size = self.layout.belief_size, self.layout.state_size
        self.feature_size = self.belief_size + self.state_size
        self.discrete = discrete  # actions are one-hot rows
        self.action_size, self._step, self._reward, self._continuation = action_size, step, reward, continuation

    def step(self, belief: Tensor, state: Tensor, action: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        """Sample the priors: belief [N, D], state [N, S], action [N, A], noise [N, S] -> the next pair."""
        latent = self._step(Latent(belief, state, self.layout), action, noise)
        return latent.belief, latent.state

    def reward(self, features: Tensor) -> Tensor:
        """Mean reward of these rows: features [..., F] -> [...]."""
        return self._reward(self._latent(features))

    def continuation(self, features: Tensor) -> Tensor:
        """Probability that the episode goes on after these latents: features [..., F] -> [...]; 1 without a head."""
        if self._continuation is None:
            return features.new_ones(features.shape[:-1])
        return self._continuation(self._latent(features))

    def _latent(self, features: Tensor) -> Latent:
        """Features [..., F] as a latent."""
        return Latent(*features.split((self.belief_size, self.state_size), -1), self.layout)

    def draw_noise(self, *shape: int, like: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """Noise [*shape, S] for `step`, on the device and in the type of `like`."""
        return normal(*shape, self.state_size, like=like, generator=generator)
