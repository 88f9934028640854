"""Values that are not declared: which are learned, the claim about that, and injected mistakes.

Two attacks, by somebody who knows all records but one person's, on thousands of real runs: *alone*, on whether a value
is shown that only that person has; *among others*, on whether a value is shown that others have nearly often enough. A
correct mechanism stays within its claim up to FALSE_ALARM, and each planted mistake breaks it for all practical
purposes always (the rates are given beside each).
"""

import contextlib
import dataclasses
import json
import math
from collections import Counter
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from audit_cases import gaussian_delta
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from synth_cases import SCHEMA, contract_with, grant_for, people, write_bounded

from dpsynth_platform.audit.bounds import clopper_pearson
from dpsynth_platform.audit.canaries import make_canaries
from dpsynth_platform.contracts.methods import NETWORK_METHODS
from dpsynth_platform.foundation.errors import ContractError, GrantRefused, MechanismFailed
from dpsynth_platform.privacy.accounting import threshold_slack
from dpsynth_platform.privacy.events import ThresholdedGaussianCountsEvent
from dpsynth_platform.privacy.guarantee import Guarantee
from dpsynth_platform.privacy.partitions import Learning
from dpsynth_platform.privacy.units import RECORD_PARTS, row_weight
from dpsynth_platform.synth.interface import TABLE_METHODS, SealedPlan, generator
from dpsynth_platform.synth.mock import mock_table
from dpsynth_platform.synth.tabular import counting, learning
from dpsynth_platform.synth.tabular.counting import LONGEST_VALUE, Records
from dpsynth_platform.synth.tabular.domain import ColumnDomain, Domain, domain_of
from dpsynth_platform.synth.tabular.learning import learned_domain, values_shown
from dpsynth_platform.synth.tabular.measurements import FILE_NAME, MeasurementLog, read_measurements
from dpsynth_platform.synth.tabular.model import clique_scores, load_model
from dpsynth_platform.synth.tabular.noise import sample_rounded_gaussian

FALSE_ALARM = 1e-7
LEARNED_CITY = {"type": "categorical", "values": "learned", "most": 20, "nullable": True}


def records_of(plan, bounded):
    return Records(bounded, Domain.from_json(plan.columns), Guarantee.from_json(plan.guarantee).weighting)


@pytest.fixture
def no_noise(monkeypatch):
    monkeypatch.setattr(learning, "sample_rounded_gaussian", lambda counts, sigma: counts)


# Which values are shown.


@pytest.mark.usefixtures("no_noise")
def test_values_from_the_threshold_up_are_shown_in_the_order_of_their_letters():
    counts = {"Zug": 50, "Aix": 10, "Bern": 9, "": 11, "Cork": 70}
    assert values_shown(counts, Learning(1.0, 10), 10) == ("", "Aix", "Cork", "Zug")
    assert values_shown({}, Learning(1.0, 10), 10) == ()


@pytest.mark.usefixtures("no_noise")
@given(st.permutations(["b", "a", "d", "c"]))
def test_of_too_many_the_largest_are_kept_and_the_order_of_records_tells_nothing(order):
    counts = {value: {"a": 30, "b": 20, "c": 20, "d": 20}[value] for value in order}
    assert values_shown(counts, Learning(1.0, 10), 3) == ("a", "b", "c")


def chance(count, learned):
    return stats.norm.sf((learned.threshold - count - 0.5) / learned.sigma)


@pytest.mark.parametrize("count", [1, 20, 28, 31, 45])
def test_a_value_is_shown_with_the_chance_that_its_count_has(count):
    learned, runs = Learning(6.0, 30), 4000
    counts = {str(number): count for number in range(runs)}
    shown = len(values_shown(counts, learned, runs))
    low, high = stats.binom.interval(1 - FALSE_ALARM, runs, chance(count, learned))
    assert low <= shown <= high


