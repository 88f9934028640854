"""The declaration of linked tables: faults, bounds, and the views that follow from it."""

import copy
import datetime as dt

import pytest

from dpsynth_platform.contracts.tables import LinkedTables
from dpsynth_platform.contracts.validation import validated
from dpsynth_platform.foundation.errors import ContractError

CLINIC = {
    "tables": {
        "patients": {"key": ["id"], "columns": {"age": {"type": "integer", "min": 0, "max": 110}}},
        "stays": {
            "key": ["stay"],
            "parent": {"table": "patients", "columns": ["patient"]},
            "max_children": 4,
            "order_by": ["admitted"],
            "columns": {
                "admitted": {"type": "date", "min": "2024-01-01", "max": "2024-12-31"},
                "ward": {"type": "categorical", "values": ["A", "B"]},
                "remark": {"type": "text"},
            },
            "constraints": [{"ascending": ["previous.admitted", "admitted"]}],
        },
        "diagnoses": {
            "parent": {"table": "stays", "columns": ["stay"]},
            "max_children": 3,
            "lookups": {"code": "codes"},
            "context": ["stays.ward", "patients.age"],
        },
        "codes": {"public": "The clinic lists them.", "key": ["code"]},
    }
}


def declared(**changes):
    """The clinic's tables, with `table__key=value` changed; None removes a key."""
    document = copy.deepcopy(CLINIC)
    for path, value in changes.items():
        table, _, key = path.partition("__")
        target = document["tables"].setdefault(table, {}) if key else document
        if value is not None:
            target[key or table] = value
        elif key:
            del target[key]
        else:
            del document["tables"][table]
    return validated(LinkedTables, document, "tables.yaml")


def test_bounds_are_products_on_the_path_and_views_have_the_rows_above_and_before():
    tables = declared()
    assert tables.root == "patients" and tables.private == ["patients", "stays", "diagnoses"]
    assert [tables.bound(name) for name in tables.private] == [1, 4, 12]
    assert (tables.rows_of_owner, tables.weighting) == (17, "owners")
    assert tables.evidence("patients") == []
    assert list(tables.view("patients", {})) == ["age", "stays__rows"]
    assert list(tables.view("stays", {})) == [
        "admitted",
        "ward",
        "diagnoses__rows",
        "admitted__gap",
        "patients__age",
        "row__number",
        "stays__rows",
        "previous__admitted",
        "previous__ward",
    ]
    view = tables.view("diagnoses", {"codes": ["x", "y"]})
    assert list(view) == ["code", "stays__ward", "patients__age", "diagnoses__rows", "stays__rows", "previous__code"]
    assert view["code"].listed == ["x", "y"] and view["previous__code"].nullable and not view["code"].nullable
    assert tables.constraints("stays")[0]["ascending"] == ["previous__admitted", "admitted"]


def test_an_owner_with_several_roots_multiplies_all_bounds():
    tables = declared(owner="person", patients__max_children=2)
    assert [tables.bound(name) for name in tables.private] == [2, 8, 24]


def test_the_order_of_a_files_keys_decides_nothing():
    document = {"tables": dict(reversed(CLINIC["tables"].items()))}
    document["tables"]["bills"] = {
        "parent": {"table": "patients", "columns": ["patient"]},
        "max_children": 2,
        "columns": {"price": {"type": "float", "min": 0, "max": 9}},
    }
    assert validated(LinkedTables, document, "x").private == ["patients", "bills", "stays", "diagnoses"]


@pytest.mark.parametrize(
    ("column", "longest"),
    [
        ({"type": "integer", "min": -5, "max": 5}, 10),
        ({"type": "date", "min": dt.date(2024, 1, 1), "max": dt.date(2024, 1, 31)}, 30),
        ({"type": "datetime", "min": dt.datetime(2024, 1, 1), "max": dt.datetime(2024, 1, 2)}, 86_400),
        ({"type": "integer", "min": 4, "max": 5}, 1),
    ],
)
def test_a_gap_reaches_over_the_whole_range(column, longest):
    view = declared(stays__columns={"admitted": column}, diagnoses__context=[]).view("stays", {})
    gap = view["admitted__gap"]
    assert (gap.min, gap.max, gap.nullable) == (0, longest, True)
    assert all(0 < edge <= longest for edge in gap.bins) and len(gap.bins) <= 100


def test_values_of_other_types_have_no_gap():
    column = {"type": "float", "min": 0, "max": 1}
    tables = declared(stays__columns={"admitted": column}, diagnoses__context=[])
    assert tables.gap("stays") is None and "admitted__gap" not in tables.view("stays", {})
    assert declared(stays__lags=0, stays__constraints=[]).gap("stays") is None


