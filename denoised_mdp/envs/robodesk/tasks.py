"""RoboDesk's tasks: the package's eighteen, and three about the colour of the television's picture.

Definitions and constants are those of RoboDesk (Kannan et al. 2021) and, for the television, of Wang et al. 2022.
There is one deliberate difference: "has not moved" and "has been lifted" compare with a block's position at the start
of the episode. The package compares with an alias of the current position, so nothing ever moves.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from denoised_mdp.envs.robodesk.distractors import COLORS
from denoised_mdp.envs.suites import tasks

BLOCKS = ("ball", "upright_block", "flat_block")
REWARDS = ("dense", "sparse", "success")
PRESSED = -0.00453  # position of a lamp's joint below which its button counts as pressed
LIFTED = {"upright_block": 0.86, "ball": 0.81, "flat_block": 0.78}  # height of the centre, metres
STACKED = np.array([0.0, 0.0, 0.0377804])  # from the flat block's centre to the upright one's
SHELF = np.array([0.4, 1.1])
BIN = np.array([[0.28, 0.52], [0.38, 0.62], [0.0, 0.4]])


@dataclass(frozen=True)
class Situation:
    """The quantities that rewards read. All are true and without noise, except the television's picture.

    Attributes:
        hand: position of the end effector [3].
        places: name -> position [3] of blocks, buttons (``red_button``...) and handles (``drawer``, ``slide``).
        start: block -> its position [3] when the episode began.
        joints: name -> position of drawer, slide and lamps (``red_light``...), which rise as their buttons go down.
        screen: mean red, green and blue of the television's picture, each in [0, 1]; nan in tasks that ignore it.
    """

    hand: np.ndarray
    places: Mapping[str, np.ndarray]
    start: Mapping[str, np.ndarray]
    joints: Mapping[str, float]
    screen: np.ndarray

    def near(self, place: str | np.ndarray) -> float:
        """Return 1 if the hand is at `place`, falling linearly to 0 at a distance of one metre."""
        point = self.places[place] if isinstance(place, str) else place
        return max(0.0, 1.0 - float(np.linalg.norm(self.hand - point)))

    def moved(self, block: str) -> float:
        """Return the distance in metres between a block and its initial position."""
        return float(np.linalg.norm(self.places[block] - self.start[block]))

    def stayed(self, block: str) -> bool:
        """Whether a block is within a centimetre of its initial position."""
        return self.moved(block) < 0.01

    def pressed(self, color: str) -> bool:
        """Whether a button is pressed."""
        return self.joints[f"{color}_light"] < PRESSED


@dataclass(frozen=True)
class Task:
    """A dense reward, a measure of success, and the joints (besides the arm's) that they depend on.

    `success` is true or false; in a television task, it is the colour of the screen in [0, 1]. `channel` is the
    television's colour channel that the task is about, None for other tasks. `decisive` are the joints that success
    depends on, None for all.
    """

    dense: Callable[[Situation], float]
    success: Callable[[Situation], float]
    joints: tuple[str, ...]
    channel: int | None = None
    decisive: tuple[str, ...] | None = None

    def relevant(self, kind: str) -> tuple[str, ...]:
        """Return the joints, besides the arm's, that the reward of this `kind` depends on."""
        return self.joints if kind == "dense" or self.decisive is None else self.decisive

    def reward(self, situation: Situation, kind: str) -> float:
        """Return the reward of one step in [0, 1]; for `kind` "sparse" or "success", this is the success."""
        value = self.dense(situation) if kind == "dense" else self.success(situation)
        return float(min(max(value, 0.0), 1.0))


def find_task(name: str) -> Task:
    """Return the task with this name from ``tasks("robodesk")``."""
    for ending, make in (("_off_table", _off_table), ("_in_bin", _in_bin), ("_in_shelf", _in_shelf)):
        if name.endswith(ending):
            return make(name.removesuffix(ending))
    if name.startswith("lift_"):
        return _lift(name.removeprefix("lift_"))
    if name.startswith("push_"):
        return _push(name.removeprefix("push_"))
    if name.startswith("tv_"):
        return _hue(name.split("_")[1])
    return {"open_slide": _SLIDE, "open_drawer": _DRAWER, "stack": _STACK}[name]


def all_tasks() -> dict[str, Task]:
    """Return every task by name."""
    return {name: find_task(name) for name in tasks("robodesk")}


def _others(block: str) -> tuple[str, ...]:
    return tuple(other for other in BLOCKS if other != block)


def _slide(s: Situation) -> float:
    opening = 0.75 * s.joints["slide_joint"] / 0.6 + 0.25 * s.near(s.places["slide"] - np.array([0.15, 0.0, 0.0]))
    stayed = 0.33 * s.stayed("flat_block") + 0.33 * s.stayed("upright_block") + 0.34 * s.stayed("ball")
    return 0.9 * opening + 0.1 * stayed


_SLIDE = Task(_slide, lambda s: s.joints["slide_joint"] > 0.55, ("slide_joint", *BLOCKS), decisive=("slide_joint",))
_DRAWER = Task(
    lambda s: 0.75 * abs(s.joints["drawer_joint"]) / 0.3 + 0.25 * s.near("drawer"),
    lambda s: s.joints["drawer_joint"] < -0.2,
    ("drawer_joint",),
)


def _stack_error(s: Situation) -> float:
    return float(np.linalg.norm(STACKED - (s.places["upright_block"] - s.places["flat_block"])))


_STACK = Task(
    lambda s: s.near("upright_block") - _stack_error(s),
    lambda s: _stack_error(s) < 0.04,
    ("upright_block", "flat_block"),
)


def _push(color: str) -> Task:
    return Task(
        lambda s: 0.25 * s.pressed(color) + 0.75 * s.near(f"{color}_button"),
        lambda s: s.pressed(color),
        (f"{color}_button", f"{color}_light"),
    )


def _off_table(block: str) -> Task:
    def dense(s: Situation) -> float:
        fallen = 1 - s.places[block][2] / s.start[block][2]
        stay = sum(0.1 * (1 - s.moved(other) / 5) for other in _others(block))
        return 0.75 * min(max(0.8 * fallen + stay, 0.0), 1.0) + 0.25 * s.near(block)

    def success(s: Situation) -> bool:
        return s.places[block][2] < 0.6 and all(s.stayed(other) for other in _others(block))

    return Task(dense, success, BLOCKS)


def _in_bin(block: str) -> Task:
    def success(s: Situation) -> bool:
        return bool(np.all((BIN[:, 0] < s.places[block]) & (s.places[block] < BIN[:, 1])))

    return Task(lambda s: 0.5 * s.near(block) + 0.5 * success(s), success, (block,))


def _in_shelf(block: str) -> Task:
    def success(s: Situation) -> bool:
        return bool(s.places[block][0] > 0.2 and s.places[block][1] > 1.0)

    def dense(s: Situation) -> float:
        close = 1 - float(np.linalg.norm(SHELF - s.places[block][:2]))
        shelved = 0.33 * s.near(block) + 0.33 * close + 0.34 * success(s)
        return 0.5 * shelved + sum(0.25 * (1 - s.moved(other) / 5) for other in _others(block))

    return Task(dense, success, BLOCKS, decisive=(block,))


def _lift(block: str) -> Task:
    def dense(s: Situation) -> float:
        height = 10 * (s.places[block][2] - s.start[block][2])
        return 0.85 * min(max(height, 0.0), 1.0) + 0.15 * s.near(block)

    return Task(dense, lambda s: s.places[block][2] > LIFTED[block], (block,))


def _hue(color: str) -> Task:
    channel = COLORS.index(color)

    def dense(s: Situation) -> float:
        return 0.5 * s.screen[channel] + 0.25 * s.near(f"{color}_button") + 0.25 * s.pressed(color)

    return Task(dense, lambda s: s.screen[channel], (f"{color}_button", f"{color}_light"), channel)
