"""The commands ``denoised-mdp probe factors | invariance | health | joints | joints-data``: arguments and output."""

from __future__ import annotations

import argparse
from pathlib import Path

from denoised_mdp.cli.arguments import add_checkpoint, add_count, add_options, add_runs, natural, positive, suggest
from denoised_mdp.errors import UserError
from denoised_mdp.progress import shown


def add_probe_commands(commands: argparse._SubParsersAction) -> None:
    """Add ``probe`` and its sub-commands."""
    help = "measure what the latents of runs hold"
    probe = commands.add_parser(
        "probe",
        help=help,
        description=f"{help.capitalize()}. Results are written to RUN/probes.",
        examples=("denoised-mdp probe factors runs/quickstart", "denoised-mdp probe health runs/a runs/b"),
    )
    probes = probe.add_subparsers(dest="probe", metavar="PROBE", required=True)
    factors = _add_probe(
        probes,
        "factors",
        "predict every true factor from each latent",
        36,
        200,
        "Signal recall is R^2 of the signal from x, leakage that of the noise from x.",
        across=True,
    )
    add_count(factors, "--seeds", 1, "random divisions of the episodes into folds")
    _add_behaviour(factors)
    invariance = _add_probe(
        probes,
        "invariance",
        "change the distractors and nothing else",
        6,
        150,
        "Shown is by how much the latents, the actions and the return change.",
    )
    add_count(invariance, "--worlds", 4, "seeds of the distractors")
    add_count(invariance, "--returns", 5, "whole episodes for each return, 0: none", type=natural)
    health = _add_probe(
        probes, "health", "count nats and active dimensions, and warn of latents that do nothing", 12, 150
    )
    _add_behaviour(health)
    _add_joints(probes)
    _add_joints_data(probes)


def _add_probe(
    probes: argparse._SubParsersAction,
    name: str,
    help: str,
    episodes: int,
    steps: int,
    more: str = "",
    *,
    across: bool = False,
) -> argparse.ArgumentParser:
    """Add a probe that plays episodes of its own."""
    parser = probes.add_parser(name, help=help, description=f"{help[0].upper()}{help[1:]}. {more}")
    add_runs(parser, several=True)
    parser.add_argument("--output", type=Path, metavar="FOLDER", help="default: RUN/probes")
    add_count(parser, "--episodes", episodes, "held-out episodes")
    add_count(parser, "--steps", steps, "actions per episode")
    what = "background clips: those of training (default), held-out ones"
    if across:
        what += ", or across: fit on the first and test on the second"
    parser.add_argument("--split", choices=("train", "test", *["across"] * across), default="train", help=what)
    add_checkpoint(parser)
    parser.set_defaults(function=_probe)
    return parser


def _add_behaviour(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--behaviour",
        choices=("mixed", "random", "agent"),
        default="mixed",
        help="who acts: the agent with its exploration noise, random actions (the same for all runs), or each in turn"
        " (mixed, the default)",
    )


def _add_joints(probes: argparse._SubParsersAction) -> None:
    help = "finetune encoders to read joint positions from pictures, and compare them"
    more = "Finished finetunings are kept in --output: repeat the command to resume."
    parser = probes.add_parser(
        "joints",
        help=help,
        description=f"{help.capitalize()}. {more}",
        examples=("denoised-mdp probe joints-data runs/a", "denoised-mdp probe joints runs/a --data data/joints-..."),
    )
    add_runs(parser, several=True)
    parser.add_argument(
        "--data", type=Path, required=True, metavar="FOLDER", help="data set made by probe joints-data (required)"
    )
    parser.add_argument("--output", type=Path, metavar="FOLDER", help="default: probes, and RUN/probes of each run")
    parser.add_argument(
        "--sizes",
        default="paper",
        help="training pairs: paper (5,000 to 150,000; the default), scaled (all of the"
        " data set, and fewer in the paper's ratios), or numbers such as 500,1000",
    )
    parser.add_argument(
        "--test-pairs", type=positive, metavar="N", help="default: 100,000, or all of the data set if it has fewer"
    )
    parser.add_argument(
        "--stack", choices=("1", "3", "both"), default="1", help="frames whose features are joined; default: 1"
    )
    add_count(parser, "--seeds", 1, "repetitions")
    add_count(parser, "--updates", 10_000, "updates of each finetuning")
    add_count(parser, "--batch", 256, "pairs per update")
    add_count(parser, "--evaluations", 20, "points of each curve")
    parser.add_argument(
        "--scale",
        choices=("physical", "standard"),
        default="physical",
        help="unit of the loss: rad and m (physical, the default), or each position's standard deviation",
    )
    parser.add_argument(
        "--references",
        choices=("both", "scratch", "contrastive", "none"),
        default="both",
        help="encoders without a world model to compare with; default: both",
    )
    add_count(parser, "--contrastive-updates", 20_000, "updates of the contrastive encoder")
    add_count(parser, "--contrastive-batch", 256, "pictures per update of the contrastive encoder")
    parser.add_argument(
        "--flip", action="store_true", help="let the contrastive encoder ignore left and right, where both are alike"
    )
    add_checkpoint(parser)
    parser.set_defaults(function=_joints)


