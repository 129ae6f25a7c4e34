"""The configuration: the paper's numbers, which override wins, and mistakes answered in one line."""

import dataclasses
import inspect

import numpy as np
import pytest
import yaml
from conftest import options_of
from omegaconf import OmegaConf

import denoised_mdp
from denoised_mdp.cli.completion import complete
from denoised_mdp.cli.help import train_help
from denoised_mdp.cli.words import translate_multirun
from denoised_mdp.config import as_tree, default_run_dir, load_config, read_config, save_config
from denoised_mdp.config.agents import CURLConfig
from denoised_mdp.config.choices import all_options, choices, config_folder, latents
from denoised_mdp.config.compare import contrast, differences
from denoised_mdp.config.compose import flatten
from denoised_mdp.config.schema import BackpropConfig, Config, ReinforceConfig, RePoConfig, SACConfig
from denoised_mdp.envs import DISTRACTORS, make_env
from denoised_mdp.envs.distractors import Distractor
from denoised_mdp.envs.options import check_distractors, fitting_distractors, register_distractor
from denoised_mdp.envs.suites import SUITES, register_suite
from denoised_mdp.errors import UserError
from denoised_mdp.models.denoised import DenoisedModel
from denoised_mdp.models.losses import KLSchedule, KLWeights
from denoised_mdp.models.repo import RePo
from denoised_mdp.models.tia import TIA
from denoised_mdp.models.vision import Decoder, Encoder
from denoised_mdp.options import arguments, defaults, option
from denoised_mdp.policies.actor import Actor, CategoricalActor
from denoised_mdp.replay.ring import Replay

VARIANTS = {
    "noiseless": [],
    "video_background": ["video_background"],
    "video_background_noisy_sensor": ["video_background", "noisy_sensor"],
    "video_background_camera_jitter": ["video_background", "camera_jitter"],
}
# Wang et al. 2022, Table D.5, in the order of VARIANTS.
BETA = {
    ("cheetah_run", "backprop"): (1, 0.125, 0.25, 0.25),
    ("walker_walk", "backprop"): (1, 0.25, 0.25, 0.5),
    ("reacher_easy", "backprop"): (1, 0.25, 0.25, 0.25),
    ("cheetah_run", "sac"): (1, 0.125, 0.125, 0.25),
    ("walker_walk", "sac"): (1, 0.25, 0.125, 0.5),
    ("reacher_easy", "sac"): (1, 0.125, 0.25, 0.25),
}


def sizes(config):
    return tuple((row.belief, row.state) for row in config.model.latents.values())


@pytest.mark.parametrize(("task", "policy"), BETA)
def test_paper_presets_have_the_betas_of_table_d5(task, policy):
    for (variant, distractors), beta in zip(VARIANTS.items(), BETA[task, policy], strict=True):
        config = load_config([f"preset=paper/{task}_{variant}", f"policy={policy}"])
        assert (config.env.task, list(config.distractors)) == (task, distractors)
        for name, options in config.distractors.items():
            papers = {"start": "continue", "resize": "bilinear"} if name == "video_background" else {}
            assert options == defaults(DISTRACTORS[name].Options) | papers
        assert [row.beta for row in config.model.latents.values()] == [1, beta] and config.model.kl.beta == beta
        slow = policy == "sac" and task == "walker_walk"
        if policy == "sac":
            rates = (config.policy.actor_lr, config.policy.critic_lr, config.policy.temperature_lr)
            assert rates == (1e-4,) * 3 if slow else rates == (3e-4,) * 3
            assert config.policy.actor_clip == (100 if slow else None)
        else:
            assert (config.policy.actor_lr, config.policy.value_lr, config.policy.clip) == (8e-5, 8e-5, 100)


def test_paper_presets_are_the_twelve_of_the_table_and_robodesk():
    papers = {name for name in choices("preset") if name.startswith("paper/")}
    control = {f"paper/{task}_{variant}" for task, _ in BETA for variant in VARIANTS}
    assert papers == control | {"paper/robodesk_tv_green_hue"}
    robodesk = load_config(["preset=paper/robodesk_tv_green_hue"])
    assert (robodesk.env.suite, robodesk.env.size, robodesk.alpha) == ("robodesk", 96, 2)
    assert [row.beta for row in robodesk.model.latents.values()] == [1, 0.125]
    for name in papers:  # the prefill is five whole episodes
        config = load_config([f"preset={name}"])
        assert config.train.prefill_steps == 5 * (config.episode_rows - 1) * config.env.action_repeat


