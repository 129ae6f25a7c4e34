"""Compare configurations: what differs, what may when a run continues, and which runs differ in the seed alone."""

from __future__ import annotations

import dataclasses
import glob
import os
from collections.abc import Callable, Collection, Iterable
from typing import Any, TypeVar

from denoised_mdp.config.compose import flatten
from denoised_mdp.config.schema import Config, as_tree
from denoised_mdp.config.validate import as_text

T = TypeVar("T")

# A run may be continued although these keys changed: they do not alter what is learned up to a given step.
MAY_CHANGE = frozenset(
    {"run_dir", "preset", "replay.capacity", "replay.memory"}
    | {f"train.{key}" for key in ("total_steps", "device", "act_device", "cuda_graph", "threads", "log_every")}
    | {"train.collect_workers", "train.eval_workers", "train.workers", "train.log_to"}
    | {f"train.{key}" for key in ("eval_every", "eval_episodes", "render_every", "probe_every", "checkpoint_every")}
    | {"train.snapshot_every"}
)

# Of these, what cannot change results at all: what a replay has dropped is not drawn any more.
SAME_RESULTS = MAY_CHANGE - {"replay.capacity"}

MAY_MOVE = MAY_CHANGE | {"env.clips"}
"""what may differ where clips were moved as well: whether they are the same ones shows when they are opened"""

MADE_CLIPS = ("procedural", "kinetics")
"""values of ``env.clips`` that are no path of the user's"""


def _is_path(clips: str) -> bool:
    return clips.partition(":")[0] not in MADE_CLIPS


def with_absolute_clips(config: Config) -> Config:
    """The configuration with the path of its clips made absolute: the same clips, from whatever folder it is read."""
    clips = config.env.clips
    if not _is_path(clips):
        return config
    path = os.path.abspath(os.path.expanduser(clips))
    return dataclasses.replace(config, env=dataclasses.replace(config.env, clips=path))


def obstacles(old: Config, new: Config) -> list[str]:
    """The `differences` that keep a run from going on. Clips that are no longer where they were may be named anew."""
    clips = old.env.clips
    gone = _is_path(clips) and not (os.path.exists(clips) or glob.glob(clips, recursive=True))
    return differences(old, new, MAY_MOVE if gone else MAY_CHANGE)


def differences(old: Config, new: Config, free: Collection[str] = MAY_CHANGE) -> list[str]:
    """Return one line per option that differs and must not. free: keys that may differ.

    Of another choice, such as ``model=``, the choice alone: most of its options differ as well. So do those of groups
    that it leaves out, as ``agent=curl`` leaves out the model.
    """
    found, other_distractors = _unlike(*map(with_absolute_clips, (old, new))), _other_distractors(old, new)
    named = [key for key in found if key.endswith(".name")]
    implied = tuple(key.removesuffix("name") for key in named)
    if other_distractors:
        implied += ("distractors",)
    chosen = {key.removesuffix(".name"): found[key] for key in named if "absent" not in found[key]} | other_distractors
    lines = [f"{key}: {a} -> {b}" for key, (a, b) in chosen.items()]
    for key, (a, b) in found.items():
        if key not in free and not key.startswith(implied):
            lines.append(f"{key}: {as_text(a)} -> {as_text(b)}")
    return lines


def differences_but_seed(old: Config, new: Config) -> list[str]:
    """The `differences` of two runs that may differ in their seeds, and in what cannot change results."""
    return differences(old, dataclasses.replace(new, seed=old.seed), SAME_RESULTS)


def groups_of_seeds(
    runs: Iterable[T], config_of: Callable[[T], Config | None], also: Callable[[T], Any] = lambda run: None
) -> list[list[T]]:
    """Group runs whose configurations differ in the seed alone; no seed is twice in a group.

    A run whose configuration is not known, None, is alone. also: must be equal in a group.
    """
    groups: list[list[T]] = []
    for run in runs:
        config = config_of(run)
        for group in groups if config else ():
            known = [config_of(one) for one in group]
            alike = known[0] is not None and also(group[0]) == also(run) and not differences_but_seed(known[0], config)
            if alike and config.seed not in [one.seed for one in known]:
                group.append(run)
                break
        else:
            groups.append([run])
    return groups


def contrast(other: Config, config: Config) -> list[str]:
    """Return one line per option whose value differs, but for the run's folder: ``key: other's -> own``.

    Of distractors that are there no more, the names alone.
    """
    found, left_out = _unlike(other, config), [("run_dir",), ("distractors",)]
    left_out += [("distractors", name) for name in other.distractors if name not in config.distractors]
    kept = {key: sides for key, sides in found.items() if tuple(key.split(".")[:2]) not in left_out}
    return [
        f"{key}: {as_text(a)} -> {as_text(b)}" for key, (a, b) in (_other_distractors(other, config) | kept).items()
    ]


def _other_distractors(one: Config, other: Config) -> dict[str, tuple[str, str]]:
    """The names of both, if they differ, as in `_unlike`."""
    if one.distractors.keys() == other.distractors.keys():
        return {}
    return {"distractors": tuple(", ".join(each.distractors) or "none" for each in (one, other))}


def _unlike(one: Config, other: Config) -> dict[str, tuple[Any, Any]]:
    """The options whose values differ: dotted key -> both values, "absent" where a configuration has no such option."""
    first, second = (dict(flatten(as_tree(config))) for config in (one, other))
    sides = {key: (first.get(key, "absent"), second.get(key, "absent")) for key in (*first, *second)}
    return {key: pair for key, pair in sides.items() if pair[0] != pair[1]}


def key_of_difference(difference: str, config: Config) -> str:
    """The dotted key of the option that a line of `differences` is about; of another choice, that of its name."""
    key = difference.partition(":")[0]
    return f"{key}.name" if f"{key}.name" in dict(flatten(as_tree(config))) else key
