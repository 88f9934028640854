"""One text, two engines: the same rows. Every construct that a step's SQL may use, and moving tables in and out."""

from __future__ import annotations

import datetime as dt
import decimal
import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake

from dpsynth_platform.compute.engine import Engine
from dpsynth_platform.foundation.errors import EngineError
from dpsynth_platform.foundation.reading import BATCH_ROWS
from dpsynth_platform.foundation.storage import read_table, table_schema, write_table

TEXTS = [
    "b",
    "B",
    "a",
    "",
    "ä",
    "z",
    "é",
    "\u0001",
    "ß",
    "日本",
    "\U0001f600",
    "\uffee",
    "a\\n",
    "it's",
    '"',
    " a",
    "a ",
    None,
]


def rows(engine: Engine, sql: str, *parameters: Any) -> list[tuple[Any, ...]]:
    found = []
    for batch in engine.stream(sql, parameters):
        found += [tuple(row.values()) for row in batch.to_pylist()]
    return found


def test_hashes_of_key_and_text(engine: Engine) -> None:
    engine.register("t", pa.table({"x": TEXTS}))
    hashes = dict(rows(engine, "SELECT x, sha2(? || x, 256) AS h FROM t", "00ff"))
    expected = {x: None if x is None else hashlib.sha256(b"00ff" + x.encode()).hexdigest() for x in TEXTS}
    assert hashes == expected


def test_texts_are_ordered_by_their_bytes_and_null_comes_first(engine: Engine) -> None:
    engine.register("t", pa.table({"x": TEXTS}))
    expected = [None, *sorted((x for x in TEXTS if x is not None), key=lambda x: x.encode())]
    assert [x for (x,) in rows(engine, "SELECT x FROM t ORDER BY x")] == expected
    assert [x for (x,) in rows(engine, "SELECT x FROM t ORDER BY x DESC")] == expected[::-1]
    assert [x for (x,) in rows(engine, "SELECT x FROM t ORDER BY x NULLS LAST")] == [*expected[1:], None]
    ranked = rows(engine, "SELECT x, row_number() OVER (ORDER BY x) AS r FROM t")
    assert [x for x, _ in sorted(ranked, key=lambda row: row[1])] == expected
    assert engine.scalar("SELECT count(*) AS n FROM t WHERE x < ?", ["a"]) == sum(x < "a" for x in expected[1:])
    assert engine.scalar("SELECT max(x) AS m FROM t") == expected[-1]


def test_numbers_are_ordered_with_nan_last(engine: Engine) -> None:
    numbers = [1.5, -2.0, float("inf"), float("-inf"), float("nan"), 0.0, None]
    engine.register("t", pa.table({"x": pa.array(numbers, pa.float64(), from_pandas=False)}))
    found = [x for (x,) in rows(engine, "SELECT x FROM t ORDER BY x")]
    assert found[:6] == [None, float("-inf"), -2.0, 0.0, 1.5, float("inf")]
    assert np.isnan(found[6])


def test_what_may_be_cast_to_text_is_written_alike(engine: Engine) -> None:
    table = pa.table(
        {
            "i": pa.array([0, -7, 2**63 - 1, None], pa.int64()),
            "s": pa.array([1, -128, 127, None], pa.int8()),
            "b": [True, False, True, None],
            "d": [dt.date(1969, 12, 31), dt.date(1, 1, 1), dt.date(9999, 12, 31), None],
            "t": ["x", "", "1", None],
            "m": pa.array([decimal.Decimal("1.50"), decimal.Decimal("-0.01"), decimal.Decimal("12.00"), None]),
        }
    )
    engine.register("t", table)
    names = ", ".join(f'CAST("{name}" AS STRING) AS "{name}"' for name in table.column_names)
    assert sorted(rows(engine, f"SELECT {names} FROM t"), key=str) == sorted(
        [
            ("0", "1", "true", "1969-12-31", "x", "1.50"),
            ("-7", "-128", "false", "0001-01-01", "", "-0.01"),
            (str(2**63 - 1), "127", "true", "9999-12-31", "1", "12.00"),
            (None,) * 6,
        ],
        key=str,
    )


def test_text_functions_and_concatenation(engine: Engine) -> None:
    engine.register("t", pa.table({"x": ["日本語", "abc", "", None]}))
    found = rows(engine, "SELECT x, substr(x, 1, 2) AS s, length(x) AS n, x || '/' || x AS d FROM t ORDER BY x")
    assert found == [
        (None, None, None, None),
        ("", "", 0, "/"),
        ("abc", "ab", 3, "abc/abc"),
        ("日本語", "日本", 3, "日本語/日本語"),
    ]


