"""RoboDesk's scene: the desk of the package `robodesk`, and the room around it, which is built here.

The package (Apache 2.0) contributes model files, meshes and textures. It is located but never imported, because its
code needs libraries from 2021. A television, two neighbouring desks and dimmable lamps are added to the parsed model.
They do not collide with anything, so the physics stays the same.
"""

from __future__ import annotations

import copy
import functools
import importlib.util
import re
from pathlib import Path

import numpy as np
from PIL import Image

from denoised_mdp.envs import rendering  # noqa: F401 (first: it chooses the GL backend)
from denoised_mdp.envs.robodesk.distractors import COLORS
from denoised_mdp.envs.robodesk.tasks import BLOCKS
from denoised_mdp.envs.world import diverged
from denoised_mdp.errors import UserError

import mujoco  # isort: skip

ARM = tuple(f"panda0_joint{number}" for number in range(1, 8))
FINGERS = ("panda0_finger_joint1", "panda0_finger_joint2")
BUTTON_TRAVEL = 0.005  # metres between readings of 0 and 1

DESKS = (1.3, 2.6)  # x positions of the neighbouring desks
TV_PLACE = (1.3, 1.825, 1.6)
TV_PIXELS = (60, 120)  # rows and columns of the picture
TV_TEXTURE = (120, 120)  # rows and columns that it is enlarged to

START_POSE = np.array([-0.3, -0.4, 0.28, -2.5, 0.13, 1.87, 0.91, 0.01, 0.01])
START_SPREAD = 0.15  # times a draw from the control range
# Initial shifts of objects: joint -> (least, most) of each coordinate that is shifted, in metres.
START_SHIFTS = {
    "drawer_joint": [(0.0, -0.1)],
    "slide_joint": [(0.0, 0.2)],
    "flat_block": [(0.0, 0.3), (0.0, 0.07)],
    "ball": [(0.0, 0.48), (0.0, 0.08)],
    "upright_block": [(0.05, 0.35), (0.0, 0.05)],
}

WOOD_GAIN = 1.3
HIDDEN = 5  # geom group that is never drawn
_BOX, _CYLINDER = mujoco.mjtGeom.mjGEOM_BOX, mujoco.mjtGeom.mjGEOM_CYLINDER
_DIVERGED = [mujoco.mjtWarning.mjWARN_BADQPOS, mujoco.mjtWarning.mjWARN_BADQVEL, mujoco.mjtWarning.mjWARN_BADQACC]
_NOT_COPIED = re.compile("panda0|" + "|".join(BLOCKS))
_NO_CONTACT = {"contype": 0, "conaffinity": 0, "mass": 0.0, "group": 1}
_WHITE = (0.95, 0.99, 0.92, 1.0)  # of the arm


def asset_folder() -> Path:
    """Return the folder of the package `robodesk` that holds ``desk.xml``.

    Raises:
        UserError: the package is not installed.
    """
    found = importlib.util.find_spec("robodesk")
    for place in (found.submodule_search_locations or ()) if found else ():
        if (Path(place) / "assets" / "desk.xml").is_file():
            return Path(place) / "assets"
    raise UserError("RoboDesk needs the model files of the package robodesk: pip install --no-deps robodesk==1.0.0")


def build_model(room: bool, quality: str) -> mujoco.MjModel:
    """Build the scene; every call returns a new model.

    Args:
        room: whether to add the television and the neighbouring desks.
        quality: "faithful" draws the package's meshes. "fast" draws the arm's collision meshes, rounded handles and
            coarser cylinders, at a fraction of the cost. The physics is the same.

    Raises:
        UserError: the package `robodesk` is not installed.
    """
    return copy.copy(_compile(str(asset_folder()), room, quality))


@functools.lru_cache(maxsize=4)
def _compile(folder: str, room: bool, quality: str) -> mujoco.MjModel:
    spec = mujoco.MjSpec.from_file(f"{folder}/desk.xml")
    if room:
        _add_neighbors(spec)
        _add_television(spec)
    _add_lamps(spec)
    spec.visual.quality.offsamples = 0  # oversampling already smooths edges
    spec.visual.quality.shadowsize = 1024  # at this distance, it looks the same as 4096
    _share_textures(spec)
    if quality == "fast":
        _simplify(spec)
        _shrink_textures(spec, folder)
    used = {geom.meshname for geom in spec.geoms}
    for mesh in list(spec.meshes):
        if mesh.name not in used:
            spec.delete(mesh)
    model = spec.compile()
    if quality == "fast":
        _brighten_wood(model)
    return model


