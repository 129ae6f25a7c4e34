"""The environment that an agent sees: action repeat and pixel observations around a composed world."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from numbers import Integral
from typing import Any

import gymnasium as gym
import numpy as np

from denoised_mdp.envs.quadrants import quadrants_of
from denoised_mdp.errors import UserError, did_you_mean


class ActionRepeat(gym.Wrapper, gym.utils.EzPickle):
    """Repeats each action `repeat` times and sums the rewards; stops at the end of an episode."""

    def __init__(self, env: gym.Env, repeat: int):
        gym.utils.EzPickle.__init__(self, env, repeat)
        super().__init__(env)
        self.repeat = repeat

    def step(self, action):
        """Step the wrapped environment up to `repeat` times; the reward is the raw sum."""
        total = 0.0
        for _ in range(self.repeat):  # copied, so that a world's changes to its action do not add up
            observation, reward, terminated, truncated, info = self.env.step(copy.copy(action))
            total += reward
            if terminated or truncated:
                break
        return observation, total, terminated, truncated, info


class PixelEnv(gym.Env, gym.utils.EzPickle):
    """The Gymnasium environment: observations are frames, drawn once per action.

    Observations are uint8 [H, W, 3], or with `foreground` [H, W, 6]: the same picture on black is appended.
    ``info["signal"]`` (float32 [S], names in `signal_names`) is the task's true state. ``info["noise"]`` (float32 [N],
    names in `noise_names`) is the state of all distractors in this frame. The class is not a
    `gymnasium.Wrapper`, so `unwrapped` and `spec` refer to this environment with all its distractors.

    Args:
        world: an environment of this package, wrapped in any number of distractors.
        action_repeat: inner steps per action.
        seed: seed of the first reset without one.
        recipe: the arguments of `make_env`, from which `denoised_mdp.envs.paired` builds variants.
        foreground: see `make_env`.
    """

    render_mode = "rgb_array"

    def __init__(
        self,
        world: gym.Env,
        action_repeat: int = 1,
        seed: int | None = None,
        recipe: Mapping | None = None,
        foreground: bool = False,
    ):
        gym.utils.EzPickle.__init__(self, world, action_repeat, seed, recipe, foreground)
        self.recipe, self.foreground = recipe, foreground
        self.world = world
        self.action_repeat = action_repeat
        self._stepper = ActionRepeat(world, action_repeat)
        self._first_seed = seed
        self._started = False  # by a reset or a restored state; closing ends it
        self._actions = 0  # since then
        self.begun = 0  # number of such starts
        self._most = -(-recipe["episode_steps"] // action_repeat) if recipe else None  # per episode
        fps = world.metadata["render_fps"] / action_repeat
        self.metadata = {"render_modes": ["rgb_array"], "render_fps": fps}
        self.signal_names: tuple[str, ...] = world.signal_names
        self.noise_names: tuple[str, ...] = world.noise_names
        self.can_terminate: bool = world.can_terminate
        self.action_space = world.action_space
        self.observation_space = gym.spaces.Box(0, 255, (world.size, world.size, 6 if foreground else 3), np.uint8)

    def reset(self, *, seed: int | None = None, options: dict | None = None):
        """Start an episode.

        With `seed`, physics and distractors get new generators, each derived from it by name. Without, their
        streams continue. ``options={"distractor_seed": int}`` replaces the seed for the
        distractors alone.

        Raises:
            ValueError: an unknown option or an invalid value.
            UserError: the world breaks its contract, see `denoised_mdp.envs.world.World`; also from `step`.
        """
        _check_options(options)
        if seed is None:
            seed, self._first_seed = self._first_seed, None
        seed = int(seed) if isinstance(seed, np.integer) else seed  # Gymnasium refuses NumPy integers
        super().reset(seed=seed)
        self._stepper.reset(seed=seed, options=options)
        self.begin_here()
        info = self.info()
        for source, names in (("signal", self.signal_names), ("noise", self.noise_names)):
            if len(info[source]) != len(names):
                count = f"{len(info[source])} numbers and {len(names)} names ({source}, {source}_names)"
                raise UserError(f"The {source} of {type(self.world.unwrapped).__name__} has {count}.")
        return self.observe(), info

    def step(self, action: np.ndarray):
        """Apply `action` for `action_repeat` inner steps and draw the frame after the last one.

        action: numbers [A], clipped to [-1, 1]; in a Discrete space, the index of the choice or a one-hot row [A].

        Raises:
            ValueError: the action has another shape, or is not finite.
            gymnasium.error.ResetNeeded: before the first reset or after `close`; `render`, `info`, `get_state` too.
        """
        self.check_started("step")
        _, reward, terminated, truncated, _ = self._stepper.step(_checked_action(action, self.action_space))
        self._actions += 1
        world = type(self.world.unwrapped).__name__
        if terminated and not self.can_terminate:
            raise UserError(f"{world} returned terminated=True where it says can_terminate = False: set it to True.")
        if self._most is not None and self._actions >= self._most and not (terminated or truncated):
            raise UserError(f"{world} goes on after its episode_steps: let step return truncated=True there.")
        return self.observe(), reward, terminated, truncated, self.info()

    def observe(self) -> np.ndarray:
        """Return what the camera shows now, uint8 [H, W, 3]; `foreground` appends three more channels.

        A copy, like everything that leaves this environment: a world may reuse one buffer for all frames.
        """
        frame = self.world.frame()
        if not _is_picture(frame, self.world.size):
            self._refuse_frame()
        frame = frame.copy()
        return np.concatenate([frame, self.world.foreground()], -1) if self.foreground else frame

    def _refuse_frame(self) -> None:
        """Raise UserError that names the innermost layer, the world or a distractor, whose frame is invalid."""
        layers = [self.world]
        while isinstance(layers[-1], gym.Wrapper):
            layers.append(layers[-1].env)
        for layer in reversed(layers):
            frame, size = layer.frame(), self.world.size
            if not _is_picture(frame, size):
                found = f"{frame.dtype} {list(frame.shape)}" if isinstance(frame, np.ndarray) else f"a {type(frame)}"
                raise UserError(f"The frame of {type(layer).__name__} is {found}, not uint8 {[size, size, 3]}.")

    def render(self) -> np.ndarray:
        """Return the current frame; advances nothing."""
        self.check_started("render")
        return self.world.frame().copy()

    def info(self) -> dict[str, np.ndarray]:
        """Return the ground truth of the current frame: "signal" and "noise"; advances nothing."""
        self.check_started("info")
        return {"signal": np.array(self.world.signal()), "noise": np.array(self.world.noise())}

    def close(self) -> None:
        """Free the renderer; a reset creates it again. Closing twice is harmless."""
        self._started = False
        self.world.close()

    @property
    def quadrants(self) -> dict[str, str]:
        """The kind of information of every signal and noise name, see `denoised_mdp.envs.quadrants`."""
        return quadrants_of(self)

    def get_state(self) -> dict:
        """Return the complete state as a tree of dicts, arrays, numbers and strings, exact at any step."""
        self.check_started("get_state")
        return self.world.get_state()

    def set_state(self, state: dict) -> None:
        """Restore exactly a state that `get_state` returned in this environment or an equal one."""
        self._first_seed = None
        try:
            self.world.set_state(state)
        finally:  # even if that fails, the world has some state, which can be saved
            self.begin_here()

    def begin_here(self) -> None:
        """Count actions from the world's current state, however it got there."""
        self._started, self._actions = True, 0
        self.begun += 1

    def check_started(self, what: str) -> None:
        """Raise `gymnasium.error.ResetNeeded` outside an episode."""
        if not self._started:
            raise gym.error.ResetNeeded(f"{what} before the first reset or after close: call reset() first.")


