"""Choosing the texts of each label by noisy sums of sentence features, as a private classifier.

What belongs here: the exact sums of private records, what one owner adds to them, the classifier that follows from them
with noise, and which text of a pool gets which label. What does not: the file of the sums and the pool (`resampling`),
and what they cost (`privacy.events.GaussianSumsEvent`).

A language model that learned little writes texts that do not fit their labels. Here each label's records add up their
sentence features, once, with noise. The noisy means and the covariance of synthetic texts give a linear discriminant,
and each text of a pool gets the label that suits it best, however it was prompted: as many texts of each label as are
requested, so that a bias of all texts towards one label has no effect. All of that is post-processing.

**The bound.** A record's vector, its features and a constant that counts it, is computed from that record alone, in
whole numbers, and shortened to the length `UNIT` at most. The vectors of one owner, label by label, are shortened to
that length as one; where records have several owners, each record's is (`units.vector_sensitivity`). Sums are of whole
numbers, hence exact in any order.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from dpsynth_platform.privacy.events import GaussianSumsEvent
from dpsynth_platform.privacy.units import RECORD_PARTS as UNIT
from dpsynth_platform.synth.conditions import Condition, Given
from dpsynth_platform.synth.evolution.votes import NOBODY
from dpsynth_platform.synth.tabular.noise import Counts, sample_rounded_gaussian
from dpsynth_platform.synth.text.evolution_votes import Voters, read_voters
from dpsynth_platform.synth.text.layout import TextLayout
from dpsynth_platform.synth.text.private_text import Features, TextEncoder
from dpsynth_platform.synth.text.resampling import Choice, Texts

FEATURES_PART, COUNT_PART = 0.95, 0.3
"""Of a record's vector of length 1: 0.95^2 + 0.3^2 is below 1."""
MOST_IN_64_BITS = 2**14
"""Records of one owner whose summed squares stay below 2^63: (2^14 UNIT)^2 is 2^60."""
LEAST_COUNT = 5.0
"""Deviations of the noise below which a label's noisy count is not trusted."""
SHRINKAGE = 0.2
"""Of the covariance of synthetic texts, towards that of independent features with the same variance (Friedman 1989)."""
LEAST_SIGNAL = 1e-3
"""The least part of a feature's variance that the labels are assumed to explain."""
_ROUNDS, _TEMPERATURE = 100, 0.1
"""Of balancing labels; the temperature is a part of the scores' deviation."""

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class LabelChoice(Choice):
    """The choice of texts of each label. Public; part of the sealed plan.

    Attributes:
        label: the conditioning column with its values.
        sigma: the noise of each entry of the sums, in lengths of an owner's vector.
    """

    chosen_by = "sums of features"

    label: Condition
    sigma: float
    pool: float

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> LabelChoice:
        label = document["label"]
        return cls(**{**document, "label": Condition(label["column"], tuple(label["values"]))})

    @property
    def texts(self) -> int:
        return 0

    def event(self, adjacency: str, max_contributions: int) -> GaussianSumsEvent:
        return GaussianSumsEvent(self.sigma, adjacency, max_contributions)

    def voters(self, bounded: Path, layout: TextLayout, encoder: TextEncoder, *, by_owner: bool) -> Voters:
        """All records with a text and a declared label; their groups are the labels."""
        alone = TextLayout(fields=layout.fields[:1], conditions=(self.label,))
        groups: dict[Given, int] = {(value,): number for number, value in enumerate(self.label.values)}
        return read_voters(bounded, alone, groups, encoder, by_owner=by_owner)

    def among(self, voters: Voters, groups: Sequence[Given], layout: TextLayout) -> Voters:
        place = layout.conditions.index(self.label)
        labels = np.array([self.label.values.index(given[place]) for given in groups], dtype=np.int64)
        kept = voters.groups != NOBODY
        owners = None if voters.owners is None else voters.owners[kept]
        return Voters(voters.features[kept], labels[voters.groups[kept]], owners)

    def measured(self, texts: Callable[[], Sequence[str]], voters: Voters, encoder: TextEncoder) -> LabelSums:
        """Noisy sums of the records' features by label. No synthetic text is needed."""
        sums = exact_sums(voters, len(self.label.values), encoder.encode(["a"]).shape[1])
        return LabelSums(sample_rounded_gaussian(sums, self.sigma * UNIT), self.sigma)

    def read(self, document: Mapping[str, Any], layout: TextLayout) -> LabelSums:
        sums = np.array(document["sums"], dtype=np.int64)
        if sums.ndim != 2 or len(sums) != len(self.label.values):
            raise ValueError
        return LabelSums(sums, self.sigma, layout.conditions.index(self.label), self.label.values)

    @property
    def choice_in_words(self) -> str:
        return (
            f"Then sentence features of the records are added up for each {self.label.column}, as vectors of which one "
            f"owner's (or, where records have several owners, one record's) have the length 1 at most, and noise of "
            f"{self.sigma:.3g} in every direction is added. By these sums {self.share_in_words} of the texts that are "
            f"written is taken, for the {self.label.column} that suits it best"
        )

    def in_words(self, of: str) -> str:
        return f"sums of sentence features for each {self.label.column}, with noise of {self.sigma:.3g}"


