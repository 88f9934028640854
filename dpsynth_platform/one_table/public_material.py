"""What a command's caller declares public: that the deployment does not guard it, its texts, and what is made of it.

What belongs here: the check, the texts of one column, and the origin of a model in lineage. What does not: the options
`public` and `public_why` (`public_table`), and making models of public texts (`public_writer`, `public_topics`).
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import pyarrow as pa

from dpsynth_platform.compute.plain_types import is_text
from dpsynth_platform.contracts.bases import PublicBase
from dpsynth_platform.contracts.public_rows import PublicRows
from dpsynth_platform.contracts.validation import validated
from dpsynth_platform.foundation.errors import ContractError, SourceError
from dpsynth_platform.foundation.settings import Settings
from dpsynth_platform.lineage.naming import DatasetName, dataset_name
from dpsynth_platform.one_table.public_table import declared_public
from dpsynth_platform.quality.files import read_file
from dpsynth_platform.sources.declared_types import is_bytes
from dpsynth_platform.sources.table_files import table_digest
from dpsynth_platform.synth.conditions import text_of
from dpsynth_platform.synth.guarded_sources import public_faults
from dpsynth_platform.synth.text.writer import MOST_TEXTS, PublicTexts


def checked_public(settings: Settings, place: str | Path, why: str, called: str) -> PublicRows:
    """A table or file that is declared public.

    Args:
        called: what it is, for messages.

    Raises:
        ContractError: the reason is too short, or this deployment guards the table.
        LedgerError: the deployment's ledger, which knows the lineage of tables, is out of reach.
        SourceError: there is no such file.
    """
    public = validated(PublicRows, declared_public(place, why), called)
    for fault in _faults(settings, public):
        raise ContractError(f"{called}: {fault}")
    return public


def _faults(settings: Settings, public: PublicRows) -> Iterator[str]:
    """Why a deployment guards a table: a line each."""
    yield from public_faults(settings, public)
    if settings.has_ledger:
        from dpsynth_platform.lineage.store import LineageStore
        from dpsynth_platform.lineage.survey import survey

        base = PublicBase("table", public.uri, public.why)
        # There is no source: in the place of one, the table itself would count as guarded once the graph has it.
        for lead in survey(LineageStore(settings.ledger_url), os.devnull, [base]).unprotected:
            yield (
                f"{public.uri!r} is, holds or was made from a guarded table, by lineage ({', '.join(lead.path)}); "
                "accepted: a table that is public"
            )


def read_texts(table: Path, public: PublicRows, text: str, conditions: Sequence[str] = ()) -> PublicTexts:
    """The first `MOST_TEXTS` distinct texts of a column that are not blank, with the values of other columns.

    Raises:
        SourceError: the table cannot be read, lacks a usable column, or has no text.
    """
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


def report_origin(
    settings: Settings,
    step: str,
    made: tuple[Path, str],
    public: tuple[PublicRows, str],
    base: DatasetName | None = None,
) -> tuple[str, ...]:
    """Reports what a model was made of where the deployment has a ledger, whose graph clearance walks.

    Args:
        step: what made it.
        made, public: each with the digest of its content.
        base: the model that training started from.

    Returns:
        Warnings of the emission.

    Raises:
        LedgerError: the ledger is out of reach.
    """
    if not settings.has_ledger:
        return ()
    from dpsynth_platform.lineage.emitter import LineageEmitter
    from dpsynth_platform.lineage.events import public_model_event
    from dpsynth_platform.lineage.store import LineageStore

    (place, digest), (rows, content) = made, public
    event = public_model_event(
        step, (dataset_name(place.resolve()), digest), (dataset_name(rows.uri), content), rows.why, base
    )
    LineageStore(settings.ledger_url).record(event, targets=("file",))
    return tuple(LineageEmitter.of(settings).flush().warnings)
