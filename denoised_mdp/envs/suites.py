"""Suites: where tasks come from and what makes their worlds. Cheap to import: nothing is made here.

Once registered, a suite is known on the command line (``env=NAME``), in help, completion and error suggestions.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any

import gymnasium as gym

from denoised_mdp.errors import UserError, did_you_mean
from denoised_mdp.plugins import Registry


@dataclass(frozen=True)
class Suite:
    """A suite; see `register_suite` for the fields."""

    make: Callable[..., gym.Env] | str
    tasks: tuple[str, ...]
    options: Mapping[str, Any] = field(default_factory=dict)
    distractors: tuple[str, ...] = ()
    takes: tuple[str, ...] = ()
    look_up: Callable[[str], int | None] | str | None = None
    undistracted: tuple[str, ...] = ()

    def world(self, task: str, arguments: Mapping[str, Any]) -> gym.Env:
        """Make the world of a task from those of `arguments` that the suite takes."""
        return _load(self.make)(task, **{name: arguments[name] for name in ("size", "episode_steps", *self.takes)})

    def check(self, task: str) -> int | None:
        """Return the number of steps after which the task's episodes end by themselves, None if unknown.

        Raises:
            UserError: the suite has no such task.
        """
        if self.look_up is not None:
            return _load(self.look_up)(task)
        if task not in self.tasks:
            raise UserError(f"Unknown task {task!r}.{did_you_mean(task, self.tasks)}")
        return None

    @property
    def choice(self) -> dict[str, Any]:
        """The options that ``env=NAME`` sets besides the name: the first task and the suite's own defaults."""
        return ({"task": self.tasks[0]} if self.tasks else {}) | dict(self.options)


SUITES: Registry[Suite] = Registry("suite")
TAKES = ("camera", "quality", "reward", "distractors")
USUAL = {"size": 64, "action_repeat": 2, "episode_steps": 1000}
"""options of a suite that does not override them"""


def register_suite(
    name: str,
    make: Callable[..., gym.Env] | str,
    tasks: Sequence[str],
    options: Mapping[str, Any] | None = None,
    distractors: Sequence[str] = (),
    *,
    takes: Sequence[str] = (),
    look_up: Callable[[str], int | None] | str | None = None,
    undistracted: Sequence[str] = (),
) -> None:
    """Register a suite of your own as ``env=name``.

    Args:
        name: as on the command line.
        make: called as ``make(task, size=..., episode_steps=...)``; returns a `denoised_mdp.envs.world.World`, or a
            `denoised_mdp.envs.gym_adapter.GymWorld` around a Gymnasium environment. ``"module:function"`` is imported
            when it is needed.
        tasks: names of all tasks; ``env=name`` chooses the first.
        options: the suite's defaults where they differ from the usual ones, such as ``{"size": 96}``.
        distractors: names of the distractors that fit, in addition to those that list the suite themselves.
        takes: further arguments of `denoised_mdp.envs.make_env` for `make`, out of `TAKES`; "distractors" are names.
        look_up: for a suite whose tasks cannot be listed: raises `UserError` for an unknown task, else returns the
            number of steps after which its episodes end by themselves, or None.
        undistracted: tasks that take no distractors, since all of their pixels carry information.

    Raises:
        UserError: the name is taken or not allowed, `takes` has an unknown name, or there are no tasks.
    """
    for what in takes:
        if what not in TAKES:
            raise UserError(f"A suite cannot take {what!r}.{did_you_mean(what, TAKES)}")
    own = dict(options or {})
    suite = Suite(make, tuple(tasks), own, tuple(distractors), tuple(takes), look_up, tuple(undistracted))
    if not suite.tasks and look_up is None:
        raise UserError(f"Suite {name!r} has no tasks: name at least one.")
    SUITES.register(name, suite)


def find_suite(name: str) -> Suite:
    """Return the suite with this name.

    Raises:
        UserError: there is none.
    """
    if not isinstance(name, str) or name not in SUITES:
        raise UserError(f"Unknown suite {name!r}.{did_you_mean(name, SUITES)}")
    return SUITES[name]


