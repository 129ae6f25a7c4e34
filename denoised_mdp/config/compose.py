"""Compose a command line into one nested dictionary.

Later layers win: the defaults of `schema`; those of the suite, the model's table and the agent's file in
``configs/agent``; the preset; the preset's options for one model and one policy, or for one agent; the command line. A
preset has the form of a saved configuration.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from denoised_mdp.config.choices import CHOICE, GROUPS, latent_names, latents, read_file
from denoised_mdp.config.overrides import split, value_of
from denoised_mdp.config.schema import AGENTS, MODELS, POLICIES, Config, as_tree
from denoised_mdp.config.validate import shown
from denoised_mdp.envs.options import DISTRACTORS
from denoised_mdp.envs.suites import SUITES
from denoised_mdp.errors import UserError, did_you_mean
from denoised_mdp.options import defaults


def compose(overrides: list[str]) -> dict[str, Any]:
    """Return the composed configuration with all interpolations resolved.

    The result has the keys of `Config`. A preset's options of a distractor do not apply if the command line chooses
    other distractors, nor its task if the command line chooses another suite.

    Raises:
        UserError: not ``key=value``, an unknown key, an unknown choice, or several values.
    """
    said = {}
    for key, text in map(split, overrides):
        said.pop(key, None)  # the last one counts, at its own position
        said[key] = value_of(key, text)
    return _resolved(lambda: merge(said))


def changed(config: Config, overrides: list[str]) -> dict[str, Any]:
    """Return the tree of a run's configuration with new values for some options.

    Raises:
        UserError: as `compose`; or another choice or folder is given: a run keeps those it began with.
    """
    from omegaconf import OmegaConf

    tree = _literal(as_tree(config))
    for key, text in map(split, overrides):
        if key in GROUPS or key == "run_dir":
            raise UserError(
                f"{key}={text}: cannot change in a run that continues, {config.run_dir}. Leave it out; for a new run"
                " give all options, and no folder before them."
            )
        _refuse_foreign(key, config.distractors, config.model.name)
        tree = _with_option(tree, key, value_of(key, text))
    return _resolved(lambda: OmegaConf.create(tree))


def _literal(tree: Any) -> Any:
    """Return a tree with its texts escaped, so that none is read as an interpolation."""
    if isinstance(tree, Mapping):
        return {key: _literal(value) for key, value in tree.items()}
    return re.sub(r"(\\*)\$\{", r"\1\1\\${", tree) if isinstance(tree, str) else tree


def _resolved(make: Callable[[], Any]) -> dict[str, Any]:
    """Return the OmegaConf tree that `make` returns as a plain tree, with its interpolations resolved."""
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    try:
        return OmegaConf.to_container(make(), resolve=True)
    except (OmegaConfBaseException, RecursionError) as error:
        raise UserError(explain(error)) from error


def merge(said: dict[str, Any]) -> Any:
    """Merge all layers; `said`: the command line's values by key."""
    from omegaconf import OmegaConf

    preset = said.get("preset", "none")
    base, default, keys = read_file(f"preset/{preset}"), Config(), list(said)
    names = {
        group: said.pop(group, None) or base.get(group, {}).get(choice) or getattr(getattr(default, group), choice)
        for group, choice in CHOICE.items()
    }
    suite, agent, model, policy = names.values()
    world = base.get("env", {})
    if suite != world.get("suite", default.env.suite):  # the preset's task is of another suite
        base = base | {"env": {key: value for key, value in world.items() if key != "task"}}
    table = read_file(f"model/{model}")
    kind = table.get("kind", "denoised")
    if kind not in MODELS:
        raise UserError(
            f"model={model}: its table has kind {kind!r}, which does not exist.{did_you_mean(kind, MODELS)}"
        )
    options = {"agent": AGENTS[agent], "model": MODELS[kind], "policy": POLICIES[policy]}
    chosen = [f"preset_model/{preset}/{model}", f"preset_policy/{preset}/{policy}"]
    if not AGENTS[agent].has_model:
        _refuse_model(keys, agent)
        chosen = [f"preset_agent/{preset}/{agent}"]
    schema = dataclasses.asdict(default) | {group: dataclasses.asdict(kind()) for group, kind in options.items()}
    del schema["model"]["latents"]  # its rows are groups of their own
    fitting = {key: value for key, value in base.get("policy", {}).items() if key in schema["policy"]}
    base = base | {"policy": fitting}  # a preset may be for another policy
    tree = _layered(
        schema,
        {"env": SUITES[suite].choice, "model": table},
        read_file(f"agent/{agent}"),
        base,
        *map(read_file, chosen),
        {group: {choice: names[group]} for group, choice in CHOICE.items()},
    )
    before = tree["distractors"]
    chosen = said.pop("distractors", before)
    tree["distractors"] = {
        name: _layered(defaults(DISTRACTORS[name].Options), before.get(name, {}), options)
        for name, options in chosen.items()
    }
    for key, value in said.items():
        _refuse_foreign(key, chosen, model)
        tree = _with_option(tree, key, value)
    return OmegaConf.create(tree)


def _layered(*layers: Mapping[str, Any]) -> dict[str, Any]:
    """Merge nested mappings; later ones win. Does what OmegaConf.merge does, several times as fast."""
    tree: dict[str, Any] = {}
    for layer in layers:
        for key, value in layer.items():
            before = tree.get(key)
            below = before if isinstance(before, Mapping) else {}
            tree[key] = _layered(below, value) if isinstance(value, Mapping) else value
    return tree


def _with_option(tree: Mapping[str, Any], key: str, value: Any) -> dict[str, Any]:
    """The tree with a new value for the option of a dotted key."""
    before: Any = tree
    for name in key.split("."):
        before = before.get(name) if isinstance(before, Mapping) else None
    if isinstance(before, Mapping) and not isinstance(value, Mapping):
        raise UserError(f"{key}={shown(value)}: must be a group of options.")
    for name in reversed(key.split(".")):
        value = {name: value}
    return _layered(tree, value)


def _refuse_foreign(key: str, distractors: Iterable[str], model: str) -> None:
    """Refuse an option of a distractor or latent that a run does not have."""
    group, *path = key.split(".")
    if group == "distractors" and path[0] not in distractors:
        raise UserError(f"{key}: this run has no such distractor. Add distractors={path[0]}.")
    if group == "model" and path[0] in set(latent_names()) - set(latents(model)):
        raise UserError(f"{key}: model={model} has no latent {path[0]}, it has {', '.join(latents(model))}.")


def _refuse_model(keys: Iterable[str], agent: str) -> None:
    """Refuse options of a world model beside an agent without one."""
    for key in keys:
        if key.partition(".")[0] in ("model", "policy"):
            raise UserError(f"{key}: agent={agent} has no world model. Leave this out, or choose agent=world_model.")


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


def flatten(tree: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield ``(dotted key, value)`` for every leaf of nested mappings; an empty mapping is a leaf."""
    for key, value in tree.items():
        if isinstance(value, Mapping) and value:
            yield from flatten(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value
