"""Result files: their paths, their origin, and how numbers are written."""

from __future__ import annotations

import contextlib
import csv
import dataclasses
import glob
import hashlib
import io
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from denoised_mdp.analysis.probe import Options
from denoised_mdp.config import read_config
from denoised_mdp.config.schema import Config
from denoised_mdp.envs.factors import NoGroundTruth, factors
from denoised_mdp.errors import UserError, refusing
from denoised_mdp.files import read_json
from denoised_mdp.progress import track
from denoised_mdp.run.environments import environment_maker, warn_without_clips
from denoised_mdp.run.folder import RunFolder, output_file, refuse_own

if TYPE_CHECKING:
    from denoised_mdp.agents.base import Agent


@dataclasses.dataclass
class Subject:
    """A run whose checkpoint is probed."""

    path: Path
    config: Config
    agent: Agent
    step: int

    @property
    def label(self) -> str:
        """The run in a few words."""
        config = self.config
        what = " + ".join([config.env.task, *config.distractors])
        return f"{what} · {config.method[0]} · seed {config.seed} · step {self.step:,}"

    def about(self, probe: str, options: Mapping[str, Any]) -> dict[str, Any]:
        """The origin of a result, as stored in its file for the report. options: `Options.measured`."""
        config = self.config
        return {
            "probe": probe,
            "run": str(self.path),
            "step": self.step,
            "task": config.env.task,
            "distractors": config.distractors,
            "model": config.method[0],
            "policy": config.method[1],
            "seed": config.seed,
            "options": dict(options),
        }

    def stem(self, probe: str, output: Path | None, variant: str = "") -> Path:
        """Path of the results without suffix; with `output`, all runs' results go into that folder.

        variant: from `Options.variant`, so that results with other options do not replace each other. The folder is
        created here, so that nothing is measured that cannot be written. A dot in the stem is part of the name: append
        the suffix, as in ``f"{stem}.json"``.
        """
        folder = RunFolder(self.path)
        words = [probe, folder.path.resolve().name if output else "", variant, f"{self.step:09d}"]
        return make_folder(output or folder.probes) / "_".join(filter(None, words))


def mark_of(runs: Sequence[Path]) -> str:
    """Six hexadecimal digits that identify several runs, in this order, in the name of their common result."""
    names = b"\0".join(bytes(run.resolve()) for run in runs)
    return hashlib.sha256(names).hexdigest()[:6]


def subjects(runs: Sequence[Path], options: Options, *, ground_truth: bool = False) -> Iterator[Subject]:
    """Load the runs one by one, after checking that all exist and, with `ground_truth`, that all have it.

    Raises:
        UserError: a folder is not a run, results would replace those of a run of the same name in `options.output`, or
            an environment lacks the ground truth.
    """
    from denoised_mdp.run.load import load_run  # it imports PyTorch

    names = [RunFolder.existing(run).path.resolve().name for run in runs]
    twice = sorted({name for name in names if names.count(name) > 1})
    if options.output is not None and twice:
        raise UserError(f"Several runs are named {twice[0]}: in one --output, their results would replace each other.")
    if options.output is not None:
        _refuse_namesakes(options.output, runs)
    if ground_truth:
        _refuse_without_ground_truth(runs)
    for run in track(runs, "probing", "runs") if len(runs) > 1 else runs:
        config, agent, step = load_run(run, checkpoint=options.checkpoint, device=options.device)
        warn_without_clips(run, config, getattr(options, "split", ""))
        yield Subject(Path(run), config, agent, step)


def _refuse_namesakes(output: Path, runs: Sequence[Path]) -> None:
    """Refuse a folder with results of a different run that has the name of one of these: they would be replaced.

    Raises:
        UserError: the folder has such results.
    """
    for run in map(RunFolder, runs):
        name = run.path.resolve().name
        for file in sorted(Path(output).glob(f"*_{glob.escape(name)}_*.json")):
            with contextlib.suppress(OSError, ValueError, KeyError, TypeError):  # not a result of this program
                other = str(read_json(file)["run"])
                if Path(other).name == name and not run.was_at(other):
                    raise UserError(
                        f"{output} has results of {other}, which {run.path} would replace: both are named {name}."
                        " Choose another --output."
                    )


