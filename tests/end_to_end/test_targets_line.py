"""A line whose contract has a target: approved releases of two periods, a crash on the way, lineage, a withdrawal."""

import copy
import datetime as dt
import json
from collections import Counter

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from deployment import Deployment
from inside import inside
from line_cases import SMALL, ledger_of, run_here, small_table, storage_of
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.utils.config import Config

from dpsynth_platform.foundation.errors import PublicationFailed
from dpsynth_platform.foundation.storage import Place, write_table
from dpsynth_platform.lineage.naming import dataset_name
from dpsynth_platform.lineage.store import LineageStore
from dpsynth_platform.release import delta_target, iceberg_target
from dpsynth_platform.reviewing.decisions import approve
from dpsynth_platform.reviewing.withdrawing import withdraw

pytestmark = pytest.mark.end_to_end
MONTHS = ("2026-01", "2026-02")


def two_months(root, **release):
    """The small deployment with rows of two months."""
    deployment = Deployment(root, contract=copy.deepcopy(SMALL))
    deployment.contract["source"]["period_column"] = "day"
    deployment.contract["columns"]["day"] = {"type": "date", "min": "2026-01-01", "max": "2026-02-28"}
    deployment.contract["release"] |= {"cadence": "monthly", "start": MONTHS[0]} | release
    deployment.write()
    parts = [
        small_table(1500, first_person=2000 * month).append_column(
            "day", pa.array([dt.date(2026, month + 1, 1 + number % 28) for number in range(1500)])
        )
        for month in range(2)
    ]
    table = pa.concat_tables(parts)
    write_table(deployment.settings.home / "sources" / "people", table.schema, table.to_batches())
    return deployment


def release_of(deployment, month):
    """Runs a month up to its candidate, approves it, and tries to release it."""
    ran = run_here(deployment, period=month, accelerator=inside(deployment))
    assert ran.success, ran.failures
    approve(deployment.settings, Place("people", month), "reviewer", "")
    return run_here(deployment, "people_release", period=month)


def ended(deployment):
    """Terminal events of `people.released`."""
    events = map(json.loads, deployment.settings.lineage_file.read_text().splitlines())
    return [event for event in events if event["job"]["name"] == "people.released" and event["eventType"] != "START"]


def test_a_delta_and_an_iceberg_table_of_two_periods(tmp_path, monkeypatch):
    lake = {"format": "iceberg", "uri": "sqlite:///${DPSYNTH_HOME}/lake.db", "table": "open.people"}
    deployment = two_months(tmp_path, publish=[{"uri": "${DPSYNTH_HOME}/shared/people"}, lake])
    place = deployment.settings.home / "shared" / "people"
    monkeypatch.setenv("PYICEBERG_CATALOG__DEFAULT__WAREHOUSE", str(tmp_path / "lake"))
    monkeypatch.setattr("pyiceberg.catalog._ENV_CONFIG", Config())  # which it reads once a process
    catalog = SqlCatalog("default", uri=f"sqlite:///{deployment.settings.home / 'lake.db'}")
    catalog.create_namespace("open")
    in_catalog = f"sqlite:///{deployment.settings.home / 'lake.db'}/default.open.people"
    first = release_of(deployment, MONTHS[0])
    assert first.success, first.failures
    assert any(f"is now in {place}" in line for line in first.said["released"])
    assert DeltaTable(place).version() == 1

    # The process ends after the commit, before anything is recorded: the release stays released.
    def die(*_):
        raise PublicationFailed("the test ends it here")

    with monkeypatch.context() as patch:
        patch.setattr(delta_target, "_check", die)
        patch.setattr(iceberg_target, "_check", die)
        second = release_of(deployment, MONTHS[1])
    for target in (place, in_catalog):
        assert f"is published, but is not in its target {target}" in second.failures["released"]
    assert "run it again" in second.failures["released"]
    ids = [storage_of(deployment).require(Place("people", month), "released").facts["release_id"] for month in MONTHS]
    assert [event.subject for event in ledger_of(deployment).history(kinds=["released"])] == ids
    assert DeltaTable(place).version() == 2
    spent = ledger_of(deployment).entries()

    again = run_here(deployment, "people_release", period=MONTHS[1])
    assert again.success, again.failures
    assert any(f"is already in {place}" in line for line in again.said["released"])
    table = DeltaTable(place)
    assert table.version() == 2
    rows = table.to_pyarrow_table()
    found = zip(rows["period"].to_pylist(), rows["release"].to_pylist(), strict=True)
    assert Counter(found) == dict.fromkeys(zip(MONTHS, ids, strict=True), 200)
    assert ledger_of(deployment).entries() == spent
    lake = catalog.load_table("open.people")
    assert [snapshot.summary["dpsynth.release"] for snapshot in lake.snapshots()] == ids
    same = lake.scan().to_arrow().select(rows.column_names).cast(rows.schema)
    order = [(name, "ascending") for name in ("period", *rows.column_names)]
    assert same.sort_by(order).equals(rows.sort_by(order))

    states = [event["eventType"] for event in ended(deployment)]
    assert states == ["COMPLETE", "FAIL", "COMPLETE"]
    for target in (place, in_catalog):
        node = dataset_name(target)
        for event, release in zip((ended(deployment)[0], ended(deployment)[2]), ids, strict=True):
            (copied,) = (output for output in event["outputs"] if output["name"].strip("/") == node.name.strip("/"))
            assert copied["facets"]["version"]["datasetVersion"] == release
            assert "dpsynth_release" not in copied["facets"]
        # Whoever makes the table a source is charged with what both months cost.
        edges = LineageStore(deployment.settings.ledger_url).edges(node)
        paid = {edge.parent.name for edge in edges if edge.relation == "paid-by"}
        assert paid == {entry.entry_id for entry in spent}
        assert len(paid) == 2

    done = withdraw(deployment.settings, ids[0], "Cy", "why")
    for target in (place, in_catalog):
        (left,) = (warning for warning in done.warnings if str(target) in warning)
        assert f"release is {ids[0]}" in left