def test_defaults_are_the_papers():
    config = load_config([])
    train, model = config.train, config.model
    assert (train.total_steps, train.prefill_steps, train.train_every, train.updates) == (10**6, 5000, 1000, 100)
    assert (train.batch_size, train.segment_length, train.exploration_noise) == (50, 50, 0.3)
    assert (train.eval_every, train.eval_episodes, train.render_every) == (10_000, 10, 20_000)
    assert (model.optimizer.lr, model.optimizer.eps, model.optimizer.clip) == (6e-4, 1e-7, 100)
    assert (config.policy.horizon, config.policy.gamma, config.policy.lambda_) == (15, 0.99, 0.95)
    assert (config.env.size, config.env.action_repeat, config.env.episode_steps) == (64, 2, 1000)
    assert config.distractors == {}
    sac = load_config(["policy=sac"]).policy
    assert (sac.initial_temperature, sac.eps, sac.actor_clip, sac.target_entropy) == (1, 1e-7, None, None)
    assert (sac.gamma, sac.tau, sac.actor_lr, sac.critic_lr, sac.temperature_lr) == (0.99, 0.005, *[3e-4] * 3)


def test_structures_have_the_papers_sizes():
    assert sizes(load_config([])) == ((120, 20), (120, 20))
    config = load_config(["model=2c"])
    assert sizes(config) == ((120, 20), (70, 10), (70, 10)) and config.model.latents["z"].parents == ("x",)
    assert sizes(load_config(["model=dreamer"])) == ((220, 33),)
    assert sizes(load_config(["model=confounder"])) == ((70, 10), (120, 20), (70, 10))


def test_alpha_and_replay_follow_the_environment_unless_set():
    assert load_config([]).alpha == 1 and load_config(["env.size=96"]).alpha == 2
    assert load_config(["env.size=96", "model.kl.alpha=0.5"]).alpha == 0.5
    assert [load_config([f"env.size={size}"]).alpha for size in (32, 48)] == [1 / 4, 9 / 16], "as the number of pixels"
    assert load_config([]).replay_capacity == 1000 * (500 + 1)  # one row per action, one more per episode
    assert load_config(["train.total_steps=1001", "train.prefill_steps=200"]).replay_capacity == 2 * 501
    limited = load_config(["replay.capacity=777", "train.checkpoint_every=3000"])
    assert (limited.replay_capacity, limited.replay_slack(False), load_config([]).replay_slack(False)) == (777, 3000, 0)
    assert load_config(["train.checkpoint_every=3000"]).replay_slack(True) == 3000, "early ends add first rows"
    each = load_config(
        ["replay.capacity=777", "train.checkpoint_every=1", "env.action_repeat=2", "train.collect_envs=4"]
    )
    assert each.replay_slack(False) == 8, "a turn of four environments comes before each checkpoint"
    rounds = ["replay.capacity=777", "train.checkpoint_every=100", "train.train_every=400"]
    assert load_config(rounds).replay_slack(False) == 100
    rounds.append("train.collect_workers=1")
    assert load_config([*rounds, "train.overlap=true"]).replay_slack(False) == 500, "a checkpoint waits for the round"
    assert load_config([*rounds, "train.overlap=true", "train.checkpoint_every=0"]).replay_slack(False) == 0
    never = ["replay.capacity=777", "train.checkpoint_every=10_000_000", "train.total_steps=50_000"]
    assert load_config(never).replay_slack(False) == 2 * 50_002 // 2, "no more than the run can add"


def test_a_last_action_that_is_cut_short_has_a_row():
    config = load_config(["env.episode_steps=125", "env.action_repeat=2"])
    assert config.episode_rows == 1 + 63, "the first observation, 62 whole actions and half of one"


def test_weights_of_the_signal_without_a_signal_are_refused():
    for words in (["preset=quickstart"], ["preset=debug", "model.kl.free_nats_strategy=B"]):
        with pytest.raises(UserError, match=r"has no effect: no latent has free=true. Set model.kl.\w+=[1A]\."):
            load_config([*words, "model.x.free=false"])
    assert load_config(["preset=quickstart", "model.x.free=false", "model.kl.relax=1"]).model.kl.relax == 1


def test_an_agent_that_cannot_be_captured_says_how_to_have_it_with_a_preset_that_captures():
    words = ["preset=modern", "agent=sac_pixels"]
    for key in ("train.cuda_graph", "replay.latents"):
        with pytest.raises(UserError, match=f"{key}=true: .*set it to false"):
            load_config(words)
        words.append(f"{key}=false")
    load_config(words)


@pytest.mark.parametrize("model", choices("model"))
@pytest.mark.parametrize("preset", ["debug", "quickstart", "paper/walker_walk_video_background"])
@pytest.mark.parametrize("policy", ["backprop", "sac"])
def test_every_preset_goes_with_every_structure_and_policy(preset, model, policy):
    config = load_config([f"preset={preset}", f"model={model}", f"policy={policy}"])
    assert (config.preset, config.model.name, config.policy.name) == (preset, model, policy)
    assert tuple(config.model.latents) == latents(model)


