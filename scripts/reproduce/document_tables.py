"""Write the tables of README.md, docs and results from the rows in results: no number is copied by hand.

    python scripts/reproduce/document_tables.py    # after evidence.py

A table lies between the comments ``<!-- table NAME: ... -->`` and ``<!-- end -->``, where NAME is one of `TABLES`.
"""

from __future__ import annotations

import functools
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from common import read
from evidence_numbers import METRICS, Row, cells, digits_of, ends, known, metric_lines, shares_text, text_of, with_late

from denoised_mdp.analysis.results import write_whole
from denoised_mdp.analysis.table.statistics import difference, double_ratio, interaction, ratio
from denoised_mdp.analysis.table.write import markdown
from denoised_mdp.errors import UserError

ROOT = Path(__file__).parents[2]
DOCUMENTS = (
    "README.md",
    "docs/denoising.md",
    *(f"results/{name}/README.md" for name in ("hour", "imagined_noise", "longer", "quickstart")),
)
BLOCK = re.compile(r"(<!-- table (\w+):[^\n]*-->\n).*?(<!-- end -->)", re.DOTALL)


@dataclass(frozen=True)
class Column:
    """A column with the runs of one arm: its head, the folder in results, and the runs' task, variant and arm."""

    head: str
    folder: str
    task: str
    variant: str
    arm: str
    seed: str | None = None
    """if given, only the run with this seed"""

    def rows(self) -> list[Row]:
        """The rows of these runs, in order of their seeds."""
        found = cells(rows_of(ROOT / "results" / self.folder)).get((self.task, self.variant), {}).get(self.arm, [])
        return [row for row in found if self.seed in (None, row["seed"])]


@functools.cache
def rows_of(folder: Path) -> list[Row]:
    """All rows of a results folder; cached, since several columns read them."""
    return with_late(read(folder / "runs.csv"), read(folder / "curves.csv"))


@dataclass(frozen=True)
class Table:
    """A table of metrics (name in `METRICS` -> label of its line, or "" for the usual one) for some columns."""

    columns: Sequence[Column]
    metrics: dict[str, str]
    intervals: bool = False
    each: bool = True
    """whether to show each seed's value"""

    def lines(self) -> list[str]:
        """The table in Markdown."""
        found = [(column.head, rows) for column in self.columns if (rows := column.rows())]
        arms = [rows for _, rows in found]
        labels = {metric: label or METRICS[metric] for metric, label in self.metrics.items()}
        seeds = ["seeds", *(", ".join(row["seed"] for row in rows) for rows in arms)]
        body = [seeds, *metric_lines(arms, labels, self.intervals, self.each)]
        what = "mean" + " [95 % interval]" * self.intervals + " (each seed)" * self.each
        return markdown([[what, *(head for head, _ in found)], *body])


@dataclass(frozen=True)
class Comparison:
    """How far one arm is above another. pairs: head -> two or four columns for each task; metrics: as in `Table`.

    For four columns: the difference (or ratio) of the first two minus (or over) that of the last two.
    """

    pairs: dict[str, Sequence[tuple[Column, ...]]]
    metrics: dict[str, str]
    relative: bool = False
    """show ratios instead of differences"""

    def lines(self) -> list[str]:
        """The table in Markdown."""
        body = [
            [label or METRICS[m], *(self.text(own, m) for own in self.pairs.values())]
            for m, label in self.metrics.items()
        ]
        what = "ratio" if self.relative else "difference"
        return markdown([[f"{what} of means [95 % interval]", *self.pairs], *body])

    def text(self, pairs: Sequence[tuple[Column, ...]], metric: str) -> str:
        """A comparison of means over tasks of means over seeds, as text; a dash if a column has no known value."""
        sides = [[known(column.rows(), metric) for column in side] for side in zip(*pairs, strict=True)]
        if not all(len(values) for side in sides for values in side):
            return "-"
        runs = [sum(len(column.rows()) for column in side) for side in zip(*pairs, strict=True)]
        shares = shares_text([sum(map(len, side)) for side in sides], runs)
        of_two, of_four = (ratio, double_ratio) if self.relative else (difference, interaction)
        digits = 2 if self.relative else digits_of(metric)
        return text_of(ends(of_two if len(sides) == 2 else of_four, *sides), digits) + shares


