"""The camera that shakes."""

from __future__ import annotations

import gymnasium as gym
import numpy as np

from denoised_mdp.envs.distractors.base import SmoothWalk, WalkingDistractor


class CameraJitter(WalkingDistractor, gym.utils.EzPickle):
    """Shifts the picture like a hand-held camera, with black at the edges.

    The shift (dx, dy) is W(2, 120) pixels at 64x64, scaled with the size, applied after compositing.

    Args:
        env: any environment of this package.
        strength: factor of the amplitude.
        dynamic: false: drawn at the start of an episode, then fixed.
    """

    name = "camera_jitter"

    def __init__(self, env: gym.Env, strength: float = 1.0, dynamic: bool = True):
        gym.utils.EzPickle.__init__(self, env, strength, dynamic)
        super().__init__(env, ("dx", "dy"), SmoothWalk(2, strength * 120 * env.size / 64), dynamic)

    def frame(self) -> np.ndarray:
        """Draw the wrapped environment's frame, moved right by dx and down by dy pixels."""
        dx, dy = self._walk.value()
        return translate(self.env.frame(), dx, dy)


def translate(image: np.ndarray, dx: float, dy: float) -> np.ndarray:
    """Move a uint8 image [H, W, C] right by dx and down by dy pixels, bilinearly, with a black border."""
    shifted = _translate_axis(image.astype(np.float32), dy, 0)
    return (_translate_axis(shifted, dx, 1) + 0.5).astype(np.uint8)


def _translate_axis(image: np.ndarray, shift: float, axis: int) -> np.ndarray:
    """Move a float image along one axis by a fraction of pixels, filling with zeros."""
    length = image.shape[axis]
    whole = int(np.floor(shift))
    fraction = np.float32(shift - whole)
    moved = np.zeros_like(image)
    for offset, weight in ((whole, 1 - fraction), (whole + 1, fraction)):
        if abs(offset) < length and weight > 0:
            target, source = [slice(None)] * 3, [slice(None)] * 3
            target[axis] = slice(max(offset, 0), length + min(offset, 0))
            source[axis] = slice(max(-offset, 0), length - max(offset, 0))
            moved[tuple(target)] += weight * image[tuple(source)]
    return moved
