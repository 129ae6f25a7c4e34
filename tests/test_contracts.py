"""Mistakes in parts from outside: each is one clear line where it is made, and never a wrong result."""

import dataclasses
import os
import re
import subprocess
import sys
import typing
from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from conftest import small_agent
from small_runs import TINY, tiny

from denoised_mdp import (
    plugins,
    register_agent,
    register_distractor,
    register_policy,
    register_probe,
    register_suite,
    register_table,
)
from denoised_mdp.agents.base import Agent
from denoised_mdp.agents.curl import CURL
from denoised_mdp.agents.pixel_sac import PixelSAC
from denoised_mdp.agents.registry import AGENTS, build_agent
from denoised_mdp.analysis import probe
from denoised_mdp.analysis.probes import PROBES
from denoised_mdp.analysis.probes.factors import Options as FactorsOptions
from denoised_mdp.analysis.report.parts import probe_part, safely
from denoised_mdp.bench.estimate import shrunk
from denoised_mdp.bench.update import sizes
from denoised_mdp.cli.arguments import Parser, add_fields
from denoised_mdp.cli.main import main
from denoised_mdp.config import load_config, schema
from denoised_mdp.config.agents import CURLConfig, PixelSACConfig
from denoised_mdp.config.effect import notes
from denoised_mdp.config.policies import SACConfig
from denoised_mdp.envs.distractors import Distractor
from denoised_mdp.envs.options import DISTRACTORS
from denoised_mdp.envs.pixels import PixelEnv
from denoised_mdp.envs.suites import SUITES
from denoised_mdp.envs.toy import ToyEnv
from denoised_mdp.envs.vector import EnvironmentPool
from denoised_mdp.errors import EnvironmentFailure, UserError
from denoised_mdp.models.cuda_graph import refuse_numbers
from denoised_mdp.models.denoised import DenoisedModel
from denoised_mdp.models.registry import MODELS
from denoised_mdp.options import check_options, group, option
from denoised_mdp.policies import POLICIES, Policy
from denoised_mdp.policies.sac import SACPolicy
from denoised_mdp.run.logger import Logger
from denoised_mdp.run.nan_check import scalars


class WithHead(DenoisedModel):
    """A net that is added when the optimizer has been made."""

    def __init__(self, *arguments, **options):
        super().__init__(*arguments, **options)
        self.head = torch.nn.Linear(3, 2)


class WithTrainedHead(WithHead):
    def __init__(self, *arguments, **options):
        super().__init__(*arguments, **options)
        self.optimizers["model"] = self.make_optimizer(self.parameters())


def test_weights_that_no_optimizer_moves_are_refused(monkeypatch):
    monkeypatch.setitem(MODELS, "denoised", WithHead)
    with pytest.raises(UserError, match=r"no optimizer moves world_model.head.weight, world_model.head.bias\. Make"):
        build_agent(load_config(TINY), 2)
    monkeypatch.setitem(MODELS, "denoised", WithTrainedHead)
    build_agent(load_config(TINY), 2)


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (lambda a: 7 * torch.ones_like(a), r"\[1, 2\], up to 7"),
        (lambda a: a[:, :1], r"\[1, 1\], up to .*be \[1, 2\]"),
        (lambda a: a * torch.nan, r"\[1, 2\], up to nan"),
    ],
)
def test_actions_are_those_of_the_space(wrong, words):
    agent = small_agent()
    right = agent.policy.act
    agent.policy.act = lambda features, noise: wrong(right(features, noise))
    with pytest.raises(UserError, match=f"Policy.act returns actions {words}"):
        agent.act(np.zeros((64, 64, 3), np.uint8))


class Ends(ToyEnv):
    """It ends, and does not say so."""

    def step(self, action):
        signal, reward, _, truncated, info = super().step(action)
        return signal, reward, True, truncated, info


class Endless(ToyEnv):
    def step(self, action):
        signal, reward, *_ = super().step(action)
        return signal, reward, False, False, {}


class TwoSignals(ToyEnv):
    signal_names = ("dot/x",)


class Floats(ToyEnv):
    def frame(self):
        return super().frame() / 255


@dataclass
class NoOptions:
    """Of a distractor without any."""


class Noisy(Distractor):
    """One name, two numbers."""

    name = "noisy"
    Options = NoOptions

    def __init__(self, env):
        super().__init__(env, ("one",), {})

    def noise_values(self):
        return [1.0, 2.0]


