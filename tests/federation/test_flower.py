"""A federated run by real processes: Flower with TLS and node keys, and a `dpsynth node up` at each participant."""

import shutil
import sys
import tempfile
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from federated_cases import COLUMNS, NAMES, plan_of, policy_document, rows
from flower_cases import FLOWER, flower, wait_until

from dpsynth_platform.federation.nodes import Coordinator
from dpsynth_platform.federation.plans import MOST_MESSAGE_BYTES
from dpsynth_platform.federation.relays import RelayLink, listening
from dpsynth_platform.federation.rounds import Roster
from dpsynth_platform.foundation.yaml_files import dump
from dpsynth_platform.one_table.federated_keys import federation_key
from dpsynth_platform.one_table.federated_node import node_status

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not (FLOWER / "flower-superlink").exists(), reason="no Flower (requirements/flower.lock)"),
]


@pytest.fixture
def place():
    """A directory with a short path: a socket's has at most 107 bytes."""
    made = Path(tempfile.mkdtemp(prefix="fl-"))
    yield made
    shutil.rmtree(made, ignore_errors=True)
    shutil.rmtree(made, ignore_errors=True)


class Killing:
    """A link that kills a process once its masked vector is sent: after reservation, start and three steps."""

    def __init__(self, link, process):
        self.link, self.process, self.count = link, process, 0

    def ask(self, requests):
        replies = self.link.ask(requests)
        self.count += 1
        if self.count == 5:
            self.process.kill()
        return replies


def test_processes_at_four_participants_make_one_release_and_one_of_them_is_killed(place):
    table, coordinator = rows(4_000), federation_key(place / "coordinator")
    keys = {name: federation_key(place / name) for name in NAMES}
    public = {name: key.public_key().public_bytes_raw().hex() for name, key in keys.items()}
    with flower(place) as engine:
        processes = {}
        for index, name in enumerate(NAMES):
            own = place / name
            pq.write_table(table.take(np.arange(index, table.num_rows, len(NAMES))), own / "rows.parquet")
            (own / "columns.yaml").write_text(dump({"columns": COLUMNS}))
            policy = policy_document(name, participants=public, dataset="meals") | {
                "coordinator": coordinator.public_key().public_bytes_raw().hex()
            }
            (own / "policy.yaml").write_text(dump(policy))
            processes[name] = engine.start(
                f"node-{name}",
                *(sys.executable, "-m", "dpsynth_platform", "node", "up", own, own / "rows.parquet"),
                *("--policy", own / "policy.yaml", "--schema", own / "columns.yaml", "--owners", "person"),
            )
            engine.add_node(name, own / "node.sock")
        for name in NAMES:
            wait_until((place / name / "node.sock").exists, (place / f"node-{name}.log").read_text())
        with listening(place / "hub.sock") as hub:
            engine.relay_to(place / "hub.sock", 30.0)
            hub.settimeout(60)
            relay, _ = hub.accept()
            with relay:
                link = Killing(RelayLink(relay, 120, MOST_MESSAGE_BYTES), processes["west"])
                made = Coordinator(Roster.from_texts(public), coordinator, link).run(
                    "first", plan_of("independent"), place / "model"
                )
        assert [set(finished) for finished in made.finished] == [set(NAMES)]
        assert made.dropped[0].keys() == {"west"}
        for name in NAMES:
            (run,) = node_status(place / name).to_json()["runs"]
            assert run["state"] == ("started" if name == "west" else "spent")
        log = (place / "node-east.log").read_text()
        assert "round 1 of 1" in log and "complete" in log
        logs = {path.name: path.read_bytes().decode(errors="replace") for path in place.glob("*.log")}
        assert not any("Aix" in text for text in logs.values())
        assert not any("Traceback" in text for name, text in logs.items() if name.startswith("node-"))
