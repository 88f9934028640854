"""A federated line beside real processes: nodes, Flower with TLS, and `flwr`, which the run starts."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from federated_cases import COLUMNS, NAMES, policy_document, public, rows
from flower_cases import FLOWER, flower, wait_until
from line_cases import run_here
from relay_cases import answers
from test_federated_line import (  # noqa: F401  (place is a fixture)
    AUDITOR,
    CONTRACT,
    COORDINATOR,
    JOB,
    federated,
    federation_keys,
    place,
    published,
)

from dpsynth_platform.foundation.yaml_files import dump
from dpsynth_platform.one_table.federated_keys import federation_key
from dpsynth_platform.one_table.federated_node import node_status
from dpsynth_platform.reviewing import verification
from dpsynth_platform.secrets.vault import Vault

pytestmark = [
    pytest.mark.end_to_end,
    pytest.mark.slow,
    pytest.mark.skipif(not (FLOWER / "flower-superlink").exists(), reason="no Flower (requirements/flower.lock)"),
]


def test_a_run_starts_flower_and_makes_a_release_of_four_processes_rows(place: Path) -> None:  # noqa: F811
    keys = {name: public(federation_key(place / name)) for name in NAMES}
    given = CONTRACT["source"]["federation"] | {"participants": keys}
    deployment = federated(place, source={"federation": given}, generate={"method": "independent"})
    own = {name: public(key) for name, key in federation_keys(Vault(deployment.settings.vault)).items()}
    table = rows(2_000)
    (place / "flower").mkdir()
    with flower(place / "flower") as engine:
        for index, name in enumerate(NAMES):
            here = place / name
            pq.write_table(table.take(np.arange(index, table.num_rows, len(NAMES))), here / "rows.parquet")
            (here / "columns.yaml").write_text(dump({"columns": COLUMNS}))
            named = {"participants": keys | {AUDITOR: own[AUDITOR]}, "coordinator": own[COORDINATOR]}
            (here / "policy.yaml").write_text(dump(policy_document(name) | named))
            engine.start(
                f"node-{name}",
                *(sys.executable, "-m", "dpsynth_platform", "node", "up", here, here / "rows.parquet"),
                *("--policy", here / "policy.yaml", "--schema", here / "columns.yaml", "--owners", "person"),
            )
            engine.add_node(name, here / "node.sock")
        for name in NAMES:
            wait_until(partial(answers, place / name / "node.sock"), f"the node of {name} does not answer")
        started = {"program": str(FLOWER / "flwr"), "home": str(engine.place / "home")}
        choice = {"default": {"socket": str(deployment.socket), "seconds": 30, "flower": started}}
        (place / "deploy" / "federation.yaml").write_text(dump(choice))
        ran = run_here(deployment, JOB)
        assert ran.success, ran.failures
    for name in NAMES:
        assert [run["state"] for run in node_status(place / name).to_json()["runs"]] == ["spent"]
    folder, dossier = published(deployment)
    assert dossier["mechanism"]["took_part"]["finished"] == [[AUDITOR, *NAMES]]
    assert verification.verify(deployment.settings, str(folder), None).ok
