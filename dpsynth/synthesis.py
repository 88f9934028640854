"""Making a synthetic table of a frame, and more rows of it.

What belongs here: the calls and what they return. What does not: the steps, which are `dpsynth_platform.one_table`.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, fields
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from dpsynth import frames
from dpsynth.words import in_python
from dpsynth_platform.foundation.errors import ConfigurationError, ContractError
from dpsynth_platform.foundation.markdown import html_table
from dpsynth_platform.foundation.progress import Progress, bars, silent
from dpsynth_platform.one_table import Forecast, Options, Synthesis, forecast, more_rows
from dpsynth_platform.one_table import synthesize as synthesize_table
from dpsynth_platform.one_table.budget import cap_and_left
from dpsynth_platform.privacy.guarantee import Guarantee
from dpsynth_platform.sources.structs import flat_table

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

OUT = "dpsynth-output"


@dataclass(frozen=True)
class Result:
    """A synthetic table and its guarantee.

    Attributes:
        directory: has the table, its statement, and below `restricted` the model, keys and ledger.
        synthesis: paths, rows, method, guarantee, and the ledger entry that paid.

    Examples:
        >>> result.directory
        PosixPath('out')
        >>> len(result.sample(3, {"age": [40, 41]}))
        3
        >>> result.statement().splitlines()[0]
        '# Privacy statement...'
        >>> result.plot(["age", "city"]).layout.title.text == str(result.guarantee)
        True
    """

    directory: Path
    synthesis: Synthesis
    _kind: frames.Kind = field(repr=False)

    @property
    def guarantee(self) -> Guarantee:
        """What the result promises; its text is one sentence with the unit."""
        return self.synthesis.guarantee

    def statement(self) -> str:
        """The privacy statement: whom it protects, what it covers and what not. In Markdown."""
        return self.synthesis.statement.read_text(encoding="utf-8")

    @cached_property
    def data(self) -> Any:
        """The synthetic rows: a frame like the given one; pandas where a path was given."""
        return _frame(self.synthesis.synthetic, self._kind)

    @in_python
    def sample(self, rows: int, given: Mapping[str, Any] | None = None) -> Any:
        """Further rows from the same model, which spend nothing; as `dpsynth.sample`."""
        return _sampled(self.directory, rows, given, self._kind)

    @in_python
    def plot(self, columns: Sequence[str] | None = None) -> Figure:
        """A plotly figure of the synthetic rows: distributions, associations, and what is spent of the ledger's cap.

        Args:
            columns: to be shown; default: the first 20 that are modelled.

        Raises:
            ConfigurationError: plotly is not installed, a column is not modelled, or none is; or the table is no
                Parquet file.
            LedgerError: the ledger is missing or outdated.
        """
        from dpsynth.figures import MOST_COLUMNS, of_synthetic

        table, made = flat_table(_table(self.synthesis.synthetic)), self.synthesis
        modelled = [name for name in table.column_names if name in {*made.filled, *made.nullable}]
        if not modelled:
            raise ConfigurationError("no column is modelled that a figure could show; accepted: a table with one")
        for name in columns or ():
            if name not in modelled:
                raise ConfigurationError(f"columns: {name!r} is no modelled column; accepted: {', '.join(modelled)}")
        cap, left = cap_and_left(self.directory, made.ledger)
        return of_synthetic(table, list(columns or modelled[:MOST_COLUMNS]), str(self.guarantee), cap, left)

    def _repr_html_(self) -> str:
        made = self.synthesis
        items = {
            "guarantee": str(made.guarantee),
            "rows": f"{made.rows:,}",
            "method": f"{made.method}: {made.why_method}",
            "ledger entry": f"{made.entry_id} ({'paid now' if made.spent else 'paid earlier'})",
            **({"not covered": "; ".join(made.not_covered)} if made.not_covered else {}),
            "directory": str(self.directory),
        }
        return html_table(items.items())


@in_python
def synthesize(
    data: Any,
    out: str | Path = OUT,
    *,
    columns: Mapping[str, Any] | None = None,
    constraints: Sequence[Mapping[str, Any]] = (),
    keys: Mapping[str, Mapping[str, Any]] | None = None,
    progress: bool = True,
    **options: Any,
) -> Any:
    """Makes a differentially private synthetic table, or several that join.

    Its budget is in a ledger in `out`, or in the one that the option `ledger` names. The first call seals the cap, and
    a call that does not fit under it is refused before its mechanism reads a row. The same call on the same data
    spends nothing.

    Args:
        data: a pandas or polars frame, an Arrow table, or the path of a Parquet, CSV or Delta table; of several tables
            a mapping of such by name.
        out: the directory of the result, made if it does not exist.
        columns: the public declaration of each column, as in a contract, such as
            `{"age": {"type": "integer", "min": 18, "max": 90}}`.
        constraints: which rows cannot occur, as in a contract.
        keys: of several tables, the declaration of each (`key`, `parent`, `max_children`, `order_by` and so on); their
            `columns` are a mapping by table then.
        progress: show a bar.
        options: the fields of `dpsynth.Options`, of several tables those of `TablesOptions`: `epsilon` and one of
            `delta` and `expected_units` at least. With `text`, a language model writes that column of one table. Beside
            `keys` also `owner`, the root's column that names the owner of a row; the root's `max_children` is the most
            rows of one.

    Returns:
        A `Result`; of several tables, `Tables`.

    Raises:
        ContractError: options or declarations are invalid, or a declaration is missing.
        SourceError: the table cannot be read as declared.
        BudgetExceeded: it does not fit under the ledger's cap; nothing was spent.
        LedgerError: the ledger has another unit or cap, is missing or is outdated.
        SpendRepeated: an earlier attempt at this run started and left no result; its cost stays spent.
        MechanismFailed: the mechanism failed; its cost stays spent.
        DpsynthError: any other failure, without any value of the data.

    Examples:
        >>> columns = {
        ...     "age": {"type": "integer", "min": 18, "max": 90},
        ...     "city": {"type": "categorical", "values": ["Aix", "Ulm"]},
        ... }
        >>> result = dpsynth.synthesize(
        ...     people, "out", epsilon=1, expected_units=50_000, owners="person id", contributions=3, columns=columns
        ... )
        >>> list(result.data.columns)
        ['person id', 'age', 'city']
    """
    if isinstance(data, Mapping):
        from dpsynth.tables import synthesize_frames

        if constraints:
            raise ContractError("constraints: of several tables; accepted: constraints of a table, in keys")
        with shown(progress) as report:
            return synthesize_frames(data, Path(out), keys, columns, report, options)
    if keys is not None:
        raise ContractError("keys: of one table; accepted: several tables by name")
    chosen = options_of(options, columns, constraints)
    table, kind = frames.read(data)
    with shown(progress) as report:
        return Result(Path(out), synthesize_table(table, out, chosen, progress=report), kind)


@in_python
def query(
    data: Any,
    queries: str | Mapping[str, Any],
    out: str | Path = OUT,
    *,
    columns: Mapping[str, Any] | None = None,
    progress: bool = True,
    **options: Any,
) -> Result:
    """Answers counts, sums, means and quantiles of a table with differential privacy, each with its 95% interval.

    The budget is that of `synthesize`: the first call seals the cap (`cap_epsilon`), the same queries on the same data
    spend nothing, and others are another spend.

    Args:
        data: as `synthesize`.
        queries: one SELECT statement, or queries by name: statements, or declarations as in a contract.
        out: as `synthesize`.
        columns: the public declaration of the columns that queries name; others need none.
        progress: show a bar.
        options: as `synthesize`; options of rows, such as `method`, are refused.

    Returns:
        A result whose `data` has a row for each answer: query, groups, measure, answer, low, high, standard_error.

    Raises:
        ContractError: queries, options or declarations are invalid, or a declaration is missing.
        SourceError, BudgetExceeded, LedgerError, SpendRepeated, MechanismFailed, DpsynthError: as `synthesize`.

    Examples:
        >>> answers = dpsynth.query(
        ...     people,
        ...     "SELECT city, COUNT(*), AVG(age) FROM people GROUP BY city",
        ...     "answers",
        ...     epsilon=1,
        ...     delta=1e-6,
        ...     columns=columns,
        ... )
        >>> list(answers.data.columns)
        ['query', 'city', 'measure', 'of_column', 'at_share', 'answer', 'low', 'high', 'standard_error']
        >>> bool((answers.data.low <= answers.data.high).all())
        True
    """
    if not isinstance(queries, str | Mapping):
        raise ContractError(
            f"queries: {type(queries).__name__}; accepted: one SELECT statement, or statements and declarations by name"
        )
    named = {"q1": queries} if isinstance(queries, str) else dict(queries)
    chosen = options_of(options | {"queries": named}, columns, ())
    table, kind = frames.read(data)
    with shown(progress) as report:
        return Result(Path(out), synthesize_table(table, out, chosen, progress=report), kind)


@in_python
def plan(
    data: Any,
    out: str | Path = OUT,
    *,
    columns: Mapping[str, Any] | None = None,
    constraints: Sequence[Mapping[str, Any]] = (),
    **options: Any,
) -> Forecast:
    """Says what `synthesize` with these arguments would do and cost. It spends nothing.

    With `assume_public_domain` it reads domains from the data, as `synthesize` does, which no guarantee covers.

    Raises:
        ContractError, SourceError, AccountingError, LedgerError: as `synthesize`.

    Examples:
        >>> plan = dpsynth.plan(people["age"].to_frame(), epsilon=1, delta=1e-6, assume_public_domain=True)
        >>> plan.paid, plan.cap, plan.guarantee.unit
        (False, None, 'example')
    """
    chosen = options_of(options, columns, constraints)
    table, _ = frames.read(data)
    return forecast(table, out, chosen)


@in_python
def sample(out: str | Path, rows: int, given: Mapping[str, Any] | None = None) -> Any:
    """Further rows from the model of an earlier call, as a pandas frame; they spend nothing.

    Args:
        out: the directory of that call.
        given: conditions on all rows by column: a value, a list, or a range `{"min": ..., "max": ...}`.

    Raises:
        ConfigurationError: there is no model.
        ContractError: a condition does not belong to this table, or no row can meet them all.
        MechanismFailed: the model is missing or was changed.
        LedgerError: the ledger is missing or outdated.

    Examples:
        >>> rows = dpsynth.sample("out", 5, given={"city": "Ulm", "age": {"min": 40}})
        >>> len(rows), bool(rows["age"].min() >= 40)
        (5, True)
    """
    return _sampled(Path(out), rows, given, frames.PANDAS)


class Synthesizer:
    """`synthesize` in scikit-learn's form: options first, then `fit(data)`, then `sample(rows)`.

    Args:
        out: as `synthesize`.
        options: as `synthesize`, also `columns`, `constraints` and `progress`.

    Examples:
        >>> columns = {"age": {"type": "integer", "min": 18, "max": 90}}
        >>> ages = dpsynth.Synthesizer("ages", epsilon=1, delta=1e-6, columns=columns)
        >>> len(ages.fit(people[["age"]]).sample(7))
        7
    """

    def __init__(self, out: str | Path = OUT, **options: Any) -> None:
        self.out, self.options = out, options

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """The options."""
        return {"out": self.out, **self.options}

    def set_params(self, **options: Any) -> Synthesizer:
        """Changes options."""
        self.out = options.pop("out", self.out)
        self.options |= options
        return self

    def fit(self, data: Any, y: None = None) -> Synthesizer:
        """Pays for a model of the data, or finds the one that was paid for. Raises as `synthesize`."""
        self.result_ = synthesize(data, self.out, **self.options)
        return self

    def sample(self, rows: int, given: Mapping[str, Any] | None = None) -> Any:
        """Rows of the model, which spend nothing. Raises as `dpsynth.sample`."""
        if not hasattr(self, "result_"):
            raise ConfigurationError("this synthesizer has no model; call fit(data) before sample(rows)")
        return self.result_.sample(rows, given)


def options_of(
    options: Mapping[str, Any], columns: Mapping[str, Any] | None, constraints: Sequence[Mapping[str, Any]]
) -> Options:
    """Options by name. Raises `ContractError` for unknown ones, with what is accepted."""
    given, known = dict(options), [item.name for item in fields(Options) if item.name != "constraints"]
    if columns is not None or constraints:
        if given.get("schema") is not None:
            raise ContractError("schema: beside columns or constraints; accepted: one of them")
        given["schema"] = {"columns": dict(columns or {}), "constraints": [dict(item) for item in constraints]}
    for name in given:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            hint = f" (did you mean {near[0]!r}?)" if near else ""
            raise ContractError(f"{name}: unknown option{hint}; accepted: columns, constraints, {', '.join(known)}")
    if "epsilon" not in given:
        raise ContractError("epsilon: missing; accepted: a number above 0; up to 1 is strong")
    return Options(**given)


def shown(progress: bool) -> AbstractContextManager[Progress]:
    """A bar for each stage, or nothing."""
    from rich.console import Console

    return bars(Console(), transient=True) if progress else nullcontext(silent)


def _sampled(out: Path, rows: int, given: Mapping[str, Any] | None, kind: frames.Kind) -> Any:
    made = more_rows(out, rows, given=given)
    return _frame(made.synthetic, kind)


def _frame(path: Path, kind: frames.Kind) -> Any:
    return kind.frame(_table(path))


def _table(path: Path) -> pa.Table:
    import pyarrow.parquet as pq

    if path.suffix == ".parquet":
        return pq.read_table(path)
    raise ConfigurationError(f'{path}: no frame is made of this format; accepted: format="parquet", or another reader')
