"""A stop anywhere changes nothing: with a real task and all distractors, and in the middle of an evaluation."""

import contextlib
import os
import shlex
import shutil
import signal
import time
from pathlib import Path

import pytest
import torch
import yaml
from small_clips import write_clips
from small_runs import TINY, lines, run_in_parts, run_units, stop_after_units, tiny

import denoised_mdp
from denoised_mdp.cli.main import main
from denoised_mdp.config import load_config, read_config, save_config
from denoised_mdp.device import set_generator_state
from denoised_mdp.envs.options import fitting_distractors
from denoised_mdp.errors import UserError
from denoised_mdp.evaluation import evaluate
from denoised_mdp.models import kernels
from denoised_mdp.progress import shown
from denoised_mdp.run import checkpoint
from denoised_mdp.run.diff import compare, report, scalars_of
from denoised_mdp.run.folder import RunFolder
from denoised_mdp.run.load import prepare
from denoised_mdp.run.logger import is_wall_clock
from denoised_mdp.run.signals import StopRequest
from denoised_mdp.session import Session, train

UNEVALUATED = "train.eval_every=0"
"""for tests to which evaluations do not matter"""

ALL_DISTRACTORS = [
    "env=dmc",
    "env.task=cheetah_run",
    f"distractors={','.join(fitting_distractors('dmc', 'cheetah_run'))}",
    "train.total_steps=80",
    "train.prefill_steps=40",
    "train.train_every=20",
    "train.eval_every=60",
    "train.checkpoint_every=40",
    "train.log_every=20",
    "env.episode_steps=30",
    "policy.hidden=16",
    "train.eval_episodes=1",
]


def identical(first: Path, second: Path) -> bool:
    """Whether two runs are bit-identical, and TensorBoard shows what metrics.jsonl holds, each once."""
    logged = [(line["step"], name) for line in lines(second) for name in line if name != "step"]
    assert [scalar[:2] for scalar in scalars_of(second / "tensorboard")] == sorted(logged)
    return report(compare(first, second))


@pytest.mark.parametrize("policy", ["backprop", "sac"])
def test_a_real_task_with_all_distractors_continues_exactly(tmp_path, policy):
    """Stopped in the prefill, inside an episode after it, and between two updates of a round."""
    overrides = [*(text for text in TINY if text != "distractors=none"), *ALL_DISTRACTORS, f"policy={policy}"]
    overrides += ["train.probe_every=80"] * (policy == "backprop")
    whole, parts = (load_config([*overrides, f"run_dir={tmp_path / name}"]) for name in ("whole", "parts"))
    assert train(whole)
    run_in_parts(parts, 7, 14, 9, 12)  # unit 21 is the first update; an action takes two steps
    assert identical(tmp_path / "whole", tmp_path / "parts")
    probed = {"probe/signal_ceiling"} if policy == "backprop" else set()
    assert {name for line in lines(tmp_path / "parts") for name in line} >= {"eval/return", "train/return"} | probed


def test_cpu_time_that_was_not_logged_before_a_stop_is_logged_later(tmp_path):
    """As if 50 s had passed in the first process, which logs nothing, and 20 in the second."""
    config, before = tiny(tmp_path / "a", UNEVALUATED), time.process_time()
    for more, units in ((50.0, 20), (20.0, 10**9)):
        run = RunFolder.create(config.run_dir)
        prepare(config, run)
        with contextlib.closing(Session(config, run)) as session:
            session.trainer.hooks["log"].spent -= more
            stop_after_units(session.trainer, units)
            session.trainer.run_to_end()
    logged = sum(line["train/cpu_seconds"] for line in lines(tmp_path / "a") if "train/updates" in line)
    assert 70 < logged < 70 + time.process_time() - before


@pytest.mark.parametrize("policy", ["backprop", "sac"])
def test_every_single_stop(tmp_path, policy):
    """Stopped after every single action and update around the first round and the end of an episode."""
    overrides = [
        f"policy={policy}",
        "policy.hidden=8",
        "train.total_steps=100",
        "train.eval_every=70",
        "train.eval_episodes=1",
        "train.prefill_steps=68",
        "train.train_every=30",
        "replay.capacity=30",
        "train.checkpoint_every=20",
    ]
    assert train(tiny(tmp_path / "whole", *overrides))
    run_in_parts(tiny(tmp_path / "parts", *overrides), 33, *[1] * 6)
    assert identical(tmp_path / "whole", tmp_path / "parts")


class SignallingEnv:
    """Sends a signal to its own process at the given step of the evaluation."""

    def __init__(self, env, number, at):
        self.env, self.number, self.left = env, number, at

    def __getattr__(self, name):
        return getattr(self.env, name)

    def step(self, action):
        self.left -= 1
        if self.left == 0:
            os.kill(os.getpid(), self.number)
        return self.env.step(action)


