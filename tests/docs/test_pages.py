"""The README and the pages under `docs/` lead where they say: files, headings, pictures."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [*sorted((ROOT / "docs").glob("*.md")), ROOT / "README.md"]
LINK = re.compile(r"\]\((?!https?:)([^)#]*)(?:#([^)]*))?\)")
CODE = re.compile(r"^```.*?^```$", re.DOTALL | re.MULTILINE)


def anchors(page: Path) -> set[str]:
    """Of the page's headings, as GitHub makes them: lower case, no punctuation, hyphens for blanks."""
    headings = re.findall(r"^#+ (.*)$", CODE.sub("", page.read_text(encoding="utf-8")), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_link_leads_somewhere(page: Path) -> None:
    links = LINK.findall(CODE.sub("", page.read_text(encoding="utf-8")))
    for file, heading in links:
        target = (page.parent / file).resolve() if file else page
        assert target.exists(), file
        assert not heading or heading in anchors(target), f"{file}#{heading}"


def test_the_readme_leads_to_every_page() -> None:
    linked = {file for file, _ in LINK.findall((ROOT / "README.md").read_text(encoding="utf-8"))}
    assert {f"docs/{page.name}" for page in PAGES[:-1]} <= linked
