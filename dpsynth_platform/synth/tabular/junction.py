"""Junction trees: cliques arranged so that inference is exact, and the memory that this takes.

What belongs here: elimination orders, the tree of maximal cliques with its separators, its size and growth, all
functions of attribute sizes and clique names. What does not: any values of cells (`propagation`).

A model gets its cliques one by one, and each time the tree's size with every candidate is needed: that of the current
tree, extended (`JunctionTree.extended`). A new tree for all cliques is used only if it is smaller (`covering`), so that
an admitted clique always fits.

An attribute may have *groups*, which are another attribute: the group of its state. Of `n` columns, `n + i` is the
groups of `i`. A clique with an attribute also has its groups, at no cost. Cliques are named without groups of their own
columns; masks include them (`Attributes.closed`), so that the intersection of masks is what they share.

Sets of attributes are bit masks inside of this module, since selection needs the sizes of thousands of trees.
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
"""More cells than any feasible tree has."""


@dataclass(frozen=True)
class Attributes:
    """The columns, and groups of their states, of which cliques consist.

    Attributes:
        sizes: number of states of each column, then of its groups, 0 without groups.
        groups: of each column, the group of every state; None without groups.
    """

    sizes: tuple[int, ...]
    groups: tuple[npt.NDArray[np.int64] | None, ...] = field(compare=False, repr=False)

    @classmethod
    def of(cls, states: Sequence[int], groups: Iterable[npt.NDArray[np.int64] | None] = ()) -> Attributes:
        """Columns with so many states, and groups for all of them or none."""
        found = tuple(groups) or (None,) * len(states)
        return cls((*states, *(0 if group is None else int(group.max()) + 1 for group in found)), found)

    @classmethod
    def with_hidden(
        cls, states: Sequence[int], groups: Iterable[npt.NDArray[np.int64] | None] = (), components: int = 0
    ) -> Attributes:
        """The same; with `components`, a last column of so many states without groups: a mixture's component."""
        if not components:
            return cls.of(states, groups)
        return cls.of([*states, components], [*(tuple(groups) or [None] * len(states)), None])

    @property
    def columns(self) -> int:
        """Number of columns; their groups are numbered from here on."""
        return len(self.groups)

    @cached_property
    def known(self) -> int:
        return _mask(index for index, size in enumerate(self.sizes) if size)

    def used(self, masks: Iterable[int]) -> Attributes:
        """Without groups that no mask contains: they follow from their columns."""
        named = functools.reduce(operator.or_, masks, self._lowest)
        sizes = (size if named >> index & 1 else 0 for index, size in enumerate(self.sizes))
        return Attributes(tuple(sizes), self.groups)

    def closed(self, mask: int) -> int:
        """The mask with the groups of all its columns."""
        return mask | (mask & self._lowest) << self.columns & self.known

    def named(self, mask: int) -> int:
        """The mask without the groups of its columns."""
        return mask & ~((mask & self._lowest) << self.columns)

    def cells(self, mask: int) -> int:
        return math.prod(self.sizes[index] for index in _bits(self.named(mask)))

    def shape(self, clique: Iterable[int]) -> tuple[int, ...]:
        return tuple(self.sizes[index] for index in clique)

    def refined(self, some: Clique, clique: Clique) -> Clique:
        """The attributes, with columns in place of their groups where the clique has the columns."""
        return tuple(index if index in clique else index - self.columns for index in some)

    def together(self, first: Clique, second: Clique) -> Clique:
        """Attributes of both, those of the first in front, with columns in place of their groups."""
        every = tuple(dict.fromkeys((*first, *second)))
        named = tuple(index for index in every if index < self.columns or index - self.columns not in every)
        return tuple(dict.fromkeys((*self.refined(first, named), *named)))

    @cached_property
    def _lowest(self) -> int:
        return (1 << self.columns) - 1


