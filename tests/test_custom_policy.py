"""A policy of one's own, the planner of docs/extending.md: from its class to a saved run that acts."""

import importlib
import sys

import pytest
import torch
from conftest import random_batch, small_config
from test_extending import TABLE, blocks

import denoised_mdp
from denoised_mdp.agents.registry import build_agent
from denoised_mdp.cli.main import main
from denoised_mdp.config import load_config, schema
from denoised_mdp.envs import DISTRACTORS
from denoised_mdp.errors import UserError
from denoised_mdp.policies import POLICIES
from denoised_mdp.session import train


@pytest.fixture
def parts(tmp_path, monkeypatch):
    """The plug-in of docs/extending.md, while it is registered."""
    program, _ = blocks("A distractor, a policy, a table")
    (tmp_path / "my_parts.py").write_text(program)
    (tmp_path / "two_parts.yaml").write_text(TABLE)
    monkeypatch.syspath_prepend(tmp_path)
    yield importlib.import_module("my_parts")
    del sys.modules["my_parts"], POLICIES["planner"], schema.POLICIES["planner"]
    del DISTRACTORS["fog"], schema.TABLES["two_parts"]


def test_planner_trains_loads_and_acts(tmp_path, parts):
    """Chosen by name beside a preset, which sets options that other policies have; its own can be set."""
    toy = ["env=toy", "env.task=dot", "env.episode_steps=30", "distractors=none", f"run_dir={tmp_path / 'run'}"]
    toy += ["train.prefill_steps=120", "train.total_steps=240"]
    config = load_config(["preset=debug", "policy=planner", "policy.candidates=8", *toy])
    assert config.policy == parts.PlannerOptions(candidates=8)
    with pytest.raises(UserError, match="only policy=backprop|reinforce|sac has this option"):
        load_config(["preset=debug", "policy=planner", "policy.hidden=8"])
    assert train(config)
    agent = denoised_mdp.load(config.run_dir, device="cpu")
    assert isinstance(agent.policy, parts.Planner)
    action, _ = agent.act(random_batch()["observation"][0, 0])
    assert action.shape == (2,)
    batch = random_batch()
    modes = agent.modes(batch)  # it takes features [B, F] alone
    assert modes.shape == batch["action"].shape
    assert main(["probe", "invariance", config.run_dir, "--episodes", "2", "--steps", "8", "--returns", "0"]) == 0


def test_planner_prefers_what_the_model_rewards(parts):
    config = small_config()
    config.policy = parts.PlannerOptions(candidates=256, horizon=1)  # further ahead, a worse first step may pay
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
