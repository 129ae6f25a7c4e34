"""PI-SAC: sizes, closed forms, who is taught by what, and data in which the future is or is not foretold."""

import math

import pytest
import torch
from torch.distributions import Independent, Normal

from denoised_mdp.agents.pisac import CodeNet, FilterResponseNorm, bottleneck_loss

B, C = 6, 4


def codes(scale: float = 1.0) -> list[torch.Tensor]:
    """z and the means of e(z|x), b(z|y) and b(z|y')."""
    return [scale * torch.randn(B, C, dtype=torch.float64) for _ in range(4)]


def test_sizes():
    present, future = CodeNet(50 + 3 * 6, 128, 50), CodeNet(50 + 3, 128, 50)
    assert [sum(p.numel() for p in net.parameters()) for net in (present, future)] == [31_894, 29_974]


def test_the_loss_by_its_definition():
    z, e, b, later = codes()
    density = lambda mean, code: Independent(Normal(mean, 1.0), 1).log_prob(code)  # noqa: E731
    beta, wanted, information = 0.01, 0.0, 0.0
    for i in range(B):
        log_e, log_b, log_later = (density(mean[i], z[i]) for mean in (e, b, later))
        others = torch.stack([density(b[k], z[i]).exp() for k in range(B)]).mean().log()
        wanted += beta * (log_e - log_b) - (log_b - others) + 0.6 * beta * (log_e - log_later)
        information += log_b - others
    loss, bound = bottleneck_loss(z, e, b, later, beta)
    torch.testing.assert_close(loss, wanted / B)
    torch.testing.assert_close(bound, information / B)


def test_equal_futures_tell_nothing_and_distant_ones_everything():
    z, e, b, later = codes()
    assert bottleneck_loss(z, e, b[:1].expand(B, C), later, 0.01)[1].item() == pytest.approx(0, abs=1e-12)
    far = 100 * torch.eye(B, dtype=torch.float64)
    assert bottleneck_loss(far + 0.1, far, far, far, 0.01)[1].item() == pytest.approx(math.log(B), rel=1e-12)
    same = bottleneck_loss(z, e, e, e, 0.5)  # no residual: the loss is minus the bound
    torch.testing.assert_close(same[0], -same[1])


def test_first_codes_are_small_and_norms_follow_the_batch():
    net = CodeNet(10, 128, 50)
    first = net(torch.randn(256, 10)).detach()
    assert first.mean(0).abs().max() < 1e-5 and 0.01 < first.std() < 0.5
    assert not list(net.buffers())


def test_filter_response_norm():
    norm, x = FilterResponseNorm(3), torch.randn(2, 3, 5, 5)
    assert sum(p.numel() for p in norm.parameters()) == 9
    with torch.no_grad():
        norm.tau.fill_(-100.0)
    torch.testing.assert_close(norm(7 * x).square().mean((2, 3)), torch.ones(2, 3))
    with torch.no_grad():
        norm.tau.zero_()
    assert torch.equal(norm(x) == 0, x < 0)


@pytest.mark.parametrize("foretold", [True, False])
def test_the_bound_comes_near_log_k_where_the_present_tells_the_future(foretold):
    """The present is a rotation of the future and noise, or noise alone: then nothing can be predicted."""
    present, future = CodeNet(8, 64, 16), CodeNet(6, 64, 16)
    optimizer = torch.optim.Adam([*present.parameters(), *future.parameters()], lr=3e-3)
    rotation = torch.linalg.qr(torch.randn(6, 6))[0]
    bounds = []
    for _ in range(300):
        y = torch.randn(32, 6)
        x = torch.cat((y @ rotation if foretold else torch.randn(32, 6), torch.randn(32, 2)), -1)
        e, b = present(x), future(y)
        loss, bound = bottleneck_loss(e + torch.randn_like(e), e, b, b, 0.01)
        bounds.append(bound.item())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    found = sum(bounds[-20:]) / 20
    print(found, math.log(32))
    assert found > 0.9 * math.log(32) if foretold else found < 0.1
