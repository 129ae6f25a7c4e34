"""Options without effect are named when a run begins, and they have none."""

import pytest
import torch
from conftest import random_batch

from denoised_mdp.agents.registry import build_agent
from denoised_mdp.cli.main import main
from denoised_mdp.config import load_config, save_config
from denoised_mdp.config.choices import choices
from denoised_mdp.config.effect import never_reached, notes, without_effect
from denoised_mdp.config.schema import MODELS
from denoised_mdp.errors import UserError

TINY = ["preset=debug", "model.depth=2", "model.kl.free_nats=0.1", "model.kl.alpha=1"]
OTHER = {"free_nats": "0.7", "alpha": "3", "beta": "0.3", "dyn": "0.5", "relax_after": "1"}
OTHER |= {"free": "true", "width": "64", "classes": "5"}
OTHER |= {"free_nats_strategy": "mean"}  # of model=2b too it changes nothing where all of the KL is above the free nats
UNUSED = [
    *((f"model={kind}", key) for kind, options in MODELS.items() for key in options.UNUSED),
    *((f"model={kind}", f"x.{key}") for kind, options in MODELS.items() for key in options.UNUSED_OF_ROWS),
    ("model=tia", "kl.beta"),
    ("model=dreamer", "kl.beta"),
    ("model=2b", "kl.relax_after"),
    ("model=2b", "width"),
    ("model=2b", "y.classes"),
    ("model=2b model.y.beta=0.5", "kl.beta"),
    ("model=2b model.x.free=false", "kl.free_nats"),
    ("model=2b model.x.free=false", "kl.free_nats_strategy"),
]
ALL_ROWS = "a segment has 4 rows (train.segment_length), and all are used"
STRATEGIES = [  # what is in force, and the strategy that is A in spite of its name
    ("model=repo", "B"),
    ("model=repo", "mean"),
    ("model=repo model.x.free=true model.kl.dyn=1", "B"),
    ("model=dreamer", "B"),
    ("model=2b model.kl.free_nats=0", "B"),
    ("model=2b model.kl.free_nats=0", "mean"),
    ("model=2b model.kl.beta=1", "B"),
    ("model=2b model.x.beta=0.5 model.kl.beta=0.5", "B"),
]
USED = [("model=2b", f"kl.{name}") for name in ("free_nats", "alpha", "beta", "dyn")] + [
    ("model=dreamer", "kl.free_nats"),
    ("model=tia", "kl.alpha"),
    ("model=four_blocks", "kl.beta"),
    ("model=2b model.kl.relax=0.5", "kl.relax_after"),
    ("model=2c", "x.beta"),
    ("model=2c model.y.beta=0.5", "kl.beta"),
    ("model=2b model.core=block model.norm=rms model.x.belief=16 model.y.belief=16", "width"),
    ("model=2b model.y.distribution=categorical", "y.classes"),
]


def weights_after(overrides: list[str]) -> dict[str, torch.Tensor]:
    """Those of an agent after three updates on the same batches."""
    agent = build_agent(load_config(overrides), 2)
    for number in range(3):
        agent.update(random_batch(seed=number))
    return agent.state_dict()


