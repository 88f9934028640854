"""Queries in a small part of SQL, as declarations (`answers.Query`).

What belongs here: the SELECT statements that can be answered, and why others cannot; and which tables a SELECT reads.
What does not: their meaning. Statements are parsed, never run.

    SELECT state, COUNT(*), AVG(hours), MEDIAN(income) FROM data WHERE age >= 18 AND sex IN ('f', 'm') GROUP BY state

Accepted: COUNT(*), SUM, AVG, MEDIAN, PERCENTILE_CONT(share) WITHIN GROUP (ORDER BY column) and columns of GROUP BY; in
WHERE, conditions joined by AND: =, <, <=, >, >=, BETWEEN, IN, IS NULL, each of a column with constants.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, NoReturn

from dpsynth_platform.contracts.base import caseless

ACCEPTED = (
    "SELECT of COUNT(*), SUM(column), AVG(column), MEDIAN(column), PERCENTILE_CONT(share) WITHIN GROUP (ORDER BY "
    "column) and the columns of GROUP BY, FROM one table, WHERE with =, <=, >=, BETWEEN, IN and IS NULL joined by AND"
)
CONDITIONS = "columns with =, <, <=, >, >=, BETWEEN, IN or IS NULL, joined by AND"
_LONGEST = 10_000
_READ = {
    "Select": {"expressions", "from_", "from", "where", "group"},
    "Table": {"this", "db", "catalog", "alias"},
    "TableAlias": {"this"},
    "Group": {"expressions"},
    "Column": {"this", "table", "db", "catalog"},
    "Count": {"this", "big_int"},
    "Sum": {"this"},
    "Avg": {"this"},
    "Median": {"this"},
    "PercentileCont": {"this"},
    "PercentileDisc": {"this"},
    "Ordered": {"this", "desc", "nulls_first"},
    "Between": {"this", "low", "high"},
    "In": {"this", "expressions"},
    "Is": {"this", "expression"},
    "Cast": {"this", "to"},
}
"""What is read of each part of a statement. Whatever else a parser finds there would change the meaning unseen."""


def query_of(text: str) -> dict[str, Any]:
    """The declaration of a query in SQL. Raises `ValueError`, which names the part that cannot be answered."""
    from sqlglot import exp

    select = _parsed(text, exp.Select, "SELECT statement", ACCEPTED)
    _refuse_clauses(select)
    _refuse_unread(select)
    groups = [_column(item, "GROUP BY") for item in (select.args.get("group") or exp.Group()).expressions]
    found: dict[str, Any] = {"count": False, "sum": [], "mean": [], "quantiles": {}, "by": groups}
    for item in select.expressions:
        item = item.this if isinstance(item, exp.Alias) else item
        if isinstance(item, exp.Column):
            name = _column(item, "SELECT")
            if name not in groups:
                _refuse(f"column {name!r} stands outside of an aggregate", "the columns of GROUP BY")
        else:
            _add(found, item)
    where = select.args.get("where")
    found["where"] = {} if where is None else _where(where.this)
    return found


def conditions_of(text: str) -> dict[str, Any]:
    """Values by column of conditions, as after WHERE; `above` and `below` are ends that do not belong to a range.

    Raises `ValueError`, which names what cannot be answered.
    """
    from sqlglot import exp

    condition = _parsed(text, exp.Expression, "condition", CONDITIONS)
    try:
        _refuse_unread(condition)
        return _where(condition, strict=True)
    except ValueError as error:
        problem = str(error).replace(ACCEPTED, CONDITIONS)
    raise ValueError(problem)


def check_reads(text: str, tables: Collection[str]) -> None:
    """Refuses all but one SELECT of DuckDB's SQL that reads these tables: no others, no files and no catalog.

    Raises `ValueError`.
    """
    from sqlglot import exp

    accepted = f"one SELECT over {', '.join(tables)}"
    select = _parsed(text, exp.Query, "SELECT", accepted, dialect="duckdb")
    known = {*map(caseless, tables), *(caseless(each.alias) for each in select.find_all(exp.CTE))}
    for table in select.find_all(exp.Table):
        if not isinstance(table.this, exp.Identifier) or table.db or caseless(table.name) not in known:
            _refuse(f"{table.sql(dialect='duckdb')} is no declared table", accepted)


def tables_named(text: str, dialect: str) -> frozenset[str]:
    """The names of the tables that a SELECT names, as they are spelled; none of what cannot be parsed.

    That views and functions read other tables is not found out.
    """
    from sqlglot import exp

    try:
        select = _parsed(text, exp.Query, "SELECT", "one SELECT", dialect=dialect)
    except ValueError:
        return frozenset()
    own = {caseless(each.alias) for each in select.find_all(exp.CTE)}
    return frozenset(table.name for table in select.find_all(exp.Table) if table.db or caseless(table.name) not in own)


def _parsed(text: str, kind: type[Any], name: str, accepted: str, dialect: str = "postgres") -> Any:
    import sqlglot
    from sqlglot.errors import SqlglotError

    if len(text) > _LONGEST:
        _refuse(f"{len(text):,} characters", f"up to {_LONGEST:,}")
    try:
        statements = sqlglot.parse(text, read=dialect)
    except (SqlglotError, RecursionError):  # its message quotes the text over several lines
        statements = []
    if len(statements) != 1 or not isinstance(statements[0], kind):
        _refuse(f"this is not one {name}", accepted)
    return statements[0]


def _refuse_clauses(select: Any) -> None:
    """Refuses clauses that cannot be answered, and tables beside one."""
    from sqlglot import exp

    for clause, part in select.args.items():
        if part and clause not in _READ["Select"]:
            _refuse(f"{clause.upper().replace('_', ' ').strip()} cannot be answered", ACCEPTED)
    source = select.args.get("from_") or select.args.get("from")
    if source is None or not isinstance(source.this, exp.Table) or not isinstance(source.this.this, exp.Identifier):
        _refuse("FROM names no table", "FROM with the name of one table")
    group = select.args.get("group")
    if group is not None and any(part for name, part in group.args.items() if name != "expressions"):
        _refuse("GROUP BY with more than columns", "names of columns")


def _refuse_unread(part: Any) -> None:
    """Refuses parts with a word that is not read, such as NOT of IS NOT NULL or TABLESAMPLE of a table."""
    for item in part.walk():
        known = _READ.get(type(item).__name__)
        unread = [name.upper() for name, part in item.args.items() if part and known is not None and name not in known]
        if unread:
            _refuse(f"{_shown(item)}: {', '.join(unread)} cannot be answered", ACCEPTED)


def _add(found: dict[str, Any], item: Any) -> None:
    """Adds an aggregate to a declaration."""
    from sqlglot import exp

    if item.find(exp.Distinct) is not None:
        _refuse(
            f"{_shown(item)}: DISTINCT cannot be answered",
            "COUNT(*); to count owners and not rows, declare privacy.weighting: owners",
        )
    if isinstance(item, exp.Count):
        if not isinstance(item.this, exp.Star | exp.Literal):
            _refuse(_shown(item), "COUNT(*); rows without a missing value: WHERE with the column's range or values")
        found["count"] = True
    elif isinstance(item, exp.Sum | exp.Avg):
        key = "sum" if isinstance(item, exp.Sum) else "mean"
        found[key].append(_column(item.this, type(item).__name__.upper()))
    elif isinstance(item, exp.Median):
        _quantile(found, _column(item.this, "MEDIAN"), 0.5)
    elif isinstance(item, exp.WithinGroup) and isinstance(item.this, exp.PercentileCont | exp.PercentileDisc):
        ordered = item.expression.expressions if item.expression is not None else []
        if len(ordered) != 1 or ordered[0].args.get("desc"):
            _refuse(_shown(item), "WITHIN GROUP (ORDER BY column)")
        _quantile(found, _column(ordered[0].this, "ORDER BY"), _constant(item.this.this))
    else:
        _refuse(_shown(item), ACCEPTED)


def _quantile(found: dict[str, Any], column: str, share: Any) -> None:
    found["quantiles"].setdefault(column, []).append(share)


def _where(condition: Any, *, strict: bool = False) -> dict[str, Any]:
    """Values by column, of conditions that are joined by AND; `strict` if < and > can be answered."""
    from sqlglot import exp

    found: dict[str, Any] = {}
    left = [condition]
    while left:
        item = left.pop().unnest()
        if isinstance(item, exp.And):
            left += [item.right, item.left]
            continue
        column, values = _condition(item, strict=strict)
        earlier = found.get(column)
        if earlier is None:
            found[column] = values
        elif isinstance(earlier, dict) and isinstance(values, dict) and not set(earlier) & set(values):
            found[column] = earlier | values
        else:
            _refuse(f"two conditions on column {column!r}", "one for each column, or a lower and an upper limit")
    return found


def _condition(item: Any, *, strict: bool) -> tuple[str, Any]:
    from sqlglot import exp

    if isinstance(item, exp.Between):
        return _column(item.this, "WHERE"), {"min": _constant(item.args["low"]), "max": _constant(item.args["high"])}
    if isinstance(item, exp.In) and item.expressions:
        return _column(item.this, "WHERE"), [_constant(value) for value in item.expressions]
    if isinstance(item, exp.Is) and isinstance(item.expression, exp.Null):
        return _column(item.this, "WHERE"), [None]
    if isinstance(item, exp.Column):  # a boolean by itself
        return _column(item, "WHERE"), [True]
    if isinstance(item, exp.Not) and isinstance(item.this, exp.Column):
        return _column(item.this, "WHERE"), [False]
    sides = {exp.EQ: "", exp.GTE: "min", exp.LTE: "max", exp.GT: "above", exp.LT: "below"}
    turned = {"": "", "min": "max", "max": "min", "above": "below", "below": "above"}
    side = sides.get(type(item))
    if side is None:
        _refuse(_shown(item), ACCEPTED)
    if side in ("above", "below") and not strict:
        _refuse(_shown(item), "<= or >= with the next value")
    if isinstance(item.right, exp.Column):
        column, value, side = _column(item.right, "WHERE"), _constant(item.left), turned[side]
    else:
        column, value = _column(item.left, "WHERE"), _constant(item.right)
    return column, {side: value} if side else [value]


def _column(item: Any, where: str) -> str:
    from sqlglot import exp

    if not isinstance(item, exp.Column) or isinstance(item.this, exp.Star):
        _refuse(f"{where}: {_shown(item)}", "the name of one column")
    return str(item.name)


def _constant(item: Any) -> Any:
    from sqlglot import exp

    whole, sign = item, 1
    if isinstance(item, exp.Neg):
        sign, item = -1, item.this
    # DATE '2026-01-31'; other casts would change the value.
    if isinstance(item, exp.Cast) and item.to.this in exp.DataType.TEMPORAL_TYPES and item.this.is_string:
        item = item.this
    if isinstance(item, exp.Boolean):
        return bool(item.this)
    if not isinstance(item, exp.Literal) or (item.is_string and sign < 0):
        _refuse(_shown(whole), "a number, a text in single quotes, true or false")
    if item.is_string:
        return str(item.this)
    return sign * (float(item.this) if not str(item.this).isdigit() else int(item.this))


def _shown(item: Any) -> str:
    """A part of the statement, shortened for a message."""
    from sqlglot import ErrorLevel

    shown = " ".join(item.sql(dialect="postgres", unsupported_level=ErrorLevel.IGNORE).split())
    return shown if len(shown) <= 100 else f"{shown[:100]}..."


def _refuse(problem: str, accepted: str) -> NoReturn:
    raise ValueError(f"{problem}; accepted: {accepted}")
