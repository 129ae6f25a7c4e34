"""Generated video clips with natural statistics: no download. They are not Kinetics.

A clip is a dead-leaves scene: opaque shapes whose number falls with the cube of their size, each with its own
tone and patch of 1/f texture. They drift at different depths: nearer shapes are faster and occlude farther ones. The
backdrop drifts the other way. Such scenes share the spectrum, edges and occlusions of natural images.
"""

from __future__ import annotations

import numpy as np

from denoised_mdp.seeding import generator

CLIPS = 4  # per split
FRAMES = 300  # per clip: ten seconds of ordinary video
SHAPES = 40  # per clip
SMALLEST, LARGEST = 0.06, 0.35  # radius of a shape, in widths of the picture
VERSION = 2  # part of the cache's key: raise it when the clips change


def procedural_clip(index: int, split: str, size: int, color: bool) -> np.ndarray:
    """Return clip `index` of a split, uint8 [FRAMES, size, size, 3 or 1]."""
    rng = generator(index, f"procedural clip {split}")
    time = np.arange(FRAMES)
    axis = (np.arange(size, dtype=np.float32) + 0.5) / size
    direction = rng.normal(0, 1, 2)
    drift = direction / np.linalg.norm(direction) * rng.uniform(0.002, 0.006)  # (x, y) widths per frame

    texture = one_over_f(rng, 2 * size)
    tone, slope = _tone(rng), rng.uniform(-0.4, 0.4)  # sky and ground differ in brightness
    backdrop = tone + slope * (0.5 - axis[:, None, None])  # [H, 1, 3]
    shifts = drift * time[:, None] * size
    clip = np.stack([backdrop + 0.12 * _window(texture, *shift, size)[..., None] for shift in shifts])

    # Radii of density ~ radius^-3, by inverse transform sampling; larger shapes are nearer.
    shares = rng.uniform((SMALLEST / LARGEST) ** 2, 1, SHAPES)
    for radius in sorted(SMALLEST / np.sqrt(shares)):
        velocity = drift * (1 + 8 * radius) + rng.normal(0, 0.002, 2)
        sway = 0.03 * rng.uniform(0, 1, 2) * np.sin(time[:, None] / rng.uniform(15, 60, 2))
        period = 1 + 4 * radius  # a shape leaves on one side before it enters on the other
        centers = (rng.uniform(0, period, 2) + velocity * time[:, None]) % period - 2 * radius + sway
        angles = rng.uniform(0, np.pi) + rng.normal(0, 0.01) * time
        _draw_shape(clip, rng, axis, centers.astype(np.float32), radius, angles, texture)

    light = 1 + 0.08 * np.sin(time / rng.uniform(20, 60) + rng.uniform(0, 6))
    clip = np.clip(clip * light.astype(np.float32)[:, None, None, None], 0, 1)
    if not color:
        clip = clip @ np.array([[0.299], [0.587], [0.114]], np.float32)  # Rec. 601 luma
    return np.rint(255 * clip).astype(np.uint8)


def one_over_f(rng: np.random.Generator, size: int) -> np.ndarray:
    """Return seamless noise [size, size], zero mean, unit variance, amplitude falling as 1 / frequency."""
    frequency = np.hypot(np.fft.fftfreq(size)[:, None], np.fft.rfftfreq(size)[None])
    frequency[0, 0] = np.inf
    noise = np.fft.irfft2(np.fft.rfft2(rng.normal(size=(size, size))) / frequency, (size, size))
    return (noise / noise.std()).astype(np.float32)


def _tone(rng: np.random.Generator) -> np.ndarray:
    """Draw a colour [3]: brightness over the whole range, hue mild."""
    return np.clip(rng.beta(0.7, 0.8) + rng.normal(0, 0.08, 3), 0.02, 0.98).astype(np.float32)


def _window(texture: np.ndarray, x: float, y: float, size: int) -> np.ndarray:
    """Return the square [size, size] of a seamless texture from (x, y) on, interpolated bilinearly."""
    window = texture
    for axis, start in ((0, y), (1, x)):
        whole = int(np.floor(start))
        fraction = np.float32(start - whole)
        first = np.arange(whole, whole + size) % len(texture)
        second = (first + 1) % len(texture)
        window = (1 - fraction) * window.take(first, axis) + fraction * window.take(second, axis)
    return window


def _draw_shape(clip, rng, axis, centers, radius, angles, texture) -> None:
    """Draw one moving shape with soft edges over all frames of `clip` [FRAMES, H, W, 3]."""
    size = len(axis)
    stretch = rng.uniform(0.6, 1.6)
    boxy = rng.random() < 0.5
    tone, contrast = _tone(rng), rng.uniform(0.02, 0.12)
    corner = rng.integers(0, len(texture), 2)
    reach = radius * max(stretch, 1) * (1.45 if boxy else 1.05) + 1 / size
    # [FRAMES, 2, 2]: of x and of y, the first pixel that a shape may reach and the first one beyond
    windows = np.searchsorted(axis, centers[..., None] + np.array([-reach, reach]))
    for frame, (x, y), angle, (columns, rows) in zip(clip, centers, angles, windows.tolist(), strict=True):
        rows, columns = slice(*rows), slice(*columns)
        dy, dx = axis[rows, None] - y, axis[None, columns] - x
        if dy.size == 0 or dx.size == 0:
            continue
        cos, sin = np.float32(np.cos(angle)), np.float32(np.sin(angle))
        u, v = np.abs(cos * dx + sin * dy) / stretch, np.abs(cos * dy - sin * dx)
        distance = np.maximum(u, v) if boxy else np.hypot(u, v)
        cover = np.minimum(np.maximum((radius - distance) * size + 0.5, 0), 1)[..., None]
        # The texture moves with its shape.
        own_rows = (corner[0] + np.rint(dy * size).astype(int)) % len(texture)
        own_columns = (corner[1] + np.rint(dx * size).astype(int)) % len(texture)
        patch = frame[rows, columns]
        patch += cover * (tone + contrast * texture[own_rows, own_columns][..., None] - patch)
