"""The plan of a text line, from public inputs alone: a model of the columns, and the training of a language model.

What belongs here: how the guarantee is shared, the plan's parts and its event, and reading them back. What does not:
running any of it (`dp_finetune`).

A part of epsilon goes to noisy counts of the modelled columns (`generate.text.columns_share`, or what noise of
`generate.text.topics.noise` costs where texts are sorted by topics), by whichever method suits them; how often each
label or topic occurs is known from these and from nothing else. The rest is for training: its noise is calibrated so
that both together cost what the contract asks for, in one composition. Where texts are chosen by clustered votes
(`generate.text.resample`), these are a part of it, with the noise that is declared. Where no column is counted
(`counted`), the whole guarantee is for the training, and for such votes.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, replace
from typing import Any

import pyarrow as pa

from dpsynth_platform.contracts.columns import CategoricalColumn
from dpsynth_platform.contracts.columns import conditioning_values as conditioning_values
from dpsynth_platform.contracts.contract import DataContract
from dpsynth_platform.contracts.text_generation import (
    KEYWORDS_COLUMN,
    TOPIC_LEVELS,
    Training,
    batch_size,
    training_units,
)
from dpsynth_platform.foundation.digests import canonical_digest
from dpsynth_platform.foundation.errors import AccountingError, ContractError, GrantRefused
from dpsynth_platform.privacy.accounting import epsilon
from dpsynth_platform.privacy.calibration import noise_for
from dpsynth_platform.privacy.events import DpEvent, event_to_json, histogram_event
from dpsynth_platform.privacy.guarantee import Guarantee
from dpsynth_platform.privacy.units import vote_sensitivity
from dpsynth_platform.synth.interface import SealedPlan, generator
from dpsynth_platform.synth.tabular.restore import release_schema
from dpsynth_platform.synth.text import counted
from dpsynth_platform.synth.text.base_models import BaseModel
from dpsynth_platform.synth.text.layout import Condition, TextLayout
from dpsynth_platform.synth.text.resampling import Resampling
from dpsynth_platform.synth.text.topics import TopicChoice, load_topics
from dpsynth_platform.training.plan import Adapter, TrainingPlan

LEAST_OVER_NOISE = 3
"""How many times the noise of its count a topic holds on average, if the plan chooses how many topics there are."""
_SHARE_BITS = 10
_CLEARLY_MORE = 1.25
"""Of the noise that alone takes all there is, what leaves something for the rest."""
COPIES_IN_FULL = 8
"""Weights, gradients, the optimizer's two averages, and in double precision the sums of a batch and of one owner."""
ACTIVATION_BYTES = 2 * 2**30
"""Training takes as many records at once as fit, up to about this."""


@dataclass(frozen=True)
class TextParameters:
    """The parts of a sealed plan's `parameters`. Public.

    Attributes:
        columns: the plan of the modelled columns; None where none is counted.
        training: the plan of the training.
        layout: how records are written for the model.
        base_model: the name by which the contract names the model that training starts from.
        base_digest: digest of its weights, tokenizer and config.
        memory_bytes: about how much training takes beside the program itself.
        topics: by which texts are sorted, for methods that do.
        resampling: how texts are chosen by clustered votes, where they are.
    """

    columns: counted.Columns
    training: TrainingPlan
    layout: TextLayout
    base_model: str
    base_digest: str
    memory_bytes: int
    topics: TopicChoice | None = None
    resampling: Resampling | None = None

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {
            "columns": counted.to_json(self.columns),
            "training": self.training.to_json(),
            "layout": self.layout.to_json(),
            "base_model": self.base_model,
            "base_digest": self.base_digest,
            "memory_bytes": self.memory_bytes,
            **({} if self.topics is None else {"topics": asdict(self.topics)}),
            **({} if self.resampling is None else {"resampling": asdict(self.resampling)}),
        }

    @classmethod
    def of(cls, plan: SealedPlan) -> TextParameters:
        """Reads a sealed plan's back. Raises `GrantRefused` if it is not that of a text line."""
        try:
            parts = plan.parameters
            return cls(
                columns=counted.from_json(parts["columns"]),
                training=TrainingPlan.from_json(parts["training"]),
                layout=TextLayout.from_json(parts["layout"]),
                base_model=parts["base_model"],
                base_digest=parts["base_digest"],
                memory_bytes=parts["memory_bytes"],
                topics=TopicChoice(**parts["topics"]) if "topics" in parts else None,
                resampling=Resampling(**parts["resampling"]) if "resampling" in parts else None,
            )
        except (KeyError, TypeError):
            raise GrantRefused("the sealed plan is of no text line; materialize the line from raw again") from None

    @property
    def most_rows(self) -> int:
        """The most examples of a unit that is sampled."""
        records = self.training.max_contributions if self.training.sampled == "user" else 1
        return records * self.layout.chunks_per_record

    @property
    def event(self) -> DpEvent:
        """What counting the columns, training, and the votes for its texts cost together."""
        return self.event_of(self.training.paid_steps)

    def event_of(self, steps: int) -> DpEvent:
        """What counting the columns, so many executed steps of training, and the votes cost together."""
        neighbours = (self.training.adjacency, self.training.max_contributions)
        votes = () if self.resampling is None else (self.resampling.event(*neighbours),)
        return counted.together(counted.event_of(self.columns), self.training.event_of(steps), *votes)


