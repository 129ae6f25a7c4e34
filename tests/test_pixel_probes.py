"""Probes, reports and tables of agents without a world model; what they cannot do is one line."""

import json
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from joints_case import make_run, small_data
from pixel_case import SIZE, tiny_agent
from small_runs import TINY

from denoised_mdp import register_agent
from denoised_mdp.agents.curl import CURL
from denoised_mdp.agents.registry import AGENTS, build_agent
from denoised_mdp.analysis.crossfit import random_divisions
from denoised_mdp.analysis.data import FrozenFeatures, as_batch, freeze, probe_seeds, record
from denoised_mdp.analysis.factors import factor_matrix, stack, targets_of
from denoised_mdp.analysis.health import features_health
from denoised_mdp.analysis.invariance import measure_invariance, record_grid
from denoised_mdp.analysis.joints.probe import probe_joints
from denoised_mdp.analysis.probes.joints import Options as JointOptions
from denoised_mdp.cli.main import main
from denoised_mdp.config import load_config, schema
from denoised_mdp.config.agents import CURLConfig
from denoised_mdp.envs import make_env
from denoised_mdp.envs.factors import factors
from denoised_mdp.errors import UserError
from denoised_mdp.options import option


def toy():
    return make_env("dot", suite="toy", size=SIZE, action_repeat=2, episode_steps=40)


@pytest.mark.parametrize("name", ["curl", "dbc", "pisac"])
def test_frozen_features_are_what_acting_reads(name):
    agent = tiny_agent(name)
    episodes = record(toy, probe_seeds(0, 3), 8, agent=agent)
    for one, episode in zip(freeze(agent, episodes), episodes, strict=True):
        carry, actions = None, []
        for picture in episode.observation:
            action, carry = agent.act(picture, carry)
            actions.append(action)
        np.testing.assert_allclose(agent.modes(as_batch(episode))[:, 0], np.stack(actions), atol=1e-6)
        read = agent.picture_encoder.read(carry.frames).detach()  # of the last frames
        np.testing.assert_allclose(one.parts()["x"][-1], read[0].numpy(), atol=1e-5)
        assert agent.seen == "x" and one.parts()["encoder"].shape == (9, 16 * 4)


class NoisyCURL(CURL):
    """Its features are drawn, as a posterior's samples are."""

    def representations(self, batch, generator=None, *, sample=True):
        parts = super().representations(batch)
        noise = torch.randn(parts["x"].shape, generator=generator) if sample else torch.zeros(())
        return parts | {"x": parts["x"] + noise}


def test_draws_of_features_come_from_the_seed():
    """Shared by all episodes where they are to be compared; none for the mean."""
    agent = tiny_agent("curl")
    episodes = record(toy, probe_seeds(0, 2), 8, behaviour="random")
    plain = [one.features["x"] for one in freeze(agent, episodes)]
    agent.__class__ = NoisyCURL

    def drawn(**options):
        found = [one.features["x"] for one in freeze(agent, episodes, **options)]
        return [mine - usual for mine, usual in zip(found, plain, strict=True)]

    one, other = drawn()
    assert one.std() > 0.5 and not torch.allclose(one, other, atol=0.1)
    torch.testing.assert_close(drawn(), [one, other])
    assert not torch.allclose(drawn(seed=1)[0], one, atol=0.1)
    torch.testing.assert_close(*drawn(shared_noise=True), atol=1e-5, rtol=0)
    torch.testing.assert_close(drawn(sample=False), [torch.zeros_like(one)] * 2)


def test_factors_and_health_are_measured_of_features():
    agent = tiny_agent("curl")
    episodes = record(toy, probe_seeds(0, 5), 12, behaviour="random")
    frozen = freeze(agent, episodes)
    environment = toy()
    parts, episode = stack(frozen)
    targets = targets_of(factors(environment), episodes)
    matrix = factor_matrix(parts, targets, episode, random_divisions(5), ["ridge"], seen=agent.seen)
    assert matrix.parts == ["x", "encoder"] and set(matrix.headline("ridge")) == {"signal_recall", "leakage"}
    health = features_health("x", frozen, matrix)
    assert health.active["x"] == (8, 8) and not any("collapsed" in one for one in health.warnings)
    still = [FrozenFeatures({"x": torch.ones(4, 8)})]
    assert features_health("x", still, None).active["x"] == (0, 8)
    assert "x has collapsed" in features_health("x", still, None).warnings[0]


