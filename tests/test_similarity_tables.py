"""Tables of a roster: who is compared with whom, brute force; and invariances of held-out canonical correlations."""

import itertools
import math

import numpy as np
import pytest

from denoised_mdp.analysis.similarity import mutual_knn, tables
from denoised_mdp.analysis.similarity.chance import shuffled_episodes
from denoised_mdp.analysis.similarity.competence import competence
from denoised_mdp.analysis.similarity.linear import canonical_correlations, principal_components
from denoised_mdp.analysis.similarity.neighbours import membership, neighbours, overlap
from denoised_mdp.analysis.similarity.points import Point, score_at
from denoised_mdp.analysis.situations import HOME, Situations


def normal(seed, *shape):
    return np.random.default_rng(seed).standard_normal(shape)


def point(run, group, step, newest, score, seen):
    return Point(run, f"run{run}", group, run, step, newest, score, {HOME: {"seen": seen}})


def roster(points, rows=4, episodes=6):
    state = normal(99, rows * episodes, 3)
    return tables.Alignments(points, Situations({HOME: ()}, [np.arange(rows)] * episodes, state, state[:, :0]), 3)


def test_a_return_counts_from_its_own_step_on():
    """Up to a step: an evaluation at that very step is of that agent."""
    curve = np.array([10.0, 20.0, 30.0]), np.array([1.0, 2.0, 3.0])
    assert [score_at(curve, step) for step in (10, 19, 20, 30, 99)] == [1, 1, 2, 3, 3]
    assert math.isnan(score_at(curve, 9))


def test_other_seeds_are_those_of_the_group_at_the_same_step():
    points = [point(run, group, step, step == 2, 1.0, None) for run, group in enumerate("aabb") for step in (1, 2)]
    matrix = normal(0, 8, 8)
    known = roster(points)
    found = [row["to other seeds"] for row in tables.over_training(known, matrix)]
    # points: (run 0: 0, 1), (run 1: 2, 3), (run 2: 4, 5), (run 3: 6, 7); the twin of each is two away in its group
    twin = [2, 3, 0, 1, 6, 7, 4, 5]
    assert found == pytest.approx([matrix[i, twin[i]] for i in range(8)])
    alone = roster([point(0, "a", 1, True, 1.0, None), point(1, "b", 1, True, 1.0, None)])
    assert all(math.isnan(row["to other seeds"]) for row in tables.over_training(alone, np.eye(2)))


def test_an_order_of_rows_is_a_permutation_of_the_second_representation():
    a, b, episode = normal(0, 60, 4), normal(1, 60, 4), np.repeat(np.arange(6), 10)
    b[:, 0] += 3 * episode  # neighbours stay within episodes
    a[:, 0] += 3 * episode
    for order in shuffled_episodes(episode, 5):
        found = overlap(neighbours(a, 5), membership(neighbours(b, 5)), order).mean()
        assert found == pytest.approx(mutual_knn(a, b[order], 5))


def test_the_null_of_a_roster_is_that_of_permuted_features():
    """Rows of an episode are alike, and move together: neighbours are of few other episodes, before and after."""
    episodes, rows = 6, 8
    episode = np.repeat(np.arange(episodes), rows)
    place = 6 * normal(5, episodes, 8)[episode]  # of each episode, far from others
    seen = [place + normal(seed, episodes * rows, 8) for seed in (0, 1)]
    known = roster([point(run, "a", 1, True, 1.0, values) for run, values in enumerate(seen)], rows, episodes)
    prepared = [known.prepared(values) for values in seen]
    orders = shuffled_episodes(known.episode)
    expected = [mutual_knn(prepared[0], prepared[1][order], 3, known.episode) for order in orders]
    null = tables.null(known)
    assert null.value == pytest.approx(np.mean(expected))
    assert (null.low, null.high) == pytest.approx(tuple(np.quantile(expected, (0.025, 0.975))))


def test_columns_are_standardized_by_the_fitted_half_alone():
    """An outlier among the other rows changes no row of the fitted half."""
    known = roster([])
    features = normal(3, 24, 5)
    changed = features.copy()
    changed[np.flatnonzero(~known.fit)[0]] += 1e3
    np.testing.assert_array_equal(known.prepared(features)[known.fit], known.prepared(changed)[known.fit])


def test_alignment_within_bins_is_of_pairs_of_different_runs():
    """Brute force; stages of one run have similar returns, and are alike: 1 here."""
    points = [point(run, "a", step, step == 3, 10.0 * run + step, None) for run in range(6) for step in (1, 2, 3)]
    run = np.array([one.run for one in points])
    score = np.array([one.score for one in points])
    matrix = np.random.default_rng(0).uniform(0.1, 0.4, (18, 18))
    matrix = (matrix + matrix.T) / 2
    matrix[run[:, None] == run] = 1.0
    found = competence(points, matrix, score)
    edges = np.quantile(score, [0, 0.25, 0.5, 0.75, 1])
    assert len(found["bins"]) == 4 and sum(one["agents"] for one in found["bins"]) == 18
    for number, one in enumerate(found["bins"]):
        inside = (score >= edges[number]) & ((score < edges[number + 1]) | (number == 3))
        pairs = {}
        for i, j in itertools.combinations(np.flatnonzero(inside), 2):
            if run[i] != run[j]:
                pairs.setdefault(frozenset((run[i], run[j])), []).append(matrix[i, j])
        assert one["agents"] == inside.sum()
        assert one["alignment"].value == pytest.approx(np.mean([np.mean(values) for values in pairs.values()]))
        assert one["alignment"].value < 0.5


def test_held_out_correlations_are_correlations():
    """A constant that is added to all held-out rows, as by another episode's offset, changes none."""
    shared = normal(0, 80, 3)
    a, b = shared @ normal(1, 3, 5) + normal(2, 80, 5), shared @ normal(3, 3, 4) + normal(4, 80, 4)
    fit = np.arange(80) < 40
    plain = canonical_correlations(a, b, fit)
    moved = canonical_correlations(a + 5.0 * ~fit[:, None], b + 7.0 * ~fit[:, None], fit)
    np.testing.assert_allclose(moved, plain, atol=1e-9)
    assert np.abs(plain).max() <= 1


def test_principal_components_are_centred_and_orthonormal_over_the_fitted_rows():
    features, fit = normal(0, 50, 6) + np.linspace(0, 9, 50)[:, None], np.arange(50) < 30
    found = principal_components(features, fit)
    np.testing.assert_allclose(found[fit].T @ found[fit], np.eye(6), atol=1e-9)
    np.testing.assert_allclose(found[fit].mean(0), 0, atol=1e-9)
    spread = np.linalg.svd(features[fit] - features[fit].mean(0), compute_uv=False)
    two = principal_components(features, fit, 2)
    assert two.shape == (50, 2)
    np.testing.assert_allclose(np.abs(two), np.abs(found[:, :2]), atol=1e-9)  # the strongest first
    strength = np.linalg.norm((features[fit] - features[fit].mean(0)).T @ found[fit], axis=0)
    np.testing.assert_allclose(strength, spread, rtol=1e-9)
