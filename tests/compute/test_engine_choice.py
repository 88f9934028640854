"""The engine of a dataset: what compute.yaml may say, and what is refused, with which words."""

from __future__ import annotations

from pathlib import Path

import pytest

from dpsynth_platform.compute import spark_driver
from dpsynth_platform.compute.choice import DuckDBChoice, SparkChoice, engine_choice
from dpsynth_platform.compute.duckdb_engine import DuckDBEngine
from dpsynth_platform.foundation.errors import ConfigurationError
from dpsynth_platform.foundation.settings import PACKAGE_ROOT

EXAMPLE = """
default: {engine: duckdb, memory: 3GB, threads: 4}
datasets:
  visits: {engine: spark, master: "local[2]", memory: 2GB, options: {spark.cores.max: "32"}}
  census: {engine: duckdb}
"""


def written(place: Path, text: str) -> Path:
    path = place / "compute.yaml"
    path.write_text(text, encoding="utf-8")
    return path


def test_each_dataset_has_its_engine_and_others_the_default(tmp_path: Path) -> None:
    path = written(tmp_path, EXAMPLE)
    assert engine_choice(path, "other") == DuckDBChoice(memory="3GB", threads=4)
    assert engine_choice(path, "census") == DuckDBChoice()
    spark = SparkChoice(engine="spark", master="local[2]", memory="2GB", options={"spark.cores.max": "32"})
    assert engine_choice(path, "visits") == spark
    assert spark.label == "Spark, local[2], 2GB"


def test_a_misspelt_dataset_is_told(tmp_path: Path) -> None:
    path = written(tmp_path, EXAMPLE)
    assert engine_choice(path, "census", {"census", "visits"}) == DuckDBChoice()
    with pytest.raises(ConfigurationError, match=r"datasets\.visits: no such contract; accepted: census, visit$"):
        engine_choice(path, "census", {"census", "visit"})


def test_without_a_file_or_a_word_it_is_duckdb(tmp_path: Path) -> None:
    assert engine_choice(None, "any") == DuckDBChoice()
    assert engine_choice(written(tmp_path, "datasets: {}"), "any") == DuckDBChoice()


