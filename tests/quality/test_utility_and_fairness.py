from __future__ import annotations

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import f1_score, roc_auc_score

from dpsynth_platform.quality import features, utility
from dpsynth_platform.quality.columns import Column
from dpsynth_platform.quality.fairness import Fairness, Gaps, Protected, measure_fairness
from dpsynth_platform.quality.features import for_distances, for_training
from dpsynth_platform.quality.utility import LEAST_HOLDOUT, Predictions, measure_utility

MISSING = 3
Table = dict[str, np.ndarray]


def rows(count: int, seed: int, *, linked: bool = True, classes: int = 2) -> Table:
    """The income follows from the skill, or is independent of everything."""
    rng = np.random.default_rng(seed)
    skill, group = rng.integers(0, 10, count).astype(float), rng.integers(0, 2, count)
    income = skill.astype(int) * classes // 10 if linked else rng.integers(0, classes, count)
    return {"skill": skill, "group": group, "income": income}


def beside(*tables: Table) -> tuple[Column, ...]:
    """Columns of held-out, synthetic and perhaps real rows."""
    sizes = {"skill": None, "group": 3, "income": MISSING + 1}
    return tuple(Column(name, size, tuple(table[name] for table in tables)) for name, size in sizes.items())


def test_the_classifiers_learn_what_is_there_and_not_what_is_not() -> None:
    columns = beside(rows(1000, 3), rows(2000, 2, linked=False), rows(2000, 1))
    found, predictions = measure_utility(columns, "income")
    assert (found.target, found.holdout_rows, found.classes, found.not_available) == ("income", 1000, 2, None)
    assert found.real is not None
    assert found.synthetic is not None
    for scores in (found.real.xgboost, found.real.logistic_regression, found.real.mean):
        assert scores is not None
        assert min(scores.f1, scores.roc_auc, scores.accuracy) > 0.99
    assert found.synthetic.mean.roc_auc == pytest.approx(0.5, abs=0.2)
    assert found.synthetic.mean.accuracy < 0.75
    assert 0.5 <= found.majority_accuracy < 0.6
    assert predictions is not None
    assert np.array_equal(predictions.real, predictions.truth)
    assert predictions.minority == np.bincount(predictions.truth).argmin()


def test_the_scores_are_sklearns_and_of_the_rarer_class() -> None:
    held, made = rows(800, 1, linked=False), rows(1500, 2)
    for table in (held, made):
        table["income"] = (table["skill"] > 7 - (np.arange(len(table["skill"])) % 3)).astype(int)
    found, predictions = measure_utility(beside(held, made), "income")
    assert found.real is None
    rarer = np.bincount(held["income"]).argmin()
    assert predictions.minority == rarer
    expected = f1_score(held["income"] == rarer, predictions.synthetic == rarer)
    assert found.synthetic.xgboost.f1 == pytest.approx(expected)
    assert found.synthetic.xgboost.accuracy == pytest.approx(np.mean(held["income"] == predictions.synthetic))
    both = (found.synthetic.xgboost, found.synthetic.logistic_regression)
    for name in ("f1", "roc_auc", "accuracy"):
        assert getattr(found.synthetic.mean, name) == pytest.approx(np.mean([getattr(each, name) for each in both]))
    # One number and two categories: the same model by hand. Robust scaling has hardly a say in it, hence the tolerance.
    model = LogisticRegression(class_weight="balanced", max_iter=50)
    by_hand = [np.stack([table["skill"] / 3, table["group"]], axis=1) for table in (held, made)]
    chance = model.fit(by_hand[1], made["income"]).predict_proba(by_hand[0])[:, rarer]
    assert both[1].roc_auc == pytest.approx(roc_auc_score(held["income"] == rarer, chance), abs=0.01)


def test_a_classifier_that_was_trained_on_the_truth_reversed_is_worse_than_chance() -> None:
    held, made = rows(500, 1), rows(500, 2)
    made["income"] = 1 - made["income"]
    found, _ = measure_utility(beside(held, made), "income")
    assert found.synthetic.mean.roc_auc < 0.05
    assert found.synthetic.mean.accuracy < 0.05


def test_three_classes_are_scored_one_against_the_rest() -> None:
    tables = [rows(count, seed, classes=3) for count, seed in ((500, 3), (2000, 2), (2000, 1))]
    found, _ = measure_utility(beside(*tables), "income")
    assert found.classes == 3
    assert found.synthetic.xgboost == found.real.xgboost
    assert found.synthetic.xgboost.accuracy == found.synthetic.xgboost.roc_auc == 1.0
    assert found.synthetic.logistic_regression.roc_auc > 0.8


