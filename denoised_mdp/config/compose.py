"""Command-line overrides to one nested dictionary, by Hydra.

Overrides are looked at before Hydra sees them, so that a typo is answered in one line with the nearest right
word, several distractors can be given with commas, and paths need no quotes.
"""

from __future__ import annotations

import contextlib
import dataclasses
import re
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from denoised_mdp.config.schema import MODELS, POLICIES, Config
from denoised_mdp.envs.options import DISTRACTORS
from denoised_mdp.envs.suites import SUITES
from denoised_mdp.errors import UserError, did_you_mean
from denoised_mdp.models.structure import LatentSpec
from denoised_mdp.options import defaults

ALIASES = {"env.id": "env.task"}  # what an environment of Gymnasium calls the same
REGISTRIES = {"env": SUITES, "distractors": DISTRACTORS, "policy": POLICIES}  # groups whose choices need no file
GROUPS = ("env", "distractors", "model", "policy", "preset")
CELLS = tuple(field.name for field in dataclasses.fields(LatentSpec) if field.name != "name")
QUOTED = re.compile(r"""(['"])(\\.|(?!\1)[^\\])*\1""")
TEXTS = ("run_dir", "env.task", "env.clips", "train.device")  # free texts: taken as they are, commas and all


def config_folder() -> Path:
    """Return the folder of YAML files: in the package when installed, beside it in a checkout."""
    package = Path(__file__).resolve().parents[1]
    return package / "configs" if (package / "configs").is_dir() else package.parent / "configs"


def choices(group: str) -> tuple[str, ...]:
    """Return the choices of a group, e.g. ``("2b", "2c", "dreamer")`` for ``model``."""
    return tuple(REGISTRIES[group]) if group in REGISTRIES else _files(group)


@cache
def _files(group: str) -> tuple[str, ...]:
    folder = config_folder() / group
    files = (path.relative_to(folder) for path in folder.rglob("*.yaml"))
    return tuple(sorted(file.with_suffix("").as_posix() for file in files))


@cache
def latents(model: str) -> tuple[str, ...]:
    """Return the names of the latents of one table in ``configs/model``."""
    table = yaml.safe_load((config_folder() / "model" / f"{model}.yaml").read_text())
    return tuple(key for key, row in table.items() if isinstance(row, dict))


def latent_names() -> tuple[str, ...]:
    """Return the names of the latents of all tables."""
    return tuple(dict.fromkeys(name for model in choices("model") for name in latents(model)))


