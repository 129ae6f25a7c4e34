"""Joint position regression: targets in closed form, finetuning against brute force, and the command."""

import contextlib
import copy
import csv
import json
import warnings
from importlib.util import find_spec
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from conftest import options_of
from joints_case import TASK, make_run, small_data
from pictures import assert_whole

from denoised_mdp.analysis.joints.data import JointData
from denoised_mdp.analysis.joints.plots import figures, short_names
from denoised_mdp.analysis.joints.probe import _check_stack, _names
from denoised_mdp.analysis.joints.regression import (
    Curve,
    Regressor,
    Schedule,
    finetune,
    fresh_encoder,
    predict,
    scaled_sizes,
)
from denoised_mdp.analysis.joints.targets import JointTargets
from denoised_mdp.analysis.probes import PROBES
from denoised_mdp.analysis.report.data import read_run
from denoised_mdp.analysis.report.parts import probe_part
from denoised_mdp.cli.main import main
from denoised_mdp.config import load_config
from denoised_mdp.envs import make_env
from denoised_mdp.envs.joints import Joint
from denoised_mdp.models.vision import Encoder


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> JointData:
    """Two policies, three episodes of each, of 20 frames."""
    with contextlib.closing(small_data(tmp_path_factory.mktemp("joints"))) as store:
        yield store


def test_targets_in_closed_form():
    rotation = Joint("c", "rad", "quaternion", (5, 6, 7, 8))
    targets = JointTargets.of([Joint("a", "m", "scalar", (3,)), Joint("b", "rad", "angle", (0,)), rotation])
    assert [joint.columns for joint in targets.joints] == [(0,), (1,), (2, 3, 4, 5)] and targets.size == 9
    half = np.pi / 6  # a turn by 60 degrees about z, in either sign of the quaternion
    position = np.array([[0.5, 3.0, 1, 0, 0, 0], [0.5, 3.0 + 4 * np.pi, np.cos(half), 0, 0, np.sin(half)]])
    predicted = targets.encode(position)
    np.testing.assert_allclose(targets.squared_errors(predicted, position), 0, atol=1e-12)
    other = position * [1, 1, -1, -1, -1, -1]
    np.testing.assert_allclose(targets.squared_errors(predicted, other), 0, atol=1e-12)
    errors = targets.squared_errors(predicted[:1], position)  # one prediction for all
    np.testing.assert_allclose(errors[1], [0, 0, (np.pi / 3) ** 2], atol=1e-12)
    turned = targets.squared_errors(predicted, position + [[0.2, 2 * np.pi - 0.3, 0, 0, 0, 0]])
    np.testing.assert_allclose(turned[:, :2], [[0.04, 0.09]] * 2, atol=1e-12)  # the short way round
    longer = predicted * [1, 5, 5, 3, 3, 3, 7, 7, 7]  # only directions count
    np.testing.assert_allclose(targets.squared_errors(longer, position), 0, atol=1e-12)


def test_units_and_columns_are_the_models():
    walker = make_env("walker_walk")
    joints = walker.world.unwrapped.joints
    signal = walker.reset(seed=3)[1]["signal"]
    physics = walker.world.unwrapped._physics
    assert "rootx" not in [joint.name for joint in joints] and len(joints) == 8  # the camera follows it
    for joint in joints:
        kind = physics.model.ptr.joint(joint.name).type[0]
        assert joint.unit == {2: "m", 3: "rad"}[int(kind)]  # mjJNT_SLIDE, mjJNT_HINGE
        assert signal[joint.columns[0]] == np.float32(physics.named.data.qpos[joint.name])
    walker.close()


@pytest.mark.skipif(find_spec("robodesk") is None, reason="needs the package robodesk")
def test_robodesk_has_the_nine_of_the_paper():
    desk = make_env("tv_green_hue", suite="robodesk", size=96)
    joints = desk.world.unwrapped.joints
    assert [desk.signal_names[joint.columns[0]] for joint in joints] == [f"qpos/{joint.name}" for joint in joints]
    assert [joint.unit for joint in joints] == ["rad"] * 7 + ["m"] * 2  # the arm, then two fingers
    desk.close()


def test_scaled_sizes_keep_the_papers_ratios():
    assert scaled_sizes(150_000, 5) == [5_000, 10_000, 25_000, 50_000, 100_000, 150_000]
    assert scaled_sizes(300, 5) == [10, 20, 50, 100, 200, 300]
    assert scaled_sizes(10, 5) == [5, 10]