def _refuse_without_ground_truth(runs: Sequence[Path]) -> None:
    """Make one environment per distinct set of options and distractors of the runs, and ask for its factors.

    Raises:
        NoGroundTruth: an environment has none; the message names its run.
    """
    asked = set()
    for run in runs:
        config = read_config(RunFolder.existing(run).config)
        if (key := str((vars(config.env), config.distractors))) in asked:
            continue
        asked.add(key)
        try:
            with contextlib.closing(environment_maker(config)()) as environment:
                factors(environment)
        except NoGroundTruth as error:
            raise NoGroundTruth(f"{run}: {error}") from error


def number(mean: float, spread: float) -> str:
    """A mean and its spread, if any, as text."""
    if math.isnan(mean):
        return "-"
    return f"{mean:.3f}" + ("" if math.isnan(spread) else f" ± {spread:.3f}")


def number_of(value: Any) -> float:
    """A number from a result file as float; nan if the file has none."""
    return float(value) if isinstance(value, int | float) else math.nan


def show(value: Any, digits: int = 3) -> str:
    """A number from a result file as text; a dash if the file has none."""
    found = number_of(value)
    return f"{found:,.{digits}f}" if math.isfinite(found) else "-"


def write_json(path: Path | str, tree: Mapping[str, Any]) -> Path:
    """Write a tree, see `as_json`; nan and infinity become null."""
    return write_whole(path, json.dumps(as_json(tree), indent=1, allow_nan=False) + "\n")


def write_csv(path: Path | str, rows: Sequence[Mapping[str, Any]]) -> Path:
    """Write rows with a header; nan becomes an empty cell."""
    text = io.StringIO()
    writer = csv.DictWriter(text, fieldnames=list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows({key: "" if value != value else value for key, value in row.items()} for row in rows)
    return write_whole(path, text.getvalue())


def make_folder(path: Path) -> Path:
    """Create a folder for results if it is missing.

    Raises:
        UserError: it cannot be created.
    """
    refuse_own(path)
    with refusing(f"{path} cannot be used"):
        path.mkdir(parents=True, exist_ok=True)
    return path


def write_whole(path: Path | str, text: str) -> Path:
    """Write a file atomically, replacing an earlier one.

    Raises:
        UserError: it cannot be written.
    """
    with output_file(path) as unfinished:
        unfinished.write_bytes(text.encode(errors="backslashreplace"))  # file names need not be UTF-8
    return Path(path)


class _Absent:
    def __repr__(self) -> str:
        return "nothing"


_ABSENT = _Absent()


def first_difference(begun: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    """The first difference between two commands, in a few words."""
    key = next(key for key in {**begun, **now} if begun.get(key, _ABSENT) != now.get(key, _ABSENT))
    old, new = begun.get(key, _ABSENT), now.get(key, _ABSENT)
    if isinstance(old, dict) and isinstance(new, dict):
        return f"{key}, {first_difference(old, new)}"
    if isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        old, new = next((a, b) for a, b in zip(old, new, strict=True) if a != b)
        if isinstance(old, dict) and isinstance(new, dict):
            return f"{key}, {first_difference(old, new)}"
    text = f"{key}: {old!r} instead of {new!r}"
    return text if len(text) < 200 else f"another {key}"


def as_json(tree: Any) -> Any:
    """The same tree in JSON types: None for nan and infinity, dictionaries for data classes, text for paths."""
    if dataclasses.is_dataclass(tree):
        tree = dataclasses.asdict(tree)
    if isinstance(tree, np.generic):
        tree = tree.item()
    if isinstance(tree, Path):
        return str(tree)
    if isinstance(tree, Mapping):
        return {str(key): as_json(value) for key, value in tree.items()}
    if isinstance(tree, list | tuple):
        return [as_json(value) for value in tree]
    return None if isinstance(tree, float) and not math.isfinite(tree) else tree
