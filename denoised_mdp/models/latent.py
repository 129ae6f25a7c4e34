"""Tensors of latents: beliefs and states of a table's rows, concatenated in its order.

Symbols: D / S belief / state size summed over the latents. "Belief" is the deterministic GRU state h, "state" the
stochastic sample.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from denoised_mdp.models.structure import LatentSpec


class Layout:
    """Where each latent lies in tensors of size D (beliefs) and S (states)."""

    def __init__(self, rows: Sequence[LatentSpec]):
        self.names = tuple(row.name for row in rows)
        self.seen = tuple(row.name for row in rows if row.seen_by_policy)
        self.beliefs = [row.belief for row in rows]
        self.states = [row.width for row in rows]
        self.belief_size, self.state_size = sum(self.beliefs), sum(self.states)

    def split_belief(self, belief: Tensor) -> dict[str, Tensor]:
        """[..., D] -> views {name: [..., D_name]}."""
        return dict(zip(self.names, belief.split(self.beliefs, -1), strict=True))

    def split_state(self, state: Tensor) -> dict[str, Tensor]:
        """[..., S] -> views {name: [..., S_name]}; also for noise."""
        return dict(zip(self.names, state.split(self.states, -1), strict=True))


@dataclass(frozen=True)
class Latent:
    """Beliefs [..., D] and states [..., S] of all latents of a layout."""

    belief: Tensor
    state: Tensor
    layout: Layout

    def __getitem__(self, name: str) -> tuple[Tensor, Tensor]:
        """Views (belief, state) of one latent."""
        return self.layout.split_belief(self.belief)[name], self.layout.split_state(self.state)[name]

    @property
    def seen(self) -> str:
        """Key in `parts` of all latents that the policy sees together, e.g. "x", "c+x" or "all"."""
        seen, names = self.layout.seen, self.layout.names
        return "all" if 1 < len(seen) == len(names) else "+".join(seen)

    def parts(self) -> dict[str, Tensor]:
        """Features of each latent [..., D_name + S_name], of what the policy sees, and of all if there are several."""
        names = self.layout.names
        parts = {name: self.features(name) for name in names}
        if self.seen not in (*names, "all"):
            parts[self.seen] = torch.cat([parts[name] for name in self.layout.seen], -1)
        return parts | ({"all": self.features()} if len(names) > 1 else {})

    def select(self, rows: Sequence[LatentSpec]) -> Latent:
        """The same, restricted to the latents of these rows."""
        if len(rows) == len(self.layout.names):
            return self
        beliefs, states = self.layout.split_belief(self.belief), self.layout.split_state(self.state)
        names = [row.name for row in rows]
        return Latent(_cat([beliefs[name] for name in names]), _cat([states[name] for name in names]), Layout(rows))

    def features(self, name: str | None = None) -> Tensor:
        """[..., D + S]: beliefs, then states, of all latents or of one."""
        return torch.cat((self.belief, self.state) if name is None else self[name], -1)

    def replace(self, **parts: tuple[Tensor, Tensor]) -> Latent:
        """A copy in which the named latents are replaced by (belief, state), broadcast to this shape."""
        beliefs, states = self.layout.split_belief(self.belief), self.layout.split_state(self.state)
        for name in set(parts) & set(self.layout.names):
            beliefs[name], states[name] = (
                new.expand_as(old) for new, old in zip(parts[name], (beliefs[name], states[name]), strict=True)
            )
        return Latent(torch.cat(list(beliefs.values()), -1), torch.cat(list(states.values()), -1), self.layout)

    def map(self, function: Callable[..., Tensor], *others: Latent) -> Latent:
        """Apply `function` to both tensors, together with the same tensor of `others` (index, detach, stack ...)."""
        belief = function(self.belief, *(other.belief for other in others))
        return Latent(belief, function(self.state, *(other.state for other in others)), self.layout)


def _cat(parts: list[Tensor]) -> Tensor:
    """Concatenate along the last axis; a single part is returned as it is."""
    return parts[0] if len(parts) == 1 else torch.cat(parts, -1)
