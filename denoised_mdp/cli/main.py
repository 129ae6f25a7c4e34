"""The command line, ``denoised-mdp COMMAND``: its parser, training, and the reporting of errors.

Heavy imports wait until a command needs them, so that ``--help`` answers at once.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import os
import re
import shlex
import sys
import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING, TextIO

from denoised_mdp import __version__, progress
from denoised_mdp.cli.arguments import Parser, add_command, add_options, check_run, first_probe, suggest
from denoised_mdp.cli.grid import of_grid, options_of_one
from denoised_mdp.cli.machine import add_machine_commands
from denoised_mdp.cli.probe import add_probe_commands
from denoised_mdp.cli.runs import add_run_commands
from denoised_mdp.errors import MACHINE_ERRORS, OUT_OF_MEMORY, EnvironmentFailure, UserError, did_you_mean

if TYPE_CHECKING:
    from denoised_mdp.config.schema import Config

# How Python, NumPy and PyTorch report that something does not fit into memory.
TOO_LARGE = f"{OUT_OF_MEMORY}|calculation overflowed|array is too big|[Mm]aximum allowed (size|dimension)"


def build_parser(probes: bool = True) -> Parser:
    """Return the parser of all commands. probes: add the subcommands of ``probe``, which imports plug-ins."""
    parser = Parser(
        prog="denoised-mdp",
        description="Learn world models that keep only what matters.",
        examples=(
            "denoised-mdp train preset=quickstart run_dir=runs/quickstart",
            "denoised-mdp evaluate runs/quickstart",
            "denoised-mdp probe factors runs/quickstart",
            "denoised-mdp report runs/quickstart",
            "",
            "'denoised-mdp COMMAND --help' explains a command, 'denoised-mdp completion' the completion in your shell.",
        ),
    )
    parser.add_argument("--version", action="version", version=f"%(prog)s {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)

    help = "train a model, or continue a run in its folder"
    train = add_command(commands, "train", _train, help, long_help=_train_help, keyed="overrides")
    add_options(train)
    train.add_argument("-m", "--multirun", action="store_true")
    train.add_argument("-c", "--cfg", action="store_true")
    train.add_argument("-n", "--dry-run", action="store_true")
    config = add_command(
        commands,
        "config",
        _config,
        "print a composed configuration as YAML, without training",
        keyed="overrides",
        examples=(
            "denoised-mdp config preset=quickstart model=2c",
            "denoised-mdp config preset=quickstart --against paper/cheetah_run_video_background",
            "denoised-mdp config sweep=evidence sweep.method=2c sweep.seed=0",
        ),
    )
    add_options(config)
    config.add_argument("--against", metavar="PRESET", help="print only what differs: key: PRESET's value -> value")
    add_run_commands(commands)
    add_probe_commands(commands, wanted=probes)
    add_machine_commands(commands)
    return parser


def _train(arguments: argparse.Namespace, owns_process: bool) -> int:
    if arguments.cfg:
        return _print_config([word for word in arguments.overrides if word != "job"])  # as in Hydra's --cfg job
    sweeps = arguments.multirun or arguments.dry_run or any(map(of_grid, arguments.overrides))
    check_run(arguments.overrides, sweeps)
    if sweeps:
        from denoised_mdp.cli.sweep import show_grid, sweep

        if arguments.dry_run:
            show_grid(arguments.overrides)
        else:
            sweep(arguments.overrides, lambda overrides: main(["train", *overrides]))
        return 0
    from denoised_mdp.config import load_config

    config = load_config(arguments.overrides)  # reports a typo before PyTorch is imported
    from denoised_mdp.bench.doctor import days_on_a_cpu, waiting_threads
    from denoised_mdp.run.checkpoint import list_steps
    from denoised_mdp.run.folder import RunFolder
    from denoised_mdp.run.signals import StopRequest
    from denoised_mdp.session import train

    _tell_notes(config, arguments.overrides)
    for text in filter(None, (days_on_a_cpu(config), waiting_threads(config))):
        _tell(f"note: {text}")
    stop = StopRequest(last=owns_process)
    with progress.shown():
        ended = train(config, stop)
    if not ended:
        begun = list_steps(RunFolder(config.run_dir).checkpoints)
        kept = "Everything is saved; the same command continues." if begun else "Nothing was trained yet."
        return _stopped(stop.exit_code, f" {kept}")
    shows = config.agent.has_model and getattr(config.model, "decoder", True)
    run, look = config.run_dir, [["render", config.run_dir]] if shows else []
    suggest(["evaluate", run, "--random"], *look, ["probe", first_probe([config]), run], ["report", run])
    return 0


def _config(arguments: argparse.Namespace) -> int:
    return _print_config(arguments.overrides, arguments.against)


def _print_config(overrides: Sequence[str], against: str | None = None) -> int:
    """Print a configuration, or its differences from the preset `against`."""
    from denoised_mdp.config import as_yaml, load_config
    from denoised_mdp.config.compare import contrast

    check_run(overrides)
    overrides = options_of_one(overrides)
    config = load_config(overrides)
    if against is None:
        print(as_yaml(config), end="")
    elif lines := contrast(load_config([f"preset={against}"]), config):
        print(*lines, sep="\n")
    else:
        _tell(f"nothing differs from preset={against}.")
    _tell_notes(config, overrides)
    return 0


def _tell_notes(config: Config, overrides: Sequence[str]) -> None:
    from denoised_mdp.config.effect import notes

    for text in notes(config, overrides):
        _tell(f"note: {text}")


def _train_help() -> str:
    from denoised_mdp.cli.help import train_help

    return train_help()


def _tell(text: str, file: TextIO | None = None) -> None:
    """Print a line for the user. A failure to write it (a closed pipe, a full disk) is ignored."""
    progress.clear()
    with contextlib.suppress(OSError):
        print(f"denoised-mdp: {text}", file=file or sys.stderr)


def _stopped(code: int = 130, more: str = "") -> int:
    _tell(f"stopped.{more}")
    return code


def _fail(message: object, code: int = 2) -> int:
    _tell(f"error: {message}")
    return code


def _show_warning(message, category, filename, lineno, file=None, line=None) -> None:
    """Print a warning as one line, without the place in the code that raised it."""
    _tell(f"warning: {' '.join(str(message).split())}", file)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command.

    Returns the exit code: 0; 1 if the doctor found problems, runs differ, or `status` found a run that failed or is
    damaged; 2 for a mistake in the input, too little memory, a full disk and the like; 3 for numbers that are not
    finite; 4 for an environment that failed, with its traceback; 128 + the signal's number if a signal stopped a run;
    130 if another command was interrupted; 141 if nobody reads the output any more. Our own bugs are raised.
    """
    owns_process = argv is None
    argv = list(sys.argv[1:] if argv is None else argv)
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(AttributeError, OSError, ValueError):  # None, of another kind, or closed
            stream.reconfigure(errors="backslashreplace")  # for ASCII terminals, and file names that are not UTF-8
    with warnings.catch_warnings():
        warnings.showwarning = _show_warning
        try:
            try:
                return _run(argv, owns_process)
            finally:
                if sys.stdout is not None:  # None in a process that was started without one
                    sys.stdout.flush()
        except BrokenPipeError:  # the reader of our output has exited, e.g. `| head`
            return 128 + 13
        finally:
            for stream in (sys.stdout, sys.stderr):
                try:
                    stream and stream.flush()
                except OSError:  # otherwise Python complains at exit, with its own exit code
                    progress.silence(stream)
            if owns_process:
                gc.freeze()  # otherwise the interpreter searches everything imported for cycles at exit


