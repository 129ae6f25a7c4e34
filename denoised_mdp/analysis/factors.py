"""The factor matrix: which latent holds which true factor of the environment.

From frozen latents of held-out episodes, probes predict every factor that the environment reports. Episodes are
divided, never their rows; R^2 is that of episodes on which a probe was not fitted. Two numbers sum it up: signal recall
(the signal from x should be near 1) and leakage (the noise from x should be near 0).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import gymnasium as gym
import numpy as np

from ..agent import Agent
from ..envs.factors import SIGNAL, Factor, factors
from ..envs.seeding import generator
from ..errors import UserError
from ..progress import track
from .data import Frozen, Recording, freeze, probe_seeds, record
from .mlp import mlp_predictions
from .ridge import fit_ridge, r_squared

PROBES = ("ridge", "mlp")
TEST_SHARE = 1 / 3
"""of the episodes, on which R^2 is computed"""

Split = tuple[np.ndarray, np.ndarray]
"""numbers of the episodes on which a probe is fitted, and of those on which it is tested"""


@dataclass
class FactorMatrix:
    """R^2 of every factor from every part of the latent."""

    factors: list[Factor]
    parts: list[str]
    scores: dict[str, np.ndarray]
    """probe -> R^2 [seeds, parts, factors]"""
    baseline: np.ndarray
    """R^2 of predicting the mean of the fitted episodes, at most 0, [seeds, factors]"""

    def mean(self, probe: str) -> np.ndarray:
        """Mean over seeds, [parts, factors]."""
        return self.scores[probe].mean(0)

    def summary(self, probe: str, part: str, source: str) -> tuple[float, float]:
        """Mean R^2 of all factors of "signal" or "noise" from one part; its mean and std over seeds.

        Signal is what can be controlled and matters for the reward, noise what cannot be controlled. A factor that is
        predicted worse than by its mean counts as 0: nothing of it was found. nan without factors, and the std with a
        single seed.
        """
        group = [f.quadrant == SIGNAL if source == "signal" else f.source == "noise" for f in self.factors]
        columns = np.flatnonzero(group)
        if not len(columns):
            return float("nan"), float("nan")
        values = self.scores[probe][:, self.parts.index(part)][:, columns].clip(0.0).mean(1)  # [seeds]
        return float(values.mean()), float(values.std(ddof=1)) if len(values) > 1 else float("nan")

    def headline(self, probe: str) -> dict[str, float]:
        """Signal recall and leakage: how much of the signal, and of the noise, x holds."""
        return {
            "signal_recall": self.summary(probe, "x", "signal")[0],
            "leakage": self.summary(probe, "x", "noise")[0],
        }


def random_splits(episodes: int, seeds: int, test_share: float = TEST_SHARE) -> list[Split]:
    """One random division of the episodes per seed.

    Raises:
        UserError: fewer than three episodes, or so few that a probe could not choose its penalty.
    """
    test = max(1, round(episodes * test_share))
    if episodes - test < 2:
        raise UserError(f"{episodes} episodes are too few for a probe: give at least 3, better 30 (--episodes).")
    splits = []
    for seed in range(seeds):
        order = generator(seed, "probe split").permutation(episodes)
        splits.append((np.sort(order[test:]), np.sort(order[:test])))
    return splits


def factor_matrix(
    parts: dict[str, np.ndarray],
    targets: dict[Factor, np.ndarray],
    episode: np.ndarray,
    splits: Sequence[Split],
    probes: Sequence[str] = PROBES,
) -> FactorMatrix:
    """Fit and test every probe on every part.

    parts: name -> features [n, F]. targets: factor -> values [n, k]; R^2 is the mean over the k columns. Factors
    that never vary are left out. episode: number of each row's episode [n]. The i-th split is that of seed i.

    Raises:
        UserError: features that are not finite.
    """
    for name, features in parts.items():
        if not np.isfinite(features).all():
            raise UserError(f"The latents of this model are not finite ({name}): its training has diverged.")
    targets = {factor: values for factor, values in targets.items() if (np.ptp(values, axis=0) > 1e-9).any()}
    if not targets:
        raise UserError("Nothing varies in these episodes: there is no factor to be predicted. Record longer ones.")
    y = np.concatenate([np.asarray(values, np.float64) for values in targets.values()], 1)  # [n, K]
    owner = np.repeat(np.arange(len(targets)), [values.shape[1] for values in targets.values()])  # [K]
    scores = {probe: np.zeros((len(splits), len(parts), len(targets))) for probe in probes}
    sides = [(np.isin(episode, fit), np.isin(episode, test)) for fit, test in splits]
    baseline = np.stack([_by_factor(r_squared(y[held], y[train].mean(0)), owner) for train, held in sides])
    jobs = list(itertools.product(enumerate(sides), enumerate(parts.values()), probes))
    for (seed, (train, held)), (row, features), probe in track(jobs, "fitting probes", "fits"):
        if probe == "ridge":
            predicted = fit_ridge(features[train], y[train], episode[train]).predict(features[held])
        else:
            predicted = mlp_predictions(features[train], y[train], episode[train], features[held], seed=seed)
        scores[probe][seed, row] = _by_factor(r_squared(y[held], predicted), owner)
    return FactorMatrix(list(targets), list(parts), scores, baseline)


def _by_factor(values: np.ndarray, owner: np.ndarray) -> np.ndarray:
    """Mean of the columns [K] of each factor; a column that is constant in the tested rows says nothing.

    A factor without any other column gets 0: predicting it takes no information.
    """
    out = np.zeros(owner.max() + 1)
    for factor in range(len(out)):
        known = values[(owner == factor) & np.isfinite(values)]
        out[factor] = known.mean() if len(known) else 0.0
    return out


def stack(frozen: Sequence[Frozen], names: Sequence[str] | None = None) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Rows of all episodes: part -> features [n, F], and the number of each row's episode [n]."""
    episodes = [one.parts() for one in frozen]
    names = list(episodes[0]) if names is None else names
    number = np.repeat(np.arange(len(frozen)), [len(one.embedding) for one in frozen])
    return {name: np.concatenate([parts[name] for parts in episodes]) for name in names}, number


