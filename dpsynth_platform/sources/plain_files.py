"""A contract's table in plain files: one file, or a directory of files of one format.

What belongs here: finding the files, opening them by the declared format, and making sure that they are those of the
pinned version. What does not: reading each format (`directories`, `csv_files`, `json_files`), and names of versions
(`file_versions`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from dpsynth_platform.contracts.columns import Column
from dpsynth_platform.contracts.source import Source
from dpsynth_platform.contracts.uris import local_path
from dpsynth_platform.foundation.errors import ContractError, SourceError, file_problem
from dpsynth_platform.foundation.redaction import reason_of
from dpsynth_platform.sources.csv_files import CsvTable, open_csv, text_schema
from dpsynth_platform.sources.database import COPIED, COPY, extract
from dpsynth_platform.sources.dialect import HEADER_ACCEPTED, Dialect
from dpsynth_platform.sources.directories import PARQUET_NAMES, check_no_part, data_files, open_directory
from dpsynth_platform.sources.file_versions import Files, FileVersion, registered, version_of
from dpsynth_platform.sources.files import FileTable, one_file
from dpsynth_platform.sources.image_folders import NAMES, ImageFolder, open_folder
from dpsynth_platform.sources.json_files import JsonTable
from dpsynth_platform.sources.packing import check_json_lines, check_unpacked
from dpsynth_platform.sources.remote_files import download

_NAMES = {
    "parquet": PARQUET_NAMES,
    "csv": (".csv", ".tsv", ".txt"),
    "json": (".json", ".jsonl", ".ndjson"),
    "images": NAMES,
}
"""The ends of the names of a directory's files, by format."""


@dataclass(frozen=True)
class PlainFiles:
    """An opened table in plain files."""

    files: Files
    table: FileTable | CsvTable | JsonTable | ImageFolder

    def version(self, zone: Path, *, register: bool) -> FileVersion:
        """See `file_versions.version_of`. Raises `SourceError` for files that cannot be read."""
        try:
            return version_of(zone, self.files, register=register)
        except OSError as error:
            problem = file_problem(error)
        raise SourceError(f"a data file, or the record of versions, cannot be used: {problem}")

    def registered(self, zone: Path, version: int) -> FileVersion:
        """A version that a run has pinned. Raises `SourceError` for another one."""
        found = registered(zone, str(self.files.root.resolve()), version)
        if found is None:
            raise SourceError(f"no run has pinned version {version} of these files; materialize raw again")
        return found

    @contextmanager
    def unchanged(self, content: str) -> Iterator[None]:
        """Checks that the files have this content, and that nothing changes them within the block.

        Raises:
            SourceError: they have another one; a file was changed within the block.
        """
        if self.files.content() != content:
            raise SourceError(
                "the files were changed since the version was pinned; accepted: the same content again, or a run of "
                "the present version, which is a new spend: materialize raw again"
            )
        yield
        if self.files.content() != content:  # times do not show every change, such as of a memory-mapped file
            raise SourceError("the files were changed while they were read; run again when nothing writes them")


def open_files(source: Source, columns: Mapping[str, Column], copy: Path | None = None) -> PlainFiles:
    """The table in plain files that a contract names; reads metadata, of CSV files their first lines.

    Args:
        copy: the directory of a database's copy (`database.extract`).

    Raises:
        SourceError: there is no readable table of the declared format.
    """
    if source.is_copied and copy is None:
        raise SourceError("a source that is not on this machine has no version until a run copies it: materialize raw")
    if source.format == "sql" and copy is not None:
        rows = copy / COPY
        schema = text_schema(COPIED.raw_names(rows), columns)
        return PlainFiles(Files(rows, (rows,)), CsvTable((rows,), schema, COPIED, columns, copied=True))
    path = copy or local_path(source.uri)
    wanted = f"{source.format} file, or directory of such files,"
    problem = f"there is no {'directory of pictures' if source.format == 'images' else wanted} at this place"
    try:
        check_no_part(path)
        found = _files(path, source)
        if copy is not None and found is not None and len(found.paths) == 1:
            path = found.paths[0]
        if found is not None:
            table: FileTable | CsvTable | JsonTable | ImageFolder | None
            for file in found.paths if source.format in ("csv", "json") else ():
                (check_json_lines if source.format == "json" else check_unpacked)(file)
            if source.format == "csv":
                table = open_csv(found.paths, columns, dialect_of(source))
            elif source.format == "json":
                table = JsonTable(found.paths, text_schema(list(columns), columns), columns)
            elif source.format == "images":
                whole = found.root.is_dir()
                table = open_folder(found.root, found.paths, columns, dialect_of(source)) if whole else None
            elif path.is_file():
                table = one_file(path)
            else:
                table = open_directory(path, columns)
            if table is not None:
                return PlainFiles(found, table)
    except (ContractError, SourceError) as error:
        problem = in_contract(str(error))
    except (OSError, ValueError, pa.ArrowException) as error:
        problem = f"the table cannot be read ({reason_of(error)})"  # the library's text may quote the data
    raise SourceError(problem)


def make_copy(source: Source, columns: Mapping[str, Column], directory: Path) -> str:
    """Copies a source that is not on this machine into a directory; returns a digest of the copy.

    Raises:
        SourceError: it cannot be read.
        OSError: the copy cannot be written.
    """
    if source.format == "sql":
        return extract(source, {name for name, column in columns.items() if column.type == "identifier"}, directory)
    download(source.uri, _NAMES[source.format], directory)
    found = data_files(directory, _NAMES[source.format])
    return Files(found[0] if len(found) == 1 else directory, tuple(found)).content()


def stamp_of(source: Source) -> str | None:
    """A value that changes whenever the files do (`Files.stamp`); None where they cannot be found."""
    try:
        path = local_path(source.uri)
        if source.format == "tables":
            inside = [each for each in path.rglob("*") if each.is_file()] if path.is_dir() else [path]
            return Files(path, tuple(sorted(inside))).stamp()
        found = _files(path, source)
        return None if found is None else found.stamp()
    except (OSError, SourceError):
        return None


def dialect_of(source: Source) -> Dialect:
    """The declared dialect of CSV files. Raises `ContractError` for an impossible one."""
    return Dialect() if source.csv is None else Dialect(**source.csv.model_dump())


def in_contract(message: str) -> str:
    """A message with keys of a contract in place of options."""
    message = message.replace(HEADER_ACCEPTED, "columns with at least one of its names, spelled as in the file")
    message = message.replace("--csv-keep-blanks", "source.csv.skip_blanks: false")
    message = message.replace("--csv-skip-blanks", "source.csv.skip_blanks: true")
    return re.sub(r"--csv-([a-z]+)", r"source.csv.\1", message)


def _files(path: Path, source: Source) -> Files | None:
    if path.is_dir():
        found = data_files(path, _NAMES[source.format])
        return Files(path, tuple(found)) if found else None
    return Files(path, (path,)) if path.is_file() else None
