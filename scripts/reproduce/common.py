"""What the scripts that publish comparisons share: rows of CSV files, and spreads as text."""

from __future__ import annotations

import csv
import statistics
from pathlib import Path


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


def spread(values: list[float]) -> tuple[str, str, str]:
    """Mean, standard deviation and each of some returns, as text."""
    deviation = f"{statistics.stdev(values):.0f}" if len(values) > 1 else "-"
    return f"{statistics.mean(values):.0f}", deviation, ", ".join(f"{value:.0f}" for value in values)
