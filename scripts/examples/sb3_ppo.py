"""Train PPO of Stable-Baselines3 on one of the environments, beside a random policy on the same seeds.

    pip install -e ".[sb3]" -c constraints.txt
    python scripts/examples/sb3_ppo.py --task cartpole_balance --distractors video_background --steps 20000

The environments are Gymnasium's, so that nothing here is special to them: ids, vectors, frame stacks and monitors work
as with any other. The final policy is also evaluated with background clips that were never trained on.
"""

from __future__ import annotations

import argparse

import gymnasium
from stable_baselines3 import PPO
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.vec_env import VecFrameStack

import denoised_mdp.envs

denoised_mdp.envs.register_envs()


def make(options: argparse.Namespace, split: str, count: int, seed: int) -> VecFrameStack:
    """Environments in one process, three frames stacked; `split` says which background clips they show."""
    identity = "-".join([f"denoised_mdp/{options.task}", *options.distractors, "v0"])
    keywords = {"split": split, "episode_steps": options.episode_steps, "action_repeat": 4}
    return VecFrameStack(make_vec_env(identity, n_envs=count, seed=seed, env_kwargs=keywords), 3)


class Random:
    """A policy that Stable-Baselines3 can evaluate and that knows nothing."""

    def __init__(self, space: gymnasium.spaces.Box, count: int):
        self.space, self.count = gymnasium.vector.utils.batch_space(space, count), count
        self.space.seed(0)

    def predict(self, observation, state=None, episode_start=None, deterministic=True):
        """Return random actions."""
        return self.space.sample(), state


def main() -> None:
    """Train and evaluate."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--task", default="cartpole_balance")
    parser.add_argument("--distractors", nargs="*", default=["video_background"])
    parser.add_argument("--steps", type=int, default=20_000, help="actions in all")
    parser.add_argument("--envs", type=int, default=4)
    parser.add_argument("--episode-steps", type=int, default=1000)
    parser.add_argument("--episodes", type=int, default=4)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()

    training = make(options, "train", options.envs, options.seed)
    model = PPO("CnnPolicy", training, n_steps=128, batch_size=128, n_epochs=4, seed=options.seed, verbose=1)
    model.learn(options.steps)
    for name, split in (("train clips", "train"), ("test clips", "test")):
        held_out = make(options, split, 1, 10_000 + options.seed)
        mean, std = evaluate_policy(model, held_out, n_eval_episodes=options.episodes)
        print(f"PPO, {name}: return {mean:.1f}, standard deviation {std:.1f} over {options.episodes} episodes")
        held_out.close()
    held_out = make(options, "train", 1, 10_000 + options.seed)
    mean, std = evaluate_policy(Random(held_out.action_space, 1), held_out, n_eval_episodes=options.episodes)
    print(f"random policy: return {mean:.1f}, standard deviation {std:.1f} over {options.episodes} episodes")
    held_out.close()
    training.close()


if __name__ == "__main__":
    main()
