"""Evidence for attacks on a table from `dpsynth synth table`, with its model and shadow models.

What belongs here: finding that model, and coding tables of members and non-members by its domain. What does not: the
attacks (`audit.tables`), fitting shadow models (`audit.tables.shadows`), and the meaning of scores (`audit.adhoc`).
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa

from dpsynth_platform.audit.adhoc.tables import MEMBERS, OTHERS, REFERENCE, SYNTHETIC
from dpsynth_platform.audit.tables import Evidence
from dpsynth_platform.audit.tables.agreement import draw_queries
from dpsynth_platform.audit.tables.shadows import as_records, fit_shadows
from dpsynth_platform.foundation.errors import ConfigurationError, SourceError
from dpsynth_platform.foundation.progress import Progress, silent
from dpsynth_platform.one_table.more_rows import paid_model
from dpsynth_platform.synth.tabular.domain import Domain
from dpsynth_platform.synth.tabular.model import load_model


def synthesis_evidence(out: Path, tables: Mapping[str, pa.Table], *, canaries: bool) -> Evidence:
    """The evidence of an attacker who also has the model.

    Args:
        out: the --out directory of `dpsynth synth table`.
        tables: by `MEMBERS`, `OTHERS`, `SYNTHETIC` and optionally `REFERENCE`, with the columns of the synthesized
            table; columns that are not modelled are ignored.
        canaries: whether members and non-members are fictional, made without the data.

    Raises:
        ConfigurationError, LedgerError, MechanismFailed: see `paid_model`; or a language model wrote texts.
        SourceError: a table lacks a column of the model, or one has another type.
    """
    earlier, directory = paid_model(out)
    if earlier.texts is not None:
        raise ConfigurationError(
            f"{out}: a language model wrote its texts, and no shadow model of a table is like it; accepted: the --out "
            "directory of `dpsynth synth table`"
        )
    model = load_model(directory)
    parts = {
        name: as_records(model.domain, model.plan, _modelled(model.domain, table, earlier.names, name))
        for name, table in tables.items()
    }
    return Evidence(
        domain=model.domain,
        targets=pa.concat_tables([parts[MEMBERS], parts[OTHERS]]).combine_chunks(),
        synthetic=parts[SYNTHETIC],
        reference=parts.get(REFERENCE),
        canaries=canaries,
        model=model,
    )


def with_shadows(evidence: Evidence, models: int, *, progress: Progress = silent) -> Evidence:
    """The evidence with this number of shadow models, each of about as many records as the model was fitted to.

    Rows beside the targets are drawn from the reference, or else from the release. Raises `AccountingError` if the
    numbers do not fit (`shadows.fit_shadows`).
    """
    if evidence.model is None or not models:
        return evidence
    queries = draw_queries(len(evidence.domain), np.random.default_rng(secrets.randbits(256)))
    return replace(
        evidence,
        shadows=fit_shadows(
            evidence.model.plan,
            evidence,
            models=models,
            records=max(1, round(evidence.model.total)),
            queries=queries,
            progress=progress,
        ),
    )


def _modelled(domain: Domain, table: pa.Table, names: Mapping[str, str], what: str) -> pa.Table:
    """The modelled columns by the model's names; raises `SourceError` if one cannot be coded."""
    shown = {column.name: names.get(column.name, column.name) for column in domain.released}
    if lacking := [name for name in shown.values() if name not in table.column_names]:
        raise SourceError(f"{what}: no column {lacking[0]!r}; accepted: {', '.join(shown.values())}")
    for column in domain.released:
        try:
            column.encode(table[shown[column.name]])
            continue
        except (pa.ArrowException, TypeError, ValueError, OverflowError):
            kind = table.schema.field(shown[column.name]).type  # the library's message may quote a value
        raise SourceError(f"{what}: column {shown[column.name]!r} has type {kind}; accepted: {column.kind}")
    return table.select(list(shown.values())).rename_columns(list(shown))
