"""`dpsynth synth table`, as people and programs call it."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from typer.testing import CliRunner

from dpsynth_platform.cli.main import app
from dpsynth_platform.ledger.store import Ledger
from dpsynth_platform.synth.tabular.mst import Mst

SECRET = "Zaphodina Quillmarker"
ASKED = ("people.parquet", "--out", "out", "--epsilon", "2", "--delta", "1e-5", "--schema", "people.yaml")
MST = ("--method", "mst")
Use = Callable[..., tuple[int, str]]


@pytest.fixture
def use(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Use:
    """Runs the command inside the directory of the table; returns status and all output."""
    age = np.random.default_rng(3).integers(0, 10, 800)
    table = pa.table({"age": age, "old": np.where(age > 5, "yes", "no"), "name": [SECRET] * 800})
    pq.write_table(table, tmp_path / "people.parquet")
    (tmp_path / "people.yaml").write_text(
        "columns:\n  age: {type: integer, min: 0, max: 9}\n  old: {type: categorical, values: ['no', 'yes']}\n"
        "  name: {type: text}\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DPSYNTH_HOME", str(tmp_path / "home"))

    def call(*arguments: str, command: str = "table") -> tuple[int, str]:
        result = CliRunner().invoke(app, ["synth", command, *arguments])
        return result.exit_code, result.output + "".join(capfd.readouterr())

    return call


def test_a_csv_file_of_another_dialect(use: Use, tmp_path: Path) -> None:
    lines = ["age;old;size", *(f"{row % 10};{'yes' if row % 2 else 'no'};{row % 7},5" for row in range(400))]
    (tmp_path / "people.csv").write_text("\n".join(lines) + "\n")
    (tmp_path / "people.yaml").write_text(
        "columns:\n  age: {type: integer, min: 0, max: 9}\n  old: {type: categorical, values: ['no', 'yes']}\n"
        "  size: {type: float, min: 0, max: 10}\n"
    )
    asked = ("people.csv", *ASKED[1:], "--method", "independent")
    status, text = use(*asked)
    assert status == 1 and "accepted: --csv-separator ';'" in " ".join(text.split())
    assert not (tmp_path / "out" / "restricted" / "models").exists()
    status, text = use(*asked, "--csv-separator", ";", "--csv-decimal", ",")
    assert status == 0, text
    assert (
        "CSV in utf-8 with ';' between fields, quoted by \", decimal mark ','"
        in (tmp_path / "out/statement.md").read_text()
    )
    assert max(pq.read_table(tmp_path / "out/synthetic.parquet")["size"].to_pylist()) > 1
    status, text = use(*ASKED, "--csv-separator", ";")
    assert status == 1 and "is no CSV file (.csv, .tsv)" in " ".join(text.split())


def test_what_a_public_table_lacks_is_printed(use: Use, tmp_path: Path) -> None:
    known = pa.table({"age": [*range(10), None], "old": [*["no", "yes"] * 5, "maybe"]})
    pq.write_table(known, tmp_path / "known.parquet")
    status, text = use(
        *ASKED, "--method", "jam", "--public", "known.parquet", "--public-why", "it is made up for a test"
    )
    assert status == 0, text
    said = "The public table that helped: 11 rows with age, old; missing or unlisted values: age 1, old 1."
    assert said in " ".join(text.split())


_NAMES = 'xmlns="http://schemas.openxmlformats.org/spreadsheetml/2006/main"'
_LINKS = "http://schemas.openxmlformats.org/officeDocument/2006/relationships"
_PACKAGE = "http://schemas.openxmlformats.org/package/2006"


def workbook(path: Path, rows: list[list[str | int]]) -> None:
    """A workbook with an empty first sheet and the rows in a second one."""

    def cell(value: str | int) -> str:
        return f"<c><v>{value}</v></c>" if isinstance(value, int) else f'<c t="inlineStr"><is><t>{value}</t></is></c>'

    lines = "".join(f"<row>{''.join(map(cell, row))}</row>" for row in rows)
    kinds = f"{_PACKAGE}/content-types"
    part = "application/vnd.openxmlformats-officedocument.spreadsheetml"
    with zipfile.ZipFile(path, "w") as file:
        file.writestr(
            "[Content_Types].xml",
            f'<Types xmlns="{kinds}"><Default Extension="rels" ContentType="application/vnd.openxmlformats-package.'
            f'relationships+xml"/><Default Extension="xml" ContentType="{part}.worksheet+xml"/><Override PartName='
            f'"/xl/workbook.xml" ContentType="{part}.sheet.main+xml"/></Types>',
        )
        links = f'<Relationships xmlns="{_PACKAGE}/relationships">'
        file.writestr(
            "_rels/.rels",
            f'{links}<Relationship Id="r" Type="{_LINKS}/officeDocument" Target="xl/workbook.xml"/></Relationships>',
        )
        file.writestr(
            "xl/workbook.xml",
            f'<workbook {_NAMES} xmlns:r="{_LINKS}"><sheets><sheet name="Notes" sheetId="1" r:id="a"/>'
            '<sheet name="People" sheetId="2" r:id="b"/></sheets></workbook>',
        )
        targets = "".join(
            f'<Relationship Id="{id_}" Type="{_LINKS}/worksheet" Target="worksheets/{id_}.xml"/>' for id_ in "ab"
        )
        file.writestr("xl/_rels/workbook.xml.rels", f"{links}{targets}</Relationships>")
        file.writestr("xl/worksheets/a.xml", f"<worksheet {_NAMES}><sheetData/></worksheet>")
        file.writestr("xl/worksheets/b.xml", f"<worksheet {_NAMES}><sheetData>{lines}</sheetData></worksheet>")


def test_a_sheet_of_a_workbook(use: Use, tmp_path: Path) -> None:
    pytest.importorskip("python_calamine")
    rows: list[list[str | int]] = [
        ["age", "old", "name"],
        *([row % 10, "yes" if row % 2 else "no", SECRET] for row in range(400)),
    ]
    workbook(tmp_path / "people.xlsx", rows)
    asked = ("people.xlsx", *ASKED[1:], "--method", "independent")
    status, text = use(*asked)
    assert status == 1 and "people.xlsx: the file is empty" in " ".join(text.split())
    status, text = use(*asked, "--sheet", "Persons")
    assert status == 1 and "it has no sheet 'Persons'" in " ".join(text.split())
    status, text = use(*asked, "--sheet", "People")
    assert status == 0 and SECRET not in text, text
    made = pq.read_table(tmp_path / "out/synthetic.parquet")
    assert pa.types.is_integer(made.schema.field("age").type) and made["age"].null_count == 0
    status, text = use(*asked, "--sheet", "People")
    assert status == 0 and "nothing new was spent" in text
    status, text = use(*ASKED, "--sheet", "People")
    assert status == 1 and "is no workbook (.xlsx)" in " ".join(text.split())


def test_refusals_of_a_workbook_name_the_workbook(use: Use, tmp_path: Path) -> None:
    """And not the temporary file of its sheet."""
    pytest.importorskip("python_calamine")
    asked = ("wards.xlsx", "--out", "out", "--epsilon", "1", "--delta", "1e-6", "--sheet", "People", "--csv-header")
    for header, why in ((["age", "ward\nname"], "its header is more than one line"), (["a", "a"], "the same name")):
        workbook(tmp_path / "wards.xlsx", [header, [1, 2]])
        status, text = use(*asked)
        assert status == 1 and why in " ".join(text.split()) and ".csv" not in text, text
    workbook(tmp_path / "wards.xlsx", [["age", "ward"], [1, 2]])
    status, text = use(*asked)
    assert status == 1 and "wards.xlsx: nothing is declared of: age, ward" in " ".join(text.split()), text
    assert "wards.csv" not in text


def test_a_workbook_without_its_reader(use: Use, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "people.xlsx").write_bytes(b"PK")
    monkeypatch.setitem(sys.modules, "python_calamine", None)
    status, text = use("people.xlsx", *ASKED[1:])
    assert status == 1 and "accepted: pip install python-calamine==" in " ".join(text.split())


def test_for_people(use: Use, tmp_path: Path) -> None:
    status, text = use(*ASKED)
    assert status == 0, text
    for words in (
        "out/synthetic.parquet",
        "1e-05)-DP for one example (add-or-remove, at most 1 record); method aim",
        "paid now; the ledger in out/restricted/ledger counts only what is spent through it",
        "Missing values of age, old are not kept as such: not declared as nullable.",
        "Not covered by the guarantee:",
        "out/statement.md",
    ):
        assert words in text
    assert SECRET not in text
    status, text = use(*ASKED, "--rows", "7")
    assert status == 0
    assert "was paid before: nothing new was spent" in text
    assert "7 rows: out/synthetic.parquet" in text
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "people.parquet", "people.yaml"]


def test_json_for_programs(use: Use) -> None:
    status, text = use(*ASKED, *MST, "--json", "--format", "csv", "--rows", "9")
    assert status == 0, text
    found = json.loads(text)
    assert found["rows"] == 9
    assert found["synthetic"] == "out/synthetic.csv"
    assert found["guarantee"]["epsilon"] <= 2.0
    assert found["spent"] is True
    assert len(Path(found["synthetic"]).read_text().splitlines()) == 10
    assert json.loads(Path("out/statement.json").read_text())["ledger_entry"] == found["entry_id"]


def test_further_rows_cost_nothing(use: Use, tmp_path: Path) -> None:
    assert use(*ASKED, *MST)[0] == 0
    (tmp_path / "rules.yaml").write_text(
        "constraints: [{column: age, determines: old}, {forbid: {age: {max: 5}, old: 'yes'}}]"
    )
    asked = ("--rows", "40", "--constraints", "rules.yaml", "--given", "age=4..6", "--to", "some.csv")
    status, text = use("out", *asked, "--json", command="rows")
    assert status == 0, text
    assert json.loads(text)["spent"] is False
    lines = [line.split(",") for line in (tmp_path / "some.csv").read_text().splitlines()[1:]]
    assert len(lines) == 40
    assert {(int(age), old.strip('"')) for age, old, _ in lines} == {(4, "no"), (5, "no"), (6, "yes")}
    status, text = use("out", *asked, command="rows")
    assert status == 0
    assert "had paid: nothing new was spent" in text
    assert "some.statement.md" in text
    status, text = use("nowhere", "--rows", "5", command="rows")
    assert status == 1
    assert "no model of an earlier run is here" in text
    assert not (tmp_path / "nowhere").exists()


def test_beyond_the_budget_the_status_is_3(use: Use) -> None:
    assert use(*ASKED, *MST)[0] == 0
    status, text = use(*ASKED, *MST, "--epsilon", "1.9")
    assert status == 3
    assert "Nothing was spent" in text
    status, text = use(*ASKED, *MST, "--epsilon", "1.9", "--json")
    assert status == 3
    assert json.loads(text)["error"]["code"] == "budget"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--contributions", "2"), "--owners and --contributions go together"),
        (("--schema", "nowhere.yaml"), "nowhere.yaml: no such file"),
        (("--owners", "nobody", "--contributions", "1"), "there is no column 'nobody'"),
        (
            ("--owners", "age", "--owners", "old", "--contributions", "1"),
            "--owners 'age' --owners 'old'; accepted: one",
        ),
        (("--epsilon", "20"), "--accept-weak-guarantee"),
    ],
)
def test_what_is_wrong_is_said_without_a_value(use: Use, arguments: tuple[str, ...], words: str) -> None:
    status, text = use(*ASKED, *arguments)
    assert status == 1
    assert words in text
    assert SECRET not in text
    assert "Traceback" not in text


def test_without_a_schema_the_refusal_is_a_template(use: Use) -> None:
    status, text = use("people.parquet", "--out", "out", "--epsilon", "2", "--delta", "1e-5")
    assert status == 1
    assert "age: {type: integer, min: , max: }" in text
    status, text = use("people.parquet", "--out", "out", "--epsilon", "2", "--delta", "1e-5", "--assume-public-domain")
    assert status == 0
    assert "The domains (least and largest value, lists of values, whether values miss) of age, old, name" in text
    assert SECRET not in text


def test_the_draft_of_a_schema_can_be_kept_as_it_is(
    use: Use, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "people.csv").write_text("age,old\n1,yes\n")
    asked = ("--out", "out", "--epsilon", "2", "--delta", "1e-5")
    status, text = use("people.csv", *asked)
    assert status == 1 and "accepted: --csv-header" in " ".join(text.split()) and "age" not in text
    for file, header in (("people.parquet", ()), ("people.csv", ("--csv-header",))):
        words = CliRunner().invoke(app, ["synth", "table", file, *asked, *header]).stderr
        draft = capfd.readouterr().out
        assert set(yaml.safe_load(draft)["columns"]) >= {"age", "old"}
        assert draft.count("float, min: , max: ") == file.endswith(".csv")
        assert words.startswith(f"{file}: nothing is declared of: age")
    status, text = use("people.csv", *asked, "--csv-header", "--json")
    error = json.loads(text)["error"]
    assert (status, error["code"]) == (1, "contract")
    assert "nothing is declared of: age, old" in error["message"]
    assert set(yaml.safe_load(error["draft"])["columns"]) == {"age", "old"}


def test_text_may_be_learned_instead_of_listed(use: Use) -> None:
    status, text = use("people.parquet", "--out", "out", "--epsilon", "2", "--delta", "1e-5", "--learn-values")
    assert status == 1
    assert "nothing is declared of: age (int64)." in text
    Path("ages.yaml").write_text("columns: {age: {type: integer, min: 0, max: 99}}")
    more = ("--delta", "1e-5", "--learn-values", "--schema", "ages.yaml")
    status, text = use("people.parquet", "--out", "out", "--epsilon", "2", *more)
    assert status == 0, text
    assert "The values of old, name, each shown if its count" in Path("out/statement.md").read_text()
    assert SECRET not in text


def test_what_libraries_print_stays_off_the_terminal(use: Use, monkeypatch: pytest.MonkeyPatch) -> None:
    def noisy(*_):
        os.write(1, SECRET.encode())
        raise ValueError(SECRET)

    monkeypatch.setattr(Mst, "measure", noisy)
    status, text = use(*ASKED, *MST)
    assert status == 1
    assert "unexpected error: ValueError" in text
    assert SECRET not in text


_FORKING = """
import json, os, signal, sys, traceback
import deltalake, duckdb, torch, yaml
import dpsynth_platform.one_table.run, dpsynth_platform.synth.tabular.mst, dpsynth_platform.synth.tabular.estimation
from dpsynth_platform.cli.main import main

