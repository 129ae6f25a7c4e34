"""Sweeps: one training run for each combination of values, or for each run of a grid.

Hydra launches the jobs and combines values on the command line. We compose each job's configuration.
"""

from __future__ import annotations

import logging
import os
import re
import signal
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any
from unittest import mock

from denoised_mdp.analysis.status import status_of
from denoised_mdp.cli.grid import Job, grid_folder, of_grid
from denoised_mdp.cli.words import check_values, plain, plain_value, quote, translate_multirun, word_of
from denoised_mdp.config import load_config, read_config
from denoised_mdp.config.choices import GROUPS, choices
from denoised_mdp.config.compare import obstacles
from denoised_mdp.config.compose import explain, merge
from denoised_mdp.config.overrides import is_hydra, value_of
from denoised_mdp.config.schema import Config
from denoised_mdp.errors import UserError, did_you_mean
from denoised_mdp.run.folder import RunFolder

HYDRA = {  # one folder per job; the same command has the same folders, so a sweep can continue
    "output_subdir": None,
    "sweep": {"dir": "runs/sweep", "subdir": "${plain:${hydra.job.override_dirname}}"},
    # By default, log messages of every library would be shown, also after the sweep.
    "hydra_logging": {
        "root": {"level": "WARNING"},
        "loggers": {"hydra": {"level": "INFO"}, "hydra_plugins": {"level": "INFO"}},
    },
}

LAUNCHERS = {"joblib": "joblib", "ray": "ray", "ray_aws": "ray", "submitit_local": "slurm", "submitit_slurm": "slurm"}
"""launchers that are plug-ins of Hydra -> the extra of our package that installs each"""


def sweep(overrides: list[str], train: Callable[[list[str]], int]) -> None:
    """Call `train` with the overrides of every job, one after the other or as the chosen launcher does.

    A job whose folder is in use is left to the process that trains there, so a sweep may be started several times.

    Args:
        overrides: as on the command line, with several values for some options, and Hydra's own options; or with
            ``sweep=``, see `grid`.
        train: trains and returns the exit code. A failed job does not end the others. A job that a signal stopped ends
            once everything is saved, or is requeued by a launcher that handles the signal.

    Raises:
        UserError: an override is not understood, or Hydra refuses it.
        JobFailed: a job failed; all others have ended.
    """
    if any(map(of_grid, overrides)):
        translated, jobs = translate_grid(overrides)
        if not jobs:
            print("All runs of this sweep are finished.")
            return
    else:
        (translated, fixed), jobs = translate_multirun(overrides), {}
        check_values(translated)
        _register({key: value_of(key, fixed[key]) for key in GROUPS if key in fixed})

    def job(_: Any) -> None:
        words, folder = words_of_job(jobs)
        if RunFolder(folder).in_use():
            print(f"{folder}: another process trains it; left to that one", flush=True)
            return
        code = train(words)
        if code > 128:
            hand_on(code - 128)
        if code and not taken_over(words):
            raise JobFailed(code)

    launch(translated, job)


def taken_over(words: Sequence[str]) -> bool:
    """Whether a job was refused only because another process began it at the same moment."""
    try:
        return state_of(load_config(words))[0] in ("running", "finished")
    except (UserError, OSError):  # a mistake in the job, another run in its folder, or an unreadable folder
        return False


def launch(arguments: Sequence[str], job: Callable[[Any], None]) -> None:
    """Let Hydra call `job` for each combination of values; `arguments` are in Hydra's grammar."""
    import hydra
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    # For hydra.sweep.subdir. A single run, in which nothing varies, also gets a folder inside the sweep's.
    OmegaConf.register_new_resolver("plain", lambda text: plain(text) or "run", replace=True)
    words = ["denoised-mdp train", "--multirun", *arguments]
    with (
        mock.patch.object(sys, "argv", words),
        mock.patch.dict(os.environ, HYDRA_FULL_ERROR="1"),  # so that Hydra raises
        mock.patch.object(logging, "shutdown"),  # with which Hydra would close all handlers: absl's, standard error
    ):
        try:
            hydra.main(version_base="1.3", config_path=None, config_name="sweep")(job)()
        except (hydra.errors.HydraException, OmegaConfBaseException) as error:
            group, _, name = (getattr(error, "missing_cfg_file", None) or "").rpartition("/")
            if group == "hydra/launcher" and name in LAUNCHERS:
                needs = f"needs a plug-in of Hydra: pip install 'denoised-mdp[{LAUNCHERS[name]}]'"
                raise UserError(f"hydra/launcher={name} {needs}.") from error
            if group == "hydra/launcher":
                raise UserError(
                    f"hydra/launcher={name}: unknown launcher.{did_you_mean(name, ['basic', *LAUNCHERS])}"
                ) from error
            raise UserError(explain(error)) from error
        except (ConnectionError, ValueError) as error:  # from a launcher; a ConnectionError is an OSError too
            launcher = [word for word in arguments if word.startswith("hydra/launcher=") and not word.endswith("basic")]
            if not launcher:
                raise
            raise UserError(f"{launcher[-1]}: {error}") from error
        except OSError as error:
            raise UserError(f"The sweep's folder cannot be used ({error}). Choose another run_dir.") from error


