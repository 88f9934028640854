"""Junction trees: how a set of cliques is arranged so that inference is exact, and how much memory that takes.

What belongs here: elimination orders, the tree of maximal cliques with its separators, its size and how it grows, all
functions of attribute sizes and clique names. What does not: any number on the cells (`propagation`).

A model gets its cliques one after the other, and each time all candidates are asked how large it would become with
them. So the answer is that of the tree as it is, extended (`JunctionTree.extended`), which a tree that covers all
cliques anew is then at most allowed to undercut (`covering`): what was admitted always fits.

Sets of attributes are bit masks inside of this module, since selection asks for the size of thousands of trees.
Reference: Koller & Friedman 2009, sections 9.4 (elimination), 10.4 (clique trees).
"""

from __future__ import annotations

import itertools
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

    @cached_property
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

    @cached_property
    def _places(self) -> tuple[tuple[int, ...], ...]:
        """For each attribute the cliques that hold it, the smallest first."""
        found: list[list[int]] = [[] for _ in self.sizes]
        for index in sorted(range(len(self.cliques)), key=lambda index: self.shape_cells(self.cliques[index])):
            for attribute in self.cliques[index]:
                found[attribute].append(index)
        return tuple(map(tuple, found))

    @cached_property
    def _tops(self) -> tuple[int, ...]:
        """For each attribute the clique nearest to the root that holds it: parents stand before children."""
        return tuple(map(min, self._places))

    @cached_property
    def _depths(self) -> tuple[int, ...]:
        depths: list[int] = []
        for parent in self.parents:
            depths.append(depths[parent] + 1 if parent >= 0 else 0)
        return tuple(depths)

    @cached_property
    def _roots(self) -> tuple[int, ...]:
        roots: list[int] = []
        for index, parent in enumerate(self.parents):
            roots.append(roots[parent] if parent >= 0 else index)
        return tuple(roots)

    def home(self, clique: Clique) -> int | None:
        """Index of the smallest maximal clique that contains the given one; None if there is none."""
        wanted = _mask(clique)
        places = min((self._places[attribute] for attribute in clique), key=len, default=range(len(self.cliques)))
        return next((index for index in places if wanted & self._masks[index] == wanted), None)

    def extended_cells(self, clique: Clique) -> int:
        """Number of cells of `extended` for the same clique, without its tree."""
        if self.home(clique) is not None:
            return self.cells
        if len(clique) > 2:
            return min(self._extensions(clique))[0]
        a, b = clique
        if b in self._growth[a]:
            return self.cells + min(self._growth[a][b], self._growth[b][a])
        lone = [index for index in clique if self._masks[self._tops[index]] == 1 << index]
        return self.cells + self.shape_cells(clique) - sum(self.sizes[index] for index in lone)

    def extended(self, clique: Clique) -> JunctionTree:
        """A tree that also covers the given clique, and is little else than this one: not always the smallest.

        The new clique's attributes meet beside one of the tree's cliques. Each that this one does not hold comes from
        the nearest that does. The cliques on its way stay as they are: new ones beside them hold who passes and the
        separators on the way, and nothing else. That is a junction tree again, since what neighbours on the way share
        stays between them.
        """
        if self.home(clique) is not None:
            return self
        _, touched, instead = min(self._extensions(clique))
        kept = [mask for index, mask in enumerate(self._masks) if index not in touched]
        return _connect(self.sizes, [*kept, *instead])

    def _extensions(self, clique: Clique) -> Iterator[tuple[int, list[int], list[int]]]:
        """Ways of covering a clique that no clique of the tree holds, by where its attributes meet.

        Each is the number of cells, the cliques that change, and what comes in their place.
        """
        components: dict[int, Clique] = {}
        for attribute in clique:
            root = self._roots[self._tops[attribute]]
            components[root] = (*components.get(root, ()), attribute)
        first, *others = sorted(components.values(), key=len, reverse=True)
        for meeting in self._ends(first):
            parts = self._gathered(first, meeting)
            parts[meeting] |= _mask(clique)
            # What is wanted of another component is brought together there, and then shared.
            for members in others:
                parts |= self._gathered(members, self._ends(members)[0])
            touched = list(parts)
            instead = _maximal([*parts.values(), *(self._masks[index] for index in touched)])
            more = sum(_cells(self.sizes, mask) for mask in instead)
            yield self.cells + more - sum(self.shape_cells(self.cliques[index]) for index in touched), touched, instead

    @cached_property
    def _growth(self) -> tuple[dict[int, int], ...]:
        """By how many cells the tree grows where a first attribute goes to the nearest clique that holds a second.

        For each first attribute, by the second, within a component; what a clique holds already is left out. The same
        as `_extensions` by what needs no list of cliques: what is new beside two neighbours on a way depends on their
        separators only, so that ways to all others are walked at once.
        """
        masks, sizes = self._masks, self.sizes
        cells = [self.shape_cells(clique) for clique in self.cliques]
        # For each clique its neighbours: index, separator, the separator's cells, and what the neighbour has besides.
        edges: list[list[tuple[int, int, int, tuple[int, ...]]]] = [[] for _ in masks]
        for child, parent in enumerate(self.parents):
            shared = masks[child] & masks[parent] if parent >= 0 else 0
            for index, other in ((parent, child), (child, parent)) if parent >= 0 else ():
                edges[index].append((other, shared, _cells(sizes, shared), tuple(_bits(masks[other] & ~shared))))
        unions: dict[int, int] = {}
        growth: list[dict[int, int]] = [{} for _ in sizes]
        for first, size in enumerate(sizes):
            queue = []
            for start in self._places[first]:
                for edge in edges[start]:
                    if not edge[1] >> first & 1:
                        # Where it starts, all else is the separator: then the next new clique contains that.
                        freed = cells[start] if masks[start] == edge[1] | 1 << first else 0
                        queue.append((start, edge, -freed, freed))
            while queue:
                before, (index, entry, width, besides), grown, freed = queue.pop()
                for second in besides:
                    contained = masks[index] == entry | 1 << second
                    growth[first][second] = grown + size * width * sizes[second] - (cells[index] if contained else 0)
                for edge in edges[index]:
                    exit_ = edge[1]
                    if edge[0] == before:
                        continue
                    union = entry | exit_
                    if union == exit_:  # the next new clique contains this one
                        more = 0
                    elif union == entry:  # the one before does
                        more = freed
                    else:
                        if union not in unions:
                            unions[union] = _cells(sizes, union)
                        more = size * unions[union] - (cells[index] if union == masks[index] else 0)
                    queue.append((index, edge, grown + more, 0))
        return tuple(growth)

    def _ends(self, members: Clique) -> list[int]:
        """Cliques of one component at which its members may well meet: those nearest to others that hold one."""
        ends = {self._places[members[0]][0]} if len(members) == 1 else set()
        for a, b in itertools.combinations(members, 2):
            way = self._way(a, self._tops[b])
            ends |= {way[0], next(index for index in way if self._masks[index] >> b & 1)}
        return sorted(ends)

    def _gathered(self, members: Clique, meeting: int) -> dict[int, int]:
        """What stands beside each clique on the members' ways to the meeting (masks); 0 where they start."""
        parts = {meeting: _mask(members)}
        ways = {attribute: self._way(attribute, meeting) for attribute in members}
        for attribute, way in ways.items():
            for before, index in itertools.pairwise(way):
                separator = self._masks[before] & self._masks[index]
                parts[index] = parts.get(index, 0) | 1 << attribute | separator
                parts[before] = parts.get(before, 0) | (separator if before != way[0] else 0)
        for attribute, way in ways.items():
            if parts[way[0]]:  # others pass where it starts
                parts[way[0]] |= 1 << attribute
        return parts

    def _way(self, attribute: int, end: int) -> list[int]:
        """The cliques from the nearest that holds the attribute to one of the same component, both included."""
        head, tail = [self._tops[attribute]], [end]
        while head[-1] != tail[-1]:
            side = tail if self._depths[tail[-1]] > self._depths[head[-1]] else head
            side.append(self.parents[side[-1]])
        way = head + tail[-2::-1]
        while len(way) > 1 and self._masks[way[1]] >> attribute & 1:
            del way[0]
        return way


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


