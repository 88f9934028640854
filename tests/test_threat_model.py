"""The threat model and the pages about operations name tests for what they claim; each must be there."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
NAMED = re.compile(r"`(tests/[\w/]+\.py)(?:::(\w+))?`")
PAGES = [*sorted((ROOT / "docs").glob("*.md")), ROOT / "README.md"]


def functions(path: Path) -> set[str]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_test_that_a_page_names_is_there(page: Path) -> None:
    for file, name in NAMED.findall(page.read_text(encoding="utf-8")):
        assert (ROOT / file).is_file(), file
        assert not name or name in functions(ROOT / file), f"{file}::{name}"


def test_every_claim_of_the_threat_model_names_one() -> None:
    text = (ROOT / "docs" / "threat-model.md").read_text(encoding="utf-8")
    sections = re.split(r"^## ", text, flags=re.MULTILINE)[1:]
    assert len(sections) >= 8
    for section in sections:
        title = section.partition("\n")[0]
        claims = [line for line in section.splitlines() if re.match(r"\| (?!what stops|---)", line)]
        assert claims, title
        assert "**Not stopped:**" in section, title
        for claim in claims:
            assert any(name for _, name in NAMED.findall(claim)), claim
