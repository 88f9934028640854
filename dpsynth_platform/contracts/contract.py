"""The data contract and the family budget: what a person declares about a dataset, in YAML.

What belongs here: the pydantic models of the two files, reading them, and turning every validation error into one
sentence a line with the key's path, the value and what is accepted. What does not: anything that looks at the data.
All that stands in a contract is public knowledge.

    contract = load_contract(Path("deploy/contracts/census.yaml"), settings)
    family = load_family(Path("deploy/families/household-surveys.yaml"))
"""

from __future__ import annotations

import datetime as dt
import difflib
import itertools
import math
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin
from zoneinfo import ZoneInfo

from pydantic import (
    BaseModel,
    ConfigDict,
    Discriminator,
    Field,
    PrivateAttr,
    StringConstraints,
    Tag,
    TypeAdapter,
    ValidationError,
    field_validator,
    model_validator,
)

from dpsynth_platform.contracts.constraints import MOST_CONSTRAINTS, Constraint, gap_orders, unquoted
from dpsynth_platform.foundation.digests import canonical_digest
from dpsynth_platform.foundation.errors import ContractError
from dpsynth_platform.foundation.figures import lower_bound
from dpsynth_platform.foundation.settings import is_plain, without_secrets
from dpsynth_platform.foundation.yaml_files import read_yaml, text_of
from dpsynth_platform.privacy.guarantee import WEAK_EPSILON
from dpsynth_platform.scrub.findings import ENTITY_TYPES

Name = Annotated[str, StringConstraints(pattern=r"^[a-z][a-z0-9_]{0,62}$")]
FamilyName = Annotated[str, StringConstraints(pattern=r"^[a-z][a-z0-9_-]{0,62}$")]
ColumnName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z][A-Za-z0-9_\-]{0,126}$")]
Duration = Annotated[str, StringConstraints(pattern=r"^[1-9][0-9]{0,4}[hd]$")]
TimeLimit = Annotated[str, StringConstraints(pattern=r"^[1-9][0-9]{0,4}[smh]$")]

UnitName = Literal["example", "user", "group"]
AdjacencyName = Literal["add-or-remove", "zero-out", "replace-one", "fixed-graph"]
WeightingName = Literal["rows", "owners"]
Normalization = Literal["trim", "casefold"]
RecordOrder = Annotated[
    str, StringConstraints(pattern=r"^(random|fewest-owners-first|weight:[A-Za-z][A-Za-z0-9_\-]{0,126})$")
]
PiiAction = Literal["drop", "mask", "hash", "replace"]
EntityName = Annotated[str, StringConstraints(pattern=r"^[A-Z][A-Z0-9_]{1,40}$")]
Phrase = Annotated[str, StringConstraints(strip_whitespace=True, min_length=2, max_length=200)]

MOST_CONTRIBUTIONS = 10_000
MOST_ROWS = 100_000_000
MOST_UNITS = 10**15
MOST_CAP = 1000.0
"""The largest epsilon of a family's cap."""
# Whole numbers of a column that a language model is told one by one.
MOST_TOLD = 1000

_LONGEST_SHOWN = 200
_Model = TypeVar("_Model", bound=BaseModel)


def _time(duration: str) -> dt.timedelta:
    number, unit = int(duration[:-1]), duration[-1]
    return dt.timedelta(hours=number) if unit == "h" else dt.timedelta(days=number)


class _Part(BaseModel):
    """Strict and immutable: an unknown key, or a value of another kind, is an error."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


def _refuse(faults: Iterable[str]) -> None:
    """Raises all faults as the one error that pydantic lets a validator raise, a line each."""
    if lines := list(faults):
        raise ValueError("\n".join(lines))


class Source(_Part):
    """Where the sensitive table lives and what identifies a record in it."""

    uri: str = Field(min_length=1, description="Path or URI of the table; ${DPSYNTH_HOME} is replaced.")
    format: Literal["delta"] = "delta"
    key: list[ColumnName] = Field(min_length=1, description="Columns that together identify a record.")
    period_column: ColumnName | None = Field(
        default=None, description="Date column that says to which period a record belongs (datasets with a cadence)."
    )


class GuaranteeTarget(_Part):
    """The (epsilon, delta) that one release may cost; `delta: auto` is 1/n^1.1 with n = expected_units."""

    epsilon: float = Field(gt=0, le=1000)
    delta: Literal["auto"] | Annotated[float, Field(gt=0, lt=1)] = "auto"


class Privacy(_Part):
    """Whom one guarantee protects, how much of each person is used, and how much a release may cost."""

    unit: UnitName
    owner_columns: list[ColumnName] = Field(min_length=1)
    owner_normalization: list[Normalization] = Field(
        default_factory=list,
        description="Applied to owner ids before they are fingerprinted, in this order; the family's, word for word.",
    )
    namespace: FamilyName
    adjacency: AdjacencyName = "add-or-remove"
    max_contributions: int = Field(ge=1, le=MOST_CONTRIBUTIONS)
    weighting: WeightingName = Field(
        default="rows",
        description=(
            "What is counted: rows, or owners, of whose rows each weighs 1/k where there are k. Counting owners takes "
            "the noise of one row each, however large the bound; the released rows then describe the average owner."
        ),
    )
    record_order: RecordOrder = Field(
        default="random",
        description=(
            "Which records are kept first where an owner has more than the bound: random (a keyed hash), "
            "fewest-owners-first, or weight:COLUMN, the highest first. Where records have several owners, the weight "
            "decides what other people's records are kept: it belongs to the ownership graph, and is neither protected "
            "nor modelled."
        ),
    )
    guarantee: GuaranteeTarget
    expected_units: int = Field(
        ge=100, le=MOST_UNITS, description="Public estimate of the number of owners; never a count."
    )
    on_overlap: Literal["compose", "exclude", "block"] = "compose"
    accept_weak_guarantee: str | None = Field(default=None, min_length=10)

    @property
    def delta(self) -> float:
        """The release's delta: declared, or 1/n^1.1 over the expected privacy units (guide, section 7.1)."""
        if self.guarantee.delta == "auto":
            return float(self.expected_units**-1.1)
        return self.guarantee.delta

    @property
    def weight(self) -> str | None:
        """The column that orders records, or None."""
        return self.record_order.partition(":")[2] or None

    @property
    def multi_owner(self) -> bool:
        """Whether a record may have several owners, in several columns or in a list column."""
        return self.adjacency == "fixed-graph"

    @model_validator(mode="after")
    def _consistent(self) -> Privacy:
        _refuse(self._contradictions())
        return self

    def _contradictions(self) -> Iterator[str]:
        if len(set(self.owner_columns)) < len(self.owner_columns):
            yield "owner_columns: a column stands twice in the list; accepted: distinct columns"
        elif len(self.owner_columns) > 1 and not self.multi_owner:
            yield (
                f"adjacency: {self.adjacency!r} with {len(self.owner_columns)} owner columns; where records have "
                "several owners, accepted is only fixed-graph, which protects what records say and not who owns them "
                "together"
            )
        if self.multi_owner and self.unit == "example":
            yield "unit: 'example' has no owners to share records; with fixed-graph accepted: user, group"
        if self.record_order == "fewest-owners-first" and not self.multi_owner:
            yield "record_order: 'fewest-owners-first' is for records with several owners (fixed-graph)"
        if self.unit == "example" and self.max_contributions != 1:
            yield "max_contributions: with unit 'example' every record is its own unit; accepted: 1"
        if self.weighting == "owners" and self.multi_owner:
            yield "weighting: 'owners' where records have several owners (fixed-graph); accepted: rows"
        elif self.weighting == "owners" and (self.unit == "example" or self.max_contributions == 1):
            yield (
                "weighting: 'owners' where no unit has more than one record: it would change nothing; accepted: rows, "
                "or unit user with max_contributions above 1"
            )
        if self.guarantee.epsilon > WEAK_EPSILON and not self.accept_weak_guarantee:
            yield (
                f"guarantee.epsilon: {self.guarantee.epsilon:g} is a weak guarantee (above {WEAK_EPSILON:g}); lower "
                "it, or say why it must be so in accept_weak_guarantee: <reason> (printed in the dossier)"
            )
        if self.delta > 1 / self.expected_units:
            most, automatic = 1 / self.expected_units, self.expected_units**-1.1
            yield (
                f"guarantee.delta: {self.delta:g} exceeds 1/expected_units = {most:.6g} (expected_units: "
                f"{self.expected_units}); accepted: auto, which is {automatic:.3g}, or up to {lower_bound(most)}"
            )


class _Column(_Part):
    nullable: bool = False


class _ScannedColumn(_Column):
    accept_pii: str | None = Field(
        default=None, min_length=10, description="Why values that look like personal data are none, or may stay."
    )


BinRule = Literal["adaptive", "quantile"]
"""How noisy counts over a fine grid are put together: see `synth.tabular.compression`."""
_BIN_RULES = ("adaptive", "quantile")
_BINS = "How values are told apart: adaptive (default), quantile, a number of equal bins"
MOST_BINS = 1000
MOST_POINTS = 100


class _Binned(_Part):
    """What columns with an order have in common."""

    @field_validator("bins", mode="before", check_fields=False)
    @classmethod
    def _known_rule(cls, bins: Any) -> Any:
        if isinstance(bins, str) and bins not in _BIN_RULES:
            raise ValueError(f"{bins!r}; accepted: {', '.join(_BIN_RULES)}, or 1 to {MOST_BINS}")
        if isinstance(bins, int) and not 1 <= bins <= MOST_BINS:
            raise ValueError(f"{bins}; accepted: 1 to {MOST_BINS}, {', '.join(_BIN_RULES)}, or a list of inner edges")
        return bins


class IntegerColumn(_ScannedColumn, _Binned):
    """Whole numbers in [min, max]; values outside are clamped."""

    type: Literal["integer"]
    min: int = Field(ge=-(2**63), lt=2**64)
    max: int = Field(ge=-(2**63), lt=2**64)
    bins: int | list[int] | BinRule | None = Field(default=None, description=f"{_BINS}, or ascending inner edges.")
    points: list[int] = Field(
        default_factory=list,
        max_length=MOST_POINTS,
        description="Values that many records share, such as 0 or a top code; each is told apart from its neighbours.",
    )

    @model_validator(mode="after")
    def _range(self) -> IntegerColumn:
        _check_range(self.min, self.max, self.bins, self.points)
        if self.max - self.min >= 2**64:
            raise ValueError(
                f"min {self.min}, max {self.max}: more values than any integer type has; accepted: up to 2^64 of them"
            )
        return self


