from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from dpsynth_platform.audit.adhoc import outcomes as own
from dpsynth_platform.audit.adhoc.outcomes import OwnAudit, audit_scores
from dpsynth_platform.audit.adhoc.tables import MEMBERS, OTHERS, REFERENCE, SYNTHETIC, membership, table_evidence
from dpsynth_platform.audit.attacks import Attack, Scored
from dpsynth_platform.audit.scores import read_scores, scores_table
from dpsynth_platform.foundation.errors import AccountingError, SourceError

HALF = np.arange(1000) % 2 == 0


def scored(values: Any, name: str = "attack") -> Scored:
    return Scored(Attack(name, "file", "a test", 0.125, 0.125), np.asarray(values, dtype=float))


def audited(*attacks: Scored, included: Any = HALF, **changed: Any) -> OwnAudit:
    terms: dict[str, Any] = {"design": "coins", "publishable": True, "epsilon": 1.0, "delta": 1e-5, "confidence": 0.95}
    return audit_scores("a test", attacks, included, **(terms | changed))


def test_coins_are_judged_by_one_run_and_runs_by_both_errors() -> None:
    one_run = audited(scored(HALF)).attacks[0]
    assert (one_run.guesses, one_run.right) == (250, 250)
    assert one_run.epsilon_lower_bound == one_run.highest_bound
    runs = audited(scored(HALF), design="runs")
    assert runs.attacks[0].guesses is None
    assert runs.attacks[0].epsilon_lower_bound == runs.attacks[0].highest_bound != one_run.highest_bound
    assert runs.verdict == audited(scored(HALF)).verdict == "fail"
    assert (
        audited(scored(np.arange(1000.0))).verdict
        == audited(scored(np.arange(1000.0)), design="runs").verdict
        == "pass"
    )


@pytest.mark.parametrize("last_in", [True, False])
def test_equal_scores_tell_nothing_also_where_the_rows_stand_in_the_order_of_their_coins(last_in: bool) -> None:
    included = (np.arange(1000) >= 500) == last_in
    few = scored(np.random.default_rng().random(1000) < 0.5)
    audit = audited(few, included=included)
    # 250 guesses of 1,000, of which half are right at random: a deviation of 6.9, so that 50 are 7.3 of them, 4e-13;
    # the some 205 that refute are 11 of them.
    assert audit.attacks[0].right == pytest.approx(125, abs=50)
    assert audit.verdict == "pass"
    assert audit == audited(few, included=included), "the same file, the same outcome"


def test_rows_that_an_attack_cannot_tell_apart_take_its_power() -> None:
    duplicates = np.arange(1000) // 100  # of each ten sorts a half was in
    attack = scored(duplicates)
    audit = audited(Scored(attack.attack, attack.scores, duplicates))
    assert audit.attacks[0].highest_bound == 0.0 < audited(attack).attacks[0].highest_bound
    assert audit.verdict == "inconclusive"
    assert "No more than 0.00 could have been shown" in audit.summary


def test_of_groups_no_bound_follows_whatever_the_attack_finds() -> None:
    audit = audited(scored(HALF), design="groups")
    assert audit.attacks[0].epsilon_lower_bound is audit.attacks[0].highest_bound is None
    assert audit.verdict == "inconclusive"
    assert "no bound on epsilon follows" in audit.summary
    assert audit.attacks[0].risk.rates[1].beyond


def test_without_a_claim_there_is_no_verdict() -> None:
    audit = audited(scored(HALF), epsilon=None)
    assert audit.verdict is None
    assert audit.attacks[0].risk.rates[1].allowed is None
    assert "Nothing was claimed" in audit.summary


@pytest.mark.parametrize(
    ("attacks", "included", "words"),
    [
        ([scored(np.zeros(1000))], HALF, "the same score"),
        ([scored(np.full(1000, np.nan))], HALF, "1000 of its 1000 scores are no numbers"),
        ([scored(np.arange(1000))], np.ones(1000, bool), "All coins are equal"),
        ([scored(np.arange(1000))], np.arange(1000) < 200, "the coins were not fair"),
        ([scored(np.arange(12))], np.arange(12) % 2 == 0, "No more than 0.00 could have been shown"),
    ],
)
def test_what_cannot_be_seen_is_no_pass(attacks: list[Scored], included: Any, words: str) -> None:
    audit = audited(*attacks, included=included)
    assert audit.verdict == "inconclusive"
    assert words in audit.summary
    json.dumps(audit.to_json(), allow_nan=False)


def test_runs_of_one_kind_are_told_from_nothing() -> None:
    audit = audited(scored(np.arange(1000)), included=np.ones(1000, bool), design="runs")
    assert audit.verdict == "inconclusive"
    assert "All runs are in one group" in audit.summary


