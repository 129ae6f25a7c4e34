"""Paired worlds: the same physics under different distractors, to measure what a representation ignores.

A mapping describes a variant of an environment; all keys are optional:

=================  ==================================================================================================
``distractors``    the whole set, as for `make_env`, replacing the environment's own; ``{}``: none
``without``        names of distractors to leave out
``change``         name -> options to replace; a missing distractor is added. One whose ``dynamic`` differs starts an
                   episode like the original's and then diverges from it
``clips``          where background clips come from; ``split``: train, test or all; ``clips_seed``: their order
``seed``           seed of the distractors' noise; if omitted, the distractors that the variant shares with the
                   environment behave identically: without ``camera_jitter`` the background shows the same frame
=================  ==================================================================================================

>>> env = make_env("cheetah_run", distractors={"video_background": {}, "camera_jitter": {}})
>>> variants = {"still": {"without": ["camera_jitter"]}, "other clips": {"split": "test"}, "clean": {"distractors": {}}}
>>> env.reset(seed=0)
>>> render_paired(env, variants)               # one call: {"original": uint8 [H, W, 3], "still": ..., ...}
>>> replay_paired(env, actions, 0, variants)   # a whole episode under each: {"original": Rollout, ...}

`PairedWorlds` keeps the variants' environments between calls and steps all of them together.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import gymnasium as gym
import numpy as np

from denoised_mdp.envs import make_env
from denoised_mdp.envs.distractors.base import distractors_of
from denoised_mdp.envs.options import named_distractors
from denoised_mdp.envs.world import CannotRestore
from denoised_mdp.errors import UserError, did_you_mean

ORIGINAL = "original"
KEYS = ("distractors", "without", "change", "clips", "split", "clips_seed", "seed")


@dataclass(frozen=True)
class Rollout:
    """An episode of n actions: observations, rewards, signal and noise."""

    observation: np.ndarray
    """uint8 [n + 1, H, W, 3]"""
    reward: np.ndarray
    """float64 [n]"""
    signal: np.ndarray
    """float32 [n + 1, S]"""
    noise: np.ndarray
    """float32 [n + 1, N]; N depends on the distractors"""
    terminated: bool
    truncated: bool


def make_variant(env: gym.Env, variant: Mapping) -> gym.Env:
    """Make a new environment like `env` (of `make_env` or `gymnasium.make`) with a variant's distractors.

    It is independent of `env` and has not been reset; close it when done.

    Raises:
        UserError: an unknown key, distractor or option, or an environment from outside this package.
    """
    if not isinstance(variant, Mapping):
        raise UserError(f"A variant is a mapping such as {{'without': ['camera_jitter']}}, not {variant!r}.")
    for key in variant:
        if key not in KEYS:
            raise UserError(f"A variant has no key {key!r}.{did_you_mean(key, KEYS)}")
    recipe = getattr(env.unwrapped, "recipe", None)
    if recipe is None:
        raise UserError("Variants can only be made of environments from make_env or gymnasium.make.")
    recipe = dict(recipe)
    chosen = named_distractors(variant.get("distractors", recipe["distractors"]))
    for name in named_distractors(variant.get("without")):
        if name not in chosen:
            raise UserError(f"There is no distractor {name!r} to leave out.{did_you_mean(name, chosen)}")
        del chosen[name]
    for name, options in named_distractors(variant.get("change")).items():
        chosen[name] = chosen.get(name, {}) | options
    recipe |= {key: variant[key] for key in ("clips", "split", "clips_seed") if key in variant}
    return make_env(recipe.pop("task"), **recipe | {"distractors": chosen})


class PairedWorlds:
    """One environment and variants of it that share its physics bit for bit.

    The environment may be used on its own in between, for instance by an agent: `frames` and `step` bring
    the variants to its state, even mid-episode. Apart from its own `reset` and `step`, nothing here advances its
    noise or its generators.

    Args:
        env: an environment of `make_env` or `gymnasium.make`.
        variants: name -> variant, see this module; the name "original" is reserved for `env`.

    Raises:
        UserError: see `make_variant`.
    """

    def __init__(self, env: gym.Env, variants: Mapping[str, Mapping]):
        if not isinstance(variants, Mapping):
            raise UserError(f"Variants are a mapping of names to variants, not {variants!r}.")
        if ORIGINAL in variants:
            raise UserError(f"The name {ORIGINAL!r} is the environment's own: give the variant another one.")
        self.env = env
        self.worlds: dict[str, gym.Env] = {}
        self._seeds: dict[str, int | None] = {}
        self._fresh: set[str] = set()  # variants whose noise has not been started
        self._begun = -1  # `PixelEnv.begun` of the original when its noise was last copied to all variants
        try:
            for name, variant in variants.items():
                self.worlds[name] = make_variant(env, variant)
                self._seeds[name] = variant.get("seed")
                self._fresh.add(name)
        except BaseException:
            self.close()
            raise

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> dict[str, tuple]:
        """Start an episode in all worlds; returns name -> (observation, info)."""
        results = {ORIGINAL: self.env.reset(seed=seed, options=options)}
        for name, world in self.worlds.items():
            if seed is not None or name in self._fresh:
                self._start(name, seed, options)
            else:
                world.reset(options=options if self._seeds[name] is None else None)
        self._synchronize()
        return results | {name: (world.unwrapped.observe(), world.info()) for name, world in self.worlds.items()}

    def step(self, action: np.ndarray) -> dict[str, tuple]:
        """Apply `action` [A] in all worlds; returns name -> (observation, reward, terminated, truncated, info).

        Rewards differ if a distractor changes the reward (noisy_sensor). The physics never differs.

        Raises:
            UserError: a Gymnasium environment does not replay its episode exactly; also from the other methods.
        """
        self._synchronize()
        results = {name: world.step(action) for name, world in [(ORIGINAL, self.env), *self.worlds.items()]}
        expected = results[ORIGINAL][-1]["signal"]
        for name, result in results.items():
            if not np.array_equal(result[-1]["signal"], expected):
                raise AssertionError(f"the physics of variant {name!r} differs from the original's")
        return results

    def frames(self) -> dict[str, np.ndarray]:
        """Draw the environment's current state in all worlds: name -> uint8 [H, W, 3]; advances nothing."""
        self._synchronize()
        return {name: world.render() for name, world in [(ORIGINAL, self.env), *self.worlds.items()]}

    def noises(self) -> dict[str, dict[str, float]]:
        """Return the current noise of every world: name -> factor -> value."""
        self._synchronize()
        worlds = [(ORIGINAL, self.env.unwrapped), *self.worlds.items()]
        return {
            name: dict(zip(world.noise_names, map(float, world.info()["noise"]), strict=True)) for name, world in worlds
        }

    def close(self) -> None:
        """Close the variants; the environment itself stays open."""
        for world in self.worlds.values():
            world.close()

    def __enter__(self) -> PairedWorlds:
        return self

    def __exit__(self, *_) -> None:
        self.close()

    def _start(self, name: str, seed: int | None, options: Mapping | None = None) -> None:
        """Start a variant's noise from its own seed or else that of the reset; the physics is copied afterwards."""
        own, seed = self._seeds[name], 0 if seed is None else seed
        noise = own if own is not None else (options or {}).get("distractor_seed", seed)
        self.worlds[name].reset(seed=seed, options={"distractor_seed": noise})
        self._fresh.discard(name)

    def _synchronize(self) -> None:
        """Copy the environment's physics to the variants and, unless they have their own seed, its noise.

        Within an episode, a distractor that moves in only one of the two worlds keeps its own noise.
        """
        self.env.unwrapped.check_started("a paired world")
        source = self.env.unwrapped.world
        core = source.unwrapped
        state = getattr(core, "get_physics_state", core.get_state)()
        originals = distractors_of(source)
        begins, self._begun = self.env.unwrapped.begun != self._begun, self.env.unwrapped.begun
        for name, variant in self.worlds.items():
            if name in self._fresh:
                self._start(name, None)
            world = variant.unwrapped.world
            own = world.unwrapped
            try:
                getattr(own, "set_physics_state", own.set_state)(state)
            except CannotRestore as error:
                raise UserError(f"{error}: it cannot be paired.") from error
            variant.unwrapped.begin_here()
            if self._seeds[name] is None:
                if hasattr(own, "copy_noise"):  # a world with noise of its own
                    own.copy_noise(core)
                for kind, distractor in distractors_of(world).items():
                    if kind in originals and (begins or _moves(distractor) == _moves(originals[kind])):
                        distractor.copy_noise(originals[kind])


