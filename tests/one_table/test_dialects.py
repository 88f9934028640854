"""CSV files of other dialects: read as declared, or refused before anything is spent, with the option to give."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from dpsynth_platform.contracts.columns import CategoricalColumn
from dpsynth_platform.foundation.errors import ContractError, DpsynthError, SourceError
from dpsynth_platform.one_table import Options, run, synthesize
from dpsynth_platform.one_table.assumed import assumed_columns
from dpsynth_platform.one_table.rows import bounded_rows
from dpsynth_platform.one_table.task import task_of
from dpsynth_platform.scrub.owners import LEAST_OWNERS
from dpsynth_platform.secrets.vault import Vault
from dpsynth_platform.sources import dialect
from dpsynth_platform.sources.dialect import Dialect
from dpsynth_platform.sources.table_files import open_source

MARK = "Quillmarker"
SCHEMA = {
    "city": {"type": "categorical", "values": ["Aix", "Bern", "Köln"]},
    "size": {"type": "float", "min": 0, "max": 10},
    "grade": {"type": "categorical", "values": [1, 2, 3, 4], "nullable": True},
    "ok": {"type": "categorical", "values": ["yes", "no"]},
}
ROWS = [("Aix", "1.5", "4.0", "yes"), ("Bern", "2.5", "", "no"), ("Köln", "3", "1.0", "yes")] * 20
PLAIN = [
    {"city": "Aix", "size": 1.5, "grade": "4", "ok": "yes"},
    {"city": "Bern", "size": 2.5, "grade": None, "ok": "no"},
]


@pytest.fixture(autouse=True)
def nothing_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    """No test of this file may come to the ledger's start."""
    monkeypatch.setattr(run.Budget, "start", lambda *_: pytest.fail("something was paid for"))


def written(path: Path, between: str = ",", quote: str = "", decimal: str = ".", encoding: str = "utf-8") -> Path:
    rows = [
        tuple(SCHEMA),
        *((city, size.replace(".", decimal), grade.replace(".", decimal), ok) for city, size, grade, ok in ROWS),
    ]
    lines = [between.join(f"{quote}{text}{quote}" for text in row) for row in rows]
    path.write_bytes(("\n".join(lines) + "\n").encode(encoding))
    return path


def options(directory: Path, columns: Any = None, **others: Any) -> Options:
    (directory / "schema.yaml").write_text(yaml.safe_dump({"columns": SCHEMA if columns is None else columns}))
    return Options(
        **{"epsilon": 1, "delta": 1e-5, "method": "independent", "schema": directory / "schema.yaml"} | others
    )


def prepared(directory: Path, asked: Options, table: str = "t.csv") -> list[dict[str, Any]]:
    """The first two rows as a mechanism would read them."""
    task = task_of(directory / table, asked)
    work = Path(tempfile.mkdtemp(dir=directory))
    place, _ = bounded_rows(task, Vault(work / "keys"), work, lambda *_: None)
    from dpsynth_platform.foundation.storage import read_table

    found = pa.Table.from_batches(read_table(place, columns=list(task.contract.modelled))).to_pylist()
    return [next(row for row in found if row["city"] == name) for name in ("Aix", "Bern")]


@pytest.mark.parametrize(
    ("layout", "given"),
    [
        ({}, {}),
        ({"between": ";", "decimal": ","}, {"csv_separator": ";", "csv_decimal": ","}),
        ({"between": "\t"}, {"csv_separator": "tab"}),
        ({"between": "\t"}, {"csv_separator": "\\t"}),
        ({"between": "|", "quote": "'"}, {"csv_separator": "|", "csv_quote": "'"}),
        ({"between": ", "}, {"csv_skip_blanks": True}),
        ({"between": ", ", "quote": '"'}, {"csv_skip_blanks": True}),
        ({"encoding": "cp1252"}, {"csv_encoding": "cp1252"}),
        ({"encoding": "utf-16"}, {"csv_encoding": "utf-16"}),
        ({"encoding": "utf-8-sig"}, {}),
        ({"quote": '"', "decimal": ","}, {"csv_decimal": ","}),
    ],
)
def test_a_declared_dialect_is_read(tmp_path: Path, layout: dict[str, str], given: dict[str, Any]) -> None:
    written(tmp_path / "t.csv", **layout)
    assert prepared(tmp_path, options(tmp_path, **given)) == PLAIN


