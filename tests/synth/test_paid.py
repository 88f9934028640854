"""Bought measures: what one unit moves, what they cost, that they are drawn once, and the mistakes that would show."""

import collections
import functools
import itertools
import json
import math

import numpy as np
import pyarrow as pa
import pytest
import xgboost
from audit_cases import (
    categories,
    chance_to_miss,
    gaussian_delta,
    gaussian_epsilon,
    plan_for,
    proven_epsilon,
    table_of,
)
from scipy import stats
from synth_cases import SCHEMA, contract_with, grant_for, people, write_bounded

from dpsynth_platform.foundation.errors import ContractError, GrantRefused, MechanismFailed
from dpsynth_platform.privacy.accounting import epsilon
from dpsynth_platform.privacy.events import GaussianMeasuresEvent, event_from_json, leaves
from dpsynth_platform.privacy.guarantee import Guarantee
from dpsynth_platform.privacy.selection import PrecisionBudget
from dpsynth_platform.privacy.units import RECORD_PARTS, count_sensitivity
from dpsynth_platform.release.paid import published
from dpsynth_platform.synth.interface import TABLE_METHODS, SealedPlan, generator
from dpsynth_platform.synth.tabular import paid
from dpsynth_platform.synth.tabular.counting import Records
from dpsynth_platform.synth.tabular.domain import Domain

BOTH = ["pairs", "accuracy"]


def plan_with(method="independent", measures=BOTH, share=0.05, quality=None, **changes):
    bought = {"target": "city", **(quality or {}), "paid": {"measures": measures, "share": share}}
    contract = contract_with(generate__method=method, quality=bought, **changes)
    return generator(method).plan(contract, SCHEMA, Guarantee.target(contract))


# What it costs.


@pytest.mark.parametrize("method", [name for name in TABLE_METHODS if name != "jam"])
def test_every_method_shares_its_guarantee_with_measures(method):
    plan = plan_with(method, share=0.1)
    guarantee, event = Guarantee.from_json(plan.guarantee), event_from_json(plan.event)
    assert 0.98 * guarantee.epsilon < epsilon(event, guarantee.delta).epsilon <= guarantee.epsilon
    sealed = paid.SealedMeasures.in_plan(plan)
    assert [leaf.sigma for leaf, _ in leaves(event) if isinstance(leaf, GaussianMeasuresEvent)] == [sealed.sigma]
    bought = guarantee.sensitivity.l2_squared / (2 * sealed.sigma**2)
    assert bought / (bought + plan.parameters["rho"]) == pytest.approx(0.1, rel=1e-3)
    generator(method).check(plan)
    described = generator(method).describe(plan)
    assert "then measures of quality (accuracy and pairs of 50,000 rows" in described["event"]
    cheaper = plan.parameters[paid.PAID] | {"sigma": sealed.sigma / 2}
    with pytest.raises(GrantRefused):
        generator(method).check(SealedPlan(**vars(plan) | {"parameters": plan.parameters | {paid.PAID: cheaper}}))


@pytest.mark.parametrize(("adjacency", "b"), [("add-or-remove", 2), ("zero-out", 1), ("replace-one", 2)])
def test_the_whole_is_the_closed_form_of_its_noise(adjacency, b):
    """Of `independent` all noise is Gaussian, so the whole is one Gaussian mechanism (Balle & Wang 2018)."""
    plan = plan_with(privacy__adjacency=adjacency, privacy__max_contributions=b)
    replaced = adjacency == "replace-one"
    counts, distance = (math.sqrt(2) * b, 2 * b) if replaced else (b, b)
    noises = paid.SealedMeasures.in_plan(plan).noises
    records, sample = records_of([[(0, 0, 0)]], tiny_domain()), table_of(TINY, np.zeros((1, 3), int))
    bound = Guarantee.from_json(plan.guarantee).sensitivity
    drawn = paid.noisy_pairs(records, sample, 1.0, noises["pairs"], bound)
    moved = counts / plan.parameters["sigma_total"], counts / noises["accuracy"], distance / drawn["noise"]
    assert 3.98 < gaussian_epsilon(math.hypot(*moved), 1e-5) <= 4.0


