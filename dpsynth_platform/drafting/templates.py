"""Templates of column declarations by the type of a column."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import pyarrow as pa

from dpsynth_platform.compute.plain_types import plain_type, type_name
from dpsynth_platform.foundation.yaml_files import dump_inline
from dpsynth_platform.sources.table_files import Source

CLAMPED = "# Numbers outside of min and max are clamped, values that are not listed count as missing.\n"
NULLABLE = "# nullable: true allows missing values; without it, rows are drawn like those without missing values.\n"
"""Comments above the columns of a draft."""

TEMPLATES = (
    (pa.types.is_integer, "integer, min: , max: "),
    (pa.types.is_duration, "integer, min: , max: "),
    (lambda type_: pa.types.is_decimal(type_) and type_.scale == 0, "integer, min: , max: "),
    (pa.types.is_floating, "float, min: , max: "),
    (pa.types.is_date, "date, min: , max: "),
    (pa.types.is_timestamp, "datetime, min: , max: "),
    (pa.types.is_time, "time"),
    (pa.types.is_decimal, "float, min: , max: , decimals: "),
    (pa.types.is_boolean, "boolean"),
    (pa.types.is_string, "categorical, values: []"),
    (pa.types.is_large_string, "categorical, values: []"),
)


def template(type_: pa.DataType) -> str:
    """The declaration to fill in, such as `type: integer, min: , max: `.

    Types that are not modelled (lists, maps, bytes) give `ignore: true`.
    """
    plain = plain_type(type_)
    return next((f"type: {words}" for fits, words in TEMPLATES if fits(plain)), "ignore: true")


def in_words(source: Source, names: Sequence[str]) -> str:
    """Names of columns, with their types if the file has any."""
    if source.format == "csv":
        return listed_names(names)
    own = source.schema
    return ", ".join(f"{_shown(name)} ({type_name(plain_type(own.field(name).type))})" for name in names)


def untyped_note() -> str:
    """A comment for drafts of CSV files: what may be declared."""
    # The first template of each type: decimal numbers have a further one.
    kinds = "; ".join(reversed({words.partition(",")[0]: words for _, words in reversed(TEMPLATES)}.values()))
    return f"# A CSV file has no types, and its values are not read. Accepted: {kinds}.\n"


def draft_lines(source: Source, names: Sequence[str], indent: str) -> list[str]:
    """Declarations to fill in, one line for each column."""
    lines = []
    for name in names:
        type_ = None if source.format == "csv" else plain_type(source.schema.field(name).type)
        # A library may read a duration in another unit than the one that a file has.
        unit = f"  # in {type_.unit}" if type_ is not None and pa.types.is_duration(type_) else ""
        lines.append(f"{indent}{dump_inline(name)}: {{{'type: ' if type_ is None else template(type_)}}}{unit}")
    return lines


def _shown(name: str) -> str:
    """A column's name; an empty one in quotes."""
    return name if name.strip() else repr(name)


def listed_names(names: Iterable[str]) -> str:
    """Names of columns for a message."""
    return ", ".join(map(_shown, names))
