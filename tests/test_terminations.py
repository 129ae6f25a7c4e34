"""Episodes that terminate: who can, what is stored, when there is a head, what it learns, and resuming.

What ends take from losses, returns and targets is checked against the oracle, in `test_oracle`.
"""

import gymnasium as gym
import numpy as np
import pytest
import torch
from conftest import random_batch, small_config
from small_runs import run_units, tiny

from denoised_mdp.agents.registry import build_agent
from denoised_mdp.collector import Collector
from denoised_mdp.config.schema import SACConfig
from denoised_mdp.envs import make_env
from denoised_mdp.envs.toy import TerminatingToyEnv
from denoised_mdp.envs.vector import EnvironmentPool
from denoised_mdp.evaluation import evaluate
from denoised_mdp.models.latent import Latent
from denoised_mdp.optim import Adam, optimize
from denoised_mdp.replay.ring import Replay
from denoised_mdp.run.environments import environment_maker
from denoised_mdp.run.folder import RunFolder
from denoised_mdp.run.load import load_run
from denoised_mdp.run.state import load_state
from denoised_mdp.session import train

ENDS = "env.task=dot_terminating"


def worlds(count, seed=0):
    """Positions [N, 2] that random play meets, and whether each ended its episode, bool [N]."""
    env, rng, signals, ends = TerminatingToyEnv(), np.random.default_rng(seed), [], []
    env.reset(seed=seed)
    while len(ends) < count:
        signal, _, terminated, _, _ = env.step(rng.uniform(-1, 1, 2))
        signals.append(signal), ends.append(terminated)
        if terminated:
            env.reset()
    return np.array(signals), np.array(ends)


def test_the_toy_ends_at_its_wall_and_nowhere_else():
    signals, ends = worlds(2000)
    np.testing.assert_array_equal(ends, (abs(signals) >= np.float32(0.9)).any(1))
    assert 0.01 < ends.mean() < 0.2


@pytest.mark.parametrize(
    ("suite", "task", "can"),
    [
        ("toy", "dot", False),
        ("toy", "dot_terminating", True),
        ("dmc", "cheetah_run", False),
        ("dmc", "lqr_lqr_2_1", True),
    ],
)
def test_an_environment_says_whether_it_can_terminate(suite, task, can):
    """Under distractors as well; of the suite, LQR alone can."""
    env = make_env(task, suite=suite, distractors=["camera_jitter"])
    with EnvironmentPool(lambda: env, 1) as pool:
        assert pool.can_terminate is env.can_terminate is can


def test_an_environment_that_does_not_say_can():
    class Silent(gym.Env):
        observation_space = action_space = gym.spaces.Box(-1, 1, (2,))

    with EnvironmentPool(Silent, 1) as pool:
        assert pool.can_terminate is True


def test_a_head_where_episodes_can_terminate_or_as_asked():
    config = small_config()
    plain, ends = build_agent(config, 2), build_agent(config, 2, can_terminate=True)
    assert plain.world_model.continuation is None
    theirs = ends.world_model.state_dict()
    assert {name.split(".")[0] for name in theirs.keys() - plain.world_model.state_dict().keys()} == {"continuation"}
    for name, value in plain.world_model.state_dict().items():  # the head draws its weights after all others
        assert torch.equal(value, theirs[name]), name
    features = torch.randn(4, 3, plain.mdp.feature_size)
    assert torch.equal(plain.mdp.continuation(features), torch.ones(4, 3))
    found = ends.mdp.continuation(features)
    assert found.shape == (4, 3) and bool(((found > 0) & (found < 1)).all())
    for asked in (True, False):
        config.model.continuation = asked
        made = build_agent(config, 2, can_terminate=not asked)
        assert (made.world_model.continuation is not None) is asked


