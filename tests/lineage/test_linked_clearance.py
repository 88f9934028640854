"""Clearance of linked tables: lineage must not say that a public one of them was made from private rows."""

from __future__ import annotations

import copy
import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from clearance_cases import BUDGETS, contract_of, guarantee, line, reported, spend, verdict
from clinic import TABLES, clinic, written
from event_cases import event, own
from ledger_cases import people

from dpsynth_platform.contracts.base import caseless
from dpsynth_platform.contracts.contract import DataContract
from dpsynth_platform.contracts.loading import parse_contract
from dpsynth_platform.ledger import Ledger
from dpsynth_platform.lineage.clearance import guarded_public_table
from dpsynth_platform.lineage.guarded_places import SourceTables
from dpsynth_platform.lineage.naming import DatasetName, dataset_name
from dpsynth_platform.lineage.store import LineageStore
from dpsynth_platform.sources.table_places import tables_at


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return written(tmp_path / "clinic", clinic(20))


def linked(place: Path, *, public: bool = True, **changes: Any) -> DataContract:
    document = contract_of("visits").model_dump(mode="json", exclude_unset=True)
    document["source"] = {"uri": str(place)}
    document["privacy"] = {
        key: document["privacy"][key] for key in ("unit", "namespace", "guarantee", "expected_units")
    }
    del document["columns"]
    document["generate"] = {"method": "independent", "rows": 100}
    tables = copy.deepcopy(TABLES["tables"])
    if not public:
        del tables["codes"], tables["diagnoses"]["lookups"]
    return parse_contract(document | {"tables": tables} | changes, where="test", variables={})


def at(place: Path | str, **facets: Any) -> dict[str, Any]:
    return {"namespace": "file", "name": str(place), "facets": facets}


def ran(store: LineageStore, source: Path, job: str = "visits.raw", inside: str = "/restricted/visits/raw") -> None:
    """What a run of a contract leaves: its source is guarded."""
    guarded = at(source, dpsynth_privacyUnit={"unit": "user"})
    rows = at(inside, tags={"tags": [{"key": "zone", "value": "restricted"}]})
    assert store.record(own("COMPLETE", [guarded], [rows], job=job)).new


def kinds(ledger: Ledger, store: LineageStore, contract: DataContract) -> tuple[str, set[str]]:
    found = verdict(ledger, store, contract)
    return found.decision, {item.kind for item in found.findings}


@pytest.mark.parametrize("seen", [False, True])
def test_a_lookup_inside_of_its_own_private_source_is_public_by_the_contract(
    ledger: Ledger, store: LineageStore, source: Path, seen: bool
) -> None:
    if seen:
        ran(store, source)
    found = verdict(ledger, store, linked(source))
    assert (found.decision, found.findings) == ("compose", ())
    (base,) = found.bases
    assert (base.kind, base.name, base.known_by) == ("lookup", dataset_name(source / "codes"), "contract")
    assert found.upstream == () and guarded_public_table(ledger, store, linked(source), BUDGETS["clinic"]) is None


@pytest.mark.parametrize("named", ["codes.parquet", "codes.parquet/part-0.parquet", ""])
@pytest.mark.parametrize("seen", [False, True])
def test_a_lookup_that_was_made_from_another_guarded_table_is_refused(
    ledger: Ledger, store: LineageStore, source: Path, named: str, seen: bool
) -> None:
    """Also where an event names the directory, and with a step in between."""
    ran(store, Path("/data/registry"), "registry.raw", "/restricted/registry/raw")
    if seen:
        ran(store, source)
    reported(store, event("COMPLETE", [at("/data/registry")], [at("/tmp/extract")]))
    reported(store, event("COMPLETE", [at("/tmp/extract")], [at(source / named)]))
    found = verdict(ledger, store, linked(source))
    assert (found.decision, {item.kind for item in found.findings}) == ("refuse", {"unprotected"})
    assert "a guarded table that a base has seen, or holds, without a mechanism in between" in found.reason
    assert "file:/data/registry" in found.reason and "start from another base" in found.reason
    refused = guarded_public_table(ledger, store, linked(source), BUDGETS["clinic"])
    assert refused is not None and refused.decision == "refuse"
    assert kinds(ledger, store, linked(source, public=False)) == ("compose", set()), "no lookup, nothing to ask"