def test_all_measures_stay_within_their_precision():
    for sigma in (0.5, 9.671875, 1234.5):
        sealed = paid.SealedMeasures(sorted(BOTH), 0.05, sigma, 100, "city", [])
        left = PrecisionBudget.of(sigma)
        for each in sealed.noises.values():
            left = left.spend(each)  # refuses more than there is
        assert left.left < 0.01 * PrecisionBudget.of(sigma).left


def test_learned_values_come_first_and_measures_last():
    plan = plan_with(columns__city={"type": "categorical", "values": "learned", "most": 5, "nullable": True})
    kinds = [part["kind"] for part in plan.event["events"]]
    assert kinds == ["thresholded-gaussian-counts", "composed", "gaussian-measures"]


def test_plans_without_measures_are_as_they_were():
    contract = contract_with(generate__method="mst")
    plan = generator("mst").plan(contract, SCHEMA, Guarantee.target(contract))
    assert paid.PAID not in plan.parameters and "paid" not in contract.mechanism_snapshot()
    assert "paid" not in contract.snapshot()["quality"]


def test_constraints_are_sealed_with_measures():
    """The sample keeps them, so that changed ones are another run."""
    rule = {"generate__constraints": [{"forbid": {"age": 9, "city": "Aix"}}]}
    plans = [plan_with(), plan_with(**rule)]
    assert plans[0].digest != plans[1].digest
    assert plans[0].mechanism_digest != plans[1].mechanism_digest
    assert paid.SealedMeasures.in_plan(plans[1]).kept == contract_with(**rule).generate.constraints


# What one unit moves, by brute force: all that up to b = 2 records of a person can be, in a table of 2 x 2 x 3 cells.

TINY = categories(a=2, b=2, c=3)
CELLS = list(itertools.product(range(2), range(2), range(3)))
PERSON = [mine for number in range(3) for mine in itertools.combinations_with_replacement(CELLS, number)]


def tiny_domain():
    return Domain.from_json(plan_for("independent", TINY, epsilon=1.0, b=2).columns)


def records_of(owners, domain, weighting="rows"):
    codes = np.array([record for mine in owners for record in mine], dtype=np.int64).reshape(-1, 3)
    ids = [f"{number:032x}" for number, mine in enumerate(owners, start=1) for _ in mine]
    return Records(table_of(TINY, codes).append_column("_owner", pa.array(ids, pa.string())), domain, weighting)


@pytest.fixture
def few_trees(monkeypatch):
    monkeypatch.setattr(xgboost, "XGBClassifier", functools.partial(xgboost.XGBClassifier, n_estimators=3))


