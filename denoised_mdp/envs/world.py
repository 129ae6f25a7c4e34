"""The base of all worlds: the innermost environments, which distractors and `PixelEnv` wrap."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np

from denoised_mdp.errors import UserError


class CannotRestore(Exception):
    """A world cannot be put back into the state of a checkpoint: whoever plays it begins a new episode."""


def diverged(task: str) -> UserError:
    """What to raise where a task's simulation has left the numbers that it can go on from."""
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

    `reset(seed=...)` restarts all random streams from the seed. `step` takes numbers [A] in [-1, 1], and returns
    truncated=True after as many steps as the suite's `episode_steps`. `get_state` holds all that decides what comes
    next, as dicts, lists, arrays, numbers and texts; `denoised_mdp.seeding.generator_state` makes such a tree of a
    generator.
    """

    metadata = {"render_modes": ["rgb_array"], "render_fps": 25}
    render_mode = "rgb_array"
    noise_names: tuple[str, ...] = ()
    can_terminate = False
    """whether `step` ever returns terminated=True: some state ends the task, other than a time limit"""

    _renderer: Any = None

    def noise(self) -> np.ndarray:
        """Return the world's own noise, float32 [N], see `noise_names`: none unless a subclass says otherwise."""
        return np.zeros(0, np.float32)

    def foreground(self) -> np.ndarray:
        """Return the frame with everything black that the exact matte calls background, uint8 [H, W, 3]."""
        return self.frame_and_background("matte")[0]

    def render(self) -> np.ndarray:
        """Return `frame()`."""
        return self.frame()

    def make_renderer(self) -> Any:
        """Make the renderer of a world that draws with MuJoCo; None: it draws otherwise."""
        return None

    def renderer(self) -> Any:
        """Return the renderer, which is made when it is first needed."""
        if self._renderer is None:
            self._renderer = self.make_renderer()
        return self._renderer

    def close(self) -> None:
        """Free the renderer; a later frame makes a new one."""
        if self._renderer:
            self._renderer.close()
            self._renderer = None
