"""Gradients of single layers for each unit of a batch, without materializing them where that is expensive.

What belongs here: for each kind of layer, a unit's gradient from the layer's inputs and the gradient at its outputs;
its norm; its weighted sum over units. What does not: passing data through a model, and clipping (`clipping`).

A linear layer's gradient is a sum over tokens of outer products g_t a_t^T. Its squared norm is the sum over pairs of
tokens of (a_t . a_s)(g_t . g_s), the *ghost norm* (Goodfellow 2015; Li et al. 2021), which costs T^2 (p + d) for T
tokens where the gradient itself costs T p d; the weighted sum over all units is one matrix product over the kept inputs
and gradients (*book-keeping*, Bu et al. 2022). Where p d <= T (p + d), as in adapters of low rank, the gradients of the
units are both cheaper and smaller, and are materialized (their *mixed* clipping).

**Rounding.** A ghost norm is a sum of terms that may cancel, so its error is not proportional to it. Each product of
two tokens is computed in single precision; its error is proportional to the tokens' lengths, at most some 25 times
2^-24 of them as measured (widths up to 150,000), and not of random sign: a text that repeats its tokens repeats their
errors. So the error of the sum, which is taken in double precision, is at most that part of the same sum over the
lengths alone, (sum over t of |g_t| |a_t|)^2 for a linear layer; a table's rows count as one. Of this, 64 times 2^-24
are added (`SLACK`): with T tokens at most T / 2^19 of the norm, if nothing cancels. Materialized gradients, which do
not need it, get the same: the width of a batch decides the method, and a unit's clipped gradient must not depend on
other units. All sums have at least single precision, in any precision of the model, and double precision over the parts
of a batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

import torch
from torch import nn
from torch.nn import functional

from dpsynth_platform.foundation.errors import MechanismFailed

if TYPE_CHECKING:
    from torch import Tensor

SLACK = 2.0**-18
"""Part of the sum over the tokens' lengths that covers a ghost norm's rounding."""

SUMMANDS = 8
"""Number of squares in a sum of single precision."""


class Grams:
    """Products of tokens, a . a^T for each unit, cached for layers that share an input.

    It keeps the tensors, too, so that no other tensor can reuse their memory, which is the key.
    """

    def __init__(self) -> None:
        self._known: dict[tuple[Any, ...], tuple[Tensor, Tensor]] = {}

    def of(self, vectors: Tensor) -> Tensor:
        """[units, tokens, tokens] of [units, tokens, width]."""
        key = (vectors.data_ptr(), vectors.shape, vectors.stride(), vectors.dtype)
        if key not in self._known:
            single = vectors.float()
            self._known[key] = (vectors, torch.bmm(single, single.transpose(1, 2)))
        return self._known[key][1]


class Use(Protocol):
    """The gradients of one parameter, for each unit, by one use of a layer."""

    @property
    def lengths(self) -> Tensor | None:
        """Sums over the tokens' lengths alone, [units] in double precision; None where no slack is needed."""

    def add_(self, total: Tensor, coefficients: Tensor) -> None:
        """Adds the sum over units of coefficient times gradient to `total`: the parameter's shape, double precision."""

    def without(self, units: Tensor) -> Use:
        """The same with gradients of zero for some units: a mask [units]."""


@dataclass(frozen=True)
class Stacked:
    """Materialized gradients, [units, *shape]; `lengths` is None where they are always materialized."""

    gradients: Tensor
    lengths: Tensor | None = None

    def add_(self, total: Tensor, coefficients: Tensor) -> None:
        total.add_(torch.tensordot(coefficients, self.gradients, dims=1))

    def without(self, units: Tensor) -> Stacked:
        return replace(self, gradients=_cleared(self.gradients, units))


@dataclass(frozen=True)
class Outer:
    """Gradients of a matrix, sums over tokens of outer products: [units, tokens, rows] and [units, tokens, columns]."""

    rows: Tensor
    columns: Tensor

    def add_(self, total: Tensor, coefficients: Tensor) -> None:
        rows, columns, scale = self.rows.float(), self.columns.float(), coefficients[:, None, None]
        # Scaling the narrower side is cheaper.
        if rows.shape[-1] < columns.shape[-1]:
            rows = rows * scale
        else:
            columns = columns * scale
        total.add_(rows.flatten(0, 1).T @ columns.flatten(0, 1))

    def without(self, units: Tensor) -> Outer:
        return Outer(_cleared(self.rows, units), _cleared(self.columns, units))

    @property
    def lengths(self) -> Tensor:
        return _outer_lengths(self.rows, self.columns)

    def squares(self, grams: Grams) -> Tensor:
        """Squared norms, [units] in double precision."""
        return (grams.of(self.rows).double() * grams.of(self.columns)).sum((1, 2))


