"""What a report compares: one estimator, one size of probe, one step; and what its groups are called."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from report_runs import add_probes, make_run
from test_report import Tags, page_of

from denoised_mdp.analysis.report import plots as report_plots
from denoised_mdp.analysis.report.choice import common_options, results_at_common_step, shown
from denoised_mdp.analysis.report.data import RunData, read_run
from denoised_mdp.analysis.report.groups import group_runs
from denoised_mdp.analysis.report.parts import compared_options, overview
from denoised_mdp.cli.main import main
from denoised_mdp.errors import UserError
from denoised_mdp.run.find import find_runs


def line_of(*paths) -> dict[str, str]:
    """The overview's line of one group."""
    runs = [read_run(path) for path in paths]
    (group,) = group_runs(runs)
    return overview(group, compared_options(runs))


def test_a_quick_probe_is_never_shown_as_recall_or_leakage(tmp_path):
    """One seed has the full probe, the other the training's own: they are two estimators."""
    runs = [make_run(tmp_path / str(seed), f"seed={seed}") for seed in (0, 1)]
    for run in runs:
        with open(run / "metrics.jsonl", "a") as file:
            file.write(json.dumps({"step": 200, "probe/noise_from_x": 0.875, "probe/signal_from_x": 0.125}) + "\n")
    assert line_of(*runs)["Leakage"] == line_of(*runs)["Signal recall"] == "-"
    add_probes(runs[0], leakage=0.25)
    assert line_of(*runs)["Leakage"] == "0.25\n(1 of 2 seeds)"
    text = Tags(page_of(*runs)).text
    assert "Quick probe: noise from x" in text and "probe factors, ridge, 36 episodes of 200 actions" in text


def test_returns_are_means_at_the_last_step_that_all_seeds_have_reached(tmp_path):
    """Two finished seeds and one on its way: 30 and 31 are not averaged with 2."""
    returns = [(1.0, 10.0, 30.0), (3.0, 12.0, 31.0), (2.0,)]
    runs = [make_run(tmp_path / str(seed), f"seed={seed}", returns=r) for seed, r in enumerate(returns)]
    assert line_of(*runs)["Last return"].startswith("2.0 ± ")
    assert line_of(*runs)["Last return"].endswith("\n(at step 100)")
    assert line_of(*runs[:2])["Last return"] == "30.5 (30.0, 31.0)"
    runs.append(make_run(tmp_path / "new", "seed=9", returns=()))
    assert line_of(*runs[:2], runs[3])["Last return"] == "30.5 (30.0, 31.0)\n(2 of 3 seeds)"


def test_probes_of_another_size_or_step_are_not_averaged(tmp_path):
    runs = [make_run(tmp_path / str(seed), f"seed={seed}") for seed in range(4)]
    add_probes(runs[0], leakage=0.2)
    add_probes(runs[1], leakage=0.4)
    add_probes(runs[2], leakage=0.9, step=100)  # earlier in its training
    add_probes(runs[3], leakage=0.0, episodes=4)  # small
    assert line_of(*runs)["Leakage"] == "0.30 (0.20, 0.40)\n(2 of 4 seeds)"
    page = page_of(*runs)
    assert "mean of 2 of 4 seeds · step 200" in page and "4 episodes of 200 actions" in page
    add_probes(runs[3], leakage=0.6)  # beside the small one
    assert line_of(*runs)["Leakage"].startswith("0.40 ± ")
    read = read_run(runs[3])
    options = common_options([read], "factors")
    assert json.loads(options)["episodes"] == 36 and len(read.probes["factors"]) == 2
    assert len(results_at_common_step([read], "factors", options)) == 1


def test_comparisons_with_other_runs_are_all_shown(tmp_path):
    """Only a comparison of the same runs replaces one."""
    run = make_run(tmp_path / "a")
    add_probes(run)
    path = next((run / "probes").glob("health*.json"))
    tree = json.loads(path.read_text()) | {"probe": "similarity"}
    for name, runs in (("1", ["a", "b"]), ("2", ["a", "c"]), ("3", ["a", "c"])):
        path.with_name(f"similarity_{name}.json").write_text(json.dumps(tree | {"runs": runs, "file": name}))
    read = read_run(run)
    found = [tree["runs"] for _, tree in shown([read], [read], "similarity")]
    assert found == [["a", "b"], ["a", "c"]] and len(shown([read], [read], "health")) == 1
    best = tree | {"runs": ["a", "c"], "checkpoint": "best"}  # the best of "c" may be of another step than its newest
    path.with_name("similarity_4.json").write_text(json.dumps(best))
    read = read_run(run)
    found = [(tree["runs"], tree.get("checkpoint")) for _, tree in shown([read], [read], "similarity")]
    assert sorted(map(str, found)) == sorted(map(str, [(["a", "b"], None), (["a", "c"], None), (["a", "c"], "best")]))


@pytest.mark.parametrize("other", [{"step": 900}, {"options": {"episodes": 84, "steps": 250}}])
def test_a_comparison_of_another_step_or_size_replaces_only_those_of_the_same_runs(other):
    common = {"split": "", "checkpoint": None, "step": 100, "options": {"episodes": 40, "steps": 250}}
    trees = [
        common | {"runs": ["a", "b"]},
        common | {"runs": ["a", "c"]} | other,
        common | {"runs": ["a", "b"]} | other,
    ]
    run = RunData(Path("a"), probes={"similarity": trees})
    for order in (trees, trees[::-1]):
        run.probes["similarity"] = list(order)
        found = [tree for _, tree in shown([run], [run], "similarity")]
        assert sorted(map(str, found)) == sorted(map(str, trees[1:])), (
            "the choice of most, and the only one of its runs"
        )


