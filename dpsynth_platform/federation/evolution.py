"""Federated private evolution of texts: the sealed plan of `aug_pe` over texts of several participants.

What belongs here: what the sum of votes of each round costs, a round's candidates as a document, and the rounds at the
coordinator. What does not: a record's choice, the scaling of a unit's votes and the next candidates, which are the
central method's (`synth.evolution`, `synth.text`), and the other columns, which are counted first (`columns_first`).

**Rounds.** The coordinator has the model or its endpoint, and makes the candidates. A round's document has the features
of each candidate and the label that it was written for; each participant sums its own records' votes for them. The
coordinator keeps the noisy sum, and makes the next candidates of it, as `synth.evolution.loop` does. It gets no
text of a participant, and no participant needs the model: only the sentence encoder, of which the plan has the digest.
Features are sent, and not texts: no text that a server makes up has to be encoded, a candidate may stand for the mean
of its variations (`lookahead`), all participants compare with the same numbers, and the length is known in advance.

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
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from dp_accounting import dp_event

from dpsynth_platform.contracts.contract import DataContract
from dpsynth_platform.contracts.text_generation import MOST_POPULATION
from dpsynth_platform.federation.columns_first import ColumnsFirst, counted_first
from dpsynth_platform.federation.plans import Measuring, Round, Terms, least_noise
from dpsynth_platform.federation.sums import SumPlan, Whole
from dpsynth_platform.foundation.digests import canonical_digest
from dpsynth_platform.foundation.errors import AccountingError, ContractError, GrantRefused, MechanismFailed
from dpsynth_platform.foundation.people import visible
from dpsynth_platform.foundation.progress import Progress, silent
from dpsynth_platform.privacy.calibration import noise_for
from dpsynth_platform.privacy.events import DpEvent, GaussianSumsEvent
from dpsynth_platform.privacy.guarantee import Guarantee
from dpsynth_platform.privacy.units import RECORD_PARTS
from dpsynth_platform.synth import counted
from dpsynth_platform.synth.conditions import Given
from dpsynth_platform.synth.endpoint_access import Transport
from dpsynth_platform.synth.evolution.journal import EvolutionJournal
from dpsynth_platform.synth.evolution.loop import Features, evolve
from dpsynth_platform.synth.interface import PlanInputs, SealedPlan
from dpsynth_platform.synth.text import evolution
from dpsynth_platform.synth.text.embeddings import FEATURES, SentenceEncoder, encoder_digest
from dpsynth_platform.synth.text.evolution_prompts import TextFoundation
from dpsynth_platform.synth.text.evolution_sealing import ROWS_PER_TEXT, EvolutionParameters
from dpsynth_platform.synth.text.evolution_votes import Voters, read_voters
from dpsynth_platform.synth.text.generator import COLUMNS
from dpsynth_platform.synth.text.sealing import part_for_columns

PARTS = 2**10
"""Parts of a vote, of which vectors have whole numbers; a divisor of `RECORD_PARTS`."""
MOST_ROUNDS, MOST_VARIATIONS, MOST_NEAREST = 100, 50, 100
"""As in a contract."""
_LONGEST = 1.001
"""Of a candidate's features: 1, and what rounding adds."""
_FLOAT = np.dtype("<f4")


@dataclass(frozen=True)
class VoteTerms(Terms):
    """The parameters of sums of votes. A cell's count is here the votes for a candidate.

    Attributes:
        parts: units of a vote.
        encoder: digest of the sentence encoder, whose features all candidates and texts have.
    """

    parts: int
    encoder: str

    def votes(self, index: int, candidates: int, adjacency: str) -> SumPlan:
        """The sum of a round."""
        return self._sum(index, candidates, adjacency, self.parts, norm=1)


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
    plan: TextEvolutionPlan = field(compare=False, repr=False)

    def to_json(self) -> dict[str, Any]:
        """The arguments of `TextEvolutionPlan.round`."""
        labels = [list(label) for label in self.labels]
        return {"index": self.index, "labels": labels, "groups": list(self.groups), "features": _coded(self.features)}

    def units(self, bounded: Path | pa.Table) -> Whole:
        voters = self.plan.voters(bounded, self.labels)
        return voters.votes(self.features, self.groups, self.sum.scale)


