"""Copies of texts: do members come back in the release word for word, more often than texts that were not in?

What belongs here: counting, by the words alone. What does not: texts that come back in part, which the attacks see, and
copies of a table's rows (`audit.tables.copies`).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dpsynth_platform.audit.tables.copies import Copies, count_copies
from dpsynth_platform.audit.texts.ngrams import words


def count_text_copies(members: Sequence[str], held_out: Sequence[str], synthetic: Sequence[str]) -> Copies:
    """Compares how often either group's texts stand in the release as a whole, but for blanks and capitals.

    Args:
        members: texts that were in.
        held_out: texts of the same distribution that were not.
        synthetic: released texts.

    Raises:
        AccountingError: a group is empty.
    """
    numbers: dict[tuple[str, ...], int] = {}
    inside, outside, released = (
        np.array([[numbers.setdefault(tuple(words(text)), len(numbers))] for text in texts], np.int32).reshape(-1, 1)
        for texts in (members, held_out, set(synthetic))
    )
    return count_copies(inside, outside, released)
