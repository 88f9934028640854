"""The plan of a text line, from public inputs only: a model of the columns, and the training of a language model.

What belongs here: how the guarantee is divided, the plan's parts and its event, and reading them back; `PlanParameters`
is the part that all methods with texts share. What does not: running any of it (`dp_finetune`).

A part of epsilon goes to noisy counts of the modelled columns (`generate.text.columns_share`, or the cost of the noise
`generate.text.topics.noise` where texts are sorted by topics), by whichever method suits them; the frequency of each
label or topic is known from these counts only. The rest is for training: its noise is calibrated so that the
composition of both costs what the contract asks for. Clustered votes for texts, or sums of their features by label
(`generate.text.resample`), are in the same composition, with the declared noise or for a tenth of the budget. Where no
column is counted (`counted`), the whole guarantee is for the training and for such votes or sums.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from dpsynth_platform.contracts.columns import CategoricalColumn, conditioning_values
from dpsynth_platform.contracts.contract import DataContract
from dpsynth_platform.contracts.text_generation import (
    KEYWORDS_COLUMN,
    Topics,
    Training,
    batch_size,
    training_units,
)
from dpsynth_platform.foundation.errors import AccountingError, ContractError, GrantRefused
from dpsynth_platform.privacy.accounting import epsilon
from dpsynth_platform.privacy.calibration import NOISE_STEP, noise_for
from dpsynth_platform.privacy.events import DpEvent, histogram_event
from dpsynth_platform.privacy.guarantee import Guarantee
from dpsynth_platform.synth import counted
from dpsynth_platform.synth.conditions import Condition
from dpsynth_platform.synth.interface import PlanInputs, SealedPlan
from dpsynth_platform.synth.sealed_parameters import Readers, SealedParameters
from dpsynth_platform.synth.text.base_models import BaseModel
from dpsynth_platform.synth.text.labelling import LabelChoice
from dpsynth_platform.synth.text.layout import TextLayout
from dpsynth_platform.synth.text.resampling import Choice, Resampling
from dpsynth_platform.synth.text.topics import TopicChoice, load_topics, topic_levels
from dpsynth_platform.training.plan import Adapter, TrainingPlan

LEAST_OVER_NOISE = 3
"""The plan chooses at most as many topics as each hold so many times the noise of its count, on average."""
_SHARE_BITS = 10
_CLEARLY_MORE = 1.25
"""Of the noise that alone costs the whole epsilon: so much noise leaves a part for the other mechanisms."""
_SHARE_OF_CHOICE = 0.1
"""Of the budget for a choice among texts whose noise is `auto`."""
COPIES_IN_FULL = 8
"""Weights, gradients, the optimizer's two averages, and in double precision the sums of a batch and of one owner."""
ACTIVATION_BYTES = 2 * 2**30
"""The activations of the records that training processes together, about."""


@dataclass(frozen=True, kw_only=True)
class PlanParameters(SealedParameters):
    """The shared parts of the `parameters` in sealed plans with texts.

    Attributes:
        layout: the text column, and the columns that a text is written for.
        base_model: the contract's name of the language model.
        base_digest: digest of its weights, tokenizer and config; empty where an endpoint has the model.
        memory_bytes: about how much the method takes in addition to the program itself.
        resampling: how texts are chosen by clustered votes, or by sums by label; None where they are not.
        topics: by which texts are sorted; None where they are not.
    """

    SHARED: ClassVar[Readers] = {
        "layout": TextLayout.from_json,
        "resampling": lambda part: choice_from_json(part),
        "topics": lambda part: TopicChoice(**part),
    }

    layout: TextLayout
    base_model: str
    base_digest: str
    memory_bytes: int
    resampling: Choice | None = None
    topics: TopicChoice | None = None

    def event(self, guarantee: Guarantee) -> DpEvent:
        return whole_event(self.columns, self.own_event(guarantee), self.resampling, guarantee)


def whole_event(columns: counted.Columns, own: DpEvent, chosen: Choice | None, guarantee: Guarantee) -> DpEvent:
    """The cost of counting the columns, of the text's mechanism and of the votes or sums together."""
    votes = () if chosen is None else (chosen.event(guarantee.adjacency, guarantee.max_contributions),)
    return counted.together(columns, own, *votes)


