"""The table of many runs: its statistics against brute force, and what it refuses to compare."""

import csv
import itertools
import json
import math
import shutil

import numpy as np
import pytest
import scipy.stats
from matplotlib.figure import Figure
from report_runs import add_probes, make_run

from denoised_mdp.analysis.plots import legend_below
from denoised_mdp.analysis.report.data import RunData, Speed, read_run
from denoised_mdp.analysis.table.cells import make_table
from denoised_mdp.analysis.table.plots import draw_seeds, levels_of
from denoised_mdp.analysis.table.statistics import (
    difference,
    double_ratio,
    improvement,
    interaction,
    interval,
    iqm,
    mean,
    median,
    profile,
    ratio,
    widening,
)
from denoised_mdp.analysis.table.write import (
    aggregates,
    by_variant,
    core_hours,
    improvements,
    interval_text,
    per_run,
    write_table,
)
from denoised_mdp.cli.main import main
from denoised_mdp.errors import UserError

SCORES = [np.array([3.0, 1.0, 7.0, 2.0]), np.array([10.0, 0.0, 4.0, 4.0]), np.array([5.0, 5.0, 6.0, 9.0])]
OTHER = [np.array([2.0, 2.0, 8.0]), np.array([4.0, 1.0, 11.0]), np.array([5.0, 0.0, 1.0])]


def test_statistics_are_their_definitions():
    together = sorted(np.concatenate(SCORES))
    assert iqm(SCORES) == np.mean(together[3:9]), "12 runs: the lowest and the highest 3 are left out"
    for count in range(3, 10):
        runs = np.random.default_rng(count).normal(size=(2, count))
        assert iqm([runs]) == pytest.approx(scipy.stats.trim_mean(runs, 0.25, axis=-1)), "as rliable"
    assert mean(SCORES) == pytest.approx((3.25 + 4.5 + 6.25) / 3)
    assert median(SCORES) == 4.5
    levels = np.array([0.0, 3.0, 9.5])
    brute = [np.mean([sum(s > level for s in task) / 4 for task in SCORES]) for level in levels]
    assert profile(SCORES, levels) == pytest.approx(brute)
    wins = [
        np.mean([1.0 if a > b else 0.5 if a == b else 0.0 for a, b in itertools.product(x, y)])
        for x, y in zip(SCORES, OTHER, strict=True)
    ]
    assert improvement(SCORES, OTHER) == pytest.approx(np.mean(wins))
    assert improvement(OTHER, SCORES) == pytest.approx(1 - np.mean(wins))
    assert improvement(SCORES, SCORES) == 0.5


def test_statistics_agree_with_the_authors_package():
    metrics = pytest.importorskip("rliable.metrics", reason="rliable is not installed")
    one, two = (np.stack(scores, 1) for scores in (SCORES, OTHER))  # [runs, tasks]
    for ours, theirs in ((iqm, "iqm"), (mean, "mean"), (median, "median")):
        assert ours(SCORES) == pytest.approx(getattr(metrics, f"aggregate_{theirs}")(one))
    assert improvement(SCORES, OTHER) == pytest.approx(metrics.probability_of_improvement(one, two))


def test_intervals_of_means_and_of_their_differences_are_students():
    one, two = np.array([3.0, 5.0, 4.5, 9.0]), np.array([1.0, 2.5, 0.5])
    given = scipy.stats.ttest_1samp(one, 0.0).confidence_interval()
    assert interval(mean, [one]) == pytest.approx((one.mean(), *given))
    given = scipy.stats.ttest_ind(one, two, equal_var=False).confidence_interval()
    assert interval(difference, [one], [two]) == pytest.approx((one.mean() - two.mean(), *given))
    value, low, high = interval(difference, [one, 10 * one], [two, 10 * two])
    assert value == pytest.approx(5.5 * (one.mean() - two.mean()))
    squares = [scale**2 * task.var(ddof=1) / len(task) for scale in (0.5, 5.0) for task in (one, two)]  # of halves
    freedom = sum(squares) ** 2 / sum(square**2 / n for square, n in zip(squares, (3, 2, 3, 2), strict=True))
    half = scipy.stats.t.ppf(0.975, freedom) * math.sqrt(sum(squares))
    assert (low, high) == pytest.approx((value - half, value + half))
    assert interval(mean, [one], within=(4.0, 7.0))[1:] == (4.0, 7.0)
    value, low, high = interval(difference, [one, one], [two])
    squares = [one.var(ddof=1) / 16, one.var(ddof=1) / 16, two.var(ddof=1) / 3]  # half of two means of 4, and one of 3
    freedom = sum(squares) ** 2 / sum(square**2 / n for square, n in zip(squares, (3, 3, 2), strict=True))
    assert high - low == pytest.approx(2 * scipy.stats.t.ppf(0.975, freedom) * math.sqrt(sum(squares)))


