"""Published rows beside noisy counts: bars hold as often as they say, and comparisons follow from the table."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from scipy.stats import binom
from table_cases import one_table
from test_verify import pem, resign, rewrite

from dpsynth_platform.foundation import release_layout as layout
from dpsynth_platform.release.fidelity import CONFIDENCE, FidelityCounter, fidelity
from dpsynth_platform.release.noisy_tables import faults
from dpsynth_platform.release.publish import Published
from dpsynth_platform.release.verify import verify_release
from dpsynth_platform.synth.tabular.noise import sample_rounded_gaussian

FALSE_ALARM = 1e-6
RUNS = 1_500


def table(order: int, exact: np.ndarray[Any, Any], sigma: float, parts: int = 1) -> dict[str, Any]:
    """A table of true counts and fresh noise of the mechanisms' own sampler; a figure adds `parts` noisy counts."""
    noisy = sum(sample_rounded_gaussian(exact if part == 0 else 0 * exact, sigma) for part in range(parts))
    found = {"axes": [0], "order": order, "sigma": sigma, "measured": noisy.tolist()}
    return found | ({} if order else {"parts": [parts] * exact.size})


def missed(exact: np.ndarray[Any, Any], tables: list[dict[str, Any]]) -> bool:
    """Whether any true count is outside of its bar."""
    axis = {"column": "x", "nullable": True, "missing": 0, "labels": ["x"] * exact.size}
    measured = {"unit": "records", "axes": [axis], "tables": tables, "left_out": 0}
    shown = fidelity(measured, [[1] * exact.size for _ in tables])
    return any(
        np.any(np.abs(np.array(found["measured"]) - exact) > np.array(found["bars"])) for found in shown["tables"]
    )


@pytest.mark.parametrize(("sigma", "parts"), [(0.12, 1), (0.3, 3), (25.0, 1), (80.0, 4)])
def test_all_bars_hold_at_once_as_often_as_they_say(sigma: float, parts: int) -> None:
    """Also where earlier noise decides how many tables follow and with which noise, as annealing mechanisms do.

    Of RUNS runs, those with a miss are at most binomial with 1 - CONFIDENCE: the limit is exceeded with less than
    FALSE_ALARM.
    """
    exact, misses = np.arange(40) * 3, 0
    for _ in range(RUNS):
        tables = [table(0, exact, sigma, parts), table(0, exact, sigma, parts)]
        for order in range(1, 9):
            tables.append(table(order, exact, sigma if tables[-1]["measured"][0] < 0 else 2 * sigma))
            if tables[-1]["measured"][1] > 3 + sigma:
                break
        misses += missed(exact, tables)
    assert misses <= binom.isf(FALSE_ALARM, RUNS, 1 - CONFIDENCE)


def test_bars_are_no_wider_than_they_need_to_be() -> None:
    """With tables of order 0 alone, 1 - (1 - a/M)^M of the runs miss, where a is half of 1 - CONFIDENCE.

    Rounding widens bars of 300 by half a record, which lowers that by less than a percent of itself: 2.4% is a safe
    lower bound. Of RUNS, fewer than the limit miss with less than FALSE_ALARM.
    """
    exact = np.arange(60) * 3
    misses = sum(missed(exact, [table(0, exact, 80.0)]) for _ in range(RUNS))
    assert misses >= binom.ppf(FALSE_ALARM, RUNS, 0.024)


def test_the_comparison_of_a_release(released: Published) -> None:
    dossier = json.loads((released.path / layout.DOSSIER).read_text())
    shown = dossier["fidelity"]
    assert [sum(found["synthetic"]) for found in shown["tables"]] == [400] * 4
    department, insured, minutes, joint = shown["tables"]
    assert department["synthetic"] == dossier["synthetic"]["columns"][3]["histogram"]["counts"] + [0]
    assert department["total"] == 28_790 + 14_420 + 4_810, "no row can be in the cell of missing values"
    assert (department["cells"], insured["cells"], joint["cells"]) == (3, 3, 9)
    assert minutes["bars"][1] / minutes["bars"][2] == pytest.approx(2, abs=0.02), "a sum of four has twice the noise"
    assert joint["by_noise"] > department["by_noise"] > 0
    assert dossier["release"]["recipients"] == ["The clinic's planners"]


