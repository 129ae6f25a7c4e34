"""The world model against numbers from outside this project.

``tests/data/golden`` holds weights, a batch, noise, predictions, losses and gradients of small models in float64. They
come from a re-computation that shares no code with this project, so no misreading of ours can satisfy both.
"""

from pathlib import Path

import numpy as np
import pytest
import torch

from denoised_mdp.rssm import kl_divergence, structure
from denoised_mdp.world_model import KLWeights, WorldModel, image_nll, scalar_nll

FOLDER = Path(__file__).parent / "data" / "golden"
STRUCTURES = {"2b": structure((12, 5), (10, 4)), "2c": structure((12, 5), (10, 4), (8, 3))}


def read(name, strategy="A"):
    """The model of a file, the file's batch, and all of the file {key: tensor}."""
    with np.load(FOLDER / f"{name}_64.npz") as file:
        data = {key: torch.from_numpy(file[key]) for key in file.files}
    kl = KLWeights(alpha=1.0, beta_y=0.25, beta_z=0.5, free_nats=3.0, free_nats_strategy=strategy)
    model = WorldModel(STRUCTURES[name], 3, depth=2, embed=24, hidden=12, kl=kl).double()
    model.load_state_dict({key.removeprefix("weight/"): data[key] for key in data if key.startswith("weight/")})
    return model, {key: data[f"batch/{key}"] for key in ("observation", "action", "reward", "is_first")}, data


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
            "prior_mean": layout.split_state(filtered.prior.mean),
            "prior_std": layout.split_state(filtered.prior.std),
            "posterior_mean": layout.split_state(filtered.posterior.mean),
            "posterior_std": layout.split_state(filtered.posterior.std),
            "kl": {
                latent: part.sum(-1)
                for latent, part in layout.split_state(kl_divergence(filtered.posterior, filtered.prior)).items()
            },
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
    for key, parameter in model.named_parameters():
        gradient = data[f"gradient_{strategy}/{key}"]
        assert (parameter.grad - gradient).norm() <= 1e-10 * gradient.norm(), key
