"""The attack on answers: it refutes a mechanism without noise, and not one with the noise that is paid for."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pyarrow.compute as pc
import pytest
from scipy import stats
from synth_cases import SCHEMA, contract_with, grant_for, write_bounded

from dpsynth_platform.audit.answer_scoring import score_answers
from dpsynth_platform.audit.canaries import CanarySet, make_canaries
from dpsynth_platform.audit.verdict import judge
from dpsynth_platform.privacy.guarantee import Guarantee
from dpsynth_platform.synth.answers import generator as answering
from dpsynth_platform.synth.interface import SealedPlan, generator

CANARIES = 480
QUERIES = {
    "fine": {"count": True, "by": ["age", "city", "member", "day", "score"]},
    "ages": {"quantiles": {"age": [0.5]}, "by": ["city"]},
    "scores": {"mean": ["score"], "by": ["age", "day"], "where": {"member": [True]}},
}


def asked(epsilon: float):
    return contract_with(
        kind="answers",
        queries=QUERIES,
        generate=None,
        audit={"canaries": CANARIES, "max_epsilon_lower_bound": epsilon},
        privacy__guarantee={"epsilon": epsilon, "delta": 1e-5},
    )


def attacked(contract, tmp_path: Path) -> tuple[CanarySet, SealedPlan, Path]:
    """A model of the included canaries alone: what is asked has no other rows to hide among."""
    canaries = make_canaries(contract, SCHEMA, CANARIES, 2, None)
    plan = generator("answers").plan(contract, SCHEMA, Guarantee.target(contract))
    directory = tmp_path / "model"
    directory.mkdir()
    bounded = write_bounded(canaries.joining, tmp_path / "bounded")
    generator("answers").fit(plan, bounded, grant_for(plan), directory)
    return canaries, plan, directory


def test_answers_without_noise_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Some 240 canaries did not join, most of which no other is like: the 96 guesses are right."""
    monkeypatch.setattr(answering, "sample_rounded_gaussian", lambda values, sigma: values)
    contract = asked(1.0)
    canaries, plan, model = attacked(contract, tmp_path)
    scored = score_answers(canaries, plan, model)
    assert scored.scores[canaries.included].min() > 0
    report = judge(contract, None, canaries.included, [scored])
    assert report.verdict == "fail", report.summary


def test_answers_with_their_noise_are_not_refuted(tmp_path: Path) -> None:
    """A guess is right with a chance of at most e / (1 + e), whatever the others are: 93 of 96 with one of 1e-9."""
    canaries, plan, model = attacked(asked(1.0), tmp_path)
    scored = score_answers(canaries, plan, model)
    lowest = np.argsort(scored.scores, kind="stable")[: scored.attack.guesses(CANARIES)[1]]
    assert len(lowest) == 96
    assert int((~canaries.included[lowest]).sum()) < 93
    assert stats.binom.sf(92, 96, math.e / (1 + math.e)) < 1e-7


def test_canaries_with_the_same_groups_are_duplicates(tmp_path: Path) -> None:
    contract = asked(1.0)
    canaries, plan, model = attacked(contract, tmp_path)
    scored = score_answers(canaries, plan, model)
    assert scored.duplicates is not None
    rows = canaries.values.to_pylist()
    same = np.array([str((row["age"], row["city"], row["member"])) for row in rows])
    for number in np.unique(scored.duplicates):
        assert len(set(same[scored.duplicates == number])) == 1


def test_what_canaries_add_is_subtracted_from_the_answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answering, "sample_rounded_gaussian", lambda values, sigma: values)
    canaries, _, model = attacked(asked(1.0), tmp_path)
    with_them, without = (answering.answered(model, known).table() for known in (None, canaries.joining))
    counts = [table.filter(pc.equal(table["measure"], "count"))["answer"] for table in (with_them, without)]
    assert pc.sum(counts[0]).as_py() == canaries.joining.num_rows
    assert set(counts[1].to_pylist()) == {0.0}
