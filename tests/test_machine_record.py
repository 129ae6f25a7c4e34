"""What is written down about the machine of a run."""

import json
import os
import re
from pathlib import Path

import pytest
import torch
from small_runs import tiny

from denoised_mdp.analysis.report.data import read_machine, read_run
from denoised_mdp.analysis.table.write import parameters
from denoised_mdp.progress import shown
from denoised_mdp.run.machine import cpu_name, record_start
from denoised_mdp.session import train


def test_every_start_adds_a_line(tmp_path, capsys):
    with shown():
        train(tiny(tmp_path / "run", "train.total_steps=80"))
        train(tiny(tmp_path / "run", "train.total_steps=120"))
    rows = [json.loads(line) for line in (tmp_path / "run" / "machine.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows] == [0, 80]
    assert all(row["precision"] == "float32" and row["device"] == "cpu" for row in rows)
    announced = capsys.readouterr().out
    assert all(f" {row['parameters']:,} parameters;" in announced for row in rows)
    assert parameters(read_run(tmp_path / "run")) == rows[-1]["parameters"]
    assert all(row["cores"] == os.cpu_count() and row["pytorch"] == torch.__version__ for row in rows)


def test_a_torn_line_does_not_cost_the_next_start_too(tmp_path):
    path = tmp_path / "machine.jsonl"
    for step in (0, 80):
        record_start(path, step, 1, torch.device("cpu"), "float32", torch.device("cpu"))
    path.write_bytes(path.read_bytes()[:-30])
    record_start(path, 120, 1, torch.device("cpu"), "float32", torch.device("cpu"))
    rows, problems = read_machine(path)
    assert [row["step"] for row in rows] == [0, 120] and len(problems) == 1
    record_start(path, 160, 1, torch.device("cpu"), "float32", torch.device("cpu"))
    assert [row["step"] for row in read_machine(path)[0]] == [0, 120, 160]


@pytest.mark.skipif(not Path("/proc/cpuinfo").exists(), reason="no /proc/cpuinfo here")
def test_name_of_the_processor_is_the_systems():
    named = re.search(r"model name\s*:\s*(.+)", Path("/proc/cpuinfo").read_text())  # some have none
    assert cpu_name() == named[1].strip() if named else cpu_name()


def test_a_disk_that_refuses_does_not_end_a_training(tmp_path):
    with pytest.warns(UserWarning, match="will not know the machine"):
        record_start(tmp_path / "missing" / "machine.jsonl", 0, 1, torch.device("cpu"), "float32", torch.device("cpu"))
