from __future__ import annotations

import copy
import inspect
import json
from collections.abc import Iterator
from typing import Any

import pytest
from facet_cases import event_of, every_facet
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from openlineage.client.serde import Serde

from dpsynth_platform.contracts.columns import IgnoredColumn
from dpsynth_platform.contracts.contract import DataContract
from dpsynth_platform.foundation.errors import BudgetExceeded, LineageRefused
from dpsynth_platform.foundation.redaction import safe_error
from dpsynth_platform.lineage import columns, facets
from dpsynth_platform.lineage import custom_facets as own_facets
from dpsynth_platform.lineage.export import NOT_COMPLETED, OPERATOR_ONLY, PUBLIC, public_event

SECRET, NUMBER = "Jane Doe 4711", 471_147_114
FREE = {
    "name", "namespace", "field", "description", "family", "ownerColumns[]", "type", "integration", "release",
    "product",
}  # fmt: skip
"""The fields of texts that are public by where they come from; all others have a form."""
NUMBERS = {
    "epsilon", "delta", "confidence", "epsilonLowerBound", "epsilonHighestReachable", "epsilonThreshold",
    "maxContributions", "ledgerSequence", "ordinal_position", "rowCount", "size", "fileCount",
}  # fmt: skip

Place = tuple[Any, ...]


@pytest.fixture
def event(contract: DataContract) -> dict[str, Any]:
    return event_of(every_facet(contract), contract)


