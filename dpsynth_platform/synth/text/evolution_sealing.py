"""The plan of a private evolution, from public inputs only: a model of the columns, and rounds of votes.

What belongs here: how the guarantee is divided, the plan's parts and its event. What does not: running any of it
(`evolution`).

Noisy counts of the columns take `generate.text.columns_share` and give the number of texts of each label; the noise of
all rounds' votes is calibrated in one composition with them. The candidates of a round follow from the noisy votes
before it, which full adaptive composition allows.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from dp_accounting import dp_event

from dpsynth_platform.contracts.contract import DataContract
from dpsynth_platform.contracts.text_generation import RETRIEVE, Evolution, TextGeneration
from dpsynth_platform.foundation.errors import ContractError, GrantRefused
from dpsynth_platform.privacy.calibration import noise_for
from dpsynth_platform.privacy.events import DpEvent, GaussianVotesEvent
from dpsynth_platform.privacy.guarantee import Guarantee
from dpsynth_platform.synth import counted
from dpsynth_platform.synth.endpoint_access import Endpoint
from dpsynth_platform.synth.evolution.loop import Rounds
from dpsynth_platform.synth.interface import PlanInputs
from dpsynth_platform.synth.sealed_parameters import Readers
from dpsynth_platform.synth.tabular.public_rows import SealedRows
from dpsynth_platform.synth.text.base_models import BaseModel
from dpsynth_platform.synth.text.evolution_prompts import Wording
from dpsynth_platform.synth.text.public_texts import sealed_texts
from dpsynth_platform.synth.text.resampling import Choice
from dpsynth_platform.synth.text.sampling import Sampling
from dpsynth_platform.synth.text.sealing import (
    PlanParameters,
    columns_plan,
    layout_of,
    memory_bytes,
    resampling_of,
    whole_event,
)
from dpsynth_platform.synth.text.terms import terms_of

LEAST_OVER_NOISE = 3
"""The plan chooses at most as many candidates as each get so many times the noise of their votes, on average."""
POPULATIONS = (10, 2000)
"""The fewest and the most survivors, if the plan chooses how many."""
ROWS_PER_TEXT = 20
"""Rows of the columns' model for each survivor; by their labels the population is divided."""
WORDS_PER_TOKEN = 0.75
"""English words of a language model's token, about."""