def flatten(tree: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield ``(dotted key, value)`` for every leaf of nested mappings; an empty mapping is a leaf."""
    for key, value in tree.items():
        if isinstance(value, Mapping) and value:
            yield from flatten(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def option_keys(policy: str | None = None) -> list[str]:
    """Return every dotted key that can be set; those of both policies unless `policy` names one."""
    keys = [key for key, _ in flatten(dataclasses.asdict(Config())) if not key.startswith("policy.")]
    for kind in [policy] if policy else POLICIES:
        keys += [f"policy.{field.name}" for field in dataclasses.fields(POLICIES[kind])]
    for kind in MODELS.values():
        keys += [f"model.{key}" for key, _ in flatten(dataclasses.asdict(kind()))]
    keys += [f"distractors.{name}.{key}" for name, kind in DISTRACTORS.items() for key in defaults(kind.Options)]
    keys += [f"model.{latent}.{cell}" for latent in latent_names() for cell in CELLS]
    return [key for key in dict.fromkeys([*keys, *ALIASES]) if key != "model.latents"]


def register_schema() -> None:
    """Tell Hydra the defaults of `schema`; must run before each composition in a fresh process."""
    from hydra.core.config_store import ConfigStore

    store = ConfigStore.instance()
    schema = dataclasses.asdict(Config())
    del schema["policy"], schema["model"]["latents"]  # the groups bring their own: options and rows
    store.store(name="schema", node=schema)
    for name, kind in POLICIES.items():
        store.store(group="policy", name=name, node=dataclasses.asdict(kind()))
    for name, suite in SUITES.items():
        store.store(group="env", name=name, node={"suite": name, **suite.choice})
    for name, kind in MODELS.items():
        node = dataclasses.asdict(kind())
        del node["latents"], node["name"]  # the table's file has them
        store.store(group="model", name=f"schema_{name}", node=node)
    for name, kind in DISTRACTORS.items():
        store.store(group="distractors", name=name, node={name: defaults(kind.Options)})


def compose(overrides: list[str]) -> dict[str, Any]:
    """Return the composed configuration with all interpolations resolved.

    The result has the keys of `Config`. What a preset says of a distractor does not apply where the command line
    chooses others.
    """
    import hydra
    from omegaconf import OmegaConf, open_dict
    from omegaconf.errors import OmegaConfBaseException

    overrides = translate(overrides)
    choices_of_distractors = [text for text in overrides if text.startswith("distractors=")]
    for earlier in choices_of_distractors[:-1]:  # the last one counts, as for every other key; Hydra takes the first
        overrides.remove(earlier)
    register_schema()
    try:
        with _separate_hydra(), hydra.initialize_config_dir(str(config_folder()), version_base="1.3"):
            tree = hydra.compose("config", overrides, return_hydra_config=True)
    except (hydra.errors.HydraException, OmegaConfBaseException) as error:
        raise UserError(explain(error, overrides)) from error
    chosen = tree.hydra.runtime.choices
    texts = [text.removeprefix("++") for text in overrides]
    for text in texts:
        latent = text.partition("=")[0].split(".")[1:2]
        if text.startswith("model.") and latent[0] in set(latent_names()) - set(latents(chosen.model)):
            known = ", ".join(latents(chosen.model))
            raise UserError(f"{text}: model={chosen.model} has no latent {latent[0]}, it has {known}.")
    with open_dict(tree):
        tree.preset = chosen.preset
        for text in overrides:
            if text.startswith("distractors="):  # as `translate` wrote it
                tree.distractors = {name: tree.distractors[name] for name in re.findall(r"\w+", text)[1:]}
        del tree["hydra"]
    try:
        return OmegaConf.to_container(tree, resolve=True)
    except OmegaConfBaseException as error:
        raise UserError(explain(error, overrides)) from error


@contextlib.contextmanager
def _separate_hydra() -> Iterator[None]:
    """Set aside Hydra's one global instance: a job of a sweep composes inside of it."""
    from hydra.core.global_hydra import GlobalHydra

    holder = GlobalHydra.instance()
    outer, holder.hydra = holder.hydra, None
    try:
        yield
    finally:
        holder.hydra = outer


def translate(overrides: list[str]) -> list[str]:
    """Check the keys and group choices of `overrides` and rewrite them in Hydra's grammar.

    Raises:
        UserError: not ``key=value``, an unknown key, an unknown choice, or several values.
    """
    result: list[str] = []
    for key, value in map(split, overrides):
        if key == "distractors":
            result += rewrite_distractors(value, sweep=False)
        elif key in GROUPS:
            if "," in value:
                raise UserError(_several(key, value))
            check_choice(key, value)
            result.append(f"{key}={value}")
        elif is_hydra(key):
            raise UserError(f"{key}={value}: options of Hydra itself need --multirun.")
        elif key in TEXTS and value != "null" and not QUOTED.fullmatch(value):
            result.append(f"{key}={quote(value)}")
        elif not parse(key, value).is_sweep_override():
            result.append(f"{cell(key)}={value}")
        else:
            raise UserError(_several(key, value))
    return result


def split(text: str) -> tuple[str, str]:
    """Split ``key=value`` and check the key."""
    if re.search(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]", text):  # they would break files and messages
        raise UserError(f"{ascii(text)}: control characters and bytes that are not UTF-8 cannot be used.")
    key, equals, value = (part.strip() for part in text.removeprefix("++").partition("="))
    if not equals or not key:
        group = next((group for group in reversed(GROUPS) if text in choices(group)), None)
        hint = f" Did you mean '{group}={text}'?" if group else ""
        if (Path(text) / "config.yaml").is_file():
            hint = " To continue a run, repeat the command that began it."
        raise UserError(f"'{text}' is not of the form key=value.{hint} See 'denoised-mdp train --help'.")
    key = ALIASES.get(key, key)
    if not is_hydra(key):
        _check_key(key)
    return key, value


def cell(key: str) -> str:
    """How Hydra is told to set a key: a cell of the table may have its default, and then stands in no file."""
    return f"++{key}" if key.split(".")[0] == "model" and key.split(".")[-1] in CELLS else key


def is_hydra(key: str) -> bool:
    return re.match(r"[+~]*hydra[./]", key) is not None


def _several(key: str, value: str) -> str:
    return f"{key}={value}: several values need --multirun, which trains one run for each."


def _check_key(key: str) -> None:
    if key in ("model.name", "model.kind", "policy.name"):
        group = key.partition(".")[0]
        raise UserError(f"{key} cannot be set by itself; choose one with {group}={'|'.join(choices(group))}.")
    keys = option_keys()
    if key in GROUPS or any(f"{known}.".startswith(f"{key}.") for known in keys):
        return  # a whole group of options, such as model.x={belief: 60, state: 10}, is right as well
    if key.rpartition(".")[2] in ("beta", "beta_y"):
        raise UserError(f"unknown option '{key}'. Did you mean 'model.kl.beta'? (model.y.beta: of one latent.)")
    same_end = [known for known in keys if known.rpartition(".")[2] == key.rpartition(".")[2]]
    raise UserError(f"unknown option '{key}'.{_nearest(key, same_end or [*keys, *GROUPS])}")


def _nearest(word: str, options: list[str]) -> str:
    """A hint for a key: the nearest one, or where to find all of them."""
    hint = did_you_mean(word, options)
    return hint if "mean" in hint or len(options) < 10 else " 'denoised-mdp train --help' lists them."


def check_choice(group: str, value: str) -> None:
    name = value.strip("[]'\"")
    if name not in choices(group):
        raise UserError(f"{group}={value}: unknown choice.{did_you_mean(name, choices(group))}")


def parse(key: str, value: str) -> Any:
    """Parse one override with Hydra's own grammar; returns Hydra's Override."""
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.errors import HydraException

    try:
        return OverridesParser.create().parse_override(f"{key}={value}")
    except (HydraException, ValueError, RecursionError) as error:
        raise UserError(f"{key}={value}: not understood; quote a value with special characters.") from error


def rewrite_distractors(value: str, *, sweep: bool) -> list[str]:
    """Rewrite the distractors as a choice of groups and single options, in Hydra's grammar.

    ``none``, ``a,b``, ``[a,b]`` and ``{a: {strength: 2}, b: {}}`` are one value; ``[a,b],[c],none`` are three,
    for a sweep.
    """
    options: list[str] = []
    if value.startswith("{"):
        parsed = parse("distractors", value).value()
        if not isinstance(parsed, dict):
            raise UserError(f"distractors={value}: sweep over names, as in distractors=[a,b],[c],none.")
        parsed = {str(name): chosen or {} for name, chosen in parsed.items()}
        sets = [list(parsed)]
        options = [f"distractors.{key}={setting}" for key, setting in flatten(parsed) if setting != {}]
    else:
        parts = re.split(r",(?![^[]*\])", value) if "[" in value else [value]  # at commas outside of brackets
        sets = [_names(re.sub(r"^\s*\[(.*)\]\s*$", r"\1", part)) for part in parts]
    for name in (name for names in sets for name in names):
        if name not in choices("distractors"):
            raise UserError(f"unknown distractor '{name}'.{did_you_mean(name, choices('distractors'))}")
    if len(sets) > 1 and not sweep:
        raise UserError(_several("distractors", value))
    chosen = ",".join(f"[{','.join(names)}]" for names in sets)
    return [f"distractors={chosen}", *translate(options)]


def _names(text: str) -> list[str]:
    """Split names of distractors at commas."""
    names = [name.strip(" '\"") for name in text.split(",")]
    return [] if names in ([""], ["none"], ["null"]) else list(dict.fromkeys(names))


def quote(value: str) -> str:
    """Quote a text for Hydra's grammar."""
    value = re.sub(r"(\\+)(?='|$)", r"\1\1", value)  # a backslash is special only before a quote
    return "'" + value.replace("'", r"\'") + "'"


def literal(value: str) -> str:
    """Escape what OmegaConf would take for an interpolation."""
    return re.sub(r"(\\*)\$\{", r"\1\1\\${", value)


def explain(error: Exception, overrides: list[str]) -> str:
    """Say in one line what Hydra could not compose."""
    cause = error.__cause__ or error
    line = next((line.strip() for line in str(cause).splitlines() if line.strip()), type(cause).__name__)
    if unknown := re.search(r"Interpolation key '([^']*)' not found", line):
        return (
            f"${{{unknown[1]}}} is no option, whose value it would stand for. Let the shell replace variables of the"
            f" environment: without single quotes, or write ${{oc.env:{unknown[1]}}}."
        )
    missing = re.match(r"Key '(\w+)' is not in struct", line)
    for text in overrides if missing else ():
        group, _, name = text.partition("=")[0].partition(".")
        if group == "distractors" and name.split(".")[0] == missing[1]:
            return f"{text}: this run has no such distractor. Add distractors={missing[1]}."
        if group in ("policy", "model") and name == missing[1]:
            kinds = POLICIES if group == "policy" else MODELS
            owner = next(kind for kind, options in kinds.items() if name in vars(options()))
            return f"{text}: only {group}={owner} has this option."
    return f"the configuration cannot be composed: {line}"
