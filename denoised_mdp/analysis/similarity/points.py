"""The agents of a roster: runs, their snapshots, and the same networks untrained."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from denoised_mdp.agents.base import Agent
from denoised_mdp.analysis.report.data import RunData, read_metrics
from denoised_mdp.analysis.report.groups import group_runs
from denoised_mdp.config import read_config
from denoised_mdp.config.schema import Config
from denoised_mdp.errors import UserError
from denoised_mdp.run.checkpoint import list_steps
from denoised_mdp.run.folder import RunFolder
from denoised_mdp.run.load import load_run, untrained


@dataclass
class Point:
    """One agent: a run at one stage; step 0 is the same network untrained."""

    run: int
    """number of the run in the roster"""
    name: str
    """name of the run folder"""
    group: str
    """name of the group of runs that differ only in the seed"""
    seed: int
    step: int
    newest: bool
    """whether this is the run's last stage"""
    score: float
    """mean return of held-out episodes in the last evaluation up to this step; nan without one"""
    features: dict[str, dict[str, np.ndarray]] = field(default_factory=dict)
    """world -> role -> [n, F], see `situations.features`"""

    def about(self) -> dict[str, Any]:
        """Everything but the features."""
        return {one.name: getattr(self, one.name) for one in dataclasses.fields(self) if one.name != "features"}


@dataclass
class Roster:
    """Runs of one environment, read without loading their weights."""

    paths: list[Path]
    configs: list[Config]
    groups: list[str]
    """name of each run's group"""

    @classmethod
    def of(cls, runs: Sequence[Path]) -> Roster:
        """Read the configurations.

        Raises:
            UserError: a folder is not a run, is named twice, or has another environment or distractors than the first.
        """
        paths = list({RunFolder.existing(run).path.resolve(): Path(run) for run in runs}.values())
        if len(paths) < len(runs):
            raise UserError("A run is named twice: it would be compared with itself.")
        configs = [read_config(RunFolder.existing(path).config) for path in paths]
        for path, config in zip(paths, configs, strict=True):
            if _shown(config) != _shown(configs[0]):
                raise UserError(
                    f"{path} is of another task, view or distractors than {paths[0]}: compare runs that saw the same."
                )
        names = {}
        groups = group_runs([RunData(path, config) for path, config in zip(paths, configs, strict=True)])
        for group in groups:
            name = group.name if len(groups) > 1 else group.first.config.method[0]
            names |= {run.path: name for run in group.runs}
        return cls(paths, configs, [names[path] for path in paths])

    def stages(self, number: int, snapshots: bool, checkpoint: int | str | None) -> list[int | str | None]:
        """Checkpoints of one run to load, the last stage last; None stands for the newest checkpoint."""
        if checkpoint is not None or not snapshots:
            return [checkpoint]
        folder = RunFolder(self.paths[number])
        last = max(list_steps(folder.checkpoints), default=0)
        return [*(step for step in list_steps(folder.snapshots) if step < last), None]

    def agents(self, snapshots: bool, checkpoint: int | str | None, device: str) -> Iterator[tuple[Point, Agent]]:
        """Load all agents one by one: for each run the untrained network, then its stages."""
        for number, (path, config, group) in enumerate(zip(self.paths, self.configs, self.groups, strict=True)):
            curve = read_metrics(RunFolder(path).metrics)[0].get("eval/return")
            stages, name = self.stages(number, snapshots, checkpoint), path.resolve().name
            for stage in stages:
                _, agent, step = load_run(path, checkpoint=stage, device=device)
                if stage is stages[0]:
                    yield Point(number, name, group, config.seed, 0, False, math.nan), untrained(agent)
                yield (Point(number, name, group, config.seed, step, stage is stages[-1], score_at(curve, step)), agent)


def score_at(curve: tuple[np.ndarray, np.ndarray] | None, step: int) -> float:
    """The last value of a curve (steps, values) up to a step; nan if there is none."""
    if curve is None or not (curve[0] <= step).any():
        return math.nan
    return float(curve[1][curve[0] <= step][-1])


def _shown(config: Config) -> tuple:
    """The options that decide which pictures a run sees."""
    return vars(config.env), config.distractors