def test_the_head_learns_where_the_toy_ends():
    """From latents that hold the position, it ranks the ends, and foretells how many there are."""
    config = small_config("dreamer")
    config.model.reward_hidden = 32
    model = build_agent(config, 2, can_terminate=True).world_model
    layout, optimizer = model.initial(1).layout, Adam(model.continuation.parameters(), lr=1e-2, eps=1e-7)

    def latent(signals):
        state = torch.zeros(len(signals), layout.state_size)
        state[:, :2] = torch.from_numpy(signals)
        return Latent(torch.zeros(len(signals), layout.belief_size), state, layout)

    signals, ends = worlds(4000)
    seen, terminal = latent(signals), torch.from_numpy(ends)
    for _ in range(300):
        optimize(model.continuation_nll(seen, terminal), optimizer, None)
    signals, ends = worlds(2000, seed=1)
    goes_on = model.mdp().continuation(latent(signals).features()).detach().numpy()
    ordered = goes_on[ends][:, None] < goes_on[~ends]  # every pair of an end and none
    assert ordered.mean() > 0.97
    assert goes_on.mean() == pytest.approx(1 - ends.mean(), abs=0.01)


def collected(path, task, turns=60):
    """What a collector gave, by environment, and the replay that it went into."""
    config = tiny(
        path, f"env.task={task}", "train.collect_envs=2", "train.total_steps=1000", "train.prefill_steps=1000"
    )
    collector = Collector(config, environment_maker(config), "cpu")
    turns = [collector.turn(None) for _ in range(turns)]
    collector.close()
    return [[row for turn in turns for row in turn[number]] for number in range(2)]


def test_terminal_rows_are_stored_and_time_limits_are_not(tmp_path):
    rows = collected(tmp_path, "dot_terminating")[0]
    replay = Replay(tmp_path / "replay", 200, (64, 64, 3), 2)
    for row in rows:
        replay.add(row.observation, row.action, row.reward, row.is_first, row.is_terminal)
    stored = replay.read(np.arange(len(rows)))
    last = np.append(stored["is_first"][1:], rows[-1].is_last)  # the next row begins an episode
    assert 0 < stored["is_terminal"].sum() < last.sum()  # some were truncated at 20 actions
    assert not (stored["is_terminal"] & ~last).any()
    np.testing.assert_array_equal(stored["is_terminal"], [row.is_terminal for row in rows])
    assert not any(row.is_terminal for rows in collected(tmp_path, "dot", 30) for row in rows)


@pytest.mark.parametrize("policy", ["backprop", "sac"])
def test_an_update_depends_on_the_terminal_rows(policy):
    """Of all that an agent learns, with the same noise."""
    config = small_config()
    if policy == "sac":
        config.policy = SACConfig(hidden=8)
    found = {}
    for ended in (False, True):
        agent, batch = build_agent(config, 2), random_batch()
        batch["is_terminal"][1, 0] = ended
        for _ in range(2):  # Adam's first step hardly depends on the size of a gradient
            agent.update(batch)
        found[ended] = agent.state_dict()
    changed = {name.split(".")[1] for name in found[True] if not torch.equal(found[True][name], found[False][name])}
    assert changed == ({"critics", "targets", "actor"} if policy == "sac" else {"actor", "value"})


@pytest.mark.parametrize("model", ["2b", "repo"])
def test_a_stopped_run_with_terminations_ends_as_one_that_was_not(tmp_path, model):
    """Its segments are longer than many of its episodes."""
    options = [ENDS, f"model={model}", "train.segment_length=12"]
    whole, stopped = (tiny(tmp_path / name, *options) for name in ("whole", "stopped"))
    train(whole)
    run_units(stopped, 55)
    train(stopped)
    (_, a), (_, b) = (load_state(RunFolder.existing(config.run_dir)) for config in (whole, stopped))
    assert a["can_terminate"] and any("continuation" in name for name in a["agent"]["weights"])
    for name, value in a["agent"]["weights"].items():
        assert torch.equal(value, b["agent"]["weights"][name]), name
    terminal = np.load(tmp_path / "whole" / "replay" / "is_terminal.npy")
    assert terminal.any()
    np.testing.assert_array_equal(terminal, np.load(tmp_path / "stopped" / "replay" / "is_terminal.npy"))
    config, agent, _ = load_run(tmp_path / "whole", device="cpu")
    assert agent.world_model.continuation is not None
    assert np.isfinite(evaluate(agent, environment_maker(config), [0, 1]).mean)
