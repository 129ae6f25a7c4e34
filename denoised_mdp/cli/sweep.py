"""Sweeps: one training for each combination of values. Hydra finds the combinations and launches; we compose each."""

from __future__ import annotations

import os
import re
import signal
import sys
import zlib
from collections.abc import Callable
from typing import Any
from unittest import mock

from denoised_mdp.config import MAY_CHANGE, expanded
from denoised_mdp.config.compose import (
    GROUPS,
    QUOTED,
    TEXTS,
    check_choice,
    choices,
    distractor_sets,
    explain,
    flatten,
    is_hydra,
    merge,
    parse,
    split,
    value_of,
)
from denoised_mdp.config.validate import as_text
from denoised_mdp.errors import UserError

LONGEST = 100  # characters of the folder's name; file systems allow 255 bytes
HYDRA = {  # one folder per job, the same for the same command, so that a sweep can continue
    "output_subdir": None,
    "sweep": {"dir": "runs/sweep", "subdir": "${plain:${hydra.job.override_dirname}}"},
}


def sweep(overrides: list[str], train: Callable[[list[str]], int]) -> None:
    """Call `train` with the overrides of every job, one after the other or as the chosen launcher does.

    Args:
        overrides: as on the command line, with several values where a sweep is wanted, and options of Hydra.
        train: returns the exit code of a training. One that failed ends no other; one that a signal stopped is ended,
            or requeued by a launcher that handles the signal, once everything is saved.

    Raises:
        UserError: an override is not understood, or Hydra refuses it.
        JobFailed: a job has failed; all others have come to their end.
    """
    import hydra
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    def job(_: Any) -> None:
        code = train(overrides_of_job())
        if code > 128:
            hand_on(code - 128)
        if code:
            raise JobFailed(code)

    translated, fixed = translate_multirun(overrides)
    _register(fixed)
    OmegaConf.register_new_resolver("plain", plain, replace=True)  # for hydra.sweep.subdir
    arguments = ["denoised-mdp train", "--multirun", *translated]
    with mock.patch.object(sys, "argv", arguments), mock.patch.dict(os.environ, HYDRA_FULL_ERROR="1"):  # it raises
        try:
            hydra.main(version_base="1.3", config_path=None, config_name="sweep")(job)()
        except (hydra.errors.HydraException, OmegaConfBaseException) as error:
            raise UserError(explain(error)) from error
        except OSError as error:
            raise UserError(f"The sweep's folder cannot be used ({error}). Choose another run_dir.") from error


def _register(fixed: dict[str, str]) -> None:
    """Give Hydra a configuration to refer to, with the choices that all jobs share, and the groups' names."""
    from hydra.core.config_store import ConfigStore
    from omegaconf import OmegaConf

    store = ConfigStore.instance()
    tree = OmegaConf.to_container(merge({key: value_of(key, fixed[key]) for key in GROUPS if key in fixed}))
    groups = [{group: [] if group == "distractors" else None} for group in GROUPS]
    store.store(
        "sweep", tree | {"defaults": ["_self_", *groups, {"override hydra/job_logging": "none"}], "hydra": HYDRA}
    )
    for group in GROUPS:
        for name in choices(group):
            folder, _, name = f"{group}/{name}".rpartition("/")
            store.store(name, {}, group=folder, package="_global_")


class JobFailed(UserError):
    """A job's training has failed, and has said why."""

    def __init__(self, exit_code: int):
        super().__init__("a run of the sweep has failed; 'denoised-mdp status' of its folder says which, and why.")
        self.exit_code = exit_code

    def __reduce__(self):  # launchers send it from one process to another
        return JobFailed, (self.exit_code,)


def hand_on(number: int) -> None:
    """End a job that was stopped by a signal, or let its launcher requeue it.

    Submitit handles one of SIGUSR1 and SIGUSR2, by requeueing the job; while a run trains, they save it instead.
    """
    users = (signal.SIGUSR1, signal.SIGUSR2)
    for handled in users if number in users else ():
        if callable(signal.getsignal(handled)):
            signal.raise_signal(handled)  # does not return
    raise SystemExit(128 + number)


