"""What trained runs are worth: returns, what x and y hold, how actions change; over seeds, with intervals.

    python scripts/reproduce/evidence.py runs/evidence              # every run in there; measures what is missing
    python scripts/reproduce/evidence.py runs/evidence/walker*      # some; the rows of the others stay
    python scripts/reproduce/evidence.py runs/evidence --step 100000  # at this checkpoint or snapshot of each run
    python scripts/reproduce/evidence.py runs/evidence --step best    # at the one whose evaluation returned most
    python scripts/reproduce/evidence.py                            # only summary, tables and pictures, from the rows

A run is a folder written by `denoised-mdp train`. It is measured at its newest checkpoint by `denoised-mdp probe
factors` and `denoised-mdp probe invariance`, and plays held-out episodes with the clips of training and with unseen
ones. The weights with the highest evaluation return until then play 20 others, which did not select them, if the
weights of all evaluations were kept. Results lie in RUN/probes and are not computed again for the same checkpoint. So
the command can be repeated while runs train, and several can measure different runs at once, each into its --out.

runs.csv has one row per run, curves.csv what was logged during training. From these two come the mean of the last four
evaluations, summary.json (numbers per seed), intervals.json, table.md and the pictures. No seed is left out. Runs of
one arm that differ in more than the seed are refused. An arm whose runs would not all be measured at the same step with
the same options is left as it is, with a line that says so.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import evidence_show as show
import numpy as np
from common import others, read
from evidence_arms import arms_measured_otherwise, config_of, key_of, overrides_of, refuse_mixtures
from evidence_measures import SIZES, asked_of, measure, measured_at
from evidence_numbers import KEY

from denoised_mdp.analysis.factor_tables import from_tree
from denoised_mdp.analysis.factors import UNTRAINED
from denoised_mdp.analysis.probe import Options
from denoised_mdp.analysis.report.data import RunData, read_run
from denoised_mdp.analysis.results import make_folder, number_of, write_csv
from denoised_mdp.analysis.table.write import core_hours, parameters
from denoised_mdp.errors import UserError
from denoised_mdp.evaluation import standard_error
from denoised_mdp.options import BEST
from denoised_mdp.run.find import find_runs

LOGGED = {"return": "eval/return", "recall": "probe/signal_from_{seen}", "leakage": "probe/noise_from_{seen}"}
"""name of a curve -> the metric that training logs"""


def row_of(run: RunData, key: Sequence[str], step: int, results: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """A run's row of runs.csv; nan where a number is not known."""
    matrix, played = from_tree(results["factors"]), results["returns"]["returns"]
    best = results.get("best", {}).get("returns", {})
    random = run.metrics.get("random/return", ((), np.full(1, math.nan)))[1]
    invariant = results.get("invariance", {"distances": {}})
    before = invariant.get("untrained", {})

    def r_squared(part: str, source: str) -> float:
        return matrix.summary("ridge", part, source).value

    def ratio_of(latent: str) -> float:
        return number_of(invariant["distances"].get(latent, {}).get("ratio"))

    def logged(name: str) -> float:
        return at_step(run, name, step)

    return {
        "run": run.name,
        **dict(zip(KEY, key, strict=True)),
        "step": step,
        "updates": round(np.nan_to_num(logged("train/updates"))),
        "cpu_hours": core_hours(run) * min(1.0, step / max(run.step, 1)),
        "parameters": parameters(run) or math.nan,
        "random": float(random.mean()),
        "random_error": standard_error(random),
        "return": mean_of(played, "train"),
        "return_error": standard_error(played["train"]),
        "return_unseen": mean_of(played, "test"),
        "return_best": mean_of(best, "train"),
        "return_best_unseen": mean_of(best, "test"),
        "recall": r_squared(matrix.seen, "signal"),
        "leakage": r_squared(matrix.seen, "noise"),
        "recall_untrained": r_squared(UNTRAINED, "signal"),
        "leakage_untrained": r_squared(UNTRAINED, "noise"),
        "signal_from_y": r_squared("y", "signal"),
        "noise_from_y": r_squared("y", "noise"),
        "action_change": number_of(invariant.get("action_change")),
        "action_change_untrained": number_of(before.get("action_change")),
        "action_ratio": ratio_of("action"),
        "action_ratio_untrained": number_of(before.get("action_ratio")),
        "invariance": ratio_of(matrix.seen),
        "invariance_y": 1 / (ratio_of("y") or math.nan),
        "nats_x": logged("model/kl_x"),
        "nats_y": logged("model/kl_y"),
        "overrides": overrides_of(run.config),
    }


def mean_of(played: Mapping[str, Sequence[float]], split: str) -> float:
    """The mean return with the clips of a split; nan if it was not played."""
    return float(np.mean(played[split])) if split in played else math.nan


