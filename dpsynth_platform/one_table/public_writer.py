"""Training a writer on a public table of texts: a base model for private trainings.

What belongs here: the table, that it is public, and the writer's origin in lineage. What does not: the training
(`synth.text.writer`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from dpsynth_platform.compute.plain_types import is_text
from dpsynth_platform.contracts.public_rows import PublicRows
from dpsynth_platform.contracts.text_generation import KEYWORDS_COLUMN
from dpsynth_platform.contracts.validation import validated
from dpsynth_platform.foundation.errors import ContractError, SourceError
from dpsynth_platform.foundation.progress import Progress, silent
from dpsynth_platform.foundation.settings import Settings
from dpsynth_platform.one_table.comparison import faults
from dpsynth_platform.one_table.public_table import declared_public
from dpsynth_platform.quality.files import read_file
from dpsynth_platform.sources.declared_types import is_bytes
from dpsynth_platform.sources.table_files import table_digest
from dpsynth_platform.synth.conditions import text_of
from dpsynth_platform.synth.text.base_models import DEFAULT, base_model, refuse_writer
from dpsynth_platform.synth.text.writer import MOST_TEXTS, PublicTexts, WriterTraining, train_writer
from dpsynth_platform.synth.text.writer_files import Writer
from dpsynth_platform.worker.run import resolve_device

MOST_CONDITIONS = 6


@dataclass(frozen=True)
class MadeWriter:
    """A writer, and what is known of it. Public.

    Attributes:
        about: the content of its `writer.json`.
        was_there: whether an earlier run had completed it.
        warnings: of the emission of its lineage.
    """

    directory: Path
    about: dict[str, Any]
    was_there: bool
    warnings: tuple[str, ...] = ()


def make_writer(
    table: Path,
    why: str,
    text: str,
    out: Path,
    *,
    conditions: Sequence[str] = (),
    base: str = DEFAULT,
    training: WriterTraining | None = None,
    progress: Progress = silent,
) -> MadeWriter:
    """Trains a writer on the texts of a public table, or continues.

    Args:
        text: the column of texts.
        conditions: columns whose values stand before a text.
        out: a new directory, or that of the same training.

    Raises:
        ContractError: the table is not declared public, or this deployment guards it.
        SourceError: it cannot be read, or lacks a usable column.
        ConfigurationError: as `train_writer`.
    """
    settings = Settings.from_environment()
    public = validated(PublicRows, declared_public(table, why), "the public texts")
    for fault in faults(settings, public):
        raise ContractError(f"the public texts: {fault}")
    texts = _texts(table, public, text, conditions)
    declared = str(Path(base).expanduser().resolve()) if base.startswith((".", "~")) else base
    refuse_writer(declared)
    found = base_model(declared, settings.base_models, hub=settings.model_hub)
    device = resolve_device(settings.device)
    about, was_there = train_writer(texts, found, training or WriterTraining(), out, progress, device)
    # After a crash between both the same command finds the writer complete, and reports its origin again.
    return MadeWriter(out, about, was_there, _reported(settings, public, about, out))


def _texts(table: Path, public: PublicRows, text: str, conditions: Sequence[str]) -> PublicTexts:
    if len(set(conditions)) < len(conditions) or len(conditions) > MOST_CONDITIONS or text in conditions:
        raise ContractError(
            f"--condition: {', '.join(conditions)}; accepted: up to {MOST_CONDITIONS} columns, each once, not --text"
        )
    if KEYWORDS_COLUMN in (text, *conditions):
        raise ContractError(f"a column {KEYWORDS_COLUMN!r}, which prompts have for topics; accepted: another name")
    rows = read_file(table)
    for option, column in (("--text", text), *(("--condition", name) for name in conditions)):
        if rows.column_names.count(column) != 1:
            raise SourceError(
                f"{option}: no column {column!r} in {table}, or two; accepted: {', '.join(rows.column_names)}"
            )
        kind = rows.schema.field(column).type
        if not is_text(kind) if column == text else pa.types.is_nested(kind) or is_bytes(kind):
            accepted = "a column of texts" if column == text else "a column of texts, numbers, dates or booleans"
            raise SourceError(f"{option}: column {column!r} of {table} has the type {kind}; accepted: {accepted}")
    seen: dict[str, tuple[str | None, ...]] = {}
    for record in rows.select([text, *conditions]).to_pylist():
        own = (record[text] or "").strip()
        if own and len(seen) < MOST_TEXTS:
            seen.setdefault(own, tuple(text_of(record[name]) for name in conditions))
    if not seen:
        raise SourceError(f"--text: column {text!r} of {table} has no text; accepted: a column of texts")
    columns = {name: [values[place] for values in seen.values()] for place, name in enumerate(conditions)}
    read = pa.table(
        {text: pa.array(seen, pa.string())} | {name: pa.array(own, pa.string()) for name, own in columns.items()}
    )
    about = {"file": table.name, "why": public.why, "digest": table_digest(read), "texts": len(seen)}
    return PublicTexts(list(seen), text, columns, about)


def _reported(settings: Settings, public: PublicRows, about: Mapping[str, Any], out: Path) -> tuple[str, ...]:
    """Reports a writer's origin where the deployment has a ledger, whose graph clearance walks."""
    if not settings.has_ledger:
        return ()
    from dpsynth_platform.lineage.emitter import LineageEmitter
    from dpsynth_platform.lineage.events import writer_event
    from dpsynth_platform.lineage.naming import dataset_name
    from dpsynth_platform.lineage.store import LineageStore
    from dpsynth_platform.lineage.survey import model_name

    place = out.resolve()
    event = writer_event(
        (dataset_name(place), Writer.read(place, str(out)).digest),
        (dataset_name(public.uri), about["public"]["digest"]),
        model_name(about["base"]["declared"]),
        public.why,
    )
    LineageStore(settings.ledger_url).record(event, targets=("file",))
    return tuple(LineageEmitter.of(settings).flush().warnings)