def test_invariance_compares_features_and_actions():
    """Chance plays no part; pictures that do not change give distances of zero."""
    agent = tiny_agent("curl")
    grid = record_grid(toy, agent, 2, 2, 6)
    found = measure_invariance(agent, grid)
    assert set(found.parts) == {"x", "encoder", "action"} and found.parts["x"].other_noise > 0
    assert all(one.resampled == 0 for one in found.parts.values())
    same = measure_invariance(agent, [[row[0], row[0]] for row in grid])
    assert same.parts["x"].other_noise == 0 and same.action_change == 0


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """A data set of joint positions."""
    folder = tmp_path_factory.mktemp("joints") / "data"
    small_data(folder).close()
    return folder


@pytest.mark.parametrize(("name", "title"), [("curl", "CURL"), ("dbc", "DBC"), ("pisac", "PI-SAC")])
def test_joints_are_read_from_stacks_of_three(data, tmp_path, name, title):
    run = make_run(tmp_path / name, f"agent={name}", "agent.frames=3")
    small = {"data": data, "test_pairs": 10, "updates": 2, "batch": 4, "evaluations": 1, "device": "cpu"}

    def probe(output, **options):
        return probe_joints([run], JointOptions(tmp_path / output, **small, **options), [20])

    assert any(title in line for line in probe("out", stack="3", references="none"))
    with pytest.raises(UserError, match="reads 3 frames at once: give --stack 3"):
        probe("one", stack="1", references="none")
    with pytest.raises(UserError, match="references have a world model's encoder"):
        probe("two", stack="3")


def test_a_run_is_shown_and_what_it_cannot_do_is_one_line(tmp_path, capsys):
    """From training to the table, on the command line."""
    run = str(tmp_path / "curl")
    assert main(["train", *TINY, "agent=curl", f"run_dir={run}"]) == 0
    assert "render" not in capsys.readouterr().err.partition("next:")[2]
    for probe in ("factors", "health"):
        assert main(["probe", probe, run, "--episodes", "4", "--steps", "12"]) == 0
    assert main(["report", run, "-o", str(tmp_path / "report.html")]) == 0
    assert main(["status", run]) == 0 and main(["table", run, "-o", str(tmp_path / "table")]) == 0
    assert main(["evaluate", run, "--episodes", "1"]) == 0
    assert "curl" in (tmp_path / "table" / "runs.csv").read_text()
    result = json.loads(next((tmp_path / "curl" / "probes").glob("factors*.json")).read_text())
    assert (result["model"], result["policy"], result["seen"]) == ("curl", "", "x")
    capsys.readouterr()
    assert main(["render", run]) == 2
    assert capsys.readouterr().err.count("agent=curl has no world model") == 1
    assert main(["bench", *TINY, "agent=curl"]) == 2
    assert "bench measures world models alone" in capsys.readouterr().err


def test_an_agent_of_ones_own_is_one_class_and_its_options():
    @dataclass
    class Options(CURLConfig):
        name: str = "mine"
        temperature: float = option(0.5, "of the similarities", above=0)

    class Mine(CURL):
        def logits(self, now, positive):
            return super().logits(now, positive) / self.options.temperature

    register_agent("mine", Mine, Options)
    try:
        config = load_config(["agent=mine", "env.size=96", "agent.temperature=2", "agent.depth=4", "agent.hidden=8"])
        assert isinstance(build_agent(config, 2), Mine) and config.method == ("mine", "")
        with pytest.raises(UserError, match="only agent=mine has this option"):
            load_config(["agent.temperature=2"])
    finally:
        del AGENTS["mine"], schema.AGENTS["mine"]
