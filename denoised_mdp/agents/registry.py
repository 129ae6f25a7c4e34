"""Agents by their ``agent=`` name in a configuration: building one, and registering your own."""

from __future__ import annotations

import copy

import torch

from denoised_mdp.agents.base import Agent
from denoised_mdp.agents.curl import CURL
from denoised_mdp.agents.dbc import DBC
from denoised_mdp.agents.pisac import PISAC
from denoised_mdp.agents.pixel_sac import PixelSAC
from denoised_mdp.agents.world_model_agent import WorldModelAgent
from denoised_mdp.config import schema
from denoised_mdp.config.agents import AgentConfig
from denoised_mdp.envs.actions import Actions
from denoised_mdp.errors import UserError
from denoised_mdp.models.base import WorldModel
from denoised_mdp.models.registry import MODELS
from denoised_mdp.optim import parameters_of
from denoised_mdp.options import check_options
from denoised_mdp.plugins import Registry
from denoised_mdp.policies import POLICIES, Policy
from denoised_mdp.seeding import torch_seed

AGENTS: Registry[type[Agent]] = Registry(
    "agent", {"world_model": WorldModelAgent, "sac_pixels": PixelSAC, "curl": CURL, "dbc": DBC, "pisac": PISAC}
)


def build_agent(
    config: schema.Config,
    actions: Actions | int,
    *,
    can_terminate: bool = False,
    device: torch.device | str = "cpu",
    dtype: torch.dtype | None = None,
) -> Agent:
    """Build an agent from a configuration, with initial weights drawn from `config.seed`.

    actions: the environment's; an int means that many continuous ones. can_terminate: the environment ends episodes
    other than by a time limit. device: where the weights live. dtype: compute type of large products
    (`Agent.compute_in`). PyTorch's global generator is left as it was.
    """
    actions = Actions(actions) if isinstance(actions, int) else actions
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(config.seed)  # `torch.manual_seed` would seed those of GPUs as well
        agent = AGENTS[config.agent.name].from_config(config, actions, can_terminate=can_terminate, device=device)
    _refuse_untrained(agent)
    agent.config, agent.actions, agent.can_terminate = copy.deepcopy(config), actions, can_terminate
    agent.random.manual_seed(torch_seed(config.seed, "update"))
    agent.compute_in(dtype)
    if config.train.cuda_graph and agent.device.type == "cuda":
        agent.use_graph()
    return agent


def _refuse_untrained(agent: Agent) -> None:
    """Refuse parameters that no optimizer updates: they would silently keep their initial values."""
    moved = {id(p) for one in agent.optimizers.values() for p in parameters_of(one)}
    left = [name for name, p in agent.named_parameters() if p.requires_grad and id(p) not in moved]
    if left:
        more = f" and {len(left) - 3} more" if len(left) > 3 else ""
        raise UserError(
            f"{type(agent).__name__}: no optimizer moves {', '.join(left[:3])}{more}. Make a model's optimizer when all"
            " of its parts are there (self.optimizers['model'] = self.make_optimizer(self.parameters())), hand a"
            " policy's to add_optimizer, or call requires_grad_(False)."
        )


def register_agent(name: str, agent: type[Agent], options: type[AgentConfig]) -> None:
    """Register your own agent as `name`, for `build_agent` and configuration files.

    options: a dataclass that extends `AgentConfig`; `agent.from_config` finds its values in ``config.agent``.

    Raises:
        UserError: another agent has the name, the class lacks methods, or `check_options` refuses the options.
    """
    check_options(options, f"agent={name}", name=name)
    AGENTS.register(name, agent)
    schema.AGENTS.register(name, options)


def register_policy(name: str, policy: type[Policy], options: type) -> None:
    """Register your own policy as `name`, for `build_agent` and configuration files.

    options: a dataclass whose fields are the keyword arguments of `policy` (with defaults), and `name`.

    Raises:
        UserError: another policy has the name, the class lacks methods, or `check_options` refuses the options.
    """
    check_options(options, f"policy={name}", name=name)
    POLICIES.register(name, policy)
    schema.POLICIES.register(name, options)


def register_model(name: str, model: type[WorldModel], options: type) -> None:
    """Register your own world model as `name`, for `build_agent` and configuration files (``model.kind``).

    options: a dataclass that extends `schema.ModelConfig`; `model.from_config` finds its values in ``config.model``.

    Raises:
        UserError: another model has the name, the class lacks methods, or `check_options` refuses the options.
    """
    check_options(options, f"kind: {name}", kind=name)
    MODELS.register(name, model)
    schema.MODELS.register(name, options)