def facets_of(event: dict[str, Any]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    holders = [("run", "facets", event["run"]), ("job", "facets", event["job"])]
    for item in (*event["inputs"], *event["outputs"]):
        holders += [("dataset", "facets", item), ("input", "inputFacets", item), ("output", "outputFacets", item)]
    for bearer, key, holder in holders:
        for name, facet in holder.get(key, {}).items():
            yield bearer, name, facet


def places(value: Any, here: Place = ()) -> Iterator[tuple[Place, Any]]:
    """Every value at any depth, with the way to it."""
    yield here, value
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        yield from places(item, (*here, key))


def at(value: Any, place: Place) -> Any:
    for key in place:
        value = value[key]
    return value


def field_of(place: Place) -> str:
    return f"{place[-2]}[]" if isinstance(place[-1], int) else str(place[-1])


def test_every_facet_that_we_can_make_is_in_the_example(event: dict[str, Any]) -> None:
    """A facet that is added to `facets` must be added to the example, and so to the table of what is public."""
    makers = {
        name
        for name, maker in inspect.getmembers(facets, inspect.isfunction)
        if not name.startswith("_") and "Facet]" in str(inspect.signature(maker).return_annotation)
    }
    source = inspect.getsource(event_of) + inspect.getsource(every_facet)
    not_told = {"withdrawn": "purged", "rows_assertion": "audit_assertion"}  # the same facets as these
    assert len(makers) > 20
    assert not [name for name in makers if f"facets.{not_told.get(name, name)}(" not in source]


def test_every_facet_and_field_that_we_emit_is_classified(event: dict[str, Any]) -> None:
    public = {(bearer, name) for bearer, table in PUBLIC.items() for name in table}
    emitted = {(bearer, name) for bearer, name, _ in facets_of(event)}
    assert emitted == public
    left = public_event(event)
    kept = {field for item in facets_of(left) for field in fields_of(*item)}
    found = {field for item in facets_of(event) for field in fields_of(*item)}
    # The example as a whole is dropped only what is listed as the operator's.
    assert found - kept == {(name, field) for name, fields in OPERATOR_ONLY.items() for field in fields}


def fields_of(_: str, name: str, facet: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Names of fields at any depth; those of lists' items alike, and of objects that are keyed by columns."""
    for place, _value in places(facet):
        keys = [key for key in place if isinstance(key, str)]
        if keys and not (len(keys) == 2 and keys[0] == "fields"):
            yield name, keys[-1]


def test_custom_facets_are_public_field_by_field() -> None:
    for key, name in own_facets.CUSTOM_FACETS.items():
        (table,) = [rules for rules in PUBLIC.values() if key in rules]
        rule = table[key]
        known = {*rule.required, *rule.optional, *OPERATOR_ONLY.get(key, ())}  # type: ignore[attr-defined]
        properties = own_facets.custom_schema(name)["$defs"][name]["properties"]
        assert known == properties.keys() - {"_producer", "_schemaURL", "_deleted"}


def test_what_leaves_is_valid_and_the_event_stays_as_it_was(event: dict[str, Any], check: Any) -> None:
    before = copy.deepcopy(event)
    left = public_event(event)
    check(event)
    check(left)
    assert event == before
    assert public_event(left) == left


def test_every_declared_class_of_a_column_leaves_as_a_tag(contract: DataContract) -> None:
    declared = contract.model_copy(update={"columns": {**contract.columns, "badge": IgnoredColumn(ignore=True)}})
    shown: Any = facets.tags(declared, "public", [*declared.columns, "_owner"], {"age": "modelled"})["tags"]
    tags = Serde.to_dict(shown)["tags"]
    assert {tag["key"] for tag in tags} == {"zone", "identifier", "pii", "treatment", "ignored", "pseudonym"}
    event = event_of(every_facet(declared), declared)
    event["outputs"][0]["facets"]["tags"]["tags"] = tags
    left = public_event(event)["outputs"][0]["facets"]["tags"]["tags"]
    assert left == tags


def test_an_error_is_told_by_its_code_alone(event: dict[str, Any]) -> None:
    message = public_event(event)["run"]["facets"]["errorMessage"]["message"]
    assert message == f"source: {NOT_COMPLETED}"
    for told, code in (
        (": ".join(safe_error(BudgetExceeded("family x has epsilon 0.3 left"))), "budget"),
        (": ".join(safe_error(KeyError("Jane"))), "unexpected"),
        ("interrupted: The run was cancelled.", "interrupted"),
        ("Jane Doe: 4711", "error"),
        ("", "error"),
    ):
        event["run"]["facets"]["errorMessage"]["message"] = told
        event["run"]["facets"]["errorMessage"]["stackTrace"] = SECRET
        facet = public_event(event)["run"]["facets"]["errorMessage"]
        assert facet["message"] == f"{code}: {NOT_COMPLETED}"
        assert "stackTrace" not in facet


def test_rows_are_counted_only_where_everybody_may_count(event: dict[str, Any]) -> None:
    counted = {item["name"]: "outputStatistics" in item.get("outputFacets", {}) for item in event["outputs"]}
    assert list(counted.values()) == [True, False]
    assert public_event(event)["outputs"][0]["outputFacets"]["outputStatistics"]["rowCount"] == 3
    for zone in ("restricted", "operator", "public "):
        event["outputs"][0]["facets"]["tags"]["tags"][0]["value"] = zone
        assert "outputFacets" not in public_event(event)["outputs"][0]


@pytest.mark.parametrize("version", ["ab" * 32, "4711", "v12", "ab" * 20, "Jane"])
def test_no_version_that_could_be_a_hash_or_a_count_leaves(event: dict[str, Any], version: str) -> None:
    event["outputs"][0]["facets"]["version"]["datasetVersion"] = version
    assert "version" not in public_event(event)["outputs"][0]["facets"]


def test_of_real_data_no_assertion_leaves(event: dict[str, Any]) -> None:
    facet = event["inputs"][0]["inputFacets"]["dataQualityAssertions"]
    facet["assertions"].append({"assertion": "total_variation_at_most", "success": True, "actual": "0.123"})
    (left,) = public_event(event)["inputs"][0]["inputFacets"]["dataQualityAssertions"]["assertions"]
    assert left["assertion"] == own_facets.AUDIT_ASSERTION


def test_only_fixed_words_describe_columns(event: dict[str, Any]) -> None:
    fields = event["outputs"][0]["facets"]["columnLineage"]["fields"]
    fields["age"]["inputFields"][0]["transformations"][0]["description"] = SECRET
    fields["email"] = {"inputFields": [], "transformationDescription": SECRET}
    left = public_event(event)["outputs"][0]["facets"]["columnLineage"]["fields"]
    assert "description" not in left["age"]["inputFields"][0]["transformations"][0]
    assert left["email"] == {"inputFields": []}
    fields["email"]["transformationDescription"] = columns.LEFT_EMPTY
    assert public_event(event)["outputs"][0]["facets"]["columnLineage"]["fields"]["email"] == fields["email"]


def test_an_earlier_version_of_a_facet_leaves_as_it_is(event: dict[str, Any], check: Any) -> None:
    facet = event["outputs"][0]["facets"]["dpsynth_guarantee"]
    assert ":1-1-0:" in facet["_schemaURL"]
    del facet["method"]
    assert "dpsynth_guarantee" not in public_event(event)["outputs"][0]["facets"]
    del facet["weighting"]
    facet["_schemaURL"] = facet["_schemaURL"].replace(":1-1-0:", ":1-0-0:")
    assert public_event(event)["outputs"][0]["facets"]["dpsynth_guarantee"] == facet
    check(event)


@pytest.mark.parametrize("kind", ["job", "dataset"])
def test_events_without_a_run(event: dict[str, Any], kind: str) -> None:
    url = event["schemaURL"].replace("RunEvent", f"{kind.capitalize()}Event")
    about = event["job"] if kind == "job" else {**event["outputs"][1], "rows": NUMBER}
    about.pop("outputFacets", None)
    left = public_event({**{key: event[key] for key in ("eventTime", "producer")}, "schemaURL": url, kind: about})
    assert set(left) == {"eventTime", "producer", "schemaURL", kind}
    assert "rows" not in left[kind]


@pytest.mark.parametrize(
    "change",
    [
        {"eventType": SECRET},
        {"eventTime": SECRET},
        {"producer": "https://example.org/other"},
        {"schemaURL": SECRET},
        {"run": {"runId": SECRET}},
        {"run": SECRET},
        {"job": {"namespace": "dpsynth"}},
        {"job": None},
    ],
)
def test_what_has_no_public_form_is_refused_in_fixed_words(event: dict[str, Any], change: dict[str, Any]) -> None:
    with pytest.raises(LineageRefused) as caught:
        public_event({**event, **change})
    assert SECRET not in str(caught.value)


HEAVY = settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture], derandomize=True
)


