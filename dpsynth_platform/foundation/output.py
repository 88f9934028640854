"""Where a command's text goes, as the layers below the commands know it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol


class Output(Protocol):
    """Text for people; a terminal is the usual one."""

    def print(self, text: str = "") -> None:
        """Prints a sentence."""

    def heading(self, text: str) -> None:
        """Prints a heading."""

    def table(self, header: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
        """Prints a table."""
