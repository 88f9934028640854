"""Private reports as a federated run: by every draw of a node as private as said, and unbiased. Each statistical bound
is missed below 1e-6, or draws have a fixed seed."""

import itertools
import json
import math
from collections import Counter
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pyarrow as pa
import pytest
from federated_cases import COLUMNS, COORDINATOR, NAMES, SCHEMA, contract, participant, plan_of, rows
from node_cases import coordinator, place, up  # noqa: F401  (a fixture)
from seeded_stream import Counted
from test_nodes import ROSTER, Wires, nodes_of, states

from dpsynth_platform.federation import local, local_reports, trust
from dpsynth_platform.federation.local import LocalReportsPlan, deviation
from dpsynth_platform.federation.local_reports import KINDS, choose_reports
from dpsynth_platform.federation.mechanisms import plan_for
from dpsynth_platform.federation.mechanisms import plan_of as read_plan
from dpsynth_platform.federation.nodes import Coordinator
from dpsynth_platform.foundation.errors import AccountingError, ContractError, MechanismFailed
from dpsynth_platform.privacy.accounting import cost, epsilon
from dpsynth_platform.privacy.events import LocalReportsEvent, event_from_json, event_to_json
from dpsynth_platform.privacy.renyi import ORDERS
from dpsynth_platform.synth.interface import generator
from dpsynth_platform.synth.tabular.measurements import read_measurements

FAMILY = {
    **{"family": "guests", "unit": "user", "namespace": "person", "mode": "family", "adjacency": "replace-one"},
    "cap": {"epsilon": 9.0, "delta": 1e-4},
}
POLICY = {"trust": ["local"], "family": FAMILY, "run_cap": {"epsilon": 4.0, "delta": 1e-5}}


def local_plan(target=4.0, *, columns=COLUMNS, schema=SCHEMA, privacy=None, **changes):
    terms = {"participants": NAMES, "minimum": 3, "colluders": 1, "most_records": 300_000} | changes
    asked = contract(target, columns=columns, **{"adjacency": "replace-one"} | (privacy or {}))
    return LocalReportsPlan.of(asked, schema, method="independent", **terms)


# What a node's sums show, by every draw.

SMALL = {"yes": {"type": "boolean"}, "kind": {"type": "categorical", "values": ["a", "b", "c"]}}
SMALL_SCHEMA = pa.schema([("person", pa.string()), ("yes", pa.bool_()), ("kind", pa.string())])
RECORDS = [*itertools.product([True, None], ["a", "c", None])]


def table_of(*records):
    columns = zip(*records, strict=True)
    people = [str(number) for number in range(len(records))]
    return pa.table([people, *(list(column) for column in columns)], schema=SMALL_SCHEMA)


class NotGiven(Exception):
    pass


@pytest.fixture
def every_draw(monkeypatch):
    """The law of a round's vector, over every combination of what its uniform draws can be, in the order of drawing."""

    def law(asked, table, answers=()):
        left, totals, found = [each for each, _ in answers], [], Counter()

        def draw(total, shape, stream):
            if len(left) < math.prod(shape):
                totals.append(total)
                raise NotGiven
            taken, left[:] = left[: math.prod(shape)], left[math.prod(shape) :]
            return np.array(taken, dtype=np.int64).reshape(shape)

        monkeypatch.setattr(local_reports, "_below", draw)
        try:
            vector = tuple(asked.units(table).tolist())
        except NotGiven:
            for each in range(totals[0]):
                found.update(law(asked, table, (*answers, (each, totals[0]))))
        else:
            found[vector] = math.prod((Fraction(1, total) for _, total in answers), start=Fraction(1))
        return found

    return law


@pytest.fixture
def of_kind(monkeypatch):
    """Plans with a kind of reports whose ratio is 3, so that all draws can be gone through."""

    def made(kind):
        monkeypatch.setattr(local, "choose_reports", lambda values, target: kind(values, Fraction(3)))
        return local_plan(1.5, columns=SMALL, schema=SMALL_SCHEMA)

    return made


def largest_ratio(one, other):
    assert sum(one.values()) == sum(other.values()) == 1 and one.keys() == other.keys()
    return max(max(one[each] / other[each], other[each] / one[each]) for each in one)


@pytest.mark.parametrize("kind", KINDS)
def test_by_every_draw_a_nodes_sums_are_exactly_as_private_as_said(of_kind, every_draw, kind):
    """The chances of every vector that one unit's record can make, through the node's own path, with its column."""
    made = of_kind(kind)
    assert made.domain.sizes == (3, 4)
    laws = [every_draw(made.asked, table_of(record)) for record in RECORDS]
    ratios = [largest_ratio(one, other) for one, other in itertools.combinations(laws, 2)]
    assert max(ratios) == 3 and math.log(3) < 1.5
    # Which column it reports on says nothing: each with a chance of a half.
    for law in laws:
        assert sum(chance for vector, chance in law.items() if vector[-2:] == (1, 0)) == Fraction(1, 2)


