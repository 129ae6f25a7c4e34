"""Checkpoints come back bit for bit, or are refused; what is interrupted leaves the others whole."""

import contextlib
import copy
import errno
import json
import math
import os
import random
import resource
import shutil
import signal
import time
import warnings

import numpy as np
import pytest
import safetensors.torch
import torch
from small_runs import finish, forked

from denoised_mdp.errors import UserError
from denoised_mdp.run import checkpoint


def same(one, two):
    """Equality of trees in types, key order, dtypes, strides and bits."""
    assert type(one) is type(two)
    if isinstance(one, torch.Tensor):
        assert one.dtype == two.dtype and one.shape == two.shape and one.stride() == two.stride()
        assert bytes(one.flatten().view(torch.uint8)) == bytes(two.flatten().view(torch.uint8))
    elif isinstance(one, (np.ndarray, np.generic)):
        assert one.dtype == two.dtype and one.shape == two.shape and one.tobytes() == two.tobytes()
    elif isinstance(one, dict):
        assert list(one) == list(two) and [type(key) for key in one] == [type(key) for key in two]
        for key in one:
            same(one[key], two[key])
    elif isinstance(one, (list, tuple)):
        assert len(one) == len(two)
        for a, b in zip(one, two, strict=True):
            same(a, b)
    else:
        assert one == two or one != one and two != two
        if isinstance(one, float):
            assert math.copysign(1, one) == math.copysign(1, two)


def small(value=0):
    return {"agent": {"weight": torch.arange(500.0)}, "note": "x" * 400, "value": value}


def test_every_kind_of_leaf_round_trips(tmp_path):
    whole = torch.arange(12.0)
    tree = {
        "tensors": {
            str(dtype): torch.ones(3, 2).to(dtype)
            for dtype in (
                torch.float32,
                torch.float64,
                torch.bfloat16,
                torch.float16,
                torch.int64,
                torch.int32,
                torch.uint8,
                torch.bool,
                torch.uint64,
            )
        },
        "scalar": torch.tensor(2.5),
        "empty": torch.zeros(0, 3),
        "bits": torch.tensor([math.nan, -0.0, math.inf]),
        "views": [whole[:6], whole[6:], whole, whole],
        "weights": torch.randn(4, 3, 5, 5),
        "channels_last": torch.randn(4, 3, 5, 5).to(memory_format=torch.channels_last),
        "arrays": [
            np.array([2**64 - 1], np.uint64),
            np.array([[True, False]]),
            np.array(3.5),
            np.float32([math.nan, 1e-45]),
            np.zeros((0, 2), np.int16),
            np.arange(6).reshape(2, 3),
        ],
        "scalars": [np.float32(0.1), np.float64(0.1), np.int64(3), np.bool_(True)],
        "plain": [
            None,
            True,
            False,
            0,
            -(2**130),
            0.1,
            -0.0,
            5e-324,
            math.inf,
            -math.inf,
            math.nan,
            "",
            "é\n\0",
            b"",
            bytes(range(256)),
            [],
            {},
            (),
            (1, (2.0, [3])),
        ],
        "keys": {0: "int", "0": "str", "$tensor": "$", "a/b": torch.ones(1), -7: {}},
        "a/b": torch.zeros(1),
        "a": {"b": torch.ones(2)},
        "": {"": np.ones(1)},
    }
    original = copy.deepcopy(tree)
    assert checkpoint.save(tmp_path, 12, tree) == tmp_path / "step_000000012"
    step, loaded = checkpoint.load(tmp_path)
    assert step == 12
    same(loaded, original)
    same(tree, original)  # saving changes nothing
    loaded["tensors"]["torch.float32"].add_(1)  # what was loaded can be trained on
    loaded["arrays"][1][0, 0] = False


def test_byte_order_and_memory_order_do_not_matter(tmp_path):
    values = np.arange(6.0).reshape(2, 3)
    checkpoint.save(tmp_path, 0, {"big": values.astype(">f4"), "fortran": np.asfortranarray(values)})
    loaded = checkpoint.load(tmp_path)[1]
    same(loaded["big"], values.astype(np.float32))
    same(loaded["fortran"], values)


