"""Folders of videos with anything in them: a background, or one line."""

import tempfile
import warnings
from pathlib import Path

import av
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from denoised_mdp.envs import make_env
from denoised_mdp.errors import UserError


def short_video(path: Path, frames: int, width: int, height: int) -> bytes:
    with av.open(str(path), "w") as container:
        stream = container.add_stream("ffv1", rate=25)
        stream.width, stream.height, stream.pix_fmt = width, height, "bgr0"
        for number in range(frames):
            image = av.VideoFrame.from_ndarray(np.full((height, width, 3), 9 * number, np.uint8), "rgb24")
            container.mux(stream.encode(image.reformat(format="bgr0")))
        container.mux(stream.encode())
    return path.read_bytes()


def test_video_folders_of_any_content(tmp_path_factory, monkeypatch):
    """Every folder gives a background or one line, within seconds."""
    root = tmp_path_factory.mktemp("videos")
    monkeypatch.setenv("DENOISED_MDP_CACHE", str(root / "cache"))
    sizes = [(1, 16, 16), (3, 17, 33), (5, 1, 1), (2, 640, 2)]  # frames, width, height
    real = {size: short_video(root / f"{size}.mkv", *size) for size in sizes}
    contents = st.sampled_from(sorted(real)).map(real.get)
    broken = st.tuples(contents, st.floats(0, 1)).map(lambda pair: pair[0][: int(pair[1] * len(pair[0]))])
    files = st.one_of(contents, broken, st.binary(max_size=40), st.just(b""), st.just(b"just a text\n" * 200))
    names = st.sampled_from(
        ["a.mp4", "b.MKV", "sub/c.avi", "d e'$(x).mp4", "\N{SNOWMAN}.webm", "train/e.mkv", "test/f.mkv", "g.txt"]
    )
    extras = st.sets(st.sampled_from(["loop", "dangling", "folder.mp4", "self.mp4"]))

    @settings(derandomize=True, deadline=None, max_examples=40)
    @given(st.dictionaries(names, files, max_size=4), extras, st.sampled_from(["train", "test"]))
    def check(content, extra, split):
        with tempfile.TemporaryDirectory(dir=root) as folder:
            folder = Path(folder)
            for name, data in content.items():
                (folder / name).parent.mkdir(exist_ok=True)
                (folder / name).write_bytes(data)
            if "loop" in extra:
                (folder / "loop").symlink_to(folder)
            if "dangling" in extra:
                (folder / "dangling.mp4").symlink_to(folder / "nothing")
            if "self.mp4" in extra:
                (folder / "self.mp4").symlink_to(folder / "self.mp4")
            if "folder.mp4" in extra:
                (folder / "folder.mp4").mkdir()
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", UserWarning)
                try:
                    env = make_env(
                        "dot",
                        suite="toy",
                        distractors={"video_background": {}},
                        clips=str(folder),
                        split=split,
                        size=64,
                        episode_steps=4,
                    )
                    observation, _ = env.reset(seed=0)
                    env.step(env.action_space.sample())
                except UserError as error:
                    assert len(str(error).splitlines()) == 1
                else:
                    assert observation.shape == (64, 64, 3)

    check()


def test_thousands_of_files_that_are_no_videos(tmp_path, monkeypatch):
    monkeypatch.setenv("DENOISED_MDP_CACHE", str(tmp_path / "cache"))
    (tmp_path / "clips").mkdir()
    for number in range(3000):
        (tmp_path / "clips" / f"{number}.mp4").write_bytes(b"")
    with warnings.catch_warnings(), pytest.raises(UserError):
        warnings.simplefilter("ignore", UserWarning)
        make_env("dot", suite="toy", distractors={"video_background": {}}, clips=str(tmp_path / "clips")).reset(seed=0)
