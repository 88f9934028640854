import json
from pathlib import Path

import pytest
import yaml
from dp_accounting import dp_event
from hypothesis import given
from hypothesis import strategies as st

from dpsynth_platform.contracts.loading import load_contract, load_family
from dpsynth_platform.foundation.errors import AccountingError
from dpsynth_platform.foundation.figures import upper_bound
from dpsynth_platform.privacy import statement
from dpsynth_platform.privacy.accounting import epsilon
from dpsynth_platform.privacy.events import (
    LEAF_KINDS,
    BoundedRangeSelectionEvent,
    DiscreteGaussianCountsEvent,
    GaussianCountsEvent,
    ParallelDpEvent,
    SampledGaussianEvent,
    SkellamCountsEvent,
    SkellamSumsEvent,
    ThresholdedCountsEvent,
    event_to_json,
)
from dpsynth_platform.privacy.guarantee import Guarantee
from dpsynth_platform.privacy.mst import calibrate_mst, mst_event
from dpsynth_platform.privacy.renyi import RenyiCurve
from dpsynth_platform.privacy.statement import TWO_MODELS, WORDS, Assumption, MechanismWords, privacy_statement

DEPLOY = Path(__file__).parents[2] / "deploy"
MST_WORDS = WORDS["mst"]


def load(dataset, family):
    contract = load_contract(DEPLOY / "contracts" / f"{dataset}.yaml", {"DPSYNTH_HOME": "/nowhere"})
    return contract, load_family(DEPLOY / "families" / f"{family}.yaml")


def event_of(contract, eps=None):
    target = Guarantee.target(contract)
    asked = Guarantee(eps or target.epsilon, target.delta, target.unit, target.adjacency, target.max_contributions)
    return mst_event(6, calibrate_mst(6, asked), target.adjacency, target.max_contributions)


@pytest.mark.parametrize(("dataset", "family"), [("census", "household-surveys"), ("visits", "clinic-patients")])
def test_statement_says_what_must_be_said(dataset, family):
    contract, budget = load(dataset, family)
    event = event_of(contract)
    statement = privacy_statement(contract, budget, event_to_json(event), MST_WORDS)
    assert statement == privacy_statement(contract, budget, event, MST_WORDS)
    document = json.loads(json.dumps(statement.to_json(), allow_nan=False))
    assert document["guarantee"]["epsilon"] <= contract.privacy.guarantee.epsilon
    assert document["guarantee"]["delta"] == contract.privacy.delta
    assert document["accounting"]["epsilon_by_renyi"] >= document["guarantee"]["epsilon"]
    assert (
        RenyiCurve.from_json(document["renyi"]).epsilon(contract.privacy.delta)
        == statement.accounting["epsilon_by_renyi"]
    )
    not_covered = " ".join(document["not_covered"])
    for access in ("Admission checks", "row counts", "personal data", "quality report", "human reviewer"):
        assert access in not_covered
    told = " ".join(item["because"] for item in document["assumptions"])
    assert "operating system" in told and "Gumbel" in told
    assert f"at most {contract.privacy.max_contributions} records" in statement.formal
    assert f"{budget.cap.epsilon:g}" in statement.account


def test_plain_words_name_the_numbers_and_the_limits():
    contract, budget = load("census", "household-surveys")
    words = privacy_statement(contract, budget, event_of(contract), MST_WORDS).plain_words()
    assert "learns very little about any one user" in words[0]
    assert "epsilon 1 " in words[1] and "at most 2 records" in words[1] and "strong" in words[1]
    assert "row counts" in " ".join(words)