@pytest.mark.usefixtures("few_trees")
@pytest.mark.parametrize("weighting", ["rows", "owners"])
def test_over_all_neighbours_measures_move_by_the_claimed_lengths_and_no_more(weighting):
    """As far as claimed, so that half of it, or a forgotten b, would be found."""
    domain, rng = tiny_domain(), np.random.default_rng(5)
    farthest = collections.Counter()
    for drawn in range(2):
        # The sample lacks a value that records have; its rows are linked, so that the classifier learns something.
        sample = rng.integers(0, (2, 2, 2), (60, 3))
        sample[:, 0] = sample[:, 1] if drawn else 1
        others = [[tuple(record)] for record in rng.integers(0, (2, 2, 3), (rng.integers(0, 9), 3))]
        total = float(rng.uniform(1, 12))
        cells, distances = [], []
        for mine in PERSON:
            records = records_of([*others, mine], domain, weighting)
            cells.append(paid.exact_accuracy(records, table_of(TINY, sample), "a").ravel() / records.parts)
            distances.append(paid.exact_pairs(records, table_of(TINY, sample), total))
        cells, distances = np.array(cells), np.array(distances)
        assert np.all(cells[1:].sum(axis=1) > cells[0].sum())
        for adjacency, moved, far in (
            ("add-or-remove", cells - cells[0], distances - distances[0]),
            ("replace-one", (cells[:, None] - cells).reshape(-1, 4), (distances[:, None] - distances).ravel()),
        ):
            bound = count_sensitivity(adjacency, 2, weighting)
            lengths = np.abs(moved).sum(axis=1).max() / bound.l1, (moved**2).sum(axis=1).max() / bound.l2_squared
            steps = np.abs(far).max() / (bound.l1 * RECORD_PARTS)
            assert max(*lengths, steps) <= 1
            for name, reached in (("l2", lengths[1]), ("pairs", steps)):
                farthest[adjacency, name] = max(farthest[adjacency, name], reached)
    assert farthest["add-or-remove", "l2"] == farthest["add-or-remove", "pairs"] == farthest["replace-one", "l2"] == 1
    assert farthest["replace-one", "pairs"] > 0.6


NUMBERS = {"a": {"type": "integer", "min": 0, "max": 4}, "b": {"type": "integer", "min": 0, "max": 1}}


def numbers_of(owners):
    """Records of a number and what goes with it; None is missing, and 9 beyond the declared range."""
    rows = [record for mine in owners for record in mine]
    ids = [f"{number:032x}" for number, mine in enumerate(owners, start=1) for _ in mine]
    columns = {name: pa.array([row[place] for row in rows], pa.int64()) for place, name in enumerate(NUMBERS)}
    return pa.table(columns | {"_owner": pa.array(ids, pa.string())})


@pytest.mark.parametrize("weighting", ["rows", "owners"])
def test_over_all_neighbours_errors_move_by_the_claimed_lengths_and_no_more(weighting, monkeypatch):
    """As far as claimed: errors are all or nothing where a record and the prediction are at the range's two ends."""
    monkeypatch.setattr(xgboost, "XGBRegressor", functools.partial(xgboost.XGBRegressor, n_estimators=3))
    domain = Domain.from_json(plan_for("independent", NUMBERS, epsilon=1.0, b=2).columns)
    cells = list(itertools.product([None, 0, 1, 3, 4, 9], range(2)))
    people = [mine for number in range(3) for mine in itertools.combinations_with_replacement(cells, number)]
    farthest = collections.Counter()
    for sample in ([(0, 0), (4, 1)] * 30, [(0, 0), (0, 1)] * 30, [(None, 0)] * 5):
        others, drawn = [[(3, 1)], [(1, 0)]], numbers_of([sample]).drop_columns("_owner")
        tables = (numbers_of([*others, mine]) for mine in people)
        found = [paid.exact_regression(Records(table, domain, weighting), drawn, "a").ravel() for table in tables]
        moved = np.array(found) - found[0]
        for adjacency, steps in (("add-or-remove", moved), ("replace-one", (moved[:, None] - moved).reshape(-1, 4))):
            bound = count_sensitivity(adjacency, 2, weighting)
            steps = steps / RECORD_PARTS
            assert np.abs(steps).sum(axis=1).max() <= bound.l1
            reached = (steps**2).sum(axis=1).max() / bound.l2_squared
            farthest[adjacency] = max(farthest[adjacency], reached)
        assert np.all(moved >= 0)
    assert farthest == {"add-or-remove": 1, "replace-one": 1}


