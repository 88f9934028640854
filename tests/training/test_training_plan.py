"""One object holds what training does and what that costs."""

from dataclasses import fields, replace

import pytest
from dp_accounting import dp_event

from dpsynth_platform.foundation.errors import AccountingError
from dpsynth_platform.privacy.accounting import epsilon
from dpsynth_platform.privacy.events import histogram_event
from dpsynth_platform.privacy.guarantee import Guarantee, recommended_delta
from dpsynth_platform.training.plan import Adapter, TrainingPlan

RECORDS = 75_316
DELTA = recommended_delta(RECORDS, "logarithm")
PLAN = TrainingPlan(units=1000, batch_size=50, steps=10, noise_multiplier=1.5, replay_allowance=2, adapter=Adapter())


def ctcl(eps, b=1):
    return Guarantee(eps, DELTA, "user", "add-or-remove", b)


@pytest.mark.parametrize(("eps", "noise"), [(4, 3.01), (1, 10.3)])
def test_noise_of_ctcl_appendix_e(eps, noise):
    """Tan et al. 2025: PubMed, 2000 steps of 4096."""
    plan = TrainingPlan.calibrated(ctcl(eps), units=RECORDS, batch_size=4096, steps=2000)
    assert plan.noise_multiplier == pytest.approx(noise, rel=0.01)
    assert epsilon(plan.event, DELTA).epsilon <= eps


def test_noise_beside_a_histogram_is_that_of_ctcl_appendix_d():
    def beside(event):
        return dp_event.ComposedDpEvent([histogram_event(10.0), event])

    plan = TrainingPlan.calibrated(ctcl(4), beside=beside, units=RECORDS, batch_size=4096, steps=2000)
    assert plan.noise_multiplier == pytest.approx(3.03, rel=0.01)


def test_the_replay_allowance_is_paid_for():
    alone = TrainingPlan.calibrated(ctcl(4), units=RECORDS, batch_size=4096, steps=2000)
    more = TrainingPlan.calibrated(ctcl(4), units=RECORDS, batch_size=4096, steps=2000, replay_allowance=200)
    assert more.noise_multiplier > alone.noise_multiplier
    assert more.event.count == 2200
    assert more.paid_steps == 2200


def test_the_event_is_of_what_the_plan_does():
    leaf = PLAN.event.event
    assert PLAN.event.count == 12
    assert leaf.sampling_probability == PLAN.sampling_probability == 0.05
    assert leaf.noise_multiplier * PLAN.clipping_norm == PLAN.noise_deviation == 1.5
    assert (leaf.sampled, leaf.adjacency, leaf.max_contributions) == ("record", "add-or-remove", 1)


@pytest.mark.parametrize(
    "change",
    [
        {"units": 2000},
        {"batch_size": 60},
        {"steps": 11},
        {"replay_allowance": 3},
        {"noise_multiplier": 1.25},
        {"sampled": "user"},
        {"adjacency": "zero-out"},
        {"max_contributions": 2},
    ],
    ids=str,
)
def test_whatever_the_guarantee_rests_on_is_in_the_event(change):
    assert replace(PLAN, **change).event != PLAN.event


def test_noise_grows_with_the_clipping_norm():
    changed = replace(PLAN, clipping_norm=3.0)
    assert changed.noise_deviation == 4.5
    assert changed.event == PLAN.event


def test_json_there_and_back():
    for plan in (PLAN, replace(PLAN, adapter=None, sampled="user", max_contributions=7, clipping="automatic")):
        assert TrainingPlan.from_json(plan.to_json()) == plan
    assert len({replace(PLAN, learning_rate=rate).digest for rate in (1e-3, 2e-3)}) == 2


@pytest.mark.parametrize("name", [field.name for field in fields(TrainingPlan)])
def test_a_document_without_a_key_is_refused(name):
    document = PLAN.to_json()
    del document[name]
    with pytest.raises(AccountingError, match="all of them"):
        TrainingPlan.from_json(document)
    with pytest.raises(AccountingError):
        TrainingPlan.from_json(document | {name: object()})


@pytest.mark.parametrize(
    "change",
    [
        {"units": 49},
        {"units": 10.0},
        {"batch_size": 0},
        {"steps": True},
        {"replay_allowance": -1},
        {"noise_multiplier": 0.0},
        {"noise_multiplier": float("nan")},
        {"clipping_norm": float("inf")},
        {"clipping": "none"},
        {"optimizer": "adam"},
        {"decay": "step"},
        {"weight_decay": -1.0},
        {"warmup_steps": -1},
        {"adjacency": "near"},
        {"sampled": "token"},
        {"sampled": "user", "adjacency": "fixed-graph"},
    ],
    ids=str,
)
def test_an_impossible_value_is_refused(change):
    with pytest.raises(AccountingError, match="accepted"):
        replace(PLAN, **change)


def test_a_bad_adapter_is_refused():
    with pytest.raises(AccountingError, match=r"adapter\.rank"):
        Adapter(rank=0)
    with pytest.raises(AccountingError, match="rank, alpha"):
        TrainingPlan.from_json(PLAN.to_json() | {"adapter": {"rank": 8}} | {"adapter": {"size": 8}})


def test_calibration_takes_no_noise_and_no_adjacency_of_its_own():
    with pytest.raises(AccountingError, match="noise_multiplier"):
        TrainingPlan.calibrated(ctcl(4), units=10, batch_size=1, steps=1, noise_multiplier=0.1)
    with pytest.raises(AccountingError, match="weighting owners"):
        TrainingPlan.calibrated(replace(ctcl(4), weighting="owners"), units=10, batch_size=1, steps=1)
