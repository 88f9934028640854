"""Counts of a release's rows: what noisy counts say about a question, with limits that hold as often as they say."""

from __future__ import annotations

import copy
import itertools
import math
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from measured_cases import MEASURED
from scipy.stats import binom, norm
from typer.testing import CliRunner

import dpsynth
from dpsynth_platform.cli.main import app
from dpsynth_platform.foundation import signature
from dpsynth_platform.foundation.errors import ConfigurationError
from dpsynth_platform.release.fidelity import FidelityCounter, fidelity
from dpsynth_platform.release.publish import Published
from dpsynth_platform.release.row_counts import RowCount, count_rows
from dpsynth_platform.synth.tabular.noise import sample_rounded_gaussian

FALSE_ALARM = 1e-6
RUNS = 3_000
ROWS = pa.table(
    {
        "department": ["general", "general", "cardiology", "dermatology"],
        "insured": [True, None, False, True],
        "minutes": pa.array([5, 20, 60, 61], pa.int32()),
    }
)


def published(measured: dict[str, Any] = MEASURED) -> dict[str, Any]:
    return fidelity(measured, [[1] * len(table["measured"]) for table in measured["tables"]])


def asked(where: Any, confidence: float = 0.95, rows: pa.Table = ROWS) -> RowCount:
    return count_rows(published(), rows, where, confidence)


def width(sigma: float, parts: int, miss: float) -> float:
    return float(norm.isf(miss / 2)) * sigma * math.sqrt(parts) + 0.50001 * parts


def test_a_column_is_answered_by_its_own_counts() -> None:
    """The first exact table has half of 90% of the chance of a miss; the second one, whose cells add up, a sixth."""
    found = asked("department = 'general'")
    own, together = width(40, 1, 0.05 * 0.45), width(55, 3, 0.05 * 0.15)
    assert (found.estimate, found.counted, found.columns) == (28_790, True, ("department",))
    assert found.low == pytest.approx(max(28_790 - own, 28_790 - together))
    assert found.high == pytest.approx(min(28_790 + own, 28_790 + together))
    assert found.total == 47_991, "of the column whose sum has the least noise"
    assert found.synthetic == (2, 4)
    assert "about 28,790 of 47,991 records, by the noisy count" in str(found) and "2 of 4 synthetic rows" in str(found)


def test_several_columns_are_answered_by_counts_of_them_together() -> None:
    found = asked({"department": ["general", "cardiology"], "insured": True})
    assert found.estimate == 9_650 + 4_790 and found.columns == ("department", "insured")
    assert found.low == pytest.approx(14_440 - width(55, 2, 0.05 * 0.45))
    assert found.high == pytest.approx(14_440 + width(55, 2, 0.05 * 0.45))
    assert asked({"department": "general", "insured": None}).estimate == 9_540


def test_a_range_that_splits_a_cell_is_between_two_sums() -> None:
    """The share of synthetic rows is the estimate, within the limits; a range along the cells has one sum.

    Six noisy counts are in the range's cells; five are in all rows (three, of the column of least noise) without the
    other cells (two).
    """
    found, most = asked("minutes <= 40"), 47_991 - 25_281 - 12 + width(40, 5, 0.05 * 0.45)
    assert not found.counted and found.estimate == found.high == pytest.approx(most)
    assert found.low == pytest.approx(6_200 - width(40, 2, 0.05 * 0.45))
    whole = asked("minutes BETWEEN 5 AND 59")
    assert whole.counted and whole.estimate == 47_991 - 25_281 - 12
    assert asked("minutes BETWEEN 5 AND 19").estimate == 6_200
    assert asked("minutes >= 121").high == 0.0, "greater values were counted as the greatest declared one"
    assert asked({"minutes": [None]}).estimate == 12


def test_what_was_never_counted_together_has_an_upper_limit() -> None:
    """That of the smaller column: the second table that has only one of the columns has a sixth of a tenth.

    From below, columns that have few rows say nothing.
    """
    found = asked("minutes <= 19 AND department = 'dermatology'")
    assert not found.counted and found.low == 0.0 and found.columns == ("department",)
    assert found.high == pytest.approx(4_810 + width(40, 1, 0.05 * 0.1 / 2))
    assert found.estimate == 0.0 and found.synthetic == (0, 4)


