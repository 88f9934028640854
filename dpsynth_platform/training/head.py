"""A frozen head and the cross-entropy above it, as one operation that gives gradients only.

What belongs here: the gradient of the loss at the hidden states below a frozen head. What does not: the loss itself,
which training does not need (`clipping.example_losses`), and trained heads, whose gradients need the scores.

Scores over a vocabulary are the largest tensors of a small model. Here they exist for a few predictions at a time only.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

PREDICTIONS = {"cpu": 256, "cuda": 1024}
"""Predictions at a time."""


class FrozenHead:
    """Replaces a head's `forward`, and returns the hidden states instead of scores.

    `hidden` are those of the last call.
    """

    def __init__(self, layer: nn.Linear) -> None:
        self.layer = layer
        self.hidden: Tensor | None = None
        self._version = 0
        self._weights: tuple[Tensor, Tensor | None] = layer.weight, layer.bias

    def __call__(self, hidden: Tensor) -> Tensor:
        """Hidden states of [examples, tokens, width], unchanged."""
        # The weights may be replaced for the forward pass alone.
        self.hidden, self._weights = hidden, (self.layer.weight, self.layer.bias)
        self._version = hidden._version
        return hidden

    def gave(self, scores: Tensor) -> bool:
        """Whether a model's scores are the last hidden states, unchanged even in place."""
        return scores is self.hidden and scores._version == self._version

    @torch.no_grad()
    def gradients(self, targets: Tensor, weights: Tensor) -> Tensor:
        """The gradient, at the hidden states, of the weighted sum of the cross-entropies of all predictions.

        All products have one shape for any number of predictions: other examples must not change the rounding of one.
        Targets, the token after each position, and weights, 0 without a prediction, are
        [examples, tokens]; the result is [examples, tokens, width].
        """
        if self.hidden is None:
            raise ValueError("the head has not been called")
        hidden = self.hidden.flatten(0, 1)
        found = torch.zeros_like(hidden)
        places = weights.flatten().nonzero()[:, 0]
        most = min(PREDICTIONS.get(hidden.device.type, PREDICTIONS["cpu"]), len(hidden))
        for own in torch.split(places, most) if len(places) else ():
            filled = torch.cat([own, own[:1].expand(most - len(own))])
            gradients = self._of(hidden[filled], targets.flatten()[filled])[: len(own)]
            found[own] = gradients.mul_(weights.flatten()[own, None])
        return found.view_as(self.hidden)

    def _of(self, hidden: Tensor, targets: Tensor) -> Tensor:
        """The gradient of each prediction's cross-entropy, [predictions, width]."""
        weight, bias = self._weights
        scores = functional.linear(hidden, weight, bias)
        errors = scores.softmax(1)
        del scores
        right = torch.arange(len(targets), device=targets.device), targets
        # 1 - p of the right token as a sum over the others: for p close to 1, the difference would lose all digits.
        errors[right] = 0
        errors[right] = -errors.sum(1, dtype=torch.float32).to(errors.dtype)
        return errors @ weight


def is_plain(layer: Any) -> bool:
    """Whether a model's head is a plain linear layer."""
    return type(layer) is nn.Linear
