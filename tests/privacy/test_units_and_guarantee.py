import dp_accounting
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpsynth_platform.foundation.errors import AccountingError
from dpsynth_platform.privacy.guarantee import Guarantee, tier
from dpsynth_platform.privacy.units import ADJACENCIES, count_sensitivity, group_guarantee, replaces


@pytest.mark.parametrize(
    ("adjacency", "b", "l1", "l2"),
    [
        ("add-or-remove", 1, 1, 1.0),
        ("add-or-remove", 3, 3, 3.0),
        ("zero-out", 2, 2, 2.0),
        ("replace-one", 1, 2, 2**0.5),
        ("replace-one", 3, 6, 3 * 2**0.5),
        ("fixed-graph", 3, 6, 3 * 2**0.5),
    ],
)
def test_count_sensitivity(adjacency, b, l1, l2):
    sensitivity = count_sensitivity(adjacency, b)
    assert sensitivity.l1 == l1
    assert sensitivity.l2 == pytest.approx(l2, rel=1e-15)


@given(
    adjacency=st.sampled_from(ADJACENCIES),
    before=st.lists(st.integers(0, 4), max_size=4),
    after=st.lists(st.integers(0, 4), max_size=4),
)
def test_no_unit_moves_counts_farther_than_the_sensitivity(adjacency, before, after):
    """Records are cells; a unit has `before` in one dataset and `after` (or nothing) in the other."""
    after = after if replaces(adjacency) else []
    b = max(1, len(before), len(after))
    moved = [before.count(cell) - after.count(cell) for cell in range(5)]
    sensitivity = count_sensitivity(adjacency, b)
    assert sum(map(abs, moved)) <= sensitivity.l1
    assert sum(change**2 for change in moved) <= sensitivity.l2_squared


@pytest.mark.parametrize(
    ("adjacency", "b"), [("node", 1), ("other", 1), ("zero-out", 0), ("fixed-graph", 0), ("zero-out", True)]
)
def test_what_cannot_be_accounted_for_is_refused(adjacency, b):
    with pytest.raises(AccountingError):
        count_sensitivity(adjacency, b)


def test_dividing_epsilon_and_delta_by_b_allows_243_times_too_much_delta():
    epsilon, delta = group_guarantee(8 / 10, 1e-5 / 10, 10)
    assert epsilon == pytest.approx(8)
    assert delta / 1e-5 == pytest.approx(243, abs=0.5)


def test_a_group_too_large_for_its_guarantee_is_promised_nothing():
    assert group_guarantee(1000.0, 1e-9, 1000) == (1e6, 1.0)
    assert group_guarantee(1.0, 0.0, 3) == (3.0, 0.0)
    assert group_guarantee(0.5, 1e-9, 1) == (0.5, pytest.approx(1e-9))


def test_rdp_accountant_ignores_replace_one_for_gaussians():
    """Why the adjacency's factor is applied before the event: 0.90 by RDP is 1.77 by PLD."""
    relation = dp_accounting.NeighboringRelation.REPLACE_ONE
    event = dp_accounting.GaussianDpEvent(4.45)
    by_rdp = dp_accounting.rdp.RdpAccountant(neighboring_relation=relation).compose(event).get_epsilon(1e-5)
    by_pld = dp_accounting.pld.PLDAccountant(neighboring_relation=relation).compose(event).get_epsilon(1e-5)
    assert by_rdp == pytest.approx(0.90, abs=0.005)
    assert by_pld == pytest.approx(1.77, abs=0.005)


def test_tiers():
    assert [tier(epsilon) for epsilon in (0.1, 1.0, 1.01, 10.0, 10.01)] == [
        "strong",
        "strong",
        "reasonable",
        "reasonable",
        "weak",
    ]


def test_guarantee_survives_json():
    guarantee = Guarantee(1.0, 1e-6, "user", "add-or-remove", 2)
    assert Guarantee.from_json(guarantee.to_json()) == guarantee
    with pytest.raises(AccountingError):
        Guarantee.from_json(guarantee.to_json() | {"other": 1})


@pytest.mark.parametrize(
    "change",
    [
        {"epsilon": 0.0},
        {"epsilon": -1.0},
        {"epsilon": float("nan")},
        {"epsilon": float("inf")},
        {"delta": 0.0},
        {"delta": 1.0},
        {"delta": float("nan")},
        {"unit": "household"},
        {"adjacency": "node"},
        {"max_contributions": 0},
    ],
)
def test_impossible_guarantees_are_refused(change):
    values = {"epsilon": 1.0, "delta": 1e-6, "unit": "user", "adjacency": "add-or-remove", "max_contributions": 1}
    with pytest.raises(AccountingError):
        Guarantee(**(values | change))
