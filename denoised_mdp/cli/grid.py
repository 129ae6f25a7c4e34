"""Grids: the runs of a file in ``configs/sweep`` or of your own file, spanned by axes whose values have names.

A file has up to three parts::

    options: {preset: quickstart, train: {batch_size: 20}}     # of every run; or dotted, train.batch_size: 20
    axes:                                             # all combinations, the first axis outermost
      method: {denoised: {model: 2b}, dreamer: {model: dreamer}}    # names, and the options that each stands for
      seed: [0, 1, 2]                                 # or values of the option named like the axis
    runs:                                             # some combinations instead of all, in this order
      - {method: denoised, seed: 0}                   # an omitted axis takes all its values
      - {method: dreamer}

Later parts win: options, axes in their order, the command line. There, ``sweep.seed=3,4`` chooses values of an axis;
an axis of numbers also takes ``'sweep.seed=range(0,5)'``.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from denoised_mdp.cli.words import plain_value, quote, sweep_folder, words_of_group
from denoised_mdp.config import expanded
from denoised_mdp.config.choices import ALIASES, GROUPS, choices, config_folder
from denoised_mdp.config.overrides import QUOTED, distractor_sets, is_hydra, outside_brackets, parse, split, value_of
from denoised_mdp.config.validate import as_text, shown
from denoised_mdp.errors import UserError, did_you_mean
from denoised_mdp.files import read_yaml


@dataclass(frozen=True)
class Job:
    """One run of a grid: the name of its folder, and its command line without ``run_dir``."""

    name: str
    overrides: tuple[str, ...]

    def options_in(self, folder: str) -> list[str]:
        """Return the job's options, with its own folder inside the grid's."""
        return [*self.overrides, f"run_dir={quote(os.path.join(folder, self.name))}"]


def of_grid(word: str) -> bool:
    """Whether a word of the command line names a grid or chooses from it."""
    return word.startswith(("sweep=", "sweep."))


def read_grid(words: Sequence[str]) -> tuple[str, list[Job]]:
    """Return the grid's name and its jobs, in order.

    Args:
        words: of the command line: ``sweep=NAME`` (or a file: ``sweep=mine.yaml``), ``sweep.AXIS=VALUES``, and options
            that all runs share. Hydra's options and ``run_dir`` are left to the caller.

    Raises:
        UserError: there is no such grid, axis or value, the file has another form, or an axis sets a shared option.
    """
    said = dict(word.partition("=")[::2] for word in words if of_grid(word))
    if not (source := said.pop("sweep", "")):
        raise UserError(
            f"sweep=NAME is missing: name one of {', '.join(choices('sweep'))}, or a YAML file of your own. (--dry-run"
            " lists the runs of such a grid alone, not those of --multirun.)"
        )
    tree = _read(source)
    axes = {key: Axis(key, values, f"sweep={source}") for key, values in tree["axes"].items()}
    if not axes:
        raise UserError(f"sweep={source}: it has no axes. To train one run, give its options to 'denoised-mdp train'.")
    parts = [tree["options"], *(part for axis in axes.values() for part in axis.values.values())]
    for key in _keys(*parts):
        if key == "run_dir" or is_hydra(key):
            raise UserError(f"sweep={source}: it sets {key}; give that on the command line.")
    for word, text in said.items():
        key = word.removeprefix("sweep.")
        _known(key, axes, word).choose(text)
    shared = [word for word in words if not of_grid(word) and not is_hydra(word) and not word.startswith("run_dir=")]
    _refuse_axes(shared, axes)
    jobs: dict[str, Job] = {}
    for block in tree["runs"]:
        for key in block:
            _known(key, axes, f"sweep={source}: runs")
        for combination in itertools.product(*(axis.of(block) for axis in axes.values())):
            names, parts = zip(*combination, strict=True)
            own = (f"{key}={text}" for key, text in _pairs(tree["options"], *parts))
            job = Job("-".join(names), (*own, *shared))
            if jobs.setdefault(job.name, job) != job:  # otherwise one of them would silently not be trained
                raise UserError(f"sweep={source}: two different runs would be named {job.name}. Rename a value.")
    if not jobs:
        hint = f"no run has all these values. Leave out one of {', '.join(said)}" if said else "it lists no runs"
        raise UserError(f"sweep={source}: {hint}.")
    return Path(source).stem, list(jobs.values())


def grid_folder(words: Sequence[str]) -> tuple[str, list[Job]]:
    """Return the folder of a whole grid, which is derived from its name unless ``run_dir`` is given, and its jobs."""
    name, jobs = read_grid(words)
    pairs = [split(word) for word in words if not of_grid(word)]
    said = dict(pair for pair in pairs if not is_hydra(pair[0]))
    if (folder := said.pop("run_dir", "null")) != "null":
        if re.search(r"\$\{(?!oc\.)", folder):
            raise UserError(f"run_dir={folder}: all runs of a grid have folders in this one; leave ${{...}} out.")
        return expanded(plain_value("run_dir", folder) if QUOTED.fullmatch(folder) else folder), jobs
    return sweep_folder(said, name), jobs


def options_of_one(words: Sequence[str]) -> list[str]:
    """Return the options of a command line, or, if it chooses one run of a grid, the options of that run.

    Raises:
        UserError: see `read_grid`; or several runs are left.
    """
    if not any(map(of_grid, words)):
        return list(words)
    folder, jobs = grid_folder(words)
    if len(jobs) > 1:
        raise UserError(
            f"{len(jobs)} runs are left ({jobs[0].name}, {jobs[1].name}, ...): choose one with sweep.AXIS=VALUE."
            " 'denoised-mdp train sweep=... --dry-run' lists them."
        )
    return [*jobs[0].options_in(folder), *(word for word in words if is_hydra(word.partition("=")[0]))]


class Axis:
    """The values of one axis by name, and the options that each stands for.

    Args:
        key: its name; values: a list of values for the option of this name, or names with their options.
        where: names the grid in messages.
    """

    def __init__(self, key: str, values: Any, where: str):
        self.key, self.where, self.listed = key, where, isinstance(values, list)
        values = {_name_of(value): {key: value} for value in values} if self.listed else values
        if not isinstance(values, Mapping) or not all(isinstance(part, Mapping) for part in values.values()):
            raise UserError(f"{where}: the axis {key} needs a list of values, or names with options each.")
        self.values = {as_text(name): part for name, part in values.items()}
        if not self.values:
            raise UserError(f"{where}: the axis {key} has no values.")
        if not self.listed and (wrong := [name for name in self.values if name in ("", ".", "..") or "/" in name]):
            raise UserError(f"{where}: the axis {key}: {wrong[0]!r} cannot be a part of a folder's name.")
        self.chosen: list[str] | None = None

    def choose(self, text: str) -> None:
        """Keep only these values, separated by commas; a listed axis also takes new values, or a range."""
        if self.listed and self.key == "distractors":  # [a,b] is one value, as with --multirun
            parts = [part.strip(" '\"") for part in outside_brackets(text)]
            names = [_name_of([*distractor_sets(part)[0]]) if part[:1] == "[" else part for part in parts]
        elif self.listed and text.startswith("range("):
            names = self._range(text)
        else:
            names = [name.strip() for name in text.strip("[] ").split(",")]
        for name in names:
            if self.listed and name:
                self.values.setdefault(name, {self.key: name})
            _known(name, self.values, f"sweep.{self.key}")
        self.chosen = names

    def _range(self, text: str) -> list[str]:
        """Return the numbers of ``range(FIRST,END)`` or ``range(FIRST,END,STEP)``, as --multirun reads it."""
        with contextlib.suppress(ValueError):  # a step of 0
            found = parse(self.key, text)
            if found.is_range_sweep():
                return list(found.sweep_string_iterator())
        raise UserError(f"sweep.{self.key}={text}: give one range alone, as in range(0,5), or values with commas.")

    def of(self, block: Mapping[str, Any]) -> list[tuple[str, Mapping[str, Any]]]:
        """Return (part of the folder's name, options) for each value that a block of runs has and that was chosen."""
        own = block.get(self.key, [] if self.chosen else list(self.values))
        names = [_name_of(value) for value in (own if isinstance(own, list) else [own])]
        for name in names:
            _known(name, self.values, f"{self.where}: runs: {self.key}")
        if self.chosen is not None:
            names = [name for name in self.chosen if name in names or self.key not in block]
        labels = [f"{self.key}={name}".replace("/", "_") if self.listed else name for name in names]
        return [(label, self.values[name]) for label, name in zip(labels, names, strict=True)]


def _name_of(value: Any) -> str:
    """Return a value's name on the command line; a list of one is named by its item, an empty list is ``none``."""
    if isinstance(value, list):
        names = sorted(map(as_text, value))
        return f"[{','.join(names)}]" if len(names) > 1 else "".join(names) or "none"
    return as_text(value)


def _pairs(*parts: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return dotted keys and values. Later ones win; distractors replace earlier distractors and their options."""
    said: dict[str, tuple[str, str]] = {}
    for key, value in (pair for part in parts for pair in part.items()):
        if key == "distractors":
            said = {name: pair for name, pair in said.items() if name.partition(".")[0] != key}
        for pair in words_of_group(key, value) if isinstance(value, Mapping) else [(key, as_text(value))]:
            name = ALIASES.get(pair[0], pair[0])
            said.pop(name, None)  # the last one counts, at its own position
            said[name] = pair
    return [*said.values()]


def _keys(*parts: Mapping[str, Any]) -> list[str]:
    """Return the dotted keys of the options that `parts` set."""
    return [key for part in parts for key, _ in _pairs(part)]


def _known(name: str, known: Mapping[str, Any], where: str) -> Any:
    if name not in known:
        raise UserError(f"{where}: there is no {name!r}.{did_you_mean(name, known)}")
    return known[name]


def _refuse_axes(shared: Sequence[str], axes: Mapping[str, Axis]) -> None:
    """Refuse shared options that would override what an axis sets in these runs, or that have several values."""
    for key, text in map(split, shared):
        for axis in axes.values():
            parts = (axis.values[name] for name in axis.chosen or axis.values)
            set_by_it = {ALIASES.get(own, own) for own in _keys(*parts)}
            if any(_overlap(key, own) for own in set_by_it):
                raise UserError(f"{key}={text}: the axis {axis.key} sets it; choose with sweep.{axis.key}=...")
        value_of(key, text)


def _overlap(one: str, other: str) -> bool:
    """Whether two keys are the same option, or a group and an option in it; a choice sets no option."""
    return one == other or any(
        longer.startswith(f"{shorter}.") and shorter not in GROUPS for longer, shorter in ((one, other), (other, one))
    )


def _read(source: str) -> dict[str, Any]:
    """Return the parts of a grid's file."""
    own = source.endswith((".yaml", ".yml"))
    if not own and source not in choices("sweep"):
        near = f"{source}.yaml"
        hint = f" Did you mean '{near}'?" if Path(near).is_file() else did_you_mean(source, choices("sweep"))
        raise UserError(f"sweep={source}: unknown choice.{hint}")
    file = Path(os.path.expanduser(source)) if own else config_folder() / "sweep" / f"{source}.yaml"
    try:
        tree = read_yaml(file)
    except FileNotFoundError as error:
        near = did_you_mean(source, [path.name for path in Path().glob("*.y*ml")], listed=False)
        raise UserError(f"sweep={source}: there is no file {file}.{near}") from error
    except (OSError, ValueError) as error:
        raise UserError(f"sweep={source}: it cannot be read ({error}).") from error
    kinds = {"options": Mapping, "axes": Mapping, "runs": list}
    form = "a grid has options and axes (groups) and runs (a list)"
    if not isinstance(tree, Mapping):
        raise UserError(f"sweep={source}: {'it is empty' if tree is None else 'it has no parts'}; {form}.")
    whole = {"options": {}, "axes": {}, "runs": [{}], **tree}
    for key, part in whole.items():
        if key not in kinds:
            raise UserError(f"sweep={source}: unknown part '{key}'; {form}.")
        if not isinstance(part, kinds[key]):
            raise UserError(f"sweep={source}: {key}={shown(part)}; {form}.")
    for key in _keys_within(whole["options"], whole["axes"]):
        if not isinstance(key, str):  # such as an unquoted "on"
            raise UserError(f"sweep={source}: {shown(key)} is no name of an option. Put it in quotes if it is one.")
    if not all(isinstance(block, Mapping) for block in whole["runs"]):
        raise UserError(f"sweep={source}: each of its runs names values of axes, as in {{method: dreamer}}.")
    return whole


def _keys_within(options: Mapping[Any, Any], axes: Mapping[Any, Any]) -> Iterator[Any]:
    """Yield every key of a file that must be the name of an option: axes, and keys in groups of options."""
    values = [axis.values() for axis in axes.values() if isinstance(axis, Mapping)]
    groups = [options, *(part for parts in values for part in parts)]
    yield from axes
    while groups:
        if isinstance(group := groups.pop(), Mapping):
            yield from group
            groups += group.values()
