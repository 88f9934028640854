"""A mechanism as somebody sees it who knows everything but one person's records.

What belongs here: running a generator's whole `measure` on a table in memory, with every draw and what it was made
from; the same run again on a neighbouring table with the same answers; what the sealed event claims; and the lower
bound on epsilon that an attack proves. What does not: which mistakes are planted, and which attacks are tried.

The log is kept in memory, since one run takes a millisecond without waiting for the disk; `test_mst` holds what the log
promises.
"""

import atexit
import contextlib
import dataclasses
import math
import shutil
import tempfile
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from scipy import optimize, stats
from synth_cases import contract_with

from dpsynth_platform.audit.bounds import clopper_pearson
from dpsynth_platform.foundation.digests import canonical_digest
from dpsynth_platform.foundation.progress import silent
from dpsynth_platform.privacy.events import (
    BoundedRangeSelectionEvent,
    GaussianCountsEvent,
    event_from_json,
    leaves,
)
from dpsynth_platform.privacy.guarantee import Guarantee
from dpsynth_platform.privacy.units import RECORD_PARTS
from dpsynth_platform.synth.interface import generator
from dpsynth_platform.synth.relational import one_selection
from dpsynth_platform.synth.relational.sealing import SealedTables
from dpsynth_platform.synth.tabular import counting, drawing, estimation, local_consistency, mixtures, mrf
from dpsynth_platform.synth.tabular.measurements import MeasurementLog
from dpsynth_platform.synth.tabular.noise import sample_rounded_gaussian, select_by_exponential_mechanism
from dpsynth_platform.synth.tabular.residuals import contrasts, squared_lengths

CHOOSING = ("aim", "jam", "appgm", "mst", "mwem", "rap", "gem", "mrf", "privbayes")
"""Those that choose by the exponential mechanism."""
METHODS = (*CHOOSING, "privsyn", "grem", "histogram")
"""All but `independent` and those that train networks, whose counts are those of `aim` without rounds."""
PUBLIC, PUBLIC_ROWS = Path(tempfile.mkdtemp()), 3600
"""Where public tables of `jam` lie, and their rows."""
atexit.register(shutil.rmtree, PUBLIC, True)
# Of one audit; a suite that runs for years sees no false alarm.
FALSE_ALARM = 1e-7


@dataclass(frozen=True)
class Draw:
    """One draw: `exact` is what it was made from (counts, distances, contrasts or scores), `scale` is sigma or epsilon.

    `kind` is noise (of counts), distances (their noise), residuals (of all pairs' contrasts, each with a sigma of its
    own) or choice. `sensitivity` is what a choice was told, else None.
    """

    kind: str
    exact: np.ndarray
    scale: float | np.ndarray
    sensitivity: int | None
    answer: object


@dataclass
class Transcript:
    """A run: its draws and the noisy marginals, and residuals, that it left in its log, in order."""

    draws: list[Draw] = field(default_factory=list)
    measured: list = field(default_factory=list)
    residuals: list = field(default_factory=list)

    def of(self, kind):
        return [draw for draw in self.draws if draw.kind == kind]


class OtherRun(Exception):
    """A neighbour's run asks for another draw than the one that was answered: the two are told apart for certain."""


def categories(**sizes):
    """Columns of a contract: categorical ones with values 0, 1, ..."""
    return {
        name: {"type": "categorical", "values": [str(value) for value in range(size)]} for name, size in sizes.items()
    }


def plan_for(method, columns, *, epsilon, b, adjacency="add-or-remove", weighting="rows", **generate):
    """A sealed plan of a contract with these columns."""
    contract = contract_with(
        columns={"person_id": {"type": "identifier"}, **columns},
        generate={**_method(method, columns), "rows": 100, **generate},
        privacy__max_contributions=b,
        privacy__adjacency=adjacency,
        privacy__weighting=weighting,
        privacy__guarantee={"epsilon": epsilon, "delta": 1e-5},
    )
    # Mixtures are small here and hardly fitted: what a mechanism may draw does not depend on that.
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(mixtures, "COMPONENTS", 4)
        patch.setattr(mixtures, "LEAST_COMPONENTS", 4)
        patch.setattr(mixtures.MixtureGenerator, "steps", 1)
        # Sets count as useful and models are small, so that pairs are measured, and soon.
        patch.setattr(mrf, "USEFULNESS", 0.25)
        patch.setattr(mrf, "MODEL_CELLS", 2**12)
        return _plan_of(method, contract, columns)


def _method(method, columns):
    """A contract's method; `jam` has a public table of unrelated columns, or is planned as `aim` for one column."""
    if method != "jam":
        return {"method": method}
    if len(columns) < 2:
        return {"method": "aim"}
    rng = np.random.default_rng(0)
    values = {
        name: column["values"] if column["type"] == "categorical" else list(range(column["min"], column["max"] + 1))
        for name, column in columns.items()
    }
    place = PUBLIC / f"{canonical_digest(values)}.parquet"
    rows = {name: pa.array(own).take(pa.array(rng.integers(0, len(own), PUBLIC_ROWS))) for name, own in values.items()}
    pq.write_table(pa.table(rows), place)
    return {"method": method, "public": {"uri": str(place), "why": "made up for tests"}}


