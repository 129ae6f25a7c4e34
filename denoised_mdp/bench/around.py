"""The parts of the benchmark around the update: environments, acting, evaluation, replay, start."""

from __future__ import annotations

import contextlib
import functools
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from denoised_mdp.agents.registry import build_agent
from denoised_mdp.bench.estimate import ACTIONS, random_actions
from denoised_mdp.config.schema import Config
from denoised_mdp.device import configure_acting
from denoised_mdp.envs.options import fitting_distractors
from denoised_mdp.envs.vector import EnvironmentPool
from denoised_mdp.errors import UserError
from denoised_mdp.replay.rings import Rings
from denoised_mdp.run.environments import environment_maker
from denoised_mdp.run.machine import resident_memory

STAIRS = (
    {},
    {"video_background": {}},
    {"video_background": {}, "camera_jitter": {}},
    {"video_background": {}, "camera_jitter": {}, "noisy_sensor": {}},
)
"""the paper's distractors, added one at a time"""


def milliseconds(function: Callable[[], object], count: int) -> dict[str, float]:
    """Milliseconds per call, median over five rounds: wall and CPU time, including the renderer's threads."""
    results = []
    function()
    for _ in range(5):
        wall, cpu = time.perf_counter(), time.process_time()
        for _ in range(count):
            function()
        results.append((time.perf_counter() - wall, time.process_time() - cpu))
    wall, cpu = (1000 * statistics.median(column) / count for column in zip(*results, strict=True))
    return {"wall": wall, "cpu": cpu}


def environments(config: Config) -> dict[str, dict[str, Any]]:
    """Actions per second (with repeats and a frame) by distractors and quality, compared with unmodified dm_control.

    For tasks of the DeepMind Control Suite. Other suites are measured as configured.
    """
    table, frames = {}, {}
    cases = [(config.env.quality, config.distractors)]
    if config.env.suite == "dmc":
        fitting = set(fitting_distractors("dmc", config.env.task))
        stairs = [names for names in STAIRS if names.keys() <= fitting]
        cases = [("fast", names) for names in stairs] + [("faithful", names) for names in stairs[:2]]
    for quality, distractors in cases:
        env = environment_maker(config, distractors=distractors, quality=quality, episode_steps=10**9)()
        with contextlib.closing(env):
            env.reset(seed=0)
            env.action_space.seed(0)
            name = f"{' + '.join(distractors) or 'no distractors'}, {quality}"
            time_ = milliseconds(random_actions(env), 15)
            table[f"{name}, actions per second"] = 1000 / time_["wall"]
            table[f"{name}, ms per action"] = time_["wall"]
            table[f"{name}, cpu ms per action"] = time_["cpu"]
            if config.env.suite != "gym":  # there a frame is drawn once per action
                frames[name] = milliseconds(env.render, 15)["cpu"]
    if config.env.suite == "dmc":
        repeat = config.env.action_repeat
        plain, step = plain_dm_control(config.env.task, config.env.size, repeat)
        table["unmodified dm_control, cpu ms per action"] = repeat * step + plain
        fast = table["video_background, fast, cpu ms per action"]
        table["video_background, fast: times faster than unmodified dm_control"] = (repeat * step + plain) / fast
        frames["unmodified dm_control"] = plain
    return {"actions": table, "cpu ms per frame": frames}


def acting(config: Config, learner: torch.device) -> dict[str, dict[str, Any]]:
    """Milliseconds of acting in 1, 4 and 10 environments at once, on the CPU and on the learner's device.

    A call filters one frame of each, runs the policy, and returns the actions to the host: see `train.act_device`.
    """
    table = {}
    for where in dict.fromkeys(["cpu", str(learner)]):
        device, dtype = configure_acting(replace(config.train, act_device=where), learner)
        agent = build_agent(config, ACTIONS, device=device, dtype=dtype).eval()
        for count in (1, 4, 10):
            images = np.zeros((count, config.env.size, config.env.size, 3), np.uint8)
            generators = [torch.Generator(device).manual_seed(index) for index in range(count)]
            _, carry = agent.act(images)
            call = functools.partial(agent.act, images, carry, explore=0.3, generator=generators)
            time_ = milliseconds(call, 20)
            name = f"{device}, {count} at once"
            table |= {f"{name}, ms": time_["wall"], f"{name}, cpu ms": time_["cpu"]}
    return {"a call": table}


