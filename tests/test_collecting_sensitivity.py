"""Small errors planted in collecting and evaluating: a named test must notice each."""

import copy
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
import test_playing
from planted import Positive, answers_changed, argument_changed, assert_noticed, rewards_changed

from denoised_mdp import collector as collector_module
from denoised_mdp import evaluation as evaluation_module
from denoised_mdp.agents.world_model_agent import WorldModelAgent
from denoised_mdp.collector import Collector, Overlap
from denoised_mdp.config.schema import Config
from denoised_mdp.envs.vector import EnvironmentPool
from denoised_mdp.evaluation import EvaluationResult
from denoised_mdp.rollout import Recorder


def rows(change):
    """Turns whose rows are changed."""
    return lambda turn: lambda self, agent: [[change(row) for row in rows] for rows in turn(self, agent)]


def begun_with(change):
    """A collector that is changed once it is made."""

    def plant(init):
        def wrong(self, *arguments):
            init(self, *arguments)
            change(self)

        return wrong

    return plant


def with_option(name, value):
    def change(self):
        self.config = copy.deepcopy(self.config)
        setattr(self.config.train, name, value(getattr(self.config.train, name)))

    return begun_with(change)


def forgets_where_episodes_begin(begin):
    def wrong(self, is_first):
        turn = begin(self, is_first)
        is_first[:] = False
        return turn

    return wrong


def forgets_the_carry(turn):
    def wrong(self, agent):
        self.carry = None
        return turn(self, agent)

    return wrong


def acts_on_the_observation_before(turn):
    def wrong(self, agent):
        before = list(self.observations)
        result = turn(self, agent)
        self.observations = [
            now if then is None or now is None else then for now, then in zip(self.observations, before, strict=True)
        ]
        return result

    return wrong


ROWS, ACTS = test_playing.test_rows_are_what_was_played, test_playing.test_the_agent_acts_on_what_is_there
SEEDS, RESTORED = (
    test_playing.test_only_the_first_episodes_are_seeded_each_with_its_own,
    test_playing.test_a_restored_collector_plays_on,
)
PREFILL = test_playing.test_the_prefill_is_uniform_and_as_long_as_said
BLOCK = test_playing.test_a_block_is_played_with_the_weights_that_the_learner_had

COLLECTOR = {
    "executed-another-action": (
        EnvironmentPool,
        "step",
        argument_changed("actions", lambda actions: [a / 2 for a in actions]),
        ROWS,
    ),
    "environments-swapped": (EnvironmentPool, "step", answers_changed(lambda answers: answers[::-1]), ROWS),
    "reward-halved": (EnvironmentPool, "step", rewards_changed(lambda value: value / 2), ROWS),
    "ends-forgotten": (Collector, "turn", rows(lambda row: row._replace(is_last=False)), ROWS),
    "beginnings-forgotten": (Collector, "turn", rows(lambda row: row._replace(is_first=False)), ROWS),
    "first-action-not-zero": (
        Collector,
        "turn",
        rows(lambda row: row._replace(action=np.ones(2)) if row.is_first else row),
        ROWS,
    ),
    "steps-without-repeat": (Config, "turn_steps", lambda _: property(lambda self: self.train.collect_envs), ROWS),
    "every-episode-seeded": (
        EnvironmentPool,
        "begin",
        lambda _: lambda self, which: self._all("reset", [5 if one else None for one in which]),
        SEEDS,
    ),
    "one-seed-for-all": (
        Collector,
        "__init__",
        begun_with(lambda self: setattr(self, "seeds", self.seeds[:1] * self.count)),
        SEEDS,
    ),
    "prefill-one-sided": (
        Collector,
        "__init__",
        begun_with(lambda self: setattr(self, "prefill", [*map(Positive, self.prefill)])),
        PREFILL,
    ),
    "prefill-one-stream": (
        Collector,
        "__init__",
        begun_with(lambda self: setattr(self, "prefill", self.prefill[:1] * 2)),
        PREFILL,
    ),
    "prefill-one-turn-longer": (Collector, "__init__", with_option("prefill_steps", lambda n: n + 4), PREFILL),
    "collects-without-noise": (Collector, "__init__", with_option("exploration_noise", lambda _: 0.0), ACTS),
    "carry-dropped": (Collector, "turn", forgets_the_carry, ACTS),
    "is-first-not-told": (Collector, "_begin_episodes", forgets_where_episodes_begin, ACTS),
    "old-observation": (Collector, "turn", acts_on_the_observation_before, ACTS),
    "one-exploration-stream": (
        Collector,
        "__init__",
        begun_with(lambda self: setattr(self, "exploration", self.exploration[:1] * 2)),
        ACTS,
    ),
    "streams-not-restored": (collector_module, "set_generator_state", lambda _: lambda *_: None, RESTORED),
    "environments-not-restored": (
        EnvironmentPool,
        "set_states",
        lambda _: lambda self, states: self.reset([0, 0]),
        RESTORED,
    ),
    "carry-not-restored": (
        WorldModelAgent,
        "carry",
        lambda carry: lambda self, **parts: carry(self, **{k: 0 * v for k, v in parts.items()}),
        RESTORED,
    ),
    "block-of-old-weights": (WorldModelAgent, "load_state_dict", lambda _: lambda self, *_: None, BLOCK),
    "block-one-turn-short": (Overlap, "_play", lambda play: lambda self: play(self)[:-1], BLOCK),
}


