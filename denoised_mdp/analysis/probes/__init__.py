"""All probes by name; each file holds one: its options, its run and its section of the report."""

import dataclasses

from denoised_mdp.analysis.probe import Options, Probe
from denoised_mdp.analysis.probes import (
    distance,
    equivalence,
    factors,
    health,
    invariance,
    joints,
    joints_data,
    similarity,
)
from denoised_mdp.errors import UserError
from denoised_mdp.options import check_options
from denoised_mdp.plugins import Registry

RESERVED = ("command", "function", "help", "probe", "runs")
"""what the command line calls other things than options of probes"""

PROBES: Registry[Probe] = Registry(
    "probe",
    {
        "factors": factors.PROBE,
        "invariance": invariance.PROBE,
        "health": health.PROBE,
        "similarity": similarity.PROBE,
        "equivalence": equivalence.PROBE,
        "distance": distance.PROBE,
        "joints": joints.PROBE,
        "joints_data": joints_data.PROBE,
    },
)


def register_probe(name: str, probe: Probe) -> None:
    """Make a probe of your own known as ``denoised-mdp probe name``; underscores become dashes there.

    Raises:
        UserError: another probe has the name, or its options cannot be flags of a command.
    """
    if not (isinstance(probe.Options, type) and issubclass(probe.Options, Options)):
        raise UserError(f"probe {name!r}: its options do not extend denoised_mdp.analysis.probe.Options.")
    check_options(probe.Options, f"probe {name!r}", flags=True)
    for field in dataclasses.fields(probe.Options):
        if field.name in RESERVED:
            raise UserError(f"probe {name!r}: its option {field.name!r} means something else: choose another name.")
    PROBES.register(name, probe)
