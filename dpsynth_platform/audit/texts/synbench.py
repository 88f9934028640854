"""SynBench's membership attack as published (Sun et al. 2025, section 3, stages 1 to 3, and section 5, "Privacy").

What belongs here: who is attacked, what each of a hundred releases is made of, the scores, and their evaluation. What
does not: the generator and the sentence features, which are arguments, n-gram models (`ngrams`), and what scores prove
(`audit.bounds`).

Unusual texts are the targets. The others are split 1:2 into a private and an auxiliary part. Each release is made of a
subset of the private part, half of them with a target. A target's score is its probability under the bigram model of
the release, less the mean of its probabilities under four references: copies of the auxiliary part, of which two
contain the target.

Where the paper is silent, this is how it is read here:

- A subset is nine tenths of the private part, without replacement. The paper gives no size.
- Outliers are the 1% of texts farthest from the mean, and the 1% of largest local outlier factor (`outliers.unusual`).
- Bigram models have Laplace smoothing (`ngrams`).
- A "probability" is the geometric mean of the probabilities of a text's words (`WORD`). The product over all words
  (`TEXT`) compares targets by their length above all: of financial sentences that a bigram model wrote, the area was
  0.82 by products and 0.92 by means (from subsets of one half, 0.71 and 0.93); of sentences released as they were, 0.91
  and 0.92, and with the target five times, 1.00 by both. Both are scored; conclusions are from means, which was fixed
  after these figures. Products underflow from a hundred words, but a curve needs their order only, so differences are
  kept as logarithms with their sign (`ordered_difference`).
- The band is where 95% of the fifty repeats lie. They differ in the targets of releases without one and nothing else,
  so it is no interval of the attack's strength: with other subsets, the curve differs by more.

For the same reason a curve above the bound refutes nothing: it is the mean of repeats of the same hundred releases.
What refutes a claim is `Evaluation.bound`, from one score of each release, with exact intervals of both error rates.
Runs are independent given the split, and each release without a target has one, too, which was drawn before the coin;
so the bound holds for any mechanism that is (epsilon, delta)-DP where one text is added or removed.

All results depend on real texts. Of a private table they are restricted, and a hundred runs cost a hundred times.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

import numpy as np
import numpy.typing as npt

from dpsynth_platform.audit.attacks import Floats
from dpsynth_platform.audit.bounds import Coins, Rate, Scores, area_under_curve, repeated_runs_bound, roc_curve
from dpsynth_platform.audit.risk import area_interval, frontier
from dpsynth_platform.audit.texts.ngrams import TargetGrams
from dpsynth_platform.audit.texts.outliers import unusual
from dpsynth_platform.foundation.errors import AccountingError
from dpsynth_platform.foundation.progress import Progress, silent

Places = npt.NDArray[np.int64]
Generate = Callable[[Sequence[int], int], Sequence[str]]
"""A release: from the positions of the texts that the mechanism reads, and the number of the run."""

SUBSETS, REPEATS, REFERENCES, SHARE = 100, 50, 4, 0.01
"""As published."""
SUBSET_SHARE = 0.9
"""Of the private part, in each subset."""
CONFIDENCE = 0.95
RATES = np.linspace(0, 1, 101)
"""False positive rates of curves."""
ZOOM = (0.1, 0.2)
"""False positive rates at which the paper's figure 2 is enlarged."""
WORD, TEXT = "word", "text"
"""Kinds of probabilities: the geometric mean over a text's words, and the product."""
_LEAST_PRIVATE = 2
_TOLERANCE = 1e-9


@dataclass(frozen=True)
class Design:
    """Who is attacked and what each run reads; all texts by their positions.

    Attributes:
        targets: shape (targets,).
        auxiliary: what the references are copies of.
        held: whether each target is in each reference: in two of them; shape (targets, 4).
        subsets: what each run reads beside its target, shape (runs, texts of a subset).
        chosen: the target of each run, as a place in `targets`; drawn for every run, before the coin.
        included: whether each run reads its target.
    """

    targets: Places
    auxiliary: Places
    held: npt.NDArray[np.bool_]
    subsets: Places
    chosen: Places
    included: Coins

    @property
    def runs(self) -> int:
        return len(self.included)

    def rows(self, run: int) -> list[int]:
        """The positions that a run reads, ascending, so that their order reveals nothing."""
        own = self.subsets[run].tolist()
        return sorted([*own, int(self.targets[self.chosen[run]])] if self.included[run] else own)


