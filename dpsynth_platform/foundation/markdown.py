"""Texts in Markdown and HTML.

What belongs here: escaping a text that may contain anything. What does not: documents.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from html import escape


def plain(text: str) -> str:
    """Escapes Markdown and HTML: no tag, link, picture or line break remains."""
    return re.sub(r"([\\`\[\]!])", r"\\\1", escape(" ".join(text.split()), quote=False))


def cell(text: str) -> str:
    """A text in a table's cell."""
    return plain(text).replace("|", "\\|")


def html_table(rows: Iterable[tuple[str, str]]) -> str:
    """Names and texts as a table in HTML, as notebooks show it."""
    shown = "".join(f"<tr><th>{escape(name)}</th><td>{escape(text)}</td></tr>" for name, text in rows)
    return f"<table>{shown}</table>"
