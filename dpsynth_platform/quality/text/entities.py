"""Counts of named entities in texts, as the platform's scrubber finds them.

What belongs here: counting findings by type. What does not: finding (`scrub`), comparing (`divergences`).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dpsynth_platform.contracts.scrubbing import ENTITY_TYPES
from dpsynth_platform.foundation.progress import Progress, silent
from dpsynth_platform.quality.text.words import Codes
from dpsynth_platform.scrub.detection import Document
from dpsynth_platform.scrub.parallel import ParallelDetector

TYPES = tuple(ENTITY_TYPES)
_PERCENT = 100


def entity_counts(texts: Sequence[str], progress: Progress = silent) -> Codes:
    """Findings of each type of `TYPES` in each text, shape (texts, types).

    `progress` is called with percents. Raises `SourceError` if a detector process ends unexpectedly.
    """
    counts = np.zeros((len(texts), len(TYPES)), dtype=np.int64)
    # A hundredth of the texts is work for all cores, and one step of the progress.
    shares = [part for part in np.array_split(np.arange(len(texts)), _PERCENT) if part.size]
    with ParallelDetector() as detector:
        found = detector.each(shares, lambda rows: [Document(texts[at]) for at in rows])
        for done, (rows, findings) in enumerate(found, start=1):
            for at, items in zip(rows, findings, strict=True):
                for item in items:
                    counts[at, TYPES.index(item.entity)] += 1
            progress("entities", done, len(shares))
    return counts
