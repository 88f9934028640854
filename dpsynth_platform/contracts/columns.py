"""The contract's `columns`: the public declaration of each, by type."""

from __future__ import annotations

import datetime as dt
import itertools
import math
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Annotated, Any, Literal, get_args, get_origin

from pydantic import (
    Discriminator,
    Field,
    Tag,
    ValidationError,
    ValidatorFunctionWrapHandler,
    field_validator,
    model_validator,
)

from dpsynth_platform.contracts.base import Part, shown_value, text_like
from dpsynth_platform.contracts.privacy import Privacy
from dpsynth_platform.foundation.image_form import ImageForm
from dpsynth_platform.foundation.yaml_files import text_of

PiiAction = Literal["drop", "mask", "hash", "replace"]
MOST_CONDITIONING_VALUES = 1000
"""The most whole numbers that a conditioning column may have."""


class _Column(Part):
    nullable: bool = False


class _ScannedColumn(_Column):
    accept_pii: str | None = Field(
        default=None, min_length=10, description="Why values that look like personal data are none, or may be released."
    )


BinRule = Literal["adaptive", "quantile", "privtree", "kmeans"]
"""How noisy counts of a fine grid are merged into bins: see `synth.tabular.compression`."""
_BIN_RULES = get_args(BinRule)
_BINS = "How values are grouped: adaptive (default), quantile, privtree, kmeans, a number of equal bins"
MOST_BINS = 1000
MOST_POINTS = 100


class _Binned(Part):
    @field_validator("bins", mode="wrap", check_fields=False)
    @classmethod
    def _known_rule(cls, bins: Any, read: ValidatorFunctionWrapHandler) -> Any:
        with suppress(ValidationError):
            found = read(bins)
            if not isinstance(found, int) or 1 <= found <= MOST_BINS:
                return found
        kinds = get_args(cls.model_fields["bins"].annotation)
        edges = ", or a list of ascending inner edges" if any(get_origin(kind) is list for kind in kinds) else ""
        listed = isinstance(bins, list) and len(bins) <= 5
        shown = f"[{', '.join(map(shown_value, bins))}]" if listed else shown_value(bins)
        raise ValueError(f"{shown}; accepted: {', '.join(_BIN_RULES)}, or 1 to {MOST_BINS}{edges}")


class IntegerColumn(_ScannedColumn, _Binned):
    """Whole numbers in [min, max]; values outside are clamped."""

    type: Literal["integer"]
    min: int = Field(ge=-(2**63), lt=2**64)
    max: int = Field(ge=-(2**63), lt=2**64)
    bins: int | list[int] | BinRule | None = Field(default=None, description=f"{_BINS}, or ascending inner edges.")
    points: list[int] = Field(
        default_factory=list,
        max_length=MOST_POINTS,
        description="Values that many records share, such as 0 or a top code; each has a bin of its own.",
    )

    @model_validator(mode="after")
    def _range(self) -> IntegerColumn:
        _check_range(self.min, self.max, self.bins, self.points)
        if self.max - self.min >= 2**64:
            raise ValueError(
                f"min {self.min}, max {self.max}: the range exceeds every integer type; accepted: up to 2^64 values"
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
        description="Values that many records share, such as 0 or a top code; each has a bin of its own.",
    )
    decimals: int | None = Field(
        default=None, ge=0, le=12, description="Digits after the decimal point that values have, as in 12.50 (2)."
    )

    @model_validator(mode="after")
    def _range(self) -> FloatColumn:
        _check_range(self.min, self.max, self.bins, self.points)
        if not math.isfinite(self.max - self.min):
            raise ValueError(
                f"min {self.min:g} and max {self.max:g}: the range exceeds double precision; accepted: up to "
                f"{sys.float_info.max:.3g}"
            )
        for name, values in (("min", [self.min]), ("max", [self.max]), ("points", self.points), ("bins", self.bins)):
            for value in values if isinstance(values, list) and self.decimals is not None else []:
                if round(value, self.decimals) != value:
                    raise ValueError(f"{name}: {value:.12g} has more than the {self.decimals} declared decimals")
        if self.decimals is not None and max(-self.min, self.max) * 10**self.decimals >= 2**53:
            raise ValueError(
                f"decimals: {self.decimals} exceed double precision for numbers of this size; accepted: fewer"
            )
        return self


