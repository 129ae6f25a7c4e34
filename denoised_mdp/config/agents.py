"""Options of the agents, and the batches that each needs from the replay; see `schema`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from denoised_mdp.config.policies import OwnPolicy
from denoised_mdp.errors import UserError
from denoised_mdp.options import option

if TYPE_CHECKING:
    from denoised_mdp.config.schema import Config


@dataclass(frozen=True)
class BatchSpec:
    """The batches that an agent needs from the replay: `batch_size` segments of `segment_length` rows.

    lead: number of rows before each segment. If its episode has fewer, its first row is repeated. In an environment
    that can terminate, rows of the previous episode come instead; `is_first` marks the boundary.
    """

    segment_length: int
    batch_size: int
    lead: int = 0


@dataclass
class AgentConfig:
    """A world model with a policy: ``model.*`` and ``policy.*`` are its options. The base of every agent's options."""

    name: str = option("world_model", "what learns and acts (choose it with agent=...)", choices=("world_model",))
    has_model: ClassVar[bool] = True
    """the agent learns a world model, so the groups ``model`` and ``policy`` apply"""

    def batch_spec(self, config: Config) -> BatchSpec:
        """The batches that an update needs."""
        return BatchSpec(config.train.segment_length, config.train.batch_size)

    @property
    def cycle(self) -> int:
        """Number of updates after which the work repeats, for timing."""
        return 1

    def check(self, config: Config) -> None:
        """Raise UserError if options exclude each other."""
        policy = vars(config.policy) if isinstance(config.policy, OwnPolicy) else {}
        for name in ("imagined_value", "late_imagined_value"):
            if policy.get(name) == policy.get("replay_value") == 0:
                raise UserError(f"policy.{name}=0: with policy.replay_value=0, the value net would learn nothing.")


@dataclass
class PixelSACConfig(AgentConfig):
    """Soft actor-critic on stacks of frames; the options that CURL, DBC and PI-SAC share."""

    name: str = option("sac_pixels", "what learns and acts (choose it with agent=...)", choices=("sac_pixels",))
    has_model: ClassVar[bool] = False
    compares: ClassVar[str] = ""
    """what it compares within a batch, if anything"""
    frames: int = option(3, "stacked frames", low=1)
    n_step: int = option(1, "rewards of a target before it bootstraps", low=1)
    crop: int | None = option(
        None, "side of the random crops to learn from; acting uses the center crop; null: none", low=24
    )
    shift: int = option(0, "random shift of the images, up to this many pixels (DrQ-v2: 4); 0: none", low=0)
    features: int = option(50, "size of the encoder's feature vector", low=1)
    depth: int = option(32, "channels of each convolution", low=1)
    hidden: int = option(1024, "width of the actor and the critics", low=1)
    gamma: float = option(0.99, "discount per action", above=0, high=1)
    actor_lr: float = option(1e-3, "learning rate of the actor", above=0)
    critic_lr: float = option(1e-3, "learning rate of the critics and the encoder", above=0)
    temperature_lr: float = option(1e-4, "learning rate of the temperature", above=0)
    initial_temperature: float = option(0.1, "weight of the entropy at the start", above=0)
    target_entropy: float | None = option(None, "entropy aimed at; null: minus the number of actions")
    tau: float = option(0.01, "rate at which the target critics follow", above=0, high=1)
    encoder_tau: float = option(0.05, "rate at which the target encoder follows", above=0, high=1)
    actor_every: int = option(2, "update the actor and the targets once in this many updates", low=1)

    def batch_spec(self, config: Config) -> BatchSpec:
        """Transitions of `n_step` rewards, preceded by the frames that are stacked with the first."""
        return BatchSpec(self.n_step + 1, config.train.batch_size, lead=self.frames - 1)

    @property
    def cycle(self) -> int:
        """See `AgentConfig.cycle`."""
        return self.actor_every

    def check(self, config: Config) -> None:
        """See `AgentConfig.check`."""
        if self.crop is not None and self.crop >= config.env.size:
            raise UserError(f"agent.crop={self.crop}: must be smaller than env.size={config.env.size}.")
        if self.crop is not None and self.shift:
            raise UserError(f"agent.shift={self.shift}: give a crop or a shift, not both (agent.crop=null).")
        if config.train.processes > 1:
            raise UserError(f"train.processes={config.train.processes}: agent={self.name} learns in one process.")
        if config.train.policy_after and self.name == "sac_pixels":  # subclasses may have another loss
            raise UserError(
                f"train.policy_after={config.train.policy_after}: agent={self.name} learns nothing before its policy"
                " does; set it to 0."
            )
        if self.compares and config.train.batch_size < 2:
            raise UserError(
                f"train.batch_size=1: agent={self.name} compares {self.compares} of a batch; give at least 2."
            )
        if config.train.cuda_graph:
            raise UserError(f"train.cuda_graph=true: agent={self.name} cannot be captured; set it to false.")