def strong(task: str) -> list[Column]:
    """Columns of a task: with a full-strength background, then without distractors."""
    return [
        Column("2b", "evidence", task, "video_background", "2b"),
        Column("Dreamer", "evidence", task, "video_background", "dreamer"),
        Column("2b without distractors", "evidence", task, "noiseless", "2b"),
        Column("Dreamer without distractors", "evidence", task, "noiseless", "dreamer"),
    ]


TASKS = ("cheetah_run", "walker_walk")
QUICKSTART = Column("quickstart, 2b", "quickstart", "cheetah_run", "video_background_0.3", "2b")
ALL = {metric: "" for metric in METRICS if metric != "updates"}
SHORT = {
    "leakage": "leakage (low is good)",
    "recall": "signal recall (high is good)",
    "recall_untrained": "signal recall before training",
    "nats_x": "",
    "nats_y": "",
    "invariance": "",
    "action_change": "action change under another background (low is good)",
    "return": "return at the end, 10 held-out episodes",
    "return_unseen": "the same with unseen backgrounds",
    "return_late": "mean of the last four evaluations",
    "random": "",
}
LONG = SHORT | {"return_best": "best weights in 20 other episodes"}
Y_TOO = {"signal_from_y": "", "invariance_y": ""}
EVIDENCE = (
    *("return", "return_unseen", "return_late", "return_best", "random", "recall", "recall_untrained"),
    *("leakage", "leakage_untrained", "invariance", "action_change", "action_change_untrained", "action_ratio"),
    *("nats_x", "nats_y", "cpu_hours"),
)
RETURNS = {name: LONG[name] for name in ("return", "return_late", "return_best")}
TWICE = ("return", "return_unseen", "return_late", "return_best", "recall", "leakage")
CHEETAH = "evidence", "cheetah_run"
RIVALS = [
    Column("2b", *CHEETAH, "video_background", "2b"),
    Column("2c", *CHEETAH, "video_background", "2c"),
    Column("RePo", *CHEETAH, "video_background", "repo"),
    Column("TIA", *CHEETAH, "video_background", "tia"),
    Column("Dreamer", *CHEETAH, "video_background", "dreamer"),
]
FLOOR = [
    Column("video", *CHEETAH, "video_background", "2b"),
    Column("video, decoding the body alone", *CHEETAH, "video_background", "2b foreground"),
    Column("one still picture", *CHEETAH, "video_background_still", "2b"),
    Column("video behind the floor", *CHEETAH, "video_background_sky", "2b"),
    Column("Dreamer, video behind the floor", *CHEETAH, "video_background_sky", "dreamer"),
    Column("no distractors", *CHEETAH, "noiseless", "2b"),
]
LONGER = [
    Column(f"`{task}`, {model}, {steps} steps", folder, task, "video_background", arm)
    for task, model, arm in ((TASKS[0], "2b", "2b"), (TASKS[0], "Dreamer", "dreamer"), (TASKS[1], "2b", "2b"))
    for folder, steps in (("evidence", "150,000"), ("hour", "300,000"))
]
LONGEST = [
    Column(f"{steps} steps", folder, TASKS[1], "video_background", "2b", seed="2")
    for folder, steps in (("evidence", "150,000"), ("hour", "300,000"), ("longer", "600,000"))
]
JITTER = [
    Column(f"{model}, {where}", *CHEETAH, variant, arm)
    for variant, where in (("video_background_camera_jitter", "video and jitter"), ("camera_jitter", "jitter"))
    for model, arm in (("2b", "2b"), ("Dreamer", "dreamer"))
]
PAIRS = {task: tuple(strong(task)[:2]) for task in TASKS}
WHERE = {f"`{task}`": [task] for task in TASKS} | {"both tasks": TASKS}
PAIRS_SHOWN = {where: [PAIRS[task] for task in tasks] for where, tasks in WHERE.items()}
BARE = {  # head -> columns of a task, by their places in `strong`
    "video": slice(0, 2),
    "no distractors": slice(2, 4),
    "video - no distractors": slice(0, 4),
}
LEADS = {f"`{task}`, {where}": [tuple(strong(task)[part])] for task in TASKS for where, part in BARE.items()}
for where in ("no distractors", "video - no distractors"):
    LEADS[f"both, {where}"] = [tuple(strong(task)[BARE[where]]) for task in TASKS]
