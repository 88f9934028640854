"""Contracts: what is accepted, and for each fault one line with the key's path, the value and what is accepted."""

from __future__ import annotations

import copy
import datetime as dt
import json
import re
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from dpsynth_platform.contracts.contract import DataContract
from dpsynth_platform.contracts.family import FamilyBudget, check_family
from dpsynth_platform.contracts.loading import contract_json_schema, load_contract, load_family, parse_contract
from dpsynth_platform.foundation.digests import canonical_digest
from dpsynth_platform.foundation.errors import ContractError
from dpsynth_platform.foundation.settings import PACKAGE_ROOT
from dpsynth_platform.foundation.yaml_files import read_yaml

DEPLOYED = sorted((PACKAGE_ROOT / "deploy" / "contracts").glob("*.yaml"))
VARIABLES = {"DPSYNTH_HOME": "/home"}
DOCUMENT: dict[str, Any] = {
    "dataset": "letters",
    "description": "Letters of fictional customers.",
    "owners": ["letters@example.org"],
    "source": {"uri": "${DPSYNTH_HOME}/sources/letters", "key": ["customer", "number"]},
    "family": "letters",
    "privacy": {
        "unit": "user",
        "owner_columns": ["customer"],
        "namespace": "customer",
        "max_contributions": 3,
        "guarantee": {"epsilon": 1.0},
        "expected_units": 1000,
    },
    "columns": {
        "customer": {"type": "identifier"},
        "number": {"type": "identifier"},
        "age": {"type": "integer", "min": 0, "max": 120},
        "score": {"type": "float", "min": 0, "max": 1},
        "day": {"type": "date", "min": "2026-01-01", "max": "2026-12-31"},
        "colour": {"type": "categorical", "values": ["red", "blue"], "nullable": True},
        "member": {"type": "boolean"},
        "note": {"type": "text", "pii": "replace"},
    },
    "generate": {"rows": 10},
    "quality": {"target": "colour", "protected": ["member"]},
    "release": {"uri": "${DPSYNTH_HOME}/public/letters"},
}
REMOVE = object()


def changed(path: str, value: Any) -> dict[str, Any]:
    """The document with one key set or removed; `a.b.c` is a path."""
    document = copy.deepcopy(DOCUMENT)
    part: Any = document
    *parents, last = path.split(".")
    for key in parents:
        part = part[key]
    if value is REMOVE:
        del part[last]
    else:
        part[last] = value
    return document


def parsed(path: str = "dataset", value: Any = "letters") -> DataContract:
    return parse_contract(changed(path, value), where="letters.yaml", variables=VARIABLES)


def fault(path: str, value: Any) -> str:
    with pytest.raises(ContractError) as caught:
        parsed(path, value)
    assert caught.value.__cause__ is None and caught.value.__context__ is None
    lines = str(caught.value).splitlines()
    assert all(line.startswith("letters.yaml: ") for line in lines)
    return "\n".join(line.removeprefix("letters.yaml: ") for line in lines)


