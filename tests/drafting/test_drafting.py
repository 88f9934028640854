"""Drafts of contracts: public facts only, every gap named, nothing guessed, nothing overwritten."""

from __future__ import annotations

import datetime as dt
import decimal
import io
import json
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv as csv
import pyarrow.parquet as pq
import pytest
import sqlalchemy as sa
import yaml
from deltalake import write_deltalake
from deployment import Deployment
from line_cases import small_deployment
from pyiceberg.catalog.sql import SqlCatalog

from dpsynth_platform.cli import main as cli
from dpsynth_platform.drafting.draft import Drafted, drafted, write
from dpsynth_platform.drafting.questions import NoAnswer, ask_gaps
from dpsynth_platform.foundation.errors import ContractError, SourceError
from dpsynth_platform.foundation.settings import PACKAGE_ROOT
from dpsynth_platform.sources.dialect import Dialect
from dpsynth_platform.synth.planning import check_contract, load_dataset

FORMATS = ("parquet", "csv", "delta")


def people(first: int, rows: int) -> pa.Table:
    """Columns of every kind; with other numbers, other values, ranges, counts and categories."""
    numbers = range(first, first + rows)
    day, moment = dt.date(2001, 1, 1), dt.datetime(2001, 1, 1)
    kinds = pa.array([f"kind {number}" for number in numbers])
    return pa.table(
        {
            "person": [f"P{number}" for number in numbers],
            "age": pa.array(numbers, pa.int64()),
            "wage": [number / 7 for number in numbers],
            "price": pa.array([decimal.Decimal(number) for number in numbers], pa.decimal128(12, 2)),
            "born": [day + dt.timedelta(days=number) for number in numbers],
            "seen": [moment + dt.timedelta(hours=number) for number in numbers],
            "paid": [number % first == 0 for number in numbers],
            "no": [f"Call {number}." for number in numbers],
            "ward name": [f"ward {number}" for number in numbers],
            # How many categories there are decides how they are encoded.
            "kind": kinds.dictionary_encode() if rows < 100 else kinds.cast(pa.dictionary(pa.int16(), pa.string())),
        }
    )


def table_of(directory: Path, format_: str, table: pa.Table) -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / ("people" if format_ == "delta" else f"people.{format_}")
    if format_ == "parquet":
        pq.write_table(table, path)
    elif format_ == "csv":
        csv.write_csv(table, path)
    else:
        plain = table.set_column(table.column_names.index("kind"), "kind", table["kind"].cast(pa.string()))
        write_deltalake(path, plain)
    return path


@pytest.fixture
def deployment(tmp_path: Path) -> Deployment:
    return small_deployment(tmp_path / "deployment")


def gaps_of(document: Any, path: str = "") -> Iterator[str]:
    for key, value in document.items():
        if isinstance(value, dict):
            yield from gaps_of(value, f"{path}{key}.")
        elif value is None:
            yield f"{path}{key}"


@pytest.mark.parametrize("format_", FORMATS)
def test_other_values_make_the_same_draft(tmp_path: Path, format_: str) -> None:
    """Byte for byte, the budget's too."""
    drafts = []
    for first, rows in ((1, 3), (50_000, 300)):
        deployment = small_deployment(tmp_path / "home")
        table = table_of(deployment.settings.home / "tables", format_, people(first, rows))
        draft = drafted(deployment.settings, table, "people", None, dialect=Dialect(header=format_ == "csv"))
        drafts.append((draft.text(), draft.family_text()))
        shutil.rmtree(tmp_path / "home")
    assert drafts[0] == drafts[1]
    for value in ("50000", "2001", "kind 1", "P1", "Call"):
        assert value not in "".join(drafts[1])


