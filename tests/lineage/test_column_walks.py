"""What is drawn from a column, and where one comes from: over our own tables, models of others, and bad reports."""

from __future__ import annotations

from typing import Any

import pytest
from event_cases import TEAM, dataset, event, model, name, own

from dpsynth_platform.lineage import facets as making
from dpsynth_platform.lineage.column_walks import ColumnWalk, columns_of, impact, origins
from dpsynth_platform.lineage.columns import ColumnDescent, ColumnOrigin, descent_of
from dpsynth_platform.lineage.store import LineageStore


def field(table: str, column: str, subtype: str = "IDENTITY", masking: bool = False) -> dict[str, Any]:
    kind = "DIRECT" if subtype in ("IDENTITY", "TRANSFORMATION", "AGGREGATION") else "INDIRECT"
    step = {"type": kind, "subtype": subtype, "masking": masking}
    return {"namespace": "s3://lake", "name": table, "field": column, "transformations": [step]}


def table(text: str, columns: dict[str, list[Any]], rows: list[Any] = [], **more: Any) -> dict[str, Any]:  # noqa: B006
    lineage = {"fields": {column: {"inputFields": listed} for column, listed in columns.items()}, "dataset": rows}
    schema = {"fields": [{"name": column, "type": "string"} for column in columns]}
    return dataset(text, "1", schema=schema, columnLineage=lineage, **more)


@pytest.fixture
def line(store: LineageStore) -> LineageStore:
    """source -> scrubbed -> bounded -> model -> synthetic -> released -> ranker; and a record of the source."""
    scrubbed = table(
        "scrubbed",
        {"_owner": [field("source", "person", "TRANSFORMATION", True)], "age": [field("source", "age")]},
        [field("source", "person", "FILTER")],
    )
    bounded = table(
        "bounded",
        {"_owner": [field("scrubbed", "_owner")], "age": [field("scrubbed", "age")]},
        [field("scrubbed", "_owner", "FILTER")],
    )
    modelled = [field("bounded", "age", "AGGREGATION", True)]
    synthetic = table("synthetic", {"age": modelled, "person": []}, [field("bounded", "age", "CONDITIONAL", True)])
    released = table("released", {"age": [field("synthetic", "age")], "person": [field("synthetic", "person")]})
    for inputs, output in (
        (["source"], dataset("record", "1")),
        (["source", "record"], scrubbed),
        (["scrubbed"], bounded),
        (["bounded", "record"], model("model", "1")),
        (["model", "bounded"], synthetic),
        (["synthetic"], released),
    ):
        store.record(own(inputs=inputs, outputs=[output]))
    reported(store, ["released"], model("ranker"))
    return store


def reported(store: LineageStore, inputs: list[Any], output: Any) -> None:
    store.record(event(inputs=inputs, outputs=[output]), origin="ingested", source=TEAM)


def drawn(store: LineageStore, table: str, column: str | None) -> dict[str, tuple[bool, bool | None]]:
    """Every reached part with whether it is direct and masked."""
    found = impact(store, name(table), column, lambda node: node.facets)
    assert found is not None
    return parts(found)


def parts(found: ColumnWalk) -> dict[str, tuple[bool, bool | None]]:
    return {
        f"{found.nodes[item.part.node].name.name}.{item.part.column or '*'}": (item.direct, item.masked)
        for item in found.reached
        if item.step is not None
    }


def test_an_owner_column_reaches_pseudonyms_and_rows_and_no_released_column(line: LineageStore) -> None:
    assert drawn(line, "source", "person") == {
        "record.*": (False, None),
        "scrubbed._owner": (True, True),
        "scrubbed.*": (False, False),
        "bounded._owner": (True, True),
        "bounded.*": (False, False),
        "model.*": (False, None),
        "synthetic.*": (False, True),
        "released.*": (False, True),
        "ranker.*": (False, True),
    }


def test_a_modelled_column_reaches_the_release_masked(line: LineageStore) -> None:
    found = drawn(line, "source", "age")
    assert found["bounded.age"] == (True, False)
    assert found["released.age"] == (True, True)
    assert found["ranker.*"] == (False, True)
    assert "scrubbed._owner" not in found


def test_a_column_that_nothing_reads_reaches_no_table_by_way_of_a_record(line: LineageStore) -> None:
    assert drawn(line, "source", "unused") == {"record.*": (False, None)}


def test_where_a_released_column_comes_from(line: LineageStore) -> None:
    found = origins(line, name("released"), "age", lambda node: node.facets)
    assert found is not None
    assert parts(found) == {
        "synthetic.age": (True, False),
        "bounded.age": (True, True),
        "scrubbed.age": (True, True),
        "source.age": (True, True),
    }
    deciding = [(found.nodes[step.source.node].name.name, step.source.column) for step in found.rows]
    assert deciding == [("bounded", "age"), ("scrubbed", "_owner"), ("source", "person")]
    fresh = origins(line, name("released"), "person", lambda node: node.facets)
    assert fresh is not None
    assert parts(fresh) == {"synthetic.person": (True, False)}


