"""The replay against a plain list of episodes, in place after a restart, and on a small or damaged disk."""

import errno
import os
import shutil
import tracemalloc
from collections import Counter

import numpy as np
import pytest

from denoised_mdp.errors import UserError
from denoised_mdp.replay.ring import Replay
from denoised_mdp.replay.rings import Rings
from denoised_mdp.replay.segments import choose_segments, read_segments
from denoised_mdp.replay.storage import Columns

SHAPE, ACTIONS = (4, 5, 3), 2


def row(number, is_first):
    """A row that tells its number in every column."""
    observation = np.frombuffer(np.int64(number).tobytes() * 8, np.uint8)[:60].reshape(SHAPE)
    return observation, np.full(ACTIONS, number + 0.5), 2.0 * number, is_first, number % 3 == 2


def numbers(batch):
    """Recover the row numbers [T, B] of a batch after checking that its columns agree."""
    length, batch_size = batch["reward"].shape
    flat = np.ascontiguousarray(batch["observation"].reshape(length, batch_size, -1)[..., :8])
    found = flat.view(np.int64)[..., 0]
    np.testing.assert_array_equal(batch["reward"], 2.0 * found)
    np.testing.assert_array_equal(batch["is_terminal"], found % 3 == 2)
    np.testing.assert_array_equal(batch["action"], np.stack([found + 0.5] * ACTIONS, -1))
    return found


def fill(replay, lengths, naive=None):
    """Add episodes of these lengths; `naive` collects the row numbers of each."""
    for length in lengths:
        rows = list(range(replay.total, replay.total + length))
        for number in rows:
            replay.add(*row(number, number == rows[0]))
        if naive is not None:
            naive.append(rows)


def naive_starts(episodes, capacity, length, oldest=0):
    """All segment starts, by brute force over the episodes; rows before `oldest` were evicted earlier."""
    total = episodes[-1][-1] + 1
    starts = []
    for episode in episodes:
        alive = [number for number in episode if number >= max(total - capacity, oldest)]
        starts += [alive[i] for i in range(len(alive)) if alive[i : i + length][length - 1 :]]
    return starts


def sample(replay, batch_size, length, rng):
    """A batch of one ring alone, as `Rings.sample`."""
    return read_segments([replay], *choose_segments([replay], batch_size, length, rng))


class EveryChoice:
    """Stands for a generator: `integers(n)` returns every number below n once."""

    def integers(self, high, size):
        assert size == high
        return np.arange(high)


@pytest.mark.parametrize("lengths", [[7], [1, 5, 3], [3, 9, 4, 1, 6], [2, 13, 2, 2, 8, 5, 11], [31], [40, 3]])
@pytest.mark.parametrize("slack", [0, 4])
@pytest.mark.parametrize("length", [1, 3, 5])
def test_every_start_exactly_once(tmp_path, lengths, slack, length):
    """Uniform sampling by enumeration: equally likely draws are different starts, and all of them."""
    replay, episodes = Replay(tmp_path, 20, SHAPE, ACTIONS, slack), []
    for episode in lengths:
        fill(replay, [episode], episodes)
        expected = naive_starts(episodes, 20, length)
        assert replay.count_segments(length) == len(expected)
        assert len(replay) == min(20, replay.total)
        if not expected:
            continue
        found = numbers(sample(replay, len(expected), length, EveryChoice()))
        assert sorted(found[0]) == expected
        np.testing.assert_array_equal(found, found[0] + np.arange(length)[:, None])


def test_running_episode_and_its_last_start(tmp_path):
    replay = Replay(tmp_path, 50, SHAPE, ACTIONS)
    fill(replay, [6])
    for number in range(6, 16):
        replay.add(*row(number, number == 6))
        starts = set(numbers(sample(replay, 400, 4, np.random.default_rng(number)))[0])
        assert starts == {0, 1, 2} | set(range(6, number - 2))


