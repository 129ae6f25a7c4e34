"""compare finds every planted difference, says in which part it is, and nothing where there is none."""

import json
import shutil

import numpy as np
import pytest
import torch
from small_runs import lines, stop_after_units, tiny

from denoised_mdp.cli.main import main
from denoised_mdp.errors import UserError
from denoised_mdp.run import checkpoint
from denoised_mdp.run.diff import compare
from denoised_mdp.run.folder import RunFolder
from denoised_mdp.run.load import prepare
from denoised_mdp.run.logger import Logger
from denoised_mdp.session import Session

PARTS = ["metrics", "tensorboard", "weights", "optimizer", "replay", "generators", "environment", "progress"]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run that was stopped inside an episode, so that everything has a state."""
    path = tmp_path_factory.mktemp("compare") / "run"
    config = tiny(path, "distractors=camera_jitter", "train.total_steps=200")

    folder = RunFolder.create(config.run_dir)
    prepare(config, folder)
    session = Session(config, folder)
    stop_after_units(session.trainer, 57)
    session.trainer.run_to_end()
    session.close()
    torch.set_deterministic_debug_mode("default")
    assert session.collector.observations[0] is not None and session.collector.carry is not None
    return path


@pytest.fixture
def copy(run, tmp_path):
    return shutil.copytree(run, tmp_path / "copy")


def first_difference(run, copy):
    verdicts = [verdict for verdict in compare(run, copy) if verdict.difference]
    assert verdicts, "no difference was found"
    return verdicts[0].part, verdicts[0].difference


def change(copy, edit):
    """Save the newest checkpoint again after `edit(tree)`."""
    step, tree = checkpoint.load(copy / "checkpoints")
    edit(tree)
    checkpoint.save(copy / "checkpoints", step, tree)


def test_a_copy_is_identical_whatever_the_clock_said(run, copy, capsys):
    logged = [{k: v + 1 if k == "eval/seconds" else v for k, v in line.items()} for line in lines(copy)]
    assert logged != lines(copy)
    (copy / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in logged))
    for path in copy.rglob("*"):
        path.chmod(0o555)
    before = {path: path.stat().st_mtime_ns for path in copy.rglob("*")}
    assert main(["compare", str(run), str(copy)]) == 0
    printed = capsys.readouterr().out.splitlines()
    assert printed[-1] == "identical" and [line.split()[0] for line in printed[:-1]] == PARTS
    assert before == {path: path.stat().st_mtime_ns for path in copy.rglob("*")}
    assert [verdict.part for verdict in compare(run, copy)] == PARTS


def nudge(tensor):
    tensor.view(torch.int32).view(-1)[-1] += 1  # the last bit


@pytest.mark.parametrize(
    "part, name, edit",
    [
        (
            "weights",
            "agent/weights/world_model.encoder",
            lambda tree: nudge(next(iter(tree["agent"]["weights"].values()))),
        ),
        (
            "optimizer",
            "agent/optimizers/actor/state/0/exp_avg[",
            lambda tree: nudge(tree["agent"]["optimizers"]["actor"]["state"][0]["exp_avg"]),
        ),
        (
            "optimizer",
            "agent/optimizers/model/param_groups/0/lr: 0.0006 and 0.1",
            lambda tree: tree["agent"]["optimizers"]["model"]["param_groups"][0].update(lr=0.1),
        ),
        ("generators", "agent/random[", lambda tree: tree["agent"]["random"].add_(1)),
        ("generators", "exploration/0[", lambda tree: tree["collector"]["exploration"][0][5].add_(1)),
        ("generators", "random/state/inc", lambda tree: tree["random"]["state"].update(inc=7)),
        ("environment", "environments/0/", lambda tree: tree["collector"]["environments"][0].popitem()),
        ("progress", "counters/step", lambda tree: tree["counters"].update(step=3)),
        ("progress", "carry/belief[0, 0]", lambda tree: tree["collector"]["carry"]["belief"][:, :1].add_(1)),
        ("progress", "pending", lambda tree: tree.update(pending=["render"])),
        ("progress", "can_terminate: False and True", lambda tree: tree.update(can_terminate=True)),
        (
            "progress",
            "collector/observations/0: uint8 (64, 64, 3) and None",
            lambda tree: tree["collector"]["observations"].__setitem__(0, None),
        ),
        ("progress", "agent/memory/0 is only in the second run", lambda tree: tree["agent"].update(memory=[1])),
    ],
)
def test_a_changed_checkpoint_is_named(run, copy, part, name, edit):
    change(copy, edit)
    found, text = first_difference(run, copy)
    assert found == part and name in text
    assert main(["compare", str(run), str(copy)]) == 1


@pytest.mark.parametrize("row", [0, 30, 49])
@pytest.mark.parametrize("name", ["observation", "action", "reward", "is_first", "is_terminal"])
def test_a_changed_row_is_named(run, copy, name, row):
    column = np.load(copy / "replay" / f"{name}.npy", mmap_mode="r+")
    column[row] = column[row] ^ True if column.dtype == bool else column[row] + 1
    column.flush()
    change(copy, lambda tree: tree["replay"].pop("sample"))  # else opening it is refused
    part, text = first_difference(run, copy)
    assert part == "replay" and text.startswith(f"row {row}, {name}")


def test_metrics_and_events_are_compared_by_value_and_number(run, copy):
    text = (copy / "metrics.jsonl").read_text()
    logged = lines(copy)
    logged[1]["random/return"] += 1e-9
    (copy / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in logged))
    part, found = first_difference(run, copy)
    assert part == "metrics" and found.startswith("random/return in line 2, step 80: ")
    (copy / "metrics.jsonl").write_text(text + text.splitlines()[0] + "\n")
    assert first_difference(run, copy)[1] == f"{len(logged)} and {len(logged) + 1} lines, equal as far as both go"
    (copy / "metrics.jsonl").write_text(text)
    Logger(copy, 80, len(logged), {path.name: path.stat().st_size for path in (copy / "tensorboard").iterdir()}).log(
        80, {"eval/return": 1.0}
    )
    (copy / "metrics.jsonl").write_text(text)
    assert first_difference(run, copy)[0] == "tensorboard"


def records(data):
    """Split one of TensorBoard's files: (begin, end) of each record."""
    begin = 0
    while begin < len(data):
        end = begin + 16 + int.from_bytes(data[begin : begin + 8], "little")
        yield begin, end
        begin = end