@pytest.mark.parametrize("group", ["model", "policy"])
def test_what_a_preset_says_for_one_model_or_policy_applies_there(group):
    """Each file belongs to a preset and a choice that exist: Hydra would silently leave out one that does not."""
    folder = config_folder() / f"preset_{group}"
    for file in folder.rglob("*.yaml"):
        preset, choice = file.parent.relative_to(folder).as_posix(), file.stem
        assert preset in choices("preset") and choice in choices(group), file
        composed = dict(flatten(as_tree(load_config([f"preset={preset}", f"{group}={choice}"]))))
        said = dict(flatten(OmegaConf.to_container(OmegaConf.load(file))))
        assert {key: composed[key] for key in said} == said
    config = load_config(["preset=quickstart", "model=confounder"])
    assert sizes(config) == sizes(load_config(["model=confounder"]))  # no file: the table's own rows


def test_the_command_line_wins_over_presets_in_any_order():
    preset = "preset=paper/walker_walk_video_background"
    config = load_config(["model.kl.beta=0.5", "policy=sac", "policy.actor_clip=null", preset, "distractors=none"])
    assert (config.model.kl.beta, config.policy.actor_clip, config.policy.actor_lr) == (0.5, None, 1e-4)
    assert config.distractors == {}
    config = load_config(["preset=debug", "model.y.belief=7", "model.x={belief: 5, state: 3}"])
    assert sizes(config)[:2] == ((5, 3), (7, 6))
    assert load_config([preset, "model.y.beta=0.75"]).model.kl.beta == 0.25


def test_one_beta_serves_all_noise_unless_a_row_has_its_own():
    def betas(*overrides):
        return [row.beta for row in load_config(["model=2c", "model.kl.beta=0.125", *overrides]).model.latents.values()]

    assert betas() == [1, 0.125, 0.125]
    assert betas("model.z.beta=1") == [1, 0.125, 1]


def test_cells_of_the_table_are_set_by_name():
    row = load_config(["model.x.distribution=categorical", "model.x.classes=5", "model.y.rewarded=false"]).model.latents
    assert (row["x"].distribution, row["x"].classes, row["x"].width) == ("categorical", 5, 100)
    assert (row["y"].rewarded, row["y"].distribution, row["y"].width) == (False, "gaussian", 20)
    assert load_config(["model=2c", "model.z.parents=[x,y]"]).model.latents["z"].parents == ("x", "y")


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("video_background,camera_jitter", ["video_background", "camera_jitter"]),
        ("camera_jitter, video_background", ["video_background", "camera_jitter"]),
        ("[video_background,noisy_sensor]", ["video_background", "noisy_sensor"]),
        ("camera_jitter", ["camera_jitter"]),
        ("{video_background: {strength: 0.5}, camera_jitter: {}}", ["video_background", "camera_jitter"]),
        ("none", []),
        ("[]", []),
        ("null", []),
        ("{}", []),
    ],
)
def test_distractors_on_the_command_line(text, names):
    config = load_config(["preset=debug", f"distractors={text}"])
    assert list(config.distractors) == names
    for name, options in config.distractors.items():
        expected = defaults(DISTRACTORS[name].Options) | (
            {"strength": 0.5} if "0.5" in text and "video" in name else {}
        )
        assert options == expected


@pytest.mark.parametrize(
    ("text", "translated"),
    [
        ("video_background,camera_jitter", ["distractors=[video_background,camera_jitter]"]),
        ("none", ["distractors=[]"]),
        (
            "[video_background,camera_jitter],[camera_jitter],[]",
            ["distractors=[video_background,camera_jitter],[camera_jitter],[]"],
        ),
        ("[camera_jitter], none", ["distractors=[camera_jitter],[]"]),
        ("{camera_jitter: {strength: 2}}", ["distractors=[camera_jitter]", "++distractors.camera_jitter.strength=2"]),
    ],
)
def test_distractors_in_a_sweep(text, translated):
    *found, _, excluded = translate_multirun([f"distractors={text}"])[0]
    assert found == translated
    sweeps = found[0].count("[") > 1
    assert ("[distractors" in excluded) == (not sweeps)  # what varies names the folder
    if not sweeps:  # then it means the same as without --multirun
        assert load_config(found) == load_config([f"distractors={text}"])


@pytest.mark.parametrize("preset", choices("preset"))
def test_what_a_preset_says_of_distractors_applies_where_they_are_chosen(preset):
    config = load_config([f"preset={preset}"])
    one, two = ("tv", "camera_shake") if config.env.suite == "robodesk" else ("video_background", "camera_jitter")
    assert load_config([f"preset={preset}", "distractors=none"]).distractors == {}
    assert list(load_config([f"preset={preset}", f"distractors={two}"]).distractors) == [two]
    both = load_config([f"preset={preset}", f"distractors={one},{two}"]).distractors
    assert both == {name: config.distractors.get(name, defaults(DISTRACTORS[name].Options)) for name in (one, two)}


