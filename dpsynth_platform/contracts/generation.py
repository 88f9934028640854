"""The contract's `generate`: the method, its workload, its constraints, and how many rows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Field, PrivateAttr, field_validator, model_validator

from dpsynth_platform.contracts.base import MOST_ROWS, ColumnName, Part, TimeLimit, refuse
from dpsynth_platform.contracts.constraints import MOST_CONSTRAINTS, Constraint
from dpsynth_platform.contracts.methods import DRAWN_BY, PARTS_OF_TEXT, TEXT_METHODS, TRAINED_METHODS, MethodName
from dpsynth_platform.contracts.text_generation import Endpoint, TextGeneration, Training

NO_COLUMN = "no column, so leave it out"
DEFAULT_BASE_MODEL = "smollm2-135m"


class Query(Part):
    """A marginal that matters by itself: counts of every combination of its columns' values."""

    columns: list[ColumnName] = Field(min_length=2, max_length=6)
    weight: float = Field(default=1.0, gt=0, le=1000)

    @field_validator("columns")
    @classmethod
    def _distinct(cls, columns: list[str]) -> list[str]:
        if len(set(columns)) < len(columns):
            raise ValueError("a column stands twice; accepted: distinct columns")
        return columns


class Workload(Part):
    """What the synthetic rows should keep: the marginals that `aim` chooses from and weighs.

    All combinations of `ways` columns; with `target`, every column's link to it before anything else; `weights` of
    columns that matter more or less than 1; `queries`, combinations that matter by themselves.
    """

    ways: Literal[2, 3] = 2
    target: ColumnName | None = None
    weights: dict[ColumnName, Annotated[float, Field(gt=0, le=1000)]] = Field(default_factory=dict)
    queries: list[Query] = Field(default_factory=list, max_length=1000)


