"""The factor matrix as text, as rows of a table, as JSON and back, and its mean over runs."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from ..config import differences
from ..envs.factors import Factor
from .factors import FactorMatrix
from .results import Subject, number


def headline_text(matrix: FactorMatrix, probe: str, split: str, numbers: Mapping[str, float] | None = None) -> str:
    """The line below a heat map's title; numbers: instead of the matrix's `headline`."""
    clips = {"train": "clips of training", "test": "unseen clips", "across": "fitted on clips of training, tested on"
             " unseen ones"}[split]  # fmt: skip
    numbers = matrix.headline(probe) if numbers is None else numbers
    leakage = "" if math.isnan(numbers["leakage"]) else f" · leakage {numbers['leakage']:.2f}"
    recall = f"signal recall {numbers['signal_recall']:.2f}"
    return f"R² on held-out episodes · {probe} · {clips} · {recall}{leakage}"


def factor_lines(matrix: FactorMatrix) -> list[str]:
    """A table of mean R^2: probes and parts in rows, signal and noise in columns."""
    lines = [f"  {'R^2 (mean over factors)':26s}{'signal':>16s}{'noise':>16s}"]
    for probe in matrix.scores:
        for part in matrix.parts:
            cells = [number(*matrix.summary(probe, part, source)) for source in ("signal", "noise")]
            lines.append(f"  {probe:6s} from {part:14s}{cells[0]:>16s}{cells[1]:>16s}")
        head = matrix.headline(probe)
        lines.append(f"  {probe:6s} signal recall {head['signal_recall']:.3f}, leakage {head['leakage']:.3f}")
    return lines


def as_tree(matrix: FactorMatrix) -> dict[str, Any]:
    """All numbers of a matrix, for JSON; `from_tree` is its inverse."""
    return {
        "headline": {probe: matrix.headline(probe) for probe in matrix.scores},
        "parts": matrix.parts,
        "factors": [dataclasses.asdict(factor) for factor in matrix.factors],
        "scores": {probe: scores.tolist() for probe, scores in matrix.scores.items()},
        "baseline": matrix.baseline.tolist(),
    }


def from_tree(tree: Mapping[str, Any]) -> FactorMatrix:
    """The matrix that `as_tree` wrote."""
    found = [Factor(**{**factor, "columns": tuple(factor["columns"])}) for factor in tree["factors"]]
    scores = {probe: np.array(values) for probe, values in tree["scores"].items()}
    return FactorMatrix(found, list(tree["parts"]), scores, np.array(tree["baseline"]))


def factor_rows(subject: Subject, matrix: FactorMatrix) -> list[dict[str, Any]]:
    """One row per probe, part and factor; R^2 is a mean over seeds, with its standard deviation."""
    rows = []
    for probe, scores in matrix.scores.items():
        spread = scores.std(0, ddof=1) if len(scores) > 1 else np.full(scores.shape[1:], np.nan)
        for (p, part), (f, factor) in _product(matrix.parts, matrix.factors):
            rows.append(
                {
                    "run": str(subject.path),
                    "step": subject.step,
                    "seed": subject.config.seed,
                    "model": subject.config.model.name,
                    "probe": probe,
                    "part": part,
                    "factor": factor.name,
                    "source": factor.source,
                    "quadrant": factor.quadrant,
                    "r2": round(float(scores[:, p, f].mean()), 6),
                    "r2_std": round(float(spread[p, f]), 6),
                    "mean_predictor_r2": round(float(matrix.baseline[:, f].mean()), 6),
                }
            )
    return rows


def _product(first: Sequence, second: Sequence) -> Iterator[tuple]:
    for a in enumerate(first):
        for b in enumerate(second):
            yield a, b


def groups_of_seeds(results: Sequence[tuple[Subject, FactorMatrix]]) -> list[list[tuple[Subject, FactorMatrix]]]:
    """Groups of at least two runs whose configurations differ in the seed alone."""
    groups: list[list[tuple[Subject, FactorMatrix]]] = []
    for subject, matrix in results:
        for group in groups:
            same = dataclasses.replace(subject.config, seed=group[0][0].config.seed)
            if not differences(group[0][0].config, same) and group[0][1].factors == matrix.factors:
                group.append((subject, matrix))
                break
        else:
            groups.append([(subject, matrix)])
    return [group for group in groups if len(group) > 1]


def pooled(matrices: Sequence[FactorMatrix]) -> FactorMatrix:
    """One matrix whose seeds are runs: each run's mean over its own probe seeds."""
    first = matrices[0]
    scores = {probe: np.stack([matrix.mean(probe) for matrix in matrices]) for probe in first.scores}
    return FactorMatrix(first.factors, first.parts, scores, np.stack([m.baseline.mean(0) for m in matrices]))