def test_the_difference_of_two_leads_and_its_interval():
    """Of normal scores with other variances and numbers of runs, 95 % of the intervals hold the truth, 6 - 2 = 4."""
    random, covered = np.random.default_rng(0), 0
    for _ in range(400):
        four = [mu + sigma * random.normal(size=n) for mu, sigma, n in ((9, 2, 5), (3, 1, 4), (7, 1, 3), (5, 2, 3))]
        value, low, high = interval(interaction, *([scores] for scores in four))
        means = [scores.mean() for scores in four]
        assert value == pytest.approx(means[0] - means[1] - means[2] + means[3])
        covered += low <= 4 <= high
    assert 0.92 < covered / 400 < 0.98
    squares = [scores.var(ddof=1) / len(scores) for scores in four]
    freedom = sum(squares) ** 2 / sum(s**2 / (len(scores) - 1) for s, scores in zip(squares, four, strict=True))
    assert high - low == pytest.approx(2 * scipy.stats.t.ppf(0.975, freedom) * math.sqrt(sum(squares)))
    one, two, *_ = ([scores] for scores in four)
    assert interaction(one, two, two, two) == pytest.approx(difference(one, two))


def test_an_end_just_below_0_is_shown_to_be():
    assert interval_text(78.0, -0.42, 156.4, 0) == "78 [-0.4, 156]"
    assert interval_text(-0.001, -0.1, 0.0, 2) == "-0.001 [-0.10, 0.00]"
    assert interval_text(0.2, math.nan, math.nan, 0) == "0"


@pytest.mark.parametrize("statistic", [median, iqm])
def test_intervals_are_those_of_all_resamples(statistic):
    """Two tasks of 3 runs have 27 x 27 equally likely resamples within tasks."""
    tasks = [np.array([0.0, 1.0, 4.0]), np.array([10.0, 20.0, 50.0])]
    every = [[np.array(draw) for draw in itertools.product(task, repeat=3)] for task in tasks]
    exact = np.sort([statistic(pair) for pair in itertools.product(*every)])
    value, *ends = interval(statistic, tasks, count=20_000)
    assert value == statistic(tasks)
    low, high = (value + (end - value) / widening(tasks) for end in ends)
    below = [np.mean(exact < bound) for bound in (low, high)], [np.mean(exact <= bound) for bound in (low, high)]
    for share, (less, most) in zip((0.025, 0.975), zip(*below, strict=True), strict=True):
        assert less - 0.006 <= share <= most + 0.006  # 5 standard errors of 20,000 draws
    assert interval(statistic, tasks) == interval(statistic, tasks), "equal inputs give equal intervals"


def test_resamples_stay_within_tasks_and_methods_are_drawn_apart():
    constant = [np.full(3, 1.0), np.full(5, 9.0)]  # tasks may have different numbers of runs
    value, *ends = interval(mean, constant)
    assert value == 5.0 and np.isnan(ends).all()
    scores = [np.array([0.0, 0.0, 1.0])]
    value, *ends = interval(improvement, scores, scores, count=20_000)
    low, high = (value + (end - value) / widening([*scores, *scores]) for end in ends)
    assert (low, high) == pytest.approx((1 / 6, 5 / 6)), "paired draws would always give one half"
    assert interval(improvement, scores, scores, within=(0.0, 1.0))[1:] == (0.0, 1.0)
    value, low, high = interval(mean, [np.array([1.0, 3.0]), np.array([2.0, 3.0, 4.0])])
    assert value == 2.5 and math.isnan(low) and math.isnan(high), "two runs show no spread but their range"


