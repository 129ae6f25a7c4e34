"""The base of all worlds: the innermost environments, which distractors and `PixelEnv` wrap."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np

from denoised_mdp.errors import UserError


class CannotRestore(Exception):
    """A world cannot be put back into the state of a checkpoint; the caller begins a new episode."""


def diverged(task: str) -> UserError:
    """Return the error to raise when a task's simulation has diverged."""
    return UserError(
        f"The simulation of {task} has diverged: a position, velocity or acceleration is huge or no number. In"
        " training, repeat the command to go on from the last checkpoint; if it comes back, use another seed in a new"
        " run_dir."
    )


class World(gym.Env):
    """A task with a true state and a frame, without distractors.

    A subclass sets `size`, `signal_names` and the spaces, and defines `reset` and `step` (whose observations are the
    signal), `signal`, `frame`, `get_state` and `set_state`; for background videos and ``model.target=foreground`` also
    `frame_and_background`.

    `reset(seed=...)` restarts all random streams from the seed. `step` takes numbers [A] in [-1, 1], or the index of
    a choice, and returns truncated=True after `episode_steps` steps. `get_state` returns all that determines the future
    as a tree of dicts, lists, arrays, numbers and texts; `denoised_mdp.seeding.generator_state` returns such a tree for
    a generator.
    """

    metadata = {"render_modes": ["rgb_array"], "render_fps": 25}
    render_mode = "rgb_array"
    noise_names: tuple[str, ...] = ()
    can_terminate = False
    """whether `step` ever returns terminated=True: some state, not a time limit, ends the task"""

    _renderer: Any = None

    def noise(self) -> np.ndarray:
        """Return the world's own noise, float32 [N], see `noise_names`; empty unless a subclass overrides it."""
        return np.zeros(0, np.float32)

    def foreground(self) -> np.ndarray:
        """Return the frame with the exact matte's background in black, uint8 [H, W, 3]."""
        return self.frame_and_background("matte")[0]

    def render(self) -> np.ndarray:
        """Return `frame()`."""
        return self.frame()

    def make_renderer(self) -> Any:
        """Make the renderer of a world that draws with MuJoCo; None if it draws otherwise."""
        return None

    def renderer(self) -> Any:
        """Return the renderer, made on first use."""
        if self._renderer is None:
            self._renderer = self.make_renderer()
        return self._renderer

    def close(self) -> None:
        """Free the renderer; a later frame makes a new one."""
        if self._renderer:
            self._renderer.close()
            self._renderer = None
