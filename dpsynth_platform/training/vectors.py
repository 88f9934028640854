"""Clipped gradients of networks of linear layers, embeddings and LayerNorms, by norms without gradients.

What belongs here: the form in which such a network's layers pass their values on. What does not: the arithmetic of
single layers (`layers`), hooks and sums (`hooked`), and networks with convolutions (`grids`).

A row may have several vectors, for example one for each column of a table. They are for a unit what tokens are for a
text: a layer's gradient is a sum over them, and its norm is computed without it where that is cheaper.
"""

from __future__ import annotations

from torch import Tensor, nn

from dpsynth_platform.foundation.errors import MechanismFailed
from dpsynth_platform.training.grids import GridSums
from dpsynth_platform.training.layers import Rule, plain_rule


class VectorSums(GridSums):
    """As `GridSums`; every layer takes vectors [rows, width] or [rows, vectors, width], an embedding their positions.

    Raises:
        MechanismFailed: nothing is trainable, or a layer's gradients are not known.
    """

    @staticmethod
    def rule_for(name: str, layer: nn.Module) -> Rule:
        rule = plain_rule(layer)
        if rule is None:
            raise MechanismFailed(
                f"layer {name}: gradients of single examples are not known for {type(layer).__name__}; accepted: "
                "Linear, Embedding, LayerNorm"
            )
        return rule

    def _by_unit(self, name: str, inputs: Tensor, gradients: Tensor) -> tuple[Tensor, Tensor]:
        """As [units, vectors, width]; positions of an embedding as [units, vectors]."""
        inputs, gradients = super()._by_unit(name, inputs, gradients)
        positions = isinstance(self._layers[name][0], nn.Embedding)
        return inputs.flatten(1) if positions else inputs.flatten(1, -2), gradients.flatten(1, -2)