def test_by_every_draw_sums_of_two_units_are_as_private_against_who_knows_one(of_kind, every_draw):
    """One of two units is replaced, and the other one's record is known."""
    made = of_kind(local_reports.RandomizedResponse)
    one, other = (every_draw(made.asked, table_of(RECORDS[0], each)) for each in (RECORDS[1], RECORDS[-1]))
    assert 1 < largest_ratio(one, other) <= 3


# Estimates.


@pytest.fixture
def seeded(monkeypatch):
    stream = Counted()
    monkeypatch.setattr(local_reports, "SecureStream", lambda: stream)


@pytest.mark.parametrize("target", [0.5, 4.0])
def test_estimates_are_unbiased_with_the_deviation_that_they_say(seeded, target):
    """A fixed seed. 400 runs of 1,000 units: means within 5 deviations of a mean, and the variance of the docstring.

    The mean of squares of 400 runs and 3 or more cells is within a fifth of its expectation.
    """
    made, table, runs, units = local_plan(target), rows(1_000), 400, 1_000
    asked, truth = made.asked, exact_counts(made, table)
    vectors = [asked.units(table) for _ in range(runs)]
    found = [asked.estimates(vector) for vector in vectors]
    for index, (kind, counts) in enumerate(zip(made.reports, truth, strict=True)):
        errors = np.array([each[index].counts - counts for each in found])
        numbers = np.array([vector[index - 4] for vector in vectors])
        p, q, shares = float(kind.p), float(kind.q), counts / units
        own = (shares * p * (1 - p) + (1 - shares) * q * (1 - q)) / (p - q) ** 2
        drawn = shares * (1 - shares) * (units - numbers[:, None]) / (units - 1)
        variance = units**2 / numbers[:, None] * (own + drawn)
        assert np.abs(errors.mean(axis=0) / np.sqrt(variance.mean(axis=0) / runs)).max() < 5
        assert np.square(errors).mean() == pytest.approx(variance.mean() + 1 / 12, rel=0.2)
        assert np.all(variance.mean(axis=1) <= np.square([each[index].sigma for each in found]) * (1 + 1e-9))


def exact_counts(made, table):
    sizes = made.domain.sizes
    asked = plan_of("independent").round(0, [(0,), (1,), (2,), (3,)], [range(size) for size in sizes])
    return np.split(asked.counted(table, made.domain), np.cumsum(sizes)[:-1])


def test_a_column_without_a_report_says_nothing():
    made = local_plan(columns=SMALL, schema=SMALL_SCHEMA)
    first, second = made.asked.estimates(np.array([9, 0, 0, 0, 0, 0, 0, 9, 0]))
    assert first.counts.sum() == pytest.approx(9, abs=2) and second.counts.tolist() == [2, 2, 2, 2]
    assert second.sigma == 9.0
    alone = choose_reports(4, 1.0)
    assert deviation(alone, 1, 1) == math.sqrt(alone.variance(1))


# What it costs.


def test_the_cost_is_that_of_the_worst_pure_mechanism():
    """Randomized response of two values, by its two outcomes: Renyi divergences, and delta at each epsilon."""
    for target in (2.0**-10, 0.3, 2.0, 16.0):
        event = LocalReportsEvent(target, "replace-one", 1)
        truth, lie = 1 / (1 + math.exp(-target)), 1 / (1 + math.exp(target))
        for order, value in zip(ORDERS, cost(event).curve.values, strict=True):
            if order * target < 300 and 1.2 < order < 100:
                exact = math.log(truth**order * lie ** (1 - order) + lie**order * truth ** (1 - order)) / (order - 1)
                assert value >= exact * (1 - 1e-6) and value <= exact * 1.001 + 1e-9
            assert value <= min(target, order * target**2 / 2) * (1 + 1e-9)
        for delta in (1e-3, 1e-6, 1e-12):
            spent = epsilon(event, delta).epsilon
            exact = math.log((truth - delta) / lie) if delta < truth - lie else 0.0
            assert exact * (1 - 1e-9) <= spent <= min(target, exact + 2e-5)
        assert event_from_json(event_to_json(event)) == event
    for wrong in (("add-or-remove", 1), ("zero-out", 1), ("replace-one", 2), ("fixed-graph", 1)):
        with pytest.raises(AccountingError, match="accepted: one, under replace-one"):
            LocalReportsEvent(1.0, *wrong)


def test_everybody_has_the_pure_guarantee():
    made = local_plan()
    found = trust.protections("local", made.terms.epsilon, 1e-5)
    assert {(item.epsilon, item.delta, item.rests_on) for item in found} == {(4.0, 0.0, "noise-of-report")}
    assert len(found) == 3 and epsilon(made.event, 1e-5).epsilon <= 4.0
    for size, kind in zip(made.domain.sizes, made.reports, strict=True):
        assert kind.values == size and math.log(kind.ratio) <= 4.0 < math.log(kind.ratio) + 1e-6


# Plans and participants.


