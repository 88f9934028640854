"""The sealed plan of DP moments of pictures: which sums are measured, with which noise, and what that costs.

What belongs here: public numbers only, their choice from public facts, and the event made from them. What does not:
sums (`exact_sums`), draws of noise (`noisy_results`), and the model that follows (`moments_fitting`).

Every query is a sum of vectors of bounded norm, one for each record, with Gaussian noise. A query may depend on the
noisy results of earlier ones. So all together cost what one Gaussian sum costs whose precision is the sum of theirs
(`privacy.selection`, the proof's case without choices).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from fractions import Fraction
from typing import Any

from dp_accounting import dp_event

from dpsynth_platform.foundation.digests import canonical_digest
from dpsynth_platform.foundation.errors import AccountingError
from dpsynth_platform.foundation.pixels import ImageForm
from dpsynth_platform.privacy.accounting import SIGMA_RANGE
from dpsynth_platform.privacy.calibration import NOISE_STEP, noise_for
from dpsynth_platform.privacy.events import DpEvent, GaussianCountsEvent
from dpsynth_platform.privacy.guarantee import Guarantee
from dpsynth_platform.privacy.units import RECORD_PARTS, replaces
from dpsynth_platform.synth.images.exact_sums import UNIT

COUNTS, BRIGHTNESS, MEANS, SPREAD, SCATTER, CENTRES, COVARIANCES = (
    "class-counts", "brightness", "class-means", "spread", "scatter", "centres", "covariances",
)  # fmt: skip
WITHIN = "within-clusters"
SHARES: Mapping[str, float] = {
    COUNTS: 0.01,
    BRIGHTNESS: 0.004,
    MEANS: 0.03,
    SPREAD: 0.004,
    SCATTER: 0.25,
    CENTRES: 0.02,
}
"""Each query's share of the precision; the shares of all queries are divided by their sum."""
COVARIANCES_ALONE, COVARIANCES_BEFORE = 0.36, 0.08
"""The share of the classes' covariances where they are the model, and where clusters follow from their draws."""
CLUSTER_COUNTS_SHARE, CLUSTER_SUMS_SHARE, WITHIN_SHARE = 0.005, 0.06, 0.20
"""Of each round's counts and of its sums, and of the covariances within clusters."""
CLUSTER_ROUNDS, MOST_CLUSTERS = 2, 20
BLUR = 0.15
"""The noise of a cluster's centre over the clipping norm that decides how many clusters a class has."""
CLASSIFIER_SHARE = 0.30
"""The share of all of the classifier's gradients together; each has the same."""


@dataclass(frozen=True)
class Style:
    """How draws are made from the moments.

    Attributes:
        matched: whether pixels have the measured moments after they are clipped, instead of before.
        with_rest: whether the variance outside of the components is drawn.
        moved: whether draws are turned, scaled and shifted a little.
    """

    matched: bool = False
    with_rest: bool = False
    moved: bool = False


STYLES: Mapping[str, Style] = {
    "normal": Style(),
    "matched": Style(matched=True),
    "matched-with-rest": Style(matched=True, with_rest=True),
    "matched-and-moved": Style(matched=True, moved=True),
}
"""A classifier is trained on draws of each; the style whose one is right for most records is used."""
STYLE_SHARE = 0.004
"""Of the noisy number of records that a style's classifier is right for."""
SHARP = 0.0026
"""The noise's largest eigenvalue over the squared clipping norm that decides how many frequencies are measured."""
LEAST_FREQUENCIES = 8
NETWORKS, ROUNDS = 2, 3
"""Networks that are trained on draws, and noisy gradients of the last layer of each."""
MOST_BASIS = 1024
"""Numbers of a picture in the measured covariance; larger pictures are reduced to low frequencies first."""
MOST_COMPONENTS = 64
BELOW_ROOT_HALF = 46340 / 65536
"""Just below 1 / sqrt(2): see `event`."""
LARGEST_NOISE = SIGMA_RANGE[1] * RECORD_PARTS / UNIT**2
"""The largest noise multiplier with which the noise of second moments is within the sampler's range."""
MOST_CLASSES = 1000