def test_real_numbers_are_between_cuts() -> None:
    axis = {
        "column": "x", "nullable": True, "missing": 2, "labels": ["0 to 0.333333", "0.333333 to 1", "missing"],
        "kind": "float", "cuts": [1 / 3],
    }  # fmt: skip
    tables = [{"axes": [0], "order": 0, "sigma": 4.0, "parts": [1, 1, 1], "measured": [100, 200, 50]}]
    shown = published({"unit": "owners", "axes": [axis], "tables": tables, "left_out": 0})
    rows = pa.table({"x": [0.1, 1 / 3, math.nan, None]})
    below = count_rows(shown, rows, {"x": {"max": math.nextafter(1 / 3, 0)}})
    assert (below.estimate, below.synthetic, below.unit) == (100, (1, 4), "owners")
    above = count_rows(shown, rows, {"x": {"min": 1 / 3}})
    assert above.counted and above.estimate == 200 and above.synthetic == (1, 4)
    assert not count_rows(shown, rows, {"x": {"max": 1 / 3}}).counted, "rows at the cut are in the second cell"
    assert count_rows(shown, rows, {"x": None}).synthetic == (2, 4), "no number is a missing value"
    decimal = axis | {"labels": ["0.00 to 0.49", "0.50 to 1.00", "missing"], "cuts": [0.495]}
    shown = published({"unit": "records", "axes": [decimal], "tables": tables, "left_out": 0})
    assert count_rows(shown, rows, {"x": {"min": 0, "max": 0.49}}).estimate == 100


@pytest.mark.parametrize(
    ("strict", "other"),
    [
        ("minutes < 60", "minutes <= 59"),
        ("60 > minutes", "minutes <= 59"),
        ("minutes > 19", "minutes >= 20"),
        ("minutes > 19.5", "minutes >= 20"),
        ("minutes > 19 AND minutes < 60", "minutes BETWEEN 20 AND 59"),
        ("minutes >= 20 AND minutes > 4 AND minutes < 60", "minutes BETWEEN 20 AND 59"),
    ],
)
def test_strict_limits_are_those_of_the_next_value(strict: str, other: str) -> None:
    found, expected = asked(strict), asked(other)
    assert found == expected and found.counted


def test_a_condition_that_all_rows_fulfil_is_none() -> None:
    every = {"insured": [True, False, None]}
    assert asked({"department": "general", **every}) == asked({"department": "general"})
    found = asked(every)
    assert (found.estimate, found.counted, found.total) == (47_991, True, 47_991)
    assert found.low == pytest.approx(47_991 - width(40, 3, 0.05 * 0.45))


def test_nearly_all_rows_are_all_without_the_others() -> None:
    """All by the column of least noise, three counts, less one: four counts of noise instead of seven."""
    found = asked("minutes BETWEEN 5 AND 120")
    assert found.counted and found.estimate == 47_991 - 12
    assert found.low == pytest.approx(47_991 - 12 - width(40, 4, 0.05 * 0.45))
    assert asked("minutes >= 6").high == pytest.approx(47_991 - 12 + width(40, 4, 0.05 * 0.45))


def test_days_are_read_as_iso_texts() -> None:
    axis = {
        "column": "day", "nullable": False, "missing": 2, "labels": ["2026-01-01 to 2026-01-31",
        "2026-02-01 to 2026-02-28", "missing"], "kind": "date", "cuts": [20_485.0],
    }  # fmt: skip
    tables = [{"axes": [0], "order": 0, "sigma": 4.0, "parts": [1, 1, 1], "measured": [100, 200, 0]}]
    shown = published({"unit": "records", "axes": [axis], "tables": tables, "left_out": 0})
    rows = pa.table({"day": pa.array([20_484, 20_485], pa.date32())})
    found = count_rows(shown, rows, "day >= '2026-02-01'")
    assert (found.estimate, found.synthetic) == (200, (1, 2))
    with pytest.raises(ConfigurationError, match=r"where: day: 'soon'; accepted: a date as an ISO text"):
        count_rows(shown, rows, {"day": ["soon"]})


