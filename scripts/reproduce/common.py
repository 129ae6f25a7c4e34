"""What the scripts that publish comparisons share: rows of CSV files, a command that measures runs, spreads as text."""

from __future__ import annotations

import argparse
import csv
import statistics
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from denoised_mdp.analysis.report.data import find_runs
from denoised_mdp.analysis.results import write_csv
from denoised_mdp.errors import UserError


def read(path: Path) -> list[dict[str, str]]:
    """Rows of a CSV file; none if there is no file."""
    if not path.exists():
        return []
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def append(path: Path, names: tuple[str, ...], rows: list[dict]) -> None:
    """Add rows to a CSV file, with its header if it is new."""
    new = not path.exists()
    with path.open("a", newline="") as file:
        writer = csv.DictWriter(file, names)
        if new:
            writer.writeheader()
        writer.writerows(rows)


def tabulate(description: str, measure: Callable[[Path], list[dict[str, Any]]], output: Path) -> None:
    """The command line of a script that measures runs: print the rows of each, and write those of all.

    description: of the script, whose first line is shown. output: the CSV file, unless --output names another.
    """
    parser = argparse.ArgumentParser(description=description.split("\n")[0])
    parser.add_argument("runs", type=Path, nargs="+", metavar="FOLDER", help="folder of a run or of runs")
    parser.add_argument("-o", "--output", type=Path, default=output)
    given = parser.parse_args()
    rows: list[dict[str, Any]] = []
    try:
        for run in find_runs(given.runs):
            rows += (found := measure(run))
            print(*(", ".join(map(str, row.values())) for row in found), sep="\n", flush=True)
            write_csv(given.output, rows)
    except UserError as error:
        sys.exit(f"error: {error}")


def spread(values: list[float]) -> tuple[str, str, str]:
    """Mean, standard deviation and each of some returns, as text."""
    deviation = f"{statistics.stdev(values):.0f}" if len(values) > 1 else "-"
    return f"{statistics.mean(values):.0f}", deviation, ", ".join(f"{value:.0f}" for value in values)