def tasks(suite: str = "dmc") -> tuple[str, ...]:
    """Return the names of all tasks of a suite ("dmc", "robodesk", ...); none if they cannot be listed."""
    return find_suite(suite).tasks


def all_tasks() -> tuple[str, ...]:
    """Return the names of the tasks of all suites."""
    return tuple(dict.fromkeys(task for suite in SUITES.values() for task in suite.tasks))


def check_task(task: str, suite: str) -> int | None:
    """Run `Suite.check`; the error also says which other suite has the task."""
    for other in SUITES:
        if other != suite and task in tasks(other) and task not in tasks(suite):
            find_suite(suite)
            raise UserError(f"Task {task!r} is none of suite {suite!r}: choose suite {other!r} (env={other}).")
    return find_suite(suite).check(task)


def of_gymnasium(task: str) -> bool:
    """Whether a name has the form of a task of ``env=gym``: Reacher-v5, or package.module:function."""
    return re.search(r"-v\d+$|^[\w.]+:\w+$", task) is not None


def check_reward(reward: str, suite: str) -> None:
    """Raise UserError if a suite has no choice of rewards and this is not "dense"."""
    if reward != "dense" and "reward" not in find_suite(suite).takes:
        other = [f"env={name}" for name, info in SUITES.items() if "reward" in info.takes]
        raise UserError(
            f"Suite {suite!r} has no choice of rewards: reward must be 'dense', not {reward!r};"
            f" only {' or '.join(other)} has."
        )


def _load(found: Callable | str) -> Callable:
    if callable(found):
        return found
    module, _, name = found.partition(":")
    return getattr(import_module(module), name)


_CONTROL = {
    "acrobot": ("swingup", "swingup_sparse"),
    "ball_in_cup": ("catch",),
    "cartpole": ("balance", "balance_sparse", "swingup", "swingup_sparse", "two_poles", "three_poles"),
    "cheetah": ("run",),
    "dog": ("stand", "walk", "trot", "run", "fetch"),
    "finger": ("spin", "turn_easy", "turn_hard"),
    "fish": ("upright", "swim"),
    "hopper": ("stand", "hop"),
    "humanoid": ("stand", "walk", "run", "run_pure_state"),
    "humanoid_CMU": ("stand", "walk", "run"),
    "lqr": ("lqr_2_1", "lqr_6_2"),
    "manipulator": ("bring_ball", "bring_peg", "insert_ball", "insert_peg"),
    "pendulum": ("swingup",),
    "point_mass": ("easy", "hard"),
    "quadruped": ("walk", "run", "escape", "fetch"),
    "reacher": ("easy", "hard"),
    "stacker": ("stack_2", "stack_4"),
    "swimmer": ("swimmer6", "swimmer15"),
    "walker": ("stand", "walk", "run"),
}
_BLOCKS = ("ball", "upright_block", "flat_block")

register_suite(
    "dmc",
    "denoised_mdp.envs.dmc:DMCEnv",
    [f"{domain}_{task}" for domain, names in _CONTROL.items() for task in names],
    {"task": "cheetah_run"},
    takes=("camera", "quality"),
)
register_suite(
    "robodesk",
    "denoised_mdp.envs.robodesk.env:make_robodesk",
    (
        *("open_slide", "open_drawer", "push_red", "push_green", "push_blue", "stack"),
        *(f"{block}_{place}" for place in ("off_table", "in_bin", "in_shelf") for block in _BLOCKS),
        *(f"lift_{block}" for block in _BLOCKS),
        *("tv_red_hue", "tv_green_hue", "tv_blue_hue"),
    ),
    {"task": "tv_green_hue", "size": 96},
    takes=("camera", "quality", "reward", "distractors"),
)
register_suite(
    "gym",
    "denoised_mdp.envs.gym_adapter:GymWorld",
    (),
    {"task": "", "action_repeat": 1},
    ("camera_jitter",),
    look_up="denoised_mdp.envs.gym_maker:check_id",
)
register_suite(
    "toy",
    "denoised_mdp.envs.toy:make_toy",
    ("dot", "dot_terminating", "counting"),
    {"episode_steps": 100},
    undistracted=("counting",),
)
