"""Invariance and health on constructed representations, and the probe of a whole tiny run."""

import csv
import dataclasses
import itertools
import json
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from conftest import STRUCTURES, small_agent
from report_runs import matrix_of

from denoised_mdp.analysis import data, factor_tables, health, invariance, results
from denoised_mdp.analysis.invariance import grid_distances, measure_invariance, paired_change, record_grid, variations
from denoised_mdp.analysis.probes import PROBES
from denoised_mdp.cli import main as cli
from denoised_mdp.config import load_config
from denoised_mdp.envs import make_env
from denoised_mdp.envs.options import DISTRACTORS
from denoised_mdp.errors import UserError
from denoised_mdp.evaluation import EvaluationResult
from denoised_mdp.models.structure import Table
from denoised_mdp.run.environments import environment_maker
from denoised_mdp.run.load import load_run, untrained
from denoised_mdp.session import train


def test_distances_equal_a_brute_force_over_pairs():
    values = np.random.default_rng(0).normal(size=(3, 4, 5, 2))  # physics, worlds, steps, features
    square = lambda a, b: np.square(a - b).sum(-1).mean()  # noqa: E731
    worlds = [square(values[:, i], values[:, j]) for i in range(4) for j in range(i)]
    physics = [square(values[i], values[j]) for i in range(3) for j in range(i)]
    expected = np.sqrt(np.mean(worlds)), np.sqrt(np.mean(physics))
    np.testing.assert_allclose(grid_distances(values), expected)


def test_distances_of_codes_that_ignore_or_keep_the_background():
    rng = np.random.default_rng(1)
    state, noise = rng.normal(size=(4, 1, 9, 3)), rng.normal(size=(1, 5, 9, 3))
    blind = np.broadcast_to(state, (4, 5, 9, 3))
    assert grid_distances(blind)[0] < 1e-12 and grid_distances(blind)[1] > 1
    backwards = grid_distances(np.broadcast_to(noise, (4, 5, 9, 3)))
    assert backwards[1] < 1e-12 and backwards[0] > 1
    mixed = grid_distances(state + 0.5 * noise)  # independent parts: each distance is that of its own part
    np.testing.assert_allclose(mixed, (0.5 * backwards[0], grid_distances(blind)[1]))


def toy(**options):
    return make_env("dot", suite="toy", action_repeat=1, episode_steps=30, **options)


class MaskedEncoder(torch.nn.Module):
    """Sees the dot alone, or the texture alone: pixels of the other kind are painted over.

    The dot is the only thing with much red and green at once.
    """

    def __init__(self, inner: torch.nn.Module, keep_dot: bool):
        super().__init__()
        self.inner, self.keep_dot = inner, keep_dot
        self.output, self.compute_dtype = inner.output, inner.compute_dtype

    @property
    def like(self) -> torch.Tensor:
        return self.inner.like

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        dot = images[:, 1:2] > 0.45
        target = (images[:, 0:1] > 0.25) & (images[:, 1:2] < -0.3)  # red, painted over for both
        seen = dot if self.keep_dot else ~(dot | target)
        return self.inner(torch.where(seen, images, torch.zeros_like(images)))


def test_an_encoder_that_ignores_the_background_is_invariant_and_one_that_keeps_it_is_not():
    torch.manual_seed(0)
    agent = small_agent("2b").float()
    grid = record_grid(toy, agent, physics=3, worlds=3, steps=12)
    for row in grid:
        for cell in row[1:]:
            assert np.array_equal(cell.signal, row[0].signal) and not np.array_equal(cell.noise, row[0].noise)
            assert not np.array_equal(cell.observation, row[0].observation)
    inner = agent.world_model.encoder
    agent.world_model.encoder = MaskedEncoder(inner, keep_dot=True)
    found = measure_invariance(agent, grid)
    for name in ("x", "y", "all", "encoder", "action"):
        assert found.parts[name].other_noise == pytest.approx(0, abs=1e-6), name
        assert found.parts[name].other_state > 1e-4 and found.parts[name].ratio < 1e-2
    assert found.action_change < 1e-6
    agent.world_model.encoder = inner
    seeing = measure_invariance(agent, grid)
    assert seeing.parts["encoder"].ratio > 0.2 and seeing.parts["x"].other_noise > 1e-4  # an untrained, weak one
    agent.world_model.encoder = MaskedEncoder(inner, keep_dot=False)
    texture = measure_invariance(agent, grid)
    assert texture.parts["encoder"].ratio > 2 * seeing.parts["encoder"].ratio