def _is_picture(frame: Any, size: int) -> bool:
    return isinstance(frame, np.ndarray) and frame.dtype == np.uint8 and frame.shape == (size, size, 3)


def _checked_action(action: Any, space: gym.Space) -> np.ndarray | int:
    """Return a checked copy of an action, so that worlds cannot change the caller's. A one-hot row gives its index."""
    try:
        array = np.array(action)
    except (TypeError, ValueError):  # a ragged list, or a tensor that is not on the host
        array = np.array(None)
    if isinstance(space, gym.spaces.Discrete):
        return _checked_choice(action, array, int(space.n))
    shape = space.shape
    numbers, right = array.dtype.kind in "iuf", array.shape == shape
    if not numbers or not right or not np.isfinite(array).all():
        found = f"{array.dtype} {list(array.shape)}" if numbers and array.ndim and not right else repr(action)
        raise ValueError(f"action is {found}: give {list(shape)} finite numbers, from -1 to 1")
    return np.clip(array, -1.0, 1.0)  # float bounds: an unsigned type cannot hold -1


def _checked_choice(action: Any, array: np.ndarray, count: int) -> int:
    """Return the index of a choice, given as such or as a one-hot row; `array` is the action as an array."""
    if array.shape == () and array.dtype.kind in "iu" and 0 <= array < count:
        return int(array)
    one_hot = array.shape == (count,) and array.dtype.kind in "iuf"
    if one_hot and np.count_nonzero(array) == np.count_nonzero(array == 1) == 1:
        return int(array.argmax())
    raise ValueError(f"action is {action!r}: give a whole number from 0 to {count - 1}, or a one-hot row of {count}")


def _check_options(options: Any) -> None:
    """Raise ValueError unless these are valid options of a reset."""
    if options is not None and not isinstance(options, Mapping):
        raise ValueError(f"options are {options!r}: give None or a dict, such as {{'distractor_seed': 1}}")
    for name, value in (options or {}).items():
        if name != "distractor_seed":
            raise ValueError(f"reset has no option {name!r}.{did_you_mean(name, ['distractor_seed'])}")
        if not isinstance(value, Integral) or isinstance(value, bool) or value < 0:
            raise ValueError(f"distractor_seed is {value!r}: give a whole number of at least 0")
