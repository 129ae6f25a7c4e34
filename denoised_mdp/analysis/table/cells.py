"""Sort runs into cells (task, distractors) and methods, and refuse runs that cannot be compared."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from denoised_mdp.analysis.report.data import RunData
from denoised_mdp.config import as_tree
from denoised_mdp.config.choices import all_options, unknown
from denoised_mdp.config.compare import differences_but_seed, key_of_difference
from denoised_mdp.config.compose import flatten
from denoised_mdp.config.effect import unused
from denoised_mdp.config.schema import Config
from denoised_mdp.config.validate import as_text
from denoised_mdp.errors import UserError

PAPER_VARIANTS = (
    (),
    ("video_background",),
    ("video_background", "noisy_sensor"),
    ("video_background", "camera_jitter"),
)
"""rows of the paper's Table 5.1, in its order"""
PROTOCOL = ("env.episode_steps", "env.reward", "env.quality", "env.clips", "train.eval_episodes")
"""what two methods must share on a task, besides all options of the distractors; picture sizes may differ"""
BY = ("model.name", "policy.name")
"""options that define a method"""

Cell = tuple[str, str]
"""task, distractors"""


@dataclass
class Entry:
    """One run and its score, which is nan if the run was not evaluated at the budget."""

    run: RunData
    cell: Cell
    method: str
    score: float


@dataclass
class Table:
    """All runs, by cell and method."""

    entries: list[Entry]
    budget: int
    """environment steps at which runs are scored"""
    tasks: list[str] = field(default_factory=list)
    variants: list[str] = field(default_factory=list)
    methods: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    """one line for each cell and method without some seeds, and for each run that was not evaluated at the budget"""

    def runs(self, method: str) -> list[RunData]:
        """All runs of a method."""
        return [entry.run for entry in self.entries if entry.method == method]

    def group(self, cell: Cell, method: str) -> list[Entry]:
        """The runs of a method in a cell, with a score or not."""
        return [entry for entry in self.entries if (entry.cell, entry.method) == (cell, method)]

    def scores(self, method: str, variant: str | None = None) -> list[np.ndarray] | None:
        """Scores [runs] in each cell with these distractors (None: all cells); None if a cell has no score."""
        known = {entry.cell for entry in self.entries}
        cells = [(t, v) for v in self.variants if variant in (None, v) for t in self.tasks if (t, v) in known]
        found = [np.array([e.score for e in self.group(cell, method) if e.score == e.score]) for cell in cells]
        return found if all(len(scores) for scores in found) else None


def make_table(runs: Sequence[RunData], step: int | None = None, by: Sequence[str] = BY) -> Table:
    """Sort runs into a table.

    Args:
        runs: all with a readable configuration.
        step: score every run there instead of at its end.
        by: dotted keys of the options whose values name a method.

    Raises:
        UserError: runs of different budgets, protocols or settings would be mixed.
    """
    for run in runs:
        if run.config is None:
            raise UserError(f"{run.path}: {run.problems[0]} Or leave this run out.")
    evaluated = [run for run in runs if "eval/return" in run.metrics]
    budget = step or _one_budget(evaluated or runs)
    entries = [Entry(run, _cell(run.config), _method(run, by), _logged(run, "eval/return", budget)) for run in runs]
    first: dict[tuple, Entry] = {}
    for entry in entries:
        if "eval/return" not in entry.run.metrics:  # e.g. a run that failed early: listed as missing
            continue
        _refuse_other_protocol(first.setdefault(entry.cell, entry), entry, budget)
        _refuse_other_settings(first.setdefault((entry.cell, entry.method), entry), entry, by)
        same = first.setdefault((entry.cell, entry.method, entry.run.config.seed), entry)
        if same is not entry:
            raise UserError(
                f"{_pair(same, entry)} have one method and one seed: they are no two samples. Leave one out."
            )
    table = Table(entries, budget)
    table.tasks = sorted({entry.cell[0] for entry in entries})
    table.methods = sorted({entry.method for entry in entries})
    order = [variant_name(names) for names in PAPER_VARIANTS]
    variants = {entry.cell[1] for entry in entries}
    table.variants = sorted(variants, key=lambda name: (order.index(name) if name in order else len(order), name))
    table.missing = _missing(table)
    return table


def check_keys(by: Sequence[str]) -> None:
    """Raise UserError for a key that no run can have. A run's model may have latents that no table here has."""
    for key in by:
        if not key:
            raise UserError(f"--by {','.join(by)}: name options, such as {','.join(BY)}.")
        if key not in all_options() and not key.startswith("model."):
            raise UserError(f"--by {key}: {unknown(key)}")


def variant_name(distractors: Sequence[str]) -> str:
    """The distractors of a run, as the name of a row."""
    return " + ".join(name.replace("_", " ") for name in distractors) or "noiseless"


def _cell(config: Config) -> Cell:
    return config.env.task, variant_name(list(config.distractors))


