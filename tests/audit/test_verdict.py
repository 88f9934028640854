from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from dpsynth_platform.audit import bounds
from dpsynth_platform.audit.attacks import LIKELIHOOD, MEASUREMENTS, NEAREST, Scored, nearest_scores
from dpsynth_platform.audit.plots import roc_plot, score_plot
from dpsynth_platform.audit.verdict import AuditReport, judge, shortage_of
from dpsynth_platform.contracts import DataContract
from dpsynth_platform.release.dossier import check_svg


def coins(count: int = 500) -> bounds.Coins:
    return np.random.default_rng().permutation(np.arange(count) < count // 2)


def scored(values: bounds.Scores) -> list[Scored]:
    nothing = np.zeros(values.size)
    return [Scored(MEASUREMENTS, values), Scored(LIKELIHOOD, nothing), Scored(NEAREST, nothing)]


def test_a_model_that_tells_everything_fails(contract: DataContract) -> None:
    included = coins()
    report = judge(contract, None, included, scored(included.astype(float)))
    assert report.verdict == "fail"
    assert report.epsilon_lower_bound == report.attacks[0].highest_bound > 2.0
    assert report.attacks[0].true_positive_rate.value == report.attacks[0].true_negative_rate.value == 1.0
    assert report.summary.count("FAIL") == 1


def test_a_model_that_tells_nothing_passes_and_the_power_is_stated(contract: DataContract) -> None:
    # Every second guess is right, both by scores that run through the groups alike and by scores that tie, which are
    # guessed in the canaries' order.
    included = np.arange(500) % 2 == 0
    report = judge(contract, None, included, scored(np.arange(500.0)))
    assert report.verdict == "pass"
    assert report.epsilon_lower_bound == 0.0
    assert report.highest_bound > report.threshold
    assert f"The highest bound this audit could have shown is {report.highest_bound:.2f}" in report.summary
    assert report.publishable


def test_too_few_canaries_are_inconclusive_even_with_all_guesses_right(contract: DataContract) -> None:
    included = coins(20)
    report = judge(contract, None, included, scored(included.astype(float)))
    assert report.verdict == "inconclusive"
    assert report.highest_bound <= report.threshold
    assert "More canaries are needed" in report.summary


def test_the_threshold_is_the_smaller_of_what_is_claimed_and_what_is_accepted(
    contract_of: Callable[..., DataContract],
) -> None:
    included = coins()
    strict = contract_of(audit={"canaries": 500, "max_epsilon_lower_bound": 0.5})
    lax = contract_of(audit={"canaries": 500, "max_epsilon_lower_bound": 5.0})
    unsaid = contract_of(audit={"max_epsilon_lower_bound": None})
    results = scored(included.astype(float))
    assert judge(strict, None, included, results).threshold == 0.5
    assert judge(lax, None, included, results).threshold == 1.0
    assert judge(unsaid, None, included, results).threshold == 1.0
    assert judge(lax, None, included, results, epsilon=0.3).threshold == 0.3


def test_all_attacks_together_hold_at_the_stated_confidence(contract: DataContract) -> None:
    included = coins()
    values = included.astype(float)
    alone = judge(contract, None, included, [Scored(MEASUREMENTS, values)])
    among = judge(contract, None, included, scored(values))
    level = bounds.each_confidence(0.95, 3)
    assert among.epsilon_lower_bound < alone.epsilon_lower_bound
    assert among.epsilon_lower_bound == bounds.epsilon_lower_bound(
        canaries=500, guesses=100, right=100, delta=contract.privacy.delta, confidence=level
    )


def test_right_to_fail_is_where_the_verdict_turns(contract: DataContract) -> None:
    included = coins()
    needed = judge(contract, None, included, scored(included.astype(float))).attacks[0].right_to_fail
    assert needed is not None
    for right, verdict in ((needed, "fail"), (needed - 1, "pass")):
        values = np.where(included, 1.0, 0.5)
        out, inside = np.flatnonzero(~included), np.flatnonzero(included)
        values[out[:right]] = 0.0
        values[inside[: 100 - right]] = 0.0
        assert judge(contract, None, included, scored(values)).verdict == verdict


def test_a_generator_that_copies_records_is_caught_by_the_nearest_rows(contract: DataContract) -> None:
    rng = np.random.default_rng()
    included = coins()
    canaries, others = rng.integers(0, 20, (500, 8)), rng.integers(0, 20, (5000, 8))
    copied = np.concatenate([others, canaries[included], canaries[included]])
    honest = judge(contract, None, included, [Scored(NEAREST, nearest_scores(canaries, others, 2))])
    copying = judge(contract, None, included, [Scored(NEAREST, nearest_scores(canaries, copied, 2))])
    assert honest.verdict == "pass"
    assert copying.verdict == "fail"


def test_the_report_survives_json(contract: DataContract) -> None:
    included = coins()
    report = judge(contract, "2026-01", included, scored(included.astype(float)))
    document = json.loads(json.dumps(report.to_json(), allow_nan=False))
    assert AuditReport.from_json(document) == report
    assert document["summary"] == report.summary


def test_the_pictures_may_stand_in_a_dossier(contract: DataContract) -> None:
    included = coins()
    results = scored(np.random.default_rng().normal(size=500) + included)
    for name, picture in (("roc", roc_plot(results, included)), ("scores", score_plot(results[0], included))):
        check_svg(name, picture)
        assert "held out" in picture or "1%" in picture


@pytest.mark.parametrize("one_side", [True, False])
def test_coins_that_all_fell_alike_still_give_a_report(contract: DataContract, one_side: bool) -> None:
    included = np.full(100, one_side)
    report = judge(contract, None, included, scored(np.random.default_rng().normal(size=100)))
    json.dumps(report.to_json(), allow_nan=False)
    roc_plot(scored(np.zeros(100)), included)


def test_an_audit_that_cannot_conclude_is_known_beforehand(contract_of: Any) -> None:
    few = contract_of(audit={"canaries": 20})
    shortage = shortage_of(few)
    assert shortage is not None
    found = re.search(r"declare audit\.canaries: (\d+)", shortage)
    assert found is not None
    assert shortage_of(contract_of(audit={"canaries": int(found[1])})) is None
    assert shortage_of(contract_of(audit={"canaries": int(found[1]) - 10})) is not None
