"""What a GPU would refuse is found without one."""

import json

import fake_device
import pytest
from small_runs import finish, forked


@pytest.fixture(scope="module")
def cases():
    """What the program prints; in a process of its own, since it names a backend for good."""
    code, said = finish(*forked(fake_device.main))
    assert code == 0, said
    return [json.loads(line) for line in said.splitlines() if line.startswith("{")]


def test_everything_stays_on_the_device_and_nothing_waits_for_data(cases):
    found = {tuple(case["case"]): case["found"] for case in cases if case["planted"] is None}
    assert len(found) == 8
    kinds = ("weights", "gradients", "metrics", "acting", "pictures")
    assert found == {case: {kind: ["imaginary:0"] for kind in kinds} for case in found}


def test_planted_mistakes_are_found(cases):
    errors = {case["planted"]: case["found"].get("error", "") for case in cases if case["planted"]}
    assert "same device" in errors["forgetful"]
    assert errors["curious"].startswith("DataDependent")
