"""Junction trees: how a set of cliques is arranged so that inference is exact, and how much memory that takes.

What belongs here: elimination orders, the tree of maximal cliques with its separators, its size and how it grows, all
functions of attribute sizes and clique names. What does not: any number on the cells (`propagation`).

A model gets its cliques one after the other, and each time all candidates are asked how large it would become with
them. So the answer is that of the tree as it is, extended (`JunctionTree.extended`), which a tree that covers all
cliques anew is then at most allowed to undercut (`covering`): what was admitted always fits.

An attribute may have *groups*, which are an attribute of their own: which group its state is in. Whoever holds the
attribute holds its groups, too, and they cost nothing there; a clique that needs the groups only holds these, and has
so many fewer cells. Of `n` columns, `n + i` are the groups of `i`. Cliques are named without what follows from others;
masks have all (`Attributes.closed`), so that what two of them share is their intersection.

Sets of attributes are bit masks inside of this module, since selection asks for the size of thousands of trees.
Reference: Koller & Friedman 2009, sections 9.4 (elimination), 10.4 (clique trees).
"""

from __future__ import annotations

import functools
import itertools
import math
import operator
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import numpy.typing as npt

Clique = tuple[int, ...]
"""Attribute indices, ascending."""


_ENDLESS = 2**62
"""More cells than any tree that can be kept."""


@dataclass(frozen=True)
class Attributes:
    """Columns, and groups of their states: what the cliques of a tree consist of.

    Attributes:
        sizes: number of states of each column, then of groups of each, 0 where there are none.
        groups: of each column, the group of every state; None where there are none.
    """

    sizes: tuple[int, ...]
    groups: tuple[npt.NDArray[np.int64] | None, ...] = field(compare=False, repr=False)

    @classmethod
    def of(cls, states: Sequence[int], groups: Iterable[npt.NDArray[np.int64] | None] = ()) -> Attributes:
        """Columns with so many states; with groups of all or of none."""
        found = tuple(groups) or (None,) * len(states)
        return cls((*states, *(0 if group is None else int(group.max()) + 1 for group in found)), found)

    @property
    def columns(self) -> int:
        """How many columns there are; their groups are numbered from here on."""
        return len(self.groups)

    @cached_property
    def known(self) -> int:
        """Mask of all that there are."""
        return _mask(index for index, size in enumerate(self.sizes) if size)

    def used(self, masks: Iterable[int]) -> Attributes:
        """Without groups that none of the masks names: they follow from their columns, and nothing from them."""
        named = functools.reduce(operator.or_, masks, self._lowest)
        sizes = (size if named >> index & 1 else 0 for index, size in enumerate(self.sizes))
        return Attributes(tuple(sizes), self.groups)

    def closed(self, mask: int) -> int:
        """With the groups of all columns of a mask."""
        return mask | (mask & self._lowest) << self.columns & self.known

    def named(self, mask: int) -> int:
        """Without the groups of what is there."""
        return mask & ~((mask & self._lowest) << self.columns)

    def cells(self, mask: int) -> int:
        """Number of combinations that there are."""
        return math.prod(self.sizes[index] for index in _bits(self.named(mask)))

    def shape(self, clique: Iterable[int]) -> tuple[int, ...]:
        """Sizes of the clique's attributes."""
        return tuple(self.sizes[index] for index in clique)

    def refined(self, some: Clique, clique: Clique) -> Clique:
        """The same attributes as a clique has them: columns in place of their groups where it holds the columns."""
        return tuple(index if index in clique else index - self.columns for index in some)

    def together(self, first: Clique, second: Clique) -> Clique:
        """Attributes of both, those of the first in front, and columns in place of their groups."""
        every = tuple(dict.fromkeys((*first, *second)))
        named = tuple(index for index in every if index < self.columns or index - self.columns not in every)
        return tuple(dict.fromkeys((*self.refined(first, named), *named)))

    @cached_property
    def _lowest(self) -> int:
        return (1 << self.columns) - 1


