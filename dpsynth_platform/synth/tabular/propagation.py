"""Exact inference on a junction tree in log space: belief propagation, and marginals from its result.

What belongs here: from potentials to the marginals of every clique, covered by the tree or not. What does not: fitting
potentials (`estimation`) and drawing rows (`sampling`). All of it is post-processing.

Potentials and marginals of cliques (ascending attribute indices) are one flat array with a slice for each clique
(`Layout`), so that a step of estimation takes few operations. Up the tree, each clique takes one `exp` of its cells,
scaled by the maximum of each separator cell; down the tree, the parent's belief about the separator is spread by the
resulting conditional (Koller & Friedman 2009, chapter 10). Within a clique, potentials without the last axes are added
first, while the array is small; marginals are computed in the opposite order.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate
from typing import TYPE_CHECKING

from dpsynth_platform.synth.tabular.junction import Attributes, Clique, JunctionTree

if TYPE_CHECKING:
    import torch

# The logarithm of zero where -inf would lead to differences of infinities.
_NEVER = -1e30
IMPOSSIBLE = -1e29
"""A logarithm of the partition function below it means that every row is ruled out."""


@dataclass(frozen=True)
class Layout:
    """The slice of each clique's cells in a flat array, for attributes of the given sizes."""

    sizes: tuple[int, ...]
    cliques: tuple[Clique, ...]

    @cached_property
    def slices(self) -> dict[Clique, slice]:
        ends = list(accumulate((math.prod(self.shape(clique)) for clique in self.cliques), initial=0))
        return {clique: slice(ends[n], ends[n + 1]) for n, clique in enumerate(self.cliques)}

    def shape(self, clique: Clique) -> tuple[int, ...]:
        return tuple(self.sizes[index] for index in clique)

    @property
    def cells(self) -> int:
        return sum(math.prod(self.shape(clique)) for clique in self.cliques)

    def view(self, values: torch.Tensor, clique: Clique) -> torch.Tensor:
        """The clique's part of a flat array, in the clique's shape; it shares the array's memory."""
        return values[self.slices[clique]].view(self.shape(clique))


@dataclass(frozen=True)
class Beliefs:
    """A distribution as a tree of conditionals.

    Attributes:
        conditionals: P[rest | separator] of each clique, shape (cells of the separator, cells of the rest). If the
            clique has an attribute in place of its groups, so have the rows: P[attribute, rest | groups, ...].
        cliques: marginal of each clique, shape (sizes of its `axes`).
        log_partition: logarithm of the sum of all unnormalized probabilities.
    """

    tree: JunctionTree
    conditionals: tuple[torch.Tensor, ...]
    cliques: tuple[torch.Tensor, ...]
    log_partition: torch.Tensor


@dataclass(frozen=True)
class _Grouping:
    """An axis of states (with the group of each) in place of an axis of their groups."""

    axis: int
    group: torch.Tensor
    size: int

    def spread(self, values: torch.Tensor) -> torch.Tensor:
        """Each state gets the value of its group."""
        return values.index_select(self.axis, self.group)

    def gather(self, values: torch.Tensor) -> torch.Tensor:
        """Each group gets the sum of its states."""
        shape = (*values.shape[: self.axis], self.size, *values.shape[self.axis + 1 :])
        return values.new_zeros(shape).index_add_(self.axis, self.group, values)


def _groupings(attributes: Attributes, axes: Clique, some: Clique, device: torch.device) -> list[_Grouping]:
    """The axes whose attribute in `some` is a group of the attribute at the same position of `axes`."""
    import torch

    return [
        _Grouping(place, torch.as_tensor(attributes.groups[axis], device=device), attributes.sizes[attribute])
        for place, (axis, attribute) in enumerate(zip(axes, some, strict=True))
        if axis != attribute
    ]


