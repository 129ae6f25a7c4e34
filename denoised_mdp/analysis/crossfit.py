"""Cross-fitted R^2 with an interval: how well a probe predicts episodes on which it was not fitted.

The episodes are split into folds. A probe is fitted on all folds but one and predicts that one, so every episode is
tested exactly once. R^2 pools all predictions and takes the mean of all tested rows as its reference: the mean of the
few episodes of one fold would hide differences between episodes. The interval is a Bayesian bootstrap over the tested
episodes (Rubin 1981), since episodes are independent and their rows are not.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from typing_extensions import Self

from denoised_mdp.errors import UserError
from denoised_mdp.seeding import generator

FOLDS = 5
LEAST_SPREAD = 1e-6
"""standard deviation below which a column counts as constant, see `_least_variance`"""
DRAWS = 2000
"""bootstrap draws of the episodes' weights"""

Split = tuple[np.ndarray, np.ndarray]
"""numbers of the episodes on which a probe is fitted, and of those on which it is tested"""
Division = list[Split]
"""one split per fold; every tested episode is tested once"""


@dataclass(frozen=True)
class Estimate:
    """A number and its 95 % interval; nan if the sample cannot support it. note: caveats for the reader."""

    value: float
    low: float = math.nan
    high: float = math.nan
    note: str = ""

    @classmethod
    def from_tree(cls, tree: Mapping[str, Any]) -> Self:
        """Read an estimate from a result file, where null stands for nan."""
        numbers = (math.nan if tree[name] is None else float(tree[name]) for name in ("value", "low", "high"))
        return cls(*numbers, note=str(tree.get("note", "")))

    @property
    def known(self) -> bool:
        """Whether the value is finite."""
        return math.isfinite(self.value)

    def within(self, least: float, most: float) -> Estimate:
        """Clip the interval to the value's possible range, which a widened interval can exceed."""
        low, high = np.clip((self.low, self.high), least, most)
        return replace(self, low=float(low), high=float(high))

    def text(self, digits: int = 3) -> str:
        """The value, its interval and its note, if any."""
        if not self.known:
            return self.note or "-"
        interval = f" [{self.low:.{digits}f}, {self.high:.{digits}f}]" if math.isfinite(self.low + self.high) else ""
        return f"{self.value:.{digits}f}{interval}" + (f" ({self.note})" if self.note else "")


def random_divisions(episodes: int, seeds: int = 1) -> list[Division]:
    """One random division of the episodes into folds per seed; with fewer episodes than `FOLDS`, each is a fold.

    Raises:
        UserError: there are fewer than three episodes, too few for a probe to choose its penalty.
    """
    if episodes < 3:
        raise UserError(f"{episodes} episodes are too few for a probe: give at least 3, better 30 (--episodes).")
    divisions = []
    for seed in range(seeds):
        order = generator(seed, "probe split").permutation(episodes)
        tested = [np.sort(fold) for fold in np.array_split(order, min(FOLDS, episodes))]
        divisions.append([(np.setdiff1d(order, test), test) for test in tested])
    return divisions


def varies(values: np.ndarray) -> np.ndarray:
    """Which columns of float64 rows [n, K] are not constant: bool [K]."""
    return values.var(0) > _least_variance(values)


def _least_variance(values: np.ndarray) -> np.ndarray:
    """Largest variance [K] that counts as rounding in columns of rows [n, K]; it grows with their magnitude."""
    return LEAST_SPREAD**2 * (1 + np.square(values).mean(0))


class EpisodeSums:
    """Sums over the rows of each tested episode, from which R^2 follows for any weights of the episodes."""

    def __init__(self, targets: np.ndarray, episode: np.ndarray, tested: np.ndarray):
        """targets [n, K], the episode of each row [n], numbers of the tested episodes [E]."""
        self.tested = np.sort(tested)
        rows = np.isin(episode, self.tested)
        self._place = np.searchsorted(self.tested, episode)  # [n], valid only for tested rows
        centered = targets - targets[rows].mean(0)  # [n, K]; sums about the mean lose no digits
        self._rows = self._sum(np.ones((rows.sum(), 1)), rows)  # [E, 1]
        self._values = self._sum(centered[rows], rows)  # [E, K]
        self._squares = self._sum(np.square(centered[rows]), rows)  # [E, K]
        self._scale, self._varies = _least_variance(targets[rows]), varies(targets[rows])  # [K] each

    def _sum(self, values: np.ndarray, rows: np.ndarray) -> np.ndarray:
        """Sum values [m, K], which belong to the m rows marked in `rows` [n], within each tested episode: [E, K]."""
        out = np.zeros((len(self.tested), values.shape[1]))
        np.add.at(out, self._place[rows], values)
        return out

    def errors(self, differences: np.ndarray, rows: np.ndarray) -> np.ndarray:
        """Squared differences [m, K] of the rows marked in `rows` [n], summed within each tested episode: [E, K]."""
        return self._sum(np.square(differences), rows)

    def r_squared(self, errors: np.ndarray, weights: np.ndarray | None = None) -> np.ndarray:
        """R^2 [..., K] from summed squared errors [E, K], with weights of the episodes [..., E] (default: equal).

        nan where a column is constant, overall or under these weights.
        """
        weights = np.ones(len(self.tested)) if weights is None else weights
        count, total = weights @ self._rows, weights @ self._values  # [..., 1], [..., K]
        variance = weights @ self._squares - np.square(total) / count  # [..., K]
        safe = np.where(variance > self._scale * count, variance, np.nan)
        return np.where(self._varies, 1 - (weights @ errors) / safe, np.nan)


