"""Federated private evolution: what plans of votes of several participants have in common, and rounds of votes.

What belongs here: what the sum of votes of each round costs, a round's candidates as a document, and the rounds at the
coordinator. What does not: candidates of one kind (`text_evolution`, `picture_evolution`); a record's choice, the
scaling of a unit's votes and the next candidates, which are the central methods' (`synth.evolution`); and the other
columns, which are counted first (`columns_first`).

**Rounds.** The coordinator has what makes candidates: a model, its endpoint, public material. A round's document has
the features of each candidate and the label that it was made for; each participant sums its own records' votes
for them. The coordinator keeps the noisy sum, and makes the next candidates of it, as `synth.evolution.loop` does. No
participant needs what makes candidates: only the encoder, of which the plan has the digest. Features are sent, and
not texts or pictures: nothing that a server makes up has to be read, a candidate may stand for the mean of its
variations (`lookahead`), all participants compare with the same numbers, and the length is known in advance.

**Sensitivity**, by unit. In each participant's rows, all records of a unit vote, each for the `nearest` candidates of
its label, and the unit's numbers of votes c are scaled together: floor(P c / |c|) in whole `parts` P of a vote
(`synth.evolution.votes.scaled`), so that their squares add up to P^2 at most. A participant's vector is the sum over
its units; clipping an entry to the bound moves it no further. A unit in at most k participants moves the sum by
at most k P in L2, and sqrt(length) k P in L1:

    add-or-remove, zero-out   |sum of k vectors|_2                    <= k P
    replace-one               |sum of k differences of two vectors|_2 <= 2 k P

Votes are not negative, so that a difference of two vectors has length sqrt(2) P only. `SkellamSumsEvent` is for
vectors of any direction: under `replace-one` the plan pays for more than a unit does. Under `fixed-graph` no unit has
records of its own, and it is refused there.

**Whatever the document says.** Nothing above depends on candidates or labels: a record votes for at most `nearest`
of them, and a unit's votes have length 1, whatever they are for. A document is refused before a record is read if it
has more candidates than the plan, labels that are not declared, or features that are no vectors of length 1 at most.

**Scale.** A unit with one record, or whose votes are for one candidate, loses nothing by rounding, and others below one
of `PARTS` parts in each entry. The noise has many parts, so that Skellam noise costs what Gaussian noise does.
"""

from __future__ import annotations

import base64
import json
import math
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import pyarrow as pa

from dpsynth_platform.federation.columns_first import ColumnsFirst
from dpsynth_platform.federation.plans import Measuring, Round, Terms, least_noise
from dpsynth_platform.federation.sums import SumPlan, Whole
from dpsynth_platform.foundation.digests import canonical_digest
from dpsynth_platform.foundation.errors import AccountingError, MechanismFailed
from dpsynth_platform.foundation.progress import Progress, silent
from dpsynth_platform.privacy.events import DpEvent
from dpsynth_platform.privacy.guarantee import Guarantee
from dpsynth_platform.privacy.units import RECORD_PARTS
from dpsynth_platform.synth import counted
from dpsynth_platform.synth.conditions import Condition, Given
from dpsynth_platform.synth.evolution.journal import EvolutionJournal
from dpsynth_platform.synth.evolution.loop import Ballot, Features, Rounds, Survivors
from dpsynth_platform.synth.evolution.votes import VotingRecords

PARTS = 2**10
"""Parts of a vote, of which vectors have whole numbers; a divisor of `RECORD_PARTS`."""
COLUMNS = "columns"
"""Within a model directory, as of the central methods."""
MOST_ROUNDS, MOST_VARIATIONS, MOST_POPULATION = 100, 50, 100_000
"""As in a contract."""
_LONGEST = 1.0001
"""Of a candidate's features: 1, and what rounding adds. Products with whole features of pictures remain exact."""
_FLOAT = np.dtype("<f4")


@dataclass(frozen=True)
class VoteTerms(Terms):
    """The parameters of sums of votes. A cell's count is here the votes for a candidate.

    Attributes:
        parts: units of a vote.
        encoder: digest of the encoder, whose features all candidates and records have.
        why_public: of a public table whose rows are candidates; None without one.
    """

    parts: int
    encoder: str
    why_public: str | None = None

    def votes(self, index: int, candidates: int, adjacency: str) -> SumPlan:
        """The sum of a round."""
        return self._sum(index, candidates, adjacency, self.parts, norm=1)

    def rounds_of(self, rounds: int, candidates: int, adjacency: str) -> tuple[SumPlan, ...]:
        """The sums of all rounds. Raises `ValueError` for too many, or shares of noise of another number."""
        if len(self.share_variances) != rounds or rounds > MOST_ROUNDS:
            raise ValueError(f"{len(self.share_variances)} shares of noise in {rounds} rounds")
        return tuple(self.votes(index, candidates, adjacency) for index in range(rounds))

    def noise_of(self, share_variance: float) -> float:
        """The deviation of the noise of all participants, in votes."""
        return math.sqrt(self.noisy * share_variance) / self.parts


