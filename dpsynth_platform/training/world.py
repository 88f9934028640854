"""Several processes that train one model, each with an accelerator and a share of the records of its own.

What belongs here: what they tell each other. What does not: starting them. The shares are disjoint and each is sampled
by the same q with coins of its own, so that together they are one Poisson sample. Sums of clipped gradients are added
up over all; the first process adds the noise, once, and everybody gets the same noised sums (as in Opacus' distributed
optimizer). Alone, all of this is nothing.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor
from torch import distributed as processes


class World:
    """The processes of torch's default group, or this one alone."""

    def __init__(self) -> None:
        self._together = processes.is_available() and processes.is_initialized()
        self.first = not self._together or processes.get_rank() == 0

    def sum_(self, tensors: Iterable[Tensor]) -> None:
        """Each tensor becomes its sum over all processes."""
        if self._together:
            for tensor in tensors:
                processes.all_reduce(tensor)

    def share_(self, tensors: Iterable[Tensor]) -> None:
        """Each tensor becomes that of the first process."""
        if self._together:
            for tensor in tensors:
                processes.broadcast(tensor, src=0)

    def number(self, value: int, device: torch.device) -> int:
        """The first process's number."""
        shared = torch.tensor([value], device=device)
        self.share_([shared])
        return int(shared.item())