def test_errors_of_finetuning_equal_those_by_hand(data):
    """The last point of the curve is the error of a network that is trained step by step here."""
    train, test = data.choose("train", 40, 0), data.choose("test", None, 0)
    encoder, seed = fresh_encoder("pytorch", 1, **options_of(Encoder, depth=2, embed=12)), 4
    before = copy.deepcopy(encoder.state_dict())
    state = torch.get_rng_state()
    schedule = Schedule(updates=6, batch=16, evaluations=3)
    curve = finetune(encoder, data, train, test, schedule, stack=3, seed=seed)
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(before[name], tensor) for name, tensor in encoder.state_dict().items())
    assert curve.updates.tolist() == [2, 4, 6] and curve.mse.shape == (3, 2)

    images = np.load(data.folder / "observation.npy")
    position = np.load(data.folder / "position.npy").astype(np.float64)
    history = [[max(row - row % 20, row - back) for back in (2, 1, 0)] for row in range(len(images))]
    answers = np.stack((position[:, 0], np.sin(position[:, 1]), np.cos(position[:, 1])), 1)
    predicted = {}

    class Watched(Regressor):
        def __init__(self, *arguments):
            super().__init__(*arguments)
            predicted["net"] = self

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("denoised_mdp.analysis.joints.regression.Regressor", Watched)
        again = finetune(encoder, data, train, test, schedule, stack=3, seed=seed)
    np.testing.assert_array_equal(again.mse, curve.mse)
    net = predicted["net"]
    with torch.no_grad():
        pixels = torch.as_tensor(images[[history[row] for row in test]]).permute(0, 1, 4, 2, 3).float() / 255 - 0.5
        parts = [net.encoder(pixels[:, k]) for k in range(3)]
        out = net.head(torch.cat(parts, 1)).double().numpy()
    np.testing.assert_allclose(predict(net, data, test, 3), out, atol=1e-5)
    wrapped = np.arctan2(out[:, 1], out[:, 2]) - position[test, 1]
    wrapped = np.abs((wrapped + np.pi) % (2 * np.pi) - np.pi)
    expected = [np.square(out[:, 0] - position[test, 0]).mean(), np.square(wrapped).mean()]
    np.testing.assert_allclose(curve.mse[-1], expected, rtol=1e-4)
    middle = answers[train].mean(0)
    turn = np.arctan2(middle[1], middle[2]) - position[test, 1]
    mean_error = [np.square(middle[0] - position[test, 0]).mean(), np.square(np.angle(np.exp(1j * turn))).mean()]
    np.testing.assert_allclose(curve.baseline, mean_error, rtol=1e-9)
    np.testing.assert_allclose(curve.relative, curve.mse / mean_error, rtol=1e-9)
    np.testing.assert_allclose(curve.pooled, [sum(row) / sum(mean_error) for row in curve.mse], rtol=1e-9)


def test_finetuning_learns_what_a_picture_shows(data):
    """Fitted to the test rows themselves, it knows them far better than their mean: pictures and labels match."""
    rows = data.choose("test", None, 0)
    schedule = Schedule(updates=150, batch=40, lr=2e-3, evaluations=1, scale="standard")
    encoder = fresh_encoder("scaled", 0, **options_of(Encoder, depth=4, embed=32))
    curve = finetune(encoder, data, rows, rows, schedule, weight_decay=0.0)
    assert (curve.relative[-1] < 0.3).all()


def test_weight_decay_is_an_l2_penalty(data, monkeypatch):
    """With a penalty that outweighs all else, Adam moves each weight by about its learning rate toward 0."""
    rows, weights = data.choose("train", 20, 0), []

    class Watched(Regressor):
        def __init__(self, *arguments):
            super().__init__(*arguments)
            weights.append(self.head.hidden[0].weight)
            weights.append(self.head.hidden[0].weight.detach().clone())

    monkeypatch.setattr("denoised_mdp.analysis.joints.regression.Regressor", Watched)
    encoder = fresh_encoder("pytorch", 0, **options_of(Encoder, depth=2, embed=12))
    finetune(encoder, data, rows, rows[:2], Schedule(1, 20, 1e-4, 1), weight_decay=1e6)
    after, before = (weight.detach() for weight in weights)
    large = before.abs() > 1e-3
    torch.testing.assert_close((after - before)[large], -1e-4 * before.sign()[large], rtol=1e-2, atol=1e-6)


