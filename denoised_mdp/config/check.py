"""Refuse combinations of options that are each in range but incompatible."""

from __future__ import annotations

from denoised_mdp.config.models import ModelConfig
from denoised_mdp.config.policies import OwnPolicy
from denoised_mdp.config.schema import Config
from denoised_mdp.envs.suites import check_reward, check_task, of_gymnasium
from denoised_mdp.errors import UserError
from denoised_mdp.models.structure import BLOCKS, CONVOLUTIONS, Table, convolutions_for


def check(config: Config) -> None:
    """Refuse unknown tasks and incompatible options; cap `env.episode_steps` at the task's own limit."""
    train, env = config.train, config.env
    try:
        limit = check_task(env.task, env.suite)
    except UserError as error:
        if env.suite == "gym":
            raise UserError(f"env.id={env.task}: {error}") from None
        hint = " A Gymnasium environment needs env=gym." if of_gymnasium(env.task) else ""
        raise UserError(f"env.task={env.task}: {error}{hint}") from None
    env.episode_steps = min(env.episode_steps, limit or env.episode_steps)
    check_reward(env.reward, env.suite)
    config.agent.check(config)
    if config.agent.has_model:
        _check_model(config)
    if config.replay.latents and (train.processes > 1 or not config.agent.has_model):
        raise UserError("replay.latents=true: only of a world model that learns in one process; set it to false.")
    if train.overlap and train.collect_workers == 0:
        raise UserError("train.overlap=true: the environments need their own process: set train.collect_workers=1.")
    if train.workers == "ray" and train.collect_workers == train.eval_workers == 0:
        raise UserError("train.workers=ray: set how many, by train.collect_workers or train.eval_workers.")
    if train.batch_size % train.processes:
        raise UserError(
            f"train.processes={train.processes}: train.batch_size={train.batch_size} must be a multiple of it, so that"
            " every process learns from as many segments."
        )
    if train.processes > 1 and ":" in train.device:
        raise UserError(
            f"train.device={train.device}: each of train.processes={train.processes} takes a GPU of its own: set"
            " train.device=cuda."
        )
    if train.processes > 1 and train.cuda_graph:
        raise UserError(f"train.processes={train.processes}: cannot be captured; set train.cuda_graph=false.")
    if env.episode_steps < env.action_repeat:
        raise UserError(f"env.episode_steps={env.episode_steps}: must be at least {env.action_repeat} (action_repeat).")
    _check_segments(config)
    if train.total_steps < train.prefill_steps:
        raise UserError(
            f"train.total_steps={train.total_steps}: must be at least train.prefill_steps={train.prefill_steps},"
            " which it includes; else nothing is learned."
        )


def _check_model(config: Config) -> None:
    """Refuse options of the world model, and warm-ups, that are invalid or incompatible."""
    model = config.model
    kind = model.convolutions or convolutions_for(config.env.size)
    if config.env.size not in CONVOLUTIONS[kind]:
        sizes = ", ".join(map(str, CONVOLUTIONS[kind]))
        raise UserError(
            f"env.size={config.env.size}: a world model with model.convolutions={kind} sees pictures of one of these"
            f" sizes: {sizes}."
        )
    try:
        table = Table(list(model.latents.values()))
        model.check(table)
    except ValueError as error:
        raise UserError(f"model={model.name}: {error}.") from None
    if "kl.free_nats_strategy" not in model.UNUSED:  # else the model weighs its KL itself
        _check_kl(model, table)
    if model.core == "block" and (model.norm != "rms" or model.depth % 2):
        raise UserError("model.core=block: needs model.norm=rms and an even model.depth.")
    if model.core == "block" and kind == "paper" and model.embed is not None and model.embed % BLOCKS:
        raise UserError(
            f"model.embed={model.embed}: with model.core=block and model.convolutions=paper, a multiple of {BLOCKS}."
        )
    for row in model.latents.values():
        if model.core == "block" and row.belief % BLOCKS:
            raise UserError(f"model.{row.name}.belief={row.belief}: with model.core=block, a multiple of {BLOCKS}.")
    _check_warmup("model.optimizer.", model.optimizer.name, model.optimizer.warmup)
    if isinstance(config.policy, OwnPolicy):
        _check_warmup("policy.", config.policy.optimizer, config.policy.warmup)


def _check_kl(model: ModelConfig, table: Table) -> None:
    """Refuse KL weights that are incompatible, or without effect on this table."""
    kl = model.kl
    if kl.dyn is not None and kl.free_nats_strategy == "B":
        raise UserError(
            f"model.kl.dyn={kl.dyn}: strategy B weighs both sides alike; use model.kl.free_nats_strategy=A."
        )
    if not table.free and (kl.relax != 1 or kl.free_nats_strategy == "B"):
        key, value, usual = ("relax", kl.relax, 1) if kl.relax != 1 else ("free_nats_strategy", "B", "A")
        raise UserError(
            f"model.kl.{key}={value} has no effect: no latent has free=true. Set model.kl.{key}={usual}. To take only"
            " the free nats from a latent, leave its free=true and set model.kl.free_nats=0."
        )
    noise = [row for row in model.latents.values() if not row.free]
    for row in model.latents.values() if kl.free_nats_strategy == "B" else ():
        for other in noise:
            named = "model.kl.beta" if other.beta == kl.beta else f"model.{other.name}.beta"
            if row.free and row.beta < other.beta:
                raise UserError(f"{named}={other.beta}: strategy B needs at most model.{row.name}.beta={row.beta}.")
            if other.beta != noise[0].beta:
                first = f"model.{noise[0].name}.beta={noise[0].beta}"
                raise UserError(f"{named}={other.beta}: strategy B needs the same as {first}.")


def _check_warmup(group: str, optimizer: str, warmup: int) -> None:
    if warmup and optimizer != "laprop":
        raise UserError(f"{group}warmup={warmup}: only laprop warms up; leave it out, or choose laprop.")


def _check_segments(config: Config) -> None:
    """Refuse a replay that could lack a whole segment of one episode when an update is due."""
    train, length = config.train, config.batch_spec.segment_length
    wants = f"train.segment_length={length}" if config.agent.has_model else f"agent={config.agent.name}"
    if length > config.episode_rows:
        raise UserError(
            f"{wants}: an episode of env.episode_steps={config.env.episode_steps} has only {config.episode_rows} rows,"
            f" and {length} are needed."
        )
    least = (length - 1) * config.turn_steps  # by then each environment has played one
    if train.prefill_steps < least:
        raise UserError(f"train.prefill_steps={train.prefill_steps}: one segment needs at least {least:,}.")
    # The latest rows may be the end of one episode and the start of the next, each one row too short.
    capacity, enough = config.replay.capacity, (2 * length - 1) * train.collect_envs
    if capacity is not None and capacity < enough:
        raise UserError(
            f"replay.capacity={capacity}: must be at least {enough}, so that there always is a segment of"
            f" {length} rows, as {wants} needs."
        )
