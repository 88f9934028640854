"""Choosing among synthetic texts by noisy results of private records, such as clustered votes.

What belongs here: what every such choice has, its file, and the choice by votes (Yu et al. 2024; the guide, section
5.5): clusters of a synthetic pool, the noisy votes of private records for them, and choosing from a larger pool by
them. What does not: the choice by labels (`labelling`), who writes the pool, and what votes cost (`privacy.events`).

Clusters consist of texts that are the result of a mechanism or follow from it, at no further cost; only the votes read
the data. A cluster joins the votes of records near to any of its texts; votes for single texts would be split, and
smaller than the noise. Texts are taken from a larger pool so that clusters occur in proportion to their votes, label by
label: the number of texts of each label does not change.
"""

from __future__ import annotations

import json
import math
import os
import shutil
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Protocol, Self

import numpy as np
import numpy.typing as npt

from dpsynth_platform.foundation.errors import MechanismFailed, ResumeRefused
from dpsynth_platform.foundation.permissions import private_directory
from dpsynth_platform.foundation.storage import HeldByAnother, held_file, remove_unfinished, write_durably
from dpsynth_platform.privacy.events import GaussianSumsEvent, GaussianVotesEvent
from dpsynth_platform.synth.conditions import Given
from dpsynth_platform.synth.evolution.votes import noisy_votes
from dpsynth_platform.synth.tabular.noise import Counts
from dpsynth_platform.synth.text.evolution_votes import Voters, read_voters
from dpsynth_platform.synth.text.layout import TextLayout
from dpsynth_platform.synth.text.private_text import Features, TextEncoder

FILE_NAME = "resampling.json"
TEXTS_PER_CLUSTER = 10
"""Synthetic texts for each cluster."""
VOTING = "voting"
"""Within a model directory: holds the lock of the voting process."""
_LOCK, _ONE_GROUP = "held", 0

Texts = dict[Given, list[str]]
"""Texts by what they are written for."""


class NoisyResult(Protocol):
    """What records say about texts, with noise: differentially private."""

    def to_json(self) -> dict[str, Any]: ...

    def taken(self, texts: Mapping[Given, Sequence[str]], counts: Mapping[Given, int], encoder: TextEncoder) -> Texts:
        """At most so many texts of each label from larger pools: post-processing.

        Args:
            texts: the pools, by label.
            counts: how many of each are taken.
            encoder: the one that the records' features are of.
        """


class Choice(ABC):
    """A choice from a pool of texts by a noisy result. Public; part of the sealed plan.

    Attributes:
        chosen_by: the kind of noisy result, in words.
        sigma: the noise.
        pool: the number of texts that are written for each one that is taken.
    """

    chosen_by: ClassVar[str]
    sigma: float
    pool: float

    @property
    @abstractmethod
    def texts(self) -> int:
        """How many texts the mechanism needs, where their number is free."""

    @abstractmethod
    def event(self, adjacency: str, max_contributions: int) -> GaussianVotesEvent | GaussianSumsEvent:
        """The cost of the noisy result."""

    @abstractmethod
    def voters(self, bounded: Path, layout: TextLayout, encoder: TextEncoder, *, by_owner: bool) -> Voters:
        """The records of a bounded table that the noisy result is of; arguments as for `read_voters`."""

    def among(self, voters: Voters, groups: Sequence[Given], layout: TextLayout) -> Voters:
        """Voters that were read for other votes, as those of this choice.

        Args:
            groups: what the candidates of each group were written for.
        """
        return voters

    @abstractmethod
    def measured(self, texts: Callable[[], Sequence[str]], voters: Voters, encoder: TextEncoder) -> NoisyResult:
        """The mechanism.

        Args:
            texts: writes the synthetic texts that it needs (`texts`).
            voters: of `voters`.
            encoder: the one of their features.
        """

    @abstractmethod
    def read(self, document: Mapping[str, Any], layout: TextLayout) -> NoisyResult:
        """Reads `NoisyResult.to_json` back. Raises `ValueError`, `LookupError` or `TypeError` if it is damaged."""

    @property
    @abstractmethod
    def choice_in_words(self) -> str:
        """The choice among any number of texts, for readers who are no experts."""

    @abstractmethod
    def in_words(self, of: str) -> str:
        """The noisy result, for the description of an event; `of` are the texts that it may need."""

    def pools(self, counts: Mapping[Given, int]) -> dict[Given, int]:
        """How many texts are written of each label, so that `counts` of them are taken."""
        return {label: self.texts_for(number) for label, number in counts.items()}

    def texts_for(self, number: int) -> int:
        """How many texts are written so that `number` of them are taken."""
        return math.ceil(self.pool * number)

    def taken_of(self, texts: int) -> int:
        """The most texts that can be taken of so many: the inverse of `texts_for`."""
        number = math.floor(texts / self.pool)
        return number + (self.texts_for(number + 1) <= texts)

    @property
    def share_in_words(self) -> str:
        return "every one" if self.pool == 1 else f"one in {self.pool:g}"


