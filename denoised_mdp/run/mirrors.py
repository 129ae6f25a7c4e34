"""Services that get a copy of every metric: Weights & Biases and MLflow. The run folder remains the reference."""

from __future__ import annotations

import contextlib
import json
import os
import re
import secrets
import time
import warnings
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol

from denoised_mdp.config import as_tree
from denoised_mdp.config.compose import flatten
from denoised_mdp.config.schema import Config
from denoised_mdp.errors import UserError, one_line
from denoised_mdp.files import read_json, replace_file
from denoised_mdp.run.folder import RunFolder

PROJECT = "denoised-mdp"
MOST_LETTERS = 500
"""characters of one parameter in MLflow"""
MOST_PARAMS = 100
"""parameters per request to MLflow; the limit for metrics is 1,000"""


class Mirror(Protocol):
    """Takes the metrics of one run; a continued run continues in the service."""

    def log(self, step: int, numbers: Mapping[str, float]) -> None:
        """Send the metrics of one environment step."""

    def close(self, failed: bool) -> None:
        """Send what is left, and whether an error ended the run. A stopped run has not failed."""


class Known:
    """The services' names for a run, kept in its folder so that a continued run continues in the service.

    A moved run keeps its names. A copy beside the original may continue differently, so it is a new run to the service.
    """

    def __init__(self, config: Config):
        self.path, self.folder = RunFolder(config.run_dir).service, os.path.realpath(config.run_dir)
        self.names: dict[str, str] = {}
        # A missing or damaged file means a new name.
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError, AttributeError):
            tree = read_json(self.path)
            if tree["folder"] == self.folder or not os.path.exists(tree["folder"]):
                self.names = {str(service): str(name) for service, name in tree["names"].items()}

    @property
    def title(self) -> str:
        """The display name of the run."""
        return Path(self.folder).name

    def keep(self, service: str, name: str) -> None:
        """Record the name by which this service knows the run from now on."""
        self.names[service] = name
        tree = {"folder": self.folder, "names": self.names}
        replace_file(self.path, (json.dumps(tree) + "\n").encode())


class WandB:
    """A run of Weights & Biases, see `Known`. ``WANDB_MODE=offline`` keeps everything in ``RUN/wandb``."""

    package = "wandb"

    def __init__(self, config: Config):
        known = Known(config)
        name = known.names.get(self.package) or secrets.token_hex(8)
        about = {"project": PROJECT, "id": name, "name": known.title, "resume": "allow"}
        self.run = _module(self.package).init(dir=config.run_dir, config=as_tree(config), **about)
        known.keep(self.package, name)
        self.run.define_metric("*", step_metric="step")  # W&B's own steps may not go back, as a resumed run's do

    def log(self, step: int, numbers: Mapping[str, float]) -> None:
        """See `Mirror`."""
        self.run.log({"step": step, **numbers})

    def close(self, failed: bool) -> None:
        """See `Mirror`."""
        self.run.finish(exit_code=int(failed))


class MLflow:
    """A run of MLflow, see `Known`, in the store that ``MLFLOW_TRACKING_URI`` names."""

    package = "mlflow"

    def __init__(self, config: Config):
        self.client, known = _module(self.package).MlflowClient(), Known(config)
        experiment, before = self._experiment(), known.names.get(self.package)
        self.id = before if before and self._has(before) else self._create(experiment, known, config)
        known.keep(self.package, self.id)
        self.client.update_run(self.id, "RUNNING")  # a continued run still has the status it ended with

    def _has(self, run: str) -> bool:
        """Whether the store has this run: since the run's start the store may have changed, or lost it."""
        try:
            return self.client.get_run(run).info.lifecycle_stage == "active"
        except _module(f"{self.package}.exceptions").MlflowException as error:
            if error.error_code != "RESOURCE_DOES_NOT_EXIST":
                raise
            return False

    def _experiment(self) -> str:
        """The experiment shared by all runs. The first run creates it; of several that begin at once, one succeeds."""
        if found := self.client.get_experiment_by_name(PROJECT):
            return found.experiment_id
        try:
            return self.client.create_experiment(PROJECT)
        except Exception:  # another run may have just created it
            if found := self.client.get_experiment_by_name(PROJECT):
                return found.experiment_id
            raise

    def _create(self, experiment: str, known: Known, config: Config) -> str:
        run = self.client.create_run(experiment, tags={"run_dir": known.folder}, run_name=known.title).info.run_id
        param = _module(f"{self.package}.entities").Param
        params = [param(key, str(value)[:MOST_LETTERS]) for key, value in flatten(as_tree(config))]
        for begin in range(0, len(params), MOST_PARAMS):
            self.client.log_batch(run, params=params[begin : begin + MOST_PARAMS])
        return run

    def log(self, step: int, numbers: Mapping[str, float]) -> None:
        """See `Mirror`."""
        metric, now = _module(f"{self.package}.entities").Metric, int(1000 * time.time())  # in milliseconds
        named = ((re.sub(r"[^/\w.\- ]", "_", name), value) for name, value in numbers.items())  # MLflow refuses others
        self.client.log_batch(self.id, metrics=[metric(name, value, now, step) for name, value in named])

    def close(self, failed: bool) -> None:
        """See `Mirror`."""
        self.client.set_terminated(self.id, "FAILED" if failed else "FINISHED")


class Careful:
    """A mirror whose failures do not end the run: the first causes a warning, and the run goes on without it."""

    def __init__(self, mirror: Mirror):
        self.mirror: Mirror | None = mirror

    def log(self, step: int, numbers: Mapping[str, float]) -> None:
        """See `Mirror`."""
        self._try("log", step, numbers)

    def close(self, failed: bool) -> None:
        """See `Mirror`."""
        self._try("close", failed)

    def _try(self, what: str, *arguments: Any) -> None:
        try:
            if self.mirror is not None:
                getattr(self.mirror, what)(*arguments)
        except Exception as error:  # anything a network or a server can raise
            name, self.mirror = type(self.mirror).__name__, None
            warnings.warn(f"{name} gets no more metrics ({one_line(error, 200)}); the run goes on", stacklevel=3)


MIRRORS = {"wandb": WandB, "mlflow": MLflow}


def service_module(config: Config) -> Any:
    """The module of the service that ``train.log_to`` names, or None.

    Raises:
        UserError: it cannot be imported.
    """
    package = getattr(MIRRORS.get(config.train.log_to), "package", None)
    return _module(package) if package else None


def mirror_of(config: Config) -> Mirror | None:
    """A mirror for the service that ``train.log_to`` names, or None.

    Raises:
        UserError: its package is not installed, or it cannot be reached.
    """
    kind = config.train.log_to
    if kind == "none":
        return None
    try:
        return Careful(MIRRORS[kind](config))
    except UserError:
        raise
    except Exception as error:
        raise UserError(f"train.log_to={kind}: it cannot be used ({one_line(error, 300)}).") from error


def _module(name: str) -> Any:
    try:
        return import_module(name)
    except ImportError as error:
        raise UserError(f"train.log_to={name} needs a package: pip install 'denoised-mdp[{name}]'.") from error
    except Exception as error:  # a broken installation
        raise UserError(f"train.log_to={name}: it cannot be used ({one_line(error, 300)}).") from error
