"""The `dpsynth` command.

What belongs here: arguments, and showing what the library returns, as text or (with --json) as one JSON value on
standard output. What does not: doing anything itself.

What a command needs of the library is imported when it runs, here and in the modules of the other commands (a test
holds it): much of it takes seconds to import, and no command needs all. Dagster is imported only by those that run
assets.

Exit status: 0 done, 1 a clear error, 2 wrong usage, 3 blocked by the budget, 4 verified but withdrawn, 5 contaminated.
"""

from __future__ import annotations

import enum
import json
import os
import socket
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from dpsynth_platform.cli.audit import audit_app
from dpsynth_platform.cli.backup import backup_app
from dpsynth_platform.cli.bound import bound_app
from dpsynth_platform.cli.console import console_app
from dpsynth_platform.cli.contract import draft_app
from dpsynth_platform.cli.ledger import authority_app
from dpsynth_platform.cli.lineage import lineage_app
from dpsynth_platform.cli.privacy import privacy_app
from dpsynth_platform.cli.quality import quality_app
from dpsynth_platform.cli.release import release_app
from dpsynth_platform.cli.retention import hold_app, owner_app, purge_app
from dpsynth_platform.cli.scrub import scrub_app
from dpsynth_platform.cli.synth import synth_app
from dpsynth_platform.cli.terminal import BLOCKED, Dataset, Json, Period, TerminalOutput, command, keep_unexpected
from dpsynth_platform.cli.watching import watching_app
from dpsynth_platform.foundation.errors import ConfigurationError
from dpsynth_platform.foundation.figures import moment
from dpsynth_platform.foundation.garbage_collection import collect_seldom
from dpsynth_platform.foundation.restricted_log import no_tracebacks
from dpsynth_platform.foundation.settings import Settings

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,  # it would put a traceback of its own in the place of `no_tracebacks`
    help="From a sensitive table to a differentially private synthetic release that proves itself.",
)
contract_app = typer.Typer(
    no_args_is_help=True, help="Contracts: draft one for a table, check a file, print the schema for editors."
)
ledger_app = typer.Typer(no_args_is_help=True, help="The privacy budget: what was spent, what is left.")
app.add_typer(contract_app, name="contract")
app.add_typer(ledger_app, name="ledger")
app.add_typer(lineage_app, name="lineage")
app.add_typer(release_app, name="release")
app.add_typer(audit_app, name="audit")
app.add_typer(privacy_app, name="privacy")
app.add_typer(bound_app, name="bound")
app.add_typer(scrub_app, name="scrub")
app.add_typer(quality_app, name="quality")
app.add_typer(synth_app, name="synth")
app.add_typer(console_app, name="console")
app.add_typer(backup_app)
app.add_typer(watching_app)
app.add_typer(hold_app, name="hold")
app.add_typer(owner_app, name="owner")
app.add_typer(purge_app)
ledger_app.add_typer(authority_app)
contract_app.add_typer(draft_app)


class DemoLine(enum.StrEnum):
    """The datasets whose whole line is demonstrated."""

    census = "census"
    mail = "mail"
    flights = "flights"


class DemoSource(enum.StrEnum):
    """The demonstration sources."""

    census = "census"
    visits = "visits"
    mail = "mail"
    flights = "flights"


@app.command()
@command
def demo(
    line: Annotated[
        DemoLine,
        typer.Argument(
            help="census: a table of fictional people, in minutes; mail: texts of a language model that is fine-tuned "
            "on a public mail corpus, in about a quarter of an hour on two cores; flights: a year of monthly releases "
            "and what overlap policies make of it, in some minutes."
        ),
    ] = DemoLine.census,
    source: Annotated[
        DemoSource | None, typer.Option(help="Only make this demonstration source, so that you can run it yourself.")
    ] = None,
    months: Annotated[int, typer.Option(help="Of `flights`: how many months are released.", min=1, max=12)] = 12,
    as_json: Json = False,
) -> None:
    """The whole line on demonstration data: from the source to a published, verified release."""
    from dpsynth_platform.demo.line import make_source, run_demo
    from dpsynth_platform.demo.year import run_year

    output = TerminalOutput(as_json)
    settings = Settings.from_environment()
    if source is None and line is DemoLine.flights:
        from dpsynth_platform.definitions import build_definitions

        output.json(run_year(settings, build_definitions, months, output))
        return
    if source is None:
        output.json(run_demo(settings, line.value, output))
        return
    path = make_source(settings, source.value)
    output.json({"source": str(path)})
    output.print(f"Delta table {path}")


