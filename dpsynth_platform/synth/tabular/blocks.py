"""Blocks of columns that are counted together, to count many cliques with fewer passes over the records.

What belongs here: the choice of blocks, and cliques' counts as sums over a block's, which are exact. What does not:
counting.

Neighbouring columns with few states form groups, and two groups a block: all pairs of 20 columns of 11 states are in 45
blocks of four columns.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence

from dpsynth_platform.synth.tabular.junction import Clique
from dpsynth_platform.synth.tabular.noise import Counts

GROUP_CELLS = 2**8
BLOCK_CELLS = 2**16
"""So few that a block's counts stay in the processor's cache."""


def blocks_of(sizes: Sequence[int], cliques: Collection[Clique]) -> dict[Clique, list[Clique]]:
    """The cliques by the block (ascending columns) in which they are counted; a single clique is its own block."""
    group = _groups(sizes)
    blocks: dict[Clique, list[Clique]] = {}
    block_with: dict[int, Clique] = {}
    groups_of = {clique: {group[index] for index in clique} for clique in cliques}
    for clique, inside in sorted(groups_of.items(), key=lambda item: -len(item[1])):
        columns = tuple(index for index, number in enumerate(group) if number in inside)
        if len(inside) == 1:
            columns = block_with.get(min(inside), columns)
        if math.prod(sizes[index] for index in columns) > BLOCK_CELLS:
            columns = clique
        else:
            block_with |= dict.fromkeys(inside, columns)
        blocks.setdefault(columns, []).append(clique)
    return {block if len(inside) > 1 else inside[0]: inside for block, inside in blocks.items()}


def marginals_of(blocks: Mapping[Clique, list[Clique]], counts: Mapping[Clique, Counts]) -> dict[Clique, Counts]:
    """The cliques' counts from the blocks' counts, each of the shape of its columns' states."""
    found = {}
    for block, cliques in blocks.items():
        for clique in cliques:
            others = tuple(place for place, index in enumerate(block) if index not in clique)
            left = [index for index in block if index in clique]
            found[clique] = counts[block].sum(axis=others).transpose([left.index(index) for index in clique])
    return found


def _groups(sizes: Sequence[int]) -> list[int]:
    group, cells = [0] * len(sizes), 1
    for index, size in enumerate(sizes):
        alone = index == 0 or cells * size > GROUP_CELLS
        group[index] = 0 if index == 0 else group[index - 1] + alone
        cells = size if alone else cells * size
    return group
