"""Grids of runs: which jobs a file means, what the command line may choose, what is trained and what is skipped."""

import collections
import contextlib
import itertools
from types import SimpleNamespace

import pytest
import yaml
from small_runs import TINY

from denoised_mdp.analysis.status import statuses
from denoised_mdp.cli import sweep as sweeps
from denoised_mdp.cli.grid import grid_folder, read_grid
from denoised_mdp.cli.main import main
from denoised_mdp.config import load_config, save_config
from denoised_mdp.config.choices import choices
from denoised_mdp.errors import UserError
from denoised_mdp.run.folder import RunFolder

AXES = {"method": {"denoised": {"model": "2b"}, "dreamer": {"model": "dreamer"}}, "seed": [0, 1]}
OPTIONS = dict(word.split("=") for word in TINY)


@pytest.fixture
def grid(tmp_path, monkeypatch):
    """A function that writes the grid mine.yaml, in whose folder the test runs."""
    monkeypatch.chdir(tmp_path)

    def write(**parts) -> str:
        (tmp_path / "mine.yaml").write_text(
            yaml.safe_dump({"options": OPTIONS, "axes": AXES, **parts}, sort_keys=False)
        )
        return "sweep=mine.yaml"

    return write


def names(*words: str) -> list[str]:
    return [job.name for job in read_grid(words)[1]]


def test_all_combinations_the_first_axis_outermost(grid):
    assert names(grid()) == ["denoised-seed=0", "denoised-seed=1", "dreamer-seed=0", "dreamer-seed=1"]
    configs = [load_config([*job.overrides]) for job in read_grid([grid(), "train.batch_size=3"])[1]]
    assert [(config.model.name, config.seed) for config in configs] == list(
        itertools.product(("2b", "dreamer"), (0, 1))
    )
    assert {config.train.batch_size for config in configs} == {3}
    assert {config.env.task for config in configs} == {"dot"}


def test_blocks_of_runs_in_their_order_and_none_twice(grid):
    word = grid(runs=[{"method": "dreamer", "seed": 1}, {"seed": [1, 0]}])
    assert names(word) == ["dreamer-seed=1", "denoised-seed=1", "denoised-seed=0", "dreamer-seed=0"]


def test_the_command_line_chooses_values_and_adds_those_of_an_option(grid):
    assert names(grid(), "sweep.method=dreamer", "sweep.seed=7,0") == ["dreamer-seed=7", "dreamer-seed=0"]
    assert names(grid(), "sweep.method=dreamer", "sweep.seed=range(1,6,2)") == [f"dreamer-seed={n}" for n in (1, 3, 5)]
    word = grid(runs=[{"method": "dreamer"}, {"method": "denoised", "seed": 0}])
    assert names(word, "sweep.seed=1,5") == ["dreamer-seed=1", "dreamer-seed=5"], "what a block names stays so"


