"""`dpsynth quality table`, as people and programs call it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow import csv
from typer.testing import CliRunner

from dpsynth_platform.cli.main import app
from dpsynth_platform.foundation.storage import write_table
from dpsynth_platform.quality.report import NOTICE
from dpsynth_platform.quality.report_rows import LEGEND

SECRET = "Zaphodina Quillmarker"
Use = Callable[..., tuple[int, str]]


def people(count: int, seed: int) -> pa.Table:
    rng = np.random.default_rng(seed)
    age = rng.integers(0, 100, count)
    names = np.where(age > 50, SECRET, "Arthur")
    return pa.table({"id": np.arange(count), "age": age, "name": names, "rich": np.where(age > 70, "yes", "no")})


@pytest.fixture
def use(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Use:
    """Runs the command inside the directory of the tables; returns status and all output."""
    pq.write_table(people(400, 1), tmp_path / "test.parquet")
    csv.write_csv(people(500, 2), tmp_path / "made.csv")
    train = people(600, 3)
    write_table(tmp_path / "train", train.schema, train.to_batches())
    pq.write_table(people(400, 1).slice(0, 0), tmp_path / "empty.parquet")
    pq.write_table(people(400, 1).drop(["age"]), tmp_path / "other.parquet")
    constant = people(400, 1).set_column(3, "rich", pa.array([SECRET] * 400))
    pq.write_table(constant, tmp_path / "constant.parquet")
    (tmp_path / "twice.csv").write_text("id,age,name,rich,rich\n1,2,a,no,no\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DPSYNTH_HOME", str(tmp_path / "home"))

    def call(*arguments: str) -> tuple[int, str]:
        result = CliRunner().invoke(app, ["quality", "table", *arguments])
        return result.exit_code, result.output + "".join(capfd.readouterr())

    return call


ASKED = ("--real", "test.parquet", "--synthetic", "made.csv", "--target", "rich")


def test_a_table_for_people(use: Use, tmp_path: Path) -> None:
    before = sorted(tmp_path.iterdir())
    status, text = use(*ASKED, "--train", "train", "--protected", "name", "--drop", "id")
    assert status == 0, text
    for word in ("HIST", "Pair", "CorAcc", "F1 of the rarer class", "FPED", "exact copies", "400 real, 500 synthetic"):
        assert word in text
    assert NOTICE in text
    assert LEGEND in text
    assert SECRET not in text
    assert sorted(tmp_path.iterdir()) == before


def test_columns_are_named_with_commas_or_one_by_one(use: Use) -> None:
    found = [
        json.loads(use(*ASKED, *arguments, "--json")[1])["similarity"]
        for arguments in (("--drop", "id,name"), ("--drop", "id", "--drop", "name"), ("--drop", "name"))
    ]
    assert found[0] == found[1] != found[2]
    status, text = use(*ASKED, "--drop", "id", "--protected", "name", "--protected", "age")
    assert (status, "protected: column 'age' holds numbers" in text) == (1, True)


def test_json_for_programs(use: Use) -> None:
    status, text = use(*ASKED, "--protected", "name", "--drop", "id", "--json")
    assert status == 0, text
    found = json.loads(text)
    assert found["restricted"] is True
    assert found["utility"]["synthetic"]["mean"]["accuracy"] > 0.95
    assert 0.5 < found["similarity"]["histogram_50"] < 1
    assert found["closeness"] is None
    assert SECRET not in text


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--target", "wealth"), "target: no column 'wealth' in the real table"),
        (("--target", "id"), "target: column 'id' of the real table has 400 different values"),
        (("--real", "constant.parquet"), "target: column 'rich' of the real table has 1 different values"),
        (("--synthetic", "empty.parquet"), "synthetic: the table has no rows"),
        (("--real", "empty.parquet"), "real: the table has no rows"),
        (("--synthetic", "other.parquet"), "synthetic: not the columns of real: lacks age"),
        (("--train", "other.parquet"), "train: not the columns of real: lacks age"),
        (("--synthetic", "nowhere.csv"), "nowhere.csv: there is no such file or directory"),
        (("--train", "nowhere"), "nowhere: there is no table at this path"),
        (("--protected", "name,name"), "--protected 'name,name'; accepted: names of different columns"),
        (("--protected", "size"), "protected: no column 'size'"),
        (("--protected", "age"), "protected: column 'age' holds numbers"),
        (("--drop", "rich"), "target: no column 'rich'"),
        (("--synthetic", "twice.csv"), "synthetic: two columns have the same name"),
    ],
)
def test_what_is_wrong_is_said_without_a_value(use: Use, arguments: tuple[str, ...], words: str) -> None:
    status, text = use(*ASKED, *arguments)
    assert status == 1
    assert words in " ".join(text.split())
    assert SECRET not in text
    assert "Traceback" not in text


def test_errors_are_json_too(use: Use) -> None:
    status, text = use(*ASKED, "--target", "wealth", "--json")
    assert status == 1
    assert json.loads(text)["error"]["code"] == "source"


def test_a_workload_findings_and_regression(use: Use, tmp_path: Path) -> None:
    (tmp_path / "workload.yaml").write_text("workload: {queries: [{columns: [age, rich], weight: 5}]}\n")
    (tmp_path / "findings.yaml").write_text(
        "findings: [{name: the rich are older, compare: age, groups: [{rich: 'yes'}, {rich: 'no'}]}]\n"
    )
    files = ("--workload", "workload.yaml", "--findings", "findings.yaml")
    status, text = use(*ASKED, "--drop", "id", *files, "--json")
    assert status == 0, text
    found = json.loads(text)
    assert found["parity"]["synthetic"] == 1.0
    assert found["workload"]["marginals"] == 3
    status, text = use(*ASKED, "--drop", "id", "--target", "age", "--task", "regression", "--json")
    assert json.loads(text)["regression"]["synthetic"]["mean"]["r_squared"] > 0.5
    assert SECRET not in text
    (tmp_path / "findings.yaml").write_text("findings: [{correlate: [age, wealth]}]\n")
    status, text = use(*ASKED, "--drop", "id", *files)
    assert (status, "no column 'wealth' in the real table" in " ".join(text.split())) == (1, True)