class Gray(Distractor):
    """It forgets that pictures are whole numbers."""

    name = "gray"
    Options = NoOptions

    def __init__(self, env):
        super().__init__(env, (), {})

    def noise_values(self):
        return []

    def frame(self):
        return self.env.frame() * np.float32(0.5)


def play(world, steps=20):
    environment = PixelEnv(world, 2, recipe={"episode_steps": 11})
    environment.reset(seed=0)
    for _ in range(steps):
        if any(environment.step(np.zeros(2))[2:4]):
            environment.reset()


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Ends(16, 11), "Ends returned terminated=True where it says can_terminate = False"),
        (lambda: Endless(16, 11), "Endless goes on after its episode_steps"),
        (lambda: TwoSignals(16, 11), r"The signal of TwoSignals has 2 numbers and 1 names"),
        (lambda: Floats(16, 11), r"The frame of Floats is float64 \[16, 16, 3\], not uint8 \[16, 16, 3\]"),
        (lambda: Gray(ToyEnv(16, 11)), r"The frame of Gray is float32"),
        (lambda: Gray(Floats(16, 11)), r"The frame of Floats is float64"),
        (lambda: Noisy(ToyEnv(16, 11)), r"Distractor 'noisy' has 2 noise values and 1 names"),
    ],
)
def test_worlds_and_distractors_keep_their_contract(make, words):
    with pytest.raises(UserError, match=words):
        play(make())


def test_an_environment_that_cannot_be_made_is_a_failure_of_the_environment():
    def broken():
        raise RuntimeError("no display")

    with pytest.raises(EnvironmentFailure, match="toy raised an error while it was made"):
        EnvironmentPool(broken, 2, task="toy")


def test_metrics_are_numbers_with_names_of_their_own(tmp_path):
    value = torch.ones(1, requires_grad=True)
    found = scalars({"a": 0.5, "b": 2 * value, "c": torch.tensor(3.0)})
    assert [found[name].item() for name in "abc"] == [0.5, 2.0, 3.0]
    assert all(one.shape == () and not one.requires_grad for one in found.values())
    with pytest.raises(UserError, match=r"Metric 'loss' has shape \[4\]"):
        scalars({"loss": torch.zeros(4)})
    logger = Logger(tmp_path)
    with pytest.raises(UserError, match="No metric can be called 'step'"):
        logger.log(1, {"step": 0.5})
    logger.close()


def test_numbers_are_no_metrics_of_a_graph():
    """They would stay what they were when it was recorded."""
    refuse_numbers({"a": torch.zeros(())})
    with pytest.raises(UserError, match=r"Metric 'b' is a Python number.*train\.cuda_graph=false"):
        refuse_numbers({"a": torch.zeros(()), "b": 0.5})


@pytest.mark.parametrize("reward", [float("inf"), float("nan"), -1e39])
def test_a_reward_that_cannot_be_stored_is_no_matter_of_learning_rates(tmp_path, reward):
    """The replay has float32, in which a finite number may be infinite."""
    from denoised_mdp.run.folder import RunFolder
    from denoised_mdp.run.nan_check import NanCheck, NonFiniteError

    with pytest.raises(
        NonFiniteError, match=f"reward after step 3 is {re.escape(str(reward))}.*Mend the environment"
    ) as error:
        NanCheck(RunFolder.create(tmp_path / "run")).check_reward(3, reward)
    NanCheck(RunFolder.create(tmp_path / "run")).check_reward(3, -3e38)
    assert "learning rates" not in str(error.value)


@dataclass
class Own(SACConfig):
    name: str = "own"


@dataclass
class NoDefault:
    size: int
    name: str = "own"


@dataclass
class NoName:
    size: int = 3


@dataclass
class OddType:
    name: str = "own"
    sizes: list[int] = dataclasses.field(default=None)


@dataclass
class OddGroup:
    name: str = "own"
    sizes: list[int] = dataclasses.field(default_factory=list)


@dataclass
class BadDefault:
    name: str = "own"
    size: int = option(0, "a size", low=1)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (object, "its options are not a dataclass"),
        (NoDefault, "its option 'size' has no default"),
        (NoName, "its options need a field 'name'"),
        (OddType, "its option 'sizes' has type .*options are bool, int"),
        (OddGroup, "its option 'sizes' has type .*options are bool, int"),
        (BadDefault, "its option 'size' cannot be 0, which must be a whole number, at least 1"),
        (SACConfig, "its option 'name' cannot be 'own'"),
    ],
)
def test_a_class_that_cannot_be_options_is_refused_where_it_is_registered(options, words):
    with pytest.raises(UserError, match=f"policy=own: {words}"):
        register_policy("own", SACPolicy, options)
    with pytest.raises(UserError, match=words):
        register_agent("own", PixelSAC, PixelSACConfig if options is SACConfig else options)
    assert "own" not in POLICIES and "own" not in AGENTS and "own" not in schema.POLICIES


