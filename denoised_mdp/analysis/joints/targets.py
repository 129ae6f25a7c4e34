"""Joint positions as regression targets, and errors in physical units.

A limited joint is predicted directly. An unlimited hinge is predicted as sine and cosine; its error is the angle
between the two directions, since pictures do not show whole turns. A rotation is predicted as two columns of its
matrix; its error is the angle between the two rotations.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from denoised_mdp.envs.factors import rotation_columns
from denoised_mdp.envs.joints import Joint

WIDTHS = {"scalar": 1, "angle": 2, "quaternion": 6}
"""kind of joint -> how many numbers are predicted for it"""


@dataclass(frozen=True)
class JointTargets:
    """Regression targets: J joints, whose P positions are encoded as K numbers."""

    joints: tuple[Joint, ...]

    @classmethod
    def of(cls, joints: Sequence[Joint]) -> JointTargets:
        """Targets whose positions [n, P] are the joints' columns side by side, see `columns_of`."""
        out, begin = [], 0
        for joint in joints:
            end = begin + len(joint.columns)
            out.append(replace(joint, columns=tuple(range(begin, end))))
            begin = end
        return cls(tuple(out))

    @property
    def size(self) -> int:
        """K, the number of predicted values."""
        return sum(WIDTHS[joint.kind] for joint in self.joints)

    def encode(self, position: np.ndarray) -> np.ndarray:
        """Positions [n, P] -> regression targets, float64 [n, K]."""
        return np.concatenate([_encode(joint, _columns(joint, position)) for joint in self.joints], 1)

    def squared_errors(self, predicted: np.ndarray, position: np.ndarray) -> np.ndarray:
        """Squared error of each joint, float64 [n, J], in rad^2 or m^2.

        predicted: [n, K] as from `encode`, or [1, K] for one prediction of all rows. position: the truth [n, P].
        """
        errors, begin = [], 0
        for joint in self.joints:
            part = np.asarray(predicted, np.float64)[:, begin : begin + WIDTHS[joint.kind]]
            begin += WIDTHS[joint.kind]
            errors.append(_error(joint, part, _columns(joint, position)))
        return np.stack(errors, 1) ** 2


def columns_of(joints: Sequence[Joint]) -> list[int]:
    """The columns of all joints, in the order of the joints."""
    return [column for joint in joints for column in joint.columns]


def _columns(joint: Joint, position: np.ndarray) -> np.ndarray:
    return np.asarray(position, np.float64)[:, list(joint.columns)]


def _encode(joint: Joint, raw: np.ndarray) -> np.ndarray:
    if joint.kind == "angle":
        return np.concatenate((np.sin(raw), np.cos(raw)), 1)
    return rotation_columns(raw) if joint.kind == "quaternion" else raw


def _error(joint: Joint, predicted: np.ndarray, raw: np.ndarray) -> np.ndarray:
    """Error [n] of encoded predictions [n or 1, width] against true positions [n, ...]."""
    if joint.kind == "angle":
        difference = np.arctan2(predicted[:, 0], predicted[:, 1]) - raw[:, 0]
        return np.arctan2(np.sin(difference), np.cos(difference))
    if joint.kind == "quaternion":
        cosine = (np.einsum("nij,nij->n", *np.broadcast_arrays(_frame(predicted), _frame(_encode(joint, raw)))) - 1) / 2
        return np.arccos(cosine.clip(-1.0, 1.0))  # trace of R^T R', which is 1 + 2 cos(angle)
    return predicted[:, 0] - raw[:, 0]


def _frame(columns: np.ndarray) -> np.ndarray:
    """Complete two columns [n, 6] to a rotation matrix [n, 3, 3] by Gram-Schmidt; its columns are stored as rows."""
    first = _unit(columns[:, :3])
    second = _unit(columns[:, 3:] - (first * columns[:, 3:]).sum(1, keepdims=True) * first)
    return np.stack((first, second, np.cross(first, second)), 1)


def _unit(vectors: np.ndarray) -> np.ndarray:
    return vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)
