"""The ground truth of an environment as factors that a picture can show: the targets of probes.

Numbers that no camera shows (frame and clip numbers, how far a filmed body has travelled, what a distractor hides) are
left out, and so are those that can be known without looking (how far the television has scrolled). Circular numbers are
encoded so that equal pictures have equal values. Each factor belongs to one of the four kinds of information in Wang et
al. 2022, Figure 1 and Table D.1.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatch

import gymnasium as gym
import numpy as np

from denoised_mdp.envs.distractors.base import distractors_of
from denoised_mdp.errors import UserError

QUADRANTS = {
    "controllable, relevant": ("x",),
    "controllable, irrelevant": ("z",),
    "uncontrollable, relevant": ("y",),
    "uncontrollable, irrelevant": ("y",),
}
"""kind of information -> the latents that should hold it in the paper's models"""
SIGNAL, USELESS, RELEVANT_NOISE, NOISE = QUADRANTS
NOISE_KINDS = {
    **dict.fromkeys(("*/stream_index", "*/clip", "*/frame"), "unseen"),  # these identify a picture, not its content
    "tv/phase_roll": "unseen",  # a function of the step, equal in all episodes: counting gives it without looking
    "*/phase_*": "phase",
}
"""name pattern -> kind; all others are scalar"""


class NoGroundTruth(UserError):
    """The environment provides no ground truth for its pictures."""


@dataclass(frozen=True)
class Factor:
    """One quantity to predict, with one or more columns.

    Attributes:
        name: as in the environment's names, without the numeric suffixes of grouped columns.
        source: "signal" or "noise", the entry of ``info``.
        columns: indices into that entry.
        kind: "scalar" (as it is), "angle" (radians, as sine and cosine), "phase" (the same with period 1) or
            "quaternion" (as the first two columns of the rotation matrix).
        quadrant: a key of `QUADRANTS`.
    """

    name: str
    source: str
    columns: tuple[int, ...]
    kind: str
    quadrant: str

    @property
    def goal(self) -> bool:
        """Whether it is a target's position, or another part of the task that the agent cannot move but must know.

        A reward that depends on it and the body jointly does not split into a sum. The policy needs both, so x should
        hold it, whatever its quadrant says. Recall and leakage count it as neither signal nor noise.
        """
        return self.source == "signal" and self.quadrant == RELEVANT_NOISE

    def values(self, signal: np.ndarray, noise: np.ndarray) -> np.ndarray:
        """Encode the factor: signal [..., S], noise [..., N] -> float64 [..., columns after encoding]."""
        raw = np.asarray({"signal": signal, "noise": noise}[self.source], np.float64)[..., list(self.columns)]
        if self.kind in ("angle", "phase"):
            angle = raw * (2 * np.pi if self.kind == "phase" else 1.0)
            return np.concatenate((np.sin(angle), np.cos(angle)), -1)
        return rotation_columns(raw) if self.kind == "quaternion" else raw


def rotation_columns(quaternion: np.ndarray) -> np.ndarray:
    """Unit quaternions w, x, y, z [..., 4] -> the first two columns of the rotation matrix [..., 6].

    A quaternion and its negative are the same rotation and get the same encoding.
    """
    w, x, y, z = np.moveaxis(quaternion / np.linalg.norm(quaternion, axis=-1, keepdims=True), -1, 0)
    first = (1 - 2 * (y * y + z * z), 2 * (x * y + w * z), 2 * (x * z - w * y))
    second = (2 * (x * y - w * z), 1 - 2 * (x * x + z * z), 2 * (y * z + w * x))
    return np.stack((*first, *second), -1)


def factors(env: gym.Env) -> list[Factor]:
    """Return the factors of an environment of this package, signal first.

    A world may define `signal_kinds`: a `Factor.kind` or "unseen" for each number; by default all are scalar.

    Raises:
        NoGroundTruth: the environment has none, as with ``env=gym``.
    """
    if not env.unwrapped.signal_names:
        raise NoGroundTruth("This environment has no ground truth of its signal: no factor can be probed.")
    world = env.unwrapped.world.unwrapped  # without distractors
    signal, noise = env.unwrapped.signal_names, env.unwrapped.noise_names
    signal_kinds = getattr(world, "signal_kinds", ("scalar",) * len(signal))
    hidden = {pattern: "unseen" for one in distractors_of(env.unwrapped.world).values() for pattern in one.hides}
    kinds = hidden | NOISE_KINDS
    noise_kinds = [
        next((kind for pattern, kind in kinds.items() if fnmatch(name, pattern)), "scalar") for name in noise
    ]
    return _group("signal", signal, signal_kinds, env.unwrapped.quadrants) + _group(
        "noise", noise, noise_kinds, env.unwrapped.quadrants
    )


def _group(source: str, names: Sequence[str], kinds: Sequence[str], quadrants: Mapping[str, str]) -> list[Factor]:
    """Merge the numbers of a quaternion, and those of a grid (``name_2_3``), into one factor each."""
    groups: dict[tuple[str, str], list[int]] = {}
    for column, (name, kind) in enumerate(zip(names, kinds, strict=True)):
        if kind != "unseen":
            joined = re.sub(r"/\d+$" if kind == "quaternion" else r"_\d+_\d+$", "", name)
            groups.setdefault((joined, kind), []).append(column)
    out = []
    for (name, kind), columns in groups.items():
        out.append(Factor(name, source, tuple(columns), kind, quadrants[names[columns[0]]]))
    return out
