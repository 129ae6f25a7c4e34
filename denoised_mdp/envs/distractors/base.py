"""The base of all distractors: seeding, state, recursion into the wrapped environment, smooth motion."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gymnasium as gym
import numpy as np

from denoised_mdp.errors import UserError
from denoised_mdp.seeding import generator, generator_state, restore_generator

MOST = 10.0
"""upper limit of strengths whose default is 1; far above it, pictures turn black and numbers overflow"""


class Distractor(gym.Wrapper, gym.utils.EzPickle):
    """Base of all distractors: seeding, state and recursion into the wrapped environment.

    A subclass sets `name` and `Options`, and defines `_reset_noise`, `_advance_noise`, `noise_values`, `_get_noise`
    and `_set_noise`. If it changes the picture, it overrides `frame`; if it changes more than the background, also
    `foreground` and `frame_and_background`. Its constructor takes the environment and, by keyword, only its options,
    from which the command line, the help and the checks are derived.

    Args:
        env: any environment of this package.
        factors: names of the noise's factors.
        options: the subclass's options by name; omitted ones take their defaults.
        clips: further keyword arguments of a distractor with `shows_clips`.
    """

    name: str
    suites: tuple[str, ...] = ("dmc", "toy")
    """suites that it fits"""
    needs: tuple[str, ...] = ()
    """attributes that it needs of a world besides the methods of `World`"""
    scales: tuple[str, ...] = ("strength",)
    """options that scale its noise: no noise if all are 0. `probe invariance` varies them"""
    shows_clips = False
    """whether it also takes the arguments `clips`, `split` and `clips_seed` of `make_env`"""
    clip_size: int | None = None
    """height and width of its clips in pixels; None: those of an observation"""
    hides: tuple[str, ...] = ()
    """patterns of noise names, its own or another distractor's, that no picture shows when it is applied"""
    part_of_task = False
    """whether the task would be a different one without it; if so, it stays when distractors are removed"""
    Options: type
    """a dataclass whose fields are declared by `denoised_mdp.options.option`"""
    _stream_source: tuple = ()
    """the arguments that chose its clips, if its noise state names clips"""

    def __init__(self, env: gym.Env, factors: tuple[str, ...], options: Mapping[str, Any], **clips: Any):
        gym.utils.EzPickle.__init__(self, env, **options, **clips)
        super().__init__(env)
        self.options = self.Options(**options)
        self.signal_names = env.signal_names
        self.noise_names = env.noise_names + tuple(f"{self.name}/{factor}" for factor in factors)
        self.size, self.can_terminate = env.size, env.can_terminate
        self.rng: np.random.Generator | None = None
        self.reseeded = False  # whether the last reset started a new generator

    def reset(self, *, seed: int | None = None, options: dict | None = None):
        """Reset environment and noise; ``options["distractor_seed"]`` replaces `seed` for the noise alone."""
        own_seed = (options or {}).get("distractor_seed", seed)
        self.reseeded = own_seed is not None or self.rng is None
        if self.reseeded:
            self.rng = generator(own_seed, self.name)
        result = self.env.reset(seed=seed, options=options)
        self._reset_noise()
        return result

    def step(self, action):
        """Step the environment, then advance the noise."""
        result = self.env.step(action)
        self._advance_noise()
        return result

    def frame(self) -> np.ndarray:
        """Draw the current state with this distractor, uint8 [H, W, 3]; advances nothing."""
        return self.env.frame()

    def foreground(self) -> np.ndarray:
        """Draw what `frame` shows on a black background, uint8 [H, W, 3], see `World.foreground`."""
        return self.env.foreground()

    def frame_and_background(self, matte: str = "matte") -> tuple[np.ndarray, np.ndarray]:
        """Draw the current state on black, and the background's share of each pixel, if the world can.

        Outer distractors call it. A distractor that moves the pixels of the whole picture moves these as well.
        """
        return self.env.frame_and_background(matte)

    def render(self) -> np.ndarray:
        """Return `frame()`."""
        return self.frame()

    def signal(self) -> np.ndarray:
        """Return the ground-truth signal, float32 [S]."""
        return self.env.signal()

    def noise(self) -> np.ndarray:
        """Return the noise of all distractors up to this one in the current frame, float32 [N], see `noise_names`."""
        outer, own = self.env.noise(), np.asarray(self.noise_values(), np.float32).ravel()
        names = self.noise_names[len(self.env.noise_names) :]
        if len(own) != len(names):
            raise UserError(f"Distractor {self.name!r} has {len(own)} noise values and {len(names)} names.")
        return np.concatenate([outer, own])

    def get_state(self) -> dict:
        """Return the complete state, including the wrapped environment's."""
        return {"env": self.env.get_state(), "rng": generator_state(self.rng), "noise": self._get_noise()}

    def set_state(self, state: dict) -> None:
        """Continue exactly where `get_state` was taken."""
        self.rng = restore_generator(state["rng"])  # first: it is restored even if the world cannot be
        self.env.set_state(state["env"])
        self._set_noise(state["noise"])

    def copy_noise(self, other: Distractor) -> None:
        """Copy the noise of `other`, a distractor of the same kind. Both then behave identically.

        A distractor with different clips keeps its own, and copies the rest.
        """
        self.rng = restore_generator(generator_state(other.rng))
        noise = other._get_noise()
        if self._stream_source != other._stream_source:
            noise["clips"] = self._get_noise()["clips"]
        self._set_noise(noise)

    def noise_values(self):
        """Return this distractor's own factors, in the order of its names."""
        raise NotImplementedError

    def _reset_noise(self) -> None:
        """Start an episode."""

    def _advance_noise(self) -> None:
        """Advance by one inner step."""

    def _get_noise(self) -> dict:
        return {}

    def _set_noise(self, noise: dict) -> None:
        """Restore what `_get_noise` returned."""