@dataclass(frozen=True, kw_only=True)
class TextParameters(PlanParameters):
    """The parameters of a training."""

    KIND = "training on texts"
    READERS: ClassVar[Readers] = {"training": TrainingPlan.from_json}

    training: TrainingPlan

    @classmethod
    def calibrated(cls, inputs: PlanInputs, base: BaseModel) -> TextParameters:
        """The parameters with the least noise of the training.

        Raises:
            ContractError: the columns cannot be modelled, or the text column cannot be written.
            AccountingError: no noise meets the guarantee.
        """
        contract, guarantee = inputs.contract, inputs.guarantee
        text, training = contract.generate.text, contract.generate.training
        if text is None or training is None or contract.text_column is None:
            raise ContractError(
                f"{contract.dataset}: generate: no text is written; accepted: a text column, and training"
            )
        topics = topics_of(contract, guarantee)
        columns, chosen = columns_plan(inputs, topics), resampling_of(contract, guarantee)
        return cls(
            columns=columns,
            training=TrainingPlan.calibrated(
                guarantee,
                beside=lambda trained: whole_event(columns, trained, chosen, guarantee),
                **_training_parameters(contract, training),
            ),
            layout=layout_of(contract, topics),
            base_model=base.declared,
            base_digest=base.digest,
            memory_bytes=memory_bytes(base, full=training.adapter == "none"),
            topics=topics,
            resampling=chosen,
        )

    @property
    def neighbours(self) -> tuple[str, int]:
        return self.training.adjacency, self.training.max_contributions

    @property
    def most_rows(self) -> int:
        """The most examples of a unit that is sampled."""
        records = self.training.max_contributions if self.training.sampled == "user" else 1
        return records * self.layout.chunks_per_record

    def own_event(self, guarantee: Guarantee) -> DpEvent:
        return self.training.event


def started_from(plan: SealedPlan) -> tuple[str, str] | None:
    """Name and digest of a plan's language model on this machine; None where an endpoint has the model.

    Raises:
        GrantRefused: the plan writes no texts.
    """
    try:
        named, digest = str(plan.parameters["base_model"]), str(plan.parameters["base_digest"])
    except KeyError:
        raise GrantRefused("the sealed plan writes no texts; materialize the line from raw again") from None
    return (named, digest) if digest else None


def layout_of(contract: DataContract, topics: TopicChoice | None = None) -> TextLayout:
    """How a contract's records are written for the model; a topic is the prompt's first line."""
    text = contract.generate.text
    if text is None or contract.text_column is None:
        raise ContractError(f"{contract.dataset}: generate: no text is written")
    sorted_by = () if topics is None else (Condition(KEYWORDS_COLUMN, topics.load().labels),)
    columns = (Condition(name, conditioning_values(contract.columns[name])) for name in contract.conditioning_columns)
    return TextLayout(
        fields=(contract.text_column,),
        conditions=(*sorted_by, *columns),
        max_tokens=text.max_tokens,
        chunks_per_record=text.chunks,
    )


def topics_of(contract: DataContract, guarantee: Guarantee) -> TopicChoice | None:
    """The topics that texts are sorted by, if any; by default as many as can be counted above the noise.

    Of DP inference, there are also by default at most as many as there are contexts: each context has one.

    Raises:
        ConfigurationError: there is no such topic model, or it lacks the declared number of topics.
    """
    declared = None if contract.generate.text is None else contract.generate.text.topics
    if declared is None:
        return None
    level = _level(contract, declared, guarantee) if declared.count == "auto" else declared.count
    found = load_topics(declared.model, level)
    return TopicChoice(found.name, level, found.digest)


