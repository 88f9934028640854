"""Drawing from a model by the contract's settings, and writing what is drawn."""

import json
import shutil
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pyarrow as pa

from dpsynth_platform.contracts.contract import DataContract
from dpsynth_platform.foundation.digests import canonical_digest
from dpsynth_platform.foundation.errors import ConfigurationError
from dpsynth_platform.foundation.permissions import private_directory
from dpsynth_platform.foundation.storage import (
    KEPT_SETTING,
    TEXTS_DRAWN,
    HeldByAnother,
    StepRecord,
    held,
    write_durably,
    write_table,
)
from dpsynth_platform.operations.step import StepContext
from dpsynth_platform.release import paid
from dpsynth_platform.synth.interface import Drawing, generator
from dpsynth_platform.synth.tabular.measured import of_columns, write_measured
from dpsynth_platform.synth.tabular.missing import (
    MOSTLY_MISSING,
    check_missing,
    missing_in_words,
    read_missing,
    write_missing,
)

_FACTS, _BESIDE = "facts.json", "beside"
"""Names below a directory of captions: written last; and what stands beside the rows."""


def drawn_as_asked(step: StepContext, contract: DataContract, method: str, model: Path) -> Drawing:
    """Rows of a model, in the number and by the settings of a release; without pictures that are drawn from texts."""
    asked = contract.generate
    if asked.answers:
        return _answered(step, contract, model)
    rows = None if asked.rows == "auto" else asked.rows
    if asked.text is None and asked.image is None:
        return generator(method).draw(model, rows, constraints=asked.constraints)
    # Late: these load large libraries.
    from dpsynth_platform.synth.endpoint_access import transport_of
    from dpsynth_platform.worker.run import resolve_device

    if asked.image is None:
        from dpsynth_platform.synth.text.sampling import TEXTS as SHOWN
        from dpsynth_platform.synth.text.terms import terms_of

        texts, counted = terms_of(contract), step.counted("synthetic texts")
    else:
        from dpsynth_platform.synth.images.generator import DRAWING as SHOWN

        texts, counted = None, step.counted("synthetic pictures")
    return generator(method).draw(
        model,
        rows,
        constraints=asked.constraints,
        texts=texts,
        transport=transport_of(contract),
        device=resolve_device(step.device),
        progress=lambda stage, done, total, beside="": counted(done, total) if stage == SHOWN else None,
    )


def _answered(step: StepContext, contract: DataContract, model: Path) -> Drawing:
    """The table of answers, without what the canaries add to them."""
    from dpsynth_platform.audit.canaries import read_canaries
    from dpsynth_platform.synth.answers.generator import answered

    if contract.separate_audit_model:
        return answered(model)
    _, raw = step.sealed()
    (canaries,) = step.same_run(raw, "canaries")
    joining = read_canaries(canaries.directory / "table").joining
    return answered(model, joining if joining.num_rows else None)


def write_rows(
    step: StepContext, contract: DataContract, method: str, model: Path, directory: Path
) -> tuple[pa.Schema, dict[str, Any]]:
    """Draws rows and writes them into a step's output; returns their schema, and the facts of its record.

    Raises:
        ReleaseRefused: more values of a column are missing or unlisted than the contract accepts.
    """
    if contract.tables:
        return _write_tables(step, contract, model, directory)
    drawing = drawn_as_asked(step, contract, method, model)
    check_missing(step.place.label, drawing.missing, contract.release.max_missing)
    write_table(directory / "table", drawing.schema, drawing.batches)
    return drawing.schema, {"rows": drawing.rows} | _write_beside(step, drawing, directory)


def _write_tables(
    step: StepContext, contract: DataContract, model: Path, directory: Path
) -> tuple[pa.Schema, dict[str, Any]]:
    """As `write_rows`, of linked tables."""
    from dpsynth_platform.linked_rows.line import draw_tables, rows_schema

    _, raw = step.sealed()
    counted, asked = step.counted("roots with all that belongs to them"), contract.generate.rows
    rows = draw_tables(
        step.plan(raw),
        model,
        raw.directory,
        raw.facts["names"],
        None if asked == "auto" else asked,
        directory,
        lambda _stage, done, total, _beside="": counted(done, total),
    )
    facts = {"rows": sum(found.rows for found in rows.values())}
    return rows_schema(contract, directory), facts | {"tables": {name: asdict(found) for name, found in rows.items()}}


