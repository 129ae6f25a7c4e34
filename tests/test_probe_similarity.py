"""The probes of similarity and equivalence: planted representations, and whole small runs."""

import contextlib
import csv
import dataclasses
import itertools
import json
import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from pixel_case import tiny_agent
from scipy.stats import rankdata, spearmanr
from small_runs import tiny

import denoised_mdp.cli.main as cli
from denoised_mdp.agents.registry import build_agent
from denoised_mdp.analysis import equivalence as twins
from denoised_mdp.analysis import signatures, situations
from denoised_mdp.analysis.crossfit import Estimate, confidence
from denoised_mdp.analysis.data import freeze, probe_seeds, record
from denoised_mdp.analysis.invariance import record_grid
from denoised_mdp.analysis.probes import PROBES
from denoised_mdp.analysis.ranks import rank_correlation, ranks
from denoised_mdp.analysis.results import as_json
from denoised_mdp.analysis.roles import by_role, in_words, sees
from denoised_mdp.analysis.similarity import competence as competence_module
from denoised_mdp.analysis.similarity import plots as similarity_plots
from denoised_mdp.analysis.similarity import tables
from denoised_mdp.analysis.similarity.competence import classical_map, competence, spearman
from denoised_mdp.analysis.similarity.identifiability import identifiability
from denoised_mdp.analysis.similarity.points import Point, Roster, score_at
from denoised_mdp.analysis.similarity.roster import notes_of
from denoised_mdp.analysis.situations import AWAY, HOME, Situations, check_lengths, features, make_situations, rows_of
from denoised_mdp.config import load_config
from denoised_mdp.errors import UserError
from denoised_mdp.models.latent import Latent
from denoised_mdp.rollout import play
from denoised_mdp.run.environments import environment_maker
from denoised_mdp.run.load import load_run
from denoised_mdp.session import train

EPISODES, ROWS = 20, 12


def normal(seed, *shape):
    return np.random.default_rng(seed).standard_normal(shape)


@pytest.fixture(scope="module")
def planted():
    """Two groups of three runs in two worlds: "clean" sees the state alone, "mixed" sees the noise as well."""
    count = EPISODES * ROWS
    state, noise = normal(0, count, 4), {HOME: normal(1, count, 4), AWAY: normal(2, count, 4)}
    points = []
    for run in range(6):
        lift, leak = normal(10 + run, 4, 12), normal(20 + run, 4, 12)
        group = "clean" if run < 3 else "mixed"
        seen = {world: {"seen": state @ lift + 2 * (group == "mixed") * own @ leak} for world, own in noise.items()}
        if group == "clean":
            for world, own in noise.items():
                seen[world]["rest"] = own @ leak
        for step, blur in ((0, 30.0), (500, 3.0), (1000, 0.0)):
            roles = {
                world: {role: values + blur * normal(100 * run + step, *values.shape) for role, values in one.items()}
                for world, one in seen.items()
            }
            score = math.nan if not step else step + run
            points.append(Point(run, f"run{run}", group, run % 3, step, step == 1000, score, roles))
    rows = [np.arange(ROWS)] * EPISODES
    return tables.Alignments(points, Situations(dict.fromkeys(noise, ()), rows, state, noise[HOME]), 10)


def test_what_follows_the_distractors_is_lost_between_worlds(planted):
    rows = {(row["group"], row["role"], row["world"]): row for row in tables.across_worlds(planted)}
    clean, mixed = (rows[group, "seen", AWAY]["other seed"] for group in ("clean", "mixed"))
    same = rows["clean", "seen", HOME]["other seed"]
    assert clean.value == pytest.approx(same.value, abs=0.02) and clean.value > 0.35
    assert mixed.value < 0.6 * rows["mixed", "seen", HOME]["other seed"].value
    assert rows["clean", "seen", AWAY]["same run"].value == pytest.approx(1)
    noise = rows["clean", "rest", AWAY]
    assert abs(noise["same run"].value - planted.chance) < 0.03
    assert rows["clean", "rest", HOME]["other seed"].value > 5 * planted.chance
    assert mixed.low < mixed.value < mixed.high < clean.low


def test_what_follows_distractors_that_stand_still_is_lost_between_worlds():
    """A color that is drawn anew for each episode: rows of one episode are alike in every world, whatever it is."""
    episode, points = np.repeat(np.arange(EPISODES), ROWS), []
    for run in range(3):
        lift = normal(run, 3, 12)
        rest = {
            world: normal(10 + number, EPISODES, 3)[episode] @ lift + 0.01 * normal(20 + run, EPISODES * ROWS, 12)
            for number, world in enumerate((HOME, AWAY))
        }
        roles = {world: {"seen": normal(0, EPISODES * ROWS, 4), "rest": values} for world, values in rest.items()}
        points.append(Point(run, f"run{run}", "2b", run, 1, True, 1.0, roles))
    state = normal(0, EPISODES * ROWS, 4)
    still = Situations({HOME: (), AWAY: ()}, [np.arange(ROWS)] * EPISODES, state, state[:, :0])
    known = tables.Alignments(points, still, 10)
    rows = {(row["role"], row["world"]): row for row in tables.across_worlds(known)}
    assert rows["rest", HOME]["other seed"].value > 0.4
    assert rows["rest", AWAY]["same run"].value < 0.2 and rows["rest", AWAY]["other seed"].value < 0.2
    assert rows["seen", AWAY]["same run"].value == 1


