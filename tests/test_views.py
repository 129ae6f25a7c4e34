"""What is handed out stays as it is, whatever happens afterwards; what is handed in is left alone."""

import copy
import dataclasses

import gymnasium as gym
import numpy as np
import pytest
import torch
from conftest import actions_for, random_batch, small_agent, small_config
from small_runs import tiny

from denoised_mdp import session as session_module
from denoised_mdp.agents.registry import build_agent
from denoised_mdp.collector import Collector
from denoised_mdp.config.schema import SACConfig
from denoised_mdp.envs.pixels import PixelEnv
from denoised_mdp.envs.toy import CountingEnv
from denoised_mdp.evaluation import evaluate
from denoised_mdp.replay.on_device import OnDeviceReplay
from denoised_mdp.replay.rings import Rings
from denoised_mdp.rollout import play
from denoised_mdp.run.environments import environment_maker
from denoised_mdp.run.folder import RunFolder
from denoised_mdp.run.load import prepare
from denoised_mdp.session import Session


def leaves(tree, path=""):
    """The arrays, tensors, numbers and texts of a tree by their places in it."""
    if dataclasses.is_dataclass(tree):
        tree = {field.name: getattr(tree, field.name) for field in dataclasses.fields(tree)}
    if isinstance(tree, dict):
        tree = list(tree.items())
    elif isinstance(tree, list | tuple):
        tree = list(enumerate(tree))
    else:
        return {path: tree}
    parts = {}
    for name, value in tree:
        parts |= leaves(value, f"{path}/{name}")
    return parts


class Watched:
    """Things that were handed out, and what they were then."""

    def __init__(self):
        self.things = []

    def __call__(self, thing):
        self.things.append((thing, copy.deepcopy(leaves(thing))))
        return thing

    def assert_unchanged(self):
        assert self.things
        for thing, before in self.things:
            now = leaves(thing)
            assert now.keys() == before.keys()
            for path, value in before.items():
                if isinstance(value, torch.Tensor | np.ndarray):
                    np.testing.assert_array_equal(np.asarray(now[path]), np.asarray(value), err_msg=path)
                elif not hasattr(value, "names"):  # a layout says which columns are which
                    assert now[path] == value, path


class Executed(gym.Wrapper):
    """Writes down a copy of each action of each episode."""

    def __init__(self, env, episodes):
        super().__init__(env)
        self.episodes = episodes

    def reset(self, **options):
        self.episodes.append([])
        return self.env.reset(**options)

    def step(self, action):
        self.episodes[-1].append(np.array(action))
        return self.env.step(action)

    def get_state(self):
        return self.env.get_state()


class Careless(CountingEnv):
    """A world that draws into one buffer, hands out its own truth, and changes the action it is given."""

    def __init__(self, size, episode_steps):
        super().__init__(size, episode_steps)
        self.buffer, self.truth, self.given = np.empty((size, size, 3), np.uint8), np.empty(2, np.float32), []

    def step(self, action):
        self.given.append(np.array(action))
        action *= 2
        return super().step(action)

    def frame(self):
        self.buffer[:] = super().frame()
        return self.buffer

    def foreground(self):
        self.buffer[:] = 0
        return self.buffer

    def signal(self):
        self.truth[:] = super().signal()
        return self.truth


def test_a_careless_world_changes_nothing_that_was_seen():
    world, watched = Careless(32, 30), Watched()
    env = PixelEnv(world, action_repeat=3)
    action = np.array([0.5, -0.25], np.float32)
    watched((env.reset(seed=0), env.render(), env.observe(), env.info(), action))
    for _ in range(4):
        watched(env.step(action))
    watched.assert_unchanged()
    np.testing.assert_array_equal(world.given, np.tile(action, (12, 1)))
    both = PixelEnv(world, foreground=True)
    seen, _ = both.reset(seed=0)
    np.testing.assert_array_equal(seen, np.concatenate([both.render(), np.zeros_like(world.buffer)], -1))
    episode = play(env, 0, lambda observation: action, 5)
    assert [CountingEnv.decode(frame)[1] for frame in episode.observation] == [0, 3, 6, 9, 12, 15]


