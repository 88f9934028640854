"""Learning which values a column has, where nobody may list them: partition selection.

What belongs here: the first part of a mechanism, which leaves the domain that all others work on. What does not: its
noise and threshold and what they cost (`privacy.partitions`), and what a column is counted for otherwise.

Every value that occurs is counted, gets noise, and is kept if its noisy count reaches the threshold in the plan; of
more than `most` such values, those with the largest noisy counts are kept. Only which ones they are is used, in the
order of their letters: neither their counts nor the order of records tells anything. What is not kept counts as
missing.

A value that only one person has stays hidden up to the plan's slack, however often that person has it within the bound
b. There is no rule such as "of at least so many people": counts are noisy before they decide.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from dpsynth_platform.foundation.errors import GrantRefused
from dpsynth_platform.foundation.progress import Progress, silent
from dpsynth_platform.privacy.partitions import Learning
from dpsynth_platform.synth.tabular.counting import Records
from dpsynth_platform.synth.tabular.domain import Domain
from dpsynth_platform.synth.tabular.measurements import MeasurementLog
from dpsynth_platform.synth.tabular.noise import sample_rounded_gaussian

STAGE = "learning values"


def learned_domain(records: Records, log: MeasurementLog, progress: Progress = silent) -> Domain:
    """The records' domain with all values known: those that are learned are on disk before they are used.

    Args:
        records: over the plan's domain, which says how values are to be learned.
        log: where the values go.
        progress: called after each column.

    Raises:
        GrantRefused: the domain does not say how.
    """
    domain = records.domain
    if not domain.unknown:
        return domain
    progress(STAGE, 0, len(domain.unknown))
    values = {}
    for done, (index, counts) in enumerate(records.values().items()):
        column = domain.columns[index]
        if column.learning is None or column.most is None:
            raise GrantRefused("the plan has no threshold for values to be learned; materialize the line from raw")
        values[index] = values_shown(counts, column.learning, column.most, records.parts)
        log.values(index, values[index])
        progress(STAGE, done + 1, len(domain.unknown))
    return domain.with_values(values)


def values_shown(counts: Mapping[str, int], learning: Learning, most: int, parts: int = 1) -> tuple[str, ...]:
    """The values with a noisy count from the threshold up, the largest `most` of them, in the order of their letters.

    Args:
        counts: records with each value that occurs, in `parts`. Sensitive.
        learning: noise and threshold, in records.
        most: how many values are kept.
        parts: what counts are in: so many parts of a record.
    """
    occurring = sorted(counts)
    exact = np.array([counts[value] for value in occurring], dtype=np.int64)
    noisy = sample_rounded_gaussian(exact, learning.sigma * parts).tolist()
    least = learning.threshold * parts
    passed = [(-count, value) for count, value in zip(noisy, occurring, strict=True) if count >= least]
    return tuple(sorted(value for _, value in sorted(passed)[:most]))