def test_alignment_with_the_truth_rises_with_training(planted):
    rows = tables.to_truth(planted)
    of = {(row["name"], row["step"], row["role"], row["truth"]): row for row in rows}
    steps = [of["run0", step, "seen", "state"]["mutual_knn"].value for step in (0, 500, 1000)]
    assert steps == sorted(steps) and steps[0] < 2 * planted.chance < 0.4 < steps[2]
    assert of["run0", 1000, "seen", "state"]["R2"] > 0.99 > 0.2 > of["run0", 1000, "rest", "state"]["R2"]
    assert of["run0", 1000, "rest", "noise"]["R2"] > 0.99
    assert abs(of["run0", 1000, "seen", "noise"]["mutual_knn"].value - planted.chance) < 0.03
    for row in tables.between_roles(planted):
        assert abs(row["mutual_knn"].value - planted.chance) < 0.03


def test_the_matrix_and_what_is_read_off_it(planted):
    found = tables.matrices(planted)
    for matrix in found.values():
        np.testing.assert_allclose(matrix, matrix.T)
        np.testing.assert_allclose(np.diag(matrix), 1)
    for row in tables.over_training(planted, found["mutual_knn"]):
        assert (row["to the last stage"] == 1) == row["newest"]
    null = tables.null(planted)
    assert null.low < planted.chance < null.high < 2 * planted.chance
    ks = tables.by_neighbours(planted)
    assert {row["k"] for row in ks} == {5, 10, 20, 50}
    assert all(row["other seed"].value > 2 * row["chance"] for row in ks if row["group"] == "clean")


def test_features_that_do_not_vary_are_like_nothing():
    """Neither like each other nor like noise that does not vary: nan, in the matrix and beside the truth."""
    dead, alive = np.ones((60, 4)), normal(0, 60, 4)
    points = [
        Point(i, f"run{i}", "g", i, 100, True, 1.0, {HOME: {"seen": values}})
        for i, values in enumerate((dead, dead, alive))
    ]
    rows = [np.arange(12)] * 5
    known = tables.Alignments(points, Situations({HOME: ()}, rows, alive, np.ones((60, 2))), 10)
    for matrix in tables.matrices(known).values():
        assert np.isnan(matrix[~np.eye(3, dtype=bool)]).all()
        assert np.isnan(np.diag(matrix)).tolist() == [True, True, False] and matrix[2, 2] == 1
    with pytest.warns(UserWarning, match="the same in all rows"):
        truth = {(row["run"], row["truth"]): row["mutual_knn"] for row in tables.to_truth(known)}
    assert truth.pop((2, "state")).value == 1 and not any(one.known for one in truth.values())
    found = tables.matrices(known)["mutual_knn"]
    alike = np.where(np.eye(3), 1.0, found)
    np.testing.assert_array_equal(classical_map(found, known.chance), classical_map(alike, known.chance))
    assert np.isfinite(classical_map(found, known.chance)).all()


def test_a_run_whose_features_do_not_vary_takes_nothing_from_the_others(planted):
    """Neither their null nor the mean of their pairs, whose note says how many there are."""
    clean = [point for point in planted.points if point.newest and point.group == "clean"]
    still = {world: dict.fromkeys(roles, np.ones((EPISODES * ROWS, 2))) for world, roles in clean[0].features.items()}
    dead = dataclasses.replace(clean[0], run=99, name="dead", features=still)
    alone, both = (tables.Alignments(points, planted.situations, planted.k) for points in (clean, [*clean, dead]))
    assert tables.null(alone) == tables.null(both) and tables.null(both).known
    assert not tables.null(tables.Alignments([dead], planted.situations, planted.k)).known
    rows, more = tables.across_worlds(alone), tables.across_worlds(both)
    for one, other in zip(rows, more, strict=True):
        for key in ("same run", "other seed"):
            if one[key] is not None:
                np.testing.assert_equal((other[key].value, other[key].low), (one[key].value, one[key].low))
                assert other[key].note.endswith("features of the others do not vary")
    assert "3 of 6" in more[0]["other seed"].note


def test_the_length_of_a_row_does_not_count_beside_a_truth_of_two_numbers():
    """Cells that know the place well then look less like it than the direction alone."""
    random = np.random.default_rng(0)
    place, grid = random.uniform(-0.9, 0.9, (480, 2)), np.stack(np.meshgrid(*2 * [np.linspace(-1, 1, 8)]), -1)
    cells = np.exp(-np.square(place[:, None] - grid.reshape(-1, 2)).sum(-1) / (2 * 0.3**2))
    direction = place / np.linalg.norm(place, axis=1, keepdims=True)
    roles = {HOME: {"cells": cells, "direction": direction, "place": place @ random.normal(size=(2, 64))}}
    points = [Point(0, "run", "g", 0, 1, True, 1.0, roles)]
    known = tables.Alignments(points, Situations({HOME: ()}, [np.arange(12)] * 40, place, np.zeros((480, 0))), 10)
    found = {row["role"]: (row["mutual_knn"].value, row["R2"]) for row in tables.to_truth(known)}
    assert found["cells"] == pytest.approx((0.34, 0.999), abs=0.02)
    assert found["direction"] == pytest.approx((0.65, 0.86), abs=0.03)
    assert found["place"] == pytest.approx((1, 1), abs=0.01)


