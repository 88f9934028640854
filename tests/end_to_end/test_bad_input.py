"""Must show: whatever is wrong with contract or source is a clear error, and nothing is half done.

Each fault is met by the step that can know of it first. The message names the place, what was found and what would be
accepted; the ledger's entries, the records in storage and the releases are what they were; the step's lineage run has
one START and one FAIL; the Dagster run has failed.
"""

from __future__ import annotations

import datetime as dt
import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import dagster as dg
import pyarrow as pa
import pytest
from deployment import Deployment
from inside import inside
from line_cases import ledger_of, lineage_of, run_here, small_deployment, small_table, storage_of

from dpsynth_platform.definitions import build_definitions
from dpsynth_platform.foundation.errors import ContractError
from dpsynth_platform.foundation.storage import STEPS, Place, write_table
from dpsynth_platform.synth.planning import load_dataset

pytestmark = pytest.mark.end_to_end
PLACE = Place("people")


def source_of(deployment: Deployment) -> Path:
    return deployment.settings.home / "sources" / "people"


def replaced_by(table: pa.Table) -> Callable[[Path], None]:
    """Puts another table in the source's place."""

    def replace(source: Path) -> None:
        shutil.rmtree(source)
        write_table(source, table.schema, table.to_batches())

    return replace


def column_as(name: str, type_: pa.DataType) -> Callable[[Path], None]:
    table = small_table()
    place = table.column_names.index(name)
    return replaced_by(table.set_column(place, name, table.column(name).cast(type_)))