def test_a_broken_attack_beside_a_good_one_does_not_hide_it() -> None:
    audit = audited(scored(np.full(1000, np.nan), "broken"), scored(HALF, "good"))
    assert audit.verdict == "fail"
    assert [item.fault is None for item in audit.attacks] == [False, True]
    assert audited(scored(np.full(1000, np.nan), "broken"), scored(np.arange(1000))).verdict == "pass"


def test_only_canaries_are_publishable() -> None:
    assert own.NOTICE in audited(scored(HALF), publishable=False).summary
    assert own.NOTICE not in audited(scored(HALF)).summary


@pytest.mark.parametrize("design", ["coins", "runs", "groups"])
def test_a_report_survives_json(design: Any) -> None:
    audit = audited(scored(HALF), scored(np.zeros(1000), "constant"), design=design)
    document = json.loads(json.dumps(audit.to_json(), allow_nan=False))
    assert OwnAudit.from_json(document) == audit
    assert document["format"] == own.FORMAT
    with pytest.raises(AccountingError, match="cannot be read"):
        OwnAudit.from_json(document | {"attacks": None})


@pytest.mark.parametrize("wrong", [{"epsilon": 0.0}, {"epsilon": float("nan")}, {"delta": 0.0}, {"confidence": 1.0}])
def test_impossible_claims_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(AccountingError, match="accepted: epsilon > 0"):
        audited(scored(HALF), **wrong)


def read(table: pa.Table, **changed: Any) -> tuple[list[Scored], Any]:
    return read_scores(table, **({"included": "included", "names": [], "share_in": 0.1, "share_out": 0.2} | changed))


def test_scores_survive_their_table() -> None:
    kept = [scored(np.arange(1000) / 3, "one"), scored(np.where(HALF, np.nan, 1.0), "two")]
    back, included = read(scores_table(kept, HALF))
    assert [item.attack.name for item in back] == ["one", "two"]
    assert (included == HALF).all()
    assert all(np.array_equal(item.scores, old.scores, equal_nan=True) for item, old in zip(back, kept, strict=True))
    assert back[0].attack.guesses(1000) == (100, 200)


def test_who_was_in_may_be_said_by_ones_and_missing_scores_are_no_numbers() -> None:
    table = pa.table({"in": [1, 0, 1], "score": pa.array([1, None, 3]), "name": ["a", "b", "c"]})
    back, included = read(table, included="in")
    assert [item.attack.name for item in back] == ["score"]
    assert included.tolist() == [True, False, True]
    assert np.isnan(back[0].scores[1])


@pytest.mark.parametrize(
    ("table", "changed", "words"),
    [
        ({"included": [], "score": []}, {}, "no rows"),
        ({"score": [1.0]}, {}, "no column 'included'"),
        ({"included": [True]}, {}, "no column holds numbers"),
        ({"included": [True], "score": [1.0]}, {"names": ["other"]}, "no column 'other'"),
        ({"included": [True], "score": ["secret"]}, {"names": ["score"]}, "holds no numbers"),
        ({"included": [True, None], "score": [1.0, 2.0]}, {}, "has other values or gaps"),
        ({"included": ["secret"], "score": [1.0]}, {}, "has other values or gaps"),
        ({"included": [0.5], "score": [1.0]}, {}, "has other values or gaps"),
    ],
)
def test_tables_that_are_no_scores_are_refused_without_a_value(
    table: dict[str, Any], changed: dict[str, Any], words: str
) -> None:
    with pytest.raises(SourceError, match=words) as caught:
        read(pa.table(table), **changed)
    assert "secret" not in str(caught.value)


@pytest.fixture
def people() -> Callable[[int], pa.Table]:
    rng = np.random.default_rng()

    def make(count: int) -> pa.Table:
        return pa.table(
            {
                "age": pa.array(rng.integers(0, 90, count), mask=rng.random(count) < 0.1),
                "job": rng.choice(list("abcdefghij"), count),
                "code": rng.integers(0, 12, count),
                "wage": rng.gamma(2.0, 20.0, count),
            }
        )

    return make


def test_tables_of_ones_own_come_onto_common_cells(people: Callable[[int], pa.Table]) -> None:
    tables = {MEMBERS: people(300), OTHERS: people(200), REFERENCE: people(400), SYNTHETIC: people(250)}
    evidence = table_evidence(tables, ["code"], canaries=True)
    assert (evidence.target_codes.shape, evidence.synthetic_codes.shape) == ((500, 4), (250, 4))
    assert membership(tables).tolist() == [True] * 300 + [False] * 200
    same = table_evidence(
        {MEMBERS: tables[MEMBERS], OTHERS: tables[OTHERS], SYNTHETIC: tables[MEMBERS]}, [], canaries=True
    )
    assert (same.target_codes[:300] == same.synthetic_codes).all()
    assert same.publishable and not evidence.publishable
    assert not table_evidence(
        {name: tables[name] for name in tables if name != REFERENCE}, [], canaries=False
    ).publishable
