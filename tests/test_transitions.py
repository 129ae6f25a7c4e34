"""Stacks of frames and n-step targets, against loops over episodes; crops and shifts, against slices."""

import numpy as np
import pytest
import torch

from denoised_mdp.agents.transitions import make_transitions
from denoised_mdp.models.frames import center_cut, cut, pick, random_cut, stack_frames, to_unit
from denoised_mdp.replay.rings import Rings
from denoised_mdp.replay.segments import choose_segments

GAMMA = 0.9
LENGTHS = (5, 2, 9, 1, 3)
"""actions of each episode; some end because the task ends, some by a time limit"""


def filled(folder, capacity=100):
    """A replay of episodes whose pictures show the number of the row, and the episodes as lists of rows."""
    rings, number, episodes = Rings(folder, 1, capacity, (2, 2, 3), 1), 0, []
    for episode, length in enumerate(LENGTHS):
        episodes.append([])
        for step in range(length + 1):
            terminal = step == length and episode % 2 == 0
            row = (number, float(number % 7), step == 0, terminal)
            rings.add(0, np.full((2, 2, 3), number, np.uint8), [number / 100], row[1], row[2], row[3])
            episodes[-1].append(row)
            number += 1
    return rings, episodes


def expected(episodes, now, frames, n_step):
    """Stack, reward, discount, stack and existence of the transition that begins in row `now`, by loops."""
    episode = next(rows for rows in episodes if any(row[0] == now for row in rows))
    place = next(i for i, row in enumerate(episode) if row[0] == now)
    stack = [episode[max(0, place - back)][0] for back in reversed(range(frames))]
    last, reward = place, 0.0
    for ahead in range(1, n_step + 1):
        if place + ahead < len(episode):
            last, reward = place + ahead, reward + GAMMA ** (ahead - 1) * episode[place + ahead][1]
    following = [episode[max(0, last - back)][0] for back in reversed(range(frames))]
    discount = 0.0 if episode[last][3] else GAMMA ** (last - place)
    return stack, reward, discount, following, last > place


@pytest.mark.parametrize("crosses", [False, True])
@pytest.mark.parametrize(("frames", "n_step"), [(3, 1), (3, 3), (1, 2), (4, 1)])
def test_every_transition_is_the_one_of_its_episode(tmp_path, frames, n_step, crosses):
    """All that can be drawn, from segments within episodes and over their ends."""
    rings, episodes = filled(tmp_path)
    if crosses:
        rings.cross()
    rng, seen = np.random.default_rng(0), {}
    for _ in range(20):
        batch = rings.sample(16, n_step + 1, rng, frames - 1)
        step = make_transitions({k: torch.from_numpy(v) for k, v in batch.items()}, frames, n_step, GAMMA)
        for i in range(16):
            now = int(batch["observation"][frames - 1, i, 0, 0, 0])
            stack, reward, discount, following, exists = expected(episodes, now, frames, n_step)
            assert step.now[i, 0, 0, ::3].tolist() == stack and step.following[i, 0, 0, ::3].tolist() == following
            assert bool(step.exists[i]) == exists
            seen[now] = exists
            if exists:
                assert step.reward[i].item() == pytest.approx(reward)
                assert step.discount[i].item() == pytest.approx(discount)
                assert step.action[i].item() == pytest.approx((now + 1) / 100)
    rows = [row[0] for rows in episodes for row in (rows if crosses else rows[: max(0, len(rows) - n_step)])]
    assert set(seen) == set(rows[: len(rows) - n_step] if crosses else rows)  # none is left out
    rings.close()


def test_means_are_of_the_transitions_that_exist(tmp_path):
    rings, _ = filled(tmp_path)
    rings.cross()
    batch = rings.sample(64, 2, np.random.default_rng(0), 2)
    step = make_transitions({k: torch.from_numpy(v) for k, v in batch.items()}, 3, 1, GAMMA)
    values = torch.randn(2, 64)
    there = step.exists.bool()
    assert not there.all()
    torch.testing.assert_close(step.mean(values), values[:, there].mean(1))
    rings.close()


