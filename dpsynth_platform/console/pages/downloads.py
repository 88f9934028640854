"""Downloads of pages: tables as CSV and drawings as SVG.

What belongs here: their form and headers. What does not: their content.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable, Sequence

from starlette.responses import Response

_FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n", "\uff1d", "\uff0b", "\uff0d", "\uff20")
"""First characters by which a spreadsheet takes a text for a formula, the full-width ones included."""
_LONGEST = 80


def csv_text(header: Sequence[str], rows: Iterable[Sequence[str | int | bool]]) -> str:
    """A table as CSV (RFC 4180). A text that a spreadsheet would compute gets an apostrophe before it."""
    text = io.StringIO()
    writer = csv.writer(text)
    writer.writerows([_cell(value) for value in row] for row in (header, *rows))
    return text.getvalue()


def _cell(value: str | int | bool) -> str | int:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, str) and value.lstrip(" ").startswith(_FORMULA):
        return f"'{value}"
    return value


def download(content: str, media_type: str, name: str) -> Response:
    """A download; its file name keeps letters, digits, dots and dashes of `name`."""
    safe = re.sub(r"[^A-Za-z0-9.-]+", "-", name).strip("-.")[-_LONGEST:]
    headers = {"Content-Disposition": f'attachment; filename="{safe}"', "Cache-Control": "no-store"}
    return Response(content, media_type=media_type, headers=headers)