def test_columns_get_the_names_of_a_contract():
    tables = declared().renamed(
        {"stays": {"admitted": "day_in", "patient": "of"}, "patients": {"age": "years", "id": "no"}}
    )
    assert tables.tables["stays"].order_by == ["day_in"] and tables.tables["stays"].parent.columns == ["of"]
    assert tables.constraints("stays")[0]["ascending"] == ["previous__day_in", "day_in"]
    assert tables.tables["diagnoses"].context == ["stays.ward", "patients.years"]
    assert tables.tables["patients"].key == ["no"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"patients": None}, "without a parent: none; accepted: exactly one root"),
        ({"other__key": ["x"]}, "without a parent: patients, other; accepted: exactly one root"),
        ({"stays__max_children": None}, "tables.stays.max_children: missing; accepted: the most rows"),
        ({"stays__max_children": 0}, "tables.stays.max_children: 0; accepted: at least 1"),
        ({"patients__max_children": 3}, "tables.patients.max_children: 3, the rows of one owner"),
        ({"stays__parent": {"table": "nobody", "columns": ["x"]}}, "'nobody'; accepted: patients, diagnoses"),
        ({"stays__parent": {"table": "codes", "columns": ["x"]}}, "'codes'; accepted: patients, diagnoses"),
        ({"stays__parent": {"table": "patients", "columns": ["x", "y"]}}, "2, and the key of patients has 1"),
        ({"stays__parent": {"table": "stays", "columns": ["x"]}}, "'stays'; accepted: patients, diagnoses"),
        ({"stays__key": []}, "the key of stays has 0"),
        ({"diagnoses__lookups": {"code": "stays"}}, "'stays' is no public table; accepted: codes"),
        ({"diagnoses__context": ["stays.nothing"]}, "'stays.nothing'; accepted: stays.admitted, stays.ward"),
        ({"stays__order_by": ["remark"]}, "'remark' is no modelled column; accepted: admitted, ward"),
        ({"stays__columns": {"patient": {"type": "boolean"}}}, "columns.patient: is a key"),
        ({"stays__key": ["stay", "year"], "stays__order_by": ["year"]}, "in the source"),
        ({"stays__columns": {"stay": {"type": "boolean"}}}, "copy the column under another name in the source"),
        ({"diagnoses__columns": {"code": {"type": "boolean"}}}, "columns.code: is a lookup of a public table"),
        ({"my table__key": ["x"]}, "such as Order_Details for `Order Details`"),
        ({"stays__columns": {"a__b": {"type": "boolean"}}}, "'a__b': two signs _ in a row"),
        ({"stays__columns": {"": {"type": "boolean"}}}, "an empty name; accepted: '': {ignore: true}"),
        ({"stays__columns": {"_owner": {"type": "boolean"}}}, "'_owner' is reserved"),
        ({"stays__columns": {"a": {"type": "boolean"}, "A": {"type": "boolean"}}}, "'a' and 'A' differ in case only"),
        ({"stays__constraints": [{"ascending": ["codes.x", "admitted"]}]}, "'codes.x' is no modelled column"),
        ({"codes__columns": {"x": {"type": "boolean"}}}, "tables.codes.columns: of a public table"),
        ({"codes__lookups": {"x": "codes"}}, "tables.codes.lookups: of a public table"),
        ({"codes__key": ["a", "b"]}, "2 columns of a public table; accepted: one"),
        ({"previous__key": ["x"]}, "tables.previous: the name has another meaning"),
        ({"owner": "person"}, "tables.patients.max_children: missing, the rows of one owner"),
        ({"owner": "age", "patients__max_children": 1}, "owner: 'age' is declared in columns"),
        ({"stays__max_children": 1000, "diagnoses__max_children": 1000}, "may have 1000000 rows"),
        ({"stays__colums": {}}, "did you mean 'columns'"),
    ],
)
def test_what_contradicts_itself_is_refused_with_the_way_out(changes, message):
    with pytest.raises(ContractError) as caught:
        declared(**changes)
    assert message in str(caught.value)


@pytest.mark.parametrize("name", ["a__b", "_owner", ""])
def test_a_column_that_is_ignored_may_have_any_name(name):
    columns = {"severity": {"type": "integer", "min": 1, "max": 5}, name: {"ignore": True}}
    assert declared(diagnoses__columns=columns).tables["diagnoses"].modelled == ["severity"]


def test_a_parent_that_is_not_there_is_no_cycle():
    with pytest.raises(ContractError) as caught:
        declared(stays__parent={"table": "nobody", "columns": ["x"]})
    assert "cycle" not in str(caught.value)


def test_a_cycle_is_refused():
    document = copy.deepcopy(CLINIC)
    document["tables"]["a"] = {"key": ["x"], "parent": {"table": "b", "columns": ["y"]}, "max_children": 1}
    document["tables"]["b"] = {"key": ["y"], "parent": {"table": "a", "columns": ["x"]}, "max_children": 1}
    with pytest.raises(
        ContractError, match="a, b: their parents form a cycle; accepted: a path of parents to patients"
    ):
        validated(LinkedTables, document, "tables.yaml")
