"""A shaking camera."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import numpy as np

from denoised_mdp.envs.distractors.base import MOST, SmoothWalk, WalkingDistractor
from denoised_mdp.options import option


class CameraJitter(WalkingDistractor):
    """Shifts the picture like a hand-held camera, with black at the edges.

    The shift (dx, dy) is W(2, 120) pixels at 64x64, and scales with the size. It is applied after compositing.
    """

    name = "camera_jitter"
    suites = ("dmc", "robodesk", "toy")

    @dataclass
    class Options:
        """Options of the distractor."""

        strength: float = option(
            1.0, "scale of the movement; 1: about 9 pixels at 64x64, as in the paper; 0: none", low=0, high=MOST
        )
        dynamic: bool = option(True, "true: it moves all the time; false: it is placed once per episode")

    def __init__(self, env: gym.Env, **options: Any):
        super().__init__(env, ("dx", "dy"), options)
        self._walk = SmoothWalk(2, self.options.strength * 120 * env.size / 64)

    def frame(self) -> np.ndarray:
        """Draw the wrapped environment's frame, moved right by dx and down by dy pixels."""
        return translate(self.env.frame(), *self._walk.value())

    def foreground(self) -> np.ndarray:
        """Draw the wrapped environment's foreground, moved with the picture."""
        return translate(self.env.foreground(), *self._walk.value())

    def frame_and_background(self, matte: str = "matte") -> tuple[np.ndarray, np.ndarray]:
        """Move both with the picture; the black border does not count as background."""
        picture, share = self.env.frame_and_background(matte)
        dx, dy = self._walk.value()
        return translate(picture, dx, dy), _translate(share[..., None].astype(np.float32), dx, dy)[..., 0]


def translate(image: np.ndarray, dx: float, dy: float) -> np.ndarray:
    """Move a uint8 image [H, W, C] right by dx and down by dy pixels, bilinearly, with a black border."""
    return (_translate(image.astype(np.float32), dx, dy) + 0.5).astype(np.uint8)


def _translate(image: np.ndarray, dx: float, dy: float) -> np.ndarray:
    """Move a float image [H, W, C] as `translate` does, without rounding."""
    return _translate_axis(_translate_axis(image, dy, 0), dx, 1)


def _translate_axis(image: np.ndarray, shift: float, axis: int) -> np.ndarray:
    """Move a float image along one axis by a fractional number of pixels, filling with zeros."""
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
