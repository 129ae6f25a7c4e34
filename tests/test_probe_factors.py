"""Probes on constructed latents, whose contents are known; and the factors that environments report."""

import dataclasses
import itertools
import json
import re

import numpy as np
import pytest
import torch
from conftest import small_agent
from pictures import assert_whole
from report_runs import make_run, matrix_of
from small_runs import lines, run_in_parts, tiny

import denoised_mdp
from denoised_mdp.agents.registry import build_agent
from denoised_mdp.analysis import data, factor_tables, plots, results, ridge
from denoised_mdp.analysis.crossfit import (
    EpisodeSums,
    Estimate,
    bootstrap_weights,
    interval,
    random_divisions,
    still_to_learn,
    student_over_normal,
    widened,
)
from denoised_mdp.analysis.factors import (
    UNTRAINED,
    FactorMatrix,
    _summarize,
    _useless,
    best_reference,
    factor_matrix,
    homes_of,
    stack,
)
from denoised_mdp.analysis.health import _unknown
from denoised_mdp.analysis.mlp import mlp_predictions
from denoised_mdp.analysis.probes import PROBES
from denoised_mdp.analysis.probes.factors import _matrix
from denoised_mdp.analysis.quick_probe import QuickProbe
from denoised_mdp.analysis.results import Subject
from denoised_mdp.analysis.ridge import FOLDS, Standardizer, fit_ridge, group_folds
from denoised_mdp.cli import main as cli
from denoised_mdp.config import load_config
from denoised_mdp.envs import make_env
from denoised_mdp.envs.factors import NOISE, QUADRANTS, RELEVANT_NOISE, SIGNAL, USELESS, Factor, NoGroundTruth, factors
from denoised_mdp.errors import UserError
from denoised_mdp.run.load import load_run, untrained
from denoised_mdp.seeding import generator, torch_seed
from denoised_mdp.session import train


def r_squared(targets, predictions):
    """Of each column [n, K] -> [K], by definition."""
    return 1 - np.square(targets - predictions).sum(0) / np.square(targets - targets.mean(0)).sum(0)


def brute_force(x, y, penalty):
    """Ridge as a least-squares problem with one more row per weight."""
    x, center = x - x.mean(0), y.mean()
    rows = np.vstack([x / np.sqrt(len(x)), np.sqrt(penalty) * np.eye(x.shape[1])])
    return np.linalg.lstsq(rows, np.append((y - center) / np.sqrt(len(x)), np.zeros(x.shape[1])), rcond=None)[0]


def test_ridge_equals_a_brute_force_solution_and_search(monkeypatch):
    rng = np.random.default_rng(0)
    groups = np.repeat(np.arange(7), [9, 20, 13, 30, 11, 17, 25])
    x = rng.normal(size=(len(groups), 12)) * rng.uniform(0.1, 9, 12) + rng.normal(size=12)
    y = x[:, :3] @ rng.normal(size=(3, 4)) + rng.normal(size=(len(groups), 4)) * [0.1, 3, 30, 300]
    penalties = np.array([1e-4, 1e-2, 0.3, 10.0])
    monkeypatch.setattr(ridge, "PENALTIES", penalties)
    fitted = fit_ridge(x, y, groups)
    z = (x - x.mean(0)) / x.std(0)
    for k in range(4):
        errors = []
        for penalty in penalties:
            error = 0.0
            for out in group_folds(groups):
                w = brute_force(z[~out], y[~out, k], penalty)
                error += np.square((z[out] - z[~out].mean(0)) @ w + y[~out, k].mean() - y[out, k]).sum()
            errors.append(error)
        assert fitted.penalty[k] == penalties[np.argmin(errors)]
        np.testing.assert_allclose(fitted.weights[:, k], brute_force(z, y[:, k], fitted.penalty[k]), rtol=1e-8)
        expected = z @ fitted.weights[:, k] + y[:, k].mean()
        np.testing.assert_allclose(fitted.predict(x)[:, k], expected, rtol=1e-9)
    assert len(set(fitted.penalty)) > 1  # noisy targets want another penalty than clean ones


def test_ridge_bears_constant_and_repeated_features():
    rng = np.random.default_rng(1)
    groups, base = np.repeat(np.arange(6), 20), rng.normal(size=(120, 3))
    x = np.concatenate([base, base, np.full((120, 1), 7.0)], 1)
    y = base @ rng.normal(size=(3, 1)) + 2
    assert r_squared(y, fit_ridge(x, y, groups).predict(x))[0] > 0.9999


def test_ridge_takes_rounding_for_no_feature():
    """A saturated unit, 1 or one rounding below, that once moves where nothing was fitted."""
    rng = np.random.default_rng(1)
    groups, x = np.repeat(np.arange(6), 20), rng.normal(size=(120, 4))
    y = x[:, :3] @ rng.normal(size=(3, 1)) + 2
    x[:, 3] = 1 - rng.integers(0, 2, 120) * 6e-8
    fitted, moved = fit_ridge(x, y, groups), x.copy()
    moved[:, 3] -= 0.05
    assert r_squared(y, fitted.predict(moved))[0] > 0.9999
    scale = Standardizer.of(x)
    assert (scale(moved)[:, 3] == 0).all() and scale(moved)[:, :3].std(0) == pytest.approx(1)
    np.testing.assert_allclose(scale.undo(scale(moved)), np.column_stack((x[:, :3], np.full(120, x[:, 3].mean()))))


