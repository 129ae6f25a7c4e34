"""RoboDesk (Kannan et al. 2021) with the television of Wang et al. 2022, as a Gymnasium environment.

A Franka arm at a desk with a drawer, a sliding door, three buttons with lamps, and blocks. It runs on current
MuJoCo and uses only the model files of the package `robodesk`. Distractors are in `envs.robodesk.distractors`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

import gymnasium as gym
import numpy as np

from denoised_mdp.envs.factors import RELEVANT_NOISE
from denoised_mdp.envs.joints import Joint, coordinate_names, joint_kinds, visible_joints
from denoised_mdp.envs.rendering import QUALITIES  # first of the mujoco imports: it chooses the GL backend
from denoised_mdp.envs.robodesk.arm import ACTIONS, Arm
from denoised_mdp.envs.robodesk.camera import ROOM, RoomRenderer, choose_view
from denoised_mdp.envs.robodesk.distractors import COLORS, STILL_LIGHTING
from denoised_mdp.envs.robodesk.scene import (
    ARM,
    BUTTON_TRAVEL,
    FINGERS,
    TV_PIXELS,
    TV_TEXTURE,
    build_model,
    lamp_geoms,
    place_anywhere,
    refuse_divergence,
    wood_brightness,
    wood_geoms,
)
from denoised_mdp.envs.robodesk.tasks import BLOCKS, PRESSED, REWARDS, Situation, find_task
from denoised_mdp.envs.robodesk.tv import GRAY
from denoised_mdp.envs.suites import tasks
from denoised_mdp.envs.world import World
from denoised_mdp.errors import UserError, did_you_mean
from denoised_mdp.seeding import generator, generator_state, restore_generator

import mujoco  # isort: skip

SUBSTEPS = 10  # physics steps of 2 ms
HUE_GAIN = 0.75
CONTROLLABLE = "controllable, irrelevant"
_STATE = mujoco.mjtState.mjSTATE_INTEGRATION
_SHARED = int(_STATE) & ~int(mujoco.mjtState.mjSTATE_XFRC_APPLIED)  # the same size with and without a television


def make_robodesk(task: str, *, distractors: Collection[str], **options: Any) -> RoboDeskEnv:
    """Make the world of a task of suite "robodesk", with a television if "tv" is one of the distractors."""
    return RoboDeskEnv(task, television="tv" in distractors, **options)


class RoboDeskEnv(World, gym.utils.EzPickle):
    """One task of RoboDesk; a step is one control step of 20 ms.

    Actions are float32 [5] in [-1, 1]: motion of the hand along x, y, z (at most a centimetre), motion of the wrist,
    and the gripper's opening. The observation is the ground-truth signal, float32 [S]: joint positions and velocities,
    the hand's position, and how far the button has changed the television's colour (names in `signal_names`).

    Distractors may set `sensor_error` [3] of the buttons' sensors (in button travels; None: exact), `lighting`, and
    `camera_shift` (of the camera and of its target, metres). `show_on_tv` puts a picture on the television. None of
    this affects the physics; the sensors and the picture affect the reward of the television tasks.

    Args:
        task: one of ``tasks("robodesk")``.
        reward: "dense", "sparse" (1 in every step in which the task is solved) or "success" (1 once). Television
            tasks have no solved state: with the last two, their reward is only the colour of the picture.
        size: height and width of a frame in pixels.
        episode_steps: steps after which an episode is truncated.
        camera: 0 or "auto" (the room if there is a television, else the desk), 1 or "desk", 2 or "room".
        quality: "fast" or "faithful", see `build_model` and `Renderer`.
        television: whether to add the television and the neighbouring desks; television tasks always have them.

    Raises:
        UserError: there is no such task, reward, camera or quality, or the package `robodesk` is not installed.
    """

    metadata = {**World.metadata, "render_fps": 50}

    def __init__(
        self,
        task: str,
        reward: str = "dense",
        size: int = 96,
        episode_steps: int = 1000,
        camera: int | str = 0,
        quality: str = "fast",
        television: bool = False,
    ):
        gym.utils.EzPickle.__init__(self, task, reward, size, episode_steps, camera, quality, television)
        for what, word, known in (
            ("task", task, tasks("robodesk")),
            ("reward", reward, REWARDS),
            ("render quality", quality, QUALITIES),
        ):
            if word not in known:
                raise UserError(f"Unknown {what} {word!r}.{did_you_mean(word, known)}")
        self.task_name, self.size, self.episode_steps = task, size, episode_steps
        self._task, self._reward = find_task(task), reward
        self._channel = 1 if self._task.channel is None else self._task.channel  # the one that a button changes
        self.room = television or self._task.channel is not None
        view = choose_view(camera, self.room)
        self._look = size, view, quality
        self.shows_television = self.room and view is ROOM
        """whether the camera sees it; the desk's sees a sliver at most, which does not count"""

        self._model = build_model(self.room, quality)
        self._data = mujoco.MjData(self._model)
        self._arm = Arm(self._model)
        # Everything that depends on a button reads the joint of its lamp, to which the button is softly coupled.
        self._lights = [self._model.joint(f"{color}_light").qposadr[0] for color in COLORS]
        self._lamps = lamp_geoms(self._model)
        self._wood = wood_geoms(self._model) if quality == "fast" else []
        self._hand = self._model.site("end_effector").id
        self._places = {
            "drawer": self._data.geom("drawer_handle").xpos,
            "slide": self._data.site("slide_handle").xpos,
            **{name: self._data.body(name).xpos for name in (*BLOCKS, *(f"{color}_button" for color in COLORS))},
        }
        self._joints = {
            name: self._model.joint(name).qposadr[0]
            for name in ("drawer_joint", "slide_joint", *(f"{color}_light" for color in COLORS))
        }
        self.action_space = gym.spaces.Box(-1.0, 1.0, (len(ACTIONS),), np.float32)
        hand = [f"end_effector/{axis}" for axis in "xyz"]
        self.signal_names = (*coordinate_names(self._model), *hand, f"hue/{COLORS[self._channel]}")
        self.observation_space = gym.spaces.Box(-np.inf, np.inf, (len(self.signal_names),), np.float32)

        self.sensor_error: np.ndarray | None = None
        self.show_on_tv(lambda: np.full((*TV_PIXELS, 3), GRAY, np.uint8))
        self.lighting = STILL_LIGHTING
        self.camera_shift = np.zeros(3), np.zeros(3)

        self.stage: list = []  # functions of (scene, model, data) that change each scene before it is drawn
        self._rng: np.random.Generator | None = None
        self._start = {block: np.zeros(3) for block in BLOCKS}
        self._steps, self._solved = 0, False

    def reset(self, *, seed: int | None = None, options: dict | None = None):
        """Start an episode; `seed` restarts the random stream, which otherwise continues."""
        super().reset(seed=seed)
        if seed is not None or self._rng is None:
            self._rng = generator(seed, "physics")
        model, data = self._model, self._data
        mujoco.mj_resetData(model, data)
        place_anywhere(model, data, self._rng)
        mujoco.mj_forward(model, data)
        self._start = {block: self._places[block].copy() for block in BLOCKS}
        self._steps, self._solved = 0, False
        return self.signal(), {}

    def step(self, action: np.ndarray):
        """Apply `action` [5] in [-1, 1] for one control step."""
        model, data = self._model, self._data
        data.ctrl[:9] = self._arm.targets(data, np.asarray(action, np.float64))
        for _ in range(SUBSTEPS):
            data.qfrc_applied[:9] = data.qfrc_bias[:9]  # gravity compensation for the arm
            mujoco.mj_step2(model, data)
            mujoco.mj_step1(model, data)
        refuse_divergence(data, self.task_name)
        self._steps += 1
        return self.signal(), self._earn(), False, self._steps >= self.episode_steps, {}

    def signal(self) -> np.ndarray:
        """Return the true state, float32 [S], see `signal_names`."""
        data = self._data
        hue = self._hue(self._travel())
        return np.concatenate([data.qpos, data.qvel, data.site_xpos[self._hand], [hue]]).astype(np.float32)

    @property
    def signal_kinds(self) -> tuple[str, ...]:
        """How a camera sees each number of the signal, see `denoised_mdp.envs.factors`."""
        hue = "scalar" if self.shows_television else "unseen"  # the hue is part of the television's picture
        return (*joint_kinds(self._model, 0), *["scalar"] * 3, hue)

    @property
    def joints(self) -> tuple[Joint, ...]:
        """The nine joints of arm and fingers; their columns index the signal."""
        return visible_joints(self._model, 0, (*ARM, *FINGERS))

    @property
    def quadrants(self) -> dict[str, str]:
        """Exceptions to "signal is relevant, noise is not", see `denoised_mdp.envs.factors`."""
        joints = [self._model.joint(index).name for index in range(self._model.njnt)]
        irrelevant = [name for name in joints if name not in (*ARM, *FINGERS, *self._task.relevant(self._reward))]
        found = {f"q{kind}/{name}*": CONTROLLABLE for name in irrelevant for kind in ("pos", "vel")}
        if self._task.channel is None:
            return found | {"hue/*": CONTROLLABLE}
        return found | {"tv/*": RELEVANT_NOISE, f"button_noise/{COLORS[self._channel]}": RELEVANT_NOISE}

    def sensors(self) -> np.ndarray:
        """Return the readings of the three button sensors [3]: 0 up, 1 down, plus their error."""
        return self._travel() if self.sensor_error is None else self._travel() + self.sensor_error

    def show_on_tv(self, draw: Callable[[], np.ndarray]) -> None:
        """Put another picture on the television, uint8 [60, 120, 3]; `draw` makes it when it is first needed."""
        self._draw, self._picture = draw, None

    @property
    def picture(self) -> np.ndarray:
        """The television's picture before the buttons change its colour, uint8 [60, 120, 3]."""
        if self._picture is None:
            self._picture = self._draw()
        return self._picture

    def screen(self) -> np.ndarray:
        """Return the television's picture, coloured by the buttons, uint8 [60, 120, 3]."""
        hue = self._hue(self.sensors())
        screen = self.picture.copy()
        screen[..., self._channel] = np.rint(self.picture[..., self._channel] * (1 - hue) + 255 * hue)
        return screen

    def frame(self) -> np.ndarray:
        """Draw the current state, uint8 [H, W, 3]; advances nothing."""
        renderer = self.renderer()
        self._show_lamps()
        self._show_lighting()
        if self.room:
            enlarged = self.screen().repeat(TV_TEXTURE[0] // TV_PIXELS[0], 0)  # uint8 [120, 120, 3]
            renderer.upload_picture(self._model.texture("tv").id, enlarged)
        return renderer.film(self._data, *self.camera_shift)

    def get_state(self, parts: int = _STATE) -> dict:
        """Return the complete state, without distractors, as a tree of arrays and numbers; it is exact at any step."""
        integration = np.empty(mujoco.mj_stateSize(self._model, parts))
        mujoco.mj_getState(self._model, self._data, integration, parts)
        return {
            "integration": integration,
            "random": generator_state(self._rng),
            "start": {block: place.copy() for block, place in self._start.items()},
            "steps": self._steps,
            "solved": self._solved,
        }

    def get_physics_state(self) -> dict:
        """Return the state without forces on bodies, which are zero; it fits worlds with and without a television."""
        return self.get_state(_SHARED)

    def set_physics_state(self, state: dict) -> None:
        """Continue where `get_physics_state` was taken."""
        self.set_state(state, _SHARED)

    def set_state(self, state: dict, parts: int = _STATE) -> None:
        """Continue exactly where `get_state` was taken, in this environment or an equal one."""
        mujoco.mj_setState(self._model, self._data, state["integration"], parts)
        mujoco.mj_step1(self._model, self._data)  # as after a step: update what depends on positions and velocities
        self._rng = restore_generator(state["random"])
        self._start = {block: place.copy() for block, place in state["start"].items()}
        self._steps, self._solved = state["steps"], state["solved"]

    def make_renderer(self) -> RoomRenderer:
        """Make the renderer for the task's camera."""
        return RoomRenderer(self._model, *self._look, stage=self.stage)

    def situation(self) -> Situation:
        """Return the current state as the reward sees it."""
        screen = self.screen().mean(0).mean(0) / 255 if self._task.channel is not None else np.full(3, np.nan)  # [3]
        joints = {name: float(self._data.qpos[address]) for name, address in self._joints.items()}
        return Situation(self._data.site_xpos[self._hand], self._places, self._start, joints, screen)

    def _earn(self) -> float:
        """Return the reward of the step just taken."""
        value = self._task.reward(self.situation(), self._reward)
        if self._reward == "success" and self._task.channel is None:
            value, self._solved = (0.0 if self._solved else value), self._solved or value > 0
        return value

    def _travel(self) -> np.ndarray:
        """Return the true travel of the buttons [3]: 0 up, 1 or more down."""
        return -self._data.qpos[self._lights] / BUTTON_TRAVEL

    def _hue(self, sensors: np.ndarray) -> float:
        """Return the share of the button's colour on the television, 0 to 1, for readings [3]."""
        return float(np.clip(HUE_GAIN * sensors[self._channel], 0.0, 1.0))

    def _show_lamps(self) -> None:
        """Light the desk's lamps in their colours, or cover them in gray, according to the sensors."""
        if self.sensor_error is None:
            glow = 0.4 * (self._data.qpos[self._lights] < PRESSED)  # [3]
        else:
            glow = np.clip(6 * (self.sensors() - 0.12) + 0.4, -1.0, 1.0)  # [3]
        colors = np.where(glow[:, None] > 0, np.eye(3), 0.3)  # [3, 3]
        self._model.geom_rgba[self._lamps] = np.column_stack([colors, np.abs(glow)])

    def _show_lighting(self) -> None:
        """Set brightness and direction of all lights; the next physics step overwrites the directions."""
        model, data, light = self._model, self._data, self.lighting
        model.light_diffuse[:] = light.diffuse[:, None]
        data.light_xpos[:] = light.places
        data.light_xdir[:] = -light.places / np.linalg.norm(light.places, axis=1, keepdims=True)
        if len(self._wood):
            brightness = wood_brightness(light.headlight, light.diffuse, light.places)
            model.geom_rgba[self._wood, :3] = brightness
        model.vis.headlight.ambient[:] = light.headlight / 4
        model.vis.headlight.diffuse[:] = light.headlight
        model.vis.headlight.specular[:] = 0.8 * light.headlight + 0.18
