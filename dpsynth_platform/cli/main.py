"""The `dpsynth` command.

What belongs here: arguments, and showing what the library returns, as text or (with --json) as one JSON value on
standard output. What does not: doing anything itself.

Every command imports what it needs when it runs (a test checks it): much of the library takes seconds to import. Only
commands that run assets import Dagster.

Exit status: 0 done, 1 a clear error, 2 wrong usage, 3 blocked by the budget, 4 verified but withdrawn, 5 contaminated.
"""

from __future__ import annotations

import runpy
import signal
import socket
import sys
import time
from dataclasses import replace
from typing import Annotated, Any, Literal

import typer

from dpsynth_platform.cli.audit import audit_app
from dpsynth_platform.cli.backup import backup_app
from dpsynth_platform.cli.bench import bench_app
from dpsynth_platform.cli.bound import bound_app
from dpsynth_platform.cli.compare import compare
from dpsynth_platform.cli.console import console_app
from dpsynth_platform.cli.contract import contract_app
from dpsynth_platform.cli.federate import federate_app
from dpsynth_platform.cli.ledger import ledger_app
from dpsynth_platform.cli.lineage import lineage_app
from dpsynth_platform.cli.node import node_app
from dpsynth_platform.cli.privacy import privacy_app
from dpsynth_platform.cli.quality import quality_app
from dpsynth_platform.cli.query import query
from dpsynth_platform.cli.release import release_app
from dpsynth_platform.cli.retention import hold_app, owner_app, purge_app
from dpsynth_platform.cli.scrub import scrub_app
from dpsynth_platform.cli.synth import synth_app
from dpsynth_platform.cli.terminal import BLOCKED, Commands, Dataset, Period, TerminalOutput, keep_unexpected
from dpsynth_platform.foundation.errors import ConfigurationError
from dpsynth_platform.foundation.figures import moment
from dpsynth_platform.foundation.garbage_collection import collect_seldom
from dpsynth_platform.foundation.restricted_log import no_tracebacks
from dpsynth_platform.foundation.settings import Settings

app = Commands(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,  # its tracebacks would replace `no_tracebacks`
    help="From a sensitive table to a differentially private synthetic release with verifiable evidence.",
)
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
app.command()(query)
app.command()(compare)
app.add_typer(federate_app, name="federate")
app.add_typer(bench_app, name="bench")
app.add_typer(node_app, name="node")
app.add_typer(console_app, name="console")
app.add_typer(backup_app)
app.add_typer(hold_app, name="hold")
app.add_typer(owner_app, name="owner")
app.add_typer(purge_app)

MOST_FAILURES = 10
"""Looks of the watch that fail in succession before it ends, so that its supervisor sees it."""
_NO_RECEIVER = (
    "there is no receiver of notices; name one in DPSYNTH_NOTIFY, or in DPSYNTH_NOTIFY_URL, _SLACK, _TEAMS or _MAIL"
)


@app.command()
def demo(
    output: TerminalOutput,
    line: Annotated[
        Literal["census", "mail", "flights", "images"],
        typer.Argument(
            help="census: a table of fictional people, takes minutes; mail: texts of a language model that is "
            "fine-tuned on a public mail corpus, takes about 15 minutes on two cores; flights: a year of monthly "
            "releases under different overlap policies, takes some minutes; images: pictures of clothing, or of "
            "handwritten digits, takes three minutes."
        ),
    ] = "census",
    source: Annotated[
        Literal["census", "visits", "mail", "flights", "images"] | None,
        typer.Option(help="Only make this demonstration source, so that you can run it yourself."),
    ] = None,
    months: Annotated[int, typer.Option(help="flights: number of months to release.", min=1, max=12)] = 12,
) -> None:
    """Runs all steps on demonstration data: from the source to a published, verified release."""
    from dpsynth_platform.demo.line import make_source, run_demo
    from dpsynth_platform.demo.year import run_year

    settings = Settings.from_environment()
    if source is None and line == "flights":
        from dpsynth_platform.definitions import build_definitions

        output.json(run_year(settings, build_definitions, months, output))
        return
    if source is None:
        output.json(run_demo(settings, line, output))
        return
    path = make_source(settings, source)
    output.json({"source": str(path)})
    output.print(f"Delta table {path}")