@pytest.mark.parametrize("named", ["", "patients.parquet", "stays.parquet/part-0.parquet"])
@pytest.mark.parametrize("seen", [False, True])
def test_a_lookup_that_was_made_from_private_tables_of_its_own_source_is_refused(
    ledger: Ledger, store: LineageStore, source: Path, named: str, seen: bool
) -> None:
    if seen:
        ran(store, source)
    reported(store, event("COMPLETE", [at(source / named)], [at(source / "codes.parquet")]))
    assert kinds(ledger, store, linked(source)) == ("refuse", {"unprotected"})


def test_an_origin_of_a_private_table_or_from_public_places_refuses_nothing(
    ledger: Ledger, store: LineageStore, source: Path
) -> None:
    ran(store, Path("/data/registry"), "registry.raw", "/restricted/registry/raw")
    ran(store, source)
    reported(store, event("COMPLETE", [at("/data/registry")], [at(source / "patients.parquet")]))
    reported(store, event("COMPLETE", [at("/web/list-of-codes.csv")], [at(source / "codes.parquet")]))
    reported(store, event("COMPLETE", [at(source / "codes.parquet")], [at(source / "codes.csv")]))
    found = verdict(ledger, store, linked(source))
    assert (found.decision, found.findings, found.bases[0].known_by) == ("compose", (), "lineage")


def test_a_file_of_another_source_is_private_and_a_lookup_of_a_run_is_not(
    ledger: Ledger, store: LineageStore, source: Path
) -> None:
    """By the directory that another contract's source is, and by the base that its run started from."""
    ran(store, Path("/data/shop"), "shop.raw", "/restricted/shop/raw")
    reported(store, event("COMPLETE", [at("/data/shop/terms.parquet")], [at(source / "codes.parquet")]))
    assert kinds(ledger, store, linked(source))[0] == "refuse"
    entry = spend(ledger, "shops", "shop", people(1, 2))
    model: dict[str, Any] = {"datasetType": {"datasetType": "MODEL"}} | guarantee(entry)
    model["dpsynth_baseModel"] = {"baseModels": [{"namespace": "file", "name": "/data/shop/terms", "version": "-"}]}
    link = {"symlinks": {"identifiers": [{"namespace": "file", "name": "/data/shop/terms.parquet", "type": "TABLE"}]}}
    table = at("/data/shop/terms", datasetType={"datasetType": "TABLE"}, **link)
    assert store.record(own("COMPLETE", [table], [at("/restricted/shop/model", **model)], job="shop.model")).new
    assert kinds(ledger, store, linked(source))[0] == "compose"
    reported(store, event("COMPLETE", [at("/data/shop/customers.parquet")], [at("/data/shop/terms.parquet")]))
    assert kinds(ledger, store, linked(source))[0] == "refuse"


@pytest.mark.parametrize("place", ["codes.parquet", "."])
def test_a_place_that_another_dataset_names_as_its_source_is_private(
    ledger: Ledger, store: LineageStore, source: Path, place: str
) -> None:
    around = source / place if place != "." else source.parent
    ran(store, around, "others.raw", "/restricted/others/raw")
    assert kinds(ledger, store, linked(source)) == ("refuse", {"unprotected"})


