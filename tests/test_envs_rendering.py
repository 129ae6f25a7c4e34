"""The renderer against dm_control's, the matte against segmentation, and lifetimes of GL contexts."""

import gc
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import mujoco
import numpy as np
import pytest

from denoised_mdp.envs import gl
from denoised_mdp.envs.distractors.video_background import put_behind
from denoised_mdp.envs.dmc import EPISODE_FIELDS, DMCEnv
from denoised_mdp.errors import UserError


@pytest.mark.parametrize("task", ["cheetah_run", "quadruped_escape"])  # the latter measures distances by rays
def test_faithful_quality_draws_what_dm_control_draws(task):
    env = DMCEnv(task, quality="faithful")
    env.reset(seed=0)
    theirs = env._physics.render(64, 64, camera_id=0)
    np.testing.assert_array_equal(env.frame(), theirs)
    env.close()
    env._physics.free()


@pytest.mark.parametrize("task", ["cheetah_run", "walker_walk", "reacher_easy", "ball_in_cup_catch"])
def test_matte_is_exact(task):
    env = DMCEnv(task)
    env.reset(seed=1)
    for _ in range(3):
        env.step(env.action_space.sample())
    full = env.frame()
    frame, background = env.frame_and_background("matte")
    model = env._physics.model
    geoms = env._physics.render(64, 64, camera_id=0, segmentation=True)
    is_geom, number = geoms[..., 1] == 5, geoms[..., 0]  # mjOBJ_GEOM
    planes = is_geom & (model.geom_type[np.where(is_geom, number, 0)] == 0)
    sky = geoms[..., 0] < 0
    np.testing.assert_array_equal(background, sky | planes)
    np.testing.assert_array_equal(frame[~background], full[~background])
    assert (frame[background] == 0).all()
    frame, only_sky = env.frame_and_background("sky")
    np.testing.assert_array_equal(only_sky, sky)
    np.testing.assert_array_equal(env.frame(), full)  # nothing of the model was left changed
    blue = env.frame_and_background("blue")[1]
    red_, green_, blue_ = np.moveaxis(full.astype(int), -1, 0)
    np.testing.assert_array_equal(blue, (blue_ > red_) & (blue_ > green_))
    np.testing.assert_array_equal(env.frame_and_background("blue_ge")[1], (blue_ >= red_) & (blue_ >= green_))
    env.close()
    env._physics.free()


@pytest.mark.parametrize("task, matte", [("cheetah_run", "matte"), ("cheetah_run", "sky"), ("reacher_easy", "matte")])
def test_multisampled_edges_mix_with_what_is_put_behind_them(task, matte):
    """Before a picture of its own background, the composite is the plain picture, at edges too: no dark fringes."""
    env = DMCEnv(task, quality="faithful")
    env.reset(seed=1)
    renderer, model = env.renderer(), env._physics.model.ptr
    for flag in (mujoco.mjtRndFlag.mjRND_SHADOW, mujoco.mjtRndFlag.mjRND_REFLECTION):
        renderer._scene.flags[flag] = False  # else the background holds what bodies do to it
    plain = env.frame().astype(int)
    foreground, share = env.frame_and_background(matte)
    hidden = ~np.isin(np.arange(model.ngeom), renderer._floor) if matte == "matte" else np.full(model.ngeom, True)
    model.geom_rgba[hidden, 3], model.geom_matid[hidden] = 0, -1
    composite = put_behind(env.frame(), foreground, share)
    edges = (share > 0) & (share < 1)
    assert edges.sum() > 40 and (share == 0).any() and (share == 1).any()
    assert np.abs(composite - plain).max() <= 1  # of rounding
    assert composite.dtype == np.uint8
    env.close()


@pytest.mark.parametrize("quality", ["fast", "faithful"])
def test_what_is_translucent_does_not_overflow_before_a_bright_video(quality):
    """quadruped_escape draws rangefinders, faint lines without depth: they tint the video, and do not wrap around."""
    env = DMCEnv("quadruped_escape", quality=quality)
    env.reset(seed=1)
    foreground, share = env.frame_and_background()
    composite = put_behind(np.full((64, 64, 1), 255, np.uint8), foreground, share)
    assert share.mean() > 0.5
    assert (composite >= 255 * share[..., None] - 1).all()
    env.close()


def test_a_frame_of_faithful_quality_is_the_same_after_a_matte():
    env = DMCEnv("cheetah_run", quality="faithful")
    env.reset(seed=1)
    frame = env.frame()
    env.frame_and_background()
    np.testing.assert_array_equal(env.frame(), frame)
    env.close()


