"""Plain text files: their paragraphs as rows, and rows as a file.

What belongs here: where a text is cut, and its encoding. What does not: what is done with the texts.

A paragraph ends with an empty line, or where it has `PARAGRAPH_BYTES`, at the end of a line. So a file of one text a
line and a file of letters are both read in pieces, and what runs over lines, such as an address, stays together. All
paragraphs together are the file, character by character.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

import pyarrow as pa

from dpsynth_platform.foundation.errors import SourceError, file_problem
from dpsynth_platform.foundation.regular_files import check_regular

TEXT_SUFFIX = ".txt"
COLUMN = "text"
SCHEMA = pa.schema([pa.field(COLUMN, pa.string(), nullable=False)])
PARAGRAPH_BYTES = 20_000
_BATCH_BYTES = 4_000_000
_LONGEST_LINE = 1 << 28
_ACCEPTED = "a file of text in UTF-8"


def is_text_file(path: Path) -> bool:
    """Whether a path is named as one."""
    return path.suffix.lower() == TEXT_SUFFIX


def paragraphs(path: Path) -> Iterator[pa.RecordBatch]:
    """The paragraphs of a file, of type `SCHEMA`; bytes that are not UTF-8 stay as they are in the column.

    Raises:
        SourceError: the file cannot be read, or has NUL, as texts of 16 bits have: nothing would be found in it.
    """
    texts: list[bytes] = []
    size = 0
    for text in _paragraphs(path):
        texts.append(text)
        size += len(text)
        if size >= _BATCH_BYTES:
            yield _batch(texts)
            texts, size = [], 0
    if texts:
        yield _batch(texts)


def write_paragraphs(path: Path, batches: Iterable[pa.RecordBatch]) -> None:
    """Writes a new file in UTF-8. Raises `OSError`."""
    with path.open("xb") as file:
        for batch in batches:
            for text in batch.column(COLUMN).to_pylist():
                file.write(text.encode("utf-8", "replace"))


def _paragraphs(path: Path) -> Iterator[bytes]:
    problem = ""
    lines: list[bytes] = []
    size = 0
    try:
        check_regular(path)
        with path.open("rb") as file:
            while line := file.readline(_LONGEST_LINE):
                if b"\0" in line or len(line) == _LONGEST_LINE:
                    long = f"a line of {_LONGEST_LINE:,} bytes or more"
                    problem = "it has the character NUL, as texts in UTF-16 have" if b"\0" in line else long
                    break
                lines.append(line)
                size += len(line)
                if not line.strip() or size >= PARAGRAPH_BYTES:
                    yield b"".join(lines)
                    lines, size = [], 0
        if lines and not problem:
            yield b"".join(lines)
    except OSError as error:
        problem = file_problem(error)
    if problem:
        raise SourceError(f"{path}: {problem}; accepted: {_ACCEPTED}")


def _batch(texts: list[bytes]) -> pa.RecordBatch:
    column = pa.array(texts, pa.binary())
    return pa.RecordBatch.from_arrays([column.view(pa.string())], schema=SCHEMA)