@pytest.mark.parametrize("format_", FORMATS)
def test_no_row_is_read(tmp_path: Path, deployment: Deployment, format_: str) -> None:
    """The draft is the same where there is nothing but a schema."""
    table = table_of(tmp_path / "tables", format_, people(1, 3))
    whole = drafted(deployment.settings, table, "people", None, dialect=Dialect(header=format_ == "csv")).text()
    if format_ == "delta":
        for file in table.glob("*.parquet"):
            file.unlink()
    elif format_ == "csv":
        header = table.read_bytes().split(b"\n")[0]
        table.write_bytes(header + b"\n\xff\xfe\x00broken")
    else:
        content = table.read_bytes()
        footer = int.from_bytes(content[-8:-4], "little") + 8
        table.write_bytes(content[:4] + bytes(len(content) - footer - 4) + content[-footer:])
        with pytest.raises((OSError, pa.ArrowException)):
            pq.read_table(table)
    assert drafted(deployment.settings, table, "people", None, dialect=Dialect(header=format_ == "csv")).text() == whole


@pytest.mark.parametrize("format_", FORMATS)
def test_check_names_every_gap(tmp_path: Path, deployment: Deployment, format_: str) -> None:
    table = table_of(tmp_path, format_, people(1, 3))
    draft = drafted(deployment.settings, table, "people", None, dialect=Dialect(header=format_ == "csv"))
    assert yaml.safe_load(draft.text()) == draft.contract
    assert yaml.safe_load(draft.family_text()) == draft.budget
    contract = tmp_path / "people.yaml"
    write(deployment.settings, draft, contract)
    with pytest.raises(ContractError) as refused:
        check_contract(deployment.settings, contract)
    lines = str(refused.value).split("\n")
    gaps = list(gaps_of(draft.contract))
    assert len(lines) == len(gaps)
    for gap in gaps:
        assert sum(line.startswith(f"{contract}: {gap}: not filled in; ") for line in lines) == 1, gap
    assert {"family", "privacy.owner_columns", "privacy.expected_units", "privacy.guarantee.epsilon"} <= set(gaps)
    assert {"columns.person.type", "columns.age.type" if format_ == "csv" else "columns.age.min"} <= set(gaps)


def test_check_names_the_gaps_of_the_family(tmp_path: Path, deployment: Deployment) -> None:
    draft = drafted(deployment.settings, table_of(tmp_path, "parquet", people(1, 3)), "people", "new-people")
    family = write(deployment.settings, draft, tmp_path / "people.yaml")
    assert family == deployment.settings.families / "new-people.yaml"
    with pytest.raises(ContractError) as refused:
        check_contract(deployment.settings, tmp_path / "people.yaml")
    for key in ("unit", "namespace", "mode", "cap.epsilon", "cap.delta"):
        assert f"{family}: {key}: not filled in; " in str(refused.value)


@pytest.mark.parametrize(
    ("family", "file"), [(None, "; drafted: people-owners."), ("new-people", "; drafted: new-people."), ("tests", ".")]
)
def test_the_draft_names_the_familys_file_that_is_drafted(
    tmp_path: Path, deployment: Deployment, family: str | None, file: str
) -> None:
    draft = drafted(deployment.settings, table_of(tmp_path, "parquet", people(1, 3)), "people", family)
    note = draft.notes()["family"]
    assert note.endswith(f"Existing families: tests. A new family has a separate file, families/NAME.yaml{file}")
    assert (draft.budget is None) == ("drafted" not in note)


def test_types_tell_what_they_tell(tmp_path: Path, deployment: Deployment) -> None:
    draft = drafted(deployment.settings, table_of(tmp_path, "parquet", people(1, 3)), "people", None)
    columns = draft.contract["columns"]
    assert columns["age"] == {"type": "integer", "min": None, "max": None}
    assert columns["price"] == {"type": "float", "min": None, "max": None, "decimals": 2}
    assert columns["paid"] == {"type": "boolean"}
    assert columns["ward name"] == columns["kind"] == {"type": None}
    assert draft.contract["source"]["uri"] == str(tmp_path / "people.parquet")
    assert draft.contract["source"]["format"] == "parquet"


