"""`dpsynth scrub run` and `convert`: real files, whole outputs or none, and no text in what is printed or kept."""

from __future__ import annotations

import json
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake
from typer.testing import CliRunner

from dpsynth_platform.cli.main import app
from dpsynth_platform.scrub.alone import NO_GUARANTEE, TableScrub
from dpsynth_platform.scrub.scrub import LIMITS

MARK = "Xqzmark"
TEXT = f"Dr. {MARK} called 212-736-5001 and wrote to {MARK}@corp.com"
SCRUBBED = "<PERSON> called <PHONE_NUMBER> and wrote to <EMAIL_ADDRESS>"
TABLE = pa.table({"number": [1, 2, 3], "remark": [TEXT, None, "nothing"]})
Use = Callable[..., tuple[int, str]]


@pytest.fixture
def use(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Use:
    """Runs `dpsynth scrub` in a directory; the exit's status, and all that was printed."""
    monkeypatch.setenv("DPSYNTH_HOME", str(tmp_path / "home"))
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")

    def call(*arguments: str) -> tuple[int, str]:
        result = CliRunner().invoke(app, ["scrub", *arguments])
        captured = capfd.readouterr()
        assert result.exception is None or isinstance(result.exception, SystemExit)
        shown = result.output + captured.out + captured.err
        assert MARK not in shown and "corp.com" not in shown
        return result.exit_code, shown

    return call


def names() -> list[str]:
    return sorted(path.name for path in Path().iterdir())


def private(path: Path) -> bool:
    return all(
        not stat.S_IMODE(item.stat().st_mode) & 0o077 for item in (path, *(path.rglob("*") if path.is_dir() else ()))
    )


def test_a_parquet_file_and_its_report(use: Use) -> None:
    pq.write_table(TABLE, "letters.parquet")
    status, shown = use("run", "letters.parquet", "--out", "clean.parquet", "--action", "mask")
    assert status == 0
    assert pq.read_table("clean.parquet").to_pylist() == [
        {"number": 1, "remark": SCRUBBED},
        {"number": 2, "remark": None},
        {"number": 3, "remark": "nothing"},
    ]
    assert private(Path("clean.parquet")) and names() == ["clean.parquet", "letters.parquet"]
    assert all(words in shown for words in ("PERSON fewer than 10", "3 rows: clean.parquet", LIMITS, NO_GUARANTEE))
    status, shown = use("run", "letters.parquet", "--out", "clean2.parquet", "--json")
    report = json.loads(shown)
    assert report["findings"]["remark"]["PERSON"] == "fewer than 10" and report["limits"] == LIMITS


@pytest.mark.parametrize("out", ["clean.parquet", "clean.csv", "clean"])
def test_a_delta_table_into_each_format(out: str, use: Use) -> None:
    write_deltalake("letters", TABLE)
    assert use("run", "letters", "--out", out, "--action", "mask")[0] == 0
    if out.endswith("csv"):
        assert f'1,"{SCRUBBED}"' in Path(out).read_text(encoding="utf-8")
    else:
        rows = pq.read_table(out) if out.endswith("parquet") else DeltaTable(out).to_pyarrow_table()
        assert rows.sort_by("number").to_pylist()[0] == {"number": 1, "remark": SCRUBBED}
    assert private(Path(out))
    files = [Path(out)] if Path(out).is_file() else [item for item in Path(out).rglob("*") if item.is_file()]
    assert not any(MARK.encode() in item.read_bytes() for item in files)


def test_a_csv_file_in_another_dialect_and_encoding(use: Use) -> None:
    Path("letters.csv").write_bytes(f"colour;remark\nrot;M\u00fcnchen, {MARK}@corp.com\n".encode("cp1252"))
    arguments = ("run", "letters.csv", "--out", "clean.csv", "--columns", "remark", "--action", "drop")
    status, shown = use(*arguments)
    assert status == 1 and "--csv-separator" in shown
    assert use(*arguments, "--csv-separator", ";", "--csv-encoding", "cp1252")[0] == 0
    assert Path("clean.csv").read_text(encoding="utf-8") == '"colour","remark"\n"rot",", "\n'


def test_a_text_file_by_its_paragraphs(use: Use) -> None:
    content = f"Dear Ann Lee,\r\n{MARK}@corp.com\n\n\n".encode() + b"\xff, 212-736-5001\nlast"
    Path("letter.txt").write_bytes(content)
    assert use("run", "letter.txt", "--out", "clean.txt", "--action", "mask")[0] == 0
    expected = "Dear <PERSON>,\r\n<EMAIL_ADDRESS>\n\n\n\ufffd, <PHONE_NUMBER>\nlast"
    assert Path("clean.txt").read_bytes() == expected.encode()
    Path("letter.txt").write_bytes(f"{MARK}@corp.com".encode("utf-16"))
    for arguments, said in (
        (("--out", "other.txt"), "the character NUL"),
        (("--out", "other.csv"), "a text has no columns"),
        (("--out", "other.txt", "--columns", "text"), "a text has no columns"),
    ):
        status, shown = use("run", "letter.txt", *arguments)
        assert status == 1 and said in shown
    assert names() == ["clean.txt", "letter.txt"]


def test_empty_tables_and_texts(use: Use) -> None:
    pq.write_table(TABLE.slice(0, 0), "none.parquet")
    for out in ("clean.parquet", "clean.csv", "clean"):
        assert use("run", "none.parquet", "--out", out)[0] == 0
    assert pq.read_table("clean.parquet").num_rows == DeltaTable("clean").to_pyarrow_table().num_rows == 0
    Path("none.txt").touch()
    assert use("run", "none.txt", "--out", "clean.txt")[0] == 0 and Path("clean.txt").read_bytes() == b""
    Path("none.csv").touch()
    assert "the file is empty" in use("run", "none.csv", "--out", "clean2.csv")[1]


def test_huge_texts(use: Use) -> None:
    filler = "the report is late and nothing else is new today. " * 5_000
    pq.write_table(pa.table({"remark": [f"{filler}{MARK}@corp.com {filler}"]}), "letters.parquet")
    assert use("run", "letters.parquet", "--out", "clean.parquet", "--action", "mask")[0] == 0
    (text,) = pq.read_table("clean.parquet").column("remark").to_pylist()
    assert MARK not in text and "<EMAIL_ADDRESS>" in text


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("letters.parquet", "--out", "letters.parquet"), "exists; accepted: a new name"),
        (("letters.parquet", "--out", "there"), "exists; accepted: a new name"),
        (("letters.parquet", "--out", "no/clean.parquet"), "its directory does not exist"),
        (("letters.parquet", "--out", "clean.xlsx"), "accepted: a name that ends with .parquet or .csv"),
        (("nothing.parquet", "--out", "clean.parquet"), "there is no such file"),
        (("damaged.parquet", "--out", "clean.parquet"), "the table cannot be read"),
        (("ragged.csv", "--out", "clean.csv", "--csv-header"), "fewer or more fields"),
        (("letters.parquet", "--out", "clean.parquet", "--action", "hash"), "hash without a key"),
        (("letters.parquet", "--out", "clean.parquet", "--action", "hash", "--key", "open.key"), "others can read it"),
        (("letters.parquet", "--out", "clean.parquet", "--action", "hash", "--key", "other.key"), "it is no key"),
        (("letters.parquet", "--out", "clean.parquet", "--rules", "r", "--dataset", "d"), "accepted: one of them"),
        (("table", "--out", "table/clean.parquet"), "lies in the table"),
        (("label.parquet", "--out", "clean.parquet", "--columns", "remark"), "column 'label': values look like EMAIL"),
    ],
)
def test_refusals_leave_nothing(arguments: tuple[str, ...], said: str, use: Use) -> None:
    pq.write_table(TABLE, "letters.parquet")
    write_deltalake("table", TABLE)
    Path("there").mkdir()
    Path("damaged.parquet").write_bytes(b"PAR1" + TEXT.encode() + b"PAR1")
    Path("ragged.csv").write_text(f"remark,number\n{TEXT},1,{MARK}\n", encoding="utf-8")
    for name, mode, content in (("open.key", 0o644, "0" * 64), ("other.key", 0o600, MARK)):
        Path(name).write_text(content, encoding="utf-8")
        Path(name).chmod(mode)
    pq.write_table(TABLE.append_column("label", pa.array(["a", "b", f"{MARK}@corp.com"])), "label.parquet")
    before = {item: item.read_bytes() for item in Path().rglob("*") if item.is_file()}
    status, shown = use("run", *arguments)
    assert status == 1 and said in shown.replace("\n", " ")
    assert {item: item.read_bytes() for item in Path().rglob("*") if item.is_file()} == before


