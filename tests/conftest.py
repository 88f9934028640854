"""The SQL engines, for every test that wants its SQL tried on both."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from dpsynth_platform.compute.choice import DuckDBChoice, SparkChoice
from dpsynth_platform.compute.engine import Engine
from dpsynth_platform.compute.spark_driver import missing_for_spark


@pytest.fixture(scope="session")
def spark_is_there() -> Iterator[None]:
    """Skips where Spark cannot run; in CI, PySpark's absence is a failure and no reason to skip.

    Java compiles quickly rather than well meanwhile: no session of the tests lives long enough to be worth more.
    """
    missing = missing_for_spark()
    if missing and os.environ.get("CI") == "true" and importlib.util.find_spec("pyspark") is None:
        pytest.fail(missing)
    if missing:
        pytest.skip(missing)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JAVA_TOOL_OPTIONS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")
        yield


@pytest.fixture(scope="session")
def spark(spark_is_there: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    """One Spark session for all tests, since it takes seconds to start."""
    chosen = SparkChoice(engine="spark", master="local[2]", memory="1GB", partitions=4)
    with chosen.open(tmp_path_factory.mktemp("spark")) as engine:
        yield engine


@pytest.fixture(params=["duckdb", "spark"])
def engine(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Engine]:
    """Each engine in turn. Spark's keeps its tables from test to test."""
    if request.param == "spark":
        yield request.getfixturevalue("spark")
        return
    with DuckDBChoice(threads=2).open(tmp_path / "spill") as engine:
        yield engine
