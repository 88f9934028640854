"""Noisy sums over records as durable files: *draw, append durably, use*.

What belongs here: passes over records, noise, files, and when they are complete. What does not: which sums
(`moments_queries`, `embedding_sums`).

Each query is one pass. Its noisy sums are a durable file before anything depends on them; a file that exists is used
and never drawn again. So a run that stopped continues with what it has, and a query lost in a crash was not used. What
follows from noisy results alone (the basis, networks) is a file, too, so that every later pass has the same numbers.
Nothing without noise outlives its pass.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Generic, Protocol, Self, TypeVar

import numpy as np
import numpy.typing as npt

from dpsynth_platform.foundation.errors import MechanismFailed, ResumeRefused
from dpsynth_platform.foundation.permissions import private_directory
from dpsynth_platform.foundation.progress import Progress, silent
from dpsynth_platform.foundation.storage import HeldByAnother, held_file, remove_unfinished, write_durably
from dpsynth_platform.synth.images.exact_sums import DIAGONAL_SHARE, Batch, Batches, Sums
from dpsynth_platform.synth.images.moments_fitting import Floats, symmetric
from dpsynth_platform.synth.images.moments_model import read_arrays, write_arrays
from dpsynth_platform.synth.tabular.noise import sample_rounded_gaussian

PLAN_FILE, COMPLETE_FILE, LOCK_FILE = "plan.digest", "complete", "lock"
DEVIATION = "deviation"
"""Of a sum's noise, beside it, where it is not the plan's."""


class SumsPlan(Protocol):
    """A sealed plan of noisy sums.

    Attributes:
        shape: height, width and channels of the pictures.
        noise: the noise multiplier of each query by its name.
        digest: identifies the plan.
    """

    @property
    def shape(self) -> tuple[int, int, int]: ...

    @property
    def noise(self) -> Mapping[str, float]: ...

    @property
    def digest(self) -> str: ...


S = TypeVar("S", bound=SumsPlan)


@dataclass
class Results(Generic[S]):
    """A directory's noisy results, each measured at most once.

    Attributes:
        batches: None where nothing may be measured any more, only read.
    """

    plan: S
    directory: Path
    batches: Batches | None = None
    progress: Progress = silent
    _read: dict[str, dict[str, npt.NDArray[Any]]] = field(default_factory=dict)

    def query(self, name: str, sums: Callable[[Batch], Sums], unit: int, *, matrix: bool = False) -> Floats:
        """A noisy sum over all records, in units of a record.

        Args:
            sums: of a batch, exact; a unit moves their total by b * `unit` at most (`exact_sums`).
            unit: the norm of a record of weight 1.
            matrix: the last two axes are symmetric matrices; only their upper triangles are measured.
        """

        def measured() -> dict[str, npt.NDArray[Any]]:
            self.progress(f"measuring {name}", 0, 1)
            total: Sums | None = None
            for batch in self._passes():
                for chunk in batch.chunks():
                    part = sums(chunk)
                    total = part if total is None else total + part
            if total is None:
                total = sums(self._nothing())
            noisy = with_noise(total, self.plan.noise[name], unit, matrix=matrix)
            self.progress(f"measuring {name}", 1, 1)
            return {"sums": noisy}

        found = self.kept(name, measured)["sums"].astype(np.float64) / unit
        return symmetric(found) if matrix else found

    def deviation(self, name: str) -> float:
        """Of the noise of a measured query, in units of a record: the plan's, unless it was opened with another."""
        found = self._read.get(name, {}).get(DEVIATION)
        return self.plan.noise[name] if found is None else float(found)

    def kept(self, name: str, make: Callable[[], dict[str, npt.NDArray[Any]]]) -> dict[str, npt.NDArray[Any]]:
        """Arrays of the directory; made, and durable before they are returned, if they are not there yet.

        Raises:
            MechanismFailed: they are missing, and nothing may be measured any more.
        """
        if name not in self._read:
            path = self.directory / f"{name}.npz"
            if not path.exists():
                if self.batches is None:
                    raise MechanismFailed(
                        f"the measurements lack {name}; what they cost stays spent, and a new attempt is a new spend"
                    )
                write_arrays(path, make())
            self._read[name] = read_arrays(path)
        return self._read[name]

    def _passes(self) -> Iterator[Batch]:
        return iter(()) if self.batches is None else self.batches()

    def _nothing(self) -> Batch:
        return no_records(self.plan)


def no_records(plan: SumsPlan) -> Batch:
    """A batch without records, by which a query shows the shape of its sums."""
    return Batch(np.zeros((0, *plan.shape), dtype=np.uint8), np.zeros(0, dtype=np.int64))


@dataclass(frozen=True)
class Query:
    """A sum that is measured elsewhere, as a vector.

    Attributes:
        sums, unit, matrix: as in `Results.query`.
    """

    name: str
    sums: Callable[[Batch], Sums]
    unit: int
    matrix: bool

    def vector(self, batch: Batch) -> Floats:
        """The exact sums in units of a record; those of records with norm 1 at most have the L2 norm 1, or less.

        Of matrices the upper triangles, with entries off the diagonal times sqrt(2): the norm is the whole matrix's,
        and entries with even noise are matrices with the noise of `with_noise`.
        """
        exact = self.sums(batch)
        if not self.matrix:
            return exact.ravel() / self.unit
        rows, columns, scales = _triangle(exact.shape[-1])
        return np.asarray((exact[..., rows, columns] * scales).ravel() / self.unit)

    def of_vector(self, vector: Floats, shape: tuple[int, ...]) -> Sums:
        """Sums of this shape from their `vector`, to be kept; of matrices the upper triangles, zeros below."""
        if not self.matrix:
            return np.rint(vector * self.unit).astype(np.int64).reshape(shape)
        rows, columns, scales = _triangle(shape[-1])
        found = np.zeros(shape, dtype=np.int64)
        found[..., rows, columns] = np.rint(vector.reshape(*shape[:-2], -1) / scales * self.unit).astype(np.int64)
        return found