@dataclass(frozen=True, kw_only=True)
class EvolutionParameters(PlanParameters):
    """The parameters of an evolution.

    Attributes:
        sigma: the noise of each round's votes, in votes.
        population: how many candidates survive a round, of all groups together.
        threshold: votes that weigh nothing, as a multiple of `sigma`.
        endpoint: where the model is, if it is not on this machine.
        nearest: the number of candidates that share a record's vote; None: one.
        public: the public table whose texts are the first candidates; None: a model writes these.
        federated: of a run over several participants, which has its own noise and cost: its terms.
    """

    KIND = "private evolution"
    READERS: ClassVar[Readers] = {
        "rounds": lambda part: Rounds(**part),
        "wording": Wording.from_json,
        "sampling": lambda part: Sampling(**part),
        "endpoint": lambda part: None if part is None else Endpoint(**part),
        "public": lambda part: SealedRows(**part),
    }

    rounds: Rounds
    sigma: float
    population: int
    threshold: float
    wording: Wording
    sampling: Sampling
    endpoint: Endpoint | None
    nearest: int | None = None
    public: SealedRows | None = None
    federated: Mapping[str, Any] | None = None

    @classmethod
    def calibrated(cls, inputs: PlanInputs, base: BaseModel | None) -> EvolutionParameters:
        """The parameters with the least noise of the votes.

        Args:
            base: the model that writes; None where an endpoint has it, or none is asked.

        Raises:
            ContractError, ConfigurationError: as `with_noise`; or the columns cannot be modelled.
            AccountingError: no noise meets the guarantee.
        """
        contract, guarantee = inputs.contract, inputs.guarantee
        rounds = _declared(contract)[1].rounds
        columns, chosen = columns_plan(inputs), resampling_of(contract, guarantee)
        sigma = noise_for(
            lambda noise: whole_event(columns, _votes(noise, rounds, guarantee), chosen, guarantee),
            guarantee.epsilon,
            guarantee.delta,
        ).value
        return cls.with_noise(contract, base, sigma, columns, chosen)

    @classmethod
    def with_noise(
        cls,
        contract: DataContract,
        base: BaseModel | None,
        sigma: float,
        columns: counted.Columns,
        chosen: Choice | None = None,
    ) -> EvolutionParameters:
        """The contract's parameters with this noise of the votes, beside columns and a choice that are planned.

        Raises:
            ContractError: the text column cannot be written.
            ConfigurationError: the public table cannot be read, or has no text.
        """
        text, evolution, named = _declared(contract)
        declared = evolution.endpoint
        return cls(
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
            nearest=None if evolution.nearest == 1 else evolution.nearest,
            public=None if contract.generate.public is None else sealed_texts(contract.generate.public, contract),
        )

    @property
    def retrieves(self) -> bool:
        """Whether texts of the public table are variations."""
        return RETRIEVE in self.wording.ways

    @property
    def asks_model(self) -> bool:
        """Whether a model writes any text."""
        return self.wording.ways != (RETRIEVE,)

    @property
    def labels(self) -> int:
        """The most groups of texts."""
        return math.prod(len(condition.values) for condition in self.layout.conditions)

    @property
    def survivors(self) -> int:
        """The most survivors of a round: at least one of each label that occurs, even in a smaller population."""
        return max(self.population, min(self.labels, ROWS_PER_TEXT * self.population))

    @property
    def candidates(self) -> int:
        """How many texts a round votes on."""
        return self.survivors * (self.rounds.variations + 1)

    @property
    def prompts(self) -> int:
        """At most how many texts a model is asked for until the last vote, without `evolution_prompts.TRIES`."""
        if not self.asks_model:
            return 0
        varied = (self.rounds.rounds - 1) * self.rounds.variations * self.survivors
        ahead = self.rounds.rounds * self.rounds.lookahead * self.candidates
        clustered = 0 if self.resampling is None else max(0, self.resampling.texts - self.survivors)
        return (self.candidates if self.public is None else 0) + varied + ahead + clustered

    def own_event(self, guarantee: Guarantee) -> DpEvent:
        if self.federated is not None:
            raise GrantRefused("the plan of a federated run; accepted: its participants, each with its own ledger")
        return _votes(self.sigma, self.rounds.rounds, guarantee)


def _declared(contract: DataContract) -> tuple[TextGeneration, Evolution, str]:
    """The contract's text and evolution, and its model's name. Raises `ContractError` if no text evolves."""
    text, named = contract.generate.text, contract.generate.base_model
    if contract.generate.asks_no_model:
        named = ""
    if text is None or text.evolution is None or contract.text_column is None or named is None:
        raise ContractError(f"{contract.dataset}: generate: no text is written; accepted: a text column, and evolution")
    return text, text.evolution, named


def _votes(sigma: float, rounds: int, guarantee: Guarantee) -> DpEvent:
    event = GaussianVotesEvent(sigma, guarantee.adjacency, guarantee.max_contributions)
    return dp_event.SelfComposedDpEvent(event, rounds)


def _population(contract: DataContract, evolution: Evolution, sigma: float) -> int:
    """How many candidates survive: the declared number, or as many as get votes well above the noise."""
    if evolution.population != "auto":
        return evolution.population
    votes = contract.privacy.expected_units * math.sqrt(evolution.nearest)  # see `units.vote_sensitivity`
    most = votes / (LEAST_OVER_NOISE * sigma * (evolution.variations + 1))
    return max(POPULATIONS[0], min(POPULATIONS[1], int(most)))
