"""Aggregates of scores over tasks and runs, with 95 % intervals (Agarwal et al., NeurIPS 2021).

The definitions are those of the authors' package ``rliable``. Intervals of a mean, of sums and differences of means
and of the logarithm of a ratio of means are Student's t with the degrees of freedom of Welch and Satterthwaite. Those
of other statistics are the package's stratified bootstrap, widened for few runs: its percentiles alone contain the mean
of three normal scores three times out of four, and jump, since resamples of few runs take few values. Here, tasks
may have different numbers of runs, and random numbers come from an explicit generator (the package draws from
NumPy's global one). Scores are one float array of runs per task.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
from scipy.special import stdtrit

from denoised_mdp.analysis.crossfit import student_over_normal

Scores = Sequence[np.ndarray]
"""one array [runs] per task"""
RESAMPLES = 5000
ROUGH = 0.5
"""largest standard error, as a share of the mean, at which the logarithm of the mean is nearly normal"""
FEWEST = 3
"""fewest runs of a task for an interval; that of fewer would be their range, or a point"""


def iqm(tasks: Scores) -> np.ndarray:
    """Interquartile mean: the mean of the middle half of all runs of all tasks. [..., runs] each -> [...]."""
    runs = np.sort(np.concatenate(tasks, -1), -1)  # [..., runs of all tasks]
    cut = runs.shape[-1] // 4
    return runs[..., cut : runs.shape[-1] - cut].mean(-1)


def mean(tasks: Scores) -> np.ndarray:
    """Mean over tasks of the mean over runs. [..., runs] each -> [...]."""
    return np.mean([task.mean(-1) for task in tasks], 0)


def difference(first: Scores, second: Scores) -> np.ndarray:
    """`mean` of the first method minus that of the second. [..., runs] each -> [...]."""
    return mean(first) - mean(second)


def interaction(first: Scores, second: Scores, third: Scores, fourth: Scores) -> np.ndarray:
    """`difference` of the first two methods minus that of the last two: how much larger the first lead is."""
    return difference(first, second) - difference(third, fourth)


def ratio(first: Scores, second: Scores) -> np.ndarray:
    """`mean` of the first method over that of the second; nan unless the latter is positive. [..., runs] -> [...]."""
    below = mean(second)
    return np.divide(mean(first), below, out=np.full_like(below, math.nan), where=below > 0)


def double_ratio(first: Scores, second: Scores, third: Scores, fourth: Scores) -> np.ndarray:
    """`ratio` of the first two methods over that of the last two; nan where the latter is not positive."""
    below = ratio(third, fourth)
    return np.divide(ratio(first, second), below, out=np.full_like(below, math.nan), where=below > 0)


def median(tasks: Scores) -> np.ndarray:
    """Median over tasks of the mean over runs. [..., runs] each -> [...]."""
    return np.median([task.mean(-1) for task in tasks], 0)


def profile(tasks: Scores, levels: np.ndarray) -> np.ndarray:
    """Performance profile: share of runs above each level [levels], mean over tasks. [..., runs] -> [..., levels]."""
    return np.mean([(task[..., None] > levels).mean(-2) for task in tasks], 0)


def improvement(first: Scores, second: Scores) -> np.ndarray:
    """P(X > Y) + P(X = Y) / 2 for runs X and Y of two methods, mean over tasks. [..., runs] -> [...]."""
    pairs = [(x[..., :, None] - y[..., None, :]) for x, y in zip(first, second, strict=True)]  # [..., runs, runs]
    return np.mean([((pair > 0) + 0.5 * (pair == 0)).mean((-1, -2)) for pair in pairs], 0)


def resampled(tasks: Scores, rng: np.random.Generator, count: int = RESAMPLES) -> list[np.ndarray]:
    """Runs drawn with replacement within each task, [count, runs] each."""
    return [task[rng.integers(len(task), size=(count, len(task)))] for task in tasks]


def widening(*methods: Scores) -> float:
    """Factor that stretches a bootstrap's deviations to the width of Student's t: see `interval`.

    Resampling n runs shrinks a standard error by the factor sqrt((n - 1) / n) and has normal quantiles.
    """
    errors, counts = _squared_errors(methods)  # [tasks of all methods] each
    if not errors.any():
        return 1.0
    return math.sqrt(counts.min() / (counts.min() - 1)) * student_over_normal(_freedom(errors, counts))


def _squared_errors(methods: Sequence[Scores]) -> tuple[np.ndarray, np.ndarray]:
    """Squared standard errors of the tasks' means, and numbers of runs: [tasks of all methods] each."""
    counts = np.array([len(task) for scores in methods for task in scores])  # [tasks of all methods]
    return np.array([task.var(ddof=1) for scores in methods for task in scores]) / counts, counts


