"""Several processes that train one model, each with an accelerator and a share of the records.

What belongs here: their communication, and their shares of records. What does not: starting them (`worker.ranks`). The
shares are disjoint and each process samples its own with the same q and separate coins, so together they are one
Poisson sample. Sums of clipped gradients are added up over all; the first process adds the noise, once, and all get the
same noised sums (as in Opacus' distributed optimizer). A single process does none of this.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor
from torch import distributed as processes

from dpsynth_platform.foundation.errors import MechanismFailed
from dpsynth_platform.training.interface import Batch, Examples, TrainingState


class World:
    """The processes of torch's default group, or this one alone."""

    def __init__(self) -> None:
        self._together = processes.is_available() and processes.is_initialized()
        self.rank = processes.get_rank() if self._together else 0
        self.size = processes.get_world_size() if self._together else 1
        self.first = self.rank == 0

    def share(
        self, examples: Examples, units: Sequence[Sequence[int]] | None
    ) -> tuple[Examples, Sequence[Sequence[int]] | None]:
        """This process's share of all units, disjoint from other shares; arguments as in `loop.train`."""
        if units is not None:
            return examples, units[self.rank :: self.size]
        return (examples if self.size == 1 else _Share(examples, self.rank, self.size)), None

    def sum_(self, tensors: Iterable[Tensor]) -> None:
        """Each tensor becomes its sum over all processes."""
        if self._together:
            for tensor in tensors:
                processes.all_reduce(tensor)

    def share_(self, tensors: Iterable[Tensor]) -> None:
        """Each tensor becomes the first process's."""
        if self._together:
            for tensor in tensors:
                processes.broadcast(tensor, src=0)

    def number(self, value: int, device: torch.device) -> int:
        """The first process's number."""
        shared = torch.tensor([value], device=device)
        self.share_([shared])
        return int(shared.item())


class Follower:
    """`Journal` and `Health` of processes other than the first, which counts and checks the steps of all."""

    def begin_step(self) -> int:
        raise MechanismFailed("the first of several processes counts the steps")

    def save(self, state: TrainingState, *, now: bool = False) -> None:
        pass

    def latest(self) -> TrainingState | None:
        return None

    def step(self, step: int, gradients: Mapping[str, Tensor]) -> None:
        pass


def join_group(place: Path, rank: int, size: int, device: torch.device) -> None:
    """Makes this process number `rank`, from 0, of `size`; returns when all have joined.

    `place` is a file for their rendezvous, in a directory of this user alone.
    """
    cuda = device.type == "cuda"
    if cuda:
        torch.cuda.set_device(device)
    processes.init_process_group("nccl" if cuda else "gloo", init_method=f"file://{place}", rank=rank, world_size=size)
    processes.barrier()


def leave_group() -> None:
    """Makes this process a single one again; returns when all have called it."""
    if processes.is_available() and processes.is_initialized():
        processes.barrier()
        processes.destroy_process_group()


class _Share:
    def __init__(self, examples: Examples, rank: int, size: int) -> None:
        self._examples, self._places = examples, range(rank, len(examples), size)
        self.max_length = examples.max_length

    def __len__(self) -> int:
        return len(self._places)

    def batch(self, indices: Sequence[int]) -> Batch:
        return self._examples.batch([self._places[index] for index in indices])