FAULTS: list[tuple[str, Any, str]] = [
    # Unknown and missing keys, at every depth, with the key that was probably meant.
    (
        "colums",
        {},
        "colums: unknown key (did you mean 'columns'?); accepted: audit, columns, dataset, demo, description, ",
    ),
    (
        "privacy.epsilon",
        1,
        "privacy.epsilon: unknown key; accepted: accept_weak_guarantee, adjacency, expected_units, ",
    ),
    (
        "privacy.guarantee.epsilom",
        1,
        "privacy.guarantee.epsilom: unknown key (did you mean 'epsilon'?); accepted: delta, ",
    ),
    (
        "columns.age.maximum",
        1,
        "columns.age.maximum: unknown key (did you mean 'max'?); accepted: accept_pii, bins, max, min, nullable, poi",
    ),
    (
        "columns.note.pie",
        1,
        "columns.note.pie: unknown key (did you mean 'pii'?); accepted: nullable, pii, type",
    ),
    (
        "retention",
        {"logs": "1d"},
        "retention.logs: unknown key; accepted: bounded, ",
    ),
    (
        "scrub",
        {"patterns": [{"entity": "PLATE", "pattern": "x"}, {"entity": "PLATE", "pattern": "x", "regex": "x"}]},
        "scrub.patterns.1.regex: unknown key; accepted: context, entity, pattern",
    ),
    (
        "generate.workload",
        {"queries": [{"columns": ["age", "day"], "wieght": 2}]},
        "generate.workload.queries.0.wieght: unknown key (did you mean 'weight'?); accepted: columns, weight",
    ),
    (
        "columns.date",
        {"type": "date", "min": "2026-01-01", "max": "2026-12-31", "maximum": 1},
        "columns.date.maximum: unknown key (did you mean 'max'?); accepted: bins, max, min, nullable, type",
    ),
    # Entity types that nothing finds.
    (
        "scrub",
        {"actions": {"EMAIL_ADRESS": "drop"}, "deny": {"SHIP": ["Wanderer"]}},
        "scrub.actions: 'EMAIL_ADRESS' is not an entity type (did you mean 'EMAIL_ADDRESS'?); accepted: ADDRESS, AGE, ",
    ),
    ("scrub", {"actions": {"PLATE": "drop"}, "deny": {"SHIP": ["Wanderer"]}}, ", PHONE_NUMBER, SHIP, TAX_ID, "),
    ("family", REMOVE, "family: missing; it is required"),
    ("privacy.guarantee.epsilon", REMOVE, "privacy.guarantee.epsilon: missing; it is required"),
    ("columns.age.min", REMOVE, "columns.age.min: missing; it is required"),
    ("scrub", True, "scrub: True; accepted: keys below it, of actions, "),
    (
        "generate.text",
        {"column": "letter", "resample": "yes"},
        "text.resample: 'yes'; accepted: keys below it, of by, clusters, column, noise, pool",
    ),
    ("privacy.guarantee", [8, 1e-6], "privacy.guarantee: a list; accepted: keys below it, of delta, epsilon"),
    # Impossible values.
    (
        "dataset",
        "My Letters",
        "dataset: 'My Letters'; accepted: a lower-case letter, then at most 62 lower-case letters, digits and _",
    ),
    ("dataset", "../x", "dataset: '../x'; accepted: a lower-case letter"),
    ("privacy.guarantee.epsilon", -1, "privacy.guarantee.epsilon: -1; accepted: above 0"),
    ("privacy.guarantee.epsilon", 0, "privacy.guarantee.epsilon: 0; accepted: above 0"),
    ("privacy.guarantee.epsilon", "much", "privacy.guarantee.epsilon: 'much'; accepted: a number"),
    ("privacy.guarantee.epsilon", float("inf"), "privacy.guarantee.epsilon: inf; accepted:"),
    ("privacy.guarantee.epsilon", float("nan"), "privacy.guarantee.epsilon: nan; accepted:"),
    (
        "privacy.guarantee.delta",
        0.1,
        "privacy.guarantee.delta: 0.1 exceeds 1/expected_units = 0.001 (expected_units: 1000); accepted: auto, which",
    ),
    ("privacy.max_contributions", 0, "privacy.max_contributions: 0; accepted: at least 1"),
    ("privacy.unit", "person", "privacy.unit: 'person'; accepted: 'example', 'user' or 'group'"),
    (
        "privacy.unit",
        "example",
        "privacy.max_contributions: with unit 'example' each record is a unit; accepted: 1",
    ),
    (
        "privacy.owner_columns",
        ["customer", "number"],
        "privacy.adjacency: 'add-or-remove' with 2 owner columns; accepted where records have several owners",
    ),
    ("privacy.owner_columns", ["customer", "customer"], "privacy.owner_columns: the list contains duplicates"),
    (
        "privacy.record_order",
        "oldest",
        "privacy.record_order: 'oldest'; accepted: random, fewest-owners-first, weight:COLUMN",
    ),
    (
        "privacy.record_order",
        "weight:note",
        "privacy.record_order: weight 'note'; accepted: a column of type integer, float, date",
    ),
    (
        "privacy.record_order",
        "fewest-owners-first",
        "privacy.record_order: 'fewest-owners-first' with one owner a record; accepted with fixed-graph only",
    ),
    ("privacy.owner_columns", [], "privacy.owner_columns: a list; accepted: at least 1 item"),
    ("privacy.expected_units", 3, "privacy.expected_units: 3; accepted: at least 100"),
    ("generate.method", "gan", "generate.method: 'gan'; accepted: 'auto'"),
    ("generate.rows", 0, "generate.rows: 0; accepted: auto, or a number from 1 to 100000000"),
    (
        "source.format",
        "orc",
        "source.format: 'orc'; accepted: 'delta', 'iceberg', 'parquet', 'csv', 'json', 'images', 'sql', 'tables' or "
        "'federated'",
    ),
    (
        "source.csv",
        {"separator": ";"},
        "csv: declared for the format delta; accepted: format: csv or images, or no such key",
    ),
    (
        "source",
        {"uri": "x", "key": ["person"], "format": "csv", "version": 3},
        "version: 3; the format csv has no versions",
    ),
    ("source.uri", "${HOME}/x", "${HOME} is not known; accepted: DPSYNTH_HOME"),
    ("audit", {"canaries": 3}, "audit.canaries: 3; accepted: at least 20"),
    ("audit", {"confidence": 1.5}, "audit.confidence: 1.5; accepted: below 1"),
    ("quality", {"holdout": 0}, "quality.holdout: 0; accepted: above 0"),
    ("retention", {"raw": "forever"}, "retention.raw: 'forever'; accepted: whole hours or days, such as 12h or 7d"),
    (
        "release.start",
        "2026-13",
        "release.start: '2026-13'; accepted: YYYY-MM-DD-week, of its Monday (weekly); YYYY-MM (mo",
    ),
    # Columns.
    ("columns", {}, "columns: a dict; accepted: at least 1 item"),
    ("columns.age", {"type": "number"}, "columns.age.type: 'number'; accepted: integer, float, date, datetime, time, "),
    ("columns.age", {"min": 1}, "columns.age.type: not filled in; accepted: integer, float"),
    ("columns.age", 7, "columns.age"),
    ("columns.age.max", 0, "columns.age: min 0 is not below max 0"),
    (
        "columns.age.bins",
        [5, 5],
        "columns.age.bins: not ascending within the range; accepted: ascending edges above 0 and up to 120",
    ),
    ("columns.age.bins", [0], "columns.age.bins: not ascending within the range; accepted: ascending edges"),
    (
        "columns.age.bins",
        0,
        "columns.age.bins: 0; accepted: adaptive, quantile, privtree, kmeans, or 1 to 1000, or a list of",
    ),
    ("columns.score.max", float("inf"), "columns.score.max: inf; accepted:"),
    ("columns.day.max", "2025-01-01", "columns.day: min 2026-01-01 is not before max 2025-01-01"),
    ("columns.day.min", "someday", "columns.day.min: 'someday'; accepted: a date"),
    ("columns.colour.values", ["red"], "columns.colour.values: a list of 1; accepted: 2 to 10000 values, or learned"),
    (
        "columns.colour.values",
        ["red", "red"],
        "columns.colour.values: 'red' is listed twice; accepted: distinct",
    ),
    ("columns.note.pii", "hide", "columns.note.pii: 'hide'; accepted: 'drop', 'mask', 'hash' or 'replace'"),
    # Names that the platform or its SQL could not tell apart.
    ("columns._owner", {"type": "identifier"}, "_owner"),
    ("columns._rank", {"type": "boolean"}, "columns: '_rank' is reserved by the platform"),
    (
        "columns.included",
        {"type": "boolean"},
        "columns: 'included' is reserved by the platform, as are included, _owner, _owners, _record, ",
    ),
    ("columns.Included", {"type": "boolean"}, "columns: 'Included' is reserved by the platform"),
    (
        "columns.AGE",
        {"type": "boolean"},
        "columns: 'age' and 'AGE' differ in case only, which Delta tables and SQL do not distinguish; accepted: "
        "distinct names, so rename one of the two in the source",
    ),
    (
        "columns.a\nb",
        {"type": "boolean"},
        "columns.a\\nb: 'a\\nb'; accepted: a name of 1 to 127 characters, without control characters",
    ),
    ("source.key", ["a\u2028b"], "source.key.0: 'a\\u2028b'; accepted: a name of 1 to 127 characters"),
    # References.
    (
        "privacy.owner_columns",
        ["person"],
        "privacy.owner_columns: column 'person' is not declared; accepted: customer, ",
    ),
    ("source.key", ["letter"], "source.key: column 'letter' is not declared; accepted: customer, number, age"),
    (
        "quality.target",
        "note",
        "quality.target: column 'note' is not modelled; accepted: age, score, day, colour, member",
    ),
    (
        "quality.target",
        "size",
        "quality.target: column 'size' is not declared; accepted: age, score, day, colour, member",
    ),
    ("quality.protected", ["customer"], "quality.protected: column 'customer' is not modelled; accepted: age"),
    # The owner's column is one that is never modelled.
    *(
        ("privacy.owner_columns", [name], f"privacy.owner_columns: {name!r} is {type_} column; accepted: a column of")
        for name, type_ in (
            ("age", "an integer"),
            ("score", "a float"),
            ("day", "a date"),
            ("member", "a boolean"),
            ("colour", "a nullable categorical"),
        )
    ),
    (
        "columns.customer.nullable",
        True,
        "privacy.owner_columns: 'customer' is a nullable identifier column; accepted: a column of type identifier or t",
    ),
    # Keys and formats of other tools.
    ("source.delimiter", ";", "source.delimiter: unknown key (did you mean source.csv.separator?); accepted: "),
    ("source.sep", ";", "(did you mean source.csv.separator?)"),
    ("source.encoding", "cp1252", "(did you mean source.csv.encoding?)"),
    ("source.csv", {"delimiter": ";"}, "source.csv.delimiter: unknown key (did you mean source.csv.separator?)"),
    ("source.path", "a.csv", "source.path: unknown key (did you mean source.uri?)"),
    (
        "source.format",
        "postgresql",
        "source.format: 'postgresql'; accepted: 'delta', 'iceberg', 'parquet', 'csv', 'json', 'images', 'sql', "
        "'tables' or 'federated'; ",
    ),
    ("source.format", "MySQL", "for a database, format: sql; uri: such as "),
    ("source.format", "tsv", "format: csv, with csv: {separator: tab}"),
    ("source.format", "jsonl", "for JSON lines, format: json"),
    ("source.format", "xlsx", "save its sheet as CSV (UTF-8)"),
    # Cadence.
    ("source.period_column", "day", "release.cadence and source.period_column go together: declare both or neither"),
    ("release.cadence", "monthly", "release.cadence and source.period_column go together: declare both or neither"),
    ("release.start", "2026-01", "release.cadence and release.start go together: declare both or neither"),
    ("release.time_zone", "Europe/Berlin", "release.time_zone: without release.cadence there are no periods"),
    ("release.schedule", "0 6 3 * *", "release.schedule: without release.cadence no release is expected"),
    ("release.overdue_after", "2d", "release.overdue_after: without release.cadence no release is expected"),
    ("release.time_zone", "Mars/Olympus", "accepted: UTC, or an IANA name such as Europe/Berlin"),
    ("release.time_zone", "../../etc/passwd", "accepted: UTC, or an IANA name such as Europe/Berlin"),
    ("release.on_new_version", True, "release.on_new_version"),
    # A weak guarantee needs a reason.
    (
        "privacy.guarantee.epsilon",
        11,
        "privacy.guarantee.epsilon: 11 is a weak guarantee (above 10); lower it, or give the reason in",
    ),
]


