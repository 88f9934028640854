"""Measures against a small gold set that was counted by hand; the command; bad gold files."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from dpsynth_platform.cli.main import app
from dpsynth_platform.contracts.scrubbing import ENTITY_TYPES
from dpsynth_platform.foundation.errors import SourceError
from dpsynth_platform.scrub.clues import _KINDS
from dpsynth_platform.scrub.evaluation import CLASSES, GoldText, evaluate, read_gold
from dpsynth_platform.scrub.findings import UNREAD, Finding
from dpsynth_platform.scrub.names import _LABELS
from dpsynth_platform.scrub.rules import rules


def test_counts_by_hand() -> None:
    text = "Mr. Al Gray of 12 Elm St, Troy works at Xyz Inc; a@b.c"
    gold = GoldText(
        text,
        (
            Finding(0, 3, "PREFIX"),
            Finding(4, 11, "PERSON"),
            Finding(15, 24, "ADDRESS"),
            Finding(26, 30, "LOCATION"),
            Finding(40, 47, "ORGANIZATION"),
            Finding(49, 54, "EMAIL_ADDRESS"),
        ),
    )
    found = [
        Finding(4, 11, "PERSON"),  # without "Mr.": overlapping, not exact
        Finding(15, 30, "LOCATION"),  # the address with its town: exact, since both are joined
        Finding(40, 43, "PERSON"),  # as another type, and half of it
        Finding(31, 36, "LOCATION"),  # wrong... and next to the town, so it is joined to it
        Finding(0, 2, "NRP"),  # never marked in this gold set
    ]
    report = evaluate([gold], [found])
    assert {name: (s.gold, s.found, s.matched) for name, s in report.exact.items()} == {
        "PERSON": (1, 2, 0),
        "LOCATION": (1, 1, 0),
        "ORGANIZATION": (1, 0, 0),
        "EMAIL_ADDRESS": (1, 0, 0),
    }
    assert {name: s.matched for name, s in report.overlapping.items()} == {
        "PERSON": 1,
        "LOCATION": 1,
        "ORGANIZATION": 0,
        "EMAIL_ADDRESS": 0,
    }
    total = report.total("overlapping")
    assert (total.gold, total.found, total.matched) == (4, 3, 2)
    assert (total.precision, total.recall) == (2 / 3, 1 / 2)
    assert total.f(1) == pytest.approx(4 / 7)
    assert total.f(2) == pytest.approx(5 * (2 / 3) * (1 / 2) / (4 * (2 / 3) + 1 / 2))
    assert report.covered["ORGANIZATION"] == pytest.approx(3 / 7)
    assert report.covered["PREFIX"] == pytest.approx(2 / 3)
    assert report.missed == {"EMAIL_ADDRESS": 1}
    assert report.confused == {"ORGANIZATION": {"PERSON": 1}}
    assert report.unjudged == {"NRP": 1}


def test_merged_and_unknown_types_are_named() -> None:
    gold = GoldText("Mr. Al, 12 Elm St, SHOE 44", (Finding(0, 3, "PREFIX"), Finding(19, 26, "SHOE_SIZE")))
    report = evaluate([gold], [[Finding(8, 17, "ADDRESS")]])
    assert report.merged == {"ADDRESS": "LOCATION", "PREFIX": "PERSON"}
    assert report.unknown == ("SHOE_SIZE",)
    assert evaluate([gold], [[]], ["SHOE_SIZE", "PERSON"]).unknown == ()


def test_the_list_of_entity_types_is_whole_and_stands_in_its_page() -> None:
    found = {rule.entity for rule in rules()} | set(_KINDS) | set(_LABELS.values()) | {"ADDRESS", "TITLE", "ID", UNREAD}
    assert found == ENTITY_TYPES.keys()
    assert set(CLASSES.values()) <= ENTITY_TYPES.keys()
    rows = [f"| `{entity}` | {words} |" for entity, words in ENTITY_TYPES.items()]
    assert "\n".join(rows) in (Path(__file__).parents[2] / "docs/guides/scrubbing.md").read_text(encoding="utf-8")


def test_each_span_counts_once() -> None:
    gold = GoldText("abcd efgh", (Finding(0, 9, "PERSON"),))
    report = evaluate([gold, gold], [[Finding(0, 4, "PERSON"), Finding(5, 9, "PERSON")], []])
    # Parted by a blank only, both found spans are one, and it is exact.
    assert (report.total("exact").matched, report.total("exact").found, report.total("exact").gold) == (1, 1, 2)


def test_nothing_marked_and_nothing_found() -> None:
    report = evaluate([GoldText("nothing", ())], [[]])
    assert report.total("exact").f(2) is None
    assert report.to_json()["overlapping"]["all"]["precision"] is None


ROWS: list[dict[str, Any]] = [
    {"text": "Write to ann.lee@corp.com", "spans": [{"start": 9, "end": 25, "entity_type": "EMAIL_ADDRESS"}]},
    {"text": "Xqzmark was here", "spans": [{"start": 0, "end": 7, "label": "PERSON"}]},
    {"text": "none", "spans": []},
]


@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
def test_the_command_prints_measures_and_no_text(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("DPSYNTH_HOME", str(tmp_path / "home"))
    path = tmp_path / f"gold.{kind}"
    rows = [{"body": row["text"], "marks": row["spans"]} for row in ROWS]
    if kind == "parquet":
        pq.write_table(pa.Table.from_pylist(rows), path)
    else:
        path.write_text("\n".join(json.dumps(row) for row in rows) + "\n")

    def use(*more: str) -> str:
        result = CliRunner().invoke(app, ["scrub", "evaluate", str(path), "--text", "body", "--spans", "marks", *more])
        text = capfd.readouterr().out + result.stdout
        assert result.exit_code == 0, text
        return text

    shown, machine = use(), use("--json")
    report = json.loads(machine)
    assert report["texts"] == 3
    assert report["exact"]["EMAIL_ADDRESS"]["recall"] == 1.0
    assert report["exact"]["PERSON"]["gold"] == 1
    assert "best effort" in report["limits"]
    assert "EMAIL_ADDRESS" in shown
    assert "scrubbing does not have" not in shown
    for output in (shown, machine):
        assert not re.search(r"Xqz|corp\.com|Write to", output)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{not json", "line 1: not JSON lines"),
        ('{"text": "secret"}', "row 1: spans: missing or not a list"),
        ('{"spans": []}', "row 1: text: missing or not a text"),
        (
            '{"text": "secret", "spans": [{"start": 0, "end": 6, "entity": "secret"}]}',
            "row 1: spans: a span without a type; accepted: a type in capitals",
        ),
        ('{"text": "secret", "spans": [{"start": 0, "end": 9, "type": "X"}]}', "row 1: spans: a span outside its text"),
        ('{"text": "secret", "spans": [{"start": 0, "end": 3}]}', "row 1: spans: a span without a type"),
        ('{"text": "secret", "spans": [7]}', "row 1: spans: a span without a type"),
        ('["secret"]', "row 1: text: missing or not a text"),
        ("", "no row"),
        ('{"text": "\\ud800secret", "spans": []}\n{"text"', "line 2: not JSON lines"),
    ],
)
def test_bad_gold_is_named_without_its_text(content: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "gold.jsonl"
    path.write_text(content)
    with pytest.raises(SourceError) as raised:
        read_gold(path)
    assert message in str(raised.value)
    assert "secret" not in str(raised.value)


def test_bad_parquet(tmp_path: Path) -> None:
    path = tmp_path / "gold.parquet"
    path.write_bytes(b"PAR1 no")
    with pytest.raises(SourceError, match="cannot be read as Parquet"):
        read_gold(path)
    pq.write_table(pa.table({"text": ["a"]}), path)
    with pytest.raises(SourceError, match="no column spans; accepted: text"):
        read_gold(path)
    with pytest.raises(SourceError, match="there is no such file"):
        read_gold(tmp_path / "absent.jsonl")