def test_a_key_is_made_once_and_private(use: Use) -> None:
    pq.write_table(TABLE, "letters.parquet")
    for name in ("one", "two"):
        arguments = ("run", "letters.parquet", "--out", f"{name}.parquet", "--action", "hash", "--key", "hash.key")
        assert use(*arguments)[0] == 0
    assert pq.read_table("one.parquet") == pq.read_table("two.parquet")
    assert private(Path("hash.key")) and MARK not in str(pq.read_table("one.parquet").to_pylist())


def test_rules_of_presidio_and_what_of_them_is_left_out(use: Use) -> None:
    rules = (
        "recognizers:\n- CreditCardRecognizer\n"
        "- {name: Birds, supported_entity: PROJECT, supported_language: en, deny_list: [Blue Bird]}\n"
    )
    Path("presidio.yaml").write_text(rules, encoding="utf-8")
    pq.write_table(pa.table({"remark": ["the blue bird"]}), "letters.parquet")
    arguments = ("run", "letters.parquet", "--out", "clean.parquet", "--action", "mask", "--rules", "presidio.yaml")
    status, shown = use(*arguments)
    assert status == 0 and "CreditCardRecognizer: left out" in shown
    assert pq.read_table("clean.parquet").to_pylist() == [{"remark": "the <PROJECT>"}]
    status, shown = use("convert", "presidio.yaml")
    assert status == 0 and shown.startswith("# CreditCardRecognizer: left out")
    Path("converted.yaml").write_text(shown, encoding="utf-8")
    arguments = ("run", "letters.parquet", "--out", "clean2.parquet", "--action", "mask", "--rules", "converted.yaml")
    assert use(*arguments)[0] == 0
    assert pq.read_table("clean2.parquet") == pq.read_table("clean.parquet")
    gold = json.dumps({"text": "the blue bird", "spans": [{"start": 4, "end": 13, "entity_type": "PROJECT"}]})
    Path("gold.jsonl").write_text(gold, encoding="utf-8")
    status, shown = use("evaluate", "gold.jsonl", "--rules", "presidio.yaml", "--json")
    assert json.loads(shown)["exact"]["PROJECT"]["recall"] == 1.0


