"""Tables whose records have several owners: the bound holds, and nothing but graph, key and order matters."""

from __future__ import annotations

import hashlib
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from bounding_cases import KEY, check_maximal, greedy_kept, hashed, name, ordered
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dpsynth_platform.bounding.multi_owner import MultiOwnerReport, write_bounded
from dpsynth_platform.bounding.order import Order
from dpsynth_platform.compute.choice import DuckDBChoice
from dpsynth_platform.compute.engine import Engine
from dpsynth_platform.foundation.errors import BoundingError
from dpsynth_platform.foundation.storage import read_table, write_table
from dpsynth_platform.scrub.fingerprints import fingerprints_from_hex

COLUMNS = ["age", "colour"]
SCHEMA = pa.schema(
    [("age", pa.int32()), ("colour", pa.string()), ("_owners", pa.list_(pa.string())), ("_record", pa.string())]
)
BAIT = pa.schema(
    [("age", pa.int32()), ("colour", pa.string()), ("_owner", pa.string()), ("_record", pa.string()),
     ("included", pa.bool_())]
)  # fmt: skip
Row = dict[str, Any]
light = settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.fixture(scope="module")
def duckdb() -> Iterator[Engine]:
    with tempfile.TemporaryDirectory() as spill, DuckDBChoice(threads=1).open(Path(spill)) as engine:
        yield engine


def owner(number: int) -> str:
    return name("owner", number)


def row(record: int, owners: list[int | None] | None, age: int | None = 30, colour: str | None = "red") -> Row:
    listed = None if owners is None else [None if who is None else owner(who) for who in owners]
    return {"age": age, "colour": colour, "_owners": listed, "_record": name("record", record)}


def canary(record: int, included: bool) -> Row:
    return {"age": 1, "colour": "blue", "_owner": owner(900 + record), "_record": name("bait", record),
            "included": included}  # fmt: skip


def bound(
    engine: Engine,
    directory: Path,
    rows: list[Row],
    b: int = 2,
    participants: range | list[int] = range(20),
    canaries: list[Row] | None = None,
    batch_rows: int = 1000,
    order: Order | None = None,
    columns: list[str] = COLUMNS,
) -> tuple[list[Row], MultiOwnerReport]:
    place = Path(tempfile.mkdtemp(dir=directory))
    batches = [
        pa.RecordBatch.from_pylist(rows[start : start + batch_rows], schema=SCHEMA)
        for start in range(0, len(rows), batch_rows)
    ]
    write_table(place / "in", SCHEMA, batches)
    report = write_bounded(
        place / "in",
        place / "out",
        engine=engine,
        columns=columns,
        participants=fingerprints_from_hex(sorted(map(owner, participants))),
        max_contributions=b,
        key=KEY,
        canaries=None if canaries is None else pa.Table.from_pylist(canaries, schema=BAIT),
        order=order or Order(),
    )
    parts = list(read_table(place / "out"))
    written = [item for item in SCHEMA if item.name in {*columns, "_owners", "_record"}]
    assert all(part.schema.types == [item.type for item in written] for part in parts)
    result = [item for part in parts for item in part.to_pylist()]
    assert report.rows == len(result)
    return result, report


# Records share ids on purpose now and then, with the same owners and with others; equal contents too.
rows_strategy = st.lists(
    st.builds(
        row,
        st.integers(0, 12),
        st.lists(st.integers(0, 6) | st.none(), max_size=4) | st.none(),
        st.integers(20, 22) | st.none(),
        st.sampled_from(["red", "blue"]),
    ),
    min_size=1,
    max_size=30,
)


@light
@given(rows=rows_strategy, b=st.integers(1, 3), seed=st.randoms(use_true_random=False), size=st.integers(1, 30))
def test_the_bound_holds_whatever_comes_and_in_whatever_order(
    duckdb: Engine, tmp_path: Path, rows: list[Row], b: int, seed: Any, size: int
) -> None:
    result, report = bound(duckdb, tmp_path, rows, b, participants=range(1, 7))
    able = [who for item in rows if (who := {each for each in item["_owners"] or [] if each}) and owner(0) not in who]
    records = Counter(each for item in result for each in item["_owners"])
    assert max(records.values(), default=0) <= b
    assert all(item["_owners"] == sorted(set(item["_owners"])) and item["_owners"] for item in result)
    assert len({item["_record"] for item in result}) == len(result)
    # Every record that could have stayed and did not has an owner without room.
    left = Counter(map(frozenset, able)) - Counter(frozenset(item["_owners"]) for item in result)
    assert all(any(records[each] == b for each in who) for who in left)
    assert report.rows_before == len(rows)
    assert len(able) == len(rows) - report.rows_without_owner - report.rows_excluded
    shuffled = list(rows)
    seed.shuffle(shuffled)
    assert bound(duckdb, tmp_path, shuffled, b, participants=range(1, 7), batch_rows=size)[0] == result