@HEAVY
@given(data=st.data())
def test_nothing_unknown_leaves(event: dict[str, Any], check: Any, data: st.DataObject) -> None:
    """Keys that nobody knows, at any depth, with a text, a number, or a whole facet below them."""
    planted = copy.deepcopy(event)
    inside = [place for place, value in places(event) if isinstance(value, dict) and place[-1:] != ("fields",)]
    for _ in range(data.draw(st.integers(1, 4))):
        place = data.draw(st.sampled_from(inside))
        key = data.draw(st.sampled_from(["dpsynth_counts", "rowCounts", "dataQualityMetrics", "note", SECRET]))
        envelope = {"_producer": facets.PRODUCER, "_schemaURL": own_facets.schema_url("GuaranteeDatasetFacet")}
        at(planted, place)[key] = data.draw(
            st.sampled_from([SECRET, NUMBER, [SECRET], {"rows": NUMBER}, {**envelope, "rowCount": NUMBER}])
        )
    left = public_event(planted)
    assert left == public_event(event)
    check(left)


LEAVES = settings(HEAVY, max_examples=250)


@LEAVES
@given(data=st.data())
def test_no_value_of_another_form_leaves(event: dict[str, Any], data: st.DataObject) -> None:
    """A text or number in the place of any value leaves only where texts or numbers are public as they are."""
    planted = copy.deepcopy(event)
    place, value = data.draw(st.sampled_from([(place, value) for place, value in places(event) if place]))
    secret = data.draw(st.sampled_from([SECRET, NUMBER, {SECRET: NUMBER}, [SECRET, NUMBER], f"{value} {SECRET}"]))
    at(planted, place[:-1])[place[-1]] = secret
    try:
        left = json.dumps(public_event(planted))
    except LineageRefused:
        return
    field = field_of(place)
    free = isinstance(secret, str) and field in FREE
    names = isinstance(secret, list) and field == "ownerColumns"
    counted = secret == NUMBER and field in NUMBERS
    assert free or names or counted or (SECRET not in left and str(NUMBER) not in left)
