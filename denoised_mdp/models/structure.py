"""The factorization as one table: a row per latent (Wang et al. 2022, section 3 and Figure 2).

The table is the configuration: each preset in ``configs/model`` is one, and ``model.x.belief=60`` sets one cell. It
drives transition, posteriors, KL terms, rewards, what the policy sees, and everything that looks at latents. Cheap to
import: no PyTorch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from denoised_mdp.options import option

CONVOLUTIONS = {"paper": (64, 96), "strided": (32, 48, 64, 96), "pooled": (32, 48, 64, 96)}
"""kinds of encoder and decoder (see `vision`) -> the heights and widths of the pictures that each supports"""

BLOCKS = 8
"""blocks of the block GRU; a belief has this many parts of equal size"""

RESERVED = ("action", "all", "encoder", "error", "untrained")
"""names that probes and metrics (``model/reward_error``) use for things other than latents"""


def convolutions_for(size: int) -> str:
    """The default kind for pictures of this size: the paper's if it supports the size, else strided."""
    return "paper" if size in CONVOLUTIONS["paper"] else "strided"


@dataclass(frozen=True)
class LatentSpec:
    """One row of the table. "Belief" is the deterministic GRU state h, "state" the stochastic sample."""

    name: str
    belief: int = option(120, "size of the deterministic belief (GRU)", low=1)
    state: int = option(20, "stochastic variables of the state", low=1)
    distribution: str = option("gaussian", "of the state", choices=("gaussian", "categorical"))
    classes: int = option(8, "classes of each variable, of a categorical state", low=2)
    sees_action: bool = option(False, "the prior reads the previous action: controllable")
    parents: tuple[str, ...] = option((), "latents of the same step that the prior reads")
    rewarded: bool = option(True, "has an additive share of the reward")
    reward_sees: tuple[str, ...] = option((), "other latents that its share of the reward reads")
    seen_by_policy: bool = option(False, "policy and value read it, imagination steps it: signal")
    beta: float = option(1.0, "weight of its KL, times alpha", above=0, high=1)
    free: bool = option(False, "its KL counts as signal: towards the free nats, and for model.kl.relax")

    @property
    def width(self) -> int:
        """Width of a state sample: one number per variable, or one per class."""
        return self.state * (self.classes if self.distribution == "categorical" else 1)


class Table:
    """Rows in order, and the stages in which they are inferred.

    Stage 0 holds the latents without parents, each later stage those whose parents are then all known. Latents of one
    stage share a posterior net.

    Raises:
        ValueError: a name is reserved or not an identifier; a row stands before one of its parents or before a row of
            an earlier stage; a row reads a latent twice; a reward reads a latent that does not exist; the policy sees
            no rewarded latent, or one that reads a latent it does not see; betas of free rows differ.
    """

    def __init__(self, rows: Sequence[LatentSpec]):
        self.rows = {row.name: row for row in rows}
        if bad := [name for name in self.rows if not name.isidentifier() or name in RESERVED]:
            none = ", ".join(RESERVED)
            raise ValueError(
                f"a latent cannot be called {bad[0]!r}: give a word of letters, digits and _, none of {none}"
            )
        depth: dict[str, int] = {}
        for row in rows:
            for what, read in (("parents", row.parents), ("reward_sees", (row.name, *row.reward_sees))):
                if twice := [name for name in read if read.count(name) > 1]:
                    raise ValueError(f"{what} of latent {row.name} reads {twice[0]} twice")
            for parent in row.parents:
                if parent not in depth:
                    raise ValueError(f"latent {row.name} has parent {parent}, which must stand before it in the table")
            depth[row.name] = 1 + max((depth[parent] for parent in row.parents), default=-1)
        order = list(depth.values())
        if order != sorted(order):
            raise ValueError(f"list latents of earlier stages first, not in the order {', '.join(self.rows)}")
        self.stages = tuple(
            tuple(row for row in rows if depth[row.name] == stage) for stage in range(1 + max(order, default=-1))
        )
        self.seen = tuple(row for row in rows if row.seen_by_policy)
        self._check_seen()
        self.free = tuple(row for row in rows if row.free)
        if len({row.beta for row in self.free}) > 1:
            raise ValueError(f"{', '.join(row.name for row in self.free)} share the free nats and must have one beta")

    def _check_seen(self) -> None:
        """Check that the policy can imagine what it sees and sees a reward, and that rewards read existing latents."""
        names = {row.name for row in self.seen}
        for row in self.seen:
            for needed in (*row.parents, *row.reward_sees):
                if needed not in names:
                    raise ValueError(f"the policy sees {row.name}, which reads {needed}: it must see {needed} as well")
        if not any(row.rewarded for row in self.seen):
            raise ValueError("the policy must see a latent that is rewarded")
        for row in self.rows.values():
            if unknown := set(row.reward_sees) - set(self.rows):
                raise ValueError(f"the reward of {row.name} reads {', '.join(sorted(unknown))}, which does not exist")

    @property
    def names(self) -> tuple[str, ...]:
        """Names of all latents, in order."""
        return tuple(self.rows)

    @property
    def noise(self) -> tuple[str, ...]:
        """Names of the latents that the policy does not see."""
        return tuple(name for name, row in self.rows.items() if not row.seen_by_policy)

    @property
    def rewarded_noise(self) -> tuple[str, ...]:
        """Those of `noise` with a share of the reward. Only the sum of shares is learned: one's level means nothing."""
        return tuple(name for name in self.noise if self.rows[name].rewarded)
