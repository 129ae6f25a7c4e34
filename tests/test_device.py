"""What is chosen for a machine: device, arithmetic, threads."""

import warnings

import pytest
import torch

from denoised_mdp import device as runtime
from denoised_mdp.config.schema import TrainConfig
from denoised_mdp.device import configure, configure_acting, precision_name, resolve_device, resolve_precision
from denoised_mdp.errors import UserError

CPU, GPU = torch.device("cpu"), torch.device("cuda", 1)


@pytest.fixture(params=[False, True])
def fast(request, monkeypatch):
    """Machines that are slow and fast at bf16."""
    monkeypatch.setattr(runtime, "has_fast_bf16", lambda device: request.param)
    return request.param


def test_precision_follows_the_machine_only_if_it_may(fast):
    half = torch.bfloat16
    assert resolve_precision("auto", CPU) == (half if fast else None)
    assert resolve_precision("auto", CPU, deterministic=True) is None
    assert resolve_precision("bf16", CPU, deterministic=True) == half
    assert resolve_precision("float32", CPU) is None and resolve_precision("tf32", CPU) is None


def test_a_slow_choice_is_told(fast, recwarn):
    threads = torch.get_num_threads()
    device, dtype = configure(TrainConfig(precision="bf16", device="cpu", threads=threads))
    assert (device, dtype, precision_name(device, dtype)) == (CPU, torch.bfloat16, "bf16")
    assert ["multiplies bf16 slowly" in str(warning.message) for warning in recwarn] == ([] if fast else [True])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        device, dtype = configure(TrainConfig(precision="float32", device="cpu", threads=threads))
    assert precision_name(device, dtype) == "float32"


def test_devices_by_name(monkeypatch):
    assert resolve_device("cpu") == CPU
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert resolve_device("auto") == resolve_device("cuda") == torch.device("cuda")
    assert resolve_device("cuda:1") == GPU
    with pytest.raises(UserError, match="device cuda:2: PyTorch finds no such GPU"):
        resolve_device("cuda:2")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert resolve_device("auto") == CPU
    with pytest.raises(UserError, match="use cpu or auto"):
        resolve_device("cuda")


def test_the_agent_acts_where_it_is_told(monkeypatch):
    """bf16 where the device that acts is fast at it, whatever the one that learns is."""
    monkeypatch.setattr(runtime, "has_fast_bf16", lambda device: device.type == "cuda")
    assert configure_acting(TrainConfig(), GPU) == (GPU, torch.bfloat16)
    assert configure_acting(TrainConfig(act_device="cpu"), GPU) == (CPU, None)
    assert configure_acting(TrainConfig(act_device="cpu", precision="bf16"), GPU) == (CPU, None)
    assert configure_acting(TrainConfig(precision="bf16"), CPU) == (CPU, torch.bfloat16)
    with pytest.raises(UserError, match="train.act_device cuda:1: PyTorch finds no such GPU here; use cpu or learner"):
        configure_acting(TrainConfig(act_device="cuda:1"), CPU)


def test_acting_on_the_learners_own_device_is_as_learning(fast):
    """No bit may differ, slow or not."""
    train = TrainConfig(act_device="cpu", precision="bf16")
    assert configure_acting(train, CPU) == (CPU, torch.bfloat16)


def test_one_device_has_one_name(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    for learner, act_device in (("cuda", "cuda:0"), ("cuda:0", "cuda")):
        device, _ = configure_acting(TrainConfig(act_device=act_device, precision="float32"), torch.device(learner))
        assert device == torch.device(learner)


def test_a_run_leaves_no_settings_to_the_next_one_of_its_process():
    """As the jobs of a sweep."""
    threads = torch.get_num_threads()
    try:
        configure(TrainConfig(threads=2, deterministic=True))
        assert (torch.get_num_threads(), torch.are_deterministic_algorithms_enabled()) == (2, True)
        configure(TrainConfig())
        assert (torch.get_num_threads(), torch.are_deterministic_algorithms_enabled()) == (threads, False)
    finally:
        torch.set_num_threads(threads)
        torch.set_deterministic_debug_mode("default")
