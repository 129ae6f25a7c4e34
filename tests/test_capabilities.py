"""What analysis asks of a model: which part the policy sees, and whether there is a decoder."""

import json

import numpy as np
import pytest
import torch
from conftest import random_batch, small_agent
from report_runs import matrix_of

from denoised_mdp.agents.base import Agent
from denoised_mdp.agents.registry import build_agent
from denoised_mdp.analysis import render
from denoised_mdp.analysis.crossfit import random_divisions
from denoised_mdp.analysis.data import freeze, probe_seeds, record
from denoised_mdp.analysis.factor_tables import as_tree, factor_lines, from_tree
from denoised_mdp.analysis.factors import factor_matrix, stack, targets_of
from denoised_mdp.analysis.health import measure_health
from denoised_mdp.analysis.report.parts import ratio_of_signal, recall_of
from denoised_mdp.config import load_config
from denoised_mdp.envs import make_env
from denoised_mdp.envs.factors import NOISE, SIGNAL, Factor, factors
from denoised_mdp.errors import UserError


def toy():
    return make_env("dot", suite="toy", action_repeat=2, episode_steps=40)


@pytest.mark.parametrize(
    ("structure", "seen"), [("2b", "x"), ("dreamer", "x"), ("confounder", "c+x"), ("2c-blind", "x")]
)
def test_what_the_policy_sees_is_one_part(structure, seen):
    """Of several latents that it sees, their features together: exactly what the policy gets."""
    agent = small_agent(structure).float()
    frozen = freeze(agent, record(toy, probe_seeds(0, 1), 6, behaviour="random"))[0]
    assert agent.seen == seen and seen in frozen.parts()
    given = frozen.latent.select(agent.world_model.table.seen).features().numpy()  # beliefs, then states
    assert sorted(frozen.parts()[seen][3]) == sorted(given[3])


@pytest.mark.parametrize("structure", ["2c", "confounder"])
def test_representations_are_those_that_the_policy_acts_on(structure):
    """`seen` names exactly the numbers of the features that acting hands to the policy."""
    agent, batch = small_agent(structure), random_batch(length=1)
    found = agent.representations(batch, torch.Generator().manual_seed(0))
    noise = agent.world_model.draw_noise(1, 3, generator=torch.Generator().manual_seed(0))
    given = agent.to_device(batch)
    latent = agent.world_model.filter(given["observation"], given["action"], given["is_first"], noise).latent
    features = latent.select(agent.world_model.table.seen).features()
    torch.testing.assert_close(found[agent.seen].sort(-1)[0], features.sort(-1)[0])
    assert set(found) == {*agent.world_model.table.names, agent.seen, "all", "encoder"}
    assert not any(part.requires_grad for part in found.values())


def test_an_agent_says_which_batches_it_wants():
    agent = small_agent()
    agent.config.train.batch_size, agent.config.train.segment_length = 3, 7
    assert (agent.batch_spec.batch_size, agent.batch_spec.segment_length) == (3, 7) and isinstance(agent, Agent)


def test_recall_and_leakage_are_of_all_that_the_policy_sees():
    """Noise that only c holds leaks to a policy that sees c and x, whatever x is like."""
    rng = np.random.default_rng(0)
    episode = np.repeat(np.arange(24), 20)
    level = {name: np.repeat(rng.normal(size=(24, 1)), 20, 0) for name in ("signal", "noise")}
    values = {name: one + rng.normal(size=(480, 1)) for name, one in level.items()}
    targets = {
        Factor("arm", "signal", (0,), "scalar", SIGNAL): values["signal"],
        Factor("light", "noise", (0,), "scalar", NOISE): values["noise"],
    }
    both = np.concatenate(list(values.values()), 1)
    parts = {"c": values["noise"], "x": values["signal"], "c+x": both, "all": both, "encoder": both}
    matrix = factor_matrix(parts, targets, episode, random_divisions(24), ["ridge"], seen="c+x")
    assert matrix.summary("ridge", "x", "noise").value < 0.1
    assert min(matrix.headline("ridge").values()) > 0.95
    again = from_tree(json.loads(json.dumps(as_tree(matrix))))
    assert again.seen == "c+x" and again.headline("ridge") == matrix.headline("ridge")
    assert recall_of(as_tree(matrix), "noise").value > 0.95
    assert any("leakage 1.0" in line or "leakage 0.99" in line for line in factor_lines(matrix))


def test_the_report_shows_the_ratio_of_what_the_policy_sees():
    tree = {"distances": {"x": {"ratio": 0.1}, "c+x": {"ratio": 0.7}}, "seen": "c+x"}
    assert ratio_of_signal(tree).value == 0.7
    assert matrix_of({"x": (0.9, 0.2)}).headline("ridge")["leakage"] == 0.2


def test_a_model_without_a_decoder_has_health_and_no_pictures(tmp_path):
    options = ["model=repo", "model.decoder=false", "model.depth=2", "model.reward_hidden=7", "policy.hidden=8"]
    agent = build_agent(load_config(options), 2)
    recordings = record(toy, probe_seeds(0, 4), 12, behaviour="random")
    frozen = freeze(agent, recordings)
    parts, episode = stack(frozen)
    environment = toy()
    targets = targets_of(factors(environment), recordings)
    environment.close()
    matrix = factor_matrix(parts, targets, episode, random_divisions(4), ["ridge"], seen=agent.seen)
    health = measure_health(agent, recordings, frozen, matrix)
    assert np.isnan(health.image_r2) and np.isnan(health.share["x"]) and health.nats["x"] > 0
    assert not any("reconstruct" in warning for warning in health.warnings)
    with pytest.raises(UserError, match="has no decoder: train one"):
        render.render(agent, toy, [1, 2], tmp_path / "look", steps=3, explore=None)