def test_a_mistyped_key_is_one_fault_and_hides_no_other() -> None:
    """Of a required key, of a part with further faults, of a column's type, and of a key that another type has."""
    document = changed("privacy.max_contributions", 0)
    document["privacy"]["expected_unit"] = document["privacy"].pop("expected_units")
    document["sources"] = document.pop("source") | {"key": ["nothing"]}
    document["columns"]["age"] = {"tpye": "integer", "min": 5, "max": 2}
    document["columns"]["note"] = {"type": "identifier", "min": None}
    with pytest.raises(ContractError) as caught:
        parse_contract(document, where="x", variables=VARIABLES)
    found = {line.partition(" ")[2].partition("; accepted")[0] for line in str(caught.value).splitlines()}
    assert found == {
        "privacy.expected_unit: unknown key (did you mean 'expected_units'?)",
        "privacy.max_contributions: 0",
        "sources: unknown key (did you mean 'source'?)",
        "source.key: column 'nothing' is not declared",
        "columns.age.tpye: unknown key (did you mean 'type'?)",
        "columns.age: min 5 is not below max 2",
        "columns.note.min: unknown key",
    }


@pytest.mark.parametrize(("path", "value", "message"), FAULTS)
def test_a_fault_names_path_value_and_what_is_accepted(path: str, value: Any, message: str) -> None:
    assert message in fault(path, value)


