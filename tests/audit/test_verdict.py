from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from scipy import stats

from dpsynth_platform.audit import bounds
from dpsynth_platform.audit.attacks import LIKELIHOOD, MEASUREMENTS, NEAREST, Scored, nearest_scores
from dpsynth_platform.audit.canary_cost import CanaryCost, ColumnCost, Echo
from dpsynth_platform.audit.cumulative import standing_of
from dpsynth_platform.audit.fdp import gaussian_curve, gaussian_mu
from dpsynth_platform.audit.plots import roc_plot, score_plot
from dpsynth_platform.audit.risk import Reconstructed
from dpsynth_platform.audit.verdict import (
    KINDS_HEADER,
    AuditReport,
    SeparateModel,
    claim_p_value,
    judge,
    kind_row,
    with_family,
)
from dpsynth_platform.contracts.contract import DataContract
from dpsynth_platform.foundation.errors import AccountingError
from dpsynth_platform.release.dossier import check_svg
from dpsynth_platform.reviewing.decisions import AUDIT_HEADER, attack_rows


def coins(count: int = 500) -> bounds.Coins:
    # Fixed: of free ones, one in 600 lets guesses by position beat the attacker who knows twenty sets' numbers.
    return np.random.default_rng(1).permutation(np.arange(count) < count // 2)


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
    # Every second guess is right: scores are equal in distribution in both groups, and ties follow the canaries' order.
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


def test_canaries_that_are_alike_take_the_power_which_is_said(contract: DataContract) -> None:
    """With twenty sets of equal canaries, an attacker who knows their numbers is right in some 60% of the guesses."""
    included = coins()
    duplicates = np.arange(500) % 20
    results = [Scored(item.attack, np.arange(500.0), duplicates) for item in scored(np.zeros(500))]
    report = judge(contract, None, included, results)
    assert report.verdict == "inconclusive"
    assert report.highest_bound <= report.threshold
    assert "too many canaries are equal" in report.summary
    assert "no attack can distinguish those" in report.summary
    for attack in report.attacks:
        assert attack.best_right is not None and attack.right <= attack.best_right < 100
        assert attack.visible_from is None
    assert "four of five" not in report.summary
    assert AuditReport.from_json(json.loads(json.dumps(report.to_json()))) == report


def test_a_rate_that_equal_canaries_could_not_have_exceeded_is_no_pass(
    contract_of: Callable[..., DataContract],
) -> None:
    limit = {"false_positive_rate": 0.1, "true_positive_rate": 0.5}
    contract = contract_of(audit={"canaries": 500, "rate_limits": [limit], "gates": ["measurements"]})
    included = np.arange(500) % 2 == 0
    half_of_them = np.minimum(np.arange(500), 250)
    for duplicates, verdict in ((np.arange(500), "pass"), (half_of_them, "inconclusive")):
        report = judge(contract, None, included, [Scored(MEASUREMENTS, np.arange(500.0), duplicates)])
        assert report.highest_bound > report.threshold, "by the bound alone both would pass"
        assert report.verdict == verdict
    assert "and could have found no more than 50.0%, since canaries are equal; accepted are 50%" in report.summary


def test_luck_may_show_more_than_could_be_expected_and_never_more_than_the_highest_bound(
    contract: DataContract,
) -> None:
    included = coins()
    duplicates = np.zeros(500, dtype=np.int64)
    report = judge(contract, None, included, [Scored(MEASUREMENTS, included * 1.0, duplicates)])
    assert report.verdict == "fail"
    assert report.epsilon_lower_bound == report.highest_bound
    assert report.attacks[0].right == report.attacks[0].best_right == 100


def test_a_few_equal_canaries_among_many_cost_no_power(contract: DataContract) -> None:
    included = np.arange(500) % 2 == 0
    duplicates = np.maximum(np.arange(500), 50)
    report = judge(contract, None, included, [Scored(MEASUREMENTS, np.arange(500.0), duplicates)])
    plain = judge(contract, None, included, [Scored(MEASUREMENTS, np.arange(500.0))])
    assert report == plain


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
    rng = np.random.default_rng(2)
    included = coins()
    canaries, others = rng.integers(0, 20, (500, 8)), rng.integers(0, 20, (5000, 8))
    copied = np.concatenate([others, canaries[included], canaries[included]])
    honest = judge(contract, None, included, [Scored(NEAREST, nearest_scores(canaries, others, 2))])
    copying = judge(contract, None, included, [Scored(NEAREST, nearest_scores(canaries, copied, 2))])
    assert honest.verdict == "pass"
    assert copying.verdict == "fail"


def test_the_report_survives_json(contract: DataContract) -> None:
    included = coins()
    cost = CanaryCost(500, False, 0.005, 0.02, (ColumnCost("level", 0.004, 0.01),), Echo(2000, 3, 2))
    back = (Reconstructed(1.0, 4, 250, 0, 250, 0.06), Reconstructed(0.75, 9, 250, 1, 250, 0.01))
    report = judge(contract, "2026-01", included, scored(included.astype(float)), cost=cost, reconstructed=back)
    document = json.loads(json.dumps(report.to_json(), allow_nan=False))
    assert AuditReport.from_json(document) == report
    assert document["summary"] == report.summary
    assert (
        "0.5% of what the mechanism counted by its noisy counts (2% if all expected units take part with one"
        in report.summary
    )
    assert "the model continued it word for word for 4 of 250 members" in report.summary
    assert "Of 2000 synthetic texts, 3 hold 8 characters in a row of a canary that was in, and 2" in report.summary


def test_each_kind_of_canaries_is_told_apart_and_decides_nothing(contract: DataContract) -> None:
    included, kinds = np.arange(500) % 2 == 0, ["random"] * 250 + ["plausible"] * 250
    values = np.where(np.arange(500) < 250, included, 0.5) + np.arange(500) / 1e6  # no signal in the second kind
    report = judge(contract, None, included, scored(values), kinds=kinds)
    found = {(item.kind, item.attack): item for item in report.of_kinds}
    assert set(found) == {("random", "measurements"), ("plausible", "measurements")}
    assert [item.canaries for item in report.of_kinds] == [250, 250]
    assert found["random", "measurements"].area_under_curve.value == 1.0
    assert found["plausible", "measurements"].area_under_curve.low < 0.5
    assert found["plausible", "measurements"].area_under_curve.high > 0.5
    assert found["random", "measurements"].true_positive_rate.value > 0.9
    row = kind_row(report.to_json()["of_kinds"][0])
    assert (
        row[:3] == ("random", "250", "measurements") and row[3].startswith("1.000 (") and len(row) == len(KINDS_HEADER)
    )
    assert "each separately and not for all of them together" in report.summary
    assert "250 random ones: 1.00" in report.summary and "; 250 plausible ones: 0.50" in report.summary
    together = judge(contract, None, included, scored(values))
    assert (report.verdict, report.attacks) == (together.verdict, together.attacks)
    assert "By kind of canary" not in together.summary
    assert AuditReport.from_json(json.loads(json.dumps(report.to_json(), allow_nan=False))) == report


def test_the_kinds_of_canaries_are_named_also_where_there_is_only_one(contract_of: Callable[..., DataContract]) -> None:
    included = np.arange(500) % 2 == 0
    for rows, words in (
        (None, "500 fictional owners (kind: random) with 2 records each"),
        (["plausible"], "500 fictional owners (kind: plausible) with"),
        (["random", "plausible"], "500 fictional owners (kinds: random; plausible) with"),
    ):
        contract = contract_of(
            audit={"canary_rows": rows},
            generate={"constraints": [{"forbid": {"level": "level-0", "region": "region-1"}}]},
        )
        report = judge(contract, None, included, scored(np.arange(500.0)))
        assert words in report.summary
        assert AuditReport.from_json(json.loads(json.dumps(report.to_json()))) == report


def test_a_kind_of_which_all_are_in_tells_nothing(contract: DataContract) -> None:
    included = np.arange(500) % 2 == 0
    kinds = np.where(np.arange(500) == 0, "one", "other").tolist()
    report = judge(contract, None, included, scored(np.arange(500.0)), kinds=kinds)
    assert {item.kind for item in report.of_kinds} == {"other"}


def test_a_model_that_was_trained_apart_is_named(contract: DataContract) -> None:
    included = coins()
    report = judge(
        contract, None, included, scored(included.astype(float)), apart=SeparateModel("entry", "plan", 1.4534)
    )
    assert "an equal model that was trained separately" in report.summary
    assert "Claim and bounds are those of one model alone, epsilon 1; the release's guarantee is for" in report.summary
    assert "for both models together, epsilon 1.454" in report.summary
    assert "the release holds none of them" in report.summary
    assert AuditReport.from_json(json.loads(json.dumps(report.to_json(), allow_nan=False))) == report


def test_the_pictures_may_stand_in_a_dossier(contract: DataContract) -> None:
    included = coins()
    results = scored(np.random.default_rng(3).normal(size=500) + included)
    for name, picture in (("roc", roc_plot(results, included)), ("scores", score_plot(results[0], included))):
        check_svg(name, picture)
        assert "held out" in picture or "1%" in picture
    assert "most the claim allows" in roc_plot(results, included, epsilon=1.0, delta=1e-5)


@pytest.mark.parametrize("one_side", [True, False])
def test_coins_that_all_fell_alike_still_give_a_report(contract: DataContract, one_side: bool) -> None:
    included = np.full(100, one_side)
    report = judge(contract, None, included, scored(np.random.default_rng(4).normal(size=100)))
    json.dumps(report.to_json(), allow_nan=False)
    roc_plot(scored(np.zeros(100)), included)


def test_attacks_that_do_not_decide_are_shown_and_cost_the_others_no_power(
    contract_of: Callable[..., DataContract],
) -> None:
    included = coins()
    chosen = contract_of(audit={"canaries": 500, "gates": ["likelihood"]})
    # The attack that finds everything does not decide; the two others tell nothing, one of them by a constant score.
    results = [
        Scored(MEASUREMENTS, included * 1.0),
        Scored(LIKELIHOOD, np.arange(500.0)),
        Scored(NEAREST, included * 0),
    ]
    report = judge(chosen, None, included, results)
    assert report.verdict == "pass"
    assert [attack.decides for attack in report.attacks] == [False, True, False]
    assert report.attacks[0].epsilon_lower_bound > 2.0 > report.epsilon_lower_bound
    alone = judge(chosen, None, included, [Scored(LIKELIHOOD, included * 1.0)])
    assert report.highest_bound == alone.epsilon_lower_bound
    assert judge(contract_of(audit={"canaries": 500}), None, included, results).verdict == "fail"


def test_a_gate_that_gave_no_scores_is_inconclusive(
    contract_of: Callable[..., DataContract],
) -> None:
    gated = contract_of(audit={"canaries": 500, "gates": ["measurements", "likelihood"]})
    included = coins()
    report = judge(gated, None, included, [Scored(MEASUREMENTS, np.arange(500.0))])
    assert report.verdict == "inconclusive"
    assert "'likelihood', which decides, gave no scores" in report.summary


def test_rates_have_limits_of_their_own(contract_of: Callable[..., DataContract]) -> None:
    limited = contract_of(
        audit={
            "canaries": 4000,
            "max_epsilon_lower_bound": None,
            "rate_limits": [{"false_positive_rate": 0.01, "true_positive_rate": 0.1}],
        },
    )
    included = np.arange(4000) % 2 == 0
    silent = np.arange(4000.0)
    telling = np.where(included & (np.arange(4000) < 1200), 5000.0, silent)  # six hundred of two thousand
    hardly = np.where(included & (np.arange(4000) < 380), 5000.0, silent)
    results = {name: judge(limited, None, included, scored(values)) for name, values in
               (("silent", silent), ("telling", telling), ("hardly", hardly))}  # fmt: skip
    assert results["silent"].verdict == "pass"
    assert "accepted are 10%" in results["telling"].summary
    assert results["telling"].verdict == "fail"
    assert results["hardly"].verdict == "inconclusive"
    assert "it may be" in results["hardly"].summary
    few = contract_of(
        audit={"canaries": 100, "rate_limits": [{"false_positive_rate": 0.001, "true_positive_rate": 0.05}]}
    )
    report = judge(few, None, np.arange(100) % 2 == 0, scored(np.arange(100.0)))
    assert any("by so few canaries it may be" in reason for reason in report.reasons)


def test_a_report_names_the_terms_that_it_was_made_on(contract_of: Callable[..., DataContract]) -> None:
    limit = {"false_positive_rate": 0.01, "true_positive_rate": 0.9}
    policy = {"canaries": 500, "gates": ["likelihood"], "rate_limits": [limit], "cumulative": "report"}
    declared = contract_of(audit=policy)
    report = judge(declared, None, coins(), scored(np.arange(500.0))).to_json()
    kept = json.loads(json.dumps(report))
    assert {name: kept.get(name) for name in declared.audit_terms} == declared.audit_terms


def test_scores_that_are_no_numbers_prove_nothing_and_pass_nothing(contract: DataContract) -> None:
    included = coins()
    broken = np.where(included, np.nan, 1.0)  # a missing number used as a score would reveal every coin
    report = judge(contract, None, included, [Scored(LIKELIHOOD, broken)])
    assert report.verdict == "inconclusive"
    assert report.epsilon_lower_bound == 0.0
    assert f"{int(included.sum())} of its 500 scores are no numbers" in report.summary
    json.dumps(report.to_json(), allow_nan=False)
    check_svg("roc", roc_plot([Scored(LIKELIHOOD, broken)], included, epsilon=1.0, delta=1e-5))
    beside = judge(contract, None, included, [Scored(LIKELIHOOD, broken), Scored(MEASUREMENTS, included * 1.0)])
    assert beside.verdict == "fail"


def test_constant_scores_pass_nothing(contract: DataContract) -> None:
    report = judge(contract, None, coins(), scored(np.zeros(500)))
    assert report.verdict == "inconclusive"
    assert report.summary.count("it gave every canary the same score") == 3


def test_coins_that_were_not_fair_carry_no_bound(contract: DataContract) -> None:
    for included, words in (
        (np.ones(500, bool), "All coins are equal"),
        (np.arange(500) < 100, "the coins were not fair"),
    ):
        report = judge(contract, None, included, scored(np.arange(500.0)))
        assert report.verdict == "inconclusive"
        assert words in report.summary


def test_a_lawyer_is_told_what_the_attacker_gets(contract: DataContract) -> None:
    included = np.arange(500) % 2 == 0
    values = np.arange(500.0)
    values[included.nonzero()[0][:25]] = 1000.0
    summary = judge(contract, None, included, scored(values)).summary
    assert "wrongly accuses one outsider in a hundred recognizes 10.8 of" in summary
    low, high = bounds.clopper_pearson(27, 250, 0.95)
    assert f"{100 * low:.1f} to {100 * high:.1f} in general)" in summary
    assert "That interval is of 95% for this attack alone, the best of 3." in summary
    alone = judge(contract, None, included, [Scored(LIKELIHOOD, values)]).summary
    assert "That interval is of 95% for this attack alone." in alone
    assert "Blind guessing recognizes 1, and the guarantee allows at most 2.7 in general." in summary


def test_the_power_is_stated_for_what_an_attack_may_really_reach(contract: DataContract) -> None:
    report = judge(contract, None, coins(), scored(np.arange(500.0)))
    for attack in report.attacks:
        assert attack.likely_bound is not None and attack.visible_from is not None and attack.right_to_fail is not None
        assert 0 < attack.likely_bound < attack.highest_bound
        guesses, needed = attack.guessed_in + attack.guessed_out, attack.right_to_fail
        share = 1 / (1 + np.exp(-attack.visible_from))
        assert stats.binom.sf(needed - 1, guesses, share) == pytest.approx(0.8, abs=1e-6)
    assert "would have failed in four of five audits" in report.summary


def test_the_table_of_attacks_has_the_same_limit_as_the_summary(contract: DataContract) -> None:
    included = coins()
    report = judge(contract, None, included, scored(included.astype(float))).to_json()
    (allowed,) = re.findall(r"the guarantee allows at most ([0-9.]+) in general", report["summary"])
    assert all(f"; {float(allowed) / 100:.3f}" in row[4] for row in attack_rows(report))


def test_a_report_of_an_earlier_version_is_still_read(contract: DataContract) -> None:
    included = coins()
    document = judge(contract, None, included, scored(included.astype(float))).to_json()
    for key in ("reasons", "gates", "rate_limits", "cumulative", "family", "apart", "of_kinds", "kinds"):
        del document[key]
    for attack in document["attacks"]:
        for key in ("decides", "likely_bound", "visible_from", "gaussian_bound", "p_value", "risk", "fault"):
            del attack[key]
    old = AuditReport.from_json(json.loads(json.dumps(document)))
    assert old.verdict == "fail" and "more than the 1 that is accepted" in old.summary
    assert claim_p_value(old) == 1.0
    assert {len(row) for row in attack_rows(document)} == {len(AUDIT_HEADER)}
    for broken in (document | {"attacks": [{}]}, {}, {"attacks": None}):
        with pytest.raises(AccountingError, match="materialize the audit again"):
            AuditReport.from_json(broken)


def test_the_family_and_an_earlier_failure_decide(contract: DataContract, contract_of: Any) -> None:
    included = np.arange(500) % 2 == 0
    alone = judge(contract, None, included, scored(np.arange(500.0)))
    assert alone.verdict == "pass"
    calm = standing_of("surveys", [], "run", claim_p_value(alone), 0.95)
    assert with_family(alone, calm, earlier="none").verdict == "pass"
    assert calm.words in with_family(alone, calm, earlier="none").summary
    again = with_family(alone, calm, earlier="decides")
    assert again.verdict == "fail" and "cannot undo" in again.summary
    loosened = with_family(alone, calm, earlier="told")
    assert loosened.verdict == "pass" and "limits of its contract that have been changed since" in loosened.summary
    stormy = standing_of("surveys", [], "run", 1e-6, 0.95)
    assert with_family(alone, stormy, earlier="none").verdict == "fail"
    shown = judge(contract_of(audit={"cumulative": "report"}), None, included, scored(np.arange(500.0)))
    assert with_family(shown, stormy, earlier="none").verdict == "pass"
    assert AuditReport.from_json(json.loads(json.dumps(again.to_json(), allow_nan=False))) == again


def test_the_plans_curve_is_what_the_claims_p_value_rests_on_where_it_is_known(contract: DataContract) -> None:
    included = coins()
    values = scored(included * 1.0)
    report = judge(contract, None, included, values, curve=gaussian_curve(gaussian_mu(1.0, contract.privacy.delta)))
    least = min(attack.plan_p_value for attack in report.attacks if attack.plan_p_value is not None)
    assert claim_p_value(report) == pytest.approx(3 * least)
    assert claim_p_value(report) < claim_p_value(judge(contract, None, included, values))
    assert AuditReport.from_json(json.loads(json.dumps(report.to_json()))) == report


def test_the_claims_p_value_pays_for_every_deciding_attack(contract: DataContract) -> None:
    included = coins()
    report = judge(contract, None, included, scored(included * 1.0))
    one = bounds.p_value(canaries=500, guesses=100, right=100, epsilon=1.0, delta=contract.privacy.delta)
    assert claim_p_value(report) == pytest.approx(3 * one)
