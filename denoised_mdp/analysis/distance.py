"""How many decisions apart are two situations? The temporal distance that frozen features reveal.

For each representation, a quasimetric is fitted to the same recorded episodes (`analysis.qrl`) and tested on others.
All distances here are in steps: the learned d divided by 1 + eps, so one decision is about 1. They are bounded by what
the data shows: two situations that are connected only by behaviour outside the data count as far apart.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from denoised_mdp.analysis.qrl import QRL, learn_distance
from denoised_mdp.analysis.quasimetric import IQE, relu_network
from denoised_mdp.analysis.ranks import rank_correlation
from denoised_mdp.analysis.ridge import Standardizer
from denoised_mdp.analysis.situations import FIRST
from denoised_mdp.errors import UserError
from denoised_mdp.progress import Phase
from denoised_mdp.rollout import Episode
from denoised_mdp.seeding import generator, torch_seed

STATE = "state"
"""the part that holds the simulator's state, the reference for the others"""
LAGS = (1, 2, 5, 10, 20, 50, 100)
"""decisions between two rows of an episode"""
PAIRS = 20_000
"""number of random pairs of held-out rows"""
SHORT, LONG, LONG_FROM = (15.0, 0.1), (500.0, 0.01), 50
"""offset c and sharpness of the objective for episodes of at most `LONG_FROM` decisions, and for longer ones"""
HIDDEN, COMPONENTS, SIZE = 256, 16, 16
BATCH, LR, MULTIPLIER_LR = 256, 2e-3, 0.1
PROJECTIONS = 128
"""number of random projections of an image"""


@dataclass(frozen=True)
class Geometry:
    """Properties of the distance learned from one representation, on held-out episodes; all distances in steps."""

    one_step: float
    """mean distance from a row to the next; should be about 1"""
    violations: float
    """share of pairs k decisions apart with a distance above k, mean over lags above 1; should be below 0.05"""
    rank_correlation: float
    """Spearman's coefficient with the distance learned from the simulator's state, over random pairs"""
    asymmetry: float
    """mean |d(a, b) - d(b, a)| / mean d over random pairs"""
    at_limit: float
    """share of random pairs that the objective no longer pushes apart: d >= c"""
    random: float
    """median distance of random pairs"""
    paired: dict[str, float]
    """world -> median distance between a situation and the same one in that world; 0: distractors have no effect"""
    lags: dict[int, tuple[float, float, float]]
    """k -> 10th, 50th and 90th percentile of the distance between rows k decisions apart"""


class Distance:
    """The distance learned from rows of features [n, F] of recorded episodes.

    episode: the episode of each row [n]. Consecutive rows of one episode are one decision apart.
    """

    def __init__(self, features: np.ndarray, episode: np.ndarray, updates: int, name: str):
        longest = np.bincount(episode).max() - 1
        self.limit, sharpness = SHORT if longest <= LONG_FROM else LONG
        self.scale, objective = Standardizer.of(features), QRL(self.limit, sharpness)
        self.unit = 1 + objective.eps
        rows = self.rows(features)  # [n, F]
        before = np.flatnonzero(episode[1:] == episode[:-1])
        random = generator(0, "distance batches")

        def sample() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
            at = random.choice(before, BATCH)
            return rows[at], rows[at + 1], rows[np.roll(at + 1, 1)]

        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(torch_seed(0, "distance weights"))
            self.encoder = relu_network(rows.shape[1], HIDDEN, COMPONENTS * SIZE)
            self.head = IQE(COMPONENTS, SIZE, "maxmean")
        with Phase(f"distance from {name}", updates, "updates") as phase:
            learn_distance(
                self.encoder, self.head, objective, sample, updates, lr=LR, multiplier_lr=MULTIPLIER_LR, phase=phase
            )

    def rows(self, features: np.ndarray) -> torch.Tensor:
        """Standardized features [n, F]; constant columns are 0."""
        return torch.as_tensor(self.scale(features), dtype=torch.float32)

    @torch.no_grad()
    def __call__(self, start: np.ndarray, end: np.ndarray) -> np.ndarray:
        """Steps from one row of features to another: [n, F] and [n, F] -> [n]."""
        d = self.head(self.encoder(self.rows(start)), self.encoder(self.rows(end)))
        return d.double().numpy() / self.unit


def measure_distances(
    parts: Mapping[str, np.ndarray],
    episode: np.ndarray,
    worlds: Mapping[str, Mapping[str, np.ndarray]],
    tested: np.ndarray,
    *,
    updates: int,
) -> dict[str, Geometry]:
    """Learn a distance from each part of a representation, and test it on held-out episodes.

    parts: name -> features [n, F]; `STATE` is the reference. episode: of each row [n]. tested: mask of the held-out
    rows [n], the same for all rows of an episode. worlds: other world -> part -> features of the held-out rows [m, F].

    Raises:
        UserError: no episode to learn from has two rows, or no held-out one has three.
    """
    random = generator(0, "distance pairs")
    pairs = random.choice(np.flatnonzero(tested), (2, PAIRS))  # [2, PAIRS]
    lags = {k: _apart(episode, tested, k) for k in LAGS}
    if not (len(lags[2]) and len(_apart(episode, ~tested, 1))):
        raise UserError(
            "This task ends its episodes too early for this probe: one to learn from needs at least"
            f" {FIRST + 1} decisions, and one held out {FIRST + 2}."
        )
    found, reference = {}, None
    for name in sorted(parts, key=lambda name: name != STATE):  # the reference comes first
        features = parts[name]
        distance = Distance(features[~tested], episode[~tested], updates, name)
        forth, back = (distance(features[a], features[b]) for a, b in (pairs, pairs[::-1]))
        reference = forth if reference is None else reference
        apart = {k: distance(features[at], features[at + k]) for k, at in lags.items() if len(at)}
        found[name] = Geometry(
            one_step=float(apart[1].mean()),
            violations=float(np.mean([(d > k).mean() for k, d in apart.items() if k > 1])),
            rank_correlation=rank_correlation(forth, reference),
            asymmetry=float(np.abs(forth - back).mean() / forth.mean()),
            at_limit=float((forth * distance.unit >= distance.limit).mean()),
            random=float(np.median(forth)),
            paired={
                world: float(np.median(distance(features[tested], others[name])))
                for world, others in worlds.items()
                if name in others
            },
            lags={k: tuple(np.quantile(d, (0.1, 0.5, 0.9)).tolist()) for k, d in apart.items()},
        )
    return {name: found[name] for name in parts}


def _apart(episode: np.ndarray, tested: np.ndarray, k: int) -> np.ndarray:
    """Rows marked in `tested` [n] whose episode goes on for k more rows."""
    row = np.arange(max(0, len(episode) - k))
    return row[(episode[row] == episode[row + k]) & tested[row]]


def projected(episodes: Sequence[Episode], rows: Sequence[np.ndarray]) -> np.ndarray:
    """Random projections of the images in some rows of each episode, [n, `PROJECTIONS`]: a baseline of raw pixels."""
    shape = math.prod(episodes[0].observation.shape[1:]), PROJECTIONS
    matrix = generator(0, "projection").standard_normal(shape, np.float32)
    pictures = (one.observation[at].reshape(len(at), -1) for one, at in zip(episodes, rows, strict=True))
    return np.concatenate([images.astype(np.float32) / 255 @ matrix for images in pictures])