def test_folds_never_divide_a_group():
    groups = np.array([3, 3, 8, 1, 8, 1, 40, 5, 5, 9])
    folds = group_folds(groups)
    assert len(folds) == FOLDS < len(set(groups)) and (np.sum(folds, 0) == 1).all()
    assert all(len({tuple(fold[groups == g]) for fold in folds if fold[groups == g].any()}) == 1 for g in groups)
    assert all(fold[groups == g].all() or not fold[groups == g].any() for fold in folds for g in groups)
    assert len(group_folds(np.array([1, 2, 2]))) == 2


def test_r_squared_in_closed_form():
    y, episode, rows = np.array([[1.0, 5.0], [2.0, 5.0], [3.0, 5.0]]), np.arange(3), np.ones(3, bool)
    sums = EpisodeSums(y, episode, episode)
    perfect, mean, shifted = (sums.r_squared(sums.errors(y - guess, rows)) for guess in (y, y.mean(0), y + 1))
    assert perfect[0] == 1 and np.isnan(perfect[1])
    assert mean[0] == 0 and shifted[0] == pytest.approx(1 - 3 / 2)


def constructed(mixed: bool = False, episodes: int = 30, rows: int = 40):
    """Latents that hold exactly known factors.

    x codes two signals linearly, y the noise, `curved` a signal as a bump and `blind` nothing; mixed: x leaks noise.
    """
    rng = np.random.default_rng(2)
    n = episodes * rows
    offset = np.repeat(rng.normal(size=(episodes, 1)), rows, 0)
    signal, noise = rng.normal(size=(n, 2)) + offset, rng.normal(size=(n, 1)) + rng.normal()
    x = signal @ rng.normal(size=(2, 6)) + 4
    if mixed:
        x = x + noise @ rng.normal(size=(1, 6))
    curved = np.stack([np.cos(2 * signal[:, 0]), np.sin(2 * signal[:, 0])], 1)
    parts = {"x": x, "y": noise @ rng.normal(size=(1, 4)), "blind": rng.normal(size=(n, 5)), "curved": curved}
    columns = {
        Factor("a", "signal", (0,), "scalar", SIGNAL): signal[:, :1],
        Factor("b", "signal", (1,), "scalar", SIGNAL): signal[:, 1:],
        Factor("constant", "signal", (2,), "scalar", SIGNAL): np.full((n, 1), 3.0),
        Factor("light", "noise", (0,), "scalar", NOISE): noise,
    }
    return parts, columns, np.repeat(np.arange(episodes), rows)


def test_a_linear_code_is_read_perfectly_and_independent_noise_not_at_all():
    parts, columns, episode = constructed()
    parts["all"] = np.concatenate([parts["x"], parts["y"]], 1)
    matrix = factor_matrix(parts, columns, episode, random_divisions(30, 3), ["ridge"])
    assert [factor.name for factor in matrix.factors] == ["a", "b", "light"]  # what is constant is left out
    mean = dict(zip(matrix.parts, matrix.mean("ridge"), strict=True))
    np.testing.assert_allclose(mean["x"][:2], 1, atol=1e-6)
    assert mean["x"][2] < 0.02 and mean["y"][2] == pytest.approx(1, abs=1e-6)
    assert (mean["blind"] < 0.02).all() and (mean["y"][:2] < 0.02).all()
    assert (matrix.baseline <= 0).all()
    headline = matrix.headline("ridge")
    assert headline["signal_recall"] == pytest.approx(1, abs=1e-6) and headline["leakage"] < 0.01
    assert matrix.summary("ridge", "x", "noise").high < 0.05


def test_a_leak_is_found_and_sized():
    """x of rank 2 in 3 unknowns: the best linear readout of one given two mixtures, known by projection."""
    parts, columns, episode = constructed(mixed=True)
    headline = factor_matrix(parts, columns, episode, random_divisions(30, 2), ["ridge"]).headline("ridge")
    assert headline["leakage"] == pytest.approx(1, abs=1e-6)  # six features, three unknowns: all can be solved for
    light = list(columns.values())[-1]
    narrow = {"x": 2 * light + 1 * np.random.default_rng(3).normal(size=light.shape), "all": parts["x"]}
    headline = factor_matrix(narrow, columns, episode, random_divisions(30, 2), ["ridge"]).headline("ridge")
    assert headline["leakage"] == pytest.approx(4 / 5, abs=0.04)  # variance 4 of 5
    assert headline["signal_recall"] < 0.02