class DateColumn(_Column, _Binned):
    """Calendar days in [min, max]; days outside are clamped."""

    type: Literal["date"]
    min: dt.date
    max: dt.date
    bins: int | BinRule | None = Field(default=None, description=f"{_BINS}.")

    @field_validator("min", "max", mode="before")
    @classmethod
    def _no_plain_number(cls, value: Any) -> Any:
        return _no_number(value, "a date such as 2026-01-31")

    @model_validator(mode="after")
    def _range(self) -> DateColumn:
        if self.min >= self.max:
            raise ValueError(f"min {self.min} is not before max {self.max}")
        return self


def _no_number(value: Any, accepted: str) -> Any:
    """Refuses numbers, which pydantic would read as seconds since 1970."""
    if isinstance(value, int | float) or (isinstance(value, str) and re.fullmatch(r"\s*[-+]?[0-9_.eE]*\s*", value)):
        raise ValueError(f"{shown_value(value)}; accepted: {accepted}")
    return value


Resolution = Annotated[str, text_like(r"^[1-9][0-9]{0,5}(ms|s|min|h)$", "whole ms, s, min or h, such as 15min")]
_MICROSECONDS = {"ms": 1_000, "s": 1_000_000, "min": 60_000_000, "h": 3_600_000_000}
DAY_MICROSECONDS = 24 * _MICROSECONDS["h"]
EPOCH = dt.datetime(1970, 1, 1)


class _Timed(_Column, _Binned):
    resolution: Resolution

    @property
    def step(self) -> int:
        """The resolution in microseconds."""
        number = self.resolution.rstrip("hmins")
        return int(number) * _MICROSECONDS[self.resolution[len(number) :]]


class DatetimeColumn(_Timed):
    """Moments in [min, max]; moments outside are clamped. In UTC where the source's type has a time zone.

    Where the range has several days, the mechanism counts day, weekday and hour. Released moments are multiples of the
    resolution.
    """

    type: Literal["datetime"]
    min: dt.datetime
    max: dt.datetime
    resolution: Resolution = "1s"
    bins: int | BinRule | None = Field(default=None, description=f"{_BINS}.")

    @field_validator("min", "max", mode="before")
    @classmethod
    def _no_plain_number(cls, value: Any) -> Any:
        return _no_number(value, "a moment such as 2026-01-31T12:00:00")

    @field_validator("min", "max")
    @classmethod
    def _in_utc(cls, moment: dt.datetime) -> dt.datetime:
        try:
            return moment.astimezone(dt.UTC).replace(tzinfo=None) if moment.tzinfo else moment
        except OverflowError:
            raise ValueError(
                f"{moment.isoformat()} lies outside of the years of UTC; accepted: years 1 to 9999"
            ) from None

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
    def _no_plain_number(cls, value: Any) -> Any:
        return _no_number(value, "a time of day such as '12:30'")

    @field_validator("min", "max")
    @classmethod
    def _without_zone(cls, time: dt.time | None) -> dt.time | None:
        if time is not None and time.tzinfo is not None:
            raise ValueError(f"{time} has a time zone; accepted: a time of day without one")
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
    """Texts or integer codes: of a closed, public list, or learned. All other values count as missing.

    `values: learned` is for columns whose values are not public. The mechanism learns the frequent ones with
    differential privacy and a part of the budget, at most `most` of them.
    """

    type: Literal["categorical"]
    values: Annotated[list[str], Field(min_length=2, max_length=MOST_VALUES)] | Literal["learned"]
    most: int | None = Field(
        default=None,
        ge=1,
        le=MOST_VALUES,
        description=f"With `values: learned`: the most values to keep; default {MOST_LEARNED}. Memory is planned for "
        "all of them.",
    )

    @property
    def listed(self) -> list[str]:
        """The public values; empty where they are learned."""
        return [] if self.values == LEARNED else list(self.values)

    @property
    def most_learned(self) -> int | None:
        return (self.most or MOST_LEARNED) if self.values == LEARNED else None

    @model_validator(mode="after")
    def _one_of_both(self) -> CategoricalColumn:
        if self.most is not None and self.values != LEARNED:
            raise ValueError("most: goes with values: learned; accepted with a list: none")
        return self

    @field_validator("values", mode="before")
    @classmethod
    def _codes(cls, values: Any) -> Any:
        if values == LEARNED:
            return values
        if not isinstance(values, list):
            raise ValueError(f"{shown_value(values)}; accepted: a list of values, or {LEARNED}")
        # Checked before the union, whose errors name each alternative.
        if not 2 <= len(values) <= MOST_VALUES:
            raise ValueError(f"a list of {len(values)}; accepted: 2 to {MOST_VALUES} values, or {LEARNED}")
        return list(_texts(values))

    @field_validator("values")
    @classmethod
    def _distinct(cls, values: list[str] | str) -> list[str] | str:
        seen: set[str] = set()
        for value in values if isinstance(values, list) else []:
            if value in seen:
                raise ValueError(f"{value!r} is listed twice; accepted: distinct values")
            seen.add(value)
        return values

    @property
    def whole_numbers(self) -> bool:
        """Whether all listed values are canonical integers, so that values compare as numbers: 4.0 is 4."""
        return bool(self.listed) and all(map(WHOLE_NUMBER.fullmatch, self.listed))