@pytest.mark.parametrize("leaf", [object(), {1.5: 0}, np.array(["text"]), np.array([None]), {1, 2}, len])
def test_other_types_are_refused_by_path(tmp_path, leaf):
    with pytest.raises(TypeError, match="/part/1"):
        checkpoint.save(tmp_path, 0, {"part": [0, leaf]})
    assert not checkpoint.list_steps(tmp_path)


def test_training_continues_bit_for_bit(tmp_path):
    """Optimizer (integer keys, tuples, step tensors) and all generators, through a checkpoint and without."""

    def build():
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.Flatten(), torch.nn.Linear(288, 2))
        return model.to(memory_format=torch.channels_last), np.random.default_rng(3), torch.Generator()

    def train(model, optimizer, numpy_rng, generator, steps=3):
        for _ in range(steps):
            noise = float(numpy_rng.normal()) + random.random()
            images = torch.randn(2, 3, 8, 8, generator=generator) + noise + torch.rand(())
            optimizer.zero_grad()
            model(images).square().sum().backward()
            optimizer.step()

    model, numpy_rng, generator = build()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    train(model, optimizer, numpy_rng, generator)
    tree = {
        "model": dict(model.state_dict()),
        "optimizer": optimizer.state_dict(),
        "numpy": numpy_rng.bit_generator.state,
        "python": random.getstate(),
        "legacy": np.random.RandomState(5).get_state(legacy=False),
        "torch": torch.get_rng_state(),
        "own": generator.get_state(),
    }
    checkpoint.save(tmp_path, 3, tree)
    tree = copy.deepcopy(tree)
    train(model, optimizer, numpy_rng, generator)

    other, other_rng, other_generator = build()
    other_optimizer = torch.optim.Adam(other.parameters(), lr=1e-2)
    loaded = checkpoint.load(tmp_path)[1]
    same(loaded, tree)
    other.load_state_dict(loaded["model"])
    other_optimizer.load_state_dict(loaded["optimizer"])
    other_rng.bit_generator.state = loaded["numpy"]
    other_generator.set_state(loaded["own"])
    torch.set_rng_state(loaded["torch"])
    random.setstate(loaded["python"])
    np.random.RandomState().set_state(loaded["legacy"])
    train(other, other_optimizer, other_rng, other_generator)
    same(dict(other.state_dict()), dict(model.state_dict()))
    same(other_optimizer.state_dict(), optimizer.state_dict())


def test_weights_can_be_read_by_others(tmp_path):
    path = checkpoint.save(tmp_path, 5, {"agent": {"world_model": {"encoder.0.weight": torch.ones(2)}}})
    weights = safetensors.torch.load_file(path / "tensors.safetensors")
    assert list(weights) == ["agent/world_model/encoder.0.weight"]
    assert not list(path.glob("*.pt")) and sorted(os.listdir(path)) == [
        "manifest.json",
        "state.json",
        "tensors.safetensors",
    ]


def test_keeps_the_newest(tmp_path):
    for step in (5, 100, 20_000, 1_234_567_890):
        checkpoint.save(tmp_path, step, small(step))
    assert checkpoint.list_steps(tmp_path) == [20_000, 1_234_567_890]
    assert checkpoint.load(tmp_path)[0] == 1_234_567_890
    assert checkpoint.load(tmp_path, 20_000)[1]["value"] == 20_000
    checkpoint.save(tmp_path, 1_300_000_000, small(), keep=3)
    assert len(checkpoint.list_steps(tmp_path)) == 3
    assert all(path.name.startswith("step_") for path in tmp_path.iterdir())


def test_missing_checkpoints_are_named(tmp_path):
    with pytest.raises(UserError, match="no checkpoint in .*nowhere yet.$"):
        checkpoint.load(tmp_path / "nowhere")
    checkpoint.save(tmp_path, 10, small())
    with pytest.raises(UserError, match="no checkpoint of step 11 .*steps with one: 10"):
        checkpoint.load(tmp_path, 11)