def leaking(rng, episodes, rows, features, r2, everything=0.95):
    """x holds a share `r2` of the light's variance and "all" the share `everything`, each in one of its directions.

    Rows of an episode are alike, as those of a film: an autoregressive process and an offset of a fifth of the
    variance. The other directions hold processes of the same kind that say nothing of the light.
    """

    def process(count):
        out = rng.normal(size=(episodes, rows, count))
        for t in range(1, rows):
            out[:, t] = 0.5 * out[:, t - 1] + np.sqrt(0.75) * out[:, t]
        return np.sqrt(0.8) * out + np.sqrt(0.2) * rng.normal(size=(episodes, 1, count))

    light, others = process(1), process(features)
    parts = {}
    for name, share in (("x", r2), ("all", everything)):
        code = others.copy()
        code[..., :1] = np.sqrt(share) * light + np.sqrt(1 - share) * code[..., :1]
        turn, _ = np.linalg.qr(rng.normal(size=(features, features)))
        parts[name] = (code @ turn).reshape(-1, features)
    factor = Factor("light", "noise", (0,), "scalar", NOISE)
    return parts, {factor: light.reshape(-1, 1)}, np.repeat(np.arange(episodes), rows)


@pytest.mark.parametrize(("episodes", "r2"), [(12, 0.9), (24, 0.5)])
def test_the_interval_covers_a_known_r_squared(episodes, r2):
    rng, covered, widths = np.random.default_rng(4), [], []
    for _ in range(60):
        case = leaking(rng, episodes, 60, 3, r2)
        found = factor_matrix(*case, random_divisions(episodes), ["ridge"]).summary("ridge", "x", "noise")
        covered.append(found.low <= r2 <= found.high)
        widths.append(found.high - found.low)
    assert np.mean(covered) >= 0.85 and np.mean(widths) < 0.3


def test_an_interval_holds_the_middle_95_percent():
    low, high = interval(np.arange(1001.0)[:, None])
    assert (low.item(), high.item()) == pytest.approx((25, 975))


@pytest.mark.parametrize("episodes", [3, 5, 12])
def test_the_interval_of_a_mean_is_students(episodes):
    """Widened, means under random weights spread as Student's t says of the mean."""
    values = np.random.default_rng(episodes).normal(size=episodes)
    means = bootstrap_weights(episodes, 20_000) @ values / episodes
    error = values.std(ddof=1) / np.sqrt(episodes)
    spread = widened(means, values.mean(), episodes).std()
    assert spread == pytest.approx(error * student_over_normal(episodes - 1), rel=0.03)


@pytest.mark.parametrize(("large", "small"), [(20, 10), (9, 4)])
def test_what_a_probe_has_still_to_learn_is_exact_where_its_error_falls_with_the_episodes(large, small):
    """R^2 = 0.8 - 2 / n: what n episodes lack is 2 / n, whatever the smaller fit had."""
    whole, half = (np.array(0.8 - 2 / n) for n in (large, small))
    assert still_to_learn(whole, half, [(large, small)] * 5) == pytest.approx(2 / large)


def test_a_summary_in_closed_form():
    """Recall is of relevant, controllable factors; R^2 below 0 counts as 0; what may be missing widens upwards."""
    kinds = {"a": SIGNAL, "b": SIGNAL, "idle": USELESS}
    factors = [Factor(name, "signal", (i,), "scalar", kind) for i, (name, kind) in enumerate(kinds.items())]
    factors.append(Factor("light", "noise", (0,), "scalar", NOISE))
    scores = np.array([[[0.9, -0.5, 1.0, 0.3], [0.9] * 4], [[0.7, -0.1, 1.0, 0.5], [0.9] * 4]])  # [seeds, parts, K]
    matrix = FactorMatrix(factors, ["x", "all"], {"ridge": scores}, {}, np.zeros((2, 4)), {})
    spread = np.linspace(-0.1, 0.1, 2001)[:, None, None]  # 95 % of it end at 0.095
    more = np.array([[0.02, 0.06, 0.5, 0.1], [0.0] * 4])
    _summarize(matrix, "ridge", scores.mean(0) + spread, more)
    recall, leakage = (matrix.summary("ridge", "x", source) for source in ("signal", "noise"))
    assert (recall.value, leakage.value) == pytest.approx((0.8 / 2, 0.4))
    assert (recall.low, recall.high) == pytest.approx((0.4 - 0.095 / 2, 0.4 + 0.095 / 2 + 0.08 / 2), abs=1e-3)
    assert (leakage.low, leakage.high) == pytest.approx((0.4 - 0.095, 0.4 + 0.095 + 0.1), abs=1e-3)


def test_of_a_factor_a_number_that_stands_still_does_not_count():
    """Of two numbers, one constant, the R^2 is that of the other."""
    rng, episode = np.random.default_rng(0), np.repeat(np.arange(6), 20)
    light = rng.normal(size=(120, 1))
    targets = {
        Factor("two", "signal", (0, 1), "scalar", SIGNAL): np.concatenate([light, np.full((120, 1), 3.0)], 1),
        Factor("one", "signal", (0,), "scalar", SIGNAL): light,
    }
    x = light + 0.5 * rng.normal(size=(120, 1))
    matrix = factor_matrix({"x": x}, targets, episode, random_divisions(6), ["ridge"])
    assert [factor.name for factor in matrix.factors] == ["two", "one"]
    two, one = matrix.mean("ridge")[0]
    assert 0.5 < one == pytest.approx(two)