class Generate(Part):
    """How the synthetic rows are made.

    The number of real rows is not public: `rows` is declared, or `auto`, which is what the noisy counts say of the
    number of records that the mechanism read (after holdout and bounding, with the canaries that joined them). Where no
    column is modelled, nothing says so, and it must be declared; `dp_inference` has as many as it pays documents for,
    or one for each `text.resample.pool` of them.
    """

    method: MethodName = Field(
        default="auto",
        description=(
            "`aim` keeps as many links between columns as the budget can tell, `mwem` nearly as many and sooner, `mst` "
            "the strongest, `privbayes` those of columns with very many values, `independent` none; `auto` chooses "
            "among these by public facts and says why. `dp_finetune` also writes a text column, by a language model; "
            "so does `ctcl`, which tells the model the keywords of a public topic. `dp_inference` trains nothing: a "
            "language model reads records, and each token of a text is drawn with privacy and paid for. Nor does "
            "`aug_pe`: a language model writes texts from public words, and private records vote for the nearest. With "
            "a `text` to write, `auto` chooses among these, by public facts as well."
        ),
    )
    rows: int | Literal["auto"] = Field(
        default="auto", json_schema_extra={"anyOf": [{"const": "auto"}, {"type": "integer", "minimum": 1}]}
    )
    base_model: str | None = Field(
        default=None,
        min_length=1,
        max_length=500,
        description=(
            "The checkpoint that training starts from, by name or path. Its lineage is part of clearance: what it was "
            "trained on may be about the same people."
        ),
    )
    constraints: list[Constraint] = Field(
        default_factory=list,
        max_length=MOST_CONSTRAINTS,
        description=(
            "Which rows cannot occur. They cost nothing and change no mechanism: other ones are no new spend, unless "
            "audit.canary_rows has plausible ones, which are drawn by them."
        ),
    )
    workload: Workload = Field(default_factory=Workload, description="Of `aim` and `mwem`; others know none.")
    text: TextGeneration | None = Field(default=None, description="Of methods that write texts.")
    training: Training | None = Field(default=None, description="Of `dp_finetune` and `ctcl`.")
    time_limit: TimeLimit | None = Field(
        default=None,
        description=(
            "About how long measuring, fitting and drawing may take (`90s`, `2m`, `1h`) for the expected number of "
            "units: a smaller model is planned, and the last fit ends by the clock. The data decide nothing of it."
        ),
    )

    _why: str | None = PrivateAttr(default=None)

    @property
    def seconds(self) -> float | None:
        """The time limit."""
        units = {"s": 1.0, "m": 60.0, "h": 3600.0}
        return None if self.time_limit is None else int(self.time_limit[:-1]) * units[self.time_limit[-1]]

    @model_validator(mode="before")
    @classmethod
    def _finetuned(cls, document: Any) -> Any:
        """What methods for texts need and is not named: its defaults stand in the sealed contract."""
        if not isinstance(document, dict) or document.get("method") not in TEXT_METHODS:
            return document
        method = document["method"]
        defaults: dict[str, Any] = {"base_model": DEFAULT_BASE_MODEL, "text": {}}
        if method in TRAINED_METHODS:
            defaults["training"] = {}
        elif _has_endpoint(document):
            del defaults["base_model"]
        filled = document | {key: value for key, value in defaults.items() if document.get(key) is None}
        text = filled["text"]
        part = next((name for name, methods in PARTS_OF_TEXT.items() if method in methods), None)
        if part is not None and isinstance(text, dict) and text.get(part) is None:
            filled["text"] = text | {part: {}}
        return filled

    @property
    def method_unresolved(self) -> bool:
        """Whether a text is to be written, by a method that is not settled yet (`auto`)."""
        return self.method == "auto" and self.text is not None

    @property
    def why(self) -> str | None:
        """Why the method is this one, where `auto` was settled on it. No part of the contract, nor of a snapshot."""
        return self._why

    @model_validator(mode="after")
    def _of_the_method(self) -> Generate:
        refuse(
            f"{key}: for {', '.join(methods)}, and the method is {self.method!r}; accepted: none"
            for key, value, methods in (
                ("text", self.text, TEXT_METHODS),
                ("training", self.training, TRAINED_METHODS),
                *((f"text.{name}", getattr(self.text, name, None), methods) for name, methods in PARTS_OF_TEXT.items()),
            )
            if value is not None and self.method not in methods and not self.method_unresolved
        )
        self._refuse_drawing()
        if self.text is not None and self.time_limit is not None:
            raise ValueError(f"time_limit: {self.method!r} plans by steps, tokens or rounds; accepted: none")
        if self.endpoint is not None and self.base_model is None:
            raise ValueError(
                "base_model: with text.evolution.endpoint; accepted: the name by which the endpoint knows its model"
            )
        return self

    def _refuse_drawing(self) -> None:
        """How texts are drawn afterwards, where the mechanism itself draws them; and two words on how many rows."""
        if self.text is None:
            return
        defaults = TextGeneration()
        refuse(
            f"text.{name}: with method {self.method!r}, whose mechanism draws the texts; leave it out, or take "
            f"{' or '.join(TRAINED_METHODS)}"
            for name in DRAWN_BY
            if not (self.method_unresolved or self.method in TRAINED_METHODS)
            and getattr(self.text, name) != getattr(defaults, name)
        )
        counted = self.text.rows_counted
        if counted is not None and (self.rows not in ("auto", counted) or not 1 <= counted <= MOST_ROWS):
            raise ValueError(
                f"rows: {self.rows}, and text.counts makes {counted}; accepted: rows: auto, and counts of 1 to "
                f"{MOST_ROWS} rows together"
            )

    @property
    def endpoint(self) -> Endpoint | None:
        """Who writes texts in place of a model on this machine, if anybody does."""
        evolution = None if self.text is None else self.text.evolution
        return None if evolution is None else evolution.endpoint

    @field_validator("rows", mode="before")
    @classmethod
    def _number_of_rows(cls, rows: Any) -> Any:
        whole = isinstance(rows, int) and not isinstance(rows, bool)
        if rows != "auto" and not (whole and 1 <= rows <= MOST_ROWS):
            raise ValueError(f"{rows!r}; accepted: auto, or a number from 1 to {MOST_ROWS}")
        return rows


def _has_endpoint(document: Mapping[str, Any]) -> bool:
    """Whether a `generate` part that nobody has checked names an endpoint, so that a default model would be another."""
    part: Any = document
    for key in ("text", "evolution", "endpoint"):
        part = part.get(key) if isinstance(part, dict) else None
    return part is not None
