"""Small Gymnasium environments for tests of suite "gym": some right, each other wrong in one way."""

from __future__ import annotations

import random

import gymnasium as gym
import numpy as np


class Ball(gym.Env):
    """A ball on a line of 20 x 30 pixels, which the action [-2, 2] pushes; drawn by `render`."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 10}
    action_space = gym.spaces.Box(-2.0, 2.0, (1,), np.float32)
    observation_space = gym.spaces.Box(-1.0, 1.0, (1,), np.float64)

    def __init__(self, render_mode=None, **_):
        self.render_mode = render_mode

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.place = self.np_random.uniform(-1, 1)
        return np.array([self.place]), {}

    def step(self, action):
        push = 0.1 * float(action[0]) + 0.01 * self.np_random.normal()
        self.place = float(np.clip(self.place + push, -1, 1))
        return np.array([self.place]), 1 - abs(self.place), False, False, {}

    def render(self):
        picture = np.zeros((20, 30, 3), np.uint8)
        column = int((self.place + 1) / 2 * 26)
        picture[8:12, column : column + 4] = 255
        return picture


class Boxed(Ball):
    """Its rewards are arrays of one number."""

    def step(self, action):
        observation, reward, *others = super().step(action)
        return observation, np.array([reward], np.float32), *others


class Sized(Ball):
    """Must be told its size."""

    def __init__(self, width, *, height, render_mode=None):
        super().__init__(render_mode)


class Old(Ball):
    """Steps as in old versions of Gym."""

    def step(self, action):
        observation, reward, terminated, _, info = super().step(action)
        return observation, reward, terminated, info


class Unrewarded(Ball):
    """Its rewards are None."""

    def step(self, action):
        observation, _, *others = super().step(action)
        return observation, None, *others


class Pairs(Ball):
    """Its rewards are two numbers."""

    def step(self, action):
        observation, reward, *others = super().step(action)
        return observation, np.array([reward, reward]), *others


class Picky(Ball):
    """Refuses what is not in its space."""

    action_space = gym.spaces.Box(np.float32([-0.7, -6.28, 0.1]), np.float32([1.9, 6.28, 0.4]))

    def step(self, action):
        assert self.action_space.contains(action), action
        return super().step(action)


class PickyInDoubles(Picky):
    action_space = gym.spaces.Box(np.array([-1.0, -3.0, 2.0]), np.array([2.0, 7.0, 5.0]), dtype=np.float64)


class PickyInHalves(Picky):
    action_space = gym.spaces.Box(np.float16([-1, -3, 2]), np.float16([2, 7, 5]), dtype=np.float16)


class Wordy(Ball):
    """Its rewards are words."""

    def step(self, action):
        observation, _, *others = super().step(action)
        return observation, "much", *others


class Empty(Ball):
    """Its pictures have no rows."""

    def render(self):
        return super().render()[:0]


class Shortening(Ball):
    """Looks the same in every episode, but ends each one earlier than the last."""

    left = 5

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.place, self.steps = 0.0, 0
        type(self).left -= 1
        return np.zeros(1), {}

    def step(self, action):
        self.steps += 1
        return np.zeros(1), 0.0, self.steps >= self.left, False, {}


class Picture(Ball):
    """The picture is the observation, in shades of gray."""

    observation_space = gym.spaces.Box(0, 255, (20, 30, 1), np.uint8)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self.render()[..., :1], {}

    def step(self, action):
        return self.render()[..., :1], *super().step(action)[1:]


class Forgetful(Ball):
    """What happens does not follow from the seed."""

    def step(self, action):
        _, reward, *rest = super().step(action)
        return np.array([random.random()]), reward, *rest


class Moody(Ball):
    """Nor do its rewards."""

    def step(self, action):
        observation, _, *rest = super().step(action)
        return observation, random.random(), *rest


class Blind(Ball):
    metadata = {"render_modes": []}

    def __init__(self):
        super().__init__()


class Sheet(Ball):
    action_space = gym.spaces.Box(-1.0, 1.0, (2, 3), np.float32)


class Idle(Ball):
    action_space = gym.spaces.Box(-1.0, 1.0, (0,), np.float32)


class Unlimited(Ball):
    action_space = gym.spaces.Box(-np.inf, np.inf, (1,), np.float32)


class Steps(Ball):
    action_space = gym.spaces.Box(-3, 3, (2,), np.int64)


class Stuck(Ball):
    action_space = gym.spaces.Box(np.float32([-1, 2]), np.float32([1, 2]))


class Loose(Ball):
    """What is observed has no fixed size, and is not of its space."""

    observation_space = gym.spaces.Dict(
        {"graph": gym.spaces.Graph(gym.spaces.Box(-1, 1, (2,)), None), "kind": gym.spaces.Discrete(2)}
    )

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return {"graph": None, "kind": 5}, {}

    def step(self, action):
        return {"graph": None}, *super().step(action)[1:]


class Walk(Ball):
    """The ball moves by one of three choices, which are not counted from 0."""

    action_space = gym.spaces.Discrete(3, start=-1)

    def step(self, action):
        assert action in self.action_space
        return super().step([2.0 * action])


class NarrowWalk(Walk):
    """Its choices are of the type int32, as `action in action_space` asks."""

    action_space = gym.spaces.Discrete(3, start=-1, dtype=np.int32)


class Buttons(Ball):
    action_space = gym.spaces.MultiDiscrete([2, 3])


def number():
    """No environment."""
    return 7


gym.register("SmallBall-v0", Ball, max_episode_steps=12)
