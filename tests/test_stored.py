"""scripts/reproduce/stored.py: all settings see the same rows, a repetition prints the same, only one part learns."""

import functools
import json

import pytest
import torch
from reproducing import script
from small_runs import run_units, tiny

import denoised_mdp
from denoised_mdp.replay.rings import Rings
from denoised_mdp.run.folder import RunFolder

BACKGROUND = "distractors=video_background"


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    config = tiny(tmp_path_factory.mktemp("stored") / "run", BACKGROUND, "train.eval_every=0")
    run_units(config, 10**9)
    return RunFolder(config.run_dir)


@pytest.fixture
def stored(run, monkeypatch, capsys):
    """Call the script on the run: (lines of its output without the seconds, the agent it trained, the rows drawn)."""
    with script("stored") as module:
        agents, drawn, make, sample = [], [], module.agent_for, Rings.sample

        def kept(where, function):
            def call(*arguments, **options):
                where.append(function(*arguments, **options))
                return where[-1]

            return call

        monkeypatch.setattr(module, "agent_for", kept(agents, make))
        monkeypatch.setattr(Rings, "sample", kept(drawn, sample))
        monkeypatch.setattr(module, "EPISODES", 2)
        monkeypatch.setattr(module, "left", functools.partial(module.left, episodes=2, steps=30))

        def call(part, *options, seed=None, every=1):
            drawn.clear()
            module.learn(run, tiny(run.path, BACKGROUND, *options), part, seed, 2, every)
            lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
            assert [line["updates"] for line in lines] == [1, 2][every - 1 :] and all(
                line.pop("cpu_seconds") > 0 for line in lines
            )
            return lines, agents[-1], [{name: array.copy() for name, array in rows.items()} for rows in drawn]

        yield call


def same(a, b) -> bool:
    """Whether two modules hold the same weights."""
    a, b = a.state_dict(), b.state_dict()
    return a.keys() == b.keys() and all(torch.equal(value, b[name]) for name, value in a.items())


def test_a_new_policy_learns_in_the_world_model_of_the_run(run, stored):
    lines, agent, _ = stored("policy")
    trained = denoised_mdp.load(run.path)
    assert same(agent.world_model, trained.world_model) and not same(agent.policy, trained.policy)
    assert {"return", "policy/imagined_reward"} <= lines[0].keys() and lines[0] != lines[1]
    assert stored("policy")[0] == lines
    assert stored("policy", seed=7)[0] != lines


def test_a_new_world_model_sees_the_same_rows_whatever_its_options(run, stored):
    lines, agent, rows = stored("model", every=2)
    assert {"body", "elsewhere", "model/kl_x", "probe/signal_ceiling"} <= lines[0].keys()
    assert not same(agent.world_model, denoised_mdp.load(run.path).world_model)
    other, changed, seen = stored("model", "model.kl.alpha=3", every=2)
    assert other != lines and changed.config.model.kl.alpha == 3
    assert len(seen) == len(rows) == 2
    assert all((a[name] == b[name]).all() for a, b in zip(rows, seen, strict=True) for name in a)
    assert stored("model", every=2)[0] == lines
