"""Layers that compute in bfloat16: the same gradients up to rounding, and one unit moves the sum by C at most."""

import pytest
import torch
import transformers
from training_cases import KINDS, batch, flat, gradients_one_by_one, model, plan

from dpsynth_platform.training import physical
from dpsynth_platform.training.clipping import ClippedSums
from dpsynth_platform.training.precision import lower_frozen, precision_of, precision_of_training

COARSE = torch.bfloat16
LENGTHS = [9, 12, 3, 7, 1, 12]
# Of a unit's gradient, by rounding in a model of two layers: eight binary digits, a few hundred times in a row.
NEAR = 0.05
BOUND = 0.3
CPU = torch.device("cpu")


def sums_of(made, rows, weights=None, bound=BOUND):
    weights = torch.ones(len(rows["input_ids"]), 1) if weights is None else weights
    with ClippedSums(made, plan(clipping_norm=bound), COARSE) as sums:
        sums.add(rows, weights)
    return flat(sums.totals.values())


def logical_batch(made, rows):
    """As the loop sums up a batch of single records."""
    with ClippedSums(made, plan(clipping_norm=BOUND), COARSE) as sums:
        for (part,) in physical.fixed_shape_parts(rows, [1] * len(rows["input_ids"]), 256, CPU, longest=40, planned=48):
            sums.add(part.batch, part.weights)
    return flat(sums.totals.values())


@pytest.mark.parametrize(
    ("device", "capabilities", "expected"),
    [
        ("cpu", {"amx_bf16": True, "avx512_bf16": True}, torch.bfloat16),
        ("cpu", {"amx_bf16": False, "avx512_bf16": True}, torch.bfloat16),
        ("cpu", {"amx_bf16": False, "avx512_bf16": False, "avx512_f": True}, torch.float32),
        ("cpu", {"architecture": "aarch64"}, torch.float32),
        ("cuda", {}, torch.bfloat16),
        ("mps", {"amx_bf16": True}, torch.float32),
    ],
)
def test_precision_follows_from_the_hardware(monkeypatch, device, capabilities, expected):
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: capabilities)
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: True)
    assert precision_of(torch.device(device)) == expected
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: False)
    assert device != "cuda" or precision_of(torch.device(device)) == torch.float32


def test_models_with_experts_are_trained_in_single_precision(monkeypatch):
    """The shape of an expert's product depends on the tokens of other units."""
    sizes = {"vocab_size": 50, "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 2, "num_local_experts": 2, "num_experts_per_tok": 1}
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"amx_bf16": True})
    assert precision_of_training(CPU, model("llama", True, False)) == COARSE
    for kind in ("GptOss", "GraniteMoe", "Mixtral"):
        made = getattr(transformers, f"{kind}ForCausalLM")(getattr(transformers, f"{kind}Config")(**sizes | heads))
        assert precision_of_training(CPU, made) == torch.float32


@pytest.mark.parametrize("adapter", [False, True])
def test_frozen_weights_are_rounded_for_good_and_trained_ones_only_for_passes(adapter):
    made = model("llama", True, adapter)
    before = {name: value.clone() for name, value in made.named_parameters()}
    lower_frozen(made, COARSE)
    sums_of(made, batch(LENGTHS))
    for name, value in made.named_parameters():
        assert torch.equal(value, before[name] if value.requires_grad else before[name].to(COARSE))
    assert made.get_input_embeddings().weight is made.get_output_embeddings().weight


def test_a_record_of_one_token_by_itself_predicts_nothing():
    assert not sums_of(model("llama", True, True), batch([1])).any()


@pytest.mark.parametrize(("name", "tied", "adapter"), KINDS)
def test_sums_are_those_of_a_loop_over_examples_up_to_rounding(name, tied, adapter):
    """With frozen weights that are rounded already, and with others: the loop's own are rounded for the pass."""
    torch.manual_seed(0)  # rarely, other weights and tokens of adapters are beyond `NEAR`: nothing bounds rounding
    made, rows = model(name, tied, adapter), batch(LENGTHS)
    single = gradients_one_by_one(made, rows)
    bound = float(single.norm(dim=1).median())
    expected = ((bound / single.norm(dim=1)).clamp(max=1)[:, None] * single).sum(0)
    assert (sums_of(made, rows, bound=bound) - expected).norm() <= NEAR * expected.norm()
    lower_frozen(made, COARSE)
    assert (sums_of(made, rows, bound=bound) - expected).norm() <= NEAR * expected.norm()


@pytest.mark.parametrize(("name", "tied", "adapter"), KINDS)
def test_each_clipped_gradient_is_at_most_as_long_as_planned(name, tied, adapter):
    """What is measured and clipped is the gradient that rounding has left, so the bound holds to the last digit."""
    made, rows = model(name, tied, adapter), batch([9, 12, 60, 7, 12])
    for row in range(5):
        norm = sums_of(made, {key: values[row : row + 1] for key, values in rows.items()}, bound=1e-3).norm()
        assert 0.999e-3 < norm <= 1e-3


@pytest.mark.parametrize(("name", "tied", "adapter"), KINDS)
def test_a_gradient_is_rounded_alike_whoever_is_beside_it(name, tied, adapter):
    """To the last digit: others weigh 0 here, so that they may change nothing but kernels. Also by their lengths."""
    made, own = model(name, tied, adapter, width=64), batch([13], longest=16)
    found = []
    for lengths in ([16] * 7, [16, 1, 9, 2, 16, 5, 3], [1] * 7):
        others = batch(lengths, longest=16)
        rows = {key: torch.cat([own[key], others[key]]) for key in own}
        found.append(sums_of(made, rows, torch.tensor([1.0] + [0.0] * 7)[:, None]))
    assert found[0].any()
    assert torch.equal(found[0], found[1])
    assert torch.equal(found[0], found[2])


@pytest.mark.parametrize(("name", "tied", "adapter"), [("llama", True, True), ("gpt2", True, False)])
def test_one_record_more_or_less_moves_the_sum_by_the_clipping_norm_at_most(name, tied, adapter):
    """By 1e-4 of it for each of 48 others, since sums are of single precision."""
    made = model(name, tied, adapter, width=64)
    lower_frozen(made, COARSE)
    rows = batch([int(length) for length in torch.randint(2, 41, (49,))], longest=40)
    whole = logical_batch(made, rows)
    for out in (0, 17, 48):
        kept = [row for row in range(49) if row != out]
        without = logical_batch(made, {key: values[kept] for key, values in rows.items()})
        alone = sums_of(made, {key: values[[out]] for key, values in rows.items()})
        moved = (whole - without).norm()
        assert moved <= BOUND * (1 + 1e-4)
        assert moved >= 0.9 * alone.norm()
