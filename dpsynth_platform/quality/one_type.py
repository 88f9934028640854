"""Tables of the same columns brought to one type a column, so that equal values are equal wherever they are stored.

What belongs here: reading tables that are compared, the type that each column is compared in, and saying at once which
columns fit none. What does not: reading one file (`files`), and coding values for measures (`columns`).

A file says what it can: Parquet and Delta have types, CSV has none, and JSON lines none for dates. So the same rows may
hold 1, 1.0, "1" or "1.0", true or "True", dates or texts. A column is compared as it is declared, where a schema says
it; otherwise as the first table with types of its own has it; where no table has any, as the first one looks. Texts are
taken for numbers, truth values or dates only where that merges no two texts of any table, so that "01" and "1" stay two
codes where one table has both. An empty text is a missing value, as it is in a CSV file.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dpsynth_platform.contracts.columns import Column, IdentifierColumn, IgnoredColumn, TextColumn
from dpsynth_platform.foundation.errors import SourceError
from dpsynth_platform.quality.files import is_text, read_file
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
    """Tables from files, each column of one type in all of them; see `in_one_type`.

    Args:
        paths: by the name that errors call each table; the first one is that which the others are compared with.
        without: columns that are left out where they are there.
        categorical: columns whose numbers are codes.
        declared: what is declared of columns; ids, texts and what is ignored are left out, too.

    Raises:
        SourceError: a file cannot be read, or the tables cannot be compared.
    """
    known = declared or {}
    unread = (IdentifierColumn, IgnoredColumn, TextColumn)
    left_out = {*without, *(name for name, item in known.items() if isinstance(item, unread))}
    untyped = [name for name, path in paths.items() if path.suffix.lower() in _UNTYPED]
    tables = {name: read_file(path, without=left_out) for name, path in paths.items() if name not in untyped}
    coded = [*categorical, *(name for name, item in known.items() if item.type == "categorical")]
    texts = pa.schema([(name, pa.large_string()) for name in dict.fromkeys(coded)])
    for name in untyped:
        like = pa.unify_schemas([texts, *(_texts_of(table, texts.names) for table in list(tables.values())[:1])])
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
    """The same tables, in each column of which equal values are equal.

    Args:
        tables: by the name that errors call them.
        categorical: columns whose numbers are codes: they become text.
        kinds: what columns are declared to hold.
        untyped: tables whose types were inferred from what they hold.

    Raises:
        SourceError: a table has no rows or no columns, or the columns differ; or values of a column cannot be compared
            with those of another table: all such columns are named.
    """
    first = next(iter(tables))
    names = tables[first].column_names
    for name, table in tables.items():
        _check_names(name, table.column_names, first, names)
        if not table.num_rows:
            raise SourceError(f"{name}: the table has no rows")
    for what, asked in (("categories", categorical), ("schema", kinds or {})):
        if unknown := sorted(set(asked) - set(names)):
            raise SourceError(f"{what}: no column {', '.join(map(repr, unknown))}; accepted: {', '.join(names)}")
    found: dict[str, dict[str, pa.Array]] = {}
    misfits = []
    for name in names:
        parts = {key: table.column(name) for key, table in tables.items()}
        try:
            found[name] = _agreed(name, parts, "texts" if name in categorical else (kinds or {}).get(name), untyped)
        except _Misfit as misfit:
            misfits.append(str(misfit))
    if misfits:
        raise SourceError(
            "\n".join(misfits)
            + "\naccepted: the same kind of values in all tables (numbers, text, true and false, dates, times); a "
            "column's values taken as categories (--categorical); or the column left out (--drop)"
        )
    return {key: pa.table({name: found[name][key] for name in names}) for key in tables}


class _Misfit(Exception):
    """What is wrong with a column, in words without a value."""


def _check_names(name: str, columns: Sequence[str], first: str, expected: Sequence[str]) -> None:
    if not columns:
        raise SourceError(f"{name}: the table has no columns")
    if len(set(columns)) < len(columns):
        raise SourceError(f"{name}: two columns have the same name; accepted: each name once")
    lacking, more = sorted(set(expected) - set(columns)), sorted(set(columns) - set(expected))
    if lacking or more:
        said = [f"lacks {', '.join(lacking)}"] if lacking else []
        said += [f"has {', '.join(more)} besides"] if more else []
        raise SourceError(f"{name}: not the columns of {first}: {'; '.join(said)}; accepted: the same in all tables")


def _texts_of(table: pa.Table, known: Collection[str]) -> pa.Schema:
    """The columns of text, which a file without types is to hold as text, too."""
    return pa.schema(
        [(item.name, pa.large_string()) for item in table.schema if is_text(item.type) and item.name not in known]
    )


def _agreed(
    name: str, parts: Mapping[str, pa.ChunkedArray], asked: Kind | None, untyped: Collection[str]
) -> dict[str, pa.Array]:
    """A column's values in one type. Raises `_Misfit` where there is none.

    Args:
        name: of the column.
        parts: by table.
        asked: what it is declared to hold; None: not declared.
        untyped: see `in_one_type`.
    """
    whole = {key: plain(part) for key, part in parts.items()}
    own = {key: _kind(name, key, part.type) for key, part in whole.items()}
    in_order = [own[key] for key in (*(key for key in own if key not in untyped), *own) if own[key] is not None]
    if not in_order:
        return whole
    kind = asked or in_order[0]
    if kind == "texts" and asked is None and all(key in untyped for key, held in own.items() if held is not None):
        # Files without types have no dates, and times of day only as far as their reader knows them.
        likely: Kind
        for likely in ("moments", "times"):
            with suppress(_Misfit):
                return {key: _as(name, key, part, own[key], likely) for key, part in whole.items()}
    if kind is None or kind in ("texts", "booleans"):
        return _as_categories(name, whole, own, untyped)
    wanted: Kind = kind
    agreed = {key: _as(name, key, part, own[key], wanted) for key, part in whole.items()}
    typed = next(key for key in (*(key for key in own if key not in untyped), *own) if own[key] is not None)
    days = pa.types.is_date(whole[typed].type) or (wanted == "moments" and own[typed] == "texts")
    return _as_days(agreed) if days else agreed


def _as_days(parts: dict[str, pa.Array]) -> dict[str, pa.Array]:
    """Days beside a column of days, also where another table keeps moments, unless some are within a day."""
    found = {}
    for key, part in parts.items():
        days = part.cast(pa.timestamp("us"), safe=False).cast(pa.date32(), safe=False)
        if not pc.all(pc.equal(days.cast(pa.timestamp("us")), part.cast(pa.timestamp("us"), safe=False))).as_py():
            return parts
        found[key] = days
    return found


def plain(column: pa.ChunkedArray) -> pa.Array:
    """One array, with codes of a dictionary as the values that they stand for, and one kind of text."""
    column = column.combine_chunks()
    if isinstance(column, pa.ChunkedArray):  # what is too large for one chunk stays chunked
        column = pa.concat_arrays(column.chunks)
    column = column.dictionary_decode() if pa.types.is_dictionary(column.type) else column
    if _is_any_text(column.type):
        column = column.cast(pa.large_string())
        return pc.if_else(pc.equal(column, ""), pa.scalar(None, column.type), column)
    return column


def _is_any_text(type_: pa.DataType) -> bool:
    return is_text(type_) or bool(pa.types.is_string_view(type_))


def _kind(name: str, table: str, type_: pa.DataType) -> Kind | None:
    """What a type holds, or None where a column has no value at all."""
    if pa.types.is_null(type_):
        return None
    kinds: tuple[tuple[Kind, tuple[Callable[[pa.DataType], bool], ...]], ...] = (
        ("numbers", (pa.types.is_integer, pa.types.is_floating, pa.types.is_decimal)),
        ("moments", (pa.types.is_date, pa.types.is_timestamp)),
        ("times", (pa.types.is_time,)),
        ("booleans", (pa.types.is_boolean,)),
        ("texts", (_is_any_text,)),
    )
    for kind, tests in kinds:
        if any(test(type_) for test in tests):
            return kind
    raise _Misfit(f"{table}: column {name!r} is of type {type_}; accepted: numbers, text, booleans, dates, times")


def _as(name: str, table: str, part: pa.Array, own: Kind | None, wanted: Kind) -> pa.Array:
    """A part of a column as numbers, dates or times of day."""
    if own is None or own == wanted:
        return _short(part)
    if own == "booleans" and wanted == "numbers":
        return part.cast(pa.int8())
    parsed = _PARSED[wanted](_without_missing(part)) if own == "texts" else None
    if parsed is None:
        problem = f"text of which some is none of those ({_WORDS[wanted]})" if own == "texts" else _WORDS[own]
        raise _Misfit(f"column {name!r} holds {_WORDS[wanted]}; in {table}: {problem}")
    return parsed


def _short(part: pa.Array) -> pa.Array:
    """Numbers of single precision as they are written: 0.1, and not 0.10000000149."""
    if pa.types.is_floating(part.type) and not pa.types.is_float64(part.type):
        return part.cast(pa.float32()).cast(pa.string()).cast(pa.float64())
    return part


def _as_categories(
    name: str, parts: Mapping[str, pa.Array], own: Mapping[str, Kind | None], untyped: Collection[str]
) -> dict[str, pa.Array]:
    """All parts as text, in which equal values are spelt alike."""
    coded = {key: _spelt(part, own[key]).dictionary_encode() for key, part in parts.items()}
    kinds = {kind for kind in own.values() if kind is not None}
    # What has no types, or stands beside numbers, spells what is missing as numbers do.
    loose = {key for key in coded if key in untyped or kinds - {"texts"}}
    for read in _ways(kinds):
        dictionaries = {}
        for key, part in coded.items():
            values = read(_without_missing(part.dictionary) if key in loose else part.dictionary)
            if values is None or not _merges_nothing(part.dictionary, values):
                break
            dictionaries[key] = values
        else:
            return {key: dictionaries[key].take(part.indices) for key, part in coded.items()}
    if len(kinds) > 1 and (apart := _nothing_in_common(coded)):
        held = "; ".join(f"{key}: {_WORDS[kind]}" for key, kind in own.items() if kind is not None)
        raise _Misfit(f"column {name!r} has no value in common in {' and '.join(apart)} ({held})")
    return {key: part.dictionary.take(part.indices) for key, part in coded.items()}


def _ways(kinds: set[Kind]) -> Iterator[Callable[[pa.Array], pa.Array | None]]:
    """How texts may be read that are spelt in several ways, the likeliest first; each gives one spelling a value."""
    if "booleans" in kinds:
        yield lambda values: _truths(values, {"1": "true", "1.0": "true", "0": "false", "0.0": "false"})
    if not kinds & {"moments", "times"}:
        yield _numbers_spelt
    if "moments" in kinds:
        yield lambda values: None if (found := _moments(values)) is None else found.cast(pa.large_string())
    if "times" in kinds:
        yield lambda values: None if (found := _times(values)) is None else found.cast(pa.large_string())
    yield lambda values: _truths(values, {})


def _spelt(part: pa.Array, own: Kind | None) -> pa.Array:
    """Values as text."""
    if own == "numbers" and pa.types.is_floating(part.type):
        part = pc.if_else(pc.is_finite(part), part, pa.scalar(None, part.type))
    return part.cast(pa.large_string())


def _without_missing(texts: pa.Array) -> pa.Array:
    """Without the spaces around them; null where one says that nothing is there."""
    trimmed = pc.utf8_trim_whitespace(texts)
    missing = pc.is_in(trimmed, value_set=pa.array(sorted(MISSING), trimmed.type))
    return pc.if_else(missing, pa.scalar(None, trimmed.type), trimmed)


def _merges_nothing(before: pa.Array, after: pa.Array) -> bool:
    """Whether different values stay different, but for those that are missing."""
    kept = after.drop_null()
    return len(kept.unique()) == len(kept) and len(before) == len(after)


def _nothing_in_common(coded: Mapping[str, pa.DictionaryArray]) -> tuple[str, str] | None:
    """Two tables, the first one and another, whose values are all different ones."""
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
        except pa.ArrowInvalid:  # whose text quotes a value
            continue
    return None


def _numbers(texts: pa.Array) -> pa.Array | None:
    return _parsed(texts, pa.float64())


def _moments(texts: pa.Array) -> pa.Array | None:
    """In microseconds, in UTC where there is a zone; nanoseconds where they are finer."""
    kinds = [pa.timestamp(unit, zone) for unit in ("us", "ns") for zone in (None, "UTC")]
    found = _parsed(texts, *kinds)
    return None if found is None else found.cast(pa.timestamp("us"), safe=False)


def _times(texts: pa.Array) -> pa.Array | None:
    steps = Scale("time", None, 1).steps(texts, 0, _LAST_MICROSECOND)
    if (steps.absent & texts.is_valid().to_numpy(zero_copy_only=False)).any():
        return None
    return pa.array(steps.values.astype(np.int64), pa.int64(), mask=steps.absent).cast(pa.time64("us"))


_PARSED: dict[Kind, Callable[[pa.Array], pa.Array | None]] = {
    "numbers": _numbers,
    "moments": _moments,
    "times": _times,
}


def _numbers_spelt(values: pa.Array) -> pa.Array | None:
    """Numbers in one spelling each, whole ones without a point; null where nothing is."""
    found = _numbers(values)
    if found is None or not pc.all(pc.is_finite(found.drop_null())).as_py():
        return None
    # Above 2^53 double precision merges whole numbers; then they are not unique, and stay as they are spelt.
    return pc.add(found, 0.0).cast(pa.large_string())  # -0 is 0


def _truths(values: pa.Array, numbers: Mapping[str, str]) -> pa.Array | None:
    words = {"true": "true", "false": "false"} | dict(numbers)
    texts = [None if value is None else words.get(value.casefold(), "") for value in values.to_pylist()]
    return None if "" in texts else pa.array(texts, pa.large_string())