def test_a_class_that_was_never_trained_costs_and_does_not_break() -> None:
    found, _ = measure_utility(beside(rows(900, 3, classes=3), rows(2000, 2)), "income")
    assert 0.0 < found.synthetic.mean.accuracy < 0.9


def test_rows_of_one_class_teach_that_everybody_is_of_it() -> None:
    constant = rows(200, 1)
    constant["income"][:] = 1
    held = rows(200, 3)
    found, predictions = measure_utility(beside(held, constant, rows(500, 2)), "income")
    share = np.mean(held["income"] == 1)
    for scores in (found.synthetic.xgboost, found.synthetic.logistic_regression):
        assert scores.roc_auc == 0.5
        assert scores.accuracy == pytest.approx(share)
    assert set(predictions.synthetic) == {1}
    assert found.real.mean.accuracy > 0.99


@pytest.mark.parametrize(
    ("target", "holdout", "reason"),
    [
        (None, rows(100, 1), "no target is named"),
        ("shoe_size", rows(100, 1), "no column of categories that is modelled"),
        ("skill", rows(100, 1), "no column of categories that is modelled"),
        ("income", rows(LEAST_HOLDOUT - 1, 1), "fewer than 50 held-out rows"),
        ("income", rows(0, 1), "fewer than 50 held-out rows"),
        ("income", rows(200, 1, classes=1), "held-out rows have 1 classes; accepted: 2 to 50"),
    ],
)
def test_what_cannot_be_compared_has_a_reason(target: str | None, holdout: Table, reason: str) -> None:
    found, predictions = measure_utility(beside(holdout, rows(200, 1), rows(200, 2)), target)
    assert reason in found.not_available
    assert predictions is None


def test_rows_without_a_target_are_left_out() -> None:
    held, made = rows(200, 1), rows(300, 2)
    held["income"][:80] = MISSING
    made["income"][:] = MISSING
    found, predictions = measure_utility(beside(held, made, rows(300, 3)), "income")
    assert found.holdout_rows == 120
    assert predictions.rows.tolist() == list(range(80, 200))
    assert found.synthetic.not_available == "no row to train on has a target"
    assert predictions.synthetic is None
    assert found.real.mean.accuracy > 0.99


def test_a_target_alone_predicts_nothing() -> None:
    (goal,) = (column for column in beside(rows(100, 1), rows(100, 2)) if column.name == "income")
    assert measure_utility([goal], "income")[0].not_available == "there is no column except the target"


def test_of_too_many_rows_some_are_trained_on(monkeypatch: pytest.MonkeyPatch) -> None:
    columns = beside(rows(500, 1), rows(5000, 2))
    monkeypatch.setattr(utility, "MOST_NUMBERS", 1000 * features.width(columns))
    seen = []
    monkeypatch.setattr(utility, "for_training", lambda few: seen.append(len(few[0].parts[1])) or for_training(few))
    found, _ = measure_utility(columns, "income")
    assert seen == [1000]
    assert found.synthetic.mean.accuracy > 0.95


def test_features_are_one_hot_and_standardized() -> None:
    columns = [
        Column("n", None, (np.array([0.0, np.nan]), np.array([4.0, 8.0, 4.0]))),
        Column("c", 4, (np.array([0, 2]), np.array([2, 2, 3]))),
    ]
    first, second = for_training(columns)
    together = np.concatenate([first[:, 0], second[:, 0]])
    known = np.array([0.0, 4.0, 8.0, 4.0])
    assert np.isnan(together[1])
    assert together[~np.isnan(together)] == pytest.approx((known - known.mean()) / known.std())
    assert first[:, 1:].sum(axis=1).tolist() == [1.0, 1.0]
    assert first[1, 1:].tolist() == second[0, 1:].tolist() == second[1, 1:].tolist()
    assert first.shape[1] == 1 + 3, "a category that is nowhere has no feature"


def test_the_rarest_of_many_categories_count_as_one() -> None:
    codes = np.repeat(np.arange(220), np.arange(220, 0, -1))
    (shared,) = for_training([Column("id", 221, (codes,))])
    assert shared.shape[1] == features.MOST_CATEGORIES + 1
    assert len(np.unique(shared[codes >= features.MOST_CATEGORIES], axis=0)) == 1
    assert len(np.unique(shared, axis=0)) == features.MOST_CATEGORIES + 1


