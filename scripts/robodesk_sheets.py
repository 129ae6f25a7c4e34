"""Draw the contact sheets of docs/robodesk.md and measure the environment.

    python scripts/robodesk_sheets.py [--out docs/images] [--clips procedural] [distractors | views | times]

Every picture is one observation, enlarged without smoothing. All rows of the first sheet show the same physics: a
scripted policy, which knows the true state, moves the hand onto the green button.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import numpy as np
from contact_sheets import save, table

from denoised_mdp.bench.around import milliseconds
from denoised_mdp.envs import make_env
from denoised_mdp.run.machine import resident_memory

ALL = {"tv": {}, "button_noise": {}, "moving_lights": {}, "camera_shake": {}}
ROWS = {
    "none": {},
    **{name: {name: options} for name, options in ALL.items()},
    "tv, strength: 0.5": {"tv": {"strength": 0.5}},
    "camera_shake, strength: 3": {"camera_shake": {"strength": 3}},
    "all four": ALL,
}
VIEWS = {
    "desk, fast": {"camera": 1},
    "desk, faithful": {"camera": 1, "quality": "faithful"},
    "room, fast": {},
    "room, faithful": {"quality": "faithful"},
    "all four, fast": {"distractors": ALL},
    "all four, faithful": {"distractors": ALL, "quality": "faithful"},
}
STEPS = (0, 20, 40, 60, 80, 100, 120)  # control steps of 20 ms


def main() -> None:
    """Draw or measure what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="*", default=["distractors", "views", "times"])
    parser.add_argument("--out", type=Path, default=Path("docs/images"))
    parser.add_argument("--clips", default="procedural", help="as env.clips")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    for what in options.what:
        {"distractors": distractors, "views": views, "times": times}[what](options)


def push_actions(color: str = "green", count: int = max(STEPS)) -> np.ndarray:
    """Return actions [count, 5] that bring the hand above a button and then down onto it."""
    env, actions = make_env(f"tv_{color}_hue", suite="robodesk"), []
    world = env.world.unwrapped
    world.reset(seed=0)
    for _ in range(count):
        seen = world.situation()
        offset = seen.places[f"{color}_button"] - seen.hand
        if np.linalg.norm(offset[:2]) > 0.03:
            offset[2] += 0.15
        actions.append([*np.clip(offset / 0.01, -1, 1), 0, -1])
        world.step(np.array(actions[-1]))
    return np.array(actions)


def play(env, actions: np.ndarray, steps: tuple[int, ...]) -> list[np.ndarray]:
    """Return the frames after the given numbers of control steps; others are not rendered."""
    env.world.reset(seed=0)
    frames = []
    for step in range(max(steps) + 1):
        if step in steps:
            frames.append(env.world.frame())
        env.world.step(actions[step % len(actions)])
    env.close()
    return frames


def distractors(options: argparse.Namespace) -> None:
    """Draw one row per distractor and one column per step."""
    actions, cells = push_actions(), []
    for name, chosen in ROWS.items():
        env = make_env("tv_green_hue", suite="robodesk", size=96, distractors=chosen, clips=options.clips)
        cells.append((name, play(env, actions, STEPS)))
    save(options.out / "robodesk_distractors.png", table(cells, 2, 170))


def views(options: argparse.Namespace) -> None:
    """Draw one row per camera and quality."""
    actions, cells = push_actions(), []
    for name, chosen in VIEWS.items():
        env = make_env("tv_green_hue", suite="robodesk", size=96, clips=options.clips, **chosen)
        cells.append((name, play(env, actions, (0, 50, 100))))
    save(options.out / "robodesk_views.png", table(cells, 3, 130))


def times(options: argparse.Namespace) -> None:
    """Print CPU and wall time in milliseconds, and memory, per environment."""
    print("| distractors | quality | step | frame | frame, wall | first frame | MB |")
    print("|---|---|---|---|---|---|---|")
    for name, chosen in {"none (desk)": ("push_green", {}), "all four (room)": ("tv_green_hue", ALL)}.items():
        for quality in ("fast", "faithful"):
            task, distractors = chosen
            before = resident_memory()
            env = make_env(
                task, suite="robodesk", size=96, distractors=distractors, quality=quality, clips=options.clips
            )
            env.world.reset(seed=0)
            began = time.process_time()
            env.world.frame()
            first = 1000 * (time.process_time() - began)
            action = np.zeros(5)
            step = milliseconds(lambda: env.world.step(action), 40)  # noqa: B023
            frame = milliseconds(env.world.frame, 40 if quality == "fast" else 5)
            memory = (resident_memory() - before) / 1e6
            env.close()
            numbers = f"{step['cpu']:.1f} | {frame['cpu']:.1f} | {frame['wall']:.1f} | {first:.0f} | {memory:.0f}"
            print(f"| {name} | {quality} | {numbers} |", flush=True)


if __name__ == "__main__":
    main()
