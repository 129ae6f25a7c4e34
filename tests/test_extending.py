"""docs/extending.md: its example runs as it stands there, and a module of the working directory is a plug-in."""

import dataclasses
import importlib
import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import yaml
from small_runs import finish, forked

from denoised_mdp.agents.registry import AGENTS, build_agent
from denoised_mdp.cli.main import main
from denoised_mdp.config import load_config, schema
from denoised_mdp.models.structure import LatentSpec

TEXT = (Path(__file__).parents[1] / "docs" / "extending.md").read_text()
TABLE = re.search(r"```yaml\n(name: two_parts.*?)```", TEXT, re.DOTALL)[1]
ROOT = str(Path(__file__).parents[1])


def run(words, folder, **variables):
    """One command in a process of its own, in a folder and with environment variables of its own."""
    environment = {**os.environ, "PYTHONPATH": ROOT, **variables}
    command = [sys.executable, "-m", "denoised_mdp", *words]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)


def run_all(commands, folder, **variables):
    """Commands one after another, in a folder and with environment variables of their own: all that they print.

    The last line says how each ended. The process is forked, which saves the import of PyTorch, but knows nothing yet
    of this package and of plug-ins: each is imported anew, in the order in which the commands need it.
    """

    def body():
        os.chdir(folder)
        os.environ |= variables
        for name in list(sys.modules):
            if name.startswith(("denoised_mdp", "my_")):
                del sys.modules[name]
        new = importlib.import_module("denoised_mdp.cli.main")
        print("exit codes", [new.main(words) for words in commands])
        return 0

    return finish(*forked(body))[1]


