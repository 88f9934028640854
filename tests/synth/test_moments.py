"""Moments by their day, weekday, hour and gap: what is counted of a record, alike in both engines, and what returns."""

import dataclasses
import datetime as dt
import itertools
import secrets

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from synth_cases import SCHEMA, contract_with, grant_for, write_bounded

from dpsynth_platform.audit.tables.attributes import infer_attribute
from dpsynth_platform.audit.tables.evidence import Evidence
from dpsynth_platform.audit.tables.marginal_aware import counts_attack
from dpsynth_platform.audit.tables.shadows import as_records
from dpsynth_platform.contracts.constraints import Constraint, gap_orders
from dpsynth_platform.contracts.methods import NETWORK_METHODS
from dpsynth_platform.foundation.errors import ContractError, GrantRefused
from dpsynth_platform.privacy.guarantee import Guarantee
from dpsynth_platform.synth.interface import TABLE_METHODS, generator
from dpsynth_platform.synth.tabular import marginals
from dpsynth_platform.synth.tabular.attributes import planned_domain
from dpsynth_platform.synth.tabular.counting import Records
from dpsynth_platform.synth.tabular.derivation import ANY, DAY, HOUR, WEEK, moments_in, parts_of_weeks
from dpsynth_platform.synth.tabular.domain import Domain, domain_of
from dpsynth_platform.synth.tabular.drawing import Draws
from dpsynth_platform.synth.tabular.model import load_model, log_likelihood
from dpsynth_platform.synth.tabular.placing import Placed
from dpsynth_platform.synth.tabular.workload import workload_of
from dpsynth_platform.training import stream

