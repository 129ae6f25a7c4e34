"""The quick version of scripts/fault_injection.py: few kills, the first of them while a checkpoint is written."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parent.parent / "scripts" / "fault_injection.py"


@pytest.mark.timeout(900)  # it is nothing but processes, and they wait for a busy machine
def test_a_run_that_is_killed_again_and_again_ends_like_the_undisturbed_one(tmp_path):
    output = tmp_path / "result.json"
    command = [sys.executable, str(SCRIPT), "--kills", "4", "--steps", "160", "--seed", "3", "--output", str(output)]
    command.append("train.probe_every=0")  # it takes half of the time, and changes nothing, as evaluations do
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0 and "identical" in done.stdout.splitlines(), done.stdout + done.stderr
    result = json.loads(output.read_text())
    assert result["kills"] == 4 and result["runs"] == result["identical"]
    assert result["kills by an alarm in a checkpoint"] >= 1, "the first one is, by this seed"
