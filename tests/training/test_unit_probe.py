"""Numerical trials find what is wrong with clipped sums of networks on grids, and accept sound ones."""

from __future__ import annotations

import pytest
import torch
from grid_cases import Grid, losses, network, rows_of
from torch import nn
from training_cases import plan

from dpsynth_platform.foundation.errors import TrainingRefused
from dpsynth_platform.training import grids
from dpsynth_platform.training.grids import GridSums
from dpsynth_platform.training.layers import Stacked
from dpsynth_platform.training.noise import GaussianNoise
from dpsynth_platform.training.unit_probe import faults_of_unit_sums, refuse_unsound_grid, unit_sums
from dpsynth_platform.training.vectors import VectorSums

SIZE = (8, 8)


def make(channels=1):
    return lambda rows: rows_of(rows, SIZE, channels)


def judged(made, sums=None, channels=1, **changes):
    return faults_of_unit_sums(made, sums or unit_sums(losses), losses, make(channels), plan(**changes))


class Opacus:
    """Clipped sums by Opacus' hooks, with rows averaged before or after clipping, and inputs contiguous or not."""

    def __init__(self, *, contiguous=True, before=False):
        self.contiguous, self.before = contiguous, before

    def __call__(self, made, chosen, batch, weights):
        from opacus import GradSampleModule

        hooks = []
        if self.contiguous:
            hooks = [
                module.register_forward_pre_hook(lambda _, inputs: tuple(part.contiguous() for part in inputs))
                for module in made.modules()
                if isinstance(module, nn.Conv2d)
            ]
        wrapped = GradSampleModule(made, loss_reduction="sum")
        wrapped.train(True)
        losses(wrapped, batch).sum().backward()
        names = [name for name, _ in made.named_parameters()]
        single = [value.grad_sample for value in made.parameters()]
        for value in made.parameters():
            value.grad = None
        wrapped.to_standard_module()
        for hook in hooks:
            hook.remove()
        flat = torch.cat([part.flatten(1) for part in single], dim=1).double()
        units = flat.view(*weights.shape, -1)
        if self.before:
            units = units * (chosen.clipping_norm / units.norm(dim=2, keepdim=True)).clamp(max=1)
        means = (units * weights[:, :, None]).sum(1)
        factors = (chosen.clipping_norm / means.norm(dim=1)).clamp(max=1)
        total = torch.where(torch.isfinite(factors)[:, None], factors[:, None] * means, 0.0).sum(0)
        sizes = [part[0].numel() for part in single]
        return {name: part.view_as(own[0]) for name, part, own in zip(names, total.split(sizes), single, strict=True)}


@pytest.mark.parametrize(
    "how", [{}, {"last": True, "channels": 3}, {"stride": 2, "kernel": 5}, {"width": 64, "last": True}], ids=str
)
@pytest.mark.parametrize("clipping", ["flat", "automatic"])
def test_sound_networks_pass_and_are_left_as_they_were(how, clipping):
    made = network(**how)
    before = {name: value.clone() for name, value in made.state_dict().items()}
    assert judged(made, channels=how.get("channels", 1), clipping=clipping) == []
    assert all(torch.equal(value, before[name]) for name, value in made.state_dict().items())
    assert all(value.grad is None for value in made.parameters())


def test_convolutions_by_strides_are_found():
    """Opacus computes them by strides: right where inputs are made contiguous first, wrong where channels are last."""
    made = network(width=64, last=True)
    assert judged(made, Opacus(contiguous=True)) == []
    faults = judged(made, Opacus(contiguous=False))
    assert any("is not that of automatic differentiation" in fault for fault in faults)
    assert judged(network(width=64, last=False), Opacus(contiguous=False)) == []


def test_clipping_before_the_mean_is_found():
    faults = judged(network(), Opacus(before=True))
    assert any("rows are clipped before their mean" in fault for fault in faults)


@pytest.mark.parametrize("rule", ["_convolution", "_group_norm", "_linear", "_embedding"])
def test_a_wrong_rule_is_found(monkeypatch, rule):
    """One that is wrong by a twentieth in one parameter of one kind of layer."""
    right = getattr(grids, rule)

    def wrong(layer, inputs, gradients, shared):
        for parameter, use in right(layer, inputs, gradients, shared):
            yield parameter, Stacked(1.05 * use.gradients) if parameter is layer.weight else use

    monkeypatch.setattr(grids, rule, wrong)
    assert any("is not that of automatic differentiation" in fault for fault in judged(network()))