def test_seeds_that_know_the_same_agree_linearly_and_their_baselines_do_not(planted):
    rows = {(row["group"], row["pairs"]): row for row in identifiability(planted)}
    assert set(rows) == {
        (group, pairs) for group in ("clean", "mixed") for pairs in ("trained", "untrained", "shuffled")
    }
    trained = rows["clean", "trained"]
    assert trained["linear R2"].value > 0.99 and trained["mean CCA"].value > 0.99
    for pairs in ("untrained", "shuffled"):
        assert rows["clean", pairs]["linear R2"].value < 0.1 and rows["clean", pairs]["mean CCA"].value < 0.4


def test_intervals_of_rank_correlations_contain_the_truth_with_few_runs(monkeypatch):
    """Three runs of five stages, which rise and fall together: percentiles alone miss it one time in four."""
    monkeypatch.setattr(competence_module, "DRAWS", 200)
    rng, missed = np.random.default_rng(0), 0

    def pair(count):
        one = rng.normal(size=count)
        both = one, 0.7 * one + math.sqrt(1 - 0.7**2) * rng.normal(size=count)
        return [np.repeat(values, 5) + 0.3 * rng.normal(size=5 * count) for values in both]

    truth, runs = rank_correlation(*pair(20_000)), np.repeat(np.arange(3), 5)
    for _ in range(100):
        found = spearman(*pair(3), runs)
        missed += not found.low <= truth <= found.high
        assert -1 <= found.low <= found.value <= found.high <= 1
    assert missed <= 15, missed


def test_competence_needs_twelve_agents_and_resamples_runs(planted):
    matrix = tables.matrices(planted)["mutual_knn"]
    to_state = np.array([point.step for point in planted.points], float)
    found = competence(planted.points, matrix, to_state)
    assert sum(bin_["agents"] for bin_ in found["bins"]) == 12  # the untrained ones have no return
    assert found["bins"][-1]["alignment"].value > found["bins"][0]["alignment"].value
    assert found["return and alignment to state"].value > 0.8
    assert "11" in competence(planted.points[:-1], matrix[:-1, :-1], to_state[:-1])["note"]
    runs = np.repeat(np.arange(4), 5)
    flat = spearman(np.arange(20.0), np.tile([1.0, 2, 3, 4, 5], 4), runs)
    assert flat.low <= flat.value <= flat.high
    assert math.isnan(spearman(np.arange(4.0), np.arange(4.0), np.array([0, 0, 1, 1])).low)


def test_rank_correlations_are_those_of_scipy():
    """Equal values, constants and nan included."""
    rng = np.random.default_rng(0)
    for size in (2, 3, 7, 100):
        for values in (3, 1000):  # with and without many equal ones
            a, b = rng.integers(0, values, (2, size)).astype(float)
            np.testing.assert_array_equal(ranks(a), rankdata(a))
            if np.ptp(a) and np.ptp(b):
                assert rank_correlation(a, b) == pytest.approx(spearmanr(a, b).statistic, abs=1e-12)
    assert rank_correlation(np.array([1.0, 2, np.inf]), np.array([-np.inf, 20, 90])) == pytest.approx(1)
    assert math.isnan(rank_correlation(np.ones(3), np.arange(3.0)))
    assert math.isnan(rank_correlation(np.array([1.0, 2, np.nan]), np.arange(3.0)))


def test_classical_scaling_restores_distances():
    places = normal(0, 6, 2)
    distance = np.linalg.norm(places[:, None] - places, axis=-1)
    found = classical_map(np.exp(-distance), 1e-9)
    np.testing.assert_allclose(np.linalg.norm(found[:, None] - found, axis=-1), distance, atol=1e-6)
    assert classical_map(np.ones((1, 1)), 0.1).shape == (1, 2)


