"""The contract's `source`: where the sensitive table lies, and in which format."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import PurePosixPath
from typing import Annotated, Literal

from pydantic import Field, model_validator

from dpsynth_platform.contracts.base import ColumnName, Name, Part, refuse, text_like
from dpsynth_platform.contracts.federation import SCHEME, Federation
from dpsynth_platform.contracts.uris import (
    FOREIGN_ACCOUNT,
    KNOWN_PARAMETERS,
    READABLE,
    catalog_place,
    database_place,
    foreign_account,
    has_credentials,
    named_stores,
)
from dpsynth_platform.foundation.digests import canonical_digest

SourceFormat = Literal["delta", "iceberg", "parquet", "csv", "json", "images", "sql", "tables", "federated"]
FILE_FORMATS: tuple[SourceFormat, ...] = ("parquet", "csv", "json", "images")
"""Formats of plain files, which have no versions of their own."""

FORMAT_HINTS = {
    **dict.fromkeys(
        ("postgresql", "postgres", "mysql", "mariadb", "sqlite", "oracle", "mssql", "database", "jdbc"),
        ("for a database, format: sql; uri: such as postgresql+psycopg://reader@db.example.org/clinic; table or query"),
    ),
    "tsv": "for tab-separated values, format: csv, with csv: {separator: tab}",
    **dict.fromkeys(("jsonl", "ndjson", "jsonlines", "json_lines"), "for JSON lines, format: json"),
    **dict.fromkeys(
        ("excel", "xlsx", "xls"), ("a workbook is no source: save its sheet as CSV (UTF-8), and declare format: csv")
    ),
    "txt": "for texts with separators, format: csv, with csv: {separator: ...}",
    "deltalake": "for Delta tables, format: delta",
    "pq": "for Parquet files, format: parquet",
    **dict.fromkeys(
        ("imagefolder", "image", "png", "jpg", "jpeg", "webp", "pictures"),
        "for a directory of pictures, format: images",
    ),
}
"""What is meant by words that are no `SourceFormat`."""
_ENDS: dict[str, SourceFormat] = {
    ".parquet": "parquet",
    ".csv": "csv",
    ".tsv": "csv",
    ".json": "json",
    ".jsonl": "json",
    ".ndjson": "json",
}

AssetKeyPart = Annotated[str, text_like(r"^[A-Za-z0-9_.\-]{1,255}$", "1 to 255 letters, digits, _, . and -")]


class CsvFormat(Part):
    """How CSV files are written. All of it is declared; nothing is inferred from rows."""

    separator: str | None = Field(
        default=None, description="Between fields: one character, or tab. Default: a comma; others are refused."
    )
    quote: str = Field(default='"', description="Around fields that hold separators: one character, or '' for none.")
    decimal: Literal[".", ","] = Field(default=".", description="The decimal mark of numbers.")
    encoding: str = Field(default="utf-8", description="Of the text, such as cp1252 or utf-16.")
    skip_blanks: bool | None = Field(
        default=None, description="Whether blanks around fields are removed. Default: names with blanks are refused."
    )


class Source(Part):
    """Where the sensitive table is and what identifies a record in it."""

    uri: str = Field(
        min_length=1,
        description="Path of the table, SQLAlchemy URL of the database, or URI of the Iceberg catalog, without a "
        "password; ${DPSYNTH_HOME} is replaced. Of the format federated, federation://NAME, a name for lineage.",
    )
    format: SourceFormat = Field(
        default="delta",
        description="`delta`; `iceberg`; `parquet`, `csv` or `json` (lines): a file, or a directory of them; `images`: "
        "a directory of pictures, with metadata.csv or class folders; `sql`: a database; `tables`: with the contract's "
        "`tables`, a directory with a file or Delta table for each, or a file of SQLite or DuckDB; `federated`: rows "
        "that stay with the participants of `federation`.",
    )
    version: int | None = Field(
        default=None,
        ge=0,
        exclude_if=lambda version: version is None,
        description="The version of a Delta table, or sequence number of an Iceberg snapshot, that is read. Default: "
        "the newest one with new rows. Of the format federated, a number that a person raises for a further run, such "
        "as one over new rows of the participants; default: 0.",
    )
    csv: CsvFormat | None = Field(
        default=None, exclude_if=lambda csv: csv is None, description="The dialect of CSV files."
    )
    table: str | None = Field(
        default=None,
        exclude_if=lambda table: table is None,
        description="Table or view of a database, also as `schema.table`; table of an Iceberg catalog, with its "
        "namespace.",
    )
    catalog: Name | None = Field(
        default=None,
        exclude_if=lambda catalog: catalog is None,
        description="Name of an Iceberg catalog, under which a catalog in a database knows its tables and pyiceberg "
        "finds credentials (PYICEBERG_CATALOG__NAME__...). Default: default.",
    )
    query: str | None = Field(
        default=None,
        exclude_if=lambda query: query is None,
        description="SELECT statement that is read in place of a table.",
    )
    password_file: str | None = Field(
        default=None,
        exclude_if=lambda path: path is None,
        description="File with the database's password, in lines HOST:PORT:DATABASE:USER:PASSWORD as ~/.pgpass has, so "
        "that no other host gets it. Default: what the driver itself finds.",
    )
    asset: list[AssetKeyPart] | None = Field(
        default=None,
        min_length=1,
        exclude_if=lambda asset: asset is None,
        description="Dagster's key of the asset that makes the table, if there is one, as [warehouse, people].",
    )
    key: list[ColumnName] = Field(min_length=1, description="Columns that together identify a record.")
    period_column: ColumnName | None = Field(
        default=None, description="Date column that says to which period a record belongs (datasets with a cadence)."
    )
    federation: Federation | None = Field(
        default=None,
        exclude_if=lambda federation: federation is None,
        description="Of the format federated: whose rows are counted.",
    )

    @model_validator(mode="after")
    def _check_format(self) -> Source:
        def faults() -> Iterator[str]:
            if self.csv is not None and self.format not in ("csv", "images", "tables"):
                yield f"csv: declared for the format {self.format}; accepted: format: csv or images, or no such key"
            if self.format == "federated" and self.federation is None:
                yield "federation: missing with the format federated; accepted: participants, minimum and most_records"
            elif self.format != "federated" and self.federation is not None:
                yield f"federation: with the format {self.format}; accepted: with format: federated"
            if (self.format == "federated") != self.uri.startswith(SCHEME):
                named = "it is not shown" if has_credentials(self.uri) else repr(self.uri)
                yield f"uri: {named}, of the format {self.format}; accepted: {SCHEME}NAME with format: federated alone"
            if self.version is not None and not (self.has_versions or self.format == "federated"):
                yield (
                    f"version: {self.version}; the format {self.format} has no versions of its own; accepted: format: "
                    "delta or iceberg, or no such key"
                )
            if self.version is not None and self.period_column is not None:
                yield "version: declared for a dataset with periods; accepted: one of version and period_column"

            if self.format != "sql" and has_credentials(self.uri):
                yield (
                    "uri: has credentials, or a parameter that may be some (they are not shown); accepted: a URI "
                    f"without them, with parameters of {KNOWN_PARAMETERS}; credentials come from the "
                    "environment, as the store's own tools find them; for a database, format: sql"
                )
            scheme, divided, _ = self.uri.partition("://")
            if self.format in FILE_FORMATS and divided and scheme not in READABLE:
                yield f"uri: no URI of the format {self.format}; accepted: a path, or {named_stores(scheme)}"
            if foreign_account(self.uri):
                yield FOREIGN_ACCOUNT
            if self.catalog is not None and (self.format != "iceberg" or self.table is None):
                yield "catalog: accepted: with format: iceberg and a table, or no such key"
            keys = ("query", "password_file") if self.format == "iceberg" else ("table", "query", "password_file")
            databases = [key for key in keys if getattr(self, key) is not None]
            if self.format == "sql":
                yield from self._database_faults()
            elif databases:
                yield f"{databases[0]}: declared for the format {self.format}; accepted: format: sql, or no such key"

        refuse(faults())
        return self

    def _database_faults(self) -> Iterator[str]:
        if "://" not in self.uri:
            yield (
                "uri: it is no URL (it is not shown); accepted: such as postgresql+psycopg://reader@db.example.org/clinic"
            )
        elif has_credentials(self.uri):
            yield (
                "uri: has a password, or a parameter that may be one (it is not shown); accepted: an URL without one, "
                f"with parameters of {KNOWN_PARAMETERS}; and password_file, or the driver's own file, such as "
                "~/.pgpass"
            )
        if (self.table is None) == (self.query is None):
            yield "table: accepted: one of table and query for the format sql"

    @property
    def has_versions(self) -> bool:
        """Whether the table keeps versions of its own, which are read where it lies."""
        return self.format in ("delta", "iceberg")

    @property
    def is_copied(self) -> bool:
        """Whether a run reads a copy of it: of a database, or of plain files that are not on this machine."""
        remote = "://" in self.uri and not self.uri.startswith("file://")
        return self.format == "sql" or (self.format in FILE_FORMATS and remote)

    @property
    def format_by_name(self) -> SourceFormat | None:
        """The format of plain files that the end of a local path suggests, where the declared one is delta."""
        local = "://" not in self.uri or self.uri.startswith("file://")
        return _ENDS.get(PurePosixPath(self.uri).suffix.lower()) if local and self.format == "delta" else None

    @property
    def place(self) -> str:
        """Path or URI of the table, as lineage names it: for a database `postgres://host:5432/db.schema.table`."""
        if self.format == "iceberg" and self.table is not None:
            return catalog_place(self.uri, self.catalog, self.table)
        if self.format != "sql":
            return self.uri
        return database_place(self.uri, self.table or f"query-{canonical_digest(self.query)[:12]}")
