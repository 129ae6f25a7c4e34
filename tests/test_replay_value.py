"""The value net's loss on stored rows: returns by their forward view, what is left out, what it may change."""

import copy

import numpy as np
import pytest
import torch
from conftest import random_batch, small_agent
from small_runs import run_in_parts, tiny
from test_policies import policy_batch

from denoised_mdp.config import load_config
from denoised_mdp.config.schema import BackpropConfig, ReinforceConfig
from denoised_mdp.models.mdp import Ahead
from denoised_mdp.options import arguments
from denoised_mdp.policies import BackpropPolicy, ReinforcePolicy
from denoised_mdp.policies.imagination import FEWEST_AHEAD
from denoised_mdp.replay.batches import Batches
from denoised_mdp.replay.on_device import OnDeviceReplay
from denoised_mdp.replay.prefetch import Prefetch
from denoised_mdp.replay.rings import Rings
from denoised_mdp.run.diff import compare, report
from denoised_mdp.run.machine import random_batch as machine_batch
from denoised_mdp.session import train

GAMMA, LAMBDA = 0.9, 0.8
KINDS = [(BackpropPolicy, BackpropConfig), (ReinforcePolicy, ReinforceConfig)]


@pytest.fixture(params=KINDS, ids=["backprop", "reinforce"])
def learner(request):
    """A policy and a batch [7, 4] in which one episode ends by its time limit, one by terminating, one at the end."""
    kind, config = request.param
    agent = small_agent()
    options = arguments(config(hidden=8, gamma=GAMMA, lambda_=LAMBDA, value="gaussian", slow_value=0.0))
    batch = policy_batch(agent, length=7, batch=4)
    batch.is_first[3, 1] = batch.is_first[4, 2] = batch.is_first[6, 3] = True
    batch.is_terminal[3, 2] = batch.is_terminal[5, 3] = batch.is_terminal[6, 0] = True
    return kind(agent.mdp, **options).double(), batch


