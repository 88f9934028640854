"""A directory of pictures as a table, in the form that Hugging Face calls ImageFolder.

What belongs here: rows from `metadata.csv` or from class folders, with the bytes of their pictures. What does not:
decoding (`pictures`), and finding the files (`directories`).

| column | what |
| --- | --- |
| file_name | the picture's path below the directory, with `/` |
| the contract's image column | the file's bytes; null where there is no such file |
| label | without `metadata.csv`: the first directory of the path; null for pictures beside the class folders |
| others | of `metadata.csv`, with their declared types |

Only files that were listed when the directory was opened are read, so no name in `metadata.csv` leads elsewhere.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from dpsynth_platform.contracts.columns import Column
from dpsynth_platform.foundation.errors import SourceError
from dpsynth_platform.foundation.reading import Span, selected
from dpsynth_platform.sources.csv_files import CsvTable, open_csv, text_schema
from dpsynth_platform.sources.dialect import Dialect
from dpsynth_platform.sources.directories import PICTURE_NAMES
from dpsynth_platform.sources.picture_files import MOST_BYTES

METADATA = "metadata.csv"
PICTURES = (".png", ".jpg", ".jpeg", ".webp")
NAMES = PICTURE_NAMES
"""The ends of the names of the files that are read."""
FILE_NAME, LABEL = "file_name", "label"
TOGETHER = 512
"""Rows of a batch: some pictures are large."""


@dataclass(frozen=True)
class ImageFolder:
    """A directory of pictures.

    Attributes:
        files: of the pictures, by their paths below the directory.
        metadata: the table in `metadata.csv`; None: class folders give the labels.
        image: the name of the column of pictures.
    """

    files: Mapping[str, Path]
    metadata: CsvTable | None
    image: str
    schema: pa.Schema

    def batches(
        self, columns: Sequence[str] | None = None, *, span: Span | None = None, most_rows: int | None = None
    ) -> Iterator[pa.RecordBatch]:
        """The rows; see `files.FileTable.batches`.

        Raises:
            SourceError: a value of `metadata.csv` cannot be read as its column's type.
            OSError: a file is missing or cannot be read.
        """
        schema = selected(self.schema, columns)
        together = min(TOGETHER, most_rows or TOGETHER)
        for batch in self._rows(span, together):
            names = batch.column(FILE_NAME).to_pylist()
            arrays = [
                self._pictures(names) if item.name == self.image else batch.column(item.name).cast(item.type)
                for item in schema
            ]
            yield pa.RecordBatch.from_arrays(arrays, schema=schema)

    def _rows(self, span: Span | None, together: int) -> Iterator[pa.RecordBatch]:
        """All columns but the pictures."""
        if self.metadata is not None:
            yield from self.metadata.batches(span=span, most_rows=together)
            return
        names = list(self.files)
        for start in range(0, len(names), together):
            part = names[start : start + together]
            labels = [name.split("/", 1)[0] if "/" in name else None for name in part]
            yield pa.record_batch({FILE_NAME: pa.array(part), LABEL: pa.array(labels, pa.string())})

    def _pictures(self, names: Sequence[str | None]) -> pa.Array:
        paths = (None if name is None else self.files.get(name) for name in names)
        return pa.array([None if path is None else _read(path) for path in paths], pa.binary())


def open_folder(
    directory: Path, found: Sequence[Path], declared: Mapping[str, Column], dialect: Dialect | None = None
) -> ImageFolder:
    """The table in a directory of pictures; reads the first line of `metadata.csv`.

    Args:
        found: the files that `directories.data_files` lists by `NAMES`.
        dialect: of `metadata.csv`; None: the usual one.

    Raises:
        SourceError: no image column is declared, or `metadata.csv` has no column `file_name`, or one of the pictures'.
    """
    images = [name for name, column in declared.items() if column.type == "image"]
    if len(images) != 1:
        raise SourceError(f"{len(images)} columns are declared as image; accepted with format images: one")
    files = {path.relative_to(directory).as_posix(): path for path in found if path.suffix.lower() in PICTURES}
    metadata = directory / METADATA
    if metadata not in found:
        schema = text_schema([FILE_NAME, LABEL], {})
        return ImageFolder(files, None, images[0], _with_pictures(schema, images[0]))
    table = open_csv([metadata], declared, dialect or Dialect(), [FILE_NAME])
    if images[0] in table.schema.names:
        raise SourceError(
            f"{METADATA} has a column {images[0]!r}, which is the name of the column of pictures; accepted: another "
            "name for one of both"
        )
    if FILE_NAME not in table.schema.names:
        raise SourceError(
            f"{METADATA} has no column {FILE_NAME!r}; accepted: one with the names of the pictures' files"
        )
    return ImageFolder(files, table, images[0], _with_pictures(table.schema, images[0]))


def _with_pictures(schema: pa.Schema, image: str) -> pa.Schema:
    return schema.append(pa.field(image, pa.binary()))


def _read(path: Path) -> bytes:
    """A file's bytes; of a too large one, so many that decoding refuses it."""
    with path.open("rb") as file:
        return file.read(MOST_BYTES + 1)
