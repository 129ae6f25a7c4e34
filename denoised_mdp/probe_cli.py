"""The commands ``denoised-mdp probe factors | invariance | health | joints | joints-data``: arguments and output."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

from denoised_mdp.errors import UserError


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
    _add_joints(probes, positive, natural, device)
    _add_joints_data(probes, positive, natural)


def _add_joints(probes: argparse._SubParsersAction, positive: Callable, natural: Callable, device: Callable) -> None:
    help = "finetune encoders to read joint positions from pictures, and compare them"
    more = ". Finished finetunings are kept in --output: the same command goes on where it was stopped."
    parser = probes.add_parser("joints", help=help, description=help + more)
    parser.add_argument("runs", type=Path, nargs="+", metavar="RUN", help="folder of a run, e.g. runs/quickstart")
    parser.add_argument("--data", type=Path, required=True, metavar="FOLDER", help="data set, of probe joints-data")
    parser.add_argument("--output", type=Path, metavar="FOLDER", help="default: probes, and RUN/probes of each run")
    parser.add_argument(
        "--sizes", default="paper", help="training pairs: paper (5,000 to 150,000; the default), scaled (as many as the"
        " data set has, and fewer in the paper's ratios) or numbers as 500,1000",
    )  # fmt: skip
    parser.add_argument("--test-pairs", type=positive, help="default: 100000, or all that there are")
    parser.add_argument("--stack", choices=("1", "3", "both"), default="1", help="frames side by side; default: 1")
    parser.add_argument("--seeds", type=positive, default=1, help="repetitions; default: %(default)s")
    parser.add_argument("--updates", type=positive, default=10_000, help="of each finetuning; default: %(default)s")
    parser.add_argument("--batch", type=positive, default=256, help="pairs per update; default: %(default)s")
    parser.add_argument("--evaluations", type=positive, default=20, help="points of a curve; default: %(default)s")
    parser.add_argument(
        "--scale", choices=("physical", "standard"), default="physical",
        help="what the loss adds up: errors in rad and m (default), or of positions divided by their spread",
    )  # fmt: skip
    parser.add_argument("--references", choices=("both", "scratch", "contrastive", "none"), default="both",
                        help="encoders without a world model that join; default: both")  # fmt: skip
    parser.add_argument("--contrastive-updates", type=positive, default=20_000, help="default: %(default)s")
    parser.add_argument("--contrastive-batch", type=positive, default=256, help="default: %(default)s")
    parser.add_argument("--flip", action="store_true", help="contrastive: left and right do not matter in this task")
    parser.add_argument("--checkpoint", type=natural, metavar="STEP", help="default: the newest")
    parser.add_argument("--device", type=device, default="auto", help="auto, cpu, cuda or cuda:N")
    parser.set_defaults(function=_joints)


def _add_joints_data(probes: argparse._SubParsersAction, positive: Callable, natural: Callable) -> None:
    help = "make the labelled pictures for probe joints, or go on making them"
    parser = probes.add_parser("joints-data", help=help, description=help)
    parser.add_argument("source", nargs="+", metavar="RUN | key=value", help="a run, or options as for train")
    parser.add_argument("--output", type=Path, metavar="FOLDER", help="default: data/joints-TASK-DISTRACTORS")
    parser.add_argument("--episodes", type=positive, default=100, help="of each of five policies; default: %(default)s")
    parser.add_argument("--frames", type=positive, default=1001, help="of each episode; default: %(default)s")
    parser.add_argument("--test-share", type=float, default=0.4, help="of the episodes; default: %(default)s")
    parser.add_argument(
        "--sac-steps", type=positive, default=200_000,
        help="actions that the state-space policy learns from; its four stages are kept; default: %(default)s",
    )  # fmt: skip
    parser.add_argument("--seed", type=natural, default=0, help="default: %(default)s")
    parser.set_defaults(function=_joints_data)


def _joints(arguments: argparse.Namespace) -> int:
    sizes = _sizes(arguments.sizes)
    from denoised_mdp.analysis.joints import PAPER_SIZES, Schedule
    from denoised_mdp.analysis.joints_probe import CONTRASTIVE, SCRATCH, probe_joints

    lines = probe_joints(
        arguments.runs,
        arguments.output,
        data=arguments.data,
        sizes=PAPER_SIZES if sizes == "paper" else sizes,
        test_pairs=arguments.test_pairs,
        stack={"1": (1,), "3": (3,), "both": (1, 3)}[arguments.stack],
        seeds=arguments.seeds,
        schedule=Schedule(**{k: getattr(arguments, k) for k in ("updates", "batch", "evaluations", "scale")}),
        references={"both": (SCRATCH, CONTRASTIVE), "scratch": (SCRATCH,), "contrastive": (CONTRASTIVE,), "none": ()}[
            arguments.references
        ],
        contrastive={
            "updates": arguments.contrastive_updates, "batch": arguments.contrastive_batch, "flip": arguments.flip,
        },
        checkpoint=arguments.checkpoint,
        device=arguments.device,
    )  # fmt: skip
    print("\n".join(lines))
    return 0


def _sizes(text: str) -> str | list[int]:
    if text in ("paper", "scaled"):
        return text
    parts = text.split(",")
    if not all(part.isdecimal() and int(part) for part in parts):
        raise UserError(f"argument --sizes: must be paper, scaled or numbers as 500,1000, not '{text}'.")
    return [int(part) for part in parts]


def _joints_data(arguments: argparse.Namespace) -> int:
    if not 0 < arguments.test_share < 1:
        raise UserError(f"argument --test-share: must be between 0 and 1, not {arguments.test_share}.")
    from denoised_mdp.analysis.joints_record import make_data

    names = ("output", "episodes", "frames", "test_share", "sac_steps", "seed")
    print("\n".join(make_data(arguments.source, **{name: getattr(arguments, name) for name in names})))
    return 0


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