@app.command()
def run(
    output: TerminalOutput,
    dataset: Dataset,
    period: Period = None,
    up_to: Annotated[
        str | None,
        typer.Option(help="The last step to run, such as scrubbed (needed by `dpsynth bound learn`); default: all."),
    ] = None,
    spend_again: Annotated[
        str | None,
        typer.Option(help="Id of a started ledger entry to give up as lost; permits to spend its cost a second time."),
    ] = None,
) -> None:
    """Runs a dataset's steps up to a release candidate; publishes it if it is already approved or needs no approval.

    A repeated run costs nothing while contract, source and plan are the same: it uses the existing outputs.
    """
    from dpsynth_platform.operations.operating import run_dataset

    result = run_dataset(Settings.from_environment(), dataset, period, spend_again, output.print, up_to=up_to)
    output.json(result.to_json())
    if result.facts:
        output.heading("What the steps counted (for you, not for the public)")
        output.table(("step", "what", "how many"), result.facts_rows())
    if result.failures:
        output.print_failures(result.failures)
        raise typer.Exit(BLOCKED if result.blocked else 1)
    for line in result.next_steps:
        output.print(line)


@app.command()
def plan(
    output: TerminalOutput,
    dataset: Annotated[
        str, typer.Argument(metavar="NAME|PATH", help="A dataset of this deployment, or the path of its contract.")
    ],
    period: Period = None,
    rehearse: Annotated[
        bool,
        typer.Option(
            "--rehearse",
            help="Also try all steps on a table made from the contract alone; takes half a minute, with texts minutes.",
        ),
    ] = False,
    mock_rows: Annotated[
        int | None, typer.Option(help="Rows of the table for --rehearse; default: 400.", min=1)
    ] = None,
) -> None:
    """Shows what a run would do and cost. Reads no record and spends nothing."""
    from dpsynth_platform.compute.choice import check_usable, engine_choice
    from dpsynth_platform.contracts.loading import dataset_named
    from dpsynth_platform.federation.choice import relay_choice
    from dpsynth_platform.reviewing import forecasts
    from dpsynth_platform.synth.planning import load_dataset
    from dpsynth_platform.worker.choice import worker_choice

    if mock_rows is not None and not rehearse:
        raise ConfigurationError("--mock-rows: is for the trial; accepted: together with --rehearse")
    settings = Settings.from_environment()
    dataset = dataset_named(settings, dataset)
    known = {path.stem for path in settings.contracts.glob("*.yaml")}
    engine = engine_choice(settings.compute, dataset, known)
    check_usable(engine)
    worker = worker_choice(settings.worker, dataset, known)
    place = f"the mechanism on {worker.label}"
    if load_dataset(settings, dataset)[0].source.federation is not None:
        place = f"the relay connects at {relay_choice(settings.federation, dataset, known).socket}"
    forecast = forecasts.forecast(settings, dataset, period)
    output.heading(f"{dataset}: what a run would do")
    output.table(("", ""), forecast.rows())
    output.print(f"large steps run on {engine.label}, {place}; --json has all numbers")
    tried = _rehearsed(settings, dataset, period, mock_rows or 400, output) if rehearse else None
    output.json(forecast.to_json() | {"engine": engine.label, "worker": worker.label, "rehearsal": tried})
    if not forecast.fits:
        raise typer.Exit(BLOCKED)


def _rehearsed(
    settings: Settings, dataset: str, period: str | None, rows: int, output: TerminalOutput
) -> dict[str, Any]:
    from dpsynth_platform.definitions import build_definitions
    from dpsynth_platform.operations.rehearsal import rehearse

    return rehearse(settings, build_definitions, dataset, period, rows, output.print)


@app.command()
def notify(
    output: TerminalOutput,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show which notices wait.")] = False,
    test: Annotated[
        bool, typer.Option("--test", help="Only send a notice that says it is a test, to every receiver.")
    ] = False,
) -> None:
    """Sends notices about candidates and releases to the receivers in DPSYNTH_NOTIFY, and in DPSYNTH_NOTIFY_URL,
    _SLACK, _TEAMS and _MAIL.

    Where Dagster's daemon runs, a sensor does the same every half minute, and another one sends notices of failed runs.
    """
    from dpsynth_platform.notices.notifying import notify as send
    from dpsynth_platform.notices.notifying import send_test
    from dpsynth_platform.notices.receivers import receivers_of

    settings = Settings.from_environment()
    if not receivers_of(settings):
        raise ConfigurationError(_NO_RECEIVER)
    if test:
        failures = send_test(settings)
        output.json({name: {"ok": not why, "why": why} for name, why in failures.items()})
        for name, why in failures.items():
            output.print(f"{name}: {f'FAIL: {why}' if why else 'OK'}")
        if any(failures.values()):
            raise typer.Exit(1)
        return
    report = send(settings, dry_run=dry_run)
    output.json(report.to_json())
    for item in report.cursors:
        waiting = report.waiting[item.receiver]
        output.print(f"{item.receiver}: {report.sent[item.receiver]} notices sent, {len(waiting)} wait")
        if item.problem:
            output.print(f"  tried {item.attempts} times, next at {moment(item.not_before)}: {item.problem}")
        for notice in waiting:
            output.print(f"  {notice.id} {notice.event}: {notice.text}")
    if any(item.problem for item in report.cursors):
        raise typer.Exit(1)


