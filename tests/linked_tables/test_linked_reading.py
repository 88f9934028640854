"""What the line reads of linked tables: keys as hashes that join, no text, no erased owner, the pinned content."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from clinic import TABLES, clinic, written
from linked_line_cases import CONTRACT

from dpsynth_platform.compute.choice import DuckDBChoice
from dpsynth_platform.contracts.contract import DataContract
from dpsynth_platform.contracts.loading import parse_contract
from dpsynth_platform.foundation.errors import BoundingError, SourceError, StaleInput
from dpsynth_platform.foundation.storage import read_table
from dpsynth_platform.linked_rows.line import (
    OWNERS,
    TABLE,
    ReadTables,
    bound_tables,
    plan_of,
    read_tables,
    rows_schema,
)
from dpsynth_platform.scrub.fingerprints import FINGERPRINT_DTYPE, FingerprintKeys, Fingerprints, owner_fingerprints
from dpsynth_platform.sources.linked_source import source_of_contract
from dpsynth_platform.sources.source import pin
from dpsynth_platform.synth.relational.sealing import SealedTables

KEYS = FingerprintKeys(b"i" * 32, (b"o" * 32,))
NOBODY = np.array([], FINGERPRINT_DTYPE)


def contract_of(place: Path, **changes: Any) -> DataContract:
    own = {
        "source": {"uri": str(place)},
        "generate": {"method": "independent"},
        "release": {"uri": str(place.parent / "public")},
    }
    return parse_contract(CONTRACT | own | changes, where="contract", variables={})


@pytest.fixture
def place(tmp_path: Path) -> Path:
    return written(tmp_path / "clinic", clinic(60))


def read(contract: DataContract, target: Path, left_out: Fingerprints = NOBODY) -> ReadTables:
    content = source_of_contract(contract, rows=False).content
    return read_tables(contract, content, target, owner_keys=KEYS, column_key=b"c" * 32, left_out=left_out)


def table(directory: Path, name: str) -> pa.Table:
    return pa.Table.from_batches(read_table(directory / TABLE / name))


def test_keys_are_hashes_that_join_as_the_keys_do(place: Path, tmp_path: Path) -> None:
    found = read(contract_of(place), tmp_path / "read")
    real = {name: pq.read_table(place / f"{name}.parquet") for name in ("patients", "stays", "diagnoses")}
    assert dict(found.rows) == {name: len(rows) for name, rows in real.items()}
    assert len(found.owners) == len(real["patients"])
    kept = {name: table(tmp_path / "read", name) for name in real}
    assert "remark" not in kept["patients"].column_names
    for child, parent, key in (("stays", "patients", "patient_id"), ("diagnoses", "stays", "stay")):
        joined = kept[child].join(kept[parent].select([key]), key, join_type="inner")
        assert len(joined) == len(kept[child]) > 0
    shown = str([rows.to_pydict() for rows in kept.values()])
    assert "s1'" not in shown and "likes tea" not in shown and "'500'" not in shown
    # A part of a composite key that is no foreign key has hashes of its own.
    assert not set(kept["diagnoses"]["line"].to_pylist()) & set(kept["diagnoses"]["stay"].to_pylist())
    assert {"patients.patient_id", "stays.ward", "diagnoses.code"} <= set(
        rows_schema(contract_of(place), tmp_path / "read").names
    )


def test_owners_have_the_fingerprints_that_one_table_gives_them(place: Path, tmp_path: Path) -> None:
    read(contract_of(place), tmp_path / "read")
    owners = pa.Table.from_batches(read_table(tmp_path / "read" / OWNERS))
    texts = [str(number) for number in pq.read_table(place / "patients.parquet")["patient id"].to_pylist()]
    assert sorted(owners["_owner"].to_pylist()) == sorted(owner_fingerprints(texts, KEYS).to_pylist())


def test_an_erased_owner_is_left_out_with_all_that_belongs_to_it(place: Path, tmp_path: Path) -> None:
    stays = pq.read_table(place / "stays.parquet")
    person = stays["patient id"][0].as_py()
    mine = stays.filter(pc.equal(stays["patient id"], person))["stay"]
    diagnoses = pq.read_table(place / "diagnoses.parquet")
    below = pc.sum(pc.is_in(diagnoses["stay"], mine.combine_chunks())).as_py()
    assert len(mine) and below
    erased = np.array([bytes.fromhex(owner_fingerprints([str(person)], KEYS)[0].as_py())], FINGERPRINT_DTYPE)
    found = read(contract_of(place), tmp_path / "read", erased)
    assert dict(found.rows) == {"patients": 59, "stays": len(stays) - len(mine), "diagnoses": len(diagnoses) - below}
    assert len(found.owners) == 59 and erased[0] not in found.owners


def test_other_content_than_the_pinned_one_is_refused(place: Path, tmp_path: Path) -> None:
    contract = contract_of(place)
    pinned = pin(contract, tmp_path / "zone", register=True)
    assert pin(contract, tmp_path / "zone", version=pinned.version).content == pinned.content
    pq.write_table(clinic(61)["patients"], place / "patients.parquet")
    with pytest.raises(SourceError, match="changed since the version was pinned"):
        pin(contract, tmp_path / "zone", version=pinned.version)
    with pytest.raises(StaleInput, match="changed since raw pinned them"):
        read_tables(contract, pinned.content, tmp_path / "read", owner_keys=KEYS, column_key=b"c" * 32, left_out=NOBODY)
    newer = pin(contract, tmp_path / "zone", register=True)
    assert newer.table_id == pinned.table_id and newer.version > pinned.version


def test_each_private_table_has_an_id_with_the_columns_that_lead_to_its_owner(place: Path, tmp_path: Path) -> None:
    pinned = pin(contract_of(place), tmp_path / "zone", register=True)
    assert sorted(pinned.parts.values()) == [("patient id",), ("patient id",), ("stay > patient id",)]
    alone = parse_contract(
        {
            "dataset": "stays",
            "description": "One of the tables.",
            "owners": ["tests@example.org"],
            "source": {"uri": str(place / "stays.parquet"), "format": "parquet", "key": ["stay"]},
            "family": "others",
            "privacy": {
                "unit": "user",
                "owner_columns": ["patient id"],
                "namespace": "person",
                "max_contributions": 4,
                "guarantee": {"epsilon": 1.0},
                "expected_units": 600,
            },
            "columns": {
                "stay": {"type": "identifier"},
                "patient id": {"type": "identifier"},
                **{name: {"ignore": True} for name in ("admitted", "left")},
                "ward": {"type": "categorical", "values": ["A", "B", "C"]},
            },
            "generate": {"method": "mst"},
            "release": {"uri": str(tmp_path / "public")},
        },
        where="contract",
        variables={},
    )
    assert pinned.parts[pin(alone, tmp_path / "zone", register=True).table_id] == ("patient id",)


def test_undeclared_columns_are_refused(place: Path) -> None:
    tables = {name: dict(found) for name, found in TABLES["tables"].items()}
    tables["stays"] = tables["stays"] | {
        "columns": {k: v for k, v in tables["stays"]["columns"].items() if k != "ward"}
    }
    with pytest.raises(SourceError, match=r"tables\.stays: not declared in the contract: ward \(string\)"):
        plan_of(contract_of(place, tables=tables))


def test_keys_that_are_written_in_two_ways_are_refused(place: Path, tmp_path: Path) -> None:
    stays = pq.read_table(place / "stays.parquet")
    at = stays.schema.get_field_index("patient id")
    pq.write_table(
        stays.set_column(at, "patient id", [[f"{number}.0" for number in stays["patient id"].to_pylist()]]),
        place / "stays.parquet",
    )
    contract = contract_of(place)
    found, tables = read(contract, tmp_path / "read"), SealedTables.of(plan_of(contract)).tables
    joining = {name: table(tmp_path / "read", name).schema.empty_table() for name in tables.private}
    owners = pa.table({"_id": pa.array([], pa.string()), "_owner": pa.array([], pa.string())})
    with (
        DuckDBChoice().open(tmp_path) as engine,
        pytest.raises(BoundingError, match=r"tables\.stays: no row has one of patients by patient_id; accepted: keys"),
    ):
        bound_tables(
            tables,
            tmp_path / "read",
            tmp_path / "bounded",
            engine=engine,
            participants=found.owners,
            key=b"k" * 32,
            joining=(joining, owners),
        )


def test_only_participants_and_joining_canaries_are_bounded(place: Path, tmp_path: Path) -> None:
    contract = contract_of(place)
    found, tables = read(contract, tmp_path / "read"), SealedTables.of(plan_of(contract)).tables
    schemas = {name: table(tmp_path / "read", name).schema for name in tables.private}
    joining = {name: schema.empty_table() for name, schema in schemas.items()}
    row = {"patient_id": ["canary"], "birth": table(tmp_path / "read", "patients")["birth"].slice(0, 1), "sex": ["F"]}
    joining["patients"] = pa.table({name: row[name] for name in schemas["patients"].names}, schemas["patients"])
    owners = pa.table({"_id": ["canary"], "_owner": ["f" * 32]})
    with DuckDBChoice().open(tmp_path) as engine:
        report = bound_tables(
            tables,
            tmp_path / "read",
            tmp_path / "bounded",
            engine=engine,
            participants=found.owners[:20],
            key=b"k" * 32,
            joining=(joining, owners),
        )
    assert report.owners == 21 and report.tables["patients"].kept == 21
    views = pa.Table.from_batches(read_table(tmp_path / "bounded" / "patients"))
    assert "f" * 32 in views["_owner"].to_pylist()
    assert sorted(path.name for path in tmp_path.iterdir() if path.name.startswith("bounded")) == ["bounded"]
