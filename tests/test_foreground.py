"""``model.target=foreground``: each row holds the picture twice, and the decoder learns the one on black."""

import numpy as np
import pytest
import torch
from conftest import random_batch, small_config
from small_runs import finished_run, run_in_parts, tiny

from denoised_mdp.agents.registry import build_agent
from denoised_mdp.analysis import render
from denoised_mdp.cli.main import main
from denoised_mdp.config import as_tree, load_config
from denoised_mdp.config.schema import Config
from denoised_mdp.config.validate import build
from denoised_mdp.envs import make_env
from denoised_mdp.envs.distractors.camera_jitter import translate
from denoised_mdp.errors import UserError
from denoised_mdp.models.networks import images_to_float
from denoised_mdp.run.diff import compare
from denoised_mdp.session import train


def observations(steps=3, **options):
    """Pictures [n, H, W, 6] of an episode of random actions; the environment."""
    env, rng = make_env(**options, foreground=True, action_repeat=2), np.random.default_rng(0)
    pictures = [env.reset(seed=3)[0]]
    pictures += [env.step(rng.uniform(-1, 1, env.action_space.shape))[0] for _ in range(steps)]
    assert env.observation_space.contains(pictures[0])
    return np.stack(pictures), env


@pytest.mark.parametrize("options", [{"suite": "toy", "task": "dot"}, {"task": "cheetah_run"}], ids=["toy", "dmc"])
def test_the_matte_is_exact(options):
    """Two videos behind the same physics: where the pictures agree with the foreground, and only there, they agree."""
    first, other = (
        observations(**options, distractors={"video_background": {"matte": "matte"}}, clips_seed=seed)[0]
        for seed in (0, 1)
    )
    foreground = first[..., 3:]
    np.testing.assert_array_equal(foreground, other[..., 3:])  # no video shows in it
    body = foreground.any(-1)
    assert 0.01 < body.mean() < 0.6
    for picture in (first[..., :3], other[..., :3]):
        np.testing.assert_array_equal(picture[body], foreground[body])
    differs = (first[..., :3] != other[..., :3]).any(-1)
    assert not (differs & body).any() and differs[~body].mean() > 0.8


def test_it_is_what_the_camera_shows():
    pictures, env = observations(suite="toy", task="dot", distractors=["video_background", "camera_jitter"])
    dx, dy = (env.info()["noise"][env.noise_names.index(f"camera_jitter/{name}")] for name in ("dx", "dy"))
    still = env.world.env.foreground()
    assert max(abs(dx), abs(dy)) > 0.5
    np.testing.assert_array_equal(pictures[-1, ..., 3:], translate(still, *env.world.noise_values()))
    _, colored = observations(task="cheetah_run", distractors=["body_color"])
    plain = colored.world.env.foreground()
    assert (colored.world.foreground().any(-1) == plain.any(-1)).mean() > 0.99  # the same body
    assert (colored.world.foreground() != plain).any()  # in other colours


def test_a_distractor_around_others_sees_body_and_background_as_they_are_shown():
    """Whatever lies between it and the world: the body is where the camera shows it, and a video is background."""
    for names in (["video_background"], ["camera_jitter"], ["video_background", "camera_jitter"]):
        _, env = observations(suite="toy", task="dot", distractors=names)
        inner = env.world.unwrapped
        body, share = inner.frame_and_background()
        found, seen = env.world.frame_and_background()
        if "camera_jitter" in names:
            dx, dy = env.world.noise_values()
            assert max(abs(dx), abs(dy)) > 0.5
            body = translate(body, dx, dy)
            share = translate((255 * share).astype(np.uint8)[..., None], dx, dy)[..., 0] / 255
        np.testing.assert_array_equal(found, body)
        np.testing.assert_allclose(seen.astype(float), share, atol=0.5 / 255)


