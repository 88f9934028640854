"""The verdict before a mechanism: what is found, by which path, what results, and what may be seen of it."""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import Any

import pytest
from clearance_cases import (
    BUDGETS,
    DELTA,
    contract_of,
    cost,
    guarded,
    independent,
    line,
    reported,
    spend,
    trained,
    verdict,
)
from event_cases import dataset, event, model, name, own
from ledger_cases import KEYS, people
from openlineage.client.serde import Serde

from dpsynth_platform.contracts.family import FamilyBudget
from dpsynth_platform.ledger import Ledger
from dpsynth_platform.lineage.clearance import Clearance, clear
from dpsynth_platform.lineage.naming import dataset_name
from dpsynth_platform.lineage.store import LineageStore
from dpsynth_platform.operations.step_lineage import without_links

# What is found


def test_nothing_is_found_where_nothing_was(ledger: Ledger, store: LineageStore) -> None:
    found = verdict(ledger, store, contract_of())
    assert (found.decision, found.findings, found.families) == ("compose", (), ())
    assert found.resulting is not None
    assert found.resulting.epsilon == pytest.approx(independent(1), rel=2e-3)
    assert found.promises == ()


def test_two_algorithms_on_one_dataset_compose(ledger: Ledger, store: LineageStore) -> None:
    """Guide, E0."""
    first = spend(ledger, "clinic", "visits")
    line(store, "visits", first)
    found = verdict(ledger, store, contract_of(), request=cost("visits", plan="other"))
    (finding,) = found.findings
    assert (finding.kind, finding.entry, finding.place) == ("family", first.entry_id, "visits")
    assert found.resulting is not None
    assert found.resulting.epsilon == pytest.approx(independent(2), rel=2e-3)
    assert found.resulting.delta == pytest.approx(2 * DELTA)


def test_a_composed_delta_above_the_caps_is_explained(ledger: Ledger, store: LineageStore) -> None:
    """Ten releases of delta 1e-6 are all of the cap's; the eleventh's sum is above it, though the ledger has room."""
    for number in range(10):
        assert "above the cap's" not in " ".join(verdict(ledger, store, contract_of()).promises)
        spend(ledger, "clinic", f"visits-{number}", people(number, number + 1))
    said = " ".join(verdict(ledger, store, contract_of()).promises)
    assert "Its delta is the sum of the mechanisms' own, and above the cap's (1e-05)." in said
    assert "is the cap, which the ledger enforces by another method: epsilon 8, delta 1e-05." in said


def test_a_dataset_in_another_family_is_found_by_its_namespace(ledger: Ledger, store: LineageStore) -> None:
    """Moved there under another name, so that a fresh budget pays: the people are the same."""
    first = spend(ledger, "clinic", "visits")
    found = verdict(ledger, store, contract_of("moved", family="archive"))
    (finding,) = found.findings
    assert finding.kind == "namespace"
    assert finding.path == ("namespace person", "family clinic", f"entry {first.entry_id}")
    assert found.families == ("clinic",)
    assert found.caps == (16.0, pytest.approx(2e-5))
    assert "the sum of their caps" in " ".join(found.promises)


def test_a_table_under_another_name_family_and_namespace_is_found_by_lineage(
    ledger: Ledger, store: LineageStore
) -> None:
    """Renamed, and declared with other people's ids: what was paid for under the old name is found all the same."""
    first = spend(ledger, "shops", "visits")
    line(store, "visits", first)
    rename = {
        "lifecycleStateChange": "RENAME",
        "previousIdentifier": {"namespace": "s3://lake", "name": "visits"},
    }
    reported(store, event("COMPLETE", [], [dataset("renamed", lifecycleStateChange=rename)]))
    found = verdict(ledger, store, contract_of("renamed"))
    (finding,) = found.findings
    assert (finding.kind, finding.entry) == ("source", first.entry_id)
    assert finding.path[:2] == ("s3://lake:renamed", "alias s3://lake:visits")
    assert finding.incomparable is not None
    assert found.related == (first.entry_id,)
    for policy in ("exclude", "block"):
        refused = verdict(ledger, store, contract_of("renamed", policy=policy))
        assert refused.decision == "refuse"
        assert "another namespace" in refused.reason


