"""Converts tables of the same columns to one type per column, so that equal values compare equal in any file format.

What belongs here: reading the compared tables, and choosing and checking each column's common type. What does not:
reading one file (`files`), and coding values for measures (`columns`).

Parquet and Delta have types, CSV has none, and JSON lines has none for dates; so the same rows may hold 1, 1.0, "1" or
"1.0", true or "True", dates or texts. A column's type is the declared one, else that of the first typed table, else
what the first table looks like. Texts are parsed as numbers, booleans or dates only if no table has two texts that
would become equal: "01" and "1" stay two codes if one table has both. An empty text is missing, as in a CSV file.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dpsynth_platform.compute.plain_types import is_text, type_name
from dpsynth_platform.contracts.columns import Column, IdentifierColumn, IgnoredColumn, ImageColumn, TextColumn
from dpsynth_platform.foundation.errors import SourceError
from dpsynth_platform.foundation.reading import in_microseconds
from dpsynth_platform.quality.files import read_file
from dpsynth_platform.synth.tabular.scales import Scale

Kind = Literal["numbers", "moments", "times", "booleans", "texts"]

MISSING = frozenset({"", "#N/A", "#N/A N/A", "#NA", "-1.#IND", "-1.#QNAN", "-NaN", "-nan", "1.#IND", "1.#QNAN", "N/A"})
MISSING |= frozenset({"NA", "NULL", "NaN", "n/a", "nan", "null", "None", "<NA>", "NaT"})
"""Spellings of missing numbers, truth values and dates: those of Arrow's CSV reader, Python and pandas."""
_UNTYPED = frozenset({".csv", ".jsonl"})
_DECLARED: dict[str, Kind] = {
    "integer": "numbers",
    "float": "numbers",
    "date": "moments",
    "datetime": "moments",
    "time": "times",
    "boolean": "booleans",
    "categorical": "texts",
}
_WORDS: dict[Kind, str] = {
    "numbers": "numbers",
    "moments": "dates",
    "times": "times of day",
    "booleans": "true and false",
    "texts": "text",
}
_LAST_MICROSECOND = 86_399_999_999


def read_tables(
    paths: Mapping[str, Path],
    *,
    without: Collection[str] = (),
    categorical: Collection[str] = (),
    declared: Mapping[str, Column] | None = None,
) -> dict[str, pa.Table]:
    """Tables from files, with one type per column in all of them; see `in_one_type`.

    Args:
        paths: by the tables' names in errors; the first is the reference.
        without: columns that are not read.
        declared: column declarations; identifier, text and ignored columns are not read either.

    Raises `SourceError` if a file cannot be read, or the tables cannot be compared.
    """
    known = declared or {}
    unread = (IdentifierColumn, IgnoredColumn, ImageColumn, TextColumn)
    left_out = {*without, *(name for name, item in known.items() if isinstance(item, unread))}
    untyped = [name for name, path in paths.items() if path.suffix.lower() in _UNTYPED]
    tables = {name: read_file(path, without=left_out) for name, path in paths.items() if name not in untyped}
    coded = [*categorical, *(name for name, item in known.items() if item.type == "categorical")]
    for name in untyped:  # text in the first table that was read is text here, too
        texts = [item.name for table in list(tables.values())[:1] for item in table.schema if is_text(item.type)]
        like = pa.schema([(text, pa.large_string()) for text in dict.fromkeys([*coded, *texts])])
        tables[name] = read_file(paths[name], without=left_out, like=like)
    ordered = {name: tables[name] for name in paths}
    kinds = {name: _DECLARED[item.type] for name, item in known.items() if item.type in _DECLARED}
    return in_one_type(ordered, categorical, kinds=kinds, untyped=untyped)