def test_options_of_distractors():
    config = load_config(["distractors=camera_jitter", "distractors.camera_jitter.strength=2"])
    assert config.distractors == {"camera_jitter": {"strength": 2, "dynamic": True}}
    config = load_config(["preset=quickstart", "distractors.video_background.color=true"])
    assert config.distractors["video_background"]["color"] is True


def test_defaults_of_policies_stand_in_the_schema_alone():
    from denoised_mdp.policies import POLICIES

    for kind in (BackpropConfig, ReinforceConfig, SACConfig):
        _, _, *parameters = inspect.signature(POLICIES[kind().name].__init__).parameters.values()
        assert {parameter.name for parameter in parameters} == set(arguments(kind()))
        assert all(parameter.default is inspect.Parameter.empty for parameter in parameters)


@pytest.mark.parametrize(
    "kind", [DenoisedModel, RePo, TIA, Encoder, Decoder, KLWeights, KLSchedule, Actor, CategoricalActor]
)
def test_no_option_of_a_model_has_a_default_in_its_constructor(kind):
    """Else `RePo(table, 2)` is another model than ``model=repo``."""
    parameters = inspect.signature(kind).parameters.values()
    with_default = [parameter.name for parameter in parameters if parameter.default is not parameter.empty]
    assert with_default == (["channels"] if kind is Decoder else [])  # no option
    first = [None for parameter in parameters if parameter.kind is parameter.POSITIONAL_OR_KEYWORD]
    options = options_of(kind)
    for name in options:
        with pytest.raises(TypeError, match=f"missing 1 required keyword-only argument: '{name}'"):
            kind(*first, **{other: value for other, value in options.items() if other != name})