def _plan_of(method, contract, columns):
    types = {name: pa.string() if column["type"] == "categorical" else pa.int64() for name, column in columns.items()}
    schema = pa.schema({"person_id": pa.string(), **types})
    return generator(method).plan(contract, schema, Guarantee.target(contract))


def table_of(names, codes):
    """A table of texts from value numbers, shape (rows, columns or more)."""
    texts = pa.array([str(value) for value in range(int(codes.max(initial=0)) + 1)])
    return pa.table({name: texts.take(pa.array(codes[:, index])) for index, name in enumerate(names)})


@contextlib.contextmanager
def hardly_fitted():
    """Fits take one step: what a mechanism may draw does not depend on how well its models fit."""
    minimize = estimation.minimize

    def briefly(task, start, iterations, *arguments):
        return minimize(task, start, min(iterations, 1), *arguments)

    with pytest.MonkeyPatch.context() as patch:
        for module in (estimation, local_consistency):
            patch.setattr(module, "minimize", briefly)
        yield


def run(plan, table, *, noise=sample_rounded_gaussian, choose=select_by_exponential_mechanism):
    """The plan's mechanism on a table, with its own draws or others in their place.

    A plan of linked tables that are measured together runs on their views by name.
    """
    found = Transcript()

    def noisy(counts, sigma):
        answer = noise(counts, sigma)
        found.draws.append(Draw("noise", np.array(counts), sigma, None, answer))
        return answer

    def chosen(scores, epsilon, sensitivity):
        answer = choose(scores, epsilon, sensitivity)
        found.draws.append(Draw("choice", np.array(scores, dtype=np.int64), epsilon, sensitivity, answer))
        return answer

    @contextlib.contextmanager
    def create(directory, plan_digest):
        yield _Log(found)

    def read(path, columns):
        return iter((table[path.name] if isinstance(table, dict) else table).select(columns).to_batches())

    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory() as place:
        patch.setattr(drawing, "sample_rounded_gaussian", noisy)
        patch.setattr(drawing, "select_by_exponential_mechanism", chosen)
        patch.setattr(mixtures, "fresh", lambda: np.random.default_rng(0))
        patch.setattr(MeasurementLog, "create", create)
        patch.setattr(counting, "read_table", read)
        if isinstance(table, dict):
            plans = SealedTables.of(plan).plans(plan)
            one_selection.measure(plans, Path("in memory"), Path(place), silent, None)
        else:
            generator(plan.method).measure(plan, Path("in memory"), Path("in memory"))
    assert found.of("noise")
    return found


class _Log(MeasurementLog):
    def __init__(self, found):
        super().__init__(None)
        self.found = found

    def counts(self, kind, measured):
        self.found.measured.append(measured)

    def distances(self, measured):
        self.found.draws[-1] = dataclasses.replace(self.found.draws[-1], kind="distances")

    def residuals(self, measured):
        self.found.draws[-1] = dataclasses.replace(self.found.draws[-1], kind="residuals")
        self.found.residuals += measured

    def _append(self, document):
        pass


def run_again(plan, table, before):
    """The mechanism on another table, answered as it was before.

    Raises:
        OtherRun: it asks for another draw.
    """
    answers = iter(before.draws)

    def answered(exact, *scale):
        draw = next(answers, None)
        asked = [np.shape(exact), *scale]
        known = draw and [draw.exact.shape, draw.scale, *([] if draw.sensitivity is None else [draw.sensitivity])]
        if draw is None or not all(map(np.array_equal, asked, known)):
            raise OtherRun
        return draw.answer

    return run(plan, table, noise=answered, choose=answered)


# What is claimed.


@dataclass(frozen=True)
class Claim:
    """The sealed event: precision of all Gaussian noise together, epsilon of each choice, number of choices."""

    precision: Fraction
    epsilon_select: float
    choices: int


def claim_of(plan):
    """What the plan's event accounts for."""
    precision, epsilons, choices = Fraction(0), set(), 0
    for leaf, times in leaves(event_from_json(plan.event)):
        if isinstance(leaf, GaussianCountsEvent):
            precision += times / Fraction(leaf.sigma) ** 2
        else:
            assert isinstance(leaf, BoundedRangeSelectionEvent)
            epsilons.add(leaf.epsilon)
            choices += times
    return Claim(precision, epsilons.pop() if epsilons else 0.0, choices)


