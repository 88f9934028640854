"""A quality report in a few numbers, and what makes copies of real rows alarming."""

import pytest

from dpsynth_platform.console.views.dossiers import audit_view
from dpsynth_platform.console.views.drift import copies, measures


def report(made: int, kept: int, rows: int = 10_000) -> dict:
    return {
        "fidelity": {"mean_column": 0.01, "mean_pair": None, "columns": [{"column": "x", "resampled": 0.005}]},
        "utility": {
            "synthetic": {"mean": {"f1": 0.5, "roc_auc": 0.8, "accuracy": 0.9}},
            "real": None,
            "majority_accuracy": 0.7,
        },
        "closeness": {
            "synthetic": {"copies": made, "rows": rows},
            "real": {"copies": kept, "rows": rows},
            "closer": 0.4,
        },
    }


@pytest.mark.parametrize(
    ("made", "kept", "more"),
    [(2271, 2629, False), (2629, 2629, False), (2700, 2629, False), (3300, 2629, True), (1, 0, False)],
)
def test_copies_alarm_only_where_they_exceed_those_of_unseen_rows(made: int, kept: int, more: bool) -> None:
    found = copies(report(made, kept))
    assert found is not None
    assert (found.synthetic, found.held_out, found.more) == (made / 10_000, kept / 10_000, more)


def test_the_numbers_that_stand_for_a_report_are_those_that_it_has() -> None:
    found = {item.key: (item.synthetic, item.real) for item in measures(report(1, 2))}
    assert {item.key: item.baseline for item in measures(report(1, 2)) if item.baseline} == {"accuracy": 0.7}
    assert found == {
        "columns": (0.01, 0.005),
        "f1": (0.5, None),
        "auc": (0.8, None),
        "accuracy": (0.9, None),
        "copies": (0.0001, 0.0002),
        "nearer": (0.4, 0.5),
    }
    assert measures({}) == () and copies({"closeness": None}) is None


def test_the_best_attack_is_named_with_what_the_guarantee_allows() -> None:
    def attack(name: str, found: float, decides: bool = True) -> dict:
        rate = {"false_positive_rate": 0.01, "found": {"value": found, "low": 0.02, "high": 0.07}, "allowed": 0.08}
        risk = {"rates": [rate | {"resolved": False}, rate, rate], "area_under_curve": rate["found"]}
        return {
            "name": name,
            "target": "model",
            "decides": decides,
            "epsilon_lower_bound": 0.1,
            "highest_bound": 3.0,
            "true_positive_rate": rate["found"],
            "risk": risk,
        }

    terms = {"verdict": "pass", "summary": "", "epsilon_lower_bound": 0.1, "highest_bound": 3.0, "confidence": 0.95}
    terms |= {"claimed_epsilon": 1.0, "delta": 1e-6, "canaries": 500}
    attacks = [attack("one", 0.02), attack("two", 0.042), attack("three", 0.3, decides=False)]
    best = audit_view(terms | {"attacks": attacks}, {}).best
    assert best is not None
    assert (best.attack, best.attacks, best.found, best.low) == ("two", 2, 0.042, 0.02)
    assert best.allowed == pytest.approx(0.0272, abs=1e-4)
    assert audit_view(terms | {"attacks": []}, {}).best is None