def test_a_share_that_no_resample_changes_has_no_interval():
    above, below = [np.array([4.0, 5.0, 9.0])], [np.array([1.0, 2.0, 3.0])]
    value, low, high = interval(improvement, above, below, within=(0.0, 1.0))
    assert value == 1.0 and math.isnan(low) and math.isnan(high), "three runs do not show that a fourth would win"
    levels = np.array([0.0, 4.5])
    value, low, high = interval(lambda tasks: profile(tasks, levels), above)
    assert value == pytest.approx([1, 2 / 3]) and np.isnan(low).tolist() == [True, False] and low[1] < 2 / 3 < high[1]


def test_the_interval_of_a_ratio_is_students_t_of_its_logarithm():
    first, second = [np.array([2.0, 3.0, 7.0])], [np.array([1.0, 1.5, 1.1, 1.2])]
    value, low, high = interval(ratio, first, second)
    squares = [runs.var(ddof=1) / len(runs) / runs.mean() ** 2 for [runs] in (first, second)]
    freedom = sum(squares) ** 2 / (squares[0] ** 2 / 2 + squares[1] ** 2 / 3)
    half = scipy.stats.t.ppf(0.975, freedom) * math.sqrt(sum(squares))
    assert value == 4 / 1.2 and (low, high) == pytest.approx((value / math.exp(half), value * math.exp(half)))
    assert interval(ratio, [1000 * first[0]], second) == pytest.approx((1000 * value, 1000 * low, 1000 * high))
    assert interval(ratio, second, first) == pytest.approx((1 / value, 1 / high, 1 / low))
    split = [first[0], first[0]], [second[0], second[0]]  # two tasks alike: the same ratio of half the variance
    assert np.log(interval(ratio, *split)[2] / value) < half / math.sqrt(2)
    zeros, ones, rough = np.zeros(3), np.ones(3), np.array([0.0, 0.0, 5.0])
    for nothing in ([zeros], second), ([-first[0]], second), (first, [zeros]), ([ones], [ones]), ([rough], second):
        _, low, high = interval(ratio, *nothing)
        assert math.isnan(low) and math.isnan(high)


def test_intervals_of_a_ratio_contain_the_truth_as_often_as_they_say():
    rng, hits, trials = np.random.default_rng(0), 0, 2000
    for _ in range(trials):
        _, low, high = interval(ratio, [rng.normal(200, 50, 3)], [rng.normal(400, 60, 4)])
        hits += low <= 0.5 <= high
    assert 0.93 <= hits / trials <= 0.99


def test_the_ratio_of_two_shares_and_its_interval():
    """Of positive scores with other spreads and numbers of runs, 95 % of the intervals hold the truth, 0.8 / 0.5."""
    random, covered = np.random.default_rng(0), 0
    for _ in range(1000):
        drawn = ((320, 40, 4), (400, 60, 3), (160, 25, 5), (320, 50, 3))
        four = [mu + sigma * random.normal(size=n) for mu, sigma, n in drawn]
        value, low, high = interval(double_ratio, *([scores] for scores in four))
        means = [scores.mean() for scores in four]
        assert value == pytest.approx(means[0] * means[3] / (means[1] * means[2]))
        covered += low <= 0.8 / 0.5 <= high
    assert 0.93 < covered / 1000 < 0.98
    squares = [(scores.std(ddof=1) / scores.mean()) ** 2 / len(scores) for scores in four]
    freedom = sum(squares) ** 2 / sum(s**2 / (len(scores) - 1) for s, scores in zip(squares, four, strict=True))
    half = scipy.stats.t.ppf(0.975, freedom) * math.sqrt(sum(squares))
    assert (low, high) == pytest.approx((value / math.exp(half), value * math.exp(half)))
    both = [[scores, 3 * scores] for scores in four]  # a second task whose scores are three times as high
    value, low, high = interval(double_ratio, *both)
    assert value == pytest.approx(means[0] * means[3] / (means[1] * means[2])), "of means over tasks"
    for wrong in (-four[0], np.array([-1.0, 0.0, 1.0]), np.array([-30.0, 28.0, 14.0])):  # negative, zero, rough
        for place in range(4):
            some = [wrong if i == place else scores for i, scores in enumerate(four)]
            assert np.isnan(interval(double_ratio, *([scores] for scores in some))[1:]).all()
    twice = (-four[0], four[1], -four[2], four[3])
    assert np.isnan(interval(double_ratio, *([scores] for scores in twice))[1:]).all(), "two signs do not cancel"


