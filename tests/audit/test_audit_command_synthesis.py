"""`dpsynth audit run --synthesis`: a table of `dpsynth synth table`, attacked with its model and with shadow models."""

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
from dpsynth_platform.one_table import Options, synthesize

SCHEMA = """
columns:
  home city: {type: categorical, values: [Aix, Bern, Chur]}
  age: {type: integer, min: 0, max: 99, bins: 10}
  born: {type: date, min: 1920-01-01, max: 2020-12-31, bins: 10}
"""
OF_MODEL = ["measurements", "likelihood"]
OF_SHADOWS = ["lira online", "lira offline", "rmia online", "rmia offline"]
Use = Callable[..., tuple[int, str]]


def people(rows: int) -> pa.Table:
    rng = np.random.default_rng()
    born = pa.array(rng.integers(-18_000, 18_000, rows).astype(np.int32)).cast(pa.date32())
    return pa.table(
        {"home city": np.array(["Aix", "Bern"])[rng.integers(0, 2, rows)], "age": rng.integers(0, 99, rows)}
        | {"born": born}
    )


@pytest.fixture
def use(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Use:
    """Runs the command with a synthetic table, of whose 400 rows 60 are the members. Returns status and output."""
    monkeypatch.setenv("DPSYNTH_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("DPSYNTH_USER", "tester")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "people.yaml").write_text(SCHEMA)
    table = people(400)
    pq.write_table(table, tmp_path / "people.parquet")
    csv.write_csv(table.slice(0, 60), tmp_path / "members.csv")
    pq.write_table(people(60), tmp_path / "others.parquet")
    pq.write_table(people(60).drop(["born"]), tmp_path / "narrow.parquet")
    pq.write_table(people(60).set_column(1, "age", pa.array([[1]] * 60)), tmp_path / "odd.parquet")
    synthesize(
        tmp_path / "people.parquet",
        tmp_path / "out",
        Options(epsilon=5.0, delta=1e-5, method="mst", schema=tmp_path / "people.yaml"),
    )

    def call(*arguments: str, others: str = "others.parquet") -> tuple[int, str]:
        tables = ("--synthetic", "out/synthetic.parquet", "--members", "members.csv", "--non-members", others)
        result = CliRunner().invoke(app, ["audit", "run", *tables, *arguments])
        return result.exit_code, result.output + "".join(capfd.readouterr())

    return call


def names(text: str) -> list[str]:
    return [attack["name"] for attack in json.loads(text)["attacks"]]


def test_the_model_behind_a_table_is_attacked_and_shadow_models_of_it_are_made_on_request(use: Use) -> None:
    status, text = use("--synthesis", "out", "--json")
    assert (status, names(text)) == (0, [*OF_MODEL, "nearest rows"])
    assert json.loads(text)["publishable"] is False
    status, text = use("--synthesis", "out", "--shadows", "4", "--json")
    assert (status, names(text)) == (0, [*OF_MODEL, *OF_SHADOWS, "meta-classifier", "nearest rows"])
    status, text = use("--synthesis", "out", "--shadows", "4", "--attack", "lira online", "--canaries", "--json")
    assert (status, names(text), json.loads(text)["publishable"]) == (0, ["lira online"], True)
    status, text = use("--synthesis", "out", "--attack", "lira online")
    assert status == 1 and "lacks shadow models" in text


@pytest.mark.parametrize(
    ("arguments", "others", "words"),
    [
        (("--shadows", "4"), "others.parquet", "--shadows beside"),
        (("--synthesis", "nowhere"), "others.parquet", "no model of an earlier run is here"),
        (("--synthesis", "out"), "narrow.parquet", "non-members: no column 'born'; accepted: home city, age, born"),
        (("--synthesis", "out"), "odd.parquet", "non-members: column 'age' has type list"),
        (("--synthesis", "out", "--shadows", "5"), "others.parquet", "an even number of models"),
    ],
)
def test_what_cannot_be_attacked_is_said(use: Use, arguments: tuple[str, ...], others: str, words: str) -> None:
    status, text = use(*arguments, others=others)
    assert status == 1
    assert words in text and "Traceback" not in text


def test_a_model_that_was_changed_is_no_evidence(use: Use, tmp_path: Path) -> None:
    (model,) = (tmp_path / "out" / "restricted" / "models").iterdir()
    (model / "model.npz").write_bytes(b"")
    status, text = use("--synthesis", "out")
    assert status == 1
    assert "was changed" in text
