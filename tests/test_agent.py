"""The agent: acting, exploration, precision, saving."""

import numpy as np
import pytest
import torch
from conftest import random_batch, small_agent, small_config

from denoised_mdp.agents.registry import build_agent
from denoised_mdp.agents.world_model_agent import WorldModelAgent
from denoised_mdp.seeding import torch_seed


def observations(count, size=64, seed=0):
    return np.random.default_rng(seed).integers(0, 256, (count, size, size, 3), dtype=np.uint8)


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def draws(agent, batch, steps, seed=0):
    """The noise that `act` draws with `explore`, in its order: of the state, of the action, of exploration."""
    random, sizes = generator(seed), (agent.world_model.rssm.layout.state_size, 2, 2)
    return [[torch.randn(batch, size, generator=random, dtype=torch.float64) for size in sizes] for _ in range(steps)]


def test_acting_is_filtering_step_by_step():
    """The latents of `act` are those of the sequence filter on the frames, the *returned* actions and the noise."""
    agent, frames = small_agent("2c"), observations(6).reshape(3, 2, 64, 64, 3)
    carry, actions, latents, random = None, [np.zeros((2, 2))], [], generator()
    for frame in frames:
        action, carry = agent.act(frame, carry, explore=0.4, generator=random)
        assert action.shape == (2, 2) and action.dtype == np.float32
        actions.append(action)
        latents.append(carry.latent)
    noise = torch.stack([state for state, _, _ in draws(agent, 2, 3)])
    batch = {"observation": torch.as_tensor(frames), "action": torch.as_tensor(np.stack(actions[:-1])).double()}
    expected = agent.world_model.filter(**batch, is_first=torch.zeros(3, 2, dtype=torch.bool), noise=noise).latent
    for t, latent in enumerate(latents):
        torch.testing.assert_close(latent.belief, expected.belief[t], rtol=1e-5, atol=1e-6)  # actions are float32
        torch.testing.assert_close(latent.state, expected.state[t], rtol=1e-5, atol=1e-6)


def test_the_carry_holds_the_action_that_was_returned():
    agent, carry, random = small_agent(), None, generator()
    for frame in observations(3):
        for explore in (None, 0.0, 0.5):
            action, carry = agent.act(frame, carry, explore=explore, generator=random)
            assert np.array_equal(carry.action.float().numpy(), action[None])


def test_a_carry_may_be_made_of_tensors_of_any_type():
    agent = small_agent("2b").float()
    fresh = agent.world_model.initial(1)
    action = torch.zeros(1, 2, dtype=torch.float64)
    made = agent.carry(belief=fresh.belief.half(), state=fresh.state.double(), action=action)
    assert {tensor.dtype for tensor in (made.latent.belief, made.latent.state, made.action)} == {torch.float32}


def test_the_carry_has_its_copy_of_the_action_before_anything_waits(monkeypatch):
    """On a GPU, what is queued after the wait for the host's copy may not be done when another thread reads it."""
    done = []

    class Watched(torch.Tensor):
        @classmethod
        def __torch_function__(cls, func, types, args=(), kwargs=None):
            done.append(func.__name__)
            return super().__torch_function__(func, types, args, kwargs)

    agent = small_agent()
    choose = agent.choose
    monkeypatch.setattr(agent, "choose", lambda *arguments: choose(*arguments).as_subclass(Watched))
    agent.act(observations(1))
    assert "clone" in done and done.index("clone") < done.index("cpu")


@pytest.mark.parametrize("explore", [0.0, 0.25, 0.5, 3.0])
def test_exploration_adds_noise_of_its_std_to_a_sample_and_clips(explore):
    agent, frames = small_agent(), observations(4)
    action, carry = agent.act(frames, explore=explore, generator=generator())
    ((_, noise, extra),) = draws(agent, 4, 1)
    sample = agent.policy.actor.sample(carry.latent.features("x"), noise)
    np.testing.assert_allclose(action, (sample + explore * extra).clamp(-1, 1).detach(), rtol=1e-6)
    assert explore < 1 or (np.abs(action) == 1).any()


def test_without_exploration_the_action_is_the_mode():
    agent, frames = small_agent(), observations(4)
    action, carry = agent.act(frames, generator=generator())
    np.testing.assert_allclose(action, agent.policy.actor(carry.latent.features("x"))[0].tanh().detach(), rtol=1e-6)