def test_rows_that_differ_in_a_category_are_at_a_distance_of_one() -> None:
    columns = [Column("c", 3, (np.array([0, 1]),)), Column("n", None, (np.array([5.0, 5.0]),))]
    (found,) = for_distances(columns)
    assert np.linalg.norm(found[0] - found[1]) == pytest.approx(1.0)


NAMES = ("left", "right", "few")


def judged() -> tuple[Predictions, list[Protected]]:
    """100 people left, 100 right, 20 few. `real` is always right; `synthetic` never selects anyone on the right."""
    group = np.repeat([0, 1, 2], [100, 100, 20])
    truth = np.where(np.arange(220) % 4 == 0, 1, 0)
    unfair = np.where(group == 1, 0, truth)
    return Predictions(np.arange(220), truth, unfair, truth, 1), [Protected("group", group, NAMES)]


def only(found: tuple[Fairness, ...]) -> Fairness:
    (item,) = found
    return item


def test_gaps_between_groups() -> None:
    found = only(measure_fairness(*judged(), None, "high"))
    assert found.outcome == "high"
    assert [group.value for group in found.groups] == ["left", "right", "few"]
    assert found.real == Gaps(0.0, 0.0, 0.0, 0.0, 0.0, 0.0)
    made = found.synthetic
    assert made.selection == pytest.approx(0.25)
    assert made.true_positive == made.equalized_odds == pytest.approx(1.0)
    assert made.false_positive == made.fped == 0.0
    # Of all 55 of the favourable outcome 30 are found (25 left, 5 few): |1 - 30/55| + |0 - 30/55|.
    assert made.fned == pytest.approx(1.0)


def test_sums_and_odds_are_those_of_the_definitions() -> None:
    rng = np.random.default_rng(4)
    group, truth, guessed = rng.integers(0, 4, 3000), rng.integers(0, 3, 3000), rng.integers(0, 3, 3000)
    guessed = np.where(rng.random(3000) < group / 4, truth, guessed)
    held = np.sort(rng.choice(4000, 3000, replace=False))
    codes = np.zeros(4000, dtype=np.int64)
    codes[held] = group
    predictions = Predictions(held, truth, guessed, None, 2)
    found = only(measure_fairness(predictions, [Protected("g", codes, list("abcd"))], 1, "one"))
    positive = truth == 1

    def false_positive(rows: np.ndarray) -> float:
        return float(np.mean(guessed[rows & ~positive] == 1))

    def false_negative(rows: np.ndarray) -> float:
        return float(np.mean(guessed[rows & positive] != 1))

    everybody = np.ones(3000, dtype=bool)
    groups = [group == code for code in range(4)]
    fprs, fnrs = [false_positive(rows) for rows in groups], [false_negative(rows) for rows in groups]
    made = found.synthetic
    assert found.real is None
    assert made.fped == pytest.approx(sum(abs(false_positive(everybody) - rate) for rate in fprs))
    assert made.fned == pytest.approx(sum(abs(false_negative(everybody) - rate) for rate in fnrs))
    assert made.false_positive == pytest.approx(max(fprs) - min(fprs))
    assert made.equalized_odds == pytest.approx(max(max(fprs) - min(fprs), max(fnrs) - min(fnrs)))


def test_small_groups_are_named_without_rates() -> None:
    few = only(measure_fairness(*judged(), 1, "high")).groups[2]
    assert few.real is not None
    assert (few.real.selection, few.real.true_positive, few.real.false_positive) == (None, None, None)


def test_a_group_with_few_favourable_outcomes_has_no_true_positive_rate() -> None:
    whole, protected = judged()
    truth = np.where(np.arange(220) < 36, whole.truth, 0)
    found = only(measure_fairness(Predictions(whole.rows, truth, None, truth, 1), protected, 1, "high"))
    left = found.groups[0]
    assert left.synthetic is None
    assert left.real is not None
    assert left.real.selection == pytest.approx(0.09)
    assert left.real.true_positive is None
    assert found.synthetic is None
    assert found.real.true_positive is None
    assert found.real.equalized_odds is None
    assert found.real.fned is None
    assert found.real.fped == 0.0


def test_without_a_classifier_there_is_a_reason() -> None:
    found = only(measure_fairness(None, judged()[1], 1, "high"))
    assert found.not_available == "there is no classifier to compare"
