"""Distractors that change how the scene is drawn, not what happens in it: colours, lights, camera pose.

They alter MuJoCo's abstract scene (`mjvScene`) after it has been built for a frame. They never touch the model, so
the physics is unaffected.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import numpy as np

from denoised_mdp.envs.distractors.base import MOST, SmoothWalk, WalkingDistractor
from denoised_mdp.options import option


class Appearance(WalkingDistractor):
    """Base class: factors that wander smoothly around zero, and a method that applies them to the scene.

    A subclass defines `dress` and `factors`, a mapping of names to the initial root mean square at strength 1.
    The environment has a `stage`, a list of functions that its renderer calls with each scene.
    """

    suites = ("dmc",)
    needs = ("stage",)
    factors: dict[str, float]

    def __init__(self, env: gym.Env, **options: Any):
        super().__init__(env, tuple(self.factors), options)
        scale = self.options.strength * np.sqrt(len(self.factors)) / SmoothWalk.radius
        self._walk = SmoothWalk(len(self.factors), scale)

    def dress(self, scene, model, data) -> None:
        """Change a `mujoco.MjvScene` that has just been built from a `mujoco.MjModel` and its data."""
        raise NotImplementedError

    def frame(self) -> np.ndarray:
        """Draw the changed scene, uint8 [H, W, 3]."""
        with self._on_stage():
            return self.env.frame()

    def frame_and_background(self, matte: str = "matte"):
        """Draw the changed scene on black and return the background's share, see `Renderer.frame_and_background`."""
        with self._on_stage():
            return self.env.frame_and_background(matte)

    def foreground(self) -> np.ndarray:
        """Draw the changed scene on black, see `World.foreground`."""
        with self._on_stage():
            return self.env.foreground()

    def noise_values(self):
        """Return the factors, float64 [len(factors)]."""
        return super().noise_values() * np.array(list(self.factors.values()))

    @contextlib.contextmanager
    def _on_stage(self):
        stage = self.env.unwrapped.stage
        stage.append(self.dress)
        try:
            yield
        finally:
            stage.remove(self.dress)


class BodyColor(Appearance):
    """Shifts the red, green and blue of everything that can move, clipped to [0, 1].

    This covers skins, tendons, and the geoms and sites of moving bodies. Targets and other objects fixed to the world
    keep their colours.
    """

    name = "body_color"
    factors = {"red": 0.2, "green": 0.2, "blue": 0.2}

    @dataclass
    class Options:
        """Options of the distractor."""

        strength: float = option(
            1.0, "scale of the shift; 1: about 0.2 of the range per channel; 0: none", low=0, high=MOST
        )
        dynamic: bool = option(True, "true: it changes all the time; false: it is drawn once per episode")

    def dress(self, scene, model, data) -> None:
        """Shift the colours of everything that moves."""
        shift = self.noise_values()
        geom, site, skin, tendon = 5, 6, 11, 18  # of mjtObj
        moving = model.body_weldid != 0  # [bodies]
        moves = {geom: moving[model.geom_bodyid], site: moving[model.site_bodyid]}  # [geoms], [sites]
        for index in range(scene.ngeom):
            drawn = scene.geoms[index]
            kind = drawn.objtype
            if kind in (skin, tendon) or (kind in moves and moves[kind][drawn.objid]):
                drawn.rgba[:3] = np.clip(drawn.rgba[:3] + shift, 0, 1)


class Lighting(Appearance):
    """Changes all lights: brightness (log gain), warmth (red up, blue down) and position.

    The lamps swing about their target by `swing_x` and `swing_y`, as fractions of their height. The camera's headlight
    does not swing.
    """

    name = "lighting"
    factors = {"brightness": 0.25, "warmth": 0.15, "swing_x": 0.5, "swing_y": 0.5}

    @dataclass
    class Options:
        """Options of the distractor."""

        strength: float = option(
            1.0, "scale of the changes; 1: brightness by about a quarter; 0: none", low=0, high=MOST
        )
        dynamic: bool = option(True, "true: they change all the time; false: they are drawn once per episode")

    def dress(self, scene, model, data) -> None:
        """Change the scene's lights."""
        brightness, warmth, *swing = self.noise_values()
        gain = np.exp(brightness + warmth * np.array([1.0, 0.0, -1.0]))
        for index in range(scene.nlight):
            light = scene.lights[index]
            for part in (light.ambient, light.diffuse, light.specular):
                part[:] = part * gain
            if not light.headlight:
                direction = light.dir / max(abs(float(light.dir[2])), 0.1)  # of unit height
                direction[:2] -= swing
                light.dir[:] = direction / np.linalg.norm(direction)
                light.pos[:2] += abs(float(light.pos[2])) * np.array(swing)


class CameraPose(Appearance):
    """Moves the camera around its target: azimuth, elevation and roll [rad], and log distance.

    Unlike `CameraJitter`, which shifts the finished picture, it moves the camera in space, which causes parallax
    between background and foreground. A video background does not move.
    """

    name = "camera_pose"
    factors = {"azimuth": 0.15, "elevation": 0.1, "roll": 0.1, "distance": 0.1}

    @dataclass
    class Options:
        """Options of the distractor."""

        strength: float = option(
            1.0,
            "scale of the movement; 1: about 9 degrees of azimuth, 6 of elevation and roll; 0: none",
            low=0,
            high=MOST,
        )
        dynamic: bool = option(True, "true: it moves all the time; false: it is placed once per episode")

    def dress(self, scene, model, data) -> None:
        """Change the scene's camera, and move the headlight with it."""
        azimuth, elevation, roll, distance = self.noise_values()
        for index in range(2):  # the two eyes of stereo vision; MuJoCo averages them
            camera = scene.camera[index]
            forward, up = camera.forward.astype(float), camera.up.astype(float)
            depth = float(forward @ (data.subtree_com[0] - camera.pos))
            if depth < 0.05 * model.stat.extent:  # no target in front of the camera
                depth = model.stat.extent
            pivot = camera.pos + depth * forward
            turn = rotation(np.array([0.0, 0.0, 1.0]), azimuth)
            forward, up = turn @ forward, turn @ up
            lift = rotation(np.cross(forward, up), -elevation)
            forward, up = lift @ forward, lift @ up
            up = rotation(forward, roll) @ up
            camera.pos[:] = pivot - np.exp(distance) * depth * forward
            camera.forward[:], camera.up[:] = forward, up
        for index in range(scene.nlight):
            if scene.lights[index].headlight:
                scene.lights[index].pos[:] = scene.camera[0].pos
                scene.lights[index].dir[:] = scene.camera[0].forward


def rotation(axis: np.ndarray, angle: float) -> np.ndarray:
    """Return the matrix [3, 3] of a rotation by `angle` [rad] about `axis` [3], by Rodrigues' formula."""
    x, y, z = axis / np.linalg.norm(axis)
    cross = np.array([[0, -z, y], [z, 0, -x], [-y, x, 0]])
    return np.eye(3) + np.sin(angle) * cross + (1 - np.cos(angle)) * cross @ cross