def test_literals_and_odd_names(engine: Engine) -> None:
    engine.register("t", pa.table({"a b": [1], "select": [2], "x.y": [3], "ü`": [4], "#-": [5]}))
    assert rows(engine, 'SELECT "a b", "select", "x.y", "ü`", "#-" FROM t') == [(1, 2, 3, 4, 5)]
    assert rows(engine, r"SELECT 'a\n' AS x, '%\_' AS z, '?' AS q") == [("a\\n", "%\\_", "?")]


def test_arithmetic(engine: Engine) -> None:
    engine.register("t", pa.table({"a": [7, -7, 7, 0], "b": [2, 2, 0, 5]}))
    found = rows(engine, "SELECT a / nullif(b, 0) AS q, a % nullif(b, 0) AS r, least(a, b) AS l, abs(a) AS p FROM t")
    assert sorted(found, key=str) == sorted(
        [(3.5, 1, 2, 7), (-3.5, -1, -7, 7), (None, None, 0, 7), (0.0, 0, 0, 0)], key=str
    )


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT CAST(x AS INTEGER) AS y FROM t",
        "SELECT CAST(9223372036854775807 AS BIGINT) + n AS y FROM t",
        "SELECT CAST(1000 * n AS TINYINT) AS y FROM t",
        "SELECT no_such_column FROM t",
        "SELECT no_such_function(x) AS y FROM t",
        "SELECT * FROM no_such_table",
        "SELECT FROM WHERE",
        "SELECT ? AS y FROM t",
    ],
)
def test_errors_show_no_value(engine: Engine, sql: str, capfd: pytest.CaptureFixture[str]) -> None:
    engine.register("t", pa.table({"x": ["Marked Person"], "n": [1]}))
    for run in (
        lambda: rows(engine, sql),
        lambda: engine.scalar(sql),
        lambda: engine.materialize("u", sql),
    ):
        with pytest.raises(EngineError) as raised:
            run()
        assert "Marked" not in str(raised.value) and len(str(raised.value)) < 100
        assert raised.value.__cause__ is None and raised.value.__context__ is None
    assert engine.scalar("SELECT count(*) AS n FROM t") == 1, "the engine goes on"
    shown = capfd.readouterr()
    assert "Marked" not in shown.out + shown.err


@pytest.mark.parametrize("value", ["a'; DROP TABLE t", "\\", "", 7, 2**40, -1, True, 2.5])
def test_parameters_come_back(engine: Engine, value: Any) -> None:
    assert engine.scalar("SELECT ? AS x", [value]) == value
    engine.register("t", pa.table({"x": [value, None]}))
    assert engine.scalar("SELECT count(*) AS n FROM t WHERE x = ?", [value]) == 1


def test_groups_joins_unions_and_windows(engine: Engine) -> None:
    engine.register("records", pa.table({"r": [1, 2, 3, 4, 5], "o": ["a", "a", "b", None, "a"]}))
    engine.register("wanted", pa.table({"o": ["a", "c"]}))
    assert rows(engine, "SELECT o, count(*) AS n, min(r) AS m FROM records GROUP BY o ORDER BY o") == [
        (None, 1, 4),
        ("a", 3, 1),
        ("b", 1, 3),
    ]
    assert rows(engine, "SELECT r FROM records JOIN wanted ON records.o = wanted.o ORDER BY r") == [(1,), (2,), (5,)]
    assert rows(engine, "SELECT r FROM records WHERE o IN (SELECT o FROM wanted) ORDER BY r") == [(1,), (2,), (5,)]
    without = "SELECT r FROM records WHERE NOT EXISTS (SELECT 1 FROM wanted WHERE wanted.o = records.o) ORDER BY r"
    assert rows(engine, without) == [(3,), (4,)]
    left = "SELECT records.r, wanted.o FROM records LEFT JOIN wanted ON records.o = wanted.o ORDER BY r"
    assert [o for _, o in rows(engine, left)] == ["a", "a", None, None, "a"]
    ranked = """
        WITH ranked AS (
            SELECT r, o, row_number() OVER (PARTITION BY o ORDER BY sha2(? || CAST(r AS STRING), 256), r) AS p,
                count(*) OVER (PARTITION BY o) AS n, sum(r) OVER (PARTITION BY o ORDER BY r) AS s
            FROM records WHERE o IS NOT NULL
            UNION ALL SELECT r + 10 AS r, o, 0 AS p, 0 AS n, 0 AS s FROM records WHERE o IS NULL
        )
        SELECT r, p, n, s FROM ranked ORDER BY r"""
    place = {
        r: i for i, r in enumerate(sorted([1, 2, 5], key=lambda r: hashlib.sha256(f"k{r}".encode()).hexdigest()), 1)
    }
    expected = [(1, place[1], 3, 1), (2, place[2], 3, 3), (3, 1, 1, 3), (5, place[5], 3, 8), (14, 0, 0, 0)]
    assert rows(engine, ranked, "k") == expected
    assert rows(engine, "SELECT DISTINCT coalesce(o, '-') AS o FROM records ORDER BY o") == [("-",), ("a",), ("b",)]