def covering(tree: JunctionTree, cliques: Iterable[Clique], clique: Clique) -> JunctionTree:
    """A tree that also covers one clique more: the smaller of the tree extended by it and of one that is made anew.

    Args:
        tree: covers the cliques.
        cliques: what must stay covered.
        clique: what is to be covered, too.
    """
    if tree.home(clique) is not None:
        return tree
    return min(tree.extended(clique), junction_tree(tree.sizes, [*cliques, clique]), key=lambda found: found.cells)


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


def _maximal(masks: Iterable[int]) -> list[int]:
    """Those that no other contains, each once."""
    distinct = sorted(set(masks), key=int.bit_count, reverse=True)
    found: list[int] = []
    for mask in distinct:
        if not any(mask & other == mask for other in found):
            found.append(mask)
    return found


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
            if shared := masks[index] & masks[other]:
                rank = (shared.bit_count(), _cells(sizes, shared), len(order) - 1)
                if rank[:2] > best[other][:2]:
                    best[other] = rank
    cliques = tuple(tuple(_bits(masks[index])) for index in order)
    separators = tuple(
        tuple(_bits(masks[order[place]] & masks[order[parent]])) if parent >= 0 else ()
        for place, parent in enumerate(parents)
    )
    return JunctionTree(sizes, cliques, tuple(parents), separators)