def test_frequencies_and_batch_contract(tmp_path):
    replay = Replay(tmp_path, 50, SHAPE, ACTIONS)
    fill(replay, [10, 4, 7])
    batch = sample(replay, 11 * 2000, 4, np.random.default_rng(0))
    shapes = {name: (value.dtype, value.shape) for name, value in batch.items()}
    assert shapes == {
        "observation": (np.uint8, (4, 22000, *SHAPE)),
        "action": (np.float32, (4, 22000, ACTIONS)),
        "reward": (np.float32, (4, 22000)),
        "is_first": (np.bool_, (4, 22000)),
        "is_terminal": (np.bool_, (4, 22000)),
    }
    assert all(value.flags.c_contiguous and value.flags.writeable for value in batch.values())
    found = numbers(batch)
    np.testing.assert_array_equal(batch["is_first"], np.isin(found, [0, 10, 14]))
    counts = Counter(found[0].tolist())
    expected = 22000 / replay.count_segments(4)  # 7 + 1 + 4 starts
    assert len(counts) == 12
    # chi-square with 11 degrees of freedom: 31.3 has probability 0.001
    assert sum((count - expected) ** 2 / expected for count in counts.values()) < 31.3


def test_no_segment_states_the_numbers(tmp_path):
    replay = Replay(tmp_path, 50, SHAPE, ACTIONS)
    with pytest.raises(UserError, match="No segment of 5 rows.* 0 of its 0 rows"):
        sample(replay, 1, 5, np.random.default_rng(0))
    fill(replay, [3, 4, 2])
    with pytest.raises(UserError, match="has 4 of its 9 rows.*segment_length"):
        sample(replay, 1, 5, np.random.default_rng(0))
    replay = Replay(tmp_path, 4, SHAPE, ACTIONS)
    fill(replay, [9])
    with pytest.raises(UserError, match=r"has 4 of its 4 rows.*larger replay.capacity \(it is 4\)"):
        sample(replay, 1, 5, np.random.default_rng(0))


@pytest.mark.parametrize("before", [[5], [6, 9, 3], [8, 30, 7], [4, 4, 4, 50]])
@pytest.mark.parametrize("after", [0, 1, 6])
def test_reopened_equals_undisturbed(tmp_path, before, after):
    """Rows added after the checkpoint leave no trace, wherever the ring stands."""
    replay, episodes = Replay(tmp_path / "a", 20, SHAPE, ACTIONS, slack=6), []
    fill(replay, before, episodes)
    replay.flush()
    state = replay.state()
    for number in range(1000, 1000 + after):  # lost by the crash
        replay.add(*row(number, number == 1003))
    replay.close()

    undisturbed = Replay(tmp_path / "b", 20, SHAPE, ACTIONS, slack=6)
    fill(undisturbed, before)
    replay = Replay.open(tmp_path / "a", state)
    for more in ([], [7], [11, 4, 12, 8]):
        fill(replay, more, episodes)
        fill(undisturbed, more)
        assert len(replay) == len(undisturbed)
        one = sample(replay, 64, 3, np.random.default_rng(5))
        two = sample(undisturbed, 64, 3, np.random.default_rng(5))
        for name in one:
            np.testing.assert_array_equal(one[name], two[name])
        starts = naive_starts(episodes, 20, 3)
        assert sorted(numbers(sample(replay, len(starts), 3, EveryChoice()))[0]) == starts


def test_reopen_within_an_episode(tmp_path):
    replay = Replay(tmp_path, 30, SHAPE, ACTIONS)
    fill(replay, [5, 4])
    state = replay.state()
    replay.close()
    replay = Replay.open(tmp_path, state)
    for number in range(9, 13):
        replay.add(*row(number, False))
    assert replay.count_segments(8) == 1  # rows 5 to 12 are one episode


def test_rows_overwritten_beyond_the_slack_are_named(tmp_path):
    replay = Replay(tmp_path, 20, SHAPE, ACTIONS, slack=4)
    fill(replay, [12, 18])
    state = replay.state()
    fill(replay, [9])
    replay.close()
    with pytest.warns(UserWarning, match="5 oldest of 20 rows"):
        replay = Replay.open(tmp_path, state)
    assert len(replay) == 15
    assert sorted(numbers(sample(replay, 13, 3, EveryChoice()))[0]) == list(range(15, 28))
    with pytest.raises(IndexError, match="rows 15 to 29"):
        replay.read(np.array([14]))


def set_back(folder, more):
    """A replay of 20 rows after 30, opened again as it was before so many `more`, which have overwritten all."""
    replay = Replay(folder, 20, SHAPE, ACTIONS)
    fill(replay, [12, 18])
    state = replay.state()
    fill(replay, [more])
    replay.close()
    with pytest.warns(UserWarning, match="20 oldest of 20 rows"):
        return Replay.open(folder, state)