def test_what_reports_cannot_do_is_refused():
    with pytest.raises(ContractError, match="trust 'local' with add-or-remove"):
        local_plan(privacy={"adjacency": "add-or-remove"})
    with pytest.raises(ContractError, match="up to 2 records of a unit in all silos"):
        local_plan(privacy={"max_contributions": 2})
    with pytest.raises(ContractError, match="up to 2 records of a unit in all silos"):
        local_plan(silos=2)
    with pytest.raises(AccountingError, match=r"epsilon 0\.0001 of private reports"):
        local_plan(0.0001)
    terms = {"participants": NAMES, "minimum": 3, "colluders": 1, "most_records": 10_000}
    mst = contract(1.0, adjacency="replace-one")
    mst = mst.model_copy(update={"generate": mst.generate.model_copy(update={"method": "mst"})})
    with pytest.raises(ContractError, match="trust 'local' with method 'mst'; accepted: independent, or distributed"):
        plan_for(mst, SCHEMA, trust="local", **terms)


def test_a_plan_is_recomputed_by_who_reads_it():
    made = local_plan()
    assert read_plan(made.to_json()) == made and isinstance(read_plan(made.to_json()), LocalReportsPlan)
    for wrong in (
        {"epsilon": 5.0},
        {"kinds": ["RandomizedResponse"] * 3},
        {"kinds": ["HadamardResponse"] * 4},
        {"share_variances": [1.0]},
        {"trust": "central"},
        {"trust": "distributed"},
        {"max_contributions": 2},
        {"silos": 2},
        {"expected_units": 0},
    ):
        with pytest.raises(AccountingError):
            read_plan(replace(made.sealed, parameters=made.sealed.parameters | wrong).to_json())
    for document in ({"index": 1}, {"index": False}, {}, [0], {"index": 0, "more": 1}):
        with pytest.raises(AccountingError, match="not the one of reports"):
            made.read_round(document)
    assert made.read_round(json.loads(json.dumps(made.asked.to_json()))) == made.asked
    assert len(json.dumps(made.asked.to_json())) <= made.most_document_bytes


def test_a_participant_takes_part_only_if_its_policy_says_so(tmp_path):
    made = local_plan().to_json()
    with pytest.raises(ContractError, match="refuses the plan: trust: local; accepted: distributed, central"):
        participant(tmp_path, **POLICY | {"trust": ["distributed", "central"]}).allowed(made)
    with pytest.raises(ContractError, match=r"family.adjacency: .replace-one.; accepted: add-or-remove"):
        participant(tmp_path, **POLICY | {"family": FAMILY | {"adjacency": "add-or-remove"}}).allowed(made)
    with pytest.raises(ContractError, match="max_contributions: 1; accepted: from 2"):
        participant(tmp_path, **POLICY | {"max_contributions": 2}).allowed(made)
    assert participant(tmp_path, **POLICY).allowed(made).trust == "local"


# Runs.


def test_reports_are_drawn_once_and_each_unit_has_one(tmp_path, monkeypatch):
    made, nodes, calls = local_plan(), nodes_of(tmp_path, **POLICY), []
    units = local.ReportsRound.units

    def noted(self, bounded):
        calls.append(units(self, bounded))
        return calls[-1]

    monkeypatch.setattr(local.ReportsRound, "units", noted)
    Coordinator(ROSTER, COORDINATOR, Wires(nodes)).run("first", made, tmp_path / "model")
    assert len(calls) == len(NAMES) and [int(each[-4:].sum()) for each in calls] == 4 * [500]
    assert states(nodes) == {name: ["spent"] for name in NAMES}
    found = read_measurements(tmp_path / "model", made.digest).one_way
    expected = made.asked.estimates(sum(calls))
    assert [item.counts.tolist() for item in found] == [item.counts.tolist() for item in expected]
    measuring = local.MeasuringReports(made, None)
    with pytest.raises(MechanismFailed, match="an opened sum of no round"):
        measuring.add(sum(calls), 4)


def test_a_run_over_the_sockets_of_nodes_makes_a_table(place, tmp_path):  # noqa: F811
    """Estimates are within Hoeffding's bound, also for draws without replacement: c of n_j reports is off by t with a
    chance of at most 2 e^(-2 t^2 / n_j), here 1e-8 for each of fewer than 50 cells."""
    made, table = local_plan(), rows(2_000)
    with up(place, table, **dict.fromkeys(NAMES, POLICY)):
        outcome = coordinator(place).run("first", made, tmp_path / "model")
    assert set(outcome.finished[0]) == set(NAMES)
    truth = exact_counts(made, table)
    noisy = read_measurements(tmp_path / "model", made.digest).one_way
    for found, exact, kind in zip(noisy, truth, made.reports, strict=True):
        # Each of 2,000 units reports on this column with a chance of 1/4. Fewer than 380 do so with a chance of at most
        # e^(-120^2 / (2 375 + 2 120 / 3)), 3e-8 (Bernstein, of variance 375).
        bound = 2_000 / 380 * math.sqrt(380 * math.log(2e8) / 2) / float(kind.p - kind.q) + 1
        assert np.abs(found.counts - exact).max() < bound
    assert len(generator("independent").sample(tmp_path / "model", 50)) == 50
