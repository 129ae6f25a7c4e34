"""The command line: help, exit codes, and a whole tiny run from training to video."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from denoised_mdp import cli
from denoised_mdp.composition import option_keys
from denoised_mdp.config import load_config, read_config
from denoised_mdp.errors import UserError

ROOT = Path(__file__).resolve().parent.parent
TINY = ["preset=debug", "env=toy", "train.total_steps=360", "train.render_every=0", "train.eval_every=0"]


def run(*arguments, **options):
    """Run the command in a process of its own."""
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "denoised_mdp", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, env=environment, timeout=120, **options)


def test_help_of_train_names_every_option_and_choice(capsys):
    with pytest.raises(SystemExit) as end:
        cli.main(["train", "--help"])
    text = capsys.readouterr().out
    assert end.value.code == 0
    hidden = {"preset", "distractors", "model.name", "policy.name"}  # these are choices of groups
    for key in [*option_keys(), "quickstart", "debug", "cheetah_run", "video_background_camera_jitter", "dreamer"]:
        assert f" {key}" in text or key in hidden, key
    assert max(map(len, text.splitlines())) <= 112


@pytest.mark.parametrize(
    "arguments", [["--help"], [], ["evaluate", "--help"], ["render", "--help"], ["doctor", "--help"], ["--version"]]
)
def test_help(arguments, capsys):
    with pytest.raises(SystemExit) as end:
        cli.main(arguments)
    assert end.value.code == 0
    assert "denoised-mdp" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["trian"], "'train'"),
        (["train", "env.taks=a"], "'env.task'"),
        (["train", "model=2x"], "model=2x"),
        (["train", "--multirn"], "--multirn"),
        (["train", "-m", "env.taks=a,b"], "'env.task'"),
        (["train", "-m", "model=2b,2x"], "model=2x"),
        (["train", "-m", "seed=["], "seed=["),
        (["doctor", "seed=x"], "seed=x"),
        (["evaluate"], "RUN"),
        (["evaluate", "somewhere", "--episodes", "0"], "--episodes"),
        (["evaluate", "somewhere", "--device", "gpu"], "cuda"),
        (["render", "somewhere", "--checkpoint", "-1"], "--checkpoint"),
        (["evaluate", "no/such/run"], "no/such/run"),
        (["render", "no/such/run"], "no/such/run"),
    ],
)
def test_mistakes_are_one_line_and_exit_code_2(arguments, words, capsys):
    assert cli.main(arguments) == 2
    error = capsys.readouterr().err
    assert error.startswith("denoised-mdp: error: ") and error.count("\n") == 1
    assert words in error


def test_interruption_is_exit_code_130(monkeypatch, capsys):
    def interrupt(_):
        raise KeyboardInterrupt

    monkeypatch.setattr("denoised_mdp.config.load_config", interrupt)
    assert cli.main(["train"]) == 130
    assert "Traceback" not in capsys.readouterr().err


def test_a_tiny_run_from_training_to_video(tmp_path, capsys):
    folder = tmp_path / "a run"
    done = run("train", *TINY, "distractors=camera_jitter", f"run_dir={folder}")
    assert done.returncode == 0, done.stderr
    assert read_config(folder) == load_config([*TINY, "distractors=camera_jitter", f"run_dir={folder}"])
    assert {"config.yaml", "metrics.jsonl", "checkpoints", "replay"} <= {path.name for path in folder.iterdir()}

    assert cli.main(["evaluate", str(folder), "--episodes", "3", "--random"]) == 0
    printed = capsys.readouterr().out.splitlines()
    returns = [float(line.split()[-1]) for line in printed[:3]]
    assert float(printed[3].split()[2]) == pytest.approx(sum(returns) / 3, abs=0.02)
    assert len(set(returns)) == 3 and "random policy" in printed[4]

    assert cli.main(["render", str(folder), "--output", str(tmp_path / "look")]) == 0
    assert sorted(path.suffix for path in tmp_path.glob("look.*")) == [".mp4", ".png"]

    other = run("train", *TINY, "model.kl.beta_y=0.5", f"run_dir={folder}")
    assert other.returncode == 2 and "model.kl.beta_y: 1.0 -> 0.5" in other.stderr
    assert other.stderr.count("denoised-mdp: error:") == 1


def test_multirun_trains_one_run_per_value_in_folders_of_their_own(tmp_path):
    done = run("train", "--multirun", *TINY, "seed=3,4", "model.kl.beta_y=0.5", "run_dir=all runs", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    for seed in (3, 4):
        config = read_config(tmp_path / "all runs" / f"seed={seed}")
        assert (config.seed, config.model.kl.beta_y, config.env.suite) == (seed, 0.5, "toy")
    again = run("train", "-m", *TINY, "model=2b,2c", "env.task=dott", cwd=tmp_path)
    assert again.returncode == 2 and "'dot'" in again.stderr and "Traceback" not in again.stderr


def test_an_installed_package_finds_its_configurations(tmp_path):
    pytest.importorskip("setuptools")
    build = [sys.executable, "setup.py", "--quiet", "build", "--build-base", tmp_path, "--build-lib", tmp_path / "lib"]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True)
    program = "from denoised_mdp.config import load_config, __file__; print(__file__, load_config(['preset=debug']))"
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path / "lib", capture_output=True, text=True, check=True
    )
    assert done.stdout.startswith(str(tmp_path / "lib"))
    installed = tmp_path / "lib" / "denoised_mdp" / "configs"
    files = {path.relative_to(ROOT / "configs") for path in (ROOT / "configs").rglob("*.yaml")}
    assert files == {path.relative_to(installed) for path in installed.rglob("*.yaml")}


def test_python_callers_get_exceptions_not_exits():
    with pytest.raises(UserError):
        load_config(["env.taks=1"])