def test_a_batch_acts_like_its_members():
    """Each with a generator of its own, over several steps; nothing that one does reaches another."""
    agent, frames = small_agent("2c"), observations(6).reshape(3, 2, 64, 64, 3)
    both, together = [generator(1), generator(2)], None
    alone = [[one, None] for one in (generator(1), generator(2))]
    for frame in frames:
        actions, together = agent.act(frame, together, explore=0.3, generator=both)
        for i, member in enumerate(alone):
            action, member[1] = agent.act(frame[i], member[1], explore=0.3, generator=member[0])
            np.testing.assert_allclose(actions[i], action, rtol=1e-6)
            torch.testing.assert_close(together.latent.belief[i], member[1].latent.belief[0])


def test_is_first_begins_an_episode_and_leaves_the_others_alone():
    agent, frames = small_agent("2c"), observations(4).reshape(2, 2, 64, 64, 3)
    _, carry = agent.act(frames[0], explore=0.3, generator=generator())
    restarted, on, fresh = (
        agent.act(frames[1], old, is_first=is_first, generator=generator(1))
        for old, is_first in ((carry, np.array([False, True])), (carry, None), (None, None))
    )
    for row, (actions, expected) in enumerate((on, fresh)):
        assert np.array_equal(restarted[0][row], actions[row])
        for part in ("belief", "state"):
            assert torch.equal(getattr(restarted[1].latent, part)[row], getattr(expected.latent, part)[row])
    assert not torch.equal(on[1].latent.belief, fresh[1].latent.belief)
    everywhere = agent.act(frames[1], carry, is_first=True, generator=generator(1))
    assert torch.equal(everywhere[1].latent.state, fresh[1].latent.state)


def test_without_samples_the_latent_is_the_posterior_mean():
    """And so nothing is drawn: repeated with any generator, the mode is the same action."""
    agent, frames = small_agent("2c"), observations(4).reshape(2, 2, 64, 64, 3)
    carry, random, before = None, generator(), generator().get_state()
    for frame in frames:
        action, carry = agent.act(frame, carry, sample=False, generator=random)
    assert torch.equal(random.get_state(), before)
    played = torch.zeros(2, 2, 2).double()
    played[1] = agent.act(frames[0], sample=False)[1].action
    batch = {"observation": torch.as_tensor(frames), "action": played, "is_first": torch.zeros(2, 2, dtype=torch.bool)}
    filtered = agent.world_model.filter(**batch, noise=torch.zeros(2, 2, 9).double())
    torch.testing.assert_close(carry.latent.state, torch.cat([one.mean[-1] for one in filtered.posterior.values()], -1))
    np.testing.assert_allclose(agent.modes(batch)[-1], action, rtol=1e-6)
    sampled, _ = agent.act(frames[1], None, generator=random)
    assert not np.array_equal(sampled, agent.act(frames[1], None, sample=False)[0])


def test_optimizers_of_one_name_are_refused():
    """Else a checkpoint would hold one of them."""
    agent = small_agent()
    agent.policy.optimizers["model"] = agent.policy.optimizers["actor"]
    with pytest.raises(ValueError, match="both have an optimizer model"):
        WorldModelAgent(agent.world_model, agent.policy, agent.mdp)


FRAME = observations(1)[0]
FRAMES = observations(3)


@pytest.mark.parametrize(
    ("observation", "words"),
    [
        (None, "observation is None"),
        ("picture.png", "observation is 'picture.png'"),
        (FRAME / np.float32(255), r"observation is float32 \[64, 64, 3\]"),
        (np.full((64, 64, 3), np.nan), "observation is float64"),
        (FRAME > 127, "observation is bool"),
        (FRAME.astype(np.int8), "observation is int8"),
        (torch.as_tensor(FRAME).float(), "observation is float32"),
        (observations(1, size=32)[0], r"observation is uint8 \[32, 32, 3\]"),
        (FRAME.transpose(2, 0, 1), r"observation is uint8 \[3, 64, 64\]"),
        (FRAMES[:0], r"observation is uint8 \[0, 64, 64, 3\]"),
        (FRAMES[None], r"observation is uint8 \[1, 3, 64, 64, 3\]"),
        ([FRAME, FRAME[:5]], "observation is a list of unequal parts"),
    ],
)
def test_wrong_observations_are_named(observation, words):
    with pytest.raises(ValueError, match=rf"{words}.*: give uint8 \[64, 64, 3\], or \[B, 64, 64, 3\].*0 to 255"):
        small_agent().act(observation)


