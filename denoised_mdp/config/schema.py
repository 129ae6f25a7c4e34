"""Every option of the software: its name, default, allowed range and meaning, side by side.

The dataclasses are the single source of defaults; the YAML files in ``configs/`` only choose among them
(groups and presets). Defaults are the values of Wang et al. 2022. "Steps" are always environment steps before
action repeat.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from denoised_mdp.config.agents import AgentConfig, BatchSpec, CURLConfig, DBCConfig, PISACConfig, PixelSACConfig
from denoised_mdp.config.models import ModelConfig, RePoConfig, TIAConfig
from denoised_mdp.config.policies import BackpropConfig, ReinforceConfig, SACConfig
from denoised_mdp.config.training import ReplayConfig, TrainConfig
from denoised_mdp.envs.suites import SUITES, USUAL
from denoised_mdp.options import group, option
from denoised_mdp.plugins import Registry


@dataclass
class EnvConfig:
    """The environment, without its distractors; the fields are keyword arguments of ``make_env``."""

    suite: str = option("dmc", "where the task comes from", choices=SUITES)
    task: str = option("cheetah_run", "domain and task, joined by an underscore; with env=gym an id (or env.id=...)")
    size: int = option(
        USUAL["size"],
        "height and width of the observation in pixels; a world model's: 32, 48, 64 or 96",
        low=32,
        high=256,
    )
    action_repeat: int = option(USUAL["action_repeat"], "environment steps per action", low=1)
    episode_steps: int = option(USUAL["episode_steps"], "length of an episode in steps", low=1)
    camera: int = option(0, "number of the task's camera", low=0)
    quality: str = option("fast", "rendering: fast (no shadows) or faithful", choices=("fast", "faithful"))
    reward: str = option("dense", "RoboDesk's reward; other suites have one", choices=("dense", "sparse", "success"))
    clips: str = option("procedural", "background clips: procedural[:SEED], kinetics[:CLASS], folder or glob of videos")


TABLES: Registry[Path] = Registry("model")
"""plug-ins' tables of latents: name -> YAML file; the package's own tables are the files in ``configs/model``"""
MODELS: Registry[type[ModelConfig]] = Registry("model", {"denoised": ModelConfig, "repo": RePoConfig, "tia": TIAConfig})


@dataclass
class Config:
    """The whole configuration of a run."""

    run_dir: str | None = option(None, "folder of the run; null: runs/ and a name derived from the choices")
    seed: int = option(0, "seed of everything random", low=0, high=2**31 - 1)
    preset: str = option("none", "the preset that the run started from")
    env: EnvConfig = group(EnvConfig, "environment")
    distractors: dict[str, dict[str, Any]] = group(dict, "name of each distractor and its options")
    agent: AgentConfig = group(AgentConfig, "agent")
    model: ModelConfig = group(ModelConfig, "world model")
    policy: BackpropConfig | ReinforceConfig | SACConfig = group(BackpropConfig, "policy")
    train: TrainConfig = group(TrainConfig, "training loop and machine")
    replay: ReplayConfig = group(ReplayConfig, "replay on disk")

    @property
    def method(self) -> tuple[str, str]:
        """The names of model and policy; for an agent without a world model, its name and an empty text."""
        return (self.model.name, self.policy.name) if self.agent.has_model else (self.agent.name, "")

    @property
    def batch_spec(self) -> BatchSpec:
        """The batches that the agent needs from the replay."""
        return self.agent.batch_spec(self)

    @property
    def alpha(self) -> float:
        """Weight of all KL terms: ``model.kl.alpha``, or by the pixels: 1 at 64, 2 at 96 (Wang et al. 2022)."""
        if self.model.kl.alpha is not None:
            return self.model.kl.alpha
        return 2.0 if self.env.size == 96 else (self.env.size / 64) ** 2

    @property
    def foreground(self) -> bool:
        """Whether the replay holds each picture twice, the second time with a black background, [H, W, 6]."""
        return self.model.target == "foreground"

    @property
    def picture_shape(self) -> tuple[int, int, int]:
        """Shape of the pictures in a row of the replay."""
        return self.env.size, self.env.size, 6 if self.foreground else 3

    @property
    def episode_rows(self) -> int:
        """Rows of a whole episode: one per action, and one more for the first observation."""
        return math.ceil(self.env.episode_steps / self.env.action_repeat) + 1

    @property
    def turn_steps(self) -> int:
        """Steps of one turn: one action in every collecting environment."""
        return self.train.collect_envs * self.env.action_repeat

    def times_due(self, step: int, every: int) -> int:
        """How often something has come due by a step: at the end of the prefill and every `every` steps from there.

        Before the end of the prefill the count is 0 or negative.
        """
        return 1 + (step - self.train.prefill_steps) // every

    def updates_due(self, step: int) -> int:
        """Number of updates due by a step: a round after the prefill, then a round every `train_every` steps.

        No round is due at the last step, unless the prefill ends there: no action would follow it.
        """
        last = max(self.train.total_steps - 1, self.train.prefill_steps)
        rounds = max(0, self.times_due(min(step, last), self.train.train_every))
        more = 0 if self.train.first_updates is None else self.train.first_updates - self.train.updates
        return rounds * self.train.updates + (more if rounds else 0)

    @property
    def evaluations(self) -> int:
        """Evaluations of the whole run: at the end of the prefill, every `eval_every` steps from there, at the end."""
        train = self.train
        return max(0, self.times_due(train.total_steps - 1, train.eval_every)) + 1 if train.eval_every else 0

    @property
    def replay_capacity(self) -> int:
        """Rows that the replay holds: ``replay.capacity``, or all rows of the run."""
        if self.replay.capacity is not None:
            return self.replay.capacity
        steps = math.ceil(self.train.total_steps / self.turn_steps) * self.env.action_repeat  # of each environment
        return math.ceil(steps / self.env.episode_steps) * self.episode_rows * self.train.collect_envs

    def replay_slack(self, can_terminate: bool) -> int:
        """Rows kept beyond the capacity, so that a checkpoint still finds its rows when the next one is due.

        Twice the actions between two checkpoints leave room for the first rows of episodes. The slack is 0 without
        checkpoints on the way, or if the replay holds all rows of the run for certain: not if episodes can terminate,
        as each that does adds a first row. With ``train.overlap``, a checkpoint waits for the end of a round. A run
        adds no more rows than twice its actions.
        """
        if not (self.replay.capacity is not None or can_terminate) or not self.train.checkpoint_every:
            return 0
        apart = max(self.train.checkpoint_every, self.turn_steps)
        apart += self.train.train_every if self.train.overlap else 0
        return 2 * min(apart, self.train.total_steps + self.turn_steps) // self.env.action_repeat


AGENTS: Registry[type[AgentConfig]] = Registry(
    "agent",
    {
        "world_model": AgentConfig,
        "sac_pixels": PixelSACConfig,
        "curl": CURLConfig,
        "dbc": DBCConfig,
        "pisac": PISACConfig,
    },
)
POLICIES: Registry[type] = Registry(
    "policy", {"backprop": BackpropConfig, "reinforce": ReinforceConfig, "sac": SACConfig}
)


def as_tree(config: Config) -> dict[str, Any]:
    """Return nested mappings with the keys of the command line: rows of the table are ``model.x``, ``model.y`` ...

    The tree of an agent without a world model has no ``model`` and ``policy``.
    """
    tree = dataclasses.asdict(config)
    if not config.agent.has_model:
        return {group: options for group, options in tree.items() if group not in ("model", "policy")}
    model = tree["model"]
    for name, row in model.pop("latents").items():
        del row["name"]
        model[name] = {cell: list(value) if isinstance(value, tuple) else value for cell, value in row.items()}
    return tree