def test_errors_by_hand():
    """The median is 0; the regressor learns 4 b, or nearly. 9 counts as 4, and a missing number is no error."""
    domain = Domain.from_json(plan_for("independent", NUMBERS, epsilon=1.0, b=2).columns)
    drawn = numbers_of([[(0, 0)] * 300 + [(4, 1)] * 200]).drop_columns("_owner")
    records = Records(numbers_of([[(0, 0)], [(9, 1)], [(1, 0)], [(None, 1)], [(2, 1)]]), domain)
    (neither, usual), (model, both) = paid.exact_regression(records, drawn, "a") / RECORD_PARTS
    assert neither + usual + model + both == 4
    assert neither + model == pytest.approx(0 + 1 + 0.25 + 0.5, abs=1e-4)
    assert neither + usual == pytest.approx(0 + 0 + 0.25 + 0.5, abs=0.01)
    assert neither == pytest.approx(0.25**2 + 0.5**2, abs=0.01)


def test_a_regressor_is_measured_beside_pairs(tmp_path, monkeypatch):
    monkeypatch.setattr(paid, "ROWS", 1500)
    monkeypatch.setattr(xgboost, "XGBRegressor", functools.partial(xgboost.XGBRegressor, n_estimators=3))
    plan = plan_with(measures=["regression", "pairs"], quality={"target": "age", "task": "regression"})
    model = tmp_path / "model"
    model.mkdir()
    generator("independent").fit(plan, write_bounded(people(1500), tmp_path / "bounded"), grant_for(plan), model)
    drawn = generator("independent").draw(model, 10).paid
    assert [item["name"] for item in drawn["measures"]] == ["pairs", "regression"]
    assert drawn["measures"][1]["target"] == "age" and abs(np.sum(drawn["measures"][1]["noisy"]) - 1500) < 500
    said = published(drawn, canaries=False)["measures"][1]["in_words"]
    assert "of the declared range of age, on average over the records" in said


def test_measures_by_hand():
    domain = tiny_domain()
    records = records_of([[(0, 0, 0)], [(0, 1, 0)], [(1, 1, 1)], [(1, 0, 2)]], domain)
    sample = table_of(TINY, np.array([[0, 0, 0], [1, 1, 1]] * 50 + [[1, 1, 1]]))
    # a follows b in the sample and c does too: the classifier is right where b or c says so; 1 is usual.
    cells = paid.exact_accuracy(records, sample, "a")
    assert cells.sum() == 4 and cells.sum(axis=0).tolist() == [2, 2]
    # Per pair: counts of 4 records less 4/101 of (50, 51), in 1/65536 record.
    even = table_of(TINY, np.array([[0, 0, 0], [1, 1, 1]]))
    by_hand = [1 + 1 + 1 + 1, 0 + 1 + 1, 1 + 1 + 1 + 1]  # |counts - (2, 2)| of (a, b), (a, c), (b, c)
    assert paid.exact_pairs(records, even, 4.0) == sum(by_hand) * RECORD_PARTS // 3


def test_what_chance_alone_makes_of_pairs():
    """Of n records, half in either of two cells, a share is off by sqrt(1 / 2 pi n) on average: 0.0126, +-0.0095.

    Pairs are drawn by themselves: of 300 runs of three, the mean has a deviation of 0.00033.
    """
    sample = table_of(TINY, np.array([[0, 0, 0], [1, 1, 1]] * 50))
    found = np.mean([paid.by_chance(tiny_domain(), sample, 1000) for _ in range(300)])
    assert found == pytest.approx(math.sqrt(1 / (2 * math.pi * 1000)), abs=6 * 0.00033)


# Audit: one person of b records, thousands of times in and out, and an attacker who knows all else.

B, TRIALS, MISS, SHOWN, THRESHOLD = 4, 20_000, 1e-7, 1.0, 0.8


def moved_by_one():
    """Exact measures without the person and with b records of cells that the sample lacks; all of it computed."""
    domain = tiny_domain()
    sample = table_of(TINY, np.array([[1, 1, 1], [0, 0, 0]] * 40))
    others = [[(0, 0, 0)]] * 30
    tables = (records_of(owners, domain) for owners in (others, [*others, [(1, 0, 2)] * B]))
    return domain, [
        (paid.exact_accuracy(records, sample, "a"), paid.exact_pairs(records, sample, 60.0)) for records in tables
    ]


