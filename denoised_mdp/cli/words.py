"""The words of a sweep: ours translated to Hydra's grammar, and what Hydra says of a job read back."""

from __future__ import annotations

import itertools
import os
import re
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

from denoised_mdp.config import expanded, load_config
from denoised_mdp.config.choices import GROUPS
from denoised_mdp.config.compare import SAME_RESULTS
from denoised_mdp.config.compose import flatten
from denoised_mdp.config.overrides import QUOTED, TEXTS, check_choice, distractor_sets, is_hydra, parse, split
from denoised_mdp.config.validate import as_text
from denoised_mdp.errors import UserError

MOST = 1000  # values of one option that are checked before a sweep begins
LONGEST = 100  # characters of the folder's name; file systems allow 255 bytes


def translate_multirun(overrides: list[str]) -> tuple[list[str], dict[str, str]]:
    """Return `overrides` as Hydra reads them, and those with a single value, which all jobs share.

    Keys and choices are checked; for values see `check_values`. ``run_dir`` becomes the folder of the whole sweep.
    Without it, the folder's name is derived from all that is the same in its jobs, so that the same command continues.
    Each job's folder in it is named by the overrides that vary.
    """
    result, fixed, folder, said = [], {}, None, {}
    for key, text in itertools.chain.from_iterable(itertools.starmap(_pairs, map(split, overrides))):
        said.pop(key, None)  # the last one counts, where it stands
        said[key] = text
    for key, text in said.items():
        if is_hydra(key):
            result.append(f"{key}={text}")
        elif key == "run_dir" and text != "null":
            folder = expanded(plain_value(key, text) if QUOTED.fullmatch(text) else text)
        elif key != "run_dir":
            _add(key, _quoted_parts(text) if key in TEXTS else text, result, fixed)
    if folder is not None or not any(text.startswith("hydra.sweep.dir=") for text in result):
        result.append(f"hydra.sweep.dir={quote(folder or sweep_folder(fixed))}")
    return [*result, f"hydra.job.config.override_dirname.exclude_keys=[{','.join(fixed)}]"], fixed


def check_values(words: Sequence[str]) -> None:
    """Compose the configuration of so many jobs that each value of a sweep is in one; `words`: in Hydra's grammar.

    Whoever has a sweep of days learns of the typing error in its last value before the first job begins.

    Raises:
        UserError: one of these jobs could not begin.
    """
    axes = {}
    for word in (word for word in words if not is_hydra(word.partition("=")[0])):
        override = parse(*word.lstrip("+").split("=", 1))
        if override.is_discrete_sweep():
            axes[word] = [f"{override.key_or_group}={text}" for text in _values(override)]
        elif not override.is_sweep_override():  # others are a sweeper's to choose, such as interval(0,1)
            axes[word] = [word]
    first = {word: values[0] for word, values in axes.items() if values}
    load_config([*map(word_of, first.values())])
    for word, values in axes.items():
        for value in values[1:]:
            load_config([*map(word_of, (first | {word: value}).values())])


def _values(override: Any) -> list[str]:
    """The first values of an option in a sweep.

    Raises:
        UserError: they cannot be listed, or two of them would name one folder.
    """
    from hydra.errors import HydraException

    try:
        values = list(itertools.islice(override.sweep_string_iterator(), MOST))
    except HydraException as error:  # glob(*), which asks for groups of Hydra's own
        raise UserError(f"{override.input_line}: not understood; list the values.") from error
    seen: dict[str, str] = {}
    for text in values:
        if seen.setdefault(plain(text), text) != text:
            raise UserError(
                f"{override.key_or_group}: {seen[plain(text)]} and {text} would name one folder. Train one of them by"
                " a command of its own."
            )
    return values


def word_of(text: str) -> str:
    """An override of a job as we read it, from what Hydra says of it."""
    key, _, value = text.lstrip("+").partition("=")
    # Hydra has escaped what is special in its grammar, such as colons.
    return f"{key}={quote(plain_value(key, value))}" if key in TEXTS and value != "null" else text.lstrip("+")


def _pairs(key: str, text: str) -> list[tuple[str, str]]:
    """An override as Hydra has it: sets of distractors in brackets, the options of one each by itself."""
    if key != "distractors":
        return [(key, text)]
    sets = distractor_sets(text)
    return [(key, ",".join(f"[{','.join(names)}]" for names in sets)), *words_of_group(key, sets[0])[1:]]


def words_of_group(key: str, options: Mapping[str, Any]) -> list[tuple[str, str]]:
    """A group of options, however deep, as keys and values of a command line; distractors: their names come first."""
    names = []
    if key == "distractors":  # of one that has its defaults, the name alone
        names = [(key, f"[{','.join(map(str, options))}]")]
        options = {name: own for name, own in options.items() if own}
    return names + [(inner, as_text(value)) for inner, value in flatten(options, f"{key}.")]


def _add(key: str, text: str, result: list[str], fixed: dict[str, str]) -> None:
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


def sweep_folder(fixed: Mapping[str, str], name: str = "sweep") -> str:
    """A folder derived from what all jobs share, but for what cannot change results."""
    words = [f"{key}={value}" for key, value in fixed.items() if key == "preset" or key not in SAME_RESULTS]
    name = plain("-".join([name, *words]))
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


def plain_value(key: str, value: str) -> str:
    """The text that a value in Hydra's grammar stands for."""
    return str(parse(key, value).value())
