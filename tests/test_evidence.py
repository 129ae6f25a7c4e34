"""The evidence over seeds: what is measured of a run, once; what follows from the rows; what may not be mixed."""

import csv
import importlib
import json
import re
import shlex
import shutil

import numpy as np
import pytest
from pictures import assert_whole
from report_runs import add_probes, make_run, matrix_of
from reproducing import script
from small_runs import tiny

from denoised_mdp import load
from denoised_mdp.analysis.factor_tables import as_tree
from denoised_mdp.analysis.factors import UNTRAINED
from denoised_mdp.analysis.report.data import read_run
from denoised_mdp.analysis.results import write_json
from denoised_mdp.analysis.table.statistics import difference, interval
from denoised_mdp.config import load_config
from denoised_mdp.config.compare import differences
from denoised_mdp.errors import UserError
from denoised_mdp.evaluation import evaluate, evaluation_seeds
from denoised_mdp.run.environments import environment_maker
from denoised_mdp.run.folder import RunFolder
from denoised_mdp.session import train


@pytest.fixture(scope="module")
def evidence():
    """The script as a module, with its parts `arms` and `measures`."""
    with script("evidence") as module:
        module.arms, module.measures = map(importlib.import_module, ("evidence_arms", "evidence_measures"))
        yield module


def rows_of(path):
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def call(evidence, monkeypatch, *arguments):
    monkeypatch.setattr("sys.argv", ["evidence.py", *map(str, arguments)])
    evidence.main()


def add(evidence, out, *runs, size="least", step=None):
    """As `call`, but for the pictures and tables that follow from the rows."""
    evidence.add(runs, out, evidence.measured_at(size), step=step)


@pytest.fixture(scope="module")
def evaluated(tmp_path_factory):
    """A trained run that kept the weights of all its evaluations; not to be changed."""
    run = tmp_path_factory.mktemp("evaluated") / "a"
    assert train(tiny(run, "train.eval_every=40", "train.snapshot_every=40"))
    return run


def test_a_run_is_measured_once_for_each_checkpoint(evidence, tmp_path, monkeypatch, cache):
    """Of a run that is made longer, the new checkpoint is measured; all files follow from the rows."""
    run, out = tmp_path / "runs" / "a", tmp_path / "out"
    longer = "train.total_steps=240"
    for more in ([], [longer]):
        assert train(tiny(run, "distractors=camera_jitter", "train.probe_every=80", *more))
        if more:
            call(evidence, monkeypatch, run, "--out", out, "--size", "least")
        else:
            add(evidence, out, run)
        (row,) = rows_of(out / "runs.csv")
        step = 240 if more else 200
        assert (row["step"], row["variant"], row["arm"], row["seed"]) == (str(step), "camera_jitter", "2b", "0")
        files = {path.name.rpartition("_")[2] for path in (run / "probes").glob("*.json")}
        assert f"{step:09d}.json" in files
    for name in ("summary.json", "intervals.json", "table.md", "curves.png", "arms.png"):
        assert (out / name).stat().st_size > 100
    arm = json.loads((out / "summary.json").read_text())["dot"]["camera_jitter"]["2b"]
    played = json.loads((run / "probes" / "returns_000000240.json".replace("returns", "returns_episodes2")).read_text())
    assert arm["return"] == [pytest.approx(np.mean(played["returns"]["train"]), rel=1e-4)]
    assert arm["return_unseen"] == [None], "jitter has no clips"
    assert arm["updates"] == [int(read_run(run).metrics["train/updates"][1][-1])]
    assert arm["action_change"][0] >= 0 and arm["nats_x"][0] > 0

    def never(runs, options):
        raise AssertionError("measured again")

    before = (out / "runs.csv").read_text()
    for name, (probe, options) in evidence.measures.MEASURES.items():
        monkeypatch.setitem(evidence.measures.MEASURES, name, (type(probe)(probe.help, never), options))
    add(evidence, out, run)
    assert (out / "runs.csv").read_text() == before


