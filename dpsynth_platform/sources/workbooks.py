"""A sheet of an Excel workbook as a CSV file, so that its values are read as those of CSV files are.

What belongs here: the texts of cells. What does not: the types of columns, which are declared and never inferred.
"""

from __future__ import annotations

import csv
import datetime as dt
from pathlib import Path
from typing import Any

from dpsynth_platform.foundation.errors import ConfigurationError, SourceError
from dpsynth_platform.foundation.redaction import reason_of

WORKBOOKS = (".xlsx",)


def is_workbook(path: Path) -> bool:
    """Whether a file's name ends as that of a workbook."""
    return path.suffix.lower() in WORKBOOKS


def write_csv(workbook: Path, sheet: str | None, file: Path) -> None:
    """Writes the cells of a sheet as CSV with commas, in UTF-8.

    Args:
        sheet: its name; None: the first one.

    Raises:
        ConfigurationError: python-calamine is not installed.
        SourceError: the workbook cannot be read, or has no such sheet.
        OSError: the file cannot be written.
    """
    try:
        import python_calamine as calamine
    except ImportError:
        raise ConfigurationError(
            f"{workbook}: python-calamine, which reads workbooks, is not installed; accepted: pip install "
            "python-calamine==0.9.1 (the extra `excel`), or the sheet saved as a CSV file"
        ) from None
    rows, problem, accepted = None, "", "a workbook (.xlsx) that is not encrypted"
    try:
        book = calamine.CalamineWorkbook.from_path(str(workbook))
        if sheet is None:
            rows = book.get_sheet_by_index(0).to_python(skip_empty_area=True)
        elif sheet in book.sheet_names:
            rows = book.get_sheet_by_name(sheet).to_python(skip_empty_area=True)
        else:
            problem, accepted = f"it has no sheet {sheet!r}", "the name of one of its sheets"
    except (OSError, ValueError, calamine.CalamineError) as error:
        problem = f"it cannot be read ({reason_of(error)})"  # the library's text may quote the data
    if rows is None:
        raise SourceError(f"{workbook}: {problem}; accepted: {accepted}")
    with file.open("w", encoding="utf-8", newline="") as text:
        csv.writer(text, lineterminator="\n", quoting=csv.QUOTE_ALL).writerows(map(_texts, rows))


def _texts(row: list[Any]) -> list[str]:
    return [_text(cell) for cell in row]


def _text(cell: Any) -> str:
    """Whole numbers without a point, and days and moments as ISO 8601 has them."""
    if isinstance(cell, bool):
        return "true" if cell else "false"
    if isinstance(cell, float):
        return str(int(cell)) if cell.is_integer() else repr(cell)
    if isinstance(cell, dt.datetime):
        return cell.isoformat(" ")
    if isinstance(cell, dt.date | dt.time):
        return cell.isoformat()
    return str(cell)