def bootstrap_weights(episodes: int, draws: int = DRAWS) -> np.ndarray:
    """Random weights of the episodes, [draws, E]; each row sums to E, and every call returns the same ones."""
    return episodes * generator(0, "probe bootstrap").dirichlet(np.ones(episodes), draws)


def student_over_normal(freedom: float) -> float:
    """Factor by which a 95 % interval is wider with quantiles of Student's t than with normal ones."""
    from scipy.special import ndtri, stdtrit

    return float(stdtrit(freedom, 0.975) / ndtri(0.975))


def widened(draws: np.ndarray, value: np.ndarray, episodes: int) -> np.ndarray:
    """Widen draws [draws, ...] about their estimate [...], to correct for few episodes.

    For a mean, the bootstrap underestimates the standard error by the factor sqrt((E - 1) / (E + 1)), and has normal
    quantiles instead of those of Student's t with E - 1 degrees of freedom.
    """
    factor = math.sqrt((episodes + 1) / (episodes - 1)) * student_over_normal(episodes - 1)
    return value + factor * (draws - value)


def interval(draws: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The 2.5 % and 97.5 % quantiles of draws [draws, ...]; nan where no draw is finite."""
    known = np.isfinite(draws).any(0)
    low, high = np.nanquantile(np.where(known, draws, 0.0), (0.025, 0.975), axis=0)
    return np.where(known, low, np.nan), np.where(known, high, np.nan)


def estimate(statistic: Callable[[np.ndarray], np.ndarray], episodes: int) -> Estimate:
    """The value of a function of the episodes' weights, [draws, E] -> [draws], with its interval over episodes."""
    (value,) = statistic(np.ones((1, episodes)))
    return with_interval(value, *interval(widened(statistic(bootstrap_weights(episodes)), value, episodes)))


def with_interval(value: float, low: float, high: float) -> Estimate:
    """A value with its interval, which is dropped if it has no width beyond rounding.

    If all episodes agree, for example because each is perfect, they do not tell how much others would vary.
    """
    if high - low < 1e-9:
        return Estimate(float(value))
    return Estimate(float(value), float(low), float(high))


def half_of(episodes: np.ndarray, seed: int) -> np.ndarray:
    """A random half of a fit's episodes, but at least two, so that a probe can choose its penalty."""
    order = generator(seed, "probe half").permutation(len(episodes))
    return np.sort(episodes[order[: max(2, len(episodes) // 2)]])


def still_to_learn(whole: np.ndarray, half: np.ndarray, sizes: Sequence[tuple[int, int]]) -> np.ndarray:
    """How much R^2 [...] would gain from infinitely many episodes, extrapolated from fits on all and on half of them.

    The error of a fit falls asymptotically as 1 / (number of episodes), so two sizes give its limit: a probe that
    gained much from the second half has not found everything. sizes: numbers of episodes of both fits in each fold.
    A negative R^2 counts as 0. The gain is at least 0, and 1 if the half is no smaller.
    """
    large, small = np.mean(sizes, 0)
    if small >= large:
        return np.ones_like(whole)
    end = whole + small / (large - small) * (whole.clip(-1.0) - half.clip(-1.0)).clip(0.0)
    return end.clip(0.0) - whole.clip(0.0)


def confidence(values: np.ndarray) -> float:
    """Half-width of the 95 % confidence interval of the mean (Student's t); nan for fewer than two values."""
    from scipy.special import stdtrit

    if len(values) < 2:
        return math.nan
    return float(stdtrit(len(values) - 1, 0.975) * np.std(values, ddof=1) / math.sqrt(len(values)))
