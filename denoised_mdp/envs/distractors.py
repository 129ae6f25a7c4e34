"""Distractors of Wang et al. 2022 as composable Gymnasium wrappers.

Each wrapper advances its own noise once per inner step from its own generator and transforms the wrapped
environment's `frame()`; nothing is drawn until somebody asks for a frame. The order is fixed: background
video, then the sensor that reads it, then the camera that films both.
"""

from __future__ import annotations

import gymnasium as gym
import numpy as np

from denoised_mdp.envs.seeding import generator, generator_state, restore_generator
from denoised_mdp.envs.video import Stream, open_clips, shuffled
from denoised_mdp.errors import UserError


class Distractor(gym.Wrapper):
    """Base of all distractors: seeding, state and the recursion through the wrapped environment.

    A subclass has a `name` and defines `_reset_noise`, `_advance_noise`, `noise_values`, `_get_noise` and
    `_set_noise`; those that change the picture also `frame`.
    """

    name: str

    def __init__(self, env: gym.Env, factors: tuple[str, ...]):
        super().__init__(env)
        self.signal_names = env.signal_names
        self.noise_names = env.noise_names + tuple(f"{self.name}/{factor}" for factor in factors)
        self.size = env.size
        self.rng: np.random.Generator | None = None

    def reset(self, *, seed: int | None = None, options: dict | None = None):
        """Reset environment and noise; ``options["distractor_seed"]`` replaces `seed` for the noise alone."""
        own_seed = (options or {}).get("distractor_seed", seed)
        if own_seed is not None or self.rng is None:
            self.rng = generator(own_seed, self.name)
        result = self.env.reset(seed=seed, options=options)
        self._reset_noise()
        return result

    def step(self, action):
        """Step the environment, then advance the noise."""
        result = self.env.step(action)
        self._advance_noise()
        return result

    def frame(self) -> np.ndarray:
        """Draw the current state with this distractor, uint8 [H, W, 3]; advances nothing."""
        return self.env.frame()

    def render(self) -> np.ndarray:
        """Return `frame()`."""
        return self.frame()

    def signal(self) -> np.ndarray:
        """Return the ground-truth signal, float32 [S]."""
        return self.env.signal()

    def noise(self) -> np.ndarray:
        """Return what every distractor does in the current frame, float32 [N], see `noise_names`."""
        return np.concatenate([self.env.noise(), np.asarray(self.noise_values(), np.float32)])

    def get_state(self) -> dict:
        """Return the whole state, that of the wrapped environment included."""
        return {"env": self.env.get_state(), "rng": generator_state(self.rng), "noise": self._get_noise()}

    def set_state(self, state: dict) -> None:
        """Continue exactly where `get_state` was taken."""
        self.env.set_state(state["env"])
        self.rng = restore_generator(state["rng"])
        self._set_noise(state["noise"])

    def follow(self, other: Distractor) -> None:
        """Take over the noise of `other`, a distractor of the same kind: both then do the same for ever."""
        self.rng = restore_generator(generator_state(other.rng))
        self._set_noise(other._get_noise())

    def noise_values(self):
        """Return this distractor's own factors, in the order of its names."""
        raise NotImplementedError

    def _reset_noise(self) -> None:
        """Start an episode."""

    def _advance_noise(self) -> None:
        """Advance by one inner step."""

    def _get_noise(self) -> dict:
        return {}

    def _set_noise(self, noise: dict) -> None:
        """Restore what `_get_noise` returned."""


class VideoBackground(Distractor, gym.utils.EzPickle):
    """Replaces the background by a video that nobody controls.

    A stream of `frames` frames holds whole clips in shuffled order; an episode starts anywhere in it and
    shows the next frame after each inner step (Wang et al. 2022). `clips_seed` decides which clips fill the
    stream, the distractor's generator where an episode starts: all episodes of a run show the same videos.

    Args:
        env: an environment with `frame_and_background`.
        strength: share of the video in the background; 1 hides the original background.
        matte: what is background, see `Renderer.frame_and_background`.
        color: keep the video's colours instead of one brightness for all channels.
        frames: length of the stream.
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
        clips: str = "procedural",
        split: str = "train",
        clips_seed: int = 0,
    ):
        gym.utils.EzPickle.__init__(self, env, strength, matte, color, frames, clips, split, clips_seed)
        cells = np.ndindex(self.patches, self.patches)
        super().__init__(env, ("stream_index", "clip", "frame", *(f"brightness_{r}_{c}" for r, c in cells)))
        self.strength, self.matte = strength, matte
        self._source = (clips, split, clips_seed, frames)
        self._clips = shuffled(open_clips(clips, split, env.size, color, frames), clips_seed)
        self._stream, self._index = Stream(frames), 0

    def background(self) -> np.ndarray:
        """Return the video's current frame, uint8 [H, W, C] with one channel in grayscale."""
        return self._stream.frame(self._index)

    def frame(self) -> np.ndarray:
        """Draw the current state in front of the video."""
        frame, mask = self.env.frame_and_background(self.matte, keep_background=self.strength < 1)
        video = self.background()
        if self.strength < 1:
            video = np.rint(self.strength * video + (1 - self.strength) * frame).astype(np.uint8)
        np.copyto(frame, video, where=mask[..., None])
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
        self._index = int(self.rng.integers(self._stream.frames))

    def _advance_noise(self) -> None:
        self._index = (self._index + 1) % self._stream.frames

    def _get_noise(self) -> dict:
        return {"index": self._index, "clips": [clip.identity for clip in self._stream.clips]}

    def _set_noise(self, noise: dict) -> None:
        self._stream.restore(noise["clips"], self._clips)
        self._index = noise["index"]

    def follow(self, other: VideoBackground) -> None:
        """Take over the noise; where the clips are others, only the place in the stream."""
        if self._source == other._source:
            super().follow(other)
        else:
            self.rng = restore_generator(generator_state(other.rng))
            self._index = other._index % self._stream.frames