@pytest.mark.parametrize("sizes", [(3,), (5,), (3, 3, 3), (3, 8)])
def test_intervals_contain_the_truth_as_often_as_they_say(sizes):
    """Of few normal scores; percentiles alone contain it in 0.76 (3 runs) to 0.9 of the cases."""
    rng, hits, trials = np.random.default_rng(0), 0, 400
    for _ in range(trials):
        _, low, high = interval(median, [rng.normal(size=size) for size in sizes], count=400)
        hits += low <= 0 <= high
    assert 0.92 <= hits / trials <= 0.99


def test_the_widening_is_that_of_students_t():
    """Of one task: sqrt(n / (n - 1)) and the quantile of n - 1 degrees; of equal tasks: their sum, Welch's."""
    t, z = scipy.stats.t.ppf(0.975, [2, 4, 6]), scipy.stats.norm.ppf(0.975)
    three, five = np.array([1.0, 2.0, 4.0]), np.arange(5.0)
    assert widening([three]) == pytest.approx(math.sqrt(3 / 2) * t[0] / z)
    assert widening([five]) == pytest.approx(math.sqrt(5 / 4) * t[1] / z)
    assert widening([three, three + 9, 4 - three]) == pytest.approx(math.sqrt(3 / 2) * t[2] / z)
    assert widening([np.ones(3)]) == 1.0


def test_cpu_hours_are_summed_over_the_log_or_follow_from_the_clock():
    """Logged for two thirds of the updates only, they are scaled; without any, the clock counts, with the threads."""
    steps = np.array([100.0, 200.0, 300.0])
    spent = (steps, np.array([1800.0, 3600.0, 1800.0]))
    clock = {"machine": [{"threads": 2}], "speed": Speed(3600.0, 300)}
    begun = {"train/updates": (steps, steps)}
    assert core_hours(RunData(None, metrics=begun | {"train/cpu_seconds": spent}, **clock)) == 2
    late = {"train/cpu_seconds": tuple(part[1:] for part in spent)}
    assert core_hours(RunData(None, metrics=begun | late, **clock)) == pytest.approx(1.5 * 3 / 2)
    assert core_hours(RunData(None, metrics=begun, **clock)) == 2 * 1
    assert math.isnan(core_hours(RunData(None, metrics=begun)))


def grid(folder, *overrides, methods=("2b", "dreamer"), seeds=(0, 1, 2), offset=0.0, step=240):
    """Runs of debug's 480 steps whose last return is known: 10 per method, 1 per seed."""
    for (number, method), seed in itertools.product(enumerate(methods), seeds):
        path = folder / f"{method}-{seed}-{'-'.join(overrides)}".replace("/", "_").replace("=", "_")
        make_run(
            path, f"model={method}", f"seed={seed}", *overrides, returns=(0.0, 10 * number + seed + offset), step=step
        )


def table_of(folder, **options):
    return make_table([read_run(path) for path in sorted(folder.iterdir())], **options)


def test_a_table_has_the_means_of_its_cells(tmp_path):
    grid(tmp_path)
    grid(tmp_path, "env.task=counting", offset=100.0)
    grid(tmp_path, "env.task=counting", "env=dmc", "env.task=cheetah_run", "distractors=video_background", offset=4.0)
    table = table_of(tmp_path)
    assert (table.methods, table.budget, table.missing) == (["2b · backprop", "dreamer · backprop"], 480, [])
    assert (table.tasks, table.variants) == (["cheetah_run", "counting", "dot"], ["noiseless", "video background"])
    [_, *rows] = by_variant(table)
    assert [[cell.split()[0] for cell in row[1:]] for row in rows] == [["51", "61"], ["5", "15"]]
    assert rows[0][1].endswith("]") and rows[0][0] == "noiseless"
    assert improvements(table)[1][1:] == ["", "0.00"]  # no resample would change it
    assert aggregates(table)[1][1].split()[0] == "23", "mean of 2, 4, 5, 6, 100; 0, 1 and 101, 102 are left out"


def test_what_is_missing_is_named_and_never_averaged_over(tmp_path):
    grid(tmp_path, seeds=(0, 1))
    grid(tmp_path, "env.task=counting", methods=("2b",), seeds=(0,))
    grid(tmp_path, "env.task=counting", methods=("2b",), seeds=(1,), step=100)  # ended at step 200 of 480
    table = table_of(tmp_path)
    text = "\n".join(table.missing)
    assert "dreamer · backprop, counting, noiseless: no run with seed 0, 1" in text
    assert "not evaluated at step 480 (evaluated at 200; logged until 200)" in text and len(table.missing) == 2
    assert table.scores("dreamer · backprop") is None and by_variant(table)[1][2] == "-"
    assert [list(scores) for scores in table.scores("2b · backprop")] == [[0.0], [0.0, 1.0]]


