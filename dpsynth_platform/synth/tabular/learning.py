"""Learning the values of columns that no contract may list: partition selection.

What belongs here: the first part of a mechanism, which completes the domain for all others. What does not: noise,
threshold and cost (`privacy.partitions`), and other counts of the column.

Every value that occurs is counted, gets noise, and is kept if its noisy count reaches the plan's threshold; at most
`most` values with the largest noisy counts are kept. Only the set of values is used, in alphabetical order. Other
values count as missing. A value of only one person stays hidden up to the plan's slack, however often it occurs within
the bound b: no rule requires a number of people, since only noisy counts decide.
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
    """The records' domain with all values known; learned values are on disk before they are used.

    Raises `GrantRefused` if the plan's domain lacks the rule for learning.
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
    """The values with a noisy count from the threshold up, at most the `most` largest, in alphabetical order.

    `counts` (sensitive) are records with each value that occurs, in units of 1/`parts` record.
    """
    occurring = sorted(counts)
    exact = np.array([counts[value] for value in occurring], dtype=np.int64)
    noisy = sample_rounded_gaussian(exact, learning.sigma * parts).tolist()
    least = learning.threshold * parts
    passed = [(-count, value) for count, value in zip(noisy, occurring, strict=True) if count >= least]
    return tuple(sorted(value for _, value in sorted(passed)[:most]))
