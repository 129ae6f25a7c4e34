"""Options of the training loop, the machine and the replay; see `schema`."""

from __future__ import annotations

from dataclasses import dataclass

from denoised_mdp.options import DEVICE, option

EVALUATED_AT_ONCE = 10
"""most episodes of an evaluation that are played side by side, so that the agent acts on a batch"""


@dataclass
class TrainConfig:
    """The training loop and the machine it runs on."""

    total_steps: int = option(1_000_000, "length of training in steps, prefill included", low=1)
    prefill_steps: int = option(5000, "steps with random actions before the first update; intervals start here", low=1)
    train_every: int = option(1000, "steps between two rounds of updates; the first follows the prefill", low=1)
    updates: int = option(100, "updates per round", low=1)
    first_updates: int | None = option(None, "updates of the first round; null: as many as of the others", low=1)
    policy_after: int = option(0, "updates of the representation before the policy begins to learn", low=0)
    batch_size: int = option(50, "segments per batch", low=1)
    segment_length: int = option(50, "rows per segment", low=2)
    collect_envs: int = option(1, "environments that collect side by side; each counts its own steps", low=1)
    collect_workers: int = option(0, "processes that run them; 0: the learner's", low=0)
    workers: str = option(
        "process",
        "what runs environments outside of the learner: process (of this machine), or ray: actors of the cluster that"
        " RAY_ADDRESS names, or of one on this machine",
        choices=("process", "ray"),
    )
    overlap: bool = option(False, "collect a round's steps while learning from those before; needs collect_workers")
    act_device: str = option(
        "learner",
        "where the agent acts while it collects: learner (where it learns), cpu, cuda or cuda:N",
        pattern=DEVICE.replace("auto", "learner"),
    )
    exploration_noise: float = option(
        0.3, "std of the noise added to actions while collecting; of Discrete ones, share drawn at random", low=0
    )
    eval_every: int = option(10_000, "steps between evaluations; 0: never", low=0)
    eval_episodes: int = option(10, "episodes per evaluation", low=1)
    eval_workers: int = option(0, "processes that run the environments of an evaluation; 0: the learner's", low=0)
    render_every: int = option(20_000, "steps between rendered videos; 0: never", low=0)
    probe_every: int = option(10_000, "steps between probes of the latents, logged as probe/*; 0: never", low=0)
    checkpoint_every: int = option(10_000, "steps between checkpoints; 0: only at the end", low=0)
    snapshot_every: int = option(0, "steps between snapshots: weights alone, all of them kept; 0: never", low=0)
    log_every: int = option(1000, "steps between log entries", low=1)
    log_to: str = option("none", "service that gets a copy of all metrics", choices=("none", "wandb", "mlflow"))
    device: str = option("auto", "auto, cpu, cuda or cuda:N", pattern=DEVICE)
    precision: str = option(
        "auto",
        "arithmetic of the large products (tf32: of a GPU's; a CPU takes float32)",
        choices=("auto", "float32", "tf32", "bf16"),
    )
    processes: int = option(
        1,
        "processes that share every update, each with its part of the batch; with torchrun, as many as it starts",
        low=1,
    )
    cuda_graph: bool = option(False, "on a GPU, record an update once and replay it instead of launching each kernel")
    threads: int | None = option(None, "CPU threads of the learner; null: choose", low=1, high=1024)
    deterministic: bool = option(False, "bit-identical repetition at some cost in speed")


@dataclass
class ReplayConfig:
    """The replay on disk."""

    capacity: int | None = option(None, "rows kept; null: all rows of the run, if episodes do not end early", low=1)
    memory: str = option(
        "auto",
        "where batches come from: disk; prefetch (disk, read while learning); device (a copy in its memory);"
        " auto (disk; with one GPU, its memory if half of it suffices; else with GPUs, prefetch)",
        choices=("auto", "disk", "prefetch", "device"),
    )
    latents: bool = option(
        False, "keep the latents of rows, in memory and checkpoints: segments begin from that of the row before"
    )
