"""Made-up video clips with natural statistics, so that nothing need be downloaded. They are not Kinetics.

A clip is a world of leaves: opaque shapes whose number falls with the cube of their size, each with its own colour
and 1/f texture, drifting at its own depth, nearer ones faster and in front of farther ones. Such scenes share the
spectrum, the edges and the occlusions of natural images.
"""

from __future__ import annotations

import numpy as np

from denoised_mdp.envs.seeding import generator

CLIPS = 4  # per split
FRAMES = 300  # per clip: ten seconds of ordinary video
SHAPES = 40  # per clip
VERSION = 1  # part of the cache's key: raise it when the clips change


def procedural_clip(index: int, split: str, size: int, color: bool) -> np.ndarray:
    """Return clip `index` of a split, uint8 [FRAMES, size, size, 3 or 1]."""
    rng = generator(index, f"procedural clip {split}")
    time = np.arange(FRAMES, dtype=np.float32)
    axis = (np.arange(size, dtype=np.float32) + 0.5) / size
    drift = rng.normal(0, 1, 2)
    drift *= rng.uniform(0.002, 0.006) / np.linalg.norm(drift)  # of the picture's width, per frame

    texture = one_over_f(rng, 2 * size)
    clip = np.empty((FRAMES, size, size, 3), np.float32)
    backdrop = _palette(rng)
    for t in range(FRAMES):
        rows, columns = (_wrapped(size, d * t * size, len(texture)) for d in drift[::-1])
        clip[t] = backdrop + 0.12 * texture[rows[:, None], columns, None]

    sizes = np.sort(0.06 * (1 - rng.uniform(0, 0.97, SHAPES)) ** -0.5)  # density ~ size^-3; larger ones are nearer
    for radius in sizes:
        nearness = 0.5 + 4 * radius
        velocity = drift * nearness * 2 + rng.normal(0, 0.002, 2)
        sway = rng.uniform(0, 0.03, 2) * np.sin(time[:, None] / rng.uniform(15, 60, 2) + rng.uniform(0, 6, 2))
        margin = 1 + 4 * radius  # a shape leaves on one side before it comes in on the other
        center = (rng.uniform(0, margin, 2) + velocity * time[:, None]) % margin - 2 * radius + sway
        angle = rng.uniform(0, np.pi) + rng.normal(0, 0.01) * time
        _draw_shape(clip, rng, axis, center.astype(np.float32), radius, angle.astype(np.float32), texture)

    light = 1 + 0.08 * np.sin(time / rng.uniform(20, 60) + rng.uniform(0, 6))
    clip = np.clip(clip * light[:, None, None, None], 0, 1)
    if not color:
        clip = clip @ np.array([[0.299], [0.587], [0.114]], np.float32)  # Rec. 601 luma
    return np.rint(255 * clip).astype(np.uint8)


def one_over_f(rng: np.random.Generator, size: int) -> np.ndarray:
    """Return seamless noise [size, size] of zero mean and unit variance whose amplitude falls as 1 / frequency."""
    frequency = np.hypot(np.fft.fftfreq(size)[:, None], np.fft.rfftfreq(size)[None])
    frequency[0, 0] = np.inf
    noise = np.fft.irfft2(np.fft.rfft2(rng.normal(size=(size, size))) / frequency, (size, size))
    return ((noise - noise.mean()) / noise.std()).astype(np.float32)


def _palette(rng: np.random.Generator) -> np.ndarray:
    """Draw a colour [3]: brightness over the whole range, hue mild."""
    return np.clip(rng.beta(0.7, 0.8) + rng.normal(0, 0.08, 3), 0.02, 0.98).astype(np.float32)


def _wrapped(size: int, offset: float, period: int) -> np.ndarray:
    return (np.arange(size) + int(offset)) % period


def _draw_shape(clip, rng, axis, center, radius, angle, texture) -> None:
    """Draw one moving shape with soft edges over all frames of `clip`."""
    size = len(axis)
    stretch = rng.uniform(0.6, 1.6)
    boxy = rng.random() < 0.5
    tone, contrast = _palette(rng), rng.uniform(0.02, 0.12)
    corner = rng.integers(0, len(texture), 2)
    for t in range(len(clip)):
        reach = radius * max(stretch, 1) * (1.45 if boxy else 1.05) + 1 / size
        box = [slice(*np.searchsorted(axis, (c - reach, c + reach))) for c in center[t][::-1]]
        dy, dx = axis[box[0], None] - center[t, 1], axis[None, box[1]] - center[t, 0]
        if dy.size == 0 or dx.size == 0:
            continue
        cos, sin = np.cos(angle[t]), np.sin(angle[t])
        u, v = np.abs(cos * dx + sin * dy) / stretch, np.abs(cos * dy - sin * dx)
        distance = np.maximum(u, v) if boxy else np.hypot(u, v)
        cover = np.clip((radius - distance) * size + 0.5, 0, 1)[..., None]
        own = texture[  # the texture moves along with its shape
            (corner[1] + np.rint(dy[:, 0] * size).astype(int))[:, None] % len(texture),
            (corner[0] + np.rint(dx[0] * size).astype(int)) % len(texture),
        ]
        patch = clip[t, box[0], box[1]]
        patch += cover * (tone + contrast * own[..., None] - patch)
