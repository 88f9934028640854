"""Attacks on any synthetic texts, with texts of members and of non-members.

What belongs here: texts from columns of tables, and the choice of targets. What does not: the attacks (`texts`), and
conclusions (`outcomes`).
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pyarrow as pa

from dpsynth_platform.audit.adhoc.tables import MEMBERS, OTHERS, REFERENCE, SYNTHETIC
from dpsynth_platform.audit.bounds import Coins
from dpsynth_platform.audit.tables.copies import Copies
from dpsynth_platform.audit.tables.evidence import MOST_ROWS
from dpsynth_platform.audit.texts import TextEvidence
from dpsynth_platform.audit.texts.copies import count_text_copies
from dpsynth_platform.audit.texts.outliers import outliers
from dpsynth_platform.compute.plain_types import is_text
from dpsynth_platform.foundation.errors import SourceError


def text_targets(tables: Mapping[str, pa.Table], column: str, share: float | None = None) -> tuple[list[str], Coins]:
    """The target texts of `MEMBERS` and `OTHERS`, and their membership; rows without a text are omitted.

    `share` is that of unusual texts that become targets (`outliers`); None: all texts.

    Raises:
        SourceError: a table lacks the column or has no text in it, or no member or no non-member is unusual.
        AccountingError: there are too few texts for a share, or it is not in (0, 1).
    """
    members, others = (_texts(tables[name], name, column) for name in (MEMBERS, OTHERS))
    targets = [*members, *others]
    included = np.repeat([True, False], [len(members), len(others)])
    if share is None:
        return targets, included
    chosen = outliers(targets, share)
    included = included[chosen]
    if included.all() or not included.any():
        raise SourceError(
            f"outliers, {share:g} of the texts: only one of {MEMBERS} and {OTHERS} is left; accepted: a larger share, "
            "or more texts"
        )
    return [text for text, unusual in zip(targets, chosen, strict=True) if unusual], included


def text_evidence(
    tables: Mapping[str, pa.Table], column: str, *, canaries: bool, share: float | None = None
) -> tuple[TextEvidence, Coins]:
    """An attacker's evidence on a column of texts, and the targets' membership.

    `tables` may also have `SYNTHETIC` and `REFERENCE`; `canaries` is whether all targets are fictional, made without
    the data. Other arguments and errors are those of `text_targets`.
    """
    targets, included = text_targets(tables, column, share)
    reference = _texts(tables[REFERENCE], REFERENCE, column)[:MOST_ROWS] if REFERENCE in tables else None
    synthetic = _texts(tables[SYNTHETIC], SYNTHETIC, column)[:MOST_ROWS]
    return TextEvidence(targets, synthetic, reference, canaries), included


def text_copies_of(evidence: TextEvidence, included: Coins) -> Copies:
    """Copies of members and of non-members (`count_text_copies`)."""
    inside, outside = (
        [text for text, is_in in zip(evidence.targets, included, strict=True) if is_in == group]
        for group in (True, False)
    )
    return count_text_copies(inside, outside, evidence.synthetic)


def _texts(table: pa.Table, name: str, column: str) -> list[str]:
    if column not in table.column_names:
        raise SourceError(f"{name}: no column {column!r}; accepted: {', '.join(table.column_names)}")
    if not is_text(table.schema.field(column).type):
        raise SourceError(f"{name}: column {column!r} holds no text; accepted: a column of texts")
    found = [text for text in table.column(column).to_pylist() if text]
    if not found:
        raise SourceError(f"{name}: column {column!r} is empty; accepted: at least one text")
    return found
