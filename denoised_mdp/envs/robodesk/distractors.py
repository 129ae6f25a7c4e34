"""RoboDesk's distractors (Wang et al. 2022): they act in the scene, not on the finished picture.

Each is a Gymnasium wrapper with its own generator, like those of `denoised_mdp.envs.distractors`. Its noise advances
once per inner step, before the physics, because rewards may depend on it. A distractor only tells the wrapped RoboDesk
environment what to show. It never touches the physics.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import numpy as np

from denoised_mdp.envs.distractors import Distractor, SmoothWalk
from denoised_mdp.envs.distractors.base import MOST
from denoised_mdp.options import option

COLORS = ("red", "green", "blue")

LAMP_PLACES = np.array([[-1.0, -1.0, 1.0], [1.0, -1.0, 1.0], [0.0, 1.0, 1.0]])
LAMP_LIGHT = 0.3  # brightness of each lamp without noise
HEADLIGHT, BRIGHT_HEADLIGHT = 0.4, 0.9  # brightness of the light at the camera, without and with noise


@dataclass(frozen=True)
class Lights:
    """Three directional lights, and the light at the camera.

    Attributes:
        places: positions of the directional lights [3, 3]; they point at the origin.
        diffuse: their brightness [3].
        headlight: brightness of the light at the camera.
    """

    places: np.ndarray
    diffuse: np.ndarray
    headlight: float


STILL_LIGHTING = Lights(LAMP_PLACES, np.full(3, LAMP_LIGHT), HEADLIGHT)


class SceneDistractor(Distractor):
    """Base class; a subclass defines `_start`, `_advance` and `_restore` for its noise, and `_show`."""

    suites = ("robodesk",)

    def step(self, action):
        """Advance the noise, then step the environment, whose reward may depend on it."""
        self._advance_noise()
        return self.env.step(action)

    def _reset_noise(self) -> None:
        self._start()
        self._show()

    def _advance_noise(self) -> None:
        self._advance()
        self._show()

    def _set_noise(self, noise: dict) -> None:
        self._restore(noise)
        self._show()


class ButtonNoise(SceneDistractor):
    """Makes the sensors of the three buttons drift and jitter; lamps and television follow the sensors.

    Without it, the sensors are exact, and a lamp is lit only while its button is pressed.
    """

    name = "button_noise"
    needs = ("sensor_error",)
    slow, fast = 0.295, 0.0125  # sizes of drift and jitter, in button travels
    memory = np.sqrt(0.96)

    @dataclass
    class Options:
        """Options of the distractor."""

        strength: float = option(1.0, "scale of the errors; 0: none", low=0, high=MOST)

    def __init__(self, env: gym.Env, **options: Any):
        super().__init__(env, COLORS, options)
        self._drift, self._error = np.zeros(3), np.zeros(3)

    def noise_values(self):
        """Return the errors of the red, green and blue sensors, in button travels."""
        return self.options.strength * self._error

    def _start(self) -> None:
        self._drift = self.rng.normal(size=3)
        self._measure()

    def _advance(self) -> None:
        self._drift = self.memory * self._drift + (1 - self.memory) * self.rng.normal(size=3)
        self._measure()

    def _measure(self) -> None:
        self._error = self.slow * self._drift + self.fast * self.rng.normal(size=3)

    def _show(self) -> None:
        self.unwrapped.sensor_error = self.noise_values() if self.options.strength else None

    def _get_noise(self) -> dict:
        return {"drift": self._drift.copy(), "error": self._error.copy()}

    def _restore(self, noise: dict) -> None:
        self._drift, self._error = noise["drift"].copy(), noise["error"].copy()


class MovingLights(SceneDistractor):
    """Makes the three lights swing in circles and flicker, and brightens the light at the camera."""

    name = "moving_lights"
    needs = ("lighting", "room")
    scales = ("swing", "flicker")
    reach = np.array([0.5, 0.707, 1.0])
    pace = np.sqrt([5, 1, 1 / 3]) / 30  # mean radians per step
    frequency = np.sqrt([1, 8, 28]) / 15
    share = 0.7  # of flicker and swing that remains without a television

    @dataclass
    class Options:
        """Options of the distractor."""

        swing: float = option(1.0, "scale of the lights' circles; 0: they stand still", low=0, high=MOST)
        flicker: float = option(1.0, "scale of the changes of brightness; 0: steady light", low=0, high=MOST)

    def __init__(self, env: gym.Env, **options: Any):
        factors = tuple(f"light_{k}/{what}" for k in range(3) for what in ("x", "y", "brightness"))
        super().__init__(env, factors, options)
        self._share = 1.0 if env.unwrapped.room else self.share
        self._angle, self._phase, self._glow, self._time = np.zeros(3), np.zeros(3), np.zeros(3), 0

    def places(self) -> np.ndarray:
        """Return the positions of the lights [3, 3]."""
        radius = self._share * self.options.swing * self.reach  # [3]
        places = LAMP_PLACES.copy()
        places[:, 0] += radius * np.sin(self._angle)
        places[:, 1] += radius * np.cos(self._angle)
        return places

    def diffuse(self) -> np.ndarray:
        """Return the brightness of the lights [3], which falls off with distance."""
        falloff = (LAMP_PLACES**2).sum(1) / (self.places() ** 2).sum(1)
        noisy = self._share * self._glow * falloff + (1 - self._share) * LAMP_LIGHT  # [3]
        return np.maximum(LAMP_LIGHT + self.options.flicker * (noisy - LAMP_LIGHT), 0.0)

    def noise_values(self):
        """Return x, y and brightness of each light."""
        return np.column_stack([self.places()[:, :2], self.diffuse()]).ravel()

    def _start(self) -> None:
        self._angle, self._phase = self.rng.normal(size=(2, 3))
        self._time = 0
        self._glow = self._draw_glow()

    def _advance(self) -> None:
        self._angle = (self._angle + np.clip(self.rng.normal(self.pace, self.pace / 2), 0.0, 0.8)) % (2 * np.pi)
        self._time += 1
        self._glow = self._draw_glow()

    def _draw_glow(self) -> np.ndarray:
        mean = 0.3 * np.sin(self._phase + self._time * self.frequency) - 0.15
        return np.clip(self.rng.normal(mean, 0.15), 0.0, 1.0)

    def _show(self) -> None:
        headlight = HEADLIGHT + self.options.flicker * (BRIGHT_HEADLIGHT - HEADLIGHT)
        self.unwrapped.lighting = Lights(self.places(), self.diffuse(), headlight)

    def _get_noise(self) -> dict:
        arrays = {"angle": self._angle, "phase": self._phase, "glow": self._glow}
        return {name: array.copy() for name, array in arrays.items()} | {"time": self._time}

    def _restore(self, noise: dict) -> None:
        self._angle, self._phase, self._glow = (noise[name].copy() for name in ("angle", "phase", "glow"))
        self._time = noise["time"]


class CameraShake(SceneDistractor):
    """Makes the camera and its target wander: the camera by W(3, 0.3) metres, the target by W(3, 0.65) metres."""

    name = "camera_shake"
    needs = ("camera_shift",)

    @dataclass
    class Options:
        """Options of the distractor."""

        strength: float = option(1.0, "scale of the movement; 0: none", low=0, high=MOST)

    def __init__(self, env: gym.Env, **options: Any):
        super().__init__(env, tuple(f"{what}_{axis}" for what in ("eye", "target") for axis in "xyz"), options)
        strength = self.options.strength
        self._walks = SmoothWalk(3, 0.3 * strength), SmoothWalk(3, 0.65 * strength)

    def noise_values(self):
        """Return the shifts of the camera and of its target, in metres."""
        return np.concatenate([walk.value() for walk in self._walks])

    def _start(self) -> None:
        for walk in self._walks:
            walk.reset(self.rng)

    def _advance(self) -> None:
        for walk in self._walks:
            walk.step(self.rng)

    def _show(self) -> None:
        self.unwrapped.camera_shift = tuple(walk.value() for walk in self._walks)

    def _get_noise(self) -> dict:
        return {
            "position": np.stack([walk.position for walk in self._walks]),
            "velocity": np.stack([walk.velocity for walk in self._walks]),
        }

    def _restore(self, noise: dict) -> None:
        for walk, position, velocity in zip(self._walks, noise["position"], noise["velocity"], strict=True):
            walk.position, walk.velocity = position.copy(), velocity.copy()