def test_the_ceiling_is_what_is_surely_found():
    """The lower end of its interval counts, not its value."""
    vague, sure, x = Estimate(0.5, 0.1, 0.55), Estimate(0.45, 0.4, 0.5), Estimate(0.1, 0.05, 0.15)
    assert best_reference({"all": vague, "encoder": sure}) == ("encoder", sure)
    assert "nothing to read" in _useless({"x": x, "all": vague}) and _useless({"x": x, "all": sure}) == ""


def test_a_sample_that_cannot_tell_gives_no_number():
    """Three short episodes and a hundred features: nothing is found anywhere, and so x is not said to be clean."""
    case = leaking(np.random.default_rng(5), 3, 12, 100, 0.6, 0.6)
    matrix = factor_matrix(*case, random_divisions(3), ["ridge"])
    assert matrix.scores["ridge"][0, 0, 0] < 0.2  # which is not the truth, 0.6
    found = matrix.summary("ridge", "x", "noise")
    assert np.isnan(found.value) and found.note == "too few episodes"
    assert np.isnan(matrix.headline("ridge")["leakage"])
    assert "too few episodes" in "\n".join(factor_tables.factor_lines(matrix))
    assert "leakage too few episodes" in factor_tables.headline_text(matrix, "ridge", "train")
    assert (
        f"nothing to read (R^2 from all latents together: {matrix.ceiling('ridge', 'noise').text()})"
        in matrix.reason("ridge", "noise")
    )
    many = factor_matrix(*leaking(np.random.default_rng(5), 36, 100, 100, 0.6, 0.6), random_divisions(36), ["ridge"])
    found = many.summary("ridge", "x", "noise")
    assert found.low < 0.6 < found.high and found.low > 0.4


def test_the_only_latent_is_a_ceiling_where_the_encoder_knows_less():
    """Velocities: one frame does not show them, a filtered latent does."""
    parts, columns, episode = leaking(np.random.default_rng(6), 24, 60, 3, 0.6)
    parts = {"x": parts["x"], "encoder": np.random.default_rng(7).normal(size=(len(episode), 3))}
    matrix = factor_matrix(parts, columns, episode, random_divisions(24), ["ridge"])
    found = matrix.summary("ridge", "x", "noise")
    assert matrix.ceiling("ridge", "noise") == found and found.low < 0.6 < found.high


@pytest.mark.parametrize("order", [("x", "encoder"), ("encoder", "x")])
def test_where_the_only_latent_is_withheld_the_encoder_is_the_ceiling_that_is_named(order):
    """Four short episodes tell something of a light from the encoder, and nothing from x."""
    parts, columns, episode = leaking(np.random.default_rng(3), 4, 20, 3, 0.4)
    (light,) = columns.values()
    parts["encoder"] = np.random.default_rng(9).normal(size=(len(light), 6))
    parts["encoder"][:, :1] += light
    parts = {part: parts[part] for part in order}
    matrix = factor_matrix(parts, columns, episode, random_divisions(4), ["ridge"])
    assert matrix.summary("ridge", "x", "noise").note == "too few episodes"
    ceiling = matrix.ceiling("ridge", "noise")
    assert ceiling.known and ceiling == matrix.summary("ridge", "encoder", "noise")
    reason = matrix.reason("ridge", "noise")
    assert f"(R^2 from the encoder: {ceiling.text()})" in reason
    assert f"    leakage: {reason}" in factor_tables.factor_lines(matrix)
    assert _unknown(matrix) == [f"Unknown how much noise the latents hold: {reason}"]


def test_an_agent_with_nothing_but_x_is_told_what_x_reads():
    parts, columns, episode = leaking(np.random.default_rng(3), 4, 20, 3, 0.4)
    matrix = factor_matrix({"x": parts["x"]}, columns, episode, random_divisions(4), ["ridge"])
    assert not matrix.ceiling("ridge", "noise").known
    assert re.search(r"\(R\^2 from x: 0\.\d+ \[.*\]\)", matrix.reason("ridge", "noise"))
    again = factor_tables.from_tree(json.loads(json.dumps(results.as_json(factor_tables.as_tree(matrix)))))
    assert again.reason("ridge", "noise") == matrix.reason("ridge", "noise")
    mean = factor_tables.pooled([matrix, matrix])
    assert mean.reason("ridge", "noise") == f"no run has a number; of the first: {matrix.reason('ridge', 'noise')}"
    earlier = factor_tables.as_tree(matrix)
    del earlier["reasons"]
    assert factor_tables.from_tree(earlier).reason("ridge", "noise") == "too few episodes. Give more --episodes."


def test_runs_are_averaged_at_one_step_and_each_seed_once(tmp_path):
    matrix = matrix_of({"x": (0.9, 0.1)})
    kinds = [(0, 100, "2b"), (1, 100, "2b"), (1, 200, "2b"), (0, 100, "2b"), (2, 100, "2c"), (3, 200, "2b")]
    found = [
        (Subject(tmp_path, tiny(tmp_path, f"model={model}", f"seed={seed}"), None, step), matrix)
        for seed, step, model in kinds
    ]
    groups = factor_tables.several_seeds(found)
    assert [[found.index(member) for member in group] for group in groups] == [[0, 1], [2, 5]]


