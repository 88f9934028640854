"""Mistaken events of other producers taken back: the graph as it would be without them, and nothing else."""

from __future__ import annotations

import uuid
from typing import Any

import pytest
from clearance_cases import contract_of, guarded, line, spend, verdict
from event_cases import dataset, event, model, name, own

from dpsynth_platform.foundation.errors import ConfigurationError, LineageRefused
from dpsynth_platform.ledger import Ledger
from dpsynth_platform.ledger.words import in_words
from dpsynth_platform.lineage.nodes import Node
from dpsynth_platform.lineage.store import LineageStore

pytestmark = pytest.mark.usefixtures("starting")
LINK = {"identifiers": [{"namespace": "s3://lake", "name": "B", "type": "MODEL"}]}


def tell(store: LineageStore, told: dict[str, Any], source: str = "team") -> int:
    number = store.record(told, origin="ingested", source=source).sequence
    assert number is not None
    return number


def take_back(store: LineageStore, number: int) -> None:
    store.distrust(number, by="Ada", reason="a wrong path")


def graph(store: LineageStore, *names: str) -> list[Any]:
    """Edges and nodes as far as they do not tell of the events behind them."""
    edges = {(edge.child, edge.parent, edge.relation) for text in names for edge in store.edges(name(text))}
    nodes: list[Node | None] = [store.node(name(text)) for text in names]
    return [edges, [node and (node.name, node.kind, node.own, dict(node.facets)) for node in nodes]]


def test_what_a_mistaken_event_told_counts_no_more(ledger: Ledger, store: LineageStore) -> None:
    line(store, "orders", spend(ledger, "shops", "orders"))
    tell(store, event("COMPLETE", ["web"], [model("A")]))
    before = graph(store, "A", "orders/rows", "web")
    number = tell(store, event("COMPLETE", ["orders/rows"], [model("A")]))
    contract = contract_of(base_model="s3://lake/A")
    assert verdict(ledger, store, contract).decision == "refuse"
    take_back(store, number)
    assert verdict(ledger, store, contract).decision == "compose"
    assert graph(store, "A", "orders/rows", "web") == before
    assert number in [item.sequence for item in store.events()]
    assert (number, "Ada") in [(item.event, item.by) for item in store.distrusts(name("A"))]
    assert store.distrusts(name("web")) == []
    assert in_words(ledger.history())[-1] == ("Ada", f"lineage event {number} of the producer team: a wrong path")
    assert ledger.verify().problems == ()


def test_a_mistaken_facet_and_kind_go_with_their_event(ledger: Ledger, store: LineageStore) -> None:
    tell(store, event("COMPLETE", [dataset("crawl", note={"words": "first"})], [model("A")]))
    before = graph(store, "crawl", "A")
    tags = {"tags": [{"key": "zone", "value": "restricted"}]}
    number = tell(store, event("COMPLETE", [], [model("crawl", tags=tags, note={"words": "second"})]))
    contract = contract_of(base_model="s3://lake/A")
    assert verdict(ledger, store, contract).decision == "refuse"
    take_back(store, number)
    assert graph(store, "crawl", "A") == before
    assert verdict(ledger, store, contract).decision == "compose"


def test_the_other_events_of_its_run_go_with_it(ledger: Ledger, store: LineageStore) -> None:
    run = str(uuid.uuid4())
    start = tell(store, event("START", [guarded("secret")], [], run=run))
    tell(store, event("COMPLETE", [], [model("A")], run=run))
    tell(store, event("COMPLETE", ["web"], [model("A")]))
    contract = contract_of(base_model="s3://lake/A")
    assert verdict(ledger, store, contract).decision == "refuse"
    take_back(store, start)
    assert verdict(ledger, store, contract).decision == "compose"
    late = tell(store, event("OTHER", [guarded("secret")], [model("A")], run=run))  # told anew, it counts again
    assert verdict(ledger, store, contract).decision == "refuse"
    take_back(store, late)
    assert verdict(ledger, store, contract).decision == "compose"


