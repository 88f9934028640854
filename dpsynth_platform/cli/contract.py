"""`dpsynth contract`: drafts, checks and the schema of contracts.

What belongs here: arguments, questions on a terminal, and what is still missing. What does not: drafting (`drafting`)
and checking (`synth.planning`).
"""

from __future__ import annotations

import json
import sys
from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from dpsynth_platform.cli.csv_arguments import CsvDialect
from dpsynth_platform.cli.terminal import SEVERAL, Commands, TerminalOutput, column_names, plain
from dpsynth_platform.foundation.errors import ConfigurationError, ContractError, DpsynthError
from dpsynth_platform.foundation.figures import number_of
from dpsynth_platform.foundation.settings import Settings

if TYPE_CHECKING:
    from dpsynth_platform.contracts.contract import DataContract
    from dpsynth_platform.contracts.family import FamilyBudget

_DATABASES = "Databases and Iceberg catalogs"

contract_app = Commands(
    no_args_is_help=True, help="Contracts: draft one for a table, check a file, print the schema for editors."
)


@contract_app.command("check")
def contract_check(
    output: TerminalOutput,
    contract: Annotated[
        str | None,
        typer.Argument(
            metavar="[NAME|PATH]",
            help="A dataset of this deployment, or a contract's file (YAML); default: all of the deployment.",
        ),
    ] = None,
    offline: Annotated[
        bool,
        typer.Option(
            "--offline",
            help="Looks at no source, public table or ledger, such as in CI for a contract that nobody has reviewed.",
        ),
    ] = False,
) -> None:
    """Checks a contract: alone, against its family's budget and account, and against the source. Reads no record.

    Connects to the ledger, and to the source that the contract names with the caller's credentials, unless --offline is
    given. Where the source cannot be read, it says so and checks the rest; one that does not fit is a fault.
    """
    settings = Settings.from_environment()
    if contract is not None:
        output.json(_check(output, settings, contract, offline=offline))
        return
    answers, faults = [], []
    for file in sorted(settings.contracts.glob("*.yaml")):
        try:
            answers.append(_check(output, settings, str(file), offline=offline))
        except DpsynthError as error:
            faults.append((file.stem, str(error)))
    output.json({"contracts": answers, "faults": dict(faults)})
    if faults:
        output.print_failures(faults)
        raise typer.Exit(1)


def _check(output: TerminalOutput, settings: Settings, contract: str, *, offline: bool) -> dict[str, Any]:
    """Checks one contract and prints what is worth knowing.

    Raises:
        ContractError, SourceError: with its faults.
        LedgerError: the family's file is not as the account is.
    """
    from dpsynth_platform.audit.shortage import shortage_of
    from dpsynth_platform.contracts.loading import contract_path, family_of
    from dpsynth_platform.reviewing.forecasts import check_public_table
    from dpsynth_platform.synth.automatic import method_for
    from dpsynth_platform.synth.planning import check_contract, is_missing, public_table
    from dpsynth_platform.synth.tabular.paid import check_measures

    file = contract_path(settings, contract)
    found = check_contract(settings, file)
    family = family_of(settings, found.family, str(file))
    no_account = "not asked for" if offline else _check_account(settings, family)
    if not offline and no_account is None:
        check_public_table(settings, found, family)
    not_compared = "not asked for" if offline else _compare(found)
    public = None if offline or no_account is not None else public_table(found)
    chosen = method_for(found)
    check_measures(found)
    shortage = shortage_of(found)
    alone = f"no modelled column, {'texts' if found.generate.image is None else 'pictures'} alone"
    columns = number_of(len(found.modelled), "modelled column") if found.modelled else alone
    if found.tables:
        columns = f"{number_of(len(found.linked.private), 'private table')} with {columns}"
    output.print(f"{file}: valid; dataset {found.dataset}, {columns}")
    compared = "its columns are as declared"
    if not_compared is not None:
        compared = f"not compared: {found.source.uri}: {not_compared.removeprefix(f'{found.source.uri}: ')}"
        if not offline and is_missing(found.source):
            compared += "; the source was not found, so that nothing but the contract was checked"
    elif found.tables:
        compared = "its tables and columns are as declared"
    elif found.source.format in ("csv", "sql"):  # a database's types are those of the copy that a run makes
        compared = "its columns have the declared names; a run reads them as the declared types"
    output.print(f"source: {compared}")
    if no_account is not None and not offline:
        output.print(f"account of the family: not compared: {no_account}")
    output.print(f"method {chosen.method}: {chosen.why}")
    if public is not None:
        output.print(f"public table: {public}")
    if shortage:
        output.print(f"audit: {shortage}")
    return {
        "dataset": found.dataset,
        "digest": found.digest(),
        "valid": True,
        "method": chosen.method,
        "why_method": chosen.why,
        "public": None if public is None else public.to_json(),
        "audit_shortage": shortage,
        "account_not_compared": no_account,
        "source_not_compared": not_compared,
    }


