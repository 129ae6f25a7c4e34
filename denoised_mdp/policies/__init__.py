"""Policy optimizers on the denoised MDP: one table, one small protocol (`base.Policy`)."""

from .backprop import BackpropPolicy
from .base import Policy, PolicyBatch
from .sac import SACPolicy

POLICIES: dict[str, type[Policy]] = {"backprop": BackpropPolicy, "sac": SACPolicy}

__all__ = ["POLICIES", "BackpropPolicy", "Policy", "PolicyBatch", "SACPolicy"]