@pytest.mark.parametrize(
    "path", ["/a b/*.mp4", "it's, {x}/*[0-9].mp4", "C:\\x\\", "a\\'b", "/ü/=,#", "'", '/"q"', "$HOME/x", "(1)", "'\\'"]
)
def test_paths_need_no_quotes(path):
    assert load_config([f"env.clips={path}"]).env.clips == path
    assert load_config([f"run_dir={path}"]).run_dir == path


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (["env.taks=walker_walk"], ["env.taks", "'env.task'"]),
        (["total_steps=5"], ["'train.total_steps'"]),
        (["trian.updates=5"], ["'train.updates'"]),
        (["presett=debug"], ["'preset'"]),
        (["env.task=cheetah_rum"], ["env.task=cheetah_rum", "'cheetah_run'"]),
        (["env=toy", "env.task=dott"], ["'dot'"]),
        (["model=2x"], ["model=2x", "Did you mean"]),
        (["distractors=video"], ["unknown distractor 'video'", "Did you mean 'video_background'"]),
        (["policy=sack"], ["'sac'"]),
        (["preset=paper/cheetah_run_video_backgroud"], ["'paper/cheetah_run_video_background'"]),
        (["distractors=camera_jiter"], ["'camera_jitter'"]),
        (["distractors={camera_jiter: {}}"], ["'camera_jitter'"]),
        (["distractors.camera_jiter.strength=1"], ["'distractors.camera_jitter.strength'"]),
        (["distractors.camera_jitter.strength=1"], ["distractors=camera_jitter"]),
        (["distractors=noisy_sensor"], ["video_background"]),
        (["distractors=camera_jitter", "distractors.camera_jitter.strength=-1"], ["strength", "at least 0", "-1"]),
        (["distractors={camera_jitter: 3}"], ["distractors.camera_jitter=3"]),
        (["model.kl.beta=1.5"], ["model.kl.beta=1.5", "greater than 0 and at most 1"]),
        (["model.kl.beta=0"], ["model.kl.beta=0", "greater than 0"]),
        (["model.kl.beta=high"], ["model.kl.beta=high", "a number"]),
        (["model.kl.beta=null"], ["model.kl.beta=null"]),
        (["train.exploration_noise=nan"], ["a number"]),
        (["train.updates=1.5"], ["train.updates=1.5", "whole number"]),
        (["train.updates=true"], ["whole number"]),
        (["train.updates="], ["whole number"]),
        (["train.deterministic=1"], ["true or false"]),
        (["env.size=65"], ["env.size=65", "64, 96"]),
        (["env.quality=fats"], ["fast, faithful"]),
        (["train.device=gpu"], ["cpu"]),
        (["model.kl.free_nats_strategy=C"], ["A, B"]),
        (["model.kl.free_nats_strategy=B", "model.kl.dyn=1"], ["model.kl.dyn=1.0", "free_nats_strategy=A"]),
        (["model.kl.free_nats_strategy=B", "model.x.beta=0.5"], ["model.kl.beta=1.0", "model.x.beta=0.5"]),
        (
            ["model.kl.free_nats_strategy=B", "model.kl.beta=0.1", "model.x.beta=0.2", "model.y.beta=0.5"],
            ["model.y.beta=0.5", "model.x.beta=0.2"],
        ),
        (
            ["model=2c", "model.kl.free_nats_strategy=B", "model.z.beta=0.5"],
            ["model.z.beta=0.5", "the same as model.y.beta=1.0"],
        ),
        (["model.z.belief=3"], ["model=2b has no latent z"]),
        (["model=2c", "model.z={belief: 0, state: 0}"], ["model.z.belief=0", "at least 1"]),
        (["model.y.parents=[z]"], ["latent y has parent z, which must stand before it"]),
        (["model.x.parents=3"], ["model.x.parents=3", "a list of names"]),
        (["model.x.seen_by_policy=false"], ["the policy must see a latent that is rewarded"]),
        (["model=confounder", "model.c.seen_by_policy=false"], ["the policy sees x, which reads c"]),
        (["model.x.distribution=cauchy"], ["gaussian, categorical"]),
        (["model.x.beleif=3"], ["'model.x.belief'"]),
        (["model.name=2c"], ["model=2b|2c|confounder|dreamer|four_blocks|repo|tia"]),
        (
            ["model.kind=repo"],
            ["model.kind cannot be set by itself", "model=2b|2c|confounder|dreamer|four_blocks|repo|tia"],
        ),
        (["model.kl_limit=2"], ["only model=repo has this option"]),
        (["model.x=5"], ["model.x=5: must be a group of options"]),
        (["model.kl=5"], ["model.kl=5: must be a group of options"]),
        (["model=repo", "model.kl_limit=0"], ["model.kl_limit=0", "greater than 0"]),
        (["policy.tau=0.1"], ["policy=sac"]),
        (["policy=sac", "policy.horizon=3"], ["policy=backprop|reinforce"]),
        (["train.segment_length=502"], ["train.segment_length=502", "only 501 rows"]),
        (["env.episode_steps=90"], ["train.segment_length=50", "env.episode_steps=90", "only 46 rows"]),
        (["agent=pisac", "env.episode_steps=6"], ["agent=pisac", "only 4 rows", "5 are needed"]),
        (["train.prefill_steps=97"], ["98"]),
        (["train.total_steps=4999"], ["train.total_steps=4999", "train.prefill_steps=5000"]),
        (["replay.capacity=98"], ["replay.capacity=98", "at least 99", "train.segment_length=50"]),
        (["train.threads=100000"], ["train.threads=100000", "at most 1024"]),  # more crash the process
        (["policy.initial_std=1e300"], ["policy.initial_std", "at most 1000"]),
        (["model.reward_std=1e-300"], ["model.reward_std", "at least 0.001"]),
        (["env.episode_steps=3", "env.action_repeat=4"], ["env.episode_steps=3", "at least 4"]),
        ([f"seed={'9' * 400}"], ["whole number", "at most 2147483647"]),
        ([f"train.updates={'9' * 400}"], ["whole number", "at most"]),
        ([f"model.optimizer.lr={'9' * 400}"], ["a number"]),
        ([f"seed={'9' * 5000}"], ["seed=999"]),
        (["distractors=camera_jitter", f"distractors.camera_jitter.strength={'9' * 400}"], ["a number"]),
        (["model.beta=0.25"], ["'model.kl.beta'", "model.y.beta"]),
        (["distractors=[camera_jitter],[]"], ["--multirun"]),
        (["distractors=[camera_jitter"], ["'camera_jitter'"]),
        (["distractors={camera_jitter: {}},{}"], ["distractors=[a,b],[c],none"]),
        (["env.clips=a\nb"], ["control characters"]),
        (["env.clips=\udcff"], ["not UTF-8"]),
        (["seed=1,2"], ["--multirun"]),
        (["model=2b,2c"], ["--multirun"]),
        (["seed=[1"], ["seed=[1"]),
        (["seed=${nothing}"], ["nothing"]),
        (["hydra/launcher=basic"], ["--multirun"]),
        (["cheetah_run"], ["key=value"]),
        (["=3"], ["key=value"]),
        (["+new.key=3"], ["unknown option"]),
        (["model=null"], ["model=null"]),
        (["train=3"], ["train=3"]),
    ],
)
def test_mistakes_are_answered_in_one_line(overrides, words):
    with pytest.raises(UserError) as mistake:
        load_config(overrides)
    assert "\n" not in str(mistake.value)
    for word in words:
        assert word in str(mistake.value)


