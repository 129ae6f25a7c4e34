"""Whole runs that take seconds, and ways to stop them anywhere."""

from __future__ import annotations

import json
import os
import signal
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

from denoised_mdp.config import load_config
from denoised_mdp.config.schedule import Schedule
from denoised_mdp.config.schema import Config
from denoised_mdp.run.folder import RunFolder
from denoised_mdp.run.load import prepare
from denoised_mdp.run.signals import StopRequest
from denoised_mdp.session import Session, train
from denoised_mdp.trainer import Trainer

TINY = [
    "preset=debug",
    "env=toy",
    "env.task=dot",
    "distractors=none",
    "env.episode_steps=40",
    "train.total_steps=200",
    "train.prefill_steps=80",
    "train.train_every=40",
    "train.eval_every=80",
    "train.render_every=0",
    "train.checkpoint_every=80",
    "train.log_every=40",
    "train.deterministic=true",
    "train.probe_every=0",
]


def tiny(path: Path, *overrides: str) -> Config:
    """The configuration of a run of 200 steps in a toy environment: 100 actions and 6 updates."""
    return load_config([*TINY, f"run_dir={path}", *overrides])


def finished_run(folder: Path, *overrides: str) -> Path:
    """The folder of a whole run in a new folder, for a fixture that several tests share."""
    assert train(tiny(folder / "run", *overrides))
    torch.set_deterministic_debug_mode("default")  # such a run changes the whole process
    return folder / "run"


def lines(path: Path) -> list[dict]:
    """What metrics.jsonl holds."""
    return [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]


def forked(body: Callable[[], int]) -> tuple[int, int]:
    """Call something in a forked process: (its id, a pipe of its output). Its answer is the exit code.

    What this process has imported need not be imported again, which takes seconds. It ends after 280 seconds, before
    the limit of a test, which cannot end it.
    """
    reading, writing = os.pipe()
    if child := os.fork():
        os.close(writing)
        return child, reading
    code = 70
    try:
        os.dup2(writing, 1)
        os.dup2(writing, 2)
        os.close(reading)
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(280)
        sys.stdout, sys.stderr = (os.fdopen(number, "w", buffering=1) for number in (1, 2))
        code = body()
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


def finish(child: int, reading: int) -> tuple[int, str]:
    """Wait for a process: (exit code, output)."""
    with os.fdopen(reading, errors="replace") as output:
        text = output.read()
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), text


def stop_after_units(trainer: Trainer, count: int) -> None:
    """Let the loop end after `count` units of work: actions or updates."""
    done = iter(range(1, count + 1))

    def counted(unit):
        def run():
            unit()
            trainer.stop.requested = next(done) == count

        return run

    trainer.collect, trainer.learn = counted(trainer.collect), counted(trainer.learn)


def run_units(config: Config, count: int) -> None:
    """Begin or continue a run in a new process's way, and stop it after so many units of work."""
    run = RunFolder.create(config.run_dir)
    prepare(config, run)
    session = Session(config, run)
    stop_after_units(session.trainer, count)
    session.trainer.run_to_end()
    session.close()


def run_in_parts(config: Config, *counts: int) -> None:
    """One part per count: so many units of work, then a stop; at last to the end."""
    for count in (*counts, 10**9):
        run_units(config, count)


class Recorder:
    """Stands for a part of a trainer: keeps the arguments of each call by the method's name, and returns None."""

    def __init__(self, **methods):
        self.calls: dict[str, list] = {}
        vars(self).update(methods)

    def __getattr__(self, name):
        return lambda *arguments, **options: self.calls.setdefault(name, []).append((*arguments, *options.values()))


def bare_trainer(config: Config, **parts: Any) -> Trainer:
    """A trainer of stand-ins, but for its schedule and those `parts` that are given."""
    names = ("agent", "batches", "logger", "nan_check", "progress")
    stand_ins = {name: Recorder() for name in names} | {"hooks": {}, "stop": StopRequest()}
    collector = SimpleNamespace(count=config.train.collect_envs)
    return Trainer(**stand_ins | {"collector": collector, "schedule": Schedule(config)} | parts)
