"""What is refused before anything is spent, and in which words; what is read off the data only on somebody's word."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from pydantic import TypeAdapter
from synthesis_cases import SECRET, Make, people

from dpsynth_platform.contracts.base import ColumnName
from dpsynth_platform.contracts.columns import IntegerColumn
from dpsynth_platform.foundation.errors import ContractError, DpsynthError, SourceError
from dpsynth_platform.foundation.yaml_files import read_yaml
from dpsynth_platform.one_table import Options, forecast, rows, run
from dpsynth_platform.one_table.assumed import assumed_columns
from dpsynth_platform.one_table.declaration import SchemaFile
from dpsynth_platform.one_table.task import task_of
from dpsynth_platform.sources.table_files import open_source


@pytest.fixture(autouse=True)
def nothing_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    """No test of this file may come to the ledger's start."""
    monkeypatch.setattr(run.Budget, "start", lambda *_: pytest.fail("something was paid for"))


def template_in(message: str) -> str:
    """The file to fill in that a refusal prints."""
    return message[message.index("columns:") :]


def test_what_is_not_declared_is_asked_for_by_type_only(tables: Path) -> None:
    with pytest.raises(ContractError) as caught:
        task_of(tables / "people.parquet", Options(epsilon=1, delta=1e-5))
    said = str(caught.value)
    assert "person (int64), age (int16), city (string), income (double), joined (date32[day]), note (string)" in said
    assert "rich" not in said  # a boolean's values follow from its type
    found = yaml.safe_load(template_in(said))["columns"]
    assert {name: column["type"] for name, column in found.items()} == {
        "person": "integer",
        "age": "integer",
        "city": "categorical",
        "income": "float",
        "joined": "date",
        "note": "categorical",
    }
    for value in (SECRET, "Aix", "Bern"):
        assert value not in said


def test_what_is_no_text_is_asked_for_where_text_is_learned(tables: Path) -> None:
    with pytest.raises(ContractError) as caught:
        task_of(tables / "people.parquet", Options(epsilon=1, delta=1e-5, learn_values=True))
    assert list(yaml.safe_load(template_in(str(caught.value)))["columns"]) == ["person", "age", "income", "joined"]


def test_values_are_learned_where_the_schema_says_so(tables: Path) -> None:
    written = (tables / "people.yaml").read_text().replace("values: [Aix, Bern, Chur]", "values: learned, most: 7")
    (tables / "people.yaml").write_text(written)
    options = Options(epsilon=1, delta=1e-5, schema=tables / "people.yaml", owners="person", contributions=2)
    task = task_of(tables / "people.csv", options)
    (city,) = [column for column in task.plan.columns if column["name"] == "city"]
    assert (city["values"], city["most"]) == ([], 7)
    assert city["learning"]["threshold"] > 2


def test_what_is_asked_of_a_csv_file_follows_from_its_names_alone(tables: Path) -> None:
    said = set()
    for row in ("1,Aix,2021-01-01", "x,y,z", "0.5,,", f"1,{SECRET}"):
        (tables / "few.csv").write_text(f"age,city,joined\n{row}\n")
        with pytest.raises(ContractError) as caught:
            task_of(tables / "few.csv", Options(epsilon=1, delta=1e-5, csv_header=True))
        said.add(str(caught.value))
    assert len(said) == 1
    assert "nothing is declared of: age, city, joined. The possible values" in min(said)
    assert "A CSV file has no types, and its values are not read. Accepted: integer, min: , max: ;" in min(said)
    asked = {name: {"type": None} for name in ("age", "city", "joined")}
    assert yaml.safe_load(template_in(min(said)))["columns"] == asked


