"""The plan of a language model that writes rows, from public inputs only.

What belongs here: what it has beyond the plan of other networks. What does not: the mechanism (`language_generator`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, Self

from dpsynth_platform.contracts.contract import DataContract
from dpsynth_platform.contracts.network_training import RowLanguage
from dpsynth_platform.foundation.errors import ContractError, GrantRefused
from dpsynth_platform.privacy.guarantee import Guarantee
from dpsynth_platform.synth.neural.network_plan import NetworkParameters
from dpsynth_platform.synth.neural.public_texts import SealedTexts
from dpsynth_platform.synth.tabular.domain import Domain
from dpsynth_platform.synth.text.base_models import BaseModel
from dpsynth_platform.training.plan import Adapter, TrainingPlan

ADAPTER_RATE, WHOLE_RATE = 0.002, 0.01
"""Learning rates by default."""
SMALL_BYTES = 2**22
"""Of the weights of a model that needs no adapter: about a million."""


@dataclass(frozen=True)
class FirstSteps:
    """The first stage, which reads no private record; see `contracts.network_training.FirstStage`.

    Attributes:
        public: the declared table whose rows it learns.
    """

    rows: Literal["counted", "uniform", "public"]
    steps: int
    batch_size: int
    learning_rate: float
    public: SealedTexts | None = None

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> FirstSteps:
        public = document["public"]
        return cls(**{**document, "public": None if public is None else SealedTexts(**public)})


@dataclass(frozen=True, kw_only=True)
class LanguageParameters(NetworkParameters):
    """The parameters of counts of single columns, and of a language model's training, sealed in the plan.

    Attributes:
        order: the columns in the order in which rows are written and drawn.
        base_model: the contract's name of the language model.
        base_digest: of its weights, tokenizer and config.
        value_weight: of a value's tokens in the loss.
        number_distance: of a distance of one range in the loss; 0: the loss knows no distances.
        first: the first stage, if there is one.
        weights: number of trained weights.
        base_bytes: of the base model's weights.
        most_tokens: of a row.
    """

    order: list[int]
    base_model: str
    base_digest: str
    value_weight: float
    first: FirstSteps | None
    weights: int
    base_bytes: int
    most_tokens: int
    number_distance: float = 0.0

    @classmethod
    def planned(
        cls, contract: DataContract, domain: Domain, guarantee: Guarantee, base: BaseModel, order: list[int]
    ) -> Self:
        """The parameters with the least noise of the guarantee; raises as `NetworkParameters.calibrated`.

        What follows from the model itself is not known yet.
        """
        declared = contract.generate.language
        if declared is None:
            raise ContractError(f"{contract.dataset}: generate.language: missing; accepted: {{}}")
        base_bytes = sum(file.stat().st_size for file in base.directory.glob("*.safetensors"))
        adapter = _adapter(declared, base_bytes)
        rate = declared.learning_rate or (ADAPTER_RATE if adapter else WHOLE_RATE)
        first = None
        if declared.first is not None:
            public = contract.generate.public
            first = FirstSteps(**declared.first.model_dump(), public=None if public is None else SealedTexts.of(public))
        return cls.trained_with(
            contract,
            domain,
            guarantee,
            declared.model_copy(update={"learning_rate": rate}),
            training={"adapter": adapter, "clipping": "automatic"},
            width=1,
            fixed_order=declared.fixed_order,
            order=order,
            base_model=base.declared,
            base_digest=base.digest,
            value_weight=declared.value_weight,
            number_distance=declared.number_distance,
            first=first,
            weights=0,
            base_bytes=base_bytes,
            most_tokens=0,
        )

    @classmethod
    def of(cls, document: dict[str, Any]) -> Self:
        """Reads them from a plan. Raises `GrantRefused` if they are of another kind."""
        try:
            first = document["first"]
            return cls(
                **{
                    **document,
                    "training": TrainingPlan.from_json(document["training"]),
                    "first": None if first is None else FirstSteps.from_json(first),
                }
            )
        except (KeyError, TypeError):
            raise GrantRefused(
                "the sealed plan is not for training a language model on rows; materialize raw again"
            ) from None


def _adapter(declared: RowLanguage, base_bytes: int) -> Adapter | None:
    if declared.adapter == "auto":
        return None if base_bytes <= SMALL_BYTES else Adapter()
    return None if declared.adapter == "none" else Adapter(declared.adapter.rank, declared.adapter.alpha)
