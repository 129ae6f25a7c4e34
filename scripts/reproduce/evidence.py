"""What trained runs are worth: returns, what x and y hold, how actions change; over seeds, with intervals.

    python scripts/reproduce/evidence.py runs/evidence              # every run in there; measures what is missing
    python scripts/reproduce/evidence.py runs/evidence/walker*      # some; the rows of the others stay
    python scripts/reproduce/evidence.py runs/evidence --step 100000  # at this checkpoint or snapshot of each run
    python scripts/reproduce/evidence.py runs/evidence --step best    # at the one whose evaluation returned most
    python scripts/reproduce/evidence.py                            # only summary, tables and pictures, from the rows

A run is what `denoised-mdp train` leaves. It is measured at its newest checkpoint by `denoised-mdp probe factors` and
`denoised-mdp probe invariance`, and plays held-out episodes with the clips of training and with unseen ones. All
results lie in RUN/probes; one that is there for the checkpoint is not made again. So the command can be repeated while
runs are trained, and several can measure different runs at once, each into its own --out.

runs.csv has one row per run, curves.csv what was logged during training. From these two come summary.json (numbers per
seed), intervals.json, table.md and the pictures. No seed is left out. Runs of one arm that differ in more than the seed
are refused.
"""

from __future__ import annotations

import argparse
import dataclasses
import math
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import evidence_show as show
import numpy as np
from common import read
from evidence_arms import config_of, key_of, overrides_of, refuse_mixtures

from denoised_mdp.analysis.factor_tables import from_tree
from denoised_mdp.analysis.factors import UNTRAINED
from denoised_mdp.analysis.probe import Options, Probe
from denoised_mdp.analysis.probes import PROBES, factors, invariance
from denoised_mdp.analysis.report.data import RunData, find_runs, read_run
from denoised_mdp.analysis.report.parts import number_of
from denoised_mdp.analysis.results import make_folder, subjects, write_csv, write_json
from denoised_mdp.analysis.table.write import core_hours, parameters
from denoised_mdp.envs.options import DISTRACTORS
from denoised_mdp.errors import UserError
from denoised_mdp.options import BEST, option
from denoised_mdp.progress import shown
from denoised_mdp.run.checkpoint import list_steps
from denoised_mdp.run.environments import environment_maker
from denoised_mdp.run.folder import RunFolder
from denoised_mdp.run.state import best_step

KEY = ("task", "variant", "arm", "seed")
"""columns that name a run"""
LOGGED = {"return": "eval/return", "recall": "probe/signal_from_{seen}", "leakage": "probe/noise_from_{seen}"}
"""name of a curve -> the training's metric"""


@dataclasses.dataclass
class ReturnOptions(Options):
    """Options of `returns`."""

    episodes: int = option(10, "held-out episodes", low=1)
    after: int = option(0, "episodes to leave out before them: those by which a checkpoint was chosen", low=0)


def returns(runs: Sequence[Path], options: ReturnOptions) -> list[str]:
    """Play the episodes of `denoised-mdp evaluate` and write {split: [returns]}, with unseen clips if there are any."""
    from denoised_mdp.evaluation import evaluate, evaluation_seeds

    lines = []
    for subject in subjects(runs, options):
        config, seeds = subject.config, evaluation_seeds(subject.config.seed, options.episodes, options.after)
        clips = any(DISTRACTORS[name].shows_clips for name in config.distractors)
        played = {
            split: evaluate(subject.agent, environment_maker(config, split), seeds).returns
            for split in ("train", *(["test"] if clips else []))
        }
        path = f"{subject.stem('returns', options.output, options.variant())}.json"
        lines.append(f"  {write_json(path, subject.about('returns', options.measured()) | {'returns': played})}")
    return lines


MEASURES: dict[str, tuple[Probe, Options]] = {
    "factors": (PROBES["factors"], factors.Options()),
    "invariance": (PROBES["invariance"], invariance.Options(returns=0)),
    "returns": (Probe("returns of held-out episodes", returns), ReturnOptions()),
}
SIZES: dict[str, dict[str, dict[str, int]]] = {
    "full": {},
    "small": {"factors": {"episodes": 20, "steps": 150}, "invariance": {"episodes": 4, "worlds": 3, "steps": 100}},
    "least": {
        "factors": {"episodes": 6, "steps": 20},
        "invariance": {"episodes": 2, "worlds": 2, "steps": 10},
        "returns": {"episodes": 2},
    },
}
"""how much is measured: all of the probes' defaults, a minute or so for each run, as little as possible"""


def measured_at(size: str, behaviour: str = "mixed") -> dict[str, Options]:
    """The options of all `MEASURES` of one of the `SIZES`."""
    options = {name: dataclasses.replace(one, **SIZES[size].get(name, {})) for name, (_, one) in MEASURES.items()}
    return options | {"factors": dataclasses.replace(options["factors"], behaviour=behaviour)}