def test_a_class_that_lacks_methods_is_refused_where_it_is_registered():
    class Half(Policy):
        def act(self, features, noise):
            return features

    @dataclass
    class Own(PixelSACConfig):
        name: str = "own"

    with pytest.raises(UserError, match=r"policy=own: Half must define update\.$"):
        register_policy("own", Half, Own)
    with pytest.raises(UserError, match=r"agent=own: Agent must define .*update_eagerly"):
        register_agent("own", Agent, Own)
    assert "own" not in POLICIES and "own" not in AGENTS and "own" not in schema.POLICIES


def test_a_policy_may_mean_something_else_by_the_names_of_our_options():
    """Nor need it have them."""

    @dataclass
    class Mine:
        name: str = "mine"
        optimizer: str = "adamw"
        warmup: int | None = None
        late_after: int | None = None
        imagine_rows: str = "all"
        imagined_value: int = 0
        replay_value: int = 0

    register_policy("mine", SACPolicy, Mine)
    try:
        options = ["preset=debug", "policy=mine", "policy.warmup=100", "policy.late_after=7", "policy.imagined_value=0"]
        config = load_config(options)
        assert config.policy.warmup == 100 and notes(config, options) == [] and sizes(config)["hidden"] is None
        assert shrunk(config, 4).policy == config.policy and notes(load_config(options[:2]), options[:2]) == []
    finally:
        del POLICIES["mine"], schema.POLICIES["mine"]


def test_help_names_an_agent_that_does_not_fit_the_usual_environment(capsys):
    """As a relative of CURL, whose crops are larger than the usual picture."""

    @dataclass
    class Mine(CURLConfig):
        name: str = option("mine", "what learns and acts", choices=("mine",))

    register_agent("mine", CURL, Mine)
    try:
        with pytest.raises(SystemExit) as end:
            main(["train", "--help"])
    finally:
        del AGENTS["mine"], schema.AGENTS["mine"]
    assert end.value.code == 0 and "agent=mine" in capsys.readouterr().out


def test_optional_is_what_a_bar_with_none_is():
    @dataclass
    class Old:
        name: str = "old"
        size: typing.Optional[int] = None  # noqa: UP045

    register_policy("old", SACPolicy, Old)
    try:
        sizes = [load_config(["policy=old", f"policy.size={word}"]).policy.size for word in ("null", "3")]
        with pytest.raises(UserError, match=r"policy.size=much: must be a whole number or null"):
            load_config(["policy=old", "policy.size=much"])
    finally:
        del POLICIES["old"], schema.POLICIES["old"]
    assert sizes == [None, 3]


def test_a_state_that_no_checkpoint_can_hold_is_one_line(tmp_path, monkeypatch, capsys):
    right = ToyEnv.get_state
    monkeypatch.setattr(ToyEnv, "get_state", lambda self: right(self) | {"seen": {1, 2}})
    assert main(["train", *TINY, f"run_dir={tmp_path / 'run'}"]) == 2
    error = capsys.readouterr().err.splitlines()[-1]
    assert "No checkpoint can be written: a checkpoint cannot hold the set at" in error and "seen; let" in error