def test_an_evaluation_in_progress_is_left_at_once_and_repeated(tmp_path, monkeypatch):
    """For each signal: exit code 128 + its number, and nothing is lost or done twice."""
    options = ["train.render_every=80", "train.total_steps=80"]
    assert train(tiny(tmp_path / "whole", *options))
    command = ["train", *TINY, *options, f"run_dir={tmp_path / 'parts'}"]
    calls, played = [], []

    def signalling(agent, make_environment, seeds, **kwargs):
        calls.append(kwargs)
        number = [signal.SIGTERM, signal.SIGUSR1, signal.SIGINT, None][len(calls) - 1 if len(calls) < 5 else 3]
        if number is None:
            return evaluate(agent, make_environment, seeds, **kwargs)

        def make():
            return SignallingEnv(make_environment(), number, at=3)

        result = evaluate(agent, make, seeds, **kwargs)
        played.append(result)  # not reached
        return result

    # The evaluation of step 80 is interrupted twice and then its film.
    monkeypatch.setattr("denoised_mdp.hooks.evaluate", signalling)
    monkeypatch.setattr("denoised_mdp.analysis.render.evaluate", signalling)
    assert main(command) == 128 + signal.SIGTERM
    assert checkpoint.list_steps(tmp_path / "parts" / "checkpoints") == [80]
    assert main(command) == 128 + signal.SIGUSR1
    assert not any("eval/return" in line for line in lines(tmp_path / "parts"))
    monkeypatch.setattr("denoised_mdp.hooks.evaluate", evaluate)
    assert main(command) == 128 + signal.SIGINT
    assert sum("eval/return" in line for line in lines(tmp_path / "parts")) == 1
    assert main(command) == 0
    assert not played and len(list((tmp_path / "parts" / "videos").glob("*.mp4"))) == 1
    assert identical(tmp_path / "whole", tmp_path / "parts")


def test_signals_during_an_update_or_a_checkpoint_wait_for_its_end(tmp_path, monkeypatch):
    real, saved = checkpoint.save, []

    def save(*arguments, **options):
        os.kill(os.getpid(), signal.SIGTERM)
        saved.append(real(*arguments, **options))

    monkeypatch.setattr(checkpoint, "save", save)
    assert main(["train", *TINY, f"run_dir={tmp_path / 'run'}"]) == 128 + signal.SIGTERM
    assert len(saved) == 1 and checkpoint.load(tmp_path / "run" / "checkpoints")[0] == 80


def test_a_second_interrupt_leaves_whatever_is_done():
    stop = StopRequest()
    before = signal.getsignal(signal.SIGINT)
    with stop, pytest.raises(KeyboardInterrupt):
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0)
        assert stop.requested
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(1)
    assert signal.getsignal(signal.SIGINT) is before


def test_a_failure_that_a_stop_has_caused_is_the_stop():
    """Ctrl-C also ends child processes, such as the encoder of a film; that is no error of theirs."""
    from denoised_mdp.run.signals import Stop

    stop = StopRequest()
    with pytest.raises(ValueError), stop.at_once():
        raise ValueError
    with pytest.raises(Stop), stop.at_once():
        stop.requested = True
        raise BrokenPipeError
    with pytest.raises(Stop), stop.at_once():
        pytest.fail("begun after the request")


def test_a_signal_just_before_work_that_it_may_abandon_abandons_it():
    """It comes when `at_once` has looked whether there was one."""
    from denoised_mdp.run.signals import Stop

    class Late(StopRequest):
        @property
        def requested(self):
            before = vars(self)["requested"]
            if not before:
                self._receive(signal.SIGTERM, None)
            return before

        @requested.setter
        def requested(self, value):
            vars(self)["requested"] = value

    stop = Late()
    with pytest.raises(Stop), stop.at_once():
        pytest.fail("played to its end")
    assert not stop._at_once and stop.exit_code == 128 + signal.SIGTERM


