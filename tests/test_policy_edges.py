"""Batches without a single step within an episode; zero as a target entropy; what metrics say."""

import numpy as np
import pytest
import torch
from conftest import small_agent
from pixel_case import lively_agent, tiny_step
from test_policies import policy_batch

from denoised_mdp.config.schema import BackpropConfig, ReinforceConfig, SACConfig
from denoised_mdp.options import arguments
from denoised_mdp.policies import BackpropPolicy, ReinforcePolicy
from denoised_mdp.policies.sac import SACPolicy


def test_sac_learns_nothing_where_every_row_begins_an_episode():
    """Segments may run over the ends of episodes; of one-row episodes there is no transition, and no nan."""
    agent = small_agent()
    policy, batch = SACPolicy(agent.mdp, **arguments(SACConfig(hidden=8))).double(), policy_batch(agent)
    batch.is_first[:] = True
    before = [p.clone() for p in policy.parameters()]
    metrics = policy.update(batch, agent.mdp, torch.Generator().manual_seed(0))
    assert all(value == 0 for name, value in metrics.items() if name != "policy/temperature")
    for old, new in zip(before, policy.parameters(), strict=True):
        torch.testing.assert_close(new, old, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(("kind", "config"), [(BackpropPolicy, BackpropConfig), (ReinforcePolicy, ReinforceConfig)])
def test_stored_rows_of_which_nothing_is_known_teach_nothing(kind, config):
    agent = small_agent()
    options = arguments(config(hidden=8, value="gaussian", slow_value=0.0))
    policy, batch = kind(agent.mdp, **options).double(), policy_batch(agent)
    batch.is_first[:] = True
    loss = policy.replay_loss(batch)
    loss.backward()
    assert loss == 0 and all(p.grad is None or not p.grad.any() for p in policy.value.parameters())


@pytest.mark.parametrize(("given", "wanted"), [(0.0, 0.0), (-3.0, -3.0), (None, -2.0)])
def test_a_target_entropy_of_zero_is_one(given, wanted):
    agent = small_agent()
    assert SACPolicy(agent.mdp, **arguments(SACConfig(hidden=8, target_entropy=given))).target_entropy == wanted
    overrides = [] if given is None else [f"agent.target_entropy={given}"]
    assert lively_agent("sac_pixels", *overrides).target_entropy == wanted


def test_the_entropy_in_the_metrics_of_sac_is_that_of_its_actions():
    """Of a narrow actor it is low, of a wide one higher; minus the mean log density of the actor's step."""
    agent = small_agent()
    batch, found = policy_batch(agent), []
    for std in (0.01, 1.0):
        policy = SACPolicy(agent.mdp, **arguments(SACConfig(hidden=8, initial_std=std))).double()
        noise = policy.draw_noise(batch, agent.mdp, torch.Generator().manual_seed(0))
        _, log_prob = policy.actor.sample_with_log_prob(batch.features[:-1], noise[1])
        metrics = policy.update(batch, agent.mdp, noise=noise)
        assert metrics["policy/entropy"].item() == pytest.approx(-log_prob.mean().item())
        found.append(metrics["policy/entropy"].item())
    assert found[0] < -5 < -1 < found[1] < 2 * np.log(2) + 1e-6, "at most that of a uniform action"


def test_the_entropy_in_the_metrics_of_pixel_sac_is_that_of_its_actions():
    agent = lively_agent("sac_pixels")
    step, now, _ = tiny_step(agent)
    agent.random.manual_seed(0)
    noise = torch.randn(step.action.shape, generator=torch.Generator().manual_seed(0), dtype=now.dtype)
    log_prob = agent.actor.sample(agent.encoder.convolve(now), noise)[1].detach()
    found = agent.actor_step(step, now)["policy/entropy"]
    torch.testing.assert_close(found, -log_prob[step.exists.bool()].mean())


def test_what_is_logged_of_imagination():
    """Means over all imagined latents; of actions, of their size."""
    agent = small_agent()
    policy, batch = agent.policy, policy_batch(agent)
    noise = policy.draw_noise(batch, agent.mdp, torch.Generator().manual_seed(0))
    *_, metrics = policy.losses(batch, agent.mdp, noise)
    features, actions = policy.imagine(batch, agent.mdp, noise)
    expected = {
        "imagined_reward": agent.mdp.reward(features).mean(),
        "value": policy.value(features).mean(),
        "action_magnitude": actions.abs().mean(),
    }
    for name, value in expected.items():
        torch.testing.assert_close(metrics[f"policy/{name}"], value.detach())
    assert metrics["policy/action_magnitude"] > actions.mean().abs() + 0.1