def _texts(values: Iterable[Any]) -> Iterator[str]:
    for place, value in enumerate(values, start=1):
        try:
            yield text_of(value)
        except ValueError as error:
            problem = str(error)
        else:
            continue
        raise ValueError(f"item {place} of the list: {problem}")


class BooleanColumn(_Column):
    """True or false."""

    type: Literal["boolean"]


class IdentifierColumn(_Column):
    """A technical id (an owner's id, a record number). Never modelled: the release gets new ones."""

    type: Literal["identifier"]


class TextColumn(_Column):
    """Free text or directly identifying strings.

    `pii` is the scrubbing action; the default, fictional values, serves generators that learn from the text best.
    Tabular methods do not model text: the release lacks a dropped column, and has any other as an empty one, so that
    the schema stays that of the source.
    """

    type: Literal["text"]
    pii: PiiAction = "replace"


LONGEST_SIDE = 1024


class ImageColumn(Part):
    """Pictures of one public form: PNG, JPEG or WebP files, or raw pixels.

    The step `scrubbed` decodes them and keeps the pixels only: no metadata, such as the place of a photograph, remains.
    What the pixels show (faces, plates, writing) is not scrubbed, which `accept_unscrubbed` acknowledges. A row without
    a readable picture of the declared form is left out.
    """

    type: Literal["image"]
    size: Annotated[list[Annotated[int, Field(ge=1, le=LONGEST_SIDE)]], Field(min_length=2, max_length=2)] = Field(
        description=f"Height and width in pixels, up to {LONGEST_SIDE} each."
    )
    channels: Literal[1, 3] = Field(default=3, description="1: grey; 3: red, green, blue.")
    resize: Literal["refuse", "fit", "crop"] = Field(
        default="refuse",
        description="Pictures of another size: `refuse` leaves them out, `fit` scales the whole picture and adds black "
        "margins, `crop` scales it and cuts off what exceeds the form.",
    )
    stored: Literal["files", "raw"] = Field(
        default="files", description="`files`: encoded; `raw`: height x width x channels bytes, or lists of them."
    )
    damaged: Literal["leave-out", "refuse"] = Field(
        default="leave-out",
        description="Rows without a readable picture of the form are left out; `refuse` stops the run once so many "
        "owners have one that no single owner decides.",
    )
    accept_unscrubbed: str | None = Field(
        default=None,
        validate_default=True,
        min_length=10,
        description="Why it is acceptable that people and writing in the pictures are not scrubbed. Required.",
    )

    @field_validator("size", mode="before")
    @classmethod
    def _height_and_width(cls, size: Any) -> Any:
        sides = size if isinstance(size, list | tuple) else ()
        if size is not None and not (
            len(sides) == 2 and all(type(side) is int and 1 <= side <= LONGEST_SIDE for side in sides)
        ):
            raise ValueError(
                f"{shown_value(size)}; accepted: height and width in pixels, such as [28, 28], from 1 to {LONGEST_SIDE}"
            )
        return size

    @field_validator("accept_unscrubbed")
    @classmethod
    def _acknowledged(cls, reason: str | None) -> str:
        if reason is None:
            raise ValueError(
                "missing; faces, plates and writing inside of pictures are not scrubbed; accepted: "
                "a sentence why that is acceptable, such as: the pictures show single handwritten digits"
            )
        return reason

    @property
    def form(self) -> ImageForm:
        return ImageForm(self.size[0], self.size[1], self.channels)

    @property
    def nullable(self) -> bool:
        return False


