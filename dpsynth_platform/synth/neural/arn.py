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


class Arn(NetworkGenerator):
    """The generator `arn`."""

    method = "arn"

    def ready(self, parameters: NetworkParameters, shares: Sequence[Array], device: str) -> Prepared:
        from dpsynth_platform.synth.neural.arn_network import prepared

        return prepared(parameters, shares, device)

    def first_weights(self, parameters: NetworkParameters, shares: Sequence[Array]) -> dict[str, Tensor]:
        from dpsynth_platform.synth.neural.arn_network import ArnNetwork

        return dict(ArnNetwork(shares, parameters.width).named_parameters())

    def weights(self, sizes: Sequence[int], width: int) -> int:
        states = sum(sizes)
        return states**2 + (2 * states + len(sizes)) * width

    def joint(self, plan: SealedPlan, directory: Path) -> Joint:
        """See `Generator.joint`. Raises `MechanismFailed` if the weights are incomplete, damaged or of another plan."""
        from dpsynth_platform.synth.neural.arn_network import ArnNetwork
        from dpsynth_platform.synth.neural.columnwise import ColumnwiseJoint
        from dpsynth_platform.training.weights import load_weights

        shares = self.learned(plan, directory).shares
        network = ArnNetwork(shares, self.sealed(plan.parameters).width)
        load_weights(dict(network.named_parameters()), directory / NETWORK)
        return ColumnwiseJoint(network.eval(), shares)
