"""Counting by both engines: the same counts as this process's, to the last record, over everything a column can be."""

import datetime as dt
import decimal
import itertools
import math

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpsynth_platform.foundation.storage import write_table
from dpsynth_platform.synth.tabular import coding, counting
from dpsynth_platform.synth.tabular.blocks import BLOCK_CELLS, blocks_of, marginals_of
from dpsynth_platform.synth.tabular.coding import coding_of
from dpsynth_platform.synth.tabular.column_states import ColumnStates
from dpsynth_platform.synth.tabular.counting import Records
from dpsynth_platform.synth.tabular.domain import ColumnDomain, Domain

MILLION = 1_000_000
DAY = 86_400 * MILLION


def day(*date):
    return (dt.date(*date) - dt.date(1970, 1, 1)).days


TEXTS = ["a", "A", "", " a", "a ", "é", "e\u0301", "日本", "\U0001f600", 'it\'s "so"', "a\\n", "true", "12", "x" * 300]
TENTHS = tuple(number / 10 for number in range(-20, 21))
COLUMNS = (
    ColumnDomain("text", "categorical", True, values=tuple(TEXTS[:12])),
    ColumnDomain("code", "categorical", True, values=("-1", "0", "7", "127", "007")),
    ColumnDomain("counted", "categorical", True, values=("-1", "0", "7", "127", str(2**53))),
    ColumnDomain("narrow", "categorical", True, values=("-1", "0", "7")),
    ColumnDomain("flag", "categorical", True, values=("false", "true")),
    ColumnDomain("truth", "boolean", True),
    ColumnDomain("small", "integer", True, edges=tuple(range(-5, 7))),
    ColumnDomain("huge", "integer", True, edges=(-(2**63), -(2**62), -1, 0, 1, 2**53, 2**53 + 1, 2**63 - 1, 2**63)),
    ColumnDomain("beyond", "integer", True, edges=(0, 2**63 - 1, 2**63 + 5, 2**64)),
    ColumnDomain("floored", "integer", True, edges=(-3, -1, 0, 1, 2, 9)),
    ColumnDomain("real", "float", True, edges=TENTHS),
    ColumnDomain("spiky", "float", True, edges=(0.0, math.nextafter(0, 1), 0.1, math.nextafter(0.1, 1), 0.7, 1.5)),
    ColumnDomain("single", "float", True, edges=(0.0, 0.1, math.nextafter(0.1, 1), 0.3, math.nextafter(0.3, 1), 2.0)),
    ColumnDomain("money", "float", True, edges=(-250, -1, 0, 1, 12, 13, 14, 105, 106, 1001), decimals=2),
    ColumnDomain("cents", "float", True, edges=(-25, -2, 0, 1, 3, 11), decimals=1),
    ColumnDomain(
        "date", "date", True, edges=(day(1900, 1, 1), day(1969, 12, 31), 0, day(2024, 2, 29), day(2024, 3, 1))
    ),
    ColumnDomain("stamp", "date", True, edges=(day(1900, 1, 1), -1, 0, 1, day(2024, 2, 29))),
    ColumnDomain("naive", "datetime", True, edges=tuple(range(-50, 51, 7)), step=60 * MILLION),
    ColumnDomain("zoned", "datetime", True, edges=tuple(range(-50, 51, 7)), step=30 * MILLION),
)
DOMAIN = Domain(COLUMNS)
SPECIAL = [
    math.nan,
    math.inf,
    -math.inf,
    0.0,
    -0.0,
    5e-324,
    -5e-324,
    1e308,
    -1e308,
    2.0**53,
    2.0**53 + 2,
    0.1,
    0.3,
    1.5,
]


def around(values):
    """Each value with its two neighbours in double precision."""
    return [
        near for value in values for near in (value, math.nextafter(value, -math.inf), math.nextafter(value, math.inf))
    ]


