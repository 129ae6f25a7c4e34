"""What a GPU would refuse is found without one."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from torch.utils import backend_registration

if not hasattr(backend_registration, "_setup_privateuseone_for_python_backend"):
    pytest.skip("this PyTorch cannot have a device that is written in Python", allow_module_level=True)

PROGRAM = Path(__file__).with_name("fake_device.py")


@pytest.fixture(scope="module")
def cases():
    """What the program prints; in a process of its own, since it names a backend for good."""
    done = subprocess.run([sys.executable, str(PROGRAM)], capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_everything_stays_on_the_device_and_nothing_waits_for_data(cases):
    found = {tuple(case["case"]): case["found"] for case in cases if case["planted"] is None}
    assert len(found) == 8
    kinds = ("weights", "gradients", "metrics", "acting", "pictures")
    assert found == {case: {kind: ["imaginary:0"] for kind in kinds} for case in found}


def test_planted_mistakes_are_found(cases):
    errors = {case["planted"]: case["found"].get("error", "") for case in cases if case["planted"]}
    assert "same device" in errors["forgetful"]
    assert errors["curious"].startswith("DataDependent")
