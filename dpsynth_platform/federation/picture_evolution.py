"""Federated private evolution of pictures: the sealed plan of `image_pe` over pictures of several participants.

What belongs here: the plan, a participant's voters, and the central method's parts at the coordinator. What does not:
rounds of votes and their cost (`evolution`), and those parts (`synth.images`).

Pictures are near by means over cells (`encoders.AveragedPixels`), which are part of this program. A network from a
file is refused: a participant would have to read a file that a coordinator names.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from dpsynth_platform.contracts.contract import DataContract
from dpsynth_platform.contracts.image_generation import MOST_POPULATION
from dpsynth_platform.federation.columns_first import counted_first
from dpsynth_platform.federation.evolution import PARTS, EvolutionPlan, VoteTerms, with_least_noise
from dpsynth_platform.federation.plans import undeclared_pictures
from dpsynth_platform.foundation.errors import ContractError, GrantRefused
from dpsynth_platform.foundation.permissions import private_directory
from dpsynth_platform.foundation.progress import Progress
from dpsynth_platform.foundation.storage import PICTURES, write_durably
from dpsynth_platform.privacy.guarantee import Guarantee
from dpsynth_platform.privacy.units import replaces
from dpsynth_platform.synth import counted
from dpsynth_platform.synth.conditions import Condition, Given
from dpsynth_platform.synth.endpoint_access import Transport
from dpsynth_platform.synth.evolution.journal import EvolutionJournal
from dpsynth_platform.synth.evolution.loop import Ballot, Rounds, Survivors
from dpsynth_platform.synth.evolution.votes import NOBODY
from dpsynth_platform.synth.images import evolution
from dpsynth_platform.synth.images.declared_foundations import DeclaredFoundation
from dpsynth_platform.synth.images.encoders import AveragedPixels, Encoder
from dpsynth_platform.synth.images.evolution_votes import ImageVoters
from dpsynth_platform.synth.images.foundations import ImageFoundation
from dpsynth_platform.synth.images.generator import PLAN, UNCOUNTED, columns_part
from dpsynth_platform.synth.images.image_pe import (
    BYTES_PER_RECORD,
    EvolutionParameters,
    evolution_plan,
    opened,
    voters_of,
    write_survivors,
)
from dpsynth_platform.synth.images.layout import ImageLayout
from dpsynth_platform.synth.interface import PlanInputs, SealedPlan
from dpsynth_platform.synth.tabular.domain import Domain


@dataclass(frozen=True)
class PictureEvolutionPlan(EvolutionPlan):
    """A sealed plan whose parameters are `EvolutionParameters` of pictures, with `VoteTerms` as `federated`."""

    METHODS = ("image_pe",)

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
    ) -> PictureEvolutionPlan:
        """Calibrates and seals a plan for the contract's pictures, columns and guarantee, from public inputs.

        Args:
            schema: of the participants' tables.
            most_records: bounds each participant's votes for a candidate; see `Terms`.

        Raises:
            ContractError: no pictures evolve, columns whose values are to be learned, weighted rows, or a network as
                encoder.
            ConfigurationError: this machine lacks what makes the pictures.
            AccountingError: a value is impossible, no noise meets the guarantee, or messages would be too long.
        """
        target, layout = Guarantee.target(contract), ImageLayout.of(contract)
        foundation = DeclaredFoundation.of(contract, layout)
        if foundation.encoder:
            raise ContractError(
                f"{contract.dataset}: generate.image.evolution.encoder; accepted in a federated run: none, so that "
                "pictures are near by means over cells"
            )
        b = contract.privacy.max_contributions
        inputs = PlanInputs(contract, schema, replace(target, max_contributions=b * silos))
        bare = VoteTerms(
            *(sorted(participants), minimum, colluders, most_records, b, silos, []),
            parts=PARTS,
            encoder=AveragedPixels().digest,
        )
        part = columns_part(inputs)
        columns = None if part is None else counted_first(contract, schema, part, bare)
        # Central noise is for votes of length 1. Fewer votes over the same noise are as many over more noise.
        moved = silos * (math.sqrt(2) if replaces(inputs.guarantee.adjacency) else 1.0)
        more = bare.noise_of(bare.share_of((moved * PARTS) ** 2))
        privacy = contract.privacy
        fewer = max(1, int(privacy.expected_units / more))
        alike = contract.model_copy(update={"privacy": privacy.model_copy(update={"expected_units": fewer})})
        event = counted.event_of(columns)
        central = evolution_plan(replace(inputs, contract=alike), layout, foundation, event)
        rounds, start = central.rounds.rounds, moved * central.sigma
        terms, whole = with_least_noise(bare, columns, rounds, central.candidates, start, inputs.guarantee)
        parameters = EvolutionParameters(
            columns=columns,
            layout=layout,
            memory_bytes=BYTES_PER_RECORD * privacy.expected_units,
            evolution=replace(central, sigma=terms.noise_of(terms.share_variances[0])),
            foundation=foundation,
            federated=asdict(terms),
        )
        found = cls(SealedPlan.of(cls.METHODS[0], inputs, parameters.parts(inputs, whole)))
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
    def pictures(self) -> ImageLayout:
        return self.parameters.layout

    @property
    def own_reads(self) -> Sequence[str]:
        return [*(condition.column for condition in self.conditions), self.pictures.column]

    @property
    def votes(self) -> Rounds:
        return self.parameters.evolution.rounds

    @property
    def conditions(self) -> Sequence[Condition]:
        return self.pictures.conditions

    @property
    def most_labels(self) -> int:
        return self.pictures.number

    @property
    def most_candidates(self) -> int:
        return self.parameters.evolution.candidates

    @property
    def features(self) -> int:
        return AveragedPixels().side ** 2 * self.pictures.form.channels

    def _fits(self) -> bool:
        plan = self.parameters.evolution
        return (
            type(plan.population) is int
            and 1 <= plan.population <= MOST_POPULATION
            and plan.labels == self.pictures.names
            and self.terms.encoder == plan.encoder == AveragedPixels().digest
            and not self.parameters.foundation.encoder
            and super()._fits()
        )

    def undeclared(self, domain: Domain, pictures: ImageLayout | None) -> Iterator[str]:
        yield from super().undeclared(domain, pictures)
        yield from undeclared_pictures(self.pictures, pictures)

    def prepare(self) -> None:
        super().prepare()
        self.foundation()

    def foundation(self) -> tuple[ImageFoundation[Any], Encoder]:
        """What makes pictures, at the coordinator. Raises `ConfigurationError`."""
        declared = self.parameters.foundation
        return opened(self.pictures, self.parameters.evolution, declared, declared.access(Transport()))

    def read_voters(self, bounded: Path | pa.Table, labels: tuple[Given, ...]) -> ImageVoters:
        voters = voters_of(bounded, self.pictures, AveragedPixels(), by_owner=True)
        numbers = {label: number for number, label in enumerate(labels)}
        group_of = np.array([numbers.get(label, NOBODY) for label in self.pictures.classes], dtype=np.int64)
        return replace(voters, groups=group_of[voters.groups])

    def place(self, directory: Path) -> Path:
        if self.columns is None:
            write_durably(directory / UNCOUNTED, "")
        return private_directory(directory / PICTURES)

    def evolving(self, directory: Path, journal: EvolutionJournal, progress: Progress) -> EvolvingPictures:
        return EvolvingPictures(self, directory, journal, progress, *self.foundation())


@dataclass(frozen=True)
class EvolvingPictures:
    """The evolution at the coordinator."""

    plan: PictureEvolutionPlan
    directory: Path
    journal: EvolutionJournal
    progress: Progress
    foundation: ImageFoundation[Any]
    encoder: Encoder

    @property
    def labels(self) -> Sequence[Given]:
        return self.plan.pictures.classes

    def evolve(self, ballot: Ballot) -> Survivors[Any]:
        plan = self.plan.parameters.evolution
        return evolution.evolve(plan, ballot, self.foundation, self.encoder, self.journal, self.progress)

    def finish(self, survivors: Survivors[Any]) -> None:
        write_survivors(self.directory / PICTURES, self.foundation, survivors)
        write_durably(self.directory / PLAN, self.plan.to_json())
