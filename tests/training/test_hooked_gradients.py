"""Clipped sums of networks on grids are those of plain autograd, unit by unit, for any layout and size."""

from __future__ import annotations

import pytest
import torch
from grid_cases import losses, network, rows_of, unit_gradients
from torch import nn
from torch.func import functional_call, grad, vmap
from training_cases import flat, plan

from dpsynth_platform.foundation.errors import MechanismFailed
from dpsynth_platform.training.grids import GridSums, rule_for

EXACT = 1e-5
"""Rounding of single precision; measured below 1e-6."""
NOT_CLIPPED = 1e5

NETWORKS = [
    {"size": (7, 5), "channels": 1},
    {"size": (7, 5), "channels": 3, "last": True},
    {"size": (28, 28), "channels": 1, "last": True},
    {"size": (9, 12), "channels": 3, "stride": 2, "kernel": 5},
    {"size": (9, 12), "channels": 1, "stride": 3, "last": True, "bias": False},
    {"size": (1, 1), "channels": 1, "stride": 2, "attention": False},
    {"size": (16, 16), "channels": 3, "width": 64, "last": True},
]


def ours(made, chosen, batch, weights):
    with GridSums(made, chosen, losses) as sums:
        sums.add(batch, weights)
        return sums


def expected_sum(units, bound):
    return ((bound / units.norm(dim=1)).clamp(max=1)[:, None] * units).sum(0)


@pytest.mark.parametrize("how", NETWORKS, ids=str)
@pytest.mark.parametrize("rows", [1, 3])
def test_each_units_gradient_is_autograds(how, rows):
    """Alone and not clipped, so that no coordinate can hide; of several, clipped to a bound between their norms."""
    how = dict(how)
    size = how.pop("size")
    made, units = network(**how), 4 if rows == 1 else 3
    batch = rows_of(units * rows, size, how["channels"])
    weights = torch.full((units, rows), 1 / rows)
    single = unit_gradients(made, batch, weights)
    for unit in range(units):
        alone = {name: value[unit * rows : (unit + 1) * rows] for name, value in batch.items()}
        found = flat(ours(made, plan(clipping_norm=NOT_CLIPPED), alone, weights[:1]).totals.values())
        assert (found - single[unit]).abs().max() <= EXACT * single[unit].abs().max()
    bound = float(single.norm(dim=1).median())
    found = flat(ours(made, plan(clipping_norm=bound), batch, weights).totals.values())
    assert (found - expected_sum(single, bound)).norm() <= EXACT * units * bound


def test_norms_are_never_underestimated():
    """The norm of what one unit adds is at most the bound, in double precision."""
    made = network(width=16, last=True)
    for _ in range(20):
        batch = rows_of(2)
        found = flat(ours(made, plan(clipping_norm=0.3), batch, torch.full((1, 2), 0.5)).totals.values())
        assert 0.3 * (1 - 1e-5) <= found.norm() <= 0.3


def test_clipping_comes_after_the_mean_over_a_units_rows():
    """Two rows with opposite gradients cancel: clipped one by one they would not where one is much longer."""
    made = network(attention=False)
    batch = rows_of(2)
    with torch.no_grad():
        found = made(batch["pictures"], batch["labels"])
    batch = {name: value[[0, 0]] for name, value in batch.items()}
    batch["targets"] = torch.cat([found[:1] + 5.0, found[:1] - 4.0])
    weights = torch.full((1, 2), 0.5)
    single = unit_gradients(made, batch, weights)
    one_by_one = unit_gradients(made, batch, torch.ones(2, 1))
    assert one_by_one[0] @ one_by_one[1] < 0
    bound = float(single.norm()) / 2
    found = flat(ours(made, plan(clipping_norm=bound), batch, weights).totals.values())
    assert (found - single[0] / 2).norm() <= EXACT * bound
    before_the_mean = expected_sum(one_by_one, bound) / 2
    assert (found - before_the_mean).norm() > 0.5 * bound


def test_automatic_clipping():
    made, batch, weights = network(), rows_of(3), torch.ones(3, 1)
    single = unit_gradients(made, batch, weights)
    found = flat(ours(made, plan(clipping="automatic", clipping_norm=0.5), batch, weights).totals.values())
    expected = (0.5 / (single.norm(dim=1, keepdim=True) + 0.01) * single).sum(0)
    assert (found - expected).norm() <= EXACT * expected.norm()


@pytest.mark.parametrize("bound", [0.1, NOT_CLIPPED])
def test_a_unit_in_parts_is_clipped_as_one(bound):
    made, batch = network(last=True), rows_of(6)
    whole = flat(ours(made, plan(clipping_norm=bound), batch, torch.full((1, 6), 1 / 6)).totals.values())
    with GridSums(made, plan(clipping_norm=bound), losses) as sums:
        pieces = [{name: value[place] for name, value in batch.items()} for place in (slice(0, 4), slice(4, 6))]
        sums.add_large([(piece, torch.full((1, len(piece["labels"])), 1 / 6)) for piece in pieces])
    assert (flat(sums.totals.values()) - whole).norm() <= EXACT * whole.norm()


