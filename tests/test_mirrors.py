"""Services that get a copy of the metrics; the real ones are asked where they are installed."""

import json
import os
import shutil
import signal
import subprocess
import sys
import warnings
from types import SimpleNamespace

import pytest
from small_runs import TINY, lines, tiny

from denoised_mdp.cli.main import main
from denoised_mdp.config import load_config
from denoised_mdp.errors import UserError
from denoised_mdp.progress import shown
from denoised_mdp.run import mirrors
from denoised_mdp.run.diff import compare
from denoised_mdp.run.nan_check import NanCheck
from denoised_mdp.session import train


class Recorder:
    """A service that keeps what it gets, and fails at its n-th call."""

    def __init__(self, config, fails: int = 10**9):
        self.got, self.closed, self.fails = [], [], fails

    def log(self, step, numbers):
        self.fails -= 1
        if not self.fails:
            raise ConnectionError("no route to host")
        self.got.append({"step": step, **numbers})

    def close(self, failed):
        self.closed.append(failed)


def test_a_service_gets_every_line_and_changes_nothing(tmp_path, monkeypatch):
    service = Recorder(None)
    monkeypatch.setitem(mirrors.MIRRORS, "wandb", lambda config: service)
    assert train(tiny(tmp_path / "a", "train.log_to=wandb")) and train(tiny(tmp_path / "b"))
    assert service.got == lines(tmp_path / "a") and len(service.got) > 3 and service.closed == [False]
    assert not [part for part in compare(tmp_path / "a", tmp_path / "b") if part.difference]


def test_runs_that_begin_at_once_share_the_experiment_of_the_first():
    class Client:
        """A store in which another run makes the experiment between one's question and one's attempt."""

        asked = 0

        def get_experiment_by_name(self, name):
            self.asked += 1
            return None if self.asked == 1 else SimpleNamespace(experiment_id="7")

        def create_experiment(self, name):
            raise RuntimeError("RESOURCE_ALREADY_EXISTS")

    mlflow = mirrors.MLflow.__new__(mirrors.MLflow)
    mlflow.client = Client()
    assert mlflow._experiment() == "7"
    mlflow.client.get_experiment_by_name = lambda name: None
    with pytest.raises(RuntimeError, match="RESOURCE_ALREADY_EXISTS"):
        mlflow._experiment()


def test_a_service_that_fails_ends_nothing(monkeypatch):
    service = Recorder(None, fails=2)
    careful = mirrors.Careful(service)
    careful.log(1, {"a": 1.0})
    with pytest.warns(UserWarning, match="no route to host.*goes on"):
        careful.log(2, {"a": 2.0})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        careful.log(3, {"a": 3.0})
        careful.close(False)
    assert service.got == [{"step": 1, "a": 1.0}]


def test_a_service_learns_how_the_run_ended(tmp_path, monkeypatch):
    """A stop is no failure: the same command continues."""
    failing, stopped = Recorder(None), Recorder(None)

    def defect(*arguments):
        raise RuntimeError("a defect")

    with monkeypatch.context() as here, pytest.raises(RuntimeError, match="a defect"):
        here.setitem(mirrors.MIRRORS, "wandb", lambda config: failing)
        here.setattr(NanCheck, "add", defect)
        train(tiny(tmp_path / "a", "train.log_to=wandb"))
    stopped.log = lambda step, numbers: os.kill(os.getpid(), signal.SIGTERM)
    monkeypatch.setitem(mirrors.MIRRORS, "wandb", lambda config: stopped)
    assert not train(tiny(tmp_path / "b", "train.log_to=wandb"))
    assert (failing.closed, stopped.closed) == ([True], [False])


def test_services_show_how_a_run_ended_and_that_it_goes_on(tmp_path, monkeypatch):
    told = []
    about = SimpleNamespace(info=SimpleNamespace(run_id="a", lifecycle_stage="active"), experiment_id="7")
    client = SimpleNamespace(
        get_experiment_by_name=lambda name: about,
        create_run=lambda *arguments, **options: about,
        log_batch=lambda *arguments, **options: None,
        get_run=lambda name: about,
        update_run=lambda run, status: told.append(status),
        set_terminated=lambda run, status: told.append(status),
    )
    run = SimpleNamespace(define_metric=lambda *a, **o: None, finish=lambda exit_code: told.append(exit_code))
    monkeypatch.setitem(sys.modules, "mlflow", SimpleNamespace(MlflowClient=lambda: client))
    monkeypatch.setitem(sys.modules, "mlflow.entities", SimpleNamespace(Param=lambda key, value: (key, value)))
    monkeypatch.setitem(sys.modules, "wandb", SimpleNamespace(init=lambda **about: run))
    for kind in ("mlflow", "wandb"):
        for failed in (True, False):
            mirrors.mirror_of(load_config([*TINY, f"train.log_to={kind}", f"run_dir={tmp_path}"])).close(failed)
    assert told == ["RUNNING", "FAILED", "RUNNING", "FINISHED", 1, 0]


