"""The quality report of a dataset with linked tables, from outputs as the steps of a line write them."""

from __future__ import annotations

import copy
import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from clinic import TABLES, clinic

from assets.quality import NUMBERS
from assets.shown import numbers
from dpsynth_platform.console.views.drift import copies, measures
from dpsynth_platform.contracts.contract import DataContract
from dpsynth_platform.contracts.loading import draft_contract
from dpsynth_platform.contracts.validation import validated
from dpsynth_platform.foundation.errors import ContractError
from dpsynth_platform.foundation.storage import write_table
from dpsynth_platform.operations.linked_rows import rows_of, scrubbed_tables, synthetic_tables
from dpsynth_platform.quality.completeness import missing_comparisons
from dpsynth_platform.quality.linked_report import LinkedReport, measure_linked_contract
from dpsynth_platform.quality.report_rows import HEADER, LINKED_LEGEND, legend_of
from dpsynth_platform.scrub.fingerprints import FINGERPRINT_DTYPE, Fingerprints

Tables = dict[str, pa.Table]
NAMES = {"patients": {"patient_id": "patient id"}, "stays": {"patient_id": "patient id"}, "diagnoses": {}, "codes": {}}
KEYS = {"patients": ["patient id"], "stays": ["stay", "patient id"], "diagnoses": ["stay"]}
QUERIES = {
    "wards": "SELECT ward, count(*) FROM stays GROUP BY ward",
    "by_sex": 'SELECT sex, count(*) FROM patients JOIN stays USING ("patient id") GROUP BY sex',
}


def contract_of(**quality: Any) -> DataContract:
    return validated(DataContract, document_of(**quality), "clinic")


def document_of(**quality: Any) -> dict[str, Any]:
    tables = copy.deepcopy(TABLES["tables"])
    return {
        "dataset": "clinic",
        "description": "Fictional patients.",
        "owners": ["clinic@example.org"],
        "source": {"uri": "/sources/clinic"},
        "family": "clinic",
        "privacy": {
            "unit": "user",
            "namespace": "patient",
            "guarantee": {"epsilon": 1.0},
            "expected_units": 1000,
        },
        "tables": tables,
        "generate": {"method": "aim", "rows": 500},
        "quality": quality,
        "release": {"uri": "/public/clinic"},
    }


def hashed(column: pa.ChunkedArray) -> pa.Array:
    found = [None if each is None else hashlib.sha256(str(each).encode()).hexdigest() for each in column.to_pylist()]
    return pa.array(found, pa.string())


def fingerprint(text: str) -> bytes:
    return hashlib.sha256(b"owner" + text.encode()).digest()[:16]


def owners_of(patients: list[int]) -> Fingerprints:
    ids = hashed(pa.chunked_array([pa.array(patients)])).to_pylist()
    return np.sort(np.array([fingerprint(each) for each in ids], FINGERPRINT_DTYPE))


def scrubbed(place: Path, tables: Tables) -> Path:
    """Keys as hashes, plain names, no texts; and the owners beside them."""
    for name, keys in KEYS.items():
        table = tables[name].drop_columns([each for each in ("remark", "line") if each in tables[name].column_names])
        if name == "diagnoses":
            table = table.append_column("line", hashed(tables[name].column("line")))
        for key in keys:
            table = table.set_column(table.column_names.index(key), key, hashed(table.column(key)))
        plain = {given: each for each, given in NAMES[name].items()}
        stored(place / "table" / name, table.rename_columns([plain.get(each, each) for each in table.column_names]))
    ids = hashed(tables["patients"].column("patient id"))
    owners = [fingerprint(each).hex() for each in ids.to_pylist()]
    stored(place / "owners", pa.table({"_id": ids, "_owner": owners}))
    return place


def released(place: Path, tables: Tables) -> Path:
    for name, table in tables.items():
        stored(place / "table" / name, table.drop_columns(["remark"]) if name == "patients" else table)
    return place


def stored(place: Path, table: pa.Table) -> None:
    write_table(place, table.schema, table.to_batches())