@dataclass(frozen=True)
class _Part:
    """An array over a clique, in terms of a larger clique that contains it.

    Attributes:
        level: position of the clique's last axis among the larger one's axes.
        order: permutation of the clique's axes to the larger one's order, with the inverse `back`; None if they agree.
        shape: sizes that broadcast over the axes up to the level.
        away: of those axes, the ones to sum over for the clique's marginal.
        groupings: axes for which the larger clique has a column and the clique its groups, in `order`.
    """

    level: int
    order: tuple[int, ...] | None
    shape: tuple[int, ...]
    away: tuple[int, ...]
    back: tuple[int, ...] | None
    groupings: tuple[_Grouping, ...]

    @classmethod
    def of(cls, attributes: Attributes, axes: Clique, clique: Clique, device: torch.device) -> _Part:
        finest = attributes.refined(clique, axes)
        places = [axes.index(attribute) for attribute in finest]
        order = sorted(range(len(clique)), key=places.__getitem__)
        back = sorted(range(len(clique)), key=order.__getitem__)
        level = max(places, default=-1)
        shape = tuple(attributes.sizes[axes[place]] if place in places else 1 for place in range(level + 1))
        away = tuple(place for place in range(level + 1) if place not in places)
        plain = order == list(range(len(clique)))
        groupings = _groupings(
            attributes, tuple(finest[place] for place in order), tuple(clique[place] for place in order), device
        )
        return cls(
            level, None if plain else tuple(order), shape, away, None if plain else tuple(back), tuple(groupings)
        )

    def spread(self, values: torch.Tensor) -> torch.Tensor:
        """The clique's array, broadcastable to one over the axes up to the level."""
        values = values if self.order is None else values.permute(self.order)
        for grouping in self.groupings:
            values = grouping.spread(values)
        return values.reshape(self.shape)

    def gather(self, values: torch.Tensor) -> torch.Tensor:
        """The clique's marginal of an array over the axes up to the level."""
        values = values.sum(dim=self.away) if self.away else values
        for grouping in self.groupings:
            values = grouping.gather(values)
        return values if self.back is None else values.permute(self.back)