def test_every_fault_has_its_line() -> None:
    document = changed("privacy.guarantee.epsilon", -1)
    document["generate"]["rows"] = 0
    document["colour"] = "red"
    with pytest.raises(ContractError) as caught:
        parse_contract(document, where="letters.yaml", variables=VARIABLES)
    assert len(str(caught.value).splitlines()) == 3


def test_a_weak_guarantee_with_a_reason_is_accepted() -> None:
    document = changed("privacy.guarantee.epsilon", 11)
    document["privacy"]["accept_weak_guarantee"] = "an internal rehearsal on fictional people"
    assert parse_contract(document, where="x", variables=VARIABLES).privacy.guarantee.epsilon == 11
    document["privacy"]["accept_weak_guarantee"] = "because"
    with pytest.raises(ContractError, match="accept_weak_guarantee: 'because'; accepted: at least 10 characters"):
        parse_contract(document, where="x", variables=VARIABLES)


def test_a_period_column_is_a_date() -> None:
    document = changed("source.period_column", "age")
    document["release"] |= {"cadence": "monthly", "start": "2026-01"}
    with pytest.raises(ContractError, match=r"source\.period_column: of type integer; accepted: a column of type date"):
        parse_contract(document, where="x", variables=VARIABLES)
    document["source"]["period_column"] = "day"
    assert parse_contract(document, where="x", variables=VARIABLES).release.cadence == "monthly"
    document["release"] |= {"time_zone": "America/New_York"}
    assert parse_contract(document, where="x", variables=VARIABLES).release.time_zone == "America/New_York"
    document["release"] |= {"on_new_version": "1d"}
    with pytest.raises(ContractError, match=r"release\.on_new_version: with release\.cadence"):
        parse_contract(document, where="x", variables=VARIABLES)


def test_what_nobody_asks_for_changes_no_contract_that_is_sealed() -> None:
    assert not {"time_zone", "on_new_version", "schedule", "overdue_after"} & parsed().snapshot()["release"].keys()
    paced = parsed("release.on_new_version", "12h")
    assert paced.snapshot()["release"]["on_new_version"] == "12h"
    assert paced.mechanism_snapshot() == parsed().mechanism_snapshot()
    assert DataContract.model_validate(paced.snapshot()) == paced
    assert paced.release.pace == dt.timedelta(hours=12)


def test_purpose_and_recipients_are_sealed_and_change_no_row() -> None:
    assert not {"purpose", "recipients"} & parsed().snapshot().keys()
    assert parsed("recipients", []).digest() == parsed().digest()
    for key, value in (("purpose", "Method courses."), ("recipients", ["University of Example", "Press office"])):
        declared = parsed(key, value)
        assert declared.snapshot()[key] == value
        assert declared.digest() != parsed().digest()
        assert declared.mechanism_snapshot() == parsed().mechanism_snapshot()
        assert DataContract.model_validate(declared.snapshot()) == declared


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("purpose", " "),
        ("purpose", 5),
        ("purpose", "a\u202eb"),
        ("recipients", ["a\nb"]),
        ("recipients", "all"),
        ("recipients", [""]),
    ],
)
def test_a_purpose_is_a_text_and_recipients_are_a_list_of_texts(key: str, value: Any) -> None:
    with pytest.raises(ContractError, match=key):
        parsed(key, value)


def test_a_column_is_needed_to_model_anything() -> None:
    document = changed("columns", {"customer": {"type": "identifier"}, "remark": {"type": "text", "pii": "drop"}})
    document["source"]["key"] = ["customer"]
    del document["quality"]
    with pytest.raises(
        ContractError, match="columns: at least one of integer, float, date, datetime, time, categorical"
    ):
        parse_contract(document, where="x", variables=VARIABLES)


@pytest.mark.parametrize("key", [["number"], ["customer", "number"]])
def test_the_owner_may_be_part_of_the_key_or_not(key: list[str]) -> None:
    assert parsed("source.key", key).source.key == key


def test_the_owner_may_be_a_text() -> None:
    assert parsed("columns.customer", {"type": "text", "pii": "drop"}).privacy.owner_columns == ["customer"]


def shared(**privacy: Any) -> DataContract:
    """Letters that a customer and a clerk own together."""
    document = changed("columns.clerk", {"type": "identifier", "nullable": True})
    document["source"]["key"] = ["number"]
    document["privacy"] |= {"owner_columns": ["customer", "clerk"], "adjacency": "fixed-graph"} | privacy
    return parse_contract(document, where="x", variables=VARIABLES)


