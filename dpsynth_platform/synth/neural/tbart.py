"""The generator `tbart`: a decoder of attention writes a row column by column (DP-TBART, Castellon et al. 2023).

What belongs here: its parts. What does not: the network (`tbart_network`), training and counts (`network_generator`),
and drawing (`columnwise`).

As in the paper, each state of a column is a token of its own, and tokens of other columns are ruled out. What differs:
rows have other orders than the columns' in part, so that they can be drawn with given values of any columns; and a
part of the budget buys counts of single columns, with which training starts and which correct what is drawn.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from dpsynth_platform.synth.interface import SealedPlan
from dpsynth_platform.synth.neural.network_generator import NETWORK, NetworkGenerator
from dpsynth_platform.synth.neural.network_plan import NetworkParameters

if TYPE_CHECKING:
    from torch import Tensor

    from dpsynth_platform.synth.network_training import Prepared
    from dpsynth_platform.synth.tabular.column_states import Array
    from dpsynth_platform.synth.tabular.joint import Joint

LAYER = 8
"""Weights of a layer, in squares of the width, about."""


class Tbart(NetworkGenerator):
    """The generator `tbart`."""

    method = "tbart"

    def ready(self, parameters: NetworkParameters, shares: Sequence[Array], device: str) -> Prepared:
        from dpsynth_platform.synth.neural.tbart_network import prepared

        return prepared(parameters, shares, device)

    def first_weights(self, parameters: NetworkParameters, shares: Sequence[Array]) -> dict[str, Tensor]:
        from dpsynth_platform.synth.neural.tbart_network import TbartNetwork

        found = dict(TbartNetwork(shares, parameters.width).named_parameters())
        found["scores.weight"].detach().zero_()
        return found

    def weights(self, sizes: Sequence[int], width: int) -> int:
        from dpsynth_platform.synth.neural.tbart_network import LAYERS

        return LAYERS * LAYER * width**2 + (2 * sum(sizes) + len(sizes)) * width

    def joint(self, plan: SealedPlan, directory: Path) -> Joint:
        """See `Generator.joint`. Raises `MechanismFailed` if the weights are incomplete, damaged or of another plan."""
        from dpsynth_platform.synth.neural.columnwise import ColumnwiseJoint
        from dpsynth_platform.synth.neural.tbart_network import TbartNetwork
        from dpsynth_platform.training.weights import load_weights

        shares = self.learned(plan, directory).shares
        network = TbartNetwork(shares, self.sealed(plan.parameters).width)
        load_weights(dict(network.named_parameters()), directory / NETWORK)
        return ColumnwiseJoint(network.eval(), shares)
