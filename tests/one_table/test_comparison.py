"""Methods side by side on a public table: what is measured, kept and refused."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from event_cases import own
from synthesis_cases import SCHEMA, people
from typer.testing import CliRunner

import dpsynth
from dpsynth_platform.cli.main import app
from dpsynth_platform.foundation.errors import ContractError, MechanismFailed, SourceError
from dpsynth_platform.foundation.settings import Settings
from dpsynth_platform.ledger.store import Ledger
from dpsynth_platform.lineage.store import LineageStore
from dpsynth_platform.one_table import Options, comparison
from dpsynth_platform.one_table.comparison import HELD_OUT, REAL, compare

WHY = "made up for tests, and published"


@pytest.fixture
def public(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Rows in which age decides city and rich, with an id and a text, and their schema beside them."""
    monkeypatch.setenv("DPSYNTH_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    pq.write_table(people(2000), tmp_path / "people.parquet")
    (tmp_path / "schema.yaml").write_text(SCHEMA + "  person: {type: identifier}\n")
    return tmp_path / "people.parquet"


def test_methods_are_measured_beside_real_rows(public: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """`independent` loses that age decides the city, `mst` keeps it at epsilon 8, and a refusal has its reason."""
    out = public.parent / "out"
    arguments = ["--public", str(public), "--public-why", WHY, "--target", "city", "--time-limit", "60s"]
    arguments += ["--schema", str(public.with_name("schema.yaml")), "--method", "independent,mst", "--method", "arn"]
    app(["compare", *arguments, "--epsilon", "8", "--out", str(out), "--json"], standalone_mode=False)
    found = json.loads(capfd.readouterr().out)
    assert found == json.loads((out / "comparison.json").read_text())
    assert (found["rows"], found["held_out"], found["why"]) == (1600, 400, WHY)
    assert found["delta"] == pytest.approx(1600**-1.1)
    tries = {item["method"]: item for item in found["tries"]}
    assert list(tries) == ["independent", "mst", "arn"]
    assert "--time-limit" in tries["arn"]["refused"] and tries["arn"]["measures"] is None
    better, worse = tries["mst"]["measures"], tries["independent"]["measures"]
    assert list(better) == ["pairs", "triples", "CorAcc", "F1", "AUC", "accuracy"] == list(found["real"])
    # Of models that learn from independent columns the AUC is noise, sometimes high: it decides nothing.
    assert better["pairs"] < worse["pairs"] and better["AUC"] > 0.9
    assert found["real"]["AUC"] > 0.99 and found["real"]["pairs"] < better["pairs"]
    assert all(10 < tries[name]["megabytes"] < 10_000 and tries[name]["seconds"] > 0 for name in ("independent", "mst"))
    made = pq.read_table(out / "mst-epsilon-8.parquet")
    assert made.column_names == ["age", "city", "income", "joined", "rich"]
    charts = {f"comparison-{name}.svg" for name in ("pairs", "triples", "coracc", "f1", "auc", "accuracy", "seconds")}
    tables = {"independent-epsilon-8.parquet", "mst-epsilon-8.parquet"}
    assert {file.name for file in out.iterdir()} == {*charts, *tables, "comparison.json", "comparison.md"}
    lines = (out / "comparison.md").read_text().splitlines()
    names = [line.split("|")[2].strip() for line in lines if line.startswith("|")]
    assert names == ["method", "---", "mst", "independent", REAL]
    assert any(line.startswith("- arn, epsilon 8: ") for line in lines)
    assert {item.name for item in public.parent.iterdir()} == {"people.parquet", "schema.yaml", "out"}


def test_domains_and_the_method_come_from_the_table_and_numbers_are_predicted(public: Path) -> None:
    pq.write_table(pq.read_table(public, columns=["person", "age", "rich"]), public)
    found = dpsynth.compare(public, WHY, "age", methods=["auto"], drop=["person"], task="regression", progress=False)
    assert list(found.frame.columns) == ["epsilon", "method", "pairs", "CorAcc", "R squared", "seconds", "MB"]
    assert found.frame["method"][0].startswith("auto (") and found.frame["method"][1] == REAL
    assert 0.3 < float(found.frame["R squared"][0]) <= float(found.frame["R squared"][1]) + 0.05
    assert not found.refused and len(found.plot().data) == 4 and WHY in found.about
    assert not list(public.parent.glob("dpsynth-compare-*"))


def test_columns_that_would_come_out_empty_are_left_out(public: Path) -> None:
    """Free text and constants have no domain: as columns without values they would count as wrong in each pair."""
    table = pq.read_table(public, columns=["age", "rich"])
    texts = [f"number {number}" for number in range(2000)]
    pq.write_table(table.append_column("word", [texts]).append_column("one", [["x"] * 2000]), public)
    found = dpsynth.compare(public, WHY, "rich", methods=["independent"], progress=False)
    assert "(free text, one value): word, one." in found.about
    pairs = dict(zip(found.frame["method"], found.frame["pairs"], strict=True))
    # One pair, of which independent columns keep the two single ones; with empty columns it is 1 in five of six pairs.
    assert float(pairs["independent"]) < 0.6
    for target in ("word", "one"):
        with pytest.raises(SourceError, match=f"column '{target}' has one value, or more than 1,000 different texts"):
            compare(public, WHY, target, Options(epsilon=1))
    with pytest.raises(SourceError, match="the target 'rich' has no column beside it"):
        compare(public, WHY, "rich", Options(epsilon=1), drop=["age"])


def test_the_same_rows_are_held_out_each_time_and_none_is_lost(public: Path) -> None:
    options = Options(epsilon=1, schema=public.with_name("schema.yaml"))
    first, second = (comparison._parts(public, options) for _ in range(2))
    assert first[0] == second[0] and first[1] == second[1]
    assert len(first[1]) == HELD_OUT * 2000
    incomes = np.concatenate([part["income"].to_numpy() for part in first[:2]])
    assert np.array_equal(np.sort(incomes), np.sort(pq.read_table(public)["income"].to_numpy()))


def test_a_source_of_the_deployment_is_not_compared(public: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DPSYNTH_DEPLOY", str(public.parent / "deploy"))
    contracts = public.parent / "deploy" / "contracts"
    contracts.mkdir(parents=True)
    (contracts / "people.yaml").write_text(f"source: {{uri: {public}, format: parquet, key: [age]}}\n")
    with pytest.raises(ContractError, match="overlap; accepted: a table that is public"):
        compare(public, WHY, "city", Options(epsilon=1))


@pytest.mark.parametrize("way", ["copy", "hard link", "among", "linked in a directory"])
def test_a_copy_of_a_source_that_never_ran_is_not_compared(
    public: Path, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    """Another table beside it is."""
    monkeypatch.setattr(comparison, "tried", lambda *given: pytest.fail("it was learned"))
    place = public.parent
    monkeypatch.setenv("DPSYNTH_DEPLOY", str(place / "deploy"))
    (place / "deploy/contracts").mkdir(parents=True)
    source = f"source: {{uri: {public}, format: parquet, key: [age]}}\n"
    (place / "deploy/contracts/people.yaml").write_text(source)
    (place / "other").mkdir()
    other = place / "other" / "rows.parquet"
    make = {"hard link": os.link, "linked in a directory": os.symlink}.get(way, shutil.copy)
    make(public, other)
    table = other.parent if way in ("among", "linked in a directory") else other
    with pytest.raises(ContractError, match="has a file of the source of dataset people, or a copy of one"):
        compare(table, WHY, "city", Options(epsilon=1))
    other.unlink()
    pq.write_table(people(199), other)
    with pytest.raises(SourceError, match="199 rows"):
        compare(table, WHY, "city", Options(epsilon=1), drop=["person", "note"])


def test_a_table_that_lineage_knows_as_guarded_is_not_compared(public: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its contract is gone, and its rows are others than those that a run has read."""
    monkeypatch.setattr(comparison, "tried", lambda *given: pytest.fail("it was learned"))
    settings = Settings.from_environment()
    settings.home.joinpath("ledger").mkdir(parents=True)
    restricted = {"tags": {"tags": [{"key": "zone", "value": "restricted"}]}}
    rows = {"namespace": "file", "name": str(public), "facets": restricted}
    Ledger(settings.ledger_url)
    assert LineageStore(settings.ledger_url).record(own("COMPLETE", ["source"], [rows], job="people.raw")).new
    with pytest.raises(ContractError, match="is, holds or was made from a guarded table, by lineage"):
        compare(public, WHY, "city", Options(epsilon=1))
    other = public.with_name("other.parquet")
    pq.write_table(people(199), other)
    with pytest.raises(SourceError, match="199 rows"):
        compare(other, WHY, "city", Options(epsilon=1), drop=["person", "note"])


@pytest.mark.parametrize("way", ["file", "directory", "link", "above"])
def test_the_platforms_own_rows_are_not_compared(public: Path, monkeypatch: pytest.MonkeyPatch, way: str) -> None:
    monkeypatch.setattr(comparison, "tried", lambda *given: pytest.fail("it was learned"))
    home = public.parent / "home"
    inside = home / "restricted" / "people" / "bounded"
    inside.mkdir(parents=True)
    shutil.copy(public, inside / "part.parquet")
    places = {"file": inside / "part.parquet", "directory": inside, "link": public.parent / "linked", "above": home}
    if way == "link":
        places[way].mkdir()
        (places[way] / "part.parquet").symlink_to(inside / "part.parquet")
    with pytest.raises(ContractError, match="and the restricted zone overlap; accepted: a table that is public"):
        compare(places[way], WHY, "city", Options(epsilon=1))


@pytest.mark.parametrize(
    ("change", "error", "said"),
    [
        ({"methods": ["aim", "jam"]}, ContractError, "methods: jam; accepted: auto, aim, mst"),
        ({"epsilons": []}, ContractError, "and one epsilon at least"),
        ({"target": "town"}, SourceError, "target: no column 'town' in .*; accepted: person, age, "),
        (
            {"methods": ["mst"], "epsilons": [-1.0]},
            MechanismFailed,
            r"(?s)no method has made a table.*mst, epsilon -1: .*",
        ),
        ({"why": "short"}, ContractError, "why"),
        ({"drop": ["person", "Note"]}, SourceError, "drop: no column 'Note' in .*; accepted: person, age, "),
    ],
)
def test_what_cannot_be_compared_is_refused(public: Path, change: dict, error: type, said: str) -> None:
    given = {"table": public, "why": WHY, "target": "city", "options": Options(epsilon=1)} | change
    with pytest.raises(error, match=said):
        compare(**given)


def test_options_that_make_other_units_are_refused(public: Path) -> None:
    with pytest.raises(ContractError, match="owners: no option of a comparison; accepted: delta, expected_units"):
        dpsynth.compare(public, WHY, "age", owners="person", contributions=2)


def test_a_private_table_is_not_tried_with_several_methods(public: Path) -> None:
    said = CliRunner().invoke(app, ["synth", "table", str(public), "--method", "aim,mst", "--compare"])
    words = " ".join(said.output.replace("│", " ").split())
    assert said.exit_code == 2 and "each method reads the table and is paid for" in words
    assert "dpsynth compare --public" in words


def test_few_rows_and_a_process_that_ends_early(public: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    schema = public.with_name("schema.yaml")
    monkeypatch.setattr("sys.executable", "/bin/false")
    with pytest.raises(MechanismFailed, match="mst, epsilon 1: its process ended with status 1"):
        compare(public, WHY, "city", Options(epsilon=1, schema=schema), methods=["mst"])
    broken = public.with_name("broken")
    broken.write_text("#!/bin/sh\necho 'Traceback' >&2\necho 'MemoryError: 3 GB' >&2\nexit 3\n")
    broken.chmod(0o700)
    monkeypatch.setattr("sys.executable", str(broken))
    with pytest.raises(MechanismFailed, match=r"its process ended with status 3 \(MemoryError: 3 GB\)"):
        compare(public, WHY, "city", Options(epsilon=1, schema=schema), methods=["mst"])
    pq.write_table(people(199), public)
    with pytest.raises(SourceError, match="199 rows; accepted: 200 at least"):
        compare(public, WHY, "city", Options(epsilon=1, schema=schema))
