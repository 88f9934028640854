"""Texts with their labels from tables, and their split into two halves.

What belongs here: taking texts out of tables, refusing what cannot be compared, and splitting real texts so that no
owner is on both sides. What does not: reading files (`quality.files`), and measuring.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dpsynth_platform.foundation.errors import SourceError
from dpsynth_platform.quality.files import is_text
from dpsynth_platform.quality.text.words import Codes

HELD_OUT = "held-out"
LEAST_TEXTS = 50
"""Fewer texts than this say nothing."""


@dataclass(frozen=True)
class Corpus:
    """The texts of one table that are not blank.

    Attributes:
        labels: class of each text, None where it is missing; empty where there is no column of labels.
        owners: owner of each text, None where it is missing; empty where there is no column of owners.
        blank: number of rows without a text, or with a blank one.
    """

    name: str
    texts: tuple[str, ...]
    labels: tuple[str | None, ...]
    owners: tuple[str | None, ...]
    blank: int

    def take(self, rows: Sequence[int] | Codes) -> Corpus:
        """Those texts, with what belongs to them."""
        labels, owners = (tuple(part[at] for at in rows) if part else () for part in (self.labels, self.owners))
        return replace(self, texts=tuple(self.texts[at] for at in rows), labels=labels, owners=owners)


def corpus_of(name: str, table: pa.Table, text: str, label: str | None = None, owner: str | None = None) -> Corpus:
    """The texts of a table.

    Args:
        name: what the table is called where something is wrong with it.
        text, label, owner: names of columns.

    Raises:
        SourceError: a column is missing or of a type that is no text or label, or there are too few texts.
    """
    texts = _values(name, "text", table, text)
    labels, owners = (
        [] if column is None else _values(name, role, table, column)
        for role, column in (("label", label), ("owner", owner))
    )
    there = [at for at, value in enumerate(texts) if value is not None and not value.isspace() and value]
    whole = Corpus(name, tuple(item or "" for item in texts), tuple(labels), tuple(owners), len(texts) - len(there))
    return enough(whole.take(there))


def enough(corpus: Corpus) -> Corpus:
    """The corpus. Raises `SourceError` if it has fewer than `LEAST_TEXTS` texts."""
    if len(corpus.texts) < LEAST_TEXTS:
        raise SourceError(
            f"{corpus.name}: {len(corpus.texts)} texts that are not blank; accepted: at least {LEAST_TEXTS}"
        )
    return corpus


def halves(corpus: Corpus) -> tuple[Corpus, Corpus]:
    """Two halves at random, always the same ones: what passes for training texts, and for held-out ones.

    Where owners are known, all texts of an owner are in one half; texts without an owner are left out, since they may
    be anybody's.

    Raises:
        SourceError: a half has too few texts, as where there is one owner only.
    """
    rng = np.random.default_rng(0)  # a reviewer can repeat it; nothing private is protected by it
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
    had, unseen = corpus.take(rows[first[owner]]), corpus.take(rows[~first[owner]])
    return enough(had), enough(replace(unseen, name=HELD_OUT, blank=0))


def check_apart(first: Corpus, second: Corpus) -> None:
    """Raises `SourceError` if an owner has texts in both."""
    if {owner for owner in first.owners if owner is not None}.intersection(second.owners):
        raise SourceError(
            f"owner: some owners have texts in {first.name} and in {second.name}, so those are not held out; accepted: "
            "tables split by owner, or one table alone, which is split by owner here"
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
        raise SourceError(f"{role}: column {column!r} of {name} holds {kind}; accepted: {_ACCEPTED[role]}")
    return list(pc.cast(values, pa.large_string()).to_pylist())


_ACCEPTED = {"text": "texts"} | dict.fromkeys(("label", "owner"), "texts, integers, true and false")
