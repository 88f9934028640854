"""Federated plans that count columns first, and then sum something else: votes for texts, for example.

What belongs here: the plan of the columns, which is a `MarginalsPlan` of its own, as the first rounds of a larger one.
What does not: the other rounds (`evolution`), and tables of columns alone (`marginals`).
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import pyarrow as pa

from dpsynth_platform.contracts.contract import DataContract
from dpsynth_platform.federation.marginals import MarginalsPlan
from dpsynth_platform.federation.plans import FederatedPlan, Measuring, Round, Terms
from dpsynth_platform.federation.sums import SumPlan
from dpsynth_platform.foundation.permissions import private_directory
from dpsynth_platform.foundation.progress import Progress
from dpsynth_platform.privacy.events import DpEvent
from dpsynth_platform.privacy.guarantee import Guarantee
from dpsynth_platform.synth import counted
from dpsynth_platform.synth.images.layout import ImageLayout
from dpsynth_platform.synth.tabular.domain import Domain

COLUMNS_METHOD = "mst"
"""Of the columns that are counted; one column alone is counted once."""
_SHARED = ("participants", "minimum", "colluders", "most_records", "silos")
"""Terms that the columns' plan has in common with the whole one, beside `_BOUND`, which the contract has."""
_BOUND = "max_contributions"


def counted_first(contract: DataContract, schema: pa.Schema, part: Guarantee, terms: Terms) -> counted.Columns:
    """The plan of the columns alone; None where none is counted.

    Args:
        part: what counting may cost.

    Raises:
        ContractError, AccountingError: as `MarginalsPlan.of`.
    """
    if not counted.counts_columns(contract):
        return None
    return MarginalsPlan.of(
        counted.columns_alone(contract),
        schema,
        method=COLUMNS_METHOD,
        guarantee=part,
        **{name: getattr(terms, name) for name in _SHARED},
    ).sealed


@dataclass(frozen=True)
class ColumnsFirst(FederatedPlan):
    """A plan whose first rounds are those of `columns`; `terms` are of the others."""

    @property
    @abstractmethod
    def counted(self) -> counted.Columns:
        """The sealed plan of the columns."""

    @property
    @abstractmethod
    def own_reads(self) -> Sequence[str]:
        """The columns that the other rounds read."""

    @property
    @abstractmethod
    def own_rounds(self) -> tuple[tuple[str, int], ...]:
        """`rounds` without those of the columns."""

    @property
    @abstractmethod
    def own_sums(self) -> tuple[SumPlan, ...]:
        """`sums` of the other rounds."""

    @property
    @abstractmethod
    def own_document_bytes(self) -> int:
        """`most_document_bytes` of the other rounds."""

    @abstractmethod
    def own_round(self, document: Mapping[str, Any]) -> Round:
        """`read_round` of a document that is none of the columns' rounds."""

    @cached_property
    def columns(self) -> MarginalsPlan | None:
        return None if self.counted is None else MarginalsPlan(self.counted)

    @property
    def before(self) -> int:
        """The number of rounds before the others."""
        return 0 if self.columns is None else len(self.columns.rounds)

    @property
    def reads(self) -> Sequence[str]:
        return list(dict.fromkeys([*(() if self.columns is None else self.columns.reads), *self.own_reads]))

    @property
    def rounds(self) -> tuple[tuple[str, int], ...]:
        return (*(() if self.columns is None else self.columns.rounds), *self.own_rounds)

    @cached_property
    def sums(self) -> tuple[SumPlan, ...]:
        return (*(() if self.columns is None else self.columns.sums), *self.own_sums)

    @property
    def most_document_bytes(self) -> int:
        return max(0 if self.columns is None else self.columns.most_document_bytes, self.own_document_bytes)

    @property
    def event(self) -> DpEvent:
        return counted.together(self.counted, *(each.event for each in self.own_sums))

    def _fits(self) -> bool:
        columns = self.columns
        if self.sealed.columns != counted.domains(self.counted):
            return False
        if columns is None:
            return True
        columns.check()
        mine, theirs = self.guarantee, columns.guarantee
        return all(getattr(columns.terms, name) == getattr(self.terms, name) for name in (*_SHARED, _BOUND)) and (
            (mine.unit, mine.adjacency, mine.max_contributions)
            == (theirs.unit, theirs.adjacency, theirs.max_contributions)
        )

    def undeclared(self, domain: Domain, pictures: ImageLayout | None) -> Iterator[str]:
        if self.columns is not None:
            yield from self.columns.undeclared(domain, pictures)

    def read_round(self, document: Mapping[str, Any]) -> Round:
        index = document.get("index") if isinstance(document, dict) else None
        if self.columns is not None and type(index) is int and 0 <= index < self.before:
            return self.columns.read_round(document)
        return self.own_round(document)

    @contextmanager
    def measuring_columns(self, directory: Path, progress: Progress) -> Iterator[Measuring | None]:
        """`measuring` of the columns in a new directory; None where none is counted."""
        if self.columns is None:
            yield None
            return
        with self.columns.measuring(private_directory(directory), progress) as measuring:
            yield measuring