@pytest.mark.parametrize("observation", [list(FRAMES), torch.as_tensor(FRAMES), FRAMES[:, ::-1].copy()[:, ::-1]])
def test_observations_of_other_containers_are_the_same(observation):
    agent = small_agent()
    assert np.array_equal(agent.act(observation, sample=False)[0], agent.act(FRAMES, sample=False)[0])


@pytest.mark.filterwarnings("error")
def test_an_observation_may_be_read_only():
    frame = FRAME.copy()
    frame.flags.writeable = False
    small_agent().act(frame)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"explore": -0.1}, "explore is -0.1: give None .* at least 0"),
        ({"explore": float("nan")}, "explore is nan"),
        ({"explore": float("inf")}, "explore is inf"),
        ({"explore": True}, "explore is True"),
        ({"explore": "0.3"}, "explore is '0.3'"),
        ({"sample": None}, "sample is None: give True or False"),
        ({"is_first": [True, False]}, r"is_first is bool \[2\]: give a bool, or bool \[3\]"),
        ({"is_first": [1, 0, 0]}, r"is_first is int64 \[3\]"),
        ({"generator": [generator()] * 2}, "generator is a list of 2: give one for each of the 3"),
        ({"generator": np.random.default_rng(0)}, "generator is .*: give a torch.Generator"),
        ({"generator": [generator(), 1, 2]}, "give a torch.Generator, or a list"),
        ({"carry": 1}, "carry is 1: give what the last call of act returned"),
        ({"carry": small_agent().act(FRAMES[:2])[1]}, "carry is of 2 environments, the observation of 3"),
        ({"carry": small_agent("2c").act(FRAMES)[1]}, "carry is of another agent"),
        ({"carry": small_agent(actions=3).act(FRAMES)[1]}, "carry is of another agent"),
    ],
)
def test_wrong_arguments_are_named(options, words):
    with pytest.raises(ValueError, match=words):
        small_agent().act(FRAMES, **options)


def test_an_agent_knows_its_configuration():
    config = small_config()
    agent = build_agent(config, 2)
    assert agent.config == config
    config.env.action_repeat = 7  # the caller's own
    assert agent.config.env.action_repeat == 2


def test_a_policy_that_must_wait_stays_as_it_is():
    """While the world model learns."""
    agent = small_agent()
    before = {name: value.clone() for name, value in agent.state_dict().items()}
    for policy in (False, True):
        agent.update(random_batch(), policy=policy)
        now = agent.state_dict()
        moved = {name.split(".")[0] for name, value in before.items() if not torch.equal(now[name], value)}
        assert moved == ({"world_model", "policy"} if policy else {"world_model"})


def test_acting_and_updating_touch_no_global_randomness():
    agent = small_agent()
    before = torch.random.get_rng_state()
    agent.update(random_batch())
    agent.act(observations(1)[0], explore=0.3, generator=generator())
    assert torch.equal(before, torch.random.get_rng_state())


def test_noise_of_updates_is_drawn_from_a_stream_of_the_runs_own_seed():
    config = small_config()
    config.seed = 3
    assert build_agent(config, 2).random.initial_seed() == torch_seed(3, "update")


@pytest.mark.parametrize("policy", ["backprop", "sac"])
def test_state_continues_bit_for_bit(policy):
    """Four updates in one go equal two, a save and restore, and two more."""
    config = small_config()
    if policy == "sac":
        from denoised_mdp.config.schema import SACConfig

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
        noise = agent.world_model.draw_noise(4, 3, generator=generator())
        loss, *_, metrics = agent.world_model.loss(**batch, noise=noise)
        loss.backward()
        parameters = [p for p in agent.world_model.parameters() if p.grad is not None]
        gradients.append(torch.cat([p.grad.flatten() for p in parameters]))
        losses.append(metrics["model/image_error"])
        assert all(p.dtype == torch.float32 for p in parameters)
    assert torch.cosine_similarity(*gradients, 0).item() > 0.99
    torch.testing.assert_close(*losses, rtol=1e-2, atol=0.0)