def changed_count(dossier: dict[str, Any]) -> None:
    dossier["fidelity"]["tables"][0]["synthetic"][0] += 1
    dossier["fidelity"]["tables"][0]["synthetic"][1] -= 1


def narrow_bars(dossier: dict[str, Any]) -> None:
    dossier["fidelity"]["tables"][3]["bars"][0] *= 0.9


def flattering_difference(dossier: dict[str, Any]) -> None:
    dossier["fidelity"]["tables"][2]["difference"] = 0.0


def other_cells(dossier: dict[str, Any]) -> None:
    dossier["fidelity"]["axes"][2]["cuts"][0] = 25


def swapped_labels(dossier: dict[str, Any]) -> None:
    labels = dossier["fidelity"]["axes"][0]["labels"]
    labels[0], labels[1] = labels[1], labels[0]


def wrong_ranges(dossier: dict[str, Any]) -> None:
    dossier["fidelity"]["axes"][2]["labels"] = ["5 to 100", "101 to 110", "111 to 120", "missing"]


def ranges_with_a_gap(dossier: dict[str, Any]) -> None:
    dossier["fidelity"]["axes"][2]["labels"][1] = "20 to 40"


def value_in_two_groups(dossier: dict[str, Any]) -> None:
    axis = dossier["fidelity"]["axes"][0]
    axis["groups"][2].append("general")
    axis["labels"][2] += ", general"


def computed_again(dossier: dict[str, Any], *, more: list[tuple[dict[str, Any], list[int]]] = []) -> None:  # noqa: B006
    """All that follows from the tables made to fit."""
    told = dossier["fidelity"]
    counts = [found["synthetic"] for found in told["tables"]]
    told["tables"] += [found for found, _ in more]
    dossier["fidelity"] = fidelity(told, [*counts, *(rows for _, rows in more)])


def no_noise(dossier: dict[str, Any]) -> None:
    """Noisy counts that equal the rows, with bars of next to nothing."""
    for found in dossier["fidelity"]["tables"]:
        found |= {"measured": list(found["synthetic"]), "sigma": 1e-9}
    computed_again(dossier)


def order_twice(dossier: dict[str, Any]) -> None:
    joint = dict(dossier["fidelity"]["tables"][3], sigma=1e9)
    computed_again(dossier, more=[(joint, joint["synthetic"])])


def column_twice(dossier: dict[str, Any]) -> None:
    department = dict(dossier["fidelity"]["tables"][0], sigma=1e9)
    computed_again(dossier, more=[(department, department["synthetic"])])


def hidden_cell(dossier: dict[str, Any]) -> None:
    """A figure beyond the cells, which adds to the total."""
    found = dossier["fidelity"]["tables"][0]
    found |= {"measured": [*found["measured"], 10**6], "parts": [*found["parts"], 1]}
    found["synthetic"] = [*found["synthetic"], 0]
    found["bars"] = [*found["bars"], 1.0]


def parts_of_joint_counts(dossier: dict[str, Any]) -> None:
    dossier["fidelity"]["tables"][3]["parts"] = [9] * 12
    computed_again(dossier)


def too_many_cells(dossier: dict[str, Any]) -> None:
    for axis in dossier["fidelity"]["axes"][:2]:
        axis["groups"] = [[str(place)] for place in range(99_999)]
        axis["labels"] = [str(place) for place in range(99_999)]


def no_such_column(dossier: dict[str, Any]) -> None:
    dossier["fidelity"]["axes"][2]["column"] = "elsewhere"


def no_such_axis(dossier: dict[str, Any]) -> None:
    dossier["fidelity"]["tables"][1]["axes"] = [77]


def more_confidence(dossier: dict[str, Any]) -> None:
    dossier["fidelity"]["confidence"] = 0.999


