"""The verdict before a mechanism: what is found, by which path, what results, and what nobody may vouch for."""

from __future__ import annotations

import copy
import uuid
from pathlib import Path
from typing import Any

import pytest
from dp_accounting import ComposedDpEvent, GaussianDpEvent
from dp_accounting.pld import PLDAccountant
from event_cases import TEAM, dataset, event, model, name, own
from ledger_cases import KEYS, family, people
from openlineage.client.serde import Serde

from assets.lineage import without_links
from dpsynth_platform import contracts
from dpsynth_platform.contracts import DataContract, FamilyBudget, parse_contract
from dpsynth_platform.errors import ClearanceRefused, ContractError
from dpsynth_platform.ledger import Ledger
from dpsynth_platform.ledger.records import CostRequest, Entry
from dpsynth_platform.lineage import graph_rows, intake
from dpsynth_platform.lineage.clearance import Clearance, clear
from dpsynth_platform.lineage.naming import DatasetName, dataset_name
from dpsynth_platform.lineage.store import LineageStore
from dpsynth_platform.lineage.survey import model_name
from dpsynth_platform.privacy.events import GaussianCountsEvent
from dpsynth_platform.privacy.guarantee import Guarantee

DELTA = 1e-6
SIGMA = 8.0
BUDGETS = {
    "clinic": family("clinic", mode="per-owner", epsilon=8.0),
    "archive": family("archive", mode="per-owner", epsilon=8.0),
    "shops": family("shops", mode="per-owner", namespace="customer"),
    "rows": family("rows", mode="per-owner", unit="example"),
}


def cost(place: str, *, unit: str = "user", sigma: float = SIGMA, plan: str = "") -> CostRequest:
    return CostRequest.of(
        GaussianCountsEvent(sigma, "add-or-remove", 1),
        dataset=place,
        period=None,
        guarantee=Guarantee(5.0, DELTA, unit, "add-or-remove", 1),
        plan_digest=(plan or place).ljust(64, "0")[:64],
        runner="runner",
    )


def independent(number: int) -> float:
    composed = ComposedDpEvent([GaussianDpEvent(SIGMA)] * number)
    return float(PLDAccountant(value_discretization_interval=1e-4).compose(composed).get_epsilon(number * DELTA))


@pytest.fixture
def url(tmp_path: Any) -> str:
    return f"sqlite:///{tmp_path / 'ledger' / 'ledger.db'}"


@pytest.fixture
def ledger(url: str) -> Ledger:
    opened = Ledger(url)
    for budget in BUDGETS.values():
        opened.open_account(budget, (*KEYS, "other") if budget.namespace == "customer" else KEYS)
    return opened


@pytest.fixture
def store(url: str) -> LineageStore:
    return LineageStore(url)


