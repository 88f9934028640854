"""A month of texts whose training samples owners: paid for once, whatever is asked of it again, and within the cap.

One deployment runs to its candidate; the tests look at it, and ask for more, in their order.
"""

from __future__ import annotations

import datetime as dt
import json
import re
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import dagster as dg
import numpy as np
import pyarrow as pa
import pytest
from deployment import Deployment
from inside import InProcessAccelerator, inside
from line_cases import Ran, ledger_of, run_here, storage_of
from test_budget import files_of
from text_line_cases import declare_base_public, letters_table, text_deployment, without_gate

from dpsynth_platform.foundation.errors import MechanismFailed
from dpsynth_platform.foundation.storage import Place, read_table
from dpsynth_platform.privacy.events import SampledGaussianEvent, event_from_json
from dpsynth_platform.reviewing import verification
from dpsynth_platform.reviewing.decisions import approve
from dpsynth_platform.sources import source
from dpsynth_platform.training.clipping import ClippedSums
from dpsynth_platform.worker.job import WorkerJob

pytestmark = pytest.mark.end_to_end
BATCH, UNITS, BOUND = 100, 600, 2
MONTH, NEXT = "2020-02", "2020-03"
PLACE = Place("people", MONTH)
starts: list[str] = []
parts: list[tuple[int, int]] = []
"""Of each part of a step, how many units it has and how many records of each."""


class RefusingAccelerator(InProcessAccelerator):
    """Notes that a mechanism was asked for, and has none."""

    def runner(self, context: dg.AssetExecutionContext) -> Callable[[WorkerJob], None]:
        def run(job: WorkerJob) -> None:
            starts.append(job.mode)
            raise MechanismFailed("the worker was killed")

        return run


def refusing(deployment: Deployment) -> RefusingAccelerator:
    starts.clear()
    return RefusingAccelerator(device="cpu", logs=str(deployment.settings.restricted / "logs"))


