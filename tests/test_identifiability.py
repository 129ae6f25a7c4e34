"""Learning in a family whose representations are known to be equal up to a linear map."""

import numpy as np
import torch
from torch import nn

from denoised_mdp.analysis.similarity import linear_similarity, mean_cca

CLASSES, INFORMATIVE, NOISE = 18, 2, 20


def mlp(inputs: int, outputs: int = 2) -> nn.Sequential:
    sizes = [inputs, 64, 64, 64, 64]
    layers = [part for i, o in zip(sizes, sizes[1:], strict=False) for part in (nn.Linear(i, o), nn.ReLU())]
    return nn.Sequential(*layers, nn.Linear(64, outputs))


def spread(net: nn.Sequential, inputs: torch.Tensor, std: float) -> nn.Sequential:
    """Shift and scale the outputs on these inputs to mean 0 and a standard deviation; nothing learns from there on."""
    with torch.no_grad():
        net[-1].weight.mul_(std / net(inputs).std())
        net[-1].bias.sub_(net(inputs).mean(0))
    return net.requires_grad_(False)


def test_two_students_of_one_teacher_agree_up_to_a_linear_map():
    """p(y | x) = exp(f(x) g(y)) / sum: 18 classes, 2 informative inputs, 20 of noise, labels of a true member."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        symbols, test = torch.eye(CLASSES), torch.randn(1000, INFORMATIVE + NOISE)
        true_f, true_g = spread(mlp(INFORMATIVE), test[:, :INFORMATIVE], 2.0), spread(mlp(CLASSES), symbols, 2.0)
        students = [(mlp(INFORMATIVE + NOISE), mlp(CLASSES)) for _ in range(2)]
        split = np.arange(1000) % 2 == 0

        def similarity() -> tuple[float, float]:
            a, b = (f(test).detach().numpy() for f, _ in students)
            return mean_cca(a, b, split), linear_similarity(a, b, split)

        before = similarity()
        parameters = [parameter for pair in students for net in pair for parameter in net.parameters()]
        optimizer = torch.optim.Adam(parameters, lr=1e-3)
        for _ in range(600):
            inputs = torch.randn(128, INFORMATIVE + NOISE)
            labels = (true_f(inputs[:, :INFORMATIVE]) @ true_g(symbols).T).softmax(-1)  # [B, classes]
            logits = [f(inputs) @ g(symbols).T for f, g in students]
            loss = -sum((labels * one.log_softmax(-1)).sum(-1).mean() for one in logits)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        after = similarity()
    assert max(before) < 0.3
    assert min(after) > 0.95
