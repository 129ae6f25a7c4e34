"""A reward sensor that the background disturbs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import gymnasium as gym

from denoised_mdp.envs.distractors.base import MOST, Distractor
from denoised_mdp.envs.distractors.video_background import VideoBackground
from denoised_mdp.errors import UserError
from denoised_mdp.options import option


class NoisySensor(Distractor):
    """Couples the reward to the background, whose brightness shifts the sensor that the reward reads.

    The offset is strength * opacity * (mean / 255 - 0.5). The mean is over rows and columns H/8 to 3H/8 of the video
    frame shown before the step, including pixels that the scene hides. A video of opacity 0 disturbs nothing. The task
    defines how far a unit offset shifts its sensor (Wang et al. 2022).

    The wrapped environment is a task with a scalar sensor inside a `VideoBackground`.

    Raises:
        UserError: there is no video underneath, or the task has no sensor.
    """

    name = "noisy_sensor"
    suites = ("dmc",)

    @dataclass
    class Options:
        """Options of the distractor."""

        strength: float = option(1.0, "scale of the disturbance; 0: none", low=0, high=MOST)

    def __init__(self, env: gym.Env, **options: Any):
        super().__init__(env, ("offset",), options)
        self._video = env
        while not isinstance(self._video, VideoBackground):
            if not isinstance(self._video, gym.Wrapper):
                raise UserError("Distractor noisy_sensor reads the background video: add video_background as well.")
            self._video = self._video.env
        if not getattr(env.unwrapped, "has_reward_sensor", False):
            raise UserError("Distractor noisy_sensor needs a task whose reward has a scalar sensor.")

    def step(self, action):
        """Step with the sensor shifted by the offset of the current frame."""
        world = self.env.unwrapped
        world.reward_sensor_offset = self.offset()
        try:
            return super().step(action)
        finally:
            world.reward_sensor_offset = 0.0  # it belongs to this step, not to the world's state

    @property
    def scale(self) -> float:
        """Strength times the video's opacity; if 0, the reward does not depend on the video."""
        return self.options.strength * self._video.options.strength

    def offset(self) -> float:
        """Return the sensor offset of the next reward, from the frame shown now."""
        patch = slice(self.size // 8, 3 * self.size // 8)
        return self.scale * (float(self._video.background()[patch, patch].mean()) / 255 - 0.5)

    def noise_values(self):
        """Return the offset."""
        return [self.offset()]