def test_tables_made_from_one_table_are_related(ledger: Ledger, store: LineageStore) -> None:
    first = spend(ledger, "shops", "orders")
    line(store, "orders", first)
    reported(store, event("COMPLETE", ["warehouse"], ["orders"]), event("COMPLETE", ["warehouse"], ["visits"]))
    (finding,) = verdict(ledger, store, contract_of()).findings
    assert (finding.kind, finding.entry) == ("source", first.entry_id)


@pytest.mark.parametrize("end", ["FAIL", "never"])
def test_a_mechanism_that_left_nothing_behind_is_found_by_whoever_read_the_table(
    ledger: Ledger, store: LineageStore, end: str
) -> None:
    """It may have shown something before it failed, to other people's ids, on a table that ours is made from."""
    entry = ledger.reserve("shops", "run", cost("orders"), people(1, 2), "compose", key_ids=(*KEYS, "other"))
    ledger.start(entry.entry_id)
    bystander = spend(ledger, "shops", "elsewhere")
    table, run = dataset("orders", dpsynth_privacyUnit={"unit": "user"}), str(uuid.uuid4())
    store.record(own("COMPLETE", [table], [guarded("orders/raw")], job="orders.raw"))
    store.record(own("START", [guarded("orders/raw")], run=run, job="orders.model"))
    if end == "FAIL":
        store.record(own("FAIL", [guarded("orders/raw")], [model("orders/model")], run=run, job="orders.model"))
    reported(store, event("COMPLETE", ["orders"], ["visits"]))
    (finding,) = verdict(ledger, store, contract_of()).findings
    assert (finding.kind, finding.entry) == ("source", entry.entry_id)
    assert finding.path[-2:] == ("read-by orders", f"entry {entry.entry_id}")
    assert bystander.entry_id not in finding.path[-1]
    for policy in ("exclude", "block"):
        assert verdict(ledger, store, contract_of(policy=policy)).decision == "refuse"


def test_a_reservation_that_was_given_back_is_no_finding(ledger: Ledger, store: LineageStore) -> None:
    entry = ledger.reserve("shops", "run", cost("orders"), people(1, 2), "compose", key_ids=(*KEYS, "other"))
    store.record(own("COMPLETE", [dataset("orders")], [guarded("orders/raw")], job="orders.raw"))
    reported(store, event("COMPLETE", ["orders"], ["visits"]))
    assert len(verdict(ledger, store, contract_of()).findings) == 1
    ledger.void(entry.entry_id)
    assert verdict(ledger, store, contract_of()).findings == ()


def test_a_local_table_is_found_by_the_place_that_links_lead_to(
    ledger: Ledger, store: LineageStore, tmp_path: Path
) -> None:
    (tmp_path / "kept").mkdir()
    (tmp_path / "orders").symlink_to(tmp_path / "kept")
    link, there = dataset_name(tmp_path / "orders"), dataset_name(tmp_path / "kept")
    assert without_links(there) == without_links(name("orders")) == {}
    facets = {key: Serde.to_dict(facet) for key, facet in without_links(link).items()}
    table = {"namespace": link.namespace, "name": link.name, "facets": facets}
    entry = spend(ledger, "shops", "orders")
    assert store.record(own("COMPLETE", [table], [guarded("orders/raw")], job="orders.raw")).new
    read = {"namespace": there.namespace, "name": there.name, "facets": {}}
    reported(store, event("COMPLETE", [read], ["visits"]))
    assert [item.entry for item in verdict(ledger, store, contract_of()).findings] == [entry.entry_id]


def test_what_is_made_of_a_release_has_none_of_its_people(ledger: Ledger, store: LineageStore) -> None:
    """After the mechanism everything is post-processing: another dataset whose model began with this one's release."""
    first, second = spend(ledger, "clinic", "visits"), spend(ledger, "shops", "orders")
    line(store, "visits", first)
    reported(store, trained("A", "visits/release"))
    line(store, "orders", second, bases=("A",))
    found = verdict(ledger, store, contract_of())
    assert {item.entry for item in found.findings} == {first.entry_id}


# What stays, and what is new


