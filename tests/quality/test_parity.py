"""Findings: each conclusion against scipy's or a closed form, and the share that holds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from scipy import stats

from dpsynth_platform.contracts.findings import Finding, findings_of, read_findings
from dpsynth_platform.foundation.errors import ContractError, SourceError
from dpsynth_platform.quality.conclusions import check_findings, conclusion
from dpsynth_platform.quality.parity import measure_parity

ROWS = 1000


def people(seed: int, *, gap: float = 1.0, linked: bool = True) -> pa.Table:
    """Men work longer by `gap` deviations; income follows from hours and school where it is linked to them."""
    rng = np.random.default_rng(seed)
    man, school = rng.random(ROWS) < 0.5, rng.integers(0, 3, ROWS)
    hours = 40 + rng.normal(size=ROWS) + gap * man
    income = (2.0 * hours + 10.0 * school if linked else 0.0) + rng.normal(size=ROWS)
    return pa.table(
        {
            "sex": np.where(man, "m", "f"),
            "school": np.array(["low", "middle", "high"])[school],
            "hours": hours,
            "income": income,
            "rich": income > np.median(income),
            "age": rng.integers(20, 60, ROWS),
        }
    )


LONGER = {"compare": "hours", "groups": [{"sex": "m"}, {"sex": "f"}]}
RICHER = {"compare": {"rich": True}, "groups": [{"school": ["high", "middle"]}, {"school": "low"}]}
EARNED = {"correlate": ["hours", "income"], "where": {"age": {"min": 30, "max": 50}}}
EFFECT = {"regress": "income", "on": ["hours", "school", {"sex": "m"}]}
NOTHING = {"compare": "age", "groups": [{"sex": "m"}, {"sex": "f"}], "level": 1e-6}
ALL = [LONGER, RICHER, EARNED, EFFECT, NOTHING]


def of(**declared: Any) -> Finding:
    return Finding(**declared)


def test_conclusions_say_what_is_there_and_which_way() -> None:
    table = people(1)
    found = [conclusion(of(**each), table) for each in ALL]
    assert found == ["higher", "higher", "higher", "higher", "no difference"]
    assert conclusion(of(**{**LONGER, "groups": LONGER["groups"][::-1]}), table) == "lower"
    assert conclusion(of(**EARNED), people(1, linked=False)) == "no difference"


def test_conclusions_turn_at_the_level_of_scipys_tests() -> None:
    table = people(2, gap=0.15)
    hours, man = table["hours"].to_numpy(), table["sex"].to_numpy(zero_copy_only=False) == "m"
    welch = stats.ttest_ind(hours[man], hours[~man], equal_var=False).pvalue
    ranks = stats.spearmanr(hours, table["age"].to_numpy()).pvalue
    for declared, chance in ((LONGER, welch), ({"correlate": ["hours", "age"]}, ranks)):
        assert conclusion(of(**declared, level=chance * 1.01), table) in ("higher", "lower")
        assert conclusion(of(**declared, level=chance * 0.99), table) == "no difference"


def test_a_coefficient_turns_at_the_level_of_robust_errors() -> None:
    """Ordinary least squares and HC1 by the formula with the whole matrix."""
    table = people(3, linked=False)
    man = (table["sex"].to_numpy(zero_copy_only=False) == "m").astype(float)
    matrix = np.stack([table["hours"].to_numpy(), np.ones(ROWS), man], axis=1)
    inverse = np.linalg.inv(matrix.T @ matrix)
    slopes = inverse @ matrix.T @ table["income"].to_numpy()
    errors = table["income"].to_numpy() - matrix @ slopes
    variance = inverse @ (matrix.T * errors**2) @ matrix @ inverse * ROWS / (ROWS - 3)
    chance = 2 * stats.t.sf(abs(slopes[0]) / np.sqrt(variance[0, 0]), ROWS - 3)
    declared = {"regress": "income", "on": ["hours", "sex"]}
    assert conclusion(of(**declared, level=chance * 1.001), table) == ("higher" if slopes[0] > 0 else "lower")
    assert conclusion(of(**declared, level=chance * 0.999), table) == "no difference"


def test_a_confounder_turns_a_sign_once_it_is_among_the_others() -> None:
    rng = np.random.default_rng(4)
    ward = rng.integers(0, 2, ROWS)
    dose = 5.0 * ward + rng.normal(size=ROWS)
    illness = 10.0 * ward - dose + rng.normal(size=ROWS)
    table = pa.table({"ward": np.where(ward, "intensive", "other"), "dose": dose, "illness": illness})
    assert conclusion(of(regress="illness", on=["dose"]), table) == "higher"
    assert conclusion(of(regress="illness", on=["dose", "ward"]), table) == "lower"
    assert conclusion(of(regress="illness", on=["dose", "dose"]), table) is None, "the others determine it"


def test_the_share_of_conclusions_that_hold() -> None:
    real = people(1)
    same = measure_parity(real, people(2), findings_of(ALL))
    assert (same.synthetic, same.resampled) == (1.0, 1.0)
    # Without links, RICHER, EARNED and EFFECT are lost; LONGER and NOTHING stay.
    lost = measure_parity(real, people(3, linked=False), findings_of(ALL))
    assert lost.synthetic == 2 / 5
    assert [each.synthetic for each in lost.findings] == [True, False, False, False, True]
    turned = measure_parity(real, people(4, gap=-1.0), findings_of([LONGER]))
    assert turned.synthetic == 0.0


def test_python_code_is_a_finding_and_its_failure_none() -> None:
    def median_is_high(table: pa.Table) -> bool:
        return bool(np.median(table["income"].to_numpy()) > 50)

    def fails(table: pa.Table) -> bool:
        raise ValueError(table["sex"][0].as_py())

    check_findings([median_is_high, fails], people(1))
    (groups,) = measure_parity(people(1), people(1), [lambda table: np.unique(table["school"].to_pylist())]).findings
    assert groups.drawn and groups.synthetic
    found = measure_parity(people(1), people(2, linked=False), findings_of([median_is_high, fails, LONGER]))
    assert [(each.name, each.drawn, each.synthetic) for each in found.findings] == [
        ("median_is_high", True, False),
        ("fails", False, False),
        ("difference of hours by sex", True, True),
    ]
    assert found.synthetic == 1 / 2, "what real rows say nothing about does not count"


def test_conditions_by_numbers_dates_truth_and_missing_values() -> None:
    table = pa.table(
        {
            "n": [1, 2, 3, None, 2, 9],
            "day": pa.array(["2026-01-01", "2026-02-01", None, "2026-03-01", "2026-01-05", "2026-01-06"]).cast(
                "date32"
            ),
            "b": [True, False, None, True, True, False],
            "y": [1.0, 2.0, 3.0, 4.0, 5.0, 9.0],
        }
    )

    def sides(condition: dict[str, Any]) -> list[float]:
        from dpsynth_platform.quality.conclusions import _meets

        checked = of(compare="y", groups=[condition, {"n": 1}])
        return table.filter(pa.array(_meets(table, checked.groups[0])))["y"].to_pylist()

    assert sides({"n": [2, None]}) == [2.0, 4.0, 5.0]
    assert sides({"n": {"min": 2, "max": 3}}) == [2.0, 3.0, 5.0]
    assert sides({"day": {"max": "2026-01-31"}}) == [1.0, 5.0, 9.0]
    assert sides({"b": True, "n": {"min": 2}}) == [5.0]
    assert sides({"b": None}) == [3.0]


def test_too_few_or_constant_rows_lead_to_no_conclusion() -> None:
    table = people(1)
    assert conclusion(of(**{**LONGER, "groups": [{"sex": "m"}, {"sex": "nobody"}]}), table) is None
    constant = table.set_column(2, "hours", pa.array([40.0] * ROWS))
    assert [conclusion(of(**each), constant) for each in (LONGER, EARNED, EFFECT)] == [None] * 3
    found = measure_parity(constant, table, findings_of([LONGER]))
    assert found.synthetic is None
    assert measure_parity(table, table, []) is None
    assert measure_parity(table, table.slice(0, 0), findings_of([LONGER])) is None


@pytest.mark.parametrize(
    ("declared", "said"),
    [
        ({}, "0 forms given; accepted: exactly one of compare"),
        ({"compare": "hours"}, "groups go with compare"),
        ({"correlate": ["hours"]}, "correlate"),
        ({"correlate": ["a", "b"], "on": ["c"]}, "on with regress"),
        ({"compare": "hours", "groups": [{"sex": "m"}, {"sex": {"low": 1}}]}, "a range {min: ..., max: ...}"),
        ({**LONGER, "level": 1.5}, "level"),
    ],
)
def test_a_finding_with_a_fault_is_refused(tmp_path: Path, declared: dict[str, Any], said: str) -> None:
    with pytest.raises(ContractError) as caught:
        findings_of([declared])
    assert said in str(caught.value)


@pytest.mark.parametrize(
    ("declared", "said"),
    [
        ({"correlate": ["hours", "size"]}, "no column 'size' in the real table; accepted: sex, school"),
        ({"correlate": ["hours", "sex"]}, "column 'sex' holds texts; accepted: a column of numbers"),
        ({"correlate": ["hours", {"age": "old"}]}, "a declared value is of another kind than its column"),
    ],
)
def test_a_finding_about_other_columns_is_refused(declared: dict[str, Any], said: str) -> None:
    with pytest.raises(SourceError) as caught:
        check_findings(findings_of([declared]), people(1))
    assert said in str(caught.value)
    (found,) = measure_parity(people(1), people(2), findings_of([declared])).findings
    assert not found.drawn, "a report that was paid for does not fail by it"


def test_findings_are_read_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "findings.yaml"
    path.write_text(
        "findings:\n"
        "  - {name: men work longer, compare: hours, groups: [{sex: m}, {sex: f}]}\n"
        "  - {regress: income, on: [hours, school], where: {age: {min: 30}}}\n"
    )
    found = read_findings(path)
    assert [each.label for each in found] == ["men work longer", "effect of hours on income"]
    assert found[1].columns == ["income", "hours", "school", "age"]
    path.write_text("findings: [{correlate: [hours]}]\n")
    with pytest.raises(ContractError, match=r"findings\.0\.correlate|findings\[0\]|correlate"):
        read_findings(path)
