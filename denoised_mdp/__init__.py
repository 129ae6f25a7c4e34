"""Denoised MDPs: world models that keep only what matters (Wang et al. 2022)."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from denoised_mdp.envs import register_envs
from denoised_mdp.errors import UserError

if TYPE_CHECKING:
    from denoised_mdp.run.environments import make_env
    from denoised_mdp.run.load import load

__version__ = "0.1.0"
__all__ = ["UserError", "load", "make_env", "register_envs"]

REGISTER = {
    "register_suite": "denoised_mdp.envs.suites",
    "register_distractor": "denoised_mdp.envs.options",
    "register_policy": "denoised_mdp.agents.registry",
    "register_agent": "denoised_mdp.agents.registry",
    "register_model": "denoised_mdp.agents.registry",
    "register_table": "denoised_mdp.config.choices",
    "register_probe": "denoised_mdp.analysis.probes",
}
"""functions that plug-ins call, and the modules that define them: see docs/extending.md"""

register_envs()


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, *REGISTER})  # with the names that `__getattr__` imports


def __getattr__(name: str):
    if name == "load":  # PyTorch is imported only on demand: environments work without it
        from denoised_mdp.run.load import load

        return load
    if name == "make_env":  # so is the code that reads configurations
        from denoised_mdp.run.environments import make_env

        return make_env
    if name in REGISTER:
        return getattr(import_module(REGISTER[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