def test_what_a_model_inherits_reaches_the_rows_that_are_drawn_from_it(store: LineageStore) -> None:
    reported(store, ["secret"], model("base"))
    store.record(own(inputs=["bounded", model("base")], outputs=[model("tuned", "1")]))
    synthetic = table("texts", {"text": [field("bounded", "text", "AGGREGATION", True)]})
    store.record(own(inputs=[model("tuned"), "bounded"], outputs=[synthetic]))
    assert drawn(store, "secret", "id") == {
        "base.*": (False, None),
        "tuned.*": (False, None),
        "texts.*": (False, None),
    }
    # The model's own training data reach its texts as the column lineage says, and no further.
    assert "texts.*" not in drawn(store, "bounded", "unread")


def test_reports_of_others_that_leave_an_input_out_do_not_end_a_walk(line: LineageStore) -> None:
    reported(line, ["released", "elsewhere"], table("joined", {"x": [field("elsewhere", "x")]}))
    reported(line, ["joined"], table("copy", {"x": [field("joined", "x")]}))
    found = drawn(line, "source", "age")
    assert found["joined.*"] == (False, True)
    assert found["copy.*"] == (False, True)


def test_another_name_of_a_table_is_the_same_table(line: LineageStore) -> None:
    link = {"identifiers": [{"namespace": "s3://lake", "name": "published", "type": "TABLE"}]}
    line.record(own(inputs=["synthetic"], outputs=[dataset("released", "1", symlinks=link)]))
    reported(line, ["published"], table("view", {"years": [field("published", "age")]}))
    assert drawn(line, "source", "age")["view.years"] == (True, True)


def test_circles_end_and_unknown_names_are_nothing(store: LineageStore) -> None:
    reported(store, ["a"], table("b", {"x": [field("a", "x")]}))
    reported(store, ["b"], table("a", {"x": [field("b", "x"), field("a", "x")]}))
    assert drawn(store, "a", "x") == {"b.x": (True, False)}
    assert impact(store, name("nothing"), "x", lambda node: node.facets) is None
    assert origins(store, name("nothing"), "x", lambda node: node.facets) is None


def test_facets_that_may_not_be_seen_leave_the_dataset_as_a_whole(line: LineageStore) -> None:
    reported(line, ["released"], table("theirs", {"years": [field("released", "age")]}))
    assert drawn(line, "source", "age")["theirs.years"] == (True, True)
    hidden = impact(line, name("source"), "age", lambda node: node.facets if node.own else {})
    assert hidden is not None
    assert {part for part in parts(hidden) if part.startswith("theirs")} == {"theirs.*"}


@pytest.mark.parametrize(
    "facet",
    [None, [], {}, {"fields": []}, {"fields": None}, "fields"],
    ids=["none", "list", "empty", "fields", "null", "text"],
)
def test_what_is_no_column_lineage_is_none(facet: Any) -> None:
    assert descent_of(facet) is None


def test_parts_of_another_form_are_skipped() -> None:
    bad = [None, {}, {"namespace": "a", "name": 1, "field": "x"}, {"namespace": "a", "name": "b", "field": "c"}]
    found = descent_of({"fields": {"x": {"inputFields": bad}, "y": 3, "z": {"inputFields": "?"}}, "dataset": {"no": 1}})
    assert found is not None
    assert [(item.column, item.subtype, item.masking) for item in found.origins["x"]] == [("c", "IDENTITY", False)]
    assert (set(found.without), found.rows) == ({"z"}, ())
    assert columns_of({"schema": {"fields": [None, {"name": "x"}]}, "tags": {"tags": 1}})["x"].type == ""


def test_owner_columns_are_tagged_at_the_source_alone() -> None:
    described = {
        "schema": {"fields": [{"name": "person"}, {"name": "age"}]},
        "dpsynth_privacyUnit": {"ownerColumns": ["person", "gone", 3]},
    }
    assert [item.tags for item in columns_of(described).values()] == [(("owner", "true"),), ()]
    assert columns_of(described | {"columnLineage": {"fields": {}}})["person"].tags == ()
    assert columns_of(described | {"dpsynth_privacyUnit": []})["person"].tags == ()


def test_our_own_facet_reads_back_as_it_was() -> None:
    made = ColumnDescent(
        {"age": (ColumnOrigin(name("bounded"), "age", "AGGREGATION", True, "Drawn."),)},
        {"person": "Fresh."},
        (ColumnOrigin(name("bounded"), "age", "CONDITIONAL", True),),
    )
    from openlineage.client.serde import Serde

    assert descent_of(Serde.to_dict(making.column_lineage(made)["columnLineage"])) == made
