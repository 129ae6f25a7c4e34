"""Updates, filtering and acting on a device that does not exist: run as a program by test_fake_device.py.

PyTorch lets a program register its own backend, and fake tensors have shapes, types and devices but no numbers. So a
machine without a GPU finds the mistakes that a GPU would: a tensor left on the host, or mixed with one that is not, and
what cannot be recorded as a graph, such as a branch on data or a number that the host waits for. Prints one line of
JSON for each case: the devices of its results, or the error.
"""

from __future__ import annotations

import contextlib
import json

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

from denoised_mdp.agents.registry import build_agent
from denoised_mdp.agents.world_model_agent import WorldModelAgent
from denoised_mdp.config import load_config
from denoised_mdp.models import denoised
from denoised_mdp.models.latent import Latent
from denoised_mdp.models.networks import images_to_float
from denoised_mdp.models.rssm import RSSM
from denoised_mdp.run.machine import random_batch

DEVICE, ACTIONS = "imaginary:0", 3
Generator = torch.Generator
CASES = [
    ("backprop", "2b", "bf16"),
    ("sac", "2c", "float32"),
    ("sac", "dreamer", "bf16"),
    ("reinforce", "2b", "float32"),
    ("backprop", "tia", "float32"),
    ("backprop", "repo", "float32", "model.continuation=true", "policy.entropy=1e-3", "policy.replay_value=1"),
    ("reinforce", "2b", "bf16", "model.optimizer.name=muon", "policy.optimizer=laprop", "policy.agc=0.3"),
    ("sac", "2b", "float32", "replay.latents=true", "model.kl.dyn=1", "model.kl.relax=0.5", "model.kl.warmup=2"),
]
"""every policy and precision, models of each kind of loss, and further options; independent, so not combined"""
SMALL = ["preset=debug", "train.segment_length=3", "train.batch_size=3", "train.deterministic=false"]


class AnyGenerator(type):
    """The type of `HostGenerator`, which makes every generator an instance of it."""

    def __instancecheck__(cls, thing: object) -> bool:
        return isinstance(thing, Generator)


class HostGenerator(metaclass=AnyGenerator):
    """Makes generators of the host, whatever device is asked for: noise without numbers needs no more."""

    def __new__(cls, *_):
        return Generator()


@contextlib.contextmanager
def replaced(owner: object, **values):
    """Replace attributes of an object within a context."""
    before = {name: getattr(owner, name) for name in values}
    for name, value in values.items():
        setattr(owner, name, value)
    try:
        yield
    finally:
        for name, value in before.items():
            setattr(owner, name, value)


def build(policy: str, model: str, precision: str, *options: str) -> tuple[WorldModelAgent, dict]:
    """A small agent whose weights are on the device, and a batch that is not.

    While an agent is built, fake tensors of such a backend cannot be moved, made from numbers or drawn by a generator.
    So weights are created on the device, and `torch.tensor` and `torch.Generator` are replaced.
    """
    horizon = ["policy.horizon=2"] if policy != "sac" else []
    config = load_config([*SMALL, f"policy={policy}", f"model={model}", *horizon, *options])
    dtype = torch.bfloat16 if precision == "bf16" else None
    with torch.device(DEVICE), replaced(torch, tensor=lambda number: torch.full((), number)):
        with replaced(nn.Module, to=lambda module, _: module):
            agent = build_agent(config, ACTIONS, device=DEVICE, dtype=dtype)
    batch = random_batch(config, ACTIONS)
    start = {"start": torch.zeros(1, config.train.batch_size, agent.latent_size)} if config.replay.latents else {}
    return agent, batch | start


def results(policy: str, model: str, precision: str, *options: str) -> dict[str, list[str]]:
    """Kind of result -> the devices where its tensors lie."""
    agent, batch = build(policy, model, precision, *options)
    metrics = agent.update_eagerly(batch)
    torch.stack([value.float() for value in metrics.values()])  # as a graph of the update does
    parameters = list(agent.parameters())
    images = agent.to_device(batch)["observation"][0]
    nowhere = torch.zeros(len(images), dtype=torch.bool, device=images.device)
    carry = agent.observe(images, None, nowhere, agent.random)
    action = agent.choose(carry, agent._noise(len(images), ACTIONS, agent.random))
    carry = carry.after(action)
    carry = agent.observe(images, carry, nowhere, [agent.random] * len(images))
    carry = agent.observe(images, carry, nowhere, None, sample=False)
    features = carry.latent.features("x")
    lists = {
        "weights": parameters,
        "gradients": [p.grad for p in parameters if p.grad is not None],
        "metrics": metrics.values(),
        "acting": [carry.action, carry.latent.belief, carry.latent.state, agent.policy.act(features, None)],
        "pictures": [agent.world_model.decode(carry.latent)],
    }
    return {name: sorted({str(tensor.device) for tensor in tensors}) for name, tensors in lists.items()}


def forgetful(rssm: RSSM, batch: int) -> Latent:
    """A planted mistake: the first latents are made on the host."""
    return Latent(torch.zeros(batch, rssm.layout.belief_size), torch.zeros(batch, rssm.layout.state_size), rssm.layout)


def curious(images: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """A planted mistake: a branch on a number that the host must wait for."""
    return images_to_float(images, dtype) if images.max() > 0 else images


def main() -> None:
    """Run every case, and one with each planted mistake."""
    _setup_privateuseone_for_python_backend(DEVICE.partition(":")[0])
    cases = [(case, None, contextlib.nullcontext()) for case in CASES]
    cases.append((CASES[0], "forgetful", replaced(RSSM, initial=forgetful)))
    cases.append((CASES[0], "curious", replaced(denoised, images_to_float=curious)))
    for case, planted, context in cases:
        with context, FakeTensorMode(allow_non_fake_inputs=True), replaced(torch, Generator=HostGenerator):
            try:
                found = results(*case)
            except Exception as error:
                found = {"error": f"{type(error).__name__}: {error}".splitlines()[0]}
        print(json.dumps({"case": case, "planted": planted, "found": found}), flush=True)


if __name__ == "__main__":
    main()
