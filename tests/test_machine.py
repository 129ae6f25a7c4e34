"""What a machine does to a run: a second process in its folder, a disk that fills up."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from small_runs import TINY

from denoised_mdp.cli.main import main

HOLD = """
import sys
from denoised_mdp.run.folder import RunFolder
with RunFolder(sys.argv[1]).lock():
    print("held", flush=True)
    input()
"""


def test_a_second_training_in_the_folder_is_refused_until_the_first_has_crashed(tmp_path, capsys):
    command = ["train", *TINY, "train.total_steps=80", f"run_dir={tmp_path / 'run'}"]
    assert main(command) == 0
    run = tmp_path / "run"
    holder = subprocess.Popen([sys.executable, "-c", HOLD, str(run)], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        assert holder.stdout.readline() == b"held\n"
        before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
        assert main([*command, "train.total_steps=90"]) == 2
        assert f"in use by another process (id {holder.pid})" in capsys.readouterr().err
        assert before == {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    finally:
        holder.kill()
        holder.communicate()
    assert main([*command, "train.total_steps=90"]) == 0


FULL_DISK = """
import os, shutil, subprocess, sys
sys.path.insert(0, sys.argv[2])
from pathlib import Path
from small_runs import TINY
from denoised_mdp.run import checkpoint
from denoised_mdp.cli.main import main
disk, whole = Path(sys.argv[1]) / "disk", Path(sys.argv[1]) / "whole"
disk.mkdir()
options = [*TINY, "train.total_steps=160", "train.checkpoint_every=40", "train.eval_every=0", "policy.horizon=4"]
assert main(["train", *options, f"run_dir={whole}"]) == 0
size = lambda path: sum(file.stat().st_blocks * 512 for file in path.rglob("*"))
one = size(whole / "checkpoints") // 2
room = size(whole) - size(whole / "checkpoints") + one + one // 2
subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={room}", "none", str(disk)], check=True)
command = ["train", *options, f"run_dir={disk / 'run'}"]
print("MOUNTED", flush=True)
for _ in range(2):  # trying again without making room changes nothing
    print("CODE", main(command), checkpoint.list_steps(disk / "run" / "checkpoints"), flush=True)
    assert 0 < checkpoint.load(disk / "run" / "checkpoints")[0] < 160
subprocess.run(["mount", "-o", f"remount,size={4 * room}", str(disk)], check=True)
print("CODE", main(command))
print("COMPARE", main(["compare", str(whole), str(disk / "run")]))
"""


@pytest.mark.timeout(900)  # three trainings in a process of their own
def test_a_disk_that_fills_up_ends_in_one_message_and_costs_nothing(tmp_path):
    """On a real small disk: a tmpfs in a mount namespace of our own."""
    if not shutil.which("unshare"):
        pytest.skip("needs unshare(1)")
    alone = ["unshare", "-rm"]
    if subprocess.run([*alone, "mount", "-t", "tmpfs", "none", str(tmp_path)], capture_output=True).returncode:
        pytest.skip("a small disk cannot be mounted here")
    command = [*alone, sys.executable, "-c", FULL_DISK, str(tmp_path), str(Path(__file__).parent)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert "MOUNTED" in done.stdout, done.stderr
    lines = [line for line in done.stdout.splitlines() if line.startswith(("CODE", "COMPARE"))]
    assert lines[0] == lines[1] and lines[0].startswith("CODE 2 ["), done.stdout + done.stderr
    assert lines[2:] == ["CODE 0", "COMPARE 0"], done.stdout + done.stderr
    errors = [line for line in done.stderr.splitlines() if "error" in line]
    assert len(errors) == 2 and "Traceback" not in done.stderr
    assert all("No space left" in line and "run the same command again" in line for line in errors)
