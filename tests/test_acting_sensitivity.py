"""Small errors planted in acting and in the agent's state: a named test must notice each."""

import dataclasses
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
import test_agent
import test_views
import torch
from planted import argument_changed, assert_noticed

from denoised_mdp.agents import base as agent_module
from denoised_mdp.agents.world_model_agent import WorldModelAgent
from denoised_mdp.policies import Policy


def keeps_the_action_before_its_noise(act):
    def wrong(self, *arguments, **options):
        seen, right = [], self.policy.act
        self.policy.act = lambda features, noise: seen.append(right(features, noise)) or seen[-1]
        action, carry = act(self, *arguments, **options)
        del self.policy.act
        return action, dataclasses.replace(carry, action=seen[-1])

    return wrong


def keeps_the_action_before_the_last(act):
    def wrong(self, observation, carry=None, **options):
        action, new = act(self, observation, carry, **options)
        return action, new if carry is None else dataclasses.replace(new, action=carry.action)

    return wrong


def shares_memory(act):
    def wrong(self, *arguments, **options):
        action, carry = act(self, *arguments, **options)
        own = carry.action.numpy()
        return (own if action.ndim == 2 else own[0]), carry

    return wrong


def forgets_in_place(act):
    """What zeroed the stored actions of a replay: shared memory, and a carry that is changed where episodes begin."""

    def wrong(self, observation, carry=None, *, is_first=None, **options):
        if carry is not None and is_first is not None:
            carry.action[torch.as_tensor(is_first)] = 0.0
        return shares_memory(act)(self, observation, carry, is_first=is_first, **options)

    return wrong


def same_noise_again(draw):
    seen = {}
    return lambda self, batch, size, generator: seen.setdefault((batch, size), draw(self, batch, size, generator))


def first_of(generator):
    return generator[0] if isinstance(generator, list) else generator


def keeps_its_generator(restore):
    def wrong(self, *arguments, **options):
        before = self.random.get_state()
        restore(self, *arguments, **options)
        self.random.set_state(before)

    return wrong


AGENT = {  # name: (owner, attribute, the wrong one from the right one, the test that notices)
    "carry-before-exploration": (
        WorldModelAgent,
        "act",
        keeps_the_action_before_its_noise,
        test_agent.test_the_carry_holds_the_action_that_was_returned,
    ),
    "filter-before-exploration": (
        WorldModelAgent,
        "act",
        keeps_the_action_before_its_noise,
        test_agent.test_acting_is_filtering_step_by_step,
    ),
    "carry-one-action-late": (
        WorldModelAgent,
        "act",
        keeps_the_action_before_the_last,
        test_agent.test_acting_is_filtering_step_by_step,
    ),
    "noise-of-the-squared-std": (
        WorldModelAgent,
        "act",
        argument_changed("explore", lambda std: std and std**2),
        partial(test_agent.test_exploration_adds_noise_of_its_std_to_a_sample_and_clips, explore=0.5),
    ),
    "no-exploration-noise": (
        WorldModelAgent,
        "act",
        argument_changed("explore", lambda std: std and 0.0),
        partial(test_agent.test_exploration_adds_noise_of_its_std_to_a_sample_and_clips, explore=0.25),
    ),
    "noise-clipped-too-early": (  # without clipping, acting refuses its own actions
        torch.Tensor,
        "clamp",
        lambda clamp: lambda self, *limits, **named: clamp(self, *(0.9 * limit for limit in limits), **named),
        partial(test_agent.test_exploration_adds_noise_of_its_std_to_a_sample_and_clips, explore=3.0),
    ),
    "one-noise-for-sample-and-exploration": (
        WorldModelAgent,
        "_noise",
        same_noise_again,
        partial(test_agent.test_exploration_adds_noise_of_its_std_to_a_sample_and_clips, explore=0.5),
    ),
    "mode-while-exploring": (
        Policy,
        "act",
        argument_changed("noise", lambda _: None),
        partial(test_agent.test_exploration_adds_noise_of_its_std_to_a_sample_and_clips, explore=0.0),
    ),
    "samples-without-exploring": (
        WorldModelAgent,
        "act",
        argument_changed("explore", lambda std: std or 0.0),
        test_agent.test_without_exploration_the_action_is_the_mode,
    ),
    "one-generator-for-all": (
        WorldModelAgent,
        "_noise",
        argument_changed("generator", first_of),
        test_agent.test_a_batch_acts_like_its_members,
    ),
    "global-noise": (
        WorldModelAgent,
        "_noise",
        argument_changed("generator", lambda _: None),
        test_agent.test_acting_and_updating_touch_no_global_randomness,
    ),
    "is-first-ignored": (
        WorldModelAgent,
        "act",
        argument_changed("is_first", lambda _: None),
        test_agent.test_is_first_begins_an_episode_and_leaves_the_others_alone,
    ),
    "is-first-for-all": (
        WorldModelAgent,
        "act",
        argument_changed("is_first", lambda first: None if first is None else bool(np.any(first))),
        test_agent.test_is_first_begins_an_episode_and_leaves_the_others_alone,
    ),
    "always-samples": (
        WorldModelAgent,
        "act",
        argument_changed("sample", lambda _: True),
        test_agent.test_without_samples_the_latent_is_the_posterior_mean,
    ),
    "never-samples": (
        WorldModelAgent,
        "act",
        argument_changed("sample", lambda _: False),
        test_agent.test_acting_is_filtering_step_by_step,
    ),
    "darker-images": (
        agent_module,
        "as_images",
        lambda right: lambda *given: (right(*given)[0] // 2, right(*given)[1]),
        test_agent.test_acting_is_filtering_step_by_step,
    ),
    "policy-never-waits": (
        WorldModelAgent,
        "update_eagerly",
        argument_changed("policy", lambda _: True),
        test_agent.test_a_policy_that_must_wait_stays_as_it_is,
    ),
    "actions-are-the-carrys": (
        WorldModelAgent,
        "act",
        shares_memory,
        partial(test_views.test_what_acting_returns_stays, explore=0.3),
    ),
    "carry-changed-in-place": (
        WorldModelAgent,
        "act",
        forgets_in_place,
        partial(test_views.test_what_acting_returns_stays, explore=0.3),
    ),
    "stored-actions-zeroed": (
        WorldModelAgent,
        "act",
        forgets_in_place,
        partial(test_views.test_every_stored_action_was_executed, options=["train.overlap"]),
    ),
    "state-is-the-agents-own": (
        agent_module,
        "copy",
        lambda _: SimpleNamespace(deepcopy=lambda thing: thing),
        partial(test_views.test_a_state_of_the_agent_is_a_copy, policy="backprop"),
    ),
    "generator-not-restored": (
        WorldModelAgent,
        "restore",
        keeps_its_generator,
        partial(test_agent.test_state_continues_bit_for_bit, policy="backprop"),
    ),
}


@pytest.mark.parametrize("name", AGENT)
def test_a_planted_error_shows(name, request, monkeypatch):
    assert_noticed(AGENT[name], request, monkeypatch)
