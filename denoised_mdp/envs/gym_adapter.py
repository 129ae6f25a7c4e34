"""Suite "gym": any Gymnasium environment that shows a picture, as a world of this package."""

from __future__ import annotations

import zlib
from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
from PIL import Image

from denoised_mdp.envs.gym_maker import make_gym
from denoised_mdp.envs.world import CannotRestore, World
from denoised_mdp.errors import UserError
from denoised_mdp.seeding import generator, generator_state, restore_generator

NOTHING = np.zeros(0, np.float32)


class GymWorld(World, gym.utils.EzPickle):
    """A Gymnasium environment as a world without ground truth: it names no signal and no noise.

    The picture is the observation if that is one (uint8 [H, W] or [H, W, 1 or 3]), else what `render()` returns. It is
    resized to a square. Every episode has its own seed. A state is that seed and the actions since. To restore it, the
    episode is replayed and redrawn (a camera may lag behind); `CannotRestore` is raised if it then looks different.
    A state does not hold what an environment carries over between episodes, and a replay detects it only if it shows.
    Such an environment does not resume exactly (`denoised-mdp doctor` tests for it).

    Args:
        env: an environment, its Gymnasium id, or the path of a function that returns it, ``"package.module:function"``.
        size: height and width of a frame in pixels.
        episode_steps: steps after which an episode is truncated; the environment may end it earlier.

    Raises:
        UserError: there is no such environment, it has no picture, or its actions are neither a row of numbers nor one
            of several choices.
    """

    signal_names = ()
    can_terminate = True  # Gymnasium does not say which environments do

    def __init__(self, env: str | gym.Env, size: int = 64, episode_steps: int = 1000):
        gym.utils.EzPickle.__init__(self, env, size, episode_steps)
        self.size, self.episode_steps, self._source = size, episode_steps, env
        self.observation_space = gym.spaces.Box(-1.0, 1.0, (0,), np.float32)
        self._rng: np.random.Generator | None = None
        self._seed, self._seen = 0, 0
        self._actions: list[np.ndarray | int] = []
        self._draws: list[int] = []
        self._frame: np.ndarray | None = None
        self._env: gym.Env | None = None
        self._open()
        self.metadata = {**World.metadata, "render_fps": self._env.metadata.get("render_fps") or 25}
        space = self._env.action_space
        self.action_space: gym.Space = gym.spaces.Box(-1.0, 1.0, space.shape, np.float32)
        if isinstance(space, gym.spaces.Discrete):
            self.action_space = gym.spaces.Discrete(space.n)

    def _open(self) -> None:
        """Make the environment unless it is open."""
        if self._env is not None:
            return
        name = self._source if isinstance(self._source, str) else type(self._source.unwrapped).__name__
        env = make_gym(self._source, self.size) if isinstance(self._source, str) else self._source
        try:
            self._check(name, env)
        except BaseException:
            env.close()
            raise
        if isinstance(env.action_space, gym.spaces.Box):
            space = env.action_space
            env = gym.wrappers.TransformAction(env, partial(_within, space), space)
            env = gym.wrappers.RescaleAction(env, np.float32(-1), np.float32(1))
        self._env, self._name = env, name

    def _check(self, name: str, env: gym.Env) -> None:
        """Refuse an environment with unsupported actions or pictures, and remember where pictures come from."""
        _check_actions(name, env.action_space)
        self._observes = _is_picture(env.observation_space)
        if not self._observes and env.render_mode != "rgb_array":
            raise UserError(
                f"{name}: neither the observation ({_short(env.observation_space)}) nor render() is a picture: support"
                " render_mode='rgb_array', or observe uint8 [H, W, 3]."
            )

    def reset(self, *, seed: int | None = None, options: dict | None = None):
        """Start an episode; without `seed`, its seed is the next of the random stream."""
        super().reset(seed=seed)
        if seed is not None or self._rng is None:
            self._rng = generator(seed, "physics")
        self._begin(int(self._rng.integers(2**31)))
        return NOTHING, {}

    def _begin(self, seed: int) -> None:
        self._open()
        self._seed, self._seen, self._actions, self._draws = seed, 0, [], []
        self._note(self._env.reset(seed=seed)[0], 0.0)

    def step(self, action: np.ndarray | int):
        """Apply `action` [A] in [-1, 1], rescaled to the environment's range, or the index of a choice, from 0."""
        if isinstance(self.action_space, gym.spaces.Box):
            given = action = np.asarray(action, np.float32)
        else:
            space = self._env.action_space
            given = space.dtype.type(space.start + int(action))  # `action` is an int64 in a restored state
        observation, reward, terminated, truncated, _ = self._env.step(given)
        self._actions.append(action)
        reward, terminated = _number(self._name, reward), bool(terminated)
        truncated = bool(truncated) or len(self._actions) >= self.episode_steps
        self._note(observation, reward)
        if terminated or truncated:
            self._seen = zlib.crc32(bytes([terminated, truncated]), self._seen)
        return NOTHING, reward, terminated, truncated, {}

    def _note(self, observation: Any, reward: float) -> None:
        """Keep an observed picture, and update the checksum of everything seen in this episode."""
        self._frame, self._picture = None, observation if self._observes else None
        try:
            flat = np.ascontiguousarray(gym.spaces.flatten(self._env.observation_space, observation)).tobytes()
        except Exception:  # spaces raise various errors for what has no fixed size or lies outside them
            flat = b""
        self._seen = zlib.crc32(flat + np.float64(reward).tobytes(), self._seen)

    def signal(self) -> np.ndarray:
        """Return an empty array, float32 [0]: the true state is unknown."""
        return NOTHING

    def frame(self) -> np.ndarray:
        """Draw the current state, uint8 [H, W, 3]."""
        if self._frame is None:
            self._frame = self._draw()
            self._draws.append(len(self._actions))
            self._seen = zlib.crc32(self._frame.tobytes(), self._seen)
        return self._frame.copy()

    def _draw(self) -> np.ndarray:
        try:
            picture = np.asarray(self._env.render() if self._picture is None else self._picture)
        except (gym.error.DependencyNotInstalled, ImportError) as error:
            raise UserError(f"{self._name}: a package is missing: {error}") from error
        shaped = picture.ndim in (2, 3) and picture.shape[2:] in ((), (1,), (3,)) and picture.size
        if picture.dtype != np.uint8 or not shaped:
            raise UserError(f"{self._name}: render() gives {picture.dtype} {list(picture.shape)}, not uint8 [H, W, 3].")
        image = Image.fromarray(picture.reshape(picture.shape[:2]) if picture.shape[2:] == (1,) else picture)
        if image.size != (self.size, self.size):
            image = image.resize((self.size, self.size), Image.Resampling.BILINEAR)  # averages when it shrinks
        return np.array(image.convert("RGB"))

    def close(self) -> None:
        """Close the environment. A reset opens it again; one given by name is made anew."""
        if self._env is not None:
            self._env.close()
            self._env = None

    def get_state(self) -> dict:
        """Return the generator, the episode's seed, its actions so far, which steps were drawn, and the checksum."""
        space = self.action_space
        actions = np.array(self._actions, space.dtype).reshape(-1, *space.shape)
        random = generator_state(self._rng)
        draws = np.array(self._draws, np.int64)
        return {"rng": random, "seed": self._seed, "actions": actions, "draws": draws, "seen": self._seen}

    def set_state(self, state: dict) -> None:
        """Replay the episode up to the point where `get_state` was called.

        Raises:
            CannotRestore: the same seed and actions did not give the same observations, rewards and pictures.
        """
        self._rng = restore_generator(state["rng"])
        if self._env is not None and self._is_at(state):  # as in paired worlds, which set a state before every step
            return
        self._begin(state["seed"])
        draws, ended = set(state["draws"].tolist()), False
        for index in range(len(state["actions"]) + 1):
            if index in draws:
                self.frame()
            if ended or index == len(state["actions"]):
                break
            _, _, terminated, truncated, _ = self.step(state["actions"][index])
            ended = terminated or truncated
        if self._seen != state["seen"]:
            raise CannotRestore(f"{self._name} does not repeat an episode from its seed and actions")

    def _is_at(self, state: dict) -> bool:
        """Whether the current episode has the state's seed and actions, and has looked the same."""
        own = self.get_state()
        return all(np.array_equal(own[name], state[name]) for name in ("seed", "actions", "draws", "seen"))


