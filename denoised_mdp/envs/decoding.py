"""Decode video files into small square frames."""

from __future__ import annotations

from pathlib import Path

import numpy as np

VERSION = 2  # part of the cache's key: raise it when the frames change


class UnreadableVideo(Exception):
    """PyAV cannot decode the file."""


def decode(path: Path, size: int, color: bool, frames: int, resize: str = "antialiased") -> np.ndarray:
    """Decode at most `frames` frames of a video, each squeezed into a square: uint8 [N, size, size, 3 or 1].

    `resize`: "antialiased" averages over the area that a pixel covers. The methods of Wang et al. 2022 are sharper and
    flicker: "bilinear" for backgrounds, "nearest" for the television.

    Raises:
        UnreadableVideo: the file is not a video, holds only audio, or is damaged.
    """
    import av  # slow to import, and not needed for procedural clips

    decoded = []
    pixels = "rgb24" if color else "gray"
    try:
        with av.open(str(path)) as container:
            if not container.streams.video:
                raise UnreadableVideo("it has no pictures")
            stream = container.streams.video[0]
            stream.thread_type = "AUTO"
            for frame in container.decode(stream):
                if resize in _RESIZES:
                    whole = frame.to_ndarray(format=pixels)
                    decoded.append(_RESIZES[resize](whole.reshape(*whole.shape[:2], -1), size))
                else:  # FFmpeg's scaler widens its kernel to downscale; interleaved output would be off by two levels
                    small = frame.reformat(size, size, "gbrp" if color else "gray", interpolation="BILINEAR")
                    decoded.append(small.to_ndarray().reshape(size, size, -1))
                if len(decoded) == frames:
                    break
    except (av.error.FFmpegError, OSError, IndexError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error) or type(error).__name__  # without errno and path
        raise UnreadableVideo(reason) from error
    if not decoded:
        raise UnreadableVideo("it has no frames")
    return np.stack(decoded)


def bilinear(image: np.ndarray, size: int) -> np.ndarray:
    """Resize uint8 [H, W, C] to [size, size, C] from the 2x2 pixels around each sample, without antialiasing.

    Samples lie at the centres of the new pixels. Beyond the outermost old centres, the edge colour is repeated.
    """
    (top, bottom, down), (left, right, across) = (_neighbours(length, size) for length in image.shape[:2])
    image, down, across = image.astype(np.float32), down[:, None, None], across[:, None]  # [S, 1, 1], [S, 1]
    rows = (1 - down) * image[top] + down * image[bottom]  # [S, W, C]
    return np.rint((1 - across) * rows[:, left] + across * rows[:, right]).astype(np.uint8)  # [S, S, C]


def nearest(image: np.ndarray, size: int) -> np.ndarray:
    """Resize [H, W, C] to [size, size, C]: each new pixel copies the old one under its top left corner."""
    rows, columns = (np.arange(size) * length // size for length in image.shape[:2])
    return image[rows][:, columns]


_RESIZES = {"bilinear": bilinear, "nearest": nearest}


def _neighbours(length: int, size: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the pixels before and after each of `size` samples on a line, and the weight of the latter, all [size]."""
    place = np.clip((np.arange(size) + 0.5) * length / size - 0.5, 0, length - 1)
    before = place.astype(int)
    return before, np.minimum(before + 1, length - 1), (place - before).astype(np.float32)
