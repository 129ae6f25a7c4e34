"""What is played, stored and counted, against a journal of what the environments were asked and answered."""

import inspect
import threading
import time

import gymnasium as gym
import numpy as np
import pytest
import torch
from conftest import small_agent
from small_runs import Recorder, bare_trainer, tiny

from denoised_mdp import evaluation, hooks
from denoised_mdp.agents.registry import build_agent
from denoised_mdp.collector import Collector, Overlap, ReplayRow
from denoised_mdp.config.schedule import Schedule
from denoised_mdp.envs import make_env
from denoised_mdp.evaluation import EvaluationResult, evaluate, evaluation_seeds
from denoised_mdp.replay.batches import Batches
from denoised_mdp.replay.rings import Rings
from denoised_mdp.run.environments import environment_maker
from denoised_mdp.run.folder import RunFolder
from denoised_mdp.run.load import prepare
from denoised_mdp.seeding import generator, generator_state, torch_seed
from denoised_mdp.session import Session


class Journal(gym.Wrapper):
    """Writes down each call and its answer. Episodes end after `length(seed of the first reset)` actions."""

    def __init__(self, env, length):
        super().__init__(env)
        self.length, self.calls, self.seed, self.count = length, [], None, 0

    def reset(self, **options):
        self.seed = options.get("seed") if self.seed is None else self.seed
        self.count, answer = 0, self.env.reset(**options)
        self.calls.append(("reset", options.get("seed"), answer))
        return answer

    def step(self, action):
        self.count += 1
        observation, reward, terminated, truncated, info = self.env.step(action)
        answer = observation, reward, terminated, truncated or self.count >= self.length(self.seed), info
        self.calls.append(("step", np.array(action), answer))
        return answer

    def get_state(self):
        return {"env": self.env.get_state(), "seed": self.seed, "count": self.count}

    def set_state(self, state):
        self.env.set_state(state["env"])
        self.seed, self.count = state["seed"], state["count"]


def journals(config):
    """A function that makes environments of a configuration, and the list of those made."""
    made = []

    def make():
        made.append(Journal(environment_maker(config)(), lambda seed: 12 if seed == config.seed else 17))
        return made[-1]

    return make, made


def acts(agent):
    """The calls of an agent's `act`, as (arguments by name, what it returned), from now on."""
    act, calls = agent.act, []

    def spy(*arguments, **options):
        bound = inspect.signature(act).bind(*arguments, **options)
        result = act(*arguments, **options)
        calls.append((bound.arguments, (result[0].copy(), result[1])))
        return result

    agent.act = spy
    return calls


SEVERAL = [
    "seed=3",
    "train.collect_envs=2",
    "train.prefill_steps=96",
    "train.exploration_noise=0.2",
    "train.train_every=100",
]


def collected(tmp_path, turns=60):
    """A collector of two environments, the calls of its agent, and what it gave in turns after a prefill of 24."""
    config = tiny(tmp_path, *SEVERAL)
    make, made = journals(config)
    collector, agent = Collector(config, make, "cpu"), build_agent(config, 2)
    calls = acts(agent)
    return collector, agent, made, calls, [collector.turn(agent) for _ in range(turns)]


def test_rows_are_what_was_played(tmp_path):
    """Row for row: the action that was executed, what it gave, and where episodes begin and end."""
    collector, _, made, _, turns = collected(tmp_path)
    for ring, env in enumerate(made):
        rows, ended = [row for turn in turns for row in turn[ring]], True
        assert len(rows) == len(env.calls)
        for row, (kind, asked, answer) in zip(rows, env.calls, strict=True):
            assert (kind == "reset") == row.is_first == ended
            np.testing.assert_array_equal(row.observation, answer[0])
            if row.is_first:
                assert not row.action.any() and row.reward == 0 and not (row.is_last or row.is_terminal)
            else:
                np.testing.assert_array_equal(row.action, asked)
                assert row.reward == answer[1] and row.is_last == (answer[2] or answer[3])
                assert row.is_terminal == answer[2]
            ended = row.is_last
    assert collector.step == 60 * 2 * 2


