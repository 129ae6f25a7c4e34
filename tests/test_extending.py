"""docs/extending.md: its example runs as it stands there, and a module of the working directory is a plug-in."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

TEXT = (Path(__file__).parents[1] / "docs" / "extending.md").read_text()
ROOT = str(Path(__file__).parents[1])


def run(words, folder, **variables):
    environment = {**os.environ, "PYTHONPATH": ROOT, **variables}
    command = [sys.executable, "-m", "denoised_mdp", *words]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)


def test_the_example_trains_evaluates_renders_and_resumes(tmp_path):
    program = re.search(r"```python\n(.*?)```", TEXT, re.DOTALL)[1]
    assert len(program.splitlines()) <= 30
    (tmp_path / "my_env.py").write_text(program)
    for line in re.search(r"```bash\n(.*?)```", TEXT, re.DOTALL)[1].splitlines():
        done = run(shlex.split(line)[1:], tmp_path)
        assert done.returncode == 0, done.stderr
    assert (tmp_path / "runs" / "ball" / "checkpoints").is_dir()
    assert "continuing at step 480, to step 600" in done.stdout
    done = run(["probe", "factors", "runs/ball", "--episodes", "4", "--steps", "5"], tmp_path)
    assert done.returncode == 2 and "Traceback" not in done.stderr
    assert "error: This environment has no ground truth" in done.stderr.splitlines()[-1]  # after its progress


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
