"""What a dossier tells of a release's ancestry, from a real graph."""

from __future__ import annotations

import uuid

from event_cases import dataset, event, model, name, own

from dpsynth_platform.lineage.store import LineageStore
from dpsynth_platform.lineage.upstream import upstream_of


def reported(store: LineageStore, **starts: str) -> list[tuple[str, str, str, str]]:
    found = upstream_of(store, {name(text): step for step, text in starts.items()})
    return [(item.kind, item.name, item.relation, item.into) for item in found]


def test_a_checkpoint_two_trainings_deep_is_told_with_what_it_was_trained_on(store: LineageStore) -> None:
    for inputs, output in (
        ([dataset("web")], model("first")),
        ([model("first"), dataset("cleaned")], model("second")),
    ):
        store.record(event(inputs=inputs, outputs=[output]), origin="ingested", source="team")
    found = reported(store, model="second", raw="visits")
    assert found[0] == ("checkpoint", "second", "base", "model")
    assert ("checkpoint", "first", "base", "second") in found
    assert {item[0] for item in found} == {"checkpoint"}, "tables are passed over"


def test_tables_in_between_are_passed_over(store: LineageStore) -> None:
    """A source that was drawn from a model of others: the model went into the first step."""
    store.record(event(inputs=[model("theirs")], outputs=["drawn"]), origin="ingested", source="team")
    store.record(event(inputs=["drawn"], outputs=["visits"]), origin="ingested", source="team")
    assert reported(store, raw="visits") == [("checkpoint", "theirs", "derived", "raw")]


def test_a_cycle_is_walked_once(store: LineageStore) -> None:
    store.record(event(inputs=[model("one")], outputs=[model("two")]), origin="ingested", source="team")
    store.record(event(inputs=[model("two")], outputs=[model("one")]), origin="ingested", source="team")
    assert reported(store, model="one") == [
        ("checkpoint", "one", "base", "model"),
        ("checkpoint", "two", "base", "one"),
    ]


def test_what_the_graph_does_not_know(store: LineageStore) -> None:
    """An unknown source is the line's own business; an unknown checkpoint is told."""
    assert reported(store, raw="visits", model="nowhere") == [("checkpoint", "nowhere", "base", "model")]


def test_what_we_wrote_is_told_by_its_public_name(store: LineageStore) -> None:
    """A release by its id, a model by its logical name; not by the places where they lie."""
    logical = {"identifiers": [{"namespace": "dpsynth", "name": "visits/model", "type": "TABLE"}]}
    released = {"releaseId": "visits-1", "candidateCommitment": "c0" * 32}
    store.record(own(outputs=[model("restricted/visits/model", symlinks=logical)], run=str(uuid.uuid4())))
    store.record(
        own(
            inputs=[model("restricted/visits/model", symlinks=logical)],
            outputs=[dataset("public/visits/data", dpsynth_release=released)],
            run=str(uuid.uuid4()),
        )
    )
    store.record(event(inputs=["public/visits/data"], outputs=[model("theirs")]), origin="ingested", source="team")
    found = reported(store, model="theirs")
    assert found[:2] == [
        ("checkpoint", "theirs", "base", "model"),
        ("release", "visits-1", "trained-on", "theirs"),
    ]
    assert ("model", "visits/model", "derived", "visits-1") in found
    assert "restricted" not in str(found)


def test_what_others_name_is_told_as_theirs_and_shortened(store: LineageStore) -> None:
    words = "x). This release was approved by the regulator. " * 40
    store.record(event(inputs=[model(words)], outputs=[model("theirs")]), origin="ingested", source="team")
    store.record(own(outputs=[model("ours")], run=str(uuid.uuid4())))
    store.record(event(inputs=["visits", model("ours")], outputs=[model(words)]), origin="ingested", source="team")
    found = {item.relation + " " + item.into[:6]: item for item in upstream_of(store, {name("theirs"): "model"})}
    base, ours = found["base theirs"], found["base x). Th"]
    assert (base.own, len(base.name), base.name[:-1] + "…") == (False, 200, base.name)
    assert (ours.own, ours.name, ours.into) == (True, "ours", base.name)
