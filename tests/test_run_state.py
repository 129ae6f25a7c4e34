"""Checkpoints that are whole but hold what no run has, weights that are no numbers, folders copied while they grew."""

import shutil

import pytest
import torch
from small_runs import TINY, run_units, tiny

import denoised_mdp
from denoised_mdp.cli.main import main
from denoised_mdp.config import save_config
from denoised_mdp.errors import UserError
from denoised_mdp.run import checkpoint
from denoised_mdp.run.diff import compare, report
from denoised_mdp.session import Session, train

SHORT = ["policy.hidden=8", "train.eval_every=0", "train.probe_every=0", "train.device=cpu"]


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    path = tmp_path_factory.mktemp("finished") / "run"
    assert train(tiny(path, *SHORT, "train.total_steps=120"))
    torch.set_deterministic_debug_mode("default")
    return path


@pytest.fixture
def run(finished, tmp_path):
    path = shutil.copytree(finished, tmp_path / "run")
    save_config(tiny(path, *SHORT, "train.total_steps=120"), path / "config.yaml")
    return path


def command(run, *more: str) -> list[str]:
    return ["train", *TINY, *SHORT, "train.total_steps=160", f"run_dir={run}", *more]


def one_error(capfd) -> str:
    error = capfd.readouterr().err
    found = [line for line in error.splitlines() if "error:" in line]
    assert len(found) == 1 and "Traceback" not in error, error
    return found[0]


def change(run, **parts) -> None:
    """Give the newest checkpoint other parts: values, or functions that change them in place."""
    step, tree = checkpoint.load(run / "checkpoints")
    for name, part in parts.items():
        if callable(part):
            part(tree[name])
        else:
            tree[name] = part
    shutil.rmtree(run / "checkpoints" / "step_000000080")
    checkpoint.save(run / "checkpoints", step, tree)


def counters(**other):
    return {"counters": {"step": 120, "step_before": 118, "updates": 4} | other}


def replay(**other):
    return {"replay": lambda state: state.update(other)}


@pytest.mark.parametrize(
    "parts",
    [
        {"log": "x"},
        {"log": {"lines": "a", "events": {}}},
        {"log": {"lines": -1, "events": {}}},
        {"log": {}},
        {"log": {"lines": 10**30, "events": {}}},
        {"log": {"lines": 2, "events": [1]}},
        {"log": {"lines": 2, "events": None}},
        {"log": None},
        {"log": {"lines": 2, "events": {"a": "b"}}},
        {"log": {"lines": True, "events": {}}},
        {"counters": None},
        counters(step="a"),
        counters(step=10**30),
        counters(step=-1),
        counters(step=3),
        counters(step=120.5),
        counters(updates=10**30),
        counters(updates="4"),
        counters(step_before=[1]),
        counters(step_before=None),
        counters(updates=float("inf")),
        {"pending": "save"},
        {"pending": ["close"]},
        {"pending": ["run_to_end"]},
        {"pending": [3]},
        {"pending": {"log": 1}},
        {"pending": ["save", "__init__"]},
        {"pending": [["log"]]},
        {"window": {"a": 3}},
        {"window": {"a": (1.0, 0)}},
        {"window": {"a": (torch.zeros(2), 1)}},
        {"window": []},
        {"episode_return": ["a"]},
        {"episode_return": []},
        {"episode_return": None},
        {"last_return": "a"},
        {"replay": None},
        {"replay": {}},
        {"replay": {"rings": []}},
        replay(places=0),
        replay(places=-1),
        replay(total=10**18),
        replay(total=-1),
        replay(sample="x"),
        replay(sample=[[1]]),
        replay(sample=[[10**6, 1]]),
        replay(observation_shape=[]),
        replay(oldest=10**9),
        replay(observation_shape="abc"),
        replay(action_size=10**30),
        replay(action_size=0),
        replay(capacity=None),
        {"collector": None},
        {"collector": {}},
        {"agent": 3},
        {"agent": {"weights": {"a": 1}}},
        {"config": "x"},
        {"random": 3},
        {"random": {"bit_generator": "PCG64", "state": 3}},
        {"precision": 3},
        {"action_size": "a"},
    ],
    ids=lambda parts: next(f"{name}={part}"[:30] for name, part in parts.items()),
)
def test_states_that_no_run_has(run, parts, capfd):
    """With right checksums, as a stranger could write them."""
    change(run, **parts)
    rows = (run / "replay" / "number.npy").read_bytes()
    assert main(command(run)) == 2
    assert len(one_error(capfd)) < 1500
    assert main(["compare", str(run), str(run)]) in (0, 2)
    assert "Traceback" not in capfd.readouterr().err
    assert (run / "replay" / "number.npy").read_bytes() == rows