@pytest.mark.parametrize(
    ("words", "parts", "said"),
    [
        (["sweep="], {}, "name one of evidence"),
        (["sweep=rnig"], {}, "Did you mean 'ring'"),
        (["sweep=none.yaml"], {}, "there is no file none.yaml.$"),
        (["sweep.sed=1"], {}, "Did you mean 'seed'"),
        (["sweep.method=2c"], {}, "denoised, dreamer"),
        (["seed=1"], {}, r"sweep.seed="),
        (["model=2c"], {}, "the axis method"),
        (["env.id=a"], {"axes": {"env.id": ["b", "c"]}}, "the axis env.id sets it"),
        (["model.kl={beta: 1}"], {"axes": {"a": {"b": {"model.kl.beta": 0.5}}}}, "the axis a sets it"),
        (["model.kl.beta=1"], {"axes": {"a": {"b": {"model.kl": "{beta: 0.5}"}}}}, "the axis a sets it"),
        (["sweep.seed="], {}, "there is no ''"),
        (["sweep.seed=range(a)"], {}, r"seed=range\(a\): not understood"),
        (["sweep.seed=range(0,2),5"], {}, "give one range alone"),
        (["sweep.seed=range(0,2,0)"], {}, "give one range alone"),
        (["sweep.method=range(2)"], {}, r"there is no 'range\(2\)'"),
        (["model.kl.beta=1,0.5"], {}, "several values"),
        (["nope=1"], {}, "unknown option"),
        ([], {"axes": {"seed": 3}}, "a list of values"),
        ([], {"axes": {"seed": {"a": 3}}}, "names with options"),
        ([], {"axis": {}}, "unknown part 'axis'; a grid has options and axes .* and runs"),
        ([], {"runs": {}}, "runs={}; a grid has .* runs .a list"),
        ([], {"options": {"hydra/launcher": "ray"}}, "it sets hydra/launcher; give that on the command line"),
        ([], {"options": {"hydra": {"launcher": "ray"}}}, "it sets hydra.launcher; give that"),
        (["train.seed=1"], {"axes": {"a": {"b": {"train": {"seed": 1}}}}}, "unknown option"),
        (["train.updates=1"], {"axes": {"a": {"b": {"train": {"updates": 2}}}}}, "the axis a sets it"),
        ([], {"runs": ["a"]}, "each of its runs"),
        ([], {"runs": [{"sed": 1}]}, "Did you mean 'seed'"),
        ([], {"runs": [{"seed": 5}]}, "runs: seed: there is no '5'"),
        ([], {"axes": {"a": {"a": {}, "a-b": {"seed": 1}}, "b": {"b-c": {}, "c": {}}}, "runs": [{}]}, "named a-b-c"),
        ([], {"axes": {}}, "it has no axes"),
        ([], {"axes": {"seed": []}}, "the axis seed has no values"),
        ([], {"axes": {"method": {"": {"model": "2b"}}}}, "'' cannot be a part of a folder's name"),
        ([], {"axes": {"method": {"a/b": {"model": "2b"}}}}, "'a/b' cannot be a part"),
        (["sweep.seed=5"], {"runs": [{"seed": 1}]}, "no run has all these values. Leave out one of sweep.seed"),
        ([], {"runs": []}, "it lists no runs"),
        ([], {"options": {"run_dir": "a"}}, "it sets run_dir"),
        ([], {"axes": {"a": {"b": {"run_dir": "a"}}}}, "it sets run_dir"),
        ([], {"options": {True: 1}}, "true is no name of an option"),
        ([], {"options": {"train": {"log": {None: 1}}}}, "null is no name"),
        ([], {"axes": {1: [2]}}, "1 is no name"),
        ([], {"axes": {"a": {"b": {"env": {2.5: 1}}}}}, "2.5 is no name"),
        (["sweep=~/none.yaml"], {}, "there is no file /nowhere/none.yaml.$"),
    ],
)
def test_a_mistake_is_one_line(grid, monkeypatch, words, parts, said):
    monkeypatch.setenv("HOME", "/nowhere")
    words = words if "sweep=" in "".join(words) else [grid(**parts), *words]
    with pytest.raises(UserError, match=said) as raised:
        read_grid(words)
    assert "\n" not in str(raised.value)


def test_an_empty_file_is_one_line(tmp_path):
    (tmp_path / "mine.yaml").write_text("# nothing yet")
    with pytest.raises(UserError, match="it is empty; a grid has options and axes"):
        read_grid([f"sweep={tmp_path / 'mine.yaml'}"])


def test_options_may_be_nested_as_in_a_saved_configuration(grid):
    shaking = {"camera_jitter": {"strength": 0.5, "dynamic": False}, "video_background": None}
    options = OPTIONS | {"train": {"batch_size": 3, "updates": 1}, "distractors": {"camera_jitter": {"strength": 2}}}
    noise = {
        "usual": {"train": {"updates": 2}},
        "none": {"distractors": "none"},
        "both": {"distractors": shaking, "model": {"kl": {"beta": 0.25}}},
    }
    word = grid(options=options, axes={"noise": noise}, runs=[{}])
    usual, none, both = (load_config([*job.overrides]) for job in read_grid([word, "train.batch_size=4"])[1])
    assert usual.distractors["camera_jitter"]["strength"] == 2 and none.distractors == {}, "with its options"
    assert [config.train.updates for config in (usual, none, both)] == [2, 1, 1]
    assert {config.train.batch_size for config in (usual, none, both)} == {4}
    jitter = both.distractors["camera_jitter"]
    assert (jitter["strength"], jitter["dynamic"], both.model.kl.beta) == (0.5, False, 0.25)
    assert list(both.distractors) == ["video_background", "camera_jitter"]
    for option in ("distractors=none", "distractors.camera_jitter.strength=1"):
        with pytest.raises(UserError, match="the axis noise sets it"):
            read_grid([word, option])


@pytest.mark.parametrize(
    ("first", "second", "third", "key", "value"),
    [
        (
            {"distractors": {"camera_jitter": {"strength": 2}}},
            {"distractors.camera_jitter.strength": 1},
            {"distractors": {"camera_jitter": {"strength": 3}}},
            "distractors",
            3,
        ),
        (
            {"env.id": "cheetah_run"},
            {"env.task": "walker_walk"},
            {"env.id": "reacher_easy"},
            "env.task",
            "reacher_easy",
        ),
        (
            {"distractors": "camera_jitter", "distractors.camera_jitter.strength": 2},
            {"distractors": "none"},
            {},
            "",
            None,
        ),
    ],
)
def test_of_an_option_that_is_said_again_the_last_counts(grid, first, second, third, key, value):
    axes = {"one": {"a": first}, "two": {"a": second}, "three": {"a": third}}
    ((job,),) = (read_grid([grid(options={"preset": "debug"}, axes=axes, runs=[{}])])[1],)
    config = load_config([*job.overrides])
    if key == "distractors":
        assert config.distractors["camera_jitter"]["strength"] == value
    else:
        assert config.env.task == value if key else config.distractors == {}


