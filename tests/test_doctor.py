"""The doctor: true counts and sizes, and one line for each problem."""

import os
import re

import pytest
import torch

from denoised_mdp.agents.registry import build_agent
from denoised_mdp.bench import doctor, estimate
from denoised_mdp.bench.doctor import Doctor
from denoised_mdp.cli.main import main
from denoised_mdp.config import load_config, save_config
from denoised_mdp.errors import EnvironmentFailure
from denoised_mdp.progress import data_size
from denoised_mdp.replay.ring import Replay

TINY = ["preset=debug", "env=toy"]


def examine(tmp_path, capsys, *overrides):
    code = main(["doctor", *TINY, f"run_dir={tmp_path / 'new'}", *overrides])
    printed = capsys.readouterr()
    assert printed.err == ""
    return code, printed.out


@pytest.mark.parametrize(("model", "total"), [("2b", "7,478,826"), ("dreamer", "7,479,789")])
def test_parameters_are_those_of_the_paper(model, total, capsys):
    # Wang et al. 2022, Table D.4, with two-dimensional actions.
    config = load_config(["preset=paper/reacher_easy_video_background", f"model={model}"])
    Doctor(config).show_parameters(build_agent(config, 2))
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[-2] for line in lines] == ["encoder", "rssm", "decoder", "rewards", "actor", "value", "total"]
    counts = [int(line.split()[-1].replace(",", "")) for line in lines]
    assert sum(counts[:-1]) == counts[-1] and lines[-1].split()[-1] == total


def test_a_healthy_configuration(tmp_path, capsys):
    code, text = examine(tmp_path, capsys)
    assert code == 0 and "No problems found." in text
    assert not (tmp_path / "new").exists()  # it looks, and leaves nothing behind
    rows = 8 * 31  # 480 steps: 8 episodes of 30 actions and one first row
    assert f"{rows:,} rows" in text
    assert re.search(r"480 steps, 8 updates", text)  # rounds after 240, 300, 360 and 420 steps, of two updates each
    for title in ("versions", "device", "clips, train", "renderer", "environment", "update", "memory", "whole run"):
        assert f"\n{title}" in text


def test_the_verdict_names_problems_and_notes(capsys):
    looked = Doctor(load_config(TINY))
    looked.notes.clear()
    assert looked.verdict() == 0 and capsys.readouterr().out == "\nNo problems found.\n"
    looked.notes.append("one")
    assert looked.verdict() == 0
    assert capsys.readouterr().out == "\nnote: one\nNo problems found. See the notes.\n"
    looked.problems.append("two")
    assert looked.verdict() == 1 and capsys.readouterr().out == "\nnote: one\nPROBLEM: two\n"


