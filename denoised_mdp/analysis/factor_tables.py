"""The factor matrix as text, as table rows, and to and from JSON; its mean over runs."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from denoised_mdp.analysis.crossfit import Estimate, confidence
from denoised_mdp.analysis.factors import TOO_FEW, FactorMatrix
from denoised_mdp.analysis.probe import CLIPS
from denoised_mdp.analysis.results import Subject
from denoised_mdp.config.compare import groups_of_seeds
from denoised_mdp.envs.factors import QUADRANTS, Factor

HEADLINES = {"signal recall": "signal", "leakage": "noise"}
"""name of a headline -> which factors it reads from what the policy sees"""


def headline_text(matrix: FactorMatrix, probe: str, split: str) -> str:
    """The lines below a heat map's title."""
    lines = [f"R² on held-out episodes · {probe} · {CLIPS[split]}"]
    for name, source in HEADLINES.items():
        if matrix.summaries[probe][source]:
            lines.append(f"{name} {matrix.summary(probe, matrix.seen, source).text(2)}")
    return "\n".join([lines[0], " · ".join(lines[1:])])


def factor_lines(matrix: FactorMatrix) -> list[str]:
    """A table of mean R^2 with 95 % intervals: probes and parts in rows, signal and noise in columns."""
    lines = [f"  {'R^2 (mean over factors)':26s}{'signal':>22s}{'noise':>22s}"]
    for probe in matrix.scores:
        for part in matrix.parts:
            cells = [matrix.summary(probe, part, source).text() for source in HEADLINES.values()]
            lines.append(f"  {probe:6s} from {part:14s}{cells[0]:>22s}{cells[1]:>22s}")
        heads = [
            f"{name} {matrix.summary(probe, matrix.seen, source).text()}"
            for name, source in HEADLINES.items()
            if matrix.summaries[probe][source]
        ]
        lines.append(f"  {probe:6s} {', '.join(heads)}")
        for name, source in HEADLINES.items():
            if matrix.summary(probe, matrix.seen, source).note == TOO_FEW:
                lines.append(f"    {name}: {matrix.reason(probe, source)}")
    return lines


def as_tree(matrix: FactorMatrix) -> dict[str, Any]:
    """All numbers of a matrix, for JSON; `from_tree` is its inverse."""
    return {
        "headline": {probe: matrix.headline(probe) for probe in matrix.scores},
        "parts": matrix.parts,
        "seen": matrix.seen,
        "homes": {kind: list(names) for kind, names in matrix.homes.items()},
        "factors": [dataclasses.asdict(factor) for factor in matrix.factors],
        "scores": {probe: scores.tolist() for probe, scores in matrix.scores.items()},
        "intervals": {probe: ends.tolist() for probe, ends in matrix.intervals.items()},
        "baseline": matrix.baseline.tolist(),
        "reasons": matrix.reasons,
        "summaries": {
            probe: {
                source: {part: dataclasses.asdict(one) for part, one in found.items()}
                for source, found in sources.items()
            }
            for probe, sources in matrix.summaries.items()
        },
    }


def from_tree(tree: Mapping[str, Any]) -> FactorMatrix:
    """The matrix that `as_tree` wrote.

    Raises:
        ValueError: an earlier version wrote it, with other definitions of recall and leakage.
    """
    if "scores" in tree and "summaries" not in tree:
        raise ValueError("an earlier version made it: run probe factors again")
    found = [Factor(**{**factor, "columns": tuple(factor["columns"])}) for factor in tree["factors"]]
    scores, intervals = (
        {probe: np.array(values, np.float64) for probe, values in tree[name].items()}  # null becomes nan
        for name in ("scores", "intervals")
    )
    summaries = {
        probe: {
            source: {part: Estimate.from_tree(one) for part, one in parts.items()} for source, parts in sources.items()
        }
        for probe, sources in tree["summaries"].items()
    }
    seen, baseline = str(tree.get("seen", "x")), np.array(tree["baseline"])
    reasons = {
        probe: {source: str(reason) for source, reason in sources.items()}
        for probe, sources in tree.get("reasons", {}).items()  # earlier versions gave none
    }
    homes = {kind: tuple(map(str, tree.get("homes", QUADRANTS)[kind])) for kind in QUADRANTS}  # earlier ones had none
    return FactorMatrix(found, list(tree["parts"]), scores, intervals, baseline, summaries, seen, reasons, homes)


def factor_rows(subject: Subject, matrix: FactorMatrix) -> list[dict[str, Any]]:
    """One row per probe, part and factor; R^2 is a mean over seeds, with the ends of its 95 % interval."""
    rows = []
    for probe in matrix.scores:
        mean, (low, high) = matrix.mean(probe), matrix.intervals[probe]
        for (p, part), (f, factor) in itertools.product(enumerate(matrix.parts), enumerate(matrix.factors)):
            rows.append(
                {
                    "run": str(subject.path),
                    "step": subject.step,
                    "seed": subject.config.seed,
                    "model": subject.config.method[0],
                    "probe": probe,
                    "part": part,
                    "factor": factor.name,
                    "source": factor.source,
                    "quadrant": factor.quadrant,
                    "r2": round(float(mean[p, f]), 6),
                    "r2_low": round(float(low[p, f]), 6),
                    "r2_high": round(float(high[p, f]), 6),
                    "mean_predictor_r2": round(float(matrix.baseline[:, f].mean()), 6),
                }
            )
    return rows


def several_seeds(results: Sequence[tuple[Subject, FactorMatrix]]) -> list[list[tuple[Subject, FactorMatrix]]]:
    """Groups of at least two runs that differ only in the seed, with the same factors at the same step."""
    groups = groups_of_seeds(results, lambda one: one[0].config, also=lambda one: (one[0].step, one[1].factors))
    return [group for group in groups if len(group) > 1]


def pooled(matrices: Sequence[FactorMatrix]) -> FactorMatrix:
    """One matrix whose seeds are runs: each run contributes the mean over its own probe seeds.

    A summary is the mean over the runs where it is known, with a 95 % interval if there are at least three (Student's
    t). Its note says if some runs do not count. A reason is the first run's, and applies if no run has a number.
    """
    first = matrices[0]
    scores = {probe: np.stack([matrix.mean(probe) for matrix in matrices]) for probe in first.scores}
    intervals = {probe: np.full((2, *runs.shape[1:]), np.nan) for probe, runs in scores.items()}
    summaries = {
        probe: {
            source: {part: _pool([matrix.summary(probe, part, source) for matrix in matrices]) for part in parts}
            for source, parts in sources.items()
        }
        for probe, sources in first.summaries.items()
    }
    baseline = np.stack([matrix.baseline.mean(0) for matrix in matrices])
    reasons = {
        probe: {source: f"no run has a number; of the first: {reason}" for source, reason in sources.items()}
        for probe, sources in first.reasons.items()
    }
    about = {"seen": first.seen, "reasons": reasons, "homes": first.homes}
    return FactorMatrix(first.factors, first.parts, scores, intervals, baseline, summaries, **about)


def _pool(runs: Sequence[Estimate]) -> Estimate:
    """The mean of the known estimates."""
    known = np.array([one.value for one in runs if one.known])
    if not len(known):
        return Estimate(math.nan, note=runs[0].note)
    half = confidence(known) if len(known) > 2 else math.nan
    fewer = "" if len(known) == len(runs) else f"{len(known)} of {len(runs)} runs, too few episodes in the others"
    return Estimate(float(known.mean()), float(known.mean()) - half, float(known.mean()) + half, fewer)
