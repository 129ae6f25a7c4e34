"""The command line: help, exit codes, and a whole tiny run from training to video."""

import errno
import itertools
import os
import re
import runpy
import shlex
import subprocess
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch

from denoised_mdp.cli import main as cli
from denoised_mdp.config import load_config, read_config
from denoised_mdp.config.choices import all_options
from denoised_mdp.errors import UserError

ROOT = Path(__file__).resolve().parent.parent
TINY = ["preset=debug", "env=toy", "train.total_steps=360", "train.render_every=0", "train.eval_every=0"]
TINY += ["train.probe_every=0"]


def run(*arguments, **options):
    """Run the command in a process of its own."""
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "denoised_mdp", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, env=environment, timeout=280, **options)


@pytest.mark.parametrize(
    "words", [["report", "a"], ["table", "a"], ["render", "a"], ["export", "a"], ["bench"], ["probe", "factors", "a"]]
)
def test_outputs_may_be_in_the_home_folder(words, monkeypatch, tmp_path):
    """After ``--output=``, no shell says where that is."""
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cli.build_parser().parse_args([*words, "--output=~/b"]).output == tmp_path / "b"


def test_help_of_train_names_every_option_and_choice(capsys):
    with pytest.raises(SystemExit) as end:
        cli.main(["train", "--help"])
    text = capsys.readouterr().out
    assert end.value.code == 0
    hidden = {
        "preset",
        "distractors",
        "env.suite",
        "agent.name",
        "model.name",
        "model.kind",
        "policy.name",
    }  # these are choices of groups
    other_rows = {key for key in all_options() if re.match(r"model\.[^x]\.", key)}  # each has the cells of x
    names = ["quickstart", "debug", "cheetah_run", "video_background_camera_jitter", "dreamer"]
    for key in [*(key for key in all_options() if key not in other_rows), *names]:
        assert f" {key}" in text or key in hidden, key
    assert max(map(len, text.splitlines())) <= 112


@pytest.mark.parametrize(
    "arguments", [["--help"], [], ["evaluate", "--help"], ["render", "--help"], ["doctor", "--help"], ["--version"]]
)
def test_help(arguments, capsys):
    with pytest.raises(SystemExit) as end:
        cli.main(arguments)
    assert end.value.code == 0
    text = capsys.readouterr().out
    assert "denoised-mdp" in text
    assert arguments not in (["--help"], []) or all(re.search(rf"^    {name}\s", text, re.M) for name in cli.COMMANDS)


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


def raising(error):
    """A stand-in for `load_config` that fails."""

    def load(_):
        raise error

    return load


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (OSError(errno.ENOSPC, "No space left on device", "/full/file"), "/full/file: No space left on device."),
        (OSError(errno.EROFS, "Read-only file system"), "Read-only file system."),
        (PermissionError(errno.EACCES, "Permission denied", "/locked"), "/locked: Permission denied."),
    ],
)
def test_what_the_machine_refuses_is_one_line_and_exit_code_2(error, words, monkeypatch, capsys):
    monkeypatch.setattr("denoised_mdp.config.load_config", raising(error))
    assert cli.main(["train"]) == 2
    assert capsys.readouterr().err == f"denoised-mdp: error: {words}\n"