@pytest.mark.parametrize("ends", [False, True])
def test_after_all_rows_were_overwritten_the_next_ones_count(tmp_path, ends):
    """As an episode of their own, where the checkpoint was inside one."""
    replay = set_back(tmp_path, 25)
    assert len(replay) == replay.count_segments(1) == 0
    for number in range(30, 36):
        replay.add(*row(number, ends and number == 30))
    assert replay.count_segments(4) == 3
    replay.add(*row(36, True))
    fill(replay, [9])
    assert sorted(numbers(sample(replay, 3 + 6, 4, EveryChoice()))[0]) == [30, 31, 32, *range(37, 43)]


def test_files_with_rows_of_a_later_part_do_not_grow_until_those_are_gone(tmp_path):
    """Set back by more than its places, the files hold two parts of the run, whose rows would claim one place."""
    replay = set_back(tmp_path, 45)
    for rows in (8, 12):
        fill(replay, [rows])
        state = replay.state()
        replay.close()
        if rows == 8:
            with pytest.raises(UserError, match="cannot grow yet.* until it has 20 newer rows"):
                Replay.open(tmp_path, state, capacity=27)
            with pytest.raises(UserError, match="earlier replay.capacity and train.checkpoint_every"):
                Replay.open(tmp_path, state, slack=1)
            replay = Replay.open(tmp_path, state)
    replay = Replay.open(tmp_path, state, capacity=27)
    assert sorted(numbers(sample(replay, 5 + 9, 4, EveryChoice()))[0]) == [*range(30, 35), *range(38, 47)]


@pytest.mark.parametrize("before", [0, 1])
def test_rows_overwritten_beyond_the_slack_are_named_by_a_larger_replay_too(tmp_path, before):
    """Also where a process before had enlarged the files, and did no more."""
    replay = Replay(tmp_path, 20, SHAPE, ACTIONS, slack=4)
    fill(replay, [12, 18])
    state = replay.state()
    fill(replay, [9])
    for _ in range(before + 1):
        replay.close()
        with pytest.warns(UserWarning, match="5 oldest of 20 rows"):
            replay = Replay.open(tmp_path, state, capacity=50)
    assert len(replay) == 15
    assert sorted(numbers(sample(replay, 13, 3, EveryChoice()))[0]) == list(range(15, 28))
    fill(replay, [40])
    assert len(replay) == 50
    assert sorted(numbers(sample(replay, 46, 3, EveryChoice()))[0]) == [*range(20, 28), *range(30, 68)]


def test_rows_that_were_never_written_are_missing_in_grown_files_too(tmp_path):
    replay = Replay(tmp_path, 20, SHAPE, ACTIONS, slack=4)
    fill(replay, [12, 18])
    state = replay.state()
    replay.close()
    column = np.load(tmp_path / "number.npy", mmap_mode="r+")
    column[column == 12] = 0
    column.flush()
    for capacity in (20, 50, 20):
        with pytest.raises(UserError, match="lacks 1 of the 20 rows"):
            Replay.open(tmp_path, state, capacity)


@pytest.mark.parametrize("before", [[5], [6, 14], [9, 17, 3], [30, 45]])
@pytest.mark.parametrize("after", [0, 5])
def test_growing_in_place(tmp_path, before, after):
    """All rows stay, also where the ring has wrapped, and the sampler goes on as if in a larger replay."""
    replay, episodes = Replay(tmp_path / "a", 20, SHAPE, ACTIONS, slack=6), []
    fill(replay, before, episodes)
    state, kept = replay.state(), replay.read(np.arange(max(0, sum(before) - 20), sum(before)))
    for number in range(1000, 1000 + after):  # lost by the crash
        replay.add(*row(number, number == 1003))
    replay.close()

    replay = Replay.open(tmp_path / "a", state, capacity=50, slack=8)
    oldest = replay.total - len(replay)
    assert len(replay) == min(20, sum(before)) and replay.capacity == 50
    for name, column in replay.read(np.arange(oldest, replay.total)).items():
        np.testing.assert_array_equal(column, kept[name])
    assert {np.load(path).shape[0] for path in (tmp_path / "a").glob("*.npy")} == {58}
    larger = Replay(tmp_path / "b", 50, SHAPE, ACTIONS, slack=8)
    fill(larger, before)
    for more in ([], [12], [3, 10], [20, 31], [70]):
        fill(replay, more, episodes)
        fill(larger, more)
        if more == [3, 10]:  # stop and continue
            state = replay.state()
            replay.close()
            replay = Replay.open(tmp_path / "a", state)
        assert replay.total == larger.total and len(replay) == min(50, replay.total - oldest)
        starts = naive_starts(episodes, 50, 3, oldest)
        assert sorted(numbers(sample(replay, len(starts), 3, EveryChoice()))[0]) == starts
        if len(replay) == len(larger):
            one, two = (sample(each, 64, 3, np.random.default_rng(5)) for each in (replay, larger))
            for name in one:
                np.testing.assert_array_equal(one[name], two[name])


