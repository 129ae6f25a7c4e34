"""Writes the tables of README.md and docs/denoising.md from the rows in results: no number is copied by hand.

    python scripts/reproduce/document_tables.py    # after evidence.py

A table lies between two comments, ``<!-- table NAME: ... -->`` and ``<!-- end -->``, and NAME is one of `TABLES`.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from common import read
from evidence_numbers import METRICS, Row, digits_of, known, limits_of, values, with_late

from denoised_mdp.analysis.results import write_whole
from denoised_mdp.analysis.table.statistics import mean
from denoised_mdp.analysis.table.write import markdown, with_interval
from denoised_mdp.errors import UserError

ROOT = Path(__file__).parents[2]
DOCUMENTS = ("README.md", "docs/denoising.md")
BLOCK = re.compile(r"(<!-- table (\w+):[^\n]*-->\n).*?(<!-- end -->)", re.DOTALL)


@dataclass(frozen=True)
class Column:
    """The runs of one arm: what the head of the column says, the folder in results, and their task, variant and arm."""

    head: str
    folder: str
    task: str
    variant: str
    arm: str

    def rows(self) -> list[Row]:
        """Their rows, in order of the seeds."""
        folder = ROOT / "results" / self.folder
        found = with_late(read(folder / "runs.csv"), read(folder / "curves.csv"))
        wanted = (self.task, self.variant, self.arm)
        return [row for row in found if (row["task"], row["variant"], row["arm"]) == wanted]


@dataclass(frozen=True)
class Table:
    """Metrics (by their names in `METRICS`: what the line is called, or "" for the usual) of some columns."""

    columns: Sequence[Column]
    metrics: dict[str, str]
    intervals: bool = False

    def lines(self) -> list[str]:
        """The table in Markdown."""
        found = [(column.head, rows) for column in self.columns if (rows := column.rows())]
        arms = [rows for _, rows in found]
        body = [["seeds", *(", ".join(row["seed"] for row in rows) for rows in arms)]]
        for metric, label in self.metrics.items():
            texts = [cell(rows, metric, self.intervals) for rows in arms]
            body += [[label or METRICS[metric], *texts]] if set(texts) != {"-"} else []
        what = "mean [95 % interval] (each seed)" if self.intervals else "mean (each seed)"
        return markdown([[what, *(head for head, _ in found)], *body])


def cell(rows: Sequence[Row], metric: str, intervals: bool) -> str:
    """Mean, on demand its 95 % interval, and each seed's value; a dash where no run has one."""
    own, digits = known(rows, metric), digits_of(metric)
    if not len(own):
        return "-"
    whole = f"{own.mean():.{digits}f}"
    if intervals:
        whole = with_interval(mean, [own], digits=digits, within=limits_of(metric))
    each = ("-" if value != value else f"{value:.{digits}f}" for value in values(rows, metric))
    return f"{whole} ({', '.join(each)})" if len(rows) > 1 else whole


def strong(task: str) -> list[Column]:
    """Columns of a task under a background at full strength, and of 2b without one."""
    return [
        Column("2b", "evidence", task, "video_background", "2b"),
        Column("Dreamer", "evidence", task, "video_background", "dreamer"),
        Column("2b without distractors, constant rates", "full_strength", task, "noiseless", "2b"),
    ]


TASKS = ("cheetah_run", "walker_walk")
QUICKSTART = Column("quickstart, 2b", "quickstart", "cheetah_run", "video_background_0.3", "2b")
RETURNS = {
    "return": "return at the end, 10 held-out episodes",
    "return_unseen": "the same with unseen backgrounds",
    "return_late": "mean of the last four evaluations",
    "return_best": "best weights, 20 other episodes",
    "return_best_unseen": "the same with unseen backgrounds",
}
LATENTS = {
    "recall": "signal recall (high is good)",
    "recall_untrained": "signal recall before training",
    "leakage": "leakage (low is good)",
    "leakage_untrained": "leakage before training",
    "noise_from_y": "R² of the background from y (high is good)",
    "signal_from_y": "R² of the body from y (low is good)",
    "action_change": "action change under another background (low is good)",
    "invariance": "distance of x, other distractors / other states (low is good)",
    "invariance_y": "distance of y, other states / other distractors (low is good)",
    "nats_x": "nats per step of x",
    "nats_y": "nats per step of y",
}
EVERYTHING = {"random": "return of random actions"} | RETURNS | LATENTS | {"cpu_hours": "CPU hours"}
SHORT = (
    *("leakage", "recall", "recall_untrained", "nats_x", "nats_y", "action_change"),
    *("return", "return_unseen", "return_late", "random"),
)
TABLES = {
    "summary": Table(
        [QUICKSTART, *(replace(one, head=f"`{one.task}`, {one.head}") for task in TASKS for one in strong(task)[:2])],
        {name: EVERYTHING[name] for name in SHORT},
    ),
    **{task: Table(strong(task), EVERYTHING, intervals=True) for task in TASKS},
    "quickstart": Table([QUICKSTART], EVERYTHING),
}
"""name -> table"""


def filled(text: str) -> str:
    """A document with its tables as the rows say.

    Raises:
        UserError: a table has a name that is none of `TABLES`.
    """

    def table(found: re.Match) -> str:
        if found[2] not in TABLES:
            raise UserError(f"no table {found[2]!r}; there are {', '.join(TABLES)}")
        return found[1] + "".join(f"{line}\n" for line in TABLES[found[2]].lines()) + found[3]

    return BLOCK.sub(table, text)


def main() -> None:
    """Write the documents whose tables have changed."""
    for name in DOCUMENTS:
        before = (ROOT / name).read_text()
        try:
            after = filled(before)
        except UserError as error:
            sys.exit(f"error: {name}: {error}")
        if after != before:
            write_whole(ROOT / name, after)
            print(f"wrote {name}")


if __name__ == "__main__":
    main()
