"""Do several seeds in one process pay off? Two recurrences stacked into batched products, against one after the other.

    python scripts/cluster/stacked_seeds.py --output results/cluster/stacked_seeds.json

On a GPU, an update is limited by the kernel launches of the recurrence: 50 steps of small kernels. Stacking K seeds
launches each kernel once for all of them. This script measures the same mechanism on a CPU: forward and backward passes
of a GRU (50 steps, 50 rows, 280 units in and out), in CPU seconds, alternating between the two ways.
"""

from __future__ import annotations

import argparse
import statistics
import time
from pathlib import Path

import torch
from torch import Tensor

from denoised_mdp.analysis.results import write_json

STEPS, ROWS, UNITS, SEEDS = 50, 50, 280, 2


def unroll(inputs: Tensor, weights: tuple[Tensor, Tensor]) -> Tensor:
    """Run a GRU over [T, ..., B, D] with weights [..., D, 3 D]; return a scalar. The dimensions `...` are seeds."""
    belief = torch.zeros_like(inputs[0])  # [..., B, D]
    for row in inputs:
        given, kept = row @ weights[0], belief @ weights[1]  # [..., B, 3 D]
        r1, u1, n1 = given.chunk(3, -1)
        r2, u2, n2 = kept.chunk(3, -1)
        update = torch.sigmoid(u1 + u2)  # [..., B, D]
        belief = update * belief + (1 - update) * torch.tanh(n1 + torch.sigmoid(r1 + r2) * n2)
    return belief.square().sum()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--output", type=Path)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    random = torch.Generator().manual_seed(0)
    inputs = torch.randn(STEPS, SEEDS, ROWS, UNITS, generator=random)
    weights = [0.05 * torch.randn(SEEDS, UNITS, 3 * UNITS, generator=random) for _ in range(2)]

    def apart() -> list[Tensor]:
        own = [[weight[seed].clone().requires_grad_() for weight in weights] for seed in range(SEEDS)]
        for seed in range(SEEDS):
            unroll(inputs[:, seed], tuple(own[seed])).backward()
        return [torch.stack([one[k].grad for one in own]) for k in (0, 1)]

    def stacked() -> list[Tensor]:
        own = [weight.clone().requires_grad_() for weight in weights]
        unroll(inputs, tuple(own)).backward()
        return [one.grad for one in own]

    for one, other in zip(apart(), stacked(), strict=True):
        torch.testing.assert_close(one, other)
    seconds: dict[str, list[float]] = {"apart": [], "stacked": []}
    for _ in range(arguments.repeats):
        for name, function in (("apart", apart), ("stacked", stacked)):
            began = time.process_time()
            function()
            seconds[name].append(time.process_time() - began)
    ratios = [one / other for one, other in zip(*seconds.values(), strict=True)]
    quartiles = statistics.quantiles(ratios, n=4)
    result = {"steps": STEPS, "rows": ROWS, "units": UNITS, "seeds": SEEDS, "repeats": arguments.repeats}
    result |= {f"{name}, median CPU s": statistics.median(values) for name, values in seconds.items()}
    result |= {"apart / stacked, median": quartiles[1], "quartiles": [quartiles[0], quartiles[2]]}
    print(result)
    if arguments.output:
        write_json(arguments.output, result)


if __name__ == "__main__":
    main()