def test_a_column_without_a_name_is_listed_in_quotes(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("city,,age\nAix,1,2\n")
    given = Options(epsilon=1, delta=1e-5, csv_header=True)
    with pytest.raises(ContractError, match="nothing is declared of: city, '', age") as caught:
        task_of(tmp_path / "t.csv", given)
    assert list(yaml.safe_load(template_in(str(caught.value)))["columns"]) == ["city", "", "age"]
    with pytest.raises(SourceError, match="no column 'town'; accepted: city, '', age"):
        task_of(tmp_path / "t.csv", replace(given, schema={"columns": {"town": {"type": "boolean"}}}))


def test_pictures_are_refused_and_the_line_is_named(tmp_path: Path) -> None:
    pq.write_table(pa.table({"age": [1, 2], "face": pa.array([b"x", b"y"])}), tmp_path / "t.parquet")
    face = {"type": "image", "size": [8, 8], "accept_unscrubbed": "no person is shown"}
    columns: dict[str, Any] = {"age": {"type": "integer", "min": 0, "max": 9}, "face": face}
    given = Options(epsilon=1, delta=1e-5, schema={"columns": columns})
    with pytest.raises(ContractError) as caught:
        task_of(tmp_path / "t.parquet", given)
    assert str(caught.value) == (
        "schema: columns.face: type image, but pictures of one table are made by the line only, which scrubs, audits "
        "and shows them to a reviewer; accepted: ignore: true, which leaves the column out; or a contract (dpsynth "
        "contract init) and dpsynth run"
    )
    without = {"columns": columns | {"face": {"ignore": True}}}
    task_of(tmp_path / "t.parquet", replace(given, schema=without))
    with pytest.raises(ContractError, match="schema: image: here no pictures are made; accepted: in a federated run"):
        task_of(tmp_path / "t.parquet", replace(given, schema=without | {"image": {"given": ["age"]}}))


def test_a_forecast_shows_no_value_of_the_data(tables: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def failed(*_: object) -> None:
        raise KeyError(SECRET)

    monkeypatch.setitem(forecast.__globals__, "task_of", failed)
    with pytest.raises(DpsynthError, match=r"^unexpected error: KeyError$") as caught:
        forecast(tables / "people.csv", tmp_path / "out", Options(epsilon=1, delta=1e-5))
    assert caught.value.__context__ is None and caught.value.__cause__ is None
    assert not (tmp_path / "out").exists()


def test_the_template_once_filled_in_is_accepted(tables: Path, tmp_path: Path) -> None:
    options = {"epsilon": 1, "delta": 1e-5, "owners": "person", "contributions": 1}
    with pytest.raises(ContractError) as caught:
        task_of(tables / "people.csv", Options(**options))
    document = yaml.safe_load(template_in(str(caught.value)))
    known: dict[str, dict[str, Any]] = {
        "age": {"type": "integer", "min": 0, "max": 99},
        "city": {"type": "categorical", "values": ["Aix", "Bern"]},
        "income": {"type": "float", "min": 0, "max": 1000},
        "joined": {"type": "date", "min": "2020-01-01", "max": "2025-12-31"},
        "rich": {"type": "boolean"},
        "note": {"type": "categorical", "values": ["a", "b"]},
    }
    for name, values in known.items():
        document["columns"][name] |= values
    (tmp_path / "filled.yaml").write_text(yaml.safe_dump(document))
    task = task_of(tables / "people.csv", Options(schema=tmp_path / "filled.yaml", **options))
    assert task.contract.modelled == ["age", "city", "income", "joined", "rich", "note"]


@pytest.mark.parametrize(
    ("schema", "words"),
    [
        ("colums: {}", "colums: unknown key (did you mean 'columns'?)"),
        ("columns: {age: {type: integer, min: 0}}", "columns.age.max: missing"),
        ("columns: {age: {type: integr}}", "columns.age.type: 'integr'; accepted: integer"),
        ("columns: {age: {type: integer, min: 9, max: 0}}", "columns.age: min 9 is not below max 0"),
        ("columns: {age: {type: integer, min: 0, max: 9, bin: 3}}", "columns.age.bin: unknown key (did you mean 'bin"),
        ("columns: {city: {type: categorical, values: [Aix]}}", "columns.city.values"),
        ("columns: {}", "columns"),
        ("- a", "a list; accepted: a mapping"),
        ("columns: {age: {type: [}}", "not valid YAML"),
        ("columns: {size: {type: boolean}}", "there is no column 'size'; accepted: person, age, city"),
    ],
)
def test_faults_of_the_schema_file(make: Make, tables: Path, schema: str, words: str) -> None:
    (tables / "people.yaml").write_text(schema)
    with pytest.raises((ContractError, SourceError)) as caught:
        make()
    assert words in str(caught.value)


def test_a_schema_file_that_is_not_there(make: Make, tmp_path: Path) -> None:
    with pytest.raises(ContractError, match="no such file"):
        make(schema=tmp_path / "nowhere.yaml")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"epsilon": 0.0}, "--epsilon: 0.0; accepted: above 0"),
        ({"epsilon": float("nan")}, "--epsilon: nan"),
        ({"delta": None}, "--delta: missing; accepted: a number such as 1e-5, or --expected-units"),
        ({"delta": 0.0}, "--delta 0; accepted: above 0, below 1"),
        ({"delta": 1e-3, "expected_units": 5000}, "--delta: 0.001 exceeds 1/n = 0.0002 (n: --expected-units 5000)"),
        # 1/n looks like 1e-5 where it is rounded: the figure stands there in full, with the largest that is accepted.
        (
            {"delta": 1e-5, "expected_units": 104_181},
            "--delta: 1e-05 exceeds 1/n = 9.59868e-06 (n: --expected-units 104181); accepted: no --delta, which makes "
            "it 3.02e-06, or up to 9.59e-06",
        ),
        ({"expected_units": 5}, "--expected-units 5; accepted: 100 to 1,000,000,000,000,000"),
        (
            {"method": "gan"},
            "--method 'gan'; accepted: auto, aim, jam, mst, mwem, rap, gem, grem, appgm, privsyn, mrf, privbayes, "
            "histogram, independent",
        ),
        ({"format": "xlsx"}, "--format 'xlsx'; accepted: parquet, csv, delta"),
        ({"contributions": None}, "--owners and --contributions go together"),
        ({"owners": None}, "--owners and --contributions go together"),
        ({"contributions": 0}, "--contributions 0; accepted: 1 or more"),
        ({"target": "age"}, "--target 'age' is for --method auto, aim, jam; accepted: one of them, or no target"),
        ({"target": "note", "method": "aim"}, "--target 'note' is no modelled column; accepted: age, city"),
        ({"time_limit": "90"}, "--time-limit: '90'; accepted: whole seconds, minutes or hours, such as 90s"),
        ({"delta": 0.9, "expected_units": 500}, "accepted: no --delta, which makes it 0.00107, or up to 0.002"),
        ({"rows": 0}, "--rows 0; accepted: 1 or more"),
        ({"cap_epsilon": 0.0}, "--cap-epsilon 0; accepted: above 0"),
        ({"owners": "owner"}, "there is no column 'owner'"),
    ],
)
def test_impossible_options(make: Make, options: dict[str, Any], words: str) -> None:
    with pytest.raises(DpsynthError) as caught:
        make(**options)
    assert words in str(caught.value)