def test_only_the_first_episodes_are_seeded_each_with_its_own(tmp_path):
    """The first with the run's, the second from a stream of the run's, by definition."""
    collector, _, made, _, _ = collected(tmp_path)
    seeds = [[asked for kind, asked, _ in env.calls if kind == "reset"] for env in made]
    run = collector.config.seed
    assert [first for first, *_ in seeds] == [run, generator(run, "env/1").integers(2**31)]
    assert all(len(others) > 2 and set(others) == {None} for _, *others in seeds)
    assert all(first < 2**31 for first, *_ in seeds)


def test_the_prefill_is_uniform_and_as_long_as_said(tmp_path):
    """From streams of their own, by definition."""
    collector, _, made, calls, _ = collected(tmp_path)
    assert len(calls) == 60 - 24
    for env, name in zip(made, ("prefill", "prefill/1"), strict=True):
        rng = generator(collector.config.seed, name)
        executed = [asked for kind, asked, _ in env.calls if kind == "step"][:24]
        np.testing.assert_array_equal(executed, [rng.uniform(-1, 1, 2).astype(np.float32) for _ in executed])


def test_the_agent_acts_on_what_is_there(tmp_path):
    """The newest observations, the carry of before, where episodes begin; with the noise and streams of collecting."""
    collector, _, made, calls, turns = collected(tmp_path)
    carry, latest = None, [None, None]
    for number, turn in enumerate(turns):
        for ring, rows in enumerate(turn):
            if rows[0].is_first:
                latest[ring] = rows[0].observation
        if number >= 24:
            given, (actions, result) = calls[number - 24]
            np.testing.assert_array_equal(given["observation"], np.stack(latest))
            assert given["carry"] is carry and given["explore"] == 0.2
            assert list(given["is_first"]) == [rows[0].is_first for rows in turn]
            np.testing.assert_array_equal(actions, [rows[-1].action for rows in turn])
            carry = result
        latest = [rows[-1].observation for rows in turn]
    seeds = [torch_seed(collector.config.seed, name) for name in ("exploration", "exploration/1")]
    assert [random.initial_seed() for random in calls[0][0]["generator"]] == seeds


def test_a_restored_collector_plays_on(tmp_path):
    """As if it had not been stopped: in the middle of episodes, and where one has just ended."""
    for turns in (30, 36):
        collector, agent, *_ = collected(tmp_path, turns)
        state = collector.state()
        expected = [collector.turn(agent) for _ in range(20)]
        other = Collector(collector.config, journals(collector.config)[0], "cpu")
        other.restore(state, agent)
        for turn in expected:
            for rows, others in zip(turn, other.turn(agent), strict=True):
                for row, one in zip(rows, others, strict=True):
                    for name in ReplayRow._fields:
                        np.testing.assert_array_equal(getattr(row, name), getattr(one, name))
        assert other.step == collector.step


def test_a_block_is_played_with_the_weights_that_the_learner_had(tmp_path):
    """And ends with the turn after which updates are due."""
    collector, agent, _, calls, _ = collected(tmp_path, 24)
    learner = build_agent(collector.config, 2)
    with torch.no_grad():
        for weight in learner.parameters():
            weight.add_(0.01)
    due = collector.config.updates_due(collector.step)
    overlap = Overlap(collector, learner, agent)
    overlap.begin()
    turns = overlap.take()
    overlap.close()
    assert len(turns) == len(calls) == 25  # 100 steps, 4 a turn
    assert collector.config.updates_due(collector.step) > due
    for name, weight in learner.state_dict().items():
        assert torch.equal(agent.state_dict()[name], weight)


def test_a_block_that_nobody_waits_for_ends_with_its_action(tmp_path):
    """As after a second Ctrl-C, which saves nothing."""
    collector, agent, _, calls, _ = collected(tmp_path, 24)
    overlap, turn, began = (
        Overlap(collector, build_agent(collector.config, 2), agent),
        collector.turn,
        threading.Event(),
    )

    def slow(player):
        began.set()
        time.sleep(0.1)
        return turn(player)

    collector.turn = slow
    overlap.begin()
    began.wait(10)
    overlap.close()
    assert len(calls) < 5, "of 25"


def short():
    """An environment whose episodes last 2 to 7 actions, as their seed says."""
    env = Journal(make_env("dot", suite="toy", distractors=["camera_jitter"]), lambda seed: 2 + seed % 6)
    env.reset = lambda **options: setattr(env, "seed", options["seed"]) or Journal.reset(env, **options)
    return env