def measure(run: Path, step: int, options: dict[str, Options]) -> dict[str, dict[str, Any]]:
    """Results of all `MEASURES` of a run's checkpoint; makes those that are not in RUN/probes."""

    def known() -> dict[str, dict[str, Any]]:
        probes = read_run(run).probes
        trees = {(name, tree["step"]): tree for name in options for tree in probes.get(name, []) if fits(name, tree)}
        return {name: trees[name, step] for name in options if (name, step) in trees}

    def fits(name: str, tree: dict[str, Any]) -> bool:
        usual = type(options[name])().measured()  # for options that are newer than the result
        return usual | tree.get("options", {}) == options[name].measured()

    done = known()
    for name in options.keys() - done.keys():
        with shown():
            MEASURES[name][0].run([run], dataclasses.replace(options[name], checkpoint=step))
    return known()


def row_of(run: RunData, key: Sequence[str], step: int, results: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """A run's row of runs.csv; nan where it has no such number."""
    matrix, played = from_tree(results["factors"]), results["returns"]["returns"]
    random = run.metrics.get("random/return", ((), np.full(1, math.nan)))[1]
    invariant = results.get("invariance", {"distances": {}})

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
        "return": float(np.mean(played["train"])),
        "return_error": standard_error(played["train"]),
        "return_unseen": float(np.mean(played["test"])) if "test" in played else math.nan,
        "recall": r_squared(matrix.seen, "signal"),
        "leakage": r_squared(matrix.seen, "noise"),
        "recall_untrained": r_squared(UNTRAINED, "signal"),
        "leakage_untrained": r_squared(UNTRAINED, "noise"),
        "signal_from_y": r_squared("y", "signal"),
        "noise_from_y": r_squared("y", "noise"),
        "action_change": number_of(invariant.get("action_change")),
        "invariance": ratio_of(matrix.seen),
        "invariance_y": 1 / (ratio_of("y") or math.nan),
        "nats_x": logged("model/kl_x"),
        "nats_y": logged("model/kl_y"),
        "overrides": overrides_of(run.config),
    }


def standard_error(values: Sequence[float]) -> float:
    """Of the mean; nan for one value."""
    return float(np.std(values, ddof=1) / math.sqrt(len(values))) if len(values) > 1 else math.nan


def at_step(run: RunData, metric: str, step: float) -> float:
    """A metric's value at a step, between two logged ones linearly; nan if it was not logged."""
    return float(np.interp(step, *run.metrics[metric])) if metric in run.metrics else math.nan


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
    """Write rows to a CSV file instead of earlier ones of the same runs, with five digits; those of others stay."""
    ours = {tuple(str(row[name]) for name in KEY) for row in rows}
    blank = dict.fromkeys(rows[0] if rows else (), "")  # a column may be newer than a row that stays
    kept = [blank | row for row in read(path) if tuple(row[name] for name in KEY) not in ours]
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
        UserError: a configuration cannot be read; or these runs, and those that have rows already, cannot be compared.
    """
    runs = [read_run(path) for path in find_runs(folders)]
    for run in runs:
        if run.config is None:
            raise UserError(f"{run.path}: {run.problems[0]} Leave it out, or mend it.")
    named = [(str(run.path), run.config) for run in runs]
    ours = [key_of(config, by) for _, config in named]
    kept = [row for row in read(out / "runs.csv") if tuple(row[name] for name in KEY) not in ours]
    refuse_mixtures([*named, *((f"{out}: {row['run']}", config_of(row)) for row in kept)], by)
    make_folder(out)
    for run in runs:
        folder = RunFolder(run.path)
        try:
            at = best_step(folder) if step == BEST else step or max(list_steps(folder.checkpoints), default=0)
        except UserError as error:
            print(error, flush=True)
            continue
        if at not in [*list_steps(folder.checkpoints), *list_steps(folder.snapshots)]:
            print(f"{run.path}: no checkpoint{f' of step {step:,}' if step else ' yet'}", flush=True)
            continue
        asked = {name: one for name, one in options.items() if name != "invariance" or run.config.distractors}
        if step == BEST:
            asked["returns"] = dataclasses.replace(asked["returns"], after=run.config.train.eval_episodes)
        results, key = measure(run.path, at, asked), key_of(run.config, by)
        row = row_of(run, key, at, results)
        replace_rows(out / "curves.csv", curve_rows(run, key, results["factors"]["seen"]))
        replace_rows(out / "runs.csv", [row])  # last: a run that is in there is whole
        numbers = ", ".join(f"{name.replace('_', ' ')} {row[name]:.3g}" for name in ("return", "recall", "leakage"))
        print(f"{' '.join(key)}: step {at:,}, {numbers}", flush=True)


def step_or_best(text: str) -> int | str:
    """Parse a number of a step, or best, for argparse."""
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
