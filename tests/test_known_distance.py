"""What `measure_distances` says of a distance that is known, and which rows it may learn from."""

import numpy as np
import pytest

from denoised_mdp.analysis import distance


class Line:
    """Steps along a line, 1.5 for each forwards and half of one backwards, at most 12; nothing is learned."""

    limit, unit, fitted = 15.0, 1.25, []

    def __init__(self, features, episode, updates, name):
        self.fitted.append((name, features, episode))

    def __call__(self, start, end):
        ahead = (end - start)[:, 0]
        return np.minimum(np.where(ahead > 0, 1.5 * ahead, -0.5 * ahead), 12.0)


@pytest.fixture
def found(monkeypatch):
    Line.fitted = []
    monkeypatch.setattr(distance, "Distance", Line)
    monkeypatch.setattr(distance, "PAIRS", 4000)
    rows = 24
    episode = np.repeat(np.arange(6), rows)
    place = np.tile(np.arange(rows), 6).astype(float)[:, None]
    tested = episode % 3 == 0
    place[~tested] += 500.0  # elsewhere: pairs that are not held out would be at the limit
    worlds = {"there": {"seen": place[tested] + 2.0}}
    parts = {"seen": place, "state": place + 0.0}
    return distance.measure_distances(parts, episode, worlds, tested, updates=1), place, episode, tested


def test_it_learns_from_the_fitted_episodes_alone(found):
    _, place, episode, tested = found
    assert [name for name, *_ in Line.fitted] == ["state", "seen"]
    for _, features, episodes in Line.fitted:
        np.testing.assert_array_equal(features, place[~tested])
        np.testing.assert_array_equal(episodes, episode[~tested])


def test_a_known_distance_is_described_as_it_is(found):
    """k decisions apart is 1.5 k, at most 12, so only lags of 2 and 5 break the bound; a lag of 1 does not count."""
    one = found[0]["seen"]
    assert one.one_step == pytest.approx(1.5)
    assert {k: middle for k, (_, middle, _) in one.lags.items()} == pytest.approx(
        {1: 1.5, 2: 3, 5: 7.5, 10: 12, 20: 12}
    )
    assert one.violations == pytest.approx(3 / 4)  # of the lags 2, 5, 10 and 20: not 20
    assert one.paired == {"there": pytest.approx(3.0)} and one.rank_correlation == pytest.approx(1)
    ahead = np.array([[b - a for b in range(24)] for a in range(24)]).ravel()  # of all pairs of held-out places
    forth = np.minimum(np.where(ahead > 0, 1.5 * ahead, -0.5 * ahead), 12.0)
    back = np.minimum(np.where(ahead < 0, -1.5 * ahead, 0.5 * ahead), 12.0)
    assert one.random == pytest.approx(np.median(forth), abs=0.51)
    assert one.asymmetry == pytest.approx(np.abs(forth - back).mean() / forth.mean(), rel=0.05)
    # the objective no longer pushes from 15 on, which is 12 in steps
    assert one.at_limit == pytest.approx((forth >= 12).mean(), abs=0.03) and one.at_limit > 0.1


@pytest.mark.parametrize(("rows", "limit", "sharpness"), [(2, 15, 0.1), (51, 15, 0.1), (52, 500, 0.01)])
def test_episodes_of_more_than_50_decisions_have_another_objective(monkeypatch, rows, limit, sharpness):
    """The longest one decides: 51 rows are 50 decisions."""
    seen = []
    monkeypatch.setattr(distance, "learn_distance", lambda encoder, head, objective, *_, **__: seen.append(objective))
    episode = np.repeat([0, 1], [rows, 2])
    made = distance.Distance(np.random.default_rng(0).normal(size=(rows + 2, 3)), episode, 1, "x")
    assert (made.limit, seen[0].offset, seen[0].sharpness) == (limit, limit, sharpness)
