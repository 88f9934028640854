import dataclasses
import math
import re

import pytest
from synth_cases import SCHEMA, contract_with

from dpsynth_platform.contracts.tiers import WEAK_EPSILON
from dpsynth_platform.synth.automatic import (
    LEAST_OVER_NOISE,
    Facts,
    choose,
    facts_of,
    method_for,
    why_in_words,
)
from dpsynth_platform.synth.interface import DECLARED
from dpsynth_platform.synth.planning import plan_release

PLENTY = Facts(
    columns=10,
    pair_cells=5000,
    countable=True,
    counted="records",
    records=40_000,
    held=1000.0,
    target=True,
    error=20.0,
    enough=0.5,
    limit=None,
    rounds=40,
    tree_seconds=1.0,
)


def test_plenty_of_records_get_aim():
    chosen = choose(PLENTY)
    assert chosen.method == "aim"
    assert "holds 1,000 of the up to 40,000 records expected, and its count is off by about 20" in chosen.why
    assert "target" not in chosen.why


def test_a_reason_s_estimate_is_not_taken_for_the_noise_of_the_plan():
    why = choose(PLENTY).why
    assert why_in_words(why, "above") == (
        f"{why}; that error is an estimate by which methods are compared, and the noise of this plan is above"
    )
    assert why_in_words("there is one column", "above") == "there is one column"


@pytest.mark.parametrize(
    ("change", "method", "why"),
    [
        ({"columns": 1}, "independent", "there is one column"),
        ({"held": LEAST_OVER_NOISE * 19.9}, "independent", "noise would drown"),
        ({"countable": False}, "privbayes", "too many to count"),
        ({"columns": 201}, "mst", "201 columns have too many pairs"),
        (
            {"limit": 2.0, "rounds": 8},
            "mst",
            "within 2 seconds, aim would have 8 rounds, fewer than it takes",
        ),
        ({"limit": 2.0, "tree_seconds": 2.1}, "independent", "within 2 seconds there is no time for the pairs of 10"),
    ],
)
def test_other_facts_get_another_method_and_its_reason(change, method, why):
    chosen = choose(dataclasses.replace(PLENTY, **change))
    assert chosen.method == method
    assert why in chosen.why
    assert ("the target gets no links" in chosen.why) == (chosen.why != "there is one column")


def test_what_reasons_say():
    above = (
        "a typical combination of two columns' values holds 1,000 of the up to 40,000 records expected, and its count "
        "is off by about 20"
    )
    aimless = "; the target gets no links of its own"

    def why(**change):
        return choose(dataclasses.replace(PLENTY, **change)).why

    assert why() == f"it keeps most where counts of two columns are above the noise: {above}"
    assert why(columns=1) == "there is one column"
    assert why(held=19.0) == (
        f"noise would drown what columns have in common: {above}; about 2.7 times as many records, or an epsilon of "
        f"about 0.5, would do{aimless}"
    ).replace("1,000", "19")
    assert f"2.7 times as many records would do{aimless}" in why(held=19.0, enough=WEAK_EPSILON)
    assert why(countable=False) == (
        "all pairs of columns have up to 5,000 cells, too many to count, and it counts only what rises above the "
        f"noise ({above}){aimless}"
    )
    assert why(limit=2.0, tree_seconds=2.1) == (
        f"within 2 seconds there is no time for the pairs of 10 columns ({above}){aimless}"
    )
    assert why(columns=201) == f"201 columns have too many pairs for rounds of choosing ({above}){aimless}"
    assert why(limit=2.0, rounds=8) == (
        f"within 2 seconds, aim would have 8 rounds, fewer than it takes to link 10 columns ({above}){aimless}"
    )


@pytest.mark.parametrize("epsilon", [0.01, 0.1])
def test_what_a_reason_names_would_do(epsilon):
    def chosen(**change):
        guarantee = {"epsilon": epsilon, "delta": 1e-5} | change.pop("guarantee", {})
        return method_for(contract_with(privacy__guarantee=guarantee, **change))

    why = chosen().why
    times = float(re.search(r"about ([\d.]+) times as many records", why).group(1))
    enough = float(re.search(r"an epsilon of about ([\d.]+),", why).group(1))
    units = contract_with().privacy.expected_units
    assert chosen(privacy__expected_units=math.ceil(units * times)).method == "aim"
    assert chosen(privacy__expected_units=math.floor(units * times * 0.9)).method == "independent"
    assert chosen(guarantee={"epsilon": enough}).method == "aim"
    assert chosen(guarantee={"epsilon": enough * 0.9}).method == "independent"


def test_the_border_of_noise():
    assert choose(dataclasses.replace(PLENTY, held=LEAST_OVER_NOISE * 20.0)).method == "aim"


def test_a_method_that_is_named_stays():
    chosen = method_for(contract_with(generate__method="mst"))
    assert (chosen.method, chosen.why) == ("mst", DECLARED)


def test_facts_are_those_of_the_contract():
    contract = contract_with()
    facts = facts_of(contract, None)
    assert (facts.columns, facts.records, facts.countable, facts.target) == (5, 4000, True, False)
    # 11 ages, 5 scores, 5 days, 4 cities, 3 memberships with what is missing; ages in eight groups at most.
    assert facts.held == 4000 / 22
    less = contract_with(privacy__guarantee={"epsilon": 0.4, "delta": 1e-5})
    assert facts_of(less, None).error == pytest.approx(10 * facts.error, rel=0.3)


def test_an_owner_who_is_counted_holds_one_record_whatever_the_bound():
    """Noise is then that of one record, and so is what every owner adds to a count."""
    of_rows, of_owners = (
        facts_of(contract_with(privacy__weighting=weighting, privacy__max_contributions=8), None)
        for weighting in ("rows", "owners")
    )
    assert (of_rows.records, of_owners.records) == (16_000, 2000)
    assert of_owners.held / of_owners.error == pytest.approx(of_rows.held / of_rows.error, rel=0.01)
    assert "of the up to 2,000 owners expected" in choose(of_owners).why


def test_other_words_for_a_reason_are_no_other_run():
    plan = plan_release(contract_with(), SCHEMA, None)
    assert dataclasses.replace(plan, why="because").digest == plan.digest
    assert dataclasses.replace(plan, method="mst").digest != plan.digest


def test_a_time_limit_counts_where_it_leaves_too_few_rounds():
    assert choose(dataclasses.replace(PLENTY, limit=2.0, rounds=9)).method == "aim"
    limited, free = (facts_of(contract_with(generate__time_limit=limit), None) for limit in ("1s", None))
    assert (limited.limit, free.limit) == (1.0, None)
    assert limited.rounds <= free.rounds == 10


@pytest.mark.parametrize(("epsilon", "method"), [(4.0, "aim"), (0.05, "independent")])
def test_the_plan_is_the_chosen_methods_and_says_why(epsilon, method):
    contract = contract_with(privacy__guarantee={"epsilon": epsilon, "delta": 1e-5})
    assert contract.generate.method == "auto"
    plan = plan_release(contract, SCHEMA, None)
    assert plan.method == method
    assert plan.why == method_for(contract).why != DECLARED
    assert plan == plan_release(contract, SCHEMA, None)