def test_what_is_said_of_actions_by_brute_force(monkeypatch):
    """Change: over pairs of worlds of one physics, and components; ratio: to pairs of physics in one world."""
    physics, worlds, steps, size = 3, 4, 5, 2
    actions = np.random.default_rng(0).uniform(-1, 1, (physics, worlds, steps, size))
    monkeypatch.setattr(invariance, "_actions", lambda *_: actions.reshape(-1, steps, size))
    monkeypatch.setattr(invariance, "freeze", lambda *_, **__: None)
    agent = SimpleNamespace(actions=SimpleNamespace(discrete=False))
    change, ratio = invariance.action_change(agent, [[None] * worlds] * physics)
    changes, same, other = [], [], []
    for t in range(steps):
        for p in range(physics):
            for k, m in itertools.combinations(range(worlds), 2):
                changes += list(abs(actions[p, k, t] - actions[p, m, t]))
                same.append(sum((actions[p, k, t] - actions[p, m, t]) ** 2))
        for k in range(worlds):
            other += [
                sum((actions[p, k, t] - actions[q, k, t]) ** 2) for p, q in itertools.combinations(range(physics), 2)
            ]
    assert change == pytest.approx(np.mean(changes))
    assert ratio == pytest.approx(np.sqrt(np.mean(same) / np.mean(other)))


def test_actions_alone_are_measured_as_with_all_else():
    torch.manual_seed(0)
    agent = small_agent("2b").float()
    grid = record_grid(toy, agent, physics=3, worlds=2, steps=6)
    found = measure_invariance(agent, grid)
    assert invariance.action_change(agent, grid) == (found.action_change, found.parts["action"].ratio)
    assert found.action_change > 0


def test_invariance_needs_noise():
    agent = small_agent("2b").float()
    with pytest.raises(UserError, match="no distractors"):
        record_grid(lambda: make_env("counting", suite="toy", episode_steps=9), agent, 2, 2, 3)


def test_variations_change_the_distractors_and_nothing_else():
    config = load_config(["env.task=cheetah_run", "distractors=video_background,camera_jitter"])
    found = variations(config)
    assert list(found) == [
        "as trained",
        "video_background at strength 0.5",
        "camera_jitter at strength 2",
        "unseen clips",
        "no distractors",
    ]
    assert found["as trained"] == (config, "train") and found["unseen clips"] == (config, "test")
    for changed, _ in found.values():
        assert changed.env == config.env and changed.model == config.model
    assert found["camera_jitter at strength 2"][0].distractors["camera_jitter"]["strength"] == 2
    assert config.distractors["camera_jitter"]["strength"] == 1
    assert list(variations(load_config(["distractors=none"]))) == ["as trained"]


def test_all_that_makes_a_distractor_stronger_is_varied():
    task = ["env=robodesk", "env.task=open_drawer", "distractors=moving_lights"]
    config = load_config(task)
    changed, _ = variations(config)["moving_lights at swing 2 and flicker 2"]
    assert changed.distractors["moving_lights"] == {"swing": 2, "flicker": 2}
    steady = load_config([*task, "distractors.moving_lights.flicker=0", "distractors.moving_lights.swing=6"])
    assert list(variations(steady))[1] == "moving_lights at swing 3"
    ours = {name: kind for name, kind in DISTRACTORS.items() if kind.__module__.startswith("denoised_mdp.")}
    assert all(hasattr(kind.Options(), key) for kind in ours.values() for key in kind.scales)