def _method(run: RunData, by: Sequence[str]) -> str:
    options = run.options() | dict(zip(BY, run.config.method, strict=True))
    for key in by:
        if key not in options and key not in all_options():  # else other models or agents have it
            raise UserError(f"--by {key}: {unknown(key)}")
    known = [key for key in by if options.get(key)]
    return " · ".join(options[key] if key in BY else f"{key.rpartition('.')[2]}={options[key]}" for key in known)


def _one_budget(runs: Sequence[RunData]) -> int:
    budgets = {run.config.train.total_steps: run for run in runs}
    if len(budgets) > 1:
        texts = (f"{run.path} {steps:,}" for steps, run in sorted(budgets.items()))
        raise UserError(
            f"The runs have different lengths ({', '.join(texts)} steps). Name the step that counts with --step, or"
            " leave some out."
        )
    return next(iter(budgets))


def is_at(run: RunData, step: float | np.ndarray, budget: int) -> bool | np.ndarray:
    """Whether a step is the budget's: with several environments, the end of the turn that reached the budget."""
    return (step >= budget) & (step < budget + run.config.turn_steps)


def _logged(run: RunData, name: str, budget: int) -> float:
    """A metric at the budget; nan without one."""
    steps, values = run.metrics.get(name, (np.empty(0), np.empty(0)))
    at = is_at(run, steps, budget)
    return float(values[at][-1]) if at.any() else float("nan")


def _pair(one: Entry, other: Entry) -> str:
    return f"{one.run.path} and {other.run.path} ({', '.join(one.cell)})"


def _refuse_other_protocol(one: Entry, other: Entry, budget: int) -> None:
    """Refuse two runs in a cell that were evaluated differently, whatever their methods."""
    counts = [_logged(entry.run, "eval/episodes", budget) for entry in (one, other)]
    if np.isfinite(counts).all() and counts[0] != counts[1]:  # as logged: the option may have changed since
        texts = " and ".join(f"{count:,.0f}" for count in counts)
        raise UserError(
            f"{_pair(one, other)} were evaluated differently at step {budget:,}: by {texts} episodes. Leave one out."
        )
    options = [dict(flatten(as_tree(entry.run.config))) for entry in (one, other)]
    ignored = _unused(one, other)
    for key in (key for key in {**options[0], **options[1]} if key not in ignored):
        values = [as_text(side.get(key, "absent")) for side in options]
        if values[0] != values[1] and (key in PROTOCOL or key.startswith("distractors.")):
            raise UserError(
                f"{_pair(one, other)} were evaluated differently: {key} is {values[0]} and {values[1]}. Leave one out."
            )


def _refuse_other_settings(one: Entry, other: Entry, by: Sequence[str]) -> None:
    """Refuse two runs of a method in a cell that differ, besides the seed, in an option that affects learning."""
    found = differences_but_seed(one.run.config, other.run.config)
    ignored = _unused(one, other)
    if changed := [line for line in found if key_of_difference(line, one.run.config) not in ignored]:
        more = ",".join((*by, key_of_difference(changed[0], one.run.config)))
        raise UserError(
            f"{_pair(one, other)} are both '{one.method}', but differ in {changed[0]}. Tell them apart with"
            f" --by {more}, or leave one out."
        )


def _unused(one: Entry, other: Entry) -> set[str]:
    """Options that neither run uses, except those of evaluation: they count even if a run is no longer evaluated."""
    both = unused(one.run.config).keys() & unused(other.run.config).keys()
    return {key for key in both if not key.startswith("train.eval_")}


def _nearby(run: RunData, budget: int) -> str:
    """Tell the last evaluation before the budget, the first after it, and the last logged step."""
    steps, _ = run.metrics.get("eval/return", (np.empty(0), None))
    near = [*steps[steps < budget][-1:], *steps[steps > budget][:1]]
    evaluated = f"evaluated at {' and '.join(f'{step:,.0f}' for step in near)}; " if near else ""
    return f"{evaluated}logged until {run.step:,}"


def _missing(table: Table) -> list[str]:
    """Lines about missing scores. Every method is expected in every cell with every seed that some run has."""
    seeds = sorted({entry.run.seed for entry in table.entries})
    lines = []
    for cell in sorted({entry.cell for entry in table.entries}):
        for method in table.methods:
            group = table.group(cell, method)
            absent = [seed for seed in seeds if seed not in [entry.run.seed for entry in group]]
            if absent:
                lines.append(f"{method}, {cell[0]}, {cell[1]}: no run with seed {', '.join(map(str, absent))}")
            for entry in group:
                if entry.score != entry.score:
                    reached = f"not evaluated at step {table.budget:,} ({_nearby(entry.run, table.budget)})"
                    lines.append(f"{method}, {cell[0]}, {cell[1]}: {entry.run.path} {reached}")
    return lines