def test_an_owner_column_holds_ids(make: Make, tables: Path) -> None:
    (tables / "people.yaml").write_text((tables / "people.yaml").read_text() + "  person: {type: identifier}\n")
    with pytest.raises(ContractError, match="--owners: 'age' is an integer column; accepted: a column of type identif"):
        make(owners="age")


def test_delta_follows_from_the_expected_units(tables: Path) -> None:
    options = Options(epsilon=1, expected_units=5000, owners="person", contributions=1, schema=tables / "people.yaml")
    assert task_of(tables / "people.parquet", options).plan.guarantee["delta"] == pytest.approx(5000**-1.1)


def written(tables: Path, **columns: Any) -> None:
    table = people()
    for name, values in columns.items():
        table = table.set_column(table.schema.get_field_index(name), name, pa.array(values))
    pq.write_table(table, tables / "people.parquet")


def test_types_that_are_not_as_declared(make: Make, tables: Path) -> None:
    written(tables, age=[SECRET] * 1200)
    with pytest.raises(SourceError, match=r"^columns\.age: declared integer, found Arrow type string") as caught:
        make()
    assert SECRET not in str(caught.value)


def test_a_message_names_a_column_as_the_table_does() -> None:
    table = pa.table({"Re-admitted?": [905] * 3})
    options = Options(epsilon=1, delta=1e-5, schema={"columns": {"Re-admitted?": {"type": "boolean"}}})
    with pytest.raises(SourceError, match=r"^columns\.Re-admitted\?: declared boolean, found Arrow type int64"):
        task_of(table, options)


def test_values_of_a_csv_file_that_are_not_as_declared(make: Make, tables: Path) -> None:
    lines = (tables / "people.csv").read_text().splitlines()
    lines[7] = f'1,"{SECRET}","Aix",3.0,2021-01-01,true,"x"'
    (tables / "people.csv").write_text("\n".join(lines) + "\n")
    with pytest.raises(SourceError, match="column 'age' is declared to hold int64, and some of its values") as caught:
        make("people.csv")
    assert SECRET not in str(caught.value)