def test_a_unit_that_is_not_finite_adds_nothing_and_spoils_nothing():
    made, batch = network(), rows_of(4)
    kept = {name: value[:2] for name, value in batch.items()}
    expected = flat(ours(made, plan(), kept, torch.ones(2, 1)).totals.values())
    for wrong in (float("nan"), float("inf")):
        batch["pictures"][3] = wrong
        found = flat(ours(made, plan(), batch, torch.tensor([[1.0], [1.0], [0.0], [1.0]])).totals.values())
        assert (found - expected).norm() <= EXACT * expected.norm()


def test_sums_are_those_of_opacus_on_contiguous_inputs():
    from opacus import GradSampleModule

    made, batch, weights = network(channels=3), rows_of(6, channels=3), torch.ones(6, 1)
    wrapped = GradSampleModule(made, loss_reduction="sum")
    losses(wrapped, batch).sum().backward()
    single = torch.cat([value.grad_sample.flatten(1) for value in made.parameters()], dim=1).double()
    wrapped.to_standard_module()
    made.zero_grad(set_to_none=True)
    found = flat(ours(made, plan(clipping_norm=0.7), batch, weights).totals.values())
    assert (found - expected_sum(single, 0.7)).norm() <= EXACT * found.norm()


@pytest.mark.parametrize("last", [False, True])
def test_sums_are_those_of_torch_func(last):
    """Of vmap over grad, which is yet another way to the gradients of single units."""
    made, batch, weights = network(channels=3), rows_of(8, channels=3), torch.full((4, 2), 0.5)
    values = {name: value.detach() for name, value in made.named_parameters()}

    def loss(values, rows, weights):
        found = functional_call(made, values, (rows["pictures"], rows["labels"]))
        return ((found - rows["targets"]).square().flatten(1).mean(1) * weights).sum()

    rows = {name: value.unflatten(0, (4, 2)) for name, value in batch.items()}
    parts = vmap(grad(loss), in_dims=(None, 0, 0))(values, rows, weights)
    single = torch.cat([part.flatten(1) for part in parts.values()], dim=1).double()
    made.last = last  # vmap cannot express this layout
    found = flat(ours(made, plan(clipping_norm=0.7), batch, weights).totals.values())
    assert (found - expected_sum(single, 0.7)).norm() <= EXACT * found.norm()


def test_layers_called_twice_are_clipped_as_one():
    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Conv2d(1, 1, 3, padding=1)

        def forward(self, pictures, labels):
            return self.layer(self.layer(pictures).tanh())

    made, batch, weights = Twice(), rows_of(3), torch.ones(3, 1)
    single = unit_gradients(made, batch, weights)
    found = flat(ours(made, plan(clipping_norm=0.2), batch, weights).totals.values())
    assert (found - expected_sum(single, 0.2)).norm() <= EXACT * found.norm()


def test_a_layer_without_the_batchs_rows_is_refused():
    class Shared(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(1, 1)

        def forward(self, pictures, labels):
            return pictures * self.layer(torch.ones(1, 1)).view(1, 1, 1, 1)

    with pytest.raises(MechanismFailed, match="layer layer: inputs of shape"):
        ours(Shared(), plan(), rows_of(3), torch.ones(3, 1))


@pytest.mark.parametrize(
    "layer",
    [
        nn.BatchNorm2d(4),
        nn.MultiheadAttention(4, 2),
        nn.Conv2d(4, 4, 3, groups=2),
        nn.Conv2d(4, 4, 3, padding=1, padding_mode="circular"),
        nn.Conv2d(4, 4, 3, padding="same"),
        nn.Conv1d(4, 4, 3),
        nn.ConvTranspose2d(4, 4, 3),
        nn.Embedding(4, 4, padding_idx=0),
        nn.LSTM(4, 4),
    ],
    ids=lambda layer: type(layer).__name__,
)
def test_other_layers_are_refused_by_name(layer):
    with pytest.raises(
        MechanismFailed, match=rf"layer mine: .* not known for {type(layer).__name__}; accepted: Conv2d"
    ):
        rule_for("mine", layer)


def test_nothing_is_left_on_the_network():
    made = network()
    before = {name: value.clone() for name, value in made.state_dict().items()}
    sums = ours(made, plan(), rows_of(2), torch.ones(2, 1))
    assert sums.unused_layers() == []
    assert all(torch.equal(value, before[name]) for name, value in made.state_dict().items())
    assert all(value.requires_grad and value.grad is None for value in made.parameters())
    assert not any(module._forward_hooks for module in made.modules())
