"""Structs, durations, decimals of whole numbers, texts of truth values and ids of bytes come back as they are."""

from __future__ import annotations

import datetime as dt
import uuid
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from pyarrow import csv

from dpsynth_platform.audit.adhoc.tables import MEMBERS, OTHERS, SYNTHETIC
from dpsynth_platform.foundation.errors import SourceError
from dpsynth_platform.one_table import Options, Synthesis, more_rows, synthesize
from dpsynth_platform.one_table.audit import synthesis_evidence
from dpsynth_platform.one_table.task import task_of
from dpsynth_platform.quality.files import read_file

OWNERS, EACH = 90, 4
WORDS = ["TRUE", "0"]
STAY = pa.struct([("took", pa.duration("s")), ("beds", pa.decimal128(18, 0)), ("note", pa.string())])
VISIT = pa.struct([("who", pa.binary(16)), ("sick", pa.string()), ("stay", STAY)])
COLUMNS: dict[str, Any] = {
    "nr": {"ignore": True},
    "visit.who": {"type": "identifier"},
    "visit.sick": {"type": "boolean", "nullable": True},
    "visit.stay.took": {"type": "integer", "min": 0, "max": 7200},
    "visit.stay.beds": {"type": "integer", "min": 0, "max": 3, "nullable": True},
    "visit.stay.note": {"type": "text"},
    "ward": {"type": "categorical", "values": [1, 2]},
}
TERMS: dict[str, Any] = {
    "epsilon": 300.0,
    "delta": 1e-5,
    "method": "mst",
    "owners": "visit.who",
    "contributions": 1,
    "accept_weak_guarantee": "fictional rows",
}


def visits() -> pa.Table:
    """Rows of which each owner has four; who is sick stays for an hour in two beds."""
    ids = [uuid.uuid5(uuid.NAMESPACE_URL, str(number)).bytes for number in range(OWNERS)]
    rows = []
    for number in range(OWNERS * EACH):
        sick = number // EACH % 2 == 0
        stay = {"took": dt.timedelta(hours=sick), "beds": Decimal(2) if sick else None, "note": "Zaphodina"}
        rows.append({"who": ids[number // EACH], "sick": WORDS[not sick], "stay": stay})
    ward = [Decimal(1 + number // EACH % 2) for number in range(len(rows))]
    return pa.table(
        {
            "nr": list(range(len(rows))),
            "visit": pa.array(rows, VISIT),
            "ward": pa.array(ward, pa.decimal128(38, 0)),
        }
    )


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Synthesis]:
    root = tmp_path_factory.mktemp("types")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DPSYNTH_HOME", str(root / "home"))
        pq.write_table(visits(), root / "visits.parquet")
        options = Options(**TERMS, schema={"columns": COLUMNS})
        return root, synthesize(root / "visits.parquet", root / "out", options)


def test_the_table_has_the_shape_and_types_of_the_given_one(made: tuple[Path, Synthesis]) -> None:
    _, result = made
    table = pq.read_table(result.synthetic)
    assert table.schema.equals(visits().schema.remove(0))
    table.validate(full=True)
    assert abs(len(table) - OWNERS) < 15  # one row of each owner, whose ids are bytes
    found = {
        (row["visit"]["sick"], row["visit"]["stay"]["took"], row["visit"]["stay"]["beds"], row["ward"])
        for row in table.to_pylist()
    }
    hour = dt.timedelta(hours=1)
    assert {("true", hour, Decimal(2), Decimal(1)), ("false", dt.timedelta(0), None, Decimal(2))} & found
    assert {row["visit"]["stay"]["note"] for row in table.to_pylist()} == {None}
    ids = [row["visit"]["who"] for row in table.to_pylist()]
    assert ids == [number.to_bytes(16) for number in range(1, len(ids) + 1)]
    assert set(result.nullable) == {"visit.sick", "visit.stay.beds"}
    assert b"Zaphodina" not in result.synthetic.read_bytes()


@pytest.mark.parametrize("kind", ["parquet", "csv", "delta"])
def test_more_rows_keep_it_in_each_format(made: tuple[Path, Synthesis], tmp_path: Path, kind: str) -> None:
    root, _ = made
    target = tmp_path / {"parquet": "r.parquet", "csv": "r.csv", "delta": "r"}[kind]
    given = {"visit.sick": True, "ward": 1, "visit.stay.took": {"min": 3600}}
    more_rows(root / "out", 5, given=given, to=target)
    if kind == "csv":
        found = csv.read_csv(target, convert_options=csv.ConvertOptions(column_types={"visit.who": pa.string()}))
        expected = [name for name in COLUMNS if name != "nr"]
        assert found.column_names == expected
        assert set(found["visit.who"].to_pylist()) == {f"{number:032x}" for number in range(1, 6)}
        assert min(found["visit.stay.took"].to_pylist()) >= 3600 and set(found["visit.sick"].to_pylist()) == {True}
        return
    table = pq.read_table(target) if kind == "parquet" else pa.table(DeltaTable(target).to_pyarrow_table())
    took = table.schema.field("visit").type.field("stay").type.field("took").type
    assert took == (pa.duration("s") if kind == "parquet" else pa.int64())
    rows = table.to_pylist()
    hour = dt.timedelta(hours=1) if kind == "parquet" else 3600
    assert all(row["visit"]["sick"] == "true" and row["visit"]["stay"]["took"] >= hour for row in rows)
    assert {row["ward"] for row in rows} == {Decimal(1)}


def test_constraints_name_the_fields(made: tuple[Path, Synthesis], tmp_path: Path) -> None:
    root, _ = made
    (tmp_path / "c.yaml").write_text(
        "constraints:\n"
        "  - forbid: {visit.sick: [true], visit.stay.beds: {max: 1}}\n"
        "  - {column: ward, determines: visit.sick, mapping: {1: true, 2: false}, allow_missing: false}\n"
        "  - forbid: {visit.stay.took: {min: 1}, ward: ['2']}\n"
    )
    more_rows(root / "out", 200, constraints=tmp_path / "c.yaml", to=tmp_path / "r.parquet")
    for row in pq.read_table(tmp_path / "r.parquet").to_pylist():
        visit, sick = row["visit"], row["ward"] == 1
        assert visit["sick"] == ("true" if sick else "false")
        assert sick or visit["stay"]["took"] == dt.timedelta(0)
        assert not (sick and visit["stay"]["beds"] is not None and visit["stay"]["beds"] < 2)


def test_an_audit_reads_the_same_columns(made: tuple[Path, Synthesis]) -> None:
    root, result = made
    real = read_file(root / "visits.parquet")
    tables = {MEMBERS: real.slice(0, 40), OTHERS: real.slice(40, 40), SYNTHETIC: read_file(result.synthetic)}
    found = synthesis_evidence(root / "out", tables, canaries=False)
    assert len(found.targets) == 80 and len(found.domain) == 4


def test_a_plan_is_that_of_a_table_with_the_fields_as_columns(made: tuple[Path, Synthesis]) -> None:
    options = Options(**TERMS, schema={"columns": COLUMNS})
    tables = [visits(), made[0] / "visits.parquet", visits().flatten().flatten()]
    assert len({task_of(table, options).plan.digest for table in tables}) == 1


def test_a_field_with_the_name_of_a_column_is_refused() -> None:
    table = visits().append_column("visit.sick", pa.array(["a"] * OWNERS * EACH))
    with pytest.raises(SourceError, match=r"a field of the struct 'visit' has the name of another") as caught:
        task_of(table, Options(**TERMS, schema={"columns": COLUMNS}))
    assert "sick" not in str(caught.value), "a field may have been a key in the data"
