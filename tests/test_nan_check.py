"""Numbers that go wrong end the run with their name, their batch and the last good checkpoint."""

import numpy as np
import pytest
import torch
from small_runs import TINY, tiny

from denoised_mdp.cli.main import main
from denoised_mdp.run import checkpoint
from denoised_mdp.run.folder import RunFolder
from denoised_mdp.run.nan_check import NanCheck, NonFiniteError
from denoised_mdp.session import Session
from denoised_mdp.trainer import Trainer


def spoil(monkeypatch, when, how):
    """Call `how(trainer)` before update number `when`."""
    learn = Trainer.learn

    def spoiled(trainer):
        if trainer.updates == when:
            how(trainer)
        learn(trainer)

    monkeypatch.setattr(Trainer, "learn", spoiled)


def bad_weights(part):
    """Make the first weight of the first parameter below `part` nan."""

    def how(trainer):
        parameters = trainer.agent.named_parameters()
        next(tensor for name, tensor in parameters if name.startswith(part)).data.view(-1)[0] = float("nan")

    return how


def bad_batch(trainer):
    sample = trainer.batches.replay.sample

    def sample_with_nan(*arguments):
        batch = sample(*arguments)
        batch["reward"][2, 1] = np.inf
        return batch

    trainer.batches.replay.sample = sample_with_nan


@pytest.mark.parametrize(
    "how, term",
    [
        (bad_batch, "model/reward_error is inf"),
        (bad_weights("world_model.decoder"), "model/image_error is nan"),
        (bad_weights("world_model.rewards.x"), "model/reward_error is nan"),
        (bad_weights("policy.actor"), "policy/actor_loss is nan"),
    ],
)
def test_the_run_stops_with_the_term_and_its_batch(tmp_path, monkeypatch, capsys, how, term):
    spoil(monkeypatch, 5, how)
    command = ["train", *TINY, "train.checkpoint_every=40", "train.eval_every=0", f"run_dir={tmp_path / 'run'}"]
    assert main(command) == 3
    error = capsys.readouterr().err.strip().splitlines()[-1]
    assert f"Update 5 at step 160: {term}" in error and "checkpoint of step 120 is intact" in error
    step, tree = checkpoint.load(tmp_path / "run" / "checkpoints")
    assert step == 120 and all(w.isfinite().all() for w in tree["agent"]["weights"].values())
    with np.load(tmp_path / "run" / "diagnostics" / "update_000000005.npz") as saved:
        assert saved["observation"].shape == (10, 4, 64, 64, 3) and saved["action"].shape == (10, 4, 2)
        bad = saved["metric_names"][~np.isfinite(saved["metric_values"])]
        assert term.split()[0] in bad and "model/gradient" in bad or "policy/actor_gradient" in bad
        assert np.isfinite(saved["reward"]).all() == (how is not bad_batch)
    assert ("so is the batch's reward" in error) == (how is bad_batch)
    if how is bad_batch:  # the same command continues from the good checkpoint
        monkeypatch.undo()
        assert main(command) == 0


def test_a_reward_that_is_not_finite_never_reaches_the_replay(tmp_path, monkeypatch, capsys):
    from denoised_mdp.envs.toy import ToyEnv

    step = ToyEnv.step
    monkeypatch.setattr(
        ToyEnv,
        "step",
        lambda env, action: (
            (result := step(env, action))[:1] + (float("nan") if env._steps == 30 else result[1],) + result[2:]
        ),
    )
    assert main(["train", *TINY, f"run_dir={tmp_path / 'run'}"]) == 3
    assert "reward after step 28 is nan" in capsys.readouterr().err


def test_weights_that_are_not_finite_are_never_saved(tmp_path, monkeypatch):
    """Even if no loss has shown it yet: in the state of an optimizer, say."""
    session = Session(tiny(tmp_path / "run"), RunFolder.create(tmp_path / "run"))
    trainer = session.trainer
    while trainer.updates < 2:
        trainer.learn() if trainer.updates < trainer.schedule.updates_due(trainer.step) else trainer.collect()
    session.save(trainer)
    trainer.collect()
    state = next(iter(trainer.agent.optimizers["model"].state.values()))
    state["exp_avg_sq"].view(-1)[0] = float("inf")
    with pytest.raises(NonFiniteError, match=r"At step 82 optimizers/model/state/0/exp_avg_sq .*step 80 is intact"):
        session.save(trainer)
    assert checkpoint.list_steps(tmp_path / "run" / "checkpoints") == [80]
    session.close()


class Flag:
    """Stands for an event of the GPU."""

    def __init__(self):
        self.done, self.waited = False, False

    def query(self):
        return self.done

    def synchronize(self):
        self.waited = True


def test_the_device_is_waited_for_only_when_the_lag_is_used_up(tmp_path):
    check, flags = NanCheck(RunFolder(tmp_path)), []
    batch = {"reward": np.zeros((2, 1), np.float32)}
    for number, value in enumerate([1.0, float("nan"), 1.0, 1.0]):
        check.add(10, number, batch, {"model/loss": torch.tensor(value), "model/kl_x": torch.tensor(value)})
        flags.append(Flag())
        check._pending[-1].ready = flags[-1]
        if number < 3:
            check.check()
    assert [flag.waited for flag in flags] == [True, False, False, False]  # at the third, the first one was due
    with pytest.raises(NonFiniteError, match="Update 1 at step 10: model/kl_x is nan .and 1 more: model/loss."):
        check.check()
    assert flags[1].waited and not flags[2].waited
    check.check(wait=True)  # nothing is left


def test_an_update_without_metrics_has_nothing_to_check(tmp_path):
    check = NanCheck(RunFolder(tmp_path))
    check.add(1, 1, {}, {})
    check.check(wait=True)


def test_one_flag_per_update_is_read(tmp_path, monkeypatch):
    """All metrics of an update cost one wait together, not one each."""
    reads, real = [], torch.Tensor.__bool__
    monkeypatch.setattr(torch.Tensor, "__bool__", lambda tensor: reads.append(1) or real(tensor))
    check = NanCheck(RunFolder(tmp_path))
    check.add(0, 0, {}, {str(i): torch.tensor(1.0) for i in range(30)})
    check.check(wait=True)
    assert len(reads) == 1