@pytest.mark.parametrize("seed", range(12))
def test_any_sequence_of_capacities_and_crashes(tmp_path, seed):
    rng = np.random.default_rng(seed)
    capacity, slack, oldest, episodes = 12, 4, 0, []
    replay = Replay(tmp_path, capacity, SHAPE, ACTIONS, slack)
    for _ in range(25):
        fill(replay, rng.integers(1, 15, rng.integers(1, 3)), episodes)
        oldest = max(oldest, replay.total - capacity)
        state = replay.state()
        for number in range(1000, 1000 + rng.integers(0, slack + 1)):
            replay.add(*row(number, False))
        replay.close()
        if rng.random() < 0.5:
            capacity, slack = int(rng.integers(5, 60)), int(rng.integers(0, 8))
            replay = Replay.open(tmp_path, state, capacity, slack)
        else:
            replay = Replay.open(tmp_path, state)
        oldest = max(oldest, replay.total - capacity)
        assert (replay.capacity, replay.slack, len(replay)) == (capacity, slack, replay.total - oldest)
        starts = naive_starts(episodes, capacity, 2, oldest)
        assert sorted(numbers(sample(replay, len(starts), 2, EveryChoice()))[0]) == starts


class Killed(Exception):
    """Stands for the end of the process."""


@pytest.mark.parametrize("before", [[5], [9, 17, 3]])
def test_a_kill_while_growing_costs_no_row(tmp_path, monkeypatch, before):
    original = Replay(tmp_path / "original", 20, SHAPE, ACTIONS, slack=4)
    fill(original, before)
    state, total = original.state(), original.total
    original.close()
    for calls in range(100):
        left = [calls]

        def counting(function, left=left):
            def call(*args):
                if not left[0]:
                    raise Killed
                left[0] -= 1
                return function(*args)

            return call

        shutil.copytree(tmp_path / "original", interrupted := tmp_path / str(calls))
        with monkeypatch.context() as patch:
            for name in ("ftruncate", "pwrite", "fsync"):
                patch.setattr(os, name, counting(getattr(os, name)))
            try:
                Replay.open(interrupted, state, capacity=60)
                break
            except Killed:
                pass
        for capacity in (None, 60, 70):  # the old one, the wanted and a still larger one
            shutil.copytree(interrupted, folder := tmp_path / f"{calls}, {capacity}")
            replay = Replay.open(folder, state, capacity)
            assert len(replay) == min(20, total)
            assert (
                numbers(replay.read(np.arange(total - len(replay), total)[:, None]))[:, 0]
                == np.arange(total - len(replay), total)
            ).all()
            fill(replay, [65])
            numbers(replay.read(np.arange(replay.total - len(replay), replay.total)[:, None]))
            replay.close()
    assert calls >= 4 * 5  # five files


def test_a_smaller_capacity_evicts(tmp_path):
    replay = Replay(tmp_path, 20, SHAPE, ACTIONS)
    fill(replay, [8, 9])
    state = replay.state()
    replay.close()
    replay = Replay.open(tmp_path, state, capacity=6)
    assert len(replay) == 6 and replay.count_segments(6) == 1
    replay = Replay.open(tmp_path, replay.state(), capacity=20)
    assert len(replay) == 6  # evicted for good, without a warning
    replay.close()


def test_too_small_a_disk_for_growing_is_refused(tmp_path, monkeypatch):
    replay = Replay(tmp_path, 20, SHAPE, ACTIONS)
    fill(replay, [9])
    needed = Replay.bytes_needed(1000, SHAPE, ACTIONS)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(needed, 1, 1000))
    with pytest.raises(UserError, match=f"{needed:,} bytes.*bytes free.*replay.capacity"):
        Replay.open(tmp_path, replay.state(), capacity=1000)
    assert len(Replay.open(tmp_path, replay.state())) == 9