def test_the_loss_by_hand():
    config = small_config()
    config.model.target = "foreground"
    model = build_agent(config, 2).double().world_model
    batch = {name: torch.as_tensor(value) for name, value in random_batch().items()}
    batch |= {name: batch[name].double() for name in ("action", "reward")}
    noise = model.draw_noise(4, 3, generator=torch.Generator().manual_seed(0)).double()
    target = torch.from_numpy(np.random.default_rng(1).integers(0, 256, batch["observation"].shape, np.uint8))
    both = batch | {"observation": torch.cat([batch["observation"], target], -1)}
    loss, latent, _, metrics = model.loss(**both, noise=noise)
    expected = 0.5 * (model.decode(latent) - images_to_float(target, torch.float64)).square().sum((1, 2, 3)).mean()
    assert metrics["model/image_error"].item() == pytest.approx(expected.item(), rel=1e-9)
    bias = model.decoder.get_parameter([name for name, _ in model.decoder.named_parameters() if "bias" in name][-1])
    by_loss, by_hand = (torch.autograd.grad(value, bias, retain_graph=True)[0] for value in (loss, expected))
    torch.testing.assert_close(by_loss, by_hand)
    model.target = "observation"
    other, seen, _, without = model.loss(**batch, noise=noise)
    torch.testing.assert_close(seen.state, latent.state, rtol=0, atol=0)  # the encoder never sees the target
    torch.testing.assert_close(loss - metrics["model/image_error"], other - without["model/image_error"])


FOREGROUND = ("model.target=foreground", "distractors=camera_jitter", "train.total_steps=120", "train.eval_every=0")


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    return finished_run(tmp_path_factory.mktemp("foreground"), *FOREGROUND)


def test_rows_hold_both_pictures_and_play_as_without(whole, tmp_path):
    config = tiny(tmp_path / "run", *FOREGROUND, "model.target=observation", "train.total_steps=80")
    assert train(config)
    rows, plain = (np.load(path / "replay" / "observation.npy") for path in (whole, tmp_path / "run"))
    assert rows.shape[1:] == (64, 64, 6) and plain.shape[1:] == (64, 64, 3)
    np.testing.assert_array_equal(rows[:40, ..., :3], plain[:40])
    shown, foreground = rows[:40, ..., :3].astype(int), rows[:40, ..., 3:].astype(int)
    assert (foreground <= shown + 1).all()  # black lies behind it; shifts by parts of a pixel are rounded
    dot = (foreground == (255, 255, 160)).all(-1)
    assert dot.any(axis=(1, 2)).all() and (shown[dot] == foreground[dot]).all()


@pytest.mark.parametrize("memory", ["prefetch", "device"])
def test_a_run_resumes_bit_for_bit_wherever_its_batches_come_from(whole, tmp_path, memory):
    run_in_parts(tiny(tmp_path / "run", *FOREGROUND, f"replay.memory={memory}"), 53)
    assert all(verdict.difference is None for verdict in compare(whole, tmp_path / "run"))


def test_it_overlaps_renders_and_is_examined(whole, tmp_path, capsys):
    overlap = [*FOREGROUND, "train.overlap=true", "train.collect_workers=1"]
    run_in_parts(tiny(tmp_path / "parts", *overlap), 53)
    assert train(tiny(tmp_path / "run", *overlap))
    assert all(verdict.difference is None for verdict in compare(tmp_path / "run", tmp_path / "parts"))
    path = render.render_run(whole, tmp_path / "video", episodes=2, steps=5, device="cpu")[0]
    assert path.exists()
    assert main(["probe", "health", str(whole), "--episodes", "3", "--steps", "10", "--device", "cpu"]) == 0
    assert "reconstructed pixels" not in capsys.readouterr().out  # the observation is not what it reconstructs


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["model=repo"], "model.target=foreground: must be observation: the decoder of model=repo is for viewing only"),
        (["env=toy", "env.task=counting", "distractors=none"], "Task 'counting' of suite 'toy' does not know which"),
        (["env=gym", "env.id=gym_envs:Picture", "distractors=none"], "of suite 'gym' does not know which pixels"),
        (["env=robodesk", "env.task=push_red", "distractors=none"], "of suite 'robodesk' does not know which pixels"),
    ],
)
def test_what_cannot_is_refused(options, words, tmp_path):
    with pytest.raises(UserError, match=words):
        train(tiny(tmp_path / "run", "model.target=foreground", *options))


def test_older_configurations_reconstruct_the_observation():
    tree = as_tree(load_config(["preset=debug"]))
    del tree["model"]["target"]
    assert build(Config, tree).model.target == "observation"
