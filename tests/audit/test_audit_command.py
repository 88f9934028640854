"""`dpsynth audit run|show`, as people and programs call it, without a deployment."""

from __future__ import annotations

import json
import stat
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow import csv
from typer.testing import CliRunner

from dpsynth_platform.audit.adhoc.outcomes import NOTICE
from dpsynth_platform.audit.attacks import MEASUREMENTS, Scored
from dpsynth_platform.audit.canary_cost import CanaryCost, ColumnCost
from dpsynth_platform.audit.verdict import judge
from dpsynth_platform.cli.main import app
from dpsynth_platform.contracts.contract import DataContract

SECRET = "Zaphodina Quillmarker"
Use = Callable[..., tuple[int, str]]


def people(count: int, seed: int) -> pa.Table:
    """Rows of so many columns that hardly any copies occur; of fixed seeds, since free ones copy once in a million."""
    rng = np.random.default_rng(seed)
    names = np.where(rng.random(count) < 0.5, SECRET, "Arthur")
    numbers = {name: rng.random(count) for name in ("wage", "rent", "walk", "sleep", "reach", "weight")}
    return pa.table({"age": rng.integers(0, 90, count), "name": names, **numbers})


@pytest.fixture
def use(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Use:
    """Runs the command inside a directory of scores and tables; returns status and all output."""
    included = np.arange(1000) % 2 == 0
    scores = pa.table({"included": included, "telling": included * 1.0, "silent": np.arange(1000.0)})
    pq.write_table(scores, tmp_path / "scores.parquet")
    csv.write_csv(scores, tmp_path / "scores.csv")
    members = people(300, 1)
    pq.write_table(members, tmp_path / "members.parquet")
    pq.write_table(people(300, 2), tmp_path / "others.parquet")
    pq.write_table(pa.concat_tables([members] * 5), tmp_path / "copied.parquet")
    pq.write_table(people(300, 3).drop(["age"]), tmp_path / "narrow.parquet")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DPSYNTH_HOME", str(tmp_path / "home"))

    def call(*arguments: str) -> tuple[int, str]:
        result = CliRunner().invoke(app, ["audit", *arguments])
        return result.exit_code, result.output + "".join(capfd.readouterr())

    return call


COINS = ("--design", "coins", "--canaries", "--epsilon", "1")
TABLES = ("--synthetic", "copied.parquet", "--members", "members.parquet", "--non-members", "others.parquet")


@pytest.mark.parametrize("file", ["scores.parquet", "scores.csv"])
def test_scores_for_people(use: Use, file: str) -> None:
    status, text = use("run", "--scores", file, *COINS)
    assert status == 1
    assert "FAIL: The privacy loss epsilon is at least" in text and NOTICE not in text
    status, text = use("run", "--scores", file, "--attack", "silent", *COINS)
    assert status == 0
    assert "PASS" in text


def test_a_report_is_kept_for_this_user_alone_and_shown_again(use: Use, tmp_path: Path) -> None:
    status, text = use("run", "--scores", "scores.parquet", *COINS, "--output", "kept", "--json")
    assert status == 1
    made = json.loads(text)
    kept = tmp_path / "kept"
    assert sorted(path.name for path in kept.iterdir()) == ["report.json", "roc.svg", "scores.parquet"]
    assert {stat.S_IMODE(path.stat().st_mode) for path in kept.iterdir()} == {0o600}
    assert stat.S_IMODE(kept.stat().st_mode) == 0o700
    for what in ("kept", "kept/report.json"):
        status, text = use("show", what, "--json")
        assert (status, json.loads(text)) == (0, made)
    assert "FAIL" in use("show", "kept")[1]
    assert use("run", "--scores", "kept/scores.parquet", *COINS, "--json")[1].count('"fail"') == 1
    status, text = use("run", "--scores", "scores.parquet", "--output", "kept")
    assert status == 1 and "exists; accepted" in text


def test_a_table_that_holds_its_members_is_told_and_marked(use: Use) -> None:
    status, text = use("run", *TABLES, "--json")
    assert status == 0
    document = json.loads(text)
    assert document["publishable"] is False and document["verdict"] is None
    (nearest,) = document["attacks"]
    assert nearest["risk"]["area_under_curve"]["low"] > 0.9
    assert (document["copies"][0]["members"], document["copies"][0]["held_out"]) == (300, 0)
    status, text = use("run", *TABLES)
    assert NOTICE in text and SECRET not in text
    assert "Of 300 members, 300 have a copy in the table; of 300 others, 0" in " ".join(text.split())
    status, text = use("run", *TABLES, "--reference", "others.parquet", "--attack", "density ratio", "--json")
    assert [item["name"] for item in json.loads(text)["attacks"]] == ["density ratio"]
    status, text = use("run", *TABLES, "--epsilon", "1")
    assert status == 1 and "no bound on epsilon follows" in text


def test_a_sensitive_column_is_guessed_for_members_beside_others(use: Use, tmp_path: Path) -> None:
    pq.write_table(people(600, 4), tmp_path / "reference.parquet")
    arguments = (*TABLES, "--reference", "reference.parquet", "--attack", "nearest rows", "--sensitive", "name")
    status, text = use("run", *arguments, "--output", "kept", "--json")
    assert status == 0
    (inferred,) = json.loads(text)["inferred"]
    assert (inferred["column"], inferred["of_members"], inferred["of_held_out"]) == ("name", 300, 300)
    assert inferred["members"] > inferred["members_without"] + 60 and inferred["p_value"] < 0.001
    assert abs(inferred["held_out"] - inferred["held_out_without"]) < 60
    status, text = use("show", "kept")
    assert "name is guessed right from the table for" in text and SECRET not in text
    status, text = use("run", *arguments[:-1], "none")
    assert status == 1 and "attribute inference of 'none'; accepted: a modelled column" in " ".join(text.split())


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((), "accepted: --scores FILE, or all three tables"),
        (("--scores", "scores.csv", *TABLES), "accepted: one of them"),
        (("--scores", "none.parquet"), "none.parquet"),
        (("--scores", "scores.csv", "--included", "in"), "no column 'in'"),
        (("--scores", "scores.csv", "--guess-in", "0.7", "--guess-out", "0.7"), "at most 1 together"),
        (("--scores", "scores.csv", "--epsilon", "-1"), "accepted: epsilon > 0"),
        ((*TABLES[:-1], "narrow.parquet"), "non-members"),
        ((*TABLES, "--sensitive", "name"), "a reference table of people who are not in the release"),
        ((*TABLES, "--attack", "density ratio"), "lacks a reference of the same"),
    ],
)
def test_what_cannot_be_audited_is_said(use: Use, arguments: tuple[str, ...], words: str) -> None:
    status, text = use("run", *arguments)
    assert status == 1
    assert words in text and "Traceback" not in text and SECRET not in text