@pytest.mark.parametrize(
    "allocate",
    [
        lambda: np.zeros((10**6, 10**9)),
        lambda: np.zeros((2**40, 2**40)),
        lambda: np.random.default_rng(0).integers(3, size=10**18),
        lambda: torch.zeros(10**15),
        lambda: torch.zeros(10**12, 10**12),
        lambda: torch.nn.Linear(10**9, 10**9),
    ],
)
def test_too_little_memory_is_one_line_and_exit_code_2(allocate, monkeypatch, capsys):
    monkeypatch.setattr("denoised_mdp.config.load_config", lambda _: allocate())
    assert cli.main(["train"]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1 and "needs more memory than there is" in error and "train.batch_size" in error


@pytest.mark.parametrize("command", ["train", "doctor"])
def test_a_batch_larger_than_the_memory_is_refused_before_anything_begins(command, tmp_path, capsys):
    options = ["preset=debug", "train.batch_size=99999999", f"run_dir={tmp_path / 'run'}"]
    assert cli.main([command, *options]) != 0
    said = "".join(capsys.readouterr())
    assert "train.batch_size=99999999: the pictures of one batch need" in said and "Traceback" not in said
    assert not (tmp_path / "run").exists()


def test_a_process_without_standard_output_can_end(monkeypatch):
    """As `denoised-mdp ... >&- 2>&-` has none."""
    monkeypatch.setattr("denoised_mdp.config.load_config", raising(UserError("Enough.")))
    monkeypatch.setattr(sys, "stdout", None)
    monkeypatch.setattr(sys, "stderr", None)
    assert cli.main(["train"]) == 2


@pytest.mark.parametrize("error", [FileNotFoundError(errno.ENOENT, "gone", "x"), ValueError("a"), OSError("b")])
def test_defects_are_not_swallowed(error, monkeypatch):
    monkeypatch.setattr("denoised_mdp.config.load_config", raising(error))
    with pytest.raises(type(error)):
        cli.main(["train"])


def test_warnings_are_one_line(monkeypatch, capsys):
    def load(_):
        warnings.warn("The first line\n  and the second.", stacklevel=2)
        raise UserError("Enough.")

    monkeypatch.setattr("denoised_mdp.config.load_config", load)
    before = warnings.showwarning
    assert cli.main(["train"]) == 2
    assert warnings.showwarning is before
    first = "denoised-mdp: warning: The first line and the second.\n"
    assert capsys.readouterr().err == first + "denoised-mdp: error: Enough.\n"


def test_interruption_is_exit_code_130(monkeypatch, capsys):
    monkeypatch.setattr("denoised_mdp.config.load_config", raising(KeyboardInterrupt))
    assert cli.main(["train"]) == 130
    assert "Traceback" not in capsys.readouterr().err


def test_a_tiny_run_from_training_to_video(tmp_path, capsys):
    folder, options = tmp_path / "a run", [*TINY, "train.probe_every=360"]
    done = run("train", *options, "distractors=camera_jitter", f"run_dir={folder}")
    assert done.returncode == 0, done.stderr
    assert read_config(folder) == load_config([*options, "distractors=camera_jitter", f"run_dir={folder}"])
    assert {"config.yaml", "metrics.jsonl", "checkpoints", "replay"} <= {path.name for path in folder.iterdir()}

    assert cli.main(["evaluate", str(folder), "--episodes", "3", "--random"]) == 0
    printed = capsys.readouterr().out.splitlines()
    returns = [float(line.split()[-1]) for line in printed[:3]]
    assert float(printed[3].split()[2]) == pytest.approx(sum(returns) / 3, abs=0.02)
    assert len(set(returns)) == 3 and "random policy" in printed[4]

    assert cli.main(["evaluate", str(folder), "--episodes", "1", "--random", "--split", "test"]) == 0
    printed, told = capsys.readouterr()
    assert "nan" not in printed and "±" not in printed and f"mean return   {returns[0]:8.2f}\n" in printed
    warning = f"warning: {folder} shows no clips: --split test changes nothing."
    assert told.count(warning) == 1
    few = ["--episodes", "3", "--steps", "4"]
    for words in (["render", "--episodes", "1", "--output", str(tmp_path / "test")], ["probe", "health", *few]):
        place = 2 if words[0] == "probe" else 1
        assert cli.main([*words[:place], str(folder), "--split", "test", *words[place:]]) == 0
        assert capsys.readouterr().err.count(warning) == 1

    assert not (folder / "videos").exists()
    for words in ([], ["--seed", "7"]):
        assert cli.main(["render", str(folder), "--episodes", "1", *words]) == 0
    stems = {path.stem for path in (folder / "videos").iterdir()}
    assert len(stems) == 2 and {stem.removesuffix("_seed7") for stem in stems} < stems, "of other episodes, others"

    assert cli.main(["render", str(folder), "--output", str(tmp_path / "look")]) == 0
    assert sorted(path.suffix for path in tmp_path.glob("look.*")) == [".mp4", ".png"]

    capsys.readouterr()
    assert cli.main(["train", *options, "model.kl.beta=0.5", f"run_dir={folder}"]) == 2
    told = capsys.readouterr().err
    assert "model.kl.beta: 1.0 -> 0.5" in told and told.count("denoised-mdp: error:") == 1


def test_multirun_trains_one_run_per_value_in_folders_of_their_own(tmp_path, monkeypatch, capsys):
    both = ["video_background", "camera_jitter"]
    sets = f"distractors=[{','.join(both)}],none"
    short = ["train.total_steps=300", "policy.horizon=4"]
    done = run("train", "--multirun", *TINY, *short, sets, "model.kl.beta=0.5", "run_dir=all runs", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert len(list((tmp_path / "all runs").glob("*/config.yaml"))) == 2
    for names in (both, []):
        config = read_config(tmp_path / "all runs" / f"distractors=[{','.join(names)}]")
        assert (list(config.distractors), config.model.kl.beta, config.env.suite) == (names, 0.5, "toy")
    monkeypatch.chdir(tmp_path)
    assert cli.main(["train", "-m", *TINY, "model=2b,2c", "env.task=dott"]) == 2
    told = capsys.readouterr().err
    assert "'dot'" in told and "Traceback" not in told


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


@pytest.mark.parametrize("length", [10, 10**6])
def test_output_that_nobody_reads_ends_a_command_quietly(length):
    """`denoised-mdp ... | head` ends as other programs do, whether the text fits into a buffer or not."""
    code = f"""
import sys
from denoised_mdp.cli import main as cli
cli._run = lambda argv, _: print("x" * {length}) or 0
sys.exit(cli.main([]))
"""
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    process.stdout.close()
    assert process.stderr.read() == "" and process.wait() == 141


@pytest.mark.parametrize(
    ("arguments", "hint"),
    [
        (["train", "--preset", "quickstart"], "Did you mean preset=quickstart?"),
        (["train", "--preset=quickstart", "seed=1"], "Did you mean preset=quickstart?"),
        (["train", "preset=debug", "--seed", "1"], "Did you mean seed=1?"),
        (["doctor", "--model=2c"], "Did you mean model=2c?"),
        (["config", "--batch-size", "5"], "Did you mean train.batch_size=5?"),
        (["probe", "joints-data", "--task", "walker_walk"], "Did you mean env.task=walker_walk?"),
        (["train", "--clips", "a b"], "Did you mean 'env.clips=a b'?"),
        (["train", "--seed"], "Did you mean seed=VALUE?"),
        (["train", "--multirn"], "Did you mean '--multirun'?"),
        (["train", "quickstart"], "Did you mean 'preset=quickstart'?"),
        (["train", "2c"], "Did you mean 'model=2c'?"),
        (["evaluate", "a", "--epsiodes", "3"], "Did you mean '--episodes'? See 'denoised-mdp evaluate --help'."),
        (["evaluate", "a", "b"], "unrecognized arguments: b; see 'denoised-mdp evaluate --help'."),
        (["evaluate", "a", "episodes=3"], "unrecognized arguments: episodes=3; did you mean --episodes 3? See '"),
        (["evaluate", "a", "env.task=x"], "unrecognized arguments: env.task=x; a run keeps its own options; see '"),
        (["evaluate", "a", "random=true"], "unrecognized arguments: random=true; did you mean --random? See '"),
        (["evaluate", "a", "episodes="], "did you mean --episodes VALUE? See '"),
        (["render", "a", "-o"], "argument -o/--output: expected one argument"),
        (["probe", "health", "a", "-o"], "argument -o/--output: expected one argument"),
        (["train", "distractors=nonee"], "unknown distractor 'nonee'. Did you mean 'none'?"),
        (["preset=quickstart"], "denoised-mdp train preset=quickstart"),
        (["runs/a b", "evaluate"], "the command comes first: denoised-mdp evaluate 'runs/a b'"),
        (["--episodes", "3", "evaluate", "x"], "the command comes first: denoised-mdp evaluate --episodes 3 x"),
        (["train", "--cfg", "hydra"], "'hydra' is not of the form key=value."),
        (["train", "distractors=none,noisy_sensor"], "'none' stands alone. Leave it out, or the others."),
        (["config", "runs/nope"], "There is no run at runs/nope: it does not exist."),
        (["config", "runs/nope", "--against", "debug"], "There is no run at runs/nope: it does not exist."),
        (["doctor", "runs/nope"], "There is no run at runs/nope: it does not exist."),
        (["bench", "runs/nope"], "There is no run at runs/nope: it does not exist."),
        (["status", "runs/nope/a"], "it does not exist. Nor is there a folder runs/nope."),
        (["evaluate", "a", "--episodes", "1.5"], "must be a whole number, at least 1, not '1.5'"),
    ],
)
def test_what_newcomers_write_gets_a_hint(arguments, hint, capsys):
    assert cli.main(arguments) == 2
    error = capsys.readouterr().err
    assert hint in error and error.count("\n") == 1


def test_the_folder_of_a_run_comes_first(tmp_path, capsys):
    (tmp_path / "config.yaml").write_text("seed: 1\n")
    assert cli.main(["train", "seed=1", str(tmp_path)]) == 2
    assert "To continue a run, its folder comes first." in capsys.readouterr().err
    for words in (["--multirun", "seed=1,2"], ["sweep=ring"], ["--dry-run"]):
        assert cli.main(["train", str(tmp_path), *words]) == 2
        assert f"A sweep has runs of its own: leave out {tmp_path}." in capsys.readouterr().err


@pytest.mark.parametrize(
    ("word", "why"),
    [
        ("runs/b", "There is no run at runs/b: it does not exist."),
        ("runs", "There is no run at runs: it has no config.yaml."),
        ("runs/a/metrics.jsonl", "it is a file"),
        ("runs/lost", "runs/lost has lost its config.yaml"),
        ("pretrained:cheetah_run_video", "is an exported agent, which has weights alone"),
        ("pretrained:nobody", "There is no pretrained agent"),
    ],
)
def test_a_path_that_is_no_run_to_continue_says_why(tmp_path, monkeypatch, capsys, word, why):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs/lost/checkpoints/step_000000001").mkdir(parents=True)
    (tmp_path / "runs/lost/checkpoints/step_000000001/manifest.json").touch()
    (tmp_path / "runs/a").mkdir()
    (tmp_path / "runs/a/metrics.jsonl").touch()
    assert cli.main(["train", word, "seed=1"]) == 2
    error = capsys.readouterr().err
    assert why in error and error.count("\n") == 1


def test_flags_may_stand_between_options(monkeypatch):
    seen = []
    monkeypatch.setattr("denoised_mdp.cli.sweep.sweep", lambda overrides, _: seen.extend(overrides))
    assert cli.main(["train", "preset=debug", "-m", "seed=1,2", "model=2c"]) == 0
    assert seen == ["preset=debug", "seed=1,2", "model=2c"]


@pytest.mark.parametrize("help", [["help", "evaluate"], ["evaluate", "-h"]])
def test_help_of_a_command(help, capsys):
    with pytest.raises(SystemExit) as end:
        cli.main(help)
    text = capsys.readouterr().out
    assert end.value.code == 0 and "usage: denoised-mdp evaluate" in text and "examples:" in text


def test_every_command_has_a_help_of_whole_sentences(capsys):
    """A description that says what the command does, lines that fit, and a meaning for every flag."""
    for command in cli.COMMANDS:
        with pytest.raises(SystemExit):
            cli.main([command, "--help"])
        text = capsys.readouterr().out
        assert f"usage: denoised-mdp {command}" in text
        assert "\n\n" in text and text.split("\n\n")[1].strip().endswith("."), command
        for line, following in itertools.pairwise(text.splitlines()):
            if line.startswith("  -") and "  " not in line.strip():  # a long flag: its meaning is below
                assert following.startswith(" " * 10), line


def test_a_configuration_is_set_against_a_preset(capsys):
    paper = "paper/cheetah_run_video_background"
    same, words = ["config", f"preset={paper}", "--against", paper], ["model.kl.beta=0.5", "model=2c", "seed=3"]
    assert cli.main(same) == 0
    assert capsys.readouterr() == ("", f"denoised-mdp: nothing differs from preset={paper}.\n")
    assert cli.main([*same, *words]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert {"seed: 0 -> 3", "model.kl.beta: 0.125 -> 0.5", "model.name: 2b -> 2c"} <= set(lines)
    assert any(line.startswith("model.z.state: absent -> ") for line in lines)
    assert not any("run_dir" in line or "policy." in line for line in lines)
    debug = ["config", "preset=debug", "--against", "debug"]
    assert cli.main([*debug, "distractors=none"]) == 0
    assert capsys.readouterr().out == "distractors: video_background -> none\n"
    assert cli.main([*debug, "distractors=video_background,camera_jitter"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "distractors: video_background -> video_background, camera_jitter"
    assert "distractors.camera_jitter.strength: absent -> 1.0" in lines and not any(
        "video_b" in one for one in lines[1:]
    )
    assert cli.main(["config", "--against", "papre"]) == 2 and "preset=papre: unknown choice" in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments",
    [["config"], ["train", "--cfg", "job"], ["train", "-c"], ["train", "model=2b", "--cfg"], ["train", "-c", "seed=1"]],
)
def test_the_composed_configuration_is_printed_and_can_be_read_back(arguments, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    options = ["preset=quickstart", "model=2c", "distractors=camera_jitter", "train.batch_size=7", "seed=2"]
    assert cli.main([*arguments, *options]) == 0
    printed = capsys.readouterr()
    assert printed.err == "" and list(tmp_path.iterdir()) == []
    (tmp_path / "config.yaml").write_text(printed.out)
    assert read_config(tmp_path / "config.yaml") == load_config(options)


def test_a_finished_training_names_the_next_commands(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("denoised_mdp.session.train", lambda config, stop: True)
    assert cli.main(["train", *TINY, f"run_dir={tmp_path / 'a run'}"]) == 0
    told = capsys.readouterr().err.splitlines()
    assert told[0] == f"next: denoised-mdp evaluate '{tmp_path}/a run' --random"
    for line in told:  # what is named can be parsed
        words = shlex.split(line.removeprefix("next:"))
        assert words[0] == "denoised-mdp" and str(tmp_path / "a run") in words
        assert cli.build_parser().parse_args(words[1:]).command in ("evaluate", "render", "probe", "report")
    for blind in (["model=repo", "model.decoder=false"], ["agent=sac_pixels"]):  # nothing that could be shown
        assert cli.main(["train", *TINY, *blind, f"run_dir={tmp_path / 'blind'}"]) == 0
        told = capsys.readouterr().err
        assert "denoised-mdp evaluate" in told and "denoised-mdp render" not in told


def test_no_extra_brings_gym_along(monkeypatch):
    """RoboDesk requires gym, of which nothing is used: its model files are installed with --no-deps."""
    setuptools = pytest.importorskip("setuptools")
    options = {}
    monkeypatch.setattr(setuptools, "setup", lambda **given: options.update(given))
    runpy.run_path(str(ROOT / "setup.py"))
    required = [*options["install_requires"], *itertools.chain.from_iterable(options["extras_require"].values())]
    names = {re.match(r"[\w-]+", one)[0] for one in required}
    assert "gymnasium" in names and not names & {"robodesk", "gym"}
