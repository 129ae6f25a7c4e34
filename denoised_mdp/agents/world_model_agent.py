"""The agent: world model + policy + optimizers behind two verbs, `update` and `act`."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from denoised_mdp.agents.acting import (
    Carry,
    Generators,
    as_images,
    as_is_first,
    check_carry,
    check_explore,
    check_generator,
)
from denoised_mdp.agents.base import Agent
from denoised_mdp.config import schema
from denoised_mdp.device import set_generator_state
from denoised_mdp.envs.actions import Actions
from denoised_mdp.models.base import WorldModel
from denoised_mdp.models.cuda_graph import GraphedUpdate
from denoised_mdp.models.latent import Latent
from denoised_mdp.models.mdp import LatentMDP, PolicyBatch
from denoised_mdp.models.networks import scale_initial_weights, set_compute_dtype
from denoised_mdp.models.registry import MODELS
from denoised_mdp.optim import without_gradients
from denoised_mdp.options import arguments
from denoised_mdp.policies import POLICIES, Policy
from denoised_mdp.seeding import torch_seed


class WorldModelAgent(Agent):
    """World model and policy, trained together (Wang et al. 2022, Algorithm 1).

    `update(batch)` takes one optimization step of both; `act(observation, carry)` filters the latent with the
    posterior, one step at a time, and asks the policy for an action on (h^x, x) alone.

    All noise is drawn from the generator `random` (training: posterior noise [T, B, S] first, then the policy's
    draws) or from one handed to `act`; nothing touches PyTorch's global generator.
    """

    def __init__(self, world_model: WorldModel, policy: Policy, mdp: LatentMDP):
        super().__init__()
        self.world_model, self.policy, self.mdp = world_model, policy, mdp
        self.random = torch.Generator(self.device)
        self.graph: GraphedUpdate | None = None

    @property
    def device(self) -> torch.device:
        """Where the weights live."""
        return self._like.device

    @property
    def _like(self) -> Tensor:
        """A weight, for its device and type."""
        return next(self.world_model.parameters())

    @property
    def optimizers(self) -> dict[str, torch.optim.Optimizer]:
        """Every optimizer by name: the world model's and the policy's."""
        return self.world_model.optimizers | self.policy.optimizers

    def update(self, batch: dict[str, np.ndarray | Tensor], *, policy: bool = True) -> dict[str, Tensor]:
        """One step of the world model, then one of the policy from the same posterior latents.

        batch: observation uint8 [T, B, H, W, 3], action [T, B, A], reward [T, B], is_first and is_terminal bool
        [T, B]. policy: False leaves the policy as it is. Returns metrics as scalar tensors; nothing is copied to the
        host here.
        """
        return (self.graph or self.update_eagerly)(batch, policy=policy)

    def use_graph(self) -> None:
        """From now on replay updates as one CUDA graph; on a GPU only."""
        self.graph = GraphedUpdate(self.update_eagerly, self, self.optimizers, self.random)

    def update_eagerly(self, batch: dict[str, np.ndarray | Tensor], *, policy: bool = True) -> dict[str, Tensor]:
        """The same as `update`, kernel by kernel; static shapes, no branch on data."""
        batch = self.to_device(batch)
        learned = self.world_model.update(batch, self.random)
        if not policy:
            return learned.metrics
        signal = learned.latent.select(self.world_model.table.seen)
        ends = batch["is_terminal"], batch["is_first"]
        signal = PolicyBatch(signal.belief, signal.state, batch["action"], learned.reward, *ends)
        with without_gradients(self.world_model):
            return learned.metrics | self.policy.update(signal, self.mdp, self.random)

    def to_device(self, batch: dict[str, np.ndarray | Tensor]) -> dict[str, Tensor]:
        """Move a batch to the weights' device; images stay uint8 and become floats there."""
        like = self._like
        out = {name: torch.as_tensor(value).to(like.device, non_blocking=True) for name, value in batch.items()}
        return {name: value.to(like.dtype) if value.is_floating_point() else value for name, value in out.items()}

    @torch.no_grad()
    def act(
        self,
        observation: np.ndarray,
        carry: Carry | None = None,
        *,
        is_first: bool | np.ndarray | None = None,
        explore: float | None = None,
        sample: bool = True,
        generator: Generators = None,
    ) -> tuple[np.ndarray, Carry]:
        """Choose actions.

        Args:
            observation: uint8 [H, W, 3], or [B, H, W, 3] of B environments at once.
            carry: what the last call returned; None begins an episode in every environment.
            is_first: bool [B], where this observation begins an episode; what `carry` holds there does not count.
            explore: None takes the actor's mode; a number samples the actor and explores by so much, see
                `LatentMDP.explore`: the std of added noise, or the probability of a uniformly random choice.
            sample: False filters with the posterior's mean instead of a sample.
            generator: source of all noise, or one for each of the B environments (default: PyTorch's global one).

        Returns:
            Actions in [-1, 1] or one-hot, float32 [A] or [B, A], and the carry for the next call. Both are the
            caller's: nothing changes them later, and changing the actions changes no carry.

        Raises:
            ValueError: an argument of another type, shape or range.
        """
        images, single = as_images(observation, self.world_model.size)
        check_explore(explore)
        check_generator(generator, len(images), self.device)
        if not isinstance(sample, bool):
            raise ValueError(f"sample is {sample!r}: give True or False")
        is_first = as_is_first(is_first, len(images)).to(self.device)
        carry = self.observe_step(images.to(self.device), carry, generator, is_first=is_first, sample=sample)
        actions = self.mdp.action_size
        noise = None if explore is None else self._noise(len(images), actions, generator)  # [B, A]
        action = self.policy.act(carry.latent.select(self.world_model.table.seen).features(), noise)  # [B, A]
        if explore:
            action = self.mdp.explore(action, explore, self._noise(len(images), actions, generator))
        given = action.float().cpu().numpy().copy()  # else the carry and the caller would share it
        return (given[0] if single else given), replace(carry, action=action.clone())

    @torch.no_grad()
    def observe_step(
        self,
        images: Tensor,
        carry: Carry | None,
        generator: Generators,
        *,
        is_first: Tensor | None = None,
        sample: bool = True,
    ) -> Carry:
        """Filter one more observation, uint8 [B, H, W, 3]; the action of the carry stays the last one.

        is_first: bool [B], see `act` (None: nowhere). sample: the latent is a posterior sample, else its mean.
        """
        model, batch = self.world_model, len(images)
        initial = model.initial(batch)
        fresh = Carry(initial, initial.state.new_zeros(batch, self.mdp.action_size))
        if carry is None:
            carry = fresh
        check_carry(carry, fresh)
        if is_first is None:
            is_first = torch.zeros(batch, dtype=torch.bool, device=self.device)
        states = initial.layout.state_size
        noise = self._noise(batch, states, generator) if sample else torch.zeros_like(initial.state)  # [B, S]
        filtered = model.filter(images[None], carry.action[None], is_first[None], noise[None], carry.latent)
        return Carry(filtered.latent.map(lambda tensor: tensor[0]), carry.action)

    @property
    def decodes(self) -> bool:
        """The world model can show latents as pictures."""
        return self.world_model.decodes

    @property
    def seen(self) -> str:
        """Which of the `representations` the policy sees: x, or its latents together."""
        return self.world_model.initial(1).seen

    @torch.no_grad()
    def representations(
        self, batch: dict[str, np.ndarray | Tensor], generator: torch.Generator | None = None, *, sample: bool = True
    ) -> dict[str, Tensor]:
        """Posterior samples (or means) by latent, see `Latent.parts`, and the encoder's output; each [T, B, F]."""
        batch = self.to_device(batch)
        noise = self.world_model.draw_noise(*batch["action"].shape[:2], generator=generator)
        noise = noise if sample else torch.zeros_like(noise)
        filtered = self.world_model.filter(batch["observation"], batch["action"], batch["is_first"], noise)
        return filtered.latent.parts() | {"encoder": filtered.embedding}

    def carry(self, belief: Tensor, state: Tensor, action: Tensor) -> Carry:
        """A carry from its tensors [B, D], [B, S], [B, A], as a checkpoint holds them."""
        return Carry(
            Latent(belief.to(self.device), state.to(self.device), self.world_model.initial(1).layout),
            action.to(self.device),
        )

    def _noise(self, batch: int, size: int, generator: Generators) -> Tensor:
        """Standard normal noise [batch, size], each row from its own generator if there are several."""
        like = self._like
        kind = {"device": like.device, "dtype": like.dtype}
        if generator is None or isinstance(generator, torch.Generator):
            return torch.randn(batch, size, generator=generator, **kind)
        return torch.cat([torch.randn(1, size, generator=one, **kind) for one in generator])

    def parameter_counts(self) -> dict[str, int]:
        """Number of parameters of each part of the world model and of the policy."""
        modules = dict(self.world_model.named_children()) | dict(self.policy.named_children())
        return {name: sum(p.numel() for p in module.parameters()) for name, module in modules.items()}

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


