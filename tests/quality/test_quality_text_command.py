"""`dpsynth quality text`, as people and programs call it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow import csv
from typer.testing import CliRunner

from dpsynth_platform.cli.main import app
from dpsynth_platform.quality.report import NOTICE

SECRET = "Zaphodina Quillmarker"
Use = Callable[..., tuple[int, str]]


def letters(count: int, seed: int) -> pa.Table:
    rng = np.random.default_rng(seed)
    kinds = rng.integers(0, 2, count)
    words = (["bread", "salt", "oven", "soup"], ["ball", "match", "goal", "team"])
    texts = [f"{SECRET} wants {' and '.join(rng.choice(words[kind], 3))}." for kind in kinds]
    return pa.table({"body": texts, "kind": kinds, "sender": np.arange(count) % 30 + 100 * seed})


@pytest.fixture
def use(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Use:
    """Runs the command inside the directory of the tables; returns status and all output."""
    pq.write_table(letters(120, 1), tmp_path / "real.parquet")
    csv.write_csv(letters(60, 2), tmp_path / "made.csv")
    rows = letters(60, 3).to_pylist()
    (tmp_path / "test.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    pq.write_table(letters(120, 1).slice(0, 20), tmp_path / "few.parquet")
    constant = letters(120, 1).set_column(1, "kind", pa.array([SECRET] * 120))
    pq.write_table(constant, tmp_path / "constant.parquet")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DPSYNTH_HOME", str(tmp_path / "home"))

    def call(*arguments: str) -> tuple[int, str]:
        result = CliRunner().invoke(app, ["quality", "text", *arguments])
        return result.exit_code, result.output + "".join(capfd.readouterr())

    return call


def test_tables_of_three_formats_for_people(use: Use, tmp_path: Path) -> None:
    before = sorted(tmp_path.iterdir())
    status, text = use(
        *("real.parquet", "made.csv", "--text", "body", "--label", "kind"),
        *("--holdout", "test.jsonl", "--owner", "sender", "--trials", "2"),
    )
    assert status == 0, text
    for words in ("MAUVE", "macro F1", "real in its place", "120 real, 60 held-out, 60 synthetic", "±"):
        assert words in text
    assert text.index(NOTICE[:40]) < text.index("MAUVE")
    assert "replaces them" not in text
    assert SECRET not in text
    assert sorted(tmp_path.iterdir()) == before


def test_json_for_programs_and_a_split_by_owner(use: Use) -> None:
    status, text = use("real.parquet", "made.csv", "--text", "body", "--owner", "sender", "--trials", "1", "--json")
    assert status == 0, text
    found = json.loads(text[text.index("{") :])  # what the runner takes from standard error may stand before it
    assert found["restricted"] is True
    assert found["texts"] == {"real": 60, "held-out": 60, "synthetic": 60}
    assert "replaces them" in found["remarks"][0]
    assert {figure["better"] for figure in found["figures"]} == {"higher", "lower", "near real"}
    assert SECRET not in text


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("real.parquet", "made.csv", "--text", "letter"), "text: no column 'letter' in real"),
        (("real.parquet", "made.csv", "--text", "kind"), "text: column 'kind' of real holds int64"),
        (("real.parquet", "nowhere.csv", "--text", "body"), "nowhere.csv: there is no such file"),
        (("real.parquet", "few.parquet", "--text", "body"), "synthetic: 20 texts that are not blank"),
        (("few.parquet", "made.csv", "--text", "body"), "real: 20 texts that are not blank"),
        (("constant.parquet", "made.csv", "--text", "body", "--label", "kind"), "label: all texts of real are of one"),
        (("real.parquet", "made.csv", "--text", "body", "--clusters", "100"), "clusters: 100; accepted: 2 to 48"),
        (
            ("real.parquet", "made.csv", "--text", "body", "--owner", "sender", "--holdout", "constant.parquet"),
            "owner: some owners have texts in real and in held-out",
        ),
    ],
)
def test_what_is_wrong_is_said_without_a_value(use: Use, arguments: tuple[str, ...], words: str) -> None:
    status, text = use(*arguments)
    assert status == 1
    assert words in " ".join(text.split())
    assert SECRET not in text
    assert "Traceback" not in text


def test_help_says_that_it_is_restricted(use: Use) -> None:
    status, text = use("--help")
    assert status == 0
    assert "restricted" in text
