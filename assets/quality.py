"""quality: how similar the synthetic rows are to the real ones, for reviewers.

What belongs here: passing real, synthetic and held-out rows to `quality`. What does not: any gate. The report compares
with real data, so it is restricted, and no automatic decision reads it: that would be an unpaid access.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from assets.shown import numbers, picture, table
from dpsynth_platform.contracts.contract import DataContract
from dpsynth_platform.contracts.family import FamilyBudget, leaves_out_in_silence
from dpsynth_platform.foundation.digests import canonical_digest
from dpsynth_platform.foundation.storage import NEAREST, NEAREST_DRAWING, Place, StepRecord, read_table, table_schema
from dpsynth_platform.operations.step import Outcome, Step, StepContext
from dpsynth_platform.scrub.fingerprints import (
    RECORD_COLUMN,
    Fingerprints,
    flat_owners,
    hex_column,
    holdout_mask,
    owner_column,
    read_fingerprints,
)

NUMBERS = {
    "distance of columns, mean": "fidelity.mean_column",
    "distance of pairs, mean": "fidelity.mean_pair",
    "similarity of histograms": "similarity.histogram",
    "similarity of pairs": "similarity.pair",
    "accuracy of associations": "similarity.association_accuracy",
    "error on the workload": "workload.synthetic",
    "detection, ROC AUC": "records.synthetic.detection_auc",
    "findings that hold": "parity.synthetic",
    "classifier on synthetic rows, ROC AUC": "utility.synthetic.mean.roc_auc",
    "classifier on real rows, ROC AUC": "utility.real.mean.roc_auc",
    "rows held out": "rows.held_out",
    "intervals that contain the exact answer, share": "answers.contained",
    "distance of numbers of children, mean": "linked.mean_children",
    "distance of columns of parents and children, mean": "linked.mean_across",
    "error of queries, mean": "linked.query_error",
}
"""Numbers of the report that asset page and check plot over time, by their labels."""


def body(step: StepContext) -> Outcome:
    """Measures, or reuses the report of the same inputs."""
    contract, raw = step.sealed()
    scrubbed, bounded, synthetic = step.same_run(raw, "scrubbed", "bounded", "synthetic")
    record = step.reusable(raw, "quality", scrubbed, bounded, synthetic)
    terms = {"terms": canonical_digest(contract.snapshot()["quality"])}
    if record is not None and not terms.items() <= record.facts.items():
        record = None  # the contract asks for other figures than it did
    reused = record is not None
    if record is None:
        step.progress("comparing marginals and training classifiers")
        with step.storage.new_output(step.place, "quality") as directory:
            if contract.tables:
                found = _linked(step, contract, raw, scrubbed, synthetic, directory)
            else:
                found = _measured(step, contract, raw, scrubbed, bounded, synthetic)
            (directory / "report.json").write_text(json.dumps(found.document, indent=1), encoding="utf-8")
            (directory / "rows.json").write_text(json.dumps(found.rows), encoding="utf-8")
            for name, drawn in found.drawings.items():
                (directory / f"{name}.svg").write_text(drawn, encoding="utf-8")
            _keep_nearest(step, found.nearest, [scrubbed, bounded, synthetic])
            record = step.record(
                "quality",
                run_key=synthetic.run_key,
                directory=directory,
                inputs=[scrubbed, bounded, synthetic],
                facts=terms,
            )
    return Outcome(record, reused=reused, metadata=_shown(step, record, contract))


@dataclass(frozen=True)
class _Found:
    """A report as JSON, as rows, as charts by name, and with a drawing of the nearest real pictures."""

    document: dict[str, Any]
    rows: Sequence[tuple[str, ...]]
    drawings: Mapping[str, str] = field(default_factory=dict)
    nearest: str | None = None


def _measured(
    step: StepContext,
    contract: DataContract,
    raw: StepRecord,
    scrubbed: StepRecord,
    bounded: StepRecord,
    synthetic: StepRecord,
) -> _Found:
    """The report of a single table, or of answers."""
    from dpsynth_platform.quality.answers import measure_answers
    from dpsynth_platform.quality.plots import plots
    from dpsynth_platform.quality.report import measure_quality

    tables = (
        _took_part(contract, scrubbed, bounded),
        pa.Table.from_batches(read_table(synthetic.directory / "table")),
        _held_out(step, contract, scrubbed, synthetic.facts["entry_id"]),
    )
    if contract.generate.answers:
        answers = measure_answers(step.plan(raw), *tables[:2])
        return _Found(answers.to_json(), answers.table())
    report = measure_quality(contract, step.place.period, *tables)
    texts, of_texts = _texts(step, contract, *tables)
    pictures, of_pictures, drawings, nearest = _pictures(step, contract, *tables)
    rows = [*report.table(), *of_texts, *of_pictures]
    return _Found(report.to_json() | texts | pictures, rows, plots(report) | drawings, nearest)


def _linked(
    step: StepContext,
    contract: DataContract,
    raw: StepRecord,
    scrubbed: StepRecord,
    synthetic: StepRecord,
    work: Path,
) -> _Found:
    """The report of linked tables; bounded rows are below `work` meanwhile."""
    from dpsynth_platform.operations.linked_rows import rows_of, scrubbed_tables, synthetic_tables
    from dpsynth_platform.quality.linked_report import measure_linked_contract

    tables = contract.linked
    owners = _owners(step, contract, scrubbed, synthetic.facts["entry_id"])
    rows = scrubbed_tables(tables, raw.facts["names"], scrubbed.directory)
    real, held_out = (rows_of(tables, rows, scrubbed.directory, side) for side in owners)
    made = synthetic_tables(tables, synthetic.directory)
    report = measure_linked_contract(contract, real, made, held_out, work)
    return _Found(report.to_json(), report.table(), report.plots())


def _texts(
    step: StepContext, contract: DataContract, real: pa.Table, synthetic: pa.Table, held_out: pa.Table
) -> tuple[dict[str, Any], list[tuple[str, ...]]]:
    """Synthetic texts compared with real ones: as part of the report, and as rows."""
    if contract.text_column is None:
        return {}, []
    from dpsynth_platform.quality.text.declared import measure_written, written_rows

    step.progress("comparing texts")
    report = measure_written(contract, real, held_out, synthetic)
    return {"texts": None if report is None else report.to_json()}, list(written_rows(report))


def _pictures(
    step: StepContext, contract: DataContract, real: pa.Table, synthetic: pa.Table, held_out: pa.Table
) -> tuple[dict[str, Any], list[tuple[str, ...]], dict[str, str], str | None]:
    """Synthetic pictures compared with real ones: in the report, as rows, as drawings, and the nearest real ones."""
    if contract.image_column is None:
        return {}, [], {}, None
    from dpsynth_platform.quality.images.declared import measure_pictures, nearest_drawing, picture_rows

    step.progress("comparing pictures")
    report = measure_pictures(contract, real, held_out, synthetic)
    if isinstance(report, str):
        return {"pictures": None}, list(picture_rows(report)), {}, None
    return {"pictures": report.to_json()}, list(picture_rows(report)), report.plots(), nearest_drawing(report)


def _keep_nearest(step: StepContext, drawing: str | None, inputs: Sequence[StepRecord]) -> None:
    """Stores the nearest real pictures apart from the report, which stays: they expire as rows do.

    No asset's metadata has them either: Dagster's event log keeps everything, and every engineer reads it.
    """
    if drawing is None:
        return
    with step.storage.new_output(step.place, NEAREST) as directory:
        (directory / NEAREST_DRAWING).write_text(drawing, encoding="utf-8")
        step.record(NEAREST, run_key=inputs[-1].run_key, directory=directory, inputs=inputs)


def _shown(step: StepContext, record: StepRecord, contract: DataContract) -> dict[str, object]:
    """The report for the asset page, as far as the operator may see it."""
    from dpsynth_platform.quality.report import NOTICE
    from dpsynth_platform.quality.report_rows import HEADER

    report = report_for_operator(record, contract, step.family)
    if report is None:
        return {"restricted": where_shown(step.place)}
    rows = json.loads((record.directory / "rows.json").read_text(encoding="utf-8"))
    drawn = {path.stem: picture(path.read_text(encoding="utf-8")) for path in sorted(record.directory.glob("*.svg"))}
    return {**numbers(report, NUMBERS), "quality": table(HEADER, rows), "restricted": NOTICE} | drawn


def report_for_operator(record: StepRecord, contract: DataContract, family: FamilyBudget) -> dict[str, Any] | None:
    """The report; None where its distances would show how many owners were silently left out."""
    if leaves_out_in_silence(contract, family):
        return None
    found: dict[str, Any] = json.loads((record.directory / "report.json").read_text(encoding="utf-8"))
    return found


def where_shown(place: Place) -> str:
    """That the report is restricted, and the command that shows it."""
    from dpsynth_platform.quality.report import NOTICE

    return f"{NOTICE} It is shown by: dpsynth release show {place.arguments}"


def _compared_columns(contract: DataContract) -> list[str]:
    """What the mechanism read, and real pictures that it did not read where texts are drawn."""
    pictures = [str(contract.image_column)] if contract.generate.drawn is not None else []
    return [*contract.read_by_mechanism, *pictures]


def _took_part(contract: DataContract, scrubbed: StepRecord, bounded: StepRecord) -> pa.Table:
    """The records that the mechanism read, with their pictures also where it did not read these.

    Of records with the same key, those after the first have no picture of their own then, and are left out.
    """
    from dpsynth_platform.audit.canaries import without_canaries

    if contract.generate.drawn is None:
        return without_canaries(_rows(bounded, contract.read_by_mechanism))
    column = str(contract.image_column)
    rows = without_canaries(_rows(bounded, [*contract.read_by_mechanism, RECORD_COLUMN]))
    scrubbed_rows = _rows(scrubbed, [column, RECORD_COLUMN])
    places = pc.index_in(rows.column(RECORD_COLUMN), scrubbed_rows.column(RECORD_COLUMN).combine_chunks())
    found = rows.filter(places.is_valid()).drop_columns([RECORD_COLUMN])
    return found.append_column(column, scrubbed_rows.column(column).take(places.drop_null()))


def _rows(record: StepRecord, columns: list[str]) -> pa.Table:
    table = record.directory / "table"
    return pa.Table.from_batches(read_table(table, columns=[*columns, owner_column(table_schema(table))]))


def _held_out(step: StepContext, contract: DataContract, scrubbed: StepRecord, entry_id: str) -> pa.Table:
    """Rows of held-out owners; of a record's several owners, one held-out owner is enough."""
    _, held_out = _owners(step, contract, scrubbed, entry_id)
    rows = _rows(scrubbed, _compared_columns(contract))
    owned_by = rows.column(owner_column(rows.schema)).combine_chunks()
    is_held_out = pc.is_in(flat_owners(owned_by), hex_column(held_out))
    if pa.types.is_list(owned_by.type):
        return rows.take(pc.unique(pc.list_parent_indices(owned_by).filter(is_held_out)))
    return rows.filter(is_held_out)


