"""RoboDesk's pictures: the camera and what it keeps, the room, lamps, television; no distractors."""

import numpy as np
import pytest
from robodesk_case import MARKS

from denoised_mdp.envs.distractors import SmoothWalk
from denoised_mdp.envs.robodesk.camera import DESK, OVERSAMPLING, ROOM, RoomRenderer, View
from denoised_mdp.envs.robodesk.env import RoboDeskEnv
from denoised_mdp.envs.robodesk.scene import WOOD_GAIN, build_model, wood_brightness

pytestmark = MARKS


@pytest.mark.parametrize("view, size", [(ROOM, 96), (DESK, 96), (DESK, 64)])
def test_the_part_that_is_drawn_equals_the_whole_cut(view, size):
    import mujoco
    from PIL import Image

    model = build_model(view is ROOM, "fast")
    data = mujoco.MjData(model)
    mujoco.mj_forward(model, data)
    part = RoomRenderer(model, size, view, "fast")
    whole_view = View(view.target, view.distance, view.elevation, (0.0, 0.0, 1.0, 1.0))
    whole = RoomRenderer(model, size, whole_view, "fast")
    side = round(OVERSAMPLING * size)
    try:
        whole.film(data, np.zeros(3), np.zeros(3))
        box = [side * edge for edge in view.part]
        expected = Image.fromarray(whole._rgb[::-1]).resize((size, size), Image.Resampling.LANCZOS, box)
        drawn = part.film(data, np.zeros(3), np.zeros(3))
        assert drawn.flags.writeable and drawn.dtype == np.uint8
        difference = np.abs(drawn.astype(int) - np.asarray(expected))
        assert difference.mean() < 0.5 and (difference > 8).mean() < 0.01
    finally:
        part.close()
        whole.close()


def test_what_is_kept_of_180_pixels():
    renderer = RoomRenderer(build_model(True, "fast"), 96, ROOM, "fast")
    assert renderer._rgb.shape == (141, 180, 3) and renderer._rows == (39, 180)
    renderer.close()


def turned(distance, azimuth, elevation):
    """From the eye to the target [3]."""
    azimuth, elevation = np.deg2rad([azimuth, elevation])
    level = np.cos(elevation)
    return distance * np.array([level * np.cos(azimuth), level * np.sin(azimuth), np.sin(elevation)])


def test_the_camera_stands_where_it_should_and_shakes_before_the_views_offset():
    """Brute force: shake the package's pose, measure distance and angles of what comes out, and add to them."""
    target, eye = np.array([0, 0.535, 1.1]), np.array([0, 0.535, 1.1]) - turned(1.8, 90, -60)
    still = ROOM.pose(np.zeros(3), np.zeros(3))
    np.testing.assert_allclose(still[0], [0.875, 0.935, 1.975])
    np.testing.assert_allclose(still[1:], [2.95, 90, -47])
    for shifts in np.random.default_rng(0).normal(0, 0.05, (20, 2, 3)):
        at, distance, azimuth, elevation = DESK.pose(*shifts)
        np.testing.assert_allclose(at, target + shifts[1])
        np.testing.assert_allclose(turned(distance, azimuth, elevation), target + shifts[1] - eye - shifts[0])
        far = ROOM.pose(*shifts)
        np.testing.assert_allclose(far[0], at + [0.875, 0.4, 0.875])
        np.testing.assert_allclose(far[1:], [distance + 1.15, azimuth, elevation + 13])


def pixel(point, at, distance, azimuth, elevation):
    """Where a camera of 45 degrees sees `point`, in pixels of 96 that are squeezed from 180 columns and 141 rows."""
    ahead = turned(1, azimuth, elevation)
    right = turned(1, azimuth - 90, 0)
    line = point - at + distance * ahead
    focus = 90 / np.tan(np.deg2rad(22.5))
    x, y = focus * np.array([line @ right, line @ np.cross(ahead, right)]) / (line @ ahead)
    return x * 96 / 180, y * 96 / 141


def test_how_far_the_shaken_picture_moves():
    """Root mean squares in pixels, against those of the paper's picture on the desk and on the television.

    With the view's offset added before the shake, the television moves by 1.06 pixels in x.
    """
    rng, eye, target = np.random.default_rng(0), SmoothWalk(3, 0.3), SmoothWalk(3, 0.65)
    desk, television, places = np.array([0.875, 0.85, 0.76]), np.array([1.3, 1.825, 1.6]), []
    for _ in range(12):
        for walk in (eye, target):
            walk.reset(rng)
        for step in range(1000):
            if step % 25 == 0:
                pose = ROOM.pose(eye.value(), target.value())
                places.append([pixel(point, *pose) for point in (desk, television)])
            eye.step(rng)
            target.step(rng)
    (desk_x, desk_y), (television_x, television_y) = np.std(places, axis=0)
    np.testing.assert_allclose([desk_x, desk_y, television_x], [0.62, 1.46, 1.46], rtol=0.12)
    assert television_y == pytest.approx(1.08, rel=0.3)  # the one that hangs most on the episode


