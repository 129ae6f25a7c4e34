"""The commands that act on runs: ``denoised-mdp evaluate | render | export | compare | status | table | report``."""

from __future__ import annotations

import argparse
import contextlib
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

from denoised_mdp.cli.arguments import (
    add_checkpoint,
    add_command,
    add_runs,
    add_weights,
    check_runs,
    expanded,
    first_probe,
    natural,
    positive,
    suggest,
)
from denoised_mdp.errors import UserError
from denoised_mdp.options import BEST
from denoised_mdp.progress import data_size, shown, track

if TYPE_CHECKING:
    from denoised_mdp.evaluation import EvaluationResult


def add_run_commands(commands: argparse._SubParsersAction) -> None:
    """Add ``evaluate``, ``render``, ``export``, ``compare``, ``status``, ``table`` and ``report``."""
    evaluate = add_command(
        commands,
        "evaluate",
        _evaluate,
        "play held-out episodes with a trained agent",
        ". Their seeds are fixed and were never used in training.",
        examples=("denoised-mdp evaluate runs/quickstart --random --episodes 20",),
    )
    add_runs(evaluate, several=False)
    others = "others, with --checkpoint best or of an exported agent, whose weights these may have chosen"
    _add_episodes(evaluate, 10, f"those of training's evaluations; {others}")
    add_weights(evaluate)
    evaluate.add_argument("--random", action="store_true", help="also play a random policy in the same episodes")
    evaluate.add_argument(
        "--workers", type=natural, default=0, metavar="N", help="processes for the environments (default: 0)"
    )

    render = add_command(
        commands,
        "render",
        _render,
        "write a video and a picture of signal and noise",
        " in held-out episodes.",
        examples=("denoised-mdp render runs/quickstart", "denoised-mdp render runs/quickstart --split test"),
    )
    add_runs(render, several=False)
    _add_episodes(render, 2)
    add_weights(render)
    render.add_argument(
        "-o",
        "--output",
        type=expanded,
        metavar="PATH",
        help="where to write PATH.png and PATH.mp4 (default: in RUN/videos)",
    )
    render.add_argument(
        "--hero", action="store_true", help="large images for a web page: PATH.png and a small animated PATH.webp"
    )

    export = add_command(
        commands,
        "export",
        _export,
        "write the weights of a run in half precision, and its configuration",
        ": a small folder to publish. It can be evaluated, rendered and probed, but not trained.",
        examples=("denoised-mdp export runs/quickstart --output agents/mine",),
    )
    add_runs(export, several=False)
    export.add_argument(
        "-o", "--output", type=expanded, required=True, metavar="FOLDER", help="a new folder, or an earlier export"
    )
    add_checkpoint(export)

    _add_compare(commands)
    _add_status(commands)
    _add_table(commands)
    _add_report(commands)


def _add_compare(commands: argparse._SubParsersAction) -> None:
    compare = add_command(
        commands,
        "compare",
        _compare,
        "tell whether two runs are identical, or where they differ",
        ". Metrics, weights, replay and all other state are compared bit by bit. The exit code is 1 if they differ.",
    )
    compare.add_argument("first", type=expanded, metavar="RUN_A", help="folder of a run")
    compare.add_argument("second", type=expanded, metavar="RUN_B", help="folder of another run")
    compare.add_argument("--checkpoint", type=natural, metavar="STEP", help="default: the newest of each")
    check_runs(compare, "first", "second")


def _add_status(commands: argparse._SubParsersAction) -> None:
    status = add_command(
        commands,
        "status",
        _status,
        "show how far runs are: step, return, speed, and the last error of those that failed",
        ". The exit code is 1 if one has failed or is damaged.",
        examples=("denoised-mdp status runs/sweep",),
    )
    status.add_argument("folders", type=expanded, nargs="+", metavar="FOLDER", help="folder of a run or of runs")


def _add_report(commands: argparse._SubParsersAction) -> None:
    """Add ``report``."""
    report = add_command(
        commands,
        "report",
        _report,
        "write one HTML page about a run, or a comparison of several",
        ". The page needs no other file.",
        examples=(
            "denoised-mdp report runs/quickstart",
            "denoised-mdp report runs/a runs/b -o comparison.html",
            "denoised-mdp report runs/sweep",
        ),
    )
    report.add_argument("runs", type=expanded, nargs="+", metavar="RUN", help="folder of a run or of runs")
    report.add_argument(
        "-o", "--output", type=expanded, default=Path("report.html"), metavar="FILE", help="default: %(default)s"
    )
    _add_probe_folders(report)
    report.add_argument(
        "--videos",
        choices=("one", "all", "none"),
        default="one",
        help="which videos to embed: one per group of seeds, those of all runs, or none; default: %(default)s",
    )
    report.add_argument("--title", metavar="TEXT", help="title of the page")


def _add_probe_folders(parser: argparse.ArgumentParser) -> None:
    """Add the option for further folders of probe results."""
    parser.add_argument(
        "--probes",
        type=expanded,
        action="append",
        default=[],
        metavar="FOLDER",
        help="add results that probes wrote there with --output; may be repeated",
    )


