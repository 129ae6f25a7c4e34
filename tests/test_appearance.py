"""Distractors of the scene, applied to scenes made by hand: no renderer."""

from types import SimpleNamespace

import numpy as np
import pytest

from denoised_mdp.envs.distractors.appearance import BodyColor, CameraPose, Lighting


def dressed(kind, scene, values, model=None, data=None):
    """Apply a distractor whose factors have these values to a scene."""
    distractor = kind.__new__(kind)
    distractor.noise_values = lambda: np.array([values.get(name, 0.0) for name in kind.factors])
    distractor.dress(scene, model, data)


def light(headlight=False):
    direction = np.array([0.3, -0.2, -1.0])
    colors = {name: np.array([0.1, 0.2, 0.3]) for name in ("ambient", "diffuse", "specular")}
    return SimpleNamespace(
        headlight=headlight, pos=np.array([1.0, 2.0, 4.0]), dir=direction / np.linalg.norm(direction), **colors
    )


def lit(one):
    """The place on the floor, z = 0, that a lamp points at."""
    return one.pos - one.dir * (one.pos[2] / one.dir[2])


def test_lamps_swing_around_the_place_that_they_light():
    """By a share of their height; the camera's headlight does not."""
    lamp, head = light(), light(headlight=True)
    target = lit(lamp)
    dressed(Lighting, SimpleNamespace(lights=[lamp, head], nlight=2), {"swing_x": 0.5, "swing_y": -0.25})
    np.testing.assert_allclose(lamp.pos, [1.0 + 0.5 * 4, 2.0 - 0.25 * 4, 4.0])
    np.testing.assert_allclose(lit(lamp), target, atol=1e-12)
    assert np.linalg.norm(lamp.dir) == pytest.approx(1) and lamp.dir[2] < 0
    np.testing.assert_array_equal([head.pos, head.dir], [light().pos, light().dir])


def test_every_light_is_as_bright_and_warm_as_the_factors_say():
    lamp, head = light(), light(headlight=True)
    dressed(Lighting, SimpleNamespace(lights=[lamp, head], nlight=2), {"brightness": np.log(2), "warmth": np.log(3)})
    for one in (lamp, head):
        for part in (one.ambient, one.diffuse, one.specular):
            np.testing.assert_allclose(part, [0.1 * 6, 0.2 * 2, 0.3 * 2 / 3])


def test_colours_of_what_moves_stay_between_0_and_1():
    """Of geoms and sites those of moving bodies, skins and tendons; opacity stays."""
    geom, site, skin, tendon, camera = 5, 6, 11, 18, 7  # of mjtObj
    kinds = [(geom, 0), (geom, 1), (site, 0), (site, 1), (skin, 0), (tendon, 0), (camera, 0)]
    drawn = [SimpleNamespace(objtype=kind, objid=i, rgba=np.array([0.9, 0.5, 0.1, 0.7])) for kind, i in kinds]
    model = SimpleNamespace(body_weldid=np.array([0, 3]), geom_bodyid=np.array([0, 1]), site_bodyid=np.array([1, 0]))
    dressed(BodyColor, SimpleNamespace(geoms=drawn, ngeom=7), {"red": 0.3, "green": 0.2, "blue": -0.3}, model)
    plain, shifted = [0.9, 0.5, 0.1, 0.7], [1.0, 0.7, 0.0, 0.7]
    expected = [plain, shifted, shifted, plain, shifted, shifted, plain]
    np.testing.assert_allclose([one.rgba for one in drawn], expected)


@pytest.mark.parametrize("ahead", [5.0, 0.01, -3.0])
def test_a_camera_turns_about_what_is_in_front_of_it(ahead):
    """The body's depth, or the model's extent where the body is behind the camera or in it; it stays as far away."""
    position, forward = np.array([1.0, 1.0, 1.0]), np.array([0.0, 1.0, 0.0])
    camera = [SimpleNamespace(pos=position.copy(), forward=forward.copy(), up=np.array([0, 0, 1.0])) for _ in range(2)]
    head = light(headlight=True)
    scene = SimpleNamespace(camera=camera, lights=[head, light()], nlight=2)
    model = SimpleNamespace(stat=SimpleNamespace(extent=2.0))
    data = SimpleNamespace(subtree_com=np.array([position + ahead * forward]))
    dressed(CameraPose, scene, {"azimuth": 0.4, "elevation": 0.2, "distance": np.log(1.5)}, model, data)
    depth = ahead if ahead > 0.05 * 2.0 else 2.0
    pivot = position + depth * forward
    for eye in camera:
        np.testing.assert_allclose(eye.pos + 1.5 * depth * eye.forward, pivot)
        assert np.linalg.norm(eye.forward) == pytest.approx(1) and eye.forward @ eye.up == pytest.approx(0, abs=1e-12)
        np.testing.assert_allclose(np.arctan2(-eye.forward[0], eye.forward[1]), 0.4)
        assert abs(np.arcsin(eye.forward[2])) == pytest.approx(0.2)
    np.testing.assert_allclose([head.pos, head.dir], [camera[0].pos, camera[0].forward])
    np.testing.assert_array_equal(scene.lights[1].pos, light().pos)


@pytest.mark.parametrize("name", ["frame", "foreground", "frame_and_background"])
def test_all_that_is_drawn_shows_the_changed_scene(name):
    """And nothing is left on the stage."""
    world, distractor = SimpleNamespace(stage=[]), BodyColor.__new__(BodyColor)
    distractor.env = SimpleNamespace(unwrapped=world, **{name: lambda *_: list(world.stage)})
    assert getattr(distractor, name)() == [distractor.dress] and world.stage == []
