"""The plan of DP inference, from public inputs only: noisy counts of the columns, and the draws of tokens.

What belongs here: how the guarantee is divided, the plan's parts and its event. What does not: what a token costs
(`inference_plan`), running any of it (`inference`).

Noisy counts of the columns take `generate.text.columns_share` and give the number of contexts of each label. With
`generate.text.topics`, a record's public topic is one more of these columns, so that a context has records of one topic
(Amin et al. 2025 form such batches), and counts have the noise `topics.noise` instead. Tokens get the rest: as many as
the composition has room for.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from dpsynth_platform.contracts.contract import DataContract
from dpsynth_platform.foundation.errors import ContractError
from dpsynth_platform.privacy.events import DpEvent
from dpsynth_platform.privacy.guarantee import Guarantee
from dpsynth_platform.synth.interface import PlanInputs
from dpsynth_platform.synth.sealed_parameters import Readers
from dpsynth_platform.synth.text.base_models import BaseModel
from dpsynth_platform.synth.text.inference_model import MOST_ROWS
from dpsynth_platform.synth.text.inference_plan import InferencePlan
from dpsynth_platform.synth.text.sealing import (
    PlanParameters,
    columns_plan,
    layout_of,
    memory_bytes,
    resampling_of,
    topics_of,
    whole_event,
)


@dataclass(frozen=True, kw_only=True)
class InferenceParameters(PlanParameters):
    """The parameters of DP inference.

    Attributes:
        inference: the contexts, and the draws from them.
        about: what the texts are, in public words.
    """

    KIND = "DP inference"
    READERS: ClassVar[Readers] = {"inference": lambda part: InferencePlan(**part)}

    inference: InferencePlan
    about: str

    @classmethod
    def calibrated(cls, inputs: PlanInputs, base: BaseModel, row_bytes: int) -> InferenceParameters:
        """The parameters with as many tokens as the guarantee has room for, or as the rows need.

        Args:
            row_bytes: memory of one record of a context while documents are written.

        Raises:
            ContractError: the columns cannot be modelled, the text column cannot be written, or the budget buys too few
                documents.
            AccountingError: no noise meets the guarantee.
        """
        contract, guarantee, generate = inputs.contract, inputs.guarantee, inputs.contract.generate
        if generate.text is None or generate.text.inference is None or contract.text_column is None:
            raise ContractError(
                f"{contract.dataset}: generate: no text is written; accepted: a text column, and inference"
            )
        topics = topics_of(contract, guarantee)
        columns, chosen = columns_plan(inputs, topics), resampling_of(contract, guarantee)
        inference = InferencePlan.calibrated(
            guarantee,
            generate.text.inference,
            units=contract.privacy.expected_units,
            rows=None if generate.rows == "auto" else generate.rows,
            chosen=chosen,
            beside=lambda drawn: whole_event(columns, drawn, chosen, guarantee),
        )
        records = inference.prompts_kept + 2 * MOST_ROWS  # those left over of a batch, and one that is read again
        return cls(
            columns=columns,
            inference=inference,
            layout=layout_of(contract, topics),
            about=about_of(contract),
            base_model=base.declared,
            base_digest=base.digest,
            memory_bytes=memory_bytes(base, full=False) + records * row_bytes,
            resampling=chosen,
            topics=topics,
        )

    def to_json(self) -> dict[str, Any]:
        whole = super().to_json()
        if not self.inference.in_series:  # as in plans from before there was a choice
            del whole["inference"]["in_series"]
        return whole

    @property
    def neighbours(self) -> tuple[str, int]:
        return self.inference.adjacency, self.inference.max_contributions

    def own_event(self, guarantee: Guarantee) -> DpEvent:
        return self.inference.event


def about_of(contract: DataContract) -> str:
    """What a contract's texts are, in public words."""
    text = contract.generate.text
    return contract.description if text is None or text.inference is None else contract.public_words(text.inference)
