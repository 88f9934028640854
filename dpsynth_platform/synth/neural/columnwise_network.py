"""What networks that predict columns one after the other share, and rows with their orders.

What belongs here: these parts. What does not: what networks over states share (`states_network`), the networks
themselves, and drawing (`columnwise`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from torch import Tensor

from dpsynth_platform.synth.neural.columnwise import CORRECTED_ROWS, Reading
from dpsynth_platform.synth.neural.states_network import StateRows, StatesNetwork
from dpsynth_platform.training.interface import Batch


class ColumnwiseNetwork(StatesNetwork, ABC):
    """A network that predicts each column by those that it has read."""

    corrected = CORRECTED_ROWS

    @property
    @abstractmethod
    def kept(self) -> int:
        """See `columnwise.Columnwise`."""

    @abstractmethod
    def reading(self, rows: int) -> Reading:
        """See `columnwise.Columnwise`."""


class OrderedRows(StateRows):
    """Rows of records, each with an order of the columns: the one in which rows are drawn, or a random one."""

    @property
    def ranks(self) -> Tensor:
        """The place of each column in the order in which rows are drawn, from 0; below that, of evidence."""
        return torch.arange(len(self.sizes), device=self.device) - len(self.sizes) * self.known

    @property
    def known(self) -> Tensor:
        """Which columns are evidence, [columns]."""
        found = torch.zeros(len(self.sizes), dtype=torch.bool, device=self.device)
        found[list(self.parameters.evidence)] = True
        return found

    @property
    def weights(self) -> Tensor:
        """Of each column's loss, [columns]: evidence is not predicted."""
        return (~self.known).float()

    @abstractmethod
    def arranged(self, states: Tensor, places: Tensor) -> Batch:
        """What the network takes of states [rows, columns], where a column sees those of smaller places."""

    def drawn(self, records: Batch, draws: int) -> Batch:
        states = records["states"].repeat_interleave(draws, 0)
        rows, columns = states.shape
        places = torch.rand(rows, columns, generator=self.source, device=self.device)
        in_order = torch.rand(rows, 1, generator=self.source, device=self.device) < self.parameters.fixed_order
        places = torch.where(in_order, self.ranks / columns, places - self.known.float())
        return self.arranged(states, places)

    def made_up(self, rows: int) -> Batch:
        """Rows of random states, which read no record, in the columns' order and its reverse by turns."""
        signs = 1 - 2 * (torch.arange(rows, device=self.device)[:, None] % 2)
        return self.arranged(self.random_states(rows), signs * self.ranks)
