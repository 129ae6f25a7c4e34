"""Videos and pictures of signal and noise (Wang et al. 2022, Figures 4 and 5).

Each row decodes the latents of one recorded episode with some of them frozen: what *changes* in a row is what the
moving latents model.
"""

from __future__ import annotations

import functools
import io
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import gymnasium as gym
import imageio.v2 as imageio
import numpy as np
import torch
from PIL import Image, ImageDraw, ImageFont

from denoised_mdp.agents.world_model_agent import WorldModelAgent
from denoised_mdp.errors import UserError
from denoised_mdp.evaluation import evaluate, evaluation_seeds
from denoised_mdp.models.latent import Latent
from denoised_mdp.models.networks import float_to_images
from denoised_mdp.progress import track
from denoised_mdp.rollout import Episode
from denoised_mdp.run.environments import environment_maker
from denoised_mdp.run.folder import output_file
from denoised_mdp.run.load import load_run

FROZEN_AT = 0.5
"""fraction of the episode at which latents are frozen"""
STEPS = 250
"""actions per rendered episode"""
BACKGROUND, INK, FAINT = (18, 20, 24), (238, 240, 244), (150, 156, 166)


@dataclass
class Row:
    """One row of a picture: a title, what it means, and a frame per step, uint8 [n, H, W, 3]."""

    title: str
    meaning: str
    frames: np.ndarray


@torch.no_grad()
def decode(
    agent: WorldModelAgent, latent: Latent, draw: Callable[[Latent], torch.Tensor] | None = None, chunk: int = 256
) -> np.ndarray:
    """Latents [n, ...] -> images uint8 [n, H, W, 3]. draw: instead of `WorldModel.decode`."""
    draw, frames = draw or agent.world_model.decode, []
    for begin in range(0, len(latent.belief), chunk):
        part = latent.map(lambda tensor, begin=begin: tensor[begin : begin + chunk].to(agent.device))
        frames.append(float_to_images(draw(part)).cpu().numpy())
    return np.concatenate(frames)


def rows(agent: WorldModelAgent, episode: Episode, other: Episode) -> list[Row]:
    """All rows of `episode`; its swap takes the noise from the episode `other`.

    Noise is the latents that the policy does not see. A model without any (Dreamer) has no noise row and no swap. One
    that paints signal and noise apart (TIA) shows these layers.
    """
    model, latent, names = agent.world_model, episode.latent, episode.latent.layout.names
    still = latent.map(lambda tensor: tensor[int(FROZEN_AT * (len(tensor) - 1))])
    noise = model.table.noise
    signal = " and ".join(name for name in names if name not in noise)

    of = "" if agent.world_model.target == "observation" else f"of the {agent.world_model.target}, "

    def hold(*held: str) -> np.ndarray:
        return decode(agent, latent.replace(**{name: still[name] for name in held}))

    out = [
        Row("observation", "what the camera sees", episode.observation),
        Row("reconstruction", f"{of}from all latents", decode(agent, latent)),
    ]
    if not noise:
        return out
    what = " and ".join(noise)
    for title, meaning in model.layers.items():
        out.append(Row(title, meaning, decode(agent, latent, functools.partial(model.show, title))))
    if not model.layers:
        out.append(Row("signal", f"{signal} moves, {what} held still", hold(*noise)))
        for name in noise:
            others = [n for n in names if n != name]
            title = "noise" if len(noise) == 1 else f"noise {name}"
            out.append(Row(title, f"{name} moves, {' and '.join(others)} held still", hold(*others)))
    steps = torch.arange(len(latent.belief)) % len(other.latent.belief)
    borrowed = other.latent.map(lambda tensor: tensor[steps])
    swapped = latent.replace(**{name: borrowed[name] for name in noise})
    out.append(Row("swap", f"{signal} of this episode, {what} of the other", decode(agent, swapped)))
    return out


def _font(size: int) -> ImageFont.ImageFont | ImageFont.FreeTypeFont:
    return ImageFont.load_default(size)


def _enlarge(frame: np.ndarray, side: int) -> Image.Image:
    return Image.fromarray(np.ascontiguousarray(frame)).resize((side, side), Image.Resampling.BICUBIC)


