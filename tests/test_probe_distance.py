"""``probe distance``: distances of a known world, and of tiny runs of two latents and of one."""

import csv
import json
from types import SimpleNamespace

import numpy as np
import pytest

from denoised_mdp.analysis import distance
from denoised_mdp.analysis.distance_plot import distance_figure
from denoised_mdp.analysis.report.page import write_report
from denoised_mdp.cli import main as cli
from denoised_mdp.config import load_config
from denoised_mdp.errors import UserError
from denoised_mdp.session import train

RING = 8


@pytest.fixture(scope="module")
def ring():
    """Walks around a ring of 8 places, one way only. What is seen shows the place; the rest is noise."""
    random = np.random.default_rng(0)
    place = (random.integers(RING, size=(30, 1)) + np.cumsum(random.random((30, 30)) < 0.8, 1)).ravel() % RING
    episode = np.repeat(np.arange(30), 30)
    tested = episode % 3 == 0
    state, mix = np.eye(RING)[place], random.normal(size=(RING, 20))
    noise = random.normal(size=(2, len(place), 5))
    parts = {"seen": state @ mix, "rest": noise[0], "state": state}
    worlds = {"elsewhere": {"seen": parts["seen"][tested], "rest": noise[1][tested]}}
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {"BATCH": 32, "HIDDEN": 32, "SIZE": 4, "LR": 5e-3}.items():
            patch.setattr(distance, name, value)
        yield distance.measure_distances(parts, episode, worlds, tested, updates=500)


def test_what_is_seen_learns_the_ring(ring):
    """Rows that show the place are as far apart as the walk is long, and the way back is longer."""
    assert list(ring) == ["seen", "rest", "state"] and ring["state"].rank_correlation == pytest.approx(1)
    for name in ("seen", "state"):
        one = ring[name]
        assert 0.7 < one.one_step < 0.95 and one.violations < 0.2 and one.asymmetry > 0.3 and one.at_limit == 0
        assert 1.8 < one.lags[2][1] < 2.2 and 3 < one.lags[5][1] < 4.5  # a fifth of the decisions lead nowhere
    assert ring["seen"].rank_correlation > 0.8


def test_noise_knows_nothing_of_the_ring(ring):
    one = ring["rest"]
    assert abs(one.rank_correlation) < 0.1 and one.asymmetry < 0.2
    assert one.lags[5][1] == pytest.approx(one.lags[1][1], rel=0.15)


def test_paired_worlds_tell_what_counts(ring):
    assert ring["seen"].paired == {"elsewhere": 0} and ring["state"].paired == {}
    assert ring["rest"].paired["elsewhere"] == pytest.approx(ring["rest"].random, rel=0.1)


def test_pairs_stay_within_held_out_episodes():
    episode, tested = np.array([0, 0, 0, 1, 1, 1, 2, 2]), np.array([1, 1, 1, 0, 0, 0, 1, 1], bool)
    assert distance._apart(episode, tested, 1).tolist() == [0, 1, 6]
    assert distance._apart(episode, tested, 2).tolist() == [0]
    assert distance._apart(episode, tested, 9).tolist() == []


def test_rounding_is_no_distance():
    """A column that does not move counts for nothing, not as much as one that does."""
    random, episode = np.random.default_rng(0), np.repeat(np.arange(4), 10)
    state = random.normal(size=(40, 3)) * [1.0, 1e-9, 1e-11]
    rows = distance.Distance(state, episode, 2, "state").rows(state).numpy()
    assert rows[:, 0].std() == pytest.approx(1) and (rows[:, 1:] == 0).all()


def test_episodes_without_pairs_are_refused_in_one_line():
    episode = np.arange(12)
    for rows in (np.repeat(episode, 1), np.repeat(episode, np.where(episode % 3 == 0, 1, 5))):
        parts = {"seen": np.random.default_rng(0).normal(size=(len(rows), 2))}
        with pytest.raises(UserError, match="ends its episodes too early .* at least 11 decisions.* held out 12"):
            distance.measure_distances(parts, rows, {}, rows % 3 == 0, updates=1)