def test_records_may_have_several_owners_under_a_fixed_graph() -> None:
    contract = shared()
    assert contract.privacy.multi_owner
    assert contract.privacy.record_order == "random"
    assert not parsed().privacy.multi_owner
    one_list = parsed("privacy.adjacency", "fixed-graph")
    assert (one_list.privacy.multi_owner, one_list.privacy.owner_columns) == (True, ["customer"])


def test_a_record_that_is_its_own_unit_is_known_by_the_sources_key_alone() -> None:
    """Of several with one owner, one is kept: without it another would be, and two records would have changed."""
    document = copy.deepcopy(DOCUMENT)
    document["privacy"] |= {"unit": "example", "max_contributions": 1}
    refused = "privacy.owner_columns: customer with unit 'example'.* accepted: the source's key .*number"
    with pytest.raises(ContractError, match=refused):
        parse_contract(document, where="c", variables=VARIABLES)
    document["privacy"]["owner_columns"] = ["number"]  # of one customer, and another's may have the same
    with pytest.raises(ContractError, match=r"privacy\.owner_columns: number with unit 'example'"):
        parse_contract(document, where="c", variables=VARIABLES)
    document["source"]["key"] = ["number"]
    assert parse_contract(document, where="c", variables=VARIABLES).privacy.unit == "example"
    document["privacy"]["owner_normalization"] = ["casefold"]
    with pytest.raises(ContractError, match=r"privacy\.owner_normalization: casefold with unit 'example'"):
        parse_contract(document, where="c", variables=VARIABLES)


def test_a_weight_between_several_owners_belongs_to_the_graph_and_is_not_modelled() -> None:
    assert "age" not in shared(record_order="weight:age").modelled
    assert "age" in shared(record_order="fewest-owners-first").modelled
    assert "age" in parsed("privacy.record_order", "weight:age").modelled


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"unit": "example", "max_contributions": 1},
            "privacy.unit: 'example' with fixed-graph, where records have several owners",
        ),
        (
            {"owner_columns": ["customer", "day"]},
            "privacy.owner_columns: 'day' is a date column; accepted: a column of",
        ),
        (
            {"owner_columns": ["customer", "note"]},
            "privacy.owner_columns: 'note' is a text column; accepted: a column of type identifier, with fixed-graph",
        ),
    ],
)
def test_what_a_fixed_graph_does_not_go_with(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ContractError) as caught:
        shared(**change)
    assert message in str(caught.value)


def test_what_says_whose_records_are_kept_is_not_what_the_release_protects() -> None:
    document = changed("privacy.adjacency", "fixed-graph")
    document["source"]["key"] = ["customer", "day"]
    with pytest.raises(
        ContractError, match=r"source\.key: column 'day' is modelled; with fixed-graph, the key decides"
    ):
        parse_contract(document, where="x", variables=VARIABLES)


def test_actions_are_for_types_that_something_finds() -> None:
    own = {
        "patterns": [{"entity": "PLATE", "pattern": "x"}],
        "deny": {"SHIP": ["Wanderer"]},
        "actions": {"PLATE": "mask", "SHIP": "hash", "PERSON": "drop"},
    }
    assert parsed("scrub", own).scrub.actions == own["actions"]


def test_a_key_may_stand_again_where_an_anchor_is_merged(tmp_path: Path) -> None:
    path = tmp_path / "merged.yaml"
    path.write_text("first: &first {a: 1, b: 2}\nsecond:\n  <<: *first\n  a: 3\n")
    assert read_yaml(path)["second"] == {"a": 3, "b": 2}


SAMPLE = """
dataset: letters
description: Letters of fictional customers.
owners: [letters@example.org]
source: {uri: /sources/letters, key: [customer]}
family: letters
privacy:
  unit: user
  owner_columns: [customer]
  namespace: customer
  max_contributions: 1
  guarantee: {epsilon: 1.0}
  expected_units: 50_000
columns:
  customer: {type: identifier}
  x: COLUMN
  code: {type: categorical, values: ['1.1', '1.10', 'true', '3']}
generate:
  method: mst
  constraints: [CONSTRAINT]
release: {uri: /public/letters}
"""


def written(tmp_path: Path, column: str, constraint: str = "") -> DataContract:
    (tmp_path / "letters.yaml").write_text(SAMPLE.replace("COLUMN", column).replace("CONSTRAINT", constraint))
    return load_contract(tmp_path / "letters.yaml", {})