def contact_sheet(groups: Sequence[Sequence[Row]], columns: int = 10, side: int = 112) -> np.ndarray:
    """A still picture: one line per row, `columns` moments of the episode from left to right.

    groups: the rows of each episode. Returns uint8 [height, width, 3].
    """
    label, gap, head = 208, 4, 30
    lines = sum(len(group) for group in groups)
    width = label + columns * (side + gap) + gap
    height = len(groups) * head + lines * (side + gap) + 2 * gap
    sheet = Image.new("RGB", (width, height), BACKGROUND)
    draw, top = ImageDraw.Draw(sheet), gap
    for number, group in enumerate(groups, 1):
        steps = np.linspace(0, len(group[0].frames) - 1, columns + 1).astype(int)[1:]
        draw.text((12, top + 6), f"episode {number}", INK, _font(15))
        for i, step in enumerate(steps):
            center = label + i * (side + gap) + side // 2
            draw.text((center, top + 8), f"t = {step}", FAINT, _font(13), anchor="ma")
        top += head
        for row in group:
            draw.text((12, top + side // 2 - 18), row.title, INK, _font(18))
            _wrapped_text(draw, (12, top + side // 2 + 6), row.meaning, label - 24)
            for i, step in enumerate(steps):
                sheet.paste(_enlarge(row.frames[step], side), (label + i * (side + gap), top))
            top += side + gap
    return np.asarray(sheet)


def _wrapped_text(draw: ImageDraw.ImageDraw, position: tuple[int, int], text: str, width: int) -> None:
    """Draw small text with line breaks."""
    lines, font = [""], _font(12)
    for word in text.split():
        longer = f"{lines[-1]} {word}".strip()
        if draw.textlength(longer, font) > width:
            lines.append(word)
        else:
            lines[-1] = longer
    draw.multiline_text(position, "\n".join(lines), FAINT, font)


def video(groups: Sequence[Sequence[Row]], side: int = 192) -> Iterator[np.ndarray]:
    """A moving picture: rows of an episode side by side, episodes below each other.

    Yields frames uint8 [height, width, 3] with even sides, as H.264 requires.
    """
    gap, head = 4, 28
    width = gap + max(len(group) for group in groups) * (side + gap)
    height = head + len(groups) * (side + gap) + gap
    canvas = Image.new("RGB", (width + width % 2, height + height % 2), BACKGROUND)
    draw = ImageDraw.Draw(canvas)
    for i, row in enumerate(groups[0]):
        draw.text((gap + i * (side + gap) + side // 2, 5), row.title, INK, _font(16), anchor="ma")
    length = min(len(group[0].frames) for group in groups)
    for t in track(range(length), "writing the video", "frames", delay=1):
        frame = canvas.copy()
        for j, group in enumerate(groups):
            for i, row in enumerate(group):
                frame.paste(_enlarge(row.frames[t], side), (gap + i * (side + gap), head + j * (side + gap)))
        yield np.asarray(frame)


def write(agent: WorldModelAgent, episodes: Sequence[Episode], stem: Path, fps: int = 25) -> list[Path]:
    """Write `stem`.mp4 and `stem`.png for recorded episodes; each swaps with the next. Returns the paths."""
    stem = stem.with_suffix("") if stem.suffix in (".png", ".mp4") else stem
    decoded = track(range(len(episodes)), "decoding", "episodes", delay=1)
    groups = [rows(agent, episodes[i], episodes[(i + 1) % len(episodes)]) for i in decoded]
    try:
        stem.parent.mkdir(parents=True, exist_ok=True)
        paths = [stem.with_name(stem.name + ".png"), stem.with_name(stem.name + ".mp4")]
        with output_file(paths[0]) as unfinished:
            Image.fromarray(contact_sheet(groups)).save(unfinished, format="png")
        options = {"codec": "libx264", "macro_block_size": 2, "output_params": ["-crf", "20", "-preset", "veryfast"]}
        movie = io.BytesIO()
        with imageio.get_writer(movie, format="mp4", fps=fps, **options) as writer:
            for frame in video(groups):
                writer.append_data(frame)
        with output_file(paths[1]) as unfinished:
            unfinished.write_bytes(movie.getvalue())
    except (OSError, ValueError) as error:
        raise UserError(f"The pictures cannot be written to {stem}.png and .mp4 ({error}).") from error
    return paths


def render(
    agent: WorldModelAgent,
    make_environment: Callable[[], gym.Env],
    seeds: Sequence[int],
    stem: Path,
    *,
    steps: int | None = STEPS,
    explore: float | None,
) -> list[Path]:
    """Play one episode per seed and `write` it; with `explore`, the agent acts as in collection."""
    if not agent.decodes:
        raise UserError("This model has no decoder, so there is nothing to render: train one, with model.decoder=true.")
    played = evaluate(agent, make_environment, seeds, record=len(seeds), max_steps=steps, explore=explore)
    return write(agent, played.episodes, stem)


def render_run(
    run: Path | str,
    output: Path | str | None = None,
    *,
    episodes: int = 2,
    steps: int | None = STEPS,
    explore: bool = True,
    split: str = "train",
    checkpoint: int | None = None,
    device: str = "auto",
) -> list[Path]:
    """Render held-out episodes of a run's checkpoint; returns the files written.

    output: a path without suffix (default: videos/<split>_<step> in the run folder). episodes: at least 2, for the
    swap. steps: actions per episode (None: whole episodes). explore: act as in collection, which shows more of what
    the body can do than the actor's mode.
    """
    config, agent, step = load_run(run, checkpoint=checkpoint, device=device)
    seeds = evaluation_seeds(config.seed, max(2, episodes))
    stem = Path(output) if output else Path(run) / "videos" / f"{split}_{step:09d}"
    explore = config.train.exploration_noise if explore else None
    return render(agent, environment_maker(config, split), seeds, stem, steps=steps, explore=explore)
