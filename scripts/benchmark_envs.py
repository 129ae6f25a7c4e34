"""Measure environments: milliseconds per inner step and per frame of every variant, render qualities, memory.

    python scripts/benchmark_envs.py [variants] [qualities] [memory]

Prints Markdown tables. Times are medians of the CPU time of the whole process (the renderer's threads included), which
other programs on the machine disturb less than wall time. On an idle machine wall time is the same or, with several
threads, shorter.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys

from denoised_mdp.bench.around import milliseconds
from denoised_mdp.envs import make_env, tasks
from denoised_mdp.envs.options import fitting_distractors
from denoised_mdp.run.machine import cpu_name

ALL = {name: {} for name in fitting_distractors("dmc")}
VARIANTS = {
    "none": {},
    "video_background": {"video_background": {}},
    "video_background, color": {"video_background": {"color": True}},
    "video_background, strength 0.5": {"video_background": {"strength": 0.5}},
    "video_background, matte paper": {"video_background": {"matte": "paper"}},
    "camera_jitter": {"camera_jitter": {}},
    "body_color": {"body_color": {}},
    "lighting": {"lighting": {}},
    "camera_pose": {"camera_pose": {}},
    "video_background + noisy_sensor": {"video_background": {}, "noisy_sensor": {}},
    "video_background + camera_jitter": {"video_background": {}, "camera_jitter": {}},
    "all six": ALL,
}


def measure(env, count: int = 40) -> tuple[float, float]:
    """CPU milliseconds of an inner step without a frame, and of a frame."""
    env.reset(seed=0)
    env.action_space.seed(0)
    action = env.action_space.sample()
    env.render()
    step = milliseconds(lambda: env.world.step(action), count)["cpu"]
    return step, milliseconds(env.render, count)["cpu"]


def variants(task: str) -> None:
    """Print a table of all variants of one task."""
    print(f"\n| distractors ({task}, 64x64, fast) | ms per inner step | ms per frame |\n|---|---|---|")
    for name, distractors in VARIANTS.items():
        env = make_env(task, distractors=distractors, episode_steps=10**9)
        step, frame = measure(env)
        print(f"| {name} | {step:.2f} | {frame:.2f} |", flush=True)
        env.close()


def qualities() -> None:
    """Print a table of both render qualities, for one task of each domain."""
    print("\n| task | fast, ms per frame | faithful | exact matte, fast | ms per inner step |\n|---|---|---|---|---|")
    seen = set()
    for task in tasks("dmc"):
        domain = "humanoid_CMU" if task.startswith("humanoid_CMU") else task.split("_")[0]
        if domain in seen:
            continue
        seen.add(domain)
        times = {}
        for quality in ("fast", "faithful"):
            env = make_env(task, quality=quality, episode_steps=10**9)
            step, times[quality] = measure(env, 20 if quality == "fast" else 4)
            if quality == "fast":
                inner = step
                matte = milliseconds(env.world.frame_and_background, 20)["cpu"]
            env.close()
        print(f"| {task} | {times['fast']:.2f} | {times['faithful']:.1f} | {matte:.2f} | {inner:.2f} |", flush=True)


MEMORY = """
from denoised_mdp.envs import make_env
from denoised_mdp.run.machine import resident_memory
def make():
    env = make_env({task!r}, distractors={distractors!r}, quality={quality!r})
    env.reset(seed=0); env.step(env.action_space.sample())
    return env
envs = [make()]
first = resident_memory()
envs += [make() for _ in range(8)]
print(first / 2**20, (resident_memory() - first) / 8 / 2**20)
"""


def memory() -> None:
    """Print a table of resident memory; each row is measured in its own process."""
    print("\n| environment | MiB, process with one | MiB, each further one |\n|---|---|---|")
    rows = [("cheetah_run", {}, "fast"), ("cheetah_run", ALL, "fast"), ("cheetah_run", {}, "faithful")]
    rows += [("reacher_easy", {}, "fast"), ("quadruped_walk", {}, "fast"), ("humanoid_CMU_run", {}, "fast")]
    rows += [("dog_run", {}, "fast")]
    for task, distractors, quality in rows:
        code = MEMORY.format(task=task, distractors=distractors, quality=quality)
        output = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
        one, more = map(float, output.split())
        name = f"{task}, {quality}" + (", all six distractors" if distractors else "")
        print(f"| {name} | {one:.0f} | {more:.1f} |", flush=True)


def main() -> None:
    """Measure what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tables", nargs="*", default=["variants", "qualities", "memory"])
    parser.add_argument("--task", default="cheetah_run", help="of the variants")
    options = parser.parse_args()
    print(f"{cpu_name()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}")
    for table in options.tables:
        {"variants": lambda: variants(options.task), "qualities": qualities, "memory": memory}[table]()


if __name__ == "__main__":
    main()