@pytest.mark.parametrize("rows", [5, 6, 8, 20])
def test_the_smallest_replay_always_holds_a_segment(tmp_path, rows):
    """By brute force: the least capacity that is accepted is enough after every row, one less is not."""
    length, action, frame = 5, np.zeros(1), np.zeros((1, 1, 3), np.uint8)
    for capacity in (8, 9):
        replay, held = Replay(tmp_path / str(capacity), capacity, frame.shape, 1), []
        for row in range(60):
            replay.add(frame, action, 0.0, row % rows == 0)
            held.append(replay.count_segments(length))
        assert (min(held[length - 1 :]) > 0) == (capacity == 9)
    command = ["preset=debug", f"train.segment_length={length}", f"env.episode_steps={2 * rows - 2}"]
    assert load_config([*command, "replay.capacity=9"]).replay_capacity == 9
    with pytest.raises(UserError, match="at least 9"):
        load_config([*command, "replay.capacity=8"])


def test_whole_floats_are_whole_numbers():
    steps = load_config(["train.total_steps=2e5"]).train.total_steps
    assert steps == 200_000 and type(steps) is int
    assert type(load_config(["model.kl.beta=1"]).model.kl.beta) is float


def test_loading_twice_gives_equal_and_separate_configurations():
    first, second = load_config(["preset=quickstart"]), load_config(["preset=quickstart"])
    assert first == second
    first.distractors["video_background"]["strength"] = 0.1
    del first.model.latents["x"]
    assert second == load_config(["preset=quickstart"])


@pytest.mark.parametrize("overrides", [[], ["preset=debug", "policy=sac", "model=2c", "env.clips=a ${b}: #'"]])
def test_saved_configurations_come_back_equal(tmp_path, overrides):
    config = load_config([text.replace("$", "\\$") for text in overrides])
    save_config(config, tmp_path / "config.yaml")
    assert read_config(tmp_path) == read_config(tmp_path / "config.yaml") == config
    assert [path.name for path in tmp_path.iterdir()] == ["config.yaml"]


@pytest.mark.parametrize(
    "words",
    [
        ["preset=debug", "agent=curl"],
        ["preset=repo", "model=repo"],
        ["preset=modern", "env.task=walker_walk", "distractors=video_background,camera_jitter"],
        ["preset=paper/robodesk_tv_green_hue", "policy=reinforce", "distractors.tv.strength=0.5"],
        ["preset=quickstart", "env=gym", "env.id=Reacher-v5", "env.action_repeat=1", "distractors=none", "model=tia"],
    ],
)
def test_the_folder_of_a_run_stands_for_its_configuration(tmp_path, words):
    config = load_config([*words, f"run_dir={tmp_path}"])
    save_config(config, tmp_path / "config.yaml")
    assert load_config([str(tmp_path)]) == config
    longer = load_config([str(tmp_path), "train.total_steps=9_000_000"])
    assert contrast(config, longer) == [f"train.total_steps: {config.train.total_steps} -> 9000000"]


def test_a_run_takes_no_options_of_parts_that_it_lacks(tmp_path):
    config = load_config(["preset=debug", "distractors=none", r"env.clips='a \${b}'", f"run_dir={tmp_path}"])
    save_config(config, tmp_path / "config.yaml")
    for word, why in [
        ("distractors.camera_jitter.strength=2", "no such distractor"),
        ("model.z.state=3", "model=2b has no latent z"),
        ("model=2c", "cannot change in a run that continues"),
    ]:
        with pytest.raises(UserError, match=why):
            load_config([str(tmp_path), word])
    found = load_config([str(tmp_path), "train.log_every=${train.eval_every}"])
    assert found.env.clips == config.env.clips and "${b}" in found.env.clips
    assert found.train.log_every == config.train.eval_every


def test_configurations_that_cannot_be_read(tmp_path):
    with pytest.raises(UserError, match="no config.yaml"):
        read_config(tmp_path / "nowhere")
    for text, words in [
        ("a: [", "not valid YAML: look at line 1"),
        ("a: 1\nb: [1\nc: 2", "not valid YAML: look at line 3"),
        ("", "not the configuration"),
        ("trian: {}", "'train'"),
        ("train: {updates: 0}", "train.updates=0"),
        ("policy: {name: other}", "policy.name=other"),
    ]:
        (tmp_path / "config.yaml").write_text(text)
        with pytest.raises(UserError, match="config.yaml") as mistake:
            read_config(tmp_path)
        assert words in str(mistake.value) and "\n" not in str(mistake.value)


def test_differences_name_what_may_not_change():
    command = ["preset=debug", "model.kl.beta=0.25"]
    old = load_config(command)
    assert differences(old, load_config(command)) == []
    harmless = ["train.total_steps=30000", "run_dir=elsewhere", "train.threads=1", "train.eval_every=0"]
    assert differences(old, load_config([*command, *harmless])) == []
    changed = differences(old, load_config(["preset=debug", "model.kl.beta=0.5", "distractors=none"]))
    assert changed == [
        "distractors: video_background -> none",
        "model.kl.beta: 0.25 -> 0.5",
        "model.y.beta: 0.25 -> 0.5",
    ]
    more = ["distractors=video_background,camera_jitter", "distractors.video_background.strength=0.5"]
    assert differences(old, load_config([*command, *more])) == [
        "distractors: video_background -> video_background, camera_jitter"
    ]
    curl = load_config(["preset=debug", "agent=curl"])
    assert differences(old, curl) == ["agent: world_model -> curl", "train.exploration_noise: 0.3 -> 0.0"], "no model's"
    assert differences(old, load_config([*command, "policy=sac"])) == ["policy: backprop -> sac"], "not its options"