def test_two_models_are_stated_together():
    """The audit's results come from the second one, and they are published, too."""
    contract, budget = load("census", "household-surveys")
    event = event_of(contract)
    alone = privacy_statement(contract, budget, event, MST_WORDS)
    apart = contract.model_copy(update={"audit": contract.audit.model_copy(update={"model": "separate"})})
    both = privacy_statement(apart, budget, event, MST_WORDS)
    together = epsilon(dp_event.ComposedDpEvent([event, event]), contract.privacy.delta)
    assert both.guarantee.epsilon == together.epsilon
    assert 1.2 * alone.guarantee.epsilon < both.guarantee.epsilon < 2 * alone.guarantee.epsilon
    assert (both.target_epsilon, both.guarantee.delta) == (alone.target_epsilon, alone.guarantee.delta)
    assert RenyiCurve.from_json(both.renyi).epsilon(contract.privacy.delta) == together.renyi
    assert TWO_MODELS in both.covered and TWO_MODELS in both.plain_words()
    assert TWO_MODELS not in alone.plain_words()
    assert "Each of the two mechanisms ran as planned, once" in " ".join(item.assumption for item in both.assumptions)
    again = privacy_statement(apart, budget, event, MST_WORDS, attempts=2)
    assert "were started 3 times in all" in " ".join(item.assumption for item in again.assumptions)


def test_two_models_are_no_weak_guarantee_without_a_reason():
    contract, budget = load("census", "household-surveys")
    loose = contract.privacy.model_copy(
        update={"guarantee": contract.privacy.guarantee.model_copy(update={"epsilon": 9.5})}
    )
    one = contract.model_copy(update={"privacy": loose})
    event = event_of(one)
    assert privacy_statement(one, budget, event, MST_WORDS).tier == "reasonable"
    apart = one.model_copy(update={"audit": contract.audit.model_copy(update={"model": "separate"})})
    with pytest.raises(AccountingError, match="a weak guarantee, and its contract gives no reason"):
        privacy_statement(apart, budget, event, MST_WORDS)


def test_block_policy_and_weak_guarantees_are_told():
    contract, budget = load("census", "household-surveys")
    privacy = contract.privacy.model_copy(
        update={
            "on_overlap": "block",
            "guarantee": contract.privacy.guarantee.model_copy(update={"epsilon": 12.0}),
            "accept_weak_guarantee": "needed for the pilot",
        }
    )
    weak = contract.model_copy(update={"privacy": privacy})
    statement = privacy_statement(weak, budget, event_of(contract, 12.0), MST_WORDS)
    assert any("on_overlap: block" in text for text in statement.not_covered)
    assert statement.tier == "weak"
    assert statement.weak_reason == "needed for the pilot"
    assert "weak" in " ".join(statement.plain_words())


def test_a_plan_that_costs_more_than_asked_or_is_for_other_neighbours_is_refused():
    contract, budget = load("census", "household-surveys")
    with pytest.raises(AccountingError, match="above the 1 asked for"):
        privacy_statement(contract, budget, event_of(contract, 2.0), MST_WORDS)
    other = mst_event(6, calibrate_mst(6, Guarantee.target(contract)), "add-or-remove", 1)
    with pytest.raises(AccountingError, match="adjacency, bound and weighting"):
        privacy_statement(contract, budget, other, MST_WORDS)


TRAINED = MechanismWords(
    counts="histograms of topics",
    choices="tokens",
    result="the trained model",
    selection=Assumption("Tokens are drawn from the softmax.", "yes", "By integers."),
    sampling=Assumption("Samples are Poisson.", "yes", "By a keyed cryptographic stream."),
)


def test_trained_models_name_their_accesses_and_what_their_sampling_rests_on():
    contract, budget = load("census", "household-surveys")
    step = SampledGaussianEvent(60.0, 0.01, "record", "add-or-remove", 2)
    event = dp_event.ComposedDpEvent(
        [
            dp_event.SelfComposedDpEvent(step, 100),
            DiscreteGaussianCountsEvent(60.0, "add-or-remove", 2),
            GaussianCountsEvent(60.0, "add-or-remove", 2),
            ThresholdedCountsEvent(60.0, 400.0, "add-or-remove", 2),
            SkellamCountsEvent(1e6, 1, "add-or-remove", 2),
            SkellamSumsEvent(1e6, 2, 4, "add-or-remove", 2),
            ParallelDpEvent([BoundedRangeSelectionEvent(eps, "add-or-remove", 2) for eps in (0.01, 0.02)]),
        ]
    )
    statement = privacy_statement(contract, budget, event, TRAINED)
    covered = " ".join(statement.covered)
    expected = ("1 histograms of topics", "100 training steps", "2 tokens", "threshold", "clipped gradients")
    for words in (*expected, "every cell with Skellam noise", "Sums of vectors of whole numbers (1 of them)"):
        assert words in covered
    assert "two columns" not in covered
    assumptions = {item.assumption: item for item in statement.assumptions}
    assert assumptions["Samples are Poisson."].because == "By a keyed cryptographic stream."
    assert [item.holds for words, item in assumptions.items() if words.startswith("Continuous noise")] == ["not stated"]
    assert any("one parallel branch" in words for words in assumptions)
    assert any("Skellam" in words for words in assumptions)
    assert any("expected members" in words for words in assumptions)
    assert "Gumbel" not in str(statement.to_json())
    assert statement.accounting["amplification"] == "by Poisson sampling of records"
    assert "parallel" in statement.accounting["composition"]
    assert 0 < statement.accounting["delta_slack"] < statement.guarantee.delta
    json.dumps(statement.to_json(), allow_nan=False)