def test_the_dialect_of_a_csv_file_is_in_its_draft(tmp_path: Path, deployment: Deployment) -> None:
    file = deployment.settings.home / "sources" / "people.csv"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes("person;größe\n1;2,5\n".encode("cp1252"))
    dialect = Dialect(";", decimal=",", encoding="cp1252", header=True)
    source = drafted(deployment.settings, file, "people", None, dialect).contract["source"]
    assert source["uri"] == "${DPSYNTH_HOME}/sources/people.csv"
    assert source["csv"] == {"separator": ";", "decimal": ",", "encoding": "cp1252"}
    assert Dialect(**source["csv"]).declared == dialect.declared


def test_a_delta_table_is_read_where_it_lies(tmp_path: Path, deployment: Deployment) -> None:
    home = deployment.settings.home
    inside = drafted(deployment.settings, table_of(home / "tables", "delta", people(1, 3)), "people", None)
    outside = drafted(deployment.settings, table_of(tmp_path / "else", "delta", people(1, 3)), "people", None)
    assert inside.contract["source"]["uri"] == "${DPSYNTH_HOME}/tables/people"
    assert outside.contract["source"]["uri"] == str(tmp_path / "else" / "people")


def test_a_family_that_there_is_gives_its_terms(tmp_path: Path, deployment: Deployment) -> None:
    draft = drafted(deployment.settings, table_of(tmp_path, "parquet", people(1, 3)), "people", "tests")
    assert draft.budget is None
    privacy = draft.contract["privacy"]
    assert (privacy["unit"], privacy["namespace"]) == ("user", "person")
    with pytest.raises(ContractError, match=r"family: '\.\./tests'; accepted: a lower-case letter"):
        drafted(deployment.settings, tmp_path / "people.parquet", "people", "../tests")


ANSWERS = {
    "description": "People who called.",
    "owners": "data@example.org",
    "source.key": "person, seen",
    "family": "tests",
    "privacy.owner_columns": "person",
    "privacy.max_contributions": "2",
    "privacy.guarantee.epsilon": "1",
    "privacy.expected_units": "300000",
    "columns.age.type": "",
    "columns.age.min": "0",
    "columns.age.max": "120",
    "columns.wage.min": "0",
    "columns.wage.max": "1e6",
    "columns.price.min": "0",
    "columns.price.max": "99.5",
    "columns.born.min": "1900-01-01",
    "columns.born.max": "2025-12-31",
    "columns.seen.min": "2000-01-01T00:00:00",
    "columns.seen.max": "2030-01-01T00:00:00",
    "columns.no.type": "text",
    "columns.no.pii": "drop",
    "columns.ward name.type": "categorical",
    "columns.ward name.values": "yes, no, on",
    "columns.kind.type": "categorical",
    "columns.kind.values": "learned",
}


def place_of(question: str) -> str:
    return question.split("\n")[-1].split(" (")[0]


def answered(deployment: Deployment, draft: Drafted, answers: dict[str, list[str]]) -> tuple[Drafted, list[str]]:
    """The draft with those answers, each given once; what else is asked for is left open. And what was said."""
    said: list[str] = []

    def answer(question: str) -> str:
        given = answers.get(place_of(question), [])
        return given.pop(0) if given else ""

    return ask_gaps(deployment.settings, draft, answer, said.append), said


def test_answers_make_a_contract_that_is_sound(tmp_path: Path, deployment: Deployment) -> None:
    draft = drafted(deployment.settings, table_of(tmp_path, "parquet", people(1, 3)), "people", None)
    filled, said = answered(deployment, draft, {path: [answer] for path, answer in ANSWERS.items()})
    assert said == []
    assert write(deployment.settings, filled, tmp_path / "people.yaml") is None
    contract = check_contract(deployment.settings, tmp_path / "people.yaml")
    assert contract.columns["person"].type == "identifier"
    assert contract.columns["ward name"].values == ["yes", "no", "on"]
    assert contract.columns["kind"].values == "learned"
    assert contract.privacy.namespace == "person"


