"""DeepMind Control tasks as a Gymnasium environment that renders frames and saves its complete state."""

from __future__ import annotations

import contextlib

import gymnasium as gym
import numpy as np
from absl import logging

from denoised_mdp.envs.factors import RELEVANT_NOISE
from denoised_mdp.envs.gl import close_first_at_exit
from denoised_mdp.envs.joints import Joint, coordinate_names, hides_place, joint_kinds, visible_joints
from denoised_mdp.envs.rendering import Renderer, check_view, gl_errors  # first: it chooses the GL backend
from denoised_mdp.envs.sensors import SENSORS
from denoised_mdp.envs.world import World, diverged
from denoised_mdp.errors import UserError, did_you_mean
from denoised_mdp.seeding import generator

import mujoco  # isort: skip

with gl_errors():
    from dm_control import suite
from dm_control.rl import control

close_first_at_exit()  # the import has registered an exit handler that ends dm_control's own display

# Fields of the compiled model that the start of an episode changes in at least one task.
EPISODE_FIELDS = (
    "body_pos",
    "body_quat",
    "dof_damping",
    "geom_pos",
    "geom_rgba",
    "geom_size",
    "hfield_data",
    "light_pos",
    "site_pos",
    "site_rgba",
    "site_size",
    "wrap_prm",
)
# Goals that belong to the task's state but to no joint: domain or task -> (kind of object, its name).
TARGETS = {
    "finger_turn_easy": ("site", "target"),
    "finger_turn_hard": ("site", "target"),
    "fish_swim": ("geom", "target"),
    "reacher": ("geom", "target"),
    "manipulator_bring_ball": ("body", "target_ball"),
    "manipulator_bring_peg": ("body", "target_peg"),
    "manipulator_insert_ball": ("body", "target_ball"),
    "manipulator_insert_peg": ("body", "target_peg"),
    "stacker": ("body", "target"),
    "swimmer": ("geom", "target"),
}
_STATE = mujoco.mjtState.mjSTATE_INTEGRATION