def test_spaces_are_no_part_of_a_value(grid):
    assert names(grid(), "sweep.method=dreamer", "sweep.seed=[0, 1]") == ["dreamer-seed=0", "dreamer-seed=1"]


def test_sets_of_distractors_are_chosen_as_with_multirun(grid):
    word = grid(axes={"distractors": ["none", ["video_background", "camera_jitter"]], "seed": [0]})
    assert names(word) == ["distractors=none-seed=0", "distractors=[camera_jitter,video_background]-seed=0"]
    (one,) = read_grid([word, "sweep.distractors=[video_background,camera_jitter]"])[1]
    assert one.name == names(word)[1]
    assert list(load_config([*one.overrides]).distractors) == ["video_background", "camera_jitter"]
    for same in ("[ camera_jitter, video_background ]", "['video_background',camera_jitter]"):
        assert names(word, f"sweep.distractors={same}") == names(word)[1:]
    assert names(word, "sweep.distractors=none,camera_jitter,'video_background'") == [
        f"distractors={name}-seed=0" for name in ("none", "camera_jitter", "video_background")
    ]
    chosen = read_grid([word, "sweep.distractors=[],[camera_jitter]"])[1]
    assert [job.name for job in chosen] == ["distractors=none-seed=0", "distractors=camera_jitter-seed=0"]
    assert [list(load_config([*job.overrides]).distractors) for job in chosen] == [[], ["camera_jitter"]]
    block = grid(
        axes={"distractors": ["none", ["video_background", "camera_jitter"]]},
        runs=[{"distractors": [["video_background", "camera_jitter"]]}],
    )
    assert names(block) == ["distractors=[camera_jitter,video_background]"]


def test_an_option_that_no_chosen_run_sets_can_be_set(grid):
    word = grid(axes={"noise": {"none": {"model.kl.beta": 1}, "video": {"distractors": "video_background"}}}, runs=[{}])
    (job,) = read_grid([word, "sweep.noise=video", "model.kl.beta=0.1"])[1]
    assert job.overrides[-1] == "model.kl.beta=0.1"
    with pytest.raises(UserError, match="the axis noise sets it"):
        read_grid([word, "model.kl.beta=0.1"])


def test_the_folder_of_a_grid_is_one_for_all_its_runs(grid):
    with pytest.raises(UserError, match="all runs of a grid have folders in this one"):
        grid_folder([grid(), "run_dir=runs/${env.task}"])


def test_one_run_of_a_grid_can_be_looked_at_as_any_other(grid, capsys):
    one = [grid(), "sweep.method=dreamer", "sweep.seed=1", "run_dir=runs/a"]
    assert main(["config", *one]) == 0
    shown = capsys.readouterr().out
    assert main(["config", *TINY, "model=dreamer", "seed=1", "run_dir=runs/a/dreamer-seed=1"]) == 0
    assert capsys.readouterr().out == shown
    assert main(["train", "--cfg", "job", *one]) == 0
    assert capsys.readouterr().out == shown
    for words, said in (
        (one[:2], "2 runs are left (dreamer-seed=0, dreamer-seed=1, ...): choose one"),
        ([*one, "hydra.job.name=x"], "--multirun"),
    ):
        assert main(["config", *words]) == 2
        error = capsys.readouterr().err
        assert said in error and error.count("\n") == 1


def test_a_file_without_its_ending_is_suggested(grid):
    grid()
    with pytest.raises(UserError, match="Did you mean 'mine.yaml'"):
        read_grid(["sweep=mine"])


@pytest.mark.parametrize("name", choices("sweep"))
def test_every_run_of_a_shipped_grid_composes_and_no_two_are_alike(name):
    jobs = read_grid([f"sweep={name}"])[1]
    some = jobs if len(jobs) < 100 else jobs[::7]
    configs = [load_config([*job.overrides]) for job in some]
    assert len({job.name for job in jobs}) == len(jobs) == len({job.overrides for job in jobs})
    for one, other in itertools.pairwise(configs):
        assert repr(one) != repr(other)


