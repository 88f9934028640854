"""Frames in, frames out: pandas, polars, Arrow and whatever else narwhals knows.

What belongs here: turning a frame into an Arrow table and rows into a frame of the same kind. What does not: reading
files (`dpsynth_platform.sources`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import narwhals as nw
import pyarrow as pa
import pyarrow.compute as pc

from dpsynth_platform.compute.plain_types import has_fields, laid_out, plain, plain_type, roomy, without_notes
from dpsynth_platform.foundation.errors import SourceError

ACCEPTED = "a pandas or polars frame, an Arrow table, or a path"
_DECIMAL = pa.decimal128(38, 18)
"""Of Python's decimals in a pandas frame."""


@dataclass(frozen=True)
class Kind:
    """The library of a frame, and the types of its columns.

    Attributes:
        implementation: of narwhals; None: Arrow.
        schema: of the frame as an Arrow table, in whose metadata pandas notes its extension types.
        orders: the ordered categories of columns. Only their order is used: a category that no synthetic row has may be
            a person's.
        arrow: pandas' columns of Arrow's own types, which that metadata does not bring back.
    """

    implementation: nw.Implementation | None = None
    schema: pa.Schema = field(default_factory=lambda: pa.schema([]))
    orders: Mapping[str, pa.Array] = field(default_factory=dict, repr=False)
    arrow: tuple[str, ...] = ()

    def frame(self, table: pa.Table) -> Any:
        """Rows as a frame of this kind."""
        for place, item in enumerate(table.schema):
            # Parquet has fewer types: categories of texts only, and no whole seconds.
            type_ = self.schema.field(item.name).type if item.name in self.schema.names else item.type
            if type_ != item.type or pa.types.is_dictionary(type_):
                column = _as_given(plain(table.column(place)).combine_chunks(), type_, self.orders.get(item.name))
                table = table.set_column(place, item.with_type(column.type), column)
        if self.implementation is None:
            return table
        if self.implementation.is_pandas():
            return self._pandas(table)
        frame = nw.from_arrow(table, backend=self.implementation)  # type: ignore[arg-type]  # of an eager frame
        enums = {name: nw.Enum(_categories(table.column(name)).to_pylist()) for name in self.orders}
        return frame.with_columns(**{name: nw.col(name).cast(type_) for name, type_ in enums.items()}).to_native()

    def _pandas(self, table: pa.Table) -> Any:
        import pandas as pd

        frame = table.replace_schema_metadata(self.schema.metadata).to_pandas()
        for name in self.arrow:
            if name in table.column_names:
                frame[name] = pd.Series(pd.arrays.ArrowExtensionArray(table.column(name)), index=frame.index)
        return frame


def _as_given(values: pa.Array, type_: pa.DataType, order: pa.Array | None = None) -> pa.Array:
    """Plain values as those of the frame were; of a struct, the fields that there are."""
    if pa.types.is_struct(values.type) and values.type.num_fields:
        parts = zip(values.type, values.flatten(), strict=True)
        columns = [_as_given(plain(part), type_.field(item.name).type) for item, part in parts]
        fields = [item.with_type(column.type) for item, column in zip(values.type, columns, strict=True)]
        return pa.StructArray.from_arrays(columns, fields=fields, mask=values.is_null())
    if values.null_count == len(values):  # also lists, of which Arrow finds no distinct ones
        return pa.nulls(len(values), type_)
    type_ = roomy(type_, len(values.unique()))
    return laid_out(values, type_) if order is None else _ordered(values, type_, order)


def _ordered(values: pa.Array, type_: pa.DictionaryType, order: pa.Array) -> pa.Array:
    """Values as ordered categories: those that occur, others than the known ones last."""
    found = values.unique().drop_null()
    known = pc.is_in(found, value_set=order)
    places = pc.sort_indices(pc.index_in(found.filter(known), value_set=order))
    ordered = pa.concat_arrays([found.filter(known).take(places), found.filter(pc.invert(known))])
    indices = pc.index_in(values, value_set=ordered).cast(type_.index_type)
    return pa.DictionaryArray.from_arrays(indices, laid_out(ordered, type_.value_type), ordered=True)


