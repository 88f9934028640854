"""What networks over the states of a table's columns share: scores, rows of records, and the gate.

What belongs here: these parts. What does not: the networks themselves, the order of a training's parts
(`network_training`), and drawing (`columnwise`, `mixture_generator`).
"""

from __future__ import annotations

import secrets
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Sequence

import numpy as np
import torch
from torch import Tensor, nn

from dpsynth_platform.synth.network_training import Prepared
from dpsynth_platform.synth.neural.network_plan import NetworkParameters
from dpsynth_platform.synth.tabular.column_states import Array
from dpsynth_platform.training.averages import ExponentialAverage
from dpsynth_platform.training.hooked import HookedSums
from dpsynth_platform.training.interface import Batch
from dpsynth_platform.training.plan import TrainingPlan
from dpsynth_platform.training.trial import Losses
from dpsynth_platform.training.unit_probe import refuse_unsound_grid
from dpsynth_platform.training.vectors import VectorSums


class StatesNetwork(nn.Module):
    """A network whose scores of a column's states are added to the logarithms of their shares by the noisy counts.

    A subclass adds `heads`, from features to the scores of each column.

    Args:
        shares: of each column's states, shape (states,), without zeros.
    """

    first: Tensor
    shares: Tensor
    heads: nn.ModuleDict

    def __init__(self, shares: Sequence[Array]) -> None:
        super().__init__()
        self.sizes = [len(share) for share in shares]
        sizes = torch.tensor(self.sizes)
        self.register_buffer("first", sizes.cumsum(0) - sizes)
        self.register_buffer("shares", torch.from_numpy(np.concatenate(shares)).float())

    def own(self, column: int) -> slice:
        """Where a column's states are among all."""
        start = int(self.first[column])
        return slice(start, start + self.sizes[column])

    def heads_of(self, features: int) -> nn.ModuleDict:
        """A layer for each column, without those that noise merged into one state."""
        return nn.ModuleDict(
            {str(index): nn.Linear(features, size, bias=False) for index, size in enumerate(self.sizes) if size > 1}
        )

    def predicted(self, column: int, features: Tensor) -> Tensor:
        """Logarithms of the probabilities of a column's states, [..., states], by features [..., features]."""
        shares = self.shares[self.own(column)].log()
        if str(column) not in self.heads:
            return shares.expand(*features.shape[:-1], -1)
        scores: Tensor = self.heads[str(column)](features)
        return (scores + shares).log_softmax(-1)

    def leave_out(self, columns: Collection[int]) -> None:
        """Does not predict these columns: they have their shares, whatever is seen."""
        for column in map(str, columns):
            if column in self.heads:
                del self.heads[column]

    def indicators(self, states: Tensor) -> Tensor:
        """Of each row's states, less their shares: [rows, all states], from whole numbers [rows, columns]."""
        found = -self.shares.expand(len(states), -1)
        return found.scatter_add(1, states + self.first, torch.ones_like(states, dtype=found.dtype))


class StateRows(ABC):
    """Rows of records, and their loss.

    What is drawn for a row hides nothing: it is independent of other records and of the noise of training.

    Args:
        sizes: states of each column.
        parameters: of the plan.
    """

    most_rows: int
    """Of a pass on a CPU."""

    def __init__(self, sizes: Sequence[int], parameters: NetworkParameters, device: torch.device) -> None:
        self.sizes, self.parameters, self.device = list(sizes), parameters, device
        self.source = torch.Generator(device).manual_seed(secrets.randbits(63))

    @abstractmethod
    def drawn(self, records: Batch, draws: int) -> Batch:
        """So many rows of each record, one record after the other, from `states` [records, columns]."""

    @abstractmethod
    def made_up(self, rows: int) -> Batch:
        """Rows of random states, which read no record."""

    @abstractmethod
    def losses(self, network: nn.Module, rows: Batch) -> Tensor:
        """Of each row, [rows]."""

    def prepared(self, network: nn.Module, sums: Callable[[nn.Module, TrainingPlan, Losses], HookedSums]) -> Prepared:
        """A network on the rows' device that the gate has tried, with an average of its weights."""
        return Prepared(
            network=network,
            losses=self.losses,
            drawn=self.drawn,
            made_up=self.made_up,
            draws=1,
            kept=lambda trained: ExponentialAverage(trained, self.parameters.average),
            sums=sums,
            most_rows=self.most_rows,
        )

    def random_states(self, rows: int) -> Tensor:
        """Whole numbers [rows, columns], uniform in each column."""
        points = torch.rand(rows, len(self.sizes), generator=self.source, device=self.device)
        return (points * torch.tensor(self.sizes, device=self.device)).long()


def cross_entropies(predicted: Sequence[Tensor], states: Tensor) -> Tensor:
    """Of each row and column, [rows, columns], from logarithms by column [rows, its states]."""
    found = [values.gather(1, states[:, index : index + 1]) for index, values in enumerate(predicted)]
    return -torch.cat(found, 1)


def prepared(network: StatesNetwork, kind: type[StateRows], parameters: NetworkParameters, device: str) -> Prepared:
    """A network with its first weights, tried on random rows before any record is read for training.

    Raises:
        TrainingRefused: training it would not be differentially private; names all faults.
    """
    place = torch.device(device)
    network = network.to(place).eval()
    rows = kind(network.sizes, parameters, place)
    refuse_unsound_grid(network, parameters.training, rows.losses, rows.made_up, VectorSums)
    return rows.prepared(network, VectorSums)