def test_a_run_saved_before_an_option_existed_continues(tmp_path):
    """Neither its config.yaml nor its checkpoints know the option: it had its default."""
    path = tmp_path / "run"
    config = tiny(path, "distractors=camera_jitter", "train.total_steps=120", UNEVALUATED)
    run_in_parts(config, 50)
    saved = yaml.safe_load((path / "config.yaml").read_text())
    step, state = checkpoint.load(path / "checkpoints")
    for tree in (saved, state["config"]):
        del tree["distractors"]["camera_jitter"]["dynamic"], tree["model"]["reward_std"]
    (path / "config.yaml").write_text(yaml.safe_dump(saved))
    checkpoint.save(path / "checkpoints", step, state)
    denoised_mdp.load(path, device="cpu")
    with pytest.raises(UserError, match="another configuration .distractors.camera_jitter.dynamic: true -> false"):
        train(tiny(path, "distractors=camera_jitter", "distractors.camera_jitter.dynamic=false", UNEVALUATED))
    assert train(tiny(path, "distractors=camera_jitter", "train.total_steps=160", UNEVALUATED))
    assert read_config(path).distractors == {"camera_jitter": {"strength": 1.0, "dynamic": True}}


def test_a_run_continues_from_its_folder_alone(tmp_path, capsys):
    """Wherever it has been moved, and whatever began it; what it learned with stays."""
    begun, whole, path = tmp_path / "begun", tmp_path / "whole", tmp_path / "a b,seed=1"
    options = ["distractors=camera_jitter", "model=2c", "policy=sac", "seed=3"]
    options += ["train.eval_every=200", "train.eval_episodes=1"]
    run_in_parts(tiny(whole, *options))
    run_units(tiny(begun, *options), 70)
    begun.rename(path)
    assert main(["train", str(path), "seed=3", "model.y.state=9"]) == 2
    error = capsys.readouterr().err
    assert "(model.y.state: 4 -> 9). Choose another run_dir for a new run, or continue that one: " in error
    assert shlex.split(error.rpartition("denoised-mdp ")[2]) == ["train", str(path)]
    for word in ("model=2b", "preset=quickstart", "run_dir=b", "distractors=none"):
        assert main(["train", str(path), word]) == 2
        assert f"error: {word}: cannot change in a run that continues, {path}" in capsys.readouterr().err
    assert main(["train", str(path)]) == 0
    assert not [part for part in compare(whole, path) if part.difference]
    assert main(["train", str(path)]) == 0
    assert "complete at step 200" in capsys.readouterr().out


def test_a_run_that_is_told_to_end_where_it_is_has_ended(tmp_path, capsys):
    path = tmp_path / "a"
    run_units(tiny(path, UNEVALUATED), 60)
    step = checkpoint.list_steps(path / "checkpoints")[-1]
    assert 0 < step < 200
    with shown():
        assert train(tiny(path, UNEVALUATED, f"train.total_steps={step}"))
    assert f"complete at step {step}" in capsys.readouterr().out
    assert read_config(path).train.total_steps == step
    assert main(["train", str(path)]) == 0 and f"complete at step {step}" in capsys.readouterr().out
    with shown():
        assert train(tiny(path, UNEVALUATED))
    assert checkpoint.list_steps(path / "checkpoints")[-1] == 200


def test_a_run_that_was_made_longer_stays_so(tmp_path, capsys):
    """Its first command finds nothing to do, and changes nothing; nor does it after the end of the longer one."""
    first, longer = (tiny(tmp_path / "a", UNEVALUATED, f"train.total_steps={steps}") for steps in (200, 240))
    run_in_parts(first)
    run_units(longer, 5)
    save_config(longer, tmp_path / "a" / "config.yaml")  # as any training does
    before = {path: path.read_bytes() for path in (tmp_path / "a").rglob("*") if path.is_file()}
    capsys.readouterr()
    with shown():
        assert train(first)
    said = "beyond train.total_steps=200: nothing to do; train.total_steps=240 goes on."
    assert capsys.readouterr().out.strip().endswith(said)
    assert all(path.read_bytes() == data for path, data in before.items() if path.name != ".lock")
    run_in_parts(longer)
    with shown():
        assert train(first)
    assert capsys.readouterr().out.endswith("nothing to do.\n")
    assert read_config(tmp_path / "a" / "config.yaml").train.total_steps == 240


def test_metrics_that_measure_time_are_known_by_name(tmp_path):
    assert is_wall_clock("eval/seconds") and is_wall_clock("train/steps_per_second")
    assert not is_wall_clock("eval/return") and not is_wall_clock("seconds/return")


@pytest.mark.skipif(kernels.library() is None, reason="no C compiler")
@pytest.mark.parametrize("norms", ["model.norm=rms", "agent=pisac"])
def test_a_run_tells_that_it_goes_on_without_compiled_norms(tmp_path, monkeypatch, norms):
    config = tiny(tmp_path / "run", "train.total_steps=160", norms, UNEVALUATED)
    run_units(config, 50)
    monkeypatch.setattr(kernels, "library", lambda: None)
    with pytest.warns(UserWarning, match="with compiled norms and goes on in float32 on this machine"):
        assert train(config)


