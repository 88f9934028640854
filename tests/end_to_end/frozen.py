"""Deployments that are made once and put back for every test that changes them.

What belongs here: keeping a copy of a deployment, and putting it back at the same absolute path, which ledgers, Delta
logs and lineage name. What does not: making deployments (`line_cases`), and fixtures (`conftest`).

Nothing has to be closed first: the ledger's and the graph's SQLite connections are closed after each use, and readers
of the ledger compare the hash of its head.
"""

from __future__ import annotations

import copy
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

T = TypeVar("T")


@dataclass(frozen=True)
class Frozen(Generic[T]):
    """A made value and the directory that it was made in, as both were.

    Attributes:
        made: what describes the deployment, such as a `Deployment`.
        place: the directory.
        kept: where its copy is.
    """

    made: T
    place: Path
    kept: Path

    @classmethod
    def of(cls, made: T, place: Path, kept: Path) -> Frozen[T]:
        """Keeps a copy of a directory, with the times of all its files."""
        shutil.copytree(place, kept, symlinks=True)
        return cls(copy.deepcopy(made), place, kept)

    def put_back(self) -> T:
        """Makes the directory what it was; returns a copy of its own of what was made."""
        shutil.rmtree(self.place)
        shutil.copytree(self.kept, self.place, symlinks=True)
        return copy.deepcopy(self.made)
