"""What every agent offers: it learns from batches, acts, and says what its representations are.

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
    """A learner that acts. Training, evaluation, probes and renderings ask for no more than this.

    `decodes` says whether a renderer can show latents as pictures. What looks inside latents - renderings, their KL,
    imagined rewards - wants a `WorldModelAgent`. All noise is drawn from the generator `random`, or from one handed to
    `act` or `representations`, else from PyTorch's global one.
    """

    config: schema.Config
    """what it was built from: of a loaded run, the run's configuration"""
    actions: Actions
    """those of its environment"""
    can_terminate: bool = False
    """its environment ends episodes other than by a time limit"""
    random: torch.Generator
    """source of all noise of updates"""
    decodes: bool = False
    """pictures can be rendered from what it remembers"""

    latent_size: int = 0
    """numbers of a row's latent, of an agent that can begin a segment from one"""

    def __init__(self):
        super().__init__()
        self.graph: GraphedUpdate | None = None
        self.learned: Tensor | None = None  # latents of the last batch's rows, see `update_eagerly`

    @classmethod
    @abstractmethod
    def from_config(
        cls, config: schema.Config, actions: Actions, *, can_terminate: bool, device: torch.device | str
    ) -> Self:
        """Build one on a device; `config.agent` has the options that the class was registered with.

        Initial weights come from PyTorch's global generator, which `build_agent` has seeded.
        """

    @property
    def device(self) -> torch.device:
        """Where the weights live."""
        return self._like.device

    @property
    def _like(self) -> Tensor:
        """A weight, for its device and type."""
        return next(self.parameters())

    @property
    def batch_spec(self) -> BatchSpec:
        """The batches that `update` wants, as the configuration says."""
        return self.config.batch_spec

    @property
    @abstractmethod
    def optimizers(self) -> dict[str, torch.optim.Optimizer]:
        """Every optimizer by name."""

    @property
    @abstractmethod
    def picture_encoder(self) -> nn.Module:
        """What `probe joints` finetunes: `read` makes uint8 [N, k, H, W, 3] to features, `width` for each `frames`."""

    @property
    @abstractmethod
    def seen(self) -> str:
        """Which of the `representations` the policy sees; signal recall and leakage are of that one."""

    @abstractmethod
    def update_eagerly(self, batch: dict[str, np.ndarray | Tensor], *, policy: bool = True) -> dict[str, Tensor]:
        """One step on a batch [T, B, ...] of the replay; returns metrics as scalar tensors.

        batch: observation uint8 [T, B, H, W, C], action [T, B, A], reward [T, B], is_first and is_terminal bool
        [T, B]; T counts the rows before each segment, see `BatchSpec`. policy: False leaves the policy as it is. With
        "start" in the batch, latents [1, B, F] before its first rows, `learned` then has those of its rows.
        """

    def update(self, batch: dict[str, np.ndarray | Tensor], *, policy: bool = True) -> dict[str, Tensor]:
        """`update_eagerly`, or the CUDA graph of it; world models copy nothing to the host."""
        return (self.graph or self.update_eagerly)(batch, policy=policy)

    def compute_in(self, dtype: torch.dtype | None) -> None:
        """Evaluate large products in this type (None: the weights' own); which ones is the agent's to know.

        Those of its optimizers too, where they have large products (`Muon`).
        """
        set_compute_dtype(self, dtype)
        for optimizer in self.optimizers.values():
            if hasattr(optimizer, "compute_dtype"):
                optimizer.compute_dtype = dtype

    def use_graph(self) -> None:
        """From now on replay updates as one CUDA graph; on a GPU only."""
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
            is_first: bool [B], where this observation begins an episode; what `carry` holds there does not count.
            explore: None acts without sampling; a number samples the actor and explores by so much, see
                `explored`: the std of added noise, or the probability of a uniformly random choice.
            sample: False filters with the posterior's mean (of classes, the mode) instead of a sample, if there is one.
            generator: source of all noise, or one for each of the B environments (default: PyTorch's global one).

        Returns:
            Actions in [-1, 1] or one-hot, float32 [A] or [B, A], and the carry for the next call. Both are the
            caller's: nothing changes them later, and changing the actions changes no carry.

        Raises:
            ValueError: an argument of another type, shape or range.
            UserError: the policy's actions have another shape or range.
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
        kept = action.clone()  # first: the copy to the host waits for a GPU, which then has made both
        given = action.float().cpu().numpy().copy()  # else the carry and the caller would share it
        return (given[0] if single else given), carry.after(kept)

    @abstractmethod
    def observe(
        self, images: Tensor, carry: Carry | None, is_first: Tensor, generator: Generators, *, sample: bool = True
    ) -> Carry:
        """Take in one more observation: uint8 images [B, H, W, 3], is_first bool [B]; the rest as in `act`.

        Returns a new carry. `act` calls this and `choose` without gradients.

        Raises:
            ValueError: `carry` is not of this agent and these environments.
        """

    @abstractmethod
    def choose(self, carry: Carry, noise: Tensor | None) -> Tensor:
        """Actions [B, A], from -1 to 1 or one-hot, from standard normal noise [B, A]; without chance if None."""

    @property
    def image_size(self) -> int:
        """Height and width of the images that it takes."""
        return self.config.env.size

    @property
    def _chooser(self) -> str:
        """What `choose` asks, for messages."""
        return f"{type(self).__name__}.choose"

    @abstractmethod
    def carry(self, **tensors: Tensor) -> Carry:
        """A carry from its `Carry.tensors`, as a checkpoint holds them."""

    @abstractmethod
    def representations(
        self, batch: dict[str, np.ndarray | Tensor], generator: torch.Generator | None = None, *, sample: bool = True
    ) -> dict[str, Tensor]:
        """Everything a probe may read of a batch, by name: each [T, B, F], without gradients; `seen` is one of them.

        sample: False filters with the posterior's mean, so that chance plays no part; see `act`.
        """

    @abstractmethod
    def modes(self, batch: dict[str, np.ndarray | Tensor]) -> Tensor:
        """The policy's actions without chance in all rows of a batch [T, B, ...] of whole episodes: [T, B, A]."""

    @property
    def parts(self) -> dict[str, nn.Module]:
        """What it consists of, by name, for `parameter_counts`."""
        return dict(self.named_children())

    def parameter_counts(self) -> dict[str, int]:
        """Number of parameters of each part that learns; copies that follow another do not count."""
        learns = {name: [p for p in part.parameters() if p.requires_grad] for name, part in self.parts.items()}
        return {name: sum(p.numel() for p in parameters) for name, parameters in learns.items() if parameters}

    def to_device(self, batch: dict[str, np.ndarray | Tensor]) -> dict[str, Tensor]:
        """Move a batch to the weights' device; images stay uint8 and become floats there."""
        like = self._like
        out = {name: torch.as_tensor(value).to(like.device, non_blocking=True) for name, value in batch.items()}
        return {name: value.to(like.dtype) if value.is_floating_point() else value for name, value in out.items()}

    def state(self) -> dict[str, Any]:
        """A copy of everything that a later process needs to continue bit for bit: weights, optimizers, generator."""
        return {
            "weights": {name: value.clone() for name, value in self.state_dict().items()},
            "optimizers": {name: copy.deepcopy(opt.state_dict()) for name, opt in self.optimizers.items()},
            "random": self.random.get_state(),
        }

    def restore(self, state: dict[str, Any], *, weights_only: bool = False) -> None:
        """The inverse of `state`, which stays as it is; `weights_only` for evaluation, rendering and probes."""
        self.load_state_dict(state["weights"])
        if not weights_only:
            for name, optimizer in self.optimizers.items():
                optimizer.load_state_dict(copy.deepcopy(state["optimizers"][name]))  # else it would learn in there
            set_generator_state(self.random, state["random"])
            if self.graph is not None:  # it was recorded with the optimizers' old states
                self.use_graph()

    def _noise(self, batch: int, size: int, generator: Generators) -> Tensor:
        """Standard normal noise [batch, size], each row from its own generator if there are several."""
        kind = {"device": self._like.device, "dtype": self._like.dtype}
        return draw_rows(lambda rows, one: torch.randn(rows, size, generator=one, **kind), batch, generator)
