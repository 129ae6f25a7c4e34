"""The factor matrix: which latent holds which true factor of the environment.

From frozen latents of held-out episodes, probes predict every factor that the environment reports. Folds divide
episodes, never their rows, and R^2 is computed on episodes left out of the fit. Two numbers summarize it: signal recall
(R^2 of the signal from x, ideally 1) and leakage (R^2 of the noise from x, ideally 0). Both are unknown if the sample
is too small for a probe to find anything: an R^2 of 0 from x then says nothing about x.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from denoised_mdp.agents.base import Agent
from denoised_mdp.agents.world_model_agent import WorldModelAgent
from denoised_mdp.analysis.crossfit import (
    Division,
    EpisodeSums,
    Estimate,
    bootstrap_weights,
    half_of,
    interval,
    still_to_learn,
    varies,
    widened,
)
from denoised_mdp.analysis.data import Frozen
from denoised_mdp.analysis.mlp import mlp_predictions
from denoised_mdp.analysis.ridge import fit_ridge
from denoised_mdp.envs.factors import NOISE, QUADRANTS, RELEVANT_NOISE, SIGNAL, USELESS, Factor
from denoised_mdp.errors import UserError
from denoised_mdp.progress import track
from denoised_mdp.rollout import Episode

PROBES = ("ridge", "mlp")
REFERENCES = ("all", "encoder")
"""parts that see more than any single latent; their R^2 is the ceiling of the sample"""
UNTRAINED = "untrained"
"""the part that the policy would see with initial weights: even an untrained net remembers the actions and some of the
image, so recall starts above 0"""
CEILING = 0.2
"""minimum of the lower end of the ceiling's interval"""
WIDEST = 0.5
"""largest width at which an interval, the ceiling's or a latent's own, still means something"""
LOST = 0.03
"""largest R^2 by which all latents together may fall short of a single one"""
TOO_FEW = "too few episodes"
SPOKEN = {"all": "all latents together", "encoder": "the encoder"}
"""names of parts in sentences, where they differ"""


@dataclass
class FactorMatrix:
    """R^2 of every factor from every part of the latent."""

    factors: list[Factor]
    parts: list[str]
    scores: dict[str, np.ndarray]
    """probe -> R^2 [seeds, parts, factors]"""
    intervals: dict[str, np.ndarray]
    """probe -> ends of the 95 % interval of the mean over seeds, [2, parts, factors]"""
    baseline: np.ndarray
    """R^2 of predicting the mean of the fitted episodes, at most 0, [seeds, factors]"""
    summaries: dict[str, dict[str, dict[str, Estimate]]]
    """probe -> "signal" or "noise" -> part -> `summary`"""
    seen: str = "x"
    """the part that the policy sees, from which signal recall and leakage are read"""
    reasons: dict[str, dict[str, str]] = field(default_factory=dict)
    """probe -> "signal" or "noise" -> why the summary of `seen` is withheld, if it is, and what to do about it"""
    homes: Mapping[str, Sequence[str]] = field(default_factory=lambda: dict(QUADRANTS))
    """kind of information -> the parts that should hold it, see `homes_of`"""

    def mean(self, probe: str) -> np.ndarray:
        """Mean over seeds, [parts, factors]."""
        return self.scores[probe].mean(0)

    def summary(self, probe: str, part: str, source: str) -> Estimate:
        """Mean R^2 of all factors of "signal" or "noise" from one part, with its interval over episodes.

        Signal factors are controllable and reward-relevant; noise factors are those with source "noise". A negative R^2
        of a factor counts as 0. nan without factors, or if the sample is too small: finding nothing in a latent means
        something only if the lower end of `ceiling` reaches `CEILING`, neither its interval nor the latent's is wider
        than `WIDEST`, and all latents together fall short of no single one by more than `LOST`.
        """
        return self.summaries[probe][source].get(part, Estimate(np.nan))

    def ceiling(self, probe: str, source: str) -> Estimate:
        """The best summary among the `REFERENCES`: the most that such a probe can find in these episodes.

        A model with a single latent has no part "all"; that latent takes its place. Withheld summaries do not count.
        """
        return best_reference(self.summaries[probe][source])[1]

    def reason(self, probe: str, source: str) -> str:
        """Why signal recall ("signal") or leakage ("noise") is withheld; files of earlier versions do not say."""
        return self.reasons.get(probe, {}).get(source) or f"{TOO_FEW}. Give more --episodes."

    def headline(self, probe: str) -> dict[str, float]:
        """Signal recall and leakage: how much of the signal, and of the noise, the policy sees."""
        return {
            "signal_recall": self.summary(probe, self.seen, "signal").value,
            "leakage": self.summary(probe, self.seen, "noise").value,
        }


