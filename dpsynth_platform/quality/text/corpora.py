"""Texts with their labels from tables, and their split into two halves by owner.

What belongs here: extracting texts, refusing tables that cannot be compared, and splitting real texts by owner. What
does not: reading files (`quality.files`), and measuring.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dpsynth_platform.compute.plain_types import is_text, type_name
from dpsynth_platform.foundation.errors import SourceError
from dpsynth_platform.quality.text.words import Codes

HELD_OUT = "held-out"
LEAST_TEXTS = 50
"""The least texts that can be measured."""


@dataclass(frozen=True)
class Corpus:
    """The texts of one table that are not blank, and the number of other rows.

    Labels and owners are empty without such a column, and None for a text without a value.
    """

    name: str
    texts: tuple[str, ...]
    labels: tuple[str | None, ...]
    owners: tuple[str | None, ...]
    blank: int

    def take(self, rows: Sequence[int] | Codes) -> Corpus:
        labels, owners = (tuple(part[at] for at in rows) if part else () for part in (self.labels, self.owners))
        return replace(self, texts=tuple(self.texts[at] for at in rows), labels=labels, owners=owners)


def corpus_of(name: str, table: pa.Table, text: str, label: str | None = None, owner: str | None = None) -> Corpus:
    """The texts in a column of a table. Raises `SourceError` for unsuitable columns, and for too few texts."""
    texts = _values(name, "text", table, text)
    labels, owners = (
        [] if column is None else _values(name, role, table, column)
        for role, column in (("label", label), ("owner", owner))
    )
    present = [at for at, value in enumerate(texts) if value and not value.isspace()]
    whole = Corpus(name, tuple(item or "" for item in texts), tuple(labels), tuple(owners), len(texts) - len(present))
    return enough(whole.take(present))


def enough(corpus: Corpus) -> Corpus:
    """The corpus. Raises `SourceError` if it has fewer than `LEAST_TEXTS` texts."""
    if len(corpus.texts) < LEAST_TEXTS:
        raise SourceError(
            f"{corpus.name}: {len(corpus.texts)} texts that are not blank; accepted: at least {LEAST_TEXTS}"
        )
    return corpus


def halves(corpus: Corpus) -> tuple[Corpus, Corpus]:
    """A fixed random split into two halves, which replace training and held-out texts.

    With owners, all texts of an owner are in one half, and texts without an owner are left out. Raises `SourceError` if
    a half has too few texts, for example because there is a single owner.
    """
    rng = np.random.default_rng(0)  # reviewers can repeat it; it protects nothing
    if corpus.owners:
        rows = np.array([at for at, owner in enumerate(corpus.owners) if owner is not None], dtype=np.int64)
        _, owner = np.unique([str(corpus.owners[at]) for at in rows], return_inverse=True)
    else:
        rows = np.arange(len(corpus.texts))
        owner = rows
    sizes = np.bincount(owner)
    order = rng.permutation(len(sizes))
    first = np.zeros(len(sizes), dtype=bool)
    first[order[: 1 + int(np.searchsorted(np.cumsum(sizes[order]), len(rows) / 2))]] = True
    training, held_out = corpus.take(rows[first[owner]]), corpus.take(rows[~first[owner]])
    return enough(training), enough(replace(held_out, name=HELD_OUT, blank=0))


def check_apart(first: Corpus, second: Corpus) -> None:
    """Raises `SourceError` if an owner has texts in both."""
    if {owner for owner in first.owners if owner is not None}.intersection(second.owners):
        raise SourceError(
            f"owner: some owners have texts in {first.name} and in {second.name}, so those are not held out; accepted: "
            "tables split by owner, or a single table, which is split by owner"
        )


def check_labels(real: Corpus, held_out: Corpus, synthetic: Corpus) -> None:
    """Raises `SourceError` if classifiers of the labels cannot be compared."""
    for corpus in (real, held_out, synthetic):
        if not _classes(corpus):
            raise SourceError(f"label: no text of {corpus.name} has one")
    for corpus in (real, held_out):
        if len(_classes(corpus)) < 2:
            raise SourceError(f"label: all texts of {corpus.name} are of one class; accepted: at least two")
    if not _classes(synthetic) & _classes(held_out):
        raise SourceError(f"label: {synthetic.name} has no class of {held_out.name}; accepted: the same names in both")


def _classes(corpus: Corpus) -> set[str]:
    return {label for label in corpus.labels if label is not None}


def _values(name: str, role: str, table: pa.Table, column: str) -> list[str | None]:
    if table.column_names.count(column) != 1:
        raise SourceError(f"{role}: no column {column!r} in {name}, or two; accepted: {', '.join(table.column_names)}")
    values = table[column]
    kind = values.type
    if not (is_text(kind) or (role != "text" and (pa.types.is_integer(kind) or pa.types.is_boolean(kind)))):
        raise SourceError(f"{role}: column {column!r} of {name} holds {type_name(kind)}; accepted: {_ACCEPTED[role]}")
    return list(pc.cast(values, pa.large_string()).to_pylist())


_ACCEPTED = {"text": "texts"} | dict.fromkeys(("label", "owner"), "texts, integers, true and false")
