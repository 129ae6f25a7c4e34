"""Data sets of joint positions: what interrupts their making changes nothing, and no episode is on both sides."""

import functools
import json
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from report_runs import make_run

from denoised_mdp.analysis.joints.data import JointData, Plan
from denoised_mdp.analysis.joints.probe import chosen_rows
from denoised_mdp.analysis.joints.record import RANDOM, collect, make_data
from denoised_mdp.analysis.joints.sac import StateActor, StateEnv, stage_path, state_features, train_stages
from denoised_mdp.analysis.probes.joints_data import Options
from denoised_mdp.analysis.results import first_difference
from denoised_mdp.cli.main import main
from denoised_mdp.config import load_config
from denoised_mdp.envs import make_env
from denoised_mdp.envs.joints import Joint
from denoised_mdp.envs.toy import TerminatingToyEnv
from denoised_mdp.errors import UserError

TASK = ["env.task=reacher_easy", "distractors=[video_background]", "env.action_repeat=2"]


class Interrupted(Exception):
    """A kill, in the middle of anything."""


def interrupt_after(count: int):
    def progress(done: int) -> None:
        if done == count:
            raise Interrupted

    return progress


config_of = functools.lru_cache(lambda: load_config(TASK))


def plan(**options) -> Plan:
    config = config_of()
    environment = dict(vars(config.env), distractors=config.distractors, split="train", clips_seed=0)
    options = {"policies": ("still", RANDOM), "episodes": 3, "frames": 8, "test_share": 0.4} | options
    return Plan(environment | {"episode_steps": 14}, **options)


def acts() -> dict:
    return {
        "still": lambda features, rng: np.zeros(2, np.float32),
        RANDOM: lambda features, rng: rng.uniform(-1, 1, 2).astype(np.float32),
    }


def files(folder: Path) -> dict:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file() and path.name != ".lock"}


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> Path:
    """A data set that nothing disturbed: 3 episodes of each of 2 policies, 8 frames each."""
    folder = tmp_path_factory.mktemp("whole")
    collect(folder, plan(), acts()).close()
    return folder


@pytest.mark.parametrize("counts", [(1, 8, 9), (20,), (47, 48)])
def test_interrupted_and_continued_is_the_same_to_the_last_bit(whole, tmp_path, counts):
    for count in counts:
        with pytest.raises(Interrupted):
            collect(tmp_path, plan(), acts(), interrupt_after(count))
        with pytest.raises(UserError, match="of 6 episodes"):
            JointData(tmp_path)
    collect(tmp_path, plan(), acts()).close()
    assert files(tmp_path) == files(whole)


def test_pictures_and_positions_are_those_of_the_environment(whole):
    """The same episodes played here, without the code that stores them."""
    data, images = JointData(whole), np.load(whole / "observation.npy")
    for number, one in enumerate(data.episodes):
        environment = plan().make()
        observation, info = environment.reset(seed=one["seed"])
        if one["policy"] == "still":
            total = 0.0
            for t in range(8):
                np.testing.assert_array_equal(images[8 * number + t], observation)
                expected = info["signal"][:2]
                np.testing.assert_array_equal(data.positions(np.array([8 * number + t]))[0], expected)
                if t < 7:
                    observation, reward, _, truncated, info = environment.step(np.zeros(2, np.float32))
                    total += reward
            assert truncated and total == one["return"]
        environment.close()
    names = {"a": environment.signal_names[:2], "joints": tuple(f"qpos/{j.name}" for j in data.targets.joints)}
    assert names["a"] == names["joints"]
    assert (np.diff(images.reshape(6, 8, -1).astype(int), axis=1) != 0).any(2).mean() > 0.9  # the background moves
    data.close()


