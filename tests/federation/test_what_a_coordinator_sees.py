"""The memory and the files of a coordinator's process, searched for what participants alone know."""

import json
import os
import subprocess
import sys
import tempfile
import threading
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from federated_cases import COORDINATOR, KEYS, NAMES, participant, plan_of, public, rows
from relay_cases import wait_for

from dpsynth_platform.federation import secure_sum
from dpsynth_platform.federation.nodes import Node
from dpsynth_platform.federation.plans import MOST_MESSAGE_BYTES
from dpsynth_platform.federation.relays import serve
from dpsynth_platform.federation.sums import SCALE

RUN = """
import json, pathlib, socket, sys
import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from dpsynth_platform.federation.marginals import MarginalsPlan, Round
from dpsynth_platform.federation.nodes import Coordinator
from dpsynth_platform.federation.rounds import Roster

class Sockets:
    def ask(self, requests):
        return {name: reply for name, body in requests.items() if (reply := self.one(name, body)) is not None}

    def one(self, name, body):
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as end:
            end.connect(str(place / f"{name}.sock"))
            end.sendall(len(body).to_bytes(8, "big") + body)
            got = end.makefile("rb").read()
        return got[8:] if got else None

kept = []
place = pathlib.Path(sys.argv[1])
given = json.loads((place / "given.json").read_text())
plan = MarginalsPlan.from_json(given["plan"])
key = Ed25519PrivateKey.from_private_bytes(bytes.fromhex(given["key"]))
noisy = Round.noisy
Round.noisy = lambda self, opened, finished: (kept.append(opened), noisy(self, opened, finished))[1]
Coordinator(Roster.from_texts(given["roster"]), key, Sockets()).run("run", plan, place / "model")
print(json.dumps([total.tolist() for total in kept]), flush=True)
sys.stdin.readline()
"""


@pytest.fixture
def place():
    """A short path: a socket's has at most 107 bytes."""
    with tempfile.TemporaryDirectory(prefix="cs-") as made:
        yield Path(made)


@contextmanager
def answering(place, nodes):
    stop = threading.Event()
    threads = [
        threading.Thread(
            target=serve,
            args=(place / f"{name}.sock", name, node.answer, MOST_MESSAGE_BYTES, lambda: not stop.is_set(), print),
        )
        for name, node in nodes.items()
    ]
    for name, thread in zip(nodes, threads, strict=True):
        thread.start()
        wait_for(place / f"{name}.sock", thread)
    try:
        yield
    finally:
        stop.set()
        for thread in threads:
            thread.join(60)


def memory_of(process):
    """What a process can read and write, in pieces."""
    with Path(f"/proc/{process}/mem").open("rb", buffering=0) as memory:
        for line in Path(f"/proc/{process}/maps").read_text().splitlines():
            span, modes, *_ = line.split()
            if modes.startswith("rw") and not line.endswith("[vvar]"):
                low, high = (int(part, 16) for part in span.split("-"))
                memory.seek(low)
                try:
                    yield memory.read(high - low)
                except OSError:  # a page that is not there
                    continue


def found(pieces, marks):
    """The names of marks that occur."""
    names = set()
    for piece in pieces:
        names |= {name for name, mark in marks.items() if mark in piece}
    return names


def test_no_vector_of_a_participant_is_in_the_memory_or_files_of_a_coordinator(place, monkeypatch):
    """Vectors of counts, with and without noise, as numbers of 8 bytes and as they are packed; sums must be found."""
    noisy, sample = [], secure_sum.sample_skellam

    def noted(variance, number):
        noisy.append(sample(variance, number))
        return noisy[-1]

    monkeypatch.setattr(secure_sum, "sample_skellam", noted)
    table, plan = rows(3_000), plan_of("independent")
    parts = {name: table.take(np.arange(index, 3_000, len(NAMES))) for index, name in enumerate(NAMES)}
    nodes = {name: Node(participant(place / "nodes", name, part), KEYS[name]) for name, part in parts.items()}
    given = {"plan": plan.to_json(), "key": COORDINATOR.private_bytes_raw().hex()}
    given["roster"] = {name: public(KEYS[name]) for name in NAMES}
    (place / "given.json").write_text(json.dumps(given))
    with answering(place, nodes):
        command = [sys.executable, "-c", RUN, str(place)]
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
        with subprocess.Popen(
            command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as process:
            (total,) = json.loads(process.stdout.readline())
            memory = list(memory_of(process.pid))
            process.communicate("\n", timeout=60)
    asked = plan.next_round([])
    width = -(-asked.sum.modulus_bits // 8)
    marks, controls = {}, {"sum": np.array(total, dtype=np.int64).tobytes()}
    counts = [asked.counted(part, plan.domain) for part in parts.values()]
    noises = [each for each in noisy if each.size == asked.sum.length]
    assert len(noises) == len(NAMES) and (sum(counts) * SCALE + sum(noises)).tolist() == total
    vectors = {f"counts {index}": each for index, each in enumerate(counts)}
    vectors |= {f"units {index}": each * SCALE for index, each in enumerate(counts)}
    vectors |= {f"noise {index}": each for index, each in enumerate(noises)}
    vectors |= {
        f"noisy {one} {other}": each * SCALE + noise
        for one, each in enumerate(counts)
        for other, noise in enumerate(noises)
    }
    for name, vector in vectors.items():
        marks[name] = vector.astype(np.int64).tobytes()
        packed = vector.astype("<u8").view(np.uint8).reshape(-1, 8)[:, :width].tobytes()
        marks[f"{name} packed"] = packed
    for name, key in KEYS.items():
        marks[f"key {name}"] = key.private_bytes_raw()
    assert found(memory, controls) == {"sum"}
    assert found(memory, marks) == set()
    files = [path.read_bytes() for path in (place / "model").rglob("*") if path.is_file()]
    assert files and found(files, marks) == set()


def test_a_mark_in_memory_is_found(place):
    mark = Ed25519PrivateKey.generate().private_bytes_raw()
    code = "import sys; kept = bytes.fromhex(sys.stdin.readline()); print(flush=True); sys.stdin.readline()"
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        process.stdin.write(mark.hex() + "\n")
        process.stdin.flush()
        process.stdout.readline()
        assert found(memory_of(process.pid), {"mark": mark}) == {"mark"}
        process.communicate("\n", timeout=60)