def test_intervals_of_means_over_pairs_are_over_runs():
    pairs = {(i, j): float(i + j) for i in range(4) for j in range(4) if i < j}
    found = tables.over_runs(pairs)
    assert found.value == pytest.approx(3) and found.low < 3 < found.high
    single = tables.over_runs({(i,): float(i) for i in range(4)})
    assert (single.high - single.low) / 2 == pytest.approx(confidence(np.arange(4.0))), "Student's t of a mean"
    halves = tables.over_runs({(i, j): (i + j) / 2 for i in range(4) for j in range(4) if i < j})
    assert (halves.low, halves.high) == pytest.approx((single.low, single.high)), "their mean is that of the runs"
    assert math.isnan(tables.over_runs({(i,): 0.684 for i in range(7)}).low), "nothing varies but by rounding"
    star = tables.over_runs({(0, 1): 0.1, (0, 2): 0.4})
    assert star.value == pytest.approx(0.25) and math.isnan(star.low) and "in common" in star.note
    assert tables.over_runs({(0, 1): 0.5}).note and math.isnan(tables.over_runs({(0, 1): 0.5}).low)
    assert math.isnan(tables.over_runs({}).value)
    rows = tables.over_episodes(np.repeat([0.0, 1.0, 2.0], [1, 2, 3]), np.repeat([0, 1, 2], [1, 2, 3]))
    assert rows.value == pytest.approx(8 / 6) and rows.low < rows.value < rows.high
    wide = tables.over_episodes(np.repeat([0.0, 1.0, 1.0], 4), np.repeat([0, 1, 2], 4))
    assert wide.low < 0 and wide.high > 1, "widened for three episodes"
    assert wide.within(0.0, 1.0) == dataclasses.replace(wide, low=0.0, high=1.0)
    assert math.isnan(Estimate(0.5).within(0.0, 1.0).low)


def test_roles_follow_what_the_policy_sees():
    parts = {name: np.full((2, 1), number) for number, name in enumerate(("c", "x", "y", "c+x", "all", "encoder"))}
    found = by_role(parts, "c+x")
    assert list(found) == ["seen", "rest", "all", "encoder"]
    np.testing.assert_array_equal(found["all"], [[3, 2]] * 2)
    assert list(by_role({"x": parts["x"], "encoder": parts["encoder"]}, "x")) == ["seen", "encoder"]
    assert list(by_role({"x": parts["x"], "y": parts["y"], "all": parts["all"]}, "all")) == ["seen"]
    assert [sees(seen) for seen in ("x", "y+x")] == ["the policy sees x", "the policy sees y and x"]
    assert sees("all") == "the policy sees all latents"
    assert in_words("rest, same distractors") == "the rest, same distractors" and in_words("pixels") == "pixels"
    assert math.isnan(score_at(None, 5)) and math.isnan(score_at((np.array([10.0]), np.array([1.0])), 5))
    assert score_at((np.array([1.0, 4, 9]), np.array([1.0, 2, 3])), 5) == 2


def grid(state_weight, noise_weight, physics=5, worlds=3, moments=4):
    state, noise = normal(0, physics, 1, moments, 6), normal(1, 1, worlds, moments, 6)
    return state_weight * state + noise_weight * noise + np.zeros((physics, worlds, moments, 6))


def test_twins_are_found_where_the_distractors_are_ignored_and_not_where_they_are_all():
    step = np.broadcast_to(10 + 20 * np.arange(4), (5, 4))
    blind = twins.equivalence(grid(1, 0), step)
    assert blind.ratio.value == pytest.approx(0, abs=1e-6)
    assert blind.auroc.value == blind.hard_auroc.value == blind.retrieval.value == 1
    seeing = twins.equivalence(grid(0, 1), step)
    assert seeing.ratio.value == pytest.approx(1, abs=0.15) and seeing.retrieval.value < 0.3
    mixed = twins.equivalence(grid(1, 1), step)
    assert 0.4 < mixed.ratio.value < 0.95 and 0.6 < mixed.auroc.value < 1
    turned = twins.equivalence(grid(0, 1).transpose(1, 0, 2, 3), np.broadcast_to(step[0], (3, 4)))
    assert turned.auroc.value == 1 and turned.ratio.value == pytest.approx(0, abs=1e-6)
    assert blind.chance == 1 / 20


def test_runs_of_one_folder_name_are_told_apart(planted):
    first, second = (
        dataclasses.replace(point, name="seed0") for point in planted.points if point.newest and point.run in (0, 3)
    )
    known = tables.Alignments([first, second], planted.situations, 10)
    own, other = known.of(first), known.of(second)
    assert (own != other).any() and known.estimate(own, other).value < 0.9


def clouds(rng, physics, worlds=2, moments=4, dims=3):
    """[P, K, T, F]: an episode's place, its moments about it, and what each world adds."""
    place, moment = rng.normal(size=(physics, 1, 1, dims)), rng.normal(size=(physics, 1, moments, dims))
    return place + 0.3 * moment + 0.5 * rng.normal(size=(physics, worlds, moments, dims))


def test_intervals_of_twins_contain_the_truth():
    """Both twins and random pairs come from the same few episodes; counting the twins alone, half of them miss it."""
    rng, names = np.random.default_rng(0), ("ratio", "auroc", "hard_auroc")

    def of(physics):
        return twins.equivalence(clouds(rng, physics), np.broadcast_to(20 * np.arange(4), (physics, 4)))

    many = [of(60) for _ in range(8)]
    truth = {name: np.mean([getattr(one, name).value for one in many]) for name in names}
    few = [of(10) for _ in range(60)]
    for name in names:
        found = [getattr(one, name) for one in few]
        assert np.mean([one.low <= truth[name] <= one.high for one in found]) >= 0.85, name
        widths = np.mean([one.high - one.low for one in found])
        assert widths < 2 * 3.92 * np.std([one.value for one in found]), "and they are not wide for nothing"


