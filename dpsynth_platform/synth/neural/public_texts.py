"""A public table of any columns whose rows a language model learns to write before it reads private ones.

What belongs here: its place and digest in a sealed plan, and its values as texts. What does not: tokens (`row_tokens`),
and public tables with columns of the private one (`tabular.public_rows`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dpsynth_platform.contracts.public_rows import PublicRows
from dpsynth_platform.contracts.source import Source
from dpsynth_platform.contracts.uris import local_path
from dpsynth_platform.foundation.errors import ConfigurationError, SourceError
from dpsynth_platform.foundation.redaction import reason_of
from dpsynth_platform.sources.structs import FlatTable
from dpsynth_platform.sources.table_files import table_digest
from dpsynth_platform.synth.neural.row_words import EMPTY, MISSING
from dpsynth_platform.synth.tabular.domain import Codes
from dpsynth_platform.synth.tabular.public_rows import way_out

MOST_ROWS = 20_000
"""Of the table, from its beginning; training reads fewer."""
MOST_COLUMNS = 200


@dataclass(frozen=True)
class SealedTexts:
    """A public table in a sealed plan. Public.

    Attributes:
        digest: of its rows as texts.
        rows: that are read.
        columns: their number.
    """

    uri: str
    format: Literal["delta", "parquet", "csv"]
    digest: str
    rows: int
    columns: int

    @classmethod
    def of(cls, declared: PublicRows) -> SealedTexts:
        """A contract's public table. Raises `ConfigurationError` if it cannot be read, or has no row of two columns."""
        rows = _texts(declared.source)
        if not rows.num_rows or not 2 <= rows.num_columns <= MOST_COLUMNS:
            raise ConfigurationError(
                f"public table {declared.uri}: {rows.num_rows} rows of {rows.num_columns} columns of numbers, texts, "
                f"dates or booleans; accepted: at least one row, and 2 to {MOST_COLUMNS} such columns"
            )
        return cls(declared.uri, declared.format, table_digest(rows), rows.num_rows, rows.num_columns)

    @property
    def paths(self) -> tuple[Path, ...]:
        """What a worker must see."""
        return () if "://" in self.uri.removeprefix("file://") else (local_path(self.uri),)

    def read(self) -> tuple[list[str], list[list[str]], Codes]:
        """Names of the columns, the distinct values of each as words without commas, and the rows' numbers of these.

        Raises:
            ConfigurationError: the table is not there, or has other rows than the plan's.
        """
        table = _texts(Source(uri=self.uri, format=self.format, key=["key"]))
        if table_digest(table) != self.digest:
            raise ConfigurationError(
                f"public table {self.uri}: its rows are not those of the plan; accepted: the same rows again, or a new "
                "plan, which is a new spend: materialize raw again"
            )
        encoded = [column.combine_chunks().dictionary_encode() for column in table.columns]
        codes = np.stack([item.indices.to_numpy(zero_copy_only=False) for item in encoded], axis=1).astype(np.int32)
        return list(table.column_names), [item.dictionary.to_pylist() for item in encoded], codes


def _texts(source: Source) -> pa.Table:
    """The first rows of all columns that can be written, as words without commas; missing values have a word."""
    from dpsynth_platform.sources.delta import open_delta
    from dpsynth_platform.sources.plain_files import open_files

    problem = ""
    try:
        opened: Any = open_delta(source.uri) if source.format == "delta" else open_files(source, {})
        found = FlatTable(opened.table, {})
        names = [field.name for field in found.schema if _writable(field.type)]
        table = pa.Table.from_batches(_first(found.batches(names)), pa.schema([found.schema.field(n) for n in names]))
        return pa.table({name: _words(table.column(name)) for name in names})
    except SourceError as error:
        problem = way_out(str(error).removeprefix(f"{source.uri}: "), source.format)
    except (OSError, ValueError, pa.ArrowException) as error:
        problem = f"it cannot be read ({reason_of(error)})"
    raise ConfigurationError(f"public table {source.uri}: {problem}")


def _first(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    left = MOST_ROWS
    for batch in batches:
        yield batch.slice(0, left)
        left -= min(left, batch.num_rows)
        if not left:
            return


def _writable(kind: pa.DataType) -> bool:
    plain = kind.value_type if pa.types.is_dictionary(kind) else kind
    plain = plain.storage_type if isinstance(plain, pa.BaseExtensionType) else plain
    types = pa.types
    of_bytes = (types.is_binary, types.is_large_binary, types.is_fixed_size_binary, types.is_binary_view)
    return not any(is_kind(plain) for is_kind in (types.is_nested, *of_bytes))


def _words(column: pa.ChunkedArray) -> pa.ChunkedArray:
    plain = column.cast(column.type.value_type) if pa.types.is_dictionary(column.type) else column
    texts = pc.utf8_trim_whitespace(pc.replace_substring_regex(plain.cast(pa.string()), r"[,\s]+", " "))
    return pc.if_else(pc.equal(texts, ""), EMPTY, texts).fill_null(MISSING)
