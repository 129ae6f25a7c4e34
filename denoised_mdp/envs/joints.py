"""What a camera can tell about each joint of a model."""

from __future__ import annotations

from denoised_mdp.envs import rendering  # noqa: F401 (first: it chooses the GL backend)

import mujoco  # isort: skip


def joint_kinds(model: mujoco.MjModel, camera: int | str) -> tuple[str, ...]:
    """Return a kind for every number of ``qpos``, then of ``qvel``, as a camera sees them.

    A hinge without limits is an angle. Where a camera that follows a body has been carried to cannot be seen, only
    how the body is posed there: horizontal positions of its root are unseen.
    """
    followed = _followed_body(model, camera)
    kinds: list[str] = []
    for index in range(model.njnt):
        kind, body = mujoco.mjtJoint(model.jnt_type[index]), model.jnt_bodyid[index]
        carried = followed and model.body_rootid[followed] == body  # a joint of the root moves the whole body
        if kind == mujoco.mjtJoint.mjJNT_HINGE:
            kinds.append("scalar" if model.jnt_limited[index] else "angle")
        elif kind == mujoco.mjtJoint.mjJNT_SLIDE:
            horizontal = abs(model.jnt_axis[index][2]) < 0.5
            kinds.append("unseen" if carried and horizontal else "scalar")
        else:
            if kind == mujoco.mjtJoint.mjJNT_FREE:
                kinds += ["unseen", "unseen", "scalar"] if carried else ["scalar"] * 3
            kinds += ["quaternion"] * 4
    return (*kinds, *["scalar"] * model.nv)


def _followed_body(model: mujoco.MjModel, camera: int | str) -> int:
    """Return the body that the camera moves with, 0 for none."""
    number = model.camera(camera).id if model.ncam else -1
    if number < 0 or model.cam_mode[number] == mujoco.mjtCamLight.mjCAMLIGHT_TARGETBODY:
        return 0
    return int(model.cam_bodyid[number])