def test_lists_are_exploded(engine: Engine) -> None:
    lists = pa.table(
        {"r": [1, 2, 3, 4], "o": pa.array([["a", "b"], [], None, ["c", None, "c"]], pa.list_(pa.string()))}
    )
    engine.register("t", lists)
    assert rows(engine, "SELECT r, owner FROM (SELECT r, explode(o) AS owner FROM t) AS e ORDER BY r, owner") == [
        (1, "a"),
        (1, "b"),
        (4, None),
        (4, "c"),
        (4, "c"),
    ]
    distinct = "SELECT DISTINCT r, owner FROM (SELECT r, explode(o) AS owner FROM t) AS e WHERE owner IS NOT NULL"
    assert engine.scalar(f"SELECT count(*) AS n FROM ({distinct}) AS d") == 3


def test_materialized_tables_replace_themselves_and_go(engine: Engine) -> None:
    engine.register("t", pa.table({"x": [1, 2, 3, 4]}))
    engine.materialize("left_over", "SELECT x FROM t WHERE x > ?", [1])
    engine.materialize("LEFT_OVER", "SELECT x FROM left_over WHERE x > ?", [2])
    engine.materialize("t", "SELECT x + 10 AS x FROM left_over")
    engine.drop("left_over")
    engine.drop("left_over")
    assert rows(engine, "SELECT x FROM t ORDER BY x") == [(13,), (14,)]
    with pytest.raises(EngineError):
        engine.scalar("SELECT count(*) AS n FROM left_over")
    engine.register("t", pa.table({"y": ["a"]}))
    assert rows(engine, "SELECT * FROM t") == [("a",)]
    engine.materialize("empty", "SELECT * FROM t WHERE y = 'b'")
    assert rows(engine, "SELECT y FROM empty") == []
    assert engine.scalar("SELECT y FROM empty") is None


def test_empty_tables_and_datasets_are_registered(engine: Engine, tmp_path: Path) -> None:
    engine.register("t", pa.table({"x": pa.array([], pa.string()), "y": pa.array([], pa.list_(pa.int32()))}))
    assert engine.scalar("SELECT count(*) AS n FROM t") == 0
    assert rows(engine, "SELECT x, y FROM t") == []
    ds.write_dataset(
        pa.table({"x": list(range(1000))}),
        tmp_path / "d",
        format="parquet",
        max_rows_per_file=100,
        max_rows_per_group=100,
    )
    engine.register("t", ds.dataset(tmp_path / "d"))
    assert engine.scalar("SELECT sum(x) AS s FROM t") == 499_500


def test_streams_come_in_order_in_batches(engine: Engine) -> None:
    n = 3 * BATCH_ROWS + 1
    engine.register("t", pa.table({"x": np.random.default_rng(0).permutation(n)}))
    batches = list(engine.stream("SELECT x FROM t ORDER BY x"))
    assert len(batches) > 3 and all(batch.num_rows <= BATCH_ROWS for batch in batches)
    assert pa.Table.from_batches(batches)["x"].to_pylist() == list(range(n))


def test_a_stream_that_is_left_blocks_nothing(engine: Engine) -> None:
    engine.register("t", pa.table({"x": list(range(4 * BATCH_ROWS))}))
    stream = engine.stream("SELECT x FROM t")
    next(stream)
    stream.close()
    assert engine.scalar("SELECT count(*) AS n FROM t") == 4 * BATCH_ROWS