@pytest.mark.parametrize(
    ("change", "where"),
    [
        (changed_count, "$.fidelity.tables[0].synthetic"),
        (narrow_bars, "$.fidelity.tables[3].bars"),
        (flattering_difference, "$.fidelity.tables[2].difference"),
        (swapped_labels, "$.fidelity.axes[0]"),
        (wrong_ranges, "$.fidelity.axes[2]"),
        (ranges_with_a_gap, "$.fidelity.axes[2]"),
        (value_in_two_groups, "$.fidelity.axes[0]"),
        (no_noise, "$.fidelity.tables"),
        (order_twice, "$.fidelity.tables"),
        (column_twice, "$.fidelity.tables"),
        (hidden_cell, "$.fidelity.tables[0]"),
        (parts_of_joint_counts, "$.fidelity.tables[3]"),
        (too_many_cells, "$.fidelity.tables[3]"),
        (other_cells, "$.fidelity.axes[2]"),
        (no_such_column, None),
        (no_such_axis, "$.fidelity.tables[1]"),
        (more_confidence, "$.fidelity.confidence"),
    ],
)
def test_what_does_not_follow_from_the_published_table_is_found(
    released: Published, signing_key: Ed25519PrivateKey, change: Callable[[dict[str, Any]], None], where: str | None
) -> None:
    """Although the publisher signed it."""
    rewrite(released.path, signing_key, change)
    report = verify_release(released.path, pem(signing_key))
    assert [problem.kind for problem in report.problems] == ["table"] * len(report.problems)
    assert where in [problem.where for problem in report.problems]


def nested(depth: int) -> list[Any]:
    return [nested(depth - 1)] if depth else []


@pytest.mark.parametrize("axes", [[0] * 3000, [0, 0], list(range(17)), [0, [[]]], [nested(400), nested(400)]])
def test_tables_of_too_many_columns_break_the_schema(
    released: Published, signing_key: Ed25519PrivateKey, axes: list[Any]
) -> None:
    def change(dossier: dict[str, Any]) -> None:
        dossier["fidelity"]["tables"][3]["axes"] = axes

    rewrite(released.path, signing_key, change)
    assert {problem.kind for problem in verify_release(released.path, pem(signing_key)).problems} == {"schema"}


RANGES: list[tuple[str, list[float], list[str]]] = [
    ("integer", [10, 11], ["-5 to 9", "10", "11 to 30"]),
    ("date", [20_000], ["2024-01-01 to 2024-10-03", "2024-10-04 to 2024-12-31"]),
    ("datetime", [60_000_000], ["1970-01-01 00:00:00 to 1970-01-01 00:00:59", "1970-01-01 00:01:00"]),
    ("float", [0.145], ["0.10 to 0.14", "0.15 to 0.20"]),
    ("float", [4.5], ["1 to 4", "5 to 9"]),
    ("float", [0.0, 5e-324, 1234567.8], ["-1 to 0", "0", "4.94066e-324 to 1.23457e+06", "1.23457e+06 to 2e+06"]),
    ("float", [], ["0 to 1"]),
]


@pytest.mark.parametrize(("kind", "cuts", "ranges"), RANGES)
def test_labels_of_ranges_are_compared_with_their_cuts(kind: str, cuts: list[float], ranges: list[str]) -> None:
    def told(cuts: list[float], labels: list[str]) -> list[tuple[str, str]]:
        axis = {"column": "c", "nullable": True, "missing": len(ranges), "labels": labels, "kind": kind, "cuts": cuts}
        return list(faults({"axes": [axis], "tables": []}, {"kind": "none"}))

    labels = [*ranges, "missing"]
    assert told(cuts, labels) == []
    assert told(cuts, [*ranges, "other"])
    assert told([cut * 1.5 + 1 for cut in cuts] or [1.0], labels)
    assert told(cuts, ["a to b", *labels[1:]])
    if len(ranges) > 1:
        assert told(cuts, [*reversed(ranges), "missing"])
        assert told([*cuts[:-1], float("nan")], labels)


def invented_row(sample: dict[str, Any]) -> object:
    sample["rows"][2][0] = "S9999999"
    return sample


def deep_rows(sample: dict[str, Any]) -> object:
    for _ in range(400):
        sample["rows"] = [sample["rows"]]
    return sample


