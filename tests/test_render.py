"""Pictures of signal and noise: what stands still in a row, where each row moved, and the files of a hero."""

import contextlib
import dataclasses
import itertools
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import small_agent
from PIL import Image

from denoised_mdp.analysis import render
from denoised_mdp.analysis.sheets import SheetRow, contact_sheet, heat_maps, stretched, video
from denoised_mdp.envs import make_env
from denoised_mdp.errors import UserError
from denoised_mdp.evaluation import evaluate
from denoised_mdp.files import whole_mp4


def toy():
    return make_env("dot", suite="toy", action_repeat=1, episode_steps=30)


@pytest.fixture(scope="module")
def agent():
    return small_agent("2c").float()


@pytest.fixture(scope="module")
def episodes(agent):
    return evaluate(agent, toy, [1, 2], record=2, max_steps=9).episodes


def row(*frames, title="a"):
    """A row of pictures of two pixels; the second is twice the first."""
    return SheetRow(title, "b", np.array([[[[v] * 3, [2 * v] * 3]] for v in frames], np.uint8))


def test_movement_is_the_standard_deviation_of_each_pixel():
    np.testing.assert_allclose(row(10, 30, 10, 30).movement, [[10, 20]])
    np.testing.assert_allclose(row(7, 7, 7).movement, 0)
    red = SheetRow("a", "b", np.array([[[[0, 5, 5]]], [[[60, 5, 5]]]], np.uint8))
    np.testing.assert_allclose(red.movement, [[30 / np.sqrt(3)]], rtol=1e-6)


def test_decoded_rows_share_the_brightness_of_their_movement():
    """What the camera sees has a scale of its own; a still row is black, even if all are."""
    seen, quick, slow, still = heat_maps([row(0, 120), row(0, 60), row(0, 30), row(9, 9)])
    assert (quick[0, 1] == seen[0, 1]).all() and (slow[0, 1] == quick[0, 0]).all()
    assert quick.sum() > slow.sum() > still.sum() == heat_maps([row(3, 3), row(4, 4)])[1].sum()
    faint, plain = (heat_maps([row(0, 120), row(9, value)])[1] for value in (10, 19))
    assert faint.sum() < plain.sum(), "by one of 255, which nobody sees"


def test_contrast_is_stretched_alike_in_all_rows():
    first, second = stretched([row(20, 40, 60), row(50, 50, 50)])
    assert first.frames.min() == 0 and first.frames.max() == 255
    at = {int(v): int(new) for v, new in zip(row(20, 40, 60).frames.flat, first.frames.flat, strict=True)}
    assert at[40] == pytest.approx(255 * 20 / 100, abs=3), "20 becomes 0 and 120 becomes 255"
    assert second.frames[0, 0, 0, 0] == pytest.approx(255 * 30 / 100, abs=3)


def test_the_usual_step_is_the_nearest_to_the_mean(agent, episodes):
    latent = episodes[0].latent
    for name in latent.layout.names:
        features = latent.features(name)
        z = (features - features.mean(0)) / features.std(0, correction=0)
        nearest = min(range(len(z)), key=lambda step: float(z[step].square().sum()))
        for found, whole in zip(render.usual(latent, name), latent[name], strict=True):
            torch.testing.assert_close(found, whole[nearest], rtol=0, atol=0)


def test_in_each_row_only_its_latents_move(agent, episodes):
    """Of a latent that a row holds still, no step but the usual one can be seen."""
    first, other = episodes
    before = {row.title: row.frames for row in render.rows(agent, first, other)}
    assert [*before] == ["observation", "reconstruction", "signal", "noise y", "noise z", "swap"]
    shows = {"signal": "x", "noise y": "y", "noise z": "z"}
    for name in shows.values():
        still = render.usual(first.latent, name)
        held = dataclasses.replace(first, latent=first.latent.replace(**{name: still}))
        after = {row.title: row.frames for row in render.rows(agent, held, other)}
        for title, own in shows.items():
            changed = (before[title] != after[title]).any()
            assert changed == (own == name), (title, name)
            if own == name:
                assert (after[title] == after[title][:1]).all(), "nothing moves any more"


