"""Clipped sums equal those of a loop over single examples, on every kind of layer and model; no clipped gradient is too
long."""

import copy

import pytest
import torch
from torch import nn
from training_cases import ENCODERS, KINDS, assert_clipped, batch, flat, gradients_one_by_one, model, plan
from transformers.pytorch_utils import Conv1D

from dpsynth_platform.foundation.errors import MechanismFailed
from dpsynth_platform.training import clipping, fused
from dpsynth_platform.training.clipping import ClippedSums, example_losses
from dpsynth_platform.training.hooked import clipping_coefficients
from dpsynth_platform.training.layers import Grams, Lookup, Outer, Stacked, rule_for, square_norms

LENGTHS = [9, 12, 3, 7, 1, 12]
ALL_KINDS = [*KINDS, *((name, False, True) for name in ENCODERS)]
EXACT = 1e-5
"""Largest relative difference from plain autograd in double precision, without clipping."""
CLIPPED = 5e-5
"""The same with clipping: norms are rounded up, more for longer rows, so clipped gradients are a little shorter."""


def factors(norms, kind, bound):
    return bound / (norms + 0.01) if kind == "automatic" else (bound / norms).clamp(max=1)


def ours(made, chosen, rows, weights=None):
    weights = torch.ones(len(rows["input_ids"]), 1) if weights is None else weights
    with ClippedSums(made, chosen) as sums:
        sums.add(rows, weights)
        return sums


@pytest.mark.parametrize(("name", "tied", "adapter"), ALL_KINDS)
@pytest.mark.parametrize(("clipping", "near"), [("none", EXACT), ("flat", CLIPPED), ("automatic", CLIPPED)])
def test_sums_are_those_of_a_loop_over_examples(name, tied, adapter, clipping, near):
    made, rows = model(name, tied, adapter), batch(LENGTHS)
    single = gradients_one_by_one(made, rows)
    norms = single.norm(dim=1)
    bound = 1e4 if clipping == "none" else float(norms.median())  # some are clipped, some are not
    clipping = "automatic" if clipping == "automatic" else "flat"
    expected = (factors(norms, clipping, bound)[:, None] * single).sum(0)
    sums = ours(made, plan(clipping=clipping, clipping_norm=bound), rows)
    assert (flat(sums.totals.values()) - expected).norm() <= near * expected.norm()
    assert all(value.requires_grad for value in sums.parameters.values())
    assert not sums.unused_layers()


@pytest.mark.parametrize(("name", "tied", "adapter"), KINDS)
def test_what_a_unit_adds_hangs_on_nothing_that_was_summed_up_before(name, tied, adapter):
    """Sums over a hundred thousand units of one direction: in single precision they would round away 1% of each."""
    made, rows = model(name, tied, adapter), batch(LENGTHS)
    alone = flat(ours(made, plan(), rows).totals.values())
    before = 1e5 * plan().clipping_norm * alone / alone.norm()
    with ClippedSums(made, plan()) as sums:
        for total, part in zip(
            sums.totals.values(), before.split([t.numel() for t in sums.totals.values()]), strict=True
        ):
            total += part.view_as(total)
        sums.add(rows, torch.ones(len(LENGTHS), 1))
        after = flat(sums.totals.values())
    assert (after - before - alone).norm() <= 1e-8 * plan().clipping_norm


@pytest.mark.parametrize(("name", "tied", "adapter"), KINDS)
def test_each_clipped_gradient_is_at_most_as_long_as_planned(name, tied, adapter):
    made, rows = model(name, tied, adapter), batch(LENGTHS)
    for row in range(len(LENGTHS)):
        one = {key: values[row : row + 1] for key, values in rows.items()}
        sums = ours(made, plan(clipping_norm=1e-3), one)
        norm = flat(sums.totals.values()).norm()
        assert norm <= 1e-3
        assert norm > 0.9999e-3 or LENGTHS[row] == 1  # which has no token to predict


