"""The agent: acting, exploration, precision, saving."""

import numpy as np
import pytest
import torch
from conftest import random_batch, small_agent, small_config

from denoised_mdp.agent import build_agent


def observations(count, size=64, seed=0):
    return np.random.default_rng(seed).integers(0, 256, (count, size, size, 3), dtype=np.uint8)


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def test_acting_is_filtering_step_by_step():
    """The carry of `act` equals the sequence filter on the same frames, actions and noise."""
    agent, frames = small_agent(), observations(3)
    carry, actions, random = None, [], generator()
    for frame in frames:
        action, carry = agent.act(frame, carry, generator=random)
        assert action.shape == (2,) and action.dtype == np.float32
        actions.append(carry.action)
    batch = {
        "observation": torch.as_tensor(frames)[:, None],
        "action": torch.stack([torch.zeros_like(actions[0]), *actions[:-1]]),
        "is_first": torch.tensor([[True], [False], [False]]),
    }
    random = generator()
    noise = torch.cat([agent.world_model.rssm.draw_noise(1, 1, generator=random) for _ in frames])
    latent = agent.world_model.filter(**batch, noise=noise).latent
    torch.testing.assert_close(carry.latent.belief, latent.belief[-1])
    torch.testing.assert_close(carry.latent.state, latent.state[-1])


def test_a_batch_acts_like_its_members_and_reset_begins_an_episode():
    agent = small_agent()
    frames = observations(2)
    _, carry = agent.act(frames, generator=generator())
    carry.reset(1)
    _, alone = agent.act(frames[1], None, generator=generator(1))
    noise = torch.cat([agent.world_model.rssm.draw_noise(1, 2, generator=generator(2))])
    both = agent.observe_step(torch.as_tensor(frames), carry, generator(2))
    frame, no_action = torch.as_tensor(frames[1])[None, None], torch.zeros(1, 1, 2).double()
    first = agent.world_model.filter(frame, no_action, torch.ones(1, 1, dtype=torch.bool), noise[:, 1:])
    torch.testing.assert_close(both.latent.belief[1], first.latent.belief[0, 0])
    torch.testing.assert_close(both.latent.state[1], first.latent.state[0, 0])
    assert not torch.equal(both.latent.belief[0], both.latent.belief[1]) and alone.latent.belief.shape == (1, 11)


def test_exploration_adds_clipped_noise_to_a_sample():
    agent, frame = small_agent(), observations(1)[0]
    mode, _ = agent.act(frame, generator=generator())
    again, _ = agent.act(frame, generator=generator())
    assert np.array_equal(mode, again)
    samples = np.stack([agent.act(frame, explore=0.3, generator=generator(seed))[0] for seed in range(40)])
    assert np.abs(samples).max() <= 1.0 and samples.std() > 0.1
    loud = np.stack([agent.act(frame, explore=50.0, generator=generator(seed))[0] for seed in range(40)])
    assert (np.abs(loud) == 1.0).mean() > 0.9


def test_wrong_observation_is_named():
    with pytest.raises(ValueError, match="give uint8 \\[64, 64, 3\\]"):
        small_agent().act(observations(1, size=32)[0])


def test_acting_and_updating_touch_no_global_randomness():
    agent = small_agent()
    before = torch.random.get_rng_state()
    agent.update(random_batch())
    agent.act(observations(1)[0], explore=0.3, generator=generator())
    assert torch.equal(before, torch.random.get_rng_state())


@pytest.mark.parametrize("policy", ["backprop", "sac"])
def test_state_continues_bit_for_bit(policy):
    """Four updates in one go equal two, a save and restore, and two more."""
    config = small_config()
    if policy == "sac":
        from denoised_mdp.schema import SACConfig

        config.policy = SACConfig(hidden=8)
    straight, first, second = (build_agent(config, 2) for _ in range(3))
    batches = [random_batch(seed=seed) for seed in range(4)]
    for batch in batches:
        expected = straight.update(batch)
    for batch in batches[:2]:
        first.update(batch)
    second.restore(first.state())
    for batch in batches[2:]:
        metrics = second.update(batch)
    assert all(torch.equal(expected[name], metrics[name]) for name in expected)
    left, right = straight.state_dict(), second.state_dict()
    assert all(torch.equal(left[name], right[name]) for name in left)


def test_bf16_gives_nearly_the_same_gradients():
    """Large products in bf16 change the direction of the whole gradient by less than a percent."""
    config = small_config()
    config.model.depth, config.model.embed = 8, 64
    gradients, losses = [], []
    for dtype in (None, torch.bfloat16):
        agent = build_agent(config, 2, dtype=dtype)
        batch = agent.to_device(random_batch())
        batch["observation"] = torch.arange(64, dtype=torch.uint8)[:, None].expand(4, 3, 64, 64, 3).contiguous()
        noise = agent.world_model.rssm.draw_noise(4, 3, generator=generator())
        loss, _, metrics = agent.world_model.loss(**batch, noise=noise)
        loss.backward()
        parameters = [p for p in agent.world_model.parameters() if p.grad is not None]
        gradients.append(torch.cat([p.grad.flatten() for p in parameters]))
        losses.append(metrics["model/image_error"])
        assert all(p.dtype == torch.float32 for p in parameters)
    assert torch.cosine_similarity(*gradients, 0).item() > 0.99
    torch.testing.assert_close(*losses, rtol=1e-2, atol=0.0)