KEPT = {}  # share of the return without distractors that is kept
for what, tasks in [*((f"`{task}`", [task]) for task in TASKS), ("both", TASKS)]:
    for place, model in enumerate(("2b", "Dreamer")):
        KEPT[f"{what}, {model}"] = [tuple(strong(task)[place::2]) for task in tasks]
    KEPT[f"{what}, 2b / Dreamer"] = [(*strong(task)[::2], *strong(task)[1::2]) for task in tasks]
EXPLORING = {  # 2b and Dreamer with exploration in imagination, then without
    task: (*(replace(column, folder="imagined_noise") for column in pair), *pair) for task, pair in PAIRS.items()
}
GAINS = {
    f"{model}, {where}": [EXPLORING[task][place::2] for task in tasks]
    for place, model in enumerate(("2b", "Dreamer"))
    for where, tasks in WHERE.items()
}
EXPLORING_LEADS = {
    f"{where}{whom}": [EXPLORING[task][part] for task in tasks]
    for whom, part in (("", slice(0, 2)), (", Dreamer without", slice(0, 4, 3)))
    for where, tasks in WHERE.items()
}
WIDER_LEADS = {where: [EXPLORING[task] for task in tasks] for where, tasks in WHERE.items()}
LEAD = {
    name: LONG[name]
    for name in ("return", "return_unseen", "return_late", "return_best", "recall", "leakage", "action_change")
}
TABLES = {
    "summary": Table(
        [replace(one, head=f"`{one.task}`, {one.head}") for task in TASKS for one in strong(task)[:2]],
        {name: label for name, label in LEAD.items() if name not in ("return_best", "action_change")}
        | {"action_ratio": "action ratio (low is good)", "random": ""},
        intervals=True,
        each=False,
    ),
    **{
        task: Table(strong(task), dict.fromkeys(EVIDENCE, "") | {"return_best": LONG["return_best"]}, intervals=True)
        for task in TASKS
    },
    "lead": Comparison(PAIRS_SHOWN, LEAD),
    "leads": Comparison(LEADS, RETURNS | {"recall": LONG["recall"]}),
    "kept": Comparison(KEPT, RETURNS, relative=True),
    "gains": Comparison(GAINS, LEAD),
    "exploring": Comparison(EXPLORING_LEADS, LEAD),
    "wider": Comparison(WIDER_LEADS, LEAD),
    "floor": Table(FLOOR, LONG | Y_TOO),
    "twice": Table(LONGER, {name: LONG[name] for name in TWICE}),
    "hour": Table(LONGER, LONG | {"cpu_hours": ""}),
    "longer": Table(
        LONGEST, {name: LONG[name] for name in (*TWICE, "action_change")} | {"action_ratio": ""}, each=False
    ),
    "jitter": Table(JITTER, LONG | {"action_change": "", "action_change_untrained": ""} | Y_TOO),
    "rivals": Table(RIVALS, LONG | {"action_ratio": "", "cpu_hours": ""}),
    "quickstart": Table([QUICKSTART], ALL),
}
"""name -> table"""


def filled(text: str) -> str:
    """Return a document with its tables filled from the rows.

    Raises:
        UserError: a table's name is not in `TABLES`.
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
