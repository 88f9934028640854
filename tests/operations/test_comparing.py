"""Synthetic rows beside noisy counts: which values are drawn, and from which files."""

from __future__ import annotations

import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from dpsynth_platform.foundation.storage import read_table, write_table
from dpsynth_platform.operations.comparing import MOST_VALUES, compared_columns
from dpsynth_platform.release.fidelity import FidelityCounter, columns_of, fidelity
from dpsynth_platform.synth.tabular.measured import read_measured, write_measured

TOWNS = [f"town-{number:02d}" for number in range(40)]
ROWS = pa.table(
    {
        "town": [town for number, town in enumerate(TOWNS) for _ in range(40 - number)],
        "age": pa.array([number % 30 for number in range(820)], pa.int64()),
    }
)
AXES: list[dict[str, Any]] = [
    {"column": "age", "nullable": True, "missing": 3, "labels": ["0 to 9", "10 to 19", "20 to 29", "missing"]}
    | {"kind": "integer", "cuts": [10, 20]},
    {"column": "town", "nullable": False, "missing": 40, "labels": [*TOWNS, "missing"]}
    | {"groups": [*([town] for town in TOWNS), []]},
]


def table(axes: list[int], order: int, measured: list[int]) -> dict[str, Any]:
    parts = {} if order else {"parts": [1] * len(measured)}
    return {"axes": axes, "order": order, "sigma": 2.0, "measured": measured} | parts


@pytest.fixture
def synthetic(tmp_path: Path) -> Path:
    """Rows of 40 towns, with noisy counts of which those of towns are the rows', and those of ages are not."""
    write_table(tmp_path / "table", ROWS.schema, ROWS.to_batches())
    tables = [
        table([0, 1], 1, [5] * 164),
        table([1], 0, [*range(40, 0, -1), 7]),
        table([0], 0, [600, 100, 100, 0]),
    ]
    write_measured(tmp_path, {"unit": "records", "axes": AXES, "tables": tables, "left_out": 0})
    return tmp_path


def test_columns_that_differ_most_come_first(synthetic: Path) -> None:
    age, town = compared_columns(synthetic)
    assert (age.name, town.name) == ("age", "town")
    # 280, 270 and 270 of 820 rows beside 600, 100 and 100 of 800 counts
    assert age.difference == pytest.approx(600 / 800 - 280 / 820, abs=1e-5)
    assert age.labels == ("0 to 9", "10 to 19", "20 to 29", "missing"), "ordered values stay in their order"
    assert age.synthetic == pytest.approx((280 / 820, 270 / 820, 270 / 820, 0))
    assert age.noisy == pytest.approx((0.75, 0.125, 0.125, 0))
    assert (town.difference, town.within, town.cells) == (0, 40, 40)
    assert town.in_words == "town: 40 of 40 values within the noise of their counts"
    assert town.row == ("town", "0.000", f"{town.by_noise:.3f}", "40 of 40")


def test_figures_are_those_of_the_public_dossier(synthetic: Path) -> None:
    """Which is computed from all tables, not from those of single columns alone."""
    measured = read_measured(synthetic)
    assert measured is not None
    counter = FidelityCounter(measured)
    for batch in read_table(synthetic / "table", columns=columns_of(measured)):
        counter.add(batch)
    published = fidelity(measured, counter.tables())["tables"]
    for column in compared_columns(synthetic):
        (found,) = (one for one in published if [AXES[at]["column"] for at in one["axes"]] == [column.name])
        assert (column.difference, column.by_noise) == (found["difference"], found["by_noise"])
        assert (column.within, column.cells) == (found["within"], found["cells"])


def test_of_many_values_the_rare_ones_are_one_bar(synthetic: Path) -> None:
    town = compared_columns(synthetic)[1]
    assert list(town.labels) == [*TOWNS[:MOST_VALUES], "20 others"]
    counts = Counter(ROWS.column("town").to_pylist())
    assert town.synthetic[-1] == pytest.approx(sum(counts[name] for name in TOWNS[MOST_VALUES:]) / 820)
    assert sum(town.synthetic) == pytest.approx(1)
    assert sum(town.noisy) == pytest.approx(1), "no row can be in the cell of missing values"
    assert "20 others" in town.chart
    assert TOWNS[MOST_VALUES] not in town.chart


def test_without_counts_of_single_columns_nothing_is_read(synthetic: Path) -> None:
    tables = [table([0, 1], 1, [5] * 164)]
    write_measured(synthetic, {"unit": "records", "axes": AXES, "tables": tables, "left_out": 0})
    shutil.rmtree(synthetic / "table")
    assert compared_columns(synthetic) == []
    (synthetic / "measured.json").unlink()
    assert compared_columns(synthetic) == []


def test_counts_that_noise_took_below_zero_are_not_compared(synthetic: Path) -> None:
    tables = [table([0], 0, [-3, 1, 1, -5])]
    write_measured(synthetic, {"unit": "records", "axes": AXES[:1], "tables": tables, "left_out": 0})
    assert compared_columns(synthetic) == []
