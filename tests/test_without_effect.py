"""Options without effect are named when a run begins, and they have none."""

import pytest
import torch
from conftest import random_batch

from denoised_mdp.agents.registry import build_agent
from denoised_mdp.cli.main import main
from denoised_mdp.config import load_config
from denoised_mdp.config.effect import without_effect
from denoised_mdp.config.schema import MODELS
from denoised_mdp.errors import UserError

TINY = ["preset=debug", "model.depth=2", "model.kl.free_nats=0.1", "model.kl.alpha=1"]
OTHER = {"free_nats": "0.7", "alpha": "3", "beta": "0.3", "dyn": "0.5", "relax_after": "1"}
OTHER |= {"free": "true", "width": "64", "classes": "5"}
OTHER |= {"free_nats_strategy": "mean"}  # of model=2b too it changes nothing where all of the KL is above the free nats
UNUSED = [
    *((f"model={kind}", key) for kind, options in MODELS.items() for key in options.UNUSED),
    ("model=tia", "kl.beta"),
    ("model=dreamer", "kl.beta"),
    ("model=2b", "kl.relax_after"),
    ("model=2b", "width"),
    ("model=2b", "y.classes"),
    ("model=2b model.y.beta=0.5", "kl.beta"),
    ("model=2b model.x.free=false", "kl.free_nats"),
    ("model=2b model.x.free=false", "kl.free_nats_strategy"),
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


def test_of_the_strategies_only_one_is_another_without_noise():
    words = [*TINY, "model=dreamer"]
    given, other = ([*words, f"model.kl.free_nats_strategy={strategy}"] for strategy in ("B", "mean"))
    assert any("strategy=B changes nothing" in line for line in without_effect(load_config(given), given))
    assert equal(weights_after(given), weights_after(words))
    assert not any("strategy" in line for line in without_effect(load_config(other), other))


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
    ],
)
def test_options_of_environments_and_training_without_effect(words, last, said):
    given = ["preset=debug", "distractors=none", *words.split(), last]
    expected = [] if said is None else [f"{last} changes nothing{said}."]
    assert [line for line in without_effect(load_config(given), given) if line.startswith(last)] == expected
    assert not without_effect(load_config(given), given[:1]), "nobody gave it"


def test_config_and_doctor_say_what_changes_nothing(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr("denoised_mdp.bench.doctor.environment_maker", lambda config, foreground: lambda: None)
    words = ["preset=debug", "env=toy", "env.camera=1", f"run_dir={tmp_path}/new"]
    note = "note: env.camera=1 changes nothing: env=toy does not take it.\n"
    for more in ([], ["--against", "debug"]):
        assert main(["config", *words, *more]) == 0
        assert capsys.readouterr().err == f"denoised-mdp: {note}"
    assert main(["doctor", *words]) == 0 and note in capsys.readouterr().out
