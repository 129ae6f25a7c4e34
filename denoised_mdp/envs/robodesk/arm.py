"""From actions to joint targets: inverse kinematics moves the hand in space."""

from __future__ import annotations

import numpy as np

from denoised_mdp.envs.robodesk.scene import ARM, FINGERS  # first: it chooses the GL backend

import mujoco  # isort: skip

HAND_REACH = 0.01  # metres per step along each axis
WRIST_REACH = 0.02  # share of the wrist's limit, per step
ACTIONS = ("x", "y", "z", "wrist", "gripper")
MAX_ITERATIONS, PRECISION = 100, 1e-14
FAR, DAMPING = 0.1, 0.03  # beyond FAR metres from the target, the inverse is damped
LONGEST = 2.0  # largest norm of the change of angles in one iteration
STALLED = 20.0  # remaining metres per radian of change above which the iteration gives up
_REACHING = len(ARM) - 1  # all joints but the wrist position the hand


class Arm:
    """Turns actions [5] in [-1, 1] into targets of the nine actuators.

    It has no state to save.

    Args:
        model: the scene.
    """

    def __init__(self, model: mujoco.MjModel):
        self._model = model
        self._scratch = mujoco.MjData(model)  # scratch data for trial joint angles
        self._site = model.site("end_effector").id
        self._jacobian = np.empty((3, model.nv))
        assert [model.joint(name).qposadr[0] for name in (*ARM, *FINGERS)] == list(range(9))
        self._range = model.actuator_ctrlrange[:9].copy()

    def targets(self, data: mujoco.MjData, action: np.ndarray) -> np.ndarray:
        """Return actuator targets [9]: the hand moves, the wrist turns, both fingers take the gripper's opening."""
        place = data.site_xpos[self._site] + HAND_REACH * action[:3]
        targets = np.empty(9)
        targets[:_REACHING] = self.reach(data.qpos, place)
        low, high = self._range[6]
        wrist = low + (high - low) * (action[3] + 1) / 2
        targets[6] = np.clip(data.qpos[6] + WRIST_REACH * wrist, low, high)
        low, high = self._range[7]
        targets[7:] = low + (high - low) * (action[4] + 1) / 2
        return targets

    def reach(self, qpos: np.ndarray, place: np.ndarray) -> np.ndarray:
        """Return angles [6] of all joints but the wrist that bring the hand to `place` [3].

        Newton's method from the current `qpos` with minimum-norm steps: the iteration of
        `dm_control.utils.inverse_kinematics.qpos_from_site_pose` without collision detection and without its rounding
        errors in the null space. If `place` is out of reach, return the last iterate, however far away.
        """
        model, scratch = self._model, self._scratch
        scratch.qpos[:] = qpos
        for _ in range(MAX_ITERATIONS):
            mujoco.mj_kinematics(model, scratch)
            error = place - scratch.site_xpos[self._site]  # [3]
            distance = np.linalg.norm(error)
            if distance < PRECISION:
                break
            mujoco.mj_comPos(model, scratch)
            mujoco.mj_jacSite(model, scratch, self._jacobian, None, self._site)
            jacobian = self._jacobian[:, :_REACHING]  # [3, 6]
            damping = DAMPING if distance > FAR else 1e-15  # the latter matters only when the arm is stretched
            change = jacobian.T @ np.linalg.solve(jacobian @ jacobian.T + damping * np.eye(3), error)  # [6]
            length = np.linalg.norm(change)
            if distance > STALLED * length:
                break
            scratch.qpos[:_REACHING] += change * min(1.0, LONGEST / length)
        return scratch.qpos[:_REACHING].copy()
