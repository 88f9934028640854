import json

import pytest
from dp_accounting import dp_event
from hypothesis import given
from hypothesis import strategies as st

from dpsynth_platform.foundation.errors import AccountingError
from dpsynth_platform.privacy.events import (
    BoundedRangeSelectionEvent,
    DiscreteGaussianCountsEvent,
    GaussianCountsEvent,
    adjacency_of,
    event_from_json,
    event_to_json,
    leaves,
)
from dpsynth_platform.privacy.mst import MstBudget, mst_event

BUDGET = MstBudget(sigma_one=3.0, epsilon_select=0.25, sigma_two=4.0, rho=0.1)

positive = st.floats(1e-3, 1e3)
neighbours = (st.sampled_from(["add-or-remove", "zero-out", "replace-one", "fixed-graph"]), st.integers(1, 20))
a_leaf = st.one_of(
    st.builds(DiscreteGaussianCountsEvent, positive, *neighbours),
    st.builds(BoundedRangeSelectionEvent, positive, *neighbours),
)


@given(leaf=a_leaf, count=st.integers(1, 1000))
def test_json_gives_the_same_event(leaf, count):
    event = dp_event.ComposedDpEvent([dp_event.SelfComposedDpEvent(leaf, count), leaf])
    text = json.dumps(event_to_json(event), allow_nan=False)
    assert event_from_json(json.loads(text)) == event


def test_mst_is_d_counts_then_a_tree():
    event = mst_event(5, BUDGET, "add-or-remove", 2)
    assert list(leaves(event)) == [
        (GaussianCountsEvent(3.0, "add-or-remove", 2), 5),
        (BoundedRangeSelectionEvent(0.25, "add-or-remove", 2), 4),
        (GaussianCountsEvent(4.0, "add-or-remove", 2), 4),
    ]
    assert adjacency_of(event) == ("add-or-remove", 2)


def test_mst_of_one_column_chooses_nothing():
    assert list(leaves(mst_event(1, BUDGET, "zero-out", 1))) == [(GaussianCountsEvent(3.0, "zero-out", 1), 1)]


def test_counts_multiply_through_nested_repetition():
    leaf = DiscreteGaussianCountsEvent(1.0, "zero-out", 1)
    event = dp_event.SelfComposedDpEvent(dp_event.SelfComposedDpEvent(leaf, 3), 4)
    assert list(leaves(event)) == [(leaf, 12)]


LEAF = {"kind": "discrete-gaussian-counts", "sigma": 1.0, "adjacency": "zero-out", "max_contributions": 1}


@pytest.mark.parametrize(
    "document",
    [
        None,
        [],
        {},
        {"kind": "gaussian", "sigma": 1.0},
        {"kind": ["composed"]},
        LEAF | {"sigma": float("nan")},
        LEAF | {"sigma": float("inf")},
        LEAF | {"sigma": -1.0},
        LEAF | {"sigma": 0},
        LEAF | {"sigma": "1"},
        LEAF | {"sigma": True},
        LEAF | {"adjacency": "node"},
        LEAF | {"max_contributions": 1.5},
        LEAF | {"extra": 1},
        {key: value for key, value in LEAF.items() if key != "adjacency"},
        {"kind": "repeated", "count": 0, "event": LEAF},
        {"kind": "repeated", "count": 1.0, "event": LEAF},
        {"kind": "repeated", "count": 10**9, "event": LEAF},
        {"kind": "composed", "events": LEAF},
        {"kind": "composed", "events": []},
        {"kind": "composed", "events": [LEAF, LEAF | {"max_contributions": 2}]},
        {"kind": "composed", "events": [LEAF, LEAF | {"adjacency": "replace-one"}]},
    ],
)
def test_bad_documents_are_refused(document):
    with pytest.raises(AccountingError):
        event_from_json(document)


def test_deep_nesting_is_refused():
    document = LEAF
    for _ in range(50):
        document = {"kind": "composed", "events": [document]}
    with pytest.raises(AccountingError):
        event_from_json(document)


def test_unknown_events_are_refused():
    for event in (dp_event.GaussianDpEvent(1.0), dp_event.NonPrivateDpEvent(), dp_event.NoOpDpEvent()):
        with pytest.raises(AccountingError):
            list(leaves(event))
        with pytest.raises(AccountingError):
            event_to_json(event)


@pytest.mark.parametrize("columns", [0, -1])
def test_mst_needs_a_column(columns):
    with pytest.raises(AccountingError):
        mst_event(columns, BUDGET, "zero-out", 1)