def test_distances_of_twins_are_compared_with_those_of_all_other_pairs():
    rng = np.random.default_rng(1)
    near = [rng.random(3), rng.random(5), rng.random(2)]
    far = {(f, g): 2 * rng.random(4 + f) for f in range(3) for g in range(3) if f != g}
    together, others = np.concatenate(near), np.concatenate(list(far.values()))
    assert twins.ratio_of_distances(near, far).value == pytest.approx(together.mean() / others.mean())
    assert twins.area(near, far).value == pytest.approx(twins.share_above(together, others).mean())
    assert math.isnan(twins.area(near, {(0, 0): np.zeros(0)}).value)


def test_an_episode_that_counts_twice_brings_its_own_pairs_twice(monkeypatch):
    """Weights of a bootstrap against the same statistic of episodes that are there so many times."""
    rng, weights = np.random.default_rng(2), (2, 0, 1, 3)
    near, close = [rng.random(3) for _ in weights], [0.3 + rng.random(4) for _ in weights]
    drawn = [episode for episode, count in enumerate(weights) for _ in range(count)]
    expected = twins.area([near[e] for e in drawn], {(k, k): close[e] for k, e in enumerate(drawn)}).value
    monkeypatch.setattr(twins, "estimate", lambda statistic, episodes: statistic(np.array([weights], float)))
    (found,) = twins.area(near, {(f, f): values for f, values in enumerate(close)})
    assert found == pytest.approx(expected)


def test_auroc_counts_ties_half_and_is_that_of_all_pairs():
    values, others = np.array([1.0, 2.0, 2.0]), np.array([0.0, 2.0, 3.0, 3.0])
    brute = [np.mean([(o > v) + 0.5 * (o == v) for o in others]) for v in values]
    np.testing.assert_allclose(twins.share_above(values, others), brute)


DOT = [
    "model=2b",
    "distractors=camera_jitter",
    "env.episode_steps=158",
    "train.total_steps=120",
    "train.snapshot_every=80",
    "train.eval_episodes=1",
]


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("roster")
    made = {"a": ["seed=0"], "b": ["seed=1"], "c": ["model=dreamer"]}
    for name, options in made.items():
        assert train(tiny(folder / name, *DOT, *options))
    return [folder / name for name in made]


def test_the_same_physics_in_every_world(runs):
    config, agent, _ = load_run(runs[0])
    found = make_situations(config, [agent], 4, 45)
    assert list(found.worlds) == [HOME, AWAY, "no distractors"]
    home, away = found.worlds[HOME], found.worlds[AWAY]
    for one, other in zip(home, away, strict=True):
        assert np.array_equal(one.signal, other.signal) and np.array_equal(one.action, other.action)
        assert not np.array_equal(one.observation, other.observation)
    assert not np.array_equal(home[0].noise, home[1].noise)
    assert [list(rows) for rows in found.rows] == [[10, 30]] * 4 and len(found.state) == 8
    np.testing.assert_allclose(found.state[0], home[0].signal[10])
    again = make_situations(config, [agent], 4, 45)
    assert all(np.array_equal(a.action, b.action) for a, b in zip(again.worlds[HOME], home, strict=True))
    with pytest.raises(UserError, match="--steps"):
        make_situations(config, [], 3, 9)


def test_a_world_with_noise_of_its_own_has_other_noise():
    """As the stripes of the dot, which are no distractor."""
    toy = ["env=toy", "distractors=none", "env.episode_steps=40", "train.segment_length=4"]
    config = load_config(toy)
    found = make_situations(config, [], 3, 20)
    assert list(found.worlds) == [HOME, AWAY] and found.noise.shape[1]
    for one, other in zip(*found.worlds.values(), strict=True):
        assert np.array_equal(one.signal, other.signal) and not np.array_equal(one.noise, other.noise)
    still = load_config([*toy, "env.task=counting"])
    assert list(make_situations(still, [], 3, 20).worlds) == [HOME]


def test_rows_of_situations_are_as_many_in_every_episode(monkeypatch):
    """Whole episodes are shuffled: one that ends early cuts the others."""
    config = load_config(["env=toy", "distractors=none", "env.episode_steps=60", "train.segment_length=4"])
    lengths = itertools.count(2)
    monkeypatch.setattr(situations, "rows_of", lambda episode, apart: np.arange(next(lengths)))
    assert [list(own) for own in make_situations(config, [], 3, 50, equal=True).rows] == [[0, 1]] * 3


def test_two_runs_have_intervals_over_episodes_and_it_is_said(planted):
    two = dataclasses.replace(planted, points=[one for one in planted.points if one.run < 2], _nearest={})
    tree = as_json({"worlds": tables.across_worlds(two)})
    assert notes_of(tree) == ["clean: interval over episodes, not over runs"]
    assert notes_of(as_json({"worlds": tables.across_worlds(planted)})) == []


