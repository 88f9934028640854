from __future__ import annotations

import numpy as np
import pytest

from dpsynth_platform.quality.fairness import measure_fairness
from dpsynth_platform.quality.utility import LEAST_HOLDOUT, Predictions, measure_utility
from dpsynth_platform.synth.tabular.domain import ColumnDomain, Domain

DOMAIN = Domain(
    (
        ColumnDomain("skill", "integer", False, edges=tuple(range(11))),
        ColumnDomain("group", "categorical", True, values=("left", "right", "few")),
        ColumnDomain("income", "categorical", True, values=("low", "middle", "high")),
    )
)
INCOME = 2
MISSING = DOMAIN.columns[INCOME].missing


def rows(count: int, seed: int, *, linked: bool = True, classes: int = 2) -> np.ndarray:
    """The income follows from the skill, or is independent of everything."""
    rng = np.random.default_rng(seed)
    skill, group = rng.integers(0, 10, count), rng.integers(0, 2, count)
    income = skill * classes // 10 if linked else rng.integers(0, classes, count)
    return np.stack([skill, group, income], axis=1)


def test_the_classifier_learns_what_is_there_and_not_what_is_not() -> None:
    found, predictions = measure_utility(rows(2000, 1), rows(2000, 2, linked=False), rows(1000, 3), DOMAIN, "income")
    assert found.real is not None
    assert found.synthetic is not None
    assert found.real.accuracy == found.real.roc_auc == found.real.f1_macro == 1.0
    assert found.synthetic.roc_auc == pytest.approx(0.5, abs=0.2)
    assert found.synthetic.accuracy < 0.75
    assert 0.5 <= found.majority_accuracy < 0.6
    assert predictions is not None
    assert np.array_equal(predictions.real, predictions.truth)


def test_three_classes_are_scored_one_against_the_rest() -> None:
    found, _ = measure_utility(
        rows(2000, 1, classes=3), rows(2000, 2, classes=3), rows(500, 3, classes=3), DOMAIN, "income"
    )
    assert found.synthetic is not None
    assert found.synthetic.accuracy == found.synthetic.roc_auc == 1.0


def test_a_class_that_was_never_trained_costs_and_does_not_break() -> None:
    found, _ = measure_utility(rows(2000, 1), rows(2000, 2), rows(900, 3, classes=3), DOMAIN, "income")
    assert found.real is not None
    assert found.real.accuracy is not None
    assert 0.0 < found.real.accuracy < 0.9


@pytest.mark.parametrize(
    ("target", "holdout", "reason"),
    [
        (None, rows(100, 1), "names no target"),
        ("shoe_size", rows(100, 1), "not modelled"),
        ("income", rows(LEAST_HOLDOUT - 1, 1), "fewer than 50 held-out rows"),
        ("income", rows(0, 1), "fewer than 50 held-out rows"),
    ],
)
def test_what_cannot_be_compared_has_a_reason(target: str | None, holdout: np.ndarray, reason: str) -> None:
    found, predictions = measure_utility(rows(200, 1), rows(200, 2), holdout, DOMAIN, target)
    assert found.not_available is not None
    assert reason in found.not_available
    assert predictions is None


def test_rows_without_a_target_are_left_out() -> None:
    holdout = rows(200, 1)
    holdout[:160, INCOME] = MISSING
    found, _ = measure_utility(rows(200, 2), rows(200, 3), holdout, DOMAIN, "income")
    assert found.holdout_rows == 40
    assert found.not_available is not None


def test_one_class_or_few_rows_to_train_on_leave_the_other_classifier_standing() -> None:
    constant = rows(200, 1)
    constant[:, INCOME] = 1
    found, predictions = measure_utility(rows(500, 2), constant, rows(200, 3), DOMAIN, "income")
    assert found.synthetic is not None
    assert found.synthetic.not_available == "the rows to train on have one class only"
    assert found.real is not None
    assert found.real.accuracy == 1.0
    assert predictions is not None
    assert predictions.synthetic is None
    few, _ = measure_utility(rows(500, 2), rows(10, 1), rows(200, 3), DOMAIN, "income")
    assert few.synthetic is not None
    assert few.synthetic.not_available == "fewer than 50 rows to train on have a target"


def test_one_class_held_out_has_an_accuracy_but_no_area() -> None:
    holdout = rows(400, 1)
    holdout = holdout[holdout[:, INCOME] == 0]
    found, _ = measure_utility(rows(500, 2), rows(500, 3), holdout, DOMAIN, "income")
    assert found.real is not None
    assert found.real.accuracy == 1.0
    assert found.real.roc_auc is None


def judged() -> Predictions:
    """100 people left, 100 right, 20 few. `real` is always right; `synthetic` never selects anyone on the right."""
    group = np.repeat([0, 1, 2], [100, 100, 20])
    high = DOMAIN.columns[INCOME].missing - 1
    truth = np.where(np.arange(220) % 4 == 0, high, 0)
    unfair = np.where(group == 1, 0, truth)
    return Predictions(np.stack([np.zeros(220, int), group, truth], axis=1), truth, unfair, truth)


def test_gaps_between_groups() -> None:
    (found,) = measure_fairness(judged(), DOMAIN, "income", ["group"])
    assert found.outcome == "high"
    assert [group.value for group in found.groups] == ["left", "right", "few"]
    assert found.real_selection_gap == found.real_true_positive_gap == 0.0
    assert found.synthetic_selection_gap == pytest.approx(0.25)
    assert found.synthetic_true_positive_gap == pytest.approx(1.0)


def test_small_groups_are_named_without_rates() -> None:
    (found,) = measure_fairness(judged(), DOMAIN, "income", ["group"])
    few = found.groups[2]
    assert few.real is not None
    assert (few.real.selection, few.real.true_positive) == (None, None)


def test_a_group_with_few_favourable_outcomes_has_no_true_positive_rate() -> None:
    whole = judged()
    truth = np.where(np.arange(220) < 36, whole.truth, 0)
    (found,) = measure_fairness(Predictions(whole.rows, truth, None, truth), DOMAIN, "income", ["group"])
    left = found.groups[0]
    assert left.synthetic is None
    assert left.real is not None
    assert left.real.selection == pytest.approx(0.09)
    assert left.real.true_positive is None
    assert found.synthetic_selection_gap is None
    assert found.real_true_positive_gap is None


def test_without_a_classifier_there_is_a_reason() -> None:
    (found,) = measure_fairness(None, DOMAIN, "income", ["group"])
    assert found.not_available == "there is no classifier to compare"
