"""The sealed plan of a noisy mean embedding of pictures: its sums, their noise, and what that costs.

What belongs here: public numbers only, and the event made from them. What does not: features and sums
(`embedding_sums`), and the network that follows them (`embedding_network`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from dpsynth_platform.foundation.digests import canonical_digest
from dpsynth_platform.foundation.errors import AccountingError
from dpsynth_platform.foundation.image_form import ImageForm
from dpsynth_platform.privacy.calibration import noise_for
from dpsynth_platform.privacy.events import DpEvent
from dpsynth_platform.privacy.guarantee import Guarantee
from dpsynth_platform.synth import counted
from dpsynth_platform.synth.images.moments_plan import LARGEST_NOISE, event_of, rounded_up

COUNTS, EMBEDDING = "class-counts", "embedding"
SHARES: Mapping[str, float] = {COUNTS: 0.01, EMBEDDING: 0.99}
"""Each query's share of the precision, in the order of measurement."""
SEED = 2021
"""Of the public frequencies."""
MOST_VALUES = 2**22 - 1
"""Values of a picture whose products with frequencies are exact."""


@dataclass(frozen=True)
class EmbeddingPlan:
    """The sealed plan.

    Attributes:
        shape: height, width and channels of the pictures.
        classes: their number; 1 where there is no label.
        frequencies: random ones, each of which gives two features.
        seed: of the frequencies. Public.
        steps: of the network's training: post-processing.
        noise: the noise multiplier of each query by its name.
    """

    shape: tuple[int, int, int]
    classes: int
    frequencies: int
    seed: int
    steps: int
    noise: Mapping[str, float]

    @property
    def form(self) -> ImageForm:
        return ImageForm(*self.shape)

    @property
    def digest(self) -> str:
        return canonical_digest(asdict(self) | {"shape": list(self.shape)})

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> EmbeddingPlan:
        """Raises `TypeError` if a key is missing or unknown."""
        return cls(**{**document, "shape": tuple(document["shape"])})


def planned(
    form: ImageForm,
    classes: int,
    frequencies: int,
    steps: int,
    guarantee: Guarantee,
    columns: counted.Columns = None,
) -> EmbeddingPlan:
    """The plan whose whole cost, with that of the counted columns, meets a guarantee.

    Raises:
        AccountingError: the pictures are too large, or no noise meets the guarantee.
    """
    if form.values > MOST_VALUES:
        raise AccountingError(
            f"pictures of {form.height} x {form.width} x {form.channels} values; accepted: {MOST_VALUES} in all, so "
            "declare a smaller size"
        )

    def noise_of(total: float) -> dict[str, float]:
        return {name: rounded_up(total / math.sqrt(share)) for name, share in SHARES.items()}

    def costs(total: float) -> DpEvent:
        return counted.together(columns, event_of(noise_of(total), guarantee))

    noise = noise_of(noise_for(costs, guarantee.epsilon, guarantee.delta).value)
    if max(noise.values()) > LARGEST_NOISE:
        raise AccountingError(
            f"a noise multiplier of {max(noise.values()):g}; accepted: up to {LARGEST_NOISE:g}; declare a larger "
            "epsilon"
        )
    return EmbeddingPlan(form.shape, classes, frequencies, SEED, steps, noise)