@pytest.mark.parametrize(
    ("values", "read"),
    [
        ("[1, 2, 3, 4]", ["1", "2", "3", "4"]),
        ("[-1, 0, 12345678901234567890]", ["-1", "0", "12345678901234567890"]),
        ("['01', '02', '08', 10]", ["01", "02", "08", "10"]),
        ("[NO, SE, yes, on]", ["NO", "SE", "yes", "on"]),
        ("[12:30, 1:2:3]", ["12:30", "1:2:3"]),
        ("[2026-01-01, 2026-02-30, 2026-01]", ["2026-01-01", "2026-02-30", "2026-01"]),
        ("['1.0', '1.10', '1e3', 'true', 'null', '']", ["1.0", "1.10", "1e3", "true", "null", ""]),
        ("[9E, 1st, 1-2, 0.1.2, =]", ["9E", "1st", "1-2", "0.1.2", "="]),
    ],
)
def test_values_are_as_they_were_written(tmp_path: Path, values: str, read: list[str]) -> None:
    column = written(tmp_path, f"{{type: categorical, values: {values}}}").columns["x"]
    assert column.model_dump()["values"] == read


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ("[01, 02, 08]", "line 18: 01 is read differently by versions of YAML; accepted: '01' in quotes for a text"),
        ("[a, 010]", "010 is read differently"),
        ("[0o17, a]", "0o17 is read differently"),
        ("[0x1F, a]", "0x1F is read differently"),
        (
            "[1.0, 1.10]",
            "columns.x.values: item 1 of the list: 1.0 without quotes is a number, not a text; accepted: ",
        ),
        ("[a, 1.10]", "columns.x.values: item 2 of the list: 1.10 without quotes is a number, not a text; "),
        ("[a, 1.10]", "accepted: quote it: '1.10'"),
        ("[a, 1e3]", "quote it: '1e3'"),
        ("[a, .5]", "quote it: '.5'"),
        ("[a, +1]", "quote it: '+1'"),
        ("[a, 1_000]", "quote it: '1_000'"),
        ("[true, false]", "item 1 of the list: true without quotes is no text; accepted: quote it, in the spelling"),
        ("[a, ~]", "item 2 of the list: null without quotes is no text"),
        ("[a, [b]]", "item 2 of the list: a list; accepted: texts or whole numbers"),
        ("[a, 2026-01-01, {b: c}]", "item 3 of the list: a mapping"),
    ],
)
def test_what_would_become_another_text_is_to_be_quoted(tmp_path: Path, values: str, said: str) -> None:
    with pytest.raises(ContractError) as caught:
        written(tmp_path, f"\n    type: categorical\n    values: {values}")
    assert said in str(caught.value)


@pytest.mark.parametrize(
    ("column", "said"),
    [
        (
            "{type: integer, min: 01000, max: 9999}",
            "line 16: 01000 is read differently by versions of YAML; accepted: ",
        ),
        ("{type: integer, min: 0o17, max: 9999}", "0o17 is read differently"),
        ("{type: integer, min: 12:30, max: 9999}", "columns.x.min: '12:30'; accepted: a whole number"),
        ("{type: integer, min: 0, max: 2026-02-30}", "columns.x.max: '2026-02-30'; accepted: a whole number"),
        ("{type: date, min: 2026-01-01, max: 2026-02-30}", "columns.x.max: '2026-02-30'; accepted: a date"),
        (f"{{type: integer, min: 0, max: {'9' * 10_000}}}", "a number of 10,000 characters; accepted: up to 300"),
        ("{type: integer, min: 0, max: .inf}", ".inf is no finite number"),
        ("{type: text, pii: !!str drop}", "the tag '!!str'"),
    ],
)
def test_no_number_or_date_is_guessed(tmp_path: Path, column: str, said: str) -> None:
    with pytest.raises(ContractError) as caught:
        written(tmp_path, column)
    assert said in str(caught.value)
    assert str(caught.value).count("\n") == 0


def test_numbers_may_have_any_usual_form(tmp_path: Path) -> None:
    number = written(tmp_path, "{type: float, min: .5, max: +1e3, bins: [1_0.50, 20., 3E1]}").columns["x"]
    assert number.model_dump(exclude={"nullable", "accept_pii", "points", "decimals"}) == {
        "type": "float", "min": 0.5, "max": 1000.0, "bins": [10.5, 20.0, 30.0],
    }  # fmt: skip
    whole = written(tmp_path, "{type: integer, min: -0, max: 1_000, nullable: yes}").columns["x"]
    assert (whole.model_dump()["min"], whole.model_dump()["max"], whole.nullable) == (0, 1000, True)
    hours = written(tmp_path, "{type: time, min: 07:30, max: 22:30}").columns["x"].model_dump(mode="json")
    assert (hours["min"], hours["max"]) == ("07:30:00", "22:30:00")


@pytest.mark.parametrize(
    ("constraint", "said"),
    [
        ("{forbid: {code: 1.10, x: 3}}", "generate.constraints.0.forbid.code: 1.10 without quotes is a number"),
        ("{forbid: {code: ['1.1', true], x: 3}}", "generate.constraints.0.forbid.code: true without quotes is no text"),
        ("{only: [{code: 3, x: 3}, {code: [1.1]}]}", "generate.constraints.0.only.1.code: 1.1 without quotes"),
        ("{column: x, determines: code, mapping: {1: 1.10}}", "generate.constraints.0.mapping: 1.10 without quotes"),
        ("{column: code, determines: x, mapping: {1.10: 3}}", "1.10 without quotes is a number"),
    ],
)
def test_a_constraint_on_texts_names_texts(tmp_path: Path, constraint: str, said: str) -> None:
    with pytest.raises(ContractError) as caught:
        written(tmp_path, "{type: integer, min: 0, max: 9}", constraint)
    assert said in str(caught.value)


def test_a_constraint_names_numbers_as_numbers(tmp_path: Path) -> None:
    contract = written(
        tmp_path, "{type: float, min: 0, max: 9}", "{forbid: {code: ['1.10', 3], x: {min: 1.50, max: +2}}}"
    )
    assert contract.snapshot()["generate"]["constraints"][0]["forbid"] == {
        "code": ["1.10", 3],
        "x": {"min": 1.5, "max": 2},
    }
    assert json.dumps(contract.snapshot()) == json.dumps(json.loads(json.dumps(contract.snapshot())))