@dataclass(frozen=True)
class MomentsPlan:
    """The sealed plan.

    Attributes:
        shape: height, width and channels of the pictures.
        classes: K, the number of classes; 1 where there is no label.
        frequencies: low frequencies in each direction of a channel that the covariance is of; 0 for all pixels.
        components: the most principal components.
        clusters: J, clusters of each class with a common covariance; 1 for none.
        networks: how often the classifier's features are trained on draws; 0 without a classifier.
        rounds: noisy gradients for each network.
        noise: the noise multiplier of each query by its name, in the order of measurement.
        expected_units: the public number of units; it decides shares and sizes only.
    """

    shape: tuple[int, int, int]
    classes: int
    frequencies: int
    components: int
    clusters: int
    networks: int
    rounds: int
    noise: Mapping[str, float]
    expected_units: int

    @property
    def form(self) -> ImageForm:
        return ImageForm(*self.shape)

    @property
    def digest(self) -> str:
        return canonical_digest(self.to_json())

    @property
    def basis(self) -> int:
        """Numbers of a picture in the measured covariance; fewer for pictures smaller than `frequencies`."""
        return self.frequencies**2 * self.form.channels if self.frequencies else self.form.values

    def to_json(self) -> dict[str, Any]:
        return asdict(self) | {"shape": list(self.shape), "noise": dict(self.noise)}

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> MomentsPlan:
        """Raises `TypeError` if a key is missing or unknown."""
        return cls(**{**document, "shape": tuple(document["shape"])})


def gradient_name(network: int, round_: int) -> str:
    """The name of a query for the classifier."""
    return f"gradient-{network}-{round_}"


def style_name(style: str) -> str:
    """The name of a query for a style."""
    return f"correct-{style}"


def cluster_names(round_: int) -> tuple[str, str]:
    """The names of a round's queries: records of each cluster, and sums of their distances from its centre."""
    return f"cluster-counts-{round_}", f"cluster-sums-{round_}"


def shares_of(clusters: int, networks: int, rounds: int) -> dict[str, float]:
    """Every query's share of the precision, in the order of measurement."""
    shares = {**SHARES, COVARIANCES: COVARIANCES_ALONE}
    if clusters > 1:
        shares[COVARIANCES] = COVARIANCES_BEFORE
        for round_ in range(CLUSTER_ROUNDS):
            shares |= dict(zip(cluster_names(round_), (CLUSTER_COUNTS_SHARE, CLUSTER_SUMS_SHARE), strict=True))
        shares[WITHIN] = WITHIN_SHARE
    styles = {style_name(style): STYLE_SHARE for style in STYLES} if networks else {}
    gradients = [gradient_name(network, round_) for network in range(networks) for round_ in range(rounds)]
    return {**shares, **styles, **dict.fromkeys(gradients, CLASSIFIER_SHARE / max(1, len(gradients)))}


def planned(
    form: ImageForm,
    classes: int,
    expected_units: int,
    guarantee: Guarantee,
    already: DpEvent | None = None,
) -> MomentsPlan:
    """The plan whose whole cost, with what `already` costs, meets a guarantee.

    Args:
        classes: K, public; 1 where there is no label.
        already: the event of other mechanisms on the same records, such as counts of the other columns.

    Raises:
        AccountingError: no noise meets the guarantee, a number is impossible, or a query would need more noise than can
            be drawn.
    """
    for name, value, most in (("classes", classes, MOST_CLASSES), ("expected_units", expected_units, 2**40)):
        if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= most:
            raise AccountingError(f"{name} {value!r}; accepted: a whole number from 1 to {most}")
    networks, rounds = (NETWORKS, ROUNDS) if classes > 1 else (0, 0)

    def with_noise(total: float) -> MomentsPlan:
        # All shares together are about 1.
        sums = total / math.sqrt(CLUSTER_SUMS_SHARE)
        clusters = _clusters(sums * classes / expected_units)
        shares = shares_of(clusters, networks, rounds)
        whole = sum(shares.values())
        noise = {name: rounded_up(total * math.sqrt(whole / share)) for name, share in shares.items()}
        frequencies = _frequencies(form, noise[SCATTER] / expected_units)
        sizes = frequencies, MOST_COMPONENTS, clusters, networks, rounds
        return MomentsPlan(form.shape, classes, *sizes, noise, expected_units)

    def costs(total: float) -> DpEvent:
        mine = event(with_noise(total), guarantee)
        return mine if already is None else dp_event.ComposedDpEvent([already, mine])

    plan = with_noise(noise_for(costs, guarantee.epsilon, guarantee.delta).value)
    if max(plan.noise.values()) > LARGEST_NOISE:
        raise AccountingError(
            f"a noise multiplier of {max(plan.noise.values()):g}; accepted: up to {LARGEST_NOISE:g}; declare a larger "
            "epsilon"
        )
    return plan


