"""The whole line of linked tables: from a directory of tables to a verified release."""

from __future__ import annotations

import copy
import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from clinic import TABLES, clinic, written
from event_cases import TEAM, event
from line_cases import PEOPLE, ledger_of, released, run_here, storage_of
from linked_line_cases import clinic_deployment

from dpsynth_platform.audit.attacks import ATTACKS, LINK_ATTACKS, LINKED_ROWS
from dpsynth_platform.definitions import build_definitions
from dpsynth_platform.foundation.errors import ClearanceRefused, MechanismFailed
from dpsynth_platform.foundation.storage import count_rows, read_table, table_schema
from dpsynth_platform.lineage.naming import dataset_name
from dpsynth_platform.lineage.store import LineageStore
from dpsynth_platform.operations.rehearsal import rehearse
from dpsynth_platform.release.verify import verify_release
from dpsynth_platform.reviewing.forecasts import forecast
from dpsynth_platform.synth.interface import MechanismRun
from dpsynth_platform.synth.neural.network_generator import NETWORK
from dpsynth_platform.synth.relational.drawing import LinkedDrawing
from dpsynth_platform.synth.tabular.marginals import MarginalGenerator
from dpsynth_platform.synth.tabular.measurements import MeasurementLog, NoisyCounts
from dpsynth_platform.training.weights import is_trained

pytestmark = [pytest.mark.end_to_end, pytest.mark.usefixtures("worker_here")]

TO_SYNTHETIC = ["raw", "scrubbed", "canaries", "clearance", "bounded", "model", "synthetic"]


def test_a_release_of_linked_tables(tmp_path: Path) -> None:
    deployment = clinic_deployment(tmp_path)
    ran = run_here(deployment)
    assert ran.success, ran.failures
    canaries = storage_of(deployment).require(PEOPLE, "canaries")
    assert sorted(place.name for place in (canaries.directory / "table").iterdir()) == [
        "diagnoses",
        "patients",
        "stays",
    ]
    audit = json.loads((storage_of(deployment).require(PEOPLE, "audit").directory / "report.json").read_text())
    assert {item["name"] for item in audit["attacks"]} == {each.name for each in (*ATTACKS, *LINK_ATTACKS)}
    folder = released(deployment)
    report = verify_release(folder)
    assert report.ok, report.problems
    assert sorted(path.name for path in (folder / "data").iterdir()) == ["codes", "diagnoses", "patients", "stays"]


def test_a_release_of_linked_tables_by_networks(tmp_path: Path) -> None:
    network = {"steps": 4, "batch_size": 60, "width": 4}
    deployment = clinic_deployment(tmp_path, generate={"method": "arn", "rows": 50, "network": network})
    ran = run_here(deployment)
    assert ran.success, ran.failures
    model = storage_of(deployment).require(PEOPLE, "model").directory
    for table in ("patients", "stays", "diagnoses"):
        assert is_trained(model / table / NETWORK)
        executed = json.loads((model / table / NETWORK / "trained.json").read_text())["executed_steps"]
        assert executed == network["steps"]
    audit = json.loads((storage_of(deployment).require(PEOPLE, "audit").directory / "report.json").read_text())
    assert {item["name"] for item in audit["attacks"]} == {each.name for each in (*ATTACKS, LINKED_ROWS)}
    folder = released(deployment)
    report = verify_release(folder)
    assert report.ok, report.problems
    dossier = (folder / "dossier.json").read_text()
    assert "the trained weights of its network" in dossier and "does not say how it clips" not in dossier


