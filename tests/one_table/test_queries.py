"""`dpsynth query`: answers about a table file, with the budget, the ledger and the statement of an output."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import yaml
from synthesis_cases import SECRET, Make
from typer.testing import CliRunner

import dpsynth
from dpsynth_platform.cli.main import app
from dpsynth_platform.foundation.errors import BudgetExceeded, ContractError, LedgerError, SchemaMissing
from dpsynth_platform.foundation.settings import embedded_ledger
from dpsynth_platform.ledger.store import Ledger
from dpsynth_platform.one_table import Synthesis, more_rows
from dpsynth_platform.synth.answers import generator as answering
from dpsynth_platform.synth.interface import SealedPlan

BY_CITY = "SELECT city, COUNT(*), AVG(income) FROM people GROUP BY city"
Ask = Callable[..., Synthesis]


@pytest.fixture
def ask(make: Make) -> Ask:
    def call(**options: Any) -> Synthesis:
        return make(**({"queries": {"cities": BY_CITY}, "method": "auto", "cap_epsilon": 7.5} | options))

    return call


def rows_of(made: Synthesis) -> list[dict[str, Any]]:
    return pq.read_table(made.synthetic).to_pylist()


def entries(made: Synthesis) -> list[Any]:
    return list(Ledger(embedded_ledger(made.ledger)).entries())


def test_answers_are_paid_once_and_stated(ask: Ask, tmp_path: Path) -> None:
    made = ask()
    assert made.synthetic == tmp_path / "out" / "answers.parquet"
    rows = rows_of(made)
    assert [row["city"] for row in rows[:4]] == ["Aix", "Bern", "Chur", "missing or unlisted"]
    assert {row["measure"] for row in rows} == {"count", "mean"}
    assert all(row["low"] <= row["answer"] <= row["high"] for row in rows if row["answer"] is not None)
    stated = made.statement.read_text()
    assert made.statement.name == "answers-statement.md"
    assert "4 answers" not in stated and "8 answers" in stated
    assert "a probability of 95%" in stated
    assert SECRET not in stated
    again = ask()
    assert (again.spent, again.entry_id, rows_of(again)) == (False, made.entry_id, rows)
    other = ask(queries={"all": "SELECT COUNT(*) FROM people WHERE age >= 50"})
    assert other.entry_id != made.entry_id
    assert len(entries(other)) == 2
    with pytest.raises(BudgetExceeded):
        ask(queries={"all": "SELECT COUNT(*) FROM people WHERE age >= 51"})
    assert len([entry for entry in entries(other) if entry.state == "spent"]) == 2


def test_answers_beside_rows_share_the_ledger_and_replace_nothing(ask: Ask, make: Make, tmp_path: Path) -> None:
    rows = make(cap_epsilon=7.5)
    made = ask()
    assert {path.name for path in (tmp_path / "out").iterdir()} >= {
        "synthetic.parquet", "statement.md", "answers.parquet", "answers-statement.md"
    }  # fmt: skip
    assert made.ledger == rows.ledger
    assert len(entries(made)) == 2
    assert json.loads((tmp_path / "out" / "statement.json").read_text())["ledger_entry"] == rows.entry_id
    with pytest.raises(ContractError, match="belongs to the run"):
        more_rows(tmp_path / "out", 5, to=tmp_path / "out" / "answers.csv")


def test_a_ledger_that_is_lost_is_noticed_by_the_answers(ask: Ask, tmp_path: Path) -> None:
    made = ask()
    for path in made.ledger.glob("ledger.db*"):
        path.unlink()
    with pytest.raises(LedgerError, match="was paid for"):
        ask()


@pytest.mark.parametrize("table", ["people.csv", "people"])
def test_any_kind_of_table_is_asked(ask: Ask, table: str) -> None:
    made = ask(table=table, queries={"old": "SELECT rich, COUNT(*), MEDIAN(age) FROM t GROUP BY rich"})
    assert [row["rich"] for row in rows_of(made)[:3]] == ["false", "true", "missing or unlisted"]


def test_only_what_is_asked_needs_a_declaration(ask: Ask) -> None:
    schema = {"columns": {"age": {"type": "integer", "min": 0, "max": 99}}}
    made = ask(schema=schema, queries={"ages": {"count": True, "by": ["age"]}})
    assert len(rows_of(made)) == 101
    with pytest.raises(SchemaMissing, match="city"):
        ask(schema=schema)
    with pytest.raises(ContractError, match="'nothing' is no column that can be counted"):
        ask(queries={"none": {"sum": ["nothing"]}})


def test_each_row_is_a_unit_without_owners(ask: Ask) -> None:
    made = ask(owners=None, contributions=None, queries={"all": "SELECT COUNT(*) FROM people"})
    (row,) = rows_of(made)
    assert abs(row["answer"] - 1200) < 6 * row["standard_error"] + 1


def test_noise_that_fails_stays_spent(ask: Ask, monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(values: Any, sigma: float) -> Any:
        raise MemoryError

    with monkeypatch.context() as patch:
        patch.setattr(answering, "sample_rounded_gaussian", stop)
        with pytest.raises(Exception, match="MemoryError"):
            ask()
    with pytest.raises(Exception, match="To spend a second time"):
        ask()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"queries": {}}, "at least one query"),
        ({"queries": {"Bad Name": BY_CITY}}, "a lower-case letter"),
        ({"rows": 5}, "--rows: beside queries"),
        ({"method": "mst"}, "--method: beside queries"),
        ({"target": "city"}, "--target: beside queries"),
        ({"learn_values": True}, "--learn-values: beside queries"),
        ({"queries": {"a": {"sum": ["city"]}}}, "'city' is of type categorical"),
        ({"queries": {"a": "SELECT city FROM people"}}, "stands outside of an aggregate"),
    ],
)
def test_what_cannot_be_asked_is_refused_before_a_spend(ask: Ask, tmp_path: Path, options: Any, said: str) -> None:
    with pytest.raises(ContractError) as refused:
        ask(**options)
    assert said in str(refused.value)
    assert not (tmp_path / "out" / "restricted" / "ledger" / "ledger.db").exists()


def test_the_command_prints_and_writes_the_answers(
    tables: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    asked = ["--out", str(tmp_path / "out"), "--epsilon", "4", "--delta", "1e-5", "--owners", "person"]
    asked += ["--contributions", "2", "--schema", str(tables / "people.yaml")]
    file = tmp_path / "queries.yaml"
    file.write_text("queries:\n  ages: {quantiles: {age: [0.5]}, by: [city]}\n")
    people, run = str(tables / "people.parquet"), CliRunner().invoke

    def said(*arguments: str) -> tuple[int, str]:
        result = run(app, ["query", people, *arguments])
        return result.exit_code, result.output + "".join(capfd.readouterr())

    status, words = said(BY_CITY, *asked)
    assert (status, "Bern" in words, "8 answers" in words) == (0, True, True)
    status, words = said(*asked)
    assert (status, "one of both" in words) == (1, True)
    asked[1] = str(tmp_path / "other")
    result = run(app, ["query", people, "--queries", str(file), *asked, "--json"])
    assert json.loads(result.stdout or capfd.readouterr().out)["rows"] == 4


def test_values_that_look_like_markup_are_printed_as_they_are(
    tables: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    schema = tmp_path / "marked.yaml"
    schema.write_text('columns:\n  city: {type: categorical, values: [Aix, "[/red]", "[bold]B"]}\n')
    asked = ["--out", str(tmp_path / "out"), "--epsilon", "4", "--delta", "1e-5", "--schema", str(schema)]
    sql = "SELECT city, COUNT(*) FROM people GROUP BY city"
    result = CliRunner().invoke(app, ["query", str(tables / "people.parquet"), sql, *asked])
    words = result.output + "".join(capfd.readouterr())
    assert result.exit_code == 0  # it was paid for
    assert "[/red]" in words
    assert "[bold]B" in words
    stated = (tmp_path / "out" / "answers-statement.md").read_text()
    assert "In no query, thus neither used nor contained: person, age" in stated
    assert "Declared ignore" not in stated


def test_ranges_on_two_columns_are_asked_in_sql_and_in_python(
    tables: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """With noise of 6 deviations at most, which one of 18 answers exceeds with a probability of 4e-8."""
    limits = list(itertools.product((30, 50, 70), (250, 500, 750)))
    asked = [f"SELECT COUNT(*) FROM people WHERE age <= {age} AND income <= {income}" for age, income in limits]
    people, schema = tables / "people.parquet", tables / "people.yaml"
    options = ["--out", str(tmp_path / "out"), "--epsilon", "4", "--delta", "1e-5", "--schema", str(schema)]
    result = CliRunner().invoke(app, ["query", str(people), *asked, *options])
    assert result.exit_code == 0, result.output + "".join(capfd.readouterr())
    published = pq.read_table(tmp_path / "out" / "answers.parquet").to_pylist()
    names = {f"to_{number}": sql for number, sql in enumerate(asked)}
    columns = yaml.safe_load(schema.read_text())["columns"]
    made = dpsynth.query(
        pq.read_table(people), names, tmp_path / "other", columns=columns, epsilon=4, delta=1e-5, expected_units=1200
    )
    table = pq.read_table(people).to_pydict()
    for rows in (published, made.data.to_pylist()):
        assert len(rows) == len(limits)
        for row, (age, income) in zip(rows, limits, strict=True):
            exact = sum(a <= age and i <= income for a, i in zip(table["age"], table["income"], strict=True))
            assert abs(row["answer"] - exact) < 6 * row["standard_error"]
    plan = SealedPlan.from_json(next((tmp_path / "out").rglob("plan.json")).read_text())
    assert plan.parameters["products"][0][1] == ["age", "income"]


@pytest.mark.parametrize("queries", [["SELECT COUNT(*) FROM data"], 3, None])
def test_queries_are_a_statement_or_have_names(queries: Any, tmp_path: Path) -> None:
    with pytest.raises(dpsynth.ContractError, match="accepted: one SELECT statement, or statements and declarations"):
        dpsynth.query({"x": [1]}, queries, tmp_path / "out", epsilon=1, expected_units=100)
    assert not (tmp_path / "out").exists()
