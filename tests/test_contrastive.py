"""The contrastive loss in closed form and by brute force, and its augmentations pixel by pixel."""

import colorsys
import contextlib
import dataclasses
import math
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from conftest import options_of
from joints_case import small_data
from scipy.special import hyp0f1

from denoised_mdp.analysis import augment as views
from denoised_mdp.analysis.contrastive import (
    alignment,
    contrastive_encoder,
    contrastive_loss,
    train_contrastive,
    uniformity,
)
from denoised_mdp.analysis.joints.regression import fresh_encoder
from denoised_mdp.analysis.probes import PROBES
from denoised_mdp.errors import UserError
from denoised_mdp.models.vision import Encoder

OPTIMA = {2: -1.5750, 8: -3.0825, 128: -3.9375}
"""dimensions -> log E exp(-2 ||u - v||^2) of uniform points on the sphere"""


def sphere(count: int, size: int, seed: int = 0) -> torch.Tensor:
    points = torch.randn(count, size, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return points / points.norm(dim=1, keepdim=True)


@pytest.mark.parametrize("size", OPTIMA)
def test_uniform_points_reach_the_closed_form(size):
    """||u - v||^2 = 2 - 2 cos, and E exp(4 cos) = 0F1(d / 2; 4) on the sphere in d dimensions."""
    exact = math.log(hyp0f1(size / 2, 4.0)) - 4
    assert exact == pytest.approx(OPTIMA[size], abs=6e-5)
    assert uniformity(sphere(1500, size)).item() == pytest.approx(exact, abs=0.01)


def test_equal_distances_on_a_circle_are_exact_and_gradients_lead_there():
    count, exact = 40, math.log(hyp0f1(1.0, 4.0)) - 4
    angle = torch.arange(count, dtype=torch.float64) * 2 * math.pi / count
    points = torch.stack((angle.cos(), angle.sin()), 1)
    best = math.log((count * math.exp(exact) - 1) / (count - 1))  # the mean over distinct pairs lacks the zeros
    assert uniformity(points).item() == pytest.approx(best, abs=1e-9)
    free = sphere(12, 2, 3).requires_grad_(True)
    optimizer = torch.optim.Adam([free], lr=0.05)
    for _ in range(100):
        loss = uniformity(torch.nn.functional.normalize(free, dim=1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    least = math.log((12 * math.exp(exact) - 1) / 11)
    assert least - 1e-6 < loss.item() < least + 0.01 and uniformity(sphere(12, 2, 3)) > least + 0.1


def test_loss_equals_brute_force():
    a, b = sphere(7, 5, 1), sphere(7, 5, 2)
    align, uniform = contrastive_loss(a, b)
    assert align.item() == pytest.approx(np.mean([((x - y) ** 2).sum().item() for x, y in zip(a, b, strict=True)]))
    logs = []
    for view in (a, b):
        pairs = [math.exp(-2 * ((view[i] - view[j]) ** 2).sum()) for i in range(7) for j in range(7) if i != j]
        logs.append(math.log(np.mean(pairs)))
    assert uniform.item() == pytest.approx(np.mean(logs))
    assert alignment(a, a).item() == 0 and uniformity(a[:1].expand(4, -1)).item() == pytest.approx(0)


def pictures(count: int = 4, size: int = 16, seed: int = 0) -> torch.Tensor:
    return torch.rand(count, 3, size, size, generator=torch.Generator().manual_seed(seed))


def test_hue_is_that_of_colorsys():
    images, turn = pictures(), torch.tensor([0.0, 0.3, -0.4, 0.15])
    images[0, :, 0, 0], images[1, :, 0, 0] = 0.5, torch.tensor([0.2, 0.2, 0.0])  # gray, and two equal channels
    out = views.turn_hue(images, turn)
    torch.testing.assert_close(out[0], images[0])
    for n, y, x in np.ndindex(4, 4, 4):
        hue, saturation, value = colorsys.rgb_to_hsv(*images[n, :, y, x].double().tolist())
        expected = colorsys.hsv_to_rgb((hue + turn[n].item()) % 1, saturation, value)
        np.testing.assert_allclose(out[n, :, y, x], expected, atol=1e-5)


def test_brightness_contrast_saturation_and_gray_by_definition():
    images, scale = pictures(), torch.tensor([1.0, 0.6, 1.4, 0.0])
    gray = 0.299 * images[:, 0] + 0.587 * images[:, 1] + 0.114 * images[:, 2]
    for n in range(4):
        s, mean = scale[n], gray[n].mean()
        torch.testing.assert_close(views.brighten(images, scale)[n], (s * images[n]).clamp(0, 1))
        torch.testing.assert_close(views.contrast(images, scale)[n], (s * images[n] + (1 - s) * mean).clamp(0, 1))
        torch.testing.assert_close(views.saturate(images, scale)[n], (s * images[n] + (1 - s) * gray[n]).clamp(0, 1))
    torch.testing.assert_close(views.to_gray(images)[:, 0], gray)


def test_crops_are_resized_boxes_of_the_picture():
    images = pictures()
    whole, size = torch.full((4, 2), 0.5), torch.ones(4, 2)
    torch.testing.assert_close(views.resized_crop(images, whole, size), images)
    ramp = torch.stack([torch.linspace(0.5, 31.5, 32).expand(32, 32) / 32] * 3)[None]  # the value is the place in x
    center, size = torch.tensor([[0.6, 0.3]]), torch.tensor([[0.5, 0.4]])
    left, width = 0.35, 0.5
    expected = left + width * (torch.arange(32) + 0.5) / 32
    torch.testing.assert_close(views.resized_crop(ramp, center, size)[0, 0, 5], expected)
    upright = views.resized_crop(ramp.mT, center, size)[0, 0, :, 5]
    torch.testing.assert_close(upright, 0.1 + 0.4 * (expected - left) / width)


def test_boxes_have_the_asked_areas_and_shapes_and_stay_inside():
    center, size = views.random_boxes(20_000, torch.Generator().manual_seed(0))
    assert (center - size / 2).min() > -1e-6 and (center + size / 2).max() < 1 + 1e-6
    free = (size < 1).all(1)
    area, shape = size.prod(1), size[:, 0] / size[:, 1]
    assert free.float().mean() > 0.8 and area.max() <= 1
    assert area[free].min() >= 0.08 and 0.75 - 1e-5 <= shape[free].min() and shape[free].max() <= 4 / 3 + 1e-5
    small = area[free & (area < 0.5)]  # uniform there, since no side is cut: the largest has sqrt(0.5 * 4 / 3) < 1
    assert small.mean() == pytest.approx((0.08 + 0.5) / 2, abs=0.005)
    assert np.log(shape[free & (area < 0.5)].numpy()).mean() == pytest.approx(0, abs=0.01)


def test_augmentation_is_of_each_picture_reproducible_and_mirrors_only_when_asked():
    image = torch.zeros(1, 3, 16, 16)
    image[:, :, :, 8:] = 1.0  # dark left, bright right
    batch = image.expand(3000, -1, -1, -1)
    first, again = (views.augment(batch, torch.Generator().manual_seed(5)) for _ in range(2))
    assert torch.equal(first, again) and first.min() >= 0 and first.max() <= 1
    assert len({tuple(view.flatten()[::37].tolist()) for view in first[:50]}) > 45

    def mirrored(out):
        return (out[..., 0].mean((1, 2)) > out[..., -1].mean((1, 2)) + 1e-3).float().mean().item()

    assert mirrored(first) == 0
    both = views.augment(batch, torch.Generator().manual_seed(5), flip=True)
    share = 1 - (first[..., 0] == first[..., -1]).all(2).all(1).float().mean().item()  # crops that show both sides
    assert mirrored(both) / share == pytest.approx(0.5, abs=0.05)
    colored = pictures(1, 8).expand(3000, -1, -1, -1)
    out = views.augment(colored, torch.Generator().manual_seed(6))
    gray = (out.amax(1) - out.amin(1)).amax((1, 2)) < 1e-4
    assert gray.float().mean().item() == pytest.approx(0.2, abs=0.03)


def test_a_single_picture_has_none_to_be_told_from():
    alone = SimpleNamespace(folder=Path("desk"), choose=lambda split, count, seed: np.arange(1))
    with pytest.raises(UserError, match="desk has a single frame"):
        train_contrastive(None, alone, updates=1)
    least = {field.name: field.metadata.get("low") for field in dataclasses.fields(PROBES["joints"].Options)}
    assert least["contrastive_batch"] == 2


def test_an_encoder_of_an_earlier_call_serves_only_one_that_was_made_alike(tmp_path):
    """Encoders of equal shapes can read pictures differently: the range of their pixels, the kind of convolution."""
    options = {"updates": 2, "batch": 4, "seed": 0}
    with contextlib.closing(small_data(tmp_path)) as data:

        def encoder(**changes):
            made = {"init": "pytorch", **options_of(Encoder, depth=1, embed=None, **changes)}
            fresh = fresh_encoder(seed=0, **made)
            return contrastive_encoder(fresh, data, lambda done: None, made=made, **options).state_dict()

        first, again, other = encoder(), encoder(), encoder(pixel_range=1.0)
    assert all(torch.equal(value, again[name]) for name, value in first.items())
    assert not all(torch.equal(value, other[name]) for name, value in first.items())
    assert len(list((data.folder / "contrastive").iterdir())) == 2
