"""The plan of DP inference, from public inputs alone: noisy counts of the columns, and what is drawn beside them.

What belongs here: how the guarantee is shared, the plan's parts and its event, and reading them back. What does not:
what a token costs (`inference_plan`), running any of it (`inference`).

A part of epsilon goes to noisy counts of the modelled columns (`generate.text.columns_share`), from which follows how
many contexts each label has. The rest is for tokens: as many as both together have room for. Where no column is counted
(`counted`), all of it is. Votes for clusters of the documents, by which some are chosen (`generate.text.resample`),
have the noise that is declared, and are a part of the same composition.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import pyarrow as pa

from dpsynth_platform.contracts.contract import DataContract
from dpsynth_platform.foundation.digests import canonical_digest
from dpsynth_platform.foundation.errors import ContractError, GrantRefused
from dpsynth_platform.privacy.events import DpEvent, event_to_json
from dpsynth_platform.privacy.guarantee import Guarantee
from dpsynth_platform.synth.interface import SealedPlan
from dpsynth_platform.synth.tabular.restore import release_schema
from dpsynth_platform.synth.text import counted
from dpsynth_platform.synth.text.base_models import BaseModel
from dpsynth_platform.synth.text.inference_model import MOST_ROWS
from dpsynth_platform.synth.text.inference_plan import InferencePlan
from dpsynth_platform.synth.text.layout import TextLayout
from dpsynth_platform.synth.text.resampling import Resampling
from dpsynth_platform.synth.text.sealing import columns_plan, layout_of, memory_bytes, resampling_of


@dataclass(frozen=True)
class InferenceParameters:
    """The parts of a sealed plan's `parameters`. Public.

    Attributes:
        columns: the plan of the modelled columns; None where none is counted.
        inference: what is drawn, and of how many contexts.
        layout: how records are written for the model.
        about: what the texts are, in public words.
        base_model: the name by which the contract names the model that is asked.
        base_digest: digest of its weights, tokenizer and config.
        memory_bytes: about how much one context takes beside the program itself.
        resampling: how documents are chosen by clustered votes, where they are.
    """

    columns: counted.Columns
    inference: InferencePlan
    layout: TextLayout
    about: str
    base_model: str
    base_digest: str
    memory_bytes: int
    resampling: Resampling | None = None

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {
            "columns": counted.to_json(self.columns),
            "inference": self.inference.to_json(),
            "layout": self.layout.to_json(),
            "about": self.about,
            "base_model": self.base_model,
            "base_digest": self.base_digest,
            "memory_bytes": self.memory_bytes,
            **({} if self.resampling is None else {"resampling": asdict(self.resampling)}),
        }

    @classmethod
    def of(cls, plan: SealedPlan) -> InferenceParameters:
        """Reads a sealed plan's back. Raises `GrantRefused` if it is not that of DP inference."""
        try:
            parts = plan.parameters
            return cls(
                columns=counted.from_json(parts["columns"]),
                inference=InferencePlan.from_json(parts["inference"]),
                layout=TextLayout.from_json(parts["layout"]),
                about=parts["about"],
                base_model=parts["base_model"],
                base_digest=parts["base_digest"],
                memory_bytes=parts["memory_bytes"],
                resampling=Resampling(**parts["resampling"]) if "resampling" in parts else None,
            )
        except (KeyError, TypeError):
            raise GrantRefused("the sealed plan is of no DP inference; materialize the line from raw again") from None

    @property
    def event(self) -> DpEvent:
        """What counting the columns, drawing tokens, and the votes for documents cost together."""
        neighbours = (self.inference.adjacency, self.inference.max_contributions)
        votes = () if self.resampling is None else (self.resampling.event(*neighbours),)
        return counted.together(counted.event_of(self.columns), self.inference.event, *votes)


def sealed(
    method: str,
    contract: DataContract,
    schema: pa.Schema,
    guarantee: Guarantee,
    base: BaseModel,
    *,
    row_bytes: int,
    period: str | None,
    why: str,
) -> SealedPlan:
    """The plan of a line whose texts are written by DP inference.

    Args:
        method: the generator's name.
        contract: declares the columns, the text and the inference.
        schema: of the source.
        guarantee: what both parts may cost together.
        base: the model that is asked.
        row_bytes: that one record of a context takes while documents are written.
        period: of a dataset with a cadence.
        why: why this method was chosen.

    Raises:
        ContractError: the columns cannot be modelled, the text column cannot be written, or the budget buys too few
            documents.
        AccountingError: no noise meets the guarantee.
    """
    generate = contract.generate
    if generate.text is None or generate.text.inference is None or contract.text_column is None:
        raise ContractError(f"{contract.dataset}: generate: no text is written; accepted: a text column, and inference")
    columns = columns_plan(contract, schema, guarantee, period)
    counts, chosen = counted.event_of(columns), resampling_of(contract, guarantee)
    votes = () if chosen is None else (chosen.event(guarantee.adjacency, guarantee.max_contributions),)
    inference = InferencePlan.calibrated(
        guarantee,
        generate.text.inference,
        units=contract.privacy.expected_units,
        rows=None if generate.rows == "auto" else generate.rows,
        chosen=chosen,
        beside=lambda drawn: counted.together(counts, drawn, *votes),
    )
    records = inference.records_kept + 2 * MOST_ROWS  # those left over of a batch, and one that is read again
    parameters = InferenceParameters(
        columns=columns,
        inference=inference,
        layout=layout_of(contract),
        about=about_of(contract),
        base_model=base.declared,
        base_digest=base.digest,
        memory_bytes=memory_bytes(base, full=False) + records * row_bytes,
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


def about_of(contract: DataContract) -> str:
    """What a contract's texts are, in public words."""
    text = contract.generate.text
    return contract.description if text is None or text.inference is None else contract.public_words(text.inference)


def check(plan: SealedPlan) -> InferenceParameters:
    """The plan's parts, if the sealed event is what they cost (invariant: no drift).

    Raises:
        GrantRefused: it is not, or the parts are of another guarantee.
    """
    parameters, guarantee = InferenceParameters.of(plan), Guarantee.from_json(plan.guarantee)
    drawn = parameters.inference
    alike = (drawn.adjacency, drawn.max_contributions) == (guarantee.adjacency, guarantee.max_contributions)
    if not alike or event_to_json(parameters.event) != plan.event:
        raise GrantRefused("the plan's privacy event is not that of its parts; materialize the line from raw")
    counted.check(parameters.columns, plan)
    return parameters
