"""scrubbed: best-effort removal of direct identifiers, and the fingerprints of the owners.

What belongs here: passing the pinned source to `scrub`, leaving erased owners out, storing table and participants. What
does not: finding and replacing identifiers. The guarantee does not depend on this step.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dpsynth_platform.contracts.contract import DataContract
from dpsynth_platform.foundation.errors import StaleInput
from dpsynth_platform.foundation.storage import read_table, write_table
from dpsynth_platform.lifecycle.erasure import HONOURED, erased_owners, honoured, without
from dpsynth_platform.lifecycle.owner_keys import KEY_IDS
from dpsynth_platform.operations.admitting import kept_copy
from dpsynth_platform.operations.step import Outcome, Step, StepContext
from dpsynth_platform.scrub.fingerprints import distinct_owners, owner_column, write_fingerprints
from dpsynth_platform.sources import source

_REFUSED, _ACCEPTED = "damaged_refused", "pii_accepted"
"""Keys of the record: columns that were declared with `damaged: refuse`, and with `accept_pii`."""

if TYPE_CHECKING:
    from dpsynth_platform.scrub.fingerprints import Fingerprints
    from dpsynth_platform.scrub.scrub import ScrubKeys


def body(step: StepContext) -> Outcome:
    """Streams the pinned version through the scrubber."""
    from dpsynth_platform.linked_rows.line import rows_schema

    contract, raw = step.sealed()
    account = step.account()
    erasure = step.erasure(account)
    earlier = step.reusable(raw, "scrubbed")
    strictness = _strictness(contract)
    strict = earlier is not None and _as_strict(earlier.facts, strictness)
    if earlier is not None and strict and step.keyed_alike(earlier, account) and honoured(earlier, erasure):
        return Outcome(earlier, rows_schema(contract, earlier.directory), earlier.facts["rows"], reused=True)
    pinned = source.pin(
        contract, step.storage.root, version=raw.facts["source_version"], copy=kept_copy(step, raw.run_key)
    )
    if raw.facts["source"].rpartition("@")[0] != pinned.table_id:
        label = step.place.label
        raise StaleInput(
            f"{label}: another table is at the source's place than the one that raw pinned; materialize "
            f"{label}/raw again, which is a new spend"
        )
    erased = erased_owners(step.storage.root, erasure, account)
    with step.storage.new_output(step.place, "scrubbed") as directory:
        count, owners, report = _scrub(step, contract, pinned, step.scrub_keys(contract, account), erased, directory)
        write_fingerprints(directory / "participants", owners)
        record = step.record(
            "scrubbed",
            run_key=raw.run_key,
            directory=directory,
            inputs=[raw],
            facts={
                "rows": count,
                "owners": len(owners),
                "report": report,
                KEY_IDS: list(account.key_ids),
                HONOURED: 0 if erasure is None else erasure.event,
                **strictness,
            },
        )
    shown = {"owners": len(owners), "scrubbing report": report}
    return Outcome(record, rows_schema(contract, record.directory), count, metadata=shown)


def _scrub(
    step: StepContext,
    contract: DataContract,
    pinned: source.PinnedSource,
    keys: ScrubKeys,
    erased: Fingerprints,
    directory: Path,
) -> tuple[int, Fingerprints, dict[str, Any]]:
    """Scrubs one table, or reads linked ones, whose keys become keyed hashes; the number of rows, owners and report."""
    if contract.tables:
        from dpsynth_platform.linked_rows.line import read_tables

        step.progress("reading tables")
        read = read_tables(
            contract, pinned.content, directory, owner_keys=keys.owner, column_key=keys.column, left_out=erased
        )
        return sum(read.rows.values()), read.owners, {"rows": dict(read.rows)}
    from dpsynth_platform.scrub.scrub import scrub_batches

    rows = source.batches(pinned, contract, step.place.period)
    schema, batches, report = scrub_batches(rows, contract, pinned.schema, keys, progress=step.counted("rows scrubbed"))
    count = write_table(directory / "table", schema, without(batches, erased))
    owners = distinct_owners(read_table(directory / "table", columns=[owner_column(schema)]))
    return count, owners, report.as_dict()


def _strictness(contract: DataContract) -> dict[str, list[str]]:
    """The columns whose content may stop the step, and those that are accepted as they are: they change no value."""
    damaged = {name for name, column in contract.columns.items() if getattr(column, "damaged", None) == "refuse"}
    accepted = {name for name, column in contract.columns.items() if getattr(column, "accept_pii", None) is not None}
    return {_REFUSED: sorted(damaged), _ACCEPTED: sorted(accepted)}


def _as_strict(earlier: Mapping[str, Any], now: Mapping[str, list[str]]) -> bool:
    """Whether earlier rows passed all that would stop the step now. Records of earlier versions say nothing of it."""
    refused, accepted = earlier.get(_REFUSED, []), earlier.get(_ACCEPTED, now[_ACCEPTED])
    return set(now[_REFUSED]) <= set(refused) and set(accepted) <= set(now[_ACCEPTED])


STEP = Step(
    name="scrubbed",
    description=(
        "The source with direct identifiers dropped, masked, hashed or replaced (best effort), and owners as keyed "
        "fingerprints. Restricted."
    ),
    upstream=("raw",),
    kinds=frozenset({"deltalake", "presidio"}),
    zone="restricted",
    code_version="2",
    body=body,
)
