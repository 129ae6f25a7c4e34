"""What stored rows earned to the end of their episodes, which values are compared with."""

import numpy as np
from reproducing import script

from denoised_mdp.replay.rings import Rings


def test_what_rows_earned_by_brute_force(tmp_path):
    """In a ring that has gone round: the first episode is evicted, the second in part; the last one still runs."""
    replay, rng, rewards = Rings(tmp_path, 1, 40, (4, 4, 3), 1), np.random.default_rng(0), []
    for length in (6, 9, 14, 10, 12):
        episode = rng.normal(size=length).astype(np.float32)
        rewards.append(episode)
        for step, reward in enumerate(episode):
            replay.add(0, np.zeros((4, 4, 3), np.uint8), np.zeros(1), reward, step == 0)
    (ring,) = replay.rings
    with script("stored_values") as module:
        mean, following = module.earned(ring, 0.9)
    assert len(mean) == len(following) == 51
    assert np.isnan(mean[:11]).all() and (following[:11] == 0).all()
    found = [(e[t:], 0.9 ** np.arange(len(e) - t)) for e in rewards for t in range(len(e))]
    expected = [np.average(rest, weights=weights) for rest, weights in found]
    np.testing.assert_allclose(mean[11:], expected[11:], rtol=1e-5)
    assert following[11:].tolist() == [len(rest) - 1 for rest, _ in found][11:]