@dataclass
class CURLConfig(PixelSACConfig):
    """CURL: pixel SAC whose encoder also learns to recognize another crop of the same picture."""

    name: str = option("curl", "what learns and acts (choose it with agent=...)", choices=("curl",))
    compares: ClassVar[str] = "pictures"
    crop: int | None = option(84, "side of the random crops to learn from; acting uses the center crop", low=24)
    contrastive_lr: float = option(1e-3, "learning rate of the encoder for the contrastive loss", above=0)

    def check(self, config: Config) -> None:
        """See `AgentConfig.check`."""
        super().check(config)
        if config.train.policy_after:
            raise UserError(
                f"train.policy_after={config.train.policy_after}: agent=curl compares pictures by its target encoder,"
                " which follows only while the policy learns; set it to 0."
            )
        if self.crop is None:
            raise UserError("agent.crop=null: agent=curl compares random crops; give a size below env.size.")


@dataclass
class DBCConfig(PixelSACConfig):
    """DBC: pixel SAC whose encoder also learns distances of a bisimulation metric."""

    name: str = option("dbc", "what learns and acts (choose it with agent=...)", choices=("dbc",))
    compares: ClassVar[str] = "pictures"
    members: int = option(1, "size of the ensemble of transition models", low=1)
    probabilistic: bool = option(False, "these models predict a std as well")
    model_hidden: int = option(512, "width of the models of features and reward", low=1)
    metric_weight: float = option(0.5, "weight of the distances' loss beside that of the models", low=0)
    encoder_lr: float = option(1e-3, "learning rate of the encoder for both losses", above=0)
    model_lr: float = option(1e-3, "learning rate of the models", above=0)

    def check(self, config: Config) -> None:
        """See `AgentConfig.check`."""
        super().check(config)
        if self.n_step != 1:
            raise UserError(f"agent.n_step={self.n_step}: agent=dbc compares single steps; leave it out.")


@dataclass
class PISACConfig(PixelSACConfig):
    """PI-SAC: pixel SAC whose encoder also learns a compressed code that predicts the future three decisions ahead."""

    name: str = option("pisac", "what learns and acts (choose it with agent=...)", choices=("pisac",))
    compares: ClassVar[str] = "futures"
    hidden: int = option(256, "width of the actor and the critics", low=1)
    actor_lr: float = option(3e-4, "learning rate of the actor", above=0)
    critic_lr: float = option(3e-4, "learning rate of the critics and the encoder", above=0)
    temperature_lr: float = option(3e-4, "learning rate of the temperature", above=0)
    initial_temperature: float = option(1.0, "weight of the entropy at the start", above=0)
    target_entropy: float | None = option(None, "entropy aimed at; null: minus half the number of actions")
    tau: float = option(0.005, "rate at which the target critics follow", above=0, high=1)
    encoder_tau: float = option(0.005, "rate at which the target encoder follows", above=0, high=1)
    actor_every: int = option(1, "update the actor and the targets once in this many updates", low=1)
    code: int = option(50, "size of a code", low=1)
    code_hidden: int = option(128, "width of the code networks", low=1)
    beta: float = option(0.01, "weight of the code's compression", low=0)
    predictive_lr: float = option(3e-4, "learning rate of the encoder and the code networks", above=0)
    future_tau: float = option(0.05, "rate at which the target encoder of future frames follows", above=0, high=1)

    def batch_spec(self, config: Config) -> BatchSpec:
        """At least five rows: the futures lie three and four decisions after the present."""
        return BatchSpec(max(self.n_step + 1, 5), config.train.batch_size, lead=self.frames - 1)