@pytest.mark.parametrize(
    ("layout", "given", "words"),
    [
        ({"between": ";"}, {}, "its first line holds ';', but the separator is ','; accepted: --csv-separator ';'"),
        ({"between": "\t"}, {}, "accepted: --csv-separator tab"),
        ({"between": "|"}, {}, "accepted: --csv-separator '|'"),
        ({"between": ","}, {"csv_separator": ";"}, "its first line holds ',', but the separator is ';'"),
        ({"between": ", "}, {}, "names in its first line have blanks around them; accepted: --csv-skip-blanks"),
        ({"between": ", "}, {"csv_skip_blanks": False}, "there is no column 'grade', 'ok', 'size'"),
        ({"quote": "'"}, {}, "names in its first line have single quotes; accepted: --csv-quote"),
        ({"quote": '"', "decimal": ","}, {}, "column 'size' is declared to hold double, and some of its values"),
        ({}, {"csv_decimal": ","}, "column 'size' is declared to hold double, and some of its values"),
        ({"encoding": "cp1252"}, {}, "column 'city' holds text that is not UTF-8; accepted: --csv-encoding"),
        ({"encoding": "utf-16"}, {}, "its first line is not in utf-8; accepted: --csv-encoding"),
        ({"encoding": "utf-16-le"}, {}, "its first line holds NUL characters; accepted: --csv-encoding"),
        ({"encoding": "cp1252"}, {"csv_encoding": "utf-16"}, "accepted: --csv-encoding"),
        ({"between": ";"}, {"learn_values": True, "schema": None}, "accepted: --csv-separator ';'"),
        ({"between": ";"}, {"assume_public_domain": True, "schema": None}, "accepted: --csv-separator ';'"),
    ],
)
def test_another_dialect_is_refused_with_the_option_to_give(
    tmp_path: Path, layout: dict[str, str], given: dict[str, Any], words: str
) -> None:
    table = written(tmp_path / "t.csv", **layout)
    with pytest.raises(DpsynthError) as caught:
        synthesize(table, tmp_path / "out", options(tmp_path, **given))
    assert words in str(caught.value)
    assert "unexpected" not in str(caught.value)


@pytest.mark.parametrize("text", [" yes", "'yes'", ' "yes"'])
@pytest.mark.parametrize("given", [{}, {"csv_skip_blanks": False}], ids=str)
def test_what_is_listed_but_for_blanks_or_quotes_is_refused(tmp_path: Path, text: str, given: dict[str, Any]) -> None:
    table = written(tmp_path / "t.csv")
    table.write_text(table.read_text() + f"Aix,1,1,{text}\n" * (LEAST_OWNERS - 1))
    assert prepared(tmp_path, options(tmp_path, **given)) == PLAIN
    table.write_text(table.read_text() + f"Aix,1,1,{text}\n")
    with pytest.raises(DpsynthError) as caught:
        synthesize(table, tmp_path / "out", options(tmp_path, **given))
    assert "columns.ok.values: some of the column's values match except for spaces or quotes" in str(caught.value)
    assert "--csv-skip-blanks or --csv-quote" in str(caught.value)
    columns = SCHEMA | {"ok": {"type": "categorical", "values": ["yes", "no", text]}}
    assert prepared(tmp_path, options(tmp_path, columns, **given)) == PLAIN
    if "'" not in text:
        assert prepared(tmp_path, options(tmp_path, csv_skip_blanks=True)) == PLAIN


def test_a_single_row_with_blanks_stops_no_run(tmp_path: Path) -> None:
    table = written(tmp_path / "t.csv")
    table.write_text(table.read_text() + "Aix,1,1, yes\n")
    assert prepared(tmp_path, options(tmp_path)) == PLAIN


def test_a_column_of_other_values_is_refused(tmp_path: Path) -> None:
    table = written(tmp_path / "t.csv")
    columns = SCHEMA | {"ok": {"type": "categorical", "values": ["Yes", "No"]}}
    with pytest.raises(
        DpsynthError, match=r"columns\.ok\.values: none, or hardly any, of the column's values is listed"
    ):
        synthesize(table, tmp_path / "out", options(tmp_path, columns))


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"csv_separator": ";;"}, "--csv-separator ';;'; accepted: one character"),
        ({"csv_separator": '"'}, "accepted: one character other than the quote"),
        ({"csv_separator": "é"}, "--csv-separator 'é'"),
        ({"csv_separator": ""}, "--csv-separator ''"),
        ({"csv_quote": "''"}, "--csv-quote"),
        ({"csv_decimal": ";"}, "--csv-decimal ';'; accepted: '.' or ','"),
        ({"csv_encoding": "none"}, "--csv-encoding 'none'; accepted"),
        ({"csv_encoding": "hex"}, "--csv-encoding 'hex'; accepted"),
        ({"csv_encoding": "a\x00"}, "--csv-encoding 'a\\x00'; accepted"),
    ],
)
def test_dialects_that_no_file_has(tmp_path: Path, given: dict[str, Any], words: str) -> None:
    with pytest.raises(ContractError) as caught:
        task_of(written(tmp_path / "t.csv"), options(tmp_path, **given))
    assert words in str(caught.value)


