"""Behaviour policies of different quality: stages of a soft actor-critic on the true state, without rendering.

SAC is Stable-Baselines3's (Raffin et al. 2021; extra ``sb3``). Interrupted training starts over from its seed.
"""

from __future__ import annotations

import contextlib
import random
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import gymnasium as gym
import numpy as np
import safetensors.numpy
import torch

from denoised_mdp.envs.pixels import ActionRepeat
from denoised_mdp.errors import UserError
from denoised_mdp.files import replace_file
from denoised_mdp.seeding import torch_seed

STAGES = (0.1, 0.25, 0.5, 1.0)
"""fractions of the training after which the actor is saved"""


class StateEnv(gym.Wrapper):
    """An environment of `make_env` without its pictures: observations are `state_features`, float32 [F].

    `env` must have no distractors. Nothing is ever rendered.
    """

    def __init__(self, env: gym.Env):
        pixels = env.unwrapped
        super().__init__(ActionRepeat(pixels.world, pixels.action_repeat))
        self._names, self._kinds = pixels.signal_names, pixels.world.unwrapped.signal_kinds
        size = len(state_features(np.zeros(len(self._names)), self._names, self._kinds))
        self.observation_space = gym.spaces.Box(-np.inf, np.inf, (size,), np.float32)

    def reset(self, **options):
        """Start an episode."""
        signal, info = self.env.reset(**options)
        return state_features(signal, self._names, self._kinds), info

    def step(self, action):
        """Apply `action` [A] for `action_repeat` steps."""
        signal, *rest = self.env.step(action)
        return state_features(signal, self._names, self._kinds), *rest


ROOTS = ("qpos/root", "qpos/ball_root")
"""prefixes of what says where bodies are in the world; the second is the ball of quadruped_fetch"""


def state_features(signal: np.ndarray, names: tuple[str, ...], kinds: tuple[str, ...]) -> np.ndarray:
    """The features of the true signal [S] that a policy reads: float32 [F].

    Angles become sine and cosine. The horizontal position of a body that the camera follows is left out if there is
    neither a target nor a ball: only quadruped_escape's reward depends on it. A plain ball's rotation is left out too.
    """
    places = any(name.startswith(("target/", "qpos/ball")) for name in names)
    parts = []
    for value, name, kind in zip(signal, names, kinds, strict=True):
        if kind == "angle":
            parts += [np.sin(value), np.cos(value)]
        elif kind != "unseen" or not name.startswith("qpos/") or (places and name.startswith(ROOTS)):
            parts.append(value)
    return np.array(parts, np.float32)


@dataclass
class StateActor:
    """The actor of one stage in NumPy: two hidden layers with ReLU, and a tanh-squashed Gaussian."""

    weights: dict[str, np.ndarray]

    def act(self, features: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """Sample an action, float32 [A] in [-1, 1], for `state_features` [F]."""
        w, x = self.weights, features
        for layer in ("latent_pi.0", "latent_pi.2"):
            x = np.maximum(w[f"{layer}.weight"] @ x + w[f"{layer}.bias"], 0.0)
        mean = w["mu.weight"] @ x + w["mu.bias"]
        std = np.exp(np.clip(w["log_std.weight"] @ x + w["log_std.bias"], -20, 2))
        return np.tanh(mean + std * rng.standard_normal(len(mean))).astype(np.float32)

    def save(self, path: Path) -> None:
        """Write the weights atomically."""
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(path, safetensors.numpy.save(self.weights))

    @classmethod
    def load(cls, path: Path) -> StateActor:
        """Read what `save` wrote."""
        return cls(safetensors.numpy.load_file(path))


def stage_path(folder: Path, stage: int) -> Path:
    """The path of the actor of a stage; stages count from 1."""
    return folder / "policies" / f"sac_{stage}.safetensors"


def import_sac() -> type:
    """Import the class SAC of Stable-Baselines3.

    Raises:
        UserError: it is not installed.
    """
    try:
        from stable_baselines3 import SAC
    except ImportError as error:
        raise UserError(
            "The behaviour policies need Stable-Baselines3, which is not installed: pip install 'denoised-mdp[sb3]'"
            f" ({error})."
        ) from error
    return SAC


def train_stages(
    folder: Path, make_environment: Callable[[], gym.Env], actions: int, seed: int, progress: Callable[[int], None]
) -> None:
    """Train for `actions` actions and save the actor of each stage.

    make_environment: makes the environment without distractors. progress: called with the number of actions done.
    """
    sac = import_sac()
    if stage_path(folder, 1).exists():
        warnings.warn(f"{folder}: training of its policies was interrupted and starts anew.", stacklevel=2)

    def callback(names: dict, _) -> bool:
        progress(names["self"].num_timesteps)
        return True

    own = torch_seed(seed, "joints sac") % 2**32
    numpy_state, python_state = np.random.get_state(), random.getstate()
    with torch.random.fork_rng(devices=[]), contextlib.closing(StateEnv(make_environment())) as env:
        try:
            starts = min(1000, actions // 20)
            model = sac("MlpPolicy", env, buffer_size=actions, learning_starts=starts, seed=own, device="cpu")
            for stage, share in enumerate(STAGES, 1):
                model.learn(round(actions * share) - model.num_timesteps, callback, reset_num_timesteps=False)
                weights = {name: tensor.numpy().copy() for name, tensor in model.actor.state_dict().items()}
                StateActor(weights).save(stage_path(folder, stage))
        finally:  # Stable-Baselines3 seeds the global generators
            np.random.set_state(numpy_state)
            random.setstate(python_state)
