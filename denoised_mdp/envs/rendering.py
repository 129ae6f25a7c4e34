"""Headless rendering on mujoco's public API: the choice of GL, render quality, and the exact matte.

Importing this module chooses the GL backend, which has to happen before the first ``import mujoco``.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import importlib
import os
import sys
import warnings
import weakref
from collections.abc import Callable, Sequence

import numpy as np

from denoised_mdp.errors import UserError, did_you_mean

QUALITIES = ("fast", "faithful")
INSTALL_HINT = (
    "On Debian or Ubuntu install 'libegl1 libegl-mesa0 libgl1-mesa-dri libgl1' (MUJOCO_GL=egl) "
    "or 'libosmesa6' (MUJOCO_GL=osmesa)."
)


def _has_display() -> bool:
    """Whether DISPLAY names an X server that answers: a set variable alone promises nothing."""
    if not os.environ.get("DISPLAY"):
        return False
    try:
        x11 = ctypes.CDLL("libX11.so.6")
    except OSError:
        return False
    x11.XOpenDisplay.restype = ctypes.c_void_p
    display = x11.XOpenDisplay(None)
    if display:
        x11.XCloseDisplay(ctypes.c_void_p(display))
    return bool(display)


def _has_egl_device() -> bool:
    """Whether EGL is installed and offers a device, asked without creating a context."""
    try:
        egl = ctypes.CDLL("libEGL.so.1")
        egl.eglGetProcAddress.restype = ctypes.c_void_p
        address = egl.eglGetProcAddress(b"eglQueryDevicesEXT")
    except (OSError, AttributeError):
        return False
    if not address:
        return False
    # EGLBoolean eglQueryDevicesEXT(EGLint max_devices, EGLDeviceEXT *devices, EGLint *num_devices)
    signature = ctypes.CFUNCTYPE(ctypes.c_uint, ctypes.c_int, ctypes.c_void_p, ctypes.POINTER(ctypes.c_int))
    count = ctypes.c_int(0)
    return bool(signature(address)(0, None, ctypes.byref(count))) and count.value > 0


def _has_osmesa() -> bool:
    """Whether an OSMesa library can be loaded."""
    for name in ("libOSMesa.so.8", "libOSMesa.so.6", "libOSMesa.so"):
        with contextlib.suppress(OSError):
            ctypes.CDLL(name)
            return True
    return False


def choose_backend() -> str | None:
    """Return the GL backend to use on Linux and set ``MUJOCO_GL`` to it; None elsewhere.

    A value of ``MUJOCO_GL`` that the user set is kept, in the lower case that dm_control insists on.
    Otherwise: GLFW where there is a display, then EGL, then OSMesa.

    Raises:
        UserError: the user's value is not a backend, or none can be used.
    """
    if not sys.platform.startswith("linux"):
        return None
    works = {"glfw": _has_display, "egl": _has_egl_device, "osmesa": _has_osmesa}
    backend = os.environ.get("MUJOCO_GL", "").strip().lower()
    if backend and backend not in works:
        hint = did_you_mean(backend, works)
        raise UserError(f"MUJOCO_GL={backend!r} cannot render.{hint} Unset it to choose automatically.")
    if not backend:
        backend = next((name for name, can_start in works.items() if can_start()), None)
    if not backend:
        raise UserError(f"No headless renderer was found. {INSTALL_HINT}")
    os.environ["MUJOCO_GL"] = backend
    return backend


BACKEND = choose_backend()


@contextlib.contextmanager
def gl_errors():
    """Turn whatever is raised in the block, which loads or starts the GL backend, into one UserError."""
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", module="glfw")  # it warns of the same things
            yield
    except Exception as error:
        # The backends raise all kinds of errors, some whose own message cannot be printed.
        reason = f"The {BACKEND or 'default'} renderer cannot start ({type(error).__name__})."
        raise UserError(f"{reason} {INSTALL_HINT}") from error


with gl_errors():  # only after the backend is chosen, because this loads it
    import mujoco


def _current_gl_context(width: int, height: int):
    """Create a GL context of the chosen backend, even when mujoco was imported earlier with another one."""
    module = mujoco if BACKEND is None else importlib.import_module(f"mujoco.{BACKEND}")
    gl = module.GLContext(width, height)
    gl.make_current()
    if BACKEND == "glfw" and not importlib.import_module("glfw").get_current_context():
        raise RuntimeError("GLFW has no window")  # it goes on without, and MuJoCo then ends the process
    return gl


class Renderer:
    """Draws one camera of one model into uint8 frames; made once per environment.

    Scene and context are built once, which makes a frame several times cheaper than dm_control's own
    rendering.

    Args:
        model: the compiled `mujoco.MjModel`. Fields that an episode changes may change afterwards.
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
        self._scene = mujoco.MjvScene(model, maxgeom=2000)
        if quality == "fast":
            self._scene.flags[mujoco.mjtRndFlag.mjRND_SHADOW] = False
            self._scene.flags[mujoco.mjtRndFlag.mjRND_REFLECTION] = False
        flat = np.isin(model.geom_type, (mujoco.mjtGeom.mjGEOM_PLANE, mujoco.mjtGeom.mjGEOM_HFIELD))
        self._floor = np.flatnonzero(flat & (model.body_weldid[model.geom_bodyid] == 0))

        with gl_errors():
            gl = _current_gl_context(width, height)
            with _offscreen_settings(model, height, width, quality):
                self._context = mujoco.MjrContext(model, mujoco.mjtFontScale.mjFONTSCALE_100)
            mujoco.mjr_setBuffer(mujoco.mjtFramebuffer.mjFB_OFFSCREEN, self._context)
        self._gl = gl
        _close_at_exit(self)

    def device(self) -> str:
        """Return what draws, as OpenGL calls it: a graphics card, or "llvmpipe", which is the CPU."""
        from OpenGL import GL

        self._gl.make_current()
        return GL.glGetString(GL.GL_RENDERER).decode(errors="replace")

    def upload_terrain(self) -> None:
        """Send the model's height fields to the GPU again: the start of an episode may have changed them."""
        if self._model.nhfield:
            self._gl.make_current()
            for index in range(self._model.nhfield):
                mujoco.mjr_uploadHField(self._model, self._context, index)

    def frame(self, data: mujoco.MjData) -> np.ndarray:
        """Return the camera's view, uint8 [H, W, 3]."""
        self._draw(data, skybox=True, floor=True)
        return self._rgb[::-1].copy()  # GL's first row is the lowest

    def frame_and_background(
        self, data: mujoco.MjData, matte: str = "matte", keep_background: bool = False
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return the view, uint8 [H, W, 3], and where it shows background, bool [H, W].

        Args:
            matte: what counts as background. "matte": everything but bodies (sky, and planes and height
                fields that are fixed to the world), exactly, from the depth buffer. "sky": the same with the
                floor kept as foreground. "blue": pixels whose blue is strictly the largest channel;
                "blue_ge": blue >= both others. The latter two are the rules of Wang et al. 2022, which eat
                blue foreground on some tasks.
            keep_background: also draw the original background into the frame (a second pass for "matte" and
                "sky"); otherwise its pixels are black there.
        """
        if matte in ("blue", "blue_ge"):
            frame = self.frame(data)
            red, green, blue = frame[..., 0], frame[..., 1], frame[..., 2]
            greater = np.greater if matte == "blue" else np.greater_equal
            return frame, greater(blue, red) & greater(blue, green)
        self._draw(data, skybox=False, floor=matte == "sky", depth=True)
        background = self._depth[::-1] >= 1.0  # nothing was drawn there: the far plane
        return (self.frame(data) if keep_background else self._rgb[::-1].copy()), background

    def close(self) -> None:
        """Free the GL objects while their own context is current: otherwise another renderer's are freed."""
        gl, self._gl = self._gl, None
        if gl is not None:
            gl.make_current()
            self._context.free()
            gl.free()

    def __del__(self):
        self.close()

    def _draw(self, data: mujoco.MjData, skybox: bool, floor: bool, depth: bool = False) -> None:
        self._gl.make_current()
        self._scene.flags[mujoco.mjtRndFlag.mjRND_SKYBOX] = skybox
        with contextlib.nullcontext() if floor else _invisible(self._model, self._floor):
            mujoco.mjv_updateScene(
                self._model, data, self._option, None, self._camera, mujoco.mjtCatBit.mjCAT_ALL, self._scene
            )
        for dress in self._stage:
            dress(self._scene, self._model, data)
        mujoco.mjr_render(self._viewport, self._scene, self._context)
        mujoco.mjr_readPixels(self._rgb, self._depth if depth else None, self._viewport, self._context)


def check_view(model: mujoco.MjModel, camera: int | str, quality: str) -> None:
    """Raise UserError, without starting GL, when there is no such camera or quality."""
    _fixed_camera(model, camera)
    if quality not in QUALITIES:
        raise UserError(f"Unknown render quality {quality!r}.{did_you_mean(quality, QUALITIES)}")


def _fixed_camera(model: mujoco.MjModel, camera: int | str) -> mujoco.MjvCamera:
    """Return the camera of an index or a name, or raise a UserError that lists the model's cameras."""
    index = model.camera(camera).id if isinstance(camera, str) and _has_camera(model, camera) else camera
    if isinstance(index, str) or not -1 <= index < model.ncam:
        names = [*(f"{i} ({model.camera(i).name})" for i in range(model.ncam)), "-1 (free)"]
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
    """Let a context be created with our buffer size (and without the buffers that "fast" does not need)."""
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


_open_renderers: weakref.WeakSet[Renderer] = weakref.WeakSet()


def _close_at_exit(renderer: Renderer) -> None:
    """Remember to close `renderer` at exit, before the backend's own exit handler ends its display."""
    if not hasattr(_close_at_exit, "registered"):
        # Handlers run last-in, first-out; the backend has registered its own with its first context.
        atexit.register(lambda: [each.close() for each in list(_open_renderers)])
        _close_at_exit.registered = True
    _open_renderers.add(renderer)
