"""World models by the name that a configuration gives as ``model.kind``."""

from denoised_mdp.models.base import WorldModel
from denoised_mdp.models.denoised import DenoisedModel
from denoised_mdp.models.repo import RePo
from denoised_mdp.models.tia import TIA
from denoised_mdp.plugins import Registry

MODELS: Registry[type[WorldModel]] = Registry("model", {"denoised": DenoisedModel, "repo": RePo, "tia": TIA})
