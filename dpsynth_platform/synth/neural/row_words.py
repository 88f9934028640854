"""Rows as words for a language model: a name for each column, and a text for each of its states.

What belongs here: these texts, for columns of all types. What does not: tokens (`row_tokens`), and which values are
states (`tabular.compression`). The texts are not read back: a drawn row is known by its states.

A row is written as in GReaT (Borisov et al. 2023): `column is value, column is value`. A range of numbers is written as
the number in it with the fewest digits, so that a model sees magnitudes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from decimal import ROUND_CEILING, Decimal

import numpy as np

from dpsynth_platform.synth.tabular.column_states import ColumnStates
from dpsynth_platform.synth.tabular.domain import ColumnDomain, Domain

MISSING, OTHERS, EMPTY = "missing", "other", "empty"
"""Words for a missing value, for values too rare to have states of their own, and for a value of blanks alone."""
_MOST_DIGITS = 17
_FEW_CELLS = 64


def words_of(column: ColumnDomain, states: ColumnStates) -> list[str]:
    """A text for each state of a column, all different, without commas."""
    return _unlike(_word(column, np.flatnonzero(states.state_of == state).tolist()) for state in range(states.size))


def ranks_of(column: ColumnDomain, states: ColumnStates) -> list[int | None]:
    """The place of each state among its column's ranges of numbers or moments, from 0; None of others.

    Hours and weekdays have none: their last is near their first.
    """
    found: list[int | None] = [None] * states.size
    if column.ordered and column.part_of is None:
        in_order = dict.fromkeys(states.state_of[: column.missing].tolist())
        for rank, state in enumerate(in_order):
            found[state] = rank
    return found


def _unlike(words: Iterable[str]) -> list[str]:
    found: dict[str, None] = {}
    for word in words:
        text = " ".join(word.replace(",", ";").split()) or EMPTY
        number, unique = 1, text
        while unique in found:
            number += 1
            unique = f"{text} ({number})"
        found[unique] = None
    return list(found)


def possible_words(column: ColumnDomain) -> list[str] | None:
    """All texts that states of a column may have, whatever is counted; None where these are not known, or too many."""
    cells = range(column.missing)
    if column.most is not None or (column.ordered and column.derived is None and len(cells) > _FEW_CELLS):
        return None
    if column.ordered and column.derived is None:  # neighbouring cells may be one state
        found = [_word(column, (first, last)) for first in cells for last in cells[first:]]
    else:
        found = [column.label(cell) for cell in cells]
    return [*_unlike(dict.fromkeys([*found, MISSING]) if column.ordered else [*found, OTHERS, MISSING])]


def order_of(domain: Domain, target: str | None) -> list[int]:
    """The order in which rows are written: the target first, then the others in their own order."""
    return sorted(range(len(domain)), key=lambda index: domain.columns[index].name != target)


def _word(column: ColumnDomain, cells: Sequence[int]) -> str:
    present = [cell for cell in cells if cell != column.missing]
    if not present:
        return MISSING
    if column.most is not None:  # not learned yet: as long as a value may be is for the tokens to say
        return f"value {present[0]}"
    if not column.ordered:
        return column.label(present[0]) if len(cells) == 1 else OTHERS
    if column.derived is not None:
        return column.label(present[len(present) // 2])
    low, high = column.edges[present[0]], column.edges[present[-1] + 1]
    if not column.scale.whole:
        return _roundest(Decimal(low), Decimal(high))
    first, last = int(low), int(high) - 1
    if column.kind not in ("integer", "float"):  # days, moments and times
        return column.scale.shown((first + last) // 2)
    return column.scale.shown(int(Decimal(_roundest(Decimal(first), Decimal(last + 1)))))


def _roundest(low: Decimal, high: Decimal) -> str:
    """The number from `low` to below `high` with the fewest digits, the nearest to the middle among these."""
    middle = (low + high) / 2
    for digits in range(1, _MOST_DIGITS + 1):
        step = Decimal(1).scaleb(max(abs(low), abs(high)).adjusted() - digits + 1)
        least = (low / step).to_integral_value(ROUND_CEILING) * step
        if least < high:
            nearest = round(middle / step) * step
            return f"{nearest if low <= nearest < high else least:f}"
    return f"{low:f}"
