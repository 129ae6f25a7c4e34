"""The loop from environment to checkpoint, on small real runs."""

import contextlib
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from small_runs import bare_trainer, lines, run_units, tiny

import denoised_mdp
from denoised_mdp import session
from denoised_mdp.config.schema import TrainConfig
from denoised_mdp.envs.toy import CountingEnv
from denoised_mdp.errors import UserError
from denoised_mdp.evaluation import evaluate, evaluation_seeds
from denoised_mdp.models.vision import Encoder
from denoised_mdp.run import checkpoint
from denoised_mdp.run.environments import environment_maker
from denoised_mdp.run.folder import RunFolder
from denoised_mdp.run.nan_check import NonFiniteError
from denoised_mdp.session import Session, train


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    path = tmp_path_factory.mktemp("run") / "a"
    assert train(tiny(path, "train.render_every=200"))
    return path


def test_run_leaves_everything_in_its_folder(finished):
    run = RunFolder(finished)
    assert run.config.exists() and list(run.tensorboard.iterdir()) and list(run.checkpoints.iterdir())
    assert {path.suffix for path in run.videos.iterdir()} == {".mp4", ".png"}
    logged = lines(finished)
    steps = [line["step"] for line in logged if "eval/return" in line]
    assert steps == [80, 160, 200]
    # 80 prefill steps of 40-step episodes: two random episodes, then training ones
    assert [line["step"] for line in logged if "random/return" in line] == [40, 80]
    assert [line["step"] for line in logged if "train/return" in line] == [120, 160, 200]
    updates = [line["train/updates"] for line in logged if "train/updates" in line]
    assert updates == [2, 4, 6]  # one round after prefill, one every 40 steps, none at the end


def test_the_papers_schedule(tmp_path):
    """A million steps of nothing: when the defaults train, evaluate, save and act, and in which order."""
    paper = [
        f"train.{key}={vars(TrainConfig())[key]}"
        for key in (
            "total_steps",
            "prefill_steps",
            "train_every",
            "updates",
            "eval_every",
            "probe_every",
            "render_every",
            "checkpoint_every",
        )
    ]
    config = tiny(tmp_path / "run", *paper, "env.episode_steps=1000", "env.action_repeat=100", "replay.capacity=100")
    done = []

    def note(name, answer=None):
        return lambda *_, **__: done.append((name, trainer.step)) or answer

    collector = SimpleNamespace(count=1, collect=note("act", [[[]]]))
    agent = SimpleNamespace(update=note("train", {}), training=True, train=lambda mode: None)
    hooks = {name: note(name) for name in ("log", "evaluate", "probe", "render", "save")}
    trainer = bare_trainer(config, agent=agent, collector=collector, hooks=hooks)
    trainer.run_to_end()

    def steps(name):
        return [step for what, step in done if what == name]

    assert trainer.updates == len(steps("train")) == 99_500
    assert sorted(set(steps("train"))) == list(range(5_000, 1_000_000, 1_000))
    assert steps("evaluate") == [*range(5_000, 1_000_000, 10_000), 1_000_000]
    assert len(steps("evaluate")) == config.evaluations
    assert steps("render") == [*range(5_000, 1_000_000, 20_000), 1_000_000]
    first = [name for name, step in done if step == 5_000]
    assert first == ["train"] * 100 + ["log", "evaluate", "probe", "render", "save", "act"]
    assert not [name for name, step in done if step < 5_000 and name != "act"]


def test_a_run_that_is_made_longer_learns_what_a_longer_run_learns(tmp_path):
    """The round that the shorter run had no use for comes first; nothing is evaluated or logged twice."""
    assert train(tiny(tmp_path / "whole"))
    for total in (160, 200):
        assert train(tiny(tmp_path / "parts", f"train.total_steps={total}"))
    states = [checkpoint.load(tmp_path / name / "checkpoints")[1]["agent"]["weights"] for name in ("whole", "parts")]
    assert all(torch.equal(states[0][name], weight) for name, weight in states[1].items())
    names = [(line["step"], name) for line in lines(tmp_path / "parts") for name in line if name != "step"]
    assert len(set(names)) == len(names)
    evaluated = [line["step"] for line in lines(tmp_path / "parts") if "eval/return" in line]
    assert evaluated == [80, 160, 200]


