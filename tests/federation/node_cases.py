"""Nodes of all participants in one process, each with its directory and its socket."""

import shutil
import socket
import tempfile
import threading
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from federated_cases import COLUMNS, NAMES, policy_document, rows
from relay_cases import wait_for

from dpsynth_platform.federation.nodes import Coordinator
from dpsynth_platform.federation.participants import Policy
from dpsynth_platform.federation.rounds import Roster
from dpsynth_platform.one_table.federated_keys import federation_key
from dpsynth_platform.one_table.federated_node import node_up


@pytest.fixture
def place():
    """A short path: a socket's has at most 107 bytes."""
    made = Path(tempfile.mkdtemp(prefix="fn-"))
    yield made
    shutil.rmtree(made, ignore_errors=True)


def public(directory):
    return federation_key(directory).public_key().public_bytes_raw().hex()


def policy(place, name, **changes):
    keys = {each: public(place / each) for each in NAMES}
    document = policy_document(name, participants=keys) | {"coordinator": public(place / "coordinator")} | changes
    return Policy.model_validate(document)


SCHEMA_FILE = {"columns": COLUMNS}


class Sockets:
    """A link that connects to each node's socket by itself."""

    def __init__(self, place):
        self.place = place

    def ask(self, requests):
        return {name: reply for name, body in requests.items() if (reply := self.one(name, body)) is not None}

    def one(self, name, body):
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as end:
            end.settimeout(60)
            if end.connect_ex(str(self.place / name / "node.sock")):
                return None
            end.sendall(len(body).to_bytes(8, "big") + body)
            got = end.makefile("rb").read()
        return got[8:] if got else None


@contextmanager
def up(place, table=None, schema=SCHEMA_FILE, owners="person", **policies):
    """Nodes of all participants, each in a thread; their lines by name."""
    table = rows(2_000) if table is None else table
    lines, stop, threads = {name: [] for name in NAMES}, threading.Event(), []
    for index, name in enumerate(NAMES):
        path, declared = place / f"{name}.parquet", policy(place, name, **policies.get(name, {}))
        pq.write_table(table.take(np.arange(index, table.num_rows, len(NAMES))), path)
        given = {"owners": owners, "report": lines[name].append, "goes_on": lambda: not stop.is_set()}
        thread = threading.Thread(target=node_up, args=(place / name, path, declared, schema), kwargs=given)
        thread.start()
        threads.append(thread)
        wait_for(place / name / "node.sock", thread)  # one after the other, as processes of their own would be
    try:
        yield lines
    finally:
        stop.set()
        for thread in threads:
            thread.join(60)


def coordinator(place):
    roster = Roster.from_texts({name: public(place / name) for name in NAMES})
    return Coordinator(roster, federation_key(place / "coordinator"), Sockets(place))