@dataclass(frozen=True)
class JunctionTree:
    """Maximal cliques of a triangulated graph as a forest, parents before children.

    A clique's `axes` are its attributes in the order of computing: the separator's first (ascending), then the others
    from few states to many. So every conditional P[rest | separator] is a matrix without copies, and most potentials do
    not use the last axis, which is the longest. An attribute takes the position of its groups in the separator.

    Attributes:
        cliques: each ascending.
        parents: index of each clique's parent, -1 for roots.
        separators: attributes shared with the parent, ascending; () for roots.
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
        return sum(self.shape_cells(clique) for clique in self.cliques)

    def shape_cells(self, clique: Clique) -> int:
        return math.prod(self.sizes[index] for index in clique)

    @cached_property
    def axes(self) -> tuple[Clique, ...]:
        found = []
        for clique, separator in zip(self.cliques, self.separators, strict=True):
            first = self.attributes.refined(separator, clique)
            found.append(first + tuple(sorted(set(clique) - set(first), key=lambda index: (self.sizes[index], index))))
        return tuple(found)

    @cached_property
    def separator_cells(self) -> tuple[int, ...]:
        return tuple(map(self.shape_cells, self.separators))

    @cached_property
    def children(self) -> tuple[tuple[int, ...], ...]:
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
        """For each attribute the cliques with it, the smallest first."""
        found: list[list[int]] = [[] for _ in self.sizes]
        for index in sorted(range(len(self.cliques)), key=lambda index: self.shape_cells(self.cliques[index])):
            for attribute in _bits(self._masks[index]):
                found[attribute].append(index)
        return tuple(map(tuple, found))

    @cached_property
    def _tops(self) -> tuple[int, ...]:
        """For each attribute the clique with it that is nearest to the root: parents precede children."""
        return tuple(min(places, default=-1) for places in self._places)

    @cached_property
    def depths(self) -> tuple[int, ...]:
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
        """Index of the smallest of the tree's cliques that contains the given one; None if there is none."""
        wanted = _mask(clique)
        places = min((self._places[attribute] for attribute in clique), key=len, default=range(len(self.cliques)))
        return next((index for index in places if wanted & self._masks[index] == wanted), None)

    def extended_cells(self, clique: Clique) -> int:
        """Number of cells of the tree that `extended` would make."""
        if len(clique) == 2:
            a, b = clique
            return self.cells + self._pair_growth[a][b]
        return self.cells if self.home(clique) is not None else min(self._extensions(clique))[0]

    def extended(self, clique: Clique) -> JunctionTree:
        """A tree that also covers the given clique and differs little from this one; not always the smallest.

        The new clique is adjacent to one of the tree's cliques, the meeting. Each attribute that the meeting lacks
        comes along the path from the nearest clique with it. The cliques on the path do not change: new cliques beside
        them hold only the passing attributes and the separators on the path. That is a junction tree again, since
        neighbours on the path keep what they share.
        """
        if self.home(clique) is not None:
            return self
        _, touched, instead = min(self._extensions(clique))
        kept = [mask for index, mask in enumerate(self._masks) if index not in touched]
        return _connect(self.attributes, [*kept, *instead])

    def _extensions(self, clique: Clique) -> Iterator[tuple[int, list[int], list[int]]]:
        """Ways of covering a clique that no clique of the tree contains, one for each candidate meeting.

        Each is the number of cells, the cliques that change, and their replacements.
        """
        components: dict[int, Clique] = {}
        for attribute in clique:
            root = self._roots[self._tops[attribute]]
            components[root] = (*components.get(root, ()), attribute)
        first, *others = sorted(components.values(), key=len, reverse=True)
        for meeting in self._ends(first):
            parts = self._gathered(first, meeting)
            parts[meeting] |= self.attributes.closed(_mask(clique))
            # The attributes of another component are gathered there, and then shared.
            for members in others:
                parts |= self._gathered(members, self._ends(members)[0])
            touched = list(parts)
            instead = _maximal([*parts.values(), *(self._masks[index] for index in touched)])
            more = sum(self.attributes.cells(mask) for mask in instead)
            yield self.cells + more - sum(self.shape_cells(self.cliques[index]) for index in touched), touched, instead

    @cached_property
    def _growth(self) -> tuple[dict[int, int], ...]:
        """By how many cells the tree grows if a first attribute goes to the nearest clique with a second.

        For each first attribute, by the second, within a component, for pairs that no clique contains. It computes the
        sizes of `_extensions` without lists of cliques: the new cliques beside two neighbours on a path depend on their
        separators only, so that one walk finds the paths to all other attributes.
        """
        masks, attributes = self._masks, self.attributes
        closures = [attributes.closed(1 << index) for index in range(len(self.sizes))]
        cells = [self.shape_cells(clique) for clique in self.cliques]
        # For each clique its neighbours: index, separator, and the neighbour's other attributes.
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
                        # If a clique has only the separator besides the attribute, the next new clique contains it.
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
                    inside = held and union == entry | closure  # of the clique before
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
        """By how many cells the tree grows with each pair of attributes; numbers above `_ENDLESS` are not exact."""
        sizes = np.array(self.sizes, dtype=np.int64)
        # In different components, a pair is a new clique, which replaces cliques of its single attributes.
        alone = [self._masks[top] == self.attributes.closed(1 << index) for index, top in enumerate(self._tops)]
        lone = np.where(alone, sizes, 0)
        separate = np.outer(sizes, sizes) - lone[:, None] - lone[None, :]
        connected = np.full(separate.shape, _ENDLESS)
        for first, growth in enumerate(self._growth):
            connected[first, list(growth)] = [min(cells, _ENDLESS - 1) for cells in growth.values()]
        grown = np.minimum(connected, connected.T)
        grown = np.where(grown < _ENDLESS, grown, separate)
        for mask in self._masks:
            held = list(_bits(mask))
            grown[np.ix_(held, held)] = 0
        found: list[list[int]] = grown.tolist()
        return found

    def _ends(self, members: Clique) -> list[int]:
        """Candidate meetings of attributes in one component: the cliques with one that are nearest to another."""
        ends = {self._places[members[0]][0]} if len(members) == 1 else set()
        for a, b in itertools.combinations(members, 2):
            path = self._path(a, self._tops[b])
            ends |= {path[0], next(index for index in path if self._masks[index] >> b & 1)}
        return sorted(ends)

    def _gathered(self, members: Clique, meeting: int) -> dict[int, int]:
        """The new mask beside each clique on the members' paths to the meeting; 0 at the start of a path."""
        closures = {attribute: self.attributes.closed(1 << attribute) for attribute in members}
        parts = {meeting: self.attributes.closed(_mask(members))}
        paths = {attribute: self._path(attribute, meeting) for attribute in members}
        for attribute, path in paths.items():
            for before, index in itertools.pairwise(path):
                separator = self._masks[before] & self._masks[index]
                parts[index] = parts.get(index, 0) | closures[attribute] | separator
                parts[before] = parts.get(before, 0) | (separator if before != path[0] else 0)
        for attribute, path in paths.items():
            if parts[path[0]]:  # other paths pass its start
                parts[path[0]] |= closures[attribute]
        return parts

    def _path(self, attribute: int, end: int) -> list[int]:
        """The cliques from the nearest with the attribute to one of the same component, both included."""
        head, tail = [self._tops[attribute]], [end]
        while head[-1] != tail[-1]:
            side = tail if self.depths[tail[-1]] > self.depths[head[-1]] else head
            side.append(self.parents[side[-1]])
        path = head + tail[-2::-1]
        while len(path) > 1 and self._masks[path[1]] >> attribute & 1:
            del path[0]
        return path


