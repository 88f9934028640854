"""synthetic: rows drawn from the model.

What belongs here: post-processing only. This step receives the model, never the data.
"""

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean

from assets.shown import picture, png, table, together
from dpsynth_platform.contracts.contract import DataContract
from dpsynth_platform.contracts.family import leaves_out_in_silence
from dpsynth_platform.foundation.digests import canonical_digest
from dpsynth_platform.foundation.storage import TEXTS_DRAWN, TOOK_PART, StepRecord, read_table
from dpsynth_platform.operations.drawing import write_pictured_rows, write_rows
from dpsynth_platform.operations.step import Outcome, Step, StepContext
from dpsynth_platform.synth.tabular.missing import MOSTLY_MISSING, check_missing, read_missing


def body(step: StepContext) -> Outcome:
    """Draws rows under the contract's constraints, to which the stored measurements are fitted; resumes texts.

    Raises:
        ReleaseRefused: more values of a column are missing or unlisted than the contract accepts; nothing is drawn.
            The decision depends on the noisy counts alone, so that it may be shown. Or the model that draws pictures
            is not cleared.
    """
    from dpsynth_platform.lineage import facets
    from dpsynth_platform.linked_rows.line import rows_schema
    from dpsynth_platform.operations.step_lineage import paid_by

    contract, raw = step.sealed()
    (model,) = step.same_run(raw, "model")
    asked, limit = contract.generate, contract.release.max_missing
    terms = {"rows_asked": asked.rows, "constraints": canonical_digest(contract.snapshot()["generate"]["constraints"])}
    if contract.text_column is not None:
        from dpsynth_platform.synth.text.terms import terms_of

        terms["texts"] = terms_of(contract).digest
    if asked.drawn is not None:
        from dpsynth_platform.release.evidence import check_new_findings, clearance_of
        from dpsynth_platform.synth.images.captions import drawing_terms

        terms["pictures"] = drawing_terms(contract)
    known = facets.merge(facets.privacy_unit(contract), paid_by(contract, step.plan(raw), model.facts["entry_id"]))
    earlier = step.reusable(raw, "synthetic", model)
    if earlier is not None and terms.items() <= earlier.facts.items():
        counted = read_missing(earlier.directory)
        if counted is not None or limit is None:
            check_missing(step.place.label, counted or (), limit)
            shown = _report_missing(step, earlier.facts.get(MOSTLY_MISSING, ()))
            shown |= _compared(step, contract, earlier) | _pictured(contract, earlier)
            schema = rows_schema(contract, earlier.directory)
            return Outcome(earlier, schema, earlier.facts["rows"], reused=True, metadata=shown, facets=known)
    if asked.drawn is not None:  # before captions leave: the model that draws them may be another one by now
        before = clearance_of(step.place, step.storage.require(step.place, "clearance"))
        check_new_findings(step.place, before, step.cleared(contract, entry_id=model.facts["entry_id"]))
    if asked.constraints:
        step.progress("fitting the stored measurements under the contract's constraints, at no further cost")
    method = raw.facts["method"]
    with step.storage.new_output(step.place, "synthetic") as directory:
        if asked.drawn is None:
            schema, facts = write_rows(step, contract, method, model.directory, directory)
        else:
            schema, facts = write_pictured_rows(step, contract, method, model, canonical_digest(terms), directory)
        if contract.source.federation is not None:
            shutil.copyfile(model.directory / TOOK_PART, directory / TOOK_PART)  # the model may expire before a release
        record = step.record(
            "synthetic",
            run_key=model.run_key,
            directory=directory,
            inputs=[model],
            facts=facts | {"entry_id": model.facts["entry_id"]} | terms,
        )
    shown = _report_missing(step, facts.get(MOSTLY_MISSING, ())) | _texts(directory)
    return Outcome(
        record,
        schema,
        facts["rows"],
        metadata=shown | _compared(step, contract, record) | _pictured(contract, record),
        facets=known,
    )


def _texts(directory: Path) -> dict[str, object]:
    """How many texts were drawn and left out, for the asset page; nothing where none were drawn here."""
    file = directory / TEXTS_DRAWN
    return {"texts": json.loads(file.read_text(encoding="utf-8"))["in_words"]} if file.is_file() else {}


def _compared(step: StepContext, contract: DataContract, record: StepRecord) -> dict[str, object]:
    """The rows beside the mechanism's noisy counts, for the asset page; nothing where no column was counted alone.

    Nothing where owners may be left out silently either: the noise's part of the total says about how many remained.
    """
    from dpsynth_platform.operations.comparing import HEADER, MOST_CHARTS, NOTICE, compared_columns

    columns = [] if leaves_out_in_silence(contract, step.family) else compared_columns(record.directory)
    if not columns:
        return {}
    return {
        "difference from noisy counts, mean": float(f"{fmean(column.difference for column in columns):.4g}"),
        "difference that noise explains, mean": float(f"{fmean(column.by_noise for column in columns):.4g}"),
        "columns beside noisy counts": together(
            NOTICE,
            table(HEADER, [column.row for column in columns]),
            *(picture(column.chart, column.in_words) for column in columns[:MOST_CHARTS]),
        ),
    }


def _pictured(contract: DataContract, record: StepRecord) -> dict[str, object]:
    """The first drawn pictures of each class, for the asset page: synthetic ones only."""
    if contract.image_column is None:
        return {}
    from dpsynth_platform.release.first_pictures import FirstPictures
    from dpsynth_platform.synth.images.layout import ImageLayout

    layout = ImageLayout.of(contract)
    found = FirstPictures(layout)
    for batch in read_table(record.directory / "table"):
        found.add(batch)
    return {"first pictures of each class": png(found.sheet(), f"one class a row: {'; '.join(layout.names[:50])}")}


def _report_missing(step: StepContext, mostly: Sequence[str]) -> dict[str, object]:
    """Reports columns with hardly any usable value; returns them for the asset page."""
    for sentence in mostly:
        step.progress(sentence)
    return {"mostly missing or unlisted": "\n\n".join(mostly)} if mostly else {}


STEP = Step(
    name="synthetic",
    description="Rows drawn from the model, in the source's schema. Restricted until they are released.",
    upstream=("model",),
    kinds=frozenset({"deltalake"}),
    zone="restricted",
    code_version="3",
    body=body,
)
