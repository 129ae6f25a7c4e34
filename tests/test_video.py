"""Clips: decoding, splits, cache, streams and the procedural default."""

import errno
import io
import json
import os
import stat
import tempfile
import warnings
import weakref

import av
import numpy as np
import pytest
import torch
from small_runs import tiny

from denoised_mdp.envs import cache as cache_module
from denoised_mdp.envs import make_env, video
from denoised_mdp.envs.decoding import UnreadableVideo, decode
from denoised_mdp.envs.procedural import FRAMES, procedural_clip
from denoised_mdp.envs.video import Stream, open_clips, shuffled
from denoised_mdp.envs.video_files import find_videos
from denoised_mdp.errors import UserError
from denoised_mdp.session import train


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


def write_noise(path, frames=3, height=50, width=90):
    """Write a lossless colour video of independent pixels; returns them, uint8 [N, height, width, 3]."""
    path.parent.mkdir(parents=True, exist_ok=True)
    images = np.random.default_rng(0).integers(0, 256, (frames, height, width, 3), dtype=np.uint8)
    with av.open(str(path), "w") as container:
        stream = container.add_stream("ffv1", rate=25)
        stream.width, stream.height, stream.pix_fmt = width, height, "bgr0"
        for image in images:
            container.mux(stream.encode(av.VideoFrame.from_ndarray(image, "rgb24").reformat(format="bgr0")))
        container.mux(stream.encode())
    return images


def test_sound_alone_has_no_pictures(tmp_path):
    with av.open(str(tmp_path / "a.mp4"), "w") as container:
        stream = container.add_stream("aac", rate=8000, layout="mono")
        sound = av.AudioFrame.from_ndarray(np.zeros((1, 1024), np.float32), "fltp", "mono")
        sound.rate = 8000
        container.mux([*stream.encode(sound), *stream.encode()])
    with pytest.raises(UnreadableVideo, match="it has no pictures"):
        decode(tmp_path / "a.mp4", 16, True, 10)


def open_two(folder, **options):
    return open_clips(str(folder), options.pop("split", "train"), 16, options.pop("color", False), 1000, **options)


def test_decoding_is_frame_exact(tmp_path):
    path = write_video(tmp_path / "a.mkv", 30, color=(60, 0, 0))
    frames = video.decode(path, 16, True, 1000)
    assert frames.shape == (30, 16, 16, 3) and frames.dtype == np.uint8
    expected = 2 * np.arange(30)[:, None] + 20 + np.array([60, 0, 0])
    assert np.abs(frames.astype(int) - expected[:, None, None]).max() <= 1
    assert video.decode(path, 16, True, 12).shape[0] == 12  # a long clip is cut


@pytest.mark.parametrize("limited", [True, False])  # luma from 16 to 235, as television has it, or from 0 to 255
def test_colours_are_those_of_the_standard(tmp_path, limited):
    """Plain frames against BT.601 in real numbers: R = Y + 2 (1 - Kr) Pr, and so on."""
    codes = np.random.default_rng(0).integers((16, 100, 100), (236, 157, 157), (40, 3))  # Y, Cb, Cr
    codes[:2] = (16, 128, 128), (235, 128, 128)
    with av.open(str(tmp_path / "a.mkv"), "w") as container:
        stream = container.add_stream("ffv1", rate=25)
        stream.width, stream.height, stream.pix_fmt = 80, 48, "yuv420p"
        stream.codec_context.color_range = 1 if limited else 2
        for code in codes:
            frame = av.VideoFrame(80, 48, "yuv420p")
            frame.color_range = 1 if limited else 2
            for plane, level in zip(frame.planes, code, strict=True):
                plane.update(bytes([level]) * plane.buffer_size)
            container.mux(stream.encode(frame))
        container.mux(stream.encode())
    y, pb, pr = ((codes - (16, 128, 128)) / (219, 224, 224) if limited else (codes - (0, 128, 128)) / 255).T  # [N] each
    red, blue = y + 2 * (1 - 0.299) * pr, y + 2 * (1 - 0.114) * pb
    green = (y - 0.299 * red - 0.114 * blue) / 0.587
    expected = 255 * np.clip(np.stack([red, green, blue], 1), 0, 1)  # [N, 3]
    found = video.decode(tmp_path / "a.mkv", 16, True, 1000)
    assert np.abs(found - expected[:, None, None]).max() <= 0.75
    gray = video.decode(tmp_path / "a.mkv", 16, False, 1000)
    assert np.abs(gray[..., 0] - 255 * np.clip(y, 0, 1)[:, None, None]).max() <= 0.75