def _compare(contract: DataContract) -> str | None:
    """Why the source could not be compared with the contract; None if it fits. Errors as of `check_source`."""
    if contract.tables:
        from dpsynth_platform.linked_rows.line import check_linked_source

        return check_linked_source(contract)
    from dpsynth_platform.synth.planning import check_source

    return check_source(contract)


def _check_account(settings: Settings, family: FamilyBudget) -> str | None:
    """Why a family's file could not be compared with its account, such as that the ledger is away; None if it
    fits, or there is no ledger yet.

    Raises:
        LedgerError: it differs.
    """
    from dpsynth_platform.reviewing.accounts import ledger

    if not settings.has_ledger:
        return None
    try:
        store = ledger(settings)
        store.accounts()
    except DpsynthError as error:  # away, damaged, of a newer version, or no ledger: no fault of a contract
        return str(error)
    store.check_declared(family)
    return None


@contract_app.command("schema")
def contract_schema(output: TerminalOutput) -> None:
    """Prints the JSON schema of a contract file, for editors."""
    from dpsynth_platform.contracts.loading import contract_json_schema

    schema = contract_json_schema()
    output.json(schema)
    if not output.as_json:
        output.print(json.dumps(schema, indent=2))


@contract_app.command("init")
def contract_init(
    output: TerminalOutput,
    table: Annotated[
        Path | None,
        typer.Argument(
            help="Parquet file or a directory of them, Delta table, CSV file, or JSON lines (.json, .jsonl, "
            ".ndjson), an Iceberg table's metadata file, or a directory of pictures; for linked tables, a directory of "
            "several tables, or a file of SQLite or DuckDB; not for another database or a catalog."
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(help="The contract's file; default: the table's name in the deployment's contracts/."),
    ] = None,
    family: Annotated[
        str | None,
        typer.Option(help="The family whose budget pays; for a new one, its file in families/ is drafted, too."),
    ] = None,
    ask: Annotated[
        bool,
        typer.Option(
            "--ask",
            help="Ask for what must not be guessed, in about ten questions; Enter takes the shown value or leaves it "
            "open, Ctrl-D ends.",
        ),
    ] = False,
    format: Annotated[  # noqa: A002
        Literal["iceberg", "images", "json", "sql", "tables"] | None,
        typer.Option(
            help="json: whatever the file's name; sql: a database; iceberg: an Iceberg table; images: a directory of "
            "pictures, tables: of several tables, also where it is not recognized."
        ),
    ] = None,
    columns: Annotated[
        list[str] | None, typer.Option(help=f"JSON lines: the keys, which are not read; {SEVERAL}.")
    ] = None,
    uri: Annotated[
        str | None,
        typer.Option(
            help="SQLAlchemy URL of the database, or URI of the catalog, without a password.",
            rich_help_panel=_DATABASES,
        ),
    ] = None,
    database_table: Annotated[
        str | None,
        typer.Option(
            "--table",
            help="Table or view, also as schema.table; in a catalog namespace.table.",
            rich_help_panel=_DATABASES,
        ),
    ] = None,
    catalog: Annotated[
        str | None, typer.Option(help="The catalog's name; default: default.", rich_help_panel=_DATABASES)
    ] = None,
    query: Annotated[
        str | None, typer.Option(help="SELECT statement in place of a table.", rich_help_panel=_DATABASES)
    ] = None,
    password_file: Annotated[
        Path | None,
        typer.Option(
            help="File with the password, in the form of ~/.pgpass; default: what the driver finds.",
            rich_help_panel=_DATABASES,
        ),
    ] = None,
    *,
    csv: CsvDialect,
) -> None:
    """Drafts a contract from names, types and keys of a table or several; what must not be guessed stays open.

    Reads no value, range, count or category. Never overwrites a file.
    """
    from dpsynth_platform.audit.shortage import shortage_of
    from dpsynth_platform.drafting.draft import (
        add_instance,
        check_free,
        dataset_of,
        drafted,
        drafted_database,
        drafted_iceberg,
        drafted_json,
        drafted_linked,
        drafted_pictures,
        is_ours,
        write,
    )
    from dpsynth_platform.drafting.linked import are_several
    from dpsynth_platform.drafting.pictures import is_folder_of_pictures
    from dpsynth_platform.drafting.questions import ask_gaps
    from dpsynth_platform.sources.dialect import Dialect
    from dpsynth_platform.synth.planning import check_contract

    settings = Settings.from_environment()
    if format is None and table is not None and table.suffix.lower() in (".json", ".jsonl", ".ndjson"):
        format = "json"  # noqa: A001
    if format is None and table is not None and is_folder_of_pictures(table):
        format = "images"  # noqa: A001
    if format is None and table is not None and are_several(table):
        format = "tables"  # noqa: A001
    password = None if password_file is None else str(password_file.resolve())
    options = {"uri": uri, "table": database_table, "query": query, "password_file": password, "catalog": catalog}
    place = {name: value for name, value in options.items() if value is not None}
    if not _is_one_place(format, table, place.keys()):
        raise ConfigurationError(
            "contract init: accepted: the path of a table; or, for a database, --format sql with --uri and one of "
            "--table and --query, and no path; or, for a table of an Iceberg catalog, --format iceberg with --uri and "
            "--table, and no path"
        )
    if columns and format != "json":
        raise ConfigurationError("--columns: is for JSON lines; accepted: --format json, or no such option")
    if ask and format == "tables":
        raise ConfigurationError("--ask: is for one table; accepted: without it, and an editor for the draft")
    dialect = csv.as_dialect()
    if format not in (None, "tables") and dialect != Dialect():
        raise ConfigurationError(f"--csv-...: is for CSV files; accepted: --format {format} without those options")
    named = table or Path((database_table or "query").replace(".", "_"))
    if table is not None and format == "iceberg":
        named = table.resolve().parent.parent  # of a metadata file, TABLE/metadata/NUMBER-ID.metadata.json
    target = settings.contracts / f"{dataset_of(named)}.yaml" if out is None else out
    check_free(target)
    _check_place(settings, target)
    dataset = dataset_of(target)
    if format == "iceberg":
        draft = drafted_iceberg(settings, place or {"uri": str(table)}, dataset, family)
    elif format == "images" and table is not None:
        draft = drafted_pictures(settings, table, dataset, family)
    elif table is None:
        draft = drafted_database(settings, place, dataset, family)
    elif format == "tables":
        draft = drafted_linked(settings, table, dataset, family, dialect)
    elif format == "json":
        draft = drafted_json(settings, table, column_names("--columns", columns, ContractError), dataset, family)
    else:
        draft = drafted(settings, table, dataset, family, dialect)
    if is_ours(settings):
        _say_place(settings, target)
    if ask:
        draft = ask_gaps(settings, draft, _answer, lambda problem: typer.echo(plain(problem), err=True))
    family_file = write(settings, draft, target)
    instance = add_instance(settings)
    gaps: list[str] = []
    shortage = None
    try:
        shortage = shortage_of(check_contract(settings, target))
    except ContractError as error:
        gaps = str(error).split("\n")
    output.json({"contract": str(target), "family": str(family_file or ""), "open": gaps})
    output.print(f"drafted: {target}")
    if family_file is not None:
        output.print(f"budget:  {family_file}")
    if shortage:
        output.print(f"audit: {shortage}")
    if instance is not None:
        output.print(f"for Dagster: {instance}, as the platform's own")
    for gap in gaps:
        output.print(f"  {gap}")
    output.print(
        f"{len(gaps)} to fill in; then: dpsynth contract check {target}"
        if gaps
        else f"nothing is open; next: dpsynth plan {draft.contract['dataset']}"
    )


def _is_one_place(format_: str | None, path: Path | None, options: Collection[str]) -> bool:
    """Whether a path alone is given, or what a database or catalog needs."""
    if path is not None:
        return format_ != "sql" and not options
    if format_ == "sql":
        needed, others = {"uri"}, {"table", "query", "password_file"}
    elif format_ == "iceberg":
        needed, others = {"uri", "table"}, {"catalog"}
    else:
        return False
    return needed <= set(options) <= needed | others


def _say_place(settings: Settings, target: Path) -> None:
    typer.echo(plain(f"to be written: {target}, and a new family's budget in {settings.families}"), err=True)


def _check_place(settings: Settings, target: Path) -> None:
    """Says where files would be written and asks, where that is not the user's own place."""
    from dpsynth_platform.drafting.draft import is_ours

    if is_ours(settings):
        return
    _say_place(settings, target)
    if sys.stdin.isatty() and typer.confirm("That is not below the working directory. Write there?", err=True):
        return
    raise ConfigurationError(
        f"{settings.deploy}: is not below the working directory, and no variable names it as the deployment; accepted: "
        "DPSYNTH_DEPLOY=DIRECTORY (a new one gets contracts/, families/ and dagster.yaml), or the working directory "
        "above it"
    )


def _answer(question: str) -> str:
    """What the user types, possibly nothing. Questions go to standard error."""
    from dpsynth_platform.drafting.questions import NoAnswer

    try:
        return str(typer.prompt(plain(f"\n{question}"), default="", show_default=False, err=True))
    except typer.Abort:
        raise NoAnswer from None