@cache
def _triangle(size: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], Floats]:
    rows, columns = np.triu_indices(size)
    return rows, columns, np.where(rows == columns, 1.0, math.sqrt(2))


class Unmeasured(Exception):
    """The first query whose sum is not there."""

    def __init__(self, query: Query) -> None:
        super().__init__(query.name)
        self.query = query


@dataclass
class Opened(Results[S]):
    """A directory's noisy results that are measured elsewhere. What follows from them is made here.

    A query that is not there raises `Unmeasured`.
    """

    def query(self, name: str, sums: Callable[[Batch], Sums], unit: int, *, matrix: bool = False) -> Floats:
        if not self._has(name):
            raise Unmeasured(Query(name, sums, unit, matrix))
        return super().query(name, sums, unit, matrix=matrix)

    def kept(self, name: str, make: Callable[[], dict[str, npt.NDArray[Any]]]) -> dict[str, npt.NDArray[Any]]:
        if not self._has(name):
            write_arrays(self.directory / f"{name}.npz", make())
        return super().kept(name, make)

    def _has(self, name: str) -> bool:
        return name in self._read or (self.directory / f"{name}.npz").exists()

    @property
    def read(self) -> Mapping[str, Mapping[str, npt.NDArray[Any]]]:
        """All that was read so far, by name. Public: noisy sums, and what follows from them."""
        return self._read


@dataclass
class Known(Opened[S]):
    """Noisy results without a directory; what follows from them is given as well, and nothing is made."""

    @classmethod
    def of(cls, plan: S, arrays: Mapping[str, dict[str, npt.NDArray[Any]]]) -> Self:
        return cls(plan, Path(), _read=dict(arrays))

    def kept(self, name: str, make: Callable[[], dict[str, npt.NDArray[Any]]]) -> dict[str, npt.NDArray[Any]]:
        if name not in self._read:
            raise MechanismFailed(f"the results lack {name}; accepted: all that follows from the sums before")
        return self._read[name]

    def _has(self, name: str) -> bool:
        return name in self._read


def measure_all(
    plan: S, batches: Batches, directory: Path, progress: Progress, estimate: Callable[[Results[S]], object]
) -> None:
    """Measures everything that an estimate asks for, or what a stopped run has not measured.

    Args:
        batches: begins a pass; every pass gives the same records, of the plan's form and classes.
        directory: the results' own, private.

    Raises:
        MechanismFailed: the directory holds results of another plan, or damaged ones.
        ResumeRefused: another process measures into the directory.
    """
    private_directory(directory)
    try:
        with held_file(directory / LOCK_FILE):
            begin(plan, directory)
            check_plan(plan, directory)
            remove_unfinished(directory / "*.npz")
            estimate(Results(plan, directory, batches, progress))
            complete(plan, directory)
    except HeldByAnother:
        raise ResumeRefused(f"{directory}: another process measures here; wait for its end, or end it") from None


def begin(plan: SumsPlan, directory: Path) -> None:
    """Notes whose measurements a new directory has."""
    path = directory / PLAN_FILE
    if not path.exists():
        write_durably(path, plan.digest)


def complete(plan: SumsPlan, directory: Path) -> None:
    """Notes that all measurements of a plan are there."""
    write_durably(directory / COMPLETE_FILE, plan.digest)


def is_complete(directory: Path) -> bool:
    """Whether a directory has all measurements of its plan."""
    return (directory / COMPLETE_FILE).exists()


def complete_results(plan: S, directory: Path) -> Results[S]:
    """Complete measurements, to read.

    Raises:
        MechanismFailed: the measurements are missing, incomplete, or of another plan.
    """
    if not is_complete(directory):
        raise MechanismFailed(
            "the mechanism stopped before its measurements were complete; what it cost stays spent, and a new attempt "
            "is a new spend"
        )
    check_plan(plan, directory)
    return Results(plan, directory)


def check_plan(plan: SumsPlan, directory: Path) -> None:
    """Raises `MechanismFailed` if a directory's measurements are of another plan."""
    try:
        digest = (directory / PLAN_FILE).read_text()
    except OSError:
        digest = ""
    if digest != plan.digest:
        raise MechanismFailed("the stored measurements belong to another plan")


def with_noise(exact: Sums, multiplier: float, unit: int, *, matrix: bool = False) -> Sums:
    """Exact sums with noise of `multiplier` * `unit`; of matrices the upper triangles, zeros below.

    A matrix's off-diagonal entries have 1 / sqrt(2) of that (`DIAGONAL_SHARE`).
    """
    if not matrix:
        return sample_rounded_gaussian(exact, multiplier * unit)
    size = exact.shape[-1]
    noisy = np.zeros_like(exact)
    diagonal, above = np.arange(size), np.triu_indices(size, 1)
    noisy[..., diagonal, diagonal] = sample_rounded_gaussian(exact[..., diagonal, diagonal], multiplier * unit)
    if size > 1:
        cells_above = np.ascontiguousarray(exact[..., above[0], above[1]])
        noisy[..., above[0], above[1]] = sample_rounded_gaussian(cells_above, multiplier * unit * DIAGONAL_SHARE)
    return noisy