@dataclass(frozen=True)
class TextEvolutionPlan(ColumnsFirst):
    """A sealed plan whose parameters are `EvolutionParameters`, with `VoteTerms` as `federated`."""

    METHODS = ("aug_pe",)

    @classmethod
    def of(
        cls,
        contract: DataContract,
        schema: pa.Schema,
        *,
        participants: Sequence[str],
        minimum: int,
        colluders: int,
        most_records: int,
        silos: int = 1,
    ) -> TextEvolutionPlan:
        """Calibrates and seals a plan for the contract's texts, columns and guarantee, from public inputs.

        Args:
            schema: of the participants' tables.
            most_records: bounds each participant's votes for a candidate; see `Terms`.

        Raises:
            ContractError: no texts evolve, columns whose values are to be learned, weighted rows, or a choice among
                texts by further votes.
            ConfigurationError: this machine lacks what writes the texts, or the sentence encoder.
            AccountingError: a value is impossible, no noise meets the guarantee, or messages would be too long.
        """
        target, text = Guarantee.target(contract), contract.generate.text
        if text is None or text.evolution is None or text.resample is not None or target.weighting != "rows":
            raise ContractError(
                f"{contract.dataset}: generate.text; accepted in a federated run: evolution, with weighting rows and "
                "without resample"
            )
        b, rounds = target.max_contributions, text.evolution.rounds
        guarantee = replace(target, max_contributions=b * silos)
        bare = VoteTerms(
            *(sorted(participants), minimum, colluders, most_records, b, silos),
            share_variances=[],
            parts=PARTS,
            encoder=encoder_digest(),
        )
        columns = counted_first(contract, schema, part_for_columns(contract, guarantee), bare)

        def in_norms(noise: float) -> DpEvent:
            each = GaussianSumsEvent(noise, guarantee.adjacency, guarantee.max_contributions)
            return counted.together(columns, dp_event.SelfComposedDpEvent(each, rounds))

        start = silos * noise_for(in_norms, guarantee.epsilon, guarantee.delta).value
        expected = math.sqrt(len(bare.participants) * bare.share_of((start * PARTS) ** 2)) / PARTS
        central = evolution.tried(
            contract, lambda base: EvolutionParameters.with_noise(contract, base, expected, columns)
        )

        def terms_with(sigma: float) -> tuple[VoteTerms, DpEvent]:
            terms = replace(bare, share_variances=[bare.share_of((sigma * PARTS) ** 2)] * rounds)
            sums = _sums(central, terms, guarantee.adjacency)
            return terms, counted.together(columns, *(each.event for each in sums))

        terms, event = least_noise(terms_with, start, guarantee)
        sigma = math.sqrt(len(terms.participants) * terms.share_variances[0]) / PARTS
        parameters = replace(central, sigma=sigma, federated=asdict(terms))
        inputs = PlanInputs(contract, schema, guarantee)
        found = cls(SealedPlan.of(cls.METHODS[0], inputs, parameters.parts(inputs, event)))
        found.check_lengths()
        return found

    @cached_property
    def parameters(self) -> EvolutionParameters:
        try:
            return EvolutionParameters.of(self.sealed)
        except (GrantRefused, ContractError):
            raise ValueError("no parameters of a federated evolution") from None

    @cached_property
    def terms(self) -> VoteTerms:
        return VoteTerms(**(self.parameters.federated or {}))

    @property
    def counted(self) -> counted.Columns:
        return self.parameters.columns

    @property
    def own_reads(self) -> Sequence[str]:
        return [
            *(condition.column for condition in self.parameters.layout.conditions),
            self.parameters.layout.fields[0],
        ]

    @property
    def own_rounds(self) -> tuple[tuple[str, int], ...]:
        return (("votes", 1),) * self.parameters.rounds.rounds

    @cached_property
    def own_sums(self) -> tuple[SumPlan, ...]:
        return _sums(self.parameters, self.terms, self.guarantee.adjacency)

    @property
    def own_document_bytes(self) -> int:
        return most_bytes(self.parameters)

    def _fits(self) -> bool:
        parameters, terms, rounds = self.parameters, self.terms, self.parameters.rounds
        read = set() if self.columns is None else set(self.columns.reads)
        return (
            all(isinstance(name, str) for name in (*self.reads, terms.encoder))
            and type(rounds.rounds) is int
            and 1 <= rounds.rounds <= MOST_ROUNDS
            and type(rounds.variations) is int
            and 1 <= rounds.variations <= MOST_VARIATIONS
            and type(parameters.population) is int
            and 1 <= parameters.population <= MOST_POPULATION
            and parameters.nearest in (None, *range(1, MOST_NEAREST + 1))
            and parameters.resampling is None
            and {condition.column for condition in parameters.layout.conditions} <= read
            and RECORD_PARTS % terms.parts == 0
            and super()._fits()
        )

    def unreadable(self, texts: Collection[str]) -> Iterator[str]:
        written = self.parameters.layout.fields[0]
        if written not in texts:
            yield f"columns: {visible(written)} is no text here; accepted: a declared text at all participants"
        if (own := encoder_digest()) != self.terms.encoder:
            yield f"encoder: {visible(self.terms.encoder[:12])}; accepted: {own[:12]}, the sentence encoder here"

    def prepare(self) -> None:
        super().prepare()
        self.foundation([])

    def foundation(self, labels: Sequence[Given]) -> TextFoundation:
        """What writes texts of these labels, at the coordinator. Raises `ConfigurationError`."""
        return evolution.foundation_of(self.parameters, labels, Transport(), _device(), public=True)

    def voters(self, bounded: Path | pa.Table, labels: tuple[Given, ...]) -> Voters:
        """A participant's records with a label and a text. Sensitive; kept for later rounds, as features take time."""
        if not self._kept or self._kept[0] is not bounded or self._kept[1] != labels:
            self._kept[:] = bounded, labels, self._read(bounded, labels)
        found: Voters = self._kept[2]
        return found

    def _read(self, bounded: Path | pa.Table, labels: tuple[Given, ...]) -> Voters:
        parameters, groups = self.parameters, {label: number for number, label in enumerate(labels)}
        nearest = parameters.nearest or 1
        return read_voters(bounded, parameters.layout, groups, self._encoder, by_owner=True, nearest=nearest)

    @cached_property
    def _kept(self) -> list[Any]:
        return []

    @cached_property
    def _encoder(self) -> SentenceEncoder:
        return SentenceEncoder("cpu")

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
        own, parameters, conditions = index, self.parameters, self.parameters.layout.conditions
        try:
            own = index - self.before
            named = tuple(tuple(label) for label in labels)
            valid = (
                type(index) is int
                and 0 <= own < parameters.rounds.rounds
                and 1 <= len(groups) <= most_candidates(parameters)
                and 1 <= len(named) == len(set(named)) <= most_labels(parameters)
                and all(
                    value is None or (type(value) is str and value in condition.values)
                    for label in named
                    for value, condition in zip(label, conditions, strict=True)
                )
                and all(type(group) is int and 0 <= group < len(named) for group in groups)
                and len(features) == _coded_length(len(groups))
            )
            vectors = _decoded(features, len(groups)) if valid else np.zeros((0, FEATURES), np.float32)
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

    @contextmanager
    def measuring(self, directory: Path, progress: Progress = silent) -> Iterator[MeasuringVotes]:
        with ExitStack() as stack:
            columns = stack.enter_context(self.measuring_columns(directory / COLUMNS, progress))
            journal = stack.enter_context(EvolutionJournal.opened(directory, self.digest, resuming=False))
            yield MeasuringVotes(self, directory, columns, journal, progress)


