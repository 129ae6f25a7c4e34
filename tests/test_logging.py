"""Metrics without gaps or duplicates over restarts, and a progress line that tells the truth."""

import contextlib
import io
import json
import math
import os
import resource
import sys
import time
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from denoised_mdp.errors import UserError
from denoised_mdp.logging import Logger, Progress, as_floats, duration


def lines(folder):
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def steps(folder, name):
    events = EventAccumulator(str(folder / "tensorboard"))
    events.Reload()
    return [event.step for event in events.Scalars(name)]


@pytest.fixture
def restart(monkeypatch):
    """Let two seconds pass, because TensorBoard orders its files by the second in which they were made."""
    real, passed = time.time, [0]

    def later():
        passed[0] += 2

    monkeypatch.setattr(time, "time", lambda: real() + passed[0])
    return later


def test_numbers_of_every_kind(tmp_path):
    logger = Logger(tmp_path)
    logger.log(10, {
        "float": 0.1, "int": 2**60, "numpy": np.float32(0.5), "array": np.array([3]),
        "tensor": torch.tensor(0.25),
        "double": torch.tensor([0.1], dtype=torch.float64), "half": torch.tensor(1.5, dtype=torch.bfloat16),
        "count": torch.tensor(2**40), "grad": torch.tensor(2.0, requires_grad=True),
        "nan": math.nan, "inf": torch.tensor(-math.inf)})
    logger.image(10, "rows", np.zeros((4, 6, 3), np.uint8))
    logger.close()
    assert lines(tmp_path) == [{
        "step": 10, "float": 0.1, "int": 2**60, "numpy": 0.5, "array": 3, "tensor": 0.25, "double": 0.1,
        "half": 1.5, "count": 2**40, "grad": 2.0, "nan": None, "inf": None}]
    assert list(lines(tmp_path)[0])[1:4] == ["float", "int", "numpy"]
    events = EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    assert events.Scalars("tensor")[0].value == 0.25 and events.Scalars("inf")[0].value == -math.inf
    assert (events.Images("rows")[0].height, events.Images("rows")[0].width) == (4, 6)


def test_only_scalars():
    with pytest.raises(ValueError, match=r"metric loss is no scalar: it has shape \(2,\)"):
        as_floats({"loss": torch.zeros(2)})


def test_one_read_per_kind_of_tensor(monkeypatch):
    calls, real = [], torch.Tensor.tolist
    monkeypatch.setattr(torch.Tensor, "tolist", lambda tensor: calls.append(1) or real(tensor))
    monkeypatch.setattr(torch.Tensor, "item", None)
    assert as_floats({str(i): torch.tensor(i / 2) for i in range(9)})["8"] == 4.0
    assert len(calls) == 1


def test_a_line_is_whole_as_soon_as_it_is_logged(tmp_path):
    logger = Logger(tmp_path)
    for step in range(3):
        logger.log(step, {"a": step})
        assert lines(tmp_path)[-1] == {"step": step, "a": step}
    logger.close()


@pytest.mark.parametrize("torn", ["", '{"step": 1', '{"step": 10, "a": 1}', "[]\n", "\n", "\0\0\0", "7\n"])
def test_resume_without_gaps_or_duplicates(tmp_path, restart, torn):
    """A run that is killed after step 5 and continues from step 3 equals an undisturbed one."""
    def run(folder, first, last, **options):
        folder.mkdir(exist_ok=True)
        logger = Logger(folder, **options)
        for step in range(first, last + 1):
            logger.log(step, {"a": step})
            logger.log(step, {"b": -step})
        logger.flush()
        return logger

    run(tmp_path / "whole", 0, 8).close()
    killed = run(tmp_path / "killed", 0, 5)
    (tmp_path / "killed" / "metrics.jsonl").open("a").write(torn)
    restart()
    run(tmp_path / "killed", 4, 8, resume_step=3).close()
    killed.close()
    whole, resumed = ((tmp_path / name / "metrics.jsonl").read_bytes() for name in ("whole", "killed"))
    assert whole == resumed
    assert steps(tmp_path / "killed", "a") == steps(tmp_path / "whole", "a") == list(range(9))
    assert not list((tmp_path / "killed").glob("*.tmp"))


