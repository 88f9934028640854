"""Rows of records for networks that predict columns one after the other.

What belongs here: the order of columns in each row. What does not: what a network takes of it, and the networks.
"""

from __future__ import annotations

import secrets
from abc import ABC, abstractmethod
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from dpsynth_platform.training.interface import Batch


class OrderedRows(ABC):
    """Rows of records, each with an order of the columns, and their loss.

    The orders hide nothing: a record's are independent of others' and of the noise of training.

    Args:
        sizes: states of each column.
        fixed: the chance of a row to have the order in which rows are drawn.
    """

    def __init__(self, sizes: Sequence[int], fixed: float, device: torch.device) -> None:
        self._sizes, self._fixed, self._device = list(sizes), fixed, device
        self._source = torch.Generator(device).manual_seed(secrets.randbits(63))

    @abstractmethod
    def arranged(self, states: Tensor, places: Tensor) -> Batch:
        """What the network takes of states [rows, columns], where a column sees those of smaller places."""

    @abstractmethod
    def losses(self, network: nn.Module, rows: Batch) -> Tensor:
        """Of each row, [rows]: the cross entropy of all columns together."""

    def drawn(self, records: Batch, draws: int) -> Batch:
        """So many rows of each record, one record after the other, from `states` [records, columns]."""
        states = records["states"].repeat_interleave(draws, 0)
        rows, columns = states.shape
        places = torch.rand(rows, columns, generator=self._source, device=self._device)
        in_order = torch.rand(rows, 1, generator=self._source, device=self._device) < self._fixed
        places = torch.where(in_order, torch.arange(columns, device=self._device) / columns, places)
        return self.arranged(states, places)

    def made_up(self, rows: int) -> Batch:
        """Rows of random states, which read no record, in the columns' order and its reverse by turns."""
        points = torch.rand(rows, len(self._sizes), generator=self._source, device=self._device)
        states = (points * torch.tensor(self._sizes, device=self._device)).long()
        signs = 1 - 2 * (torch.arange(rows, device=self._device)[:, None] % 2)
        return self.arranged(states, signs * torch.arange(len(self._sizes), device=self._device))
