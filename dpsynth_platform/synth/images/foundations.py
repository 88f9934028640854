"""What makes candidates of private evolution of images: from public things only.

What belongs here: the interface of a foundation, and samples that are numbers (`Genes`) of a simulator. What does not:
single simulators (`simulators`, `simulators_shapes`, `simulators_table`), endpoints (`foundations_endpoint`), votes.

A sample is small and has a JSON form, so that the journal of an evolution holds candidates exactly. Pixels are made of
it, never the reverse: no function here takes pixels, so that a picture of the data cannot become a candidate.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from dpsynth_platform.foundation.pixels import ImageForm, Pixels

Sample = TypeVar("Sample")
Values = npt.NDArray[np.float32]
DECIMALS = 4
"""Of a gene; the journal holds them exactly."""


class ImageFoundation(Protocol[Sample]):
    """Makes samples and their pixels from public things only.

    Attributes:
        name: of its kind, for lineage.
        digest: SHA-256 of all public material that it uses, for lineage and the sealed plan.
        form: of the pixels.
    """

    @property
    def name(self) -> str: ...

    @property
    def form(self) -> ImageForm: ...

    @property
    def digest(self) -> str: ...

    def random(self, label: str, number: int, generator: np.random.Generator) -> list[Sample | None]:
        """New samples of a label; None where a call failed."""

    def variation(
        self,
        samples: Sequence[Sample],
        label: str,
        strength: float,
        generator: np.random.Generator,
        peers: Sequence[Sample] | None = None,
    ) -> list[Sample | None]:
        """A variation of each sample; None where a call failed.

        Args:
            strength: from 0 (the sample itself) to 1 (as different as its peers are from each other).
            peers: samples as good as these, by which a foundation may vary them; None: the samples.
        """

    def pixels(self, samples: Sequence[Sample]) -> Pixels:
        """The picture of each sample."""

    def to_json(self, sample: Sample) -> Any: ...

    def from_json(self, document: Any) -> Sample: ...


@dataclass(frozen=True)
class Genes:
    """A sample of a simulator: one of its sources, and numbers that say how it is changed."""

    source: int
    values: tuple[float, ...]


class Simulator(ABC):
    """A foundation whose samples are `Genes`; a subclass has sources and renders them.

    Genes are independent standard normal numbers in a random sample. A variation of strength s is
    m + sqrt(1 - s^2) (g - m) + s z, where m is the mean of the peers, and z has their covariance: the difference of
    two of them over sqrt(2). So variations of well chosen samples follow these, instead of going back to random
    samples. Few peers say little: `PRIOR` random samples count beside them. With the chance `CROSSED` s a variation has
    the source of a peer, and with the chance `SWITCHED` s^2 any other source.
    """

    CROSSED, SWITCHED, PRIOR = 0.3, 0.1, 20
    name: str
    form: ImageForm
    genes: int
    """Numbers of a sample."""

    @abstractmethod
    def sources(self, label: str) -> npt.NDArray[np.int64]:
        """The sources of a label."""

    @abstractmethod
    def rendered(self, sources: npt.NDArray[np.int64], values: Values) -> Pixels:
        """The pictures of samples; values of shape (samples, genes)."""

    def neighbour(
        self, sources: npt.NDArray[np.int64], label: str, generator: np.random.Generator
    ) -> npt.NDArray[np.int64]:
        """Another source for each one."""
        return generator.choice(self.sources(label), len(sources))

    def random(self, label: str, number: int, generator: np.random.Generator) -> list[Genes | None]:
        sources = generator.choice(self.sources(label), number)
        return list(_samples(sources, generator.standard_normal((number, self.genes))))

    def variation(
        self,
        samples: Sequence[Genes],
        label: str,
        strength: float,
        generator: np.random.Generator,
        peers: Sequence[Genes] | None = None,
    ) -> list[Genes | None]:
        if not len(samples):
            return []
        sources, values = _arrays(samples, self.genes)
        peers = samples if peers is None else peers
        own, known = _arrays(peers, self.genes)
        share = self.PRIOR / (len(set(peers)) + self.PRIOR)
        mean = (1 - share) * known.mean(axis=0, keepdims=True)
        one, other = (known[generator.integers(len(known), size=len(values))] for _ in range(2))
        new = np.sqrt((1 - share) / 2) * (one - other) + np.sqrt(share) * generator.standard_normal(values.shape)
        varied = mean + np.sqrt(1 - strength**2) * (values - mean) + strength * new
        crossed = generator.random(len(sources)) < self.CROSSED * strength
        switched = generator.random(len(sources)) < self.SWITCHED * strength**2
        found = np.where(crossed, generator.choice(own, len(sources)), sources)
        found[switched] = self.neighbour(found[switched], label, generator)
        return list(_samples(found, varied))

    def pixels(self, samples: Sequence[Genes]) -> Pixels:
        return self.rendered(*_arrays(samples, self.genes))

    def to_json(self, sample: Genes) -> Any:
        _check([sample])
        return [sample.source, *sample.values]

    def from_json(self, document: Any) -> Genes:
        return Genes(int(document[0]), tuple(float(value) for value in document[1:]))


def _samples(sources: npt.NDArray[np.int64], values: npt.NDArray[np.float64]) -> list[Genes]:
    rounded = np.round(values, DECIMALS).tolist()
    return [Genes(source, tuple(own)) for source, own in zip(sources.tolist(), rounded, strict=True)]


def _arrays(samples: Sequence[Genes], genes: int) -> tuple[npt.NDArray[np.int64], Values]:
    _check(samples)
    sources = np.array([sample.source for sample in samples], dtype=np.int64)
    values = np.array([sample.values for sample in samples], dtype=np.float32).reshape(len(samples), genes)
    return sources, values


def _check(samples: Sequence[Genes]) -> None:
    """Raises `TypeError` if there are pictures or others among samples."""
    if any(type(sample) is not Genes for sample in samples):
        raise TypeError("a sample of a simulator; accepted: the numbers that it made")