def test_resume_within_a_step(tmp_path):
    logger = Logger(tmp_path)
    logger.log(1, {"a": 1})
    logger.log(2, {"a": 2})
    lines_then = logger.lines
    logger.log(2, {"b": 2})  # after the checkpoint, at the same step
    logger.close()
    logger = Logger(tmp_path, resume_step=2, lines=lines_then)
    assert logger.lines == lines_then == 2
    logger.log(2, {"b": 2})
    logger.close()
    assert lines(tmp_path) == [{"step": 1, "a": 1}, {"step": 2, "a": 2}, {"step": 2, "b": 2}]


def test_lines_that_are_lost_are_told(tmp_path):
    """A line that the checkpoint counts is missing or damaged: nothing takes its place, and a warning says so."""
    for damage in (lambda kept: kept[1:], lambda kept: [kept[0], kept[1][:-4] + "\n", *kept[2:]], lambda kept: []):
        folder = tmp_path / str(len(list(tmp_path.iterdir())))
        folder.mkdir()
        logger = Logger(folder)
        for name in "abc":
            logger.log(2, {name: 1})
        counted = logger.lines
        logger.log(2, {"after the checkpoint": 1})
        logger.close()
        written = (folder / "metrics.jsonl").read_text().splitlines(keepends=True)
        (folder / "metrics.jsonl").write_text("".join(damage(written[:counted])))
        with pytest.warns(UserWarning, match=r"metrics.jsonl lacks \d of the 3 lines that the checkpoint counts"):
            logger = Logger(folder, resume_step=2, lines=counted)
        logger.close()
        assert logger.lines == len(lines(folder)) < counted
        assert not any("after the checkpoint" in line for line in lines(folder))


@pytest.mark.parametrize("damage", ["delete", "truncate"])
def test_curves_that_are_lost_are_told(tmp_path, damage):
    logger = Logger(tmp_path)
    logger.log(1, {"a": 1})
    logger.flush()
    state = {"resume_step": 1, "lines": logger.lines, "events": logger.events()}
    logger.close()
    path = next((tmp_path / "tensorboard").iterdir())
    path.unlink() if damage == "delete" else path.write_bytes(path.read_bytes()[:-1])
    with pytest.warns(UserWarning, match="tfevents.* is missing or shorter than the checkpoint counts.*a gap"):
        Logger(tmp_path, **state).close()
    assert len(lines(tmp_path)) == 1


def test_a_new_run_begins_anew(tmp_path, restart):
    for step in (7, 3):  # the first was killed before its first checkpoint
        restart()
        logger = Logger(tmp_path)
        logger.log(step, {"a": 0})
        logger.close()
    assert lines(tmp_path) == [{"step": 3, "a": 0}]
    assert steps(tmp_path, "a") == [3]


def test_a_full_disk_is_one_message(tmp_path):
    logger = Logger(tmp_path)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, before[1]))
    try:
        with pytest.raises(UserError, match="Metrics cannot be written.*Make room"):
            logger.log(0, {"a" * 2000: 0})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        with contextlib.suppress(UserError):
            logger.close()


def broken_pipe():
    reading, writing = os.pipe()
    os.close(reading)
    return os.fdopen(writing, "w", buffering=1)


@pytest.mark.parametrize("make", [io.StringIO, broken_pipe, lambda: None])
def test_a_line_that_nobody_can_read_ends_nothing(make, clock, monkeypatch):
    """Of a stream that is closed, of a pipe without a reader, and of a process that has no standard error."""
    stream = make()
    monkeypatch.setattr(sys, "stderr", stream)
    progress = Progress(1000)
    if isinstance(stream, io.StringIO):
        stream.close()
    assert train(clock, progress, 3) == (110, 30)
    progress.close()
    with contextlib.suppress(AttributeError, OSError):
        stream.close()


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.fixture
def clock(monkeypatch):
    now = SimpleNamespace(time=1000.0)
    monkeypatch.setattr("denoised_mdp.logging.time.monotonic", lambda: now.time)
    return now