def plain_dm_control(task: str, size: int, repeat: int) -> tuple[float, float]:
    """CPU milliseconds of a frame and of a step in unmodified dm_control, at its default quality."""
    from denoised_mdp.envs import rendering  # noqa: F401  chooses the renderer's library before dm_control is imported

    from dm_control import suite  # isort: skip

    env = suite.load(*{"_".join(pair): pair for pair in suite.ALL_TASKS}[task])
    env.reset()
    action = np.zeros(env.action_spec().shape)
    frame = milliseconds(lambda: env.physics.render(size, size, camera_id=0), 5)["cpu"]
    return frame, milliseconds(lambda: env.step(action), 30)["cpu"]


def evaluations(config: Config) -> dict[str, dict[str, Any]]:
    """Seconds of an evaluation's environments by number of workers, extrapolated from 50 actions of each."""
    table, whole, episodes, actions = {}, config.episode_rows - 1, 10, 50
    for workers in sorted({0, 1, os.cpu_count() or 1}):
        began = time.perf_counter()
        with EnvironmentPool(environment_maker(config), episodes, workers=workers) as pool:
            pool.reset(range(episodes))
            start = time.perf_counter() - began
            rng = np.random.default_rng(0)
            began = time.perf_counter()
            for _ in range(actions):
                pool.step([pool.actions.random(rng) for _ in range(episodes)])
            seconds = time.perf_counter() - began
        table[f"{workers} workers, start, s"] = start
        table[f"{workers} workers, {episodes} episodes of {whole} actions, s"] = seconds / actions * whole
    return {"environments of an evaluation": table}


@contextlib.contextmanager
def filled_replay(config: Config, rows: int) -> Iterator[tuple[Path, Rings]]:
    """Yield a temporary folder and the full replay of `rows` rows in it, in episodes of the configured length."""
    shape = config.picture_shape
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (64, *shape), dtype=np.uint8)
    with tempfile.TemporaryDirectory() as folder:
        if Rings.bytes_needed(1, rows, shape, ACTIONS) > 0.8 * shutil.disk_usage(folder).free:
            raise UserError(f"{folder} has no room for a replay of {rows:,} rows: set TMPDIR to another disk.")
        replay = Rings(folder, 1, rows, shape, ACTIONS)
        for row in range(rows):
            replay.add(0, images[row % 64], np.zeros(ACTIONS, np.float32), 0.0, row % config.episode_rows == 0)
        with contextlib.closing(replay):
            yield Path(folder), replay


def replays(config: Config, rows: tuple[int, ...]) -> dict[str, dict[str, Any]]:
    """By number of rows: milliseconds per batch, added row and opening; memory after the batches; size on disk."""
    table, (length, size) = {}, (config.train.segment_length, config.train.batch_size)
    shape = config.picture_shape
    for count in rows:
        with filled_replay(config, count) as (folder, replay):
            rng = np.random.default_rng(0)
            new = 0, np.zeros(shape, np.uint8), np.zeros(ACTIONS, np.float32), 0.0, False
            batch = milliseconds(lambda replay=replay, rng=rng: replay.sample(size, length, rng), 10)
            table[f"{count:,} rows: the process's memory then, MB"] = resident_memory() / 1e6
            row = milliseconds(lambda replay=replay, new=new: replay.add(*new), 200)
            replay.flush()
            state = replay.state()
            again = functools.partial(Rings.open, folder, state, read_only=True)
            opening = milliseconds(lambda again=again: again().close(), 1)
            for name, time_ in ((f"batch of {size} x {length}", batch), ("one more row", row), ("opening", opening)):
                table |= {f"{count:,} rows: {name}, {unit}": time_[unit.split()[0]] for unit in ("wall ms", "cpu ms")}
            table[f"{count:,} rows: on disk, GB"] = replay.bytes / 1e9
    return {"by size": table}


def start_up(config: Config) -> dict[str, dict[str, Any]]:
    """Seconds of fresh processes that print help, import the library, or import it with PyTorch."""
    commands = {
        "denoised-mdp --help": [sys.executable, "-m", "denoised_mdp", "--help"],
        "import denoised_mdp": [sys.executable, "-c", "import denoised_mdp"],
        "import denoised_mdp.session": [sys.executable, "-c", "import denoised_mdp.session"],
    }
    table = {}
    for name, command in commands.items():
        seconds = []
        for _ in range(3):
            began = time.perf_counter()
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
            seconds.append(time.perf_counter() - began)
        table[f"{name}, s"] = min(seconds)
    return {"fresh processes": table}
