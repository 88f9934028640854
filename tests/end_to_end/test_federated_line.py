"""A federated dataset through the whole line: sums of participants' rows, audited, approved, published and verified."""

from __future__ import annotations

import copy
import json
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from deployment import Deployment
from federated_cases import COLUMNS, KEYS, NAMES, participant, public, rows
from line_cases import ledger_of, lineage_of, run_here, storage_of
from relay_cases import carried
from test_nodes import Wires, states

from assets.line import FEDERATED
from dpsynth_platform.contracts.federation import AUDITOR
from dpsynth_platform.federation.coordinator import TookPart
from dpsynth_platform.federation.nodes import Node
from dpsynth_platform.foundation.storage import Place, steps_of
from dpsynth_platform.operations.federating import COORDINATOR, federation_keys
from dpsynth_platform.reviewing import verification
from dpsynth_platform.reviewing.decisions import approve
from dpsynth_platform.secrets.vault import Vault

pytestmark = pytest.mark.end_to_end

MEALS = Place("meals")
JOB = "meals_candidate"
CONTRACT: dict[str, Any] = {
    "dataset": "meals",
    "description": "Fictional people.",
    "owners": ["tests@example.org"],
    "source": {
        "uri": "federation://meals",
        "format": "federated",
        "key": ["person"],
        "federation": {
            "participants": {name: public(KEYS[name]) for name in NAMES},
            "minimum": 3,
            "colluders": 1,
            "most_records": 10_000,
        },
    },
    "family": "guests",
    "privacy": {
        "unit": "user",
        "owner_columns": ["person"],
        "namespace": "person",
        "max_contributions": 1,
        "guarantee": {"epsilon": 2.0, "delta": 1e-5},
        "expected_units": 2000,
    },
    "columns": {"person": {"type": "identifier"}, **COLUMNS},
    "generate": {"method": "mst", "rows": 300},
    # What is shown does not depend on the verdict: so few canaries show nothing at such a confidence.
    "audit": {"canaries": 60, "confidence": 0.999999, "accept_inconclusive": "a test of other things"},
    "release": {"uri": "${DPSYNTH_HOME}/public/meals", "approvals": 1},
}
FAMILY: dict[str, Any] = {
    "family": "guests",
    "unit": "user",
    "adjacency": "add-or-remove",
    "namespace": "person",
    "mode": "family",
    "cap": {"epsilon": 6.0, "delta": 1e-4},
}


@pytest.fixture
def place() -> Iterator[Path]:
    """A short path: a socket's has at most 107 bytes."""
    made = Path(tempfile.mkdtemp(prefix="fl-"))
    yield made
    shutil.rmtree(made, ignore_errors=True)


def deployment_of(place: Path, **changes: Any) -> Deployment:
    made = Deployment(place, contract=copy.deepcopy(CONTRACT), family=copy.deepcopy(FAMILY))
    for part, values in changes.items():
        made.contract[part].update(values)
    made.write()
    (place / "deploy" / "federation.yaml").write_text(f"default: {{socket: {place}/s}}\n")
    return made


def settings_of(deployment: Deployment) -> Any:
    from dataclasses import replace

    return replace(deployment.settings, federation=deployment.root / "deploy" / "federation.yaml")


class Federated(Deployment):
    @property
    def settings(self) -> Any:
        from dataclasses import replace

        return replace(super().settings, federation=self.root / "deploy" / "federation.yaml")


def nodes_of(deployment: Deployment, **changes: Any) -> dict[str, Node]:
    keys = federation_keys(Vault(deployment.settings.vault))
    named = {name: public(KEYS[name]) for name in NAMES} | {AUDITOR: public(keys[AUDITOR])}
    terms = {"participants": named, "coordinator": public(keys[COORDINATOR]), "colluders": 2} | changes
    table, place = rows(2_000), deployment.root / "nodes"
    return {
        name: Node(participant(place, name, table.take(np.arange(index, 2_000, len(NAMES))), **terms), KEYS[name])
        for index, name in enumerate(NAMES)
    }


def test_the_whole_line(place: Path) -> None:
    deployment = Federated(place, contract=copy.deepcopy(CONTRACT), family=copy.deepcopy(FAMILY)).write()
    (place / "deploy" / "federation.yaml").write_text(f"default: {{socket: {place}/s}}\n")
    nodes = nodes_of(deployment)
    with carried(place / "s", Wires(nodes)):
        ran = run_here(deployment, JOB)
    assert ran.success, ran.failures
    assert states(nodes) == {name: ["spent"] for name in NAMES}
    approve(deployment.settings, MEALS, "reviewer", "")
    ran = run_here(deployment, "meals_release")
    assert ran.success, ran.failures
    folder = Path(storage_of(deployment).require(MEALS, "released").facts["path"])
    import subprocess

    subprocess.run(["cp", "-r", str(folder), "/tmp/released"])
    assert verification.verify(deployment.settings, str(folder), None).ok
    dossier = json.loads((folder / "dossier.json").read_text())
