"""Training by rows under attack: the canaries of `gradient_canaries`, through the sums for grids and for vectors.

What belongs here: networks in which every canary's gradient is one coordinate, and their training. What does
not: scores and proofs (`gradient_canaries`, `laboratory`), and what finds wrong gradients of a real network before a
spend (`training.unit_probe`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from dpsynth_platform.audit.gradient_canaries import LOUD, PARTS, Owners, TrainingAudit
from dpsynth_platform.training.grids import GridSums
from dpsynth_platform.training.interface import Batch, Health
from dpsynth_platform.training.loop import train_by
from dpsynth_platform.training.rows import RowDivision, first_rows
from dpsynth_platform.training.trial import NoJournal
from dpsynth_platform.training.vectors import VectorSums

DRAWS = 2
"""Rows of a record, whose mean gradient is clipped."""
_UNEVEN = (0.5, 1.5)
"""Parts of a record's gradient that its rows have, in means."""


@dataclass(frozen=True)
class PictureTrainingAudit(TrainingAudit):
    """`TrainingAudit` by the loop, sums and division of rows that trainings on pictures use, or on columns.

    Attributes:
        vectors: whether sums are those of networks over columns (`training.vectors`).
    """

    vectors: bool = False

    def train(self, owners: Owners, health: Health) -> nn.Module:
        model, device = CanaryGrid(self.canaries, self.vectors), torch.device("cpu")
        length = LOUD * self.plan.clipping_norm
        records = _Records(owners)

        def drawn(batch: Batch, draws: int) -> Batch:
            number = len(batch["canary"])
            share = torch.tensor(_UNEVEN).repeat(-(-draws // DRAWS))[:draws].repeat(number)
            return {"canary": batch["canary"].repeat_interleave(draws, 0), "share": share}

        def made_up(rows: int) -> Batch:
            return drawn({"canary": torch.randint(self.canaries, (rows,))}, 1)

        def losses(network: nn.Module, rows: Batch) -> Tensor:
            scores: Tensor = network(rows["canary"])
            return -length * rows["share"] * scores

        kind = VectorSums if self.vectors else GridSums
        with kind(model, self.plan, losses) as sums:
            rows = first_rows(sums, model, made_up, device)
            division = RowDivision(rows, DRAWS, drawn, self.plan.batch_size, device)
            train_by(sums, self.plan, records, division, journal=NoJournal(), health=health)
        return model


class CanaryGrid(nn.Module):
    """A convolution over pictures of one pixel, and an embedding: canaries have a channel or a row, in turns.

    For `vectors`, a linear layer takes the convolution's place.
    """

    def __init__(self, canaries: int, vectors: bool = False) -> None:
        super().__init__()
        self._wide, self._vectors = -(-canaries // PARTS), vectors
        first = nn.Linear(self._wide, 1, bias=False) if vectors else nn.Conv2d(self._wide, 1, 1, bias=False)
        self.parts = nn.ModuleList([first, nn.Embedding(self._wide, 1)])
        for parameter in self.parts.parameters():
            nn.init.zeros_(parameter)

    def forward(self, canary: Tensor) -> Tensor:
        """The weight of each row's canary, [rows]."""
        place, embedded = canary // PARTS, canary % PARTS == 1
        values = nn.functional.one_hot(place, self._wide).float()
        first = self.parts[0](values if self._vectors else values[:, :, None, None]).flatten()
        return torch.where(embedded, self.parts[1](place).flatten(), first)


class _Records:
    """The canary of each record: `interface.Examples`."""

    max_length = DRAWS

    def __init__(self, owners: Owners) -> None:
        self._owners = torch.from_numpy(owners)

    def __len__(self) -> int:
        return len(self._owners)

    def batch(self, indices: Sequence[int]) -> Batch:
        return {"canary": self._owners[list(indices)]}
