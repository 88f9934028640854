"""Training a writer on a public table of texts: a base model for private trainings.

What belongs here: the command's steps and options. What does not: that texts are public, and lineage
(`public_material`), and the training (`synth.text.writer`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dpsynth_platform.contracts.text_generation import KEYWORDS_COLUMN
from dpsynth_platform.foundation.errors import ContractError
from dpsynth_platform.foundation.progress import Progress, silent
from dpsynth_platform.foundation.settings import Settings
from dpsynth_platform.lineage.survey import model_name
from dpsynth_platform.one_table.public_material import checked_public, read_texts, report_origin
from dpsynth_platform.synth.text.base_models import DEFAULT, base_model, refuse_writer
from dpsynth_platform.synth.text.writer import WriterTraining, train_writer
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
    public = checked_public(settings, table, why, "the public texts")
    if len(set(conditions)) < len(conditions) or len(conditions) > MOST_CONDITIONS or text in conditions:
        raise ContractError(
            f"--condition: {', '.join(conditions)}; accepted: up to {MOST_CONDITIONS} columns, each once, not --text"
        )
    if KEYWORDS_COLUMN in (text, *conditions):
        raise ContractError(f"a column {KEYWORDS_COLUMN!r}, which prompts have for topics; accepted: another name")
    texts = read_texts(table, public, text, conditions)
    declared = str(Path(base).expanduser().resolve()) if base.startswith((".", "~")) else base
    refuse_writer(declared)
    found = base_model(declared, settings.base_models, hub=settings.model_hub)
    device = resolve_device(settings.device)
    about, was_there = train_writer(texts, found, training or WriterTraining(), out, progress, device)
    # After a crash between both the same command finds the writer complete, and reports its origin again.
    made = (out, Writer.read(out.resolve(), str(out)).digest)
    rows = (public, about["public"]["digest"])
    warnings = report_origin(settings, "writer", made, rows, model_name(about["base"]["declared"]))
    return MadeWriter(out, about, was_there, warnings)