def by_hand(agent, seed, explore):
    """One episode alone: observations, latents, actions, rewards, signals."""
    env, carry, done = short(), None, False
    noise = torch.Generator().manual_seed(seed)
    rng = np.random.default_rng(seed)
    observation, info = env.reset(seed=seed)
    observations, beliefs, actions, rewards, signals = [observation], [], [], [], [info["signal"]]
    while True:
        if agent is None:
            action = rng.uniform(-1, 1, 2).astype(np.float32)
        else:
            action, carry = agent.act(observation, carry, explore=explore, generator=noise)
            beliefs.append(carry.latent.belief[0])
        if done:
            return np.stack(observations), beliefs, np.stack(actions), rewards, np.stack(signals)
        observation, reward, terminated, truncated, info = env.step(action)
        done = terminated or truncated
        for column, value in ((observations, observation), (actions, action), (rewards, reward)):
            column.append(value)
        signals.append(info["signal"])


@pytest.mark.parametrize("explore", [None, 0.3])
def test_an_evaluation_plays_each_episode_as_if_alone(monkeypatch, explore):
    """Episodes of several lengths, in two groups; each from its own seed, in the order of the seeds."""
    monkeypatch.setattr(evaluation, "EVALUATED_AT_ONCE", 3)
    agent, seeds = small_agent("2c"), evaluation_seeds(3, 6)
    result = evaluate(agent, short, seeds, record=6, explore=explore)
    assert len({seed % 6 for seed in seeds}) > 2 and len(set(result.returns)) == 6 and result.seeds == seeds
    for seed, total, episode in zip(seeds, result.returns, result.episodes, strict=True):
        observations, beliefs, actions, rewards, signals = by_hand(agent, seed, explore)
        assert len(rewards) == 2 + seed % 6 and total == pytest.approx(sum(rewards), rel=1e-6)
        np.testing.assert_array_equal(episode.observation, observations)
        np.testing.assert_allclose(episode.action[1:], actions, atol=1e-6)
        assert not episode.action[0].any()
        np.testing.assert_allclose(episode.signal, signals, atol=1e-6)
        torch.testing.assert_close(episode.latent.belief, torch.stack(beliefs), rtol=1e-6, atol=1e-6)


def test_a_random_evaluation_plays_uniform_actions():
    seeds = evaluation_seeds(3, 3)
    expected = [sum(by_hand(None, seed, None)[3]) for seed in seeds]
    assert evaluate(None, short, seeds).returns == pytest.approx(expected, rel=1e-12)


def test_only_the_first_episodes_of_an_evaluation_are_kept_though_it_has_several_groups(monkeypatch):
    monkeypatch.setattr(evaluation, "EVALUATED_AT_ONCE", 2)
    result, alone = (evaluate(None, short, seeds, record=3) for seeds in ([3, 4, 5, 6, 7], [3, 4, 5]))
    assert len(result.returns) == 5 and len(result.episodes) == 3
    for episode, other in zip(result.episodes, alone.episodes, strict=True):
        np.testing.assert_array_equal(episode.action, other.action)


def test_an_evaluation_stops_after_so_many_actions():
    seeds = [seed for seed in range(12) if seed % 6 > 1][:3]
    result = evaluate(small_agent(), short, seeds, record=3, max_steps=2)
    assert [len(episode.action) for episode in result.episodes] == [3, 3, 3]
    assert [len(episode.observation) for episode in result.episodes] == [3, 3, 3]


def test_an_evaluation_draws_from_no_generator_of_training():
    agent, before = small_agent(), torch.get_rng_state()
    state = agent.random.get_state()
    evaluate(agent, short, [1, 2], explore=0.3)
    assert torch.equal(agent.random.get_state(), state) and torch.equal(torch.get_rng_state(), before)


def test_seeds_of_evaluation_are_held_out_and_of_the_runs_own():
    seeds = evaluation_seeds(0, 40)
    assert len(set(seeds)) == 40 and 2**31 <= min(seeds) and max(seeds) < 2**32
    assert evaluation_seeds(0, 7) == seeds[:7] and not set(seeds) & set(evaluation_seeds(1, 40))


