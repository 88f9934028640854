"""Every part that a report must have, for every mechanism (Ponomareva et al. 2023, section 5.3.3)."""

import json
import re
from pathlib import Path

import pytest
from dp_accounting import dp_event

from dpsynth_platform.contracts.loading import load_contract, load_family
from dpsynth_platform.foundation.errors import AccountingError
from dpsynth_platform.privacy.accounting import epsilon
from dpsynth_platform.privacy.events import (
    ParallelDpEvent,
    ThresholdedCountsEvent,
    ThresholdedGaussianCountsEvent,
    adjacency_of,
    best_run_event,
    dp_sgd_event,
    event_from_json,
    event_to_json,
    histogram_event,
    token_selection_event,
    twice,
)
from dpsynth_platform.privacy.guarantee import Guarantee
from dpsynth_platform.privacy.mst import calibrate_mst, mst_event
from dpsynth_platform.privacy.renyi import RenyiCurve
from dpsynth_platform.privacy.statement import WORDS, MechanismWords, Tuning, privacy_statement
from dpsynth_platform.privacy.units import group_guarantee

DEPLOY = Path(__file__).parents[2] / "deploy"
B = 2


def contract_of(**privacy):
    contract = load_contract(DEPLOY / "contracts" / "census.yaml", {"DPSYNTH_HOME": "/nowhere"})
    return contract.model_copy(update={"privacy": contract.privacy.model_copy(update=privacy)})


FAMILY = load_family(DEPLOY / "families" / "household-surveys.yaml")
DELTA = contract_of().privacy.delta


def training(noise, *, b=B, sampled="record", adjacency="add-or-remove"):
    return dp_sgd_event(
        records=20_000,
        batch_size=200,
        noise_multiplier=noise,
        steps=500,
        sampled=sampled,
        max_contributions=b,
        adjacency=adjacency,
    )


def with_histogram(noise):
    return dp_event.ComposedDpEvent([histogram_event(60.0, max_contributions=B), training(noise)])


def tokens(temperature, **more):
    return token_selection_event(
        tokens=50, clipping_norm=1.0, temperature=temperature, batch_size=100, max_contributions=B,
        **{"adjacency": "add-or-remove"} | more,
    )  # fmt: skip


# Noise as calibrated for epsilon 1.
MECHANISMS = {
    "mst": lambda: mst_event(6, calibrate_mst(6, Guarantee.target(contract_of())), "add-or-remove", B),
    "dp-sgd": lambda: training(1.17, b=1),
    "dp-sgd-els": lambda: training(1.92),
    "dp-sgd-uls": lambda: training(1.17, sampled="user"),
    "histogram and dp-sgd": lambda: with_histogram(1.93),
    "tokens": lambda: ParallelDpEvent([tokens(0.6), tokens(50.0)]),
    "votes": lambda: dp_event.SelfComposedDpEvent(histogram_event(24.1, max_contributions=B, discrete=False), 10),
    "thresholded histogram": lambda: ThresholdedCountsEvent(9.0, 45.0, "add-or-remove", B),
    "learned values": lambda: dp_event.ComposedDpEvent(
        [ThresholdedGaussianCountsEvent(30.0, 200.0, "add-or-remove", B), histogram_event(12.0, max_contributions=B)]
    ),
    "fixed graph": lambda: training(3.86, adjacency="fixed-graph"),
    "best of runs": lambda: dp_event.ComposedDpEvent(
        [
            histogram_event(90.0, max_contributions=B),
            twice(best_run_event([training(9.0), ParallelDpEvent([tokens(90.0), tokens(50.0)])], 3)),
        ]
    ),
}

# What each must say, beside what all must.
SAID = {
    "mst": ("11 tables of counts", "5 choices", "Scores are whole numbers with Gumbel noise"),
    "dp-sgd": ("500 training steps (DP-SGD),", "gradients of records", "Poisson sample of records."),
    "dp-sgd-els": ("500 training steps (DP-SGD-ELS)", "mixture of Gaussians", "binomial"),
    "dp-sgd-uls": ("500 training steps (DP-SGD-ULS)", "Poisson sampling of users", "clipped as one"),
    "histogram and dp-sgd": ("1 histograms of topics", "500 training steps", "mechanisms listed in the event"),
    "tokens": (
        "100 tokens",
        "does not say how it draws choices",
        "All records of one unit are in one parallel branch (a batch of a token selection",
    ),
    "votes": ("10 histograms of topics", "Continuous noise"),
    "thresholded histogram": ("shown only from a threshold up", "apart from outcomes of probability", "slack"),
    "learned values": (
        "Which values the columns have that declare none (1)",
        "apart from outcomes",
        "Continuous noise",
    ),
    "best of runs": (
        "2 choices of the best of a random number of runs: 3 in expectation",
        "Each takes one of 2 settings at random",
        "the others and their number are never shown",
        "theorem 2 of Papernot & Steinke (2022)",
        "All records of one unit are in one parallel branch",
    ),
    "fixed graph": ("The ownership graph", "not the links between people and records", "same records with the same"),
}
TOPIC_WORDS = MechanismWords(counts="histograms of topics", choices="tokens", result="the trained model")