def test_a_definition_that_is_run_again_replaces_itself(tmp_path):
    """A cell of a notebook; a script that is a plug-in of its own. Another definition of the name does not."""

    def define(strength):
        class Mist(Distractor):
            name = "mist"

            @dataclass
            class Options:
                strength: float = option(1.0, "how dense", low=0, high=1)

        Mist.density = strength
        return register_distractor(Mist)

    def suite(*tasks):
        def make(task, size, episode_steps):
            return ToyEnv(size, episode_steps)

        register_suite("mine", make, tasks)

    try:
        assert [define(strength) is DISTRACTORS["mist"] for strength in (1, 2)] == [True, True]
        assert DISTRACTORS["mist"].density == 2
        suite("a"), suite("a", "b")
        assert SUITES["mine"].tasks == ("a", "b")
        other = type("Mist", (DISTRACTORS["mist"],), {})
        with pytest.raises(UserError, match="There is a distractor 'mist' already"):
            register_distractor(other)
        for make in (ToyEnv, "own:make", lambda task, size, episode_steps: None, partial(ToyEnv, 32)):
            with pytest.raises(UserError, match="There is a suite 'mine' already"):
                register_suite("mine", make, ["a"])
            with pytest.raises(UserError, match="There is a suite 'dmc' already"):
                register_suite("dmc", make, ["a"])
        for number in (1, 2):
            (tmp_path / f"{number}").mkdir()
            (tmp_path / f"{number}" / "bricks.yaml").write_text(
                "name: bricks\nx: {belief: 3, state: 2, rewarded: true, seen_by_policy: true}\n"
            )
        register_table(tmp_path / "1" / "bricks.yaml")
        register_table(tmp_path / "1" / "bricks.yaml")
        with pytest.raises(UserError, match="There is a .*'bricks' already"):
            register_table(tmp_path / "2" / "bricks.yaml")
    finally:
        DISTRACTORS.pop("mist", None), SUITES.pop("mine", None), schema.TABLES.pop("bricks", None)
    script = tmp_path / "own.py"
    script.write_text(
        "import sys\n"
        "from denoised_mdp import register_distractor\n"
        "from denoised_mdp.envs.distractors.camera_jitter import CameraJitter\n"
        "from denoised_mdp.envs.options import DISTRACTORS\n\n\n"
        "class Mine(CameraJitter):\n    name = 'mine'\n\n\n"
        "register_distractor(Mine)\nif __name__ == '__main__':\n    print(DISTRACTORS['mine'].__module__)\n"
    )
    environment = os.environ | {"DENOISED_MDP_PLUGINS": "own"}
    done = subprocess.run([sys.executable, script.name], cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("own\n", "")


def test_the_name_of_a_built_in_part_stays_its_own():
    with pytest.raises(UserError, match="There is a policy 'sac' already"):
        register_policy("sac", WithHead, SACConfig)
    with pytest.raises(UserError, match="There is an agent 'curl' already"):
        register_agent("curl", PixelSAC, CURLConfig)
    with pytest.raises(UserError, match="distractor 'bare': its options are not a dataclass"):
        register_distractor(SimpleNamespace(name="bare", Options=None))
    assert "bare" not in DISTRACTORS


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("kl: {belief: 3, state: 2}", "a latent cannot be called 'kl'"),
        ("depth: {belief: 3, state: 2}", "a latent cannot be called 'depth'"),
        ("- x", "must have a row for each"),
        ("x: {belief: [", "is no table of latents"),
    ],
)
def test_a_table_is_read_where_it_is_registered(tmp_path, text, words):
    path = tmp_path / "odd.yaml"
    path.write_text(text)
    with pytest.raises(UserError, match=words):
        register_table(path)
    assert "odd" not in schema.TABLES


