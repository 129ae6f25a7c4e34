"""Services that get a copy of every metric: Weights & Biases and MLflow. What counts stays in the run folder."""

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
"""of one parameter in MLflow"""
MOST_PARAMS = 100
"""of one request to MLflow; it takes 1,000 metrics"""


class Mirror(Protocol):
    """Takes the metrics of one run; a continued run continues in the service."""

    def log(self, step: int, numbers: Mapping[str, float]) -> None:
        """The metrics of one environment step."""

    def close(self, failed: bool) -> None:
        """Send what is left, and whether an error has ended the run; one that was stopped has not failed."""


class Known:
    """What a service calls the run in a folder, kept there, so that a continued run continues in the service.

    Also where it was moved; but a copy beside the original, which may be continued otherwise, is another run to it.
    """

    def __init__(self, config: Config):
        self.path, self.folder = RunFolder(config.run_dir).service, os.path.realpath(config.run_dir)
        self.names: dict[str, str] = {}
        # None yet, or a damaged one: a new name.
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError, AttributeError):
            tree = read_json(self.path)
            if tree["folder"] == self.folder or not os.path.exists(tree["folder"]):
                self.names = {str(service): str(name) for service, name in tree["names"].items()}

    @property
    def title(self) -> str:
        """What people read."""
        return Path(self.folder).name

    def keep(self, service: str, name: str) -> None:
        """Write the name that this service knows from now on."""
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
        self.run.define_metric("*", step_metric="step")  # its own steps may not go back, as those of a resumed run do

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
        self.client.update_run(self.id, "RUNNING")  # one that goes on has the status of its last end

    def _has(self, run: str) -> bool:
        """Whether the store has this run: it may be another store than at the run's start, or have lost it."""
        try:
            return self.client.get_run(run).info.lifecycle_stage == "active"
        except _module(f"{self.package}.exceptions").MlflowException as error:
            if error.error_code != "RESOURCE_DOES_NOT_EXIST":
                raise
            return False

    def _experiment(self) -> str:
        """The experiment of all runs; the first run makes it, and of several that begin at once one is first."""
        if found := self.client.get_experiment_by_name(PROJECT):
            return found.experiment_id
        try:
            return self.client.create_experiment(PROJECT)
        except Exception:  # of another one's making, perhaps
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
        named = ((re.sub(r"[^/\w.\- ]", "_", name), value) for name, value in numbers.items())  # as MLflow wants them
        self.client.log_batch(self.id, metrics=[metric(name, value, now, step) for name, value in named])

    def close(self, failed: bool) -> None:
        """See `Mirror`."""
        self.client.set_terminated(self.id, "FAILED" if failed else "FINISHED")


class Careful:
    """A mirror whose failures end nothing: the first is a warning, and the run goes on without it."""

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
        except Exception as error:  # whatever a network or a server brings about
            name, self.mirror = type(self.mirror).__name__, None
            warnings.warn(f"{name} gets no more metrics ({one_line(error, 200)}); the run goes on", stacklevel=3)


MIRRORS = {"wandb": WandB, "mlflow": MLflow}


def service_module(config: Config) -> Any:
    """The module of the service that ``train.log_to`` names; None without one.

    Raises:
        UserError: it cannot be imported.
    """
    package = getattr(MIRRORS.get(config.train.log_to), "package", None)
    return _module(package) if package else None


def mirror_of(config: Config) -> Mirror | None:
    """The service that ``train.log_to`` names; None without one.

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
    except Exception as error:  # one that is not whole
        raise UserError(f"train.log_to={name}: it cannot be used ({one_line(error, 300)}).") from error
