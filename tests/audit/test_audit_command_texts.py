"""`dpsynth audit run --text`, as people call it, without a deployment."""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow import csv
from typer.testing import CliRunner

from dpsynth_platform.audit.adhoc.outcomes import NOTICE
from dpsynth_platform.cli.main import app

RANDOM = secrets.SystemRandom()
COMMON = [f"word{number}" for number in range(200)]
SECRET = "Zaphodina"
Use = Callable[..., tuple[int, str]]


def posts(count: int) -> pa.Table:
    texts = [f"{SECRET} {' '.join(RANDOM.choices(COMMON, k=30))}" for _ in range(count)]
    return pa.table({"id": range(count), "post": texts})


@pytest.fixture
def use(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Use:
    """Runs the command inside a directory of tables; returns status and all output."""
    members = posts(200)
    pq.write_table(members, tmp_path / "members.parquet")
    csv.write_csv(posts(200), tmp_path / "others.csv")
    pq.write_table(posts(200), tmp_path / "reference.parquet")
    released = pa.concat_tables([posts(100), members])
    lines = (json.dumps({"post": post}) for post in [*released["post"].to_pylist(), None])
    (tmp_path / "released.jsonl").write_text("\n".join(lines))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DPSYNTH_HOME", str(tmp_path / "home"))

    def call(*arguments: str) -> tuple[int, str]:
        result = CliRunner().invoke(app, ["audit", "run", *arguments])
        return result.exit_code, result.output + "".join(capfd.readouterr())

    return call


TABLES = ("--synthetic", "released.jsonl", "--members", "members.parquet", "--non-members", "others.csv")


def test_texts_that_hold_their_members_are_told_and_marked(use: Use) -> None:
    status, output = use(*TABLES, "--text", "post", "--reference", "reference.parquet", "--output", "kept", "--json")
    assert status == 0
    document = json.loads(output)
    assert document["publishable"] is False and document["targets"] == 400
    assert len(document["attacks"]) == 3
    areas = {item["name"]: item["risk"]["area_under_curve"]["low"] for item in document["attacks"]}
    assert min(area for name, area in areas.items() if name != "text overlap") > 0.9
    (copies,) = document["copies"]
    assert (copies["members"], copies["held_out"]) == (200, 0)
    status, output = use(*TABLES, "--text", "post", "--attack", "n-gram similarity")
    assert status == 0 and NOTICE in output and SECRET not in output


def test_unusual_texts_alone_can_be_asked_about(use: Use) -> None:
    status, output = use(*TABLES, "--text", "post", "--outliers", "0.2", "--json")
    assert status == 0
    assert 80 <= json.loads(output)["targets"] <= 160


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((*TABLES, "--text", "body"), "no column 'body'"),
        ((*TABLES, "--text", "id"), "holds no text"),
        ((*TABLES, "--text", "post", "--drop", "id"), "--drop beside"),
        ((*TABLES, "--outliers", "0.1"), "--outliers beside"),
        ((*TABLES, "--base-model", "smollm2-135m"), "--base-model beside"),
        (("--model", "model", *TABLES), "accepted: one of them"),
        (("--model", "model", *TABLES[2:]), "--text: missing"),
        (("--model", "./nowhere", *TABLES[2:], "--text", "post"), "neither a directory nor a GGUF file"),
        ((*TABLES, "--text", "post", "--outliers", "1.5"), "a share in (0, 1)"),
        ((*TABLES, "--text", "post", "--attack", "n-gram model"), "a reference of the same"),
    ],
)
def test_what_cannot_be_audited_is_said(use: Use, arguments: tuple[str, ...], words: str) -> None:
    status, output = use(*arguments)
    assert status == 1
    assert words in " ".join(output.split()) and "Traceback" not in output and SECRET not in output
