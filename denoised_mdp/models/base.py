"""The interface of every world model: what agents need, and what analysis may use.

Time-major tensors [T, B, ...]: T segment length, B batch, A action size, D / S belief / state size summed over the
latents of the model's table.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from typing_extensions import Self

from denoised_mdp.models.latent import Latent, Layout
from denoised_mdp.models.losses import KLWeights
from denoised_mdp.models.mdp import LatentMDP
from denoised_mdp.models.networks import MLP
from denoised_mdp.models.rssm import Distributions
from denoised_mdp.models.structure import Table
from denoised_mdp.models.vision import Encoder
from denoised_mdp.optim.parallel import normal

if TYPE_CHECKING:
    from denoised_mdp.config.schema import Config


@dataclass
class Filtered:
    """The result of filtering a batch, [T, B, ...]."""

    latent: Latent
    """posterior samples"""
    posterior: Distributions
    prior: Distributions
    embedding: Tensor
    """the encoder's output for the observations, [T, B, E]"""

    def map(self, function: Callable[..., Tensor], *others: Filtered) -> Filtered:
        """Apply `function` to every tensor, together with the same one of `others` (move, index, concatenate ...)."""
        return Filtered(
            self.latent.map(function, *(other.latent for other in others)),
            *(
                {name: one.map(function, *(getattr(o, which)[name] for o in others)) for name, one in mine.items()}
                for which, mine in (("posterior", self.posterior), ("prior", self.prior))
            ),
            function(self.embedding, *(other.embedding for other in others)),
        )


@dataclass
class Learned:
    """What one update hands to the policy: results of the forward pass before the optimizer's step, all detached."""

    latent: Latent
    """posterior samples [T, B, ...] of all latents"""
    reward: Tensor
    """mean reward of the latents that the policy sees, [T, B]"""
    metrics: dict[str, Tensor]
    """scalars by name; they stay on the device"""


