"""The agent: world model + policy + optimizers behind two methods, `update` and `act`."""

from __future__ import annotations

import copy

import numpy as np
import torch
from torch import Tensor, nn
from typing_extensions import Self

from denoised_mdp.agents.acting import Generators, LatentCarry, check_carry, draw_rows
from denoised_mdp.agents.base import Agent
from denoised_mdp.config import schema
from denoised_mdp.envs.actions import Actions
from denoised_mdp.models.base import WorldModel
from denoised_mdp.models.initial import INITIAL
from denoised_mdp.models.latent import Latent
from denoised_mdp.models.mdp import LatentMDP, PolicyBatch
from denoised_mdp.models.registry import MODELS
from denoised_mdp.optim import without_gradients
from denoised_mdp.options import arguments
from denoised_mdp.policies import POLICIES, Policy
from denoised_mdp.seeding import torch_seed


class WorldModelAgent(Agent):
    """World model and policy, trained together (Wang et al. 2022, Algorithm 1).

    `update(batch)` takes one optimization step of both; `act(observation, carry)` filters the latent with the
    posterior, one step at a time, and asks the policy for an action on (h^x, x) alone.

    Updates draw all noise from the generator `random`: posterior noise [T, B, S] first, then the policy's draws.
    Other methods draw it from the generator they are given, else from PyTorch's global one.
    """

    def __init__(self, world_model: WorldModel, policy: Policy, mdp: LatentMDP):
        super().__init__()
        if twice := set(world_model.optimizers) & set(policy.optimizers):
            raise ValueError(f"world model and policy both have an optimizer {', '.join(sorted(twice))}: rename one")
        self.world_model, self.policy, self.mdp = world_model, policy, mdp
        self.random = torch.Generator(self.device)

    @classmethod
    def from_config(
        cls, config: schema.Config, actions: Actions, *, can_terminate: bool, device: torch.device | str
    ) -> Self:
        """Build the model and the policy of the configuration, see `Agent.from_config`."""
        wanted = copy.deepcopy(config)
        if wanted.model.continuation is None:
            wanted.model.continuation = can_terminate
        world_model = MODELS[config.model.kind].from_config(wanted, actions.size)
        if config.model.init in INITIAL:
            INITIAL[config.model.init](world_model, torch.Generator().manual_seed(torch_seed(config.seed, "weights")))
        world_model.to(device)
        mdp = world_model.mdp(discrete=actions.discrete)
        policy = POLICIES[config.policy.name](mdp, **arguments(config.policy)).to(device)
        return cls(world_model, policy, mdp)

    @property
    def optimizers(self) -> dict[str, torch.optim.Optimizer]:
        """Every optimizer by name: the world model's and the policy's."""
        return self.world_model.optimizers | self.policy.optimizers

    def update_eagerly(self, batch: dict[str, np.ndarray | Tensor], *, policy: bool = True) -> dict[str, Tensor]:
        """Take one step of the world model, then one of the policy from the same posterior latents.

        See `Agent.update_eagerly`. Shapes are static, and no branch depends on data.
        """
        batch = self.to_device(batch)
        learned = self.world_model.update(batch, self.random)
        if "start" in batch:
            self._keep(learned.latent.features())
        if not policy:
            return learned.metrics
        starts = self.policy_batch(batch, learned.latent, learned.reward)
        with without_gradients(self.world_model):
            return learned.metrics | self.policy.update(starts, self.mdp, self.random)

    def policy_batch(self, batch: dict[str, Tensor], latent: Latent, reward: Tensor) -> PolicyBatch:
        """Return what the policy learns from: detached latents [T, B, ...] of a batch on the device, reward [T, B]."""
        seen = latent.select(self.world_model.table.seen)
        rows = batch["action"], reward, batch["is_terminal"], batch["is_first"]
        return PolicyBatch(seen.belief, seen.state, *rows)

    @property
    def latent_size(self) -> int:
        """Size of a row's latent: beliefs and states of all latents together."""
        return self.world_model.initial(1).features().shape[-1]

    def _keep(self, latents: Tensor) -> None:
        """Copy [T, B, F] into the fixed tensor `learned`, since a graph replays the copy."""
        if self.learned is None or self.learned.shape != latents.shape:
            self.learned = torch.empty_like(latents)
        self.learned.copy_(latents)

    def observe(
        self, images: Tensor, carry: LatentCarry | None, is_first: Tensor, generator: Generators, *, sample: bool = True
    ) -> LatentCarry:
        """Filter one more observation with the posterior, its sample or its mean; the action is still the last one."""
        model, batch = self.world_model, len(images)
        initial = model.initial(batch)
        fresh = LatentCarry(initial, initial.state.new_zeros(batch, self.mdp.action_size))
        if carry is None:
            carry = fresh
        check_carry(carry, fresh)
        if sample:
            noise = draw_rows(lambda rows, one: model.draw_noise(rows, generator=one), batch, generator)  # [B, S]
        else:
            noise = model.mean_noise(batch)  # [B, S]
        filtered = model.filter(images[None], carry.action[None], is_first[None], noise[None], carry.latent)
        return LatentCarry(filtered.latent.map(lambda tensor: tensor[0]), carry.action)

    def choose(self, carry: LatentCarry, noise: Tensor | None) -> Tensor:
        """Return the policy's actions [B, A] on what it sees of the latent."""
        return self.policy.act(carry.latent.select(self.world_model.table.seen).features(), noise)

    @property
    def _chooser(self) -> str:
        return f"{type(self.policy).__name__}.act"

    @property
    def decodes(self) -> bool:
        """Whether the world model can render latents as pictures."""
        return self.world_model.decodes

    @property
    def picture_encoder(self) -> nn.Module:
        """The world model's encoder, which the policy's latents read."""
        return self.world_model.encoder

    @property
    def seen(self) -> str:
        """Which of the `representations` the policy sees: its latents together, such as x or c+x."""
        return self.world_model.initial(1).seen

    @torch.no_grad()
    def representations(
        self, batch: dict[str, np.ndarray | Tensor], generator: torch.Generator | None = None, *, sample: bool = True
    ) -> dict[str, Tensor]:
        """Return posterior samples (or means) by latent, see `Latent.parts`, and the encoder's output; [T, B, F]."""
        batch = self.to_device(batch)
        shape = batch["action"].shape[:2]
        model = self.world_model
        noise = model.draw_noise(*shape, generator=generator) if sample else model.mean_noise(*shape)  # [T, B, S]
        filtered = model.filter(batch["observation"], batch["action"], batch["is_first"], noise)
        return filtered.latent.parts() | {"encoder": filtered.embedding}

    @torch.no_grad()
    def modes(self, batch: dict[str, np.ndarray | Tensor]) -> Tensor:
        """Return deterministic actions on latents filtered with the posterior's mean; see `Agent.modes`."""
        batch = self.to_device(batch)
        noise = self.world_model.mean_noise(*batch["action"].shape[:2])  # [T, B, S]
        filtered = self.world_model.filter(batch["observation"], batch["action"], batch["is_first"], noise)
        return self.policy.modes(filtered.latent.select(self.world_model.table.seen).features())

    def carry(self, *, belief: Tensor, state: Tensor, action: Tensor) -> LatentCarry:
        """Build a carry from its tensors [B, D], [B, S], [B, A] of any floating dtype, see `LatentCarry`."""
        fresh = self.world_model.initial(1)
        return LatentCarry(Latent(belief.to(fresh.belief), state.to(fresh.state), fresh.layout), action.to(fresh.state))

    @property
    def parts(self) -> dict[str, nn.Module]:
        """The modules of the world model and of the policy."""
        return dict(self.world_model.named_children()) | dict(self.policy.named_children())
