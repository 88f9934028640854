"""Clearance of a run that starts from a checkpoint: whose people are in it, and what nobody may vouch for."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from clearance_cases import (
    contract_of,
    guarantee,
    independent,
    line,
    reported,
    spend,
    trained,
    verdict,
)
from event_cases import dataset, event, model, name
from ledger_cases import people

from dpsynth_platform.contracts import cross_checks
from dpsynth_platform.foundation.errors import ClearanceRefused, ContractError, LineageRefused
from dpsynth_platform.ledger import Ledger
from dpsynth_platform.lineage import graph_rows, intake
from dpsynth_platform.lineage.clearance import Clearance
from dpsynth_platform.lineage.naming import DatasetName
from dpsynth_platform.lineage.store import LineageStore
from dpsynth_platform.lineage.survey import model_name


def test_a_checkpoint_two_trainings_deep(ledger: Ledger, store: LineageStore, starting: None) -> None:
    """Guide, E2: D1 -> release -> A -> B, and B is what training on D2 would start from."""
    first = spend(ledger, "clinic", "visits")
    line(store, "visits", first)
    reported(store, trained("A", "visits/release", "web"), trained("B", model("A"), "more-web"))
    found = verdict(ledger, store, contract_of("reviews", family="archive", base_model="s3://lake/B"))
    (finding,) = found.adding
    assert (finding.kind, finding.entry, finding.family) == ("base-model", first.entry_id, "clinic")
    assert finding.path == (
        "s3://lake:B",
        "base s3://lake:A",
        "trained-on s3://lake:visits/release",
        f"paid-by dpsynth:ledger:{first.entry_id}",
    )
    assert found.decision == "compose"
    assert found.resulting is not None
    assert found.resulting.epsilon == pytest.approx(independent(2), rel=2e-3)
    assert verdict(ledger, store, contract_of("reviews", family="archive"), base_model="s3://lake/B") == found


@pytest.mark.parametrize("policy", ["exclude", "block"])
def test_a_checkpoint_of_the_same_namespace_leaves_people_out_or_blocks(
    ledger: Ledger, store: LineageStore, starting: None, policy: str
) -> None:
    first = spend(ledger, "clinic", "visits", people(1, 2))
    line(store, "visits", first)
    reported(store, trained("A", "visits/release"))
    found = verdict(ledger, store, contract_of("reviews", family="archive", policy=policy, base_model="s3://lake/A"))
    assert found.decision == policy
    assert found.resulting is not None
    assert found.resulting.epsilon == pytest.approx(independent(1), rel=2e-3)
    assert found.related == (first.entry_id,)


def test_a_checkpoint_that_nobody_knows_is_refused_or_declared_public(
    ledger: Ledger, store: LineageStore, starting: None
) -> None:
    contract = contract_of(base_model="mystery")
    found = verdict(ledger, store, contract)
    assert (found.decision, found.findings[0].kind) == ("refuse", "unknown")
    with pytest.raises(ClearanceRefused, match="declare-public"):
        found.require("visits")
    store.declare_public(model_name("mystery"), by="Ada", reason="weights from before there were people")
    cleared = verdict(ledger, store, contract)
    assert (cleared.decision, cleared.findings) == ("compose", ())
    assert cleared.base_model == (model_name("mystery"),)
    said = "dpsynth:products:mystery was declared public by Ada: weights from before there were people"
    assert cleared.declared == (said,)
    assert f"{said}." in cleared.words
    assert Clearance.from_json(cleared.to_json()) == cleared


def test_an_unknown_ancestor_of_a_known_checkpoint_is_refused(
    ledger: Ledger, store: LineageStore, starting: None
) -> None:
    reported(store, trained("B", model("mystery"), "web"))
    found = verdict(ledger, store, contract_of(base_model="s3://lake/B"))
    assert found.decision == "refuse"
    assert found.findings[0].path == ("s3://lake:B", "base s3://lake:mystery")


def test_a_checkpoint_that_is_only_mentioned_is_unknown(ledger: Ledger, store: LineageStore, starting: None) -> None:
    """Whatever the event that mentions it takes it for."""
    reported(store, event("COMPLETE", ["web"], ["something"]), event("COMPLETE", ["B"], ["other"]))
    assert verdict(ledger, store, contract_of(base_model="s3://lake/B")).decision == "refuse"


def test_a_checkpoint_of_the_same_path_on_another_machine_says_nothing_of_ours(
    ledger: Ledger, store: LineageStore, starting: None
) -> None:
    there = {
        "namespace": "file://elsewhere",
        "name": "/models/base",
        "facets": {"datasetType": {"datasetType": "MODEL"}},
    }
    reported(store, event("COMPLETE", ["web"], [there]))
    contract = contract_of(base_model="/models/base")
    found = verdict(ledger, store, contract)
    assert (found.decision, found.findings[0].path) == ("refuse", ("file:/models/base",))
    store.declare_public(model_name("/models/base"), by="Ada", reason="weights from before there were people")
    assert verdict(ledger, store, contract).decision == "compose"


@pytest.mark.parametrize(
    ("namespace", "spelled"),
    [("s3a://lake", "visits"), ("s3://lake", "/visits"), ("s3://lake", "visits/"), ("S3://lake/", "visits")],
)
@pytest.mark.parametrize("first", [True, False])
def test_a_table_is_the_same_however_others_spell_it(
    ledger: Ledger, store: LineageStore, starting: None, namespace: str, spelled: str, first: bool
) -> None:
    here = {"namespace": namespace, "name": spelled, "facets": {}}
    training = trained("A", here)
    if first:
        reported(store, training)
    line(store, "visits", spend(ledger, "clinic", "visits"))
    if not first:
        reported(store, training)
    found = verdict(ledger, store, contract_of(base_model="s3://lake/A"))
    assert (found.decision, found.findings[0].kind) == ("refuse", "unprotected")
    assert store.node(DatasetName(namespace, spelled)) == store.node(name("visits"))
    assert [item for item in store.events() if item.payload["inputs"] == [here]]  # as it was told


@pytest.mark.parametrize("seen", ["visits", "orders", "orders/rows", "orders/quality"])
def test_a_checkpoint_that_has_seen_guarded_rows_is_refused_even_if_declared_public(
    ledger: Ledger, store: LineageStore, starting: None, seen: str
) -> None:
    line(store, "orders", spend(ledger, "shops", "orders"))
    reported(store, trained("A", seen), trained("B", model("A")))
    contract = contract_of(base_model="s3://lake/B")
    store.declare_public(name("A"), by="Ada", reason="somebody says that it is public")
    store.declare_public(name("B"), by="Ada", reason="somebody says that it is public")
    found = verdict(ledger, store, contract)
    assert found.decision == "refuse"
    assert {item.kind for item in found.findings} >= {"unprotected"}
    assert f"trained-on s3://lake:{seen}" in found.findings[0].path


def test_a_claimed_guarantee_protects_nothing(ledger: Ledger, store: LineageStore, starting: None) -> None:
    """Others say of a checkpoint trained on rows that an entry of ours paid for it, just as the ledger has it."""
    first = spend(ledger, "shops", "orders")
    line(store, "orders", first)
    reported(store, trained("A", "orders/rows", **guarantee(first)))
    found = verdict(ledger, store, contract_of(base_model="s3://lake/A"))
    assert (found.decision, found.findings[0].kind) == ("refuse", "unprotected")


@pytest.mark.parametrize("named", ["visits/rows", "visits/model"])
def test_a_guarantee_told_before_we_wrote_a_node_protects_nothing(
    ledger: Ledger, store: LineageStore, starting: None, named: str
) -> None:
    """Others copy a public release's guarantee onto a name that our next run is going to write."""
    earlier = spend(ledger, "clinic", "old")
    line(store, "old", earlier)
    reported(store, event("COMPLETE", [], [dataset(named, **guarantee(earlier))]))
    entry = spend(ledger, "clinic", "visits", people(5, 6))
    line(store, "visits", entry)
    reported(store, trained("A", "visits/rows"), trained("B", model("visits/model")))
    found = verdict(ledger, store, contract_of(base_model="s3://lake/A"))
    assert (found.decision, found.findings[0].kind) == ("refuse", "unprotected")
    found = verdict(ledger, store, contract_of(base_model="s3://lake/B"))
    assert {item.entry for item in found.findings if item.kind == "base-model"} == {entry.entry_id}
    paid = {edge.parent.name for edge in store.edges(name(named)) if edge.relation == "paid-by"}
    assert paid == ({entry.entry_id} if named == "visits/model" else set())