class FloatColumn(_ScannedColumn, _Binned):
    """Real numbers in [min, max]; values outside are clamped."""

    type: Literal["float"]
    min: float
    max: float
    bins: int | list[float] | BinRule | None = Field(default=None, description=f"{_BINS}, or ascending inner edges.")
    points: list[float] = Field(
        default_factory=list,
        max_length=MOST_POINTS,
        description="Values that many records share, such as 0 or a top code; each is told apart from its neighbours.",
    )
    decimals: int | None = Field(
        default=None, ge=0, le=12, description="Digits after the decimal point that values have, as in 12.50 (2)."
    )

    @model_validator(mode="after")
    def _range(self) -> FloatColumn:
        _check_range(self.min, self.max, self.bins, self.points)
        if not math.isfinite(self.max - self.min):
            raise ValueError(
                f"min {self.min:g} and max {self.max:g} are farther apart than any number in double precision; "
                f"accepted: up to {sys.float_info.max:.3g}"
            )
        for name, values in (("min", [self.min]), ("max", [self.max]), ("points", self.points), ("bins", self.bins)):
            for value in values if isinstance(values, list) and self.decimals is not None else []:
                if round(value, self.decimals) != value:
                    raise ValueError(f"{name}: {value:.12g} has more than the {self.decimals} declared decimals")
        if self.decimals is not None and max(-self.min, self.max) * 10**self.decimals >= 2**53:
            raise ValueError(f"decimals: {self.decimals} are more than numbers of this size have in double precision")
        return self


class DateColumn(_Column, _Binned):
    """Calendar days in [min, max]; days outside are clamped."""

    type: Literal["date"]
    min: dt.date
    max: dt.date
    bins: int | BinRule | None = Field(default=None, description=f"{_BINS}.")

    @field_validator("min", "max", mode="before")
    @classmethod
    def _written(cls, value: Any) -> Any:
        return _no_number(value, "a date such as 2026-01-31")

    @model_validator(mode="after")
    def _range(self) -> DateColumn:
        if self.min >= self.max:
            raise ValueError(f"min {self.min} is not before max {self.max}")
        return self


def _no_number(value: Any, accepted: str) -> Any:
    """A date or time as it was declared; numbers would be taken for seconds since 1970."""
    if isinstance(value, int | float) or (isinstance(value, str) and re.fullmatch(r"\s*[-+]?[0-9_.eE]*\s*", value)):
        raise ValueError(f"{_shown(value)}; accepted: {accepted}")
    return value


Resolution = Annotated[str, StringConstraints(pattern=r"^[1-9][0-9]{0,5}(ms|s|min|h)$")]
_MICROSECONDS = {"ms": 1_000, "s": 1_000_000, "min": 60_000_000, "h": 3_600_000_000}
DAY_MICROSECONDS = 24 * _MICROSECONDS["h"]
EPOCH = dt.datetime(1970, 1, 1)


class _Timed(_Column, _Binned):
    """A column whose values are told apart in steps of its resolution."""

    resolution: Resolution

    @property
    def step(self) -> int:
        """The resolution in microseconds."""
        number = self.resolution.rstrip("hmins")
        return int(number) * _MICROSECONDS[self.resolution[len(number) :]]


