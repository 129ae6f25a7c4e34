"""Similarity of representations: golden values, brute force, invariances, and the traps that a reader should know."""

import numpy as np
import pytest

from denoised_mdp.analysis.similarity import (
    cka,
    cknna,
    clamped,
    cycle_knn,
    edit_knn,
    episode_halves,
    knn_chance,
    lcs_knn,
    linear_similarity,
    mean_cca,
    mutual_knn,
    permutation_null,
    standardized,
    svcca,
    unit_rows,
)
from denoised_mdp.analysis.similarity.neighbours import neighbours
from denoised_mdp.errors import UserError

STEPS = np.arange(24.0)
A = np.stack([np.cos(0.7 * STEPS), np.sin(0.7 * STEPS), 0.1 * STEPS], 1)
B = np.stack(
    [
        np.cos(0.7 * STEPS) + 0.3 * np.sin(1.3 * STEPS**2),
        np.sin(0.7 * STEPS) + 0.3 * np.cos(2.1 * STEPS),
        0.1 * STEPS,
        np.cos(0.2 * STEPS**2),
    ],
    1,
)
UNIT_A, UNIT_B = unit_rows(A), unit_rows(B)
EVEN = STEPS % 2 == 0

SYMMETRIC = {
    "mutual_knn": mutual_knn,
    "lcs_knn": lcs_knn,
    "edit_knn": edit_knn,
    "cka": cka,
    "cka_unbiased": lambda a, b: cka(a, b, unbiased=True),
    "cka_rbf": lambda a, b: cka(a, b, kernel="rbf", bandwidth=None),
    "cknna": cknna,
    "svcca": svcca,
    "mean_cca": mean_cca,
}
DIRECTED = {
    "cycle_knn": cycle_knn,
    "linear_similarity": lambda a, b: linear_similarity(a, b, np.arange(len(a)) < len(a) // 2),
}
METRICS = SYMMETRIC | DIRECTED


def normal(seed, *shape):
    return np.random.default_rng(seed).standard_normal(shape)


def related(seed=0, rows=200):
    """Two matrices that share four numbers."""
    shared = normal(seed, rows, 4)
    lift, noise = normal(seed + 1, 2, 4, 12), normal(seed + 2, 2, rows, 12)
    return unit_rows(shared @ lift[0] + noise[0]), unit_rows(shared @ lift[1] + noise[1])


def rotation(size, seed=5):
    return np.linalg.qr(normal(seed, size, size))[0]


def harmless(name):
    """A linear map that a metric ignores: SVCCA standardizes columns, so it knows the axes."""
    return np.eye(12)[::-1] if name == "svcca" else rotation(12)


@pytest.mark.parametrize(
    "k, mutual, restricted, there, back, lcs, edit",
    [(3, 0.555556, 0.499949, 0.875, 0.875, 1.375, 0.208333), (5, 0.65, 0.719513, 1.0, 0.958333, 2.166667, 0.2)],
)
def test_golden_values_of_neighbourhoods(k, mutual, restricted, there, back, lcs, edit):
    found = [metric(UNIT_A, UNIT_B, k) for metric in (mutual_knn, cknna, cycle_knn, lcs_knn, edit_knn)]
    np.testing.assert_allclose(found, [mutual, restricted, there, lcs / k, edit], atol=1e-6)
    assert cycle_knn(UNIT_B, UNIT_A, k) == pytest.approx(back, abs=1e-6)


def test_golden_values_of_kernels_and_linear_maps():
    found = [
        cka(UNIT_A, UNIT_B),
        cka(UNIT_A, UNIT_B, unbiased=True),
        cka(UNIT_A, UNIT_B, kernel="rbf"),
        svcca(UNIT_A, UNIT_B, 3),
        linear_similarity(A, B, EVEN),
        linear_similarity(B, A, EVEN),
        mean_cca(A, B),
    ]
    np.testing.assert_allclose(
        found, [0.797843, 0.762654, 0.820174, 0.898184, 0.444103, 0.804648, 0.970736], atol=1.5e-6
    )


@pytest.mark.parametrize(
    "name", sorted(set(METRICS) - {"cycle_knn"})
)  # a row may be near nobody: then it does not come back
def test_a_representation_equals_itself_and_its_rotations(name):
    first, _ = related()
    assert METRICS[name](first, first) == pytest.approx(1.0, abs=1e-6)
    assert METRICS[name](first, first @ harmless(name)) == pytest.approx(1.0, abs=1e-6)


@pytest.mark.parametrize("name", METRICS)
def test_rotations_scales_and_a_common_order_change_nothing(name):
    (a, b), metric = related(), METRICS[name]
    order = np.r_[np.random.default_rng(3).permutation(100), 100 + np.random.default_rng(4).permutation(100)]
    value = metric(a, b)
    assert 0 < value < 0.99
    assert metric(3.0 * a @ harmless(name), 0.5 * b) == pytest.approx(value, abs=1e-6)
    assert metric(a[order], b[order]) == pytest.approx(value, abs=1e-9)
    if name in SYMMETRIC:
        # the masks of CKNNA are not symmetric, so neither is it, quite
        assert metric(b, a) == pytest.approx(value, abs=1e-3 if name == "cknna" else 1e-9)


@pytest.mark.parametrize("name", METRICS)
def test_constant_features_give_nan_and_one_warning(name):
    for pair in ((np.ones((40, 3)), A[:1].repeat(40, 0)), (normal(0, 40, 3), np.zeros((40, 2)))):
        with pytest.warns(UserWarning, match="the same in all rows") as caught:
            assert np.isnan(METRICS[name](*pair))
        assert len(caught) == 1


@pytest.mark.parametrize("name", METRICS)
def test_duplicated_rows_do_not_crash_and_give_the_same_again(name):
    a, b = (np.repeat(features[:40], 5, 0) for features in related())
    value = METRICS[name](a, b)
    assert np.isfinite(value)
    assert METRICS[name](a.copy(order="F"), b) == pytest.approx(value, abs=1e-12)


def brute_force_lists(a, k):
    products = a @ a.T
    return [sorted((j for j in range(len(a)) if j != i), key=lambda j, i=i: -products[i, j])[:k] for i in range(len(a))]


def test_neighbourhoods_are_those_of_brute_force():
    a, b = (features[:50] for features in related())
    k, first, second = 6, brute_force_lists(a, 6), brute_force_lists(b, 6)
    shared = np.mean([len(set(p) & set(q)) / k for p, q in zip(first, second, strict=True)])
    cycles = np.mean([any(i in first[j] for j in second[i]) for i in range(50)])

    def lcs(p, q):
        if not p or not q:
            return 0
        return 1 + lcs(p[1:], q[1:]) if p[0] == q[0] else max(lcs(p[1:], q), lcs(p, q[1:]))

    def edits(p, q):
        if not p or not q:
            return len(p) + len(q)
        return min(edits(p[1:], q[1:]) + (p[0] != q[0]), edits(p[1:], q) + 1, edits(p, q[1:]) + 1)

    pairs = list(zip(first, second, strict=True))
    assert mutual_knn(a, b, k) == pytest.approx(shared)
    assert cycle_knn(a, b, k) == pytest.approx(cycles)
    assert lcs_knn(a, b, k) == pytest.approx(np.mean([lcs(p, q) for p, q in pairs]) / k)
    assert edit_knn(a, b, k) == pytest.approx(1 - np.mean([edits(p, q) for p, q in pairs]) / k)


def test_cknna_with_all_neighbours_is_unbiased_cka():
    a, b = related()
    assert cknna(a, b, len(a) - 1) == pytest.approx(cka(a, b, unbiased=True), abs=1e-12)


def test_the_median_bandwidth_is_that_of_all_distances():
    a, _ = related(rows=30)
    distances = [np.linalg.norm(a[i] - a[j]) for i in range(30) for j in range(i)]
    scaled = a / np.median(distances)
    assert cka(a, UNIT_B.repeat(2, 0)[:30], kernel="rbf", bandwidth=None) == pytest.approx(
        cka(scaled, unit_rows(B).repeat(2, 0)[:30] / _median(UNIT_B.repeat(2, 0)[:30]), kernel="rbf")
    )


def _median(features):
    return np.median([np.linalg.norm(p - q) for i, p in enumerate(features) for q in features[:i]])


def test_linear_maps_do_not_change_linear_similarity():
    a, b = related()
    split = np.arange(200) % 2 == 0
    mapped = a @ normal(8, 12, 12) + 3.0
    assert linear_similarity(a, mapped, split) == pytest.approx(1.0, abs=1e-4)
    assert linear_similarity(mapped, b, split) == pytest.approx(linear_similarity(a, b, split), abs=1e-3)
    for held_out in (None, split):
        assert mean_cca(mapped, b, held_out) == pytest.approx(mean_cca(a, b, held_out), abs=1e-6)
        assert mean_cca(a, mapped, held_out) == pytest.approx(1.0, abs=1e-6)


def test_linear_similarity_is_measured_where_it_was_not_fitted():
    a, b, split = normal(0, 60, 25), normal(1, 60, 25), np.arange(60) < 30
    assert linear_similarity(a, b, split) < 0  # unrelated features, nearly as many as rows
    assert mean_cca(a, b) > 0.5 > 0.3 > abs(mean_cca(a, b, split))
    inputs = np.c_[np.ones(30), a[:30]]
    weights = np.linalg.lstsq(inputs, b[:30], rcond=None)[0]
    errors = np.square(b[30:] - np.c_[np.ones(30), a[30:]] @ weights).sum()
    expected = 1 - errors / np.square(b[30:] - b[:30].mean(0)).sum()
    assert linear_similarity(a, b, split) == pytest.approx(expected, abs=1e-3)


def test_shuffled_rows_are_at_chance():
    a, k = related(rows=400)[0], 10
    scores = [mutual_knn(a, a[np.random.default_rng(seed).permutation(400)], k) for seed in range(20)]
    chance = knn_chance(400, k)
    error = np.sqrt(chance * (1 - chance) / (400 * k * 20))  # of the mean, as if all neighbours were independent
    assert abs(np.mean(scores) - chance) < 4 * error
    shuffled = a[np.random.default_rng(0).permutation(400)]
    assert abs(cknna(a, shuffled)) < 0.1 and abs(cka(a, shuffled, unbiased=True)) < 0.05


def behaviour(a, b):
    a, b = unit_rows(a), unit_rows(b)
    return mutual_knn(a, b), cka(a, b), cka(a, b, unbiased=True), cknna(a, b)


@pytest.mark.parametrize("size, expected", [(64, (0.009, 0.059, -0.001, 0.006)), (512, (0.008, 0.341, 0.002, 0.005))])
def test_trap_biased_cka_rises_with_the_number_of_columns(size, expected):
    found = behaviour(normal(0, 1000, size), normal(1, 1000, size))
    np.testing.assert_allclose(found, expected, atol=0.02)


def test_trap_biased_cka_is_perfect_where_columns_outnumber_rows():
    mutual, biased, unbiased, restricted = behaviour(normal(0, 64, 8192), normal(1, 64, 8192))
    assert biased == pytest.approx(0.993, abs=0.002)
    assert abs(unbiased) < 0.05 and abs(mutual - knn_chance(64, 10)) < 0.05 and restricted < 0.2


def test_a_random_linear_map_is_no_rotation():
    a = normal(0, 1000, 64)
    np.testing.assert_allclose(behaviour(a, a @ normal(1, 64, 64))[:3], (0.286, 0.715, 0.704), atol=0.03)


def test_similarity_falls_with_noise():
    found = []
    for noise in (0, 1, 3):
        shared, lifts = normal(0, 1000, 8), normal(1, 2, 8, 64)
        found.append(behaviour(*(shared @ lift + noise * normal(2 + i, 1000, 64) for i, lift in enumerate(lifts))))
    assert (np.diff(found, axis=0) < 0).all()
    mutual, biased, _, _ = np.transpose(found)
    assert mutual[0] > 0.5 and mutual[2] < 0.25 and biased[2] > 0.5  # where neighbours differ, CKA hardly falls


def test_trap_one_shared_bit_makes_cka_nearly_perfect():
    bit = np.sign(normal(0, 1000))
    first, second = (np.c_[6 * bit, normal(seed, 1000, 31)] for seed in (1, 2))
    mutual, biased, unbiased, restricted = behaviour(first, second)
    assert biased == pytest.approx(0.971, abs=0.02) and unbiased == pytest.approx(0.97, abs=0.02)
    assert mutual == pytest.approx(0.023, abs=0.02) and restricted == pytest.approx(0.014, abs=0.02)


def test_trap_neighbouring_frames_measure_time():
    """Unrelated slow walks look alike where every frame counts; not with one row per 20 frames."""
    episodes, frames = 20, 100
    walks = [np.cumsum(normal(seed, episodes, frames, 6), 1) for seed in (0, 1)]
    dense = [standardized(walk.reshape(-1, 6)) for walk in walks]
    sparse = [standardized(walk[:, ::20].reshape(-1, 6)) for walk in walks]
    dense_score, sparse_score = (mutual_knn(*map(unit_rows, features)) for features in (dense, sparse))
    assert dense_score > 20 * knn_chance(episodes * frames, 10)
    assert sparse_score < 3 * knn_chance(episodes * 5, 10)


def test_whole_episodes_are_shuffled():
    """What only tells episodes apart is found by shuffling rows, not by shuffling episodes; times stay together."""
    episodes = np.repeat(np.arange(12), 10)
    time = np.tile(np.arange(10.0), 12)[:, None]
    null = permutation_null(lambda a, b: float((a == b).mean()), time, time, episodes)
    assert null.shape == (99,) and (null == 1).all()  # row 3 of an episode meets row 3 of another
    names = episodes[:, None].astype(float)
    assert (permutation_null(lambda a, b: float((a == b).mean()), names, names, episodes) == 0).all()


def test_neighbours_are_of_other_episodes():
    """Brute force, with episodes of 2, 3 and 5 rows; and what independent rows score."""
    episodes = np.array([0, 1, 0, 2, 1, 2, 2, 1, 2, 2])
    features = normal(0, 10, 3)
    for row, found in enumerate(neighbours(features, 4, episodes)):
        others = [j for j in range(10) if episodes[j] != episodes[row]]
        assert list(found) == sorted(others, key=lambda j: -(features[row] @ features[j]))[:4]
    assert knn_chance(10, 4, episodes) == pytest.approx(4 / 10 * (2 / 8 + 3 / 7 + 5 / 5))
    scores = [mutual_knn(normal(2 * n, 10, 3), normal(2 * n + 1, 10, 3), 4, episodes) for n in range(300)]
    assert abs(np.mean(scores) - knn_chance(10, 4, episodes)) < 4 * np.std(scores) / np.sqrt(300)
    assert cknna(features, features, 4, episodes) == pytest.approx(1)
    for metric in (mutual_knn, cycle_knn, lcs_knn, edit_knn):
        assert metric(features, features, 4, episodes) == 1 and metric(features, features, 4) == 1
    with pytest.raises(UserError, match="give k from 1 to 5"):  # of the episode with five rows
        neighbours(features, 6, episodes)


def test_the_null_of_related_features_contains_chance():
    a, b = related(rows=240)
    null = permutation_null(mutual_knn, a, b, np.repeat(np.arange(24), 10))
    low, high = np.quantile(null, (0.025, 0.975))
    assert low <= knn_chance(240, 10) <= high < mutual_knn(a, b)
    again = permutation_null(mutual_knn, a, b, np.repeat(np.arange(24), 10))
    np.testing.assert_array_equal(null, again)


def test_halves_keep_episodes_whole():
    episodes = np.random.default_rng(0).integers(0, 9, 200)
    split = episode_halves(episodes)
    assert not set(episodes[split]) & set(episodes[~split])
    assert len(set(episodes[split])) == 5
    with pytest.raises(UserError, match="at least 2"):
        episode_halves(np.zeros(10))


def test_preprocessing():
    features = np.c_[normal(0, 100, 3) * [1, 10, 100] + 5, np.full(100, 7.0)]
    fit = np.arange(100) < 50
    done = standardized(features, fit)
    assert done.shape == (100, 3)
    np.testing.assert_allclose([done[fit].mean(0), done[fit].std(0)], [[0] * 3, [1] * 3], atol=1e-12)
    np.testing.assert_allclose(np.linalg.norm(unit_rows(done), axis=1), 1)
    assert not unit_rows(np.zeros((2, 3))).any()
    values = np.arange(-10.0, 10.0)[:, None]
    assert np.abs(clamped(values)).max() == np.sort(np.abs(values), None)[19]  # floor(.95 * 20)
    np.testing.assert_array_equal(clamped(values, 0.5).ravel(), values.ravel().clip(-5, 5))


@pytest.mark.parametrize(
    "call",
    [
        lambda: mutual_knn(A, B[:-1]),
        lambda: mutual_knn(A[0], B[0]),
        lambda: mutual_knn(A, B, 24),
        lambda: mutual_knn(A, B, 0),
        lambda: cknna(A, B, 1),
        lambda: cka(A, np.where(B > 1, np.nan, B)),
        lambda: cka(A, B, kernel="cubic"),
        lambda: linear_similarity(A, B, np.ones(24, bool)),
        lambda: linear_similarity(A, B, np.arange(24)),
        lambda: permutation_null(mutual_knn, A, B, np.arange(24) < 12),
        lambda: permutation_null(mutual_knn, A, B, np.arange(24) // 9),  # nine, nine and six rows
    ],
)
def test_bad_input_gets_one_line(call):
    with pytest.raises(UserError) as error:
        call()
    assert "\n" not in str(error.value)
