"""Distractors as composable Gymnasium wrappers: those of Wang et al. 2022, and others that the field uses.

Each wrapper advances its own noise once per inner step from its own generator and transforms the wrapped
environment's `frame()`; nothing is drawn until somebody asks for a frame. The order is fixed: what changes the
scene itself, the background video, then the sensor that reads it, then the shaking camera that films all of it.
"""

from denoised_mdp.envs.distractors.appearance import BodyColor, CameraPose, Lighting
from denoised_mdp.envs.distractors.base import Distractor, SmoothWalk
from denoised_mdp.envs.distractors.camera_jitter import CameraJitter, translate
from denoised_mdp.envs.distractors.noisy_sensor import NoisySensor
from denoised_mdp.envs.distractors.video_background import VideoBackground

__all__ = [
    "BodyColor",
    "CameraJitter",
    "CameraPose",
    "Distractor",
    "Lighting",
    "NoisySensor",
    "SmoothWalk",
    "VideoBackground",
    "translate",
]
