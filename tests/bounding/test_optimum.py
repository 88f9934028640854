"""The upper bound: at least the true optimum, at least the greedy, exact where the program is."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from bounding_cases import Owners, graph, graphs, greedy_kept, ordered
from hypothesis import given, settings
from hypothesis import strategies as st

from dpsynth_platform.bounding import optimum
from dpsynth_platform.bounding.optimum import UpperBound, upper_bound


def bound_of(owners: Owners, b: int) -> UpperBound:
    pairs = [(place, owner) for place, who in enumerate(owners.values()) for owner in set(who)]
    codes = {owner: code for code, owner in enumerate(sorted({owner for _, owner in pairs}))}
    return upper_bound(
        np.array([place for place, _ in pairs], dtype=np.int64),
        np.array([codes[owner] for _, owner in pairs], dtype=np.int64),
        len(owners),
        b,
    )


def best_by_trying_all(owners: Owners, b: int) -> int:
    people = sorted({owner for who in owners.values() for owner in who})
    owned = np.array([[owner in who for owner in people] for who in owners.values()], dtype=int)
    subsets = np.array(list(itertools.product([0, 1], repeat=len(owned))))
    return int(subsets[(subsets @ owned <= b).all(axis=1)].sum(axis=1).max())


@settings(max_examples=40, deadline=None)
@given(owners=graphs.map(lambda found: dict(list(found.items())[:9])), b=st.integers(1, 3))
def test_no_choice_is_above_it(owners: Owners, b: int) -> None:
    found = bound_of(owners, b).records
    assert found is not None
    assert (
        len(greedy_kept(owners, ordered(owners, "random"), b)) <= best_by_trying_all(owners, b) <= found <= len(owners)
    )


def test_it_is_the_linear_programs_optimum() -> None:
    # Three people, each two of whom share a record: half of each record is best, 1.5 records in all.
    assert bound_of(graph([[1, 2], [2, 3], [1, 3]]), 1) == UpperBound(1)
    assert bound_of(graph([[1, 2], [2, 3], [1, 3]] * 2), 1) == UpperBound(1)
    assert bound_of(graph([[1, 2], [2, 3], [1, 3]] * 2), 2) == UpperBound(3)
    assert bound_of(graph([[0, number] for number in range(1, 9)]), 3) == UpperBound(3)
    assert bound_of(graph([[number] for number in range(5)]), 1) == UpperBound(5)
    assert bound_of({}, 1) == UpperBound(0)


def test_what_is_too_large_or_too_slow_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    owners = graph([[1, 2], [2, 3], [1, 3]])
    monkeypatch.setattr(optimum, "MAX_SECONDS", 0.0)
    slow = bound_of(owners, 1)
    assert slow.records is None and "within 0 seconds" in str(slow.reason)
    monkeypatch.setattr(optimum, "MAX_EDGES", 5)
    large = bound_of(owners, 1)
    assert large.records is None and "6 ownerships" in str(large.reason)
    assert bound_of(owners, 2) == UpperBound(3), "owners with room for all are not in the program"