@pytest.mark.parametrize("option", ["train.act_device=learner", "train.act_device=cpu"])
def test_only_updates_are_done_in_training_mode(tmp_path, monkeypatch, option):
    """Else a model with a layer that depends on it, as BatchNorm does, would learn from being looked at."""
    modes, forward = set(), Encoder.forward

    def spy(self, images):
        modes.add((self.training, torch.is_grad_enabled()))
        return forward(self, images)

    monkeypatch.setattr(Encoder, "forward", spy)
    assert train(tiny(tmp_path, option, "train.total_steps=120", "train.render_every=80", "train.probe_every=80"))
    assert modes == {(True, True), (False, False)}


def test_counting_environment_proves_the_alignment(tmp_path):
    """Action, reward and observation of a row belong together, from environment to batch."""
    config = tiny(tmp_path / "run", "env.task=counting", "env.episode_steps=24", "train.total_steps=80")
    run = RunFolder.create(config.run_dir)
    session = Session(config, run)
    trainer, sent = session.trainer, {}
    step = session.collector.pool.step

    def spy(actions):
        results = step(actions)
        sent[CountingEnv.decode(results[0][0])] = np.array(actions[0])
        return results

    session.collector.pool.step = spy
    while trainer.step < 80:
        trainer.collect()
    batch = session.replay.sample(200, 6, np.random.default_rng(0))
    starts = set()
    for b in range(200):
        rows = [CountingEnv.decode(batch["observation"][t, b]) for t in range(6)]
        episodes, counts = zip(*rows, strict=True)
        assert len(set(episodes)) == 1 and list(np.diff(counts)) == [2] * 5
        starts.add(counts[0])
        for t, (episode, count) in enumerate(rows):
            assert batch["is_first"][t, b] == (count == 0)
            if count == 0:
                assert not batch["action"][t, b].any() and batch["reward"][t, b] == 0
            else:
                assert batch["reward"][t, b] == count + count - 1  # both inner steps of the repeat
                assert np.array_equal(batch["action"][t, b], sent[episode, count])
    assert max(starts) == 24 - 2 * 5  # the last start of a whole episode
    session.close()


def test_evaluation_repeats_itself_and_leaves_training_alone(finished):
    agent = denoised_mdp.load(finished, device="cpu")
    config = tiny(finished)
    seeds = evaluation_seeds(0, 3)
    assert len(set(evaluation_seeds(0, 50))) == 50 and evaluation_seeds(0, 50)[:3] == seeds
    assert min(seeds) >= 2**31  # a run's seed is below
    random_state = agent.random.get_state()
    first, second = (evaluate(agent, environment_maker(config), seeds, record=2) for _ in range(2))
    assert first.returns == second.returns and len(set(first.returns)) == 3
    assert torch.equal(random_state, agent.random.get_state())
    episode = first.episodes[0]
    assert len(episode.observation) == len(episode.latent.belief) == len(episode.action) == 21
    assert first.standard_error == pytest.approx(np.std(first.returns, ddof=1) / np.sqrt(3))


def test_another_configuration_is_refused(finished):
    with pytest.raises(UserError, match="model.kl.beta"):
        train(tiny(finished, "train.render_every=200", "model.kl.beta=0.5"))