def test_a_service_knows_a_run_by_what_its_folder_keeps(tmp_path, monkeypatch):
    """Not by the path: another machine's run, or the next one in a folder that was emptied, may have the same."""
    names = []
    run = SimpleNamespace(define_metric=lambda *a, **o: None)
    monkeypatch.setitem(sys.modules, "wandb", SimpleNamespace(init=lambda **about: names.append(about["id"]) or run))

    def begin(folder) -> str:
        folder.mkdir(exist_ok=True)
        mirrors.mirror_of(load_config([*TINY, "train.log_to=wandb", f"run_dir={folder}"]))
        return names[-1]

    first = begin(tmp_path / "a")
    assert begin(tmp_path / "a") == first, "a continued run continues"
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    copied = begin(tmp_path / "b")
    assert copied != first and begin(tmp_path / "a") == first, "a copy is another run"
    shutil.move(tmp_path / "b", tmp_path / "c")
    assert begin(tmp_path / "c") == copied, "one that was moved is not"
    kept = tmp_path / "a" / "service.json"
    for damaged in ("", "[]", '{"folder": 3}', json.dumps({"folder": "/nowhere", "names": []})):
        kept.write_text(damaged)
        assert begin(tmp_path / "a") not in (first, copied)
    kept.unlink()
    assert begin(tmp_path / "a") not in (first, copied), "what is new in an emptied folder is new"


def test_a_missing_package_is_named(tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "mlflow", None)
    with pytest.raises(UserError, match=r"pip install 'denoised-mdp\[mlflow\]'"):
        mirrors.mirror_of(load_config([*TINY, "train.log_to=mlflow", f"run_dir={tmp_path}"]))
    assert main(["train", *TINY, "train.log_to=mlflow", f"run_dir={tmp_path / 'runs' / 'a'}"]) == 2
    assert "pip install 'denoised-mdp[mlflow]'" in capsys.readouterr().err
    assert not (tmp_path / "runs").exists(), "it is refused before anything is made"
    assert main(["doctor", *TINY, "train.log_to=mlflow", f"run_dir={tmp_path / 'runs' / 'a'}"]) == 1
    assert "pip install 'denoised-mdp[mlflow]'" in capsys.readouterr().out


def test_a_package_that_is_not_whole_is_one_line(tmp_path, monkeypatch):
    (tmp_path / "wandb.py").write_text("import os\nos.no_such_name\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "wandb", raising=False)
    with pytest.raises(UserError, match="train.log_to=wandb: it cannot be used .*no_such_name"):
        train(tiny(tmp_path / "a", "train.log_to=wandb"))
    assert not (tmp_path / "a").exists()


@pytest.mark.parametrize("name", ["a", 'Ann\'s "run"'])
def test_mlflow_keeps_one_run_over_a_resume(tmp_path, monkeypatch, name):
    mlflow = pytest.importorskip("mlflow", reason="mlflow is not installed")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    mlflow.set_tracking_uri(f"file:{tmp_path / 'store'}")
    assert train(tiny(tmp_path / name, "train.log_to=mlflow", "train.total_steps=120"))
    assert train(tiny(tmp_path / name, "train.log_to=mlflow"))
    client = mlflow.MlflowClient()
    [run] = client.search_runs([client.get_experiment_by_name(mirrors.PROJECT).experiment_id])
    returns = [row["eval/return"] for row in lines(tmp_path / name) if "eval/return" in row]
    assert [one.value for one in client.get_metric_history(run.info.run_id, "eval/return")] == returns
    assert run.data.params["model.kl.beta"] == "1.0" and run.info.status == "FINISHED"
    assert run.data.tags["run_dir"] == str(tmp_path / name)
    mlflow.set_tracking_uri(f"file:{tmp_path / 'another'}")
    assert train(tiny(tmp_path / name, "train.log_to=mlflow", "train.total_steps=240"))
    client = mlflow.MlflowClient()
    [other] = client.search_runs([client.get_experiment_by_name(mirrors.PROJECT).experiment_id])
    assert other.info.run_id != run.info.run_id, "another store does not know it"


def test_a_finished_run_asks_no_service(tmp_path, monkeypatch, capsys):
    def unreachable(config):
        raise ConnectionError("no route to host")

    monkeypatch.setitem(mirrors.MIRRORS, "wandb", unreachable)
    assert train(tiny(tmp_path / "a"))
    with shown(), monkeypatch.context() as patch:
        patch.setitem(mirrors.MIRRORS, "wandb", mirrors.WandB)
        patch.setitem(sys.modules, "wandb", None)  # nor its package
        assert train(tiny(tmp_path / "a", "train.log_to=wandb"))
    assert "complete at step" in capsys.readouterr().out
    with pytest.raises(UserError, match="no route to host"):
        train(tiny(tmp_path / "b", "train.log_to=wandb"))


def test_mlflow_gets_a_line_of_metrics_in_one_request(monkeypatch):
    """It knows letters, digits and a few marks; what the policy sees of two latents is called c+x."""
    entities = SimpleNamespace(Metric=lambda name, value, when, step: (name, value, step))
    monkeypatch.setitem(sys.modules, "mlflow.entities", entities)
    service, got = object.__new__(mirrors.MLflow), []
    service.id = "run"
    service.client = SimpleNamespace(log_batch=lambda run, metrics: got.append((run, metrics)))
    service.log(3, {"probe/signal_from_c+x": 0.5, "eval/return": 2.0})
    assert got == [("run", [("probe/signal_from_c_x", 0.5, 3), ("eval/return", 2.0, 3)])]


def test_wandb_works_offline(tmp_path):
    pytest.importorskip("wandb", reason="wandb is not installed")
    command = [sys.executable, "-m", "denoised_mdp", "train", *TINY, "train.log_to=wandb", f"run_dir={tmp_path / 'a'}"]
    done = subprocess.run(command, env=os.environ | {"WANDB_MODE": "offline"}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    [folder] = (tmp_path / "a" / "wandb").glob("offline-run-*")
    [record] = folder.glob("run-*.wandb")
    assert all(name in record.read_bytes() for name in (b"eval/return", b"model/image_error"))
