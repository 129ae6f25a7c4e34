"""The interface of all agents: they learn from batches, act, and expose their representations.

Time-major tensors [T, B, ...]: T segment length, B batch, A action size, F features.
"""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from typing_extensions import Self

from denoised_mdp.agents.acting import (
    Carry,
    Generators,
    as_images,
    as_is_first,
    check_actions,
    check_explore,
    check_generator,
    draw_rows,
)
from denoised_mdp.config import schema
from denoised_mdp.config.agents import BatchSpec
from denoised_mdp.device import set_generator_state
from denoised_mdp.envs.actions import Actions
from denoised_mdp.models.cuda_graph import GraphedUpdate
from denoised_mdp.models.networks import set_compute_dtype
from denoised_mdp.policies.actor import explored


class Agent(nn.Module, ABC):
    """A learner that acts. Training, evaluation, probes and renderings need no more than this.

    `decodes` says whether latents can be rendered as pictures. Code that looks inside latents (renderings, their KL,
    imagined rewards) needs a `WorldModelAgent`. Updates draw all noise from the generator `random`; `act` and
    `representations` draw it from the one they are given, else from PyTorch's global one.
    """

    config: schema.Config
    """the configuration it was built from: for a loaded run, the run's"""
    actions: Actions
    """the actions of its environment"""
    can_terminate: bool = False
    """its environment ends episodes other than by a time limit"""
    random: torch.Generator
    """source of all noise of updates"""
    decodes: bool = False
    """its latents can be rendered as pictures"""

    latent_size: int = 0
    """size of a row's latent; 0 if segments cannot begin from one"""

    def __init__(self):
        super().__init__()
        self.graph: GraphedUpdate | None = None
        self.learned: Tensor | None = None  # latents of the last batch's rows, see `update_eagerly`

    @classmethod
    @abstractmethod
    def from_config(
        cls, config: schema.Config, actions: Actions, *, can_terminate: bool, device: torch.device | str
    ) -> Self:
        """Build an agent on a device; `config.agent` has the options of its registered class.

        Initial weights come from PyTorch's global generator, which `build_agent` has seeded.
        """

    @property
    def device(self) -> torch.device:
        """Where the weights live."""
        return self._like.device

    @property
    def _like(self) -> Tensor:
        """A weight, for its device and dtype."""
        return next(self.parameters())

    @property
    def batch_spec(self) -> BatchSpec:
        """The batches that `update` needs, as configured."""
        return self.config.batch_spec

    @property
    @abstractmethod
    def optimizers(self) -> dict[str, torch.optim.Optimizer]:
        """Every optimizer by name."""

    @property
    @abstractmethod
    def picture_encoder(self) -> nn.Module:
        """What `probe joints` finetunes: `read` maps uint8 [N, k, H, W, 3] to `width` features per `frames` frames."""

    @property
    @abstractmethod
    def seen(self) -> str:
        """Which of the `representations` the policy sees; signal recall and leakage are measured on it."""

    @abstractmethod
    def update_eagerly(self, batch: dict[str, np.ndarray | Tensor], *, policy: bool = True) -> dict[str, Tensor]:
        """Take one optimization step on a batch [T, B, ...] of the replay; return metrics as scalar tensors.

        batch: observation uint8 [T, B, H, W, C], action [T, B, A], reward [T, B], is_first and is_terminal bool
        [T, B]; T includes the rows before each segment, see `BatchSpec`. policy: False leaves the policy unchanged. If
        the batch has "start", the latents [1, B, F] before its first rows, `learned` then holds those of its rows.
        """

    def update(self, batch: dict[str, np.ndarray | Tensor], *, policy: bool = True) -> dict[str, Tensor]:
        """Run `update_eagerly` or its CUDA graph; world models copy nothing to the host."""
        return (self.graph or self.update_eagerly)(batch, policy=policy)

    def compute_in(self, dtype: torch.dtype | None) -> None:
        """Compute large products in this dtype (None: the weights' own); the agent decides which ones.

        This includes the large products of its optimizers, if they have any (`Muon`).
        """
        set_compute_dtype(self, dtype)
        for optimizer in self.optimizers.values():
            if hasattr(optimizer, "compute_dtype"):
                optimizer.compute_dtype = dtype

    def use_graph(self) -> None:
        """Replay updates as one CUDA graph from now on; GPU only."""
        self.graph = GraphedUpdate(self.update_eagerly, self, self.optimizers, self.random)

    @torch.no_grad()
    def act(
        self,
        observation: np.ndarray | Tensor,
        carry: Carry | None = None,
        *,
        is_first: bool | np.ndarray | None = None,
        explore: float | None = None,
        sample: bool = True,
        generator: Generators = None,
    ) -> tuple[np.ndarray, Carry]:
        """Choose actions: check what was given, `observe`, `choose`, explore.

        Args:
            observation: uint8 [H, W, 3], or [B, H, W, 3] of B environments at once.
            carry: what the last call returned; None begins an episode in every environment.
            is_first: bool [B], where this observation begins an episode; `carry` is ignored there.
            explore: None acts without sampling; a number samples the actor and explores by that much, see
                `explored`: the std of added noise, or the probability of a uniformly random choice.
            sample: False filters with the mean (for classes, the mode) of the posterior, if there is one, not a sample.
            generator: source of all noise, or one for each of the B environments (default: PyTorch's global one).

        Returns:
            Actions in [-1, 1] or one-hot, float32 [A] or [B, A], and the carry for the next call. The caller owns
            both: nothing changes them later, and changing the actions changes no carry.

        Raises:
            ValueError: an argument has a wrong type, shape or range.
            UserError: the policy's actions have a wrong shape or range.
        """
        images, single = as_images(observation, self.image_size)  # uint8 [B, H, W, 3]
        check_explore(explore)
        check_generator(generator, len(images), self.device)
        if not isinstance(sample, bool):
            raise ValueError(f"sample is {sample!r}: give True or False")
        begins = as_is_first(is_first, len(images))  # [B]
        carry = self.observe(images.to(self.device), carry, begins.to(self.device), generator, sample=sample)
        drawn = None if explore is None else self._noise(len(images), self.actions.size, generator)  # [B, A]
        action = self.choose(carry, drawn)  # [B, A]
        check_actions(action, len(images), self.actions.size, self._chooser)
        if explore:
            drawn = self._noise(len(images), self.actions.size, generator)  # [B, A]
            action = explored(action, explore, drawn, discrete=self.actions.discrete)
        kept = action.clone()  # before the copy to the host, which waits for the GPU: one wait for both
        given = action.float().cpu().numpy().copy()  # else the carry and the caller would share memory
        return (given[0] if single else given), carry.after(kept)

    @abstractmethod
    def observe(
        self, images: Tensor, carry: Carry | None, is_first: Tensor, generator: Generators, *, sample: bool = True
    ) -> Carry:
        """Take in one more observation: uint8 images [B, H, W, 3], is_first bool [B]; the rest as in `act`.

        Return a new carry. `act` calls this and `choose` without gradients.

        Raises:
            ValueError: `carry` comes from another agent or other environments.
        """

    @abstractmethod
    def choose(self, carry: Carry, noise: Tensor | None) -> Tensor:
        """Return actions [B, A] in [-1, 1] or one-hot, from standard normal noise [B, A]; deterministic if None."""

    @property
    def image_size(self) -> int:
        """Height and width of its input images."""
        return self.config.env.size

    @property
    def _chooser(self) -> str:
        """Name of the method that chooses actions, for messages."""
        return f"{type(self).__name__}.choose"

    @abstractmethod
    def carry(self, **tensors: Tensor) -> Carry:
        """Build a carry from its `Carry.tensors`, as a checkpoint holds them."""

    @abstractmethod
    def representations(
        self, batch: dict[str, np.ndarray | Tensor], generator: torch.Generator | None = None, *, sample: bool = True
    ) -> dict[str, Tensor]:
        """Return all that a probe may read from a batch, by name: [T, B, F] each, without gradients; one is `seen`.

        sample: False filters with the posterior's mean, so that the result is deterministic; see `act`.
        """

    @abstractmethod
    def modes(self, batch: dict[str, np.ndarray | Tensor]) -> Tensor:
        """Return the policy's deterministic actions [T, B, A] in all rows of a batch [T, B, ...] of whole episodes."""

    @property
    def parts(self) -> dict[str, nn.Module]:
        """Its modules by name, for `parameter_counts`."""
        return dict(self.named_children())

    def parameter_counts(self) -> dict[str, int]:
        """Return the number of parameters of each part that learns; copies that follow another do not count."""
        learns = {name: [p for p in part.parameters() if p.requires_grad] for name, part in self.parts.items()}
        return {name: sum(p.numel() for p in parameters) for name, parameters in learns.items() if parameters}

    def to_device(self, batch: dict[str, np.ndarray | Tensor]) -> dict[str, Tensor]:
        """Move a batch to the weights' device, floats in the weights' dtype; images stay uint8."""
        like = self._like
        out = {name: torch.as_tensor(value).to(like.device, non_blocking=True) for name, value in batch.items()}
        return {name: value.to(like.dtype) if value.is_floating_point() else value for name, value in out.items()}

    def state(self) -> dict[str, Any]:
        """Return a copy of all that a later process needs to continue bit for bit: weights, optimizers, generator."""
        return {
            "weights": {name: value.clone() for name, value in self.state_dict().items()},
            "optimizers": {name: copy.deepcopy(opt.state_dict()) for name, opt in self.optimizers.items()},
            "random": self.random.get_state(),
        }

    def restore(self, state: dict[str, Any], *, weights_only: bool = False) -> None:
        """Restore what `state` returned, leaving it unchanged. weights_only: for evaluation, rendering and probes."""
        self.load_state_dict(state["weights"])
        if not weights_only:
            for name, optimizer in self.optimizers.items():
                optimizer.load_state_dict(copy.deepcopy(state["optimizers"][name]))  # else it would change `state`
            set_generator_state(self.random, state["random"])
            if self.graph is not None:  # it was recorded with the optimizers' old states
                self.use_graph()

    def _noise(self, batch: int, size: int, generator: Generators) -> Tensor:
        """Draw standard normal noise [batch, size], each row from its own generator if there are several."""
        kind = {"device": self._like.device, "dtype": self._like.dtype}
        return draw_rows(lambda rows, one: torch.randn(rows, size, generator=one, **kind), batch, generator)
