"""Damaged, strange and hostile input: one line that says what to do, or exactly what was saved; never anything else."""

import dataclasses
import functools
import hashlib
import json
import os
import pickle
import shutil
import sys
import tempfile
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from small_runs import finish, forked, run_units, tiny
from test_checkpoint import same

import denoised_mdp
from denoised_mdp.config import load_config, read_config, save_config
from denoised_mdp.config.schema import SACConfig
from denoised_mdp.errors import UserError
from denoised_mdp.replay.ring import Replay
from denoised_mdp.run import checkpoint
from denoised_mdp.session import train

REPEATABLE = settings(derandomize=True, deadline=None)
FILES = ("tensors.safetensors", "state.json", "manifest.json")


@functools.cache
def unpacked() -> Path:
    """A run folder of a tiny model, with two checkpoints; copy it before changing it."""
    folder = Path(tempfile.mkdtemp()) / "run"
    sizes = ["model.depth=1", "model.embed=8", "model.reward_hidden=8", "policy.hidden=8"]
    rows = ["model.x={belief: 4, state: 2}", "model.y={belief: 3, state: 2}"]
    run_units(tiny(folder, *sizes, *rows, "train.checkpoint_every=40"), 66)  # 62 actions, 4 updates
    return folder


@pytest.fixture(scope="module", autouse=True)
def tidy():
    yield
    shutil.rmtree(unpacked().parent)
    unpacked.cache_clear()


@pytest.fixture
def run(tmp_path):
    return shutil.copytree(unpacked(), tmp_path / "run")


@functools.cache
def newest() -> dict:
    """The tree of the newest checkpoint, read before anything was damaged."""
    return checkpoint.load(unpacked() / "checkpoints", 124)[1]


def damage(folder: Path, name: str, change) -> None:
    """Replace one file of the newest checkpoint by `change(its bytes)`, and check that it is refused or unharmed."""
    path = folder / "checkpoints" / "step_000000124" / name
    whole = path.read_bytes()
    path.write_bytes(change(whole))
    try:
        step, tree = checkpoint.load(folder / "checkpoints", 124)
    except UserError as error:
        assert len(str(error).splitlines()) == 1
    else:
        assert name == "manifest.json" and step == 124  # a blank of it was damaged, for example
        same(tree, newest())
    finally:
        path.write_bytes(whole)


@pytest.mark.parametrize("name", FILES)
def test_checkpoints_truncated_at_every_kilobyte(run, name):
    size = (run / "checkpoints" / "step_000000124" / name).stat().st_size
    for length in {*range(0, size, 1024), size - 1, 1}:
        damage(run, name, lambda data, length=length: data[:length])


def test_checkpoints_with_flipped_bits(run):
    @settings(REPEATABLE, max_examples=200)
    @given(st.sampled_from(FILES), st.floats(0, 1, exclude_max=True), st.integers(0, 7))
    def check(name, where, bit):
        def flip(data):
            data = bytearray(data)
            data[int(where * len(data))] ^= 1 << bit
            return bytes(data)

        damage(run, name, flip)

    check()


def test_checkpoints_with_other_bytes(run):
    """Files that were overwritten with anything at all, their checksums made to fit."""
    JSON = st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(
                st.text(max_size=5)
                | st.sampled_from(
                    ["$tensor", "$dict", "$tuple", "$bytes", "$float", "$array", "format", "step", "sha256"]
                ),
                inner,
                max_size=3,
            )
        ),
        max_leaves=8,
    )
    contents = st.binary(max_size=60) | JSON.map(lambda tree: json.dumps(tree).encode())

    @settings(REPEATABLE, max_examples=60)
    @given(st.sampled_from(FILES), contents)
    def check(name, content):
        path = run / "checkpoints" / "step_000000124"
        saved = {file: (path / file).read_bytes() for file in FILES}
        (path / name).write_bytes(content)
        if name != "manifest.json":
            manifest = json.loads(saved["manifest.json"])
            manifest["sha256"][name] = hashlib.sha256(content).hexdigest()
            (path / "manifest.json").write_text(json.dumps(manifest))
        try:
            denoised_mdp.load(run, checkpoint=124, device="cpu")
            raise AssertionError("this was no checkpoint")
        except UserError as error:
            assert len(str(error).splitlines()) == 1
        finally:
            for file in FILES:
                (path / file).write_bytes(saved[file])

    check()


@pytest.mark.parametrize("name", [*FILES, None])
def test_a_missing_file_falls_back_to_the_checkpoint_before(run, name):
    path = run / "checkpoints" / "step_000000124"
    (path / name).unlink() if name else [file.unlink() for file in path.iterdir()]
    config = read_config(run)
    config.run_dir = str(run)
    with pytest.warns(UserWarning, match="step_000000124 is incomplete.*using step_000000120"):
        assert train(config)
    assert checkpoint.list_steps(run / "checkpoints")[-1] == 200


@pytest.mark.parametrize("version", [0, -1, *range(1, checkpoint.FORMAT), checkpoint.FORMAT + 1, 1.5, True, None, "2"])
def test_other_versions(run, version):
    for path in (run / "checkpoints").glob("*/manifest.json"):
        path.write_text(json.dumps(json.loads(path.read_text()) | {"format": version}))
    words = "written by another version.*train anew" if type(version) is int else "belongs elsewhere|damaged"
    with pytest.raises(UserError, match=words):
        denoised_mdp.load(run, device="cpu")


def change_x(config, **cells):
    """Change cells of the table's row x."""
    config.model.latents["x"] = dataclasses.replace(config.model.latents["x"], **cells)