def with_least_noise(
    bare: VoteTerms, columns: counted.Columns, rounds: int, candidates: int, start: float, guarantee: Guarantee
) -> tuple[VoteTerms, DpEvent]:
    """The terms with the least noise that meets the guarantee, and the event with that of the columns.

    Args:
        bare: terms without noise.
        candidates: of a round, at most.
        start: see `least_noise`; in votes, of the shares that count.

    Raises:
        AccountingError: a value is impossible, or no noise meets the guarantee.
    """

    def terms_with(sigma: float) -> tuple[VoteTerms, DpEvent]:
        terms = replace(bare, share_variances=[bare.share_of((sigma * bare.parts) ** 2)] * rounds)
        sums = terms.rounds_of(rounds, candidates, guarantee.adjacency)
        return terms, counted.together(columns, *(each.event for each in sums))

    return least_noise(terms_with, start, guarantee)


@dataclass(frozen=True)
class VoteRound:
    """What is summed in one round. Public.

    Attributes:
        labels: the conditions' values of each group of candidates.
        groups: of each candidate.
        features: of each candidate, shape (candidates, features).
        digest: of plan, index, labels, groups and features.
    """

    index: int
    labels: tuple[Given, ...]
    groups: tuple[int, ...]
    sum: SumPlan
    digest: str
    features: Features = field(compare=False, repr=False)
    plan: EvolutionPlan = field(compare=False, repr=False)

    def to_json(self) -> dict[str, Any]:
        """The arguments of `EvolutionPlan.round`."""
        labels = [list(label) for label in self.labels]
        return {"index": self.index, "labels": labels, "groups": list(self.groups), "features": coded(self.features)}

    def units(self, bounded: Path | pa.Table) -> Whole:
        voters = self.plan.voters(bounded, self.labels)
        return voters.votes(self.features, self.groups, self.sum.scale)


class Evolving(Protocol):
    """An evolution at the coordinator, once the columns are counted.

    Attributes:
        labels: the conditions' values of each group of candidates.
    """

    @property
    def labels(self) -> Sequence[Given]: ...

    def evolve(self, ballot: Ballot) -> Survivors[Any]:
        """Runs all rounds, of which those in the journal have votes; see `synth.evolution.loop.evolve`."""
        ...

    def finish(self, survivors: Survivors[Any]) -> None:
        """Completes the model directory."""
        ...


