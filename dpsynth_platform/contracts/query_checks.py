"""Faults of queries against the other parts of a contract: which columns can be grouped by, added up, or asked for.

What belongs here: what the contract alone decides. What does not: faults of a query by itself (`answers`), and values
of `where`, which the cells of a column decide (`synth.answers`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from dpsynth_platform.contracts.answers import AMOUNT_TYPES, ANSWER_COLUMNS, GROUP_TYPES, Query
from dpsynth_platform.contracts.base import caseless, key_path
from dpsynth_platform.contracts.generation import NO_COLUMN, Generate
from dpsynth_platform.contracts.methods import ANSWERS
from dpsynth_platform.contracts.quality import Quality
from dpsynth_platform.contracts.release import Release

_OF_ROWS = ("rows", "constraints", "workload", "text", "image", "training", "base_model", "time_limit")
"""Keys of `generate` that say how rows are made."""


def query_faults(
    kind: str | None,
    queries: Mapping[str, Query | None],
    generate: Generate | None,
    columns: Mapping[str, Any],
    modelled: Sequence[str],
    quality: Quality | None = None,
    release: Release | None = None,
) -> Iterator[str]:
    """Faults, one line each; arguments are the contract's parts, None for an invalid one.

    Args:
        modelled: names of the columns that can be counted.
    """
    if kind == "answers":
        if not queries:
            yield "queries: missing; accepted with kind: answers: at least one query"
        if generate is not None:
            yield from _settings_of_rows(generate)
        for key in ("target", "task", "protected", "findings", "paid"):
            if quality is not None and getattr(quality, key) != getattr(Quality(), key):
                yield f"quality.{key}: with kind: answers, which makes no rows; accepted: none"
        if release is not None and release.max_missing is not None:
            yield "release.max_missing: with kind: answers, which makes no rows; accepted: none"
    else:
        if queries:
            yield "queries: with kind: rows, which makes rows; accepted: kind: answers, which answers them"
        if generate is not None and generate.method == ANSWERS:
            yield f"generate.method: {ANSWERS!r} with kind: rows; accepted: kind: answers, without generate"
    for name, query in queries.items():
        if query is not None:
            yield from _columns(key_path("queries", name), query, columns, modelled)


def _settings_of_rows(generate: Generate) -> Iterator[str]:
    if generate.method != ANSWERS:
        yield f"generate.method: {generate.method!r} with kind: answers, which makes no rows; accepted: no generate"
        return
    plain = Generate(method=ANSWERS)
    for key in _OF_ROWS:
        if getattr(generate, key) != getattr(plain, key):
            yield f"generate.{key}: with kind: answers, which makes no rows; accepted: none"


def _columns(where: str, query: Query, columns: Mapping[str, Any], modelled: Sequence[str]) -> Iterator[str]:
    uses = (
        ("by", query.by, GROUP_TYPES),
        ("where", query.where, GROUP_TYPES),
        ("sum", query.sum, AMOUNT_TYPES),
        ("mean", query.mean, AMOUNT_TYPES),
        ("quantiles", query.quantiles, AMOUNT_TYPES),
    )
    for key, names, types in uses:
        for name in names:
            column = columns.get(name)
            if name not in columns or (column is not None and name not in modelled):
                yield f"{where}.{key}: {name!r} is no column that can be counted; accepted: {_listed(modelled)}"
            elif column is not None and column.type not in types:
                yield f"{where}.{key}: {name!r} is of type {column.type}; accepted: {', '.join(types)}"
            elif column is not None and column.type == "categorical" and column.most_learned is not None:
                yield (
                    f"{where}.{key}: the values of {name!r} are learned, and groups come from declared ones; accepted: "
                    f"columns.{name}.values as a list"
                )
    taken = {caseless(name) for name in ANSWER_COLUMNS}
    for name in query.by:
        if caseless(name) in taken:
            yield (
                f"{where}.by: {name!r} is a column of the table of answers itself; accepted: another name, so rename "
                "the column in the source"
            )


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names) or NO_COLUMN