class IgnoredColumn(Part):
    """A column of any type that the platform never reads."""

    ignore: Literal[True]

    @model_validator(mode="before")
    @classmethod
    def _alone(cls, document: Any) -> Any:
        others = [str(key) for key in document if key != "ignore"] if isinstance(document, dict) else []
        if others:
            raise ValueError(f"ignore: with {', '.join(others)}; accepted: ignore: true without other keys")
        return document

    @property
    def type(self) -> Literal["ignored"]:
        return "ignored"

    @property
    def nullable(self) -> bool:
        return False


def _column_tag(value: Any) -> str | None:
    if isinstance(value, dict) and "ignore" in value:
        return "ignored"
    found = value.get("type") if isinstance(value, dict) else getattr(value, "type", None)
    return found if isinstance(found, str) else None


COLUMN_TAGS = (
    "integer",
    "float",
    "date",
    "datetime",
    "time",
    "categorical",
    "boolean",
    "identifier",
    "text",
    "image",
)
_ALL_TAGS = (*COLUMN_TAGS, "ignored")
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
    | Annotated[ImageColumn, Tag("image")]
    | Annotated[IgnoredColumn, Tag("ignored")],
    Discriminator(_column_tag),
]
RESERVED_COLUMNS = (
    "included",
    "_owner",
    "_owners",
    "_record",
    "_kind",
    "_copy",
    "_rank",
    "_weight",
    "_listed",
    "_features",
)
"""The platform's own columns beside the declared ones: of its tables (the first five, the last), and of bounding."""
MODELLED_TYPES = ("integer", "float", "date", "datetime", "time", "categorical", "boolean")
WEIGHT_TYPES = ("integer", "float", "date")


def modelled_columns(columns: Mapping[str, Any], privacy: Privacy | None) -> list[str]:
    """Names of the columns that a tabular generator models: never the record order's weight with fixed-graph."""
    graph = privacy.weight if privacy is not None and privacy.multi_owner else None
    return [name for name, column in columns.items() if column and column.type in MODELLED_TYPES and name != graph]


def conditioning_values(column: Column) -> tuple[str | None, ...]:
    """The values of a column by which a text can be conditioned, as texts; with None where the column is nullable.

    Empty where the column declares no finite list.
    """
    if column.type == "categorical":
        values: Sequence[str] = column.listed
    elif column.type == "boolean":
        values = ("false", "true")
    elif column.type == "integer" and column.max - column.min < MOST_CONDITIONING_VALUES:
        values = [str(number) for number in range(column.min, column.max + 1)]
    else:
        values = ()
    return (*values, None) if values and column.nullable else tuple(values)


def _check_range(low: float, high: float, bins: Any, points: Sequence[float]) -> None:
    if low >= high:
        raise ValueError(f"min {low} is not below max {high}")
    if isinstance(bins, list):
        inside = all(math.isfinite(edge) and low < edge <= high for edge in bins)
        if not bins or len(bins) > MOST_BINS or not inside or not _ascending(bins):
            raise ValueError(
                f"bins: not ascending within the range; accepted: ascending edges above {low} and up to {high}"
            )
    if not all(low <= point <= high for point in points) or not _ascending(points):
        raise ValueError(f"points: not ascending within the range; accepted: ascending values from {low} to {high}")


def _ascending(values: Sequence[float]) -> bool:
    return all(a < b for a, b in itertools.pairwise(values))


def _check_steps(low: str, high: str, first: int, last: int, step: int, resolution: str) -> None:
    if first >= last:
        raise ValueError(f"min {low} is not before max {high}")
    for name, shown, value in (("min", low, first), ("max", high, last)):
        if value % step:
            raise ValueError(f"{name}: {shown} is not a multiple of the resolution {resolution}")
