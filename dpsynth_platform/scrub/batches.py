"""Cutting long texts into pieces, and many texts into batches.

What belongs here: where to cut. What does not: the sizes that each step needs (`names`, `detection`, `parallel`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

Item = TypeVar("Item")


def pieces_of(text: str, most: int) -> Iterator[tuple[int, str]]:
    """Pieces of a text with their positions. They end at an empty line, a line or a word if possible."""
    start = 0
    while len(text) - start > most:
        cut = -1
        for mark in ("\n\n", "\n", " "):
            cut = text.rfind(mark, start + most // 2, start + most)
            if cut > start:
                break
        end = cut if cut > start else start + most
        yield start, text[start:end]
        start = end
    yield start, text[start:]


def batches_of(items: Iterable[Item], text: Callable[[Item], str], characters: int) -> Iterator[list[Item]]:
    """Items in order, in batches of at least `characters` characters of text, except the last."""
    batch: list[Item] = []
    size = 0
    for item in items:
        batch.append(item)
        size += len(text(item))
        if size >= characters:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch
