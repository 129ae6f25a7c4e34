"""`Agent.update` as one CUDA graph: on a GPU, launching its thousands of small kernels takes longer than running them.

The graph is recorded once for each kind of update (with and without the policy), then replayed. Recording needs a few
warm-up updates. Weights, optimizer states and generator are restored afterwards, so a run with graphs does the same
updates from the same random numbers as one without.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import torch
from torch import Tensor, nn

from denoised_mdp.errors import UserError

WARM_UP = 3

Update = Callable[..., dict[str, Tensor]]


class GraphedUpdate:
    """Replays `update(batch, policy=...)`, recorded from the eager function of the same signature.

    module: everything that the update changes besides the optimizers' states. generator: the source of all its noise.
    Batches must keep their shapes. Build a new one after optimizer states were replaced, e.g. from a checkpoint.
    """

    def __init__(
        self,
        update: Update,
        module: nn.Module,
        optimizers: dict[str, torch.optim.Optimizer],
        generator: torch.Generator,
    ):
        self._update, self._module, self._optimizers, self._generator = update, module, optimizers, generator
        self._graphs: dict[bool, tuple[torch.cuda.CUDAGraph, list[str], Tensor]] = {}
        self._batch: dict[str, Tensor] = {}
        self._staging: dict[str, Tensor] = {}
        self._copied = torch.cuda.Event()

    def __call__(self, batch: dict[str, np.ndarray | Tensor], *, policy: bool = True) -> dict[str, Tensor]:
        """Do one update; return metrics as scalar tensors, copies that later updates do not overwrite."""
        self._load(batch)
        if policy not in self._graphs:
            self._graphs[policy] = self._record(policy)
        graph, names, values = self._graphs[policy]
        graph.replay()
        return dict(zip(names, values.clone().unbind(), strict=True))

    def _load(self, batch: dict[str, np.ndarray | Tensor]) -> None:
        """Copy a batch into the tensors that the graph reads; from the host through pinned memory, without waiting."""
        self._copied.synchronize()  # the previous batch: its pinned copy is about to be overwritten
        for name, value in batch.items():
            value = torch.as_tensor(value)
            if name not in self._batch:
                self._batch[name] = torch.empty_like(value, device=self._generator.device)
            if value.shape != self._batch[name].shape:
                raise ValueError(f"{name} has shape {tuple(value.shape)}, not {tuple(self._batch[name].shape)}")
            if not (value.is_cuda or value.is_pinned()):
                if name not in self._staging:
                    self._staging[name] = torch.empty_like(value).pin_memory()
                value = self._staging[name].copy_(value)
            self._batch[name].copy_(value, non_blocking=True)
        self._copied.record()

    def _record(self, policy: bool) -> tuple[torch.cuda.CUDAGraph, list[str], Tensor]:
        """Warm up on a separate stream, restore everything, then record. Nothing is learned by this."""
        for optimizer in self._optimizers.values():
            for group in optimizer.param_groups:
                group["capturable"] = True
        weights = {name: value.clone() for name, value in self._module.state_dict().items()}
        states = {
            (parameter, key): value.clone()
            for optimizer in self._optimizers.values()
            for parameter, state in optimizer.state.items()
            for key, value in state.items()
        }
        noise = self._generator.get_state()
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(WARM_UP):
                refuse_numbers(self._update(self._batch, policy=policy))
        torch.cuda.current_stream().wait_stream(stream)
        with torch.no_grad():
            for name, value in self._module.state_dict().items():
                value.copy_(weights[name])
            for optimizer in self._optimizers.values():
                for parameter, state in optimizer.state.items():
                    for key, value in state.items():  # states that the warm-up created begin at zero
                        before = states.get((parameter, key))
                        value.zero_() if before is None else value.copy_(before)
        self._generator.set_state(noise)
        torch.cuda.synchronize()

        graph = torch.cuda.CUDAGraph()
        graph.register_generator_state(self._generator)
        with torch.cuda.graph(graph, capture_error_mode="thread_local"):  # another thread may act meanwhile
            metrics = self._update(self._batch, policy=policy)
            values = torch.stack([value.float() for value in metrics.values()])
        return graph, list(metrics), values


def refuse_numbers(metrics: Mapping[str, Tensor | float]) -> None:
    """Raise UserError if a metric is a Python number: every replay would repeat the recorded value."""
    for name, value in metrics.items():
        if not isinstance(value, Tensor):
            raise UserError(
                f"Metric {name!r} is a Python number, which a CUDA graph cannot follow. Return it as a tensor on the"
                " device, or set train.cuda_graph=false."
            )
