"""The world model against numbers from outside this project.

``tests/data/golden`` holds weights, a batch, noise, predictions, losses and gradients of small models in float64. They
come from a re-computation that shares no code with this project, so no misreading of ours can satisfy both.
"""

from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import configured

from denoised_mdp.models.denoised import DenoisedModel
from denoised_mdp.models.losses import KLWeights, image_nll, kl_per_latent, scalar_nll
from denoised_mdp.models.structure import LatentSpec, Table

FOLDER = Path(__file__).parent / "data" / "golden"
X = LatentSpec("x", 12, 5, sees_action=True, seen_by_policy=True, free=True)
Y = LatentSpec("y", 10, 4, beta=0.25)
Z = LatentSpec("z", 8, 3, sees_action=True, parents=("x", "y"), rewarded=False, beta=0.5)
STRUCTURES = {"2b": Table((X, Y)), "2c": Table((X, Y, Z))}
STAGES = {"posteriors.roots": "posteriors.0.net", "posteriors.z": "posteriors.1.net"}
"""modules that were renamed after the files were made"""


def renamed(data, prefix):
    """{our name: tensor} of the file's keys that begin with `prefix`."""
    found = {key.removeprefix(prefix): value for key, value in data.items() if key.startswith(prefix)}
    for old, new in STAGES.items():
        found = {key.replace(old, new): value for key, value in found.items()}
    return found


def read(name, strategy="A"):
    """The model of a file, the file's batch, and all of the file {key: tensor}."""
    with np.load(FOLDER / f"{name}_64.npz") as file:
        data = {key: torch.from_numpy(file[key]) for key in file.files}
    kl = configured(KLWeights, alpha=1.0, free_nats=3.0, free_nats_strategy=strategy)
    model = configured(DenoisedModel, STRUCTURES[name], 3, depth=2, embed=24, hidden=12, kl=kl).double()
    model.load_state_dict(renamed(data, "weight/"))
    batch = {key: data[f"batch/{key}"] for key in ("observation", "action", "reward", "is_first")}
    return model, batch | {"is_terminal": torch.zeros_like(batch["is_first"])}, data


def close(ours, theirs):
    torch.testing.assert_close(ours.reshape(theirs.shape), theirs, rtol=1e-10, atol=1e-12)


def check_predictions(name):
    """Embeddings, latents, images, rewards, likelihoods and KLs of one file."""
    model, batch, data = read(name)
    with torch.no_grad():
        filtered = model.filter(batch["observation"], batch["action"], batch["is_first"], data["noise"])
        image, shares = model.decode(filtered.latent), model.reward_shares(filtered.latent)
        close(model.embed(batch["observation"]), data["embed"])
        close(image, data["image"])
        close(shares["x"], data["reward_x"])
        close(sum(shares.values()), data["reward"])
        close(image_nll(image, model.float_images(batch["observation"])), data["image_nll"])
        close(scalar_nll(sum(shares.values()), batch["reward"]).mean(), data["reward_nll"])
        layout = model.rssm.layout
        parts = {
            "belief": layout.split_belief(filtered.latent.belief),
            "state": layout.split_state(filtered.latent.state),
            "prior_mean": {latent: prior.mean for latent, prior in filtered.prior.items()},
            "prior_std": {latent: prior.std for latent, prior in filtered.prior.items()},
            "posterior_mean": {latent: posterior.mean for latent, posterior in filtered.posterior.items()},
            "posterior_std": {latent: posterior.std for latent, posterior in filtered.posterior.items()},
            "kl": kl_per_latent(filtered.posterior, filtered.prior),
        }
    for quantity, by_latent in parts.items():
        for latent, value in by_latent.items():
            close(value, data[f"{latent}/{quantity}"])


@pytest.mark.parametrize("name", STRUCTURES)
def test_every_prediction_is_the_one_from_outside(name):
    check_predictions(name)


@pytest.mark.parametrize("strategy", ["A", "B"])
@pytest.mark.parametrize("name", STRUCTURES)
def test_losses_and_gradients_are_those_from_outside(name, strategy):
    model, batch, data = read(name, strategy)
    loss, *_ = model.loss(**batch, noise=data["noise"])
    close(loss, data[f"loss_{strategy}"])
    loss.backward()
    gradients = renamed(data, f"gradient_{strategy}/")
    for key, parameter in model.named_parameters():
        gradient = gradients[key]
        assert (parameter.grad - gradient).norm() <= 1e-10 * gradient.norm(), key