@dataclass(frozen=True)
class Resampling(Choice):
    """The clustering of a pool, and the choice from it by votes.

    Attributes:
        sigma: the noise of each cluster's votes, in votes.
    """

    chosen_by = "votes"

    clusters: int
    sigma: float
    pool: float

    @property
    def texts(self) -> int:
        return TEXTS_PER_CLUSTER * self.clusters

    def event(self, adjacency: str, max_contributions: int) -> GaussianVotesEvent:
        return GaussianVotesEvent(self.sigma, adjacency, max_contributions)

    def voters(self, bounded: Path, layout: TextLayout, encoder: TextEncoder, *, by_owner: bool) -> Voters:
        """All records with a text, in one group."""
        alone = TextLayout(fields=layout.fields[:1])
        return read_voters(bounded, alone, {(): _ONE_GROUP}, encoder, by_owner=by_owner)

    def measured(self, texts: Callable[[], Sequence[str]], voters: Voters, encoder: TextEncoder) -> ClusterVotes:
        """Clusters of synthetic texts, and the noisy votes of records of all labels for them.

        If there are fewer texts than clusters, each is a cluster.

        Raises:
            MechanismFailed: there is no synthetic text.
        """
        written = texts()
        if not written:
            raise MechanismFailed("no synthetic text was written that records could vote for")
        centers = clustered(encoder.encode(written), self.clusters)
        together = replace(voters, groups=np.full_like(voters.groups, _ONE_GROUP), nearest=1)
        return ClusterVotes(centers, noisy_votes(together, centers, [_ONE_GROUP] * len(centers), self.sigma))

    def read(self, document: Mapping[str, Any], layout: TextLayout) -> ClusterVotes:
        return ClusterVotes.from_json(document)

    @property
    def choice_in_words(self) -> str:
        return (
            f"Then each record votes for one of up to {self.clusters} clusters of {self.texts} such texts, noise of "
            f"{self.sigma:.3g} votes is added for every cluster, and by these votes {self.share_in_words} of the texts "
            "that are written is taken"
        )

    def in_words(self, of: str) -> str:
        return f"a histogram of votes for up to {self.clusters} clusters of {of}, with noise of {self.sigma:.3g} votes"


@dataclass(frozen=True)
class ClusterVotes:
    """Clusters with their noisy votes: differentially private.

    Attributes:
        centers: shape (clusters, features), each of length 1.
        votes: noisy, in `RECORD_PARTS` of one vote; shape (clusters,).
    """

    centers: Features
    votes: Counts

    def nearest(self, features: Features) -> npt.NDArray[np.int64]:
        """The cluster of each synthetic text; shape (texts,)."""
        found: npt.NDArray[np.int64] = (features @ self.centers.T).argmax(axis=1)
        return found

    def take(self, features: Features, number: int, random: np.random.Generator) -> list[int]:
        """The positions of the texts that are taken, each at most once, in the order of the pool.

        A text's weight is its cluster's votes, divided by the pool's texts of that cluster; negative votes weigh
        nothing, and texts without weight are taken only if there are too few others (Efraimidis & Spirakis 2006: the
        largest of u^(1 / weight)).

        Args:
            features: of the pool's texts, shape (texts, features).
            number: how many are taken, or as many as there are.
            random: independent of the data.
        """
        own = self.nearest(features)
        sizes = np.bincount(own, minlength=len(self.centers))
        weights = np.maximum(self.votes[own], 0) / sizes[own]
        uniform = random.random(len(own))
        with np.errstate(divide="ignore"):
            keys = np.where(weights > 0, np.log(uniform) / np.maximum(weights, 1e-300), -np.inf)
        order = np.lexsort((uniform, keys))[::-1]
        return sorted(order[:number].tolist())

    def taken(self, texts: Mapping[Given, Sequence[str]], counts: Mapping[Given, int], encoder: TextEncoder) -> Texts:
        random = np.random.default_rng()
        return {
            label: [own[at] for at in self.take(encoder.encode(own), counts[label], random)] if own else []
            for label, own in texts.items()
        }

    def to_json(self) -> dict[str, Any]:
        return {"centers": self.centers.tolist(), "votes": self.votes.tolist()}

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Self:
        centers = np.array(document["centers"], dtype=np.float32)
        votes = np.array(document["votes"], dtype=np.int64)
        if centers.ndim != 2 or votes.shape != centers.shape[:1]:
            raise ValueError
        return cls(centers, votes)


def vote_once(directory: Path, alone: Path, count: Callable[[], NoisyResult]) -> None:
    """Counts and writes the votes, unless they exist; one process at a time.

    Nothing has used the unfinished file of a crashed vote, which is deleted first.

    Args:
        alone: a directory for the lock; deleted afterwards.

    Raises:
        ResumeRefused: another process is voting.
    """
    try:
        with held_file(private_directory(alone) / _LOCK):
            if not has_votes(directory):
                remove_unfinished(directory / FILE_NAME)
                write_votes(directory, count())
            shutil.rmtree(alone)
    except HeldByAnother:
        raise ResumeRefused("another process is at work on this model; wait for its end, or end it") from None


def clustered(features: Features, clusters: int) -> Features:
    """Centers of k-means clusters of synthetic texts, each of length 1; shape (clusters or fewer, features)."""
    from sklearn.cluster import KMeans

    number = min(clusters, len(np.unique(features, axis=0)))
    seed = int.from_bytes(os.urandom(4), "little")
    centers = KMeans(n_clusters=number, n_init=1, random_state=seed).fit(features).cluster_centers_
    lengths = np.linalg.norm(centers, axis=1, keepdims=True)
    found: Features = (centers / np.maximum(lengths, 1e-12)).astype(np.float32)
    return found


def write_votes(directory: Path, votes: NoisyResult) -> None:
    """Writes a noisy result to a model directory durably, before anything follows from it."""
    write_durably(directory / FILE_NAME, json.dumps(votes.to_json()))


def has_votes(directory: Path) -> bool:
    """Whether a model directory has a noisy result."""
    return (directory / FILE_NAME).is_file()


def read_votes(directory: Path, plan: Choice, layout: TextLayout) -> NoisyResult:
    """Reads `write_votes` back. Raises `MechanismFailed` if there are none, or they are damaged."""
    try:
        return plan.read(json.loads((directory / FILE_NAME).read_text(encoding="utf-8")), layout)
    except (OSError, ValueError, LookupError, TypeError):
        raise MechanismFailed("the votes or sums by which texts are chosen are missing or damaged") from None
