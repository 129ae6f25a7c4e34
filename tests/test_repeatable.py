"""The doctor plays an environment to see whether it repeats itself: each way in which it may not is found."""

import numpy as np
import pytest

from denoised_mdp.bench.repeatable import unrepeatable
from denoised_mdp.cli.main import main
from denoised_mdp.envs import make_env
from denoised_mdp.envs.distractors import CameraJitter
from denoised_mdp.envs.pixels import PixelEnv
from denoised_mdp.envs.toy import ToyEnv


class Unseeded(ToyEnv):
    def reset(self, *, seed=None, options=None):
        return super().reset(seed=None if self._rng is not None else seed, options=options)


class NoiseWhileDrawing(ToyEnv):
    def frame(self):
        self._phase = (self._phase + self._noise_rng.normal(0, 0.1, 2)) % 1
        return super().frame()


class CountsFrames(ToyEnv):
    """Equal frames of one moment, but the more are drawn, the faster it is."""

    drawn = 0

    def reset(self, **options):
        self.drawn = 0
        return super().reset(**options)

    def frame(self):
        self.drawn += 1
        return super().frame()

    def step(self, action):
        return super().step(np.asarray(action) * self.drawn / 100)


class Forgets(ToyEnv):
    def get_state(self):
        return super().get_state() | {"drift": np.zeros(2)}


class KeepsGenerators(ToyEnv):
    def get_state(self):
        return super().get_state() | {"rng": self._rng}


class ForgetfulJitter(CameraJitter):
    def _get_noise(self):
        return {}

    def _set_noise(self, state):
        pass


def found(world):
    return unrepeatable(PixelEnv(world, 1), 0)


@pytest.mark.parametrize("kind", ["dot", "dot_terminating"])
@pytest.mark.parametrize("distractors", [[], ["camera_jitter", "video_background"]])
def test_a_world_that_repeats_itself_is_told_so(kind, distractors):
    """Episodes that end within the play are followed by others."""
    environment = make_env(kind, suite="toy", size=32, distractors=distractors, episode_steps=7)
    assert unrepeatable(environment, 3) == []


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Unseeded(16), "Episodes of one seed differ, in the picture and the signal and the noise"),
        (lambda: NoiseWhileDrawing(16), "Two frames of one moment differ"),
        (lambda: CountsFrames(16), "Drawing a frame changes what follows, in the reward and the signal"),
        (lambda: Forgets(16), "A resumed run will differ, in the picture and the noise"),
        (lambda: KeepsGenerators(16), "A resume will fail: a checkpoint cannot hold the Generator at /rng"),
        (lambda: ForgetfulJitter(ToyEnv(16)), "A resumed run will differ, in the picture and the noise"),
    ],
)
def test_each_way_in_which_it_may_not_is_found(make, words):
    assert any(problem.startswith(words) for problem in found(make())), found(make())


def test_the_doctor_notes_it(tmp_path, capsys):
    words = ["doctor", "preset=debug", "distractors=none", f"run_dir={tmp_path / 'new'}"]
    assert main([*words, "env=toy"]) == 0
    assert "repeats itself from a seed and from a state" in capsys.readouterr().out
    assert main([*words, "env=gym", "env.id=gym_envs:Forgetful"]) == 0
    printed = capsys.readouterr().out
    assert "does not repeat itself" in printed and "note: A resume will begin a new episode" in printed