class Propagator:
    """Repeatable belief propagation on one tree, for potentials and marginals on the cliques of a layout.

    Raises `ValueError` if the tree does not cover a clique.
    """

    def __init__(self, tree: JunctionTree, layout: Layout, device: str = "cpu") -> None:
        import torch

        self.tree, self.layout = tree, layout
        attributes, where = tree.attributes, torch.device(device)
        # By clique of the tree and level: (clique of the layout, its part), and (child, its separator's part).
        self._factors: list[list[list[tuple[Clique, _Part]]]] = [[[] for _ in axes] for axes in tree.axes]
        self._messages: list[list[list[tuple[int, _Part]]]] = [[[] for _ in axes] for axes in tree.axes]
        for clique in layout.cliques:
            home = tree.home(clique)
            if home is None:
                raise ValueError(f"clique {clique} is not covered by the tree")
            part = _Part.of(attributes, tree.axes[home], clique, where)
            self._factors[home][part.level].append((clique, part))
        for child, parent in enumerate(tree.parents):
            if parent >= 0:
                part = _Part.of(attributes, tree.axes[parent], tree.separators[child], where)
                self._messages[parent][part.level].append((child, part))
        self._shapes = [attributes.shape(axes) for axes in tree.axes]
        # The separators in terms of the cliques' attributes, and the separator's cell of each row if they differ.
        firsts = [axes[: len(separator)] for axes, separator in zip(tree.axes, tree.separators, strict=True)]
        self._rows = [tree.shape_cells(first) for first in firsts]
        self._row_of = [
            None if first == separator else rows_in_groups(attributes, first, separator, where)
            for first, separator in zip(firsts, tree.separators, strict=True)
        ]

    def run(self, potentials: torch.Tensor) -> tuple[Beliefs, torch.Tensor]:
        """Beliefs of P(x) proportional to exp(sum of potentials), and its marginals in the same layout.

        A potential of -inf rules a cell out; some row must remain possible.
        """
        import torch

        conditionals, log_partition = self._up(potentials)
        marginals = torch.empty_like(potentials)
        cliques = self._down(conditionals, marginals)
        return Beliefs(self.tree, tuple(conditionals), tuple(cliques), log_partition), marginals

    def _up(self, potentials: torch.Tensor) -> tuple[list[torch.Tensor], torch.Tensor]:
        import torch

        tree = self.tree
        least = torch.finfo(potentials.dtype).tiny
        count = len(tree.cliques)
        conditionals = [potentials] * count
        messages = [potentials] * count
        log_partition = potentials.new_zeros(())
        for index in range(count - 1, -1, -1):
            scores = self._scores(index, potentials, messages).reshape(self._rows[index], -1)
            peak = scores.amax(dim=1, keepdim=True).clamp_(min=_NEVER)
            weights = scores.sub_(peak).exp_()
            norm = weights.sum(dim=1, keepdim=True).clamp_(min=least)
            row_of = self._row_of[index]
            if row_of is None:
                conditionals[index] = weights.div_(norm)
                message = peak.add_(norm.log_())
            else:
                message, parts = _by_group((peak + norm.log()).ravel(), row_of, least, tree.separator_cells[index])
                conditionals[index] = weights.mul_(parts.unsqueeze(1) / norm)
            if tree.parents[index] < 0:
                log_partition = log_partition + message.squeeze()
            else:
                messages[index] = message.view(tree.attributes.shape(tree.separators[index]))
        return conditionals, log_partition

    def _scores(self, index: int, potentials: torch.Tensor, messages: Sequence[torch.Tensor]) -> torch.Tensor:
        """Sum of a clique's potentials and messages, shape (sizes of its axes); a fresh array."""
        shape = self._shapes[index]
        scores = potentials.new_zeros(())
        for level in range(len(shape)):
            scores = scores.unsqueeze(-1)
            terms = [part.spread(self.layout.view(potentials, clique)) for clique, part in self._factors[index][level]]
            terms += [part.spread(messages[child]) for child, part in self._messages[index][level]]
            for term in terms:
                # Added in place where that does not change the shape.
                fits = scores.shape == shape[: level + 1]
                scores = scores.add_(term) if fits else scores + term
        return scores if scores.shape == shape else scores.expand(shape).clone()

    def _down(self, conditionals: Sequence[torch.Tensor], marginals: torch.Tensor) -> list[torch.Tensor]:
        cliques: list[torch.Tensor] = []
        given = [marginals] * len(conditionals)
        for index, conditional in enumerate(conditionals):
            joint = conditional
            if self.tree.parents[index] >= 0:
                above, row_of = given[index].reshape(-1, 1), self._row_of[index]
                joint = conditional * (above if row_of is None else above[row_of])
            joint = joint.view(self._shapes[index])
            cliques.append(joint)
            for level in range(len(self._shapes[index]) - 1, -1, -1):
                for clique, part in self._factors[index][level]:
                    self.layout.view(marginals, clique).copy_(part.gather(joint))
                for child, part in self._messages[index][level]:
                    given[child] = part.gather(joint)
                joint = joint.sum(dim=-1)
        return cliques


def rows_in_groups(attributes: Attributes, first: Clique, separator: Clique, device: torch.device) -> torch.Tensor:
    """The separator's cell of each cell of the corresponding attributes (`first`) of a clique, both flat."""
    import torch

    cells = torch.arange(math.prod(attributes.shape(separator)), device=device).view(attributes.shape(separator))
    for grouping in _groupings(attributes, first, separator, device):
        cells = grouping.spread(cells)
    return cells.ravel()


