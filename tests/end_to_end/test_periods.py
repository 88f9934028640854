"""A dataset with a cadence: a partition a month, a schedule, and the sensor that turns approvals into releases."""

import datetime as dt
from zoneinfo import ZoneInfo

import dagster as dg
import numpy as np
import pyarrow as pa
import pytest
import yaml
from deltalake import write_deltalake
from deployment import Deployment
from inside import inside
from line_cases import NO_CHANCE, ledger_of, run_here, storage_of

from dpsynth_platform.definitions import build_definitions
from dpsynth_platform.demo.visits import prepare_visits, visits_table
from dpsynth_platform.foundation.errors import ConfigurationError, ReleaseRefused
from dpsynth_platform.foundation.settings import PACKAGE_ROOT
from dpsynth_platform.foundation.storage import Place, read_table
from dpsynth_platform.operations.operating import run_dataset
from dpsynth_platform.reviewing import decisions, forecasts, releases, verification
from dpsynth_platform.reviewing.withdrawing import withdraw
from sensors.approvals import approval_sensor

pytestmark = pytest.mark.end_to_end
MONTH = "2026-02"
PLACE = Place("visits", MONTH)


@pytest.fixture(scope="module")
def visits(tmp_path_factory):
    """The clinic's deployment with one month's candidate, and that run."""
    documents = [
        yaml.safe_load((PACKAGE_ROOT / "deploy" / path).read_text())
        for path in ("contracts/visits.yaml", "families/clinic-patients.yaml")
    ]
    documents[0]["audit"] |= NO_CHANCE
    deployment = Deployment(tmp_path_factory.mktemp("visits"), *documents).write()
    prepare_visits(deployment.settings.home)
    ran = run_here(deployment, "visits_candidate", period=MONTH, accelerator=inside(deployment))
    assert ran.success, ran.failures
    return deployment


@pytest.fixture(scope="module")
def repository(visits):
    return build_definitions(visits.settings).get_repository_def()


def test_every_asset_is_partitioned_by_month(repository):
    graph = repository.asset_graph
    for key in graph.get_all_asset_keys():
        partitions = graph.get(key).partitions_def
        assert isinstance(partitions, dg.TimeWindowPartitionsDefinition)
        months = partitions.get_partition_keys(current_time=dt.datetime(2026, 4, 15, tzinfo=dt.UTC))
        assert list(months) == ["2026-01", "2026-02", "2026-03"]


def test_the_schedule_asks_for_the_month_that_has_ended(repository):
    schedule = repository.get_schedule_def("visits_monthly")
    assert schedule.cron_schedule == "0 0 1 * *"
    with dg.DagsterInstance.ephemeral() as instance:
        context = dg.build_schedule_context(
            instance=instance,
            scheduled_execution_time=dt.datetime(2026, 3, 1, tzinfo=dt.UTC),
            repository_def=repository,
        )
        (request,) = schedule.evaluate_tick(context).run_requests
    assert request.partition_key == "2026-02"
    assert schedule.job_name == "visits_candidate"


def test_a_run_reads_its_month_only(visits):
    rows = visits_table()
    in_month = sum(day.strftime("%Y-%m") == MONTH for day in rows.column("visit_date").to_pylist())
    storage = storage_of(visits)
    assert 0 < in_month < rows.num_rows / 2
    assert storage.require(PLACE, "scrubbed").facts["rows"] == in_month
    synthetic = storage.require(PLACE, "synthetic").directory / "table"
    days = [day for batch in read_table(synthetic, columns=["visit_date"]) for day in batch.column(0).to_pylist()]
    assert len(days) == 1500
    assert {day.strftime("%Y-%m") for day in days} == {MONTH}
    (entry,) = ledger_of(visits).entries()
    assert entry.request.place == f"visits/{MONTH}"
    assert storage.places() == [PLACE]


def test_a_month_is_of_the_zones_own_clocks(tmp_path):
    """Moments in UTC: those of the month's last evening in Kolkata are in the release, and their days are its days."""
    documents = [
        yaml.safe_load((PACKAGE_ROOT / "deploy" / path).read_text())
        for path in ("contracts/visits.yaml", "families/clinic-patients.yaml")
    ]
    documents[0]["release"]["time_zone"] = "Asia/Kolkata"
    deployment = Deployment(tmp_path, *documents).write()
    rows, hours = visits_table(), np.random.default_rng(5)
    days = rows.column("visit_date").to_pylist()
    clocks = [dt.datetime.combine(day, dt.time(int(hours.integers(24)))) for day in days]
    moments = pa.array([clock.replace(tzinfo=ZoneInfo("Asia/Kolkata")) for clock in clocks], pa.timestamp("us", "UTC"))
    place = rows.column_names.index("visit_date")
    write_deltalake(str(deployment.settings.home / "sources" / "visits"), rows.set_column(place, "visit_date", moments))
    steps = ["raw", "scrubbed", "canaries", "clearance", "bounded", "model", "synthetic"]
    ran = run_here(deployment, "visits_candidate", period=MONTH, steps=steps, accelerator=inside(deployment))
    assert ran.success, ran.failures
    storage = storage_of(deployment)
    scrubbed, synthetic = (storage.require(PLACE, step).directory / "table" for step in ("scrubbed", "synthetic"))
    found = [clock for batch in read_table(scrubbed, columns=["visit_date"]) for clock in batch.column(0).to_pylist()]
    assert sorted(found) == sorted(clock for clock in clocks if clock.strftime("%Y-%m") == MONTH)
    drawn = [day for batch in read_table(synthetic, columns=["visit_date"]) for day in batch.column(0).to_pylist()]
    assert {day.strftime("%Y-%m") for day in drawn} == {MONTH}
    assert {day.time() for day in drawn} == {dt.time()}