CHANGES = {
    "wider": lambda config: change_x(config, belief=5),
    "categorical": lambda config: change_x(config, distribution="categorical"),
    "deeper": lambda config: setattr(config.model, "depth", 2),
    "actor": lambda config: setattr(config.policy, "actor_layers", 2),
    "dreamer": lambda config: (setattr(config.model, "name", "dreamer"), config.model.latents.pop("y")),
    "sac": lambda config: setattr(config, "policy", SACConfig(hidden=8)),
    "environment": lambda config: setattr(config.env, "task", "counting"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_checkpoint_of_another_configuration(run, change):
    """To train and to load."""
    config = read_config(run)
    config.run_dir = str(run)
    CHANGES[change](config)
    save_config(config, run / "config.yaml")
    with pytest.raises(UserError, match="does not fit .*one of them was replaced"):
        train(config)
    with pytest.raises(UserError, match="does not fit .*one of them was replaced"):
        denoised_mdp.load(run, device="cpu")


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory"),
        # no room even for what CUDA itself needs; older versions of PyTorch have no type of its own for that
        getattr(torch, "AcceleratorError", RuntimeError)("CUDA error: out of memory"),
        RuntimeError("can't allocate memory"),
    ],
)
def test_too_little_memory_is_not_the_checkpoints_fault(run, monkeypatch, error):
    """Nobody shall restore a folder from a copy since another program fills the GPU."""

    def full(*_, **__):
        raise error

    for name in ("load.build_agent", "checkpoint.decode"):
        with monkeypatch.context() as here:
            here.setattr(f"denoised_mdp.run.{name}", full)
            with pytest.raises(type(error)):
                denoised_mdp.load(run, device="cpu")


def test_the_replay_of_another_run_is_refused(run, tmp_path):
    """Of other shapes, and of the same shapes but with other rows."""
    config = tiny(tmp_path / "other", "seed=1", "train.total_steps=160", "replay.capacity=90")
    assert train(config)
    shutil.rmtree(run / "replay")
    shutil.copytree(tmp_path / "other" / "replay", run / "replay")
    with pytest.raises(UserError, match="rows than the checkpoint counts|lacks"):
        Replay.open(
            run / "replay", checkpoint.load(tmp_path / "other" / "checkpoints")[1]["replay"] | {"sample": [[70, 1]]}
        )
    step, tree = checkpoint.load(tmp_path / "other" / "checkpoints")
    rewards = np.load(tmp_path / "other" / "replay" / "reward.npy", mmap_mode="r+")
    for row in (80, tree["replay"]["total"] - 1):
        place = row % len(rewards)
        kept = rewards[place].copy()
        rewards[place] += 1
        rewards.flush()
        with pytest.raises(UserError, match="holds other rows than the checkpoint counts.*start in a new run_dir"):
            Replay.open(tmp_path / "other" / "replay", tree["replay"])
        rewards[place] = kept  # not minus 1: the sum was rounded
        rewards.flush()
    Replay.open(tmp_path / "other" / "replay", tree["replay"]).close()


class Owned:
    """Creates a file when it is unpickled."""

    def __init__(self, path):
        self.path = str(path)

    def __reduce__(self):
        return os.mkdir, (self.path,)


def audit(run: Path) -> int:
    """Load a run twice, and print which events of the second time are forbidden, and the number of all."""
    denoised_mdp.load(run, device="cpu")  # imports happen here
    seen = []

    def note(event, _):
        if event != "exec" or sys._getframe(1).f_globals["__name__"] != "typing":  # it evaluates our own annotations
            seen.append(event)

    sys.addaudithook(note)
    denoised_mdp.load(run, device="cpu")
    number = len(seen)
    forbidden = ("pickle", "exec", "import", "os.system")
    forbidden += ("os.exec", "os.posix_spawn", "os.fork", "subprocess", "socket")
    print(sorted({event for event in seen if event.startswith(forbidden)}), number)
    return 0


def test_opening_a_hostile_run_runs_none_of_its_code(run, tmp_path):
    """Pickles in every file, with right checksums; YAML that constructs; and an audit of what loading executes."""
    owned = tmp_path / "owned"
    evil = pickle.dumps(Owned(owned))
    pickle.loads(evil)
    assert owned.exists()  # it would work
    owned.rmdir()

    for name in ("tensors.safetensors", "state.json"):
        copy = shutil.copytree(run, tmp_path / name)
        for path in (copy / "checkpoints").iterdir():
            (path / name).write_bytes(evil)
            manifest = json.loads((path / "manifest.json").read_text())
            manifest["sha256"][name] = hashlib.sha256(evil).hexdigest()
            (path / "manifest.json").write_text(json.dumps(manifest))
        with pytest.raises(UserError):
            denoised_mdp.load(copy, device="cpu")

    copy = shutil.copytree(run, tmp_path / "replay")
    for name in ("observation", "action", "reward", "is_first", "is_terminal", "number"):
        np.save(copy / "replay" / f"{name}.npy", np.array([Owned(owned)] * 90, object), allow_pickle=True)
    config = read_config(copy)
    config.run_dir = str(copy)
    with pytest.raises(UserError, match="missing or damaged"):
        train(config)

    copy = shutil.copytree(run, tmp_path / "yaml")
    (copy / "config.yaml").write_text(f"seed: !!python/object/apply:os.mkdir ['{owned}']\n")
    with pytest.raises(UserError):
        denoised_mdp.load(copy, device="cpu")
    assert not owned.exists()

    code, output = finish(*forked(lambda: audit(run)))  # a hook stays in its process
    found, number = output.rsplit(" ", 1)
    assert code == 0 and found == "[]" and int(number) > 10, output  # it opened files, and did nothing else


def test_the_last_choice_counts():
    assert list(load_config(["distractors=none", "distractors=camera_jitter"]).distractors) == ["camera_jitter"]
    assert list(load_config(["distractors=camera_jitter", "distractors=none"]).distractors) == []
