"""A video behind the scene."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import numpy as np

from denoised_mdp.envs.distractors.base import Distractor
from denoised_mdp.envs.video import Stream, open_clips, shuffled
from denoised_mdp.options import option


class VideoBackground(Distractor):
    """Replaces the background with an uncontrollable video.

    A stream of `frames` frames holds whole clips in shuffled order and advances by one frame per inner step
    (Wang et al. 2022). `clips_seed` chooses the clips of the stream, so all episodes of a run show the same
    videos. The distractor's generator chooses where an episode starts.

    Details of some options:
        matte: see `Renderer.frame_and_background`. "paper" is the colour rule of Wang et al. 2022: "blue_ge" for
            walker_walk, which includes its floor, otherwise "blue".
        start: with "continue" (Wang et al. 2022), the position is drawn only at the first reset and at resets with a
            seed, and the inner step that ends an episode does not advance it. An episode of 1000 steps then advances by
            999 of the 1000 frames, so the background stays almost in phase with the episode. The position of a still
            picture is drawn at every reset.
        resize: see `denoised_mdp.envs.decoding.decode`.

    Args:
        env: an environment with `frame_and_background`.
        clips, split, clips_seed: see `open_clips` and `shuffled`.
    """

    name = "video_background"
    needs = ("frame_and_background",)
    shows_clips = True
    patches = 4  # the factors hold mean brightness on a grid of this many rows and columns

    @dataclass
    class Options:
        """Options of the distractor."""

        color: bool = option(False, "true: colour video; false: grey, as in the paper")
        matte: str = option(
            "matte",
            "what is background: matte (exact), sky (keeps the floor), paper (its colour rule; blue, blue_ge: by name)",
            choices=("matte", "sky", "paper", "blue", "blue_ge"),
        )
        frames: int = option(
            1000, "length of the stream of clips that an episode's background is taken from", low=1, high=1_000_000
        )
        strength: float = option(1.0, "opacity of the video; 0: none", low=0, high=1)
        dynamic: bool = option(True, "true: a video; false: one still picture per episode")
        start: str = option(
            "random",
            "random: an episode starts anywhere in the stream; continue: a video goes on where the last episode ended,"
            " as in the paper",
            choices=("random", "continue"),
        )
        resize: str = option(
            "antialiased",
            "of video files: antialiased, or bilinear (2x2 pixels, as in the paper)",
            choices=("antialiased", "bilinear"),
        )

    def __init__(
        self, env: gym.Env, *, clips: str = "procedural", split: str = "train", clips_seed: int = 0, **options: Any
    ):
        cells = np.ndindex(self.patches, self.patches)
        factors = ("stream_index", "clip", "frame", *(f"brightness_{r}_{c}" for r, c in cells))
        super().__init__(env, factors, options, clips=clips, split=split, clips_seed=clips_seed)
        self.matte, frames = self.options.matte, self.options.frames
        if self.matte == "paper":
            self.matte = "blue_ge" if getattr(env.unwrapped, "task_name", None) == "walker_walk" else "blue"
        self.hides = {0.0: (f"{self.name}/*",), 1.0: ("texture/*",)}.get(self.options.strength, ())
        self._stream_source = (clips, split, clips_seed, frames)
        found = open_clips(clips, split, env.size, self.options.color, frames, self.options.resize)
        self._clips = shuffled(found, clips_seed)
        self._stream, self._index = Stream(frames), 0
        self._drawn = False

    def step(self, action):
        """Step the environment, then show the next frame; with ``start="continue"``, not after the last step."""
        result = self.env.step(action)
        ended = result[2] or result[3]
        if not (ended and self.options.start == "continue"):
            self._advance_noise()
        return result

    def background(self) -> np.ndarray:
        """Return the video's current frame, uint8 [H, W, C]; C is 1 in grayscale."""
        return self._stream.frame(self._index)

    def frame(self) -> np.ndarray:
        """Draw the current state in front of the video."""
        foreground, share = self.env.frame_and_background(self.matte)
        if not self._drawn and not share.any():
            warnings.warn(
                f"no video_background is in sight: by matte={self.options.matte}, the camera sees no background in this"
                " task. distractors.video_background.matte=matte counts the floor as background.",
                stacklevel=2,
            )
        self._drawn = True
        frame, strength = put_behind(self.background(), foreground, share), self.options.strength
        if strength < 1:
            frame = np.rint(strength * frame + (1 - strength) * self.env.frame()).astype(np.uint8)
        return frame

    def noise_values(self):
        """Return the index in the stream, the clip's number, the frame in it, and each patch's brightness [0, 1]."""
        edges = np.arange(self.patches) * self.size // self.patches
        sums = np.add.reduceat(np.add.reduceat(self.background().mean(-1), edges, 0), edges, 1)
        counts = np.diff([*edges, self.size])
        brightness = sums / (255 * np.outer(counts, counts))
        return [self._index, *self._stream.position(self._index), *brightness.ravel()]

    def _reset_noise(self) -> None:
        if not self._stream.clips:
            self._stream.fill(self._clips)
        if self.options.start == "random" or self.reseeded or not self.options.dynamic:
            self._index = int(self.rng.integers(self._stream.frames))

    def _advance_noise(self) -> None:
        if self.options.dynamic:
            self._index = (self._index + 1) % self._stream.frames

    def _get_noise(self) -> dict:
        return {"index": self._index, "clips": [clip.identity for clip in self._stream.clips]}

    def _set_noise(self, noise: dict) -> None:
        self._stream.restore(noise["clips"], self._clips)
        self._index = noise["index"] % self._stream.frames  # it may be of a longer stream, see `copy_noise`


def put_behind(background: np.ndarray, foreground: np.ndarray, share: np.ndarray) -> np.ndarray:
    """Return uint8 [H, W, 3]: `background` [H, W, 3 or 1] behind what `Renderer.frame_and_background` returned."""
    composite = foreground + share[..., None] * background  # bool share: uint8, one term is 0; else float32
    if share.dtype != bool:
        composite = np.clip(np.rint(composite), 0, 255).astype(np.uint8)
    return composite