def test_types_that_delta_tables_lack_and_keys_of_two_types_are_released(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tables, declared = clinic(600), copy.deepcopy(TABLES["tables"])
    patients, stays, codes = tables["patients"], tables["stays"], tables["codes"]
    number = pa.array(range(len(patients)))
    odd: dict[str, tuple[pa.Array, dict[str, Any]]] = {
        "hour": (pc.bit_wise_and(number, 255).cast(pa.int32()).cast(pa.time32("s")), {"type": "time"}),
        "small": (pc.bit_wise_and(number, 255).cast(pa.uint8()), {"type": "integer", "min": 0, "max": 255}),
        "half": (pc.bit_wise_and(number, 3).cast(pa.float16()), {"type": "float", "min": 0, "max": 3}),
        "days": (pc.bit_wise_and(number, 3).cast(pa.duration("s")), {"type": "integer", "min": 0, "max": 3}),
        "seen": (pa.array(["a", "b"] * (len(patients) // 2), pa.string_view()), {"type": "categorical"}),
        "tags": (pa.array([["x"]] * len(patients)), {"type": "text"}),
        "a__b": (number, {"ignore": True}),
    }
    odd["seen"][1]["values"] = ["a", "b"]
    for column, (values, part) in odd.items():
        patients = patients.append_column(column, values)
        declared["patients"]["columns"][column] = part
    place = patients.schema.get_field_index("patient id")
    patients = patients.set_column(place, "patient id", patients["patient id"].cast(pa.uint64()))
    place = stays.schema.get_field_index("patient id")
    stays = stays.set_column(place, "patient id", stays["patient id"].cast(pa.string()))
    codes = codes.append_column("long", pa.array([2**63] * len(codes), pa.uint64()))
    real = LinkedDrawing.batches

    def without_diagnoses(*arguments: Any) -> Iterator[dict[str, pa.RecordBatch]]:
        return (found | {"diagnoses": found["diagnoses"].slice(0, 0)} for found in real(*arguments))

    monkeypatch.setattr(LinkedDrawing, "batches", without_diagnoses)  # as of a table without rows
    changed = tables | {"patients": patients, "stays": stays, "codes": codes}
    deployment = clinic_deployment(tmp_path, changed)
    deployment.contract["tables"] = declared
    deployment.write()
    ran = run_here(deployment)
    assert ran.success, ran.failures
    folder = released(deployment)
    assert verify_release(folder).ok
    found = {
        path.name: pa.Table.from_batches(read_table(path), table_schema(path)) for path in (folder / "data").iterdir()
    }
    assert set(found["stays"]["patient id"].to_pylist()) <= set(found["patients"]["patient id"].to_pylist())
    shown = {item.name: item.type for item in found["patients"].schema}
    assert [shown[name] for name in odd if name in shown] == [
        *(pa.string(), pa.int16(), pa.float32(), pa.int64(), pa.string(), pa.string())
    ]
    assert found["codes"]["long"].to_pylist() == [str(2**63)] * len(codes) and not len(found["diagnoses"])


def test_a_lookup_that_lineage_says_was_made_from_private_rows_is_refused(tmp_path: Path) -> None:
    """Before anything is spent where it is known by then, and before the release where it is reported later."""
    deployment = clinic_deployment(tmp_path)
    source = deployment.settings.home / "sources" / "people"
    assert run_here(deployment).success
    graph = LineageStore(deployment.settings.ledger_url)
    (edge,) = [each for each in graph.edges(dataset_name(source / "codes")) if each.relation == "alias"][:1]
    assert edge.parent == dataset_name(source / "codes.parquet") or edge.child == dataset_name(source / "codes.parquet")
    shown = {"namespace": "file", "facets": {}}
    made = event(
        "COMPLETE", [shown | {"name": f"{source}/diagnoses.parquet"}], [shown | {"name": f"{source}/codes.parquet"}]
    )
    graph.record(made, origin="ingested", source=TEAM)
    ran = run_here(deployment)
    assert list(ran.failures) == ["clearance"], ran.failures
    words = "a guarded table that a base has seen, or holds, without a mechanism in between"
    assert words in ran.failures["clearance"] and len(ledger_of(deployment).entries()) == 1
    written(source, clinic(500))  # another content, which needs another plan
    assert words in run_here(deployment).failures["raw"]
    with pytest.raises(ClearanceRefused, match=words):
        forecast(deployment.settings, "people", None)
    assert len(ledger_of(deployment).entries()) == 1


def test_a_rehearsal_of_linked_tables_reads_no_private_row_and_spends_nothing(tmp_path: Path) -> None:
    deployment = clinic_deployment(tmp_path)
    for name in ("patients", "stays", "diagnoses"):  # nothing but their schemas
        file = deployment.settings.home / "sources" / "people" / f"{name}.parquet"
        pq.write_table(pq.read_schema(file).empty_table(), file)
    assert rehearse(deployment.settings, build_definitions, "people", None, 200, lambda _: None)["success"]
    assert not deployment.settings.has_ledger


@pytest.mark.parametrize("low", [0, 2**63 - 9])
def test_a_rehearsal_takes_whole_numbers_beyond_64_bits_with_a_sign(tmp_path: Path, low: int) -> None:
    tables, declared = clinic(600), copy.deepcopy(TABLES["tables"])
    values = pa.array([2**63] * len(tables["patients"]), pa.uint64())
    tables["patients"] = tables["patients"].append_column("large", values)
    declared["patients"]["columns"]["large"] = {"type": "integer", "min": low, "max": 2**64 - 1}
    deployment = clinic_deployment(tmp_path, tables)
    deployment.contract["tables"] = declared
    deployment.write()
    assert rehearse(deployment.settings, build_definitions, "people", None, 200, lambda _: None)["success"]


def test_a_missing_source_and_another_type_are_said_by_the_contracts_keys(tmp_path: Path) -> None:
    tables = clinic(50)
    place = tables["stays"].schema.get_field_index("ward")
    tables["stays"] = tables["stays"].set_column(place, "ward", pa.array([[1]] * len(tables["stays"])))
    deployment = clinic_deployment(tmp_path, tables)
    checked = deployment.here("contract", "check", "people")
    assert checked.returncode == 1
    assert "tables.stays.columns.ward: declared categorical, found Arrow type" in checked.stdout + checked.stderr
    raw = run_here(deployment, steps=["raw"]).failures["raw"]
    assert "tables.stays.columns.ward: declared categorical" in raw and "columns.stays" not in raw
    shutil.rmtree(deployment.settings.home / "sources" / "people")
    checked = deployment.here("contract", "check", "people")
    assert checked.returncode == 0, "as of a single table"
    assert "source: not compared: " in checked.stdout and "there is no such file or directory" in checked.stdout
    assert "the source was not found, so that nothing but the contract was checked" in checked.stdout


@pytest.mark.parametrize("at", [1, 2])
def test_a_mechanism_killed_between_tables_resumes_under_its_entry(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: int
) -> None:
    deployment, begun = clinic_deployment(tmp_path), 0
    real = MarginalGenerator.run

    def killed(self: MarginalGenerator, run: MechanismRun) -> None:
        nonlocal begun
        begun += 1
        if begun == at + 1:
            raise MechanismFailed("killed")
        real(self, run)

    with monkeypatch.context() as patch:
        patch.setattr(MarginalGenerator, "run", killed)
        ran = run_here(deployment, steps=TO_SYNTHETIC)
    assert list(ran.failures) == ["model"] and "has paid: run again" in ran.failures["model"]
    (entry,) = ledger_of(deployment).entries()
    assert entry.state == "started"
    ran = run_here(deployment, steps=TO_SYNTHETIC)
    assert ran.success, ran.failures
    (again,) = ledger_of(deployment).entries()
    assert (again.entry_id, again.state) == (entry.entry_id, "spent")


def test_a_mechanism_killed_while_it_counts_is_spent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    deployment, counted = clinic_deployment(tmp_path), 0
    real = MeasurementLog.counts

    def killed(self: MeasurementLog, kind: str, measured: NoisyCounts) -> None:
        nonlocal counted
        counted += 1
        if counted == 20:  # of the second table
            raise MechanismFailed("killed")
        real(self, kind, measured)

    with monkeypatch.context() as patch:
        patch.setattr(MeasurementLog, "counts", killed)
        assert "had started" in run_here(deployment, steps=TO_SYNTHETIC).failures["model"]
    (entry,) = ledger_of(deployment).entries()
    assert "To spend a second time" in run_here(deployment, steps=TO_SYNTHETIC).failures["clearance"]
    assert [found.state for found in ledger_of(deployment).entries()] == ["started"]
    ran = run_here(deployment, steps=TO_SYNTHETIC, spend_again=entry.entry_id)
    assert ran.success, ran.failures
    assert sorted(found.state for found in ledger_of(deployment).entries()) == ["spent", "started"]


def test_an_unchanged_database_pays_once_and_a_changed_one_is_another_run(tmp_path: Path) -> None:
    deployment = clinic_deployment(tmp_path)
    for _ in range(2):
        ran = run_here(deployment, steps=TO_SYNTHETIC)
        assert ran.success, ran.failures
    assert len(ledger_of(deployment).entries()) == 1
    tables = clinic(600)
    written(deployment.settings.home / "sources" / "people", tables | {"stays": tables["stays"].slice(1)})
    ran = run_here(deployment, steps=TO_SYNTHETIC)
    assert ran.success, ran.failures
    assert len(ledger_of(deployment).entries()) == 2


def test_what_is_read_joins_in_the_release_and_no_key_or_text_leaves_its_place(tmp_path: Path) -> None:
    tables = clinic(600)
    ids = tables["patients"]["patient id"]
    place = tables["patients"].schema.get_field_index("patient id")
    marked = [f"MARK{number}" for number in ids.to_pylist()]
    tables["patients"] = tables["patients"].set_column(place, "patient id", [marked])
    place = tables["stays"].schema.get_field_index("patient id")
    stays = [f"MARK{number}" for number in tables["stays"]["patient id"].to_pylist()]
    tables["stays"] = tables["stays"].set_column(place, "patient id", [stays])
    deployment = clinic_deployment(tmp_path, tables)
    ran = run_here(deployment, steps=TO_SYNTHETIC)
    assert ran.success, ran.failures
    synthetic = storage_of(deployment).require(PEOPLE, "synthetic")
    found = {path.name: count_rows(path) for path in (synthetic.directory / "table").iterdir()}
    assert found["patients"] == 100 and found["codes"] == 3 and found["stays"] > 50
    home = deployment.settings.home
    for mark in ("MARK5", "likes tea"):
        held = subprocess.run(["grep", "-rlaF", mark, str(home)], capture_output=True, text=True, check=False).stdout
        assert {Path(name).parent.name for name in held.split()} <= {"people"}, held  # the source alone
    text = str(ran.materializations) + str(ran.said)
    assert "MARK" not in text and "tea" not in text