COMMANDS = (
    *("train", "config", "evaluate", "render", "export", "compare", "status", "table", "probe", "report"),
    *("doctor", "bench", "completion"),
)


def _words(argv: list[str]) -> list[str]:
    """Return the words if a command comes first; otherwise raise UserError with what may have been meant."""
    if not argv or argv[0] == "help":
        return [*argv[1:], "--help"]
    first = argv[0]
    if first in (*COMMANDS, "-h", "--help", "--version"):
        return argv
    later = next((word for word in argv if word in COMMANDS), None)
    if later:
        rest = [word for word in argv if word != later]
        raise UserError(f"the command comes first: denoised-mdp {shlex.join([later, *rest])}")
    if "=" in first or first.startswith("-"):
        example = f"denoised-mdp train {shlex.quote(first.lstrip('-'))}" if "=" in first else "denoised-mdp --help"
        raise UserError(f"'{first}' is no command. Name one first: {example}")
    raise UserError(f"unknown command '{first}'.{did_you_mean(first, COMMANDS)}")


def _run(argv: list[str], owns_process: bool) -> int:
    try:
        parser = build_parser(probes="probe" in argv or "_ARGCOMPLETE" in os.environ)
        from denoised_mdp.cli.completion import answer

        answer(parser)
        arguments = parser.parse_args(_words(argv))
        return _train(arguments, owns_process) if arguments.function is _train else arguments.function(arguments)
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
        if "No usable temporary directory" in str(error):  # Python's message for a full disk or inode table
            return _fail("no temporary file can be made. Make room, or set TMPDIR to a folder on another disk.")
        if error.errno not in MACHINE_ERRORS:
            raise
        return _fail(f"{error.filename}: {error.strerror}." if error.filename else f"{error.strerror}.")
    except KeyboardInterrupt:
        return _stopped()


if __name__ == "__main__":
    sys.exit(main())
