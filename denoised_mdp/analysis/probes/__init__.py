"""All probes by name. Each file holds one probe: its options, its run function and its section of the report."""

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
"""names that the command line uses for something other than a probe's options"""

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
    """Register your own probe as the command ``denoised-mdp probe name``, with dashes for underscores.

    Raises:
        UserError: another probe has this name, or its options cannot be flags of a command.
    """
    if not (isinstance(probe.Options, type) and issubclass(probe.Options, Options)):
        raise UserError(f"probe {name!r}: its options do not extend denoised_mdp.analysis.probe.Options.")
    check_options(probe.Options, f"probe {name!r}", flags=True)
    for field in dataclasses.fields(probe.Options):
        if field.name in RESERVED:
            raise UserError(f"probe {name!r}: its option {field.name!r} means something else: choose another name.")
    PROBES.register(name, probe)
