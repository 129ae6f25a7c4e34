"""Distractors as composable Gymnasium wrappers: those of Wang et al. 2022, and others common in the field.

Each wrapper advances its own noise once per inner step with its own generator, and transforms the wrapped
environment's `frame()`. Nothing is drawn until a frame is requested. The order is fixed: changes to the scene, the
background video, the sensor that reads it, and last the shaking camera that films everything.
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
