"""Cutting work into parts of like size: long texts into pieces, many texts into batches.

What belongs here: where to cut. What does not: how large a part each step wants (`names`, `detection`, `parallel`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

Item = TypeVar("Item")


def pieces_of(text: str, most: int) -> Iterator[tuple[int, str]]:
    """A long text in pieces that end at a blank line, a line or a word where there is one, each with its position."""
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
    """Items in order, in batches whose texts have at least so many characters together; the last one may have fewer."""
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