def test_what_a_sample_cannot_tell_is_said_and_not_averaged(tmp_path):
    runs = [make_run(tmp_path / str(seed), f"seed={seed}") for seed in (0, 1)]
    add_probes(runs[0], leakage=np.nan)
    assert line_of(runs[0])["Leakage"] == "too few episodes"
    add_probes(runs[1], leakage=0.5)
    assert line_of(*runs)["Leakage"] == "0.50\n(1 of 2 seeds)"
    assert line_of(runs[1])["Leakage"] == "0.50 [0.45, 0.55]"
    assert "leakage too few episodes" in Tags(page_of(*runs)).text


def test_results_of_an_earlier_version_are_told(tmp_path):
    run = make_run(tmp_path / "run")
    add_probes(run)
    path = run / "probes" / "factors_train_000000200.json"
    tree = json.loads(path.read_text())
    del tree["summaries"]
    path.write_text(json.dumps(tree))
    assert "an earlier version made it: run probe factors again" in Tags(page_of(run)).text
    assert line_of(run)["Leakage"] == "-"


def test_curves_are_dotted_where_fewer_seeds_count(tmp_path, monkeypatch):
    drawn = []
    monkeypatch.setattr(report_plots, "svg_uri", lambda figure: drawn.extend(figure.axes[0].lines) or "data:")
    returns = [(1.0, 2.0, 9.0), (3.0, 4.0)]
    runs = [make_run(tmp_path / str(seed), f"seed={seed}", returns=r) for seed, r in enumerate(returns)]
    report_plots.curves_plot(group_runs([read_run(run) for run in runs]), "eval/return", "")
    solid, dotted = [line for line in drawn if line.get_linewidth() == 1.7]
    assert solid.get_xdata().tolist() == [0.1, 0.2] and solid.get_ydata().tolist() == [2, 3]
    assert dotted.get_linestyle() == ":" and dotted.get_xdata()[-1] == 0.3


def names(*paths) -> list[str]:
    return [group.name for group in group_runs([read_run(path) for path in paths])]


def test_groups_are_called_by_what_differs(tmp_path):
    one, other = make_run(tmp_path / "a"), make_run(tmp_path / "b", "model.kl.beta=0.125")
    assert names(one, other) == ["beta=1.0", "beta=0.125"]  # not its follower model.y.beta, not the folders
    third = make_run(tmp_path / "c", "model.kl.beta=0.125", "model.kl.free_nats=0")
    usual, changed = (f"free_nats={read_run(run).options()['model.kl.free_nats']}" for run in (one, third))
    assert names(one, other, third) == [f"beta=1.0, {usual}", f"beta=0.125, {usual}", f"beta=0.125, {changed}"]
    dreamer = make_run(tmp_path / "d", "model=dreamer")
    assert names(one, other, dreamer) == ["2b · beta=1.0", "2b · beta=0.125", "dreamer"]
    again = make_run(tmp_path / "again")
    assert names(one, again) == ["a", "again"]  # one configuration and one seed: nothing else is left
    often = make_run(tmp_path / "often", "train.render_every=50", "train.log_every=20")
    assert names(one, often) == ["a", "often"]  # what they differ in does not change what is learned
    assert names(one) == ["dot · 2b · backprop"]


def test_a_folder_of_runs_stands_for_all_that_it_holds(tmp_path, capsys):
    inside = [make_run(tmp_path / "runs" / name) for name in ("a", "deep/er/b", "deep/c")]
    hydra = tmp_path / "runs" / ".hydra"
    hydra.mkdir()
    (hydra / "config.yaml").write_text("a: 1\n")
    other = tmp_path / "runs" / "program"
    other.mkdir()
    (other / "config.yaml").write_text("name: something else\n")
    make_run(inside[0] / "copy")  # part of a run
    assert sorted(find_runs([tmp_path / "runs"])) == sorted(inside)
    assert find_runs([inside[0], tmp_path / "runs"])[0] == inside[0]
    assert len(find_runs([tmp_path / "runs", inside[1], tmp_path])) == 3
    page = tmp_path / "page.html"
    assert main(["report", str(tmp_path / "runs"), "-o", str(page), "--videos", "none"]) == 0
    assert "3 runs" in Tags(page.read_text()).text
    with pytest.raises(UserError, match="no run at"):
        find_runs([other.parent / ".hydra" / "none"])
    (tmp_path / "runs" / "config.yaml").write_text("name: my project\n")
    assert sorted(find_runs([tmp_path / "runs"])) == sorted(inside)
    (tmp_path / "runs" / "checkpoints" / "step_100").mkdir(parents=True)
    (tmp_path / "runs" / "metrics.jsonl").touch()
    assert sorted(find_runs([tmp_path])) == sorted(inside), "another program's training"
    shutil.rmtree(tmp_path / "runs" / "checkpoints")
    (tmp_path / "runs" / "metrics.jsonl").unlink()
    (inside[0] / "config.yaml").write_text("seed: [")
    assert find_runs([inside[0]]) == inside[:1] and len(find_runs([tmp_path])) == 3, "it has a log: damaged"
    (tmp_path / "empty").mkdir()
    capsys.readouterr()
    assert main(["report", str(tmp_path / "empty")]) == 2
    assert capsys.readouterr().err.count("\n") == 1