def at_step(run: RunData, metric: str, step: float) -> float:
    """A metric's value at a step, linearly interpolated; nan before the first logged step.

    After the last logged step, its value holds: the last checkpoint follows within one interval of logging.
    """
    return float(np.interp(step, *run.metrics[metric], math.nan)) if metric in run.metrics else math.nan


def curve_rows(run: RunData, key: Sequence[str], seen: str) -> list[dict[str, Any]]:
    """A run's rows of curves.csv."""
    named = dict(zip(KEY, key, strict=True))
    rows = []
    for name, metric in LOGGED.items():
        for step, value in zip(*run.metrics.get(metric.format(seen=seen), ((), ())), strict=True):
            updates = round(np.interp(step, *run.metrics["train/updates"], left=0))
            rows.append(named | {"metric": name, "step": round(step), "updates": updates, "value": float(value)})
    return rows


def replace_rows(path: Path, rows: Sequence[dict[str, Any]]) -> None:
    """Write rows, with five digits, in place of a CSV file's earlier rows of the same runs; rows of other runs stay."""
    kept = others(path, rows, KEY)
    if not kept and not rows:  # a run that was never evaluated has no curves
        return
    fresh = [{k: f"{v:.5g}" if isinstance(v, float) and v == v else v for k, v in row.items()} for row in rows]
    write_csv(path, sorted([*kept, *fresh], key=lambda row: (*(row[name] for name in KEY[:3]), int(row["seed"]))))


def add(
    folders: Sequence[Path],
    out: Path,
    options: dict[str, Options],
    by: Sequence[str] = (),
    step: int | str | None = None,
) -> None:
    """Measure the runs in some folders and write their rows, one run after the other.

    step: of the checkpoint, or "best"; None: the newest of each. by: options that tell arms apart, see `arm_of`.

    Raises:
        UserError: a configuration cannot be read; or these runs and those with rows already cannot be compared.
    """
    runs = [read_run(path) for path in find_runs(folders)]
    for run in runs:
        if run.config is None:
            raise UserError(f"{run.path}: {run.problems[0]} Leave it out, or mend it.")
    named = [(str(run.path), run.config) for run in runs]
    ours = [key_of(config, by) for _, config in named]
    rows = read(out / "runs.csv")
    kept = [row for row in rows if tuple(row[name] for name in KEY) not in ours]
    refuse_mixtures([*named, *((f"{out}: {row['run']}", config_of(row)) for row in kept)], by)
    make_folder(out)
    planned = []
    for run in runs:
        try:
            asked = asked_of(run, options, step)
        except UserError as error:
            print(error, flush=True)
            continue
        at = BEST if step == BEST else f"step {asked['factors'].checkpoint}"
        planned.append((run, key_of(run.config, by), asked, f"{at} {asked['factors'].variant()}"))
    replaced = [key for _, key, *_ in planned]
    stay = [row for row in rows if tuple(row[name] for name in KEY) not in replaced]
    mixed = arms_measured_otherwise([(str(run.path), key, measured) for run, key, _, measured in planned], stay)
    for reason in mixed.values():
        print(reason, flush=True)
    for run, key, asked, measured in planned:
        if key[:3] in mixed:
            continue
        at, results = asked["factors"].checkpoint, measure(run.path, asked)
        row = row_of(run, key, at, results) | {"measured": measured}
        replace_rows(out / "curves.csv", curve_rows(run, key, results["factors"]["seen"]))
        replace_rows(out / "runs.csv", [row])  # last: a run that is in there is complete
        numbers = ", ".join(f"{name.replace('_', ' ')} {row[name]:.3g}" for name in ("return", "recall", "leakage"))
        print(f"{' '.join(key)}: step {at:,}, {numbers}", flush=True)


def step_or_best(text: str) -> int | str:
    """Parse a step number or best, for argparse."""
    return text if text == BEST else int(text)


def main() -> None:
    """Measure what is missing, then write what follows from all rows."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("runs", type=Path, nargs="*", metavar="FOLDER", help="folder of a run or of runs")
    parser.add_argument("--out", type=Path, default=Path("results/evidence"), help="default: %(default)s")
    parser.add_argument(
        "--step",
        type=step_or_best,
        help="measure there, or where training's evaluation returned most: best; default: the newest checkpoint",
    )
    parser.add_argument("--by", default="", help="options that tell arms apart, besides the model: a.b,c.d")
    parser.add_argument("--behaviour", choices=("mixed", "random", "agent"), default="mixed", help="of probe factors")
    parser.add_argument("--size", default="full", choices=SIZES, help="how much to measure; default: %(default)s")
    given = parser.parse_args()
    try:
        options = measured_at(given.size, given.behaviour)
        add(given.runs, given.out, options, given.by.split(",") if given.by else [], given.step)
        show.write(read(given.out / "runs.csv"), read(given.out / "curves.csv"), given.out)
    except UserError as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
