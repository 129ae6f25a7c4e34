"""Compare configurations: what differs, what may differ in a continued run, and which runs differ only in the seed."""

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

# A run may be continued with other values of these keys: they do not alter what is learned up to a given step.
MAY_CHANGE = frozenset(
    {"run_dir", "preset", "replay.capacity", "replay.memory"}
    | {f"train.{key}" for key in ("total_steps", "device", "act_device", "cuda_graph", "threads", "log_every")}
    | {"train.collect_workers", "train.eval_workers", "train.workers", "train.log_to"}
    | {f"train.{key}" for key in ("eval_every", "eval_episodes", "render_every", "probe_every", "checkpoint_every")}
    | {"train.snapshot_every"}
)

# Those that cannot change results at all. The capacity can: rows that the replay has dropped are no longer sampled.
SAME_RESULTS = MAY_CHANGE - {"replay.capacity"}

MAY_MOVE = MAY_CHANGE | {"env.clips"}
"""what may differ if clips were moved; whether they are the same clips is checked when they are opened"""

MADE_CLIPS = ("procedural", "kinetics")
"""values of ``env.clips`` that are not a path"""


def _is_path(clips: str) -> bool:
    return clips.partition(":")[0] not in MADE_CLIPS


def with_absolute_clips(config: Config) -> Config:
    """The configuration with an absolute path to its clips: the same clips, whatever folder it is read from."""
    clips = config.env.clips
    if not _is_path(clips):
        return config
    path = os.path.abspath(os.path.expanduser(clips))
    return dataclasses.replace(config, env=dataclasses.replace(config.env, clips=path))


def obstacles(old: Config, new: Config) -> list[str]:
    """The `differences` that keep a run from continuing. Clips that are gone from their path may get another path."""
    clips = old.env.clips
    gone = _is_path(clips) and not (os.path.exists(clips) or glob.glob(clips, recursive=True))
    return differences(old, new, MAY_MOVE if gone else MAY_CHANGE)


def differences(old: Config, new: Config, free: Collection[str] = MAY_CHANGE) -> list[str]:
    """Return one line per option that differs and must not. free: keys that may differ.

    For another choice, such as ``model=``, only the choice has a line: most of its options differ with it, as do those
    of groups that it leaves out (``agent=curl`` leaves out the model).
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
    """The `differences` of two runs, apart from their seeds and from what cannot change results."""
    return differences(old, dataclasses.replace(new, seed=old.seed), SAME_RESULTS)


def groups_of_seeds(
    runs: Iterable[T], config_of: Callable[[T], Config | None], also: Callable[[T], Any] = lambda run: None
) -> list[list[T]]:
    """Group runs whose configurations differ only in the seed; no seed comes twice in a group.

    A run whose configuration is unknown (None) is a group of its own. also: a value that a group must share.
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
    """Return one line per option whose value differs, except the run's folder: ``key: other's -> own``.

    Distractors that only `other` has are listed by name, without their options.
    """
    found, left_out = _unlike(other, config), [("run_dir",), ("distractors",)]
    left_out += [("distractors", name) for name in other.distractors if name not in config.distractors]
    kept = {key: sides for key, sides in found.items() if tuple(key.split(".")[:2]) not in left_out}
    return [
        f"{key}: {as_text(a)} -> {as_text(b)}" for key, (a, b) in (_other_distractors(other, config) | kept).items()
    ]


def _other_distractors(one: Config, other: Config) -> dict[str, tuple[str, str]]:
    """The names of both configurations' distractors, if they differ, in the form of `_unlike`."""
    if one.distractors.keys() == other.distractors.keys():
        return {}
    return {"distractors": tuple(", ".join(each.distractors) or "none" for each in (one, other))}


def _unlike(one: Config, other: Config) -> dict[str, tuple[Any, Any]]:
    """The options whose values differ: dotted key -> both values, "absent" if a configuration lacks the option."""
    first, second = (dict(flatten(as_tree(config))) for config in (one, other))
    sides = {key: (first.get(key, "absent"), second.get(key, "absent")) for key in (*first, *second)}
    return {key: pair for key, pair in sides.items() if pair[0] != pair[1]}


def key_of_difference(difference: str, config: Config) -> str:
    """The dotted key of the option in a line of `differences`; for another choice, the key of its name."""
    key = difference.partition(":")[0]
    return f"{key}.name" if f"{key}.name" in dict(flatten(as_tree(config))) else key