def test_a_new_replay_starts_empty(tmp_path):
    fill(Replay(tmp_path, 20, SHAPE, ACTIONS), [9])
    replay = Replay(tmp_path, 12, SHAPE, ACTIONS)
    assert len(replay) == 0 and replay.count_segments(1) == 0


def test_wrong_rows_are_refused(tmp_path):
    replay = Replay(tmp_path, 20, SHAPE, ACTIONS)
    observation, action, reward, *_ = row(0, True)
    with pytest.raises(ValueError, match="must be the first of an episode"):
        replay.add(observation, action, reward, False)
    with pytest.raises(ValueError, match="uint8 observation"):
        replay.add(observation.astype(np.float32), action, reward, True)
    with pytest.raises(ValueError, match=r"uint8 observation \(4, 5, 3\), got uint8 \(3, 5, 4\)"):
        replay.add(observation.T, action, reward, True)
    with pytest.raises(ValueError, match=r"action of shape \(2,\), got \(3,\)"):
        replay.add(observation, np.zeros(3), reward, True)
    assert len(replay) == 0


def test_too_small_a_disk_is_refused_with_both_numbers(tmp_path, monkeypatch):
    needed = Replay.bytes_needed(1_000_000, (64, 64, 3), 6)
    assert needed == 1_000_000 * (64 * 64 * 3 + 6 * 4 + 4 + 1 + 1 + 8) + 6 * 128
    monkeypatch.setattr(shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(needed, 1, needed - 1))
    with pytest.raises(UserError, match=f"{needed:,} bytes.*{needed - 1:,} bytes free"):
        Replay(tmp_path, 1_000_000, (64, 64, 3), 6)
    assert not list(tmp_path.glob("*.npy"))


def test_size_on_disk_is_as_announced_and_sparse(tmp_path):
    Replay(tmp_path, 1000, (64, 64, 3), 6, slack=24)
    files = [path.stat() for path in tmp_path.iterdir()]
    assert sum(file.st_size for file in files) == Replay.bytes_needed(1000, (64, 64, 3), 6, 24)
    assert sum(file.st_blocks * 512 for file in files) < 200_000


def test_what_cannot_be_opened_leaves_no_file_open(tmp_path):
    rings = Rings(tmp_path, 2, 20, SHAPE, ACTIONS)
    for ring in range(2):
        for number in range(5):
            rings.add(ring, *row(number, number == 0))
    state = rings.state()
    rings.close()
    state["rings"][1]["total"] = 9
    before = len(os.listdir("/dev/fd"))
    for _ in range(3):
        with pytest.raises(UserError, match="lacks"):
            Rings.open(tmp_path, state)
    assert len(os.listdir("/dev/fd")) == before


def test_rings_hold_together_at_least_what_is_asked_for(tmp_path):
    rings = Rings(tmp_path, 3, 10, SHAPE, ACTIONS, slack=4)
    assert [(ring.capacity, ring.slack) for ring in rings.rings] == [(4, 2)] * 3
    rings.close()


def test_another_environment_is_refused(tmp_path):
    replay = Replay(tmp_path, 20, SHAPE, ACTIONS)
    fill(replay, [4])
    state = replay.state()
    with pytest.raises(UserError, match=r"observation.npy holds rows of uint8 \(4, 5, 3\), not uint8 \(8, 8"):
        Replay(tmp_path, 20, (8, 8, 3), ACTIONS)
    with pytest.raises(UserError, match="action.npy holds rows"):
        Replay.open(tmp_path, state | {"action_size": 3})
    with pytest.raises(UserError, match="20 rows instead of 24"):
        Replay.open(tmp_path, state | {"places": 24})
    assert len(Replay.open(tmp_path, state)) == 4  # nothing was lost