def build_agent(
    config: schema.Config,
    actions: Actions | int,
    *,
    can_terminate: bool = False,
    device: str = "cpu",
    dtype: torch.dtype | None = None,
) -> WorldModelAgent:
    """Build an agent from a configuration, with initial weights drawn from `config.seed`.

    actions: those of the environment; a number stands for so many continuous ones. can_terminate: the environment ends
    episodes other than by a time limit. device: where it lives. dtype: compute type of large products
    (`networks.set_compute_dtype`). The global generator is left as it was.
    """
    actions = Actions(actions) if isinstance(actions, int) else actions
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(config.seed)
        wanted = copy.deepcopy(config)
        if wanted.model.continuation is None:
            wanted.model.continuation = can_terminate
        world_model = MODELS[config.model.kind].from_config(wanted, actions.size)
        if config.model.init == "scaled":
            scale_initial_weights(world_model, torch.Generator().manual_seed(torch_seed(config.seed, "weights")))
        world_model.to(device)
        mdp = world_model.mdp(discrete=actions.discrete)
        policy = POLICIES[config.policy.name](mdp, **arguments(config.policy)).to(device)
    agent = WorldModelAgent(world_model, policy, mdp)
    agent.config = copy.deepcopy(config)
    agent.random.manual_seed(torch_seed(config.seed, "update"))
    set_compute_dtype(agent, dtype)
    if config.train.cuda_graph and agent.device.type == "cuda":
        agent.use_graph()
    return agent


def register_policy(name: str, policy: type[Policy], options: type) -> None:
    """Make a policy of your own known as `name`, to `build_agent` and to configuration files.

    options: a dataclass whose fields are the keyword arguments of `policy` (with defaults), and `name`.
    """
    schema.POLICIES.register(name, options)
    POLICIES[name] = policy


def register_model(name: str, model: type[WorldModel], options: type) -> None:
    """Make a world model of your own known as `name`, to `build_agent` and to configuration files (``model.kind``).

    options: a dataclass that extends `schema.ModelConfig`; `model.from_config` finds them in ``config.model``.
    """
    schema.MODELS.register(name, options)
    MODELS[name] = model