@pytest.mark.parametrize("parts", [["x", "encoder"], ["x", "y", "z", "all", "encoder"]])
def test_the_factor_map_fits_a_phone_and_draws_no_empty_quadrant(parts):
    matrix = matrix_of(dict.fromkeys(parts, (0.9, np.nan)))
    title = "cheetah_run + video_background + noisy_sensor + camera_jitter · 2b · seed 0 · step 1,000,000"
    note = factor_tables.headline_text(matrix, "ridge", "across")
    figure = plots.factor_heat_map(matrix, "ridge", title, note)
    panels = [axes for axes in figure.axes if axes.get_yticklabels()]
    assert [[label.get_text() for label in axes.get_yticklabels()] for axes in panels] == [["arm"], ["light level"]]
    assert [label.get_text() for label in panels[0].get_xticklabels()] == parts
    assert figure.get_size_inches()[0] <= 4.5  # on 390 pixels, letters of 8 points are 9.6 pixels high
    assert_whole(figure)


def test_a_goal_has_a_panel_of_its_own_and_belongs_into_x():
    """The policy sees only x: a target that x does not hold cannot be reached, though nobody controls it."""
    matrix = matrix_of({"x": (0.9, 0.1), "y": (0.2, 0.8)})
    matrix.factors[1] = Factor("target/x", "signal", (1,), "scalar", RELEVANT_NOISE)
    figure = plots.factor_heat_map(matrix, "ridge", "reacher_easy")
    panels = [axes for axes in figure.axes if axes.get_yticklabels()]
    assert [[label.get_text() for label in axes.get_yticklabels()] for axes in panels] == [["arm"], ["target x"]]
    framed = [[patch.get_x() for patch in axes.patches] for axes in panels]
    assert framed[0] == framed[1], "the first column, x"
    assert any(text.get_text() == plots.GOAL for text in figure.texts)
    noise = Factor("tv/red", "noise", (0,), "scalar", RELEVANT_NOISE)
    assert matrix.factors[1].goal and not matrix.factors[0].goal and not noise.goal


def test_all_latents_that_know_less_than_one_of_them_show_that_episodes_are_too_few():
    """y codes the light in one number; beside it a hundred others of x drown it when there are few episodes."""
    parts, columns, episode = leaking(np.random.default_rng(8), 5, 40, 100, 0.3)
    (light,) = columns.values()
    parts["y"] = light + 0.1 * np.random.default_rng(9).normal(size=light.shape)
    parts["all"] = np.concatenate([parts["x"], parts["y"]], 1)
    parts["encoder"] = parts["y"]  # a high ceiling with a narrow interval
    matrix = factor_matrix(parts, columns, episode, random_divisions(5), ["ridge"])
    assert matrix.ceiling("ridge", "noise").low > 0.9
    assert matrix.scores["ridge"][0, 0, 0] < 0.1  # of 0.3
    assert matrix.summary("ridge", "x", "noise").note == "too few episodes"
    whole, one = (matrix.mean("ridge")[matrix.parts.index(part), 0] for part in ("all", "y"))
    told = f"all latents together ({max(whole, 0):.2f}) read less than y alone ({one:.2f}): the fit drowns in features"
    assert told in matrix.reason("ridge", "noise")


def test_a_clean_x_is_a_number_where_all_latents_know_the_noise():
    case = leaking(np.random.default_rng(6), 12, 120, 3, 0.0)
    found = factor_matrix(*case, random_divisions(12), ["ridge"]).summary("ridge", "x", "noise")
    assert found.value == 0 and 0 <= found.low and 0 < found.high < 0.1


def test_what_is_known_before_training_decides_nothing_about_the_trained_latents():
    """A net without training that knows all is no ceiling, and one that knows nothing is told apart from too few."""
    parts, columns, episode = constructed(episodes=12)
    alone = factor_matrix(parts, columns, episode, random_divisions(12), ["ridge"])
    knows_all = np.concatenate(list(columns.values()), 1)
    for features in (knows_all, np.random.default_rng(5).normal(size=knows_all.shape)):
        beside = factor_matrix(parts | {UNTRAINED: features}, columns, episode, random_divisions(12), ["ridge"])
        for source in ("signal", "noise"):
            assert beside.ceiling("ridge", source) == alone.ceiling("ridge", source)
            found = {part: beside.summary("ridge", part, source) for part in parts}
            assert found == {part: alone.summary("ridge", part, source) for part in parts}
        value = beside.summary("ridge", UNTRAINED, "signal").value
        assert value > 0.99 if features is knows_all else value < 0.05


@pytest.mark.parametrize("name", ["factors", "distance"])
def test_a_run_without_ground_truth_is_named_before_any_run_is_probed(tmp_path, monkeypatch, name):
    def never(*given, **options):
        raise AssertionError("a run was loaded")

    monkeypatch.setattr("denoised_mdp.run.load.load_run", never)
    runs = [make_run(tmp_path / "a"), make_run(tmp_path / "b", "seed=1")]
    runs.append(make_run(tmp_path / "ball", "env=gym", "env.task=gym_envs:SmallBall-v0"))
    probe = PROBES[name]
    with pytest.raises(NoGroundTruth, match=re.escape(f"{runs[2]}: This environment has no ground truth")):
        probe.run(runs, probe.Options())