def look(repository, instance, ledger, cursor):
    """One tick of the approvals sensor."""
    sensor = repository.get_sensor_def("approvals")
    context = dg.build_sensor_context(
        instance=instance, cursor=cursor, repository_def=repository, resources={"ledger": ledger}
    )
    tick = sensor.evaluate_tick(context)
    return tick.run_requests or [], tick.cursor


def test_an_approval_becomes_one_release(visits, repository):
    """The sensor asks once for each approval, not before, and what it asks for can be run."""
    ledger = repository.get_top_level_resources()["ledger"]
    with dg.DagsterInstance.ephemeral() as instance:
        requests, cursor = look(repository, instance, ledger, None)
        assert requests == []
        decisions.approve(visits.settings, PLACE, "reviewer", "")
        # While the contract's file is bad there is no job for it: the approval waits until there is one again.
        bad = dg.Definitions(sensors=[approval_sensor(visits.settings, [], [])]).get_repository_def()
        requests, cursor = look(bad, instance, ledger, cursor)
        assert requests == []
        assert look(bad, instance, ledger, cursor) == ([], cursor)
        (request,), cursor = look(repository, instance, ledger, cursor)
        assert (request.job_name, request.partition_key) == ("visits_release", MONTH)
        assert look(repository, instance, ledger, cursor) == ([], cursor)
        # A sensor that lost its cursor asks again under the same key, which Dagster runs once.
        (again,), _ = look(repository, instance, ledger, None)
        assert again.run_key == request.run_key
    ran = run_here(visits, request.job_name, period=request.partition_key)
    assert ran.success, ran.failures
    (listed,) = releases.listing(visits.settings)
    assert (listed["place"], listed["state"]) == (f"visits/{MONTH}", "published")
    assert verification.verify(visits.settings, "visits", None).ok

    # What was withdrawn is asked for again only after an approval that says so.
    with dg.DagsterInstance.ephemeral() as instance:
        withdraw(visits.settings, listed["id"], "second reader", "a test of withdrawal")
        (none, _), cursor = look(repository, instance, ledger, None), str(ledger_of(visits).head().sequence)
        assert none == []
        decisions.approve(visits.settings, PLACE, "reviewer", "", after_withdrawal=True)
        (request,), _ = look(repository, instance, ledger, cursor)
    assert run_here(visits, request.job_name, period=request.partition_key).success
    assert [item["state"] for item in releases.listing(visits.settings)] == ["published", "withdrawn"]
    assert verification.verify(visits.settings, "visits", None).ok


def test_the_sensor_waits_for_the_last_approval(visits, repository):
    """Two people are asked for: the first approval asks for nothing, nor does the same person's second."""
    place = Place("visits", "2026-03")
    visits.contract["release"]["approvals"] = 2
    visits.write()
    try:
        ran = run_here(visits, "visits_candidate", period=place.period, accelerator=inside(visits))
        assert ran.success, ran.failures
        both = build_definitions(visits.settings).get_repository_def()
        ledger = both.get_top_level_resources()["ledger"]
        with dg.DagsterInstance.ephemeral() as instance:
            start = str(ledger_of(visits).head().sequence)
            decisions.approve(visits.settings, place, "reviewer", "")
            with pytest.raises(ReleaseRefused, match="has approved this content already"):
                decisions.approve(visits.settings, place, "REVIEWER ", "")
            requests, cursor = look(both, instance, ledger, start)
            assert requests == []
            decisions.approve(visits.settings, place, "second reader", "")
            (request,), _ = look(both, instance, ledger, cursor)
            assert request.partition_key == place.period
    finally:
        visits.contract["release"]["approvals"] = 1
        visits.write()


