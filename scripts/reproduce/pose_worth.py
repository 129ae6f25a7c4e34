"""What a pose is worth: how much of a picture's error the background explains, and how much the body.

    python scripts/reproduce/pose_worth.py                 # of the environment alone
    python scripts/reproduce/pose_worth.py runs/evidence/* # and what the filters of these runs leave
    python scripts/reproduce/pose_worth.py --task walker_walk --repeat 2

Errors are half the squared error of pictures in [0, 1], summed over pixels and channels, mean over frames: nats, up to
a constant, under a Gaussian of variance 1, the model's likelihood. Episodes are played with random actions. The exact
matte tells which pixels the body covers.
"""

from __future__ import annotations

import argparse
import contextlib
import sys

import numpy as np
import torch

import denoised_mdp
from denoised_mdp.agents.world_model_agent import WorldModelAgent
from denoised_mdp.analysis.data import Episode, decode, freeze
from denoised_mdp.analysis.render import can_render
from denoised_mdp.config import load_config
from denoised_mdp.config.schema import Config
from denoised_mdp.errors import UserError
from denoised_mdp.run.environments import environment_maker


def play(config: Config, episodes: int, steps: int) -> tuple[np.ndarray, np.ndarray]:
    """Observations uint8 [N, T, H, W, 6] (picture and body on black) and the actions before them [N, T, A]."""
    random, seen, acted = np.random.default_rng(0), [], []
    with contextlib.closing(environment_maker(config, foreground=True)()) as environment:
        for seed in range(episodes):
            frames, actions = [environment.reset(seed=seed)[0]], [np.zeros(environment.action_space.shape, np.float32)]
            for _ in range(steps - 1):
                actions.append(random.uniform(-1, 1, environment.action_space.shape).astype(np.float32))
                frames.append(environment.step(actions[-1])[0])
            seen.append(frames), acted.append(actions)
    return np.array(seen), np.array(acted)


def nats(error: np.ndarray, where: np.ndarray | None = None) -> float:
    """Errors [F, H, W, 3] -> nats per frame, of the pixels `where` [F, H, W]."""
    each = 0.5 * np.square(error).sum(-1)  # [F, H, W]
    return float((each if where is None else each * where).sum((1, 2)).mean())


def worth(task: str, repeat: int, strength: float) -> None:
    """Print the errors of the mean picture, and of one that knows the background but not the pose."""
    options = ["preset=quickstart", "model.target=foreground", f"distractors.video_background.strength={strength}"]
    seen, _ = play(load_config([*options, f"env.task={task}", f"env.action_repeat={repeat}", "run_dir=none"]), 6, 100)
    picture, black = np.split(seen.reshape(-1, *seen.shape[2:]) / 255, 2, -1)  # [F, H, W, 3] each
    body = black.max(-1, keepdims=True) > 0  # [F, H, W, 1]
    often, color = body.mean(0), (black * body).sum(0) / np.maximum(body.sum(0), 1)  # [H, W, 1], [H, W, 3]
    behind = (picture * ~body).sum(0) / np.maximum((~body).sum(0), 1)  # [H, W, 3]: where the body hides it, its mean
    guess = often * color + (1 - often) * np.where(body, behind, picture)  # [F, H, W, 3]
    print(f"{task}, strength {strength}: the body covers {body.mean():.1%}")
    print(f"  mean picture                              {nats(picture - picture.mean(0)):6.1f} nats")
    print(f"  background known, body where it mostly is {nats(picture - guess):6.1f}")
    print(f"  mean picture of the body on black         {nats(black - black.mean(0)):6.1f}")


def refuse_unlike(whose: str, agent: WorldModelAgent) -> None:
    """Raise UserError unless the agent decodes what the camera sees, which `left` compares with."""
    if not can_render(agent):
        raise UserError(f"{whose} decodes no pictures.")
    if agent.config.foreground:
        raise UserError(f"{whose} decodes the body alone (model.target=foreground).")


def left(agent: WorldModelAgent, episodes: int = 6, steps: int = 150) -> tuple[float, float]:
    """Error that is left in filtered pictures, in nats per frame: on the body and elsewhere."""
    seen, actions = play(agent.config, episodes, steps)
    empty = np.zeros((seen.shape[1], 0), np.float32)
    played = [Episode(*one, empty, empty) for one in zip(seen[..., :3], actions, strict=True)]
    shown = [decode(agent, one.latent) for one in freeze(agent, played)]  # [T, 3, H, W] each
    error = torch.stack(shown).permute(0, 1, 3, 4, 2).numpy() + 0.5 - seen[..., :3] / 255  # [N, T, H, W, 3]
    late, body = error[:, 20:].reshape(-1, *error.shape[2:]), seen[:, 20:, ..., 3:].max(-1) > 0  # once filtered
    body = body.reshape(late.shape[:3])  # [F, H, W]
    return nats(late, body), nats(late, ~body)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="*", help="folders of runs with a world model")
    parser.add_argument("--task", default="cheetah_run")
    parser.add_argument("--repeat", type=int, default=4, help="steps that an action lasts")
    given = parser.parse_args()
    try:
        agents = {run: denoised_mdp.load(run) for run in given.runs}
    except UserError as error:
        sys.exit(f"error: {error}")
    for run, agent in agents.items():
        try:
            refuse_unlike(run, agent)
        except UserError as error:
            sys.exit(f"error: {error} Leave it out.")
    for strength in (1.0, 0.3):
        worth(given.task, given.repeat, strength)
    for run, agent in agents.items():
        body, elsewhere = left(agent)
        print(f"{run}: {body:.1f} nats are left on the body, {elsewhere:.1f} elsewhere")
