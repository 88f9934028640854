"""Positions of a graph's boxes, from left to right: each to the right of what it was made from.

What belongs here: ranks, the order within a rank, and positions. What does not: the look of boxes and arrows
(`drawing`).

The steps are those of Sugiyama, Tagawa and Toda (1981): reverse arrows of cycles, rank every node by its longest path,
give an arrow that passes ranks a place in each, and order each rank by the mean of the neighbours, in several sweeps.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

_SWEEPS = 6
_PASSING = 0.45
"""Height of a passing arrow, in rows."""

Arrow = tuple[str, str]
"""From the source to what was made from it."""


@dataclass(frozen=True)
class Layout:
    """Positions of a graph's nodes.

    Attributes:
        rank: column of each node, from 0 at the left.
        row: vertical position of each node in rows; a passing arrow takes a part of a row.
        ways: for each arrow its vertical positions in the ranks between its ends, from left to right.
        ranks, rows: the size of the whole.
    """

    rank: Mapping[str, int]
    row: Mapping[str, float]
    ways: Mapping[Arrow, Sequence[float]]
    ranks: int
    rows: float


def layout(nodes: Sequence[str], arrows: Sequence[Arrow]) -> Layout:
    """Positions for all nodes; the same input gives the same positions.

    Args:
        nodes: names without repetition.
        arrows: may contain cycles, repetitions, loops, and unknown nodes, which are ignored.
    """
    known = set(nodes)
    real = sorted({(a, b) for a, b in arrows if a != b and a in known and b in known})
    forward = _opened(nodes, real)
    rank = _ranks(nodes, forward)
    chains = {arrow: _chain(arrow, rank) for arrow in forward}
    steps = [step for chain in chains.values() for step in pairwise(chain)]
    columns = _columns(nodes, rank, chains)
    ordered = _ordered(columns, steps)
    height = {item: 1.0 if item in known else _PASSING for column in ordered for item in column}
    row, rows = _rows(ordered, height, steps)
    ways = {}
    for arrow in real:
        chain = chains.get(arrow) or list(reversed(chains[arrow[1], arrow[0]]))
        ways[arrow] = tuple(row[item] for item in chain[1:-1])
    return Layout(rank, {node: row[node] for node in nodes}, ways, len(ordered), rows)


def _opened(nodes: Sequence[str], arrows: Sequence[Arrow]) -> list[Arrow]:
    """The arrows without cycles: an arrow back into the current walk is reversed."""
    children = defaultdict(list)
    for parent, child in arrows:
        children[parent].append(child)
    state: dict[str, int] = {}
    turned = set()
    for start in nodes:
        walk = [(start, iter(children[start]))] if start not in state else []
        state.setdefault(start, 1)
        while walk:
            here, rest = walk[-1]
            following = next(rest, None)
            if following is None:
                state[here] = 2
                walk.pop()
            elif following not in state:
                state[following] = 1
                walk.append((following, iter(children[following])))
            elif state[following] == 1:
                turned.add((here, following))
    return sorted({(b, a) if (a, b) in turned else (a, b) for a, b in arrows})


def _ranks(nodes: Sequence[str], arrows: Sequence[Arrow]) -> dict[str, int]:
    """Ranks by the longest path from the left; then nodes without a parent move right, next to their children."""
    parents, children = defaultdict(list), defaultdict(list)
    for parent, child in arrows:
        parents[child].append(parent)
        children[parent].append(child)
    rank = dict.fromkeys(nodes, 0)
    left = {node: len(parents[node]) for node in nodes}
    ready = [node for node in nodes if not left[node]]
    for node in ready:
        for child in children[node]:
            rank[child] = max(rank[child], rank[node] + 1)
            left[child] -= 1
            if not left[child]:
                ready.append(child)
    for node in nodes:
        if not parents[node] and children[node]:
            rank[node] = min(rank[child] for child in children[node]) - 1
    return rank


def _chain(arrow: Arrow, rank: Mapping[str, int]) -> list[str]:
    """An arrow's ends with a place in each rank between. No node's name contains the line break that marks a place."""
    parent, child = arrow
    between = [f"{parent}\n{child}\n{step}" for step in range(rank[parent] + 1, rank[child])]
    return [parent, *between, child]


def _columns(nodes: Sequence[str], rank: Mapping[str, int], chains: Mapping[Arrow, Sequence[str]]) -> list[list[str]]:
    columns: list[list[str]] = [[] for _ in range(max(rank.values(), default=-1) + 1)]
    for node in nodes:
        columns[rank[node]].append(node)
    for (parent, _), chain in chains.items():
        for step, place in enumerate(chain[1:-1], rank[parent] + 1):
            columns[step].append(place)
    return columns


def _ordered(columns: list[list[str]], steps: Sequence[Arrow]) -> list[list[str]]:
    """Orders each column by the mean position of its neighbours in the previous and the next column, alternately."""
    before, after = defaultdict(list), defaultdict(list)
    for left, right in steps:
        before[right].append(left)
        after[left].append(right)
    for sweep in range(_SWEEPS):
        forth = sweep % 2 == 0
        order = range(1, len(columns)) if forth else range(len(columns) - 2, -1, -1)
        neighbours = before if forth else after
        for index in order:
            beside = {item: place for place, item in enumerate(columns[index - 1 if forth else index + 1])}
            columns[index] = _by_neighbours(columns[index], neighbours, beside)
    return columns


def _by_neighbours(
    column: Sequence[str], neighbours: Mapping[str, Sequence[str]], beside: Mapping[str, int]
) -> list[str]:
    """Sorts by the neighbours' mean; an item without neighbours keeps its position."""

    def middle(place: int, item: str) -> float:
        places = [beside[other] for other in neighbours.get(item, ())]
        return sum(places) / len(places) if places else float(place)

    return [item for _, _, item in sorted((middle(place, item), place, item) for place, item in enumerate(column))]


def _rows(
    columns: Sequence[Sequence[str]], height: Mapping[str, float], steps: Sequence[Arrow]
) -> tuple[dict[str, float], float]:
    """Vertical positions: columns stacked and centred, then each item moved toward its neighbours if there is room."""
    tall = max((sum(height[item] for item in column) for column in columns), default=0.0)
    row: dict[str, float] = {}
    for column in columns:
        at = (tall - sum(height[item] for item in column)) / 2
        for item in column:
            row[item] = at + height[item] / 2
            at += height[item]
    beside = defaultdict(list)
    for left, right in steps:
        beside[left].append(right)
        beside[right].append(left)
    for _ in range(_SWEEPS):
        for column in columns:
            for index, item in enumerate(column):
                if not beside[item]:
                    continue
                wished = sum(row[other] for other in beside[item]) / len(beside[item])
                low, high = height[item] / 2, tall - height[item] / 2
                if index:
                    above = column[index - 1]
                    low = row[above] + (height[above] + height[item]) / 2
                if index + 1 < len(column):
                    below = column[index + 1]
                    high = row[below] - (height[below] + height[item]) / 2
                row[item] = min(max(wished, low), high)
    return row, tall