def test_the_untrained_reference_has_the_weights_that_training_begins_with(tmp_path):
    """Of a run that has learned nothing, x and the reference are one; of another, they are not."""
    assert train(tiny(tmp_path, "seed=3", "train.eval_every=0"))
    config, agent, step = load_run(tmp_path, device="cpu")
    options = PROBES["factors"].Options(episodes=3, steps=20, behaviour="random")
    begun, trained = (_matrix(Subject(tmp_path, config, one, step), options) for one in (untrained(agent), agent))
    x, reference = (begun.parts.index(part) for part in ("x", UNTRAINED))
    for probe in begun.scores:
        assert np.array_equal(begun.scores[probe][:, x], begun.scores[probe][:, reference])
        assert np.array_equal(trained.scores[probe][:, reference], begun.scores[probe][:, reference])
        assert not np.array_equal(trained.scores[probe][:, x], begun.scores[probe][:, x])


def test_r_squared_is_of_all_held_out_rows_together():
    """By brute force: predictions of each fold side by side, one R^2 of them, weighted as the bootstrap asks."""
    parts, columns, episode = constructed(episodes=7)
    y = np.concatenate([values for factor, values in columns.items() if factor.name != "constant"], 1)
    (division,) = random_divisions(7)
    assert sorted(np.concatenate([test for _, test in division])) == list(range(7))
    predicted = np.zeros_like(y)
    for fit, test in division:
        train, held = np.isin(episode, fit), np.isin(episode, test)
        assert not (train & held).any()
        predicted[held] = fit_ridge(parts["blind"][train], y[train], episode[train]).predict(parts["blind"][held])
    matrix = factor_matrix({"x": parts["blind"]}, columns, episode, [division], ["ridge"])
    np.testing.assert_allclose(matrix.scores["ridge"][0, 0], r_squared(y, predicted), atol=1e-9)
    sums = EpisodeSums(y, episode, np.arange(7))
    errors = sums.errors(y - predicted, np.ones(len(y), bool))
    weights = np.array([3, 0, 1, 1, 0, 2, 0])
    rows = np.concatenate([np.flatnonzero(episode == e) for e in np.repeat(np.arange(7), weights)])
    np.testing.assert_allclose(sums.r_squared(errors, weights), r_squared(y[rows], predicted[rows]), atol=1e-9)


def test_a_factor_counts_only_if_it_varies_by_more_than_rounding_in_tested_episodes():
    """Else its R^2 is 0 whatever is predicted."""
    parts, columns, episode = constructed(episodes=12)
    rng, n = np.random.default_rng(3), len(episode)
    early = np.where(episode[:, None] < 6, rng.normal(size=(n, 1)), 2.0)
    idle = {"faint": 3e-10 * rng.normal(size=(n, 1)), "large": 1e4 + 1e-3 * rng.normal(size=(n, 1)), "early": early}
    more = {Factor(name, "noise", (1,), "scalar", NOISE): values for name, values in idle.items()}
    fit, late = np.arange(6), [np.arange(6, 9), np.arange(9, 12)]
    matrix = factor_matrix({"y": parts["y"]}, columns | more, episode, [[(fit, test) for test in late]], ["ridge"])
    assert [factor.name for factor in matrix.factors] == ["a", "b", "light"]
    assert matrix.scores["ridge"][0, 0, 2:].mean() == pytest.approx(1, abs=1e-6)


def test_every_recall_and_leakage_has_one_default_size():
    for name in ("factors", "invariance", "health"):
        found = vars(cli.build_parser().parse_args(["probe", name, "run"]))
        assert found.items() >= vars(PROBES[name].Options()).items()
    assert vars(PROBES["factors"].Options()).items() >= {"episodes": 36, "steps": 200}.items()


def test_a_curved_code_needs_the_network():
    parts, columns, episode = constructed(episodes=18)
    parts = {"x": parts["curved"], "blind": parts["blind"]}
    squared = {Factor("bump", "signal", (0,), "scalar", SIGNAL): parts["x"][:, :1] * parts["x"][:, 1:]}
    matrix = factor_matrix(parts, squared, episode, random_divisions(18))
    assert matrix.mean("ridge")[0, 0] < 0.1 and matrix.mean("mlp")[0, 0] > 0.95
    assert matrix.mean("mlp")[1, 0] < 0.05


def test_the_network_repeats_itself_and_leaves_the_global_generator_alone():
    parts, columns, episode = constructed(episodes=6)
    y = np.concatenate(list(columns.values()), 1)
    state = torch.get_rng_state()
    first, second = (mlp_predictions(parts["x"], y, episode, parts["x"], epochs=2) for _ in range(2))
    assert np.array_equal(first, second) and torch.equal(state, torch.get_rng_state())
    assert first.shape == y.shape and np.allclose(first[:, 2], 3.0)  # a constant target stays what it is