@dataclass(frozen=True)
class LabelSums:
    """Sums of sentence features by label: differentially private.

    Attributes:
        sums: noisy, in 1 / `UNIT`: features, then the number of records; shape (labels, features + 1).
        sigma: the deviation of the noise, in lengths of an owner's vector.
        place: of the label among what a text is written for.
        labels: the label's values.
    """

    sums: Counts
    sigma: float
    place: int = 0
    labels: tuple[str | None, ...] = ()

    def to_json(self) -> dict[str, Any]:
        return {"sums": self.sums.tolist()}

    def discriminant(self, features: Features) -> Floats:
        """The direction of each label in a linear discriminant; shape (labels, features).

        Differences of means are filtered by their noise: they are taken as normal with a covariance like that of the
        texts, so that their posterior mean adds the noise, over their share of the variance, to the covariance.

        Args:
            features: of synthetic texts, shape (texts, features), which give the covariance.
        """
        totals, counts = self.sums[:, :-1] / (UNIT * FEATURES_PART), self.sums[:, -1] / (UNIT * COUNT_PART)
        counts = np.maximum(counts, LEAST_COUNT * self.sigma / COUNT_PART)
        noise = (self.sigma / FEATURES_PART / counts) ** 2
        differences = totals / counts[:, None] - totals.sum(axis=0) / counts.sum()
        size = totals.shape[1]
        centred = features - features.mean(axis=0)
        covariance = (centred.T @ centred / len(centred)).astype(np.float64)
        total = max(float(np.trace(covariance)), 1e-12)
        signal = np.maximum((differences**2).sum(axis=1) / total - size * noise / total, LEAST_SIGNAL)
        flat = SHRINKAGE * total / size + noise / signal
        return np.stack(
            [
                np.linalg.solve((1 - SHRINKAGE) * covariance + ridge * np.eye(size), difference)
                for ridge, difference in zip(flat, differences, strict=True)
            ]
        )

    def taken(self, texts: Mapping[Given, Sequence[str]], counts: Mapping[Given, int], encoder: TextEncoder) -> Texts:
        """Texts that were written for the same other columns get the labels that suit them best."""
        written = [(given, text) for given, own in texts.items() for text in own]
        found: Texts = {given: [] for given in counts}
        if not written:
            return found
        features = encoder.encode([text for _, text in written])
        scores = features @ self.discriminant(features).T
        alike: dict[Given, list[int]] = defaultdict(list)
        for number, (given, _) in enumerate(written):
            alike[self._others(given)].append(number)
        for others, numbers in alike.items():
            labels = {given: given[self.place] for given in counts if self._others(given) == others}
            columns = [self.labels.index(label) for label in labels.values()]
            wanted = list(_at_most(len(numbers), {given: counts[given] for given in labels}).values())
            for place, number in zip(assigned(scores[np.ix_(numbers, columns)], wanted), numbers, strict=True):
                if place is not None:
                    found[list(labels)[place]].append(written[number][1])
        return found

    def _others(self, given: Given) -> Given:
        return given[: self.place] + given[self.place + 1 :]