def place_anywhere(model: mujoco.MjModel, data: mujoco.MjData, rng: np.random.Generator) -> None:
    """Draw the initial positions of objects and arm, and write them to `data`, which has just been reset."""
    for name, shifts in START_SHIFTS.items():
        begin = model.joint(name).qposadr[0]
        for offset, (low, high) in enumerate(shifts):
            data.qpos[begin + offset] += low + (high - low) * rng.random()
    low, high = model.actuator_ctrlrange[:9].T  # [9] each
    data.qpos[:9] = START_POSE + START_SPREAD * rng.uniform(low, high)


def refuse_divergence(data: mujoco.MjData, task: str) -> None:
    """Raise UserError if MuJoCo has reset the state to the model's own, as it does when a simulation diverges."""
    warnings = [data.warning[kind] for kind in _DIVERGED]
    if any(warning.number for warning in warnings):
        for warning in warnings:
            warning.number = 0
        raise diverged(task)


def lamp_geoms(model: mujoco.MjModel) -> list[int]:
    """Return the geoms over the desk's red, green and blue lamps; their rgba sets the brightness."""
    return [model.geom(f"lamp/{color}").id for color in COLORS]


def _add_neighbors(spec: mujoco.MjSpec) -> None:
    """Add fixed copies of the visible desk without collisions, arm and blocks, and with unlit lamps."""
    originals = [
        body for body in spec.worldbody.bodies if not any(_NOT_COPIED.match(each.name) for each in (body, *body.bodies))
    ]
    for x in DESKS:
        for body in originals:
            _copy_visible(body, spec.worldbody, (x, 0.0, 0.0))


def _copy_visible(body, parent, shift: tuple[float, float, float]) -> None:
    twin = parent.add_body(pos=np.add(body.pos, shift), quat=body.quat)
    twin.alt.type, twin.alt.euler = body.alt.type, body.alt.euler  # otherwise the rotation is lost
    for geom in body.geoms:
        if geom.group <= 1 and geom.rgba[3] == 1:  # the rising part of a lamp is translucent
            part = twin.add_geom(
                type=geom.type,
                size=geom.size,
                pos=geom.pos,
                quat=geom.quat,
                rgba=geom.rgba,
                material=geom.material,
                meshname=geom.meshname,
                **_NO_CONTACT,
            )
            part.alt.type, part.alt.euler = geom.alt.type, geom.alt.euler
    for child in body.bodies:
        _copy_visible(child, twin, (0.0, 0.0, 0.0))


def _add_television(spec: mujoco.MjSpec) -> None:
    """Add a television behind the desks, whose picture is the texture "tv", uint8 [*TV_TEXTURE, 3]."""
    rows, columns = TV_TEXTURE
    kind, flat = mujoco.mjtTexture.mjTEXTURE_2D, mujoco.mjtBuiltin.mjBUILTIN_FLAT
    spec.add_texture(name="tv", type=kind, height=rows, width=columns, nchannel=3, builtin=flat, rgb1=[0.5] * 3)
    screen = spec.add_material(name="tv", emission=0.0, specular=1.0, shininess=1.0, reflectance=0.7)
    screen.textures[mujoco.mjtTextureRole.mjTEXROLE_RGB] = "tv"
    body = spec.worldbody.add_body(name="tv", pos=TV_PLACE)
    for size, place, color in (
        ([2.4, 0.03, 1.4], [0.0, 0.035, 0.0], [0.1, 0.1, 0.1, 1.0]),  # bezel, entirely behind the screen
        ([2.6, 0.2, 0.05], [0.0, 0.0, -1.5], [0.32, 0.137, 0.12, 1.0]),  # stand
    ):
        body.add_geom(type=_BOX, size=size, pos=place, rgba=color, **_NO_CONTACT)
    # A box shows a 2-D texture on its z faces, so it is built flat and turned upright.
    upright = [np.sqrt(0.5), np.sqrt(0.5), 0.0, 0.0]
    body.add_geom(name="tv", type=_BOX, size=[2.3, 1.34, 1e-6], quat=upright, material="tv", **_NO_CONTACT)
    spec.material("plane_material").reflectance = 0.01  # of the floor