def damage(pattern: str) -> Callable[[Path], None]:
    """Overwrites a file's middle with other bytes."""

    def spoil(source: Path) -> None:
        for path in source.glob(pattern):
            content = path.read_bytes()
            path.write_bytes(b"not a table" * (len(content) // 11 + 1))

    return spoil


def lose(pattern: str) -> Callable[[Path], None]:
    def remove(source: Path) -> None:
        for path in source.glob(pattern):
            path.unlink()

    return remove


def all_owners(value: str | None) -> Callable[[Path], None]:
    table = small_table()
    return replaced_by(table.set_column(0, "person", pa.array([value] * table.num_rows, pa.string())))


@dataclass(frozen=True)
class Fault:
    spoil: Callable[[Path], None]
    step: str
    message: str


FAULTS = {
    "missing table": Fault(
        shutil.rmtree,
        "raw",
        r"people: source\.uri: .*/sources/people: there is no Delta table at this place; accepted: a readable Delta",
    ),
    "empty table": Fault(
        replaced_by(small_table().slice(0, 0)),
        "scrubbed",
        r"people: source\.uri: .*/sources/people: version 0 has no row",
    ),
    "damaged log": Fault(
        damage("_delta_log/*.json"),
        "raw",
        r"source\.uri: .*: the Delta table cannot be read \(\w+\); accepted: a readable",
    ),
    "lost log": Fault(lose("_delta_log/*.json"), "raw", r"source\.uri: .*: there is no Delta table at this place"),
    "damaged file": Fault(
        damage("*.parquet"), "scrubbed", r"version 0: a data file is missing, damaged or of another type \(\w+\)"
    ),
    "lost file": Fault(
        lose("*.parquet"), "scrubbed", r"version 0: a data file is missing, damaged or of another type \(\w+\)"
    ),
    "text for a number": Fault(
        column_as("score", pa.string()),
        "raw",
        r"people: source: columns\.score: declared integer, found Arrow type string; accepted: integer, float, ",
    ),
    "number for a text": Fault(
        replaced_by(small_table().set_column(2, "region", pa.array(range(1500), pa.float64()))),
        "raw",
        r"people: source: columns\.region: declared categorical, found Arrow type double; accepted: string, ",
    ),
    "code for a text": Fault(
        replaced_by(small_table().set_column(2, "region", pa.array(range(1500), pa.int64()))),
        "raw",
        r"people: columns\.region\.values: '.*', but the source holds int64; accepted: whole numbers of that type",
    ),
    "no value that is listed": Fault(
        replaced_by(small_table().set_column(2, "region", pa.array(["nowhere"] * 1500))),
        "scrubbed",
        r"people: columns\.region\.values: none, or hardly any, of the column's values is listed, so it would",
    ),
    "list for a text": Fault(
        replaced_by(small_table().set_column(2, "region", pa.array([["a"]] * 1500))),
        "raw",
        r"people: source: columns\.region: declared categorical, found Arrow type list<.*>; accepted: ignore: true",
    ),
    "undeclared column": Fault(
        replaced_by(small_table().append_column("salary", pa.array([1] * 1500))),
        "raw",
        r"people: source: not declared in the contract: salary; declare each, with ignore: true to leave it out",
    ),
    "missing column": Fault(
        replaced_by(small_table().drop_columns(["score"])),
        "raw",
        r"people: source: column 'score' \(integer\) is declared, but not in the source",
    ),
    "missing owner column": Fault(
        replaced_by(small_table().drop_columns(["person"])),
        "raw",
        r"people: source: column 'person' \(identifier\) is declared, but not in the source",
    ),
    "nobody owns a row": Fault(
        all_owners(None), "scrubbed", r"people: source: no row has an owner in 'person'; accepted: owners that are not"
    ),
    "owners that are blank": Fault(all_owners("  "), "scrubbed", r"people: source: no row has an owner in 'person'"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_bad_source_is_a_clear_error_and_nothing_is_half_done(tmp_path: Path, name: str) -> None:
    deployment, fault = small_deployment(tmp_path, owner_normalization=["trim"]), FAULTS[name]
    fault.spoil(source_of(deployment))
    with dg.DagsterInstance.local_temp(str(tmp_path)) as instance:
        ran = run_here(deployment, instance=instance, accelerator=inside(deployment))
        assert instance.get_run_by_id(ran.result.run_id).status == dg.DagsterRunStatus.FAILURE
    assert list(ran.failures) == [fault.step]
    assert re.search(fault.message, ran.failures[fault.step]), ran.failures
    assert "(details: restricted log" in ran.failures[fault.step]
    assert_nothing_half_done(deployment, fault.step)


def assert_nothing_half_done(deployment: Deployment, failed: str, place: Place = PLACE) -> None:
    """No entry, no record of the step that failed or of one after it, no output, one START and one FAIL."""
    assert ledger_of(deployment).entries() == []
    assert {event.kind for event in ledger_of(deployment).history()} <= {"opened", "bound"}
    storage = storage_of(deployment)
    for step in STEPS[STEPS.index(failed) :]:
        if step != "canaries":  # made from the contract alone, beside the source's steps
            assert storage.read(place, step) is None
            assert storage.outputs(place, step) == []
    assert not (deployment.settings.home / "public").exists()
    runs = lineage_of(deployment).runs.values()
    assert [run.state for run in runs if run.job == f"{place.dataset}.{failed}"] == ["FAIL"]
    assert "RUNNING" not in {run.state for run in runs}
    events = deployment.settings.lineage_file.read_text().splitlines()
    assert sum(f'"{place.dataset}.{failed}"' in line for line in events) == 2


@pytest.mark.parametrize("name", ["text for a number", "undeclared column", "damaged log", "missing table"])
def test_a_source_that_goes_bad_later_leaves_what_was_there(candidate: Deployment, name: str) -> None:
    fault, storage = FAULTS[name], storage_of(candidate)
    before = {step: storage.read(PLACE, step) for step in STEPS}, ledger_of(candidate).head()
    assert before[0]["quality"] is not None
    fault.spoil(source_of(candidate))
    ran = run_here(candidate, accelerator=inside(candidate))
    assert re.search(fault.message, ran.failures["raw"]), ran.failures
    assert ({step: storage.read(PLACE, step) for step in STEPS}, ledger_of(candidate).head()) == before


def test_another_table_after_raw_is_not_read_under_its_run(tmp_path: Path) -> None:
    """Its versions have the same numbers, and it may be another family's."""
    deployment = small_deployment(tmp_path)
    assert run_here(deployment, steps=["raw"]).success
    replaced_by(small_table(seed=4))(source_of(deployment))
    ran = run_here(deployment, steps=["scrubbed"])
    assert "another table is at the source's place" in ran.failures["scrubbed"]
    assert storage_of(deployment).read(PLACE, "scrubbed") is None


def test_some_rows_without_an_owner_are_left_out(tmp_path: Path) -> None:
    deployment = small_deployment(tmp_path)
    table = small_table()
    people = [None if row < 10 else person for row, person in enumerate(table.column("person").to_pylist())]
    replaced_by(table.set_column(0, "person", pa.array(people, pa.string())))(source_of(deployment))
    ran = run_here(deployment, steps=["raw", "scrubbed"])
    assert ran.success, ran.failures
    assert ran.materializations["scrubbed"]["dagster/row_count"] == table.num_rows - 10


def test_a_period_without_rows(tmp_path: Path) -> None:
    deployment = small_deployment(tmp_path)
    deployment.contract["columns"]["day"] = {"type": "date", "min": "2020-01-01", "max": "2020-12-31"}
    deployment.contract["source"]["period_column"] = "day"
    deployment.contract["release"] |= {"cadence": "monthly", "start": "2020-01"}
    deployment.write()
    table = small_table()
    replaced_by(table.append_column("day", pa.array([dt.date(2020, 2, 3)] * table.num_rows)))(source_of(deployment))
    ran = run_here(deployment, period="2020-03", accelerator=inside(deployment))
    assert list(ran.failures) == ["scrubbed"]
    assert re.search(r"people: source\.uri: .*: version 0 has no row of period 2020-03", ran.failures["scrubbed"])
    assert_nothing_half_done(deployment, "scrubbed", Place("people", "2020-03"))


CONTRACTS: dict[str, tuple[tuple[str, ...], Any, str]] = {
    "unknown key": (
        ("generate", "epoch"),
        3,
        "people.yaml: generate.epoch: unknown key; accepted: base_model, constraints, image, language, method, network",
    ),
    "noise by somebody else": (
        ("source", "federation"),
        {
            "participants": {"north": 64 * "a", "south": 64 * "b"},
            "minimum": 2,
            "most_records": 100,
            "trust": "everybody",
        },
        "people.yaml: source.federation.trust: 'everybody'; accepted: 'distributed', 'central' or 'local'",
    ),
    "negative epsilon": (
        ("privacy", "guarantee", "epsilon"),
        -1.0,
        "people.yaml: privacy.guarantee.epsilon: -1.0; accepted: above 0",
    ),
    "public texts without a method that uses them": (
        ("generate",),
        {"method": "mst", "rows": 100, "public": {"uri": "/public/texts", "why": "published by ourselves"}},
        "people.yaml: generate.public: is for method aim, jam, mwem, rap, gem, dp_2stage, aug_pe, and the method is",
    ),
    "texts of a public table that is not named": (
        ("generate",),
        {"method": "aug_pe", "rows": 100, "text": {"evolution": {"ways": ["retrieve"]}}},
        "people.yaml: generate.public: missing, and text.evolution.ways has 'retrieve'; accepted: a public table of",
    ),
    "votes that no text shares": (
        ("generate",),
        {"method": "aug_pe", "rows": 100, "text": {"evolution": {"nearest": 0}}},
        "people.yaml: generate.text.evolution.nearest: 0; accepted: at least 1",
    ),
    "a series of one record": (
        ("generate",),
        {"method": "dp_inference", "rows": 100, "text": {"inference": {"in_series": True}}},
        "people.yaml: generate.text.inference.in_series: true with records_per_owner 1; accepted: with 2 or more",
    ),
    "owner column that is not declared": (
        ("privacy", "owner_columns"),
        ["persona"],
        "people.yaml: privacy.owner_columns: column 'persona' is not declared; accepted: outcome, person, region",
    ),
}


@pytest.mark.parametrize("name", CONTRACTS)
def test_a_bad_contract_stops_before_anything_is_made(tmp_path: Path, name: str) -> None:
    path, value, message = CONTRACTS[name]
    deployment = spoiled_contract(tmp_path, path, value)
    with pytest.raises(ContractError) as caught:
        load_dataset(deployment.settings, "people")
    assert message in str(caught.value)
    definitions = build_definitions(deployment.settings)  # the sweep and the like go on; there is nothing to run
    assert (list(definitions.assets or ()), list(definitions.jobs or ())) == ([], [])
    assert "contract_faults" in {sensor.name for sensor in definitions.sensors or ()}
    assert [path.name for path in deployment.settings.home.iterdir()] == ["sources"]


def spoiled_contract(root: Path, path: tuple[str, ...], value: Any) -> Deployment:
    deployment = small_deployment(root)
    part = deployment.contract
    for key in path[:-1]:
        part = part[key]
    part[path[-1]] = value
    return deployment.write()


def test_the_command_says_so_and_ends_with_an_error(tmp_path: Path) -> None:
    deployment = spoiled_contract(tmp_path, *CONTRACTS["negative epsilon"][:2])
    for arguments in (("run", "people"), ("contract", "check", str(deployment.settings.contracts / "people.yaml"))):
        done = (deployment.dpsynth if arguments[0] == "run" else deployment.here)(*arguments)
        assert done.returncode == 1
        assert CONTRACTS["negative epsilon"][2] in done.stderr
        assert "Traceback" not in done.stdout + done.stderr
    assert [path.name for path in deployment.settings.home.iterdir()] == ["sources"]


def test_a_run_on_an_empty_table_ends_with_an_error(tmp_path: Path) -> None:
    deployment = small_deployment(tmp_path)
    FAULTS["empty table"].spoil(source_of(deployment))
    done = deployment.here("run", "people")
    assert done.returncode == 1
    assert re.search(rf"scrubbed failed: {FAULTS['empty table'].message}", done.stderr), done.stderr
    assert_nothing_half_done(deployment, "scrubbed")


@pytest.mark.parametrize(
    ("tag", "told"),
    [("", "'' is empty"), ("Ada\nBo", "control characters"), ("a" * 1001, "1001 characters; accepted: at most")],
    ids=["empty", "two lines", "long"],
)
def test_a_run_by_nobody_who_can_be_named_begins_nothing(tmp_path: Path, tag: str, told: str) -> None:
    """Whoever can start a run in Dagster can write its tags."""
    deployment = small_deployment(tmp_path)
    ran = run_here(deployment, steps=["raw"], user=tag)
    assert "run tag dpsynth/requested_by: " in ran.failures["raw"]
    assert told in ran.failures["raw"]
    assert ledger_of(deployment).history() == []
    assert storage_of(deployment).places() == []