def exact_sums(voters: Voters, labels: int, features: int) -> Counts:
    """Exact sums of the records' vectors by label, in 1 / `UNIT`; the caller must add noise.

    Returns:
        Shape (labels, features + 1).
    """
    total = np.zeros((labels, features + 1), dtype=np.int64)
    for records in _of_owners(voters):
        of_owner, places = np.unique(voters.groups[records], return_inverse=True)
        own = np.zeros((len(of_owner), features + 1), dtype=np.int64)
        for record, place in zip(records, places.tolist(), strict=True):
            own[place] += vector(voters.features[record])
        total[of_owner] += shortened(own, many=len(records) > MOST_IN_64_BITS)
    return total


def vector(features: Features) -> Counts:
    """One record's features and its constant, in whole numbers, of the length `UNIT` at most."""
    within = np.clip(np.nan_to_num(features.astype(np.float64)), -1, 1)
    return shortened(
        np.append(np.trunc(within * (FEATURES_PART * UNIT)), math.floor(COUNT_PART * UNIT)).astype(np.int64)
    )


def shortened(whole: Counts, *, many: bool = False) -> Counts:
    """A vector, or a matrix as one vector, of the length `UNIT` at most: the same if it is no longer, else cut to it.

    Entries become U |v| / ceil(length), rounded down, with the sign of v: so their squares add up to U^2 at most.

    Args:
        many: whether sums of squares may exceed 64 bits.
    """
    flat = whole.ravel()
    squares = sum(entry * entry for entry in flat.tolist()) if many else int(flat @ flat)
    if squares <= UNIT**2:
        return whole
    length = math.isqrt(squares - 1) + 1
    cut: Counts = np.sign(whole) * (np.abs(whole) * UNIT // length)
    return cut


def _of_owners(voters: Voters) -> Iterator[list[int]]:
    """The records that are shortened together: those of one owner, or where records have several, each by itself."""
    if voters.owners is None:
        yield from ([record] for record in range(len(voters.groups)))
        return
    order = np.argsort(voters.owners, kind="stable")
    ends = np.flatnonzero(np.diff(voters.owners[order])) + 1
    yield from (part.tolist() for part in np.split(order, ends) if len(part))


def _at_most(texts: int, counts: Mapping[Given, int]) -> dict[Given, int]:
    """The counts, or fewer in proportion if there are not so many texts."""
    from dpsynth_platform.synth.text.sampling import apportioned

    return dict(counts) if sum(counts.values()) <= texts else apportioned(texts, counts)


def assigned(scores: Floats, wanted: Sequence[int]) -> list[int | None]:
    """The column that each row gets, or None: as many rows of each as are wanted, those that suit it best first.

    Columns are balanced before, so that each is the best one of about the wanted share of rows.

    Args:
        scores: shape (rows, columns); only differences within a row and within a column matter.
        wanted: rows of each column; as many as there are rows, at most.
    """
    found: list[int | None] = [None] * len(scores)
    left = np.array(wanted, dtype=np.int64)
    asked = np.flatnonzero(left)
    if len(asked) == 0:
        return found
    own = _balanced(scores[:, asked] - scores[:, asked].mean(axis=0), left[asked] / left.sum())
    best = np.sort(own, axis=1)
    second = best[:, -2:-1] if len(asked) > 1 else np.zeros((len(own), 1))
    margins = own - np.where(own == best[:, -1:], second, best[:, -1:])
    for at in np.argsort(-margins, axis=None, kind="stable").tolist():
        row, column = divmod(at, len(asked))
        if found[row] is None and left[asked[column]] > 0:
            found[row] = int(asked[column])
            left[asked[column]] -= 1
    return found


def _balanced(scores: Floats, shares: Floats) -> Floats:
    """Scores with an offset for each column, such that rows choose the columns in about these shares."""
    temperature = _TEMPERATURE * float(scores.std()) + 1e-12
    offsets = np.zeros(scores.shape[1])
    for _ in range(_ROUNDS):
        weights = (scores + offsets) / temperature
        weights = np.exp(weights - weights.max(axis=1, keepdims=True))
        weights /= weights.sum(axis=1, keepdims=True)
        offsets += temperature * np.log(shares / np.maximum(weights.mean(axis=0), 1e-12))
    return scores + offsets
