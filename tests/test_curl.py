"""CURL: its loss from the formula, who is taught by it, and positives that are told from negatives."""

import math
import statistics

import pytest
import torch
from pixel_case import reached, tiny_agent, tiny_batch, tiny_step

from denoised_mdp.agents import pixel_sac
from denoised_mdp.agents.registry import build_agent
from denoised_mdp.agents.transitions import Transitions
from denoised_mdp.config import load_config


def test_it_is_pixel_sac_and_a_matrix():
    agent = build_agent(load_config(["agent=curl"]), 6)
    counts = agent.parameter_counts()
    assert counts["encoder"] == 1_990_518 and counts["similarity"] == 50 * 50
    assert 0 <= agent.similarity.min() < 0.01 < 0.99 < agent.similarity.max() <= 1


def test_the_rates_of_the_task_and_its_action_repeat_are_in_the_presets():
    for task, lr, repeat, prefill in (
        ("cheetah_run", 2e-4, 4, 4000),
        ("reacher_easy", 1e-3, 4, 4000),
        ("walker_walk", 1e-3, 2, 2000),
    ):
        config = load_config([f"preset=paper/{task}_video_background", "agent=curl"])
        agent, train = config.agent, config.train
        assert {agent.actor_lr, agent.critic_lr, agent.contrastive_lr} == {lr} and agent.temperature_lr == 1e-4
        assert (config.env.action_repeat, config.env.size, agent.crop) == (repeat, 100, 84)
        assert (train.prefill_steps, train.train_every, train.updates) == (prefill, repeat, 1)


def test_the_contrastive_loss_teaches_the_encoder_and_the_matrix():
    agent = tiny_agent("curl")
    step, now, _ = tiny_step(agent)
    loss = torch.nn.functional.cross_entropy(agent.logits(now, agent.augment(step.now)), torch.arange(len(now)))
    assert reached(agent, loss) == {"encoder.convolutions", "encoder.head", "similarity"}


def test_logits_are_bilinear_and_keys_are_the_target_encoders():
    agent = tiny_agent("curl")
    for p in agent.target_encoder.parameters():
        p.data.add_(torch.randn_like(p), alpha=0.1)
    step, now, _ = tiny_step(agent)
    positive = agent.augment(step.now)
    q, k = agent.encoder(now), agent.target_encoder(positive)
    raw = torch.stack([torch.stack([a @ agent.similarity @ b for b in k]) for a in q])
    torch.testing.assert_close(agent.logits(now, positive), raw - raw.max(1, keepdim=True).values)


def test_the_loss_asks_each_anchor_for_its_positive_among_all(monkeypatch):
    agent = tiny_agent("curl")
    step, now, following = tiny_step(agent)
    logits, seen = agent.logits, []
    monkeypatch.setattr(agent, "logits", lambda *pair: seen.append(logits(*pair)) or seen[-1])
    loss = agent.auxiliary({}, step, now, following)["model/contrastive_loss"]
    shares = [row[i].exp() / row.exp().sum() for i, row in enumerate(seen[0])]  # anchors are rows
    torch.testing.assert_close(loss, -torch.stack(shares).log().mean().detach())


def test_encodings_that_are_all_alike_give_log_of_the_batch_size(monkeypatch):
    agent = tiny_agent("curl")
    step, now, following = tiny_step(agent)
    agent.similarity.data.zero_()
    metrics = agent.auxiliary({}, step, now, following)
    assert metrics["model/contrastive_loss"].item() == pytest.approx(math.log(len(now)))


def test_the_anchor_is_the_critics_crop_and_the_positive_a_new_one(monkeypatch):
    agent = tiny_agent("curl")
    drawn, asked = [], []
    augment, logits = agent.augment, agent.logits
    monkeypatch.setattr(agent, "augment", lambda pictures: drawn.append(augment(pictures)) or drawn[-1])
    monkeypatch.setattr(agent, "logits", lambda *pair: asked.append(pair) or logits(*pair))
    agent.update(tiny_batch(agent))
    assert len(drawn) == 3
    now, following, positive = drawn
    assert asked[0][0] is now and asked[0][1] is positive
    assert now.shape == positive.shape == (6, 9, 26, 26) and not torch.equal(now, positive)


def squares() -> torch.Tensor:
    """Pictures of a square each, in the eight colours of full and no red, green and blue: uint8 [8, 32, 32, 9]."""
    colour = torch.cartesian_prod(*[torch.tensor([0, 255], dtype=torch.uint8)] * 3)[:, None, None]  # [8, 1, 1, 3]
    inside = ((torch.arange(32) - 16).abs() < 6).to(torch.uint8)  # [32]
    return (inside[:, None, None] * inside[:, None] * colour).repeat(1, 1, 1, 3)


def learned(seed: int) -> tuple[float, float]:
    """Shares of positives that are found in the first and the last 20 of 400 steps of contrastive learning alone."""
    agent = tiny_agent("curl", "agent.features=32", "agent.contrastive_lr=3e-3", f"seed={seed}").float()
    pictures, none = squares(), torch.zeros(8)
    transitions = Transitions(pictures, none[:, None], none, none, pictures, none)
    found = []
    for _ in range(400):
        agent.update_targets()
        now = agent.augment(pictures)
        found.append(agent.auxiliary({}, transitions, now, now)["model/contrastive_accuracy"].item())
    return sum(found[:20]) / 20, sum(found[-20:]) / 20


def test_crops_of_one_picture_are_told_from_those_of_others():
    """Before learning hardly any positive is found, chance is 1/8; afterwards most are, with usual initial weights."""
    before, after = zip(*map(learned, range(3)), strict=True)
    assert max(before) < 0.5 and statistics.median(after) > 0.7, (before, after)


def test_crops_begin_at_the_first_16_lines_as_published(monkeypatch):
    """Of 100 - 84 + 1 places the public code never draws the last."""
    limits = []
    monkeypatch.setattr(pixel_sac, "random_cut", lambda pictures, *about: limits.append(about) or pictures)
    agent = tiny_agent("curl", "env.size=100", "agent.crop=84")
    agent.augment(torch.zeros(2, 100, 100, 9, dtype=torch.uint8))
    assert limits[0][:3] == (0, 15, 84)
