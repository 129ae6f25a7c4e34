"""Options of the world models and of their optimizer; see `schema`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from denoised_mdp.config.policies import AGC, EPS, NORM, NORMS, OPTIMIZER, OPTIMIZERS, WARMUP
from denoised_mdp.models.structure import CONVOLUTIONS, LatentSpec, Table
from denoised_mdp.options import group, option


@dataclass
class KLConfig:
    """Weights of the KL terms: alpha times the sum of each latent's KL times its beta."""

    alpha: float | None = option(
        None, "weight of all KL terms; null: 1 at 64 pixels, 2 at 96, else by the number of pixels", above=0
    )
    beta: float = option(1.0, "weight of the noise latents' KL; smaller: a smaller, cleaner signal", above=0, high=1)
    free_nats: float = option(3.0, "the signal's KL below this many nats costs nothing more", low=0)
    free_nats_strategy: str = option(
        "A",
        "A: clamp all of the signal's KL; B: clamp only the bound's own share of it; mean: clamp its mean over a batch",
        choices=("A", "B", "mean"),
    )
    dyn: float | None = option(
        None, "weight of what teaches the priors (1 is usual); null: alpha times beta, as of the posteriors", above=0
    )
    warmup: int = option(0, "updates in which alpha grows from 0 to its value; 0: none", low=0)
    relax: float = option(
        1.0,
        "factor of the signal's weight after model.kl.relax_after updates: with noise in y, x may learn more",
        above=0,
        high=1,
    )
    relax_after: int = option(0, "updates before the signal's KL has the factor model.kl.relax", low=0)

    def refuse_schedule(self) -> None:
        """Raise ValueError if the weights change over time."""
        for key in ("warmup", "relax"):
            if getattr(self, key) != getattr(KLConfig, key):
                raise ValueError(f"its KL terms have no schedule: leave out model.kl.{key}")


@dataclass
class OptimizerConfig:
    """The optimizer of the world model."""

    name: str = option("adam", OPTIMIZER, choices=OPTIMIZERS)
    lr: float = option(6e-4, "learning rate of the world model", above=0)
    eps: float = option(1e-7, EPS, above=0)
    clip: float | None = option(100.0, "largest global gradient norm; null: no clipping", above=0)
    agc: float | None = option(None, AGC, above=0)
    warmup: int = option(0, WARMUP, low=0)


@dataclass
class ModelConfig:
    """The factorized world model."""

    name: str = option("2b", "structure (choose it with model=...)")
    kind: str = option("denoised", "what learns (choose it with model=...): see `MODELS`")
    latents: dict[str, LatentSpec] = group(dict, "the table: options of each latent (model.x.belief=60)")
    embed: int | None = option(1024, "width of the observation embedding; null: the flattened convolutions", low=1)
    pixel_range: float = option(0.5, "pixels enter the encoder between minus and plus this", above=0, high=1e3)
    norm: str = option("none", NORM, choices=NORMS)
    core: str = option(
        "gru",
        "gru, or block: a GRU of 8 blocks with layers of model.width around it, as DreamerV3; for large beliefs",
        choices=("gru", "block"),
    )
    width: int = option(256, "width of the layers around the block GRU, with model.core=block", low=1)
    convolutions: str | None = option(
        None,
        "paper (64 and 96 pixels); strided: padded, for smaller pictures too; pooled: 5x5 and maxima, as DreamerV3,"
        " slow without a GPU; null: the paper's where it has one, else strided",
        choices=tuple(CONVOLUTIONS),
    )
    target: str = option(
        "observation",
        "what the decoder learns to show: observation, or foreground (on black, by the exact matte)",
        choices=("observation", "foreground"),
    )
    depth: int = option(32, "channels of the first convolution", low=1)
    init: str = option(
        "pytorch",
        "initial weights; scaled: learns sooner; truncated: of DreamerV3",
        choices=("pytorch", "scaled", "truncated"),
    )
    reward_hidden: int = option(400, "width of the reward nets", low=1)
    reward_layers: int = option(2, "hidden layers of the reward nets", low=1)
    reward_std: float = option(1.0, "std of the reward's likelihood; smaller: the reward counts for more", low=1e-3)
    continuation: bool | None = option(None, "predict where episodes terminate; null: where the environment can")
    kl: KLConfig = group(KLConfig, "weights of the KL terms")
    optimizer: OptimizerConfig = group(OptimizerConfig, "optimizer of the world model")
    UNUSED: ClassVar[tuple[str, ...]] = ()
    """options above that this kind of model does not use, see `without_effect`"""
    UNUSED_OF_ROWS: ClassVar[tuple[str, ...]] = ()
    """options of each latent that this kind of model does not use"""

    def check(self, table: Table) -> None:
        """Raise ValueError if this kind of model cannot have such a table."""