def junction_tree(attributes: Attributes, cliques: Iterable[Clique]) -> JunctionTree:
    """A junction tree that covers the cliques and every column.

    It is the smaller of two greedy triangulations: by the smallest new clique, and by the fewest new edges. Raises
    `ValueError` if a clique names an attribute that does not exist.
    """
    masks = [_mask(clique) for clique in cliques]
    if any(mask & ~attributes.known for mask in masks):
        raise ValueError("a clique names an attribute that does not exist")
    used, weighings = attributes.used(masks), ("size", "fill")
    found = [_eliminate(used, map(used.closed, masks), weighing) for weighing in weighings]
    smallest = min(found, key=lambda cliques: sum(map(attributes.cells, cliques)))
    return _connect(attributes, list(map(attributes.closed, smallest)))


def covering(tree: JunctionTree, cliques: Iterable[Clique], clique: Clique) -> JunctionTree:
    """A tree that covers `cliques` (as `tree` does) and `clique`: the smaller of the extended tree and a new one."""
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
    """The distinct masks that no other contains."""
    distinct = sorted(set(masks), key=int.bit_count, reverse=True)
    found: list[int] = []
    for mask in distinct:
        if not any(mask & other == mask for other in found):
            found.append(mask)
    return found


def _eliminate(attributes: Attributes, masks: Iterable[int], weighing: str) -> list[int]:
    """Maximal cliques (masks) of the graph of closed masks, triangulated by greedy elimination.

    The attribute eliminated next has the new clique with the fewest cells (`weighing` "size"), or the fewest new edges
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