def test_one_row_of_a_csv_file_changes_no_value_of_another(tables: Path) -> None:
    """A decimal point does not make a column's numbers those of double precision, which could round somebody else's."""
    large, table = 2**53 + 1, tables / "numbers.csv"
    declared = {"amount": IntegerColumn(type="integer", min=0, max=2**62)}

    def read(*values: object) -> list[int]:
        table.write_text("\n".join(["amount", *map(str, values)]) + "\n")
        return list(pa.Table.from_batches(open_source(table, declared).batches())["amount"].to_pylist())

    assert read(large, 7) == [large, 7]
    assert read(2**53 - 1, "7.0") == [2**53 - 1, 7]
    assert read(large, "7.0", "1e3") == [large, 7, 1000]
    with pytest.raises(SourceError, match=r"column 'amount' .* below 2\^53, if written with a point") as told:
        read(f"{large}.0")
    assert str(large) not in str(told.value)


def test_ids_of_a_csv_file_stay_text(tables: Path) -> None:
    source = open_source(tables / "people.csv", {}, named=["person"])
    assert set(source.schema.types) == {pa.string()}


def test_personal_data_in_ordinary_columns_stops_the_run(make: Make, tables: Path) -> None:
    written(tables, city=[f"zaphod{row}@example.com" for row in range(1200)])
    with pytest.raises(SourceError, match=r"columns\.city: values look like EMAIL_ADDRESS"):
        make()


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("nothing.csv", None, "there is no such file"),
        ("nothing.parquet", None, "there is no such file or directory"),
        ("notes.txt", "a,b", "a directory of them, a CSV file (.csv, .tsv)"),
        ("empty.csv", "", "the file is empty"),
        (
            "numbers.csv",
            "1,2,3\n4,5,6\n",
            "its first line may be no header, since it has none of the declared or given names (it is not",
        ),
        ("damaged.parquet", "PAR1 nothing", "the table cannot be read"),
        ("twice.csv", "a,person,a\n1,2,3\n", "columns 1 and 3 of its first line have the same name (the line is not"),
    ],
)
def test_tables_that_cannot_be_read(make: Make, tables: Path, name: str, content: str | None, words: str) -> None:
    if content is not None:
        (tables / name).write_text(content)
    with pytest.raises(SourceError) as caught:
        make(name)
    assert words in str(caught.value)


def test_a_table_without_rows(make: Make, tables: Path) -> None:
    pq.write_table(people().slice(0, 0), tables / "people.parquet")
    with pytest.raises(SourceError, match="the table has no rows"):
        make()


def test_names_that_no_contract_can_hold(tables: Path) -> None:
    names = ["person id", "age at entry", "1st", "age_at_entry", "Größe", "included", "note"]
    pq.write_table(people().rename_columns(names), tables / "odd.parquet")
    source = open_source(tables / "odd.parquet", {})
    assert list(source.names) == names
    assert list(source.names.values()) == [
        "person_id",
        "age_at_entry",
        "column_1st",
        "age_at_entry_2",
        "Gr_e",
        "included_2",
        "note",
    ]
    assert all(TypeAdapter(ColumnName).validate_python(name) for name in source.names.values())
    with pytest.raises(ContractError) as caught:
        task_of(tables / "odd.parquet", Options(epsilon=1, delta=1e-5, owners="person id", contributions=1))
    asked = yaml.safe_load(template_in(str(caught.value)))["columns"]
    assert set(asked) == {"age at entry", "1st", "age_at_entry", "Größe", "note"}


def test_columns_of_other_types_are_left_empty(tables: Path) -> None:
    table = people().append_column("tags", pa.array([["a"]] * 1200)).append_column("none", pa.nulls(1200))
    pq.write_table(table, tables / "wide.parquet")
    (tables / "wide.yaml").write_text(
        (tables / "people.yaml").read_text() + "  tags: {type: text}\n  none: {type: text}\n"
    )
    options = Options(epsilon=1, delta=1e-5, owners="person", contributions=1, schema=tables / "wide.yaml")
    task = task_of(tables / "wide.parquet", options)
    assert not {"tags", "none", "note"} & set(task.contract.modelled)
    read = pa.Table.from_batches(rows.kept_rows(task.source, task.contract, task.readable))
    assert not {"tags", "none", "note"} & set(read.schema.names)