def proven(monkeypatch, plan, noises):
    """What the likelihood ratio by the plan's noise proves at the delta at which the plan claims `SHOWN`."""
    sealed, bound = paid.SealedMeasures.in_plan(plan), Guarantee.from_json(plan.guarantee).sensitivity
    domain, ((cells, distance), (more_cells, farther)) = moved_by_one()
    step, length = more_cells - cells, (farther - distance) / RECORD_PARTS
    records = Records(pa.table({}), domain)
    coins = np.random.default_rng().random(TRIALS) < 0.5
    exact = iter(np.where(coins, farther, distance).tolist())
    with monkeypatch.context() as patch:
        patch.setattr(paid, "exact_accuracy", lambda *given: np.where(coins[:, None, None], more_cells, cells))
        patch.setattr(paid, "exact_pairs", lambda *given: next(exact))
        seen = np.array(paid.noisy_accuracy(records, None, "a", noises["accuracy"])["noisy"]) - cells
        far = [paid.noisy_pairs(records, None, 1.0, noises["pairs"], bound)["noisy"] for _ in coins]
    scores = (step * (seen - step / 2)).sum(axis=(1, 2)) / sealed.noises["accuracy"] ** 2
    scores += length * (np.array(far) - distance / RECORD_PARTS - length / 2) / sealed.noises["pairs"] ** 2
    mu = bound.l2 / sealed.sigma
    return proven_epsilon(scores, coins, threshold=THRESHOLD, delta=gaussian_delta(mu, SHOWN)), mu


def missed(mu, factor, claimed):
    """The chance that the attack proves no more than `claimed`, where noise is `factor` times the plan's."""
    least = TRIALS // 2 - math.ceil(6.5 * math.sqrt(TRIALS) / 2)  # of the coins, but for a chance of 1e-10
    return chance_to_miss(
        members=least,
        others=least,
        true_rate=stats.norm.cdf((mu**2 / 2 - THRESHOLD) / (factor * mu)),
        false_rate=stats.norm.cdf((-(mu**2) / 2 - THRESHOLD) / (factor * mu)),
        delta=gaussian_delta(mu, SHOWN),
        claimed=claimed,
    )


def audited_plan():
    quality = {"target": "a", "paid": {"measures": BOTH, "share": 0.5}}
    contract = contract_with(
        columns={"person_id": {"type": "identifier"}, **TINY},
        generate={"method": "independent", "rows": 100},
        privacy__max_contributions=B,
        privacy__guarantee={"epsilon": 8.0, "delta": 1e-5},
        quality=quality,
    )
    schema = pa.schema({"person_id": pa.string(), **dict.fromkeys(TINY, pa.string())})
    return generator("independent").plan(contract, schema, Guarantee.target(contract))


@pytest.mark.usefixtures("few_trees")
def test_an_attack_proves_nearly_what_is_claimed_and_mistakes_prove_more(monkeypatch):
    """A false alarm has a chance of 1e-7 for each audit (`FALSE_ALARM`); planted mistakes are missed below `MISS`.

    The person moves both measures as far as any can, so that the attack is the best there is.
    """
    plan = audited_plan()
    noises = paid.SealedMeasures.in_plan(plan).noises
    _, (out, inside) = moved_by_one()
    assert np.abs(inside[0] - out[0]).max() == B and inside[1] - out[1] == B * RECORD_PARTS
    found, mu = proven(monkeypatch, plan, noises)
    assert missed(mu, 1.0, 0.35) < MISS
    assert 0.35 < found <= SHOWN
    # Each measure gets the precision of both: noise is less by sqrt(2). And noise for one record of a person's four.
    assert missed(mu, 1 / math.sqrt(2), SHOWN) < MISS
    for factor in (1 / math.sqrt(2), 1 / B):
        small = {name: sigma * factor for name, sigma in noises.items()}
        assert proven(monkeypatch, plan, small)[0] > SHOWN


