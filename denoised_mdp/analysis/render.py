"""Videos and stills of signal and noise (Wang et al. 2022, Figures 4 and 5).

Each row decodes the latents of one recorded episode with some of them frozen at their most typical value: what
*changes* in a row is what the moving latents model.
"""

from __future__ import annotations

import functools
import io
import itertools
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import gymnasium as gym
import imageio.v2 as imageio
import numpy as np
import torch
from PIL import Image

from denoised_mdp.agents.base import Agent
from denoised_mdp.agents.world_model_agent import WorldModelAgent
from denoised_mdp.analysis.data import decode
from denoised_mdp.analysis.sheets import SheetRow, contact_sheet, stretched, video
from denoised_mdp.errors import UserError, one_line
from denoised_mdp.evaluation import evaluate, evaluation_seeds
from denoised_mdp.files import whole_mp4
from denoised_mdp.models.latent import Latent
from denoised_mdp.models.networks import float_to_images
from denoised_mdp.progress import track
from denoised_mdp.rollout import Episode
from denoised_mdp.run.environments import environment_maker, warn_without_clips
from denoised_mdp.run.folder import RunFolder, check_output, output_file
from denoised_mdp.run.load import load_run

STEPS = 250
"""actions per rendered episode"""
LEFT_OUT = ("reconstruction", "swap")
"""rows that a hero image leaves out"""
FPS = 25
HERO_SECONDS = 4


def can_render(agent: Agent) -> bool:
    """Whether the agent has a world model that decodes its latents."""
    return isinstance(agent, WorldModelAgent) and agent.decodes