def blocks(section):
    """The program and the commands of a section."""
    text = TEXT.partition(f"## {section}\n")[2]
    program, commands = (re.search(rf"```{kind}\n(.*?)```", text, re.DOTALL)[1] for kind in ("python", "bash"))
    return program, [shlex.split(line)[1:] for line in commands.splitlines()]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Where the example of an environment has run."""
    return tmp_path_factory.mktemp("outside")


def test_cartpole_trains_evaluates_renders_and_resumes(tmp_path, monkeypatch, capsys):
    """Discrete actions. Nothing here needs a process of its own, and one command alone renders."""
    monkeypatch.chdir(tmp_path)
    for words in blocks("Discrete actions")[1]:
        more = ["train.render_every=0"] if words[0] == "train" else []
        assert main([*words, *more]) == 0, capsys.readouterr().err
    assert "continuing at step 480, to step 600" in capsys.readouterr().out
    actions = np.load(tmp_path / "runs" / "cartpole" / "replay" / "action.npy")
    assert actions.shape[1] == 2 and set(np.unique(actions)) == {0.0, 1.0} and actions.sum(1).max() == 1


def test_the_example_trains_evaluates_renders_and_resumes(folder):
    program, commands = blocks("Your own Gymnasium environment")
    assert len(program.splitlines()) <= 30
    (folder / "my_env.py").write_text(program)
    said = run_all(commands, folder)
    assert said.endswith(f"exit codes {[0] * len(commands)}\n"), said
    assert (folder / "runs" / "ball" / "checkpoints").is_dir()
    assert "continuing at step 480, to step 600" in said


def test_without_ground_truth_probes_say_so(folder, monkeypatch, capsys):
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(str(folder))
    few = ["--episodes", "4", "--steps", "5"]
    assert main(["probe", "factors", "runs/ball", *few]) == 2
    [line] = capsys.readouterr().err.splitlines()  # nothing was recorded
    assert line.endswith("runs/ball: This environment has no ground truth of its signal: no factor can be probed.")
    assert main(["probe", "health", "runs/ball", "--episodes", "1", "--steps", "5"]) == 0
    printed = capsys.readouterr().out
    assert "nats per step" in printed and "has no ground truth" in printed
    assert "knows little of the signal" not in printed
    options = ["preset=debug", "distractors=none", "env=gym", "env.id=my_env:Ball", "train.total_steps=300"]
    more = ["train.probe_every=20", "train.updates=1", "train.eval_every=0", "train.render_every=0"]
    assert main(["train", *options, *more, "run_dir=runs/told"]) == 0
    told = capsys.readouterr().err
    assert told.count("no probes in this run") == 1, told


def test_the_example_of_parts_trains_resumes_exactly_and_is_probed(folder):
    """A distractor, a policy and a table together; each is what its rule says."""
    program, (setting, train, probe) = blocks("A distractor, a policy, a table")
    (folder / "my_env.py").write_text(blocks("Your own Gymnasium environment")[0])
    (folder / "my_parts.py").write_text(program)
    (folder / "two_parts.yaml").write_text(TABLE)
    short = [*train, "train.total_steps=300", "train.render_every=0"]
    exact = [*short, "policy.candidates=4", "policy.horizon=2", "train.deterministic=true"]
    exact += ["train.eval_every=0", "train.probe_every=0"]
    parts = [[*exact, "run_dir=runs/in_parts", f"train.total_steps={steps}"] for steps in (270, 300)]
    others = [["compare", "runs/in_parts", "runs/at_once"], [*train, "distractors.fog.density=2"]]
    commands = [short, probe, *parts, [*exact, "run_dir=runs/at_once"], *others]
    said = run_all(commands, folder, **dict(word.split("=") for word in setting))
    assert said.endswith(f"exit codes {[0] * 6 + [2]}\n"), said
    assert "Distractor fog: density must be a number, at least 0 and at most 1, not 2" in said
    unknown = run_all([["status", "runs/fog"]], folder)
    assert unknown.endswith("exit codes [1]\n") and "known once DENOISED_MDP_PLUGINS names its module" in unknown


def test_the_example_of_a_suite_trains(folder):
    program, (setting, train, evaluate) = blocks("A suite")
    (folder / "my_env.py").write_text(blocks("Your own Gymnasium environment")[0])
    (folder / "my_suite.py").write_text(program)
    plugin = dict(word.split("=") for word in setting)
    said = run_all([[*train, "train.total_steps=300", "train.render_every=0"], evaluate], folder, **plugin)
    assert said.endswith("exit codes [0, 0]\n"), said
    assert "denoised-mdp probe health runs/mine" in said  # no factor of it could be probed
    lost = run_all([evaluate, ["train", "env=mine"]], folder)
    assert lost.endswith("exit codes [2, 2]\n")
    assert lost.count("known once DENOISED_MDP_PLUGINS names its module") == 2, lost


def test_a_run_of_a_module_that_is_not_here_says_where_it_is_looked_for(folder, tmp_path):
    said = run_all([["evaluate", str(folder / "runs" / "ball"), "--episodes", "1"]], tmp_path)
    assert said.endswith("exit codes [2]\n")
    assert "No module named 'my_env'. It must be installed, or lie in the working directory or on PYTHONPATH." in said


def test_the_keys_of_a_table_are_those_of_a_latent():
    section = TEXT.partition("The keys of a row:\n")[2].partition("\n#")[0]
    named = {
        key for row in section.splitlines() for key in re.findall(r"`(\w+)`", row.partition("|")[2].partition("|")[0])
    }
    assert named == {field.name for field in dataclasses.fields(LatentSpec)} - {"name"}


def test_the_example_of_a_probe_runs_and_reports(folder):
    program, (setting, probe, report) = blocks("A probe")
    (folder / "my_probe.py").write_text(program)
    plugin = dict(word.split("=") for word in setting)
    wrong = (["probe", "wieghts", "runs/ball"], ["probe", "weights", "runs/ball", "--least", "-1"])
    said = run_all([probe, report, *wrong], folder, **plugin)
    assert said.endswith("exit codes [0, 0, 2, 2]\n"), said
    assert re.search(r"step 600: [\d,]+ weights", said)
    result = json.loads(next((folder / "runs" / "ball" / "probes").glob("weights_least0.1_*.json")).read_text())
    assert result["options"] == {"least": 0.1} and 0 < result["count"]
    assert f'<p class="soft">{result["count"]:,} weights</p>' in (folder / "ball.html").read_text()
    assert "Did you mean 'weights'?" in said
    assert "--least: must be a number, at least 0, not '-1'" in said


def test_the_example_of_an_agent_trains_acts_and_resumes_exactly(folder):
    program, (setting, *commands) = blocks("An agent")
    (folder / "my_agent.py").write_text(program)
    (folder / "my_probe.py").write_text(blocks("A probe")[0])  # both are named
    parts = [*commands[0], "run_dir=runs/parts", "train.deterministic=true"]
    longer = commands[-1][-1]
    assert longer == "train.total_steps=600"
    exact, whole = [parts, ["train", "runs/parts", longer]], [*parts, "run_dir=runs/whole", longer]
    others = [["compare", "runs/parts", "runs/whole"], [*commands[0], "agent.scale=0"], ["render", "runs/awr"]]
    said = run_all([*commands, *exact, whole, *others], folder, **dict(word.split("=") for word in setting))
    assert said.endswith(f"exit codes {[0] * 7 + [1, 2, 2]}\n"), said
    assert re.search(r"agent awr, [\d,]+ parameters", said)
    # the part that ended evaluated there, and the metrics say so
    same = [line.split()[0] for line in said.splitlines() if re.match(r"\w+ +identical \(", line)]
    assert {"weights", "optimizer", "replay", "generators", "environment", "progress"} <= set(same)
    assert "agent.scale=0: must be a number, greater than 0" in said
    assert "agent=awr has no world model" in said


def test_the_example_of_an_agent_learns_what_pays(folder, monkeypatch):
    """One decision: in front of a bright picture a large action pays, in front of a dark one a small one."""
    (folder / "my_agent.py").write_text(blocks("An agent")[0])
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.delitem(sys.modules, "my_agent", raising=False)
    importlib.import_module("my_agent")
    try:
        agent = build_agent(load_config(["agent=awr", "preset=debug", "env.size=32"]), 1)
    finally:
        del AGENTS["awr"], schema.AGENTS["awr"]
    rng = np.random.default_rng(0)
    for _ in range(150):
        bright = rng.random((2, 32)) < 0.5  # [T, B]
        action = rng.uniform(-1, 1, (2, 32, 1)).astype(np.float32)
        light = (255 * bright).astype(np.uint8)[..., None, None, None]
        batch = {
            "observation": np.broadcast_to(light, (2, 32, 32, 32, 3)).copy(),
            "action": action,
            "reward": action[..., 0] * np.where(np.roll(bright, 1, 0), 1, -1).astype(np.float32),
            "is_first": np.zeros((2, 32), bool),
            "is_terminal": np.ones((2, 32), bool),
        }
        agent.update(batch)
    dark, light = (agent.act(np.full((32, 32, 3), value, np.uint8))[0] for value in (0, 255))
    assert dark < -0.2 and light > 0.2


SUITE = """
import denoised_mdp
from denoised_mdp.envs.toy import ToyEnv
denoised_mdp.register_suite("mine", lambda task, size, episode_steps: ToyEnv(size, episode_steps), ["dot2"])
"""


def test_a_module_of_the_working_directory_is_a_plugin(tmp_path):
    (tmp_path / "my_plugin.py").write_text(SUITE)
    done = run(["config", "env=mine"], tmp_path, DENOISED_MDP_PLUGINS="my_plugin")
    assert done.returncode == 0 and "suite: mine\n  task: dot2" in done.stdout, done.stderr
    done = run(["config", "env=mien"], tmp_path, DENOISED_MDP_PLUGINS="my_plugin")
    assert "Did you mean 'mine'?" in done.stderr
    done = run(["config", "env=mine"], tmp_path, DENOISED_MDP_PLUGINS="my_plugim")
    assert done.returncode == 2 and "DENOISED_MDP_PLUGINS=my_plugim: cannot be imported" in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_an_installed_package_is_found_by_its_entry_point(tmp_path):
    """As pip lays it out: a package with its table beside it, and what it declares. A broken one is a warning."""
    package, about = tmp_path / "site" / "my_package", tmp_path / "site" / "my_package-1.0.dist-info"
    package.mkdir(parents=True), about.mkdir()
    (package / "__init__.py").write_text(
        "from pathlib import Path\nimport denoised_mdp\n"
        "def register():\n    denoised_mdp.register_table(Path(__file__).with_name('two_signals.yaml'))\n"
    )
    (package / "two_signals.yaml").write_text(
        "name: two_signals\na: {belief: 7, state: 3, sees_action: true, rewarded: true, seen_by_policy: true}\n"
        "b: {belief: 5, state: 2, rewarded: true, seen_by_policy: true}\n"
    )
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: my-package\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text(
        "[denoised_mdp.plugins]\nmine = my_package:register\nbroken = my_package.nowhere\n"
    )
    path = os.pathsep.join([ROOT, str(tmp_path / "site")])
    done = run(["config", "model=two_signals", "model.a.belief=9"], tmp_path, PYTHONPATH=path)
    assert done.returncode == 0, done.stderr
    model = yaml.safe_load(done.stdout)["model"]
    assert (model["name"], model["a"]["belief"], model["b"]["belief"]) == ("two_signals", 9, 5)
    assert "warning: plug-in broken (my_package.nowhere) is left out: ModuleNotFoundError" in done.stderr