def render_paired(env: gym.Env, variants: Mapping[str, Mapping]) -> dict[str, np.ndarray]:
    """Draw the current state of `env` under different distractors: name -> uint8 [H, W, 3], "original" included.

    Creates and closes an environment per variant; use `PairedWorlds` to draw more than one state.
    """
    with PairedWorlds(env, variants) as paired:
        return paired.frames()


def replay(env: gym.Env, actions: Sequence[np.ndarray], seed: int, distractor_seed: int | None = None) -> Rollout:
    """Play `actions` [n, A] from ``env.reset(seed)``; stop at the end of the episode.

    The physics depends on `seed` and `actions` alone: with any distractors, and any `distractor_seed` (by
    default `seed`), `Rollout.signal` is the same to the last bit.
    """
    options = None if distractor_seed is None else {"distractor_seed": distractor_seed}
    first = {"": env.reset(seed=seed, options=options)}
    return _roll(first, lambda action: {"": env.step(action)}, actions)[""]


def replay_paired(
    env: gym.Env, actions: Sequence[np.ndarray], seed: int, variants: Mapping[str, Mapping]
) -> dict[str, Rollout]:
    """Replay one episode under all variants: name -> `Rollout`, "original" included; all have the same `signal`."""
    with PairedWorlds(env, variants) as paired:
        return _roll(paired.reset(seed=seed), paired.step, actions)


def _roll(first: Mapping[str, tuple], step: Callable, actions: Sequence[np.ndarray]) -> dict[str, Rollout]:
    """Collect rollouts from the results of a reset and of steps, one result per name."""
    rows = {name: [(observation, info)] for name, (observation, info) in first.items()}
    rewards: dict[str, list[float]] = {name: [] for name in first}
    terminated = truncated = False
    for action in actions:
        results = step(action)
        for name, (observation, reward, _, _, info) in results.items():
            rows[name].append((observation, info))
            rewards[name].append(float(reward))
        terminated, truncated = next(iter(results.values()))[2:4]
        if terminated or truncated:
            break
    return {
        name: Rollout(
            np.stack([observation for observation, _ in pairs]),
            np.array(rewards[name]),
            *(np.stack([info[kind] for _, info in pairs]) for kind in ("signal", "noise")),
            terminated,
            truncated,
        )
        for name, pairs in rows.items()
    }


def _moves(distractor: gym.Env) -> bool:
    """Whether a distractor changes within an episode."""
    return getattr(distractor.options, "dynamic", True)
