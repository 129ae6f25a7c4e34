"""The commands ``denoised-mdp probe NAME``: one for each registered probe."""

from __future__ import annotations

import argparse

from denoised_mdp.analysis.probes import PROBES, RESERVED
from denoised_mdp.cli.arguments import add_command, add_fields, add_options, add_runs, suggest
from denoised_mdp.progress import shown


def add_probe_commands(commands: argparse._SubParsersAction, *, wanted: bool) -> None:
    """Add ``probe`` and, if `wanted`, its subcommands, for which plug-ins are imported."""
    parser = add_command(
        commands,
        "probe",
        None,
        "measure what the latents of runs hold",
        ". Results are written to RUN/probes.",
        examples=("denoised-mdp probe factors runs/quickstart", "denoised-mdp probe health runs/a runs/b"),
    )
    probes = parser.add_subparsers(dest="probe", metavar="PROBE", required=True)
    for name, probe in PROBES.items() if wanted else ():
        one = add_command(
            probes,
            name.replace("_", "-"),
            _probe,
            probe.help,
            f". {probe.more}",
            examples=probe.examples,
            keyed="runs" if probe.keyed else None,
        )
        if probe.keyed:
            add_options(one, "runs", "+", "RUN | key=value", "a run, or options as for train")
        else:
            add_runs(one, several=True)
        add_fields(one, probe.Options)


def _probe(arguments: argparse.Namespace) -> int:
    probe = PROBES[arguments.probe.replace("-", "_")]
    options = probe.Options(**{key: value for key, value in vars(arguments).items() if key not in RESERVED})
    with shown():
        lines = probe.run(arguments.runs, options)
    print("\n".join(lines))
    if not probe.keyed:
        suggest(["report", *arguments.runs, *(["--probes", options.output] if options.output else [])])
    return 0