@pytest.mark.parametrize("name", ["observation", "action", "reward", "is_first", "is_terminal", "number"])
@pytest.mark.parametrize("keep", [None, 0, 50, 128, 0.5, -1])
def test_damaged_files_are_reported(tmp_path, name, keep):
    replay = Replay(tmp_path, 20, SHAPE, ACTIONS)
    fill(replay, [4, 8])
    state = replay.state()
    replay.close()
    path = tmp_path / f"{name}.npy"
    if keep is None:
        path.unlink()
    else:
        size = path.stat().st_size
        os.truncate(path, int(size * keep) if keep == 0.5 else keep % size if keep < 0 else keep)
    with pytest.raises(UserError, match=f"{name}.npy is missing or damaged"):
        Replay.open(tmp_path, state)


@pytest.mark.parametrize("bit", [1, 8, 20])
def test_a_number_that_newer_rows_do_not_explain_is_damage(tmp_path, bit):
    """Newer rows replace the oldest: a larger number in the middle is a flipped bit."""
    replay = Replay(tmp_path, 20, SHAPE, ACTIONS, slack=4)
    fill(replay, [12, 18])
    state = replay.state()
    replay.close()
    column = np.load(tmp_path / "number.npy", mmap_mode="r+")
    place = int(np.flatnonzero(column == 20)[0])  # 20 has none of these bits
    column[place] += 1 << bit
    column.flush()
    with pytest.raises(UserError, match="lacks 1 of the 20 rows"):
        Replay.open(tmp_path, state)


def test_rows_never_written_are_reported(tmp_path):
    replay = Replay(tmp_path, 20, SHAPE, ACTIONS)
    fill(replay, [4])
    with pytest.raises(UserError, match="lacks 2 of the 6 rows"):
        Replay.open(tmp_path, replay.state() | {"total": 6})


def test_a_full_disk_ends_in_one_message_and_costs_no_row(tmp_path, monkeypatch):
    replay = Replay(tmp_path, 20, SHAPE, ACTIONS)
    fill(replay, [6])
    whole, room = os.pwrite, [100]

    def nearly_full(file, data, offset):
        if not room[0]:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        written = whole(file, data[: room[0]], offset)
        room[0] -= written
        return written

    monkeypatch.setattr(os, "pwrite", nearly_full)
    with pytest.raises(UserError, match="No space left.*last checkpoint"):
        fill(replay, [5])
    monkeypatch.undo()
    reopened = Replay.open(tmp_path, replay.state())
    assert reopened.total == replay.total < 11
    fill(reopened, [3])
    numbers(reopened.read(np.arange(reopened.total)[:, None]))


def test_memory_does_not_grow_with_the_rows_read(tmp_path):
    def resident():
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    if not os.path.exists("/proc/self/statm"):
        pytest.skip("needs /proc")
    replay = Replay(tmp_path, 4000, (64, 64, 3), 1)
    for number in range(4000):
        replay.add(np.full((64, 64, 3), number % 256, np.uint8), np.zeros(1), 0.0, number % 500 == 0)
    rng = np.random.default_rng(0)
    sample(replay, 10, 10, rng)
    before = resident()
    for _ in range(60):
        sample(replay, 10, 10, rng)
    assert resident() - before < 10e6  # the replay has 49 MB


def test_a_sample_costs_the_same_however_many_rows_there_are(tmp_path, monkeypatch):
    """A million rows (mostly holes on disk) as a thousand: no column is looked through, no array has as many rows."""
    read, peaks, real = Counter(), {}, Columns.read
    for rows in (1000, 1_000_000):
        Replay(tmp_path / str(rows), rows, (1, 1, 3), 1)
        files = {name: np.load(tmp_path / str(rows) / f"{name}.npy", mmap_mode="r+") for name in ("number", "is_first")}
        files["number"][:] = np.arange(1, rows + 1)
        files["is_first"][::500] = True
        state = Replay(tmp_path / "empty", rows, (1, 1, 3), 1).state() | {"total": rows}
        replay, rng = Replay.open(tmp_path / str(rows), state), np.random.default_rng(0)

        def counted(columns, name, places, rows=rows):
            read[rows] += places.size
            return real(columns, name, places)

        with monkeypatch.context() as patch:
            patch.setattr(Columns, "read", counted)
            patch.setattr(Columns, "__getitem__", None)  # a whole column
            tracemalloc.start()
            sample(replay, 50, 50, rng)
            peaks[rows] = tracemalloc.get_traced_memory()[1]
            tracemalloc.stop()
    assert read[1000] == read[1_000_000] == 5 * 50 * 50
    assert peaks[1_000_000] < peaks[1000] + 500_000, "2,000 episodes take some"