def precision_used(plan, transcript):
    """The precision of all noise of a run together, in records, by what each table can move at most."""
    guarantee = Guarantee.from_json(plan.guarantee)
    bound, parts = guarantee.sensitivity, RECORD_PARTS if guarantee.weighting == "owners" else 1
    used = sum(1 / (Fraction(draw.scale) / parts) ** 2 for draw in transcript.of("noise"))
    for draw in transcript.of("distances"):
        moved = Fraction(draw.exact.size * (bound.l1 * RECORD_PARTS) ** 2)  # squared, if each distance moves as far
        used += moved / bound.l2_squared / Fraction(draw.scale) ** 2
    for item in transcript.residuals:  # of add-or-remove: what a record of a cell moves, the same for every cell
        cell = np.zeros([size + 1 for size in item.counts.shape], dtype=np.int64)
        cell.flat[0] = 1
        moved = contrasts(cell) ** 2 / squared_lengths(cell.shape)
        used += Fraction(float(moved.sum())) / Fraction(item.sigma) ** 2
    return used


def residuals_of(transcript, counts_of):
    """What all contrasts of the run's pairs would be for a table of which `counts_of` gives each pair's counts."""
    return np.concatenate([contrasts(counts_of(item)).ravel() for item in transcript.residuals])


def assert_distances_move_as_planned(plan, one, other):
    """One unit moves each distance by its L1 bound at most; and all together cost no more than they have noise for."""
    bound = Guarantee.from_json(plan.guarantee).sensitivity
    moved = [abs(int(difference)) for difference in one.exact - other.exact]
    assert max(moved) <= bound.l1 * RECORD_PARTS
    sigma = Fraction(generator(plan.method).sealed(plan.parameters).noise(plan.parameters["distance_share"]))
    assert sum(length**2 for length in moved) / Fraction(one.scale) ** 2 <= bound.l2_squared / sigma**2


def assert_residuals_move_as_planned(plan, one, other):
    """One unit moves all contrasts together, in units of their noise, by what their part of the precision allows."""
    bound = Guarantee.from_json(plan.guarantee).sensitivity
    precision = claim_of(plan).precision * (1 - Fraction(plan.parameters["one_way_share"]))
    assert (((one.exact - other.exact) / one.scale) ** 2).sum() <= bound.l2_squared * float(precision)


def gaussian_delta(mu, epsilon):
    """Delta at an epsilon of the pair N(0, 1), N(mu, 1) (Balle & Wang 2018, theorem 8)."""
    normal = stats.norm.cdf
    return float(normal(mu / 2 - epsilon / mu) - math.exp(epsilon) * normal(-mu / 2 - epsilon / mu))


def gaussian_epsilon(mu, delta):
    """Epsilon at a delta of the same pair."""
    return float(optimize.brentq(lambda epsilon: gaussian_delta(mu, epsilon) - delta, 0, 200))


# What an attack proves.


def proven_epsilon(scores, included, *, threshold, delta):
    """Lower bound on epsilon at a delta, from the attack that guesses "in" above a threshold that was fixed beforehand.

    P[in above] <= e^epsilon P[out above] + delta, with the worst ends of the two rates' exact intervals
    (Clopper-Pearson), each of which is exceeded with a probability of at most FALSE_ALARM / 2. -inf where nothing is
    proven.
    """
    above = scores > threshold
    return bound_of(
        int(above[included].sum()), int(included.sum()), int(above[~included].sum()), int((~included).sum()), delta
    )  # fmt: skip


def bound_of(hits, members, alarms, others, delta):
    """The same from the four numbers."""
    low = clopper_pearson(hits, members, 1 - FALSE_ALARM)[0]
    high = clopper_pearson(alarms, others, 1 - FALSE_ALARM)[1]
    return math.log((low - delta) / high) if low > delta else -math.inf


def found_for_certain(*, members, others, true_rate, false_rate, delta, claimed, miss=5e-4):
    """Whether a mistake that gives the attack these rates is found with a probability of at least 1 - 2 miss."""
    hits = int(stats.binom.ppf(miss, members, true_rate))
    alarms = int(stats.binom.ppf(1 - miss, others, false_rate))
    return bound_of(hits, members, alarms, others, delta) > claimed


def chance_to_miss(*, members, others, true_rate, false_rate, delta, claimed):
    """The chance that an attack with these rates proves no more than is claimed, summed up but for 1e-11."""
    hits = np.arange(1, members + 1)
    low = np.append(0.0, stats.beta.ppf(FALSE_ALARM / 2, hits, members - hits + 1))
    alarms = np.arange(stats.binom.ppf(1e-12, others, false_rate), stats.binom.isf(1e-12, others, false_rate) + 1)
    high = stats.beta.ppf(1 - FALSE_ALARM / 2, alarms + 1, others - alarms)
    # The bound grows with hits: these many are too few.
    few = np.searchsorted(low, delta + high * math.exp(claimed), side="right")
    return float((stats.binom.pmf(alarms, others, false_rate) * stats.binom.cdf(few - 1, members, true_rate)).sum())
