"""Fused layers equal the layers in parts, forward and backward, and other calls are unchanged."""

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention
from transformers.models.gemma.modeling_gemma import GemmaRMSNorm
from transformers.models.llama.modeling_llama import LlamaRMSNorm

from dpsynth_platform.training import attention, layers
from dpsynth_platform.training.attention import ShortCausalAttention
from dpsynth_platform.training.fused import FusedNorm


def heads(number, size=8):
    """As models give them: [examples, tokens, heads, size], seen the other way round."""
    return torch.randn(3, 9, number, size, dtype=torch.float64).transpose(1, 2).requires_grad_()


@pytest.mark.parametrize(("number", "shared"), [(4, 4), (6, 2), (5, 1)])
@pytest.mark.parametrize("scale", [None, 0.3])
def test_short_causal_attention_is_torchs(number, shared, scale):
    given, gradients = (heads(number), heads(shared), heads(shared)), heads(number).detach()
    expected = scaled_dot_product_attention(*given, is_causal=True, enable_gqa=True, scale=scale)
    with ShortCausalAttention():
        found = scaled_dot_product_attention(*given, is_causal=True, enable_gqa=True, scale=scale)
    assert type(found.grad_fn).__name__ == "_CausalBackward"
    torch.testing.assert_close(found, expected)
    for one, other in zip(*(torch.autograd.grad(out, given, gradients) for out in (found, expected)), strict=True):
        torch.testing.assert_close(one, other)


def test_other_attention_is_left_to_torch(monkeypatch):
    given = (heads(4), heads(4), heads(4))
    short = (heads(4)[:, :, :3], *given[1:])
    with ShortCausalAttention():
        for arguments, how in (
            (given, {}),
            (given, {"attn_mask": torch.zeros(9, 9, dtype=torch.float64)}),
            (given, {"is_causal": True, "dropout_p": 0.5}),
            (short, {"is_causal": True}),
        ):
            found = scaled_dot_product_attention(*arguments, **how)
            assert type(found.grad_fn).__name__ != "_CausalBackward"
        monkeypatch.setattr(attention, "LONGEST", 8)
        assert type(scaled_dot_product_attention(*given, is_causal=True).grad_fn).__name__ != "_CausalBackward"


@pytest.mark.parametrize(("precision", "near"), [(torch.float32, 1e-5), (torch.bfloat16, 0.02)])
def test_a_norm_as_one_operation_is_that_in_parts(precision, near):
    layer = LlamaRMSNorm(48)
    with torch.no_grad():
        layer.weight.copy_(torch.randn(48))
    layer.weight.requires_grad_(False)
    inputs, gradients = 3 * torch.randn(2, 5, 48), torch.randn(2, 5, 48)
    exact, rounded = inputs.clone().requires_grad_(), inputs.to(precision).requires_grad_()
    expected, found = layer(exact), FusedNorm(layer.to(precision))(rounded)
    assert found.dtype == precision
    assert (found - expected).norm() <= near * expected.norm()
    (wanted,) = torch.autograd.grad(expected, exact, gradients)
    (given,) = torch.autograd.grad(found, rounded, gradients.to(precision))
    assert (given - wanted).norm() <= near * wanted.norm()


def test_only_norms_that_multiply_by_their_weights_are_taken_over():
    plain, more_than_one = LlamaRMSNorm(16), GemmaRMSNorm(16)
    assert layers.multiplies_by_weights(plain)
    assert not layers.multiplies_by_weights(more_than_one)
    assert not layers.multiplies_by_weights(torch.nn.LayerNorm(16))


def test_lengths_of_gradients_that_are_there_are_exact_to_a_millionth_and_less():
    gradients = torch.randn(3, 7, 1001) * torch.logspace(-8, 8, 1001)
    exact = gradients.double().square().sum((1, 2))
    found = layers.square_norms([layers.Stacked(gradients)], layers.Grams())
    assert ((found - exact).abs() <= 2**-20 * exact).all()