def test_mean_and_standard_error_in_closed_form():
    result = EvaluationResult([1.0, 2.0, 6.0], [1, 2, 3])
    assert result.mean == 3.0 and result.standard_error == pytest.approx(np.sqrt(7 / 3))
    assert np.isnan(EvaluationResult([1.0], [1]).standard_error)


def session_of(path, *options):
    """A session that has done nothing."""
    config = tiny(path, *options)
    run = RunFolder.create(config.run_dir)
    prepare(config, run)
    return Session(config, run)


def logged(trainer):
    """What a trainer's stand-in of a logger was given: [(step, metrics)]."""
    return [(step, {k: float(v) for k, v in metrics.items()}) for step, metrics in trainer.logger.calls["log"]]


def test_returns_of_training_are_sums_of_rewards_by_episode(tmp_path):
    """Two environments whose episodes end in the same turn, and in different ones; random until the prefill is over.

    It ends within turn 19, whose actions are random too.
    """
    trainer = bare_trainer(tiny(tmp_path, *SEVERAL, "train.prefill_steps=74"))
    image, turns = np.zeros((64, 64, 3), np.uint8), []
    ends = [{3, 6, 40}, {3, 19, 40}]  # turns, of four steps
    totals, expected, fresh = [0.0, 0.0], {}, [True, True]
    for turn in range(1, 41):
        turns.append([])
        for ring in range(2):
            rows = [ReplayRow(image, np.zeros(2, np.float32), 0.0, True, False, False)] if fresh[ring] else []
            reward, fresh[ring] = float(turn * 10 ** (3 * ring)), turn in ends[ring]
            totals[ring] += reward
            turns[-1].append([*rows, ReplayRow(image, np.full(2, ring, np.float32), reward, False, False, fresh[ring])])
            if fresh[ring]:
                expected.setdefault(4 * turn, []).append(totals[ring])
                totals[ring] = 0.0
    for turn in turns:
        trainer.accept(turn)
    names = {step: "random/return" if step <= 76 else "train/return" for step in expected}
    assert logged(trainer) == [(step, {names[step]: np.mean(values)}) for step, values in sorted(expected.items())]
    for ring in range(2):
        stored = [row for number, row in trainer.batches.calls["add"] if number == ring]
        assert [row.reward for row in stored] == [row.reward for turn in turns for row in turn[ring]]
        assert {float(value) for row in stored if not row.is_first for value in row.action} == {ring}


def test_rows_are_stored_as_they_were_collected(tmp_path):
    """Each in the replay of its environment."""
    replay = Rings(tmp_path, 2, 8, (4, 4, 3), 2)
    batches = Batches(replay, replay, 2, 2, np.random.default_rng(0))
    for number in range(2):
        for t in range(4):
            image, action = np.full((4, 4, 3), 10 * number + t, np.uint8), np.full(2, number - t, np.float32)
            batches.add(number, ReplayRow(image, action, float(10 * number + t), t == 0, False, False))
    for number, ring in enumerate(replay.rings):
        rows = ring.read(np.arange(ring.total))
        np.testing.assert_array_equal(rows["reward"], 10 * number + np.arange(4))
        np.testing.assert_array_equal(rows["observation"][:, 0, 0, 0], 10 * number + np.arange(4))
        np.testing.assert_array_equal(rows["action"][:, 0], number - np.arange(4))
        np.testing.assert_array_equal(rows["is_first"], [True, False, False, False])
    replay.close()


def learning(tmp_path, *options):
    """A trainer whose updates only count: metric ``a`` is 1, 2, ...; the calls of `update` by their `policy`."""
    calls = []

    def update(batch, *, policy):
        calls.append(policy)
        return {"a": torch.tensor(float(len(calls)))}

    return bare_trainer(tiny(tmp_path, *options), agent=Recorder(update=update)), calls


def test_metrics_are_means_over_the_updates_since_the_last_entry(tmp_path, monkeypatch):
    """So is the CPU time, which passes while nothing is logged as well."""
    times = iter((13.0, 20.0, 30.0))
    monkeypatch.setattr(hooks.time, "process_time", lambda: next(times))
    trainer, _ = learning(tmp_path)
    log = hooks.Log(spent=10.0)
    for count in (3, 1):
        for _ in range(count):
            trainer.learn()
        log(trainer)
    log(trainer)  # nothing was learned since
    assert logged(trainer) == [
        (0, {"a": 2.0, "train/updates": 3.0, "train/cpu_seconds": 3.0}),
        (0, {"a": 4.0, "train/updates": 4.0, "train/cpu_seconds": 7.0}),
    ]


