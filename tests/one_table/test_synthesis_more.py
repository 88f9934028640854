"""Constraints on one table, and further rows from its model: nothing of it is spent, no row of the data is read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from pyarrow import csv
from synthesis_cases import SCHEMA, SECRET, Make

from dpsynth_platform.foundation.errors import (
    ConfigurationError,
    ContractError,
    DpsynthError,
    LedgerError,
    MechanismFailed,
    SourceError,
)
from dpsynth_platform.ledger.store import Ledger
from dpsynth_platform.one_table import Synthesis, more_rows, rows, run
from dpsynth_platform.one_table.more_rows import read_given
from dpsynth_platform.synth.tabular import sampling

RULES = """
constraints:
  - forbid: {age: {max: 17}, rich: true}
  - {column: rich, determines: city, mapping: {true: Aix, false: Chur}}
"""


@pytest.fixture
def made(make: Make) -> Synthesis:
    return make(rows=300)


def entries(made: Synthesis) -> list[Any]:
    return Ledger(f"sqlite:///{made.ledger / 'ledger.db'}").entries()


def read(path: Path) -> pa.Table:
    return pq.read_table(path)


def keeps_the_rules(table: pa.Table) -> bool:
    return all(
        not (row["age"] < 18 and row["rich"]) and row["city"] == ("Aix" if row["rich"] else "Chur")
        for row in table.to_pylist()
    )


def test_other_constraints_are_no_new_spend(
    make: Make, tables: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = make(rows=300)
    assert not keeps_the_rules(read(made.synthetic))
    (tables / "rules.yaml").write_text(RULES)
    # From here on nobody may look at a row.
    monkeypatch.setattr(rows, "bounded_rows", None)
    again = make(rows=400, constraints=tables / "rules.yaml")
    assert (again.spent, again.entry_id, len(entries(again))) == (False, made.entry_id, 1)
    assert keeps_the_rules(read(again.synthetic))
    words = again.statement.read_text()
    assert "The 2 declared constraints on rows are public. **as declared**" in words
    (tables / "people.yaml").write_text(SCHEMA + RULES)
    assert keeps_the_rules(read(make(rows=50).synthetic))
    assert not keeps_the_rules(read(make(rows=300, constraints=_file(tables, "constraints: []")).synthetic))
    # And what the last run's rows kept, further rows keep.
    make(rows=50)
    assert keeps_the_rules(read(more_rows(tmp_path / "out", 200).synthetic))


def _file(directory: Path, text: str) -> Path:
    path = directory / "others.yaml"
    path.write_text(text)
    return path


def test_more_rows_of_a_kind(made: Synthesis, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows, "bounded_rows", None)
    found = more_rows(tmp_path / "out", 70, given={"age": {"min": 30, "max": 39}, "city": ["Aix", "Chur"]})
    table = read(found.synthetic)
    assert (table.num_rows, found.rows, found.entry_id) == (70, 70, made.entry_id)
    assert table.schema == read(made.synthetic).schema
    assert table["person"].to_pylist() == list(range(1, 71))
    assert pc.all(pc.and_(pc.greater_equal(table["age"], 30), pc.less_equal(table["age"], 39))).as_py()
    assert set(table["city"].cast(pa.string()).unique().to_pylist()) <= {"Aix", "Chur"}
    assert len(entries(made)) == 1
    words = found.statement.read_text()
    assert (
        f"70 synthetic rows, given age = 30..39 and city = Aix or Chur: drawn from the model that ledger entry "
        f"{made.entry_id} paid for. That is post-processing"
    ) in words
    assert f"{made.rows} synthetic rows" not in words, "that is another table's number"
    stated = json.loads(found.statement.with_suffix(".json").read_text())
    assert stated["table"] == "70 synthetic rows."
    # The entry's id is random, and may have the same digits.
    assert str(made.rows) not in json.dumps(stated["covered"]).replace(made.entry_id, "")
    assert stated["ledger_entry"] == made.entry_id
    assert stated["guarantee"] == json.loads(made.statement.with_suffix(".json").read_text())["guarantee"]
    assert stated["post_processing"].startswith("70 synthetic rows")
    assert "synthetic.parquet" in {path.name for path in (tmp_path / "out").iterdir()}


def test_further_rows_say_what_they_rest_on_by_now(make: Make, tmp_path: Path) -> None:
    """Runs since the model was made may be why somebody asks for just these rows."""
    make(ledger=tmp_path / "shared", cap_epsilon=9.0)
    plain = more_rows(tmp_path / "out", 5).statement.read_text()
    assert "the ledger holds no other run" in plain
    assert "constraints of these rows" not in plain
    make(out="other", epsilon=1.0, ledger=tmp_path / "shared")
    found = more_rows(tmp_path / "out", 5, given={"city": "Aix"})
    words, stated = found.statement.read_text(), json.loads(found.statement.with_suffix(".json").read_text())
    assert "the ledger holds no other run" not in words
    assert "in the light of 1 other run" in words
    assert (stated["tuning"]["runs"], stated["tuning"]["covered"]) == (1, False)
    said = "The given values and constraints of these rows are public"
    assert said in words and "**as declared**" in words
    assert said in stated["assumptions"][-1]["assumption"]


def test_every_format_of_further_rows(made: Synthesis, tmp_path: Path) -> None:
    for name, reader in (
        ("more.csv", csv.read_csv),
        ("more", lambda path: DeltaTable(path).to_pyarrow_table()),
        ("more.parquet", pq.read_table),
    ):
        for count in (30, 20):  # the second in the place of the first
            found = more_rows(tmp_path / "out", count, to=tmp_path / name)
        assert reader(tmp_path / name).num_rows == 20
        assert found.statement == tmp_path / "more.statement.md"


def test_a_file_that_is_no_output_is_not_written_over(made: Synthesis, tmp_path: Path) -> None:
    precious = tmp_path / "precious.csv"
    precious.write_text("kept")
    with pytest.raises(ContractError, match=r"precious.csv exists and does not contain rows of an earlier run"):
        more_rows(tmp_path / "out", 5, to=precious)
    assert precious.read_text() == "kept"


@pytest.mark.parametrize("written", ["parquet", "csv", "delta"])
def test_ids_go_on_from_batch_to_batch(make: Make, monkeypatch: pytest.MonkeyPatch, written: str) -> None:
    monkeypatch.setattr(sampling, "BATCH_ROWS", 7)
    made = make(rows=100, format=written)
    table = {
        "parquet": pq.read_table,
        "csv": csv.read_csv,
        "delta": lambda path: DeltaTable(path).to_pyarrow_table(),
    }[written](made.synthetic)
    assert sorted(table["person"].to_pylist()) == list(range(1, 101))


def test_a_model_that_was_changed_or_is_gone_is_refused(made: Synthesis, tmp_path: Path) -> None:
    model = tmp_path / "out" / "restricted" / "models" / made.entry_id
    with (model / "measurements.jsonl").open("a") as file:
        file.write("\n")
    with pytest.raises(MechanismFailed, match="was changed"):
        more_rows(tmp_path / "out", 5)
    made.ledger.rename(tmp_path / "elsewhere")
    with pytest.raises(LedgerError, match=r"does not know it: no ledger is there"):
        more_rows(tmp_path / "out", 5)


def test_what_cannot_be_drawn_is_said(made: Synthesis, tmp_path: Path) -> None:
    out = tmp_path / "out"
    cases: list[tuple[dict[str, Any], type[DpsynthError], str]] = [
        ({"rows": 0}, ContractError, "--rows 0; accepted: 1 to"),
        ({"given": {"town": "Aix"}}, ContractError, "given: 'town' is no modelled column; accepted: age, city"),
        ({"given": {"city": "Rome"}}, ContractError, "given.city: 'Rome' is not in the column's list of values"),
        ({"given": {"city": {"min": "Aix"}}}, ContractError, "given.city: a range of a categorical column"),
        ({"given": {"age": 17.5}}, ContractError, "given.age: 17.5 lies between two values"),
        ({"given": {"joined": "soon"}}, ContractError, "given.joined: 'soon'; accepted: a date such as"),
        ({"given": {"age": []}}, ContractError, "given.age: an empty list"),
        ({"to": tmp_path / "rows.xlsx"}, SourceError, r"accepted: a name that ends with .parquet or .csv"),
        ({"to": tmp_path / "no" / "rows.csv"}, ContractError, "there is no directory"),
        ({"to": tmp_path / "tables"}, ContractError, "exists and does not contain rows of an earlier run"),
        ({"to": out / "synthetic.csv"}, ContractError, "belongs to the run"),
        ({"to": out / "restricted" / "x.csv"}, ContractError, "belongs to the run"),
        ({"out": tmp_path / "tables"}, ConfigurationError, "no model of an earlier run is here"),
        ({"constraints": _file(tmp_path, "constraints: [{ascending: [age, wage]}]")}, ContractError, "'wage' is no"),
        ({"constraints": _file(tmp_path, "constraint: []")}, ContractError, "did you mean 'constraints'"),
    ]
    for changes, kind, words in cases:
        if changes.get("constraints"):
            text = "constraints: [{ascending: [age, wage]}]" if "wage" in words else "constraint: []"
            _file(tmp_path, text)
        arguments = {"out": out, "rows": 5} | changes
        with pytest.raises(kind, match=words) as caught:
            more_rows(arguments.pop("out"), arguments.pop("rows"), **arguments)
        assert SECRET not in str(caught.value)
    assert not list((tmp_path / "tables").glob("*.statement.*"))
    rules = _file(tmp_path, "constraints: [{forbid: {age: {max: 50}, city: [Aix, Bern, Chur]}}]")
    with pytest.raises(ContractError, match="no row can keep them all, with the requested values"):
        more_rows(out, 5, given={"age": 20}, constraints=rules)


def test_constraints_that_contradict_each_other_are_refused_before_anything_is_spent(
    make: Make, tables: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run, "Payment", None)
    rules = "constraints: [{only: [{age: {max: 20}, rich: true}]}, {forbid: {age: {max: 30}, rich: true}}]"
    with pytest.raises(ContractError, match="no row can keep them all"):
        make(constraints=_file(tables, rules))
    with pytest.raises(ContractError, match=r"constraints.0.forbid.city: 'Rome' is not in the column's list"):
        make(constraints=_file(tables, "constraints: [{forbid: {age: 20, city: Rome}}]"))


def test_given_values_as_the_command_takes_them() -> None:
    assert read_given(["age=30..39", "city=Aix", "city=", "joined=2024-01-01..", "x=a=b", "low=..-5"]) == {
        "age": {"min": "30", "max": "39"},
        "city": ["Aix", None],
        "joined": {"min": "2024-01-01"},
        "x": ["a=b"],
        "low": {"max": "-5"},
    }
    for texts in (["age"], ["=5"]):
        with pytest.raises(ContractError, match=r"accepted: COLUMN=VALUE, COLUMN=LOW\.\.HIGH"):
            read_given(texts)
    for texts in (["age=1..2", "age=5"], ["age=5", "age=1..2"]):
        with pytest.raises(ContractError, match="age is repeated"):
            read_given(texts)
