"""The benchmark: its plain implementation computes what ours computes, and its tables hold what they promise."""

import contextlib
import json
import multiprocessing
import threading

import pytest
import torch
from conftest import random_batch, small_agent

from denoised_mdp.agents.registry import build_agent
from denoised_mdp.bench.around import acting, plain_dm_control
from denoised_mdp.bench.estimate import random_actions
from denoised_mdp.bench.plain import PlainUpdate, can_be_plain
from denoised_mdp.bench.update import ask, count_work, update_parts
from denoised_mdp.cli.main import main
from denoised_mdp.config import load_config
from denoised_mdp.envs import make_env
from denoised_mdp.errors import UserError


@pytest.mark.parametrize(("structure", "entropy"), [("2b", 0.1), ("dreamer", 0.0)])
def test_the_plain_update_is_the_same_update(structure, entropy):
    """Two updates of both from the same weights and noise: losses and every weight afterwards."""
    ours, other = (small_agent(structure, horizon=5, entropy=entropy) for _ in range(2))
    plain = PlainUpdate(other)
    for step in range(2):
        batch = random_batch(seed=step)
        draws = torch.Generator()
        draws.set_state(ours.random.get_state())
        noise = ours.world_model.draw_noise(4, 3, generator=draws)
        shape = (5, 12)
        policy_noise = tuple(
            torch.randn(*shape, size, dtype=torch.float64, generator=draws)
            for size in (ours.mdp.state_size, ours.mdp.action_size)
        )
        expected = ours.update(batch)
        found = plain.update(batch, noise, policy_noise)
        for name in ("policy/actor_loss", "policy/value_loss"):
            constant = found[name] - expected[name]
            torch.testing.assert_close(constant, torch.zeros_like(constant), rtol=0, atol=1e-9)
    for (name, a), b in zip(ours.state_dict().items(), other.state_dict().values(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-7, atol=1e-9, msg=lambda text, name=name: f"{name}: {text}")


def test_the_plain_update_refuses_what_it_does_not_know():
    with pytest.raises(ValueError, match="x and y"):
        PlainUpdate(small_agent("2c"))


@pytest.mark.parametrize(
    "option",
    [
        "model.x.distribution=categorical model.x.classes=4",
        "model.y.seen_by_policy=true",
        "model.continuation=true",
        "model=2c",
        "policy.norm=none",
        "policy.gamma=0.9 policy.entropy=0.01 model.reward_layers=1 model.kl.free_nats=0",
    ],
)
def test_what_is_announced_as_comparable_is_compared(option):
    plain = "env.task=dot env=toy distractors=none model.norm=none policy.return_scale=none"
    config = load_config(["preset=debug", *plain.split(), *option.split()])
    agent = build_agent(config, 2)
    assert can_be_plain(config) == option.startswith("policy.")
    if can_be_plain(config):
        PlainUpdate(agent)
    else:
        with pytest.raises(ValueError, match="x and y"):
            PlainUpdate(agent)


@pytest.mark.parametrize(
    "option",
    [
        "model.embed=null",
        "model.target=foreground",
        "model.pixel_range=1",
        "model.kl.relax=0.5",
        "model.kl.warmup=10",
        "policy.discount_weights=false",
        "policy.late_lr=0.5",
        "model=repo",
    ],
)
def test_the_plain_update_stands_for_no_configuration_with_an_option_that_it_lacks(option):
    plain = "env.task=dot env=toy distractors=none model.norm=none policy.return_scale=none"
    assert not can_be_plain(load_config(["preset=debug", *plain.split(), option]))


def test_a_process_that_has_died_is_one_line():
    for reads in (False, True):
        pipe, other = multiprocessing.Pipe()
        end = threading.Thread(target=lambda other=other, reads=reads: (reads and other.recv(), other.close()))
        end.start()
        if not reads:
            end.join()
        with pytest.raises(UserError, match=r"process of the update \(ours\) has ended"):
            ask(pipe, "ours", "update")
        end.join()


def test_actions_go_on_in_the_next_episode():
    with contextlib.closing(make_env("dot_terminating", suite="toy", size=16, action_repeat=1)) as env:
        env.reset(seed=0)
        env.action_space.seed(0)
        begun, act = env.begun, random_actions(env)
        for _ in range(200):
            act()
        assert env.begun > begun + 2


def test_tasks_of_domains_with_two_words_are_compared_with_dm_control():
    assert all(value > 0 for value in plain_dm_control("point_mass_easy", 16, 2))


def test_parts_and_work_of_an_update():
    config = load_config(["preset=debug", "model.depth=2"])
    agent = build_agent(config, 6)
    parts = update_parts(agent, config, repeats=1)
    assert list(parts) == [
        "replay sampling",
        "transfer",
        "encoder",
        "RSSM",
        "decoder",
        "losses",
        "backward",
        "optimizer",
        "policy",
    ]
    assert all(seconds > 0 for seconds in parts.values())
    small = count_work(agent, config)["GFLOP"]
    config.train.batch_size *= 2
    assert count_work(agent, config)["GFLOP"] == pytest.approx(2 * small, rel=0.02)


def test_acting_is_measured_where_the_agent_may_act():
    table = acting(load_config(["preset=debug"]), torch.device("cpu"))["a call"]
    names = [f"cpu, {count} at once, {unit}" for count in (1, 4, 10) for unit in ("ms", "cpu ms")]
    assert list(table) == names and all(value > 0 for value in table.values())


def test_command_writes_json(tmp_path, capsys):
    output = tmp_path / "results" / "bench.json"
    command = ["bench", "preset=debug", "--parts", "replay", "--rows", "150,300", "--output", str(output)]
    assert main(command) == 0
    result = json.loads(output.read_text())
    assert result["machine"]["threads"] == torch.get_num_threads()
    assert {name.split(" rows")[0] for name in result["replay"]["by size"]} == {"150", "300"}
    assert "| replay: by size" in capsys.readouterr().out
    for wrong, word in ((["--parts", "replays"], "replay"), (["--rows", "1,x"], "--rows")):
        assert main(["bench", "preset=debug", *wrong]) == 2
        assert word in capsys.readouterr().err