def test_saving_a_step_again_and_going_back(tmp_path):
    for step, value in ((1, "a"), (2, "b"), (3, "c"), (3, "d")):
        checkpoint.save(tmp_path, step, small(value))
    assert checkpoint.list_steps(tmp_path) == [2, 3]
    assert checkpoint.load(tmp_path)[1]["value"] == "d"
    checkpoint.save(tmp_path, 2, small("e"))  # the run continued from an earlier point: step 3 is void
    assert checkpoint.list_steps(tmp_path) == [2]
    assert checkpoint.load(tmp_path)[1]["value"] == "e"
    (tmp_path / "step_000000002").rename(tmp_path / "step_000000002.old")  # killed between two renames
    assert checkpoint.load(tmp_path)[1]["value"] == "e"
    checkpoint.save(tmp_path, 2, small("f"))
    assert [path.name for path in tmp_path.iterdir()] == ["step_000000002"]


def damage(path, how, at):
    data = bytearray(path.read_bytes())
    if how == "truncate":
        del data[int(at * len(data)) :]
    elif how == "flip":
        data[int(at * (len(data) - 1))] ^= 4
    elif how == "append":
        data += b"\n "
    if how == "remove":
        path.unlink()
    else:
        path.write_bytes(data)


@pytest.mark.parametrize("name", ["tensors.safetensors", "state.json", "manifest.json"])
@pytest.mark.parametrize(
    "how, at",
    [("remove", 0), ("append", 0)]
    + [(how, at) for how in ("truncate", "flip") for at in (0, 0.01, 0.2, 0.5, 0.77, 0.999)],
)
def test_damage_is_found_and_the_one_before_used(tmp_path, name, how, at):
    checkpoint.save(tmp_path, 1, small("before"))
    path = checkpoint.save(tmp_path, 2, small("after"))
    damage(path / name, how, at)
    if (name, how) == ("manifest.json", "append"):
        assert checkpoint.load(tmp_path)[0] == 2  # blanks after JSON are no damage
        return
    with pytest.warns(UserWarning, match="step_000000002.*using step_000000001"):
        step, tree = checkpoint.load(tmp_path)
    assert step == 1
    same(tree, small("before"))
    with pytest.raises(UserError, match=f"step_000000002 is .*{name}|step_000000002 is damaged"):
        checkpoint.load(tmp_path, 2)
    shutil.rmtree(tmp_path / "step_000000001")
    with pytest.raises(UserError, match="step_000000002.*start in a new run_dir"):
        checkpoint.load(tmp_path)


def test_a_flipped_bit_of_the_manifest_is_harmless(tmp_path):
    """The checksums guard the other files, and nothing guards the manifest: no flip of it may mislead."""
    path = checkpoint.save(tmp_path, 2, small("after")) / "manifest.json"
    whole = path.read_bytes()
    for position in range(len(whole)):
        flipped = bytearray(whole)
        flipped[position] ^= 1 << position % 8
        path.write_bytes(flipped)
        with contextlib.suppress(UserError):
            assert checkpoint.load(tmp_path)[1]["value"] == "after"  # a blank became another blank


def test_another_format_is_refused(tmp_path):
    checkpoint.save(tmp_path, 1, small())
    path = checkpoint.save(tmp_path, 2, small()) / "manifest.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"format": checkpoint.FORMAT + 1}))
    with pytest.raises(UserError, match="written by another version.*train anew"):
        checkpoint.load(tmp_path)


def test_a_full_disk_leaves_the_last_checkpoint_intact(tmp_path):
    """A limit on the size of files stands for a disk with too little room."""
    checkpoint.save(tmp_path, 1, small("whole"))
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, before[1]))
    try:
        with pytest.raises(UserError, match="step 2 cannot be saved .*step 1 is intact. Make room"):
            checkpoint.save(tmp_path, 2, {"agent": torch.zeros(100_000)})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert [path.name for path in tmp_path.iterdir()] == ["step_000000001"]
    assert checkpoint.load(tmp_path)[1]["value"] == "whole"


