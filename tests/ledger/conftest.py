import os
import secrets
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest
from ledger_cases import KEYS, family
from sqlalchemy import create_engine

from dpsynth_platform.ledger import Ledger

TOOLS = ("initdb", "pg_ctl")


@pytest.fixture
def url(tmp_path):
    return f"sqlite:///{tmp_path / 'ledger' / 'ledger.db'}"


@pytest.fixture
def ledger(url):
    opened = Ledger(url)
    opened.open_account(family("everyone", mode="family"), KEYS)
    opened.open_account(family("each", mode="per-owner"), KEYS)
    return opened


def run_tool(tool, *arguments):
    """PostgreSQL refuses to run as root, so root steps down."""
    step_down = ["setpriv", "--reuid=nobody", "--clear-groups"] if os.getuid() == 0 else []
    subprocess.run([*step_down, tool, *arguments], check=True, capture_output=True, timeout=60, cwd="/")


@pytest.fixture(scope="session")
def postgresql_server():
    """A server of the tests' own, on a socket. Skips where none is installed."""
    needed = [*TOOLS, "setpriv"] if os.getuid() == 0 else TOOLS
    if not all(shutil.which(tool) for tool in needed):
        pytest.skip("no PostgreSQL server is installed")
    directory = Path(tempfile.mkdtemp(prefix="pg", dir="/tmp"))  # a socket's path must be short
    if os.getuid() == 0:
        shutil.chown(directory, "nobody")
    data = directory / "data"
    run_tool("initdb", "-D", data, "-A", "trust", "-U", "ledger")
    options = f"-k {directory} -c listen_addresses='' -c fsync=off"
    run_tool("pg_ctl", "-D", data, "-o", options, "-l", directory / "log", "-w", "start")
    yield f"host={directory}"
    run_tool("pg_ctl", "-D", data, "-m", "immediate", "-w", "stop")
    shutil.rmtree(directory)


@pytest.fixture
def postgresql_url(postgresql_server):
    """An empty database on that server."""
    name = f"t{secrets.token_hex(8)}"
    admin = create_engine(f"postgresql+psycopg://ledger@/postgres?{postgresql_server}", isolation_level="AUTOCOMMIT")
    with admin.connect() as connection:
        connection.exec_driver_sql(f"CREATE DATABASE {name}")
    admin.dispose()
    return f"postgresql+psycopg://ledger@/{name}?{postgresql_server}"
