"""Policy optimizers on the denoised MDP: one registry, one small protocol (`base.Policy`)."""

from denoised_mdp.models.mdp import PolicyBatch
from denoised_mdp.plugins import Registry
from denoised_mdp.policies.backprop import BackpropPolicy
from denoised_mdp.policies.base import Policy
from denoised_mdp.policies.reinforce import ReinforcePolicy
from denoised_mdp.policies.sac import SACPolicy

POLICIES: Registry[type[Policy]] = Registry(
    "policy", {"backprop": BackpropPolicy, "reinforce": ReinforcePolicy, "sac": SACPolicy}
)

__all__ = ["POLICIES", "BackpropPolicy", "Policy", "PolicyBatch", "ReinforcePolicy", "SACPolicy"]
