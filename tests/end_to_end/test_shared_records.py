"""The line where records have several owners: from two owner columns, or a list of them, to a release."""

from __future__ import annotations

import copy
import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from column_walk import Root, described, roots
from deployment import Deployment
from line_cases import PEOPLE, SMALL, ledger_of, released, run_here, small_table, storage_of

from dpsynth_platform.audit.canaries import is_canary
from dpsynth_platform.foundation.storage import read_table
from dpsynth_platform.lineage.columns import FRESH_IDS
from dpsynth_platform.scrub.fingerprints import fingerprint_hex, read_fingerprints

pytestmark = [pytest.mark.end_to_end, pytest.mark.usefixtures("worker_here")]
OWNERS = 700


def shared_table(*, as_list: bool, rows: int = 1500) -> pa.Table:
    """Visits that a patient and sometimes a clerk, or up to four people, own together; some owners have many."""
    random = np.random.default_rng(11)
    table = small_table(rows).drop_columns(["person"])
    first = random.geometric(0.01, rows) % OWNERS
    second = random.integers(0, OWNERS, rows)
    names = [f"P{number:04d}" for number in range(OWNERS)]
    if not as_list:
        clerks = [names[number] if number % 5 else None for number in second]
        return table.append_column("person", pa.array([names[number] for number in first])).append_column(
            "clerk", pa.array(clerks)
        )
    third = random.integers(0, OWNERS, rows)
    lists = [
        [names[one], names[two], names[one], names[three]][: 1 + place % 4]
        for place, (one, two, three) in enumerate(zip(first, second, third, strict=True))
    ]
    lists[7] = []
    return table.append_column("person", pa.array(lists, pa.list_(pa.string())))


def shared_deployment(root: Path, *, as_list: bool, mode: str = "per-owner", **privacy: Any) -> Deployment:
    deployment = Deployment(root, contract=copy.deepcopy(SMALL))
    owners = ["person"] if as_list else ["person", "clerk"]
    deployment.contract["source"]["key"] = ["visit"]
    deployment.contract["privacy"].update({"owner_columns": owners, "adjacency": "fixed-graph"} | privacy)
    if not as_list:
        deployment.contract["columns"]["clerk"] = {"type": "identifier", "nullable": True}
    deployment.family |= {"adjacency": "fixed-graph", "mode": mode}
    return deployment.write().with_source(shared_table(as_list=as_list))


def rows_of(deployment: Deployment, step: str) -> list[dict[str, Any]]:
    return pa.Table.from_batches(
        read_table(storage_of(deployment).require(PEOPLE, step).directory / "table")
    ).to_pylist()


@pytest.mark.parametrize("as_list", [False, True])
def test_a_release_from_records_with_several_owners(tmp_path: Path, as_list: bool) -> None:
    deployment = shared_deployment(tmp_path, as_list=as_list)
    ran = run_here(deployment)
    assert ran.success, ran.failures
    assert ran.materializations["scrubbed"]["scrubbing report"]["rows_without_owner"] == int(as_list)

    kept = rows_of(deployment, "bounded")
    real = [row for row in kept if not is_canary(row["_owners"][0])]
    held = Counter(owner for row in kept for owner in row["_owners"])
    assert max(held.values()) == 2
    assert max(len(row["_owners"]) for row in real) == (3 if as_list else 2)
    assert 150 < len(real) < 900

    # Every record that went has an owner who is full or takes no part: nothing was dropped for nothing.
    (entry,) = ledger_of(deployment).entries("tests")
    participants = set(fingerprint_hex(ledger_of(deployment).participants(entry.entry_id)))
    records = {row["_record"] for row in kept}
    dropped = [row for row in rows_of(deployment, "scrubbed") if row["_record"] not in records]
    assert dropped
    assert all(any(owner not in participants or held[owner] == 2 for owner in row["_owners"]) for row in dropped)
    assert all(owner in participants for row in real for owner in row["_owners"])

    release = released(deployment)
    dossier = json.loads((release / "dossier.json").read_text(encoding="utf-8"))
    words = json.dumps(dossier["statement"])
    assert dossier["guarantee"]["adjacency"] == "fixed-graph"
    assert "who owns which records" in words or "ownership graph" in words
    published = pa.Table.from_batches(read_table(release / "data"))
    assert published.num_rows == 200
    source = shared_table(as_list=as_list)
    assert published.schema.field("person").type == source.schema.field("person").type
    assert not {f"P{number:04d}" for number in range(OWNERS)} & set(np.ravel(list(published["person"].to_pylist())))

    # Each released column walks back to the source, masked, or says why it has no origin there.
    known = described(map(json.loads, deployment.settings.lineage_file.read_text().splitlines()))
    ends = {name: roots(known, (str(release / "data"), name)) for name in published.column_names}
    owners = ["person"] if as_list else ["person", "clerk"]
    assert all({root.reason for root in ends[name]} == {FRESH_IDS} for name in owners)
    home = str(deployment.settings.home / "sources" / "people")
    assert Root(home, "score", masked=True) in ends["score"]
    (scrubbed,) = {dataset for dataset, column in known if column == "_owners" and dataset.endswith("scrubbed")}
    assert roots(known, (scrubbed, "_owners")) == {Root(home, name, masked=True) for name in owners}


def test_a_weight_orders_and_is_not_published(tmp_path: Path) -> None:
    deployment = shared_deployment(tmp_path, as_list=False, record_order="weight:score", max_contributions=1)
    ran = run_here(deployment)
    assert ran.success, ran.failures
    assert "score" not in rows_of(deployment, "bounded")[0]
    scores = {row["_record"]: row["score"] for row in rows_of(deployment, "scrubbed")}
    kept = [scores[row["_record"]] for row in rows_of(deployment, "bounded") if row["_record"] in scores]
    assert np.mean(kept) > np.mean(list(scores.values())) + 1
    published = pa.Table.from_batches(read_table(released(deployment) / "data"))
    assert published["score"].null_count == published.num_rows


def test_an_exhausted_owner_takes_every_record_of_theirs_along(tmp_path: Path) -> None:
    deployment = shared_deployment(tmp_path, as_list=False, on_overlap="exclude")
    assert run_here(deployment, steps=["raw", "scrubbed", "canaries", "clearance"]).success
    (entry,) = ledger_of(deployment).entries("tests")
    taken = set(fingerprint_hex(ledger_of(deployment).participants(entry.entry_id)))
    everybody = set(
        fingerprint_hex(
            read_fingerprints(storage_of(deployment).require(PEOPLE, "scrubbed").directory / "participants")
        )
    )
    assert taken < everybody  # the held-out
    assert run_here(deployment, steps=["bounded"]).success
    for row in rows_of(deployment, "bounded"):
        assert is_canary(row["_owners"][0]) or taken.issuperset(row["_owners"])