def test_what_was_due_and_is_switched_off_is_not_due_when_the_run_goes_on(tmp_path):
    """As after an evaluation that fails each time: else no option would get the run past it."""
    config = tiny(tmp_path / "run")
    run_units(config, 70)
    for more, expected in (([], ["evaluate", "save"]), (["train.eval_every=0"], ["save"])):
        with contextlib.closing(Session(tiny(tmp_path / "run", *more), RunFolder.create(config.run_dir))) as going_on:
            going_on.trainer.restore({**going_on.trainer.state(), "pending": ["evaluate", "save"]})
            assert going_on.trainer.pending == expected


@pytest.mark.parametrize(
    "error", [UserError("no clips"), RuntimeError("a defect"), NonFiniteError("nan", RunFolder("a"))]
)
def test_a_hook_that_fails_is_saved_as_due(tmp_path, error):
    """Also where the user can mend what failed; not with weights that are bad, nor by a save that failed itself."""
    saved = []

    def fail(trainer):
        raise error

    trainer = bare_trainer(
        tiny(tmp_path / "a"), hooks={"evaluate": fail, "save": lambda one: saved.append(one.pending)}
    )
    trainer.pending = ["evaluate", "save"]
    with pytest.raises(type(error), match=str(error)):
        trainer.run_hook()
    assert saved == ([] if isinstance(error, NonFiniteError) else [["evaluate", "save"]])
    trainer.hooks["save"], trainer.pending = lambda one: saved.append(0) or fail(one), ["save"]
    with pytest.raises(type(error), match=str(error)):
        trainer.run_hook()
    assert saved.count(0) == 1


def test_a_save_that_is_refused_hides_no_error_that_led_to_it(tmp_path):
    def fail(text):
        def run(trainer):
            raise UserError(text)

        return run

    trainer = bare_trainer(tiny(tmp_path / "a"), hooks={"evaluate": fail("no clips"), "save": fail("the disk is full")})
    trainer.pending = ["evaluate"]
    with pytest.raises(UserError, match="no clips"):
        trainer.run_hook()


def test_bad_numbers_that_a_save_finds_are_told_first(tmp_path):
    def fail(error):
        def run(trainer):
            raise error

        return run

    hooks = {
        "evaluate": fail(UserError("no clips")),
        "save": fail(NonFiniteError("the loss is nan", RunFolder(tmp_path))),
    }
    trainer = bare_trainer(tiny(tmp_path / "a"), hooks=hooks)
    trainer.pending = ["evaluate"]
    with pytest.raises(NonFiniteError, match="the loss is nan"):
        trainer.run_hook()


def test_two_lines_of_python_act(finished):
    agent = denoised_mdp.load(finished, device="cpu")
    env = environment_maker(tiny(finished))()
    observation, _ = env.reset(seed=0)
    carry = None
    for _ in range(3):
        action, carry = agent.act(observation, carry)
        observation, *_ = env.step(action)
    assert env.action_space.contains(action)
    env.close()


@pytest.mark.parametrize("part", ["build_agent", "Logger", "choose_source", "Trainer"])
@pytest.mark.parametrize("continued", [False, True])
def test_a_session_that_fails_while_it_is_built_closes_what_it_opened(tmp_path, monkeypatch, part, continued):
    config = tiny(tmp_path / "run")
    run = RunFolder.create(config.run_dir)
    if continued:
        run_units(config, 70)
    closed = []
    for kind in (session.Collector, session.Rings, session.Logger):
        real = kind.close
        monkeypatch.setattr(kind, "close", lambda self, k=kind, r=real, **how: closed.append(k) or r(self, **how))

    def fail(*_, **__):
        raise RuntimeError("late")

    opened = {"build_agent": 1, "Logger": 2, "choose_source": 3, "Trainer": 3}[part]
    expected = {session.Collector, session.Rings, session.Logger} if opened == 3 else set()
    expected |= {session.Collector, session.Rings} if opened == 2 else {session.Collector}
    monkeypatch.setattr(session, part, fail)
    with pytest.raises(RuntimeError, match="late"):
        Session(config, run)
    assert set(closed) == expected