def equal(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return all(torch.equal(one[name], other[name]) for name in one)


def with_and_without(model: str, key: str) -> tuple[list[str], list[str]]:
    """Command lines with an unusual value of the option, and without it."""
    words = [*TINY, *model.split()]
    return [*words, f"model.{key}={OTHER[key.rpartition('.')[2]]}"], words


@pytest.mark.parametrize(("model", "key"), UNUSED)
def test_what_is_named_changes_nothing(model, key):
    given, words = with_and_without(model, key)
    found = without_effect(load_config(given), given)
    assert any(line.startswith(f"model.{key}={OTHER[key.rpartition('.')[2]]} changes nothing: ") for line in found)
    assert equal(weights_after(given), weights_after(words))


@pytest.mark.parametrize(("model", "key"), USED)
def test_what_changes_something_is_not_named(model, key):
    given, words = with_and_without(model, key)
    assert not any(f"model.{key}=" in line for line in without_effect(load_config(given), given))
    assert not equal(weights_after(given), weights_after(words))


@pytest.mark.parametrize(("model", "strategy"), STRATEGIES)
def test_a_strategy_that_is_another_by_name_alone(model, strategy):
    words = [*TINY, *model.split()]
    given = [*words, f"model.kl.free_nats_strategy={strategy}"]
    assert any(f"strategy={strategy} changes nothing" in line for line in without_effect(load_config(given), given))
    assert equal(weights_after(given), weights_after(words))


@pytest.mark.parametrize(("model", "strategy"), [("model=dreamer", "mean"), ("model=2b model.kl.beta=0.5", "B")])
def test_a_strategy_that_may_be_another_is_not_named(model, strategy):
    words = [*TINY, *model.split(), "model.kl.free_nats=20"]  # more than there are: all of the KL is free
    given = [*words, f"model.kl.free_nats_strategy={strategy}"]
    assert not any("strategy" in line for line in without_effect(load_config(given), given))
    assert strategy == "mean" or not equal(weights_after(given), weights_after(words))


@pytest.mark.parametrize(
    ("words", "last", "said"),
    [
        ("model.y.rewarded=false", "model.y.reward_sees=[x]", "model.y.rewarded is false"),
        ("policy=backprop train.segment_length=4", "policy.imagine_rows=4", ALL_ROWS),
        ("policy=backprop train.segment_length=4", "policy.imagine_rows=9", ALL_ROWS),
        ("policy=backprop train.segment_length=4", "policy.imagine_rows=3", None),
    ],
)
def test_options_of_rewards_and_imagination_without_effect(words, last, said):
    base = [*TINY, *words.split()]
    given = [*base, last]
    expected = [] if said is None else [f"{last} changes nothing: {said}."]
    assert [line for line in without_effect(load_config(given), given) if line.startswith(last)] == expected
    assert equal(weights_after(given), weights_after(base)) == bool(said)


def test_a_schedule_that_is_cut_short_says_what_never_comes():
    """Also where a preset has set it. 8,000 steps of the quickstart give 270 updates."""
    short = ["preset=quickstart", "train.total_steps=8000"]
    total = load_config(short).updates_due(8000)
    of_run = f"this run has {total} updates."
    assert never_reached(load_config(short)) == [
        f"the policy never learns: train.policy_after=400 and {of_run}",
        f"model.kl.relax_after=600 is never reached: {of_run}",
    ]
    early = [*short, "train.policy_after=0", "model.kl.relax_after=0"]
    late = [*early, "policy.late_lr=0.2", f"policy.late_after={total}", f"model.kl.warmup={total + 1}"]
    assert never_reached(load_config(early)) == []
    assert never_reached(load_config(late)) == [
        f"policy.late_after={total} is never reached: the policy has {total} updates.",
        f"alpha never reaches its value: model.kl.warmup={total + 1} and {of_run}",
    ]
    in_time = [*early, "policy.late_lr=0.2", f"policy.late_after={total - 1}", f"model.kl.warmup={total}"]
    assert never_reached(load_config([*in_time, "train.policy_after=1"])) == [
        f"policy.late_after={total - 1} is never reached: the policy has {total - 1} updates."
    ]
    assert never_reached(load_config(in_time)) == []
    (told,) = never_reached(load_config(["preset=quickstart", "agent=pisac", "train.policy_after=100_000"]))
    assert told.startswith("the policy never learns: ")
    rate = ["policy.optimizer=laprop", f"policy.warmup={total + 1}"]
    assert never_reached(load_config([*early, *rate])) == [
        f"the policy's learning rate never reaches its value: policy.warmup={total + 1} and the policy has"
        f" {total} updates."
    ]
    rate = ["model.optimizer.name=laprop", "model.optimizer.warmup="]
    assert never_reached(load_config([*early, rate[0], f"{rate[1]}{total}"])) == []
    assert never_reached(load_config([*early, rate[0], f"{rate[1]}{total + 1}"])) == [
        f"the model's learning rate never reaches its value: model.optimizer.warmup={total + 1} and {of_run}"
    ]
    nothing = [
        "policy.imagined_value=0",
        "policy.replay_value=1",
        "policy.late_imagined_value=0.5",
        f"policy.late_after={total}",
    ]
    assert never_reached(load_config([*early, *nothing])) == []


def test_no_preset_names_what_it_never_reaches():
    for preset in choices("preset"):
        for agent in ("world_model", "curl", "pisac"):
            given = [f"preset={preset}", f"agent={agent}"]
            try:
                config = load_config(given)
            except UserError:  # a preset of a model
                continue
            assert notes(config, given[:1]) == [], given


def test_a_run_begins_with_what_changes_nothing(monkeypatch, capsys):
    monkeypatch.setattr("denoised_mdp.session.train", lambda config, stop: True)
    assert main(["train", "preset=debug", "policy.late_after=3", "model=repo", "model.kl.dyn=1"]) == 0
    told = [line for line in capsys.readouterr().err.splitlines() if "changes nothing" in line]
    assert told == [
        "denoised-mdp: note: policy.late_after=3 changes nothing: policy.late_lr is 1 and"
        " policy.late_imagined_value is 1.",
        "denoised-mdp: note: model.kl.dyn=1 changes nothing: model=repo does not use it.",
    ]
    assert not without_effect(load_config(["policy=sac"]), ["policy=sac"])
    given = ["policy.imagined_value=0", "policy.replay_value=1", "policy.late_imagined_value=0.5"]
    told = ["policy.late_imagined_value=0.5 changes nothing: policy.imagined_value is 0."]
    assert without_effect(load_config(given), given) == told
    given.append("policy.late_after=3")
    told.append("policy.late_after=3 changes nothing: policy.late_lr is 1.")
    assert without_effect(load_config(given), given) == told
    assert not without_effect(load_config(["agent=curl"]), ["agent=curl"])


def test_agents_without_a_model_have_segments_of_their_own():
    given = ["preset=debug", "agent=sac_pixels", "train.segment_length=5"]
    assert load_config(given).batch_spec == load_config(given[:2]).batch_spec
    assert without_effect(load_config(given), given) == [
        "train.segment_length=5 changes nothing: agent=sac_pixels learns from segments of 2 rows."
    ]
    with pytest.raises(UserError, match="a segment of 2 rows, as agent=sac_pixels needs"):
        load_config([*given[:2], "replay.capacity=2"])


VIDEO = "distractors=video_background"


@pytest.mark.parametrize(
    ("words", "last", "said"),
    [
        ("distractors=none", "env.clips=procedural:3", ": no chosen distractor shows clips"),
        (VIDEO, "env.clips=procedural:3", None),
        ("env=robodesk distractors=tv", "env.clips=procedural:3", None),
        ("env=toy", "env.camera=1", ": env=toy does not take it"),
        ("env=toy", "env.quality=faithful", ": env=toy does not take it"),
        ("env=dmc", "env.quality=faithful", None),
        ("train.eval_every=0", "train.eval_episodes=3", ": train.eval_every is 0"),
        ("train.eval_every=0", "train.eval_workers=2", ": train.eval_every is 0"),
        ("train.eval_episodes=3", "train.eval_workers=4", " beyond 3: train.eval_episodes is 3"),
        ("train.eval_episodes=30", "train.eval_workers=12", " beyond 10: no more episodes are played side by side"),
        ("train.eval_episodes=30", "train.eval_workers=10", None),
        ("env=gym env.id=CartPole-v1", "env.episode_steps=501", " beyond 500: CartPole-v1 ends by itself then"),
        ("env=gym env.id=CartPole-v1", "env.episode_steps=500", None),
        ("env=gym env.id=CartPole-v1", "env.episode_steps=100", None),
        ("env=dmc", "env.episode_steps=5000", None),
        ("train.device=cpu", "train.precision=tf32", ": train.device is cpu, which takes float32"),
        ("train.device=cpu", "train.precision=float32", None),
        ("train.collect_envs=2", "train.collect_workers=3", " beyond 2: train.collect_envs is 2"),
        ("train.collect_envs=2", "train.collect_workers=2", None),
        ("train.device=cpu", "train.cuda_graph=true", ": train.device is cpu"),
        ("train.device=cuda", "train.cuda_graph=true", None),
        (
            f"{VIDEO} distractors.video_background.dynamic=false",
            "distractors.video_background.start=continue",
            ": the place of a still picture (dynamic=false) is always drawn",
        ),
        (VIDEO, "distractors.video_background.start=continue", None),
        (VIDEO, "distractors.video_background.resize=bilinear", ": procedural clips are drawn at their final size"),
        (f"{VIDEO} env.clips=/clips", "distractors.video_background.resize=bilinear", None),
    ],
)
def test_options_of_environments_and_training_without_effect(words, last, said):
    given = ["preset=debug", "distractors=none", *words.split(), last]
    expected = [] if said is None else [f"{last} changes nothing{said}."]
    assert [line for line in without_effect(load_config(given), given) if line.startswith(last)] == expected
    assert not without_effect(load_config(given), given[:1]), "nobody gave it"


def test_of_a_run_that_goes_on_only_what_it_may_change_is_told(tmp_path):
    """The rest it refuses."""
    words = ["preset=debug", "env=toy", f"run_dir={tmp_path}"]
    save_config(load_config(words), tmp_path / "config.yaml")
    given = [str(tmp_path), "model.y.beta=0.5", "model.kl.beta=0.3", "train.eval_workers=2", "train.eval_episodes=1"]
    assert without_effect(load_config(given), given) == [
        "train.eval_workers=2 changes nothing beyond 1: train.eval_episodes is 1."
    ]
    given[:1] = words
    assert len(without_effect(load_config(given), given)) == 2


def test_config_and_doctor_say_what_changes_nothing(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr("denoised_mdp.bench.doctor.environment_maker", lambda config, foreground: lambda: None)
    words = ["preset=debug", "env=toy", "env.camera=1", f"run_dir={tmp_path}/new"]
    note = "note: env.camera=1 changes nothing: env=toy does not take it.\n"
    for more in ([], ["--against", "debug"]):
        assert main(["config", *words, *more]) == 0
        assert capsys.readouterr().err == f"denoised-mdp: {note}"
    assert main(["doctor", *words]) == 0 and note in capsys.readouterr().out
