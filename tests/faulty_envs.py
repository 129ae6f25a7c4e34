"""Environments that make trouble in worker processes, which import this file: it must not cost them seconds."""

import os
import time
import warnings

import gymnasium as gym
import numpy as np


class Faulty(gym.Env):
    """Does `what` in the second step of the episode of seed 7."""

    action_space = gym.spaces.Box(-1, 1, (1,), np.float32)
    observation_space = gym.spaces.Box(-1, 1, (1,))

    def __init__(self, what):
        self.what, self.steps = what, 0

    def reset(self, *, seed=None, options=None):
        self.seed, self.steps = seed, 0
        return np.zeros(1), {}

    def step(self, action):
        self.steps += 1
        if self.seed == 7 and self.steps == 2:
            getattr(self, self.what)()
        return np.zeros(1), 0.0, False, False, {}

    def fail(self):
        raise ZeroDivisionError("the physics exploded")

    def lose(self):
        raise BrokenPipeError("the simulator has gone")

    def die(self):
        os._exit(3)

    def hang(self):
        time.sleep(600)


class Complaining(Faulty):
    """Warns when it is made."""

    def __init__(self):
        super().__init__("fail")
        warnings.warn("a clip cannot be read", stacklevel=1)

    def close(self):
        warnings.warn("nobody is left to hear this", stacklevel=1)


class SlowToBegin(Faulty):
    """Prepares what it shows when its first episode begins."""

    def reset(self, *, seed=None, options=None):
        if self.steps == 0:
            time.sleep(2)
        return super().reset(seed=seed)


class Signalling:
    """The first to be made or stepped sends a signal to the process that it serves, and then answers no more."""

    def __init__(self, make, mark, number, when):
        self.env, self.mark, self.number, self.when = make(), mark, number, when
        self.unwrapped = self.env.unwrapped
        self.action_space, self.observation_space = self.env.action_space, self.env.observation_space
        self.send("made")

    def send(self, when):
        if when == self.when and not self.mark.exists():
            self.mark.touch()
            os.kill(os.getppid(), self.number)
            time.sleep(600)  # it must be ended by force

    def reset(self, **options):
        return self.env.reset(**options)

    def step(self, action):
        self.send("stepped")
        return self.env.step(action)

    def close(self):
        self.env.close()


class Dying(gym.Wrapper):
    """Ends its process in the third step."""

    def __init__(self, make):
        super().__init__(make())
        self.steps = 0

    def step(self, action):
        self.steps += 1
        if self.steps == 3:
            os._exit(3)
        return self.env.step(action)