def sealed(
    method: str,
    contract: DataContract,
    schema: pa.Schema,
    guarantee: Guarantee,
    base: BaseModel,
    *,
    period: str | None,
    why: str,
) -> SealedPlan:
    """The plan of a text line.

    Args:
        method: the generator's name.
        contract: declares the columns, the text and the training.
        schema: of the source.
        guarantee: what both parts may cost together.
        base: the model that training starts from.
        period: of a dataset with a cadence.
        why: why this method was chosen.

    Raises:
        ContractError: the columns cannot be modelled, or the text column cannot be written.
        AccountingError: no noise meets the guarantee.
    """
    text, training = contract.generate.text, contract.generate.training
    if text is None or training is None or contract.text_column is None:
        raise ContractError(f"{contract.dataset}: generate: no text is written; accepted: a text column, and training")
    topics = topics_of(contract, guarantee)
    columns = columns_plan(contract, schema, guarantee, period, topics)
    counts, chosen = counted.event_of(columns), resampling_of(contract, guarantee)
    votes = () if chosen is None else (chosen.event(guarantee.adjacency, guarantee.max_contributions),)
    parameters = TextParameters(
        columns=columns,
        training=TrainingPlan.calibrated(
            guarantee,
            beside=lambda trained: counted.together(counts, trained, *votes),
            **_training_parameters(contract, training),
        ),
        layout=layout_of(contract, topics),
        base_model=base.declared,
        base_digest=base.digest,
        memory_bytes=memory_bytes(base, full=training.adapter == "none"),
        topics=topics,
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
        event=event_to_json(parameters.event),
        guarantee=guarantee.to_json(),
    )


def started_from(plan: SealedPlan) -> tuple[str, str] | None:
    """By what name, and with which digest, a text line's plan has a language model on this machine; None: it has none.

    Raises:
        GrantRefused: the plan is of no text line.
    """
    try:
        named, digest = str(plan.parameters["base_model"]), str(plan.parameters["base_digest"])
    except KeyError:
        raise GrantRefused("the sealed plan is of no text line; materialize the line from raw again") from None
    return (named, digest) if digest else None


def check(plan: SealedPlan) -> TextParameters:
    """The plan's parts, if the sealed event is what they cost (invariant: no drift).

    Raises:
        GrantRefused: it is not, or the parts are of another guarantee.
    """
    parameters = TextParameters.of(plan)
    guarantee = Guarantee.from_json(plan.guarantee)
    training = parameters.training
    alike = (training.adjacency, training.max_contributions) == (guarantee.adjacency, guarantee.max_contributions)
    if not alike or event_to_json(parameters.event) != plan.event:
        raise GrantRefused("the plan's privacy event is not that of its parts; materialize the line from raw")
    counted.check(parameters.columns, plan)
    return parameters


def layout_of(contract: DataContract, topics: TopicChoice | None = None) -> TextLayout:
    """How a contract's records are written for the model; a topic heads the prompt."""
    text = contract.generate.text
    if text is None or contract.text_column is None:
        raise ContractError(f"{contract.dataset}: generate: no text is written")
    sorted_by = () if topics is None else (Condition(KEYWORDS_COLUMN, topics.load().labels),)
    told = (Condition(name, conditioning_values(contract.columns[name])) for name in contract.conditioning_columns)
    return TextLayout(
        fields=(contract.text_column,),
        conditions=(*sorted_by, *told),
        max_tokens=text.max_tokens,
        chunks_per_record=text.chunks,
    )


def topics_of(contract: DataContract, guarantee: Guarantee) -> TopicChoice | None:
    """The topics that texts are sorted by, if any: by default as many as noise leaves something of.

    Raises:
        ConfigurationError: there is no such topic model.
    """
    declared = None if contract.generate.text is None else contract.generate.text.topics
    if declared is None:
        return None
    level = _level(contract, declared.noise, guarantee) if declared.count == "auto" else declared.count
    found = load_topics(declared.model, level)
    return TopicChoice(found.name, level, found.digest)