class DMCEnv(World, gym.utils.EzPickle):
    """One task of the DeepMind Control Suite; a step is one control step of the task.

    The observation is the ground-truth signal, float32 [S]: joint positions, joint velocities, actuator
    activations if there are any, and what the task draws at the start of an episode: the goal's position (and angle)
    and the actuator mixing (names in `signal_names`; the terrain of quadruped_escape is left out). Pixels come from
    `frame()`, which is never called here. Actions are float32 [A] in [-1, 1], rescaled to the task's own bounds.

    `reward_sensor_offset` shifts the scalar sensor of the task's reward (see `denoised_mdp.envs.sensors`) while the
    reward is computed, and changes nothing else. At 0, its value between steps, the reward is exactly dm_control's.

    Args:
        task: 'domain_task', e.g. 'cheetah_run'.
        size: height and width of a frame in pixels.
        episode_steps: steps after which an episode is truncated.
        camera: index or name of the camera.
        quality: "fast" or "faithful", see `Renderer`.

    Raises:
        UserError: unknown task, camera or quality.
    """

    def __init__(
        self, task: str, size: int = 64, episode_steps: int = 1000, camera: int | str = 0, quality: str = "fast"
    ):
        gym.utils.EzPickle.__init__(self, task, size, episode_steps, camera, quality)
        names = {"_".join(pair): pair for pair in suite.ALL_TASKS}
        if task not in names:
            raise UserError(f"Unknown task {task!r}.{did_you_mean(task, names)}")
        self.task_name, self.size, self.episode_steps = task, size, episode_steps
        self._domain, name = names[task]
        # LQR models are drawn at random when loaded; a fixed seed makes them all the same.
        with _quiet():
            environment = suite.load(self._domain, name, task_kwargs={"random": 0})
        self._physics, self._task = environment.physics, environment.task
        check_view(self._physics.model.ptr, camera, quality)
        self.can_terminate = type(self._task).get_termination is not control.Task.get_termination  # LQR
        self._substeps = round(environment.control_timestep() / environment.physics.timestep())
        self.metadata = {**self.metadata, "render_fps": round(1 / environment.control_timestep())}

        bounds = environment.action_spec()
        low, high = bounds.minimum, bounds.maximum
        unbounded = high - low > 1e6  # LQR
        self._action_center = np.where(unbounded, 0.0, (low + high) / 2)
        self._action_scale = np.where(unbounded, 1.0, (high - low) / 2)
        self.action_space = gym.spaces.Box(-1.0, 1.0, bounds.shape, np.float32)
        self._target = TARGETS.get(task) or TARGETS.get(self._domain)
        # the angle of a peg, or of the slot of an insertion task; a ball looks the same at every angle
        self._has_target_angle = self._domain == "manipulator" and name != "bring_ball"
        self._mixes = task == "point_mass_hard"
        self.signal_names = self._name_signal()
        self.observation_space = gym.spaces.Box(-np.inf, np.inf, (len(self.signal_names),), np.float32)
        self.reward_sensor_offset = 0.0
        self._look = (size, size, camera, quality)
        self.stage: list = []  # functions of (scene, model, data) that change each scene before it is drawn
        self._steps: int | None = None  # in this episode; None before the first reset

    @property
    def has_reward_sensor(self) -> bool:
        """Whether `reward_sensor_offset` has an effect on this task."""
        return self.task_name in SENSORS

    @property
    def signal_kinds(self) -> tuple[str, ...]:
        """The kind of each number of the signal as the camera sees it, see `denoised_mdp.envs.factors`."""
        model, camera = self._physics.model.ptr, self._look[2]
        kinds = joint_kinds(model, camera)
        others = {"act": "unseen", "mixing": "unseen", "target/angle": "angle"}
        if hides_place(model, camera):  # the picture shows the goal relative to the body, not its place
            others |= {"target/x": "unseen", "target/y": "unseen"}
        rest = (others.get(name) or others.get(name.split("/")[0]) for name in self.signal_names[len(kinds) :])
        return (*kinds, *(kind or "scalar" for kind in rest))

    @property
    def joints(self) -> tuple[Joint, ...]:
        """The joint positions that the camera sees; their columns index the signal."""
        return visible_joints(self._physics.model.ptr, self._look[2])

    @property
    def quadrants(self) -> dict[str, str]:
        """The quadrants of the signal's numbers that the agent does not control, see `denoised_mdp.envs.factors`."""
        return {"target/*": RELEVANT_NOISE, "mixing/*": RELEVANT_NOISE}

    def reset(self, *, seed: int | None = None, options: dict | None = None):
        """Start an episode; `seed` restarts the task's random stream, which otherwise continues."""
        super().reset(seed=seed)
        if seed is not None or self._steps is None:
            self._task.random.seed(generator(seed, "physics").integers(2**32, size=8, dtype=np.uint32))
        self._steps = 0
        self.reward_sensor_offset = 0.0
        with self._physics.reset_context(), self._without_rendering():
            self._task.initialize_episode(self._physics)
        if self._renderer:
            self._renderer.upload_terrain()
        return self.signal(), {}

    def step(self, action: np.ndarray):
        """Apply `action` [A] in [-1, 1] for one control step."""
        action = self._action_center + self._action_scale * np.asarray(action, np.float64)
        self._task.before_step(action, self._physics)
        try:
            self._physics.step(self._substeps)
        except control.PhysicsError as error:
            raise diverged(self.task_name) from error
        self._task.after_step(self._physics)
        with self._shifted_sensor() if self.reward_sensor_offset else contextlib.nullcontext():
            reward = float(self._task.get_reward(self._physics))
        self._steps += 1
        discount = self._task.get_termination(self._physics)  # None while the episode continues
        terminated = discount is not None and discount == 0
        truncated = not terminated and (discount is not None or self._steps >= self.episode_steps)
        return self.signal(), reward, terminated, truncated, {}

    def signal(self) -> np.ndarray:
        """Return the task's true state, float32 [S], see `signal_names`."""
        data = self._physics.data.ptr
        parts = [data.qpos, data.qvel, data.act]
        if self._target:
            parts.append(_position(data, *self._target))
        if self._has_target_angle:
            quaternion = data.body(self._target[1]).xquat
            parts.append([2 * np.arctan2(quaternion[2], quaternion[0])])  # it turns about y
        if self._mixes:
            parts.append(self._physics.model.ptr.wrap_prm)
        return np.concatenate(parts).astype(np.float32)

    def frame(self) -> np.ndarray:
        """Draw the current state, uint8 [H, W, 3]."""
        return self.renderer().frame(self._physics.data.ptr)

    def frame_and_background(self, matte: str = "matte"):
        """Draw the current state on black and return the background's share, see `Renderer.frame_and_background`."""
        return self.renderer().frame_and_background(self._physics.data.ptr, matte)

    def get_state(self) -> dict:
        """Return the complete state as a tree of arrays and numbers, exact even mid-episode."""
        model, data = self._physics.model.ptr, self._physics.data.ptr
        integration = np.empty(mujoco.mj_stateSize(model, _STATE))
        mujoco.mj_getState(model, data, integration, _STATE)
        return {
            "integration": integration,
            "sensordata": data.sensordata.copy(),
            "model": {field: getattr(model, field).copy() for field in EPISODE_FIELDS},
            "random": self._task.random.get_state(legacy=False),
            "steps": self._steps,
        }

    def set_state(self, state: dict) -> None:
        """Restore exactly a state that `get_state` returned in this environment or an equal one."""
        if self._steps is None:
            self.reset()  # some tasks compute constants at the start of an episode
        model, data = self._physics.model.ptr, self._physics.data.ptr
        for field, value in state["model"].items():
            getattr(model, field)[:] = value
        mujoco.mj_setState(model, data, state["integration"], _STATE)
        # As after a step: what depends on position and velocity is current; acceleration-stage sensors are those of
        # the last step.
        mujoco.mj_step1(model, data)
        data.sensordata[:] = state["sensordata"]
        self._task.random.set_state(state["random"])
        self._steps = state["steps"]
        if self._renderer:
            self._renderer.upload_terrain()

    def make_renderer(self) -> Renderer:
        """Make the renderer of the task's camera."""
        return Renderer(self._physics.model.ptr, *self._look, stage=self.stage)

    @contextlib.contextmanager
    def _without_rendering(self):
        """Keep the physics from creating GL contexts for a task that asks for them (to upload terrain).

        dm_control would choose a backend of its own for them, and free them after its display has ended.
        """
        self._physics._make_rendering_contexts = lambda: None
        try:
            yield
        finally:
            del self._physics._make_rendering_contexts

    @contextlib.contextmanager
    def _shifted_sensor(self):
        """Override the physics method that reads the reward's sensor with one that adds the offset."""
        sensor = SENSORS[self.task_name]
        read, shift = getattr(self._physics, sensor.method), sensor.shift(self._physics, self.reward_sensor_offset)
        setattr(self._physics, sensor.method, lambda *names: read(*names) + shift)
        try:
            yield
        finally:
            delattr(self._physics, sensor.method)

    def _name_signal(self) -> tuple[str, ...]:
        model = self._physics.model.ptr
        activations = [f"act/{number}" for number in range(model.na)]
        target = [f"target/{axis}" for axis in "xyz"] if self._target else []
        angle = ["target/angle"] if self._has_target_angle else []
        mixing = [f"mixing/{number}" for number in range(model.nwrap if self._mixes else 0)]
        return (*coordinate_names(model), *activations, *target, *angle, *mixing)


@contextlib.contextmanager
def _quiet():
    """Silence warnings about deprecated attributes in the suite's own model files."""
    level = logging.get_verbosity()
    logging.set_verbosity(logging.ERROR)
    try:
        yield
    finally:
        logging.set_verbosity(level)


def _position(data: mujoco.MjData, kind: str, name: str) -> np.ndarray:
    """Return the world position [3] of a named geom, site or body."""
    return getattr(data, kind)(name).xpos
