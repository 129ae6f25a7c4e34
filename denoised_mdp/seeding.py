"""One independent random generator per purpose, derived from a single seed by name."""

from __future__ import annotations

import zlib

import numpy as np


def generator(seed: int | None, name: str) -> np.random.Generator:
    """Return the generator for `name` under `seed`: other names get independent streams.

    `seed` None draws fresh entropy from the operating system.
    """
    spawn_key = (zlib.crc32(name.encode()),)
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence(seed, spawn_key=spawn_key)))


EPISODES = {"evaluation": 2**31, "probe": 2**32, "joints episodes": 2**33}
"""lowest seed of the episodes for each purpose; the next purpose starts at twice that"""


def episode_seeds(seed: int, purpose: str, count: int) -> list[int]:
    """Return distinct seeds of episodes for a purpose in `EPISODES`; a longer list begins with the shorter one.

    All exceed every seed that a configuration may hold, and no two purposes share one. So training never plays such an
    episode: its environments are seeded once, below 2**31.
    """
    rng, low, seeds = generator(seed, purpose), EPISODES[purpose], {}
    while len(seeds) < count:
        seeds[int(rng.integers(low, 2 * low))] = None
    return list(seeds)


def torch_seed(seed: int, name: str) -> int:
    """Return a seed for a generator of another library, independent for every `name`."""
    return int(generator(seed, name).integers(2**63))


def generator_state(rng: np.random.Generator) -> dict:
    """Return the generator's whole state as a tree of strings and ints."""
    return rng.bit_generator.state


def restore_generator(state: dict) -> np.random.Generator:
    """Return a new generator that continues where `generator_state` was taken."""
    bits = np.random.PCG64()
    bits.state = state
    return np.random.Generator(bits)
