"""MuJoCo's OpenGL backend: its choice, a one-line error if it cannot start, and its shutdown at exit.

Importing this module chooses the backend. This must happen before the first ``import mujoco``.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import importlib
import os
import sys
import threading
import warnings
import weakref

from denoised_mdp.errors import UserError, did_you_mean, one_line

INSTALL_HINT = (
    "On Debian or Ubuntu install 'libegl1 libegl-mesa0 libgl1-mesa-dri libgl1' (MUJOCO_GL=egl) "
    "or 'libosmesa6' (MUJOCO_GL=osmesa)."
)


def _has_display() -> bool:
    """Whether DISPLAY names an X server that answers; the variable alone is not enough."""
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
    """Whether EGL is installed and offers a device; creates no context."""
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

    A user's ``MUJOCO_GL`` is kept, in the lower case that dm_control requires.
    Otherwise: GLFW if there is a display, then EGL, then OSMesa.

    Raises:
        UserError: the user's value is not a backend, or no backend can be used.
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
    """Turn any error in the block, which loads or starts the GL backend, into one UserError."""
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", module="glfw")  # its warnings repeat the error
            yield
    except UserError:
        raise
    except Exception as error:
        # Errors of all kinds: from a backend, perhaps without a message, and from packages of incompatible versions.
        found = ": ".join(filter(None, (type(error).__name__, one_line(error, 200))))
        reason = f"The {BACKEND or 'default'} renderer cannot start ({found})."
        raise UserError(f"{reason} {INSTALL_HINT}") from error


with gl_errors():  # only after the backend is chosen, because this loads it
    import mujoco

_started_in: int | None = None  # the process in which the first GL context was made
_inherited: list = []


class _OfThread(threading.local):
    """The GL contexts of one thread: a context can be current in one thread alone."""

    def __init__(self):
        self.alive: set = set()  # made or used here, and not freed; see `current_gl_context`
        self.idle: list = []  # left by closed renderers; one may still be current
        self.dropped: list[tuple] = []  # (context, objects in it) of renderers that were collected before a `close`


_here = _OfThread()
_KEPT = 4  # idle contexts per thread


def check_process() -> None:
    """Raise UserError in a process that was forked after OpenGL started: it lacks OpenGL's threads and would hang."""
    if _started_in not in (None, os.getpid()):
        raise UserError(
            "This process was forked after a frame was drawn, and OpenGL does not survive a fork: start processes"
            ' with context="spawn", as in AsyncVectorEnv(..., context="spawn").'
        )


def keep_inherited(*objects) -> bool:
    """Return whether this is a forked process. If so, keep the parent's GL `objects` alive: freeing them hangs."""
    if _started_in in (None, os.getpid()):
        return False
    _inherited.append(objects)
    return True


def current_gl_context(width: int, height: int):
    """Make a GL context of the chosen backend current, even if mujoco was first imported with another.

    It is reused from a closed renderer of this thread if there is one (see `release`), else new. It is kept alive here:
    if it were collected together with an unclosed renderer, its own finalizer would free it, and nobody could use it.

    Raises:
        UserError: see `check_process`; other errors come from the backend, see `gl_errors`.
    """
    global _started_in
    check_process()
    _started_in = os.getpid()
    module = mujoco if BACKEND is None else importlib.import_module(f"mujoco.{BACKEND}")
    _release_dropped()
    gl = _here.idle.pop() if _here.idle else module.GLContext(width, height)
    _here.alive.add(gl)
    gl.make_current()
    if BACKEND == "glfw" and not importlib.import_module("glfw").get_current_context():
        raise RuntimeError("GLFW has no window")  # GLFW continues without one, and MuJoCo then ends the process
    return gl


def free_gl_context(gl) -> None:
    """Free a context."""
    gl.free()
    _here.alive.discard(gl)


def release(gl, objects) -> None:
    """Free a renderer's `objects` (`MjrContext`) while its own context is current: else another renderer's would go.

    The context itself is kept for the next renderer: in a new one the driver compiles its shaders again, which takes
    longer than all other set-up of a renderer. Its size does not matter: MuJoCo draws into its own buffer.
    """
    if keep_inherited(gl, objects):
        return
    gl.make_current()
    objects.free()
    _here.idle.append(gl)
    if len(_here.idle) > _KEPT:
        free_gl_context(_here.idle.pop(0))


def dropped_here() -> list[tuple]:
    """Return the list that takes (context, objects) of this thread's collected renderers, to be released later.

    A finalizer may run at any time, also between two GL calls of another renderer or in another thread, so it must not
    make a context current.
    """
    return _here.dropped


def _release_dropped() -> None:
    while _here.dropped:
        release(*_here.dropped.pop())


_open_renderers: weakref.WeakSet = weakref.WeakSet()


def close_at_exit(renderer) -> None:
    """Register `renderer` (a `Renderer`) to be closed at exit, before the backend's exit handler ends its display."""
    if not _open_renderers:
        close_first_at_exit()
    _open_renderers.add(renderer)


def close_first_at_exit() -> None:
    """Close renderers before all exit handlers registered so far; call again after an import that registers more.

    Handlers run last in, first out. A backend registers its own with its first context, dm_control when imported.
    """
    atexit.unregister(_close_all)
    atexit.register(_close_all)


def _close_all() -> None:
    for each in list(_open_renderers):
        each.close()
    _release_dropped()
    idle, _here.idle = _here.idle, []
    if not keep_inherited(*idle):
        for gl in idle:
            free_gl_context(gl)