@dataclass(frozen=True)
class Lookup:
    """Gradients of a table, one row a token: [units, tokens] positions and [units, tokens, width]."""

    positions: Tensor
    gradients: Tensor

    def add_(self, total: Tensor, coefficients: Tensor) -> None:
        scaled = self.gradients.double() * coefficients[:, None, None]
        total.index_add_(0, self.positions.flatten(), scaled.flatten(0, 1))

    def without(self, units: Tensor) -> Lookup:
        return Lookup(self.positions, _cleared(self.gradients, units))

    @property
    def lengths(self) -> Tensor:
        return _token_lengths(self.gradients).sum(1, dtype=torch.float64)

    def squares(self, grams: Grams) -> Tensor:
        """Squared norms, [units] in double precision."""
        same = self.positions[:, :, None] == self.positions[:, None, :]
        return (grams.of(self.gradients).double() * same).sum((1, 2))


def square_norms(uses: Sequence[Use], grams: Grams) -> Tensor:
    """Upper bounds on the squared norms of the units' gradients of one parameter, [units] in double precision.

    A gradient is the sum over all `uses`: all `Stacked`, or any number of `Outer` and `Lookup` (tied embeddings have
    one of each). `grams` are of this batch.

    Raises:
        MechanismFailed: `Stacked` and others are mixed, as where a layer runs several times over other tokens.
    """
    return _square_norms(uses, grams) + slack_of(use.lengths for use in uses)


def slack_of(lengths: Iterable[Tensor | None]) -> Tensor | float:
    """A bound on the rounding of a parameter's squared norms, [units], from the `lengths` of all its uses."""
    covered = [part for part in lengths if part is not None]
    return SLACK * _sum(covered).square() if covered else 0.0


def _square_norms(uses: Sequence[Use], grams: Grams) -> Tensor:
    stacked = [use.gradients for use in uses if isinstance(use, Stacked)]
    if stacked and len(stacked) < len(uses):
        raise MechanismFailed(
            "a layer runs several times over different numbers of tokens; accepted: the same tokens each time"
        )
    if stacked:
        return _squares(_sum(stacked).flatten(1))
    outer, lookup = _joined(uses)
    if lookup is None or outer is None:
        return (outer or lookup).squares(grams)  # type: ignore[union-attr]
    # Inner product of outer products and rows of a table: of each outer product, only the looked-up rows matter.
    units, tokens = lookup.positions.shape
    picked = outer.rows.gather(2, lookup.positions[:, None, :].expand(units, outer.rows.shape[1], tokens)).double()
    along = torch.bmm(outer.columns.float(), lookup.gradients.float().transpose(1, 2))
    return outer.squares(grams) + lookup.squares(grams) + 2 * (picked * along).sum((1, 2))


Uses: TypeAlias = Iterable[tuple["Tensor", Use]]
Rule: TypeAlias = Callable[[Any, "Tensor", "Tensor", "Shared"], Uses]
Shared: TypeAlias = Callable[["Tensor"], bool]
"""Whether several layers share a parameter."""


def rule_for(name: str, layer: nn.Module) -> Rule:
    """The function from a layer's inputs and output gradients to gradients of its parameters.

    Raises:
        MechanismFailed: per-example gradients of such a layer are not known.
    """
    from transformers.pytorch_utils import Conv1D

    if (plain := plain_rule(layer)) is not None:
        return plain
    if type(layer) is Conv1D:
        return _transposed_linear
    if type(layer).__name__.endswith("RMSNorm") and _is_rms_norm(layer):
        return _rms_norm
    raise MechanismFailed(
        f"layer {name}: gradients of single examples are not known for {type(layer).__name__}; accepted: Linear, "
        "Conv1D, Embedding, LayerNorm, RMSNorm, LoRA on linear layers; freeze it, or train an adapter"
    )


def plain_rule(layer: nn.Module) -> Rule | None:
    """That of a linear layer, an embedding or a LayerNorm; None for any other layer."""
    kinds: tuple[tuple[type[nn.Module], Rule], ...] = (
        (nn.Linear, _linear),
        (nn.Embedding, _embedding),
        (nn.LayerNorm, _layer_norm),
    )
    # A subclass may use the same weights differently.
    return next((rule for kind, rule in kinds if type(layer) is kind and _is_plain(layer)), None)


def _is_plain(layer: nn.Module) -> bool:
    return not isinstance(layer, nn.Embedding) or not (layer.max_norm or layer.scale_grad_by_freq or layer.sparse)


def _linear(layer: nn.Linear, inputs: Tensor, gradients: Tensor, shared: Shared) -> Uses:
    yield layer.weight, _matrix(gradients, inputs.to(gradients.dtype), shared(layer.weight))
    if layer.bias is not None:
        yield layer.bias, Stacked(gradients.sum(1, dtype=torch.float32))


