"""The attacks' arithmetic, on evidence made by hand."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from scipy import stats
from sklearn.metrics import roc_auc_score

from dpsynth_platform.audit.tables import ATTACKS, Evidence, attacks
from dpsynth_platform.audit.tables.agreement import agreeing_rows, draw_queries
from dpsynth_platform.audit.tables.attributes import infer_attribute
from dpsynth_platform.audit.tables.copies import count_copies
from dpsynth_platform.audit.tables.density import density_ratio_scores
from dpsynth_platform.audit.tables.lira import offline_scores, online_scores
from dpsynth_platform.audit.tables.meta_classifier import meta_scores
from dpsynth_platform.audit.tables.rmia import relative_scores
from dpsynth_platform.foundation.errors import AccountingError
from dpsynth_platform.synth.tabular.domain import ColumnDomain, Domain

VALUES = tuple("abcdef")
DOMAIN = Domain(
    (
        ColumnDomain("job", "categorical", True, values=VALUES),
        ColumnDomain("age", "integer", False, edges=(0, 10, 20, 30, 40)),
        ColumnDomain("ill", "boolean", False),
    )
)


def table(job: np.ndarray, age: np.ndarray, ill: np.ndarray) -> pa.Table:
    return pa.table({"job": np.array(VALUES)[job], "age": age, "ill": ill.astype(bool)})


def random_rows(rows: int, seed: int) -> pa.Table:
    rng = np.random.default_rng(seed)
    return table(rng.integers(0, 6, rows), rng.integers(0, 40, rows), rng.random(rows) < 0.5)


def half(models: int, targets: int) -> np.ndarray:
    return np.random.default_rng(1).random((models, targets)).argsort(axis=0) < models // 2


def test_lira_is_the_ratio_of_two_normal_laws() -> None:
    """Each target has its own level and deviation; with so many models both are known."""
    included, rng = half(400, 300), np.random.default_rng(2)
    level, deviation = np.linspace(-30, -10, 300), np.linspace(0.5, 4, 300)
    shadows = level + deviation * (2 * included + rng.normal(size=(400, 300)))
    signals = level + deviation * rng.normal(size=300)
    expected = stats.norm.logpdf(signals, level + 2 * deviation, deviation) - stats.norm.logpdf(
        signals, level, deviation
    )
    assert online_scores(signals, shadows, included) == pytest.approx(expected, rel=0.2, abs=1.0)
    assert offline_scores(signals, shadows, included) == pytest.approx((signals - level) / deviation, rel=0.2, abs=0.5)


def test_a_few_shadow_models_lean_on_what_is_the_same_for_all_targets() -> None:
    included, rng = half(8, 2000), np.random.default_rng(3)
    coins, level = np.arange(2000) % 2 == 0, np.linspace(-30, -10, 2000)
    shadows = level + included + rng.normal(size=(8, 2000))
    signals = level + coins + rng.normal(size=2000)
    assert roc_auc_score(coins, online_scores(signals, shadows, included)) > 0.68, "0.76 is the most"
    assert roc_auc_score(coins, offline_scores(signals, shadows, included)) > 0.65


def test_shadow_models_that_all_agree_are_no_division_by_zero() -> None:
    included = half(4, 5)
    same = np.tile(np.arange(5.0), (4, 1))
    for scores in (online_scores, offline_scores):
        assert np.isfinite(scores(np.arange(5.0), same, included)).all()


def test_rmia_counts_the_references_that_a_target_beats() -> None:
    rng = np.random.default_rng(3)
    ratios, known = rng.normal(size=50), rng.normal(size=400)
    expected = (np.exp(ratios)[:, None] >= 2 * np.exp(known)).mean(axis=1)
    inside = (ratios > known.min() + np.log(2)) & (ratios < known.max() + np.log(2))
    assert relative_scores(ratios, known, gamma=2.0)[inside] == pytest.approx(expected[inside])
    beyond = relative_scores(np.array([20.0, 10.0, 0.0, -10.0, -20.0]), known)
    assert (np.diff(beyond) < 0).all(), "who beats all or none keeps an order"


def test_agreement_is_counted_as_by_brute_force() -> None:
    rng = np.random.default_rng(4)
    targets, rows = rng.integers(0, 3, (40, 5)).astype(np.int32), rng.integers(0, 4, (200, 5)).astype(np.int32)
    queries = draw_queries(5, rng)
    assert len(set(queries)) == len(queries)
    assert {len(query) for query in queries} == {1, 2, 3, 4, 5}
    for place, query in enumerate(queries):
        same = (targets[:, None, query] == rows[None, :, query]).all(axis=2).sum(axis=1)
        assert (agreeing_rows(targets, rows, queries)[:, place] == same).all()


def test_the_meta_classifier_learns_what_a_target_adds_and_not_how_common_it_is() -> None:
    rng = np.random.default_rng(5)
    included, usual = half(20, 400), rng.uniform(0, 50, (400, 6))
    coins = np.arange(400) % 2 == 0
    add = np.array([3.0, 0, 0, 3.0, 0, 0])
    shadows = rng.poisson(usual + included[:, :, None] * add)
    scores = meta_scores(rng.poisson(usual + coins[:, None] * add).astype(float), shadows.astype(float), included)
    assert roc_auc_score(coins, scores) > 0.65
    nothing = meta_scores(rng.poisson(usual).astype(float), shadows.astype(float), included)
    assert abs(roc_auc_score(coins, nothing) - 0.5) < 0.15


def test_a_density_ratio_is_high_where_the_release_crowds_and_the_population_does_not() -> None:
    codes = DOMAIN.encode(random_rows(500, 6))
    crowded = np.array([[2, 1, 1]], dtype=np.int32)
    release = np.concatenate([codes[:300], np.repeat(crowded, 300, axis=0)])
    scores = density_ratio_scores(DOMAIN, np.concatenate([crowded, codes[:50]]), release, codes)
    assert scores[0] > 0.5
    assert scores[0] >= scores.max()


def test_an_attribute_is_inferred_where_the_release_tells_more_than_people_do() -> None:
    """In the release, illness follows from the job; in the population it does not."""
    targets = random_rows(60, 7)
    truth = np.isin(targets["job"].to_numpy(), ["a", "c", "e"])
    targets = targets.set_column(2, "ill", pa.array(truth))
    release = random_rows(800, 8)
    release = release.set_column(2, "ill", pa.array(np.isin(release["job"].to_numpy(), ["a", "c", "e"])))
    evidence = Evidence(DOMAIN, targets, release, reference=random_rows(800, 9))
    found = infer_attribute(evidence, "ill")
    assert found.right_from_release.all()
    assert found.advantage > 0.2
    assert (found.scores > 0).all()
    same = infer_attribute(Evidence(DOMAIN, targets, release, reference=release), "ill")
    assert same.advantage == 0
    constant = release.set_column(2, "ill", pa.array([True] * 800))
    assert infer_attribute(Evidence(DOMAIN, targets, constant, reference=release), "ill").right_from_release.mean() < 1
    with pytest.raises(AccountingError, match="reference table of people"):
        infer_attribute(Evidence(DOMAIN, targets, release), "ill")


def test_copies_are_held_against_copies_of_others() -> None:
    members = np.array([[0, 0, 0]] * 30 + [[1, 1, 1]] * 10, dtype=np.int32)
    others = np.array([[0, 0, 0]] * 3 + [[5, 3, 0]] * 37, dtype=np.int32)
    release = np.array([[0, 0, 0], [1, 1, 0]], dtype=np.int32)
    exact = count_copies(members, others, release)
    assert (exact.members, exact.held_out) == (30, 3)
    assert exact.excess == pytest.approx(27 / 40)
    assert exact.p_value == pytest.approx(stats.fisher_exact([[30, 10], [3, 37]], "greater").pvalue)
    near = count_copies(members, others, release, columns_off=1)
    assert (near.members, near.held_out) == (40, 3)
    with pytest.raises(AccountingError, match="held-out"):
        count_copies(members, others[:0], release)


def test_attacks_run_that_the_evidence_allows() -> None:
    alone = Evidence(DOMAIN, random_rows(40, 10), random_rows(90, 11))
    assert [scored.attack.name for scored in attacks(alone)] == ["nearest rows"]
    beside = Evidence(DOMAIN, random_rows(40, 10), random_rows(90, 11), reference=random_rows(80, 12))
    assert [scored.attack.name for scored in attacks(beside)] == ["density ratio", "nearest rows"]
    assert all(np.isfinite(scored.scores).all() and scored.scores.shape == (40,) for scored in attacks(beside))
    assert all(sum(entry.attack.guesses(20)) >= 4 for entry in ATTACKS.values())
    with pytest.raises(AccountingError, match="no attack is called 'oracle'"):
        attacks(alone, ["oracle"])
    for name, entry in ATTACKS.items():
        if entry.needs - alone.held:
            with pytest.raises(AccountingError, match=r"lacks a|lacks s"):
                attacks(alone, [name])


def test_only_canaries_without_a_table_of_people_are_publishable() -> None:
    targets, release = random_rows(40, 13), random_rows(90, 14)
    assert Evidence(DOMAIN, targets, release, canaries=True).publishable
    assert not Evidence(DOMAIN, targets, release).publishable
    assert not Evidence(DOMAIN, targets, release, reference=release, canaries=True).publishable


def test_evidence_that_is_none_is_refused() -> None:
    good = random_rows(10, 15)
    for wrong in ({"targets": good.slice(0, 0)}, {"synthetic": good.drop_columns(["age"])}, {"records_per_target": 0}):
        with pytest.raises(AccountingError, match="accepted"):
            Evidence(**({"domain": DOMAIN, "targets": good, "synthetic": good} | wrong))