@pytest.mark.parametrize(("name", "tied", "adapter"), ALL_KINDS)
def test_a_user_is_clipped_by_its_mean_gradient(name, tied, adapter):
    """Two users of three records and one: rows of weight 0 fill up."""
    made, rows = model(name, tied, adapter), batch(LENGTHS)
    single = gradients_one_by_one(made, rows)
    users = torch.stack([single[:3].mean(0), single[3]])
    bound = float(users.norm(dim=1).mean())
    expected = (factors(users.norm(dim=1), "flat", bound)[:, None] * users).sum(0)
    weights = torch.tensor([[1 / 3, 1 / 3, 1 / 3], [1.0, 0.0, 0.0]])
    found = ours(made, plan(clipping_norm=bound, sampled="user", max_contributions=3), rows, weights).totals
    assert (flat(found.values()) - expected).norm() <= CLIPPED * expected.norm()


def test_a_user_in_parts_is_the_same_user():
    made, rows = model("llama", True), batch(LENGTHS)
    chosen = plan(clipping_norm=0.5, sampled="user")
    weights = torch.full((1, 6), 1 / 6)
    expected = flat(ours(made, chosen, rows, weights).totals.values())
    parts = [
        ({key: values[start : start + 2] for key, values in rows.items()}, torch.full((1, 2), 1 / 6))
        for start in (0, 2, 4)
    ]
    with ClippedSums(made, chosen) as sums:
        sums.add(batch([4]), torch.ones(1, 1))
        other = flat(sums.totals.values())
        sums.add_large(parts)
    found = flat(sums.totals.values()) - other
    assert (found - expected).norm() <= CLIPPED * expected.norm()
    assert expected.norm() == pytest.approx(0.5, rel=1e-4)


@pytest.mark.parametrize("adapter", [False, True])
def test_long_rows_take_the_other_way(adapter):
    """With more tokens than p d / (p + d), gradients are made instead of their norms alone."""
    made, rows = model("llama", True, adapter), batch([60, 50])
    single = gradients_one_by_one(made, rows)
    for bound in (1e-2, 1.0, 1e4):
        found = ours(made, plan(clipping_norm=bound, clipping="flat"), rows).totals
        # Norms are rounded up by as much as 60 tokens take, twice each: to be looked up, and to be predicted.
        assert_clipped(flat(found.values()), single, bound, EXACT if bound == 1e4 else 2 * 60 / 2**19)


def test_sums_are_those_of_opacus():
    """Of per-example gradients by GradSampleModule, on an untied model: it has another way to every layer's."""
    from opacus import GradSampleModule

    made, rows = model(), batch(LENGTHS)
    reference = copy.deepcopy(made).double().train()
    inputs = {key: values for key, values in rows.items() if key != "labels"}
    wrapped = GradSampleModule(reference, loss_reduction="sum")
    example_losses(wrapped(**inputs, use_cache=False).logits, rows["labels"]).sum().backward()
    single = torch.cat([value.grad_sample.flatten(1) for value in reference.parameters()], dim=1)
    expected = (factors(single.norm(dim=1), "flat", 0.7)[:, None] * single).sum(0)
    found = ours(made, plan(clipping_norm=0.7), rows).totals
    assert (flat(found.values()) - expected).norm() <= CLIPPED * expected.norm()