def report_of(
    tmp_path: Path, contract: DataContract, real: Tables, made: Tables, took_part: list[int], held_out: list[int]
) -> LinkedReport:
    tables = contract.linked
    source, drawn = scrubbed(tmp_path / "scrubbed", real), released(tmp_path / "synthetic", made)
    rows = scrubbed_tables(tables, NAMES, source)
    work = tmp_path / "work"
    work.mkdir()
    found = measure_linked_contract(
        contract,
        rows_of(tables, rows, source, owners_of(took_part)),
        synthetic_tables(tables, drawn),
        rows_of(tables, rows, source, owners_of(held_out)),
        work,
    )
    assert not list(work.iterdir())  # rows do not stay
    return found


def patients_of(tables: Tables) -> list[int]:
    found: list[int] = tables["patients"].column("patient id").to_pylist()
    return found


def cut(tables: Tables, patients: list[int]) -> Tables:
    """The rows of these patients, by brute force."""
    stays = [each in set(patients) for each in tables["stays"]["patient id"].to_pylist()]
    kept = tables["stays"].filter(pa.array(stays))
    known = set(kept["stay"].to_pylist())
    diagnoses = [each in known for each in tables["diagnoses"]["stay"].to_pylist()]
    root = [each in set(patients) for each in patients_of(tables)]
    return tables | {
        "patients": tables["patients"].filter(pa.array(root)),
        "stays": kept,
        "diagnoses": tables["diagnoses"].filter(pa.array(diagnoses)),
    }


def test_equal_rows_have_no_distance_and_held_out_ones_are_counted(tmp_path: Path) -> None:
    real = clinic(700, 1)
    took_part, held_out = patients_of(real)[:600], patients_of(real)[600:]
    contract = contract_of(target="patients.sex", queries=QUERIES)
    report = report_of(tmp_path, contract, real, cut(real, took_part), took_part, held_out)
    document = report.to_json()
    assert json.loads(json.dumps(document, allow_nan=False)) == document
    counted = {
        side: sum(cut(real, owners)[name].num_rows for name in KEYS)
        for side, owners in (("real", took_part), ("synthetic", took_part), ("held_out", held_out))
    }
    assert document["rows"] == counted
    assert document["fidelity"]["mean_column"] == document["fidelity"]["mean_pair"] == 0
    assert {item["column"] for item in document["fidelity"]["columns"]} == {
        "patients.birth",
        "patients.sex",
        "stays.admitted",
        "stays.left",
        "stays.ward",
        "diagnoses.severity",
        "diagnoses.code",
    }
    links = document["linked"]
    assert (links["mean_children"], links["query_error"]) == (0, 0)
    # Of diagnoses, more than `max_children` never are; the order of stays is declared: the same rows are kept.
    assert all(edge["children"] == 0 and edge["references"] == 1 for edge in links["edges"].values())
    assert links["mean_across"] == 0
    assert links["resampled_tables"]["stays"]["one_way"] > 0
    assert links["resampled_edges"]["stays"]["children"] > 0
    assert document["utility"]["holdout_rows"] == 100
    assert document["utility"]["synthetic"]["mean"] == document["utility"]["real"]["mean"]
    assert links["edges"]["stays"]["next_row"]["target"] == "ward"
    assert missing_comparisons(contract, document) == []
    assert set(report.plots()) == {"marginals", "links", "queries", "classifiers"}
    assert "fresh sample of real owners" in report.plots()["links"]
    rows = report.table()
    assert all(len(row) == len(HEADER) and all(isinstance(cell, str) for cell in row) for row in rows)
    assert ("query by_sex: relative error, mean of 2", "0.000", "", "") in rows
    assert legend_of(document) == LINKED_LEGEND


