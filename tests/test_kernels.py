"""The compiled norms and gates: their equations at any size, gradients, threads, and what happens without them."""

import ctypes

import pytest
import torch
import torch.nn.functional as F
from small_runs import finish, forked

from denoised_mdp.models import kernels
from denoised_mdp.models.gru import NormGRUCell
from denoised_mdp.models.norms import EPS, RMSNorm

needs_compiler = pytest.mark.skipif(kernels.library() is None, reason="no C compiler")
SHAPES = [
    (1, 1),
    (70, 3),
    (0, 8),
    (1, 8),
    (64, 8),
    (65, 8),
    (33, 16),
    (31, 32),
    (99, 6),
    (99, 12),
    (50, 24),
    (5, 200),
    (3, 513),
    (2, 2048),
]


def plain(x, scale, silu):
    """The norm in float64, composed of elementary operations."""
    y = x * (x.square().mean(-1, keepdim=True) + EPS).rsqrt() * scale
    return F.silu(y) if silu else y


def with_gradients(function, inputs, direction):
    """What `function` makes of inputs, and its gradients along `direction`, all in float64."""
    inputs = [tensor.clone().requires_grad_() for tensor in inputs]
    y = function(*inputs)
    return [found.double() for found in (y.detach(), *torch.autograd.grad(y, inputs, direction.to(y.dtype)))]


@needs_compiler
@pytest.mark.parametrize("silu", [True, False])
@pytest.mark.parametrize("shape", SHAPES)
def test_norms_are_their_equation(shape, silu):
    torch.manual_seed(0)
    x, direction, scale = torch.randn(shape), torch.randn(shape), torch.rand(shape[1]) + 0.5
    assert kernels.serves(x, scale)
    exact = with_gradients(lambda x, s: plain(x, s, silu), [x.double(), scale.double()], direction)
    ours = with_gradients(lambda x, s: kernels.RMSNorm.apply(x, s, silu), [x, scale], direction)
    torch.testing.assert_close(ours, exact, rtol=1e-5, atol=1e-5)


@needs_compiler
@pytest.mark.parametrize("size", [3, 8, 16, 32, 200])
def test_norms_in_bf16_round_only_their_results(size):
    torch.manual_seed(0)
    x, direction, scale = torch.randn(77, size).bfloat16(), torch.randn(77, size).bfloat16(), torch.rand(size) + 0.5
    exact = with_gradients(lambda x, s: plain(x, s, True), [x.double(), scale.double()], direction)
    y, to_x, to_scale = with_gradients(lambda x, s: kernels.RMSNorm.apply(x, s, True), [x, scale], direction)
    for ours, theirs in ((y, exact[0]), (to_x, exact[1])):
        assert ((ours - theirs).abs() <= 2.0**-8 * theirs.abs() + 1e-6).all()  # half a unit in the last place
    torch.testing.assert_close(to_scale, exact[2], rtol=1e-5, atol=1e-5)


@needs_compiler
def test_pictures_in_any_memory_format_and_views_of_gradients():
    torch.manual_seed(0)
    images, direction = torch.randn(2, 5, 7, 4), torch.randn(2, 4, 7, 5).transpose(1, 3)
    norm = RMSNorm(5)

    def exact(x):
        return plain(x.permute(0, 2, 3, 1), norm.scale.double(), True).permute(0, 3, 1, 2)

    expected = with_gradients(exact, [images.double()], direction)
    for x in (images, images.contiguous(memory_format=torch.channels_last)):
        torch.testing.assert_close(with_gradients(norm.channels, [x], direction), expected, rtol=1e-5, atol=1e-5)


@needs_compiler
@pytest.mark.parametrize("shape", [(1, 1), (3, 7), (12, 120), (5, 600)])
def test_gates_are_their_equation(shape):
    torch.manual_seed(0)
    (batch, size), direction = shape, torch.randn(shape)
    raw, scale, h = 2.0 * torch.randn(batch, 3 * size), torch.rand(3 * size) + 0.5, torch.randn(shape)

    def exact(raw, scale, h):
        reset, candidate, update = plain(raw, scale, False).chunk(3, -1)
        update = (update - 1.0).sigmoid()
        return update * (reset.sigmoid() * candidate).tanh() + (1.0 - update) * h

    expected = with_gradients(exact, [raw.double(), scale.double(), h.double()], direction)
    ours = with_gradients(kernels.NormGates.apply, [raw, scale, h], direction)
    torch.testing.assert_close(ours, expected, rtol=1e-5, atol=1e-5)


@needs_compiler
@pytest.mark.parametrize("shape", [(1, 1, 1, 1), (3, 5, 4, 7), (2, 9, 9, 16), (40, 20, 20, 8)])
def test_response_norms_are_their_equation(shape):
    torch.manual_seed(0)
    x, direction = torch.randn(shape), torch.randn(shape)
    parameters = [torch.randn(shape[-1], 1, 1) for _ in range(3)]

    def exact(x, gamma, beta, tau):
        x = x.permute(0, 3, 1, 2)
        y = gamma * x * (x.square().mean((2, 3), keepdim=True) + 1e-6).rsqrt() + beta
        return torch.maximum(y, tau).permute(0, 2, 3, 1)

    expected = with_gradients(exact, [x.double(), *(p.double() for p in parameters)], direction)
    ours = with_gradients(kernels.ResponseNorm.apply, [x, *parameters], direction)
    torch.testing.assert_close(ours, expected, rtol=1e-4, atol=1e-4)
    ours = with_gradients(kernels.ResponseNorm.apply, [x.bfloat16(), *parameters], direction)
    expected = with_gradients(exact, [x.bfloat16().double(), *(p.double() for p in parameters)], direction.bfloat16())
    torch.testing.assert_close(ours[:2], expected[:2], rtol=2.0**-8, atol=1e-5)


