"""The command line: ``denoised-mdp train | evaluate | render | compare | probe | report | doctor | bench``.

Heavy imports wait until a command needs them, so that ``--help`` answers at once.
"""

from __future__ import annotations

import argparse
import contextlib
import errno
import os
import re
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from denoised_mdp import __version__
from denoised_mdp.errors import EnvironmentFailure, UserError, did_you_mean
from denoised_mdp.probe_cli import add_probe_commands
from denoised_mdp.report_cli import add_report_command

if TYPE_CHECKING:
    from denoised_mdp.evaluation import EvaluationResult

# What the machine refuses, in contrast to what we did wrong.
MACHINE_ERRORS = {
    getattr(errno, name)
    for name in "ENOSPC EDQUOT EFBIG EACCES EPERM EROFS ENAMETOOLONG ENOTDIR EISDIR EIO ESTALE EMFILE ENFILE".split()
    if hasattr(errno, name)
}
# How Python, NumPy and PyTorch refuse to hold so much: their exceptions have nothing in common but words.
TOO_LARGE = (
    "MemoryError|OutOfMemoryError|can't allocate memory|calculation overflowed|array is too big"
    "|[Mm]aximum allowed (size|dimension)"
)


class _Parser(argparse.ArgumentParser):
    """Reports a mistake like every other: one line, exit code 2."""

    long_help = None

    def error(self, message: str):
        raise UserError(f"{message}; see '{self.prog} --help'.")

    def format_help(self) -> str:
        return self.long_help() if self.long_help else super().format_help()