@dataclass(frozen=True)
class JunctionTree:
    """Maximal cliques of a triangulated graph as a forest, parents before children.

    Each clique's attributes are ordered for computing: the separator's first (ascending), then the others from few
    states to many. So every conditional P[rest | separator] is a matrix without moving memory, and most potentials do
    not touch the last axis, which is the longest.

    Where a separator has an attribute's groups and the clique the attribute, the latter stands in their place.

    Attributes:
        attributes: what the cliques consist of.
        cliques: the maximal cliques, each ascending.
        parents: index of each clique's parent, -1 for roots.
        separators: what a clique shares with its parent, ascending; () for roots.
    """

    attributes: Attributes
    cliques: tuple[Clique, ...]
    parents: tuple[int, ...]
    separators: tuple[Clique, ...]

    @property
    def sizes(self) -> tuple[int, ...]:
        return self.attributes.sizes

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
        found = []
        for clique, separator in zip(self.cliques, self.separators, strict=True):
            first = self.attributes.refined(separator, clique)
            found.append(first + tuple(sorted(set(clique) - set(first), key=lambda index: (self.sizes[index], index))))
        return tuple(found)

    @cached_property
    def separator_cells(self) -> tuple[int, ...]:
        """Number of cells of each separator."""
        return tuple(map(self.shape_cells, self.separators))

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
        return tuple(self.attributes.closed(_mask(clique)) for clique in self.cliques)

    @cached_property
    def _places(self) -> tuple[tuple[int, ...], ...]:
        """For each attribute the cliques that hold it, the smallest first."""
        found: list[list[int]] = [[] for _ in self.sizes]
        for index in sorted(range(len(self.cliques)), key=lambda index: self.shape_cells(self.cliques[index])):
            for attribute in _bits(self._masks[index]):
                found[attribute].append(index)
        return tuple(map(tuple, found))

    @cached_property
    def _tops(self) -> tuple[int, ...]:
        """For each attribute the clique nearest to the root that holds it: parents stand before children."""
        return tuple(min(places, default=-1) for places in self._places)

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
        if len(clique) == 2:
            a, b = clique
            return self.cells + self._pair_growth[a][b]
        return self.cells if self.home(clique) is not None else min(self._extensions(clique))[0]

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
        return _connect(self.attributes, [*kept, *instead])

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
            parts[meeting] |= self.attributes.closed(_mask(clique))
            # What is wanted of another component is brought together there, and then shared.
            for members in others:
                parts |= self._gathered(members, self._ends(members)[0])
            touched = list(parts)
            instead = _maximal([*parts.values(), *(self._masks[index] for index in touched)])
            more = sum(self.attributes.cells(mask) for mask in instead)
            yield self.cells + more - sum(self.shape_cells(self.cliques[index]) for index in touched), touched, instead

    @cached_property
    def _growth(self) -> tuple[dict[int, int], ...]:
        """By how many cells the tree grows where a first attribute goes to the nearest clique that holds a second.

        For each first attribute, by the second, within a component; what a clique holds already is left out. The same
        as `_extensions` by what needs no list of cliques: what is new beside two neighbours on a way depends on their
        separators only, so that ways to all others are walked at once.
        """
        masks, attributes = self._masks, self.attributes
        closures = [attributes.closed(1 << index) for index in range(len(self.sizes))]
        cells = [self.shape_cells(clique) for clique in self.cliques]
        # For each clique its neighbours: index, separator, and what the neighbour has besides.
        edges: list[list[tuple[int, int, tuple[int, ...]]]] = [[] for _ in masks]
        for child, parent in enumerate(self.parents):
            shared = masks[child] & masks[parent] if parent >= 0 else 0
            for index, other in ((parent, child), (child, parent)) if parent >= 0 else ():
                edges[index].append((other, shared, tuple(_bits(masks[other] & ~shared))))
        growth: list[dict[int, int]] = [{} for _ in self.sizes]
        for first, closure in enumerate(closures):
            unions: dict[int, int] = {}
            queue = []
            for start in self._places[first]:
                for edge in edges[start]:
                    if not edge[1] >> first & 1:
                        # Where it starts, all else is the separator: then the next new clique contains that.
                        freed = cells[start] if masks[start] == edge[1] | closure else 0
                        queue.append((start, edge, -freed, not freed))
            while queue:
                before, (index, entry, besides), grown, held = queue.pop()
                for second in besides:
                    new = entry | closure | closures[second]
                    if new not in unions:
                        unions[new] = attributes.cells(new)
                    contained = masks[index] | new == new
                    growth[first][second] = grown + unions[new] - (cells[index] if contained else 0)
                for edge in edges[index]:
                    exit_ = edge[1]
                    if edge[0] == before:
                        continue
                    union = entry | exit_ | closure
                    more = 0
                    inside = held and union == entry | closure  # of what stands before
                    ahead = not inside and union == exit_ | closure  # of the next new clique
                    if not inside and not ahead:
                        if union not in unions:
                            unions[union] = attributes.cells(union)
                        more = unions[union]
                    if masks[index] | union == union:
                        more -= cells[index]
                    queue.append((index, edge, grown + more, not ahead))
        return tuple(growth)

    @cached_property
    def _pair_growth(self) -> list[list[int]]:
        """By how many cells the tree grows with each pair of attributes; without bound above `_ENDLESS`."""
        sizes = np.array(self.sizes, dtype=np.int64)
        # In different components, a pair is a clique of its own; of an attribute that was one, nothing is left.
        alone = [self._masks[top] == self.attributes.closed(1 << index) for index, top in enumerate(self._tops)]
        lone = np.where(alone, sizes, 0)
        apart = np.outer(sizes, sizes) - lone[:, None] - lone[None, :]
        walked = np.full(apart.shape, _ENDLESS)
        for first, growth in enumerate(self._growth):
            walked[first, list(growth)] = [min(cells, _ENDLESS - 1) for cells in growth.values()]
        grown = np.minimum(walked, walked.T)
        grown = np.where(grown < _ENDLESS, grown, apart)
        for mask in self._masks:
            held = list(_bits(mask))
            grown[np.ix_(held, held)] = 0
        found: list[list[int]] = grown.tolist()
        return found

    def _ends(self, members: Clique) -> list[int]:
        """Cliques of one component at which its members may well meet: those nearest to others that hold one."""
        ends = {self._places[members[0]][0]} if len(members) == 1 else set()
        for a, b in itertools.combinations(members, 2):
            way = self._way(a, self._tops[b])
            ends |= {way[0], next(index for index in way if self._masks[index] >> b & 1)}
        return sorted(ends)

    def _gathered(self, members: Clique, meeting: int) -> dict[int, int]:
        """What stands beside each clique on the members' ways to the meeting (masks); 0 where they start."""
        closures = {attribute: self.attributes.closed(1 << attribute) for attribute in members}
        parts = {meeting: self.attributes.closed(_mask(members))}
        ways = {attribute: self._way(attribute, meeting) for attribute in members}
        for attribute, way in ways.items():
            for before, index in itertools.pairwise(way):
                separator = self._masks[before] & self._masks[index]
                parts[index] = parts.get(index, 0) | closures[attribute] | separator
                parts[before] = parts.get(before, 0) | (separator if before != way[0] else 0)
        for attribute, way in ways.items():
            if parts[way[0]]:  # others pass where it starts
                parts[way[0]] |= closures[attribute]
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


