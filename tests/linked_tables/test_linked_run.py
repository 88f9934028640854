"""Synthetic tables that join: what a run leaves, what it costs, and what it refuses."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
from clinic import TABLES, clinic, written

from dpsynth_platform.foundation.errors import (
    BoundingError,
    BudgetExceeded,
    ContractError,
    LedgerError,
    SourceError,
    SpendRepeated,
)
from dpsynth_platform.foundation.storage import read_table
from dpsynth_platform.ledger.store import Ledger
from dpsynth_platform.linked_tables import SyntheticTables, TablesOptions, synthesize_tables
from dpsynth_platform.linked_tables.task import linked_task
from dpsynth_platform.one_table.paying import Interrupted
from dpsynth_platform.synth.relational import drawing

OPTIONS = TablesOptions(epsilon=2, delta=1e-6, schema=TABLES, method="independent")
"""A run of about a second."""


def frames(made: SyntheticTables) -> dict[str, pd.DataFrame]:
    return {path.stem: pq.read_table(path).to_pandas() for path in sorted(made.synthetic.glob("*.parquet"))}


def ledger_states(out: Path) -> list[str]:
    return [entry.state for entry in Ledger(f"sqlite:///{out / 'restricted' / 'ledger' / 'ledger.db'}").entries()]


def test_tables_have_the_sources_columns_and_join(made: SyntheticTables) -> None:
    found, real = frames(made), clinic()
    assert sorted(found) == ["codes", "diagnoses", "patients", "stays"]
    for name, table in found.items():
        assert list(table.columns) == real[name].column_names
    patients, stays, diagnoses = (found[name] for name in ("patients", "stays", "diagnoses"))
    assert patients["patient id"].is_unique and stays["stay"].is_unique
    assert not diagnoses.duplicated(["stay", "line"]).any()
    assert set(stays["patient id"]) <= set(patients["patient id"]) and set(diagnoses["stay"]) <= set(stays["stay"])
    assert set(diagnoses["code"]) <= {"x", "y", "z"}
    assert pq.read_table(made.synthetic / "codes.parquet").equals(real["codes"])
    assert patients["remark"].isna().all()  # texts are never read
    assert made.rows["patients"].rows == len(patients) and made.rows["stays"].rows == len(stays)


def test_children_are_numbered_in_order_and_no_parent_has_too_many(made: SyntheticTables) -> None:
    found = frames(made)
    assert found["stays"].groupby("patient id").size().max() <= 4
    assert found["diagnoses"].groupby("stay").size().max() <= 3
    lines = found["diagnoses"].groupby("stay")["line"]
    assert (lines.max() == lines.size()).all() and (lines.min() == 1).all()
    assert (found["stays"].groupby("patient id")["admitted"].apply(lambda days: days.is_monotonic_increasing)).all()
    assert (found["stays"]["left"] >= found["stays"]["admitted"]).all()


def test_what_belongs_together_stays_together(made: SyntheticTables) -> None:
    """At epsilon 8; noise and drawing are the same each time (`conftest.fix`)."""
    measured = {}
    for kind, tables in (("real", {name: each.to_pandas() for name, each in clinic().items()}), ("made", frames(made))):
        stays = tables["stays"].sort_values(["patient id", "admitted"], kind="stable")
        sex = tables["patients"].set_index("patient id")["sex"]
        per_patient = stays.groupby("patient id").size().reindex(sex.index, fill_value=0).clip(upper=4)
        before = stays.groupby("patient id")["ward"].shift()
        days = pd.to_datetime(stays["admitted"]).groupby(stays["patient id"]).diff().dt.days.dropna()
        joined = tables["diagnoses"].merge(stays, on="stay")
        measured[kind] = {
            "men with no stay": (per_patient[sex == "M"] == 0).mean(),
            "women with no stay": (per_patient[sex == "F"] == 0).mean(),
            "women in A": (stays["patient id"].map(sex).eq("F") & stays["ward"].eq("A")).mean(),
            "the same ward": (before == stays["ward"])[before.notna()].mean(),
            "gaps of a week": (days <= 7).mean(),
            "code of the ward": (joined["code"].map({"x": "A", "y": "B", "z": "C"}) == joined["ward"]).mean(),
        }
    for name, value in measured["real"].items():
        assert measured["made"][name] == pytest.approx(value, abs=0.08), name


def test_the_statement_says_whom_it_protects(made: SyntheticTables) -> None:
    text = made.statement.read_text()
    assert "given" not in text
    assert "all records with the same patients.patient id, directly or by foreign keys, of which at most 17" in text
    assert "owner__id" not in text and "not empty" in text and ".." not in text
    assert "1 of patients, 4 of stays, 12 of diagnoses" in text and "at most 17 rows" in text
    assert "Public tables, released as they are: codes: The clinic lists them." in text
    assert "The tables beside this statement are together (" in text and "\n- These tables: patients: " in text
    assert "Rows of the first table describe the average owner." in text and "not the average row" not in text
    document = json.loads(made.statement.with_suffix(".json").read_text())
    assert document["guarantee"]["epsilon"] <= 8 and document["guarantee"]["max_contributions"] == 17
    assert "tea" not in text and "s17" not in text


def test_no_private_value_is_left_beside_the_tables(made: SyntheticTables) -> None:
    places = [path for path in made.synthetic.parent.rglob("*") if path.is_file()]
    assert not [path for path in places if "work-" in str(path) or path.name == "spill"]
    for path in places:
        content = path.read_bytes()
        assert b"likes tea" not in content and b"s1234" not in content, path


def test_the_same_run_costs_nothing_and_draws_again(files: Path, tmp_path: Path) -> None:
    first = synthesize_tables(files, tmp_path / "out", OPTIONS)
    assert first.spent and ledger_states(tmp_path / "out") == ["spent"]
    other = replace(OPTIONS, roots=50, given={"sex": ["F"], "birth": {"max": "1990-01-01"}}, format="csv")
    again = synthesize_tables(files, tmp_path / "out", other)
    assert not again.spent and again.entry_id == first.entry_id and again.rows["patients"].rows == 50
    text = again.statement.read_text()
    assert "; of patients, given sex = F and birth = ..1990-01-01." in text
    assert "The given values and constraints of these rows are public" in text
    patients = pyarrow.csv.read_csv(again.synthetic / "patients.csv")
    assert set(patients["sex"].to_pylist()) == {"F"}
    assert pc.max(patients["birth"]).as_py().isoformat() <= "1990-01-01"
    assert sorted(path.name for path in again.synthetic.iterdir()) == [
        "codes.csv",
        "diagnoses.csv",
        "patients.csv",
        "stays.csv",
    ]


def test_other_bounds_are_another_spend_which_the_cap_stops(files: Path, tmp_path: Path) -> None:
    synthesize_tables(files, tmp_path / "out", OPTIONS)
    tables = json.loads(json.dumps(TABLES))
    tables["tables"]["stays"]["max_children"] = 3
    with pytest.raises(BudgetExceeded, match="Nothing was spent"):
        synthesize_tables(files, tmp_path / "out", replace(OPTIONS, schema=tables))
    assert ledger_states(tmp_path / "out") == ["spent"]


def test_another_owner_column_is_another_ledger(files: Path, tmp_path: Path) -> None:
    synthesize_tables(files, tmp_path / "out", OPTIONS)
    data, tables = clinic(50), json.loads(json.dumps(TABLES))
    root = data["patients"].append_column("insured", data["patients"]["patient id"])
    shared = tmp_path / "out" / "restricted" / "ledger"
    tables["tables"]["patients"]["max_children"] = 1
    options = replace(OPTIONS, schema=tables | {"owner": "insured"}, ledger=shared)
    with pytest.raises(LedgerError, match="kept for the owners in column"):
        synthesize_tables(data | {"patients": root}, tmp_path / "other", options)


def test_tables_in_memory_in_csv_and_in_delta_give_the_same_rows_to_the_mechanism(files: Path, tmp_path: Path) -> None:
    tables = clinic(200)
    csv = tmp_path / "csv"
    csv.mkdir()
    for name, table in tables.items():
        pyarrow.csv.write_csv(table, csv / f"{name}.csv")
    made = synthesize_tables(csv, tmp_path / "a", OPTIONS)
    assert pq.read_schema(made.synthetic / "diagnoses.parquet").field("severity").type == pa.int64()
    held = synthesize_tables(tables, tmp_path / "b", replace(OPTIONS, format="delta"))
    rows = pa.Table.from_batches(read_table(held.synthetic / "stays"))
    assert rows.num_rows == held.rows["stays"].rows


@pytest.mark.parametrize("batch", [1, 7, 10_000])
def test_batches_of_families_have_distinct_keys(
    made: SyntheticTables, files: Path, batch: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    from dpsynth_platform.synth.relational.generator import planned

    monkeypatch.setattr(drawing, "BATCH_ROOTS", batch)
    model = next((made.synthetic.parent / "restricted" / "models").iterdir())
    draw = drawing.LinkedDrawing.of(planned(model), model)
    found: dict[str, list[pa.RecordBatch]] = {name: [] for name in ("patients", "stays", "diagnoses")}
    for batches in draw.batches(40):
        assert batches["patients"].num_rows <= batch
        for name, rows in batches.items():
            found[name].append(rows)
    tables = {name: pa.Table.from_batches(batches).to_pandas() for name, batches in found.items()}
    assert tables["patients"]["patient_id"].tolist() == list(range(1, 41))
    assert tables["stays"]["stay"].is_unique
    assert tables["stays"]["patient_id"].is_monotonic_increasing
    assert set(tables["diagnoses"]["stay"]) <= set(tables["stays"]["stay"])


def test_constraints_hold_across_the_join_and_along_the_order(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    people = pa.table({"id": np.arange(400), "start": rng.integers(0, 60, 400)})
    of = np.repeat(np.arange(400), 3)
    at = people["start"].to_numpy()[of] + rng.integers(0, 30, of.size)
    visits = pa.table({"id": of, "at": at, "end": at + rng.integers(1, 9, of.size)})
    whole = {"type": "integer", "min": 0, "max": 120}
    schema = {
        "tables": {
            "people": {"key": ["id"], "columns": {"start": whole}},
            "visits": {
                "parent": {"table": "people", "columns": ["id"]},
                "max_children": 3,
                "order_by": ["at"],
                "columns": {"at": whole, "end": whole},
                "constraints": [
                    {"ascending": ["people.start", "at"]},
                    {"ascending": ["at", "end"], "strict": True},
                    {"ascending": ["previous.at", "at"]},
                ],
            },
        }
    }
    options = TablesOptions(epsilon=4, delta=1e-6, schema=schema)
    made = synthesize_tables({"people": people, "visits": visits}, tmp_path / "out", options)
    found = {name: pq.read_table(made.synthetic / f"{name}.parquet").to_pandas() for name in ("people", "visits")}
    joined = found["visits"].merge(found["people"], on="id")
    assert len(joined)
    assert (joined["at"] >= joined["start"]).all() and (joined["end"] > joined["at"]).all()
    assert joined.groupby("id")["at"].apply(lambda column: column.is_monotonic_increasing).all()


def test_learned_values_stay_in_their_table(tmp_path: Path) -> None:
    schema = json.loads(json.dumps(TABLES))
    schema["tables"]["patients"]["columns"]["sex"] = {"type": "categorical", "values": "learned", "most": 10}
    schema["tables"]["stays"]["columns"]["ward"] = {"type": "categorical", "values": "learned", "most": 10}
    task = linked_task(clinic(50), replace(OPTIONS, schema=schema))
    names = {
        name: [column["name"] for column in view["columns"]] for name, view in task.plan.parameters["views"].items()
    }
    assert "sex" in names["patients"] and "patients__sex" not in names["stays"]
    assert "ward" in names["stays"] and not {"previous__ward", "stays__ward"} & {*names["stays"], *names["diagnoses"]}
    made = synthesize_tables(clinic(), tmp_path / "out", replace(OPTIONS, schema=schema, epsilon=8))
    assert set(frames(made)["stays"]["ward"].dropna()) <= {"A", "B", "C"}


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"schema": None}, ContractError, "tables"),
        ({"method": "rap"}, ContractError, "--method 'rap'; accepted: aim, mst, mwem, independent, arn, tbart"),
        ({"delta": None}, ContractError, "--delta: missing"),
        ({"delta": 2.0}, ContractError, "--delta 2"),
        ({"roots": 0}, ContractError, "--roots 0"),
        ({"format": "xml"}, ContractError, "--format 'xml'"),
        ({"given": {"ward": ["A"]}}, ContractError, "given.ward: is no modelled column of patients; accepted: birth"),
        ({"epsilon": 30.0}, ContractError, "--epsilon: 30"),
        ({"epsilon": 30.0, "accept_weak_guarantee": "why"}, ContractError, "--accept-weak-guarantee: 'why'"),
    ],
)
def test_impossible_options_are_refused_before_anything_is_read(
    files: Path, tmp_path: Path, change: dict, error: type[Exception], message: str
) -> None:
    with pytest.raises(error) as caught:
        synthesize_tables(files, tmp_path / "out", replace(OPTIONS, **change))
    assert message in str(caught.value)
    assert not (tmp_path / "out" / "restricted" / "ledger" / "ledger.db").exists()


def test_faults_of_tables_name_table_and_column(files: Path, tmp_path: Path) -> None:
    data = clinic(20)
    for held, schema, message in [
        (data | {"stays": data["stays"].drop(["ward"])}, TABLES, "ward"),
        (data | {"stays": data["stays"].append_column("bed", pa.nulls(data["stays"].num_rows))}, TABLES, "bed"),
        ({name: table for name, table in data.items() if name != "stays"}, TABLES, "stays"),
        (data | {"codes": pa.table({"code": ["x", "x"], "words": ["a", "b"]})}, TABLES, "tables.codes: column 'code'"),
        (data | {"patients": data["patients"].slice(0, 0)}, TABLES, "tables.patients: the table has no rows"),
    ]:
        with pytest.raises((SourceError, ContractError)) as caught:
            synthesize_tables(held, tmp_path / "out", replace(OPTIONS, schema=schema))
        assert message in str(caught.value)
        assert "likes tea" not in str(caught.value)


@pytest.mark.parametrize("kept", [0, 1])
def test_a_table_that_has_rows_of_one_owner_or_of_none_is_read_alike(tmp_path: Path, kept: int) -> None:
    data = clinic(300)
    few = data | {name: data[name].slice(0, kept) for name in ("stays", "diagnoses")}
    made = synthesize_tables(few, tmp_path / "out", OPTIONS)
    assert set(made.rows) == {"patients", "stays", "diagnoses"}


def test_faults_of_constraints_have_the_names_of_the_declaration() -> None:
    schema = json.loads(json.dumps(TABLES))
    schema["tables"]["diagnoses"]["constraints"] = [{"ascending": ["stays.admitted", "severity"]}]
    with pytest.raises(ContractError, match=r"^tables\.diagnoses\.constraints\.0\.ascending: stays\.admitted \(date\)"):
        linked_task(clinic(20), replace(OPTIONS, schema=schema))


@pytest.mark.parametrize("column", ["_id", "ö"])
def test_a_column_without_a_plain_name_is_refused_by_its_name(tmp_path: Path, column: str) -> None:
    data = {"people": pa.table({column: [1, 2], "a": [0, 1]})}
    schema = {"tables": {"people": {"key": [column], "columns": {"a": {"type": "integer", "min": 0, "max": 3}}}}}
    with pytest.raises(SourceError, match=f"tables.people: column '{column}' is 'column__"):
        synthesize_tables(data, tmp_path / "out", replace(OPTIONS, schema=schema))


def test_a_repeated_key_stops_before_anything_is_spent(tmp_path: Path) -> None:
    data = clinic(50)
    twice = data | {"stays": pa.concat_tables([data["stays"], data["stays"].slice(0, 1)])}
    with pytest.raises(BoundingError, match=r"tables\.stays\.key") as caught:
        synthesize_tables(twice, tmp_path / "out", OPTIONS)
    assert "s0" not in str(caught.value)
    assert not ledger_states(tmp_path / "out")


KILLED = """
import os, signal, sys
from pathlib import Path
sys.path.insert(0, sys.argv[3])
from clinic import TABLES
from dpsynth_platform.linked_tables import TablesOptions, synthesize_tables
from dpsynth_platform.synth.tabular.measurements import MeasurementLog