@pytest.mark.parametrize("whose", ["theirs", "ours"])
def test_what_somebody_else_told_as_well_still_holds(ledger: Ledger, store: LineageStore, whose: str) -> None:
    """An alias stands once in the graph, under whoever told it first."""
    number = tell(store, event("COMPLETE", ["web"], [model("A", symlinks=LINK)]), "first")
    again = event("COMPLETE", ["web"], [model("A", symlinks=LINK)])
    if whose == "theirs":
        tell(store, again, "second")
    else:
        store.record(own("COMPLETE", [model("A", symlinks=LINK)], ["x"]))
    tell(store, event("COMPLETE", [guarded("secret")], [model("B")]), "second")
    take_back(store, number)
    found = verdict(ledger, store, contract_of(base_model="s3://lake/A"))
    assert "unprotected" in {item.kind for item in found.findings}


def test_without_the_only_word_its_origin_is_unknown(ledger: Ledger, store: LineageStore) -> None:
    """Taking back adds suspicion where it takes an origin away."""
    number = tell(store, event("COMPLETE", ["web"], [model("A")]))
    take_back(store, number)
    found = verdict(ledger, store, contract_of(base_model="s3://lake/A"))
    assert (found.decision, found.findings[0].kind) == ("refuse", "unknown")


def test_the_same_event_again_stays_taken_back(ledger: Ledger, store: LineageStore) -> None:
    told = event("COMPLETE", ["web"], [model("A")])
    number = tell(store, told)
    take_back(store, number)
    assert not store.record(told, origin="ingested", source="team").new
    assert store.edges(name("A")) == []


def test_a_clearance_that_was_made_under_it_stays(ledger: Ledger, store: LineageStore) -> None:
    other = spend(ledger, "shops", "orders")
    line(store, "orders", other)
    tell(store, event("COMPLETE", ["web"], [model("A")]))
    number = tell(store, event("COMPLETE", ["orders/release"], [model("A")]))
    mine = spend(ledger, "clinic", "visits")
    contract = contract_of(base_model="s3://lake/A")
    before = verdict(ledger, store, contract, entry_id=mine.entry_id)
    take_back(store, number)
    now = verdict(ledger, store, contract, entry_id=mine.entry_id)
    assert (len(before.adding), len(now.adding)) == (1, 0)
    assert now.kept(before) is before


def test_only_events_of_others_are_taken_back_and_once(ledger: Ledger, store: LineageStore) -> None:
    line(store, "visits", spend(ledger, "clinic", "visits"))
    store.use(name("visits/release"), by="Ada", purpose="train", product="ranker", reason="r")
    number = tell(store, event("COMPLETE", ["visits/release"], [model("A")]))
    before = graph(store, "visits", "visits/rows", "visits/model", "visits/release", "ranker")
    for ours in store.events():
        if ours.origin == "own":
            with pytest.raises(LineageRefused, match="own"):
                take_back(store, ours.sequence)
    with pytest.raises(LineageRefused, match="no lineage event 999"):
        take_back(store, 999)
    with pytest.raises(ConfigurationError, match="the reason"):
        store.distrust(number, by="Ada", reason=" ")
    assert graph(store, "visits", "visits/rows", "visits/model", "visits/release", "ranker") == before
    take_back(store, number)
    with pytest.raises(LineageRefused, match="distrusted already"):
        take_back(store, number)
    kept = graph(store, "visits", "visits/rows", "visits/model", "visits/release", "ranker")
    assert kept[1] == before[1]
    assert before[0] - kept[0] == {(name("A"), name("visits/release"), "trained-on")}


def test_an_event_that_nobody_distrusted_cannot_be_hidden_under_its_number(ledger: Ledger, store: LineageStore) -> None:
    """What the chain names is this very event: of another digest nothing is left out."""
    number = tell(store, event("COMPLETE", ["web"], [model("A")]))
    take_back(store, number)
    from sqlalchemy import update

    from dpsynth_platform.ledger import lineage_tables as tables
    from dpsynth_platform.lineage.distrust import distrusted

    changed = update(tables.event).where(tables.event.c.sequence == number).values(digest="0" * 64)
    store.database.write(lambda connection: connection.execute(changed).rowcount)
    assert store.database.read(distrusted) == set()
