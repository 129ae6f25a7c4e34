"""Completion: what a shell is offered while a command is typed."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from denoised_mdp.cli.completion import complete, script, values
from denoised_mdp.cli.machine import SHELLS
from denoised_mdp.config import load_config
from denoised_mdp.config.choices import CHOSEN, GROUPS, all_options, choices, latent_names
from denoised_mdp.errors import UserError

ROOT = Path(__file__).resolve().parent.parent


@pytest.mark.parametrize(
    ("typed", "offered"),
    [
        ("pres", ["preset="]),
        ("preset=qui", ["preset=quickstart"]),
        ("preset=paper/reacher_easy_n", ["preset=paper/reacher_easy_noiseless"]),
        ("model=", [f"model={name}" for name in choices("model")]),
        ("train.det", ["train.deterministic="]),
        ("train.deterministic=", ["train.deterministic=true", "train.deterministic=false"]),
        ("env.quality=", ["env.quality=fast", "env.quality=faithful"]),
        ("env.task=walker_w", ["env.task=walker_walk"]),
        ("model.kl.free_nats_strategy=", [f"model.kl.free_nats_strategy={one}" for one in ("A", "B", "mean")]),
        ("model.z.distribution=", ["model.z.distribution=gaussian", "model.z.distribution=categorical"]),
        ("sweep=ri", ["sweep=ring"]),
        ("distractors=n", ["distractors=none", "distractors=noisy_sensor"]),
        ("distractors=tv,n", ["distractors=tv,noisy_sensor"]),
        ("distractors=camera_j", ["distractors=camera_jitter"]),
        ("distractors=tv,camera_j", ["distractors=tv,camera_jitter"]),
        ("distractors.video_background.resize=a", ["distractors.video_background.resize=antialiased"]),
        ("seed=", []),
        ("nonsense=", []),
    ],
)
def test_words(typed, offered):
    assert complete(typed) == offered


def test_runs_and_the_folders_of_runs(tmp_path, monkeypatch):
    for folder in ("runs/a", "runs/x=1", "runs/deep/b", "seeds/none"):
        (tmp_path / folder).mkdir(parents=True)
    for folder in ("runs/a", "runs/x=1", "runs/deep/b"):
        (tmp_path / folder / "config.yaml").touch()
    monkeypatch.chdir(tmp_path)
    assert complete("ru") == ["run_dir=", "runs/"] and complete("runs/") == ["runs/a", "runs/x=1", "runs/deep/"]
    assert complete("runs/deep/") == ["runs/deep/b"] and complete("see") == ["seed="]


@pytest.mark.parametrize("place", [0, -1])
def test_values_that_are_offered_are_accepted(place):
    """The first and the last value of every option that does not hang on another one."""
    others = ("agent", "policy.", "distractors", "env.task", "env.reward", "env=", "model.core", "model.decoder")
    others += ("model.target", *(f"model.{latent}." for latent in latent_names()))
    offered = [f"{key}={values(key)[place]}" for key in [*GROUPS, *all_options()] if values(key) and key != "env"]
    offered = [word for word in dict.fromkeys(offered) if not word.startswith((*others, *CHOSEN))]
    assert len(offered) >= 12
    load_config([*offered, "train.collect_workers=1"])


@pytest.mark.parametrize("shell", SHELLS)
def test_scripts(shell):
    pytest.importorskip("argcomplete")
    assert "denoised-mdp" in script(shell)


def test_without_argcomplete_there_is_one_line(monkeypatch):
    monkeypatch.setitem(sys.modules, "argcomplete", None)
    with pytest.raises(UserError, match="pip install argcomplete"):
        script("bash")


@pytest.mark.parametrize(
    ("typed", "offered"),
    [
        ("denoised-mdp tr", "train"),
        ("denoised-mdp train preset=qu", "quickstart"),
        ("denoised-mdp train preset=debug model=dr", "dreamer"),
        ("denoised-mdp train --mul", "--multirun"),
        ("denoised-mdp probe joints-", "joints-data"),
        ("denoised-mdp evaluate a --split te", "test"),
        ("denoised-mdp evaluate some_f", "some_folder/"),
    ],
)
def test_bash(typed, offered, tmp_path):
    """The real shell with the real script; bash splits words at the equals sign, so the answer follows it."""
    pytest.importorskip("argcomplete")
    (tmp_path / "some_folder").mkdir()
    command = tmp_path / "denoised-mdp"
    command.write_text(f'#!/bin/sh\nexec {sys.executable} -m denoised_mdp "$@"\n')
    command.chmod(0o755)
    (tmp_path / "script").write_text(script("bash"))
    program = f"""
source script
COMP_LINE={typed!r}; COMP_POINT=${{#COMP_LINE}}; COMP_TYPE=9
$(complete -p denoised-mdp | sed 's/.*-F \\([^ ]*\\).*/\\1/') denoised-mdp
printf '%s\\n' "${{COMPREPLY[@]}}"
"""
    paths = {"PATH": [str(tmp_path), os.environ["PATH"]], "PYTHONPATH": [str(ROOT), *filter(None, sys.path)]}
    variables = os.environ | {name: os.pathsep.join(folders) for name, folders in paths.items()}
    done = subprocess.run(["bash", "-c", program], cwd=tmp_path, env=variables, capture_output=True, text=True)
    assert [word.strip() for word in done.stdout.split()] == [offered], done.stderr
