"""Properties of the configuration for arbitrary input: one-line answers, and files that come back equal."""

import dataclasses
import tempfile
import typing
from collections.abc import Mapping
from operator import attrgetter
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from denoised_mdp.cli.words import translate_multirun
from denoised_mdp.config import as_tree, load_config, read_config, save_config
from denoised_mdp.config.choices import GROUPS, all_options, choices
from denoised_mdp.config.compare import MAY_CHANGE, differences
from denoised_mdp.config.schema import AGENTS, POLICIES, Config, ModelConfig
from denoised_mdp.config.validate import as_text, build
from denoised_mdp.envs import DISTRACTORS
from denoised_mdp.errors import UserError
from denoised_mdp.models.structure import LatentSpec

REPEATABLE = settings(derandomize=True, deadline=None)
ANYTHING = st.text(max_size=20)
PRINTABLE = st.text(st.characters(exclude_categories=("Cc", "Cs", "Zl", "Zp")), max_size=20)
WORDS = "null true nan 1e3 0x 1_0 ??? none seed choice( sort( range(1,3) glob(*) ${ ${seed} ${oc.env:NOTHING}".split()
GRAMMAR = st.lists(st.sampled_from([*"[]{}(),:=$\\'\"#&*!|>%@~+- .", *WORDS, *choices("distractors")]), max_size=8).map(
    "".join
)
NUMBERS = st.one_of(st.integers(), st.floats(), st.integers(min_value=10**300, max_value=10**400)).map(str)
KEYS = st.sampled_from([*all_options(), *GROUPS, "model.x", "train", "hydra.verbose", "hydra/launcher", "+seed"])
CHOICES = st.sampled_from([choice for group in GROUPS for choice in choices(group)])
OVERRIDES = st.builds("{}={}".format, KEYS, ANYTHING | GRAMMAR | NUMBERS | CHOICES)


@settings(REPEATABLE, max_examples=120)
@given(st.lists(OVERRIDES, min_size=1, max_size=2) | st.lists(ANYTHING, max_size=2))
def test_any_overrides_give_a_configuration_or_one_line(overrides):
    try:
        assert isinstance(load_config(overrides), Config)
    except UserError as error:
        assert len(str(error).splitlines()) == 1


@settings(REPEATABLE, max_examples=300)
@given(st.lists(OVERRIDES, min_size=1, max_size=2) | st.lists(ANYTHING, max_size=2))
def test_any_overrides_give_a_sweep_or_one_line(overrides):
    try:
        assert all("=" in text for text in translate_multirun(overrides)[0])
    except UserError as error:
        assert len(str(error).splitlines()) == 1


@settings(REPEATABLE, max_examples=40)
@given((PRINTABLE | GRAMMAR).filter(lambda path: path.strip() not in ("", "null")))
def test_any_path_needs_no_quotes(path):
    try:
        found = load_config([f"run_dir={path}", f"env.clips={path}"])
    except UserError as error:
        assert "${" in path and len(str(error).splitlines()) == 1  # an interpolation of nothing
    else:
        quoted = len(path) > 2 and path[0] == path[-1] and path[0] in "'\""
        if not quoted and "${" not in path:
            assert found.env.clips == found.run_dir == path.strip()


def values(kind: object, limits: Mapping) -> st.SearchStrategy:
    """All values that an option allows."""
    if typing.get_origin(kind) is tuple:
        return st.lists(st.sampled_from("xyz"), max_size=2)
    parts = typing.get_args(kind) or (kind,)
    if type(None) in parts:
        return st.none() | values(parts[0], limits)
    if "choices" in limits:
        return st.sampled_from(list(limits["choices"]))
    if "pattern" in limits:
        return st.from_regex(limits["pattern"], fullmatch=True)
    if kind is int:
        return st.integers(limits.get("low"), limits.get("high", 2**63 - 1))
    if kind is float:
        low = limits.get("low", limits.get("above"))
        return st.floats(low, limits.get("high"), exclude_min="above" in limits, allow_nan=False, allow_infinity=False)
    return {bool: st.booleans(), str: PRINTABLE | GRAMMAR}[kind]