def write_pictured_rows(
    step: StepContext, contract: DataContract, method: str, model: StepRecord, terms: str, directory: Path
) -> tuple[pa.Schema, dict[str, Any]]:
    """As `write_rows`, with pictures that the contract's endpoint draws from the texts.

    Texts and drawn pictures are kept until the step is complete: after a failure, the next run draws the others.

    Args:
        terms: digest of all settings of drawing.

    Raises:
        ConfigurationError: the endpoint draws too few; what is drawn is kept.
    """
    from dpsynth_platform.synth.images.captions import CaptionPainter, DrawnCaptions

    drawn = contract.generate.drawn
    assert drawn is not None  # noqa: S101  (asked for such contracts only)
    painter = CaptionPainter.of(contract)  # before texts are drawn: the endpoint may not be listed any more
    name = f"captions-{canonical_digest([model.content_hash, terms])[:32]}"
    place = step.storage.named_output(step.place, "synthetic", name)
    try:
        with held(place):
            captions = DrawnCaptions(place, str(contract.text_column))
            if not (place / _FACTS).is_file():
                drawing = drawn_as_asked(step, contract, method, model.directory)
                check_missing(step.place.label, drawing.missing, contract.release.max_missing)
                rows = captions.write_rows(drawing.schema, drawing.batches)
                found = {"rows": rows} | _write_beside(step, drawing, private_directory(place / _BESIDE))
                write_durably(place / _FACTS, json.dumps(found))
            facts = json.loads((place / _FACTS).read_text(encoding="utf-8"))
            check_missing(step.place.label, read_missing(place / _BESIDE) or (), contract.release.max_missing)
            step.progress(f"{painter.endpoint.host} draws pictures from synthetic texts, at no further cost")
            counted = step.counted("synthetic pictures")
            without = captions.draw(painter, facts["rows"], drawn.most_missing, counted)
            schema = captions.schema()
            shutil.copytree(place / _BESIDE, directory, dirs_exist_ok=True)
            _count_undrawn(directory / TEXTS_DRAWN, facts["rows"], without)
            write_table(directory / "table", schema, captions.pictured(schema, str(contract.image_column)))
            shutil.rmtree(place)
    except HeldByAnother:
        raise ConfigurationError(
            f"{step.place.label}/synthetic: another process draws these pictures; wait for its end, or stop it"
        ) from None
    return schema, facts | {"rows": facts["rows"] - without, "captions_without_picture": without}


def _count_undrawn(file: Path, captions: int, without: int) -> None:
    """Adds the captions without a picture to what a release says of drawn texts."""
    if not without:
        return
    from dpsynth_platform.synth.text.terms import TextsDrawn

    known = TextsDrawn(captions, {}, 0).to_json()
    if file.is_file():
        known = json.loads(file.read_text(encoding="utf-8"))
    words = f"{known['in_words']}; {without:,} rows are missing, since no picture of their text was drawn"
    write_durably(file, json.dumps(known | {"rows_without": known["rows_without"] + without, "in_words": words}))


def _write_beside(step: StepContext, drawing: Drawing, directory: Path) -> dict[str, Any]:
    """Writes what a drawing says of its rows beside them; returns it as facts of the step's record."""
    write_missing(directory, drawing.missing)
    if drawing.measured is not None:
        write_measured(directory, of_columns(drawing.measured, drawing.schema.names))
    if drawing.paid is not None:
        write_durably(directory / paid.FILE, json.dumps(drawing.paid))
    if drawing.kept is not None:
        write_durably(directory / KEPT_SETTING, json.dumps({"candidate": drawing.kept}))
    mostly, drawn = missing_in_words(drawing.missing), drawing.texts
    facts: dict[str, Any] = {MOSTLY_MISSING: mostly} if mostly else {}
    if drawn is not None:
        step.progress(drawn.in_words)
        write_durably(directory / TEXTS_DRAWN, json.dumps(drawn.to_json()))
        facts |= {"texts_drawn": drawn.drawn, "texts_left_out": sum(drawn.left_out.values())}
    return facts
