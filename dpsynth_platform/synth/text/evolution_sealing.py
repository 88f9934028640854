"""The plan of a private evolution, from public inputs alone: a model of the columns, and rounds of votes.

What belongs here: how the guarantee is shared, the plan's parts and its event, and reading them back. What does not:
running any of it (`evolution`).

`generate.text.columns_share` of epsilon goes to noisy counts of the modelled columns, from which follows how many texts
of each label there are; the noise of the votes of all rounds is calibrated beside these, in one composition. Which
candidates a round has follows from the noisy votes before it, which full adaptive composition allows. Where no column
is counted (`counted`), the whole guarantee is for the votes. Those for clusters, by which texts are chosen in the end
(`generate.text.resample`), have the noise that is declared, and are a part of the same composition.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, replace
from typing import Any

import pyarrow as pa
from dp_accounting import dp_event

from dpsynth_platform.contracts.contract import DataContract
from dpsynth_platform.contracts.text_generation import Evolution
from dpsynth_platform.foundation.digests import canonical_digest
from dpsynth_platform.foundation.errors import ContractError, GrantRefused
from dpsynth_platform.privacy.calibration import noise_for
from dpsynth_platform.privacy.events import DpEvent, GaussianVotesEvent, event_to_json
from dpsynth_platform.privacy.guarantee import Guarantee
from dpsynth_platform.synth.interface import SealedPlan
from dpsynth_platform.synth.tabular.restore import release_schema
from dpsynth_platform.synth.text import counted
from dpsynth_platform.synth.text.base_models import BaseModel
from dpsynth_platform.synth.text.endpoint_access import Endpoint
from dpsynth_platform.synth.text.evolution_loop import Rounds
from dpsynth_platform.synth.text.evolution_prompts import Wording
from dpsynth_platform.synth.text.layout import TextLayout
from dpsynth_platform.synth.text.resampling import Resampling
from dpsynth_platform.synth.text.sampling import Sampling
from dpsynth_platform.synth.text.sealing import columns_plan, layout_of, memory_bytes, resampling_of
from dpsynth_platform.synth.text.terms import terms_of

LEAST_OVER_NOISE = 3
"""How many times the noise of its votes a candidate gets on average, if the plan chooses how many there are."""
POPULATIONS = (10, 2000)
"""The fewest and the most texts that live on, if the plan chooses how many."""
ROWS_PER_TEXT = 20
"""Rows of the model of the columns, for each text of the population, by which the population is shared out."""
WORDS_PER_TOKEN = 0.75
"""English words of a token of a language model, about."""


@dataclass(frozen=True)
class EvolutionParameters:
    """The parts of a sealed plan's `parameters`. Public.

    Attributes:
        columns: the plan of the modelled columns; None where none is counted.
        layout: the text column, and which columns a text is written for.
        rounds: how candidates are made and voted for.
        sigma: the noise of each round's votes, in votes.
        population: how many candidates live on, of all groups together.
        threshold: votes that weigh nothing, as a multiple of `sigma`.
        wording: the prompts' words.
        sampling: how a model's tokens are drawn.
        base_model: the name by which the contract names the model that writes.
        base_digest: digest of its weights, tokenizer and config; empty where an endpoint has it.
        endpoint: who has the model, if it is not on this machine.
        memory_bytes: about how much writing takes beside the program itself.
        resampling: how texts are chosen by clustered votes, where they are.
    """

    columns: counted.Columns
    layout: TextLayout
    rounds: Rounds
    sigma: float
    population: int
    threshold: float
    wording: Wording
    sampling: Sampling
    base_model: str
    base_digest: str
    endpoint: Endpoint | None
    memory_bytes: int
    resampling: Resampling | None = None

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values."""
        whole = asdict(self) | {"layout": self.layout.to_json(), "wording": self.wording.to_json()}
        if self.resampling is None:  # named only where there is one, so that plans without keep their digests
            del whole["resampling"]
        return whole

    @classmethod
    def of(cls, plan: SealedPlan) -> EvolutionParameters:
        """Reads a sealed plan's back. Raises `GrantRefused` if it is not that of an evolution."""
        try:
            parts = plan.parameters
            return cls(
                **parts
                | {
                    "columns": counted.from_json(parts["columns"]),
                    "layout": TextLayout.from_json(parts["layout"]),
                    "rounds": Rounds(**parts["rounds"]),
                    "wording": Wording.from_json(parts["wording"]),
                    "sampling": Sampling(**parts["sampling"]),
                    "endpoint": None if parts["endpoint"] is None else Endpoint(**parts["endpoint"]),
                    **({"resampling": Resampling(**parts["resampling"])} if "resampling" in parts else {}),
                }
            )
        except (KeyError, TypeError):
            raise GrantRefused("the sealed plan is of no evolution; materialize the line from raw again") from None

    @property
    def labels(self) -> int:
        """How many groups of texts there can be."""
        return math.prod(len(condition.values) for condition in self.layout.conditions)

    @property
    def living(self) -> int:
        """How many texts live on at most: of each label that occurs, one at least, however small the population is."""
        return max(self.population, min(self.labels, ROWS_PER_TEXT * self.population))

    @property
    def candidates(self) -> int:
        """How many texts a round's votes are for."""
        return self.living * (self.rounds.variations + 1)

    @property
    def prompts(self) -> int:
        """How many texts are asked for until the last vote; some again, where none came (`evolution_prompts.TRIES`)."""
        varied = (self.rounds.rounds - 1) * self.rounds.variations * self.living
        ahead = self.rounds.rounds * self.rounds.lookahead * self.candidates
        clustered = 0 if self.resampling is None else max(0, self.resampling.texts - self.living)
        return self.candidates + varied + ahead + clustered

    def event(self, guarantee: Guarantee) -> DpEvent:
        """What counting the columns and all votes cost together."""
        counts = counted.event_of(self.columns)
        return _together(counts, self.sigma, self.rounds.rounds, self.resampling, guarantee)


