"""Policy optimizers on the denoised MDP: one table, one small protocol (`base.Policy`)."""

from .backprop import BackpropPolicy
from .base import Policy, PolicyBatch

POLICIES: dict[str, type[Policy]] = {"backprop": BackpropPolicy}

__all__ = ["POLICIES", "BackpropPolicy", "Policy", "PolicyBatch"]
