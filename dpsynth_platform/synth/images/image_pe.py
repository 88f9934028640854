"""The generator `image_pe`: private pictures vote among public or simulated ones, which evolve by the noisy votes.

What belongs here: the order of its parts as a generator. What does not: plan, rounds and draws (`evolution`), what
makes candidates (`declared_foundations`), votes (`evolution_votes`), and the shared part of all methods for pictures
(`generator`). The directory of the pictures holds

    evolution.jsonl     candidates and noisy votes of every round
    survivors.json      all candidates of the last vote, with their noisy votes

An interrupted evolution continues at no further cost: noisy votes are on disk before anything follows from them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa

from dpsynth_platform.contracts.contract import DataContract
from dpsynth_platform.foundation.errors import ConfigurationError, GrantRefused, MechanismFailed
from dpsynth_platform.foundation.pixels import Pixels
from dpsynth_platform.foundation.storage import write_durably
from dpsynth_platform.privacy.events import DpEvent
from dpsynth_platform.privacy.guarantee import Guarantee
from dpsynth_platform.synth import counted
from dpsynth_platform.synth.endpoint_access import Access, Transport
from dpsynth_platform.synth.evolution.journal import EvolutionJournal, has_begun
from dpsynth_platform.synth.evolution.loop import Rounds, Survivors
from dpsynth_platform.synth.evolution.votes import noisy_votes
from dpsynth_platform.synth.images import evolution
from dpsynth_platform.synth.images.declared_foundations import DeclaredFoundation
from dpsynth_platform.synth.images.encoders import Encoder
from dpsynth_platform.synth.images.evolution import EvolutionPlan
from dpsynth_platform.synth.images.evolution_votes import ImageVoters
from dpsynth_platform.synth.images.foundations import ImageFoundation
from dpsynth_platform.synth.images.generator import Draw, ImageGenerator, ImageParameters, columns_plan
from dpsynth_platform.synth.images.layout import ImageLayout
from dpsynth_platform.synth.interface import DrawRequest, MechanismRun, PlanInputs, SealedPlan
from dpsynth_platform.synth.sealed_parameters import Readers

SURVIVORS = "survivors.json"
READING = "features of the pictures"
"""Stage of progress; it reports its beginning and its end only."""
BYTES_PER_RECORD = 1_000
"""Of a voter's features, about."""


@dataclass(frozen=True, kw_only=True)
class EvolutionParameters(ImageParameters):
    """The parameters of an evolution of pictures.

    Attributes:
        federated: of a run over several participants, which has its own noise and cost: its terms.
    """

    KIND = "private evolution of pictures"
    READERS: ClassVar[Readers] = {
        "evolution": EvolutionPlan.from_json,
        "foundation": DeclaredFoundation.from_json,
    }

    evolution: EvolutionPlan
    foundation: DeclaredFoundation
    federated: Mapping[str, Any] | None = None

    @classmethod
    def calibrated(cls, inputs: PlanInputs) -> EvolutionParameters:
        columns, layout = columns_plan(inputs), ImageLayout.of(inputs.contract)
        foundation = DeclaredFoundation.of(inputs.contract, layout)
        return cls(
            columns=columns,
            layout=layout,
            memory_bytes=BYTES_PER_RECORD * inputs.contract.privacy.expected_units,
            evolution=evolution_plan(inputs, layout, foundation, counted.event_of(columns)),
            foundation=foundation,
        )

    def own_event(self, guarantee: Guarantee) -> DpEvent:
        if self.federated is not None:
            raise GrantRefused("the plan of a federated run; accepted: its participants, each with its own ledger")
        return evolution.event(self.evolution, guarantee)


def evolution_plan(
    inputs: PlanInputs, layout: ImageLayout, foundation: DeclaredFoundation, already: DpEvent | None, share: float = 1.0
) -> EvolutionPlan:
    """The plan of an evolution that has a share of the precision of what `already` leaves of the guarantee."""
    declared, encoder = _evolution_of(inputs.contract), foundation.features_by()
    foundation.access(Transport())  # refuses an endpoint that is not listed, as early as any other fault
    return evolution.planned(
        inputs.guarantee,
        layout.names,
        inputs.contract.privacy.expected_units,
        foundation.opened(layout.form, encoder).digest,
        encoder.digest,
        rounds=(
            None if declared.rounds == "auto" else Rounds(int(declared.rounds), declared.variations, declared.lookahead)
        ),
        population=None if declared.population == "auto" else int(declared.population),
        already=already,
        share=share,
    )


def _evolution_of(contract: DataContract) -> Any:
    image = contract.generate.image
    assert image is not None and image.evolution is not None  # noqa: S101  (`DeclaredFoundation.of` has refused it)
    return image.evolution


class ImagePe(ImageGenerator[EvolutionParameters]):
    """The generator `image_pe`."""

    method = "image_pe"
    kind = EvolutionParameters

    def description(self, plan: SealedPlan, parameters: EvolutionParameters) -> tuple[str, dict[str, Any]]:
        return described(plan, parameters.evolution)

    def learn(self, run: MechanismRun, parameters: EvolutionParameters, directory: Path) -> None:
        evolve(run, parameters.layout, parameters.evolution, parameters.foundation, directory)

    def can_continue(self, directory: Path) -> bool:
        return has_begun(directory)

    def opened(self, plan: SealedPlan, parameters: EvolutionParameters, directory: Path, request: DrawRequest) -> Draw:
        return drawing(parameters.layout, parameters.evolution, parameters.foundation, directory, request)

    def check_public(self, plan: SealedPlan) -> tuple[Path, ...]:
        parameters = self.kind.of(plan)
        opened(parameters.layout, parameters.evolution, parameters.foundation)
        return parameters.foundation.paths

    def tried_endpoint(self, plan: SealedPlan, transport: Transport) -> Access | None:
        parameters = self.kind.of(plan)
        return parameters.foundation.tried(parameters.layout.form, transport)


