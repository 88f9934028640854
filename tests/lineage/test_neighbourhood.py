"""A part of the graph: depth, steps of one run as one place, what is left out; and ways between two nodes."""

from __future__ import annotations

from itertools import pairwise

import pytest
from event_cases import dataset, event, name, own
from ledger_cases import KEYS, family, request

from dpsynth_platform.ledger import Ledger, chain
from dpsynth_platform.ledger.records import CostRequest
from dpsynth_platform.lineage.neighbourhood import around, way
from dpsynth_platform.lineage.scenarios import Repetitions
from dpsynth_platform.lineage.store import LineageStore


@pytest.fixture
def store(tmp_path):
    """source -> scrubbed -> model -> rows -> release -> product, and ten other readers of the source."""
    made = LineageStore(f"sqlite:///{tmp_path / 'ledger' / 'ledger.db'}")
    line = ["source", "scrubbed", "model", "rows", "release", "product"]
    for before, after in pairwise(line):
        told = own if after in ("scrubbed", "model", "rows") else event
        made.record(
            told(inputs=[before], outputs=[dataset(after, "1")]),
            origin="own" if told is own else "ingested",
            source="" if told is own else "team",
        )
    for number in range(10):
        made.record(
            event(inputs=["source"], outputs=[dataset(f"copy-{number}", "1")]), origin="ingested", source="team"
        )
    return made


def names(found):
    return {node.name.name: found.distances[here] for here, node in found.nodes.items()}


def one_run(node):
    """The restricted steps are one place."""
    return "run" if node.name.name in ("scrubbed", "model", "rows") else None


def test_as_many_steps_as_asked_for_in_each_direction(store):
    found = around(store, name("model"), up=1, down=1, most=50)
    assert names(found) == {"model": 0, "scrubbed": -1, "rows": 1}
    assert {found.nodes[here].name.name: more for here, more in found.beyond.items()} == {"scrubbed": 1, "rows": 1}
    assert len(found.links) == 2
    assert names(around(store, name("model"), up=0, down=0, most=50)) == {"model": 0}
    assert around(store, name("nothing"), up=1, down=1, most=50) is None


def test_steps_of_one_run_are_no_distance_apart(store):
    found = around(store, name("release"), up=2, down=0, most=50, group=one_run)
    assert names(found) == {"release": 0, "rows": -1, "model": -1, "scrubbed": -1, "source": -2}
    assert {found.nodes[here].name.name: more for here, more in found.beyond.items()} == {"release": 1}  # below


def test_another_name_is_no_distance_and_no_node(store):
    symlink = {"identifiers": [{"namespace": "dpsynth", "name": "census/released", "type": "TABLE"}]}
    store.record(own(inputs=["rows"], outputs=[dataset("release", "2", symlinks=symlink)]))
    found = around(store, name("release"), up=1, down=1, most=50)
    assert names(found) == {"release": 0, "rows": -1, "product": 1}


def test_what_is_too_much_is_left_out_and_counted(store):
    found = around(store, name("source"), up=1, down=1, most=4)
    assert len(found.nodes) == 4
    assert found.left_out == 8
    # What the graph came to know last is taken first.
    assert {"copy-9", "copy-8", "copy-7"} == names(found).keys() - {"source"}


def test_the_way_from_one_to_another(store):
    for ends in (("source", "product"), ("product", "source")):
        found = way(store, *map(name, ends))
        path = ["source", "scrubbed", "model", "rows", "release", "product"]
        assert [node.name.name for node, _ in found] == (path if ends[0] == "source" else path[::-1])
        assert [link is None for _, link in found] == [True] + [False] * 5
    # Neither came of the other: what they have in common.
    assert [node.name.name for node, _ in way(store, name("copy-3"), name("scrubbed"))] == [
        "copy-3",
        "source",
        "scrubbed",
    ]
    assert [node.name.name for node, _ in way(store, name("rows"), name("rows"))] == ["rows"]
    store.record(event(outputs=[dataset("island", "1")]), origin="ingested", source="team")
    assert way(store, name("island"), name("rows")) is None
    assert way(store, name("nothing"), name("rows")) is None


def test_search_by_a_part_of_a_name(store):
    assert [node.name.name for node in store.containing("COPY-", most=3)] == ["copy-9", "copy-8", "copy-7"]
    assert store.containing("100%", most=3) == []
    assert [node.name.name for node in store.containing("lake", most=1)] == ["copy-9"]


def entry(ledger, key, dataset, *, period=None, to="people", unit="user", related=()):
    asked = request(dataset=dataset).to_json()
    asked["period"] = period
    asked["guarantee"]["unit"] = unit
    found = ledger.reserve(to, key, CostRequest.from_json(asked), None, "compose", related=related)
    return found.entry_id


def test_scenarios_of_repeated_release(tmp_path):
    ledger = Ledger(f"sqlite:///{tmp_path / 'ledger' / 'ledger.db'}")
    for terms in (
        family("people", mode="family", epsilon=90.0),
        family("records", mode="family", epsilon=90.0, unit="example", namespace="row"),
        family("far", mode="family", epsilon=90.0, namespace="elsewhere"),
    ):
        ledger.open_account(terms, KEYS)
    first, second = entry(ledger, "a", "census"), entry(ledger, "b", "census")
    january, february = (entry(ledger, month, "visits", period=month) for month in ("2026-01", "2026-02"))
    rows, others = (entry(ledger, name, name, to="records", unit="example") for name in ("rows", "others"))
    upstream = entry(ledger, "far", "far", to="far")
    tuned = entry(ledger, "tuned", "tuned", to="records", unit="example", related=[upstream])
    ledger.void(entry(ledger, "void", "census"))

    def found(name):
        known = {item.family: item for item in ledger.accounts()}
        of = Repetitions(ledger.entries(), known, ledger.history()).of(name)
        return {item.scenario: [other.entry_id for other in item.entries] for item in of}

    assert found(first) == {"E0": [second], "E2": [january, february]}
    assert found(january) == {"E2": [first, second], "E3": [february]}
    assert found(rows) == {"E1": [others, tuned]}
    assert found(tuned) == {"E1": [rows, others, upstream]}
    assert found(upstream) == {"E2": [tuned]}
    assert found("nothing") == {}
    assert [event.kind for event in ledger.history(kinds=[chain.VOID])] == ["void"]