@pytest.mark.parametrize("name", [path.stem for path in DEPLOYED])
def test_contracts_that_lie_around_are_sealed_as_they_were(name: str) -> None:
    """PyYAML's own loader, by which earlier runs were sealed, reads them alike."""
    path = PACKAGE_ROOT / "deploy" / "contracts" / f"{name}.yaml"
    earlier = parse_contract(yaml.safe_load(path.read_text(encoding="utf-8")), where=name, variables=VARIABLES)
    assert load_contract(path, VARIABLES).digest() == earlier.digest()


def test_what_follows_from_a_contract() -> None:
    contract = parsed()
    assert contract.modelled == ["age", "score", "day", "colour", "member"]
    assert contract.source.uri == "/home/sources/letters"
    assert contract.privacy.delta == pytest.approx(1000**-1.1)
    assert parsed("privacy.guarantee.delta", 1e-5).privacy.delta == 1e-5
    assert (contract.retention.of("bounded"), contract.retention.of("audit")) == (dt.timedelta(days=1), None)
    assert parsed("retention", {"model": "36h"}).retention.of("model") == dt.timedelta(hours=36)
    with pytest.raises(Exception, match="frozen"):
        contract.dataset = "other"  # type: ignore[misc]


@pytest.mark.parametrize(("units", "expected"), [(100, 20), (3000, 20), (10_000, 50), (10_000_000, 500)])
def test_canaries_by_default_are_half_a_percent(units: int, expected: int) -> None:
    assert parsed("privacy.expected_units", units).canary_count == expected
    assert parsed("audit", {"canaries": 77}).canary_count == 77


def test_an_audit_policy_is_part_of_the_terms_where_it_is_declared() -> None:
    assert parsed("audit", {}).audit_terms.keys() == {"claimed_epsilon", "delta", "threshold", "confidence"}
    limit = {"false_positive_rate": 0.01, "true_positive_rate": 0.1}
    policy = {"gates": ["likelihood"], "rate_limits": [limit], "cumulative": "report"}
    assert policy.items() <= parsed("audit", policy).audit_terms.items()
    with pytest.raises(ContractError, match="random guessing"):
        parsed("audit", {"rate_limits": [limit | {"true_positive_rate": 0.01}]})
    with pytest.raises(ContractError, match=r"audit\.gates"):
        parsed("audit", {"gates": []})


def test_a_snapshot_is_the_same_contract_again() -> None:
    contract = parsed()
    again = DataContract.model_validate(json.loads(json.dumps(contract.snapshot())))
    assert again == contract
    assert again.digest() == contract.digest()
    assert parsed("description", "Other.").digest() != contract.digest()
    assert parsed("description", "Other.").mechanism_snapshot() == contract.mechanism_snapshot()


def test_a_canonical_digest_ignores_order_and_refuses_what_json_cannot_say() -> None:
    assert canonical_digest({"a": 1, "b": [1, 2]}) == canonical_digest({"b": [1, 2], "a": 1})
    assert canonical_digest([1, 2]) != canonical_digest([2, 1])
    with pytest.raises(ValueError):
        canonical_digest(float("nan"))


@pytest.mark.parametrize("path", DEPLOYED, ids=lambda path: path.stem)
def test_the_deployed_contracts_fit_model_schema_and_family(path: Path) -> None:
    contract = load_contract(path, VARIABLES)
    check_family(contract, load_family(path.parents[1] / "families" / f"{contract.family}.yaml"))
    jsonschema.validate(json.loads(json.dumps(yaml.safe_load(path.read_text()), default=str)), contract_json_schema())


def test_the_json_schema_refuses_what_the_model_refuses() -> None:
    schema = contract_json_schema()
    assert schema["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    jsonschema.Draft202012Validator.check_schema(schema)
    jsonschema.validate(DOCUMENT, schema)
    for path, value in (
        ("colums", {}),
        ("privacy.guarantee.epsilon", -1),
        ("privacy.unit", "person"),
        ("columns.age.type", "number"),
        ("columns.note.pii", "hide"),
        ("dataset", "My Letters"),
    ):
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(changed(path, value), schema)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"dataset: [", r"line \d+: not valid YAML: "),
        (b"a: b: c", r"line 1: not valid YAML: mapping values are not allowed in this context"),
        (b"\xff\xfe\x00", "cannot be read as UTF-8 text; accepted: a text file in UTF-8"),
        (b"", "nothing; accepted: a mapping of keys to values"),
        (b"- one\n- two", "a list; accepted: a mapping of keys to values"),
        (
            b"!!python/object/apply:os.system ['true']",
            "line 1: the tag '!!python/object/apply:os.system'; accepted: none",
        ),
        (b"a: 1\nb: 2\n'a': 3", r"line 3: not valid YAML: duplicate key 'a', first in line 1; accepted: once"),
        (
            b"columns:\n  age: {min: 0, max: 1, min: 2}",
            r"line 2: not valid YAML: duplicate key 'min'",
        ),
    ],
)
def test_a_file_that_is_no_contract(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "letters.yaml"
    path.write_bytes(content)
    with pytest.raises(ContractError) as caught:
        load_contract(path, VARIABLES)
    assert re.search(re.escape(str(path)) + r".*" + message, str(caught.value))


def test_a_file_that_is_missing_or_unreadable(tmp_path: Path) -> None:
    with pytest.raises(ContractError, match=r"nowhere\.yaml: no such file"):
        load_contract(tmp_path / "nowhere.yaml", VARIABLES)
    with pytest.raises(ContractError, match="cannot be read: is a directory"):
        load_contract(tmp_path, VARIABLES)


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("cap", {"epsilon": -1, "delta": 1e-5}, "cap.epsilon: -1; accepted: above 0"),
        ("cap", {"epsilon": 4, "delta": "auto"}, "cap.delta: 'auto'; accepted: a number, such as 1.0e-5"),
        ("mode", "shared", "mode: 'shared'; accepted: 'per-owner' or 'family'"),
        (
            "budget",
            3,
            "budget: unknown key; accepted: adjacency, cap, family, mode, namespace, ",
        ),
    ],
)
def test_families_are_checked_alike(tmp_path: Path, key: str, value: Any, message: str) -> None:
    document = {
        "family": "letters",
        "unit": "user",
        "namespace": "customer",
        "mode": "family",
        "cap": {"epsilon": 4, "delta": 1e-5},
    }
    path = tmp_path / "letters.yaml"
    path.write_text(json.dumps(document))
    assert load_family(path) == FamilyBudget.model_validate(document)
    path.write_text(json.dumps(document | {key: value}))
    with pytest.raises(ContractError) as caught:
        load_family(path)
    assert str(caught.value).startswith(f"{path}: {message}")