def statement_of(name, **more):
    b = 1 if name == "dp-sgd" else B
    adjacency = "fixed-graph" if name == "fixed graph" else "add-or-remove"
    words = WORDS["mst"] if name == "mst" else TOPIC_WORDS
    contract = contract_of(max_contributions=b, adjacency=adjacency)
    return privacy_statement(contract, FAMILY, MECHANISMS[name](), words, **more)


@pytest.mark.parametrize("name", MECHANISMS)
def test_every_item_is_there_for_machines_and_in_words(name):
    statement = statement_of(name)
    document = json.loads(json.dumps(statement.to_json(), allow_nan=False))
    event, claimed = event_from_json(document["event"]), document["guarantee"]
    # Setting, accesses, output, unit, adjacency, in words.
    for item in ("setting", "output", "unit", "adjacency", "formal", "groups", "account", "verification"):
        assert len(document[item]) > 40, item
    assert "trusted organisation" in document["setting"]
    assert len(document["covered"]) >= 2 and len(document["not_covered"]) >= 6
    assert str(claimed["max_contributions"]) in document["unit"] and "neighbours if" in document["adjacency"]
    assert ("trained model" in document["output"]) == (name != "mst")
    # Accounting: which bound, at which delta, and its assumptions with whether each holds.
    accounting = document["accounting"]
    result = epsilon(event, DELTA)
    assert (accounting["epsilon"], accounting["delta"]) == (result.epsilon, DELTA) == (claimed["epsilon"], DELTA)
    assert accounting["type"] in ("privacy loss distributions", "Renyi differential privacy")
    assert {item["holds"] for item in document["assumptions"]} <= {"yes", "as declared", "not stated"}
    assert all(item["assumption"].endswith(".") and item["because"] for item in document["assumptions"])
    assert adjacency_of(event) == (claimed["adjacency"], claimed["max_contributions"])
    # The formal statement with its intermediate curve.
    told = re.search(r"<= e\^(\S+) \* Pr\[M\(D'\) in S\] \+ (\S+)\. ", document["formal"])
    for shown, meant in zip(told.groups(), (claimed["epsilon"], claimed["delta"]), strict=True):
        assert meant <= float(shown) < meant * (1 + 2e-5)
    assert "rho(alpha)" in document["formal"]
    curve, slack = RenyiCurve.from_json(document["renyi"]), accounting.get("delta_slack", 0.0)
    assert curve.epsilon(DELTA - slack) == accounting["epsilon_by_renyi"]
    # Tuning and verification.
    assert document["tuning"]["runs"] == 0 and document["tuning"]["covered"]
    assert "charged to the account" in document["tuning"]["words"]
    assert "dpsynth release verify" in document["verification"]
    # What the mechanism itself must say, and nothing of other mechanisms.
    whole = json.dumps([document, *statement.plain_words()])
    for words in SAID[name]:
        assert words in whole, words
    assert ("Gumbel" in whole) == (name == "mst")
    assert ("Poisson" in whole) == ("dp-sgd" in name or name in ("fixed graph", "best of runs"))
    assert ("ownership graph" in whole.lower()) == (name == "fixed graph")


@pytest.mark.parametrize("name", MECHANISMS)
def test_plain_words_say_what_a_lawyer_asks(name):
    statement = statement_of(name)
    words = " ".join(statement.plain_words())
    for part in ("any one user", "In numbers: epsilon", "by a factor of at most", "whatever else they know",
                 "does not cover", "It rests on assumptions", "what may be claimed is the cap"):  # fmt: skip
        assert part in words, part
    for item in statement.assumptions:
        assert (item.assumption in words) == (item.holds != "yes")