def overrides_of_job() -> list[str]:
    """The overrides of the job that Hydra runs now, with the folder that it has assigned."""
    from hydra.core.hydra_config import HydraConfig

    job, result = HydraConfig.get(), []
    for text in job.overrides.task:
        key, _, value = text.removeprefix("++").partition("=")
        # Hydra has escaped what is special in its grammar, such as colons.
        result.append(f"{key}={quote(_plain_value(key, value))}" if key in TEXTS and value != "null" else text)
    folder = re.sub(r"(\\*)\$\{", r"\1\1\\${", job.runtime.output_dir)  # what OmegaConf would take for an interpolation
    return [*result, f"run_dir={quote(folder)}"]


def translate_multirun(overrides: list[str]) -> tuple[list[str], dict[str, str]]:
    """Return `overrides` as Hydra reads them, and those with a single value, which all jobs share.

    Keys and choices are checked; values are, when a job begins. ``run_dir`` becomes the folder of the whole sweep.
    Without it, the folder's name is derived from all that is the same in its jobs, so that the same command continues.
    Each job's folder in it is named by the overrides that vary.
    """
    result, fixed, folder = [], {}, None
    for key, text in map(split, overrides):
        if is_hydra(key):
            result.append(f"{key}={text}")
        elif key == "run_dir" and text != "null":
            folder = expanded(_plain_value(key, text) if QUOTED.fullmatch(text) else text)
        elif key == "distractors":
            sets = distractor_sets(text)
            options = [(f"{key}.{name}", as_text(value)) for name, value in flatten(sets[0]) if value != {}]
            _add([(key, ",".join(f"[{','.join(names)}]" for names in sets)), *options], result, fixed)
        elif key != "run_dir":
            _add([(key, _quoted_parts(text) if key in TEXTS else text)], result, fixed)
    if folder is not None or not any(text.startswith("hydra.sweep.dir=") for text in result):
        result.append(f"hydra.sweep.dir={quote(folder or _sweep_folder(fixed))}")
    return [*result, f"hydra.job.config.override_dirname.exclude_keys=[{','.join(fixed)}]"], fixed


def _add(pairs: list[tuple[str, str]], result: list[str], fixed: dict[str, str]) -> None:
    for key, text in pairs:
        override = parse(key, text)
        result.append(f"{'' if key in GROUPS else '++'}{key}={text}")
        if not override.is_sweep_override():
            fixed[key] = text
        chosen = getattr(override.value(), "list", [override.value()])  # a sweep's values are in its list
        for name in chosen if key in GROUPS and key != "distractors" else ():
            check_choice(key, str(name))


def plain(text: str) -> str:
    """A folder's name from overrides: without quotes, escapes and slashes, which would make folders in folders."""
    return re.sub(r"[\\'\"{}\s]+|(?:(?<=^)|(?<=,))\+\+", "", text).replace("/", "_")


def _sweep_folder(fixed: dict[str, str]) -> str:
    """A folder derived from what all jobs share, but for what may change when a run continues."""
    words = [f"{key}={value}" for key, value in fixed.items() if key == "preset" or key not in MAY_CHANGE]
    name = plain("-".join(["sweep", *words]))
    if len(name) > LONGEST:
        name = f"{name[:LONGEST]}-{zlib.crc32(name.encode()):08x}"
    return os.path.join("runs", name)


def quote(value: str) -> str:
    """Quote a text for Hydra's grammar."""
    value = re.sub(r"(\\+)(?='|$)", r"\1\1", value)  # a backslash is special only before a quote
    return "'" + value.replace("'", r"\'") + "'"


def _quoted_parts(value: str) -> str:
    """Quote every free text in a list of them, such as ``procedural:1,procedural:2``, for Hydra's grammar."""
    if value == "null" or re.fullmatch(r"\w+\(.*\)", value):  # choice(a,b) and the like are Hydra's
        return value
    parts = re.findall(r"""((?:'(?:\\.|[^'\\])*'|"(?:\\.|[^"\\])*"|\\.|[^,'"\\])+|^(?=,)|(?<=,)(?=,|$))""", value)
    if ",".join(parts) != value:
        return value
    return ",".join(part if QUOTED.fullmatch(part) else quote(part.strip().replace(r"\,", ",")) for part in parts)


def _plain_value(key: str, value: str) -> str:
    """The text that a value in Hydra's grammar stands for."""
    return str(parse(key, value).value())
