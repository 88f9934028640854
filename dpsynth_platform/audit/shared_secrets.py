"""Secrets that several owners share: how many of them come out of a release or of a model.

What belongs here: counting what comes out of the secrets of `audit.shared_secrets`, included and held-out ones. What
does not: making them (`audit.canaries`), and the words of the report (`audit.risk`).

A company's telephone number stands in the records of many owners. A guarantee for one owner covers what that owner
adds, not what all of them hold. The guide (section 7.5.1, footnote 12) therefore advises canaries in a multiple of the
contribution bound, such as 4 b records. No owner may hold so many: here each of 4 owners holds b. What is promised to
them together is the group's (epsilon, delta), which grows fast (`privacy.units.group_guarantee`): a secret that comes
out is no evidence against the guarantee for one owner, so no verdict depends on it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np
import pyarrow as pa

from dpsynth_platform.audit.attacks import Floats, overlap_scores
from dpsynth_platform.audit.canaries import INCLUDED, OWNER, SHARED, CanarySet
from dpsynth_platform.audit.risk import NEAR, SharedFound
from dpsynth_platform.privacy.units import group_guarantee


def count_shared(
    canaries: CanarySet,
    text_column: str,
    written: Iterable[str],
    *,
    epsilon: float,
    delta: float,
    continued: Callable[[pa.Table], Floats] | None = None,
) -> tuple[SharedFound, ...]:
    """What came out of the secrets, for each number of owners in increasing order; empty where there are none.

    Args:
        written: the synthetic texts.
        epsilon, delta: what is claimed for one owner.
        continued: how much of each text a trained model continues from its first half (`reconstruction.reconstruct`),
            given one record a secret; None: no model was trained.
    """
    table = canaries.secrets
    if not table.num_rows:
        return ()
    numbers = table[SHARED].to_numpy()
    distinct, first = np.unique(numbers, return_index=True)
    one_each = table.take(first)
    owners = np.array(table[OWNER].to_pylist())
    sizes = np.array([np.unique(owners[numbers == number]).size for number in distinct])
    included = np.asarray(one_each[INCLUDED].to_numpy(zero_copy_only=False), dtype=bool)
    overlap = overlap_scores(one_each[text_column].to_pylist(), (text for text in written if text))
    near = None if continued is None else continued(one_each) >= NEAR
    found = []
    for size in np.unique(sizes).tolist():
        groups = [(sizes == size) & included, (sizes == size) & ~included]
        traces, wholes = ([int((hit & group).sum()) for group in groups] for hit in (overlap > 0, overlap == 1))
        of_group = group_guarantee(epsilon, delta, size)
        found.append(
            SharedFound(
                owners=size,
                members=int(groups[0].sum()),
                held_out=int(groups[1].sum()),
                traces=(traces[0], traces[1]),
                wholes=(wholes[0], wholes[1]),
                continued=None if near is None else (int(near[groups[0]].sum()), int(near[groups[1]].sum())),
                epsilon=of_group[0],
                delta=of_group[1],
            )
        )
    return tuple(found)