def test_divisions_are_of_episodes_and_differ_between_seeds():
    divisions = random_divisions(30, 4)
    for division in divisions:
        assert len(division) == 5 and sorted(np.concatenate([test for _, test in division])) == list(range(30))
        assert all(sorted([*fit, *test]) == list(range(30)) for fit, test in division)
    assert len({tuple(division[0][1]) for division in divisions}) == 4
    assert [len(test) for _, test in random_divisions(4)[0]] == [1] * 4
    with pytest.raises(UserError, match="too few"):
        random_divisions(2)


def test_latents_that_are_not_finite_are_refused():
    parts, columns, episode = constructed(episodes=6)
    parts["x"][3, 1] = np.nan
    with pytest.raises(UserError, match="diverged"):
        factor_matrix(parts, columns, episode, random_divisions(6), ["ridge"])


def named(env):
    return {factor.name: factor for factor in factors(env)}


def test_factors_are_what_a_camera_shows():
    everything = {"video_background": {}, "noisy_sensor": {}, "camera_jitter": {}}
    env = make_env("walker_walk", distractors=everything)
    found = named(env)
    assert "qpos/rootx" not in found and found["qpos/rooty"].kind == "angle"  # the camera travels with the walker
    assert found["qpos/left_knee"].kind == "scalar" and found["qvel/rootx"].quadrant == SIGNAL
    assert not any("clip" in name or "index" in name for name in found)
    assert len(found["video_background/brightness"].columns) == 16
    assert "uncontrollable, relevant" == found["video_background/brightness"].quadrant
    assert found["camera_jitter/dx"].quadrant == NOISE
    assert (
        named(make_env("walker_walk", distractors={"video_background": {}}))["video_background/brightness"].quadrant
        == NOISE
    )
    for source, names in (("signal", env.signal_names), ("noise", env.noise_names)):
        for factor in found.values():
            if factor.source == source:
                assert all(names[column].startswith(factor.name) for column in factor.columns)
    env.close()


def test_circular_factors_have_equal_values_where_pictures_are_equal():
    angle = Factor("a", "signal", (1,), "angle", SIGNAL)
    phase = Factor("p", "noise", (0,), "phase", NOISE)
    spin = Factor("q", "signal", (0, 1, 2, 3), "quaternion", SIGNAL)
    none = np.zeros(0)
    turned = angle.values(np.array([9.0, 0.3]), none), angle.values(np.array([0.0, 0.3 - 4 * np.pi]), none)
    np.testing.assert_allclose(*turned, atol=1e-12)
    np.testing.assert_allclose(phase.values(none, np.array([0.999999])), [0, 1], atol=1e-4)
    q = np.array([0.5, -0.5, 0.5, 0.5])
    np.testing.assert_allclose(spin.values(q, none), spin.values(-q, none))
    quarter = np.array([np.sqrt(0.5), 0, 0, np.sqrt(0.5)])  # about z: x -> y, y -> -x
    np.testing.assert_allclose(spin.values(quarter, none), [0, 1, 0, -1, 0, 0], atol=1e-12)


def test_quadrants_name_latents_that_exist():
    assert set(itertools.chain(*QUADRANTS.values())) == set("xyz")


def recordings(count=3, steps=7, behaviour="random", agent=None):
    def make():
        return make_env("dot", suite="toy", action_repeat=1, episode_steps=50)

    return data.record(make, data.probe_seeds(0, count), steps, agent=agent, behaviour=behaviour)


def test_recordings_repeat_and_align_actions_with_what_they_led_to():
    first, second = recordings(), recordings()
    for a, b in zip(first, second, strict=True):
        assert np.array_equal(a.observation, b.observation) and np.array_equal(a.action, b.action)
        moved = np.clip(a.signal[:-1] + 0.1 * a.action[1:], -0.9, 0.9)  # the toy's law of motion
        np.testing.assert_allclose(a.signal[1:], moved, atol=1e-6)
        assert not a.action[0].any() and len(a.observation) == 8
    alone = recordings(1)[0]
    assert np.array_equal(alone.observation, first[0].observation)


def test_seeds_of_probes_lie_above_those_of_evaluations():
    seeds = data.probe_seeds(0, 40)
    assert len(set(seeds)) == 40 and min(seeds) >= 2**32


def test_every_recording_draws_its_actions_from_its_own_seed():
    agent, seeds = small_agent(), data.probe_seeds(0, 2)
    for seed, played in zip(seeds, recordings(2, 5, "agent", agent), strict=True):
        noise, carry = torch.Generator().manual_seed(torch_seed(seed, "probe actions")), None
        for seen, led in zip(played.observation, played.action[1:], strict=False):
            action, carry = agent.act(seen, carry, explore=0.3, generator=noise)
            np.testing.assert_array_equal(led, action)
    for seed, played in zip(seeds, recordings(2, 5), strict=True):
        rng = generator(seed, "probe actions")
        np.testing.assert_array_equal(played.action[1:], [rng.uniform(-1, 1, 2).astype(np.float32) for _ in range(5)])