def translate_grid(overrides: list[str]) -> tuple[list[str], dict[str, Job]]:
    """Return the words for Hydra, and those jobs of a grid that are not finished, by the names of their folders."""
    folder, every = grid_folder(overrides)
    jobs = {job.name: job for job in every if state_of(config_of(job, folder))[0] != "finished"}
    _register({})
    words = [word for word in overrides if is_hydra(word.partition("=")[0])]
    words += [f"hydra.sweep.dir={quote(folder)}", "hydra.sweep.subdir=${job}"]
    return [*words, f"+job={','.join(map(quote, jobs))}"], jobs


def config_of(job: Job, folder: str) -> Config:
    """Return the configuration of a job in its grid's folder.

    Raises:
        UserError: it does not load. The message names the job, since the options may come from a file.
    """
    try:
        return load_config(job.options_in(folder))
    except UserError as error:
        raise UserError(f"run {job.name} of the sweep: {error}") from error


def state_of(config: Config) -> tuple[str, float]:
    """Return the state of a configuration's run (``new``, or see `Status`), and the share of its steps that is done.

    Raises:
        UserError: the folder holds a run of another configuration.
    """
    folder = RunFolder(config.run_dir)
    if not folder.config.is_file():
        return "new", 0.0
    folder.refuse_changes(obstacles(read_config(folder.path), config))
    run = status_of(folder.path)
    longer = run.state == "finished" and run.step < config.train.total_steps
    return "stopped" if longer else run.state, min(1.0, run.step / config.train.total_steps)


def show_grid(overrides: list[str]) -> None:
    """Print the state and expected hours of every run of a grid, timed on this machine; nothing is written."""
    from denoised_mdp.bench.estimate import Hours

    folder, jobs = grid_folder(overrides)
    hours, total, counts = Hours(), 0.0, Counter()
    configs = [config_of(job, folder) for job in jobs]  # a mistake in any of them shows before the timing
    print(f"{'state':8}  {'hours':>7}  run")
    for config in configs:
        state, done = state_of(config)
        left = hours.of(config) * (1 - done)
        print(f"{state:8}  {left:7.1f}  {config.run_dir}", flush=True)
        counts[state] += 1
        total += left
    states = ", ".join(f"{count} {state}" for state, count in sorted(counts.items()))
    print(f"{states}; {total:,.1f} hours on this machine, one after the other")


def _register(said: dict[str, Any]) -> None:
    """Register a configuration with Hydra, with the choices `said` that all jobs share, and the groups' names."""
    from hydra.core.config_store import ConfigStore
    from omegaconf import OmegaConf

    store = ConfigStore.instance()
    groups = [{group: [] if group == "distractors" else None} for group in GROUPS]
    store.store(
        "sweep",
        OmegaConf.to_container(merge(said))
        | {"defaults": ["_self_", *groups, {"override hydra/job_logging": "none"}], "hydra": HYDRA},
    )
    for group in GROUPS:
        for name in choices(group):
            folder, _, name = f"{group}/{name}".rpartition("/")
            store.store(name, {}, group=folder, package="_global_")


class JobFailed(UserError):
    """A job's training failed, and has reported why."""

    def __init__(self, exit_code: int):
        super().__init__("a run of the sweep has failed, see above; if it began, 'denoised-mdp status' says why, too.")
        self.exit_code = exit_code

    def __reduce__(self):  # launchers send it between processes
        return JobFailed, (self.exit_code,)


def hand_on(number: int) -> None:
    """End a job that a signal stopped, or let its launcher requeue it.

    Submitit handles SIGUSR1 or SIGUSR2 by requeueing the job. While a run trains, they save the run instead.
    """
    users = (signal.SIGUSR1, signal.SIGUSR2)
    for handled in users if number in users else ():
        if callable(signal.getsignal(handled)):
            signal.raise_signal(handled)  # does not return
    raise SystemExit(128 + number)


def words_of_job(jobs: Mapping[str, Job]) -> tuple[list[str], str]:
    """Return the command line of the job that Hydra is running, and its assigned folder; `jobs` are a grid's."""
    from hydra.core.hydra_config import HydraConfig

    job, result = HydraConfig.get(), []
    for text in job.overrides.task:
        key, _, value = text.lstrip("+").partition("=")
        if key == "job":
            result += jobs[plain_value(key, value)].overrides
            continue
        result.append(word_of(text))
    folder = job.runtime.output_dir
    inner = re.sub(r"(\\*)\$\{", r"\1\1\\${", folder)  # escape what OmegaConf would take for an interpolation
    return [*result, f"run_dir={quote(inner)}"], folder
