from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.spatial.distance import cdist

from dpsynth_platform.quality import closeness
from dpsynth_platform.quality.closeness import NEIGHBOURS, exact_copies, measure_closeness
from dpsynth_platform.quality.columns import Column, align

SCHEMA = pa.schema([("n", pa.float64()), ("m", pa.int64()), ("c", pa.string())])
ROW = st.fixed_dictionaries(
    {
        "n": st.one_of(st.none(), st.sampled_from([0.0, 0.5, 2.0])),
        "m": st.integers(0, 2),
        "c": st.sampled_from(["a", "b", None]),
    }
)
ROWS = st.lists(ROW, min_size=1, max_size=12)


def table(rows: list[dict]) -> pa.Table:
    return pa.Table.from_pylist(rows, schema=SCHEMA)


def people(count: int, seed: int) -> pa.Table:
    rng = np.random.default_rng(seed)
    return pa.table({"n": rng.normal(size=count), "m": rng.integers(0, 50, count), "c": rng.choice(list("abc"), count)})


def three(*tables: pa.Table) -> tuple[Column, ...]:
    return align(dict(zip(("real", "synthetic", "train"), tables, strict=True)))


@settings(max_examples=100, deadline=None)
@given(rows=ROWS, others=ROWS)
def test_copies_are_rows_that_are_there(rows: list[dict], others: list[dict]) -> None:
    columns = align({"a": table(rows), "b": table(others)})
    assert exact_copies(columns) == sum(row in others for row in rows)


def by_hand(table: pa.Table, tables: list[pa.Table]) -> np.ndarray:
    """Numbers as shares of their span over all tables; a category's feature is one or nothing, times root one half."""
    parts = []
    for name in ("n", "m"):
        together = np.concatenate([other[name].to_numpy() for other in tables])
        parts.append((table[name].to_numpy() - together.min()) / (together.max() - together.min()))
    hot = [[(value == letter) * np.sqrt(0.5) for letter in "abc"] for value in table["c"].to_pylist()]
    return np.concatenate([np.stack(parts, axis=1), np.array(hot)], axis=1)


def test_distances_are_those_of_the_definition() -> None:
    tables = [people(60, 1), people(80, 2), people(100, 3)]
    found = measure_closeness(three(*tables))
    real, made, train = (by_hand(each, tables) for each in tables)
    nearest = []
    for side, rows in ((found.real, real), (found.synthetic, made)):
        distances = np.sort(cdist(rows, train), axis=1)
        assert side.nearest_median == pytest.approx(np.median(distances[:, 0]), abs=1e-5)
        assert side.nearest_lowest == pytest.approx(np.quantile(distances[:, 0], 0.05), abs=1e-5)
        expected = np.median(distances[:, :NEIGHBOURS].mean(axis=1))
        assert side.neighbours_median == pytest.approx(expected, abs=1e-5)
        nearest.append(distances[:, 0])
    assert found.closer == pytest.approx(np.mean(nearest[1][:, None] < nearest[0][None, :]), abs=1e-3)
    assert len(found.real_percentiles) == len(found.synthetic_percentiles) == 101
    assert found.synthetic_percentiles[50] == pytest.approx(found.synthetic.nearest_median)
    assert (found.synthetic.rows, found.synthetic.copies, found.synthetic.copied) == (80, 0, 0.0)


def test_copies_are_nearer_than_anything() -> None:
    train = people(100, 3)
    found = measure_closeness(three(people(60, 1), train.slice(0, 30), train))
    assert found.closer == 1.0
    assert found.synthetic.nearest_median == pytest.approx(0.0, abs=1e-3)
    assert (found.synthetic.copies, found.synthetic.copied) == (30, 1.0)
    assert found.real.copies == 0


def test_equal_tables_are_equally_near() -> None:
    held = people(60, 1)
    assert measure_closeness(three(held, held, people(100, 3))).closer == 0.5


def test_rows_from_elsewhere_are_farther_and_few_rows_have_fewer_neighbours() -> None:
    far = pa.table({"n": [90.0] * 9, "m": [1] * 9, "c": ["z"] * 9})
    found = measure_closeness(three(people(60, 1), far, people(2, 3)))
    assert found.closer < 0.5
    assert found.synthetic.nearest_median > 1.0


def test_missing_numbers_have_a_distance(monkeypatch: pytest.MonkeyPatch) -> None:
    nothing = pa.table({"n": pa.nulls(5, pa.float64())})
    found = measure_closeness(three(nothing, nothing, nothing))
    assert found.synthetic.nearest_median == 0.0
    assert found.synthetic.copies == 5


def test_of_many_rows_some_are_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(closeness, "MOST_ROWS", 50)
    seen = []
    plain = closeness.for_distances
    monkeypatch.setattr(closeness, "for_distances", lambda few: seen.extend(map(len, few[0].parts)) or plain(few))
    found = measure_closeness(three(people(200, 1), people(300, 2), people(400, 3)))
    assert seen == [50, 50, 400]
    assert found == measure_closeness(three(people(200, 1), people(300, 2), people(400, 3)))
    assert found.synthetic.rows == 300, "copies are counted among all rows"
