"""Pixel tasks without MuJoCo, whose signal and noise are known exactly. Tests with them take milliseconds."""

from __future__ import annotations

import gymnasium as gym
import numpy as np

from denoised_mdp.envs.factors import NOISE, RELEVANT_NOISE
from denoised_mdp.envs.world import World
from denoised_mdp.seeding import generator, generator_state, restore_generator


class ToyEnv(World, gym.utils.EzPickle):
    """A bright dot that the action pushes through a box, in front of a texture that drifts on its own.

    The action [2] is a velocity; the reward is 1 - distance / diagonal between the dot and a visible target
    that never moves. Signal: position of the dot in [-1, 1]^2. Noise: phases of the two stripe patterns in
    [0, 1).

    Args:
        size: height and width of a frame in pixels.
        episode_steps: steps after which an episode is truncated.
    """

    signal_names = ("dot/x", "dot/y")
    noise_names = ("texture/phase_0", "texture/phase_1")
    target = np.array([0.5, -0.5])
    wall = 0.9
    speed = 0.1  # per step at full action, in half-widths of the picture

    def __init__(self, size: int = 64, episode_steps: int = 1000):
        gym.utils.EzPickle.__init__(self, size, episode_steps)
        self.size, self.episode_steps = size, episode_steps
        self.action_space = gym.spaces.Box(-1.0, 1.0, (2,), np.float32)
        self.observation_space = gym.spaces.Box(-1.0, 1.0, (2,), np.float32)
        axis = (np.arange(size) + 0.5) / size * 2 - 1
        self._x, self._y = axis[None, :], axis[:, None]
        self._slopes = self._x + 0.5 * self._y, 0.75 * self._y - 0.5 * self._x  # of the stripes
        self._target = np.hypot(self._x - self.target[0], self._y - self.target[1]) < 0.12  # where a frame shows it
        self._rng = self._noise_rng = None
        self._dot, self._phase, self._drift, self._steps = np.zeros(2), np.zeros(2), np.zeros(2), 0

    def reset(self, *, seed: int | None = None, options: dict | None = None):
        """Start an episode; ``options["distractor_seed"]`` replaces `seed` for the texture alone."""
        super().reset(seed=seed)
        noise_seed = (options or {}).get("distractor_seed", seed)
        if seed is not None or self._rng is None:
            self._rng = generator(seed, "physics")
        if noise_seed is not None or self._noise_rng is None:
            self._noise_rng = generator(noise_seed, "texture")
        self._dot, self._steps = self._rng.uniform(-self.wall, self.wall, 2), 0
        self._phase, self._drift = self._noise_rng.uniform(0, 1, 2), self._noise_rng.normal(0, 0.02, 2)
        return self.signal(), {}

    def step(self, action: np.ndarray):
        """Move the dot by `action` [2] in [-1, 1] and let the texture drift."""
        velocity = self.speed * np.asarray(action, np.float64)
        self._dot = np.clip(self._dot + velocity, -self.wall, self.wall)
        self._drift = 0.95 * self._drift + self._noise_rng.normal(0, 0.005, 2)
        self._phase = (self._phase + self._drift) % 1
        self._steps += 1
        reward = 1 - float(np.linalg.norm(self._dot - self.target)) / np.sqrt(8)
        return self.signal(), reward, False, self._steps >= self.episode_steps, {}

    def signal(self) -> np.ndarray:
        """Return the dot's position, float32 [2]."""
        return self._dot.astype(np.float32)

    def noise(self) -> np.ndarray:
        """Return the texture's phases, float32 [2]."""
        return self._phase.astype(np.float32)

    def frame(self) -> np.ndarray:
        """Draw the current state, uint8 [H, W, 3]."""
        return self._draw()[0]

    def frame_and_background(self, matte: str = "matte"):
        """Return the frame with the texture black, and the texture's mask, bool [H, W]; exact for every `matte`."""
        frame, background = self._draw()
        frame[background] = 0
        return frame, background

    def _draw(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the frame and the mask of its texture."""
        phases = [slope + phase for slope, phase in zip(self._slopes, self._phase, strict=True)]
        stripes = sum(np.sin(2 * np.pi * phase) for phase in phases)
        frame = np.repeat((90 + 35 * stripes).astype(np.uint8)[..., None], 3, 2)
        dot = np.maximum(abs(self._x - self._dot[0]), abs(self._y - self._dot[1])) < 0.15
        frame[self._target] = 200, 40, 40
        frame[dot] = 255, 255, 160
        return frame, ~(dot | self._target)

    def get_state(self) -> dict:
        """Return the whole state."""
        return {
            "rng": generator_state(self._rng),
            "noise_rng": generator_state(self._noise_rng),
            "dot": self._dot.copy(),
            "phase": self._phase.copy(),
            "drift": self._drift.copy(),
            "steps": self._steps,
        }

    def set_state(self, state: dict) -> None:
        """Restore exactly what `get_state` returned."""
        self._rng, self._noise_rng = restore_generator(state["rng"]), restore_generator(state["noise_rng"])
        self._dot, self._phase = state["dot"].copy(), state["phase"].copy()
        self._drift = state["drift"].copy()
        self._steps = state["steps"]

    def get_physics_state(self) -> dict:
        """Return the state without the texture."""
        return {"rng": generator_state(self._rng), "dot": self._dot.copy(), "steps": self._steps}

    def set_physics_state(self, state: dict) -> None:
        """Restore what `get_physics_state` returned; the texture stays as it is."""
        self._rng, self._dot, self._steps = restore_generator(state["rng"]), state["dot"].copy(), state["steps"]

    def copy_noise(self, other: ToyEnv) -> None:
        """Copy the texture of another world."""
        self.set_state(other.get_state() | self.get_physics_state())


class TerminatingToyEnv(ToyEnv):
    """Touching the wall of the box ends the episode. All rewards are positive, so staying alive pays."""

    can_terminate = True

    def step(self, action: np.ndarray):
        """Step as `ToyEnv` does, and terminate at the wall."""
        signal, reward, _, truncated, info = super().step(action)
        terminated = bool((abs(self._dot) >= self.wall).any())  # exact, because the dot is clipped to the wall
        return signal, reward, terminated, truncated and not terminated, info


def make_toy(task: str, size: int, episode_steps: int) -> ToyEnv | CountingEnv:
    """Make the world of a task of suite "toy"."""
    worlds = {"dot": ToyEnv, "dot_terminating": TerminatingToyEnv, "counting": CountingEnv}
    return worlds[task](size, episode_steps)


class CountingEnv(World, gym.utils.EzPickle):
    """Every pixel encodes episode and step, and the reward is the step: for tests of how data are aligned.

    Episodes count from 0; a seeded reset starts over at 0. A reset is step 0, and the n-th inner step has
    reward n.
    """

    signal_names = ("episode", "step")
    quadrants = {"episode": NOISE, "step": RELEVANT_NOISE}

    def __init__(self, size: int = 64, episode_steps: int = 1000):
        gym.utils.EzPickle.__init__(self, size, episode_steps)
        self.size, self.episode_steps = size, episode_steps
        self.action_space = gym.spaces.Box(-1.0, 1.0, (2,), np.float32)
        self.observation_space = gym.spaces.Box(-1.0, np.inf, (2,), np.float32)
        self._episode, self._step = -1, 0

    @staticmethod
    def decode(observation: np.ndarray) -> tuple[int, int]:
        """Return (episode modulo 256, step) of a frame uint8 [H, W, 3]."""
        low, high, episode = (int(value) for value in observation[0, 0])
        return episode, low + 256 * high

    def reset(self, *, seed: int | None = None, options: dict | None = None):
        """Start the next episode."""
        super().reset(seed=seed)
        self._episode, self._step = self._episode + 1 if seed is None else 0, 0
        return self.signal(), {}

    def step(self, action: np.ndarray):
        """Advance the count."""
        self._step += 1
        return self.signal(), float(self._step), False, self._step >= self.episode_steps, {}

    def signal(self) -> np.ndarray:
        """Return episode and step, float32 [2]."""
        return np.array([self._episode, self._step], np.float32)

    def frame(self) -> np.ndarray:
        """Return the counts as colour: step, step // 256 and episode, each modulo 256."""
        color = self._step % 256, self._step // 256 % 256, self._episode % 256
        return np.broadcast_to(np.array(color, np.uint8), (self.size, self.size, 3)).copy()

    def get_state(self) -> dict:
        """Return the counts."""
        return {"episode": self._episode, "step": self._step}

    def set_state(self, state: dict) -> None:
        """Restore what `get_state` returned."""
        self._episode, self._step = state["episode"], state["step"]