def test_of_four_blocks_the_policy_sees_y_and_x_and_the_rest_is_w_and_z(tmp_path):
    """In this order, though the model's table has w between y and x."""
    config = tiny(tmp_path / "run", *DOT, "model=four_blocks")
    agent = build_agent(config, 2).eval()
    episodes = record(environment_maker(config), probe_seeds(0, 2), 30, behaviour="random")
    rows = [rows_of(episode) for episode in episodes]
    found = features(agent, episodes, rows)
    frozen = [one.parts() for one in freeze(agent, episodes, sample=False)]
    latent = {name: np.concatenate([one[name][at] for one, at in zip(frozen, rows, strict=True)]) for name in "ywxz"}
    assert agent.seen == "y+x" and list(found) == ["seen", "rest", "all", "encoder"]
    np.testing.assert_array_equal(found["seen"], np.concatenate([latent["y"], latent["x"]], 1))
    np.testing.assert_array_equal(found["rest"], np.concatenate([latent["w"], latent["z"]], 1))
    np.testing.assert_array_equal(found["all"], np.concatenate([latent[name] for name in "yxwz"], 1))


def test_the_command_and_the_section_of_a_roster(runs, capsys):
    command = ["probe", "similarity", *map(str, runs), "--episodes", "6", "--steps", "60", "--k", "3", "--snapshots"]
    assert cli.main(command) == 0
    said = capsys.readouterr().out
    assert "3 runs, 18 situations, 3 neighbours; chance 0.200" in said and "2b, the rest: other noise" in said
    [path] = (runs[0] / "probes").glob("similarity_*.json")
    tree = json.loads(path.read_text())
    assert tree["runs"] == [str(run) for run in runs] and tree["peak_memory"] > 1e7
    assert [agent["step"] for agent in tree["agents"]][:4] == [0, 80, 120, 0]
    assert {row["role"] for row in tree["worlds"] if row["group"] == "dreamer"} == {"seen", "encoder"}
    assert [row["name"] for row in tree["between seen and rest"]] == ["a", "b"], "Dreamer has no rest"
    assert {row["pairs"] for row in tree["identifiability"]} == {"trained", "untrained", "shuffled"}
    with open(path.with_suffix(".csv")) as file:
        rows = list(csv.DictReader(file))
    assert [row["role"] for row in rows] == ["seen", "rest", "seen", "seen"]
    names = {png.stem.rpartition("_")[2] for png in path.parent.glob("similarity_*.png")}
    assert names == {"matrix", "worlds", "truth", "map", "training", "linear"}
    section = PROBES["similarity"].report(tree)
    assert len(section.pictures) == len(names) and "share of common 3 nearest neighbours" in section.text[0]


def test_equivalence_of_runs(runs, capsys):
    command = ["probe", "equivalence", *map(str, runs[1:]), "--episodes", "4", "--steps", "79", "--sequences", "5"]
    assert cli.main(command) == 0
    said = capsys.readouterr().out
    assert "retrieval@1" in said and "(the rest, same distractors)" in said, "which has a chance of its own"
    assert "the policy sees x" in said
    for run, roles in zip(
        runs[1:], ({"seen", "rest", "all", "encoder", "rest, same distractors"}, {"seen", "encoder"}), strict=True
    ):
        [path] = (run / "probes").glob("equivalence_*.json")
        tree = json.loads(path.read_text())
        assert set(tree["roles"]) == roles
        assert tree["signatures"]["states"] == 12, "the last row of each episode is too near to its end"
        assert tree["signatures"]["R2"] is not None
        assert set(tree["signatures"]["spearman"]) == roles - {"rest, same distractors"} | {"pixels", "imagined"}
        section = PROBES["equivalence"].report(tree)
        assert len(section.pictures) == 1 and len(section.tables[0][1]) == len(roles)
        assert path.with_suffix(".png").exists()
        with open(path.with_suffix(".csv")) as file:
            chances = {
                row["role"]: row["value"] for row in csv.DictReader(file) if row["number"] == "chance_of_retrieval"
            }
        assert chances == {role: str(one["chance"]) for role, one in tree["roles"].items()}


def test_bad_rosters_get_one_line(runs, tmp_path, capsys):
    other = tmp_path / "other"
    assert train(tiny(other, "model=2b", "train.total_steps=80"))
    for arguments, words in (
        (["similarity", runs[0], runs[0]], "named twice"),
        (["similarity", runs[0], other], "distractors"),
        (["similarity", runs[0], "--episodes", "4", "--steps", "20"], "--k from 2 to 3"),
        (["similarity", runs[0], "--episodes", "3", "--steps", "20", "--k", "2"], "give more --episodes or --steps."),
        (["similarity", "no/such/run"], "no/such/run"),
        (["equivalence", runs[0], "--episodes", "2"], "argument --episodes: must be a whole number, at least 3"),
        (["factors", runs[0], "--episodes", "1"], "argument --episodes: must be a whole number, at least 3"),
        (["equivalence", runs[0], "--steps", "5"], "--steps"),
    ):
        capsys.readouterr()
        assert cli.main(["probe", *map(str, arguments)]) == 2
        error = capsys.readouterr().err.splitlines()[-1]  # progress may stand before it
        assert error.startswith("denoised-mdp: error: ") and words in error