def test_the_policy_learns_after_so_many_updates_of_the_model(tmp_path):
    trainer, calls = learning(tmp_path, "train.policy_after=2")
    for _ in range(4):
        trainer.learn()
    assert calls == [False, False, True, True]


def test_a_copy_acts_with_the_weights_of_now(tmp_path):
    session = session_of(tmp_path, "train.act_device=cpu")
    trainer = session.trainer
    for _ in range(2):
        with torch.no_grad():
            for weight in trainer.agent.parameters():
                weight.add_(0.01)
        trainer.updates += 1
        player = trainer.collector.acting(trainer.updates)
        assert player is not trainer.agent
        for name, weight in trainer.agent.state_dict().items():
            assert torch.equal(player.state_dict()[name], weight)
    session.close()


def test_evaluation_while_training_is_of_held_out_seeds_without_exploration(tmp_path, monkeypatch):
    session = session_of(tmp_path, "train.eval_episodes=3")
    trainer, calls = session.trainer, []
    close, trainer.logger = trainer.logger.close, Recorder()

    def spy(agent, make, seeds, **options):
        calls.append((agent, make().recipe, list(seeds), options))
        return EvaluationResult([1.0, 2.0, 6.0], list(seeds))

    monkeypatch.setattr(hooks, "evaluate", spy)
    trainer.hooks["evaluate"](trainer)
    ((agent, recipe, seeds, options),) = calls
    assert agent is trainer.agent and options.get("explore") is None and options.get("max_steps") is None
    assert seeds == evaluation_seeds(session.config.seed, 3)
    assert recipe == environment_maker(session.config)().recipe
    ((step, metrics),) = logged(trainer)
    assert step == 0 and metrics["eval/return"] == 3.0
    assert metrics["eval/standard_error"] == pytest.approx(np.sqrt(7 / 3))
    session.close(), close()


def test_episodes_to_look_at_are_of_the_runs_own_seed(tmp_path):
    config = tiny(tmp_path, "seed=3")
    found = hooks.looking_hooks(config, None, tmp_path)
    assert found["evaluate"].seeds == evaluation_seeds(3, config.train.eval_episodes)
    assert found["render"].seeds == evaluation_seeds(3, 2)


def test_batches_are_drawn_from_a_stream_of_the_runs_own_seed(tmp_path):
    session = session_of(tmp_path, "seed=3")
    assert generator_state(session.trainer.batches.random) == generator_state(generator(3, "replay"))
    session.close()


def test_what_is_due_is_due_once_in_each_interval(tmp_path):
    schedule = Schedule(tiny(tmp_path))
    for before, now, every, due in [
        (78, 80, 40, True),
        (80, 82, 40, False),
        (76, 90, 40, True),
        (0, 38, 40, False),
        (38, 120, 40, True),
        (78, 80, 0, False),
        (198, 200, 41, True),  # the end of the run
        (198, 200, 0, False),
    ]:
        schedule.every = {"log": 0, "save": every}
        assert schedule.hooks_due(before, now, updates=0) == ["save"] * due


def test_what_was_due_and_was_switched_off_since_keeps_no_run_from_its_end(tmp_path):
    schedule = Schedule(tiny(tmp_path))
    schedule.every |= {"evaluate": 40, "probe": 0}
    step, updates = 200, schedule.updates_due(200)
    assert schedule.still_due(["evaluate", "probe"]) == ["evaluate"]
    assert schedule.complete(step, updates, ["probe"]) and not schedule.complete(step, updates, ["evaluate", "probe"])
    assert not schedule.complete(step, updates, ["nothing we know"])


def test_before_the_first_update_there_is_nothing_to_look_at(tmp_path):
    schedule = Schedule(tiny(tmp_path))
    schedule.every = dict.fromkeys(schedule.every, 40)
    assert schedule.hooks_due(78, 80, updates=0) == ["save"]
    assert schedule.hooks_due(78, 80, updates=1) == ["log", "evaluate", "probe", "render", "snapshot", "save"]