def distractors_of(world: gym.Env) -> dict[str, gym.Env]:
    """Return the distractors around a world by name, outermost first."""
    found = {}
    while isinstance(world, gym.Wrapper):
        found[world.name] = world
        world = world.env
    return found


class SmoothWalk:
    """The smooth random walk W(dimensions, scale) of Wang et al. 2022, with random pushes and a restoring force.

    `value()` is its scaled position, float64 [dimensions], whose norm is about scale * 0.075.
    """

    radius, push, pull, decay, interval = 0.075, 0.005, 0.1, 0.9, 0.5

    def __init__(self, dimensions: int, scale: float):
        self.dimensions, self.scale = dimensions, scale
        self.position = self.velocity = np.zeros(dimensions)

    def value(self) -> np.ndarray:
        """Return the scaled position."""
        return self.scale * self.position

    def reset(self, rng: np.random.Generator) -> None:
        """Draw the initial position and velocity."""
        self.position = rng.normal(0, self.radius / np.sqrt(self.dimensions), self.dimensions)
        self.velocity = rng.normal(0, self.push, self.dimensions)

    def step(self, rng: np.random.Generator) -> None:
        """Advance by one step."""
        if np.linalg.norm(self.position) >= self.radius:
            acceleration = -self.pull * self.position
        else:
            acceleration = rng.normal(0, self.push, self.dimensions)
        self.velocity = (self.velocity + self.interval * acceleration) * self.decay**self.interval
        self.position = self.position + self.interval * self.velocity

    def get_state(self) -> dict:
        """Return position and velocity."""
        return {"position": self.position.copy(), "velocity": self.velocity.copy()}

    def set_state(self, state: dict) -> None:
        """Continue where `get_state` was taken."""
        self.position, self.velocity = state["position"].copy(), state["velocity"].copy()


class WalkingDistractor(Distractor):
    """Base of distractors whose only noise is a smooth walk; a subclass assigns it to `_walk`.

    With the option ``dynamic=false``, the walk's value is drawn at the start of an episode and then stays fixed.
    """

    _walk: SmoothWalk

    def noise_values(self) -> np.ndarray:
        """Return the walk's value, float64 [len(factors)]."""
        return self._walk.value()

    def _reset_noise(self) -> None:
        self._walk.reset(self.rng)

    def _advance_noise(self) -> None:
        if self.options.dynamic:
            self._walk.step(self.rng)

    def _get_noise(self) -> dict:
        return self._walk.get_state()

    def _set_noise(self, noise: dict) -> None:
        self._walk.set_state(noise)