@pytest.mark.parametrize("size", [16, 64])  # both sides shrink; one shrinks and the other grows
def test_bilinear_resizing_takes_the_four_pixels_about_each_sample(tmp_path, size):
    """As PyTorch resizes without antialiasing, the whole frame, whatever its aspect; the default averages instead."""
    images = write_noise(tmp_path / "a.mkv")
    channels_first = torch.from_numpy(images).permute(0, 3, 1, 2).double()
    expected, smooth = (
        torch.nn.functional.interpolate(
            channels_first, (size, size), mode="bilinear", align_corners=False, antialias=antialias
        )
        .permute(0, 2, 3, 1)
        .numpy()
        for antialias in (False, True)
    )
    sharp = video.decode(tmp_path / "a.mkv", size, True, 10, "bilinear")
    assert sharp.dtype == np.uint8 and np.abs(sharp - expected).max() <= 0.51
    default = video.decode(tmp_path / "a.mkv", size, True, 10)
    assert np.abs(default - smooth).mean() < 2 < np.abs(default - expected).mean()
    gray = video.decode(tmp_path / "a.mkv", size, False, 10, "bilinear")
    assert gray.shape == (3, size, size, 1)
    assert np.abs(gray[..., 0] - expected @ [0.299, 0.587, 0.114]).max() <= 3


@pytest.mark.parametrize("size", [7, 16, 64])
def test_nearest_resizing_takes_the_pixel_under_the_first_corner(tmp_path, size):
    """As PyTorch (and OpenCV) resize: pixel i is that of the place i * length / size, cut off."""
    images = write_noise(tmp_path / "a.mkv")
    channels_first = torch.from_numpy(images).permute(0, 3, 1, 2).float()
    expected = torch.nn.functional.interpolate(channels_first, (size, size), mode="nearest").permute(0, 2, 3, 1)
    found = video.decode(tmp_path / "a.mkv", size, True, 10, "nearest")
    assert found.dtype == np.uint8 and np.abs(found - expected.numpy()).max() <= 1


def test_each_way_of_resizing_has_its_place_in_the_cache(tmp_path):
    write_noise(tmp_path / "train" / "a.mkv")
    write_noise(tmp_path / "test" / "b.mkv")
    default, again, sharp = (open_two(tmp_path, **options)[0] for options in ({}, {}, {"resize": "bilinear"}))
    assert default.key == again.key != sharp.key and default.identity == sharp.identity
    assert (default.frames() != sharp.frames()).any()
    made = [open_clips("procedural", "train", 8, False, 10, resize)[0].key for resize in ("antialiased", "bilinear")]
    assert made[0] == made[1]  # made in its size


def test_grayscale_is_luma(tmp_path):
    frames = video.decode(write_video(tmp_path / "a.mkv", 3, color=(100, 0, 0)), 8, False, 10)
    assert frames.shape == (3, 8, 8, 1)
    assert np.abs(frames[0].astype(float) - (20 + 0.299 * 100)).max() <= 3


def test_files_of_one_folder_are_divided_disjointly(tmp_path):
    files = {write_video(tmp_path / "sub" / f"{n}.mkv", 1) for n in range(10)}
    train, test = (find_videos(str(tmp_path), split) for split in ("train", "test"))
    assert set(train) | set(test) == files and not set(train) & set(test)
    assert train and test
    assert [*map(str, train)] == [*map(str, find_videos(f"{tmp_path}/**/*.mkv", "train"))]