@pytest.mark.parametrize(
    ("change", "where"),
    [
        (invented_row, "$.rows[2]"),
        (lambda sample: sample | {"columns": sample["columns"][:1]}, None),
        (lambda sample: sample | {"columns": ["elsewhere"], "rows": [["x"]]}, None),
        (lambda sample: sample | {"rows": sample["rows"] * 300}, None),
        (lambda sample: sample["rows"], None),
        (deep_rows, None),
    ],
)
def test_first_rows_that_are_none_of_the_table_are_found(
    released: Published, signing_key: Ed25519PrivateKey, change: Callable[[dict[str, Any]], object], where: str | None
) -> None:
    file = released.path / layout.SAMPLE
    sample = json.loads(file.read_text())
    assert sample["rows"][0][0] == "S0000000"
    assert len(sample["rows"]) == 5
    file.write_text(json.dumps(change(sample)))
    resign(released.path, signing_key)
    (problem,) = verify_release(released.path, pem(signing_key)).problems
    assert (problem.kind, problem.file, problem.where) == ("table", layout.SAMPLE, where)


def test_rows_are_counted_whatever_their_types() -> None:
    """Values of every accepted type, with missing ones; the last group is that of missing values."""
    axes: list[dict[str, Any]] = [
        {"column": "code", "groups": [["4"], ["5", "6"], []]},
        {"column": "day", "kind": "date", "cuts": [20_000]},
        {"column": "moment", "kind": "datetime", "cuts": [1_000_000]},
        {"column": "amount", "kind": "float", "cuts": [0.5]},
        {"column": "exact", "kind": "float", "cuts": [0.145]},
    ]
    for axis in axes:
        axis |= {"labels": ["low", "high", "missing"], "missing": 2, "nullable": True}
    rows = pa.table(
        {
            "code": pa.array(["4", "6", None, "5"]).dictionary_encode(),
            "day": pa.array([19_999, 20_000, 20_001, None], pa.int32()).cast(pa.date32()),
            "moment": pa.array([0, 999_999, 1_000_000, None], pa.int64()).cast(pa.timestamp("us", "UTC")),
            "amount": pa.array([0.25, 0.5, float("nan"), None], pa.float32()),
            "exact": pa.array(["0.14", "0.15", "0.16", None]).cast(pa.decimal128(5, 2)),
        }
    )
    tables = [{"axes": [place], "order": 0, "sigma": 1.0, "measured": [0, 0, 0]} for place in range(5)]
    counter = FidelityCounter({"axes": axes, "tables": tables})
    for batch in rows.to_batches():
        counter.add(batch)
    assert counter.tables() == [[1, 2, 1], [1, 2, 1], [2, 1, 1], [1, 1, 2], [1, 2, 1]]


def test_a_release_without_counted_columns_says_nothing_of_fidelity(
    with_approvals: Callable[..., Any], rows: list[pa.RecordBatch], tmp_path: Path, signing_key: Ed25519PrivateKey
) -> None:
    from dpsynth_platform.release.publish import publish

    made = publish(
        with_approvals(measured=None, budget=None), one_table(rows), tmp_path / "other", signing_key,
        announce=lambda: None,
    )  # fmt: skip
    assert json.loads((made.path / layout.DOSSIER).read_text())["fidelity"] is None


def test_a_dossier_of_format_8_verifies(released: Published, signing_key: Ed25519PrivateKey) -> None:
    rewrite(released.path, signing_key, lambda dossier: dossier.update(format="dpsynth-dossier/8"))
    assert verify_release(released.path).ok


def test_a_dossier_of_the_format_before_verifies_as_it_is(released: Published, signing_key: Ed25519PrivateKey) -> None:
    def older(dossier: dict[str, Any]) -> None:
        dossier["format"] = "dpsynth-dossier/3"
        for part, names in (
            (dossier, ["fidelity"]), (dossier["ledger"], ["budget"]),
            (dossier["release"], ["purpose", "recipients"]), (dossier["clearance"], ["bases"]),
        ):  # fmt: skip
            for name in names:
                del part[name]

    (released.path / layout.SAMPLE).unlink()
    rewrite(released.path, signing_key, older)
    assert verify_release(released.path, pem(signing_key)).ok