def positive(text: str) -> int:
    """Parse a whole number of at least 1, for argparse."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"must be a whole number of at least 1, not '{text}'")
    return int(text)


def natural(text: str) -> int:
    """Parse a whole number of at least 0, for argparse."""
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"must be a whole number of at least 0, not '{text}'")
    return int(text)


def device(text: str) -> str:
    """Check the form of a device's name, for argparse."""
    if not re.fullmatch(r"auto|cpu|cuda(:\d+)?", text):
        raise argparse.ArgumentTypeError(f"must be auto, cpu, cuda or cuda:N, not '{text}'")
    return text


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of all commands."""
    parser = _Parser(prog="denoised-mdp", description="Learn world models that keep only what matters.")
    parser.add_argument("--version", action="version", version=f"%(prog)s {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)

    train = commands.add_parser("train", help="train a model, or continue a run in its folder")
    train.long_help = _train_help
    train.add_argument("-m", "--multirun", action="store_true")
    train.add_argument("overrides", nargs="*", metavar="key=value")
    train.set_defaults(function=_train)

    evaluate = commands.add_parser("evaluate", help="play held-out episodes with a trained agent")
    _add_run_arguments(evaluate, episodes=10)
    evaluate.add_argument("--seed", type=natural, help="seed of the episodes (default: those of training)")
    evaluate.add_argument("--random", action="store_true", help="play a random policy as well, same episodes")
    evaluate.add_argument("--workers", type=natural, default=0, help="processes for the environments (default: 0)")
    evaluate.set_defaults(function=_evaluate)

    render = commands.add_parser("render", help="write a video and a picture of signal and noise")
    _add_run_arguments(render, episodes=2)
    render.add_argument("--output", type=Path, help="path without suffix (default: in RUN/videos)")
    render.set_defaults(function=_render)

    compare = commands.add_parser("compare", help="tell whether two runs are identical, or where they differ")
    compare.add_argument("first", type=Path, metavar="RUN_A", help="folder of a run")
    compare.add_argument("second", type=Path, metavar="RUN_B", help="folder of another")
    compare.add_argument("--checkpoint", type=natural, metavar="STEP", help="default: the newest of each")
    compare.set_defaults(function=_compare)

    add_probe_commands(commands, positive, natural, device)
    add_report_command(commands)

    doctor = commands.add_parser("doctor", help="check this machine and a configuration before a long run")
    doctor.add_argument("overrides", nargs="*", metavar="key=value", help="as for train")
    doctor.set_defaults(function=_doctor)

    bench = commands.add_parser("bench", help="measure what updates, environments and the replay cost here")
    bench.add_argument("overrides", nargs="*", metavar="key=value", help="as for train (default: a paper preset)")
    bench.add_argument("--parts", help="some of: update,acting,environments,evaluation,replay,start (default: all)")
    bench.add_argument("--repeats", type=positive, default=5, help="updates of each kind (default: %(default)s)")
    bench.add_argument("--rows", default="10000,100000", help="sizes of the replays (default: %(default)s)")
    bench.add_argument("--output", type=Path, metavar="FILE", help="write all numbers there as JSON")
    bench.set_defaults(function=_bench)
    return parser


def _add_run_arguments(parser: argparse.ArgumentParser, episodes: int) -> None:
    parser.add_argument("run", type=Path, metavar="RUN", help="folder of the run, e.g. runs/quickstart")
    parser.add_argument("--episodes", type=positive, default=episodes, help="default: %(default)s")
    parser.add_argument("--checkpoint", type=natural, metavar="STEP", help="default: the newest")
    parser.add_argument("--split", choices=("train", "test"), default="train", help="background clips")
    parser.add_argument("--device", type=device, default="auto", help="auto, cpu, cuda or cuda:N")


def _train(arguments: argparse.Namespace) -> int:
    if arguments.multirun:
        return _multirun(arguments.overrides)
    from denoised_mdp.config import load_config

    config = load_config(arguments.overrides)  # a typo is answered before PyTorch is imported
    from denoised_mdp.stopping import StopRequest
    from denoised_mdp.trainer import train

    stop = StopRequest()
    return 0 if train(config, stop) else _stopped(stop.exit_code, " Everything is saved; the same command continues.")


def _multirun(overrides: list[str]) -> int:
    """Hand over to Hydra, whose launcher and sweeper call `_job` once for each combination of values."""
    import hydra

    from denoised_mdp.composition import config_folder, register_schema, translate_multirun

    sys.argv = ["denoised-mdp train", "--multirun", *translate_multirun(overrides)]
    register_schema()
    hydra.main(version_base="1.3", config_path=str(config_folder()), config_name="config")(_job)()
    return 0


def _job(_) -> None:
    """One job of a sweep: train in the folder that Hydra assigned. A mistake or Ctrl-C ends the sweep."""
    from hydra.core.hydra_config import HydraConfig

    job = HydraConfig.get()
    code = main(["train", *job.overrides.task, f"run_dir={job.runtime.output_dir}"])
    if code:
        raise SystemExit(code)


def _evaluate(arguments: argparse.Namespace) -> int:
    from denoised_mdp.evaluation import evaluate_run

    options = {key: getattr(arguments, key) for key in ("episodes", "split", "seed", "checkpoint", "device", "workers")}
    result = evaluate_run(arguments.run, **options)
    for number, value in enumerate(result.returns, 1):
        print(f"episode {number:3d}   return {value:8.2f}")
    print(f"mean return   {_mean(result)}" + (" (standard error)" if len(result.returns) > 1 else ""))
    if arguments.random:
        result = evaluate_run(arguments.run, **options, random=True)
        print(f"random policy {_mean(result)} (same episodes)")
    return 0


def _mean(result: EvaluationResult) -> str:
    """The mean and its standard error, which one episode does not have."""
    return f"{result.mean:8.2f}" + (f" +- {result.standard_error:.2f}" if len(result.returns) > 1 else "")


def _render(arguments: argparse.Namespace) -> int:
    from denoised_mdp.analysis.render import render_run

    options = {key: getattr(arguments, key) for key in ("episodes", "split", "checkpoint", "device")}
    for path in render_run(arguments.run, arguments.output, **options):
        print(path)
    return 0


def _compare(arguments: argparse.Namespace) -> int:
    from denoised_mdp.compare import compare, report

    return 0 if report(compare(arguments.first, arguments.second, checkpoint=arguments.checkpoint)) else 1


def _doctor(arguments: argparse.Namespace) -> int:
    from denoised_mdp.config import load_config

    config = load_config(arguments.overrides)
    from denoised_mdp.doctor import doctor

    return doctor(config)


def _bench(arguments: argparse.Namespace) -> int:
    from denoised_mdp.config import load_config

    overrides = arguments.overrides or ["preset=paper/cheetah_run_video_background"]
    config = load_config(overrides)
    from denoised_mdp.benchmark import PARTS, benchmark

    parts = tuple(arguments.parts.split(",")) if arguments.parts else PARTS
    for part in parts:
        if part not in PARTS:
            raise UserError(f"unknown part '{part}'.{did_you_mean(part, PARTS)}")
    try:
        rows = tuple(positive(text) for text in arguments.rows.split(","))
    except argparse.ArgumentTypeError as error:
        raise UserError(f"argument --rows: {error}") from None
    benchmark(config, parts, repeats=arguments.repeats, rows=rows, output=arguments.output, options=overrides)
    return 0


def _train_help() -> str:
    from denoised_mdp.manual import train_help

    return train_help()


def _tell(text: str, file: TextIO | None = None) -> None:
    """Print a line for the user. That nobody can read it (a closed pipe, a full disk) changes nothing else."""
    with contextlib.suppress(OSError):
        print(f"denoised-mdp: {text}", file=file or sys.stderr)


def _stopped(code: int = 130, more: str = "") -> int:
    _tell(f"stopped.{more}")
    return code


def _fail(message: object, code: int = 2) -> int:
    _tell(f"error: {message}")
    return code


def _show_warning(message, category, filename, lineno, file=None, line=None) -> None:
    """Print a warning as one line that says what matters to a user, not where it comes from."""
    _tell(f"warning: {' '.join(str(message).split())}", file)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command.

    Returns the exit code: 0; 1 for problems that the doctor found, and for runs that differ; 2 for a mistake in the
    input, or a full disk and the like; 3 for numbers that are not finite; 4 for an environment that failed
    in a worker process, with its traceback; 128 + the signal's number when a run was stopped by one, 130 when another
    command was interrupted, 141 when its output was no longer read. Defects of ours are raised.
    """
    argv = list(sys.argv[1:] if argv is None else argv)
    with warnings.catch_warnings():
        warnings.showwarning = _show_warning
        try:
            try:
                return _run(argv)
            finally:
                if sys.stdout is not None:  # it is None in a process that was started without one
                    sys.stdout.flush()
        except BrokenPipeError:  # who read our output has left, e.g. `| head`
            return 128 + 13
        finally:
            for stream in (sys.stdout, sys.stderr):
                try:
                    stream and stream.flush()
                except OSError:  # else Python complains at its exit, with a code of its own
                    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _run(argv: list[str]) -> int:
    parser = build_parser()
    try:
        known = ("train", "evaluate", "render", "compare", "probe", "report", "doctor", "bench")
        if argv and not argv[0].startswith("-") and argv[0] not in known:
            raise UserError(f"unknown command '{argv[0]}'.{did_you_mean(argv[0], known)}")
        arguments = parser.parse_args(argv or ["--help"])
        return arguments.function(arguments)
    except (UserError, EnvironmentFailure) as error:
        return _fail(error, error.exit_code)
    except (MemoryError, RuntimeError, ValueError) as error:
        if not re.search(TOO_LARGE, f"{type(error).__name__} {error}"):
            raise
        reason = " ".join(str(error).split())[:200]
        return _fail(
            f"this needs more memory than there is ({reason}). Set a smaller train.batch_size, train.segment_length,"
            " model or policy; 'denoised-mdp doctor' measures what a configuration needs."
        )
    except OSError as error:
        if error.errno not in MACHINE_ERRORS:
            raise
        return _fail(f"{error.filename}: {error.strerror}." if error.filename else f"{error.strerror}.")
    except KeyboardInterrupt:
        return _stopped()


if __name__ == "__main__":
    sys.exit(main())