def nasty(rows=1500, seed=3):
    """A table of the Delta types, full of nulls and of values on and beside the edges."""
    rng = np.random.default_rng(seed)
    halves = [number / 200 for number in range(-60, 230)]  # what rounds to hundredths by the even rule, and does not
    reals = around([*TENTHS, 0.7, 2.0, *halves]) + SPECIAL
    moments = [number * MILLION + near for number in range(-60 * 60, 60 * 60, 30) for near in (-1, 0, 1)]
    days = [
        day(1900, 1, 1) - 1,
        day(1900, 1, 1),
        day(1969, 12, 31),
        -1,
        0,
        1,
        day(2024, 2, 28),
        day(2024, 2, 29),
        40_000,
    ]
    pools = {
        "text": (TEXTS, pa.string()),
        "code": ([-1, 0, 7, 127, -128, 5], pa.int8()),
        "counted": (around([-1.0, 0.0, 7.0, 127.0, 2.0**53]) + SPECIAL, pa.float64()),
        "narrow": ([-1.0, 0.0, -0.0, 7.0, 6.5, math.nan, math.inf, 8.0], pa.float32()),
        "flag": ([True, False], pa.bool_()),
        "truth": ([True, False], pa.bool_()),
        "small": (list(range(-9, 10)), pa.int16()),
        "huge": ([-(2**63), -(2**63) + 1, -(2**62), -1, 0, 1, 2**53, 2**53 + 1, 2**63 - 2, 2**63 - 1], pa.int64()),
        "beyond": ([-(2**63), -1, 0, 1, 2**62, 2**63 - 2, 2**63 - 1], pa.int64()),
        "floored": (around(np.arange(-5.0, 12.0).tolist()) + SPECIAL, pa.float64()),
        "real": (reals, pa.float64()),
        "spiky": (reals, pa.float64()),
        "single": ([float(np.float32(value)) for value in reals if abs(value) < 1e30 or value != value], pa.float32()),
        "money": (reals, pa.float64()),
        "cents": ([float(np.float32(value)) for value in (*halves, 0.05, 0.15, 0.25, 0.35)], pa.float32()),
        "date": (days, pa.date32()),
        "stamp": ([one * DAY + near for one in days for near in (-1, 0, 1)], pa.timestamp("us", "UTC")),
        "naive": (moments, pa.timestamp("us")),
        "zoned": (moments, pa.timestamp("us", "UTC")),
    }
    arrays = {}
    for name, (pool, type_) in pools.items():
        counted = pa.int32() if pa.types.is_date(type_) else pa.int64() if pa.types.is_timestamp(type_) else type_
        places = rng.permutation(np.arange(rows) % len(pool))
        arrays[name] = pa.array(pool, counted).cast(type_).take(pa.array(places, mask=rng.uniform(size=rows) < 0.1))
    owners = np.sort(rng.integers(0, rows // 3, rows))
    arrays["_owner"] = pa.array([f"{owner:032x}" for owner in owners], pa.string())
    return pa.table(arrays)


@pytest.fixture(scope="module")
def bounded(tmp_path_factory):
    table = nasty()
    path = tmp_path_factory.mktemp("nasty") / "bounded"
    write_table(path, table.schema, table.to_batches(max_chunksize=400))
    return path


def merged_states():
    """Some columns' cells put together, others as they are."""
    return [
        ColumnStates(np.arange(column.size, dtype=np.int32) // (1 + index % 3), np.ones(column.size))
        for index, column in enumerate(DOMAIN)
    ]


CLIQUES = [*itertools.combinations(range(len(COLUMNS)), 2), (0, 4, 8), (2, 3, 9), (5,)]


pytestmark = pytest.mark.filterwarnings("ignore:overflow encountered")  # 1e308 in hundredths


@pytest.mark.parametrize("weighting", ["rows", "owners"])
def test_both_engines_count_what_this_process_counts(engine, bounded, weighting):
    mine, theirs = Records(bounded, DOMAIN, weighting), Records(bounded, DOMAIN, weighting, engine)
    assert theirs._sql is not None
    for column, one, other in zip(DOMAIN, mine.one_way(), theirs.one_way(), strict=True):
        assert np.array_equal(one, other), column.name
        assert one.dtype == other.dtype == np.int64
        assert np.count_nonzero(one) > 1
    left, right = (records.cliques(merged_states(), CLIQUES) for records in (mine, theirs))
    assert list(left) == list(right)
    assert all(np.array_equal(left[clique], right[clique]) for clique in left)


def test_the_table_is_as_nasty_as_it_should_be(bounded):
    """Every cell of every column is met, so that no edge goes untried."""
    for column, counts in zip(DOMAIN, Records(bounded, DOMAIN).one_way(), strict=True):
        met = np.count_nonzero(counts)
        assert met == column.size or column.name in ("code", "huge", "beyond"), column.name
        assert met > 2


@pytest.mark.parametrize("engine", ["duckdb"], indirect=True)
@pytest.mark.parametrize(
    ("kind", "values", "type_"),
    [
        ("float", [decimal.Decimal("1.5")], pa.decimal128(9, 2)),
        ("integer", [decimal.Decimal("1.5")], pa.decimal128(9, 2)),
        ("time", ["07:30"], pa.string()),
        ("datetime", [1], pa.timestamp("us", "Europe/Zurich")),
    ],
)
def test_what_sql_cannot_tell_exactly_is_counted_here(tmp_path, engine, monkeypatch, kind, values, type_):
    domain = Domain((ColumnDomain("x", kind, True, edges=(0, 1, 5)),))
    schema = pa.schema([("x", type_)])
    assert coding_of(domain, schema) is None
    table = pa.table({"x": pa.array(values, type_)})
    monkeypatch.setattr(counting, "table_schema", lambda path: schema)
    monkeypatch.setattr(counting, "read_table", lambda path, columns: iter(table.to_batches()))
    assert Records(tmp_path, domain, engine=engine).one_way()[0].sum() == 1


@pytest.mark.parametrize("engine", ["duckdb"], indirect=True)
def test_no_record_counts_twice_whatever_an_engine_takes_for_equal(tmp_path, engine, monkeypatch):
    """As if by its settings it found a text in two places of a list: one person would move counts by twice as much."""
    table = pa.table({"text": ["a", "b", "b"], "_owner": [f"{number:032x}" for number in range(3)]})
    write_table(tmp_path / "table", table.schema, table.to_batches())
    domain = Domain((ColumnDomain("text", "categorical", True, values=("a", "b", "c")),))
    twice = pa.table({"value": ["a", "b", "b"], "cell": pa.array([0, 1, 2], pa.int32())})
    monkeypatch.setattr(coding, "_listed", lambda column, numbers: twice)
    for weighting in ("rows", "owners"):
        records = Records(tmp_path / "table", domain, weighting, engine)
        assert (records.one_way()[0] / records.parts).tolist() == [1, 2, 0, 0]


@pytest.mark.parametrize("engine", ["duckdb"], indirect=True)
def test_no_rows_are_counted_too(tmp_path, engine):
    table = nasty(12).slice(0, 0)
    write_table(tmp_path / "empty", table.schema, table.to_batches())
    found = Records(tmp_path / "empty", DOMAIN, "owners", engine)
    assert not any(counts.any() for counts in found.one_way())
    assert not any(counts.any() for counts in found.cliques(merged_states(), CLIQUES).values())


# Cliques that are counted together.


@settings(deadline=None, max_examples=50)
@given(data=st.data())
def test_blocks_cover_all_cliques_and_give_their_counts(data):
    sizes = data.draw(st.lists(st.sampled_from([1, 2, 3, 5, 11, 17, 300]), min_size=1, max_size=7))
    columns = st.lists(st.integers(0, len(sizes) - 1), min_size=1, max_size=3, unique=True).map(tuple)
    cliques = data.draw(st.lists(columns, min_size=1, max_size=12, unique=True))
    rng = np.random.default_rng(data.draw(st.integers(0, 100)))
    codes = np.stack([rng.integers(0, size, 50) for size in sizes], axis=1)

    def counts(clique):
        cells = np.ravel_multi_index(codes[:, list(clique)].T, [sizes[index] for index in clique])
        shape = [sizes[index] for index in clique]
        return np.bincount(cells, minlength=math.prod(shape)).reshape(shape)

    blocks = blocks_of(sizes, cliques)
    assert sorted(clique for inside in blocks.values() for clique in inside) == sorted(cliques)
    for block, inside in blocks.items():
        assert all(set(clique) <= set(block) for clique in inside)
        assert math.prod(sizes[index] for index in block) <= BLOCK_CELLS or inside == [block]
    found = marginals_of(blocks, {block: counts(block) for block in blocks})
    assert all(np.array_equal(found[clique], counts(clique)) for clique in cliques)


def test_all_pairs_take_a_quarter_of_the_passes():
    assert len(blocks_of([11] * 20, list(itertools.combinations(range(20), 2)))) == 45
    assert len(blocks_of([3] * 20, list(itertools.combinations(range(20), 2)))) == 6