ALL_TYPES = pa.table(
    {
        "text": ["a", None, "ü"],
        "byte": pa.array([1, None, -128], pa.int8()),
        "short": pa.array([1, None, -300], pa.int16()),
        "int": pa.array([1, None, -70_000], pa.int32()),
        "long": pa.array([1, None, 2**62], pa.int64()),
        "float": pa.array([1.5, None, -0.25], pa.float32()),
        "double": pa.array([0.1, None, 1e300], pa.float64()),
        "truth": [True, None, False],
        "date": [dt.date(2026, 1, 31), None, dt.date(1500, 2, 28)],
        "moment": pa.array(
            [dt.datetime(2026, 1, 1, 1, 2, 3, 456789), None, dt.datetime(1, 1, 1)], pa.timestamp("us", "UTC")
        ),
        "clock": pa.array([dt.datetime(2026, 1, 1, 1, 2, 3, 456789), None, dt.datetime(1, 1, 1)], pa.timestamp("us")),
        "money": pa.array([decimal.Decimal("1.25"), None, decimal.Decimal("-9999999.99")], pa.decimal128(9, 2)),
        "bytes": pa.array([b"\x00\xff", None, b""], pa.binary()),
        "list": pa.array([["a", None], None, []], pa.list_(pa.string())),
    }
)


def test_delta_tables_keep_types_and_rows(engine: Engine, tmp_path: Path) -> None:
    write_table(tmp_path / "in", ALL_TYPES.schema, ALL_TYPES.to_batches())
    engine.register_delta("t", tmp_path / "in")
    count = engine.write_delta(
        tmp_path / "out", ALL_TYPES.schema, "SELECT * FROM t WHERE text IS NULL OR text <> ?", ["b"]
    )
    assert count == 3
    assert table_schema(tmp_path / "out") == table_schema(tmp_path / "in")
    written = pa.Table.from_batches(read_table(tmp_path / "out"))
    key = lambda row: str(row["text"])  # noqa: E731
    assert sorted(written.to_pylist(), key=key) == sorted(ALL_TYPES.to_pylist(), key=key)
    engine.register_delta("again", tmp_path / "out")
    assert engine.scalar("SELECT count(*) AS n FROM again") == 3
    engine.register("arrow", ALL_TYPES)
    names = ", ".join(f'"{name}"' for name in ALL_TYPES.column_names)
    same = f"SELECT count(*) AS n FROM (SELECT {names} FROM arrow INTERSECT SELECT {names} FROM again) AS s"
    assert engine.scalar(same) == 3


def test_written_tables_have_the_schema_asked_for(engine: Engine, tmp_path: Path) -> None:
    schema = pa.schema([("b", pa.int32()), ("a", pa.string())])
    engine.register("t", pa.table({"x": ["p", "q"]}))
    sql = "SELECT x AS a, row_number() OVER (ORDER BY x) AS b, 1 AS more FROM t"
    assert engine.write_delta(tmp_path / "out", schema, sql) == 2
    assert table_schema(tmp_path / "out") == schema
    assert sorted(pa.Table.from_batches(read_table(tmp_path / "out")).to_pylist(), key=str) == [
        {"b": 1, "a": "p"},
        {"b": 2, "a": "q"},
    ]
    assert engine.write_delta(tmp_path / "empty", schema, sql + " WHERE x = 'z'") == 0
    assert table_schema(tmp_path / "empty") == schema
    assert list(read_table(tmp_path / "empty")) == [] or sum(b.num_rows for b in read_table(tmp_path / "empty")) == 0
    engine.register_delta("e", tmp_path / "empty")
    assert engine.scalar("SELECT count(*) AS n FROM e") == 0


@pytest.mark.parametrize(
    "sql", ["SELECT 'a' AS a", "SELECT 'a' AS a, 3000000000 AS b", "SELECT CAST('x' AS INTEGER) AS b"]
)
def test_what_cannot_be_written_leaves_nothing(engine: Engine, tmp_path: Path, sql: str) -> None:
    schema = pa.schema([("a", pa.string()), ("b", pa.int32())])
    with pytest.raises(EngineError):
        engine.write_delta(tmp_path / "place" / "out", schema, sql)
    place = tmp_path / "place"
    assert not place.exists() or not list(place.iterdir())


def test_a_table_is_never_overwritten(engine: Engine, tmp_path: Path) -> None:
    schema = pa.schema([("a", pa.string())])
    engine.write_delta(tmp_path / "out", schema, "SELECT 'first' AS a")
    with pytest.raises(EngineError):
        engine.write_delta(tmp_path / "out", schema, "SELECT 'second' AS a")
    assert pa.Table.from_batches(read_table(tmp_path / "out"))["a"].to_pylist() == ["first"]


def test_files_are_private(engine: Engine, tmp_path: Path) -> None:
    engine.write_delta(tmp_path / "place" / "out", pa.schema([("a", pa.string())]), "SELECT 'x' AS a")
    found = list((tmp_path / "place" / "out").rglob("*"))
    assert len(found) >= 3
    assert not [path.name for path in found if path.stat().st_mode & 0o077]