def test_best_weights_are_measured_in_other_episodes_than_those_that_chose_them(evidence, evaluated, tmp_path):
    run, out = tmp_path / "a", tmp_path / "out"
    shutil.copytree(evaluated, run)
    config = read_run(run).config
    with RunFolder(run).metrics.open("a") as log:
        log.write(f"{json.dumps({'step': 120, 'eval/return': 1e3})}\n")
    add(evidence, out, run, step="best")
    (row,) = rows_of(out / "runs.csv")
    assert row["step"] == "120"
    seeds = evaluation_seeds(config.seed, 2, after=config.train.eval_episodes)
    assert not set(seeds) & set(evaluation_seeds(config.seed, config.train.eval_episodes))
    played = evaluate(load(run, checkpoint=120), environment_maker(config), seeds).returns
    (file,) = (run / "probes").glob("returns*.json")
    assert json.loads(file.read_text())["returns"]["train"] == pytest.approx(played)
    assert float(row["return"]) == pytest.approx(np.mean(played), rel=1e-4)


def played(episodes, after, value):
    """A result of held-out episodes: a mean of `value` with the clips of training, one more with unseen ones."""
    splits = {"train": [value] * 2, "test": [value - 1, value + 3]}
    return {"options": {"episodes": episodes, "after": after}, "returns": splits}


