"""A small table of fictional people in each format, and runs that take a second."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from killed_runs import Runs
from pyarrow import csv
from short_fits import short_fits  # noqa: F401  (a fixture)
from synthesis_cases import SCHEMA, Make, people

from dpsynth_platform.foundation.storage import write_table
from dpsynth_platform.one_table import Options, Synthesis, synthesize


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever reads the deployment's settings finds an empty one."""
    monkeypatch.setenv("DPSYNTH_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("DPSYNTH_USER", "tester")


@pytest.fixture
def tables(tmp_path: Path) -> Path:
    """A directory with `people.parquet`, `people.csv`, `people` (Delta) and `people.yaml`."""
    directory = tmp_path / "tables"
    directory.mkdir()
    table = people()
    plain = table.set_column(2, "city", table["city"].cast(pa.string()))
    pq.write_table(table, directory / "people.parquet")
    csv.write_csv(plain, directory / "people.csv")
    write_table(directory / "people", plain.schema, plain.to_batches())
    (directory / "people.yaml").write_text(SCHEMA)
    return directory


@pytest.fixture
def make(tables: Path, tmp_path: Path) -> Make:
    """Makes `out` from a table: people.parquet, at most two rows of each owner, unless something else is said."""

    def call(table: str = "people.parquet", out: str = "out", **options: Any) -> Synthesis:
        given = {"epsilon": 4.0, "delta": 1e-5, "schema": tables / "people.yaml", "method": "mst"}
        given |= {"owners": "person", "contributions": 2} | options
        return synthesize(tables / table, tmp_path / out, Options(**given))

    return call


@pytest.fixture(scope="session")
def killed_runs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runs]:
    """For runs that are killed on their way."""
    runs = Runs(tmp_path_factory.mktemp("killed"))
    yield runs
    runs.end()