def test_an_attack_on_errors_of_a_number_proves_nearly_what_is_claimed(monkeypatch):
    """As above: a person's b records are at the other end of the range than the prediction and the median."""
    monkeypatch.setattr(xgboost, "XGBRegressor", functools.partial(xgboost.XGBRegressor, n_estimators=3))
    contract = contract_with(
        columns={"person_id": {"type": "identifier"}, **NUMBERS},
        generate={"method": "independent", "rows": 100},
        privacy__max_contributions=B,
        privacy__guarantee={"epsilon": 8.0, "delta": 1e-5},
        quality={"target": "a", "task": "regression", "paid": {"measures": ["regression"], "share": 0.5}},
    )
    schema = pa.schema({"person_id": pa.string(), **dict.fromkeys(NUMBERS, pa.int64())})
    plan = generator("independent").plan(contract, schema, Guarantee.target(contract))
    sealed, domain = paid.SealedMeasures.in_plan(plan), Domain.from_json(plan.columns)
    drawn = numbers_of([[(0, 0)] * 60]).drop_columns("_owner")
    tables = (numbers_of([[(0, 0)]] * 30 + extra) for extra in ([], [[(4, 1)] * B]))
    out, inside = (paid.exact_regression(Records(table, domain), drawn, "a") for table in tables)
    assert np.abs(inside - out).max() == B * RECORD_PARTS == np.abs(inside - out).sum()
    coins = np.random.default_rng().random(TRIALS) < 0.5
    monkeypatch.setattr(paid, "exact_regression", lambda *given: np.where(coins[:, None, None], inside, out))
    mu = Guarantee.from_json(plan.guarantee).sensitivity.l2 / sealed.sigma

    def proves(factor):
        noisy = paid.noisy_regression(Records(pa.table({}), domain), None, "a", sealed.noises["regression"] * factor)
        step, seen = (inside - out) / RECORD_PARTS, np.array(noisy["noisy"]) - out / RECORD_PARTS
        scores = (step * (seen - step / 2)).sum(axis=(1, 2)) / sealed.noises["regression"] ** 2
        return proven_epsilon(scores, coins, threshold=THRESHOLD, delta=gaussian_delta(mu, SHOWN))

    assert missed(mu, 1.0, 0.35) < MISS and missed(mu, 1 / B, SHOWN) < MISS
    assert 0.35 < proves(1.0) <= SHOWN < proves(1 / B)


# Once, of one model.


@pytest.fixture
def small_samples(monkeypatch):
    monkeypatch.setattr(paid, "ROWS", 1500)


@pytest.mark.usefixtures("small_samples", "few_trees")
def test_figures_are_drawn_once_and_stay_with_their_model(tmp_path, monkeypatch):
    plan = plan_with("independent")
    bounded = write_bounded(people(1500), tmp_path / "bounded")
    model = tmp_path / "model"
    model.mkdir()
    generator("independent").fit(plan, bounded, grant_for(plan), model)
    kept = json.loads((model / paid.FILE).read_text())
    drawn = generator("independent").draw(model, 10).paid
    assert drawn == {key: value for key, value in kept.items() if key != "model"}
    assert [item["name"] for item in drawn["measures"]] == ["accuracy", "pairs"]
    assert abs(sum(np.ravel(drawn["measures"][0]["noisy"])) - 1500) < 500
    sealed = paid.SealedMeasures.in_plan(plan)
    run = type("Run", (), {"plan": plan, "directory": model, "bounded": bounded})
    with pytest.raises(MechanismFailed, match="not drawn twice"):
        paid.measure(run, sealed, None)
    # The model that is fitted again is the same, or has no figures.
    generator("independent").estimate(plan, model)
    assert generator("independent").draw(model, 10).paid == drawn
    (model / paid.FILE).write_text(json.dumps(kept | {"model": "0" * 64}))
    assert "fitted again" in generator("independent").draw(model, 10).paid["not_available"]
    (model / paid.FILE).unlink()
    assert "interrupted" in generator("independent").draw(model, 10).paid["not_available"]


