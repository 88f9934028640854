"""Bounding: never above b, nothing but an owner's own rows matters, order and files of the input do not."""

from __future__ import annotations

import hashlib
import math
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dpsynth_platform.bounding import single_owner
from dpsynth_platform.bounding.order import RANDOM, Order
from dpsynth_platform.bounding.single_owner import write_bounded
from dpsynth_platform.compute.choice import DuckDBChoice
from dpsynth_platform.compute.engine import Engine
from dpsynth_platform.foundation.errors import BoundingError
from dpsynth_platform.foundation.storage import read_table, write_table
from dpsynth_platform.scrub.fingerprints import (
    Fingerprints,
    distinct_owners,
    fingerprint_hex,
    fingerprints_from_hex,
    holdout_mask,
)

KEY = b"k" * 32
COLUMNS = ["age", "colour"]
SCHEMA = pa.schema([("age", pa.int32()), ("colour", pa.string()), ("_owner", pa.string()), ("_record", pa.string())])
Row = dict[str, Any]


def owner(number: int) -> str:
    return hashlib.sha256(f"owner {number}".encode()).hexdigest()[:32]


def row(number: int, record: int, age: int | None = 30, colour: str | None = "red") -> Row:
    name = hashlib.sha256(f"record {number} {record}".encode()).hexdigest()[:32]
    return {"age": age, "colour": colour, "_owner": owner(number), "_record": name}


