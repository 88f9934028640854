"""SQL queries over linked tables: how far the answers of synthetic tables are from those of real ones. For reviewers.

What belongs here: running SELECT statements on both sides in DuckDB, and the relative errors of their numbers. What
does not: reports, and queries that a mechanism answers (`contracts.sql`).

The last column of a query is its number; the columns before it, if any, name a group. A group that one side lacks has
the number zero there, and null is zero. A relative error is |synthetic - real| / |real|, at most 1, so that no rare
group decides the mean; it is 1 where only the synthetic number differs from zero. Rows are not cut to the bounds.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import pyarrow as pa

from dpsynth_platform.foundation.errors import ContractError, file_problem

if TYPE_CHECKING:
    import duckdb

Database = Mapping[str, pa.Table]
Name = TypeVar("Name")
_ACCEPTED = "one SELECT whose last column is a number, and whose other columns name groups, over the declared tables"


@dataclass(frozen=True)
class QueryError:
    """The errors of one query.

    Attributes:
        query: its text.
        numbers: groups of both sides.
        mean, median, largest: of the relative errors, in [0, 1].
    """

    query: str
    numbers: int
    mean: float
    median: float
    largest: float


def read_queries(path: Path) -> list[str]:
    """The statements of a file, which semicolons separate. Raises `ContractError`."""
    import duckdb

    try:
        statements = duckdb.extract_statements(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        problem = file_problem(error) if isinstance(error, OSError) else "is no text in UTF-8"
        raise ContractError(f"{path}: {problem}; accepted: a file with SELECT statements") from None
    except duckdb.ParserException as error:
        raise ContractError(f"{path}: {_first_line(error)}; accepted: SELECT statements with ; between them") from None
    return [each.query.strip().removesuffix(";") for each in statements]


def query_errors(queries: Sequence[str], real: Database, synthetic: Database) -> tuple[QueryError, ...]:
    """Runs each query on both sides. Raises `ContractError` for one that cannot be run or has no number."""
    found, problems = named_query_errors(dict(enumerate(queries, 1)), real, synthetic)
    for number, problem in problems.items():
        raise ContractError(f"queries.{number}: {problem}; accepted: {_ACCEPTED}")
    return tuple(found.values())


def named_query_errors(
    queries: Mapping[Name, str], real: Database, synthetic: Database
) -> tuple[dict[Name, QueryError], dict[Name, str]]:
    """Runs each query on both sides: the errors by name, and why others cannot be run or have no number.

    The reasons can depend on the rows, such as a value that is no number, but have none of them.
    """
    found: dict[Name, QueryError] = {}
    problems: dict[Name, str] = {}
    if not queries:
        return found, problems
    with _opened(real) as one, _opened(synthetic) as other:
        for name, query in queries.items():
            try:
                found[name] = _compared(query, one, other)
            except _NoNumbers as error:
                problems[name] = str(error)
    return found, problems


class _NoNumbers(Exception):
    """A query cannot be run, or has no number."""


def _opened(tables: Database) -> duckdb.DuckDBPyConnection:
    """A database in memory that reads these tables, and no file; nor does it write rows to one."""
    import duckdb

    connection = duckdb.connect(config={"threads": 1, "temp_directory": ""})
    for name, table in tables.items():
        connection.register(name, table)
    for setting in (
        "TimeZone = 'UTC'",
        "python_enable_replacements = false",
        "enable_external_access = false",
        "lock_configuration = true",
    ):
        connection.execute(f"SET {setting}")
    return connection


def _compared(query: str, real: duckdb.DuckDBPyConnection, synthetic: duckdb.DuckDBPyConnection) -> QueryError:
    truth, made = (_numbers(query, connection) for connection in (real, synthetic))
    groups = sorted({*truth, *made}, key=str)
    if not groups:
        return QueryError(query, 0, 0.0, 0.0, 0.0)
    errors = [_relative(truth.get(group, 0.0), made.get(group, 0.0)) for group in groups]
    return QueryError(query, len(groups), float(np.mean(errors)), float(np.median(errors)), max(errors))


def _numbers(query: str, connection: duckdb.DuckDBPyConnection) -> dict[tuple[Any, ...], float]:
    import duckdb

    problem = None
    try:
        statements = duckdb.extract_statements(query)
        if len(statements) != 1 or statements[0].type != duckdb.StatementType.SELECT:
            problem = "is not one SELECT"
        else:
            rows = connection.execute(query).fetchall()
    except (duckdb.ParserException, duckdb.BinderException, duckdb.CatalogException) as error:
        problem = _first_line(error)  # quotes the statement, and no value
    except duckdb.Error as error:
        problem = f"stopped ({type(error).__name__})"  # other texts quote values
    if problem is not None:
        raise _NoNumbers(problem)
    found: dict[tuple[Any, ...], float] = {}
    for *group, value in rows:
        try:
            if isinstance(value, str | bytes | bool):
                raise TypeError
            amount = 0.0 if value is None else float(value)
            repeated = tuple(group) in found
        except TypeError:
            problem = "the last column is no number, or another one holds lists"
            break
        if repeated:
            problem = "a group stands in several rows"
            break
        found[tuple(group)] = amount if math.isfinite(amount) else 0.0
    if problem is not None:
        raise _NoNumbers(problem)
    return found


def _relative(truth: float, made: float) -> float:
    if truth == made:
        return 0.0
    return min(1.0, abs(made - truth) / abs(truth)) if truth else 1.0


def _first_line(error: Exception) -> str:
    return str(error).split("\n", 1)[0]