def test_a_run_is_cleared_against_what_was_before_it(ledger: Ledger, store: LineageStore) -> None:
    first = spend(ledger, "clinic", "january")
    mine = spend(ledger, "clinic", "visits")
    spend(ledger, "clinic", "march")
    found = verdict(ledger, store, contract_of(), entry_id=mine.entry_id)
    assert [item.entry for item in found.findings] == [first.entry_id]


def test_what_is_learned_later_about_what_was_before_is_news(
    ledger: Ledger, store: LineageStore, starting: None
) -> None:
    other = spend(ledger, "shops", "orders")
    line(store, "orders", other)
    reported(store, trained("A", "web"))
    mine = spend(ledger, "clinic", "visits")
    contract = contract_of(base_model="s3://lake/A")
    before = verdict(ledger, store, contract, entry_id=mine.entry_id)
    assert (before.decision, before.adding) == ("compose", ())
    assert verdict(ledger, store, contract, entry_id=mine.entry_id).kept(before) is before
    reported(store, trained("A", "orders/release"))
    now = verdict(ledger, store, contract, entry_id=mine.entry_id)
    (new,) = now.new_findings(before)
    assert (new.kind, new.entry) == ("base-model", other.entry_id)
    assert now.kept(before) is now
    assert before.new_findings(now) == ()


def test_what_is_gone_does_not_make_a_record_waver(ledger: Ledger, store: LineageStore) -> None:
    waiting = ledger.reserve("archive", "w", cost("w"), people(9), "compose", key_ids=KEYS)
    mine = spend(ledger, "clinic", "visits")
    before = verdict(ledger, store, contract_of(), entry_id=mine.entry_id)
    ledger.void(waiting.entry_id)
    now = verdict(ledger, store, contract_of(), entry_id=mine.entry_id)
    assert (len(before.findings), len(now.findings)) == (1, 0)
    assert now.kept(before) is before


def test_a_clearance_is_read_back_as_it_was(ledger: Ledger, store: LineageStore) -> None:
    spend(ledger, "archive", "w")
    found = verdict(ledger, store, contract_of())
    assert Clearance.from_json(found.to_json()) == found


def test_a_family_without_an_account_is_cleared_by_its_file(ledger: Ledger, store: LineageStore) -> None:
    first = spend(ledger, "clinic", "visits")
    fresh = FamilyBudget(**{**BUDGETS["clinic"].model_dump(), "family": "fresh"})
    contract = contract_of("other", family="fresh")
    found = clear(ledger, store, contract, fresh)
    assert [item.entry for item in found.findings] == [first.entry_id]
    assert found.resulting is not None
    assert found.resulting.mechanisms == 1  # there is no plan yet


# What may be seen


@pytest.mark.parametrize("policy", ["compose", "exclude", "block"])
def test_a_clearance_does_not_depend_on_who_took_part(tmp_path: Any, policy: str, starting: None) -> None:
    """Two worlds that differ in one person, who took part before in the one and not in the other."""
    worlds = []
    for number, there in enumerate((1, 50)):
        url = f"sqlite:///{tmp_path / str(number) / 'ledger.db'}"
        ledger, store = Ledger(url), LineageStore(url)
        for budget in ("clinic", "archive"):
            ledger.open_account(BUDGETS[budget], KEYS)
        first = spend(ledger, "clinic", "visits", people(there, 2))
        line(store, "visits", first)
        reported(store, trained("A", "visits/release"))
        contract = contract_of("reviews", family="archive", policy=policy, base_model="s3://lake/A")
        found = verdict(ledger, store, contract)
        named = str(found.to_json()).replace(first.entry_id, "ENTRY")
        worlds.append((named, tuple(text.replace(first.entry_id, "ENTRY") for text in found.words)))
    assert worlds[0] == worlds[1]


def test_twelve_months_compose_for_whoever_is_in_all(ledger: Ledger, store: LineageStore) -> None:
    """Guide, E3: each is charged for its own months; the year is stated for the worst case."""
    for month in range(11):
        spend(ledger, "clinic", f"month-{month}", people(1, 100 + month))
    found = verdict(ledger, store, contract_of())
    assert found.resulting is not None
    assert found.resulting.mechanisms == 12
    assert found.resulting.epsilon == pytest.approx(independent(12), rel=2e-3)
    spending = ledger.owner_spending("clinic")
    assert sorted(item["owners"] for item in spending.classes) == [1, 11]
