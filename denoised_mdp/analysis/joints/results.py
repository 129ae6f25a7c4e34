"""The output of `probe joints`: JSON, CSV and figures of all finetunings, and a table of the final errors."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from denoised_mdp.analysis.joints import plots as joint_plots
from denoised_mdp.analysis.joints.data import JointData
from denoised_mdp.analysis.joints.regression import Curve, Schedule
from denoised_mdp.analysis.plots import save_figure
from denoised_mdp.analysis.results import Subject, write_csv, write_json

FAR = 5.0
"""relative error of a joint above which the output comments on it"""


@dataclass
class Result:
    """One finetuning."""

    encoder: str
    """name in the comparison; runs that differ only in the seed share one"""
    run: str
    """path of the run; empty for a reference encoder"""
    stack: int
    size: int
    """training pairs"""
    seed: int
    curve: Curve

    @property
    def about(self) -> dict[str, Any]:
        """What identifies the finetuning: all fields but the curve."""
        about = {"encoder": self.encoder, "run": self.run, "frames": self.stack, "pairs": self.size}
        return about | {"seed": self.seed}


def write_results(
    members: Sequence[Subject],
    results: list[Result],
    store: JointData,
    folder: Path,
    output: Path | None,
    schedule: Schedule,
    tested: int,
) -> list[str]:
    """Write all results; return a table of the final errors as lines to print."""
    joints = store.targets.joints
    options = {**dataclasses.asdict(schedule), "data": str(store.folder), "test_pairs": tested, "split": "train"}
    title = f"{' + '.join([store.plan.environment['task'], *store.plan.environment['distractors']])} · joint positions"
    heads = [f"{short} ({joint.unit}^2)" for short, joint in zip(joint_plots.short_names(joints), joints, strict=True)]
    wide = max(28, *(len(name) + 1 for name, *_ in grouped(results)))
    lines = [
        title,
        f"  {'encoder':{wide}s}{'frames':>7s}{'pairs':>9s}{'relative':>10s}{'pooled':>9s}   MSE of each joint",
    ]
    lines.append(f"  {'':{wide + 35}s}   {'  '.join(f'{head:>10s}' for head in heads)}")
    worst = np.zeros(len(joints))
    for (name, stack, size), group in grouped(results).items():
        final = np.mean([one.curve.mse[-1] for one in group], 0)
        relative = np.mean([np.nanmean(one.curve.relative[-1]) for one in group])
        pooled = np.mean([one.curve.pooled[-1] for one in group])
        worst = np.fmax(worst, np.mean([one.curve.relative[-1] for one in group], 0))
        cells = "  ".join(f"{value:>{max(10, len(head))}.4g}" for value, head in zip(final, heads, strict=True))
        lines.append(f"  {name:{wide}s}{stack:7d}{size:9,d}{relative:10.3f}{pooled:9.3f}   {cells}")
    lines.append("  relative: MSE / that of predicting the mean, mean over joints; pooled: the same of their sums")
    far = [head for head, value in zip(heads, worst, strict=True) if value > FAR]
    if far and schedule.scale == "physical":
        lines.append(
            f"  far worse than predicting the mean: {', '.join(far)}; what moves little counts little in a loss"
        )
        lines.append("    in physical units: give more --updates, or --scale standard, which weighs all joints equally")
    tree = {"probe": "joints", "options": options, "joints": [dataclasses.asdict(joint) for joint in joints]}
    parts = [(folder / "joints", tree | {"runs": [str(one.path) for one in members]}, results)]
    for subject in members:
        own = [one for one in results if one.run in ("", str(subject.path))]
        best = max((one for one in own if one.run), key=lambda one: (one.size, -one.stack, -one.seed))
        numbers = {
            "train_size": best.size,
            "relative_mse": float(np.nanmean(best.curve.relative[-1])),
            "pooled_mse": float(best.curve.pooled[-1]),
        } | {
            f"mse_{unit}2": float(best.curve.mse[-1][[joint.unit == unit for joint in joints]].mean())
            for unit in dict.fromkeys(joint.unit for joint in joints)
        }
        about = subject.about("joints", options) | numbers
        parts.append((subject.stem("joints", output, "train"), {**tree, **about}, own))
    for stem, about, own in parts:
        lines.append(f"  {write_json(f'{stem}.json', about | {'results': [as_tree(one) for one in own]})}")
        write_csv(f"{stem}.csv", [row for one in own for row in as_rows(one, store)])
        for kind, figure in joint_plots.figures(grouped(own), joints, title).items():
            save_figure(figure, f"{stem}_{kind}.png")
    return lines


def grouped(results: Sequence[Result]) -> dict[tuple[str, int, int], list[Result]]:
    """(encoder, frames, pairs) -> finetunings that differ only in their own seed or their run's."""
    groups: dict[tuple[str, int, int], list[Result]] = {}
    for one in results:
        groups.setdefault((one.encoder, one.stack, one.size), []).append(one)
    return groups


def as_tree(result: Result) -> dict[str, Any]:
    """All numbers of one finetuning, for JSON."""
    curve = result.curve
    arrays = {"updates": curve.updates, "mse": curve.mse, "relative": curve.relative, "baseline": curve.baseline}
    return result.about | {name: array.tolist() for name, array in arrays.items()}


def as_rows(result: Result, store: JointData) -> Iterator[dict[str, Any]]:
    """One row of the CSV file per evaluation and joint."""
    curve = result.curve
    for n, update in enumerate(curve.updates):
        for j, joint in enumerate(store.targets.joints):
            yield result.about | {
                "update": int(update),
                "joint": joint.name,
                "unit": f"{joint.unit}^2",
                "mse": float(curve.mse[n, j]),
                "relative_mse": float(curve.relative[n, j]),
                "mean_predictor_mse": float(curve.baseline[j]),
            }
