"""`dpsynth synth tables`, as people and programs call it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from dpsynth_platform.cli.main import app

SCHEMA = """
tables:
  people:
    key: [id]
    columns: {age: {type: integer, min: 0, max: 9}}
  visits:
    parent: {table: people, columns: [of]}
    max_children: 2
    columns: {kind: {type: categorical, values: [x, y]}}
"""
ASKED = ("data", "--out", "out", "--epsilon", "2", "--delta", "1e-5", "--method", "independent")
Use = Callable[..., tuple[int, str]]


@pytest.fixture
def use(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Use:
    """Runs the command beside the tables' directory; returns status and all output."""
    rng = np.random.default_rng(0)
    (tmp_path / "data").mkdir()
    pq.write_table(pa.table({"id": np.arange(300), "age": rng.integers(0, 10, 300)}), tmp_path / "data/people.parquet")
    visits = {"of": rng.integers(0, 300, 400), "kind": np.array(["x", "y"])[rng.integers(0, 2, 400)]}
    pq.write_table(pa.table(visits), tmp_path / "data/visits.parquet")
    (tmp_path / "tables.yaml").write_text(SCHEMA)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DPSYNTH_HOME", str(tmp_path / "home"))

    def call(*arguments: str, command: str = "synth") -> tuple[int, str]:
        result = CliRunner().invoke(app, [command, "tables", *arguments])
        return result.exit_code, result.output + "".join(capfd.readouterr())

    return call


def test_it_says_what_was_made_and_what_it_cost(use: Use) -> None:
    status, said = use(*ASKED, "--schema", "tables.yaml")
    assert status == 0
    assert "people: " in said and "visits: " in said and "paid now" in said
    assert "for one user (add-or-remove, at most 3 records, counted as one together)" in said
    status, said = use(*ASKED, "--schema", "tables.yaml", "--roots", "7", "--given", "age=3..4")
    assert status == 0 and "people: 7 rows" in said and "nothing new was spent" in said
    assert set(pq.read_table("out/synthetic/people.parquet")["age"].to_pylist()) <= {3, 4}


def test_an_empty_result_says_where_to_look(use: Use) -> None:
    pq.write_table(pa.table({"of": ["7"] + ["none"] * 399, "kind": ["x", "y"] * 200}), "data/visits.parquet")
    status, said = use(*ASKED, "--schema", "tables.yaml", "--roots", "1")
    assert status == 0 and ("compare the keys with those of its parent" in said) == ("visits: 0 rows" in said)


def test_keys_that_join_nothing_are_refused_before_anything_is_spent(use: Use) -> None:
    pq.write_table(pa.table({"of": ["7.0"] * 400, "kind": ["x", "y"] * 200}), "data/visits.parquet")
    status, said = use(*ASKED, "--schema", "tables.yaml")
    assert status == 1 and "tables.visits: no row has one of people by of; accepted: keys" in " ".join(said.split())
    pq.write_table(pa.table({"of": ["7"] * 400, "kind": ["x", "y"] * 200}), "data/visits.parquet")
    status, said = use(*ASKED, "--schema", "tables.yaml")
    assert status == 0 and "paid now" in said


def test_programs_read_json(use: Use) -> None:
    status, said = use(*ASKED, "--schema", "tables.yaml", "--json")
    document = json.loads(said[said.index("{") :])
    assert status == 0
    assert document["rows"]["visits"]["rows"] > 0 and document["spent"] is True
    assert document["guarantee"]["max_contributions"] == 3


def test_what_cannot_be_is_refused_with_the_way_out(use: Use) -> None:
    status, said = use(*ASKED, "--schema", "tables.yaml", "--given", "kind=x")
    assert status == 1 and "kind: is no modelled column of people; accepted: age" in " ".join(said.split())
    status, said = use("nothing", *ASKED[1:], "--schema", "tables.yaml")
    assert status == 1 and "there is no such file" in said
    Path("tables.yaml").write_text(SCHEMA.replace("max_children: 2", "max_children: 0"))
    status, said = use(*ASKED, "--schema", "tables.yaml")
    assert status == 1 and "tables.visits.max_children: 0; accepted: at least 1" in " ".join(said.split())


def test_the_quality_of_tables_is_measured(use: Use) -> None:
    assert use(*ASKED, "--schema", "tables.yaml")[0] == 0
    Path("queries.sql").write_text(
        "SELECT kind, count(*) FROM people JOIN visits ON id = of GROUP BY kind; SELECT avg(age) FROM people"
    )
    asked = ["--real", "data", "--synthetic", "out/synthetic", "--schema", "tables.yaml"]
    more = ["--queries", "queries.sql", "--holdout", "data", "--target", "age"]
    status, said = use(*asked, *more, command="quality")
    assert status == 0
    said = " ".join(said.replace("│", "").split())
    assert "visits people 1.000" in said  # all rows refer to one
    assert "relative error" in said and "SELECT avg(age) FROM people" in said
    assert "the root: trained on synthetic rows: r squared" in said
    status, said = use(*asked, "--json", command="quality")
    document = json.loads(said[said.index("{") :])
    assert document["edges"]["visits"]["references"] == 1.0 and document["tables"]["people"]["keys_distinct"] == 1.0
    status, said = use(*asked, "--target", "age", command="quality")
    assert status == 1 and "--holdout: missing" in said