def test_a_dialect_is_for_csv_files(tables: Path) -> None:
    with pytest.raises(ContractError, match=r"people.parquet is no CSV file \(.csv, .tsv\)"):
        open_source(tables / "people.parquet", {}, Dialect(separator=";"))


def test_another_dialect_is_another_run_and_the_usual_one_is_the_run_that_it_was(tmp_path: Path) -> None:
    table = written(tmp_path / "t.csv")
    usual, said, other = (
        task_of(table, options(tmp_path, **given)).keys(b"k" * 32)
        for given in (
            {},
            {"csv_separator": ",", "csv_skip_blanks": False, "csv_header": True},
            {"csv_encoding": "latin-1"},
        )
    )
    assert usual == said != other
    assert Dialect().declared == {}


@pytest.mark.parametrize(
    "first",
    [
        f"{MARK},1980-05-01,blue",
        f"{MARK},12:30,blue",
        f"{MARK},34%,blue",
        f'{MARK},"1,5",blue',
        f"{MARK},true,blue",
        f"{MARK},someone@example.org,blue",
        f"Maria {MARK},Aix,blue",
        f"{MARK},123e4567-e89b-12d3-a456-426614174000,blue",
        f"{MARK},,blue",
        f"{MARK},{MARK},blue",
        f"{MARK},Aix,blue",  # a city that comes again
        f"{MARK},tulip,blue",  # words that no row repeats
    ],
)
@pytest.mark.parametrize(
    "given",
    [
        {"schema": None},
        {},
        {"schema": None, "owners": "person", "contributions": 1},
        {"schema": None, "learn_values": True},
        {"schema": None, "assume_public_domain": True},
    ],
    ids=str,
)
def test_a_first_line_that_is_no_header_is_not_shown(tmp_path: Path, first: str, given: dict[str, Any]) -> None:
    table = tmp_path / "t.csv"
    table.write_text("\n".join([first, *(f"Somebody {row},Aix,c{row}" for row in range(30))]) + "\n")
    with pytest.raises(DpsynthError) as caught:
        synthesize(table, tmp_path / "out", options(tmp_path, **given))
    said = str(caught.value)
    assert "first line" in said and "unexpected" not in said
    for value in (MARK, "Aix", "blue", "1980", "12:30", "34%", "1,5", "example.org", "123e"):
        assert value not in said


def test_a_file_may_be_named_by_its_tabs(tmp_path: Path) -> None:
    """They are declared all the same, as every separator but a comma is."""
    (tmp_path / "t.tsv").write_text("a\tb\n1\tx\n")
    with pytest.raises(SourceError, match="accepted: --csv-separator tab, or names of columns without it"):
        open_source(tmp_path / "t.tsv", {}, Dialect(header=True))
    found = open_source(tmp_path / "t.tsv", {}, Dialect(separator="tab", header=True))
    assert pa.Table.from_batches(found.batches()).to_pylist() == [{"a": "1", "b": "x"}]


def test_digits_after_a_zero_are_no_number(tmp_path: Path) -> None:
    """But a code, such as of a postal district, where domains are read off the data."""
    lines = [",zip,number,hour", *(f"{row},0{row % 2}138,{row % 2},-{row % 2}" for row in range(40))]
    (tmp_path / "t.csv").write_text("\n".join(lines) + "\n")
    source = open_source(tmp_path / "t.csv", {}, Dialect(header=True))
    found = assumed_columns(source, source.schema.names)
    assert [column.type for column in found.values()] == ["integer", "categorical", "integer", "integer"]
    assert isinstance(found["zip"], CategoricalColumn) and found["zip"].values == ["00138", "01138"]


CONSTRAINT = {"constraints": [{"forbid": {"city": "Aix", "2019": "1"}}]}


