"""Causal attention over short texts on a CPU, as one operation.

What belongs here: softmax(q k^T s) v below the diagonal, its backward pass, and replacing torch's attention. What does
not: other masks, long texts and other devices, which use torch's. Torch's CPU kernel recomputes the probabilities in
the backward pass, which suits long texts; for short ones it is several times as slow as matrix products.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention
from torch.overrides import TorchFunctionMode

# The backward pass needs the probabilities: for each token at most this number, per head and layer.
LONGEST = 512


class ShortCausalAttention(TorchFunctionMode):
    """While active, it computes torch's attention here where `_is_short_causal`."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func is scaled_dot_product_attention and _is_short_causal(*args, **kwargs):
            query = args[0]
            scale = kwargs.get("scale")
            factor = query.shape[-1] ** -0.5 if scale is None else float(scale)
            return _Causal.apply(*args[:3], factor)  # type: ignore[no-untyped-call]
        return func(*args, **kwargs)


def _is_short_causal(
    query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None, dropout_p: float = 0.0, **how: Any
) -> bool:
    plain = attn_mask is None and not dropout_p and bool(how.get("is_causal")) and query.device.type == "cpu"
    square = query.dim() == 4 and query.shape[2] == key.shape[2] <= LONGEST
    grouped = square and query.shape[1] % key.shape[1] == 0 and key.shape[1] == value.shape[1]
    return plain and grouped


class _Causal(torch.autograd.Function):
    """Queries are [examples, heads, tokens, size]; keys and values have as many heads, or fewer shared ones."""

    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
        examples, heads, tokens, _ = query.shape
        shared = key.shape[1]
        # Heads that share keys are stacked, as more queries to the same keys.
        queries = query.reshape(examples * shared, heads // shared * tokens, -1)
        keys, values = key.reshape(examples * shared, tokens, -1), value.reshape(examples * shared, tokens, -1)
        later = torch.full((tokens, tokens), -torch.inf, dtype=query.dtype).triu_(1)
        hidden = later.repeat(heads // shared, 1).expand(len(queries), -1, -1)
        chances = torch.baddbmm(hidden, queries, keys.transpose(1, 2), alpha=scale).softmax(2)
        ctx.save_for_backward(queries, keys, values, chances)
        ctx.scale, ctx.shapes = scale, (query.shape, key.shape, value.shape)
        return torch.bmm(chances, values).view(examples, heads, tokens, -1)

    @staticmethod
    def backward(ctx: Any, gradients: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:  # type: ignore[override]
        queries, keys, values, chances = ctx.saved_tensors
        gradients = gradients.reshape(*queries.shape[:2], -1)
        weighted = torch.bmm(gradients, values.transpose(1, 2)).mul_(chances)
        of_scores = weighted.addcmul_(chances, weighted.sum(2, keepdim=True), value=-1).mul_(ctx.scale)
        found = (
            torch.bmm(of_scores, keys),
            torch.bmm(of_scores.transpose(1, 2), queries),
            torch.bmm(chances.transpose(1, 2), gradients),
        )
        of_query, of_key, of_value = (part.view(shape) for part, shape in zip(found, ctx.shapes, strict=True))
        return of_query, of_key, of_value, None