def in_one_type(
    tables: Mapping[str, pa.Table],
    categorical: Collection[str] = (),
    *,
    kinds: Mapping[str, Kind] | None = None,
    untyped: Collection[str] = (),
) -> dict[str, pa.Table]:
    """Converts each column to one type in all tables.

    Args:
        tables: by their names in errors.
        categorical: columns whose numbers are codes: they become text.
        kinds: declared kinds of columns.
        untyped: tables whose types were inferred from their values.

    Raises `SourceError` for a table without rows or columns, for different columns, and (all at once) for columns that
    have no common type.
    """
    first = next(iter(tables))
    names = tables[first].column_names
    for name, table in tables.items():
        _check_names(name, table.column_names, first, names)
        if not table.num_rows:
            raise SourceError(f"{name}: the table has no rows")
    for what, columns in (("categories", categorical), ("schema", kinds or {})):
        if unknown := sorted(set(columns) - set(names)):
            raise SourceError(f"{what}: no column {', '.join(map(repr, unknown))}; accepted: {', '.join(names)}")
    converted: dict[str, dict[str, pa.Array]] = {}
    misfits = []
    for name in names:
        parts = {key: table.column(name) for key, table in tables.items()}
        kind = "texts" if name in categorical else (kinds or {}).get(name)
        try:
            converted[name] = _in_common_type(name, parts, kind, untyped)
        except _Misfit as misfit:
            misfits.append(str(misfit))
    if misfits:
        kinds_of = "numbers, text, true and false, dates, times"
        accepted = (
            f"the same kind of values in all tables ({kinds_of}); or treat the column's values as categories "
            "(--categorical), or leave it out (--drop)"
            if len(tables) > 1
            else f"{kinds_of}; leave other columns out (--drop)"
        )
        raise SourceError("\n".join([*misfits, f"accepted: {accepted}"]))
    return {key: pa.table({name: converted[name][key] for name in names}) for key in tables}


class _Misfit(Exception):
    """Why a column has no common type. The message has no value of it."""


def _check_names(name: str, columns: Sequence[str], first: str, expected: Sequence[str]) -> None:
    if not columns:
        raise SourceError(f"{name}: the table has no columns")
    if len(set(columns)) < len(columns):
        raise SourceError(f"{name}: two columns have the same name; accepted: each name once")
    missing, extra = sorted(set(expected) - set(columns)), sorted(set(columns) - set(expected))
    if missing or extra:
        differences = [f"lacks {', '.join(missing)}"] if missing else []
        differences += [f"has additional columns {', '.join(extra)}"] if extra else []
        found = "; ".join(differences)
        raise SourceError(f"{name}: not the columns of {first}: {found}; accepted: the same in all tables")


def _in_common_type(
    name: str, parts: Mapping[str, pa.ChunkedArray], declared: Kind | None, untyped: Collection[str]
) -> dict[str, pa.Array]:
    """A column's values by table, in one type. Raises `_Misfit` if there is none."""
    whole = {key: plain(part) for key, part in parts.items()}
    own = {key: _kind(name, key, part.type) for key, part in whole.items()}
    by_rank = sorted((key for key in own if own[key] is not None), key=lambda key: key in untyped)
    if not by_rank:
        return whole
    first = by_rank[0]
    kind = declared or own[first]
    if kind == "texts" and declared is None and first in untyped:
        # Files without types have no dates, and times of day only if their reader knows them.
        likely: Kind
        for likely in ("moments", "times"):
            with suppress(_Misfit):
                return {key: _as(name, key, part, own[key], likely) for key, part in whole.items()}
    if kind is None or kind in ("texts", "booleans"):
        return _as_categories(name, whole, own, untyped)
    wanted: Kind = kind
    converted = {key: _as(name, key, part, own[key], wanted) for key, part in whole.items()}
    days = pa.types.is_date(whole[first].type) or (wanted == "moments" and own[first] == "texts")
    return _as_days(converted) if days else converted


