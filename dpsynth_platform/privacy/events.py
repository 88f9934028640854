"""Privacy events: what a mechanism does to the data, as a tree of public parameters.

What belongs here: the event classes that `dp_accounting` lacks, the event trees of the mechanisms, and the trees' JSON
form with its validation. What does not: what an event costs (`accounting`). Sequential composition is `dp_accounting`'s
own (`ComposedDpEvent`, `SelfComposedDpEvent`).

Every leaf states its adjacency and its contribution bound b, and its noise is given in records: the adjacency's factor
is part of the leaf's meaning and not something that an accountant adds later.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import attr
from dp_accounting import dp_event

from dpsynth_platform.foundation.errors import AccountingError
from dpsynth_platform.privacy.units import (
    Sensitivity,
    check_adjacency,
    count_sensitivity,
    replaces,
    vector_sensitivity,
    vote_sensitivity,
)

if TYPE_CHECKING:
    from dpsynth_platform.privacy.guarantee import Guarantee

DpEvent: TypeAlias = dp_event.DpEvent

MAX_LEAVES = 100_000
MOST_RUNS, MOST_SHAPE, LEAST_SHAPE = 10_000, 1000.0, 1e-4
"""Of the best of runs; a shape nearer to 0 has no mean that is computed exactly."""
# Bounds of every noise, probability and range, so that no square of one overflows, vanishes or is subnormal.
PARAMETERS = (1e-12, 1e15)
# Ways in which one unit can run through nested parallel branches.
MAX_HISTORIES = 256

Sampled = Literal["record", "user"]


def _positive(instance: object, attribute: attr.Attribute[float], value: float) -> None:
    least, most = PARAMETERS
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not number or not math.isfinite(value) or not least <= value <= most:
        raise AccountingError(
            f"{type(instance).__name__}.{attribute.name}: {value!r}; accepted: finite, above 0 ({least:g} to {most:g})"
        )


@attr.frozen
class _GaussianNoise(DpEvent):  # type: ignore[misc]
    """A vector of counts or votes with independent Gaussian noise in each cell.

    Attributes:
        sigma: the parameter of the noise, in records or votes (not divided by the sensitivity).
        adjacency: which datasets are neighbours.
        max_contributions: b, the most records of one unit.
    """

    sigma: float = attr.field(validator=_positive)
    adjacency: str
    max_contributions: int

    def __attrs_post_init__(self) -> None:
        _ = self.sensitivity  # refuses impossible neighbours

    @property
    def sensitivity(self) -> Sensitivity:
        """What one unit changes in the vector."""
        return count_sensitivity(self.adjacency, self.max_contributions)


@attr.frozen
class DiscreteGaussianCountsEvent(_GaussianNoise):
    """Counts of records over disjoint cells, each with noise from the discrete Gaussian N_Z(0, sigma^2).

    Neighbours differ by a vector v >= 0 of integers with sum at most b (`add-or-remove`, `zero-out`), or by the
    difference of two such vectors (`replace-one`, `fixed-graph`). Canonne, Kamath & Steinke 2020.
    """


@attr.frozen
class BoundedRangeSelectionEvent(DpEvent):  # type: ignore[misc]
    """A choice by the exponential mechanism: P[y] proportional to exp(epsilon * score(y) / (2 * sensitivity)).

    epsilon-bounded-range (Durfee & Rogers 2019): the log-ratio of any two outcomes' probabilities moves by at most
    epsilon between neighbours, which is stronger than epsilon-DP.

    Attributes:
        epsilon: the range, for one unit under `adjacency`; the score's sensitivity is already divided out.
        adjacency: which datasets are neighbours.
        max_contributions: b, the most records of one unit.
        weighting: what the scored counts are of, rows or owners (`units.count_sensitivity`).
    """

    epsilon: float = attr.field(validator=_positive)
    adjacency: str
    max_contributions: int
    weighting: str = "rows"

    def __attrs_post_init__(self) -> None:
        count_sensitivity(self.adjacency, self.max_contributions, self.weighting)


@attr.frozen
class _WeighedNoise(_GaussianNoise):
    """Counts of rows or owners (`units.count_sensitivity`).

    Attributes:
        weighting: what is counted, rows or owners.
    """

    weighting: str = "rows"

    @property
    def sensitivity(self) -> Sensitivity:
        return count_sensitivity(self.adjacency, self.max_contributions, self.weighting)


@attr.frozen
class GaussianCountsEvent(_WeighedNoise):
    """Counts or votes over disjoint cells, each with continuous Gaussian noise N(0, sigma^2).

    Neighbours as for `DiscreteGaussianCountsEvent`. What is done to a noisy count afterwards is post-processing:
    `synth.tabular.noise` rounds it. Where owners are counted, the records of one unit weigh one record together at
    most, however many there are up to b (`units.count_sensitivity`). Several tables may share one event, each with more
    noise, if 1 / sigma^2 is at least the sum of theirs (`selection`).
    """


@attr.frozen
class GaussianMeasuresEvent(_WeighedNoise):
    """Measures of how useful rows are that were drawn before, by the private records, with Gaussian noise.

    They are counts, parts of records, and distances of counts from fixed numbers (`synth.tabular.paid`). Their cost is
    that of one table of counts with noise `sigma`, as that of several tables is for `GaussianCountsEvent`.
    """


@attr.frozen
class GaussianVotesEvent(_GaussianNoise):
    """A histogram of votes, of which those of one owner have the L2 norm 1 at most, with continuous Gaussian noise.

    Every record votes for one of some public candidates (or clusters of them), or shares its vote among several; see
    `units.vote_sensitivity` for what is
    scaled, and for records of several owners, whose votes are not. The noise is rounded after it is added, which is
    post-processing (Xie et al. 2024; the guide, section 5.3.2, on units of several records).
    """

    @property
    def sensitivity(self) -> Sensitivity:
        return vote_sensitivity(self.adjacency, self.max_contributions)


@attr.frozen
class GaussianSumsEvent(_GaussianNoise):
    """Sums of vectors, those of one owner clipped together to the L2 norm 1, with continuous Gaussian noise.

    See `units.vector_sensitivity`, also for records of several owners. `sigma` is in clipping norms. The noise is
    rounded after it is added, which is post-processing.
    """

    @property
    def sensitivity(self) -> Sensitivity:
        return vector_sensitivity(self.adjacency, self.max_contributions)


def _whole(instance: object, attribute: attr.Attribute[int], value: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= PARAMETERS[1]:
        raise AccountingError(
            f"{type(instance).__name__}.{attribute.name}: {value!r}; accepted: a whole number, 1 to {PARAMETERS[1]:g}"
        )


class _SkellamNoise(DpEvent):  # type: ignore[misc]
    """A vector of whole numbers, each entry with Skellam noise; `sensitivity` refuses impossible neighbours."""

    variance: float

    def __attrs_post_init__(self) -> None:
        _ = self.sensitivity

    @property
    def sensitivity(self) -> Sensitivity:
        """What one unit changes in the vector, in units."""
        raise NotImplementedError

    @property
    def sigma(self) -> float:
        """Deviation of the noise, in units."""
        return math.sqrt(self.variance)


@attr.frozen
class SkellamCountsEvent(_SkellamNoise):
    """Counts of records over disjoint cells in fixed point, each with Skellam noise (`privacy.skellam`).

    Neighbours as for `DiscreteGaussianCountsEvent`; a record is `scale` units. A secure sum of several participants'
    counts is such a vector: one unit moves it by its own records alone, in however many participants' counts they are.

    Attributes:
        variance: of the noise, in squared units: of those shares only that nobody else knows.
        scale: units of a record.
        adjacency: which datasets are neighbours.
        max_contributions: b, the most records of one unit, over all participants.
    """

    variance: float = attr.field(validator=_positive)
    scale: int = attr.field(validator=_whole)
    adjacency: str
    max_contributions: int

    @property
    def sensitivity(self) -> Sensitivity:
        records = count_sensitivity(self.adjacency, self.max_contributions)
        return Sensitivity(self.scale * records.l1, self.scale**2 * records.l2_squared)


@attr.frozen
class SkellamSumsEvent(_SkellamNoise):
    """Sums of vectors of whole numbers, each entry with Skellam noise (`privacy.skellam`).

    All vectors of one unit together have at most these norms, after rounding. They are made of that unit's records
    alone, so under `add-or-remove` and `zero-out` the sum moves by at most that, and where records are replaced by at
    most twice that: the difference of two such vectors, which may point in opposite directions.

    Attributes:
        variance: of the noise of an entry, in squared units: of those shares only that nobody else knows.
        l1: the largest L1 norm, in units.
        l2_squared: the largest squared L2 norm, in squared units.
        adjacency: which datasets are neighbours; not `fixed-graph`, where no owner's vectors can be clipped together.
        max_contributions: b, the most records of one unit, over all participants.
    """

    variance: float = attr.field(validator=_positive)
    l1: int = attr.field(validator=_whole)
    l2_squared: int = attr.field(validator=_whole)
    adjacency: str
    max_contributions: int

    @property
    def sensitivity(self) -> Sensitivity:
        check_adjacency(self.adjacency, self.max_contributions)
        if self.adjacency == "fixed-graph":
            raise AccountingError(
                "vectors clipped by owner under fixed-graph: a record with several owners is in the vectors of all of "
                "them; accepted: add-or-remove, zero-out, replace-one"
            )
        vectors = 2 if replaces(self.adjacency) else 1
        return Sensitivity(vectors * self.l1, vectors**2 * self.l2_squared)


@attr.frozen
class LocalReportsEvent(DpEvent):  # type: ignore[misc]
    """One unit's report, epsilon-DP by itself (`federation.local_reports`): pure, delta 0.

    Whatever is seen of it is post-processing, also if reports of all units are summed. A unit makes one report: its
    record is replaced by another one, and whether it reports is not hidden, so that `replace-one` and one record are
    the only neighbours.

    Attributes:
        epsilon: the logarithm of any report's chances under two records differs by at most this.
        adjacency: `replace-one`.
        max_contributions: 1.
    """

    epsilon: float = attr.field(validator=_positive)
    adjacency: str
    max_contributions: int

    def __attrs_post_init__(self) -> None:
        check_adjacency(self.adjacency, self.max_contributions)
        if (self.adjacency, self.max_contributions) != ("replace-one", 1):
            raise AccountingError(
                f"reports of {self.max_contributions} records under {self.adjacency}; accepted: one, under replace-one"
            )


@attr.frozen
class ThresholdedEvent(DpEvent):  # type: ignore[misc]
    """Partition selection: noisy counts of the cells that occur, of which only those from a threshold up are shown.

    Which cells occur depends on the data, so no Renyi curve is finite: the cost is that of the counts and a slack on
    delta (`accounting.threshold_slack`), the chance that a cell of one unit alone is shown. Subclasses set the noise.

    Attributes:
        sigma: the parameter of the noise, in records.
        threshold: the least noisy count that is shown, in records; above b.
        adjacency: which datasets are neighbours.
        max_contributions: b, the most records of one unit.
    """

    sigma: float = attr.field(validator=_positive)
    threshold: float = attr.field(validator=_positive)
    adjacency: str
    max_contributions: int

    def __attrs_post_init__(self) -> None:
        check_adjacency(self.adjacency, self.max_contributions)
        if self.threshold <= self.most_alone:
            raise AccountingError(
                f"threshold {self.threshold:g} for {self.most_alone} records of a unit; accepted: above that"
            )

    @property
    def most_alone(self) -> int:
        """The most that a cell of one unit alone counts, in records."""
        return self.max_contributions


@attr.frozen
class ThresholdedCountsEvent(ThresholdedEvent):
    """Partition selection by counts with discrete Gaussian noise."""

    @property
    def counts(self) -> DiscreteGaussianCountsEvent:
        """The noisy counts of the cells that occur in two neighbours alike."""
        return DiscreteGaussianCountsEvent(self.sigma, self.adjacency, self.max_contributions)


@attr.frozen
class ThresholdedGaussianCountsEvent(ThresholdedEvent):
    """Partition selection by counts with Gaussian noise, rounded before it is compared.

    `synth.tabular.learning` does it once for each column whose values are not declared. It rounds to whole records, or
    where owners are counted to `RECORD_PARTS` of one.

    Attributes:
        weighting: what is counted, rows or owners.
    """

    weighting: str = "rows"

    @property
    def counts(self) -> GaussianCountsEvent:
        return GaussianCountsEvent(self.sigma, self.adjacency, self.max_contributions, self.weighting)

    @property
    def most_alone(self) -> int:
        return 1 if self.weighting == "owners" else self.max_contributions


def _probability(instance: object, attribute: attr.Attribute[float], value: float) -> None:
    _positive(instance, attribute, value)
    if value > 1:
        raise AccountingError(f"{type(instance).__name__}.{attribute.name}: {value!r}; accepted: above 0, at most 1")


@attr.frozen
class SampledGaussianEvent(DpEvent):  # type: ignore[misc]
    """One step of DP-SGD: the sum of clipped gradients of a Poisson sample, with Gaussian noise.

    `sampled` is what is drawn independently, and clipped. `record` (DP-SGD, and DP-SGD-ELS with b above 1): a unit has
    Binomial(b, q) records in the sample, so the step is a mixture of Gaussians. `user` (DP-SGD-ULS): a unit is in the
    sample or not, and the mean of its gradients is clipped as one. Abadi et al. 2016; Charles et al. 2024.

    Attributes:
        noise_multiplier: the noise's deviation over the clipping norm.
        sampling_probability: q, in (0, 1]; 1 is a full batch.
        adjacency: which datasets are neighbours.
        max_contributions: b, the most records of one unit.
    """

    noise_multiplier: float = attr.field(validator=_positive)
    sampling_probability: float = attr.field(validator=_probability)
    sampled: Sampled
    adjacency: str
    max_contributions: int

    def __attrs_post_init__(self) -> None:
        check_adjacency(self.adjacency, self.max_contributions)
        if self.sampled not in ("record", "user"):
            raise AccountingError(f"sampled {self.sampled!r}; accepted: record, user")
        if self.sampled == "user" and self.adjacency == "fixed-graph":
            raise AccountingError(
                "users drawn and clipped under fixed-graph: a record with several owners is in the gradients of all of "
                "them, so clipping one bounds no one's part; accepted: sampled record"
            )

    @property
    def most_in_sample(self) -> int:
        """How many clipped gradients of one unit a sample can hold."""
        return self.max_contributions if self.sampled == "record" else 1


@attr.frozen
class ParallelDpEvent(DpEvent):  # type: ignore[misc]
    """Mechanisms on disjoint participants: every unit takes part in at most one branch.

    The branch must not depend on the unit's records in a way that a neighbour may change: under `add-or-remove` and
    `zero-out` a unit is in its branch or nowhere. Under `replace-one` it could leave one branch and enter another, and
    under `fixed-graph` its records may also be in several branches, so that it takes part in all of them: both are
    refused. It must not depend on what other mechanisms of the same event have shown either: an adversary could send a
    unit to the branch where the loss so far does most harm.

    A unit's cost is that of its branch, so the whole costs the largest (McSherry 2009, theorem 4). What a branch does
    may depend on other branches' outcomes, since those do not depend on the unit.
    """

    events: tuple[DpEvent, ...] = attr.field(converter=tuple)

    def __attrs_post_init__(self) -> None:
        if not self.events:
            raise AccountingError("parallel composition of nothing; accepted: at least one branch")
        for leaf, _ in leaves(self):
            if replaces(leaf.adjacency):
                raise AccountingError(
                    f"parallel composition under {leaf.adjacency}: a unit could move to another branch, or be in "
                    "several; accepted: add-or-remove, zero-out, or sequential composition"
                )


@attr.frozen(hash=False)
class BestRunEvent(DpEvent):  # type: ignore[misc]
    """The best of a random number of runs, by a score that is part of each run's event (Papernot & Steinke 2022).

    Each run takes one of several mechanisms at random, all alike. Only the best run's result is shown, and neither the
    others nor their number. What decides is a function of each run's result alone, and so is the order of equal scores,
    unless a coin decides it. That number K has the truncated negative binomial distribution: P[K = k] is in proportion
    to (1 - gamma)^k Gamma(k + shape) / k!, for k from 1.

    Attributes:
        events: of the mechanisms that a run may take, each with its score.
        shape: eta, above -1; 0 is the logarithmic distribution, 1 the geometric one.
        gamma: between 0 and 1; less means more runs.
    """

    events: tuple[DpEvent, ...] = attr.field(converter=tuple)
    shape: float
    gamma: float = attr.field(validator=_probability)

    def __attrs_post_init__(self) -> None:
        number = isinstance(self.shape, (int, float)) and not isinstance(self.shape, bool)
        exact = number and -1 < self.shape <= MOST_SHAPE and (self.shape == 0 or abs(self.shape) >= LEAST_SHAPE)
        if not exact or not self.gamma < 1 or not self.events:
            raise AccountingError(
                f"the best of runs with shape {self.shape!r} and gamma {self.gamma!r}, of {len(self.events)} "
                f"mechanisms; accepted: shape above -1, up to {MOST_SHAPE:g}, 0 or at least {LEAST_SHAPE:g} from it, "
                "gamma below 1, one mechanism or more"
            )
        if any(isinstance(leaf, ThresholdedEvent) for leaf, _ in leaves(self)):
            raise AccountingError(
                "the best of runs that show values from a threshold up, which have no finite Renyi curve; accepted: "
                "runs without"
            )

    def __hash__(self) -> int:
        return hash((len(self.events), self.shape, self.gamma))

    @property
    def mean(self) -> float:
        """The expected number of runs (Papernot & Steinke 2022, definition 1)."""
        if self.shape == 0:
            return (1 / self.gamma - 1) / -math.log(self.gamma)
        return -self.shape * (1 - self.gamma) / (self.gamma * math.expm1(self.shape * math.log(self.gamma)))


def best_run_event(events: Sequence[DpEvent], runs: float, shape: float = 1.0) -> BestRunEvent:
    """The event of the best of `runs` runs in expectation, each of one of these mechanisms.

    Raises:
        AccountingError: `runs` is not above 1 or more than the shape can have, or a parameter is impossible.
    """
    if isinstance(runs, bool) or not isinstance(runs, (int, float)) or not 1 < runs <= MOST_RUNS:
        raise AccountingError(f"the best of {runs!r} runs; accepted: above 1, at most {MOST_RUNS:,}")
    if (most := BestRunEvent(events, shape, PARAMETERS[0]).mean) < runs:
        raise AccountingError(
            f"the best of {runs:g} runs with shape {shape:g}, which has at most {most:.3g} in expectation; accepted: "
            "fewer runs, or a larger shape"
        )
    low, high = math.log(PARAMETERS[0]), -PARAMETERS[0]
    for _ in range(100):
        middle = (low + high) / 2
        more = BestRunEvent(events, shape, math.exp(middle)).mean > runs
        low, high = (middle, high) if more else (low, middle)
    return BestRunEvent(events, shape, math.exp(high))


def dp_sgd_event(
    *,
    records: int,
    batch_size: int,
    noise_multiplier: float,
    steps: int,
    adjacency: str = "add-or-remove",
    max_contributions: int = 1,
    sampled: Sampled = "record",
) -> DpEvent:
    """The event of DP-SGD with Poisson sampling.

    Args:
        records: the public, expected number of what is sampled (records, or users where `sampled` is `user`); never
            the actual one.
        batch_size: the expected size of a sample; q is batch_size / records. Empty samples count as steps.
        noise_multiplier: the noise's deviation over the clipping norm.
        max_contributions: b, the most records of one unit.
        sampled: `record` (with b above 1: DP-SGD-ELS) or `user` (DP-SGD-ULS).

    Raises:
        AccountingError: a parameter is impossible.
    """
    for name, value in (("records", records), ("batch_size", batch_size)):
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise AccountingError(f"{name} {value!r}; accepted: a whole number from 1")
    if batch_size > records:
        raise AccountingError(f"batch_size {batch_size} of {records} records; accepted: at most as many")
    step = SampledGaussianEvent(noise_multiplier, batch_size / records, sampled, adjacency, max_contributions)
    return dp_event.SelfComposedDpEvent(step, _count(steps))


def histogram_event(
    noise: float, adjacency: str = "add-or-remove", max_contributions: int = 1, *, discrete: bool = True
) -> DpEvent:
    """A noisy histogram or vote: every record counts in one cell. `noise` is its deviation, in records.

    Raises:
        AccountingError: a parameter is impossible.
    """
    kind = DiscreteGaussianCountsEvent if discrete else GaussianCountsEvent
    return kind(noise, adjacency, max_contributions)


def token_selection_event(
    *,
    tokens: int,
    clipping_norm: float,
    temperature: float,
    batch_size: int,
    adjacency: str = "zero-out",
    max_contributions: int = 1,
    clipped: Sampled = "record",
) -> DpEvent:
    """Tokens drawn from the softmax of clipped logits, averaged over a batch (Amin et al. 2024, private prediction).

    Each is a choice by the exponential mechanism. A record moves each averaged logit by at most c / s, so b records
    move a log-ratio by 2 b c / (s temperature), and twice that when they are replaced. Where the logits of one user's
    records are averaged first and clipped as one, they move it as one record does, however many there are. If all
    records of one unit are in one batch, batches are a `ParallelDpEvent`; else, and under `replace-one` and
    `fixed-graph`, they compose.

    Args:
        tokens: how many are drawn from one batch.
        clipping_norm: c: logits, or their differences from public ones, are clipped to [-c, c].
        temperature: by which the averaged logits are divided.
        batch_size: s, the public number by which the sum is divided.
        max_contributions: b, the most records of one unit.
        clipped: whose logits are clipped, each record's or each user's.

    Raises:
        AccountingError: a parameter is impossible.
    """
    for name, value in (("clipping_norm", clipping_norm), ("temperature", temperature), ("batch_size", batch_size)):
        if isinstance(value, bool) or not (math.isfinite(value) and value > 0):
            raise AccountingError(f"{name} {value!r}; accepted: finite, above 0")
    check_adjacency(adjacency, max_contributions)
    if clipped == "user" and adjacency == "fixed-graph":
        raise AccountingError(
            "logits clipped by user under fixed-graph: a record with several owners is in the logits of all of them; "
            "accepted: clipped record"
        )
    moved = (2 if replaces(adjacency) else 1) * (1 if clipped == "user" else max_contributions)
    epsilon_range = moved * 2 * clipping_norm / (batch_size * temperature)
    choice = BoundedRangeSelectionEvent(epsilon_range, adjacency, max_contributions)
    return dp_event.SelfComposedDpEvent(choice, _count(tokens))


def twice(event: DpEvent) -> DpEvent:
    """The event of a mechanism that runs two times over the same people, each time with independent randomness."""
    return dp_event.ComposedDpEvent([event, event])


def leaves(event: DpEvent) -> Iterator[tuple[DpEvent, int]]:
    """The tree's mechanisms, those of all parallel branches, each with the number of times it runs.

    Of the best of runs: each mechanism that a run may take, once for each time that the runs are made.

    Raises:
        AccountingError: an event of a kind that this platform does not account for, or a count below 1.
    """
    for atom, times in atoms(event):
        for part in atom.events if isinstance(atom, BestRunEvent) else ():
            for leaf, count in leaves(part):
                yield leaf, _count(count * times)
        if not isinstance(atom, BestRunEvent):
            yield atom, times


def atoms(event: DpEvent) -> Iterator[tuple[DpEvent, int]]:
    """As `leaves`, but the best of runs is one.

    Raises:
        AccountingError: see `leaves`.
    """
    if isinstance(event, (BestRunEvent, *LEAF_KINDS.values())):
        yield event, 1
    elif isinstance(event, (dp_event.ComposedDpEvent, ParallelDpEvent)):
        for part in event.events:
            yield from atoms(part)
    elif isinstance(event, dp_event.SelfComposedDpEvent):
        times = _count(event.count)
        for atom, count in atoms(event.event):
            yield atom, _count(count * times)
    else:
        raise AccountingError(
            f"event {type(event).__name__} cannot be accounted for; accepted: sequential and parallel composition, the "
            f"best of runs, {', '.join(LEAF_KINDS)}"
        )


def histories(event: DpEvent) -> tuple[Counter[DpEvent], ...]:
    """What one unit can take part in: for each way through the parallel branches, the mechanisms and their times.

    Raises:
        AccountingError: see `leaves`; or more than MAX_HISTORIES ways; or parallel branches that are repeated as a
            whole, where a unit's way may differ each time.
    """
    if isinstance(event, ParallelDpEvent):
        found = dict.fromkeys(frozenset(way.items()) for part in event.events for way in histories(part))
        ways = tuple(Counter(dict(way)) for way in found)
    elif isinstance(event, dp_event.ComposedDpEvent):
        ways = (Counter(),)
        for part in event.events:
            inner = histories(part)
            _check_histories(len(ways) * len(inner))
            ways = tuple(way + more for way in ways for more in inner)
    else:
        flat: Counter[DpEvent] = Counter()
        for atom, times in atoms(event):
            flat[atom] += times
        if isinstance(event, dp_event.SelfComposedDpEvent) and len(histories(event.event)) > 1:
            raise AccountingError("parallel branches repeated as a whole; accepted: repetition inside of each branch")
        ways = (flat,)
    _check_histories(len(ways))
    return ways


def _check_histories(number: int) -> None:
    if number > MAX_HISTORIES:
        raise AccountingError(
            f"one unit can run through the parallel branches in {number} ways; accepted: up to {MAX_HISTORIES}"
        )


def adjacency_of(event: DpEvent) -> tuple[str, int]:
    """The one (adjacency, b) of all leaves. Raises `AccountingError` if they differ or there are none."""
    found = {(leaf.adjacency, leaf.max_contributions) for leaf, _ in leaves(event)}
    if len(found) != 1:
        raise AccountingError(f"an event must have one adjacency and one contribution bound, found {len(found)}")
    return found.pop()


def counts_owners(event: DpEvent) -> bool:
    """Whether any of its tables and choices counts owners (`units.count_sensitivity`)."""
    return any(getattr(leaf, "weighting", "rows") == "owners" for leaf, _ in leaves(event))


def matches_claim(event: DpEvent, guarantee: Guarantee) -> bool:
    """Whether an event is for a guarantee's adjacency, contribution bound and weighting.

    Raises:
        AccountingError: see `adjacency_of`.
    """
    same_bound = adjacency_of(event) == (guarantee.adjacency, guarantee.max_contributions)
    return same_bound and counts_owners(event) == (guarantee.weighting == "owners")


def event_to_json(event: DpEvent) -> dict[str, Any]:
    """A JSON value from which `event_from_json` makes an equal event. Raises `AccountingError` for unknown kinds."""
    if isinstance(event, (dp_event.ComposedDpEvent, ParallelDpEvent)):
        kind = "parallel" if isinstance(event, ParallelDpEvent) else "composed"
        return {"kind": kind, "events": [event_to_json(part) for part in event.events]}
    if isinstance(event, BestRunEvent):
        parts = [event_to_json(part) for part in event.events]
        return {"kind": "best-run", "events": parts, "shape": event.shape, "gamma": event.gamma}
    if isinstance(event, dp_event.SelfComposedDpEvent):
        return {"kind": "repeated", "count": _count(event.count), "event": event_to_json(event.event)}
    for kind, leaf in LEAF_KINDS.items():
        if isinstance(event, leaf):
            return {"kind": kind} | {key: value for key, value in attr.asdict(event).items() if (key, value) != _ROWS}
    raise AccountingError(f"event {type(event).__name__} has no JSON form")


def event_from_json(document: Any) -> DpEvent:
    """Reads what `event_to_json` wrote.

    Raises:
        AccountingError: an unknown kind or key, a missing key, or a parameter that is not finite, positive and of its
            type.
    """
    event = _parse(document, depth=0)
    adjacency_of(event)
    return event


LEAF_KINDS: dict[str, type[Any]] = {
    "discrete-gaussian-counts": DiscreteGaussianCountsEvent,
    "bounded-range-selection": BoundedRangeSelectionEvent,
    "gaussian-counts": GaussianCountsEvent,
    "gaussian-votes": GaussianVotesEvent,
    "gaussian-measures": GaussianMeasuresEvent,
    "gaussian-sums": GaussianSumsEvent,
    "skellam-counts": SkellamCountsEvent,
    "skellam-sums": SkellamSumsEvent,
    "local-reports": LocalReportsEvent,
    "thresholded-counts": ThresholdedCountsEvent,
    "thresholded-gaussian-counts": ThresholdedGaussianCountsEvent,
    "sampled-gaussian": SampledGaussianEvent,
}
_ROWS = ("weighting", "rows")
"""Not written: an event without a weighting counts rows."""
_KEYS = {
    "composed": {"events"},
    "parallel": {"events"},
    "repeated": {"count", "event"},
    "best-run": {"events", "shape", "gamma"},
} | {kind: {field.name for field in attr.fields(leaf)} for kind, leaf in LEAF_KINDS.items()}


def _parse(document: Any, depth: int) -> DpEvent:
    if depth > 16 or not isinstance(document, dict):
        raise AccountingError("an event's JSON form is an object, nested at most 16 deep")
    kind = document.get("kind")
    if not isinstance(kind, str) or kind not in _KEYS:
        raise AccountingError(f"event kind {kind!r} is unknown; accepted: {', '.join(sorted(_KEYS))}")
    values = {key: value for key, value in document.items() if key != "kind"}
    if not _KEYS[kind] - {_ROWS[0]} <= values.keys() <= _KEYS[kind]:
        raise AccountingError(f"event {kind}: accepted keys are {', '.join(sorted(_KEYS[kind]))}, all of them")
    if kind in ("composed", "parallel", "best-run"):
        if not isinstance(values["events"], list):
            raise AccountingError(f"event {kind}: events must be a list")
        parts: Sequence[DpEvent] = [_parse(part, depth + 1) for part in values["events"]]
        if kind == "best-run":
            return BestRunEvent(parts, values["shape"], values["gamma"])
        return dp_event.ComposedDpEvent(parts) if kind == "composed" else ParallelDpEvent(parts)
    if kind == "repeated":
        return dp_event.SelfComposedDpEvent(_parse(values["event"], depth + 1), _count(values["count"]))
    return LEAF_KINDS[kind](**values)


def _count(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= MAX_LEAVES:
        raise AccountingError(f"an event repeated {value!r} times; accepted: 1 to {MAX_LEAVES}")
    return value
