"""Clearance of a table that a public one helps: what lineage knows of the public table decides."""

from __future__ import annotations

from clearance_cases import contract_of, line, reported, spend, verdict
from event_cases import event
from ledger_cases import people

from dpsynth_platform.contracts.contract import DataContract
from dpsynth_platform.contracts.loading import parse_contract
from dpsynth_platform.ledger import Ledger
from dpsynth_platform.lineage.store import LineageStore


def helped_by(place: str) -> DataContract:
    document = contract_of("reviews", family="archive").model_dump(mode="json", exclude_unset=True)
    document["generate"] = {"method": "aim", "rows": 9, "public": {"uri": place, "why": "made up and published"}}
    return parse_contract(document, where="test", variables={})


def test_an_unknown_table_is_public_by_the_contract(ledger: Ledger, store: LineageStore) -> None:
    found = verdict(ledger, store, helped_by("s3://lake/survey"))
    assert (found.decision, found.findings) == ("compose", ())
    assert [(base.kind, base.known_by) for base in found.bases] == [("table", "contract")]


def test_a_table_that_a_sensitive_line_released_adds_to_that_line(ledger: Ledger, store: LineageStore) -> None:
    first = spend(ledger, "shops", "orders", people(1, 2))
    line(store, "orders", first)
    found = verdict(ledger, store, helped_by("s3://lake/orders/release"))
    assert [item.entry for item in found.adding] == [first.entry_id]


def test_a_table_that_is_sensitive_or_was_made_from_it_is_refused(ledger: Ledger, store: LineageStore) -> None:
    line(store, "visits", spend(ledger, "clinic", "visits"))
    reported(store, event("COMPLETE", ["visits"], ["copy"]))
    for place in ("visits", "visits/rows", "copy"):
        assert verdict(ledger, store, helped_by(f"s3://lake/{place}")).decision == "refuse"
