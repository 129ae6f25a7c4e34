"""Headless rendering with mujoco's public API: render quality and the exact matte."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from numbers import Integral

import numpy as np

from denoised_mdp.envs.gl import (
    check_process,
    close_at_exit,
    current_gl_context,
    dropped_here,
    free_gl_context,
    gl_errors,
    release,
)
from denoised_mdp.errors import UserError, did_you_mean

import mujoco  # isort: skip

QUALITIES = ("fast", "faithful")


class Renderer:
    """Draws the view of one camera of one model as uint8 frames.

    Scene and context are built once per environment, which makes a frame several times cheaper than in
    dm_control.

    Args:
        model: the compiled `mujoco.MjModel`. An episode may change its fields.
        height, width: pixels.
        camera: index or name of a fixed camera of the model; -1 is the free camera.
        quality: "fast" (no shadows, reflections or multisampling) or "faithful" (the model's own settings).
        stage: functions of (`MjvScene`, `MjModel`, `MjData`), called in turn to change each scene before it is drawn.

    Raises:
        UserError: unknown camera or quality, or no GL context can be created.
    """

    def __init__(
        self,
        model: mujoco.MjModel,
        height: int,
        width: int,
        camera: int | str = 0,
        quality: str = "fast",
        stage: Sequence[Callable] = (),
    ):
        self._gl = None
        check_view(model, camera, quality)
        self._model, self._stage = model, stage
        self._camera = _fixed_camera(model, camera)
        self._viewport = mujoco.MjrRect(0, 0, width, height)
        self._rgb = np.empty((height, width, 3), np.uint8)
        self._depth = np.empty((height, width), np.float32)
        self._option = mujoco.MjvOption()
        self._option.flags[mujoco.mjtVisFlag.mjVIS_RANGEFINDER] = False  # dm_control draws no rays either
        self._scene = mujoco.MjvScene(model, maxgeom=2000)
        if quality == "fast":
            self._scene.flags[mujoco.mjtRndFlag.mjRND_SHADOW] = False
            self._scene.flags[mujoco.mjtRndFlag.mjRND_REFLECTION] = False
        flat = np.isin(model.geom_type, (mujoco.mjtGeom.mjGEOM_PLANE, mujoco.mjtGeom.mjGEOM_HFIELD))
        self._floor = np.flatnonzero(flat & (model.body_weldid[model.geom_bodyid] == 0))

        with gl_errors():
            gl = current_gl_context(width, height)
            try:
                with _offscreen_settings(model, height, width, quality):
                    self._context = mujoco.MjrContext(model, mujoco.mjtFontScale.mjFONTSCALE_100)
                mujoco.mjr_setBuffer(mujoco.mjtFramebuffer.mjFB_OFFSCREEN, self._context)
            except Exception:
                free_gl_context(gl)
                raise
        self._gl, self._dropped = gl, dropped_here()
        close_at_exit(self)

    def device(self) -> str:
        """Return the device that renders, as named by OpenGL: a GPU, or "llvmpipe" (the CPU)."""
        from OpenGL import GL

        self._bind()
        return GL.glGetString(GL.GL_RENDERER).decode(errors="replace")

    def upload_terrain(self) -> None:
        """Upload the model's height fields again: the start of an episode may have changed them."""
        if self._model.nhfield:
            self._bind()
            for index in range(self._model.nhfield):
                mujoco.mjr_uploadHField(self._model, self._context, index)

    def frame(self, data: mujoco.MjData) -> np.ndarray:
        """Return the camera's view, uint8 [H, W, 3]."""
        self._draw(data, skybox=True, floor=True)
        return self._rgb[::-1].copy()  # GL's first row is the lowest

    def frame_and_background(self, data: mujoco.MjData, matte: str = "matte") -> tuple[np.ndarray, np.ndarray]:
        """Return the view on black, uint8 [H, W, 3], and the background's share of each pixel, [H, W].

        The share is bool, or with multisampling ("faithful") float32 in [0, 1]: an edge pixel shows both.
        The view holds the foreground's part of each pixel: view + share * picture puts a picture behind it.

        Args:
            matte: what counts as background. "matte": everything but bodies (the sky, and planes and height
                fields fixed to the world), exactly, from the depth buffer. "sky": the same, but the
                floor counts as foreground. "blue": pixels whose blue is strictly the largest channel;
                "blue_ge": blue >= both others. The latter two are the rules of Wang et al. 2022. They
                remove blue foreground in some tasks, and decide for whole pixels.
        """
        if matte in ("blue", "blue_ge"):
            frame = self.frame(data)
            red, green, blue = frame[..., 0], frame[..., 1], frame[..., 2]
            greater = np.greater if matte == "blue" else np.greater_equal
            background = greater(blue, red) & greater(blue, green)
        else:
            self._draw(data, skybox=False, floor=matte == "sky", depth=True)
            frame = self._rgb[::-1].copy()
            if self._context.offSamples:
                # Depth has one value per pixel. Colours are means over samples, and so is a white silhouette.
                self._draw(data, skybox=False, floor=matte == "sky", silhouette=True)
                return frame, 1 - self._rgb[::-1, :, 0] / np.float32(255)
            background = self._depth[::-1] >= 1.0  # the far plane: nothing or something translucent was drawn there
        frame[background] = 0
        return frame, background

    def close(self) -> None:
        """Free the GL objects; the context is kept for the next renderer."""
        gl, self._gl = self._gl, None
        if gl is not None:
            release(gl, self._context)

    def __del__(self):
        if self._gl is not None:
            self._dropped.append((self._gl, self._context))

    def _bind(self) -> None:
        """Make the renderer's context current."""
        check_process()
        self._gl.make_current()

    def _draw(
        self, data: mujoco.MjData, skybox: bool, floor: bool, depth: bool = False, silhouette: bool = False
    ) -> None:
        self._bind()
        self._scene.flags[mujoco.mjtRndFlag.mjRND_SKYBOX] = skybox
        with contextlib.nullcontext() if floor else _invisible(self._model, self._floor):
            mujoco.mjv_updateScene(
                self._model, data, self._option, None, self._camera, mujoco.mjtCatBit.mjCAT_ALL, self._scene
            )
        for dress in self._stage:
            dress(self._scene, self._model, data)
        with _white(self._scene) if silhouette else contextlib.nullcontext():
            mujoco.mjr_render(self._viewport, self._scene, self._context)
        mujoco.mjr_readPixels(self._rgb, self._depth if depth else None, self._viewport, self._context)


def check_view(model: mujoco.MjModel, camera: int | str, quality: str) -> None:
    """Raise UserError for an unknown camera or quality, without starting GL."""
    _fixed_camera(model, camera)
    if quality not in QUALITIES:
        raise UserError(f"Unknown render quality {quality!r}.{did_you_mean(quality, QUALITIES)}")


def _fixed_camera(model: mujoco.MjModel, camera: int | str) -> mujoco.MjvCamera:
    """Return the camera with this index or name, or raise a UserError that lists the model's cameras."""
    if not isinstance(camera, str | Integral) or isinstance(camera, bool):
        raise UserError(f"camera must be the number or the name of one, not {camera!r}.")
    index = model.camera(camera).id if isinstance(camera, str) and _has_camera(model, camera) else camera
    if isinstance(index, str) or not -1 <= index < model.ncam:
        names = [f"{i} ({model.camera(i).name})" for i in range(model.ncam)]
        raise UserError(f"This task has no camera {camera!r}. Choose one of: {', '.join(names)}.")
    view = mujoco.MjvCamera()
    if index == -1:
        mujoco.mjv_defaultFreeCamera(model, view)
    else:
        view.type, view.fixedcamid = mujoco.mjtCamera.mjCAMERA_FIXED, index
    return view


def _has_camera(model: mujoco.MjModel, name: str) -> bool:
    return mujoco.mj_name2id(model, mujoco.mjtObj.mjOBJ_CAMERA, name) >= 0


@contextlib.contextmanager
def _offscreen_settings(model: mujoco.MjModel, height: int, width: int, quality: str):
    """Give contexts created in the block our buffer size, without the buffers that "fast" does not need."""
    size, detail = model.vis.global_, model.vis.quality
    saved = size.offwidth, size.offheight, detail.offsamples, detail.shadowsize
    size.offwidth, size.offheight = width, height
    if quality == "fast":
        detail.offsamples, detail.shadowsize = 0, 0
    try:
        yield
    finally:
        size.offwidth, size.offheight, detail.offsamples, detail.shadowsize = saved


@contextlib.contextmanager
def _invisible(model: mujoco.MjModel, geoms: np.ndarray):
    """Hide geoms from the scene that is built inside the block."""
    alpha, material = model.geom_rgba[geoms, 3], model.geom_matid[geoms]  # fancy indexing copies
    model.geom_rgba[geoms, 3], model.geom_matid[geoms] = 0, -1
    try:
        yield
    finally:
        model.geom_rgba[geoms, 3], model.geom_matid[geoms] = alpha, material


@contextlib.contextmanager
def _white(scene: mujoco.MjvScene):
    """In the block, draw everything in `scene` white at its own opacity, without shadows and reflections."""
    for index in range(scene.ngeom):
        geom = scene.geoms[index]
        geom.rgba[:3], geom.emission, geom.specular, geom.reflectance, geom.matid = 1, 1, 0, 0, -1
    flags = scene.flags.copy()
    for flag in (mujoco.mjtRndFlag.mjRND_SHADOW, mujoco.mjtRndFlag.mjRND_REFLECTION):
        scene.flags[flag] = False
    try:
        yield
    finally:
        scene.flags[:] = flags
