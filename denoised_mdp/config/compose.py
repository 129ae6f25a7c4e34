"""Command line to one nested dictionary.

Later layers win: the defaults of `schema`; the suite's own, the table of the model and what an agent's method says of
training; the preset; what the preset says for one model and one policy, or for one agent; the command line. A preset
has the form of a saved configuration. Values on the command line are written in Hydra's grammar, so that sweeps read
the same ones; free texts need no quotes.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from denoised_mdp.config.schema import AGENTS, MODELS, POLICIES, TABLES, Config
from denoised_mdp.envs.options import DISTRACTORS
from denoised_mdp.envs.suites import SUITES
from denoised_mdp.errors import UserError, did_you_mean, one_line
from denoised_mdp.models.structure import LatentSpec
from denoised_mdp.options import defaults, walk

ALIASES = {"env.id": "env.task"}  # what an environment of Gymnasium calls the same
# groups whose choices need no file
REGISTRIES = {"env": SUITES, "distractors": DISTRACTORS, "agent": AGENTS, "policy": POLICIES}
GROUPS = ("env", "distractors", "agent", "model", "policy", "preset")
KINDS = {"agent": AGENTS, "policy": POLICIES, "model": MODELS}  # groups whose options depend on the choice
# the option of a group that says what was chosen
CHOICE = {"env": "suite", "agent": "name", "model": "name", "policy": "name"}
QUOTED = re.compile(r"""(['"])(\\.|(?!\1)[^\\])*\1""")
HELP = " 'denoised-mdp train --help' lists them."
TEXTS = ("run_dir", "env.task", "env.clips", "train.device")  # free texts: taken as they are, commas and all


def config_folder() -> Path:
    """Return the folder of YAML files: in the package when installed, beside it in a checkout."""
    package = Path(__file__).resolve().parents[1]
    return package / "configs" if (package / "configs").is_dir() else package.parent / "configs"


def choices(group: str) -> tuple[str, ...]:
    """Return the choices of a group, e.g. ``("2b", "2c", "dreamer")`` for ``model``."""
    if group == "model":
        return (*_files(group), *TABLES)
    return tuple(REGISTRIES[group]) if group in REGISTRIES else _files(group)


def register_table(path: Path | str) -> None:
    """Make a table of latents of your own known as ``model=NAME``: `path` is NAME.yaml, as those of ``configs/model``.

    Raises:
        UserError: there is no such file, or another table has its name.
    """
    path = Path(path)
    if not path.is_file():
        raise UserError(f"There is no table of latents {path}.")
    if path.stem in _files("model"):
        raise UserError(f"There is a model {path.stem!r} already: choose another name for {path}.")
    TABLES.register(path.stem, path)


@cache
def _files(group: str) -> tuple[str, ...]:
    folder = config_folder() / group
    files = (path.relative_to(folder) for path in folder.rglob("*.yaml"))
    return tuple(sorted(file.with_suffix("").as_posix() for file in files))


def _read(name: str) -> dict[str, Any]:
    """Return what a file of ``configs/`` says; nothing where there is none."""
    from omegaconf import OmegaConf

    group, _, choice = name.partition("/")
    file = config_folder() / f"{name}.yaml"
    if group == "model" and choice in TABLES:
        file = TABLES[choice]
    return OmegaConf.to_container(OmegaConf.load(file)) if file.is_file() else {}


@cache
def latents(model: str) -> tuple[str, ...]:
    """Return the names of the latents of one table in ``configs/model``."""
    return tuple(key for key, row in _read(f"model/{model}").items() if isinstance(row, dict))


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


def all_options() -> dict[str, tuple[Any, Mapping[str, Any]]]:
    """Return default, and help and limits, of every option that can be set, by its dotted key."""
    groups = [("", Config())]
    for group, kinds in KINDS.items():
        groups += [(f"{group}.", kind()) for kind in kinds.values()]
    groups += [(f"distractors.{name}.", kind.Options()) for name, kind in DISTRACTORS.items()]
    groups += [(f"model.{name}.", LatentSpec(name)) for name in latent_names()]
    found: dict[str, tuple[Any, Mapping[str, Any]]] = {}
    for key, *rest in (row for prefix, options in groups for row in walk(options, prefix)):
        found.setdefault(key, tuple(rest))
    return found | {alias: found[key] for alias, key in ALIASES.items()}


def check_key(key: str) -> None:
    """Refuse a key that no configuration has; a whole group, as in ``model.x={belief: 60}``, is right as well."""
    if key in ("agent.name", "model.name", "model.kind", "policy.name"):
        group = key.partition(".")[0]
        raise UserError(f"{key} cannot be set by itself; choose one with {group}={'|'.join(choices(group))}.")
    if key not in GROUPS and not any(f"{known}.".startswith(f"{key}.") for known in all_options()):
        raise UserError(unknown(key))


def unknown(key: str) -> str:
    """Say of a key that the configuration does not have what could be meant."""
    what, end, keys = f"unknown option '{one_line(key, 200)}'", key.rpartition(".")[2], list(all_options())
    for group, kinds in KINDS.items():
        owners = [name for name, kind in kinds.items() if key in (known for known, *_ in walk(kind(), f"{group}."))]
        if owners:
            return f"{what}: only {group}={'|'.join(owners)} has this option."
    if end in ("beta", "beta_y"):
        return f"{what}. Did you mean 'model.kl.beta'? (model.y.beta: of one latent.)"
    near = [known for known in keys if known.rpartition(".")[2] == end]
    near = near or [*keys, *GROUPS, *(known.partition(".")[0] for known in keys)]
    hint = did_you_mean(key, near)
    return f"{what}.{hint if 'mean' in hint or len(near) < 10 else HELP}"


def compose(overrides: list[str]) -> dict[str, Any]:
    """Return the composed configuration with all interpolations resolved.

    The result has the keys of `Config`. What a preset says of a distractor does not apply where the command line
    chooses others.

    Raises:
        UserError: not ``key=value``, an unknown key, an unknown choice, or several values.
    """
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    said = {}
    for key, text in map(split, overrides):
        said.pop(key, None)  # the last one counts, where it stands
        said[key] = value_of(key, text)
    try:
        return OmegaConf.to_container(merge(said), resolve=True)
    except (OmegaConfBaseException, RecursionError) as error:
        raise UserError(explain(error)) from error


def merge(said: dict[str, Any]) -> Any:
    """Merge all layers; `said`: by the command line."""
    from omegaconf import OmegaConf

    preset = said.get("preset", "none")
    base, default, keys = _read(f"preset/{preset}"), Config(), list(said)
    suite, agent, model, policy = (
        said.pop(group, None) or base.get(group, {}).get(choice) or getattr(getattr(default, group), choice)
        for group, choice in CHOICE.items()
    )
    table = _read(f"model/{model}")
    options = {"agent": AGENTS[agent], "model": MODELS[table.get("kind", "denoised")], "policy": POLICIES[policy]}
    chosen = [f"preset_model/{preset}/{model}", f"preset_policy/{preset}/{policy}"]
    if not AGENTS[agent].has_model:
        _refuse_model(keys, agent)
        chosen = [f"preset_agent/{preset}/{agent}"]
    schema = dataclasses.asdict(default) | {group: dataclasses.asdict(kind()) for group, kind in options.items()}
    del schema["model"]["latents"]  # its rows are groups of their own
    tree = OmegaConf.merge(
        schema,
        {"env": SUITES[suite].choice, "model": table},
        _read(f"agent/{agent}"),
        base,
        *map(_read, chosen),
        {"env": {"suite": suite}, "agent": {"name": agent}, "model": {"name": model}, "policy": {"name": policy}},
    )
    chosen = said.pop("distractors", tree.distractors)
    tree.distractors = {
        name: OmegaConf.merge(defaults(DISTRACTORS[name].Options), tree.distractors.get(name, {}), options)
        for name, options in chosen.items()
    }
    for key, value in said.items():
        group, *path = key.split(".")
        if group == "distractors" and path[0] not in chosen:
            raise UserError(f"{key}: this run has no such distractor. Add distractors={path[0]}.")
        if group == "model" and path[0] in set(latent_names()) - set(latents(model)):
            raise UserError(f"{key}: model={model} has no latent {path[0]}, it has {', '.join(latents(model))}.")
        OmegaConf.update(tree, key, value, force_add=True)
    return tree


def _refuse_model(keys: Iterable[str], agent: str) -> None:
    """Refuse options of a world model beside an agent without one."""
    for key in keys:
        if key.partition(".")[0] in ("model", "policy"):
            raise UserError(f"{key}: agent={agent} has no world model. Leave this out, or choose agent=world_model.")


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
        check_key(key)
    return key, value


def is_hydra(key: str) -> bool:
    """Whether an option is one of Hydra itself."""
    return re.match(r"[+~]*hydra[./]", key) is not None


def value_of(key: str, text: str) -> Any:
    """The one value that an override has."""
    if is_hydra(key):
        raise UserError(f"{key}={text}: options of Hydra itself need --multirun.")
    if key == "distractors":
        sets = distractor_sets(text)
    elif key in GROUPS:
        sets = [check_choice(key, name) for name in text.split(",")]
    elif key in TEXTS and text != "null" and not QUOTED.fullmatch(text):
        sets = [text]
    else:
        override = parse(key, text)
        sets = [] if override.is_sweep_override() else [override.value()]
    if len(sets) != 1:
        raise UserError(
            f"{key}={text}: several values. To train a run for each, add --multirun, or choose among those of sweep= by"
            " sweep.AXIS=..."
        )
    return sets[0]


def check_choice(group: str, text: str) -> str:
    """Return the name of a choice without quotes; refuse what is no choice of the group."""
    name = text.strip("'\"")
    if name not in choices(group):
        raise UserError(f"{group}={text}: unknown choice.{did_you_mean(name, choices(group))}")
    return name


def parse(key: str, value: str) -> Any:
    """Parse one override with Hydra's own grammar; returns Hydra's Override."""
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.errors import HydraException

    try:
        return OverridesParser.create().parse_override(f"{key}={value}")
    except (HydraException, ValueError, RecursionError) as error:
        raise UserError(f"{key}={value}: not understood; quote a value with special characters.") from error


def distractor_sets(text: str) -> list[dict[str, Any]]:
    """Return the sets of distractors that a text means, each a mapping of names to options.

    ``none``, ``a,b``, ``[a,b]`` and ``{a: {strength: 2}, b: {}}`` are one set; ``[a,b],[c],none`` are three.
    """
    if text.startswith("{"):
        sets = [parse("distractors", text).value()]
        if not isinstance(sets[0], dict):
            raise UserError(f"distractors={text}: sweep over names, as in distractors=[a,b],[c],none.")
    else:
        parts = re.split(r",(?![^[]*\])", text) if "[" in text else [text]  # at commas outside of brackets
        lists = [re.sub(r"^\s*\[(.*)\]\s*$", r"\1", part).split(",") for part in parts]
        sets = [dict.fromkeys(name.strip(" '\"") for name in names) for names in lists]
        sets = [{} if list(names) in ([""], ["none"], ["null"]) else names for names in sets]
    for name, options in ((name, options) for names in sets for name, options in names.items()):
        if name not in choices("distractors"):
            raise UserError(f"unknown distractor '{name}'.{did_you_mean(str(name), choices('distractors'))}")
        if not isinstance(options, dict | None):
            raise UserError(f"distractors.{name}={options}: must be a group of options.")
    return [{name: options or {} for name, options in names.items()} for names in sets]


def explain(error: Exception) -> str:
    """Say in one line what Hydra or OmegaConf could not compose."""
    cause = error.__cause__ or error
    line = next((line.strip() for line in str(cause).splitlines() if line.strip()), type(cause).__name__)
    if missing := re.search(r"Interpolation key '([^']*)' not found", line):
        return (
            f"${{{missing[1]}}} is no option, whose value it would stand for. Let the shell replace variables of the"
            f" environment: without single quotes, or write ${{oc.env:{missing[1]}}}."
        )
    return f"the configuration cannot be composed: {line}"
