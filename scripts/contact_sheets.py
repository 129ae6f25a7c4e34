"""Draw the contact sheets of docs/environments.md: every variant of one task, and every task of the suite.

    python scripts/contact_sheets.py [--out docs/images] [--clips procedural] [variants | tasks | matte]

Every picture is one observation, enlarged without smoothing; a row of a sheet shows one variant at several steps of one
episode, whose physics is the same in all rows.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from denoised_mdp.envs import make_env, tasks
from denoised_mdp.envs.paired import replay_paired

COLOR = {"video_background": {"color": True}}
VARIANTS = {
    "no distractors": {"distractors": {}},
    "video_background": {"distractors": {"video_background": {}}},
    "... color: true": {"distractors": COLOR},
    "... strength: 0.5": {"distractors": {"video_background": {"strength": 0.5}}},
    "... matte: sky": {"distractors": {"video_background": {"matte": "sky"}}},
    "... matte: paper": {"distractors": {"video_background": {"matte": "paper"}}},
    "... clips of split test": {"distractors": {"video_background": {}}, "split": "test"},
    "camera_jitter": {"distractors": {"camera_jitter": {}}},
    "... + video_background": {"distractors": {"video_background": {}, "camera_jitter": {}}},
    "body_color": {"distractors": {"body_color": {}}},
    "lighting": {"distractors": {"lighting": {}}},
    "camera_pose": {"distractors": {"camera_pose": {}}},
    "... strength: 3": {"distractors": {"camera_pose": {"strength": 3}}},
    "the three + color video": {"distractors": {"body_color": {}, "lighting": {}, "camera_pose": {}, **COLOR}},
}
MATTES = ("none", "matte", "sky", "paper")
HEAD = 14  # pixels for a line of text
CAMERA = {"quadruped": 2, "dog_fetch": 2, "lqr": 1}  # for tasks and domains that camera 0 hardly shows


def main() -> None:
    """Draw what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sheets", nargs="*", default=["variants", "tasks", "matte"])
    parser.add_argument("--out", type=Path, default=Path("docs/images"))
    parser.add_argument("--clips", default="procedural", help="as env.clips")
    parser.add_argument("--task", default="walker_walk", help="of the variants")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    for sheet in options.sheets:
        {"variants": variants, "tasks": all_tasks, "matte": mattes}[sheet](options)


def variants(options: argparse.Namespace, steps: tuple[int, ...] = (0, 15, 30, 45, 60, 75)) -> None:
    """Draw one row per variant and one column per step."""
    env = make_env(options.task, clips=options.clips)
    actions = np.random.default_rng(0).uniform(-1, 1, (max(steps), *env.action_space.shape))
    rows = replay_paired(env, actions, 4, VARIANTS)
    cells = [(name, [rows[name].observation[step] for step in steps]) for name in VARIANTS]
    save(options.out / f"distractors_{options.task}.png", table(cells, 2, 150))


def all_tasks(options: argparse.Namespace, columns: int = 9) -> None:
    """Draw one cell per task, in front of a colour video."""
    cells = []
    for task in tasks("dmc"):
        camera = CAMERA.get(task, CAMERA.get(task.split("_")[0], 0))
        env = make_env(task, distractors=COLOR, clips=options.clips, clips_seed=len(cells), camera=camera)
        cells.append((task, played(env, seed=len(cells))))
        env.close()
    save(options.out / "suite_backgrounds.png", grid(cells, columns, 2))


def mattes(options: argparse.Namespace) -> None:
    """Draw some tasks with each matte: the paper's colour rule cuts into the body where the exact matte does not."""
    chosen = (
        "cheetah_run",
        "walker_walk",
        "reacher_easy",
        "ball_in_cup_catch",
        "manipulator_insert_peg",
        "finger_spin",
    )
    cells = []
    for matte in MATTES:
        distractors = {} if matte == "none" else {"video_background": {"matte": matte, "color": True}}
        frames = []
        for task in chosen:
            env = make_env(task, distractors=distractors, clips=options.clips)
            frames.append(played(env))
            env.close()
        cells.append((matte, frames))
    save(options.out / "mattes.png", table(cells, 2, 60, chosen))


def played(env, steps: int = 10, seed: int = 1) -> np.ndarray:
    """The observation after some random actions."""
    env.reset(seed=seed)
    env.action_space.seed(1)
    for _ in range(steps):
        observation = env.step(env.action_space.sample())[0]
    return observation


def enlarge(frame: np.ndarray, scale: int) -> Image.Image:
    """Repeat every pixel of uint8 [H, W, 3]."""
    return Image.fromarray(frame.repeat(scale, 0).repeat(scale, 1))


def table(rows: list[tuple[str, list[np.ndarray]]], scale: int, margin: int, titles: Sequence[str] = ()) -> Image.Image:
    """Draw named rows of frames, with titles above the columns if given."""
    side = rows[0][1][0].shape[0] * scale + 4
    head = HEAD if titles else 0
    sheet = Image.new("RGB", (margin + side * len(rows[0][1]), head + side * len(rows)), "white")
    draw = ImageDraw.Draw(sheet)
    write(draw, [(margin + column * side + 2, 0, title) for column, title in enumerate(titles)], side)
    for row, (name, frames) in enumerate(rows):
        top = head + row * side
        draw.text((4, top + side // 2 - 6), name, "black")
        for column, frame in enumerate(frames):
            sheet.paste(enlarge(frame, scale), (margin + column * side, top + 2))
    return sheet


def grid(cells: list[tuple[str, np.ndarray]], columns: int, scale: int) -> Image.Image:
    """Draw named frames, row by row."""
    side = cells[0][1].shape[0] * scale + 4
    places = [(index % columns * side, index // columns * (side + HEAD)) for index in range(len(cells))]
    sheet = Image.new("RGB", (side * columns, (side + HEAD) * -(-len(cells) // columns)), "white")
    write(ImageDraw.Draw(sheet), [(x + 2, y, name) for (x, y), (name, _) in zip(places, cells, strict=True)], side)
    for (x, y), (_, frame) in zip(places, cells, strict=True):
        sheet.paste(enlarge(frame, scale), (x, y + HEAD - 1))
    return sheet


def write(draw: ImageDraw.ImageDraw, texts: list[tuple[int, int, str]], width: int) -> None:
    """Write each text at x, y, all in the largest font size at which none is wider than a frame."""
    sizes = (size / 2 for size in range(22, 0, -1))
    fonts = (ImageFont.load_default(size) for size in sizes)
    font = next(font for font in fonts if all(draw.textlength(text, font) <= width - 4 for *_, text in texts))
    for x, y, text in texts:
        draw.text((x, y), text, "black", font)


def save(path: Path, sheet: Image.Image) -> None:
    """Write a PNG with a palette, which keeps the repository small."""
    sheet.quantize(256, kmeans=2).save(path, optimize=True)  # without k-means, small things lose their colour
    print(path, f"{path.stat().st_size / 1024:.0f} KiB")


if __name__ == "__main__":
    main()