def _freedom(errors: np.ndarray, counts: np.ndarray) -> float:
    """Degrees of freedom of a sum of means of `counts` runs with these squared errors (Welch 1947)."""
    return float(errors.sum() ** 2 / (errors**2 / (counts - 1)).sum())


def _relative_error(scores: Scores) -> float:
    """The standard error of a positive `mean`, as a share of it."""
    errors, _ = _squared_errors([scores])  # [tasks]
    return math.sqrt(errors.sum()) / len(scores) / float(mean(scores))


def _student(methods: Sequence[Scores], relative: bool = False) -> float:
    """Half the 95 % interval of sums and differences of means; nan if no run differs from another of its task.

    relative: for the logarithm of a `ratio` or `double_ratio`, where errors count relative to their means.
    """
    errors, counts = _squared_errors(methods)  # [tasks of all methods] each
    units = [len(scores) * (float(mean(scores)) if relative else 1.0) for scores in methods]  # [methods]
    errors = errors / np.repeat(units, [len(scores) for scores in methods]) ** 2  # [tasks of all methods]
    if not errors.any():
        return math.nan
    return float(stdtrit(_freedom(errors, counts), 0.975) * math.sqrt(errors.sum()))


def interval(
    statistic: Callable[..., np.ndarray],
    *methods: Scores,
    count: int = RESAMPLES,
    within: tuple[float, float] = (-math.inf, math.inf),
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """`statistic` of the methods' scores, and its 95 % interval; nan where there is none.

    `mean`, `difference` and `interaction` have an interval of Student's t. So has the logarithm of a `ratio` or
    `double_ratio`, with errors to first order; it has none if a mean is not positive or its standard error exceeds half
    of it. Other statistics have a percentile bootstrap, stratified by task and widened for few runs. There is no
    interval if a task has too few runs, or where all resamples agree, as for the share of won comparisons if all are
    won: resampling cannot tell how far that is from the truth. within: the range of the statistic, to which the
    interval is clipped.
    """
    value = statistic(*methods)
    nothing = np.full_like(value, math.nan)
    if any(len(task) < FEWEST for scores in methods for task in scores):
        return value, nothing, nothing
    if statistic in (mean, difference, interaction):
        half = _student(methods)
        low, high = np.clip((value - half, value + half), *within)
        return value, low, high
    if statistic in (ratio, double_ratio):
        if not all(mean(scores) > 0 and _relative_error(scores) <= ROUGH for scores in methods):
            return value, nothing, nothing
        factor = np.exp(_student(methods, relative=True))
        low, high = np.clip((value / factor, value * factor), *within)
        return value, low, high
    rng = np.random.default_rng(0)
    values = statistic(*(resampled(scores, rng, count) for scores in methods))  # [count, ...]
    ends = value + widening(*methods) * (np.percentile(values, (2.5, 97.5), axis=0) - value)  # [2, ...]
    low, high = np.where(np.ptp(values, 0) > 0, ends, nothing).clip(*within)
    return value, low, high
