"""The privacy statement of synthetic linked tables.

What belongs here: what is specific to them. What does not: the form, and what they share with one table
(`one_table.statement`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from dpsynth_platform.contracts.contract import DataContract
from dpsynth_platform.contracts.family import FamilyBudget
from dpsynth_platform.foundation.figures import number_of
from dpsynth_platform.ledger.records import Head
from dpsynth_platform.linked_rows.drawn import Rows
from dpsynth_platform.linked_tables.task import LinkedTask
from dpsynth_platform.one_table.more_rows import given_in_words
from dpsynth_platform.one_table.statement import (
    KEPT,
    RANDOMNESS,
    Statement,
    account_in_words,
    earlier_attempts,
    started_in_words,
)
from dpsynth_platform.privacy.statement import (
    ONCE,
    ONCE_OF_TABLES,
    WEIGHTS,
    Assumption,
    Tuning,
    bound_of_tables,
    covered_of_tables,
    ids_of_tables,
    not_covered_of_tables,
    owners_of_tables,
    privacy_statement,
    words_of,
)


class TablesStatement(Statement):
    """The statement of several tables."""

    subject = "The tables beside this statement are together"
    drawn = "These tables"


def statement(
    task: LinkedTask,
    family: FamilyBudget,
    *,
    entry_id: str,
    head: Head,
    others: int,
    attempts: int,
    rows: Mapping[str, Rows],
) -> TablesStatement:
    """The statement of a run, from public inputs.

    Args:
        others: number of other runs that this ledger has paid for.
        attempts: number of starts of this run's mechanism.
        rows: of each private table.
    """
    plan, tables = task.plan, task.tables
    words = words_of(plan.method, plan.event)
    common = privacy_statement(_named(task), family, plan.event, words, tuning=Tuning(others), attempts=attempts)
    common = replace(common, unit=common.unit.replace(ONCE, ONCE_OF_TABLES))
    event = plan.describe()["event"]
    number = "" if task.options.roots is not None else ", as the noisy counts show of the root"
    given = f"; of {tables.root}, given {' and '.join(shown)}" if (shown := given_in_words(task.options.given)) else ""
    counted = [
        f"{name}: {number_of(found.rows, 'synthetic row')}{found.types and f', {found.types}'}"
        for name, found in rows.items()
    ]
    return TablesStatement(
        common=common,
        method=task.options.method,
        why_method="it is declared",
        ledger_entry=entry_id,
        ledger_head=head,
        covered=(
            f"{event[0].upper()}{event[1:]}.",
            "Everything computed from these: the fitted models, and all rows of all tables that are ever drawn from "
            "them.",
            *covered_of_tables(tables),
        ),
        table=f"{'; '.join(counted)}{number}{given}.",
        not_covered=(
            *not_covered_of_tables(tables),
            "Whether the tables can be read as declared (present, readable, not empty, of these types, with distinct "
            "keys where rows refer to them, with an owner in some row), and whether a column of ordinary values looks "
            "like personal data, which stop a run: visible to the user who runs it.",
            "When the run took place and how long its steps took: visible to the user who runs it.",
            "Whether the tables have the same content as in an earlier run with these options, and so whether the run "
            "was paid for again or refused: visible to the user who runs it, and in the statement's number of runs.",
            "Other knowledge of the data that influenced the options (domains, bounds, epsilon).",
            *earlier_attempts(attempts),
        ),
        assumptions=(
            RANDOMNESS,
            bound_of_tables(tables),
            *([KEPT] if given else []),
            *([WEIGHTS] if tables.weighting == "owners" else []),
            ids_of_tables(task.owner_in_words),
            Assumption(
                "Tables, keys, domains, bins, bounds, constraints and the number of expected units are public.",
                "as declared",
                "Values outside are clamped or counted as missing.",
            ),
            started_in_words(attempts),
        ),
        account=account_in_words(family),
    )


def _named(task: LinkedTask) -> DataContract:
    """The contract of the whole, with the owner as the declaration names it."""
    privacy = task.contract.privacy.model_copy(update={"owner_columns": [owners_of_tables(task.owner_in_words)]})
    return task.contract.model_copy(update={"privacy": privacy})
