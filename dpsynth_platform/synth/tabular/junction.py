"""Junction trees: how a set of cliques is arranged so that inference is exact, and how much memory that takes.

What belongs here: elimination orders, the tree of maximal cliques with its separators, and its size, all functions of
attribute sizes and clique names. What does not: any number on the cells (`propagation`).

Sets of attributes are bit masks inside of this module, since selection asks for the size of hundreds of trees.
Reference: Koller & Friedman 2009, sections 9.4 (elimination), 10.4 (clique trees).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

Clique = tuple[int, ...]
"""Attribute indices, ascending."""

_Weighing = Literal["size", "fill"]


@dataclass(frozen=True)
class JunctionTree:
    """Maximal cliques of a triangulated graph as a forest, parents before children.

    Each clique's attributes are ordered for computing: the separator's first (ascending), then the others from few
    states to many. So every conditional P[rest | separator] is a matrix without moving memory, and most potentials do
    not touch the last axis, which is the longest.

    Attributes:
        sizes: number of states of each attribute.
        cliques: the maximal cliques, each ascending.
        parents: index of each clique's parent, -1 for roots.
        separators: what a clique shares with its parent, ascending; () for roots.
    """

    sizes: tuple[int, ...]
    cliques: tuple[Clique, ...]
    parents: tuple[int, ...]
    separators: tuple[Clique, ...]

    @property
    def cells(self) -> int:
        """Number of cells of all cliques together."""
        return sum(self.shape_cells(clique) for clique in self.cliques)

    def shape_cells(self, clique: Clique) -> int:
        """Number of cells of one clique."""
        return math.prod(self.sizes[index] for index in clique)

    @cached_property
    def axes(self) -> tuple[Clique, ...]:
        """Each clique's attributes in computing order."""
        return tuple(
            separator + tuple(sorted(set(clique) - set(separator), key=lambda index: (self.sizes[index], index)))
            for clique, separator in zip(self.cliques, self.separators, strict=True)
        )

    @cached_property
    def children(self) -> tuple[tuple[int, ...], ...]:
        """Indices of each clique's children."""
        found: list[list[int]] = [[] for _ in self.cliques]
        for index, parent in enumerate(self.parents):
            if parent >= 0:
                found[parent].append(index)
        return tuple(tuple(items) for items in found)

    @cached_property
    def _masks(self) -> tuple[int, ...]:
        return tuple(_mask(clique) for clique in self.cliques)

    def home(self, clique: Clique) -> int | None:
        """Index of the smallest maximal clique that contains the given one; None if there is none."""
        wanted = _mask(clique)
        inside = [index for index, mask in enumerate(self._masks) if wanted & mask == wanted]
        return min(inside, key=lambda index: self.shape_cells(self.cliques[index]), default=None)

    def extended_cells(self, clique: Clique) -> int:
        """At most so many cells has a tree that also covers the given pair or larger clique.

        For a covered clique it is this tree. Otherwise its attributes are added to all cliques on the way between
        those that hold them: that is a tree, if not always the smallest.
        """
        wanted = _mask(clique)
        if any(wanted & mask == wanted for mask in self._masks):
            return self.cells
        spanned = self._spanned(wanted)
        if spanned is None:
            return self.cells + self.shape_cells(clique)
        added = 0
        for index in spanned:
            more = wanted & ~self._masks[index]
            factor = math.prod(self.sizes[attribute] for attribute in _bits(more))
            added += self.shape_cells(self.cliques[index]) * (factor - 1)
        return self.cells + added

    def _spanned(self, wanted: int) -> set[int] | None:
        """The cliques between those nearest to the first that hold the wanted attributes; None across components."""
        start = next(index for index, mask in enumerate(self._masks) if mask & wanted)
        before: dict[int, int] = {start: -1}
        queue, missing = [start], wanted & ~self._masks[start]
        spanned = {start}
        for index in queue:
            neighbours = (*self.children[index], *((self.parents[index],) if self.parents[index] >= 0 else ()))
            for neighbour in neighbours:
                if neighbour in before:
                    continue
                before[neighbour] = index
                queue.append(neighbour)
                if self._masks[neighbour] & missing:
                    missing &= ~self._masks[neighbour]
                    step = neighbour
                    while step not in spanned:
                        spanned.add(step)
                        step = before[step]
                if not missing:
                    return spanned
        return None