@app.command()
@command
def run(
    dataset: Dataset,
    period: Period = None,
    up_to: Annotated[
        str | None,
        typer.Option(help="The last step to run, such as scrubbed (then `dpsynth bound learn` can ask); default: all."),
    ] = None,
    spend_again: Annotated[
        str | None,
        typer.Option(help="Id of a started ledger entry to give up for lost: the explicit word for a second spend."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Runs a dataset's line up to a release candidate; publishes it if it is approved already (or needs no approval).

    Running again costs nothing while contract, source and plan are the same: what is there is used.
    """
    from dpsynth_platform.operations.operating import run_dataset

    output = TerminalOutput(as_json)
    result = run_dataset(Settings.from_environment(), dataset, period, spend_again, output.print, up_to=up_to)
    output.json(result.to_json())
    if result.facts:
        output.heading("What the steps counted (for you, not for the public)")
        output.table(("step", "what", "how many"), result.facts_rows())
    if result.failures:
        for step, message in result.failures:
            if not as_json:
                print(f"{step} failed: {message}", file=sys.stderr)
        raise typer.Exit(BLOCKED if result.blocked else 1)
    for line in result.next_steps:
        output.print(line)


@app.command()
@command
def plan(
    dataset: Dataset,
    period: Period = None,
    mock_rows: Annotated[
        int,
        typer.Option(
            help="Rows of the mock table that the line is tried on (with texts, for minutes); 0: do not try it.", min=0
        ),
    ] = 400,
    as_json: Json = False,
) -> None:
    """Says what a run would do and cost, and tries the line on a table made from the contract alone. Free of charge."""
    from dpsynth_platform.compute.choice import check_usable, engine_choice
    from dpsynth_platform.definitions import build_definitions
    from dpsynth_platform.operations.rehearsal import rehearse
    from dpsynth_platform.reviewing import forecasts
    from dpsynth_platform.worker.choice import worker_choice

    output = TerminalOutput(as_json)
    settings = Settings.from_environment()
    known = {path.stem for path in settings.contracts.glob("*.yaml")}
    engine = engine_choice(settings.compute, dataset, known)
    check_usable(engine)
    worker = worker_choice(settings.worker, dataset, known)
    forecast = forecasts.forecast(settings, dataset, period)
    output.heading(f"{dataset}: what a run would do")
    output.table(("", ""), forecast.rows())
    output.print(f"large steps run on {engine.label}, the mechanism on {worker.label}; --json has all numbers")
    tried = rehearse(settings, build_definitions, dataset, period, mock_rows, output.print) if mock_rows else None
    output.json(forecast.to_json() | {"engine": engine.label, "worker": worker.label, "rehearsal": tried})
    if not forecast.fits:
        raise typer.Exit(BLOCKED)


@app.command()
@command
def notify(
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what waits.")] = False,
    as_json: Json = False,
) -> None:
    """Tells the receivers of notices (DPSYNTH_NOTIFY, and with _URL or _MAIL) what happened to candidates and releases.

    A sensor does the same every half minute where Dagster's daemon runs; another one tells of runs that failed.
    """
    from dpsynth_platform.notices.notifying import notify as tell
    from dpsynth_platform.notices.receivers import receivers_of

    output = TerminalOutput(as_json)
    settings = Settings.from_environment()
    if not receivers_of(settings):
        raise ConfigurationError("there is no receiver of notices; name one in DPSYNTH_NOTIFY, _URL or _MAIL")
    look = tell(settings, dry_run=dry_run)
    output.json(look.to_json())
    for item in look.standings:
        waiting = look.waiting[item.receiver]
        output.print(f"{item.receiver}: {look.sent[item.receiver]} notices sent, {len(waiting)} wait")
        if item.problem:
            output.print(f"  tried {item.attempts} times, next at {moment(item.not_before)}: {item.problem}")
        for notice in waiting:
            output.print(f"  {notice.id} {notice.event}: {notice.text}")
    if any(item.problem for item in look.standings):
        raise typer.Exit(1)


@app.command()
@command
def up(
    port: Annotated[int, typer.Option(help="Port of the UI on this machine.", min=1, max=65535)] = 3000,
    as_json: Json = False,
) -> None:
    """Starts Dagster's UI and daemon on this deployment (ends with Ctrl-C)."""
    from dpsynth_platform.operations.running import open_instance

    settings = Settings.from_environment()
    with socket.socket() as probe:
        if probe.connect_ex(("127.0.0.1", port)) == 0:
            raise ConfigurationError(f"--port {port} is taken on this machine; choose another one, or end what uses it")
    with open_instance(settings):
        pass  # makes the databases, which UI and daemon would otherwise make both at once
    settings.export()
    arguments = ["dagster", "dev", "--module-name", "dpsynth_platform.definitions", "--port", str(port)]
    output = TerminalOutput(as_json)
    output.print(f"Dagster is starting at http://127.0.0.1:{port}")
    output.json({"url": f"http://127.0.0.1:{port}", "home": str(settings.dagster_home)})
    os.execv(sys.executable, [sys.executable, "-m", *arguments])  # noqa: S606 - nothing but our own arguments


@contract_app.command("check")
@command
def contract_check(
    file: Annotated[Path, typer.Argument(help="Contract file (YAML).")],
    as_json: Json = False,
) -> None:
    """Checks a contract, alone and against its family's budget; shows all faults that can be seen at once."""
    from dpsynth_platform.audit.shortage import shortage_of
    from dpsynth_platform.synth.automatic import method_for
    from dpsynth_platform.synth.planning import check_contract

    output = TerminalOutput(as_json)
    contract = check_contract(Settings.from_environment(), file)
    chosen = method_for(contract)
    shortage = shortage_of(contract)
    output.json(
        {
            "dataset": contract.dataset,
            "digest": contract.digest(),
            "valid": True,
            "method": chosen.method,
            "why_method": chosen.why,
            "audit_shortage": shortage,
        }
    )
    texts = "no modelled column, texts alone"
    columns = f"{len(contract.modelled)} modelled columns" if contract.modelled else texts
    output.print(f"{file}: valid; dataset {contract.dataset}, {columns}")
    output.print(f"method {chosen.method}: {chosen.why}")
    if shortage:
        output.print(f"audit: {shortage}")


@contract_app.command("schema")
@command
def contract_schema(as_json: Json = False) -> None:
    """Prints the JSON schema of a contract file, for editors."""
    from dpsynth_platform.contracts.loading import contract_json_schema

    schema = contract_json_schema()
    output = TerminalOutput(as_json)
    output.json(schema)
    if not as_json:
        output.print(json.dumps(schema, indent=2))


@ledger_app.command("show")
@command
def ledger_show(as_json: Json = False) -> None:
    """Accounts with their caps, what is left of them, and their entries."""
    from dpsynth_platform.ledger.words import change_words
    from dpsynth_platform.reviewing import accounts

    output = TerminalOutput(as_json)
    listing = accounts.listing(Settings.from_environment())
    output.json(listing)
    if not listing:
        output.print("No account has been opened yet; the first run of a dataset opens its family's.")
    for account in listing:
        output.heading(f"{account['family']} ({account['mode']})")
        cap = account["cap"]
        output.print(
            f"cap: epsilon {cap['epsilon']:g}, delta {cap['delta']:g}; "
            f"{accounts.left_words(account['epsilon_left'], account['mode'])}"
        )
        for asked in account["raises_asked"]:
            output.print(
                f"event {asked['event']}: {asked['by']} asks for {change_words(asked['was'], asked['cap'])} "
                f"({asked['reason']}); somebody else approves it with: dpsynth ledger approve-raise "
                f"{account['family']} {asked['event']}"
            )
        output.table(
            ("entry", "dataset", "epsilon", "delta", "state", "since", "pays for"),
            [
                (
                    item["entry_id"],
                    item["place"],
                    f"{item['epsilon']:g}",
                    f"{item['delta']:.3g}",
                    item["state"],
                    item["since"],
                    "a learned bound" if item["purpose"] == "bound" else "a release",
                )
                for item in account["entries"]
            ],
        )


@ledger_app.command("history")
@command
def ledger_history(as_json: Json = False) -> None:
    """Every event of the ledger's hash chain, oldest first."""
    from dpsynth_platform.ledger.words import SHORT, in_words
    from dpsynth_platform.reviewing import accounts

    output = TerminalOutput(as_json)
    events = accounts.ledger(Settings.from_environment()).history()
    output.json([asdict(event) for event in events])
    output.table(
        ("#", "at (UTC)", "event", "about", "by", "words", "hash"),
        [
            (event.sequence, event.at[:19], event.kind, event.subject, by, words, event.hash[:SHORT])
            for event, (by, words) in zip(events, in_words(events), strict=True)
        ],
    )


@ledger_app.command("verify")
@command
def ledger_verify(as_json: Json = False) -> None:
    """Recomputes the hash chain and everything that must follow from it."""
    from dpsynth_platform.ledger.words import broken_words, whole_words
    from dpsynth_platform.reviewing import verification

    output = TerminalOutput(as_json)
    report = verification.verify_ledger(Settings.from_environment())
    output.json({"ok": report.ok} | asdict(report))
    for problem in report.problems:
        output.print(problem)
    if not report.ok:
        output.print(broken_words(report.events, report.entries))
        raise typer.Exit(1)
    output.print(whole_words(report.events, report.entries, report.last_at, report.dossiers))


def main() -> None:
    """Entry point."""
    no_tracebacks(keep_unexpected)
    collect_seldom()
    app()
