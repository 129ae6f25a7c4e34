"""All probes by name; each file holds one: its options, its run and its section of the report."""

from denoised_mdp.analysis.probe import Probe
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
from denoised_mdp.plugins import Registry

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
    """Make a probe of your own known as ``denoised-mdp probe name``; underscores become dashes there."""
    PROBES.register(name, probe)