def test_moments_with_an_offset_are_read_in_utc() -> None:
    """As counts are; an offset that is not read would move the question by hours."""
    axis = {
        "column": "at", "nullable": False, "missing": 2, "labels": ["2026-01-01 00:00:00 to 2026-01-01 11:59:59",
        "2026-01-01 12:00:00 to 2026-01-01 23:59:59", "missing"], "kind": "datetime", "cuts": [1_767_268_800e6],
    }  # fmt: skip
    tables = [{"axes": [0], "order": 0, "sigma": 4.0, "parts": [1, 1, 1], "measured": [100, 200, 0]}]
    shown = published({"unit": "records", "axes": [axis], "tables": tables, "left_out": 0})
    rows = pa.table({"at": pa.array([1_767_268_800_000_000], pa.timestamp("us", "UTC"))})
    asked_alike = ("2026-01-01 12:00:00", "2026-01-01T12:00:00Z", "2026-01-01 14:00:00+02:00")
    for where in (*({"at": {"min": text}} for text in asked_alike), "at >= TIMESTAMPTZ '2026-01-01 10:00:00-02'"):
        found = count_rows(shown, rows, where)
        assert (found.estimate, found.counted, found.synthetic) == (200, True, (1, 1))


def test_a_hardly_possible_miss_has_limits() -> None:
    found = asked("department = 'general'", 1 - 2**-53)
    assert found.high == pytest.approx(28_790 + width(40, 1, 2**-53 * 0.45))


@pytest.mark.parametrize(
    ("where", "said"),
    [
        ("minutes <= 40 GROUP BY department", "not one condition"),
        ("minutes <= 40; minutes >= 3", "not one condition"),
        ("minutes <= 40 OR insured", "joined by AND"),
        ("insured IS NOT NULL", "insured IS NOT NULL: .*; accepted: columns with =, <, <=, >, >="),
        ("minutes != 40", "minutes <> 40; accepted: columns with =, <, <=, >, >="),
        ("", "not one condition"),
        ({}, "no condition"),
        (None, "where: NoneType; accepted: conditions as a text, or a mapping"),
        (["minutes"], "where: list; accepted"),
        ({"score": 1}, "where: score: no column with published counts; accepted: department, insured, minutes"),
        ({"department": "surgery"}, r"'surgery' is not in its list; accepted: 'cardiology', 'dermatology'"),
        ({"department": {"min": "a"}}, "department: a range; accepted: values of its list"),
        ({"minutes": "soon"}, "minutes: 'soon'; accepted: a number"),
        ({"minutes": {"max": math.nan}}, "minutes: nan; accepted: a number"),
        (f"minutes <= {'9' * 400}", "minutes: 9+; accepted: a number"),
        ({"minutes": {"least": 4}}, "accepted: a value, a list of values, or a range"),
    ],
)
def test_what_cannot_be_answered_is_refused(where: Any, said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        asked(where)


def test_a_confidence_is_never_said_to_be_all() -> None:
    assert "with 99.9999% confidence" in str(asked("insured", 0.999999))
    assert "with 95% confidence" in str(asked("insured", 0.95))


def test_a_confidence_is_a_share() -> None:
    with pytest.raises(ConfigurationError, match=r"confidence: 95; accepted: from 0.5 to below 1"):
        asked("insured", 95)
    with pytest.raises(ConfigurationError, match="confidence: str; accepted: a number"):
        asked("insured", "x")  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="no noisy counts"):
        count_rows(None, ROWS, "insured")


