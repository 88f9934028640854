"""JSON lines: files with one object a line, whose keys are declared columns.

What belongs here: streaming their rows, by DuckDB's reader. What does not: the values of texts (`csv_texts`).

Every value is read as its text, and then as its declared type, by the same rules as the fields of a CSV file: a value
affects no other one. A key that a line lacks is a missing value. Nested values are texts of JSON.
"""

from __future__ import annotations

import glob
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from dpsynth_platform.compute.engine import quoted
from dpsynth_platform.contracts.columns import Column
from dpsynth_platform.foundation.errors import SourceError
from dpsynth_platform.foundation.reading import BATCH_ROWS, Span, selected
from dpsynth_platform.sources.csv_files import declared_values, parts

if TYPE_CHECKING:
    import duckdb

CONFIGURATION: dict[str, Any] = {
    "autoinstall_known_extensions": False,
    "autoload_known_extensions": False,
    "python_enable_replacements": False,
    "memory_limit": "1GB",
    "threads": 1,
}


@dataclass(frozen=True)
class JsonTable:
    """A table in files of JSON lines.

    Attributes:
        schema: all declared columns; `csv_files.text_schema`.
    """

    files: tuple[Path, ...]
    schema: pa.Schema
    declared: Mapping[str, Column]

    def batches(
        self, columns: Sequence[str] | None = None, *, span: Span | None = None, most_rows: int = BATCH_ROWS
    ) -> Iterator[pa.RecordBatch]:
        """The rows; see `files.FileTable.batches`.

        Raises:
            SourceError: a line is no object, has an undeclared key, or a value that is not of its column's type.
        """
        import duckdb

        schema = selected(self.schema, columns)
        failed = False
        try:
            with duckdb.connect(":memory:", config=CONFIGURATION) as connection:
                self._check_keys(connection)
                self._check_identifiers(connection)
                columns = ", ".join(f"{sql_text(name)}: 'VARCHAR'" for name in schema.names)
                rows = connection.sql(f"SELECT * FROM read_json({self._files}, columns = {{{columns}}})")  # noqa: S608
                reader: Any = rows.to_arrow_reader(most_rows)
                for texts in reader:
                    batch = self._read(texts, schema)
                    if span is not None:
                        batch = batch.filter(span.mask(batch))
                    yield from parts(batch, most_rows)
        except duckdb.Error:
            failed = True  # its text may quote the data
        if failed:
            raise SourceError(
                "a file is missing or damaged, or a line of it is no JSON; accepted: one object a line, in UTF-8 "
                "without a byte order mark, each key once"
            )

    @property
    def _files(self) -> str:
        """The files and their format, in SQL. A name may have the signs of a pattern."""
        files = _texts(glob.escape(str(path)) for path in self.files)
        return f"{files}, format = 'newline_delimited', hive_partitioning = false"

    def _check_keys(self, connection: duckdb.DuckDBPyConnection) -> None:
        """Refuses undeclared keys, which would be left out silently. They are not shown, since they may be data."""
        found = connection.execute(
            f"SELECT 1 FROM read_json_objects({self._files}) WHERE json_type(json) <> 'OBJECT' "  # noqa: S608
            f"OR NOT list_has_all({_texts(self.schema.names)}, json_keys(json)) LIMIT 1"
        )
        if found.fetchone() is not None:
            raise SourceError(
                "a line is no object, or has a key that no column declares (it is not shown, since it may be data); "
                "accepted: objects whose keys are declared columns; declare others, with ignore: true to leave them out"
            )

    def _check_identifiers(self, connection: duckdb.DuckDBPyConnection) -> None:
        """Refuses lists, objects and fractions as ids: they would be others than the ids that they hold."""
        names = [name for name, column in self.declared.items() if column.type == "identifier"]
        for name in names:
            found = connection.execute(
                f"SELECT 1 FROM read_json({self._files}, columns = {{{sql_text(name)}: 'JSON'}}) WHERE "  # noqa: S608
                f"json_type({quoted(name)}) NOT IN ('NULL', 'VARCHAR', 'BIGINT', 'UBIGINT', 'HUGEINT') LIMIT 1"
            )
            if found.fetchone() is not None:
                raise SourceError(
                    f"column {name!r} is declared identifier, and has a value that is neither text nor a whole number; "
                    "accepted: texts or whole numbers; lists of owners in Parquet or Delta"
                )

    def _read(self, texts: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
        arrays = []
        for item in schema:
            array = texts.column(texts.schema.get_field_index(item.name))
            found = declared_values(array.cast(pa.string()), item, self.declared.get(item.name))
            if found is None:
                raise SourceError(
                    f"column {item.name!r} is declared to hold {item.type}, and some of its values cannot be read so; "
                    "accepted: numbers (whole ones below 2^53, if written with a point), dates as 2026-01-31, true or "
                    "false; or another type"
                )
            arrays.append(found)
        return pa.RecordBatch.from_arrays(arrays, schema=schema)


def sql_text(value: str) -> str:
    """A text in SQL."""
    return "'" + value.replace("'", "''") + "'"


def _texts(values: Iterable[str]) -> str:
    return f"[{', '.join(map(sql_text, values))}]"