def event(plan: MomentsPlan, guarantee: Guarantee) -> DpEvent:
    """The cost of a plan, from the plan alone and the guarantee's unit. Raises as `event_of`."""
    return event_of(plan.noise, guarantee)


def event_of(noise: Mapping[str, float], guarantee: Guarantee) -> DpEvent:
    """The cost of noisy sums with these noise multipliers.

    One unit moves a query by b times the norm at most (once the norm where owners are counted: `exact_sums`), and under
    `replace-one` and `fixed-graph` by twice that. The event is of counts, which a replacement moves by sqrt(2) b only:
    its noise is the plan's divided by sqrt(2) there.

    Raises:
        AccountingError: the guarantee's values are impossible together.
    """
    precision = sum((1 / Fraction(multiplier) ** 2 for multiplier in noise.values()), Fraction(0))
    sigma = math.floor(math.sqrt(1 / precision) * 2**20) / 2**20
    while Fraction(sigma) ** 2 * precision > 1:
        sigma -= 2.0**-20
    if replaces(guarantee.adjacency):
        sigma *= BELOW_ROOT_HALF
    return GaussianCountsEvent(sigma, guarantee.adjacency, guarantee.max_contributions, guarantee.weighting)


def describe(plan: MomentsPlan) -> dict[str, Any]:
    """Public words and numbers of a plan."""
    form, basis = plan.form, plan.basis
    height, width, channels = plan.shape
    mechanism = (
        f"{len(plan.noise)} sums over pictures of {height} x {width} x {channels} with rounded Gaussian noise: class "
        f"counts, norms, class means, a covariance of {basis} numbers, and moments of each class in its components"
    )
    if plan.clusters > 1:
        mechanism += f"; {CLUSTER_ROUNDS} rounds of {plan.clusters} clusters of each class, and covariances within them"
    if plan.networks:
        mechanism += (
            f"; numbers of records that {len(STYLES)} classifiers are right for; then "
            f"{plan.networks * plan.rounds} gradients of a linear classifier on features learned from draws"
        )
    return {
        "event": mechanism,
        "noise_multipliers": dict(plan.noise),
        "predicted_memory_bytes": 8
        * (4 * basis**2 + 4 * plan.classes * form.values + 2 * plan.components * form.values)
        + 2**29,
    }


def _clusters(noise: float) -> int:
    """How many clusters, so that their centres are precise: J noise sqrt(components) is within `BLUR`.

    Args:
        noise: the multiplier of the sums over the expected records of a class.
    """
    bearable = BLUR / (noise * math.sqrt(MOST_COMPONENTS))
    return max(1, int(min(bearable, MOST_CLUSTERS)))


def _frequencies(form: ImageForm, noise: float) -> int:
    """How many frequencies the covariance is of, so that the noise does not hide it; 0 for all pixels.

    Noise of deviation s has eigenvalues up to s sqrt(2 n), where n = frequencies^2 * channels.

    Args:
        noise: the multiplier over the expected number of units.
    """
    most = SHARP / (noise * math.sqrt(2 * form.channels))
    bearable = min(math.isqrt(MOST_BASIS // form.channels), max(LEAST_FREQUENCIES, int(min(most, 1e6))))
    return 0 if bearable >= max(form.height, form.width) else bearable


def rounded_up(noise: float) -> float:
    """A noise multiplier in whole steps of calibration."""
    return math.ceil(noise / NOISE_STEP) * NOISE_STEP
