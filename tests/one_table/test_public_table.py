"""A public table beside one table: it helps, the statement names it, and it is not the private table again."""

from __future__ import annotations

import itertools
import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import write_deltalake
from pyarrow import csv
from synthesis_cases import Make, people

from dpsynth_platform.foundation.errors import BudgetExceeded, ContractError
from dpsynth_platform.ledger.store import Ledger
from dpsynth_platform.one_table import Options
from dpsynth_platform.one_table.task import task_of
from dpsynth_platform.synth.tabular.public_rows import SealedRows

WHY = "made up for tests, and published"


@pytest.fixture
def earlier(tmp_path: Path) -> Path:
    path = tmp_path / "earlier.parquet"
    pq.write_table(people(500).select(["age", "rich", "note"]).slice(3), path)
    return path


@pytest.mark.parametrize("method", ["aim", "jam"])
def test_it_helps_and_is_in_the_statement(
    make: Make, earlier: Path, method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(earlier.parent)
    options = {"method": method, "public": earlier.name, "public_why": WHY}
    made = make(**options)
    text = made.statement.read_text()
    assert WHY in text and "public table earlier.parquet" in text and str(earlier.parent) not in text
    assert "The public table that helped: 497 rows with age, rich; missing or unlisted values: none." in text
    assert made.public == "497 rows with age, rich; missing or unlisted values: none"
    assert any(WHY in line for line in made.not_covered)
    again = make(**options | {"public": str(earlier)})
    assert not again.spent and again.entry_id == made.entry_id
    pq.write_table(people(400).select(["age", "rich"]), earlier)
    with pytest.raises(BudgetExceeded):
        make(**options)
    assert [entry.state for entry in Ledger(f"sqlite:///{made.ledger / 'ledger.db'}").entries()] == ["spent"]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"method": "jam"}, "--public: missing, and 'jam' takes counts from it; accepted: a public table, or method"),
        ({"method": "jam", "public_why": WHY}, "--public and --public-why go together"),
        ({"method": "mst", "public": "earlier.parquet", "public_why": WHY}, "--public: is for method aim, jam,"),
        ({"method": "auto", "public": "earlier.parquet", "public_why": WHY}, "--public: is for method aim, jam,"),
        ({"method": "aim", "public": "earlier.parquet"}, "--public and --public-why go together"),
        (
            {"method": "aim", "public": "other.parquet", "public_why": WHY},
            "--public: .*other.parquet has none of the modelled columns .by their names.; accepted: at least one row, "
            "and two modelled columns, under",
        ),
        (
            {"method": "aim", "public": "other.csv", "public_why": WHY},
            "--public .*other.csv: its first line holds .*; accepted: CSV in UTF-8 with commas",
        ),
        ({"method": "aim", "public": "earlier.parquet", "public_why": "so"}, "--public-why: 'so'; accepted: at least"),
        ({"method": "aim", "public": "nowhere.csv", "public_why": WHY}, "nowhere.csv: there is no such file"),
    ],
)
def test_what_is_refused(
    make: Make, earlier: Path, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any], words: str
) -> None:
    monkeypatch.chdir(earlier.parent)
    pq.write_table(pa.table({"zone": ["a", "b"]}), "other.parquet")
    Path("other.csv").write_text("age;rich\n4;yes\n")
    with pytest.raises(Exception, match=words.replace("(", "[(]")):
        make(**options)


@pytest.mark.parametrize(
    ("kind", "way"),
    [
        *itertools.product(["parquet", "csv", "delta"], ["itself", "link", "copy", "inside"]),
        ("parquet", "among"),
        ("delta", "before"),
    ],
)
def test_the_table_itself_is_no_public_one(
    tables: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, way: str
) -> None:
    """It is refused before a plan has the number and digest of its rows."""
    monkeypatch.setattr(SealedRows, "of", lambda *given: pytest.fail("it was read"))
    table = tables / ("people" if kind == "delta" else f"people.{kind}")
    public = table
    if way == "link":
        public = tmp_path / "link"
        public.symlink_to(tables)
        public /= table.name
    elif way == "copy":
        public = tmp_path / f"copy{table.suffix}"
        (shutil.copytree if kind == "delta" else shutil.copy)(table, public)
    elif way == "inside":
        public = next(table.glob("*.parquet")) if kind == "delta" else tables
    elif way == "among":
        public = tmp_path / "directory"
        public.mkdir()
        shutil.copy(table, public)
    elif way == "before":
        public = tmp_path / "copy"
        shutil.copytree(table, public)
        write_deltalake(str(table), people().slice(1), mode="append")
    declared = {"schema": tables / "people.yaml", "owners": "person", "contributions": 2}
    options = Options(1, 1e-5, method="aim", public=public, public_why=WHY, **declared)
    with pytest.raises(ContractError, match=r"--public .*: it is the table itself, or holds the same rows; accepted"):
        task_of(table, options)


@pytest.mark.parametrize("suffix", ["parquet", "csv"])
def test_a_table_in_memory_is_compared_by_its_values(tables: Path, suffix: str) -> None:
    plain = people().set_column(2, "city", people()["city"].cast(pa.string()))
    options = {"epsilon": 1, "delta": 1e-5, "method": "aim", "public_why": WHY, "schema": tables / "people.yaml"}
    options |= {"owners": "person", "contributions": 2}
    if suffix == "csv":  # whose undeclared columns are text
        plain = plain.set_column(0, "person", plain["person"].cast(pa.string()))
        csv.write_csv(plain, tables / "people.csv")
    with pytest.raises(ContractError, match="it is the table itself, or holds the same rows"):
        task_of(plain, Options(**options, public=tables / f"people.{suffix}"))
    task = task_of(plain.slice(1), Options(**options, public=tables / f"people.{suffix}"))
    assert task.plan.describe()["public"]["rows"] == 1200
