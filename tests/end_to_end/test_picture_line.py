"""Tables of pictures, from the source to a verified release, by each method."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from line_cases import PEOPLE, ledger_of, released, run_here, storage_of
from picture_cases import KINDS, SIDE, picture_deployment

from dpsynth_platform.foundation.image_form import ImageForm
from dpsynth_platform.foundation.storage import read_table
from dpsynth_platform.reviewing import verification
from dpsynth_platform.sources.pictures import read_pictures

pytestmark = [pytest.mark.end_to_end, pytest.mark.usefixtures("worker_here")]


@pytest.mark.parametrize("method", ["image_moments", "image_pe", "image_mixed", "image_diffusion"])
def test_a_line_of_pictures(tmp_path: Path, method: str) -> None:
    deployment = picture_deployment(tmp_path, method=method)
    ran = run_here(deployment)
    assert ran.success, ran.failures
    (entry,) = ledger_of(deployment).entries()
    assert entry.state == "spent"
    path = released(deployment)
    report = verification.verify(deployment.settings, str(path), None)
    assert not report.problems
    rows = pa.Table.from_batches(read_table(path / "data"))
    assert rows.num_rows == 120 and set(rows["kind"].to_pylist()) <= set(KINDS)
    pixels, good, faults = read_pictures(rows["drawing"], ImageForm(SIDE, SIDE, 1), "refuse", False)
    assert good.all() and not faults
    dossier = json.loads((path / "dossier.json").read_text())
    assert dossier["synthetic"]["pictures"]["classes"] == KINDS
    assert {c["name"]: c["treatment"] for c in dossier["synthetic"]["columns"]}["drawing"] == "pictured"
    scrubbed = storage_of(deployment).require(PEOPLE, "scrubbed")
    assert "pictures_left_out" in scrubbed.facts["report"]
    assert np.ptp(pixels) > 0