def test_norms_are_not_underestimated_where_tokens_cancel():
    """Rows that nearly cancel: the ghost norm is a small difference of large numbers. Its bound stays one."""
    grams, tokens, width = Grams(), 64, 300
    rows = torch.randn(50, tokens, width)
    columns = torch.randn(50, tokens, width)
    rows[:, 1::2] = -rows[:, ::2] * (1 + 1e-4 * torch.randn(50, tokens // 2, 1))
    columns[:, 1::2] = columns[:, ::2]
    exact = torch.bmm(rows.double().transpose(1, 2), columns.double()).square().sum((1, 2))
    bounds = square_norms([Outer(rows, columns)], grams)
    assert (bounds >= exact).all()
    assert exact.max() < 1e-6 * (rows.square().sum(2) * columns.square().sum(2)).sum()
    positions = torch.arange(tokens // 2).repeat_interleave(2).repeat(50, 1)
    table = torch.zeros(50, tokens // 2, width, dtype=torch.float64)
    table.scatter_add_(1, positions[:, :, None].expand_as(rows), rows.double())
    assert (square_norms([Lookup(positions, rows)], grams) >= table.square().sum((1, 2))).all()


@pytest.mark.parametrize("kind", [nn.Linear, Conv1D], ids=lambda kind: kind.__name__)
def test_a_bound_on_a_norm_does_not_tell_how_wide_the_batch_is(kind):
    """Gradients are materialized in wide batches only: the bound is equal, even where tokens nearly cancel, and most of
    it is for rounding."""
    tokens, height, width = 6, 8, 512
    layer = kind(width, height) if kind is nn.Linear else kind(height, width)
    for distance in (1.0, 1e-1, 1e-2, 1e-3):
        gradients = torch.randn(1, tokens, height)
        gradients[:, 1::2] = -gradients[:, ::2] * (1 + distance * torch.randn(1, tokens // 2, 1))
        inputs = torch.randn(1, tokens, width)
        inputs[:, 1::2] = inputs[:, ::2]
        ways, bounds = [], []
        for wide in (tokens, 64):
            padded = [nn.functional.pad(values, (0, 0, 0, wide - tokens)) for values in (inputs, gradients)]
            _, use = next(iter(rule_for("", layer)(layer, *padded, lambda _: False)))
            ways.append(type(use))
            bounds.append(float(square_norms([use], Grams())))
        assert ways == [Outer, Stacked]
        assert bounds[1] == pytest.approx(bounds[0], rel=0.01)


@pytest.mark.parametrize("distance", [1e-3, 1e-4, 1e-5, 1e-6])
@pytest.mark.parametrize("tokens", [32, 512])
def test_norms_are_not_underestimated_where_tokens_repeat(tokens, distance):
    """A text that repeats its tokens repeats their products' rounding, which then adds up over all pairs of them."""
    width, table_rows = 300, 5
    for _ in range(10):
        one, gradient = torch.randn(2, width)
        other = one + distance * torch.randn(width)
        even = (torch.arange(tokens) % 2 == 0)[None, :, None]
        rows = torch.where(even, gradient, -gradient)
        columns = torch.where(even, one, other)
        exact = rows[0].double().T @ columns[0].double()
        assert square_norms([Outer(rows, columns)], Grams()) >= exact.square().sum()
        positions = torch.full((1, tokens), 3)
        looked_up = torch.where(even, one, -other)
        exact = looked_up[0].double().sum(0)
        assert square_norms([Lookup(positions, looked_up)], Grams()) >= exact.square().sum()
        tied = Outer(gradient[:table_rows].expand(1, tokens, table_rows), columns)
        against = -gradient[3] * torch.where(even, other, one)
        exact = tied.rows[0].double().T @ tied.columns[0].double()
        exact[3] += against[0].double().sum(0)
        assert square_norms([tied, Lookup(positions, against)], Grams()) >= exact.square().sum()


def test_uses_of_a_parameter_that_cannot_be_taken_together_are_refused():
    uses = [Stacked(torch.ones(1, 2, 2)), Outer(torch.ones(1, 3, 2), torch.ones(1, 3, 2))]
    with pytest.raises(MechanismFailed, match="different numbers of tokens"):
        square_norms(uses, Grams())


@pytest.mark.parametrize("worst", [float("nan"), float("inf"), 1e30])
def test_an_example_without_a_finite_gradient_counts_as_nothing(worst):
    made, rows = model("gpt2", True), batch([5, 5])
    with torch.no_grad():
        rows["input_ids"] %= 50
        made.transformer.wte.weight[60] = worst
        rows["input_ids"][0, 2] = 60
        made.lm_head.weight = nn.Parameter(made.transformer.wte.weight.detach().clone().nan_to_num(0.1, 0.1, 0.1))
        made.lm_head.weight[60] = 0.1
    kept = {key: values[1:] for key, values in rows.items()}
    expected, found = ours(made, plan(), kept).totals, ours(made, plan(), rows).totals
    if worst < float("inf"):  # layer norm makes something finite of it
        assert flat(found.values()).norm() <= 2
        assert torch.isfinite(flat(found.values())).all()
    else:
        alone = flat(expected.values())  # of a batch of another size, which may be rounded otherwise
        assert (flat(found.values()) - alone).norm() <= EXACT * alone.norm()


def test_coefficients():
    norms = torch.tensor([0.0, 0.5, 1.0, 4.0, float("inf"), float("nan")], dtype=torch.float64)
    by_norm = clipping_coefficients(norms, plan(clipping_norm=1.0))
    assert by_norm.tolist() == pytest.approx([1, 1, 1, 0.25, 0, 0], rel=2e-6)
    automatic = clipping_coefficients(norms, plan(clipping_norm=1.0, clipping="automatic"))
    assert automatic.tolist() == pytest.approx([100, 1 / 0.51, 1 / 1.01, 1 / 4.01, 0, 0], rel=2e-6)
    for coefficients in (by_norm, automatic):
        assert (coefficients[:4].double() * norms[:4] <= 1).all()


def test_coefficients_too_small_for_single_precision_are_none():
    """A subnormal number may be rounded up by half of itself and more, and the gradient would be as much too long."""
    norms = torch.tensor([1e37, 1e41, 7.2e44], dtype=torch.float64)
    coefficients = clipping_coefficients(norms, plan(clipping_norm=1.0))
    assert (coefficients.double() * norms <= 1).all()
    assert coefficients[0] > 0


class Scaled(nn.Linear):
    def forward(self, inputs):
        return 2 * super().forward(inputs)


@pytest.mark.parametrize(
    "layer",
    [nn.Conv1d(2, 2, 1), nn.BatchNorm1d(4), Scaled(4, 4), nn.Embedding(4, 4, max_norm=1.0), nn.ParameterList([1.0])],
    ids=lambda layer: type(layer).__name__,
)
def test_layers_that_are_not_known_are_refused_by_name(layer):
    made = model()
    made.model.extra = layer
    if isinstance(layer, nn.ParameterList):
        made.model.extra = nn.ParameterList([nn.Parameter(torch.zeros(3))])
    with pytest.raises(MechanismFailed, match=r"layer model\.extra.*accepted"):
        ClippedSums(made, plan())
    made.model.extra.requires_grad_(False)
    assert ClippedSums(made, plan()).parameters


def test_a_norm_that_is_no_rms_norm_is_refused():
    class OddRMSNorm(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight, self.eps = nn.Parameter(torch.ones(16)), 1e-6

        def forward(self, inputs):
            return inputs * self.weight

    made = model()
    made.model.norm = OddRMSNorm()
    with pytest.raises(MechanismFailed, match="OddRMSNorm"):
        ClippedSums(made, plan())


def test_a_layer_that_nothing_passes_through_is_told():
    made = model()
    made.model.extra = nn.Linear(3, 3)
    assert ours(made, plan(), batch([4])).unused_layers() == ["model.extra"]


def test_a_frozen_model_is_refused():
    with pytest.raises(MechanismFailed, match="trainable"):
        ClippedSums(model().requires_grad_(False), plan())


def test_a_layer_used_twice_is_summed_before_it_is_clipped():
    made, rows = model(), batch(LENGTHS)
    made.model.layers[1] = made.model.layers[0]
    single = gradients_one_by_one(made, rows)
    expected = (factors(single.norm(dim=1), "flat", 0.5)[:, None] * single).sum(0)
    found = ours(made, plan(clipping_norm=0.5), rows).totals
    assert (flat(found.values()) - expected).norm() <= CLIPPED * expected.norm()


def test_an_adapted_layer_as_one_operation_is_that_in_parts(monkeypatch):
    """And the model is as before afterwards."""
    made, rows = model("llama", True, True), batch(LENGTHS)
    inputs = {key: values for key, values in rows.items() if key != "labels"}
    outputs = made(**inputs).logits
    as_one = ours(made, plan(), rows)
    assert torch.equal(made(**inputs).logits, outputs)
    assert not any("forward" in vars(layer) for layer in made.modules())
    monkeypatch.setattr(clipping, "is_fusible", lambda layer: False)
    in_parts = ours(made, plan(), rows)
    assert as_one.totals.keys() == in_parts.totals.keys()
    assert len(as_one.totals) == 2 * 2 * 7
    for name, total in as_one.totals.items():
        torch.testing.assert_close(total, in_parts.totals[name], rtol=1e-4, atol=1e-6)


def test_only_plain_adapters_are_taken_as_one_operation():
    made = model("llama", True, True)
    layer = next(layer for layer in made.modules() if hasattr(layer, "lora_A"))
    assert fused.is_fusible(layer)
    layer.lora_dropout["default"] = nn.Dropout(0.1)
    assert not fused.is_fusible(layer)
    layer.lora_dropout["default"] = nn.Identity()
    layer.base_layer.weight.requires_grad_(True)
    assert not fused.is_fusible(layer)
    assert not fused.is_fusible(nn.Linear(2, 2))