@pytest.mark.parametrize("call", ["fsync", "rename"])
def test_interrupted_anywhere_leaves_a_whole_one(tmp_path, monkeypatch, call):
    """Stop at each call that touches the disk, once with an error and once as by a kill, and save again."""
    real = getattr(os, call)

    class Killed(BaseException):
        pass

    def failing(after, error):
        calls = [0]

        def replacement(*arguments, **options):
            calls[0] += 1
            if calls[0] > after:
                raise error
            return real(*arguments, **options)

        return replacement

    def rmtree_unless_cleaning_up(path, ignore_errors=False, real=shutil.rmtree):
        if not ignore_errors:
            real(path)

    number = 0
    for error in (OSError(errno.ENOSPC, "No space left on device"), Killed()):
        for after in range(8):
            with monkeypatch.context() as patch:
                patch.setattr(os, call, failing(after, error))
                if isinstance(error, Killed):  # nothing can be cleaned up after a kill
                    patch.setattr(checkpoint.shutil, "rmtree", rmtree_unless_cleaning_up)
                try:
                    checkpoint.save(tmp_path, number, small(number))
                    number += 1
                except UserError as message:
                    assert "No space left on device" in str(message)
                except Killed:
                    pass
            if number:
                with warnings.catch_warnings():
                    warnings.simplefilter("error")
                    step, tree = checkpoint.load(tmp_path)
                same(tree, small(step))
                assert step in (number - 1, number)
        number += 1
        checkpoint.save(tmp_path, number, small(number))
        number += 1
        assert all(path.name.startswith("step_") for path in tmp_path.iterdir())


def save_for_ever(folder):
    """Each step twice, so that some replace another; one byte is written after each."""
    steps = checkpoint.list_steps(folder)
    number = 2 * steps[-1] if steps else 0
    while True:
        number += 1
        checkpoint.save(folder, number // 2, {"agent": torch.full((50_000,), float(number // 2))})
        os.write(1, b".")


def test_killed_while_saving(tmp_path):
    """A real kill at random moments: the newest checkpoint is always whole."""
    rng, last = random.Random(0), 0
    for _ in range(6):
        child, pipe = forked(lambda: save_for_ever(tmp_path))
        assert os.read(pipe, 1) == b"."
        began, saves = time.monotonic(), rng.randint(2, 5)
        for _ in range(saves):
            assert os.read(pipe, 1) == b".", "it could not save"
        time.sleep(rng.uniform(0.0, 2.0) * (time.monotonic() - began) / saves)
        os.kill(child, signal.SIGKILL)
        assert finish(child, pipe)[0] == -signal.SIGKILL
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            step, tree = checkpoint.load(tmp_path)
        assert tree["agent"].eq(step).all() and step > last
        last = step


@pytest.mark.parametrize("number", [errno.EACCES, errno.EIO, errno.EMFILE, errno.ESTALE])
def test_a_checkpoint_that_cannot_be_read_now_is_not_taken_for_damaged(number, tmp_path, monkeypatch):
    """It may be whole. Going on from the one before would delete what came after that: log lines, snapshots."""
    for step in (1, 2):
        checkpoint.save(tmp_path, step, {"weights": torch.ones(3) * step})
    real = checkpoint.Path.read_bytes

    def read_bytes(path):
        if "step_000000002" in str(path):
            raise OSError(number, os.strerror(number), str(path))
        return real(path)

    monkeypatch.setattr(checkpoint.Path, "read_bytes", read_bytes)
    with pytest.raises(UserError, match=rf"step_000000002/.* cannot be read \({os.strerror(number)}\). Mend that"):
        checkpoint.load(tmp_path)
    monkeypatch.undo()
    assert checkpoint.load(tmp_path)[0] == 2
