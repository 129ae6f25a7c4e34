"""Options of the agents, and what each wants from the replay; see `schema`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from denoised_mdp.options import option

if TYPE_CHECKING:
    from denoised_mdp.config.schema import Config


@dataclass(frozen=True)
class BatchSpec:
    """What an agent wants from the replay: `batch_size` segments of `segment_length` rows.

    lead: so many rows of the same episode stand before each segment; where there are none, its first is repeated.
    """

    segment_length: int
    batch_size: int
    lead: int = 0


@dataclass
class AgentConfig:
    """A world model with a policy: ``model.*`` and ``policy.*`` are its options. The base of every agent's options."""

    name: str = option("world_model", "what learns and acts (choose it with agent=...)")
    has_model: ClassVar[bool] = True
    """a world model learns: the groups ``model`` and ``policy`` count"""

    def batch_spec(self, config: Config) -> BatchSpec:
        """The batches that an update wants."""
        return BatchSpec(config.train.segment_length, config.train.batch_size)

    def check(self, config: Config) -> None:
        """Raise UserError if options exclude each other."""
