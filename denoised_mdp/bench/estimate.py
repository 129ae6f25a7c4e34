"""How long runs will take on this machine, from a few short measurements of each."""

from __future__ import annotations

import dataclasses
import math
import statistics
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager

import gymnasium as gym
import numpy as np
import torch

from denoised_mdp.agents.base import Agent
from denoised_mdp.agents.registry import build_agent
from denoised_mdp.config.policies import OwnPolicy
from denoised_mdp.config.schema import Config
from denoised_mdp.config.training import EVALUATED_AT_ONCE
from denoised_mdp.device import configure
from denoised_mdp.errors import blamed
from denoised_mdp.run.environments import environment_maker
from denoised_mdp.run.machine import crowded, random_batch

ACTIONS = 6  # dimensions of an action; they hardly change the cost of an update
LONGEST_CYCLE = 10  # updates; rarer work is left out


def project(config: Config, update: float, action: float, acting: float) -> dict[str, float]:
    """Return the seconds of a whole run in its parts: learning, collecting, evaluating.

    Worker processes and overlap are not counted. update, action, acting: seconds of one update, of one action in one
    environment, and of choosing the actions of all collecting environments together. Choosing those of episodes that
    are evaluated side by side is assumed to cost the same.
    """
    train, env = config.train, config.env
    rounds = -(-train.eval_episodes // EVALUATED_AT_ONCE)  # of episodes played side by side
    evaluation = env.episode_steps / env.action_repeat * (train.eval_episodes * action + rounds * acting)
    return {
        "learning": config.updates_due(train.total_steps) * update,
        "collecting": train.total_steps / env.action_repeat * (action + acting / train.collect_envs),
        "evaluating": config.evaluations * evaluation,
    }


def update_on_cpu(config: Config, rows: int, repeats: int = 1) -> tuple[float, int]:
    """Return the seconds of one full update on a CPU, and how many times larger its batch is than the measured one.

    Updates of about `rows` rows and of a quarter as many are timed on one thread, in CPU seconds, which other programs
    hardly disturb; the fastest of `repeats` counts. The time is extrapolated linearly in rows, so the fixed cost of an
    update counts once. The speedup from threads is measured on the larger of the two. The run's random numbers are left
    untouched.
    """
    sizes = [shrunk(config, size) for size in (rows // 4, rows)]
    with warnings.catch_warnings(), torch.random.fork_rng(devices=[]):
        warnings.simplefilter("ignore")  # training repeats the warnings
        device, dtype = configure(config.train)
        learners = [
            (build_agent(size, ACTIONS, device=device, dtype=dtype), random_batch(size, ACTIONS), size)
            for size in sizes
        ]
        with _one_thread():
            few, many = (min(update_seconds(*learner, repeats, time.process_time)) for learner in learners)
        gain = _gain_of_threads(lambda: learners[1][0].update(learners[1][1]))
    whole, less, measured = (one.batch_spec.batch_size * one.batch_spec.segment_length for one in (config, *sizes))
    row = 0.0 if measured == less else min((many - few) / (measured - less), many / measured)  # seconds per row
    return (many + max(row, 0.0) * (whole - measured)) / gain, whole // measured


def _gain_of_threads(update: Callable[[], object]) -> float:
    """The speedup of PyTorch's threads over one thread, in wall time: from 1 to their number.

    update: must have been called before. On a busy machine, threads wait for one another and gain nothing.
    """
    threads = torch.get_num_threads()
    if threads == 1 or crowded():
        return 1.0
    with _one_thread():
        (alone,) = timed(update, 1, time.perf_counter)
    (together,) = timed(update, 1, time.perf_counter)
    return min(max(alone / together, 1.0), threads)


def update_seconds(
    agent: Agent,
    batch: Mapping[str, np.ndarray],
    config: Config,
    repeats: int,
    clock: Callable[[], float] = time.perf_counter,
) -> list[float]:
    """Seconds per update, measured `repeats` times, each as the mean over a cycle of updates (`AgentConfig.cycle`).

    The first cycle allocates and is not counted.
    """
    cycle = min(config.agent.cycle, LONGEST_CYCLE)

    def update() -> None:
        for _ in range(cycle):
            agent.update(batch)
        if agent.device.type == "cuda":
            torch.cuda.synchronize()

    return [seconds / cycle for seconds in timed(update, 1 + repeats, clock)[1:]]


@contextmanager
def _one_thread() -> Iterator[None]:
    """Let PyTorch compute on one thread within the context: waiting threads would count as CPU time."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def shrunk(config: Config, rows: int) -> Config:
    """A configuration whose batch has about `rows` rows, if possible in as many segments as a segment has rows.

    If the policy imagines only from the last rows of a segment, their share of it stays about the same.
    """
    spec, policy = config.batch_spec, config.policy
    count = min(spec.batch_size, max(math.isqrt(rows), rows // spec.segment_length))
    length = min(spec.segment_length, rows // count)
    starts = getattr(policy, "imagine_rows", None) if isinstance(policy, OwnPolicy) else None
    if starts:
        policy = dataclasses.replace(policy, imagine_rows=max(1, round(starts * length / spec.segment_length)))
    train = dataclasses.replace(config.train, segment_length=length, batch_size=count)
    return dataclasses.replace(config, train=train, policy=policy)


class Hours:
    """Hours that each of many runs will take; what the runs share is timed once.

    On a CPU these are CPU hours of one thread, except for updates: hours on the run's threads.
    """

    def __init__(self) -> None:
        self._known: dict[str, tuple[float, ...]] = {}

    def of(self, config: Config) -> float:
        """Hours of a whole run."""
        train = config.train
        learner = (config.agent, config.model, config.policy, config.picture_shape, config.batch_spec)
        learner += (train.device, train.precision, train.threads, train.collect_envs)
        update, acting = self._once(repr(learner), lambda: _learner_seconds(config))
        place = repr((config.env, config.distractors, config.foreground))
        (action,) = self._once(place, lambda: (_action_seconds(config),))
        return sum(project(config, update, action, acting).values()) / 3600

    def _once(self, key: str, measure: Callable[[], tuple[float, ...]]) -> tuple[float, ...]:
        if key not in self._known:
            self._known[key] = measure()
        return self._known[key]


def _learner_seconds(config: Config) -> tuple[float, float]:
    """Seconds of an update and of choosing actions, see `acting_seconds`."""
    with warnings.catch_warnings(), torch.random.fork_rng():
        warnings.simplefilter("ignore")
        device, dtype = configure(config.train)
        agent, batch = build_agent(config, ACTIONS, device=device, dtype=dtype), random_batch(config, ACTIONS)
        if device.type == "cpu":  # CPU time, which other programs hardly change
            with _one_thread():
                acting = acting_seconds(agent, batch, config, 5, time.process_time)
            return update_on_cpu(config, rows=256, repeats=2)[0], acting
        acting = acting_seconds(agent, batch, config, 5)
        return statistics.median(update_seconds(agent, batch, config, 3)), acting


def acting_seconds(
    agent: Agent,
    batch: Mapping[str, np.ndarray],
    config: Config,
    repeats: int,
    clock: Callable[[], float] = time.perf_counter,
) -> float:
    """Seconds of choosing the actions of all collecting environments, on pictures from a batch."""
    pictures = batch["observation"][..., :3]
    pictures = pictures.reshape(-1, *pictures.shape[2:])
    pictures = pictures[np.arange(config.train.collect_envs) % len(pictures)]
    return median_seconds(lambda: agent.act(pictures), repeats, clock)


def _action_seconds(config: Config) -> float:
    """CPU seconds of one action in the environment, including its frame."""
    make = environment_maker(config, foreground=config.foreground)
    with blamed(f"{config.env.task} raised an error while its actions were timed"), closing(make()) as environment:
        environment.reset(seed=config.seed)
        environment.action_space.seed(config.seed)
        act = random_actions(environment)
        act()  # the first one allocates
        began = time.process_time()
        for _ in range(20):
            act()
        return (time.process_time() - began) / 20


def random_actions(environment: gym.Env) -> Callable[[], None]:
    """Return a function that takes one random action and, when an episode ends, begins the next."""

    def act() -> None:
        *_, terminated, truncated, _ = environment.step(environment.action_space.sample())
        if terminated or truncated:
            environment.reset()

    return act


def median_seconds(
    function: Callable[[], object], repeats: int, clock: Callable[[], float] = time.perf_counter
) -> float:
    """Median seconds of `repeats` calls, by `clock`."""
    return statistics.median(timed(function, repeats, clock))


def timed(function: Callable[[], object], repeats: int, clock: Callable[[], float]) -> list[float]:
    """Seconds of each of `repeats` calls, by `clock`."""
    seconds = []
    for _ in range(repeats):
        began = clock()
        function()
        seconds.append(clock() - began)
    return seconds