@pytest.fixture(scope="module")
def line(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    """A candidate, after a training by owners with two records at most; the gate has tests of its own."""
    deployment = text_deployment(
        tmp_path_factory.mktemp("owners"),
        table=people_with_three(),
        training={"sampled": "owners"},
        max_contributions=BOUND,
    )
    deployment.contract["columns"]["day"] = {"type": "date", "min": "2020-01-01", "max": "2020-12-31"}
    deployment.contract["source"]["period_column"] = "day"
    deployment.contract["release"] |= {"cadence": "monthly", "start": "2020-01"}
    deployment.write()
    declare_base_public(deployment)
    add = ClippedSums.add

    def noting(self: ClippedSums, batch: object, weights: object) -> None:
        parts.append((int((weights.sum(1) > 0).sum()), weights.shape[1]))  # type: ignore[attr-defined]  # some fill up
        add(self, batch, weights)  # type: ignore[arg-type]

    with pytest.MonkeyPatch.context() as patch:
        without_gate(patch)
        patch.setattr(ClippedSums, "add", noting)
        ran = run_here(deployment, accelerator=inside(deployment), period=MONTH)
        assert ran.success, ran.failures
        yield deployment


def people_with_three() -> pa.Table:
    """Letters of which everybody has three, one more than is kept."""
    table = letters_table()
    people = pa.array([f"P{number // 3:05d}" for number in range(table.num_rows)])
    days = pa.array([dt.date(2020, 2, 1 + row % 28) for row in range(table.num_rows)])
    return table.set_column(0, "person", people).append_column("day", days)


def ran_again(line: Deployment, steps: list[str] | None = None, *, period: str = MONTH, spend_again: str = "") -> Ran:
    """A run with no mechanism to be had."""
    return run_here(line, steps=steps, accelerator=refusing(line), period=period, spend_again=spend_again)


def test_owners_are_what_is_drawn_clipped_and_paid_for(line: Deployment) -> None:
    (entry,) = ledger_of(line).entries()
    assert entry.state == "spent"
    steps = [part for part in leaves(event_from_json(entry.request.event)) if isinstance(part, SampledGaussianEvent)]
    assert {(part.sampled, part.sampling_probability) for part in steps} == {("user", BATCH / UNITS)}
    # A unit is an owner with both records, never a record by itself; of 300 owners, some 30 canaries and q = 1/6, six
    # steps have 330 and a deviation of 17: outside of these ends once in 1e11.
    assert {wide for _, wide in parts[1:]} == {BOUND}
    assert 6 * 25 < sum(units for units, _ in parts[1:]) < 6 * 75
    rows = pa.Table.from_batches(read_table(storage_of(line).require(PLACE, "bounded").directory / "table"))
    assert max(np.unique(rows["_owner"].to_pylist(), return_counts=True)[1]) == BOUND


def leaves(event: object) -> Iterator[object]:
    """An event's parts that have none themselves."""
    within = getattr(event, "events", None) or [part for part in (getattr(event, "event", None),) if part is not None]
    if not within:
        yield event
    for part in within:
        yield from leaves(part)


def test_launching_again_spends_nothing(line: Deployment) -> None:
    head, before = ledger_of(line).head(), storage_of(line).require(PLACE, "synthetic").content_hash
    for steps in (None, ["model"], ["clearance", "bounded", "model"], ["canaries"], ["raw", "synthetic"]):
        ran = ran_again(line, steps)
        assert ran.success, ran.failures
        assert starts == []
    assert ledger_of(line).head() == head
    assert storage_of(line).require(PLACE, "synthetic").content_hash == before


def test_other_ways_of_drawing_are_no_new_spend(line: Deployment) -> None:
    storage, head = storage_of(line), ledger_of(line).head()
    model, before = storage.require(PLACE, "model"), storage.require(PLACE, "synthetic")
    line.contract["generate"]["text"] |= {
        "temperature": 0.7,
        "top_k": 50,
        "top_p": 0.95,
        "most_tokens": 30,
        "keep": {"duplicates": "kept", "least_characters": 5},
        "counts": {"region": {"east": 20, "west": 10}},
    }
    line.contract["generate"]["rows"] = 30
    line.write()
    ran = ran_again(line)
    assert ran.success, ran.failures
    assert starts == []
    assert [event.kind for event in ledger_of(line).history(after=head.sequence)] == ["audited", "candidate"]
    assert storage.require(PLACE, "model").content_hash == model.content_hash
    after = storage.require(PLACE, "synthetic")
    assert after.content_hash != before.content_hash
    rows = pa.Table.from_batches(read_table(after.directory / "table"))
    assert Counter(rows["region"].to_pylist()) <= Counter(east=20, west=10)
    assert "synthetic texts were drawn; left out: " in ran.materializations["synthetic"]["texts"]
    assert ran.materializations["synthetic"]["texts"] in ran.said["synthetic"]
    assert after.facts["texts_drawn"] >= after.facts["texts_left_out"] + rows.num_rows


@pytest.mark.parametrize("change", ["epsilon", "steps", "month"])
def test_a_request_beyond_the_cap_changes_nothing(
    line: Deployment, change: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another training, of this month's letters (with the word that this needs) or of the next one's.

    It is refused before a row is read, and the first one's candidate stays as it was.
    """
    ledger = ledger_of(line)
    entries, left, kept = ledger.entries(), ledger.left("tests", 1e-6), files_of(line.settings.restricted)

    def unread(*_: object) -> None:
        raise AssertionError("the source was read")

    monkeypatch.setattr(source, "batches", unread)
    before = json.dumps(line.contract)
    if change == "epsilon":
        line.contract["privacy"]["guarantee"]["epsilon"] = 2.1
    elif change == "steps":
        line.contract["generate"]["training"]["steps"] = 7
    line.write()
    try:
        if change == "month":
            ran = ran_again(line, period=NEXT)
        else:
            assert "is about this period already" in ran_again(line).failures["raw"]
            ran = ran_again(line, spend_again=entries[0].entry_id)
    finally:
        line.contract = json.loads(before)
        line.write()
    assert set(ran.failures) == {"raw"}
    assert re.search(r"epsilon left at this delta: \d", ran.failures["raw"])
    assert ran.materializations == {}
    assert starts == []
    assert ledger.entries() == entries
    assert ledger.left("tests", 1e-6) == left
    assert files_of(line.settings.restricted) == kept
    assert ledger.history()[-1].kind == "blocked"
    assert ledger.verify().ok


def test_the_release_says_that_owners_were_sampled(line: Deployment) -> None:
    approve(line.settings, PLACE, "reviewer", "")
    ran = run_here(line, "people_release", period=MONTH)
    assert ran.success, ran.failures
    folder = Path(storage_of(line).require(PLACE, "released").facts["path"])
    dossier = json.loads((folder / "dossier.json").read_text())
    assert (dossier["guarantee"]["unit"], dossier["guarantee"]["max_contributions"]) == ("user", BOUND)
    assert dossier["contract"]["generate"]["training"]["sampled"] == "owners"
    texts = dossier["synthetic"]["texts"]
    assert texts["drawn"] >= texts["rows_without"] + dossier["synthetic"]["rows"] == 30
    for page in ("dossier.html", "README.md"):
        assert texts["in_words"].split(";")[0] in (folder / page).read_text()
    assert verification.verify(line.settings, str(folder), None).ok
    assert len([entry for entry in ledger_of(line).entries() if entry.state != "void"]) == 1