@pytest.mark.parametrize("options", [["train.overlap"], ["train.act_device=cpu"], []], ids=["overlap", "cpu", "plain"])
def test_every_stored_action_was_executed(tmp_path, monkeypatch, options):
    """Episodes of 20 actions, blocks of 30: half of the episodes end inside a block."""
    never = [f"train.{name}_every=0" for name in ("eval", "probe", "checkpoint")]
    short = ["train.total_steps=320", "train.train_every=60", "train.updates=1", "train.batch_size=1", *never]
    config = tiny(tmp_path / "run", *short, *[text for text in options if "=" in text])
    config.train.overlap = "train.overlap" in options  # in this process, where the environment is to be seen
    episodes = []
    monkeypatch.setattr(
        session_module,
        "environment_maker",
        lambda config, **how: lambda: Executed(environment_maker(config, **how)(), episodes),
    )
    run = RunFolder.create(config.run_dir)
    prepare(config, run)
    session = Session(config, run)
    session.trainer.run_to_end()
    (replay,) = session.replay.rings
    rows = replay.read(np.arange(replay.total))
    stored = np.split(rows["action"], np.flatnonzero(rows["is_first"])[1:])
    session.close()
    assert len(stored) == 8 and {len(actions) for actions in stored} == {21}
    for executed, actions in zip(episodes, stored, strict=True):
        assert not actions[0].any()
        np.testing.assert_array_equal(actions[1:], executed)


@pytest.mark.parametrize("explore", [None, 0.3])
def test_what_acting_returns_stays(explore):
    """And changing the returned actions changes nothing that the agent does."""
    agent = small_agent().float()
    frames = random_batch(length=5)["observation"]
    watched, noise = Watched(), torch.Generator().manual_seed(0)
    played = []
    for spoil in (False, True):
        noise.manual_seed(0)
        carry = None
        for step, frame in enumerate(frames):
            observation = frame.copy()
            first = None if step == 0 else np.array([step == 2, False, step == 3])
            action, carry = agent.act(observation, carry, is_first=first, explore=explore, generator=noise)
            np.testing.assert_array_equal(observation, frame)
            watched(carry)
            if spoil:
                action[:], observation[:] = 9.0, 0
            else:
                watched((action, first))
        played.append(carry)
    watched.assert_unchanged()
    for first, second in zip(leaves(played[0]).values(), leaves(played[1]).values(), strict=True):
        assert not isinstance(first, torch.Tensor) or torch.equal(first, second)
    for owner, name in ((carry, "action"), (carry.latent, "belief")):
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(owner, name, None)


def test_a_policy_that_keeps_its_actions_changes_no_carry():
    """A policy of one's own may return a buffer that its next call overwrites."""
    agent, buffer, frames = small_agent(), torch.zeros(3, 2, dtype=torch.float64), random_batch()["observation"]
    agent.policy.act = lambda features, noise: buffer.add_(0.1)
    watched, carry = Watched(), None
    for frame in frames:
        action, carry = watched(agent.act(frame, carry))
    watched.assert_unchanged()
    np.testing.assert_allclose(action, 0.4, rtol=1e-6)


def test_what_a_collector_hands_out_stays(tmp_path):
    """Rows and states, over the ends of episodes."""
    config = tiny(tmp_path, "train.collect_envs=2", "train.prefill_steps=36", "distractors=camera_jitter")
    player, watched = Collector(config, environment_maker(config), "cpu"), Watched()
    agent = build_agent(config, 2)
    for _ in range(45):
        watched(player.turn(agent))
        state = watched(player.state())
    player.restore(state, agent)
    player.turn(agent)
    watched.assert_unchanged()
    player.close()


