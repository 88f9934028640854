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

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from dpsynth_platform.foundation.pixels import Pixels
from dpsynth_platform.synth.evolution.loop import Features
from dpsynth_platform.synth.evolution.votes import NOBODY, histogram, with_noise
from dpsynth_platform.synth.images.encoders import LENGTH, Encoder, WholeFeatures
from dpsynth_platform.synth.tabular.noise import Counts


@dataclass(frozen=True)
class ImageVoters:
    """The voting records, as features. Sensitive, including their number.

    Attributes:
        features: shape (records, features).
        groups: the group of candidates that each record votes for, or `NOBODY`; shape (records,).
        owners: each record's owner, as any number; None where records have several, and each vote counts in full.
    """

    features: WholeFeatures = field(repr=False)
    groups: npt.NDArray[np.int64] = field(repr=False)
    owners: npt.NDArray[np.int64] | None = field(repr=False)

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

    def votes(self, candidates: Features, groups: Sequence[int]) -> Counts:
        """Exact votes for each candidate, in `RECORD_PARTS` of one vote; the caller must add noise.

        A record votes for the candidate of its group at the least Euclidean distance, the first of several; if its
        group has no candidate, it does not vote.

        Args:
            candidates: shape (candidates, features), rows of length 1 at most.
            groups: of each candidate.
        """
        return histogram(self._chosen(whole_candidates(candidates), np.asarray(groups)), self.owners, len(candidates))

    def _chosen(self, candidates: WholeFeatures, groups: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """The candidate of each record, or `NOBODY`: the least |c|^2 - 2 x c, which is |x - c|^2 less |x|^2."""
        chosen = np.full(len(self.groups), NOBODY, dtype=np.int64)
        for group in np.unique(groups).tolist():
            places, records = np.flatnonzero(groups == group), np.flatnonzero(self.groups == group)
            compared = candidates[places].astype(np.float32)
            products = self.features[records].astype(np.float32) @ compared.T
            squares = (candidates[places].astype(np.int64) ** 2).sum(axis=1)
            chosen[records] = places[(squares - 2 * products.astype(np.int64)).argmin(axis=1)]
        return chosen


def whole_candidates(features: Features) -> WholeFeatures:
    """Candidates' features as whole numbers, of length `LENGTH` at most."""
    found: WholeFeatures = np.trunc(features.astype(np.float64) * LENGTH).astype(np.int16)
    return found


def noisy_votes(voters: ImageVoters, candidates: Features, groups: Sequence[int], sigma: float) -> Counts:
    """The noisy histogram, in `RECORD_PARTS` of one vote: the mechanism of `GaussianVotesEvent`.

    Args:
        candidates: see `ImageVoters.votes`.
        sigma: the noise's deviation, in votes.
    """
    return with_noise(voters.votes(candidates, groups), sigma)