def _add_table(commands: argparse._SubParsersAction) -> None:
    more = (
        ": Markdown, CSV, LaTeX and PNG. Runs of other lengths or evaluated otherwise are refused; missing ones named."
    )
    table = add_command(
        commands,
        "table",
        _table,
        "write tables and pictures that compare methods over tasks, distractors and seeds",
        more,
        examples=(
            "denoised-mdp table runs/grid -o results/grid",
            "denoised-mdp table runs/grid --step 205000 --by model.name,policy.name,model.kl.beta",
        ),
    )
    table.add_argument("folders", type=expanded, nargs="+", metavar="FOLDER", help="folder of a run or of runs")
    table.add_argument(
        "-o", "--output", type=expanded, default=Path("table"), metavar="FOLDER", help="default: %(default)s"
    )
    table.add_argument("--step", type=positive, metavar="N", help="score runs there (default: at their common end)")
    table.add_argument("--by", metavar="KEYS", help="options that tell methods apart; default: model.name,policy.name")
    _add_probe_folders(table)


def _add_episodes(
    parser: argparse.ArgumentParser, episodes: int, seeds: str = "those of training's evaluations"
) -> None:
    parser.add_argument("--episodes", type=positive, default=episodes, metavar="N", help="default: %(default)s")
    parser.add_argument(
        "--split",
        choices=("train", "test"),
        default="train",
        help="background clips: those of training (default) or held-out ones",
    )
    parser.add_argument("--seed", type=natural, metavar="N", help=f"seed of the episodes (default: {seeds})")


def _evaluate(arguments: argparse.Namespace) -> int:
    from denoised_mdp.evaluation import evaluate_run

    options = {key: getattr(arguments, key) for key in ("episodes", "split", "seed", "checkpoint", "device", "workers")}
    with shown():
        result = evaluate_run(arguments.run, **options)
    for number, value in enumerate(result.returns, 1):
        print(f"episode {number:3d}   return {value:8.2f}")
    print(f"mean return   {_mean(result)}" + (" (standard error)" if len(result.returns) > 1 else ""))
    if arguments.checkpoint == BEST:
        print(f"best weights  of step {result.step:,}")
    if arguments.random:
        with shown():
            result = evaluate_run(arguments.run, **options, random=True)
        print(f"random policy {_mean(result)} (same episodes)")
    return 0


def _mean(result: EvaluationResult) -> str:
    """Return the mean with its standard error, which a single episode does not have."""
    return f"{result.mean:8.2f}" + (f" ± {result.standard_error:.2f}" if len(result.returns) > 1 else "")


def _render(arguments: argparse.Namespace) -> int:
    from denoised_mdp.analysis.render import render_run

    options = {key: getattr(arguments, key) for key in ("episodes", "split", "seed", "checkpoint", "device", "hero")}
    with shown():
        paths = render_run(arguments.run, arguments.output, **options)
    for path in paths:
        print(path)
    return 0


def _export(arguments: argparse.Namespace) -> int:
    from denoised_mdp.run.pretrained import export

    folder = export(arguments.run, arguments.output, arguments.checkpoint)
    size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    print(f"{folder} ({data_size(size)})")
    return 0


def _compare(arguments: argparse.Namespace) -> int:
    from denoised_mdp.run.diff import compare, report

    return 0 if report(compare(arguments.first, arguments.second, checkpoint=arguments.checkpoint)) else 1


def _status(arguments: argparse.Namespace) -> int:
    from denoised_mdp.analysis.status import HEADER, statuses

    runs = statuses(arguments.folders)
    print(HEADER)
    for run in runs:
        print(run.line)
        if run.error:
            print(f"          {run.error}")
    counts = Counter(run.state for run in runs)
    print(", ".join(f"{count} {state}" for state, count in sorted(counts.items())))
    return 1 if counts["failed"] or counts["damaged"] else 0


def _table(arguments: argparse.Namespace) -> int:
    from denoised_mdp.analysis.report.data import check_probe_folders, read_run
    from denoised_mdp.analysis.results import make_folder
    from denoised_mdp.analysis.table.cells import BY, check_keys, make_table
    from denoised_mdp.analysis.table.write import write_table
    from denoised_mdp.run.find import find_runs

    check_probe_folders(arguments.probes)
    by = BY if arguments.by is None else [key.strip() for key in arguments.by.split(",")]
    check_keys(by)
    with shown():
        runs = [read_run(path, arguments.probes) for path in track(find_runs(arguments.folders), "reading", "runs")]
        table = make_table(runs, arguments.step, by)
        paths = write_table(table, make_folder(arguments.output))
    for line in table.missing:
        print(f"missing: {line}")
    for path in paths:
        print(path)
    return 0


def _report(arguments: argparse.Namespace) -> int:
    from denoised_mdp.analysis.report.page import write_report
    from denoised_mdp.config import read_config
    from denoised_mdp.run.checkpoint import list_steps
    from denoised_mdp.run.find import find_runs
    from denoised_mdp.run.folder import RunFolder

    options = {key: getattr(arguments, key) for key in ("probes", "videos", "title")}
    with shown():
        runs = find_runs(arguments.runs)
        path = write_report(runs, arguments.output, **options)
    print(f"{path} ({data_size(path.stat().st_size)})")
    if not any(RunFolder(run).probes.is_dir() for run in runs):
        configs = {}
        for run in runs:
            with contextlib.suppress(UserError):  # of a damaged run
                if list_steps(RunFolder(run).checkpoints):
                    configs[run] = read_config(run)
        if configs:
            probing = ["probe", first_probe([*configs.values()]), *configs]
            suggest(probing, ["report", *arguments.runs, "-o", arguments.output])
    return 0