def test_a_run_that_failed_at_its_start_does_not_keep_the_others_from_the_table(tmp_path):
    """It has another length, other clips and the seed of another run, and no evaluation: it is named as missing."""
    grid(tmp_path, seeds=(0, 1))
    failed = make_run(tmp_path / "z", "seed=1", "train.total_steps=960", "env.clips=elsewhere")
    (failed / "metrics.jsonl").write_text("")
    table = table_of(tmp_path)
    assert table.budget == 480 and [list(scores) for scores in table.scores("2b · backprop")] == [[0.0, 1.0]]
    assert table.missing == [f"2b · backprop, dot, noiseless: {failed} not evaluated at step 480 (logged until 0)"]
    for run in tmp_path.iterdir():
        (run / "metrics.jsonl").write_text("")
    with pytest.raises(UserError, match="different lengths"):
        table_of(tmp_path)


@pytest.mark.parametrize(
    ("other", "said"),
    [
        (["train.total_steps=960"], "different lengths .* --step"),
        (["train.eval_episodes=3"], "evaluated differently: train.eval_episodes is 2 and 3"),
        (["env.episode_steps=30"], "evaluated differently: env.episode_steps"),
        (["model.kl.beta=0.5"], "differ in model.kl.beta: 1.0 -> 0.5.*--by model.name,policy.name,model.kl.beta"),
        (["train.prefill_steps=300", "seed=4"], "differ in train.prefill_steps"),
        (["seed=0"], "one seed"),
    ],
)
def test_what_cannot_be_compared_is_refused(tmp_path, other, said):
    grid(tmp_path, methods=("2b",), seeds=(0,))
    make_run(tmp_path / "z", "seed=1", *other, returns=(0.0, 1.0), step=240)
    with pytest.raises(UserError, match=said):
        table_of(tmp_path)


def test_evaluations_of_other_numbers_of_episodes_are_refused(tmp_path):
    """Also where both runs have been continued with the same number since."""
    grid(tmp_path, methods=("2b",), seeds=(0, 1))
    for run, episodes in zip(sorted(tmp_path.iterdir()), (1, 5), strict=True):
        lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
        text = "\n".join(
            json.dumps(line | ({"eval/episodes": episodes} if "eval/return" in line else {})) for line in lines
        )
        (run / "metrics.jsonl").write_text(text + "\n")
    with pytest.raises(UserError, match="evaluated differently at step 480: by 1 and 5 episodes"):
        table_of(tmp_path)


def test_what_neither_run_uses_may_differ(tmp_path):
    """The environment has one quality; and nothing shows clips where there is no video."""
    grid(tmp_path, methods=("2b",), seeds=(0,))
    make_run(tmp_path / "z", "seed=1", "env.quality=faithful", returns=(0.0, 1.0), step=240)
    make_run(tmp_path / "d", "seed=0", "model=dreamer", "env.quality=faithful", returns=(0.0, 1.0), step=240)
    assert len(table_of(tmp_path).entries) == 3
    for seed, clips in enumerate(("procedural:1", "procedural:2")):
        words = [f"seed={seed}", "distractors=video_background", f"env.clips={clips}"]
        make_run(tmp_path / clips, *words, returns=(0.0, 1.0), step=240)
    with pytest.raises(UserError, match="evaluated differently: env.clips is procedural:1 and procedural:2"):
        table_of(tmp_path)


def test_no_seed_counts_twice(tmp_path):
    """Whichever of the seeds it is: two runs of one would make the interval narrower than it is."""
    grid(tmp_path, methods=("2b",), seeds=(0, 1))
    make_run(tmp_path / "z", "seed=1", returns=(0.0, 1.0), step=240)
    with pytest.raises(UserError, match="one method and one seed"):
        table_of(tmp_path)