def test_command_compares_runs_and_leaves_them_alone(data, tmp_path, capsys):
    runs = [make_run(tmp_path / "a"), make_run(tmp_path / "b", "model=dreamer")]
    files = {path: path.read_bytes() for run in runs for path in run.rglob("*") if path.is_file()}
    output = tmp_path / "out"
    flags = (
        "--sizes 10 --updates 2 --batch 10 --evaluations 2 --stack both --contrastive-updates 2 --contrastive-batch 8"
    )
    where = ["--data", str(data.folder), "--output", str(output), "--device", "cpu"]
    assert main(["probe", "joints", *map(str, runs), *where, *flags.split()]) == 0
    assert files == {path: path.read_bytes() for run in runs for path in run.rglob("*") if path.is_file()}
    printed = capsys.readouterr().out
    with open(output / "joints.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    encoders = ["Denoised 2b", "Dreamer", "from scratch", "contrastive"]
    assert len(rows) == 4 * 2 * 2 * 2  # encoders, frames, evaluations, joints
    assert all(name in printed for name in encoders) and list(dict.fromkeys(row["encoder"] for row in rows)) == encoders
    for row in rows:
        assert float(row["relative_mse"]) == pytest.approx(float(row["mse"]) / float(row["mean_predictor_mse"]))
    assert {(row["joint"], row["unit"]) for row in rows} == {("slider", "m^2"), ("hinge_1", "rad^2")}
    for run in runs:
        stem = f"joints_{run.name}_train_000000040"
        tree = json.loads((output / f"{stem}.json").read_text())
        assert {one["run"] for one in tree["results"]} == {"", str(run)}
        for kind in ("sizes", "curves", "each_joint"):
            assert (output / f"{stem}_{kind}.png").stat().st_size > 5000
    read = read_run(runs[1], [output])
    part = probe_part(PROBES["joints"], read, read.probes["joints"][0])  # what a report shows
    ((_, numbers),) = part["folded"].values()
    assert len(part["pictures"]) == 3 and float(dict(numbers)["relative_mse"]) > 0
    assert len(list((data.folder / "contrastive").iterdir())) == 1  # trained once for both


def test_frames_that_lie_further_apart_than_an_encoder_learned_are_told(data):
    config = load_config([*TASK, "env.action_repeat=2"])

    def subject(frames):
        return SimpleNamespace(
            path="runs/a", config=config, agent=SimpleNamespace(picture_encoder=SimpleNamespace(frames=frames))
        )

    with pytest.warns(UserWarning, match=r"runs/a: .*frames that are 2 steps apart .*are 4 apart"):
        _check_stack(subject(3), (3,), data)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        _check_stack(subject(1), (1, 3), data)  # each frame is encoded alone


def test_names_lose_a_first_word_that_all_share():
    def short(*names):
        return short_names([Joint(name, "m", "scalar", (0,)) for name in names])

    assert short("panda0_joint1", "panda0_finger_joint1") == ["joint1", "finger_joint1"]
    assert short("bthigh", "bshin") == ["bthigh", "bshin"] and short("a_b") == ["a_b"]
    assert short("left_knee", "left_knee_2") == ["knee", "knee_2"]


@pytest.mark.parametrize("worst", [0.9, 400.0])
def test_axes_are_logarithmic_only_where_a_joint_needs_it(worst):
    """A joint of millimetres whose error is far above that of its mean does not press the others onto the axis."""
    joints = [Joint("desk_arm", "rad", "scalar", (0,)), Joint("desk_finger", "m", "scalar", (1,))]
    curve = Curve(np.array([1, 2]), np.array([[0.5, worst], [0.4, worst]]), np.ones(2))
    groups = {("a", 1, size): [SimpleNamespace(curve=curve, encoder="a", stack=1, size=size)] for size in (10, 20)}
    made = figures(groups, joints, "title")
    kind = "log" if worst > 5 else "linear"
    assert made["sizes"].axes[0].get_yscale() == kind and made["sizes"].axes[1].get_yscale() == "linear"
    assert {axes.get_yscale() for axes in made["curves"].axes} == {kind}
    (legend,) = made["sizes"].legends
    assert [text.get_text() for text in legend.get_texts()] == ["a"]
    assert [label.get_text() for label in made["each_joint"].axes[0].get_xticklabels()] == ["arm", "finger"]


def test_squared_metres_are_not_averaged_with_squared_radians():
    joints = [Joint(name, unit, "scalar", (0,)) for name, unit in (("arm", "rad"), ("leg", "rad"), ("cart", "m"))]
    curve = Curve(np.array([1]), np.array([[0.2, 0.4, 7.0]]), np.array([1.0, 1.0, 10.0]))
    groups = {("a", 1, size): [SimpleNamespace(curve=curve, encoder="a", stack=1, size=size)] for size in (10, 20)}
    _, radians, metres = figures(groups, joints, "title")["sizes"].axes
    for axes, unit, value in ((radians, "rad²", 0.3), (metres, "m²", 7.0)):
        assert f"({unit})" in axes.get_ylabel()
        np.testing.assert_allclose(axes.lines[0].get_ydata(), value)


@pytest.mark.parametrize("relative", [0.97, 0.2, 3.0])
def test_pictures_cut_nothing(relative):
    """Every text lies in the picture, every line in its axes; so does the mean's 1."""
    joints = [Joint("desk_arm", "rad", "scalar", (0,)), Joint("desk_finger", "m", "scalar", (1,))]
    groups = {}
    for name, error in (("Denoised 2b", relative), ("from scratch", 0.9 * relative)):
        curve = Curve(np.array([1, 2]), np.full((2, 2), error), np.ones(2))
        groups |= {(name, 1, n): [SimpleNamespace(curve=curve, encoder=name, stack=1, size=n)] for n in (10, 5000)}
    title = "tv_green_hue + tv + button_noise + moving_lights + camera_shake + noisy_sensor · joint positions " * 2
    for figure in figures(groups, joints, title).values():
        assert_whole(figure)
    figure = figures(groups, joints, "title")["sizes"]
    assert figure.axes[0].get_ylim()[1] > 1.03 * max(1, relative)


def test_names_of_folders_are_no_formulas(tmp_path):
    joints = [Joint("desk_$_$", "rad", "scalar", (0,))]
    curve, name = Curve(np.array([1]), np.array([[0.2]]), np.ones(1)), "Denoised 2b · a$_$"
    groups = {(name, 1, size): [SimpleNamespace(curve=curve, encoder=name, stack=1, size=size)] for size in (10, 20)}
    for kind, figure in figures(groups, joints, name).items():
        figure.savefig(tmp_path / f"{kind}.png")


def test_runs_that_differ_in_their_seed_share_a_name(tmp_path):
    options = [[], ["seed=1"], ["model=dreamer"], ["model.kl.beta=0.5"], ["model.kl.beta=0.5", "seed=7"]]
    configs = [load_config([*TASK, *own]) for own in options]
    paths = [tmp_path / name for name in "abcde"]
    assert _names(configs[:3], paths[:3]) == ["Denoised 2b", "Denoised 2b", "Dreamer"]
    rest = [load_config([*TASK, f"model={name}"]) for name in ("tia", "confounder")]
    assert _names(rest, paths[:2]) == ["TIA", "confounder"]
    assert _names(configs, paths) == [
        "Denoised 2b · a",
        "Denoised 2b · a",
        "Dreamer",
        "Denoised 2b · d",
        "Denoised 2b · d",
    ]


def test_mistakes_are_one_line(data, tmp_path, capsys):
    run, other = make_run(tmp_path / "a"), make_run(tmp_path / "b", "env.task=pendulum_swingup")
    begin = ["probe", "joints", str(run), "--data", str(data.folder), "--output", str(tmp_path)]
    for arguments, message in (
        ([*begin, "--sizes", "20,x"], "must be paper, scaled or numbers"),
        ([*begin, "--sizes", "4000"], "pairs to train with"),
        ([*begin, "--sizes", "1"], "pairs to train with"),
        (begin, "pairs to train with"),  # the paper's sizes
        ([*begin, "--sizes", "scaled", "--test-pairs", "1000"], "pairs to test with"),
        (["probe", "joints", str(run), "--data", str(tmp_path / "nowhere")], "no data set"),
        (["probe", "joints", str(other), *begin[3:]], "task=cartpole_swingup, the run with pendulum_swingup"),
    ):
        assert main(arguments) == 2
        lines = capsys.readouterr().err.strip().splitlines()
        assert len(lines) == 1 and message in lines[0]
