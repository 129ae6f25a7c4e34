"""Behaviour policies of different quality: stages of a soft actor-critic on the true state, without rendering.

It is Stable-Baselines3's (Raffin et al. 2021; extra ``sb3``). Training is divided into chunks. Each starts from files,
with new generators and a new episode, so a killed training ends with the same weights.
"""

from __future__ import annotations

import random
import shutil
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
from denoised_mdp.run import checkpoint
from denoised_mdp.seeding import torch_seed

CHUNKS = 20
STAGES = (2, 5, 10, 20)
"""chunks after which a stage is kept: after a tenth, a quarter, half and all of the training"""
ARRAYS = ("observations", "next_observations", "actions", "rewards", "dones", "timeouts")
"""of the replay buffer of Stable-Baselines3"""


class StateEnv(gym.Wrapper):
    """An environment of `make_env` without its pictures: observations are `state_features`, float32 [F].

    `env` must have no distractors. Nothing is ever drawn.
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


def state_features(signal: np.ndarray, names: tuple[str, ...], kinds: tuple[str, ...]) -> np.ndarray:
    """What a policy reads of the true signal [S]: float32 [F].

    Angles as sine and cosine; how far a followed body has travelled is left out, since nothing depends on it.
    """
    parts = []
    for value, name, kind in zip(signal, names, kinds, strict=True):
        if kind == "angle":
            parts += [np.sin(value), np.cos(value)]
        elif not (kind == "unseen" and name.startswith("qpos/")):
            parts.append(value)
    return np.array(parts, np.float32)


@dataclass
class StateActor:
    """The actor of one stage: two hidden layers with ReLU, a tanh-squashed Gaussian; plain arrays."""

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
        """Write the weights, whole or not at all."""
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(path, safetensors.numpy.save(self.weights))

    @classmethod
    def load(cls, path: Path) -> StateActor:
        """Read what `save` wrote."""
        return cls(safetensors.numpy.load_file(path))


def stage_path(folder: Path, stage: int) -> Path:
    """Where the actor of a stage (from 1) lies."""
    return folder / "policies" / f"sac_{stage}.safetensors"


def import_sac() -> type:
    """The class SAC of Stable-Baselines3.

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
    """Train for `actions` actions and keep the actors of all stages, or go on from where it was interrupted.

    make_environment: makes the environment without distractors. progress: called with the number of actions done.
    """
    sac = import_sac()
    done, state = 0, None
    if checkpoint.list_steps(folder / "sac"):
        done, state = checkpoint.load(folder / "sac")
    for chunk in range(CHUNKS):
        begin, end = (round(actions * n / CHUNKS) for n in (chunk, chunk + 1))
        if end <= done:
            continue
        with torch.random.fork_rng(devices=[]):
            numpy_state, python_state = np.random.get_state(), random.getstate()
            try:
                model = _learn(sac, StateEnv(make_environment()), actions, begin, end, state, seed, progress)
            finally:
                np.random.set_state(numpy_state)
                random.setstate(python_state)
        if chunk + 1 in STAGES:
            weights = {name: tensor.numpy().copy() for name, tensor in model.actor.state_dict().items()}
            StateActor(weights).save(stage_path(folder, STAGES.index(chunk + 1) + 1))
        if chunk + 1 < CHUNKS:
            checkpoint.save(folder / "sac", end, _state(model), keep=1)
            _, state = checkpoint.load(folder / "sac")
    shutil.rmtree(folder / "sac", ignore_errors=True)


def _learn(
    sac: type,
    env: gym.Env,
    actions: int,
    begin: int,
    end: int,
    state: dict | None,
    seed: int,
    progress: Callable[[int], None],
):
    """One chunk: from `state` (None: from nothing) and fresh generators."""
    starts = min(1000, actions // CHUNKS)
    own = torch_seed(seed, f"joints sac {begin}") % 2**32
    model = sac("MlpPolicy", env, buffer_size=actions, learning_starts=starts, seed=own, device="cpu")
    if state is not None:
        model.set_parameters(state["parameters"], device="cpu")
        with torch.no_grad():
            model.log_ent_coef.copy_(state["log_ent_coef"])
        for name in ARRAYS:
            getattr(model.replay_buffer, name)[:begin] = state["buffer"][name]
        model.replay_buffer.pos = begin
        model.num_timesteps, model._n_updates = begin, state["updates"]
    model.set_random_seed(own)

    def callback(names: dict, _) -> bool:
        progress(names["self"].num_timesteps)
        return True

    try:
        return model.learn(end - begin, callback, reset_num_timesteps=False)
    finally:
        env.close()


def _state(model) -> dict:
    buffer = model.replay_buffer
    return {
        "parameters": model.get_parameters(),
        "log_ent_coef": model.log_ent_coef.detach(),
        "buffer": {name: getattr(buffer, name)[: buffer.pos] for name in ARRAYS},
        "updates": model._n_updates,
    }