def test_what_is_part_of_the_task_stays_without_distractors():
    """As RoboDesk's television, whose colour is rewarded."""
    config = load_config(["env=robodesk", "env.task=tv_green_hue", "distractors=tv,camera_shake"])
    changed, split = variations(config)["no distractors"]
    assert split == "train" and changed.distractors == {"tv": config.distractors["tv"]}
    alone = load_config(["env=robodesk", "env.task=tv_green_hue", "distractors=tv"])
    assert "no distractors" not in variations(alone)


def test_changes_of_returns_are_paired():
    trained, other = (EvaluationResult(returns, [1, 2, 3]) for returns in ([10.0, 50.0, 90.0], [8.0, 49.0, 87.0]))
    change, error = paired_change(other, trained)
    assert change == pytest.approx(-2) and error == pytest.approx(1 / np.sqrt(3))


class PaintedModel:
    """A world model whose decoder paints x on the left and y on the right half, y three times as bright."""

    def parameters(self):
        return iter([torch.zeros(1)])

    def decode(self, latent):
        images = torch.zeros(len(latent.belief), 3, 4, 4)
        images[..., :2] = latent["x"][1][:, :1, None, None]
        images[..., 2:] = 3 * latent["y"][1][:, :1, None, None]
        return images


def test_shares_of_the_reconstruction_in_closed_form():
    agent = small_agent("2b")
    layout = agent.world_model.rssm.layout
    random = torch.Generator().manual_seed(0)
    state = torch.randn(400, layout.state_size, generator=random)
    latent = data.Latent(torch.zeros(400, layout.belief_size), state, layout)
    shares = health.reconstruction_shares(SimpleNamespace(world_model=PaintedModel()), [latent])
    rows = latent.map(lambda tensor: tensor[:: health.EVERY])
    move = {name: rows[name][1][:, 0] - rows[name][1][:, 0][len(rows.state) // 2] for name in "xy"}
    moved = {"x": move["x"].square().sum(), "y": 9 * move["y"].square().sum()}
    middle = latent["x"][1][200], rows["x"][1][len(rows.state) // 2]
    assert torch.equal(*middle)  # 400 rows, every fifth: the middle is the same row
    for name in "xy":
        assert shares[name] == pytest.approx(float(moved[name] / sum(moved.values())), rel=1e-4)


def healthy(**changes):
    values = dict(
        nats={"x": 9.0, "y": 4.0},
        active={"x": (8, 20), "y": (6, 20)},
        share={"x": 0.3, "y": 0.6},
        below_floor=0.1,
        image_r2=0.9,
        signal={"x": 0.8, "y": 0.05},
        noise={"x": 0.1, "y": 0.9},
        warnings=[],
    )
    return health.Health(**values | changes)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({}, None),
        ({"nats": {"x": 9.0, "y": 0.01}}, "y is unused"),
        ({"share": {"x": 0.9, "y": 0.001}}, "y is unused"),
        ({"nats": {"x": 2.9, "y": 4.0}}, "KL of x sits on its floor"),
        ({"signal": {"x": 0.8, "y": 0.5}}, "y explains the agent"),
        ({"noise": {"x": 0.7, "y": 0.9}}, "x holds noise"),
        ({"noise": {"x": float("nan"), "y": float("nan")}}, None),
        ({"noise": {"x": 0.8, "y": float("nan")}}, "R^2 of the noise is 0.80 from x and not known from y. Lower"),
        ({"signal": {"x": float("nan"), "y": 0.5}}, "R^2 of the signal is 0.50 from y and not known from x. y is"),
        ({"signal": {"x": 0.1, "y": 0.0}}, "x knows little"),
        ({"image_r2": -1.0}, "reconstructs little"),
    ],
)
def test_warnings_name_what_is_wrong_and_nothing_else(changes, words):
    found = health.warnings_of(healthy(**changes), Table(STRUCTURES["2b"]), 3.0)
    assert len(found) == (words is not None) and (words is None or words in found[0])


def test_noise_in_what_the_policy_sees_is_told_once_and_of_a_latent_that_the_agent_moves_too():
    """TIA's only latent for the noise sees the action; of two, the one that holds most of the noise is named."""
    x, y = STRUCTURES["2b"]
    tia = Table((x, dataclasses.replace(y, sees_action=True)))
    (told,) = health.warnings_of(healthy(noise={"x": 0.7, "y": 0.9}, signal={"x": 0.8, "y": 0.7}), tia, 3.0)
    assert told.startswith("x holds noise") and "0.90 from y" in told
    three = {"nats": {"x": 9.0, "y": 4.0, "z": 4.0}, "share": {"x": 0.3, "y": 0.3, "z": 0.3}}
    found = healthy(**three, signal={"x": 0.8, "y": 0.0, "z": 0.1}, noise={"x": 0.7, "y": 0.9, "z": 0.0})
    (told,) = health.warnings_of(found, Table(STRUCTURES["2c"]), 3.0)
    assert told.startswith("x holds noise") and "Lower model.y.beta" in told


def test_nats_and_reconstruction_of_a_frozen_model_are_the_loss_own():
    """The same numbers as the training's metrics, on the same rows and noise."""
    agent = small_agent("2c").float()
    played = data.record(toy, data.probe_seeds(0, 3), 10, behaviour="random")
    frozen = data.freeze(agent, played, seed=5)
    found = health.measure_health(agent, played, frozen, matrix_of(dict.fromkeys("xyz", (0.0, 0.0))))
    random = data._torch_generator("cpu", 5, "probe filter")
    noise = torch.stack([agent.world_model.draw_noise(3, generator=random) for _ in range(11)])
    batch = {
        "observation": np.stack([one.observation for one in played], 1),
        "action": np.stack([one.action for one in played], 1),
        "reward": np.zeros((11, 3), np.float32),
        "is_first": np.arange(11)[:, None].repeat(3, 1) == 0,
        "is_terminal": np.zeros((11, 3), bool),
    }
    *_, metrics = agent.world_model.loss(**agent.to_device(batch), noise=noise)
    for name in "xyz":
        assert found.nats[name] == pytest.approx(float(metrics[f"model/kl_{name}"]), rel=1e-4)


TINY = [
    "preset=debug",
    "env=toy",
    "distractors=camera_jitter",
    "train.total_steps=360",
    "train.render_every=0",
    "train.eval_every=0",
    "train.probe_every=0",
]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    paths = [tmp_path_factory.mktemp("runs") / f"seed{seed}" for seed in (0, 1)]
    for seed, path in enumerate(paths):
        assert train(load_config([*TINY, f"seed={seed}", f"run_dir={path}"]))
    return paths


def probe(name, runs, **options):
    return PROBES[name].run(runs, PROBES[name].Options(**options))


def test_factors_of_runs_are_written_and_read_back(run, tmp_path):
    with pytest.warns(UserWarning, match="shows no clips") as warned:
        lines = probe("factors", run, output=tmp_path, episodes=3, steps=12, seeds=2, split="across")
    text = "\n".join(lines)
    assert [str(one.message).endswith("--split across changes nothing.") for one in warned] == [True, True]
    assert "mean of 2 runs" in text and text.count("ridge  signal recall") == text.count("mlp    signal recall") == 3
    files = {path.name for path in tmp_path.iterdir()}
    stem = "factors_seed0_across_episodes3_steps12_seeds2_000000360"
    assert {f"{stem}.json", f"{stem}.csv", f"{stem}_ridge.png", f"{stem}_mlp.png"} <= files and len(files) == 11
    tree = json.loads((tmp_path / f"{stem}.json").read_text())
    matrix = factor_tables.from_tree(tree)
    assert json.loads(json.dumps(results.as_json(factor_tables.as_tree(matrix)))) == {
        key: tree[key] for key in factor_tables.as_tree(matrix)
    }
    assert tree["options"]["split"] == "across"
    with open(tmp_path / f"{stem}.csv") as file:
        rows = list(csv.DictReader(file))
    assert {row["part"] for row in rows} == {"x", "y", "encoder", "untrained", "all"}
    assert len(rows) == 2 * 5 * len(matrix.factors)
    row = next(row for row in rows if (row["probe"], row["part"], row["factor"]) == ("mlp", "y", "camera_jitter/dx"))
    column = [factor.name for factor in matrix.factors].index("camera_jitter/dx")
    assert float(row["r2"]) == pytest.approx(matrix.scores["mlp"][:, 1, column].mean(), abs=1e-6)
    [path] = tmp_path.glob("factors_seed0_and_1_more_*_across_episodes3_steps12_seeds2_000000360.json")
    pooled = json.loads(path.read_text())
    assert pooled["step"] == 360 and pooled["runs"] == [str(one) for one in run]
    assert len({results.mark_of(runs) for runs in (run, run[::-1], [run[0], tmp_path])}) == 3
    others = [json.loads((tmp_path / f"{stem.replace('seed0', f'seed{s}')}.json").read_text()) for s in (0, 1)]
    expected = np.mean([np.array(tree["scores"]["ridge"]).mean(0) for tree in others], 0)
    np.testing.assert_allclose(np.array(pooled["scores"]["ridge"]).mean(0), expected)


def test_invariance_and_health_of_a_run(run):
    lines = probe("invariance", run[:1], episodes=2, steps=8, worlds=2, returns=2)
    text = "\n".join(lines)
    assert "no distractors" in text and "camera_jitter at strength 2" in text
    [path] = (run[0] / "probes").glob("invariance_*.json")
    tree = json.loads(path.read_text())
    assert set(tree["distances"]) == {"x", "y", "all", "encoder", "action"}
    assert len(tree["returns"]["as trained"]["returns"]) == 2
    config, agent, _ = load_run(run[0])
    grid = record_grid(environment_maker(config), agent, 2, 2, 8, config.train.exploration_noise)
    before = invariance.action_change(untrained(agent), grid)
    assert tree["untrained"] == {"action_change": pytest.approx(before[0]), "action_ratio": pytest.approx(before[1])}
    assert before[0] > 0 and tree["action_change"] != pytest.approx(before[0])
    small = path.read_text()
    probe("invariance", run[:1], episodes=2, steps=5, worlds=2, returns=0)
    assert path.read_text() == small  # another size has another name
    lines = probe("health", run[:1], episodes=3, steps=12)
    assert any("warning" in line for line in lines)  # it has learned nothing
    [path] = (run[0] / "probes").glob("health_*.json")
    assert json.loads(path.read_text())["active"]["x"][1] == 6


def test_which_noise_the_reward_itself_depends_on():
    video = ["video_background"]
    for task, distractors, expected in (
        ("walker_walk", [*video, "noisy_sensor", "camera_jitter"], ["video_background", "noisy_sensor"]),
        ("walker_walk", [*video, "camera_jitter"], []),
        ("walker_walk", {"video_background": {"strength": 0.0}, "noisy_sensor": {}}, []),
    ):
        env = make_env(task, distractors=distractors)
        assert invariance.reward_noise(env) == expected
        env.close()


def test_the_commands_of_probe(run, capsys):
    assert cli.main(["probe", "health", str(run[0]), "--episodes", "3", "--steps", "10", "--behaviour", "random"]) == 0
    assert "nats per step" in capsys.readouterr().out
    for arguments, words in (
        (["probe", "helth", str(run[0])], "helth"),
        (["probe", "health", "no/such/run"], "no/such/run"),
        (["probe", "health", str(run[0]), "--episodes", "2"], "too few"),
        (["probe", "factors", str(run[0]), "--output", str(run[0] / "config.yaml")], "--output"),
        (["probe", "invariance"], "RUN"),
        (["probe", "invariance", str(run[0]), "--worlds", "1"], "at least 2"),
        (["probe", "health", str(run[0]), str(run[0]), "--output", "somewhere"], "seed0"),
    ):
        assert cli.main(arguments) == 2
        error = capsys.readouterr().err
        assert error.startswith("denoised-mdp: error: ") and error.count("\n") == 1 and words in error
