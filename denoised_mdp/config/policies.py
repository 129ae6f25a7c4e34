"""Options of the policies; see `schema`."""

from __future__ import annotations

from dataclasses import dataclass

from denoised_mdp.options import option

NORMS = ("none", "rms")
INITIAL_STD = "std of an untrained actor before squashing and before the least std is added (continuous actions only)"
NORM = "after every hidden layer; none: ELU, after convolutions ReLU; rms: RMSNorm and SiLU, which allow larger rates"
OPTIMIZERS = ("adam", "laprop", "muon")
OPTIMIZER = "adam; laprop: momentum of normalized gradients; muon: orthogonalized momentum"
EPS = "added to the root of the gradients' second moment"
AGC = "largest norm of each tensor's gradient, as a share of the tensor's own (0.3 is usual); null: any"
WARMUP = "updates over which laprop's learning rate rises from 0"


@dataclass
class BackpropConfig:
    """Policy by backpropagation through the learned dynamics."""

    name: str = option("backprop", "how the policy learns (choose it with policy=...)", choices=("backprop",))
    hidden: int = option(400, "width of the actor and the value net", low=1)
    actor_layers: int = option(4, "hidden layers of the actor", low=1)
    initial_std: float = option(5.0, INITIAL_STD, above=0, high=1e3)
    min_std: float = option(1e-4, "least std of the actor before squashing (continuous actions only)", low=0)
    norm: str = option("none", NORM, choices=NORMS)
    value: str = option(
        "gaussian",
        "the value net says a mean, or (twohot) which of 255 bins: for returns of any size",
        choices=("gaussian", "twohot"),
    )
    value_layers: int = option(3, "hidden layers of the value net", low=1)
    value_nets: int = option(
        1, "independent value nets, of which the lowest counts: the actor must deceive all of them", low=1, high=10
    )
    horizon: int = option(15, "imagined steps", low=2)
    gamma: float = option(0.99, "discount per action", above=0, high=1)
    lambda_: float = option(0.95, "mixture of the lambda-return", low=0, high=1)
    discount_weights: bool = option(True, "later imagined steps count less, gamma each, in both losses")
    entropy: float = option(0.0, "weight of the actor's entropy; keeps actions away from their limits", low=0)
    return_scale: str = option(
        "none",
        "percentile: divide returns by the range of most of them, if above 1; one entropy then fits all tasks",
        choices=("none", "percentile"),
    )
    slow_value: float = option(
        0.0, "rate of a slow copy of the value net, to whose values it is also drawn; 0: none", low=0, high=1
    )
    imagine_rows: int | None = option(None, "imagine from the last so many rows of each segment; null: all", low=1)
    imagined_value: float = option(1.0, "weight of the value net's loss on imagined returns", low=0)
    replay_value: float = option(0.0, "weight of the value net's loss on returns of the stored rows themselves", low=0)
    imagined_noise: float = option(
        0.0,
        "noise of imagined actions, as train.exploration_noise is of real ones: a std, or of choices a probability",
        low=0,
    )
    actor_lr: float = option(8e-5, "learning rate of the actor", above=0)
    value_lr: float = option(8e-5, "learning rate of the value net", above=0)
    late_lr: float = option(1.0, "factor of both rates after late_after updates of the policy", above=0, high=1)
    late_imagined_value: float = option(1.0, "factor of imagined_value after late_after updates", low=0)
    late_after: int = option(0, "updates of the policy after which these factors count", low=0)
    eps: float = option(1e-7, EPS, above=0)
    clip: float | None = option(100.0, "largest gradient norm of each net; null: no clipping", above=0)
    optimizer: str = option("adam", OPTIMIZER, choices=OPTIMIZERS)
    agc: float | None = option(None, AGC, above=0)
    warmup: int = option(0, WARMUP, low=0)


@dataclass
class ReinforceConfig(BackpropConfig):
    """Policy by the likelihood-ratio gradient in imagination; defaults of DreamerV3's behaviour."""

    name: str = option("reinforce", "how the policy learns (choose it with policy=...)", choices=("reinforce",))
    initial_std: float = option(1.0, INITIAL_STD, above=0, high=1e3)
    value: str = option(
        "twohot",
        "the value net says a mean, or (twohot) which of 255 bins: for returns of any size",
        choices=("gaussian", "twohot"),
    )
    gamma: float = option(1 - 1 / 333, "discount per action", above=0, high=1)
    entropy: float = option(3e-4, "weight of the actor's entropy; keeps actions away from their limits", low=0)
    return_scale: str = option(
        "percentile",
        "percentile: divide returns by the range of most of them, if above 1; one entropy then fits all tasks",
        choices=("none", "percentile"),
    )
    slow_value: float = option(
        0.02, "rate of a slow copy of the value net, to whose values it is also drawn; 0: none", low=0, high=1
    )


@dataclass
class SACConfig:
    """Soft actor-critic on the signal latent."""

    name: str = option("sac", "how the policy learns (choose it with policy=...)", choices=("sac",))
    hidden: int = option(400, "width of the actor and the critics", low=1)
    actor_layers: int = option(4, "hidden layers of the actor", low=1)
    initial_std: float = option(5.0, INITIAL_STD, above=0, high=1e3)
    norm: str = option("none", NORM, choices=NORMS)
    critic_layers: int = option(3, "hidden layers of each critic", low=1)
    gamma: float = option(0.99, "discount per action", above=0, high=1)
    tau: float = option(0.005, "rate at which the target critics follow", above=0, high=1)
    actor_lr: float = option(3e-4, "learning rate of the actor", above=0)
    critic_lr: float = option(3e-4, "learning rate of the critics", above=0)
    temperature_lr: float = option(3e-4, "learning rate of the temperature", above=0)
    initial_temperature: float = option(1.0, "weight of the entropy at the start", above=0)
    target_entropy: float | None = option(
        None, "entropy aimed at; null: minus the number of actions; of Discrete actions, half of the largest"
    )
    eps: float = option(1e-7, EPS, above=0)
    actor_clip: float | None = option(None, "largest gradient norm of the actor; null: no clipping", above=0)
    optimizer: str = option("adam", OPTIMIZER, choices=OPTIMIZERS)
    agc: float | None = option(None, AGC, above=0)
    warmup: int = option(0, WARMUP, low=0)


OwnPolicy = BackpropConfig | SACConfig
"""options of this package's policies and of their subclasses; other policies may use the same names differently"""
