"""A run before it is paid for: options, columns, contract, sealed plan, cost and the run's key.

What belongs here: the options, and everything that follows from them and the public facts of the table. What does not:
reading rows (`rows`), paying (`budget`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, get_args

import pyarrow as pa
from pydantic import Field

from dpsynth_platform.contracts.answers import MOST_QUERIES, Queries, Query
from dpsynth_platform.contracts.base import MOST_CAP, MOST_UNITS, Part
from dpsynth_platform.contracts.columns import IdentifierColumn, IgnoredColumn, TextColumn
from dpsynth_platform.contracts.contract import DataContract
from dpsynth_platform.contracts.methods import (
    LANGUAGE_METHODS,
    NETWORK_METHODS,
    TARGET_METHODS,
    TEXT_METHODS,
    TableMethodName,
    TextMethodName,
)
from dpsynth_platform.contracts.text_generation import TextGeneration
from dpsynth_platform.contracts.tuning import Candidate, read_tune
from dpsynth_platform.contracts.validation import validated
from dpsynth_platform.foundation.digests import canonical_digest
from dpsynth_platform.foundation.errors import ContractError
from dpsynth_platform.foundation.settings import Settings
from dpsynth_platform.ledger.records import CostRequest
from dpsynth_platform.one_table import assumed, declaration
from dpsynth_platform.one_table.public_table import check_apart, declared_public
from dpsynth_platform.privacy.units import WEIGHTINGS, Weighting
from dpsynth_platform.scrub.scrub import check_source_schema
from dpsynth_platform.secrets.vault import keyed_name
from dpsynth_platform.sources.declared_rows import readable_schema, scrubbed_contract, with_row
from dpsynth_platform.sources.dialect import Dialect
from dpsynth_platform.sources.table_files import Format, Source, open_source
from dpsynth_platform.synth.automatic import AUTO
from dpsynth_platform.synth.interface import METHODS, SealedPlan
from dpsynth_platform.synth.planning import cost_request, plan_release, resolve_method
from dpsynth_platform.synth.tabular.domain import Domain
from dpsynth_platform.synth.tabular.restore import ReleaseSchema
from dpsynth_platform.synth.undeployed import contract_of

FORMATS: tuple[str, ...] = get_args(Format)
LEAST_UNITS = 100


@dataclass(frozen=True)
class Options:
    """The options of a synthesis. All of them are public.

    Attributes:
        delta: None: 1/n^1.1 with n = `expected_units`.
        expected_units: a public estimate of the number of owners, or of rows without `owners`.
        method: a generator's name, or `auto` (`synth.automatic`; with `text`, `synth.text.choice`).
        schema: a file with `columns:` as in a contract, and optionally `constraints:`; or a mapping like one. With
            `text` it may also have `text`, `training` (as in a contract's `generate`) and `scrub`.
        constraints: a file with `constraints:` instead of the schema's; changing them spends nothing, except for
            orders of dates and times.
        owners: the column that names the owner of each row; None: each row is its own unit.
        contributions: the most rows kept of each owner; with `owners`.
        weighting: what is counted: `rows`, or `owners`, whose rows together weigh one row (`privacy.units`).
        target: the column that models of the synthetic rows shall predict well; for `jam` and `aim`, which `auto` may
            choose.
        public: a public table (Parquet, CSV or Delta) with some of the columns, which helps `aim`, `jam`, `mwem`, `rap`
            and `gem`. Its columns have the same names, of letters, digits, `_` and `-`; others do not help. Of
            `dp_2stage` one with any columns; of `aug_pe` one of texts, which are the first candidates.
        public_why: why it is public; with `public`, and in the statement.
        text: the column of texts that a language model writes (methods `dp_finetune`, `ctcl`, `aug_pe`, `dp_inference`,
            or `auto`). Columns that are neither declared nor named by an option are then left out.
        condition: the columns that a text is written for; None: all declared ones with a list of values.
        about: what the texts are, in public words, from which `aug_pe` and `dp_inference` write.
        base_model: the language model of `great`, `dp_2stage` and of texts, by name or path; None: the deployment's
            default.
        tune: a file with `tune:` as in a contract's `generate`, or a mapping of what stands below it: settings of
            methods among which the mechanism chooses, within the guarantee.
        time_limit: about how long measuring, fitting and drawing may take, such as `90s`, `2m`, `1h`.
        rows: number of synthetic rows; None: estimated from the noisy counts.
        ledger: directory of a ledger that several outputs share; None: a ledger for this output alone.
        cap_epsilon: the ledger's epsilon for its lifetime, sealed by the first run; None: that of this run.
        learn_values: learn the frequent values of undeclared text columns with a part of the budget.
        assume_public_domain: read undeclared domains from the data, which no guarantee covers.
        queries: what is asked of the table, by name, in place of rows: as a contract's `queries`. Columns that no query
            names need no declaration.
        csv_separator: one character or `tab`; None: a comma. This and the following options: see `Dialect`.
        csv_quote: the quote around fields; empty: none.
        csv_decimal: the decimal mark, `.` or `,`.
        csv_skip_blanks: skip blanks around fields; None: no, and a file that seems to need it is refused.
        csv_header: the first line contains the column names; needed where no option names one of them.
        accept_weak_guarantee: why epsilon may be above 10.
        spend_again: id of a started ledger entry without a result; permits to spend its cost a second time.
        processes: number of processes that look for personal data in texts; None: one for each core. With several, a
            script needs `if __name__ == "__main__":`.
        runner: the person's name; None: the deployment's user.
    """

    epsilon: float
    delta: float | None = None
    expected_units: int | None = None
    method: TableMethodName | TextMethodName = "auto"
    schema: str | Path | Mapping[str, Any] | None = None
    constraints: str | Path | None = None
    owners: str | None = None
    contributions: int | None = None
    weighting: Weighting = "rows"
    target: str | None = None
    public: str | Path | None = None
    public_why: str | None = None
    text: str | None = None
    condition: str | Sequence[str] | None = None
    about: str | None = None
    base_model: str | None = None
    tune: str | Path | Mapping[str, Any] | None = None
    time_limit: str | None = None
    rows: int | None = None
    format: Format = "parquet"
    ledger: str | Path | None = None
    cap_epsilon: float | None = None
    learn_values: bool = False
    assume_public_domain: bool = False
    queries: Mapping[str, Any] | None = None
    csv_separator: str | None = None
    csv_quote: str = '"'
    csv_decimal: str = "."
    csv_encoding: str = "utf-8"
    csv_skip_blanks: bool | None = None
    csv_header: bool = False
    accept_weak_guarantee: str | None = None
    spend_again: str | None = None
    processes: int | None = 1
    runner: str | None = None

    @property
    def conditions(self) -> list[str]:
        """`condition` as a list; a single name may stand without one."""
        return [self.condition] if isinstance(self.condition, str) else list(self.condition or ())

    @property
    def dialect(self) -> Dialect:
        """Of a CSV file. Raises `ContractError` if it is impossible."""
        return Dialect(
            self.csv_separator,
            self.csv_quote,
            self.csv_decimal,
            self.csv_encoding,
            self.csv_skip_blanks,
            self.csv_header,
        )


@dataclass(frozen=True)
class Reading:
    """What is read of one table, and how: its public facts without a plan.

    Attributes:
        row: name of the column of row ids, where each row is its own unit; no output contains it.
    """

    options: Options
    source: Source
    contract: DataContract
    row: str | None

    @property
    def given(self) -> dict[str, str]:
        """The source's names of the released columns, by the contract's names."""
        return {plain: given for given, plain in self.source.names.items()}

    @property
    def readable(self) -> pa.Schema:
        """The columns that are read from the source."""
        return readable_schema(self.contract, self.source, None)


@dataclass(frozen=True)
class Task(Reading):
    """The public facts of one run.

    Attributes:
        not_covered: the statement's text about domains read from the data; empty: there are none.
    """

    plan: SealedPlan
    not_covered: str

    @property
    def answers(self) -> bool:
        """Whether queries are answered, and no rows are made."""
        return self.contract.generate.answers

    @property
    def released(self) -> pa.Schema:
        """The columns of the synthetic table, or of the answers, by the source's names."""
        schema = ReleaseSchema.from_json(self.plan.release).schema
        if self.answers:
            return pa.schema([item.with_name(self.given.get(item.name, item.name)) for item in schema])
        return pa.schema([item.with_name(self.given[item.name]) for item in schema if item.name in self.given])

    @property
    def ignored(self) -> tuple[str, ...]:
        """Columns declared `ignore: true`, by the source's names."""
        return tuple(name for name in self.source.found if name not in self.source.schema.names)

    @property
    def empty(self) -> tuple[str, ...]:
        """Columns that are missing in every synthetic row, by the source's names."""
        if self.answers:
            return ()
        contract = self.contract
        texts = {name for name, item in contract.columns.items() if item.type == "text"} - {contract.text_column}
        return tuple(given for plain, given in self.given.items() if plain in texts)

    @property
    def texts(self) -> dict[str, Any] | None:
        """`TextTerms` of the contract as JSON; None where no text is written."""
        if self.contract.text_column is None:
            return None
        from dpsynth_platform.synth.text.terms import terms_of

        return asdict(terms_of(self.contract))

    @property
    def filled(self) -> tuple[str, ...]:
        """Columns without missing values in the synthetic table, whatever the data miss, by the source's names."""
        if self.answers:
            return ()
        return self._released(Domain.from_json(self.plan.columns).filled)

    @property
    def nullable(self) -> tuple[str, ...]:
        """The other modelled columns, by the source's names."""
        return self._released(Domain.from_json(self.plan.columns).nullable)

    def _released(self, names: Iterable[str]) -> tuple[str, ...]:
        """The source's names of columns; topics of texts are counted, and are no column of it."""
        return tuple(self.given[name] for name in names if name in self.given)

    def request(self, runner: str) -> CostRequest:
        return cost_request(self.plan, runner)

    def keys(self, secret: bytes) -> list[str]:
        """Keys of the run: the same content, declarations, plan and output are one run and one spend.

        The first key is for a new run; the others belong to other names of the same content. The output's secret hides
        the content of the table in them, since the ledger and its exports show keys.
        """
        run = {
            "mechanism": self.contract.mechanism_snapshot(),
            "plan": self.plan.digest,
            # Only where there is one, so that earlier runs keep their keys.
            **({"csv": self.source.dialect.declared} if self.source.dialect.declared else {}),
        }
        contents = (run | {"source": version} for version in self.source.versions)
        return [keyed_name(secret, "run", canonical_digest(content)) for content in contents]


def task_of(table: Path | pa.Table, options: Options) -> Task:
    """The run of these options. Reads no row, unless domains are assumed.

    Raises:
        ContractError: options or declarations are invalid, or a declaration is missing.
        SourceError: the table cannot be read, or has other columns or types than declared.
        AccountingError: no noise scale meets the guarantee.
    """
    read, missing = declared_run(table, options)
    source, contract, row = read.source, read.contract, read.row
    with declaration.in_options({plain: given for given, plain in source.names.items()}):
        plan = plan_release(contract, with_row(source.own_schema, row), None)
    return Task(options, source, contract, row, plan, assumed.not_covered(missing) if missing else "")


def declared_run(table: Path | pa.Table, options: Options, *, pictures: bool = False) -> tuple[Reading, list[str]]:
    """A run before it is planned, and columns of assumed domains.

    Args:
        pictures: as in `read_declared`.

    Loads no model. Raises as `task_of`, without `AccountingError`.
    """
    schema = Path(options.schema) if isinstance(options.schema, str) else options.schema
    constraints = Path(options.constraints) if options.constraints else None
    known = declaration.read_declared(schema or None, constraints, pictures=pictures)
    _check_texts(options, known)
    _check_options(options)
    declared, queries = known.columns, _queries(options)
    if options.text is not None:
        declared = {options.text: TextColumn(type="text")} | declared
    named = {name for constraint in known.constraints for name in constraint.columns}
    named |= {name for name in (options.owners, options.target, *options.conditions) if name is not None}
    named |= {name for query in queries.values() for name in query.columns}
    source = open_source(table, declared, options.dialect, named)
    if queries or options.text is not None:
        others = [name for name in source.found if name not in named and name not in declared]
        declared |= {name: IgnoredColumn(ignore=True) for name in others}
        source = open_source(table, declared, options.dialect, named)
    missing = declaration.undeclared(source, declared, options.owners)
    if missing and options.learn_values:
        declared |= declaration.learned_columns(source, missing)
        missing = declaration.undeclared(source, declared, options.owners)
    if missing and not options.assume_public_domain:
        raise declaration.refuse_undeclared(source, missing, text=options.text is not None)
    if missing:
        declared |= assumed.assumed_columns(source, missing)
        source = open_source(table, declared, options.dialect, named)
    elsewhere = isinstance(table, pa.Table) and not table.num_rows  # as for a federated plan
    if options.public is not None and not elsewhere:
        check_apart(options.public, source, declared)
    columns = declaration.complete(source, declared, options.owners)
    row = None if options.owners is not None else declaration.row_column(source)
    if row:
        columns[row] = IdentifierColumn(type="identifier")
    owner = str(row) if options.owners is None else source.names[options.owners]
    with declaration.in_options({plain: given for given, plain in source.names.items()}):
        contract = contract_of(columns, _privacy(options, owner), **_asked(options, source, queries, known))
        contract = resolve_method(contract, Settings.from_environment())
        _check_words(contract, options)
        modelled = [given for given, plain in source.names.items() if plain in contract.modelled]
        if options.target is not None and options.target not in modelled:
            raise ContractError(f"--target {options.target!r} is no modelled column; accepted: {', '.join(modelled)}")
        check_source_schema(scrubbed_contract(contract), readable_schema(contract, source, row))
    return Reading(options, source, contract, row), missing


def _privacy(options: Options, owner: str) -> dict[str, Any]:
    delta = options.delta if options.delta is not None else "auto"
    units = options.expected_units or max(LEAST_UNITS, int(min(1 / (options.delta or 1), MOST_UNITS)))
    return {
        "unit": "example" if options.owners is None else "user",
        "owner_columns": [owner],
        "max_contributions": options.contributions or 1,
        "weighting": options.weighting,
        "guarantee": {"epsilon": options.epsilon, "delta": delta},
        "expected_units": units,
        "accept_weak_guarantee": options.accept_weak_guarantee,
    }


def _queries(options: Options) -> Queries:
    """The queries of the options. Raises `ContractError` if they are invalid."""
    if options.queries is None:
        return {}
    if not options.queries:
        raise ContractError("queries: none; accepted: at least one query")
    return validated(_Asked, {"queries": dict(options.queries)}, "the queries").queries


class _Asked(Part):
    queries: Queries = Field(max_length=MOST_QUERIES)


def _asked(
    options: Options, source: Source, queries: Mapping[str, Query], known: declaration.Declared
) -> dict[str, Any]:
    """What is made of the rows, as parts of a contract."""
    if options.text is not None:
        words = {} if options.about is None else {"description": options.about}
        rules = {} if known.scrub is None else {"scrub": known.scrub.model_dump(mode="json")}
        return {"generate": _written(options, options.text, source, known), **rules, **words}
    if not queries:
        return {"generate": _generate(options, source, known)}
    return {"kind": "answers", "queries": {name: query.renamed(source.names) for name, query in queries.items()}}


def _generate(options: Options, source: Source, known: declaration.Declared) -> dict[str, Any]:
    image = None if known.image is None else known.image.model_dump(mode="json", exclude_unset=True)
    target = None if options.target is None else source.names.get(options.target, options.target)
    return {
        "method": options.method,
        "rows": options.rows or "auto",
        "workload": {"target": target},
        "public": declared_public(options.public, options.public_why),
        "time_limit": options.time_limit,
        **({"network": UNREPEATED} if options.method in NETWORK_METHODS else {}),
        **({"language": UNREPEATED} if options.method in LANGUAGE_METHODS else {}),
        **({} if image is None else {"image": image}),
        **({} if options.base_model is None else {"base_model": options.base_model}),
        **({} if options.tune is None else {"tune": _tune(options, options.tune, source)}),
        "constraints": [constraint.renamed(source.names).model_dump() for constraint in known.constraints],
    }


def _written(options: Options, column: str, source: Source, known: declaration.Declared) -> dict[str, Any]:
    """The contract's `generate` for texts: the file's settings by the contract's names of columns."""

    def plain(name: str) -> str:
        return source.names.get(name, name)

    text = {} if known.text is None else known.text.model_dump(mode="json", exclude_unset=True)
    if text.get("counts"):
        text["counts"] = {plain(name): rows for name, rows in text["counts"].items()}
    given = {} if options.condition is None else {"given": list(map(plain, options.conditions))}
    return {
        "method": options.method,
        "rows": options.rows or "auto",
        "text": {**text, "column": plain(column), **given},
        "public": declared_public(options.public, options.public_why),
        "training": None if known.training is None else known.training.model_dump(mode="json", exclude_unset=True),
        "base_model": options.base_model,
        "constraints": [constraint.renamed(source.names).model_dump() for constraint in known.constraints],
    }


UNREPEATED = {"replay_steps": 0}
"""An interrupted training is not resumed, so nothing is paid for repeats."""


def _tune(options: Options, declared: str | Path | Mapping[str, Any], source: Source) -> dict[str, Any]:
    """The settings as part of a contract, by its names of columns."""
    left_out = {"method": options.method, "workload": {"target": options.target}, "public": options.public}
    tune = read_tune(Path(declared) if isinstance(declared, str) else declared, left_out)
    if options.target is not None and not any(_heeds(each, options.target) for each in tune.candidates):
        raise ContractError(
            f"--target {options.target!r}: no candidate of --tune has it; accepted: one of method "
            f"{', '.join(TARGET_METHODS[:1])} without a workload of its own, or no target"
        )
    document = tune.model_dump(mode="json")
    for candidate, made in zip(tune.candidates, document["candidates"], strict=True):
        for name in ("network", "language"):
            part = getattr(candidate, name)
            if part is not None and part.replay_steps is None:
                made[name] |= UNREPEATED
        if candidate.workload is not None:
            made["workload"] = candidate.workload.renamed(source.names).model_dump(mode="json")
    return document


def _heeds(candidate: Candidate, target: str) -> bool:
    workload = candidate.workload
    return candidate.method in TARGET_METHODS and workload is not None and workload.target == target


def _check_options(options: Options) -> None:
    """Refuses what the contract's own checks would not refuse. Raises `ContractError`."""
    if options.queries is not None:
        rowwise = (
            "method",
            "target",
            "public",
            "public_why",
            "base_model",
            "tune",
            "time_limit",
            "rows",
            "constraints",
            "text",
            "condition",
            "about",
        )
        defaults = {item.name: item.default for item in fields(Options)}
        for name in rowwise:
            if getattr(options, name) != defaults[name]:
                raise ContractError(f"--{name.replace('_', '-')}: beside queries, which make no rows; accepted: none")
        if options.learn_values:
            raise ContractError("--learn-values: beside queries, whose groups are declared; accepted: --schema")
    methods = (AUTO, *METHODS) if options.text is None else (AUTO, *TEXT_METHODS)
    if options.method not in methods:
        raise ContractError(f"--method {options.method!r}; accepted: {', '.join(methods)}")
    if options.text is None and options.method in TEXT_METHODS:
        raise ContractError(
            f"--method {options.method!r} writes a column of texts; accepted: with --text COLUMN (`dpsynth synth text`)"
        )
    heeding = (AUTO, *TARGET_METHODS)
    if options.target is not None and options.method not in heeding and options.tune is None:
        raise ContractError(
            f"--target {options.target!r} is for --method {', '.join(heeding)}; accepted: one of them, or no target"
        )
    check_common(options.format, options.delta, options.expected_units, options.cap_epsilon)
    if (options.owners is None) != (options.contributions is None):
        raise ContractError(
            "--owners and --contributions go together: the column that names the owner of each row, and the most rows "
            "kept of each owner; without both, each row is its own unit"
        )
    if options.contributions is not None and options.contributions < 1:
        raise ContractError(f"--contributions {options.contributions}; accepted: 1 or more")
    if options.weighting not in WEIGHTINGS:
        raise ContractError(f"--weighting {options.weighting!r}; accepted: {', '.join(WEIGHTINGS)}")
    if options.weighting == "owners" and options.contributions in (None, 1):
        raise ContractError("--weighting owners is for --owners with --contributions above 1; accepted: both, or rows")
    if options.rows is not None and options.rows < 1:
        raise ContractError(f"--rows {options.rows}; accepted: 1 or more")


_OF_TABLES = ("target", "tune", "time_limit", "learn_values")
"""Options that texts do not have."""


def _check_texts(options: Options, known: declaration.Declared) -> None:
    """Refuses options and settings that do not fit texts, or a table without any. Raises `ContractError`."""
    if options.queries is not None:
        return  # which make no rows
    if options.text is None:
        beside = [name for name in ("condition", "about") if getattr(options, name) is not None]
        beside += [name for name in ("text", "training", "scrub") if getattr(known, name) is not None]
        if beside:
            raise ContractError(
                f"{beside[0]}: without a text to write; accepted: with --text COLUMN (`dpsynth synth text`)"
            )
        return
    for name in _OF_TABLES:
        if getattr(options, name) not in (None, False):
            raise ContractError(f"--{name.replace('_', '-')}: beside --text, which has no such option; accepted: none")
    if options.expected_units is None:
        raise ContractError(
            "--expected-units: missing, and the plan of a text's mechanism depends on it; accepted: a public estimate "
            "of the number of owners, or of rows without --owners"
        )
    if options.text == options.owners:
        raise ContractError(f"--owners {options.owners!r}: is the column of --text; accepted: a column of ids")
    settings = known.text or TextGeneration()
    for name, option in (("column", "--text"), ("given", "--condition")):
        if getattr(settings, name) is not None:
            raise ContractError(f"text.{name}: stands in an option here; accepted: {option}")
    remote = settings.evolution is not None and settings.evolution.endpoint is not None
    if remote or settings.pictures is not None:
        raise ContractError(
            f"text.{'evolution.endpoint' if remote else 'pictures'}: remote models are for the line of a deployment, "
            "which lists them; accepted: none here, or a contract and `dpsynth run`"
        )


def _check_words(contract: DataContract, options: Options) -> None:
    """Refuses a method that writes from public words without any. Raises `ContractError`."""
    text = contract.generate.text
    part = None if text is None else text.evolution or text.inference
    if part is not None and part.about is None and options.about is None:
        raise ContractError(
            f"--about: missing, and method {contract.generate.method} writes from public words; accepted: what the "
            "texts are, such as 'remarks of patients after a visit'"
        )


def check_common(format_: str, delta: float | None, expected_units: int | None, cap_epsilon: float | None) -> None:
    """Refuses options that one table and several have. Raises `ContractError`."""
    if format_ not in FORMATS:
        raise ContractError(f"--format {format_!r}; accepted: {', '.join(FORMATS)}")
    if delta is None and expected_units is None:
        raise ContractError("--delta: missing; accepted: a number such as 1e-5, or --expected-units for 1/n^1.1")
    if delta is not None and not 0 < delta < 1:
        raise ContractError(f"--delta {delta:g}; accepted: above 0, below 1")
    if expected_units is not None and not LEAST_UNITS <= expected_units <= MOST_UNITS:
        raise ContractError(f"--expected-units {expected_units}; accepted: {LEAST_UNITS} to {MOST_UNITS:,}")
    if cap_epsilon is not None and not 0 < cap_epsilon <= MOST_CAP:
        raise ContractError(f"--cap-epsilon {cap_epsilon:g}; accepted: above 0, at most {MOST_CAP:g}")