@light
@given(rows=rows_strategy, b=st.integers(1, 3), who=st.integers(0, 6), age=st.integers(1, 99))
def test_the_contents_of_one_persons_records_change_nobody_elses(
    duckdb: Engine, tmp_path: Path, rows: list[Row], b: int, who: int, age: int
) -> None:
    """Fixed-graph stability: neighbours differ in the contents of one person's records, and so do the results."""
    changed = [item | {"age": age} if owner(who) in (item["_owners"] or []) else item for item in rows]

    def of_others(result: list[Row]) -> list[Row]:
        return [item for item in result if owner(who) not in item["_owners"]]

    before, after = (bound(duckdb, tmp_path, each, b)[0] for each in (rows, changed))
    assert of_others(before) == of_others(after)
    assert [(item["_record"], item["_owners"]) for item in before] == [
        (item["_record"], item["_owners"]) for item in after
    ]


# What bounding orders by weight: the age, which is no modelled column here; records of one id and the same owners.
copies_strategy = st.lists(
    st.builds(
        lambda who, copy, age, colour: row(1000 * copy + sum(8**each for each in who), sorted(who), age, colour),
        st.sets(st.integers(0, 5), min_size=1, max_size=2),
        st.integers(0, 1),
        st.integers(20, 22),
        st.sampled_from(["red", "blue", "green"]),
    ),
    min_size=20,
    max_size=60,
)


@settings(light, max_examples=30)
@given(rows=copies_strategy, b=st.integers(1, 2), who=st.integers(0, 5), seed=st.randoms(use_true_random=False))
def test_contents_move_no_place_in_the_order_of_weights(
    duckdb: Engine, tmp_path: Path, rows: list[Row], b: int, who: int, seed: Any
) -> None:
    """Copies of one record with other weights: whatever one person's contents say, all keep the same records."""
    changed = [item | ({"colour": seed.choice("abc")} if owner(who) in item["_owners"] else {}) for item in rows]
    seed.shuffle(changed)
    weighted = {"order": Order("weight", "age"), "columns": ["colour"]}
    before, after = (
        sorted(
            (item["_record"], "" if owner(who) in item["_owners"] else item["colour"])
            for item in bound(duckdb, tmp_path, each, b, **weighted)[0]
        )
        for each in (rows, changed)
    )
    assert before == after


def test_the_content_of_one_copy_moves_no_chain(duckdb: Engine, tmp_path: Path) -> None:
    """The worst case of the above: two copies of one record whose places enclose a chain of others' records."""

    def place(record: str, copy: int) -> str:
        return hashed(record if copy == 1 else hashlib.sha256(f"{record}:{copy}".encode()).hexdigest()[:32])

    names = (name("record", number) for number in range(10_000))
    number, low, high = next(
        (number, place(record, 1), place(record, 2))
        for number, record in enumerate(names)
        if place(record, 1) < "1" and place(record, 2) > "8"
    )
    between = [each for each in range(400) if low < hashed(name("link", each)) < high]
    between.sort(key=lambda each: hashed(name("link", each)))
    chain = [
        row(0, [link + 1, link + 2], age=5) | {"_record": name("link", each)} for link, each in enumerate(between[:15])
    ]
    kept = [
        bound(
            duckdb,
            tmp_path,
            [row(number, [0, 1], age=5, colour=colour), row(number, [0, 1], age=1, colour="m"), *chain],
            1,
            order=Order("weight", "age"),
            columns=["colour"],
        )[0]
        for colour in ("a", "z")
    ]
    assert len(chain) == 15
    assert [item["_record"] for item in kept[0]] == [item["_record"] for item in kept[1]]


def test_one_owner_more_does_change_what_others_keep(duckdb: Engine, tmp_path: Path) -> None:
    """Why fixed-graph is the only adjacency: a chain of shared records, and one more person at its end."""
    chain = [row(number, [number, number + 1]) for number in range(8)]
    kept = greedy_kept({item["_record"]: item["_owners"] for item in chain}, [item["_record"] for item in chain], 1)
    weights = [item | {"age": 100 - place} for place, item in enumerate(chain)]
    first = row(50, [0], age=1000)
    by_age = Order("weight", "age")
    without, _ = bound(duckdb, tmp_path, weights, 1, order=by_age)
    longer, _ = bound(duckdb, tmp_path, [first, *weights], 1, order=by_age)
    assert {item["_record"] for item in without} == kept
    assert {item["_record"] for item in longer} == {item["_record"] for item in chain} - kept | {first["_record"]}