def test_an_error_that_quotes_a_text_shows_its_type_only(use: Use, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: Any) -> None:
        raise ValueError(TEXT)

    def refuses(*_: Any) -> None:
        raise pa.ArrowInvalid(TEXT)

    pq.write_table(TABLE, "letters.parquet")
    for place, body, said in (("_finished", fails, "ValueError"), ("_prepared", refuses, "ArrowInvalid")):
        with monkeypatch.context() as patched:
            patched.setattr(TableScrub, place, body)
            status, shown = use("run", "letters.parquet", "--out", "clean.parquet")
        assert status == 1 and said in shown
        assert names() == ["letters.parquet"]


_SLOW = """
import sys, time
from dpsynth_platform.cli.main import app
from dpsynth_platform.scrub import parallel
from dpsynth_platform.scrub.alone import TableScrub
parallel._find = lambda unit, own: [[] for _ in unit]
made = TableScrub.batches
def slow(self, *given, **options):
    for batch in made(self, *given, **options):
        yield batch
        open("ready", "w").close()
        time.sleep(300)
TableScrub.batches = slow
app(["scrub", "run", "letters.parquet", "--out", sys.argv[1]])
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_stopped_run_leaves_no_output(number: int, use: Use) -> None:
    pq.write_table(TABLE, "letters.parquet")
    process = subprocess.Popen([sys.executable, "-c", _SLOW, "clean.parquet"], stderr=subprocess.PIPE, text=True)
    try:
        while process.poll() is None and not Path("ready").exists():
            time.sleep(0.05)
        process.send_signal(number)
        said = process.communicate()[1]
    finally:
        process.kill()
    assert process.returncode != 0 and MARK not in said
    left = {item for item in names() if item not in ("letters.parquet", "ready")}
    assert "clean.parquet" not in left
    if number != signal.SIGKILL:
        assert not left
    # What a killed process leaves can be read by this user only, and is removed by a later command.
    assert all(name.startswith("dpsynth-") and name.endswith(".work") and private(Path(name)) for name in left)
