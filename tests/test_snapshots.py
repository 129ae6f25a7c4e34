"""Snapshots: weights at many stages of a run, for whoever compares stages."""

import pytest
import torch
from small_runs import run_in_parts, tiny

from denoised_mdp import load
from denoised_mdp.errors import UserError
from denoised_mdp.run import checkpoint
from denoised_mdp.run.folder import RunFolder


def test_snapshots_keep_every_stage_and_a_resumed_run_writes_the_same(tmp_path):
    """Checkpoints of old steps are deleted, snapshots are not; one is weights and how to build the agent, no more."""
    whole, parts = tiny(tmp_path / "a", "train.snapshot_every=40"), tiny(tmp_path / "b", "train.snapshot_every=40")
    run_in_parts(whole)
    run_in_parts(parts, 50, 7)
    folders = [RunFolder(config.run_dir) for config in (whole, parts)]
    for folder in folders:
        assert checkpoint.list_steps(folder.checkpoints) == [160, 200]
        assert checkpoint.list_steps(folder.snapshots) == [80, 120, 160, 200]
    for step in (80, 120, 160, 200):
        first, second = (load(folder.path, checkpoint=step).state_dict() for folder in folders)
        assert all(torch.equal(value, second[name]) for name, value in first.items())
    _, state = checkpoint.load(folders[0].snapshots, 120)
    assert set(state) == {"action_size", "discrete", "can_terminate", "config", "agent"}
    assert not state["agent"]["optimizers"]


def test_a_snapshot_has_the_weights_of_its_step(tmp_path):
    config = tiny(tmp_path / "a", "train.snapshot_every=80")
    run_in_parts(config)
    folder = RunFolder(config.run_dir)
    _, whole = checkpoint.load(folder.checkpoints, 160)
    _, snapshot = checkpoint.load(folder.snapshots, 160)
    assert all(
        torch.equal(value, snapshot["agent"]["weights"][name]) for name, value in whole["agent"]["weights"].items()
    )
    with pytest.raises(UserError, match=r"no checkpoint of step 100 in .* \(steps with one: 80, 160, 200\)"):
        load(config.run_dir, checkpoint=100)


def test_no_snapshots_unless_asked_for(tmp_path):
    config = tiny(tmp_path / "a")
    run_in_parts(config)
    assert not RunFolder(config.run_dir).snapshots.exists()