def test_advice_to_tell_runs_apart_can_be_followed_where_a_choice_differs(tmp_path):
    for name, *options in (("a",), ("b", "model.optimizer.name=muon")):
        make_run(tmp_path / name, "seed=0", *options, returns=(0.0, 1.0), step=240)
    with pytest.raises(UserError, match="--by model.name,policy.name,model.optimizer.name, or leave"):
        table_of(tmp_path)
    assert len(table_of(tmp_path, by=["model.optimizer.name"]).methods) == 2


def test_a_folder_of_probes_that_is_not_there_is_no_folder_without_results(tmp_path, capsys):
    grid(tmp_path / "runs", methods=("2b",), seeds=(0,))
    command = ["table", str(tmp_path / "runs"), "-o", str(tmp_path / "out"), "--probes", str(tmp_path / "no")]
    assert main(command) == 2 and "There is no folder" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_advice_to_tell_runs_apart_keeps_what_was_given(tmp_path):
    for name, *options in (("a",), ("b", "model.kl.beta=0.5"), ("c", "model.kl.free_nats=1")):
        make_run(tmp_path / name, "seed=0", *options, returns=(0.0, 1.0), step=240)
    by = ["model.name"]
    for key in ("model.kl.beta", "model.kl.free_nats"):
        with pytest.raises(UserError, match=f"--by {','.join([*by, key])}, or leave"):
            table_of(tmp_path, by=by)
        by.append(key)
    assert len(table_of(tmp_path, by=by).methods) == 3


@pytest.mark.parametrize(("width", "columns"), [(9.0, 4), (3.5, 1)])
def test_a_legend_has_as_many_columns_as_fit(width, columns):
    """Four labels of 20 letters, of which no column of a narrow figure holds two."""
    figure = Figure(figsize=(width, 3), layout="constrained")
    axes = figure.subplots()
    for number in range(4):
        axes.plot([0, 1], label=f"2b · beta=0.125 no. {number}")
    legend_below(figure, [axes])
    figure.canvas.draw()
    (legend,) = figure.legends
    place, page = legend.get_window_extent(), figure.get_window_extent()
    assert legend._ncols == columns and page.x0 <= place.x0 and place.x1 <= page.x1


def test_options_tell_methods_apart_and_a_step_makes_lengths_equal(tmp_path):
    grid(tmp_path, methods=("2b",))
    grid(tmp_path, "model.kl.beta=0.5", "train.total_steps=960", methods=("2b",), offset=5.0)
    table = table_of(tmp_path, step=240, by=["model.name", "model.kl.beta"])
    assert table.methods == ["2b · beta=0.5", "2b · beta=1.0"]
    assert [list(scores) for scores in table.scores("2b · beta=1.0")] == [[0.0, 0.0, 0.0]]
    with pytest.raises(UserError, match="--by model.kl.bet: unknown option .* Did you mean 'model.kl.beta'"):
        table_of(tmp_path, step=240, by=["model.kl.bet"])


@pytest.mark.parametrize(
    ("by", "said"),
    [
        ("", "--by : name options, such as model.name,policy.name"),
        ("model.name,", "--by model.name,: name options"),
        ("model.name,sed", "--by sed: unknown option"),
    ],
)
def test_keys_are_checked_before_runs_are_read(tmp_path, capsys, by, said):
    assert main(["table", str(tmp_path / "none"), "--by", by]) == 2
    assert said in capsys.readouterr().err


def test_a_mean_is_a_line_only_where_all_seeds_count():
    """One run ends at 480, the other at 720, where the mean of those left jumps from 15 to 30."""
    axes = Figure().subplots()
    curves = [(np.array([240.0, 480.0]), np.array([0.0, 10.0])), (np.array([240.0, 480.0, 720.0]), np.full(3, 20.0))]
    curves[1][1][2] = 30.0
    draw_seeds(axes, curves, 2, "red", "2b")
    line, dotted, *runs = axes.lines
    assert line.get_xydata().tolist() == [[0.24, 10.0], [0.48, 15.0]] and line.get_linestyle() == "-"
    assert dotted.get_xydata().tolist()[-1] == [0.72, 30.0] and dotted.get_linestyle() == ":"
    assert line.get_linewidth() == dotted.get_linewidth() and len(runs) == 2
    assert axes.get_legend_handles_labels()[1] == ["2b"]


def test_a_mean_without_some_runs_is_dotted_everywhere():
    """A third run has no curve at all."""
    axes = Figure().subplots()
    draw_seeds(axes, [(np.array([240.0, 480.0]), np.array([0.0, 10.0]))] * 2, 3, "red", "2b")
    line, dotted, *_ = axes.lines
    assert not len(line.get_xydata()) and len(dotted.get_xydata()) == 2 and dotted.get_linestyle() == ":"