def test_the_report_of_a_line_is_shown_with_what_its_canaries_cost(
    use: Use, tmp_path: Path, contract: DataContract
) -> None:
    included = np.arange(500) % 2 == 0
    scored = [Scored(MEASUREMENTS, np.arange(500.0))]
    cost = CanaryCost(500, False, 0.005, 0.02, (ColumnCost("level", 0.0041, 0.013),))
    for name, known in (("line.json", cost), ("older.json", None)):
        report = judge(contract, None, included, scored, cost=known).to_json()
        (tmp_path / name).write_text(json.dumps(report))
    status, text = use("show", "line.json")
    assert status == 0
    assert "moved by canaries" in text and "0.41%" in text and "1.3%" in text
    status, text = use("show", "older.json")
    assert status == 0
    assert "PASS" in text and "canaries cost" not in text


def test_what_cannot_be_shown_is_said(use: Use, tmp_path: Path) -> None:
    (tmp_path / "broken.json").write_text("{")
    (tmp_path / "list.json").write_text("[]")
    (tmp_path / "other.json").write_text('{"verdict": "pass"}')
    for what, words in (
        ("nothing", "not an audit report, a dataset with an audit"),
        ("broken.json", "cannot be read"),
        ("list.json", "not a JSON object"),
        ("other.json", "another version of the platform"),
    ):
        status, text = use("show", what)
        assert status == 1
        assert words in text and "Traceback" not in text
