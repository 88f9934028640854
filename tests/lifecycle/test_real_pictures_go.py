"""Real pictures that a line keeps beside its tables go with an erasure request and in time, like all other rows."""

from __future__ import annotations

import datetime as dt
import os
from pathlib import Path

import pytest
from letters_cases import LETTERS, PLACE

from dpsynth_platform.foundation.storage import EXAMPLES, NEAREST, NEAREST_DRAWING, PICTURES, Storage
from dpsynth_platform.lifecycle.erasure import HONOURED, Erasure
from dpsynth_platform.lifecycle.retention import due

NOW = dt.datetime.now(dt.UTC)
OLD = dt.timedelta(days=3650)


def made(storage: Storage) -> dict[str, Path]:
    """Where real pictures lie: beside the quality report, and after a killed training."""
    for step in ("raw", "scrubbed", NEAREST):
        facts = {"raw": {"contract": LETTERS}, "scrubbed": {HONOURED: 0}}.get(step, {})
        with storage.new_output(PLACE, step) as directory:
            (directory / NEAREST_DRAWING).write_text(step)
        storage.record(PLACE, step, run_key="k", directory=directory, facts=facts)
    found = {"nearest": directory / NEAREST_DRAWING}
    found["model"] = storage.named_output(PLACE, "model", "e") / PICTURES / EXAMPLES / "pixels.u1"
    for path in found.values():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("a picture")
    for path in storage.root.rglob("*"):
        os.utime(path, ((NOW - OLD).timestamp(),) * 2)
    return found


@pytest.mark.parametrize("where", ["nearest", "model"])
def test_a_real_picture_goes_after_an_erasure_request(tmp_path: Path, where: str) -> None:
    storage = Storage(tmp_path)
    path = made(storage)[where]
    if where == "model":  # a model itself stays; a young one is not superseded
        for part in (path.parents[4], *path.parents[4].rglob("*")):
            os.utime(part, ((NOW - dt.timedelta(minutes=2)).timestamp(),) * 2)
    namespace = LETTERS["privacy"]["namespace"]
    asked = Erasure(namespace, 1, NOW - dt.timedelta(minutes=1), 1)
    paths = [item.path for item in due(storage, [], NOW, {namespace: asked})]
    assert any(path.is_relative_to(gone) for gone in paths)
