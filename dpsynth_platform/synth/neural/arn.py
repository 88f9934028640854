"""The generator `arn`: a network that draws each column in the light of those before it.

The network is that of TabularARGN (Tiwald et al., arXiv 2501.12012).

What belongs here: its parts. What does not: the network (`arn_network`), training and counts (`network_generator`), and
drawing (`columnwise`).

What differs from the paper, and why:

- Each state of a column adds a score to each state of another, as in a regression, which needs few steps of DP-SGD; a
  narrow hidden layer that all columns share adds what single states do not say. Columns have no networks of their own:
  DP-SGD adds noise to every weight.
- The values of a column are the states of its noisy counts, by the code of all methods for tables; so all types,
  missing values, constraints and moments are those of other methods.
- A part of the budget buys counts of single columns, with which training starts, and which correct what is drawn.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from dpsynth_platform.synth.neural.columnwise_generator import ColumnwiseGenerator
from dpsynth_platform.synth.tabular.cost import ARN_PACE

if TYPE_CHECKING:
    from dpsynth_platform.synth.neural.columnwise_network import ColumnwiseNetwork, OrderedRows
    from dpsynth_platform.synth.neural.network_plan import NetworkParameters
    from dpsynth_platform.synth.tabular.column_states import Array


class Arn(ColumnwiseGenerator):
    """The generator `arn`."""

    method = "arn"
    pace = ARN_PACE

    def network(self, shares: Sequence[Array], width: int) -> ColumnwiseNetwork:
        from dpsynth_platform.synth.neural.arn_network import ArnNetwork

        return ArnNetwork(shares, width)

    def rows(self) -> type[OrderedRows]:
        from dpsynth_platform.synth.neural.arn_network import Rows

        return Rows

    def weights(self, parameters: NetworkParameters, sizes: Sequence[int]) -> int:
        states = sum(sizes)
        return states**2 + (2 * states + len(sizes)) * parameters.width