def _level(contract: DataContract, noise: float, guarantee: Guarantee) -> int:
    privacy = contract.privacy
    records = privacy.expected_units * (1 if privacy.multi_owner else privacy.max_contributions)
    most = records / (LEAST_OVER_NOISE * noise * guarantee.sensitivity.l2)
    return max((count for count in TOPIC_LEVELS if count <= most), default=min(TOPIC_LEVELS))


def memory_bytes(base: BaseModel, *, full: bool) -> int:
    """Weights, with gradients, sums and averages where all are trained, and room for the activations of a batch."""
    weights = sum(file.stat().st_size for file in base.directory.glob("*.safetensors"))
    return weights * (COPIES_IN_FULL if full else 1) + ACTIVATION_BYTES


def resampling_of(contract: DataContract, guarantee: Guarantee) -> Resampling | None:
    """How a contract's texts are chosen by clustered votes, if they are.

    Raises:
        AccountingError: their noise alone costs all there is.
    """
    declared = None if contract.generate.text is None else contract.generate.text.resample
    if declared is None:
        return None
    neighbours = (guarantee.adjacency, guarantee.max_contributions)
    reach = vote_sensitivity(*neighbours).l2
    chosen = Resampling(declared.clusters, declared.noise * reach, declared.pool)
    alone = epsilon(chosen.event(*neighbours), guarantee.delta).epsilon
    if alone >= guarantee.epsilon:
        all_of_it = noise_for(
            lambda sigma: replace(chosen, sigma=sigma).event(*neighbours), guarantee.epsilon, guarantee.delta
        )
        raise AccountingError(
            f"generate.text.resample.noise: {declared.noise:g} alone costs epsilon {alone:.3g} of "
            f"{guarantee.epsilon:g}; accepted: {_CLEARLY_MORE * all_of_it.value / reach:.3g} or more, or a higher "
            "epsilon"
        )
    return chosen


def columns_plan(
    contract: DataContract,
    schema: pa.Schema,
    guarantee: Guarantee,
    period: str | None,
    topics: TopicChoice | None = None,
) -> counted.Columns:
    """The plan of the modelled columns alone, the topic among them, by the method that `auto` stands for.

    Arguments and errors as for `sealed`; `guarantee` is of the whole, of which it takes `generate.text.columns_share`
    or what the noise of topics costs. None where no column is counted: then nothing is taken.
    """
    from dpsynth_platform.synth.automatic import method_for

    if not counted.counts_columns(contract):
        return None
    generate = contract.generate.model_copy(
        update={"method": "auto", "text": None, "training": None, "base_model": None}
    )
    columns = dict(contract.columns)
    if topics is not None:
        columns[KEYWORDS_COLUMN] = CategoricalColumn(type="categorical", values=list(topics.load().labels))
        schema = schema.append(pa.field(KEYWORDS_COLUMN, pa.string()))
    alone = contract.model_copy(update={"generate": generate, "columns": columns})
    chosen = method_for(alone, period)
    part = _for_columns(contract, guarantee)
    return generator(chosen.method).plan(alone, schema, part, period=period, why=chosen.why)


def _for_columns(contract: DataContract, guarantee: Guarantee) -> Guarantee:
    """What counting may cost: a share, or what noise of the declared multiple of a unit's reach costs.

    Raises:
        AccountingError: that noise alone costs all there is.
    """
    text = contract.generate.text
    assert text is not None  # noqa: S101  (`sealed` has refused it)
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
    """A number or up to two thousandths less, in few binary digits: the last ones hang on the processor, and names of
    runs hang on their plans, which on two machines must not be two, each to be paid for."""
    mantissa, exponent = math.frexp(number)
    return math.ldexp(math.floor(math.ldexp(mantissa, _SHARE_BITS)), exponent - _SHARE_BITS)


def _training_parameters(contract: DataContract, training: Training) -> dict[str, Any]:
    units = training_units(contract.privacy, training)
    adapter = training.adapter
    return {
        "sampled": "user" if training.sampled == "owners" else "record",
        "units": units,
        "batch_size": batch_size(training, units),
        "steps": training.steps,
        "replay_allowance": training.allowance,
        "clipping_norm": training.clipping_norm,
        "clipping": training.clipping,
        "optimizer": training.optimizer,
        "learning_rate": training.learning_rate,
        "warmup_steps": training.warmup_steps,
        "decay": training.decay,
        "weight_decay": training.weight_decay,
        "adapter": None if adapter == "none" else Adapter(adapter.rank, adapter.alpha),
    }