def keeps_the_carry(act):
    last = {}

    def wrong(self, observation, carry=None, **options):
        action, new = act(self, observation, last.get(len(observation)) if carry is None else carry, **options)
        last[len(observation)] = new
        return action, new

    return wrong


def zeros_instead(actions):
    return [np.zeros(2, np.float32) if action is None else action for action in actions]


def without_the_last(step):
    return answers_changed(lambda answers: [a and (a[0], 0.0 if a[2] or a[3] else a[1], *a[2:]) for a in answers])(step)


def one_sided(right):
    random = SimpleNamespace(default_rng=lambda seed: Positive(right.random.default_rng(seed)))
    return SimpleNamespace(**vars(right) | {"random": random})


ALONE = partial(test_playing.test_an_evaluation_plays_each_episode_as_if_alone, explore=None)
ALONE_EXPLORING = partial(test_playing.test_an_evaluation_plays_each_episode_as_if_alone, explore=0.3)
HELD_OUT = test_playing.test_seeds_of_evaluation_are_held_out_and_of_the_runs_own

EVALUATION = {
    "last-reward-lost": (EnvironmentPool, "step", without_the_last, ALONE),
    "rewards-discounted": (EnvironmentPool, "step", rewards_changed(lambda value: 0.99 * value), ALONE),
    "played-beyond-the-end": (EnvironmentPool, "step", argument_changed("actions", zeros_instead), ALONE),
    "carry-of-the-group-before": (WorldModelAgent, "act", keeps_the_carry, ALONE),
    "one-noise-for-a-group": (
        WorldModelAgent,
        "act",
        argument_changed("generator", lambda g: g[:1] * len(g) if isinstance(g, list) else g),
        ALONE_EXPLORING,
    ),
    "never-explores": (evaluation_module, "_play", argument_changed("explore", lambda _: None), ALONE_EXPLORING),
    "returns-of-others": (evaluation_module, "_play", lambda play: lambda *a, **o: play(*a, **o)[::-1], ALONE),
    "latent-of-another": (Recorder, "add", argument_changed("index", lambda _: 0), ALONE),
    "frames-of-the-step-before": (
        Recorder,
        "episode",
        lambda episode: lambda self: setattr(self, "rows", [*self.rows[:1], *self.rows[:-1]]) or episode(self),
        ALONE,
    ),
    "random-actions-one-sided": (
        evaluation_module,
        "np",
        one_sided,
        test_playing.test_a_random_evaluation_plays_uniform_actions,
    ),
    "one-action-more": (
        evaluation_module,
        "_play",
        argument_changed("max_steps", lambda most: most and most + 1),
        test_playing.test_an_evaluation_stops_after_so_many_actions,
    ),
    "noise-of-training": (
        WorldModelAgent,
        "act",
        lambda act: lambda self, *a, **o: act(self, *a, **o | {"generator": self.random}),
        test_playing.test_an_evaluation_draws_from_no_generator_of_training,
    ),
    "seeds-of-training": (
        test_playing,
        "evaluation_seeds",
        lambda seeds: lambda *a: [seed % 2**31 for seed in seeds(*a)],
        HELD_OUT,
    ),
    "standard-deviation-as-error": (
        EvaluationResult,
        "standard_error",
        lambda _: property(lambda self: float(np.std(self.returns, ddof=1))),
        test_playing.test_mean_and_standard_error_in_closed_form,
    ),
}

TABLE = COLLECTOR | EVALUATION


@pytest.mark.parametrize("name", TABLE)
def test_a_planted_error_shows(name, request, monkeypatch):
    assert_noticed(TABLE[name], request, monkeypatch)


def test_no_two_errors_have_one_name():
    assert len(TABLE) == sum(map(len, (COLLECTOR, EVALUATION)))