@pytest.mark.usefixtures("small_samples", "few_trees")
def test_figures_remain_where_noise_says_that_there_are_no_records(tmp_path, monkeypatch):
    plan = plan_with("independent")
    bounded, model = write_bounded(people(3), tmp_path / "bounded"), tmp_path / "model"
    model.mkdir()
    monkeypatch.setattr(paid, "estimate_total", lambda _: -5.0)
    generator("independent").fit(plan, bounded, grant_for(plan), model)
    figures = published(generator("independent").draw(model, 10).paid, canaries=False)["measures"]
    assert (figures[1]["low"], figures[1]["high"]) == (0.0, 1.0)


# Refusals.

DAY = {"target": "day", "paid": {"measures": ["accuracy"]}}
MOMENT = {"type": "datetime", "min": "2026-01-01T00:00", "max": "2026-12-31T23:00", "resolution": "1h", "bins": 12}


@pytest.mark.parametrize(
    ("quality", "changes", "said"),
    [
        ({"measures": []}, {}, "at least 1"),
        ({"measures": ["pairs", "pairs"]}, {}, "contains duplicates; accepted: each measure once"),
        ({"measures": ["f1"]}, {}, "'f1'"),
        ({"measures": ["pairs"], "share": 0.6}, {}, "0.5"),
        ({"measures": ["accuracy"]}, {}, "which needs a target of cells"),
        ({"measures": ["regression"]}, {}, "which needs a target of numbers"),
    ],
)
def test_contracts_that_cannot_be(quality, changes, said):
    with pytest.raises(ContractError) as refused:
        contract_with(quality={"paid": quality}, **changes)
    assert said in str(refused.value)


@pytest.mark.parametrize(
    ("target", "quality", "accepted"),
    [
        ("name", {}, "is not modelled; accepted: score, city, member"),
        ("town", {}, "is not declared; accepted: score, city, member"),
        ("town", {"task": "regression"}, "is not declared; accepted: age, score, day"),
    ],
)
def test_no_target_is_offered_that_would_be_refused_next(target, quality, accepted):
    measures = ["regression" if quality else "accuracy"]
    with pytest.raises(ContractError) as refused:
        contract_with(
            quality={"target": target, **quality, "paid": {"measures": measures}},
            columns__day__bins=60,
        )
    assert str(refused.value).endswith(f"quality.target: column {target!r} {accepted}")


def test_measures_of_too_much_or_too_little_are_refused_before_anything_is_spent(monkeypatch):
    monkeypatch.setattr(paid, "MOST_PAIR_CELLS", 10)
    with pytest.raises(ContractError, match="accepted: up to 10"):
        plan_with(measures=["pairs"])
    listed = "day, which has 60 values or bins; accepted: up to 50, so age, score, city, member; or pairs alone"
    with pytest.raises(ContractError, match=listed):
        plan_with(measures=["accuracy"], quality={"target": "day"}, columns__day__bins=60)
    columns = {"person_id": {"type": "identifier"}, "age": {"type": "integer", "min": 0, "max": 9}}
    with pytest.raises(ContractError, match="accepted: with two or more"):
        plan_with(measures=["accuracy"], quality={"target": "age"}, columns=columns)
    columns = {"person_id": {"type": "identifier"}, "at": MOMENT}
    with pytest.raises(ContractError, match="which has 60 values or bins"):  # as `contract check` does
        paid.check_measures(contract_with(quality=DAY, columns__day__bins=60))
    paid.check_measures(contract_with())
    for name, task in (("accuracy", "classification"), ("regression", "regression")):
        with pytest.raises(ContractError, match=f"{name} of at, beside which no column is modelled; accepted: with "):
            plan_with(measures=[name], quality={"target": "at", "task": task}, columns=columns)
