"""Text of a page as HTML, from templates that escape everything.

What belongs here: the templates' environment, and their filters. What does not: which page shows what, and facts.

Pages consist of such text rather than of widgets, so that headings, tables with captions, lists and links work without
a mouse, with a screen reader and in print. No markup from elsewhere gets in: text is escaped, and only plain SVG is
accepted as a drawing.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Any
from urllib.parse import urlencode

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from dpsynth_platform.foundation import addresses
from dpsynth_platform.foundation.errors import ReleaseRefused
from dpsynth_platform.foundation.figures import moment, number_of, upper_bound
from dpsynth_platform.release.dossier import check_svg
from dpsynth_platform.release.page import small, words

PRODUCT = "Governance console"
ICON = (
    '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 32 32">'
    '<path d="M16 2 28 6v9c0 8-5 13-12 15C9 28 4 23 4 15V6z" fill="#16352a"/>'
    '<path d="m10 16 4 4 8-9" fill="none" stroke="#fff" stroke-width="3"/></svg>'
)
"""The console's icon in a browser's tab. Each page contains it, since browsers would request one otherwise."""

_GOOD = frozenset({"published", "approved", "strong", "pass", "spent", "complete", "whole"})
_CARE = frozenset(
    {
        "waiting",
        "reasonable",
        "inconclusive",
        "not-releasable",
        "started",
        "reserved",
        "withdrawal-unfinished",
        "running",
    }
)
_BAD = frozenset({"refused", "withdrawn", "damaged", "missing", "unrecorded", "weak", "fail", "broken", "abort"})
_CLAUSES = re.compile(r"(?<=[;.])\s+")
_ASIDE = re.compile(r"\s*\([^()]*`dpsynth [a-z][^()]*\)")
_COMMAND = re.compile(r"\bdpsynth [a-z]")
_PATH = re.compile(r"(?:\$\{DPSYNTH_\w+\}|(?<![\w:/.])/[\w.-]+)(?:/[\w.-]+)*/([\w.-]+)")
"""An absolute path of the server, or one below its directories; a URI is none."""
_BY_ENGINEER = "An engineer can do this."
_UNITS = {"user": "person", "example": "record", "group": "group"}


@lru_cache(maxsize=1)
def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("dpsynth_platform.console.pages", "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(
        day=lambda at: at[:10],
        drawing=drawing,
        moment=moment,
        number_of=number_of,
        capital=lambda text: text[:1].upper() + text[1:],
        plain=plain,
        query=query,
        small=small,
        tone=tone,
        upper_bound=upper_bound,
        words=words,
    )
    environment.globals.update(to=addresses, unit_words=_UNITS)
    return environment


def render(template: str, **values: Any) -> str:
    """The text of a template, with everything escaped that is not `Markup` already."""
    return _environment().get_template(template).render(**values)


def stylesheet() -> str:
    """The style sheet of every page."""
    source, _, _ = PackageLoader("dpsynth_platform.console.pages", "templates").get_source(
        _environment(), "console.css"
    )
    return source


def script(name: str) -> str:
    """A script of the console's own pages, from the templates' directory."""
    source, _, _ = PackageLoader("dpsynth_platform.console.pages", "templates").get_source(_environment(), name)
    return source


def plain(text: str) -> str:
    """Words of the library for readers without a shell: a clause with a command is left out, and a path shortened."""
    clauses = _CLAUSES.split(_ASIDE.sub("", text))
    kept = [clause for clause in clauses if not _COMMAND.search(clause)]
    words = " ".join(kept).rstrip(";:, ")
    if len(kept) < len(clauses):
        words = f"{words}. {_BY_ENGINEER}" if words else _BY_ENGINEER
    return _PATH.sub(lambda path: path[1], words)


def tone(state: str) -> str:
    """The colour of a state: `good`, `care`, `bad` or none."""
    state = state.lower()
    return "good" if state in _GOOD else "care" if state in _CARE else "bad" if state in _BAD else ""


def query(values: dict[str, Any], **changed: Any) -> str:
    """A query string of the values that are not empty: `?text=census&page=2`; `changed` replaces single values."""
    kept = {name: value for name, value in (values | changed).items() if value not in (None, "", False)}
    return f"?{urlencode(kept)}" if kept else ""


def drawing(svg: str, title: str) -> Markup:
    """A plot of the library as it is, or an error message if it has more than shapes, text and inline pictures."""
    try:
        check_svg(title, svg, pictures=True)
    except ReleaseRefused as refusal:
        return Markup('<p class="notice red">{}</p>').format(escape(str(refusal)))
    return Markup(svg)  # noqa: S704 - checked above
