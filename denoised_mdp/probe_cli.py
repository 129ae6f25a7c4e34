"""The commands ``denoised-mdp probe factors | invariance | health``: their arguments, and what they print."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path


def add_probe_commands(
    commands: argparse._SubParsersAction, positive: Callable, natural: Callable, device: Callable
) -> None:
    """Add ``probe`` and its sub-commands; the last three parse numbers of at least 1 and 0, and a device."""
    probe = commands.add_parser("probe", help="measure what the latents of runs hold")
    probes = probe.add_subparsers(dest="probe", metavar="PROBE", required=True)

    def add(name: str, help: str, episodes: int, steps: int, clips: tuple[str, ...]) -> argparse.ArgumentParser:
        parser = probes.add_parser(name, help=help, description=help)
        parser.add_argument("runs", type=Path, nargs="+", metavar="RUN", help="folder of a run, e.g. runs/quickstart")
        parser.add_argument("--output", type=Path, metavar="FOLDER", help="default: RUN/probes")
        parser.add_argument("--episodes", type=positive, default=episodes, help="default: %(default)s")
        parser.add_argument("--steps", type=positive, default=steps, help="actions per episode; default: %(default)s")
        parser.add_argument("--split", choices=clips, default="train", help="background clips; default: train")
        parser.add_argument("--checkpoint", type=natural, metavar="STEP", help="default: the newest")
        parser.add_argument("--device", type=device, default="auto", help="auto, cpu, cuda or cuda:N")
        parser.set_defaults(function=_probe)
        return parser

    def add_behaviour(parser: argparse.ArgumentParser) -> None:
        parser.add_argument(
            "--behaviour",
            choices=("mixed", "random", "agent"),
            default="mixed",
            help="who acts: the agent as while collecting, random actions (the same for all runs), or each in turn",
        )

    factors = add("factors", "predict every true factor from each latent", 36, 200, ("train", "test", "across"))
    factors.add_argument("--seeds", type=positive, default=3, help="divisions of the episodes; default: %(default)s")
    add_behaviour(factors)
    invariance = add("invariance", "change the distractors and nothing else", 6, 150, ("train", "test"))
    invariance.add_argument("--worlds", type=positive, default=4, help="seeds of the distractors; default: %(default)s")
    invariance.add_argument(
        "--returns", type=natural, default=5, help="whole episodes for each return, 0: none; default: %(default)s"
    )
    add_behaviour(add("health", "nats, active dimensions and warnings", 12, 150, ("train", "test")))


def _probe(arguments: argparse.Namespace) -> int:
    from denoised_mdp.analysis import probe

    options = {key: value for key, value in vars(arguments).items() if key not in ("command", "probe", "function")}
    function = {
        "factors": probe.probe_factors,
        "invariance": probe.probe_invariance,
        "health": probe.probe_health,
    }[arguments.probe]
    for line in function(options.pop("runs"), options.pop("output"), **options):
        print(line)
    return 0