def test_about_a_fifth_of_the_files_is_for_testing_and_added_files_move_no_others(tmp_path):
    def split(names):
        for name in names:
            (tmp_path / f"{name}.mp4").touch()
        return (set(find_videos(str(tmp_path), split)) for split in ("train", "test"))

    train, test = split(range(100))
    assert 10 <= len(test) <= 30
    more_train, more_test = split(range(100, 500))
    assert train < more_train and test < more_test
    assert 70 <= len(more_test) <= 130


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
    monkeypatch.setenv("HOME", str(tmp_path.parent))
    monkeypatch.setenv("KINETICS_DIR", f"~/{tmp_path.name}")
    assert [path.name for path in find_videos("kinetics", "test")] == ["b.mkv"]
    assert [path.name for path in find_videos("kinetics", "all")] == ["a.mkv", "b.mkv"]
    assert [path.name for path in find_videos("kinetics:other", "train")] == ["c.mkv"]
    with pytest.raises(UserError, match="Did you mean 'other'"):
        find_videos("kinetics:othr", "train")


def test_missing_and_empty_folders(tmp_path):
    with pytest.raises(UserError, match="no such file or folder"):
        open_two(tmp_path / "nowhere")
    with pytest.raises(UserError, match="no such file or folder"):
        train(tiny(tmp_path / "run", "distractors=video_background", f"env.clips={tmp_path / 'nowhere'}"))
    assert not (tmp_path / "run").exists(), "it is refused before anything is made"
    (tmp_path / "text.txt").write_text("no video")
    with pytest.raises(UserError, match="no videos"):
        open_two(tmp_path)
    with pytest.raises(UserError, match="no videos"):
        open_two(tmp_path / "*.mp4")
    with pytest.raises(UserError, match="Did you mean 'train'"):
        open_two(tmp_path, split="trian")


def test_links_to_folders_are_folders_and_none_counts_twice(tmp_path):
    for number in range(2):
        write_video(tmp_path / f"far{number}" / "deep" / f"{number}.mkv", 3)
        (tmp_path / "library").mkdir(exist_ok=True)
        (tmp_path / "library" / f"link{number}").symlink_to(tmp_path / f"far{number}")
    (tmp_path / "far0" / "back").symlink_to(tmp_path / "library")  # round and round
    (tmp_path / "library" / "again").symlink_to(tmp_path / "far1")
    found = [path for split in ("train", "test") for path in find_videos(str(tmp_path / "library"), split)]
    assert sorted(path.name for path in found) == ["0.mkv", "1.mkv"]


def test_links_to_one_file_are_one_clip(tmp_path):
    """Else the same pictures may be in both splits."""
    files = [write_video(tmp_path / f"{number}.mkv", 3) for number in range(4)]
    for number, path in enumerate(files):
        (tmp_path / f"alias{number}.mkv").symlink_to(path)
        (tmp_path / f"again{number}.mkv").symlink_to(tmp_path / f"alias{number}.mkv")
    for clips in (tmp_path, tmp_path / "*.mkv"):
        train, test = (find_videos(str(clips), split) for split in ("train", "test"))
        assert sorted(path.resolve() for path in (*train, *test)) == files
    with pytest.warns(UserWarning, match="only clip"):
        assert find_videos(str(tmp_path / "*0.mkv"), "test") == [files[0]]  # the file, not a link to it
    for split in ("train", "test"):
        write_video(tmp_path / "both" / split / f"{split}.mkv", 3)
    (tmp_path / "both" / "train" / "alias.mkv").symlink_to(tmp_path / "both" / "train" / "train.mkv")
    assert len(find_videos(str(tmp_path / "both"), "train")) == 1
    (tmp_path / "both" / "test" / "alias.mkv").symlink_to(tmp_path / "both" / "train" / "train.mkv")
    with pytest.warns(UserWarning, match="training and test share 1 clips"):
        assert len(find_videos(str(tmp_path / "both"), "test")) == 2


def test_a_folder_with_one_of_both_splits_says_that_its_videos_are_shared_out(tmp_path):
    for number in range(3):
        write_video(tmp_path / "train" / f"{number}.mkv", 3)
    with pytest.warns(UserWarning, match=f"no videos in {tmp_path}/test: all under {tmp_path} are shared out"):
        parts = [find_videos(str(tmp_path), split) for split in ("train", "test")]
    assert all(parts) and not set(parts[0]) & set(parts[1]) and sum(map(len, parts)) == 3