def test_the_example_of_the_deployment_is_accepted() -> None:
    assert isinstance(engine_choice(PACKAGE_ROOT / "deploy" / "compute.yaml", "census"), DuckDBChoice)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("default: {engine: flink}", "default.engine: 'flink'; accepted: duckdb, spark"),
        ("default: {memory: 2GB}", "default.engine: None; accepted: duckdb, spark"),
        ("default: duckdb", "default: accepted is a mapping such as"),
        ("defaults: {engine: duckdb}", "defaults: unknown key (did you mean 'default'?); accepted: default, datasets"),
        ("datasets: [visits]", "datasets: accepted is a mapping"),
        ("datasets: {visits: {engine: duckdb, memory: 2g}}", "datasets.visits: memory: '2g'; accepted"),
        (
            "datasets: {visits: {engine: duckdb, memory: 2MB}}",
            "datasets.visits: memory: '2MB'; accepted: 100MB or more",
        ),
        (
            "datasets: {visits: {engine: duckdb, memory: lots}}",
            "datasets.visits: memory: 'lots'; accepted: a size such as 512MB or 2GB",
        ),
        ("datasets: {visits: {engine: duckdb, threads: 0}}", "datasets.visits: threads: 0; accepted: at least"),
        (
            "datasets: {visits: {engine: duckdb, master: x}}",
            "datasets.visits: master: unknown key; accepted: engine, mem",
        ),
        (
            "datasets: {visits: {engine: spark, memory: 2g}}",
            "datasets.visits: memory: '2g'; accepted: a size such as 512MB or 2GB",
        ),
        ("datasets: {visits: {engine: spark, memory: 0GB}}", "datasets.visits: memory: '0GB'; accepted"),
        ("datasets: {visits: {engine: spark, memory: 400MB}}", "memory: '400MB'; accepted: 500MB or more"),
        (
            "datasets: {visits: {engine: spark, master: yarn}}",
            "datasets.visits: master: 'yarn'; accepted: local[N], local-cluster[",
        ),
        ("datasets: {visits: {engine: spark, master: 'local[*]'}}", "datasets.visits: master"),
        ("datasets: {visits: {engine: spark, thread: 2}}", "datasets.visits: thread: unknown key"),
        (
            "datasets: {visits: {engine: spark, options: {spark.sql.ansi.enabled: 'no'}}}",
            "datasets.visits: options: 'spark.sql.ansi.enabled'; accepted",
        ),
        (
            "datasets: {visits: {engine: spark, options: {spark.authenticate.secret: x}}}",
            "datasets.visits: options: 'spark.authenticate.secret'; accepted",
        ),
        ("datasets: {visits: {engine: spark, options: {java.home: x}}}", "datasets.visits: options: 'java.home'"),
        (
            "datasets: {visits: {engine: spark, master: 'local-cluster[2,1,1024]', memory: 2GB}}",
            "datasets.visits: memory: '2GB'; accepted: at most the 1024 megabytes that master says",
        ),
        ("default: {engine: [", "not valid YAML"),
        (
            "datasets: {}\ndefault: {engine: duckdb}\ndatasets: {}",
            "line 3: not valid YAML: duplicate key 'datasets'",
        ),
        ("- 1", "a list; accepted: a mapping"),
    ],
)
def test_what_is_wrong_is_said_whichever_dataset_it_is_about(tmp_path: Path, text: str, words: str) -> None:
    path = written(tmp_path, text)
    with pytest.raises(ConfigurationError) as raised:
        engine_choice(path, "another")
    assert str(raised.value).startswith(str(path))
    assert words in str(raised.value)


def test_a_named_file_must_be_there(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="no such file"):
        engine_choice(tmp_path / "none.yaml", "census")


def test_duckdb_opens_with_its_limits(tmp_path: Path) -> None:
    engine = DuckDBChoice(memory="100MB", threads=1).open(tmp_path)
    assert isinstance(engine, DuckDBEngine)
    with engine:
        assert engine.scalar("SELECT current_setting('threads') AS t") == 1
        assert engine.scalar("SELECT current_setting('memory_limit') AS m") == "81.0 MiB"


def test_spark_opens_as_chosen(tmp_path: Path, spark_is_there: None) -> None:
    from dpsynth_platform.compute.spark_engine import SparkEngine

    assert isinstance(SparkChoice(engine="spark").open(tmp_path), SparkEngine)


@pytest.mark.parametrize(
    ("environment", "words"),
    [
        ({"PATH": "/nowhere"}, "there is no Java; install Java 17"),
        ({"PATH": "/usr/bin", "JAVA_HOME": "/nowhere"}, "there is no Java"),
    ],
)
def test_spark_without_java_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], words: str
) -> None:
    pytest.importorskip("pyspark")
    monkeypatch.setattr(spark_driver, "inherited_environment", lambda: environment)
    with pytest.raises(ConfigurationError, match=words):
        SparkChoice(engine="spark").open(tmp_path)


def test_spark_without_pyspark_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spark_driver.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ConfigurationError, match="PySpark is not installed; install the extra `spark`"):
        SparkChoice(engine="spark").open(tmp_path)


def test_a_cluster_may_have_a_secret_of_its_own(tmp_path: Path) -> None:
    secret = "options: {spark.authenticate: 'true', spark.authenticate.secret: s}"
    text = f"datasets: {{visits: {{engine: spark, master: 'spark://one:7077', {secret}}}}}"
    chosen = engine_choice(written(tmp_path, text), "visits")
    assert isinstance(chosen, SparkChoice)
    assert chosen.options["spark.authenticate.secret"] == "s"