def junction_tree(sizes: Sequence[int], cliques: Iterable[Clique]) -> JunctionTree:
    """A junction tree that covers the cliques and every attribute.

    The smaller of two triangulations, by greedily eliminating the attribute with the smallest new clique or with the
    fewest new edges.

    Raises:
        ValueError: a clique names an attribute that there is not.
    """
    sizes = tuple(sizes)
    masks = [_mask(clique) for clique in cliques]
    if any(mask >> len(sizes) for mask in masks):
        raise ValueError("a clique names an attribute that does not exist")
    weighings: tuple[_Weighing, ...] = ("size", "fill")
    found = [_eliminate(sizes, masks, weighing) for weighing in weighings]
    return _connect(sizes, min(found, key=lambda cliques: sum(_cells(sizes, clique) for clique in cliques)))


def junction_cells(sizes: Sequence[int], cliques: Iterable[Clique]) -> int:
    """Number of cells of `junction_tree` for the same arguments, without its tree."""
    masks = [_mask(clique) for clique in cliques]
    return min(
        sum(_cells(sizes, clique) for clique in _eliminate(sizes, masks, weighing)) for weighing in ("size", "fill")
    )


def _mask(clique: Iterable[int]) -> int:
    mask = 0
    for index in clique:
        mask |= 1 << index
    return mask


def _bits(mask: int) -> Iterator[int]:
    while mask:
        low = mask & -mask
        yield low.bit_length() - 1
        mask ^= low


def _cells(sizes: Sequence[int], mask: int) -> int:
    return math.prod(sizes[index] for index in _bits(mask))


def _eliminate(sizes: Sequence[int], masks: Iterable[int], weighing: _Weighing) -> list[int]:
    """Maximal cliques (masks) of the graph triangulated by greedy elimination."""
    neighbours = [0] * len(sizes)
    for mask in masks:
        for index in _bits(mask):
            neighbours[index] |= mask
    for index in range(len(sizes)):
        neighbours[index] &= ~(1 << index)

    def weight(index: int) -> tuple[float, int]:
        around = neighbours[index]
        size = _cells(sizes, around) * sizes[index]
        if weighing == "size":
            return (size, index)
        missing = sum((around & ~neighbours[other]).bit_count() - 1 for other in _bits(around))
        return (missing, size)

    weights = {index: weight(index) for index in range(len(sizes))}
    found: list[int] = []
    while weights:
        index = min(weights, key=weights.__getitem__)
        del weights[index]
        around = neighbours[index]
        clique = around | 1 << index
        if not any(clique & other == clique for other in found):
            found.append(clique)
        touched = around
        for other in _bits(around):
            neighbours[other] = (neighbours[other] | around) & ~(1 << other | 1 << index)
            if weighing == "fill":
                touched |= neighbours[other]
        for other in _bits(touched):
            weights[other] = weight(other)
    return found


def _connect(sizes: tuple[int, ...], masks: Sequence[int]) -> JunctionTree:
    """The maximum spanning forest by separator cells, rooted at each component's largest clique (Prim)."""
    waiting = set(range(len(masks)))
    best = dict.fromkeys(waiting, (0, 0, -1))  # attributes shared, cells, parent's place in the order
    order: list[int] = []
    parents: list[int] = []
    size = [_cells(sizes, mask) for mask in masks]
    while waiting:
        index = max(waiting, key=lambda item: (best[item][0], best[item][1], size[item], -item))
        waiting.remove(index)
        order.append(index)
        parents.append(best[index][2])
        for other in waiting:
            shared = masks[index] & masks[other]
            rank = (shared.bit_count(), _cells(sizes, shared), len(order) - 1)
            if shared and rank[:2] > best[other][:2]:
                best[other] = rank
    cliques = tuple(tuple(_bits(masks[index])) for index in order)
    separators = tuple(
        tuple(_bits(masks[order[place]] & masks[order[parent]])) if parent >= 0 else ()
        for place, parent in enumerate(parents)
    )
    return JunctionTree(sizes, cliques, tuple(parents), separators)
