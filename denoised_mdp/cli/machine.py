"""The commands ``denoised-mdp doctor | bench | completion``: the machine and the shell."""

from __future__ import annotations

import argparse

from denoised_mdp.cli.arguments import add_command, add_options, check_run, expanded, positive
from denoised_mdp.cli.grid import options_of_one
from denoised_mdp.errors import UserError, did_you_mean

SHELLS = ("bash", "zsh", "fish")  # shells with completion


def add_machine_commands(commands: argparse._SubParsersAction) -> None:
    """Add ``doctor``, ``bench`` and ``completion``."""
    doctor = add_command(
        commands,
        "doctor",
        _doctor,
        "check this machine and a configuration before a long run",
        ". The exit code is 1 if there are problems.",
        keyed="overrides",
        examples=("denoised-mdp doctor preset=paper/cheetah_run_video_background",),
    )
    add_options(doctor)
    bench = add_command(
        commands,
        "bench",
        _bench,
        "measure what updates, environments and the replay cost here",
        keyed="overrides",
        examples=("denoised-mdp bench preset=quickstart --parts update,acting",),
    )
    add_options(bench, help="as for train (default: a paper preset)")
    parts = "update,acting,environments,evaluation,replay,start"
    bench.add_argument("--parts", metavar="NAMES", help=f"some of {parts} (default: all)")
    repeats = "updates of each kind; default: %(default)s"
    bench.add_argument("--repeats", type=positive, default=5, metavar="N", help=repeats)
    bench.add_argument(
        "--rows", default="10000,100000", metavar="NUMBERS", help="rows of the replays; default: %(default)s"
    )
    bench.add_argument("-o", "--output", type=expanded, metavar="FILE", help="write all numbers there as JSON")
    completion = add_command(
        commands,
        "completion",
        _completion,
        "print what your shell needs to complete commands, options and values",
        examples=(
            "bash: echo 'eval \"$(denoised-mdp completion bash)\"' >> ~/.bashrc",
            "zsh:  echo 'eval \"$(denoised-mdp completion zsh)\"' >> ~/.zshrc      (after compinit)",
            "fish: denoised-mdp completion fish > ~/.config/fish/completions/denoised-mdp.fish",
        ),
    )
    completion.add_argument("shell", choices=SHELLS)


def _completion(arguments: argparse.Namespace) -> int:
    from denoised_mdp.cli.completion import script

    print(script(arguments.shell))
    return 0


def _doctor(arguments: argparse.Namespace) -> int:
    from denoised_mdp.config import load_config

    check_run(arguments.overrides)
    overrides = options_of_one(arguments.overrides)
    config = load_config(overrides)
    from denoised_mdp.bench.doctor import doctor
    from denoised_mdp.config.effect import notes

    return doctor(config, notes(config, overrides))


def _bench(arguments: argparse.Namespace) -> int:
    from denoised_mdp.config import load_config

    check_run(arguments.overrides)
    overrides = arguments.overrides or ["preset=paper/cheetah_run_video_background"]
    config = load_config(overrides)
    from denoised_mdp.bench.update import PARTS, benchmark

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