def batch(rows: list[Row]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist(rows, schema=SCHEMA)


def bound(
    directory: Path,
    rows: list[Row],
    b: int = 2,
    participants: Fingerprints | None = None,
    canaries: pa.Table | None = None,
    batch_rows: int = 1000,
    key: bytes = KEY,
    order: Order = RANDOM,
) -> list[Row]:
    place = Path(tempfile.mkdtemp(dir=directory))
    batches = [batch(rows[start : start + batch_rows]) for start in range(0, len(rows), batch_rows)]
    write_table(place / "in", SCHEMA, batches)
    if participants is None:
        participants = distinct_owners(batches)
    with DuckDBChoice(threads=1).open(place / "spill") as engine:
        report = write_bounded(
            place / "in",
            place / "out",
            engine=engine,
            columns=COLUMNS,
            participants=participants,
            max_contributions=b,
            key=key,
            canaries=canaries,
            order=order,
        )
    result = [item for part in read_table(place / "out") for item in part.to_pylist()]
    assert report.rows == len(result)
    assert not list((place / "spill").iterdir()), "spill files must not stay"
    return result


# Records share ids on purpose now and then; equal contents too.
rows_strategy = st.lists(
    st.builds(
        row, st.integers(0, 6), st.integers(0, 5), st.integers(20, 22) | st.none(), st.sampled_from(["red", "blue"])
    ),
    min_size=1,
    max_size=40,
)
light = settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@light
@given(rows=rows_strategy, b=st.integers(1, 4), seed=st.randoms(use_true_random=False), size=st.integers(1, 40))
def test_never_above_the_bound_and_independent_of_input_order(
    tmp_path: Path, rows: list[Row], b: int, seed: Any, size: int
) -> None:
    result = bound(tmp_path, rows, b)
    available = Counter(item["_owner"] for item in rows)
    assert Counter(item["_owner"] for item in result) == {name: min(b, count) for name, count in available.items()}
    assert len({item["_record"] for item in result}) == len(result)
    shuffled = list(rows)
    seed.shuffle(shuffled)
    assert bound(tmp_path, shuffled, b, batch_rows=size) == result


@light
@given(rows=rows_strategy, b=st.integers(1, 3), leaving=st.integers(0, 6))
def test_one_owner_more_or_less_changes_that_owners_rows_only(
    tmp_path: Path, rows: list[Row], b: int, leaving: int
) -> None:
    others = [item for item in rows if item["_owner"] != owner(leaving)]
    with_all = bound(tmp_path, rows, b)
    without = bound(tmp_path, [*others, row(99, 0)], b)
    assert [item for item in with_all if item["_owner"] != owner(leaving)] == [
        item for item in without if item["_owner"] != owner(99)
    ]


def test_the_order_is_that_of_sha256_of_key_and_record_id(tmp_path: Path) -> None:
    rows = [row(1, record) for record in range(20)]
    result = bound(tmp_path, rows, b=5)
    ordered = sorted(
        (item["_record"] for item in rows), key=lambda name: hashlib.sha256((KEY.hex() + name).encode()).digest()
    )
    assert [item["_record"] for item in result] == ordered[:5]
    assert bound(tmp_path, rows, b=5, key=b"x" * 32) != result


def test_a_declared_column_ranks_the_same_on_both_engines(engine: Engine, tmp_path: Path) -> None:
    ages = [3, None, 7, 7, 7, 1, None, 9]
    rows = [row(number, record, age) for number in range(3) for record, age in enumerate(ages)]
    write_table(tmp_path / "in", SCHEMA, [batch(rows)])

    def kept(b: int) -> dict[str, list[Row]]:
        write_bounded(
            tmp_path / "in",
            tmp_path / f"out{b}",
            engine=engine,
            columns=COLUMNS,
            participants=distinct_owners([batch(rows)]),
            max_contributions=b,
            key=KEY,
            order=Order("weight", "age"),
        )
        found = [item for part in read_table(tmp_path / f"out{b}") for item in part.to_pylist()]
        return {name: [item for item in found if item["_owner"] == name] for name in map(owner, range(3))}

    def place(item: Row) -> tuple[bool, int, bytes]:
        keyed = hashlib.sha256((KEY.hex() + item["_record"]).encode()).digest()
        return item["age"] is None, -(item["age"] or 0), keyed

    for b in (2, 7):
        for name, found in kept(b).items():
            assert found == sorted((item for item in rows if item["_owner"] == name), key=place)[:b]


def test_only_participants_and_included_canaries_take_part_and_canaries_are_bounded(tmp_path: Path) -> None:
    rows = [row(number, record) for number in range(4) for record in range(3)]
    bait = [row(number, record, 99, "blue") | {"included": number == 50} for number in (50, 51) for record in range(3)]
    canaries = pa.Table.from_pylist(bait, schema=SCHEMA.append(pa.field("included", pa.bool_())))
    participants = fingerprints_from_hex(sorted([owner(0), owner(2)]))
    result = bound(tmp_path, rows, b=2, participants=participants, canaries=canaries)
    assert Counter(item["_owner"] for item in result) == {owner(0): 2, owner(2): 2, owner(50): 2}


def test_report_counts_and_types_stay(tmp_path: Path) -> None:
    rows = [row(number, record // 2) for number in range(3) for record in range(number + 1)]
    bait = [row(50, 0) | {"included": True}]
    write_table(tmp_path / "in", SCHEMA, [batch(rows)])
    with DuckDBChoice().open(tmp_path / "spill") as engine:
        report = write_bounded(
            tmp_path / "in",
            tmp_path / "out",
            engine=engine,
            columns=COLUMNS,
            participants=fingerprints_from_hex([owner(1), owner(2)]),
            max_contributions=2,
            key=KEY,
            canaries=pa.Table.from_pylist(bait, schema=SCHEMA.append(pa.field("included", pa.bool_()))),
        )
    assert (report.rows_before, report.rows, report.owners, report.canary_rows) == (6, 5, 2, 1)
    assert report.repeated_keys == 2  # the others' with an owner's own key are no repetition
    assert next(read_table(tmp_path / "out")).schema.types == SCHEMA.types


def test_no_participant_leaves_an_empty_table(tmp_path: Path) -> None:
    assert bound(tmp_path, [row(1, 1)], participants=fingerprints_from_hex([])) == []


def test_what_does_not_fit_is_refused(tmp_path: Path) -> None:
    rows = [row(1, 1)]
    with pytest.raises(BoundingError, match="1 or more"):
        bound(tmp_path, rows, b=0)
    canary = pa.Table.from_pylist(
        [rows[0] | {"included": True}], schema=SCHEMA.append(pa.field("included", pa.bool_()))
    )
    with pytest.raises(BoundingError, match="fingerprint of a participant"):
        bound(tmp_path, rows, canaries=canary)
    with pytest.raises(BoundingError, match="no column included"):
        bound(tmp_path, rows, canaries=canary.drop_columns(["included"]))
    with pytest.raises(BoundingError, match="each record has one owner"):
        bound(tmp_path, rows, order=Order("fewest-owners-first"))
    with pytest.raises(BoundingError, match="no column 'height'"):
        bound(tmp_path, rows, order=Order("weight", "height"))
    wrong = canary.set_column(0, "age", pa.array(["young"]))
    with pytest.raises(BoundingError, match="types"):
        bound(tmp_path, rows, canaries=wrong)


def test_the_check_after_writing_finds_a_wrong_choice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [row(1, record) for record in range(3)]
    monkeypatch.setattr(single_owner, "_BOUND_SQL", single_owner._BOUND_SQL.replace("_rank <= ?", "_rank <= ? + 1"))
    with pytest.raises(BoundingError, match="more than 2 records"):
        bound(tmp_path, rows)
    monkeypatch.undo()
    monkeypatch.setattr(
        single_owner,
        "_BOUND_SQL",
        single_owner._BOUND_SQL.replace("WHERE _owner IN (SELECT _owner FROM participants)", ""),
    )
    with pytest.raises(BoundingError, match="no participant"):
        bound(tmp_path, rows, participants=fingerprints_from_hex([]))


def test_holdout_depends_on_owner_and_key_alone() -> None:
    owners = fingerprints_from_hex(sorted(owner(number) for number in range(20_000)))
    mask = holdout_mask(owners, KEY, 0.1)
    # Binomial(20000, 0.1): five standard deviations are 212, an error probability below 1e-6.
    assert abs(mask.sum() - 2000) < 5 * math.sqrt(20_000 * 0.1 * 0.9)
    order = np.random.default_rng(0).permutation(len(owners))
    assert (holdout_mask(owners[order], KEY, 0.1) == mask[order]).all()
    assert (holdout_mask(owners[mask], KEY, 0.1)).all()
    assert (holdout_mask(owners, KEY, 0.2) >= mask).all()
    assert (holdout_mask(owners, b"x" * 32, 0.1) != mask).any()
    assert not holdout_mask(owners, KEY, 0.0).any()


def test_fingerprints_that_end_in_zero_bytes_stay_whole() -> None:
    texts = ["00" * 16, "ab" * 15 + "00", "ab" * 16]
    assert fingerprint_hex(fingerprints_from_hex(texts)) == texts
    assert fingerprint_hex(np.unique(fingerprints_from_hex(texts[::-1]))) == texts
