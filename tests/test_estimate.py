"""Estimates of how long runs take: from learners whose cost is known."""

import dataclasses
import os
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from denoised_mdp.bench import estimate
from denoised_mdp.bench.doctor import days_on_a_cpu
from denoised_mdp.cli.main import main
from denoised_mdp.config import load_config
from denoised_mdp.progress import duration

PAPER = ["preset=paper/cheetah_run_video_background", "train.device=cpu"]
FIXED, ROW, ACTOR = 0.05, 0.0015, 0.4  # CPU seconds of any update, of a row, and of an actor's step


@pytest.fixture
def learner(monkeypatch):
    """An agent of known cost in place of all others.

    Every other update moves its actor, where `actor` says so. `gain`: how many times faster its threads are by the
    clock than one.
    """
    known = SimpleNamespace(shapes=[], cpu=0.0, clock=0.0, gain=1.0, actor=0.0, device=torch.device("cpu"))

    def update(batch):
        known.shapes.append(batch["reward"].shape)
        cost = FIXED + ROW * batch["reward"].size + known.actor * (len(known.shapes) % 2)
        known.cpu += cost
        known.clock += cost / (known.gain if torch.get_num_threads() > 1 else 1.0)
        torch.rand(3)

    known.update, known.act = update, lambda pictures: None
    monkeypatch.setattr(estimate, "build_agent", lambda *_, **__: known)
    clocks = SimpleNamespace(process_time=lambda: known.cpu, perf_counter=lambda: known.clock)
    monkeypatch.setattr(estimate, "time", clocks)
    return known


@pytest.fixture
def two_threads():
    before = torch.get_num_threads()
    yield ["train.threads=2"]
    torch.set_num_threads(before)


def test_a_run_of_days_on_a_cpu_is_announced_before_it_starts(learner, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    before = torch.random.get_rng_state(), torch.get_num_threads()
    config = load_config([*PAPER, "train.threads=1"])
    text = days_on_a_cpu(config)
    updates, seconds = config.updates_due(1_000_000), FIXED + ROW * 2500
    assert learner.shapes == [(5, 5)] * 2 + [(10, 10)] * 2
    assert f"about {duration(updates * seconds)}: {updates:,} updates of 3.8 seconds on 1 thread, estimated" in text
    assert "1/25 of the batch" in text and "preset=quickstart" in text
    assert torch.equal(torch.random.get_rng_state(), before[0]) and torch.get_num_threads() == before[1]

    told = []
    monkeypatch.setattr("denoised_mdp.session.train", lambda config, stop: told.append(capsys.readouterr().err) or True)
    assert main(["train", *PAPER, "train.threads=1"]) == 0
    said = duration(updates * seconds)
    assert told[0].startswith(f"denoised-mdp: note: without a GPU this run will learn for about {said}")


def test_a_short_run_and_one_that_continues_are_not_measured(learner, tmp_path):
    for options in (["preset=quickstart"], [*PAPER, f"run_dir={tmp_path}"], [*PAPER, "train.total_steps=50000"]):
        assert days_on_a_cpu(load_config(options)) is None
    assert learner.shapes == []


@pytest.mark.parametrize("options", [[], ["train.batch_size=50", "train.segment_length=50"], ["train.batch_size=1"]])
@pytest.mark.parametrize("rows", [100, 400])
def test_what_any_update_costs_is_not_multiplied_by_rows(learner, options, rows):
    config = load_config(["preset=quickstart", "train.threads=1", *options])
    whole = config.train.batch_size * config.train.segment_length
    seconds, part = estimate.update_on_cpu(config, rows, repeats=3)
    assert seconds == pytest.approx(FIXED + ROW * whole)
    assert part == whole // np.prod(learner.shapes[-1]) and (part == 1 or whole > rows)


def test_a_row_costs_from_nothing_to_its_share(learner, monkeypatch):
    """Whatever else the machine did while two small updates were timed."""
    config = load_config([*PAPER, "train.threads=1"])
    for few, many, whole in ((2.0, 1.0, 1.0), (0.0, 1.0, 25.0)):
        seconds = iter([[few], [many]])
        monkeypatch.setattr(estimate, "update_seconds", lambda *_, seconds=seconds: next(seconds))
        assert estimate.update_on_cpu(config, 100)[0] == whole


@pytest.mark.parametrize(("gain", "found"), [(1.37, 1.37), (0.5, 1.0), (3.0, 2.0)])
def test_threads_help_as_much_as_they_do(learner, two_threads, monkeypatch, gain, found):
    monkeypatch.setattr(os, "getloadavg", lambda: (0.5,))
    learner.gain = gain
    config = load_config([*PAPER, *two_threads])
    assert estimate.update_on_cpu(config, 100)[0] == pytest.approx((FIXED + ROW * 2500) / found)
    assert torch.get_num_threads() == 2
    monkeypatch.setattr(os, "getloadavg", lambda: (1e3,))  # nobody waits for threads that wait for others
    assert estimate.update_on_cpu(config, 100)[0] == pytest.approx(FIXED + ROW * 2500)


def test_steps_of_the_actor_count_as_often_as_they_come(learner):
    learner.actor = ACTOR
    config = load_config(["preset=quickstart", "agent=curl", "train.threads=1"])
    assert config.agent.actor_every == config.agent.cycle == 2
    batch = {"reward": np.zeros((2, 5))}
    clock = estimate.time.perf_counter
    assert estimate.update_seconds(learner, batch, config, 3, clock) == pytest.approx(
        [FIXED + ROW * 10 + ACTOR / 2] * 3
    )
    rarely = dataclasses.replace(config, agent=dataclasses.replace(config.agent, actor_every=10**9))
    del learner.shapes[:]
    estimate.update_seconds(learner, batch, rarely, 1)
    assert len(learner.shapes) == 2 * estimate.LONGEST_CYCLE


def test_environments_that_collect_together_are_asked_together():
    """Acting is a small part of a run then: one call for all of them."""
    config = load_config(["preset=debug", "env=toy", "train.collect_envs=3"])
    seen = []
    agent = SimpleNamespace(act=lambda pictures: seen.append(tuple(pictures.shape)))
    estimate.acting_seconds(agent, {"observation": np.zeros((2, 1, 8, 8, 6), np.uint8)}, config, 1)
    assert seen == [(3, 8, 8, 3)]
    train, env = config.train, config.env
    assert estimate.project(config, 0, 0.5, 0.6)["collecting"] == pytest.approx(
        train.total_steps / env.action_repeat * 0.7
    )


@pytest.mark.parametrize("rows", [4, 10, 100, 400, 10_000])
def test_a_small_update_imagines_from_as_large_a_share_of_its_rows(rows):
    config = load_config(["preset=quickstart"])
    small = estimate.shrunk(config, rows)
    length, count = small.batch_spec.segment_length, small.batch_spec.batch_size
    whole = config.batch_spec.segment_length * config.batch_spec.batch_size
    assert min(rows, whole) / 2 < length * count <= rows and (length * count == whole or rows < 2 * whole)
    share = config.policy.imagine_rows / config.batch_spec.segment_length
    assert abs(small.policy.imagine_rows / length - share) <= 0.5 / length
