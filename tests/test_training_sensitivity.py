"""Small errors planted in the training loop and in environments: a named test must notice each."""

from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
import test_environments
import test_envs
import test_playing
from planted import argument_changed, assert_noticed

from denoised_mdp import hooks
from denoised_mdp.collector import Sequential
from denoised_mdp.config.schedule import Schedule
from denoised_mdp.envs import pixels
from denoised_mdp.envs.distractors import camera_jitter
from denoised_mdp.envs.pixels import ActionRepeat, PixelEnv
from denoised_mdp.envs.toy import CountingEnv, ToyEnv
from denoised_mdp.replay.rings import Rings
from denoised_mdp.trainer import Trainer

SHORT = {"task": "dot", "suite": "toy"}


def runs_on(accept):
    """An episode's return goes on from that of the episode before."""

    def wrong(self, turn):
        before = list(self.episode_return)
        accept(self, turn)
        for ring, rows in enumerate(turn):
            if rows[0].is_first:
                self.episode_return[ring] += before[ring]

    return wrong


def keeps_the_window(log):
    def wrong(self, trainer):
        window = trainer.window
        log(self, trainer)
        trainer.window = window

    return wrong


def sums(log):
    def wrong(self, trainer):
        trainer.window = {name: (total, 1) for name, (total, _) in trainer.window.items()}
        log(self, trainer)

    return wrong


def counts_one_more(learn):
    def wrong(self):
        self.updates += 1
        learn(self)
        self.updates -= 1

    return wrong


def of_old_weights(acting):
    def wrong(self, updates):
        self._updates = updates
        return acting(self, updates)

    return wrong


STORED = test_playing.test_rows_are_stored_as_they_were_collected
RETURNS = test_playing.test_returns_of_training_are_sums_of_rewards_by_episode
HELD_OUT_WHILE_TRAINING = test_playing.test_evaluation_while_training_is_of_held_out_seeds_without_exploration
MEANS = test_playing.test_metrics_are_means_over_the_updates_since_the_last_entry

TRAINER = {
    "another-ring": (Trainer, "accept", argument_changed("turn", lambda turn: turn[::-1]), RETURNS),
    "returns-run-on": (Trainer, "accept", runs_on, RETURNS),
    "reward-not-stored": (Rings, "add", argument_changed("reward", lambda _: 0.0), STORED),
    "metrics-summed": (hooks.Log, "__call__", sums, MEANS),
    "window-kept": (hooks.Log, "__call__", keeps_the_window, MEANS),
    "policy-one-update-early": (
        Trainer,
        "learn",
        counts_one_more,
        test_playing.test_the_policy_learns_after_so_many_updates_of_the_model,
    ),
    "acts-with-old-weights": (
        Sequential,
        "acting",
        of_old_weights,
        test_playing.test_a_copy_acts_with_the_weights_of_now,
    ),
    "evaluates-other-seeds": (
        hooks,
        "evaluation_seeds",
        lambda _: lambda seed, count: list(range(count)),
        HELD_OUT_WHILE_TRAINING,
    ),
    "evaluates-another-environment": (
        hooks.Evaluate,
        "__call__",
        lambda right: (
            lambda self, *rest: (
                setattr(self, "make_environment", lambda: test_playing.make_env(**SHORT)) or right(self, *rest)
            )
        ),
        HELD_OUT_WHILE_TRAINING,
    ),
    "due-every-step-more": (
        Schedule,
        "due",
        argument_changed("step", lambda step: step - 2),
        test_playing.test_what_is_due_is_due_once_in_each_interval,
    ),
}


def averages(step):
    def wrong(self, action):
        observation, reward, *rest = step(self, action)
        return observation, reward / self.repeat, *rest

    return wrong


def does_not_stop(_):
    def wrong(self, action):
        results = [self.env.step(action) for _ in range(self.repeat)]
        return results[-1][0], sum(result[1] for result in results), *results[-1][2:]

    return wrong


def shows_the_frame_before(step):
    def wrong(self, action):
        before = self.world.frame()
        return before, *step(self, action)[1:]

    return wrong


def tells_the_truth_before(step):
    def wrong(self, action):
        before = self.info()
        return *step(self, action)[:-1], before

    return wrong


def stands_still(get_state):
    return lambda self: get_state(self) | {"drift": np.zeros(2)}


def moves_the_physics(reset):
    def wrong(self, *, seed=None, options=None):
        return reset(self, seed=(options or {}).get("distractor_seed", seed), options=options)

    return wrong


TRUTH = test_environments.test_truth_belongs_to_the_picture_and_follows_the_actions
OTHER_NOISE = test_environments.test_a_distractor_seed_changes_the_noise_alone
ENVIRONMENTS = {
    "rewards-averaged": (ActionRepeat, "step", averages, test_envs.test_counting_env_shows_episode_and_step),
    "repeats-beyond-the-end": (ActionRepeat, "step", does_not_stop, test_envs.test_action_repeat_stops_at_the_end),
    "frame-before-the-action": (
        PixelEnv,
        "step",
        shows_the_frame_before,
        test_envs.test_counting_env_shows_episode_and_step,
    ),
    "truth-before-the-action": (PixelEnv, "step", tells_the_truth_before, TRUTH),
    "actions-negated": (ToyEnv, "step", argument_changed("action", np.negative), TRUTH),
    "actions-not-clipped": (
        pixels,
        "np",
        lambda right: SimpleNamespace(**vars(right) | {"clip": lambda value, *_: value}),
        TRUTH,
    ),
    "truncation-is-termination": (
        PixelEnv,
        "step",
        lambda step: lambda self, a: (*(r := step(self, a))[:2], r[3], r[2], r[4]),
        test_envs.test_action_repeat_stops_at_the_end,
    ),
    "episodes-one-step-longer": (
        CountingEnv,
        "__init__",
        argument_changed("episode_steps", lambda steps: steps + 1),
        test_envs.test_action_repeat_stops_at_the_end,
    ),
    "first-seed-ignored": (
        PixelEnv,
        "__init__",
        argument_changed("seed", lambda _: None),
        test_envs.test_seed_of_the_first_reset,
    ),
    "every-reset-seeded": (
        PixelEnv,
        "reset",
        argument_changed("seed", lambda seed: seed or 0),
        test_envs.test_seed_of_the_first_reset,
    ),
    "seed-ignored": (
        PixelEnv,
        "reset",
        argument_changed("seed", lambda _: None),
        partial(test_envs.test_same_seed_same_frames, **SHORT),
    ),
    "distractor-seed-ignored": (PixelEnv, "reset", argument_changed("options", lambda _: None), OTHER_NOISE),
    "distractor-seed-moves-physics": (ToyEnv, "reset", moves_the_physics, OTHER_NOISE),
    "state-lacks-the-drift": (
        ToyEnv,
        "get_state",
        stands_still,
        partial(test_envs.test_state_round_trip, **SHORT, distractors={"camera_jitter": {}}),
    ),
    "jitter-the-other-way": (
        camera_jitter,
        "translate",
        lambda right: lambda image, dx, dy: right(image, -dx, dy),
        test_envs.test_camera_jitter_moves_the_picture_as_the_noise_says,
    ),
}

TABLE = TRAINER | ENVIRONMENTS


@pytest.mark.parametrize("name", TABLE)
def test_a_planted_error_shows(name, request, monkeypatch):
    assert_noticed(TABLE[name], request, monkeypatch)


def test_no_two_errors_have_one_name():
    assert len(TABLE) == sum(map(len, (TRAINER, ENVIRONMENTS)))