def test_a_table_of_an_unknown_model_and_one_that_is_gone(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "odd.yaml"
    path.write_text("kind: denoisd\nx: {sees_action: true, seen_by_policy: true}\n")
    register_table("odd.yaml")  # wherever the process goes
    try:
        monkeypatch.chdir("/")
        with pytest.raises(UserError, match="kind 'denoisd', which does not exist. Did you mean 'denoised'"):
            load_config(["model=odd"])
        path.unlink()
        with pytest.raises(UserError, match="odd.yaml is gone"):
            load_config(["model=odd"])
    finally:
        del schema.TABLES["odd"]


def test_options_of_probes_are_flags_of_their_own():
    @dataclass
    class Options(probe.Options):
        command: str = "x"

    with pytest.raises(UserError, match="probe 'own': its option 'command' means something else"):
        register_probe("own", probe.Probe("own", print, Options))
    with pytest.raises(UserError, match="do not extend denoised_mdp.analysis.probe.Options"):
        register_probe("own", probe.Probe("own", print, NoName))

    @dataclass
    class NoDefault(probe.Options):
        number: int = dataclasses.field(kw_only=True, metadata={"help": "none"})

    @dataclass
    class Odd(probe.Options):
        names: list = option(None, "names")

    class Plain(probe.Options):
        least: int = option(1, "the least", low=1)

    @dataclass
    class Below(Plain):
        most: int = option(1, "the most")

    @dataclass
    class Grouped(probe.Options):
        part: dict[str, int] = group(dict, "a group")

    @dataclass
    class Limited(probe.Options):
        names: tuple[str, ...] = option((), "names", choices=("a", "b"))

    wrong = [
        (NoDefault, "'number' has no default"),
        (Odd, "'names' has type"),
        (Plain, "decorate Plain with @dataclass"),
    ]
    wrong += [(Below, "decorate Plain"), (Grouped, "'part' has type"), (Limited, "cannot be limited to choices")]
    for kind, words in wrong:
        with pytest.raises(UserError, match=f"probe 'own': .*{words}"):
            register_probe("own", probe.Probe("own", print, kind))
    assert "own" not in PROBES
    for name, known in PROBES.items():
        check_options(known.Options, name, flags=True)


def test_flags_of_probes_take_all_types_of_options():
    @dataclass
    class Options(probe.Options):
        on: bool = option(True, "on")
        off: bool = option(False, "off")
        maybe: bool | None = option(None, "maybe")
        names: tuple[str, ...] = option((), "names")
        share: float | None = option(None, "a share", low=0, high=1)

    parser = Parser(prog="own")
    add_fields(parser, Options)

    def read(*words: str) -> tuple:
        found = Options(**vars(parser.parse_args(words)))
        return found.on, found.off, found.maybe, found.names, found.share

    assert read() == (True, False, None, (), None)
    assert read("--no-on", "--off", "--maybe", "false") == (False, True, False, (), None)
    assert read("--names", "[x, y]")[3] == read("--names", "x,y")[3] == ("x", "y")
    assert read("--share", "0.5", "--maybe", "true")[2::2] == (True, 0.5)
    for words, said in ((["--maybe", "perhaps"], "true or false"), (["--share", "2"], "at most 1")):
        with pytest.raises(UserError, match=said):
            read(*words)


def test_a_probe_whose_report_fails_is_a_sentence_of_the_report():
    def fails(tree):
        raise AssertionError("of its own")

    problems, tree = [], {"probe": "own", "step": 3, "split": "train", "file": None}
    own = probe.Probe("own", print, report=fails)
    assert safely(problems, "own", lambda: probe_part(own, SimpleNamespace(name="a"), tree)) is None
    assert problems == ["own cannot be shown (its probe fails: AssertionError: of its own)."]


def test_texts_of_probes_reach_help_and_file_names():
    @dataclass
    class Options(probe.Options):
        data: str = option("a", "50%d of it")

    assert Options(data="x-y").variant() == "datax-y"
    others = {Options(data=text).variant() for text in ("x/y", "x y", "x:y")}
    assert len(others) == 3 and all(re.fullmatch("datax-y-[0-9a-f]{8}", name) for name in others)
    assert FactorsOptions(episodes=4, steps=40).variant() == "train_episodes4_steps40"
    parser = Parser(prog="own")
    add_fields(parser, Options)
    assert "50%d of it" in parser.format_help()


def test_a_plug_in_that_fails_is_no_damage_of_runs(tmp_path, monkeypatch, capsys):
    """Whatever reads registries says so, each time."""
    assert main(["train", *TINY, f"run_dir={tmp_path / 'run'}"]) == 0
    (tmp_path / "broken_plugin.py").write_text("raise ValueError('so it is.')\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DENOISED_MDP_PLUGINS", "broken_plugin")
    monkeypatch.setattr(plugins, "_state", {"loaded": False, "error": None})
    capsys.readouterr()
    for command in (["status", "run"], ["status", "run"], ["report", "run"]):
        assert main(command) == 2
        error = capsys.readouterr().err
        assert "broken_plugin: cannot be imported: ValueError: so it is" in error and ".." not in error


def test_an_agent_is_built_where_nothing_has_looked_for_plug_ins_yet(monkeypatch):
    """As in a process that learns a part of each batch: it gets a configuration and reads none."""

    @dataclass
    class Options(SACConfig):
        name: str = "mine"

    plugin = SimpleNamespace(load=lambda: lambda: register_policy("mine", SACPolicy, Options))
    monkeypatch.setattr(plugins, "entry_points", lambda group: [plugin])
    monkeypatch.setattr(plugins, "_state", {"loaded": False, "error": None})
    config = load_config(TINY)
    config.policy = Options(hidden=8)
    del POLICIES["mine"], schema.POLICIES["mine"]
    monkeypatch.setattr(plugins, "_state", {"loaded": False, "error": None})
    try:
        assert isinstance(build_agent(config, 2).policy, SACPolicy)
    finally:
        del POLICIES["mine"], schema.POLICIES["mine"]


def test_a_run_of_a_missing_plug_in_says_what_to_set(tmp_path, capsys):
    config = tiny(tmp_path / "run")
    assert main(["train", *TINY, f"run_dir={config.run_dir}"]) == 0
    path = tmp_path / "run" / "config.yaml"
    path.write_text(path.read_text().replace("name: backprop", "name: backprob"))
    assert main(["evaluate", config.run_dir]) == 2
    assert "unknown policy" in (error := capsys.readouterr().err) and "DENOISED_MDP_PLUGINS" in error