def factor_matrix(
    parts: dict[str, np.ndarray],
    targets: dict[Factor, np.ndarray],
    episode: np.ndarray,
    divisions: Sequence[Division],
    probes: Sequence[str] = PROBES,
    *,
    seen: str = "x",
) -> FactorMatrix:
    """Fit and test every probe on every part, see `analysis.crossfit`.

    parts: name -> features [n, F]. targets: factor -> values [n, k]; R^2 is the mean over the k columns. Factors
    that never vary in the tested episodes are left out. episode: number of each row's episode [n]. divisions: from
    `random_divisions`; the i-th has seed i, and all test the same episodes. seen: the part that the policy sees,
    `Agent.seen`.

    Raises:
        UserError: features are not finite, or no factor varies.
    """
    for name, features in parts.items():
        if not np.isfinite(features).all():
            raise UserError(f"The latents of this model are not finite ({name}): its training has diverged.")
    tested = np.concatenate([test for _, test in divisions[0]])
    scored = np.isin(episode, tested)
    targets = {factor: np.asarray(values, np.float64) for factor, values in targets.items()}
    targets = {factor: values for factor, values in targets.items() if varies(values[scored]).any()}
    if not targets:
        raise UserError("Nothing varies in these episodes: there is no factor to predict. Record longer ones.")
    y = np.concatenate(list(targets.values()), 1)  # [n, K]
    owner = np.repeat(np.arange(len(targets)), [values.shape[1] for values in targets.values()])  # [K]
    sums = EpisodeSums(y, episode, tested)
    shape = len(divisions), len(parts), len(sums.tested), y.shape[1]
    errors, halves = ({probe: np.zeros(shape) for probe in probes} for _ in range(2))  # [seeds, parts, E, K]
    baseline = np.zeros((len(divisions), len(sums.tested), y.shape[1]))  # [seeds, E, K]
    folds = [(seed, *fold) for seed, division in enumerate(divisions) for fold in division]
    for seed, fit, test in folds:
        held = np.isin(episode, test)
        baseline[seed] += sums.errors(y[held] - y[np.isin(episode, fit)].mean(0), held)
    jobs = list(itertools.product(folds, (False, True), enumerate(parts.values()), probes))
    for (seed, fit, test), less, (row, features), probe in track(jobs, "fitting probes", "fits"):
        train, held = np.isin(episode, half_of(fit, seed) if less else fit), np.isin(episode, test)
        if probe == "ridge":
            predicted = fit_ridge(features[train], y[train], episode[train]).predict(features[held])
        else:
            predicted = mlp_predictions(features[train], y[train], episode[train], features[held], seed=seed)
        (halves if less else errors)[probe][seed, row] += sums.errors(y[held] - predicted, held)
    floor = np.stack([_by_factor(sums.r_squared(one), owner) for one in baseline])  # [seeds, factors]
    matrix = FactorMatrix(list(targets), list(parts), {}, {}, floor, {}, seen)
    weights, sizes = bootstrap_weights(len(sums.tested)), [(len(fit), len(half_of(fit, 0))) for fit, _ in divisions[0]]
    for probe, found in errors.items():
        whole, half = (
            np.array([[_by_factor(sums.r_squared(part), owner) for part in seed] for seed in one])
            for one in (found, halves[probe])
        )  # [seeds, parts, factors]
        matrix.scores[probe] = whole
        draws = [_by_factor(sums.r_squared(part, weights), owner) for part in found.mean(0)]  # parts x [draws, factors]
        draws = widened(np.stack(draws, 1), matrix.mean(probe), len(sums.tested))
        _summarize(matrix, probe, draws, still_to_learn(whole.mean(0), half.mean(0), sizes))
    return matrix


def _summarize(matrix: FactorMatrix, probe: str, draws: np.ndarray, more: np.ndarray) -> None:
    """Fill in the intervals and the summaries of one probe.

    draws: of the bootstrap, [draws, parts, factors]. more: R^2 left to gain, [parts, factors], see `still_to_learn`.
    """
    low, high = interval(draws)
    matrix.intervals[probe] = np.stack((low, np.minimum(high + more, 1.0)))
    matrix.summaries[probe] = {"signal": {}, "noise": {}}
    for source, found in matrix.summaries[probe].items():
        columns = [
            i
            for i, f in enumerate(matrix.factors)
            if (f.quadrant == SIGNAL if source == "signal" else f.source == "noise")
        ]
        if not columns:
            continue
        values = matrix.scores[probe][:, :, columns].clip(0.0).mean((0, 2))  # [parts]
        low, high = interval(draws[:, :, columns].clip(0.0, 1.0).mean(2))  # [parts] each
        high = np.minimum(high + more[:, columns].mean(1), 1.0)
        ends = zip(matrix.parts, values, low, high, strict=True)
        found |= {part: Estimate(float(value), float(a), float(b)) for part, value, a, b in ends}
        useless = _useless(found)
        why = {part: useless or _uncertain(part, one) for part, one in found.items() if part not in REFERENCES}
        if why.get(matrix.seen):
            matrix.reasons.setdefault(probe, {})[source] = why[matrix.seen]
        found |= {part: Estimate(np.nan, note=TOO_FEW) for part, reason in why.items() if reason}