@pytest.mark.parametrize("state", [[], 3, None, "text", {"log_lines": 1}, {}])
def test_checkpoints_without_any_state(run, state, capfd):
    step, _ = checkpoint.load(run / "checkpoints")
    shutil.rmtree(run / "checkpoints")
    checkpoint.save(run / "checkpoints", step, state)
    for arguments in (command(run), ["evaluate", str(run)], ["compare", str(run), str(run)]):
        assert main(arguments) == 2
        one_error(capfd)


def test_a_step_beyond_all_counting(run, capfd):
    step, tree = checkpoint.load(run / "checkpoints")
    tree["counters"].update(step=10**30, step_before=10**30)
    checkpoint.save(run / "checkpoints", 10**30, tree)
    assert main(command(run)) == 2
    assert "counters/step" in one_error(capfd)


def test_what_a_checkpoint_names_is_a_fixed_set(run):
    """A name out of it is done; no other method of the trainer can be called."""
    change(run, pending=["log", "save"])
    assert main(command(run)) == 0
    names = {"log", "evaluate", "probe", "render", "snapshot", "save"}
    config = tiny(run, *SHORT, "train.total_steps=160")
    from denoised_mdp.run.folder import RunFolder

    session = Session(config, RunFolder.existing(run))
    try:
        assert set(session.trainer.hooks) == set(session.trainer.schedule.every) == names
    finally:
        session.close()


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
@pytest.mark.parametrize("part", ["weights", "optimizers", "lr"])
def test_weights_that_are_no_numbers_are_not_used(run, bad, part, capfd):
    def spoil(agent):
        if part == "weights":
            next(tensor for tensor in agent["weights"].values() if tensor.numel() > 3).view(-1)[3] = bad
        elif part == "optimizers":
            agent["optimizers"]["model"]["state"][0]["exp_avg"].view(-1)[3] = bad
        else:
            agent["optimizers"]["model"]["param_groups"][0]["lr"] = bad

    change(run, agent=spoil)
    assert main(command(run)) == 2
    assert "not finite" in one_error(capfd)
    if part == "weights":
        with pytest.raises(UserError, match="weights|not finite"):
            denoised_mdp.load(run, device="cpu")
        for arguments in (["evaluate", str(run)], ["render", str(run)], ["probe", "health", str(run)]):
            assert main(arguments) == 2
            assert "not finite" in one_error(capfd)
        assert not (run / "videos").exists()
    else:
        denoised_mdp.load(run, device="cpu")


@pytest.mark.parametrize("capacity", ["null", "70"])
def test_a_folder_copied_while_it_was_written_to_continues_from_the_checkpoint_before(tmp_path, capacity, capfd):
    """The replay was copied first, and then a checkpoint that counts rows which the copy lacks."""
    run, whole = tmp_path / "run", tmp_path / "whole"
    options = [f"replay.capacity={capacity}", "train.total_steps=200"]
    run_units(tiny(run, *SHORT, *options), 90)
    shutil.copytree(run / "replay", tmp_path / "replay")
    run_units(tiny(run, *SHORT, *options), 5)
    shutil.copytree(run, whole)
    shutil.rmtree(run / "replay")
    (tmp_path / "replay").rename(run / "replay")
    before, after = checkpoint.list_steps(run / "checkpoints")
    assert before < after < 200
    assert main(command(whole, *options)) == 0
    capfd.readouterr()
    assert main(command(run, *options)) == 0
    assert f"using step_{before:09d} instead" in capfd.readouterr().err
    assert report(compare(whole, run))


def test_rows_that_no_checkpoint_finds_are_told_once(run, capfd):
    shutil.rmtree(run / "replay")
    assert main(command(run)) == 2
    error = one_error(capfd)
    assert error.count("missing or damaged (No such file or directory)") == 1 and "start in a new run_dir" in error
    assert "Errno" not in error and error.count("replay/") == 1
    assert checkpoint.list_steps(run / "checkpoints") == [80, 120]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"device": "tpu"}, "device tpu: must be auto, cpu, cuda or cuda:N"),
        ({"device": "cuda:x"}, "must be auto"),
        ({"device": "cuda:" + "9" * 400}, "must be auto"),
        ({"device": None}, "must be auto"),
        ({"device": "mps"}, "must be auto"),
        ({"checkpoint": "newest"}, "must be a step"),
        ({"checkpoint": 1.5}, "must be a step"),
        ({"checkpoint": True}, "must be a step"),
        ({"checkpoint": 7}, "no checkpoint of step 7"),
    ],
)
def test_what_cannot_be_loaded_is_said_in_one_line(finished, options, words):
    with pytest.raises(UserError, match=words) as error:
        denoised_mdp.load(finished, **{"device": "cpu", **options})
    assert len(str(error.value)) < 3000
