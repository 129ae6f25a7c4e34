"""The video behind the scene."""

from __future__ import annotations

import gymnasium as gym
import numpy as np

from denoised_mdp.envs.distractors.base import Distractor
from denoised_mdp.envs.video import Stream, open_clips, shuffled
from denoised_mdp.seeding import generator_state, restore_generator


class VideoBackground(Distractor, gym.utils.EzPickle):
    """Replaces the background with an uncontrollable video.

    A stream of `frames` frames holds whole clips in shuffled order and advances by one frame per inner step
    (Wang et al. 2022). `clips_seed` chooses the clips of the stream, so all episodes of a run show the same
    videos. The distractor's generator chooses where an episode starts.

    Args:
        env: an environment with `frame_and_background`.
        strength: share of the video in the background; 1 hides the original background.
        matte: what is background, see `Renderer.frame_and_background`; "paper" is the colour rule of
            Wang et al. 2022: "blue_ge" for walker_walk, which includes its floor, else "blue".
        color: show the video in colour instead of grey.
        frames: length of the stream.
        dynamic: false: an episode shows one frame.
        start: "random": an episode starts anywhere in the stream. "continue" (Wang et al. 2022): it starts where the
            last one ended. The place is drawn at the first reset and at each seeded one, and the inner step that ends
            an episode does not advance it. An episode of 1000 steps then advances by 999 of 1000 frames, so the
            background stays almost in phase with the episode.
        resize: how video files are resized, see `denoised_mdp.envs.decoding.decode`.
        clips, split, clips_seed: see `open_clips` and `shuffled`.
    """

    name = "video_background"
    patches = 4  # the factors hold mean brightness on a grid of this many rows and columns

    def __init__(
        self,
        env: gym.Env,
        strength: float = 1.0,
        matte: str = "matte",
        color: bool = False,
        frames: int = 1000,
        dynamic: bool = True,
        start: str = "random",
        resize: str = "antialiased",
        clips: str = "procedural",
        split: str = "train",
        clips_seed: int = 0,
    ):
        gym.utils.EzPickle.__init__(
            self, env, strength, matte, color, frames, dynamic, start, resize, clips, split, clips_seed
        )
        cells = np.ndindex(self.patches, self.patches)
        super().__init__(env, ("stream_index", "clip", "frame", *(f"brightness_{r}_{c}" for r, c in cells)))
        if matte == "paper":
            matte = "blue_ge" if getattr(env.unwrapped, "task_name", None) == "walker_walk" else "blue"
        self.strength, self.matte, self.dynamic, self.start = strength, matte, dynamic, start
        self._source = (clips, split, clips_seed, frames)
        self._clips = shuffled(open_clips(clips, split, env.size, color, frames, resize), clips_seed)
        self._stream, self._index = Stream(frames), 0

    def step(self, action):
        """Step the environment, then show the next frame: with ``start="continue"`` not after the last step."""
        result = self.env.step(action)
        ended = result[2] or result[3]
        if not (ended and self.start == "continue"):
            self._advance_noise()
        return result

    def background(self) -> np.ndarray:
        """Return the video's current frame, uint8 [H, W, C] with one channel in grayscale."""
        return self._stream.frame(self._index)

    def frame(self) -> np.ndarray:
        """Draw the current state in front of the video."""
        frame = put_behind(self.background(), *self.env.frame_and_background(self.matte))
        if self.strength < 1:
            frame = np.rint(self.strength * frame + (1 - self.strength) * self.env.frame()).astype(np.uint8)
        return frame

    def noise_values(self):
        """Return index in the stream, number of the clip there, frame in it, brightness [0, 1] by patch."""
        edges = np.arange(self.patches) * self.size // self.patches
        sums = np.add.reduceat(np.add.reduceat(self.background().mean(-1), edges, 0), edges, 1)
        counts = np.diff([*edges, self.size])
        brightness = sums / (255 * np.outer(counts, counts))
        return [self._index, *self._stream.position(self._index), *brightness.ravel()]

    def _reset_noise(self) -> None:
        if not self._stream.clips:
            self._stream.fill(self._clips)
        if self.start == "random" or self.reseeded:
            self._index = int(self.rng.integers(self._stream.frames))

    def _advance_noise(self) -> None:
        if self.dynamic:
            self._index = (self._index + 1) % self._stream.frames

    def _get_noise(self) -> dict:
        return {"index": self._index, "clips": [clip.identity for clip in self._stream.clips]}

    def _set_noise(self, noise: dict) -> None:
        self._stream.restore(noise["clips"], self._clips)
        self._index = noise["index"]

    def follow(self, other: VideoBackground) -> None:
        """Copy the noise; with other clips, only the place in the stream."""
        if self._source == other._source:
            super().follow(other)
        else:
            self.rng = restore_generator(generator_state(other.rng))
            self._index = other._index % self._stream.frames


def put_behind(background: np.ndarray, foreground: np.ndarray, share: np.ndarray) -> np.ndarray:
    """Return uint8 [H, W, 3]: `background` [H, W, 3 or 1] behind what `Renderer.frame_and_background` returned."""
    composite = foreground + share[..., None] * background  # bool: uint8, where one of the two is 0; else float32
    if share.dtype != bool:
        composite = np.clip(np.rint(composite), 0, 255).astype(np.uint8)
    return composite