class NoisySensor(Distractor, gym.utils.EzPickle):
    """Couples the reward to the background: its brightness shifts the sensor from which the task is rewarded.

    The offset is the mean of the video's rows and columns H/8 to 3H/8, / 255 - 0.5, in the frame shown before
    the step; the task says how far a unit offset shifts its sensor (Wang et al. 2022).

    Args:
        env: a task with a scalar sensor, inside of a `VideoBackground`.
        strength: factor of the offset.

    Raises:
        UserError: no video underneath, or a task without a sensor.
    """

    name = "noisy_sensor"

    def __init__(self, env: gym.Env, strength: float = 1.0):
        gym.utils.EzPickle.__init__(self, env, strength)
        super().__init__(env, ("offset",))
        self.strength = strength
        self._video = env
        while not isinstance(self._video, VideoBackground):
            if not isinstance(self._video, gym.Wrapper):
                raise UserError(
                    "Distractor noisy_sensor reads the background video: add video_background as well."
                )
            self._video = self._video.env
        if not getattr(env.unwrapped, "has_reward_sensor", False):
            raise UserError("Distractor noisy_sensor needs a task whose reward has a scalar sensor.")

    def step(self, action):
        """Step with the sensor shifted by what the current frame shows."""
        self.env.unwrapped.reward_sensor_offset = self.offset()
        return super().step(action)

    def offset(self) -> float:
        """Return the offset that the frame shown now gives to the next reward."""
        patch = slice(self.size // 8, 3 * self.size // 8)
        return self.strength * (float(self._video.background()[patch, patch].mean()) / 255 - 0.5)

    def noise_values(self):
        """Return the offset."""
        return [self.offset()]


class SmoothWalk:
    """The smooth random walk W(dimensions, scale) of Wang et al. 2022: pushed at random and pulled back.

    `value()` is its position float64 [dimensions], of about scale * 0.075 in length.
    """

    radius, push, pull, decay, interval = 0.075, 0.005, 0.1, 0.9, 0.5

    def __init__(self, dimensions: int, scale: float):
        self.dimensions, self.scale = dimensions, scale
        self.position = self.velocity = np.zeros(dimensions)

    def value(self) -> np.ndarray:
        """Return the scaled position."""
        return self.scale * self.position

    def reset(self, rng: np.random.Generator) -> None:
        """Draw a start."""
        self.position = rng.normal(0, self.radius / np.sqrt(self.dimensions), self.dimensions)
        self.velocity = rng.normal(0, self.push, self.dimensions)

    def step(self, rng: np.random.Generator) -> None:
        """Advance by one step."""
        if np.linalg.norm(self.position) >= self.radius:
            acceleration = -self.pull * self.position
        else:
            acceleration = rng.normal(0, self.push, self.dimensions)
        self.velocity = (self.velocity + self.interval * acceleration) * self.decay**self.interval
        self.position = self.position + self.interval * self.velocity


class CameraJitter(Distractor, gym.utils.EzPickle):
    """Moves the picture about, as a hand-held camera would; what comes in from outside is black.

    The shift is W(2, 120) pixels at 64x64, in proportion at other sizes, applied after compositing.

    Args:
        env: any environment of this package.
        strength: factor of the amplitude.
    """

    name = "camera_jitter"

    def __init__(self, env: gym.Env, strength: float = 1.0):
        gym.utils.EzPickle.__init__(self, env, strength)
        super().__init__(env, ("dx", "dy"))
        self._walk = SmoothWalk(2, strength * 120 * env.size / 64)

    def frame(self) -> np.ndarray:
        """Draw the wrapped environment's frame, moved right by dx and down by dy pixels."""
        dx, dy = self._walk.value()
        return translate(self.env.frame(), dx, dy)

    def noise_values(self):
        """Return dx and dy in pixels."""
        return self._walk.value()

    def _reset_noise(self) -> None:
        self._walk.reset(self.rng)

    def _advance_noise(self) -> None:
        self._walk.step(self.rng)

    def _get_noise(self) -> dict:
        return {"position": self._walk.position.copy(), "velocity": self._walk.velocity.copy()}

    def _set_noise(self, noise: dict) -> None:
        self._walk.position, self._walk.velocity = noise["position"].copy(), noise["velocity"].copy()


def translate(image: np.ndarray, dx: float, dy: float) -> np.ndarray:
    """Move a uint8 image [H, W, C] right by dx and down by dy pixels, bilinearly, with a black border."""
    shifted = _translate_axis(image.astype(np.float32), dy, 0)
    return (_translate_axis(shifted, dx, 1) + 0.5).astype(np.uint8)


def _translate_axis(image: np.ndarray, shift: float, axis: int) -> np.ndarray:
    """Move a float image along one axis by a fraction of pixels, with zeros coming in."""
    length = image.shape[axis]
    whole = int(np.floor(shift))
    fraction = np.float32(shift - whole)
    moved = np.zeros_like(image)
    for offset, weight in ((whole, 1 - fraction), (whole + 1, fraction)):
        if abs(offset) < length and weight > 0:
            target, source = [slice(None)] * 3, [slice(None)] * 3
            target[axis] = slice(max(offset, 0), length + min(offset, 0))
            source[axis] = slice(max(-offset, 0), length - max(offset, 0))
            moved[tuple(target)] += weight * image[tuple(source)]
    return moved
