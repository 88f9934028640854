"""Federated private evolution of texts: the sealed plan of `aug_pe` over texts of several participants.

What belongs here: the plan, a participant's voters, and the central method's parts at the coordinator. What does not:
rounds of votes and their cost (`evolution`), and those parts (`synth.text`).
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path

import pyarrow as pa
from dp_accounting import dp_event

from dpsynth_platform.contracts.contract import DataContract
from dpsynth_platform.federation.columns_first import counted_first
from dpsynth_platform.federation.evolution import (
    COLUMNS,
    MOST_POPULATION,
    PARTS,
    EvolutionPlan,
    VoteTerms,
    with_least_noise,
)
from dpsynth_platform.foundation.errors import ContractError, GrantRefused
from dpsynth_platform.foundation.people import visible
from dpsynth_platform.foundation.progress import Progress
from dpsynth_platform.privacy.calibration import noise_for
from dpsynth_platform.privacy.events import DpEvent, GaussianSumsEvent
from dpsynth_platform.privacy.guarantee import Guarantee
from dpsynth_platform.synth import counted
from dpsynth_platform.synth.conditions import Condition, Given
from dpsynth_platform.synth.endpoint_access import Transport
from dpsynth_platform.synth.evolution.journal import EvolutionJournal
from dpsynth_platform.synth.evolution.loop import Ballot, Rounds, Survivors, evolve
from dpsynth_platform.synth.interface import PlanInputs, SealedPlan
from dpsynth_platform.synth.text import evolution
from dpsynth_platform.synth.text.embeddings import FEATURES, SentenceEncoder, encoder_digest
from dpsynth_platform.synth.text.evolution_prompts import TextFoundation
from dpsynth_platform.synth.text.evolution_sealing import ROWS_PER_TEXT, EvolutionParameters
from dpsynth_platform.synth.text.evolution_votes import Voters, read_voters, write_features
from dpsynth_platform.synth.text.public_text import PublicText
from dpsynth_platform.synth.text.sealing import part_for_columns

MOST_NEAREST = 100
"""As in a contract."""


def with_features(bounded: Path, column: str, place: Path) -> Path:
    """A copy of a participant's bounded table with the features of its texts: otherwise a first vote waits for them.

    Milliseconds for each text. Raises `ConfigurationError` if the sentence encoder is missing.
    """
    return write_features(bounded, column, SentenceEncoder("cpu"), place)


@dataclass(frozen=True)
class TextEvolutionPlan(EvolutionPlan):
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
        b, rounds = contract.privacy.max_contributions, text.evolution.rounds
        guarantee = replace(target, max_contributions=b * silos)
        bare = VoteTerms(
            *(sorted(participants), minimum, colluders, most_records, b, silos, []),
            parts=PARTS,
            encoder=encoder_digest(),
            why_public=None if contract.generate.public is None else contract.generate.public.why,
        )
        columns = counted_first(contract, schema, part_for_columns(contract, guarantee), bare)

        def in_norms(noise: float) -> DpEvent:
            each = GaussianSumsEvent(noise, guarantee.adjacency, guarantee.max_contributions)
            return counted.together(columns, dp_event.SelfComposedDpEvent(each, rounds))

        start = silos * noise_for(in_norms, guarantee.epsilon, guarantee.delta).value
        expected = bare.noise_of(bare.share_of((start * PARTS) ** 2))
        central = evolution.tried(
            contract, lambda base: EvolutionParameters.with_noise(contract, base, expected, columns)
        )
        terms, event = with_least_noise(bare, columns, rounds, most_candidates(central), start, guarantee)
        parameters = replace(central, sigma=terms.noise_of(terms.share_variances[0]), federated=asdict(terms))
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
    def text_column(self) -> str:
        return self.parameters.layout.fields[0]

    @property
    def own_reads(self) -> Sequence[str]:
        return [*(condition.column for condition in self.conditions), self.text_column]

    @property
    def votes(self) -> Rounds:
        return self.parameters.rounds

    @property
    def conditions(self) -> Sequence[Condition]:
        return self.parameters.layout.conditions

    @property
    def most_labels(self) -> int:
        return most_labels(self.parameters)

    @property
    def most_candidates(self) -> int:
        return most_candidates(self.parameters)

    @property
    def features(self) -> int:
        return FEATURES

    def _fits(self) -> bool:
        parameters = self.parameters
        return (
            type(parameters.population) is int
            and 1 <= parameters.population <= MOST_POPULATION
            and (parameters.nearest is None or type(parameters.nearest) is int)
            and parameters.nearest in (None, *range(1, MOST_NEAREST + 1))
            and parameters.resampling is None
            and super()._fits()
        )

    def unreadable(self, texts: Collection[str]) -> Iterator[str]:
        if self.text_column not in texts:
            yield (
                f"columns: {visible(self.text_column)} is no text here; accepted: a declared text at all participants"
            )
        if (own := encoder_digest()) != self.terms.encoder:
            yield f"encoder: {visible(self.terms.encoder[:12])}; accepted: {own[:12]}, the sentence encoder here"

    def prepare(self) -> None:
        super().prepare()
        self.foundation([])

    def foundation(self, labels: Sequence[Given]) -> TextFoundation:
        """What writes texts of these labels, at the coordinator. Raises `ConfigurationError`."""
        return evolution.foundation_of(self.parameters, labels, Transport(), _device(), public=True)

    def read_voters(self, bounded: Path | pa.Table, labels: tuple[Given, ...]) -> Voters:
        parameters, groups = self.parameters, {label: number for number, label in enumerate(labels)}
        nearest = parameters.nearest or 1
        return read_voters(bounded, parameters.layout, groups, self._encoder, by_owner=True, nearest=nearest)

    @cached_property
    def _encoder(self) -> SentenceEncoder:
        return SentenceEncoder("cpu")

    def place(self, directory: Path) -> Path:
        return directory

    def evolving(self, directory: Path, journal: EvolutionJournal, progress: Progress) -> EvolvingTexts:
        columns = directory / COLUMNS
        counted.estimate(self.counted, columns, progress=progress)
        if journal.groups is None:
            journal.settle(evolution.sizes_of(self.sealed, self.parameters, columns))
        sizes = dict(journal.groups or {})
        return EvolvingTexts(self, directory, journal, progress, sizes, self.foundation(list(sizes)))


@dataclass(frozen=True)
class EvolvingTexts:
    """The evolution at the coordinator.

    Attributes:
        sizes: how many candidates of each label survive, by the noisy counts of the columns.
    """

    plan: TextEvolutionPlan
    directory: Path
    journal: EvolutionJournal
    progress: Progress
    sizes: dict[Given, int]
    foundation: TextFoundation

    @property
    def labels(self) -> Sequence[Given]:
        return list(self.sizes)

    def evolve(self, ballot: Ballot) -> Survivors[PublicText]:
        sizes = list(self.sizes.values())
        return evolve(self.plan.votes, sizes, self.foundation, ballot, self.journal, self.progress)

    def finish(self, survivors: Survivors[PublicText]) -> None:
        evolution.write_survivors(self.directory, self.plan.sealed, evolution.by_label(survivors, self.labels))


def most_labels(parameters: EvolutionParameters) -> int:
    """Of a round: those among the rows by which the population is divided. A value may be missing in a row."""
    known = math.prod(len({*condition.values, None}) for condition in parameters.layout.conditions)
    return min(known, ROWS_PER_TEXT * parameters.population)


def most_candidates(parameters: EvolutionParameters) -> int:
    """Of a round: L + 1 for each survivor. Labels divide the population, and one of each that occurs survives."""
    return (parameters.population + most_labels(parameters) - 1) * (parameters.rounds.variations + 1)


def _device() -> str:
    import torch

    return "cuda" if torch.cuda.is_available() else "cpu"