CELLS = [field for field in dataclasses.fields(LatentSpec) if field.name != "name"]
cells = typing.get_type_hints(LatentSpec)


def groups(kind: type) -> st.SearchStrategy:
    """Nested mappings of allowed values for a group of options, any of them left out."""
    hints, fields = typing.get_type_hints(kind), {}
    for field in dataclasses.fields(kind):
        if field.name == "distractors":
            fields[field.name] = DISTRACTOR_OPTIONS
        elif field.name == "latents" and kind is ModelConfig:
            rows = {cell.name: values(cells[cell.name], cell.metadata) for cell in CELLS}
            fields |= dict.fromkeys(("x", "y"), st.fixed_dictionaries({}, optional=rows))
        elif field.name == "kind":  # of a model: chosen with its file
            fields[field.name] = st.just(field.default)
        elif field.name in ("agent", "policy"):
            registry = AGENTS if field.name == "agent" else POLICIES
            fields[field.name] = st.one_of(*map(groups, registry.values()))
        elif dataclasses.is_dataclass(hints[field.name]):
            fields[field.name] = groups(hints[field.name])
        else:
            fields[field.name] = values(hints[field.name], field.metadata)
    name = {"name": fields.pop("name")} if "name" in fields else {}  # never left out: it tells the policies apart
    return st.fixed_dictionaries(name, optional=fields)


DISTRACTOR_OPTIONS = st.dictionaries(
    st.sampled_from(sorted(DISTRACTORS)),
    st.dictionaries(PRINTABLE, st.booleans() | st.integers() | st.floats(allow_nan=False) | GRAMMAR, max_size=3),
    max_size=3,
)


def its_own(tree: dict) -> dict:
    """Of an agent without a world model there are no options of model and policy."""
    has_model = AGENTS[tree.get("agent", {"name": "world_model"})["name"]].has_model
    return {group: options for group, options in tree.items() if has_model or group not in ("model", "policy")}


CONFIGS = groups(Config).map(lambda tree: build(Config, its_own(tree)))


@settings(REPEATABLE, max_examples=60)
@given(CONFIGS)
def test_any_configuration_comes_back_equal_from_its_file(config):
    with tempfile.TemporaryDirectory() as folder:
        save_config(config, Path(folder) / "config.yaml")
        found = read_config(folder)
    assert found == config
    assert differences(config, config) == differences(config, found) == []


@settings(REPEATABLE, max_examples=60)
@given(CONFIGS, st.data())
def test_one_changed_option_is_the_one_difference(config, data):
    changed = build(Config, as_tree(config))
    changed.model.latents.setdefault("x", LatentSpec("x"))
    config.model.latents.setdefault("x", LatentSpec("x"))
    names = ["model.x", "model.kl", "model.optimizer", "policy"] if config.agent.has_model else ["agent"]
    name = data.draw(st.sampled_from([*names, "env", "train", "replay"]))
    group = changed.model.latents["x"] if name == "model.x" else attrgetter(name)(changed)
    field = data.draw(
        st.sampled_from([field for field in dataclasses.fields(group) if field.name not in ("name", "kind")])
    )
    old = getattr(group, field.name)
    old = list(old) if isinstance(old, tuple) else old
    new = data.draw(values(typing.get_type_hints(type(group))[field.name], field.metadata).filter(lambda v: v != old))
    object.__setattr__(group, field.name, tuple(new) if isinstance(new, list) else new)  # rows are frozen
    key = f"{name}.{field.name}"
    line = f"{key}: {as_text(old)} -> {as_text(new)}"
    assert differences(config, changed) == ([] if key in MAY_CHANGE else [line])