done = MeasurementLog.complete
calls = []

def complete(self):
    calls.append(None)
    if len(calls) == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    done(self)

MeasurementLog.complete = complete
options = TablesOptions(epsilon=2, delta=1e-6, schema=TABLES, method="independent", cap_epsilon=8)
synthesize_tables(sys.argv[1], sys.argv[2], options)
"""


def test_killed_between_tables_the_cost_stays_and_a_second_spend_needs_a_word(files: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    script = [sys.executable, "-c", KILLED, str(files), str(out), str(Path(__file__).parent)]
    assert subprocess.run(script, capture_output=True, check=False).returncode == -signal.SIGKILL
    assert ledger_states(out) == ["started"]
    options = replace(OPTIONS, cap_epsilon=8)
    with pytest.raises(SpendRepeated) as caught:
        synthesize_tables(files, out, options)
    assert ledger_states(out) == ["started"]
    again = replace(options, spend_again=str(caught.value).split()[-1])
    assert synthesize_tables(files, out, again).spent
    assert ledger_states(out) == ["started", "spent"]
    assert "earlier attempt" in (out / "statement.md").read_text()


def test_what_a_killed_run_left_of_its_tables_is_deleted(files: Path, tmp_path: Path) -> None:
    left = tmp_path / "out" / f".synthetic.{'0' * 16}" / "spill"
    left.mkdir(parents=True)
    (left / "0").write_text("rows")
    synthesize_tables(files, tmp_path / "out", OPTIONS)
    assert not left.parent.exists()


def test_an_interrupted_run_says_what_was_spent(files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(*arguments: object, **others: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("dpsynth_platform.linked_tables.run.write_tables", stop)
        with pytest.raises(Interrupted, match="has paid for the measurements, which are complete"):
            synthesize_tables(files, tmp_path / "out", OPTIONS)
    made = synthesize_tables(files, tmp_path / "out", OPTIONS)
    assert not made.spent and made.rows["patients"].rows > 0


def test_the_directory_of_the_result_is_not_among_the_tables(tmp_path: Path) -> None:
    place = written(tmp_path / "clinic", clinic(20))
    with pytest.raises(ContractError, match="is inside of"):
        synthesize_tables(place, place / "out", OPTIONS)
