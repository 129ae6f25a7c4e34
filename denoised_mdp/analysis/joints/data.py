"""A data set on disk of pictures labelled with joint positions, for `probe joints` (Wang et al. 2022).

A folder holds ``observation.npy`` uint8 [rows, H, W, 3] and ``position.npy`` float32 [rows, P], which any NumPy program
can memory-map. Its ``manifest.json`` lists the environment, the joints with their units, the policies, and the policy,
seed, return, split and checksum of each episode. All episodes have the same number of consecutive rows. An episode
depends only on its seed and policy.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np

from denoised_mdp.analysis.joints.targets import JointTargets, columns_of
from denoised_mdp.envs import make_env
from denoised_mdp.envs.joints import Joint
from denoised_mdp.errors import UserError, did_you_mean
from denoised_mdp.files import read_json
from denoised_mdp.replay.storage import Columns, Layout
from denoised_mdp.seeding import episode_seeds, generator

FORMAT = 1
SAMPLED = 8
"""number of episodes whose checksums are verified when a data set is opened"""


@dataclass(frozen=True)
class Plan:
    """The contents of a data set, as stored in its manifest. A folder holds a single data set."""

    environment: dict[str, Any]
    """keyword arguments of `make_env`, including the task; its episode length is that of the data set"""
    policies: tuple[str, ...]
    episodes: int
    """episodes per policy"""
    frames: int
    """rows per episode"""
    test_share: float
    """share of each policy's episodes that is held out for testing"""
    seed: int = 0
    behaviour: dict[str, Any] = field(default_factory=dict)
    """how the policies were trained"""

    def make(self) -> gym.Env:
        """Make the environment."""
        return make_env(**self.environment)

    def schedule(self) -> list[dict[str, Any]]:
        """Policy, seed and split of every episode; the policies alternate."""
        test = max(1, round(self.episodes * self.test_share))
        if test >= self.episodes:
            raise UserError("Each policy needs an episode to train on and one to test on: give more --episodes.")
        orders = {p: generator(self.seed, f"joints split {p}").permutation(self.episodes) for p in self.policies}
        seeds = episode_seeds(self.seed, "joints episodes", self.episodes * len(self.policies))
        pairs = [(number, policy) for number in range(self.episodes) for policy in self.policies]
        return [
            {"policy": policy, "seed": seed, "split": "test" if number in orders[policy][:test] else "train"}
            for (number, policy), seed in zip(pairs, seeds, strict=True)
        ]


def layout_of(size: int, targets: JointTargets) -> Layout:
    """The storage layout of a data set of `size` x `size` pictures."""
    width = len(columns_of(targets.joints))
    return {"observation": (np.dtype(np.uint8), (size, size, 3)), "position": (np.dtype(np.float32), (width,))}


def read_manifest(folder: Path) -> dict[str, Any]:
    """Read the manifest of a data set.

    Raises:
        UserError: it is missing, damaged or from a newer version.
    """
    path = folder / "manifest.json"
    try:
        manifest = read_json(path)
        if manifest["format"] > FORMAT:
            raise UserError(f"{path} was written by a newer version of this software: update it.")
        return manifest
    except FileNotFoundError:
        near = sorted(str(other.parent) for other in folder.parent.glob("*/manifest.json"))
        raise UserError(
            f"There is no data set at {folder}: denoised-mdp probe joints-data makes one."
            f"{did_you_mean(folder, near) if near else ''}"
        ) from None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(f"{path} is damaged ({error}). Restore it, or make the data set in a new folder.") from error


class JointData:
    """A complete data set, open for reading.

    Raises:
        UserError: it is missing, unfinished or damaged.
    """

    def __init__(self, folder: Path):
        self.folder = Path(folder)
        self.manifest = manifest = read_manifest(self.folder)
        self.plan = Plan(**{part.name: manifest[part.name] for part in fields(Plan)})
        self.frames, self.episodes = self.plan.frames, manifest["finished"]
        total = len(self.plan.policies) * self.plan.episodes
        if len(self.episodes) < total:
            raise UserError(
                f"{self.folder} has {len(self.episodes):,} of {total:,} episodes: repeat the probe joints-data that"
                " began it to continue."
            )
        joints = [Joint(**{**joint, "columns": tuple(joint["columns"])}) for joint in manifest["joints"]]
        self.targets = JointTargets(tuple(joints))
        layout = layout_of(self.plan.environment["size"], self.targets)
        self._columns = Columns(self.folder, layout, total * self.frames, writable=False)
        self.check(sorted({int(n) for n in np.linspace(0, total - 1, SAMPLED)}))

    def check(self, episodes: Sequence[int]) -> None:
        """Verify the checksums of these episodes.

        Raises:
            UserError: one differs.
        """
        for number in episodes:
            checksum = 0
            for row in range(number * self.frames, (number + 1) * self.frames):
                for name in ("observation", "position"):
                    checksum = zlib.crc32(self._columns[name][row].tobytes(), checksum)
            if checksum != self.episodes[number]["crc32"]:
                raise UserError(f"{self.folder} is damaged (episode {number}). Restore it, or make it in a new folder.")
            self._columns.forget("observation")

    def fingerprint(self) -> str:
        """A checksum of the manifest, including the checksums of all episodes."""
        return f"{zlib.crc32(json.dumps(self.manifest, sort_keys=True).encode()):08x}"

    def choose(self, split: str, count: int | None, seed: int) -> np.ndarray:
        """Draw `count` distinct rows of one split (None: all of them), the same number from each policy.

        A smaller choice with the same seed is a prefix of a larger one.

        Raises:
            UserError: the split has too few rows, or `count` is smaller than the number of policies.
        """
        policies, pools = self.plan.policies, []
        for policy in policies:
            own = [n for n, one in enumerate(self.episodes) if (one["policy"], one["split"]) == (policy, split)]
            rows = (np.array(own)[:, None] * self.frames + np.arange(self.frames)).reshape(-1)
            pools.append(generator(seed, f"joints rows {split} {policy}").permutation(rows))
        available = sum(len(pool) for pool in pools)
        each = (available if count is None else count) // len(policies)
        if not 0 < each <= len(pools[0]):
            option = "--sizes, which scaled fits to it," if split == "train" else "--test-pairs"
            raise UserError(
                f"{self.folder} has {available:,} pairs to {split} with, from {len(policies)} policies, not {count:,}:"
                f" give other {option} or make a larger data set."
            )
        return np.stack([pool[:each] for pool in pools], 1).reshape(-1)

    def images(self, rows: np.ndarray, stack: int = 1) -> np.ndarray:
        """The frames of `rows` [n], each with the `stack` - 1 before it: uint8 [n, stack, H, W, 3], oldest first.

        At the start of an episode, its first frame is repeated in place of earlier ones.
        """
        rows = np.asarray(rows)
        first = rows - rows % self.frames
        wanted = np.maximum(rows[:, None] - np.arange(stack)[::-1], first[:, None])
        out = self._columns["observation"][wanted]
        self._columns.forget("observation")
        return out

    def positions(self, rows: np.ndarray) -> np.ndarray:
        """Joint positions [n, P] of `rows` [n]."""
        return self._columns["position"][np.asarray(rows)]

    def close(self) -> None:
        """Close the files."""
        self._columns.close()
