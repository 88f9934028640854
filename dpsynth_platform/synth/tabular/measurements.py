"""The durable record of what a mechanism has released: *draw, append durably, use*.

What belongs here: the append-only file `measurements.jsonl` and reading it back. What does not: the draws themselves
(`learning`, `mst`, `aim`). Every noisy result is on disk before anything depends on it: a crash can lose an unused
draw, but two draws of one measurement are never both used. A file without its last line, `complete`, is not used.

A mechanism that is made again from its beginning with the log of its last attempt (`MeasurementLog.continued`) gets
back what is in it, in order, in place of new draws. What it measures otherwise than before ends it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from dpsynth_platform.foundation.errors import MechanismFailed
from dpsynth_platform.foundation.storage import HeldByAnother, hold, sync, write_durably
from dpsynth_platform.synth.tabular.junction import Clique
from dpsynth_platform.synth.tabular.noise import Counts, rounded_gaussian_variance

FILE_NAME = "measurements.jsonl"
_COMPLETE = {"kind": "complete"}
_OTHERWISE = (
    "a mechanism that was interrupted measures otherwise than before, so that it would draw noise a second time; what "
    "it cost stays spent, and a new attempt is a new spend"
)


@dataclass(frozen=True)
class NoisyCounts:
    """One noisy marginal, with its noise scale; `levels` are the columns' resolutions, () for the finest."""

    clique: Clique
    counts: Counts
    sigma: float
    levels: tuple[int, ...] = ()

    @property
    def variance(self) -> float:
        return rounded_gaussian_variance(self.sigma)


@dataclass(frozen=True)
class NoisyDistances:
    """Noisy L1 distances of several cliques' counts from fixed numbers, in records; `sigma` is each one's noise."""

    cliques: tuple[Clique, ...]
    records: Counts
    sigma: float


@dataclass(frozen=True)
class Measurements:
    """Everything that the mechanism released, in order.

    Attributes:
        one_way: marginals of every column, over cells; `joint` of cliques, over states (`compression`).
        chosen: the cliques chosen for measurement, possibly repeated.
        learned: the learned values (`learning`), by column index.
        distances: from independence (`privsyn`).
        public: exact counts of public rows: of single columns over cells, of cliques over states (`public_rows`).
        taken: cliques whose public counts a choice preferred to a measurement, with the noise of that (`jam`).
        residuals: noisy contrasts (`residuals`), each with the deviation of an orthonormal coordinate as its sigma.
    """

    one_way: tuple[NoisyCounts, ...]
    chosen: tuple[Clique, ...]
    joint: tuple[NoisyCounts, ...]
    learned: Mapping[int, tuple[str, ...]] = field(default_factory=dict)
    distances: tuple[NoisyDistances, ...] = ()
    public: Mapping[Clique, Counts] = field(default_factory=dict)
    taken: tuple[tuple[Clique, float], ...] = ()
    residuals: tuple[NoisyCounts, ...] = ()