@pytest.mark.parametrize(
    "given",
    [
        {"csv_header": True},
        {"target": "city", "method": "aim"},
        {"owners": "city", "contributions": 1},
        {"constraints": CONSTRAINT},
    ],
    ids=str,
)
def test_somebodys_word_makes_a_first_line_a_header(tmp_path: Path, given: dict[str, Any]) -> None:
    table = tmp_path / "t.csv"
    table.write_text("city,2019,Grace Period\nAix,1,2\n")
    with pytest.raises(
        DpsynthError, match=r"may be no header, since nothing declares it \(it is not shown\); accepted: --csv-"
    ):
        task_of(table, options(tmp_path, schema=None))
    if "constraints" in given:
        (tmp_path / "rules.yaml").write_text(yaml.safe_dump(given["constraints"]))
        given = {"constraints": tmp_path / "rules.yaml"}
    with pytest.raises(ContractError, match=r"nothing is declared of: (city, )?2019, Grace Period"):
        task_of(table, options(tmp_path, schema=None, **given))
    columns = {"city": SCHEMA["city"]}
    with pytest.raises(ContractError, match="nothing is declared of: 2019, Grace Period"):
        task_of(table, options(tmp_path, columns))
    columns = {"town": SCHEMA["city"]}
    with pytest.raises(DpsynthError, match="it has none of the declared or given names"):
        task_of(table, options(tmp_path, columns))
    with pytest.raises(DpsynthError, match=r"there is no column 'town'; accepted: city, 2019, Grace Period"):
        task_of(table, options(tmp_path, columns, csv_header=True))


@pytest.mark.parametrize(
    ("first", "words"), [("a,,", "columns 2 and 3 of its first line"), ("a,b,a", "columns 1 and 3 of its first line")]
)
def test_no_word_makes_up_for_names(tmp_path: Path, first: str, words: str) -> None:
    (tmp_path / "t.csv").write_text(f"{first}\n1,2,3\n")
    with pytest.raises(DpsynthError, match=words):
        task_of(tmp_path / "t.csv", options(tmp_path, schema=None, csv_header=True))


def test_the_column_without_a_name_that_pandas_and_r_write_is_left_out(tmp_path: Path) -> None:
    rows = "\n".join(",".join((str(number), *row)) for number, row in enumerate(ROWS))
    (tmp_path / "t.csv").write_text(f",{','.join(SCHEMA)}\n{rows}\n")
    assert prepared(tmp_path, options(tmp_path, SCHEMA | {"": {"ignore": True}})) == PLAIN


@pytest.mark.parametrize(
    "rows",
    [
        {1: 'Aix,1,1,"yes'},
        {1: 'Aix,1,1,"yes', 40: 'Aix,1,1,"no'},
        {1: 'Aix,1,1,"yes', 40: '"Aix",1,1,no'},
        {30: r'"say \"Aix\"",1,1,yes'},
    ],
)
def test_quotes_that_swallow_rows_are_refused(tmp_path: Path, rows: dict[int, str]) -> None:
    table = written(tmp_path / "t.csv")
    lines = table.read_text().splitlines()
    table.write_text("\n".join(rows.get(number, line) for number, line in enumerate(lines)) + "\n")
    with pytest.raises(DpsynthError, match=r"a quote .* is not closed, or is closed inside a field") as caught:
        synthesize(table, tmp_path / "out", options(tmp_path))
    assert "Aix" not in str(caught.value)
    assert caught.value.__context__ is None


@given(st.binary() | st.text('",\n\ra', max_size=14).map(str.encode), st.integers(1, 20))
def test_a_file_whose_quotes_fit_by_their_neighbours_is_read_whole(content: bytes, block: int) -> None:
    with tempfile.TemporaryDirectory() as directory, pytest.MonkeyPatch.context() as patch:
        patch.setattr(dialect, "_QUOTES_BLOCK", block)
        path = Path(directory) / "t.csv"
        path.write_bytes(content)
        fit = Dialect()._quotes_fit(path)
        patch.setattr(Dialect, "_quotes_fit", lambda self, path: False)
        try:
            Dialect().check_quotes(path)
        except SourceError:
            assert not fit


def test_quotes_around_whole_fields_are_found_to_fit(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_bytes(b'\xef\xbb\xbf"a","b"\n"x ""y""","two\nlines"\r\n"",""""')
    assert Dialect()._quotes_fit(path)
    path.write_bytes(b'a,b\nx"y,z\n')
    assert not Dialect()._quotes_fit(path)
    Dialect().check_quotes(path)


def test_quotes_around_line_breaks_and_inside_of_values_are_read(tmp_path: Path) -> None:
    table = written(tmp_path / "t.csv")
    table.write_text(table.read_text() + '"Aix\n,1,1,yes\n""",1,1,yes\nA"ix,1,1,"no"\n')
    assert prepared(tmp_path, options(tmp_path)) == PLAIN