def test_pipes_and_devices_are_no_videos(tmp_path):
    """To open one waits for its other end, or never ends: from a folder, by a pattern, by a link, and by name."""
    folder = tmp_path / "clips"
    video_file = write_video(folder / "a.mkv", 3)
    os.mkfifo(folder / "pipe.mp4")
    (folder / "device.mp4").symlink_to("/dev/zero")
    (folder / "folder.mp4").mkdir()
    for clips in (folder, folder / "*", f"{folder}/**/*.m*"):
        with pytest.warns(UserWarning, match="only clip"):
            assert find_videos(str(clips), "train") == [video_file]
    for clips in (folder / "pipe.mp4", folder / "device.mp4", "/dev/zero"):
        with pytest.raises(UserError, match="neither a file nor a folder"):
            open_two(clips)
    with pytest.raises(UserError, match="no videos"):
        open_two(folder / "[pd]*.mp4")


def test_names_that_are_not_utf_8(tmp_path):
    folder = tmp_path / os.fsdecode(b"caf\xe9")
    folder.mkdir()
    for number in range(4):
        path = write_video(tmp_path / "a.mkv", 3, color=(9 * number, 0, 0))
        path.rename(folder / os.fsdecode(b"%d\xff.mkv" % number))
    env = make_env("dot", suite="toy", size=16, distractors=["video_background"], clips=str(folder))
    env.reset(seed=0)
    state = env.get_state()
    assert len(set(names(env))) > 1 and all(name.isascii() and "\\xff.mkv (" in name for name in names(env))
    again = make_env("dot", suite="toy", size=16, distractors=["video_background"], clips=str(folder))
    again.set_state(json.loads(json.dumps({"noise": state["noise"]})) | {key: state[key] for key in ("env", "rng")})
    np.testing.assert_array_equal(again.render(), env.render())
    (broken,) = (path for path in folder.iterdir() if path.name.startswith("0"))
    broken.write_bytes(b"not a video")
    with pytest.warns(UserWarning, match=r"caf\\xe9/0\\xff.mkv"):
        Stream(20).fill(open_clips(str(folder), "all", 16, False, 20))
    with pytest.raises(UserError, match="no such file"):
        open_two(tmp_path / os.fsdecode(b"\xff"))


def test_a_home_of_nobody_is_a_folder_that_is_not_there(monkeypatch):
    with pytest.raises(UserError, match="no such file or folder"):
        open_two("~no-such-user/clips")
    monkeypatch.setenv("DENOISED_MDP_CACHE", "~no-such-user/cache")
    assert str(cache_module.cache_folder()) == "~no-such-user/cache"