def test_many_renderers_in_one_process_do_not_disturb_each_other():
    tasks = ["cheetah_run", "walker_walk", "reacher_easy", "cheetah_run"]
    alone = []
    for task in tasks:
        env = DMCEnv(task)
        env.reset(seed=1)
        alone.append(env.frame())
        env.close()
    envs = [DMCEnv(task) for task in tasks]
    for env in envs:
        env.reset(seed=1)
    for _ in range(2):
        for env, frame in zip(envs, alone, strict=True):
            np.testing.assert_array_equal(env.frame(), frame)
    envs.pop(1).close()
    alone.pop(1)
    del envs[0], alone[0]  # without close
    for env, frame in zip(envs, alone, strict=True):
        np.testing.assert_array_equal(env.frame(), frame)
        env.close()
        np.testing.assert_array_equal(env.frame(), frame)  # a new renderer is made when needed
        env.close()


def test_the_context_of_a_closed_renderer_serves_the_next_one_of_its_thread_alone():
    """In another thread, where it may not be made current, a renderer gets a new one."""
    env = DMCEnv("cheetah_run")
    env.reset(seed=0)

    def draw():
        frame, context = env.frame(), env.renderer()._gl
        env.close()
        return frame, context

    frame, first = draw()
    with ThreadPoolExecutor(1) as executor:
        other_frame, other = executor.submit(draw).result()
    again, second = draw()
    assert second is first is not other
    np.testing.assert_array_equal(other_frame, frame)
    np.testing.assert_array_equal(again, frame)


def test_environments_that_are_collected_without_a_close_disturb_no_other():
    """By the garbage collector: in any order, while another one draws, and in another thread."""
    drawing = DMCEnv("cheetah_run")
    drawing.reset(seed=0)
    expected = drawing.frame()
    drawing.stage.append(lambda *_: gc.collect())
    gc.disable()
    try:
        with ThreadPoolExecutor(1) as threads:
            for number in range(6):
                lost = DMCEnv("walker_walk")
                lost.reset(seed=0)
                assert lost.frame().any()
                lost.itself = lost  # else it would not wait for the garbage collector
                del lost
                if number % 2:
                    threads.submit(gc.collect).result()
                np.testing.assert_array_equal(drawing.frame(), expected)
    finally:
        gc.enable()
    drawing.close()


def test_state_covers_what_episodes_change_in_the_model():
    for task in (
        "finger_turn_hard",
        "fish_swim",
        "manipulator_insert_peg",
        "point_mass_hard",
        "reacher_easy",
        "stacker_stack_2",
        "swimmer_swimmer6",
        "quadruped_escape",
    ):
        env = DMCEnv(task)
        model = env._physics.model.ptr
        fields = [name for name in dir(model) if isinstance(getattr(model, name), np.ndarray)]
        fields = [name for name in fields if name not in EPISODE_FIELDS and not name.startswith("_")]
        before = {name: getattr(model, name).copy() for name in fields}
        env.reset(seed=0)
        env.step(env.action_space.sample())
        for name, value in before.items():
            np.testing.assert_array_equal(getattr(model, name), value, err_msg=f"{task} {name}")


def test_unknown_camera_and_quality():
    for options in ({"camera": 99}, {"camera": -2}, {"camera": "fron"}, {"quality": "fats"}):
        with pytest.raises(UserError) as error:  # at once, before anything is drawn
            DMCEnv("cheetah_run", **options)
        assert "\n" not in str(error.value)
    env = DMCEnv("cheetah_run", camera="side")
    env.reset(seed=0)
    assert env.frame().any()
    env.close()


def test_backend_choice(monkeypatch):
    if not sys.platform.startswith("linux"):
        assert gl.choose_backend() is None
        return
    monkeypatch.delenv("MUJOCO_GL", raising=False)
    monkeypatch.setenv("DISPLAY", ":77")  # nobody answers there
    monkeypatch.setattr(gl, "_has_egl_device", lambda: False)
    monkeypatch.setattr(gl, "_has_osmesa", lambda: True)
    assert gl.choose_backend() == os.environ["MUJOCO_GL"] == "osmesa"
    monkeypatch.setenv("MUJOCO_GL", "")
    monkeypatch.setattr(gl, "_has_osmesa", lambda: False)
    with pytest.raises(UserError, match="libegl1"):
        gl.choose_backend()
    monkeypatch.setattr(gl, "_has_display", lambda: True)
    assert gl.choose_backend() == os.environ["MUJOCO_GL"] == "glfw"
    monkeypatch.setenv("MUJOCO_GL", "elg")
    with pytest.raises(UserError, match="Did you mean 'egl'"):
        gl.choose_backend()
    monkeypatch.setenv("MUJOCO_GL", " EGL ")
    assert gl.choose_backend() == os.environ["MUJOCO_GL"] == "egl"