def test_assumed_domains_are_what_the_data_says(tmp_path: Path) -> None:
    table = pa.table(
        {
            "whole": pa.array([3, 1, None, 2]),
            "real": pa.array([0.5, float("nan"), float("inf"), 2.5]),
            "word": pa.array(["b", "a", "b", None]),
            "day": pa.array([18_262, 18_300, 18_301, 18_302], pa.int32()).cast(pa.date32()),
            "same": pa.array([7, 7, 7, 7]),
            "void": pa.array([None, None, None, None], pa.string()),
            "yes": pa.array([True, False, True, True]),
            "when": pa.array([0, 1_500_000, 86_400_000_000, None], pa.int64()).cast(
                pa.timestamp("us", "Europe/Berlin")
            ),
            "clock": pa.array([0, 1, 2, 3], pa.int64()).cast(pa.time64("us")),
            "cents": pa.array(["0.05", "1.25", "3.10", "2.00"]).cast(pa.decimal128(10, 2)),
            "stay": pa.array([{"took": 7}, {"took": 9}, None, {"took": 8}], pa.struct([("took", pa.duration("s"))])),
        }
    )
    pq.write_table(table, tmp_path / "t.parquet")
    source = open_source(tmp_path / "t.parquet", {})
    found: dict[str, Any] = assumed_columns(source, source.schema.names)
    assert (found["whole"].min, found["whole"].max, found["whole"].nullable) == (1, 3, True)
    assert (found["real"].min, found["real"].max, found["real"].nullable) == (0.5, 2.5, True)
    assert (found["word"].values, found["word"].nullable) == (["a", "b"], True)
    assert (str(found["day"].min), str(found["day"].max)) == ("2020-01-01", "2020-02-10")
    assert {found["same"].type, found["void"].type} == {"text"}
    assert found["yes"].type == "boolean"
    assert (str(found["when"].min), str(found["when"].max)) == ("1970-01-01 00:00:00", "1970-01-02 00:00:00")
    assert (found["clock"].type, found["clock"].resolution) == ("time", "1s")
    assert (found["cents"].min, found["cents"].max, found["cents"].decimals) == (0.05, 3.1, 2)
    took = found["stay.took"]
    assert (took.type, took.min, took.max, took.nullable) == ("integer", 7, 9, True)


def test_schema_files_are_parts_of_contracts(tables: Path) -> None:
    assert set(SchemaFile.model_validate(read_yaml(tables / "people.yaml")).columns) == set(people().column_names) - {
        "person"
    }


@pytest.mark.parametrize("table", ["people.csv", "people.parquet", "people"])
def test_a_named_pipe_is_no_table(make: Make, tables: Path, table: str) -> None:
    (tables / "aside").mkdir()
    (tables / table).rename(tables / "aside" / table)
    os.mkfifo(tables / table)
    with pytest.raises(SourceError, match=r"named pipe; accepted: a regular file|there is no table at this path"):
        make(table)


@pytest.mark.parametrize("key", ["schema", "constraints"])
def test_a_named_pipe_declares_nothing(make: Make, tables: Path, key: str) -> None:
    os.mkfifo(tables / "pipe.yaml")
    with pytest.raises(ContractError, match=r"pipe\.yaml: cannot be read: it is a named pipe"):
        make(**{key: tables / "pipe.yaml"})


@pytest.mark.parametrize(
    ("column", "said"),
    [
        ("city: {type: categorical, values: [01, 02]}", "01 is read differently by versions of YAML"),
        (
            "city: {type: categorical, values: [a, 1.10]}",
            "columns.city.values: item 2 of the list: 1.10 without quotes",
        ),
        ("joined: {type: date, min: 2026-01-01, max: 2026-02-30}", "columns.joined.max: '2026-02-30'; accepted:"),
        ("age: {type: integer, min: 010, max: 99}", "010 is read differently"),
    ],
)
def test_a_schema_file_is_read_as_a_contract_is(make: Make, tables: Path, column: str, said: str) -> None:
    (tables / "people.yaml").write_text(f"columns: {{{column}}}\n")
    with pytest.raises(ContractError) as caught:
        make()
    assert said in str(caught.value)


def test_a_constraint_in_a_file_of_its_own_names_texts(make: Make, tables: Path) -> None:
    (tables / "rules.yaml").write_text("constraints: [{forbid: {city: 1.10, age: 3}}]")
    with pytest.raises(ContractError, match=r"constraints\.0\.forbid\.city: 1\.10 without quotes is a number"):
        make(constraints=tables / "rules.yaml")


def test_a_missing_table_is_reported_before_anything_else(tmp_path: Path) -> None:
    """Also before missing options, and no output directory is made."""
    with pytest.raises(SourceError, match=r"nothing\.parquet: there is no such file"):
        run.synthesize(tmp_path / "nothing.parquet", tmp_path / "out", Options(epsilon=1))
    assert not (tmp_path / "out").exists()