def rows_ahead(*episodes: tuple[int, bool], count: int = 40) -> Ahead:
    """So many rows after each segment, and whether the last of them terminates; rewards are drawn."""
    rows, terminal = (torch.tensor(column)[None] for column in zip(*episodes, strict=True))
    reward = torch.randn(count, len(episodes), dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    return Ahead(reward * (torch.arange(count)[:, None] < rows), rows, terminal)


def forward_view(t, reward, value, terminal, first, own, tail=None):
    """The mixture of n-step returns from row t of one segment, whose last row counts as its value says.

    tail: what followed that row is worth, where that is known.
    """
    last = t
    while last + 1 < len(value) and not first[last + 1]:
        last += 1
    n_step = []
    for n in range(1, last - t + 1):
        rewards = reward[t : t + n] if own else reward[t + 1 : t + n + 1]
        follows = 0.0 if terminal[t + n] and not own else value[t + n]
        n_step.append(np.polynomial.polynomial.polyval(GAMMA, [*rewards, follows]))
    if own and terminal[last]:  # its own reward, and nothing more
        n_step.append(np.polynomial.polynomial.polyval(GAMMA, reward[t : last + 1]))
    elif tail is not None and last == len(value) - 1 and not terminal[last]:
        n_step.append(np.polynomial.polynomial.polyval(GAMMA, [*reward[t + (not own) : last + 1], tail]))
    if not n_step:
        return value[t]
    weights = [(1 - LAMBDA) * LAMBDA**n for n in range(len(n_step) - 1)] + [LAMBDA ** (len(n_step) - 1)]
    return float(np.dot(weights, n_step))


def test_the_loss_is_of_lambda_returns_within_episodes(learner):
    policy, batch = learner
    value = policy.value(batch.features).squeeze(-1)  # [T, B]
    total, count, own = 0.0, 0, policy.value_has_own_reward
    for b in range(4):
        column = [part[:, b].numpy() for part in (batch.reward, value.detach(), batch.is_terminal, batch.is_first)]
        for t in range(7):
            follows = t < 6 and not batch.is_first[t + 1, b]
            if follows or own and batch.is_terminal[t, b]:
                target = forward_view(t, *column, own=own)
                total = total - torch.distributions.Normal(value[t, b], 1.0).log_prob(torch.tensor(target))
                count += 1
    assert count == (24 if own else 21), "a terminal row's own reward is all of its value"
    loss = policy.replay_loss(batch)
    torch.testing.assert_close(loss, total / count)
    parameters = list(policy.value.parameters())
    for one, other in zip(
        torch.autograd.grad(loss, parameters), torch.autograd.grad(total / count, parameters), strict=True
    ):
        torch.testing.assert_close(one, other)  # targets are fixed


def test_returns_go_on_into_the_rows_ahead(learner):
    """Into as many as there are, unless they are too few; then what follows is worth the last row, or nothing."""
    policy, batch = learner
    batch.ahead = rows_ahead((40, False), (12, False), (3, True), (FEWEST_AHEAD - 1, False))
    batch.is_terminal[5:], batch.is_first[6, 3] = False, False
    value = policy.value(batch.features).squeeze(-1)  # [T, B]
    total, count, own = 0.0, 0, policy.value_has_own_reward
    for b in range(4):
        column = [part[:, b].numpy() for part in (batch.reward, value.detach(), batch.is_terminal, batch.is_first)]
        rows, last = int(batch.ahead.rows[0, b]), value[6, b].item()
        rewards = batch.ahead.reward[:rows, b].numpy()
        tail = np.polynomial.polynomial.polyval(GAMMA, [*rewards, 0.0 if batch.ahead.terminal[0, b] else last])
        tail = None if b == 3 else float(tail)
        for t in range(7):
            known = t < 6 and not batch.is_first[t + 1, b]
            if known or own and batch.is_terminal[t, b] or t == 6 and tail is not None:
                target = tail if t == 6 and not own else forward_view(t, *column, own=own, tail=tail)
                total = total - torch.distributions.Normal(value[t, b], 1.0).log_prob(torch.tensor(target))
                count += 1
    assert count == (26 if own else 25)
    torch.testing.assert_close(policy.replay_loss(batch), total / count)


def test_a_value_that_the_rows_ahead_deny_does_not_confirm_itself(learner):
    """All earn nothing; with many rows ahead, the target of the last row is nearly 0 instead of nearly the value."""
    policy, batch = learner
    batch.is_terminal[:], batch.is_first[:], batch.reward[:] = False, False, 0.0
    with torch.no_grad():
        policy.value.output.weight.zero_(), policy.value.output.bias.fill_(5.0)
    losses = []
    for rows in (None, 40):
        batch.ahead = None if rows is None else rows_ahead(*[(rows, False)] * 4)
        if batch.ahead:
            batch.ahead.reward[:] = 0.0
        policy.value.zero_grad()
        policy.replay_loss(batch).backward()
        losses.append(policy.value.output.bias.grad.item())
    assert losses[1] > 1.5 * losses[0] > 0
    tail, known = policy.value_ahead(batch.ahead, torch.full((1, 4), 5.0, dtype=torch.float64))
    torch.testing.assert_close(tail, torch.full_like(tail, 5.0 * GAMMA**40))
    assert known.all()


@pytest.mark.parametrize("ahead", [None, 12, 40])
def test_values_of_a_steady_reward_stay(learner, ahead):
    """Where every row earns r, r / (1 - gamma) is right, and the loss has no gradient there."""
    policy, batch = learner
    batch.is_terminal[:], batch.reward[:] = False, 0.3
    if ahead:
        batch.ahead = rows_ahead(*[(ahead, False)] * 4)
        batch.ahead.reward[:ahead] = 0.3
    with torch.no_grad():
        policy.value.output.weight.zero_(), policy.value.output.bias.fill_(0.3 / (1 - GAMMA))
    policy.replay_loss(batch).backward()
    assert policy.value.output.bias.grad.abs() < 1e-12
    with torch.no_grad():
        policy.value.output.bias.fill_(4.0)
    policy.value.zero_grad()
    policy.replay_loss(batch).backward()
    assert policy.value.output.bias.grad > 0, "too much was expected"


def test_it_is_added_to_the_value_nets_loss_and_changes_nothing_else(learner):
    policy, batch = learner
    agent = small_agent()
    noise = policy.draw_noise(batch, agent.mdp, torch.Generator().manual_seed(0))
    more = copy.deepcopy(policy)  # deep copies have optimizers of their own parameters
    more.replay_value = 0.5
    plain = policy.update(batch, agent.mdp, noise=noise)
    found = more.update(batch, agent.mdp, noise=noise)
    assert found.pop("policy/replay_value_loss") > 0
    assert found.keys() == plain.keys()
    assert {name for name in plain if not torch.equal(plain[name], found[name])} == {"policy/value_gradient"}
    for one, other in zip(policy.actor.parameters(), more.actor.parameters(), strict=True):
        assert torch.equal(one, other)
    assert not all(torch.equal(*pair) for pair in zip(policy.value.parameters(), more.value.parameters(), strict=True))


OPTIONS = ["policy.hidden=8", "policy.replay_value=1", "policy.replay_ahead=20", "model.y.rewarded=false"]


def test_an_update_counts_the_rows_ahead():
    """Through the agent, whose world model does not see them; without them, nothing else changes."""
    ahead = {
        "ahead_reward": np.full((20, 3), 9.0, np.float32),
        "ahead_rows": np.full((1, 3), 20),
        "ahead_terminal": np.zeros((1, 3), bool),
    }
    found = [small_agent(replay_value=1.0).update(random_batch() | more) for more in ({}, ahead)]
    changed = {name for name in found[0] if not torch.equal(found[0][name], found[1][name])}
    assert changed == {"policy/replay_value_loss", "policy/value_gradient"}


def test_a_stop_changes_nothing(tmp_path):
    assert train(tiny(tmp_path / "whole", *OPTIONS))
    run_in_parts(tiny(tmp_path / "parts", *OPTIONS), 42, 1, 1)
    assert report(compare(tmp_path / "whole", tmp_path / "parts"))
    assert train(tiny(tmp_path / "without", *OPTIONS[:2]))
    assert not report(compare(tmp_path / "whole", tmp_path / "without"))


@pytest.mark.parametrize(
    ("options", "ahead"),
    [
        (OPTIONS, 20),
        ([*OPTIONS[:3], "model=dreamer"], 20),
        (OPTIONS[:3], 0),  # of what comes later, y's share is not x's to know
        ([*OPTIONS[:3], "model=confounder"], 0),
        ([OPTIONS[0], *OPTIONS[2:]], 0),
        (["policy=sac"], 0),
        (["agent=curl"], 0),
    ],
)
def test_rows_ahead_are_read_where_they_say_what_the_policy_earned(options, ahead):
    config = load_config(["preset=debug", *options])
    assert config.batch_spec.ahead == ahead
    assert ("ahead_reward" in machine_batch(config, 2)) == bool(ahead)


def test_so_many_rows_as_are_asked_for_are_enough(learner):
    policy, batch = learner
    batch.ahead = rows_ahead((3, False), (2, False), (0, False), (3, True), count=3)
    _, known = policy.value_ahead(batch.ahead, torch.zeros(1, 4, dtype=torch.float64))
    assert known.tolist() == [[True, False, False, True]]


@pytest.mark.parametrize("memory", ["disk", "prefetch", "device"])
def test_every_source_brings_the_rows_ahead_of_its_own_segments(tmp_path, memory):
    replay, rng = Rings(tmp_path, 2, 80, (4, 4, 3), 1), np.random.default_rng(0)
    for row in range(60):
        for ring in range(2):
            replay.add(ring, np.zeros((4, 4, 3), np.uint8), np.zeros(1), 100.0 * ring + row, row % 20 == 0)
    source = {"disk": replay, "prefetch": Prefetch(replay, pin=False)}.get(memory)
    source = source or OnDeviceReplay(replay, torch.device("cpu"))
    batches = Batches(replay, source, 6, 4, rng, ahead=5)
    for number in range(4):
        batch = {name: torch.as_tensor(value) for name, value in batches.sample(more=number < 3).items()}
        last, rows = batch["reward"][-1], batch["ahead_rows"][0]
        assert torch.equal(rows, (19 - last % 100 % 20).clamp(max=5).long())
        assert torch.equal(batch["ahead_reward"][0], torch.where(rows > 0, last + 1, 0.0))
    source.close()