for line in sys.stdin:
    asked = json.loads(line)
    terminal = os.open(asked["terminal"], os.O_RDWR | os.O_NOCTTY)
    child = os.fork()
    if child == 0:
        try:
            os.setsid()
            for number in range(3):
                os.dup2(terminal, number)
            os.close(terminal)
            os.chdir(asked["directory"])
            os.environ.clear()
            os.environ.update(asked["environment"])
            # Where tests run in the background, the signal is ignored, and processes inherit that.
            signal.signal(signal.SIGINT, signal.default_int_handler)
            sys.argv = ["-c", *asked["arguments"]]
            exec(compile(asked["script"], "<run>", "exec"), {"__name__": "__main__"})
            status = 0
        except SystemExit as ended:
            status = ended.code or 0
        except BaseException:
            traceback.print_exc()
            status = 99
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)
    os.close(terminal)
    print(child, flush=True)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


@pytest.fixture(scope="module")
def forking() -> Iterator[subprocess.Popen[str]]:
    """A process that has imported what a run needs, and run nothing; each run on a terminal is a fork of it."""
    process = subprocess.Popen(
        [sys.executable, "-c", _FORKING], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    yield process
    process.communicate(timeout=60)


_SLEEPS = """
import time
from {module} import {owner}

def endless(*arguments, **others):
    for tell in (item for item in arguments if callable(item)):
        {tell}
    for _ in range(6000):
        time.sleep(0.1)  # a signal that comes just before a sleep is handled after it only

setattr({owner}, {name!r}, endless)
from dpsynth_platform.cli.main import main
main()
"""
_COUNTING = {
    "module": "dpsynth_platform.synth.tabular.counting",
    "owner": "Records",
    "name": "_blocks",
    "tell": "pass",
}
_ESTIMATING = {
    "module": "dpsynth_platform.synth.tabular.estimation",
    "owner": "Estimator",
    "name": "fit",
    "tell": "tell('estimating', 1, 100)",
}
_DRAWING = {
    "module": "dpsynth_platform.synth.tabular",
    "owner": "sampling",
    "name": "systematic",
    "tell": "pass",
}


@pytest.mark.parametrize(
    ("sleeping", "stage", "said", "state", "status"),
    [
        (_COUNTING, b"counting pairs", b"its cost stays spent", "started", 1),
        (_ESTIMATING, b"estimating", b"at no further cost", "started", 0),
        (_DRAWING, b"drawing rows", b"at no further cost", "spent", 0),
    ],
    ids=["counting", "estimating", "drawing"],
)
def test_ctrl_c_on_a_terminal(
    use: Use,
    forking: subprocess.Popen[str],
    tmp_path: Path,
    sleeping: dict[str, str],
    stage: bytes,
    said: bytes,
    state: str,
    status: int,
) -> None:
    """A real process on a real terminal: its stages are shown, what it started stays spent, no row stays behind.

    What was measured in full is not paid for again.
    """
    script = _SLEEPS.format(**sleeping)
    leader, terminal = pty.openpty()
    asked = {
        "script": script,
        "arguments": ["synth", "table", *ASKED, *MST],
        "directory": str(tmp_path),
        "environment": dict(os.environ),
        "terminal": os.ttyname(terminal),
    }
    assert forking.stdin is not None and forking.stdout is not None
    print(json.dumps(asked), file=forking.stdin, flush=True)
    process = int(forking.stdout.readline())
    os.close(terminal)
    shown = b""
    deadline = time.monotonic() + 300
    while stage not in shown and time.monotonic() < deadline:
        shown += os.read(leader, 4096)
    os.kill(process, signal.SIGINT)
    try:
        while part := os.read(leader, 4096):
            shown += part
    except OSError:
        pass  # the terminal's other end is closed
    assert int(forking.stdout.readline()) == 130, shown
    assert b"measuring columns" in shown
    text = b" ".join(shown.split())
    assert b"Interrupted." in text and said in text
    assert b"Traceback" not in shown
    restricted = tmp_path / "out" / "restricted"
    assert not list(restricted.glob("work-*"))
    ledger = Ledger(f"sqlite:///{restricted / 'ledger' / 'ledger.db'}")
    assert [entry.state for entry in ledger.entries()] == [state]
    found, words = use(*ASKED, *MST)
    assert found == status
    assert ("--spend-again" if status else "nothing new was spent") in words
    assert len(ledger.entries()) == 1


def test_a_target_that_auto_makes_nothing_of_is_said(use: Use) -> None:
    """So small an epsilon leaves no link above the noise, and no target has links of its own."""
    few = [*(argument if argument != "2" else "0.02" for argument in ASKED), "--expected-units", "1000"]
    status, text = use(*few, "--target", "old")
    assert status == 0, text
    assert "method independent" in text
    assert "--target old had no effect on method independent" in text
    status, text = use(*few, "--target", "old", "--method", "independent", "--out", "other")
    assert status == 1
    assert "--target 'old' is for --method auto, aim, jam" in text
