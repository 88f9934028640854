"""The whole line where owners are counted in place of rows, by the deployment's SQL engine: paid, stated, released."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from inside import inside
from line_cases import PEOPLE, ledger_of, released, run_here, small_deployment, storage_of

from dpsynth_platform.foundation.storage import read_table
from dpsynth_platform.release.verify import verify_release
from dpsynth_platform.scrub.fingerprints import OWNER_COLUMN, distinct_owners
from dpsynth_platform.synth.interface import SealedPlan
from dpsynth_platform.synth.tabular.counting import Records
from dpsynth_platform.synth.tabular.model import load_model
from dpsynth_platform.synth.tabular.sql_counting import SqlCounter
from dpsynth_platform.worker import counting

pytestmark = pytest.mark.end_to_end


def test_owners_are_counted_paid_for_stated_and_released(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    by_engine = []
    one_way = SqlCounter.one_way
    monkeypatch.setattr(SqlCounter, "one_way", lambda self: by_engine.append(self) or one_way(self))
    monkeypatch.setattr(counting, "LEAST_ROWS", 1)
    deployment = small_deployment(tmp_path, max_contributions=2, weighting="owners")
    ran = run_here(deployment, accelerator=inside(deployment))
    assert ran.success, ran.failures
    assert len(by_engine) == 1

    storage, (entry,) = storage_of(deployment), ledger_of(deployment).entries()
    assert entry.request.guarantee.weighting == "owners"
    assert '"weighting": "owners"' in json.dumps(entry.request.event)
    assert not ledger_of(deployment).verify(()).problems

    bounded = storage.require(PEOPLE, "bounded").directory / "table"
    model = load_model(storage.require(PEOPLE, "model").directory)
    exact = Records(bounded, model.domain, "owners").one_way()
    owners = distinct_owners(read_table(bounded, columns=[OWNER_COLUMN])).size
    assert owners < sum(batch.num_rows for batch in read_table(bounded))
    assert exact[0].sum() == owners * 2**16  # one row, or two of one half each
    noisy = model.measurements.one_way[0]
    assert np.abs(noisy.counts - exact[0] / 2**16).max() < 8 * noisy.sigma + 1

    folder = released(deployment)
    dossier = (folder / "dossier.json").read_text()
    assert "the released rows describe the average owner, not the average row" in dossier
    assert "An owner's rows weigh one record together at most" in dossier
    assert verify_release(folder).ok
    plan = SealedPlan.from_json(model.plan.to_json())
    assert plan.describe()["weighting"] == "owners"