def sealed(
    method: str,
    contract: DataContract,
    schema: pa.Schema,
    guarantee: Guarantee,
    base: BaseModel | None,
    *,
    period: str | None,
    why: str,
) -> SealedPlan:
    """The plan of a private evolution.

    Args:
        method: the generator's name.
        contract: declares the columns, the text and the evolution.
        schema: of the source.
        guarantee: what counts and votes may cost together.
        base: the model that writes; None where an endpoint has it.
        period: of a dataset with a cadence.
        why: why this method was chosen.

    Raises:
        ContractError: the columns cannot be modelled, or the text column cannot be written.
        AccountingError: no noise meets the guarantee.
    """
    text, named = contract.generate.text, contract.generate.base_model
    if text is None or text.evolution is None or contract.text_column is None or named is None:
        raise ContractError(f"{contract.dataset}: generate: no text is written; accepted: a text column, and evolution")
    evolution = text.evolution
    columns = columns_plan(contract, schema, guarantee, period)
    counts, chosen = counted.event_of(columns), resampling_of(contract, guarantee)
    sigma = noise_for(
        lambda noise: _together(counts, noise, evolution.rounds, chosen, guarantee),
        guarantee.epsilon,
        guarantee.delta,
    ).value
    declared = evolution.endpoint
    parameters = EvolutionParameters(
        columns=columns,
        layout=layout_of(contract),
        rounds=Rounds(evolution.rounds, evolution.variations, evolution.lookahead),
        sigma=sigma,
        population=_population(contract, evolution, sigma),
        threshold=evolution.threshold,
        wording=Wording(
            about=contract.public_words(evolution),
            hints=tuple(evolution.hints),
            ways=tuple(evolution.ways),
            blanks=evolution.blanks,
            words=max(1, int(WORDS_PER_TOKEN * text.max_tokens)),
        ),
        sampling=replace(terms_of(contract).sampling, max_tokens=text.max_tokens),
        base_model=named,
        base_digest="" if base is None else base.digest,
        endpoint=None if declared is None else Endpoint(declared.url, named),
        memory_bytes=0 if base is None else memory_bytes(base, full=False),
        resampling=chosen,
    )
    return SealedPlan(
        method=method,
        why=why,
        dataset=contract.dataset,
        period=period,
        mechanism_digest=canonical_digest(contract.mechanism_snapshot()),
        columns=counted.domains(columns),
        release=release_schema(contract, schema).to_json(),
        parameters=parameters.to_json(),
        event=event_to_json(parameters.event(guarantee)),
        guarantee=guarantee.to_json(),
    )


def check(plan: SealedPlan) -> EvolutionParameters:
    """The plan's parts, if the sealed event is what they cost (invariant: no drift).

    Raises:
        GrantRefused: it is not.
    """
    parameters = EvolutionParameters.of(plan)
    if event_to_json(parameters.event(Guarantee.from_json(plan.guarantee))) != plan.event:
        raise GrantRefused("the plan's privacy event is not that of its parts; materialize the line from raw")
    counted.check(parameters.columns, plan)
    return parameters


def _together(
    counts: DpEvent | None, sigma: float, rounds: int, chosen: Resampling | None, guarantee: Guarantee
) -> DpEvent:
    """What counts, the votes of all rounds, and those for clusters cost together."""
    neighbours = (guarantee.adjacency, guarantee.max_contributions)
    votes = dp_event.SelfComposedDpEvent(GaussianVotesEvent(sigma, *neighbours), rounds)
    return counted.together(counts, votes, *(() if chosen is None else (chosen.event(*neighbours),)))


def _population(contract: DataContract, evolution: Evolution, sigma: float) -> int:
    """How many candidates live on: those that are declared, or as many as noise leaves something of."""
    if evolution.population != "auto":
        return evolution.population
    most = contract.privacy.expected_units / (LEAST_OVER_NOISE * sigma * (evolution.variations + 1))
    return max(POPULATIONS[0], min(POPULATIONS[1], int(most)))