def test_filtering_in_chunks_equals_acting_step_by_step(monkeypatch):
    """The latent of a recording is the one that the agent had when it acted on the same noise."""
    agent = small_agent("2c")
    played = recordings(2, 9, "agent", agent)
    whole = data.freeze(agent, played, shared_noise=True)
    monkeypatch.setattr(data, "FRAMES", 6)  # three rows at a time
    parts = data.freeze(agent, played, shared_noise=True)
    for a, b in zip(whole, parts, strict=True):
        torch.testing.assert_close(a.latent.belief, b.latent.belief, rtol=1e-5, atol=1e-6)
        for name in "xyz":
            torch.testing.assert_close(a.posterior[name].mean, b.posterior[name].mean, rtol=1e-5, atol=1e-6)
    random = data._torch_generator("cpu", 0, "probe filter")
    noise = [agent.world_model.draw_noise(1, generator=random) for _ in range(10)]
    carry = None
    for t in range(10):
        image = torch.as_tensor(played[0].observation[t])[None]
        monkeypatch.setattr(agent.world_model, "draw_noise", lambda *_, t=t, **__: noise[t])
        carry = agent.observe(image, carry, torch.zeros(1, dtype=torch.bool), None)
        torch.testing.assert_close(carry.latent.belief[0].float(), whole[0].latent.belief[t], rtol=1e-5, atol=1e-6)
        if t < 9:
            action = torch.as_tensor(played[0].action[t + 1], dtype=carry.action.dtype)[None]
            carry = dataclasses.replace(carry, action=action)


def test_episodes_of_different_length_are_filtered_alike():
    agent = small_agent("2b")
    played = recordings(2, 9)
    short = played[1].first(4)
    together = data.freeze(agent, [played[0], short], shared_noise=True)
    alone = data.freeze(agent, [short], shared_noise=True)
    assert len(together[1].embedding) == 4 and len(together[0].embedding) == 10
    torch.testing.assert_close(together[1].latent.belief, alone[0].latent.belief, rtol=1e-5, atol=1e-6)
    parts, episode = stack(together)
    assert list(parts) == ["x", "y", "all", "encoder"] and list(episode) == [0] * 10 + [1] * 4
    assert parts["all"].shape == (14, parts["x"].shape[1] + parts["y"].shape[1])


def test_the_quick_probe_draws_from_no_generator_of_the_agent():
    agent = small_agent("2b").float()
    before = agent.random.get_state(), torch.get_rng_state()
    probe = QuickProbe(lambda: make_env("dot", suite="toy", episode_steps=40))
    first, second = probe(agent), probe(agent)
    assert first == second and {"probe/signal_ceiling", "probe/noise_ceiling"} <= set(first)
    assert set(first) <= {f"probe/{s}_{n}" for s in ("signal", "noise") for n in ("from_x", "from_y", "ceiling")}
    assert all(0 <= value <= 1 for value in first.values())
    assert torch.equal(before[0], agent.random.get_state()) and torch.equal(before[1], torch.get_rng_state())


def test_probing_while_training_is_logged_and_changes_nothing(tmp_path, monkeypatch):
    """Without probes, and stopped and continued with them, the weights are the same to the last bit."""
    monkeypatch.setattr(QuickProbe, "episodes", 6)
    options = ["train.eval_every=0", "train.probe_every=80"]
    probed, plain, parts = tmp_path / "probed", tmp_path / "plain", tmp_path / "parts"
    assert train(tiny(probed, *options)) and train(tiny(plain, *options, "train.probe_every=0"))
    run_in_parts(tiny(parts, *options), 61, 30)
    found = [line for line in lines(probed) if "probe/noise_ceiling" in line]
    assert [line["step"] for line in found] == [80, 160, 200] and "probe/signal_ceiling" in found[0]
    assert not any("probe/noise_ceiling" in line for line in lines(plain))
    again = [line for line in lines(parts) if "probe/noise_ceiling" in line]
    strip = lambda rows: [{k: v for k, v in row.items() if k != "probe/seconds"} for row in rows]  # noqa: E731
    assert strip(again) == strip(found)
    weights = [denoised_mdp.load(path, device="cpu").state_dict() for path in (probed, plain, parts)]
    assert all(torch.equal(weights[0][name], other[name]) for other in weights[1:] for name in weights[0])
    torch.set_deterministic_debug_mode("default")


@pytest.mark.parametrize(
    ("model", "homes"),
    [
        ("2b", ("x", "z", "y", "y")),
        ("2c", ("x", "z", "y", "y")),
        ("dreamer", ("x", "z", "y", "y")),
        ("tia", ("x", "y", "y", "y")),
        ("four_blocks", ("x", "z", "y", "w")),  # its y is seen by the policy
        ("confounder", ("x", "z", "cy", "y")),
    ],
)
def test_homes_follow_the_structure(model, homes):
    agent = build_agent(load_config(["preset=debug", f"model={model}", "policy=reinforce"]), 2)
    assert list(homes_of(agent).values()) == [tuple(one) for one in homes]


def test_homes_are_kept_in_files():
    homes = {kind: ("w", "x") for kind in QUADRANTS}
    matrix = dataclasses.replace(matrix_of({"x": (0.9, 0.1)}), homes=homes)
    tree = json.loads(json.dumps(factor_tables.as_tree(matrix)))
    assert factor_tables.from_tree(tree).homes == factor_tables.pooled([matrix, matrix]).homes == homes
    del tree["homes"]
    assert factor_tables.from_tree(tree).homes == QUADRANTS, "of an earlier version"