def test_projections_keep_the_distances_of_pictures():
    random = np.random.default_rng(0)
    episodes = [SimpleNamespace(observation=random.integers(256, size=(4, 8, 8, 3), dtype=np.uint8)) for _ in range(2)]
    rows = [np.array([0, 2]), np.array([3])]
    found = distance.projected(episodes, rows)
    pictures = (
        np.concatenate([one.observation[at] for one, at in zip(episodes, rows, strict=True)]).reshape(3, -1) / 255
    )
    for a, b in ((0, 1), (1, 2)):
        true = np.linalg.norm(pictures[a] - pictures[b])
        assert np.linalg.norm(found[a] - found[b]) / distance.PROJECTIONS**0.5 == pytest.approx(true, rel=0.25)


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    tiny = ["preset=debug", "env=toy", "distractors=camera_jitter", "train.total_steps=240"]
    quiet = ["train.render_every=0", "train.eval_every=0", "train.probe_every=0"]
    paths = {model: tmp_path_factory.mktemp("runs") / model for model in ("2b", "dreamer")}
    for model, path in paths.items():
        assert train(load_config([*tiny, *quiet, f"model={model}", f"run_dir={path}"]))
    return paths


def test_the_command_and_its_section_of_the_report(runs, tmp_path, capsys):
    arguments = ["--episodes", "6", "--steps", "24", "--updates", "3"]
    assert cli.main(["probe", "distance", *map(str, runs.values()), *arguments]) == 0
    said = capsys.readouterr().out
    assert "rank corr." in said and "world with other noise: seen by the policy" in said and "the policy sees x" in said
    for model, parts in (("2b", {"seen", "rest", "all"}), ("dreamer", {"seen"})):
        [path] = (runs[model] / "probes").glob("distance_*.json")
        tree = json.loads(path.read_text())
        assert set(tree["parts"]) == parts | {"pixels", "state"}
        assert set(tree["parts"]["seen"]["paired"]) == {"other noise", "no distractors"}
        assert tree["seconds"] > 0 and tree["peak_memory"] > 1e7 and tree["options"]["updates"] == 3
        assert path.with_suffix(".png").stat().st_size > 10_000
        with open(path.with_suffix(".csv")) as file:
            rows = {row["part"]: row for row in csv.DictReader(file)}
        for name, one in tree["parts"].items():
            assert float(rows[name]["one_step"]) == pytest.approx(one["one_step"])
    for path in runs.values():
        (path / "metrics.jsonl").write_text("")  # no curves to draw: the section is of the probe
    page = write_report(list(runs.values()), tmp_path / "report.html", videos="none").read_text()
    assert "0 means that the distractors do not count" in page and page.count("rank corr.") == 2


def test_the_picture_of_a_world_without_distractors(ring):
    alone = {name: vars(one) | {"paired": {}} for name, one in ring.items()}
    texts = [text.get_text() for text in distance_figure(alone).axes[1].texts]
    assert texts == ["this environment has no distractors"]


@pytest.mark.parametrize("steps", [0.0, 0.2, 5e4])
def test_no_line_leaves_the_picture(ring, steps):
    """Of a representation that has collapsed, or breaks the bound."""
    name, *_ = ring
    lags = dict.fromkeys(ring[name].lags, (steps, steps, steps))
    axes = distance_figure(
        {key: vars(one) | ({"lags": lags} if key == name else {}) for key, one in ring.items()}
    ).axes[0]
    low, high = axes.get_ylim()
    shown = [line.get_ydata() for line in axes.lines]
    assert len(shown) == len(ring) + 1 and all(low < value < high for line in shown for value in line)
    assert steps == 0 or set(axes.lines[0].get_ydata()) == {steps}
