"""Noisy votes of private pictures for public candidates.

What belongs here: the features of private pictures, and the choice of each. What does not: candidates (`evolution`,
`foundations`), scaling an owner's votes and their noise (`synth.evolution.votes`), and reading a table.

**No private picture can become a candidate.** Of a picture, only its features stay here; foundations take no pixels,
and this module imports none of them.

**A record's vote depends on that record only**, given the candidates. Features are whole numbers (`encoders`), and so
are products of two of them: by Cauchy and Schwarz, every partial sum is at most |x| |c| <= 2^24, which float32 holds
exactly. So all records are compared at once, and one owner more or less changes the histogram by that owner's own
votes, which `synth.evolution.votes.scaled` limits to the length of one vote.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from dpsynth_platform.foundation.pixels import Pixels
from dpsynth_platform.synth.evolution.loop import Features
from dpsynth_platform.synth.evolution.votes import NOBODY, VotingRecords
from dpsynth_platform.synth.images.encoders import LENGTH, Encoder, WholeFeatures


class ImageVoters(VotingRecords):
    """Private pictures, by `WholeFeatures`; a record votes for the candidate at the least Euclidean distance."""

    @classmethod
    def of(
        cls,
        pixels: Pixels,
        groups: npt.NDArray[np.int64],
        owners: npt.NDArray[np.int64] | None,
        encoder: Encoder,
    ) -> ImageVoters:
        """Args: see the attributes; a record of the group `NOBODY` has no vote."""
        return cls(encoder.features(pixels), np.asarray(groups, dtype=np.int64), owners)

    def chosen(self, candidates: Features, groups: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """By the least |c|^2 - 2 x c, which is |x - c|^2 less |x|^2; candidates have the length 1 at most."""
        numbers = whole_candidates(candidates)
        chosen = np.full(len(self.groups), NOBODY, dtype=np.int64)
        for group in np.unique(groups).tolist():
            places, records = np.flatnonzero(groups == group), np.flatnonzero(self.groups == group)
            compared = numbers[places].astype(np.float32)
            products = self.features[records].astype(np.float32) @ compared.T
            squares = (numbers[places].astype(np.int64) ** 2).sum(axis=1)
            chosen[records] = places[(squares - 2 * products.astype(np.int64)).argmin(axis=1)]
        return chosen


def whole_candidates(features: Features) -> WholeFeatures:
    """Candidates' features as whole numbers, of length `LENGTH` at most."""
    found: WholeFeatures = np.trunc(features.astype(np.float64) * LENGTH).astype(np.int16)
    return found
