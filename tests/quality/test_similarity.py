from __future__ import annotations

import os
from itertools import combinations
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpsynth_platform.quality.columns import Column, align, of_tables
from dpsynth_platform.quality.similarity import (
    association_accuracy,
    histogram_intersection,
    measure_similarity,
    pair_similarity,
)
from dpsynth_platform.quality.utility import measure_utility

SMALL_NUMBERS = st.one_of(st.none(), st.integers(-8, 8).map(lambda value: value / 2))
TABLES = st.integers(1, 25).flatmap(
    lambda rows: st.fixed_dictionaries(
        {
            "x": st.lists(SMALL_NUMBERS, min_size=rows, max_size=rows),
            "y": st.lists(SMALL_NUMBERS, min_size=rows, max_size=rows),
            "word": st.lists(st.sampled_from(["a", "b", None]), min_size=rows, max_size=rows),
        }
    ).map(lambda columns: pa.table(columns, schema=SCHEMA))
)
SCHEMA = pa.schema([("x", pa.float64()), ("y", pa.float64()), ("word", pa.string())])
WHOLE = pa.table({"a": ["p"] * 6 + ["q"] * 2, "n": [0.0, 1, 2, 3, 4, 5, 6, 10]})


def columns_of(real: pa.Table, other: pa.Table) -> tuple[Column, ...]:
    return align({"real": real, "synthetic": other})


def test_histogram_intersection_of_a_small_example() -> None:
    other = pa.table({"a": ["p", "q"], "n": [10.0, 20.0]})
    # a: min(6/8, 1/2) + min(2/8, 1/2). n, five edges on 0..20: bins of 5 with 5, 2, 1, 0 and 0, 0, 1, 1 rows.
    assert histogram_intersection(columns_of(WHOLE, other), 5) == pytest.approx((0.75 + 0.125) / 2)


def test_pair_similarity_of_a_small_example() -> None:
    other = pa.table({"a": ["p", "q", "p"], "n": [5.0, 5.1, -3.0]})
    # Five edges on 0..10, bins closed on the right: p in 0..2.5 and in 2.5..5 three times each, q in 5..7.5 and in
    # 7.5..10 once each. The other table: p in 2.5..5 and (out of range) in the first, q in 5..7.5.
    expected = min(3 / 8, 1 / 3) * 2 + min(1 / 8, 1 / 3)
    assert pair_similarity(columns_of(WHOLE, other), 5) == pytest.approx(expected)


@pytest.mark.parametrize("bins", [20, 50])
def test_numbers_are_counted_as_numpy_does(bins: int) -> None:
    rng = np.random.default_rng(bins)
    real, other = rng.integers(0, bins, 400).astype(float), rng.normal(bins / 3, bins / 5, 300)
    low, high = min(real.min(), other.min()), max(real.max(), other.max())
    edges = np.linspace(0, 1, bins)
    counts = [np.histogram((values - low) / (high - low), edges)[0] / len(values) for values in (real, other)]
    found = histogram_intersection(columns_of(pa.table({"n": real}), pa.table({"n": other})), bins)
    assert found == pytest.approx(np.minimum(*counts).sum())


def cut(value: float | None, low: float, high: float, bins: int) -> int:
    """Which of the bins (e_i, e_(i+1)] holds a value, found by trying them all."""
    if value is None or not low <= value <= high:
        return 0
    share = (value - low) / ((high - low) or 1.0)
    edges = np.linspace(0, 1, bins)
    return next((i for i in range(bins - 1) if edges[i] < share <= edges[i + 1]), 0)


@settings(max_examples=60, deadline=None)
@given(real=TABLES, other=TABLES)
def test_pairs_are_those_of_the_definition(real: pa.Table, other: pa.Table) -> None:
    rows: list[list[tuple]] = []
    for table in (real, other):
        coded = {"word": table["word"].to_pylist()}
        for name in ("x", "y"):
            known = [value for value in real[name].to_pylist() if value is not None] or [0.0]
            coded[name] = [cut(value, min(known), max(known), 5) for value in table[name].to_pylist()]
        rows.append(list(zip(*coded.values(), strict=True)))
    expected = []
    for pair in combinations(range(3), 2):
        first, second = ([tuple(row[i] for i in pair) for row in table] for table in rows)
        cells = set(first) | set(second)
        expected.append(sum(min(first.count(c) / len(first), second.count(c) / len(second)) for c in cells))
    assert pair_similarity(columns_of(real, other), 5) == pytest.approx(np.mean(expected))


