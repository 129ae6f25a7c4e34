"""From actions to joint targets: the hand moves in space, by inverse kinematics."""

from __future__ import annotations

import numpy as np

from denoised_mdp.envs.robodesk_scene import ARM, FINGERS  # first: it chooses the GL backend

import mujoco  # isort: skip

HAND_REACH = 0.01  # metres per step along each axis
WRIST_REACH = 0.02  # of the wrist's range, per step
ACTIONS = ("x", "y", "z", "wrist", "gripper")
_REACHING = len(ARM) - 1  # all joints but the wrist bring the hand to its place


class Arm:
    """Turns actions [5] in [-1, 1] into targets of the nine actuators.

    Keeps nothing between calls, so that it needs no saving.

    Args:
        model: the scene.
    """

    def __init__(self, model: mujoco.MjModel):
        self._model = model
        self._scratch = mujoco.MjData(model)  # where joints are tried out
        self._site = model.site("end_effector").id
        self._jacobian = np.empty((3, model.nv))
        assert [model.joint(name).qposadr[0] for name in (*ARM, *FINGERS)] == list(range(9))
        self._range = model.actuator_ctrlrange[:9].copy()

    def targets(self, data: mujoco.MjData, action: np.ndarray) -> np.ndarray:
        """Return actuator targets [9]: hand moved, wrist turned, both fingers at the gripper's opening."""
        place = data.site_xpos[self._site] + HAND_REACH * action[:3]
        targets = np.empty(9)
        targets[:_REACHING] = self.reach(data.qpos, place)
        low, high = self._range[6]
        wrist = low + (high - low) * (action[3] + 1) / 2
        targets[6] = np.clip(data.qpos[6] + WRIST_REACH * wrist, low, high)
        low, high = self._range[7]
        targets[7:] = low + (high - low) * (action[4] + 1) / 2
        return targets

    def reach(self, qpos: np.ndarray, place: np.ndarray, steps: int = 20, precision: float = 1e-6) -> np.ndarray:
        """Return angles [6] of all joints but the wrist that bring the hand to `place` [3].

        Damped least squares from the present `qpos`; the smallest change of angles that does it. Where the place is
        out of reach, the closest that was found.
        """
        model, scratch = self._model, self._scratch
        scratch.qpos[:] = qpos
        best, least = scratch.qpos[:_REACHING].copy(), np.inf
        for _ in range(steps):
            mujoco.mj_kinematics(model, scratch)
            error = place - scratch.site_xpos[self._site]
            distance = float(np.linalg.norm(error))
            if distance < least:
                best, least = scratch.qpos[:_REACHING].copy(), distance
            if distance < precision:
                break
            mujoco.mj_comPos(model, scratch)
            mujoco.mj_jacSite(model, scratch, self._jacobian, None, self._site)
            jacobian = self._jacobian[:, :_REACHING]
            damping = 1e-9 + 0.01 * distance * distance  # vanishes with the error, so that the last steps are exact
            change = jacobian.T @ np.linalg.solve(jacobian @ jacobian.T + damping * np.eye(3), error)
            scratch.qpos[:_REACHING] += np.clip(change, -0.5, 0.5)
        return best