class WorldModel(nn.Module, ABC):
    """A latent model of an environment: it learns from batches, filters observations and serves a policy as an MDP.

    A subclass owns its losses and its optimizers. `filter`, `initial`, `draw_noise`, `imagine_step` and `seen_reward`
    serve acting and imagination. `decode` is optional: a model without pictures leaves `decodes` False.
    """

    table: Table
    """the latents"""
    size: int
    """height and width of an observation"""
    action_size: int
    encoder: nn.Module
    """reads observations for the latents that the policy sees, see `Agent.picture_encoder`"""
    decodes: bool = False
    """whether `decode` is implemented"""
    layers: ClassVar[dict[str, str]] = {}
    """pictures of latents that only this model can draw, see `show`: title -> what it shows"""
    target: str = "observation"
    """what `decode` shows: observation, or foreground"""
    free_nats: float = 0.0
    """nats per step that cost nothing in the KL of what the policy sees"""

    def __init__(self):
        super().__init__()
        self.optimizers: dict[str, torch.optim.Optimizer] = {}
        self.continuation: MLP | None = None  # see `add_continuation`

    @classmethod
    def from_config(cls, config: Config, action_size: int) -> Self:
        """Build a model from a configuration whose `model` has the options that the class was registered with."""
        return cls(Table(list(config.model.latents.values())), action_size, **cls.options(config))

    @classmethod
    def options(cls, config: Config) -> dict[str, Any]:
        """Constructor arguments from a configuration: for the `Encoder`, reward nets, KL terms and optimizer.

        A subclass adds its own.
        """
        m = config.model
        return {
            **Encoder.options(config),
            "hidden": m.reward_hidden,
            "reward_layers": m.reward_layers,
            "reward_std": m.reward_std,
            "continuation": bool(m.continuation),
            "kl": KLWeights.from_config(config),
            **vars(m.optimizer),
        }

    @abstractmethod
    def update(self, batch: dict[str, Tensor], generator: torch.Generator) -> Learned:
        """Take one optimization step.

        batch: observation uint8 [T, B, H, W, C], action [T, B, A], reward [T, B], is_first and is_terminal bool [T, B]
        and optionally start [1, B, D + S] (see `latent_before`), on the model's device. All noise comes from
        `generator`. Shapes do not depend on data and nothing is copied to the host, so an update can be captured as
        one CUDA graph.
        """

    @abstractmethod
    def filter(
        self, observation: Tensor, action: Tensor, is_first: Tensor, noise: Tensor, initial: Latent | None = None
    ) -> Filtered:
        """Posterior over a sequence.

        observation uint8 [T, B, H, W, C], action [T, B, A] (row t led to observation t), is_first bool [T, B], noise
        [T, B, S] from `draw_noise`, initial: latent before the first row [B, ...] (default: zeros).
        """

    @abstractmethod
    def initial(self, batch: int) -> Latent:
        """The latent before an episode, [B, ...]."""

    def latent_before(self, start: Tensor | None) -> Latent | None:
        """Initial latent of `filter` from beliefs and states [1, B, D + S] of the rows before a batch; None: zeros."""
        if start is None:
            return None
        layout = self.initial(1).layout
        return Latent(*start[0].split((layout.belief_size, layout.state_size), -1), layout)

    def draw_noise(self, *shape: int, generator: torch.Generator | None = None) -> Tensor:
        """Standard normal noise [*shape, S] for `filter`, on the model's device."""
        initial = self.initial(1)
        return normal(*shape, initial.layout.state_size, like=initial.state, generator=generator)

    def mean_noise(self, *shape: int) -> Tensor:
        """Noise [*shape, S] for which `filter` takes the posterior's mean, or the mode of a categorical: zeros."""
        initial = self.initial(1)
        return initial.state.new_zeros(*shape, initial.layout.state_size)

    @abstractmethod
    def imagine_step(self, latent: Latent, action: Tensor, noise: Tensor) -> Latent:
        """Sample the priors of what the policy sees: latent [N, ...], action [N, A], noise [N, S] -> next latent."""

    @abstractmethod
    def seen_reward(self, latent: Latent) -> Tensor:
        """Mean reward [...] predicted from latents [...] of what the policy sees."""

    def add_continuation(self, hidden: int, norm: str) -> None:
        """Add a head of width `hidden` that predicts from what the policy sees whether the episode goes on.

        Call it last, before the optimizer is made: the other nets then draw the same initial weights as without it.
        """
        seen = Layout(self.table.seen)
        self.continuation = MLP(seen.belief_size + seen.state_size, hidden, 1, layers=2, norm=norm)

    def continuation_nll(self, latent: Latent, is_terminal: Tensor) -> Tensor:
        """Mean negative log likelihood of 1 - is_terminal, a Bernoulli variable for each row: a scalar in nats.

        latent: all latents [T, B, ...]; is_terminal: bool [T, B]. First rows count too: episodes go on after them.
        """
        logits = self.continuation(latent.select(self.table.seen).features()).squeeze(-1)  # [T, B]
        return F.binary_cross_entropy_with_logits(logits, (~is_terminal).to(logits.dtype))

    def continuation_terms(self, latent: Latent, is_terminal: Tensor) -> dict[str, Tensor]:
        """The continuation head's terms of the loss, scalars by the name of their metric; empty without a head."""
        if self.continuation is None:
            return {}
        return {"model/continuation_nll": self.continuation_nll(latent, is_terminal)}

    def seen_continuation(self, latent: Latent) -> Tensor:
        """Probability [...] that the episode goes on after latents [...] of what the policy sees."""
        return self.continuation(latent.features()).squeeze(-1).sigmoid()  # [...]

    def decode(self, latent: Latent) -> Tensor:
        """Latents [..., D], [..., S] -> mean images [N, 3, H, W], floats around [-0.5, 0.5], N = prod(...)."""
        raise NotImplementedError(f"{type(self).__name__} cannot decode pictures")

    def show(self, title: str, latent: Latent) -> Tensor:
        """The pictures of latents that `layers` lists under this title, in the shape and range of `decode`."""
        raise KeyError(title)

    def mdp(self, *, discrete: bool = False) -> LatentMDP:
        """The MDP that a policy sees of this model. discrete: actions are one-hot rows."""
        ends = None if self.continuation is None else self.seen_continuation
        learned = self.imagine_step, self.seen_reward, ends
        return LatentMDP(self.table.seen, self.action_size, *learned, discrete=discrete)