@needs_compiler
def test_threads_change_nothing_but_rounding():
    torch.manual_seed(0)
    rows = kernels.WORTH_THREADS // 8 + 13
    x, direction, scale = torch.randn(rows, 8), torch.randn(rows, 8), torch.rand(8)
    before, found = torch.get_num_threads(), []
    try:
        for threads in (1, 2):
            torch.set_num_threads(threads)
            found.append(with_gradients(lambda x, s: kernels.RMSNorm.apply(x, s, True), [x, scale], direction))
    finally:
        torch.set_num_threads(before)
    torch.testing.assert_close(*found, rtol=1e-5, atol=1e-6)


@needs_compiler
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_extremes(dtype):
    """Large numbers saturate; where one is no number, its row is none and no other."""
    x = torch.tensor([[1e4, -1e4], [1e-6, 0.0], [1.0, float("nan")], [3.0, 4.0]], dtype=dtype).repeat(40, 1)
    y = kernels.RMSNorm.apply(x, torch.tensor([300.0, 300.0]), True)
    assert y[0, 0] > 290 and y[0, 1].abs() < 1e-30 and y[1, 1] == 0.0
    assert y[2].isnan().all() and not y[[0, 1, 3]].isnan().any()


def test_large_rows_and_other_types_are_not_for_kernels():
    assert not kernels.serves(torch.zeros(1, kernels.MOST + 1), torch.zeros(1))
    assert not kernels.serves(torch.zeros(1, 4, dtype=torch.float64), torch.zeros(4))
    assert not kernels.serves(torch.zeros(1, 4, device="meta"), torch.zeros(4))


@needs_compiler
def test_what_does_not_fit_is_left_to_pytorch():
    """Kernels trust the sizes and types that they are given."""
    with pytest.raises(RuntimeError):
        RMSNorm(4)(torch.randn(2, 6))
    with pytest.raises(RuntimeError, match="dtype"):
        NormGRUCell(3, 5)(torch.randn(2, 3), torch.randn(2, 5, dtype=torch.float16))


@needs_compiler
def test_without_kernels_nets_are_the_same(monkeypatch):
    torch.manual_seed(0)
    norm, cell = RMSNorm(6), NormGRUCell(3, 2)
    x, h = torch.randn(4, 3), torch.randn(4, 2)

    def results():
        y = cell(x, h).tanh()
        return y, *torch.autograd.grad(norm(y.repeat(1, 3)).sum(), [*cell.parameters(), norm.scale])

    ours = results()
    monkeypatch.setattr(kernels, "library", lambda: None)
    torch.testing.assert_close(results(), ours)


def found(monkeypatch, cache, **environment) -> bool:
    """Whether there is a library, looked for as a new process does."""
    with monkeypatch.context() as patch:
        for name, value in {"DENOISED_MDP_CACHE": str(cache), **environment}.items():
            patch.setenv(name, value)
        return kernels.library.__wrapped__() is not None


def test_no_compiler_a_failing_one_a_full_cache_or_no_wish(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    assert not found(monkeypatch, tmp_path, CC="there-is-none")
    assert not found(monkeypatch, tmp_path, CC="false")
    assert not found(monkeypatch, tmp_path / "file")
    assert not found(monkeypatch, tmp_path, DENOISED_MDP_KERNELS="0")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


@pytest.fixture
def compiler(tmp_path):
    """A function that makes a compiler which refuses some flags, and does not optimize, which takes the most time."""

    def compiler(refused='""'):
        path = tmp_path / "cc"
        path.write_text(f'#!/bin/sh\ncase " $* " in {refused}) exit 1;; esac\nexec cc "$@" -O0\n')
        path.chmod(0o755)
        return str(path)

    return compiler


@needs_compiler
def test_a_compiler_may_be_given_with_flags(tmp_path, monkeypatch, compiler):
    assert found(monkeypatch, tmp_path, CC=f"{compiler()} -O2")


@needs_compiler
@pytest.mark.parametrize("unknown", ['*" -fopenmp "*', '*" -fopenmp "*|*" -march=native "*'])
def test_a_compiler_that_lacks_flags_makes_kernels_of_one_thread(tmp_path, monkeypatch, compiler, unknown):
    assert found(monkeypatch, tmp_path, CC=compiler(unknown))


@needs_compiler
def test_a_torn_library_is_made_again(tmp_path, monkeypatch, compiler):
    """As after a power failure; each time by a process that has not loaded it yet."""
    monkeypatch.setenv("DENOISED_MDP_CACHE", str(tmp_path))
    monkeypatch.setenv("CC", compiler())
    for _ in range(2):
        assert finish(*forked(lambda: int(kernels.library.__wrapped__() is None))) == (0, "")
        (made,) = tmp_path.glob("*.so")
        assert made.stat().st_size > 0
        made.write_bytes(b"")


@needs_compiler
def test_a_damaged_library_is_not_loaded(tmp_path, monkeypatch):
    monkeypatch.setenv("DENOISED_MDP_CACHE", str(tmp_path))
    monkeypatch.setattr(kernels, "_compile", lambda compiler, path: path.write_bytes(b"none"))
    assert kernels.library.__wrapped__() is None
    monkeypatch.undo()
    assert isinstance(kernels.library(), ctypes.CDLL)