def test_episodes_that_are_too_short_say_what_helps():
    long, short = (SimpleNamespace(observation=np.zeros((rows, 1))) for rows in (30, 6))
    check_lengths([long, long], 29)
    with pytest.raises(UserError, match="5 of the 10 actions that are needed: give more --steps"):
        check_lengths([short, short], 5)
    with pytest.raises(UserError, match="5 of the 10 actions that are needed: this task ends them itself"):
        check_lengths([long, short], 29)


def test_true_signatures_are_the_rewards_that_follow(runs):
    """A dot on a plane: its reward is a function of the position, which moves by speed times action."""
    config, agent, _ = load_run(runs[0])
    column = [row[0] for row in record_grid(environment_maker(config), None, 3, 2, 30)]
    rows, actions = rows_of(column[0]), signatures.random_actions(2, 4, 3)
    found = signatures.true_signatures(config, column, probe_seeds(0, 3), rows, actions)
    repeat, target = config.env.action_repeat, np.array([0.5, -0.5])
    for number, state in enumerate(np.concatenate([cell.signal[rows] for cell in column])):
        for sequence, rewards in zip(actions, found[number].reshape(4, 3), strict=True):
            dot = state.astype(float)
            for action, reward in zip(sequence, rewards, strict=True):
                expected = 0.0
                for _ in range(repeat):
                    dot = np.clip(dot + 0.1 * action, -0.9, 0.9)
                    expected += 1 - np.linalg.norm(dot - target) / np.sqrt(8)
                assert reward == pytest.approx(expected, abs=1e-5)
    assert signatures.pooled_r2(found, found) == 1 and abs(signatures.pooled_r2(found, found.mean(0))) < 1e-12
    latents = signatures.seen_latents(agent, column, rows)
    own = signatures.model_signatures(agent, latents, actions)
    belief, state = latents.belief[4:5], latents.state[4:5]
    with torch.no_grad():
        for number, action in enumerate(actions[2]):
            belief, state = agent.mdp.step(belief, state, torch.tensor(action)[None], torch.zeros_like(state))
            expected = float(agent.mdp.reward(torch.cat((belief, state), -1)))
            assert own[4].reshape(4, 3)[2, number] == pytest.approx(expected, abs=1e-5)
    assert signatures.seen_latents(tiny_agent("curl"), column, rows) is None  # it cannot imagine


def test_signatures_do_not_know_what_a_television_shows():
    """Its picture is rewarded. Without the distractor it is gray; each episode would begin with another one."""
    task = ["preset=debug", "env=robodesk", "env.task=tv_green_hue"]
    config, gray = (load_config([*task, f"distractors={name}"]) for name in ("tv", "none"))
    column = [row[0] for row in record_grid(environment_maker(config), None, 2, 2, 3)]
    rows, actions = np.array([2]), signatures.random_actions(5, 2, 3)
    found, expected = (
        signatures.true_signatures(one, column, probe_seeds(0, 2), rows, actions) for one in (config, gray)
    )
    assert np.array_equal(found, expected) and found.std() > 0


def test_of_a_reward_in_two_shares_the_level_of_one_does_not_count():
    true = np.random.default_rng(0).normal(size=(5, 4))
    assert signatures.pooled_r2(true, true + 0.3) < 1 and signatures.pooled_r2(true, true + 0.3, level=False) == 1


def test_imagined_rewards_count_as_much_as_the_episode_is_expected_to_go_on():
    def step(belief, state, action, noise):
        return belief + action, state

    mdp = SimpleNamespace(step=step, reward=lambda f: 2 + f[:, 0], continuation=lambda f: 0.25 + 0.5 * (f[:, 0] > 0))
    agent = SimpleNamespace(mdp=mdp, parameters=lambda: iter([torch.zeros(1)]))
    actions = np.array([[[1.0], [-2.0], [4.0]]], np.float32)
    (found,) = signatures.model_signatures(agent, Latent(torch.zeros(1, 1), torch.zeros(1, 1), None), actions)
    assert found.tolist() == [0.25 * 3.0, 0.25 * 0.75 * 1.0, 0.25 * 0.75 * 0.25 * 5.0]  # the first may be the end


def test_true_signatures_of_other_episodes_are_refused_in_one_line(runs):
    """Of episodes with other seeds or that end too soon, and of actions that are no continuous ones."""
    config = load_run(runs[0])[0]
    column = [row[0] for row in record_grid(environment_maker(config), None, 3, 2, 30)]
    rows, actions = rows_of(column[0]), signatures.random_actions(2, 4, 3)
    seeds, short = probe_seeds(0, 3), [*column[:2], column[2].first(int(rows[-1]))]
    for episodes, own, said in ((column, seeds[::-1], "does not repeat"), (short, seeds, "ends before row")):
        with pytest.raises(UserError, match=said) as raised:
            signatures.true_signatures(config, episodes, own, rows, actions)
        assert "\n" not in str(raised.value)