class _Candidates(Exception):
    """Ends `evolve` where it needs votes that there are none of yet."""

    def __init__(self, features: Features, groups: Sequence[int]) -> None:
        super().__init__()
        self.features, self.groups = features, groups


@dataclass
class MeasuringVotes:
    """A run's opened votes in a model directory as the central method leaves it, complete after the last round.

    The journal has all candidates and votes. `evolve` runs anew for each round: it reads what is there, makes the next
    candidates, and asks for their votes, which are the next round.
    """

    plan: TextEvolutionPlan
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
        sizes, parameters = self._sizes, self.plan.parameters
        try:
            found = evolve(parameters.rounds, list(sizes.values()), self._foundation, _ask, self.journal, self.progress)
        except _Candidates as asked:
            index = self.plan.before + self._measured
            labels = [list(label) for label in sizes]
            self._asked = self.plan.round(index, labels, list(asked.groups), _coded(asked.features))
            return self._asked
        except MechanismFailed:
            raise MechanismFailed(
                "fewer than half of a round's candidates came; what participants have spent remains spent; accepted: "
                "a model or an endpoint that answers, and another run"
            ) from None
        evolution.write_survivors(self.directory, self.plan.sealed, evolution.by_label(found, list(sizes)))
        return None

    def add(self, opened: Whole, finished: int) -> None:
        if self.columns is not None:
            self.columns.add(opened, finished)
            return
        asked, self._asked = self._asked, None
        if asked is None:
            raise MechanismFailed("an opened sum of no round; accepted: after next_round")
        self.journal.count(asked.index - self.plan.before, opened * (RECORD_PARTS // asked.sum.scale))

    @property
    def _measured(self) -> int:
        rounds = range(self.plan.parameters.rounds.rounds)
        return sum(self.journal.votes(number) is not None for number in rounds)

    @cached_property
    def _sizes(self) -> dict[Given, int]:
        """How many candidates of each label survive, by the noisy counts of the columns."""
        parameters, place = self.plan.parameters, self.directory / COLUMNS
        counted.estimate(parameters.columns, place, progress=self.progress)
        self.journal.settle(evolution.sizes_of(self.plan.sealed, parameters, place))
        return dict(self.journal.groups or {})

    @cached_property
    def _foundation(self) -> TextFoundation:
        return self.plan.foundation(list(self._sizes))


def _ask(features: Features, groups: Sequence[int]) -> Whole:
    raise _Candidates(features, groups)


def most_labels(parameters: EvolutionParameters) -> int:
    """Of a round: those among the rows by which the population is divided. A value may be missing in a row."""
    known = math.prod(len({*condition.values, None}) for condition in parameters.layout.conditions)
    return min(known, ROWS_PER_TEXT * parameters.population)


def most_candidates(parameters: EvolutionParameters) -> int:
    """Of a round: L + 1 for each survivor. Labels divide the population, and one of each that occurs survives."""
    return (parameters.population + most_labels(parameters) - 1) * (parameters.rounds.variations + 1)


def most_bytes(parameters: EvolutionParameters) -> int:
    """Of a round's document."""
    candidates, labels = most_candidates(parameters), most_labels(parameters)
    values = (max(len(json.dumps(value)) for value in (*part.values, None)) for part in parameters.layout.conditions)
    label = 4 + sum(length + 2 for length in values)
    return 200 + labels * label + candidates * (len(str(labels)) + 2) + _coded_length(candidates)


def _sums(parameters: EvolutionParameters, terms: VoteTerms, adjacency: str) -> tuple[SumPlan, ...]:
    if len(terms.share_variances) != parameters.rounds.rounds:
        raise ValueError("shares of noise of another number of rounds")
    candidates = most_candidates(parameters)
    return tuple(terms.votes(index, candidates, adjacency) for index in range(parameters.rounds.rounds))


def _device() -> str:
    import torch

    return "cuda" if torch.cuda.is_available() else "cpu"


def _coded(features: Features) -> str:
    return base64.b64encode(np.ascontiguousarray(features, dtype=_FLOAT).tobytes()).decode("ascii")


def _coded_length(candidates: int) -> int:
    return -(-candidates * FEATURES * _FLOAT.itemsize // 3) * 4


def _decoded(text: str, candidates: int) -> Features:
    """Raises `ValueError` for what is no base64 of so many numbers."""
    found = np.frombuffer(base64.b64decode(text, validate=True), dtype=_FLOAT)
    return found.reshape(candidates, FEATURES).astype(np.float32)