@pytest.mark.parametrize("key", ["source", "source.catalog", "release.publish", "release.license", "release.start"])
@pytest.mark.parametrize("form", ["postgresql://me:{}@db/open", "host=db user=me password={}", "Server=db;PWD={}"])
def test_a_uri_with_a_password_where_none_belongs_is_not_shown(key: str, form: str) -> None:
    secret = "hunter2-of-the-database"
    with pytest.raises(ContractError) as caught:
        parse_contract(changed(key, form.format(secret)), where="file", variables=VARIABLES)
    assert secret not in str(caught.value)
    assert f"{key}: a URI that has credentials" in str(caught.value)


def test_a_key_with_a_password_is_not_shown() -> None:
    given = changed("release", DOCUMENT["release"] | {"postgresql://me:hunter2@db/open": "delta"})
    with pytest.raises(ContractError, match=r"release\.\(a key that may hold credentials.*unknown key") as caught:
        parse_contract(given, where="file", variables=VARIABLES)
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize("uri", ["s3://key:hunter2@open/letters", "host=db user=me password=hunter2"])
def test_a_place_of_releases_with_a_password_is_refused(uri: str) -> None:
    """Pages show where releases are."""
    with pytest.raises(ContractError, match=r"release\.uri: has credentials") as caught:
        parse_contract(changed("release.uri", uri), where="file", variables=VARIABLES)
    assert "hunter2" not in str(caught.value)


def test_targets_of_releases() -> None:
    one, two = {"uri": "s3://open/letters"}, {"uri": "${DPSYNTH_HOME}/shared/letters", "format": "files"}
    for given, listed in ((one, [one]), ([one, two], [one, two])):
        document = changed("release.publish", given)
        jsonschema.validate(document, contract_json_schema())
        targets = parse_contract(document, where="test", variables=VARIABLES).release.publish
        assert [target.uri.replace("/home", "${DPSYNTH_HOME}") for target in targets] == [
            item["uri"] for item in listed
        ]
    before = parse_contract(DOCUMENT, where="test", variables=VARIABLES)
    assert "publish" not in before.snapshot()["release"]
    assert (
        before.mechanism_snapshot() == parse_contract(document, where="test", variables=VARIABLES).mechanism_snapshot()
    )

    secret = "Quillmarker904"
    for fault, publish in {
        "has credentials": {"uri": f"s3://key:{secret}@open/letters"},
        "has credentials, or a parameter": {"uri": f"s3://open/letters?secret_key={secret}"},
        "no URI of the format delta": {"uri": "ftp://open/letters"},
        "no URI of the format files": {"uri": "az://open/letters", "format": "files"},
        "no URI of the format postgresql": {"uri": "open", "format": "postgresql", "table": "letters"},
        "table: not declared for the format postgresql": {"uri": "postgresql://me@db/open", "format": "postgresql"},
        "table: has several schemas": {"uri": "postgresql://me@db/open", "format": "postgresql", "table": "a.b.c"},
        "no URI of the format iceberg": {"uri": "s3://open/letters", "format": "iceberg", "table": "open.letters"},
        "table: not declared for the format iceberg": {"uri": "https://catalog/open", "format": "iceberg"},
        "table: has no namespace": {"uri": "https://catalog/open", "format": "iceberg", "table": "letters"},
        "catalog: declared for the format delta": one | {"catalog": "open"},
        "has credentials, or": {"uri": f"postgresql://me:{secret}@db/open", "format": "postgresql", "table": "letters"},
        "is named twice": [one, one],
        "overlap": {"uri": "${DPSYNTH_HOME}/sources/letters/published"},
    }.items():
        with pytest.raises(ContractError, match=f"release.publish.*{fault}.*accepted") as refused:
            parse_contract(changed("release.publish", publish), where="test", variables=VARIABLES)
        assert secret not in str(refused.value)
    given = {"uri": "https://catalog.example.org", "format": "iceberg", "catalog": "open", "table": "shared.visits.all"}
    (target,) = parse_contract(changed("release.publish", given), where="test", variables=VARIABLES).release.publish
    assert target.place == "https://catalog.example.org/open.shared.visits.all"
    document = changed("release.publish", one)
    document["columns"]["Period"] = {"type": "boolean"}
    with pytest.raises(ContractError, match="a column 'period' of its own beside 'Period'"):
        parse_contract(document, where="test", variables=VARIABLES)