def test_the_papers_grid_has_all_methods_of_table_5_1():
    """Each column of the table in each of 12 cells with 5 seeds, with the action repeat of the comparison."""
    jobs = read_grid(["sweep=paper_grid"])[1]
    assert len(jobs) == 12 * 5 * (3 * 2 + 3)
    columns = collections.Counter()
    for job in (job for job in jobs if "-seed=3-" in job.name):
        config = load_config([*job.overrides])
        columns[config.method] += 1
        slow = config.agent.name in ("curl", "pisac") and config.env.task != "walker_walk"
        assert config.env.action_repeat == (4 if slow else 2)
        assert config.train.total_steps == 1_000_000
    assert set(columns.values()) == {12}
    assert {method for method, *_ in columns} == {"2b", "tia", "dreamer", "dbc", "pisac", "curl"}
    for model in ("2b", "tia", "dreamer"):
        assert {(model, policy) in columns for policy in ("backprop", "sac")} == {True}
    few = read_grid(["sweep=paper_grid", "sweep.policy=own", "sweep.seed=7"])[1]
    assert len(few) == 12 * 3, "the rivals alone"


def test_a_mistake_in_the_file_names_the_run_before_hours_are_measured(grid, capfd):
    word = grid(axes={"method": {"good": {"model": "2b"}, "bad": {"modle": "2c"}}}, runs=[{}])
    assert main(["train", word, "--dry-run"]) == 2
    out, err = capfd.readouterr()
    assert "run bad of the sweep: unknown option 'modle'" in err and "hours" not in out


def test_what_is_missing_is_trained_and_nothing_else(grid, tmp_path, capfd, monkeypatch):
    word = grid(runs=[{"method": "denoised"}])
    assert main(["train", word, "--dry-run"]) == 0
    text = capfd.readouterr().out
    assert text.count("\nnew ") == 2 and "2 new" in text and not (tmp_path / "runs").exists()
    assert main(["train", word, "sweep.seed=1"]) == 0
    assert [(run.path.name, run.state) for run in statuses([tmp_path / "runs"])] == [("denoised-seed=1", "finished")]
    began = []
    monkeypatch.setattr("denoised_mdp.session.train", lambda config, stop: began.append(config.run_dir) or True)
    assert main(["train", word]) == 0
    assert [path.split("/")[-1] for path in began] == ["denoised-seed=0"]
    assert main(["train", word, "sweep.seed=1"]) == 0 and "All runs" in capfd.readouterr().out and len(began) == 1
    assert main(["train", word, "sweep.seed=1", "train.total_steps=240", "run_dir=runs/mine"]) == 0
    assert began[1].endswith("denoised-seed=1"), "a grid may be made longer"
    assert main(["train", word, "model.kl.beta=0.5", "run_dir=runs/mine"]) == 2
    assert "another configuration (model.kl.beta: 1.0 -> 0.5" in capfd.readouterr().err


def test_a_run_in_use_is_left_to_the_process_that_trains_it(grid, tmp_path, monkeypatch, capfd):
    """Several terminals may start the same sweep; each takes runs that no other has."""
    busy = str(tmp_path / "runs/mine/denoised-seed=0")
    monkeypatch.setattr(RunFolder, "in_use", lambda self: str(self.path) == busy)
    began = []
    sweeps.sweep([grid(), "sweep.method=denoised"], lambda words: began.append(words[-1]) or 0)
    assert [text.split("/")[-1] for text in began] == ["denoised-seed=1'"]
    assert f"{busy}: another process trains it" in capfd.readouterr().out


def test_a_run_that_another_process_took_in_the_same_moment_is_no_failure(grid, tmp_path, monkeypatch, capfd):
    """Both asked before either had the folder's lock; by now the other one trains it, or is done."""
    states = iter(["new", "new", "finished", "failed"])  # as the jobs are listed, and as each is refused
    monkeypatch.setattr(sweeps, "state_of", lambda config: (next(states), 0.0))
    with pytest.raises(sweeps.JobFailed):
        sweeps.sweep([grid(), "sweep.method=denoised"], lambda words: 2)
    assert not list(states)


@pytest.mark.parametrize("beta", [1.0, 0.5])
def test_a_job_that_is_refused_since_its_folder_holds_another_run_has_failed(tmp_path, monkeypatch, beta):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sweeps, "status_of", lambda path: SimpleNamespace(state="finished", step=10**9))
    (tmp_path / "runs" / "run").mkdir(parents=True)
    save_config(load_config([*TINY, f"model.kl.beta={beta}"]), tmp_path / "runs" / "run" / "config.yaml")
    with pytest.raises(sweeps.JobFailed) if beta == 0.5 else contextlib.nullcontext():
        sweeps.sweep([*TINY, "run_dir=runs"], lambda words: 2)


def test_another_launcher_gets_all_jobs_at_once(grid, capfd):
    """Options of Hydra pass through; an unknown launcher is one line."""
    assert main(["train", grid(), "hydra/launcher=nope"]) == 2
    assert "hydra/launcher" in capfd.readouterr().err
