"""Shared by the tests: small agents and batches, environments that get closed, a cache of clips of their own."""

from __future__ import annotations

import inspect
import os
import random
from dataclasses import replace
from typing import Any
from zlib import crc32

import numpy as np
import pytest
import torch
from small_clips import write_clips

from denoised_mdp.agents.registry import build_agent
from denoised_mdp.agents.world_model_agent import WorldModelAgent
from denoised_mdp.config import schema
from denoised_mdp.config.schema import Config
from denoised_mdp.envs import make_env
from denoised_mdp.models.base import WorldModel
from denoised_mdp.models.registry import MODELS
from denoised_mdp.models.structure import LatentSpec
from denoised_mdp.models.vision import Encoder

_X = LatentSpec("x", 6, 3, sees_action=True, seen_by_policy=True, free=True)
_Y = LatentSpec("y", 5, 4)
_Z = LatentSpec("z", 4, 2, sees_action=True, parents=("x", "y"), rewarded=False)
_C = LatentSpec("c", 4, 2, rewarded=False, seen_by_policy=True, free=True)
STRUCTURES = {
    "2b": (_X, _Y),
    "2c": (_X, _Y, _Z),
    "2c-blind": (_X, _Y, replace(_Z, parents=("x",))),
    "dreamer": (_X,),
    "confounder": (_C, replace(_X, parents=("c",), reward_sees=("c",)), replace(_Y, parents=("c",))),
    "categorical": (replace(_X, distribution="categorical", classes=3), _Y),
}


def options_of(kind: type, **given) -> dict[str, Any]:
    """Keyword arguments for a world model, a policy or a part of one: the schema's defaults, except for `given`.

    Constructors have no defaults of their own.
    """
    config = Config()
    if issubclass(kind, WorldModel):
        config.model = schema.MODELS[{model: name for name, model in MODELS.items()}[kind]]()
        return kind.options(config) | given
    if kind.__module__.startswith("denoised_mdp.policies"):
        known = vars(config.policy) | {"layers": config.policy.actor_layers}
    else:
        known = vars(config.model.kl) | {"alpha": config.alpha, "blocks": None} | Encoder.options(config)
    return {name: known[name] for name in inspect.signature(kind).parameters if name in known} | given


def configured(kind: type, *arguments, **given):
    """Build a world model, a policy or a part of one, with `options_of`."""
    return kind(*arguments, **options_of(kind, **given))


def small_config(structure: str = "2b", size: int = 64, **policy) -> Config:
    """A configuration whose networks are tiny."""
    config = Config()
    config.env.size = size
    config.model.latents = {row.name: row for row in STRUCTURES[structure]}
    config.model.depth, config.model.embed, config.model.reward_hidden = 2, 12, 7
    config.policy.hidden, config.policy.horizon = 8, 4
    for name, value in policy.items():
        setattr(config.policy, name, value)
    return config


def small_agent(structure: str = "2b", size: int = 64, actions: int = 2, **policy) -> WorldModelAgent:
    """A tiny agent in float64."""
    agent = build_agent(small_config(structure, size, **policy), actions)
    return agent.double()


def random_batch(length: int = 4, batch: int = 3, size: int = 64, actions: int = 2, seed: int = 0) -> dict:
    """A batch of noise with the shapes of a replay batch; an episode begins in the middle of segment 0."""
    rng = np.random.default_rng(seed)
    is_first = np.zeros((length, batch), bool)
    is_first[min(2, length - 1), 0] = True
    return {
        "observation": rng.integers(0, 256, (length, batch, size, size, 3), dtype=np.uint8),
        "action": rng.uniform(-1, 1, (length, batch, actions)).astype(np.float32),
        "reward": rng.normal(size=(length, batch)).astype(np.float32),
        "is_first": is_first,
        "is_terminal": np.zeros((length, batch), bool),
    }


def actions_for(env, count: int, seed: int = 0) -> np.ndarray:
    """Random actions, float32 [count, A]."""
    return np.random.default_rng(seed).uniform(-1, 1, (count, *env.action_space.shape)).astype(np.float32)


def assert_plain(tree) -> None:
    """Assert that an environment's state has only arrays and plain values, so it can be stored without pickle."""
    if isinstance(tree, dict):
        assert all(isinstance(key, str) for key in tree)
        for value in tree.values():
            assert_plain(value)
    elif isinstance(tree, list):
        for value in tree:
            assert_plain(value)
    else:
        assert tree is None or isinstance(tree, (np.ndarray, bool, int, float, str))
        assert not isinstance(tree, np.ndarray) or tree.dtype != object


def seed_everything(name: str) -> None:
    """Seed the global generators by a name: a test's draws must not depend on which tests ran before in its process.

    DENOISED_MDP_TEST_SEED, an integer, gives all tests other numbers: a test that fails with any of them is wrong.
    """
    seed = crc32(name.encode()) + int(os.environ.get("DENOISED_MDP_TEST_SEED", "0"))
    torch.manual_seed(seed)
    np.random.seed(seed % 2**32)
    random.seed(seed)


SLOWEST = ["test_parallel", "test_extending", "test_resume", "test_power_failure", "test_cli", "test_evidence"]
"""files that take half a minute or more: started first, so that no process waits long for another at the end"""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put slow files first, in an order that --no-loadscope-reorder keeps."""
    rank = {name: number for number, name in enumerate(SLOWEST)}
    items.sort(key=lambda item: rank.get(item.path.stem, len(rank)))


@pytest.fixture(autouse=True, scope="module")
def seeded_module(request):
    """Seed before the fixtures that the tests of one file share."""
    seed_everything(request.node.nodeid)


@pytest.fixture(autouse=True)
def seeded(request):
    """Seed before each test."""
    seed_everything(request.node.nodeid)


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    """A new folder for prepared clips and compiled kernels, shared by all tests that ask for it."""
    folder = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        folder = folder.parent  # shared by all processes
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DENOISED_MDP_CACHE", str(folder / "cache"))
        yield


@pytest.fixture(scope="module")
def clips(tmp_path_factory):
    """A folder of a few short videos."""
    return write_clips(tmp_path_factory.mktemp("clips"))


@pytest.fixture
def make(cache):
    """A make_env that closes its environments after the test."""
    made = []

    def make(*args, **options):
        made.append(make_env(*args, **options))
        return made[-1]

    yield make
    for env in made:
        env.close()


@pytest.fixture(autouse=True)
def nondeterministic_again():
    """Undo train.deterministic=true, which changes the whole process."""
    yield
    torch.set_deterministic_debug_mode("default")


@pytest.fixture(autouse=True)
def one_thread():
    """Use one thread: with tiny tensors, more only cost time."""
    torch.set_num_threads(1)
