"""The whole line with settings among which the mechanism chooses: from the table to a verified release."""

from __future__ import annotations

import json

import pytest
from deployment import Deployment
from line_cases import PEOPLE, SMALL, ledger_of, released, run_here, small_table, storage_of

from dpsynth_platform.release.verify import verify_release
from dpsynth_platform.synth.tabular import paid

pytestmark = [pytest.mark.end_to_end, pytest.mark.usefixtures("worker_here")]


def test_x(tmp_path, monkeypatch):
    monkeypatch.setattr(paid, "ROWS", 2000)
    generate = {
        "rows": 200,
        "tune": {
            "candidates": [
                {"method": "mst"},
                {"method": "independent"},
                {"method": "arn", "network": {"steps": 6, "replay_steps": 2}},
            ],
            "runs": 3,
        },
    }
    deployment = Deployment(tmp_path, contract={**SMALL, "generate": generate})
    deployment.write().with_source(small_table())
    ran = run_here(deployment)
    assert ran.success, ran.failures
    print(ran.said)
    print(ran.materializations)
    (entry,) = ledger_of(deployment).entries()
    folder = released(deployment)
    assert verify_release(folder).ok
    print(json.dumps(json.loads((folder / "dossier.json").read_text()), indent=1))
    model = storage_of(deployment).require(PEOPLE, "model").directory
    print(sorted(p.name for p in model.rglob("*")))
    assert 0
