"""The ring: methods side by side on the same pictures, what each returns and what its representation holds.

    denoised-mdp train sweep=ring               # trains what is missing, in runs/ring
    python scripts/reproduce/ring.py            # measures what is finished and has no row yet, then writes results/ring

Runs that are still training wait for the next time, so the command can be repeated while a sweep runs. Measuring a run
takes about a minute of one core. No seed is left out, and runs of the grid without a row are listed. A run is measured
as by evidence.py with --size small: `probe factors` on 20 episodes of 150 actions, which recovers less than the
default, `probe invariance` on 4 episodes in 3 worlds of 100 actions, and 10 held-out episodes with the clips of
training and with unseen ones. Random actions are those with which each run began.

runs.csv has one row per run, curves.csv what was logged during training. From these two come summary.json (numbers per
seed), intervals.json, table.md and ring.png.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import evidence
import evidence_numbers as numbers
import evidence_show as show
import numpy as np
from common import read
from evidence_arms import key_of

from denoised_mdp.analysis.results import write_json, write_whole
from denoised_mdp.analysis.status import statuses
from denoised_mdp.analysis.table.statistics import iqm, mean
from denoised_mdp.analysis.table.write import markdown, share_text, with_interval
from denoised_mdp.cli.grid import read_grid
from denoised_mdp.config import load_config
from denoised_mdp.errors import UserError

Key = tuple[str, str, str, str]
"""task, variant, method, seed"""
ERRORS = 3
"""standard errors by which a run's return must exceed that of random actions to be better"""
DRAWN = ("return", "recall", "leakage", "action_change")
COLUMNS = {
    "return": "return",
    "return_unseen": "return, unseen clips",
    "recall": "recall",
    "recall_untrained": "recall, untrained",
    "leakage": "leakage",
    "action_change": "action change",
    "invariance": "invariance",
    "cpu_hours": "core hours",
}
"""columns of the table of a cell: metric -> head"""
NOTES = (
    f"Mean over seeds [95 % interval], from three runs on. {numbers.HOW} IQM: mean of the middle half of the"
    " runs of all distractors. A dash: not known, or not defined. (2 of 3): of so many runs.",
    f"Above random: runs whose mean return of 10 episodes exceeds that of the run's random actions by {ERRORS} standard"
    " errors of the difference.",
    "Recall and leakage: R² of the signal and of the noise from what the policy sees, by ridge regression. Untrained:"
    " the same net with initial weights on the same episodes; its memory knows the actions. Action change: mean change"
    " of an action under other distractors (range 2). Invariance: distance under other distractors, divided by that"
    " between states. Parameters: of all that acts or learns, target nets left out. Core hours: CPU hours of the"
    " learner's process; of runs that logged none, wall-clock hours times threads.",
)


def expected(sweep: str) -> list[Key]:
    """Keys of all runs of a grid, in its order."""
    return [key_of(load_config([*job.overrides]), ()) for job in read_grid([f"sweep={sweep}"])[1]]


def in_order(found: Sequence[Key], keys: Sequence[Key]) -> list[Key]:
    """Keys of runs sorted by the grid's tasks, distractors and methods, then by seed; those that it lacks come last."""
    axes = [list(dict.fromkeys(names)) for names in list(zip(*keys, strict=True))[:3]]

    def place(key: Key) -> tuple:
        listed = zip(axes, key[:3], strict=True)
        return *((names.index(name) if name in names else len(names), name) for names, name in listed), int(key[3])

    return sorted(found, key=place)


def missing(rows: Sequence[numbers.Row], keys: Sequence[Key]) -> list[str]:
    """A line for each method and cell of the grid that lacks seeds, for tasks that have a row."""
    known, tasks = {numbers.run_of(row) for row in rows}, {row["task"] for row in rows}
    absent: dict[tuple[str, ...], list[str]] = {}
    for *where, seed in in_order(keys, keys):
        if (*where, seed) not in known and where[0] in tasks:
            absent.setdefault(tuple(where), []).append(seed)
    return [f"- {', '.join(where)}: seed {', '.join(seeds)}" for where, seeds in absent.items()]


def above_random(runs: Sequence[numbers.Row]) -> str:
    """How many runs are better than their random actions (see `ERRORS`), out of those whose errors are known."""
    own, usual, *errors = (numbers.values(runs, name) for name in ("return", "random", "return_error", "random_error"))
    beyond = own - usual - ERRORS * np.hypot(*errors)
    return f"{np.sum(beyond > 0)} of {np.isfinite(beyond).sum()}"


def scores(cells: Sequence[Sequence[numbers.Row]], metric: str) -> list[np.ndarray] | None:
    """A metric's known values in each cell; None if one cell has none."""
    found = [numbers.known(runs, metric) for runs in cells]
    return found if found and all(map(len, found)) else None


def cell_text(cells: Sequence[Sequence[numbers.Row]], metric: str, statistic: Callable[..., np.ndarray] = mean) -> str:
    """A metric's mean, or another statistic, over cells of runs, with its interval; of how many runs, if not of all."""
    found = scores(cells, metric)
    limits = numbers.limits_of(metric, found or [])
    text = with_interval(statistic, found, digits=numbers.digits_of(metric), within=limits)
    return text + (share_text(sum(map(len, found)), sum(map(len, cells))) if found else "")