def _categories(column: pa.ChunkedArray) -> pa.Array:
    """The categories of a column, in their order. Arrow itself cannot unite those of chunks if one is missing."""
    found = [plain(chunk.dictionary) for chunk in column.chunks]
    return pa.concat_arrays(found).unique().drop_null() if found else pa.array([], plain_type(column.type))


PANDAS = Kind(nw.Implementation.PANDAS)


def read(data: Any) -> tuple[Path | pa.Table, Kind]:
    """A table in memory or a path, and the kind of frame that its user has: pandas for a path.

    Raises:
        SourceError: it is no table, its names are no texts, or a column has values of several types. The message never
            has a value.
    """
    if isinstance(data, (str, Path)):
        return Path(data), PANDAS
    if isinstance(data, pa.Table):
        return _with_orders(data, Kind())
    if nw.dependencies.is_pandas_dataframe(data):
        _check_names(list(data.columns))
    try:
        frame = nw.from_native(data)
    except TypeError:
        frame = None  # its text may quote the data
    if frame is None:
        raise SourceError(f"a {type(data).__name__} is no table; accepted: {ACCEPTED}")
    if isinstance(frame, nw.LazyFrame):
        frame = frame.collect()
    kind = Kind(frame.implementation)
    if not frame.implementation.is_pandas():
        return _with_orders(_arrow(frame), kind)
    return _with_orders(*_of_pandas(frame.to_native(), kind))


def _arrow(frame: nw.DataFrame[Any]) -> pa.Table:
    """A frame of another library than pandas as an Arrow table."""
    # polars gives the addresses of Python's objects, such as UUIDs, by which equal ones are different owners.
    odd = [name for name, type_ in frame.schema.items() if isinstance(type_, nw.Object)]
    try:
        if not odd:
            return frame.to_arrow()
    except pa.ArrowException:
        pass  # its text may quote the data
    beyond = (name for name in frame.columns if not _in_arrow(frame.select(name)))
    name = odd[0] if odd else next(beyond, frame.columns[0])
    type_ = frame.schema[name]
    shown = type(type_).__name__ if type_.is_nested() else type_  # fields' names may have been keys in the data
    raise SourceError(
        f"column {name!r} has the type {shown}, which Arrow does not have; accepted: another type, such as texts, or a "
        "frame without the column"
    )


def _in_arrow(frame: nw.DataFrame[Any]) -> bool:
    try:
        frame.to_arrow()
    except pa.ArrowException:
        return False
    return True


def _with_orders(table: pa.Table, kind: Kind) -> tuple[pa.Table, Kind]:
    """A table, and the kind with its types and orders.

    Categories that are no plain values, such as pandas' intervals, are laid out as values: Arrow cannot write their
    type down.
    """
    for place, item in enumerate(table.schema):
        if pa.types.is_dictionary(item.type) and isinstance(item.type.value_type, pa.BaseExtensionType):
            table = table.set_column(place, item.with_type(item.type.value_type), plain(table.column(place)))
    ordered = [item.name for item in table.schema if pa.types.is_dictionary(item.type) and item.type.ordered]
    orders = {name: _categories(table.column(name)) for name in ordered}
    # The notes of columns may name all categories.
    bare = [item.remove_metadata().with_type(without_notes(item.type)) for item in table.schema]
    schema = pa.schema(bare, metadata=table.schema.metadata)
    return table, replace(kind, schema=schema, orders=orders)


def _check_names(names: list[Any]) -> None:
    if odd := [name for name in names if not isinstance(name, str)]:
        raise SourceError(
            f"column {odd[0]!r}: its name is of type {type(odd[0]).__name__}; accepted: names that are texts"
        )
    if twice := [name for name in names if names.count(name) > 1]:
        raise SourceError(f"column {twice[0]!r} is in the table more than once; accepted: distinct names")