@pytest.mark.parametrize(("size", "sound"), [(1e-9, True), (1e-3, False)])
def test_a_gradient_of_zero_is_compared_up_to_the_rounding_of_others(size, sound):
    """As where a column is predicted from nothing: terms cancel, and what is left differs between sizes of a batch."""

    def some(rows):
        values = torch.ones(rows, 3)
        values[9:] = 0  # of the last unit
        return {"values": values}

    def squares(made, batch):
        return made(batch["values"]).square().sum(1)

    right = unit_sums(squares, VectorSums)

    def sums(made, chosen, batch, weights):
        found = right(made, chosen, batch, weights)
        return found if batch["values"].any() else {name: value + size for name, value in found.items()}

    faults = faults_of_unit_sums(nn.Linear(3, 2, bias=False), sums, squares, some, plan())
    assert faults == [] if sound else any("is not that of automatic differentiation" in fault for fault in faults)


def test_sums_over_draws_in_place_of_means_are_found(monkeypatch):
    """And losses weighted by 1/K once more, which noise would drown."""
    add = GridSums.add
    for factor in (3.0, 1 / 3):
        with monkeypatch.context() as patch:
            patch.setattr(
                GridSums, "add", lambda self, batch, weights, factor=factor: add(self, batch, weights * factor)
            )
            assert any("is not that of automatic differentiation" in fault for fault in judged(network()))


def test_too_long_contributions_are_found(monkeypatch):
    from dpsynth_platform.training import hooked

    right = hooked.clipping_coefficients
    monkeypatch.setattr(hooked, "clipping_coefficients", lambda norms, plan: 1.01 * right(norms, plan))
    assert any("1.01 times as long as the clipping norm" in fault for fault in judged(network()))


def test_units_that_are_not_finite_must_be_left_out(monkeypatch):
    from dpsynth_platform.training import hooked

    monkeypatch.setattr(
        hooked.HookedSums, "_norms", lambda self, uses, own=hooked.HookedSums._norms: own(self, uses).nan_to_num()
    )
    assert any("not finite is not left out" in fault for fault in judged(network()))


class Mixed(nn.Module):
    """Each row gets a little of the batch's mean."""

    def __init__(self):
        super().__init__()
        self.inner = Grid()

    def forward(self, pictures, labels):
        return self.inner(pictures + 0.05 * pictures.mean(0, keepdim=True), labels)


def test_rows_that_depend_on_others_are_found():
    assert any("a row depends on others" in fault for fault in judged(Mixed()))


def gate(made, **changes):
    refuse_unsound_grid(made, plan(**changes), losses, make())


@pytest.mark.parametrize("sampled", ["record", "user"])
def test_the_gate_lets_sound_networks_pass(sampled):
    made = network(last=True)
    before = {name: value.clone() for name, value in made.state_dict().items()}
    gate(made, sampled=sampled, max_contributions=4)
    assert all(torch.equal(value, before[name]) for name, value in made.state_dict().items())


@pytest.mark.parametrize(
    ("layer", "words"),
    [
        (nn.BatchNorm2d(8), "norm: BatchNorm2d normalizes each example by the others"),
        (nn.InstanceNorm2d(8, affine=True, track_running_stats=True), "norm: InstanceNorm2d keeps running statistics"),
        (nn.Conv2d(8, 8, 3, padding=1, groups=2), "norm: the trainable weight, bias of Conv2d cannot be clipped"),
    ],
    ids=lambda part: type(part).__name__,
)
def test_the_gate_refuses_layers_by_name(layer, words):
    made = network()
    made.norm = layer
    with pytest.raises(TrainingRefused, match=words):
        gate(made)


def test_the_gate_refuses_torchs_attention():
    class Attending(nn.Module):
        def __init__(self):
            super().__init__()
            self.attend = nn.MultiheadAttention(8, 2)

        def forward(self, pictures, labels):
            return self.attend(pictures, pictures, pictures)[0]

    with pytest.raises(TrainingRefused, match=r"attend: the trainable in_proj_weight.* of MultiheadAttention cannot"):
        gate(Attending())


def test_the_gate_refuses_too_little_noise(monkeypatch):
    """As by a multiple of 1/K, for the K draws of a record."""
    add = GaussianNoise.add_
    monkeypatch.setattr(GaussianNoise, "add_", lambda self, sums, deviation: add(self, sums, deviation / 4))
    with pytest.raises(TrainingRefused, match=r"the noise's deviation is 0\.2\d*, not 1;"):
        gate(network())


def test_the_gate_refuses_frozen_and_unused_parameters():
    made = network()
    made.beside = nn.Linear(3, 3)
    with pytest.raises(TrainingRefused, match=r"beside\.weight"):
        gate(made)
    with pytest.raises(TrainingRefused, match="no parameter is trainable"):
        gate(network().requires_grad_(False))