def _transposed_linear(layer: Any, inputs: Tensor, gradients: Tensor, shared: Shared) -> Uses:
    yield layer.weight, _matrix(inputs.to(gradients.dtype), gradients, shared(layer.weight))
    yield layer.bias, Stacked(gradients.sum(1, dtype=torch.float32))


def _matrix(rows: Tensor, columns: Tensor, shared: bool) -> Stacked | Outer:
    tokens, height, width = rows.shape[1], rows.shape[2], columns.shape[2]
    if shared or height * width > tokens * (height + width):
        return Outer(rows, columns)
    return Stacked(torch.bmm(rows.transpose(1, 2), columns).float(), _outer_lengths(rows, columns))


def _embedding(layer: nn.Embedding, inputs: Tensor, gradients: Tensor, shared: Shared) -> Uses:
    if layer.padding_idx is not None:
        gradients = gradients.masked_fill((inputs == layer.padding_idx)[:, :, None], 0)
    yield layer.weight, Lookup(inputs, gradients)


def _layer_norm(layer: nn.LayerNorm, inputs: Tensor, gradients: Tensor, shared: Shared) -> Uses:
    normalized = functional.layer_norm(inputs.float(), layer.normalized_shape, eps=layer.eps)
    yield layer.weight, Stacked((gradients.float() * normalized).sum(1))
    if layer.bias is not None:
        yield layer.bias, Stacked(gradients.sum(1, dtype=torch.float32))


def _rms_norm(layer: Any, inputs: Tensor, gradients: Tensor, shared: Shared) -> Uses:
    yield layer.weight, Stacked((gradients.float() * _by_root_mean_square(layer, inputs)).sum(1))


def _by_root_mean_square(layer: Any, inputs: Tensor) -> Tensor:
    single = inputs.float()
    return single * torch.rsqrt(single.square().mean(-1, keepdim=True) + norm_epsilon(layer, inputs))


def norm_epsilon(layer: Any, inputs: Tensor) -> float:
    """The summand that an RMSNorm adds to the mean square."""
    epsilon: float = getattr(layer, "variance_epsilon", getattr(layer, "eps", 0.0))
    return epsilon or torch.finfo(inputs.dtype).eps


def multiplies_by_weights(layer: nn.Module) -> bool:
    """Whether a layer is an RMSNorm that multiplies its normalized input by its weights, not by weights plus one."""
    return type(layer).__name__.endswith("RMSNorm") and _is_rms_norm(layer, (0,))


def _is_rms_norm(layer: nn.Module, offsets: Sequence[int] = (0, 1)) -> bool:
    """Whether a layer multiplies a random normalized input by its weights plus one of the offsets."""
    parameters = dict(layer.named_parameters())
    weight = parameters.get("weight")
    if weight is None or len(parameters) != 1 or weight.dim() != 1:
        return False
    with torch.no_grad():
        probe = torch.randn(2, 3, weight.numel(), device=weight.device)
        normalized, found = _by_root_mean_square(layer, probe), layer(probe).float()
        return any(torch.allclose(found, normalized * (weight + offset), atol=1e-2) for offset in offsets)


def _squares(values: Tensor) -> Tensor:
    """Squared norms of [units, numbers], [units] in double precision.

    Sums of few numbers have single precision; in any order they are within 2^-20 of the norm.
    """
    filled = functional.pad(values, (0, -values.shape[1] % SUMMANDS))
    lengths = torch.linalg.vector_norm(filled.view(len(values), -1, SUMMANDS), dim=2)
    squares: Tensor = lengths.double().square().sum(1)
    return squares


def _joined(uses: Sequence[Use]) -> tuple[Outer | None, Lookup | None]:
    """All uses of each kind as one with more tokens."""
    outers = [use for use in uses if isinstance(use, Outer)]
    lookups = [use for use in uses if isinstance(use, Lookup)]
    outer = Outer(_cat([o.rows for o in outers]), _cat([o.columns for o in outers])) if outers else None
    lookup = Lookup(_cat([u.positions for u in lookups]), _cat([u.gradients for u in lookups])) if lookups else None
    return outer, lookup


def _cat(parts: list[Tensor]) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(parts, dim=1)


def _sum(parts: list[Tensor]) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.stack(parts).sum(0)


def _outer_lengths(rows: Tensor, columns: Tensor) -> Tensor:
    """Lengths of outer products, summed over tokens: [units] in double precision."""
    return (_token_lengths(rows) * _token_lengths(columns)).sum(1, dtype=torch.float64)


def _token_lengths(vectors: Tensor) -> Tensor:
    found: Tensor = torch.linalg.vector_norm(vectors, dim=2, dtype=torch.float32)
    return found


def _cleared(values: Tensor, units: Tensor) -> Tensor:
    return values.masked_fill(units.view(-1, *[1] * (values.dim() - 1)), 0)
