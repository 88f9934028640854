"""Noisy votes of private records for public candidates.

What belongs here: reading only the features of the bounded table's texts, and the choice of each record. What does not:
candidates and their writers (`synth.evolution.loop`, `evolution_prompts`), scaling an owner's votes and their noise
(`synth.evolution.votes`).

**No private text can get into a prompt.** Here a text is a `PrivateText` from the moment it is read. Prompts consist of
`PublicText`, which this module does not import; no module that makes or sends prompts imports this one, or reads a
table.

**A record's vote depends on that record only**, given the candidates: its features and similarities are computed
separately, since the last bits of a product depend on the other rows of a batch. So one owner more or less changes the
histogram by that owner's own votes, which `scaled` limits to the length of one vote.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dpsynth_platform.foundation.storage import read_table, table_schema, write_table
from dpsynth_platform.scrub.fingerprints import OWNER_COLUMN
from dpsynth_platform.synth.conditions import Given
from dpsynth_platform.synth.evolution.votes import NOBODY, VotingRecords
from dpsynth_platform.synth.text.embeddings import REMEMBERED_TEXTS
from dpsynth_platform.synth.text.examples import bounded_columns
from dpsynth_platform.synth.text.layout import TextLayout
from dpsynth_platform.synth.text.private_text import Features, PrivateText, TextEncoder

FEATURES_COLUMN = "_features"
"""Of a bounded table on disk: the features of its text, where these were computed before (`write_features`)."""


@dataclass(frozen=True)
class Voters(VotingRecords):
    """Private texts; a record votes for the candidates with the largest cosines.

    Attributes:
        nearest: the number of candidates that share a record's vote.
    """

    nearest: int = 1

    def chosen(self, candidates: Features, groups: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Record by record; candidates have the length 1."""
        of_group = {int(group): np.flatnonzero(groups == group) for group in np.unique(groups)}
        compared = {group: np.ascontiguousarray(candidates[places]) for group, places in of_group.items()}
        chosen = np.full((len(self.groups), self.nearest), NOBODY, dtype=np.int64)
        for record, group in enumerate(self.groups.tolist()):
            if group in compared:
                cosines = compared[group] @ self.features[record]
                order = [cosines.argmax()] if self.nearest == 1 else (-cosines).argsort(kind="stable")[: self.nearest]
                chosen[record, : len(order)] = of_group[group][order]
        return chosen


def read_voters(
    bounded: Path | pa.Table,
    layout: TextLayout,
    groups: Mapping[Given, int],
    encoder: TextEncoder,
    *,
    by_owner: bool,
    nearest: int = 1,
) -> Voters:
    """The voters of a bounded table, on disk or in memory: milliseconds for each uncached text, 1.5 KB for each record.

    A table of `write_features` has its features.

    Args:
        layout: has the text column (its first field) and the conditions.
        groups: the group of the conditions' values. A record with other values, or without a text, does not vote,
            independent of other records.
        by_owner: whether records have one owner each, whose votes are scaled together.
        nearest: see `Voters`.

    Raises:
        StaleInput: the table lacks a column.
    """
    owned = [OWNER_COLUMN] if by_owner else []
    conditions = [condition.column for condition in layout.conditions]
    names = [*conditions, layout.fields[0], *owned]
    held = bounded if isinstance(bounded, pa.Table) else None
    if FEATURES_COLUMN in bounded_columns(bounded if held is None else held.schema, names):  # a reserved name
        names.append(FEATURES_COLUMN)
    features_of = lru_cache(maxsize=REMEMBERED_TEXTS)(lambda text: text.features(encoder))
    features: list[Features] = []
    found: list[int] = []
    owners: list[int] = []
    numbers: dict[str, int] = {}
    for batch in read_table(bounded, columns=names) if held is None else held.select(names).to_batches():
        texts = map(PrivateText, batch.column(layout.fields[0]).to_pylist())
        records = batch.select(conditions).to_pylist() if conditions else [{}] * batch.num_rows
        owner_of = batch.column(OWNER_COLUMN).to_pylist() if by_owner else [""] * batch.num_rows
        known = _kept_features(batch) if FEATURES_COLUMN in names else [None] * batch.num_rows
        for text, record, owner, own in zip(texts, records, owner_of, known, strict=True):
            given = layout.given(record)
            group = NOBODY if given is None or text.is_blank else groups.get(given, NOBODY)
            if group != NOBODY:
                features.append(features_of(text) if own is None else own)
                found.append(group)
                owners.append(numbers.setdefault(owner, len(numbers)))
    return Voters(
        np.stack(features) if features else np.zeros((0, 0), dtype=np.float32),
        np.array(found, dtype=np.int64),
        np.array(owners, dtype=np.int64) if by_owner else None,
        nearest,
    )


def write_features(bounded: Path, column: str, encoder: TextEncoder, place: Path) -> Path:
    """A copy of a bounded Delta table with the features of a text column: milliseconds for each text.

    They are as sensitive as the texts.

    Raises:
        StaleInput: the table lacks the column.
    """
    bounded_columns(bounded, [column])
    schema = table_schema(bounded).append(pa.field(FEATURES_COLUMN, pa.list_(pa.float32())))

    def batches() -> Iterator[pa.RecordBatch]:
        for batch in read_table(bounded):
            found = [PrivateText(text).features(encoder) for text in batch.column(column).to_pylist()]
            yield pa.RecordBatch.from_arrays([*batch.columns, pa.array(found, schema[-1].type)], schema=schema)

    write_table(place, schema, batches())
    return place


def _kept_features(batch: pa.RecordBatch) -> Features:
    """Shape (rows, features)."""
    found = batch.column(FEATURES_COLUMN).flatten().to_numpy(zero_copy_only=False)
    return np.asarray(found, dtype=np.float32).reshape(batch.num_rows, -1 if batch.num_rows else 0)
