"""Choosing among synthetic texts by clustered private votes (Yu et al. 2024; the guide, section 5.5).

What belongs here: clusters of a synthetic pool, the noisy votes of private records for them, their file, and choosing
from a larger pool by them. What does not: who writes the pool, and what votes cost (`privacy.events`).

Clusters are made of texts that a mechanism left, or that were written by what it left, which cost nothing beyond it;
only the votes look at the data. A cluster unites the votes of records that are near to any of its texts, which single
texts would split among them and lose in the noise. Of a pool that has more texts than are asked for, texts are then
taken so that clusters occur in proportion to their votes, label by label: how many texts of each label there are is not
changed.
"""

from __future__ import annotations

import json
import math
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from dpsynth_platform.foundation.errors import MechanismFailed, ResumeRefused
from dpsynth_platform.foundation.permissions import private_directory
from dpsynth_platform.foundation.storage import HeldByAnother, held_file, write_durably
from dpsynth_platform.privacy.events import GaussianVotesEvent
from dpsynth_platform.synth.tabular.noise import Counts
from dpsynth_platform.synth.text.evolution_votes import Voters, noisy_votes, read_voters
from dpsynth_platform.synth.text.layout import TextLayout
from dpsynth_platform.synth.text.private_text import Features, TextEncoder

FILE_NAME = "resampling.json"
TEXTS_PER_CLUSTER = 10
"""Synthetic texts for each cluster that is made of them."""
VOTING = "voting"
"""Within a model directory, where whoever votes keeps others out."""
_LOCK, _ONE_GROUP = "held", 0

Key = TypeVar("Key")


@dataclass(frozen=True)
class Resampling:
    """How a pool is clustered and chosen from. Public; part of the sealed plan.

    Attributes:
        clusters: how many there are.
        sigma: the noise of each cluster's votes, in votes.
        pool: how many texts are written for each one that is taken.
    """

    clusters: int
    sigma: float
    pool: float

    @property
    def texts(self) -> int:
        """How many synthetic texts the clusters are made of, where as many as one likes can be written."""
        return TEXTS_PER_CLUSTER * self.clusters

    def event(self, adjacency: str, max_contributions: int) -> GaussianVotesEvent:
        """What the votes cost."""
        return GaussianVotesEvent(self.sigma, adjacency, max_contributions)

    def pools(self, counts: Mapping[Key, int]) -> dict[Key, int]:
        """How many texts are written of each label, of which so many are taken."""
        return {label: self.texts_for(number) for label, number in counts.items()}

    def texts_for(self, number: int) -> int:
        """How many texts are written where so many are taken."""
        return math.ceil(self.pool * number)

    def taken_of(self, texts: int) -> int:
        """How many can be taken where so many texts are written: the most for which `texts_for` asks no more."""
        number = math.floor(texts / self.pool)
        return number + (self.texts_for(number + 1) <= texts)

    @property
    def share_in_words(self) -> str:
        """What part of the texts is taken."""
        return "every one" if self.pool == 1 else f"one in {self.pool:g}"

    @property
    def choice_in_words(self) -> str:
        """What is done with texts that can be written as one likes, for readers who are no experts."""
        return (
            f"Then each record votes for one of up to {self.clusters} clusters of {self.texts} such texts, noise of "
            f"{self.sigma:.3g} votes is added for every cluster, and by these votes {self.share_in_words} of the texts "
            "that are written is taken"
        )

    def in_words(self, of: str) -> str:
        """The votes, for the description of an event.

        Args:
            of: whose the clusters are.
        """
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
        """The cluster of each synthetic text, by its features; shape (texts,)."""
        found: npt.NDArray[np.int64] = (features @ self.centers.T).argmax(axis=1)
        return found

    def take(self, features: Features, number: int, random: np.random.Generator) -> list[int]:
        """Which of some synthetic texts are taken, each at most once, in the order of the pool.

        A text weighs as much as its cluster has votes, shared among the pool's texts of that cluster; negative votes
        weigh nothing, and texts without weight are taken only where there are too few others (Efraimidis & Spirakis
        2006: the largest of u^(1 / weight)).

        Args:
            features: of the pool's texts, shape (texts, features).
            number: how many are taken, at most as many as there are.
            random: which hangs on no data.
        """
        own = self.nearest(features)
        sizes = np.bincount(own, minlength=len(self.centers))
        weights = np.maximum(self.votes[own], 0) / sizes[own]
        uniform = random.random(len(own))
        with np.errstate(divide="ignore"):
            keys = np.where(weights > 0, np.log(uniform) / np.maximum(weights, 1e-300), -np.inf)
        order = np.lexsort((uniform, keys))[::-1]
        return sorted(order[:number].tolist())