def _as_days(parts: dict[str, pa.Array]) -> dict[str, pa.Array]:
    """All parts as days, unless some moment is not the start of a day."""
    found = {}
    for key, part in parts.items():
        moments = in_microseconds(part).cast(pa.timestamp("us"), safe=False)
        days = moments.cast(pa.date32(), safe=False)
        if not pc.all(pc.equal(days.cast(pa.timestamp("us")), moments)).as_py():
            return parts
        found[key] = days
    return found


def plain(column: pa.ChunkedArray) -> pa.Array:
    """One array without dictionary coding, with one type of text; empty texts become null, durations numbers."""
    column = column.combine_chunks()
    if isinstance(column, pa.ChunkedArray):  # too large for one chunk
        column = pa.concat_arrays(column.chunks)
    column = column.dictionary_decode() if pa.types.is_dictionary(column.type) else column
    if is_text(column.type):
        column = column.cast(pa.large_string())
        return pc.if_else(pc.equal(column, ""), pa.scalar(None, column.type), column)
    return column.cast(pa.int64()) if pa.types.is_duration(column.type) else column


def _kind(name: str, table: str, type_: pa.DataType) -> Kind | None:
    """The kind of a type, or None if the column has no value."""
    if pa.types.is_null(type_):
        return None
    kinds: dict[Kind, tuple[Callable[[pa.DataType], bool], ...]] = {
        "numbers": (pa.types.is_integer, pa.types.is_floating, pa.types.is_decimal),
        "moments": (pa.types.is_date, pa.types.is_timestamp),
        "times": (pa.types.is_time,),
        "booleans": (pa.types.is_boolean,),
        "texts": (is_text,),
    }
    for kind, tests in kinds.items():
        if any(test(type_) for test in tests):
            return kind
    shown = type_name(type_)
    raise _Misfit(f"{table}: column {name!r} is of type {shown}; accepted: numbers, text, booleans, dates, times")


def _as(name: str, table: str, part: pa.Array, own: Kind | None, wanted: Kind) -> pa.Array:
    """A part of a column as numbers, dates or times of day."""
    if own is None or own == wanted:
        if pa.types.is_floating(part.type) and not pa.types.is_float64(part.type):
            # Via text: 0.1 in single precision becomes 0.1, and not 0.10000000149.
            return part.cast(pa.float32()).cast(pa.string()).cast(pa.float64())
        return part
    if own == "booleans" and wanted == "numbers":
        return part.cast(pa.int8())
    parsed = _PARSED[wanted](_without_missing(part)) if own == "texts" else None
    if parsed is None:
        problem = f"text that cannot all be parsed as {_WORDS[wanted]}" if own == "texts" else _WORDS[own]
        raise _Misfit(f"column {name!r} holds {_WORDS[wanted]}; in {table}: {problem}")
    return parsed


def _as_categories(
    name: str, parts: Mapping[str, pa.Array], own: Mapping[str, Kind | None], untyped: Collection[str]
) -> dict[str, pa.Array]:
    """All parts as text, with equal values spelled alike."""
    coded = {key: _as_text(part).dictionary_encode() for key, part in parts.items()}
    kinds = {kind for kind in own.values() if kind is not None}
    # In untyped tables, and in columns that are not text everywhere, `MISSING` spellings are missing values.
    loose = {key for key in coded if key in untyped or kinds - {"texts"}}
    for normalize in _normalizers(kinds):
        dictionaries = {}
        for key, part in coded.items():
            values = normalize(_without_missing(part.dictionary) if key in loose else part.dictionary)
            if values is None or not _keeps_distinct(part.dictionary, values):
                break
            dictionaries[key] = values
        else:
            return {key: dictionaries[key].take(part.indices) for key, part in coded.items()}
    if len(kinds) > 1 and (disjoint := _disjoint_tables(coded)):
        kinds_by_table = "; ".join(f"{key}: {_WORDS[kind]}" for key, kind in own.items() if kind is not None)
        raise _Misfit(f"column {name!r} has no value in common in {' and '.join(disjoint)} ({kinds_by_table})")
    return {key: part.dictionary.take(part.indices) for key, part in coded.items()}