@dataclass
class RePoConfig(ModelConfig):
    """RePo: rewards and a bound on the KL, no reconstruction. Weights and free nats of the KL have no effect."""

    kind: str = option("repo", "what learns (choose it with model=...): see `MODELS`")
    embed: int | None = option(None, "width of the observation embedding; null: the flattened convolutions", low=1)
    pixel_range: float = option(1.0, "pixels enter the encoder between minus and plus this", above=0, high=1e3)
    target: str = option(
        "observation", "observation: the decoder of model=repo is for viewing only", pattern="observation"
    )
    reward_hidden: int = option(200, "width of the reward nets", low=1)
    reward_layers: int = option(3, "hidden layers of the reward nets", low=1)
    optimizer: OptimizerConfig = group(lambda: OptimizerConfig(lr=3e-4, eps=1e-8), "optimizer of the world model")
    kl_limit: float = option(3.0, "nats per step that the KL may have", above=0)
    kl_balance: float = option(5 / 6, "share of the KL's gradient that teaches the prior", low=0, high=1)
    initial_beta: float = option(1e-5, "the KL's weight at the start", above=0)
    dual_lr: float = option(
        1e-4,
        "log beta moves by at most this per update; for a run of few updates raise it to about 10 / updates, or"
        " initial_beta to 0.01-0.1: else the limit never acts",
        above=0,
    )
    decoder: bool = option(True, "learn a decoder, for viewing only: half the cost of an update")
    UNUSED = ("kl.alpha", "kl.beta", "kl.free_nats", "kl.free_nats_strategy", "kl.dyn", "kl.relax_after")
    UNUSED_OF_ROWS = ("beta", "free")

    def check(self, table: Table) -> None:
        """Refuse a schedule of the KL's weight, which a dual variable sets; see `ModelConfig.check`."""
        self.kl.refuse_schedule()


@dataclass
class TIAConfig(ModelConfig):
    """TIA: a stream for the task and one that must not know the reward; each has free nats of its own."""

    kind: str = option("tia", "what learns (choose it with model=...): see `MODELS`")
    target: str = option(
        "observation", "observation: the decoders of model=tia show the whole picture", pattern="observation"
    )
    core: str = option("gru", "gru: the streams of model=tia have no blocks", pattern="gru")
    embed: int | None = option(490, "width of the observation embeddings; null: the flattened convolutions", low=1)
    depth: int = option(24, "channels of the first convolution", low=1)
    kl: KLConfig = group(lambda: KLConfig(alpha=1.0, free_nats_strategy="mean"), "weights of the KL terms")
    adversary_weight: float = option(2e4, "weight of y's ignorance of the reward: a term like the picture's", low=0)
    adversary_steps: int = option(20, "steps of the adversary, y's reward net, in each update", low=1)
    adversary_lr: float = option(6e-4, "learning rate of the adversary", above=0)
    alone_weight: float = option(1.5, "weight of the picture that y paints alone", low=0)

    def check(self, table: Table) -> None:
        """Require separate streams x and y, and KL terms without a schedule or strategy B; see `ModelConfig.check`."""
        self.kl.refuse_schedule()
        if self.kl.free_nats_strategy == "B":
            raise ValueError("its streams have no noise to regularize: model.kl.free_nats_strategy is A or mean")
        rows = table.rows
        apart = not any(row.parents or row.reward_sees for row in rows.values())
        if not (table.names == ("x", "y") and apart and rows["x"].seen_by_policy and not rows["y"].rewarded):
            raise ValueError("it has latents x and y, which do not read each other; the policy sees x, x is rewarded")
        if rows["y"].seen_by_policy:
            raise ValueError("the policy does not see y")