def test_the_room():
    """Neighbours without blocks and with unlit lamps, the television's looks, and no more joints than at the desk."""
    import mujoco

    model = build_model(True, "faithful")
    data = mujoco.MjData(model)
    mujoco.mj_forward(model, data)
    assert model.nq == build_model(False, "faithful").nq == 38
    visible = (model.geom_group <= 2) & (model.geom_rgba[:, 3] > 0)
    aside = visible & (data.geom_xpos[:, 0] > 0.7) & (data.geom_xpos[:, 1] < 1.2)
    for name in ("ball", "upright_block", "flat_block"):
        color = model.geom_rgba[model.body(name).geomadr[0]]
        assert not (aside & (model.geom_rgba == color).all(1)).any()
    assert (model.geom_rgba[aside, 3] == 1).all()  # what rises in a lamp is translucent
    assert (aside & (data.geom_xpos[:, 0] < 2)).sum() * 2 == aside.sum() > 30
    tv = [model.geom(i) for i in np.flatnonzero(model.geom_bodyid == model.body("tv").id)]
    np.testing.assert_allclose(model.body("tv").pos, [1.3, 1.825, 1.6])
    bezel, stand, screen = tv
    for geom, size, place, color in (
        (bezel, [2.4, 0.03, 1.4], [0, 0.035, 0], [0.1, 0.1, 0.1, 1]),
        (stand, [2.6, 0.2, 0.05], [0, 0, -1.5], [0.32, 0.137, 0.12, 1]),
        (screen, [2.3, 1.34, 1e-6], [0, 0, 0], [0.5, 0.5, 0.5, 1]),
    ):
        for is_, should in ((geom.size, size), (geom.pos, place), (geom.rgba, color)):
            np.testing.assert_allclose(is_, should, rtol=1e-6)
    look = model.material("tv")
    found = [float(value[0]) for value in (look.reflectance, look.shininess, look.specular, look.emission)]
    np.testing.assert_allclose(found, [0.7, 1, 1, 0], rtol=1e-6)
    assert model.material("plane_material").reflectance == pytest.approx(0.01)
    assert build_model(False, "fast").material("plane_material").reflectance == pytest.approx(0.05)
    lamp = model.geom("lamp/green")
    np.testing.assert_allclose(lamp.size[:2], [0.06, 0.0075])
    np.testing.assert_allclose(lamp.pos, [0, 0, 0.005])
    assert lamp.bodyid == model.body("green_light").id


def test_the_television_is_upright_and_not_mirrored():
    env = RoboDeskEnv("tv_green_hue")
    env.reset(seed=0)
    picture = np.zeros((60, 120, 3), np.uint8)
    picture[30:, :60] = 255, 0, 0  # lower left
    picture[30:, 60:] = 0, 0, 255  # lower right
    env.show_on_tv(lambda: picture)
    frame = env.frame().astype(int)
    env.close()
    left, right, above = frame[36:48, 15:35], frame[36:48, 65:85], frame[2:12, 20:76]
    assert (left[..., 0] - left[..., 2]).min() > 150 and (right[..., 2] - right[..., 0]).min() > 150
    assert above.max() < 60


def test_what_there_is_to_see():
    """Each thing hidden in turn changes the picture: arm, desk, drawer, blocks, buttons, bin, lamps, neighbours."""
    env = RoboDeskEnv("tv_green_hue")
    env.reset(seed=0)
    env._data.qpos[:9] = [-0.3, -0.4, 0.28, -2.5, 0.13, 1.87, 0.91, 0.01, 0.01]
    env._data.qpos[env._model.joint("drawer_joint").qposadr[0]] = -0.3
    env.step(np.zeros(5))
    whole, model = env.frame().astype(int), env._model
    bodies = ("panda0_link4", "desk", "drawer", "slide", "ball", "upright_block", "flat_block", "red_light", "tv")
    for body in bodies:
        geoms = np.flatnonzero(model.geom_bodyid == model.body(body).id)
        saved = model.geom_group[geoms].copy()
        model.geom_group[geoms] = 5
        assert np.abs(env.frame() - whole).max() > 20, body
        model.geom_group[geoms] = saved
    np.testing.assert_array_equal(env.frame(), whole)
    env.close()


def test_wood_is_as_bright_as_with_shadows():
    """The closed form: light by light cut off at 1, against the sum cut off at 1 and a brighter texture."""
    places, diffuse = np.array([[0.0, 0.0, 1.0]] * 3), np.array([0.3, 0.1, 0.0])
    color = wood_brightness(0.4, diffuse, places)
    assert WOOD_GAIN * color * (0.4 + 0.3 + 0.1) == pytest.approx(0.8 + 0.6 + 0.2)
    color = wood_brightness(0.9, diffuse, places)  # 2 * 0.9 is cut off
    assert WOOD_GAIN * color * (0.9 + 0.3 + 0.1) == pytest.approx(1 + 0.6 + 0.2)


def test_lamps_follow_the_noisy_sensors_and_without_noise_the_pressed_buttons():
    world = RoboDeskEnv("push_green")
    world.reset(seed=0)
    world._data.qpos[world._lights] = [0.0, -0.0045, -0.0046]  # up, almost pressed, pressed
    world.frame()
    rgba = world._model.geom_rgba[world._lamps]
    np.testing.assert_allclose(rgba[:, 3], [0, 0, 0.4])
    np.testing.assert_array_equal(rgba[2, :3], [0, 0, 1])
    world._data.qpos[world._lights] = [0.0, -0.0005, -0.005]
    world.sensor_error = np.array([-0.02, 0.0, 0.0])
    world.frame()
    lamps = world._model.geom_rgba[world._lamps]
    np.testing.assert_allclose(lamps, [[0.3, 0.3, 0.3, 0.44], [0, 1, 0, 0.28], [0, 0, 1, 1]], atol=1e-6)
    world.close()
