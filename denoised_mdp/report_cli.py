"""The command ``denoised-mdp report``: its arguments, and what it prints."""

from __future__ import annotations

import argparse
from pathlib import Path


def add_report_command(commands: argparse._SubParsersAction) -> None:
    """Add ``report``."""
    help = "write one HTML page about a run, or a comparison of many"
    report = commands.add_parser("report", help=help, description=help)
    report.add_argument("runs", type=Path, nargs="+", metavar="RUN", help="folder of a run, e.g. runs/quickstart")
    report.add_argument(
        "-o", "--output", type=Path, default=Path("report.html"), metavar="FILE", help="default: %(default)s"
    )
    report.add_argument(
        "--probes", type=Path, action="append", default=[], metavar="FOLDER",
        help="also results that probes wrote there with --output; may be repeated",
    )  # fmt: skip
    report.add_argument(
        "--videos", choices=("one", "all", "none"), default="one",
        help="embed one video per group of seeds, those of all runs, or none; default: %(default)s",
    )  # fmt: skip
    report.add_argument("--title", help="title of the page")
    report.set_defaults(function=_report)


def _report(arguments: argparse.Namespace) -> int:
    from denoised_mdp.analysis.report import write_report
    from denoised_mdp.logging import data_size

    options = {key: getattr(arguments, key) for key in ("probes", "videos", "title")}
    path = write_report(arguments.runs, arguments.output, **options)
    print(f"{path} ({data_size(path.stat().st_size)})")
    return 0
