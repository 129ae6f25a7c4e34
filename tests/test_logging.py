"""Metrics without gaps or duplicates over restarts."""

import contextlib
import io
import json
import math
import os
import resource
import shutil
import time

import numpy as np
import pytest
import torch
from PIL import Image
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from denoised_mdp.errors import UserError
from denoised_mdp.run.logger import Logger, as_floats


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
    logger.log(
        10,
        {
            "float": 0.1,
            "int": 2**60,
            "numpy": np.float32(0.5),
            "array": np.array([3]),
            "tensor": torch.tensor(0.25),
            "double": torch.tensor([0.1], dtype=torch.float64),
            "half": torch.tensor(1.5, dtype=torch.bfloat16),
            "count": torch.tensor(2**40),
            "grad": torch.tensor(2.0, requires_grad=True),
            "nan": math.nan,
            "inf": torch.tensor(-math.inf),
        },
    )
    picture = np.random.default_rng(0).integers(0, 256, (4, 6, 3), dtype=np.uint8)
    Image.fromarray(picture).save(tmp_path / "rows.png")
    logger.image(10, "rows", tmp_path / "rows.png")
    logger.close()
    assert lines(tmp_path) == [
        {
            "step": 10,
            "float": 0.1,
            "int": 2**60,
            "numpy": 0.5,
            "array": 3,
            "tensor": 0.25,
            "double": 0.1,
            "half": 1.5,
            "count": 2**40,
            "grad": 2.0,
            "nan": None,
            "inf": None,
        }
    ]
    assert list(lines(tmp_path)[0])[1:4] == ["float", "int", "numpy"]
    events = EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    assert events.Scalars("tensor")[0].value == 0.25 and events.Scalars("inf")[0].value == -math.inf
    [image] = events.Images("rows")
    assert (image.step, image.height, image.width) == (10, 4, 6)
    assert np.array_equal(Image.open(io.BytesIO(image.encoded_image_string)), picture)


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


TORN = ("", '{"step": 1', '{"step": 10, "a": 1}', "[]\n", "\n", "\0\0\0", "7\n")


@pytest.mark.parametrize("torn", TORN)
def test_resume_without_gaps_or_duplicates(tmp_path, restart, torn):
    """A run that is killed after step 5 and continues from step 3 equals an undisturbed one."""

    def run(folder, first, last, *checkpoint):
        folder.mkdir(exist_ok=True)
        logger, states = Logger(folder, *checkpoint), {}
        for step in range(first, last + 1):
            logger.log(step, {"a": step})
            logger.log(step, {"b": -step})
            logger.flush()
            states[step] = (step, logger.lines, logger.events())
        return logger, states

    run(tmp_path / "whole", 0, 8)[0].close()
    killed, states = run(tmp_path / "killed", 0, 5)
    (tmp_path / "killed" / "metrics.jsonl").open("a").write(torn)
    restart()
    run(tmp_path / "killed", 4, 8, *states[3])[0].close()
    killed.close()
    whole, resumed = ((tmp_path / name / "metrics.jsonl").read_bytes() for name in ("whole", "killed"))
    assert whole == resumed
    assert steps(tmp_path / "killed", "a") == steps(tmp_path / "whole", "a") == list(range(9))
    assert not list((tmp_path / "killed").glob("*.tmp"))


def test_resume_within_a_step(tmp_path, restart):
    logger = Logger(tmp_path)
    logger.log(1, {"a": 1})
    logger.log(2, {"a": 2})
    logger.flush()
    checkpoint = 2, logger.lines, logger.events()
    logger.log(2, {"b": 2})  # after the checkpoint, at the same step
    logger.close()
    restart()
    logger = Logger(tmp_path, *checkpoint)
    assert logger.lines == checkpoint[1] == 2
    logger.log(2, {"b": 2})
    logger.close()
    assert steps(tmp_path, "a") == [1, 2] and steps(tmp_path, "b") == [2]
    assert lines(tmp_path) == [{"step": 1, "a": 1}, {"step": 2, "a": 2}, {"step": 2, "b": 2}]


def test_lines_that_are_lost_are_told(tmp_path):
    """A line that the checkpoint counts is missing or damaged: nothing takes its place, and a warning says so."""
    damages = [lambda kept: kept[1:], lambda kept: [kept[0], kept[1][:-4] + "\n", *kept[2:]], lambda kept: []]
    for damage in (*damages, *(lambda kept, torn=torn: [*kept[:2], torn] for torn in TORN)):
        folder = tmp_path / str(len(list(tmp_path.iterdir())))
        folder.mkdir()
        logger = Logger(folder)
        for name in "abc":
            logger.log(2, {name: 1})
        logger.flush()
        counted, events = logger.lines, logger.events()
        logger.log(2, {"after the checkpoint": 1})
        logger.close()
        written = (folder / "metrics.jsonl").read_text().splitlines(keepends=True)
        (folder / "metrics.jsonl").write_text("".join(damage(written[:counted])))
        with pytest.warns(UserWarning, match=r"metrics.jsonl lacks \d of the 3 lines that the checkpoint counts"):
            logger = Logger(folder, 2, counted, events)
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


@pytest.mark.parametrize("how", ["replace", "delete"])
def test_a_log_that_is_replaced_while_it_is_written_is_no_silent_loss(tmp_path, how):
    """As an editor, ``sed -i`` and ``rsync`` replace a file: later lines would go to the one that is gone."""
    logger = Logger(tmp_path)
    logger.log(1, {"a": 1})
    logger.flush()
    if how == "replace":
        shutil.copy(logger.path, tmp_path / "copy")
        os.replace(tmp_path / "copy", logger.path)
    else:
        logger.path.unlink()
    logger.log(2, {"a": 2})
    with pytest.raises(UserError, match="metrics.jsonl was deleted, replaced or moved .* run the same command again"):
        logger.flush()
    logger.close()


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
