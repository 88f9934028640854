"""Physical batches of records of one size, each of which becomes several rows of a pass.

What belongs here: dividing a logical batch of such records into parts that fit in memory. What does not: batches of
tokens (`physical`), and making a record's rows (its loss's module). Every unit is clipped separately, so the division
changes no result, up to rounding; and the shape of a unit's part, on which its rounding depends, follows from this unit
and public numbers alone (`physical`, Rounding).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import accumulate, pairwise

import torch
from torch import Tensor, nn

from dpsynth_platform.foundation.errors import MechanismFailed
from dpsynth_platform.training import physical, trial
from dpsynth_platform.training.hooked import HookedSums
from dpsynth_platform.training.interface import Batch, Part
from dpsynth_platform.training.memory import free_memory
from dpsynth_platform.training.world import World

Draws = Callable[[Batch, int], Batch]
"""From records to so many rows of each, one record after the other, on the records' device."""
Make = Callable[[int], Batch]
"""Makes a batch of so many rows of random numbers. It reads no record."""

# Rows in a physical batch; more are not faster.
MOST_ROWS = {"cpu": 64, "cuda": 4096}
# Numbers kept for each output of a layer: itself, what an activation makes of it, and both of their gradients.
COPIES = 4


class RowDivision:
    """`interface.Division` of batches of records; sizes are numbers of rows.

    Args:
        size: the most rows of a part, by `first_rows`.
        draws: rows of each record.
        drawn: makes them.
        planned: the expected units of a logical batch. Parts are for at most a quarter of them, and filled up.
    """

    least = 1

    def __init__(self, size: int, draws: int, drawn: Draws, planned: int, device: torch.device) -> None:
        self.size, self._draws, self._drawn, self._planned, self._device = size, draws, drawn, planned, device

    def parts(self, rows: Batch, sizes: Sequence[int], size: int) -> Iterator[list[Part]]:
        """Units with equally many records go together. A unit that is too large is divided by records, then by rows."""
        by_records: defaultdict[int, list[list[int]]] = defaultdict(list)
        for start, end in pairwise(accumulate(sizes, initial=0)):
            by_records[end - start].append(list(range(start, end)))
        for records, units in sorted(by_records.items(), reverse=True):
            most = size // (records * self._draws)
            if most == 0:
                yield from (self._divided(rows, unit, size) for unit in units)
                continue
            together = max(1, min(most, self._planned // 4))
            for first in range(0, len(units), together):
                yield [self._part(rows, units[first : first + together], self._draws, 1 / records, together)]

    def smaller(self, size: int) -> int:
        if size <= self.least:
            raise MechanismFailed(
                "one row of one record does not fit in memory; accepted: smaller records, a smaller network, or more "
                "memory"
            )
        return size // 2

    def _divided(self, rows: Batch, unit: list[int], size: int) -> list[Part]:
        """Parts of one unit; each part's weights sum to its share of the unit's rows."""
        most = max(1, size // self._draws)
        pieces = [self._draws] if size >= self._draws else _pieces(self._draws, size)
        return [
            self._part(rows, [unit[first : first + most]], draws, draws / self._draws / len(unit), 1)
            for first in range(0, len(unit), most)
            for draws in pieces
        ]

    def _part(self, rows: Batch, units: list[list[int]], draws: int, share: float, number: int) -> Part:
        """Units of equally many records, of which each gets so many rows and this share of its unit.

        Filled up to this number of units; the further ones have the weight 0.
        """
        chosen = [record for unit in [*units, *units[:1] * (number - len(units))] for record in unit]
        records = {name: values[chosen].to(self._device) for name, values in rows.items()}
        weights = torch.zeros((number, len(units[0]) * draws), device=self._device)
        weights[: len(units)] = share / draws
        return Part(self._drawn(records, draws), weights)


def first_rows(
    sums: HookedSums, model: nn.Module, make: Make, device: torch.device, most: int = MOST_ROWS["cpu"]
) -> int:
    """The most rows of a part: by trial with random rows on an accelerator, by estimate elsewhere, `most` there.

    The sums are empty before and afterwards. Raises `MechanismFailed` if a trainable layer is not used.
    """
    numbers = _outputs_of_a_row(sums, model, make, device)
    if unused := sums.unused_layers():
        raise MechanismFailed(
            f"the network does not use the trainable layers {', '.join(unused)}; accepted: freeze them"
        )
    rows = most if device.type == "cpu" else MOST_ROWS.get(device.type, most)
    if device.type not in physical.TRIED:
        weights = sum(value.numel() for value in sums.parameters.values())
        return max(1, min(rows, int(_free_numbers() / (COPIES * numbers + weights))))
    while not physical.fits(partial(_try, sums, make, rows, device)):
        rows //= 2
        if rows == 0:
            raise MechanismFailed("one random row does not fit in memory; accepted: a smaller network, or more memory")
    return rows


def _free_numbers() -> float:
    return physical.MEMORY_PART * free_memory() / (4 * World().size)


def _outputs_of_a_row(sums: HookedSums, model: nn.Module, make: Make, device: torch.device) -> int:
    """Number of values in the outputs of all layers for one row."""
    seen: list[int] = []
    hooks = [
        module.register_forward_hook(lambda _, __, output: seen.extend(t.numel() for t in trial.tensors_in(output)))
        for module in model.modules()
    ]
    try:
        _try(sums, make, 1, device)
    finally:
        for hook in hooks:
            hook.remove()
    return sum(seen)


def _try(sums: HookedSums, make: Make, rows: int, device: torch.device) -> None:
    """One pass over random rows, each a unit, which takes the most memory."""
    batch: dict[str, Tensor] = {name: value.to(device) for name, value in make(rows).items()}
    try:
        sums.add(batch, torch.ones(rows, 1, device=device))
    finally:
        sums.reset()


def _pieces(whole: int, most: int) -> list[int]:
    return [min(most, whole - start) for start in range(0, whole, most)]