def test_children_of_other_parents_and_errors_of_queries_show(tmp_path: Path) -> None:
    real = clinic(700, 2)
    took_part, held_out = patients_of(real)[:600], patients_of(real)[600:]
    made = cut(real, took_part)
    shuffled = np.random.default_rng(3).permutation(made["stays"]["patient id"].to_numpy())
    stays = made["stays"].set_column(1, "patient id", pa.array(shuffled))
    contract = contract_of(target="patients.sex", queries=QUERIES)
    document = report_of(tmp_path, contract, real, made | {"stays": stays}, took_part, held_out).to_json()
    # Some stays are cut otherwise, since other rows are the first of a patient.
    assert document["fidelity"]["mean_column"] < 0.02
    edge, best = (document["linked"][key]["stays"] for key in ("edges", "resampled_edges"))
    assert edge["across"]["patients"] > 1.2 * best["across"]["patients"]
    assert edge["in_sequence"] > 2 * best["in_sequence"]
    assert edge["children"] == 0  # each patient has as many stays
    assert document["utility"]["synthetic"]["mean"]["accuracy"] < document["utility"]["real"]["mean"]["accuracy"]
    queries = document["linked"]["queries"]
    assert queries["wards"]["mean"] == queries["by_sex"]["mean"] == 0
    fewer = cut(made, took_part[:300])
    errors = report_of(tmp_path / "fewer", contract, real, fewer, took_part, held_out).queries
    truth, other = (tables["stays"]["ward"].value_counts().to_pylist() for tables in (made, fewer))
    counts = [{each["values"]: each["counts"] for each in side} for side in (truth, other)]
    expected = np.mean([abs(counts[1][ward] - counts[0][ward]) / counts[0][ward] for ward in "ABC"])
    assert errors["wards"].mean == pytest.approx(expected)


def test_what_cannot_be_measured_is_said(tmp_path: Path) -> None:
    """Without held-out owners, with a query that has no number, and with an empty table."""
    real = clinic(60, 4)
    made = real | {"diagnoses": real["diagnoses"].slice(0, 0)}
    contract = contract_of(target="patients.birth", queries={"keys": 'SELECT max("patient id") FROM patients'})
    report = report_of(tmp_path, contract, real, made, patients_of(real), [])
    document = report.to_json()
    assert missing_comparisons(contract, document) == [
        "distances of columns of diagnoses: a table has no rows",
        "models of patients.birth: no owner is held out",
        "query keys: the last column is no number, or another one holds lists",
    ]
    assert ("query keys", "not available: the last column is no number, or another one holds lists", "", "") in (
        report.table()
    )
    assert set(report.plots()) == {"marginals", "links"}


def test_a_target_of_numbers_is_predicted_by_regression(tmp_path: Path) -> None:
    real = clinic(300, 5)
    took_part, held_out = patients_of(real)[:200], patients_of(real)[200:]
    contract = contract_of(target="patients.birth")
    report = report_of(tmp_path, contract, real, cut(real, took_part), took_part, held_out)
    document = report.to_json()
    assert document["regression"]["target"] == "birth"
    assert "utility" not in document
    assert missing_comparisons(contract, document) == []
    assert any(row[0].startswith("regression of birth") for row in report.table())


def test_pages_show_the_report_as_far_as_it_has_their_figures(tmp_path: Path) -> None:
    real = clinic(300, 6)
    took_part, held_out = patients_of(real)[:200], patients_of(real)[200:]
    contract = contract_of(target="patients.sex", queries=QUERIES)
    document = report_of(tmp_path, contract, real, clinic(200, 7), took_part, held_out).to_json()
    assert set(numbers(document, NUMBERS)) == {
        "distance of columns, mean",
        "distance of pairs, mean",
        "distance of numbers of children, mean",
        "distance of columns of parents and children, mean",
        "error of queries, mean",
        "classifier on synthetic rows, ROC AUC",
        "classifier on real rows, ROC AUC",
        "rows held out",
    }
    assert [item.key for item in measures(document)] == ["columns", "pairs", "f1", "auc", "accuracy"]
    assert copies(document) is None


def test_rows_of_owners_follow_foreign_keys_and_nulls_join_nothing(tmp_path: Path) -> None:
    tables = contract_of().linked
    rows = {
        "patients": pa.table({"patient id": ["a", "b", None], "birth": [1, 2, 3], "sex": ["F", "M", "F"]}),
        "stays": pa.table({"stay": ["s", "t", None], "patient id": ["a", "b", "a"]}),
        "diagnoses": pa.table({"stay": ["s", "t", None, "s", "other"], "line": ["1", "1", "1", "2", "1"]}),
    }
    owners = pa.table({"_id": ["a", "b"], "_owner": [fingerprint(each).hex() for each in "ab"]})
    stored(tmp_path / "owners", owners)
    found = rows_of(tables, rows, tmp_path, np.array([fingerprint("a")], FINGERPRINT_DTYPE))
    assert found["patients"]["birth"].to_pylist() == [1]
    assert found["stays"]["stay"].to_pylist() == ["s", None]
    assert found["diagnoses"]["line"].to_pylist() == ["1", "2"]
    nobody = rows_of(tables, rows, tmp_path, np.empty(0, FINGERPRINT_DTYPE))
    assert [table.num_rows for table in nobody.values()] == [0, 0, 0]