def targets_of(found: Sequence[Factor], recordings: Sequence[Recording]) -> dict[Factor, np.ndarray]:
    """Values of every factor in the rows of all episodes, [n, k] each."""
    signal, noise = (np.concatenate([getattr(r, kind) for r in recordings]) for kind in ("signal", "noise"))
    return {factor: factor.values(signal, noise) for factor in found}


class QuickProbe:
    """A cheap factor matrix to watch while training: ridge alone, on a few episodes that are always the same.

    They are played at random, once, so that the curve shows the model's progress and not the policy's.
    """

    episodes, steps, seeds = 9, 100, 3

    def __init__(self, make_environment: Callable[[], gym.Env]):
        environment = make_environment()
        self._factors = factors(environment)
        environment.close()
        self._recordings = record(make_environment, probe_seeds(0, self.episodes), self.steps, behaviour="random")

    def __call__(self, agent: Agent) -> dict[str, float]:
        """Mean R^2 of signal and of noise from each latent, e.g. ``probe/noise_from_x``, the leakage."""
        names = agent.world_model.rssm.layout.names
        parts, episode = stack(freeze(agent, self._recordings), names)
        targets = targets_of(self._factors, self._recordings)
        matrix = factor_matrix(parts, targets, episode, random_splits(self.episodes, self.seeds), ["ridge"])
        scores = {
            f"probe/{source}_from_{name}": matrix.summary("ridge", name, source)[0]
            for name in names
            for source in ("signal", "noise")
        }
        return {name: value for name, value in scores.items() if np.isfinite(value)}