def usual(latent: Latent, name: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Belief and state of one latent [n, ...] at the step nearest to its mean, measured in standard deviations."""
    features = latent.features(name).float()  # [n, F]
    distance = ((features - features.mean(0)) / features.std(0, correction=0).clamp(min=1e-6)).square().sum(-1)  # [n]
    step = int(distance.argmin())
    belief, state = latent[name]
    return belief[step], state[step]


def _images(agent: WorldModelAgent, latent: Latent, draw: Callable[[Latent], torch.Tensor] | None = None) -> np.ndarray:
    """The images from `decode`, uint8 [n, H, W, 3]."""
    return float_to_images(decode(agent, latent, draw)).numpy()


def rows(agent: WorldModelAgent, episode: Episode, other: Episode) -> list[SheetRow]:
    """All rows of `episode`; its swap takes the noise from the episode `other`.

    Noise is the latents that the policy does not see. A model without any (Dreamer) has only observation and
    reconstruction. One that paints signal and noise separately (TIA) shows its layers in place of their rows.
    """
    model, latent, names = agent.world_model, episode.latent, episode.latent.layout.names
    still = {name: usual(latent, name) for name in names}
    noise = model.table.noise
    seen = [name for name in names if name not in noise]
    signal = " and ".join(seen)

    of = "" if agent.world_model.target == "observation" else f"of the {agent.world_model.target}, "

    def hold(*held: str) -> np.ndarray:
        return _images(agent, latent.replace(**{name: still[name] for name in held}))

    out = [
        SheetRow("observation", "what the camera sees", episode.observation),
        SheetRow("reconstruction", f"{of}from all latents", _images(agent, latent)),
    ]
    if not noise:
        return out
    what = " and ".join(noise)
    for title, meaning in model.layers.items():
        out.append(SheetRow(title, meaning, _images(agent, latent, functools.partial(model.show, title))))
    if not model.layers:
        moves = "moves" if len(seen) == 1 else "move"
        out.append(SheetRow("signal", f"only {signal} {moves}: what the policy sees", hold(*noise)))
        for name in noise:
            title = "noise" if len(noise) == 1 else f"noise {name}"
            held = hold(*(other for other in names if other != name))
            out.append(SheetRow(title, f"only {name} moves: hidden from the policy", held))
    steps = torch.arange(len(latent.belief)) % len(other.latent.belief)
    borrowed = other.latent.map(lambda tensor: tensor[steps])
    swapped = latent.replace(**{name: borrowed[name] for name in noise})
    out.append(SheetRow("swap", f"{signal} of this episode, {what} of the other", _images(agent, swapped)))
    return out


def write(
    agent: WorldModelAgent, episodes: Sequence[Episode], stem: Path, hero: bool = False, shown: int | None = None
) -> list[Path]:
    """Write `stem`.png and `stem`.mp4 for recorded episodes; each swaps with the next. Returns the paths.

    shown: how many episodes to show, from the first (None: all); the others serve only for the swap. hero: instead make
    an image for the top of a page, `stem`.png and a small animated `stem`.webp of the first episode, with few, large
    pictures at full contrast.
    """
    paths = files(stem, hero)
    decoded = track(range(1 if hero else shown or len(episodes)), "decoding", "episodes", delay=1)
    groups = [rows(agent, episodes[i], episodes[(i + 1) % len(episodes)]) for i in decoded]
    if hero:
        kept = [[row for row in group if row.title not in LEFT_OUT] for group in groups]
        # a model without noise keeps its reconstruction, its only decoded row
        groups = [stretched(few if len(few) > 1 else group) for few, group in zip(kept, groups, strict=True)]
    try:
        with output_file(paths[0]) as unfinished:
            sheet = contact_sheet(groups, columns=4, side=192) if hero else contact_sheet(groups)
            Image.fromarray(sheet).save(unfinished, format="png", compress_level=4)  # half the usual time, 5 % larger
        movie = _animation(groups) if hero else _movie(groups)
        with output_file(paths[1]) as unfinished:
            unfinished.write_bytes(movie)
    except (OSError, ValueError) as error:
        raise UserError(f"{paths[0]} and {paths[1].name} cannot be written ({error}).") from error
    return paths


def files(stem: Path, hero: bool = False) -> list[Path]:
    """The paths of the still and the animation; a .png, .webp or .mp4 suffix is not part of the stem.

    Raises:
        UserError: the stem has no name, or is a folder.
    """
    stem = stem.with_suffix("") if stem.suffix in (".png", ".webp", ".mp4") else stem
    if stem.name in ("", "..") or stem.is_dir():  # beside a folder, nobody would look for them
        raise UserError(f"--output={stem}: name the pictures, e.g. {stem / 'pictures'}.")
    return [stem.with_name(stem.name + suffix) for suffix in (".png", ".webp" if hero else ".mp4")]


def _movie(groups: Sequence[Sequence[SheetRow]]) -> bytes:
    """The moving sheet as H.264.

    Raises:
        UserError: there is no working ffmpeg, or it wrote an incomplete file.
    """
    options = {"codec": "libx264", "macro_block_size": 2, "output_params": ["-crf", "20", "-preset", "veryfast"]}
    movie = io.BytesIO()
    try:
        with imageio.get_writer(movie, format="mp4", fps=FPS, **options) as writer:
            for frame in video(groups):
                writer.append_data(frame)
    except RuntimeError as error:  # imageio-ffmpeg finds no ffmpeg
        raise UserError(f"No video can be encoded: {one_line(error, 200)}") from error
    if not whole_mp4(movie.getvalue()):  # imageio ignores ffmpeg's exit status
        raise UserError(f"ffmpeg wrote no whole video. Is {tempfile.gettempdir()} full?")
    return movie.getvalue()


def _animation(groups: Sequence[Sequence[SheetRow]]) -> bytes:
    """The first seconds of the moving sheet as a WebP that loops in a page."""
    frames = map(Image.fromarray, itertools.islice(video(groups, side=256), HERO_SECONDS * FPS))
    movie = io.BytesIO()
    options = {"save_all": True, "loop": 0, "duration": round(1000 / FPS), "quality": 60, "method": 4}
    next(frames).save(movie, format="webp", append_images=frames, **options)
    return movie.getvalue()


def render(
    agent: Agent,
    make_environment: Callable[[], gym.Env],
    seeds: Sequence[int],
    stem: Path,
    *,
    steps: int | None = STEPS,
    explore: float | None,
    hero: bool = False,
    shown: int | None = None,
) -> list[Path]:
    """Play one episode per seed and `write` them; with `explore`, the agent acts as in collection."""
    if not can_render(agent):
        if isinstance(agent, WorldModelAgent):
            raise UserError("This model has no decoder: train one, with model.decoder=true.")
        raise UserError(f"agent={agent.config.agent.name} has no world model, whose latents could be rendered.")
    played = evaluate(agent, make_environment, seeds, record=len(seeds), max_steps=steps, explore=explore)
    return write(agent, played.episodes, stem, hero=hero, shown=shown)


def render_run(
    run: Path | str,
    output: Path | str | None = None,
    *,
    episodes: int = 2,
    steps: int | None = STEPS,
    explore: bool = True,
    split: str = "train",
    checkpoint: int | str | None = None,
    device: str = "auto",
    seed: int | None = None,
    hero: bool = False,
) -> list[Path]:
    """Render held-out episodes of a run's checkpoint; returns the files written.

    output: a path without suffix (default: videos/<split>_<step> in the run folder, with _seed<seed> for another seed
    and _hero for a hero). episodes: how many to show; a single one swaps with another that is not shown. steps: actions
    per episode (None: whole episodes). explore: act as in collection, which shows more of what the body can do than
    acting without sampling. seed: of the episodes (default: the run's own). hero: see `write`.
    """
    config, agent, step = load_run(run, checkpoint=checkpoint, device=device)
    others = "" if seed in (None, config.seed) else f"_seed{seed}"  # other episodes
    own = RunFolder(run).videos / f"{split}_{step:09d}{others}{'_hero' if hero else ''}"
    stem = own if output is None else Path(output)
    for path in files(stem, hero):
        check_output(path)
    warn_without_clips(run, config, split)
    seeds = evaluation_seeds(config.seed if seed is None else seed, max(2, episodes))
    explore = config.train.exploration_noise if explore else None
    make = environment_maker(config, split)
    return render(agent, make, seeds, stem, steps=steps, explore=explore, hero=hero, shown=episodes)