@app.command()
def up(
    output: TerminalOutput,
    port: Annotated[int, typer.Option(help="Port of the UI on this machine.", min=1, max=65535)] = 3000,
) -> None:
    """Starts Dagster's UI and daemon on this deployment (ends with Ctrl-C)."""
    from dpsynth_platform.operations.running import open_instance

    settings = Settings.from_environment()
    with socket.socket() as probe:
        if probe.connect_ex(("127.0.0.1", port)) == 0:
            raise ConfigurationError(
                f"--port {port} is in use on this machine; choose another port, or stop the process that uses it"
            )
    with open_instance(settings):
        pass  # makes the databases: otherwise UI and daemon would both make them at once
    url = f"http://127.0.0.1:{port}"
    replace(settings, dagster_url=settings.dagster_url or url).export()  # a sensor has changed contracts loaded there
    arguments = ["dagster", "dev", "--module-name", "dpsynth_platform.definitions", "--port", str(port)]
    output.print(f"Dagster is starting at {url}")
    output.json({"url": url, "home": str(settings.dagster_home)})
    sys.argv = arguments
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # a job in a script's background
        signal.signal(signal.SIGINT, signal.default_int_handler)  # Dagster treats SIGTERM as it does SIGINT
    runpy.run_module("dagster", run_name="__main__", alter_sys=True)  # here, where it is loaded already


@app.command()
def metrics(
    output: TerminalOutput,
    host: Annotated[str, typer.Option(help="Address to listen on. Readers need no password.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to listen on; 0: a free one.", min=0, max=65535)] = 9464,
) -> None:
    """Serves metrics for Prometheus at /metrics, and /health and /live (ends with Ctrl-C)."""
    from dpsynth_platform.foundation.serving import listening_at
    from dpsynth_platform.watching import server

    settings = Settings.from_environment()
    listening = listening_at(host, port)
    url = f"http://{host}:{listening.getsockname()[1]}"
    output.json({"url": url})
    output.print(f"metrics at {url}/metrics, health at {url}/health; stop with Ctrl-C")
    server.serve(listening, server.application(settings))


@app.command()
def watch(
    output: TerminalOutput,
    once: Annotated[bool, typer.Option("--once", help="Look once and end, for a timer.")] = False,
    check: Annotated[
        bool, typer.Option("--check", help="Only say whether a watch has looked in the last half hour.")
    ] = False,
    every: Annotated[int, typer.Option(help="Seconds between two looks.", min=1, max=900)] = 60,
) -> None:
    """Sends notices of overdue releases and failing checks, each once, and when they end.

    It needs no Dagster daemon, and also sends what dpsynth notify sends. Exit status 1: it could not look, or a
    receiver failed five times; without --once after ten such looks in succession.
    """
    import datetime as dt

    from dpsynth_platform.foundation.redaction import safe_error
    from dpsynth_platform.watching import heartbeat
    from dpsynth_platform.watching.watch import look

    settings = Settings.from_environment()
    if check:
        problem = heartbeat.silence(settings, dt.datetime.now(dt.UTC))
        output.json({"ok": not problem, "why": problem})
        output.print(problem or "the watch looks")
        if problem:
            raise typer.Exit(1)
        return
    if not settings.has_receivers:
        raise ConfigurationError(_NO_RECEIVER)
    failures = 0
    while failures < MOST_FAILURES:
        try:
            found = look(settings, dt.datetime.now(dt.UTC))
            failed = found.stuck
            lines = [*found.new, *found.ended, *(f"not delivered: {problem}" for problem in found.undelivered)]
            if once:
                lines.append(f"new notices: {len(found.new) + len(found.ended)}; open findings: {len(found.open)}")
            shown = {"open": sorted(found.open), "new": found.new, "ended": found.ended, "failed": found.undelivered}
        except Exception as error:
            failed, problem = True, ": ".join(safe_error(error))
            lines, shown = [f"no look: {problem}"], {"error": problem}
        for line in lines:
            output.print(line)
        failures = failures + 1 if failed else 0
        if once:
            output.json(shown)
            break
        time.sleep(every)
    if failures:
        raise typer.Exit(1)


@app.command()
def health(output: TerminalOutput) -> None:
    """Checks ledger, places, disk, Dagster's daemon and the watch, and that no release is overdue (status 1 if not)."""
    from dpsynth_platform.watching.health import checks

    found = checks(Settings.from_environment())
    ok = all(item.ok for item in found)
    output.json({"ok": ok, "checks": [vars(item) for item in found]})
    for item in found:
        output.print(f"{item.name}: {'OK' if item.ok else 'FAIL'}: {item.words}")
    if not ok:
        raise typer.Exit(1)


def main() -> None:
    """Entry point."""
    no_tracebacks(keep_unexpected)
    collect_seldom()
    app()
