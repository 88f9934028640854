"""The README and the pages under `docs/` link to files, headings and pictures that exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DOCS = sorted((ROOT / "docs").rglob("*.md"))
PAGES = [*DOCS, *sorted(ROOT.glob("*.md"))]
LINK = re.compile(r"\]\((?!https?:)([^)#]*)(?:#([^)]*))?\)")
CODE = re.compile(r"^```.*?^```$", re.DOTALL | re.MULTILINE)
MOST_WORDS = 1000


def anchors(page: Path) -> set[str]:
    """The anchors of the page's headings, as GitHub makes them: lower case, no punctuation, hyphens for spaces."""
    text = CODE.sub("", page.read_text(encoding="utf-8"))
    headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    made = {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}
    return made | set(re.findall(r'<a id="([^"]+)"', text))


def named(page: Path) -> str:
    return str(page.relative_to(ROOT))


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_every_link_leads_somewhere(page: Path) -> None:
    links = LINK.findall(CODE.sub("", page.read_text(encoding="utf-8")))
    for file, heading in links:
        target = (page.parent / file).resolve() if file else page
        assert target.exists(), file
        assert not heading or heading in anchors(target), f"{file}#{heading}"


def test_the_index_leads_to_every_page() -> None:
    index = ROOT / "docs/index.md"
    linked = {(index.parent / file).resolve() for file, _ in LINK.findall(index.read_text(encoding="utf-8")) if file}
    assert {page for page in DOCS if page != index} <= linked


def test_the_readme_leads_to_the_index_and_is_short() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert "docs/index.md" in {file for file, _ in LINK.findall(text)}
    assert len(text.split()) <= MOST_WORDS
