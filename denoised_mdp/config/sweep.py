"""Sweeps: one training for each combination of values, by Hydra's sweepers and launchers."""

from __future__ import annotations

import os
import re
import sys
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from denoised_mdp.config import MAY_CHANGE, expanded
from denoised_mdp.config.compose import (
    GROUPS,
    QUOTED,
    TEXTS,
    cell,
    check_choice,
    config_folder,
    explain,
    is_hydra,
    literal,
    parse,
    quote,
    register_schema,
    rewrite_distractors,
    split,
)
from denoised_mdp.errors import UserError

LONGEST = 100  # characters of the folder's name; file systems allow 255 bytes


def sweep(overrides: list[str], train: Callable[[list[str]], int]) -> None:
    """Call `train` with the overrides of every job, one after the other or as the chosen launcher does.

    Args:
        overrides: as on the command line, with several values where a sweep is wanted, and options of Hydra.
        train: returns the exit code of a training; one that is not 0 ends the sweep with it.

    Raises:
        UserError: an override is not understood, or Hydra refuses it.
    """
    import hydra
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    def job(_: Any) -> None:
        code = train(overrides_of_job())
        if code:
            raise SystemExit(code)

    with _called_as(["denoised-mdp train", "--multirun", *translate_multirun(overrides)]):
        register_schema()
        OmegaConf.register_new_resolver("plain", plain, replace=True)  # for hydra.sweep.subdir
        try:
            hydra.main(version_base="1.3", config_path=str(config_folder()), config_name="config")(job)()
        except (hydra.errors.HydraException, OmegaConfBaseException) as error:
            raise UserError(explain(error, overrides)) from error
        except OSError as error:
            raise UserError(f"The sweep's folder cannot be used ({error}). Choose another run_dir.") from error


def overrides_of_job() -> list[str]:
    """The overrides of the job that Hydra runs now, with the folder that it has assigned."""
    from hydra.core.hydra_config import HydraConfig

    job, result = HydraConfig.get(), []
    for text in job.overrides.task:
        key, _, value = text.partition("=")
        # Hydra has escaped what is special in its grammar, such as colons.
        result.append(f"{key}={quote(_value(key, value))}" if key in TEXTS and value != "null" else text)
    return [*result, f"run_dir={quote(literal(job.runtime.output_dir))}"]


def translate_multirun(overrides: list[str]) -> list[str]:
    """Check keys and choices; Hydra reads the values. ``run_dir`` becomes the folder of the whole sweep.

    Without it, the folder's name is derived from all that is the same in its jobs, so that the same command continues.
    Each job's folder in it is named by the overrides that vary.
    """
    pairs: list[tuple[str, str]] = []
    for key, value in map(split, overrides):
        pairs += map(split, rewrite_distractors(value, sweep=True)) if key == "distractors" else [(key, value)]
    result, fixed, folder = [], {}, None
    for key, value in pairs:
        if key == "run_dir":
            if value != "null":
                folder = expanded(_value(key, value) if QUOTED.fullmatch(value) else value)
            continue
        value = _quoted_parts(value) if key in TEXTS else value
        result.append(f"{cell(key)}={value}")
        if is_hydra(key):
            continue
        override = parse(key, value)
        if not override.is_sweep_override():
            fixed[key] = value
        chosen = getattr(override.value(), "list", override.value())  # a sweep's values are in its list
        for names in chosen if isinstance(chosen, list) else [chosen]:
            for name in names if isinstance(names, list) else [names]:
                if key in GROUPS and isinstance(name, str):
                    check_choice(key, name)
    if folder is not None or not any(key == "hydra.sweep.dir" for key, _ in pairs):
        result.append(f"hydra.sweep.dir={quote(folder or _sweep_folder(fixed))}")
    return [*result, f"hydra.job.config.override_dirname.exclude_keys=[{','.join(fixed)}]"]


def plain(text: str) -> str:
    """A folder's name from overrides: without quotes, escapes and slashes, which would make folders in folders."""
    return re.sub(r"[\\'\"{}\s]+", "", text).replace("/", "_")


def _sweep_folder(fixed: dict[str, str]) -> str:
    """A folder derived from what all jobs share, but for what may change when a run continues."""
    words = [f"{key}={value}" for key, value in fixed.items() if key == "preset" or key not in MAY_CHANGE]
    name = plain("-".join(["sweep", *words]))
    if len(name) > LONGEST:
        name = f"{name[:LONGEST]}-{zlib.crc32(name.encode()):08x}"
    return os.path.join("runs", name)


def _quoted_parts(value: str) -> str:
    """Quote every free text in a list of them, such as ``procedural:1,procedural:2``, for Hydra's grammar."""
    if value == "null" or re.fullmatch(r"\w+\(.*\)", value):  # choice(a,b) and the like are Hydra's
        return value
    parts = re.findall(r"""((?:'(?:\\.|[^'\\])*'|"(?:\\.|[^"\\])*"|\\.|[^,'"\\])+|^(?=,)|(?<=,)(?=,|$))""", value)
    if ",".join(parts) != value:
        return value
    return ",".join(part if QUOTED.fullmatch(part) else quote(part.strip().replace(r"\,", ",")) for part in parts)


def _value(key: str, value: str) -> str:
    """The text that a value in Hydra's grammar stands for."""
    return str(parse(key, value).value())


@contextmanager
def _called_as(argv: list[str]) -> Iterator[None]:
    """Let Hydra find these arguments, and raise its errors instead of printing them."""
    before = sys.argv, os.environ.get("HYDRA_FULL_ERROR")
    sys.argv, os.environ["HYDRA_FULL_ERROR"] = argv, "1"
    try:
        yield
    finally:
        sys.argv = before[0]
        os.environ.pop("HYDRA_FULL_ERROR")
        if before[1] is not None:
            os.environ["HYDRA_FULL_ERROR"] = before[1]
