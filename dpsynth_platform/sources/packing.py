"""Files that are packed, or hold another layout than their format's: recognized by their first bytes, and refused.

What belongs here: the sentence that names what such a file is, and the way out. What does not: reading files.

Only the marks of a file's format are looked at; nothing of its content is shown.
"""

from __future__ import annotations

import codecs
from pathlib import Path

from dpsynth_platform.foundation.errors import SourceError

_MARKS = {
    b"\x1f\x8b": ("compressed (gzip)", "gunzip"),
    b"BZh": ("compressed (bzip2)", "bunzip2"),
    b"\xfd7zXZ\x00": ("compressed (xz)", "unxz"),
    b"\x28\xb5\x2f\xfd": ("compressed (zstd)", "unzstd"),
}
_ENDS = (".gz", ".bz2", ".xz", ".zst", ".zip")
_ZIP = b"PK\x03\x04"
_WORKBOOKS = (".xlsx", ".xlsm", ".xlsb", ".ods")
_ARRAY = (
    "holds a JSON array, or a value that is no object; accepted: JSON lines, one object a line without brackets around "
    "them (such as by jq -c '.[]')"
)
_PRETTY = (
    "holds objects that go over several lines; accepted: JSON lines, each object on a line of its own (such as by "
    "jq -c .)"
)
_BOM = "begins with a byte order mark; accepted: UTF-8 without one (such as by tail -c +4)"
_FIRST_BYTES = 1 << 12


def is_packed(name: str) -> bool:
    """Whether a file's name ends as that of a compressed file."""
    return name.casefold().endswith(_ENDS)


def check_unpacked(path: Path) -> None:
    """Refuses a compressed file, an archive and a workbook in place of a file of text.

    Raises:
        SourceError: says which of them it is.
        OSError: the file cannot be read.
    """
    with path.open("rb") as file:
        first = file.read(8)
    for mark, (what, command) in _MARKS.items():
        if first.startswith(mark):
            raise SourceError(
                f"{path}: is {what}; accepted: the unpacked file (such as by {command}), or Parquet, which is "
                "compressed inside"
            )
    if first.startswith(_ZIP):
        if path.suffix.lower() in _WORKBOOKS:
            raise SourceError(
                f"{path}: is a workbook; accepted: its sheet as a CSV file (UTF-8); `dpsynth synth table` takes .xlsx"
            )
        raise SourceError(f"{path}: is an archive (zip) or a workbook; accepted: the file in it, unpacked, or as CSV")


def check_json_lines(path: Path) -> None:
    """Refuses a file of JSON that does not hold lines by its first signs. Raises as `check_unpacked` does."""
    check_unpacked(path)
    with path.open("rb") as file:
        first = file.read(_FIRST_BYTES)
    if first.startswith(codecs.BOM_UTF8):
        raise SourceError(f"{path}: {_BOM}")
    text = first.lstrip()
    if text.startswith(b"["):
        raise SourceError(f"{path}: {_ARRAY}")
    if text.partition(b"\n")[0].strip() == b"{":
        raise SourceError(f"{path}: {_PRETTY}")