def test_a_group_is_promised_what_follows_and_no_more(monkeypatch):
    statement = statement_of("votes")
    promise, groups = statement.guarantee, statement.groups
    for size in (2, 5):
        all_epsilon, all_delta = group_guarantee(promise.epsilon, promise.delta, size)
        shown = re.search(rf"for {size} of them epsilon (\S+) and delta (\S+?)[,.]? ", groups)
        assert float(shown[1]) == pytest.approx(all_epsilon, rel=0.01) and float(shown[1]) >= all_epsilon
        assert float(shown[2]) == pytest.approx(all_delta, rel=0.01) and float(shown[2]) >= all_delta * (1 - 1e-9)
    monkeypatch.setattr("dpsynth_platform.privacy.statement.group_guarantee", lambda *_: (9.0, 1.0))
    assert "for 2 of them nothing is promised, for 5 of them nothing is promised" in statement_of("votes").groups


def test_slack_is_part_of_what_is_claimed():
    statement = statement_of("thresholded histogram")
    event = event_from_json(statement.event)
    counts = histogram_event(event.sigma, max_contributions=B)
    assert statement.guarantee.epsilon > epsilon(counts, DELTA).epsilon
    assert 0 < statement.accounting["delta_slack"] < DELTA
    assert "with the slack taken off first" in statement.verification


def test_tuning_is_either_covered_or_said_to_be_not():
    paid = statement_of("dp-sgd", tuning=Tuning(4, covered=True))
    assert paid.to_json()["tuning"] == {"runs": 4, "covered": True, "words": paid.tuning["words"]}
    assert "cost is part of the event" in paid.tuning["words"]
    assert not any("hyper-parameters" in text for text in paid.not_covered)
    unpaid = statement_of("dp-sgd", tuning=Tuning(4))
    assert unpaid.tuning["covered"] is False
    assert any("What 4 other runs of mechanisms on this dataset" in text for text in unpaid.not_covered)
    said = "covered by the account's cap, and not by this release's epsilon"
    assert said in " ".join(unpaid.plain_words())
    assert said not in " ".join(paid.plain_words())
    assert "1 other run of mechanisms" in statement_of("dp-sgd", tuning=Tuning(1)).tuning["words"]
    for runs in (-1, 1.5, True):
        with pytest.raises(AccountingError, match="tuning runs"):
            Tuning(runs)


def test_that_nothing_was_chosen_by_the_data_is_declared_and_not_asserted():
    statement = statement_of("mst")
    assert statement.tuning["words"].startswith("As declared, no hyper-parameter was chosen by looking at the data")
    (contract,) = [item for item in statement.assumptions if "hyper-parameters" in item.assumption]
    assert contract.holds == "as declared"
    assert contract.assumption in " ".join(statement.plain_words())


def test_earlier_attempts_are_told():
    once, again = statement_of("mst"), statement_of("mst", attempts=3)
    assert once.assumptions[-1].assumption == "The mechanism ran as planned, once, after its cost was recorded."
    assert "was started 3 times" in again.assumptions[-1].assumption
    assert "stays in the account" in again.assumptions[-1].because
    assert once.assumptions[:-1] == again.assumptions[:-1]
    assert any("2 earlier attempts at this run" in text for text in again.not_covered)
    assert "earlier attempt" not in json.dumps(once.to_json())
    with pytest.raises(AccountingError, match="0 attempts"):
        statement_of("mst", attempts=0)


def test_the_cap_is_claimed_as_long_as_nobody_raises_it():
    told = statement_of("mst").account
    assert "whatever follows" not in told
    assert "unless two people together raise it; then it is the raised cap" in told


def test_the_graph_is_said_to_be_unprotected_in_every_form():
    statement = statement_of("fixed graph")
    not_covered = next(text for text in statement.not_covered if "ownership graph" in text)
    for fact in ("who owns which record and together with whom", "how many records", "left out", "were used"):
        assert fact in not_covered and fact in " ".join(statement.plain_words())
    assert "depends on the ownership graph alone" in statement.assumptions[-4].assumption
    assert "had the records that name them said anything else" in statement.plain_words()[0]
    several = contract_of(adjacency="fixed-graph", owner_columns=["sender", "recipient"])
    unit = privacy_statement(several, FAMILY, event_to_json(MECHANISMS["fixed graph"]()), TOPIC_WORDS).unit
    assert "name it in sender or recipient, also beside others, of which at most 2" in unit


def test_a_mechanism_that_costs_nothing_is_not_claimed_to():
    event = histogram_event(1e6, max_contributions=B, discrete=False)
    statement = privacy_statement(contract_of(), FAMILY, event, WORDS["mst"])
    assert statement.accounting["epsilon"] == 0 < statement.guarantee.epsilon < 1e-6
    assert "epsilon 9.54e-07" in statement.plain_words()[1]
