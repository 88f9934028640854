"""The whole line where nobody may list the values of columns: learned, paid for and stated, and rare ones hidden."""

from __future__ import annotations

import copy
import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from deployment import Deployment
from inside import inside, worker_inside
from leak_cases import found
from line_cases import PEOPLE, REGIONS, SMALL, ledger_of, released, run_here, small_table, storage_of

from dpsynth_platform.definitions import build_definitions
from dpsynth_platform.foundation.storage import read_table
from dpsynth_platform.operations.rehearsal import rehearse
from dpsynth_platform.release.verify import verify_release
from dpsynth_platform.reviewing.forecasts import forecast
from dpsynth_platform.synth.tabular.measurements import FILE_NAME

pytestmark = pytest.mark.end_to_end

SECRET = "markedregion"
"""Of one person alone, in both of its records. The chance that it is shown is below 1e-8, by the plan's slack."""


def secretive_table() -> pa.Table:
    """The small table with one person's own region, and undeclared codes; neither column has nulls.

    It has so many rows that the four regions are ten deviations of the noise above the threshold.
    """
    table = small_table(4500)
    region = [SECRET if row in (0, 1) else value for row, value in enumerate(table["region"].to_pylist())]
    code = np.where(np.arange(table.num_rows) == 0, 471108150, np.arange(table.num_rows) % 3)
    fields = [pa.field("region", pa.string(), nullable=False), pa.field("code", pa.int32(), nullable=False)]
    return table.set_column(2, fields[0], pa.array(region)).append_column(fields[1], pa.array(code, pa.int32()))


@pytest.fixture(scope="module")
def deployment(tmp_path_factory: pytest.TempPathFactory) -> Deployment:
    contract = copy.deepcopy(SMALL)
    contract["columns"]["region"] = {"type": "categorical", "values": "learned", "most": 10}
    contract["columns"]["code"] = {"type": "categorical", "values": "learned", "most": 10}
    deployment = Deployment(tmp_path_factory.mktemp("learned"), contract=contract)
    deployment.write().with_source(secretive_table())
    ran = run_here(deployment, accelerator=inside(deployment))
    assert ran.success, ran.failures
    return deployment


def test_values_are_learned_on_disk_and_paid_for(deployment: Deployment) -> None:
    (measured,) = storage_of(deployment).require(PEOPLE, "model").directory.rglob(FILE_NAME)
    lines = [json.loads(line) for line in measured.read_text().splitlines()]
    assert [line["kind"] for line in lines[:4]] == ["header", "values", "values", "one-way"]
    assert sorted(line["values"] for line in lines[1:3]) == [["0", "1", "2"], REGIONS]
    ledger = ledger_of(deployment)
    (entry,) = ledger.entries()
    kinds = [part["kind"] for part in entry.request.event["events"]]
    assert kinds.count("thresholded-gaussian-counts") == 2
    assert 0 < entry.request.delta_slack <= 0.0100001 * entry.request.guarantee.delta
    assert not ledger.verify(()).problems


def test_the_release_has_the_learned_values_in_their_own_types(deployment: Deployment) -> None:
    synthetic = pa.Table.from_batches(
        read_table(storage_of(deployment).require(PEOPLE, "synthetic").directory / "table")
    )
    assert synthetic.schema.field("code").type == pa.int32()
    assert set(synthetic["region"].to_pylist()) == set(REGIONS)
    assert set(synthetic["code"].to_pylist()) == {0, 1, 2}


def test_canaries_plant_no_value(deployment: Deployment) -> None:
    canaries = pa.Table.from_batches(read_table(storage_of(deployment).require(PEOPLE, "canaries").directory / "table"))
    assert canaries["region"].null_count == canaries["code"].null_count == canaries.num_rows > 0


def test_reports_and_dossier_know_the_learned_values(deployment: Deployment) -> None:
    folder = released(deployment)
    report = json.loads((storage_of(deployment).require(PEOPLE, "quality").directory / "report.json").read_text())
    assert "those of the synthetic rows" in report["cells"]
    distances = {item["column"]: item["synthetic"] for item in report["fidelity"]["columns"]}
    assert distances["region"] < 0.3
    dossier = (folder / "dossier.json").read_text()
    assert "Which values the columns have that declare none (2)" in dossier
    profile = {column["name"]: column.get("histogram") for column in json.loads(dossier)["synthetic"]["columns"]}
    assert profile["region"]["labels"] == sorted(REGIONS)
    assert verify_release(folder).ok
    home = deployment.settings.home
    assert not found((SECRET, "471108150"), deployment.root, without=(home / "restricted", home / "sources"))


def test_a_column_of_rare_values_alone_is_released_empty(tmp_path: Path) -> None:
    contract = copy.deepcopy(SMALL)
    contract["columns"]["region"] = {"type": "categorical", "values": "learned"}
    # One of so many values is shown with at most 1,500 times the slack of a person's one, 1e-10 here: 1.5e-7.
    contract["privacy"]["guarantee"]["delta"] = 1e-8
    deployment = Deployment(tmp_path, contract=contract)
    table = small_table()
    rare = pa.array([f"region {number}" for number in range(table.num_rows)])
    deployment.write().with_source(table.set_column(2, pa.field("region", pa.string(), nullable=False), rare))
    assert run_here(deployment, accelerator=inside(deployment)).success
    folder = released(deployment)
    assert verify_release(folder).ok
    published = pa.Table.from_batches(read_table(folder / "data"))
    assert published["region"].null_count == published.num_rows == SMALL["generate"]["rows"]


def test_a_plan_says_what_is_learned_and_can_be_rehearsed(deployment: Deployment) -> None:
    planned = forecast(deployment.settings, "people", None)
    assert "the values of region are learned: those that" in planned.preparation
    assert "at most 10" in planned.preparation
    with worker_inside():
        assert rehearse(deployment.settings, build_definitions, "people", None, 300, lambda words: None)["success"]