def test_a_candidate_that_needs_nobody_is_published_by_itself_unless_somebody_objects(visits):
    """`approvals: 0`: the candidate itself is what the sensor waits for."""
    visits.contract["release"]["approvals"] = 0
    visits.write()
    try:
        place, start = Place("visits", "2026-04"), str(ledger_of(visits).head().sequence)
        ran = run_here(visits, "visits_candidate", period=place.period, accelerator=inside(visits))
        assert ran.success, ran.failures
        free = build_definitions(visits.settings).get_repository_def()
        ledger = free.get_top_level_resources()["ledger"]
        with dg.DagsterInstance.ephemeral() as instance:
            requests, _ = look(free, instance, ledger, start)
            assert [(item.partition_key, item.job_name) for item in requests] == [(place.period, "visits_release")]
            decisions.refuse(visits.settings, place, "reviewer", "a test of objections")
            assert look(free, instance, ledger, start)[0] == []
    finally:
        visits.contract["release"]["approvals"] = 1
        visits.write()


def test_a_month_is_a_run_of_its_own(visits):
    """Another month is another entry; the same month again is none."""
    entries = len(ledger_of(visits).entries())
    for month, new in (("2026-01", 1), ("2026-01", 0)):
        ran = run_here(visits, "visits_candidate", period=month, accelerator=inside(visits))
        assert ran.success, ran.failures
        entries += new
        assert len(ledger_of(visits).entries()) == entries
    assert ledger_of(visits).verify().ok


def add_to_source(visits):
    """Visits that come late, as a new version of the source."""
    write_deltalake(str(visits.settings.home / "sources" / "visits"), visits_table().slice(0, 50), mode="append")


def test_late_data_of_a_paid_month_are_told_and_spend_nothing(visits):
    """The month stays with the version that it was made of; the next one is of the newest."""
    before, storage = ledger_of(visits).entries(), storage_of(visits)
    raw = storage.require(PLACE, "raw")
    add_to_source(visits)
    ran = run_here(visits, "visits_candidate", period=MONTH, accelerator=inside(visits))
    assert ran.success, ran.failures
    assert ledger_of(visits).entries() == before
    assert storage.require(PLACE, "raw") == raw
    assert "visits/2026-02 is paid for: it keeps version 0 of the source, whose newest version is 1; " in "".join(
        ran.said["raw"]
    )
    plan = forecasts.forecast(visits.settings, "visits", MONTH)
    assert plan.standing in {entry.entry_id for entry in before if entry.request.period == MONTH}
    assert run_here(visits, "visits_candidate", period="2026-05", steps=["raw"]).success
    assert storage.require(Place("visits", "2026-05"), "raw").facts["source_version"] == 1


def test_another_contract_pays_for_a_paid_month_only_if_somebody_says_so(visits):
    before, raw = ledger_of(visits).entries(), storage_of(visits).require(PLACE, "raw")
    (paid,) = [entry.entry_id for entry in before if entry.request.period == MONTH]
    bound = visits.contract["privacy"]["max_contributions"]
    visits.contract["privacy"]["max_contributions"] = bound - 1
    visits.write()
    try:
        refused = run_here(visits, "visits_candidate", period=MONTH, accelerator=inside(visits)).failures["raw"]
        assert f"visits/2026-02: ledger entry {paid} (spent) is about this period already" in refused
        assert f"--spend-again {paid}" in refused
        plan = forecasts.forecast(visits.settings, "visits", MONTH)
        assert (plan.fits, plan.paid_before) == (False, paid)
        assert "a period is paid for once" in plan.refusal
        # A month that stands is left as it was, with its candidate and its release.
        assert storage_of(visits).require(PLACE, "raw") == raw
        assert ledger_of(visits).entries() == before

        steps = ["raw", "scrubbed", "canaries", "clearance"]
        again = run_here(visits, "visits_candidate", period=MONTH, steps=steps, spend_again=paid)
        assert again.success, again.failures
        (new,) = [entry for entry in ledger_of(visits).entries() if entry not in before]
        assert (new.state, new.request.period, new.replaces) == ("reserved", MONTH, None)
        ledger_of(visits).void(new.entry_id)
    finally:
        visits.contract["privacy"]["max_contributions"] = bound
        visits.write()
    assert ledger_of(visits).verify().ok


@pytest.mark.parametrize(
    ("period", "message"),
    [
        (None, "give --period YYYY-MM, from 2026-01"),
        ("2026-13", "'2026-13'"),
        ("February", "'February'"),
        ("2025-12", "'2025-12'"),
        ("2099-01", "'2099-01'"),
        ("2026-2", "'2026-2'"),
    ],
)
def test_a_wrong_period_is_told_before_anything_runs(visits, period, message):
    before = ledger_of(visits).history()
    with pytest.raises(ConfigurationError, match=message):
        run_dataset(visits.settings, "visits", period, None, lambda _: None)
    assert ledger_of(visits).history() == before


def test_a_month_without_rows_is_a_clear_error(visits):
    ran = run_here(visits, "visits_candidate", period="2026-06", accelerator=inside(visits))
    assert list(ran.failures) == ["scrubbed"]
    assert "no row of period 2026-06" in ran.failures["scrubbed"]
    assert all(entry.request.period != "2026-06" for entry in ledger_of(visits).entries())
