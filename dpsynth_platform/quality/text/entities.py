"""Kinds of named entities that texts mention, as the platform's own scrubber finds them.

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
    """How often each text mentions each type of `TYPES`, shape (texts, types).

    Args:
        progress: called with the stage `entities` and percents.

    Raises:
        SourceError: a process that looks for them ended too early.
    """
    counts = np.zeros((len(texts), len(TYPES)), dtype=np.int64)
    # A hundredth of the texts at a time: work for all cores, and a step of the progress.
    shares = [part for part in np.array_split(np.arange(len(texts)), _PERCENT) if part.size]
    with ParallelDetector() as detector:
        found = detector.each(shares, lambda rows: [Document(texts[at]) for at in rows])
        for done, (rows, findings) in enumerate(found, start=1):
            for at, items in zip(rows, findings, strict=True):
                for item in items:
                    counts[at, TYPES.index(item.entity)] += 1
            progress("entities", done, len(shares))
    return counts
