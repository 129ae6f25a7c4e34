"""What analysis asks of a model: which part the policy sees, and whether there is a decoder."""

import json

import numpy as np
import pytest
from conftest import small_agent
from report_runs import matrix_of

from denoised_mdp.agents.world_model_agent import build_agent
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
    assert frozen.seen == seen and seen in frozen.parts()
    given = frozen.latent.select(agent.world_model.table.seen).features().numpy()  # beliefs, then states
    assert sorted(frozen.parts()[seen][3]) == sorted(given[3])


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
    matrix = factor_matrix(parts, targets, episode, random_divisions(4), ["ridge"], seen=frozen[0].seen)
    health = measure_health(agent, recordings, frozen, matrix)
    assert np.isnan(health.image_r2) and np.isnan(health.share["x"]) and health.nats["x"] > 0
    assert not any("reconstruct" in warning for warning in health.warnings)
    with pytest.raises(UserError, match="no decoder, so there is nothing to render"):
        render.render(agent, toy, [1, 2], tmp_path / "look", steps=3, explore=None)
