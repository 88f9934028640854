"""What tokens of DP inference cost and buy: against brute force over neighbours, and against the papers' formulas."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from dp_accounting import dp_event
from scipy.special import logsumexp

from dpsynth_platform.contracts.text_generation import Inference
from dpsynth_platform.foundation.errors import AccountingError, ContractError, GrantRefused
from dpsynth_platform.privacy.accounting import epsilon, renyi_curve
from dpsynth_platform.privacy.events import MAX_LEAVES, histogram_event, token_selection_event
from dpsynth_platform.privacy.guarantee import Guarantee
from dpsynth_platform.privacy.renyi import ORDERS
from dpsynth_platform.synth.interface import DECLARED, SealedPlan
from dpsynth_platform.synth.text.inference_choice import PARTS, drawn, owner_score, possible, scores
from dpsynth_platform.synth.text.inference_contexts import Contexts, placed
from dpsynth_platform.synth.text.inference_plan import InferencePlan
from dpsynth_platform.synth.text.inference_sealing import InferenceParameters

CLIPS = ("difference", "logits")
TARGET = Guarantee(2.0, 1e-6, "user", "add-or-remove", 3)


def alone(event):
    return event


def planned(rows=None, *, guarantee=TARGET, units=1000, beside=alone, **declared):
    return InferencePlan.calibrated(guarantee, Inference(**declared), units=units, rows=rows, beside=beside)


def declared_plan(**declared):
    """A plan for any price."""
    terms = Inference(**declared).model_dump(exclude={"about"})
    return InferencePlan(contexts=10, tokens=1, adjacency="add-or-remove", max_contributions=3, **terms)


def chances(vectors, public, *, clip, norm, size, temperature):
    """The distribution of the next token, computed once more from the definition, in plain floating point."""
    total = np.zeros(len(public))
    for vector in vectors:
        mean = np.mean([row - np.log(np.exp(row).sum()) for row in vector], axis=0)
        moved = mean - public if clip == "difference" else mean - mean.max() + norm
        total += np.clip(moved, -norm, norm)
    weights = (total / size + (public if clip == "difference" else 0)) / temperature
    weights = np.exp(weights - weights.max())
    return weights / weights.sum()


def exact_chances(vectors, public, *, clip, norm, size, epsilon_of_choice):
    """The distribution that is drawn from: whole scores, and the epsilon of the sealed event."""
    said = torch.zeros(len(public), dtype=torch.int64)
    for vector in vectors:
        said += owner_score(torch.tensor(vector), torch.tensor(public), clip=clip, clipping_norm=norm)
    whole = scores(said, torch.tensor(public), clip=clip, clipping_norm=norm, batch_size=size)
    weights = np.exp(epsilon_of_choice * (whole - whole.max()).numpy().astype(float) / (2 * PARTS))
    return weights / weights.sum()


@pytest.mark.parametrize("clip", CLIPS)
@pytest.mark.parametrize("records", [1, 100])
def test_an_owner_moves_a_choice_by_no_more_than_the_event_claims(clip, records):
    """Neighbours with and without an owner of one record or of a hundred, whose logits are as bad as they can be."""
    random = np.random.default_rng(4)
    plan = declared_plan(batch_size=5, clipping_norm=0.7, temperature=0.8, clip=clip)
    terms = {"clip": clip, "norm": 0.7, "size": 5}
    public = np.log(random.dirichlet(np.ones(6)))
    widest = 0.0
    for trial in range(60):
        others = [random.normal(0, 3, (int(random.integers(1, 4)), 6)) for _ in range(trial % 7)]
        own = (
            np.repeat(random.choice([-50.0, 50.0], (1, 6)), records, axis=0)
            if trial % 2
            else random.normal(0, 20, (records, 6))
        )
        without, including = (
            exact_chances(vectors, public, epsilon_of_choice=plan.epsilon_of_choice, **terms)
            for vectors in (others, [*others, own])
        )
        assert including == pytest.approx(chances([*others, own], public, temperature=0.8, **terms), rel=1e-4)
        ratios = np.log(including) - np.log(without)
        widest = max(widest, ratios.max() - ratios.min())
    assert plan.epsilon_of_choice == pytest.approx(2 * 0.7 / (5 * 0.8))
    assert 0.95 * plan.epsilon_of_choice < widest <= plan.epsilon_of_choice * (1 + 1e-9)


def test_the_cost_of_two_tokens_bounds_every_divergence_of_neighbours_by_brute_force():
    """All paths of two tokens, the second choice's scores hanging on the first one's outcome."""
    random = np.random.default_rng(0)
    plan = declared_plan(batch_size=1, clipping_norm=0.5)
    event = token_selection_event(
        tokens=2, clipping_norm=0.5, temperature=1.0, batch_size=1, adjacency="add-or-remove", clipped="user"
    )
    curve = renyi_curve(event)
    terms = {"clip": "difference", "norm": 0.5, "size": 1, "epsilon_of_choice": plan.epsilon_of_choice}
    worst = 0.0
    for _ in range(40):
        publics = np.log(random.dirichlet(np.ones(3), size=4))
        owns = random.choice([-30.0, 30.0], (4, 2, 3))
        paths = []
        for owners in (lambda at: [], lambda at, owns=owns: [owns[at]]):
            first = exact_chances(owners(0), publics[0], **terms)
            paths.append(
                [
                    first[one] * exact_chances(owners(1 + one), publics[1 + one], **terms)[two]
                    for one, two in itertools.product(range(3), repeat=2)
                ]
            )
        for p, q in (np.array(paths), np.array(paths[::-1])):
            p, q = np.array(p), np.array(q)
            for order, bound in zip(ORDERS, curve.values, strict=True):
                found = logsumexp(order * np.log(p) + (1 - order) * np.log(q)) / (order - 1)
                assert found <= bound + 1e-9
                worst = max(worst, found / bound)
            delta = np.maximum(p - np.exp(0.4) * q, 0).sum()
            if delta > 0:
                assert epsilon(event, float(delta)).epsilon >= 0.4 - 1e-6
    assert worst > 0.6


def test_the_papers_cost_of_a_token():
    """Amin et al. 2024 and Vinod et al. 2025: each token costs c^2 / (2 s^2 temperature^2) of zCDP."""
    event = token_selection_event(tokens=100, clipping_norm=10.0, temperature=2.0, batch_size=255, max_contributions=9,
                                  clipped="user")  # fmt: skip
    rho = 100 * 10.0**2 / (2 * 255**2 * 2.0**2)
    curve = renyi_curve(event)
    order = ORDERS[5]
    assert curve.values[5] == pytest.approx(order * rho, rel=1e-9)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("clip", CLIPS)
def test_no_logits_reach_beyond_the_clipping_norm(bad, clip):
    public = torch.tensor([0.2, 0.3, 0.5]).double().log()
    for logits in ([[bad, 1.0, 2.0]], [[1.0, 2.0, 3.0], [bad, bad, bad]], [[1e30, -1e30, 0.0]]):
        said = owner_score(torch.tensor(logits), public, clip=clip, clipping_norm=0.3)
        assert said.dtype == torch.int64
        assert said.abs().max() <= PARTS


def test_the_draw_has_the_distribution_that_is_accounted_for():
    public = np.log([0.1, 0.2, 0.7])
    vector = [np.array([[3.0, 0.0, 0.0]])]
    expected = chances(vector, public, clip="difference", norm=1.0, size=2, temperature=0.5)
    said = owner_score(torch.tensor(vector[0]), torch.tensor(public), clip="difference", clipping_norm=1.0)
    whole = scores(said, torch.tensor(public), clip="difference", clipping_norm=1.0, batch_size=2)
    found = np.bincount([drawn(whole, torch.arange(3), 2 * 1.0 / (2 * 0.5)) for _ in range(4000)], minlength=3)
    assert ((found - 4000 * expected) ** 2 / (4000 * expected)).sum() < 40  # 2e-9


def test_the_likeliest_of_a_full_context_can_come():
    """Whatever a context of s owners says, its k likeliest tokens are among the possible ones, which are public."""
    random = np.random.default_rng(2)
    for _ in range(50):
        public = np.log(random.dirichlet(0.2 * np.ones(30)) + 1e-12)
        tensor = torch.tensor(public)
        there = possible(tensor, top_k=4, clipping_norm=0.6)
        vectors = random.choice([-40.0, 40.0], (3, 1, 30))
        said = sum(owner_score(torch.tensor(v), tensor, clip="difference", clipping_norm=0.6) for v in vectors)
        whole = scores(said, tensor, clip="difference", clipping_norm=0.6, batch_size=3)
        assert set(whole.topk(4).indices.tolist()) <= set(there.tolist())
        assert set(np.argsort(-public)[:4].tolist()) <= set(there.tolist())
        assert len(there) < 30


def test_barred_tokens_do_not_come_unless_nothing_else_can():
    scored = torch.tensor([10 * PARTS, 0, 0])
    assert {drawn(scored, torch.arange(3), 1.0, barred=[0]) for _ in range(40)} == {1, 2}  # one of them alone: 2e-12
    assert drawn(scored, torch.tensor([0]), 1.0, barred=[0]) == 0


def test_one_owner_more_changes_no_other_owner_s_place():
    contexts = Contexts.shared(6, {("sport",): 70.0, ("trade",): 35.0})
    assert contexts.labels.count(("sport",)) == 4
    key = bytes(32)
    records = [(f"{number:032x}", ("sport",) if number % 3 else ("trade",), f"text {number}") for number in range(90)]
    many = [("f" * 32, ("sport",), f"more {number}") for number in range(100)] + [("f" * 32, ("trade",), "other")]
    one, other = placed(records, contexts, key, most=200), placed([*many, *records[::-1]], contexts, key, most=200)
    for owner in {owner for owner, _, _ in records}:
        before = [(place, owners[owner]) for place, owners in enumerate(one) if owner in owners]
        assert before == [(place, owners[owner]) for place, owners in enumerate(other) if owner in owners]
        assert len(before) == 1
    ((place, bodies),) = [(place, owners["f" * 32]) for place, owners in enumerate(other) if "f" * 32 in owners]
    assert set(bodies) == {body for _, label, body in many if label == contexts.labels[place]}
    assert one != placed(records, contexts, bytes(31) + b"1", most=200)


def test_records_of_a_label_without_context_are_in_none():
    contexts = Contexts.shared(1, {("sport",): 5.0, ("trade",): -2.0})
    assert placed([("a" * 32, ("trade",), "x")], contexts, bytes(32), most=200) == [{}]


def test_owners_go_by_a_label_as_often_as_records_have_it():
    """Each of a thousand owners has one record of a rare label and nine of a common one."""
    rare, common = ("rare",), ("common",)
    contexts = Contexts.shared(10, {rare: 1.0, common: 9.0})
    labels = [rare, *[common] * 9]
    records = [(f"{owner:032x}", label, f"{at}") for owner in range(1000) for at, label in enumerate(labels)]
    found = [len(one) for one in placed(records, contexts, bytes(32), most=1)]
    assert contexts.labels.count(rare) == 1
    assert sum(found) == 1000
    assert all(60 <= size <= 150 for size in found)
    same = placed([(owner, label, "x") for owner, label, _ in records], contexts, bytes(32), most=1)
    assert all(60 <= len(one) <= 150 for one in same)


def test_owners_are_spread_evenly():
    contexts = Contexts(((),) * 4)
    found = [len(one) for one in placed([(f"{n:032x}", (), "x") for n in range(800)], contexts, bytes(32), most=200)]
    assert sum((count - 200) ** 2 / 200 for count in found) < 21  # one in 10,000 by chance; the key is fixed


@pytest.mark.parametrize("clip", CLIPS)
def test_the_budget_is_used_and_not_exceeded(clip):
    plan = planned(batch_size=100, clip=clip, clipping_norm=1.0)
    assert plan.contexts == 10
    assert epsilon(plan.event, TARGET.delta).epsilon <= TARGET.epsilon
    more = replace(plan, tokens=plan.tokens + 1)
    assert epsilon(more.event, TARGET.delta).epsilon > TARGET.epsilon
    assert plan.documents == 10 * (plan.tokens // 64)


def test_rows_take_as_many_tokens_as_they_need():
    plan = planned(rows=41, document_tokens=16)
    assert plan.tokens == 5 * 16
    assert plan.documents >= 41
    assert epsilon(plan.event, TARGET.delta).epsilon < TARGET.epsilon


def test_what_else_is_paid_for_leaves_fewer_tokens():
    counts = histogram_event(10.0, max_contributions=3)
    beside = planned(beside=lambda event: dp_event.ComposedDpEvent([counts, event]))
    assert 0 < beside.tokens < planned().tokens


def test_more_rows_than_the_budget_buys_are_refused_with_the_number_that_it_buys():
    most = planned()
    with pytest.raises(
        ContractError, match=rf"{most.documents} documents of up to 64 tokens.*rows up to {most.documents}"
    ):
        planned(rows=most.documents + 10)
    planned(rows=most.documents)
    with pytest.raises(ContractError, match="buys 0 tokens from each of 200 contexts"):
        planned(batch_size=5, clipping_norm=500.0)
    with pytest.raises(ContractError, match="not one document fits"):
        planned(batch_size=20, clipping_norm=6.0, document_tokens=4096)
    assert math.ceil(2 * MAX_LEAVES / 64) > most.documents
    with pytest.raises(ContractError, match="rows up to"):
        planned(rows=10 * 2 * MAX_LEAVES)


@pytest.mark.parametrize("adjacency", ["replace-one", "fixed-graph"])
def test_contexts_that_an_owner_could_change_are_refused(adjacency):
    with pytest.raises(AccountingError):
        planned(guarantee=Guarantee(2.0, 1e-6, "user", adjacency, 3))


def test_how_many_records_an_owner_has_is_no_part_of_the_range():
    few, many = (planned(guarantee=Guarantee(2.0, 1e-6, "user", "zero-out", b)) for b in (1, 100))
    assert few.epsilon_of_choice == many.epsilon_of_choice == 2 / 100
    assert few.tokens == many.tokens


def test_a_plan_of_something_else_is_refused():
    parameters = {"inference": {"steps": 3}}
    plan = SealedPlan("dp_inference", DECLARED, "letters", None, "", [], {}, parameters, event={}, guarantee={})
    with pytest.raises(GrantRefused, match="not for DP inference"):
        InferenceParameters.of(plan)