def _of_pandas(frame: Any, kind: Kind) -> tuple[pa.Table, Kind]:
    """A pandas frame without its index and its `attrs`, which say anything of the data."""
    import pandas as pd

    arrow = tuple(name for name, type_ in frame.dtypes.items() if isinstance(type_, pd.ArrowDtype))
    try:
        bare = frame.copy(deep=False)
        bare.attrs = {}
        table = _without_inference(pa.Table.from_pandas(bare, preserve_index=False), bare)
        # numpy's truth values cannot be missing; with missing ones among them, a column would be of objects.
        whole = [item.with_nullable(str(frame.dtypes[item.name]) != "bool") for item in table.schema]
        schema = pa.schema(whole, metadata=_without_types(table.schema.metadata, arrow))
        return table.cast(schema), replace(kind, arrow=arrow)
    except (pa.ArrowException, TypeError, ValueError, OverflowError):
        pass  # its text quotes the data
    for name in frame.columns:
        try:
            pa.Array.from_pandas(frame[name])
        except (pa.ArrowException, TypeError, ValueError, OverflowError):
            break
    raise SourceError(
        f"column {name!r} has values of several types, or of a type that Arrow does not have; accepted: one type, such "
        f"as frame[{name!r}].astype('string')"
    )


def _without_types(metadata: Mapping[bytes, bytes], names: tuple[str, ...]) -> dict[bytes, bytes]:
    """pandas' note in an Arrow table without the types of some columns: it cannot read all that it writes."""
    note = json.loads(metadata[b"pandas"])
    for column in note["columns"]:
        if column["name"] in names:
            column["numpy_type"] = "object"
    return {**metadata, b"pandas": json.dumps(note).encode()}


def _without_inference(table: pa.Table, frame: Any) -> pa.Table:
    """The table with types that do not depend on values: types are public, and the synthetic table has them.

    Arrow makes the keys of dicts names of fields, counts the digits of decimals, takes the first moment's time zone for
    all, and numbers categories by integers that are as small as their number allows.

    Raises:
        SourceError: a decimal has too many digits.
    """
    for place, item in enumerate(table.schema):
        inferred, column = frame[item.name].dtype == object, table.column(place)
        if pa.types.is_dictionary(item.type):
            column = column.cast(pa.dictionary(pa.int32(), item.type.value_type, item.type.ordered))
            categories = getattr(frame[item.name].dtype, "categories", None)
            if categories is not None and categories.dtype == object and pa.types.is_decimal(item.type.value_type):
                column = _recategorized(item.name, column)
        elif inferred and pa.types.is_timestamp(item.type) and item.type.tz is not None:
            column = column.cast(pa.timestamp(item.type.unit, "UTC"))
        elif inferred and has_fields(item.type):
            column = pa.chunked_array([pa.nulls(len(column))])  # no declaration reads them
        elif inferred and pa.types.is_decimal(item.type):
            column = _decimals(item.name, column)
        else:
            continue
        table = table.set_column(place, item.with_type(column.type), column)
    return table


def _recategorized(name: str, column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Categories that are Python's decimals, as `_decimals`."""
    whole = column.combine_chunks()
    values = _decimals(name, pa.chunked_array([whole.dictionary])).combine_chunks()
    ordered = whole.type.ordered
    return pa.chunked_array([pa.DictionaryArray.from_arrays(whole.indices, values, ordered=ordered)])


def _decimals(name: str, column: pa.ChunkedArray) -> pa.ChunkedArray:
    whole = _DECIMAL.precision - _DECIMAL.scale
    # Arrow's cast itself does not notice every overflow.
    if column.type.precision - column.type.scale <= whole and column.type.scale <= _DECIMAL.scale:
        return column.cast(_DECIMAL)
    raise SourceError(
        f"column {name!r} has decimals with more than {whole} digits before the point or {_DECIMAL.scale} behind it; "
        f"accepted: fewer, or a type that says how many, such as frame[{name!r}].astype(pd.ArrowDtype("
        "pa.decimal256(76, 38)))"
    )