def _normalizers(kinds: set[Kind]) -> Iterator[Callable[[pa.Array], pa.Array | None]]:
    """Functions that give each value one spelling, the most likely first; they return None for other texts."""
    if "booleans" in kinds:
        yield lambda values: _booleans(values, {"1": "true", "1.0": "true", "0": "false", "0.0": "false"})
    if not kinds & {"moments", "times"}:
        yield _number_texts
    if "moments" in kinds:
        yield lambda values: None if (found := _moments(values)) is None else found.cast(pa.large_string())
    if "times" in kinds:
        yield lambda values: None if (found := _times(values)) is None else found.cast(pa.large_string())
    yield lambda values: _booleans(values, {})


def _as_text(part: pa.Array) -> pa.Array:
    if pa.types.is_floating(part.type):
        part = pc.if_else(pc.is_finite(part), part, pa.scalar(None, part.type))
    return part.cast(pa.large_string())


def _without_missing(texts: pa.Array) -> pa.Array:
    """Trimmed texts; null for the spellings in `MISSING`."""
    trimmed = pc.utf8_trim_whitespace(texts)
    missing = pc.is_in(trimmed, value_set=pa.array(sorted(MISSING), trimmed.type))
    return pc.if_else(missing, pa.scalar(None, trimmed.type), trimmed)


def _keeps_distinct(before: pa.Array, after: pa.Array) -> bool:
    """Whether different values, except missing ones, stay different."""
    kept = after.drop_null()
    return len(kept.unique()) == len(kept) and len(before) == len(after)


def _disjoint_tables(coded: Mapping[str, pa.DictionaryArray]) -> tuple[str, str] | None:
    """The first table and another one that have no value in common."""
    first, *others = coded
    known = coded[first].dictionary.drop_null()
    for other in others:
        values = coded[other].dictionary.drop_null()
        if len(known) and len(values) and not pc.any(pc.is_in(values, value_set=known)).as_py():
            return first, other
    return None


def _parsed(texts: pa.Array, *types: pa.DataType) -> pa.Array | None:
    for type_ in types:
        try:
            return texts.cast(type_)
        except pa.ArrowInvalid:  # its message quotes a value
            continue
    return None


def _numbers(texts: pa.Array) -> pa.Array | None:
    return _parsed(texts, pa.float64())


def _moments(texts: pa.Array) -> pa.Array | None:
    """In microseconds; in UTC if the texts have a zone."""
    kinds = [pa.timestamp(unit, zone) for unit in ("us", "ns") for zone in (None, "UTC")]
    found = _parsed(texts, *kinds)
    return None if found is None else in_microseconds(found).cast(pa.timestamp("us"), safe=False)


def _times(texts: pa.Array) -> pa.Array | None:
    steps = Scale("time", None, 1).steps(texts, 0, _LAST_MICROSECOND)
    if (steps.absent & texts.is_valid().to_numpy(zero_copy_only=False)).any():
        return None
    return pa.array(steps.values.astype(np.int64), pa.int64(), mask=steps.absent).cast(pa.time64("us"))


_PARSED: dict[Kind, Callable[[pa.Array], pa.Array | None]] = {"numbers": _numbers, "moments": _moments, "times": _times}


def _number_texts(values: pa.Array) -> pa.Array | None:
    """Numbers as text, whole ones without a point."""
    found = _numbers(values)
    if found is None or not pc.all(pc.is_finite(found.drop_null())).as_py():
        return None
    # Above 2^53 double precision merges whole numbers; `_keeps_distinct` finds that, and the texts stay unchanged.
    return pc.add(found, 0.0).cast(pa.large_string())  # -0 becomes 0


def _booleans(values: pa.Array, numbers: Mapping[str, str]) -> pa.Array | None:
    words = {"true": "true", "false": "false"} | dict(numbers)
    texts = [None if value is None else words.get(value.casefold(), "") for value in values.to_pylist()]
    return None if "" in texts else pa.array(texts, pa.large_string())
