"""The documentation's world model with another loss: it trains, resumes, renders and is probed."""

import importlib
import re
import sys
from pathlib import Path

import pytest
import torch
from small_runs import lines, run_in_parts, tiny

import denoised_mdp
from denoised_mdp import register_table
from denoised_mdp.cli.main import main
from denoised_mdp.config import schema
from denoised_mdp.errors import UserError
from denoised_mdp.models.registry import MODELS
from denoised_mdp.run.diff import compare
from denoised_mdp.session import train

TEXT = (Path(__file__).parents[1] / "docs" / "extending.md").read_text().partition("### A world model\n")[2]
PROGRAM, TABLE = (re.search(rf"```{kind}\n(.*?)```", TEXT, re.DOTALL)[1] for kind in ("python", "yaml"))


@pytest.fixture
def registered(tmp_path, monkeypatch):
    """The plug-in of the documentation, imported; its module."""
    (tmp_path / "my_model.py").write_text(PROGRAM)
    (tmp_path / "blocks.yaml").write_text(TABLE)
    monkeypatch.syspath_prepend(tmp_path)
    yield importlib.import_module("my_model")
    del MODELS["laplace"], schema.MODELS["laplace"], schema.TABLES["blocks"], sys.modules["my_model"]


def test_it_trains_resumes_renders_and_is_probed(tmp_path, registered, capsys):
    options = ("model=blocks", "model.sharpness=2", "model.noise.belief=8", "train.probe_every=0", "train.eval_every=0")
    whole, parts = (tiny(tmp_path / name, *options) for name in ("whole", "parts"))
    assert train(whole)
    run_in_parts(parts, 53)
    assert all(verdict.difference is None for verdict in compare(whole.run_dir, parts.run_dir))
    logged = [line["model/largest_reward"] for line in lines(tmp_path / "whole") if "model/largest_reward" in line]
    assert logged and 0 < max(logged) <= 2
    model = denoised_mdp.load(whole.run_dir, device="cpu").world_model
    assert isinstance(model, registered.Laplace) and model.sharpness == 2 and model.table.rows["noise"].belief == 8
    assert main(["render", whole.run_dir, "--episodes", "2", "--device", "cpu"]) == 0
    assert main(["probe", "health", whole.run_dir, "--episodes", "3", "--steps", "10", "--device", "cpu"]) == 0
    assert "noise " in capsys.readouterr().out
    assert main(["config", "model=blcks"]) == 2 and "Did you mean 'blocks'?" in capsys.readouterr().err
    assert main(["config", "model=2b", "model.sharpness=2"]) == 2  # an option of this model alone


def test_its_loss_is_its_own(registered):
    prediction = torch.zeros(2, 3, 4, 4, requires_grad=True)
    model = registered.Laplace.__new__(registered.Laplace)
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