def test_a_run_on_threads_beside_other_programs_is_told_so(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(os, "getloadavg", lambda: (1e3,))
    quick = ["preset=quickstart", "train.device=cpu", f"run_dir={tmp_path / 'run'}"]
    text = doctor.waiting_threads(load_config(quick))
    assert "load 1000.0 on" in text and "train.threads=1" in text
    for other in ([*quick, "train.threads=1"], TINY):  # a run of a minute is not worth a word
        assert doctor.waiting_threads(load_config(other)) is None
    monkeypatch.setattr("denoised_mdp.session.train", lambda config, stop: True)
    assert main(["train", *quick]) == 0 and f"note: {text}" in capsys.readouterr().err
    monkeypatch.setattr(os, "getloadavg", lambda: (0.5,))
    assert doctor.waiting_threads(load_config(quick)) is None


def test_an_environment_that_draws_itself_needs_no_renderer(tmp_path, capsys):
    code, text = examine(tmp_path, capsys, "env=gym", "env.id=gym_envs:Ball", "distractors=none")
    assert code == 0 and re.search(r"\nrenderer +none needed\n", text), "its frames cannot be drawn twice"


def test_problems_are_one_line_each_and_the_other_checks_go_on(tmp_path, capsys):
    code, text = examine(tmp_path, capsys, "replay.capacity=1000000000000", "env.clips=/no/such/folder")
    problems = [line for line in text.splitlines() if line.startswith("PROBLEM: ")]
    assert code == 1 and len(problems) == 1 and "/no/such/folder" in problems[0]

    code, text = examine(tmp_path, capsys, "replay.capacity=1000000000000")
    problems = [line for line in text.splitlines() if line.startswith("PROBLEM: ")]
    assert code == 1 and len(problems) == 1
    assert re.search(r"needs [\d.]+ PB \(1[\d,]{18,} bytes\)", problems[0]) and "replay.capacity" in problems[0]
    assert "\nupdate" in text

    code, text = examine(tmp_path, capsys, "replay.capacity=1000000000000", "train.batch_size=40000000")
    problems = [line for line in text.splitlines() if line.startswith("PROBLEM: ")]
    assert code == 1 and len(problems) == 2 and "replay.capacity" in problems[0] and "batch_size" in problems[1]


GYM = ["preset=debug", "env=gym", "distractors=none"]


def test_a_faulty_environment_is_a_problem_and_the_other_checks_go_on(tmp_path, capsys):
    code, text = examine(tmp_path, capsys, *GYM, "env.id=gym_envs:Old")
    problems = [line for line in text.splitlines() if line.startswith("PROBLEM: ")]
    assert code == 1 and "\nupdate" in text and len(problems) == 2
    assert all("gym_envs:Old raised an error while it was" in line and "unpack" in line for line in problems)
    with pytest.raises(EnvironmentFailure, match="gym_envs:Old raised an error while its actions were timed"):
        estimate.Hours().of(load_config([*GYM, "env.id=gym_envs:Old"]))
    code, text = examine(tmp_path, capsys, *GYM, "env.id=gym_envs:Sized")
    assert code == 1 and "PROBLEM: gym_envs:Sized needs arguments (width, height): write a function" in text


def test_acting_elsewhere_is_examined(tmp_path, capsys, monkeypatch):
    code, text = examine(tmp_path, capsys, "train.act_device=cuda:7")
    assert code == 1 and "PROBLEM: train.act_device cuda:7: PyTorch finds no such GPU" in text
    players = []
    monkeypatch.setattr(doctor, "configure_acting", lambda train, learner: (torch.device("cpu", 0), torch.bfloat16))
    monkeypatch.setattr(Doctor, "check_speed", lambda self, agent, player, seconds: players.extend((agent, player)))
    assert examine(tmp_path, capsys, "train.precision=float32")[0] == 0
    assert [agent.world_model.encoder.compute_dtype for agent in players] == [None, torch.bfloat16]


def test_the_replay_is_counted_with_the_rows_between_checkpoints(tmp_path, capsys):
    """The size that the doctor names is the size of the files that the trainer then makes."""
    overrides = ["replay.capacity=100", "train.checkpoint_every=20", f"run_dir={tmp_path / 'new'}"]
    code, text = examine(tmp_path, capsys, *overrides)
    assert code == 0 and "100 rows and 20 more" in text
    config = load_config([*TINY, *overrides])
    Replay(tmp_path / "replay", config.replay_capacity, (64, 64, 3), 2, config.replay_slack(False)).close()
    size = sum(path.stat().st_size for path in (tmp_path / "replay").iterdir())
    assert f"({size:,} bytes) when full" in text


def test_the_shortest_episode_can_be_measured(tmp_path, capsys):
    shortest = ["env.episode_steps=1", "env.action_repeat=1", "train.segment_length=2"]
    assert examine(tmp_path, capsys, *shortest)[0] == 0


def test_a_folder_with_another_run_is_a_problem_and_the_same_run_is_none(tmp_path, capsys):
    (tmp_path / "new").mkdir()
    save_config(load_config([*TINY, f"run_dir={tmp_path / 'new'}"]), tmp_path / "new" / "config.yaml")
    assert examine(tmp_path, capsys)[0] == 0
    code, text = examine(tmp_path, capsys, "model.kl.beta=0.5")
    assert code == 1 and "model.kl.beta: 1.0 -> 0.5" in text


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 bytes"),
        (999, "999 bytes"),
        (1000, "1.00 kB (1,000 bytes)"),
        (6_193_152_000, "6.19 GB (6,193,152,000 bytes)"),
        (10**21, "1000.00 EB (1,000,000,000,000,000,000,000 bytes)"),
    ],
)
def test_sizes_are_readable_and_exact(count, text):
    assert data_size(count) == text


def test_clips_of_a_distractor_that_does_not_say_how_long_it_plays_are_counted(capsys):
    examined = Doctor(load_config([*TINY]))
    examined.check_clips({}, 16)
    assert not examined.problems and "clips, train" in capsys.readouterr().out


@pytest.mark.parametrize(("workers", "said"), [(0, False), (1, True)])
def test_what_the_estimate_leaves_out_is_said(tmp_path, capsys, workers, said):
    _, text = examine(tmp_path, capsys, f"train.collect_workers={workers}")
    assert ("worker processes and overlap are not counted" in text) is said
