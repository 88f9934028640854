"""`dpsynth synth table`, as people and programs call it."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
import time
from collections.abc import Callable
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
    assert status == 1 and "is no CSV file (.csv)" in " ".join(text.split())


def test_for_people(use: Use, tmp_path: Path) -> None:
    status, text = use(*ASKED)
    assert status == 0, text
    for words in (
        "out/synthetic.parquet",
        "1e-05)-DP for one example (add-or-remove, at most 1 record); method aim",
        "paid now; the ledger in out/restricted/ledger knows only what is spent through it",
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
        (_COUNTING, b"counting pairs", b"what it costs stays spent", "started", 1),
        (_ESTIMATING, b"estimating", b"at no further cost", "started", 0),
        (_DRAWING, b"drawing rows", b"at no further cost", "spent", 0),
    ],
    ids=["counting", "estimating", "drawing"],
)
def test_ctrl_c_on_a_terminal(
    use: Use, tmp_path: Path, sleeping: dict[str, str], stage: bytes, said: bytes, state: str, status: int
) -> None:
    """A real process on a real terminal: its stages are shown, what it started stays spent, no row stays behind.

    What was measured in full is not paid for again.
    """
    script = _SLEEPS.format(**sleeping)
    leader, terminal = pty.openpty()
    arguments = [sys.executable, "-c", script, "synth", "table", *ASKED, *MST]
    process = subprocess.Popen(
        arguments,
        stdin=terminal,
        stdout=terminal,
        stderr=terminal,
        start_new_session=True,
        # Where tests run in the background, the signal is ignored, and processes inherit that.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    os.close(terminal)
    shown = b""
    deadline = time.monotonic() + 60
    while stage not in shown and time.monotonic() < deadline:
        shown += os.read(leader, 4096)
    process.send_signal(signal.SIGINT)
    try:
        while part := os.read(leader, 4096):
            shown += part
    except OSError:
        pass  # the terminal's other end is closed
    assert process.wait(timeout=30) == 130, shown
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


def test_a_topic_model_of_one_s_own_phrases(use: Use, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dpsynth_platform.synth.text.topic_building.TOPIC_LEVELS", (2,))
    (tmp_path / "few.txt").write_text("car\nboat\n\ncar\n")
    status, text = use("topics.safetensors", "--phrases", "few.txt", command="topics")
    assert status == 1 and "2 different phrases; accepted: at least 4, for 2 topics" in text
    (tmp_path / "enough.txt").write_text("car\nboat\nsong\nopera\n")
    status, text = use("topics.safetensors", "--phrases", "enough.txt", "--json", command="topics")
    assert status == 0, text
    assert json.loads(text[text.index("{") : text.index("}") + 1])["phrases"] == 4
    status, text = use("topics.safetensors", "--phrases", "enough.txt", command="topics")
    assert status == 1 and "topics.safetensors exists" in text
    status, text = use("other", "--phrases", "missing.txt", command="topics")
    assert status == 1 and "missing.txt: cannot be read (FileNotFoundError)" in text


def test_a_target_that_auto_makes_nothing_of_is_said(use: Use) -> None:
    """So small an epsilon leaves no link above the noise, and no target has links of its own."""
    few = [*(argument if argument != "2" else "0.02" for argument in ASKED), "--expected-units", "1000"]
    status, text = use(*few, "--target", "old")
    assert status == 0, text
    assert "method independent" in text
    assert "--target old has had no effect, by method independent" in text
    status, text = use(*few, "--target", "old", "--method", "independent", "--out", "other")
    assert status == 1
    assert "--target 'old' is for --method auto or aim" in text