def _add_lamps(spec: mujoco.MjSpec) -> None:
    """Put an overlay on each of the desk's black lamps, in place of the package's, which rises out of the lamp."""
    for color in COLORS:
        holder = spec.body(f"{color}_light")
        for geom in holder.bodies[0].geoms:
            geom.group = HIDDEN
        holder.add_geom(
            name=f"lamp/{color}", type=_CYLINDER, size=[0.06, 0.0075, 0.0], pos=[0.0, 0.0, 0.005], **_NO_CONTACT
        )


def _share_textures(spec: mujoco.MjSpec) -> None:
    """Share one metal texture; the package loads it three times, which slows the start of a renderer."""
    for material in spec.materials:
        role = mujoco.mjtTextureRole.mjTEXROLE_RGB
        if material.textures[role] in ("bin_metal_texture", "button_metal_texture"):
            material.textures[role] = "desk_metal_texture"
    spec.delete(spec.texture("bin_metal_texture"))
    spec.delete(spec.texture("button_metal_texture"))


def _shrink_textures(spec: mujoco.MjSpec, folder: str) -> None:
    """Shrink textures to the detail that is visible in a picture of a hundred pixels."""
    for texture in spec.textures:
        if texture.file:
            with Image.open(f"{folder}/{texture.file}") as image:
                small = image.convert("RGB").reduce(4)
            texture.file, texture.nchannel = "", 3
            texture.width, texture.height = small.size
            texture.data = small.tobytes()


def _simplify(spec: mujoco.MjSpec) -> None:
    spec.visual.quality.numslices, spec.visual.quality.numstacks = 12, 6  # of cylinders and the ball
    for geom in list(spec.geoms):
        kind = geom.classname.name
        if kind == "panda_viz" and geom.meshname != "finger_viz":
            spec.delete(geom)
        elif kind == "panda_col":
            geom.group, geom.rgba = 1, _WHITE
        elif "handle" in geom.meshname:
            geom.group = HIDDEN  # kept, because a task reads its position
            _add_round_handle(geom)


def _add_round_handle(geom) -> None:
    """Draw a handle (two feet and a bar) like the package's collision capsules."""
    metal = {"type": mujoco.mjtGeom.mjGEOM_CAPSULE, "rgba": [0.6, 0.6, 0.6, 1.0], **_NO_CONTACT}
    drawer = "drawer" in geom.meshname
    ends = {
        True: [((x, -0.27, 0.01), (x, -0.36, 0.01)) for x in (-0.082, 0.082)]
        + [((-0.08, -0.36, 0.01), (0.08, -0.36, 0.01))],
        False: [((0.0, -0.02, z), (0.0, -0.11, z)) for z in (-0.083, 0.083)]
        + [((0.0, -0.11, -0.08), (0.0, -0.11, 0.08))],
    }[drawer]
    for start, end in ends:
        geom.parent.add_geom(fromto=[*start, *end], size=[0.014, 0.0, 0.0], **metal)


def wood_geoms(model: mujoco.MjModel) -> np.ndarray:
    """Return the desks' geoms, to which the package gives a brightness of 2."""
    return np.flatnonzero((model.geom_rgba > 1).any(1))


def _brighten_wood(model: mujoco.MjModel) -> None:
    """Brighten the wood's texture, and darken the geoms that use it, except the desks.

    Without shadows, OpenGL sums all lights, clips the sum at 1, and then multiplies by the texture. With shadows, it
    clips each light separately. A brighter texture leaves headroom for `wood_brightness`.
    """
    texture = model.texture("desk_wood_texture")
    size = int(texture.height[0] * texture.width[0] * texture.nchannel[0])
    wood = model.tex_data[texture.adr[0] : texture.adr[0] + size]
    wood[:] = np.minimum(WOOD_GAIN * wood.astype(np.float32), 255).astype(np.uint8)
    wears = model.geom_matid == model.material("desk_wood_material").id
    model.geom_rgba[wears & (model.geom_rgba <= 1).all(1), :3] /= WOOD_GAIN


def wood_brightness(headlight: float, diffuse: np.ndarray, places: np.ndarray) -> float:
    """Return the desk colour that, rendered without shadows, gives the brightness of desks with shadows.

    Args:
        headlight, diffuse [3], places [3, 3]: see `denoised_mdp.envs.robodesk.distractors.Lights`.
    """
    slopes = places[:, 2] / np.linalg.norm(places, axis=1)  # cosines of the angles of incidence on the desk's top
    lights = np.array([headlight * (0.25 + 0.75), *(diffuse * slopes)])  # headlight: ambient, and diffuse from above
    with_shadows = np.minimum(2 * lights, 1).sum()
    return float(with_shadows / (WOOD_GAIN * lights.sum()))
