"""A world model with another loss takes one class and a table beside it: it trains, resumes, renders and is probed."""

from dataclasses import dataclass

import pytest
import torch
from small_runs import lines, run_in_parts, tiny

import denoised_mdp
from denoised_mdp import register_model, register_table
from denoised_mdp.cli.main import main
from denoised_mdp.config import schema
from denoised_mdp.errors import UserError
from denoised_mdp.models.denoised import DenoisedModel
from denoised_mdp.models.registry import MODELS
from denoised_mdp.options import option
from denoised_mdp.run.diff import compare
from denoised_mdp.session import train


@dataclass
class LaplaceConfig(schema.ModelConfig):
    """Options of the model: those of the package's, and its own."""

    kind: str = option("laplace", "what learns (choose it with model=...)")
    sharpness: float = option(1.0, "inverse scale of the Laplace distribution", above=0)


class Laplace(DenoisedModel):
    """The Denoised MDP with an absolute instead of a squared error."""

    def __init__(self, *arguments, sharpness: float, **options):
        super().__init__(*arguments, **options)
        self.sharpness = sharpness

    @classmethod
    def options(cls, config):
        """Keyword arguments that a configuration implies."""
        return super().options(config) | {"sharpness": config.model.sharpness}

    def image_nll(self, prediction, image):
        """Images [N, 3, H, W] -> scalar, nats but for a constant."""
        return self.sharpness * (prediction - image).abs().sum((1, 2, 3)).mean()

    def update(self, batch, generator):
        """One step; a metric more is logged and plotted by its name."""
        learned = super().update(batch, generator)
        learned.metrics["model/largest_reward"] = batch["reward"].max()
        return learned


TABLE = """
name: blocks
kind: laplace
x: {belief: 12, state: 4, sees_action: true, rewarded: true, seen_by_policy: true, free: true}
noise: {belief: 10, state: 3, rewarded: true, beta: "${model.kl.beta}"}
"""


@pytest.fixture
def registered(tmp_path):
    (tmp_path / "blocks.yaml").write_text(TABLE)
    register_model("laplace", Laplace, LaplaceConfig)
    register_table(tmp_path / "blocks.yaml")
    yield
    del MODELS["laplace"], schema.MODELS["laplace"], schema.TABLES["blocks"]


def test_it_trains_resumes_renders_and_is_probed(tmp_path, registered, capsys):
    options = ("model=blocks", "model.sharpness=2", "model.noise.belief=8", "train.probe_every=0", "train.eval_every=0")
    whole, parts = (tiny(tmp_path / name, *options) for name in ("whole", "parts"))
    assert train(whole)
    run_in_parts(parts, 53)
    assert all(verdict.difference is None for verdict in compare(whole.run_dir, parts.run_dir))
    logged = [line["model/largest_reward"] for line in lines(tmp_path / "whole") if "model/largest_reward" in line]
    assert logged and 0 < max(logged) <= 2
    model = denoised_mdp.load(whole.run_dir, device="cpu").world_model
    assert isinstance(model, Laplace) and model.sharpness == 2 and model.table.rows["noise"].belief == 8
    assert main(["render", whole.run_dir, "--episodes", "2", "--device", "cpu"]) == 0
    assert main(["probe", "health", whole.run_dir, "--episodes", "3", "--steps", "10", "--device", "cpu"]) == 0
    assert "noise " in capsys.readouterr().out
    assert main(["config", "model=blcks"]) == 2 and "Did you mean 'blocks'?" in capsys.readouterr().err
    assert main(["config", "model=2b", "model.sharpness=2"]) == 2  # an option of this model alone


def test_its_loss_is_its_own(registered):
    prediction = torch.zeros(2, 3, 4, 4, requires_grad=True)
    model = Laplace.__new__(Laplace)
    torch.nn.Module.__init__(model)
    model.sharpness = 3.0
    loss = model.image_nll(prediction, torch.full((2, 3, 4, 4), 0.5))
    assert loss.item() == pytest.approx(3 * 0.5 * 48)
    (gradient,) = torch.autograd.grad(loss, prediction)
    assert (gradient == -1.5).all()


def test_a_table_that_cannot_be_is_refused(tmp_path):
    (tmp_path / "dreamer.yaml").write_text(TABLE)
    with pytest.raises(UserError, match="There is a model 'dreamer' already"):
        register_table(tmp_path / "dreamer.yaml")
    with pytest.raises(UserError, match="There is no table of latents"):
        register_table(tmp_path / "nothing.yaml")