SECOND = 1_000_000
YEAR = {"type": "datetime", "min": "2026-01-01T00:00:00", "max": "2026-12-31T23:59:59"}
FIRST = (dt.datetime(2026, 1, 1) - dt.datetime(1970, 1, 1)) // dt.timedelta(microseconds=1)
ID = {"type": "identifier"}
ZONES = {"type": "categorical", "values": ["A", "B"]}
TRIP = {"trip": ID, "pickup": YEAR, "dropoff": YEAR, "zone": ZONES}
SEVENTH = 7 * 60 * 1_000_000
SEVENS = {
    "type": "datetime",
    "resolution": "7min",
    **{
        end: str(dt.datetime(1970, 1, 1) + dt.timedelta(microseconds=value // SEVENTH * SEVENTH))
        for end, value in (("min", FIRST + SEVENTH), ("max", FIRST + 364 * DAY))
    },
}
"""In steps that do not divide a day."""
IN_ORDER = [{"ascending": ["pickup", "dropoff"]}]


def trips(columns=TRIP, constraints=IN_ORDER, rows=20_000, **changes):
    """The contract of trips."""
    return contract_with(
        privacy__owner_columns=["trip"],
        privacy__max_contributions=1,
        privacy__expected_units=rows,
        source__key=["trip"],
        columns=columns,
        generate={"rows": rows, "constraints": constraints},
        **changes,
    )


def domain_with(declared, **others):
    return planned_domain(trips({"trip": ID, "x": declared, **others}, []))


def schema_of(contract):
    kinds = {"identifier": pa.string(), "datetime": pa.timestamp("us"), "date": pa.date32(), "time": pa.time64("us")}
    return pa.schema(
        [(name, kinds.get(column.type, pa.string())) for name, column in contract.columns.items()],
    )


def released(contract):
    return pa.schema([field for field in schema_of(contract) if field.name != "trip"])


def micros(column):
    return column.combine_chunks().cast(pa.timestamp("us")).cast(pa.int64()).to_numpy(zero_copy_only=False)


def rides(rows, seed=0, year=365):
    """Rush hours on working days, late evenings at weekends; lognormal rides of eleven minutes in the median."""
    rng = np.random.default_rng(seed)
    day = rng.integers(0, year, rows)
    working = (day + 3) % 7 < 5  # 2026 begins on a Thursday
    hour = np.where(working, rng.choice([8, 9, 17, 18], rows), rng.choice([0, 1, 22, 23], rows))
    pickup = FIRST + day * DAY + hour * HOUR + rng.integers(0, 3600, rows) * SECOND
    ride = np.exp(rng.normal(np.log(660), 0.65, rows)).clip(1, 40_000).astype(np.int64) * SECOND
    last = FIRST + 365 * DAY - SECOND
    return pickup, np.minimum(pickup + ride, last), np.where(working, "A", "B")


def bounded(path, columns):
    rows = len(next(iter(columns.values())))
    owners = {
        "_owner": [f"{index:032x}" for index in range(rows)],
        "_record": [f"{index:064x}" for index in range(rows)],
    }
    return write_bounded(pa.table(columns | owners), path)


def moments(values, missing=None):
    return pa.array(values, pa.int64(), mask=missing).cast(pa.timestamp("us"))


def fitted(contract, table, directory, method="mst"):
    made = generator(method)
    plan = made.plan(contract, schema_of(contract), Guarantee.target(contract))
    directory.mkdir()
    made.fit(plan, table, grant_for(plan), directory)
    return made, plan


def distance(first, second, cells):
    """Total variation of two samples of cells."""
    one, two = (np.bincount(values, minlength=cells) / len(values) for values in (first, second))
    return 0.5 * np.abs(one - two).sum()


def hours(values):
    return values // HOUR % 24


def weekly(values):
    """The hour of the week."""
    return (values + 3 * DAY) % WEEK // HOUR


@pytest.mark.parametrize(
    ("declared", "parts", "cells"),
    [
        (YEAR, ["weekday", "hour"], 365),
        (YEAR | {"bins": 12}, ["weekday", "hour"], 12),
        (YEAR | {"bins": 365}, ["hour"], 365),  # single days, told apart in pairs as well
        (YEAR | {"min": "2020-01-01T00:00:00"}, ["weekday", "hour"], 258),
        (YEAR | {"max": "2026-01-15T12:00:00"}, ["hour"], 15),
        (YEAR | {"max": "2026-01-10T23:59:59"}, [], 258),  # cells of less than an hour
        (YEAR | {"max": "2026-01-01T20:00:00", "bins": 4}, [], 4),  # one day
        (YEAR | {"resolution": "6h", "max": "2026-12-31T18:00:00"}, ["weekday", "hour"], 365),
        (YEAR | {"resolution": "24h", "max": "2026-12-31T00:00:00"}, ["weekday"], 365),
        (SEVENS, [], 258),  # no part of a day
    ],
)
def test_which_attributes_moments_get_follows_from_their_declaration(declared, parts, cells):
    domain = domain_with(declared)
    assert [column.kind for column in domain][1:] == parts
    assert domain.names[1:] == tuple(f"x ({part})" for part in parts)
    assert domain.columns[0].missing == cells
    assert [domain.columns[part].nullable for part in domain.parts] == [False] * len(parts)
    assert domain.released.names == ("x",)


def test_attributes_say_what_they_are():
    domain = planned_domain(trips())
    assert domain.names == ("pickup", "dropoff", "zone", "pickup (weekday)", "pickup (hour)", "dropoff (weekday)",
                            "dropoff (hour)")  # fmt: skip
    assert domain.preparation.startswith(
        "dropoff is counted by its time since pickup (so that their order holds), weekday and hour; pickup is counted "
        "by its day, weekday and hour; "
    )
    assert (domain.columns[3].label(0), domain.columns[4].label(23), domain.columns[4].label(24)) == (
        "Monday", "23:00", "missing"
    )  # fmt: skip
    assert domain.columns[1].label(0) == "0 s"
    assert Domain.from_json(domain.to_json()) == domain
    assert domain.filled == ("pickup", "dropoff", "zone")


def test_no_attribute_has_the_name_of_a_column():
    domain = planned_domain(trips(NAMED_LIKE_PARTS, []))
    assert len(set(domain.names)) == len(domain) == 8
    assert set(domain.released.names) == set(NAMED_LIKE_PARTS) - {"trip"}
    assert [domain.names[index] for index in domain.parts] == [
        f"{ODD} (weekday)",
        f"{ODD} (hour)''",
        f"{ODDER} (weekday)",
        f"{ODDER} (hour)",
    ]


def test_gaps_are_fine_where_they_are_short():
    gap = planned_domain(trips()).columns[1]
    edges = np.array(gap.edges)
    assert gap.derived.longest == 365 * 86_400 - 1
    assert (edges[0], edges[1], edges[-1]) == (0, 1, 365 * 86_400)
    relative = np.diff(edges)[1:-1] / edges[1:-2]
    assert relative[edges[1:-2] > 10].max() < 0.25


@pytest.mark.parametrize(
    ("orders", "expected"),
    [
        ([["a", "b", "c"]], {"b": ["a"], "c": ["b", "a"]}),
        ([["a", "b"], ["c", "b"]], {"b": ["a"]}),
        ([["a", "b"], ["b", "a"]], {"b": ["a"]}),
        ([["a", "b"], ["b", "c"], ["c", "a"]], {"b": ["a"], "c": ["b"]}),
        ([["a", "n"]], {}),
        ([["n", "m"]], {}),
    ],
)
def test_which_columns_have_gaps(orders, expected):
    kinds = dict.fromkeys("abc", "datetime") | dict.fromkeys("nm", "integer")
    found = gap_orders([Constraint(ascending=names) for names in orders], kinds)
    assert {later: list(earlier) for later, (earlier, _) in found.items()} == expected


def test_a_long_order_takes_no_time():
    names = [f"c{number}" for number in range(300)]
    found = gap_orders([Constraint(ascending=names)] * 2, dict.fromkeys(names, "date"))
    assert len(found) == 299
    assert found["c299"] == (tuple(reversed(names[:-1])), False)


def test_plans_without_moments_are_as_they_were():
    """The digest before such attributes existed: another digest would be another run, paid again."""
    contract = contract_with(generate__constraints=[{"ascending": ["age", "score"]}])
    assert planned_domain(contract) == domain_of(contract)
    assert "derived" not in str(planned_domain(contract).to_json())
    assert "gaps" not in contract.mechanism_snapshot()
    plain = contract_with()
    plan = generator("mst").plan(plain, SCHEMA, Guarantee.target(plain))
    assert plan.digest == "479228188da29b4dcda885dd287c547bcecf8e0a6eb6843057fd547a9836a9e8"
    assert workload_of(contract, ["age", "score", "day"]) == workload_of(contract, ["age", "score", "day"], {})


def test_an_order_of_moments_is_another_mechanism():
    ordered, plain = trips(), trips(constraints=[])
    assert ordered.mechanism_snapshot() == plain.mechanism_snapshot() | {
        "gaps": {"dropoff": {"after": ["pickup"], "strict": False}}
    }


def test_a_workload_means_attributes_too():
    contract = trips(
        generate__workload={"weights": {"pickup": 2.0}, "queries": [{"columns": ["pickup", "zone"], "weight": 50}]}
    )
    domain = planned_domain(contract)
    weights = workload_of(contract, domain.names, domain.parts).named
    assert {weights[2, 3], weights[2, 4], weights[0, 2]} == {256}
    assert weights[0, 1] == weights[1, 3] == 2 * weights[1, 2]


NULLABLE = YEAR | {"nullable": True}
CHAIN = {"trip": ID, "a": NULLABLE, "b": NULLABLE, "c": SEVENS}
DATES = {"type": "date", "min": "1969-12-01", "max": "1970-02-01", "nullable": True}
EARLY = {"type": "datetime", "min": "1969-11-30T05:00:00", "max": "1970-01-31T22:59:30", "resolution": "30s",
         "nullable": True}  # fmt: skip
ODD, ODDER = 'quo"te.at', "b`; --"
NAMED_LIKE_PARTS = {"trip": ID, ODD: YEAR, ODDER: NULLABLE, f"{ODD} (hour)": ZONES, f"{ODD} (hour)'": ZONES}
CASES = [
    (TRIP, IN_ORDER),
    (NAMED_LIKE_PARTS, [{"ascending": [ODD, ODDER]}]),
    (CHAIN, [{"ascending": ["a", "b", "c"], "strict": True}]),
    ({"trip": ID, "a": DATES, "b": DATES}, [{"ascending": ["a", "b"]}]),
    (
        {"trip": ID, "a": EARLY, "b": EARLY | {"resolution": "1min", "max": "1970-01-31T22:59:00"}},
        [{"ascending": ["a", "b"], "strict": True}],
    ),
    (
        {
            "trip": ID,
            "a": EARLY | {"resolution": "6h", "min": "1969-11-30T06:00:00", "max": "1970-01-31T18:00:00"},
            "b": EARLY,
        },
        [{"ascending": ["b", "a"]}],
    ),
]


def nasty(contract, rows=3000, seed=5):
    """Moments in, on the ends of, and far outside of their ranges, half of them near each other; many are missing."""
    rng = np.random.default_rng(seed)
    columns = {}
    near = rng.integers(-50 * DAY, 400 * DAY, rows)
    for name, column in contract.columns.items():
        if column.type == "categorical":
            columns[name] = pa.array(rng.choice(["A", "B"], rows))
        if column.type not in ("date", "datetime"):
            continue
        low, high = (
            (value - dt.date(1970, 1, 1)).days * DAY
            if column.type == "date"
            else (value - dt.datetime(1970, 1, 1)) // dt.timedelta(microseconds=1)
            for value in (column.min, column.max)
        )
        ends = [
            low,
            high,
            *(edge + off for edge in (low, high, 0) for off in (-1, 0, 1, HOUR - 1, HOUR, -DAY, 7 * DAY)),
        ]
        ends += [-(2**61), 2**61]
        kinds = rng.integers(0, 3, rows)
        values = np.where(kinds == 0, rng.choice(ends, rows), low + near + rng.integers(-2 * HOUR, 2 * HOUR, rows))
        array = moments(values, rng.uniform(size=rows) < 0.2)
        if column.type == "date":
            values = np.clip(values // DAY, -719_162, 2_932_896)  # the years 1 to 9999
            array = pa.array(values.astype(np.int32), mask=rng.uniform(size=rows) < 0.2).cast(pa.date32())
        columns[name] = array
    return columns


@pytest.mark.parametrize(("columns", "constraints"), CASES)
def test_every_record_is_in_one_cell_of_each_attribute_by_its_own_values(columns, constraints):
    """The sensitivity of a count: one, for each record that comes or goes, whatever the others are."""
    contract = trips(columns, constraints)
    domain, table = planned_domain(contract), pa.table(nasty(contract, 400))
    codes = domain.encode(table)
    assert ((codes >= 0) & (codes < np.array(domain.sizes))).all()
    for place in range(0, 400, 7):
        assert np.array_equal(domain.encode(table.slice(place, 1))[0], codes[place])
    less = domain.encode(table.slice(1))
    for index, size in enumerate(domain.sizes):
        moved = np.bincount(codes[:, index], minlength=size) - np.bincount(less[:, index], minlength=size)
        assert np.abs(moved).sum() == 1


@pytest.mark.parametrize("weighting", ["rows", "owners"])
@pytest.mark.parametrize(("columns", "constraints"), CASES)
def test_both_engines_count_what_this_process_counts(engine, tmp_path, columns, constraints, weighting):
    contract = trips(columns, constraints)
    path, domain = bounded(tmp_path / "bounded", nasty(contract)), planned_domain(contract)
    mine, theirs = Records(path, domain, weighting), Records(path, domain, weighting, engine)
    assert theirs._sql is not None
    for column, one, other in zip(domain, mine.one_way(), theirs.one_way(), strict=True):
        assert np.array_equal(one, other), column.name
        assert np.count_nonzero(one) > 1


def test_moments_of_two_types_and_zones_are_counted_alike(engine, tmp_path):
    contract = trips({"trip": ID, "a": EARLY, "b": EARLY}, [{"ascending": ["a", "b"]}])
    columns = nasty(contract)
    zoned = columns | {"a": columns["a"].cast(pa.timestamp("us", "UTC"))}
    domain = planned_domain(contract)
    paths = [bounded(tmp_path / name, each) for name, each in (("plain", columns), ("zoned", zoned))]
    plain, other = (Records(path, domain, "rows", engine).one_way() for path in paths)
    assert all(np.array_equal(one, two) for one, two in zip(plain, other, strict=True))


def test_what_a_record_is_counted_as():
    contract = trips(CHAIN, [{"ascending": ["a", "b", "c"]}])
    domain = planned_domain(contract)
    at = {name: index for index, name in enumerate(domain.names)}
    noon = FIRST + 12 * HOUR  # of a Thursday
    rows = [  # a, b, c; gaps of b in seconds and of c in 7 minutes, which are counted since 1970
        (noon, noon + 90 * SECOND, noon + DAY),
        (noon, noon - HOUR, noon + DAY),  # out of order: the least gap
        (noon, None, noon + DAY),  # c is timed by a
        (None, noon, noon + DAY),
        (None, None, noon + DAY),  # nothing earlier
        (noon, noon, None),
        (noon - 365 * DAY, noon, noon),  # clamped to the first moment
    ]
    table = pa.table({name: moments([row[i] or 0 for row in rows], np.array([row[i] is None for row in rows]))
                      for i, name in enumerate("abc")})  # fmt: skip
    codes = domain.encode(table)
    gap = domain.columns[at["b"]]
    assert gap.derived.alone == gap.derived.longest + 1
    spans = [(gap.edges[code], gap.edges[code + 1]) if code < gap.missing else None for code in codes[:, at["b"]]]
    assert spans[0][0] <= 90 < spans[0][1]
    assert spans[1] == spans[5] == (0, 1)
    assert spans[2] is spans[4] is None
    assert spans[3] == (gap.derived.alone, gap.derived.alone + 1)
    assert spans[6][0] <= 12 * 3600 < spans[6][1]
    later = domain.columns[at["c"]]
    values, absent = later.derived.values(table)
    assert values[[1, 2, 3]].tolist() == [
        (noon + DAY) // SEVENTH + (HOUR - noon) // SEVENTH,
        *[(noon + DAY) // SEVENTH + -noon // SEVENTH] * 2,
    ]
    assert values[4] == later.derived.alone
    assert absent.tolist() == [False] * 5 + [True, False]
    assert codes[:, at["a (hour)"]].tolist() == [12, 12, 12, 24, 24, 12, 0]
    assert codes[:, at["a (weekday)"]].tolist() == [3, 3, 3, 7, 7, 3, 3]


@settings(max_examples=60, derandomize=True, deadline=None)
@given(
    low=st.integers(-20 * WEEK, 20 * WEEK),
    length=st.integers(1, 3 * WEEK),
    hour=st.integers(-1, 23),
    weekday=st.integers(-1, 6),
)
def test_moments_are_in_their_interval_and_at_their_hour_where_it_has_it(low, length, hour, weekday):
    rows = 50
    ends = np.full(rows, low), np.full(rows, low + length)
    asked = np.full(rows, hour), np.full(rows, weekday)
    found, had = moments_in(*ends, *asked, HOUR, 1, np.random.default_rng(1))
    assert ((found >= low) & (found < low + length)).all()
    start = low // DAY * DAY
    times = [start + number * HOUR for number in range(24 * (length // DAY + 3))]
    inside = [time for time in times if time + HOUR > low and time < low + length]
    both = [time for time in inside if hour in (ANY, time // HOUR % 24) and weekday in (ANY, (time // DAY + 3) % 7)]
    if both:
        assert hour == ANY or (found // HOUR % 24 == hour).all()
        assert weekday == ANY or ((found // DAY + 3) % 7 == weekday).all()
    elif hour != ANY and any(time // HOUR % 24 == hour for time in inside):
        assert (found // HOUR % 24 == hour).all()
    assert had.all() == (had.any()) == (bool(both) or had.any())


def test_moments_are_uniform_in_what_an_interval_has():
    """Of an hour of each day, the first and the last day in part: half an hour, a whole one, a quarter."""
    rows, low, high = 35_000, 12 * HOUR + HOUR // 2, 2 * DAY + 12 * HOUR + HOUR // 4
    ends = np.full(rows, low), np.full(rows, high)
    found, _ = moments_in(*ends, np.full(rows, 12), np.full(rows, ANY), HOUR, SECOND, np.random.default_rng(7))
    days = np.bincount(found // DAY, minlength=3) / rows
    # Six standard deviations of a share, sqrt(.25 / 35000) each, are .016; the seed is fixed all the same.
    np.testing.assert_allclose(days, [2 / 7, 4 / 7, 1 / 7], atol=0.016)


def test_shares_of_weekdays_add_up():
    shares = parts_of_weeks([0, 1, 8, 11], DAY // SECOND * SECOND)
    np.testing.assert_allclose(shares.sum(axis=1), 1)
    assert shares[0].tolist() == [0, 0, 0, 1, 0, 0, 0]
    np.testing.assert_allclose(shares[1], 1 / 7)


@pytest.mark.parametrize(
    ("resolution", "gap", "expected"),
    [
        ("15min", 2 * 3600, 7200.0),
        ("15min", 449, 0.0),  # to the nearest step, so that gaps are right in the mean
        ("15min", 450, 900.0),
        ("24h", 36 * 3600, 2 * 86_400.0),
        ("1s", 7, 7.0),
        ("1ms", 7, 7.0),
    ],
)
def test_a_moment_follows_another_at_a_gap_whatever_their_resolution(resolution, gap, expected):
    moment = {"type": "datetime", "min": "2026-01-01T00:00:00", "max": "2026-12-31T00:00:00", "resolution": resolution}
    steps = {"type": "integer", "min": 0, "max": 400 * 86_400, "bins": [gap, gap + 1]}
    contract = trips({"trip": ID, "before": moment, "at": moment, "gap": steps}, [])
    domain, day = domain_of(contract), moments([FIRST + 3 * DAY] * 5)
    codes = domain.encode(pa.table({"before": day, "at": day, "gap": pa.array([gap] * 5, pa.int64())}))
    placed = Placed(domain, codes, np.random.default_rng(3))
    placed.fix(0, day)
    assert placed.follow(1, 0, 2).all()
    batch = placed.batch(pa.schema([("before", day.type), ("at", day.type), ("gap", pa.int64())]))
    passed = micros(pa.chunked_array([batch["at"]])) - micros(pa.chunked_array([batch["before"]]))
    assert (passed / SECOND).tolist() == [expected] * 5


@pytest.mark.parametrize(("columns", "constraints"), CASES)
def test_what_is_placed_is_counted_in_the_same_cells(columns, constraints):
    """Days and gaps come back to their cells exactly, and hours and weekdays with the days; so does what is missing."""
    contract = trips(columns, constraints)
    domain, table = planned_domain(contract), pa.table(nasty(contract))
    codes = domain.encode(table)
    batch = Placed(domain, codes.copy(), np.random.default_rng(3)).batch(released(contract))
    again = domain.encode(batch)
    for index, column in enumerate(domain):
        if column.kind != "gap":
            continue
        timed = codes[:, index] < column.missing - (column.derived.alone is not None)
        # Where the later range ends, the gap is cut short.
        later = np.asarray(batch.column(column.name).cast(pa.int64() if column.step > 1 or column.derived.of.step > 1
                                                          else pa.int32()).fill_null(0))  # fmt: skip
        end = (column.derived.of.high * column.derived.of.step) == later
        start = (column.derived.of.low * column.derived.of.step) == later
        assert (codes[:, index] == again[:, index])[timed & ~end & ~start].all()
    plain = [i for i, column in enumerate(domain) if column.derived is None]
    gaps = {column.name for column in domain if column.kind == "gap"}
    whole = [i for i, column in enumerate(domain) if column.part_of is not None and column.part_of not in gaps]
    assert np.array_equal(codes[:, plain], again[:, plain])
    assert np.array_equal(codes[:, whole], again[:, whole])
    for index, column in enumerate(domain):
        if column.part_of not in gaps:
            assert np.array_equal(codes[:, index] == column.missing, again[:, index] == column.missing)


METHODS = [method for method in TABLE_METHODS if method not in ("histogram", *NETWORK_METHODS[1:])]
"""All attributes of two moments together have more cells than `histogram` counts; Other networks count as `arn`."""


@pytest.fixture
def fixed_choices(monkeypatch):
    """What trainings and draws choose is the same each time."""
    keys, plain = itertools.count(), np.random.default_rng
    monkeypatch.setattr(stream, "random_key", lambda: next(keys).to_bytes(32, "big"))
    monkeypatch.setattr(secrets, "randbits", lambda _: next(keys))
    monkeypatch.setattr(np.random, "default_rng", lambda seed=None: plain(next(keys) if seed is None else seed))


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.usefixtures("no_noise", "fixed_choices")
@pytest.mark.whole_fits
def test_hours_weekdays_and_gaps_come_back(tmp_path, method):
    """Without noise, what is left is what is put together, and drawing: rounding of 20,000 rows, some tenths of 1%.

    By 256 cells of 34 hours, hours were off by .26 and the median gap was 900 minutes.
    """
    pickup, dropoff, zone = rides(20_000)
    contract = trips()
    table = bounded(tmp_path / "table", {"pickup": moments(pickup), "dropoff": moments(dropoff), "zone": zone})
    made, plan = fitted(contract, table, tmp_path / "model", method)
    assert len(plan.columns) == 7
    drawn = made.draw(tmp_path / "model", constraints=contract.generate.constraints).table()
    first, second = micros(drawn["pickup"]), micros(drawn["dropoff"])
    assert drawn.num_rows == 20_000
    assert (first.min() >= FIRST, second.max() < FIRST + 365 * DAY) == (True, True)
    assert (second >= first).all()
    gaps, real = (second - first) / (60 * SECOND), (dropoff - pickup) / (60 * SECOND)
    np.testing.assert_allclose(np.quantile(gaps, [0.25, 0.5, 0.75]), np.quantile(real, [0.25, 0.5, 0.75]), rtol=0.05)
    assert distance(hours(first), hours(pickup), 24) < 0.01
    assert distance(hours(second), hours(dropoff), 24) < 0.05
    assert distance(first // DAY % 7, pickup // DAY % 7, 7) < 0.02
    if method != "independent":
        # privsyn draws rows of a table: 168 cells of 20,000 independent draws are .037 off on average, within .003.
        assert distance(weekly(first), weekly(pickup), 168) < (0.08 if method == "privsyn" else 0.05)


def test_hours_and_gaps_come_back_under_noise(tmp_path):
    """With its noise: sigma is below 5 records, and of 20,000 rows there are 24 hours.

    Half the L1 norm of the noise of 24 cells is 48 records on average and has a deviation of 7; 400 records, the bound,
    are beyond 40 of them. Half a percent of a gap's distribution is what noise moves of it at most: the quartiles of
    these rides move by less than 2% with it, and by half a cell, 9%, with where values are inside of their cells.
    """
    pickup, dropoff, zone = rides(20_000)
    contract = trips(privacy__guarantee={"epsilon": 9.0, "delta": 1e-5})
    table = bounded(tmp_path / "table", {"pickup": moments(pickup), "dropoff": moments(dropoff), "zone": zone})
    made, plan = fitted(contract, table, tmp_path / "model")
    assert plan.describe()["sigma_one"] < 5
    drawn = made.draw(tmp_path / "model", constraints=contract.generate.constraints).table()
    first, second = micros(drawn["pickup"]), micros(drawn["dropoff"])
    assert distance(hours(first), hours(pickup), 24) < 0.02
    assert np.median(second - first) / (60 * SECOND) == pytest.approx(11, rel=0.15)


@pytest.mark.usefixtures("no_noise")
def test_missing_moments_have_no_hour_and_others_theirs(tmp_path):
    """Parts are missing together, and a missing start leaves the end on the days that others have."""
    pickup, dropoff, zone = rides(20_000, year=100)
    rng = np.random.default_rng(2)
    lost, left = rng.uniform(size=20_000) < 0.4, rng.uniform(size=20_000) < 0.2
    contract = trips({**TRIP, "pickup": NULLABLE, "dropoff": NULLABLE})
    columns = {"pickup": moments(pickup, lost), "dropoff": moments(dropoff, left), "zone": zone}
    made, _ = fitted(contract, bounded(tmp_path / "table", columns), tmp_path / "model", "independent")
    drawn = made.draw(tmp_path / "model", constraints=contract.generate.constraints).table()
    for name, mask, real in (("pickup", lost, pickup), ("dropoff", left, dropoff)):
        column = drawn[name]
        assert abs(column.null_count / 20_000 - mask.mean()) < 0.01
        assert distance(hours(micros(column.drop_null())), hours(real[~mask]), 24) < 0.05
        days = micros(column.drop_null()) // DAY - FIRST // DAY
        assert np.quantile(days, 0.99) < 102
    both = drawn.filter(pa.compute.and_(drawn["pickup"].is_valid(), drawn["dropoff"].is_valid()))
    gaps = (micros(both["dropoff"]) - micros(both["pickup"])) / (60 * SECOND)
    assert gaps.min() >= 0
    assert np.median(gaps) == pytest.approx(11, rel=0.05)


@pytest.mark.usefixtures("no_noise")
def test_texts_of_times_of_day_have_gaps_too(tmp_path):
    """Shops that open at eight or ten, for six hours; some do not say when they open."""
    rng = np.random.default_rng(6)
    opens = rng.choice([8 * 60, 10 * 60], 5_000)
    closes = [f"{minutes // 60:02d}:{minutes % 60:02d}" for minutes in opens + 360]
    unsaid = rng.uniform(size=5_000) < 0.3
    texts = pa.array([f"{minutes // 60:02d}:00" for minutes in opens], mask=unsaid)
    hour, minute = {"type": "time", "resolution": "1h", "nullable": True}, {"type": "time"}
    contract = trips({"trip": ID, "opens": hour, "closes": minute}, [{"ascending": ["opens", "closes"]}], rows=5_000)
    table = bounded(tmp_path / "table", {"opens": texts, "closes": closes})
    schema = pa.schema([(name, pa.string()) for name in ("trip", "opens", "closes")])
    made = generator("mst")
    plan = made.plan(contract, schema, Guarantee.target(contract))
    (tmp_path / "model").mkdir()
    made.fit(plan, table, grant_for(plan), tmp_path / "model")
    drawn = made.draw(tmp_path / "model", constraints=contract.generate.constraints).table()
    assert abs(drawn["opens"].null_count / 5_000 - 0.3) < 0.02
    both = set(zip(drawn["opens"].to_pylist(), drawn["closes"].to_pylist(), strict=True))
    assert {first for first, _ in both} == {"08:00", "10:00", None}
    gaps = [int(last[:2]) * 60 + int(last[3:]) - int(first[:2]) * 60 for first, last in both if first]
    assert max(abs(gap - 360) for gap in gaps) <= 6, "a cell of gaps about six hours"
    assert drawn["closes"].null_count == 0


@pytest.mark.usefixtures("no_noise")
def test_a_gap_begins_where_an_order_has_put_its_column(tmp_path):
    """An order that only drawing knows, of a column that another one has a gap to."""
    pickup, dropoff, zone = rides(5_000)
    booked = moments(pickup - 3 * HOUR * (np.arange(5_000) % 5))
    contract = trips(
        {"trip": ID, "booked": YEAR, **{name: TRIP[name] for name in ("pickup", "dropoff", "zone")}}, rows=2_000
    )
    columns = {"booked": booked, "pickup": moments(pickup), "dropoff": moments(dropoff), "zone": zone}
    made, _ = fitted(contract, bounded(tmp_path / "table", columns), tmp_path / "model")
    orders = [*contract.generate.constraints, Constraint(ascending=["booked", "pickup"])]
    drawn = made.draw(tmp_path / "model", constraints=orders).table()
    first, second, third = (micros(drawn[name]) for name in ("booked", "pickup", "dropoff"))
    assert ((first <= second) & (second <= third)).all()
    assert np.median(third - second) / (60 * SECOND) == pytest.approx(11, rel=0.1)


@pytest.mark.usefixtures("no_noise")
def test_models_of_before_still_draw(tmp_path, monkeypatch):
    """Of moments that were counted by cells of their whole range, and ordered when rows were drawn."""
    monkeypatch.setattr(marginals, "planned_domain", domain_of)
    pickup, dropoff, zone = rides(5_000)
    contract = trips(rows=1_000)
    table = bounded(tmp_path / "table", {"pickup": moments(pickup), "dropoff": moments(dropoff), "zone": zone})
    made, plan = fitted(contract, table, tmp_path / "model")
    assert [column["name"] for column in plan.columns] == ["pickup", "dropoff", "zone"]
    drawn = made.draw(tmp_path / "model", constraints=contract.generate.constraints).table()
    assert (micros(drawn["dropoff"]) >= micros(drawn["pickup"])).all()


@pytest.mark.usefixtures("no_noise")
@pytest.mark.parametrize("strict", [False, True])
def test_chains_keep_their_order_where_links_are_missing(tmp_path, strict):
    """Days: three stages, the middle one mostly missing, each some days after the last one that there is."""
    rng = np.random.default_rng(4)
    a = rng.integers(0, 300, 20_000)
    b, skipped = a + 1 + rng.integers(0, 3, 20_000), rng.uniform(size=20_000) < 0.7
    c = np.where(skipped, a, b) + 4
    day = {"type": "date", "min": "2026-01-01", "max": "2026-12-31"}
    columns = {"trip": ID, "a": day, "b": day | {"nullable": True}, "c": day}
    contract = trips(columns, [{"ascending": ["a", "b", "c"], "strict": strict}])
    assert [column.kind for column in planned_domain(contract)] == ["date", "gap", "gap"]

    def dates(values, mask=None):
        return pa.array((values + FIRST // DAY).astype(np.int32), mask=mask).cast(pa.date32())

    table = bounded(tmp_path / "table", {"a": dates(a), "b": dates(b, skipped), "c": dates(c)})
    made, _ = fitted(contract, table, tmp_path / "model")
    drawn = made.draw(tmp_path / "model", constraints=contract.generate.constraints).table()
    first, second, third = (
        np.ma.masked_array(drawn[name].cast(pa.int32()).fill_null(0).to_numpy(), drawn[name].is_null().to_numpy())
        for name in "abc"
    )
    assert ((second - first).compressed() >= strict).all()
    assert abs(second.mask.mean() - 0.7) < 0.01
    last = np.where(second.mask, first.data, second.data)
    assert (third - last == 4).mean() > 0.95, "by days, short gaps are exact"


def test_values_that_must_be_there_are_drawn(tmp_path, no_noise):
    pickup, dropoff, zone = rides(5_000)
    lost = np.random.default_rng(2).uniform(size=5_000) < 0.4
    contract = trips(
        {**TRIP, "pickup": NULLABLE, "dropoff": NULLABLE}, [IN_ORDER[0] | {"allow_missing": False}], rows=5_000
    )
    columns = {"pickup": moments(pickup, lost), "dropoff": moments(dropoff, ~lost & (pickup % 2 == 0)), "zone": zone}
    made, _ = fitted(contract, bounded(tmp_path / "table", columns), tmp_path / "model")
    drawn = made.draw(tmp_path / "model", constraints=contract.generate.constraints).table()
    assert drawn["pickup"].null_count == drawn["dropoff"].null_count == 0
    assert (micros(drawn["dropoff"]) >= micros(drawn["pickup"])).all()


def test_other_constraints_of_gaps_are_kept_by_judgement(tmp_path, no_noise):
    """Of moments that are counted by gaps: ranges and asked values, without another look at the data."""
    pickup, dropoff, zone = rides(5_000)
    contract = trips(rows=2_000)
    table = bounded(tmp_path / "table", {"pickup": moments(pickup), "dropoff": moments(dropoff), "zone": zone})
    made, _ = fitted(contract, table, tmp_path / "model")
    late = {"min": "2026-07-01T00:00:00"}
    forbidden = Constraint(forbid={"dropoff": late, "zone": ["B"]})
    drawn = made.draw(tmp_path / "model", constraints=[*contract.generate.constraints, forbidden]).table()
    second = micros(drawn["dropoff"])
    assert second.max() > FIRST + 181 * DAY
    assert not (np.array(drawn["zone"].to_pylist()) == "B")[second >= FIRST + 181 * DAY].any()
    asked = made.draw(tmp_path / "model", 5_000, given={"pickup": late}).table()
    assert micros(asked["pickup"]).min() >= FIRST + 181 * DAY
    assert distance(hours(micros(asked["pickup"])), hours(pickup), 24) < 0.1


def test_an_order_that_only_drawing_knows_is_kept(tmp_path, no_noise):
    pickup, dropoff, zone = rides(5_000)
    contract = trips(constraints=[], rows=2_000)
    table = bounded(tmp_path / "table", {"pickup": moments(pickup), "dropoff": moments(dropoff), "zone": zone})
    made, _ = fitted(contract, table, tmp_path / "model")
    drawn = made.draw(tmp_path / "model", constraints=[Constraint(ascending=["pickup", "dropoff"])]).table()
    assert (micros(drawn["dropoff"]) >= micros(drawn["pickup"])).all()


def test_an_order_that_cannot_be_is_refused():
    later = YEAR | {"min": "2027-01-01T00:00:00", "max": "2027-02-01T00:00:00"}
    contract = trips({"trip": ID, "pickup": later, "dropoff": YEAR})
    with pytest.raises(ContractError, match="no row can keep them all"):
        generator("mst").plan(contract, schema_of(contract), Guarantee.target(contract))


def test_audits_look_at_attributes_and_read_columns(tmp_path, no_noise):
    """Cells, likelihoods and counts are of attributes, tables are of columns; records with gaps come back."""
    pickup, dropoff, zone = rides(3_000, year=7)
    week = YEAR | {"max": "2026-01-07T23:59:59", "bins": 2}
    contract = trips({**TRIP, "pickup": week}, rows=1_000)
    columns = {"pickup": moments(pickup), "dropoff": moments(dropoff), "zone": zone}
    made, plan = fitted(contract, bounded(tmp_path / "table", columns), tmp_path / "model")
    model, real = load_model(tmp_path / "model"), pa.table(columns)
    evidence = Evidence(
        model.domain, real.slice(0, 200), made.sample(tmp_path / "model", 1_000), real.slice(1_000), model=model
    )
    assert evidence.target_codes.shape == (200, 7)
    assert np.isfinite(log_likelihood(model, evidence.targets)).all()
    assert np.isfinite(counts_attack(evidence)).all()
    known = infer_attribute(evidence, "zone")
    assert known.right_from_population.mean() > 0.9, "the weekday reveals the zone"
    records = as_records(model.domain, plan, evidence.targets)
    again, asked = model.domain.encode(records), evidence.target_codes
    assert np.array_equal(again[:, [0, 2, 3, 4]], asked[:, [0, 2, 3, 4]])
    assert np.array_equal(again[:, 1], asked[:, 1])


def test_no_attacker_knows_the_weekday_of_a_day_that_is_asked_for():
    """Halves of a week follow from the weekday; who has nothing else guesses three of seven days wrong."""
    pickup, _, zone = rides(2_000, year=7)
    week = YEAR | {"max": "2026-01-07T23:59:59", "bins": 2}
    domain = planned_domain(trips({"trip": ID, "pickup": week, "zone": ZONES}, []))
    table = pa.table({"pickup": moments(pickup), "zone": np.random.default_rng(1).permutation(zone)})
    found = infer_attribute(Evidence(domain, table.slice(0, 500), table, table.slice(500)), "pickup")
    assert found.right_from_population.mean() < 0.8


@pytest.mark.parametrize("method", METHODS)
def test_every_attribute_is_paid_for(tmp_path, method, monkeypatch):
    """As many noisy marginals as the sealed plan has attributes, each drawn from the budget that its event is of."""
    spent = []
    monkeypatch.setattr(Draws, "_counts", lambda self, *asked: spent.append(asked) or honest(self, *asked))
    pickup, dropoff, zone = rides(500)
    contract = trips(rows=500)
    table = bounded(tmp_path / "table", {"pickup": moments(pickup), "dropoff": moments(dropoff), "zone": zone})
    _, plan = fitted(contract, table, tmp_path / "model", method)
    model = load_model(tmp_path / "model")
    assert len(model.measurements.one_way) == len(plan.columns) == len(model.domain) == 7
    assert len(spent) == 7 + len(model.measurements.joint)
    assert plan.describe()["one_way_cells"] == sum(model.domain.sizes)
    if method == "mst":
        with pytest.raises(GrantRefused, match="not that of its noise scales"):
            generator(method).check(dataclasses.replace(plan, columns=plan.columns[:-1]))


honest = Draws._counts