def best_reference(found: Mapping[str, Estimate]) -> tuple[str, Estimate]:
    """Name and summary of the part that sets the ceiling, see `FactorMatrix.ceiling`; found: part -> summary."""
    parts = REFERENCES if "all" in found else [part for part in found if part != UNTRAINED]
    known = [(part, found[part]) for part in parts if part in found and found[part].known]
    order = {part: (np.nan_to_num(one.low, nan=-np.inf), one.value) for part, one in known}  # nan for means of two runs
    return max(known, key=lambda pair: order[pair[0]], default=("", Estimate(np.nan)))


def _useless(found: Mapping[str, Estimate]) -> str:
    """Why these episodes cannot tell what any latent holds, see `FactorMatrix.summary`; empty if they can."""
    part, ceiling = best_reference(found)
    if ceiling.low < CEILING:
        told = f"R^2 from {SPOKEN.get(part, part)}: {ceiling.text()}"
        return f"too few episodes, or nothing to read ({told}). Give more --episodes, or train longer."
    if reason := _uncertain(part, ceiling):
        return reason
    if "all" in found:  # it holds what each latent holds, unless the fit drowns in its many features
        latents = {part: one.value for part, one in found.items() if part not in ("encoder", UNTRAINED)}
        best, whole = max(latents, key=latents.__getitem__), found["all"].value
        if latents[best] > whole + LOST:
            return (
                f"all latents together ({whole:.2f}) read less than {best} alone ({latents[best]:.2f}): the fit drowns"
                " in features. Give more --episodes."
            )
    return ""


def _uncertain(part: str, found: Estimate) -> str:
    """A message if the interval is too wide; empty if it is not."""
    if found.high - found.low > WIDEST:
        return f"too uncertain (R^2 from {SPOKEN.get(part, part)}: {found.text()}). Give more --episodes."
    return ""


def _by_factor(values: np.ndarray, owner: np.ndarray) -> np.ndarray:
    """Mean over each factor's columns, [..., K] -> [..., factors]. Constant columns (nan) are ignored.

    A factor with no other columns gets 0: predicting it takes no information.
    """
    out = np.zeros((*values.shape[:-1], owner.max() + 1))
    for factor in range(out.shape[-1]):
        known = np.isfinite(values[..., owner == factor])
        total = np.where(known, values[..., owner == factor], 0.0).sum(-1)
        out[..., factor] = total / np.maximum(known.sum(-1), 1)
    return out


def stack(frozen: Sequence[Frozen], names: Sequence[str] | None = None) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Rows of all episodes: part -> features [n, F], and the number of each row's episode [n]."""
    episodes = [one.parts() for one in frozen]
    names = list(episodes[0]) if names is None else names
    number = np.repeat(np.arange(len(frozen)), [len(next(iter(parts.values()))) for parts in episodes])
    return {name: np.concatenate([parts[name] for parts in episodes]) for name in names}, number


def targets_of(found: Sequence[Factor], recordings: Sequence[Episode]) -> dict[Factor, np.ndarray]:
    """Values of every factor in the rows of all episodes, [n, k] each."""
    signal, noise = (np.concatenate([getattr(r, kind) for r in recordings]) for kind in ("signal", "noise"))
    return {factor: factor.values(signal, noise) for factor in found}


def homes_of(agent: Agent) -> dict[str, tuple[str, ...]]:
    """Which latents should hold each kind of information, according to the table of latents.

    Controllable: the prior reads the action. Relevant: the latent is rewarded, or the policy sees it. If no latent is
    of a kind, and for agents without a world model, the result is that of the paper's models (`QUADRANTS`).
    """
    if not isinstance(agent, WorldModelAgent):
        return dict(QUADRANTS)
    kinds = {SIGNAL: (True, True), USELESS: (True, False), RELEVANT_NOISE: (False, True), NOISE: (False, False)}
    rows = agent.world_model.table.rows.values()
    found = {
        kind: tuple(row.name for row in rows if (row.sees_action, row.rewarded or row.seen_by_policy) == pair)
        for kind, pair in kinds.items()
    }
    return {kind: names or QUADRANTS[kind] for kind, names in found.items()}