def run(code, timeout=None, **variables):
    """Run `code` in a new process without a display, for at most `timeout` seconds."""
    unset = ("MUJOCO_GL", "PYOPENGL_PLATFORM", "DISPLAY", "WAYLAND_DISPLAY")
    environment = {key: value for key, value in os.environ.items() if key not in unset} | variables
    return subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True, timeout=timeout
    )


ESCAPE = """
from denoised_mdp.envs import make_env

env = make_env("quadruped_escape", distractors=["video_background"], episode_steps=4)
frame = env.reset(seed=0)[0]
env.step(env.action_space.sample())
assert (env.reset()[0] != frame).any()
assert env.world.unwrapped._physics._contexts is None
print("drew")
"""


DM_CONTROL_FIRST = """
import warnings

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # it looks for a display
    import dm_control.suite
"""


@pytest.mark.parametrize("first", ["", DM_CONTROL_FIRST], ids=["alone", "dm_control first"])
def test_a_task_that_uploads_terrain_leaves_no_context_of_dm_control(first):
    result = run(first + ESCAPE)
    assert (result.stdout, result.stderr) == ("drew\n", "")


FORK = """
import os, gymnasium, warnings
from denoised_mdp.envs import make_env, register_envs
from denoised_mdp.errors import UserError

warnings.simplefilter("ignore")
register_envs()
env = make_env("pendulum_swingup")
env.reset(seed=0)
if not (child := os.fork()):
    try:
        env.render()
    except UserError as error:
        print(error, flush=True)
    env.close()
    del env
    os._exit(0)
os.waitpid(child, 0)
vector = gymnasium.make_vec(
    "denoised_mdp/pendulum_swingup-v0", 1, vectorization_mode="async", vector_kwargs={"context": "fork"}
)
try:
    vector.reset(seed=0)
except UserError as error:
    print(error)
env.render()
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_fork_after_a_frame_is_one_line_and_no_hang():
    result = run(FORK, timeout=100)
    assert result.stderr == ""
    lines = result.stdout.splitlines()
    assert len(lines) == 2 and lines[0] == lines[1] and 'context="spawn"' in lines[0]


def test_mujoco_imported_first_still_draws():
    code = "import mujoco; import denoised_mdp.envs as e; print(e.make_env('cheetah_run').reset()[0].std())"
    assert float(run(code).stdout) > 1


DRAW_TWICE = """
from denoised_mdp import envs
from denoised_mdp.errors import UserError

for _ in range(2):
    try:
        print("drew", envs.make_env("cheetah_run").reset()[0].mean())
    except UserError as error:
        print(error)
"""
WITHOUT_LIBRARIES = """
import ctypes

class CDLL(ctypes.CDLL):
    def __init__(self, name, *args, **options):
        if name and any(part in name for part in ("EGL", "OSMesa", "GL.so")):
            raise OSError(f"{name}: cannot open shared object file")
        super().__init__(name, *args, **options)

ctypes.CDLL = CDLL
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the backends of Linux")
@pytest.mark.parametrize("backend", ["glfw", "osmesa", ""])
def test_a_renderer_that_cannot_start_is_one_line(backend):
    result = run((WITHOUT_LIBRARIES if backend != "glfw" else "") + DRAW_TWICE, MUJOCO_GL=backend)
    assert result.stderr == ""
    lines = result.stdout.splitlines()
    assert len(lines) == 2 and all("renderer" in line and "libegl1" in line for line in lines)


def test_what_keeps_a_renderer_from_starting_is_named():
    """It may be a package that does not fit to another, which no GL library mends."""
    with (
        pytest.raises(UserError, match=r"cannot start \(ImportError: needs mujoco 4\\x00\)\. On Debian"),
        gl.gl_errors(),
    ):
        raise ImportError("needs mujoco\n4\x00")
    with pytest.raises(UserError, match=r"cannot start \(OSError\)\."), gl.gl_errors():
        raise OSError


@pytest.mark.skipif(not gl._has_egl_device(), reason="needs EGL")
def test_the_name_of_the_backend_may_be_upper_case():
    assert run(DRAW_TWICE, MUJOCO_GL="EGL").stdout.startswith("drew")