def test_an_entry_that_others_named_is_not_believed_of_a_node_of_ours(
    ledger: Ledger, store: LineageStore, starting: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the edge stands from before such edges were dropped."""
    monkeypatch.setattr(graph_rows._Relating, "_forget_entries", lambda *_: None)
    earlier = spend(ledger, "clinic", "old")
    line(store, "old", earlier)
    reported(store, event("COMPLETE", [], [dataset("visits/rows", **guarantee(earlier))]))
    line(store, "visits", spend(ledger, "clinic", "visits", people(5, 6)))
    reported(store, trained("A", "visits/rows"))
    found = verdict(ledger, store, contract_of(base_model="s3://lake/A"))
    assert (found.decision, found.findings[0].kind) == ("refuse", "unprotected")


VISITS = {"namespace": "s3://lake", "name": "visits"}


@pytest.mark.parametrize("before", [False, True])
@pytest.mark.parametrize("how", ["a model", "a base model", "a product", "declared public"])
def test_a_guarded_table_stays_one_whatever_others_take_it_for(
    ledger: Ledger, store: LineageStore, starting: None, how: str, before: bool
) -> None:
    reported(store, event("COMPLETE", ["other"], ["other"]))
    line(store, "old", spend(ledger, "clinic", "old"))

    def flip() -> None:
        if how == "a model":
            reported(store, event("COMPLETE", ["wiki"], [model("visits")]))
        elif how == "a base model":
            reported(store, event("COMPLETE", [], [dataset("z", dpsynth_baseModel={"baseModels": [VISITS]})]))
        elif how == "a product":
            store.use(name("old/release"), by="Ada", purpose="train", product=name("visits"), reason="r")
        elif before:
            store.declare_public(name("visits"), by="Ada", reason="r")
        else:
            with pytest.raises(LineageRefused, match="a guarded table"):
                store.declare_public(name("visits"), by="Ada", reason="r")

    if before:
        flip()
    line(store, "visits", spend(ledger, "clinic", "visits", people(5, 6)))
    if not before:
        flip()
    reported(store, trained("A", "visits"))
    table = store.node(name("visits"))
    assert table is not None
    assert table.kind == "dataset"
    for contract in ("visits", "reviews"):
        found = verdict(ledger, store, contract_of(contract, base_model="s3://lake/A"))
        assert found.decision == "refuse"
        assert "unprotected" in {item.kind for item in found.findings}


def test_a_table_that_we_have_not_read_yet_is_guarded_by_its_name(
    ledger: Ledger, store: LineageStore, starting: None
) -> None:
    reported(store, trained("A", "visits"), event("COMPLETE", ["wiki"], [model("visits")]))
    found = verdict(ledger, store, contract_of(base_model="s3://lake/A"))
    assert {item.kind for item in found.adding} == {"unprotected"}


@pytest.mark.parametrize("tags", [["x"], 5, None, [{"key": "zone", "value": []}]])
def test_tags_of_another_shape_stop_no_clearance(
    ledger: Ledger, store: LineageStore, starting: None, monkeypatch: pytest.MonkeyPatch, tags: Any
) -> None:
    """Also where they were recorded before such events were refused."""
    monkeypatch.setattr(intake, "_checked", lambda facts: facts)
    reported(store, event("COMPLETE", [dataset("junk", tags={"tags": tags})], [model("A")]))
    assert verdict(ledger, store, contract_of(base_model="s3://lake/A")).decision == "compose"


@pytest.mark.parametrize("how", ["no such entry", "another epsilon", "another commitment"])
def test_a_forged_reference_may_hide_anybody(ledger: Ledger, store: LineageStore, starting: None, how: str) -> None:
    first = spend(ledger, "shops", "orders")
    forged = copy.deepcopy(guarantee(first))
    run_facets: dict[str, Any] = {}
    if how == "no such entry":
        forged["dpsynth_guarantee"]["ledgerEntry"] = "f" * 32
    elif how == "another epsilon":
        forged["dpsynth_guarantee"]["epsilon"] = 1e9
    else:
        forged = {}
        run_facets = {"dpsynth_participants": {"ledgerEntry": first.entry_id, "commitment": "0" * 64}}
    reported(store, event("COMPLETE", ["web"], [model("A", **forged)], **run_facets))
    contract = contract_of(base_model="s3://lake/A")
    found = verdict(ledger, store, contract)
    assert [item.kind for item in found.adding] == ["unproven"]
    assert found.decision == "compose"
    assert "no guarantee for all of them together is known" in " ".join(found.words)
    for policy in ("exclude", "block"):
        refused = verdict(ledger, store, contract_of(policy=policy, base_model="s3://lake/A"))
        assert refused.decision == "refuse"


def test_cycles_and_late_events_change_nothing(ledger: Ledger, store: LineageStore, starting: None) -> None:
    first = spend(ledger, "clinic", "visits")
    line(store, "visits", first)
    reported(
        store,
        trained("A", model("B"), "web"),
        event("COMPLETE", [model("A")], [model("B")], time="1999-01-01T00:00:00Z"),
        event("COMPLETE", ["visits/release"], [model("A")], time="1999-01-01T00:00:00Z"),
    )
    found = verdict(ledger, store, contract_of("reviews", base_model="s3://lake/B"))
    assert [item.kind for item in found.adding] == ["base-model"]
    assert found.decision == "compose"


def test_another_unit_upstream_has_no_common_guarantee(ledger: Ledger, store: LineageStore, starting: None) -> None:
    other = spend(ledger, "rows", "logs")
    mine = spend(ledger, "clinic", "earlier")
    found = verdict(ledger, store, contract_of())
    assert {item.entry for item in found.findings} == {other.entry_id, mine.entry_id}
    assert found.apart == (other.entry_id,)
    assert found.resulting is not None
    assert found.resulting.mechanisms == 2
    assert found.caps is None


def test_contracts_name_a_base_model_only_where_one_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ContractError, match="'gpt', but method"):
        contract_of(base_model="gpt")
    monkeypatch.setattr(cross_checks, "BASE_MODEL_METHODS", ("independent",))
    with_model, without = contract_of(base_model="gpt"), contract_of()
    assert with_model.mechanism_snapshot() == without.mechanism_snapshot() | {"base_model": "gpt"}
