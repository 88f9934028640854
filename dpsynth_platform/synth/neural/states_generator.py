"""The common part of networks over the states of columns: making, trying and loading them.

What belongs here: these parts. What does not: counts and training (`network_generator`), and drawing (`columnwise`,
`mixture_generator`).
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from dpsynth_platform.foundation.progress import Progress, silent
from dpsynth_platform.synth.interface import SealedPlan
from dpsynth_platform.synth.neural.network_generator import NETWORK, LearnedColumns, NetworkForm, NetworkGenerator
from dpsynth_platform.synth.neural.network_plan import NetworkParameters
from dpsynth_platform.synth.tabular.column_states import Array

if TYPE_CHECKING:
    from torch import Tensor

    from dpsynth_platform.synth.network_training import Prepared
    from dpsynth_platform.synth.neural.states_network import StateRows, StatesNetwork


class StatesGenerator(NetworkGenerator):
    """A generator whose network is a `states_network.StatesNetwork`."""

    @abstractmethod
    def network(self, shares: Sequence[Array], width: int) -> StatesNetwork:
        """The network with its first weights.

        Args:
            shares: of each column's states, by the noisy counts, without zeros.
        """

    @abstractmethod
    def rows(self) -> type[StateRows]:
        """What the network takes of rows."""

    def ready(
        self, parameters: NetworkParameters, learned: LearnedColumns, device: str, progress: Progress = silent
    ) -> Prepared:
        from dpsynth_platform.synth.neural.states_network import prepared

        return prepared(self._made(_form(parameters), learned), self.rows(), parameters, device)

    def unlinked(self, parameters: NetworkParameters, learned: LearnedColumns) -> Mapping[str, Tensor]:
        network = self._made(_form(parameters), learned)
        for head in network.heads.parameters():
            head.detach().zero_()
        return dict(network.named_parameters())

    def trained(self, plan: SealedPlan, directory: Path) -> tuple[LearnedColumns, StatesNetwork]:
        """The network with its weights. Raises `MechanismFailed` if they are incomplete, damaged or of another plan."""
        from dpsynth_platform.training.weights import load_weights

        learned = self.learned(plan, directory)
        network = self._made(self.form(plan), learned)
        load_weights(dict(network.named_parameters()), directory / NETWORK)
        return learned, network.eval()

    def _made(self, form: NetworkForm, learned: LearnedColumns) -> StatesNetwork:
        network = self.network(learned.shares, form.width)
        network.leave_out(form.evidence)
        return network


def _form(parameters: NetworkParameters) -> NetworkForm:
    return NetworkForm(parameters.width, parameters.evidence)