def design(
    features: npt.ArrayLike, *, runs: int = SUBSETS, share: float = SHARE, subset: float = SUBSET_SHARE, seed: int = 0
) -> Design:
    """The targets, the split and the runs, the same for the same arguments; the first runs are those of fewer.

    Args:
        features: of all texts by a sentence encoder, shape (texts, features); only their directions count.
        share: of the texts farthest from the mean, and of those of the largest local outlier factor.
        subset: share of the private part in each run, above 0 and up to 1.
        seed: of the split and the coins, which protect nothing: they are independent of the mechanism's randomness.

    Raises:
        AccountingError: there are too few texts, no runs, an impossible share, or features that are not numbers.
    """
    vectors = np.asarray(features, dtype=np.float64)
    if vectors.ndim != 2 or not np.isfinite(vectors).all() or runs < 1 or not 0 < subset <= 1:
        raise AccountingError(
            f"audit: features of shape {vectors.shape}, {runs} runs on {subset:g} of the private part; accepted: one "
            "vector of numbers for each text, one run at least, and a share above 0, up to 1"
        )
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    chosen = unusual(vectors / np.where(lengths > 0, lengths, 1.0), share)
    rng = np.random.default_rng([seed, 0])
    targets, others = np.flatnonzero(chosen), rng.permutation(np.flatnonzero(~chosen))
    private, auxiliary = np.split(others, [len(others) // 3])
    if len(private) < _LEAST_PRIVATE:
        raise AccountingError(f"audit: {len(vectors)} texts, {len(targets)} of them targets; accepted: more texts")
    half = np.arange(REFERENCES) < REFERENCES // 2
    held = np.array([rng.permutation(half) for _ in targets])
    size = math.ceil(subset * len(private))
    # Each run has a generator of its own, so that more runs can be added to some.
    of_runs = [np.random.default_rng([seed, 1 + run]) for run in range(runs)]
    return Design(
        targets=targets,
        auxiliary=np.sort(auxiliary),
        held=held,
        subsets=np.array([np.sort(own.choice(private, size, replace=False)) for own in of_runs]),
        chosen=np.array([own.integers(len(targets)) for own in of_runs]),
        included=np.array([own.random() < 0.5 for own in of_runs]),
    )


def attack(texts: Sequence[str], plan: Design, generate: Generate, *, progress: Progress = silent) -> dict[str, Scores]:
    """The scores of every target under every release, shape (runs, targets), by the kind of probability.

    Only the order of scores of one kind counts.

    Args:
        texts: all texts, of which the design speaks.
        generate: called once for each run, in order.

    Raises `AccountingError` if a release is empty.
    """
    targets = [texts[at] for at in plan.targets]
    asked = TargetGrams(targets)
    common = asked.count(texts[at] for at in plan.auxiliary)
    references = np.array(
        [
            asked.log_probabilities(common + asked.count(text for text, own in zip(targets, held, strict=True) if own))
            for held in plan.held.T
        ]
    )
    words = np.maximum(1, asked.sizes)
    of_word = np.exp(references / words).mean(axis=0)
    of_text = np.logaddexp.reduce(references, axis=0) - math.log(REFERENCES)
    found = {kind: np.empty((plan.runs, len(targets))) for kind in (WORD, TEXT)}
    for run in range(plan.runs):
        progress("releases of the attack", run, plan.runs)
        released = generate(plan.rows(run), run)
        if not len(released):
            raise AccountingError(f"audit: run {run + 1} of {plan.runs} made no texts; accepted: at least one")
        own = asked.log_probabilities(asked.count(released))
        found[WORD][run] = np.exp(own / words) - of_word
        found[TEXT][run] = ordered_difference(own, of_text)
    progress("releases of the attack", plan.runs, plan.runs)
    return found


def ordered_difference(first: Floats, second: Floats) -> Floats:
    """Numbers in [-1, 1] that are ordered as exp(first) - exp(second), of the same sign, without underflow.

    Of logarithms of probabilities, which are at most 0: the logarithm L of the difference's size is at most 0, too, and
    the result is its sign over 1 - L.
    """
    larger, smaller = np.maximum(first, second), np.minimum(first, second)
    differ = larger > smaller
    size = np.full(larger.shape, -np.inf)
    size[differ] = larger[differ] + np.log(-np.expm1((smaller - larger)[differ]))
    return np.asarray(np.sign(first - second) / (1 - size), dtype=np.float64)


@dataclass(frozen=True)
class Curve:
    """The ROC curve as published: the mean over repeats, and the band of 95% of them, at `RATES`; and its area.

    Attributes:
        area: mean area under the curve, with the band of the repeats.
        excess: the most by which the mean exceeds the claim's bound at false positive rates above 0, which proves
            nothing; None without a claim.
        excess_at: the false positive rate there.
        zoomed: the same excess at rates from 0.1 to 0.2.
    """

    mean: tuple[float, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]
    area: Rate
    excess: float | None
    excess_at: float | None
    zoomed: float | None

    @property
    def above(self) -> bool:
        """Whether the mean curve is above the bound anywhere, which the paper calls a violation."""
        return self.excess is not None and self.excess > _TOLERANCE


@dataclass(frozen=True)
class Evaluation:
    """What the attack found.

    Attributes:
        epsilon, delta: the claim; epsilon is None where there is none.
        runs, included, targets: their numbers.
        curve: as published.
        area: under the curve of one score for each run, with its interval of 95%.
        bound: epsilon that these scores prove at `confidence`, in this evaluation alone (`bounds.repeated_runs_bound`).
        highest: the bound if the scores separated all runs: a claim above it cannot be refuted by so few.
    """

    epsilon: float | None
    delta: float
    runs: int
    included: int
    targets: int
    curve: Curve
    area: Rate
    confidence: float
    bound: float
    highest: float

    @property
    def refuted(self) -> bool:
        """Whether the claim is wrong, at this confidence."""
        return self.epsilon is not None and self.bound > self.epsilon

    def to_json(self) -> dict[str, Any]:
        return asdict(self) | {"above": self.curve.above, "refuted": self.refuted}

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> Evaluation:
        """The inverse of `to_json`."""
        curve = dict(found["curve"])
        own = {item.name: found[item.name] for item in fields(cls)}
        return cls(**own | {"curve": Curve(**curve | {"area": Rate(**curve["area"])}), "area": Rate(**found["area"])})

    def in_words(self) -> list[str]:
        """The results as sentences: as published, and what they prove."""
        curve, claim, own = self.curve, self.epsilon, self.area
        said = [
            f"{self.runs} releases, {self.included} of them with their target, of {self.targets} targets.",
            f"As published: area under the curve {curve.area.value:.3f} (95% of the repeats: {curve.area.low:.3f} to "
            f"{curve.area.high:.3f}).",
        ]
        if claim is not None:
            where = (
                f"up to {curve.excess:.3f} above, at {curve.excess_at:.0%} false positives" if curve.above else "below"
            )
            said.append(
                f"Bound of epsilon {claim:g}: the mean curve is {where}. This alone proves nothing, since the repeats "
                "share their releases."
            )
        proved = f"epsilon is at least {self.bound:.3f}" if self.bound else "nothing of epsilon"
        against = "" if claim is None else f", and the claim of {claim:g} is {'' if self.refuted else 'not '}refuted"
        return [
            *said,
            f"One score for each release: area {own.value:.3f} (95%: {own.low:.3f} to {own.high:.3f}).",
            f"Proved at {self.confidence:.0%}: {proved}{against}. So many releases prove {self.highest:.2f} at most.",
        ]


def evaluate(
    scores: Scores,
    plan: Design,
    *,
    epsilon: float | None,
    delta: float,
    confidence: float = CONFIDENCE,
    repeats: int = REPEATS,
    seed: int = 0,
) -> Evaluation:
    """The ROC curve as published, and what the scores prove.

    Args:
        scores: one kind of those of `attack`, shape (runs, targets).
        epsilon, delta: the claim for each run; epsilon None: there is none.
        confidence: of the proof.
        repeats: draws of a target for each run without one.

    Raises:
        AccountingError: scores of another shape or not numbers, or all runs have their target or none has.
    """
    expected = (plan.runs, len(plan.targets))
    if scores.shape != expected or np.isnan(scores).any() or plan.included.all() or not plan.included.any():
        raise AccountingError(
            f"audit: scores of shape {scores.shape}, {int(plan.included.sum())} of {plan.runs} runs with their target; "
            f"accepted: numbers of shape {expected}, and runs of both kinds"
        )
    runs = np.arange(plan.runs)
    own = scores[runs, plan.chosen]
    rng = np.random.default_rng(seed)
    curves, areas = [], []
    for _ in range(repeats):
        paired = np.where(plan.included, plan.chosen, rng.integers(expected[1], size=plan.runs))
        drawn = scores[runs, paired]
        curves.append(np.interp(RATES, *roc_curve(drawn, plan.included)))  # of equal rates, the largest
        areas.append(area_under_curve(drawn, plan.included))
    outside = int((~plan.included).sum())
    return Evaluation(
        epsilon=epsilon,
        delta=delta,
        runs=plan.runs,
        included=plan.runs - outside,
        targets=expected[1],
        curve=_curve(np.array(curves), np.array(areas), epsilon, delta),
        area=area_interval(area_under_curve(own, plan.included), plan.runs - outside, outside, CONFIDENCE),
        confidence=confidence,
        bound=repeated_runs_bound(own, plan.included, delta=delta, confidence=confidence),
        highest=repeated_runs_bound(plan.included.astype(float), plan.included, delta=delta, confidence=confidence),
    )


def bound_curve(epsilon: float, delta: float) -> Floats:
    """The largest true positive rate at each of `RATES` that (epsilon, delta)-DP allows (`risk.frontier`)."""
    return np.array([frontier(float(rate), epsilon, delta) for rate in RATES])


def _curve(curves: Floats, areas: Floats, epsilon: float | None, delta: float) -> Curve:
    tail = (1 - CONFIDENCE) / 2
    mean = curves.mean(axis=0)
    low, high = np.quantile(curves, [tail, 1 - tail], axis=0)
    area = Rate(float(areas.mean()), *(float(end) for end in np.quantile(areas, [tail, 1 - tail])))
    excess = at = zoomed = None
    if epsilon is not None:
        over = (mean - bound_curve(epsilon, delta))[1:]
        excess, at = float(over.max()), float(RATES[1:][over.argmax()])
        inside = (RATES[1:] >= ZOOM[0] - _TOLERANCE) & (RATES[1:] <= ZOOM[1] + _TOLERANCE)
        zoomed = float(over[inside].max())
    mean_line, low_line, high_line = (tuple(float(value) for value in line) for line in (mean, low, high))
    return Curve(mean_line, low_line, high_line, area, excess, at, zoomed)