def test_layouts_have_a_place_for_each_picture():
    groups = [[row(*range(8), title=str(n)) for n in range(3)]] * 2
    sheet, frames = contact_sheet(groups, columns=4, side=32), list(video(groups, side=32))
    assert sheet.shape[0] > 6 * 32 and sheet.shape[1] > 5 * 32
    assert len(frames) == 8 and {frame.shape for frame in frames} == {frames[0].shape}
    assert all(side % 2 == 0 for side in frames[0].shape[:2])
    assert (frames[0] != frames[7]).any()


def test_a_video_is_as_long_as_its_longest_episode():
    """What has ended stands still."""
    groups = [[row(*range(0, 30, 10))], [row(*range(0, 80, 10))]]
    frames = list(video(groups, side=32))
    assert len(frames) == 8 and all((one != next_).any() for one, next_ in itertools.pairwise(frames))
    upper, lower = (slice(0, len(frames[0]) // 2), slice(len(frames[0]) // 2, None))
    assert all((frames[2][upper] == frame[upper]).all() for frame in frames[2:])
    assert (frames[2][lower] != frames[7][lower]).any()


def test_a_single_episode_swaps_with_one_that_is_not_shown(agent, episodes, tmp_path):
    path = render.write(agent, episodes, tmp_path / "one", shown=1)[0]
    alone = contact_sheet([render.rows(agent, episodes[0], episodes[1])])
    np.testing.assert_array_equal(np.asarray(Image.open(path)), alone)
    both = render.write(agent, episodes, tmp_path / "both")[0]
    assert Image.open(both).height > len(alone)


def test_without_an_ffmpeg_that_works_there_is_one_line_and_no_video(agent, episodes, tmp_path, monkeypatch):
    def none(*arguments, **options):
        raise RuntimeError("No ffmpeg exe could be found. Install ffmpeg on your system")

    class Cut(contextlib.nullcontext):
        """A writer that leaves the beginning of a file, as ffmpeg does on a full disk."""

        def append_data(self, frame):
            pass

    def cut(movie, **options):
        movie.write(whole[:-1])
        return Cut(Cut())

    whole = render.write(agent, episodes, tmp_path / "a")[1].read_bytes()
    assert whole_mp4(whole) and not whole_mp4(whole[:-1]) and not whole_mp4(b"")
    monkeypatch.setattr(render.imageio, "get_writer", cut)
    with pytest.raises(UserError, match="ffmpeg wrote no whole video"):
        render.write(agent, episodes, tmp_path / "a")
    monkeypatch.setattr(render.imageio, "get_writer", none)
    with pytest.raises(UserError, match=r"No video can be encoded: .*No ffmpeg exe could be found"):
        render.write(agent, episodes, tmp_path / "a")
    assert (tmp_path / "a.mp4").read_bytes() == whole, "the one before stays"


def test_a_hero_is_a_still_and_a_small_animation(agent, tmp_path):
    paths = render.render(agent, toy, [1, 2], tmp_path / "hero.webp", steps=12, explore=None, hero=True)
    assert [path.name for path in paths] == ["hero.png", "hero.webp"]
    with Image.open(paths[1]) as animation:
        assert animation.n_frames == 13 and animation.info["loop"] == 0
        assert animation.width == 4 + 4 * 260, "observation, signal and two kinds of noise"
    shown = render.render(
        small_agent("dreamer").float(), toy, [1, 2], tmp_path / "d", steps=12, explore=None, hero=True
    )
    with Image.open(shown[1]) as animation:
        assert animation.width == 4 + 2 * 260, "without noise: observation and reconstruction"
    names = [path.name for path in render.files(Path("a.mp4"), hero=True) + render.files(Path("a.webp"))]
    assert names == ["a.png", "a.webp", "a.png", "a.mp4"]
    with pytest.raises(Exception, match="nowhere"):
        render.render(agent, toy, [1, 2], tmp_path / "hero.png" / "nowhere", steps=3, explore=None, hero=True)
