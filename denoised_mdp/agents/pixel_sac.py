"""Soft actor-critic from pixels: the base of CURL, DBC and PI-SAC, and an agent itself (``agent=sac_pixels``).

Symbols: B batch, k stacked frames, S height and width of the encoder's input, F features, E flattened convolutions.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn
from typing_extensions import Self

from denoised_mdp.agents.acting import FrameCarry, Generators, check_frames
from denoised_mdp.agents.base import Agent
from denoised_mdp.agents.transitions import Transitions, make_transitions
from denoised_mdp.config import schema
from denoised_mdp.config.agents import PixelSACConfig
from denoised_mdp.envs.actions import Actions
from denoised_mdp.errors import UserError
from denoised_mdp.models.frames import center_cut, random_cut, stack_frames, to_unit
from denoised_mdp.models.pixels import PixelActor, PixelEncoder, initialize
from denoised_mdp.optim import Adam, optimize, soft_update, without_gradients
from denoised_mdp.policies.critics import Critics

CHUNK = 256
"""pictures encoded at once, to bound memory"""


class PixelSAC(Agent):
    """Soft actor-critic on an encoder of stacked frames (Haarnoja et al. 2018; Yarats et al. 2019 without a decoder).

    Actor and critics share the convolutions; each has its own linear layer with LayerNorm. The critics' loss trains the
    convolutions, the actor's does not. Every update steps the critics and the encoder. Every `actor_every`-th then
    steps the actor, the temperature and the targets. A subclass adds its loss in `auxiliary`.

    Parts: `encoder` (phi), `critics`, `actor`, `log_temperature`, and the targets `target_encoder` and
    `target_critics`. A subclass may replace any of them in `__init__`, before `add_optimizers`.
    """

    auxiliary_first: ClassVar[bool] = False
    """`auxiliary` runs between critics and actor instead of last"""

    def __init__(self, options: PixelSACConfig, size: int, action_size: int):
        super().__init__()
        self.options, self.size, self.action_size, self.updates = options, size, action_size, 0
        self.encoder = self.make_encoder()
        inputs = self.encoder.head.linear.in_features
        self.actor = PixelActor(inputs, action_size, options.hidden, options.features)
        self.critics = Critics(options.features, action_size, options.hidden, 2, norm="relu")
        initialize(self)
        self.target_encoder, self.target_critics = (
            copy.deepcopy(part).requires_grad_(False) for part in (self.encoder, self.critics)
        )
        self.log_temperature = nn.Parameter(torch.tensor(math.log(options.initial_temperature)))
        self.target_entropy = -float(action_size) if options.target_entropy is None else options.target_entropy
        self._optimizers: dict[str, torch.optim.Optimizer] = {}

    @classmethod
    def from_config(
        cls, config: schema.Config, actions: Actions, *, can_terminate: bool, device: torch.device | str
    ) -> Self:
        """See `Agent.from_config`."""
        if actions.discrete:
            raise UserError(f"agent={config.agent.name} acts by continuous numbers, and this environment has choices.")
        agent = cls(config.agent, config.env.size, actions.size).to(device)
        agent.random = torch.Generator(agent.device)
        agent.add_optimizers()
        return agent

    def make_encoder(self) -> PixelEncoder:
        """Make the encoder phi for pictures of `view_size` pixels; it has `convolve`, `head` and `pooled`."""
        options = self.options
        return PixelEncoder(options.frames, self.view_size, options.depth, options.features)

    def add_optimizers(self) -> None:
        """Make the optimizers, once the weights are on their device."""
        options = self.options
        trained = [*self.encoder.parameters(), *self.critics.parameters()]
        self._optimizers["critics"] = Adam(trained, lr=options.critic_lr)
        self._optimizers["actor"] = Adam(self.actor.parameters(), lr=options.actor_lr)
        self._optimizers["temperature"] = Adam([self.log_temperature], lr=options.temperature_lr, betas=(0.5, 0.999))

    def compute_in(self, dtype: torch.dtype | None) -> None:
        """See `Agent.compute_in`: convolutions only. Features may lie close and need full precision, as do values."""
        for part in self.modules():
            if isinstance(part, PixelEncoder):
                part.compute_dtype = dtype

    @property
    def optimizers(self) -> dict[str, torch.optim.Optimizer]:
        """Every optimizer by name."""
        return self._optimizers

    @property
    def view_size(self) -> int:
        """Height and width of the encoder's input, S."""
        return self.options.crop or self.size

    def augment(self, pictures: Tensor) -> Tensor:
        """Crop or shift uint8 [N, H, W, 3 k] at random for learning, or keep it whole; [N, 3 k, S, S] in [0, 1]."""
        crop, shift = self.options.crop, self.options.shift
        if crop is not None:
            pictures = random_cut(pictures, 0, self.size - crop - 1, crop, self.random)
        elif shift:
            pictures = random_cut(pictures, -shift, shift, self.size, self.random)
        return to_unit(pictures, self._like.dtype)

    def view(self, pictures: Tensor) -> Tensor:
        """Return the center of uint8 [N, H, W, 3 k], without augmentation; [N, 3 k, S, S] in [0, 1]."""
        return to_unit(center_cut(pictures, self.view_size), self._like.dtype)

    def update_eagerly(self, batch: dict[str, np.ndarray | Tensor], *, policy: bool = True) -> dict[str, Tensor]:
        """See `Agent.update_eagerly`. policy: False leaves actor, critics and targets unchanged."""
        batch, options = self.to_device(batch), self.options
        step = make_transitions(batch, options.frames, options.n_step, options.gamma)
        now, following = self.augment(step.now), self.augment(step.following)  # [B, 3 k, S, S] each
        metrics: dict[str, Tensor] = {}
        if policy:
            metrics |= self.critic_step(step, now, following)
        if self.auxiliary_first:
            metrics |= self.auxiliary(batch, step, now, following)
        if policy and self.updates % options.actor_every == 0:
            metrics |= self.actor_step(step, now)
            self.update_targets()
        if not self.auxiliary_first:
            metrics |= self.auxiliary(batch, step, now, following)
        self.updates += policy
        return metrics

    def auxiliary(
        self, batch: dict[str, Tensor], step: Transitions, now: Tensor, following: Tensor
    ) -> dict[str, Tensor]:
        """Take one step on a subclass's own representation loss; return metrics.

        batch: rows of the replay [R, B, ...], on the device. step: transitions with whole pictures, uint8. now,
        following: the pictures that the critics learned from, [B, 3 k, S, S] in [0, 1].
        """
        return {}

    def critic_loss(self, step: Transitions, now: Tensor, following: Tensor, noise: Tensor) -> Tensor:
        """Return the mean squared error to r + discount (min Q'(o', a') - temperature log pi(a' | o')), of both nets.

        The nets' errors are summed. a' is the actor's at o', from noise [B, A]; Q' and its encoder are the targets.
        """
        with torch.no_grad():
            hidden = self.encoder.convolve(following)  # [B, E]
            action, log_prob = self.actor.sample(self.actor_input(hidden), noise)  # [B, A], [B]
            value = self.target_critics(self.target_encoder(following), action).amin(0)  # [B]
            target = step.reward + step.discount * (value - self.log_temperature.exp() * log_prob)  # [B]
        return step.mean((self.critics(self.learned_from(now), step.action) - target).square()).sum()

    def learned_from(self, now: Tensor) -> Tensor:
        """Return phi [B, F] of the pictures [B, 3 k, S, S] that the critics and the encoder learn from."""
        return self.encoder(now)

    def critic_step(self, step: Transitions, now: Tensor, following: Tensor) -> dict[str, Tensor]:
        """Take one step of the critics and the encoder."""
        noise = torch.randn(step.action.shape, generator=self.random, device=self.device, dtype=now.dtype)  # [B, A]
        loss = self.critic_loss(step, now, following, noise)
        norm = optimize(loss, self.optimizers["critics"], None)
        return {"policy/critic_loss": loss.detach(), "policy/critic_gradient": norm}

    def actor_input(self, hidden: Tensor) -> Tensor:
        """Return what the actor reads, given the convolutions [N, E]: the convolutions themselves."""
        return hidden

    @torch.no_grad()
    def encode(self, now: Tensor) -> tuple[Tensor, Tensor]:
        """Return what the actor reads [B, ...], and phi [B, F], for the pictures of the actor's step."""
        hidden = self.encoder.convolve(now)  # [B, E]
        return self.actor_input(hidden), self.encoder.head(hidden)

    def actor_loss(self, step: Transitions, now: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        """Return the mean of temperature log pi(a | o) - min Q(o, a), and log pi [B]; the encoder gets no gradient."""
        seen, phi = self.encode(now)
        action, log_prob = self.actor.sample(seen, noise)
        value = self.critics(phi, action).amin(0)  # [B]
        return step.mean(self.log_temperature.exp().detach() * log_prob - value), log_prob

    def temperature_loss(self, step: Transitions, log_prob: Tensor) -> Tensor:
        """Return the mean of temperature (-log pi - target entropy): low entropy raises the temperature."""
        return step.mean(self.log_temperature.exp() * (-log_prob.detach() - self.target_entropy))

    def actor_step(self, step: Transitions, now: Tensor) -> dict[str, Tensor]:
        """Take one step of the actor, then one of the temperature."""
        noise = torch.randn(step.action.shape, generator=self.random, device=self.device, dtype=now.dtype)  # [B, A]
        with without_gradients(self.critics):
            loss, log_prob = self.actor_loss(step, now, noise)
            norm = optimize(loss, self.optimizers["actor"], None)
        optimize(self.temperature_loss(step, log_prob), self.optimizers["temperature"], None)
        return {
            "policy/actor_loss": loss.detach(),
            "policy/actor_gradient": norm,
            "policy/entropy": -step.mean(log_prob.detach()),
            "policy/temperature": self.log_temperature.exp().detach(),
        }

    def update_targets(self) -> None:
        """Move the target nets toward critics and encoder."""
        soft_update(self.target_critics, self.critics, self.options.tau)
        soft_update(self.target_encoder, self.encoder, self.options.encoder_tau)

    def observe(
        self, images: Tensor, carry: FrameCarry | None, is_first: Tensor, generator: Generators, *, sample: bool = True
    ) -> FrameCarry:
        """Add one frame; the first of an episode fills the whole stack. Nothing is sampled."""
        first = images[:, None].expand(-1, self.options.frames, -1, -1, -1)  # [B, k, H, W, 3]
        if carry is None:
            return FrameCarry(first.clone())
        check_frames(carry, first)
        frames = torch.cat((carry.frames[:, 1:], images[:, None]), 1)  # [B, k, H, W, 3]
        return FrameCarry(torch.where(is_first[:, None, None, None, None], first, frames))

    def choose(self, carry: FrameCarry, noise: Tensor | None) -> Tensor:
        """Return the actor's actions [B, A] on the last frames."""
        seen = self.actor_input(self.encoder.convolve_frames(carry.frames))  # [B, E], or what a subclass makes of it
        return self.actor.mode(seen) if noise is None else self.actor.sample(seen, noise)[0]

    def carry(self, *, frames: Tensor) -> FrameCarry:
        """Build a carry from its frames, see `FrameCarry`."""
        return FrameCarry(frames.to(self.device))

    @property
    def picture_encoder(self) -> PixelEncoder:
        """The encoder of the critics."""
        return self.encoder

    @property
    def seen(self) -> str:
        """x: phi, the encoder's features of the last frames. The actor reads the same convolutions."""
        return "x"

    def representations(
        self, batch: dict[str, np.ndarray | Tensor], generator: torch.Generator | None = None, *, sample: bool = True
    ) -> dict[str, Tensor]:
        """Return phi as x, and as encoder the convolutions averaged over a coarse grid; [T, B, ...], deterministic."""
        return self._read(
            batch, lambda hidden: {"x": self.encoder.probed(hidden), "encoder": self.encoder.pooled(hidden)}
        )

    def modes(self, batch: dict[str, np.ndarray | Tensor]) -> Tensor:
        """See `Agent.modes`."""
        return self._read(batch, lambda hidden: {"action": self.actor.mode(self.actor_input(hidden))})["action"]

    @torch.no_grad()
    def _read(
        self, batch: dict[str, np.ndarray | Tensor], read: Callable[[Tensor], dict[str, Tensor]]
    ) -> dict[str, Tensor]:
        """Apply `read` to the convolutions [N, E] of all rows of a batch [T, B, ...]: [T, B, ...] each."""
        batch = self.to_device({name: batch[name] for name in ("observation", "is_first")})
        length, columns = batch["is_first"].shape
        found: dict[str, list[Tensor]] = {}
        rows = max(1, CHUNK // columns)
        for begin in range(0, length, rows):
            at = torch.arange(begin, min(begin + rows, length), device=self.device)[:, None].expand(-1, columns)
            pictures = stack_frames(batch["observation"], batch["is_first"], at, self.options.frames)
            for name, values in read(self.encoder.convolve(self.view(pictures.flatten(0, 1)))).items():
                found.setdefault(name, []).append(values.unflatten(0, at.shape))  # [rows, B, ...]
        return {name: torch.cat(parts) for name, parts in found.items()}

    def state(self) -> dict[str, Any]:
        """See `Agent.state`; the number of updates decides when the actor learns."""
        return super().state() | {"updates": self.updates}

    def restore(self, state: dict[str, Any], *, weights_only: bool = False) -> None:
        """See `Agent.restore`."""
        super().restore(state, weights_only=weights_only)
        if not weights_only:
            self.updates = state["updates"]