def test_without_a_home_the_cache_is_private(monkeypatch, tmp_path):
    """Compiled code is loaded from there: neither the working directory nor what others may write will do."""
    for name in ("DENOISED_MDP_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(os.path, "expanduser", lambda path: path)  # as it is for a user without an entry
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    folder = cache_module.cache_folder()
    assert folder == tmp_path / f"cache-{os.getuid()}" / "denoised-mdp" == cache_module.cache_folder()
    assert folder.parent.stat().st_mode & 0o777 == 0o700
    folder.parent.chmod(0o777)
    assert cache_module.cache_folder().parent.parent == tmp_path and cache_module.cache_folder() != folder


def test_a_corrupt_file_is_named_and_skipped(tmp_path):
    good = write_video(tmp_path / "train" / "good.mkv", 5)
    (tmp_path / "train" / "broken.mp4").write_bytes(b"not a video" * 100)
    write_video(tmp_path / "test" / "other.mkv", 1)
    stream = Stream(8)
    with pytest.warns(UserWarning, match="broken.mp4"):
        stream.fill(open_two(tmp_path))
    assert [clip.name for clip in stream.clips] == [str(good)]
    assert [stream.position(index) for index in range(8)] == [(0, n) for n in (0, 1, 2, 3, 4, 0, 1, 2)]


def test_only_corrupt_files_are_an_error(tmp_path):
    (tmp_path / "broken.mp4").write_bytes(b"not a video" * 100)
    (tmp_path / "worse.mp4").write_bytes(b"")
    clips = [*open_two(tmp_path), *open_two(tmp_path, split="test")]
    with pytest.warns(UserWarning) as told, pytest.raises(UserError, match="None of the 2 videos"):
        Stream(8).fill(clips)
    assert sorted(str(one.message) for one in told) == [
        f"Skipping the unreadable video {tmp_path / name} (Invalid data found when processing input)."
        for name in ("broken.mp4", "worse.mp4")
    ]
    with warnings.catch_warnings(), pytest.raises(UserError, match=r"The video .*\.mp4 cannot be read\. Name"):
        warnings.simplefilter("error")  # they were told already
        Stream(8).fill(clips[:1])


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


def test_environments_of_a_process_share_open_clips(tmp_path):
    write_video(tmp_path / "a.mkv", 3)
    [one], [other] = (open_clips(str(tmp_path), "all", 16, False, 3) for _ in range(2))
    first, again = one.frames(), other.frames()
    assert first is again, "a memory map holds a file open, and a process may have 1024 of them"
    held = weakref.ref(first)
    del first, again
    assert held() is None


def test_too_many_open_files_are_told_as_such(monkeypatch, tmp_path):
    def full(*arguments, **options):
        raise OSError(errno.EMFILE, "Too many open files")

    write_video(tmp_path / "a.mkv", 3)
    [clip] = open_clips(str(tmp_path), "all", 16, False, 3)
    clip.frames()
    monkeypatch.setattr(np.lib.format, "open_memmap", full)
    with pytest.raises(UserError, match=r"Allow more open files \(ulimit -n\)\.$"):
        clip.frames()


def test_an_unwritable_cache_is_a_user_error(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("DENOISED_MDP_CACHE", str(tmp_path / "file" / "cache"))
    with pytest.raises(UserError, match="DENOISED_MDP_CACHE"):
        open_clips("procedural", "train", 8, False, 10)[0].frames()


def test_cached_clips_can_be_shared_with_other_users(cache, monkeypatch):
    """Permissions follow the umask; a clip that is there needs no lock, and a lock no writing."""
    clip = open_clips("procedural", "train", 8, False, 10)[0]
    umask = os.umask(0o027)
    try:
        frames = clip.frames()
    finally:
        os.umask(umask)
    assert {stat.S_IMODE(path.stat().st_mode) for path in cache.iterdir()} == {0o640}
    with monkeypatch.context() as patch:
        patch.setattr(cache_module, "_locked", None)
        np.testing.assert_array_equal(clip.frames(), frames)

    def only_reading(path, mode="r"):
        if mode != "r":
            raise PermissionError(13, "Permission denied")
        return open(path)

    monkeypatch.setattr(cache_module, "open", only_reading, raising=False)
    (lock,) = cache.glob("*.lock")
    with cache_module._locked(lock):
        pass


def saved(array):
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


DAMAGED = {
    "cut": lambda whole: whole[:-100],
    "only a header": lambda whole: whole[:200],
    "empty": lambda whole: b"",
    "longer": lambda whole: whole + bytes(100),
    "text": lambda whole: b"no array at all\n" * 20,
    "damaged header": lambda whole: whole.replace(b"'shape': (", b"'shape': (("),
    "huge": lambda whole: whole.replace(b"(%d, 8, 8, 1)" % FRAMES, b"(10**99,8,8,1)"),
    "another type": lambda whole: saved(np.zeros((FRAMES, 8, 8, 1), np.float32)),
    "objects": lambda whole: saved(np.array([None, 1])),
    "another size": lambda whole: saved(np.zeros((FRAMES, 16, 8, 1), np.uint8)),
    "another colour": lambda whole: saved(np.zeros((FRAMES, 8, 8, 3), np.uint8)),
    "fewer frames": lambda whole: saved(np.zeros((FRAMES - 1, 8, 8, 1), np.uint8)),
    "no frames": lambda whole: saved(np.zeros((0, 8, 8, 1), np.uint8)),
    "flat": lambda whole: saved(np.zeros(FRAMES, np.uint8)),
}


@pytest.mark.parametrize("damage", DAMAGED)
def test_damaged_cache_files_are_made_again(cache, monkeypatch, damage):
    made = np.random.default_rng(0).integers(0, 256, (FRAMES, 8, 8, 1), np.uint8)
    monkeypatch.setattr(video, "procedural_clip", lambda *which: made)  # sooner
    clip = open_clips("procedural", "train", 8, False, 10)[0]
    frames = clip.frames()
    assert frames.shape == (FRAMES, 8, 8, 1)
    (path,) = cache.glob("*.npy")
    whole = path.read_bytes()
    other = DAMAGED[damage](whole)
    assert other != whole
    path.unlink()  # another file: what is mapped stays
    path.write_bytes(other)
    with pytest.warns(UserWarning, match=f"{path} of the clip cache is damaged: making it again"):
        again = clip.frames()
    np.testing.assert_array_equal(again, frames)
    assert path.read_bytes() == whole
    clip.frames()  # without a warning


def test_a_cached_file_has_no_more_frames_than_were_asked_for(tmp_path, cache):
    write_video(tmp_path / "a.mkv", 30)
    with pytest.warns(UserWarning, match="only clip"):
        (clip,) = open_clips(str(tmp_path), "train", 16, False, 20)
    frames = clip.frames().copy()  # the map shows what is written over it
    (path,) = cache.glob("*.npy")
    np.save(path, np.zeros((21, 16, 16, 1), np.uint8))
    with pytest.warns(UserWarning, match="damaged"):
        np.testing.assert_array_equal(clip.frames(), frames)


def test_cache_files_that_cannot_be_used_are_user_errors(cache, monkeypatch):
    clip = open_clips("procedural", "train", 8, False, 10)[0]
    clip.frames()
    (path,), (lock,) = cache.glob("*.npy"), cache.glob("*.lock")
    with monkeypatch.context() as patch:

        def refuse(*_, **__):
            raise PermissionError(13, "Permission denied", str(path))

        patch.setattr(np.lib.format, "open_memmap", refuse)
        with pytest.raises(UserError, match="Permission denied.*DENOISED_MDP_CACHE"):
            clip.frames()
    path.unlink()
    lock.unlink()
    for broken in (path, lock):  # opening a pipe waits for its other end
        os.mkfifo(broken)
        with pytest.raises(UserError, match="not a regular file.*Delete it .*, or set DENOISED_MDP_CACHE") as error:
            clip.frames()
        assert "\n" not in str(error.value)
        broken.unlink()
    path.mkdir()
    with pytest.raises(UserError, match="not a regular file"):
        clip.frames()


def test_a_stream_holds_whole_clips_in_order_and_wraps(tmp_path):
    for name, frames in (("a", 4), ("b", 3), ("c", 5)):
        write_video(tmp_path / "train" / f"{name}.mkv", frames)
    write_video(tmp_path / "test" / "d.mkv", 1)
    a, b, c = open_two(tmp_path)
    stream = Stream(14)
    stream.fill([c, a, b])
    assert stream.clips == [c, a, b]
    expected = [(c, f) for f in range(5)] + [(a, f) for f in range(4)] + [(b, f) for f in range(3)]
    expected += [(c, 0), (c, 1)]  # over and over, the last one cut
    for index, (clip, frame) in enumerate(expected):
        assert stream.position(index) == ([c, a, b].index(clip), frame)
        np.testing.assert_array_equal(stream.frame(index), clip.frames()[frame])


def test_a_stream_opens_no_more_clips_than_it_needs(tmp_path):
    for name in "abcd":
        write_video(tmp_path / "train" / f"{name}.mkv", 5)
    write_video(tmp_path / "test" / "e.mkv", 1)
    a, b, c, d = open_two(tmp_path)
    stream = Stream(9)
    stream.fill([d, b, a, c])
    assert stream.clips == [d, b]


def test_the_order_depends_on_the_seed_and_not_on_other_clips(tmp_path):
    for name in "abcdefgh":
        write_video(tmp_path / "train" / f"{name}.mkv", 1)
    write_video(tmp_path / "test" / "x.mkv", 1)
    clips = open_two(tmp_path)
    orders = [[clip.identity for clip in shuffled(clips, seed)] for seed in range(30)]
    assert orders[0] == [clip.identity for clip in shuffled(clips[::-1], 0)]
    assert len(set(map(tuple, orders))) == 30
    assert {order[0] for order in orders} == {clip.identity for clip in clips}  # each may come first
    assert [clip.identity for clip in shuffled(clips[1:], 0)] == [
        identity for identity in orders[0] if identity != clips[0].identity
    ]


@pytest.fixture
def folder(tmp_path):
    """A folder of twelve training clips, of which a stream needs three."""
    for number in range(12):
        write_video(tmp_path / "clips" / "train" / f"{number}.mkv", 8, color=(5 * number, 0, 0))
    write_video(tmp_path / "clips" / "test" / "x.mkv", 8)
    return tmp_path / "clips"


def make(folder, **options):
    distractors = {"video_background": {"frames": 20, "color": True}}
    return make_env("dot", suite="toy", size=16, distractors=distractors, clips=str(folder), **options)


def names(env):
    return [clip.identity for clip in env.world._stream.clips]


def test_all_episodes_of_one_clips_seed_show_the_same_clips(folder, monkeypatch):
    training = make(folder, clips_seed=3, seed=0)
    training.reset()
    evaluation, starts = make(folder, clips_seed=3), []
    with monkeypatch.context() as patch:
        patch.setattr(video, "decode", None)  # nothing new is decoded
        for seed in range(60):
            info = evaluation.reset(seed=seed)[1]
            assert names(evaluation) == names(training)
            starts.append(int(info["noise"][evaluation.noise_names.index("video_background/stream_index")]))
    assert len(set(starts)) > 15  # anywhere in the stream
    again = evaluation.reset(seed=1, options={"distractor_seed": 7})[1]["noise"][2:]
    np.testing.assert_array_equal(evaluation.reset(seed=2, options={"distractor_seed": 7})[1]["noise"][2:], again)
    other = make(folder, clips_seed=4)
    other.reset(seed=0)
    assert names(other) != names(training)


@pytest.mark.parametrize("start", ["random", "continue"])
def test_a_still_picture_is_drawn_for_each_episode(folder, start):
    distractors = {"video_background": {"frames": 1000, "dynamic": False, "start": start}}
    env = make_env("dot", suite="toy", size=16, distractors=distractors, clips=str(folder), episode_steps=4, seed=3)
    place = env.noise_names.index("video_background/stream_index")
    seen = []
    for _ in range(6):
        seen.append(env.reset()[1]["noise"][place])
        assert env.step(env.action_space.sample())[-1]["noise"][place] == seen[-1]
    assert len(set(seen)) > 3


def test_the_stream_can_continue_across_episodes(folder):
    """As in the paper: drawn once, and the inner step that ends an episode does not advance it."""
    distractors = {"video_background": {"frames": 20, "start": "continue"}}
    env = make_env("dot", suite="toy", size=16, distractors=distractors, clips=str(folder), episode_steps=7, seed=3)
    place = env.noise_names.index("video_background/stream_index")
    start = index = env.reset()[1]["noise"][place]
    for episode in range(5):
        steps = []
        for _ in range(4):  # of 2, 2, 2 and 1 inner steps
            *_, truncated, info = env.step(env.action_space.sample())
            steps.append(info["noise"][place])
        assert truncated
        np.testing.assert_array_equal(steps, (index + np.array([2, 4, 6, 6])) % 20)
        index = (start + 6 * (episode + 1)) % 20
        state = env.get_state()
        assert env.reset()[1]["noise"][place] == index  # as shown last
    assert {env.reset(seed=3)[1]["noise"][place] for _ in range(3)} == {start}  # a seed decides everything
    assert len({env.reset(seed=seed)[1]["noise"][place] for seed in range(30)}) > 10
    env.set_state(state)
    assert env.reset()[1]["noise"][place] == index


def test_a_state_continues_with_its_clips_wherever_they_are(folder, tmp_path):
    env = make(folder)
    env.reset(seed=0)
    state, actions = env.get_state(), [env.action_space.sample() for _ in range(15)]
    expected = [env.step(action) for action in actions]
    for number in range(12, 40):
        write_video(folder / "train" / f"{number}.mkv", 8)
    for path in folder.rglob("*.mkv"):
        os.utime(path, ns=(1, 1))
    folder = folder.rename(tmp_path / "moved")
    env = make(folder)
    env.reset(seed=5)
    env.set_state(state)
    for action, step in zip(actions, expected, strict=True):
        found = env.step(action)
        np.testing.assert_array_equal(found[0], step[0])
        np.testing.assert_array_equal(found[-1]["noise"], step[-1]["noise"])
    env.reset(seed=6)
    assert names(env) == state["noise"]["clips"]


def test_a_state_tells_clips_of_one_name_and_size_apart(tmp_path):
    """In different folders, with different contents: each is shown where it was, and a lost one is named."""
    clips = tmp_path / "clips"
    for shade, place in enumerate(("a", "b", "c")):
        path = write_video(clips / "train" / place / "1.mkv", 8, color=(40 * shade, 0, 0))
        path.write_bytes(path.read_bytes().ljust(4000, b"\0"))
    write_video(clips / "test" / "x.mkv", 8)
    env = make(clips)
    env.reset(seed=0)
    state, actions = env.get_state(), [env.action_space.sample() for _ in range(25)]
    expected = [env.step(action)[0] for action in actions]
    assert len(set(state["noise"]["clips"])) == 1 and len(state["noise"]["clips"]) == 3
    env = make(clips)
    env.set_state(state)
    for action, frame in zip(actions, expected, strict=True):
        np.testing.assert_array_equal(env.step(action)[0], frame)
    (clips / "train" / "b" / "1.mkv").unlink()
    with pytest.raises(UserError, match=r"shows 1.mkv \(.*no longer"):
        make(clips).set_state(state)


def test_a_state_whose_clip_is_gone_names_it(folder):
    env = make(folder)
    env.reset(seed=0)
    state = env.get_state()
    shown = state["noise"]["clips"][1].split()[0]
    for path in (folder / "train").iterdir():
        if path.name not in " ".join(state["noise"]["clips"]):
            path.unlink()  # not needed
    make(folder).set_state(state)
    path = folder / "train" / shown
    whole = path.read_bytes()
    path.write_bytes(bytes(len(whole)))
    with pytest.warns(UserWarning, match=shown), pytest.raises(UserError, match=rf"shows {shown} \("):
        make(folder).set_state(state)
    path.write_bytes(whole[:-1])
    with pytest.raises(UserError, match=rf"shows {shown} \(.*put the file back"):
        make(folder).set_state(state)
    path.unlink()
    with pytest.raises(UserError, match=rf"shows {shown} \(") as error:
        make(folder).set_state(state)
    assert "\n" not in str(error.value)


def test_procedural_clips_are_seeded_and_differ_by_split():
    one, same, other, test = (
        procedural_clip(index, split, 24, False)
        for index, split in ((0, "train"), (0, "train"), (1, "train"), (0, "test"))
    )
    assert one.shape == (FRAMES, 24, 24, 1)
    np.testing.assert_array_equal(one, same)
    assert (one != other).any() and (one != test).any()


def test_procedural_clips_are_as_many_as_are_needed_and_have_seeds():
    def names(clips, split, frames):
        return [clip.identity for clip in open_clips(clips, split, 8, False, frames)]

    assert len(names("procedural", "train", 10 * FRAMES)) == 10
    assert names("procedural", "train", 10 * FRAMES)[:4] == names("procedural", "train", FRAMES)
    assert names("procedural:0", "test", FRAMES) == names("procedural", "test", FRAMES)
    families = [names(f"procedural{seed}", split, 3000) for seed in ("", ":1", ":2") for split in ("train", "test")]
    assert len({name for family in families for name in family}) == sum(map(len, families))
    assert names("procedural", "all", 3000) == families[0] + families[1]
    for wrong in ("procedural:x", "procedural:-1", "procedural:1.5"):
        with pytest.raises(UserError, match="whole number"):
            open_clips(wrong, "train", 8, False, 10)


def test_procedural_clips_change_smoothly_in_time():
    """Power falls with temporal frequency too: like video, unlike frames in random order."""
    clip = procedural_clip(1, "train", 32, False)[:256, ..., 0].astype(float)

    def slope(frames):
        window = np.hanning(len(frames))[:, None, None]
        power = (np.abs(np.fft.rfft((frames - frames.mean(0)) * window, axis=0)) ** 2).mean((1, 2))
        band = np.arange(4, 96)
        return np.polyfit(np.log(band), np.log(power[band]), 1)[0]

    shuffled_frames = clip[np.random.default_rng(0).permutation(len(clip))]
    assert -3 < slope(clip) < -0.8
    assert abs(slope(shuffled_frames)) < 0.3


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
