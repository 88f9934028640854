"""APPGM: the mechanism of `aim`, without its limit on which pairs may be measured, and rows that have them."""

import itertools

import numpy as np
import pytest
from audit_cases import categories, plan_for, run, table_of
from synth_cases import grant_for, write_bounded

from dpsynth_platform.synth.interface import generator
from dpsynth_platform.synth.tabular import aim, appgm, drawing
from dpsynth_platform.synth.tabular.measurements import read_measurements

SIDE = 3
COLUMNS = categories(**{f"c{index}": 4 for index in range(SIDE**2)})
EDGES = {
    (place, place + step)
    for place in range(SIDE**2)
    for step in (1, SIDE)
    if place + step < SIDE**2 and (step > 1 or place % SIDE < SIDE - 1)
}


def grid(rows=4000):
    """Each column is mostly the one before or the one above: a graph of many loops."""
    rng = np.random.default_rng(3)
    codes = rng.integers(0, 4, (rows, SIDE**2))
    for place in range(1, SIDE**2):
        beside = [place - step for step in (1, SIDE) if (place - step, place) in EDGES]
        source = rng.integers(0, len(beside), rows)
        copies = codes[np.arange(rows), np.array(beside)[source]]
        codes[:, place] = np.where(rng.random(rows) < 0.9, copies, codes[:, place])
    return codes


def exact(counts, sigma):
    return counts


def best(scores, *_):
    return int(np.argmax(scores))


@pytest.mark.parametrize("adjacency", ["add-or-remove", "replace-one"])
def test_its_event_and_noise_are_those_of_aim(adjacency):
    plans = {method: plan_for(method, COLUMNS, epsilon=1.0, b=2, adjacency=adjacency) for method in ("aim", "appgm")}
    assert plans["appgm"].event == plans["aim"].event
    own, others = (plans[method].parameters | {"model_cells": 0} for method in ("appgm", "aim"))
    assert own == others
    described = generator("appgm").describe(plans["appgm"])
    assert described["event"] == generator("aim").describe(plans["aim"])["event"]
    assert described["predicted_memory_bytes"] > 0


def test_no_size_of_a_model_limits_which_pairs_are_measured(monkeypatch):
    """Where a junction tree may have no cells, `aim` measures what its tree of columns covers: the smallest pair."""
    monkeypatch.setattr(aim, "MODEL_CELLS", 1)
    found = {}
    for method in ("aim", "appgm"):
        plan = plan_for(method, COLUMNS, epsilon=8.0, b=1)
        joint = run(plan, table_of(COLUMNS, grid()), noise=exact, choose=best).measured[len(COLUMNS) :]
        found[method] = {item.clique for item in joint}
    assert not EDGES - found["appgm"]
    assert EDGES - found["aim"]


def test_rows_have_the_pairs_of_loops(tmp_path, monkeypatch):
    """Without noise only drawing rows is random, and one of 4,000 rows moves the mean distance by 1/4,000 at most.

    So it is .05 above its expectation with a probability below 1e-8 (McDiarmid: exp(-2 * 4000 * .05^2)); it was .006.
    """
    monkeypatch.setattr(drawing, "sample_rounded_gaussian", exact)
    monkeypatch.setattr(drawing, "select_by_exponential_mechanism", best)
    plan = plan_for("appgm", COLUMNS, epsilon=8.0, b=1)
    codes = grid()
    owners = [f"{index:032x}" for index in range(len(codes))]
    bounded = write_bounded(table_of(COLUMNS, codes).append_column("_owner", [owners]), tmp_path / "bounded")
    (tmp_path / "model").mkdir()
    generator("appgm").fit(plan, bounded, grant_for(plan), tmp_path / "model")
    stored = read_measurements(tmp_path / "model", plan.digest)
    assert not EDGES - {item.clique for item in stored.joint}
    sample = generator("appgm").sample(tmp_path / "model", 4000)
    made = np.stack([np.asarray(sample[name].to_pylist(), dtype=int) for name in COLUMNS], axis=1)
    off = [distance(codes, made, pair) for pair in itertools.combinations(range(SIDE**2), 2)]
    assert np.mean(off) < 0.06
    rng = np.random.default_rng(1)
    alone = np.stack([rng.permutation(column) for column in codes.T], axis=1)
    assert np.mean([distance(codes, alone, pair) for pair in itertools.combinations(range(SIDE**2), 2)]) > 0.2


def distance(left, right, pair):
    a, b = pair
    counts = [np.bincount(codes[:, a] * 4 + codes[:, b], minlength=16) / len(codes) for codes in (left, right)]
    return np.abs(counts[0] - counts[1]).sum() / 2


def test_tables_of_rows_are_smaller_where_there_are_many_states(monkeypatch):
    rows = []
    for cells in (2**24, 2**10):
        monkeypatch.setattr(appgm, "TABLE_CELLS", cells)
        rows.append(plan_for("appgm", COLUMNS, epsilon=1.0, b=1).parameters["model_cells"])
    states = sum(len(column["values"]) + 1 for column in COLUMNS.values())
    assert rows == [states * appgm.ROWS, states * (2**10 // states)]