@pytest.fixture
def starting(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if a method of this version trained from a checkpoint."""
    monkeypatch.setattr(contracts, "BASE_MODEL_METHODS", ("independent",))


def contract_of(
    dataset: str = "visits", *, family: str = "clinic", policy: str = "compose", base_model: str | None = None
) -> DataContract:
    document: dict[str, Any] = {
        "dataset": dataset,
        "description": "Visits.",
        "owners": ["clinic@example.org"],
        "source": {"uri": f"s3://lake/{dataset}", "key": ["patient"]},
        "family": family,
        "privacy": {
            "unit": "user",
            "owner_columns": ["patient"],
            "namespace": "person",
            "max_contributions": 1,
            "guarantee": {"epsilon": 5.0},
            "expected_units": 1000,
            "on_overlap": policy,
        },
        "columns": {"patient": {"type": "identifier"}, "age": {"type": "integer", "min": 0, "max": 120}},
        "generate": {"method": "independent", "rows": 100},
        "release": {"uri": f"s3://lake/public/{dataset}"},
    }
    if base_model is not None:
        document["generate"]["base_model"] = base_model
    return parse_contract(document, where="test", variables={})


def spend(ledger: Ledger, budget: str, place: str, who: Any = None, *, policy: Any = "compose", **more: Any) -> Entry:
    keys = ledger.account(budget).key_ids
    unit = BUDGETS[budget].unit
    asked = cost(place, unit=unit)
    who = people(1, 2) if who is None else who
    entry = ledger.reserve(budget, f"run-{place}", asked, who, policy, key_ids=keys, **more)
    ledger.start(entry.entry_id)
    return ledger.complete(entry.entry_id, "a" * 64)


def guarantee(entry: Entry) -> dict[str, Any]:
    paid = entry.request.guarantee
    return {
        "dpsynth_guarantee": {
            "epsilon": paid.epsilon,
            "delta": paid.delta,
            "unit": paid.unit,
            "adjacency": paid.adjacency,
            "ledgerEntry": entry.entry_id,
        }
    }


def guarded(text: str) -> dict[str, Any]:
    return dataset(text, tags={"tags": [{"key": "zone", "value": "restricted"}]})


def line(store: LineageStore, place: str, entry: Entry, *, source: str = "", bases: tuple[str, ...] = ()) -> None:
    """What a run of ours leaves: source -> rows -> model (paid by the entry) -> release."""
    table = dataset(source or place, dpsynth_privacyUnit={"unit": "user"})
    paid = guarantee(entry)
    for item in (
        own("COMPLETE", [table], [guarded(f"{place}/rows")], job=f"{place}.bounded"),
        own("COMPLETE", [guarded(f"{place}/rows"), *map(model, bases)], [model(f"{place}/model", **paid)]),
        own("COMPLETE", [guarded(f"{place}/rows"), f"{place}/model"], [guarded(f"{place}/quality")]),
        own(
            "COMPLETE",
            [f"{place}/model", f"{place}/quality"],
            [dataset(f"{place}/release", **paid)],
            job=f"{place}.released",
        ),
    ):
        assert store.record(item).new


def told(store: LineageStore, *events: dict[str, Any]) -> None:
    for item in events:
        assert store.record(item, origin="ingested", source=TEAM).new


def trained(model_name: str, *inputs: Any, **facets: Any) -> dict[str, Any]:
    return event("COMPLETE", list(inputs), [model(model_name, **facets)])


def verdict(ledger: Ledger, store: LineageStore, contract: DataContract, **more: Any) -> Clearance:
    if "request" not in more and "entry_id" not in more:
        more["request"] = cost(contract.dataset)
    return clear(ledger, store, contract, BUDGETS[contract.family], **more)


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
    told(store, event("COMPLETE", [], [dataset("renamed", lifecycleStateChange=rename)]))
    found = verdict(ledger, store, contract_of("renamed"))
    (finding,) = found.findings
    assert (finding.kind, finding.entry) == ("source", first.entry_id)
    assert finding.path[:2] == ("s3://lake:renamed", "alias s3://lake:visits")
    assert finding.stranger is not None
    assert found.related == (first.entry_id,)
    for policy in ("exclude", "block"):
        refused = verdict(ledger, store, contract_of("renamed", policy=policy))
        assert refused.decision == "refuse"
        assert "another namespace" in refused.reason


def test_tables_made_from_one_table_are_related(ledger: Ledger, store: LineageStore) -> None:
    first = spend(ledger, "shops", "orders")
    line(store, "orders", first)
    told(store, event("COMPLETE", ["warehouse"], ["orders"]), event("COMPLETE", ["warehouse"], ["visits"]))
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
    told(store, event("COMPLETE", ["orders"], ["visits"]))
    (finding,) = verdict(ledger, store, contract_of()).findings
    assert (finding.kind, finding.entry) == ("source", entry.entry_id)
    assert finding.path[-2:] == ("read-by orders", f"entry {entry.entry_id}")
    assert bystander.entry_id not in finding.path[-1]
    for policy in ("exclude", "block"):
        assert verdict(ledger, store, contract_of(policy=policy)).decision == "refuse"


def test_a_reservation_that_was_given_back_is_no_finding(ledger: Ledger, store: LineageStore) -> None:
    entry = ledger.reserve("shops", "run", cost("orders"), people(1, 2), "compose", key_ids=(*KEYS, "other"))
    store.record(own("COMPLETE", [dataset("orders")], [guarded("orders/raw")], job="orders.raw"))
    told(store, event("COMPLETE", ["orders"], ["visits"]))
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
    told(store, event("COMPLETE", [read], ["visits"]))
    assert [item.entry for item in verdict(ledger, store, contract_of()).findings] == [entry.entry_id]


def test_what_is_made_of_a_release_has_none_of_its_people(ledger: Ledger, store: LineageStore) -> None:
    """After the mechanism everything is post-processing: another dataset whose model began with this one's release."""
    first, second = spend(ledger, "clinic", "visits"), spend(ledger, "shops", "orders")
    line(store, "visits", first)
    told(store, trained("A", "visits/release"))
    line(store, "orders", second, bases=("A",))
    found = verdict(ledger, store, contract_of())
    assert {item.entry for item in found.findings} == {first.entry_id}


# Base models


def test_a_checkpoint_two_trainings_deep(ledger: Ledger, store: LineageStore, starting: None) -> None:
    """Guide, E2: D1 -> release -> A -> B, and B is what training on D2 would start from."""
    first = spend(ledger, "clinic", "visits")
    line(store, "visits", first)
    told(store, trained("A", "visits/release", "web"), trained("B", model("A"), "more-web"))
    found = verdict(ledger, store, contract_of("reviews", family="archive", base_model="s3://lake/B"))
    (finding,) = found.findings
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
    told(store, trained("A", "visits/release"))
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
    told(store, trained("B", model("mystery"), "web"))
    found = verdict(ledger, store, contract_of(base_model="s3://lake/B"))
    assert found.decision == "refuse"
    assert found.findings[0].path == ("s3://lake:B", "base s3://lake:mystery")


def test_a_checkpoint_that_is_only_mentioned_is_unknown(ledger: Ledger, store: LineageStore, starting: None) -> None:
    """Whatever the event that mentions it takes it for."""
    told(store, event("COMPLETE", ["web"], ["something"]), event("COMPLETE", ["B"], ["other"]))
    assert verdict(ledger, store, contract_of(base_model="s3://lake/B")).decision == "refuse"


def test_a_checkpoint_of_the_same_path_on_another_machine_says_nothing_of_ours(
    ledger: Ledger, store: LineageStore, starting: None
) -> None:
    there = {
        "namespace": "file://elsewhere",
        "name": "/models/base",
        "facets": {"datasetType": {"datasetType": "MODEL"}},
    }
    told(store, event("COMPLETE", ["web"], [there]))
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
        told(store, training)
    line(store, "visits", spend(ledger, "clinic", "visits"))
    if not first:
        told(store, training)
    found = verdict(ledger, store, contract_of(base_model="s3://lake/A"))
    assert (found.decision, found.findings[0].kind) == ("refuse", "unprotected")
    assert store.node(DatasetName(namespace, spelled)) == store.node(name("visits"))
    assert [item for item in store.events() if item.payload["inputs"] == [here]]  # as it was told


@pytest.mark.parametrize("seen", ["visits", "orders", "orders/rows", "orders/quality"])
def test_a_checkpoint_that_has_seen_guarded_rows_is_refused_even_if_declared_public(
    ledger: Ledger, store: LineageStore, starting: None, seen: str
) -> None:
    line(store, "orders", spend(ledger, "shops", "orders"))
    told(store, trained("A", seen), trained("B", model("A")))
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
    told(store, trained("A", "orders/rows", **guarantee(first)))
    found = verdict(ledger, store, contract_of(base_model="s3://lake/A"))
    assert (found.decision, found.findings[0].kind) == ("refuse", "unprotected")


@pytest.mark.parametrize("named", ["visits/rows", "visits/model"])
def test_a_guarantee_told_before_we_wrote_a_node_protects_nothing(
    ledger: Ledger, store: LineageStore, starting: None, named: str
) -> None:
    """Others copy a public release's guarantee onto a name that our next run is going to write."""
    earlier = spend(ledger, "clinic", "old")
    line(store, "old", earlier)
    told(store, event("COMPLETE", [], [dataset(named, **guarantee(earlier))]))
    entry = spend(ledger, "clinic", "visits", people(5, 6))
    line(store, "visits", entry)
    told(store, trained("A", "visits/rows"), trained("B", model("visits/model")))
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
    told(store, event("COMPLETE", [], [dataset("visits/rows", **guarantee(earlier))]))
    line(store, "visits", spend(ledger, "clinic", "visits", people(5, 6)))
    told(store, trained("A", "visits/rows"))
    found = verdict(ledger, store, contract_of(base_model="s3://lake/A"))
    assert (found.decision, found.findings[0].kind) == ("refuse", "unprotected")


VISITS = {"namespace": "s3://lake", "name": "visits"}


@pytest.mark.parametrize("before", [False, True])
@pytest.mark.parametrize("how", ["a model", "a base model", "a product", "declared public"])
def test_a_guarded_table_stays_one_whatever_others_take_it_for(
    ledger: Ledger, store: LineageStore, starting: None, how: str, before: bool
) -> None:
    told(store, event("COMPLETE", ["other"], ["other"]))
    line(store, "old", spend(ledger, "clinic", "old"))

    def flip() -> None:
        if how == "a model":
            told(store, event("COMPLETE", ["wiki"], [model("visits")]))
        elif how == "a base model":
            told(store, event("COMPLETE", [], [dataset("z", dpsynth_baseModel={"baseModels": [VISITS]})]))
        elif how == "a product":
            store.use(name("old/release"), by="Ada", purpose="train", product=name("visits"), reason="r")
        else:
            store.declare_public(name("visits"), by="Ada", reason="r")

    if before:
        flip()
    line(store, "visits", spend(ledger, "clinic", "visits", people(5, 6)))
    if not before:
        flip()
    told(store, trained("A", "visits"))
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
    told(store, trained("A", "visits"), event("COMPLETE", ["wiki"], [model("visits")]))
    found = verdict(ledger, store, contract_of(base_model="s3://lake/A"))
    assert {item.kind for item in found.findings} == {"unprotected"}


@pytest.mark.parametrize("tags", [["x"], 5, None, [{"key": "zone", "value": []}]])
def test_tags_of_another_shape_stop_no_clearance(
    ledger: Ledger, store: LineageStore, starting: None, monkeypatch: pytest.MonkeyPatch, tags: Any
) -> None:
    """Also where they were recorded before such events were refused."""
    monkeypatch.setattr(intake, "_checked", lambda facts: facts)
    told(store, event("COMPLETE", [dataset("junk", tags={"tags": tags})], [model("A")]))
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
    told(store, event("COMPLETE", ["web"], [model("A", **forged)], **run_facets))
    contract = contract_of(base_model="s3://lake/A")
    found = verdict(ledger, store, contract)
    assert [item.kind for item in found.findings] == ["unproven"]
    assert found.decision == "compose"
    assert "no guarantee for all of them together is known" in " ".join(found.words)
    for policy in ("exclude", "block"):
        refused = verdict(ledger, store, contract_of(policy=policy, base_model="s3://lake/A"))
        assert refused.decision == "refuse"


def test_cycles_and_late_events_change_nothing(ledger: Ledger, store: LineageStore, starting: None) -> None:
    first = spend(ledger, "clinic", "visits")
    line(store, "visits", first)
    told(
        store,
        trained("A", model("B"), "web"),
        event("COMPLETE", [model("A")], [model("B")], time="1999-01-01T00:00:00Z"),
        event("COMPLETE", ["visits/release"], [model("A")], time="1999-01-01T00:00:00Z"),
    )
    found = verdict(ledger, store, contract_of("reviews", base_model="s3://lake/B"))
    assert [item.kind for item in found.findings] == ["base-model"]
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
    told(store, trained("A", "web"))
    mine = spend(ledger, "clinic", "visits")
    contract = contract_of(base_model="s3://lake/A")
    before = verdict(ledger, store, contract, entry_id=mine.entry_id)
    assert (before.decision, before.findings) == ("compose", ())
    assert verdict(ledger, store, contract, entry_id=mine.entry_id).kept(before) is before
    told(store, trained("A", "orders/release"))
    now = verdict(ledger, store, contract, entry_id=mine.entry_id)
    (new,) = now.news(before)
    assert (new.kind, new.entry) == ("base-model", other.entry_id)
    assert now.kept(before) is now
    assert before.news(now) == ()


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
        told(store, trained("A", "visits/release"))
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


def test_contracts_name_a_base_model_only_where_one_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ContractError, match="'gpt', but method"):
        contract_of(base_model="gpt")
    monkeypatch.setattr(contracts, "BASE_MODEL_METHODS", ("independent",))
    with_model, without = contract_of(base_model="gpt"), contract_of()
    assert with_model.mechanism_snapshot() == without.mechanism_snapshot() | {"base_model": "gpt"}
