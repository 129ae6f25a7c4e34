"""Agents that learn from pictures: columns in which an episode ends in `now` hold no transition."""

import dataclasses

import pytest
import torch
from pixel_case import lively_agent, whole_batch

from denoised_mdp.agents.transitions import make_transitions


def kept(step, which):
    """The same transitions, only those."""
    return dataclasses.replace(step, **{one.name: getattr(step, one.name)[which] for one in dataclasses.fields(step)})


@pytest.mark.parametrize("loss", ["critic", "actor", "temperature"])
@pytest.mark.parametrize("name", ["sac_pixels", "pisac"])
def test_losses_are_those_of_the_transitions_that_exist(name, loss):
    agent = lively_agent(name)
    batch = whole_batch(agent)
    batch["is_first"][3, :2] = True  # row 2 is `now`: no action leads on from it
    step = make_transitions(batch, 3, 1, 0.99)
    there = step.exists.bool()
    assert there.tolist() == [False] * 2 + [True] * 4
    now, following = agent.view(step.now), agent.view(step.following)
    noise = torch.randn(6, 2, dtype=torch.float64)
    found = []
    for which in (torch.ones(6, dtype=torch.bool), there):
        seen, part = now[which], kept(step, which)
        agent.learned_from(seen)
        critic = agent.critic_loss(part, seen, following[which], noise[which])
        actor, log_prob = agent.actor_loss(part, seen, noise[which])
        found.append({"critic": critic, "actor": actor, "temperature": agent.temperature_loss(part, log_prob)}[loss])
    torch.testing.assert_close(*found)


def test_the_positive_of_an_anchor_is_of_the_same_frames(monkeypatch):
    """Not of those one decision later."""
    agent = lively_agent("curl")
    batch = whole_batch(agent)
    step, given = make_transitions(batch, 3, 1, 0.99), []
    augment = agent.augment
    monkeypatch.setattr(agent, "augment", lambda pictures: given.append(pictures) or augment(pictures))
    agent.auxiliary(batch, step, agent.view(step.now), agent.view(step.following))
    assert len(given) == 1 and torch.equal(given[0], step.now) and not torch.equal(step.now, step.following)


def test_accuracy_is_of_anchors_among_all_positives(monkeypatch):
    """Rows are anchors: three of four find their own, though only two columns do."""
    agent = lively_agent("curl")
    step = make_transitions(whole_batch(agent), 3, 1, 0.99)
    table = torch.tensor([[5.0, 9, 0, 0], [0, 2, 0, 0], [0, 0, 3, 0], [6, 0, 0, 7.0]]).double()
    monkeypatch.setattr(agent, "logits", lambda *_: table + 0 * agent.similarity.sum() + 0 * agent.encoder(now).sum())
    now = agent.view(step.now)
    found = agent.auxiliary({}, step, now, now)["model/contrastive_accuracy"]
    assert found == 0.75
