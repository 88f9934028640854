"""The drawing of the packages' imports is what the command draws today, and stays shallow."""

import sys
from pathlib import Path

DOCS = Path(__file__).parents[2] / "docs"
sys.path.insert(0, str(DOCS))

import draw_imports  # noqa: E402


def test_the_drawing_is_in_step() -> None:
    drawn = draw_imports.drawing()
    assert drawn == draw_imports.TARGET.read_text(encoding="utf-8"), "run: python docs/draw_imports.py"


def test_there_are_few_levels() -> None:
    assert max(draw_imports.levels(draw_imports.packages()).values()) <= 16
