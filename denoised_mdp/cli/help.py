"""The text of ``denoised-mdp train --help``, generated from the options themselves."""

from __future__ import annotations

import dataclasses
import textwrap
from typing import Any

from denoised_mdp.config import load_config
from denoised_mdp.config.agents import AgentConfig
from denoised_mdp.config.choices import CHOSEN, choices
from denoised_mdp.config.schema import AGENTS, MODELS, POLICIES, Config, ModelConfig
from denoised_mdp.config.validate import as_text
from denoised_mdp.envs.options import DISTRACTORS
from denoised_mdp.errors import UserError
from denoised_mdp.options import walk

INTRODUCTION = """\
usage: denoised-mdp train [key=value ...] [--multirun | --cfg | --dry-run]
       denoised-mdp train RUN [key=value ...]

Train a Denoised MDP online and save everything in a run folder.
To resume a run, repeat its command, or name its folder; to extend it, with a larger train.total_steps.
Steps are environment steps before action repeat. Defaults of model, policy and
schedule are the paper's (Wang et al. 2022); its tasks are presets, paper/... A suite, a model,
an agent or a preset may set other values: 'denoised-mdp config ...' prints those that a run gets.

  -m, --multirun   train one run for each combination of values, with Hydra's sweepers and launchers
  -n, --dry-run    with sweep=: list its runs, their folders, states and expected hours, and train nothing
  -c, --cfg        print the composed configuration as YAML and train nothing, as 'denoised-mdp config' does

examples
  denoised-mdp train preset=quickstart run_dir=runs/quickstart
  denoised-mdp train runs/quickstart train.total_steps=90_000    (as it began, but longer)
  denoised-mdp train preset=paper/cheetah_run_video_background policy=sac seed=1
  denoised-mdp train preset=quickstart env.task=walker_walk distractors=video_background,camera_jitter
  denoised-mdp train preset=debug env.clips=/data/videos    (a folder or a glob of videos)
  denoised-mdp train --multirun preset=quickstart seed=1,2,3
  denoised-mdp train sweep=ring --dry-run
  denoised-mdp train --multirun preset=quickstart 'distractors=[video_background],[camera_jitter]' seed=1,2
"""


def train_help() -> str:
    """Return the whole text: examples, the groups' choices, and every option with its default and meaning."""
    config, titles = Config(), {field.name: field.metadata["help"] for field in dataclasses.fields(Config)}
    run = [(name, as_text(getattr(config, name)), titles[name]) for name in ("run_dir", "seed")]
    sections = [("run", run)]
    common = _rows(ModelConfig(), "model.")
    sections += [(titles["env"], _rows(config.env, "env."))]
    sections += [(titles["model"], _rows(load_config([]).model.latents["x"], "model.x.") + common)]
    for name, kind in MODELS.items():
        if own := [row for row in _rows(kind(), "model.") if row not in common]:
            sections.append((f"model={name}: what differs, or is only here", own))
    sections += [
        (f"agent={name}", own) for name, kind in AGENTS.items() if (own := _rows(_agent(name, kind), "agent."))
    ]
    sections += [(f"policy={name}", _rows(kind(), "policy.")) for name, kind in POLICIES.items()]
    chosen = [row for name, kind in DISTRACTORS.items() for row in _rows(kind.Options(), f"distractors.{name}.")]
    sections += [("options of the chosen distractors", chosen)]
    sections += [(titles[name], _rows(getattr(config, name), f"{name}.")) for name in ("train", "replay")]
    return "\n".join([INTRODUCTION, _groups(), *(_section(*section) for section in sections)])


def _agent(name: str, kind: type[AgentConfig]) -> AgentConfig:
    """Return an agent's options as its method sets them, or defaults for a plug-in that needs another environment."""
    try:
        return load_config([f"agent={name}"]).agent
    except UserError:
        return kind()


def _groups() -> str:
    presets = [name for name in choices("preset") if "/" not in name]
    papers = [name.removeprefix("paper/") for name in choices("preset") if "/" in name]
    tasks = [name.removesuffix("_noiseless") for name in papers if name.endswith("_noiseless")]
    others = [f"paper/{name}" for name in papers if not name.startswith(tuple(tasks))]
    variants = [name.removeprefix(f"{tasks[0]}_") for name in papers if name.startswith(tasks[0])]
    rows = [
        ("preset", ", ".join([*presets, "paper/TASK_VARIANT", *others])),
        ("", f"TASK: {', '.join(tasks)}"),
        ("", f"VARIANT: {', '.join(variants)}"),
        ("env", ", ".join(choices("env"))),
        ("distractors", f"none, or any of {', '.join(choices('distractors'))}, joined by commas"),
        ("", "for --multirun, put each set in brackets: [a,b],[c],none"),
        ("agent", ", ".join(choices("agent"))),
        ("model", ", ".join(choices("model"))),
        ("policy", ", ".join(choices("policy"))),
        ("sweep", f"{', '.join(choices('sweep'))}, or a file: many runs; sweep.AXIS=VALUES chooses some of them"),
    ]
    lines = [_fill(f"  {name:13}", text) for name, text in rows]
    return "\n".join(["choices (the command line overrides a preset)", *lines, ""])


def _section(title: str, rows: list[tuple[str, str, str]]) -> str:
    lines = [_fill(f"  {key:36}{default:>11}  ", meaning) for key, default, meaning in rows]
    return "\n".join([title, *lines, ""])


def _fill(head: str, text: str) -> str:
    return textwrap.fill(text, 112, initial_indent=head, subsequent_indent=" " * len(head))


def _rows(options: Any, prefix: str) -> list[tuple[str, str, str]]:
    """Return (key, default, meaning) of every option, also nested ones, except those that the group's choice sets."""
    found = walk(options, prefix)
    return [(key, as_text(value), limits["help"]) for key, value, limits in found if key not in CHOSEN]