def test_faults_of_tables_make_none_of_what_the_report_names() -> None:
    query = "SELECT count(*) FROM patients"
    document = document_of(target="patients.sex", queries={"a": query})
    document["tables"]["stays"].pop("max_children")
    with pytest.raises(ContractError) as caught:
        validated(DataContract, document, "clinic")
    assert "tables.stays.max_children: missing" in str(caught.value) and "quality" not in str(caught.value)


@pytest.mark.parametrize(
    ("quality", "message"),
    [
        ({"target": "stays.ward"}, "quality.target: 'stays.ward' is no column of the root; accepted: patients.COLUMN"),
        ({"target": "sex"}, "quality.target: column 'sex' is not declared; accepted: patients.birth, patients.sex"),
        ({"target": "patients.remark"}, "quality.target: column 'patients.remark' is not modelled; accepted: patients"),
        ({"protected": ["patients.sex"]}, "quality.protected: with tables; accepted: holdout, target and queries"),
        ({"task": "regression"}, "quality.task: with tables; accepted: holdout, target and queries"),
        ({"queries": {"a": "SELECT 1 FROM nurses"}}, "quality.queries.a: nurses is no declared table; accepted: one"),
        (
            {"queries": {"a": "DROP TABLE stays"}},
            "quality.queries.a: this is not one SELECT; accepted: one SELECT over",
        ),
        ({"queries": {"a": "SELECT 1; SELECT 2"}}, "quality.queries.a: this is not one SELECT"),
        ({"queries": {"a": "SELECT count(*) FROM read_csv('/x')"}}, "quality.queries.a: READ_CSV('/x') is no declared"),
        ({"queries": {"a": "SELECT count(*) FROM '/x.csv'"}}, 'quality.queries.a: "/x.csv" is no declared table'),
        ({"queries": {"a": "SELECT 1 FROM other.stays"}}, "quality.queries.a: other.stays is no declared table"),
        ({"queries": {"A b": "SELECT 1"}}, "quality.queries"),
        ({"queries": {"a": ""}}, "quality.queries.a"),
    ],
)
def test_quality_that_a_contract_with_tables_cannot_ask_for(quality: dict[str, Any], message: str) -> None:
    with pytest.raises(ContractError) as refused:
        contract_of(**quality)
    assert message in str(refused.value)


def test_a_fault_of_a_table_gives_none_of_what_names_the_tables() -> None:
    document = document_of(target="patients.sex", queries={"a": "SELECT count(*) FROM stays"})
    document["tables"]["stays"]["max_children"] = 0
    (fault,) = draft_contract(document, {}).faults
    assert fault.startswith("tables.stays.max_children")


def test_queries_may_join_and_name_tables_of_their_own() -> None:
    text = 'WITH few AS (SELECT * FROM Stays) SELECT sex, avg(1) FROM few JOIN patients USING ("patient id") GROUP BY 1'
    contract = contract_of(queries={"few": text, "both": "SELECT 1 FROM codes UNION ALL SELECT 2 FROM stays"})
    assert contract.quality.queries["few"] == text
    assert "queries" not in contract_of().snapshot()["quality"]
    assert contract.mechanism_snapshot() == contract_of().mechanism_snapshot()


def test_queries_without_tables_are_refused() -> None:
    document = document_of(queries=QUERIES) | {"columns": {"a": {"type": "identifier"}, "b": {"type": "boolean"}}}
    del document["tables"]
    document["source"]["key"] = ["a"]
    document["privacy"] |= {"owner_columns": ["a"], "max_contributions": 1}
    with pytest.raises(ContractError) as refused:
        validated(DataContract, document, "clinic")
    assert str(refused.value) == "clinic: quality.queries: without tables; accepted: leave it out"
