"""Texts whose records have several owners: bounded by a fixed graph, drawn and clipped record by record."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from inside import inside
from line_cases import PEOPLE, ledger_of, released, run_here, storage_of
from test_text_repetition import leaves
from text_line_cases import declare_base_public, letters_table, text_deployment

from dpsynth_platform.audit.canaries import is_canary
from dpsynth_platform.foundation.storage import read_table
from dpsynth_platform.privacy.accounting import epsilon
from dpsynth_platform.privacy.events import SampledGaussianEvent, event_from_json
from dpsynth_platform.reviewing import verification
from dpsynth_platform.scrub.fingerprints import fingerprint_hex
from dpsynth_platform.training.clipping import ClippedSums

pytestmark = [pytest.mark.end_to_end, pytest.mark.usefixtures("no_gate")]
BOUND, CHUNKS = 2, 2


def letters_between_people() -> pa.Table:
    """Letters with a writer and mostly a reader, of whom some have many; every other one too long for one example."""
    random = np.random.default_rng(4)
    table = letters_table()
    readers = [None if number % 5 == 0 else f"P{number:05d}" for number in random.geometric(0.01, table.num_rows)]
    letters = [text * (1 + 3 * (row % 2)) for row, text in enumerate(table["letter"].to_pylist())]
    return table.set_column(table.schema.get_field_index("letter"), "letter", pa.array(letters)).append_column(
        "reader", pa.array(readers)
    )


def test_a_release_of_letters_between_people(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    deployment = text_deployment(
        tmp_path,
        table=letters_between_people(),
        owner_columns=["person", "reader"],
        adjacency="fixed-graph",
        max_contributions=BOUND,
    )
    deployment.contract["source"]["key"] = ["visit"]
    deployment.contract["columns"]["reader"] = {"type": "identifier", "nullable": True}
    deployment.contract["generate"]["text"]["chunks"] = CHUNKS
    deployment.family["adjacency"] = "fixed-graph"
    deployment.write()
    declare_base_public(deployment)
    clipped: list[tuple[int, ...]] = []
    add = ClippedSums.add

    def noting(self: ClippedSums, batch: Any, weights: Any) -> None:
        whole = weights.sum(1)
        assert ((whole - 1).abs() < 1e-6)[whole > 0].all()  # a record weighs the same, whatever it was cut into
        clipped.append((int((whole > 0).sum()), weights.shape[1]))  # some fill up
        add(self, batch, weights)

    monkeypatch.setattr(ClippedSums, "add", noting)
    ran = run_here(deployment, accelerator=inside(deployment))
    assert ran.success, ran.failures

    kept = pa.Table.from_batches(
        read_table(storage_of(deployment).require(PEOPLE, "bounded").directory / "table")
    ).to_pylist()
    assert max(Counter(owner for row in kept for owner in row["_owners"]).values()) == BOUND
    (entry,) = ledger_of(deployment).entries()
    participants = set(fingerprint_hex(ledger_of(deployment).participants(entry.entry_id)))
    real = [row for row in kept if not is_canary(row["_owners"][0])]
    assert {len(row["_owners"]) for row in real} == {1, 2}
    assert all(participants.issuperset(row["_owners"]) for row in real)

    event = event_from_json(entry.request.event)
    steps = [part for part in leaves(event) if isinstance(part, SampledGaussianEvent)]
    assert {(part.sampled, part.adjacency, part.most_in_sample) for part in steps} == {("record", "fixed-graph", BOUND)}
    assert 1.9 < epsilon(event, 1e-6).epsilon <= 2.0
    # Units are records: a long one's two chunks are one of them. The first pass only tries what fits.
    assert {wide for _, wide in clipped[1:]} == {1, CHUNKS}
    assert sum(units for units, _ in clipped[1:]) < 6 * len(kept)

    folder = released(deployment)
    dossier = json.loads((folder / "dossier.json").read_text())
    assert dossier["guarantee"]["adjacency"] == "fixed-graph"
    assert "ownership graph" in json.dumps(dossier["statement"]) or "who owns which" in json.dumps(dossier["statement"])
    published = pa.Table.from_batches(read_table(folder / "data"))
    assert published["letter"].null_count == 0
    assert not {f"P{number:05d}" for number in range(900)} & {
        *published["person"].to_pylist(),
        *published["reader"].to_pylist(),
    }
    assert verification.verify(deployment.settings, str(folder), None).ok