@pytest.mark.parametrize("policy", ["backprop", "sac"])
def test_a_state_of_the_agent_is_a_copy(policy):
    """Neither it nor an agent restored from it changes when another one learns."""
    config = small_config()
    if policy == "sac":
        config.policy = SACConfig(hidden=8)
    first, second, third = (build_agent(config, 2) for _ in range(3))
    watched = Watched()
    watched(first.update(random_batch()))
    state = watched(first.state())
    second.restore(state)
    before = Watched()
    before(second.state())
    first.update(random_batch(seed=1))
    restored = second.state()
    second.update(random_batch(seed=2))
    third.restore(state)
    watched.assert_unchanged()
    expected = leaves(before.things[0][0])
    for other in (restored, third.state()):
        for path, value in leaves(other).items():
            np.testing.assert_array_equal(np.asarray(value), np.asarray(expected[path]), err_msg=path)


def test_what_the_replay_hands_out_stays(tmp_path):
    """Batches, rows and states, while rows are added and places are overwritten."""
    replay, rng = Rings(tmp_path, 2, 24, (4, 4, 3), 2), np.random.default_rng(0)
    on_device, watched = OnDeviceReplay(replay, torch.device("cpu")), Watched()
    for row in range(60):
        image, action = rng.integers(0, 256, (4, 4, 3), dtype=np.uint8), rng.normal(size=2)
        replay.add(0, image, action, row, row % 6 == 0)
        replay.add(1, image, action, row, row % 6 == 0)
        image[:], action[:] = 0, 9.0  # the caller's, who may do with them what he likes
        if row > 5:
            ring = replay.rings[row % 2]
            newest = ring.total - 1
            watched((replay.sample(2, 3, rng), on_device.sample(2, 3, rng), replay.state(), ring.episodes()))
            watched([ring.read(rows) for rows in (newest, np.array([newest]), np.array([[newest - 1], [newest]]))])
            assert ring.read(newest)["reward"] == row and ring.read(newest)["action"].any()
    watched.assert_unchanged()
    assert not any((batch[0]["action"] == 9.0).any() for batch, _ in watched.things[::2])
    replay.close()


def test_what_an_evaluation_returns_stays():
    from denoised_mdp.envs import make_env

    agent, watched, seeds = small_agent(), Watched(), [1, 2]
    result = watched(evaluate(agent, lambda: make_env("dot", suite="toy", episode_steps=6), seeds, record=2))
    again = evaluate(agent, lambda: make_env("dot", suite="toy", episode_steps=6), seeds, record=2)
    agent.update(random_batch())
    again.episodes[0].action[:], again.episodes[0].latent.belief[:] = 0.0, 0.0
    seeds[:] = []
    watched.assert_unchanged()
    assert result.seeds == [1, 2]


@pytest.mark.parametrize(
    "recipe",
    [
        {"task": "dot", "suite": "toy", "distractors": ["camera_jitter"]},
        {"task": "dot", "suite": "toy", "distractors": {"video_background": {"frames": 4}}},
        {"task": "reacher_easy", "distractors": ["camera_jitter", "lighting", "body_color", "camera_pose"]},
    ],
    ids=["toy", "toy-video", "dmc"],
)
def test_what_an_environment_hands_out_stays(make, recipe):
    """Observations, truths and states; nor does it change the actions and states that it is given."""
    env, watched = make(**recipe, episode_steps=20), Watched()
    watched(env.reset(seed=0))
    actions = watched(actions_for(env, 6))
    states = []
    for action in actions:
        watched(env.step(action))
        watched((env.render(), env.info()))
        states.append(watched(env.get_state()))
    env.set_state(states[2])
    later = [env.step(action)[0] for action in actions[3:]]
    env.set_state(states[2])
    for action, expected in zip(actions[3:], later, strict=True):
        np.testing.assert_array_equal(env.step(action)[0], expected)
    env.reset()
    watched.assert_unchanged()