def test_what_cannot_be_accepted_is_asked_for_again(tmp_path: Path, deployment: Deployment) -> None:
    draft = drafted(deployment.settings, table_of(tmp_path, "parquet", people(1, 3)), "people", None)
    wrong = {
        "family": ["../tests", "new-people"],
        "privacy.owner_columns": ["persona", "person"],
        "privacy.expected_units": ["many", "3", "3000"],
        "columns.age.min": ["0"],
        "columns.age.max": ["-1", "120"],
        "columns.no.type": ["string", "text"],
    }
    filled, said = answered(deployment, draft, wrong)
    assert [line.split(":")[0] for line in said] == [
        "family",
        "privacy.owner_columns",
        "privacy.expected_units",
        "privacy.expected_units",
        "columns.age",
        "columns.no.type",
    ]
    assert filled.contract["privacy"]["expected_units"] == 3000
    assert filled.contract["columns"]["age"] == {"type": "integer", "min": 0, "max": 120}
    assert filled.contract["columns"]["no"] == {"type": "text", "pii": None}
    assert filled.budget is not None
    assert filled.budget["unit"] == "user"


def test_whoever_stops_keeps_what_was_answered(tmp_path: Path, deployment: Deployment) -> None:
    draft = drafted(deployment.settings, table_of(tmp_path, "parquet", people(1, 3)), "people", None)

    def answer(question: str) -> str:
        if place_of(question) == "owners":
            raise NoAnswer
        return "People who called."

    filled = ask_gaps(deployment.settings, draft, answer, lambda _: None)
    assert filled.contract["description"] == "People who called."
    assert filled.contract["owners"] is None


def init(monkeypatch: pytest.MonkeyPatch, deployment: Deployment, *arguments: object) -> object:
    """Runs the command in this process; returns its status."""
    for name, value in deployment.environment.items():
        if name.startswith("DPSYNTH_"):
            monkeypatch.setenv(name, value)
    with pytest.raises(SystemExit) as ended:
        cli.app(["contract", "init", *map(str, arguments)])
    return ended.value.code


