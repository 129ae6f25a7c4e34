"""A run may be continued only where what it has learned so far would have been the same."""

import pytest

from denoised_mdp.config import load_config
from denoised_mdp.config.compare import MAY_CHANGE, differences, differences_but_seed, obstacles

SAME = ["preset=debug", "distractors=camera_jitter"]


@pytest.mark.parametrize(
    "changed",
    [
        "seed=7",
        "env.size=96",
        "env.action_repeat=5",
        "env.episode_steps=77",
        "model.kl.alpha=3",
        "model.optimizer.lr=0.5",
        "policy.gamma=0.5",
        "policy.horizon=3",
        "replay.latents=true",
        "train.batch_size=3",
        "train.segment_length=5",
        "train.train_every=24",
        "train.updates=9",
        "train.prefill_steps=456",
        "train.exploration_noise=0.9",
        "train.collect_envs=2",
        "train.precision=bf16",
        "train.deterministic=true",
    ],
)
def test_what_changes_what_is_learned_is_refused(changed):
    """Not by `MAY_CHANGE`, which is what is tested: by the options that decide batches, losses and steps."""
    key, value = changed.split("=")
    old, new = load_config(SAME), load_config([*SAME, changed])
    assert any(line.startswith(f"{key}: ") for line in differences(old, new)), (key, value)


def test_clips_may_be_moved_and_not_exchanged(tmp_path):
    """Whether they are the same ones shows when environments are restored."""
    here, there = tmp_path / "here", tmp_path / "there"
    here.mkdir(), there.mkdir()
    old, new = (load_config([*SAME, f"env.clips={folder}"]) for folder in (here, there))
    assert obstacles(old, new) == differences(old, new) == [f"env.clips: {here} -> {there}"]
    here.rmdir()
    assert obstacles(old, new) == [] and differences(old, new)
    made = load_config(SAME)
    assert obstacles(made, new) == [f"env.clips: procedural -> {there}"]


def test_what_may_change_is_where_a_run_lies_how_it_is_computed_and_watched():
    assert not {key.partition(".")[0] for key in MAY_CHANGE} & {
        "env",
        "model",
        "policy",
        "agent",
        "distractors",
        "seed",
    }


def test_runs_with_another_replay_are_no_seeds_of_one_method():
    """Such a run may go on, and then learns from other rows."""
    old, new = load_config(SAME), load_config([*SAME, "replay.capacity=1000", "seed=2"])
    assert differences_but_seed(old, new) == ["replay.capacity: null -> 1000"]
    assert differences(old, load_config([*SAME, "replay.capacity=1000"])) == []
    assert differences_but_seed(old, load_config([*SAME, "replay.memory=disk", "train.threads=3", "seed=2"])) == []
