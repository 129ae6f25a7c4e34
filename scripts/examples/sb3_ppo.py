"""Train PPO of Stable-Baselines3 on one of the environments, and compare it with a random policy on held-out episodes.

    pip install -e ".[sb3]" -c constraints.txt
    python scripts/examples/sb3_ppo.py

The environments follow Gymnasium's interface, so nothing here is special to them: ids, vector environments, frame
stacks and monitors work as with any other. Both policies play episodes of the same seeds, none of which was trained on.
The trained policy also plays them in front of background clips that it has never seen.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import gymnasium
import numpy as np
from stable_baselines3 import PPO
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import VecFrameStack, VecNormalize

import denoised_mdp.envs

denoised_mdp.envs.register_envs()

HELD_OUT = 1_000_000  # first seed of the compared episodes


def make(options: argparse.Namespace, split: str, count: int) -> VecFrameStack:
    """Environments in one process, three frames stacked; `split` selects the background clips."""
    identity, names = f"denoised_mdp/{options.task}-v0", ("distractors", "size", "episode_steps", "action_repeat")
    keywords = {"split": split, **{name: getattr(options, name) for name in names}}
    return VecFrameStack(make_vec_env(identity, n_envs=count, seed=options.seed, env_kwargs=keywords), 3)


def returns(choose: Callable[[np.ndarray], np.ndarray], options: argparse.Namespace, split: str) -> np.ndarray:
    """Returns [episodes] of the policy `choose`, observation -> action, on the held-out seeds."""
    environment, totals = make(options, split, 1), []
    for episode in range(options.episodes):
        environment.seed(HELD_OUT + episode)
        observation, total, done = environment.reset(), 0.0, False
        while not done:
            observation, (reward,), (done,), _ = environment.step(choose(observation))
            total += float(reward)
        totals.append(total)
    environment.close()
    return np.array(totals)


def show(values: np.ndarray) -> str:
    """Mean and standard error."""
    return f"{values.mean():.2f} ± {values.std(ddof=1) / np.sqrt(len(values)):.2f}"


def main() -> None:
    """Train and compare."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--task", default="cheetah_run")
    parser.add_argument("--distractors", nargs="*", default=["video_background"])
    parser.add_argument("--steps", type=int, default=22_000, help="actions in all")
    parser.add_argument("--envs", type=int, default=8)
    parser.add_argument("--size", type=int, default=48, help="pixels of an edge of a picture")
    parser.add_argument("--episode-steps", type=int, default=200)
    parser.add_argument("--action-repeat", type=int, default=4)
    parser.add_argument("--episodes", type=int, default=30, help="held-out episodes, at least 2")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()

    training = VecNormalize(make(options, "train", options.envs), norm_obs=False, gamma=0.95)
    model = PPO(
        "CnnPolicy",
        training,
        n_steps=50,
        batch_size=100,
        n_epochs=4,
        learning_rate=5e-4,
        gamma=0.95,
        gae_lambda=0.9,
        policy_kwargs={"log_std_init": -0.5, "features_extractor_kwargs": {"features_dim": 128}},
        seed=options.seed,
        device="cpu",
        verbose=1,
    )
    began = time.process_time()
    model.learn(options.steps, log_interval=10)
    print(f"\n{model.num_timesteps:,} actions, {time.process_time() - began:.0f} s of processor time")
    training.close()

    actions = gymnasium.vector.utils.batch_space(model.action_space, 1)
    actions.seed(options.seed)
    blind = returns(lambda observation: actions.sample(), options, "train")
    print(f"Return, mean ± standard error over the same {options.episodes} held-out episodes:")
    print(f"  random policy        {show(blind)}")
    for split in ("train", "test"):
        learned = returns(lambda observation: model.predict(observation, deterministic=True)[0], options, split)
        print(f"  PPO, {split:5} clips     {show(learned)}   (better by {show(learned - blind)})")


if __name__ == "__main__":
    main()