def test_every_kind_of_event_is_named_among_what_is_covered():
    """A kind without words would be left out of the statement in silence."""
    words = yaml.safe_load(Path(statement.__file__).with_suffix(".yaml").read_text(encoding="utf-8"))
    assert {*words["covered"], "sampled-gaussian"} == {
        *LEAF_KINDS
    }  # of training steps there are sentences of their own


def test_mst_says_nothing_of_what_it_does_not_do():
    contract, budget = load("census", "household-surveys")
    statement = privacy_statement(contract, budget, event_of(contract), MST_WORDS)
    assert statement.accounting["amplification"] == "none is used"
    assert "delta_slack" not in statement.accounting
    told = " ".join(item.assumption for item in statement.assumptions)
    assert "Poisson" not in told and "discrete Gaussian" not in told and "parallel" not in told
    assert statement.covered[0] == "11 tables of counts (one or two columns each), every cell with Gaussian noise."
    assert statement.covered[1] == "5 choices of which two columns to count together, by the exponential mechanism."


def test_columns_that_belong_to_the_ownership_graph_are_named():
    contract, budget = load("visits", "clinic-patients")
    period = contract.source.period_column
    single = contract.model_copy(
        update={"privacy": contract.privacy.model_copy(update={"record_order": f"weight:{period}"})}
    )
    words = privacy_statement(single, budget, event_of(single), MST_WORDS)
    assert any(
        f"the column {period} and then a keyed hash, owner by owner" in item.because for item in words.assumptions
    )
    assert not any("The ownership graph" in line for line in words.not_covered)

    privacy = single.privacy.model_copy(update={"adjacency": "fixed-graph", "record_order": "weight:age"})
    shared = single.model_copy(update={"privacy": privacy})
    family = budget.model_copy(update={"adjacency": "fixed-graph"})
    (line,) = [
        line
        for line in privacy_statement(shared, family, event_of(shared), MST_WORDS).not_covered
        if "ownership graph" in line
    ]
    assert "the column age, by which records are chosen" in line
    assert f"of the column {period}, in which period a record falls" in line


@given(number=st.floats(1e-300, 1e300), digits=st.integers(1, 8))
def test_what_is_shown_of_a_bound_is_never_less(number, digits):
    shown = float(upper_bound(number, digits))
    assert number <= shown <= number * (1 + 1.000001 * 10.0 ** (1 - digits))
    assert upper_bound(shown, digits) == upper_bound(number, digits)


@pytest.mark.parametrize(("weighting", "counted"), [("rows", "the mechanism read"), ("owners", "owners took part")])
def test_a_number_of_rows_that_is_measured_is_of_what_is_counted(weighting, counted):
    """Where owners are counted, the noisy total is their number, and says nothing of how many records were read."""
    contract, budget = load("census", "household-surveys")
    privacy = contract.privacy.model_copy(update={"weighting": weighting})
    changed = contract.model_copy(
        update={"privacy": privacy, "generate": contract.generate.model_copy(update={"rows": "auto"})}
    )
    target = Guarantee.target(changed)
    neighbours = (target.adjacency, target.max_contributions, target.weighting)
    event = mst_event(6, calibrate_mst(6, target), *neighbours)
    output = privacy_statement(changed, budget, event, MST_WORDS).output
    assert output.startswith(f"The published table of synthetic rows, as many as the noisy counts say that {counted},")