def test_single_columns_limit_what_they_have_in_common() -> None:
    """Brute force: for all joint tables of three columns and four rows, the least count that the columns allow.

    Rows count a million times, so that rounding to whole records is nothing.
    """
    kinds, many, n = list(itertools.product([True, False], repeat=3)), 10**6, 4
    least: dict[tuple[int, ...], int] = {}
    for rows in itertools.combinations_with_replacement(kinds, n):
        columns = tuple(map(sum, zip(*rows, strict=True)))
        least[columns] = min(least.get(columns, n), sum(map(all, rows)))
    axes = [{"column": name, "nullable": True, "missing": 1, "labels": ["x", "missing"], "groups": [["x"], []]}
            for name in "abc"]  # fmt: skip
    synthetic = pa.table({name: ["x"] for name in "abc"})
    for columns, expected in least.items():
        tables = [
            {"axes": [place], "order": 0, "sigma": 1e-9, "parts": [1, 1], "measured": [many * own, many * (n - own)]}
            for place, own in enumerate(columns)
        ]
        shown = published({"unit": "records", "axes": axes, "tables": tables, "left_out": 0})
        found = count_rows(shown, synthetic, dict.fromkeys("abc", "x"))
        assert expected * many - 3 < found.low <= expected * many, columns
    assert set(least.values()) == set(range(n + 1))


def test_what_single_columns_have_in_common_with_noise() -> None:
    """The first column's matching rows less the rows that fail the other condition, each with its own noise."""
    found = asked("minutes <= 59 AND department IN ('general', 'cardiology')")
    matching = 28_790 + 14_420 - width(40, 2, 0.05 * 0.1 / 2)
    assert found.low == pytest.approx(matching - (25_281 + 12 + width(40, 2, 0.05 * 0.1 / 6)))


def test_a_long_list_is_shortened() -> None:
    values = [f"v{number:03}" for number in range(50)]
    axis = {"column": "x", "nullable": False, "missing": 50, "labels": [*values, "missing"],
            "groups": [*([value] for value in values), []]}  # fmt: skip
    tables = [{"axes": [0], "order": 0, "sigma": 4.0, "parts": [1] * 51, "measured": [9] * 51}]
    shown = published({"unit": "records", "axes": [axis], "tables": tables, "left_out": 0})
    with pytest.raises(ConfigurationError, match=r"'w' is not in its list; accepted: 'v000', .*'v019' and 30 more$"):
        count_rows(shown, pa.table({"x": values}), {"x": "w"})