def test_a_weight_in_one_persons_hands_changes_what_others_keep(duckdb: Engine, tmp_path: Path) -> None:
    """Why a weight must be part of the fixed graph: only the first record's value is changed."""
    chain = [row(place, [place, place + 1], age=100 - place) for place in range(8)]
    changed = [chain[0] | {"age": 1}, *chain[1:]]
    first, second = (
        {item["_record"] for item in bound(duckdb, tmp_path, rows, 1, order=Order("weight", "age"))[0]}
        for rows in (chain, changed)
    )
    assert first == {item["_record"] for item in chain[::2]} and second == {item["_record"] for item in chain[1::2]}


def test_both_engines_write_the_greedys_rows(engine: Engine, tmp_path: Path) -> None:
    rows = [row(number, [number % 7, number % 5, number % 11], age=number % 4 or None) for number in range(60)]
    bait = [canary(1, True), canary(2, False)]
    result, report = bound(engine, tmp_path, rows, b=4, canaries=bait, order=Order("weight", "age"))
    graph = {item["_record"]: sorted(set(item["_owners"])) for item in rows}
    ages = {item["_record"]: item["age"] for item in rows}
    expected = greedy_kept(graph, ordered(graph, "weight", ages), 4)
    check_maximal(graph, expected, 4)
    assert {item["_record"]: item["age"] for item in result} == {
        name("bait", 1): 1,
        **{record: ages[record] for record in expected},
    }
    assert report.canary_rows == 1
    assert report.owners == len({each for record in expected for each in graph[record]})


def test_what_is_wrong_with_owners_is_left_out_and_counted(engine: Engine, tmp_path: Path) -> None:
    rows = [
        row(0, [1, None, 1, 2, 2]),
        row(1, []),
        row(2, None),
        row(3, [None, None]),
        row(4, [3, 77]),
        row(5, [77]),
        row(6, [4]),
        row(6, [5], age=1),
        row(6, [4], age=2),
        row(6, [4], age=3),
    ]
    result, report = bound(engine, tmp_path, rows, b=2)
    assert (report.rows_before, report.rows_without_owner, report.rows_excluded) == (10, 3, 2)
    assert (report.null_owners, report.repeated_owners, report.repeated_keys) == (3, 2, 3)
    assert sorted(tuple(item["_owners"]) for item in result) == sorted(
        [tuple(sorted([owner(1), owner(2)])), (owner(4),), (owner(4),), (owner(5),)]
    )
    assert (report.rows, report.owners, report.canary_rows, report.max_contributions) == (4, 4, 0, 2)


def test_a_record_with_more_owners_than_any_bound_stays(duckdb: Engine, tmp_path: Path) -> None:
    crowd = [row(0, list(range(3_000)))]
    assert len(bound(duckdb, tmp_path, crowd, b=1, participants=range(3_000))[0]) == 1


def test_nobody_leaves_an_empty_table(duckdb: Engine, tmp_path: Path) -> None:
    assert bound(duckdb, tmp_path, [row(1, [1])], participants=[])[0] == []


def test_what_does_not_fit_is_refused(duckdb: Engine, tmp_path: Path) -> None:
    rows = [row(1, [1])]
    with pytest.raises(BoundingError, match="1 or more"):
        bound(duckdb, tmp_path, rows, b=0)
    with pytest.raises(BoundingError, match="fingerprint of a participant"):
        bound(duckdb, tmp_path, rows, canaries=[canary(1, True) | {"_owner": owner(1)}])
    with pytest.raises(BoundingError, match="no column 'height'"):
        bound(duckdb, tmp_path, rows, order=Order("weight", "height"))
    with pytest.raises(BoundingError, match="column of type string"):
        bound(duckdb, tmp_path, rows, order=Order("weight", "colour"))


@pytest.mark.parametrize(
    ("sql", "wrong", "words"),
    [
        ("_KEPT_SQL", "SELECT _record, array_agg(_owner) AS _owners FROM edges GROUP BY _record", "more than 1"),
        ("_EXCLUDED_SQL", "SELECT _record FROM edges WHERE _record = ''", "no participant"),
        ("_KEPT_SQL", "SELECT DISTINCT _record, CAST(NULL AS STRING[]) AS _owners FROM edges", "without an owner"),
    ],
)  # fmt: skip
def test_the_check_after_writing_finds_a_wrong_choice(
    duckdb: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sql: str, wrong: str, words: str
) -> None:
    monkeypatch.setattr(f"dpsynth_platform.bounding.multi_owner.{sql}", wrong)
    with pytest.raises(BoundingError, match=words):
        bound(duckdb, tmp_path, [row(1, [1, 2]), row(2, [88]), row(3, [1])], b=1)