def _by_group(scores: torch.Tensor, row_of: torch.Tensor, least: float, rows: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Logarithm of the sum of exp(scores) of each group, and each score's share of the sum."""
    import torch

    peak = scores.new_full((rows,), _NEVER).scatter_reduce_(0, row_of, scores, "amax")
    weights = torch.exp(scores - peak[row_of])
    norm = scores.new_zeros(rows).index_add_(0, row_of, weights).clamp_(min=least)
    return peak + norm.log(), weights / norm[row_of]


def marginal(beliefs: Beliefs, clique: Clique) -> torch.Tensor:
    """Marginal of any clique, shape of its sizes: by variable elimination if the tree does not cover the clique.

    That needs memory for the clique's cells times those of a separator.
    """
    tree = beliefs.tree
    home = tree.home(clique)
    if home is not None:
        return _read(beliefs, home, clique)
    roots = [index for index, parent in enumerate(tree.parents) if parent < 0]
    columns = tuple(index % tree.attributes.columns for index in clique)
    found = _einsum([part for part in (_collected(beliefs, root, columns) for root in roots) if part[1]], columns)
    for grouping in _groupings(tree.attributes, columns, clique, found.device):
        found = grouping.gather(found)
    return found


def pair_marginals(beliefs: Beliefs, wanted: Iterable[Clique]) -> dict[Clique, torch.Tensor]:
    """Marginals of pairs of attributes, ascending, each of the shape of its sizes.

    Pairs within a clique follow from its marginal. For the others, the states of all attributes that first occur in a
    clique are passed through the tree together: one product of matrices for each step.
    """
    import torch

    tree = beliefs.tree
    found: dict[Clique, torch.Tensor] = {}
    # For each attribute the first clique with it, and for each such clique the pairs to be computed from it.
    owner: dict[int, int] = {}
    for index, axes in enumerate(tree.axes):
        for attribute in axes:
            owner.setdefault(attribute, index)
    awaited: dict[int, set[Clique]] = {}
    single = {attribute: _read(beliefs, index, (attribute,)) for attribute, index in owner.items()}
    for a, b in wanted:
        home = tree.home((a, b))
        if home is not None:
            found[(a, b)] = _read(beliefs, home, (a, b))
        else:
            awaited.setdefault(min(owner[a], owner[b]), set()).add((a, b))
    steps = _Steps(beliefs)
    for start, pairs in awaited.items():
        for pair, values in _walk(steps, start, pairs, owner):
            found[pair] = values
    for pairs in awaited.values():
        for a, b in pairs:
            if (a, b) not in found:  # in different components
                found[(a, b)] = torch.outer(single[a], single[b])
    return found


@dataclass(frozen=True)
class _Move:
    """P[target | given] within a clique, for rows of probabilities over the given attributes.

    Attributes:
        conditional: over the given axes, then the target's; columns in place of their groups.
        above: the given axes with columns in place of groups, in the rows; `below` the target's, in the result.
        given: einsum labels of the rows' axes; likewise `axes` of the conditional's and `target` of the result's.
    """

    conditional: torch.Tensor
    above: tuple[_Grouping, ...]
    below: tuple[_Grouping, ...]
    given: tuple[int, ...]
    axes: tuple[int, ...]
    target: tuple[int, ...]

    @classmethod
    def of(cls, beliefs: Beliefs, index: int, given: Clique, target: Clique) -> _Move:
        import torch

        attributes, device = beliefs.tree.attributes, beliefs.log_partition.device
        axes = attributes.together(given, target)
        first, ends = attributes.refined(given, axes), attributes.refined(target, axes)
        joint = _read(beliefs, index, axes)
        above = _groupings(attributes, first, given, device)
        away = tuple(range(len(first), len(axes)))
        norm = joint.sum(dim=away) if away else joint
        for grouping in above:
            norm = grouping.spread(grouping.gather(norm))
        norm = norm.reshape(norm.shape + (1,) * len(away))
        return cls(
            conditional=torch.where(norm > 0, joint / norm, 0.0),
            above=_behind_rows(above),
            below=_behind_rows(_groupings(attributes, ends, target, device)),
            given=(len(axes), *range(len(first))),
            axes=tuple(range(len(axes))),
            target=(len(axes), *map(axes.index, ends)),
        )

    def __call__(self, rows: torch.Tensor) -> torch.Tensor:
        """P[., target] of rows P[., given], shape (rows, sizes of the target)."""
        import torch

        for grouping in self.above:
            rows = grouping.spread(rows)
        found: torch.Tensor = torch.einsum(rows, self.given, self.conditional, self.axes, self.target)
        for grouping in self.below:
            found = grouping.gather(found)
        return found


def _behind_rows(groupings: Sequence[_Grouping]) -> tuple[_Grouping, ...]:
    """The same groupings, after a first axis for rows."""
    return tuple(replace(grouping, axis=grouping.axis + 1) for grouping in groupings)


class _Steps:
    """Moves from separator to separator, each computed once."""

    def __init__(self, beliefs: Beliefs) -> None:
        self.beliefs, self.tree = beliefs, beliefs.tree
        self._known: dict[tuple[int, Clique, Clique], _Move] = {}

    def neighbours(self, index: int) -> list[tuple[int, Clique]]:
        up = [(self.tree.parents[index], self.tree.separators[index])] if self.tree.parents[index] >= 0 else []
        return up + [(child, self.tree.separators[child]) for child in self.tree.children[index]]

    def move(self, index: int, given: Clique, target: Clique) -> _Move:
        key = (index, given, target)
        if key not in self._known:
            self._known[key] = _Move.of(self.beliefs, index, given, target)
        return self._known[key]

    def singles(self, rows: torch.Tensor, index: int, given: Clique, targets: Sequence[int]) -> torch.Tensor:
        """P[., target] of rows P[., given] for several attributes that are not given, with concatenated states."""
        import torch

        moves = [self.move(index, given, (target,)) for target in targets]
        # One product for all of them, except for targets whose groups are given.
        plain = [move for move in moves if not move.above]
        products: Iterator[torch.Tensor] = iter(())
        if plain:
            matrices = [move.conditional.reshape(-1, move.conditional.shape[-1]) for move in plain]
            values = rows.reshape(len(rows), -1) @ torch.cat(matrices, dim=1)
            products = iter(torch.split(values, [matrix.shape[1] for matrix in matrices], 1))
        return torch.cat([move(rows) if move.above else next(products) for move in moves], dim=1)


def _walk(
    steps: _Steps, start: int, pairs: set[Clique], owner: dict[int, int]
) -> Iterator[tuple[Clique, torch.Tensor]]:
    """The pairs' marginals, from rows for all states of their attributes that first occur in the clique `start`."""
    import torch

    tree = steps.tree
    sources = sorted({attribute for pair in pairs for attribute in pair if owner[attribute] == start})
    ends = list(accumulate((tree.sizes[attribute] for attribute in sources), initial=0))
    wanted: dict[int, list[int]] = {}
    for a, b in pairs:
        for source, other in ((a, b), (b, a)):
            if owner[source] == start and owner[other] != start:
                wanted.setdefault(owner[other], []).append(other)
    targets = {clique: sorted(set(others)) for clique, others in wanted.items()}
    needed = _on_path(tree, start, set(targets))
    queue: list[tuple[int, int, Clique, torch.Tensor]] = []
    for neighbour, separator in steps.neighbours(start):
        if neighbour in needed:
            parts = [_labelled(steps.beliefs, start, source, separator) for source in sources]
            queue.append((start, neighbour, separator, torch.cat(parts)))
    while queue:
        before, index, given, rows = queue.pop()
        others = targets.get(index, [])
        if others:
            values = steps.singles(rows, index, given, others)
            for other, block in zip(
                others, torch.split(values, [tree.sizes[other] for other in others], 1), strict=True
            ):
                for place, source in enumerate(sources):
                    pair = (min(source, other), max(source, other))
                    if pair in pairs:
                        found = block[ends[place] : ends[place + 1]]
                        yield pair, (found if source < other else found.T)
        for neighbour, separator in steps.neighbours(index):
            if neighbour != before and neighbour in needed:
                queue.append((index, neighbour, separator, steps.move(index, given, separator)(rows)))


def _on_path(tree: JunctionTree, start: int, targets: set[int]) -> set[int]:
    needed: set[int] = set()
    for target in targets:
        a, b = start, target
        path = {a, b}
        while a != b and max(tree.depths[a], tree.depths[b]) > 0:
            if tree.depths[a] >= tree.depths[b]:
                a = tree.parents[a]
            else:
                b = tree.parents[b]
            path |= {a, b}
        if a == b:
            needed |= path
    return needed


def _labelled(beliefs: Beliefs, index: int, source: int, separator: Clique) -> torch.Tensor:
    """P[source, separator] within a clique, shape (states of the source, sizes of the separator)."""
    columns = beliefs.tree.attributes.columns
    held = next((name for name in (source, source + columns) if name in separator), None)
    if held is None:
        return _read(beliefs, index, (source, *separator))
    place = separator.index(held)
    joint = _read(beliefs, index, (source, *separator[:place], *separator[place + 1 :])).unsqueeze(place + 1)
    inside = _membership(beliefs.tree.attributes, source, held, joint)
    return joint * inside.view([len(inside)] + [inside.shape[1] if n == place else 1 for n in range(len(separator))])


def _membership(attributes: Attributes, column: int, name: int, like: torch.Tensor) -> torch.Tensor:
    """1 for each state of a column and itself, or its group; shape (states, size of the attribute `name`)."""
    import torch

    found = torch.eye(attributes.sizes[column], dtype=like.dtype, device=like.device)
    for grouping in _groupings(attributes, (column,), (name,), like.device):
        found = replace(grouping, axis=1).gather(found)
    return found


def _read(beliefs: Beliefs, home: int, clique: Clique) -> torch.Tensor:
    """Marginal of a clique that the tree's clique `home` contains."""
    tree, values = beliefs.tree, beliefs.cliques[home]
    part = _Part.of(tree.attributes, tree.axes[home], clique, values.device)
    above = tuple(range(part.level + 1, values.dim()))
    return part.gather(values.sum(dim=above) if above else values)


def _collected(beliefs: Beliefs, index: int, wanted: Clique) -> tuple[torch.Tensor, Clique]:
    """P[wanted attributes | separator] of a clique's subtree, and its axes; () if the subtree has none of them."""
    tree = beliefs.tree
    below = [part for part in (_collected(beliefs, child, wanted) for child in tree.children[index]) if part[1]]
    axes = tree.axes[index]
    brought = set(axes) - set(tree.separators[index])
    kept = (brought & set(wanted)).union(*(set(part_axes) & set(wanted) for _, part_axes in below)) - set(
        tree.separators[index]
    )
    if not kept:
        return beliefs.log_partition, ()
    shape = tree.attributes.shape(axes)
    target = (*tree.separators[index], *sorted(kept))
    parts = [(beliefs.conditionals[index].view(shape), axes), *below]
    # If a separator has the groups of a column of the clique: the group of each state.
    named = {*target, *(name for _, part_axes in below for name in part_axes)}
    for column in axes:
        name = column + tree.attributes.columns
        if name in named:
            inside = _membership(tree.attributes, column, name, beliefs.conditionals[index])
            parts.append((inside, (column, name)))
    return _einsum(parts, target), target


def _einsum(parts: Sequence[tuple[torch.Tensor, Clique]], target: Clique) -> torch.Tensor:
    """Product of arrays over the given axes, summed to the target's; renumbered, as torch accepts few labels."""
    import torch

    operands: list[object] = []
    labels = {attribute: number for number, attribute in enumerate(sorted({a for _, axes in parts for a in axes}))}
    for values, axes in parts:
        operands += [values, [labels[attribute] for attribute in axes]]
    return torch.einsum(*operands, [labels[attribute] for attribute in target])
