"""What tests of several areas share: the SQL engines, a PostgreSQL server, and an object store."""

from __future__ import annotations

import importlib.util
import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from multiprocessing import forkserver
from pathlib import Path

import pytest
from object_store import (  # noqa: F401  (fixtures)
    aws_address,
    bucket,
    google_address,
    gs_store,
    no_clouds,
    s3_store,
    service_account,
    store,
)
from postgresql_server import new_database, running_server
from replayed_migrations import migrations_replayed
from xdist.scheduler.loadfile import LoadFileScheduling

from dpsynth_platform.compute.choice import DuckDBChoice, SparkChoice
from dpsynth_platform.compute.engine import Engine
from dpsynth_platform.compute.spark_driver import missing_for_spark
from dpsynth_platform.foundation.garbage_collection import collect_seldom, loading

# As `make test` does: an environment may say that nothing is to be kept of what Python compiles, and then each of
# hundreds of processes compiles the library anew, and each test process all tests.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

SPARK_FILES = (
    "bounding/test_bound_evaluation.py",
    "bounding/test_bounded_column_names.py",
    "bounding/test_linked.py",
    "bounding/test_multi_owner.py",
    "bounding/test_rounds.py",
    "bounding/test_single_owner.py",
    "compute/test_engines_agree.py",
    "compute/test_spark_engine.py",
    "end_to_end/test_sources_agree.py",
    "synth/test_moments.py",
    "synth/test_sql_counting.py",
)


LONG_FILES = (
    "console/test_console_browser.py",
    "docs/test_notebooks.py",
    "end_to_end/test_budget.py",
    "end_to_end/test_crashes.py",
    "end_to_end/test_ctcl_line.py",
    "end_to_end/test_engines_line.py",
    "end_to_end/test_expiry.py",
    "end_to_end/test_linked_line.py",
    "end_to_end/test_picture_line.py",
    "end_to_end/test_simulated_year.py",
    "end_to_end/test_text_crashes.py",
    "end_to_end/test_texts_alone_line.py",
    "end_to_end/test_tuned_line.py",
    "end_to_end/test_watch_daemon.py",
    "ledger/test_ledger_machine.py",
    "ledger/test_ledger_races.py",
    "python_face/test_dg_project.py",
    "synth/images/test_diffusion_kills.py",
    "synth/test_learning.py",
    "synth/test_mechanism_audit.py",
    "synth/test_row_language.py",
    "synth/test_table_networks.py",
    "synth/test_texts_alone.py",
    "synth/test_tuning.py",
    "synth/test_tuning_language.py",
    "synth/test_tuning_likelihood.py",
    "synth/test_weighting.py",
    "training/test_training_families.py",
    "training/test_world.py",
    "watching/test_watch.py",
    "worker/test_worker_process.py",
    "worker/test_worker_ranks.py",
)


class OneSpark(LoadFileScheduling):
    """Each file whole in one process, and all that use the fixture `spark` in the same: a JVM costs half a minute."""

    def _split_scope(self, nodeid: str) -> str:
        file = super()._split_scope(nodeid)
        return "spark" if file.endswith(SPARK_FILES) else file


def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> LoadFileScheduling | None:
    return OneSpark(config, log) if config.getvalue("dist") == "loadfile" else None


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files that take a minute and more come first: begun last, one would leave all other processes idle."""
    items.sort(key=lambda item: not item.path.as_posix().endswith(LONG_FILES))


def pytest_make_parametrize_id(config: pytest.Config, val: object, argname: str) -> str | None:
    """Bytes are named by their argument: what packs, signs or encrypts them may give others in each process, and all
    processes have to collect the same tests."""
    return argname if isinstance(val, bytes) else None


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Every test process imports all tests, and with them everything: two fifths were looking for garbage."""
    with loading():
        collected = yield
    collect_seldom()
    return collected


def of_a_deployment() -> dict[str, str]:
    """What this process's environment says of a deployment."""
    return {name: value for name, value in os.environ.items() if name.startswith(("DPSYNTH_", "DAGSTER_HOME"))}


def say_of_a_deployment(said: dict[str, str]) -> None:
    """Makes that what the environment says of a deployment, and all of it."""
    for name in of_a_deployment().keys() - said.keys():
        del os.environ[name]
    os.environ.update(said)


AT_FIRST = of_a_deployment()


@pytest.fixture(autouse=True, scope="session")
def new_ledgers_without_alembic() -> Iterator[None]:
    """Thousands of ledgers are made in the tests' processes; see `replayed_migrations`."""
    with migrations_replayed():
        yield


def end_fork_server() -> None:
    """Ends multiprocessing's fork server, if one runs; the next module starts its own."""
    server = forkserver._forkserver  # type: ignore[attr-defined]
    if server._forkserver_pid is not None:
        os.kill(server._forkserver_pid, signal.SIGKILL)
        server._stop()
    multiprocessing.set_forkserver_preload(["__main__"])


@pytest.fixture(autouse=True, scope="module")
def deployment_of_module() -> Iterator[None]:
    """What runs in the tests' process makes its deployment that of processes to come: a module's fixtures for its own
    tests alone. The environment from before all tests, not from before the module: a fixture of the session may have
    come between. A fork server keeps that of its start, so that none outlives its module."""
    say_of_a_deployment(AT_FIRST)
    yield
    say_of_a_deployment(AT_FIRST)
    end_fork_server()


@pytest.fixture(autouse=True)
def own_deployment(deployment_of_module: None) -> Iterator[None]:
    """And a test for itself alone."""
    before = of_a_deployment()
    yield
    say_of_a_deployment(before)


def umask_now() -> str:
    """Without setting it, as `os.umask` would for all threads. Linux alone shows it."""
    status = Path("/proc/self/status")
    lines = status.read_text().splitlines() if status.exists() else []
    return next((line for line in lines if line.startswith("Umask")), "")


UMASK = umask_now()


@pytest.fixture(autouse=True)
def umask_is_left_as_found() -> Iterator[None]:
    """Files of later tests would have other modes than those of users. A server of a module may hold another one."""
    found = umask_now()
    yield
    end = time.monotonic() + 20
    while umask_now() not in (UMASK, found) and time.monotonic() < end:  # a thread may be making a private file
        time.sleep(0.01)
    assert umask_now() in (UMASK, found)


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
