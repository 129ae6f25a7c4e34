"""Video on RoboDesk's television (Wang et al. 2022)."""

from __future__ import annotations

import weakref
from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import numpy as np

from denoised_mdp.envs.robodesk.distractors import COLORS, SceneDistractor
from denoised_mdp.envs.video import Stream, open_clips, shuffled
from denoised_mdp.options import option

GRAY = 128  # picture of a television without video
CONTRAST = 20  # on a scale from -127 to 127


class TV(SceneDistractor):
    """Shows two colour videos side by side on the television, scrolling sideways.

    Each side shows its own stream of `frames` frames (see `denoised_mdp.envs.video.Stream`), filled from all clips in
    its own order. Contrast and sharpness are raised. An episode starts at a random index of each stream, and the joined
    picture moves right by one of its 120 pixels per inner step.

    Args:
        env: a RoboDesk environment with a television.
        clips, split, clips_seed: see `open_clips` and `shuffled`.
    """

    name = "tv"
    needs = ("show_on_tv",)
    shows_clips = True
    clip_size = 60  # rows of the picture
    part_of_task = True
    patches = (3, 6)  # the factors hold mean brightness on a grid of this many rows and columns

    @dataclass
    class Options:
        """Options of the distractor."""

        strength: float = option(1.0, "share of the video in the picture; 0: a gray screen", low=0, high=1)
        frames: int = option(1000, "length of the stream of clips that each video is taken from", low=1, high=1_000_000)

    def __init__(
        self, env: gym.Env, *, clips: str = "procedural", split: str = "train", clips_seed: int = 0, **options: Any
    ):
        sides = [f"{side}/{what}" for side in ("left", "right") for what in ("stream_index", "clip", "frame")]
        cells = [f"brightness_{row}_{column}" for row, column in np.ndindex(self.patches)]
        factors = (*sides, "phase_roll", *COLORS, *cells)
        super().__init__(env, factors, options, clips=clips, split=split, clips_seed=clips_seed)
        if self.options.strength == 0 or not getattr(env.unwrapped, "shows_television", True):
            self.hides = (f"{self.name}/*",)
        frames = self.options.frames
        rows, columns = env.unwrapped.picture.shape[:2]
        self._columns = columns
        found = open_clips(clips, split, rows, True, frames, "nearest")
        self._clips = tuple(shuffled(found, clips_seed, f"{side} order") for side in ("left", "right"))
        self._stream_source = (clips, split, clips_seed, frames)
        self._streams = (Stream(frames), Stream(frames))
        self._index, self._roll = [0, 0], 0

    def picture(self) -> np.ndarray:
        """Return the television's picture before the buttons change its colour, uint8 [60, 120, 3]."""
        frames = [stream.frame(index) for stream, index in zip(self._streams, self._index, strict=True)]
        sides = sharpen(_CONTRASTED.take(np.stack(frames)))  # uint8 [2, 60, 60, 3]
        video = np.roll(np.concatenate(list(sides), axis=1), self._roll, axis=1)  # uint8 [60, 120, 3]
        strength = self.options.strength
        if strength < 1:
            video = np.rint(strength * video + (1 - strength) * GRAY).astype(np.uint8)
        return video

    def noise_values(self):
        """Return index, clip and frame of both sides, the roll as a phase, mean colours, and brightness by patch."""
        picture = self.unwrapped.picture
        rows, columns = self.patches
        height, width = picture.shape[0] // rows, picture.shape[1] // columns
        patches = picture.reshape(rows, height, columns, width, 3).mean(1).mean(2) / 255  # [rows, columns, 3]
        values: list[float] = []
        for stream, index in zip(self._streams, self._index, strict=True):
            values += [index, *stream.position(index)]
        return [*values, self._roll / self._columns, *patches.mean((0, 1)), *patches.mean(-1).ravel()]

    def _start(self) -> None:
        for stream, clips in zip(self._streams, self._clips, strict=True):
            if not stream.clips:
                stream.fill(clips)
        self._index = [int(self.rng.integers(stream.frames)) for stream in self._streams]
        self._roll = 0

    def _advance(self) -> None:
        self._index = [(index + 1) % self._streams[0].frames for index in self._index]
        self._roll = (self._roll + 1) % self._columns

    def _show(self) -> None:
        draw = weakref.WeakMethod(self.picture)  # the wrapped world must not keep this wrapper alive
        self.unwrapped.show_on_tv(lambda: draw()())

    def _get_noise(self) -> dict:
        clips = [[clip.identity for clip in stream.clips] for stream in self._streams]
        return {"index": list(self._index), "roll": self._roll, "clips": clips}

    def _restore(self, noise: dict) -> None:
        for stream, identities, clips in zip(self._streams, noise["clips"], self._clips, strict=True):
            stream.restore(identities, clips)
        self._index = [index % self._streams[0].frames for index in noise["index"]]  # of longer ones, see `copy_noise`
        self._roll = noise["roll"]


def sharpen(images: np.ndarray) -> np.ndarray:
    """Filter uint8 [N, H, W, C] with [[0, -1/2, 0], [-1/2, 3, -1/2], [0, -1/2, 0]], mirrored at the border."""
    wide = np.pad(images.astype(np.int16), ((0, 0), (1, 1), (1, 1), (0, 0)), mode="reflect")  # [N, H + 2, W + 2, C]
    around = wide[:, :-2, 1:-1] + wide[:, 2:, 1:-1] + wide[:, 1:-1, :-2] + wide[:, 1:-1, 2:]  # [N, H, W, C]
    return _HALVED.take(6 * wide[:, 1:-1, 1:-1] - around + 4 * 255)


_GAIN = 131 * (127 + CONTRAST) / (127 * (131 - CONTRAST))
_CONTRASTED = np.clip(np.rint(_GAIN * (np.arange(256) - 127.0) + 127), 0, 255).astype(np.uint8)
_HALVED = np.clip(np.rint(np.arange(-4 * 255, 6 * 255 + 1) / 2), 0, 255).astype(np.uint8)  # the input is doubled
