"""A frozen head and the cross-entropy above it, as one operation that gives gradients only.

What belongs here: the gradient of the loss at the hidden states that a frozen head turns into scores. What does not:
the loss itself, which nobody needs for training (`clipping.example_losses`), and heads that are trained, whose own
gradients are made of the scores'.

Scores for each token of a vocabulary are the largest thing in a small model. Here they are made for some predictions at
a time, only where something is predicted, and are gone before the next ones.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from dpsynth_platform.training.precision import EXACT

PREDICTIONS = {"cpu": 256, "cuda": 1024}
"""How many predictions are made at a time."""


class FrozenHead:
    """Takes the place of a head's `forward` and passes the hidden states on, instead of scores.

    Args:
        layer: the model's output embeddings.

    Attributes:
        layer: the same.
        hidden: what was passed on last.
    """

    def __init__(self, layer: nn.Linear) -> None:
        self.layer = layer
        self.hidden: Tensor | None = None
        self._version = 0
        self._weights: tuple[Tensor, Tensor | None] = layer.weight, layer.bias

    def __call__(self, hidden: Tensor) -> Tensor:
        """Hidden states of [examples, tokens, width], as they are."""
        # The weights too, since they may be replaced for the pass forward alone.
        self.hidden, self._weights = hidden, (self.layer.weight, self.layer.bias)
        self._version = hidden._version
        return hidden

    def gave(self, scores: Tensor) -> bool:
        """Whether a model's scores are what was passed on last, and nothing was done to them, not even in place."""
        return scores is self.hidden and scores._version == self._version

    @torch.no_grad()
    def gradients(self, targets: Tensor, weights: Tensor) -> Tensor:
        """The gradient, at the hidden states, of the weighted sum of the cross-entropies of all predictions.

        Where layers compute coarsely, all products have one shape, however many predictions there are: other
        examples must not change the way in which one is rounded.

        Args:
            targets: [examples, tokens], of each place the token that should follow.
            weights: [examples, tokens]; where 0, nothing is predicted.

        Returns:
            [examples, tokens, width].
        """
        if self.hidden is None:
            raise ValueError("no hidden states have been passed on")
        hidden = self.hidden.flatten(0, 1)
        found = torch.zeros_like(hidden)
        places = weights.flatten().nonzero()[:, 0]
        most = PREDICTIONS.get(hidden.device.type, PREDICTIONS["cpu"])
        for own in torch.split(places, most) if len(places) else ():
            missing = 0 if hidden.dtype == EXACT else most - len(own)
            filled = torch.cat([own, own[:1].expand(missing)])
            gradients = self._of(hidden[filled], targets.flatten()[filled])[: len(own)]
            found[own] = gradients.mul_(weights.flatten()[own, None])
        return found.view_as(self.hidden)

    def _of(self, hidden: Tensor, targets: Tensor) -> Tensor:
        """[predictions, width]: of each prediction's cross-entropy."""
        weight, bias = self._weights
        scores = functional.linear(hidden, weight, bias)
        errors = scores.softmax(1)
        del scores
        right = torch.arange(len(targets), device=targets.device), targets
        # 1 - p of the right token, from the others: close to 1, p itself has lost it.
        errors[right] = 0
        errors[right] = -errors.sum(1, dtype=torch.float32).to(errors.dtype)
        return errors @ weight


def is_plain(layer: Any) -> bool:
    """Whether a model's head is a linear layer, and nothing more."""
    return type(layer) is nn.Linear