class DatetimeColumn(_Timed):
    """Moments in [min, max]; moments outside are clamped. In UTC where the source's type has a time zone.

    They are counted by day, weekday and hour, where the range has several days. In a release, each moment is a whole
    multiple of the resolution.
    """

    type: Literal["datetime"]
    min: dt.datetime
    max: dt.datetime
    resolution: Resolution = "1s"
    bins: int | BinRule | None = Field(default=None, description=f"{_BINS}.")

    @field_validator("min", "max", mode="before")
    @classmethod
    def _written(cls, value: Any) -> Any:
        return _no_number(value, "a moment such as 2026-01-31T12:00:00")

    @field_validator("min", "max")
    @classmethod
    def _in_utc(cls, moment: dt.datetime) -> dt.datetime:
        try:
            return moment.astimezone(dt.UTC).replace(tzinfo=None) if moment.tzinfo else moment
        except OverflowError:
            raise ValueError(f"{moment.isoformat()} is in no year of UTC; accepted: years 1 to 9999") from None

    @model_validator(mode="after")
    def _range(self) -> DatetimeColumn:
        _check_steps(self.min.isoformat(), self.max.isoformat(), *self.steps, self.step, self.resolution)
        return self

    @property
    def steps(self) -> tuple[int, int]:
        """First and last moment, in microseconds since 1970."""
        first, last = ((moment - EPOCH) // dt.timedelta(microseconds=1) for moment in (self.min, self.max))
        return first, last


class TimeColumn(_Timed):
    """Times of day in [min, max]; times outside are clamped. Sources hold times, or texts such as 07:30 or 07:30:00."""

    type: Literal["time"]
    min: dt.time = dt.time(0)
    max: dt.time | None = Field(default=None, description="By default the day's last multiple of the resolution.")
    resolution: Resolution = "1min"
    bins: int | BinRule | None = Field(default=None, description=f"{_BINS}.")

    @field_validator("min", "max", mode="before")
    @classmethod
    def _written(cls, value: Any) -> Any:
        return _no_number(value, "a time of day such as '12:30'")

    @field_validator("min", "max")
    @classmethod
    def _without_zone(cls, time: dt.time | None) -> dt.time | None:
        if time is not None and time.tzinfo is not None:
            raise ValueError(f"{time}; accepted is a time of day without a time zone")
        return time

    @model_validator(mode="after")
    def _range(self) -> TimeColumn:
        first, last = self.steps
        _check_steps(str(self.min), str(self.max or "24:00"), first, last, self.step, self.resolution)
        return self

    @property
    def steps(self) -> tuple[int, int]:
        """First and last time of day, in microseconds since midnight."""
        first = _since_midnight(self.min)
        last = (DAY_MICROSECONDS - 1) // self.step * self.step if self.max is None else _since_midnight(self.max)
        return first, last


def _since_midnight(time: dt.time) -> int:
    return (dt.datetime.combine(EPOCH, time) - EPOCH) // dt.timedelta(microseconds=1)


LEARNED = "learned"
WHOLE_NUMBER = re.compile(r"0|-?[1-9][0-9]{0,18}")
"""A whole number in its one canonical form."""
MOST_VALUES = 10_000
MOST_LEARNED = 200


class CategoricalColumn(_ScannedColumn):
    """Texts, or whole numbers that are codes: of a closed, publicly known list, or learned. Others count as missing.

    `values: learned` is for columns whose values nobody may list. The mechanism learns them with differential privacy
    and a part of the budget: those that enough records have, at most `most` of them.
    """

    type: Literal["categorical"]
    values: Annotated[list[str], Field(min_length=2, max_length=MOST_VALUES)] | Literal["learned"]
    most: int | None = Field(
        default=None,
        ge=1,
        le=MOST_VALUES,
        description=f"With `values: learned`: how many values are kept; default {MOST_LEARNED}. The fewer, the less "
        "memory, which is planned for all of them.",
    )

    @property
    def listed(self) -> list[str]:
        """The values that are public; none where they are learned."""
        return [] if self.values == LEARNED else list(self.values)

    @property
    def most_learned(self) -> int | None:
        """The most values that are learned; None where they are listed."""
        return (self.most or MOST_LEARNED) if self.values == LEARNED else None

    @model_validator(mode="after")
    def _one_of_both(self) -> CategoricalColumn:
        if self.most is not None and self.values != LEARNED:
            raise ValueError("most: is for values: learned; a list has as many values as it has")
        return self

    @field_validator("values", mode="before")
    @classmethod
    def _codes(cls, values: Any) -> Any:
        if values == LEARNED:
            return values
        if not isinstance(values, list):
            raise ValueError(f"{_shown(values)}; accepted: a list of values, or {LEARNED}")
        # All faults of a list are found here: a union would name each of its alternatives.
        if not 2 <= len(values) <= MOST_VALUES:
            raise ValueError(f"a list of {len(values)}; accepted: 2 to {MOST_VALUES} values, or {LEARNED}")
        return list(_texts(values))

    @field_validator("values")
    @classmethod
    def _distinct(cls, values: list[str] | str) -> list[str] | str:
        seen: set[str] = set()
        for value in values if isinstance(values, list) else []:
            if value in seen:
                raise ValueError(f"{value!r} stands twice in the list; accepted: distinct values")
            seen.add(value)
        return values

    @property
    def whole_numbers(self) -> bool:
        """Whether the list is of whole numbers in canonical form, so that values are compared as numbers: 4.0 is 4."""
        return bool(self.listed) and all(map(WHOLE_NUMBER.fullmatch, self.listed))


def _texts(values: Iterable[Any]) -> Iterator[str]:
    for place, value in enumerate(values, start=1):
        try:
            yield text_of(value)
        except ValueError as error:
            problem = str(error)
        else:
            continue
        raise ValueError(f"number {place} of the list: {problem}")


class BooleanColumn(_Column):
    """True or false."""

    type: Literal["boolean"]


class IdentifierColumn(_Column):
    """A technical id (the owner's id, a record number). Never modelled: the release gets fresh ones."""

    type: Literal["identifier"]


class TextColumn(_Column):
    """Free text or directly identifying strings.

    `pii` says what scrubbing does; fictional values in the place of real ones serve a generator that learns from the
    text best, hence the default. Tabular methods do not model text: a dropped column is absent from the release,
    any other is present and empty, so that the schema stays that of the source.
    """

    type: Literal["text"]
    pii: PiiAction = "replace"


class IgnoredColumn(_Part):
    """A column of which nothing is read, whatever its type: it is in no table of the line, and in no release."""

    ignore: Literal[True]

    @model_validator(mode="before")
    @classmethod
    def _alone(cls, document: Any) -> Any:
        others = [str(key) for key in document if key != "ignore"] if isinstance(document, dict) else []
        if others:
            raise ValueError(f"ignore: with {', '.join(others)}; accepted: ignore: true alone, or none")
        return document

    @property
    def type(self) -> Literal["ignored"]:
        """What stands where other columns have their type."""
        return "ignored"

    @property
    def nullable(self) -> bool:
        """There is no value that could miss."""
        return False


def _column_tag(value: Any) -> str | None:
    """Which class a column's declaration is of; pydantic asks."""
    if isinstance(value, dict) and "ignore" in value:
        return "ignored"
    found = value.get("type") if isinstance(value, dict) else getattr(value, "type", None)
    return found if isinstance(found, str) else None


_COLUMN_TAGS = ("integer", "float", "date", "datetime", "time", "categorical", "boolean", "identifier", "text")
_ALL_TAGS = (*_COLUMN_TAGS, "ignored")
Column = Annotated[
    Annotated[IntegerColumn, Tag("integer")]
    | Annotated[FloatColumn, Tag("float")]
    | Annotated[DateColumn, Tag("date")]
    | Annotated[DatetimeColumn, Tag("datetime")]
    | Annotated[TimeColumn, Tag("time")]
    | Annotated[CategoricalColumn, Tag("categorical")]
    | Annotated[BooleanColumn, Tag("boolean")]
    | Annotated[IdentifierColumn, Tag("identifier")]
    | Annotated[TextColumn, Tag("text")]
    | Annotated[IgnoredColumn, Tag("ignored")],
    Discriminator(_column_tag),
]
RESERVED_COLUMNS = ("included",)
"""The canaries' coin. Other columns of the platform's own begin with `_`, which no declared name may."""
MODELLED_TYPES = ("integer", "float", "date", "datetime", "time", "categorical", "boolean")
WEIGHT_TYPES = ("integer", "float", "date")


class ScrubPattern(_Part):
    """A shape of the contract's own, such as the form of its customer numbers.

    `pattern` is a regular expression; with `context`, one of these words must stand near a match.
    """

    entity: EntityName
    pattern: str = Field(min_length=1, max_length=1000)
    context: list[Phrase] = Field(default_factory=list, max_length=100)

    @field_validator("pattern")
    @classmethod
    def _compiles(cls, pattern: str) -> str:
        try:
            empty = re.compile(pattern).search("") is not None
        except (re.error, RecursionError, OverflowError) as error:
            raise ValueError(f"{pattern!r} is no regular expression ({error})") from None
        if empty:
            raise ValueError(f"{pattern!r} matches an empty text; accepted: a pattern that needs a character")
        return pattern


class Scrub(_Part):
    """What scrubbing looks for in free text besides what it knows, and what becomes of each entity type.

    `deny` names words that are always personal data, by entity type; `allow` words that never are. `actions` says what
    becomes of an entity type in free text, whatever its column's `pii` says. `consistent: owner` gives the same
    original the same fictional value in all records of one owner, instead of within one record.
    """

    patterns: list[ScrubPattern] = Field(default_factory=list, max_length=200)
    deny: dict[EntityName, Annotated[list[Phrase], Field(min_length=1, max_length=10_000)]] = Field(
        default_factory=dict
    )
    allow: list[Phrase] = Field(default_factory=list, max_length=10_000)
    actions: dict[EntityName, PiiAction] = Field(default_factory=dict)
    consistent: Literal["document", "owner"] = "document"
    locale: Literal[
        "en_US", "en_GB", "en_CA", "en_AU", "de_DE", "fr_FR", "es_ES", "it_IT", "nl_NL", "pl_PL", "pt_BR"
    ] = Field(default="en_US", description="Whose names, towns and companies fictional values are.")

    @model_validator(mode="after")
    def _known_types(self) -> Scrub:
        _refuse(self._unknown_types())
        return self

    def _unknown_types(self) -> Iterator[str]:
        """Actions for types that nothing finds, such as one that is misspelt."""
        known = sorted(ENTITY_TYPES.keys() | {item.entity for item in self.patterns} | self.deny.keys())
        for entity in self.actions:
            if entity not in known:
                yield f"actions: {entity!r} is no entity type{_meant(entity, known)}; accepted: {', '.join(known)}"


MethodName = Literal[
    "auto", "aim", "mst", "mwem", "privbayes", "independent", "dp_finetune", "ctcl", "dp_inference", "aug_pe"
]
WORKLOAD_METHODS = ("auto", "aim", "mwem")
"""Methods for which `generate.workload` matters."""
TRAINED_METHODS = ("dp_finetune", "ctcl")
"""Methods that train a language model and leave it, so that it can be asked how likely a text is."""
INFERENCE_METHODS = ("dp_inference",)
"""Methods by which a language model that is not trained reads private records, and tokens are drawn with privacy."""
EVOLVED_METHODS = ("aug_pe",)
"""Methods by which a language model that is not trained writes texts, and private records vote for them."""
TEXT_METHODS = (*TRAINED_METHODS, *INFERENCE_METHODS, *EVOLVED_METHODS)
"""Methods that write a text column, by a language model."""
BASE_MODEL_METHODS = TEXT_METHODS
"""Methods that start from a checkpoint."""
TOPIC_METHODS = ("ctcl",)
"""Methods that sort texts by public topics first."""
_NO_COLUMN = "no column, so leave it out"
_PARTS_OF_TEXT = {"topics": TOPIC_METHODS, "inference": INFERENCE_METHODS, "evolution": EVOLVED_METHODS}
"""Keys of `generate.text` that a method must have, and no other may."""
KEYWORDS_COLUMN = "keywords"
"""Under which name the language model is told the topic of a text."""
UNIVERSAL_TOPICS = "universal"
"""The topic model that comes with the platform."""
TOPIC_LEVELS = (16, 32, 64, 128, 256, 512)
"""Numbers of topics of a topic model: the fewer, the broader."""
_EVOLVED_BY = {"evolution", "temperature", "top_k", "top_p"}
"""Keys of `generate.text` by which candidates are written."""
_DRAWN_BY = ("min_tokens", "most_tokens", "keep", "counts")
"""Keys of `generate.text` by which a trained model's texts are drawn and kept: post-processing."""
DEFAULT_BASE_MODEL = "smollm2-135m"
DEFAULT_BATCH_SHARE, MOST_DEFAULT_BATCH = 8, 2048
"""By default a batch is expected to hold this fraction of all, and no more than so many: few large batches learn more
than many small ones."""
MOST_BATCH = 1_000_000
"""Owners of one context of DP inference."""
MOST_POPULATION = 100_000
"""Texts that may live on after a vote of private evolution."""


class Query(_Part):
    """A marginal that matters by itself: counts of every combination of its columns' values."""

    columns: list[ColumnName] = Field(min_length=2, max_length=6)
    weight: float = Field(default=1.0, gt=0, le=1000)

    @field_validator("columns")
    @classmethod
    def _distinct(cls, columns: list[str]) -> list[str]:
        if len(set(columns)) < len(columns):
            raise ValueError("a column stands twice; accepted: distinct columns")
        return columns


class Workload(_Part):
    """What the synthetic rows should keep: the marginals that `aim` chooses from and weighs.

    All combinations of `ways` columns; with `target`, every column's link to it before anything else; `weights` of
    columns that matter more or less than 1; `queries`, combinations that matter by themselves.
    """

    ways: Literal[2, 3] = 2
    target: ColumnName | None = None
    weights: dict[ColumnName, Annotated[float, Field(gt=0, le=1000)]] = Field(default_factory=dict)
    queries: list[Query] = Field(default_factory=list, max_length=1000)


class Adapter(_Part):
    """Low-rank adapters on all linear layers (LoRA, Hu et al. 2021): few parameters are trained, so little noise."""

    rank: int = Field(default=16, ge=1, le=1024)
    alpha: int = Field(default=32, ge=1, le=10_000)


class Training(_Part):
    """How a language model is fine-tuned: whatever decides samples, clipping, noise and steps. All of it is public.

    Defaults follow the guide (section 7.3: large batches; section 5.2: an adapter) and the tutorial that it rests on
    (Ponomareva et al. 2023, "How to DP-fy ML"): a clipping norm that clips nearly all gradients, many passes rather
    than little noise.
    """

    sampled: Literal["records", "owners"] = Field(
        default="records",
        description=(
            "What a step draws by coin, and clips: records (DP-SGD-ELS, with b records an owner), or owners, whose "
            "records' mean gradient is clipped as one (DP-SGD-ULS)."
        ),
    )
    expected_records: int | None = Field(
        default=None,
        ge=1,
        le=10**9,
        description=(
            "Public estimate of the number of records after bounding, never a count; by default expected_units times "
            "max_contributions, or expected_units where records have several owners."
        ),
    )
    batch_size: int | None = Field(
        default=None,
        ge=1,
        le=1_000_000,
        description="Expected number of records (or owners) in a step's sample; by default an eighth, 2048 at most.",
    )
    steps: int = Field(default=100, ge=1, le=50_000)
    replay_steps: int | None = Field(
        default=None,
        ge=0,
        le=50_000,
        description="Steps that are paid for beyond `steps`, for those that a resumed run repeats; a tenth by default.",
    )
    clipping: Literal["flat", "automatic"] = "automatic"
    clipping_norm: float = Field(default=1.0, gt=0, le=1e6)
    optimizer: Literal["adamw", "sgd"] = "adamw"
    learning_rate: float = Field(default=1e-3, gt=0, le=10)
    warmup_steps: int = Field(default=0, ge=0, le=50_000)
    decay: Literal["constant", "linear", "cosine"] = "linear"
    weight_decay: float = Field(default=0.0, ge=0, le=1)
    adapter: Adapter | Literal["none"] = Field(default_factory=Adapter, description="`none` trains all parameters.")

    @property
    def allowance(self) -> int:
        """Steps that are paid for beyond the planned ones."""
        return math.ceil(self.steps / 10) if self.replay_steps is None else self.replay_steps


class Topics(_Part):
    """The public topics that texts are sorted by. Their noisy counts are paid for; a topic's keywords are public."""

    model: str = Field(
        default=UNIVERSAL_TOPICS,
        min_length=1,
        max_length=500,
        description="`universal`, or the path of a model that `dpsynth synth topics` has made of public phrases.",
    )
    public: str | None = Field(
        default=None, min_length=10, description="Why a topic model of your own knows nothing of the data."
    )
    count: Literal["auto", 16, 32, 64, 128, 256, 512] = Field(
        default="auto",
        description="How many topics; `auto`: as many as hold, on average, three times the noise of their counts.",
    )
    noise: float = Field(
        default=10.0,
        gt=0,
        le=1e6,
        description=(
            "Noise of the counts of topics and of the modelled columns together, as a multiple of what one unit can "
            "change; the training has the rest of the budget."
        ),
    )

    @model_validator(mode="after")
    def _declared_public(self) -> Topics:
        if self.model != UNIVERSAL_TOPICS and self.public is None:
            raise ValueError(
                f"model: {self.model!r} without `public`; accepted: with the reason why it knows nothing of the data"
            )
        return self


class Inference(_Part):
    """How texts are drawn with privacy from a model that is not trained: what a context holds, and what is clipped."""

    about: str | None = Field(
        default=None,
        min_length=3,
        max_length=500,
        description="What the texts are, in public words that head every prompt; by default the description.",
    )
    batch_size: int = Field(
        default=100,
        ge=1,
        le=MOST_BATCH,
        description=(
            "Owners that a context is expected to hold, by which what they say is divided. The larger, the less a "
            "token costs, the fewer contexts there are, and the longer a token takes."
        ),
    )
    records_per_owner: int = Field(
        default=1,
        ge=1,
        le=1000,
        description=(
            "Records of an owner that a context reads at most; of more, a fresh key chooses. What the model says by "
            "them is averaged and clipped as one, so that more cost time and no privacy."
        ),
    )
    document_tokens: int = Field(
        default=64, ge=4, le=4096, description="Longest text that is written; each of its tokens is paid for."
    )
    clip: Literal["difference", "logits"] = Field(
        default="difference",
        description=(
            "What is clipped of an owner: the `difference` that the records make to the model's log-probabilities "
            "without any (InvisibleInk), or the `logits` themselves (Amin et al. 2024), for norms about ten times as "
            "large."
        ),
    )
    clipping_norm: float = Field(default=1.0, ge=0.01, le=1000, description="Of each number of an owner's.")
    temperature: float = Field(default=1.0, ge=0.1, le=5, description="The higher, the less a token costs.")
    top_k: int | None = Field(
        default=None,
        ge=1,
        le=1_000_000,
        description=(
            "Tokens are drawn from so many that are likeliest without any record, and those within twice the "
            "clipping norm of them. Costs nothing; with clip `difference`."
        ),
    )

    @model_validator(mode="after")
    def _near_public(self) -> Inference:
        if self.top_k is not None and self.clip != "difference":
            raise ValueError(f"top_k: {self.top_k} with clip {self.clip!r}; accepted: none, or clip difference")
        return self


class Endpoint(_Part):
    """A language model elsewhere that writes texts. It is told public words alone, and texts that it wrote before."""

    url: str = Field(
        max_length=500,
        description="Where an OpenAI-compatible endpoint is, up to where `/chat/completions` follows; https.",
    )
    timeout: float = Field(default=60.0, gt=0, le=600, description="Seconds that an answer may take.")
    attempts: int = Field(default=4, ge=1, le=20, description="How often a request that fails is sent at most.")
    at_once: int = Field(default=8, ge=1, le=64, description="Requests that are under way together.")

    @field_validator("url")
    @classmethod
    def _unheard(cls, url: str) -> str:
        if not is_plain(url):
            raise ValueError(
                f"{without_secrets(url)}; accepted: https://HOST[:PORT]/PATH such as https://models.example.org/v1 "
                "(http for this machine alone), with no user, query or other marks"
            )
        return url


class Evolution(_Part):
    """Private evolution (Aug-PE): who writes candidates by which public words, and how often records vote for them."""

    about: str | None = Field(
        default=None,
        min_length=3,
        max_length=2000,
        description="What the texts are, in public words that stand in every prompt; by default the description.",
    )
    hints: list[Annotated[str, StringConstraints(min_length=1, max_length=500)]] = Field(
        default_factory=list,
        max_length=1000,
        description="Public subjects, styles or openings, of which each new text is told one by chance.",
    )
    population: int | Literal["auto"] = Field(
        default="auto",
        json_schema_extra={"anyOf": [{"const": "auto"}, {"type": "integer", "minimum": 1}]},
        description=(
            "Texts that live on after a vote; `auto`: as many as leave each candidate, on average, three times the "
            "noise of its votes."
        ),
    )
    variations: int = Field(default=3, ge=1, le=50, description="New variations of each, in every round.")
    rounds: int = Field(default=5, ge=1, le=100, description="How often there is a vote; all are paid for together.")
    lookahead: int = Field(
        default=0, ge=0, le=50, description="Variations whose mean features stand for a text in a vote; 0: its own do."
    )
    ways: list[Literal["rephrase", "fill-in"]] = Field(
        default=["rephrase", "fill-in"], min_length=1, description="How texts are varied."
    )
    blanks: float = Field(default=0.5, gt=0, lt=1, description="Share of the words that `fill-in` leaves out.")
    threshold: float = Field(
        default=2.0,
        ge=0,
        le=100,
        description="Votes that noise alone may reach, as a multiple of it: they weigh nothing.",
    )
    endpoint: Endpoint | None = Field(
        default=None,
        description="Who writes the texts in place of a model on this machine; base_model is its model's name there.",
    )

    @field_validator("population", mode="before")
    @classmethod
    def _size(cls, population: Any) -> Any:
        whole = isinstance(population, int) and not isinstance(population, bool)
        if population != "auto" and not (whole and 1 <= population <= MOST_POPULATION):
            raise ValueError(f"{population!r}; accepted: auto, or a number from 1 to {MOST_POPULATION}")
        return population

    @field_validator("ways")
    @classmethod
    def _distinct(cls, ways: list[str]) -> list[str]:
        if len(set(ways)) < len(ways):
            raise ValueError(f"{', '.join(ways)}; accepted: each once")
        return ways


class Resample(_Part):
    """Choosing among more texts than are asked for, by private votes for clusters of them: paid for beside the rest."""

    clusters: int = Field(
        default=100,
        ge=2,
        le=10_000,
        description=(
            "Of texts by the same writer, ten for each; with `dp_inference`, of all documents, and no more than there "
            "are different ones."
        ),
    )
    noise: float = Field(
        default=10.0,
        gt=0,
        le=1e6,
        description=(
            "Noise of each cluster's votes, as a multiple of what one unit can change; training, tokens or the other "
            "votes have the rest of the budget."
        ),
    )
    pool: float = Field(
        default=3.0,
        ge=1,
        le=100,
        description="Texts that are written for each one that is taken; with `dp_inference`, each of them is paid for.",
    )


class KeptTexts(_Part):
    """Which drawn texts are kept; others are drawn in place of those that are not. Looks at synthetic texts only."""

    least_characters: int = Field(default=1, ge=1, le=100_000, description="Of a text, without blanks at its ends.")
    words: int = Field(default=4, ge=1, le=100, description="Of an n-gram, for most_repeated.")
    most_repeated: float = Field(
        default=0.5, ge=0, le=1, description="Share of a text's n-grams that may repeat an earlier one of the text."
    )
    duplicates: Literal["kept", "exact", "words"] = Field(
        default="words",
        description="Texts that equal an earlier one by their words, or letter by letter, are left out; or all stay.",
    )
    whole: bool = Field(default=False, description="Whether a text must have ended by itself, before it was cut off.")


class TextGeneration(_Part):
    """Which column is written by the language model, what it is told first, and how texts are drawn from it."""

    column: ColumnName | None = Field(
        default=None, description="The text column; need not be named where one alone is not dropped."
    )
    given: list[ColumnName] | None = Field(
        default=None,
        description=(
            "Columns that the model is told before the text: modelled ones with a list of values, or few whole "
            "numbers. By default all of these; a record with another value is not learned from."
        ),
    )
    max_tokens: int = Field(default=128, ge=8, le=8192, description="Longest example, prefix included; in tokens.")
    chunks: int = Field(
        default=1,
        ge=1,
        le=64,
        description=(
            "Examples that a longer record becomes; the rest is cut off. Those of one record are sampled and clipped "
            "together, so that it stays one record."
        ),
    )
    columns_share: float = Field(
        default=0.1,
        gt=0,
        lt=1,
        description=(
            "Part of epsilon for the modelled columns; the rest is for the text, and all of it where no column is "
            "modelled. `ctcl` goes by topics.noise."
        ),
    )
    topics: Topics | None = Field(default=None, description="Of `ctcl`.")
    inference: Inference | None = Field(default=None, description="Of `dp_inference`.")
    evolution: Evolution | None = Field(default=None, description="Of `aug_pe`.")
    resample: Resample | None = Field(
        default=None, description="Texts are chosen among more by votes for clusters; by default they are not."
    )
    temperature: float = Field(default=1.0, gt=0, le=5)
    top_k: int | None = Field(default=None, ge=1, le=1_000_000)
    top_p: float = Field(default=1.0, gt=0, le=1)
    min_tokens: int = Field(default=1, ge=0, le=8192, description="Of a drawn text; before, none ends.")
    most_tokens: int | None = Field(
        default=None, ge=1, le=8192, description="Of a drawn text, which is cut off there; by default at max_tokens."
    )
    keep: KeptTexts = Field(default_factory=KeptTexts, description="Which drawn texts are kept.")
    counts: dict[ColumnName, dict[str, Annotated[int, Field(ge=0, le=MOST_ROWS)]]] | None = Field(
        default=None,
        min_length=1,
        max_length=1,
        description=(
            "How many rows each value of one column gets that the model is told; other values get none. Public "
            "numbers. By default as many as the noisy counts say."
        ),
    )

    @field_validator("counts", mode="before")
    @classmethod
    def _as_told(cls, counts: Any) -> Any:
        """Values as the model is told them: YAML reads numbers, true and false."""
        if not isinstance(counts, dict):
            return counts
        return {
            column: {_told(value): number for value, number in rows.items()} if isinstance(rows, dict) else rows
            for column, rows in counts.items()
        }

    @model_validator(mode="after")
    def _lengths(self) -> TextGeneration:
        longest = self.max_tokens if self.most_tokens is None else min(self.most_tokens, self.max_tokens)
        if self.min_tokens > longest:
            raise ValueError(
                f"min_tokens: {self.min_tokens} with texts of up to {longest} tokens; accepted: at most as many"
            )
        return self

    @property
    def rows_counted(self) -> int | None:
        """How many rows `counts` makes; None where there are none."""
        return None if self.counts is None else sum(sum(rows.values()) for rows in self.counts.values())


def _told(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else text_of(value)


class Generate(_Part):
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
        part = next((name for name, methods in _PARTS_OF_TEXT.items() if method in methods), None)
        if part is not None and isinstance(text, dict) and text.get(part) is None:
            filled["text"] = text | {part: {}}
        return filled

    @property
    def open(self) -> bool:
        """Whether a text is to be written, by a method that is not settled yet (`auto`)."""
        return self.method == "auto" and self.text is not None

    @property
    def why(self) -> str | None:
        """Why the method is this one, where `auto` was settled on it. No part of the contract, nor of a snapshot."""
        return self._why

    @model_validator(mode="after")
    def _of_the_method(self) -> Generate:
        _refuse(
            f"{key}: for {', '.join(methods)}, and the method is {self.method!r}; accepted: none"
            for key, value, methods in (
                ("text", self.text, TEXT_METHODS),
                ("training", self.training, TRAINED_METHODS),
                *(
                    (f"text.{name}", getattr(self.text, name, None), methods)
                    for name, methods in _PARTS_OF_TEXT.items()
                ),
            )
            if value is not None and self.method not in methods and not self.open
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
        _refuse(
            f"text.{name}: with method {self.method!r}, whose mechanism draws the texts; leave it out, or take "
            f"{' or '.join(TRAINED_METHODS)}"
            for name in _DRAWN_BY
            if not (self.open or self.method in TRAINED_METHODS) and getattr(self.text, name) != getattr(defaults, name)
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


class RateLimit(_Part):
    """How many of the included an attacker may find at one rate of false alarms, for an audit to pass."""

    false_positive_rate: float = Field(gt=0, lt=1)
    true_positive_rate: float = Field(gt=0, lt=1)

    @model_validator(mode="after")
    def _above_guessing(self) -> RateLimit:
        if self.true_positive_rate <= self.false_positive_rate:
            raise ValueError(
                f"true_positive_rate: {self.true_positive_rate:g} at {self.false_positive_rate:g} false alarms is what "
                "blind guessing reaches; accepted: more than the false_positive_rate"
            )
        return self


class Audit(_Part):
    """The empirical audit. By default at most 0.5% of the expected units are canaries."""

    canaries: int | None = Field(default=None, ge=20, le=100_000)
    max_epsilon_lower_bound: float | None = Field(
        default=None, gt=0, description="The audit fails above it; by default the guarantee's epsilon."
    )
    confidence: float = Field(default=0.95, ge=0.5, lt=1)
    accept_inconclusive: str | None = Field(default=None, min_length=10)
    gates: list[str] | None = Field(
        default=None,
        min_length=1,
        description="Names of the attacks that decide; by default all. The others are shown.",
    )
    rate_limits: list[RateLimit] = Field(
        default_factory=list, description="Most true positives at rates of false alarms; by default the frontier alone."
    )
    cumulative: Literal["gate", "report"] = Field(
        default="gate", description="Whether the family's audits, taken together, decide about a release too."
    )
    canary_texts: list[Literal["made-up", "in-distribution", "unlikely-ending"]] | None = Field(
        default=None,
        min_length=1,
        description=(
            "Of `dp_finetune`: what canaries' texts are; of several kinds each gets the same share. `made-up` words "
            "(the default), written by the base model (`in-distribution`), or begun by it and drawn at a high "
            "temperature from there (`unlikely-ending`)."
        ),
    )
    canary_rows: list[Literal["random", "plausible"]] | None = Field(
        default=None,
        min_length=1,
        description=(
            "What canaries' rows are; of several kinds each gets the same share, and results of its own. `random` (the "
            "default): columns independent of each other; `plausible`: combinations that keep all of "
            "`generate.constraints`."
        ),
    )
    model: Literal["shared", "separate"] = Field(
        default="shared",
        description=(
            "What is attacked: the model that is released, with canaries in it (`shared`), or an equal one that is "
            "trained apart with canaries and never released (`separate`), which costs what the released one costs."
        ),
    )


class Quality(_Part):
    """What the quality report measures: a target column to predict and the columns that fairness is judged by."""

    target: ColumnName | None = None
    task: Literal["classification"] = "classification"
    protected: list[ColumnName] = Field(default_factory=list)
    holdout: float = Field(default=0.1, gt=0, le=0.5, description="Share of owners kept from the mechanism, for tests.")


_SHARE: Any = {"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 1}


class Release(_Part):
    """Where a release is published, who must agree, and how often it comes."""

    uri: str = Field(min_length=1)
    approvals: int = Field(default=1, ge=0, le=10)
    cadence: Literal["monthly"] | None = None
    start: Annotated[str, StringConstraints(pattern=r"^\d{4}-(0[1-9]|1[0-2])$")] | None = Field(
        default=None, description="First period (YYYY-MM) of a dataset with a cadence."
    )
    time_zone: str = Field(
        default="UTC",
        description="Whose midnight ends a period, by its IANA name; a run is due from then on.",
        exclude_if=lambda zone: zone == "UTC",
    )
    on_new_version: Duration | None = Field(
        default=None,
        description="A new version of the source is run by itself, at most once in this time. Each one is a new spend.",
        exclude_if=lambda pace: pace is None,
    )

    @field_validator("time_zone")
    @classmethod
    def _known(cls, name: str) -> str:
        """A time zone that this machine knows."""
        with suppress(ValueError, OSError, KeyError):
            ZoneInfo(name)
            return name
        raise ValueError("accepted: UTC, or a name such as Europe/Berlin (IANA)")

    @field_validator("max_missing", mode="before")
    @classmethod
    def _shares(cls, limit: Any) -> Any:
        shares = list(limit.items()) if isinstance(limit, dict) and limit else [(None, limit)]
        _refuse(
            f"{'' if name is None else f'{name}: '}{'a dict' if isinstance(share, dict) else repr(share)}; accepted: a "
            "number above 0 and below 1, for every column, or one by column"
            for name, share in shares
            if limit is not None and not (isinstance(share, int | float) and 0 < share < 1)
        )
        return limit

    @property
    def limited(self) -> list[str]:
        """Columns that have a limit of missing values of their own."""
        return list(self.max_missing) if isinstance(self.max_missing, dict) else []

    @property
    def pace(self) -> dt.timedelta | None:
        """The least time between two runs for new versions of the source; None where nobody asked for any."""
        return None if self.on_new_version is None else _time(self.on_new_version)

    max_missing: float | dict[ColumnName, float] | None = Field(
        default=None,
        description=(
            "Share of a column's values that may be missing, unlisted or not learned: a number for every modelled "
            "column, or by column. Rows are refused where the noisy counts show surely more. Other limits are no new "
            "spend."
        ),
        exclude_if=lambda limit: limit is None,
        json_schema_extra={"anyOf": [_SHARE, {"type": "object", "additionalProperties": _SHARE}]},
    )
    license: Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9.+-]{1,63}$")] | None = Field(
        default=None, description="Under which terms the release may be used, as an SPDX identifier (CC-BY-4.0)."
    )


class Retention(_Part):
    """How long sensitive intermediates are kept: a number of hours (`12h`) or days (`7d`).

    Canaries are kept as long as the model that was trained with them: no others can audit it. So are their raw scores,
    and a model that was trained apart for the audit.
    """

    raw: Duration = "30d"
    scrubbed: Duration = "7d"
    bounded: Duration = "1d"
    model: Duration = "7d"
    synthetic: Duration = "30d"

    def of(self, step: str) -> dt.timedelta | None:
        """The time-to-live of a step's output, or None where it is a report or record that stays."""
        text = getattr(self, "model" if step in ("audited", "canaries", "scores") else step, None)
        return None if text is None else _time(text)


class DataContract(_Part):
    """One governed dataset: the single declaration from which its line of assets is built."""

    dataset: Name
    description: str = Field(min_length=1)
    demo: bool = Field(default=False, description="Marks a demonstration dataset: its people are fictional.")
    owners: list[str] = Field(min_length=1, description="People to ask, not privacy units.")
    source: Source
    family: FamilyName
    privacy: Privacy
    columns: dict[ColumnName, Column] = Field(min_length=1)
    scrub: Scrub = Scrub()
    generate: Generate
    audit: Audit = Audit()
    quality: Quality = Quality()
    release: Release
    retention: Retention = Retention()

    @field_validator("columns")
    @classmethod
    def _names(cls, columns: dict[str, Any]) -> dict[str, Any]:
        # SQL engines tell names apart without regard to case.
        seen: dict[str, str] = {}
        for name in columns:
            if name.casefold() in RESERVED_COLUMNS:
                raise ValueError(f"{name!r} is a name that the platform uses itself; accepted: any other")
            if name.casefold() in seen:
                raise ValueError(
                    f"{name!r} and {seen[name.casefold()]!r} differ in case only; accepted: distinct names"
                )
            seen[name.casefold()] = name
        return columns

    @model_validator(mode="after")
    def _references(self) -> DataContract:
        parts = _Parts(
            self.source,
            self.privacy,
            self.columns,
            self.scrub,
            self.quality,
            self.release,
            self.generate,
            self.audit,
        )
        _refuse(parts.contradictions())
        return self

    @property
    def modelled(self) -> list[str]:
        """Names of the columns that a tabular generator models, in the declared order.

        A weight that orders records with several owners is not among them: see `Privacy.record_order`.
        """
        return _modelled(self.columns, self.privacy)

    @property
    def ignored(self) -> list[str]:
        """Names of the columns of which nothing is read."""
        return [name for name, column in self.columns.items() if column.type == "ignored"]

    @property
    def written(self) -> str | None:
        """Name of the text column that a language model writes, or None where none does."""
        return None if self.generate.text is None else _written(self.generate.text, self.columns)

    @property
    def given(self) -> list[str]:
        """Names of the modelled columns that the language model is told before it writes."""
        text = self.generate.text
        if text is None:
            return []
        named = self.modelled if text.given is None else text.given
        return [name for name in self.modelled if name in named and told_values(self.columns[name])]

    @property
    def read_by_mechanism(self) -> list[str]:
        """Names of the columns that the mechanism reads."""
        return [*self.modelled, *([] if self.written is None else [self.written])]

    @property
    def canary_count(self) -> int:
        """Number of candidate canaries: declared, or 0.5% of the expected units (at least 20, at most 500)."""
        if self.audit.canaries is not None:
            return self.audit.canaries
        return max(20, min(500, int(0.005 * self.privacy.expected_units)))

    @property
    def audited_apart(self) -> bool:
        """Whether canaries go into a second, equal model, which is audited and never released."""
        return self.audit.model == "separate"

    @property
    def audit_terms(self) -> dict[str, Any]:
        """What an audit of this contract is held against; a report made on other terms is no evidence for it.

        What is not declared is not named, so that reports from before there was a choice stay evidence.
        """
        claimed, audit = self.privacy.guarantee.epsilon, self.audit
        return {
            "claimed_epsilon": claimed,
            "delta": self.privacy.delta,
            "threshold": min(self.audit.max_epsilon_lower_bound or claimed, claimed),
            "confidence": self.audit.confidence,
            **({} if audit.gates is None else {"gates": list(audit.gates)}),
            **({"rate_limits": [limit.model_dump() for limit in audit.rate_limits]} if audit.rate_limits else {}),
            **({} if audit.cumulative == "gate" else {"cumulative": audit.cumulative}),
        }

    def settled(self, method: str, why: str | None = None) -> DataContract:
        """This contract with a method for texts in place of `auto`, its defaults filled in.

        What is declared of other methods alone falls away: the contract is as if the method had been named.

        Args:
            method: one that writes texts.
            why: why it is this one.

        Raises:
            ContractError: the method cannot do what the contract asks for.
        """
        whole = self.snapshot()
        generate, text = whole["generate"], whole["generate"]["text"]
        text |= {part: None for part, methods in _PARTS_OF_TEXT.items() if method not in methods}
        if method not in TRAINED_METHODS:
            generate["training"] = None
        generate["method"] = method
        found = validated(DataContract, whole, self.dataset)
        found.generate._why = why
        return found

    def snapshot(self) -> dict[str, Any]:
        """The whole contract as plain JSON values, as it is sealed by the `raw` step."""
        return self.model_dump(mode="json")

    def digest(self) -> str:
        """SHA-256 of the canonical snapshot."""
        return canonical_digest(self.snapshot())

    def mechanism_snapshot(self) -> dict[str, Any]:
        """The parts that decide what the mechanism does and to whom; a new description is not a new spend."""
        whole = self.snapshot()
        parts = {key: whole[key] for key in ("dataset", "source", "family", "privacy", "columns", "scrub")}
        for column in parts["columns"].values():
            column.pop("accept_pii", None)  # a word of the reviewers, which changes no value
        if self.privacy.weighting == "rows":
            parts["privacy"].pop("weighting")  # as it was before there was a choice, so that runs keep their keys
        return parts | {
            "method": self.generate.method,
            "workload": whole["generate"]["workload"] if self.generate.method in WORKLOAD_METHODS else None,
            "canaries": self.canary_count,
            "holdout": self.quality.holdout,
            # Named only where there is one, so that runs without keep their keys.
            **({} if self.generate.time_limit is None else {"time_limit": self.generate.time_limit}),
            **({} if self.generate.base_model is None else {"base_model": self.generate.base_model}),
            **({} if self.generate.text is None else self._written_by),
            **({} if self.audit.canary_texts is None else {"canary_texts": list(self.audit.canary_texts)}),
            **({} if self.audit.canary_rows is None else {"canary_rows": list(self.audit.canary_rows)}),
            # They decide which canaries can be: those of an earlier list might be a handful of rows, which hide much.
            **(
                {"canary_constraints": whole["generate"]["constraints"]}
                if "plausible" in (self.audit.canary_rows or ())
                else {}
            ),
            **({"audit_model": self.audit.model} if self.audited_apart else {}),
            # What is counted, where moments have a declared order.
            **({"gaps": gaps} if (gaps := self.gaps) else {}),
        }

    @property
    def gaps(self) -> dict[str, Any]:
        """The columns that are counted by a gap, each with the earlier ones."""
        kinds = {name: self.columns[name].type for name in self.modelled}
        found = gap_orders(self.generate.constraints, kinds)
        return {later: {"after": list(earlier), "strict": strict} for later, (earlier, strict) in found.items()}

    @property
    def _written_by(self) -> dict[str, Any]:
        """What decides a text method's mechanism; how a trained model's texts are drawn afterwards does not."""
        text, training = self.generate.text, self.generate.training
        assert text is not None  # noqa: S101  (`mechanism_snapshot` asks)
        evolved = {} if text.evolution is None else self._evolved_by(text, text.evolution)
        return {
            "written": self.written,
            "given": self.given,
            "max_tokens": text.max_tokens,
            "chunks": text.chunks,
            "columns_share": text.columns_share,
            **({} if training is None else {"training": training.model_dump(mode="json")}),
            **({} if text.topics is None else {"topics": text.topics.model_dump(mode="json", exclude={"public"})}),
            # How many documents are asked for decides how many tokens are drawn.
            **(
                {}
                if text.inference is None
                else {"inference": self._told_by(text.inference), "rows": self.generate.rows}
            ),
            **evolved,
            **({} if text.resample is None else {"resample": text.resample.model_dump(mode="json")}),
        }

    def _evolved_by(self, text: TextGeneration, evolution: Evolution) -> dict[str, Any]:
        """What decides which texts are voted on: who writes them, but not how requests reach them."""
        whole = text.model_dump(mode="json", include=_EVOLVED_BY)
        endpoint = None if evolution.endpoint is None else {"url": evolution.endpoint.url}
        return whole | {"evolution": self._told_by(evolution) | {"endpoint": endpoint}}

    def _told_by(self, part: Inference | Evolution) -> dict[str, Any]:
        """A part whose public words are those that stand in prompts, the contract's description if it has none."""
        return part.model_dump(mode="json") | {"about": self.public_words(part)}

    def public_words(self, part: Inference | Evolution) -> str:
        """What the texts are, as prompts tell it."""
        return part.about or self.description


def _modelled(columns: Mapping[str, Any], privacy: Privacy | None) -> list[str]:
    graph = privacy.weight if privacy is not None and privacy.multi_owner else None
    return [name for name, column in columns.items() if column and column.type in MODELLED_TYPES and name != graph]


def told_values(column: Column) -> tuple[str | None, ...]:
    """All values of a column that a language model may be told, as texts, and None where it is nullable.

    Empty where the column has no list of them.
    """
    if column.type == "categorical":
        values: Sequence[str] = column.listed
    elif column.type == "boolean":
        values = ("false", "true")
    elif column.type == "integer" and column.max - column.min < MOST_TOLD:
        values = [str(number) for number in range(column.min, column.max + 1)]
    else:
        values = ()
    return (*values, None) if values and column.nullable else tuple(values)


def training_units(privacy: Privacy, training: Training) -> int:
    """The public, expected number of what training samples: owners, or records."""
    if training.sampled == "owners" or privacy.unit == "example":
        return privacy.expected_units
    most = privacy.expected_units * (1 if privacy.multi_owner else privacy.max_contributions)
    return training.expected_records or most


def batch_size(training: Training, sampled: int) -> int:
    """How many of those that training samples are expected in a step: as declared, or the default."""
    return training.batch_size or min(MOST_DEFAULT_BATCH, max(1, sampled // DEFAULT_BATCH_SHARE))


def _written(text: TextGeneration, columns: Mapping[str, Any]) -> str | None:
    """The named text column, or the only one that is not dropped."""
    kept = [name for name, column in columns.items() if column and column.type == "text" and column.pii != "drop"]
    return text.column or (kept[0] if len(kept) == 1 else None)


@dataclass(frozen=True)
class _Parts:
    """The parts of a contract that refer to each other; None stands for one that is not sound by itself."""

    source: Source | None
    privacy: Privacy | None
    columns: Mapping[str, Any]
    scrub: Scrub | None
    quality: Quality | None
    release: Release | None
    generate: Generate | None
    audit: Audit | None

    @classmethod
    def of(cls, document: Mapping[str, Any]) -> _Parts:
        """What is sound in a document that is no contract as a whole."""
        columns = document.get("columns")
        return cls(
            _sound(Source, document.get("source")),
            _sound(Privacy, document.get("privacy")),
            {str(name): _sound(Column, value) for name, value in columns.items()} if isinstance(columns, dict) else {},
            _sound(Scrub, document.get("scrub", {})),
            _sound(Quality, document.get("quality", {})),
            _sound(Release, document.get("release")),
            _sound(Generate, document.get("generate")),
            _sound(Audit, document.get("audit", {})),
        )

    def contradictions(self) -> Iterator[str]:
        """What is wrong between the parts, as far as they are sound; one line each."""
        yield from self._undeclared()
        yield from self._owners()
        yield from self._order()
        yield from self._periods()
        yield from self._constraints()
        yield from self._base_model()
        yield from self._text()
        yield from self._canary_kinds()
        yield from self._audited_apart()
        if not _modelled(self.columns, self.privacy) and all(self.columns.values()):
            yield from self._unmodelled()

    def _undeclared(self) -> Iterator[str]:
        """Names that are no column's, or not of one that is modelled."""
        source, quality, modelled = self.source, self.quality, _modelled(self.columns, self.privacy)
        named = {
            "source.key": source.key if source else [],
            "source.period_column": [source.period_column] if source and source.period_column else [],
            "privacy.owner_columns": self.privacy.owner_columns if self.privacy else [],
            "quality.target": [quality.target] if quality and quality.target else [],
            "quality.protected": quality.protected if quality else [],
            "release.max_missing": self.release.limited if self.release else [],
        }
        for path, names in named.items():
            for name in names:
                if name not in self.columns:
                    yield f"{path}: column {name!r} is not declared; accepted: {', '.join(self.columns)}"
                elif self.columns[name] and self.columns[name].type == "ignored":
                    yield f"{path}: column {name!r} is declared ignore: true; accepted: a column that is read"
                elif path.startswith(("quality.", "release.")) and self.columns[name] and name not in modelled:
                    yield f"{path}: column {name!r} is not modelled; accepted: {', '.join(modelled) or _NO_COLUMN}"

    def _unmodelled(self) -> Iterator[str]:
        """What asks for modelled columns where there are none: nothing is counted, and no budget goes there."""
        generate, none = self.generate, "no column is modelled"
        if generate is None:
            return  # whether a text is written cannot be said yet
        if generate.text is None:
            kept = any(column.type == "text" and column.pii != "drop" for column in self.columns.values())
            texts = f"; texts alone are written for a contract with generate.text, by auto or {', '.join(TEXT_METHODS)}"
            needed = f"columns: at least one of {', '.join(MODELLED_TYPES)} is needed to model anything"
            yield needed + (texts if kept else "")
            return
        if generate.rows == "auto" and generate.method not in INFERENCE_METHODS:
            yield (
                f"generate.rows: 'auto', but {none} whose counts would say how many rows there are: give generate.rows "
                f"a number; accepted: 1 to {MOST_ROWS}"
            )
        share, default = generate.text.columns_share, TextGeneration.model_fields["columns_share"].default
        if share != default:
            yield (
                f"generate.text.columns_share: {share:g}, but {none}: the whole guarantee is for the text; accepted: "
                "none"
            )
        if generate.constraints:
            yield f"generate.constraints: {none} that they could be about; accepted: none"
        if generate.workload != Workload():
            yield f"generate.workload: {none} that it could be about; accepted: none"
        yield from self._audited_by_columns(none)

    def _audited_by_columns(self, none: str) -> Iterator[str]:
        """What an audit is asked to do with columns where none is modelled."""
        if self.audit is None:
            return
        if self.audit.canary_rows:
            yield (
                f"audit.canary_rows: {', '.join(self.audit.canary_rows)}, but {none}: canaries are texts alone; "
                "accepted: none"
            )
        if self.generate is None or self.generate.method == "auto" or self.generate.method in TOPIC_METHODS:
            return  # topics are counted, as a column is
        from dpsynth_platform.audit.attacks import ATTACKS  # late: no contract with columns needs it

        on_columns = [attack.name for attack in ATTACKS]
        for gate in self.audit.gates or ():
            if gate in on_columns:
                yield f"audit.gates: {gate!r} does not apply, since {none}; accepted: attacks on texts"

    def _constraints(self) -> Iterator[str]:
        """Constraints about columns or values that there are not."""
        constraints = self.generate.constraints if self.generate else []
        if not constraints or not all(self.columns.values()) or not _modelled(self.columns, self.privacy):
            return
        from dpsynth_platform.synth.tabular.constraints import Conditions  # late: it is made of contracts
        from dpsynth_platform.synth.tabular.domain import declared_domain

        try:
            Conditions.of(declared_domain(self.columns, _modelled(self.columns, self.privacy)), constraints)
        except ContractError as error:
            yield from str(error).split("\n")

    def _base_model(self) -> Iterator[str]:
        """A checkpoint that nothing would start from: a lineage that is not the model's."""
        named = self.generate.base_model if self.generate else None
        starts = self.generate and (self.generate.open or self.generate.method in BASE_MODEL_METHODS)
        if self.generate and named is not None and not starts:
            starting = ", ".join(BASE_MODEL_METHODS) or "none of this version's"
            yield (
                f"generate.base_model: {named!r}, but method {self.generate.method!r} starts from no model; accepted "
                f"with methods that do ({starting})"
            )

    def _canary_kinds(self) -> Iterator[str]:
        """Texts of canaries where no text is written, rows that nothing tells from random ones, a kind named twice."""
        kinds = self.audit.canary_texts if self.audit else None
        if kinds and self.generate and self.generate.text is None:
            yield f"audit.canary_texts: no text is written; accepted: with one of {', '.join(TEXT_METHODS)}"
        if kinds and set(kinds) != {"made-up"} and self.generate and self.generate.endpoint is not None:
            yield f"audit.canary_texts: {', '.join(kinds)} with an endpoint, whose model is not here; accepted: made-up"
        if kinds and len(set(kinds)) < len(kinds):
            yield f"audit.canary_texts: {', '.join(kinds)}; accepted: each kind once"
        rows = (self.audit.canary_rows if self.audit else None) or []
        if len(set(rows)) < len(rows):
            yield f"audit.canary_rows: {', '.join(rows)}; accepted: each kind once"
        if "plausible" in rows and self.generate and not self.generate.constraints:
            yield (
                "audit.canary_rows: 'plausible', but no generate.constraints say what is; accepted: random, or "
                "constraints"
            )

    def _audited_apart(self) -> Iterator[str]:
        """Where a second model cannot be trained for the audit, or would make a weak guarantee of the two together."""
        if self.audit is None or self.audit.model == "shared":
            return
        privacy = self.privacy
        if privacy and privacy.on_overlap != "compose":
            yield (
                f"audit.model: 'separate' with on_overlap: {privacy.on_overlap}, which bars whoever took part in the "
                "audited model from the released one; accepted: shared, or on_overlap: compose"
            )
        if privacy and 2 * privacy.guarantee.epsilon > WEAK_EPSILON and not privacy.accept_weak_guarantee:
            yield (
                f"audit.model: 'separate' with privacy.guarantee.epsilon: {privacy.guarantee.epsilon:g} for each of "
                f"two models, which together may be a weak guarantee (above {WEAK_EPSILON:g}); accepted: shared, an "
                f"epsilon up to {WEAK_EPSILON / 2:g}, or a reason in privacy.accept_weak_guarantee"
            )

    def _text(self) -> Iterator[str]:
        """What a language model is to write, and be told, and cannot."""
        generate, privacy = self.generate, self.privacy
        if generate is None or generate.text is None or not all(self.columns.values()):
            return
        kept = [name for name, column in self.columns.items() if column.type == "text" and column.pii != "drop"]
        written = _written(generate.text, self.columns)
        if written is None:
            yield f"generate.text.column: not named; accepted: one of {', '.join(kept) or 'none that is declared'}"
        elif written not in kept or self.columns[written].pii == "hash":
            yield (
                f"generate.text.column: {written!r}; accepted: a column of type text that scrubbing leaves readable "
                "(pii: replace or mask)"
            )
        modelled = _modelled(self.columns, privacy)
        for name in generate.text.given or []:
            if name not in modelled:
                yield f"generate.text.given: {name!r} is not modelled; accepted: {', '.join(modelled) or _NO_COLUMN}"
            elif not told_values(self.columns[name]):
                yield (
                    f"generate.text.given: {name!r} has no list of values; accepted: categories that are declared, "
                    f"booleans, whole numbers from min to max of which there are at most {MOST_TOLD}"
                )
        yield from self._counted(generate.text, modelled)
        if privacy is None:
            return
        if privacy.weighting == "owners":
            yield f"privacy.weighting: 'owners' with method {generate.method!r}; accepted: rows"
        if generate.text.inference is not None and not generate.open:
            yield from self._inference(generate.text, generate.text.inference, privacy)
        if generate.text.evolution is not None and generate.text.chunks > 1 and not generate.open:
            yield f"generate.text.chunks: {generate.text.chunks} with method {generate.method!r}; accepted: 1"
        if generate.training is None:
            return
        if generate.text.topics is not None and KEYWORDS_COLUMN in self.columns:
            yield (
                f"columns.{KEYWORDS_COLUMN}: with method {generate.method!r}, which tells the language model a topic "
                "under that name; accepted: another name"
            )
        training = generate.training
        if training.sampled == "owners" and training.expected_records is not None:
            yield "generate.training.expected_records: with sampled 'owners'; accepted: none (expected_units counts)"
        sampled = training_units(privacy, training)
        if training.batch_size is not None and training.batch_size > sampled:
            yield f"generate.training.batch_size: {training.batch_size} of {sampled}; accepted: at most as many"
        if training.sampled == "owners" and (privacy.multi_owner or privacy.unit == "example"):
            yield (
                "generate.training.sampled: 'owners', where a record has several owners or is its own; accepted: "
                "records"
            )

    def _counted(self, text: TextGeneration, modelled: Sequence[str]) -> Iterator[str]:
        """Numbers of rows for what the model is not told."""
        told = [name for name in (modelled if text.given is None else text.given) if name in modelled]
        for name, rows in (text.counts or {}).items():
            values = [value for value in told_values(self.columns[name]) if value is not None] if name in told else []
            if not values:
                accepted = ", ".join(told) or _NO_COLUMN
                yield f"generate.text.counts: {name!r} is not told to the model; accepted: {accepted}"
                continue
            strange = [value for value in rows if value not in values]
            if strange:
                yield (
                    f"generate.text.counts.{name}: {', '.join(map(repr, strange[:5]))}; accepted: "
                    f"{', '.join(values[:20])}{', ...' if len(values) > 20 else ''}"
                )

    def _inference(self, text: TextGeneration, inference: Inference, privacy: Privacy) -> Iterator[str]:
        """Contexts that owners could change, or of which there are too few; settings that would do nothing."""
        if privacy.adjacency not in ("add-or-remove", "zero-out"):
            yield (
                f"privacy.adjacency: {privacy.adjacency!r} with method 'dp_inference', by which every owner is in one "
                "context for good; accepted: add-or-remove, zero-out"
            )
        for name in ("temperature", "top_k", "top_p", "chunks"):
            default = TextGeneration.model_fields[name].default
            if getattr(text, name) != default:
                yield (
                    f"generate.text.{name}: {getattr(text, name)} with method 'dp_inference'; accepted: {default} (the "
                    "mechanism draws the texts: generate.text.inference)"
                )
        contexts = privacy.expected_units // inference.batch_size
        named = _modelled(self.columns, privacy) if text.given is None else text.given
        labels = math.prod(len(told_values(self.columns[name])) or 1 for name in named if self.columns.get(name))
        if labels > contexts:
            yield (
                f"generate.text.inference.batch_size: {inference.batch_size} of {privacy.expected_units} expected "
                f"units makes {contexts} contexts, and what the model is told (generate.text.given) has {labels} "
                "combinations of values, each of which needs one; accepted: fewer columns in given, or smaller batches"
            )

    def _owners(self) -> Iterator[str]:
        """Owner columns that cannot say who owns a record."""
        privacy = self.privacy
        if privacy and privacy.unit == "example":
            yield from self._records(privacy)
        for name in privacy.owner_columns if privacy else []:
            column = self.columns.get(name)
            if privacy is None or column is None:
                continue
            unowned = column.nullable and not privacy.multi_owner
            # Lists of ids are no texts, and which of the two a source holds is not for a contract to see.
            accepted = ("identifier",) if privacy.multi_owner else ("identifier", "text")
            if column.type not in accepted or unowned:
                yield (
                    f"privacy.owner_columns: {name!r} is a {'nullable ' if unowned else ''}{column.type} column; "
                    f"accepted: a column of type {' or '.join(accepted)}"
                    + (", with fixed-graph" if privacy.multi_owner else " that is not nullable")
                )

    def _records(self, privacy: Privacy) -> Iterator[str]:
        """Why what is called a record could be several.

        Of several records with one owner, bounding keeps one. Without that one it would keep another: one record less
        would change two of what the mechanism reads, while the guarantee speaks of one.
        """
        if self.source and privacy.owner_columns != self.source.key:
            yield (
                f"privacy.owner_columns: {', '.join(privacy.owner_columns)} with unit 'example', by which every record "
                f"is its own unit; accepted: what is the source's key alone ({', '.join(self.source.key)}), or unit "
                "user"
            )
        if privacy.owner_normalization:
            yield (
                f"privacy.owner_normalization: {', '.join(privacy.owner_normalization)} with unit 'example', where it "
                "could make one of several records; accepted: none"
            )

    def _order(self) -> Iterator[str]:
        """What says which records are kept must not be what the release protects, where records have several owners."""
        if self.privacy is None:
            return
        weight = self.privacy.weight
        column = self.columns.get(weight) if weight else None
        if weight and (weight not in self.columns or (column and column.type not in WEIGHT_TYPES)):
            yield f"privacy.record_order: weight {weight!r}; accepted: a column of type {', '.join(WEIGHT_TYPES)}"
        if not self.privacy.multi_owner:
            return
        if self.scrub and self.scrub.consistent == "owner":
            yield "scrub.consistent: 'owner', but records have several owners; accepted with fixed-graph: document"
        for name in self.source.key if self.source else []:
            if name in _modelled(self.columns, self.privacy):
                yield (
                    f"source.key: column {name!r} is modelled; where records have several owners a record's key "
                    "says whose records are kept, so accepted are columns of type identifier or text"
                )

    def _periods(self) -> Iterator[str]:
        """A cadence, its first period and the column that says to which period a record belongs."""
        source, release = self.source, self.release
        if source and release and (release.cadence is None) != (source.period_column is None):
            yield "release.cadence and source.period_column go together: declare both or neither"
        if release and (release.cadence is None) != (release.start is None):
            yield "release.cadence and release.start go together: declare both or neither"
        column = self.columns.get(source.period_column) if source and source.period_column else None
        if column and column.type != "date":
            yield "source.period_column: accepted is a column of type date"
        if release and release.cadence is not None and release.on_new_version is not None:
            yield "release.on_new_version: accepted without release.cadence; with one, a period is paid for once"
        if release and release.cadence is None and release.time_zone != "UTC":
            yield "release.time_zone: accepted with release.cadence; without one, no period ends"


def _sound(model: Any, value: Any) -> Any:
    """A part of a contract, or None if it is not sound by itself."""
    try:
        return _adapter(model).validate_python(value)
    except ValidationError:
        return None


@cache
def _adapter(model: Any) -> TypeAdapter[Any]:
    return TypeAdapter(model)


class Cap(_Part):
    """The most that the family may ever cost one owner."""

    epsilon: float = Field(gt=0, le=MOST_CAP)
    delta: float = Field(gt=0, lt=1)


class FamilyBudget(_Part):
    """The budget authority of a family of datasets: one privacy unit, one adjacency, one cap for life."""

    family: FamilyName
    unit: UnitName
    adjacency: AdjacencyName = "add-or-remove"
    namespace: FamilyName
    owner_normalization: list[Normalization] = Field(
        default_factory=list, description="How owner ids are normalized in all datasets, or one person becomes two."
    )
    mode: Literal["per-owner", "family"]
    cap: Cap


@dataclass(frozen=True)
class Draft:
    """A contract file as far as it can be read.

    Attributes:
        contract: the whole; None where anything is wrong with it.
        family: the family that it names, if it names one.
        privacy: its privacy part, if that is sound by itself.
        faults: all that is wrong and can be seen at once: key path, value and what is accepted.
    """

    contract: DataContract | None
    family: str | None
    privacy: Privacy | None
    faults: tuple[str, ...]


def draft_contract(document: Mapping[str, Any], variables: Mapping[str, str]) -> Draft:
    """Reads an already parsed document, sound or not; `variables` replaces ${NAME} in its URIs."""
    unknown: dict[str, None] = {}
    whole = _expand(document, variables, unknown)
    faults = [f"${{{name}}} is not known; accepted: {', '.join(sorted(variables))}" for name in unknown]
    parts = _Parts.of(whole)
    faults += (f"generate.constraints.{fault}" for fault in _unquoted(whole.get("columns"), whole.get("generate")))
    contract = None
    try:
        contract = DataContract.model_validate(whole)
    except ValidationError as error:
        problems = error.errors()
        faults += [line for problem in problems for line in _explain(DataContract, problem)]
        if all(problem["loc"] for problem in problems):  # what is wrong between parts is looked for in sound ones only
            faults += parts.contradictions()
    family = _sound(FamilyName, whole.get("family"))
    return Draft(None if faults else contract, family, parts.privacy, tuple(faults))


def _unquoted(columns: Any, generate: Any) -> Iterator[str]:
    """See `constraints.unquoted`; of parts that nobody has checked."""
    named = columns.items() if isinstance(columns, dict) else ()
    texts = {name for name, column in named if isinstance(column, dict) and column.get("type") == "categorical"}
    return unquoted(generate.get("constraints") if isinstance(generate, dict) else None, texts)


def load_contract(path: Path, variables: Mapping[str, str]) -> DataContract:
    """Reads and validates a contract; `variables` replaces ${NAME} in its URIs.

    Raises:
        ContractError: one line for each fault, with file, key path, value and what is accepted.
    """
    return parse_contract(read_yaml(path), where=str(path), variables=variables)


def parse_contract(document: Mapping[str, Any], *, where: str, variables: Mapping[str, str]) -> DataContract:
    """Validates an already parsed document; see `load_contract`."""
    draft = draft_contract(document, variables)
    if draft.contract is None:
        raise ContractError("\n".join(f"{where}: {fault}" for fault in draft.faults))
    return draft.contract


def load_family(path: Path) -> FamilyBudget:
    """Reads and validates a family budget. Raises `ContractError` like `load_contract`."""
    return validated(FamilyBudget, read_yaml(path), str(path))


def check_family(contract: DataContract, family: FamilyBudget) -> None:
    """Refuses a contract whose unit, adjacency, namespace, normalization or delta its family cannot carry."""
    faults = list(family_faults(contract.family, contract.privacy, family))
    if faults:
        raise ContractError("\n".join(f"{contract.dataset}: {fault}" for fault in faults))


def leaves_out_in_silence(contract: DataContract, family: FamilyBudget) -> bool:
    """Whether a mechanism may leave owners out for what they took part in before, without anybody being told.

    Then no count of who is left may be shown, to the operator either: the number of those left out follows from it.
    """
    return family.mode == "per-owner" or contract.privacy.on_overlap == "exclude"


def family_faults(named: str, privacy: Privacy, family: FamilyBudget) -> Iterator[str]:
    """Why a family cannot carry a contract that names it and has this privacy part; one line each."""
    pairs = {
        "family": (named, family.family),
        "privacy.unit": (privacy.unit, family.unit),
        "privacy.adjacency": (privacy.adjacency, family.adjacency),
        "privacy.namespace": (privacy.namespace, family.namespace),
        "privacy.owner_normalization": (privacy.owner_normalization, family.owner_normalization),
    }
    for path, (mine, accounts) in pairs.items():
        if mine != accounts:
            yield f"{path}: {mine!r} differs from the family's {accounts!r}; accepted: {accounts}"
    if privacy.delta > family.cap.delta:
        yield (
            f"privacy.guarantee.delta: {privacy.delta:.3g} exceeds the delta of family {family.family}'s account; "
            f"accepted: at most {family.cap.delta:g}"
        )


def contract_json_schema() -> dict[str, Any]:
    """JSON schema of a contract file, for editors."""
    schema = DataContract.model_json_schema()
    return {"$schema": "https://json-schema.org/draft/2020-12/schema"} | schema


_VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")


def _expand(value: Any, variables: Mapping[str, str], unknown: dict[str, None]) -> Any:
    """A value with each ${NAME} replaced; names that stand for nothing stay and are added to `unknown`."""
    if isinstance(value, dict):
        return {key: _expand(item, variables, unknown) for key, item in value.items()}
    if isinstance(value, list):
        return [_expand(item, variables, unknown) for item in value]
    if not isinstance(value, str):
        return value

    def replace(match: re.Match[str]) -> str:
        name = match.group(1)
        if name not in variables:
            unknown[name] = None
        return variables.get(name, match.group())

    return _VARIABLE.sub(replace, value)


def validated(model: type[_Model], document: Any, where: str) -> _Model:
    """A model of a file's content. Raises `ContractError` with one line for each fault, which names its key."""
    try:
        return model.model_validate(document)
    except ValidationError as error:
        lines = [line for problem in error.errors() for line in _explain(model, problem)]
    raise ContractError("\n".join(f"{where}: {line}" for line in lines))


def _explain(model: type[BaseModel], problem: Any) -> list[str]:
    """Faults as `key.path: value; what is accepted`. Contracts are public, so the value may be shown."""
    # Below a column's name stands its type, which is no key; a column may be named like one.
    location = [
        str(part) for place, part in enumerate(problem["loc"]) if place != 2 or part not in (*_COLUMN_TAGS, "ignored")
    ]
    path = ".".join(location)
    kind, context, value = problem["type"], problem.get("ctx", {}), problem.get("input")
    if kind == "value_error":
        return [_below(path, line) for line in str(context["error"]).split("\n")]
    return [_explained(model, location, kind, context, value, problem["msg"])]


def _below(path: str, text: str) -> str:
    """What a model's own check says; it names the key below its path first ("guarantee.epsilon: ..."), or nothing."""
    names_a_key = re.match(r"[a-z_.]+:", text) is not None
    separator = "." if path and names_a_key else ": " if path else ""
    return f"{path}{separator}{text}"


def _explained(
    model: type[BaseModel], location: list[str], kind: str, context: Mapping[str, Any], value: Any, message: str
) -> str:
    """One of pydantic's own faults."""
    path = ".".join(location)
    if kind == "extra_forbidden":
        accepted = _accepted_keys(model, location[:-1])
        return f"{path}: unknown key{_meant(location[-1], accepted)}; accepted: {', '.join(accepted)}"
    if kind == "missing":
        return f"{path}: missing; it is required"
    if kind == "string_pattern_mismatch" and path.endswith("record_order"):
        return f"{path}: {value!r}; accepted: random, fewest-owners-first, weight:COLUMN"
    if kind in ("string_pattern_mismatch", "string_type") and path.endswith("time_limit"):
        return f"{path}: {value!r}; accepted: whole seconds, minutes or hours, such as 90s, 2m or 1h"
    if kind == "string_pattern_mismatch":
        return f"{path}: {value!r}; accepted: text that matches {context['pattern']}"
    if kind == "string_type" and isinstance(value, int | float):
        written = str(value).lower() if isinstance(value, bool) else getattr(value, "written", value)
        return f"{path}: {written} without quotes is no text; accepted: a text, so quote it: '{written}'"
    if kind in ("union_tag_invalid", "union_tag_not_found"):
        shown = value.get("type") if isinstance(value, dict) else value
        return f"{path}.type: {_shown(shown)}; accepted: {', '.join(_COLUMN_TAGS)}; or ignore: true"
    if kind == "model_type":
        return f"{path}: {_shown(value)}; accepted: keys below it, of {', '.join(_accepted_keys(model, location))}"
    return f"{path}: {_shown(value)}; {message[0].lower()}{message[1:]}"


def _shown(value: Any) -> str:
    """A value of a contract in a message; an empty key is a gap of a draft."""
    if value is None:
        return "not filled in"
    shown = f"a {type(value).__name__}" if isinstance(value, (dict, list)) else repr(value)
    return shown if len(shown) <= _LONGEST_SHOWN else f"{shown[:_LONGEST_SHOWN]}..."


def _meant(word: str, accepted: Sequence[str]) -> str:
    """A hint at the accepted word that is nearest, if one is near."""
    near = difflib.get_close_matches(word, accepted, n=1)
    return f" (did you mean {near[0]!r}?)" if near else ""


def _accepted_keys(model: type[BaseModel], location: Sequence[str]) -> list[str]:
    """The keys of the part that a path leads to; every column type's keys together for a column."""
    kinds: list[Any] = [model]
    for name in location:
        kinds = [kind for outer in kinds for inner in _inside(outer, name) for kind in _alternatives(inner)]
    parts = [kind for kind in kinds if isinstance(kind, type) and issubclass(kind, BaseModel)]
    return sorted({key for part in parts for key in part.model_fields})


def _inside(kind: Any, name: str) -> tuple[Any, ...]:
    """The type of what stands under a key of a part or mapping, or at a place in a list."""
    if get_origin(kind) in (list, dict):
        return get_args(kind)[-1:]
    field = kind.model_fields.get(name) if isinstance(kind, type) and issubclass(kind, BaseModel) else None
    return () if field is None else (field.annotation,)


def _alternatives(kind: Any) -> Iterator[Any]:
    """The types that a declaration accepts, without what it says about them."""
    if get_origin(kind) is Annotated:
        yield from _alternatives(get_args(kind)[0])
    elif get_origin(kind) in (Union, UnionType):
        for one in get_args(kind):
            yield from _alternatives(one)
    else:
        yield kind


def _check_range(low: float, high: float, bins: Any, points: Sequence[float]) -> None:
    if low >= high:
        raise ValueError(f"min {low} is not below max {high}")
    if isinstance(bins, list):
        inside = all(math.isfinite(edge) and low < edge <= high for edge in bins)
        if not bins or len(bins) > MOST_BINS or not inside or not _ascending(bins):
            raise ValueError(f"bins: accepted are ascending edges above {low} and up to {high}")
    if not all(low <= point <= high for point in points) or not _ascending(points):
        raise ValueError(f"points: accepted are ascending values from {low} to {high}")


def _ascending(values: Sequence[float]) -> bool:
    return all(a < b for a, b in itertools.pairwise(values))


def _check_steps(low: str, high: str, first: int, last: int, step: int, resolution: str) -> None:
    if first >= last:
        raise ValueError(f"min {low} is not before max {high}")
    for name, shown, value in (("min", low, first), ("max", high, last)):
        if value % step:
            raise ValueError(f"{name}: {shown} is no whole multiple of the resolution {resolution}")