def test_options_that_came_after_a_run_was_saved_have_their_defaults(tmp_path):
    """At the top, in groups, and of distractors; what was saved counts, and defaults that were changed differ."""
    command = ["distractors=camera_jitter,video_background", "distractors.video_background.strength=0.5"]
    config = load_config(command)
    save_config(config, tmp_path / "config.yaml")
    tree = yaml.safe_load((tmp_path / "config.yaml").read_text())
    for group, key in (
        (tree, "replay"),
        (tree["model"], "reward_std"),
        (tree["model"]["kl"], "free_nats_strategy"),
        (tree["policy"], "entropy"),
        (tree["distractors"]["camera_jitter"], "dynamic"),
        (tree["distractors"]["video_background"], "matte"),
    ):
        del group[key]
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(tree))
    old = read_config(tmp_path)
    assert old == config and differences(old, config) == []
    for text in ("model.reward_std=2.0", "policy.entropy=0.25", "distractors.camera_jitter.dynamic=false"):
        key, value = text.split("=")
        (line,) = differences(old, load_config([*command, text]))
        assert line.startswith(f"{key}: ") and line.endswith(f" -> {value}")


@pytest.mark.parametrize("prefill, every, updates", [(5000, 1000, 100), (7, 3, 2), (1, 1, 1), (10, 40, 3)])
@pytest.mark.parametrize("rounds", [0, 1, 6, 7])
def test_updates_fall_due_after_the_prefill_and_then_at_an_interval_but_not_at_the_end(prefill, every, updates, rounds):
    config = Config()
    config.train.prefill_steps, config.train.train_every, config.train.updates = prefill, every, updates
    end = config.train.total_steps = prefill + rounds * every
    for step in (0, prefill - 1, prefill, prefill + 1, prefill + every - 1, prefill + every, end - 1, end, end + 1):
        due = [prefill, *range(prefill + every, end, every)]  # a run of the prefill alone learns once
        assert config.updates_due(step) == updates * sum(step >= one for one in due)


def test_the_first_round_may_have_updates_of_its_own():
    config = Config()
    config.train.prefill_steps, config.train.train_every, config.train.updates = 20, 10, 2
    config.train.total_steps, config.train.first_updates = 60, 7
    assert [config.updates_due(step) for step in (19, 20, 29, 30, 45, 60)] == [0, 7, 7, 9, 11, 13]


def test_a_run_saved_before_there_were_agents_is_one_of_a_world_model(tmp_path):
    config = load_config(["model=2c"])
    save_config(config, tmp_path / "config.yaml")
    tree = yaml.safe_load((tmp_path / "config.yaml").read_text())
    del tree["agent"]
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(tree))
    assert read_config(tmp_path) == config and config.agent.has_model


@pytest.mark.parametrize("every, expected", [(0, 0), (10, 4), (15, 3), (30, 2), (100, 2)])
def test_evaluations_are_counted_from_the_prefill_and_one_comes_at_the_end(every, expected):
    config = Config()
    config.train.prefill_steps, config.train.total_steps, config.train.eval_every = 20, 50, every
    assert config.evaluations == expected


@pytest.mark.parametrize(("value", "read"), [("0", True), ("250", False)])
def test_a_retired_option_is_read_where_it_changed_nothing(tmp_path, value, read):
    save_config(load_config(["preset=debug", "run_dir=a"]), tmp_path / "config.yaml")
    text = (tmp_path / "config.yaml").read_text()
    (tmp_path / "config.yaml").write_text(text.replace("policy:\n", f"policy:\n  replay_ahead: {value}\n", 1))
    if read:
        assert read_config(tmp_path) == load_config(["preset=debug", "run_dir=a"])
    else:
        with pytest.raises(UserError, match="policy.replay_ahead"):
            read_config(tmp_path)


def test_runs_of_sac_saved_with_the_clip_of_all_nets_are_read_if_it_was_off(tmp_path):
    config = load_config(["policy=sac"])
    save_config(config, tmp_path / "config.yaml")
    tree = yaml.safe_load((tmp_path / "config.yaml").read_text())
    for clip in (None, 100.0):
        old = tree | {"policy": {key: value for key, value in tree["policy"].items() if key != "actor_clip"}}
        old["policy"]["clip"] = clip
        (tmp_path / "config.yaml").write_text(yaml.safe_dump(old))
        if clip is None:
            assert read_config(tmp_path) == config
        else:
            with pytest.raises(UserError, match="unknown option 'policy.clip'"):
                read_config(tmp_path)