@settings(max_examples=60, deadline=None)
@given(table=TABLES)
def test_a_table_is_wholly_similar_to_itself(table: pa.Table) -> None:
    found = measure_similarity(columns_of(table, table))
    for share in (found.histogram, found.pair, found.association_accuracy):
        assert share == pytest.approx(1.0, abs=1e-12)


@settings(max_examples=60, deadline=None)
@given(real=TABLES, other=TABLES)
def test_shares_are_shares(real: pa.Table, other: pa.Table) -> None:
    found = measure_similarity(columns_of(real, other))
    for share in (found.histogram_20, found.histogram_50, found.pair_20, found.pair_50, found.association_accuracy):
        assert -1e-12 <= share <= 1 + 1e-12


def test_tables_without_a_value_in_common_are_not_similar() -> None:
    other = pa.table({"a": ["r"] * 8, "n": [1000.0] * 8})
    columns = columns_of(WHOLE, other)
    assert histogram_intersection(columns, 20) == 0.0
    assert pair_similarity(columns, 20) == 0.0


def test_one_column_has_no_pairs() -> None:
    found = measure_similarity(columns_of(WHOLE.select(["n"]), WHOLE.select(["n"])))
    assert (found.pair_20, found.pair_50, found.pair) == (None, None, None)


def test_missing_values_are_values_of_their_own() -> None:
    real = pa.table({"n": [1.0, 2.0, None, None], "a": ["p", "p", None, None]})
    full = pa.table({"n": [1.0, 2.0], "a": ["p", "p"]})
    assert histogram_intersection(columns_of(real, full), 20) == pytest.approx(0.5)


def test_the_larger_table_is_cut_before_associations_are_compared() -> None:
    rng = np.random.default_rng(3)
    x = rng.normal(size=4000)
    strong = pa.table({"x": x, "y": x + rng.normal(size=4000) / 10})
    loose = pa.table({"x": x[:50], "y": rng.normal(size=50)})
    assert association_accuracy(columns_of(strong, strong.slice(0, 40))) == 1.0
    assert association_accuracy(columns_of(strong, loose)) == pytest.approx(0.5)
    assert association_accuracy(columns_of(loose, strong)) == pytest.approx(0.5)


PUBLISHED = {
    "adult/adult_dp2stage_split.parquet": ("income", (69.3, 91.6, 84.0, 95.6, 97.4, 99.2)),
    "texas_hospital_2013/texas_dp2stage_split.parquet": ("risk_mortality", (87.3, 98.9, 95.0, 85.2, 98.3, 99.4)),
}


@pytest.mark.slow
@pytest.mark.skipif("DPSYNTH_BENCH_DATA" not in os.environ, reason="DPSYNTH_BENCH_DATA names no directory")
@pytest.mark.parametrize("name", PUBLISHED)
def test_figures_of_real_rows_are_those_of_the_published_code(name: str) -> None:
    """F1, AUC, accuracy, CorAcc, Pair (50 bins) and HIST of training against test rows, by the paper's own code."""
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    target, figures = PUBLISHED[name]
    table = pq.read_table(Path(os.environ["DPSYNTH_BENCH_DATA"]) / name)
    train, test = (table.filter(pc.equal(table["split"], part)).drop(["split"]) for part in ("train", "test"))
    columns = of_tables(align({"real": test, "synthetic": train}), 0, 1)
    similar = measure_similarity(columns)
    utility, _ = measure_utility(columns, target)
    mean = utility.synthetic.mean
    ours = (mean.f1, mean.roc_auc, mean.accuracy, similar.association_accuracy, similar.pair_50, similar.histogram)
    assert [round(100 * value, 1) for value in ours] == pytest.approx(figures, abs=0.11)