def test_a_time_limit_ends_no_rewards():
    """Rows too near to it are left out; the last one left has all rewards of its sequences."""
    toy = ["env=toy", "distractors=none", "train.segment_length=4"]
    config = load_config([*toy, "env.episode_steps=61"])  # 30 decisions, and half of one
    rows = signatures.rows_with_future(config, np.array([10, 20, 21, 30]))
    assert list(rows) == [10, 20]
    make, seeds = environment_maker(config), probe_seeds(0, 1)
    episodes, actions = record(make, seeds, 40, behaviour="random"), signatures.random_actions(2, 3)
    assert (signatures.true_signatures(config, episodes, seeds, rows, actions) > 0).all()
    with pytest.raises(UserError, match="time limit cuts signatures off.*--sequences 0"):
        signatures.true_signatures(config, episodes, seeds, np.array([22]), actions)
    short = load_config([*toy, "env.episode_steps=39"])
    with pytest.raises(UserError, match=r"episodes have 19.*--sequences 0.*env\.episode_steps=40 or more"):
        signatures.rows_with_future(short, np.array([10]))


def test_nothing_is_earned_after_a_terminal_state():
    config = load_config(["env=toy", "env.task=dot_terminating", "distractors=none", "env.action_repeat=1"])
    right, actions = np.array([1.0, 0.0], np.float32), signatures.random_actions(2, 3)
    with contextlib.closing(environment_maker(config)()) as environment:
        seed = 53  # its dot leaves the picture with the tenth action
        episode = play(environment, seed, lambda observation: right, 60)
    assert len(episode.action) == 11
    before, after = signatures.true_signatures(config, [episode], [seed], np.array([9, 10]), actions)
    assert before.any() and not after.any()


def test_signatures_of_an_environment_that_does_not_repeat_are_refused_in_one_line():
    config = load_config(["env=gym", "env.id=gym_envs:Forgetful", "distractors=camera_jitter", "env.episode_steps=60"])
    seeds, actions = probe_seeds(0, 1), signatures.random_actions(1, 2, 3)
    episodes = record(environment_maker(config), seeds, 12, behaviour="random")
    with pytest.raises(UserError, match=r"does not repeat.*--sequences 0"):
        signatures.true_signatures(config, episodes, seeds, np.array([10]), actions)


def test_distances_that_follow_rewards_have_rank_correlation_one():
    true, episode = normal(0, 30, 1), np.repeat(np.arange(6), 5)
    found = signatures.compare(true, {"seen": 3 * true, "rest": normal(1, 30, 4)}, episode)
    assert found["seen"] == pytest.approx(1) and abs(found["rest"]) < 0.3


def test_the_accuracy_of_imagined_signatures_is_told_for_each_decision():
    true = normal(0, 30, 3, signatures.HORIZON)
    predicted = true + (2 ** np.arange(signatures.HORIZON) - 1) * normal(1, 30, 3, signatures.HORIZON)
    found = signatures.r2_ahead(true.reshape(30, -1), predicted.reshape(30, -1))
    expected = [signatures.pooled_r2(true[..., k], predicted[..., k]) for k in range(signatures.HORIZON)]
    assert found[0] == 1 and found == pytest.approx(expected) and found == sorted(found, reverse=True)


def test_signatures_that_are_imagined_are_compared_in_units_of_reward():
    """A perfect model is perfect, and tiny errors of rewards that never come do not outweigh those that do."""
    true, episode = normal(0, 40, 20), np.repeat(np.arange(8), 5)
    true *= np.geomspace(1, 100, 20)
    true[:, 1:10] = 0.0
    found = signatures.compare(true, {}, episode, true)
    assert found == {"imagined": pytest.approx(1)}
    nearly = signatures.compare(true, {"latent": true}, episode, true + 1e-4 * normal(1, 40, 20))
    assert nearly["imagined"] > 0.999 > 0.9 > nearly["latent"], "a latent's features have no common unit"


def test_a_roster_names_groups_and_stages(runs):
    roster = Roster.of(runs)
    assert roster.groups == ["2b", "2b", "dreamer"]
    assert roster.stages(0, True, None) == [80, None]
    assert roster.stages(0, False, None) == [None] and roster.stages(0, True, 80) == [80]
    points = [point for point, _ in roster.agents(False, None, "cpu")]
    assert [point.step for point in points] == [0, 120] * 3
    assert isinstance(tables.over_runs({(0,): 1.0}), Estimate)


def test_every_dot_beside_the_truth_is_drawn_whole():
    """Of alignments that differ little, the largest is not at the end of the axis; one of 0 is not cut at its start."""
    rows = [
        {"group": "2b", "role": "seen", "truth": truth, "newest": True, "step": 5, "mutual_knn": {"value": value}}
        for truth, values in (("state", (0.50, 0.51)), ("noise", (0.49, 0.0)))
        for value in values
    ]
    for own in (rows, rows[:3]):
        figure = similarity_plots.truth_figure({"truth": own, "chance": 0.1, "k": 3, "rows": 20})
        (axes,) = figure.axes
        figure.canvas.draw()
        dots = [line for line in axes.lines if line.get_marker() == "o"]
        right = axes.get_window_extent().x1
        radius = (dots[0].get_markersize() / 2 + 1) * figure.dpi / 72
        places = [axes.transData.transform((line.get_xdata()[0], 0))[0] for line in dots]
        assert len(dots) == len(own) and max(places) + radius <= right
        assert not any(line.get_clip_on() for line in dots)
