"""replay.recent: a part of each batch comes from the newest rows."""

import numpy as np
import pytest
import torch
from small_runs import run_in_parts, tiny
from test_replay import ACTIONS, SHAPE, EveryChoice, fill

from denoised_mdp.replay.on_device import OnDeviceReplay
from denoised_mdp.replay.prefetch import Prefetch
from denoised_mdp.replay.rings import Rings
from denoised_mdp.replay.segments import Recent, choose_segments
from denoised_mdp.run.diff import compare, report
from denoised_mdp.run.folder import RunFolder
from denoised_mdp.run.load import prepare
from denoised_mdp.session import Session, train


def filled(folder, *episodes, capacity=60):
    """A ring for each list of lengths of episodes."""
    rings = Rings(folder, len(episodes), capacity, SHAPE, ACTIONS)
    for ring, lengths in zip(rings.rings, episodes, strict=True):
        fill(ring, lengths)
    return rings


def starts_of(ring, length):
    """By brute force: every row that begins a segment of one episode, oldest first."""
    firsts, rows = ring.episodes()
    return [first + i for first, count in zip(firsts, rows, strict=True) for i in range(max(0, count - length + 1))]


@pytest.mark.parametrize("episodes", [[[9, 4, 2, 7]], [[9, 4, 2, 7], [3, 12]], [[5], [1, 1, 1, 6], [40]]])
@pytest.mark.parametrize("newest", [1, 4, 6, 1000])
@pytest.mark.parametrize("length", [1, 3])
def test_each_of_the_newest_starts_is_equally_likely(tmp_path, episodes, newest, length):
    """By enumeration: first every start once, then every start of the newest ones of each ring once."""
    rings = filled(tmp_path, *episodes)
    every = [starts_of(ring, length) for ring in rings.rings]
    share = -(-newest // len(episodes))
    latest = [starts[-share:] for starts in every]
    number = sum(map(len, latest))
    source, rows = choose_segments(
        rings.rings, sum(map(len, every)) + number, length, EveryChoice(), 0, Recent(number, newest)
    )
    for ring in range(len(episodes)):
        assert rows[0, source == ring].tolist() == every[ring] + latest[ring]
    np.testing.assert_array_equal(rows, rows[0] + np.arange(length)[:, None])
    rings.close()


def test_the_running_episode_counts_and_evicted_rows_do_not(tmp_path):
    rings = filled(tmp_path, [8, 30, 5], capacity=20)
    _, rows = choose_segments(rings.rings, 200, 4, np.random.default_rng(0), 0, Recent(200, 3))
    assert set(rows[0]) == {34, 38, 39}  # two of the last episode, and the last start of the one before
    _, rows = choose_segments(rings.rings, 400, 4, np.random.default_rng(0), 0, Recent(400, 10**6))
    assert set(rows[0]) == {*range(23, 35), 38, 39}
    rings.close()


def test_other_segments_and_their_draws_are_as_without(tmp_path):
    """A batch of B with k recent ones begins with what a batch of B - k has."""
    rings = filled(tmp_path, [30, 25])
    plain = choose_segments(rings.rings, 6, 5, np.random.default_rng(3))[1]
    mixed = choose_segments(rings.rings, 10, 5, np.random.default_rng(3), 0, Recent(4, 7))[1]
    np.testing.assert_array_equal(mixed[:, :6], plain)
    rings.close()


@pytest.mark.parametrize("kind", ["prefetch", "device"])
def test_all_sources_draw_the_same(tmp_path, kind):
    rings = filled(tmp_path, [30, 25], [50])
    source = Prefetch(rings, pin=False) if kind == "prefetch" else OnDeviceReplay(rings, torch.device("cpu"))
    random, twin = np.random.default_rng(1), np.random.default_rng(1)
    for _ in range(4):
        asked = 8, 3, random, 1, Recent(5, 6)
        if kind == "prefetch":
            source.begin(*asked)
        found, expected = source.sample(*asked), rings.sample(8, 3, twin, 1, Recent(5, 6))
        for name, column in expected.items():
            np.testing.assert_array_equal(np.asarray(found[name]), column)
    assert kind == "device" or source.hits == 4
    source.close()


@pytest.mark.parametrize(("share", "number"), [(0.0, 0), (0.5, 2), (1.0, 4)])
def test_a_run_draws_the_share_that_its_options_say(tmp_path, share, number):
    config = tiny(tmp_path / "run", "train.batch_size=4", f"replay.recent={share}", "replay.recent_rows=3")
    run = RunFolder.create(config.run_dir)
    prepare(config, run)
    session = Session(config, run)
    while session.trainer.step < 60:
        session.trainer.collect()
    newest = starts_of(session.replay.rings[0], config.train.segment_length)[-3:]
    for _ in range(50):
        session.trainer.batches.sample()
        _, rows = session.replay.chosen
        assert rows.shape[1] == 4 and set(rows[0, 4 - number :]) <= set(newest)
    session.close()


def test_a_stop_changes_nothing(tmp_path):
    options = ["policy.hidden=8", "replay.recent=0.5", "replay.recent_rows=8", "replay.capacity=30"]
    assert train(tiny(tmp_path / "whole", *options))
    run_in_parts(tiny(tmp_path / "parts", *options), 41, 1, 21)
    assert report(compare(tmp_path / "whole", tmp_path / "parts"))