@dataclass(frozen=True)
class EvolutionPlan(ColumnsFirst):
    """A sealed plan of rounds of votes."""

    @property
    @abstractmethod
    def terms(self) -> VoteTerms: ...

    @property
    @abstractmethod
    def votes(self) -> Rounds:
        """The rounds of votes."""

    @property
    @abstractmethod
    def conditions(self) -> Sequence[Condition]:
        """The columns by which records vote for candidates of their own label."""

    @property
    @abstractmethod
    def most_labels(self) -> int:
        """Of a round."""

    @property
    @abstractmethod
    def most_candidates(self) -> int:
        """Of a round."""

    @property
    @abstractmethod
    def features(self) -> int:
        """Of each candidate, as the encoder of this program has them."""

    @abstractmethod
    def read_voters(self, bounded: Path | pa.Table, labels: tuple[Given, ...]) -> VotingRecords:
        """A participant's records, by the number of their label among these. Sensitive."""

    @abstractmethod
    def place(self, directory: Path) -> Path:
        """The directory of the journal, within a new model directory, which it prepares."""

    @abstractmethod
    def evolving(self, directory: Path, journal: EvolutionJournal, progress: Progress) -> Evolving:
        """Fits the columns, and says how the evolution runs. Raises `ConfigurationError`."""

    @property
    def own_rounds(self) -> tuple[tuple[str, int], ...]:
        return (("votes", 1),) * self.votes.rounds

    @cached_property
    def own_sums(self) -> tuple[SumPlan, ...]:
        return self.terms.rounds_of(self.votes.rounds, self.most_candidates, self.guarantee.adjacency)

    @property
    def own_document_bytes(self) -> int:
        values = (max(len(json.dumps(value)) for value in (*part.values, None)) for part in self.conditions)
        label = 4 + sum(length + 2 for length in values)
        groups = self.most_candidates * (len(str(self.most_labels)) + 2)
        return 200 + self.most_labels * label + groups + self._coded_length(self.most_candidates)

    def _fits(self) -> bool:
        read = set() if self.columns is None else set(self.columns.reads)
        return (
            all(isinstance(name, str) for name in (*self.reads, self.terms.encoder, self.terms.why_public or ""))
            and type(self.votes.rounds) is int
            and self.votes.rounds >= 1
            and type(self.votes.variations) is int
            and 1 <= self.votes.variations <= MOST_VARIATIONS
            and {condition.column for condition in self.conditions} <= read
            and RECORD_PARTS % self.terms.parts == 0
            and super()._fits()
        )

    def voters(self, bounded: Path | pa.Table, labels: tuple[Given, ...]) -> VotingRecords:
        """`read_voters`, kept for later rounds of the same table and labels, as features take time."""
        if not self._kept or self._kept[0] is not bounded or self._kept[1] != labels:
            self._kept[:] = bounded, labels, self.read_voters(bounded, labels)
        found: VotingRecords = self._kept[2]
        return found

    @cached_property
    def _kept(self) -> list[Any]:
        return []

    def own_round(self, document: Mapping[str, Any]) -> VoteRound:
        if not isinstance(document, dict) or document.keys() != {"index", "labels", "groups", "features"}:
            raise AccountingError("a round that is no object of index, labels, groups and features")
        return self.round(**document)

    def round(
        self, index: int, labels: Sequence[Sequence[str | None]], groups: Sequence[int], features: str
    ) -> VoteRound:
        """A round of votes for these candidates, whatever made them.

        Args:
            features: float32 in base64.

        Raises:
            AccountingError: more candidates than are sealed, or none; labels that are not declared; no features.
        """
        own = index
        try:
            own = index - self.before
            named = tuple(tuple(label) for label in labels)
            valid = (
                type(index) is int
                and 0 <= own < self.votes.rounds
                and 1 <= len(groups) <= self.most_candidates
                and 1 <= len(named) == len(set(named)) <= self.most_labels
                and all(
                    value is None or (type(value) is str and value in condition.values)
                    for label in named
                    for value, condition in zip(label, self.conditions, strict=True)
                )
                and all(type(group) is int and 0 <= group < len(named) for group in groups)
                and len(features) == self._coded_length(len(groups))
            )
            vectors = self._decoded(features, len(groups)) if valid else np.zeros((0, self.features), np.float32)
            lengths = np.linalg.norm(vectors.astype(np.float64), axis=1)
            valid = valid and bool((lengths <= _LONGEST).all())  # false also of what is not a number
        except (TypeError, ValueError):
            valid = False
        if not valid:
            raise AccountingError("a round has candidates that the plan does not allow")
        plan = self.terms.votes(own, len(groups), self.guarantee.adjacency)
        document = {"labels": [list(label) for label in named], "groups": list(groups), "features": features}
        digest = canonical_digest({"plan": self.digest, "index": index, **document})
        return VoteRound(index, named, tuple(groups), plan, digest, vectors, self)

    def _coded_length(self, candidates: int) -> int:
        return -(-candidates * self.features * _FLOAT.itemsize // 3) * 4

    def _decoded(self, text: str, candidates: int) -> Features:
        """Raises `ValueError` for what is no base64 of so many numbers."""
        found = np.frombuffer(base64.b64decode(text, validate=True), dtype=_FLOAT)
        return found.reshape(candidates, self.features).astype(np.float32)

    @contextmanager
    def measuring(self, directory: Path, progress: Progress = silent) -> Iterator[MeasuringVotes]:
        with ExitStack() as stack:
            columns = stack.enter_context(self.measuring_columns(directory / COLUMNS, progress))
            journal = EvolutionJournal.opened(self.place(directory), self.digest, resuming=False)
            yield MeasuringVotes(self, directory, columns, stack.enter_context(journal), progress)


class _Candidates(Exception):
    """Ends `Evolving.evolve` where it needs votes that there are none of yet."""

    def __init__(self, features: Features, groups: Sequence[int]) -> None:
        super().__init__()
        self.features, self.groups = features, groups


@dataclass
class MeasuringVotes:
    """A run's opened votes in a model directory as the central method leaves it, complete after the last round.

    The journal has all candidates and votes. The evolution runs anew for each round: it reads what is there, makes the
    next candidates, and asks for their votes, which are the next round.
    """

    plan: EvolutionPlan
    directory: Path
    columns: Measuring | None
    journal: EvolutionJournal
    progress: Progress = silent
    _asked: VoteRound | None = None

    def next_round(self) -> Round | None:
        if self.columns is not None:
            if (asked := self.columns.next_round()) is not None:
                return asked
            self.columns = None
        try:
            found = self._evolving.evolve(_ask)
        except _Candidates as asked:
            measured = (self.journal.votes(number) is not None for number in range(self.plan.votes.rounds))
            labels = [list(label) for label in self._evolving.labels]
            index = self.plan.before + sum(measured)
            self._asked = self.plan.round(index, labels, list(asked.groups), coded(asked.features))
            return self._asked
        except MechanismFailed:
            raise MechanismFailed(
                "fewer than half of a round's candidates came; what participants have spent remains spent; accepted: "
                "a model or an endpoint that answers, and another run"
            ) from None
        self._evolving.finish(found)
        return None

    def add(self, opened: Whole, finished: int) -> None:
        if self.columns is not None:
            self.columns.add(opened, finished)
            return
        asked, self._asked = self._asked, None
        if asked is None:
            raise MechanismFailed("an opened sum of no round; accepted: after next_round")
        self.journal.count(asked.index - self.plan.before, opened * (RECORD_PARTS // asked.sum.scale))

    @cached_property
    def _evolving(self) -> Evolving:
        return self.plan.evolving(self.directory, self.journal, self.progress)


def _ask(features: Features, groups: Sequence[int]) -> Whole:
    raise _Candidates(features, groups)


def coded(features: Features) -> str:
    """Features of candidates as a document has them."""
    return base64.b64encode(np.ascontiguousarray(features, dtype=_FLOAT).tobytes()).decode("ascii")
