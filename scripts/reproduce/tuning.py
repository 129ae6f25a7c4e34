"""What each setting of a sweep has learned by which step, from the metrics that its runs have logged.

    denoised-mdp train sweep=tuning                          # trains what is missing, in runs/tuning
    python scripts/reproduce/tuning.py runs/tuning           # writes results/tuning/{runs.csv, table.md}

A row is a run at a step where training's own probe ran: recall and leakage of x, signal in y (R^2 of the ridge probe;
empty where its few episodes cannot support a value), nats per step, the picture's error in nats, and the return of the
last evaluation so far. Unfinished runs count as far as they have got.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import numpy as np

from denoised_mdp.analysis.report.data import Curve, read_run
from denoised_mdp.analysis.results import write_csv
from denoised_mdp.errors import UserError
from denoised_mdp.run.find import find_runs

OF_PROBE = {"recall": "probe/signal_from_x", "leakage": "probe/noise_from_x", "signal_in_y": "probe/signal_from_y"}
BEFORE = {"nats_x": "model/kl_x", "nats_y": "model/kl_y", "picture": "model/image_error", "return": "eval/return"}


def rows_of(metrics: dict[str, Curve], setting: str, seed: int) -> list[dict]:
    """One row for each step at which training's probe logged any of `OF_PROBE`."""
    rows = []
    for step in sorted({step for metric in OF_PROBE.values() for step in metrics.get(metric, ((), ()))[0]}):
        row = {"setting": setting, "seed": seed, "step": round(step)}
        row["updates"] = round(np.interp(step, *metrics["train/updates"], left=0))
        for name, metric in OF_PROBE.items():
            row[name] = dict(zip(*metrics.get(metric, ((), ())), strict=True)).get(step, float("nan"))
        for name, metric in BEFORE.items():  # the last one logged by then
            steps, values = metrics.get(metric, ((), ()))
            known = [value for at, value in zip(steps, values, strict=True) if at <= step]
            row[name] = known[-1] if known else float("nan")
        rows.append({name: f"{value:.4g}" if isinstance(value, float) else value for name, value in row.items()})
    return rows


def table(rows: list[dict], step: int) -> str:
    """Markdown: means over the seeds that have reached a step; a dash where one of them has no value."""
    lines = [
        "| setting | seeds | updates | recall | leakage | signal in y | nats of x | nats of y | picture | return |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for setting in dict.fromkeys(row["setting"] for row in rows):
        there = [row for row in rows if row["setting"] == setting and row["step"] == step]
        if there:
            means = []
            for name in ("updates", *OF_PROBE, *BEFORE):
                mean = np.mean([float(row[name]) for row in there])
                digits = 0 if name in ("updates", "return") else 1 if name in ("nats_y", "picture") else 2
                means.append("-" if np.isnan(mean) else f"{mean:,.{digits}f}")
            lines.append(f"| {setting} | {len(there)} | {' | '.join(means)} |")
    return "\n".join(lines)


def main() -> None:
    """Write the tables of the runs that the command line names."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--out", type=Path, default=Path("results/tuning"))
    parser.add_argument(
        "--steps", type=lambda text: [int(step) for step in text.split(",")], help="of the table: 17000,29000"
    )
    args = parser.parse_args()
    rows = []
    for path in sorted(find_runs([args.folder])):
        run = read_run(path)
        rows += rows_of(run.metrics, path.name.partition("-")[2] or path.name, run.seed or 0)  # seed=0-NAME
    if not rows:
        raise UserError(f"No run in {args.folder} has logged a probe yet.")
    args.out.mkdir(parents=True, exist_ok=True)
    write_csv(args.out / "runs.csv", rows)
    steps = args.steps or sorted({row["step"] for row in rows})
    text = "\n\n".join(f"At step {step:,}:\n\n{table(rows, step)}" for step in steps)
    (args.out / "table.md").write_text(text + "\n")
    print(text)


if __name__ == "__main__":
    try:
        main()
    except UserError as error:
        sys.exit(str(error))