@pytest.mark.parametrize("joint", [1, 2, 3])
def test_limits_of_single_columns_hold_as_often_as_they_say(joint: int) -> None:
    """At the true limit itself, so that every miss of a part is one of the whole; as below."""
    truth = [[900, 100], [800, 200], [950, 50]][: joint + 1] if joint < 3 else [[900, 100], [990, 10]]
    names = "abc"[: len(truth)]
    axes = [
        {"column": name, "nullable": True, "missing": 1, "labels": ["x", "missing"], "groups": [["x"], []]}
        for name in names
    ]
    expected = sum(own for own, _ in truth) - 1000 * (len(truth) - 1)
    rows, misses, limits = pa.table({name: ["x"] for name in names}), 0, 0
    for _ in range(RUNS // 3):
        tables = [noisy([place], exact, 0, 20.0) for place, exact in enumerate(truth)]
        measured = {"unit": "records", "axes": axes, "tables": tables, "left_out": 0}
        found = count_rows(published(measured), rows, dict.fromkeys(names, "x"))
        misses, limits = misses + (not found.low <= expected <= found.high), limits + (found.low > 0)
    assert misses <= binom.isf(FALSE_ALARM, RUNS // 3, 0.05)
    assert limits > RUNS // 6, "limits that say something"


@pytest.mark.parametrize("where", ["c <= 3", "c < 3", "a IN ('x') AND c <= 4"])
def test_limits_from_the_number_of_all_rows_hold_as_often_as_they_say(where: str) -> None:
    """At the truth: many cells of `c` are what is left of all rows, which `a` counts with less noise; as below."""
    axes = [
        {"column": "a", "nullable": True, "missing": 1, "labels": ["x", "missing"], "groups": [["x"], []]},
        {"column": "c", "nullable": False, "missing": 5, "labels": [*"01234", "missing"], "kind": "integer",
         "cuts": [1, 2, 3, 4]},
    ]  # fmt: skip
    rows, misses, limits = pa.table({"a": ["x"], "c": [1]}), 0, 0
    expected = {"c <= 3": 900, "c < 3": 700}.get(where, 1000)
    for _ in range(RUNS // 3):
        tables = [noisy([0], [1000, 0], 0, 10.0), noisy([1], [200, 300, 200, 200, 100, 0], 0, 20.0)]
        found = count_rows(published({"unit": "records", "axes": axes, "tables": tables, "left_out": 0}), rows, where)
        misses, limits = misses + (not found.low <= expected <= found.high), limits + (found.high < 1100)
    assert misses <= binom.isf(FALSE_ALARM, RUNS // 3, 0.05)
    assert limits > RUNS // 6, "limits that say something"


@pytest.mark.parametrize("where", ["a = 'x'", "a = 'x' AND b = 'x'"])
def test_limits_hold_as_often_as_they_say(where: str) -> None:
    """Also where earlier noise decides which tables follow, with which noise, and which one is the narrowest.

    Of RUNS runs, those with a miss are at most binomial with 0.05: the limit is exceeded with less than FALSE_ALARM.
    """
    truth = {("a",): [400, 600], ("b",): [300, 700], ("a", "b"): [100, 300, 200, 500 - 0]}
    axes = [
        {"column": name, "nullable": True, "missing": 1, "labels": ["x", "missing"], "groups": [["x"], []]}
        for name in "ab"
    ]
    rows = pa.table({"a": ["x"], "b": ["x"]})
    expected = truth[("a",)][0] if "b" not in where else truth[("a", "b")][0]
    misses = 0
    for _ in range(RUNS):
        tables = [noisy([0], truth[("a",)], 0, 20.0), noisy([1], truth[("b",)], 0, 20.0)]
        for order in range(1, 6):  # a table is counted again, more precisely, where the last one looks too low
            tables.append(noisy([0, 1], truth[("a", "b")], order, 30.0 / order))
            if tables[-1]["measured"][0] > expected:
                break
        measured = {"unit": "records", "axes": axes, "tables": tables, "left_out": 0}
        found = count_rows(published(measured), rows, where)
        misses += not found.low <= expected <= found.high
    assert misses <= binom.isf(FALSE_ALARM, RUNS, 0.05)


def noisy(axes: list[int], exact: list[int], order: int, sigma: float) -> dict[str, Any]:
    measured = sample_rounded_gaussian(np.array(exact), sigma).tolist()
    found = {"axes": axes, "order": order, "sigma": sigma, "measured": measured}
    return found | ({} if order else {"parts": [1] * len(exact)})


def test_a_recipient_asks_in_python_and_on_the_command_line(
    released: Published, signing_key: Ed25519PrivateKey, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    key = tmp_path / "publisher.pem"
    key.write_bytes(signature.public_pem(signing_key.public_key()))
    release = dpsynth.load_release(released.path, public_key=key)
    found = release.count("insured AND department IN ('general', 'cardiology')")
    frame = release.data
    own = frame[(frame["insured"] == True) & frame["department"].isin(["general", "cardiology"])]  # noqa: E712
    assert found.synthetic == (len(own), 400) and found.counted
    assert CliRunner().invoke(app, ["release", "count", str(released.path), "insured"]).exit_code == 0
    assert " ".join(capfd.readouterr().out.split()) == str(release.count("insured"))
    with pytest.raises(dpsynth.ConfigurationError, match="remark: no column with published counts"):
        release.count({"remark": "?"})


def test_synthetic_rows_are_counted_as_in_the_comparison() -> None:
    """Each cell's rows, by conditions and by the counter of the dossier."""
    counter = FidelityCounter(copy.deepcopy(MEASURED))
    counter.add(ROWS.to_batches()[0])
    by_minutes = counter.tables()[2]
    ranges = [{"min": 5, "max": 19}, {"min": 20, "max": 59}, {"min": 60, "max": 120}, [None]]
    assert [asked({"minutes": part}).synthetic[0] for part in ranges] == by_minutes
