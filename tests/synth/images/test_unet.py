"""The network takes pictures of any size, and computes each row alone, with gradients that training knows."""

from __future__ import annotations

import pytest
import torch
from torch.func import functional_call, grad, vmap

from dpsynth_platform.foundation.image_form import ImageForm
from dpsynth_platform.synth.images.diffusion_loss import Rows, losses
from dpsynth_platform.synth.images.diffusion_numbers import DiffusionLoss
from dpsynth_platform.synth.images.unet import SIZES, UNet, weights_of
from dpsynth_platform.training.grids import GridSums
from dpsynth_platform.training.plan import TrainingPlan
from dpsynth_platform.training.unit_probe import refuse_unsound_grid

CPU = torch.device("cpu")
FORMS = [ImageForm(7, 5, 1), ImageForm(28, 28, 1), ImageForm(9, 16, 3), ImageForm(1, 1, 3)]
PLAN = TrainingPlan(units=100, batch_size=10, steps=2, noise_multiplier=1.0, clipping_norm=0.5)


def network(form, classes=3, size="small"):
    """With weights in its last layers, too."""
    made = UNet(form, classes, size)
    with torch.no_grad():
        for value in made.parameters():
            value.add_(0.05 * torch.randn_like(value))
    return made


def rows_of(form, number, classes=3):
    return Rows(DiffusionLoss(), form, classes, CPU).made_up(number)


@pytest.mark.parametrize(("size", "millions"), [("small", 0.1), ("medium", 0.5), ("large", 1.6)])
def test_sizes_are_about_as_said(size, millions):
    assert 0.9 * millions < weights_of(UNet(ImageForm(28, 28, 1), 10, size)) / 1e6 < 1.4 * millions
    assert len(SIZES) == 3


@pytest.mark.parametrize("form", FORMS, ids=str)
def test_pictures_of_any_size_come_out_as_they_went_in(form):
    made, rows = network(form), rows_of(form, 2)
    found = made(rows["pictures"], rows["level"], rows["classes"])
    assert found.shape == (2, form.channels, form.height, form.width)
    assert torch.isfinite(found).all()


def test_class_and_level_of_noise_matter():
    form = ImageForm(8, 8, 1)
    made, picture = network(form), torch.randn(1, 1, 8, 8).repeat(4, 1, 1, 1)
    found = made(picture, torch.tensor([0.1, 0.1, 0.1, 0.2]), torch.tensor([0, 1, made.no_class, 0]))
    assert torch.pdist(found.flatten(1)).min() > 1e-3


def test_first_weights_come_from_the_operating_system():
    """A fixed seed of torch does not fix them; last layers are 0, so that nothing is predicted at first."""
    made = []
    for _ in range(2):
        torch.manual_seed(0)
        made.append(UNet(ImageForm(8, 8, 1), 3, "small"))
    assert not torch.equal(made[0].enter.weight, made[1].enter.weight)
    assert not made[0].leave.weight.any()
    assert all(block.first.weight.any() for block in made[0].down)


@pytest.mark.parametrize("form", FORMS[:3], ids=str)
def test_sums_are_clipped_means_by_torch_func(form):
    """Of three draws of noise for each of four pictures, in the very network that is trained."""
    made, rows = network(form), rows_of(form, 12)
    weights = torch.full((4, 3), 1 / 3)
    values = {name: value.detach() for name, value in made.named_parameters()}

    class Loss(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.network = made

        def forward(self, rows):
            return losses(self.network, rows).mean()

    def loss(values, rows):
        return functional_call(Loss(), {f"network.{name}": value for name, value in values.items()}, (rows,))

    parts = vmap(grad(loss), in_dims=(None, 0))(
        values, {name: value.unflatten(0, (4, 3)) for name, value in rows.items()}
    )
    single = torch.cat([parts[name].flatten(1) for name in values], dim=1).double()
    bound = float(single.norm(dim=1).median())
    expected = ((bound / single.norm(dim=1)).clamp(max=1)[:, None] * single).sum(0)
    with GridSums(made, TrainingPlan(10, 5, 1, 1.0, clipping_norm=bound), losses) as sums:
        sums.add(rows, weights)
        assert sums.unused_layers() == []
    found = torch.cat([sums.totals[name].flatten() for name in values])
    assert (found - expected).norm() <= 1e-4 * expected.norm()


@pytest.mark.parametrize("form", [ImageForm(7, 5, 3), ImageForm(12, 12, 1)], ids=str)
def test_the_gate_lets_it_pass(form):
    refuse_unsound_grid(UNet(form, 3, "small"), PLAN, losses, Rows(DiffusionLoss(), form, 3, CPU).made_up)
