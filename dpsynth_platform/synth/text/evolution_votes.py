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

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dpsynth_platform.foundation.storage import read_table
from dpsynth_platform.scrub.fingerprints import OWNER_COLUMN
from dpsynth_platform.synth.conditions import Given
from dpsynth_platform.synth.evolution.votes import NOBODY, VotingRecords
from dpsynth_platform.synth.text.embeddings import REMEMBERED_TEXTS
from dpsynth_platform.synth.text.examples import bounded_columns
from dpsynth_platform.synth.text.layout import TextLayout
from dpsynth_platform.synth.text.private_text import Features, PrivateText, TextEncoder


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
    bounded_columns(bounded if held is None else held.schema, names)
    features_of = lru_cache(maxsize=REMEMBERED_TEXTS)(lambda text: text.features(encoder))
    features: list[Features] = []
    found: list[int] = []
    owners: list[int] = []
    numbers: dict[str, int] = {}
    for batch in read_table(bounded, columns=names) if held is None else held.select(names).to_batches():
        texts = map(PrivateText, batch.column(layout.fields[0]).to_pylist())
        records = batch.select(conditions).to_pylist() if conditions else [{}] * batch.num_rows
        owner_of = batch.column(OWNER_COLUMN).to_pylist() if by_owner else [""] * batch.num_rows
        for text, record, owner in zip(texts, records, owner_of, strict=True):
            given = layout.given(record)
            group = NOBODY if given is None or text.is_blank else groups.get(given, NOBODY)
            if group != NOBODY:
                features.append(features_of(text))
                found.append(group)
                owners.append(numbers.setdefault(owner, len(numbers)))
    return Voters(
        np.stack(features) if features else np.zeros((0, 0), dtype=np.float32),
        np.array(found, dtype=np.int64),
        np.array(owners, dtype=np.int64) if by_owner else None,
        nearest,
    )
