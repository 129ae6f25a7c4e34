"""Rows on disk: what is read in runs is what lies there."""

import os
from pathlib import Path

import numpy as np
import pytest

from denoised_mdp import UserError
from denoised_mdp.replay import storage as columns
from denoised_mdp.replay.storage import Columns

LAYOUT = {"wide": (np.dtype(np.uint8), (64, 80, 1)), "narrow": (np.dtype(np.float32), (3,))}
PLACES = 60


@pytest.fixture
def filled(tmp_path):
    """Columns whose every row is random, and the rows."""
    store, rng = Columns.create(tmp_path, LAYOUT, PLACES), np.random.default_rng(0)
    rows = {
        "wide": rng.integers(0, 256, (PLACES, 64, 80, 1), dtype=np.uint8),
        "narrow": rng.normal(size=(PLACES, 3)).astype(np.float32),
    }
    for place in range(PLACES):
        store.write(place, {name: column[place] for name, column in rows.items()})
    yield store, rows
    store.close()


def places():
    """Segments side by side; some turn around at the end of the files, some are torn by growing; single rows."""
    starts = np.array([0, 7, 52, 59, 30])
    ring = (starts + np.arange(12)[:, None]) % PLACES
    torn = np.where(np.arange(12) < 5, 3 + np.arange(12), 40 + np.arange(12))
    rng = np.random.default_rng(1)
    return [
        ring,
        torn,
        torn[::-1],
        ring.reshape(12, 5, 1),
        rng.integers(0, PLACES, (4, 3, 2)),
        np.arange(PLACES),
        np.array([], int),
        np.zeros((0, 3), int),
        np.array([59]),
    ]


@pytest.mark.parametrize("most", [None, 1, 5000, 12_345])  # bytes that the system hands over at a time
@pytest.mark.parametrize("buffers", [1024, 5])
def test_runs_of_rows_are_what_lies_there(filled, monkeypatch, most, buffers):
    store, rows = filled
    monkeypatch.setattr(columns, "IOV_MAX", buffers)
    preadv = os.preadv

    def hesitant(file, parts, offset):
        assert len(parts) <= buffers
        return preadv(file, [parts[0][:most]], offset) if most else preadv(file, parts, offset)

    monkeypatch.setattr(os, "preadv", hesitant)
    for where in places()[1::3] if most == 1 else places():  # a system call per byte takes its time
        for name in LAYOUT:
            found = store.read(name, where)
            assert found.dtype == rows[name].dtype and found.flags.c_contiguous and found.flags.writeable
            np.testing.assert_array_equal(found, rows[name][where])


def test_a_system_without_preadv_reads_the_same(filled, monkeypatch):
    store, rows = filled
    monkeypatch.delattr(os, "preadv")
    for where in places():
        np.testing.assert_array_equal(store.read("wide", where), rows["wide"][where])


def test_a_file_that_became_shorter_is_one_error(filled):
    store, _ = filled
    path = store.folder / "wide.npy"
    os.truncate(path, path.stat().st_size - 100)
    with pytest.raises(UserError, match="wide.npy is truncated"):
        store.read("wide", np.arange(50, PLACES))
    assert store.read("wide", np.arange(50, PLACES - 1)).shape == (9, 64, 80, 1)


@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="open files cannot be counted")
def test_a_refused_folder_leaves_no_file_open(tmp_path):
    layout = {name: (np.dtype(np.float32), (2,)) for name in ("first", "second", "third")}
    Columns.create(tmp_path, layout, 5).close()
    (tmp_path / "third.npy").write_bytes(b"")
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(UserError, match="third.npy is missing or damaged"):
        Columns(tmp_path, layout, 5)
    assert len(os.listdir("/proc/self/fd")) == before


def test_small_pictures_are_not_read_through_the_map(tmp_path, monkeypatch):
    """Else the process would appear to grow by all that it has read."""
    layout = {"observation": (np.dtype(np.uint8), (32, 32, 3)), "action": (np.dtype(np.float32), (38,))}
    store, read = Columns.create(tmp_path, layout, 4), []
    for name, file in store._files.items():
        monkeypatch.setattr(file, "read", lambda places, name=name: read.append(name))
    for name in layout:
        store.read(name, np.arange(3))
    store.close()
    assert read == ["observation"]