def test_rows_before_a_segment_change_no_draw(tmp_path):
    """The same generator chooses the same segments, with what led to them or without."""
    rings, _ = filled(tmp_path)
    plain, more = (choose_segments(rings.rings, 30, 3, np.random.default_rng(1), lead)[1] for lead in (0, 2))
    np.testing.assert_array_equal(more[2:], plain)
    first = np.concatenate([[0], np.cumsum([n + 1 for n in LENGTHS])])
    begin = first[np.searchsorted(first, plain[0], side="right") - 1]
    np.testing.assert_array_equal(more[:2], np.maximum(plain[0] - np.array([[2], [1]]), begin))
    rings.close()


def test_a_stack_has_the_oldest_frame_first():
    observation = torch.arange(6, dtype=torch.uint8).view(3, 2, 1, 1, 1).expand(3, 2, 1, 1, 3)
    is_first = torch.tensor([[True, False], [False, True], [False, False]])
    rows = torch.tensor([[2, 2], [0, 1]])
    found = stack_frames(observation, is_first, rows, 2)[:, :, 0, 0]
    assert found.tolist() == [[[2, 2, 2, 4, 4, 4], [3, 3, 3, 5, 5, 5]], [[0] * 6, [3] * 6]]


def test_a_cut_is_a_slice_and_repeats_the_border():
    pictures = torch.randint(0, 256, (3, 8, 8, 6), dtype=torch.uint8)
    found = cut(pictures, torch.tensor([0, 3, 2]), torch.tensor([3, 0, 1]), 5)
    for i, (top, left) in enumerate([(0, 3), (3, 0), (2, 1)]):
        assert torch.equal(found[i], pictures[i, top : top + 5, left : left + 5])
    padded = np.pad(pictures[0].numpy(), ((2, 2), (2, 2), (0, 0)), mode="edge")
    assert np.array_equal(cut(pictures[:1], torch.tensor([-2]), torch.tensor([1]), 8)[0], padded[0:8, 3:11])


def test_random_cuts_are_uniform_and_one_for_all_frames_of_a_picture():
    picture = torch.arange(100, dtype=torch.uint8).view(1, 10, 10, 1).expand(4000, 10, 10, 9)
    found = random_cut(picture, 0, 3, 7, torch.Generator().manual_seed(0))
    assert (found == found[..., :1]).all()
    corner = found[:, 0, 0, 0].long()
    counts = torch.bincount(corner, minlength=100).view(10, 10)[:4, :4]
    assert counts.sum() == 4000 and counts.min() > 190 and counts.max() < 310  # 250 each
    assert torch.equal(center_cut(picture[:1], 6), picture[:1, 2:8, 2:8])


@pytest.mark.parametrize("low, high", [(0, 5), (-3, 5), (0, 7)])
def test_random_cuts_equal_cuts_from_the_same_corners(low, high):
    pictures = torch.randint(0, 256, (6, 12, 12, 9), dtype=torch.uint8)
    corners = torch.randint(low, high + 1, (2, 6), generator=torch.Generator().manual_seed(1))
    found = random_cut(pictures, low, high, 7, torch.Generator().manual_seed(1))
    assert torch.equal(found, cut(pictures, *corners, 7)) and found.is_contiguous()


def test_picked_pictures_keep_their_memory_format():
    pictures, rows = torch.randn(4, 3, 5, 6).contiguous(memory_format=torch.channels_last), torch.tensor([2, 0])
    found = pick(pictures, rows)
    assert torch.equal(found, pictures[rows]) and found.is_contiguous(memory_format=torch.channels_last)


def test_pixels_are_between_zero_and_one():
    found = to_unit(torch.tensor([0, 51, 255], dtype=torch.uint8).view(1, 1, 1, 3), torch.float64)
    assert found.flatten().tolist() == [0.0, 0.2, 1.0] and found.shape == (1, 3, 1, 1)