def test_dreamer_has_no_use_for_a_regularizer():
    """Strategy B splits by the noise's beta, which without noise is nothing: no value of it is wrong."""
    assert load_config(["model=dreamer", "model.kl.free_nats_strategy=B", "model.x.beta=0.5"]).model.kl.beta == 1


def test_derived_folders_tell_runs_apart():
    commands = [[], ["seed=1"], ["model=2c"], ["policy=sac"], ["distractors=camera_jitter"], ["preset=debug"]]
    folders = [load_config(command).run_dir for command in commands]
    assert len(set(folders)) == len(folders)
    assert default_run_dir(load_config(["run_dir=x"])) == folders[0] == "runs/cheetah_run-2b-backprop-seed0"


def test_every_option_has_help_and_every_file_belongs_to_a_group():
    def check(options):
        for field in dataclasses.fields(options):
            assert field.metadata["help"]
            if dataclasses.is_dataclass(getattr(options, field.name)):
                check(getattr(options, field.name))

    check(Config())
    check(SACConfig())
    check(RePoConfig())
    check(CURLConfig())
    for kind in DISTRACTORS.values():
        check(kind.Options())
    folders = {"agent", "model", "preset", "preset_agent", "preset_model", "preset_policy", "sweep"}
    assert {path.name for path in config_folder().iterdir() if path.is_dir()} == folders


def test_a_distractor_of_ones_own_is_one_class():
    """Command line, help, completion and checks follow from its declaration."""

    class Fog(Distractor):
        name = "fog"
        suites = ("toy",)

        @dataclasses.dataclass
        class Options:
            density: float = option(0.5, "share of white", low=0, high=1)

        def __init__(self, env, **options):
            super().__init__(env, ("density",), options)

        def frame(self):
            share = self.options.density
            return (share * 255 + (1 - share) * self.env.frame()).astype(np.uint8)

        def noise_values(self):
            return [self.options.density]

    register_distractor(Fog)
    try:
        config = load_config(["env=toy", "env.task=dot", "distractors=fog", "distractors.fog.density=0.25"])
        assert config.distractors == {"fog": {"density": 0.25}}
        assert "distractors.fog.density" in all_options() and "fog" in choices("distractors")
        assert "share of white" in train_help() and complete("distractors=fo") == ["distractors=fog"]
        with pytest.raises(UserError, match="density must be a number, at least 0 and at most 1, not 2.0"):
            load_config(["env=toy", "env.task=dot", "distractors=fog", "distractors.fog.density=2.0"])
        with pytest.raises(UserError, match="fog does not fit suite 'dmc'"):
            load_config(["distractors=fog"])
        env = make_env("dot", suite="toy", distractors=config.distractors)
        assert env.reset(seed=0)[0].min() >= 63 and env.noise_names[-1] == "fog/density"
    finally:
        del DISTRACTORS["fog"]


def test_the_task_of_a_preset_is_none_of_another_suite():
    """A suite's own first task counts; other options of the preset stay."""
    config = load_config(["preset=quickstart", "env=toy"])
    assert (config.env.task, config.env.episode_steps, config.env.action_repeat) == ("dot", 100, 4)
    assert load_config(["preset=quickstart", "env=robodesk", "distractors=tv"]).env.task == "tv_green_hue"
    assert load_config(["preset=paper/walker_walk_noiseless", "env=dmc"]).env.task == "walker_walk"
    with pytest.raises(UserError, match="Name an environment: env.id="):
        load_config(["preset=quickstart", "env=gym", "distractors=none"])
    with pytest.raises(UserError, match="none of suite 'toy': choose suite 'dmc'"):
        load_config(["env=toy", "env.task=cheetah_run"])


def test_a_suite_says_itself_which_tasks_take_no_distractors():
    """Their names mean nothing in another suite."""
    register_suite("mine", lambda **_: None, ["counting", "bare"], {}, ["camera_jitter"], undistracted=["bare"])
    try:
        assert fitting_distractors("mine", "counting") == ("camera_jitter",)
        assert fitting_distractors("mine", "bare") == fitting_distractors("toy", "counting") == ()
        with pytest.raises(UserError, match="Task 'bare' takes no distractors"):
            check_distractors(["camera_jitter"], "bare", "mine")
    finally:
        del SUITES["mine"]


def test_options_are_a_list():
    with pytest.raises(UserError, match=r"load_config takes a list: load_config\(\['preset=debug'\]\)"):
        load_config("preset=debug")


def test_what_the_package_offers_is_listed_for_completion():
    assert {"load", "make_env", "register_policy", "UserError", "__version__"} <= set(dir(denoised_mdp))
    assert all(hasattr(denoised_mdp, name) for name in dir(denoised_mdp))