def test_a_mean_of_some_runs_says_of_how_many(tmp_path):
    grid(tmp_path, methods=("2b",), seeds=(0, 1, 2))
    for number, run in enumerate(sorted(tmp_path.iterdir())):
        if number:
            add_probes(run, recall=0.75, leakage=0.25 if number == 1 else math.nan)
    head, line = aggregates(table_of(tmp_path))
    found = dict(zip(head, line, strict=True))
    assert (found["recall"], found["leakage"]) == ("0.75 (2 of 3)", "0.25 (1 of 3)")


def test_probes_are_compared_at_the_step_of_the_table(tmp_path):
    """2b was probed at 240 and 480, Dreamer at 240 alone, or at 480 alone, which is later than the table's step."""
    grid(tmp_path, seeds=(0,))
    runs = {path.name.partition("-")[0]: path for path in tmp_path.iterdir()}
    add_probes(runs["2b"], recall=0.5, step=240)
    add_probes(runs["2b"], recall=0.75, step=480)
    for at, expected in ((480, {"0.75", "-"}), (240, {"0.50", "0.25"})):
        add_probes(runs["dreamer"], recall=0.25, step=240)
        table = table_of(tmp_path, step=at)
        assert {line[4] for line in aggregates(table)[1:]} == expected
        known = [row for row in per_run(table) if row["recall"] == row["recall"]]
        assert {row["factors_step"] for row in known} == {at} and f"(factors: {at}, " in notes_of(table, tmp_path)
    table = table_of(tmp_path, step=100)
    assert {line[4] for line in aggregates(table)[1:]} == {"0.50", "0.25"}, "nearest to all: the step that most share"


def notes_of(table, folder):
    (folder / "out").mkdir(exist_ok=True)
    [path, *_] = write_table(table, folder / "out")
    text = path.read_text()
    shutil.rmtree(folder / "out")
    return text


@pytest.mark.parametrize(
    ("scores", "ends"), [((-180.0, -1200.0), (-1200, 0)), ((3.0, 90.0), (0, 90)), ((0.0, 0.2), (0, 1))]
)
def test_profiles_reach_from_the_lowest_to_the_highest_return(scores, ends):
    levels = levels_of([np.array([one]) for one in scores])
    assert (levels[0], levels[-1]) == ends


def test_the_command_writes_every_format(tmp_path, capsys):
    grid(tmp_path / "runs", seeds=(0, 1))
    for run in (tmp_path / "runs").iterdir():
        add_probes(run, recall=0.75, leakage=0.25)
    (tmp_path / "runs" / "2b-1-" / "metrics.jsonl").unlink()
    output = tmp_path / "out"
    assert main(["table", str(tmp_path / "runs"), "-o", str(output)]) == 0
    said = capsys.readouterr().out
    assert "missing: 2b · backprop, dot, noiseless" in said
    names = ["aggregates.png", "curves.png", "runs.csv", "table.md", "table.tex"]
    assert sorted(path.name for path in output.iterdir()) == names and all(name in said for name in names)
    rows = {row["run"]: row for row in csv.DictReader(open(output / "runs.csv"))}
    assert {row["recall"] for row in rows.values()} == {"0.75"} and len(rows) == 4
    assert rows[str(tmp_path / "runs" / "2b-1-")]["return"] == ""
    assert rows[str(tmp_path / "runs" / "dreamer-1-")]["return"] == "11.0"
    text = (output / "table.md").read_text()
    assert "| 0.75 | 0.25 | 0.06 |" in text and "no interval" not in text
    assert "Student's t with Welch's degrees of freedom for means, otherwise a bootstrap" in text
    latex = (output / "table.tex").read_text()
    assert latex.count(r"\begin{tabular}") == latex.count(r"\end{tabular}") == 3 and r"$\cdot$" in latex
    for line in latex.splitlines():
        if line.endswith(r"\\"):
            assert line.count("&") in (2, 9)
    assert main(["table", str(tmp_path / "runs"), "-o", str(output), "--step", "7"]) == 0
    assert not (output / "aggregates.png").exists(), "of the table before"
    assert main(["table", str(tmp_path / "nothing")]) == 2
