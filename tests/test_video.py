"""Clips: decoding, splits, cache, streams and the procedural default."""

import os

import av
import numpy as np
import pytest

from denoised_mdp.envs import video
from denoised_mdp.envs.procedural import FRAMES, procedural_clip
from denoised_mdp.envs.video import Stream, find_videos, open_clips
from denoised_mdp.errors import UserError


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    folder = tmp_path / "cache"
    monkeypatch.setenv("DENOISED_MDP_CACHE", str(folder))
    return folder


def write_video(path, frames, color=(0, 0, 0)):
    """Write a lossless video whose frame n has brightness 2 n + 20, plus `color`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with av.open(str(path), "w") as container:
        stream = container.add_stream("ffv1", rate=25)
        stream.width, stream.height, stream.pix_fmt = 80, 48, "bgr0"
        for number in range(frames):
            image = np.full((48, 80, 3), 2 * number + 20, np.uint8) + np.array(color, np.uint8)
            for packet in stream.encode(av.VideoFrame.from_ndarray(image, "rgb24").reformat(format="bgr0")):
                container.mux(packet)
        for packet in stream.encode():
            container.mux(packet)
    return path


def open_two(folder, **options):
    return open_clips(str(folder), options.pop("split", "train"), 16, options.pop("color", False), 1000)


def test_decoding_is_frame_exact(tmp_path):
    path = write_video(tmp_path / "a.mkv", 30, color=(60, 0, 0))
    frames = video.decode(path, 16, True, 1000)
    assert frames.shape == (30, 16, 16, 3) and frames.dtype == np.uint8
    expected = 2 * np.arange(30)[:, None] + 20 + np.array([60, 0, 0])
    assert np.abs(frames.astype(int) - expected[:, None, None]).max() <= 1
    assert video.decode(path, 16, True, 12).shape[0] == 12  # a long clip is cut


def test_grayscale_is_luma(tmp_path):
    frames = video.decode(write_video(tmp_path / "a.mkv", 3, color=(100, 0, 0)), 8, False, 10)
    assert frames.shape == (3, 8, 8, 1)
    assert np.abs(frames[0].astype(float) - (20 + 0.299 * 100)).max() <= 3


def test_files_of_one_folder_are_divided_disjointly(tmp_path):
    files = {write_video(tmp_path / "sub" / f"{n}.mkv", 1) for n in range(10)}
    train, test = (find_videos(str(tmp_path), split) for split in ("train", "test"))
    assert set(train) | set(test) == files and not set(train) & set(test)
    assert len(test) == 2
    assert [*map(str, train)] == [*map(str, find_videos(f"{tmp_path}/**/*.mkv", "train"))]


def test_two_files_are_divided_and_one_is_shared_with_a_warning(tmp_path):
    write_video(tmp_path / "a.mkv", 1)
    with pytest.warns(UserWarning, match="only clip"):
        assert find_videos(str(tmp_path), "train") == find_videos(str(tmp_path), "test")
    write_video(tmp_path / "b.mkv", 1)
    assert len(find_videos(str(tmp_path), "train")) == len(find_videos(str(tmp_path), "test")) == 1
    assert find_videos(str(tmp_path), "train") != find_videos(str(tmp_path), "test")


def test_train_and_test_folders_are_the_splits(tmp_path):
    for name in ("train/a.mkv", "train/b.mkv", "test/c.mkv"):
        write_video(tmp_path / name, 1)
    assert [path.name for path in find_videos(str(tmp_path), "train")] == ["a.mkv", "b.mkv"]
    assert [path.name for path in find_videos(str(tmp_path), "test")] == ["c.mkv"]


def test_kinetics_folder(tmp_path, monkeypatch):
    monkeypatch.delenv("KINETICS_DIR", raising=False)
    with pytest.raises(UserError, match="KINETICS_DIR"):
        find_videos("kinetics", "train")
    monkeypatch.setenv("KINETICS_DIR", str(tmp_path))
    with pytest.raises(UserError, match="driving_car"):
        find_videos("kinetics", "train")
    write_video(tmp_path / "train/driving_car/a.mkv", 1)
    write_video(tmp_path / "val/driving_car/b.mkv", 1)
    write_video(tmp_path / "train/other/c.mkv", 1)
    assert [path.name for path in find_videos("kinetics", "train")] == ["a.mkv"]
    assert [path.name for path in find_videos("kinetics", "test")] == ["b.mkv"]


def test_missing_and_empty_folders(tmp_path):
    with pytest.raises(UserError, match="no such file or folder"):
        open_two(tmp_path / "nowhere")
    (tmp_path / "text.txt").write_text("no video")
    with pytest.raises(UserError, match="no videos"):
        open_two(tmp_path)
    with pytest.raises(UserError, match="no videos"):
        open_two(tmp_path / "*.mp4")
    with pytest.raises(UserError, match="Did you mean 'train'"):
        open_two(tmp_path, split="trian")


def test_a_corrupt_file_is_named_and_skipped(tmp_path):
    good = write_video(tmp_path / "train" / "good.mkv", 5)
    (tmp_path / "train" / "broken.mp4").write_bytes(b"not a video" * 100)
    write_video(tmp_path / "test" / "other.mkv", 1)
    clips = open_two(tmp_path)
    stream = Stream(clips, 8)
    with pytest.warns(UserWarning, match="broken.mp4"):
        stream.fill(range(2))
    assert {clips[stream.position(index)[0]].name for index in range(8)} == {str(good)}


def test_only_corrupt_files_are_an_error(tmp_path):
    (tmp_path / "broken.mp4").write_bytes(b"not a video" * 100)
    (tmp_path / "worse.mp4").write_bytes(b"")
    stream = Stream(open_two(tmp_path), 8)
    with pytest.warns(UserWarning), pytest.raises(UserError, match="None of the"):
        stream.fill([0])


def test_clips_are_decoded_once_and_again_when_a_file_changes(tmp_path, monkeypatch, cache):
    path = write_video(tmp_path / "train/a.mkv", 5)
    write_video(tmp_path / "test/b.mkv", 5)
    decoded = []
    decode = video.decode
    monkeypatch.setattr(video, "decode", lambda *args: decoded.append(args) or decode(*args))
    frames = [open_two(tmp_path)[0].frames() for _ in range(3)]
    assert len(decoded) == 1 and isinstance(frames[0], np.memmap) and not frames[0].flags.writeable
    np.testing.assert_array_equal(frames[0], frames[2])
    open_two(tmp_path, color=True)[0].frames()  # another key
    assert len(decoded) == 2
    os.utime(path, ns=(1, 1))
    open_two(tmp_path)[0].frames()
    assert len(decoded) == 3
    assert not [*cache.glob("*.tmp")]


def test_an_unwritable_cache_is_a_user_error(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("DENOISED_MDP_CACHE", str(tmp_path / "file" / "cache"))
    with pytest.raises(UserError, match="DENOISED_MDP_CACHE"):
        open_clips("procedural", "train", 8, False, 10)[0].frames()


def test_a_stream_holds_whole_clips_in_order_and_wraps(tmp_path):
    for name, frames in (("a", 4), ("b", 3), ("c", 5)):
        write_video(tmp_path / "train" / f"{name}.mkv", frames)
    write_video(tmp_path / "test" / "d.mkv", 1)
    clips = open_two(tmp_path)
    stream = Stream(clips, 14)
    stream.fill([2, 0, 1])
    expected = [(2, f) for f in range(5)] + [(0, f) for f in range(4)] + [(1, f) for f in range(3)]
    expected += [(2, 0), (2, 1)]  # over and over, the last one cut
    assert [stream.position(index) for index in range(14)] == expected
    assert [int(stream.frame(index)[0, 0, 0]) for index in range(3)] == [
        int(clips[2].frames()[f, 0, 0, 0]) for f in range(3)
    ]


def test_a_stream_opens_no_more_clips_than_it_needs(tmp_path):
    for name in "abcd":
        write_video(tmp_path / "train" / f"{name}.mkv", 5)
    write_video(tmp_path / "test" / "e.mkv", 1)
    stream = Stream(open_two(tmp_path), 9)
    stream.fill([3, 1, 0, 2])
    assert set(stream._arrays) == {3, 1}


def test_procedural_clips_are_seeded_and_differ_by_split():
    one, same, other, test = (
        procedural_clip(index, split, 24, False)
        for index, split in ((0, "train"), (0, "train"), (1, "train"), (0, "test"))
    )
    assert one.shape == (FRAMES, 24, 24, 1)
    np.testing.assert_array_equal(one, same)
    assert (one != other).any() and (one != test).any()


def test_procedural_clips_have_natural_statistics():
    clip = procedural_clip(0, "train", 64, True)
    assert clip.min() < 20 and clip.max() > 235 and clip.std() > 40  # the whole range
    change = np.abs(np.diff(clip.astype(int), axis=0)).mean()
    assert 2 < change < 20  # moves, smoothly
    gray = clip[::30].mean(-1)
    window = np.hanning(64)[:, None] * np.hanning(64)
    power = np.mean([np.abs(np.fft.fft2((frame - frame.mean()) * window)) ** 2 for frame in gray], axis=0)
    frequency = 64 * np.hypot(np.fft.fftfreq(64)[:, None], np.fft.fftfreq(64))
    rings = np.arange(2, 28)
    spectrum = [power[(frequency >= ring) & (frequency < ring + 1)].mean() for ring in rings]
    slope = np.polyfit(np.log(rings + 0.5), np.log(spectrum), 1)[0]
    assert -3.5 < slope < -1.5  # natural images: power falls as frequency^-2 to ^-3


def test_procedural_clips_are_cached(cache):
    clips = open_clips("procedural", "test", 8, False, 10)
    first = clips[0].frames()
    assert len([*cache.glob("*.npy")]) == 1
    np.testing.assert_array_equal(first, procedural_clip(0, "test", 8, False))
