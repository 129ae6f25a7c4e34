"""Hooks that come due while a run trains: log, evaluate, probe, render. (The session saves: it knows all parts.)"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import gymnasium as gym

from denoised_mdp.analysis.quick_probe import QuickProbe
from denoised_mdp.analysis.render import can_render, render
from denoised_mdp.config.schema import Config
from denoised_mdp.envs.factors import NoGroundTruth
from denoised_mdp.errors import UserError
from denoised_mdp.evaluation import evaluate, evaluation_seeds
from denoised_mdp.progress import Phase
from denoised_mdp.trainer import Hook, Trainer


def looking_hooks(config: Config, make_environment: Callable[[], gym.Env], videos: Path) -> dict[str, Hook]:
    """Return the hooks that only observe a run. videos: the folder for renderings."""
    train = config.train
    return {
        "log": Log(),
        "evaluate": Evaluate(
            make_environment, evaluation_seeds(config.seed, train.eval_episodes), train.eval_workers, train.workers
        ),
        "probe": Probe(make_environment),
        "render": Render(make_environment, evaluation_seeds(config.seed, 2), videos, train.exploration_noise),
    }


@dataclass
class Log:
    """Logs the mean of the metrics and the CPU time since the last log, if there were updates."""

    spent: float = field(default_factory=time.process_time)
    """CPU seconds of this process, all threads, at the last log"""

    @property
    def unlogged(self) -> float:
        """CPU seconds since the last log."""
        return time.process_time() - self.spent

    def __call__(self, trainer: Trainer) -> None:
        """Log both, with the number of updates so far."""
        if trainer.window:
            spent = self.unlogged
            self.spent += spent
            metrics = {name: total / count for name, (total, count) in trainer.window.items()}
            counted = {"train/updates": trainer.updates, "train/cpu_seconds": spent}
            trainer.logger.log(trainer.step, metrics | counted)
            trainer.window = {}


@dataclass
class Evaluate:
    """Plays held-out episodes, always the same ones, without sampling actions."""

    make_environment: Callable[[], gym.Env]
    seeds: Sequence[int]
    workers: int = 0
    kind: str = "process"

    def __call__(self, trainer: Trainer) -> None:
        """Log the mean return and its standard error."""
        began = time.perf_counter()
        with trainer.stop.at_once():
            result = evaluate(trainer.agent, self.make_environment, self.seeds, workers=self.workers, kind=self.kind)
        trainer.last_evaluation = result
        metrics = {
            "eval/return": result.mean,
            "eval/standard_error": result.standard_error,
            "eval/episodes": len(self.seeds),
            "eval/updates": trainer.updates,
            "eval/seconds": time.perf_counter() - began,
        }
        trainer.logger.log(trainer.step, metrics)


@dataclass
class Probe:
    """Measures how much of signal and noise each latent holds, in held-out episodes, always the same ones."""

    make_environment: Callable[[], gym.Env]
    probe: QuickProbe | None = None
    """made when the first probe is due"""
    possible: bool = True
    """the environment has a ground truth, as far as is known"""

    def __call__(self, trainer: Trainer) -> None:
        """Log the scores. Warn if there are none, only once if there never can be any."""
        if not self.possible:
            return
        began = time.perf_counter()
        try:
            with trainer.stop.at_once(), Phase("probing", 1, "agents"):
                self.probe = self.probe or QuickProbe(self.make_environment)
                scores = self.probe(trainer.agent)
        except NoGroundTruth as error:
            self.possible = False
            warnings.warn(f"no probes in this run: {error} Set train.probe_every=0.", stacklevel=2)
        except UserError as error:  # a missing point of a curve must not end the run
            warnings.warn(f"no probe of step {trainer.step:,}: {error}", stacklevel=2)
        else:
            trainer.logger.log(trainer.step, scores | {"probe/seconds": time.perf_counter() - began})


@dataclass
class Render:
    """Renders what each latent holds, in held-out episodes."""

    make_environment: Callable[[], gym.Env]
    seeds: Sequence[int]
    folder: Path
    explore: float
    possible: bool = True
    """the agent can be rendered, as far as is known"""

    def __call__(self, trainer: Trainer) -> None:
        """Write a video and a picture, and log the picture. Warn if that fails, only once if it never can work."""
        if not self.possible:
            return
        stem = self.folder / f"step_{trainer.step:09d}"
        try:
            with trainer.stop.at_once():
                paths = render(trainer.agent, self.make_environment, self.seeds, stem, explore=self.explore)
        except UserError as error:  # a missing picture must not end the run
            self.possible = can_render(trainer.agent)
            warnings.warn(f"no video of step {trainer.step:,}: {error}", stacklevel=2)
        else:
            trainer.logger.image(trainer.step, "rows", paths[0])
