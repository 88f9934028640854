"""`dpsynth.synthesize` of several frames."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import polars as pl
import pytest

import dpsynth

KEYS = {
    "people": {"key": ["person id"]},
    "visits": {"parent": {"table": "people", "columns": ["person id"]}, "max_children": 2, "order_by": ["day"]},
}
COLUMNS = {
    "people": {"old": {"type": "boolean"}},
    "visits": {"day": {"type": "integer", "min": 0, "max": 30}},
}


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DPSYNTH_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("frame", [pd.DataFrame, pl.DataFrame])
def test_frames_come_back_as_they_were_and_join(frame: type) -> None:
    rng = np.random.default_rng(0)
    people = frame({"person id": np.arange(300), "old": rng.random(300) < 0.3})
    visits = frame({"person id": rng.integers(0, 300, 500), "day": rng.integers(0, 31, 500)})
    options = {"epsilon": 2, "delta": 1e-5, "method": "independent", "keys": KEYS, "columns": COLUMNS}
    result = dpsynth.synthesize({"people": people, "visits": visits}, "out", progress=False, **options)
    assert set(result.data) == {"people", "visits"}
    for name, given in (("people", people), ("visits", visits)):
        made = result.data[name]
        assert isinstance(made, frame) and list(made.columns) == list(given.columns)
        assert [str(type_) for type_ in made.dtypes] == [str(type_) for type_ in given.dtypes]
    assert set(result.data["visits"]["person id"]) <= set(result.data["people"]["person id"])
    assert "at most 3 records" in str(result.guarantee) and "# Privacy statement" in result.statement()
    assert not dpsynth.synthesize(
        {"people": people, "visits": visits}, "out", progress=False, **options
    ).synthesis.spent


def test_a_schema_names_the_same_tables_as_keys_and_columns() -> None:
    people = pd.DataFrame({"person id": range(300), "old": [True, False, False] * 100})
    schema = {"tables": {"people": KEYS["people"] | {"columns": COLUMNS["people"]}}}
    options = {"epsilon": 2, "delta": 1e-5, "method": "independent", "schema": schema, "progress": False}
    assert list(dpsynth.synthesize({"people": people, "others": people}, "out", **options).data) == ["people"]


def test_arguments_of_one_table_and_of_several_are_not_mixed() -> None:
    people = pd.DataFrame({"person id": [1, 2], "old": [True, False]})
    with pytest.raises(dpsynth.ContractError, match="keys: of one table"):
        dpsynth.synthesize(people, epsilon=1, delta=1e-5, keys=KEYS)
    with pytest.raises(dpsynth.ContractError, match=r"rots: unknown option.*did you mean 'roots'"):
        dpsynth.synthesize({"people": people}, epsilon=1, delta=1e-5, keys=KEYS, rots=3)
    with pytest.raises(dpsynth.ContractError, match="constraints: of several tables"):
        dpsynth.synthesize({"people": people}, epsilon=1, delta=1e-5, constraints=[{"ascending": ["a", "b"]}])
    with pytest.raises(dpsynth.ContractError, match="epsilon: missing"):
        dpsynth.synthesize({"people": people}, keys=KEYS)
    with pytest.raises(dpsynth.ContractError, match=r"keys\.people: a str; accepted: a mapping such as"):
        dpsynth.synthesize({"people": people}, epsilon=1, delta=1e-5, keys={"people": "person id"})
    with pytest.raises(dpsynth.ContractError, match=r"columns\.people: a list; accepted: a mapping such as"):
        dpsynth.synthesize({"people": people}, epsilon=1, delta=1e-5, keys=KEYS, columns={"people": ["old"]})
    with pytest.raises(dpsynth.ContractError, match=r"a table is named 'the people'.*such as 'the_people'"):
        dpsynth.synthesize({"the people": people}, epsilon=1, delta=1e-5, keys=KEYS)
    with pytest.raises(dpsynth.ContractError, match="owner: without keys"):
        dpsynth.synthesize({"people": people}, epsilon=1, delta=1e-5, schema="tables.yaml", owner="person id")
    with pytest.raises(dpsynth.SourceError, match=r"tables\.visits"):
        dpsynth.synthesize({"people": people}, epsilon=1, delta=1e-5, keys=KEYS, columns=COLUMNS)
