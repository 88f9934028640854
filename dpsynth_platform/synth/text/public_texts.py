"""A declared public table of texts: what a plan seals of it, and its texts by label.

What belongs here: its text column and the conditions that it has, checked and divided by label. What does not: reading
a public table of any columns (`tabular.public_rows`), whether it is public (`guarded_sources`, `lineage.clearance`),
and the use of its texts (`public_candidates`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa

from dpsynth_platform.contracts.contract import DataContract
from dpsynth_platform.contracts.public_rows import PublicRows
from dpsynth_platform.foundation.errors import ConfigurationError
from dpsynth_platform.foundation.figures import number_of
from dpsynth_platform.sources.table_files import table_digest
from dpsynth_platform.synth.conditions import Given, text_of
from dpsynth_platform.synth.tabular.public_rows import SealedRows, read_rows
from dpsynth_platform.synth.text.layout import TextLayout
from dpsynth_platform.synth.text.private_text import Features
from dpsynth_platform.synth.text.public_candidates import PublicCandidates
from dpsynth_platform.synth.text.sealing import layout_of

MOST_TEXTS = 20_000
"""Of the table, from its beginning: their features take milliseconds each."""


def read_candidates(
    sealed: SealedRows | None, layout: TextLayout, encode: Callable[[Sequence[str]], Features]
) -> PublicCandidates | None:
    """A plan's public texts, if it has a table. Raises `ConfigurationError` as `SealedRows.read`."""
    if sealed is None:
        return None
    places, by_label, _ = _divided(sealed.read(), layout)
    return PublicCandidates(by_label, places, encode)


def sealed_texts(declared: PublicRows, contract: DataContract) -> SealedRows:
    """What a plan seals of a public table. Raises `ConfigurationError` if it cannot be read, or has no usable text."""
    layout = layout_of(contract)
    columns = {name: contract.columns[name] for name in layout.columns}
    rows = read_rows(declared.source, columns)
    where, written = f"{contract.dataset}: generate.public.uri: {declared.uri}", layout.fields[0]
    if written not in rows.column_names:
        raise ConfigurationError(
            f"{where} has no column {written!r}; accepted: a table with a text column of that name and, where its "
            f"texts have labels, {', '.join(layout.columns[:-1]) or 'no other column'}"
        )
    _, by_label, unlisted = _divided(rows, layout)
    if not by_label:
        lost = ", ".join(f"{name} {number:,}" for name, number in unlisted.items())
        raise ConfigurationError(
            f"{where}: of {number_of(rows.num_rows, 'row')}, none has a text and listed values (missing or unlisted: "
            f"{lost}); accepted: at least one, with labels as the private table spells them, or without columns of "
            "labels"
        )
    declarations = {name: columns[name].model_dump(mode="json") for name in rows.column_names}
    return SealedRows(declared.uri, declared.format, declarations, table_digest(rows), rows.num_rows, unlisted)


def _divided(rows: pa.Table, layout: TextLayout) -> tuple[tuple[int, ...], dict[Given, list[str]], dict[str, int]]:
    """The places of the conditions that a table has, its texts by their values, and unusable values of each column."""
    written, conditions = layout.fields[0], layout.conditions
    places = tuple(place for place, part in enumerate(conditions) if part.column in rows.column_names)
    own = [conditions[place] for place in places]
    found: dict[Given, dict[str, None]] = {}
    unlisted = dict.fromkeys([*(part.column for part in own), written], 0)
    record: dict[str, Any]
    for record in rows.slice(0, MOST_TEXTS).to_pylist():
        text = (record[written] or "").strip()
        key = tuple(text_of(record[part.column]) for part in own)
        bad = [part.column for part, value in zip(own, key, strict=True) if value not in part.values]
        for name in [*bad, *([] if text else [written])]:
            unlisted[name] += 1
        if text and not bad:
            found.setdefault(key, {})[text] = None
    return places, {key: list(texts) for key, texts in found.items()}, unlisted