def made(path, *overrides, returns, recall, leakage):
    """A finished run with all results of the full size, made by hand."""
    run = make_run(path, "train.eval_episodes=10", *overrides, returns=returns, step=200 // len(returns))
    for number in range(1, len(returns) + 1):
        (run / "checkpoints" / f"step_{number * 200 // len(returns):09d}").mkdir(parents=True)
    add_probes(run, recall, leakage)
    files = {
        "invariance": {
            "options": {"episodes": 6, "steps": 150, "split": "train", "worlds": 4, "returns": 0},
            "action_change": 0.5,
            "distances": {"x": {"ratio": 0.25}},
        },
        "returns": played(10, 0, returns[-1]),
        "returns_best": played(20, 10, returns[-1] + 2),
    }
    for file, tree in files.items():
        about = {"probe": file.partition("_")[0], "run": "", "step": 200}
        write_json(run / "probes" / f"{file}.json", about | tree)
    return run


@pytest.fixture(scope="module")
def grid(tmp_path_factory):
    """2b and dreamer, three seeds each: returns 100 + 10 seed and 40 + seed; 2b without distractors, one seed.

    Not to be changed.
    """
    folder = tmp_path_factory.mktemp("grid")
    jitter = "distractors=camera_jitter"
    for seed in range(3):
        about = f"seed={seed}", jitter
        made(folder / f"a{seed}", "model=2b", *about, returns=(0.0, 100.0 + 10 * seed), recall=0.8, leakage=0.1)
        made(folder / f"b{seed}", "model=dreamer", *about, returns=(0.0, 40.0 + seed), recall=0.5, leakage=0.9)
    made(folder / "quiet", "model=2b", returns=(0.0, 220.0), recall=0.9, leakage=float("nan"))
    return folder


def test_numbers_follow_from_the_runs(evidence, grid, tmp_path, monkeypatch, capsys):
    out = tmp_path / "out"
    call(evidence, monkeypatch, grid, "--out", out)
    tree = json.loads((out / "summary.json").read_text())["dot"]
    assert tree["camera_jitter"]["2b"]["return"] == [100, 110, 120]
    assert tree["camera_jitter"]["2b"]["return_unseen"] == [101, 111, 121]
    assert tree["camera_jitter"]["2b"]["return_best"] == [102, 112, 122]
    assert tree["camera_jitter"]["2b"]["return_best_unseen"] == [103, 113, 123]
    assert tree["camera_jitter"]["2b"]["return_late"] == [None] * 3, "of two evaluations"
    assert tree["camera_jitter"]["dreamer"]["leakage"] == [0.9] * 3
    assert tree["noiseless"]["2b"]["leakage"] == [None] and tree["noiseless"]["2b"]["action_change"] == [None]
    assert tree["camera_jitter"]["2b"]["updates"] == [2, 2, 2]
    found = json.loads((out / "intervals.json").read_text())
    compared = {(c["first"], c["second"], c["metric"]): c for c in found["comparisons"]}
    gain = compared["2b", "dreamer", "return"]
    ours, theirs = [np.array([100.0, 110.0, 120.0])], [np.array([40.0, 41.0, 42.0])]
    assert gain["difference"]["value"] == pytest.approx(110 - 41)
    _, low, high = interval(difference, ours, theirs)
    assert (gain["difference"]["low"], gain["difference"]["high"]) == (pytest.approx(low), pytest.approx(high))
    assert 69 - 3 * 11 < low < 69 - 11 and 69 + 11 < high < 69 + 3 * 11, "wider than the extremes of all resamples"
    assert gain["improvement"]["value"] == 1
    assert compared["2b", "2b noiseless", "return"]["ratio"]["value"] == pytest.approx(110 / 220)
    assert compared["2b", "2b noiseless", "return"]["ratio"]["low"] is None, "one run shows no spread"
    assert ("2b", "2b noiseless", "leakage") not in compared
    curve = [r for r in rows_of(out / "curves.csv") if (r["arm"], r["seed"], r["metric"]) == ("dreamer", "2", "return")]
    assert [(r["updates"], float(r["value"])) for r in curve] == [("1", 0.0), ("2", 42.0)]
    assert "| 110 [85, 135] (100, 110, 120) | 41 [39, 43] (40, 41, 42) |" in capsys.readouterr().out


def test_every_column_holds_its_own_number(evidence, tmp_path, monkeypatch):
    """A run in which no two numbers are alike."""
    run, out = tmp_path / "a", tmp_path / "out"
    made(run, "model=2b", "distractors=camera_jitter", returns=(3.0, 4.0, 5.0, 6.0, 7.5), recall=0.8, leakage=0.1)
    scores = {"x": (0.81, 0.11), "y": (0.21, 0.91), UNTRAINED: (0.31, 0.41)}
    distances = {"x": {"ratio": 0.25}, "y": {"ratio": 8.0}, "action": {"ratio": 0.35}}
    about = {"run": "", "step": 200}
    contents = {
        "factors_train_000000200": {
            "options": {"episodes": 36, "steps": 200, "seeds": 1, "split": "train", "behaviour": "mixed"},
            **as_tree(matrix_of(scores)),
        },
        "invariance": {
            "options": {"episodes": 6, "steps": 150, "split": "train", "worlds": 4, "returns": 0},
            "action_change": 0.55,
            "untrained": {"action_change": 0.65, "action_ratio": 0.75},
            "distances": distances,
        },
        "returns": played(10, 0, 12.0),
        "returns_best": played(20, 10, 22.0),
    }
    for name, tree in contents.items():
        write_json(run / "probes" / f"{name}.json", {"probe": name.partition("_")[0], **about, **tree})
    lines = [{"step": step, "random/return": value} for step, value in ((0, 30.0), (10, 32.0))]
    lines += [{"step": 200, "model/kl_x": 2.5, "model/kl_y": 3.5, "train/updates": 77, "train/cpu_seconds": 1800.0}]
    lines += [{"step": 200, "eval/return": 9.0}]
    (run / "metrics.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    (run / "machine.jsonl").write_text(f"{json.dumps({'parameters': 1234, 'threads': 1})}\n")
    call(evidence, monkeypatch, run, "--out", out)
    (row,) = rows_of(out / "runs.csv")
    expected = {
        "step": 200,
        "updates": 77,
        "cpu_hours": 0.5,
        "parameters": 1234,
        "random": 31,
        "random_error": 1,
        "return": 12,
        "return_error": 0,
        "return_unseen": 13,
        "return_best": 22,
        "return_best_unseen": 23,
        "recall": 0.81,
        "leakage": 0.11,
        "recall_untrained": 0.31,
        "leakage_untrained": 0.41,
        "signal_from_y": 0.21,
        "noise_from_y": 0.91,
        "action_change": 0.55,
        "action_change_untrained": 0.65,
        "action_ratio": 0.35,
        "action_ratio_untrained": 0.75,
        "invariance": 0.25,
        "invariance_y": 1 / 8,
        "nats_x": 2.5,
        "nats_y": 3.5,
    }
    assert {name: float(row[name]) for name in expected} == pytest.approx(expected)
    named = {
        "run": "a",
        "task": "dot",
        "variant": "camera_jitter",
        "arm": "2b",
        "seed": "0",
        "measured": "step 200 train",
    }
    assert {name: row[name] for name in named} == named
    assert row.keys() == expected.keys() | named.keys() | {"overrides"}


def test_a_run_without_evaluations_has_a_row_and_no_curve(evidence, tmp_path, monkeypatch):
    run, out = tmp_path / "a", tmp_path / "out"
    log = made(run, "distractors=camera_jitter", returns=(0.0, 100.0), recall=0.8, leakage=0.1) / "metrics.jsonl"
    log.write_text("".join(line for line in log.read_text().splitlines(True) if "eval/return" not in line))
    call(evidence, monkeypatch, run, "--out", out)
    (row,) = rows_of(out / "runs.csv")
    assert (row["return"], row["return_best"]) == ("100", "")
    assert not (out / "curves.csv").exists() and not (out / "curves.png").exists() and (out / "arms.png").exists()


def test_late_returns_are_a_mean_over_the_last_evaluations_up_to_the_step(evidence, tmp_path, monkeypatch):
    """Those after it, as of a run that was continued and is measured where it was before, do not count."""
    run, out = tmp_path / "a", tmp_path / "out"
    made(run, "model=2b", returns=(7.0, 1.0, 2.0, 4.0, 9.0), recall=0.8, leakage=0.1)  # at 40, 80, ..., 200
    with (run / "metrics.jsonl").open("a") as log:
        log.write(f"{json.dumps({'step': 240, 'eval/return': 1e3})}\n")
    call(evidence, monkeypatch, run, "--out", out, "--step", "200")
    assert json.loads((out / "summary.json").read_text())["dot"]["noiseless"]["2b"]["return_late"] == [4]


def test_best_weights_are_those_up_to_the_step(evidence, evaluated, tmp_path):
    """A run without evaluations has none; one that lacks weights of an evaluation is not known to."""
    run, out = tmp_path / "a", tmp_path / "out"
    shutil.copytree(evaluated, run)
    log = [line for line in RunFolder(run).metrics.read_text().splitlines() if "eval/return" not in line]
    log += [json.dumps({"step": step, "eval/return": value}) for step, value in ((80, 5.0), (120, 3.0), (200, 9.0))]
    RunFolder(run).metrics.write_text("\n".join([*log, ""]))
    asked = evidence.measured_at("least")
    assert evidence.asked_of(read_run(run), asked, 160)["best"].checkpoint == 80
    assert evidence.asked_of(read_run(run), asked, None)["best"].checkpoint == 200
    assert "best" not in evidence.asked_of(read_run(run), asked, "best"), "`returns` are of the best weights"
    add(evidence, out, run, step=160)
    (row,) = rows_of(out / "runs.csv")
    seeds = evaluation_seeds(0, 2, after=read_run(run).config.train.eval_episodes)
    found = evaluate(load(run, checkpoint=80), environment_maker(read_run(run).config), seeds).returns
    assert float(row["return_best"]) == pytest.approx(np.mean(found), rel=1e-4)
    for steps in ((80, 90, 200), ()):
        more = [json.dumps({"step": step, "eval/return": 9.0}) for step in steps]
        kept = [line for line in log if "eval/return" not in line]
        RunFolder(run).metrics.write_text("\n".join([*kept, *more, ""]))
        assert "best" not in evidence.asked_of(read_run(run), asked, None), "weights of step 90 are gone"


def test_the_picture_says_which_arms_have_no_line_and_why(evidence, monkeypatch, tmp_path):
    """Below the panel of the quick probe, and only where an arm lacks one."""
    show, figures = importlib.import_module("evidence_show"), []
    monkeypatch.setattr(show, "save_figure", lambda figure, path: figures.append(figure) or path)
    about = {"task": "dot", "variant": "camera_jitter", "seed": "0", "value": "0.5"}
    rows = [
        about | {"arm": arm, "metric": metric, "updates": updates}
        for arm, metrics in {"2b": ("return", "recall", "leakage"), "tia": ("return", "leakage")}.items()
        for metric in metrics
        for updates in ("1000", "2000")
    ]
    show.draw_curves(rows, tmp_path / "curves.png")
    returns, recall, leakage = (axes.get_xlabel() for axes in figures[0].axes)
    assert returns == leakage == "thousand updates"
    assert recall == "thousand updates\nno line: too few episodes for a value of tia"
    assert_whole(figures[0])
    show.draw_curves([row for row in rows if row["metric"] != "leakage"], tmp_path / "curves.png")
    [shown] = [axes.texts[0].get_text() for axes in figures[1].axes if not axes.axison]
    assert shown == "leakage (quick probe):\nnot measured in training"
    assert_whole(figures[1])


def test_rows_of_other_runs_stay(evidence, grid, tmp_path, monkeypatch):
    out, later = tmp_path / "out", tmp_path / "later"
    add(evidence, later, grid / "a0", grid / "b0", size="full")
    call(evidence, monkeypatch, *(grid / name for name in ("b2", "quiet", "a1", "b1", "a2")), "--out", later)
    call(evidence, monkeypatch, grid, "--out", out)
    for name in ("runs.csv", "curves.csv", "summary.json", "intervals.json"):
        assert (out / name).read_text() == (later / name).read_text()


def test_rows_of_other_settings_are_not_mixed_in(evidence, grid, tmp_path, monkeypatch):
    """Neither are runs given later, by what runs.csv says of the earlier ones."""
    out = tmp_path / "out"
    add(evidence, out, grid / "a0", size="full")
    about = "model=2b", "seed=3", "distractors=camera_jitter", "model.kl.beta=0.25"
    other = made(tmp_path / "other", *about, returns=(0.0, 1.0), recall=0.1, leakage=0.1)
    before = (out / "runs.csv").read_text()
    with pytest.raises(SystemExit, match=r"other and .*out: a0 .* differ in model.kl.beta"):
        call(evidence, monkeypatch, other, "--out", out)
    assert (out / "runs.csv").read_text() == before
    add(evidence, tmp_path / "another", other, size="full")


def test_an_agent_without_a_model_has_no_nats(evidence, tmp_path):
    run = tmp_path / "a"
    options = ("agent=sac_pixels", "distractors=camera_jitter", "env.size=32")
    assert train(tiny(run, *options))
    add(evidence, tmp_path / "out", run)
    (row,) = rows_of(tmp_path / "out" / "runs.csv")
    assert row["arm"] == "sac_pixels" and float(row["return"]) > 0 and int(row["updates"]) > 0
    assert float(row["action_change"]) > 0 and row["nats_x"] == row["nats_y"] == ""


def test_a_run_without_a_readable_configuration_is_named(evidence, tmp_path, monkeypatch):
    make_run(tmp_path / "broken")
    (tmp_path / "broken" / "config.yaml").write_text("replay: {gone: 1}\n")
    with pytest.raises(SystemExit, match="broken: The configuration cannot be read: .*replay.gone.*Leave it out"):
        call(evidence, monkeypatch, tmp_path / "broken", "--out", tmp_path / "out")


def test_runs_that_differ_in_more_than_the_seed_are_not_mixed(evidence):
    def runs(*overrides):
        return [(f"run {n}", load_config(["preset=debug", *one])) for n, one in enumerate(overrides)]

    pair = runs(["seed=0"], ["seed=1", "model.kl.beta=0.25", "train.total_steps=960"])
    with pytest.raises(UserError, match=r"differ in model.kl.beta: .* --by model.kl.beta"):
        evidence.refuse_mixtures(pair, [])
    evidence.refuse_mixtures(pair, ["model.kl.beta"])
    assert evidence.arms.arm_of(pair[1][1], ["model.kl.beta"]) == "2b beta=0.25"
    other = runs(["seed=0"], ["seed=1", "policy=sac"])
    with pytest.raises(UserError, match="--by policy.name, leave"):
        evidence.refuse_mixtures(other, [])
    evidence.refuse_mixtures(other, ["policy.name"])
    with pytest.raises(UserError, match=r"one seed \(3\)"):
        evidence.refuse_mixtures(runs(["seed=3"], ["seed=3"]), [])
    with pytest.raises(UserError, match="--by model.nothing"):
        evidence.arms.arm_of(pair[0][1], ["model.nothing"])


@pytest.mark.parametrize(
    "more", [["--step", "100"], ["--step", "best"], ["--size", "small"], ["--behaviour", "random"]]
)
def test_runs_of_one_arm_that_are_measured_otherwise_are_not_mixed(evidence, tmp_path, monkeypatch, capsys, more):
    runs, out = [tmp_path / f"seed={n}" for n in range(2)], tmp_path / "out"
    for number, run in enumerate(runs):
        made(run, f"seed={number}", "distractors=camera_jitter", returns=(0.0, 100.0), recall=0.8, leakage=0.1)
    add(evidence, out, runs[0], size="full")
    before = rows_of(out / "runs.csv")
    assert before[0]["measured"] == "step 200 train"
    for older in (False, True) if "--step" in more else (False,):  # of a row without this column, the step is known
        if older:
            text = "\n".join(line.rpartition(",")[0] for line in (out / "runs.csv").read_text().splitlines())
            (out / "runs.csv").write_text(text)
        call(evidence, monkeypatch, runs[1], "--out", out, *more)
        assert re.search("2b: left as it is, since .*seed=1 .* another --out", capsys.readouterr().out)
        assert [row["seed"] for row in rows_of(out / "runs.csv")] == ["0"]
    add(evidence, out, runs[1], size="full")
    assert [row["seed"] for row in rows_of(out / "runs.csv")] == ["0", "1"]


def test_an_arm_is_measured_anew_as_a_whole_or_not_at_all(evidence, tmp_path, capsys):
    """While one of its runs is further than the other, both keep the rows that can be compared."""
    runs, out = [tmp_path / f"seed={n}" for n in range(2)], tmp_path / "out"
    for number, run in enumerate(runs):
        made(run, f"seed={number}", "distractors=camera_jitter", returns=(0.0, 100.0), recall=0.8, leakage=0.1)
    add(evidence, out, *runs, size="full")
    before = (out / "runs.csv").read_text()
    (runs[0] / "checkpoints" / "step_000000400").mkdir()
    add(evidence, out, *runs, size="full")
    assert "left as it is" in capsys.readouterr().out and (out / "runs.csv").read_text() == before
    add(evidence, out, *runs, size="full", step=200)
    assert (out / "runs.csv").read_text() == before


@pytest.mark.parametrize(
    ("overrides", "variant", "arm"),
    [
        (["preset=quickstart"], "video_background_0.3", "2b"),
        (["preset=quickstart", "distractors.video_background.strength=1"], "video_background", "2b"),
        (["preset=paper/walker_walk_video_background_camera_jitter"], "video_background_camera_jitter", "2b"),
        (["preset=repo", "distractors.video_background.color=true"], "video_background_color", "repo"),
        (["preset=repo", "distractors.video_background.frames=1"], "video_background_still", "repo"),
        (["preset=repo", "distractors.video_background.matte=sky"], "video_background_sky", "repo"),
        (["preset=quickstart", "model.target=foreground"], "video_background_0.3", "2b foreground"),
        (["preset=quickstart", "distractors=none", "model=dreamer", "train.total_steps=7000"], "noiseless", "dreamer"),
        (["preset=debug", "agent=sac_pixels", "distractors=camera_jitter"], "camera_jitter", "sac_pixels"),
    ],
)
def test_names_and_commands_follow_from_configurations(evidence, overrides, variant, arm):
    config = load_config([*overrides, "run_dir=a"])
    assert (evidence.arms.variant_of(config), evidence.arms.arm_of(config, [])) == (variant, arm)
    again = load_config([*shlex.split(evidence.overrides_of(config)), "run_dir=a"])
    assert again == config and not differences(again, config)