def _owners(
    step: StepContext, contract: DataContract, scrubbed: StepRecord, entry_id: str
) -> tuple[Fingerprints, Fingerprints]:
    """The owners who took part, and those who are held out.

    After a rotation of fingerprint keys other owners are held out, so owners who took part are left out there.
    """
    from dpsynth_platform.ledger.owners import contained

    took_part = step.ledger.participants(entry_id)
    step.check_owners(scrubbed)
    owners = read_fingerprints(scrubbed.directory / "participants")
    in_holdout = holdout_mask(owners, step.holdout_key(contract), contract.quality.holdout)
    return took_part, owners[in_holdout & ~contained(owners, took_part)]


STEP = Step(
    name="quality",
    description=(
        "Distances of marginals, of the workload, of months, hours, weekdays and gaps; similarity of values; models "
        "trained on synthetic rows compared with ones trained on real rows; declared findings; differences between "
        "protected groups; measures of whole rows; links between tables. Compares with real data: restricted, for "
        "reviewers."
    ),
    upstream=("scrubbed", "bounded", "synthetic"),
    kinds=frozenset({"scikitlearn"}),
    zone="restricted",
    code_version="4",
    body=body,
    fields=(
        ("fidelity", "json", "total variation distance of marginals"),
        ("similarity", "json", "HIST, Pair and CorAcc against held-out real rows"),
        ("utility", "json", "classifiers on held-out real rows"),
        ("fairness", "json", "gaps between protected groups"),
        ("closeness", "json", "distances to, and copies of, real rows"),
        ("moments", "json", "distances of hours, weekdays, months, and gaps of successive rows and declared orders"),
        ("single_columns", "json", "Kolmogorov-Smirnov, Wasserstein and chi-squared of columns"),
        ("workload", "json", "weighted distance of the declared workload's marginals"),
        ("records", "json", "detection, mean discrepancy, precision, recall, authenticity, faithfulness"),
        ("parity", "json", "declared findings that synthetic rows lead to, too"),
        ("regression", "json", "models of a numeric target on held-out real rows"),
        ("linked", "json", "of linked tables: numbers of children, columns across joins, order, next rows, queries"),
    ),
)