@pytest.mark.parametrize("links", ["file", "directory"])
def test_what_a_link_leads_to_counts(ledger: Ledger, store: LineageStore, source: Path, links: str) -> None:
    real = source.parent / "elsewhere"
    if links == "file":
        real.mkdir()
        shutil.move(source / "codes.parquet", real / "list.parquet")
        (source / "codes.parquet").symlink_to(real / "list.parquet")
        named = real / "list.parquet"
    else:
        shutil.move(source, real)
        source.symlink_to(real)
        named = real / "codes.parquet"
    ran(store, source)
    assert kinds(ledger, store, linked(source))[0] == "compose"
    ran(store, Path("/data/registry"), "registry.raw", "/restricted/registry/raw")
    reported(store, event("COMPLETE", [at("/data/registry")], [at(named)]))
    assert kinds(ledger, store, linked(source)) == ("refuse", {"unprotected"})


@pytest.mark.parametrize(
    ("namespace", "name"),
    [
        ("file", "{0}"),
        ("file", "{0}/codes"),
        ("file", "{0}/main.Codes"),
        ("sqlite://{0}", "codes"),
        ("sqlite://{0}", "main.codes"),
        ("duckdb://{0}", "clinic.main.codes"),
        ("sqlite://localhost", "{0}.codes"),
        ("sqlite://localhost", "{0}"),
    ],
)
def test_a_lookup_of_a_database_counts_under_each_of_its_names(
    ledger: Ledger, store: LineageStore, tmp_path: Path, namespace: str, name: str
) -> None:
    place = tmp_path / "clinic.db"
    place.write_bytes(b"")
    table = {"namespace": namespace.format(place), "name": name.format(place), "facets": {}}
    ran(store, place)
    private = table | {"name": str(table["name"]).replace("codes", "stays").replace("Codes", "stays")}
    if private != table:
        reported(store, event("COMPLETE", [at("/web/list")], [private]))
        assert kinds(ledger, store, linked(place))[0] == "compose"
    reported(store, event("COMPLETE", [at("/data/registry")], [table]))
    assert kinds(ledger, store, linked(place))[0] == "compose"
    ran(store, Path("/data/registry"), "registry.raw", "/restricted/registry/raw")
    assert kinds(ledger, store, linked(place)) == ("refuse", {"unprotected"})


def test_a_directory_of_files_is_the_table_of_its_whole_name(tmp_path: Path) -> None:
    """Spark writes a table `codes.parquet` as a directory: its name is `codes_parquet`, beside `codes.csv`."""
    for name in ("codes.parquet", "main.codes"):
        (tmp_path / name).mkdir()
        pq.write_table(pa.table({"a": [1]}), tmp_path / name / "part-0.parquet")
    (tmp_path / "codes.csv").write_text("a\n1\n")
    named = {caseless(name): str(place) for name, place in tables_at(tmp_path).items()}
    assert named.keys() == {"codes", "codes_parquet", "main_codes"}
    for public in named:
        tables = SourceTables((str(tmp_path),), frozenset([public]))
        for name, place in named.items():
            assert tables.is_private(DatasetName("file", place)) == (name != public)
        part = DatasetName("file", f"{named['codes_parquet']}/part-0.parquet")
        assert tables.is_private(part) == (public != "codes_parquet")
        assert [found.name for found in tables.files_of(public)][:1] == [named[public]]


def test_a_lookup_that_a_line_of_ours_released_adds_to_it(ledger: Ledger, store: LineageStore, source: Path) -> None:
    first = spend(ledger, "shops", "orders", people(1, 2))
    line(store, "orders", first)
    reported(store, event("COMPLETE", ["orders/release"], [at(source / "codes.parquet")]))
    found = verdict(ledger, store, linked(source))
    assert [(item.kind, item.entry) for item in found.adding] == [("base-model", first.entry_id)]


def test_what_is_reported_later_about_a_lookup_is_a_new_finding(
    ledger: Ledger, store: LineageStore, source: Path
) -> None:
    ran(store, source)
    before = verdict(ledger, store, linked(source))
    reported(store, event("COMPLETE", [at(source / "patients.parquet")], [at(source / "codes.parquet")]))
    assert verdict(ledger, store, linked(source)).new_findings(before)
