"""Every `dpsynth` command that a page shows exists, with the options that it shows."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from dpsynth_platform.cli.main import app

ROOT = Path(__file__).parents[2]
PAGES = [*sorted((ROOT / "docs").rglob("*.md")), *sorted(ROOT.glob("*.md"))]
BLOCK = re.compile(r"^ *```(\w*)\n(.*?)^ *```$", re.DOTALL | re.MULTILINE)
SHELL = ("sh", "text", "")


def commands(text: str) -> Iterator[list[str]]:
    """The words of each command, without the shell around it."""
    blocks = [body for language, body in BLOCK.findall(text) if language in SHELL]
    spans = re.findall(r"`([^`]+)`", BLOCK.sub("", text))
    for part in (*(line for body in blocks for line in body.replace("\\\n", " ").splitlines()), *spans):
        for found in re.finditer(r"(?:^ *|[|;(] *|=\S+ )dpsynth ((?:[^\s|;#>]+ ?)*)", part.replace("\n", " ")):
            yield found[1].split()


ROOT_COMMAND: Any = typer.main.get_command(app)


def unknown(words: list[str]) -> str | None:
    """The first word that is neither a command nor an option of it; None if all are known."""
    found = ROOT_COMMAND
    for word in words:
        if hasattr(found, "commands"):
            names = re.sub(r"[.,:]$", "", word).split("|")
            if any(name not in found.commands for name in names):
                return None if word.startswith(("-", "...", "[")) else word
            found = found.commands[names[0]]
        elif word.startswith("--"):
            name = word.partition("=")[0].rstrip(".,")
            options = {"--help"} | {each for one in found.params for each in (*one.opts, *one.secondary_opts)}
            if name not in options:
                return word
    return None


def test_what_is_unknown_is_found() -> None:
    assert unknown(["release", "aprove"]) == "aprove"
    assert unknown(["release", "approve", "census", "--ass", "x"]) == "--ass"
    assert unknown(["release", "approve", "census", "--as", "x"]) is None
    assert list(commands("```sh\ndpsynth plan a --json > b; dpsynth health  # --x\n```\nand `dpsynth up`")) == [
        ["plan", "a", "--json"],
        ["health"],
        ["up"],
    ]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_command_of_a_page_exists(page: Path) -> None:
    shown = list(commands(page.read_text(encoding="utf-8")))
    assert [" ".join(words) for words in shown if unknown(words)] == []


def test_pages_show_commands() -> None:
    """Guards the patterns above: they find what is there."""
    assert sum(len(list(commands(page.read_text(encoding="utf-8")))) for page in PAGES) > 200
