"""The mechanism's noisy counts as tables for publication: from the model alone, in terms of published values."""

from __future__ import annotations

import shutil
import sys
import threading
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from synth_cases import SCHEMA, contract_with, grant_for, people, write_bounded

from dpsynth_platform.foundation.errors import ReleaseRefused
from dpsynth_platform.privacy.guarantee import Guarantee
from dpsynth_platform.release.fidelity import FidelityCounter, fidelity
from dpsynth_platform.release.noisy_tables import faults
from dpsynth_platform.release.row_counts import count_rows
from dpsynth_platform.synth.interface import TABLE_METHODS, SealedPlan, generator
from dpsynth_platform.synth.tabular import measured as module
from dpsynth_platform.synth.tabular.domain import ColumnDomain
from dpsynth_platform.synth.tabular.measured import FILE, measured_tables, of_columns, read_measured, write_measured
from dpsynth_platform.synth.tabular.model import Model, joint_codes, load_model

OPENED: list[str] = []
WATCHED = {"now": False}


def watch(event: str, arguments: tuple[object, ...]) -> None:
    here = WATCHED["now"] and threading.current_thread() is threading.main_thread()  # others may be of earlier tests
    if here and event in ("open", "socket.connect", "subprocess.Popen", "sqlite3.connect"):
        OPENED.append(f"{event} {arguments[0]}")


def planned(method: str) -> SealedPlan:
    contract = contract_with(generate__method="aim" if method == "jam" else method)  # without a public table
    return generator(method).plan(contract, SCHEMA, Guarantee.target(contract))


def fitted_model(method: str, directory: Path) -> Path:
    plan = planned(method)
    bounded = write_bounded(people(3_000), directory / "bounded")
    model = directory / "model"
    model.mkdir()
    generator(method).fit(plan, bounded, grant_for(plan), model)
    shutil.rmtree(bounded)
    return model


@pytest.mark.parametrize("method", TABLE_METHODS)
def test_every_table_counts_published_rows_as_the_model_codes_them(method: str, tmp_path: Path) -> None:
    model = load_model(fitted_model(method, tmp_path))
    tables = measured_tables(model)
    rows = generator(method).draw(tmp_path / "model", 400).table()
    counter = FidelityCounter(tables)
    for batch in rows.to_batches(max_chunksize=150):
        counter.add(batch)
    codes = model.domain.encode(rows)
    joint = list(model.measurements.joint)
    for table, counts in zip(tables["tables"], counter.tables(), strict=True):
        assert sum(counts) == 400
        if table["order"]:
            assert counts == coded(model, joint[table["order"] - 1], codes)
            assert table["measured"] == joint[table["order"] - 1].counts.ravel().tolist()
        else:
            noisy = model.measurements.one_way[model.domain.names.index(tables["axes"][table["axes"][0]]["column"])]
            assert sum(table["measured"]) == noisy.counts.sum()
            assert sum(table["parts"]) == noisy.counts.size
    assert tables["left_out"] == 0
    compared = fidelity(tables, counter.tables())
    assert list(faults(compared, planned(method).event)) == []
    assert {axis["column"] for axis in tables["axes"]} == set(model.domain.names)


def coded(model: Model, noisy, codes) -> list[int]:
    """The same counts by the model's own codes of cells."""
    levels = noisy.levels or (0,) * len(noisy.clique)
    groups = [
        model.groups[index][level][model.states[index].state_of][codes[:, index]]
        for index, level in zip(noisy.clique, levels, strict=True)
    ]
    cells = joint_codes(np.stack(groups, axis=1), range(len(groups)), noisy.counts.shape)
    return np.bincount(cells, minlength=noisy.counts.size).tolist()


def test_the_data_is_out_of_reach(tmp_path: Path) -> None:
    """The data is gone, and nothing but the model's own directory is opened from reading it to the last table."""
    directory = fitted_model("mst", tmp_path)
    measured_tables(load_model(directory))  # what is imported late is imported now
    sys.addaudithook(watch)
    OPENED.clear()
    WATCHED["now"] = True
    try:
        tables = measured_tables(load_model(directory))
    finally:
        WATCHED["now"] = False
    assert tables["tables"]
    assert OPENED
    assert all(opened.startswith(f"open {directory}/") for opened in OPENED), OPENED


def test_tables_beyond_the_limit_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = load_model(fitted_model("independent", tmp_path))
    monkeypatch.setattr(module, "MOST_CELLS", 12)
    tables = measured_tables(model)
    assert sum(len(table["measured"]) for table in tables["tables"]) <= 12
    assert tables["left_out"] == len(model.measurements.one_way) - len(tables["tables"]) > 0


def test_columns_that_no_published_row_has_are_left_out_and_counted(tmp_path: Path) -> None:
    model = load_model(fitted_model("mst", tmp_path))
    rows = generator("mst").draw(tmp_path / "model", 60).table()
    whole, lost = measured_tables(model), model.domain.names[0]
    published = rows.drop_columns([lost])
    tables = of_columns(whole, published.column_names)
    assert lost not in {axis["column"] for axis in tables["axes"]}
    assert {axis["column"] for axis in tables["axes"]} == set(model.domain.names) - {lost}
    assert tables["left_out"] == len(whole["tables"]) - len(tables["tables"]) > 1
    counter = FidelityCounter(tables)
    for batch in published.to_batches():
        counter.add(batch)
    assert all(sum(counts) == 60 for counts in counter.tables())
    assert of_columns(whole, rows.column_names) == whole


def test_the_file_beside_the_rows(tmp_path: Path) -> None:
    assert read_measured(tmp_path) is None
    write_measured(tmp_path, {"unit": "records"})
    assert read_measured(tmp_path) == {"unit": "records"}
    (tmp_path / FILE).write_text("{")
    with pytest.raises(ReleaseRefused, match="materialize synthetic again"):
        read_measured(tmp_path)


def test_the_ends_of_a_range_are_exact() -> None:
    """Greater values count as the last end; a rounded one would leave the group out of a question about it."""
    column = ColumnDomain("pay", "float", nullable=True, edges=(0.1234567, 1 / 3, 1234564.0))
    axis = module._ordered_axis(column, pa.float64(), np.arange(3))
    assert axis is not None and axis["labels"] == ["0.1234567 to 0.333333", "0.333333 to 1234564.0", "missing"]
    table = {"axes": [0], "order": 0, "sigma": 4.0, "parts": [1, 1, 1], "measured": [100, 200, 50]}
    shown = fidelity({"unit": "records", "axes": [axis], "tables": [table], "left_out": 0}, [[1, 1, 1]])
    assert not list(faults(shown, {"kind": "other"}))
    rows = pa.table({"pay": [0.1234567, 1234564.0]})
    assert count_rows(shown, rows, "pay >= 1234564").high > 200
    assert count_rows(shown, rows, "pay <= 0.1234567").high > 100
    plain = ColumnDomain("pay", "float", nullable=True, edges=(0.0, 1 / 3, 500.0))
    assert "".join(module._range_labels(plain, [0, 1, 2])) == "0 to 0.3333330.333333 to 500"