def test_what_is_no_value_of_text_counts_as_missing(tmp_path):
    broken = pa.array([b"\xff\xfe", b"good"], pa.binary()).view(pa.string())
    texts = pa.concat_arrays([broken, pa.array(["é" * (LONGEST_VALUE // 2), "é" * LONGEST_VALUE, None, "", "good"])])
    table = pa.table(
        {
            "text": texts,
            "large": pa.array(["a", "b", "a", None, "a", "b", "c"], pa.large_string()),
            "coded": pa.array(["a", "b", "a", None, "a", "b", "c"]).dictionary_encode(),
            "code": pa.array([-7, 3, 3, None, 3, 12, 12], pa.int16()),
        }
    )
    columns = [ColumnDomain(name, "categorical", True, most=5) for name in table.column_names]
    with in_memory(table):
        text, large, coded, code = Records(Path("in memory"), Domain(tuple(columns))).values().values()
    assert text == {"good": 2, "": 1, "é" * (LONGEST_VALUE // 2): 1}
    assert large == coded == {"a": 3, "b": 2, "c": 1}
    assert code == {"-7": 1, "3": 3, "12": 2}
    known = dataclasses.replace(columns[3], most=None, values=("12", "3"))
    assert known.encode(table["code"]).tolist() == [2, 1, 1, 2, 1, 0, 0]
    assert known.decode(np.array([0, 1, 2]), pa.int16(), np.random.default_rng()).to_pylist() == [12, 3, None]


@contextlib.contextmanager
def in_memory(table):
    batches = table.num_rows // 2 + 1
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(counting, "read_table", lambda path, columns: iter(table.select(columns).to_batches(batches)))
        yield


def test_where_owners_are_counted_their_rows_weigh_one_together():
    owners = ["a" * 32] * 3 + ["b" * 32] * 2 + ["c" * 32]
    table = pa.table({"city": ["Aix", "Aix", "Bern", "Aix", None, "Bern"], "_owner": owners})
    domain = Domain((ColumnDomain("city", "categorical", True, most=5),))
    with in_memory(table):
        (counts,) = Records(Path("in memory"), domain, "owners").values().values()
    assert counts == {"Aix": 2 * row_weight(3) + row_weight(2), "Bern": row_weight(3) + RECORD_PARTS}


@pytest.mark.usefixtures("no_noise")
def test_the_threshold_is_of_records_whatever_parts_are_counted():
    counts = {"Aix": 10 * RECORD_PARTS, "Bern": 10 * RECORD_PARTS - 1}
    assert values_shown(counts, Learning(1.0, 10), 5, RECORD_PARTS) == ("Aix",)


# The sealed plan.


def plan_of(method="mst", **changes):
    contract = contract_with(columns__city=LEARNED_CITY, generate={"method": method, "rows": 500}, **changes)
    return generator(method).plan(contract, SCHEMA, Guarantee.target(contract))


def altered(plan, **rule):
    columns = [
        column | {"learning": column["learning"] | rule} if column["learning"] else column for column in plan.columns
    ]
    return dataclasses.replace(plan, columns=columns)


def test_the_plan_says_how_values_are_learned_and_none_of_them():
    plan = plan_of()
    (column,) = [column for column in plan.columns if column["name"] == "city"]
    assert (column["values"], column["most"]) == ([], 20)
    described = plan.describe()
    assert described["learned"] == [{"column": "city", "most": 20, **column["learning"]}]
    assert described["event"].startswith("the values of city, each shown if its count with rounded Gaussian noise")
    assert SealedPlan.from_json(plan.to_json()) == plan
    domain = Domain.from_json(plan.columns)
    assert domain.sizes[domain.names.index("city")] == 21
    assert f"those that {column['learning']['threshold']} records or so have, at most 20" in domain.preparation


@pytest.mark.parametrize("rule", [{"threshold": 3}, {"sigma": 0.5}])
def test_a_plan_with_another_rule_than_its_event_is_not_run(tmp_path, rule):
    plan = altered(plan_of(), **rule)
    with pytest.raises(GrantRefused, match="not that of its noise scales"):
        generator("mst").fit(plan, tmp_path, grant_for(plan), tmp_path)
    assert not (tmp_path / FILE_NAME).exists()


def test_a_plan_without_a_rule_learns_nothing(tmp_path):
    plan = plan_of()
    plan = dataclasses.replace(plan, columns=[column | {"learning": None} for column in plan.columns])
    refused = pytest.raises(GrantRefused, match="no threshold")
    with in_memory(people(10)), MeasurementLog.create(tmp_path, plan.digest) as log, refused:
        learned_domain(records_of(plan, tmp_path), log)
    assert "values" not in (tmp_path / FILE_NAME).read_text()


# From a table to synthetic rows.


def with_cities(values, rows=3000):
    table = people(rows)
    place = table.column_names.index("city")
    cities = table["city"].to_pylist()
    return table.set_column(place, "city", pa.array([*values, *cities[len(values) :]]))


def public_for(method, place):
    """The public table that `jam` needs: other people of the same cities."""
    if method != "jam":
        return {}
    pq.write_table(people(500), place)
    return {"generate__public": {"uri": str(place), "why": "made up for tests"}}


@pytest.mark.parametrize("weighting", ["rows", "owners"])
@pytest.mark.parametrize("method", TABLE_METHODS)
def test_every_method_learns_before_it_measures(tmp_path, method, weighting):
    if method in NETWORK_METHODS and weighting == "owners":
        with pytest.raises(ContractError, match="training takes records in full; accepted: rows"):
            plan_of(method, privacy__weighting=weighting)
        return
    plan = plan_of(method, privacy__weighting=weighting, **public_for(method, tmp_path / "public.parquet"))
    bounded = write_bounded(with_cities(["Secretville", "Secretville"]), tmp_path / "table")
    (tmp_path / "model").mkdir()
    generator(method).fit(plan, bounded, grant_for(plan), tmp_path / "model")
    lines = [json.loads(line) for line in (tmp_path / "model" / FILE_NAME).read_text().splitlines()]
    city = Domain.from_json(plan.columns).names.index("city")
    # Secretville is shown with a chance of 7e-8, or of 2e-7 at most where owners are counted (two records beside 60).
    assert lines[1] == {"kind": "values", "column": city, "values": ["Aix", "Bern", "Cork"]}
    model = load_model(tmp_path / "model")
    assert model.domain.columns[city].values == ("Aix", "Bern", "Cork")
    drawn = generator(method).sample(tmp_path / "model", 400)
    assert drawn.schema.field("city").type == SCHEMA.field("city").type
    counts = Counter(drawn["city"].to_pylist())
    assert set(counts) <= {"Aix", "Bern", "Cork", None}
    assert min(counts[value] for value in ("Aix", "Bern", "Cork")) > 50
    contract = contract_with(columns__city=LEARNED_CITY)
    canaries = make_canaries(contract, bounded_schema(), 30, 2, None)
    assert canaries.table["city"].null_count == 60
    assert clique_scores(model, canaries.values).counts.shape[0] == 30


def bounded_schema():
    return people(1).schema


@pytest.mark.parametrize("method", TABLE_METHODS)
@pytest.mark.parametrize("nullable", [True, False])
def test_where_all_values_are_rare_the_column_is_missing(tmp_path, method, nullable, monkeypatch):
    # Each of the thousand is shown with a chance of 4e-8, where noise is above 5.4 deviations: noise is cut below that.
    draw = learning.sample_rounded_gaussian
    monkeypatch.setattr(
        learning,
        "sample_rounded_gaussian",
        lambda counts, sigma: np.minimum(draw(counts, sigma), counts + int(5 * sigma)),
    )
    public = public_for(method, tmp_path / "public.parquet")
    contract = contract_with(columns__city=LEARNED_CITY | {"nullable": nullable}, generate__method=method, **public)
    plan = generator(method).plan(contract, SCHEMA, Guarantee.target(contract))
    bounded = write_bounded(with_cities([f"city {number}" for number in range(1000)], 1000), tmp_path / "table")
    (tmp_path / "model").mkdir()
    generator(method).fit(plan, bounded, grant_for(plan), tmp_path / "model")
    drawn = generator(method).sample(tmp_path / "model", 100)
    assert drawn["city"].null_count == 100
    assert drawn["age"].null_count == 0
    assert drawn.schema.field("city").nullable


def test_ten_thousand_values(tmp_path):
    plan = plan_of()
    rng = np.random.default_rng(1)
    cities = [f"city {number:05d}" for number in range(10_000)] + [f"large {number}" for number in range(30)] * 150
    table = people(len(cities))
    table = table.set_column(table.column_names.index("city"), "city", pa.array(rng.permutation(cities)))
    with in_memory(table), MeasurementLog.create(tmp_path, plan.digest) as log:
        domain = learned_domain(records_of(plan, tmp_path), log)
    (city,) = [column for column in domain if column.name == "city"]
    assert len(city.values) == 20  # of thirty that pass, as many as the contract keeps
    assert all(value.startswith("large") for value in city.values)


def test_more_values_than_memory_holds_are_refused_before_anything_is_read():
    many = {name: LEARNED_CITY | {"most": 10_000} for name in ("one", "two", "three")}
    contract = contract_with(columns={"person_id": {"type": "identifier"}, **many}, generate__method="mst")
    schema = pa.schema({"person_id": pa.string(), **dict.fromkeys(many, pa.string())})
    with pytest.raises(ContractError, match=r"learn fewer of them \(most\)"):
        generator("mst").plan(contract, schema, Guarantee.target(contract))


def test_what_was_not_completed_is_not_used(tmp_path):
    plan = plan_of()
    bounded = write_bounded(people(2000), tmp_path / "table")
    (tmp_path / "model").mkdir()
    generator("mst").measure(plan, bounded, tmp_path / "model")
    path = tmp_path / "model" / FILE_NAME
    whole = path.read_text().splitlines(keepends=True)
    assert read_measurements(tmp_path / "model", plan.digest).learned
    path.write_text("".join(whole[:2]))
    with pytest.raises(MechanismFailed, match="before its measurements were complete"):
        generator("mst").estimate(plan, tmp_path / "model")
    path.write_text("".join([whole[0], *whole[2:]]))
    with pytest.raises(MechanismFailed, match="lack the values of city"):
        generator("mst").estimate(plan, tmp_path / "model")


def test_a_mock_table_invents_values_and_planning_reckons_with_the_most_of_them():
    contract = contract_with(columns__city=LEARNED_CITY | {"most": 3})
    assert set(mock_table(contract, 500)["city"].to_pylist()) == {"1", "2", "3", None}
    assert domain_of(contract).most_states[-2] == 4
    assert domain_of(contract).columns[-2].allowed.tolist() == [False, False, False, True]


# The audit. Four records of one person; the claim is at a slack that some thousands of runs can distinguish.

B = 4
LEARNING = Learning(sigma=8.0, threshold=18)
SLACK = threshold_slack(ThresholdedGaussianCountsEvent(LEARNING.sigma, float(LEARNING.threshold), "add-or-remove", B))
RUNS = 6000
OTHERS = LEARNING.threshold - 2
"""Records of others with the second value: the most informative count."""
EPSILON = 1.0
DELTA = gaussian_delta(B / LEARNING.sigma, EPSILON)


def shown_in_runs(table, value, rule=LEARNING, runs=RUNS):
    """In how many runs of the mechanism on the table a value is shown that begins so."""
    claim = Guarantee(EPSILON, DELTA + SLACK, "user", "add-or-remove", B)
    column = ColumnDomain("city", "categorical", True, most=5, learning=rule)
    plan = dataclasses.replace(plan_of(), columns=Domain((column,)).to_json(), guarantee=claim.to_json())
    log = _Silent()
    with in_memory(table):
        found = (learned_domain(records_of(plan, Path("in memory")), log).columns[0].values for _ in range(runs))
        return sum(any(one.startswith(value) for one in values) for values in found)


class _Silent(MeasurementLog):
    def __init__(self):
        pass

    def _append(self, document):
        pass


def tables(spread=1):
    """Neighbours: others' records, and the same with one person's, of which those alone have `spread` values."""
    others = ["Aix"] * 60 + ["Bern"] * OTHERS
    alone = [f"alone {number % spread}" for number in range(B)]
    without = pa.table({"city": others})
    return without, pa.table({"city": others + alone}), pa.table({"city": others + ["Bern"] * B})


def beyond(hits, runs, claim):
    """Whether a rate is above a claim, up to FALSE_ALARM."""
    return clopper_pearson(hits, runs, 1 - 2 * FALSE_ALARM)[0] > claim


def breaks_the_claim(inside, outside, runs=RUNS, epsilon=EPSILON, delta=DELTA + SLACK):
    """Whether the two rates break (epsilon, delta), in either direction and for both outcomes."""
    ends = [clopper_pearson(hits, runs, 1 - FALSE_ALARM) for hits in (inside, outside)]
    pairs = [(ends[0], ends[1]), (ends[1], ends[0])]
    shown = any(mine[0] > math.exp(epsilon) * other[1] + delta for mine, other in pairs)
    hidden = any(1 - mine[1] > math.exp(epsilon) * (1 - other[0]) + delta for mine, other in pairs)
    return shown or hidden


@pytest.mark.parametrize("spread", [1, 2, 4])
def test_values_of_one_person_alone_are_shown_no_more_often_than_the_slack(spread):
    without, alone, _ = tables(spread)
    assert shown_in_runs(without, "alone", runs=50) == 0
    shown = shown_in_runs(alone, "alone")
    assert not beyond(shown, RUNS, SLACK)
    low, high = stats.binom.interval(1 - FALSE_ALARM, RUNS, 1 - (1 - chance(B // spread, LEARNING)) ** spread)
    assert low <= shown <= high  # and no less often than is reckoned: the attack looks where the danger is


def test_a_value_of_many_tells_little_of_one_person():
    without, _, among = tables()
    assert not breaks_the_claim(shown_in_runs(among, "Bern"), shown_in_runs(without, "Bern"))


def test_a_threshold_that_is_too_low_is_found():
    """By a sigma and a half: a rate of 0.475 where 0.045 is claimed."""
    _, alone, _ = tables()
    assert beyond(shown_in_runs(alone, "alone", Learning(8.0, 5), 400), 400, SLACK)


def test_a_threshold_for_one_record_is_found_where_a_person_has_more():
    """Its slack is that of b = 1: 0.0196 claimed at this threshold, and a rate of 0.0458.

    4,000 runs would miss it in 7e-6 of all cases, 6,000 in 9e-11.
    """
    slack = threshold_slack(ThresholdedGaussianCountsEvent(8.0, 18.0, "add-or-remove", 1))
    _, alone, _ = tables()
    assert beyond(shown_in_runs(alone, "alone"), RUNS, slack)


def test_seen_at_least_once_is_found():
    _, alone, _ = tables()
    assert beyond(shown_in_runs(alone, "alone", Learning(2.0**-10, 1), 200), 200, SLACK)


def test_missing_noise_is_found(monkeypatch):
    """Without noise the value of many is shown for certain with the person, and never without."""
    monkeypatch.setattr(learning, "sample_rounded_gaussian", lambda counts, sigma: counts)
    without, alone, among = tables()
    assert shown_in_runs(alone, "alone", runs=50) == 0  # here the threshold seems to protect
    runs = 200
    assert breaks_the_claim(shown_in_runs(among, "Bern", runs=runs), shown_in_runs(without, "Bern", runs=runs), runs)


def test_noise_that_forgets_the_bound_is_found(monkeypatch):
    """A quarter of the noise: rates of 0.89 and 0.23, where e * 0.23 + 0.06 is claimed."""

    def narrow(counts, sigma):
        return sample_rounded_gaussian(counts, sigma / B)

    monkeypatch.setattr(learning, "sample_rounded_gaussian", narrow)
    without, _, among = tables()
    assert breaks_the_claim(shown_in_runs(among, "Bern"), shown_in_runs(without, "Bern"))