def cell_table(arms: numbers.Arms) -> list[str]:
    """A table with a row for random actions and one for each method, all on the same task and distractors."""
    columns = {m: head for m, head in COLUMNS.items() if any(len(numbers.known(runs, m)) for runs in arms.values())}
    everyone = [run for runs in arms.values() for run in runs]
    chance = cell_text([first_of_seeds(everyone)], "random")
    lines = [["", "seeds", "above random", *columns.values()]]
    lines.append(["random actions", "", "", *(chance if metric == "return" else "" for metric in columns)])
    for arm, runs in arms.items():
        texts = [cell_text([runs], metric) for metric in columns]
        lines.append([arm, ", ".join(row["seed"] for row in runs), above_random(runs), *texts])
    return markdown(lines)


def first_of_seeds(runs: Sequence[numbers.Row]) -> list[numbers.Row]:
    """One run for each seed: all runs of a seed began with the same random actions."""
    return list({row["seed"]: row for row in reversed(runs)}.values())


def overview(task: str, cells: Mapping[tuple[str, str], numbers.Arms]) -> list[str]:
    """A table with a row for each method on a task: returns under all distractors, and cost."""
    variants = [variant for one, variant in cells if one == task]
    arms = dict.fromkeys(arm for variant in variants for arm in cells[task, variant])
    lines = [["", *variants, "IQM", "above random", "parameters", "core hours"]]
    for arm in arms:
        groups = [cells[task, variant].get(arm, []) for variant in variants]
        runs = [run for group in groups for run in group]
        returns = [cell_text([group], "return") for group in groups]
        sizes = sorted({f"{int(size):,}" for size in numbers.known(runs, "parameters")})
        hours = cell_text([runs], "cpu_hours")
        whole = cell_text(groups, "return", iqm)
        lines.append([arm, *returns, whole, above_random(runs), " to ".join(sizes) or "-", hours])
    return markdown(lines)


def table(rows: Sequence[numbers.Row], absent: Sequence[str]) -> str:
    """All tables as one page of Markdown."""
    cells, lines = numbers.cells(rows), [line for note in NOTES for line in (note, "")]
    steps = sorted({int(row["step"]) for row in rows})
    lines += [f"Runs: {len(rows)}, of {' and '.join(f'{step:,}' for step in steps)} environment steps.", ""]
    for task in dict.fromkeys(task for task, _ in cells):
        lines += [f"## {task}: returns and cost", "", *overview(task, cells), ""]
        for (one, variant), arms in cells.items():
            lines += [f"## {task}, {variant}", "", *cell_table(arms), ""] if one == task else []
    return "\n".join([*lines, "## Missing", "", *(absent or ["- nothing"]), ""])


def over_distractors(rows: Sequence[numbers.Row]) -> dict[str, dict[str, dict[str, dict[str, dict[str, float]]]]]:
    """task -> method -> metric -> mean and IQM over all its distractors, with intervals."""
    tree: dict = {}
    cells = numbers.cells(rows)
    for task, arm in dict.fromkeys((row["task"], row["arm"]) for row in rows):
        groups = [arms.get(arm, []) for (one, _), arms in cells.items() if one == task]
        found = {metric: scores(groups, metric) for metric in COLUMNS}
        tree.setdefault(task, {})[arm] = {
            metric: numbers.means(own, metric) for metric, own in found.items() if own is not None
        }
    return tree


def write(rows: Sequence[numbers.Row], keys: Sequence[Key], out: Path) -> None:
    """Write all files computed from the rows; print the table."""
    named = {numbers.run_of(row): row for row in rows}
    rows = [named[key] for key in in_order(list(named), keys)]
    text = table(rows, missing(rows, keys))
    print(text)
    write_whole(out / "table.md", text)
    write_json(out / "summary.json", numbers.summary(rows))
    write_json(out / "intervals.json", numbers.intervals(rows) | {"over_distractors": over_distractors(rows)})
    print(show.draw_arms(rows, out / "ring.png", DRAWN))


def main() -> None:
    """Measure what is finished, then write what follows from all rows."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("runs", type=Path, nargs="*", metavar="FOLDER", help="default: runs/ring, if there")
    parser.add_argument("--out", type=Path, default=Path("results/ring"), help="default: %(default)s")
    parser.add_argument("--sweep", default="ring", help="grid whose runs are expected; default: %(default)s")
    parser.add_argument("--size", default="small", choices=evidence.SIZES, help="default: %(default)s")
    given = parser.parse_args()
    try:
        runs = given.runs or [folder for folder in [Path("runs/ring")] if folder.is_dir()]
        finished = [run.path for run in (statuses(runs) if runs else []) if run.state == "finished"]
        if finished:
            asked = evidence.measured_at(given.size)
            del asked["best"]  # runs this short have few snapshots
            evidence.add(finished, given.out, asked)
        rows = numbers.with_late(read(given.out / "runs.csv"), read(given.out / "curves.csv"))
        if not rows:
            raise UserError("no run is finished yet: repeat the command later")
        write(rows, expected(given.sweep), given.out)
    except UserError as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
