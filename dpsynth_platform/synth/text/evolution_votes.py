"""Votes of private records for public candidates, and the noise that they are shown with.

What belongs here: reading the bounded table's texts for nothing but their features, who votes for what, scaling an
owner's votes, and the noisy histogram. What does not: candidates and who writes them (`evolution_loop`,
`evolution_prompts`), and the cost of a histogram (`privacy.events.GaussianVotesEvent`).

**No private text can get into a prompt.** Here a text is a `PrivateText` from the moment it is read. Prompts are made
of `PublicText` alone, which this module does not know; nothing that makes or sends prompts knows this module, or reads
a table.

**What a record votes for hangs on that record alone**, given the candidates: its features and its similarities are
computed by themselves, since the last bits of a product hang on what is computed beside it. So one owner more or less
moves the histogram by that owner's own votes, which `scaled` keeps to the length of one vote.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

import numpy as np
import numpy.typing as npt

from dpsynth_platform.foundation.errors import StaleInput
from dpsynth_platform.foundation.storage import read_table, table_schema
from dpsynth_platform.privacy.units import RECORD_PARTS
from dpsynth_platform.scrub.fingerprints import OWNER_COLUMN
from dpsynth_platform.synth.tabular.noise import Counts, sample_rounded_gaussian
from dpsynth_platform.synth.text.embeddings import REMEMBERED_TEXTS
from dpsynth_platform.synth.text.layout import Given, TextLayout
from dpsynth_platform.synth.text.private_text import Features, PrivateText, TextEncoder

NOBODY = -1
"""The group of records that vote for nothing."""


@dataclass(frozen=True)
class Voters:
    """The records that vote, as features. Sensitive, how many there are included.

    Attributes:
        features: shape (records, features).
        groups: of each record the group of candidates that it votes among, or `NOBODY`; shape (records,).
        owners: of each record its owner, in any numbers; None where records have several, and each vote counts in full.
    """

    features: Features = field(repr=False)
    groups: npt.NDArray[np.int64] = field(repr=False)
    owners: npt.NDArray[np.int64] | None = field(repr=False)

    def votes(self, candidates: Features, groups: Sequence[int]) -> Counts:
        """Votes for each candidate, in `RECORD_PARTS` of one vote; exact, so only noise may follow.

        A record votes for the candidate of its group with the largest cosine, the first of several; where its group
        has none, for nothing.

        Args:
            candidates: shape (candidates, features), rows of length 1.
            groups: of each candidate.
        """
        chosen = self._chosen(candidates, np.asarray(groups, dtype=np.int64))
        total = np.zeros(len(candidates), dtype=np.int64)
        for own in self._by_owner(chosen):
            for candidate, parts in scaled(own).items():
                total[candidate] += parts
        return total

    def _chosen(self, candidates: Features, groups: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """The candidate of each record, or `NOBODY`."""
        of_group = {int(group): np.flatnonzero(groups == group) for group in np.unique(groups)}
        compared = {group: np.ascontiguousarray(candidates[places]) for group, places in of_group.items()}
        chosen = np.full(len(self.groups), NOBODY, dtype=np.int64)
        for record, group in enumerate(self.groups.tolist()):
            if group in compared:
                chosen[record] = of_group[group][int((compared[group] @ self.features[record]).argmax())]
        return chosen

    def _by_owner(self, chosen: npt.NDArray[np.int64]) -> Iterator[dict[int, int]]:
        """The votes of each owner, or of each record where owners do not scale them, by candidate."""
        owners = np.arange(len(chosen)) if self.owners is None else self.owners
        votes: dict[int, dict[int, int]] = {}
        for owner, candidate in zip(owners.tolist(), chosen.tolist(), strict=True):
            if candidate != NOBODY:
                own = votes.setdefault(owner, {})
                own[candidate] = own.get(candidate, 0) + 1
        yield from votes.values()


def scaled(votes: Mapping[int, int]) -> dict[int, int]:
    """One owner's votes as a vector of L2 norm 1 at most, in `RECORD_PARTS` of one vote.

    floor(U c / |c|) for each number of votes c, with U = `RECORD_PARTS` and |c| their norm: whole numbers, computed
    without rounding up, so that the sum of their squares is U^2 at most.
    """
    squares = sum(count * count for count in votes.values())
    return {cell: math.isqrt(RECORD_PARTS**2 * count * count // squares) for cell, count in votes.items()}


def noisy_votes(voters: Voters, candidates: Features, groups: Sequence[int], sigma: float) -> Counts:
    """The histogram as it may be shown, in `RECORD_PARTS` of one vote: the mechanism of `GaussianVotesEvent`.

    Args:
        voters: sensitive.
        candidates: see `Voters.votes`.
        groups: of each candidate.
        sigma: the noise's deviation, in votes.
    """
    return sample_rounded_gaussian(voters.votes(candidates, groups), sigma * RECORD_PARTS)


def read_voters(
    bounded: Path, layout: TextLayout, groups: Mapping[Given, int], encoder: TextEncoder, *, by_owner: bool
) -> Voters:
    """The voters of a bounded table. Milliseconds for a text that was not there shortly before, and 1.5 KB a record.

    Args:
        bounded: the Delta table.
        layout: names the text column (its first field) and the conditions.
        groups: the group of each value of the conditions. A record with another one, or without a text, votes for
            nothing, whatever the others hold.
        encoder: of the texts.
        by_owner: whether records have one owner each, whose votes are scaled together.

    Raises:
        StaleInput: the table lacks a column.
    """
    owned = [OWNER_COLUMN] if by_owner else []
    conditions = [condition.column for condition in layout.conditions]
    names = [*conditions, layout.fields[0], *owned]
    missing = [name for name in names if name not in table_schema(bounded).names]
    if missing:
        raise StaleInput(f"the bounded table has no column {missing[0]!r}; materialize bounded again")
    features_of = lru_cache(maxsize=REMEMBERED_TEXTS)(lambda text: text.features(encoder))
    features: list[Features] = []
    found: list[int] = []
    owners: list[int] = []
    numbers: dict[str, int] = {}
    for batch in read_table(bounded, columns=names):
        texts = map(PrivateText, batch.column(layout.fields[0]).to_pylist())
        told = batch.select(conditions).to_pylist() if conditions else [{}] * batch.num_rows
        whose = batch.column(OWNER_COLUMN).to_pylist() if by_owner else [""] * batch.num_rows
        for text, record, owner in zip(texts, told, whose, strict=True):
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
    )
