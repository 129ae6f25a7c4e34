"""Snapshots: weights at many stages of a run, for whoever compares stages."""

import contextlib
import dataclasses
import json
import shutil

import numpy as np
import pytest
import torch
from small_runs import lines, run_in_parts, tiny

from denoised_mdp import load
from denoised_mdp.cli.main import main
from denoised_mdp.errors import UserError
from denoised_mdp.evaluation import evaluate_run, evaluation_seeds
from denoised_mdp.run import checkpoint
from denoised_mdp.run.diff import compare
from denoised_mdp.run.folder import RunFolder
from denoised_mdp.run.load import load_run, prepare
from denoised_mdp.run.nan_check import NanCheck
from denoised_mdp.run.pretrained import export
from denoised_mdp.session import Session, train

STAGES = ("train.snapshot_every=40", "train.eval_every=40")


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A whole run with snapshots at 80, 120, 160 and 200, and checkpoints at 160 and 200."""
    path = tmp_path_factory.mktemp("stages") / "run"
    run_in_parts(tiny(path, *STAGES))
    return path


@pytest.fixture
def run(finished, tmp_path):
    """A copy of it, to change."""
    return RunFolder(shutil.copytree(finished, tmp_path / "run"))


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    """A whole run with neither snapshots nor evaluations."""
    path = tmp_path_factory.mktemp("plain") / "run"
    run_in_parts(tiny(path, "train.eval_every=0"))
    return RunFolder(path)


def test_snapshots_keep_every_stage_and_a_resumed_run_writes_the_same(finished, tmp_path):
    """Checkpoints of old steps are deleted, snapshots are not; one is weights and how to build the agent, no more."""
    run_in_parts(tiny(tmp_path / "parts", *STAGES), 50, 7)
    folders = [RunFolder(path) for path in (finished, tmp_path / "parts")]
    for folder in folders:
        assert checkpoint.list_steps(folder.checkpoints) == [160, 200]
        assert checkpoint.list_steps(folder.snapshots) == [80, 120, 160, 200]
    for step in (80, 120, 160, 200):
        first, second = (load(folder.path, checkpoint=step).state_dict() for folder in folders)
        assert all(torch.equal(value, second[name]) for name, value in first.items())
    _, state = checkpoint.load(folders[0].snapshots, 120)
    assert set(state) == {"action_size", "discrete", "can_terminate", "config", "agent"}
    assert not state["agent"]["optimizers"]


def test_a_snapshot_has_the_weights_of_its_step(finished):
    folder = RunFolder(finished)
    _, whole = checkpoint.load(folder.checkpoints, 160)
    _, snapshot = checkpoint.load(folder.snapshots, 160)
    assert all(
        torch.equal(value, snapshot["agent"]["weights"][name]) for name, value in whole["agent"]["weights"].items()
    )
    with pytest.raises(UserError, match=r"no checkpoint of step 100 in .* \(steps with one: 80, 120, 160, 200\)"):
        load(finished, checkpoint=100)


def test_the_snapshot_counts_where_a_stop_between_updates_left_other_weights(run):
    _, tree = checkpoint.load(run.snapshots, 80)
    tree["agent"]["weights"] = {name: value + 1 for name, value in tree["agent"]["weights"].items()}
    checkpoint.save(run.checkpoints, 80, tree, keep=None)
    found, expected = load(run.path, checkpoint=80).state_dict(), checkpoint.load(run.snapshots, 80)[1]
    assert all(torch.equal(value, found[name]) for name, value in expected["agent"]["weights"].items())


def test_snapshots_of_steps_that_are_trained_anew_are_gone(run):
    """A kill takes a run back to its checkpoint: weights of later steps are not those that it will have there."""
    shutil.rmtree(run.checkpoints / "step_000000200")
    run_in_parts(tiny(run.path, *STAGES, "train.snapshot_every=0"))
    assert checkpoint.list_steps(run.checkpoints)[-1] == 200
    assert checkpoint.list_steps(run.snapshots) == [80, 120, 160]


def test_snapshots_of_a_run_without_a_checkpoint_are_not_deleted_without_a_word(tmp_path, monkeypatch):
    """It has crashed; where checkpoints are written, little can be lost."""
    config = tiny(tmp_path / "a", "train.snapshot_every=80", "train.checkpoint_every=0", "train.eval_every=0")
    run, whole = RunFolder(config.run_dir), NanCheck.add

    def crash(self, step, *rest):
        assert step < 120
        whole(self, step, *rest)

    with monkeypatch.context() as here, pytest.raises(AssertionError):
        here.setattr(NanCheck, "add", crash)
        train(config)
    assert checkpoint.list_steps(run.snapshots) == [80] and not checkpoint.list_steps(run.checkpoints)
    with pytest.raises(UserError, match="snapshots up to step 80, which a new start would delete. Choose another"):
        train(config)
    assert checkpoint.list_steps(run.snapshots) == [80]
    config.train.checkpoint_every = 100
    with pytest.warns(UserWarning, match="snapshots up to step 80, which this new start deletes"):
        prepare(config, run)


def test_no_snapshots_unless_asked_for(plain):
    assert not plain.snapshots.exists()


def test_best_is_what_returned_most_of_what_is_on_disk(run, tmp_path, capsys):
    """Metrics name steps without weights, and what is no number; of equal returns, the later counts."""
    config, folder = tiny(run.path, *STAGES), run
    assert {row["step"] for row in lines(folder.path) if "eval/return" in row} >= {80, 120, 160, 200}
    returns = {60: 9.0, 80: 1.0, 120: 3.0, 160: 3.0, 200: None}
    rows = [{"step": step, "eval/return": value} for step, value in returns.items()]
    rows += [{"step": step, "eval/return": 9.0} for step in ([200], {}, 200.0, True, None, "200")]
    folder.metrics.write_text("".join(f"{json.dumps(row)}\n" for row in [*rows, {"step": 200}]) + "{torn")
    with pytest.warns(UserWarning, match=r"step 160 returned most .* on disk \(3.0\); others returned up to 9.0"):
        assert load_run(folder.path, checkpoint="best")[2] == 160
    rows = rows[1:5]
    folder.metrics.write_text("".join(f"{json.dumps(row)}\n" for row in [*rows, {"step": 200}]) + "{torn")
    assert load_run(folder.path, checkpoint="best")[2] == 160  # nothing better is lost, and nothing is said
    assert load_run(folder.path, checkpoint="120")[2] == load_run(folder.path, checkpoint=np.int64(120))[2] == 120
    export(folder.path, tmp_path / "exported", "best")
    assert load_run(tmp_path / "exported")[2] == load_run(tmp_path / "exported", checkpoint="best")[2] == 160
    for wrong in ("bets", "", "-1", "1" * 20, "٣"):
        with pytest.raises(UserError, match="must be a step, a whole number, or best"):
            load(folder.path, checkpoint=wrong)
    with pytest.raises(UserError, match="both runs are compared there"):
        compare(folder.path, folder.path, checkpoint="best")

    judged = evaluate_run(folder.path, episodes=3, checkpoint="best").seeds
    chose = evaluation_seeds(config.seed, config.train.eval_episodes)
    assert len(judged) == 3 and not set(judged) & set(chose)
    assert evaluate_run(folder.path, episodes=3, checkpoint="best", seed=config.seed).seeds == judged
    assert evaluate_run(tmp_path / "exported", episodes=3).seeds == judged
    assert evaluate_run(folder.path, episodes=1).seeds == chose[:1]
    assert evaluate_run(folder.path, episodes=1, checkpoint="best", seed=4).seeds == evaluation_seeds(4, 1)
    assert main(["evaluate", str(folder.path), "--checkpoint", "best", "--episodes", "1"]) == 0
    assert main(["evaluate", str(folder.path), "--checkpoint", "bets"]) != 0
    told = capsys.readouterr()
    assert "best weights  of step 160\n" in told.out and "must be a step, or best, not 'bets'" in told.err
    assert main(["probe", "health", str(folder.path), "--checkpoint", "bets"]) != 0
    assert "must be a step, or best, not 'bets'" in capsys.readouterr().err


def test_a_checkpoint_that_learned_on_after_its_evaluation_is_not_best(tmp_path):
    """A run that is made longer first does the updates that follow its old end; a stop there replaces that step."""
    short = tiny(tmp_path / "a", "train.eval_every=80", "train.total_steps=160")
    run_in_parts(short)
    folder = RunFolder(short.run_dir)
    rows = [row | ({"eval/return": row["step"]} if "eval/return" in row else {}) for row in lines(folder.path)]
    folder.metrics.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    assert load_run(folder.path, checkpoint="best")[2] == 160
    session = Session(tiny(tmp_path / "a", "train.eval_every=80"), RunFolder.create(folder.path))
    with contextlib.closing(session):
        assert session.trainer.updates < session.trainer.schedule.updates_due(160)
        session.trainer.learn()
        session.save(session.trainer)
    with pytest.warns(UserWarning, match="others returned up to 160.0"):
        assert load_run(folder.path, checkpoint="best")[2] == 80


def test_evaluations_of_few_episodes_do_not_choose_where_others_played_more(tmp_path):
    """The first episodes may be the easy ones."""
    config = tiny(tmp_path / "a", "train.snapshot_every=80", "train.eval_episodes=1", "train.total_steps=160")
    run_in_parts(config)
    folder = RunFolder(config.run_dir)
    rows = {80: (9.0, 1), 160: (3.0, 8)}

    def best(**told) -> int:
        evaluated = [{"step": step, "eval/return": value, "eval/episodes": n} for step, (value, n) in rows.items()]
        folder.metrics.write_text("".join(f"{json.dumps(row | told)}\n" for row in evaluated))
        return load_run(folder.path, checkpoint="best")[2]

    with pytest.warns(UserWarning, match=r"fewer than 8 episodes do not count .* up to 9.0, that of step 160 3.0"):
        assert best() == 160
    assert best(**{"eval/episodes": 8}) == best(**{"eval/episodes": "many"}) == 80


def test_episodes_that_may_have_chosen_weights_are_left_out_when_the_run_went_on_with_fewer(tmp_path):
    """Those that are played instead are of the run's own seed as well."""
    config = tiny(tmp_path / "a", "seed=3", "train.eval_every=80", "train.eval_episodes=3", "train.total_steps=80")
    run_in_parts(config)
    config = tiny(tmp_path / "a", "seed=3", "train.eval_every=80", "train.eval_episodes=1", "train.total_steps=160")
    run_in_parts(config)
    assert [row["eval/episodes"] for row in lines(tmp_path / "a") if "eval/return" in row][-2:] == [3, 1]
    judged = evaluate_run(config.run_dir, episodes=2, checkpoint="best").seeds
    assert judged == evaluation_seeds(config.seed, 5)[3:]
    export(config.run_dir, tmp_path / "exported", "best")
    assert evaluate_run(tmp_path / "exported", episodes=2).seeds == judged


def test_without_an_evaluation_none_is_best(plain):
    with pytest.raises(UserError, match=r"no checkpoint or snapshot of a step at which it was evaluated"):
        load(plain.path, checkpoint="best")


def test_snapshots_are_named_where_there_is_no_checkpoint(run):
    """Where weights are enough; a training cannot go on with them."""
    config, folder = tiny(run.path, *STAGES), run
    for path in folder.checkpoints.glob("step_*/*"):
        path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(UserError, match=r"Restore a copy, choose another step \(there are 80, 120\)"):
        load(config.run_dir)
    with pytest.raises(UserError, match="Restore a copy, or start in a new run_dir"):
        run_in_parts(dataclasses.replace(config, train=dataclasses.replace(config.train, total_steps=300)))
    shutil.rmtree(folder.checkpoints)
    with pytest.raises(UserError, match=r"no checkpoint in .* \(steps with one: 80, 120, 160, 200\)"):
        load(config.run_dir)
    assert load(config.run_dir, checkpoint=200)
