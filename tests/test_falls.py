"""scripts/reproduce/falls.py: which decisions lie in a long stretch."""

import itertools

import numpy as np
from reproducing import script


def test_a_stretch_counts_from_its_first_to_its_last_row_if_it_is_long_enough():
    """By brute force over runs of equal values, and longer than an episode none is."""
    true = np.random.default_rng(0).random((6, 60)) < 0.8
    expected = []
    for episode in true:
        runs = [(key, len(list(rows))) for key, rows in itertools.groupby(episode)]
        expected.append([key and length >= 5 for key, length in runs for _ in range(length)])
    with script("falls") as falls:
        found = falls.lasting(true, 5)
        assert not falls.lasting(true, 61).any()
    np.testing.assert_array_equal(found, expected)
    assert found.any() and (true & ~found).any()
