"""Groups of seeds: mean curves with confidence bands, and how groups differ."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from denoised_mdp.analysis.crossfit import confidence
from denoised_mdp.analysis.plots import colors_of
from denoised_mdp.analysis.report.data import Curve, RunData
from denoised_mdp.config.compare import SAME_RESULTS, groups_of_seeds


@dataclass
class Group:
    """Runs that differ only in the seed, or a single run."""

    runs: list[RunData]
    name: str = ""
    color: str = ""
    """color of its curves and its name"""

    @property
    def first(self) -> RunData:
        """The run that represents the group."""
        return self.runs[0]

    @property
    def step(self) -> int:
        """The last logged step of its runs."""
        return max(run.step for run in self.runs)

    def curves(self, metric: str) -> list[Curve]:
        """This metric of every run that has it."""
        return [run.metrics[metric] for run in self.runs if metric in run.metrics]


def group_runs(runs: Sequence[RunData]) -> list[Group]:
    """Groups of runs that differ only in the seed; two runs of one seed are never in one group."""
    groups = [Group(seeds) for seeds in groups_of_seeds(runs, lambda run: run.config)]
    for group in groups:
        group.runs.sort(key=lambda run: run.seed or 0)
    _name(groups)
    for group, color in zip(groups, colors_of(group.name for group in groups).values(), strict=True):
        group.color = color
    return groups


def _words(group: Group) -> list[str]:
    """Task with distractors, model and policy; empty if the configuration cannot be read."""
    config = group.first.config
    if config is None:
        return []
    return [" + ".join([config.env.task, *config.distractors]), *config.method]


def _shared(words: Sequence[list[str]]) -> list[bool]:
    """For each word, whether it is the same in all of several groups."""
    known = [one for one in words if one]
    return [len(known) == len(words) > 1 and len(set(column)) == 1 for column in zip(*known, strict=True)]


def shared_words(groups: Sequence[Group]) -> str:
    """The words that all groups share and their names omit; empty if their tasks differ."""
    words = [_words(group) for group in groups]
    shared = _shared(words)
    return " · ".join(word for word, same in zip(words[0], shared, strict=False) if same and shared[0])


def _name(groups: Sequence[Group]) -> None:
    """Name groups by what they learn, omitting what all share, then by the options that differ.

    Groups with the same configuration (two runs of one seed), or without one, are named after their first folder.
    """
    words = [_words(group) for group in groups]
    shared = _shared(words)
    for group, one in zip(groups, words, strict=True):
        told = [word for word, same in zip(one, shared, strict=False) if word and not same]
        group.name = " · ".join(told) if told or len(groups) > 1 else group.first.name
    for alike in _by_name(groups):
        labels = _option_labels(alike) if len(alike) > 1 else [""]
        for group, label in zip(alike, labels, strict=True):
            group.name = " · ".join(filter(None, (group.name, label)))
    for alike in _by_name(groups):
        for group in alike:
            if len(alike) > 1 or not group.name:
                group.name = " · ".join(filter(None, (group.name, group.first.name)))
    names = [group.name for group in groups]
    for number, group in enumerate(groups, 1):
        if names.count(group.name) > 1:
            group.name = f"{group.name} ({number})"


def _by_name(groups: Sequence[Group]) -> list[list[Group]]:
    found: dict[str, list[Group]] = {}
    for group in groups:
        found.setdefault(group.name, []).append(group)
    return list(found.values())


def _option_labels(groups: Sequence[Group]) -> list[str]:
    """Label groups by the fewest options that tell them apart, ``beta=0.5, free_nats=1``, chosen greedily.

    Only options that affect what is learned count. If only others differ, such as the logging interval, the folder's
    name tells a reader more.
    """
    different = [one for one in differing_options(groups) if one[0] not in SAME_RESULTS]
    chosen: list[tuple[str, list[str]]] = []

    def told(columns: Sequence[tuple[str, list[str]]]) -> int:
        return len(set(zip(*(values for _, values in columns), strict=True))) if columns else 1

    while different and told(chosen) < len(groups):
        best = max(different, key=lambda one: told([*chosen, one]))  # of equal ones, the first
        if told([*chosen, best]) == told(chosen):
            break
        chosen.append(best)
    short = [key.rpartition(".")[2] for key, _ in chosen]
    keys = [name if short.count(name) == 1 else key for name, (key, _) in zip(short, chosen, strict=True)]
    return [
        ", ".join(f"{key}={values[n]}" for key, (_, values) in zip(keys, chosen, strict=True))
        for n in range(len(groups))
    ]


def differing_options(groups: Sequence[Group]) -> list[tuple[str, list[str]]]:
    """(key, value in each group) of every option that differs, except folder and seed."""
    options = [group.first.options() for group in groups]
    known = [one for one in options if one]
    keys = dict.fromkeys(key for one in known for key in one)
    hidden = {"run_dir", "seed"}
    return [
        (key, [one.get(key, "-" if one else "unknown") for one in options])
        for key in keys
        if key not in hidden and len({one.get(key, "-") for one in known}) > 1
    ]


def at_common_step(curves: Sequence[Curve]) -> tuple[float, np.ndarray]:
    """The last step that all curves have reached, and their values there, [runs], interpolated linearly."""
    step = min(float(steps[-1]) for steps, _ in curves)
    values = np.array([np.interp(step, *curve, left=np.nan) for curve in curves])
    return step, values[np.isfinite(values)]


def band(curves: Sequence[Curve]) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Mean over runs and half the width of its 95 % confidence interval (Student's t).

    Both are at every step of any run; a run counts between its first and last step, interpolated linearly. Returns
    steps, mean, half width (nan with one run) and the number of runs, [n] each.
    """
    steps = np.unique(np.concatenate([curve[0] for curve in curves]))
    grid = np.stack([np.interp(steps, *curve, left=np.nan, right=np.nan) for curve in curves])  # [runs, n]
    count = np.isfinite(grid).sum(0)
    steps, grid, count = steps[count > 0], grid[:, count > 0], count[count > 0]
    mean = np.nanmean(grid, 0)
    half = np.array([confidence(column[np.isfinite(column)]) for column in grid.T])
    return steps, mean, half, count
