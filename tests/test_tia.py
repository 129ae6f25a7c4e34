"""TIA: sizes, closed forms, who is taught by what, and whole runs; its update is in test_tia_oracle.py."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from conftest import configured, random_batch
from small_runs import lines, run_in_parts, tiny

import denoised_mdp
from denoised_mdp.agents.registry import build_agent
from denoised_mdp.bench.doctor import Doctor
from denoised_mdp.cli.main import main
from denoised_mdp.config import load_config
from denoised_mdp.config.models import TIAConfig
from denoised_mdp.errors import UserError
from denoised_mdp.models.losses import KLWeights
from denoised_mdp.models.structure import LatentSpec, Table
from denoised_mdp.models.tia import TIA
from denoised_mdp.optim import parameters_of
from denoised_mdp.run.diff import compare, report
from denoised_mdp.session import train

SMALL = [
    "model=tia",
    "model.depth=2",
    "model.embed=12",
    "model.reward_hidden=7",
    "model.x={belief: 6, state: 3}",
    "model.y={belief: 5, state: 4}",
    "policy.hidden=8",
    "policy.horizon=4",
]


def small_agent(*overrides: str, ends: bool = False):
    """A tiny agent in float64 with lively weights."""
    agent = build_agent(load_config([*SMALL, *overrides]), 2, can_terminate=ends).double()
    with torch.no_grad():
        for parameter in agent.world_model.parameters():
            parameter += 0.1 * torch.randn_like(parameter) + 0.5 * parameter
    return agent


def batch_and_noise(model: TIA, size: int = 64) -> tuple[dict, torch.Tensor]:
    """A random batch in float64 and noise for it."""
    batch = {name: torch.as_tensor(value) for name, value in random_batch(size=size).items()}
    batch |= {name: value.double() for name, value in batch.items() if value.is_floating_point()}
    return batch, model.draw_noise(*batch["reward"].shape, generator=torch.Generator().manual_seed(0))


def terms_of(model: TIA, batch: dict, noise: torch.Tensor) -> dict[str, torch.Tensor]:
    """The terms of the losses of a batch."""
    filtered = model.filter(batch["observation"], batch["action"], batch["is_first"], noise)
    return model.terms(filtered, model.float_images(batch["observation"]), batch["reward"], batch["is_terminal"])[0]


# ---------------------------------------------------------------- sizes


@pytest.mark.parametrize(
    ("preset", "actions", "total"),
    [("paper/reacher_easy_video_background", 2, 7_475_567), ("paper/robodesk_tv_green_hue", 5, 6_384_477)],
)
def test_sizes_are_those_of_the_paper(preset, actions, total, capsys):
    config = load_config([f"preset={preset}", "model=tia"])
    agent = build_agent(config, actions)
    Doctor(config).show_parameters(agent)
    assert capsys.readouterr().out.splitlines()[-1].split() == ["total", f"{total:,}"]
    if actions == 2:
        counts = {name: sum(p.numel() for p in parameters_of(one)) for name, one in agent.optimizers.items()}
        assert counts == {
            "x": 1_169_995,
            "y": 2_357_319,
            "decoders": 2_814_247,
            "adversary": 217_201,
            "actor": 539_204,
            "value": 377_601,
        }
    parts = [id(p) for one in agent.optimizers.values() for p in parameters_of(one)]
    assert sorted(parts) == sorted(map(id, agent.parameters()))  # each belongs to exactly one optimizer


def test_options_are_those_of_the_paper():
    m = load_config(["preset=paper/cheetah_run_video_background", "model=tia"]).model
    assert (m.adversary_weight, m.adversary_steps, m.adversary_lr, m.alone_weight) == (20_000, 20, 6e-4, 1.5)
    assert (m.optimizer.lr, m.optimizer.eps, m.optimizer.clip, m.reward_std) == (6e-4, 1e-7, 100, 1)
    assert (m.kl.alpha, m.kl.free_nats, m.kl.free_nats_strategy) == (1, 3, "mean")
    m = load_config(["preset=paper/robodesk_tv_green_hue", "model=tia"]).model
    assert (m.adversary_weight, m.alone_weight, m.embed, m.kl.alpha) == (25_000, 2, 450, 1)


@pytest.mark.parametrize(
    "cell", ["y.seen_by_policy=true", "y.parents=[x]", "x.reward_sees=[y]", "y.rewarded=true", "x.seen_by_policy=false"]
)
def test_other_tables_are_refused_in_one_line(cell):
    with pytest.raises(UserError, match="model=tia: ") as error:
        load_config(["model=tia", f"model.{cell}"])
    assert "\n" not in str(error.value)


def test_its_latents_are_called_x_and_y():
    x, y = (LatentSpec(name, seen_by_policy=name == "task", rewarded=name == "task") for name in ("task", "rest"))
    with pytest.raises(ValueError, match="it has latents x and y"):
        TIAConfig().check(Table([x, y]))


def test_strategy_b_is_refused():
    with pytest.raises(UserError, match=r"model=tia: .*model.kl.free_nats_strategy is A or mean"):
        load_config(["model=tia", "model.kl.free_nats_strategy=B"])


# ---------------------------------------------------------------- closed forms


@pytest.mark.parametrize(("bias", "shown"), [(1e3, "signal"), (-1e3, "noise")])
def test_where_the_mask_is_one_the_picture_is_that_of_x(bias, shown):
    model = small_agent().world_model
    batch, noise = batch_and_noise(model)
    latent = model.filter(batch["observation"], batch["action"], batch["is_first"], noise).latent
    assert not torch.allclose(model.decode(latent), model.show(shown, latent))
    with torch.no_grad():
        model.mask.bias.fill_(bias)
    torch.testing.assert_close(model.decode(latent), model.show(shown, latent), rtol=0, atol=0)
    grey = model.show("mask", latent)
    assert grey.shape == (12, 3, 64, 64) and (grey == (0.5 if bias > 0 else -0.5)).all()


def test_reward_std_is_that_of_both_likelihoods():
    model = small_agent("model.reward_std=0.5").world_model
    batch, noise = batch_and_noise(model)
    latent = model.filter(batch["observation"], batch["action"], batch["is_first"], noise).latent
    terms = terms_of(model, batch, noise)
    for name in "xy":
        guess = torch.distributions.Normal(model.rewards[name](latent.features(name)).squeeze(-1), 0.5)
        torch.testing.assert_close(terms[f"reward_{name}"], -guess.log_prob(batch["reward"]).mean())


def test_free_nats_clamp_the_mean_of_a_batch():
    table = small_agent().world_model.x.rssm.table
    kl = torch.tensor([[0.0, 8.0], [0.0, 8.0]], requires_grad=True)
    assert configured(KLWeights, free_nats_strategy="mean").weighted({"x": kl}, table).item() == 4.0
    assert configured(KLWeights, free_nats_strategy="A").weighted({"x": kl}, table).item() == 5.5
    low = configured(KLWeights, free_nats_strategy="mean").weighted({"x": kl / 2}, table)
    assert low.item() == 3.0 and not torch.autograd.grad(low, kl)[0].any()


def test_a_step_of_y_raises_the_error_of_a_fixed_adversary():
    model = small_agent("model.adversary_weight=1e6", "model.optimizer.lr=1e-4").world_model
    batch, noise = batch_and_noise(model)
    model.teach_adversary = lambda *_: torch.zeros(())
    model.draw_noise = lambda *_, **__: noise
    before = terms_of(model, batch, noise)["reward_y"]
    for _ in range(3):
        model.update(batch, torch.Generator())
        after = terms_of(model, batch, noise)["reward_y"]
        assert after > before
        before = after


# ---------------------------------------------------------------- gradients


def test_which_parameters_each_loss_reaches():
    """Both meet in the joint picture; y is alone with its decoder and the adversary, x with its reward and the end."""
    model = small_agent(ends=True).world_model
    batch, noise = batch_and_noise(model)
    batch["is_terminal"][1, 1] = True
    both = {"x", "y", "decoders.x", "decoders.y", "mask"}
    for name, own in (("x", {"rewards.x", "continuation"}), ("y", {"rewards.y", "alone"})):
        model.zero_grad()
        model.losses(terms_of(model, batch, noise))[name].backward()
        reached = [key for key, p in model.named_parameters() if p.grad is not None and p.grad.any()]
        assert {key for key in both | own if any(one.startswith(f"{key}.") for one in reached)} == both | own
        assert all(any(one.startswith(f"{key}.") for key in both | own) for one in reached)


def test_each_group_takes_its_own_loss_alone():
    """x nothing from what y paints alone or from the adversary; y nothing from the reward of x."""
    batch, noise = batch_and_noise(small_agent().world_model)

    def gradients(*overrides, reward=1.0):
        torch.manual_seed(0)
        model = small_agent("model.optimizer.clip=null", *overrides).world_model
        model.draw_noise, model.teach_adversary = lambda *_, **__: noise, lambda *_: torch.zeros(())
        model.update(batch | {"reward": reward * batch["reward"]}, torch.Generator())
        return {
            n: torch.cat([p.grad.flatten() for p in parameters_of(o)]) if n != "adversary" else parameters_of(o)
            for n, o in model.optimizers.items()
        }

    plain = gradients()
    assert all(p.grad is None for p in plain.pop("adversary"))  # it takes nothing from the loss of y
    for changed, same in (
        (gradients("model.alone_weight=7"), "x decoders"),
        (gradients("model.adversary_weight=7"), "x decoders"),
        (gradients("model.adversary_weight=0", reward=3.0), "decoders"),
    ):
        for name in plain:
            assert torch.equal(plain[name], changed[name]) == (name in same.split()), name


def test_the_adversary_steps_so_often_and_alone():
    agent = small_agent("model.adversary_steps=20")
    model = agent.world_model
    for updates in (1, 2):
        agent.update(random_batch(seed=updates))
        steps = {
            name: {int(state["step"]) for state in model.optimizers[name].state.values()} for name in model.optimizers
        }
        assert steps == {"x": {updates}, "y": {updates}, "decoders": {updates}, "adversary": {20 * updates}}
    before = {name: value.clone() for name, value in model.state_dict().items()}
    batch, noise = batch_and_noise(model)
    latent = model.filter(batch["observation"], batch["action"], batch["is_first"], noise).latent
    model.teach_adversary(latent, batch["reward"])
    changed = {name for name, value in model.state_dict().items() if not torch.equal(value, before[name])}
    assert changed == {f"rewards.y.{name}" for name, _ in model.rewards["y"].named_parameters()}


# ---------------------------------------------------------------- filtering and other tables


def test_each_stream_filters_for_itself_in_pieces_or_at_once():
    model = small_agent().world_model
    batch, noise = batch_and_noise(model)
    arguments = [batch["observation"], batch["action"], batch["is_first"], noise]
    whole = model.filter(*arguments)
    first = model.filter(*(value[:2] for value in arguments))
    rest = model.filter(*(value[2:] for value in arguments), first.latent.map(lambda tensor: tensor[-1]))
    torch.testing.assert_close(whole.latent.features()[2:], rest.latent.features())
    with torch.no_grad():
        for parameter in model.y.parameters():
            parameter.zero_()
    other = model.filter(*arguments)
    assert torch.equal(other.latent.features("x"), whole.latent.features("x"))
    assert torch.equal(other.embedding, whole.embedding) and other.embedding.shape[-1] == model.encoder.width
    assert not torch.equal(other.latent.features("y"), whole.latent.features("y"))


@pytest.mark.parametrize("policy", ["backprop", "sac"])
def test_categorical_states_and_terminations(policy):
    rows = [f"model.{name}.{cell}" for name in "xy" for cell in ("distribution=categorical", "classes=3")]
    options = [*rows, f"policy={policy}"]
    base = [option for option in SMALL if policy == "backprop" or "horizon" not in option]
    agent = build_agent(load_config([*base, *options]), 2, can_terminate=True)
    batch = random_batch()
    batch["is_terminal"][1, 1] = True
    for _ in range(2):
        metrics = agent.update(batch)
    assert np.isfinite([value.item() for value in metrics.values()]).all() and metrics["model/continuation_nll"] > 0
    moved = set(map(id, parameters_of(agent.optimizers["x"])))
    assert set(map(id, agent.world_model.continuation.parameters())) <= moved
    assert agent.world_model.initial(2).state.shape == (2, 3 * 3 + 4 * 3)


# ---------------------------------------------------------------- whole runs


def test_a_run_resumes_and_serves_every_command(tmp_path, capsys):
    options = ("model=tia", "train.probe_every=0", "train.eval_episodes=1", "distractors=camera_jitter")
    options += ("train.total_steps=120",)
    whole, parts = (tiny(tmp_path / name, *options) for name in ("whole", "parts"))
    assert train(whole)
    run_in_parts(parts, 41)  # between the two updates
    run = whole.run_dir
    assert report(compare(tmp_path / "whole", tmp_path / "parts"))
    logged = {name for line in lines(tmp_path / "whole") for name in line}
    assert logged >= {"model/mask", "model/kl_x", "model/kl_y", "model/reward_error_y", "eval/return"}

    quick = ["--episodes", "3", "--steps", "12", "--device", "cpu"]
    assert main(["evaluate", run, "--episodes", "1"]) == 0
    assert main(["render", run, "--device", "cpu"]) == 0
    assert main(["probe", "factors", run, *quick]) == 0
    assert main(["probe", "invariance", run, *quick[:4], "--worlds", "2", "--returns", "0"]) == 0
    assert main(["probe", "health", run, *quick]) == 0
    assert main(["report", run, "--output", str(tmp_path / "report.html")]) == 0
    assert isinstance(denoised_mdp.load(run, device="cpu").world_model, TIA)
    health = json.loads(next((tmp_path / "whole" / "probes").glob("health*.json")).read_text())
    assert set(health["nats"]) == {"x", "y"} and np.isfinite(health["image_r2"])
    capsys.readouterr()


def test_its_rows_are_the_streams_and_the_mask(tmp_path):
    from denoised_mdp.analysis.render import rows
    from denoised_mdp.rollout import Episode

    agent = small_agent().float()
    batch = random_batch(length=5, batch=1)
    latent = agent.world_model.filter(
        *(torch.as_tensor(batch[name]) for name in ("observation", "action", "is_first")), torch.zeros(5, 1, 7)
    ).latent.map(lambda tensor: tensor[:, 0].detach())
    episode = Episode(batch["observation"][:, 0], batch["action"][:, 0], *np.zeros((2, 5, 1)), latent=latent)
    found = {row.title: row.frames for row in rows(agent, episode, replace(episode))}
    assert list(found) == ["observation", "reconstruction", "signal", "noise", "mask", "swap"]
    assert all(frames.shape == (5, 64, 64, 3) and frames.dtype == np.uint8 for frames in found.values())
    mask = found["mask"].astype(int)
    assert (mask == mask[..., :1]).all()
    low, high = np.minimum(found["signal"], found["noise"]), np.maximum(found["signal"], found["noise"])
    assert (found["reconstruction"] >= low).all() and (found["reconstruction"] <= high).all()
