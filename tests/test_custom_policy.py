"""A third policy takes forty lines: a random-shooting planner, from its class to a saved run that acts."""

from dataclasses import dataclass

import pytest
import torch
from conftest import random_batch, small_config
from torch import Tensor

import denoised_mdp
from denoised_mdp.agents.registry import build_agent, register_policy
from denoised_mdp.cli.main import main
from denoised_mdp.config import load_config, schema
from denoised_mdp.errors import UserError
from denoised_mdp.models.mdp import LatentMDP, PolicyBatch
from denoised_mdp.policies import POLICIES, Policy
from denoised_mdp.session import train


@dataclass
class RandomShootingConfig:
    """Options of the planner; the fields are its keyword arguments."""

    name: str = "random_shooting"
    candidates: int = 64
    horizon: int = 8
    gamma: float = 0.99


class RandomShooting(Policy):
    """Imagine random action sequences with the x prior and take the first action of the best."""

    def __init__(self, mdp: LatentMDP, *, candidates: int, horizon: int, gamma: float):
        super().__init__()
        self.mdp, self.candidates, self.horizon, self.gamma = mdp, candidates, horizon, gamma

    def act(self, features: Tensor, noise: Tensor | None) -> Tensor:
        """features [B, F] -> actions [B, A]; the same candidates every time, so that it is deterministic."""
        mdp, n = self.mdp, self.candidates
        random = torch.Generator(features.device).manual_seed(0)
        shape, kind = (self.horizon, n, len(features)), {"device": features.device, "dtype": features.dtype}
        actions = torch.rand(*shape, mdp.action_size, generator=random, **kind) * 2 - 1  # [H, n, B, A]
        state_noise = torch.randn(*shape, mdp.state_size, generator=random, **kind)
        belief, state = features.expand(n, -1, -1).split([mdp.belief_size, mdp.state_size], -1)
        belief, state, total = belief.flatten(0, 1), state.flatten(0, 1), 0.0
        for t in range(self.horizon):
            belief, state = mdp.step(belief, state, actions[t].flatten(0, 1), state_noise[t].flatten(0, 1))
            total = total + self.gamma**t * mdp.reward(torch.cat((belief, state), -1))  # [n B]
        best = total.unflatten(0, (n, -1)).argmax(0)  # [B]
        return actions[0, best, torch.arange(len(features))]

    def update(self, batch: PolicyBatch, mdp: LatentMDP, generator: torch.Generator | None = None) -> dict[str, Tensor]:
        """Nothing to learn."""
        return {}


@pytest.fixture
def registered():
    register_policy("random_shooting", RandomShooting, RandomShootingConfig)
    yield
    del POLICIES["random_shooting"], schema.POLICIES["random_shooting"]


def test_planner_trains_loads_and_acts(tmp_path, registered):
    """Chosen by name beside a preset, which sets options that other policies have; its own can be set."""
    toy = ["env=toy", "env.task=dot", "distractors=none", f"run_dir={tmp_path / 'run'}"]
    config = load_config(["preset=debug", "policy=random_shooting", "policy.candidates=8", *toy])
    assert config.policy == RandomShootingConfig(candidates=8)
    with pytest.raises(UserError, match="only policy=backprop|reinforce|sac has this option"):
        load_config(["preset=debug", "policy=random_shooting", "policy.hidden=8"])
    assert train(config)
    agent = denoised_mdp.load(config.run_dir, device="cpu")
    assert isinstance(agent.policy, RandomShooting)
    action, _ = agent.act(random_batch()["observation"][0, 0])
    assert action.shape == (2,)
    batch = random_batch()
    modes = agent.modes(batch)  # it takes features [B, F] alone
    assert modes.shape == batch["action"].shape
    assert main(["probe", "invariance", config.run_dir, "--episodes", "2", "--steps", "8", "--returns", "0"]) == 0


def test_planner_prefers_what_the_model_rewards(registered):
    config = small_config()
    config.policy = RandomShootingConfig(candidates=256, horizon=1)  # further ahead, a worse first step may pay
    agent = build_agent(config, 2)
    agent.mdp._reward = lambda latent: latent.belief[..., 0]  # prefer a large first belief
    features = torch.randn(5, agent.mdp.feature_size)
    agent.policy.mdp = agent.mdp
    belief, state = features.split([agent.mdp.belief_size, agent.mdp.state_size], -1)

    def reached(action):  # the belief does not depend on the noise of the step that reaches it
        return agent.mdp.step(belief, state, action, torch.zeros_like(state))[0][:, 0]

    chosen = reached(agent.policy.act(features, None))  # [5]
    others = torch.stack([reached(action) for action in torch.rand(400, 5, 2) * 2 - 1])  # [400, 5]
    assert (chosen > others.quantile(0.95, 0)).all()  # the best of 256 misses the best twentieth once in 500,000
