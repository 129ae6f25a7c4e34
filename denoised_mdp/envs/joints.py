"""What a camera shows of each joint of a model."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from denoised_mdp.envs import rendering  # noqa: F401 (first: it chooses the GL backend)

import mujoco  # isort: skip


def joint_kinds(model: mujoco.MjModel, camera: int | str) -> tuple[str, ...]:
    """Return the kind of every number of ``qpos``, then of ``qvel``, as a camera sees them.

    A hinge without limits is an angle; the rotation of a plain ball is unseen. A camera that follows a body shows its
    pose but not where it is, so horizontal positions of the root are unseen. So are those of other free bodies, which
    the camera shows at most relative to the first. Heights count as seen, which is true if there is a floor.
    """
    followed = _followed_roots(model, camera)
    kinds, velocities = [], ["scalar"] * model.nv
    for index in range(model.njnt):
        kind = mujoco.mjtJoint(model.jnt_type[index])
        hidden, plain = _travels(model, index, followed), _turns_plain_ball(model, index)
        if kind == mujoco.mjtJoint.mjJNT_HINGE:
            kinds.append("unseen" if plain else "scalar" if model.jnt_limited[index] else "angle")
        elif kind == mujoco.mjtJoint.mjJNT_SLIDE:
            kinds.append("unseen" if hidden else "scalar")
        else:
            if kind == mujoco.mjtJoint.mjJNT_FREE:
                kinds += ["unseen", "unseen", "scalar"] if hidden else ["scalar"] * 3
            kinds += ["unseen" if plain else "quaternion"] * 4
        if plain:
            for turn in _velocities_of(model, index)[-3:]:  # a free joint's first three are linear
                velocities[turn] = "unseen"
    return (*kinds, *velocities)


def hides_place(model: mujoco.MjModel, camera: int | str) -> bool:
    """Whether the camera travels with a body, so that a picture does not show where either is."""
    followed = _followed_roots(model, camera)
    return any(_travels(model, index, followed) for index in range(model.njnt))


def _travels(model: mujoco.MjModel, joint: int, followed: Collection[int]) -> bool:
    """Whether a joint slides a followed root horizontally, or is any free joint while the camera follows a body."""
    kind, horizontal = mujoco.mjtJoint(model.jnt_type[joint]), abs(model.jnt_axis[joint][2]) < 0.5
    slides = kind == mujoco.mjtJoint.mjJNT_SLIDE and horizontal and model.jnt_bodyid[joint] in followed
    return slides or (kind == mujoco.mjtJoint.mjJNT_FREE and len(followed) > 0)


def _turns_plain_ball(model: mujoco.MjModel, joint: int) -> bool:
    """Whether a joint turns nothing but one untextured sphere about its centre."""
    if model.jnt_type[joint] == mujoco.mjtJoint.mjJNT_SLIDE:
        return False
    body = model.jnt_bodyid[joint]
    geoms = (model.geom_bodyid == body).nonzero()[0]
    if len(geoms) != 1 or model.geom_type[geoms[0]] != mujoco.mjtGeom.mjGEOM_SPHERE:
        return False
    material = model.geom_matid[geoms[0]]
    textured = material >= 0 and (model.mat_texid[material] >= 0).any()
    carries = (model.body_parentid == body).any()
    return not (textured or carries or model.geom_pos[geoms[0]].any() or model.jnt_pos[joint].any())


def _velocities_of(model: mujoco.MjModel, joint: int) -> range:
    """Return the indices of a joint in ``qvel``."""
    addresses = [*model.jnt_dofadr, model.nv]
    return range(addresses[joint], addresses[joint + 1])


def coordinate_names(model: mujoco.MjModel) -> tuple[str, ...]:
    """Name every number of ``qpos``, then of ``qvel``: qpos/JOINT, or qpos/JOINT/N if a joint has several."""
    positions, velocities = [], []
    for index in range(model.njnt):
        name, kind = model.joint(index).name, mujoco.mjtJoint(model.jnt_type[index])
        velocity_size = {mujoco.mjtJoint.mjJNT_FREE: 6, mujoco.mjtJoint.mjJNT_BALL: 3}.get(kind, 1)
        position_size = velocity_size + (velocity_size > 1)  # rotations are quaternions
        positions += _numbered(f"qpos/{name}", position_size)
        velocities += _numbered(f"qvel/{name}", velocity_size)
    return (*positions, *velocities)


def _numbered(name: str, size: int) -> list[str]:
    return [name] if size == 1 else [f"{name}/{number}" for number in range(size)]


@dataclass(frozen=True)
class Joint:
    """One joint position, as a target of the joint probe.

    Attributes:
        name: the joint's name; a free joint gives four targets: x, y, z and rotation.
        unit: "rad" or "m", the unit of errors.
        kind: "scalar", "angle" (radians; whole turns look alike) or "quaternion" (w, x, y, z).
        columns: indices into a vector of positions, initially ``qpos``.
    """

    name: str
    unit: str
    kind: str
    columns: tuple[int, ...]


def visible_joints(model: mujoco.MjModel, camera: int | str, names: Collection[str] | None = None) -> tuple[Joint, ...]:
    """Return all joint positions that the camera can see, or those of the joints in `names`, in the order of qpos."""
    kinds, found = joint_kinds(model, camera), []
    for index in range(model.njnt):
        name, address = model.joint(index).name, int(model.jnt_qposadr[index])
        if names is not None and name not in names:
            continue
        kind = mujoco.mjtJoint(model.jnt_type[index])
        if kind in (mujoco.mjtJoint.mjJNT_HINGE, mujoco.mjtJoint.mjJNT_SLIDE):
            unit = "rad" if kind == mujoco.mjtJoint.mjJNT_HINGE else "m"
            found.append(Joint(name, unit, kinds[address], (address,)))
            continue
        if kind == mujoco.mjtJoint.mjJNT_FREE:
            found += [Joint(f"{name}/{axis}", "m", kinds[address + i], (address + i,)) for i, axis in enumerate("xyz")]
            address += 3
        found.append(Joint(f"{name}/rotation", "rad", kinds[address], tuple(range(address, address + 4))))
    return tuple(joint for joint in found if joint.kind != "unseen")


def _followed_roots(model: mujoco.MjModel, camera: int | str) -> set[int]:
    """Return the roots of the bodies that the camera moves with."""
    number = model.camera(camera).id if model.ncam and camera != -1 else -1  # -1: the free camera
    kinds = mujoco.mjtCamLight
    if number < 0 or model.cam_mode[number] in (kinds.mjCAMLIGHT_TARGETBODY, kinds.mjCAMLIGHT_TARGETBODYCOM):
        return set()
    body = int(model.cam_bodyid[number])
    if body == 0 and model.cam_mode[number] == kinds.mjCAMLIGHT_TRACKCOM:  # it tracks all that moves
        return {int(model.body_rootid[moved]) for moved in model.jnt_bodyid}
    return {int(model.body_rootid[body])} if body else set()
