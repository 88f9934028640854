"""The engine that a mechanism counts with: the same measurements, nothing left behind, and nothing lost if it fails."""

import dataclasses
import stat

import numpy as np
import pytest
from worker_cases import MARK, make_job

from dpsynth_platform.compute.choice import DuckDBChoice, SparkChoice, read_choice, write_choice
from dpsynth_platform.foundation.errors import ConfigurationError, EngineError
from dpsynth_platform.foundation.progress import silent
from dpsynth_platform.synth.interface import SealedPlan
from dpsynth_platform.synth.tabular import counting as records
from dpsynth_platform.synth.tabular import drawing
from dpsynth_platform.synth.tabular.measurements import read_measurements
from dpsynth_platform.worker import counting
from dpsynth_platform.worker.run import run


def job_with(directory, choice):
    job = dataclasses.replace(make_job(directory), engine=str(directory / "engine.json"))
    write_choice(directory / "engine.json", choice)
    return job


@pytest.fixture
def no_noise(monkeypatch):
    monkeypatch.setattr(drawing, "sample_rounded_gaussian", lambda counts, sigma: counts)


@pytest.fixture
def every_table(monkeypatch):
    monkeypatch.setattr(counting, "LEAST_ROWS", 1)


@pytest.fixture
def counted_by_sql(monkeypatch):
    """Calls of the engine's counter."""
    calls = []
    for name in ("one_way", "cliques"):
        method = getattr(records.SqlCounter, name)

        def counted(self, *given, method=method, name=name):
            calls.append(name)
            return method(self, *given)

        monkeypatch.setattr(records.SqlCounter, name, counted)
    return calls


def measured(directory):
    plan = SealedPlan.from_json((directory / "plan.json").read_text())
    found = read_measurements(directory / "model", plan.digest)
    return [*found.one_way, *found.joint]


def test_an_engine_measures_what_the_process_measures(tmp_path, no_noise, every_table, counted_by_sql):
    (tmp_path / "plain").mkdir()
    run(make_job(tmp_path / "plain"), silent)
    assert counted_by_sql == []
    (tmp_path / "engine").mkdir()
    job = job_with(tmp_path / "engine", DuckDBChoice(memory="200MB"))
    before = set((tmp_path / "engine").iterdir())
    run(job, silent)
    assert counted_by_sql == ["one_way", "cliques"]
    assert set((tmp_path / "engine").iterdir()) == before  # what it spilled is gone
    for one, other in zip(measured(tmp_path / "plain"), measured(tmp_path / "engine"), strict=True):
        assert np.array_equal(one.counts, other.counts)


def test_small_tables_need_no_engine(tmp_path, no_noise, counted_by_sql):
    run(job_with(tmp_path, DuckDBChoice()), silent)
    assert counted_by_sql == []


def test_an_engine_that_does_not_start_stops_nothing(tmp_path, monkeypatch, every_table, counted_by_sql):
    def refuses(self, spill):
        raise ConfigurationError("no Java")

    monkeypatch.setattr(SparkChoice, "open", refuses)
    run(job_with(tmp_path, SparkChoice(engine="spark")), silent)
    assert counted_by_sql == []
    assert measured(tmp_path)


@pytest.mark.parametrize("broken", ["one_way", "cliques"])
def test_an_engine_that_stops_stops_nothing(tmp_path, monkeypatch, no_noise, every_table, broken):
    def stops(*given):
        raise EngineError("the SQL engine stopped (OutOfMemoryException)")

    (tmp_path / "plain").mkdir()
    run(make_job(tmp_path / "plain"), silent)
    monkeypatch.setattr(records.SqlCounter, broken, stops)
    (tmp_path / "engine").mkdir()
    run(job_with(tmp_path / "engine", DuckDBChoice()), silent)
    for one, other in zip(measured(tmp_path / "plain"), measured(tmp_path / "engine"), strict=True):
        assert np.array_equal(one.counts, other.counts)


def test_a_choice_is_handed_over_in_a_file_of_ones_own(tmp_path):
    chosen = SparkChoice(engine="spark", master="spark://host:7077", options={"spark.authenticate.secret": MARK})
    write_choice(tmp_path / "engine.json", chosen)
    assert stat.S_IMODE((tmp_path / "engine.json").stat().st_mode) == 0o600
    assert read_choice(tmp_path / "engine.json") == chosen
    for text in ("", "[]", '{"engine": "oracle"}', '{"engine": "duckdb", "memory": "1B"}'):
        (tmp_path / "engine.json").write_text(text)
        with pytest.raises(ConfigurationError, match="holds no SQL engine's choice"):
            read_choice(tmp_path / "engine.json")
