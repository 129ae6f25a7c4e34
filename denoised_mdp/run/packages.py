"""The packages that only some configurations need."""

from __future__ import annotations

from denoised_mdp.config.schema import Config
from denoised_mdp.envs.ray_workers import ray_module
from denoised_mdp.run.mirrors import service_module


def refuse_missing(config: Config) -> None:
    """Raise UserError if a package that ``train.log_to`` or ``train.workers`` needs cannot be imported."""
    if config.train.workers == "ray":
        ray_module()
    service_module(config)