def test_what_a_gpu_saved_loads_on_a_cpu(tmp_path):
    """A GPU's generator has a state of 16 bytes: on a CPU other numbers follow, always the same, with a warning."""
    config = tiny(tmp_path / "run", "train.total_steps=160", UNEVALUATED)
    run_units(config, 50)
    step, state = checkpoint.load(tmp_path / "run" / "checkpoints")
    state["collector"]["exploration"] = [torch.arange(16, dtype=torch.uint8)]
    state["agent"]["random"] = torch.arange(16, dtype=torch.uint8)
    state["config"]["train"] |= {"device": "cuda", "cuda_graph": True}
    for optimizer in state["agent"]["optimizers"].values():
        for group in optimizer["param_groups"]:
            group["capturable"] = True  # as recorded updates need it
    checkpoint.save(tmp_path / "run" / "checkpoints", step, state | {"precision": "bf16"})
    denoised_mdp.load(tmp_path / "run", device="cpu")
    with pytest.warns(UserWarning) as warned:
        assert train(config)
    told = [str(warning.message) for warning in warned]
    assert sum("another kind of device" in text for text in told) == 2 and any("began in bf16" in text for text in told)
    draws = []
    for value in (1, 1, 2):
        generator = torch.Generator()
        with pytest.warns(UserWarning):
            set_generator_state(generator, torch.full((16,), value, dtype=torch.uint8))
        draws.append(torch.rand(3, generator=generator))
    assert torch.equal(draws[0], draws[1]) and not torch.equal(draws[0], draws[2])


def test_a_kill_while_rounds_overlap_leaves_a_checkpoint_with_all_its_rows(tmp_path, recwarn):
    """A checkpoint waits for the end of a round, which may be longer than the steps between two checkpoints."""
    options = ("train.total_steps=880", "train.train_every=400", "train.checkpoint_every=40", "replay.capacity=60")
    config = tiny(tmp_path / "a", *options, UNEVALUATED, "train.overlap=true", "train.collect_workers=1")
    run = RunFolder.create(config.run_dir)

    class Kill(BaseException):
        pass

    def begin():
        prepare(config, run)
        return contextlib.closing(Session(config, run))

    with begin() as session, pytest.raises(Kill):
        save = session.trainer.hooks["save"]

        def killed(trainer):
            if trainer.step >= 480:
                raise Kill
            save(trainer)

        session.trainer.hooks["save"] = killed
        session.trainer.run_to_end()
    recwarn.clear()
    with begin() as session:
        assert session.trainer.step == 80, "the round from 80 to 480 was not saved"
    assert not [warning for warning in recwarn if "overwritten" in str(warning.message)]


def test_a_run_whose_rows_were_all_overwritten_says_so(tmp_path):
    """Without checkpoints in between, a kill may come after more rows than the replay holds."""
    options = ["train.checkpoint_every=0", "replay.capacity=20", "train.segment_length=5"]
    config = tiny(tmp_path / "run", *options, UNEVALUATED)
    run_units(config, 60)
    shutil.copytree(tmp_path / "run" / "checkpoints", tmp_path / "saved")
    run_units(config, 30)
    shutil.rmtree(tmp_path / "run" / "checkpoints")
    (tmp_path / "saved").rename(tmp_path / "run" / "checkpoints")  # as if the second part had been killed
    with (
        pytest.warns(UserWarning, match="20 oldest of 20 rows"),
        pytest.raises(UserError, match="0 rows of the newest checkpoint are left, and an update needs 5"),
    ):
        train(config)


def test_a_run_goes_on_with_clips_that_were_moved(tmp_path):
    """Only with the same ones for training; and all that it has saved can be read wherever they are."""
    first, moved, others = (tmp_path / name for name in ("first", "moved", "others"))
    options = ["distractors=video_background", "train.eval_every=0", "train.snapshot_every=80"]

    def config(clips, steps):
        return tiny(tmp_path / "a", *options, f"env.clips={clips}", f"train.total_steps={steps}")

    assert train(config(write_clips(first), 120))
    write_clips(others)
    for name in ("train", "test"):
        for clip in (others / name).iterdir():
            clip.rename(clip.with_stem(f"other_{clip.stem}"))
    with pytest.raises(UserError, match=r"another configuration \(env.clips"):
        train(config(others, 160))  # the first ones are still there
    first.rename(moved)
    with pytest.raises(UserError, match="no longer among the clips"):
        train(config(others, 160))
    assert train(config(moved, 160)) and read_config(tmp_path / "a").env.clips == str(moved)
    first.symlink_to(moved)
    assert [denoised_mdp.load(tmp_path / "a", checkpoint=step, device="cpu").config.env.clips for step in (80, 160)]
    assert train(config(moved, 200))
