"""Copies of texts: does the release contain members word for word more often than other texts?

What belongs here: counting, by words alone. What does not: partial copies, which the attacks find, and copies of a
table's rows (`audit.tables.copies`).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dpsynth_platform.audit.tables.copies import Copies, count_copies
from dpsynth_platform.audit.texts.ngrams import words


def count_text_copies(members: Sequence[str], held_out: Sequence[str], synthetic: Sequence[str]) -> Copies:
    """Compares how often the release contains whole texts of each group, ignoring blanks and capitals.

    Raises:
        AccountingError: a group is empty.
    """
    numbers: dict[tuple[str, ...], int] = {}
    inside, outside, released = (
        np.array([[numbers.setdefault(tuple(words(text)), len(numbers))] for text in texts], np.int32).reshape(-1, 1)
        for texts in (members, held_out, set(synthetic))
    )
    return count_copies(inside, outside, released)