def _add_joints_data(probes: argparse._SubParsersAction) -> None:
    help = "make the labelled pictures for probe joints"
    more = "Five policies of different quality play. Repeat the command to resume."
    parser = probes.add_parser(
        "joints-data",
        help=help,
        description=f"{help.capitalize()}. {more}",
        keyed="source",
        examples=("denoised-mdp probe joints-data runs/a", "denoised-mdp probe joints-data env.task=walker_walk"),
    )
    add_options(parser, "source", "+", "RUN | key=value", "a run, or options as for train")
    parser.add_argument("--output", type=Path, metavar="FOLDER", help="default: data/joints-TASK-DISTRACTORS")
    add_count(parser, "--episodes", 100, "episodes of each of the five policies")
    add_count(parser, "--frames", 1001, "frames of each episode")
    parser.add_argument(
        "--test-share", type=float, default=0.4, metavar="SHARE", help="share of the episodes; default: %(default)s"
    )
    add_count(parser, "--sac-steps", 200_000, "actions that the state-space policy learns from")
    add_count(parser, "--seed", 0, "seed of the policies and episodes", type=natural)
    parser.set_defaults(function=_joints_data)


def _joints(arguments: argparse.Namespace) -> int:
    sizes = _sizes(arguments.sizes)
    from denoised_mdp.analysis.joints.probe import CONTRASTIVE, SCRATCH, probe_joints
    from denoised_mdp.analysis.joints.regression import PAPER_SIZES, Schedule

    references = {"both": (SCRATCH, CONTRASTIVE), "scratch": (SCRATCH,), "contrastive": (CONTRASTIVE,), "none": ()}
    with shown():
        lines = probe_joints(
            arguments.runs,
            arguments.output,
            data=arguments.data,
            sizes=PAPER_SIZES if sizes == "paper" else sizes,
            test_pairs=arguments.test_pairs,
            stack={"1": (1,), "3": (3,), "both": (1, 3)}[arguments.stack],
            seeds=arguments.seeds,
            schedule=Schedule(**{k: getattr(arguments, k) for k in ("updates", "batch", "evaluations", "scale")}),
            references=references[arguments.references],
            contrastive={
                "updates": arguments.contrastive_updates,
                "batch": arguments.contrastive_batch,
                "flip": arguments.flip,
            },
            checkpoint=arguments.checkpoint,
            device=arguments.device,
        )
    print("\n".join(lines))
    suggest(["report", *arguments.runs])
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
    from denoised_mdp.analysis.joints.record import make_data

    names = ("output", "episodes", "frames", "test_share", "sac_steps", "seed")
    with shown():
        lines = make_data(arguments.source, **{name: getattr(arguments, name) for name in names})
    print("\n".join(lines))
    return 0


def _probe(arguments: argparse.Namespace) -> int:
    from denoised_mdp.analysis import probe

    given = ("command", "probe", "function", "runs", "output")
    options = {key: value for key, value in vars(arguments).items() if key not in given}
    function = {"factors": probe.probe_factors, "invariance": probe.probe_invariance, "health": probe.probe_health}[
        arguments.probe
    ]
    with shown():
        lines = function(arguments.runs, arguments.output, **options)
    print("\n".join(lines))
    suggest(["report", *arguments.runs, *(["--probes", arguments.output] if arguments.output else [])])
    return 0
