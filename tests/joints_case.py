"""A small data set of labelled pictures, and runs of its environment, for the tests of joint position regression."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from denoised_mdp.agents.registry import build_agent
from denoised_mdp.analysis.joints.data import JointData, Plan
from denoised_mdp.analysis.joints.record import RANDOM, collect
from denoised_mdp.config import as_tree, load_config, save_config
from denoised_mdp.run import checkpoint

TASK = ["env.task=cartpole_swingup", "distractors=[video_background]", "env.action_repeat=4"]


def small_data(folder: Path) -> JointData:
    """Two policies, three episodes of each, of 20 frames."""
    config = load_config(TASK)
    environment = dict(vars(config.env), distractors=config.distractors, split="train", clips_seed=0)
    plan = Plan(environment | {"episode_steps": 76}, ("right", RANDOM), episodes=3, frames=20, test_share=0.34)
    acts = {
        "right": lambda features, rng: np.ones(1, np.float32),
        RANDOM: lambda features, rng: rng.uniform(-1, 1, 1).astype(np.float32),
    }
    return collect(folder, plan, acts)


def make_run(path: Path, *overrides: str) -> Path:
    """A run of the data set's environment whose checkpoint has initial weights."""
    config = load_config(["preset=debug", *TASK, f"run_dir={path}", *overrides])
    path.mkdir()
    save_config(config, path / "config.yaml")
    state = {
        "action_size": 1,
        "discrete": False,
        "can_terminate": False,
        "agent": build_agent(config, 1).state(),
        "config": as_tree(config),
    }
    checkpoint.save(path / "checkpoints", 40, state)
    return path
