"""Any name of a column goes through the SQL of bounding as it is, to the same rows on both engines."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from column_names import NAMES

from dpsynth_platform.bounding import multi_owner, single_owner
from dpsynth_platform.bounding.order import RANDOM, Order
from dpsynth_platform.compute.choice import DuckDBChoice
from dpsynth_platform.compute.engine import Engine
from dpsynth_platform.contracts.columns import RESERVED_COLUMNS
from dpsynth_platform.foundation.storage import read_table, write_table
from dpsynth_platform.scrub.fingerprints import fingerprints_from_hex

KEY = b"k" * 32
PEOPLE = 30
WEIGHT = 'quo"te'
MOST = 2
Writer = Any


def hexed(*words: object) -> str:
    return hashlib.sha256(repr(words).encode()).hexdigest()[:32]


def scrubbed_table(owner_column: str) -> pa.Table:
    """Each person has four records, of which two have the same id; the content tells the columns apart."""
    records = [(person, number) for person in range(PEOPLE) for number in range(4)]
    columns = {
        name: pa.array([(17 * place + 5 * person + number) % 23 for person, number in records], pa.int64())
        for place, name in enumerate(NAMES)
    }
    owners = [[hexed("owner", person), hexed("owner", (person + number) % PEOPLE)] for person, number in records]
    return pa.table(
        columns
        | {
            owner_column: [who[0] for who in owners]
            if owner_column == "_owner"
            else pa.array([sorted(set(who)) for who in owners], pa.list_(pa.string())),
            "_record": [hexed("record", person, min(number, 2)) for person, number in records],
        }
    )


def canary(table: pa.Table) -> pa.Table:
    """One included canary, with one owner."""
    content = {name: pa.array([7], pa.int64()) for name in NAMES}
    return pa.table(content | {"_owner": [hexed("canary")], "_record": [hexed("bait")], "included": [True]})


def rows_of(table: Path) -> list[dict[str, Any]]:
    return sorted(
        (row for batch in read_table(table) for row in batch.to_pylist()), key=lambda row: str(row["_record"])
    )


@pytest.fixture
def duckdb(tmp_path: Path) -> Iterator[Engine]:
    with DuckDBChoice(threads=1).open(tmp_path / "spill-here") as engine:
        yield engine


@pytest.mark.parametrize(("writer", "owner_column"), [(single_owner, "_owner"), (multi_owner, "_owners")])
@pytest.mark.parametrize("order", [RANDOM, Order.parse(f"weight:{WEIGHT}")], ids=["random", "weight"])
def test_both_engines_bound_by_any_names_alike(
    spark: Engine, duckdb: Engine, tmp_path: Path, writer: Writer, owner_column: str, order: Order
) -> None:
    table = scrubbed_table(owner_column)
    write_table(tmp_path / "scrubbed", table.schema, table.to_batches())
    participants = fingerprints_from_hex(sorted(hexed("owner", person) for person in range(PEOPLE)))
    read = [name for name in NAMES if writer is single_owner or name != WEIGHT]
    for name, engine in (("duckdb", duckdb), ("spark", spark)):
        report = writer.write_bounded(
            tmp_path / "scrubbed",
            tmp_path / name,
            engine=engine,
            columns=read,
            participants=participants,
            max_contributions=MOST,
            key=KEY,
            canaries=canary(table),
            order=order,
        )
        assert report.canary_rows == 1
    kept = rows_of(tmp_path / "duckdb")
    assert rows_of(tmp_path / "spark") == kept
    assert [*kept[0]][: len(read)] == read
    content = [tuple(row[name] for name in read) for row in table.to_pylist()]
    assert len(kept) > PEOPLE / 2
    for row in kept:
        assert row["_record"] == hexed("bait") or tuple(row[name] for name in read) in content


def test_the_platforms_own_names_are_reserved() -> None:
    """What stands beside declared columns in a table or a query of bounding."""
    texts = " ".join(
        text
        for module in (single_owner, multi_owner)
        for name, text in vars(module).items()
        if name.endswith("_SQL") and isinstance(text, str) and "{columns}" in text
    )
    words = {word.strip("(),.") for word in texts.replace(".", " ").split()}
    assert {word for word in words if word.startswith("_")} | {"_copy", "included", "_kind", "_features"} == set(
        RESERVED_COLUMNS
    )