class MeasurementLog:
    """The file while it is written; each call returns only when its line is on disk."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._kept: list[Any] = []  # what the last attempt has drawn, and this one not yet asked for

    @classmethod
    @contextmanager
    def create(cls, directory: Path, plan_digest: str) -> Iterator[MeasurementLog]:
        """Starts the file of a new model directory. Raises `MechanismFailed` if it exists."""
        path = directory / FILE_NAME
        try:
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        except FileExistsError:
            raise MechanismFailed(
                "this model directory already holds measurements; they are not measured twice"
            ) from None
        with os.fdopen(descriptor, "wb", buffering=0) as file:
            sync(directory)
            log = cls(file)
            log._append(_header(plan_digest))
            yield log

    @classmethod
    @contextmanager
    def continued(cls, directory: Path, plan_digest: str) -> Iterator[MeasurementLog]:
        """The file of a mechanism's last attempt, or a new one; for one process at a time.

        Raises:
            MechanismFailed: it is of another plan, damaged, or open in another process, which would draw, too.
        """
        descriptor = os.open(directory / FILE_NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        with os.fdopen(descriptor, "r+b", buffering=0) as file:
            try:
                hold(file.fileno())
            except HeldByAnother:
                raise MechanismFailed(
                    "another process draws for this model directory; accepted: one at a time"
                ) from None
            content = file.read()
            whole = content[: content.rfind(b"\n") + 1]
            lines = _parsed(whole)
            file.truncate(len(whole))  # a line that is not whole was not used
            file.seek(0, os.SEEK_END)
            sync(directory)
            log = cls(file)
            if not lines:
                log._append(_header(plan_digest))
            elif lines[0] != _header(plan_digest):
                raise MechanismFailed("the stored measurements belong to another plan")
            log._kept = lines[1:]
            yield log

    def kept_counts(self, kind: str, asked: NoisyCounts) -> NoisyCounts | None:
        """The noisy marginal that is next in the log of the last attempt; None where nothing is left of it.

        Args:
            asked: with counts of the same shape, which are not looked at.

        Raises:
            MechanismFailed: something else is next.
        """
        found = self._next(kind)
        if found is None:
            return None
        kept = _noisy(found)
        if _form(kept) != _form(asked):
            raise MechanismFailed(_OTHERWISE)
        return kept

    def kept_choice(self) -> tuple[Clique, tuple[int, ...]] | None:
        """As `kept_counts`, of a choice."""
        found = self._next("chosen")
        return None if found is None else (tuple(found["clique"]), tuple(found["levels"]))

    def _next(self, kind: str) -> Any:
        if not self._kept:
            return None
        found = self._kept.pop(0)
        if found["kind"] != kind:
            raise MechanismFailed(_OTHERWISE)
        return found

    def counts(self, kind: str, measured: NoisyCounts) -> None:
        """Appends a noisy marginal (`one-way` or `joint`)."""
        self._append({"kind": kind, **_document(measured)})

    def residuals(self, measured: Sequence[NoisyCounts]) -> None:
        """Appends noisy contrasts, all at once."""
        self._append({"kind": "residuals", "tables": [_document(item) for item in measured]})

    def table(self, values: Counts, sigma: float) -> None:
        """Appends a table of noisy numbers whose meaning the plan says, in its order (`synth.answers`)."""
        self._append({"kind": "table", "shape": list(values.shape), "values": values.ravel().tolist(), "sigma": sigma})

    def distances(self, measured: NoisyDistances) -> None:
        """Appends noisy distances."""
        self._append(
            {
                "kind": "distances",
                "cliques": [list(clique) for clique in measured.cliques],
                "records": measured.records.tolist(),
                "sigma": measured.sigma,
            }
        )

    def public(self, clique: Clique, counts: Counts) -> None:
        """Appends counts of public rows, so that the estimate never needs their table."""
        self._append(
            {"kind": "public", "clique": list(clique), "shape": list(counts.shape), "counts": counts.ravel().tolist()}
        )

    def choice(self, clique: Clique, levels: tuple[int, ...] = ()) -> None:
        self._append({"kind": "chosen", "clique": list(clique), "levels": list(levels)})

    def taken(self, clique: Clique, sigma: float) -> None:
        """Appends that a choice preferred public counts to a measurement with this noise."""
        self._append({"kind": "taken", "clique": list(clique), "sigma": sigma})

    def values(self, column: int, values: tuple[str, ...]) -> None:
        self._append({"kind": "values", "column": column, "values": list(values)})

    def complete(self) -> None:
        if self._next(_COMPLETE["kind"]) is None:
            self._append(_COMPLETE)

    def _append(self, document: dict[str, Any]) -> None:
        if self._kept:
            raise MechanismFailed(_OTHERWISE)
        line = json.dumps(document, separators=(",", ":")).encode() + b"\n"
        while line:
            line = line[self._file.write(line) :]
        os.fsync(self._file.fileno())


def is_complete(directory: Path) -> bool:
    """Whether the directory holds measurements with their last line."""
    try:
        return bool(_lines(directory)[-1] == _COMPLETE)
    except (MechanismFailed, IndexError):
        return False


def complete(directory: Path, plan_digest: str) -> None:
    """Writes the last line of measurements that lack nothing else: of several tables together, one of which has it.

    Raises `MechanismFailed` if they are of another plan.
    """
    lines = _lines(directory)
    if not lines or lines[0] != _header(plan_digest):
        raise MechanismFailed("the stored measurements belong to another plan")
    if lines[-1] != _COMPLETE:
        path = directory / FILE_NAME
        whole = path.read_bytes().rpartition(b"\n")[0]
        write_durably(path, whole + b"\n" + json.dumps(_COMPLETE, separators=(",", ":")).encode() + b"\n")


def read_measurements(directory: Path, plan_digest: str) -> Measurements:
    """Complete measurements. Raises `MechanismFailed` if they are missing, incomplete, damaged or of another plan."""
    lines = _complete_lines(directory, plan_digest)
    try:
        return Measurements(
            one_way=tuple(_noisy(line) for line in lines if line["kind"] == "one-way"),
            chosen=tuple(tuple(line["clique"]) for line in lines if line["kind"] == "chosen"),
            joint=tuple(_noisy(line) for line in lines if line["kind"] == "joint"),
            learned={line["column"]: tuple(line["values"]) for line in lines if line["kind"] == "values"},
            distances=tuple(_distances(line) for line in lines if line["kind"] == "distances"),
            taken=tuple((tuple(line["clique"]), float(line["sigma"])) for line in lines if line["kind"] == "taken"),
            public={tuple(line["clique"]): _exact(line) for line in lines if line["kind"] == "public"},
            residuals=tuple(_noisy(item) for line in lines if line["kind"] == "residuals" for item in line["tables"]),
        )
    except (KeyError, TypeError, ValueError, IndexError):
        raise MechanismFailed("the stored measurements are damaged") from None


def read_tables(directory: Path, plan_digest: str) -> list[tuple[Counts, float]]:
    """The complete tables of `MeasurementLog.table` with their sigmas, in order; raises as `read_measurements`."""
    lines = _complete_lines(directory, plan_digest)
    try:
        return [
            (np.array(line["values"], dtype=np.int64).reshape(line["shape"]), float(line["sigma"]))
            for line in lines
            if line["kind"] == "table"
        ]
    except (KeyError, TypeError, ValueError):
        raise MechanismFailed("the stored measurements are damaged") from None


def _complete_lines(directory: Path, plan_digest: str) -> list[Any]:
    lines = _lines(directory)
    if not lines or lines[-1] != _COMPLETE:
        raise MechanismFailed(
            "the mechanism stopped before its measurements were complete; what it cost stays spent, and a new attempt "
            "is a new spend"
        )
    if lines[0] != _header(plan_digest):
        raise MechanismFailed("the stored measurements belong to another plan")
    return lines


def _header(plan_digest: str) -> dict[str, Any]:
    return {"kind": "header", "plan": plan_digest}


def _document(measured: NoisyCounts) -> dict[str, Any]:
    return {
        "clique": list(measured.clique),
        "shape": list(measured.counts.shape),
        "counts": measured.counts.ravel().tolist(),
        "sigma": measured.sigma,
        "levels": list(measured.levels),
    }


def _form(measured: NoisyCounts) -> tuple[Any, ...]:
    return measured.clique, measured.counts.shape, measured.sigma, measured.levels


def _noisy(line: dict[str, Any]) -> NoisyCounts:
    return NoisyCounts(tuple(line["clique"]), _exact(line), float(line["sigma"]), tuple(line["levels"]))


def _exact(line: dict[str, Any]) -> Counts:
    return np.array(line["counts"], dtype=np.int64).reshape(line["shape"])


def _distances(line: dict[str, Any]) -> NoisyDistances:
    cliques = tuple(tuple(clique) for clique in line["cliques"])
    records = np.array(line["records"], dtype=np.int64).reshape(len(cliques))
    return NoisyDistances(cliques, records, float(line["sigma"]))


def _lines(directory: Path) -> list[Any]:
    """All complete lines; a partial last line (from a crash during its write) is left out."""
    try:
        content = (directory / FILE_NAME).read_bytes()
    except FileNotFoundError:
        raise MechanismFailed("there are no stored measurements to estimate from") from None
    return _parsed(content)


def _parsed(content: bytes) -> list[Any]:
    try:
        return [json.loads(line) for line in content.split(b"\n")[:-1]]
    except ValueError:
        raise MechanismFailed("the stored measurements are damaged") from None