def _within(space: gym.spaces.Box, action: np.ndarray) -> np.ndarray:
    """Clip an action to the space's limits, which rescaling can exceed in the last bit, and cast it to its type."""
    return np.clip(action, space.low, space.high).astype(space.dtype)


def _number(name: str, reward: Any) -> float:
    """Return a reward as a float; it may be an array of one number."""
    try:
        return float(np.asarray(reward).item())
    except (TypeError, ValueError):
        raise UserError(f"{name}: step() returns a reward that is no number but {type(reward).__name__}.") from None


def _is_picture(space: gym.Space) -> bool:
    if not isinstance(space, gym.spaces.Box) or space.dtype != np.uint8:
        return False
    return len(space.shape) in (2, 3) and space.shape[2:] in ((), (1,), (3,)) and min(space.shape[:2]) >= 8


def _check_actions(name: str, space: gym.Space) -> None:
    """Raise UserError unless actions are a row of numbers with finite limits, or one of several choices."""
    if isinstance(space, gym.spaces.Discrete):
        return
    if not isinstance(space, gym.spaces.Box):
        raise UserError(f"{name} has the action space {_short(space)}: wrap it so that it is a Box or Discrete.")
    if len(space.shape) != 1 or not space.shape[0]:
        raise UserError(f"{name} has actions of shape {list(space.shape)}: wrap it so that they are one row.")
    if not (np.isfinite(space.low).all() and np.isfinite(space.high).all()):
        raise UserError(f"{name} has actions without limits: wrap it in gymnasium.wrappers.RescaleAction or the like.")
    if not (np.issubdtype(space.dtype, np.floating) and (space.low < space.high).all()):
        raise UserError(
            f"{name} has the action space {_short(space)}, from {space.low.tolist()} to {space.high.tolist()}: wrap it"
            " so that actions are floating-point numbers, each with a low limit below its high one."
        )


def _short(space: gym.Space) -> str:
    return f"Box of {space.dtype} {list(space.shape)}" if isinstance(space, gym.spaces.Box) else type(space).__name__