@pytest.mark.parametrize("place", ["length", "data", "last byte", "torn", "torn in the length"])
def test_damaged_events_are_reported_even_if_both_runs_have_the_same(run, copy, tmp_path, place):
    """TensorBoard's own reader would end at the damage: two damaged files would look alike."""
    path = next((copy / "tensorboard").iterdir())
    data = bytearray(path.read_bytes())
    begin, end = list(records(data))[2]
    if place == "torn":
        data = data[:-3]
        begin = list(records(data))[-1][0]
    elif place == "torn in the length":
        begin = len(data)
        data += b"\0\0\0"
    else:
        data[{"length": begin, "data": begin + 12, "last byte": end - 1}[place]] ^= 1
    path.write_bytes(data)
    other = shutil.copytree(copy, tmp_path / "other")
    for pair in ((run, copy), (copy, other)):
        with pytest.raises(UserError, match=rf"tfevents.* is damaged \(the record at byte {begin:,} is not whole"):
            compare(*pair)


def test_other_steps_need_a_choice(run, copy):
    step, tree = checkpoint.load(copy / "checkpoints")
    checkpoint.save(copy / "checkpoints", step + 2, tree)
    assert first_difference(run, copy) == (
        "checkpoints",
        f"the newest are of steps {step} and {step + 2}; choose one with --checkpoint",
    )
    assert main(["compare", str(run), str(copy), "--checkpoint", str(step)]) == 0


def test_bad_input_is_one_line(run, copy, tmp_path, capsys):
    def fails(*arguments):
        code = main(["compare", *map(str, arguments)])
        captured = capsys.readouterr()
        assert "Traceback" not in captured.err and len(captured.err.strip().splitlines()) == 1
        return code

    assert fails(run, tmp_path / "nowhere") == 2
    assert fails(run) == 2
    assert fails(run, copy, "--checkpoint", 12345) == 2
    (copy / "metrics.jsonl").write_text("{")
    assert fails(run, copy) == 2
    (copy / "metrics.jsonl").unlink()
    assert fails(run, copy) == 2
    shutil.copy(run / "metrics.jsonl", copy)
    (copy / "replay" / "action.npy").unlink()
    assert fails(run, copy) == 2
    shutil.rmtree(copy / "checkpoints")
    assert fails(run, copy) == 2