def test_the_command_writes_beside_what_is_there_and_never_over_it(
    tmp_path: Path, deployment: Deployment, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    table = table_of(tmp_path, "parquet", people(1, 3)).rename(tmp_path / "My People.parquet")
    assert init(monkeypatch, deployment, table, "--json") == 0
    told = json.loads(capfd.readouterr().out)
    contract, family = Path(told["contract"]), Path(told["family"])
    assert contract == deployment.settings.contracts / "my_people.yaml"
    assert family == deployment.settings.families / "my_people-owners.yaml"
    assert any("privacy.unit: not filled in" in line for line in told["open"])
    before = contract.read_bytes()
    assert init(monkeypatch, deployment, table) == 1
    assert f"{contract}: the file exists and is not overwritten" in capfd.readouterr().err
    family.write_text("mine")
    assert init(monkeypatch, deployment, table, "--out", tmp_path / "my_people.yaml") == 0
    assert (contract.read_bytes(), family.read_text()) == (before, "mine")


def test_the_command_asks_until_the_input_ends(
    tmp_path: Path, deployment: Deployment, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    table = table_of(tmp_path, "parquet", people(1, 3))
    monkeypatch.setattr(sys, "stdin", io.StringIO("People who called.\ndata@example.org\n\nperson, nobody\nperson\n"))
    assert init(monkeypatch, deployment, table, "--ask", "--out", tmp_path / "calls.yaml", "--json") == 0
    out, err = capfd.readouterr()
    assert "privacy.owner_columns: there is no column 'nobody'; accepted: person, age" in err
    document = yaml.safe_load((tmp_path / "calls.yaml").read_text())
    assert document["description"] == "People who called."
    assert document["privacy"]["owner_columns"] == ["person"]
    assert document["privacy"]["max_contributions"] is None
    assert json.loads(out)["contract"] == str(tmp_path / "calls.yaml")


def test_nothing_is_written_into_somebody_elses_place(
    tmp_path: Path, deployment: Deployment, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """The default deployment is that of the installed package or checkout."""
    table = table_of(tmp_path, "parquet", people(1, 3)).rename(tmp_path / "unheard_of.parquet")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "stdin", io.StringIO("y\n"))
    monkeypatch.setenv("DPSYNTH_HOME", str(deployment.settings.home))
    monkeypatch.delenv("DPSYNTH_DEPLOY", raising=False)
    for deploy, status in (("", 1), (str(tmp_path / "new"), 0)):
        monkeypatch.setenv("DPSYNTH_DEPLOY", deploy)
        with pytest.raises(SystemExit) as ended:
            cli.app(["contract", "init", str(table)])
        assert ended.value.code == status
        said = capfd.readouterr().err
        if not deploy:
            written = PACKAGE_ROOT / "deploy" / "contracts" / "unheard_of.yaml"
            assert f"to be written: {written}" in said and "accepted: DPSYNTH_DEPLOY=DIRECTORY" in said
            assert not written.exists()
    assert {path.name for path in (tmp_path / "new").iterdir()} == {"contracts", "families", "dagster.yaml"}


def test_a_table_that_cannot_be_drafted_is_not_announced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    table = tmp_path / "calls.csv"
    table.write_text("a;b\n1;2\n")
    monkeypatch.setenv("DPSYNTH_DEPLOY", str(tmp_path / "new"))
    with pytest.raises(SystemExit):
        cli.app(["contract", "init", str(table)])
    said = capfd.readouterr().err
    assert "--csv-" in said and "to be written" not in said
    assert not (tmp_path / "new").exists()


ODD = """Kunden Nr;Alter (Jahre); Umsatz €;Größe;Land;Bemerkung
K1;31;12,5;S;DE;x
"""
TEN = """Customers of a shop, one row each.
data@example.org
shop-customers
Kunden Nr
1

3000
1
Alter (Jahre) = 18..90; Umsatz € = 0.0..1000.0?; Größe = S|M|L; Land = learned; * = drop
4
"""


def test_ten_answers_make_a_contract_that_runs(
    tmp_path: Path, deployment: Deployment, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """With a new family, a CSV file of another dialect and an odd header; nothing is left to fill in."""
    table = tmp_path / "Kunden 2024.csv"
    table.write_bytes(ODD.encode("cp1252"))
    assert TEN.count("\n") <= 10
    monkeypatch.setattr(sys, "stdin", io.StringIO(TEN))
    dialect = [
        "--csv-header",
        "--csv-separator",
        ";",
        "--csv-encoding",
        "cp1252",
        "--csv-decimal",
        ",",
        "--csv-skip-blanks",
    ]
    assert init(monkeypatch, deployment, table, "--ask", "--json", *dialect) == 0
    assert json.loads(capfd.readouterr().out)["open"] == []
    with pytest.raises(SystemExit) as ended:
        cli.app(["contract", "check", "kunden_2024"])
    assert ended.value.code == 0
    contract, family = load_dataset(deployment.settings, "kunden_2024")
    assert contract.columns["Umsatz €"].model_dump(include={"type", "min", "max", "nullable"}) == {
        "type": "float",
        "min": 0.0,
        "max": 1000.0,
        "nullable": True,
    }
    assert (contract.columns["Bemerkung"].type, contract.columns["Land"].values) == ("text", "learned")
    assert (contract.privacy.unit, contract.privacy.namespace, contract.source.key) == (
        "user",
        "kunden_nr",
        ["Kunden Nr"],
    )
    assert (family.mode, family.cap.epsilon) == ("family", 4)
    assert contract.privacy.delta <= family.cap.delta <= 1 / 3000


def test_an_answer_for_all_columns_is_refused_by_its_part(tmp_path: Path, deployment: Deployment) -> None:
    draft = drafted(deployment.settings, table_of(tmp_path, "parquet", people(1, 3)), "people", "tests")
    wrong = [
        "tall = 1..2",
        "age = old",
        "wage = 5..1",
        "born = 1900-01-01..2020-12-31; age=0..9; price = 0..9.5; * = ignore",
    ]
    filled, said = answered(deployment, draft, {"privacy.owner_columns": ["person"], "columns": wrong})
    assert [line.partition("; ")[0] for line in said] == [
        "columns: 'tall = 1..2'",
        "columns.age: 'old'",
        "columns.wage: min 5.0 is not below max 1.0",
    ]
    columns = filled.contract["columns"]
    assert columns["person"] == {"type": "identifier"} and columns["wage"] == {"ignore": True}
    assert columns["price"] == {"type": "float", "min": 0, "max": 9.5, "decimals": 2}
    assert columns["age"] == {"type": "integer", "min": 0, "max": 9} and columns["born"]["type"] == "date"


NESTED = {
    "writers": pa.array([["P1"], ["P2", "P3"]]),
    "places": pa.array([[{"street": "a"}], None]),
    "props": pa.array([[("a", 1)], None], pa.map_(pa.string(), pa.int8())),
    "checksum": pa.array([b"a", None], pa.binary()),
}


def test_what_no_declaration_reads_is_drafted_as_ignored(tmp_path: Path, deployment: Deployment) -> None:
    pq.write_table(
        pa.table(NESTED | {"age": [1, 2], "view": pa.array(["a", "b"], pa.string_view())}), tmp_path / "t.parquet"
    )
    draft = drafted(deployment.settings, tmp_path / "t.parquet", "letters", None)
    columns = draft.contract["columns"]
    assert {name for name, column in columns.items() if column == {"ignore": True}} == set(NESTED)
    assert columns["view"] == {"type": None}
    assert "  props: {ignore: true}  # nested" in draft.text()
    assert yaml.safe_load(draft.text())["columns"] == columns
    assert not [gap for gap in draft.gaps(deployment.settings.variables) if "props" in gap or "checksum" in gap]


def test_types_that_are_read_as_whole_numbers_and_fields_of_structs_are_drafted(
    tmp_path: Path, deployment: Deployment
) -> None:
    place = pa.array([{"street": "a", "at": {"zip": 1}}, None])
    took, count = pa.array([1, 2], pa.duration("s")), pa.array([decimal.Decimal(1), None], pa.decimal128(18, 0))
    pq.write_table(pa.table({"place": place, "took": took, "count": count}), tmp_path / "t.parquet")
    draft = drafted(deployment.settings, tmp_path / "t.parquet", "letters", None)
    whole = {"type": "integer", "min": None, "max": None}
    expected = {"place.street": {"type": None}, "place.at.zip": whole, "took": whole, "count": whole}
    assert draft.contract["columns"] == expected
    assert "}  # duration[s]\n" in draft.text()


def test_lists_of_owners_are_identifiers_once_they_are_named(tmp_path: Path, deployment: Deployment) -> None:
    pq.write_table(pa.table(NESTED | {"age": [1, 2]}), tmp_path / "t.parquet")
    draft = drafted(deployment.settings, tmp_path / "t.parquet", "letters", None)

    def answer(question: str) -> str:
        if "columns.places" in question:
            pytest.fail("a column that is ignored was asked about")
        return "[writers]" if "privacy.owner_columns" in question else ""

    made = ask_gaps(deployment.settings, draft, answer, lambda problem: pytest.fail(problem))
    assert made.contract["privacy"]["owner_columns"] == ["writers"]
    assert made.contract["columns"]["writers"] == {"type": "identifier"}
    assert made.contract["columns"]["places"] == {"ignore": True}


def test_a_first_line_that_is_no_header_is_in_no_draft(tmp_path: Path, deployment: Deployment) -> None:
    lines = ("Maria Quillmarker,Aix", "Quillmarker,1980-05-01", "Quillmarker,Quillmarker", "a;Quillmarker;b")
    for first in (*lines, "Quillmarker,tulip,Wroclaw"):
        (tmp_path / "t.csv").write_text(f"{first}\n")
        with pytest.raises(SourceError) as caught:
            drafted(deployment.settings, tmp_path / "t.csv", "letters", None)
        assert "Quillmarker" not in str(caught.value)
    assert "accepted: --csv-header" in str(caught.value)


def test_a_header_is_said_of_a_csv_file_alone(
    tmp_path: Path, deployment: Deployment, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "t.csv").write_text("name,flower,2019\n")
    assert init(monkeypatch, deployment, tmp_path / "t.csv") == 1
    said = capfd.readouterr()
    assert "--csv-header" in said.err and "flower" not in said.out + said.err
    assert init(monkeypatch, deployment, tmp_path / "t.csv", "--csv-header") == 0
    assert "columns.flower.type: not filled in" in capfd.readouterr().out
    table = table_of(tmp_path, "parquet", people(1, 3))
    assert init(monkeypatch, deployment, table, "--csv-header", "--out", tmp_path / "c.yaml") == 1
    assert "people.parquet is no CSV file (.csv, .tsv)" in " ".join(capfd.readouterr().err.split())


def test_the_index_that_pandas_writes_is_no_gap(
    tmp_path: Path, deployment: Deployment, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    people(1, 3).select(["person", "age"]).to_pandas().to_csv(tmp_path / "t.csv")
    assert init(monkeypatch, deployment, tmp_path / "t.csv", "--csv-header") == 0
    said = capfd.readouterr().out
    assert "columns.." not in said and "yaml: columns: " not in said and "columns.age.type: not filled in" in said
    written = (deployment.settings.contracts / "t.yaml").read_text()
    assert yaml.safe_load(written)["columns"][""] == {"ignore": True}


def test_keys_of_json_lines_are_declared_and_not_read(
    tmp_path: Path, deployment: Deployment, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "calls.jsonl").write_text('{"Zaphodina": 1}\n')
    assert init(monkeypatch, deployment, tmp_path / "calls.jsonl") == 1
    assert "accepted: --columns NAME,NAME" in capfd.readouterr().err
    assert init(monkeypatch, deployment, tmp_path / "calls.jsonl", "--columns", "person,age", "--csv-header") == 1
    assert "--csv-...: is for CSV files" in capfd.readouterr().err
    assert init(monkeypatch, deployment, tmp_path / "calls.jsonl", "--columns", "person,age") == 0
    written = (deployment.settings.contracts / "calls.yaml").read_text()
    assert yaml.safe_load(written)["source"] == {"uri": str(tmp_path / "calls.jsonl"), "format": "json", "key": None}
    assert yaml.safe_load(written)["columns"] == {"person": {"type": None}, "age": {"type": None}}
    assert "Zaphodina" not in written + "".join(capfd.readouterr())


def test_a_databases_catalog_gives_names_and_types(
    tmp_path: Path,
    deployment: Deployment,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    postgresql_url: str,
) -> None:
    engine = sa.create_engine(postgresql_url, isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        connection.exec_driver_sql(
            "CREATE TABLE visits (person text, age integer, wage numeric(9, 2), born date, seen timestamptz, "
            'paid boolean, "Größe" double precision, photo bytea)'
        )
        connection.exec_driver_sql("INSERT INTO visits (person) VALUES ('Zaphodina')")
    engine.dispose()
    arguments = ["--format", "sql", "--uri", postgresql_url]
    assert init(monkeypatch, deployment, *arguments, "--table", "public.visits") == 0
    written = (deployment.settings.contracts / "public_visits.yaml").read_text()
    found = yaml.safe_load(written)
    assert found["source"] == {"format": "sql", "uri": postgresql_url, "table": "public.visits", "key": None}
    ends = {"min": None, "max": None}
    assert found["columns"] == {
        "person": {"type": None},
        "age": {"type": "integer", **ends},
        "wage": {"type": "float", **ends, "decimals": 2},
        "born": {"type": "date", **ends},
        "seen": {"type": "datetime", **ends},
        "paid": {"type": "boolean"},
        "Größe": {"type": "float", **ends},
        "photo": {"type": None},
    }
    query = "SELECT person, age / length(person) AS part FROM visits"
    assert init(monkeypatch, deployment, *arguments, "--query", query, "--out", tmp_path / "q.yaml") == 0
    assert yaml.safe_load((tmp_path / "q.yaml").read_text())["columns"]["part"] == {"type": "integer", **ends}
    assert "Zaphodina" not in written + "".join(capfd.readouterr())
    assert init(monkeypatch, deployment, *arguments, "--table", "nothing", "--out", tmp_path / "n.yaml") == 1
    assert "the database cannot be read (" in capfd.readouterr().err
    assert init(monkeypatch, deployment, "--format", "sql", "--uri", "postgresql://u:Geheim@h/d", "--table", "t") == 1
    said = capfd.readouterr().err
    assert "uri: has a password" in said and "Geheim" not in said


def test_an_iceberg_tables_schema_gives_names_and_types(
    tmp_path: Path, deployment: Deployment, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    uri = f"sqlite:///{tmp_path / 'catalog.db'}"
    catalog = SqlCatalog("made", uri=uri, warehouse=str(deployment.settings.home / "lake"))
    catalog.create_namespace("clinic")
    rows = pa.table(
        {
            "person": ["Zaphodina"],
            "age": pa.array([7], pa.int32()),
            "wage.net": pa.array([None], pa.decimal128(9, 2)),
            "Größe in cm": pa.array([1.5]),
            "born": pa.array([dt.date(2000, 1, 1)]),
            "seen": pa.array([dt.datetime(2000, 1, 1)], pa.timestamp("us", "UTC")),
            "paid": [True],
            "checksum": pa.array([b"x"]),
            "nicknames": pa.array([["Zaphodina"]]),
            "stay": pa.array([{"nights": 7}]),
        }
    )
    table = catalog.create_table("clinic.visits", rows.schema)
    arguments = ["--format", "iceberg", "--uri", uri, "--catalog", "made"]
    assert init(monkeypatch, deployment, *arguments, "--table", "clinic.visits") == 1
    assert "has no snapshot, so no row" in capfd.readouterr().err
    table.append(rows)
    assert init(monkeypatch, deployment, *arguments, "--table", "clinic.visits") == 0
    written = (deployment.settings.contracts / "clinic_visits.yaml").read_text()
    found, ends = yaml.safe_load(written), {"min": None, "max": None}
    assert found["source"] == {
        "format": "iceberg",
        "uri": uri,
        "table": "clinic.visits",
        "catalog": "made",
        "key": None,
    }
    columns = {
        "person": {"type": None},
        "age": {"type": "integer", **ends},
        "wage.net": {"type": "float", **ends, "decimals": 2},
        "Größe in cm": {"type": "float", **ends},
        "born": {"type": "date", **ends},
        "seen": {"type": "datetime", **ends},
        "paid": {"type": "boolean"},
        "checksum": {"ignore": True},
        "nicknames": {"ignore": True},
        "stay.nights": {"type": "integer", **ends},
    }
    assert found["columns"] == columns
    assert "  nicknames: {ignore: true}  # list\n" in written and "  checksum: {ignore: true}  # binary\n" in written
    # Other rows, the same draft; and by the table's own metadata file.
    table.overwrite(pa.concat_tables([rows, rows]))
    file = Path(table.metadata_location.removeprefix("file://"))
    assert init(monkeypatch, deployment, file, "--format", "iceberg") == 0
    by_file = yaml.safe_load((deployment.settings.contracts / "visits.yaml").read_text())
    assert by_file["columns"] == columns
    place = f"${{DPSYNTH_HOME}}/{file.relative_to(deployment.settings.home)}"
    assert by_file["source"] == {"format": "iceberg", "uri": place, "key": None}
    assert "Zaphodina" not in written + "".join(capfd.readouterr())
    assert init(monkeypatch, deployment, *arguments, "--table", "clinic.none") == 1
    assert "the Iceberg table cannot be opened (NoSuchTableError)" in capfd.readouterr().err
    catalog.close()


def test_one_place_is_named(
    tmp_path: Path, deployment: Deployment, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    by_uri = ["--uri", "sqlite:///x"]
    for arguments in (
        [],
        [*by_uri, "--table", "t"],
        [tmp_path / "t.parquet", "--format", "sql"],
        ["--format", "sql", *by_uri, "--table", "t", "--catalog", "c"],
        ["--format", "iceberg", *by_uri],
        ["--format", "iceberg", *by_uri, "--table", "t.t", "--query", "SELECT 1"],
        ["--format", "iceberg", tmp_path / "metadata.json", "--table", "t.t"],
    ):
        assert init(monkeypatch, deployment, *arguments) == 1
        assert "for a database, --format sql with --uri" in capfd.readouterr().err