def junction_tree(attributes: Attributes, cliques: Iterable[Clique]) -> JunctionTree:
    """A junction tree that covers the cliques and every column.

    The smaller of two triangulations, by greedily eliminating the attribute with the smallest new clique or with the
    fewest new edges.

    Raises:
        ValueError: a clique names an attribute that there is not.
    """
    masks = [_mask(clique) for clique in cliques]
    if any(mask & ~attributes.known for mask in masks):
        raise ValueError("a clique names an attribute that does not exist")
    used, weighings = attributes.used(masks), ("size", "fill")
    found = [_eliminate(used, map(used.closed, masks), weighing) for weighing in weighings]
    smallest = min(found, key=lambda cliques: sum(map(attributes.cells, cliques)))
    return _connect(attributes, list(map(attributes.closed, smallest)))


def covering(tree: JunctionTree, cliques: Iterable[Clique], clique: Clique) -> JunctionTree:
    """A tree that also covers one clique more: the smaller of the tree extended by it and of one that is made anew.

    Args:
        tree: covers the cliques.
        cliques: what must stay covered.
        clique: what is to be covered, too.
    """
    if tree.home(clique) is not None:
        return tree
    return min(tree.extended(clique), junction_tree(tree.attributes, [*cliques, clique]), key=lambda found: found.cells)


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


def _eliminate(attributes: Attributes, masks: Iterable[int], weighing: str) -> list[int]:
    """Maximal cliques (masks) of the graph triangulated by greedy elimination.

    Args:
        attributes: those of the graph.
        masks: closed.
        weighing: what is eliminated next: where the new clique has the fewest cells ("size"), or the fewest new edges
            ("fill").
    """
    every = list(_bits(attributes.known))
    neighbours = [0] * len(attributes.sizes)
    for mask in (*masks, *(attributes.closed(1 << index) for index in every)):
        for index in _bits(mask):
            neighbours[index] |= mask
    for index in every:
        neighbours[index] &= ~(1 << index)

    def weight(index: int) -> tuple[float, int]:
        around = neighbours[index]
        size = attributes.cells(around | 1 << index)
        if weighing == "size":
            return (size, index)
        missing = sum((around & ~neighbours[other]).bit_count() - 1 for other in _bits(around))
        return (missing, size)

    weights = {index: weight(index) for index in every}
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
    return _maximal(map(attributes.closed, found))


def _connect(attributes: Attributes, masks: Sequence[int]) -> JunctionTree:
    """The maximum spanning forest by separator cells, rooted at each component's largest clique (Prim)."""
    waiting = set(range(len(masks)))
    best = dict.fromkeys(waiting, (0, 0, -1))  # attributes shared, cells, parent's place in the order
    order: list[int] = []
    parents: list[int] = []
    size = [attributes.cells(mask) for mask in masks]
    while waiting:
        index = max(waiting, key=lambda item: (best[item][0], best[item][1], size[item], -item))
        waiting.remove(index)
        order.append(index)
        parents.append(best[index][2])
        for other in waiting:
            if shared := masks[index] & masks[other]:
                rank = (shared.bit_count(), attributes.cells(shared), len(order) - 1)
                if rank[:2] > best[other][:2]:
                    best[other] = rank
    cliques = tuple(tuple(_bits(attributes.named(masks[index]))) for index in order)
    separators = tuple(
        tuple(_bits(attributes.named(masks[order[place]] & masks[order[parent]]))) if parent >= 0 else ()
        for place, parent in enumerate(parents)
    )
    return JunctionTree(attributes, cliques, tuple(parents), separators)