def test_versions_partitions_and_changed_tables(engine: Engine, tmp_path: Path) -> None:
    place = str(tmp_path / "a place (1)")
    write_deltalake(place, pa.table({"p": ["a/b", "c d", None], "x": [1, 2, 3]}), partition_by="p")
    write_deltalake(place, pa.table({"p": ["a/b"], "x": [4]}), mode="append")
    engine.register_delta("t", Path(place))
    assert rows(engine, "SELECT p, x FROM t ORDER BY x") == [("a/b", 1), ("c d", 2), (None, 3), ("a/b", 4)]
    engine.register_delta("t", Path(place), version=0)
    assert engine.scalar("SELECT count(*) AS n FROM t") == 3

    grown = str(tmp_path / "grown")
    write_deltalake(grown, pa.table({"x": [1, 2]}))
    write_deltalake(grown, pa.table({"x": [3], "y": ["new"]}), mode="append", schema_mode="merge")
    DeltaTable(grown).delete("x = 1")
    engine.register_delta("t", Path(grown))
    assert rows(engine, "SELECT x, y FROM t ORDER BY x") == [(2, None), (3, "new")]


def test_columns_of_a_delta_table(engine: Engine, tmp_path: Path) -> None:
    parted, plain = tmp_path / "parted", tmp_path / "plain"
    table = pa.table({"p": ["a", "b"], "x": [1, 2], 'a "name"': [3, 4]})
    write_deltalake(str(parted), table, partition_by="p")
    write_deltalake(str(plain), table)
    for place in (parted, plain):
        engine.register_delta("t", place, columns=["x", "p"])
        assert rows(engine, "SELECT * FROM t ORDER BY x") == [(1, "a"), (2, "b")]
        with pytest.raises(EngineError, match="no column y"):
            engine.register_delta("t", place, columns=["x", "y"])
        engine.register_delta("t", place)
        assert rows(engine, 'SELECT "a ""name""" AS n FROM t ORDER BY n') == [(3,), (4,)]


@pytest.mark.parametrize("feature", ["deletionVectors", "columnMapping", "futureFeature"])
def test_tables_for_other_readers_are_refused(engine: Engine, tmp_path: Path, feature: str) -> None:
    write_deltalake(str(tmp_path / "t"), pa.table({"x": [1]}))
    (log,) = (tmp_path / "t" / "_delta_log").glob("*.json")
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    for line in lines:
        if "protocol" in line:
            line["protocol"] = {
                "minReaderVersion": 3,
                "minWriterVersion": 7,
                "readerFeatures": [feature],
                "writerFeatures": [feature],
            }
    log.write_text("\n".join(json.dumps(line) for line in lines))
    with pytest.raises(EngineError):
        engine.register_delta("t", tmp_path / "t")


def test_missing_tables_versions_and_files(engine: Engine, tmp_path: Path) -> None:
    with pytest.raises(EngineError):
        engine.register_delta("t", tmp_path / "none")
    write_deltalake(str(tmp_path / "t"), pa.table({"x": [1]}))
    with pytest.raises(EngineError):
        engine.register_delta("t", tmp_path / "t", version=7)
    for path in (tmp_path / "t").glob("*.parquet"):
        path.unlink()
    with pytest.raises(EngineError):
        engine.register_delta("t", tmp_path / "t")
        engine.scalar("SELECT sum(x) AS n FROM t")


def test_a_file_of_another_type_than_the_log_says_is_refused(
    engine: Engine, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    write_deltalake(str(tmp_path / "t"), pa.table({"x": [1, 2]}))
    (file,) = (tmp_path / "t").glob("*.parquet")
    pq.write_table(pa.table({"x": ["Marked Person"]}), file)
    with pytest.raises(EngineError) as raised:
        engine.register_delta("t", tmp_path / "t")
        engine.materialize("u", "SELECT x FROM t")
    shown = capfd.readouterr()
    assert "Marked" not in str(raised.value) + shown.out + shown.err


@pytest.mark.parametrize("names", [["a", "A"], ["a", "a"], ["stra\u00dfe", "STRASSE"]])
def test_names_that_sql_cannot_tell_apart_are_refused(engine: Engine, names: list[str]) -> None:
    with pytest.raises(EngineError, match="rename"):
        engine.register("t", pa.Table.from_arrays([pa.array([1]), pa.array([2])], names=names))