def vote(plan: Resampling, texts: Sequence[str], voters: Voters, encoder: TextEncoder) -> ClusterVotes:
    """The mechanism: clusters of synthetic texts, and the noisy votes of records for them, whatever their labels are.

    Args:
        plan: clusters and noise.
        texts: synthetic ones; where there are fewer than clusters, each is one.
        voters: the records.
        encoder: of the texts; the one that features of the records are of.

    Raises:
        MechanismFailed: there is no synthetic text.
    """
    if not texts:
        raise MechanismFailed("no synthetic text was written that records could vote for")
    centers = clustered(encoder.encode(texts), plan.clusters)
    together = replace(voters, groups=np.full_like(voters.groups, _ONE_GROUP))
    return ClusterVotes(centers, noisy_votes(together, centers, [_ONE_GROUP] * len(centers), plan.sigma))


def all_voters(bounded: Path, layout: TextLayout, encoder: TextEncoder, *, by_owner: bool) -> Voters:
    """All records of a bounded table that have a text, whatever else they say; arguments as of `read_voters`."""
    alone = TextLayout(fields=layout.fields[:1])
    return read_voters(bounded, alone, {(): _ONE_GROUP}, encoder, by_owner=by_owner)


def vote_once(directory: Path, alone: Path, count: Callable[[], ClusterVotes]) -> None:
    """Has a vote counted and written, unless there is one; by one process at a time.

    What a crash left of a vote before its file had its name was seen by nobody, and is gone before the next one.

    Args:
        directory: of the model.
        alone: a directory for the lock; gone afterwards.
        count: the vote.

    Raises:
        ResumeRefused: another process is at it.
    """
    try:
        with held_file(private_directory(alone) / _LOCK):
            if not has_votes(directory):
                for unfinished in directory.glob(f".{FILE_NAME}.*"):
                    unfinished.unlink()
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


def taken(
    votes: ClusterVotes, texts: Mapping[Key, Sequence[str]], counts: Mapping[Key, int], encoder: TextEncoder
) -> dict[Key, list[str]]:
    """So many texts of each label, out of larger pools, by votes: post-processing.

    Args:
        votes: for the clusters.
        texts: the pools, by label.
        counts: how many of each are taken, or as many as there are.
        encoder: of the texts; the one that votes were counted by.
    """
    random = np.random.default_rng()
    return {
        label: [own[at] for at in votes.take(encoder.encode(own), counts[label], random)] if own else []
        for label, own in texts.items()
    }


def write_votes(directory: Path, votes: ClusterVotes) -> None:
    """Keeps the votes in a model directory: on disk before anything follows from them."""
    document: dict[str, Any] = {"centers": votes.centers.tolist(), "votes": votes.votes.tolist()}
    write_durably(directory / FILE_NAME, json.dumps(document))


def has_votes(directory: Path) -> bool:
    """Whether a model directory holds votes."""
    return (directory / FILE_NAME).is_file()


def read_votes(directory: Path) -> ClusterVotes:
    """Reads `write_votes` back. Raises `MechanismFailed` if there are none, or they are damaged."""
    try:
        document = json.loads((directory / FILE_NAME).read_text(encoding="utf-8"))
        centers = np.array(document["centers"], dtype=np.float32)
        votes = np.array(document["votes"], dtype=np.int64)
    except (OSError, ValueError, KeyError, TypeError):
        raise MechanismFailed("the votes by which texts are chosen are missing or damaged") from None
    if centers.ndim != 2 or votes.shape != centers.shape[:1]:
        raise MechanismFailed("the votes by which texts are chosen are missing or damaged")
    return ClusterVotes(centers, votes)
