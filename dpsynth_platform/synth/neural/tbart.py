"""The generator `tbart`: a decoder of attention writes a row column by column (DP-TBART, Castellon et al. 2023).

What belongs here: its parts. What does not: the network (`tbart_network`), training and counts (`network_generator`),
and drawing (`columnwise`).

As in the paper, each state of a column is a token of its own, and tokens of other columns are ruled out. What differs:
rows have other orders than the columns' in part, so that they can be drawn with given values of any columns; and a
part of the budget buys counts of single columns, with which training starts and which correct what is drawn.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from dpsynth_platform.synth.neural.columnwise_generator import ColumnwiseGenerator
from dpsynth_platform.synth.tabular.cost import TBART_PACE

if TYPE_CHECKING:
    from dpsynth_platform.synth.neural.columnwise_network import ColumnwiseNetwork, OrderedRows
    from dpsynth_platform.synth.neural.network_plan import NetworkParameters
    from dpsynth_platform.synth.tabular.column_states import Array

SQUARES = 24
"""Weights of the three layers, about, in squares of the width."""


class Tbart(ColumnwiseGenerator):
    """The generator `tbart`."""

    method = "tbart"
    pace = TBART_PACE

    def network(self, shares: Sequence[Array], width: int) -> ColumnwiseNetwork:
        from dpsynth_platform.synth.neural.tbart_network import TbartNetwork

        return TbartNetwork(shares, width)

    def rows(self) -> type[OrderedRows]:
        from dpsynth_platform.synth.neural.tbart_network import Sequences

        return Sequences

    def weights(self, parameters: NetworkParameters, sizes: Sequence[int]) -> int:
        return SQUARES * parameters.width**2 + (2 * sum(sizes) + len(sizes)) * parameters.width
