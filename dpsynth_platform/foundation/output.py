"""The interface by which lower layers print a command's text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol


class Output(Protocol):
    """Text for people, usually on a terminal."""

    def print(self, text: str = "") -> None:
        """Prints a sentence."""

    def heading(self, text: str) -> None:
        """Prints a heading."""

    def table(self, header: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
        """Prints a table."""