def described(plan: SealedPlan, parameters: EvolutionPlan) -> tuple[str, dict[str, Any]]:
    """The votes in words, and figures about them; see `ImageGenerator.description`."""
    mechanism = f"{parameters.rounds.rounds} histograms of votes with noise of {parameters.sigma:.3g} votes"
    return mechanism, {
        "pictures_in_words": evolution.describe(parameters, Guarantee.from_json(plan.guarantee)),
        "vote_noise": parameters.sigma,
        "population": parameters.population,
    }


def evolve(
    run: MechanismRun, layout: ImageLayout, plan: EvolutionPlan, declared: DeclaredFoundation, directory: Path
) -> None:
    """Votes until the survivors are on disk; continues an interrupted evolution.

    Raises:
        GrantRefused: the job does not say whether it resumes, or how to reach the endpoint.
        ConfigurationError: the foundation's public material is not that of the plan, or an endpoint refuses.
    """
    if (directory / SURVIVORS).exists():
        return
    if run.checkpoints is None:
        raise GrantRefused("the job does not say whether it resumes; accepted: a job with a key")
    access = None if declared.endpoint is None else Access.read(run.checkpoints.endpoint)
    foundation, encoder = opened(layout, plan, declared, access)
    with EvolutionJournal.opened(directory, run.plan.digest, resuming=run.checkpoints.resume) as journal:
        run.progress(READING, 0, 1)
        voters = voters_of(run.bounded, layout, encoder, by_owner=run.plan.guarantee["adjacency"] != "fixed-graph")
        run.progress(READING, 1, 1)
        found = evolution.evolve(
            plan,
            lambda features, groups: noisy_votes(voters, features, groups, plan.sigma),
            foundation,
            encoder,
            journal,
            run.progress,
        )
    write_survivors(directory, foundation, found)


def write_survivors(directory: Path, foundation: ImageFoundation[Any], found: Survivors[Any]) -> None:
    """Writes what `drawing` reads."""
    document = {
        "samples": [foundation.to_json(sample) for sample in found.samples],
        "groups": list(found.groups),
        "votes": list(found.votes),
    }
    write_durably(directory / SURVIVORS, json.dumps(document))


def drawing(
    layout: ImageLayout, plan: EvolutionPlan, declared: DeclaredFoundation, directory: Path, request: DrawRequest
) -> Draw:
    """Draws pictures by the noisy votes of a complete evolution. Raises as `evolve`, and `MechanismFailed`."""
    foundation, _ = opened(layout, plan, declared, declared.access(request.transport or Transport()))
    try:
        document = json.loads((directory / SURVIVORS).read_text(encoding="utf-8"))
        samples = tuple(foundation.from_json(sample) for sample in document["samples"])
        survivors = Survivors(samples, tuple(document["groups"]), tuple(document["votes"]))
    except (OSError, ValueError, KeyError, TypeError):
        raise MechanismFailed("the survivors of the evolution are missing or damaged") from None

    def draw(number: int, pictures: int, generator: np.random.Generator) -> Pixels:
        return evolution.draw(plan, survivors, plan.labels[number], pictures, foundation, generator)

    return draw


def opened(
    layout: ImageLayout, plan: EvolutionPlan, declared: DeclaredFoundation, access: Access | None = None
) -> tuple[ImageFoundation[Any], Encoder]:
    """The foundation and the encoder of a plan. Raises `ConfigurationError` if they are others."""
    encoder = declared.features_by()
    foundation = declared.opened(layout.form, encoder, access)
    if (foundation.digest, encoder.digest) != (plan.foundation, plan.encoder):
        raise ConfigurationError(
            f"generate.image.evolution: the public {declared.kind} in {declared.directory or 'the program'} "
            "are not those of the sealed plan; accepted: the earlier ones; or materialize raw again, and spend "
            "again if the mechanism had started"
        )
    return foundation, encoder


def voters_of(bounded: Path | pa.Table, layout: ImageLayout, encoder: Encoder, *, by_owner: bool) -> ImageVoters:
    """The voters of a bounded table, on disk or in memory, by their classes. Sensitive.

    Args:
        by_owner: whether records have one owner each, whose votes are scaled together.
    """
    features, groups, numbers = [], [], list[int]()
    known: dict[str | None, int] = {}
    for part in layout.read(bounded, owners=by_owner):
        features.append(encoder.features(part.pixels))
        groups.append(part.classes)
        numbers += [known.setdefault(owner, len(known)) for owner in part.owners or ()]
    if not features:
        return ImageVoters.of(np.zeros((0, *layout.form.shape), np.uint8), np.zeros(0, np.int64), None, encoder)
    owners = np.array(numbers, dtype=np.int64) if by_owner else None
    return ImageVoters(np.concatenate(features), np.concatenate(groups), owners)
