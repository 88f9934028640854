"""Pictures in drafts of contracts: which columns look like ones, and directories of them.

What belongs here: what names and types of columns, and ends of files' names say. What does not: opening a picture, and
names of class folders, which are values of the data.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow as pa

from dpsynth_platform.compute.plain_types import plain_type
from dpsynth_platform.foundation.errors import SourceError
from dpsynth_platform.sources.csv_files import open_csv
from dpsynth_platform.sources.dialect import Dialect
from dpsynth_platform.sources.directories import PARQUET_NAMES
from dpsynth_platform.sources.image_folders import FILE_NAME, LABEL, METADATA, PICTURES

COLUMN = "image"
"""The proposed name of the column of pictures in a directory."""
GAPS = ("size", "channels", "accept_unscrubbed")
"""What has to be declared of a column of pictures."""
_WORDS = re.compile(
    "(image|img|picture|pic|photo|photograph|scan|drawing|thumbnail|thumb|pixel|portrait)s?|png|jpe?g|webp"
)
_WORD = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])")
_BYTES, _PATH = ".bytes", ".path"
_MOST_ENTRIES = 1000


def with_whole_pictures(columns: Mapping[str, pa.DataType | None]) -> dict[str, pa.DataType | None]:
    """The columns with structs of a picture's `bytes` and `path`, as Hugging Face writes them, as one column."""
    whole: dict[str, pa.DataType | None] = {}
    structs = {
        name.removesuffix(_BYTES)
        for name, type_ in columns.items()
        if name.endswith(_BYTES) and _is_binary(type_) and f"{name.removesuffix(_BYTES)}{_PATH}" in columns
    }
    for name, type_ in columns.items():
        struct = name.removesuffix(_BYTES).removesuffix(_PATH)
        if struct == name or struct not in structs or not _speaks_of_pictures(struct):
            whole[name] = type_
        elif name.endswith(_BYTES):
            whole[struct] = type_
    return whole


def looks_like_pictures(name: str, type_: pa.DataType | None) -> bool:
    """Whether a column of bytes is named as pictures are."""
    return _is_binary(type_) and _speaks_of_pictures(name)


def is_folder_of_pictures(path: Path) -> bool:
    """Whether the first files of a directory, by the ends of their names, are pictures and no table."""
    if not path.is_dir() or (path / "_delta_log").is_dir():
        return False
    ends = [file.suffix.lower() for file in islice(path.rglob("*"), _MOST_ENTRIES)]
    return any(end in PICTURES for end in ends) and not any(end in PARQUET_NAMES for end in ends)


def columns_of_folder(path: Path) -> dict[str, dict[str, Any]]:
    """Declarations of the columns of a directory of pictures; of `metadata.csv` the first line is read.

    Raises:
        SourceError: that line has no column `file_name`.
    """
    metadata = path / METADATA
    names = [FILE_NAME, LABEL]
    if metadata.is_file():
        names = list(open_csv([metadata], {}, Dialect(), [FILE_NAME]).schema.names)
        if FILE_NAME not in names or COLUMN in names:
            raise SourceError(
                f"{metadata}: has no column {FILE_NAME!r}, or one named {COLUMN!r}, as the pictures are; accepted: the "
                "first, and not the second"
            )
    found: dict[str, dict[str, Any]] = {name: {"type": None} for name in names}
    found[FILE_NAME] = {"type": "identifier"}
    if not metadata.is_file():
        found[LABEL] = {"type": "categorical", "values": None}
    return found | {COLUMN: picture()}


def picture() -> dict[str, Any]:
    """The declaration of a column of pictures, with its gaps."""
    return {"type": "image", **dict.fromkeys(GAPS)}


def generate_of(columns: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """The drafted `generate` of columns."""
    pictures = any(column.get("type") == "image" for column in columns.values())
    return {"method": "auto", **({"image": {}} if pictures else {})}


def _is_binary(type_: pa.DataType | None) -> bool:
    if type_ is None:
        return False
    plain = plain_type(type_)
    return bool(pa.types.is_binary(plain) or pa.types.is_large_binary(plain))


def _speaks_of_pictures(name: str) -> bool:
    return any(_WORDS.fullmatch(word.lower()) for word in _WORD.findall(name))