def test_no_episode_is_on_both_sides_and_policies_have_equal_shares(whole):
    data = JointData(whole)
    train, test = (data.choose(split, None, 0) for split in ("train", "test"))
    assert len(train) == 32 and len(test) == 16 and len(set(train) | set(test)) == 48
    assert not set(train // 8) & set(test // 8)
    for rows, each in ((train, 16), (test, 8), (data.choose("train", 10, 3), 5)):
        policies = [data.episodes[row // 8]["policy"] for row in rows]
        assert policies.count("still") == policies.count(RANDOM) == each and len(set(rows)) == len(rows)
    np.testing.assert_array_equal(data.choose("train", 10, 3), data.choose("train", 30, 3)[:10])
    assert set(data.choose("train", 10, 3)) != set(data.choose("train", 10, 4))
    with pytest.raises(UserError, match="32 pairs to train with"):
        data.choose("train", 33 + 1, 0)
    data.close()


def test_stacks_begin_with_the_episode(whole):
    data, images = JointData(whole), np.load(whole / "observation.npy")
    stacked = data.images(np.array([8, 9, 15]), 3)
    np.testing.assert_array_equal(stacked, images[[[8, 8, 8], [8, 8, 9], [13, 14, 15]]])
    data.close()


def test_episodes_that_end_by_themselves_are_refused(tmp_path, monkeypatch):
    """Else a stack of frames would begin in one episode and end in the next."""
    monkeypatch.setattr(TerminatingToyEnv, "joints", (Joint("x", "m", "scalar", (0,)),), raising=False)
    monkeypatch.setattr(TerminatingToyEnv, "signal_kinds", ("scalar", "scalar"), raising=False)
    config = load_config(["env=toy", "env.task=dot_terminating", "distractors=none"])
    environment = dict(vars(config.env), distractors={}, split="train", clips_seed=0, episode_steps=78)
    right = {"right": lambda features, rng: np.array([1, 0], np.float32)}
    with pytest.raises(UserError, match=r"ended an episode itself, after \d+ actions.*40 frames.*--frames"):
        collect(tmp_path / "data", Plan(environment, ("right",), episodes=2, frames=40, test_share=0.5), right)


def test_a_folder_whose_first_writing_was_killed_can_be_used(tmp_path):
    (tmp_path / "manifest.json.tmp").write_text("{")
    collect(tmp_path, plan(), acts()).close()
    JointData(tmp_path).close()


def test_a_run_whose_folder_has_the_name_of_an_option_is_a_run(tmp_path, monkeypatch):
    """As those of a sweep over seeds."""
    folder = make_run(tmp_path / "seed=1")
    monkeypatch.chdir(tmp_path)
    for source in (str(folder), "seed=1"):
        with pytest.raises(UserError, match="joint") as caught:  # the toy has none
            make_data([source], Options(tmp_path / "data"))
        assert "unknown option" not in str(caught.value)


def test_damage_and_other_plans_are_told(whole, tmp_path):
    collect(tmp_path, plan(), acts()).close()
    with pytest.raises(UserError, match="another command .frames: 8 instead of 9"):
        collect(tmp_path, plan(frames=9), acts())
    with pytest.raises(UserError, match="environment, camera: 0 instead of 1"):
        collect(tmp_path, Plan(**{**vars(plan()), "environment": plan().environment | {"camera": 1}}), acts())
    with open(tmp_path / "observation.npy", "r+b") as file:
        file.seek(-5, 2)
        file.write(b"\x07\x08")
    with pytest.raises(UserError, match="is damaged .episode 5"):
        JointData(tmp_path)
    (tmp_path / "manifest.json").write_text("{")
    with pytest.raises(UserError, match="manifest.json is damaged"):
        JointData(tmp_path)
    (tmp_path / "manifest.json").unlink()
    with pytest.raises(UserError, match="no data set"):
        collect(tmp_path, plan(), acts())


def test_the_first_difference_of_two_commands_is_named():
    assert first_difference({"a": 1, "b": {"c": [1, {"d": 2}]}}, {"a": 1, "b": {"c": [1, {"d": 3}]}}) == (
        "b, c, d: 2 instead of 3"
    )
    assert first_difference({"env": {"task": "a"}}, {"env": {"task": "a", "clips": None}}) == (
        "env, clips: nothing instead of None"
    )
    assert first_difference({"a": "x" * 200}, {"a": "y"}) == "another a"


def test_without_stable_baselines3_one_line_says_what_to_install(tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "stable_baselines3", None)
    assert main(["probe", "joints-data", *TASK, "--output", str(tmp_path / "data")]) == 2
    lines = capsys.readouterr().err.strip().splitlines()
    assert len(lines) == 1 and "pip install 'denoised-mdp[sb3]'" in lines[0]


def test_a_state_environment_never_draws(monkeypatch):
    environment = make_env("cheetah_run", action_repeat=3, episode_steps=7)
    monkeypatch.setattr("denoised_mdp.envs.dmc.Renderer", None)
    state = StateEnv(environment)
    features, _ = state.reset(seed=0)
    names = environment.signal_names
    signal = environment.world.signal()
    assert "qpos/rootx" in names and len(features) == len(signal)  # the angle rooty is two numbers, rootx none
    expected = [signal[1], np.sin(signal[2]), np.cos(signal[2]), *signal[3:]]
    np.testing.assert_allclose(features, expected, rtol=1e-6)
    rewards = [state.step(np.ones(6, np.float32))[1:4] for _ in range(3)]
    assert [truncated for _, _, truncated in rewards] == [False, False, True]


@pytest.mark.parametrize(
    "task, places",
    [
        ("swimmer_swimmer6", ["rootx", "rooty"]),
        ("fish_swim", ["root/0", "root/1"]),
        ("quadruped_fetch", ["root/0", "root/1", "ball_root/0", "ball_root/1"]),
    ],
)
def test_a_state_tells_where_bodies_are_if_there_is_a_target_or_a_ball(task, places):
    """The reward is of the distance to it."""
    environment = make_env(task)
    environment.reset(seed=0)
    world = environment.unwrapped.world.unwrapped
    names, kinds = world.signal_names, world.signal_kinds
    assert [name for name, kind in zip(names, kinds, strict=True) if kind == "unseen" and "root" in name] == [
        f"qpos/{place}" for place in places
    ]
    signal = world.signal()
    before = state_features(signal, names, kinds)
    for place in places:
        moved = signal.copy()
        moved[names.index(f"qpos/{place}")] += 1
        assert (state_features(moved, names, kinds) != before).sum() == 1


class TestSoftActorCritic:
    """With Stable-Baselines3, where it is installed."""

    @pytest.fixture(autouse=True)
    def installed(self):
        pytest.importorskip("stable_baselines3")

    @staticmethod
    def environment():
        return make_env("pendulum_swingup", action_repeat=4, episode_steps=80)

    def test_interrupted_training_says_so_and_ends_at_the_same_weights(self, tmp_path):
        steps, seen = 24, []
        train_stages(tmp_path / "a", self.environment, steps, 0, seen.append)
        assert seen == list(range(1, steps + 1))
        with pytest.raises(Interrupted):
            train_stages(tmp_path / "b", self.environment, steps, 0, interrupt_after(11))
        assert stage_path(tmp_path / "b", 2).exists() and not stage_path(tmp_path / "b", 3).exists()
        with pytest.warns(UserWarning, match="interrupted and starts anew"):
            train_stages(tmp_path / "b", self.environment, steps, 0, lambda done: None)
        weights = []
        for stage in (1, 2, 3, 4):
            a, b = (StateActor.load(stage_path(tmp_path / name, stage)).weights for name in "ab")
            assert a.keys() == b.keys() and all(np.array_equal(a[name], b[name]) for name in a)
            weights.append(a["mu.weight"])
        assert all(not np.array_equal(*pair) for pair in zip(weights, weights[1:], strict=False))

    def test_actor_is_that_of_stable_baselines3(self):
        import torch
        from stable_baselines3 import SAC

        model = SAC("MlpPolicy", StateEnv(self.environment()), device="cpu", buffer_size=10)
        actor = StateActor({name: tensor.numpy() for name, tensor in model.actor.state_dict().items()})
        features = np.array([0.3, -0.8, 2.0], np.float32)
        mean, log_std, _ = model.actor.get_action_dist_params(torch.as_tensor(features)[None])
        noise = np.random.default_rng(3).standard_normal(1)
        expected = np.tanh(mean.detach().numpy()[0] + np.exp(log_std.detach().numpy()[0]) * noise)
        np.testing.assert_allclose(actor.act(features, np.random.default_rng(3)), expected, rtol=1e-5)

    def test_one_command_makes_all_and_continues_after_a_kill(self, tmp_path):
        options = {"episodes": 2, "frames": 5, "sac_steps": 100}
        lines = make_data(TASK, Options(tmp_path / "a", **options))
        assert len(lines) == 7 and "10 episodes" in lines[0]
        manifest = json.loads((tmp_path / "a" / "manifest.json").read_text())
        assert manifest["policies"] == ["sac_1", "sac_2", "sac_3", "sac_4", RANDOM]
        program = f"""
import os, signal
from denoised_mdp.analysis.joints import record as module
from denoised_mdp.analysis.probes.joints_data import Options

count, write = [0], module.Columns.write

def write_and_die(*arguments):
    count[0] += 1
    os.kill(os.getpid(), signal.SIGKILL) if count[0] == 18 else write(*arguments)

module.Columns.write = write_and_die
module.make_data({TASK!r}, Options(module.Path({str(tmp_path / "b")!r}), **{options!r}))
"""
        shutil.copytree(tmp_path / "a" / "policies", tmp_path / "b" / "policies")
        killed = subprocess.run([sys.executable, "-W", "ignore", "-c", program], capture_output=True)
        assert killed.returncode == -9
        assert make_data(TASK, Options(tmp_path / "b", **options))[1:] == lines[1:]
        assert files(tmp_path / "a") == files(tmp_path / "b")


def test_train_sizes_that_are_one_number_per_policy_are_one():
    """Two policies share 10 and 11 pairs as 10: the same finetuning, not two seeds of it."""
    store = SimpleNamespace(
        plan=SimpleNamespace(policies=("a", "b")), choose=lambda side, size, seed: np.arange(size or 40)
    )
    sizes, test = chosen_rows(store, [11, 10, 20, 10], 8)
    assert sizes == [10, 20] and len(test) == 8