def train(clock, progress, rounds, seconds_per_step=0.01, seconds_per_update=1.0, **returns):
    """Prefill of 50 steps, then rounds of 10 updates and 20 steps."""
    step = updates = 0
    for _ in range(25):
        step, clock.time = step + 2, clock.time + seconds_per_step
        progress.update(step, updates)
    for _ in range(rounds):
        for _ in range(10):
            updates, clock.time = updates + 1, clock.time + seconds_per_update
            progress.update(step, updates, **returns)
        for _ in range(10):
            step, clock.time = step + 2, clock.time + seconds_per_step
            progress.update(step, updates, **returns)
    return step, updates


@pytest.mark.parametrize("rounds", [2, 3, 50])
def test_speeds_are_of_whole_rounds(clock, rounds):
    """Neither prefill nor the part of a round that runs now distorts the speeds."""
    progress = Progress(1000, stream=io.StringIO())
    step, updates = train(clock, progress, rounds)
    seconds = 10 * 1.0 + 10 * 0.01
    for waited in (0, 5):
        steps_speed, updates_speed = progress.speeds(clock.time + waited, step, updates)
        assert steps_speed == pytest.approx(20 / seconds)
        assert updates_speed == pytest.approx(10 / seconds)
    progress.close()
    left = (1000 - step) / (20 / seconds)
    assert progress.stream.getvalue().endswith(f"{duration(left)} left\n")


def test_speeds_are_recent(clock):
    progress = Progress(10**6, stream=io.StringIO())
    train(clock, progress, 10)
    step, updates = 250, 100
    for _ in range(400):  # ten times as fast from here on
        updates, clock.time = updates + 10, clock.time + 1
        progress.update(step, updates)
        step, clock.time = step + 20, clock.time + 0.01
        progress.update(step, updates)
    assert progress.speeds(clock.time, step, updates)[1] == pytest.approx(10 / 1.01)
    assert len(progress._rounds) < 200


def test_no_time_left_is_claimed_before_a_round_was_measured(clock):
    progress = Progress(1000, stream=io.StringIO())
    train(clock, progress, 1)
    progress.close()
    assert "left" not in progress.stream.getvalue() and "20.2 steps/s" not in progress.stream.getvalue()


def test_plain_lines_at_an_interval(clock):
    progress = Progress(1000, interval=20, stream=io.StringIO())
    evaluation = SimpleNamespace(mean=512.34, standard_error=7.89)
    train(clock, progress, 10, train_return=431.0, evaluation=evaluation)
    progress.close()
    progress.close()
    text = progress.stream.getvalue()
    assert text.count("\n") == 6 and "\r" not in text
    assert text.splitlines()[-1] == (
        "step 250/1,000 (25.0%) | eval 512.3 ± 7.9 | train 431.0 | 1.98 steps/s, 0.99 updates/s"
        " | 6 min 18 s left")


def test_a_terminal_has_one_line(clock, monkeypatch):
    monkeypatch.setenv("COLUMNS", "60")
    progress = Progress(1000, stream=Terminal())
    train(clock, progress, 3, evaluation=SimpleNamespace(mean=1.0, standard_error=math.nan))
    progress.close()
    text = progress.stream.getvalue()
    assert text.count("\n") == 1 and text.endswith("\n") and text.count("\r") > 10
    assert all(len(line.removeprefix("\x1b[K")) < 60 for line in text.strip().split("\r"))
    assert "eval 1.0 |" in text


@pytest.mark.parametrize("seconds, text", [
    (-1, "0 s"), (59.9, "59 s"), (61, "1 min 1 s"), (3600, "1 h 0 min"), (11_520, "3 h 12 min"),
    (190_000, "2 d 4 h")])
def test_duration(seconds, text):
    assert duration(seconds) == text