def _level(contract: DataContract, declared: Topics, guarantee: Guarantee) -> int:
    privacy = contract.privacy
    records = privacy.expected_units * (1 if privacy.multi_owner else privacy.max_contributions)
    most = records / (LEAST_OVER_NOISE * declared.noise * guarantee.sensitivity.l2)
    text = contract.generate.text
    if text is not None and text.inference is not None:
        most = min(most, privacy.expected_units // text.inference.batch_size)
    levels = topic_levels(declared.model)
    return max((count for count in levels if count <= most), default=min(levels))


def memory_bytes(base: BaseModel, *, full: bool) -> int:
    """Weights and the activations of a batch; with gradients, sums and averages if all weights are trained (`full`)."""
    weights = sum(file.stat().st_size for file in base.directory.glob("*.safetensors"))
    return weights * (COPIES_IN_FULL if full else 1) + ACTIVATION_BYTES


def choice_from_json(part: dict[str, Any]) -> Choice:
    """A plan's choice among texts. Raises `KeyError` or `TypeError` if it is none."""
    return LabelChoice.from_json(part) if "label" in part else Resampling(**part)


def resampling_of(contract: DataContract, guarantee: Guarantee) -> Choice | None:
    """How a contract's texts are chosen by clustered votes or by sums by label, if they are.

    Raises:
        AccountingError: the votes or sums alone cost the whole epsilon.
    """
    declared = None if contract.generate.text is None else contract.generate.text.resample
    if declared is None:
        return None
    neighbours, label = (guarantee.adjacency, guarantee.max_contributions), contract.label_column

    def chosen(sigma: float) -> Choice:
        if label is not None:
            return LabelChoice(Condition(label, conditioning_values(contract.columns[label])), sigma, declared.pool)
        assert declared.clusters is not None  # noqa: S101  (the contract fills it in)
        return Resampling(declared.clusters, sigma, declared.pool)

    def all_of_it() -> float:
        least = noise_for(lambda sigma: chosen(sigma).event(*neighbours), guarantee.epsilon, guarantee.delta)
        return least.value

    if declared.noise == "auto":
        # Inverse variances of Gaussian noise add up in a composition.
        return chosen(math.ceil(all_of_it() / math.sqrt(_SHARE_OF_CHOICE) / NOISE_STEP) * NOISE_STEP)
    reach = chosen(1.0).event(*neighbours).sensitivity.l2
    found = chosen(declared.noise * reach)
    alone = epsilon(found.event(*neighbours), guarantee.delta).epsilon
    if alone >= guarantee.epsilon:
        raise AccountingError(
            f"generate.text.resample.noise: {declared.noise:g} alone costs epsilon {alone:.3g} of "
            f"{guarantee.epsilon:g}; accepted: {_CLEARLY_MORE * all_of_it() / reach:.3g} or more, or a higher epsilon"
        )
    return found


def columns_plan(inputs: PlanInputs, topics: TopicChoice | None = None) -> counted.Columns:
    """The plan of the modelled columns and of the topic, by the method that `auto` chooses for them.

    It takes `generate.text.columns_share` of the guarantee, or the cost of the topics' noise. None where no column is
    counted: then it takes nothing. Raises as `Generator.plan`.
    """
    if not counted.counts_columns(inputs.contract):
        return None
    extra = {}
    if topics is not None:
        extra[KEYWORDS_COLUMN] = CategoricalColumn(type="categorical", values=list(topics.load().labels))
    return counted.planned(inputs, part_for_columns(inputs.contract, inputs.guarantee), extra)


def part_for_columns(contract: DataContract, guarantee: Guarantee) -> Guarantee:
    """What counting may cost: a share, or the cost of noise that is the declared multiple of a unit's sensitivity.

    Raises:
        AccountingError: that noise alone costs the whole epsilon, or leaves nothing.
    """
    text = contract.generate.text
    assert text is not None  # noqa: S101  (`calibrated` has refused it)
    share = text.columns_share
    part = replace(guarantee, epsilon=share * guarantee.epsilon, delta=share * guarantee.delta)
    if text.topics is None:
        return part
    sigma = text.topics.noise * guarantee.sensitivity.l2
    counts = histogram_event(sigma, guarantee.adjacency, guarantee.max_contributions, discrete=False)
    alone = _shortened(epsilon(counts, part.delta).epsilon)
    if alone == 0:
        raise AccountingError(
            f"generate.text.topics.noise: {text.topics.noise:g} leaves nothing to count by; accepted: less noise"
        )
    if alone >= guarantee.epsilon:
        raise AccountingError(
            f"generate.text.topics.noise: {text.topics.noise:g} alone costs epsilon {alone:.3g} of "
            f"{guarantee.epsilon:g}; accepted: more noise, or a higher epsilon"
        )
    return replace(part, epsilon=alone)


def _shortened(number: float) -> float:
    """The number rounded down to few binary digits, by two thousandths at most.

    The last digits depend on the processor. Two machines must make the same plan: it names the run that is paid for.
    """
    mantissa, exponent = math.frexp(number)
    return math.ldexp(math.floor(math.ldexp(mantissa, _SHARE_BITS)), exponent - _SHARE_BITS)


def _training_parameters(contract: DataContract, training: Training) -> dict[str, Any]:
    units, adapter = training_units(contract.privacy, training), training.adapter
    return training.model_dump(exclude={"expected_records", "replay_steps"}) | {
        "sampled": "user" if training.sampled == "owners" else "record",
        "units": units,
        "batch_size": batch_size(training, units),
        "replay_allowance": training.allowance,
        "adapter": None if adapter == "none" else Adapter(adapter.rank, adapter.alpha),
    }
